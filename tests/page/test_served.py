"""The page as an application of its own: its lifespan, and ``aiolock web``."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from typing import Any

import httpx
import pytest

import aiolock
from aiolock.cli.main import main
from aiolock.page import Page, web
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.commands import Cli, line_of
from tests.support.servers import RedisServer
from tests.support.viewers import WITHIN


class Life:
    """What a server does when it starts, and when it stops."""

    def __init__(self, page: Page) -> None:
        self._told: asyncio.Queue[str] = asyncio.Queue()
        self._said: asyncio.Queue[Any] = asyncio.Queue()
        self._task = asyncio.ensure_future(
            page({"type": "lifespan"}, self._receive, self._said.put)
        )

    async def _receive(self) -> dict[str, str]:
        return {"type": f"lifespan.{await self._told.get()}"}

    async def __call__(self, what: str) -> str:
        """Do so; what the page says."""
        self._told.put_nowait(what)
        said: str = (await asyncio.wait_for(self._said.get(), WITHIN))["type"]
        if not said.startswith("lifespan.startup.c"):
            await self._task
        return said


async def test_lifespan_opens_and_closes_the_client() -> None:
    """It opens the client, and closes it."""
    client = aiolock.connect(MemoryServer())
    page = web(client)
    for _ in range(2):
        life = Life(page)
        assert await life("startup") == "lifespan.startup.complete"
        assert not await client.lock("a").locked()
        assert await life("shutdown") == "lifespan.shutdown.complete"
        with pytest.raises(aiolock.ClientClosed):
            await client.lock("a").locked()


async def test_lifespan_of_an_open_client_does_not_close_it() -> None:
    """One that is open already is somebody else's to close."""
    async with aiolock.connect(MemoryServer()) as client:
        life = Life(web(client))
        assert await life("startup") == "lifespan.startup.complete"
        assert await life("shutdown") == "lifespan.shutdown.complete"
        assert not await client.lock("a").locked()


async def test_lifespan_without_a_store_fails_unless_the_client_is_open() -> None:
    """The start fails, and says why; an open client whose store is away now is open."""
    life = Life(web(aiolock.connect("redis://127.0.0.1:1/0")))
    assert await life("startup") == "lifespan.startup.failed"
    store = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(store) as client:
        store.refuse("status")
        life = Life(web(client))
        assert await life("startup") == "lifespan.startup.complete"
        assert await life("shutdown") == "lifespan.shutdown.complete"


async def address_of(process: asyncio.subprocess.Process) -> str:
    """What it says is to be opened."""
    line = await line_of(process)
    found = re.fullmatch(r"(http://\S+/#key=[\w-]{32}) \(Ctrl-C ends it\)", line)
    assert found is not None, line
    return found[1]


@pytest.mark.parametrize("options", [(), ("--may-break",), ("--host", "0.0.0.0")])
async def test_web_command_serves_only_with_its_key_and_ends_at_sigint(
    redis_server: RedisServer, prefix: str, options: tuple[str, ...]
) -> None:
    """Whoever has the address sees the page, and nobody else; Ctrl-C ends it at once."""
    async with (
        aiolock.connect(redis_server.url, prefix=prefix) as client,
        client.lock("a", on_lost="signal") as lease,
        Cli(redis_server.url, prefix).started("web", "--port", "0", *options) as process,
    ):
        url = await address_of(process)
        port = httpx.URL(url).port
        here = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=here) as stranger:
            assert (await stranger.get(f"/?key={url[-32:]}")).status_code == 200  # a file
            for path in ("/session", "/events", f"/session?key={url[-32:]}"):
                answer = await stranger.get(path)
                assert answer.status_code == 403
                assert "set-cookie" not in answer.headers
        key = {"X-Aiolock-Key": url[-32:]}
        async with httpx.AsyncClient(base_url=here, headers=key) as visitor:
            rebound = await visitor.get("/session", headers={"Host": "evil.test"})
            assert rebound.status_code == 421
            session = (await visitor.get("/session")).json()
            assert session["may_break"] is ("--may-break" in options)
            async with visitor.stream("GET", "/events") as stream:
                async for line in stream.aiter_lines():
                    if line.startswith("data: "):
                        assert '"name":"a"' in line
                        break
                headers = {"Origin": here, "X-Aiolock-Page": "1"}
                order = {"kind": "lock", "name": "a"}
                answer = await visitor.post("/break", json=order, headers=headers)
                if session["may_break"]:
                    assert answer.json() == {"done": True}
                    await asyncio.wait_for(lease.lost.wait(), WITHIN)
                else:
                    assert answer.status_code == 403
                process.send_signal(signal.SIGINT)  # while somebody watches
                output, errors = await asyncio.wait_for(process.communicate(), WITHIN)
        assert process.returncode == 128 + signal.SIGINT
        assert output == b""
        said = errors.decode().splitlines()
        assert len(said) == session["may_break"]
        assert not said or "by way of the page, from 127.0.0.1" in said[0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--may-break", "--host", "0.0.0.0"), "--may-break the page is for this machine alone"),
        (("--host", "192.0.2.1"), "annot assign requested address"),
        (("--port", "70000"), "from 0 to 65535"),
    ],
)
def test_web_command_with_wrong_options_exits_2_with_one_line(
    options: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, before the store is asked."""
    assert main(["web", "--url", "redis://127.0.0.1:1", "--port", "0", *options]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("aiolock web: ")
    assert errors.count("\n") == 1
    assert says in errors


def test_web_command_without_uvicorn_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what to install."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["web", "--url", "memory://"]) == 2
    assert "pip install 'aiolock-redis[web]'" in capsys.readouterr().err


def test_web_command_with_a_taken_port_exits_2(
    capsys: pytest.CaptureFixture[str], redis_server: RedisServer
) -> None:
    """As any other program says it."""
    assert main(["web", "--url", "memory://", "--port", str(redis_server.port)]) == 2
    assert os.strerror(98) in capsys.readouterr().err
