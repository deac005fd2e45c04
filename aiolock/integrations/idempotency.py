"""Idempotency keys: a request that is sent twice is carried out once, and answered twice the same.

An ASGI middleware, for any framework::

    app.add_middleware(Idempotency, client=client, remember=86400, who=user_of)
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

from aiolock import AcquireTimeout, Lease, LockClient, Outcome, StoreError
from aiolock.integrations._asgi import Message, Receive, Scope, Send, answer
from aiolock.integrations._problems import ERRORS, Problem, problem

__all__ = ["Idempotency"]

Who = Callable[[Scope], str | Awaitable[str]]

LONGEST_KEY: Final = 255
LONGEST_BODY: Final = 1_048_576
"""Bytes of a request that are read to compare it with the first."""
LONGEST_KEPT: Final = 65_536
"""Characters: what `Once.outcome` takes."""

BAD_KEY: Final = Problem(
    400, "idempotency_key", f"Idempotency-Key must have 1 to {LONGEST_KEY} printable characters."
)
TOO_LARGE: Final = Problem(413, "idempotency_body", "With an Idempotency-Key it may be 1 MiB long.")
UNDER_WAY: Final = Problem(
    409, "idempotency_under_way", "The first request with this key is still being carried out.", 1
)
ANOTHER: Final = Problem(
    422, "idempotency_mismatch", "Another request has been sent with this Idempotency-Key."
)
NOT_KEPT: Final = Problem(
    409,
    "idempotency_not_kept",
    "The first request with this key was carried out. Its response was too long to be kept.",
)

_SERVER_ERROR: Final = 500
_log = logging.getLogger("aiolock.web")


class Idempotency:
    """Middleware: of requests with one ``Idempotency-Key``, one is carried out.

    * The first gets its response, and that is kept. The others get the same, with the header
      ``Idempotent-Replayed: true``.
    * One that comes while the first is under way gets 409; one with another method, path, query or
      body 422.
    * A response of 500 or more is not kept, nor is that of a request that was cancelled or raised:
      it may be sent again, and is carried out again. So is one whose process died.
    * Requests without the header, and with other ``methods``, pass through.

    A response longer than about 48,000 bytes is sent, but not kept: others get 409 then. What is
    sent in pieces is gathered first. The client is opened by somebody else, as by `setup`. Where
    the store cannot say whether it was done, nothing is carried out, and that is 503. Where it was
    done, but nobody knows whether that is remembered, the response is sent.

    :param remember: seconds for which a response is kept.
    :param who: whose key it is, given the ASGI scope: the user or the tenant. Keys of different
        people have nothing to do with each other, so that nobody gets another's response. An empty
        text is one person, too.
    """

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        *,
        client: LockClient,
        remember: float,
        who: Who,
        methods: Collection[str] = ("POST", "PATCH"),
    ) -> None:
        if isinstance(methods, str):
            raise TypeError("methods must be a collection of names")
        client.once("checked", remember=remember)
        self._app = app
        self._client = client
        self._remember = remember
        self._who = who
        self._methods = frozenset(methods)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As any ASGI application."""
        key = _key_of(scope) if scope["type"] == "http" else None
        if key is None or scope["method"] not in self._methods:
            await self._app(scope, receive, send)
        elif not 1 <= len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable():
            await answer(BAD_KEY, send)
        else:
            await self._once(key, scope, receive, send)

    async def _once(self, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _body(receive)
        if body is None:
            return  # the client has gone
        if len(body) > LONGEST_BODY:
            await answer(TOO_LARGE, send)
            return
        who = self._who(scope)
        name = _digest((who if isinstance(who, str) else await who).encode(), key.encode())
        request = _digest(
            scope["method"].encode(), scope["path"].encode(), scope["query_string"], body
        )
        running = _Running(self._app, scope, body, receive)
        outcome: Outcome | None = None

        async def work(_: Lease) -> str:
            await running.run()
            return running.response.kept(request)

        once = self._client.once(f"idempotency:{name}", remember=self._remember, wait=False)
        try:
            outcome = await once.outcome(work)
        except _NotToBeKept:
            pass
        except ERRORS as error:
            if not (isinstance(error, StoreError) and running.response.done):
                under_way = isinstance(error, AcquireTimeout)
                await answer(UNDER_WAY if under_way else problem(error), send)
                return
            _log.warning("%s", error)  # it was done: the response is true all the same
        except Exception:
            await running.response.send(send)  # what the framework says to that, if anything
            raise
        if outcome is None or outcome.first:
            await running.response.send(send)
        else:
            await _replay(outcome.result, request, send)


class _NotToBeKept(Exception):
    """It has failed: it may be tried again."""


@dataclass
class _Response:
    """What an application has sent."""

    start: Message | None = None
    body: bytearray = field(default_factory=bytearray)
    done: bool = False

    async def take(self, message: Message) -> None:
        """As `send` of ASGI."""
        if message["type"] == "http.response.start":
            self.start = message
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")
            self.done = not message.get("more_body", False)

    async def send(self, send: Send) -> None:
        """Send it on, if there is any."""
        if self.start is not None:
            await send(self.start)
            await send({"type": "http.response.body", "body": bytes(self.body)})

    def kept(self, request: str) -> str:
        """As it is kept, with what it was the answer to."""
        if self.start is None or not self.done or self.start["status"] >= _SERVER_ERROR:
            raise _NotToBeKept
        headers = [
            [name.decode("latin-1"), value.decode("latin-1")]
            for name, value in self.start.get("headers", ())
        ]
        document: dict[str, Any] = {"request": request, "status": self.start["status"]}
        body = base64.b64encode(self.body).decode()
        whole = json.dumps({**document, "headers": headers, "body": body}, separators=(",", ":"))
        return whole if len(whole) <= LONGEST_KEPT else json.dumps(document)


class _Running:
    """The application, while it carries out a request whose body has been read."""

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        scope: Scope,
        body: bytes,
        receive: Receive,
    ) -> None:
        self.response = _Response()
        self._app = app
        self._scope = scope
        self._body: bytes | None = body
        self._receive = receive

    async def run(self) -> None:
        await self._app(self._scope, self._again, self.response.take)

    async def _again(self) -> Message:
        body, self._body = self._body, None
        if body is None:
            return await self._receive()
        return {"type": "http.request", "body": body, "more_body": False}


async def _replay(kept: str, request: str, send: Send) -> None:
    document = json.loads(kept)
    if document["request"] != request:
        await answer(ANOTHER, send)
    elif "body" not in document:
        await answer(NOT_KEPT, send)
    else:
        headers = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in document["headers"]
        ]
        headers.append((b"idempotent-replayed", b"true"))
        start = {"type": "http.response.start", "status": document["status"], "headers": headers}
        await send(start)
        await send({"type": "http.response.body", "body": base64.b64decode(document["body"])})


def _key_of(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"idempotency-key":
            found: str = value.decode("latin-1")
            return found
    return None


async def _body(receive: Receive) -> bytes | None:
    """The whole of it, or a little more than is allowed; None where the client has gone."""
    body = bytearray()
    while len(body) <= LONGEST_BODY:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            break
    return bytes(body)


def _digest(*parts: bytes) -> str:
    """One for these parts, and no others."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part) + part)
    return digest.hexdigest()
