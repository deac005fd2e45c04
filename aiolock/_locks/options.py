"""The options that one kind of lock shares with others, each of them said once.

`LockClient.lock` spells all of them out, with their defaults and what they mean. A method that
takes some of them has ``**options: Unpack[...]`` of a class below, which type checkers know by
name; and `spelled_out` shows them by name at run time too, in ``help()`` and in an editor.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypedDict, TypeVar

from aiolock._engine.policy import OnLost, Seconds

P = ParamSpec("P")
R = TypeVar("R")


class LeaseOptions(TypedDict, total=False):
    """Of whatever is held for a time."""

    ttl: Seconds | None
    timeout: Seconds | None
    max_waiters: int | None
    max_hold: Seconds | None
    on_lost: OnLost
    family: str | None


class ElectionOptions(LeaseOptions, total=False):
    """Of an election."""

    lock_delay: Seconds | None


class MultiLockOptions(LeaseOptions, total=False):
    """Of several locks as one."""

    renew: bool


class SemaphoreOptions(MultiLockOptions, total=False):
    """Of permits."""

    min_hold: Seconds | None
    lock_delay: Seconds | None


class RWLockOptions(SemaphoreOptions, total=False):
    """Of readers and writers."""

    reentrant: bool


class LockOptions(RWLockOptions, total=False):
    """Of a lock: all there are."""

    confirm: bool
    priority: int


def spelled_out(
    lock: Callable[..., Any], options: type[LeaseOptions]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a method that takes ``**options`` show them as ``lock`` does, and take no others."""
    known = options.__annotations__.keys()
    named = [p for p in inspect.signature(lock).parameters.values() if p.name in known]

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(method)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        names = {p.name for p in (*own, *named)}

        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in names:
                    what = f"{method.__name__}() got an unexpected keyword argument {name!r}"
                    raise TypeError(what)
            return method(*args, **kwargs)

        shown = signature.replace(parameters=[*own, *named])
        call.__signature__ = shown  # type: ignore[attr-defined]  # what `inspect` looks for
        return call

    return decorate
