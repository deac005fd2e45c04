"""`PathLock`: a node of a tree, with all that is below it.

Each node of a path is one name at the store. On the way down a path lock takes *intents*: shared
locks that say that something below is read or written. At the end it takes the node itself, shared
or exclusive. Writers below a node and readers of all of it exclude each other: see `Rule.ALIKE`.

The nodes are taken from the root down, and no node is waited for before those above are granted. So
of the leases that wait for each other, the deepest waits for nothing, and there is no deadlock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Unpack
from weakref import WeakSet

from aiolock._engine.acquirer import acquire
from aiolock._engine.error_factories import holds_already, unanswered
from aiolock._engine.lease import Lease, LeaseWithoutBody, LostEvent, lease_of
from aiolock._engine.lease_state import LeaseState
from aiolock._engine.policy import Policy
from aiolock._futures import failure_of
from aiolock._locks.acquire_context import watch
from aiolock._locks.async_only import AsyncOnly
from aiolock._locks.lock import Lock
from aiolock._locks.multilock import MultiLease
from aiolock.copying import CopiedAsItself
from aiolock.entering import AsyncEnterable, Entered, Entry
from aiolock.errors import LeaseLost, StoreError, WouldDeadlock
from aiolock.options import DEFAULT, Default, Mode, Seconds
from aiolock.protocol import Rule, Status
from aiolock.signatures import NoOptions, unexpected, without_unknown
from aiolock.trees import MANY, ONE, MakeFence
from aiolock.validation import checked_label, checked_name, checked_timeout, checked_wait

if TYPE_CHECKING:
    from aiolock._engine.acquisition import Acquisition

DEEPEST: Final = 16
"""The most segments of a path."""


class Access(NamedTuple):
    """What a lease wants of a node."""

    shared: bool
    rule: Rule = Rule.ALWAYS
    number: int = 0
    covers: tuple[str, ...] = ()
    """What else whoever has this has of the node, by the names in `ACCESS`."""


READS_BELOW: Final = "read below"
WRITES_BELOW: Final = "write below"
READS: Final = "read all of"
WRITES: Final = "have alone"
ACCESS: Final = {
    READS_BELOW: Access(shared=True),
    WRITES_BELOW: Access(shared=True, rule=Rule.ALIKE, number=ONE, covers=(READS_BELOW,)),
    READS: Access(shared=True, rule=Rule.ALIKE, number=MANY, covers=(READS_BELOW,)),
    WRITES: Access(shared=False, covers=(READS_BELOW, WRITES_BELOW, READS)),
}
"""In the words of databases: the intents IS and IX, and the locks S and X."""
_NAMES: Final = {(each.shared, each.number): name for name, each in ACCESS.items()}


def nodes(path: object) -> list[str]:
    """The nodes of a path, the root first; `TypeError` or `ValueError` if it is none."""
    if not isinstance(path, str):
        raise TypeError(f"a path must be a str, not {path!r}")
    segments = path.split("/")
    if not all(segments):
        raise ValueError(
            f"a path is segments with a / between them, none of which is empty, not {path!r}"
        )
    if len(segments) > DEEPEST:
        raise ValueError(f"a path has {DEEPEST} segments at most, not {len(segments)}: {path!r}")
    checked_name(path)
    return ["/".join(segments[: depth + 1]) for depth in range(len(segments))]


def levels(path: str, policy: Policy, mode: Mode) -> list[Policy]:
    """The policies of all nodes of a path, the root first; ``policy`` has what they share."""
    intent, wanted = (WRITES_BELOW, WRITES) if mode == "exclusive" else (READS_BELOW, READS)
    *above, _ = names = nodes(path)
    found = list[Policy]()
    for name in names:
        access = ACCESS[wanted if len(found) == len(above) else intent]
        found.append(
            replace(policy, name=name, shared=access.shared, rule=access.rule, number=access.number)
        )
    return found


class _LostOfNode(LostEvent):
    """The lost event of a node's hold, which also sets those of the leases that rely on it."""

    def __init__(self) -> None:
        super().__init__()
        self.wholes = WeakSet[LostEvent]()
        self.fence = 0
        """That of the lease for which the node was acquired as its end."""

    def set(self) -> None:
        super().set()
        for whole in list(self.wholes):
            whole.set()


class PathLease(MultiLease):
    """One hold of a node with all that is below it; made by `PathLock`.

    It holds the node, and an intent on each node above: it is lost when any of these is.
    """

    __slots__ = ("_fence", "_path")

    _not_handed_on = "hand on a `client.lock()` of its own"

    def __init__(self, path: str, leases: Iterable[Lease], fence: int) -> None:
        super().__init__(leases)
        self._path = path
        self._fence = fence
        for lease in self._leases.values():
            _lost_of(lease._hold).wholes.add(self._lost)
            if lease._hold.state is LeaseState.LOST:
                self._lost.set()

    def __repr__(self) -> str:
        return (
            f"<PathLease {self._path!r} fence={self._fence} {self.state} {self.remaining():.3f} s>"
        )

    @property
    def name(self) -> str:
        """The path."""
        return self._path

    @property
    def fence(self) -> int:
        """The fencing token, one for the whole tree.

        It is higher than that of each earlier lease with which this one was not compatible: of the
        same node, of a node above it, or of one below it. So a document that is written under the
        lock of its tenant compares with the same document under a lock of its own. `leases` have
        fences of their own, of their nodes alone.
        """
        return self._fence


class PathLock(CopiedAsItself, AsyncEnterable[PathLease], AsyncOnly):
    """A node of a tree, with all that is below it; made by `LockClient.path_lock`.

    ::

        async with client.path_lock("acme/7") as lease:  # nobody is in any of its documents
            await delete_tenant(7, fence=lease.fence)

        async with client.path_lock("acme/7/doc/42") as lease:  # beside all other documents
            await write(42, fence=lease.fence)

    A ``shared`` lock is held beside other shared ones, of the node and of any node below or above
    it; an ``exclusive`` one alone: nobody else has the node, a node below it, or all of a node
    above it. Nodes of which neither is above the other never wait for each other.

    First come, first served, at each node: whoever waits for the tenant holds back those who come
    later and want one of its documents. ``async with`` gives a `PathLease`; errors, cancellation
    and loss are those of ``async with lock``, and after each of them nothing is held.
    """

    __slots__ = ("__weakref__", "_engine", "_levels", "_mode", "_node", "_timeout")

    def __init__(self, node: Lock, mode: Mode) -> None:
        """``node``: the options that all nodes share; its name is the path."""
        if mode not in ("exclusive", "shared"):
            raise ValueError(f"mode must be 'exclusive' or 'shared', not {mode!r}")
        self._mode: Mode = mode
        self._engine = node._engine
        self._timeout = node._policy.timeout
        self._levels = levels(node.name, node._policy, mode)
        self._node = Lock(node._engine, self._levels[-1])

    def __repr__(self) -> str:
        return f"<PathLock {self.name!r} {self.mode} ttl={self._node.ttl:g}>"

    @property
    def name(self) -> str:
        """The path."""
        return self._node.name

    @property
    def mode(self) -> Mode:
        """``exclusive`` or ``shared``."""
        return self._mode

    @property
    def nodes(self) -> tuple[str, ...]:
        """The paths of all nodes that are held, the root first."""
        return tuple(level.name for level in self._levels)

    @without_unknown
    async def acquire(
        self,
        *,
        timeout: Seconds | Default | None = DEFAULT,
        label: str | None = None,
        **unknown: Unpack[NoOptions],
    ) -> PathLease:
        """Take the node, or wait for it, for ``timeout`` seconds in all.

        Errors and cancellation are those of `Lock.acquire`; `LeaseLost` when an intent was lost
        while a node below was waited for. After an error nothing is held.

        If all is free, it takes one round trip to a Redis, and two to other stores. Otherwise one
        more for each node that is waited for, and one more for the fence.
        """
        for wrong in unknown:
            raise unexpected(PathLock.acquire, wrong)
        own = isinstance(timeout, Default)
        seconds = self._timeout if own else checked_timeout(timeout)
        lease = await self._taking(seconds, label, raises=True).take()
        assert lease is not None
        return lease

    @without_unknown
    async def try_acquire(
        self, *, timeout: Seconds = 0, label: str | None = None, **unknown: Unpack[NoOptions]
    ) -> PathLease | None:
        """Take the node if it is free now, or within ``timeout`` seconds; else return None.

        As `Lock.try_acquire`; errors are those of `acquire`. With None, too, nothing is held.
        """
        for wrong in unknown:
            raise unexpected(PathLock.try_acquire, wrong)
        return await self._taking(checked_wait(timeout), label, raises=False).take()

    def _taking(self, timeout: float | None, label: str | None, *, raises: bool) -> _Taking:
        label = checked_label("label", label)
        self._engine.check()
        return _Taking(self, timeout, label, raises=raises)

    async def locked(self) -> bool:
        """Whether anybody has the node, or a node below it; as `Lock.locked`."""
        return await self._node.locked()

    async def status(self) -> Status:
        """Who has the node or waits for it, or for a node below it; as `Lock.status`.

        `Participant.below` tells the two apart, and `Status.below` counts. Who has all of a node
        above is in the status of that node only.
        """
        return await self._node.status()

    async def break_(self, fence: int | None = None) -> bool:
        """Take the node from all that have it, or a node below it; as `Lock.break_`.

        With a ``fence``, which is that of a holder in `status`, only from that one.
        """
        return await self._node.break_(fence)

    @property
    def _entered(self) -> Entered:
        return self._engine.entered

    async def _enter(self, entry: Entry) -> PathLease:
        lease = await self._taking(self._timeout, None, raises=True).take()
        assert lease is not None
        leases = tuple(lease.leases.values())
        entered = AsyncExitStack()
        try:
            for each in leases:
                await entered.enter_async_context(each)  # waits for nothing
            entry.enters(self, _Bodies(leases, entered))
        except BaseException:
            await entered.aclose()
            raise
        return lease


class _Taking:
    """One acquisition of a path, by the task that makes this."""

    def __init__(self, lock: PathLock, timeout: float | None, label: str, *, raises: bool) -> None:
        self._path = lock.name
        self._levels: Sequence[Policy] = lock._levels
        self._engine = engine = lock._engine
        self._timeout = timeout
        self._label = label
        self._raises = raises
        self._began = engine.watchdog.time()
        self._owner = engine.watchdog.current_task()
        self._leases = list[Lease | None]([None] * len(lock._levels))
        """By level. Each is there from its grant on, in the same step."""
        self._fence: tuple[int, float] | None = None
        """The last that was made, and when it was asked for."""

    @property
    def _left(self) -> list[int]:
        return [at for at, lease in enumerate(self._leases) if lease is None]

    async def take(self) -> PathLease | None:
        """Take all levels, or none: then it is an error, or None unless it ``raises``."""
        try:
            self._take_again()
            if await self._take_all():
                fence = await self._one_fence()
                leases = [lease for lease in self._leases if lease is not None]
                for lease in leases:
                    lease._still_ours()  # the first may have been lost meanwhile
                return PathLease(self._path, leases, fence)
        except BaseException as error:
            self._give_up(0)
            if isinstance(error, StoreError | LeaseLost):
                self._engine.check()  # as of any lock: `ClientClosed`, if that was the cause
            raise
        self._give_up(0)
        return None

    def _take_again(self) -> None:
        """Take what the task has already: by the same holds, so it does not wait for itself."""
        watchdog, last = self._engine.watchdog, len(self._levels) - 1
        again: list[tuple[int, Acquisition]] = []
        for at, level in enumerate(self._levels):
            hold = watchdog.held_by(self._owner, level.key)
            if hold is None:
                continue
            has, wants = _access(hold.policy), _access(level)
            if has != wants and wants not in ACCESS[has].covers:
                raise _would_deadlock(level, has, wants)
            if at == last and not level.reentrant:
                raise holds_already(level)
            again.append((at, hold))
        for at, hold in again:
            shares = self._levels[at].shared
            self._leases[at] = lease_of(LeaseWithoutBody, watchdog, hold, shares=shares)

    async def _take_all(self) -> bool:
        """Take what is left, and wait for it if it may; whether all is taken."""
        while left := self._left:
            if len(left) > 1:
                await self._take_at_once(left)
                if not (left := self._left):
                    break
                if self._timeout == 0 and not self._raises:
                    return False
            at = left[0]
            await acquire(
                *(self._engine, self._levels[at], self._timeout, partial(self._begins, at)),
                owner=self._owner,
                raises=self._raises,
                label=self._label,
                since=self._began,
            )
            if self._leases[at] is None:
                return False
        return True

    def _begins(self, at: int, lease: Lease) -> None:
        self._leases[at] = lease
        watch("", lease)
        _ = _lost_of(lease._hold)

    async def _take_at_once(self, left: Sequence[int]) -> None:
        """Take these if they are free, without waiting for one before the next is asked for.

        What is below one that is not free is released: it would be held while that is waited for.
        """
        watchdog = self._engine.watchdog
        tasks = [
            watchdog.loop.create_task(self._try(at), name=f"aiolock {self._levels[at].key}")
            for at in left
        ]
        if self._engine.store.features.in_order():  # it is made when all these have been granted
            tasks.append(watchdog.loop.create_task(self._make_fence(), name="aiolock fence"))
        for task in tasks:
            task.add_done_callback(failure_of)
        most = None
        if self._timeout:
            most = max(0.0, self._began + self._timeout - watchdog.time())
        try:
            await asyncio.wait(tasks, timeout=most)
        finally:
            for task in tasks:
                task.cancel()
        for task in tasks:
            error = failure_of(task) if task.done() else None
            # Whether it is free is unknown then; to wait for it may still be possible.
            if error is not None and (self._timeout == 0 or not isinstance(error, StoreError)):
                raise error
        if missing := self._left:
            self._give_up(missing[0])

    async def _try(self, at: int) -> None:
        await acquire(
            *(self._engine, self._levels[at], 0, partial(self._begins, at)),
            owner=self._owner,
            raises=False,
            label=self._label,
        )

    def _give_up(self, first: int) -> None:
        """Release what is taken from this level on, the last first, without waiting."""
        for at in range(len(self._leases) - 1, first - 1, -1):
            lease, self._leases[at] = self._leases[at], None
            if lease is not None:
                lease.release_nowait()

    async def _one_fence(self) -> int:
        """The fence of the lease, now that all is taken.

        All fences of a tree are of its root, and this one is made after the last node was granted.
        Whoever has an incompatible lease later is granted a node of ours only after we have ended,
        and has its fence made then. So that is higher, whatever the clocks of the nodes show.
        """
        holds = [lease._hold for lease in self._leases if lease is not None]
        node = _lost_of(holds[-1])
        if node.fence:  # the task has held it before
            return node.fence
        if len(holds) == 1:
            node.fence = holds[0].fence
        else:
            # A command can come twice, and the second copy after the fence.
            last = max(hold.last_asked for hold in holds), max(hold.fence for hold in holds)
            if self._fence is None or self._fence[1] < last[0] or self._fence[0] < last[1]:
                await self._make_fence()
            assert self._fence is not None
            node.fence = self._fence[0]
        return node.fence

    async def _make_fence(self) -> None:
        """Make a fence of the root; `StoreError` if the store does not answer in time."""
        engine, root, asked_at = self._engine, self._levels[0], self._engine.watchdog.time()
        try:
            async with asyncio.timeout(engine.acquirer.answer_timeout):
                with root.errors_named():
                    made = await engine.submit(MakeFence(root.key))
        except TimeoutError as error:
            raise unanswered(
                *(root, "answer_timeout", engine.acquirer.answer_timeout),
                *(engine.handoff, engine.waiters.broken),
            ) from error
        self._fence = made, asked_at


class _Bodies:
    """The bodies of all nodes, entered by one task."""

    def __init__(self, leases: Sequence[Lease], entered: AsyncExitStack) -> None:
        self._leases = leases
        self._entered = entered
        self.task = leases[-1]._watchdog.current_task()

    async def close(self, error: BaseException | None) -> None:
        """Leave all of them, the last first."""
        if error is None:
            for lease in reversed(self._leases):  # all, before the first answer is awaited
                lease.release_nowait()
        kind, traceback = (None, None) if error is None else (type(error), error.__traceback__)
        await self._entered.__aexit__(kind, error, traceback)


def _lost_of(hold: Acquisition) -> _LostOfNode:
    """The lost event of a node's hold."""
    event = hold.lost
    if not isinstance(event, _LostOfNode):
        event = hold.lost = _LostOfNode()
        if hold.state is LeaseState.LOST:
            event.set()
    return event


def _access(policy: Policy) -> str:
    return _NAMES[policy.shared, policy.number]


def _would_deadlock(level: Policy, has: str, wants: str) -> WouldDeadlock:
    return level.with_name(
        WouldDeadlock(
            f"this task may {has} {level.name!r}, and would wait for itself to {wants} it: take"
            " first what covers both, as the node above them in the mode that both need"
        )
    )
