"""Idempotency keys: whose they are, and which requests are the same."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from aiohttp import web
from fastapi import FastAPI
from fastapi import Request as FastAPIRequest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

import aiolock
from aiolock.integrations import aiohttp, fastapi, starlette
from aiolock.integrations.idempotency import Idempotency
from aiolock.stores.memory import MemoryServer
from tests.support.webapps.servers import serving

KEY = {"Idempotency-Key": "3f9c"}
JSON = {"Content-Type": "application/json"}


class Service:
    """Counts what it carries out; compresses it for who can read that."""

    def __init__(self, memory: MemoryServer, name: str, vary: str = "") -> None:
        self.client = aiolock.connect(memory)
        self.name = name
        self.vary = vary
        self.done = 0

    def answer(self, accepts: str) -> tuple[bytes, dict[str, str]]:
        """A body, and its headers."""
        self.done += 1
        body = json.dumps({"by": self.name, "done": self.done}).encode()
        headers = {"Vary": self.vary, **JSON} if self.vary else JSON
        if "gzip" in accepts:
            return gzip.compress(body), {**headers, "Content-Encoding": "gzip"}
        return body, headers


def with_starlette(service: Service) -> Any:
    """It in Starlette."""

    @starlette.idempotent(application=service.name, remember=60, who=lambda _: "ada")
    async def charge(request: Request) -> Response:
        body, headers = service.answer(request.headers.get("accept-encoding", ""))
        return Response(body, headers=headers)

    app = Starlette(routes=[Route("/charges/{path:path}", charge, methods=["POST", "PATCH"])])
    starlette.setup(app, service.client)
    return app


def with_fastapi(service: Service) -> Any:
    """It in FastAPI."""
    app = FastAPI()
    fastapi.setup(app, service.client)
    once = fastapi.idempotent(application=service.name, remember=60, who=lambda: "ada")

    @app.api_route("/charges/{path:path}", methods=["POST", "PATCH"], dependencies=[once])
    async def charge(request: FastAPIRequest) -> Response:
        body, headers = service.answer(request.headers.get("accept-encoding", ""))
        return Response(body, headers=headers)

    return app


def with_aiohttp(service: Service) -> Any:
    """It in aiohttp."""

    @aiohttp.idempotent(application=service.name, remember=60, who=lambda _: "ada")
    async def charge(request: web.Request) -> web.StreamResponse:
        body, headers = service.answer(request.headers.get("Accept-Encoding", ""))
        return web.Response(body=body, headers=headers)

    app = web.Application()
    app.router.add_route("*", "/charges/{path:.*}", charge)
    aiohttp.setup(app, service.client)
    return app


def with_middleware(service: Service) -> Any:
    """It as middleware of any ASGI application."""

    async def charge(request: Request) -> Response:
        body, headers = service.answer(request.headers.get("accept-encoding", ""))
        return Response(body, headers=headers)

    app = Starlette(routes=[Route("/charges/{path:path}", charge, methods=["POST", "PATCH"])])
    app.add_middleware(
        Idempotency,
        client=service.client,
        application=service.name,
        remember=60,
        who=lambda _: "ada",
    )
    starlette.setup(app, service.client)
    return app


FRAMEWORKS: dict[str, tuple[str, Callable[[Service], Any]]] = {
    "starlette": ("starlette", with_starlette),
    "fastapi": ("fastapi", with_fastapi),
    "aiohttp": ("aiohttp", with_aiohttp),
    "middleware": ("starlette", with_middleware),
}


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    """Each that has them."""
    return str(request.param)


@asynccontextmanager
async def opened(framework: str, service: Service) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the service, which says nothing of itself."""
    server, build = FRAMEWORKS[framework]
    async with (
        serving(server, build(service)) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        http.headers = httpx.Headers({"Accept-Encoding": "identity", **KEY})
        yield http


def outcome(reply: httpx.Response) -> str:
    """Whether it was done now, done before, or refused."""
    if reply.status_code == 422:
        code = reply.json()["code"]
        assert code == "idempotency_mismatch"
        return "refused"
    assert reply.status_code == 200
    return "before" if "Idempotent-Replayed" in reply.headers else "now"


async def test_idempotency_key_of_two_applications_is_carried_out_in_each(framework: str) -> None:
    """It is another key, on the same store and with the same prefix; each answers by itself."""
    memory = MemoryServer()
    billing, shipping = Service(memory, "billing"), Service(memory, "shipping")
    again = Service(memory, "billing")
    async with (
        opened(framework, billing) as one,
        opened(framework, shipping) as other,
        opened(framework, again) as second,
    ):
        for http in (one, other, second):
            http.headers["Host"] = "gateway"
            reply = await http.post("/charges/", json={"order": 42})
            assert outcome(reply) == ("before" if http is second else "now")
            assert reply.json()["by"] == ("shipping" if http is other else "billing")
        assert (billing.done, shipping.done, again.done) == (1, 1, 0)


@pytest.mark.parametrize(
    "other",
    [
        {"headers": {"Host": "tenant-b"}},
        {"method": "PATCH"},
        {"url": "/charges/a%2Fb"},
        {"url": "/charges/a/b?currency=eur"},
        {"headers": {"Content-Type": "text/plain"}},
        {"headers": {"Content-Encoding": "identity"}},
        {"content": b"{} "},
    ],
    ids=["host", "method", "path", "query", "type", "encoding", "body"],
)
async def test_idempotency_key_with_a_different_request_answers_422(
    framework: str, other: dict[str, Any]
) -> None:
    """It is refused, and nothing is done."""
    service = Service(MemoryServer(), "shop")
    first: dict[str, Any] = {"method": "POST", "url": "/charges/a/b", "content": b"{}"}
    headers = {"Host": "tenant-a", **JSON}
    async with opened(framework, service) as http:
        assert outcome(await http.request(**first, headers=headers)) == "now"
        changed = {**first, **other, "headers": {**headers, **other.get("headers", {})}}
        assert outcome(await http.request(**changed)) == "refused"
        assert outcome(await http.request(**first, headers=headers)) == "before"
        assert service.done == 1


async def test_idempotency_key_with_other_unrelated_headers_is_replayed(framework: str) -> None:
    """What says nothing about the request may be another, and so may be the spelling of a host."""
    service = Service(MemoryServer(), "shop")
    async with opened(framework, service) as http:
        headers = {"Host": "shop", "User-Agent": "one", "Accept-Language": "fr"}
        assert outcome(await http.post("/charges/", headers=headers)) == "now"
        headers = {"Host": "SHOP", "User-Agent": "two", "Accept-Language": "de"}
        assert outcome(await http.post("/charges/", headers=headers)) == "before"


async def test_response_with_vary_is_replayed_only_for_equal_headers(framework: str) -> None:
    """It is for who would have got the same: as caches do it, by `Vary`."""
    service = Service(MemoryServer(), "shop", "Accept-Language, Cookie, Authorization")
    async with opened(framework, service) as http:
        first = {"Accept-Language": "fr, en", "Cookie": "session=1", "Authorization": "old"}
        assert outcome(await http.post("/charges/", headers=first)) == "now"
        # Whose it is, `who` tells: a renewed session or token is the same owner's.
        renewed = {**first, "Cookie": "session=2", "Authorization": "new"}
        assert outcome(await http.post("/charges/", headers=renewed)) == "before"
        for language in ("de", ""):
            reply = await http.post("/charges/", headers={**first, "Accept-Language": language})
            assert outcome(reply) == "refused"
        assert service.done == 1


@pytest.mark.parametrize("header", ["Content-Type", "Accept-Language"])
async def test_header_that_is_not_text_is_compared_as_any_other(
    framework: str, header: str
) -> None:
    """Its request is carried out once, and not refused when that has been done."""
    service = Service(MemoryServer(), "shop", "Accept-Language")
    async with opened(framework, service) as http:
        for value, expected in ((b"\xff", "now"), (b"\xff", "before"), (b"\xfe", "refused")):
            reply = await http.post("/charges/", headers={header.encode(): value})
            assert outcome(reply) == expected
        assert service.done == 1


async def test_compressed_response_is_not_replayed_to_a_client_that_cannot_read_it(
    framework: str,
) -> None:
    """Nobody gets it who has asked for a plain one."""
    service = Service(MemoryServer(), "shop")
    async with opened(framework, service) as http:
        for expected in ("now", "before"):
            reply = await http.post("/charges/", headers={"Accept-Encoding": "gzip"})
            assert outcome(reply) == expected
            assert reply.headers["Content-Encoding"] == "gzip"
            assert reply.json()["done"] == 1
        assert outcome(await http.post("/charges/")) == "refused"


@pytest.mark.parametrize("place", ["within the key", "around the key", "at the route"])
async def test_response_compressed_by_middleware_is_replayed_only_as_accepted(place: str) -> None:
    """Wherever it is, a client gets what it can read."""
    client = aiolock.connect("memory://")

    async def charge(_: Request) -> Response:
        return Response(b"x" * 2000)

    once = starlette.idempotent(application="shop", remember=60, who=lambda _: "ada")
    zipped = Middleware(GZipMiddleware, minimum_size=10)
    if place == "at the route":
        routes = [
            Mount("/", routes=[Route("/", once(charge), methods=["POST"])], middleware=[zipped])
        ]
        app = Starlette(routes=routes)
    elif place == "around the key":
        app = Starlette(
            routes=[Route("/", once(charge), methods=["POST"])],
            middleware=[zipped],
        )
    else:
        keys = Middleware(
            Idempotency, client=client, application="shop", remember=60, who=lambda _: "ada"
        )
        app = Starlette(
            routes=[Route("/", charge, methods=["POST"])],
            middleware=[keys, zipped],
        )
    starlette.setup(app, client)
    async with serving("starlette", app) as url, httpx.AsyncClient(timeout=30) as http:
        reply = await http.post(url, headers={**KEY, "Accept-Encoding": "gzip"})
        assert reply.headers["Content-Encoding"] == "gzip"
        reply = await http.post(url, headers={**KEY, "Accept-Encoding": "identity"})
        assert "Content-Encoding" not in reply.headers
        assert outcome(reply) == ("before" if place == "around the key" else "refused")


@pytest.mark.parametrize(
    ("name", "error"),
    [("", ValueError), (" ", ValueError), ("x" * 101, ValueError), (3, TypeError)],
)
def test_application_option_that_is_invalid_or_missing_raises(
    name: Any, error: type[Exception]
) -> None:
    """It is refused where it is declared."""
    options: Any = {"application": name, "remember": 60, "who": lambda _: "ada"}
    for idempotent in (starlette.idempotent, fastapi.idempotent, aiohttp.idempotent):
        with pytest.raises(error, match="application must be"):
            idempotent(**options)
    with pytest.raises(error, match="application must be"):
        Idempotency(Starlette(), client=aiolock.connect("memory://"), **options)
    del options["application"]
    with pytest.raises(TypeError, match="application"):
        Idempotency(Starlette(), client=aiolock.connect("memory://"), **options)
