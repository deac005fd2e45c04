"""Locks in an aiohttp server: `setup` the application, and decorate handlers with `locked`.

::

    @locked("order:{order}", timeout=2)
    async def pay(request: web.Request, lease: Lease) -> web.Response: ...


    app = web.Application()
    app.router.add_post("/orders/{order}/payment", pay)
    setup(app, aiolock.connect("redis://localhost:6379/0"))
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar, Unpack

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from aiolock import ClientClosed, Lease, LockClient
from aiolock._locks.options import LockOptions
from aiolock.integrations._functions import checked_client
from aiolock.integrations._names import LockOf
from aiolock.integrations._problems import CONTENT_TYPE, ERRORS, problem
from aiolock.integrations._waiting import GONE, Disconnected, held

__all__ = ["KEY", "client_of", "locked", "setup"]

Response_co = TypeVar("Response_co", bound=web.StreamResponse, covariant=True)

KEY: Final = web.AppKey("aiolock", LockClient)
"""Where an application has its client: ``request.config_dict[KEY]``."""

_STOPPING: Final = web.AppKey("aiolock stopping", asyncio.Event)
_MARK: Final = "__aiolock__"
_LOOK_EVERY: Final = 0.25
"""Seconds: aiohttp tells no handler that its client has gone."""


def setup(app: web.Application, client: LockClient) -> None:
    """Open ``client`` with the application and close it with it, and answer its errors.

    `StoreError` ends the start. Errors are answered with 409, 423, 429 or 503. When the server is
    told to end, requests that wait get 503 at once, and those that hold a lock are left to the
    server's patience. Applications inside this one have all that, too.

    When the application starts, `ValueError` for a lock whose template needs what its path has not.
    """
    if KEY in app:
        raise ValueError("this application has been set up already")
    app[KEY] = checked_client(client)
    app.middlewares.insert(0, _answers())

    async def opened(app: web.Application) -> AsyncIterator[None]:
        _check(app)
        app[_STOPPING].clear()
        async with client:
            yield

    async def stop(app: web.Application) -> None:
        app[_STOPPING].set()

    app[_STOPPING] = asyncio.Event()
    app.cleanup_ctx.insert(0, opened)
    app.on_shutdown.insert(0, stop)


def client_of(request: web.Request) -> LockClient:
    """The client of the application that this request has come to; `RuntimeError` if none."""
    client = request.config_dict.get(KEY)
    if client is None:
        raise RuntimeError("this application has no lock client: call setup(app, client)")
    return client


def locked(
    template: str, *, query: Collection[str] = (), **options: Unpack[LockOptions]
) -> Callable[
    [Callable[[web.Request, Lease], Awaitable[Response_co]]],
    Callable[[web.Request], Coroutine[Any, Any, Response_co]],
]:
    """Decorate a handler, which is given the `Lease` after its request.

    It waits its turn, 10 seconds at most unless ``timeout`` says otherwise; with ``timeout=0``
    not at all. Who closes the connection meanwhile leaves the queue. The lock is given back when
    the handler has returned. A lock that is lost cancels the handler. `setup` answers what it
    raises.

    :param template: the name, with fields: ``"order:{order}"``. `ValueError` for other than plain
        fields.
    :param query: those fields that come from the query and not from the path. Without one of them,
        or with a value that makes no name, a request is answered with 400.
    """
    lock = LockOf(template, query, **options)

    def decorate(
        handler: Callable[[web.Request, Lease], Awaitable[Response_co]],
    ) -> Callable[[web.Request], Coroutine[Any, Any, Response_co]]:
        if not inspect.iscoroutinefunction(handler):
            raise TypeError(f"locked() decorates async functions, and {handler!r} is not one")

        @functools.wraps(handler)
        async def call(request: web.Request) -> Response_co:
            sources = dict.fromkeys(lock.query, request.query)
            values = {
                field: source[field]
                for field in lock.fields
                if field in (source := sources.get(field, request.match_info))
            }
            of_request = lock.on(client_of(request), values)
            async with held(of_request, functools.partial(_reason_to_leave, request)) as lease:
                return await handler(request, lease)

        setattr(call, _MARK, lock)
        return call

    return decorate


async def _reason_to_leave(request: web.Request) -> Exception:
    stopping = request.config_dict[_STOPPING]
    while not stopping.is_set():
        if request.transport is None or request.transport.is_closing():
            return Disconnected(GONE)
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_EVERY):
                await stopping.wait()
    return ClientClosed("this server is shutting down")


def _answers() -> Middleware:
    @web.middleware
    async def answers(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except ERRORS as error:
            found = problem(error)
            return web.Response(
                body=found.body,
                status=found.status,
                headers=found.headers,
                content_type=CONTENT_TYPE,
            )

    return answers


def _check(app: web.Application) -> None:
    """See that each path has what its locks need of it."""
    for route in app.router.routes():
        lock = getattr(route.handler, _MARK, None)
        if isinstance(lock, LockOf) and route.resource is not None:
            pattern = route.resource.get_info().get("pattern")
            known = pattern.groupindex if pattern is not None else ()
            lock.check_path(f"the path {route.resource.canonical!r}", tuple(known))
