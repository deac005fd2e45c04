"""Runs: hand-offs within one client that do not wait for the store.

A queue is first-in, first-out, and newcomers join its tail. If a client knows that its own waiter
stands directly behind its own holder, it also knows what the store will do on the release: grant
the lock to that waiter. So it hands the lock on at once, under the lease that the store respects,
and reports several hand-offs in one command (`Store.pass_on`). The order is exact across all
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

from aiolock._engine.acquisition import Attempt, Phase
from aiolock._engine.ended import Ended
from aiolock._engine.grant import Grant, lasts
from aiolock._engine.hold import Hold, LossReason
from aiolock._engine.releases import FIRST_PAUSE, LONGEST, LONGEST_PAUSE
from aiolock._turns import turns
from aiolock.errors import StoreError
from aiolock.store import (
    RUN,
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_UNKNOWN,
    Answer,
    Form,
    Page,
    Pass,
    Queued,
    Relay,
    Renewal,
    Status,
    Store,
    Waiter,
)

_TOGETHER: Final = 8
"""Passes in one report: with more, the tasks that have released wait longer for its answer."""
_REPORT: Final = 4
"""Units of work to send a report: see `Turns`."""
_IDLE_TURNS: Final = 3
"""Iterations of the event loop without a further pass, after which the passes are reported."""
_MARGIN: Final = 4
"""A lock is passed on only while more than 1/4 of a claim is left of the lease."""


class _Chain:
    """One run: a grant that the store has made, and its present holder in this client."""

    def __init__(self) -> None:
        self.present: Attempt
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

    def __init__(self, chain: _Chain, giver: Hold) -> None:
        self.chain = chain
        self.form = giver.policy.form
        self.giver = giver.waiter
        self.giver_fence = self.fence = giver.fence
        """The fences of the first and of the last grant."""
        self.through: list[Attempt] = []
        """The acquisitions that have held it since the giver, each under the next fence."""
        self.left: list[asyncio.Future[int]] = []
        """The futures of the releases of those that have passed it on."""
        self.sent: float | None = None
        """When it was first reported."""
        self.again = False
        """It is reported again, because the outcome of an earlier report is unknown."""


class _Run:
    """One name: the order of our waiters, and the passes that the store has not confirmed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.behind: dict[Waiter, Attempt] = {}
        """For a waiter or holder, the waiter directly behind it."""
        self.last_ticket = 0
        self.chain = _Chain()
        """The last run of this name."""
        self.unsent: deque[_Batch] = deque()
        """Batches to be reported, in order; the last may grow."""
        self.under_way = 0
        """How many reports are not answered yet."""
        self.failed: list[_Batch] = []
        """Batches whose report has failed, with unknown outcome; then nothing is passed on."""
        self.timer: asyncio.TimerHandle | None = None
        """Sends them again: less and less often, and not for ever."""
        self.passed: dict[Waiter, tuple[int, _Chain]] = {}
        """Grants that were passed on, before the store has confirmed that."""
        self.overtaken = False
        """A waiter came to stand before one of ours that may hold the lock already. Until the store
        has all reports, its `Queued.before` is not reliable."""

    @property
    def idle(self) -> bool:
        return not (self.behind or self.unsent or self.under_way or self.failed or self.passed)

    def unlink(self, attempt: Attempt) -> Waiter | None:
        """Forget the waiter directly before this one; returns it."""
        before, attempt.behind = attempt.behind, None
        if before is not None and self.behind.get(before) is attempt:
            del self.behind[before]
            return before
        return None


class Runs(Relay):
    """A client's store that sends the reports due for a name before other commands about it."""

    def __init__(
        self,
        store: Store,
        time: Callable[[], float],
        holds: Mapping[Waiter, Hold],
        lose: Callable[[Hold, LossReason], None],
        release: Callable[[str, Waiter, Form, int], object],
    ) -> None:
        """``release`` must see to it that a grant is released, even if sending it fails."""
        super().__init__(store)
        self._loop = asyncio.get_running_loop()
        self._time = time
        self._holds = holds
        self._lose = lose
        self._release = release
        self._runs: dict[str, _Run] = {}
        self._closed = False

    def __repr__(self) -> str:
        return repr(self._store)

    def __len__(self) -> int:
        return len(self._runs)

    # The order of our waiters

    def queued(self, attempt: Attempt, answer: Queued, known: Mapping[Waiter, Attempt]) -> None:
        """A newcomer was queued; ``known`` are the client's waiters for this name."""
        name = attempt.policy.key
        run = self._runs.get(name)
        if run is not None:
            if answer.ticket < run.last_ticket:
                run.behind.clear()  # the newcomer is before some of the others
            run.last_ticket = max(run.last_ticket, answer.ticket)
        if answer.before is None or attempt.crossed or self._closed:
            return
        if run is not None and run.overtaken:
            return
        before, fence = answer.before
        hold, waiting = self._holds.get(before), known.get(before)
        if hold is not None:
            if fence not in (0, hold.fence):
                return
        elif waiting is None or waiting.phase not in (Phase.QUEUED, Phase.GRANTED):
            return
        if run is None:
            run = self._runs[name] = _Run(name)
            run.last_ticket = answer.ticket
        run.behind[before] = attempt
        attempt.behind = before

    def leaves(self, attempt: Attempt) -> None:
        """This acquisition does not wait any more: it was granted, or has given up."""
        run = self._runs.get(attempt.policy.key)
        if run is None:
            return
        before = run.unlink(attempt)
        if attempt.phase is not Phase.GRANTED:
            self._close_gap(run, attempt, before)
        else:  # its hold may be lost, and then it hands nothing on
            self._forget_if_idle(run)

    def returns(self, attempt: Attempt) -> None:
        """A grant came too late: its acquisition has no place in the queue until it asks again."""
        run = self._runs.get(attempt.policy.key)
        if run is not None:
            run.unlink(attempt)
            self._close_gap(run, attempt, None)

    def _close_gap(self, run: _Run, attempt: Attempt, before: Waiter | None) -> None:
        after = run.behind.pop(attempt.waiter, None)
        if after is not None:
            after.behind = None
            if before is not None:
                run.behind[before] = after
                after.behind = before
        self._forget_if_idle(run)

    def nobody_knows(self, name: str | None = None) -> None:
        """The order of the waiters may have changed, for this name or for all."""
        for each in list(self._runs) if name is None else (name,):
            if (run := self._runs.get(each)) is not None:
                run.behind.clear()
                self._forget_if_idle(run)

    def void(self, name: str) -> None:
        """Another client's waiter was queued directly before one of ours."""
        run = self._runs.get(name)
        if run is not None:
            run.overtaken = bool(run.passed)
            self.nobody_knows(name)

    def was_passed(self, name: str, waiter: Waiter, fence: int) -> bool:
        """Whether this grant was passed on, and the store may not have the report yet."""
        run = self._runs.get(name)
        return run is not None and waiter in run.passed and run.passed[waiter][0] == fence

    def present(self, name: str, waiter: Waiter, fence: int) -> tuple[Waiter, int]:
        """The present waiter and fence of a run, for a grant of it that the store speaks of."""
        if not self.was_passed(name, waiter, fence):
            return waiter, fence
        chain = self._runs[name].passed[waiter][1]
        return chain.present.waiter, chain.fence

    def in_doubt(self, hold: Hold) -> bool:
        """Whether the report of this hold has failed and is to be sent again."""
        run = self._runs.get(hold.policy.key)
        return run is not None and any(hold.fence == batch.fence for batch in run.failed)

    def was_unknown(self, hold: Hold) -> bool:
        """Whether the store read the release of this hold before the report of it."""
        run = self._runs.get(hold.policy.key)
        return run is not None and run.chain.unknown and hold.fence == run.chain.fence

    # Passing on

    def hand_on(self, hold: Hold) -> asyncio.Future[int] | None:
        """Hand the lock to the waiter directly behind this hold, if that is known and possible.

        Returns the future of the release's answer; None if the release must be sent to the store.
        """
        run = self._runs.get(hold.policy.key)
        if run is None:
            return None
        attempt = run.behind.pop(hold.waiter, None)
        if attempt is None or not self._may_pass(run, hold, attempt):
            self._forget_if_idle(run)
            return None
        attempt.behind = None
        chain = run.chain
        if not chain.fence or (chain.present.waiter, chain.fence) != (hold.waiter, hold.fence):
            chain = run.chain = _Chain()
        batch = run.unsent[-1] if run.unsent else None
        if batch is None or batch.chain is not chain:
            batch = _Batch(chain, hold)
            chain.reports += 1
            run.unsent.append(batch)
            self._loop.call_soon(self._look, run, batch, 0, 0)
        fence, claim = hold.fence + 1, batch.form.claim
        deadline = min(hold.deadline, self._time() + lasts(claim))
        chain.present, chain.fence = attempt, fence
        chain.released = chain.unknown = False
        run.passed[hold.waiter] = hold.fence, chain
        batch.fence = fence
        batch.through.append(attempt)
        released: asyncio.Future[int] = self._loop.create_future()
        batch.left.append(released)
        hold.passed = True
        attempt.handed_on_by = hold.request
        attempt.passed(Grant(fence, claim, deadline, claim=True))
        if len(batch.through) >= _TOGETHER:
            self._send(run)
        return released

    def _may_pass(self, run: _Run, hold: Hold, attempt: Attempt) -> bool:
        """Whether the store would grant the lock to this waiter, as far as the client can know."""
        form = hold.policy.form
        same = attempt.policy.form is form or attempt.policy.form == form
        if not same or not form.plain or hold.crossed or hold.limits:
            return False
        if not attempt.waits or attempt.question is not None:
            return False
        if self._closed or run.failed or len(run.passed) >= RUN:
            return False
        return self._time() + form.claim / 1000 / _MARGIN < hold.deadline

    def _look(self, run: _Run, batch: _Batch, size: int, idle: int) -> None:
        """Report a batch once it does not grow any more."""
        if not run.unsent or run.unsent[-1] is not batch:
            return
        grown = len(batch.through) > size
        idle = 0 if grown else idle + 1
        if idle >= _IDLE_TURNS:
            self._send(run)
        else:
            self._loop.call_soon(self._look, run, batch, len(batch.through), idle)

    def _send(self, run: _Run) -> None:
        """Send all reports that are due, in order."""
        if run.timer is not None:
            run.timer.cancel()
            run.timer = None
        batches = [*run.failed, *run.unsent]
        run.failed.clear()
        run.unsent.clear()
        for batch in batches:
            through = tuple([attempt.waiter for attempt in batch.through])
            passed = Pass(
                run.name,
                batch.form,
                batch.giver,
                batch.giver_fence,
                through[-1],
                batch.fence,
                through,
            )
            run.under_way += 1
            if batch.sent is None:
                batch.sent = self._time()  # before it is sent
            answer = self._store.pass_on(passed)
            answer.add_done_callback(partial(self._answered, run, batch))

    def _answered(self, run: _Run, batch: _Batch, answer: asyncio.Future[int]) -> None:
        run.under_way -= 1
        failure = None if answer.cancelled() else answer.exception()
        if failure is not None or answer.cancelled():
            self._failed(run, batch, failure)
            return
        was = answer.result()
        if was == WAS_ABSENT and batch.again:
            was = WAS_UNKNOWN  # an earlier copy of this report may have been carried out
        for released in batch.left:
            if not released.done():
                released.set_result(was)
        self._is_over(run, batch)
        if was == WAS_HOLDER:
            self._confirmed(run, batch)
        elif was == WAS_ABSENT:
            self._refused(run, batch)
        self._forget_if_idle(run)

    def _is_over(self, run: _Run, batch: _Batch) -> None:
        """The store has this report, or never will."""
        batch.chain.reports -= 1
        for waiter in (batch.giver, *(attempt.waiter for attempt in batch.through[:-1])):
            run.passed.pop(waiter, None)
        if not run.passed:
            run.overtaken = False

    def _confirmed(self, run: _Run, batch: _Batch) -> None:
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
            self._release(run.name, present.waiter, batch.form, chain.fence)

    def _refused(self, run: _Run, batch: _Batch) -> None:
        """The grant that was passed on had ended, so no one in the run holds the lock."""
        present, fence = batch.chain.present, batch.chain.fence
        hold = self._holds.get(present.waiter)
        if hold is not None and hold.fence == fence:
            # Not in the context of whoever has handed it on: see `shared_timers`.
            Context().run(self._lose, hold, LossReason.REFUSED)
        elif present.phase is Phase.GRANTED:
            present.taken_away(fence)
        self._give_up_places(run, batch)

    def _give_up_places(self, run: _Run, batch: _Batch) -> None:
        """Release the places of those that held it: the store may still have them in the queue."""
        first = batch.fence - len(batch.through) + 1
        for fence, attempt in enumerate(batch.through, start=first):
            # Except one whose grant was too late: it has asked for its place again.
            had = attempt.grant.fence if attempt.phase is Phase.HELD and attempt.grant else 0
            if had == fence and attempt.waiter not in self._holds:
                self._release(run.name, attempt.waiter, batch.form, 0)

    def _failed(self, run: _Run, batch: _Batch, failure: BaseException | None) -> None:
        """The outcome of a report is unknown. It is sent again, before all that follows."""
        for released in batch.left:
            if not released.done():
                released.set_exception(failure or StoreError("the report of a release was dropped"))
        batch.left.clear()
        batch.again = True
        assert batch.sent is not None
        failing = self._time() - batch.sent
        if failing > LONGEST:
            self._is_over(run, batch)
            self._give_up_places(run, batch)
            self._forget_if_idle(run)
            return
        run.failed.append(batch)
        if not self._closed and run.timer is None:
            # Often enough that the present holder's claim is confirmed while it lasts.
            pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, failing / 2))
            run.timer = self._loop.call_later(pause, self._send, run)

    def _forget_if_idle(self, run: _Run) -> None:
        if run.idle and self._runs.get(run.name) is run:
            del self._runs[run.name]

    # The store; before a command about a name, its reports are sent

    def report(self, name: str) -> None:
        """Send the reports of this name that are due, before any other command."""
        run = self._runs.get(name)
        if run is not None and (run.unsent or run.failed):
            self._send(run)

    async def finish_passing(self) -> None:
        """Pass nothing on any more, and send all reports once more, but not again after that."""
        self._closed = True
        left, take = deque(self._runs.values()), turns().take
        try:
            while left:
                await take(_REPORT)
                self._send(left.popleft())
        finally:
            for run in left:  # without a pause, for this was cancelled
                self._send(run)

    def end(self) -> None:
        """Send nothing at all from now on: the client is opened again, and another one there."""
        self._store = Ended(self._store, self._loop)

    def acquire(
        self,
        name: str,
        waiter: Waiter,
        form: Form,
        ttl: int,
        *,
        ticket: int,
        wait: bool,
        max_waiters: int,
    ) -> asyncio.Future[Answer]:
        """A newcomer joins the tail, so reports need not be sent first."""
        if self._runs and (ticket or max_waiters or not wait):
            self.report(name)
        return self._store.acquire(
            name, waiter, form, ttl, ticket=ticket, wait=wait, max_waiters=max_waiters
        )

    def release(
        self,
        name: str,
        waiter: Waiter,
        form: Form,
        fence: int,
        *,
        entered: bool = True,
        lost: bool = False,
    ) -> asyncio.Future[int]:
        """Sent after the reports that are due."""
        run = self._runs.get(name) if self._runs else None
        if run is None:
            return self._store.release(name, waiter, form, fence, entered=entered, lost=lost)
        self.report(name)
        chain = run.chain
        released = self._store.release(name, waiter, form, fence, entered=entered, lost=lost)
        if not chain.reports or chain.present.waiter != waiter:
            return released
        chain.released = True
        released.add_done_callback(partial(_released, chain))
        return released

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool | None]]:
        """Sent after the reports that are due."""
        if self._runs:
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
            for name in list(self._runs):
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


def _released(chain: _Chain, released: asyncio.Future[int]) -> None:
    """The present holder's release was answered. A failed one is sent again."""
    heard = not released.cancelled() and released.exception() is None
    if heard and chain.reports:
        chain.unknown = True
