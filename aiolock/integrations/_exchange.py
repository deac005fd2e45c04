"""Requests that the application wants carried out once, in ASGI.

The application runs in a task of its own. When it calls `begin` for a request with a key, it
goes on only if it is the first with that key. Otherwise it is ended there, and the request is
answered with the response that was kept.

A framework sends a response before the request has ended: what dependencies do at their end, such
as a commit, comes after that, and may fail. So a response is held back until the application has
returned, then kept, and then sent. If the application fails instead, that response is not sent.
Background work that a framework does between the two would hold it back as well, so known
background work is done afterwards.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final
from urllib.parse import quote

from aiolock import Lease, LeaseLost, Once, StoreError
from aiolock.integrations._asgi import App, Message, Receive, Scope, Send
from aiolock.integrations._kept import (
    HEADER,
    LONGEST_BODY,
    LONGEST_RESPONSE,
    REPLAYED,
    BodyTooLong,
    Headers,
    NotToBeKept,
    Recorded,
    fingerprint,
    is_to_be_tried_again,
    kept,
)
from aiolock.integrations._waiting import GONE, Disconnected

_PLACE: Final = "aiolock.exchange"
_log = logging.getLogger("aiolock.web")


def keys_in(scope: Scope) -> list[str]:
    """The keys that a request has."""
    name = HEADER.lower().encode()
    return [value.decode("latin-1") for header, value in scope["headers"] if header == name]


class Exchanges:
    """Middleware directly around the routes, which may call `begin` for a request with a key."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, as an ASGI application."""
        outer = scope.get(_PLACE)
        if isinstance(outer, Exchange) and outer.asked:
            await self._app(scope, receive, send)  # an outer exchange has it under its key
        elif scope["type"] == "http" and keys_in(scope):
            await Exchange(self._app, scope, receive, send).run()
        else:
            await self._app(scope, receive, send)


async def begin(scope: Scope, once: Once) -> Lease:
    """Go on as the first with this key, or not at all; `RuntimeError` without the middleware."""
    return await exchange_of(scope).begin(once)


def exchange_of(scope: Scope) -> Exchange:
    """The exchange of a request with a key; `RuntimeError` without the middleware."""
    exchange = scope.get(_PLACE)
    if isinstance(exchange, Exchange):
        return exchange
    raise RuntimeError("this application has not been set up: call setup(app, client)")


class Exchange:
    """One request, and its response."""

    def __init__(self, app: App, scope: Scope, receive: Receive, send: Send) -> None:
        self._app = app
        self._scope = scope
        # Hide all other ways to send a response: those are not gathered.
        extensions: dict[str, Any] = scope.get("extensions") or {}
        scope["extensions"] = {
            name: value
            for name, value in extensions.items()
            if not name.startswith("http.response.")
        }
        scope[_PLACE] = self
        self._request = _Request(receive)
        self._response = _Response(send)
        loop = asyncio.get_running_loop()
        self.afterwards = list[Callable[[], Awaitable[None]]]()
        """Work to be done when the response has been sent, in this order."""
        self._put_off = list[list[Callable[[], Awaitable[None]]]]()
        self._asked: asyncio.Future[tuple[Once, str]] = loop.create_future()
        self._entered: asyncio.Future[Lease] = loop.create_future()

    @property
    def asked(self) -> bool:
        """Whether the application has called `begin` for its request."""
        return self._asked.done()

    @property
    def _headers(self) -> Headers:
        """The headers of the request."""
        return _texts(self._scope["headers"])

    @property
    def begun(self) -> bool:
        """Whether sending of the response has begun."""
        return self._response.begun

    async def run(self) -> None:
        """Have the application answer it. Raises the errors of the application and of `kept`."""
        task = asyncio.create_task(self._call())
        await wait_or_end(task, self._asked)
        if not self._asked.done() or await self._once(task, *self._asked.result()):
            await wait_or_end(task)
            task.result()
            for work in self.afterwards:
                await work()

    async def _call(self) -> None:
        await self._app(self._scope, self._receive, self._take)

    async def _take(self, message: Message) -> None:
        await self._response.take(message)
        if self._response.done.done():
            # The framework is about to do this, and its dependencies end after it.
            for background in self._put_off:
                self.afterwards += background
                background.clear()

    def put_off(self, background: list[Callable[[], Awaitable[None]]]) -> None:
        """Do afterwards what is in this list when the response is complete."""
        self._put_off.append(background)

    async def begin(self, once: Once) -> Lease:
        """Wait until it is the first; called by the application."""
        if self._asked.done():
            raise RuntimeError(
                "this request is done once already: there is another idempotent(), or the"
                " middleware Idempotency, round it"
            )
        if self.begun:
            raise RuntimeError("it is to be done once, but its response has begun already")
        await self._request.read()
        scope = self._scope
        # The raw path: in the other one an encoded slash looks as any.
        path = scope.get("raw_path") or quote(scope["path"]).encode()
        target = path + b"?" + scope["query_string"]
        asked = fingerprint(scope["method"], target, self._headers, self._request.digest)
        self._response.gathers = True
        self._asked.set_result((once, asked))
        return await self._entered

    async def _once(self, task: asyncio.Task[None], once: Once, asked: str) -> bool:
        """Whether it was carried out now."""
        response = self._response
        ended_well = False

        async def work(lease: Lease) -> str | None:
            nonlocal ended_well
            if not self._entered.done():
                self._entered.set_result(lease)
            await wait_or_end(task)
            task.result()
            ended_well = True
            return response.recorded(self._headers)

        try:
            came, first = await kept(once, asked, work)
        except NotToBeKept:
            came, first = "", True
        except (StoreError, LeaseLost) as error:
            if not ended_well:
                await self._unwind(task)
                raise
            _log.warning("%s", error)  # the request was carried out, so the response is right
            came, first = "", True
        except BaseException:
            if self._entered.done():
                await response.send_answer()
            await self._unwind(task)
            raise
        if first:
            await response.send_on()
            return True
        await self._unwind(task)
        await response.replay(Recorded.of(came, self._headers))
        return False

    async def _unwind(self, task: asyncio.Task[None]) -> None:
        """End an application that must not go on."""
        self._response.ignored = True
        await end(task)
        if not task.cancelled():
            task.exception()  # retrieved, so that it is not logged

    async def _receive(self) -> Message:
        if not self._asked.done() or self._request.kept:
            return await self._request.receive()
        # Report a disconnect only when the response is complete, as a server does. Not before: the
        # request goes on, even if its client has gone; and while the response is held back, the
        # server would report nothing anyway.
        await asyncio.wait([self._response.done])
        return {"type": "http.disconnect"}


def _texts(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


async def wait_or_end(task: asyncio.Task[Any], *ends: asyncio.Future[Any]) -> None:
    """Wait until one of them is done. If this is cancelled, the task is ended first."""
    try:
        await asyncio.wait([task, *ends], return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        await end(task)
        raise


async def end(task: asyncio.Task[Any]) -> None:
    """Cancel the task, and return when it has ended, as `ended` does.

    When a server ends, this call is cancelled twice: by the server, and by the lease, which is lost
    when the client closes.
    """
    task.cancel()
    await ended(task)


async def ended(task: asyncio.Future[Any]) -> None:
    """Return when it has ended; a cancellation of this call meanwhile is raised after that."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class _Request:
    """The request's body: read to compare it with others, and then given to the application."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._hash = hashlib.sha256()
        self._size = 0
        self._whole = False
        self.kept = deque[Message]()

    @property
    def digest(self) -> bytes:
        """A digest of the body."""
        return self._hash.digest()

    async def receive(self) -> Message:
        """`receive` of ASGI."""
        return self.kept.popleft() if self.kept else await self._next()

    async def read(self) -> None:
        """Read all of it; `BodyTooLong`, or `Disconnected` if the rest will not come."""
        while not self._whole:
            message = await self._next()
            if message["type"] == "http.disconnect":
                raise Disconnected(GONE)
            self.kept.append(message)
            if self._size > LONGEST_BODY:
                break
        if self._size > LONGEST_BODY:
            raise BodyTooLong(f"a request under a key has more than {LONGEST_BODY} bytes")

    async def _next(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            body = message.get("body", b"")
            self._hash.update(body)
            self._size += len(body)
            self._whole = not message.get("more_body", False)
        return message


class _Response:
    """The application's response: gathered while it is short enough to be kept, if it is to be."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = bytearray()
        self._last: Message | None = None
        """The end of a response that is being sent on: held back until the request has ended."""
        self.gathers = self.ignored = False
        self.begun = False
        """Whether it is being sent on."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set when it is complete."""

    @property
    def final(self) -> bool:
        """Whether it is complete, and shows that the request was carried out."""
        start = self._start
        if start is None or not self.done.done():
            return False
        return not is_to_be_tried_again(start["status"], start.get("headers", ()))

    async def take(self, message: Message) -> None:
        """`send` of ASGI."""
        if self.ignored:
            return
        if not self.gathers:
            self.begun = True
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body":
            whole = not message.get("more_body", False)
            if self.begun and whole:
                self._last = message
            elif self.begun:
                await self._send(message)
            else:
                self._body += message.get("body", b"")
                if len(self._body) > LONGEST_RESPONSE and not whole:
                    await self._begin(whole=False)
            if whole and not self.done.done():
                self.done.set_result(None)

    async def send_on(self) -> None:
        """Send what was gathered, if anything: a complete response, or one that broke off."""
        if not self.begun:
            await self._begin(whole=self.done.done())
        elif self._last is not None:
            last, self._last = self._last, None
            await self._send(last)

    async def send_answer(self) -> None:
        """Send the framework's response to an error, or a part that shows the error.

        A complete response that shows no error is not sent: it would not be true.
        """
        if not self.final:
            await self.send_on()

    async def replay(self, recorded: Recorded) -> None:
        """Send the response to the first request."""
        pairs = [*recorded.headers, (REPLAYED.lower(), "true")]
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]
        start = {"type": "http.response.start", "status": recorded.status, "headers": headers}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": recorded.body})

    def recorded(self, request: Headers) -> str | None:
        """The text to keep, for a request with these headers; None if too long.

        `NotToBeKept` for a response that must not be.
        """
        start = self._start
        if start is None or not self.final:
            raise NotToBeKept
        if self.begun or len(self._body) > LONGEST_RESPONSE:
            return None
        headers = _texts(start.get("headers", ()))
        return Recorded(start["status"], headers, bytes(self._body)).text(request)

    async def _begin(self, *, whole: bool) -> None:
        if self._start is not None:
            self.begun = True
            body, self._body = bytes(self._body), bytearray()
            await self._send(self._start)
            await self._send({"type": "http.response.body", "body": body, "more_body": not whole})
