"""Helpers for tests of the page: clients that watch its stream, and clients that ask it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import httpx

from aiolock.page import Entrance, Page

ORIGIN = "http://locks.test"
WITHIN = 10.0
"""Seconds in which an effect that comes soon must come, on a busy machine."""


def scope_of(path: str, query: str = "", **more: Any) -> dict[str, Any]:
    """The ASGI scope of a GET."""
    headers = [(b"host", b"locks.test")]
    scope = {"type": "http", "method": "GET", "scheme": "http", "path": path, "headers": headers}
    return scope | {"query_string": query.encode(), "client": ("192.0.2.7", 1)} | more


class Viewer:
    """Watches the stream, until it leaves or the stream ends."""

    def __init__(self, app: Any, query: str = "", **more: Any) -> None:
        self._app = app
        self._scope = scope_of("/events", query, **more)
        self._came: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._gone = asyncio.Event()
        self._task: asyncio.Task[None]
        self._text = ""
        self.takes = asyncio.Event()
        """Whether it reads the data that it is sent."""
        self.takes.set()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.ended = False
        """Whether the server has ended it."""

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._app(self._scope, self._receive, self._send))
        start = await asyncio.wait_for(self._came.get(), WITHIN)
        self.status = start["status"]
        self.headers = {key.decode(): value.decode() for key, value in start["headers"]}
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._gone.set()
        await asyncio.wait_for(self._task, WITHIN)

    async def _receive(self) -> dict[str, Any]:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any]) -> None:
        await self.takes.wait()
        self._came.put_nowait(message)

    async def end(self) -> None:
        """Wait for the end of the stream, and drop all that comes until then."""
        async with asyncio.timeout(WITHIN):
            while not self.ended:
                await self._more()

    async def _more(self) -> None:
        message = await self._came.get()
        self._text += message.get("body", b"").decode()
        self.ended = not message.get("more_body", False)

    async def block(self) -> str:
        """The next event, or comment, as it stands in the stream."""
        async with asyncio.timeout(WITHIN):
            while "\n\n" not in self._text:
                assert not self.ended
                await self._more()
        block, _, self._text = self._text.partition("\n\n")
        return block

    async def event(self, name: str = "view") -> dict[str, Any]:
        """The data of the next such event."""
        async with asyncio.timeout(3 * WITHIN):
            while True:
                kind, _, data = (await self.block()).partition("\n")
                if kind == f"event: {name}":
                    found: dict[str, Any] = json.loads(data.removeprefix("data: "))
                    return found

    async def until(self, **wanted: object) -> dict[str, Any]:
        """The next view in which these totals, or other fields, are so."""
        async with asyncio.timeout(3 * WITHIN):
            while True:
                view = await self.event()
                seen = view | view["totals"] | {"names": [row["name"] for row in view["rows"]]}
                if all(seen[key] == value for key, value in wanted.items()):
                    return view


class Visitor(httpx.AsyncClient):
    """A browser that has the page open."""

    def __init__(self, page: Page | Entrance, **more: Any) -> None:
        transport = httpx.ASGITransport(page, root_path=more.pop("root_path", ""))
        headers = {"Origin": ORIGIN, "Sec-Fetch-Site": "same-origin"}
        super().__init__(transport=transport, base_url=ORIGIN, headers=headers, **more)
        self.session: Mapping[str, Any] = {}

    async def load(self) -> Self:
        """Do the first steps of the page."""
        self.session = (await self.get("/session")).json()
        self.headers["X-Aiolock-Page"] = "1"
        return self

    async def order(self, what: str, name: str, kind: str = "lock", **more: Any) -> httpx.Response:
        """Have something done, as the page's buttons do."""
        return await self.post(f"/{what}", json={"kind": kind, "name": name, **more})


@asynccontextmanager
async def visiting(page: Page, **more: Any) -> AsyncGenerator[Visitor]:
    """A reader has the page open."""
    async with Visitor(page, **more) as visitor:
        yield await visitor.load()


def is_safe(answer: httpx.Response) -> None:
    """The page loads nothing from elsewhere, is in no frame, and is stored nowhere."""
    policy = answer.headers["content-security-policy"].split("; ")
    assert policy[0] == "default-src 'none'"
    assert {"script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"} <= set(policy)
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in answer.headers
