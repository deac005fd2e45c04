"""What `examples/monitoring` shows, by Prometheus itself: it scrapes the worker, by these rules."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.project.test_monitoring import FOLDER, filled, of_dashboard, read
from tests.support.procs import Worker, tied
from tests.support.servers import hold_port

WITHIN = 60.0
"""Seconds for two scrapes and the rules, on a busy machine."""

pytestmark = [
    pytest.mark.one_loop,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="there is no Prometheus here"),
]


@asynccontextmanager
async def prometheus(folder: Path, target: str) -> AsyncIterator[httpx.AsyncClient]:
    """A server that scrapes this target each second; a client of its API."""
    settings = read("prometheus.yml")
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    settings["rule_files"] = [str(FOLDER / name) for name in settings["rule_files"]]
    settings["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
    path = folder / "prometheus.yml"
    path.write_text(json.dumps(settings))  # YAML includes JSON
    holder = hold_port()
    address = f"127.0.0.1:{holder.getsockname()[1]}"
    holder.close()
    process = await asyncio.create_subprocess_exec(
        *tied("prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder / 'data'}"),
        f"--web.listen-address={address}",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with httpx.AsyncClient(
            base_url=f"http://{address}/", trust_env=False, timeout=WITHIN
        ) as client:
            yield client
    finally:
        process.kill()
        await process.wait()


async def test_prometheus_has_data_for_each_panel_and_evaluates_each_rule(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From what the example exports; nothing is wrong with it, so no alert fires."""
    monkeypatch.setenv("AIOLOCK_URL", "memory://")
    monkeypatch.setenv("METRICS_PORT", "0")
    async with Worker(str(FOLDER / "worker.py")) as worker:
        said = (await worker.expect("print"))["text"]
        port = re.findall(r":(\d+)/metrics", said)[0]
        async with prometheus(tmp_path, f"127.0.0.1:{port}") as client, asyncio.timeout(WITHIN):
            missing = {query.where: query.expression for query in of_dashboard()}
            del missing[read("grafana.json")["annotations"]["list"][0]["name"]]  # a loss: none
            while missing:
                await asyncio.sleep(0.2)
                for where, expression in list(missing.items()):
                    try:
                        answer = await client.get(
                            "api/v1/query", params={"query": filled(expression, interval="1m")}
                        )
                    except httpx.TransportError:
                        break  # it has not begun to listen
                    if answer.status_code == 503:
                        break
                    assert answer.status_code == 200, answer.text
                    if answer.json()["data"]["result"]:
                        del missing[where]
            while True:
                found = (await client.get("api/v1/rules")).json()["data"]["groups"]
                rules = [rule for group in found for rule in group["rules"]]
                if all(rule["health"] != "unknown" for rule in rules):
                    break
                await asyncio.sleep(0.2)
            wanted = read("alerts.yml")["groups"][0]["rules"]
            assert [rule["name"] for rule in rules] == [rule["alert"] for rule in wanted]
            assert {rule["health"] for rule in rules} == {"ok"}
            # On a busy machine, the times of a moment may be above a limit: that rule is pending.
            assert {rule["state"] for rule in rules} <= {"inactive", "pending"}
        await worker.ask_to_end()
        assert await worker.wait() == 0
