"""What `examples/monitoring` shows is what is exported: metrics, labels, files, ports."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, cast

import httpx
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import aiolock
from tests.support.observed import Scene
from tests.support.procs import Worker
from tests.support.virtual import run

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples/monitoring"

FUNCTIONS = {"histogram_quantile", "increase", "max", "rate", "sum"}
OF_SCRAPE = {"instance", "job"}
"""The labels that Prometheus adds."""

STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
SELECTOR = re.compile(r"\b(aiolock_\w+)(?:\{([^}]*)\})?")
PAIRS = {")": "(", "]": "[", "}": "{"}


class Query(NamedTuple):
    """An expression, and what is shown of its result."""

    where: str
    expression: str
    shown: set[str]


def read(name: str) -> Any:
    """A file of that folder, parsed."""
    text = (FOLDER / name).read_text("utf-8")
    return json.loads(text) if name.endswith(".json") else yaml.safe_load(text)


def shown(*texts: str) -> set[str]:
    """The labels that texts for people name."""
    found = re.findall(r"\{\{ ?(?:\$labels\.)?(\w+)", " ".join(texts))
    return set(found)


def of_alerts() -> Iterator[Query]:
    """The expressions of the rules."""
    for group in read("alerts.yml")["groups"]:
        for rule in group["rules"]:
            texts = rule["annotations"].values()
            yield Query(rule["alert"], rule["expr"], shown(*texts))


def of_dashboard() -> Iterator[Query]:
    """The expressions of the panels and annotations."""
    dashboard = read("grafana.json")
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield Query(panel["title"], target["expr"], shown(target["legendFormat"]))
    for note in dashboard["annotations"]["list"]:
        yield Query(note["name"], note["expr"], shown(note["titleFormat"], note["textFormat"]))


QUERIES = [*of_alerts(), *of_dashboard()]


@pytest.fixture(scope="module")
def exported() -> Mapping[str, set[str]]:
    """The labels of every series that clients export to which everything has happened."""
    registry = CollectorRegistry()

    async def happen() -> None:
        async with Scene(aiolock.observe.prometheus(registry=registry)) as scene:
            await scene.everything()

    run(happen())
    found = dict[str, set[str]]()
    for metric in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in metric.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def labels_of(selector: str) -> set[str]:
    """Those that a selector names."""
    without = STRING.sub("", selector)
    assert re.fullmatch(r"(\w+(=|!=|=~|!~))(, \w+(=|!=|=~|!~))*|", without), selector
    return set(re.findall(r"\w+", without))


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.where)
def test_query_uses_only_exported_metrics_and_labels(
    query: Query, exported: Mapping[str, set[str]]
) -> None:
    """It asks for metrics and labels that there are, and shows labels that are left."""
    expression = query.expression
    used = SELECTOR.findall(expression)
    assert used
    for name, selector in used:
        assert name in exported
        assert labels_of(selector) <= exported[name]
    grouped = [set(re.findall(r"\w+", by)) for by in re.findall(r"\bby \(([^)]*)\)", expression)]
    for by in grouped:
        assert by <= set.union(*[exported[name] for name, _ in used]) | OF_SCRAPE
    known = FUNCTIONS | {"by"}
    assert set(re.findall(r"\b([a-z_]+) ?\(", STRING.sub("", expression))) <= known
    left = (grouped[-1] if grouped else set()) - ({"le"} if "quantile" in expression else set())
    assert query.shown - {"value", "humanize"} <= left, "a label that is not in the result"


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.where)
def test_query_brackets_match_and_only_counters_are_ranged(query: Query) -> None:
    """Each one that opens is closed; a rate is of a range, and a counter is not shown bare."""
    open_ = list[str]()
    for character in STRING.sub("", query.expression):
        if character in PAIRS.values():
            open_.append(character)
        elif character in PAIRS:
            assert open_.pop() == PAIRS[character]
    assert not open_
    for name, selector in SELECTOR.findall(query.expression):
        text = name + (f"{{{selector}}}" if selector else "")
        counts = name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert (f"{text}[" in query.expression) == counts


def test_dashboard_shows_every_exported_metric(exported: Mapping[str, set[str]]) -> None:
    """No metric that is exported is missing from the dashboard."""
    asked = {name for query in of_dashboard() for name, _ in SELECTOR.findall(query.expression)}
    shown = {re.sub(r"_(bucket|count|sum)$", "", name) for name in asked}
    there = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in exported}
    assert shown == there - {"aiolock_lost", "aiolock_deadlocks", "aiolock_link_breaks"}


def test_metric_names_follow_conventions_and_labels_are_bounded(
    exported: Mapping[str, set[str]],
) -> None:
    """They follow the conventions, and no label has as many values as there are names."""
    suffixes = ("_total", "_seconds", "_bucket", "_sum", "_count", "_created")
    plain = {name for name in exported if not name.endswith(suffixes)}
    assert plain == {"aiolock_waiting", "aiolock_held", "aiolock_links_down"}
    assert set.union(*exported.values()) == {"family", "kind", "outcome", "why", "le"}


needs_promtool = pytest.mark.skipif(
    not shutil.which("promtool"), reason="there is no promtool here"
)


@needs_promtool
def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    """Prometheus itself takes the configuration and the rules."""
    promtool("check", "rules", "alerts.yml")
    promtool("check", "config", "prometheus.yml")


@needs_promtool
def test_alerts_fire_when_they_should_and_not_otherwise() -> None:
    """By the evaluation of Prometheus itself, for each of the rules."""
    promtool("test", "rules", "alerts_test.yml")
    tests = read("alerts_test.yml")["tests"]
    alerts = {rule["alert"] for group in read("alerts.yml")["groups"] for rule in group["rules"]}
    for test in tests:
        assert {each["alertname"] for each in test["alert_rule_test"]} == alerts
    assert all(each["exp_alerts"] for each in tests[-1]["alert_rule_test"])


@needs_promtool
def test_promtool_accepts_each_expression_of_the_dashboard(tmp_path: Path) -> None:
    """As rules, with the variables of Grafana replaced by values of theirs."""
    rules = [
        {"record": f"dashboard:{number}", "expr": filled(query.expression)}
        for number, query in enumerate(of_dashboard())
    ]
    assert len(rules) >= 17
    path = tmp_path / "rules.yml"
    path.write_text(
        json.dumps({"groups": [{"name": "dashboard", "rules": rules}]})
    )  # YAML includes JSON
    promtool("check", "rules", str(path))


def filled(expression: str, *, interval: str = "5m") -> str:
    """An expression with the variables of Grafana replaced."""
    for name in ("$__rate_interval", "$__range"):
        expression = expression.replace(name, interval)
    for name in ("$family", "$kind"):
        expression = expression.replace(name, ".*")
    assert "$" not in expression
    return expression


def promtool(*arguments: str) -> None:
    """Run it in that folder; it must find no fault."""
    command = ("promtool", *arguments)
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_dashboard_has_only_what_the_schema_of_grafana_knows() -> None:
    """Grafana's own classes for its version in `compose.yaml` read it, and write the same again.

    Grafana itself is in no package. What these classes do not know, as a misspelt option, they
    leave out; four fields belong to the data source, and not to the schema of dashboards.
    """
    image = read("compose.yaml")["services"]["grafana"]["image"]
    assert version("grafana-foundation-sdk").partition("!")[2] == image.partition(":")[2]
    dashboard = read("grafana.json")
    assert lost(dashboard) == {
        "/annotations/list/0/textFormat",
        "/annotations/list/0/titleFormat",
        "/templating/list/1/definition",
        "/templating/list/2/definition",
    }
    dashboard["panels"][0]["options"]["colourMode"] = "none"
    dashboard["panels"][1]["fieldConfig"]["defaults"]["units"] = "s"
    assert {
        "/panels/0/options/colourMode",
        "/panels/1/fieldConfig/defaults/units",
    } < lost(dashboard)


def lost(dashboard: Any) -> set[str]:
    """The places whose values are not the same after Grafana's classes have read and written it."""
    register_default_plugins()
    written = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))
    ours, theirs = dict(values(dashboard)), dict(values(written))
    return {place for place, value in ours.items() if theirs.get(place) != value}


def values(tree: object, at: str = "") -> Iterator[tuple[str, object]]:
    """Each place in a JSON document, with its value."""
    if isinstance(tree, dict):
        for key, value in cast("dict[str, object]", tree).items():
            yield from values(value, f"{at}/{key}")
    elif isinstance(tree, list):
        for number, value in enumerate(cast("list[object]", tree)):
            yield from values(value, f"{at}/{number}")
    else:
        yield at, tree


def test_dashboard_panels_do_not_overlap_and_use_the_chosen_source() -> None:
    """No two of them overlap, or have the same number; all ask the source that was chosen."""
    dashboard = read("grafana.json")
    taken = set[tuple[int, int]]()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells
        assert {each["datasource"]["uid"] for each in (panel, *panel["targets"])} == {
            "${datasource}"
        }
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    text = (FOLDER / "grafana.json").read_text("utf-8")
    assert set(re.findall(r"\$\{?([a-z]+)", text)) == variables


def test_compose_file_refers_to_existing_files_and_services() -> None:
    """It refers to files that there are, and its services find each other."""
    services = read("compose.yaml")["services"]
    mounted = dict[str, str]()
    for service in services.values():
        for volume in service.get("volumes", ()):
            source, target, mode = volume.split(":")
            assert (FOLDER / source).is_file()
            assert mode == "ro"
            mounted[target] = source
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "only for whoever sits here"
        assert set(service.get("depends_on", ())) <= services.keys()
        if build := service.get("build"):
            assert (FOLDER / build["context"]).resolve() == ROOT
            assert (ROOT / build["dockerfile"]).is_file()
    workers = [name for name in services if name.startswith("worker")]
    assert len(workers) == 2
    assert {services[name]["environment"]["AIOLOCK_URL"] for name in workers} == {"redis://redis"}

    prometheus = read("prometheus.yml")
    (job,) = prometheus["scrape_configs"]
    ports = {f"{name}:{services[name]['environment']['METRICS_PORT']}" for name in workers}
    assert {target for each in job["static_configs"] for target in each["targets"]} == ports
    for rules in prometheus["rule_files"]:
        assert mounted[f"/etc/prometheus/{rules}"] == f"./{rules}"

    (source,) = read("grafana/datasources.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = read("grafana/dashboards.yaml")["providers"]
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home.startswith(f"{provider['options']['path']}/")
    assert mounted[home] == "./grafana.json"


def test_dockerfile_copies_existing_files_and_installs_an_existing_extra() -> None:
    """What it copies is there, and it installs an extra that there is."""
    text = (FOLDER / "Dockerfile").read_text("utf-8")
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ")]
    assert all((ROOT / source).exists() for sources in copied for source in sources)
    assert '".[prometheus]"' in text
    assert "\nprometheus = [" in (ROOT / "pyproject.toml").read_text("utf-8")


async def test_monitoring_worker_example_serves_its_metrics_and_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The example waits, holds and serves what it counts; and it ends when it is told to."""
    monkeypatch.setenv("AIOLOCK_URL", "memory://")
    monkeypatch.setenv("METRICS_PORT", "0")
    async with Worker(str(FOLDER / "worker.py")) as worker:
        said = (await worker.expect("print"))["text"]
        address = re.fullmatch(r"metrics on http://localhost:(\d+)/metrics", said)
        assert address is not None
        async with httpx.AsyncClient(trust_env=False) as http, asyncio.timeout(20):
            text = ""
            while not {"order", "stock", "partner api", "report"} <= held(text):
                await asyncio.sleep(0.05)
                text = (await http.get(f"http://127.0.0.1:{address[1]}/metrics")).text
        await worker.ask_to_end()
        assert await worker.wait() == 0


def held(text: str) -> set[str]:
    """The families of which something was held."""
    return set(re.findall(r'^aiolock_hold_seconds_count\{family="([^"]+)"', text, re.MULTILINE))
