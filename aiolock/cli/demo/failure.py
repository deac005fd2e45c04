"""What may stop the demo without being a fault of its own: then one line says why."""

from __future__ import annotations

import sqlite3

from redis.exceptions import RedisError

from aiolock import LockError


class DemoError(Exception):
    """The demo cannot go on; its text says why."""


def first(error: BaseException) -> BaseException:
    """The first of those that an exception group is made of."""
    match error:
        case BaseExceptionGroup(exceptions=(inner, *_)):
            return first(inner)
        case _:
            return error


def reason(error: BaseException) -> str | None:
    """In one line, what has failed; None where it is a bug, to be seen in full."""
    if isinstance(error, DemoError | LockError | RedisError | sqlite3.Error):
        return " ".join(str(error).split())
    return None
