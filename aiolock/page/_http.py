"""The part of HTTP over ASGI that the page needs."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias, cast
from urllib.parse import parse_qsl

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_FIELDS: Final = 20
"""Fields of a query, at most."""


class Refused(Exception):
    """The request is answered with this status, and the reason."""

    def __init__(self, status: int, why: str, *headers: tuple[str, str]) -> None:
        super().__init__(why)
        self.status = status
        self.why = why
        self.headers = headers


class Gone(Exception):
    """The client has disconnected."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response that is sent at once."""

    body: bytes
    media: str
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()


def as_json(value: object, *, status: int = 200, headers: Iterable[tuple[str, str]] = ()) -> Answer:
    """An answer in JSON: ASCII on one line, whatever is in a name."""
    body = json.dumps(value, separators=(",", ":")).encode()
    return Answer(body, "application/json", status, tuple(headers))


class Request:
    """One request to the page."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self._receive = receive
        self.method: str = scope["method"]
        self.headers = {
            key.decode("latin-1").lower(): value.decode("latin-1")
            for key, value in scope["headers"]
        }

    @cached_property
    def path(self) -> str:
        """The path within the page, without the mount point, which some servers leave in it."""
        path: str = self.scope["path"]
        root: str = self.scope.get("root_path", "")
        below = path.removeprefix(root) if root else path
        return below if below[:1] in ("", "/") else path

    @cached_property
    def query(self) -> dict[str, str]:
        """The fields of the query."""
        raw: bytes = self.scope.get("query_string", b"")
        try:
            return dict(
                parse_qsl(raw.decode("latin-1"), keep_blank_values=True, max_num_fields=_FIELDS)
            )
        except ValueError:
            raise Refused(400, "the query has too many fields") from None

    async def json(self, most: int) -> dict[str, Any]:
        """The body: a JSON object, of ``most`` bytes at most."""
        body = b""
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > most:
                raise Refused(413, "the body is too long")
        try:
            value: object = json.loads(body)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise Refused(400, "the body is no JSON object")
        return cast("dict[str, Any]", value)


async def begin(send: Send, status: int, headers: Iterable[tuple[str, str]]) -> None:
    """Send the status and the headers."""
    raw = [(key.lower().encode("latin-1"), value.encode("latin-1")) for key, value in headers]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def answer(send: Send, it: Answer, headers: Iterable[tuple[str, str]], *, head: bool) -> None:
    """Send all of it, or only the headers."""
    length = ("Content-Length", str(len(it.body)))
    media = ("Content-Type", f"{it.media}; charset=utf-8")
    await begin(send, it.status, (media, length, *headers, *it.headers))
    await send({"type": "http.response.body", "body": b"" if head else it.body})
