"""`MultiLock`: several locks taken as one.

There is no operation of the store for this. The locks are acquired one after the other, in an order
that all multilocks share, which is what excludes deadlocks between them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeVar, Unpack

from aiolock._engine.acquirer import acquire
from aiolock._engine.lease import Lease, LostEvent
from aiolock._engine.lease_state import LeaseState
from aiolock._locks.acquire_context import AcquireContext, watch
from aiolock._locks.async_only import AsyncOnly
from aiolock._locks.lock import Lock
from aiolock._turns import PART, turns
from aiolock.copying import CopiedAsItself, Uncopyable
from aiolock.entering import AsyncEnterable, Entered, Entry
from aiolock.options import DEFAULT, Default, Seconds
from aiolock.signatures import NoOptions, unexpected, without_unknown
from aiolock.validation import checked_label, checked_timeout, checked_wait

T = TypeVar("T")

_TOGETHER: Final = 50
"""Locks for which something is done in one part: see `Turns`. For so many, there is no pause."""


_WORST: Final = (
    *(LeaseState.LOST, LeaseState.RELEASED, LeaseState.DETACHED),
    *(LeaseState.AT_RISK, LeaseState.HELD),
)


class _LostEventOfOne(LostEvent):
    """The lost event of one lease, which also sets that of the multilease."""

    def __init__(self, whole: LostEvent) -> None:
        super().__init__()
        self._whole = whole

    def set(self) -> None:
        super().set()
        self._whole.set()


class MultiLease(Uncopyable, instead=Lease._instead):
    """One hold of several locks; made by `MultiLock`. It is lost when any of them is."""

    __slots__ = ("_leases", "_lost")

    def __init__(self, leases: Iterable[Lease]) -> None:
        self._leases = {lease.name: lease for lease in leases}
        self._lost = LostEvent()

    async def _begin(self, *, raises: bool) -> Self:
        """Watch all leases. If one was lost before: `LeaseLost`, or only the event is set."""
        for number, lease in enumerate(self._leases.values()):
            if number and number % _TOGETHER == 0:
                await turns().take(PART)
            if raises:
                lease._still_ours()
            hold = lease._hold
            hold.lost = _LostEventOfOne(self._lost)
            if hold.state is LeaseState.LOST:
                hold.lost.set()
        if raises and self._lost.is_set():  # one that was watched, while others had a turn
            for lease in self._leases.values():
                lease._still_ours()
        return self

    def __repr__(self) -> str:
        return f"<MultiLease {' '.join(self._leases)} {self.state} {self.remaining():.3f} s>"

    @property
    def leases(self) -> Mapping[str, Lease]:
        """The lease of each lock, by the lock's name; each has its own fence."""
        return MappingProxyType(self._leases)

    @property
    def state(self) -> LeaseState:
        """The worst of the leases' states, from `lost` over `released`, `detached` and `at_risk`
        to `held`.
        """
        states = {lease.state for lease in self._leases.values()}
        return next(state for state in _WORST if state in states)

    @property
    def lost(self) -> LostEvent:
        """An event, set when any lease is lost; never set by a release."""
        return self._lost

    def remaining(self) -> float:
        """Seconds for which all leases are certainly ours; 0.0 once one has ended."""
        return min(lease.remaining() for lease in self._leases.values())

    async def release(self) -> bool:
        """Release all leases; True if all were still ours. As `Lease.release`."""
        leases = tuple(self._leases.values())
        await _send_releases(leases)  # all, before the first answer, which may be an error
        released = True
        for number, lease in enumerate(leases):
            if number and number % _TOGETHER == 0:
                await turns().take(PART)
            released = await lease.release() and released
        return released

    async def extend(self, ttl: Seconds) -> None:
        """Let each lease end ``ttl`` seconds from now; as `Lease.extend`."""
        await self._of_each(lambda lease: lease.extend(ttl))

    async def verify(self) -> bool:
        """Ask the store whether all leases are still ours; as `Lease.verify`."""
        return all(await self._of_each(Lease.verify))

    _not_handed_on = "hand its leases on one by one, as `leases[name].detach()`"

    if not TYPE_CHECKING:  # type checkers find that it has no such methods

        def detach(self, **_: object) -> NoReturn:
            """Raise `TypeError`: a token is of one name."""
            raise TypeError(
                f"{self!r} cannot be handed on as a whole, since a token is of one name:"
                f" {self._not_handed_on}"
            )

        handing_on = detach

    async def _of_each(self, do: Callable[[Lease], Coroutine[Any, Any, T]]) -> list[T]:
        """The results for all leases, of which many begin in parts."""
        leases = tuple(self._leases.values())
        parts = [leases[at : at + _TOGETHER] for at in range(0, len(leases), _TOGETHER)]
        if len(parts) == 1:
            return await asyncio.gather(*map(do, leases))

        async def of_part(part: Sequence[Lease]) -> list[T]:
            await turns().take(PART)
            return await asyncio.gather(*map(do, part))

        return [each for part in await asyncio.gather(*map(of_part, parts)) for each in part]


class MultiLock(CopiedAsItself, AsyncEnterable[MultiLease], AsyncOnly):
    """Several locks, all of them or none; made by `LockClient.multilock`.

    The locks are taken one after the other, sorted by name, whatever the order in which they were
    given: so two multilocks never wait for each other. While one waits for a lock, it keeps those
    before it. ``async with`` gives a `MultiLease`; errors, cancellation and loss are those of
    ``async with lock``, and after each of them no lock is held.
    """

    __slots__ = ("__weakref__", "_engine", "_locks", "_timeout")

    def __init__(self, locks: Iterable[Lock], timeout: float | None) -> None:
        self._locks = sorted(locks, key=lambda lock: lock.name)
        self._timeout = checked_timeout(timeout)
        self._engine = self._locks[0]._engine

    def __repr__(self) -> str:
        return f"<MultiLock {' '.join(self.names)}>"

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order in which the locks are taken."""
        return tuple(lock.name for lock in self._locks)

    @without_unknown
    async def acquire(
        self,
        *,
        timeout: Seconds | Default | None = DEFAULT,
        label: str | None = None,
        **unknown: Unpack[NoOptions],
    ) -> MultiLease:
        """Take all locks, within ``timeout`` seconds (the multilock's own, if it is not given).

        Errors and cancellation are those of `Lock.acquire`; `LeaseLost` when one lease was lost
        while another lock was waited for. After an error none is held.
        """
        for wrong in unknown:
            raise unexpected(MultiLock.acquire, wrong)
        own = isinstance(timeout, Default)
        seconds = self._timeout if own else checked_timeout(timeout)
        lease = await self._take(seconds, label, raises=True)
        assert lease is not None
        return lease

    @without_unknown
    async def try_acquire(
        self, *, timeout: Seconds = 0, label: str | None = None, **unknown: Unpack[NoOptions]
    ) -> MultiLease | None:
        """Take all locks if they are free now, or within ``timeout`` seconds; else return None.

        As `Lock.try_acquire`; errors are those of `acquire`. With None, too, no lock is held.
        """
        for wrong in unknown:
            raise unexpected(MultiLock.try_acquire, wrong)
        return await self._take(checked_wait(timeout), label, raises=False)

    async def _take(
        self, timeout: float | None, label: str | None, *, raises: bool
    ) -> MultiLease | None:
        """The leases of all locks; if one of them is not acquired, None or an error."""
        label = checked_label("label", label)
        self._engine.check()
        began = self._engine.watchdog.time()
        begins = partial(watch, "")
        leases: list[Lease] = []
        try:
            for lock in self._locks:
                lease = await acquire(
                    *(lock._engine, lock._policy, timeout, begins),
                    enters=True,
                    raises=raises,
                    label=label,
                    since=began if leases else None,
                )
                if lease is None:
                    break
                leases.append(lease)
            if len(leases) == len(self._locks):
                # The first may have been lost while the last was waited for.
                return await MultiLease(leases)._begin(raises=True)
            for lease in leases:
                lease._still_ours()
        except BaseException as error:
            await _send_releases(leases, error)
            raise
        await _send_releases(leases)
        return None

    @property
    def _entered(self) -> Entered:
        return self._engine.entered

    async def _enter(self, entry: Entry) -> MultiLease:
        self._engine.check()
        began = self._engine.watchdog.time()
        leases: list[Lease] = []
        async with AsyncExitStack() as stack:
            for number, lock in enumerate(self._locks):
                if number and number % _TOGETHER == 0:
                    stack.push_async_exit(_pause)
                since = began if leases else None
                asked: AcquireContext[Lease] = AcquireContext(
                    lock, timeout=self._timeout, since=since
                )
                leases.append(await stack.enter_async_context(asked))
            lease = await MultiLease(leases)._begin(raises=False)
            entered = stack.pop_all()
        try:
            entry.enters(self, _Bodies(self._engine.watchdog.current_task(), entered))
        except BaseException:
            await entered.aclose()
            raise
        return lease


@dataclass(slots=True)
class _Bodies:
    """The bodies of all locks, entered by one task."""

    task: asyncio.Task[Any] | None
    _stack: AsyncExitStack

    async def close(self, error: BaseException | None) -> None:
        """Leave all of them, the last first."""
        kind, traceback = (None, None) if error is None else (type(error), error.__traceback__)
        await self._stack.__aexit__(kind, error, traceback)


async def _send_releases(leases: Iterable[Lease], error: BaseException | None = None) -> None:
    """Release them without waiting for answers; after this error, if there was one.

    Cancelled meanwhile, which a scope of anyio does in each pause, it still goes on in parts.
    """
    left, number = deque(leases), 0
    cancelled: asyncio.CancelledError | None = None
    try:
        while left:
            if number and number % _TOGETHER == 0 and _may_pause(error):
                try:
                    await turns().take(PART)
                except asyncio.CancelledError as again:
                    cancelled = again
            number += 1
            left.popleft().release_nowait()
    finally:
        for lease in left:  # without a pause, because the coroutine is closed
            lease.release_nowait()
    if cancelled is not None:
        raise cancelled


async def _pause(
    kind: type[BaseException] | None,  # noqa: ARG001  # as an exit stack calls it
    error: BaseException | None,
    traceback: TracebackType | None,  # noqa: ARG001  # as above
) -> None:
    """Between the exits of many locks, let others have a turn."""
    if _may_pause(error):
        await turns().take(PART)


def _may_pause(error: BaseException | None) -> bool:
    """Whether a task that ends with this error may wait: not where its coroutine is closed."""
    return error is None or isinstance(error, Exception | asyncio.CancelledError)
