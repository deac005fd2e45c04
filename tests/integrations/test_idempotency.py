"""Idempotency keys: carried out once, answered twice."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import aiolock
from aiolock.integrations._kept import LONGEST_BODY
from aiolock.integrations.idempotency import Idempotency
from aiolock.integrations.starlette import setup
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.failures import Forgetful, until
from tests.support.servers import RedisServer
from tests.support.webapps.bodies import Bodies
from tests.support.webapps.servers import build, serving

KEY = {"Idempotency-Key": "3f9c"}


class Shop:
    """Counts what it carries out, and answers as it is told to."""

    def __init__(self, client: aiolock.LockClient, **options: Any) -> None:
        self.charged = 0
        self.go = asyncio.Event()
        self.go.set()
        self.fail: BaseException | int = 200
        self.retry_after: str | None = None
        self.size = 0
        routes = [
            Route("/charges", self.charge, methods=["GET", "POST", "PUT"]),
            Route("/stream", self.stream, methods=["POST"]),
            Route("/broken", self.broken, methods=["POST"]),
            Route("/long", self.long, methods=["POST"]),
            Route("/background", self.background, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)
        # As Starlette makes one.
        options = {"application": "shop", "remember": 3600, "who": who, **options}
        self.app.add_middleware(Idempotency, client=client, **options)
        setup(self.app, client)

    async def charge(self, request: Request) -> Response:
        self.charged += 1
        number, body = self.charged, (await request.body()).decode()
        await self.go.wait()
        if isinstance(self.fail, BaseException):
            raise self.fail
        answer = {"charge": number, "body": body, "more": "x" * self.size}
        headers = {"X-Number": str(number), "X-Name": "ä"}
        if self.retry_after:
            headers["Retry-After"] = self.retry_after
        return JSONResponse(answer, self.fail, headers=headers)

    async def stream(self, request: Request) -> Response:
        self.charged += 1

        async def pieces() -> AsyncGenerator[bytes]:
            for each in (b"\0", b"\xff", str(self.charged).encode()):
                yield each

        return StreamingResponse(pieces())

    async def broken(self, request: Request) -> Response:
        async def pieces() -> AsyncGenerator[bytes]:
            yield b"half"
            raise ZeroDivisionError

        return StreamingResponse(pieces())

    async def long(self, request: Request) -> Response:
        self.charged += 1

        async def pieces() -> AsyncGenerator[bytes]:
            yield b"x" * 60_000
            await self.go.wait()
            yield b"y" * 60_000

        return StreamingResponse(pieces())

    async def background(self, request: Request) -> Response:
        self.charged += 1

        async def later() -> None:
            await self.go.wait()
            if isinstance(self.fail, BaseException):
                raise self.fail

        return JSONResponse(self.charged, background=BackgroundTask(later))


def who(scope: Any) -> str:
    """The user."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    return headers.get(b"authorization", b"").decode()


@asynccontextmanager
async def opened(shop: Shop) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the shop, without a server."""
    transport = httpx.ASGITransport(shop.app, raise_app_exceptions=False)
    http = httpx.AsyncClient(transport=transport, base_url="http://shop")
    async with shop.app.router.lifespan_context(shop.app), http:
        yield http


async def test_idempotency_of_two_servers_runs_once_and_replays_the_response(
    redis_server: RedisServer, prefix: str
) -> None:
    """In two servers, at the same time and later: one charge, and one response."""
    key = {**KEY, "Host": "shop"}  # both have the address of the proxy in front of them
    shops = [Shop(aiolock.connect(redis_server.url, prefix=prefix)) for _ in range(2)]
    async with (
        serving("starlette", shops[0].app) as one,
        serving("starlette", shops[1].app) as other,
        httpx.AsyncClient(timeout=30) as http,
    ):
        for shop in shops:
            shop.go.clear()
        first = asyncio.create_task(http.post(f"{one}/charges", content="7", headers=key))
        await until(lambda: shops[0].charged)
        for url in (one, other):
            reply = await http.post(f"{url}/charges", content="7", headers=key)
            assert (reply.status_code, reply.headers["Retry-After"]) == (409, "1")
            assert reply.json()["code"] == "idempotency_under_way"
        shops[0].go.set()
        reply = await first
        assert reply.status_code == 200
        assert "Idempotent-Replayed" not in reply.headers
        for url in (one, other):
            again = await http.post(f"{url}/charges", content="7", headers=key)
            assert again.status_code == 200
            assert again.content == reply.content
            assert (again.headers["X-Number"], again.headers["X-Name"]) == ("1", "ä")
            assert again.headers["Content-Type"] == reply.headers["Content-Type"]
            assert again.headers["Idempotent-Replayed"] == "true"
        assert [shop.charged for shop in shops] == [1, 0]


@pytest.mark.parametrize(
    "another",
    [
        {"content": "8"},
        {"url": "/charges?currency=eur"},
        {"url": "/stream"},
    ],
)
async def test_idempotency_of_another_request_with_the_same_key_answers_422(
    another: dict[str, Any],
) -> None:
    """It is refused, and nothing is done."""
    shop = Shop(aiolock.connect("memory://"))
    async with opened(shop) as http:
        await http.post("/charges", content="7", headers=KEY)
        reply = await http.post(**{"url": "/charges", "content": "7", "headers": KEY, **another})
        assert (reply.status_code, reply.json()["code"]) == (422, "idempotency_mismatch")
        assert shop.charged == 1


async def test_idempotency_of_one_key_of_several_users_keeps_them_apart() -> None:
    """They have nothing to do with each other."""
    shop = Shop(aiolock.connect("memory://"))
    async with opened(shop) as http:
        for number, user in enumerate(["", "ada", "bob", "ada"]):
            headers = {**KEY, "Authorization": user}
            reply = await http.post("/charges", headers=headers)
            assert reply.json()["charge"] == (2 if number == 3 else number + 1)


@pytest.mark.parametrize("failure", [500, 503, ZeroDivisionError(), aiolock.LeaseLost()])
async def test_idempotency_of_a_failed_request_carries_out_the_next_one(failure: Any) -> None:
    """Its client is told so, and may try again."""
    shop = Shop(aiolock.connect("memory://"))
    async with opened(shop) as http:
        shop.fail = failure
        assert (await http.post("/charges", headers=KEY)).status_code >= 500
        shop.fail = 402
        for _ in range(2):
            reply = await http.post("/charges", headers=KEY)
            assert (reply.status_code, reply.json()["charge"]) == (402, 2)


async def test_idempotency_of_a_request_that_loses_its_lock_answers_lock_lost() -> None:
    """It is cancelled, and may be tried again."""
    memory = MemoryServer()
    shop = Shop(aiolock.connect(memory))
    async with opened(shop) as http, aiolock.connect(memory) as others:
        shop.go.clear()
        asked = asyncio.create_task(http.post("/charges", headers=KEY))
        await until(lambda: shop.charged)
        (name,) = await others.names(kind="once")
        assert "3f9c" not in name
        await others.break_(name, kind="once")
        assert (await asked).json()["code"] == "lock_lost"
        shop.go.set()
        assert (await http.post("/charges", headers=KEY)).json()["charge"] == 2


async def test_idempotency_of_a_loss_answers_lock_lost_around_fastapi() -> None:
    """A lost request is told of the loss, also where its application answers interruptions."""
    memory = MemoryServer()
    bodies = Bodies(aiolock.connect(memory))
    app = Idempotency(
        build("fastapi", bodies), client=bodies.client, application="shop", remember=60, who=who
    )
    async with (
        serving("fastapi", app) as url,
        httpx.AsyncClient(timeout=30) as http,
        aiolock.connect(memory) as others,
    ):
        asked = asyncio.create_task(http.post(f"{url}/orders/42", headers=KEY))
        await until(lambda: bodies.entered)
        (name,) = await others.names(kind="once")
        await others.break_(name, kind="once")
        assert (await asked).json()["code"] == "lock_lost"


async def test_idempotency_of_a_loss_found_at_the_end_sends_the_response(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The request was carried out, so its response is sent, also one that is sent as it comes."""
    memory = Forgetful()
    shop = Shop(aiolock.connect(memory))
    async with opened(shop) as http:
        for number, size in ((1, 0), (2, 100_000), (3, 0)):
            memory.forgets, shop.size = number < 3, size
            reply = await http.post("/charges", headers=KEY)
            assert (reply.status_code, reply.json()["charge"]) == (200, number)
        assert [each.name for each in caplog.records].count("aiolock.web") == 2
        assert (await http.post("/charges", headers=KEY)).json()["charge"] == 3


async def test_idempotency_without_key_or_for_other_methods_changes_nothing() -> None:
    """Without a key, and with methods that need none, nothing changes."""
    shop = Shop(aiolock.connect("memory://"))
    async with opened(shop) as http:
        for method, headers in (("POST", {}), ("GET", KEY), ("PUT", KEY)):
            charged = shop.charged
            for _ in range(2):
                await http.request(method, "/charges", headers=headers)
            assert shop.charged == charged + 2


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "ä"])
async def test_idempotency_of_an_invalid_key_or_a_long_body_answers_400_or_413(key: str) -> None:
    """They are refused."""
    shop = Shop(aiolock.connect("memory://"))
    async with opened(shop) as http:
        headers = [(b"Idempotency-Key", key.encode("latin-1"))]
        reply = await http.post("/charges", headers=headers)
        assert (reply.status_code, reply.json()["code"]) == (400, "idempotency_key")
        reply = await http.post("/charges", headers=KEY, content=b"x" * (LONGEST_BODY + 1))
        assert (reply.status_code, reply.json()["code"]) == (413, "idempotency_body")
        assert not shop.charged


async def test_idempotency_of_a_long_response_answers_not_kept_later() -> None:
    """It is sent, and not kept: nothing is done for a second time all the same."""
    shop = Shop(aiolock.connect("memory://"))
    async with opened(shop) as http:
        shop.size = 100_000
        reply = await http.post("/charges", headers=KEY)
        assert len(reply.content) > 100_000
        reply = await http.post("/charges", headers=KEY)
        assert (reply.status_code, reply.json()["code"]) == (409, "idempotency_not_kept")
        assert shop.charged == 1


async def test_idempotency_of_a_response_in_pieces_replays_all_its_bytes() -> None:
    """It is one, of any bytes."""
    shop = Shop(aiolock.connect("memory://"))
    async with opened(shop) as http:
        for _ in range(2):
            assert (await http.post("/stream", headers=KEY)).content == b"\0\xff1"


async def test_idempotency_runs_nothing_if_acquire_fails_and_answers_if_post_fails() -> None:
    """Before, nothing is done. After, the response is sent, for it is true."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    shop = Shop(aiolock.connect(faulty, deadlock_after=None, ttl=1))
    async with opened(shop) as http:
        faulty.refuse("acquire")
        assert (await http.post("/charges", headers=KEY)).json()["code"] == "lock_store"
        assert shop.charged == 0
        faulty.refuse("post", math.inf)
        assert (await http.post("/charges", headers=KEY)).json()["charge"] == 1
        faulty.resume()
        assert (await http.post("/charges", headers=KEY)).json()["charge"] == 2
        assert (await http.post("/charges", headers=KEY)).json()["charge"] == 2


async def test_idempotency_with_invalid_options_raises_type_or_value_error() -> None:
    """It is refused when it is made."""
    client = aiolock.connect("memory://")
    with pytest.raises(ValueError, match="remember"):
        Idempotency(Shop(client).app, client=client, application="shop", remember=-1, who=who)
    with pytest.raises(TypeError, match="methods"):
        Idempotency(
            Shop(client).app, client=client, application="shop", remember=1, who=who, methods="POST"
        )


@pytest.mark.parametrize("framework", ["fastapi", "litestar", "quart"])
async def test_idempotency_around_each_framework_carries_out_once(framework: str) -> None:
    """It stands round any ASGI application, whose handlers hold locks of their own."""
    bodies = Bodies(aiolock.connect("memory://"))
    bodies.go.set()
    app = Idempotency(
        build(framework, bodies), client=bodies.client, application="shop", remember=60, who=who
    )
    async with serving(framework, app) as url, httpx.AsyncClient(timeout=30) as http:
        replies = [
            (await http.post(f"{url}/orders/42", content=b"work", headers=KEY)) for _ in range(2)
        ]
        assert replies[0].json() == replies[1].json()
        assert replies[0].json()["body"] == "work"
        assert len(bodies.entered) == 1


async def test_idempotency_of_a_busy_response_is_not_kept() -> None:
    """What says that nothing was done, and to try again, is not what the key is answered with."""
    shop = Shop(aiolock.connect("memory://"))
    async with opened(shop) as http:
        busy = [(408, None), (423, None), (425, None), (429, None), (409, "1")]
        for status, retry_after in busy:
            shop.fail, shop.retry_after = status, retry_after
            assert (await http.post("/charges", headers=KEY)).status_code == status
        shop.fail, shop.retry_after = 409, None
        for _ in range(2):
            reply = await http.post("/charges", headers=KEY)
            assert (reply.status_code, reply.json()["charge"]) == (409, len(busy) + 1)


async def test_idempotency_of_a_response_that_breaks_off_keeps_nothing() -> None:
    """A response that breaks off does not pass for a whole one; and may be tried again."""
    shop = Shop(aiolock.connect("memory://"))
    async with serving("starlette", shop.app) as url, httpx.AsyncClient(timeout=30) as http:
        for _ in range(2):
            with pytest.raises(httpx.RemoteProtocolError):
                await http.post(f"{url}/broken", headers=KEY)


async def test_idempotency_of_a_long_stream_sends_it_as_it_comes() -> None:
    """It is not gathered, and it is done: nobody does it again."""
    shop = Shop(aiolock.connect("memory://"))
    shop.go.clear()
    async with serving("starlette", shop.app) as url, httpx.AsyncClient(timeout=30) as http:
        async with http.stream("POST", f"{url}/long", headers=KEY) as reply:
            pieces = reply.aiter_bytes()
            assert await anext(pieces)  # before the last was made
            shop.go.set()
            rest = [piece async for piece in pieces]
            assert rest[-1].endswith(b"y")
        again = await http.post(f"{url}/long", headers=KEY)
        assert again.json()["code"] == "idempotency_not_kept"
        assert shop.charged == 1


async def test_idempotency_of_background_work_answers_when_it_has_ended() -> None:
    """The request has ended when that has: only then its response is kept, and sent."""
    shop = Shop(aiolock.connect("memory://"))
    shop.go.clear()
    async with opened(shop) as http:
        asked = asyncio.create_task(http.post("/background", headers=KEY))
        await until(lambda: shop.charged)
        assert (await http.post("/background", headers=KEY)).status_code == 409
        shop.go.set()
        for reply in (await asked, await http.post("/background", headers=KEY)):
            assert (reply.status_code, reply.json()) == (200, 1)


async def test_idempotency_of_failing_background_work_answers_500_and_keeps_nothing() -> None:
    """A framework undoes what a request has done when that fails, so nobody is told it was done."""
    shop = Shop(aiolock.connect("memory://"))
    shop.fail = ZeroDivisionError()
    async with opened(shop) as http:
        assert (await http.post("/background", headers=KEY)).status_code == 500
        shop.fail = 200
        for replayed in (None, "true"):
            reply = await http.post("/background", headers=KEY)
            assert (reply.status_code, reply.json()) == (200, 2)
            assert reply.headers.get("Idempotent-Replayed") == replayed


@pytest.mark.parametrize("framework", ["fastapi", "litestar", "quart", "django"])
async def test_idempotency_of_a_client_that_disconnects_keeps_the_response(framework: str) -> None:
    """The request goes on, and its response is there for the next try: it is done once."""
    bodies = Bodies(aiolock.connect("memory://"))
    async with bodies.client:
        app = Idempotency(
            build(framework, bodies), client=bodies.client, application="shop", remember=60, who=who
        )
        async with serving(framework, app) as url, httpx.AsyncClient(timeout=30) as http:
            asked = asyncio.create_task(http.post(f"{url}/orders/42", content=b"x", headers=KEY))
            await until(lambda: bodies.entered)
            asked.cancel()
            await asyncio.wait([asked])
            bodies.go.set()
            await until(lambda: bodies.left)
            reply = await http.post(f"{url}/orders/42", content=b"x", headers=KEY)
            async with asyncio.timeout(30):
                while reply.status_code == 409:  # it is being kept
                    reply = await http.post(f"{url}/orders/42", content=b"x", headers=KEY)
            assert (reply.status_code, reply.headers["Idempotent-Replayed"]) == (200, "true")
            assert len(bodies.entered) == 1


@pytest.mark.parametrize("framework", ["fastapi", "litestar", "quart"])
async def test_idempotency_of_a_request_at_shutdown_answers_shutting_down(framework: str) -> None:
    """It is told so, also where the middleware stands round what tells it."""
    bodies = Bodies(aiolock.connect("memory://"))
    app = Idempotency(
        build(framework, bodies), client=bodies.client, application="shop", remember=60, who=who
    )
    async with httpx.AsyncClient(timeout=30) as http:
        async with serving(framework, app, grace=0.05) as url:
            asked = asyncio.create_task(http.post(f"{url}/orders/42", headers=KEY))
            await until(lambda: bodies.entered)
        reply = await asked
        assert (reply.status_code, reply.json()["code"]) == (503, "shutting_down")


async def test_idempotency_hides_send_extensions_and_refuses_two_keys() -> None:
    """A server may offer some; what is sent by them could not be kept."""
    offered = list[Any]()

    async def app(scope: Any, _: Any, send: Any) -> None:
        offered.append(scope["extensions"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    sent = list[Any]()

    async def send(message: Any) -> None:
        sent.append(message)

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/", "query_string": b""}
    scope |= {"headers": [(b"idempotency-key", b"a")], "extensions": {"http.response.pathsend": {}}}
    async with aiolock.connect("memory://") as client:
        middleware = Idempotency(
            app, client=client, application="shop", remember=60, who=who, methods=["post"]
        )
        for _ in range(2):
            await middleware(scope, receive, send)
            assert sent[-1]["body"] == b"done"
        assert offered == [{}]
        scope["headers"].append((b"idempotency-key", b"b"))
        await middleware(scope, receive, send)
        assert sent[-2]["status"] == 400
