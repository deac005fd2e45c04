"""Runs: hand-offs within one client that do not wait for the store.

A queue is first-in, first-out, and newcomers join its tail. If a client knows that its own waiter
stands directly behind its own holder, it also knows what the store will do on the release: grant
the lock to that waiter. So it hands the lock on at once, under the lease that the store respects,
and reports several hand-offs in one command (`Store.report_handoff`). The order is exact across all
clients, and a run ends by itself where another client's waiter stands.

Three rules keep this safe. A new deadline is never later than the lease that the store certainly
keeps for this run: an older grant's until the report is carried out, and at least a claim from then
on. No other command about a name is sent before the reports that are due for it. And a grant after
one whose end was not reported has a fence that is higher than any of the run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from functools import partial
from typing import Final

from aiolock._engine.acquisition import Acquisition, Phase
from aiolock._engine.closed_store import ClosedStore
from aiolock._engine.grant import Grant, lasts
from aiolock._engine.hold import Hold, LossReason
from aiolock._engine.releases import FIRST_PAUSE, LONGEST, LONGEST_PAUSE
from aiolock._turns import turns
from aiolock.errors import StoreError
from aiolock.store import (
    MAX_AHEAD,
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_UNKNOWN,
    Answer,
    Form,
    HandoffReport,
    Page,
    Queued,
    Relay,
    Renewal,
    Status,
    Store,
    WaiterId,
)

_TOGETHER: Final = 8
"""Passes in one report: with more, the tasks that have released wait longer for its answer."""
_REPORT: Final = 4
"""Units of work to send a report: see `Turns`."""
_IDLE_TURNS: Final = 3
"""Iterations of the event loop without a further pass, after which the passes are reported."""
_MARGIN: Final = 4
"""A lock is passed on only while more than 1/4 of a claim is left of the lease."""


class _HandoffChain:
    """One run: a grant that the store has made, and its present holder in this client."""

    def __init__(self) -> None:
        self.present: Acquisition
        self.fence = 0
        """The fence of `present`, which has the lock now or had it last."""
        self.reports = 0
        """How many reports of this run the store has not confirmed."""
        self.released = False
        """Whether the release of the present holder was sent."""
        self.unknown = False
        """Whether the store read that release before the report that this one holds the lock."""


class _Batch:
    """Passes of one run that are reported in one command."""

    def __init__(self, chain: _HandoffChain, source: Hold) -> None:
        self.chain = chain
        self.form = source.policy.form
        self.source = source.waiter
        self.source_fence = self.fence = source.fence
        """The fences of the first and of the last grant."""
        self.via: list[Acquisition] = []
        """The acquisitions that have held it since the giver, each under the next fence."""
        self.left: list[asyncio.Future[int]] = []
        """The futures of the releases of those that have passed it on."""
        self.sent: float | None = None
        """When it was first reported."""
        self.again = False
        """It is reported again, because the outcome of an earlier report is unknown."""


class _NameQueue:
    """One name: the order of our waiters, and the passes that the store has not confirmed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.behind: dict[WaiterId, Acquisition] = {}
        """For a waiter or holder, the waiter directly behind it."""
        self.last_ticket = 0
        self.chain = _HandoffChain()
        """The last run of this name."""
        self.unsent: deque[_Batch] = deque()
        """Batches to be reported, in order; the last may grow."""
        self.under_way = 0
        """How many reports are not answered yet."""
        self.failed: list[_Batch] = []
        """Batches whose report has failed, with unknown outcome; then nothing is passed on."""
        self.timer: asyncio.TimerHandle | None = None
        """Sends them again: less and less often, and not for ever."""
        self.handed_off: dict[WaiterId, tuple[int, _HandoffChain]] = {}
        """Grants that were passed on, before the store has confirmed that."""
        self.overtaken = False
        """A waiter came to stand before one of ours that may hold the lock already. Until the store
        has all reports, its `Queued.before` is not reliable."""

    @property
    def idle(self) -> bool:
        return not (self.behind or self.unsent or self.under_way or self.failed or self.handed_off)

    def unlink(self, acquisition: Acquisition) -> WaiterId | None:
        """Forget the waiter directly before this one; returns it."""
        before, acquisition.behind = acquisition.behind, None
        if before is not None and self.behind.get(before) is acquisition:
            del self.behind[before]
            return before
        return None


class LocalHandoff(Relay):
    """A client's store that sends the reports due for a name before other commands about it."""

    def __init__(
        self,
        store: Store,
        time: Callable[[], float],
        holds: Mapping[WaiterId, Hold],
        lose: Callable[[Hold, LossReason], None],
        release: Callable[[str, WaiterId, Form, int], object],
    ) -> None:
        """``release`` must see to it that a grant is released, even if sending it fails."""
        super().__init__(store)
        self._loop = asyncio.get_running_loop()
        self._time = time
        self._holds = holds
        self._lose = lose
        self._release = release
        self._names: dict[str, _NameQueue] = {}
        self._closed = False

    def __repr__(self) -> str:
        return repr(self._store)

    def __len__(self) -> int:
        return len(self._names)

    # The order of our waiters

    def queued(
        self, acquisition: Acquisition, answer: Queued, known: Mapping[WaiterId, Acquisition]
    ) -> None:
        """A newcomer was queued; ``known`` are the client's waiters for this name."""
        name = acquisition.policy.key
        queue = self._names.get(name)
        if queue is not None:
            if answer.ticket < queue.last_ticket:
                queue.behind.clear()  # the newcomer is before some of the others
            queue.last_ticket = max(queue.last_ticket, answer.ticket)
        if answer.before is None or acquisition.crossed or self._closed:
            return
        if queue is not None and queue.overtaken:
            return
        before, fence = answer.before
        hold, waiting = self._holds.get(before), known.get(before)
        if hold is not None:
            if fence not in (0, hold.fence):
                return
        elif waiting is None or waiting.phase not in (Phase.QUEUED, Phase.GRANTED):
            return
        if queue is None:
            queue = self._names[name] = _NameQueue(name)
            queue.last_ticket = answer.ticket
        queue.behind[before] = acquisition
        acquisition.behind = before

    def leaves(self, acquisition: Acquisition) -> None:
        """This acquisition does not wait any more: it was granted, or has given up."""
        queue = self._names.get(acquisition.policy.key)
        if queue is None:
            return
        before = queue.unlink(acquisition)
        if acquisition.phase is not Phase.GRANTED:
            self._close_gap(queue, acquisition, before)
        else:  # its hold may be lost, and then it hands nothing on
            self._forget_if_idle(queue)

    def returns(self, acquisition: Acquisition) -> None:
        """A grant came too late: its acquisition has no place in the queue until it asks again."""
        queue = self._names.get(acquisition.policy.key)
        if queue is not None:
            queue.unlink(acquisition)
            self._close_gap(queue, acquisition, None)

    def _close_gap(
        self, queue: _NameQueue, acquisition: Acquisition, before: WaiterId | None
    ) -> None:
        after = queue.behind.pop(acquisition.waiter, None)
        if after is not None:
            after.behind = None
            if before is not None:
                queue.behind[before] = after
                after.behind = before
        self._forget_if_idle(queue)

    def forget_order(self, name: str | None = None) -> None:
        """The order of the waiters may have changed, for this name or for all."""
        for each in list(self._names) if name is None else (name,):
            if (queue := self._names.get(each)) is not None:
                queue.behind.clear()
                self._forget_if_idle(queue)

    def was_overtaken(self, name: str) -> None:
        """Another client's waiter was queued directly before one of ours."""
        queue = self._names.get(name)
        if queue is not None:
            queue.overtaken = bool(queue.handed_off)
            self.forget_order(name)

    def was_handed_off(self, name: str, waiter: WaiterId, fence: int) -> bool:
        """Whether this grant was passed on, and the store may not have the report yet."""
        queue = self._names.get(name)
        return (
            queue is not None
            and waiter in queue.handed_off
            and queue.handed_off[waiter][0] == fence
        )

    def present(self, name: str, waiter: WaiterId, fence: int) -> tuple[WaiterId, int]:
        """The present waiter and fence of a run, for a grant of it that the store speaks of."""
        if not self.was_handed_off(name, waiter, fence):
            return waiter, fence
        chain = self._names[name].handed_off[waiter][1]
        return chain.present.waiter, chain.fence

    def in_doubt(self, hold: Hold) -> bool:
        """Whether the report of this hold has failed and is to be sent again."""
        queue = self._names.get(hold.policy.key)
        return queue is not None and any(hold.fence == batch.fence for batch in queue.failed)

    def was_unknown(self, hold: Hold) -> bool:
        """Whether the store read the release of this hold before the report of it."""
        queue = self._names.get(hold.policy.key)
        return queue is not None and queue.chain.unknown and hold.fence == queue.chain.fence

    # Passing on

    def hand_off(self, hold: Hold) -> asyncio.Future[int] | None:
        """Hand the lock to the waiter directly behind this hold, if that is known and possible.

        Returns the future of the release's answer; None if the release must be sent to the store.
        """
        queue = self._names.get(hold.policy.key)
        if queue is None:
            return None
        acquisition = queue.behind.pop(hold.waiter, None)
        if acquisition is None or not self._may_hand_off(queue, hold, acquisition):
            self._forget_if_idle(queue)
            return None
        acquisition.behind = None
        chain = queue.chain
        if not chain.fence or (chain.present.waiter, chain.fence) != (hold.waiter, hold.fence):
            chain = queue.chain = _HandoffChain()
        batch = queue.unsent[-1] if queue.unsent else None
        if batch is None or batch.chain is not chain:
            batch = _Batch(chain, hold)
            chain.reports += 1
            queue.unsent.append(batch)
            self._loop.call_soon(self._look, queue, batch, 0, 0)
        fence, claim = hold.fence + 1, batch.form.claim
        deadline = min(hold.deadline, self._time() + lasts(claim))
        chain.present, chain.fence = acquisition, fence
        chain.released = chain.unknown = False
        queue.handed_off[hold.waiter] = hold.fence, chain
        batch.fence = fence
        batch.via.append(acquisition)
        released: asyncio.Future[int] = self._loop.create_future()
        batch.left.append(released)
        hold.handed_off = True
        acquisition.handed_off_by = hold.request
        acquisition.handed_off(Grant(fence, claim, deadline, claim=True))
        if len(batch.via) >= _TOGETHER:
            self._send(queue)
        return released

    def _may_hand_off(self, queue: _NameQueue, hold: Hold, acquisition: Acquisition) -> bool:
        """Whether the store would grant the lock to this waiter, as far as the client can know."""
        form = hold.policy.form
        same = acquisition.policy.form is form or acquisition.policy.form == form
        if not same or not form.plain or hold.crossed or hold.limits:
            return False
        if not acquisition.waits or acquisition.question is not None:
            return False
        if self._closed or queue.failed or len(queue.handed_off) >= MAX_AHEAD:
            return False
        return self._time() + form.claim / 1000 / _MARGIN < hold.deadline

    def _look(self, queue: _NameQueue, batch: _Batch, size: int, idle: int) -> None:
        """Report a batch once it does not grow any more."""
        if not queue.unsent or queue.unsent[-1] is not batch:
            return
        grown = len(batch.via) > size
        idle = 0 if grown else idle + 1
        if idle >= _IDLE_TURNS:
            self._send(queue)
        else:
            self._loop.call_soon(self._look, queue, batch, len(batch.via), idle)

    def _send(self, queue: _NameQueue) -> None:
        """Send all reports that are due, in order."""
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        batches = [*queue.failed, *queue.unsent]
        queue.failed.clear()
        queue.unsent.clear()
        for batch in batches:
            via = tuple([acquisition.waiter for acquisition in batch.via])
            handed_off = HandoffReport(
                queue.name,
                batch.form,
                batch.source,
                batch.source_fence,
                via[-1],
                batch.fence,
                via,
            )
            queue.under_way += 1
            if batch.sent is None:
                batch.sent = self._time()  # before it is sent
            answer = self._store.report_handoff(handed_off)
            answer.add_done_callback(partial(self._answered, queue, batch))

    def _answered(self, queue: _NameQueue, batch: _Batch, answer: asyncio.Future[int]) -> None:
        queue.under_way -= 1
        failure = None if answer.cancelled() else answer.exception()
        if failure is not None or answer.cancelled():
            self._failed(queue, batch, failure)
            return
        was = answer.result()
        if was == WAS_ABSENT and batch.again:
            was = WAS_UNKNOWN  # an earlier copy of this report may have been carried out
        for released in batch.left:
            if not released.done():
                released.set_result(was)
        self._is_over(queue, batch)
        if was == WAS_HOLDER:
            self._confirmed(queue, batch)
        elif was == WAS_ABSENT:
            self._refused(queue, batch)
        self._forget_if_idle(queue)

    def _is_over(self, queue: _NameQueue, batch: _Batch) -> None:
        """The store has this report, or never will."""
        batch.chain.reports -= 1
        for waiter in (batch.source, *(acquisition.waiter for acquisition in batch.via[:-1])):
            queue.handed_off.pop(waiter, None)
        if not queue.handed_off:
            queue.overtaken = False

    def _confirmed(self, queue: _NameQueue, batch: _Batch) -> None:
        """The store keeps this run's lease for a claim at least; so the present holder has that."""
        chain, present = batch.chain, batch.chain.present
        hold = self._holds.get(present.waiter)
        if hold is not None and hold.fence == chain.fence:
            assert batch.sent is not None
            if hold.unconfirmed and not hold.limits:
                hold.deadline = max(hold.deadline, batch.sent + lasts(batch.form.claim))
        elif chain.fence == batch.fence and present.ended and (chain.unknown or not chain.released):
            # The present holder has left. Its release reached the store before this report, or was
            # never sent.
            self._release(queue.name, present.waiter, batch.form, chain.fence)

    def _refused(self, queue: _NameQueue, batch: _Batch) -> None:
        """The grant that was passed on had ended, so no one in the run holds the lock."""
        present, fence = batch.chain.present, batch.chain.fence
        hold = self._holds.get(present.waiter)
        if hold is not None and hold.fence == fence:
            # Not in the context of whoever has handed it on: see `shared_timers`.
            Context().run(self._lose, hold, LossReason.REFUSED)
        elif present.phase is Phase.GRANTED:
            present.taken_away(fence)
        self._give_up_places(queue, batch)

    def _give_up_places(self, queue: _NameQueue, batch: _Batch) -> None:
        """Release the places of those that held it: the store may still have them in the queue."""
        first = batch.fence - len(batch.via) + 1
        for fence, acquisition in enumerate(batch.via, start=first):
            # Except one whose grant was too late: it has asked for its place again.
            had = (
                acquisition.grant.fence
                if acquisition.phase is Phase.HELD and acquisition.grant
                else 0
            )
            if had == fence and acquisition.waiter not in self._holds:
                self._release(queue.name, acquisition.waiter, batch.form, 0)

    def _failed(self, queue: _NameQueue, batch: _Batch, failure: BaseException | None) -> None:
        """The outcome of a report is unknown. It is sent again, before all that follows."""
        for released in batch.left:
            if not released.done():
                released.set_exception(failure or StoreError("the report of a release was dropped"))
        batch.left.clear()
        batch.again = True
        assert batch.sent is not None
        failing = self._time() - batch.sent
        if failing > LONGEST:
            self._is_over(queue, batch)
            self._give_up_places(queue, batch)
            self._forget_if_idle(queue)
            return
        queue.failed.append(batch)
        if not self._closed and queue.timer is None:
            # Often enough that the present holder's claim is confirmed while it lasts.
            pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, failing / 2))
            queue.timer = self._loop.call_later(pause, self._send, queue)

    def _forget_if_idle(self, queue: _NameQueue) -> None:
        if queue.idle and self._names.get(queue.name) is queue:
            del self._names[queue.name]

    # The store; before a command about a name, its reports are sent

    def report(self, name: str) -> None:
        """Send the reports of this name that are due, before any other command."""
        queue = self._names.get(name)
        if queue is not None and (queue.unsent or queue.failed):
            self._send(queue)

    async def flush_reports(self) -> None:
        """Pass nothing on any more, and send all reports once more, but not again after that."""
        self._closed = True
        left, take = deque(self._names.values()), turns().take
        try:
            while left:
                await take(_REPORT)
                self._send(left.popleft())
        finally:
            for queue in left:  # without a pause, for this was cancelled
                self._send(queue)

    def end(self) -> None:
        """Send nothing at all from now on: the client is opened again, and another one there."""
        self._store = ClosedStore(self._store, self._loop)

    def acquire(
        self,
        name: str,
        waiter: WaiterId,
        form: Form,
        ttl: int,
        *,
        ticket: int,
        wait: bool,
        max_waiters: int,
    ) -> asyncio.Future[Answer]:
        """A newcomer joins the tail, so reports need not be sent first."""
        if self._names and (ticket or max_waiters or not wait):
            self.report(name)
        return self._store.acquire(
            name, waiter, form, ttl, ticket=ticket, wait=wait, max_waiters=max_waiters
        )

    def release(
        self,
        name: str,
        waiter: WaiterId,
        form: Form,
        fence: int,
        *,
        entered: bool = True,
        lost: bool = False,
    ) -> asyncio.Future[int]:
        """Sent after the reports that are due."""
        queue = self._names.get(name) if self._names else None
        if queue is None:
            return self._store.release(name, waiter, form, fence, entered=entered, lost=lost)
        self.report(name)
        chain = queue.chain
        released = self._store.release(name, waiter, form, fence, entered=entered, lost=lost)
        if not chain.reports or chain.present.waiter != waiter:
            return released
        chain.released = True
        released.add_done_callback(partial(_released, chain))
        return released

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool | None]]:
        """Sent after the reports that are due."""
        if self._names:
            for renewal in renewals:
                self.report(renewal.name)
        return self._store.renew(renewals)

    def status(self, name: str, *, waiters: bool = True) -> asyncio.Future[Status]:
        """Sent after the reports that are due."""
        self.report(name)
        return self._store.status(name, waiters=waiters)

    def snapshot(self, start: str = "") -> asyncio.Future[Page]:
        """The first page is asked for after the reports of all names."""
        if not start:
            for name in list(self._names):
                self.report(name)
        return self._store.snapshot(start)

    def request(self, name: str) -> asyncio.Future[int]:
        """Sent after the reports that are due."""
        self.report(name)
        return self._store.request(name)

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        """Sent after the reports that are due."""
        self.report(name)
        return self._store.break_(name, fences)


def _released(chain: _HandoffChain, released: asyncio.Future[int]) -> None:
    """The present holder's release was answered. A failed one is sent again."""
    heard = not released.cancelled() and released.exception() is None
    if heard and chain.reports:
        chain.unknown = True
