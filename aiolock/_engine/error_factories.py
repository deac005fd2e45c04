"""Makes the errors of acquisitions that failed: each names the lock, and gives advice."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from aiolock._engine.policy import Policy
from aiolock._rate import named
from aiolock.errors import AcquireTimeout, LimitMismatch, QueueFull, StoreError, WouldDeadlock
from aiolock.kinds import KINDS, OTHER
from aiolock.protocol import Differs, Full, Participant
from aiolock.status import of_kind
from aiolock.store import ServerStatus
from aiolock.text import one_line, plain


def not_free(policy: Policy, holders: tuple[Participant, ...]) -> AcquireTimeout:
    """The error of an acquisition that only tried, while another client has the lock."""
    now = KINDS.get(policy.kind, OTHER).not_yet
    return _timeout(policy, f"{now}{_held_by(holders)}", holders)


def not_in_time(  # noqa: PLR0917  # each is a part of the text
    policy: Policy,
    timeout: float,
    left: float,
    holders: tuple[Participant, ...],
    more: int,
    servers: Sequence[ServerStatus],
) -> AcquireTimeout:
    """The error of a timeout: others held the lock, these ``holders`` and ``more``.

    Or too many ``servers`` of a quorum do not vote yet. For one lock of a multilock, only ``left``
    seconds of the timeout were left.
    """
    for_long = KINDS.get(policy.kind, OTHER).not_in_time
    text = f"{for_long} in {timeout:g} s"
    if round(left, 3) < timeout:
        text = f"could not be had in the last {left:.3f} s of {timeout:g} s"
    text += _held_by(holders, more) or _not_voting(servers)
    error = _timeout(policy, text, holders)
    error.more_holders = more
    return error


def _timeout(policy: Policy, text: str, holders: tuple[Participant, ...]) -> AcquireTimeout:
    error = AcquireTimeout(f"{policy.called} {text}")
    error.holders = of_kind(holders, policy.kind)
    return policy.with_name(error)


def _not_voting(servers: Sequence[ServerStatus]) -> str:
    """The reason why no majority of a quorum can vote; empty if it can."""
    not_voting = sorted(
        (each for each in servers if each.state == "not voting"), key=lambda it: it.not_voting
    )
    up = sum(each.state == "up" for each in servers)
    missing = len(servers) // 2 + 1 - up
    if not not_voting or missing <= 0:
        return ""
    first = not_voting[min(missing, len(not_voting)) - 1]  # with it, a majority votes
    when = f" for {first.not_voting:.0f} s more" if first.not_voting else ""
    return f": {len(not_voting)} of {len(servers)} servers do not vote{when}: {first.error}"


def _held_by(holders: tuple[Participant, ...], more: int = 0) -> str:
    if not holders:
        return ""
    first = holders[0]
    where = f"process {first.pid} of {plain(first.host)}" if first.pid else f"client {first.client}"
    where = "a detached lease" if first.detached else where
    where = f"{first.label!r} in {where}" if first.label else where
    more += len(holders) - 1
    others = f"; {more} more hold{'s' * (more == 1)} it, too" if more else ""
    since = f"{datetime.fromtimestamp(first.since, UTC):%Y-%m-%d %H:%M:%S} UTC"
    dead = "" if first.alive else ", which is gone: its lease ends by itself"
    return f": {where} has held it since {since} (fence {first.fence}){dead}{others}"


def unanswered(
    policy: Policy, limit: str, timeout: float, store: object, broken: Exception | None
) -> StoreError:
    """The error if the store did not answer in time; ``broken`` is the error of the link to it."""
    why = f" (the link to it is broken: {one_line(broken)})" if broken is not None else ""
    error = StoreError(
        f"{store!r} did not answer within the {limit} of {timeout:g} s{why}, so nobody knows who"
        f" holds {policy.called}"
    )
    error.__cause__ = broken
    if isinstance(broken, StoreError):
        error.__cause__ = broken.__cause__ or broken
        error.misconfigured = broken.misconfigured
    return policy.with_name(error)


def too_slow(policy: Policy, times: int) -> StoreError:
    """The error if the lock was granted ``times`` times, and each grant arrived too late."""
    return policy.with_name(
        StoreError(
            f"{policy.called} was granted {times} times and each time its lease had ended before we"
            f" knew: ttl={policy.ttl:g} s is too short for this store"
        )
    )


def full(policy: Policy, answer: Full) -> QueueFull:
    """The error if as many waiters as allowed are in the queue."""
    of = f" of the share {policy.share!r}" if policy.share else ""
    most = f"max_waiters={policy.max_waiters}"
    return policy.with_name(
        QueueFull(f"{answer.waiters}{of} wait for {policy.called} already ({most})")
    )


def mismatch(policy: Policy, answer: Differs) -> LimitMismatch:
    """The error if other clients have declared another number."""
    return policy.with_name(
        LimitMismatch(
            f"{policy.called} is in use with {named(answer.known)}, but"
            f" {named(policy.form.declared)} is declared here: all that use it declare the same"
            + (" (its resize() changes it for all)" if policy.form.permits else " number")
        )
    )


def reads_already(policy: Policy) -> WouldDeadlock:
    """The error of a task that reads and wants to write."""
    return policy.with_name(
        WouldDeadlock(
            f"this task reads {policy.name!r} and would wait for itself to write. A read lock is"
            " not upgraded, for of two readers that both want to write neither could go on: release"
            " it and acquire the write lock, or begin with that one and downgrade() it"
        )
    )


def holds_already(policy: Policy) -> WouldDeadlock:
    """The error of a task that wants a lock that it holds."""
    return policy.with_name(
        WouldDeadlock(
            f"this task holds {policy.called} already and would wait for itself:"
            " pass the lease on, or make the lock reentrant=True"
        )
    )
