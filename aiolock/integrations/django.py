"""Locks in asynchronous views of Django, under an ASGI server.

::

    # settings.py
    AIOLOCK = {"target": "redis://localhost:6379/0", "ttl": 10}

    # asgi.py
    application = with_locks(get_asgi_application())


    # views.py
    @locked("order:{order}", timeout=2)
    async def pay(request: HttpRequest, order: str, lease: Lease) -> HttpResponse: ...
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar, Unpack

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse
from django.http.response import HttpResponseBase

from aiolock import Lease, LockClient, connect
from aiolock.integrations._asgi import App, Interrupted, Message, Receive, Scope, Send
from aiolock.integrations._functions import Locked, check_async
from aiolock.integrations._names import LockOf
from aiolock.integrations._problems import CONTENT_TYPE, ERRORS, problem
from aiolock.integrations._waiting import held
from aiolock.options import LockOptions
from aiolock.sync.transactions import ignore_transactions, refuse_in_transaction

__all__ = ["client", "close", "ignore_transactions", "locked", "with_locks"]

R = TypeVar("R", bound=HttpResponseBase)

# Weak references would not help: a client refers to its loop.
_clients: Final = dict[asyncio.AbstractEventLoop, LockClient]()


async def client() -> LockClient:
    """The client of the running event loop, opened by the first call.

    `StoreError` when the store cannot be used. `RuntimeError` within a transaction, as of a
    middleware, or of a view that uses `async_to_sync`: it would be committed without the lock (see
    `ignore_transactions`). It is closed by `with_locks`, or by `close`.
    """
    # In the thread in which the `sync_to_async` of this request runs.
    await sync_to_async(refuse_in_transaction)("client()")
    return await _client()


async def _client() -> LockClient:
    loop = asyncio.get_running_loop()
    found = _clients.get(loop)
    if found is None:
        options = dict(getattr(settings, "AIOLOCK", None) or {})
        if "target" not in options:
            raise ImproperlyConfigured('settings.AIOLOCK must be {"target": URL, ...}')
        for other in [other for other in list(_clients) if other.is_closed()]:
            _clients.pop(other, None)  # a client of a closed loop cannot be used or closed
        found = _clients[loop] = connect(options.pop("target"), **options)
    await found.open()
    return found


async def close() -> None:
    """Close the client of the running event loop, if any; the next `client` opens it again."""
    found = _clients.pop(asyncio.get_running_loop(), None)
    if found is not None:
        await found.aclose()


def with_locks(application: Callable[..., Awaitable[None]]) -> App:
    """Wrap the ASGI application: the client is opened at the start and closed at the end.

    `StoreError` ends the start, if the server speaks the lifespan protocol. An application that
    speaks it, too (Django's own does not), starts when the client is open and ends before it is
    closed. A request that the server interrupts when it ends is answered with 503.
    """
    inner = Interrupted(application)

    async def with_lifespan(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _Lifespan(receive, send).run(application, scope)
        else:
            await inner(scope, receive, send)

    return with_lifespan


class _Lifespan:
    """The lifespan of the client, around that of the application, if it has one."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._startup: Message | None = None
        self._heard = self._said = False

    async def run(self, application: Callable[..., Awaitable[None]], scope: Scope) -> None:
        self._startup = await self._receive()
        try:
            await _client()
            await self._with(application, scope)
        except Exception as error:
            if self._said:
                raise
            await self._say({"type": "lifespan.startup.failed", "message": str(error)})
        finally:
            await close()

    async def _with(self, application: Callable[..., Awaitable[None]], scope: Scope) -> None:
        try:
            await application(scope, self._hear, self._say)
        except Exception:
            if self._heard:
                raise
        if not self._said:  # the application does not speak the protocol
            await self._say({"type": "lifespan.startup.complete"})
            await self._receive()
            await self._say({"type": "lifespan.shutdown.complete"})

    async def _hear(self) -> Message:
        self._heard = True
        startup, self._startup = self._startup, None
        return startup or await self._receive()

    async def _say(self, message: Message) -> None:
        self._said = True
        if message["type"] != "lifespan.startup.complete":
            await close()
        await self._send(message)


def locked(
    template: str, **options: Unpack[LockOptions]
) -> Callable[[Callable[..., Awaitable[R]]], Callable[..., Coroutine[Any, Any, R | HttpResponse]]]:
    """Decorate an asynchronous view, which gets the `Lease` if it has a parameter ``lease``.

    It waits its turn, for 10 seconds at most unless ``timeout`` says otherwise; with ``timeout=0``
    it does not wait. Django cancels a view whose client has gone: that leaves the queue, or
    releases the lock. The loss of the lock cancels the view. The decorator itself answers errors of
    aiolock, with 409, 423, 429 or 503. In a class, it decorates the methods.

    The lock is released when the view has returned, its template, if any, has been rendered, and
    what it runs in Django's thread (`sync_to_async`, the ORM) has ended, also if the view was
    cancelled. A client that reads slowly does not hold it. So there are two `RuntimeError`: for a
    streaming response, which would be sent without the lock, and within a transaction, as of a
    middleware, which would be committed without it.

    :param template: the name, with parameters of the view as fields: ``"order:{order}"``.
        `ValueError` for other fields. A request for which one is None is answered with 400.
    """
    lock = LockOf(template, **options)

    def decorate(
        view: Callable[..., Awaitable[R]],
    ) -> Callable[..., Coroutine[Any, Any, R | HttpResponse]]:
        check_async(view)
        under_lock = Locked(lock, _whole(view))

        @functools.wraps(view)
        async def call(*args: Any, **kwargs: Any) -> R | HttpResponse:
            try:
                return await under_lock.call(_hold, args, kwargs)
            except ERRORS as error:
                found = problem(error)
                return HttpResponse(
                    found.body,
                    status=found.status,
                    headers=found.headers,
                    content_type=CONTENT_TYPE,
                )

        return call

    return decorate


@asynccontextmanager
async def _hold(lock: LockOf, values: dict[str, Any]) -> AsyncGenerator[Lease]:
    await sync_to_async(refuse_in_transaction)(lock)
    async with held(lock.on(await _client(), values)) as lease:
        try:
            yield lease
        finally:
            await _end_of_thread_work()


def _whole(view: Callable[..., Awaitable[R]]) -> Callable[..., Coroutine[Any, Any, R]]:
    """The view, with a response of which nothing is left to be done."""

    @functools.wraps(view)
    async def call(*args: Any, **kwargs: Any) -> R:
        response = await view(*args, **kwargs)
        if getattr(response, "streaming", False):
            closers: list[Callable[[], object]] = getattr(response, "_resource_closers", [])
            for close_resource in closers:  # not `close`: it would signal the end of the request
                close_resource()
            raise RuntimeError(
                f"{view.__qualname__}() is under a lock, and its response is a stream, which would"
                " be sent without the lock: return the whole response, or take the lock in the"
                " generator that makes the stream"
            )
        render = getattr(response, "render", None)
        if callable(render):
            await sync_to_async(render)()
        return response

    return call


async def _end_of_thread_work() -> None:
    """Return when the view's `sync_to_async` has ended: a cancellation does not end a thread."""
    # There is one thread for it, which does one thing after the other.
    ending = asyncio.ensure_future(sync_to_async(bool)())
    cancelled: asyncio.CancelledError | None = None
    while not ending.done():
        try:
            await asyncio.wait([ending])
        except asyncio.CancelledError as error:
            cancelled = error
    if not ending.cancelled():
        ending.exception()  # the thread, as that of a middleware, may have ended
    if cancelled is not None:
        raise cancelled
