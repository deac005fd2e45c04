"""Starlette and FastAPI: what the others have not."""

import asyncio
import contextlib
import enum
import functools
import uuid
import warnings
from collections.abc import AsyncGenerator, Generator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request, WebSocket
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import BaseModel, SecretBytes, SecretStr
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.responses import Response
from starlette.routing import Mount, Route, WebSocketRoute

import aiolock
from aiolock import Lease
from aiolock.integrations import fastapi, starlette
from aiolock.integrations._names import LockOf
from aiolock.integrations._parameters import values_of
from aiolock.stores.memory import MemoryServer
from tests.support.failures import queued, until
from tests.support.webapps.bodies import Bodies
from tests.support.webapps.looks import Looks
from tests.support.webapps.servers import build, serving


@starlette.locked("order:{order}")
async def order_endpoint(request: Request, lease: Lease) -> Response:
    """An endpoint of Starlette."""
    return PlainTextResponse(lease.name)


async def start(app: Starlette) -> None:
    """Run its lifespan."""
    async with app.router.lifespan_context(app):
        pass


def called(app: Starlette) -> httpx.AsyncClient:
    """Calls it without a server."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


@pytest.mark.parametrize(
    "route",
    [
        Route("/{x}", order_endpoint),
        Mount("/{order}", routes=[Mount("/a", routes=[Route("/b", order_endpoint)])]),
    ],
    ids=["route", "mount"],
)
async def test_locked_field_missing_in_the_path_keeps_starlette_from_starting(route: Any) -> None:
    """The application does not start; with the field in the mount's path, it does."""
    app = Starlette(routes=[route])
    client = aiolock.connect("memory://")
    starlette.setup(app, client)
    if isinstance(route, Mount):
        await start(app)
    else:
        with pytest.raises(ValueError, match=r"'/\{x\}' has no 'order'"):
            await start(app)


async def test_locked_field_missing_in_a_router_path_keeps_fastapi_from_starting() -> None:
    """Nor does one of FastAPI, however the route came into it."""
    router = APIRouter(prefix="/items/{item}")

    async def nested(lease: Annotated[Lease, fastapi.locked("order:{order}")]) -> Lease:
        return lease

    @router.get("/")
    async def get(lease: Annotated[Lease, Depends(nested, scope="function")]) -> None:
        pass

    app = FastAPI()
    fastapi.setup(app, aiolock.connect("memory://"))
    app.include_router(router, prefix="/orders/{order}")
    await start(app)
    app.include_router(router)
    with pytest.raises(ValueError, match=r"'/items/\{item\}/' has no 'order'"):
        await start(app)


async def test_locked_around_synchronous_or_outliving_functions_raises_type_error() -> None:
    """A function that no loss could end is refused."""
    app = FastAPI()
    fastapi.setup(app, aiolock.connect("memory://"))

    @app.get("/")
    def get(lease: Annotated[Lease, fastapi.locked("x")]) -> None:
        pass

    with pytest.raises(TypeError, match=r"without async: .*`async def`.*aiolock\.sync\.connect"):
        await start(app)
    generators = FastAPI()
    fastapi.setup(generators, aiolock.connect("memory://"))

    @generators.get("/")
    def pieces(lease: Annotated[Lease, fastapi.locked("x")]) -> Generator[str]:
        yield "a"

    with pytest.raises(TypeError, match=r"without async: .*`async def`.*aiolock\.sync\.connect"):
        await start(generators)
    short = FastAPI()
    fastapi.setup(short, aiolock.connect("memory://"))

    @short.get("/")
    async def piece_by_piece(
        lease: Annotated[Lease, fastapi.locked("x", scope="function")],
    ) -> AsyncGenerator[str]:
        yield "a"

    with pytest.raises(TypeError, match='after scope="function" has ended'):
        await start(short)
    with pytest.raises(TypeError, match=r"async functions, .*aiolock\.sync\.connect"):
        starlette.locked("x")(get)  # type: ignore[arg-type]  # that is the test


async def test_setup_with_invalid_arguments_twice_or_missing_raises() -> None:
    """The texts say what to do."""
    app = FastAPI()
    with pytest.raises(TypeError, match=r"connect\(\)"):
        fastapi.setup(app, "memory://")  # type: ignore[arg-type]  # that is the test
    fastapi.setup(app, aiolock.connect("memory://"))
    with pytest.raises(ValueError, match="already"):
        fastapi.setup(app, aiolock.connect("memory://"))
    other = Starlette(routes=[Route("/{order}", order_endpoint)])
    async with called(other) as http:
        with pytest.raises(RuntimeError, match=r"setup\(app, client\)"):
            await http.get("/1")


async def test_request_without_the_lifespan_raises_client_closed_not_open_yet() -> None:
    """As in a test that forgot it: not a 503, which says that the server shuts down."""
    app = Starlette(routes=[Route("/{order}", order_endpoint)])
    starlette.setup(app, aiolock.connect("memory://"))
    async with called(app) as http:
        with pytest.raises(aiolock.ClientClosed, match="not open yet"):
            await http.get("/1")


async def test_startup_while_the_store_is_down_raises_store_error() -> None:
    """The application does not start, and says why."""
    app = FastAPI()
    fastapi.setup(app, aiolock.connect("redis://127.0.0.1:1/0"))
    with pytest.raises(aiolock.StoreError, match=r"127\.0\.0\.1:1"):
        await start(app)


@starlette.locked("x")
async def socket(request: Request, lease: Lease) -> None:
    """No endpoint of a WebSocket."""


async def test_locked_around_a_websocket_keeps_the_application_from_starting() -> None:
    """The application does not start, and says what to do; the client is there for it."""
    app = FastAPI()
    fastapi.setup(app, aiolock.connect("memory://"))
    router = APIRouter()

    @router.websocket("/locked")
    async def locked(socket: WebSocket, lease: Annotated[Lease, fastapi.locked("x")]) -> None:
        pass

    app.include_router(router, prefix="/included")
    with pytest.raises(TypeError, match=r"'/included/locked' .* client_of\(websocket\)"):
        await start(app)
    plain = Starlette(routes=[WebSocketRoute("/", socket)])
    starlette.setup(plain, aiolock.connect("memory://"))
    with pytest.raises(TypeError, match=r"client_of\(websocket\)"):
        await start(plain)


def test_websocket_with_an_error_of_a_lock_is_refused_or_closed() -> None:
    """Refused before it is accepted, with the answer of a request; and closed after that."""
    app = FastAPI()
    client = aiolock.connect("memory://")
    fastapi.setup(app, client)
    slow: dict[str, Any] = {"per": 3600, "burst": 1}
    limited = APIRouter(dependencies=[fastapi.rate_limited("limited", 1, **slow)])

    @limited.websocket("/limited")
    async def greet(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("welcome")
        await socket.close()

    @app.websocket("/accepted")
    async def accepted(socket: WebSocket, locks: fastapi.Client) -> None:
        await socket.accept()
        await locks.rate_limit("accepted", 1, **slow).acquire(timeout=0)
        await socket.close()

    app.include_router(limited)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Starlette would rather have another client
        from fastapi.testclient import TestClient
        from starlette.testclient import WebSocketDenialResponse
    with TestClient(app) as http:
        with http.websocket_connect("/limited") as connection:
            assert connection.receive_text() == "welcome"
        with pytest.raises(WebSocketDenialResponse) as refused, http.websocket_connect("/limited"):
            raise AssertionError
        assert (refused.value.status_code, refused.value.json()["code"]) == (429, "rate_limited")
        for code, reason in ((1000, ""), (1013, "rate_limited")):
            with http.websocket_connect("/accepted") as connection:
                message = connection.receive()
            assert (message["code"], message["reason"]) == (code, reason)


def test_client_dependency_of_a_websocket_is_the_open_client() -> None:
    """As a dependency, and the application may be started twice by a test."""
    client = aiolock.connect("memory://")
    app = FastAPI()
    fastapi.setup(app, client)

    @app.websocket("/")
    async def endpoint(socket: WebSocket, locks: fastapi.Client) -> None:
        await socket.accept()
        async with locks.lock("x") as lease:
            await socket.send_text(lease.name)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Starlette would rather have another client
        from fastapi.testclient import TestClient

    for _ in range(2):
        with TestClient(app) as http, http.websocket_connect("/") as connection:
            assert connection.receive_text() == "x"


async def test_locked_field_keeps_the_type_and_description_of_its_path_parameter() -> None:
    """They are the path operation's: converted by the path, and documented as it says."""
    app = FastAPI()
    fastapi.setup(app, aiolock.connect("memory://"))

    @app.get("/{request:int}")
    async def get(
        request: Annotated[int, Path(description="mine")],
        lease: Annotated[Lease, fastapi.locked("{request}")],
    ) -> str:
        return lease.name

    async with app.router.lifespan_context(app), called(app) as http:
        assert (await http.get("/42")).json() == "42"
        (parameter,) = app.openapi()["paths"]["/{request}"]["get"]["parameters"]
        assert (parameter["schema"]["type"], parameter["description"]) == ("integer", "mine")


class Colour(enum.Enum):
    """What a path may say."""

    RED = "red"


ONE = "0b9e3c84-7d2c-4b57-9b7c-7f7f6d1c2a11"


@pytest.mark.parametrize(
    ("annotation", "url", "name"),
    [
        (uuid.UUID, f"/{ONE.upper()}", ONE),
        (uuid.UUID, f"/{ONE.replace('-', '')}", ONE),
        (int, "/007", "7"),
        (Annotated[int, Path(ge=1)], "/+7", "7"),
        (Colour, "/red", "red"),
        (str, "/07", "07"),
        (str, f"/{ONE.upper()}", ONE.upper()),
        (int, "/?it=07", "7"),
        (Annotated[int | None, Query()], "/?it=07", "7"),
        (str, "/?it=07", "07"),
    ],
)
async def test_locked_name_is_made_of_the_converted_parameter(
    annotation: Any, url: str, name: str
) -> None:
    """However an id is spelled in the URL, it is one lock; a str is one letter by letter."""
    app = FastAPI()
    fastapi.setup(app, aiolock.connect("memory://"))
    query = {"it"} if "?" in url else set[str]()

    async def get(it: Any, lease: Annotated[Lease, fastapi.locked("{it}", query=query)]) -> str:
        return lease.name

    get.__annotations__["it"] = annotation
    app.get("/" if query else "/{it}")(get)
    async with app.router.lifespan_context(app), called(app) as http:
        assert (await http.get(url)).json() == name


async def test_locked_field_may_be_an_alias_in_a_dependency_a_prefix_or_undeclared() -> None:
    """Under another name, in a dependency, behind a router's prefix; or not at all."""
    app, router = FastAPI(), APIRouter()
    fastapi.setup(app, aiolock.connect("memory://"))
    held = fastapi.locked("{it}")

    async def of_alias(
        lease: Annotated[Lease, held], number: Annotated[int, Path(alias="it")]
    ) -> str:
        return lease.name

    def number(it: int) -> int:
        return it

    async def of_dependency(
        lease: Annotated[Lease, held], found: Annotated[int, Depends(number)]
    ) -> str:
        return lease.name

    @router.get("/included")
    async def included(lease: Annotated[Lease, held], it: int) -> str:
        return lease.name

    async def undeclared(lease: Annotated[Lease, held]) -> str:
        return lease.name

    for endpoint in (of_alias, of_dependency, undeclared):
        app.get(f"/{endpoint.__name__}/{{it}}")(endpoint)
    app.include_router(router, prefix="/of/{it}")
    async with app.router.lifespan_context(app), called(app) as http:
        for url in ("/of_alias/07", "/of_dependency/07", "/of/07/included"):
            assert (await http.get(url)).json() == "7", url
        assert (await http.get("/undeclared/07")).json() == "07"


async def test_locked_field_of_an_invalid_value_answers_422_without_waiting() -> None:
    """The request is answered as ever, and does not wait for a lock."""
    client = aiolock.connect("memory://")
    app = FastAPI()
    fastapi.setup(app, client)

    @app.get("/{it}")
    async def get(it: int, lease: Annotated[Lease, fastapi.locked("{it}")]) -> str:
        raise AssertionError

    async with app.router.lifespan_context(app), called(app) as http, client.lock("x"):
        reply = await asyncio.create_task(http.get("/x"))
        assert reply.status_code == 422
        assert [each["loc"] for each in reply.json()["detail"]] == [["path", "it"]]


def test_values_of_a_request_without_its_path_operation_raises_runtime_error() -> None:
    """A name that may be another than elsewhere is not made."""
    request = Request({"type": "http", "query_string": b"", "path_params": {"it": "07"}})
    with pytest.raises(RuntimeError, match="this version of FastAPI"):
        values_of(request, LockOf("{it}"), lambda _: False)


class Filter(BaseModel):
    """Several parameters at once."""

    day: int


async def test_locked_field_of_a_list_or_model_keeps_fastapi_from_starting() -> None:
    """The application does not start, and says what to declare."""
    of_query = fastapi.locked("{day}", query={"day"})

    async def of_list(
        lease: Annotated[Lease, of_query], day: Annotated[list[int] | None, Query()] = None
    ) -> None: ...

    async def of_model(
        lease: Annotated[Lease, of_query], given: Annotated[Filter, Query()]
    ) -> None: ...

    for endpoint, why in ((of_list, "may be a list there"), (of_model, "of the model Filter")):
        app = FastAPI()
        fastapi.setup(app, aiolock.connect("memory://"))
        app.get("/x")(endpoint)
        with pytest.raises(ValueError, match=rf"'/x'.*'day', .*{why}.* Declare it"):
            await start(app)


@pytest.mark.parametrize("secret", [SecretStr, SecretBytes])
async def test_locked_field_of_a_secret_type_keeps_fastapi_from_starting(secret: Any) -> None:
    """Every value would be one lock: the application does not start, and says what is right."""
    app = FastAPI()
    fastapi.setup(app, aiolock.connect("memory://"))

    @app.get("/x/{token}")
    async def endpoint(
        lease: Annotated[Lease, fastapi.locked("{token}")], token: secret
    ) -> None: ...

    with pytest.raises(ValueError, match=r"'/x/\{token\}'.*'token', .* hides .* as a str"):
        await start(app)


async def test_locked_name_is_made_of_the_value_of_a_starlette_converter() -> None:
    """Its converters make one value of all spellings."""

    @starlette.locked("{it}")
    async def endpoint(request: Request, lease: Lease) -> Response:
        return PlainTextResponse(lease.name)

    app = Starlette(routes=[Route("/u/{it:uuid}", endpoint), Route("/n/{it:int}", endpoint)])
    starlette.setup(app, aiolock.connect("memory://"))
    async with app.router.lifespan_context(app), called(app) as http:
        for path, name in ((f"/u/{ONE.replace('-', '')}", ONE), ("/n/007", "7")):
            assert (await http.get(path)).text == name


def test_locked_endpoint_without_a_lease_parameter_raises_type_error() -> None:
    """It is refused where it is declared, and not at its first request."""

    async def endpoint(request: Request) -> Response:
        return Response()

    with pytest.raises(TypeError, match=r"endpoint\(.* with request, lease"):
        starlette.locked("x")(endpoint)  # type: ignore[arg-type]  # that is the test


class Called:
    """An object that can be called, asynchronously."""

    async def __call__(self, lease: Annotated[Lease, fastapi.locked("x")]) -> str:
        """As a path operation."""
        return lease.name


async def test_locked_around_an_async_callable_or_a_partial_holds_the_lock() -> None:
    """It is as good as an async function, and so is what stands for one."""
    app = FastAPI()
    fastapi.setup(app, aiolock.connect("memory://"))
    app.get("/object")(Called())
    app.get("/partial")(functools.partial(Called()))
    async with app.router.lifespan_context(app), called(app) as http:
        for path in ("/object", "/partial"):
            assert (await http.get(path)).json() == "x"


def test_lifespan_run_twice_opens_the_client_first_each_time() -> None:
    """The lifespan opens the client, before the application's own, as often as it begins."""
    begun = list[str]()

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[dict[str, Any]]:
        async with client.lock("start"):
            begun.append(client.id)
        yield {"number": len(begun)}

    client = aiolock.connect("memory://")
    app = FastAPI(lifespan=lifespan)
    fastapi.setup(app, client)

    @app.get("/{order}")
    async def get(
        request: Request,
        order: str,
        ours: fastapi.Client,
        lease: Annotated[Lease, fastapi.locked("order:{order}")],
    ) -> tuple[str, int, bool]:
        return lease.name, request.state.number, await ours.lock(lease.name).locked()

    async def run() -> None:
        number = len(begun) + 1
        async with app.router.lifespan_context(app) as state:
            transport = httpx.ASGITransport(Stated(app, dict(state or {})))
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
                assert (await http.get("/x")).json() == ["order:x", number, True]
                assert (await http.get("/openapi.json")).status_code == 200

    asyncio.run(run())
    asyncio.run(run())
    assert len(set(begun)) == 2


class Stated:
    """A server that hands on the state of the lifespan, as uvicorn does."""

    def __init__(self, app: Any, state: dict[str, Any]) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._app({**scope, "state": dict(self._state)}, receive, send)


async def test_locked_in_a_mounted_application_uses_the_outer_client_and_path() -> None:
    """An application in another has the same client, and handlers of its own."""
    memory = MemoryServer()
    client = aiolock.connect(memory)
    inner, outer = FastAPI(), Starlette()
    fastapi.setup(inner, client)
    starlette.setup(outer, client)
    outer.mount("/inner/{shop}", inner)

    @inner.get("/{order}")
    async def get(
        order: str, lease: Annotated[Lease, fastapi.locked("{shop}:{order}", timeout=0)]
    ) -> str:
        return lease.name

    async with outer.router.lifespan_context(outer), called(outer) as http:
        assert (await http.get("/inner/a/42")).json() == "a:42"
        async with aiolock.connect(memory) as others, others.lock("a:42"):
            assert (await http.get("/inner/a/42")).status_code == 409


@pytest.mark.parametrize("before", [True, False])
async def test_exception_handler_of_the_application_wins_over_ours(
    before: bool,
) -> None:  # a parameter of pytest
    """They win, whenever they were given."""
    client = aiolock.connect("memory://")

    async def mine(request: Request, error: Exception) -> Response:
        return PlainTextResponse("mine", 418)

    app = FastAPI(exception_handlers={aiolock.AcquireTimeout: mine} if before else None)
    fastapi.setup(app, client)
    if not before:
        app.add_exception_handler(aiolock.AcquireTimeout, mine)

    @app.get("/")
    async def get(lease: Annotated[Lease, fastapi.locked("x", timeout=0)]) -> None:
        pass

    async with app.router.lifespan_context(app), called(app) as http, client.lock("x"):
        assert (await asyncio.create_task(http.get("/"))).status_code == 418


async def test_locked_handler_that_raises_is_answered_as_usual_and_releases() -> None:
    """It is answered as ever, and the lock is released."""
    client = aiolock.connect("memory://")
    app = FastAPI()
    fastapi.setup(app, client)

    @app.get("/error")
    async def error(lease: Annotated[Lease, fastapi.locked("x")]) -> None:
        raise fastapi_error(418)

    async with app.router.lifespan_context(app), called(app) as http:
        assert (await http.get("/error")).status_code == 418
        assert not await client.lock("x").locked()


@pytest.mark.parametrize("first", [True, False])
async def test_locked_of_scope_function_ends_after_dependencies_of_that_scope(first: bool) -> None:
    """Whichever is entered first; and before the response is sent."""
    client = aiolock.connect("memory://")
    app, seen = FastAPI(), list[bool]()
    fastapi.setup(app, client)

    async def session() -> AsyncGenerator[None]:
        yield
        seen.append(await client.lock("x").locked())

    async def pieces() -> AsyncGenerator[bytes]:
        seen.append(await client.lock("x").locked())
        yield b"sent"

    held = fastapi.locked("x", scope="function")
    of_function = Depends(session, scope="function")

    @app.get("/", dependencies=[held, of_function] if first else [of_function, held])
    async def get() -> Response:
        return StreamingResponse(pieces())

    async with app.router.lifespan_context(app), called(app) as http:
        assert (await http.get("/")).text == "sent"
    assert seen == [True, False]


async def test_locked_under_base_http_middleware_keeps_the_request_body(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Middleware that has tasks of its own, and receives by itself, changes nothing."""
    looks = Looks(monkeypatch)

    async def plain(request: Any, call: RequestResponseEndpoint) -> Response:
        return await call(request)

    memory = MemoryServer()
    app = FastAPI()
    app.add_middleware(BaseHTTPMiddleware, dispatch=plain)
    fastapi.setup(app, aiolock.connect(memory))
    app.add_middleware(BaseHTTPMiddleware, dispatch=plain)
    app.add_middleware(GZipMiddleware)

    @app.post("/{order}")
    async def post(
        request: Request,
        order: str,
        lease: Annotated[Lease, fastapi.locked("{order}", timeout=60)],
    ) -> str:
        return (await request.body()).decode()

    async with (
        app.router.lifespan_context(app),
        called(app) as http,
        aiolock.connect(memory) as others,
    ):
        async with others.lock("42"):
            asked = asyncio.create_task(http.post("/42", content=b"work"))
            await queued(others.lock("42"), 1)
            await until(lambda: looks.kept)
        assert (await asked).json() == "work"


@pytest.mark.parametrize("before", [True, False])
async def test_shutdown_under_base_http_middleware_answers_shutting_down(
    before: bool,
) -> None:  # a parameter of pytest
    """Who is interrupted is told so, wherever such middleware stands."""

    async def plain(request: Any, call: RequestResponseEndpoint) -> Response:
        return await call(request)

    bodies = Bodies(aiolock.connect("memory://"))
    app = build("fastapi", bodies)
    if before:
        app.user_middleware.append(Middleware(BaseHTTPMiddleware, dispatch=plain))
    else:
        app.add_middleware(BaseHTTPMiddleware, dispatch=plain)
    async with httpx.AsyncClient(timeout=30) as http:
        async with serving("fastapi", app, grace=0.05) as url:
            asked = [asyncio.create_task(http.post(f"{url}/orders/42")) for _ in range(2)]
            await until(lambda: bodies.entered)
            await queued(bodies.client.lock("order:42"), 1)
        for each in asked:
            assert (await each).json()["code"] == "shutting_down"


def fastapi_error(status: int) -> Exception:
    """What FastAPI answers with this status."""
    from fastapi import HTTPException

    return HTTPException(status)
