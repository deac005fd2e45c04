"""The answers to clients of a web application whose requests do not get a lock, or lose it.

The texts of the errors name locks, hosts and processes: those are for the log. The client gets a
general description only, as ``application/problem+json`` (RFC 9457).
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Final

from aiolock import AcquireTimeout, ClientClosed, LeaseLost, QueueFull, StoreError
from aiolock.integrations._kept import (
    HEADER,
    LONGEST_KEY,
    BadKey,
    BodyTooLong,
    KeyReused,
    NotKept,
    UnderWay,
)
from aiolock.integrations._leases import SlowClient
from aiolock.integrations._names import BAD_NAME, BadName
from aiolock.integrations._waiting import Disconnected

CONTENT_TYPE: Final = "application/problem+json"

_log = logging.getLogger("aiolock.web")


@dataclass(frozen=True, slots=True)
class Problem:
    """One answer."""

    status: int
    code: str
    """The code, for programs: it distinguishes answers of one status."""
    detail: str
    """The text, for people."""
    retry_after: int | None = None
    """Seconds after which to try again."""

    @property
    def headers(self) -> dict[str, str]:
        """All headers but the content type."""
        headers = {"Cache-Control": "no-store"}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        return headers

    @property
    def body(self) -> bytes:
        """The JSON document."""
        try:
            title = HTTPStatus(self.status).phrase
        except ValueError:
            title = "Client Closed Request"  # nginx's name of 499
        fields = {"title": title, "status": self.status, "detail": self.detail, "code": self.code}
        return json.dumps(fields).encode()


BUSY: Final = Problem(
    423, "lock_busy", "This resource is locked. Nothing was done: try again later.", 1
)
CONFLICT: Final = Problem(409, "lock_busy", "This is already in progress. Nothing was done.", 1)
FULL: Final = Problem(
    429,
    "lock_queue_full",
    "Too many requests are waiting already. Nothing was done: try again later.",
    1,
)
LIMITED: Final = Problem(
    429, "rate_limited", "Too many requests. Nothing was done: try again later."
)
LOST: Final = Problem(
    503,
    "lock_lost",
    "The request was interrupted. Part of it may have been done: check, then try again.",
    5,
)
UNKNOWN: Final = Problem(
    503, "lock_store", "It is not known whether this resource is locked. Try again later.", 5
)
CLOSING: Final = Problem(
    503, "shutting_down", "This server is shutting down. Nothing was done: try again.", 1
)
STOPPED: Final = Problem(
    503,
    "shutting_down",
    "The server shut down during the request. Part of it may have been done: check, then"
    " try again.",
    1,
)
GONE: Final = Problem(499, "client_closed_request", "The client has closed the connection.")

ANSWERS: Final[Mapping[type[Exception], Problem]] = {
    UnderWay: Problem(
        409,
        "idempotency_under_way",
        "The first request with this key is still being carried out.",
        1,
    ),
    AcquireTimeout: BUSY,
    QueueFull: FULL,
    LeaseLost: LOST,
    StoreError: UNKNOWN,
    ClientClosed: CLOSING,
    Disconnected: GONE,
    SlowClient: Problem(
        408,
        "slow_client",
        "The request was sent too slowly. Part of it may have been done: check, then try again.",
    ),
    BadName: Problem(400, "bad_lock_name", BAD_NAME),
    BadKey: Problem(
        400,
        "idempotency_key",
        f"One {HEADER} header is required, of 1 to {LONGEST_KEY} printable characters.",
    ),
    BodyTooLong: Problem(413, "idempotency_body", f"With an {HEADER}, a body has 1 MiB at most."),
    KeyReused: Problem(
        422, "idempotency_mismatch", f"Another request has been sent with this {HEADER}."
    ),
    NotKept: Problem(
        409,
        "idempotency_not_kept",
        "The first request with this key was carried out. Its response was too long to be kept.",
    ),
}

ERRORS: Final = tuple(ANSWERS)
"""The errors that have an answer. Other errors of aiolock are bugs in the program: 500."""


def problem(error: Exception) -> Problem:
    """The answer to one of `ERRORS`; also logs a line about it.

    Raises `ClientClosed` again if the client was never opened: that is a mistake in the program, as
    a test without the lifespan, and not a shutdown.
    """
    if isinstance(error, ClientClosed) and not error.closed:
        raise error
    found = _problem(error)
    if found is not GONE:
        level = logging.WARNING if found.status >= 500 else logging.INFO  # noqa: PLR2004  # HTTP's
        _log.log(level, "answered %d: %s", found.status, error)
    return found


def _problem(error: Exception) -> Problem:
    found = next(found for kind, found in ANSWERS.items() if isinstance(error, kind))
    if isinstance(error, BadName):
        return replace(found, detail=str(error))
    if isinstance(error, AcquireTimeout) and error.retry_after is not None:
        return replace(LIMITED, retry_after=max(1, math.ceil(error.retry_after)))
    if found is BUSY and isinstance(error, AcquireTimeout) and not error.waited:
        return CONFLICT  # a request that does not wait asks whether it is in progress
    if isinstance(error, LeaseLost) and error.closed:
        return STOPPED  # the client was closed before the server cancelled the request
    return found


def header_list(found: Problem) -> list[tuple[bytes, bytes]]:
    """The headers, in ASGI's form."""
    headers: Mapping[str, str] = {
        "Content-Type": CONTENT_TYPE,
        "Content-Length": str(len(found.body)),
        **found.headers,
    }
    return [(name.lower().encode(), value.encode()) for name, value in headers.items()]
