"""The handling of a request in aiohttp, from before all middleware until its response is sent.

aiohttp sends a response when its handler and all middleware have returned. What a handler takes or
asks for (a lock, to be the first with a key) is to last until then, so the handler only registers
it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from aiohttp import BytesPayload, web
from aiohttp.hdrs import CONTENT_LENGTH
from aiohttp.typedefs import Handler
from multidict import CIMultiDict

from aiolock import Lease, LeaseLost, Once, StoreError
from aiolock.integrations._exchange import end, wait_or_end
from aiolock.integrations._kept import (
    HEADER,
    LONGEST_RESPONSE,
    REPLAYED,
    Headers,
    NotToBeKept,
    Recorded,
    is_to_be_tried_again,
    kept,
)
from aiolock.integrations._leases import RequestLeases, SlowClient
from aiolock.integrations._waiting import ReasonToLeave

LOOK_EVERY: Final = 0.25
"""Seconds between checks for the client: aiohttp notifies no handler of a disconnect."""

_leases: Final = ContextVar[RequestLeases | None]("aiolock.leases", default=None)
_exchange: Final = ContextVar["Exchange | None"]("aiolock.exchange", default=None)
# Not in the request: middleware may give a clone of it to the next.

_log = logging.getLogger("aiolock.web")


def leases_here() -> RequestLeases:
    """The leases of the request that is being handled."""
    leases = _leases.get()
    if leases is None:
        raise RuntimeError("this application has not been set up: call setup(app, client)")
    return leases


async def carry_out(
    request: web.Request, handler: Handler, reason_to_leave: ReasonToLeave
) -> web.StreamResponse:
    """Handle a request, and send its response if it holds a lease: leases end with this."""
    if _leases.get() is not None:
        return await handler(request)  # an application round this one does it
    leases = RequestLeases()
    token = _leases.set(leases)
    try:
        async with leases.body(reason_to_leave):
            with _bounded(request, leases):
                if HEADER in request.headers:
                    response = await Exchange().run(functools.partial(handler, request))
                else:
                    response = await handler(request)
                if leases.bound is not None and isinstance(response, web.StreamResponse):
                    await _send(request, response, leases)
            return response
    finally:
        _leases.reset(token)


async def _send(request: web.Request, response: web.StreamResponse, leases: RequestLeases) -> None:
    """Send a response as aiohttp does: then it finds that this has been done."""
    try:
        if isinstance(response, web.FileResponse):
            try:
                await _send_file(request, response, leases)
            finally:
                # aiohttp would open it again, and fail: a file does not know that it was sent.
                vars(response).update(prepare=_nothing, write_eof=_nothing)
        else:
            await _finish(request, response)
    except SlowClient:
        _cut_off(request)
    except ConnectionError:
        pass  # aiohttp finds the connection closed, and logs it


async def _send_file(
    request: web.Request, response: web.FileResponse, leases: RequestLeases
) -> None:
    if response.prepared:
        await response.write_eof()
    else:
        # The kernel sends it, so it is not known how much of it is on its way.
        await leases.bounded(functools.partial(_finish, request, response))


async def _nothing(*_: object) -> None:
    """In place of what has been done."""


async def _finish(request: web.Request, response: web.StreamResponse) -> None:
    await response.prepare(request)
    await response.write_eof()


@contextmanager
def _bounded(request: web.Request, leases: RequestLeases) -> Generator[None]:
    """Cut off a client that is too slow: see whether what is sent piles up, or the body lacks."""
    loop = asyncio.get_running_loop()
    full = False
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal full, timer
        transport = request.transport
        if transport is None or transport.is_closing():
            return
        low, high = transport.get_write_buffer_limits()
        # The writer waits from when there is more than `high`, until there is no more than `low`.
        full = transport.get_write_buffer_size() > (low if full else high)
        # The handler waits for a part of the body.
        lacks = getattr(request.content, "_waiter", None) is not None
        if (full or lacks) and (bound := leases.bound) is not None:
            leases.waited(LOOK_EVERY)
            if not leases.patience:
                leases.too_slow(bound)
                _cut_off(request)
                return
        timer = loop.call_later(LOOK_EVERY, look)

    timer = loop.call_later(LOOK_EVERY, look)
    try:
        yield
    finally:
        timer.cancel()


def _cut_off(request: web.Request) -> None:
    """Close the connection without sending what waits: writers get an error."""
    if request.transport is not None:
        request.transport.abort()


class Exchange:
    """A request with a key, and its response: see `aiolock.integrations._exchange`.

    The handler and the middleware round it run in a task of their own. The response of the handler
    is kept when they have returned: middleware may end a transaction.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._asked: asyncio.Future[tuple[Once, str]] = loop.create_future()
        self._answered: asyncio.Future[str | None] = loop.create_future()
        self._keeps = self._ended_well = False
        self._text: str | None = None

    async def run(self, handle: Callable[[], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
        """Have the request handled. Raises what that raises, and the errors of `kept`."""

        async def call() -> web.StreamResponse:
            _exchange.set(self)
            return await handle()

        task = asyncio.create_task(call())
        await wait_or_end(task, self._asked)
        if self._asked.done():
            await self._once(task, *self._asked.result())
        await wait_or_end(task)
        return task.result()

    async def begin(self, once: Once, asked: str) -> str | None:
        """Wait until it is the first, or return what was kept of that; called by the handler."""
        if self._asked.done():
            raise RuntimeError("this request is done once already: idempotent() is there twice")
        self._asked.set_result((once, asked))
        return await self._answered

    def note(self, response: web.StreamResponse, request: Headers) -> None:
        """Note the response of the handler, before any middleware adds to it."""
        self._keeps = not is_to_be_tried_again(response.status, response.headers.items())
        self._text = _text_of(response, request)

    async def _once(self, task: asyncio.Task[web.StreamResponse], once: Once, asked: str) -> None:
        try:
            came, first = await kept(once, asked, functools.partial(self._work, task))
        except NotToBeKept:
            return
        except BaseException as error:  # noqa: BLE001  # it raises all but the task's own
            await self._failed(task, error)
        else:
            if not first:
                self._answered.set_result(came)

    async def _work(self, task: asyncio.Task[web.StreamResponse], _: Lease) -> str | None:
        self._answered.set_result(None)
        await wait_or_end(task)
        try:
            response = task.result()
        except web.HTTPException as error:
            response = error
        if not self._keeps or is_to_be_tried_again(response.status, response.headers.items()):
            raise NotToBeKept
        self._ended_well = True
        return self._text

    async def _failed(self, task: asyncio.Task[web.StreamResponse], error: BaseException) -> None:
        """Raise the error, unless the task does so, or has done what it was to do."""
        if self._ended_well and isinstance(error, StoreError | LeaseLost):
            _log.warning("%s", error)  # the request was carried out, so the response is right
        elif not self._answered.done() and isinstance(error, Exception):
            self._answered.set_exception(error)
        elif not task.done() or task.cancelled() or task.exception() is not error:
            await end(task)
            raise error


async def exchanged(
    once: Once,
    asked: str,
    handler: Callable[[], Awaitable[web.StreamResponse]],
    headers: Headers,
) -> web.StreamResponse:
    """The response of the handler, or the one that was kept, to a request with these headers."""
    exchange = _exchange.get()
    if exchange is None:
        raise RuntimeError("this application has not been set up: call setup(app, client)")
    came = await exchange.begin(once, asked)
    if came is not None:
        before = Recorded.of(came, headers)
        return web.Response(
            status=before.status,
            body=before.body,
            headers=CIMultiDict([*before.headers, (REPLAYED, "true")]),
        )
    try:
        response = await handler()
    except web.HTTPException as error:
        exchange.note(error, headers)
        raise
    exchange.note(response, headers)
    return response


def _text_of(response: web.StreamResponse, request: Headers) -> str | None:
    """The text to keep; None if it cannot be kept."""
    if not isinstance(response, web.Response) or response.prepared:
        return None
    body: object = response.body
    if isinstance(body, BytesPayload):
        body = bytes(body._value)  # aiohttp makes one of a str
    if not isinstance(body, bytes | bytearray | None) or len(body or b"") > LONGEST_RESPONSE:
        return None
    headers = [(name, value) for name, value in response.headers.items() if name != CONTENT_LENGTH]
    headers += [("Set-Cookie", cookie.OutputString()) for cookie in response.cookies.values()]
    return Recorded(response.status, headers, bytes(body or b"")).text(request)
