"""Metrics and traces that are on by themselves: when the program uses their library."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent

import pytest

import pytest_aiolock

pytestmark = [pytest.mark.one_loop]

HEAD = """
import asyncio
import sys

async def use(**options):
    async with aiolock.connect("memory://", **options) as client:
        async with client.lock("order:1"):
            pass

def loaded():
    return sorted({"prometheus_client", "opentelemetry"} & sys.modules.keys())

def held():
    import prometheus_client
    labels = {"family": "order", "kind": "lock", "outcome": "released"}
    return prometheus_client.REGISTRY.get_sample_value("aiolock_hold_seconds_count", labels)

def recorded():
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
    return lambda: [span.name for span in spans.get_finished_spans()]

def metered():
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    return lambda: sorted(
        metric.name
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    )

"""


def run(program: str, monkeypatch: pytest.MonkeyPatch, *, variable: str | None = None) -> str:
    """What a program prints, in a process of its own: registries and providers are global."""
    monkeypatch.delenv("AIOLOCK_OBSERVE", raising=False)
    monkeypatch.delenv("PYTHONPATH", raising=False)  # with the SDK, see tests.conftest
    if variable is not None:
        monkeypatch.setenv("AIOLOCK_OBSERVE", variable)
    source = HEAD + "import aiolock\n" + dedent(program)
    command = (sys.executable, "-P", "-W", "error::UserWarning", "-c", source)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "already" not in done.stderr  # of the SDK, where an instrument is made twice
    return done.stdout.strip()


def test_client_imports_no_library_that_is_merely_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither by the import of aiolock nor when it opens."""
    program = """
    print(loaded())
    asyncio.run(use())
    print(loaded(), "aiolock.observe._prometheus" in sys.modules)
    """
    assert run(program, monkeypatch).splitlines() == ["[]", "[] False"]


def test_client_of_a_program_that_imports_prometheus_client_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In its default registry, also beside an observer that was given, and once at any number."""
    program = """
    import prometheus_client
    asyncio.run(use())
    asyncio.run(use(observer=aiolock.Observer()))
    asyncio.run(use(observer=aiolock.observe.prometheus()))
    asyncio.run(use(observer=[aiolock.observe.prometheus(), aiolock.observe.log()]))
    print(held())
    mine = aiolock.observe.prometheus(registry=prometheus_client.CollectorRegistry())
    asyncio.run(use(observer=mine))
    print(held())
    """
    assert run(program, monkeypatch).splitlines() == ["4.0", "4.0"]


def test_client_of_a_program_with_a_tracer_provider_makes_spans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the next opening on; not while there is none. The metrics stay with Prometheus."""
    program = """
    import opentelemetry.trace
    import prometheus_client
    client = aiolock.connect("memory://")

    async def again():
        async with client, client.lock("order:1"):
            pass

    asyncio.run(again())
    print("aiolock.observe._opentelemetry" in sys.modules)
    spans = recorded()
    asyncio.run(again())
    asyncio.run(use(observer=aiolock.observe.opentelemetry()))
    print(spans(), held())
    """
    assert run(program, monkeypatch).splitlines() == ["False", "['hold lock', 'hold lock'] 3.0"]


def test_client_of_a_program_with_a_meter_provider_counts_there_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prometheus may be the exporter of these: nothing is counted twice. An instrument is one."""
    program = """
    import prometheus_client
    names = metered()
    asyncio.run(use())
    asyncio.run(use())
    print(names(), held())
    """
    assert run(program, monkeypatch) == (
        "['aiolock.held', 'aiolock.hold.duration', 'aiolock.wait.duration'] None"
    )


def test_variable_turns_observers_off_or_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off, whatever the program uses; or those alone. Or as OpenTelemetry has it."""
    program = """
    import os
    import prometheus_client
    spans = recorded()
    for value in ("off", "prometheus", "opentelemetry", "auto"):
        os.environ["AIOLOCK_OBSERVE"] = value
        asyncio.run(use())
        print(value, len(spans()), held())
    os.environ["OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"] = "redis, aiolock"
    asyncio.run(use())
    print("disabled", len(spans()), held())
    """
    assert run(program, monkeypatch).splitlines() == [
        "off 0 None",
        "prometheus 0 1.0",
        "opentelemetry 1 1.0",
        "auto 2 2.0",
        "disabled 2 3.0",
    ]


def test_variable_imports_the_libraries_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the program uses them or not."""
    program = "asyncio.run(use()); print(loaded(), held())"
    both = "['opentelemetry', 'prometheus_client'] 1.0"
    assert run(program, monkeypatch, variable="opentelemetry, prometheus") == both


def test_variable_with_another_value_raises_before_the_client_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rule is in the error, and the client can be opened after that."""
    program = """
    import os
    client = aiolock.connect("memory://")
    for value in ("on", "auto"):
        os.environ["AIOLOCK_OBSERVE"] = value
        try:
            asyncio.run(client.open())
        except ValueError as error:
            print(error)
    print("open")
    """
    rule = "auto or off, or name prometheus or opentelemetry, or both with a comma between them"
    assert run(program, monkeypatch).splitlines() == [
        f"AIOLOCK_OBSERVE must be {rule}, not 'on'",
        "open",
    ]


def test_plugin_turns_observers_off_unless_a_variable_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For all tests of a program, and the programs that they start; a test can turn them on."""
    monkeypatch.setenv("AIOLOCK_OBSERVE", "auto")
    pytest_aiolock.pytest_configure()
    assert os.environ["AIOLOCK_OBSERVE"] == "auto"
    monkeypatch.delenv("AIOLOCK_OBSERVE")
    pytest_aiolock.pytest_configure()
    assert os.environ["AIOLOCK_OBSERVE"] == "off"
