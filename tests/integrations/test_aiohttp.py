"""aiohttp: what the others have not."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest
from aiohttp import ClientPayloadError, ClientSession, WSMsgType, WSServerHandshakeError, web

import aiolock
from aiolock import Lease
from aiolock.integrations.aiohttp import KEY, client_of, idempotent, locked, setup
from aiolock.stores.memory import MemoryServer
from tests.support.failures import queued, until
from tests.support.webapps.bodies import Bodies
from tests.support.webapps.servers import served, serving


@locked("order:{order}")
async def handler(request: web.Request, lease: Lease) -> web.Response:
    """A handler."""
    assert await client_of(request).lock(lease.name).locked()
    return web.Response(text=lease.name)


async def test_locked_field_missing_in_the_path_keeps_aiohttp_from_starting() -> None:
    """The application does not start."""
    for path in ("/", "/{x}"):
        app = web.Application()
        app.router.add_get(path, handler)
        setup(app, aiolock.connect("memory://"))
        runner = web.AppRunner(app)
        with pytest.raises(ValueError, match="has no 'order'"):
            await runner.setup()
        await runner.cleanup()


class Pay(web.View):
    """A view, with a handler for each method."""

    @idempotent(application="shop", remember=60, who=lambda request: request.host)
    @locked("order:{order}")
    async def post(self, lease: Lease) -> web.StreamResponse:
        """Under its lock, once."""
        return web.json_response([self.request.path, lease.name, lease.fence])

    async def get(self) -> web.Response:
        """Without a lock."""
        return web.Response()


async def test_view_methods_can_be_locked_and_idempotent_with_a_checked_path() -> None:
    """They hold locks as functions do, and are carried out once; their path is checked, too."""
    app = web.Application()
    app.router.add_view("/orders/{order}", Pay)
    setup(app, aiolock.connect("memory://"))
    async with serving("aiohttp", app) as url, ClientSession() as http:
        fences = set[int]()
        for key in ({}, {}, {"Idempotency-Key": "a"}, {"Idempotency-Key": "a"}):
            reply = await http.post(f"{url}/orders/7", headers=key)
            path, name, fence = await reply.json()
            assert (path, name) == ("/orders/7", "order:7")
            fences.add(fence)
        assert len(fences) == 3
        assert (await http.get(f"{url}/orders/7")).status == 200
    app = web.Application()
    app.router.add_view("/orders/{x}", Pay)
    setup(app, aiolock.connect("memory://"))
    runner = web.AppRunner(app)
    with pytest.raises(ValueError, match=r"'/orders/\{x\}' has no 'order'"):
        await runner.setup()
    await runner.cleanup()


async def test_setup_with_invalid_arguments_or_twice_raises_type_or_value_error() -> None:
    """The texts say what to do."""
    app = web.Application()
    with pytest.raises(TypeError, match=r"connect\(\)"):
        setup(app, "memory://")  # type: ignore[arg-type]  # that is the test
    setup(app, aiolock.connect("memory://"))
    with pytest.raises(ValueError, match="already"):
        setup(app, aiolock.connect("memory://"))

    def plain(request: web.Request, lease: Lease) -> Awaitable[web.Response]:
        return handler(request)

    with pytest.raises(TypeError, match="async functions"):
        locked("x")(plain)


async def test_locked_handler_without_setup_answers_500() -> None:
    """That is a 500."""
    app = web.Application()
    app.router.add_get("/{order}", handler)
    async with serving("aiohttp", app) as url, ClientSession() as http:
        assert (await http.get(f"{url}/42")).status == 500


async def test_startup_while_the_store_is_down_raises_store_error() -> None:
    """The application does not start."""
    app = web.Application()
    setup(app, aiolock.connect("redis://127.0.0.1:1/0"))
    runner = web.AppRunner(app)
    with pytest.raises(aiolock.StoreError):
        await runner.setup()
    await runner.cleanup()


async def test_subapplication_uses_the_client_and_errors_of_its_parent() -> None:
    """It has the client and the answers of the one that it is in."""
    client = aiolock.connect("memory://")
    outer, inner = web.Application(), web.Application()
    inner.router.add_get("/{order}", handler)
    outer.add_subapp("/inner", inner)
    setup(outer, client)
    async with serving("aiohttp", outer) as url, ClientSession() as http:
        reply = await http.get(f"{url}/inner/42")
        assert await reply.text() == "order:42"
        assert (await http.get(f"{url}/inner/{'x' * 600}")).status == 400
        assert outer[KEY] is client


async def test_lease_lost_after_the_response_began_breaks_it_off() -> None:
    """It breaks off; no other response is put into it."""
    memory = MemoryServer()

    @locked("x")
    async def stream(request: web.Request, lease: Lease) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half")
        await asyncio.Event().wait()
        return response

    app = web.Application()
    app.router.add_get("/", stream)
    setup(app, aiolock.connect(memory))
    async with (
        aiolock.connect(memory) as others,
        serving("aiohttp", app) as url,
        ClientSession() as http,
        http.get(url) as reply,
    ):
        assert await reply.content.readexactly(4) == b"half"
        assert await others.lock("x").break_()
        with pytest.raises(ClientPayloadError):
            await reply.read()


@pytest.mark.parametrize("prepared", [False, True])
async def test_file_under_a_lock_is_sent_once_and_leaves_its_connection_open(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, prepared: bool
) -> None:
    """The next request comes on the same connection; nothing is logged."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    peers = set[object]()

    @locked("x")
    async def send(request: web.Request, _: Lease) -> web.FileResponse:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        response = web.FileResponse(path)
        if prepared:
            await response.prepare(request)
        return response

    app = web.Application()
    app.router.add_get("/", send)
    setup(app, aiolock.connect("memory://"))
    async with serving("aiohttp", app) as url, ClientSession() as http:
        for part, status, size in (("0-", 206, 100_000), ("0-9", 206, 10), ("200000-", 416, 0)):
            reply = await http.get(url, headers={"Range": f"bytes={part}"})
            assert (reply.status, len(await reply.read())) == (status, size)
        assert await (await http.get(url)).read() == b"x" * 100_000
        assert (await http.head(url)).headers["Content-Length"] == "100000"
    assert len(peers) == 1
    assert "rror" not in caplog.text


async def test_websocket_holds_its_lock_and_a_loss_or_a_late_timeout_closes_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A second one is refused before the upgrade; the log says why a response was cut off."""
    memory = MemoryServer()

    @locked("room", timeout=0)
    async def room(request: web.Request, lease: Lease) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str(lease.state)
        async for _ in socket:
            pass
        return socket

    async def late(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async with client_of(request).lock("room", timeout=0):
            return socket

    app = web.Application()
    app.router.add_get("/", room)
    app.router.add_get("/late", late)
    setup(app, aiolock.connect(memory))
    async with (
        aiolock.connect(memory) as others,
        serving("aiohttp", app) as url,
        ClientSession() as http,
    ):
        async with http.ws_connect(url) as first:
            assert await first.receive_str() == "held"
            with pytest.raises(WSServerHandshakeError, match="409"):
                await http.ws_connect(url)
            async with http.ws_connect(f"{url}/late") as second:
                assert (await second.receive()).type is WSMsgType.CLOSED
            assert "cut off a response that had begun: the lock 'room' is not free" in caplog.text
            assert await others.lock("room").break_()
            assert (await first.receive()).type is WSMsgType.CLOSED
        async with http.ws_connect(url) as again:
            assert await again.receive_str() == "held"
        await until(lambda: not memory.names())


async def test_shutdown_answers_503_to_waiters_and_lets_the_holder_finish() -> None:
    """Who waits is told so at once; who holds the lock finishes."""
    memory = MemoryServer()
    bodies = Bodies(aiolock.connect(memory))
    async with aiolock.connect(memory) as others, ClientSession() as http:
        async with served("aiohttp", bodies, grace=60) as url:
            holds = asyncio.create_task(http.post(f"{url}/orders/42"))
            await until(lambda: bodies.entered)
            waits = asyncio.create_task(http.post(f"{url}/orders/42"))
            await queued(others.lock("order:42"), 1)
            waits.add_done_callback(lambda _: bodies.go.set())
        assert (await waits).status == 503
        assert (await holds).status == 200
