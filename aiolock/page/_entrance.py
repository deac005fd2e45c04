"""A key for the page, if nothing else controls who may see it."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from aiolock.page._guard import HEADERS
from aiolock.page._http import Answer, Receive, Refused, Request, Scope, Send, answer, as_json

App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_QUERY: Final = "key"
_SHORTEST: Final = 16


class Entrance:
    """An ASGI application that serves only requests with a key.

    Opening ``/?key=…`` sets a cookie, which is the key from then on. The only encryption is that of
    the server: use it on the machine itself, or with TLS.
    """

    def __init__(self, app: App, key: str) -> None:
        if len(key) < _SHORTEST:
            raise ValueError(f"a key must have {_SHORTEST} characters at least")
        self._app = app
        self._key = key
        digest = hashlib.sha256(f"aiolock key {key}".encode()).hexdigest()
        # Browsers share the cookies of all ports of a host: each key has a cookie of its own.
        self._cookie, self._value = f"aiolock-key-{digest[:8]}", digest[8:]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            if _QUERY in request.query and _same(request.query[_QUERY], self._key):
                found = self._welcome(request)
            elif _same(request.cookie(self._cookie), self._value):
                await self._app(scope, receive, send)
                return
            else:
                found = as_json(
                    {"error": "open the page with its key, as in the address that you were given"},
                    status=403,
                )
        except Refused as refused:
            found = as_json({"error": refused.why}, status=refused.status)
        await answer(send, found, HEADERS, head=request.method == "HEAD")

    def _welcome(self, request: Request) -> Answer:
        secure = "; Secure" if request.scope.get("scheme") == "https" else ""
        # Lax, not Strict: the address may have been opened from a mail.
        cookie = f"{self._cookie}={self._value}; HttpOnly; SameSite=Lax{secure}"
        headers = (("Location", "./"), ("Set-Cookie", cookie))
        return Answer(b"", "text/plain", 303, headers)


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
