"""Detaching a lease: from then on it belongs to whoever has its token.

It is one step at the store (`Detach`), and so is adopting it, so nobody else holds the lock in
between. For the client that detaches, the lease ends when the command is *sent*, whatever becomes
of the command: otherwise it could still rely on a lease that another client has adopted. If it then
learns no answer, or does not wait for one, nobody has the token, so it gives up both.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from typing import TYPE_CHECKING, Final

from aiolock._engine.diagnostics.labels import page_key
from aiolock._engine.lease_state import LeaseState, LossReason
from aiolock._futures import failure_of, retrieve
from aiolock.errors import StoreError, Unsupported
from aiolock.lease_token import LeaseToken, token_of
from aiolock.protocol import WAS_ABSENT, Detach, Discard, Post, Release, detached

if TYPE_CHECKING:
    from aiolock._engine.lease import Lease

_KINDS: Final = ("lock", "semaphore", "once")
"""Those whose leases can be handed on."""


async def detach(lease: Lease, ttl: int, label: str) -> LeaseToken:
    """See `Lease.detach`; ``ttl`` in ms."""
    hold, watchdog = lease._hold, lease._watchdog
    policy = hold.policy
    watchdog.check_here()
    lease._still_ours()
    if policy.kind not in _KINDS:
        why = (
            "it is one of those of a whole path"
            if policy.kind == "path"
            else "it is its client's own"
        )
        raise TypeError(f"a lease of {policy.called} cannot be handed on: {why}")
    if hold.speaking > 1:
        raise policy.with_name(
            Unsupported(
                f"{policy.called} was entered {hold.speaking} times by its owner: hand it on when"
                " all but one of these have been left"
            )
        )
    key = secrets.token_urlsafe(16)
    form, fence = policy.form, hold.fence
    # First, since nothing may raise between the command and what gives it up.
    token = token_of(
        key=key,
        kind=policy.kind,
        name=policy.name,
        fence=fence,
        form=form,
        prefix=watchdog.limits.prefix,
        shared=hold.shared,
    )
    answer = watchdog.handoff.submit(Detach(policy.key, hold.waiter, form, fence, key, ttl))
    if answer.done() and isinstance(failure := failure_of(answer), Unsupported):
        raise policy.with_context(failure)  # and it is held as before
    try:
        _end(lease)
        posted = _post_label(lease, label, ttl) if label else None
        with policy.errors_named():
            was = await answer
        if posted is not None and was != WAS_ABSENT:
            with contextlib.suppress(StoreError):  # only shown to people
                await posted
    except BaseException:
        hold.state = LeaseState.RELEASED
        releases = watchdog.releases
        _ = releases.send(Release(policy.key, hold.waiter, form, fence), hold.renews_for)
        _ = take_back(lease, token)
        raise
    if was == WAS_ABSENT:
        watchdog.lose(hold, LossReason.REFUSED)
        raise lease._loss()
    return token


def _end(lease: Lease) -> None:
    """The lease ends here: the command by which it was detached is sent."""
    hold, watchdog = lease._hold, lease._watchdog
    hold.state = LeaseState.DETACHED
    lease._ended, hold.speaking, hold.leases = True, 0, ()
    watchdog.forget(hold)
    # Its waiter is no holder any more, so what is directly behind it cannot be handed the lock.
    watchdog.handoff.returns(hold)
    if hold.crossed:  # the store may have queued its waiter once more
        watchdog.give_up(hold)
    if watchdog.events.often:
        watchdog.events.released(hold, watchdog.time())


def _post_label(lease: Lease, label: str, ttl: int) -> asyncio.Future[int]:
    """Post a label for whoever asks for a status."""
    value = json.dumps({0: [0, False, label]}, separators=(",", ":"))
    posted = lease._watchdog.handoff.submit(
        Post(page_key("", lease.fence), 1, token="", declared=0, value=value, remember=ttl)
    )
    posted.add_done_callback(retrieve)
    return posted


def take_back(lease: Lease, token: LeaseToken) -> asyncio.Future[int]:
    """Discard a token, and if that fails, try again; the answer to the first try."""
    hold = lease._hold
    discard = Discard(hold.policy.key, detached(token._key), token._form, token.fence)
    return lease._watchdog.releases.send(discard, hold.renews_for)
