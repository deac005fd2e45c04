"""The options that one kind of lock shares with others, each of them defined once.

`LockClient.lock` spells all of them out, with their defaults and what they mean. A method that
takes some of them has ``**options: Unpack[...]`` of a class below, which type checkers resolve by
name; and `spelled_out` shows them by name at run time too, in ``help()`` and in an editor.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypedDict, TypeVar

from aiolock._engine.policy import OnLost, Seconds, unexpected

P = ParamSpec("P")
R = TypeVar("R")


class LeaseOptions(TypedDict, total=False):
    """Options of all kinds that hold a lease."""

    ttl: Seconds | None
    """Seconds for which the store keeps a lease that nobody renews; the client's, if None."""
    timeout: Seconds | None
    """Seconds that `Lock.acquire` waits at most; None waits as long as it takes."""
    max_waiters: int | None
    """`QueueFull` at once when this many wait already."""
    max_hold: Seconds | None
    """Seconds after which the lease is no longer renewed, and so is lost."""
    on_lost: OnLost
    """``"cancel"`` cancels the body of ``async with``; ``"signal"`` only sets `Lease.lost`."""
    family: str | None
    """What such names have in common, for metrics; the name up to its first colon, if None."""


class ElectionOptions(LeaseOptions, total=False):
    """Options of an election."""

    lock_delay: Seconds | None
    """Seconds without a grant after a holder has *lost* its lease."""


class MultiLockOptions(LeaseOptions, total=False):
    """Options of several locks as one."""

    renew: bool
    """Whether the lease is renewed while it is held."""


class SemaphoreOptions(MultiLockOptions, total=False):
    """Options of a semaphore."""

    min_hold: Seconds | None
    """Seconds from a grant until its permits are granted again."""
    lock_delay: Seconds | None
    """Seconds until permits are granted again after their holder has *lost* them."""


class RWLockOptions(SemaphoreOptions, total=False):
    """Options of a readers-writer lock."""

    reentrant: bool
    """Whether the task that holds the lock may acquire it again."""


class LockOptions(RWLockOptions, total=False):
    """Options of a lock: all there are."""

    confirm: bool
    """Whether leaving the body waits until the store has confirmed the release."""
    priority: int
    """From -9 to 9: waiters with a lower number come before those with a higher one."""


def without_unknown(method: Callable[P, R]) -> Callable[P, R]:
    """Show a method without its ``**unknown``, which is there for a better error only."""
    signature = inspect.signature(method)
    shown = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    method.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]  # as below
    return method


def named(method: Callable[P, R]) -> Callable[P, R]:
    """Have an argument that the method does not know named, with the one that may be meant."""
    known = inspect.signature(method).parameters

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                raise unexpected(method.__name__, name, known)
        return method(*args, **kwargs)

    return call


def spelled_out(
    lock: Callable[..., Any], options: type[LeaseOptions]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Show the ``**options`` of a method as the parameters of ``lock``, and accept no others."""
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
                    raise unexpected(method.__name__, name, names)
            return method(*args, **kwargs)

        shown = signature.replace(parameters=[*own, *named])
        call.__signature__ = shown  # type: ignore[attr-defined]  # what `inspect` looks for
        return call

    return decorate
