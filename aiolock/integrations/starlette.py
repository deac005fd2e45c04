"""Locks in Starlette: `setup` the application, and decorate endpoints with `locked`.

::

    @locked("order:{order}", timeout=2)
    async def pay(request: Request, lease: Lease) -> Response: ...


    app = Starlette(routes=[Route("/orders/{order}/payment", pay, methods=["POST"])])
    setup(app, aiolock.connect("redis://localhost:6379/0"))
"""

from __future__ import annotations

import functools
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
)
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Final, TypeVar, Unpack

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute, compile_path
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from aiolock import Lease, LockClient, connect
from aiolock.integrations._asgi import Held, Interrupted, leases_of
from aiolock.integrations._exchange import Exchanges, begin, exchange_of, keys_in
from aiolock.integrations._functions import check_async, check_parameters, checked_client
from aiolock.integrations._kept import check_options, key_of, once_of, owner
from aiolock.integrations._leases import SEND_TIMEOUT, LeaseScope, RequestLock
from aiolock.integrations._names import LockOf
from aiolock.integrations._problems import CONTENT_TYPE, ERRORS, problem
from aiolock.integrations._rates import RateOf
from aiolock.options import LockOptions, RateLimitOptions, Seconds

__all__ = ["client_of", "idempotent", "locked", "rate_limited", "setup"]

R = TypeVar("R")

_TRY_AGAIN: Final = 1013
_FAILED: Final = 1011
"""Codes with which a WebSocket is closed after an error."""

MARK: Final = "__aiolock__"
"""Where an endpoint, or a dependency, says what it is under."""
NO_HTTP: Final = (
    "a WebSocket, which is no request that could wait, or be answered: take the lock in it,"
    " client_of(websocket).lock(...)"
)


def setup(app: Starlette, client: LockClient) -> None:
    """Open ``client`` with the application and close it with it, and answer its errors.

    The client opens before the application's own lifespan begins, and closes when that has ended:
    `StoreError` ends the start. Errors are answered with 409, 423, 429 or 503, unless the
    application has a handler of its own for one. A request that the server interrupts when it ends
    is answered with 503. An application that is mounted in another has handlers of its own: set
    that up too, with the same client.

    When the application starts, a lock whose template needs a field that its path does not have
    raises `ValueError`.
    """
    set_up(app, client, _locks_of_route)


LocksOf = Callable[[BaseRoute], Iterable[tuple[LockOf, str]]]
"""The locks of a route, each with its path."""


def set_up(
    app: Starlette,
    client: LockClient,
    locks_of: LocksOf,
    document: Callable[[], None] = lambda: None,
) -> None:
    """`setup`, for a framework that finds the locks of its routes, and documents them."""
    if hasattr(app.state, "aiolock"):
        raise ValueError("this application has been set up already")
    app.state.aiolock = checked_client(client)
    for error in ERRORS:
        app.exception_handlers.setdefault(error, _answer)
    app.router.middleware_stack = Exchanges(Held(app.router.middleware_stack))
    document()
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(started: Any) -> AsyncGenerator[Any]:
        check(app.routes, locks_of)
        _wrap_all_middleware(app)
        document()  # again, if the application has replaced its document since
        async with client, inner(started) as state:
            yield state

    app.router.lifespan_context = lifespan


def _wrap_all_middleware(app: Starlette) -> None:
    """Put `Interrupted` and `Held` around all middleware.

    Some of it hides an interruption, and some of it ends what must end before the locks, such as a
    transaction.
    """
    stack = app.middleware_stack or app.build_middleware_stack()
    if not isinstance(stack, Interrupted):
        # It is the inner one, around the routes, that looks for the client.
        app.middleware_stack = Interrupted(Held(stack, looks=False))


def client_of(connection: HTTPConnection) -> LockClient:
    """The client of the application that serves this request; `RuntimeError` if it has none."""
    client = getattr(connection.app.state, "aiolock", None)
    if isinstance(client, LockClient):
        return client
    raise RuntimeError("this application has no lock client: call setup(app, client)")


def locked(
    template: str,
    *,
    query: Collection[str] = (),
    scope: LeaseScope = "request",
    send_timeout: Seconds | None = SEND_TIMEOUT,
    **options: Unpack[LockOptions],
) -> Callable[
    [Callable[[Request, Lease], Awaitable[R]]], Callable[[Request], Coroutine[Any, Any, R]]
]:
    """Decorate an endpoint, which is given the `Lease` after its request.

    It waits its turn, for 10 seconds at most unless ``timeout`` says otherwise; with ``timeout=0``
    it does not wait. A client that closes the connection meanwhile leaves the queue. The lock is
    held until the response has been sent and all middleware has returned. The loss of the lock
    cancels what still runs of the request; a response that has begun is cut off. `setup` answers
    its errors.

    :param template: the name, with fields: ``"order:{order}"``. `ValueError` for other than plain
        fields. Fields of the path are as their converters make them: ``{order:uuid}``.
    :param query: the fields that come from the query and not from the path. A request without one
        of them, or with a value that makes no valid name, is answered with 400.
    :param scope: ``"request"`` holds the lock until the request has ended: its response has been
        sent, and all that the framework does for it is done. ``"function"`` releases it before the
        response is sent, when the endpoint has returned.
    :param send_timeout: seconds that the client may keep the lock waiting, in all, by sending its
        body or reading its response slowly; None waits as long as it takes. After that the request
        is cut off.
    """
    lock = RequestLock(template, query, scope=scope, send_timeout=send_timeout, **options)

    def decorate(
        endpoint: Callable[[Request, Lease], Awaitable[R]],
    ) -> Callable[[Request], Coroutine[Any, Any, R]]:
        check_async(endpoint)
        check_parameters(endpoint, "request", "lease")

        @functools.wraps(endpoint)
        async def call(request: Request) -> R:
            values = lock.values(request.path_params, request.query_params)
            client = client_of(request)
            async with lock.held_in(leases_of(request.scope), client, values) as lease:
                return await endpoint(request, lease)

        setattr(call, MARK, lock)
        return call

    return decorate


def idempotent(
    *,
    application: str,
    remember: float | timedelta,
    who: Callable[[Request], str | Awaitable[str]],
    required: bool = False,
) -> Callable[[Callable[[Request], Awaitable[R]]], Callable[[Request], Coroutine[Any, Any, R]]]:
    """Decorate an endpoint: of requests with one ``Idempotency-Key``, one is carried out.

    It does what `aiolock.integrations.idempotency.Idempotency` does, for one route: the first
    request gets its response, and that is kept; the others get the same. It stands above `locked`.
    `setup` answers its errors.

    :param application: the name of the application that the key belongs to; see `Idempotency`.
    :param remember: seconds for which a response is kept.
    :param who: the owner of the key, given the request: the user or the tenant, as a str. May be
        async. A request for which it gives anything else raises `TypeError`.
    :param required: whether a request without a key is answered with 400; if not, it is carried out
        as ever.
    """
    check_options(connect("memory://"), application, remember)

    def decorate(
        endpoint: Callable[[Request], Awaitable[R]],
    ) -> Callable[[Request], Coroutine[Any, Any, R]]:
        check_async(endpoint, "idempotent")
        # What `locked` made of a function with a lease is called without one.
        check_parameters(endpoint, "request", follow_wrapped=False)

        @functools.wraps(endpoint)
        async def call(request: Request) -> R:
            key = key_of(keys_in(request.scope), required=required)
            if key is None:
                return await endpoint(request)
            whose = await owner(who(request))
            once = once_of(client_of(request).once, application, whose, key, remember)
            await begin(request.scope, once)
            response = await endpoint(request)
            if isinstance(response, Response) and response.background is not None:
                exchange_of(request.scope).afterwards.append(response.background)
                response.background = None
            return response

        return call

    return decorate


def rate_limited(
    name: str,
    limit: int,
    *,
    who: Callable[[Request], str | Awaitable[str]] | None = None,
    **options: Unpack[RateLimitOptions],
) -> Callable[[Callable[[Request], Awaitable[R]]], Callable[[Request], Coroutine[Any, Any, R]]]:
    """Decorate an endpoint: not more than ``limit`` requests in ``per`` seconds.

    It takes a token before it begins, from a bucket that all processes share: of each owner, if
    ``who`` gives one. A request that finds none is answered with 429 and ``Retry-After``, by
    `setup`; with ``timeout=2`` it waits for one, in the queue, for two seconds at most, unless
    its client closes the connection. It stands above `locked`.

    :param name: the name of the rate limit; the owner follows it.
    :param limit: how many requests may begin in ``per`` seconds; ``burst`` and the other options
        are those of `LockClient.rate_limit`.
    :param who: the owner of a request, given that: the user, the tenant, the address, as a str; no
        secret, for it is a part of the name. A request for which it gives None or an empty text is
        answered with 400. May be async. Without it, all requests have one bucket.
    """
    rate = RateOf[Request](name, limit, who, **options)

    def decorate(
        endpoint: Callable[[Request], Awaitable[R]],
    ) -> Callable[[Request], Coroutine[Any, Any, R]]:
        check_async(endpoint, "rate_limited")
        check_parameters(endpoint, "request", follow_wrapped=False)

        @functools.wraps(endpoint)
        async def call(request: Request) -> R:
            await rate.admit(client_of(request), request, leases_of(request.scope))
            return await endpoint(request)

        return call

    return decorate


def answered(app: Starlette) -> set[type[Exception]]:
    """The errors for which the application has no handler of its own."""
    handlers: dict[Any, Any] = dict(app.exception_handlers)
    return {error for error in ERRORS if handlers.get(error) is _answer}


async def _answer(connection: HTTPConnection, error: Exception) -> Any:
    found = problem(error)
    if (
        isinstance(connection, WebSocket)
        and connection.application_state is not WebSocketState.CONNECTING
    ):  # it was accepted, so it cannot get a response
        with suppress(WebSocketDisconnect, RuntimeError):  # it is closed already
            await connection.close(_TRY_AGAIN if found.retry_after else _FAILED, found.code)
        return None
    return Response(found.body, found.status, found.headers, CONTENT_TYPE)


def check(
    routes: Iterable[BaseRoute],
    locks_of: LocksOf,
    prefix: str = "",
) -> None:
    """Check that each path has what its locks need of it; the prefix is that of a mount."""
    for route in routes:
        for lock, path in locks_of(route):
            lock.check_path(f"the path {prefix + path!r}", compile_path(prefix + path)[2])
        if isinstance(route, Mount):
            check(route.routes or (), locks_of, prefix + route.path)


def _locks_of_route(route: BaseRoute) -> Iterator[tuple[LockOf, str]]:
    if isinstance(route, Route | WebSocketRoute):
        lock = getattr(route.endpoint, MARK, None)
        if isinstance(lock, LockOf):
            if isinstance(route, WebSocketRoute):
                raise TypeError(f"{route.path!r} holds a lock, {lock.template!r}, round {NO_HTTP}")
            yield lock, route.path
