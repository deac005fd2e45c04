"""Locks in Litestar: a plugin, and handlers that are decorated with `locked`.

::

    @post("/orders/{order:str}/payment")
    @locked("order:{order}", timeout=2)
    async def pay(order: FromPath[str], lease: Lease) -> None: ...


    app = Litestar([pay], plugins=[Locks(aiolock.connect("redis://localhost:6379/0"))])

It is a decorator and not a dependency, because Litestar may end dependencies in another task than
the handler's, and forgets those of a request whose next dependency fails.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeVar, Unpack, get_type_hints

from litestar import Litestar, Request, Response
from litestar.config.app import AppConfig
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.plugins import InitPlugin
from litestar.plugins.base import ReceiveRoutePlugin
from litestar.routes import BaseRoute

from aiolock import Lease, LockClient
from aiolock.integrations._asgi import Held, Interrupted, leases_of
from aiolock.integrations._functions import LEASE, Locked, checked_client
from aiolock.integrations._leases import SEND_TIMEOUT, LeaseScope, RequestLock
from aiolock.integrations._operations import document
from aiolock.integrations._problems import CONTENT_TYPE, ERRORS, problem
from aiolock.integrations._rates import RateOf
from aiolock.options import LockOptions, RateLimitOptions, Seconds

__all__ = ["Locks", "client_of", "locked", "rate_limited"]

R = TypeVar("R")

_KEY: Final = "aiolock"
_MARK: Final = "__aiolock__"
"""Where a handler, or a guard, says what it is under."""
_REQUEST: Final = "request"


class Locks(InitPlugin, ReceiveRoutePlugin):
    """Opens ``client`` with the application and closes it with it, and answers its errors.

    `StoreError` ends the start. Errors are answered with 409, 423, 429 or 503, unless the
    application has a handler of its own for one. A request that the server interrupts when it ends
    is answered with 503. The OpenAPI document has these answers for each handler with a lock or a
    rate limit.
    """

    def __init__(self, client: LockClient) -> None:
        self._client = checked_client(client)
        self._answered = set[type[Exception]]()

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Set up the application; called by Litestar."""
        config: Any = app_config  # Litestar and aiolock have different types for the same ASGI
        config.state[_KEY] = self._client
        config.lifespan.insert(0, self._opened)
        config.middleware[:0] = [Interrupted, Held]
        for error in ERRORS:
            if config.exception_handlers.setdefault(error, _answer) is _answer:
                self._answered.add(error)
        return app_config

    def receive_route(self, route: BaseRoute) -> None:
        """Document the answers of a route; called by Litestar."""
        document(route, _MARK, self._answered)

    @asynccontextmanager
    async def _opened(self, _: Litestar) -> AsyncGenerator[None]:
        async with self._client:
            yield


def client_of(request: ASGIConnection[Any, Any, Any, Any]) -> LockClient:
    """The client of the application that serves this request or WebSocket.

    `RuntimeError` if it has none.
    """
    client = request.app.state.get(_KEY)
    if isinstance(client, LockClient):
        return client
    raise RuntimeError("this application has no lock client: Litestar(plugins=[Locks(client)])")


def locked(
    template: str,
    *,
    scope: LeaseScope = "request",
    send_timeout: Seconds | None = SEND_TIMEOUT,
    **options: Unpack[LockOptions],
) -> Callable[[Callable[..., Awaitable[R]]], Callable[..., Coroutine[Any, Any, R]]]:
    """Decorate a handler, which gets the `Lease` if it has a parameter ``lease``.

    It stands below the decorator that makes the handler a route. It waits its turn, for 10 seconds
    at most unless ``timeout`` says otherwise; with ``timeout=0`` it does not wait. A client that
    closes the connection meanwhile leaves the queue. The lock is held until dependencies have
    ended, the response has been sent and all middleware has returned. A loss cancels
    what still runs of the request; a response that has begun is cut off. `Locks` answers its
    errors.

    :param template: the name, with parameters of the handler as fields: ``"order:{order}"``,
        whether they come from the path, the query or a dependency. `ValueError` for other fields. A
        request for which one is None is answered with 400.
    :param scope: ``"request"`` holds the lock until the request has ended: its response has been
        sent, and all that the framework does for it is done. ``"function"`` releases it before the
        response is sent, when the handler has returned, and before its dependencies end.
    :param send_timeout: seconds that the client may keep the lock waiting, in all, by sending its
        body or reading its response slowly; None waits as long as it takes. After that the request
        is cut off.
    """
    lock = RequestLock(template, scope=scope, send_timeout=send_timeout, **options)

    def decorate(handler: Callable[..., Awaitable[R]]) -> Callable[..., Coroutine[Any, Any, R]]:
        under_lock = Locked(lock, handler)
        own = under_lock.signature

        async def call(*args: Any, **kwargs: Any) -> R:
            request = kwargs[_REQUEST]
            if _REQUEST not in own.parameters:
                del kwargs[_REQUEST]
            return await under_lock.call(functools.partial(_held_for, request), args, kwargs)

        # The parameters that Litestar must give: all but the lease, and the request.
        kind = inspect.Parameter.KEYWORD_ONLY
        request = inspect.Parameter(_REQUEST, kind, annotation=Request[Any, Any, Any])
        parameters = {name: p for name, p in own.parameters.items() if name != LEASE}
        parameters.setdefault(_REQUEST, request)
        hints = get_type_hints(handler, include_extras=True)
        hints = {name: hint for name, hint in hints.items() if name != LEASE}
        hints.setdefault(_REQUEST, request.annotation)
        for name in ("__module__", "__name__", "__qualname__", "__doc__"):
            setattr(call, name, getattr(handler, name))
        call.__annotations__ = hints
        signature = own.replace(parameters=list(parameters.values()))
        setattr(call, _MARK, lock)
        call.__signature__ = signature  # type: ignore[attr-defined]  # what `inspect` looks for
        return call

    return decorate


def rate_limited(
    name: str,
    limit: int,
    *,
    who: Callable[[Request[Any, Any, Any]], str | Awaitable[str]] | None = None,
    **options: Unpack[RateLimitOptions],
) -> Callable[[ASGIConnection[Any, Any, Any, Any], BaseRouteHandler], Awaitable[None]]:
    """A guard, for a handler, a router or an application: so many requests in ``per`` seconds.

    It takes a token before it begins, from a bucket that all processes share: of each owner, if
    ``who`` gives one. A request that finds none is answered with 429 and ``Retry-After``, by
    `Locks`; with ``timeout=2`` it waits for one, in the queue, for two seconds at most, unless
    its client closes the connection.

    :param name: the name of the rate limit; the owner follows it.
    :param limit: how many requests may begin in ``per`` seconds; ``burst`` and the other options
        are those of `LockClient.rate_limit`.
    :param who: the owner of a request, given that: the user, the tenant, the address, as a str; no
        secret, for it is a part of the name. A request for which it gives None or an empty text is
        answered with 400. May be async. Without it, all requests have one bucket.
    """
    rate = RateOf[Request[Any, Any, Any]](name, limit, who, **options)

    async def guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        request: Any = connection
        # A guard is also for WebSockets, whose client is not watched.
        leases = leases_of(request.scope) if request.scope["type"] == "http" else None
        await rate.admit(client_of(request), request, leases)

    setattr(guard, _MARK, rate.rate)
    return guard


def _held_for(
    request: Request[Any, Any, Any], lock: RequestLock, values: dict[str, Any]
) -> AbstractAsyncContextManager[Lease]:
    scope: Any = request.scope  # Litestar has its own types of ASGI
    return lock.held_in(leases_of(scope), client_of(request), values)


def _answer(_: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    found = problem(error)
    return Response(
        found.body, status_code=found.status, headers=found.headers, media_type=CONTENT_TYPE
    )
