"""The common part of all ASGI frameworks: messages to and from the server."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from aiolock import LeaseLost
from aiolock.integrations._leases import PLACE, RequestLeases
from aiolock.integrations._problems import STOPPED, Problem, header_list, problem
from aiolock.integrations._waiting import GONE, Disconnected

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

KEPT: Final = 65_536
"""Bytes of a body that are kept at most while its request waits for its turn."""
PIECES: Final = 256
"""Pieces of a body that are kept at most: even a short piece has its cost."""


class Inbox:
    """A request's messages; looking for a disconnect keeps the others for the handler."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._kept = deque[Message]()
        self._coming: asyncio.Future[Message] | None = None

    async def __call__(self) -> Message:
        """`receive` of ASGI."""
        if self._kept:
            return self._kept.popleft()
        if self._coming is not None:
            return await self._next()
        return await self._receive()

    async def gone(self) -> None:
        """Return when the client has closed the connection."""
        size = 0
        while size <= KEPT and len(self._kept) < PIECES:
            message = await self._next()
            self._kept.append(message)
            if message["type"] == "http.disconnect":
                return
            size += len(message.get("body", b""))
        await asyncio.Event().wait()  # read no further: the rest waits at the server

    async def _next(self) -> Message:
        # If this is cancelled, the next caller gets the message: one that arrives in a cancelled
        # task would be lost.
        if self._coming is None:
            self._coming = asyncio.ensure_future(self._receive())
        message = await asyncio.shield(self._coming)
        self._coming = None
        return message

    def close(self) -> None:
        """Stop waiting for a message; what has come may still be read."""
        if self._coming is not None and not self._coming.done():
            self._coming.cancel()
            self._coming = None


class Held:
    """Middleware in which leases that are taken in a request end with it, and not before.

    If there are several, one round the other, they end with the outermost. The inner ones raise a
    loss as early as they see it.

    :param looks: whether it looks for a client that goes while its request waits, and for one that
        keeps a lock by sending its request slowly. The application must not receive while its
        request waits, and otherwise receive what it needs.
    """

    def __init__(self, app: Callable[..., Awaitable[None]], *, looks: bool = True) -> None:
        self._app = app
        self._looks = looks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, as an ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        leases = scope.get(PLACE)
        if not isinstance(leases, RequestLeases):
            scope[PLACE] = leases = RequestLeases()
            send = functools.partial(_send, leases, send)
        # A handler must get what is received while waiting for a disconnect.
        inbox = Inbox(receive)
        whole = not self._looks

        async def reason_to_leave() -> Exception:
            await inbox.gone()
            return Disconnected(GONE)

        async def received() -> Message:
            nonlocal whole
            if whole:  # what comes now is the end of the connection
                return await inbox()
            message = await leases.receiving(inbox)
            whole = not message.get("more_body", False)
            return message

        try:
            async with leases.body(reason_to_leave if self._looks else None) as body:

                def noted(message: Message) -> Awaitable[None]:
                    body.begun = True
                    return send(message)

                await self._app(scope, received, noted)
        finally:
            inbox.close()


def _send(leases: RequestLeases, send: Send, message: Message) -> Awaitable[None]:
    return leases.bounded(functools.partial(send, message))


def leases_of(scope: Scope) -> RequestLeases:
    """The leases of a request; `RuntimeError` without the middleware."""
    leases = scope.get(PLACE)
    if isinstance(leases, RequestLeases):
        return leases
    raise RuntimeError("this application has not been set up: call setup(app, client)")


class Interrupted:
    """Middleware that answers 503 instead of 500 to a request that is interrupted from outside.

    A server that has waited long enough when it ends cancels the requests that still run. The
    cancellation goes on in any case. And a lock may be lost when the framework, which answers other
    errors, has done its part.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, as an ASGI application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = interrupted = False

        async def noted(message: Message) -> None:
            nonlocal begun
            if not interrupted:  # else it comes from a task of the framework that still runs
                begun = True
                await send(message)

        try:
            await self._app(scope, receive, noted)
        except asyncio.CancelledError:
            interrupted = True
            if not begun:
                await answer(STOPPED, send)
            raise
        except LeaseLost as error:
            if begun:
                raise  # the server closes the connection: a part must not pass for the whole
            await answer(problem(error), send)


async def answer(problem: Problem, send: Send) -> None:
    """Send a whole response."""
    start = {"type": "http.response.start", "status": problem.status}
    await send({**start, "headers": header_list(problem)})
    await send({"type": "http.response.body", "body": problem.body})
