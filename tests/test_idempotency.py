"""Idempotency keys: carried out once, answered twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import aiolock
from aiolock.integrations.idempotency import LONGEST_BODY, Idempotency
from aiolock.integrations.starlette import setup
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests import loops
from tests.failures import until
from tests.servers import RedisServer
from tests.webapps.bodies import Bodies
from tests.webapps.servers import build, serving

KEY = {"Idempotency-Key": "3f9c"}


class Shop:
    """Counts what it carries out, and answers as it is told to."""

    def __init__(self, client: aiolock.LockClient, **options: Any) -> None:
        self.charged = 0
        self.go = asyncio.Event()
        self.go.set()
        self.fail: BaseException | int = 200
        self.size = 0
        routes = [
            Route("/charges", self.charge, methods=["GET", "POST", "PUT"]),
            Route("/stream", self.stream, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)
        # As Starlette makes one.
        options = {"remember": 3600, "who": who, **options}
        self.app.add_middleware(Idempotency, client=client, **options)
        setup(self.app, client)

    async def charge(self, request: Request) -> Response:
        self.charged += 1
        number, body = self.charged, (await request.body()).decode()
        await self.go.wait()
        if isinstance(self.fail, BaseException):
            raise self.fail
        answer = {"charge": number, "body": body, "more": "x" * self.size}
        return JSONResponse(answer, self.fail, headers={"X-Number": str(number), "X-Name": "ä"})

    async def stream(self, request: Request) -> Response:
        self.charged += 1

        async def pieces() -> AsyncGenerator[bytes]:
            for each in (b"\0", b"\xff", str(self.charged).encode()):
                yield each

        return StreamingResponse(pieces())


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


async def test_answered_twice(redis_server: RedisServer, prefix: str) -> None:
    """In two servers, at the same time and later: one charge, and one response."""
    shops = [Shop(aiolock.connect(redis_server.url, prefix=prefix)) for _ in range(2)]
    async with (
        serving("starlette", shops[0].app) as one,
        serving("starlette", shops[1].app) as other,
        httpx.AsyncClient(timeout=30) as http,
    ):
        for shop in shops:
            shop.go.clear()
        first = asyncio.create_task(http.post(f"{one}/charges", content="7", headers=KEY))
        await until(lambda: shops[0].charged)
        for url in (one, other):
            reply = await http.post(f"{url}/charges", content="7", headers=KEY)
            assert (reply.status_code, reply.headers["Retry-After"]) == (409, "1")
            assert reply.json()["code"] == "idempotency_under_way"
        shops[0].go.set()
        reply = await first
        assert reply.status_code == 200
        assert "Idempotent-Replayed" not in reply.headers
        for url in (one, other):
            again = await http.post(f"{url}/charges", content="7", headers=KEY)
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
async def test_another_request_with_the_same_key(another: dict[str, Any]) -> None:
    """It is refused, and nothing is done."""
    shop = Shop(aiolock.connect("memory://"))
    async with opened(shop) as http:
        await http.post("/charges", content="7", headers=KEY)
        reply = await http.post(**{"url": "/charges", "content": "7", "headers": KEY, **another})
        assert (reply.status_code, reply.json()["code"]) == (422, "idempotency_mismatch")
        assert shop.charged == 1


async def test_keys_of_others() -> None:
    """They have nothing to do with each other."""
    shop = Shop(aiolock.connect("memory://"))
    async with opened(shop) as http:
        for number, user in enumerate(["", "ada", "bob", "ada"]):
            headers = {**KEY, "Authorization": user}
            reply = await http.post("/charges", headers=headers)
            assert reply.json()["charge"] == (2 if number == 3 else number + 1)


@pytest.mark.parametrize("failure", [500, 503, ZeroDivisionError(), aiolock.LeaseLost()])
async def test_one_that_failed(failure: Any) -> None:
    """Its client is told so, and may try again."""
    shop = Shop(aiolock.connect("memory://"))
    async with opened(shop) as http:
        shop.fail = failure
        assert (await http.post("/charges", headers=KEY)).status_code >= 500
        shop.fail = 402
        for _ in range(2):
            reply = await http.post("/charges", headers=KEY)
            assert (reply.status_code, reply.json()["charge"]) == (402, 2)


async def test_one_that_loses_its_lock() -> None:
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


async def test_what_is_not_for_it() -> None:
    """Without a key, and with methods that need none, nothing changes."""
    shop = Shop(aiolock.connect("memory://"))
    async with opened(shop) as http:
        for method, headers in (("POST", {}), ("GET", KEY), ("PUT", KEY)):
            charged = shop.charged
            for _ in range(2):
                await http.request(method, "/charges", headers=headers)
            assert shop.charged == charged + 2


@pytest.mark.parametrize("key", ["", "x" * 256, "a\tb", "ä"])
async def test_keys_that_cannot_be(key: str) -> None:
    """They are refused."""
    shop = Shop(aiolock.connect("memory://"))
    async with opened(shop) as http:
        headers = [(b"Idempotency-Key", key.encode("latin-1"))]
        reply = await http.post("/charges", headers=headers)
        assert (reply.status_code, reply.json()["code"]) == (400, "idempotency_key")
        reply = await http.post("/charges", headers=KEY, content=b"x" * (LONGEST_BODY + 1))
        assert (reply.status_code, reply.json()["code"]) == (413, "idempotency_body")
        assert not shop.charged


async def test_a_long_response() -> None:
    """It is sent, and not kept: nothing is done for a second time all the same."""
    shop = Shop(aiolock.connect("memory://"))
    async with opened(shop) as http:
        shop.size = 100_000
        reply = await http.post("/charges", headers=KEY)
        assert len(reply.content) > 100_000
        reply = await http.post("/charges", headers=KEY)
        assert (reply.status_code, reply.json()["code"]) == (409, "idempotency_not_kept")
        assert shop.charged == 1


async def test_a_response_in_pieces() -> None:
    """It is one, of any bytes."""
    shop = Shop(aiolock.connect("memory://"))
    async with opened(shop) as http:
        for _ in range(2):
            assert (await http.post("/stream", headers=KEY)).content == b"\0\xff1"


async def test_a_store_that_fails() -> None:
    """Before, nothing is done. After, the response is sent, for it is true."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    shop = Shop(aiolock.connect(faulty, deadlock_after=None))
    async with opened(shop) as http:
        faulty.refuse("acquire")
        assert (await http.post("/charges", headers=KEY)).json()["code"] == "lock_store"
        assert shop.charged == 0
        faulty.refuse("post")
        assert (await http.post("/charges", headers=KEY)).json()["charge"] == 1
        assert (await http.post("/charges", headers=KEY)).json()["charge"] == 2
        assert (await http.post("/charges", headers=KEY)).json()["charge"] == 2


async def test_made_in_a_wrong_way() -> None:
    """It is refused when it is made."""
    client = aiolock.connect("memory://")
    with pytest.raises(ValueError, match="remember"):
        Idempotency(Shop(client).app, client=client, remember=-1, who=who)
    with pytest.raises(TypeError, match="methods"):
        Idempotency(Shop(client).app, client=client, remember=1, who=who, methods="POST")


@pytest.mark.parametrize("framework", ["fastapi", "litestar", "quart"])
async def test_round_other_frameworks(framework: str) -> None:
    """It stands round any ASGI application, whose handlers hold locks of their own."""
    if framework == "quart" and loops.chosen() == "eager":
        pytest.skip("Quart waits for ever where tasks are eager and a body is there at once")
    bodies = Bodies(aiolock.connect("memory://"))
    bodies.go.set()
    app = Idempotency(build(framework, bodies), client=bodies.client, remember=60, who=who)
    async with serving(framework, app) as url, httpx.AsyncClient(timeout=30) as http:
        replies = [
            (await http.post(f"{url}/orders/42", content=b"work", headers=KEY)) for _ in range(2)
        ]
        assert replies[0].json() == replies[1].json()
        assert replies[0].json()["body"] == "work"
        assert len(bodies.entered) == 1
