"""Observers that are on by themselves, for the libraries by which the program observes itself.

What is merely installed is not imported, and costs nothing. OpenTelemetry is used if the program
has configured it: its own API records nothing. `prometheus_client` needs no configuration: it is
used if the program has imported it, unless the metrics go to OpenTelemetry.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from aiolock.observer import Observer

VARIABLE: Final = "AIOLOCK_OBSERVE"
_KNOWN: Final = ("prometheus", "opentelemetry")
_DISABLED: Final = "OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"
"""Where users of OpenTelemetry name what is not to be observed."""


class _Providers(NamedTuple):
    """The providers of OpenTelemetry in this process."""

    tracer: object
    meter: object


def with_those_in_use(given: Sequence[Observer]) -> tuple[Observer, ...]:
    """The observers of a client that opens now: those it was given, and one of each other class.

    `ValueError` if the variable has no valid value; `ImportError` if it names a library that is not
    installed.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if text == "off":
        return tuple(given)
    names = _in_use() if text in ("", "auto") else [each.strip() for each in text.split(",")]
    if not set(names) <= set(_KNOWN):
        raise ValueError(
            f"{VARIABLE} must be auto or off, or name {' or '.join(_KNOWN)}, or both with a comma"
            f" between them, not {text!r}"
        )
    ours = [_prometheus() if name == "prometheus" else _opentelemetry() for name in names]
    have = {type(each) for each in given}
    return (*given, *(each for each in ours if type(each) not in have))


def _in_use() -> Collection[str]:
    """The libraries that the program uses."""
    found = list[str]()
    tracing, metering = _configured()
    if tracing or metering:
        found.append("opentelemetry")
    if "prometheus_client" in sys.modules and not metering:
        found.append("prometheus")
    return found


def _configured() -> tuple[bool, bool]:
    """Whether spans and metrics of OpenTelemetry are recorded."""
    if not {"opentelemetry.trace", "opentelemetry.metrics"} & sys.modules.keys():
        return False, False
    disabled = {each.strip() for each in os.environ.get(_DISABLED, "").split(",")}
    if disabled & {"aiolock", "*"}:
        return False, False
    # Its API has providers of its own, which record nothing; not all of them have a public name.
    api = ("opentelemetry.trace", "opentelemetry.metrics")
    providers = _providers()
    tracer, meter = (not type(each).__module__.startswith(api) for each in providers)
    return tracer, meter


def _providers() -> _Providers:
    from opentelemetry.metrics import get_meter_provider
    from opentelemetry.trace import get_tracer_provider

    return _Providers(get_tracer_provider(), get_meter_provider())


def _prometheus() -> Observer:
    from aiolock.observe._prometheus import Prometheus

    return Prometheus()


def _opentelemetry() -> Observer:
    """The same while the providers are: the SDK warns of an instrument that is made twice."""
    from aiolock.observe._opentelemetry import OpenTelemetry

    global _last  # noqa: PLW0603  # as the providers are
    providers = _providers()
    if _last is None or _last[0] != providers:
        _last = providers, OpenTelemetry()
    return _last[1]


_last: tuple[_Providers, Observer] | None = None
