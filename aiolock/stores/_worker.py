"""A thread that carries out a client's operations in order, in batches of all that are pending.

The event loop hands it operations, and gets their outcomes. Every caller gets an answer, even if
the thread ends by a fault, or the loop is closed before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from aiolock._futures import retrieve
from aiolock._turns import Backlog
from aiolock.errors import StoreError
from aiolock.protocol import Deliver, Operation, Renew, Renewal
from aiolock.stores._effects import Push
from aiolock.stores._operations import Part, parts_of
from aiolock.stores._outcomes import CarriedOut, Outcome, failed, once_more, refusal

_TOGETHER: Final = 256
"""Parts, each on one name, in one batch at most: other clients wait until all are done."""
_FEWEST: Final = 16
_STRETCH: Final = 0.1
"""Seconds for which a batch may block other clients: after a longer one, fewer are taken."""
_DELIVERED: Final = 64
"""Answers and pushes in one iteration of the event loop; others have a turn then."""
_LOOK: Final = 0.05
"""Seconds between checks of whether the event loop that the thread waits for is closed."""
_SHARE: Final = 4
"""One in this many is left to operations that renew nothing, while many leases are due."""


class Job:
    """An operation, whose parts are each carried out by itself, and the future of its answer."""

    __slots__ = ("answered", "answers", "failure", "future", "left", "parts", "since", "single")

    def __init__(self, operation: Operation[Any], future: asyncio.Future[Any]) -> None:
        self.parts = parts_of(operation)
        self.future = future
        self.single = type(operation) is not Renew
        """Whether the answer is that of the only part, not a list."""
        self.since = time.monotonic()
        """The time of the call."""
        self.answers: list[Any] = [None] * len(self.parts)
        self.answered = False
        """Whether any of them has an answer: then the others' places are None."""
        self.failure: StoreError | None = None
        self.left = len(self.parts)

    def settle(self) -> None:
        """All have been carried out, or have failed."""
        if self.future.done():
            return
        if self.failure is not None and not self.answered:
            self.future.set_exception(self.failure)
        else:
            self.future.set_result(self.answers[0] if self.single else self.answers)

    def fail(self, failure: StoreError) -> None:
        """Nothing will be carried out any more."""
        if not self.future.done():
            self.future.set_exception(failure)


class _Task(NamedTuple):
    """One part of a job."""

    job: Job
    place: int
    part: Part


class _Lanes:
    """The pending parts: renewals in one lane, others in another, so that both go on.

    All on one name are in one lane at a time, because they must be carried out in order.
    """

    def __init__(self) -> None:
        self._renewals = deque[_Task]()
        self._others = deque[_Task]()
        self._used = dict[str, list[Any]]()
        """For each name, its lane, and how many of its parts are there."""

    def __bool__(self) -> bool:
        return bool(self._renewals or self._others)

    def add(self, job: Job) -> None:
        """Add these behind all that are there."""
        for place, part in enumerate(job.parts):
            # A renewal must not wait behind everything else.
            lane = self._renewals if isinstance(part, Renewal) else self._others
            if part.name:
                used = self._used.setdefault(part.name, [lane, 0])
                used[1] += 1
                lane = used[0]
            lane.append(_Task(job, place, part))

    def take(self, most: int, names: int) -> list[_Task]:
        """Take the next parts: so many at most, on as many names."""
        others = min(len(self._others), max(most - len(self._renewals), most // _SHARE))
        renewals = min(len(self._renewals), most - others)
        used, tasks = set[str](), list[_Task]()
        left = min(others, names // _SHARE)
        for lane, count, limit in (
            (self._renewals, renewals, names - left),
            (self._others, others, names),
        ):
            for _ in range(count):
                name = lane[0].part.name
                if name and name not in used:
                    if len(used) == limit:
                        break
                    used.add(name)
                tasks.append(self._taken(lane))
        return tasks

    def _taken(self, lane: deque[_Task]) -> _Task:
        task = lane.popleft()
        if name := task.part.name:
            used = self._used[name]
            used[1] -= 1
            if not used[1]:
                del self._used[name]
        return task

    def take_all(self) -> list[_Task]:
        """Take all."""
        tasks = [*self._renewals, *self._others]
        self._renewals.clear()
        self._others.clear()
        self._used.clear()
        return tasks


class Work(Protocol):
    """The work of the thread."""

    @property
    def rest(self) -> float:
        """Seconds after which it calls `look_after`, even if there are no operations."""
        ...

    def begin(self) -> None:
        """Open what is needed; an error is raised where the store is opened."""

    def carry_out(self, parts: Sequence[Part], since: float, /) -> CarriedOut:
        """Carry these out, in order; the first was asked for at ``since``."""
        ...

    def look_after(self) -> None:
        """Do the work that is due now and then."""

    def end(self) -> None:
        """Close all that was opened."""

    def failure(self, error: BaseException) -> StoreError:
        """The error that the caller gets."""
        ...


class Worker:
    """One client's thread."""

    def __init__(self, name: str, work: Work, deliver: Deliver) -> None:
        self._work = work
        self._deliver = deliver
        self._loop = loop = asyncio.get_running_loop()
        self._jobs = queue.SimpleQueue[Job | None]()
        self._lanes = _Lanes()
        """The operations that the thread has accepted; only the thread uses it, until it
        has ended."""
        self._most = self._names = _TOGETHER
        """The present limits of a batch: parts, and names."""
        self.progressed = time.monotonic()
        """When operations were last carried out."""
        self._going_on = True
        """Whether the thread has not been asked to stop yet."""
        self._deliveries = Backlog[Callable[[], object]](lambda call: call(), most=_DELIVERED)
        """In the loop, the answers and pushes to deliver: a batch may have thousands of them."""
        self._begun: asyncio.Future[None] = loop.create_future()
        self._ended = asyncio.Event()
        self._dead: StoreError | None = None
        """Why nothing is carried out any more; None while it works."""
        self._thread = threading.Thread(target=self._run, name=f"aiolock {name}", daemon=True)

    # In the event loop

    async def begin(self) -> None:
        """Return when the work has begun; raises a `StoreError` if it cannot.

        A cancellation ends the call at once; the thread ends by itself after `stop`.
        """
        self._begun.add_done_callback(retrieve)
        self._thread.start()
        await asyncio.shield(self._begun)

    def stop(self) -> None:
        """End, once all earlier operations are carried out. Idempotent."""
        self._jobs.put(None)

    async def ended(self) -> None:
        """Return when the thread has ended."""
        await self._ended.wait()

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        """Start the operation; the future of its answer."""
        job = Job(operation, self._loop.create_future())
        if self._dead is not None:
            job.fail(once_more(self._dead))
        elif job.parts:
            self._jobs.put(job)
        else:
            job.settle()
        return job.future

    def _has_ended(self, why: StoreError) -> None:
        """The thread has ended: fail all operations that it has not carried out."""
        self._dead = why
        if not self._begun.done():
            self._begun.set_exception(once_more(why))
        self._accept_all()
        for job in {task.job: None for task in self._lanes.take_all()}:
            job.fail(once_more(why))
        self._ended.set()

    # In the thread

    def say(self, call: Callable[..., object], *arguments: object) -> None:
        """Have the event loop call that, unless it is closed."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, *arguments)

    def tell(self, pushes: Sequence[Push]) -> None:
        """Deliver these pushes to the client."""
        self._call_in_loop((), pushes)

    def _call_in_loop(
        self, calls: Sequence[Callable[[], object]], pushes: Sequence[Push] = ()
    ) -> None:
        """Have the event loop make these calls, and then deliver these pushes; all in order."""
        deliveries = [partial(self._deliver, push.event) for push in pushes]
        self.say(self._deliveries.add, [*calls, *deliveries])

    def wait_for_loop(self, within: float) -> bool:
        """Return when the event loop has delivered all pushes; False if that takes longer."""
        done = threading.Event()
        self._call_in_loop([done.set])
        until = time.monotonic() + within
        while not self._loop.is_closed() and not done.wait(_LOOK):
            if time.monotonic() > until:
                return False
        return True

    def _run(self) -> None:
        why = refusal("the store is closed")
        try:
            self._work.begin()
            self.say(self._begun.set_result, None)
            self._serve()
        except BaseException as error:  # noqa: BLE001  # `begin`, or each operation, gets it
            why = self._work.failure(error)
        finally:
            try:
                self._work.end()
            finally:
                self._call_in_loop([partial(self._has_ended, why)])

    def _serve(self) -> None:
        while (self._going_on or self._lanes) and not self._loop.is_closed():
            if not self._lanes:
                with contextlib.suppress(queue.Empty):
                    self._accept(self._jobs.get(timeout=self._work.rest))
            self._accept_all()
            if tasks := self._lanes.take(self._most, self._names):
                self._carry_out(tasks)
            self._work.look_after()

    def _accept_all(self) -> None:
        """Put all operations that have arrived into the lanes."""
        while not self._jobs.empty():
            self._accept(self._jobs.get())

    def _accept(self, job: Job | None) -> None:
        if job is None:
            self._going_on = False
        else:
            self._lanes.add(job)

    def _carry_out(self, tasks: list[_Task]) -> None:
        parts = [task.part for task in tasks]
        try:
            done = self._work.carry_out(parts, min(task.job.since for task in tasks))
        except BaseException as error:
            # Any error at all: nothing else would answer the callers.
            unsure = self._work.failure(error)
            unsure.refused = False
            self._deliver_outcomes(tasks, failed(unsure, len(tasks)), ())
            raise
        outcomes = [*done.outcomes]
        if not done.served:
            # Operations asked for meanwhile would fail too, and have waited as long.
            self._accept_all()
            tasks += self._lanes.take_all()
            reason = outcomes[-1].failure
            assert reason is not None
            untried = once_more(reason)
            untried.refused = True
            outcomes += failed(untried, len(tasks) - len(outcomes))
        else:
            self.progressed = time.monotonic()
            self._pace(done.held, len({part.name for part in parts if part.name}))
        self._deliver_outcomes(tasks, outcomes, done.pushes)

    def _pace(self, held: float, count: int) -> None:
        """Take fewer names after a batch that has blocked others for long, or as many again.

        A name with a long queue costs as much for one operation as for many.
        """
        if held > _STRETCH:
            self._names = max(min(_FEWEST, self._most), count // 2)
        elif held < _STRETCH / 4 and count == self._names:
            self._names = min(self._most, 2 * self._names)

    def _deliver_outcomes(
        self, tasks: Sequence[_Task], outcomes: Sequence[Outcome], pushes: Sequence[Push]
    ) -> None:
        """Have the event loop answer the jobs that are done."""
        finished: list[Job] = []
        for (job, place, _), (answer, failure) in zip(tasks, outcomes, strict=True):
            job.left -= 1
            if failure is None:
                job.answers[place] = answer
                job.answered = True
            else:
                job.failure = failure
            if not job.left:
                finished.append(job)
        self._call_in_loop([job.settle for job in finished], pushes)
