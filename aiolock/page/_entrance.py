"""A key for the page, if nothing else controls who may see it.

The key is in the part of the address behind ``#``, which a browser never sends. The page keeps
it in its own storage, which belongs to this host *and port*, and sends it in a header. A cookie
would go to every program on the host, whatever port it listens at.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from aiolock.page._assets import assets
from aiolock.page._guard import HEADERS
from aiolock.page._http import Receive, Request, Scope, Send, answer, as_json

App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

KEY: Final = "x-aiolock-key"
"""The header that has the key."""
_SHORTEST: Final = 16


class Entrance:
    """An ASGI application that serves only requests with a key, apart from the page's own files.

    Open the page with ``#key=…`` behind its address. The only encryption is that of the server: use
    it on the machine itself, or with TLS.
    """

    def __init__(self, app: App, key: str) -> None:
        if len(key) < _SHORTEST:
            raise ValueError(f"a key must have {_SHORTEST} characters at least")
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        given = request.headers.get(KEY, "").encode("latin-1")
        # The files are the same for all viewers, and contain nothing about any lock.
        is_file = request.method in ("GET", "HEAD") and request.path in (*assets(), "")
        if is_file or hmac.compare_digest(given, self._key):
            await self._app(scope, receive, send)
            return
        why = "open the page with its key, as in the address that you were given"
        found = as_json({"error": why}, status=403)
        await answer(send, found, HEADERS, head=request.method == "HEAD")
