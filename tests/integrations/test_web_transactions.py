"""A lock and a real transaction: none of what concurrent requests do is lost, in any order."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sysconfig
from asyncio.subprocess import DEVNULL
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
import psycopg
import pytest
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Request
from fastapi.responses import StreamingResponse
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.ext.asyncio import create_async_engine as create_engine
from sqlalchemy.pool import NullPool
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.responses import Response
from starlette.routing import Route

import aiolock
from aiolock import Lease
from aiolock.integrations import fastapi, starlette
from tests.support.databases import PostgresServer
from tests.support.failures import until
from tests.support.procs import tied
from tests.support.servers import hold_port

EXAMPLES = Path(__file__).parents[2] / "examples"
REQUESTS = 20


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[str]:
    """A database of the test's own, with 20 of one item in stock; gives its URL."""
    postgres_server.execute("CREATE DATABASE sales")
    url = postgres_server.url().rpartition("/")[0] + "/sales"
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE stock (item text PRIMARY KEY, amount int NOT NULL)")
        connection.execute("INSERT INTO stock VALUES ('tea', %s)", (REQUESTS,))
    yield url
    postgres_server.execute("DROP DATABASE sales WITH (FORCE)")


def left(database: str) -> int:
    """How many are left in it."""
    with psycopg.connect(database) as connection:
        row = connection.execute("SELECT amount FROM stock").fetchone()
    assert row is not None
    return int(row[0])


class Shop:
    """Sessions, and what a handler does with one."""

    def __init__(self, url: str) -> None:
        # A connection for each session: nothing is left to be closed in another loop.
        self.engine: AsyncEngine = create_engine(
            url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool
        )
        self.sessions = async_sessionmaker(self.engine)

    async def transaction(self) -> AsyncGenerator[AsyncSession]:
        """A session as it is usual in FastAPI: commits when the request ends."""
        async with self.sessions.begin() as session:
            yield session

    async def sell(self, session: AsyncSession) -> None:
        """Read, take a moment, write."""
        found = await session.execute(text("SELECT amount FROM stock"))
        amount = found.scalar_one()
        await asyncio.sleep(0.005)
        await session.execute(text("UPDATE stock SET amount = :amount"), {"amount": amount - 1})


async def sell_all(app: Any, path: str = "/sales/tea") -> None:
    """Send as many requests at once as there is stock."""
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60) as http,
    ):
        replies = await asyncio.gather(*(http.post(path) for _ in range(REQUESTS)))
    assert Counter(reply.status_code for reply in replies) == {200: REQUESTS}


Build = Callable[[FastAPI, Shop, Any, Any], None]
"""Adds a path operation, given the dependencies of a lock and of a session."""


def lock_first(app: FastAPI, shop: Shop, lock: Any, session: Any) -> None:
    """The usual way."""

    @app.post("/sales/{item}")
    async def sell(
        item: str, lease: Annotated[Lease, lock], session: Annotated[AsyncSession, session]
    ) -> None:
        await shop.sell(session)


def session_first(app: FastAPI, shop: Shop, lock: Any, session: Any) -> None:
    """As usual."""

    @app.post("/sales/{item}")
    async def sell(
        item: str, session: Annotated[AsyncSession, session], lease: Annotated[Lease, lock]
    ) -> None:
        await shop.sell(session)


def lock_of_the_router(app: FastAPI, shop: Shop, lock: Any, session: Any) -> None:
    """For all path operations."""
    router = APIRouter(dependencies=[lock])

    @router.post("/sales/{item}")
    async def sell(item: str, session: Annotated[AsyncSession, session]) -> None:
        await shop.sell(session)

    app.include_router(router)


def lock_of_the_operation(app: FastAPI, shop: Shop, lock: Any, session: Any) -> None:
    """Without a parameter; the session, too, is one of the application's."""

    @app.post("/sales/{item}", dependencies=[session, lock])
    async def sell(item: str, session: Annotated[AsyncSession, session]) -> None:
        await shop.sell(session)


def lock_of_a_dependency(app: FastAPI, shop: Shop, lock: Any, session: Any) -> None:
    """A service that has a session and a lock."""

    async def service(
        session: Annotated[AsyncSession, session], lease: Annotated[Lease, lock]
    ) -> AsyncSession:
        return session

    @app.post("/sales/{item}")
    async def sell(item: str, found: Annotated[AsyncSession, Depends(service)]) -> None:
        await shop.sell(found)


def session_that_needs_the_lock(app: FastAPI, shop: Shop, lock: Any, session: Any) -> None:
    """A session that begins when the lock is held."""

    async def under_lock(lease: Annotated[Lease, lock]) -> AsyncGenerator[AsyncSession]:
        async for each in shop.transaction():
            yield each

    @app.post("/sales/{item}")
    async def sell(
        item: str, session: Annotated[AsyncSession, Depends(under_lock, scope=session.scope)]
    ) -> None:
        await shop.sell(session)


def sold_while_it_streams(app: FastAPI, shop: Shop, lock: Any, session: Any) -> None:
    """The work is done by the stream."""

    @app.post("/sales/{item}")
    async def sell(
        item: str,
        lease: Annotated[Lease, lock],
        session: Annotated[AsyncSession, Depends(shop.transaction)],
    ) -> StreamingResponse:
        async def pieces() -> AsyncGenerator[bytes]:
            yield b"selling"
            await shop.sell(session)
            yield b"sold"

        return StreamingResponse(pieces())


def sold_by_a_generator(app: FastAPI, shop: Shop, lock: Any, session: Any) -> None:
    """The path operation is the stream."""

    @app.post("/sales/{item}", response_class=StreamingResponse)
    async def sell(
        item: str,
        lease: Annotated[Lease, lock],
        session: Annotated[AsyncSession, Depends(shop.transaction)],
    ) -> AsyncGenerator[str]:
        yield "selling"
        await shop.sell(session)
        yield "sold"


def sold_in_the_background(app: FastAPI, shop: Shop, lock: Any, session: Any) -> None:
    """The session ends after the background tasks."""

    @app.post("/sales/{item}")
    async def sell(
        item: str,
        background: BackgroundTasks,
        lease: Annotated[Lease, lock],
        session: Annotated[AsyncSession, Depends(shop.transaction)],
    ) -> None:
        background.add_task(shop.sell, session)


BUILDS: list[Build] = [
    lock_first,
    session_first,
    lock_of_the_router,
    lock_of_the_operation,
    lock_of_a_dependency,
    session_that_needs_the_lock,
    sold_while_it_streams,
    sold_by_a_generator,
    sold_in_the_background,
]


@pytest.mark.parametrize("build", BUILDS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("scope", [None, "function"])
async def test_fastapi_lock_and_session_in_any_order_lose_no_update(
    database: str, build: Build, scope: Any
) -> None:
    """The lock is held until the session has committed, wherever the two stand."""
    shop, app = Shop(database), FastAPI()
    fastapi.setup(app, aiolock.connect("memory://"))
    lock = fastapi.locked("stock:{item}", timeout=60)
    build(app, shop, lock, Depends(shop.transaction, scope=scope))
    await sell_all(app)
    assert left(database) == 0


@pytest.mark.parametrize("build", BUILDS[:6], ids=lambda build: build.__name__)
async def test_fastapi_lock_and_session_of_scope_function_lose_no_update(
    database: str, build: Build
) -> None:
    """The shorter lock is held until these have committed, in any order as well."""
    shop, app = Shop(database), FastAPI()
    fastapi.setup(app, aiolock.connect("memory://"))
    lock = fastapi.locked("stock:{item}", timeout=60, scope="function")
    build(app, shop, lock, Depends(shop.transaction, scope="function"))
    await sell_all(app)
    assert left(database) == 0


class OfHttp(BaseHTTPMiddleware):
    """A session of Starlette's middleware, which has a task of its own."""

    def __init__(self, app: Any, shop: Shop) -> None:
        super().__init__(app)
        self._shop = shop

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Commit when the response has begun."""
        async with self._shop.sessions.begin() as session:
            request.state.session = session
            return await call_next(request)


class OfAsgi:
    """A session of plain middleware, which commits when the response has been sent."""

    def __init__(self, app: Any, shop: Shop) -> None:
        self._app = app
        self._shop = shop

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """As any ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        async with self._shop.sessions.begin() as session:
            scope.setdefault("state", {})["session"] = session
            await self._app(scope, receive, send)


def of_fastapi(shop: Shop) -> FastAPI:
    """A path operation that has its session from middleware."""
    app = FastAPI()

    @app.post("/sales/{item}")
    async def sell(
        item: str,
        request: Request,
        lease: Annotated[Lease, fastapi.locked("stock:{item}", timeout=60)],
    ) -> None:
        await shop.sell(request.state.session)

    return app


def of_starlette(shop: Shop) -> Starlette:
    """So does an endpoint."""

    @starlette.locked("stock:{item}", timeout=60)
    async def sell(request: Request, lease: Lease) -> Response:
        await shop.sell(request.state.session)
        return Response()

    return Starlette(routes=[Route("/sales/{item}", sell, methods=["POST"])])


@pytest.mark.parametrize("middleware", [OfHttp, OfAsgi])
@pytest.mark.parametrize("framework", ["starlette", "fastapi"])
@pytest.mark.parametrize("before", [True, False])
async def test_lock_and_session_of_middleware_in_any_order_lose_no_update(
    database: str, framework: str, middleware: Any, *, before: bool
) -> None:
    """Middleware that commits when a path operation has returned has the lock, too."""
    shop = Shop(database)
    app = of_fastapi(shop) if framework == "fastapi" else of_starlette(shop)
    if before:
        app.add_middleware(middleware, shop=shop)
    setup = fastapi.setup if isinstance(app, FastAPI) else starlette.setup
    setup(app, aiolock.connect("memory://"))  # type: ignore[arg-type]  # each has its own
    if not before:
        app.add_middleware(middleware, shop=shop)
    await sell_all(app)
    assert left(database) == 0


@asynccontextmanager
async def example(name: str, database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[str]:
    """One of the examples, served by the command in its docstring; gives its URL."""
    monkeypatch.setenv("DATABASE_URL", database.replace("postgresql://", "postgresql+psycopg://"))
    monkeypatch.setenv("AIOLOCK_URL", "memory://")
    monkeypatch.setenv("PATH", sysconfig.get_path("scripts"), prepend=os.pathsep)
    usage = (EXAMPLES / f"sales_{name}.py").read_text("utf-8")
    (command,) = re.findall(rf"^    (.*\bsales_{name}:\w+)$", usage, re.MULTILINE)
    with hold_port() as port:
        host, number = port.getsockname()
        address = ["--port", str(number)]
        if command.startswith("hypercorn"):
            address = ["--bind", f"{host}:{number}"]
        process = await asyncio.create_subprocess_exec(
            *tied("env", *command.split(), *address),
            cwd=EXAMPLES.parent,
            stdout=DEVNULL,
            start_new_session=True,
        )

        def listens() -> bool:
            assert process.returncode is None
            with socket.socket() as tried:
                return tried.connect_ex((host, number)) == 0

        try:
            await until(listens, within=60)
            yield f"http://{host}:{number}"
        finally:
            # Hypercorn serves in a process of its own, which would go on without its parent.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


@pytest.mark.parametrize("framework", ["fastapi", "litestar", "quart", "aiohttp"])
async def test_sales_example_on_postgres_sells_each_item_once(
    database: str, framework: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the page of each framework shows: each item is sold once, and then no more."""
    async with (
        example(framework, database, monkeypatch) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as http,
    ):
        asked = (http.post("/items/tea/sales") for _ in range(REQUESTS))
        replies = await asyncio.gather(*asked)
        assert Counter(reply.status_code for reply in replies) == {201: REQUESTS}
        assert sorted(reply.json()["left"] for reply in replies) == list(range(REQUESTS))
        assert (await http.post("/items/tea/sales")).status_code == 409
    assert left(database) == 0
