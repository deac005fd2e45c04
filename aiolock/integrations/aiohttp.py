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
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Container,
    Coroutine,
)
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TypeVar, Unpack
from weakref import WeakSet

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.hdrs import METH_ALL
from aiohttp.typedefs import Handler, Middleware

from aiolock import ClientClosed, Lease, LockClient, connect
from aiolock.integrations._functions import check_async, check_parameters, checked_client
from aiolock.integrations._handling import LOOK_EVERY, carry_out, exchanged, leases_here
from aiolock.integrations._kept import (
    HEADER,
    LONGEST_BODY,
    BodyTooLong,
    check_options,
    fingerprint,
    key_of,
    once_of,
    owner,
)
from aiolock.integrations._leases import SEND_TIMEOUT, LeaseScope, RequestLock
from aiolock.integrations._names import LockOf
from aiolock.integrations._problems import CONTENT_TYPE, ERRORS, problem
from aiolock.integrations._rates import RateOf
from aiolock.integrations._waiting import GONE, Disconnected
from aiolock.options import LockOptions, RateLimitOptions, Seconds

__all__ = ["KEY", "client_of", "idempotent", "locked", "rate_limited", "setup"]

Response_co = TypeVar("Response_co", bound=web.StreamResponse, covariant=True)
Source = TypeVar("Source", bound=web.Request | web.View)
"""The first argument of a handler: its request or, for a method, its view."""

KEY: Final = web.AppKey("aiolock", LockClient)
"""The key of an application's client: ``request.config_dict[KEY]``."""

_log = logging.getLogger("aiolock.web")

_STOPPING: Final = web.AppKey("aiolock stopping", asyncio.Event)
_MARK: Final = "__aiolock__"


def setup(app: web.Application, client: LockClient) -> None:
    """Open ``client`` with the application and close it with it, and answer its errors.

    `StoreError` ends the start. Errors are answered with 409, 423, 429 or 503. When the server
    shuts down, requests that wait get 503 at once, and those that hold a lock may run as long as
    the server lets them. Applications inside this one have all that, too.

    When the application starts, a lock whose template needs a field that its path does not have
    raises `ValueError`.
    """
    if KEY in app:
        raise ValueError("this application has been set up already")
    app[KEY] = checked_client(client)
    begun = WeakSet[AbstractStreamWriter]()  # one for each request
    app.middlewares.insert(0, _answers(begun))

    async def opened(app: web.Application) -> AsyncIterator[None]:
        _check(app)
        app[_STOPPING].clear()
        async with client:
            yield

    async def stop(app: web.Application) -> None:
        app[_STOPPING].set()

    async def begins(request: web.Request, _: web.StreamResponse) -> None:
        begun.add(request.writer)

    app[_STOPPING] = asyncio.Event()
    app.on_response_prepare.insert(0, begins)
    app.cleanup_ctx.insert(0, opened)
    app.on_shutdown.insert(0, stop)


def client_of(request: web.Request) -> LockClient:
    """The client of the application that serves this request; `RuntimeError` if it has none."""
    client = request.config_dict.get(KEY)
    if client is None:
        raise RuntimeError("this application has no lock client: call setup(app, client)")
    return client


def locked(
    template: str,
    *,
    query: Collection[str] = (),
    scope: LeaseScope = "request",
    send_timeout: Seconds | None = SEND_TIMEOUT,
    **options: Unpack[LockOptions],
) -> Callable[
    [Callable[[Source, Lease], Awaitable[Response_co]]],
    Callable[[Source], Coroutine[Any, Any, Response_co]],
]:
    """Decorate a handler, which is given the `Lease` after its request.

    In a `web.View`, it decorates the methods: ``async def post(self, lease)``.

    It waits its turn, for 10 seconds at most unless ``timeout`` says otherwise; with ``timeout=0``
    it does not wait. A client that closes the connection meanwhile leaves the queue. The lock is
    held until all middleware has returned and the response has been sent. The loss of the lock
    cancels what still runs of the request; a response that has begun is cut off. `setup` answers
    its errors.

    :param template: the name, with fields: ``"order:{order}"``. `ValueError` for other than plain
        fields. A field is the text that ``request.match_info`` has.
    :param query: the fields that come from the query and not from the path. A request without one
        of them, or with a value that makes no valid name, is answered with 400.
    :param scope: ``"request"`` holds the lock until the request has ended: its response has been
        sent, and all that the framework does for it is done. ``"function"`` releases it before the
        response is sent, when the handler has returned.
    :param send_timeout: seconds that the client may keep the lock waiting, in all, by sending its
        body or reading its response slowly; None waits as long as it takes. After that the request
        is cut off.
    """
    lock = RequestLock(template, query, scope=scope, send_timeout=send_timeout, **options)

    def decorate(
        handler: Callable[[Source, Lease], Awaitable[Response_co]],
    ) -> Callable[[Source], Coroutine[Any, Any, Response_co]]:
        check_async(handler)
        check_parameters(handler, "request", "lease")

        @functools.wraps(handler)
        async def call(source: Source) -> Response_co:
            request = _request_of(source)
            values = lock.values(request.match_info, request.query)
            client = client_of(request)
            async with lock.held_in(leases_here(), client, values) as lease:
                return await handler(source, lease)

        setattr(call, _MARK, lock)
        return call

    return decorate


def idempotent(
    *,
    application: str,
    remember: float | timedelta,
    who: Callable[[web.Request], str | Awaitable[str]],
    required: bool = False,
) -> Callable[
    [Callable[[Source], Awaitable[web.StreamResponse]]],
    Callable[[Source], Coroutine[Any, Any, web.StreamResponse]],
]:
    """Decorate a handler: of requests with one ``Idempotency-Key``, one is carried out.

    It does what `aiolock.integrations.idempotency.Idempotency` does in other frameworks: the first
    request gets its response, and that is kept; the others get the same. A `web.StreamResponse`
    that the handler sends by itself is not kept, nor a body of more than 48 KiB: others then get
    409. It stands above `locked`. In a `web.View`, it decorates the methods. `setup` answers its
    errors.

    :param application: the name of the application that the key belongs to; see `Idempotency`.
    :param remember: seconds for which a response is kept.
    :param who: the owner of the key, given the request: the user or the tenant, as a str. May be
        async. A request for which it gives anything else raises `TypeError`.
    :param required: whether a request without a key is answered with 400; if not, it is carried out
        as ever.
    """
    check_options(connect("memory://"), application, remember)

    def decorate(
        handler: Callable[[Source], Awaitable[web.StreamResponse]],
    ) -> Callable[[Source], Coroutine[Any, Any, web.StreamResponse]]:
        check_async(handler, "idempotent")
        # What `locked` made of a function with a lease is called without one.
        check_parameters(handler, "request", follow_wrapped=False)

        @functools.wraps(handler)
        async def call(source: Source) -> web.StreamResponse:
            request = _request_of(source)
            key = key_of(request.headers.getall(HEADER, []), required=required)
            if key is None:
                return await handler(source)
            # First: `who` may read the form, and that leaves nothing to be read.
            headers, body = list(request.headers.items()), await _read(request)
            whose = await owner(who(request))
            asked = fingerprint(request.method, request.raw_path, headers, body)
            once = once_of(client_of(request).once, application, whose, key, remember)
            return await exchanged(once, asked, functools.partial(handler, source), headers)

        return call

    return decorate


def _request_of(source: web.Request | web.View) -> web.Request:
    return source.request if isinstance(source, web.View) else source


async def _read(request: web.Request) -> bytes:
    """The request's body, which the handler can read as well; `BodyTooLong` if it is."""
    body = b"" if (request.content_length or 0) > LONGEST_BODY else await request.read()
    if max(request.content_length or 0, len(body)) > LONGEST_BODY:
        raise BodyTooLong(f"a request under a key has more than {LONGEST_BODY} bytes")
    if body:
        # `multipart()` and `content` would find nothing: only `read()` remembers what it has read.
        # The limit is one that is not reached: the connection is not to be paused.
        content = StreamReader(request.protocol, len(body), loop=asyncio.get_running_loop())
        content.feed_data(body)
        content.feed_eof()
        request._payload = content
    return body


async def _reason_to_leave(request: web.Request) -> Exception:
    stopping = request.config_dict[_STOPPING]
    while not stopping.is_set():
        if request.transport is None or request.transport.is_closing():
            return Disconnected(GONE)
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_EVERY):
                await stopping.wait()
    return ClientClosed("this server is shutting down", closed=True)


def rate_limited(
    name: str,
    limit: int,
    *,
    who: Callable[[web.Request], str | Awaitable[str]] | None = None,
    **options: Unpack[RateLimitOptions],
) -> Callable[
    [Callable[[Source], Awaitable[Response_co]]],
    Callable[[Source], Coroutine[Any, Any, Response_co]],
]:
    """Decorate a handler: not more than ``limit`` requests in ``per`` seconds.

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
    rate = RateOf[web.Request](name, limit, who, **options)

    def decorate(
        handler: Callable[[Source], Awaitable[Response_co]],
    ) -> Callable[[Source], Coroutine[Any, Any, Response_co]]:
        check_async(handler, "rate_limited")
        check_parameters(handler, "request", follow_wrapped=False)

        @functools.wraps(handler)
        async def call(source: Source) -> Response_co:
            request = _request_of(source)
            await rate.admit(client_of(request), request, leases_here())
            return await handler(source)

        return call

    return decorate


def _answers(begun: Container[AbstractStreamWriter]) -> Middleware:
    @web.middleware
    async def answers(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await carry_out(request, handler, functools.partial(_reason_to_leave, request))
        except ERRORS as error:
            if request.writer in begun:
                if isinstance(error, TimeoutError):  # aiohttp does not log which
                    _log.warning("cut off a response that had begun: %s", error)
                raise  # the response has begun, so the connection is closed
            found = problem(error)
            return web.Response(
                body=found.body,
                status=found.status,
                headers=found.headers,
                content_type=CONTENT_TYPE,
            )

    return answers


def _check(app: web.Application) -> None:
    """Check that each path has all fields that its locks need of it."""
    for route in app.router.routes():
        if route.resource is None:
            continue
        pattern = route.resource.get_info().get("pattern")
        known = pattern.groupindex if pattern is not None else ()
        # A view may have a handler for each method.
        methods = [getattr(route.handler, method.lower(), None) for method in METH_ALL]
        for handler in (route.handler, *methods):
            lock = getattr(handler, _MARK, None)
            if isinstance(lock, LockOf):
                lock.check_path(f"the path {route.resource.canonical!r}", tuple(known))
