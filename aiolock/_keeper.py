"""The watchdog: what the client holds, its renewal, and the deadlines it must not outlive."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import math
import os
import random
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from aiolock._hold import ALIVE, Hold, LeaseState, Owner, lasts
from aiolock.errors import ClientClosed
from aiolock.store import Renewal, Store

_SLOTS: Final = 20
"""Renewals due in one slot (a twentieth of a second) go out together."""
_BATCH: Final = 256
"""Leases in one renewal call: a few hundred microseconds of the server's time."""

_forks = 0
"""How many forks lie between this process and the first that imported aiolock."""


def _forked() -> None:
    global _forks  # noqa: PLW0603  # the hook has nobody else to tell
    _forks += 1


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_forked)


class Keeper:
    """Renews every lease of a client that is due, in batches, and notices when one is lost.

    The answer to a renewal is one of three: *renewed*; *refused*, and then the lease is lost now;
    or *unknown*, which changes nothing: it is tried again until the local deadline, which counts
    from before the last confirmed request was sent. So a store that hangs cannot make a holder
    believe in a lease that has ended, and one that hiccups cannot take one away.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = loop = asyncio.get_running_loop()
        self.time = loop.time
        # Not asked which loop that is: it would ask which process, a system call each time.
        self.current_task = partial(asyncio.current_task, loop)
        self._forks = _forks
        self.holds: dict[str, Hold] = {}
        self.owned: dict[Owner, Hold] = {}
        # Slots of holds by when they are due: entering and leaving cost the same for 10,000.
        self._slots: dict[int, dict[Hold, None]] = {}
        self._order: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_slot = 0
        self._jitter = 1.0
        self._left: asyncio.Event | None = None

    def check_here(self) -> None:
        """`ClientClosed` unless this is the process and the event loop it was opened in.

        After a fork the connections are the parent's: a word from us would end up in the middle
        of its own.
        """
        if self._forks != _forks:
            raise ClientClosed(
                f"this client was opened in another process, of which this one ({os.getpid()}) is"
                " a fork: open one in each process, after the fork"
            )
        if asyncio.get_running_loop() is not self._loop:
            raise ClientClosed(
                "this client was opened in another event loop: open one in each event loop"
            )

    def held_by(self, owner: Owner) -> Hold | None:
        """What this task holds of this name, if it still does."""
        hold = self.owned.get(owner)
        if hold is not None:
            self.check(hold)
        return self.owned.get(owner)

    def keep(self, hold: Hold, lease: int) -> None:
        """Begin to keep a hold whose present lease is so many ms long."""
        self.holds[hold.waiter] = hold
        self.owned[hold.owner] = hold
        self._plan(hold, lease, self.time())

    def _plan(self, hold: Hold, lease: int, now: float) -> None:
        """Look after it at a third of its lease, or at its very end."""
        when = hold.deadline
        if hold.policy.renew or hold.unconfirmed:
            when = min(now + lease / 3000 * self._jitter, when)
        self._schedule(hold, when, now)

    def release(self, hold: Hold, *, finished: int = 0) -> asyncio.Future[int] | None:
        """Give it back, now; the answer's future, or None where it was not ours any more.

        ``finished``: and for how many ms to remember that what it was held for is done.
        """
        self.check(hold)
        if hold.released is None and hold.state is not LeaseState.RELEASED:
            mine = hold.state is not LeaseState.LOST
            if mine:
                hold.state = LeaseState.RELEASED
                self._forget(hold)
            if mine or hold.loose or hold.reason in ("expired", "closed", "max_hold"):
                # Lost by our own clock, it may still stand at the store, in the others' way.
                fence = 0 if hold.loose else hold.fence
                name = hold.policy.name
                if finished and mine:
                    hold.released = self._store.finish(name, hold.waiter, hold.fence, finished)
                else:
                    hold.released = self._store.release(name, hold.waiter, fence)
                if not mine:
                    hold.released.add_done_callback(retrieve)
        return hold.released if hold.state is LeaseState.RELEASED else None

    def check(self, hold: Hold) -> None:
        """Notice a deadline that passed while the loop was blocked."""
        alive = hold.state in ALIVE
        if alive and self.time() >= hold.deadline:
            self.lose(hold, "expired")

    def lose(self, hold: Hold, reason: str) -> None:
        """It is not ours any more: say so, and cancel the bodies that rely on it. Idempotent."""
        if hold.state in (LeaseState.LOST, LeaseState.RELEASED):
            return
        if reason == "expired" and hold.ends is not None and self.time() >= hold.ends - 0.1:
            reason = "max_hold"
        hold.state = LeaseState.LOST
        hold.reason = reason
        self._forget(hold)
        if hold.lost is not None:
            hold.lost.set()
        for body in hold.bodies:
            body.cancel()
        if reason == "max_hold" and not hold.bodies:
            # Nobody will leave one. Were the lease to end at the store, we would be taken for
            # stuck, and our waiters would lose their places for a while.
            self.release(hold)

    def affordable(self, hold: Hold, ttl: int) -> int:
        """``ttl`` ms, or what is left of ``max_hold``, if that is less."""
        if hold.ends is None:
            return ttl
        return max(1, min(ttl, int((hold.ends - self.time()) * 1000)))

    def ask(self, hold: Hold, ttl: int) -> asyncio.Future[list[bool]]:
        """Ask at once: still ours, and then for ``ttl`` ms more (0: only ask)."""
        now = self.time()
        if ttl:
            # The reply may be lost, and the new lease may be shorter than the old one, or than the
            # one that a renewal under way is still to confirm.
            hold.deadline = min(hold.deadline, now + lasts(ttl))
            hold.ceiling = (now + lasts(ttl), now)
            self._plan(hold, ttl, now)
        renewal = Renewal(hold.policy.name, hold.waiter, hold.fence, ttl)
        return self._renew([(hold, renewal)], now)

    def downgrade(self, hold: Hold) -> asyncio.Future[int]:
        """Let it share the lock; what the store answers."""
        downgraded = self._store.downgrade(hold.policy.name, hold.waiter, hold.fence)
        downgraded.add_done_callback(retrieve)
        return downgraded

    async def aclose(self, caller: asyncio.Task[Any] | None) -> None:
        """Give back what is held; the bodies of other tasks are cancelled, and do so themselves.

        Waits for those bodies until the last of their leases has ended, and no longer.
        """
        self._left = asyncio.Event()
        bodies: list[Hold] = []
        for hold in list(self.holds.values()):
            if any(body.task is not caller for body in hold.bodies):
                bodies.append(hold)
                self.lose(hold, "closed")
            elif (released := self.release(hold)) is not None:
                released.add_done_callback(retrieve)
        end = max((hold.deadline for hold in bodies), default=0.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(end):
                while any(hold.bodies for hold in bodies):
                    self._left.clear()
                    await self._left.wait()
        if self._timer is not None:
            self._timer.cancel()

    def left(self) -> None:
        """A body has ended, and what it held is given back."""
        if self._left is not None:
            self._left.set()

    # The wheel

    def _forget(self, hold: Hold) -> None:
        self.holds.pop(hold.waiter, None)
        if self.owned.get(hold.owner) is hold:
            del self.owned[hold.owner]
        due = self._slots.get(hold.slot)
        if due is not None:
            due.pop(hold, None)

    def _schedule(self, hold: Hold, when: float, now: float) -> None:
        due = self._slots.get(hold.slot)
        if due is not None:
            due.pop(hold, None)
        slot = int(when * _SLOTS)
        if slot <= int(now * _SLOTS):
            # That slot has begun, and with it would be much too soon: an alarm of its own.
            hold.slot = -1
            self._loop.call_at(when, self._alarm, hold)
            return
        hold.slot = slot
        due = self._slots.get(slot)
        if due is None:
            due = self._slots[slot] = {}
            heapq.heappush(self._order, slot)
            if self._timer is None or slot < self._timer_slot:
                self._arm(slot)
        due[hold] = None

    def _arm(self, slot: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_slot = slot
        self._timer = self._loop.call_at(slot / _SLOTS, self._turn)

    def _turn(self) -> None:
        """Look after every hold that is due."""
        self._timer = None
        # Or a thousand processes that started together would renew together for ever.
        self._jitter = random.uniform(0.85, 1.0)  # noqa: S311  # not a secret
        now = self.time()
        renewals: list[tuple[Hold, Renewal]] = []
        try:
            while self._order and self._order[0] / _SLOTS <= now:
                for hold in tuple(self._slots.pop(heapq.heappop(self._order))):
                    hold.slot = -1
                    self._look_after(hold, now, renewals)
            for start in range(0, len(renewals), _BATCH):
                _ = self._renew(renewals[start : start + _BATCH], now)
        finally:
            # What was put off during the turn may have set the alarm later than others need it.
            if self._order:
                self._arm(self._order[0])

    def _alarm(self, hold: Hold) -> None:
        if hold.slot == -1 and hold.state in ALIVE:
            renewals: list[tuple[Hold, Renewal]] = []
            now = self.time()
            self._look_after(hold, now, renewals)
            if renewals:
                _ = self._renew(renewals, now)

    def _look_after(self, hold: Hold, now: float, renewals: list[tuple[Hold, Renewal]]) -> None:
        if now >= hold.deadline:
            self.lose(hold, "expired")
            return
        if hold.asking:
            hold.state = LeaseState.AT_RISK
        elif hold.policy.renew or hold.unconfirmed:
            ttl = self.affordable(hold, hold.ttl)
            if now + lasts(ttl) > hold.deadline + 0.001:
                hold.asking = True
                renewals.append((hold, Renewal(hold.policy.name, hold.waiter, hold.fence, ttl)))
                self._schedule(hold, min(hold.deadline, now + max(0.05, ttl / 6000)), now)
                return
        self._schedule(hold, hold.deadline, now)

    def _renew(self, batch: list[tuple[Hold, Renewal]], sent: float) -> asyncio.Future[list[bool]]:
        answer = self._store.renew([renewal for _, renewal in batch])
        answer.add_done_callback(partial(self._renewed, batch, sent))
        return answer

    def _renewed(
        self,
        batch: Sequence[tuple[Hold, Renewal]],
        sent: float,
        answer: asyncio.Future[list[bool]],
    ) -> None:
        unknown = answer.cancelled() or answer.exception() is not None
        held = [True] * len(batch) if unknown else answer.result()
        now = self.time()
        for (hold, renewal), still in zip(batch, held, strict=True):
            hold.asking = False
            if hold.state not in ALIVE:
                continue
            if not still:
                self.lose(hold, "refused")
            elif unknown:
                hold.state = LeaseState.AT_RISK
                again = max(0.02, min(1.0, (hold.deadline - now) / 5))
                self._schedule(hold, min(hold.deadline, now + again), now)
            else:
                hold.state = LeaseState.HELD
                if renewal.ttl:
                    hold.unconfirmed = False
                    hold.deadline = sent + lasts(renewal.ttl)
                    if hold.ceiling is not None:
                        ceiling, asked = hold.ceiling
                        hold.deadline = min(hold.deadline, ceiling if sent < asked else math.inf)
                        hold.ceiling = hold.ceiling if sent < asked else None
                    self._plan(hold, renewal.ttl, now)


def retrieve(answer: asyncio.Future[Any]) -> None:
    """Nobody may be left to hear it: an error that is not retrieved would be logged as a bug."""
    if not answer.cancelled():
        answer.exception()
