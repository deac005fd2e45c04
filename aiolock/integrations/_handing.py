"""Handing a lease on with a task: the common part of task frameworks.

`hand` of a framework's module sends a task with the token of a lease in its message. The worker's
decorator finds it there, and adopts the lease instead of acquiring its lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, TypeVar, cast

from aiolock import Lease, LeaseToken, NotHeld
from aiolock.options import Seconds
from aiolock.validation import LONGEST_LABEL, as_label

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

HANDED: Final = "aiolock_lease"
"""The key of the token in what a message has beside its arguments; or the argument itself."""

_MARK: Final = "__aiolock_task__"

Carrier = MutableMapping[str, Any]
"""The part of a message that has the token, under `HANDED`."""


class _NotSent(Exception):
    """The framework has not sent the task, and that is no error."""


def label_for(task: str) -> str:
    """The label of a lease on its way to this task."""
    return as_label(f"for {task}", LONGEST_LABEL)


async def hand_by(
    lease: Lease,
    task: str,
    send: Callable[[LeaseToken], Awaitable[T]],
    *,
    ttl: Seconds,
    label: str | None,
) -> T:
    """Hand the lease on by ``send``; if it returns None, nothing is sent: the lock is released."""
    sent: T | None = None
    with contextlib.suppress(_NotSent):
        async with lease.handing_on(ttl=ttl, label=label or label_for(task)) as token:
            sent = await send(token)
            _check_sent(sent)
    return cast("T", sent)


def _check_sent(sent: object) -> None:
    """Raise if the framework has not sent it."""
    if sent is None:
        raise _NotSent


def marked(function: F) -> F:
    """Note that this function, and whatever wraps it, has one of the decorators."""
    function.__dict__[_MARK] = True
    return function


def is_marked(function: object) -> bool:
    """Whether it has one of the decorators, directly or further inside."""
    return getattr(function, _MARK, False) is True


def check_adopts(name: str, function: object) -> None:
    """Raise `TypeError` if no decorator of this task would adopt a lease."""
    if not is_marked(function):
        raise TypeError(
            f"the task {name} adopts no lease: decorate it with locked(), limited(), once() or"
            " adopted() of Locks"
        )


def of_another_lock(token: LeaseToken, kind: str, name: str) -> ValueError:
    """The error of a task that came with the lease of a lock that none of its decorators has.

    It would run without the lock that its sender has handed on.
    """
    return ValueError(
        f"the task came with a lease of the {token.kind} {token.name!r}, which none of its"
        f" decorators would adopt: the innermost is of the {kind} {name!r}"
    )


def any_token_in(carrier: Carrier) -> LeaseToken | None:
    """The token that came with the running task."""
    text = carrier.get(HANDED)
    return None if text is None else LeaseToken(text)


def without_token(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the task's function."""
    return {key: value for key, value in kwargs.items() if key != HANDED}


def came_without(function: Callable[..., Any]) -> NotHeld:
    """The error of a task that was sent without the lease that it needs."""
    return NotHeld(
        f"{function.__name__}() runs under a lease that is handed on to it, by hand(), and was sent"
        " without one, or is tried again after its lease has ended"
    )
