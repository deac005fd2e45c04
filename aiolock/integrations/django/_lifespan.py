"""The client of the event loop, from the start of an ASGI server to its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from aiolock.integrations._asgi import App, Interrupted, Message, Receive, Scope, Send
from aiolock.integrations.django._clients import close, open_client


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
            await open_client()
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
