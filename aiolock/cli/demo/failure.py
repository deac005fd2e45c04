"""Failures that stop the demo without being a bug in it: then one line says why."""

from __future__ import annotations

import sqlite3

from redis.exceptions import RedisError

from aiolock import LockError


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


def first(error: BaseException) -> BaseException:
    """The first error in an exception group."""
    match error:
        case BaseExceptionGroup(exceptions=(inner, *_)):
            return first(inner)
        case _:
            return error


def reason(error: BaseException) -> str | None:
    """The failure in one line; None for a bug, which is shown in full."""
    if isinstance(error, DemoError | LockError | RedisError | sqlite3.Error):
        return " ".join(str(error).split())
    return None
