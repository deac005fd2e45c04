"""Work that is done once under a key: its result is kept for repeated requests."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, Self, TypeVar

from aiolock import AcquireTimeout, Lease, LockClient, Once, Outcome

HEADER: Final = "Idempotency-Key"
REPLAYED: Final = "Idempotent-Replayed"

LONGEST_KEY: Final = 255
LONGEST_BODY: Final = 1_048_576
"""Bytes of a request that are read to compare it with the first one."""
LONGEST_KEPT: Final = 65_536 - 65
"""The longest result, in characters: what `Once.outcome` takes, less the request's digest."""
LONGEST_RESPONSE: Final = 49_152
"""Bytes of a response's body that are gathered and kept.

Five characters keep four of them, so 4,000 characters of `LONGEST_KEPT` are left for its headers.
"""

LONGEST_APPLICATION: Final = 100
"""Characters of an application's name."""

Described = TypeVar("Described")
Headers = Iterable[tuple[str, str]]

_COMPARED: Final = ("host", "content-type", "content-encoding")
"""The headers in which equal requests are equal."""
_WHOSE: Final = frozenset({"authorization", "cookie", "*", ""})
"""Headers of `Vary` that are not compared: ``who`` identifies the user, also when a session or a
token has been renewed."""
_SERVER_ERROR: Final = 500
_TRY_AGAIN: Final = (408, 423, 425, 429)
"""Statuses that mean that nothing was done; so does any response with ``Retry-After``."""


class UnderWay(AcquireTimeout):
    """The first request with this key is still being carried out."""


class KeyReused(ValueError):
    """Another request was carried out under this key."""


class NotKept(LookupError):
    """The request was carried out under this key, but its result was too long to be kept."""


class BadKey(Exception):
    """A request has no valid key."""


class BodyTooLong(Exception):
    """A request with a key is longer than what is read to compare it with others."""


class NotToBeKept(Exception):
    """The work has failed, so it may be tried again."""


async def kept(
    once: Once, asked: str, work: Callable[[Lease], Awaitable[str | None]]
) -> tuple[str, bool]:
    """The result of ``work``, done now or before, and whether it was done now.

    ``asked`` distinguishes the request from others under the same key. Raises `UnderWay`,
    `KeyReused`, `NotKept`, and the errors of `Once.outcome` and ``work``. A result that is too long
    to be kept is returned to the first caller alone; ``work`` returns None if it has delivered it
    already.
    """
    result = Result(asked)

    async def keep(lease: Lease) -> str:
        result.begun = True
        return result.kept(await work(lease))

    try:
        outcome = await once.outcome(keep)
    except AcquireTimeout as error:
        if result.begun:
            raise
        raise under_way(error) from error
    return result.of(outcome, once.name)


class Result:
    """The result of work under a key: what is kept of it, and what the next caller gets."""

    def __init__(self, asked: str) -> None:
        self._asked = asked
        self._came: str | None = None
        self.begun = False
        """Whether the work was begun by this caller."""

    def kept(self, came: str | None) -> str:
        """The text to keep for this result; None if that has been delivered already."""
        self._came = came
        if came is None or len(came) > LONGEST_KEPT:
            return self._asked
        return f"{self._asked}\n{came}"

    def of(self, outcome: Outcome, name: str) -> tuple[str, bool]:
        """The result, and whether it was done now; `KeyReused` or `NotKept`."""
        if outcome.first:
            return self._came or "", True
        before, separator, came = outcome.result.partition("\n")
        if before != self._asked:
            raise KeyReused(f"{name!r} was done for something else")
        if not separator:
            raise NotKept(f"{name!r} was done, and what came of it was too long to be kept")
        return came, False


def under_way(error: AcquireTimeout) -> UnderWay:
    """The error for a caller who is not the first, and did not get the result in time."""
    found = UnderWay(f"what is to be done once is still being done: {error}")
    found.name, found.kind = error.name, error.kind
    found.waited, found.holders = error.waited, error.holders
    found.more_holders = error.more_holders
    return found


def digest(*parts: str | bytes) -> str:
    """A digest of these parts: other parts have another one."""
    made = hashlib.sha256()
    for part in parts:
        # In aiohttp, a byte of a header that is not UTF-8 is a surrogate.
        raw = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        made.update(b"%d:" % len(raw) + raw)
    return made.hexdigest()


def key_of(values: Sequence[str], *, required: bool = False) -> str | None:
    """The key of a request, by its headers of that name; `BadKey` if it is invalid."""
    if not values and not required:
        return None
    if len(values) != 1:
        raise BadKey(f"a request must have one {HEADER}, and not {len(values)}")
    (key,) = values
    if not 1 <= len(key) <= LONGEST_KEY or not (key.isascii() and key.isprintable()):
        raise BadKey(f"{HEADER} is not of 1 to {LONGEST_KEY} printable characters")
    return key


async def owner(found: str | Awaitable[str]) -> str:
    """The result of ``who``, which may be async."""
    return await found if isinstance(found, Awaitable) else found


def fingerprint(method: str, target: str | bytes, headers: Headers, body: bytes) -> str:
    """A digest of a request, to distinguish it from others under the same key.

    ``target`` is the path and the query as they were sent, ``body`` may be a digest.
    """
    compared = [
        value.lower() if name == "host" else value
        for name, value in zip(_COMPARED, _values(headers, _COMPARED), strict=True)
    ]
    return digest(method, target, *compared, body)


def _values(headers: Headers, names: Sequence[str]) -> list[str]:
    """The value of each of these headers; empty if a request has none."""
    found: dict[str, list[str]] = {name: [] for name in names}
    for name, value in headers:
        if name.lower() in found:
            found[name.lower()].append(" ".join(value.split()))
    return [",".join(found[name]) for name in names]


def once_of(
    once: Callable[..., Described],
    application: str,
    who: str,
    key: str,
    remember: float | timedelta,
) -> Described:
    """The `Once` of a key of this owner in this application, by the client's ``once``.

    The store sees neither the key, nor its owner, nor the application.

    `TypeError` for an owner that is no str: equal owners of other types may be written differently.
    """
    if not isinstance(who, str):
        raise TypeError(
            f"who must give a str, the id of the user or tenant, and not {type(who).__name__}:"
            ' return str(user.id), for example, and "" for a request of nobody'
        )
    name = f"idempotency:{digest(application, who, key)}"
    return once(name, remember=remember, wait=False)


def check_options(client: LockClient, application: str, remember: float | timedelta) -> None:
    """Raise `ValueError` or `TypeError` for an invalid name of an application, or duration."""
    if not isinstance(application, str):
        raise TypeError(f"application must be a str, the name of yours, not {application!r}")
    if not application.strip() or len(application) > LONGEST_APPLICATION:
        raise ValueError(
            f"application must be a name of 1 to {LONGEST_APPLICATION} characters, so that no other"
            f" application on this store answers its requests, not {application!r}"
        )
    client.once("checked", remember=remember)


class Recorded(NamedTuple):
    """A whole response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def text(self, request: Headers) -> str:
        """The response as a text, as it is kept, with what its request has chosen it by."""
        # Base64 is faster, but in it a body of `LONGEST_RESPONSE` would leave no room for headers.
        body = base64.b85encode(self.body).decode()
        found: list[Any] = [self.status, self.headers, body]
        if self.varies_by:
            found.append(self._chosen_by(request))
        return json.dumps(found, separators=(",", ":"))

    @classmethod
    def of(cls, text: str, request: Headers) -> Self:
        """The response that was kept; `KeyReused` if this request would have got another one."""
        status, headers, body, *chosen_by = json.loads(text)
        found = cls(status, [(name, value) for name, value in headers], base64.b85decode(body))
        if found.varies_by and chosen_by != [found._chosen_by(request)]:
            names = ", ".join(found.varies_by)
            raise KeyReused(f"the response that was kept depends on other headers ({names})")
        return found

    @property
    def varies_by(self) -> list[str]:
        """The request's headers that it depends on: language, format, compression."""
        names = {
            each.strip().lower()
            for name, value in self.headers
            if name.lower() == "vary"
            for each in value.split(",")
        }
        if any(name.lower() == "content-encoding" for name, _ in self.headers):
            names.add("accept-encoding")
        return sorted(names - _WHOSE)

    def _chosen_by(self, request: Headers) -> str:
        return digest(*_values(request, self.varies_by))


def is_to_be_tried_again(status: int, headers: Iterable[tuple[Any, Any]]) -> bool:
    """Whether a response means that the request was not carried out."""
    return (
        status >= _SERVER_ERROR
        or status in _TRY_AGAIN
        or any(name.lower() in ("retry-after", b"retry-after") for name, _ in headers)
    )
