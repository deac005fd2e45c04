"""A lease in each web framework lives until its request has ended, and no longer."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

import aiolock
from aiolock.integrations import fastapi
from aiolock.integrations._waiting import SOON
from aiolock.stores.memory import MemoryServer
from tests.support.failures import until
from tests.support.webapps.bodies import Bodies
from tests.support.webapps.servers import build, served, serving

FRAMEWORKS = ["starlette", "fastapi", "litestar", "quart", "aiohttp"]
WITHIN = 30.0


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    """Each of them."""
    return str(request.param)


@pytest.fixture
def memory() -> MemoryServer:
    """Where the application and the test have their locks."""
    return MemoryServer()


@pytest.fixture
async def others(memory: MemoryServer) -> AsyncGenerator[aiolock.LockClient]:
    """Another client."""
    async with aiolock.connect(memory) as client:
        yield client
        assert await client.snapshot() == []


async def test_lease_of_a_stream_is_held_until_the_stream_has_been_sent(
    framework: str, memory: MemoryServer, others: aiolock.LockClient
) -> None:
    """Another request is refused until then, and gets the lock after it."""
    bodies = Bodies(aiolock.connect(memory))
    async with (
        served(framework, bodies) as url,
        httpx.AsyncClient(base_url=url, timeout=WITHIN) as http,
    ):
        async with http.stream("POST", "/stream/42") as reply:
            pieces = reply.aiter_bytes()
            assert await anext(pieces) == b"begun "
            assert (await http.post("/now/42")).status_code == 409
            bodies.go.set()
            assert b"".join([piece async for piece in pieces]) == b"held"
        async with others.lock("order:42", timeout=WITHIN):
            pass


async def test_lease_of_scope_function_ends_before_the_stream(
    framework: str, memory: MemoryServer, others: aiolock.LockClient
) -> None:
    """Whoever wants the shorter one has it."""
    bodies = Bodies(aiolock.connect(memory))
    async with (
        served(framework, bodies) as url,
        httpx.AsyncClient(base_url=url, timeout=WITHIN) as http,
        http.stream("POST", "/brief/42") as reply,
    ):
        pieces = reply.aiter_bytes()
        assert await anext(pieces) == b"begun "
        async with others.lock("order:42", timeout=WITHIN):
            bodies.go.set()
            assert b"".join([piece async for piece in pieces]) == b"released"


async def test_lease_lost_while_a_stream_is_sent_breaks_it_off(
    framework: str, memory: MemoryServer, others: aiolock.LockClient
) -> None:
    """The work is cancelled, and its client does not take a part for the whole."""
    bodies = Bodies(aiolock.connect(memory))
    async with (
        served(framework, bodies) as url,
        httpx.AsyncClient(base_url=url, timeout=WITHIN) as http,
        http.stream("POST", "/stream/42") as reply,
    ):
        pieces = reply.aiter_bytes()
        assert await anext(pieces) == b"begun "
        await until(lambda: bodies.entered)
        assert await others.lock("order:42").break_()
        with pytest.raises(httpx.RemoteProtocolError):
            await anext(pieces)
        await until(lambda: bodies.left)


async def test_lease_of_a_stream_whose_client_disconnects_is_released(
    framework: str, memory: MemoryServer, others: aiolock.LockClient
) -> None:
    """The stream ends, and the next has the lock."""
    bodies = Bodies(aiolock.connect(memory))
    async with (
        served(framework, bodies) as url,
        httpx.AsyncClient(base_url=url, timeout=WITHIN) as http,
    ):
        async with http.stream("POST", "/stream/42") as reply:
            assert await anext(reply.aiter_bytes()) == b"begun "
            await until(lambda: bodies.entered)
        if framework == "aiohttp":
            bodies.go.set()  # which tells no handler that its client has gone
        async with others.lock("order:42", timeout=WITHIN):
            await until(lambda: bodies.left)


@pytest.mark.parametrize("reads", [True, False])
async def test_send_timeout_ends_the_lease_of_a_slow_reading_client(
    framework: str, memory: MemoryServer, others: aiolock.LockClient, *, reads: bool
) -> None:
    """Whether it reads nothing or a little now and then: its response is cut off."""
    bodies = Bodies(aiolock.connect(memory), send_timeout=0.5)

    async def read(reader: asyncio.StreamReader) -> None:
        async with asyncio.timeout(30):
            while await reader.read(10_000):  # noqa: ASYNC110  # it is slow
                await asyncio.sleep(0.01)

    async with served(framework, bodies) as url:
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /endless/42 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        reading = asyncio.create_task(read(reader)) if reads else None
        await until(lambda: bodies.entered)
        async with others.lock("order:42", timeout=WITHIN):
            pass
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@pytest.mark.parametrize("framework", ["starlette", "fastapi", "litestar", "aiohttp"])
@pytest.mark.parametrize("waits", [False, True])
async def test_send_timeout_ends_the_lease_of_a_slow_sending_client(
    framework: str, memory: MemoryServer, others: aiolock.LockClient, *, waits: bool
) -> None:
    """Also a part that it was to send while it waited; Quart has BODY_TIMEOUT for all of it."""
    bodies = Bodies(aiolock.connect(memory), send_timeout=0.5)
    lock = others.lock("order:42", timeout=WITHIN)
    async with served(framework, bodies) as url, contextlib.AsyncExitStack() as stack:
        if waits:
            await stack.enter_async_context(lock)
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /orders/42 HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx")
        async with asyncio.timeout(30):
            while len((status := await lock.status()).waiters) < waits or not status.holders:  # noqa: ASYNC110  # nothing tells
                await asyncio.sleep(0.005)
        if waits:
            await asyncio.sleep(2 * SOON)  # now it looks for its client, too
        await stack.aclose()
        async with lock:
            pass
        if framework != "aiohttp":  # which can only close the connection
            assert (await reader.readline()).split()[1] == b"408"
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    assert not bodies.entered


class Commits(BaseHTTPMiddleware):
    """Middleware that does something of its own beside the response, in another task."""

    def __init__(self, app: Any, bodies: Bodies) -> None:
        super().__init__(app)
        self._bodies = bodies

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Wait, as for a database, before the response is sent."""
        response = await call_next(request)
        self._bodies.inside = 1
        try:
            await asyncio.Event().wait()
        finally:
            self._bodies.inside = 0
        return response


@pytest.mark.parametrize("path", ["/stream/42", "/orders/42"])
@pytest.mark.parametrize("framework", ["starlette", "fastapi"])
async def test_lease_lost_in_middleware_cancels_it_and_answers_lock_lost(
    framework: str, path: str, memory: MemoryServer, others: aiolock.LockClient
) -> None:
    """It relies on the lock like the handler, and the client is told of it."""
    bodies = Bodies(aiolock.connect(memory))
    if path == "/orders/42":
        bodies.go.set()
    app = build(framework, bodies)
    app.add_middleware(Commits, bodies=bodies)
    async with (
        serving(framework, app) as url,
        httpx.AsyncClient(base_url=url, timeout=WITHIN) as http,
    ):
        asked = asyncio.create_task(http.post(path))
        await until(lambda: bodies.inside)
        assert await others.lock("order:42").break_()
        reply = await asked
        assert (reply.status_code, reply.json()["code"]) == (503, "lock_lost")
        assert not bodies.inside


@pytest.mark.parametrize("framework", ["starlette", "fastapi"])
async def test_lease_lost_under_middleware_is_answered_by_the_applications_handler(
    framework: str, memory: MemoryServer, others: aiolock.LockClient
) -> None:
    """By the application's own handler of the error, though it runs in another task."""
    bodies = Bodies(aiolock.connect(memory))
    app = build(framework, bodies)

    async def answer(request: Request, error: Exception) -> Response:
        assert isinstance(error, aiolock.LeaseLost)
        return PlainTextResponse("mine", 418)

    async def plain(request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)

    app.add_exception_handler(aiolock.LeaseLost, answer)
    app.add_middleware(BaseHTTPMiddleware, dispatch=plain)
    async with (
        serving(framework, app) as url,
        httpx.AsyncClient(base_url=url, timeout=WITHIN) as http,
    ):
        asked = asyncio.create_task(http.post("/orders/42"))
        await until(lambda: bodies.entered)
        assert await others.lock("order:42").break_()
        assert (await asked).status_code == 418


async def test_lease_lost_while_a_dependency_commits_cancels_the_commit(
    memory: MemoryServer, others: aiolock.LockClient
) -> None:
    """What a dependency does at its end is under the lock, so it ends with the lock."""
    app, seen = FastAPI(), list[str]()
    fastapi.setup(app, aiolock.connect(memory))

    async def session() -> AsyncGenerator[None]:
        yield
        try:
            seen.append("commits")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @app.post("/")
    async def post(
        lease: Annotated[aiolock.Lease, fastapi.locked("x")],
        _: Annotated[None, Depends(session)],
    ) -> None: ...

    async with serving("fastapi", app) as url, httpx.AsyncClient(timeout=WITHIN) as http:
        assert (await http.post(url)).status_code == 200
        await until(lambda: seen)
        assert await others.lock("x").break_()
        await until(lambda: seen == ["commits", "cancelled"])
