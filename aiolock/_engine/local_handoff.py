"""Local hand-offs: a lock passes between waiters of one client without waiting for the store.

A queue is first-in, first-out, and newcomers join its tail. If a client knows that its own waiter
stands directly behind its own holder, it also knows what the store will do on the release: grant
the lock to that waiter. So the client hands the lock off itself, at once, and afterwards reports
several hand-offs in one command (`ReportHandoff`). The order stays exact across all
clients, because a lock is only handed off where no other client's waiter stands between.

Hand-offs that follow each other from one grant of the store are a *chain*. Three rules make them
safe:

* A new holder's deadline is never later than the end of the lease that the store certainly keeps
  for the chain. Until the report is carried out, that is the lease of the last grant that the store
  has; from then on, it is at least a claim.
* Before any other command about a name, the reports that are due for that name are sent.
* The client itself counts up the fences within a chain. When the store makes a grant after one
  whose end was not reported, it skips `MAX_AHEAD` fences, so as to be above all of the chain.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import Context
from functools import partial
from typing import Any, Final, TypeVar, cast

from aiolock._engine.acquisition import Acquisition, Phase
from aiolock._engine.closed_store import ClosedStore
from aiolock._engine.lease_state import LossReason
from aiolock._engine.released import Released
from aiolock._engine.releases import FIRST_PAUSE, LONGEST, LONGEST_PAUSE
from aiolock._futures import failure_of, succeeded
from aiolock._prompt import when_answered
from aiolock._turns import turns
from aiolock.errors import StoreError
from aiolock.protocol import (
    MAX_AHEAD,
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_UNKNOWN,
    Acquire,
    Deliver,
    Form,
    Operation,
    Queued,
    ReadPage,
    Release,
    Renew,
    ReportHandoff,
    WaiterId,
    lasts,
)
from aiolock.store import Receiver, Store, Submitted

Value = TypeVar("Value")
SubmitTo = Callable[[Any, Receiver[Any]], Submitted]
"""As `Store.submit` of one type, with a receiver of the answer in place of a future."""

_IN_A_TURN: Final = 16
"""Waiters that continue in one iteration of the event loop, because a lock was handed to them."""
_TOGETHER: Final = 8
"""Hand-offs in one report: with more, the tasks that have released wait longer for its answer."""
_REPORT: Final = 4
"""Units of work to send a report: see `Turns`."""
_IDLE_TURNS: Final = 3
"""Iterations of the event loop without a further hand-off, after which a report is sent."""
_MARGIN: Final = 1 / 4 / 1000
"""A lock is handed off only while more than 1/4 of a claim is left of its lease (seconds/ms)."""


class _HandoffChain:
    """A grant that the store has made, and its present holder after hand-offs in this client."""

    present = Acquisition()
    fence = 0
    """The fence of `present`, which has the lock now or had it last."""
    reports = 0
    """How many reports of this chain the store has not confirmed."""
    released = False
    """Whether the release of the present holder was sent."""
    unknown = False
    """Whether the store carried out that release before it had the report that this acquisition
    holds the lock. Then its answer "absent" does not mean a loss."""


class _Batch:
    """Hand-offs of one chain that are reported in one command."""

    def __init__(
        self,
        handoff: LocalHandoff,
        queue: _NameQueue,
        chain: _HandoffChain,
        source: Acquisition,
    ) -> None:
        self._handoff = handoff
        self._queue = queue
        self.chain = chain
        self.form = source.policy.form
        self.claimed = lasts(self.form.claim)
        """Seconds for which a claim is certainly ours."""
        self.source = source
        self.source_fence = self.fence = source.fence
        """The fences of the first and of the last of its grants."""
        self.handed_off: list[Acquisition] = []
        """Those that have handed the lock off; set when it is first sent. Until then, each of them
        has the next: see `Acquisition.handed_to`."""
        self.via: list[Acquisition] = []
        """The acquisitions that got the lock after ``source``, each under the next fence."""
        self.sent: float | None = None
        """When it was first reported."""
        self.again = False
        """It is reported again, because the outcome of an earlier try is unknown."""

    @property
    def size(self) -> int:
        """How many hand-offs these are."""
        return self.fence - self.source_fence

    def ends(self) -> None:
        """Nothing is added to it any more: it is sent."""
        hold = self.source
        for _ in range(self.size):
            following, hold.handed_to = hold.handed_to, None
            assert following is not None
            self.handed_off.append(hold)
            self.via.append(following)
            hold = following

    # It is the receiver of the answer to its report

    def done(self) -> bool:
        """Never: whoever answers it does so once for each report."""
        return False

    def heard(self, answer: asyncio.Future[int]) -> None:
        """The same, from a future."""
        if succeeded(answer):
            self.resolve(answer.result())
        else:
            self.set_exception(failure_of(answer))

    def resolve(self, was: int, /) -> None:
        """The store has answered."""
        self._handoff.answered(self._queue, self, was)

    def set_exception(self, failure: BaseException | None, /) -> None:
        """The outcome is unknown."""
        self._handoff.failed(self._queue, self, failure)

    @property
    def releases(self) -> list[Released]:
        """The releases that became hand-offs; the report answers all of them."""
        return [hold.released for hold in self.handed_off if hold.released is not None]


class _NameQueue:
    """One name: the order of our waiters, and the hand-offs that the store has not confirmed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.behind: dict[WaiterId, Acquisition] = {}
        """By waiter or holder, the waiter directly behind it. Only pairs that are certainly
        neighbours in the store's queue: no other client's waiter stands between them."""
        self.last_ticket = 0
        self.chain = _HandoffChain()
        """The last chain of this name."""
        self.unsent: deque[_Batch] = deque()
        """Batches to be reported, in order; hand-offs are added to the last one."""
        self.batch: _Batch | None = None
        """The last of them."""
        self.under_way = 0
        """How many reports are not answered yet."""
        self.failed: list[_Batch] = []
        """Batches whose report has failed, with unknown outcome. While there is one, nothing is
        handed off: each further hand-off would rely on a lease that may have ended."""
        self.timer: asyncio.TimerHandle | None = None
        """Sends them again, with growing pauses, until `LONGEST` has passed."""
        self.handed_off: dict[WaiterId, tuple[int, _HandoffChain]] = {}
        """Grants that were handed off, while the store has not confirmed that: fence and chain."""
        self.overtaken = False
        """At the store, a waiter was queued before one of ours that may hold the lock already.
        Until the store has all reports, its `Queued.before` is not reliable."""

    @property
    def idle(self) -> bool:
        return not (self.behind or self.unsent or self.under_way or self.failed or self.handed_off)

    def unlink(self, acquisition: Acquisition) -> WaiterId | None:
        """Forget which waiter is directly before this one; returns that waiter."""
        before, acquisition.behind = acquisition.behind, None
        if before is not None and self.behind.get(before) is acquisition:
            del self.behind[before]
            return before
        return None


class LocalHandoff:
    """A wrapper of a client's store that makes local hand-offs and reports them.

    It sends the reports that are due for a name before any other command about that name. So all
    commands about locks must go through it, and not to the store that it wraps.
    """

    def __init__(
        self,
        store: Store,
        time: Callable[[], float],
        holds: Mapping[WaiterId, Acquisition],
        lose: Callable[[Acquisition, LossReason], None],
        release: Callable[[str, WaiterId, Form, int], object],
    ) -> None:
        """``release`` must release a grant and, if that fails, try again (see `Releases`)."""
        self._store = store
        self.submit_now: Callable[[Operation[Any]], asyncio.Future[Any]] = store.submit
        """`Store.submit` itself, for callers that have seen to the reports that are due."""
        self.ask_to: SubmitTo | None = None
        """The same for an `Acquire` and a `Receiver`, if the store has such a function."""
        self.release_to: SubmitTo | None = None
        self._report_to: SubmitTo | None = None
        self.features = store.features
        self._loop = asyncio.get_running_loop()
        self._time = time
        self._holds = holds
        self._lose = lose
        self._release = release
        self.names: dict[str, _NameQueue] = {}
        """Names of which an order is known, or something is to be reported."""
        self._closed = False
        self._first: Acquisition | None = None
        """The first of those that were handed a lock, and continue soon; each has the `next`."""
        self._last: Acquisition | None = None
        self._resuming = False

    def __repr__(self) -> str:
        return repr(self._store)

    async def open(self, client: str, deliver: Deliver) -> None:
        """As the store."""
        await self._store.open(client, deliver)
        self.submit_now = self._store.submit
        receiving: Mapping[type[Operation[Any]], SubmitTo] = getattr(self._store, "receiving", {})
        self.ask_to, self.release_to = receiving.get(Acquire), receiving.get(Release)
        self._report_to = receiving.get(ReportHandoff)

    async def aclose(self) -> None:
        """As the store."""
        await self._store.aclose()

    # The order of our waiters

    def queued(
        self, acquisition: Acquisition, answer: Queued, known: Mapping[WaiterId, Acquisition]
    ) -> None:
        """A newcomer was queued; ``known`` are the client's waiters for this name."""
        name = acquisition.policy.key
        queue = None
        if name in self.names:
            queue = self.names[name]
            if answer.ticket < queue.last_ticket:
                queue.behind.clear()  # the newcomer is before some of the others
            else:
                queue.last_ticket = answer.ticket
        # An acquisition that crossed may have been queued a second time, at another place.
        if answer.before is None or acquisition.crossed or self._closed:
            return
        if queue is not None and queue.overtaken:
            return
        before, fence = answer.before
        if before in self._holds:
            if fence and fence != self._holds[before].fence:
                return  # the answer is about an earlier grant of that waiter
        elif before not in known:
            return
        else:
            phase = known[before].phase
            if phase is not Phase.QUEUED and phase is not Phase.GRANTED:
                return
        if queue is None:
            queue = self.names[name] = _NameQueue(name)
            queue.last_ticket = answer.ticket
        queue.behind[before] = acquisition
        acquisition.behind = before

    def leaves(self, acquisition: Acquisition) -> None:
        """This acquisition does not wait any more: it was granted, or gave up."""
        name = acquisition.policy.key
        if name not in self.names:
            return
        queue = self.names[name]
        before = None if acquisition.behind is None else queue.unlink(acquisition)
        # Granted, it still stands before the waiter behind it, as the holder. Having given up, it
        # does not, and its neighbours become neighbours of each other.
        if acquisition.phase is not Phase.GRANTED:
            self._close_gap(queue, acquisition, before)

    def returns(self, acquisition: Acquisition) -> None:
        """A grant came too late: its acquisition has no place in the queue until it asks again."""
        queue = self.names.get(acquisition.policy.key)
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
        for each in list(self.names) if name is None else (name,):
            if (queue := self.names.get(each)) is not None:
                queue.behind.clear()
                self._forget_if_idle(queue)

    def was_overtaken(self, name: str) -> None:
        """Another client's waiter was queued directly before one of ours."""
        queue = self.names.get(name)
        if queue is not None:
            queue.overtaken = bool(queue.handed_off)
            self.forget_order(name)

    def was_handed_off(self, name: str, waiter: WaiterId, fence: int) -> bool:
        """Whether this grant was handed off, and the store may not have the report yet."""
        queue = self.names.get(name)
        return (
            queue is not None
            and waiter in queue.handed_off
            and queue.handed_off[waiter][0] == fence
        )

    def present(self, name: str, waiter: WaiterId, fence: int) -> tuple[WaiterId, int]:
        """The present waiter and fence of the chain of a grant; else those given.

        A push may be about a grant that was handed off: it concerns the present holder then.
        """
        if not self.was_handed_off(name, waiter, fence):
            return waiter, fence
        chain = self.names[name].handed_off[waiter][1]
        return chain.present.waiter, chain.fence

    def in_doubt(self, hold: Acquisition) -> bool:
        """Whether the report of this hold has failed, so that the store may not have the hold."""
        queue = self.names.get(hold.policy.key)
        return queue is not None and any(hold.fence == batch.fence for batch in queue.failed)

    def was_unknown(self, hold: Acquisition) -> bool:
        """Whether the store carried out the release of this hold before the report of it."""
        queue = self.names.get(hold.policy.key)
        return queue is not None and queue.chain.unknown and hold.fence == queue.chain.fence

    # Hand-offs

    def hand_off(self, hold: Acquisition, queue: _NameQueue, now: float) -> Released | None:
        """Hand the lock to the waiter directly behind this hold, if that is known and possible.

        ``queue`` is that of its name. Returns the release, which the report will answer. None if it
        must be sent to the store.
        """
        waiter, policy = hold.waiter, hold.policy
        if waiter not in queue.behind:
            self._forget_if_idle(queue)
            return None
        acquisition = queue.behind[waiter]
        del queue.behind[waiter]
        # Whether the store would grant the lock to this waiter, as far as the client can know. Only
        # the simple case, in which its decision is certain: a plain lock, whose lease no renewal
        # under way shortens, and which no copy of a question may still change. With a question
        # under way, the answer may be that its place is lost.
        if not (
            (acquisition.policy is policy or acquisition.policy.form is policy.form)
            and policy.form.plain
            and not hold.crossed
            and (hold.renewals is None or not hold.is_limited)
            and acquisition.phase is Phase.QUEUED
            and acquisition.waits_for.step
            and acquisition.question is None
            and acquisition.limit is None
            and not (self._closed or queue.failed)
            and now + policy.claim * _MARGIN < hold.deadline
        ):
            self._forget_if_idle(queue)
            return None
        acquisition.behind = None
        chain = queue.chain
        if chain.present is not hold or chain.fence != hold.fence:
            chain = queue.chain = _HandoffChain()
        batch = queue.batch
        if batch is None or batch.chain is not chain:
            if len(queue.handed_off) > MAX_AHEAD - _TOGETHER:
                return None
            batch = _Batch(self, queue, chain, hold)
            chain.reports += 1
            queue.unsent.append(batch)
            queue.batch = batch
            self._loop.call_soon(self._report_if_idle, queue, batch, 0, 0, context=Context())
        fence, claim = hold.fence + 1, batch.form.claim
        # Until the report is carried out, the store knows the old lease; from then on it keeps a
        # claim, counted from a time that is certainly later than now. The earlier end is certain.
        deadline = now + batch.claimed
        if deadline > hold.deadline:
            deadline = hold.deadline
        chain.present, chain.fence = acquisition, fence
        chain.released = chain.unknown = False
        queue.handed_off[waiter] = hold.fence, chain
        batch.fence = fence
        hold.handed_to = acquisition
        # The report answers the release: only the store can confirm that the lock was still ours.
        hold.released = released = Released()
        hold.handed_off = True
        acquisition.handed_off_by = hold.request
        acquisition.fence, acquisition.granted_for = fence, claim
        acquisition.deadline, acquisition.unconfirmed = deadline, True
        acquisition.phase = Phase.GRANTED
        if self._first is None or self._last is None:
            self._first = acquisition
        else:
            self._last.next = acquisition
        self._last = acquisition
        if not self._resuming:
            self._resuming = True
            self._loop.call_soon(self._resume, context=Context())
        if fence - batch.source_fence >= _TOGETHER:
            self._send(queue)
        return released

    def _resume(self) -> None:
        """Let those continue that were handed a lock, each of which may hand it to the next."""
        try:
            for _ in range(_IN_A_TURN):
                acquisition = self._first
                if acquisition is None:
                    break
                self._first, acquisition.next = acquisition.next, None
                # Kept by itself, as the future is deleted once it holds the lock.
                acquisition.waits_for.resolve(None)
        finally:
            self._resuming = self._first is not None
            if self._resuming:
                self._loop.call_soon(self._resume, context=Context())

    def _report_if_idle(self, queue: _NameQueue, batch: _Batch, size: int, idle: int) -> None:
        """Report a batch once no hand-off has been added for some iterations of the event loop."""
        if queue.batch is not batch:
            return
        grown = batch.size > size
        idle = 0 if grown else idle + 1
        if idle >= _IDLE_TURNS:
            self._send(queue)
        else:
            more = queue, batch, batch.size, idle
            self._loop.call_soon(self._report_if_idle, *more, context=Context())

    def _send(self, queue: _NameQueue) -> None:
        """Send all reports that are due, in order."""
        if queue.timer is not None:
            queue.timer.cancel()
            queue.timer = None
        batches = [*queue.failed, *queue.unsent]
        queue.failed, queue.unsent, queue.batch = [], deque(), None
        for batch in batches:
            queue.under_way += 1
            if batch.sent is None:
                batch.ends()
                batch.sent = self._time()  # before it is sent: the claim counts from here
            via = tuple([acquisition.waiter for acquisition in batch.via])
            handed_off = ReportHandoff(
                queue.name,
                batch.form,
                batch.source.waiter,
                batch.source_fence,
                via[-1],
                batch.fence,
                via,
            )
            if self._report_to is None:
                when_answered(self.submit_now(handed_off), batch.heard)
            else:
                self._report_to(handed_off, batch)

    def answered(self, queue: _NameQueue, batch: _Batch, was: int) -> None:
        """The store has answered a report."""
        queue.under_way -= 1
        if was == WAS_ABSENT and batch.again:
            # The first try may have been carried out, and the lock released since.
            was = WAS_UNKNOWN
        self._settle(queue, batch)
        if was == WAS_HOLDER:
            self._confirmed(queue, batch)
        elif was == WAS_ABSENT:
            self._refused(queue, batch)
        if not queue.behind:
            self._forget_if_idle(queue)
        # Last, because each lets a task continue in that very call.
        for released in batch.releases:
            released.resolve(was)

    def _settle(self, queue: _NameQueue, batch: _Batch) -> None:
        """The store has carried out or refused this report, or it is not sent again."""
        batch.chain.reports -= 1
        handed_off = queue.handed_off
        for hold in batch.handed_off:
            if hold.waiter in handed_off:
                del handed_off[hold.waiter]
        if not queue.handed_off:
            queue.overtaken = False

    def _confirmed(self, queue: _NameQueue, batch: _Batch) -> None:
        """The store keeps the chain's lease for a claim at least: extend the holder's deadline."""
        chain, present = batch.chain, batch.chain.present
        hold = self._holds.get(present.waiter)
        if hold is not None and hold.fence == chain.fence:
            assert batch.sent is not None
            # A hold that was renewed since, or is being renewed, has a better deadline already.
            if hold.unconfirmed and not hold.is_limited:
                hold.deadline = max(hold.deadline, batch.sent + batch.claimed)
        elif chain.fence == batch.fence and present.ended and (chain.unknown or not chain.released):
            # The present holder has ended. Its release reached the store before this report, or was
            # never sent, so the report has made it the holder for good: release it.
            self._release(queue.name, present.waiter, batch.form, chain.fence)

    def _refused(self, queue: _NameQueue, batch: _Batch) -> None:
        """The grant that was handed off had ended, so the present holder does not hold the lock."""
        present, fence = batch.chain.present, batch.chain.fence
        hold = self._holds.get(present.waiter)
        if hold is not None and hold.fence == fence:
            # Not in the context of the task that handed it off: see `shared_timers`.
            Context().run(self._lose, hold, LossReason.REFUSED)
        elif present.phase is Phase.GRANTED:
            present.taken_away(fence)
        self._give_up_places(queue, batch)

    def _give_up_places(self, queue: _NameQueue, batch: _Batch) -> None:
        """Release the places of its acquisitions, which the store may still have in the queue.

        They were granted the lock here only, so the store would grant it to them once more.
        """
        first = batch.fence - len(batch.via) + 1
        for fence, acquisition in enumerate(batch.via, start=first):
            # Except those that hold it still, and one whose grant came too late: it gave that grant
            # back and has asked for its place again.
            had = acquisition.fence if acquisition.phase is Phase.HELD else 0
            if had == fence and acquisition.waiter not in self._holds:
                self._release(queue.name, acquisition.waiter, batch.form, 0)

    def failed(self, queue: _NameQueue, batch: _Batch, failure: BaseException | None) -> None:
        """The outcome of a report is unknown. It is sent again, before all that follows."""
        queue.under_way -= 1
        for released in batch.releases:
            released.set_exception(failure or StoreError("the report of a release was dropped"))
        batch.again = True
        assert batch.sent is not None
        failing = self._time() - batch.sent
        if failing > LONGEST:
            self._settle(queue, batch)
            self._give_up_places(queue, batch)
            self._forget_if_idle(queue)
            return
        queue.failed.append(batch)
        if not self._closed and queue.timer is None:
            # The first tries come soon, so that the claim is confirmed before it ends.
            pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, failing / 2))
            queue.timer = self._loop.call_later(pause, self._send, queue)

    def ended(self, hold: Acquisition) -> None:
        """A hold has ended that is not released as others are: it may have been the last."""
        if (queue := self.names.get(hold.policy.key)) is not None:
            self._forget_if_idle(queue)

    def _forget_if_idle(self, queue: _NameQueue) -> None:
        if queue.idle and self.names.get(queue.name) is queue:
            del self.names[queue.name]

    # Operations of the store, each behind the reports that are due for its name

    def report(self, name: str) -> None:
        """Send the reports of this name that are due, before any other command."""
        queue = self.names.get(name)
        if queue is not None and (queue.unsent or queue.failed):
            self._send(queue)

    async def flush_reports(self) -> None:
        """Hand off nothing any more, and send all reports once more, but not again after that."""
        self._closed = True
        left, take = deque(self.names.values()), turns().take
        try:
            while left:
                await take(_REPORT)
                self._send(left.popleft())
        finally:
            for queue in left:  # without a pause, because this was cancelled
                self._send(queue)

    def end(self) -> None:
        """Send nothing at all from now on: the client is opened again, under another client id."""
        self._store = ClosedStore(self._store, self._loop)
        self.submit_now = self._store.submit
        self.ask_to = self.release_to = self._report_to = None

    def submit(self, operation: Operation[Value]) -> asyncio.Future[Value]:
        """Start the operation, after the reports that it must not overtake."""
        if not self.names:
            return self._store.submit(operation)
        queue = self.names.get(operation.name)
        self._report_before(operation)
        answer = self._store.submit(operation)
        if queue is not None and isinstance(operation, Release):
            chain = queue.chain
            if chain.reports and chain.present.waiter == operation.waiter:
                chain.released = True
                Released().follow(cast("asyncio.Future[int]", answer)).then(
                    partial(_released, chain)
                )
        return answer

    def release(self, operation: Release, released: Released) -> None:
        """The same for the release of a hold, with the receiver of its answer."""
        name = operation.name
        if name in self.names:
            queue = self.names[name]
            if queue.unsent or queue.failed:
                self._send(queue)
            chain = queue.chain
            if chain.reports and chain.present.waiter == operation.waiter:
                chain.released = True
                released.then(partial(_released, chain))
        if self.release_to is None:
            released.follow(self.submit_now(operation))
        else:
            self.release_to(operation, released)

    def _report_before(self, operation: Operation[Any]) -> None:
        match operation:
            case Renew(renewals):
                for renewal in renewals:
                    self.report(renewal.name)
            case ReadPage(start):
                for name in list(self.names) if not start else ():
                    self.report(name)
            case _:
                self.report(operation.name)


def _released(chain: _HandoffChain, released: Released) -> None:
    """The present holder's release succeeded. If a report is unanswered, it came before that."""
    if released.failure is None and chain.reports:
        chain.unknown = True
