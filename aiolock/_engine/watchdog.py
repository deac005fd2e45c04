"""The watchdog: a client's holds, their renewal, and the deadlines they must not outlive."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import warnings
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from operator import call
from typing import Any, Final

from aiolock._clock import clock
from aiolock._dropped import DroppedLease, on_dropped
from aiolock._engine.answer_deadlines import AnswerDeadlines
from aiolock._engine.events import Events
from aiolock._engine.grant import lasts
from aiolock._engine.hold import ALIVE, Handle, Hold, LeaseState, LossReason, Owner, without
from aiolock._engine.limits import Limits
from aiolock._engine.local_handoff import LocalHandoff
from aiolock._engine.pending_finishes import PendingFinishes
from aiolock._engine.releases import Release, Releases
from aiolock._engine.timer_wheel import TimerWheel
from aiolock._turns import Backlog, turns
from aiolock.async_library import check_not_trio
from aiolock.errors import ClientClosed, StoreError
from aiolock.store import Form, Renewal, Sharded, Store, WaiterId

_BATCH: Final = 256
"""Leases in one renewal call: a few hundred microseconds of the server's time."""
_BATCHES: Final = 2
"""Answers of such calls that are heard in one iteration of the event loop."""
_COPIES: Final = 6.0
"""Seconds after a connection broke in which copies of what was sent over it may be carried out: the
stores give each five seconds, by their own clocks."""
_LOST: Final = 32
"""Leases that end in one iteration of the event loop, where many end at once: each cancels bodies,
and observers are told of it. What uses a lease looks at its deadline by itself."""
_ENDING: Final = 6
"""Units of work to end one hold: see `Turns`."""
_AWAKE: Final = 1.0
"""Seconds, while anything is held, between checks of whether the machine was suspended."""

_forks = 0
"""How many forks lie between this process and the first that imported aiolock."""


def _forked() -> None:
    global _forks  # noqa: PLW0603  # the hook takes no arguments
    _forks += 1


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_forked)


_Sent = tuple[Hold, Renewal, int]
"""A renewal that was sent, with its number for that hold (see `Hold.sent`); 0 for a question."""


class Watchdog:
    """Renews every lease of a client that is due, in batches, and notices when one is lost.

    A renewal has one of three answers: *renewed*; *refused*, and then the lease is lost now; or
    *unknown*, which changes nothing: the watchdog tries again until the local deadline, which
    counts from before the last confirmed request was sent. So a store that hangs cannot make a
    holder believe in a lease that has ended, and a short failure of it takes no lease away.
    """

    def __init__(self, store: Store, events: Events, limits: Limits) -> None:
        self.events = events
        self.limits = limits
        self._loop = loop = asyncio.get_running_loop()
        self.time = clock(loop)
        # The loop is passed: asking for the running loop costs a system call (getpid) each time.
        self.current_task = partial(asyncio.current_task, loop)
        self._forks = _forks
        self._sharded = store if isinstance(store, Sharded) else None
        self.holds: dict[WaiterId, Hold] = {}
        self.handoff = self._store = LocalHandoff(
            store, self.time, self.holds, self.lose, self._give_up
        )
        self.owned: dict[asyncio.Task[Any] | None, dict[str, Hold]] = {}
        self._watched: dict[asyncio.Task[Any] | None, dict[Hold, None]] = {}
        longest = math.inf if self.time == loop.time else _AWAKE
        self._wheel = TimerWheel(self.time, self._due, longest=longest)
        self._jitter = 1.0
        self._expired = Backlog(self.check, most=_LOST)
        self._refused = Backlog(partial(self.lose, reason=LossReason.REFUSED), most=_LOST)
        self._answered = Backlog[Callable[[], None]](call, most=_BATCHES)
        """What hears the answers about many leases."""
        self._left: asyncio.Event | None = None
        self.answer_deadlines = AnswerDeadlines(self.time)
        self.releases = Releases(self.handoff)
        self.finishes = PendingFinishes(self.handoff, self.time)

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
        # This call raises nothing without a running loop, as when a generator is closed after it.
        if asyncio._get_running_loop() is not self._loop:
            check_not_trio()
            raise ClientClosed(
                "this client was opened in another event loop: open one in each event loop"
            )

    def held_by(self, owner: Owner) -> Hold | None:
        """The owner's hold of this name, if it still has it."""
        task, key = owner
        if task not in self.owned:
            return None
        hold = self.owned[task].get(key)
        if hold is not None:
            self.check(hold)
        return None if hold is None or hold.state not in ALIVE else hold

    def keep(self, hold: Hold, lease: int) -> None:
        """Begin to keep a hold whose present lease is ``lease`` ms long."""
        task, key = hold.owner
        try:
            self.holds[hold.waiter] = hold
            self.owned.setdefault(task, {})[key] = hold
            hold.since = now = self.time()
            if hold.deadline - now < lease / 2000 and (hold.policy.renew or hold.unconfirmed):
                self._wheel.schedule(hold, now, now)  # noticed so late that it is renewed at once
            else:
                self._wheel.take_in(hold, self._due_at(hold, lease, now), now)
        except BaseException:
            self._forget(hold)
            raise

    def _due_at(self, hold: Hold, lease: int, now: float) -> float:
        """When to look after a hold next: at a third of its lease, or at the lease's end.

        A grant that was noticed late has less of its lease left, and is renewed sooner.
        """
        if hold.policy.renew or hold.unconfirmed:
            return now + min(lease / 3000 * self._jitter, (hold.deadline - now) / 3)
        return hold.deadline

    # Holds that nothing can reach any more

    def watch(self, hold: Hold) -> None:
        """After a hold's owner task has ended, keep the hold only while a lease of it exists."""
        task = hold.owner[0]
        if task is None:
            self._disown(hold)
            return
        watched = self._watched.get(task)
        if watched is None:
            task.add_done_callback(self._owner_ended)  # one callback for all holds of the task
            watched = self._watched[task] = {}
        watched[hold] = None

    def _unwatch(self, hold: Hold) -> None:
        task = hold.owner[0]
        watched = self._watched.get(task) if task is not None else None
        if task is None or watched is None:
            return
        watched.pop(hold, None)
        if not watched:
            del self._watched[task]
            task.remove_done_callback(self._owner_ended)

    def _owner_ended(self, task: asyncio.Task[Any]) -> None:
        for hold in self._watched.pop(task, {}):
            self._disown(hold)

    def _disown(self, hold: Hold) -> None:
        task, key = hold.owner
        if self.owned.get(task, {}).get(key) is hold:
            del self.owned[task][key]
            if not self.owned[task]:
                del self.owned[task]
        hold.owner = (None, key)
        hold.leases = ()  # this may be the last reference to a lease

    def left_behind(self, hold: Hold, lease: Handle) -> None:
        """Nobody can leave a body: its exit was collected. Its lease is kept as an acquired one is.

        Called by the garbage collector, in any thread.
        """
        if self.is_here:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._left_behind, hold, lease)

    def _left_behind(self, hold: Hold, lease: Handle) -> None:
        hold.bodies = tuple([each for each in hold.bodies if each() is not None])
        self.left()
        if hold.state not in ALIVE or lease not in hold.leases:
            return
        if hold.policy.released_by_name:
            lease._left_behind = True
            self.watch(hold)
        else:  # not even its task can release it, unless it has the lease
            hold.leases = without(hold.leases, lease)

    def unreachable(self, hold: Hold) -> None:
        """Its last lease was garbage-collected without a release: warn, and release it.

        Called by the garbage collector, in any thread.
        """
        if not self.is_here:
            return  # the hold is the parent's
        where = f", acquired at {hold.where}" if hold.where else ""
        more = "" if where else " (python -X dev says where it was acquired)"
        what = "is released"
        try:
            self._loop.call_soon_threadsafe(self.abandon, hold)
        except RuntimeError:  # the loop is closed, so the release cannot be sent
            what = "is held until its lease ends"
        self.was_dropped(hold)
        # The warning comes last, because with -W error it raises.
        warnings.warn(
            f"{hold.policy.called} (fence {hold.fence}) was held by a lease that nobody can release"
            f" any more{where}, so it {what}: use `async with`, or call release(){more}",
            ResourceWarning,
            stacklevel=3,
            source=self,
        )

    def was_dropped(self, hold: Hold) -> None:
        """Tell those who collect them of a hold whose release was forgotten. In any thread."""
        policy = hold.policy
        for told in list(on_dropped):
            told(DroppedLease(hold.waiter.client, policy.kind, policy.name, hold.fence))

    def abandon(self, hold: Hold) -> None:
        """Release without waiting; a release that is not answered is sent again (`Releases`)."""
        if (released := self.release(hold)) is not None:
            released.add_done_callback(partial(self.heard, hold))

    # The end of a hold

    def release(self, hold: Hold, *, finished: int = 0) -> asyncio.Future[int] | None:
        """Release a hold now; the future of the answer, or None if it was not ours any more.

        ``finished``: for how many ms the store remembers that its work is done.
        """
        self.check(hold)
        if hold.released is None and hold.state is not LeaseState.RELEASED:
            mine = hold.state is not LeaseState.LOST
            if mine:
                hold.state = LeaseState.RELEASED
                self._forget(hold)
                if self.events.often:
                    self.events.released(hold, self.time())
            if mine or hold.crossed or _may_be_at_store(hold.reason):
                fence = 0 if hold.crossed else hold.fence
                key, form = hold.policy.key, hold.policy.form
                if finished and mine:
                    hold.finishes = True
                    hold.released = self.finishes.finish(hold, finished)
                elif (
                    mine
                    and self.handoff
                    and (handed_off := self.handoff.hand_off(hold)) is not None
                ):
                    hold.released = handed_off
                else:
                    lost = not mine and _closes_as_lost(hold)
                    hold.released = self._store.release(key, hold.waiter, form, fence, lost=lost)
                if not mine:
                    hold.released.add_done_callback(partial(self.heard, hold))
        return hold.released if hold.state is LeaseState.RELEASED else None

    def heard(self, hold: Hold, released: asyncio.Future[int]) -> None:
        """Process the answer, or the failure, of a release that no task awaits."""
        if not released.cancelled() and isinstance(failure := released.exception(), StoreError):
            self.unheard(hold, failure)

    def unheard(self, hold: Hold, failure: StoreError) -> None:
        """A release has failed, and its caller knows of it: send the release again."""
        if not hold.finishes and not hold.handed_off:
            release = Release(
                *(hold.policy.key, hold.waiter, hold.policy.form),
                0 if hold.crossed else hold.fence,
                entered=True,
                lost=_closes_as_lost(hold),
            )
            self.releases.again(release, hold.ttl, failure)

    def _give_up(self, key: str, waiter: WaiterId, form: Form, fence: int) -> None:
        _ = self.releases.release(key, waiter, form, form.claim, fence=fence)

    def check(self, hold: Hold) -> None:
        """Notice a deadline that passed while the loop was blocked."""
        alive = hold.state in ALIVE
        if alive and self.time() >= hold.deadline:
            self.lose(hold, LossReason.EXPIRED)

    def lose(self, hold: Hold, reason: LossReason | str) -> None:
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
        self._forget(hold)
        if hold.lost is not None:
            hold.lost.set()
        if hold.bodies:
            for body in hold.inside:
                body.cancel()
        self.events.lost(hold, self.time())
        if reason is LossReason.MAX_HOLD:
            # Release it now, not when its body has ended, which may take long. If the lease ended
            # at the store, we would be taken for stuck, and our waiters would lose their places for
            # a while. (With a lock_delay, this release counts as a loss.)
            self.release(hold)

    def shorten(self, hold: Hold, until: float) -> None:
        """A hold is only certain until then: its deadline moves now, and no timer has to fire."""
        hold.shorten(until)
        now = self.time()
        self._wheel.schedule(hold, now, now)  # it is renewed at once, if it can be

    def affordable(self, hold: Hold, ttl: int) -> int:
        """``ttl`` ms, or the rest of ``max_hold``, if that is less."""
        if hold.ends is None:
            return ttl
        return max(1, min(ttl, int((hold.ends - self.time()) * 1000)))

    def ask(self, hold: Hold, ttl: int) -> asyncio.Future[list[bool | None]]:
        """Ask the store whether a hold is still ours; renew it for ``ttl`` ms (0: only ask)."""
        now = self.time()
        if ttl:
            # The reply may be lost, so believe only in the shortest lease that the store may have
            # given: the new one may be shorter than the old one, or than that of a renewal that is
            # still under way.
            hold.deadline = min(hold.deadline, now + lasts(ttl))
            hold.sends(ttl, now, extends=True)
            self._wheel.schedule(hold, self._due_at(hold, ttl, now), now)
        renewal = Renewal(hold.policy.key, hold.waiter, hold.policy.form, hold.fence, ttl)
        batch = [(hold, renewal, hold.sent if ttl else 0)]
        answer = self._renew(batch)
        answer.add_done_callback(partial(self._renewed, batch, now))
        return answer

    def may_come_twice(self) -> None:
        """A connection broke: a renewal without an answer may be carried out once more, late.

        If it is shorter than what was confirmed meanwhile, it cuts that short.
        """
        until = self.time() + _COPIES
        for hold in self.holds.values():
            hold.may_come_twice(until)

    def downgrade(self, hold: Hold) -> asyncio.Future[int]:
        """Let a writer's hold share the lock; the future of the store's answer."""
        downgraded = self._store.downgrade(
            hold.policy.key, hold.waiter, hold.policy.form, hold.fence
        )
        downgraded.add_done_callback(retrieve)
        return downgraded

    async def aclose(self, caller: asyncio.Task[Any] | None) -> None:
        """Release what is held; bodies of other tasks are cancelled, and release their own.

        Waits for those bodies, at most until the last of their leases has ended.
        """
        self._left = asyncio.Event()
        bodies, end = deque[Hold](), 0.0
        left, take = deque(self.holds.values()), turns().take
        try:
            self.finishes.aclose()
            await self.releases.aclose()
            while left:
                await take(_ENDING)
                if self._close(left.popleft(), caller, bodies):
                    end = max(end, bodies[-1].deadline)
        finally:
            for hold in left:  # without a pause, for this was cancelled
                self._close(hold, caller, bodies)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(end - self.time()):
                while bodies:
                    await take()
                    if bodies[0].inside:
                        self._left.clear()
                        await self._left.wait()
                    else:
                        bodies.popleft()
        self._wheel.aclose()

    def _close(self, hold: Hold, caller: asyncio.Task[Any] | None, bodies: deque[Hold]) -> bool:
        """End a hold; True if bodies of other tasks are cancelled, which then are to be awaited."""
        if any(body.task is not caller for body in hold.inside):
            bodies.append(hold)
            self.lose(hold, LossReason.CLOSED)
            return True
        self.abandon(hold)
        return False

    def left(self) -> None:
        """A body has ended, and its hold is released."""
        if self._left is not None:
            self._left.set()

    # Renewing

    def _forget(self, hold: Hold) -> None:
        self.holds.pop(hold.waiter, None)
        task, key = hold.owner
        owned = self.owned.get(task)
        if owned is not None and owned.get(key) is hold:
            del owned[key]
            if not owned:
                del self.owned[task]
        if self._watched:
            self._unwatch(hold)
        self._wheel.forget(hold)

    def _due(self, holds: Sequence[Hold], now: float) -> None:
        """Renew or expire the holds that are due."""
        # Without jitter, a thousand processes that started together would renew together for ever.
        self._jitter = random.uniform(0.85, 1.0)  # noqa: S311  # not a secret
        renewals: list[_Sent] = []
        expired: list[Hold] = []
        for hold in holds:
            if now >= hold.deadline:
                expired.append(hold)
            else:
                self._look_after(hold, now, renewals)
        self._expired.add(expired)
        for shard in self._shards(renewals):
            for start in range(0, len(shard), _BATCH):
                batch = shard[start : start + _BATCH]
                self._renew(batch).add_done_callback(partial(self._renewed_later, batch, now))

    def _shards(self, renewals: list[_Sent]) -> Iterable[list[_Sent]]:
        """Grouped by place: one that does not answer then delays no lease kept elsewhere."""
        if self._sharded is None:
            return [renewals]
        shards: dict[Hashable, list[_Sent]] = {}
        for sent in renewals:
            shards.setdefault(self._sharded.shard_of(sent[1].name), []).append(sent)
        return shards.values()

    def _look_after(self, hold: Hold, now: float, renewals: list[_Sent]) -> None:
        if hold.asking:
            hold.state = LeaseState.AT_RISK
            self._wheel.schedule(hold, hold.deadline, now)
            return
        look_at = hold.deadline
        if hold.policy.renew or hold.unconfirmed:
            ttl = self.affordable(hold, hold.ttl)
            if not hold.policy.renew:  # confirm the length that was asked for, from its grant on
                ttl = max(1, min(ttl, int((hold.began - now) * 1000) + hold.ttl))
            if now + lasts(ttl) > hold.deadline + 0.001:
                hold.sends(ttl, now)
                hold.asking = hold.sent
                renewal = Renewal(hold.policy.key, hold.waiter, hold.policy.form, hold.fence, ttl)
                renewals.append((hold, renewal, hold.sent))
                self._wheel.schedule(hold, min(hold.deadline, now + max(0.05, ttl / 6000)), now)
                return
            if ttl == hold.ttl:  # it was extended for longer than renewals last: renew it in time
                look_at = hold.deadline - ttl / 1500
        hold.state = LeaseState.HELD  # a missing answer would change nothing any more
        self._wheel.schedule(hold, look_at, now)

    def _renew(self, batch: list[_Sent]) -> asyncio.Future[list[bool | None]]:
        return self._store.renew([renewal for _, renewal, _ in batch])

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
        unknown = answer.cancelled() or answer.exception() is not None
        held: Sequence[bool | None] = [None] * len(batch) if unknown else answer.result()
        now = self.time()
        refused = list[Hold]()
        for (hold, renewal, number), still in zip(batch, held, strict=True):
            if hold.asking == number:
                hold.asking = 0
            if hold.state not in ALIVE:
                continue
            doubt = still is None or (not still and self.handoff.in_doubt(hold))
            if not still and not doubt:
                refused.append(hold)
            elif doubt and not renewal.ttl:
                pass  # the store was only asked whether it is ours
            elif doubt:
                hold.state = LeaseState.AT_RISK
                again = max(0.02, min(1.0, (hold.deadline - now) / 5))
                self._wheel.schedule(hold, min(hold.deadline, now + again), now)
            else:
                hold.state = LeaseState.HELD
                if renewal.ttl and hold.confirms(number, sent, renewal.ttl):
                    self._wheel.schedule(hold, self._due_at(hold, renewal.ttl, now), now)
        if len(batch) > 1:
            self._refused.add(refused)
        else:  # whoever has asked about it goes on now, and looks at its state
            for hold in refused:
                self.lose(hold, LossReason.REFUSED)


def retrieve(answer: asyncio.Future[Any]) -> None:
    """Take the error out of a future: one that nobody has retrieved would be logged as a bug."""
    if not answer.cancelled():
        answer.exception()


def _closes_as_lost(hold: Hold) -> bool:
    """Whether its release is a loss for the store: its lease has ended by our clock.

    That is a little before it ends by the store's.
    """
    ended = hold.reason in {LossReason.EXPIRED, LossReason.MAX_HOLD}
    return ended and hold.policy.form.after_loss > 0


def _may_be_at_store(reason: LossReason | str) -> bool:
    return isinstance(reason, LossReason) and reason.may_be_at_store
