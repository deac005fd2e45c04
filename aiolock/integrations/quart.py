"""Locks in Quart: `setup` the application, and decorate views with `locked`.

::

    app = Quart(__name__)
    setup(app, aiolock.connect("redis://localhost:6379/0"))


    @app.post("/orders/<order>/payment")
    @locked("order:{order}", timeout=2)
    async def pay(order: str, lease: Lease) -> str: ...
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeVar, Unpack

from quart import Quart, Request, Response, current_app, has_request_context, request

from aiolock import Lease, LockClient
from aiolock.integrations._asgi import Held, Interrupted, leases_of
from aiolock.integrations._functions import Locked, check_async, checked_client
from aiolock.integrations._leases import SEND_TIMEOUT, LeaseScope, RequestLock
from aiolock.integrations._problems import CONTENT_TYPE, ERRORS, problem
from aiolock.integrations._rates import RateOf
from aiolock.options import LockOptions, RateLimitOptions, Seconds

__all__ = ["current_client", "locked", "rate_limited", "setup"]

R = TypeVar("R")

_KEY: Final = "aiolock"


def setup(app: Quart, client: LockClient) -> None:
    """Open ``client`` with the application and close it with it, and answer its errors.

    `StoreError` ends the start. Errors are answered with 409, 423, 429 or 503, unless the
    application has a handler of its own for one. A request that the server interrupts when it ends
    is answered with 503.
    """
    if _KEY in app.extensions:
        raise ValueError("this application has been set up already")
    app.extensions[_KEY] = checked_client(client)
    app.before_serving_funcs.insert(0, client.open)
    app.after_serving_funcs.append(client.aclose)
    for error in ERRORS:
        if error not in app.error_handler_spec[None][None]:
            app.register_error_handler(error, _answer)
    app.asgi_http_class = _ending_leases(app.asgi_http_class)
    # Quart itself looks whether a client is there.
    held = Held(app.asgi_app, looks=False)
    app.asgi_app = Interrupted(held)  # type: ignore[assignment]  # any ASGI app


def _ending_leases(connection: Any) -> Any:
    """The class of connections, but a loss also ends the task that makes and sends a response."""

    class Connection(connection):  # type: ignore[misc]  # of any class that the application has
        async def handle_request(self, request: Any, send: Any) -> None:
            async with leases_of(request.scope).body():
                await connection.handle_request(self, request, send)

    return Connection


def current_client() -> LockClient:
    """The client of the current application; `RuntimeError` if it has none."""
    client = current_app.extensions.get(_KEY)
    if isinstance(client, LockClient):
        return client
    raise RuntimeError("this application has no lock client: call setup(app, client)")


def locked(
    template: str,
    *,
    scope: LeaseScope = "request",
    send_timeout: Seconds | None = SEND_TIMEOUT,
    **options: Unpack[LockOptions],
) -> Callable[[Callable[..., Awaitable[R]]], Callable[..., Coroutine[Any, Any, R]]]:
    """Decorate a view, which gets the `Lease` if it has a parameter ``lease``.

    It waits its turn, for 10 seconds at most unless ``timeout`` says otherwise; with ``timeout=0``
    it does not wait. Quart cancels a view whose client has gone: that leaves the queue, or releases
    the lock. The lock is held until the response has been sent. The loss of the lock cancels what
    still runs of the request; a response that has begun is cut off. `setup` answers its errors.

    :param template: the name, with parameters of the view as fields: ``"order:{order}"``.
        `ValueError` for other fields. A request for which one is None is answered with 400.
    :param scope: ``"request"`` holds the lock until the request has ended: its response has been
        sent, and all that the framework does for it is done. ``"function"`` releases it before the
        response is sent, when the view has returned.
    :param send_timeout: seconds that sending the response may keep the lock waiting for its client,
        in all; None waits as long as it takes. After that the response is cut off.
    """
    lock = RequestLock(template, scope=scope, send_timeout=send_timeout, **options)

    def decorate(view: Callable[..., Awaitable[R]]) -> Callable[..., Coroutine[Any, Any, R]]:
        under_lock = Locked(lock, view)

        @functools.wraps(view)
        async def call(*args: Any, **kwargs: Any) -> R:
            return await under_lock.call(_hold, args, kwargs)

        return call

    return decorate


def rate_limited(
    name: str,
    limit: int,
    *,
    who: Callable[[Request], str | Awaitable[str]] | None = None,
    **options: Unpack[RateLimitOptions],
) -> Callable[[Callable[..., Awaitable[R]]], Callable[..., Coroutine[Any, Any, R]]]:
    """Decorate a view: not more than ``limit`` requests in ``per`` seconds.

    It takes a token before it begins, from a bucket that all processes share: of each owner, if
    ``who`` gives one. A request that finds none is answered with 429 and ``Retry-After``, by
    `setup`; with ``timeout=2`` it waits for one, in the queue, for two seconds at most.

    :param name: the name of the rate limit; the owner follows it.
    :param limit: how many requests may begin in ``per`` seconds; ``burst`` and the other options
        are those of `LockClient.rate_limit`.
    :param who: the owner of a request, given that: the user, the tenant, the address, as a str; no
        secret, for it is a part of the name. A request for which it gives None or an empty text is
        answered with 400. May be async. Without it, all requests have one bucket.
    """
    rate = RateOf[Request](name, limit, who, **options)

    def decorate(view: Callable[..., Awaitable[R]]) -> Callable[..., Coroutine[Any, Any, R]]:
        check_async(view, "rate_limited")

        @functools.wraps(view)
        async def call(*args: Any, **kwargs: Any) -> R:
            scope: Any = request.scope  # Hypercorn has its own types of ASGI
            await rate.admit(current_client(), request, leases_of(scope))
            return await view(*args, **kwargs)

        return call

    return decorate


def _hold(lock: RequestLock, values: dict[str, Any]) -> AbstractAsyncContextManager[Lease]:
    if not has_request_context():
        raise RuntimeError(
            "locked() is for requests. In the handler of a WebSocket, take the lock where it is"
            " needed: async with current_client().lock(...)"
        )
    scope: Any = request.scope  # Hypercorn has its own types of ASGI
    return lock.held_in(leases_of(scope), current_client(), values)


async def _answer(error: Exception) -> Response:
    found = problem(error)
    return Response(found.body, found.status, found.headers, content_type=CONTENT_TYPE)
