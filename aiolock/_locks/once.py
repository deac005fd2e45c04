"""Something that is to be done once, however often and wherever it is asked for.

A lock, and with it the memory that the work is done: whoever leaves the body in peace does not
give the lock back but *finishes* it, and for a while everybody else is told so instead of entering.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import CoroutineType, FrameType, TracebackType
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from aiolock._engine.acquirer import AlreadyDone
from aiolock._engine.lease import Lease, give_back
from aiolock._engine.policy import Policy, to_ms
from aiolock._locks.lock import Acquisition, Lock
from aiolock._locks.naming import naming
from aiolock.errors import AcquireTimeout, StoreError
from aiolock.store import WAS_UNKNOWN, Rule, Status

P = ParamSpec("P")
R = TypeVar("R")

LONGEST_RESULT: Final = 65_536
_RESULTS: Final = "outcome"
"""The kind of the names under which results are put up: no other lock is called like that."""
_LONGER: Final = 60.0
"""Seconds for which a result is kept longer than it is known that it is there."""


class ResultGone(StoreError):
    """It is done, and the store has no result of it; for those who can do without."""


class Outcome(NamedTuple):
    """What came of something that is done once."""

    result: str
    first: bool
    """Whether it was done now; it was done before, if not."""


@dataclass
class Doing:
    """A body that does it, and what it returns."""

    lease: Lease
    result: object = None


class Once:
    """Something to be done once; made by `LockClient.once`. Any number of tasks may share one.

    ::

        async with client.once("user:42", remember=86400) as lease:
            if lease:  # None: it is done already
                await set_up(42)

    * The first to enter gets a `Lease` and does it. When its body ends in peace, that it is done is
      remembered for ``remember`` seconds, and whoever enters meanwhile gets None.
    * Whoever comes while it is being done waits for the outcome: None when it is done, a lease when
      the one before failed. With ``wait=False`` they get None at once.
    * When the body raises, or its lease is lost, nothing is remembered: the next one does it. So a
      body may be run again after it failed, or was cancelled, half way.

    ``async with`` raises what a lock's does, `AcquireTimeout` among it, and `StoreError` when the
    body has ended but nobody knows whether that is remembered: then it may be done once more.
    Cancelled at that moment it is remembered all the same. As a decorator of an async function it
    gives the function's result, or None where it is done already.
    """

    __slots__ = ("_lock", "_named", "_remember", "_wait")

    def __init__(
        self, lock: Lock, *, remember: float, wait: bool, named: Callable[[str], Once]
    ) -> None:
        self._lock = lock
        self._remember = to_ms(remember)
        self._wait = wait
        self._named = named

    def __repr__(self) -> str:
        return f"<Once {self.name!r} remember={self._remember / 1000:g}>"

    @property
    def name(self) -> str:
        """What is to be done once."""
        return self._lock.name

    async def status(self) -> Status:
        """Who is doing it and who waits; ``closed`` is for how long it will be remembered."""
        return await self._lock.status()

    async def break_(self, fence: int | None = None) -> bool:
        """Take it from whoever is doing it, and let the next do it: as `Lock.break_`."""
        return await self._lock.break_(fence)

    def __aenter__(self) -> CoroutineType[Any, Any, Lease | None]:
        return self._enter(sys._getframe(1))  # type: ignore[return-value]  # mypy: no CoroutineType

    async def _enter(self, frame: FrameType) -> Lease | None:
        acquisition = self._lock.acquire() if self._wait else self._lock.acquire(blocking=False)
        entered: tuple[Acquisition[Any], Lease] | None = None
        try:
            lease = await acquisition.__aenter__()
        except AlreadyDone:
            lease = None
        except AcquireTimeout:
            if self._wait:
                raise
            lease = None
        if lease is not None:
            entered = (acquisition, lease)
        engine = self._lock._engine
        try:
            engine.entered.add(self, frame, engine.watchdog.current_task(), entered)
        except BaseException:
            if lease is not None:
                give_back(lease)
            raise
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        engine = self._lock._engine
        entered: tuple[Acquisition[Any], Lease] | None = engine.entered.take(
            self, sys._getframe(1), engine.watchdog.current_task()
        )
        if entered is not None:
            await self._close(*entered, error)

    async def _close(
        self, acquisition: Acquisition[Any], lease: Lease, error: BaseException | None
    ) -> None:
        """Remember that it is done, unless there was an error; that is raised, or `StoreError`."""
        if error is None:
            lease._watchdog.release(lease._hold, finished=self._remember)
        kind = None if error is None else type(error)
        await acquisition.__aexit__(kind, error, None)
        released = lease._hold.released
        if error is None and released is not None and released.done() and not released.cancelled():
            failure = released.exception()
            if failure is not None or released.result() == WAS_UNKNOWN:
                why = failure or "its confirmation was lost"
                raise self._lock._policy.about(
                    StoreError(
                        f"{self.name!r} was done, but nobody knows whether that is remembered:"
                        f" {why}"
                    )
                ) from failure

    async def outcome(self, work: Callable[[Lease], Awaitable[str]]) -> Outcome:
        """Do it, and keep what it returns; or what it returned when it was done before.

        ::

            paid = await client.once("payment:42", remember=86400).outcome(pay)
            return paid.result

        As with ``async with``: one does it, the others wait, or get `AcquireTimeout` at once with
        ``wait=False``; when ``work`` raises or its lease is lost, nothing is kept, and the next
        one does it. The result is put up before it is remembered that it is done, so who is told
        that has it. `ValueError` for more than 65,536 characters, when the work is done: then
        nothing is remembered. `StoreError` when nobody knows; also where the store has lost the
        result of what is done, or it was done by ``async with``, which has none. Do a name in one
        of the two ways only: done by ``async with`` after a run of this that failed late, or was
        forgotten a minute ago, it would be told the result of that one.
        """
        async with self._asked() as found:
            if isinstance(found, Outcome):
                return found
            result = found.result = await work(found.lease)
        return Outcome(result, first=True)

    @asynccontextmanager
    async def _asked(self) -> AsyncGenerator[Outcome | Doing, None]:
        """What came of it when it was done before; or a body that is to say what comes of it."""
        acquisition = self._lock.acquire() if self._wait else self._lock.acquire(blocking=False)
        try:
            lease = await acquisition.__aenter__()
        except AlreadyDone:
            yield Outcome(await self._kept(), first=False)
            return
        error = None
        try:
            doing = Doing(lease)
            yield doing
            await self._keep(lease.fence, doing.result)
        except BaseException as raised:
            error = raised
            raise
        finally:
            await self._close(acquisition, lease, error)

    async def _keep(self, fence: int, result: object) -> None:
        if not isinstance(result, str):
            raise TypeError(f"what is kept must be a str, not {type(result).__name__}")
        if len(result) > LONGEST_RESULT:
            raise ValueError(f"what is kept must have at most {LONGEST_RESULT} characters")
        result.encode()  # UnicodeEncodeError, a ValueError
        # Of one whose lease was lost the fence is lower: it cannot overwrite that of the next.
        with self._lock._policy.errors_named():
            await self._lock._engine.store.post(
                self._results.key,
                fence,
                token="",
                declared=0,
                value=f"{fence} {result}",
                keep=self._remember + to_ms(_LONGER),
            )

    async def _kept(self) -> str:
        with self._lock._policy.errors_named():
            posted = await self._lock._engine.store.read(self._results.key)
        fence, separator, result = posted.value.partition(" ")
        if not separator or fence != str(posted.count):
            raise self._lock._policy.about(
                ResultGone(f"{self.name!r} is done, but the store has no result of it")
            )
        return result

    @property
    def _results(self) -> Policy:
        return replace(
            self._lock._policy,
            kind=_RESULTS,
            timeout=None,
            renew=False,
            shared=True,
            once=False,
            rule=Rule.COUNT,
            number=1,
        )

    def __call__(
        self, function: Callable[P, Awaitable[R]]
    ) -> Callable[P, Coroutine[Any, Any, R | None]]:
        """Decorate an async function: each call is one delivery; None where it is done already."""
        name = naming(self.name, function, "once")

        @functools.wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
            async with self._named(name(*args, **kwargs)) as lease:
                return None if lease is None else await function(*args, **kwargs)

        return call
