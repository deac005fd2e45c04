"""Idempotency keys of single routes, and of functions."""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import httpx
import pytest
from aiohttp import BodyPartReader, web
from fastapi import BackgroundTasks, Depends, FastAPI, Header, HTTPException
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

import aiolock
from aiolock.integrations import aiohttp, fastapi, starlette
from aiolock.integrations._exchange import Exchange
from aiolock.integrations._kept import LONGEST_BODY
from aiolock.integrations.idempotency import Idempotency, KeyReused, NotKept, UnderWay, idempotent
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.failures import Forgetful, until
from tests.support.webapps.servers import serving

KEY = {"Idempotency-Key": "3f9c"}


@dataclass
class Till:
    """Counts what is charged, and answers as it is told to."""

    client: aiolock.LockClient
    charged: int = 0
    status: int = 200
    fail: Exception | None = None
    size: int = 0
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def charge(self, body: bytes) -> tuple[dict[str, Any], dict[str, str]]:
        """What is answered, and with which headers."""
        self.charged += 1
        number = self.charged
        await self.go.wait()
        if self.fail:
            raise self.fail
        answer = {"charge": number, "body": body.decode(), "more": "x" * self.size}
        return answer, {"X-Number": str(number), "Set-Cookie": f"last={number}; Path=/"}


def with_starlette(till: Till) -> Any:
    """It in Starlette."""

    async def who(request: Request) -> str:
        return request.headers.get("Authorization", "")

    @starlette.idempotent(application="shop", remember=60, who=who)
    @starlette.locked("till")
    async def charges(request: Request, lease: aiolock.Lease) -> Response:
        answer, headers = await till.charge(await request.body())
        if till.status == 402:
            raise StarletteHTTPException(402)
        return JSONResponse(answer, till.status, headers)

    @starlette.idempotent(application="shop", remember=60, who=who, required=True)
    async def strict(request: Request) -> Response:
        return Response()

    app = Starlette(
        routes=[
            Route("/charges", charges, methods=["POST"]),
            Route("/strict", strict, methods=["POST"]),
        ]
    )
    starlette.setup(app, till.client)
    return app


def with_fastapi(till: Till) -> Any:
    """It in FastAPI."""
    app = FastAPI()
    fastapi.setup(app, till.client)

    def who(authorization: Annotated[str, Header()] = "") -> str:
        return authorization

    @app.post("/charges")
    async def charges(
        request: Request,
        once: Annotated[
            fastapi.Idempotent, fastapi.idempotent(application="shop", remember=60, who=who)
        ],
        lease: Annotated[aiolock.Lease, fastapi.locked("till")],
    ) -> Response:
        assert (once.key is None) == (once.lease is None)
        answer, headers = await till.charge(await request.body())
        if till.status == 402:
            raise HTTPException(402)
        return JSONResponse(answer, till.status, headers)

    strictly = fastapi.idempotent(application="shop", remember=60, who=who, required=True)

    @app.post("/strict", dependencies=[strictly])
    async def strict() -> None:
        pass

    return app


def with_aiohttp(till: Till) -> Any:
    """It in aiohttp."""

    def who(request: web.Request) -> str:
        return request.headers.get("Authorization", "")

    @aiohttp.idempotent(application="shop", remember=60, who=who)
    @aiohttp.locked("till")
    async def charges(request: web.Request, lease: aiolock.Lease) -> web.StreamResponse:
        answer, headers = await till.charge(await request.read())
        if till.status == 402:
            raise web.HTTPPaymentRequired
        response = web.json_response(answer, status=till.status)
        response.headers["X-Number"] = headers["X-Number"]
        response.set_cookie("last", headers["X-Number"])
        return response

    @aiohttp.idempotent(application="shop", remember=60, who=who, required=True)
    async def strict(request: web.Request) -> web.StreamResponse:
        return web.Response()

    app = web.Application()
    app.router.add_post("/charges", charges)
    app.router.add_post("/strict", strict)
    aiohttp.setup(app, till.client)
    return app


FRAMEWORKS: dict[str, Callable[[Till], Any]] = {
    "starlette": with_starlette,
    "fastapi": with_fastapi,
    "aiohttp": with_aiohttp,
}


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    """Each that has them for single routes."""
    return str(request.param)


@asynccontextmanager
async def opened(framework: str, till: Till) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the till."""
    async with (
        serving(framework, FRAMEWORKS[framework](till)) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        yield http


def told(reply: httpx.Response) -> tuple[int, str]:
    """What it says."""
    return reply.status_code, reply.json()["code"]


async def test_idempotent_route_carries_out_once_and_replays_the_response(framework: str) -> None:
    """One charge, and one response; who comes while it is under way is told to come again."""
    till = Till(aiolock.connect("memory://"))
    async with opened(framework, till) as http:
        asked = asyncio.create_task(http.post("/charges", content="7", headers=KEY))
        await until(lambda: till.charged)
        reply = await http.post("/charges", content="7", headers=KEY)
        assert told(reply) == (409, "idempotency_under_way")
        assert reply.headers["Retry-After"] == "1"
        till.go.set()
        first = await asked
        assert first.json()["charge"] == 1
        assert "Idempotent-Replayed" not in first.headers
        again = await http.post("/charges", content="7", headers=KEY)
        assert (again.status_code, again.content) == (200, first.content)
        assert again.headers["Idempotent-Replayed"] == "true"
        for name in ("X-Number", "Set-Cookie", "Content-Type", "Content-Length"):
            assert again.headers[name] == first.headers[name]
        assert till.charged == 1
        for number in (2, 3):  # without a key, as ever
            assert (await http.post("/charges", content="7")).json()["charge"] == number


async def test_idempotent_route_refuses_other_requests_invalid_keys_and_missing_ones(
    framework: str,
) -> None:
    """Another request with the same key, a key that is none, and where one is required, none."""
    till = Till(aiolock.connect("memory://"))
    till.go.set()
    async with opened(framework, till) as http:
        await http.post("/charges", content="7", headers=KEY)
        for url, body in (("/charges", "8"), ("/charges?a=b", "7"), ("/strict", "7")):
            reply = await http.post(url, content=body, headers=KEY)
            assert told(reply) == (422, "idempotency_mismatch")
        others = {**KEY, "Authorization": "bob"}
        assert (await http.post("/charges", content="8", headers=others)).json()["charge"] == 2
        for header in ("x" * 256, ""):
            reply = await http.post("/charges", headers={"Idempotency-Key": header})
            assert told(reply) == (400, "idempotency_key")
        assert told(await http.post("/strict")) == (400, "idempotency_key")
        assert till.charged == 2


async def test_idempotent_route_that_failed_is_carried_out_again(framework: str) -> None:
    """It may be tried again; one that was refused for good is refused again."""
    till = Till(aiolock.connect("memory://"))
    till.go.set()
    async with opened(framework, till) as http:
        till.fail = ZeroDivisionError()
        assert (await http.post("/charges", headers=KEY)).status_code == 500
        till.fail, till.status = None, 503
        assert (await http.post("/charges", headers=KEY)).status_code == 503
        till.status = 402
        for _ in range(2):
            assert (await http.post("/charges", headers=KEY)).status_code == 402
        assert till.charged == 3


async def test_idempotent_route_that_loses_its_lease_answers_lock_lost(framework: str) -> None:
    """It is cancelled, its client is told so, and it may be tried again."""
    memory = MemoryServer()
    till = Till(aiolock.connect(memory))
    async with opened(framework, till) as http, aiolock.connect(memory) as others:
        asked = asyncio.create_task(http.post("/charges", headers=KEY))
        await until(lambda: till.charged)
        (name,) = await others.names(kind="once")
        await others.break_(name, kind="once")
        assert told(await asked) == (503, "lock_lost")
        assert [each.name for each in await others.snapshot()] == []
        till.go.set()
        assert (await http.post("/charges", headers=KEY)).json()["charge"] == 2


async def test_idempotent_route_whose_loss_is_found_at_the_end_sends_its_response(
    framework: str,
) -> None:
    """The request was carried out, so its response is sent; it is not kept."""
    memory = Forgetful()
    till = Till(aiolock.connect(memory))
    till.go.set()
    async with opened(framework, till) as http:
        for number in (1, 2, 2):
            memory.forgets = till.charged == 0
            reply = await http.post("/charges", headers=KEY)
            assert (reply.status_code, reply.json()["charge"]) == (200, number)


async def test_idempotent_route_with_a_long_response_answers_not_kept_later(framework: str) -> None:
    """It is sent and not kept; nothing is done for a second time all the same."""
    till = Till(aiolock.connect("memory://"), size=100_000)
    till.go.set()
    async with opened(framework, till) as http:
        assert len((await http.post("/charges", headers=KEY)).content) > 100_000
        assert told(await http.post("/charges", headers=KEY)) == (409, "idempotency_not_kept")
        assert till.charged == 1


@pytest.mark.parametrize(
    ("size", "header", "is_kept"),
    [
        (49_152, 3_000, True),
        (49_153, 0, False),
        (49_152, 4_500, False),
        (0, 30_000, True),
    ],
)
async def test_idempotent_route_keeps_bodies_of_48_kib_with_their_headers(
    size: int, header: int, is_kept: bool
) -> None:  # a parameter
    """A body of 48 KiB, of any bytes, with the headers that the documentation promises."""
    app = Starlette()
    starlette.setup(app, aiolock.connect("memory://"))
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)

    @starlette.idempotent(application="shop", remember=60, who=lambda _: "")
    async def post(request: Request) -> Response:
        return Response(body, headers={"X-Long": "x" * header})

    app.add_route("/", post, methods=["POST"])
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http,
    ):
        assert (await http.post("/", headers=KEY)).content == body
        again = await http.post("/", headers=KEY)
        if is_kept:
            assert again.content == body
            assert again.headers["X-Long"] == "x" * header
        else:
            assert told(again) == (409, "idempotency_not_kept")


async def test_idempotent_route_runs_nothing_if_acquire_fails_and_answers_if_post_fails(
    framework: str,
) -> None:
    """Before, nothing is done. After, the response is sent, for it is true."""
    store = FaultyStore(MemoryStore(MemoryServer()))
    till = Till(aiolock.connect(store, deadlock_after=None, ttl=1))
    till.go.set()
    async with opened(framework, till) as http:
        store.refuse("acquire")
        assert told(await http.post("/charges", headers=KEY)) == (503, "lock_store")
        store.refuse("post", math.inf)
        assert (await http.post("/charges", headers=KEY)).json()["charge"] == 1
        store.resume()
        for _ in range(2):
            assert (await http.post("/charges", headers=KEY)).json()["charge"] == 2


async def test_idempotent_route_whose_client_disconnects_keeps_the_response(framework: str) -> None:
    """The request goes on, and its response is there for the next try."""
    till = Till(aiolock.connect("memory://"))
    async with opened(framework, till) as http:
        asked = asyncio.create_task(http.post("/charges", content="7", headers=KEY))
        await until(lambda: till.charged)
        asked.cancel()
        await asyncio.wait([asked])
        till.go.set()
        reply = await http.post("/charges", content="7", headers=KEY)
        async with asyncio.timeout(30):
            while reply.status_code == 409:  # it is being kept
                reply = await http.post("/charges", content="7", headers=KEY)
        assert (reply.status_code, reply.headers["Idempotent-Replayed"]) == (200, "true")
        assert till.charged == 1


async def test_idempotent_route_at_shutdown_answers_shutting_down() -> None:
    """It is told so, and leaves nothing."""
    memory = MemoryServer()
    till = Till(aiolock.connect(memory))
    async with aiolock.connect(memory) as others, httpx.AsyncClient(timeout=30) as http:
        async with serving("fastapi", with_fastapi(till), grace=0.05) as url:
            asked = asyncio.create_task(http.post(f"{url}/charges", headers=KEY))
            await until(lambda: till.charged)
        assert told(await asked) == (503, "shutting_down")
        assert await others.snapshot() == []


async def test_exchange_cancelled_repeatedly_ends_after_its_application() -> None:
    """What was begun is ended before it is said to be, however often that is asked for."""
    begun, ended = asyncio.Event(), list[int]()

    async def app(*_: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            for step in range(5):
                await asyncio.sleep(0)
                ended.append(step)

    async def never(*_: Any) -> Any:
        raise AssertionError

    running = asyncio.create_task(Exchange(app, {"type": "http"}, never, never).run())
    await begun.wait()
    for _ in range(3):
        running.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([running])
    assert running.cancelled()
    assert ended == [0, 1, 2, 3, 4]


async def test_idempotent_route_within_the_middleware_answers_500_and_logs_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The middleware, and a route of its own: that is a mistake, and the log says so."""
    till = Till(aiolock.connect("memory://"))
    app = Idempotency(
        with_fastapi(till), client=till.client, application="shop", remember=60, who=lambda _: ""
    )
    async with serving("fastapi", app) as url, httpx.AsyncClient(timeout=30) as http:
        assert (await http.post(f"{url}/charges", headers=KEY)).status_code == 500
    assert "the middleware Idempotency, round it" in caplog.text


def _session_in(happened: list[str]) -> Callable[[], AsyncGenerator[None]]:
    """A dependency that notes when it is opened, and how it ends."""

    async def session() -> AsyncGenerator[None]:
        happened.append("opened")
        try:
            yield
        except BaseException as error:
            happened.append(type(error).__name__)
            raise
        happened.append("closed")

    return session


async def test_idempotent_route_of_fastapi_resolves_dependencies_before_a_replay() -> None:
    """They know who it is before anything is replayed; a replay ends them as a cancellation."""
    client = aiolock.connect("memory://")
    app = FastAPI()
    fastapi.setup(app, client)
    happened = list[str]()
    go = asyncio.Event()

    def who(authorization: Annotated[str, Header()]) -> str:
        if authorization != "ada":
            raise HTTPException(401)
        return authorization

    once = fastapi.idempotent(application="shop", remember=60, who=who)

    @app.post("/", status_code=202)
    async def post(
        background: BackgroundTasks,
        _: Annotated[None, Depends(_session_in(happened))],
        it: Annotated[Any, once],
    ) -> dict[str, int]:
        happened.append("done")
        background.add_task(go.wait)
        return {"fence": it.lease.fence}

    @app.post("/stream")
    async def stream(it: Annotated[fastapi.Idempotent, once]) -> StreamingResponse:
        async def pieces() -> AsyncGenerator[bytes]:
            for each in (b"a", b"b"):
                happened.append("piece")
                yield each

        return StreamingResponse(pieces())

    @app.post("/twice")
    async def twice(
        a: Annotated[Any, once],
        b: Annotated[Any, fastapi.idempotent(application="shop", remember=9, who=who)],
    ) -> None:
        raise AssertionError

    async with serving("fastapi", app) as url, httpx.AsyncClient(base_url=url, timeout=30) as http:
        ada = {**KEY, "Authorization": "ada"}
        first = await http.post("/", headers=ada)  # waits for nothing in the background
        assert happened == ["opened", "done", "closed"]
        go.set()
        assert (await http.post("/", headers={**KEY, "Authorization": "bob"})).status_code == 401
        again = await http.post("/", headers=ada)
        assert (again.status_code, again.content) == (202, first.content)
        ended = ["CancelledError", "HTTPException", "opened", "opened"]
        await until(lambda: sorted(happened[3:]) == ended)
        for _ in range(2):
            reply = await http.post("/stream", headers={**ada, "Idempotency-Key": "b"})
            assert reply.content == b"ab"
        assert happened.count("piece") == 2
        reply = await http.post("/twice", headers={**ada, "Idempotency-Key": "c"})
        assert reply.status_code == 500
        document = (await http.get("/openapi.json")).json()
        names = [each["name"] for each in document["paths"]["/"]["post"]["parameters"]]
        assert sorted(names) == ["Idempotency-Key", "authorization"]


async def test_idempotent_route_whose_background_work_fails_keeps_its_response() -> None:
    """The response of a route is complete before that, so it is kept, and nothing is redone."""
    app = FastAPI()
    fastapi.setup(app, aiolock.connect("memory://"))
    charged = list[int]()

    async def fail() -> None:
        raise ZeroDivisionError

    @app.post(
        "/", dependencies=[fastapi.idempotent(application="shop", remember=60, who=lambda: "ada")]
    )
    async def post(background: BackgroundTasks) -> int:
        charged.append(1)
        background.add_task(fail)
        return len(charged)

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as http,
    ):
        for replayed in (None, "true"):
            reply = await http.post("/", headers=KEY)
            assert (reply.status_code, reply.json()) == (200, 1)
            assert reply.headers.get("Idempotent-Replayed") == replayed


async def test_idempotent_route_of_a_mounted_application_uses_the_outer_client() -> None:
    """An application in another has it with the same client; one that is not set up says so."""
    client = aiolock.connect("memory://")
    till = Till(client)
    till.go.set()
    inner = with_fastapi(till)
    bare = FastAPI()

    @bare.post("/")
    async def post(
        _: Annotated[Any, fastapi.idempotent(application="shop", remember=9, who=lambda: "")],
    ) -> None:
        raise AssertionError

    outer = Starlette(routes=[Mount("/inner", inner), Mount("/bare", bare)])
    starlette.setup(outer, client)
    transport = httpx.ASGITransport(outer, raise_app_exceptions=False)
    async with (
        outer.router.lifespan_context(outer),
        httpx.AsyncClient(transport=transport, base_url="http://test") as http,
    ):
        for _ in range(2):
            assert (await http.post("/inner/charges", headers=KEY)).json()["charge"] == 1
        assert (await http.post("/bare/", headers=KEY)).status_code == 500


async def test_idempotent_route_of_aiohttp_that_streams_answers_not_kept_later() -> None:
    """What a handler sends by itself is not kept: it is known to be done."""
    client = aiolock.connect("memory://")
    app = web.Application()
    aiohttp.setup(app, client)

    @aiohttp.idempotent(application="shop", remember=60, who=lambda _: "")
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"done")
        return response

    app.router.add_post("/", stream)
    async with serving("aiohttp", app) as url, httpx.AsyncClient(timeout=30) as http:
        assert (await http.post(url, headers=KEY)).content == b"done"
        assert told(await http.post(url, headers=KEY)) == (409, "idempotency_not_kept")


async def read_post(request: web.Request) -> Any:
    """The sizes of a form's fields, by `post`."""
    form = await request.post()
    return {k: len(v if isinstance(v, str) else v.file.read()) for k, v in form.items()}  # type: ignore[union-attr]  # no bytes


async def read_multipart(request: web.Request) -> Any:
    """The same, part by part."""
    reader, sizes = await request.multipart(), dict[str, int]()
    while isinstance(part := await reader.next(), BodyPartReader):
        sizes[str(part.name)] = len(await part.read())
    return sizes


async def read_content(request: web.Request) -> Any:
    """The size of the body, by its stream."""
    return {"size": len(await request.content.read())}


async def read_nothing(request: web.Request) -> Any:
    """Whether there is a body."""
    return {"body": request.can_read_body}


@pytest.mark.parametrize(
    ("read", "sent", "found"),
    [
        (read_post, {"data": {"a": "7"}, "files": {"b": b"x" * 300_000}}, {"a": 1, "b": 300_000}),
        (read_multipart, {"data": {"a": "7"}, "files": {"b": b"xy"}}, {"a": 1, "b": 2}),
        (read_content, {"content": b"x" * 300_000}, {"size": 300_000}),
        (read_content, {}, {"size": 0}),
        (read_nothing, {"content": b"x" * 300_000}, {"body": True}),
    ],
    ids=["post", "multipart", "content", "empty", "nothing"],
)
async def test_idempotent_route_of_aiohttp_can_read_the_request_body_in_any_way(
    read: Callable[[web.Request], Awaitable[Any]], sent: dict[str, Any], found: Any
) -> None:
    """The handler can read it once more in any way, or not at all."""
    app = web.Application()
    aiohttp.setup(app, aiolock.connect("memory://"))

    @aiohttp.idempotent(application="shop", remember=60, who=lambda _: "")
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response(await read(request))

    app.router.add_post("/", handler)
    async with serving("aiohttp", app) as url, httpx.AsyncClient(timeout=30) as http:
        for key in ("a", "b"):  # by one connection
            reply = await http.post(url, headers={"Idempotency-Key": key}, **sent)
            assert reply.json() == found


def form_of(user: str, amount: int) -> dict[str, Any]:
    """A form in several parts, and its headers."""
    fields = {"user": user, "amount": amount}
    parts = [
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    headers = {**KEY, "Content-Type": "multipart/form-data; boundary=x"}
    return {"content": "".join((*parts, "--x--\r\n")), "headers": headers}


async def test_idempotent_route_of_aiohttp_with_an_owner_out_of_the_form_compares_the_body() -> (
    None
):
    """`who` may read the form; what differs in it is another request."""
    app = web.Application()
    aiohttp.setup(app, aiolock.connect("memory://"))

    async def user_of(request: web.Request) -> str:
        return str((await request.post())["user"])

    @aiohttp.idempotent(application="shop", remember=60, who=user_of)
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response({"paid": str((await request.post())["amount"])})

    app.router.add_post("/", handler)
    async with serving("aiohttp", app) as url, httpx.AsyncClient(timeout=30) as http:
        for _ in range(2):
            assert (await http.post(url, **form_of("ann", 5))).json() == {"paid": "5"}
        assert (await http.post(url, **form_of("ann", 6))).status_code == 422
        assert (await http.post(url, **form_of("bob", 6))).json() == {"paid": "6"}


@pytest.mark.parametrize("chunked", [False, True])
async def test_idempotent_route_of_aiohttp_that_takes_long_bodies_refuses_them_with_a_key(
    chunked: bool,
) -> None:
    """However much the application takes, and whether the length is known before or not."""
    app = web.Application(client_max_size=10 * LONGEST_BODY)
    aiohttp.setup(app, aiolock.connect("memory://"))

    @aiohttp.idempotent(application="shop", remember=60, who=lambda _: "")
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.json_response({"size": len(await request.read())})

    async def pieces(size: int) -> AsyncGenerator[bytes]:
        yield b"x" * (size - 1)
        yield b"x"

    app.router.add_post("/", handler)
    async with serving("aiohttp", app) as url, httpx.AsyncClient(timeout=30) as http:
        for size, status in ((LONGEST_BODY, 200), (LONGEST_BODY + 1, 413)):
            content: Any = pieces(size) if chunked else b"x" * size
            reply = await http.post(url, content=content, headers={"Idempotency-Key": str(size)})
            assert reply.status_code == status
        content = pieces(LONGEST_BODY + 1) if chunked else b"x" * (LONGEST_BODY + 1)
        assert (await http.post(url, content=content)).status_code == 200


@pytest.mark.parametrize("body", ["paid ä", b"paid", bytearray(b"paid"), memoryview(b"paid"), None])
async def test_idempotent_route_of_aiohttp_replays_bodies_of_any_type(body: Any) -> None:
    """It is kept, whether it is of bytes or a text, of which aiohttp makes another object."""
    app = web.Application()
    aiohttp.setup(app, aiolock.connect("memory://"))

    @aiohttp.idempotent(application="shop", remember=60, who=lambda _: "")
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body)

    app.router.add_post("/", handler)
    async with serving("aiohttp", app) as url, httpx.AsyncClient(timeout=30) as http:
        first, again = [await http.post(url, headers=KEY) for _ in range(2)]
        assert (again.status_code, again.content) == (200, first.content)
        for name in ("Content-Type", "Content-Length"):
            assert again.headers.get(name) == first.headers.get(name)
        assert again.headers["Idempotent-Replayed"] == "true"


@pytest.mark.parametrize("module", [starlette, fastapi, aiohttp])
def test_idempotent_with_invalid_options_raises_type_or_value_error(module: Any) -> None:
    """It is refused where it is declared."""
    with pytest.raises(ValueError, match="remember"):
        module.idempotent(application="shop", remember=-1, who=lambda _: "")
    if module is not fastapi:
        with pytest.raises(TypeError, match=r"idempotent\(\) decorates async functions"):
            module.idempotent(application="shop", remember=1, who=lambda _: "")(
                lambda request: request
            )

        async def method(self: Any, request: Any) -> None: ...

        with pytest.raises(TypeError, match=r"method\(.*cannot be called with request"):
            module.idempotent(application="shop", remember=1, who=lambda _: "")(method)


@pytest.mark.parametrize("module", [starlette, fastapi, aiohttp, Idempotency])
async def test_idempotent_with_an_owner_that_is_no_str_answers_500_and_logs_why(
    module: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says what `who` gave and what it must give, and nothing is carried out."""

    async def who(request: Request) -> int:
        return 7

    client = aiolock.connect("memory://")
    app: Any = Starlette()
    if module is aiohttp:
        app = web.Application()
        untyped: Any = never
        whose: Any = who
        once = aiohttp.idempotent(application="shop", remember=60, who=whose)
        app.router.add_post("/", once(untyped))
    elif module is fastapi:
        app = FastAPI()
        app.post("/", dependencies=[fastapi.idempotent(application="shop", remember=60, who=who)])(
            never
        )
    elif module is starlette:
        endpoint = starlette.idempotent(application="shop", remember=60, who=who)(never)  # type: ignore[arg-type]  # that is the test
        app.add_route("/", endpoint, methods=["POST"])
    else:
        app.add_middleware(Idempotency, client=client, application="shop", remember=60, who=who)
        app.add_route("/", never, methods=["POST"])
    (starlette if module is Idempotency else module).setup(app, client)
    framework = "aiohttp" if module is aiohttp else "starlette"
    async with serving(framework, app) as url, httpx.AsyncClient(timeout=30) as http:
        assert (await http.post(url, headers=KEY)).status_code == 500
    assert "who must give a str, the id of the user or tenant, and not int" in caplog.text


async def never(request: Request) -> Any:
    """A handler that is not called."""
    raise AssertionError


class Bank:
    """Pays, and counts how often."""

    def __init__(self, client: aiolock.LockClient, **options: Any) -> None:
        self.paid = 0
        self.fail: Exception | None = None
        self.go = asyncio.Event()
        self.go.set()

        @idempotent(client, "payment:{order}", remember=60, **options)
        async def pay(order: str, amount: int = 1, session: Any = None) -> dict[str, Any]:
            self.paid += 1
            number = self.paid
            await self.go.wait()
            if self.fail:
                raise self.fail
            return {"number": number, "pair": (order, amount), "more": "x" * (amount - 1)}

        self.pay = pay


async def test_idempotent_function_called_at_once_runs_once_and_shares_its_result() -> None:
    """All who call it get the result of the one that is carried out, as JSON has it."""
    async with aiolock.connect("memory://") as client:
        bank = Bank(client)
        bank.go.clear()
        calls = [asyncio.create_task(bank.pay("42")) for _ in range(3)]
        await until(lambda: bank.paid)
        bank.go.set()
        results = [*await asyncio.gather(*calls), await bank.pay(order="42", amount=1)]
        assert results == [{"number": 1, "pair": ["42", 1], "more": ""}] * 4
        assert (await bank.pay("43"))["number"] == 2
        with pytest.raises(KeyReused, match="payment:42"):
            await bank.pay("42", 2)
        assert bank.paid == 2


async def test_idempotent_function_that_fails_is_carried_out_by_the_next_call() -> None:
    """Nothing is kept, and the next call does it."""
    async with aiolock.connect("memory://") as client:
        bank = Bank(client)
        bank.fail = ZeroDivisionError()
        with pytest.raises(ZeroDivisionError):
            await bank.pay("42")
        bank.fail = None
        assert (await bank.pay("42"))["number"] == 2


async def test_idempotent_function_with_wait_false_raises_under_way() -> None:
    """It says that the first is still at it."""
    async with aiolock.connect("memory://") as client:
        bank = Bank(client, wait=False)
        bank.go.clear()
        first = asyncio.create_task(bank.pay("42"))
        await until(lambda: bank.paid)
        with pytest.raises(UnderWay) as caught:
            await bank.pay("42")
        assert isinstance(caught.value, aiolock.AcquireTimeout)
        assert caught.value.name == "payment:42"
        bank.go.set()
        assert (await first)["number"] == (await bank.pay("42"))["number"] == 1


async def test_idempotent_function_with_a_long_result_raises_not_kept_later() -> None:
    """The first alone has it; nothing is done for a second time."""
    async with aiolock.connect("memory://") as client:
        bank = Bank(client)
        assert len((await bank.pay("42", 70_000))["more"]) > 65_536
        with pytest.raises(NotKept):
            await bank.pay("42", 70_000)
        assert bank.paid == 1


async def test_idempotent_function_compares_all_or_the_named_arguments() -> None:
    """All arguments, or those that are named; what cannot be written down is told of before."""
    async with aiolock.connect("memory://") as client:
        bank = Bank(client)
        with pytest.raises(TypeError, match=r"pay\(\) cannot be compared.*compare="):
            await bank.pay("42", session=object())
        assert not bank.paid
        bank = Bank(client, compare={"amount"})
        for _ in range(2):
            assert (await bank.pay("42", session=object()))["number"] == 1
        with pytest.raises(KeyReused):
            await bank.pay("42", 2, session=object())
        bank = Bank(client, dumps=repr, loads=eval)
        assert (await bank.pay("44"))["pair"] == ("44", 1)


def test_idempotent_function_declared_wrongly_raises_type_or_value_error() -> None:
    """It is refused where it is declared."""
    client = aiolock.connect("memory://")

    async def pay(order: str) -> None: ...

    with pytest.raises(ValueError, match="names item"):
        idempotent(client, "{item}", remember=1)(pay)
    with pytest.raises(ValueError, match=r"compare names amount, .* pay\(\) are order"):
        idempotent(client, "{order}", remember=1, compare={"amount"})(pay)
    with pytest.raises(TypeError, match="collection"):
        idempotent(client, "{order}", remember=1, compare="order")
    with pytest.raises(TypeError, match="async functions"):
        idempotent(client, "{order}", remember=1)(lambda order: order)
    with pytest.raises(ValueError, match="remember"):
        idempotent(client, "{order}", remember=-1)


class Database:
    """Counts what is committed; the first commit fails, as one that could not be serialized."""

    def __init__(self) -> None:
        self.committed = self.tries = 0
        self.late = list[int]()

    async def session(self) -> AsyncGenerator[None]:
        """As a dependency that commits after ``yield``."""
        yield
        self.tries += 1
        await asyncio.sleep(0)
        if self.tries == 1:
            raise RuntimeError("could not serialize access")
        self.committed += 1

    async def later(self) -> None:
        """Work in the background."""
        self.late.append(self.committed)


def ends_in_fastapi(database: Database, client: aiolock.LockClient, *, of_route: bool) -> Any:
    """A session as FastAPI has it, which ends after the response."""
    app = FastAPI()
    once = [fastapi.idempotent(application="till", remember=60, who=lambda: "")] if of_route else []
    if not of_route:
        app.add_middleware(
            Idempotency, client=client, application="till", remember=60, who=lambda _: ""
        )
    fastapi.setup(app, client)

    @app.post("/", dependencies=once)
    async def post(
        background: BackgroundTasks, _: Annotated[None, Depends(database.session)]
    ) -> str:
        background.add_task(database.later)
        return "paid"

    @app.post("/long", dependencies=once)
    async def long(_: Annotated[None, Depends(database.session)]) -> StreamingResponse:
        async def pieces() -> AsyncGenerator[bytes]:
            for _ in range(3):
                yield b"x" * 40_000

        return StreamingResponse(pieces())

    return app


class Commits:
    """Middleware with such a session."""

    def __init__(self, app: Any, database: Database) -> None:
        self._app = app
        self._database = database

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As any ASGI application."""
        await self._app(scope, receive, send)
        if scope["type"] == "http":
            async for _ in self._database.session():
                pass


def ends_in_starlette(database: Database, client: aiolock.LockClient) -> Any:
    """A session of middleware inside of `Idempotency`."""

    async def endpoint(request: Request) -> Response:
        return JSONResponse("paid")

    app = Starlette(routes=[Route("/", endpoint, methods=["POST"])])
    app.add_middleware(Commits, database=database)
    app.add_middleware(
        Idempotency, client=client, application="till", remember=60, who=lambda _: ""
    )
    starlette.setup(app, client)
    return app


def ends_in_aiohttp(database: Database, client: aiolock.LockClient) -> Any:
    """A session of middleware round the handler."""

    @web.middleware
    async def session(request: web.Request, handler: Any) -> web.StreamResponse:
        response: web.StreamResponse = await handler(request)
        async for _ in database.session():
            pass
        return response

    @aiohttp.idempotent(application="till", remember=60, who=lambda _: "")
    async def handler(request: web.Request) -> web.Response:
        return web.json_response("paid")

    app = web.Application(middlewares=[session])
    app.router.add_post("/", handler)
    aiohttp.setup(app, client)
    return app


@pytest.mark.parametrize("way", ["fastapi", "fastapi, middleware", "starlette", "aiohttp"])
async def test_idempotent_response_whose_commit_fails_is_neither_kept_nor_sent(way: str) -> None:
    """What is told to the client, now or later, is in the database."""
    client, database = aiolock.connect("memory://"), Database()
    if way.startswith("fastapi"):
        app = ends_in_fastapi(database, client, of_route=way == "fastapi")
    else:
        app = (ends_in_starlette if way == "starlette" else ends_in_aiohttp)(database, client)
    framework = way.partition(",")[0]
    async with serving(framework, app) as url, httpx.AsyncClient(timeout=30) as http:
        assert (await http.post(url, headers=KEY)).status_code == 500
        assert database.committed == 0
        for replayed in (None, "true"):
            reply = await http.post(url, headers=KEY)
            assert (reply.status_code, reply.json()) == (200, "paid")
            assert reply.headers.get("Idempotent-Replayed") == replayed
        # That of aiohttp is round a replay, too.
        assert database.committed == (2 if way == "aiohttp" else 1)
    # That of a route is done after the commit, and not at all if that fails.
    assert database.late == {"fastapi": [1], "fastapi, middleware": [0, 0]}.get(way, [])


@pytest.mark.parametrize("of_route", [True, False])
async def test_idempotent_long_response_whose_commit_fails_breaks_off(*, of_route: bool) -> None:
    """Its end is held back; the next request is carried out again."""
    client, database = aiolock.connect("memory://"), Database()
    app = ends_in_fastapi(database, client, of_route=of_route)
    async with serving("fastapi", app) as url, httpx.AsyncClient(timeout=30) as http:
        with pytest.raises(httpx.RemoteProtocolError):
            await http.post(f"{url}/long", headers=KEY)
        assert len((await http.post(f"{url}/long", headers=KEY)).content) == 120_000
        assert told(await http.post(f"{url}/long", headers=KEY)) == (409, "idempotency_not_kept")
    assert database.committed == 1
