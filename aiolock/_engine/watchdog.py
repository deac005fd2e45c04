"""The watchdog: it keeps a client's holds, renews their leases, and ends those that are lost.

A hold enters by `Watchdog.keep` and leaves by `release` or `lose`. Between these, the timer wheel
calls `_due` at a third of each lease: all holds that are due are renewed in a few commands, one for
each place where the store keeps them. Each answer moves deadlines and plans the next renewal.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cached_property, partial
from operator import call
from typing import Any, Final

from aiolock._clock import clock
from aiolock._engine.acquisition import Acquisition, Holders, Phase
from aiolock._engine.answer_deadlines import AnswerDeadlines
from aiolock._engine.diagnostics.events import Events
from aiolock._engine.forgotten import Forgotten
from aiolock._engine.lease_state import ALIVE, LeaseState, LossReason
from aiolock._engine.limits import Limits
from aiolock._engine.local_handoff import LocalHandoff
from aiolock._engine.pending_finishes import PendingFinishes
from aiolock._engine.released import Released
from aiolock._engine.releases import Releases
from aiolock._engine.timer_wheel import SOON, TimerWheel
from aiolock._futures import retrieve, running_task, succeeded
from aiolock._turns import Backlog
from aiolock.async_library import check_not_trio
from aiolock.errors import ClientClosed, StoreError
from aiolock.protocol import Downgrade, Form, Release, Renew, Renewal, WaiterId, lasts, new
from aiolock.store import Store

_BATCH: Final = 256
"""Leases in one renewal call: a few hundred microseconds of the server's time."""
_BATCHES: Final = 2
"""Answers to such calls that are processed in one iteration of the event loop."""
_COPIES: Final = 6.0
"""Seconds after a connection broke in which copies of what was sent over it may be carried out: the
stores give each five seconds, by their own clocks."""
_LOST: Final = 32
"""Losses that are processed in one iteration of the event loop: each cancels bodies and calls
observers. The others are not used meanwhile: whatever uses a lease checks its deadline first."""
_JITTER: Final = 0.85
"""The least part of a pause until a renewal that is waited for: see `Watchdog._due`."""
_NOT_SOON: Final = 3 * SOON / _JITTER
"""Seconds of a lease that are left, with which its first renewal is not due before `SOON`."""
_AWAKE: Final = 1.0
"""Seconds, while anything is held, between checks of whether the machine was suspended."""

_forks = 0
"""The number of forks between this process and the first that imported aiolock. Compared instead of
process ids, because asking for the id is a system call."""


def _forked() -> None:
    global _forks  # noqa: PLW0603  # the hook takes no arguments
    _forks += 1


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_forked)


_Sent = tuple[Acquisition, Renewal, int]
"""A renewal that was sent, and its number (see `Renewals.sent`); 0 for a question."""


class Watchdog:
    """Renews every lease of a client that is due, in batches, and notices when one is lost.

    A renewal has one of three answers: *renewed*; *refused*, and then the lease is lost now; or
    *unknown*, which changes nothing. Then the watchdog tries again until the local deadline, which
    counts from before the last confirmed request was sent. So no holder relies on a lease that has
    ended while the store hangs, and no lease is lost by a short failure of the store.
    """

    def __init__(self, store: Store, events: Events, limits: Limits) -> None:
        self.events = events
        self.limits = limits
        self.loop = loop = asyncio.get_running_loop()
        self.time = clock(loop)
        # The loop is passed: asking for the running loop costs a system call (getpid) each time.
        self.current_task = partial(running_task, loop)
        self._forks = _forks
        self._shard_of = store.features.shard_of
        self.holds: dict[WaiterId, Acquisition] = {}
        self.handoff = self._store = LocalHandoff(
            store, self.time, self.holds, self.lose, self._give_up
        )
        self.owned: dict[asyncio.Task[Any] | None, dict[str, Acquisition]] = {}
        """By task and key. Changed without a call, because every acquisition comes this way."""
        self.holders: dict[str, dict[asyncio.Task[Any] | None, Acquisition]] | None = None
        """The same by key, and then by task: see `index`."""
        self.watched: dict[asyncio.Task[Any] | None, dict[Acquisition, None]] = {}
        """Those that are kept until their owner ends: see `Forgotten`."""
        longest = math.inf if self.time == loop.time else _AWAKE
        self.wheel = TimerWheel(self.time, self._due, self._first_due, longest=longest)
        self._jitter = 1.0
        self._expired = Backlog(self.check, most=_LOST)
        self._refused = Backlog(partial(self.lose, reason=LossReason.REFUSED), most=_LOST)
        self._answered = Backlog[Callable[[], None]](call, most=_BATCHES)
        """Answers about many leases that are still to be processed."""
        self.closing: asyncio.Event | None = None
        """Set by each body that ends, while the client closes: see `closing`."""
        self.answer_deadlines = AnswerDeadlines(self.time)
        self.releases = Releases(self.handoff)

    @cached_property
    def finishes(self) -> PendingFinishes:
        """Made by the first `once` that ends."""
        return PendingFinishes(self.handoff, self.time)

    @cached_property
    def forgotten(self) -> Forgotten:
        """Made by the first lease without a body."""
        return Forgotten(self)

    @property
    def is_here(self) -> bool:
        """Whether this is the process that opened it, and no fork of that."""
        return self._forks == _forks

    def check_here(self) -> None:
        """`ClientClosed` unless this is the process and the event loop that opened it.

        After a fork the connections are the parent's: a command of the child would end up in the
        middle of the parent's own.
        """
        if self._forks != _forks:
            raise ClientClosed(
                f"this client was opened in another process, of which this one ({os.getpid()}) is"
                " a fork: open one in each process, after the fork"
            )
        # This function raises nothing where no loop runs, as when a generator is closed late.
        if asyncio._get_running_loop() is not self.loop:
            check_not_trio()
            raise ClientClosed(
                "this client was opened in another event loop: open one in each event loop"
            )

    def held_by(self, task: asyncio.Task[Any] | None, key: str) -> Acquisition | None:
        """The task's hold of this key, if it has one and has not lost it."""
        if task not in self.owned:
            return None
        hold = self.owned[task].get(key)
        if hold is not None:
            self.check(hold)
        return None if hold is None or hold.state not in ALIVE else hold

    def keep(self, hold: Acquisition, now: float) -> None:
        """Keep and renew a grant from now on, with few opcodes: every acquisition comes here."""
        task, key, owned = hold.owner, hold.policy.key, self.owned
        try:
            self.holds[hold.waiter] = hold
            if task in owned:
                owned[task][key] = hold
            else:
                owned[task] = {key: hold}
            if self.holders is not None:
                self.holders.setdefault(key, {})[task] = hold
            hold.since = now
            left, wheel = hold.deadline - now, self.wheel
            if left < _NOT_SOON or left * 2000 < hold.granted_for:
                wheel.schedule(hold, self._first_due(hold), now)
            else:
                wheel.young[hold] = None
                if not wheel.promotes:
                    wheel.promote_soon()
            assert hold.phase is Phase.GRANTED, f"{hold!r} cannot become held"
            hold.phase = Phase.HELD
        except BaseException:
            self.forget(hold)
            raise

    def index(self) -> Holders:
        """What is held, by key and task, from now on: only searches for deadlocks need it."""
        if self.holders is None:
            self.holders = {}
            for task, owned in self.owned.items():
                for key, hold in owned.items():
                    self.holders.setdefault(key, {})[task] = hold
        return self.holders

    def _first_due(self, hold: Acquisition) -> float:
        """When a hold is due that was not renewed yet: see `_due_at`."""
        left, lease = hold.deadline - hold.since, hold.granted_for
        if not (hold.policy.renew or hold.unconfirmed):
            return hold.deadline
        if left < lease / 2000:
            # Its grant was processed late, so more than half of the lease has passed.
            return hold.since
        return hold.since + min(lease / 3000 * self._jitter, left / 3)

    def _due_at(self, hold: Acquisition, lease: int, now: float) -> float:
        """When a hold is due next: after a third of its lease; without renewal, at its deadline.

        The time left until the deadline counts, too: less is left if a grant or an answer was
        processed late.
        """
        if hold.policy.renew or hold.unconfirmed:
            return now + min(lease / 3000 * self._jitter, (hold.deadline - now) / 3)
        return hold.deadline

    def abandon(self, hold: Acquisition) -> None:
        """Release without waiting; a release that is not answered is sent again (`Releases`)."""
        if (released := self.release(hold)) is not None:
            released.then(partial(self.release_answered, hold))

    # The end of a hold

    def release(self, hold: Acquisition, *, finished: int = 0) -> Released | None:  # noqa: C901, PLR0912  # flat: every acquisition ends here
        """Release a hold now; the release, or None if it was not ours any more.

        With ``finished``, the store remembers for so many ms that the work of a `once` is done.
        """
        now = self.time()
        if hold.state not in ALIVE or now >= hold.deadline:
            return self._release_ended(hold)
        hold.state = LeaseState.RELEASED
        policy, waiter, handoff = hold.policy, hold.waiter, self.handoff
        task, key, holds, young = hold.owner, policy.key, self.holds, self.wheel.young
        # As `forget`, without the calls.
        if waiter in holds:
            del holds[waiter]
        if task in self.owned and key in (owned := self.owned[task]) and owned[key] is hold:
            del owned[key]
            if not owned:
                del self.owned[task]
        if self.holders is not None:
            self._unindex(hold)
        if self.watched:
            self.forgotten.unwatch(hold)
        if hold in young:  # as most are
            del young[hold]
        else:
            self.wheel.forget(hold)
        if self.events.often:
            self.events.released(hold, now)
        if finished:
            hold.finishes = True
            handoff.ended(hold)
            hold.released = Released().follow(self.finishes.finish(hold, finished))
            return hold.released
        if key in handoff.names and handoff.hand_off(hold, handoff.names[key], now) is not None:
            return hold.released
        # After a crossing, the store may have queued the waiter once more. So the release names no
        # grant, and removes the waiter wherever it is: see `Acquisition.crossed`.
        fence = 0 if hold.crossed else hold.fence
        operation: Release = new(Release, (key, waiter, policy.form, fence, True, False))
        hold.released = released = Released()
        if key in handoff.names or handoff.release_to is None:
            handoff.release(operation, released)
        else:
            handoff.release_to(operation, released)
        return released

    def _release_ended(self, hold: Acquisition) -> Released | None:
        """`release` of what has ended, by release or loss, or does at this moment."""
        self.check(hold)
        if hold.state is LeaseState.RELEASED or hold.state is LeaseState.DETACHED:
            return hold.released
        if hold.released is None:
            self._release_lost(hold)
        return None

    def _release_lost(self, hold: Acquisition) -> None:
        """Release a hold that was lost, if the store may still have it, or its waiter."""
        if hold.crossed or _may_be_at_store(hold.reason):
            policy, fence = hold.policy, 0 if hold.crossed else hold.fence
            lost = _closes_as_lost(hold)
            operation = Release(policy.key, hold.waiter, policy.form, fence, lost=lost)
            hold.released = Released().follow(self.handoff.submit(operation))
            hold.released.then(partial(self.release_answered, hold))

    def release_answered(self, hold: Acquisition, released: Released) -> None:
        """Process the answer, or the failure, of a release that no task awaits."""
        if isinstance(released.failure, StoreError):
            self.release_failed(hold, released.failure)

    def release_failed(self, hold: Acquisition, failure: StoreError) -> None:
        """Send a release again that has failed; its caller has been given the error.

        Finishes and hand-offs are sent again by `PendingFinishes` and `LocalHandoff`.
        """
        if not hold.finishes and not hold.handed_off:
            release = Release(
                *(hold.policy.key, hold.waiter, hold.policy.form),
                0 if hold.crossed else hold.fence,
                entered=True,
                lost=_closes_as_lost(hold),
            )
            self.releases.again(release, hold.renews_for, failure)

    def give_up(self, acquisition: Acquisition) -> None:
        """Release whatever the store has for an acquisition that is not held."""
        policy = acquisition.policy
        _ = self.releases.release(policy.key, acquisition.waiter, policy.form, policy.lease)

    def _give_up(self, key: str, waiter: WaiterId, form: Form, fence: int) -> None:
        _ = self.releases.release(key, waiter, form, form.claim, fence=fence)

    def check(self, hold: Acquisition) -> None:
        """Notice a deadline that has passed, before the timer does: the loop may have blocked."""
        alive = hold.state in ALIVE
        if alive and self.time() >= hold.deadline:
            self.lose(hold, LossReason.EXPIRED)

    def lose(self, hold: Acquisition, reason: LossReason | str) -> None:
        """A hold is not ours any more: set its event and cancel its bodies. Idempotent."""
        if hold.state in (LeaseState.LOST, LeaseState.RELEASED):
            return
        if (
            reason is LossReason.EXPIRED
            and hold.ends is not None
            and self.time() >= hold.ends - 0.1
        ):
            reason = LossReason.MAX_HOLD
        hold.state = LeaseState.LOST
        hold.reason = reason
        if self.loop.is_closed():  # and whoever looks at it is in another, or in none
            return
        self.forget(hold)
        if hold.lost is not None:
            hold.lost.set()
        if hold.bodies:
            for body in hold.inside:
                body.cancel()
        self.handoff.ended(hold)
        self.events.lost(hold, self.time())
        if reason is LossReason.MAX_HOLD:
            # Release it now, not when its body has ended, which may take long. If the lease ended
            # at the store, the store would take this client for dead and remove its waiters from
            # the queue for a while. (With a lock_delay, this release counts as a loss.)
            self.release(hold)

    def shorten(self, hold: Acquisition, until: float) -> None:
        """A hold's lease is certain until then only, and no answer under way changes that."""
        hold.shorten(until)
        now = self.time()
        self.wheel.schedule(hold, now, now)  # it is renewed at once, if it can be

    def affordable(self, hold: Acquisition, ttl: int) -> int:
        """``ttl`` ms, or the rest of ``max_hold``, if that is less."""
        if hold.ends is None:
            return ttl
        return max(1, min(ttl, int((hold.ends - self.time()) * 1000)))

    def ask(self, hold: Acquisition, ttl: int) -> asyncio.Future[list[bool | None]]:
        """Ask the store whether a hold is still ours; renew it for ``ttl`` ms (0: only ask)."""
        now, number = self.time(), 0
        if ttl:
            # The answer may be lost, so rely only on the shortest lease that the store may have
            # set: the new one may be shorter than the old one, or than that of a renewal that is
            # still under way.
            hold.deadline = min(hold.deadline, now + lasts(ttl))
            number = hold.renews(ttl, now, extends=True)
            self.wheel.schedule(hold, self._due_at(hold, ttl, now), now)
        renewal = Renewal(hold.policy.key, hold.waiter, hold.policy.form, hold.fence, ttl)
        batch = [(hold, renewal, number)]
        answer = self._renew(batch)
        answer.add_done_callback(partial(self._renewed, batch, now))
        return answer

    def may_come_twice(self) -> None:
        """A connection broke: an unanswered renewal may be carried out once more, late.

        If it is shorter than a lease that was confirmed meanwhile, it shortens that lease.
        """
        until = self.time() + _COPIES
        for hold in self.holds.values():
            if hold.renewals is not None:
                hold.renewals.may_come_twice(until)

    def downgrade(self, hold: Acquisition) -> asyncio.Future[int]:
        """Let a writer's hold share the lock; the future of the store's answer."""
        downgraded = self._store.submit(
            Downgrade(hold.policy.key, hold.waiter, hold.policy.form, hold.fence)
        )
        downgraded.add_done_callback(retrieve)
        return downgraded

    # Renewing

    def forget(self, hold: Acquisition) -> None:
        """It has ended, and is not renewed any more."""
        if hold.waiter in self.holds:
            del self.holds[hold.waiter]
        self.remove_owned(hold)
        if self.watched:
            self.forgotten.unwatch(hold)
        self.wheel.forget(hold)

    def remove_owned(self, hold: Acquisition) -> None:
        """Remove it from both indexes; each by itself, as `keep` may have been interrupted."""
        task, key = hold.owner, hold.policy.key
        if task in self.owned and key in (owned := self.owned[task]) and owned[key] is hold:
            del owned[key]
            if not owned:
                del self.owned[task]
        if self.holders is not None:
            self._unindex(hold)

    def _unindex(self, hold: Acquisition) -> None:
        """Remove it from `holders`."""
        holders, task, key = self.holders, hold.owner, hold.policy.key
        assert holders is not None
        if key in holders and task in (held := holders[key]) and held[task] is hold:
            del held[task]
            if not held:
                del holders[key]

    def _due(self, holds: Sequence[Acquisition], now: float) -> None:
        """Renew or expire the holds that are due."""
        # Without jitter, a thousand processes that started together would renew together for ever.
        self._jitter = random.uniform(_JITTER, 1.0)  # noqa: S311  # not a secret
        renewals: list[_Sent] = []
        expired: list[Acquisition] = []
        for hold in holds:
            if now >= hold.deadline:
                expired.append(hold)
            else:
                self._renew_if_due(hold, now, renewals)
        self._expired.add(expired)
        for shard in self._shards(renewals):
            for start in range(0, len(shard), _BATCH):
                batch = shard[start : start + _BATCH]
                self._renew(batch).add_done_callback(partial(self._renewed_later, batch, now))

    def _shards(self, renewals: list[_Sent]) -> Iterable[list[_Sent]]:
        """Renewals by shard: one shard that does not answer then delays no lease of another."""
        if self._shard_of is None:
            return [renewals]
        shards: dict[Hashable, list[_Sent]] = {}
        for sent in renewals:
            shards.setdefault(self._shard_of(sent[1].name), []).append(sent)
        return shards.values()

    def _renew_if_due(self, hold: Acquisition, now: float, renewals: list[_Sent]) -> None:
        if hold.renewals is not None and hold.renewals.asking:
            # The renewal before is not answered. It is not sent again here: a store that sent it
            # repeats it by itself, or fails it, and then `_renewed` plans the next one.
            hold.state = LeaseState.AT_RISK
            self.wheel.schedule(hold, hold.deadline, now)
            return
        look_at = hold.deadline
        if hold.policy.renew or hold.unconfirmed:
            ttl = self.affordable(hold, hold.renews_for)
            if not hold.policy.renew:  # the claim becomes the full ttl, counted from the grant
                ttl = max(1, min(ttl, int((hold.counts_from - now) * 1000) + hold.renews_for))
            if now + lasts(ttl) > hold.deadline + 0.001:
                number = hold.renews(ttl, now)
                assert hold.renewals is not None
                hold.renewals.asking = number
                renewal = Renewal(hold.policy.key, hold.waiter, hold.policy.form, hold.fence, ttl)
                renewals.append((hold, renewal, number))
                self.wheel.schedule(hold, min(hold.deadline, now + max(0.05, ttl / 6000)), now)
                return
            if (
                ttl == hold.renews_for
            ):  # it was extended for longer than renewals last: renew it in time
                look_at = hold.deadline - ttl / 1500
        hold.state = LeaseState.HELD  # no answer is missing that could still change it
        self.wheel.schedule(hold, look_at, now)

    def _renew(self, batch: list[_Sent]) -> asyncio.Future[list[bool | None]]:
        return self._store.submit(Renew([renewal for _, renewal, _ in batch]))

    def _renewed_later(
        self, batch: Sequence[_Sent], sent: float, answer: asyncio.Future[list[bool | None]]
    ) -> None:
        self._answered.add([partial(self._renewed, batch, sent, answer)])

    def _renewed(
        self,
        batch: Sequence[_Sent],
        sent: float,
        answer: asyncio.Future[list[bool | None]],
    ) -> None:
        unknown = not succeeded(answer)
        held: Sequence[bool | None] = [None] * len(batch) if unknown else answer.result()
        now = self.time()
        refused = list[Acquisition]()
        for (hold, renewal, number), still in zip(batch, held, strict=True):
            if hold.renewals is not None and hold.renewals.asking == number:
                hold.renewals.asking = 0
            if hold.state not in ALIVE:
                continue
            doubt = still is None or (not still and self.handoff.in_doubt(hold))
            if not still and not doubt:
                refused.append(hold)
            elif doubt and not renewal.ttl:
                pass  # the store was only asked whether it is ours, so no renewal is missing
            elif doubt:
                hold.state = LeaseState.AT_RISK
                again = max(0.02, min(1.0, (hold.deadline - now) / 5))
                self.wheel.schedule(hold, min(hold.deadline, now + again), now)
            else:
                hold.state = LeaseState.HELD
                if renewal.ttl and hold.renewed(number, sent, renewal.ttl):
                    self.wheel.schedule(hold, self._due_at(hold, renewal.ttl, now), now)
        if len(batch) > 1:
            self._refused.add(refused)
        else:  # at once: a task that asked about this hold looks at its state next
            for hold in refused:
                self.lose(hold, LossReason.REFUSED)


def _closes_as_lost(hold: Acquisition) -> bool:
    """Whether its release must count as a loss at the store, for the sake of ``lock_delay``.

    The lease has ended by our clock, which is a little before it ends by the store's: for the store
    this would be a release in time.
    """
    ended = hold.reason in {LossReason.EXPIRED, LossReason.MAX_HOLD}
    return ended and hold.policy.form.after_loss > 0


def _may_be_at_store(reason: LossReason | str) -> bool:
    return isinstance(reason, LossReason) and reason.may_be_at_store
