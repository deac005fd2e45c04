"""Requests that come too often are answered with 429, and with when to come again."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import web
from fastapi import FastAPI, Header, Request
from litestar import Litestar, WebSocket, get
from litestar import websocket as litestar_websocket
from litestar.exceptions import WebSocketDisconnect
from litestar.testing import TestClient
from quart import Quart
from starlette.applications import Starlette
from starlette.requests import Request as StarletteRequest
from starlette.responses import JSONResponse
from starlette.routing import Route

import aiolock
from aiolock.integrations import aiohttp, fastapi, litestar, quart, starlette
from tests.support.webapps.servers import serving
from tests.support.worlds import empty, queued

FEW: dict[str, Any] = {"per": 3600, "burst": 2}
"""Two requests, and no other for half a minute."""


async def who(request: Any) -> str:
    """The user of a request."""
    return str(request.headers.get("Authorization", ""))


ODD: dict[str, Any] = {"none": None, "empty": "", "long": "x" * 600, "byte": "\udce4", "int": 7}
"""Owners by which no bucket can be named."""


def odd(request: Any) -> Any:
    """The owner of a request, of these."""
    return ODD[request.headers["X-Owner"]]


def with_starlette(client: aiolock.LockClient) -> Any:
    """Two routes in Starlette."""

    @starlette.rate_limited("quotes", 120, who=who, **FEW)
    async def quotes(request: StarletteRequest) -> JSONResponse:
        return JSONResponse({})

    @starlette.rate_limited("all", 10, per=1, burst=1, timeout=30)
    async def patient(request: StarletteRequest) -> JSONResponse:
        return JSONResponse({})

    @starlette.rate_limited("quotes", 120, who=odd, **FEW)
    async def odd_ones(request: StarletteRequest) -> JSONResponse:
        return JSONResponse({})

    routes = [Route("/quotes", quotes), Route("/patient", patient), Route("/odd", odd_ones)]
    app = Starlette(routes=routes)
    starlette.setup(app, client)
    return app


def with_fastapi(client: aiolock.LockClient) -> Any:
    """The same in FastAPI."""
    app = FastAPI()
    fastapi.setup(app, client)

    def user(authorization: Annotated[str, Header()]) -> str:
        return authorization

    quota = fastapi.rate_limited("quotes", 120, who=user, **FEW)

    @app.get("/quotes")
    async def quotes(
        request: Request, verdict: Annotated[aiolock.Verdict, quota]
    ) -> dict[str, Any]:
        assert verdict.remaining in {0, 1}
        return {}

    @app.get("/patient", dependencies=[fastapi.rate_limited("all", 10, per=1, burst=1, timeout=30)])
    async def patient() -> dict[str, Any]:
        return {}

    def odd_user(request: Request) -> Any:
        return odd(request)

    @app.get("/odd", dependencies=[fastapi.rate_limited("quotes", 120, who=odd_user, **FEW)])
    async def odd_ones() -> dict[str, Any]:
        return {}

    return app


def with_litestar(client: aiolock.LockClient) -> Any:
    """The same in Litestar."""

    @get("/quotes", guards=[litestar.rate_limited("quotes", 120, who=who, **FEW)])
    async def quotes() -> dict[str, Any]:
        return {}

    @get("/patient", guards=[litestar.rate_limited("all", 10, per=1, burst=1, timeout=30)])
    async def patient() -> dict[str, Any]:
        return {}

    @get("/odd", guards=[litestar.rate_limited("quotes", 120, who=odd, **FEW)])
    async def odd_ones() -> dict[str, Any]:
        return {}

    return Litestar([quotes, patient, odd_ones], plugins=[litestar.Locks(client)])


def with_aiohttp(client: aiolock.LockClient) -> Any:
    """The same in aiohttp."""

    @aiohttp.rate_limited("quotes", 120, who=who, **FEW)
    async def quotes(request: web.Request) -> web.Response:
        return web.json_response({})

    class Patient(web.View):
        @aiohttp.rate_limited("all", 10, per=1, burst=1, timeout=30)
        async def get(self) -> web.Response:
            return web.json_response({})

    app = web.Application()
    app.router.add_get("/quotes", quotes)
    app.router.add_view("/patient", Patient)

    @aiohttp.rate_limited("quotes", 120, who=odd, **FEW)
    async def odd_ones(request: web.Request) -> web.Response:
        return web.json_response({})

    app.router.add_get("/odd", odd_ones)
    aiohttp.setup(app, client)
    return app


def with_quart(client: aiolock.LockClient) -> Any:
    """The same in Quart."""
    app = Quart(__name__)
    quart.setup(app, client)

    @app.get("/quotes")
    @quart.rate_limited("quotes", 120, who=who, **FEW)
    async def quotes() -> dict[str, Any]:
        return {}

    @app.get("/patient")
    @quart.rate_limited("all", 10, per=1, burst=1, timeout=30)
    async def patient() -> dict[str, Any]:
        return {}

    @app.get("/odd")
    @quart.rate_limited("quotes", 120, who=odd, **FEW)
    async def odd_ones() -> dict[str, Any]:
        return {}

    return app


FRAMEWORKS: dict[str, Callable[[aiolock.LockClient], Any]] = {
    "starlette": with_starlette,
    "fastapi": with_fastapi,
    "litestar": with_litestar,
    "aiohttp": with_aiohttp,
    "quart": with_quart,
}


@asynccontextmanager
async def opened(framework: str) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the service."""
    client = aiolock.connect("memory://")
    async with (
        serving(framework, FRAMEWORKS[framework](client)) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        yield http


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_request_that_comes_too_often_is_answered_429_with_retry_after(
    framework: str,
) -> None:
    """Each owner has a bucket of its own; what the client is told names nobody."""
    async with opened(framework) as http:
        for user in ("ann", "bob"):
            headers = {"Authorization": user}
            replies = [await http.get("/quotes", headers=headers) for _ in range(3)]
            assert [reply.status_code for reply in replies] == [200, 200, 429]
            refused = replies[-1]
            assert 1 <= int(refused.headers["Retry-After"]) <= 30
            assert refused.headers["Content-Type"] == "application/problem+json"
            assert refused.json()["code"] == "rate_limited"
            assert user not in refused.text


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_request_with_a_timeout_waits_for_its_token(framework: str) -> None:
    """They come one after the other."""
    async with opened(framework) as http:
        replies = await asyncio.gather(*(http.get("/patient") for _ in range(4)))
        assert [reply.status_code for reply in replies] == [200] * 4


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_request_whose_client_has_gone_leaves_the_queue_of_a_rate_limit(
    framework: str,
) -> None:
    """No token is spent on it, and nobody behind it waits for that."""
    client = aiolock.connect("memory://")
    async with (
        serving(framework, FRAMEWORKS[framework](client)) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        limit = client.rate_limit("all", 10, per=1, burst=1)
        await limit.acquire()
        await limit.resize(1, per=3600)
        gone = asyncio.create_task(http.get("/patient"))
        await queued(limit, 1)
        gone.cancel()
        await asyncio.wait([gone])
        await empty(limit)


@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_request_without_an_owner_or_with_one_that_is_no_name_is_answered_400(
    framework: str,
) -> None:
    """They share no bucket: one of them could empty it for all. Another type is a mistake."""
    async with opened(framework) as http:
        for owner in ODD:
            reply = await http.get("/odd", headers={"X-Owner": owner})
            assert reply.status_code == (500 if owner == "int" else 400)
            if owner in ("none", "empty"):
                assert reply.json()["detail"] == "The request does not say whose it is."


def test_guard_of_litestar_limits_websockets_too() -> None:
    """As one of a router, which has both."""

    @litestar_websocket("/quotes")
    async def quotes(socket: WebSocket[Any, Any, Any]) -> None:
        await socket.accept()
        await socket.send_text("quotes")
        await socket.close()

    guard = litestar.rate_limited("quotes", 120, **FEW)
    client = aiolock.connect("memory://")
    app = Litestar([quotes], guards=[guard], plugins=[litestar.Locks(client)])
    with TestClient(app) as http:
        for _ in range(2):
            with http.websocket_connect("/quotes") as socket:
                assert socket.receive_text() == "quotes"
        with pytest.raises(WebSocketDisconnect), http.websocket_connect("/quotes"):
            raise AssertionError


@pytest.mark.parametrize("decorate", [m.rate_limited for m in (starlette, aiohttp, quart)])
def test_rate_limited_with_invalid_arguments_raises_where_it_is_written(decorate: Any) -> None:
    """Not when the first request comes."""
    with pytest.raises(ValueError, match="limit must be from 1"):
        decorate("quotes", 0, per=1)
    with pytest.raises(TypeError, match="must be a str"):
        decorate(7, 1, per=1)
    for name, share in (("quotes:{tenant}", None), ("quotes", "{tenant}")):
        with pytest.raises(ValueError, match=r"has a field.*who="):
            decorate(name, 1, per=1, share=share)
    with pytest.raises(TypeError, match=r"decorates async functions, .*aiolock\.sync\.connect"):
        decorate("quotes", 1, per=1)(lambda request: None)


@pytest.mark.parametrize("module", [starlette, aiohttp])
def test_rate_limited_below_locked_raises_where_it_is_written(module: Any) -> None:
    """It would be called with the lease, for which it has no place."""

    async def handler(request: Any, lease: Any) -> None:
        """Never called."""

    with pytest.raises(TypeError, match="missing a required argument: 'lease'"):
        module.rate_limited("quotes", 1, per=1)(handler)
