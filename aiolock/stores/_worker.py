"""A thread that carries out a client's operations: all that have gathered, together, in order.

The event loop hands it operations, and gets their outcomes. No caller waits for an operation that
will not be carried out, even if the thread ends by a fault, or the loop is closed before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from aiolock.errors import StoreError
from aiolock.store import Inbox
from aiolock.stores._operations import Operation, Told
from aiolock.stores._outcomes import CarriedOut, Outcome, failed, once_more, refusal

_TOGETHER: Final = 200
"""Operations that are carried out together: other processes wait until all are done."""


class Job(NamedTuple):
    """An operation, and the future that its caller awaits."""

    operation: Operation
    future: asyncio.Future[Any]
    since: float
    """When it was asked for, by the clock of `time.monotonic`."""


class Work(Protocol):
    """The work of the thread."""

    @property
    def rest(self) -> float:
        """Seconds after which it calls `look_after`, even if there are no operations."""
        ...

    def begin(self) -> None:
        """Open what is needed; an error is raised where the store is opened."""

    def carry_out(self, operations: Sequence[Operation], since: float, /) -> CarriedOut:
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

    def __init__(self, name: str, work: Work, inbox: Inbox) -> None:
        self._work = work
        self._inbox = inbox
        self._loop = loop = asyncio.get_running_loop()
        self._jobs = queue.SimpleQueue[Job | None]()
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

    def call(self, operation: Operation) -> asyncio.Future[Any]:
        """Carry out an operation."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._dead is None:
            self._jobs.put(Job(operation, future, time.monotonic()))
        else:
            future.set_exception(once_more(self._dead))
        return future

    def _answered(
        self,
        futures: Sequence[asyncio.Future[Any]],
        outcomes: Sequence[Outcome],
        told: Sequence[Told],
    ) -> None:
        for future, outcome in zip(futures, outcomes, strict=True):
            if future.done():
                continue
            if outcome.failure is not None:
                future.set_exception(outcome.failure)
            else:
                future.set_result(outcome.answer)
        for name, push in told:
            push.deliver(name, self._inbox)

    def _has_ended(self, why: StoreError) -> None:
        """The thread has ended: fail all operations that it has not carried out."""
        self._dead = why
        if not self._begun.done():
            self._begun.set_exception(once_more(why))
        while not self._jobs.empty():
            job = self._jobs.get()
            if job is not None and not job.future.done():
                job.future.set_exception(once_more(why))
        self._ended.set()

    # In the thread

    def say(self, call: Callable[..., object], *arguments: object) -> None:
        """Have the event loop call that, if it is still there."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, *arguments)

    def tell(self, told: Sequence[Told]) -> None:
        """Deliver these pushes to the client."""
        self.say(self._answered, (), (), told)

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
                self.say(self._has_ended, why)

    def _serve(self) -> None:
        going_on = True
        while going_on and not self._loop.is_closed():
            going_on = self._carry_out(self._gathered())
            self._work.look_after()

    def _gathered(self) -> list[Job | None]:
        """The operations to do together; none if there were none for `rest` seconds."""
        try:
            jobs = [self._jobs.get(timeout=self._work.rest)]
        except queue.Empty:
            return []
        while len(jobs) < _TOGETHER and not self._jobs.empty():
            jobs.append(self._jobs.get())
        return jobs

    def _carry_out(self, jobs: list[Job | None]) -> bool:
        """Carry them out; False if one of them is the end."""
        asked = [job for job in jobs if job is not None]
        if asked:
            try:
                done = self._work.carry_out([job.operation for job in asked], asked[0].since)
            except BaseException as error:
                # Any error at all: nothing else would answer the callers.
                unsure = self._work.failure(error)
                unsure.refused = False
                futures = [job.future for job in asked]
                self.say(self._answered, futures, failed(unsure, len(asked)), ())
                raise
            outcomes = [*done.outcomes]
            if not done.served:
                # Operations asked for meanwhile would fail too, and have waited as long.
                while not self._jobs.empty():
                    jobs.append(self._jobs.get())
                asked = [job for job in jobs if job is not None]
                reason = outcomes[-1].failure
                assert reason is not None
                untried = refusal(str(reason), reason.__cause__)
                outcomes += failed(untried, len(asked) - len(outcomes))
            self.say(self._answered, [job.future for job in asked], outcomes, done.told)
        return None not in jobs


def retrieve(done: asyncio.Future[Any]) -> None:
    """Take the error out of a future that no task awaits, so that it is not logged."""
    if not done.cancelled():
        done.exception()
