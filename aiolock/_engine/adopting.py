"""Adopting a lease that was detached, by its token: see `detaching`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiolock._engine.acquisition import Acquisition, Phase
from aiolock._engine.diagnostics import deadlock
from aiolock._engine.lease import Lease, LeaseWithoutBody, lease_of, not_entered
from aiolock._engine.policy import Policy, interned
from aiolock._prompt import following
from aiolock.errors import LeaseLost, TokenSpent
from aiolock.lease_token import LeaseToken
from aiolock.options import OnLost
from aiolock.protocol import Adopt, Discard, WaiterId, detached, lasts

if TYPE_CHECKING:
    from aiolock._engine.engine import Engine


def described(
    engine: Engine,
    token: LeaseToken,
    ttl: float,
    *,
    on_lost: OnLost = "cancel",
    max_hold: float | None = None,
) -> Policy:
    """The policy of what is adopted with this token; `ValueError` if it is of another prefix."""
    prefix = engine.limits.prefix
    if token._prefix != prefix:
        raise ValueError(f"{token!r} is of the prefix {token._prefix!r}, not of {prefix!r}")
    form = token._form
    policy = Policy(
        token.name,
        ttl,
        renew=not form.fixed,
        max_hold=max_hold,
        on_lost=on_lost,
        once=form.once,
        remember=form.remember,
        shared=form.shared,
        downgrades=form.downgrades,
        kind=token.kind,
        rule=form.rule,
        number=form.number,
        declared=form.declared,
    )
    object.__setattr__(policy, "form", interned(form))  # frozen. As the store has it
    engine.limits.check_kind(token.kind, token.name)
    engine.limits.check_ttl(ttl)
    return policy


async def adopt(
    engine: Engine,
    token: LeaseToken,
    policy: Policy,
    begins: Callable[[Lease], object],
    *,
    owner: asyncio.Task[Any] | None,
    label: str,
    lease_type: type[Lease] = LeaseWithoutBody,
) -> Lease:
    """See `LockClient.adopt`. ``begins`` gets the lease before anything else does."""
    engine.check()
    watchdog, acquirer = engine.watchdog, engine.acquirer
    acquirer.number += 1
    hold = Acquisition()
    hold.waiter = waiter = WaiterId(engine.client, acquirer.number)
    hold.policy, hold.owner, hold.label = policy, owner, label
    hold.lineage, hold.shared = deadlock.lineage.get(), token._shared
    hold.began = hold.last_asked = watchdog.time()
    engine.slow_monitor.wake()
    adopting = Adopt(policy.key, waiter, policy.form, token.fence, token._key, policy.lease)
    answer = watchdog.handoff.submit(adopting)

    def give_up() -> None:
        answer.cancel()  # or it could be sent again, behind the release
        watchdog.give_up(hold)

    lease: Lease | None = None
    try:
        engine.on_close.add(give_up)
        try:
            await following(answer)
        finally:
            engine.on_close.discard(give_up)
        engine.check()  # while it closes, an answer comes too late
        with policy.errors_named():
            granted = answer.result()
        if granted is not None:
            now = watchdog.time()
            hold.fence, hold.granted_for = granted.fence, granted.lease
            hold.deadline = hold.began + lasts(granted.lease)
            _check_in_time(hold, now)
            if policy.max_hold is not None:
                hold.ends = now + policy.max_hold
            if not policy.renew:
                hold.counts_from = hold.began
            hold.phase = Phase.GRANTED
            watchdog.keep(hold, now)
            if watchdog.events.often:
                watchdog.events.acquired(hold)
            lease = lease_of(lease_type, watchdog, hold, shares=policy.shared)
            begins(lease)
            return lease
    except BaseException:
        if waiter in watchdog.holds:
            not_entered(watchdog, hold, lease)
        else:
            give_up()
        raise
    error = policy.with_name(
        TokenSpent(
            f"the token of {policy.called} (fence {token.fence}) is spent: it was adopted or"
            " discarded before, or its time has ended, or somebody broke the lock"
        )
    )
    error.fence = token.fence
    raise error


def _check_in_time(hold: Acquisition, now: float) -> None:
    if now >= hold.deadline:
        policy = hold.policy
        error = policy.with_name(
            LeaseLost(
                f"{policy.called} (fence {hold.fence}) was adopted, but its ttl of {policy.ttl:g} s"
                " had passed when the store's answer came: it was given back"
            )
        )
        error.fence = hold.fence
        raise error


async def discard(engine: Engine, token: LeaseToken) -> int:
    """See `LockClient.discard`."""
    engine.check()
    policy = described(engine, token, 1.0)
    with policy.errors_named():
        return await engine.submit(
            Discard(policy.key, detached(token._key), token._form, token.fence)
        )
