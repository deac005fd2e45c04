"""The lock of what is waited for, and not held: an event, a latch, a barrier."""

from __future__ import annotations

from collections.abc import Callable

from aiolock._engine.policy import Policy, plain
from aiolock._locks.lock import Lock
from aiolock.options import Seconds
from aiolock.protocol import Rule

Passing = Callable[[str, str, Rule, int, int], Lock]
"""Makes such a lock of its kind, its name, its rule and the two numbers of that (see `Form`)."""


def passing(
    described: Callable[[str, Policy], Lock],
    ttl: float,
    timeout: Seconds | None,
    max_waiters: int | None,
) -> Passing:
    """How to make the lock, with these options: a waiter that is let through holds nothing."""

    def lock(kind: str, name: str, rule: Rule, number: int, declared: int) -> Lock:
        policy = Policy(
            name,
            ttl,
            plain(timeout),
            renew=False,
            max_waiters=max_waiters,
            shared=True,
            kind=kind,
            rule=rule,
            number=number,
            declared=declared,
        )
        return described(kind, policy)

    return lock
