"""`Part`: which shards one member has, as the group changes: see `shards`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, Final, NoReturn

import anyio

from aiolock._engine.lease import Lease
from aiolock._futures import retrieve, was_cancelled
from aiolock._locks.group_view import Member
from aiolock._locks.lock import Lock
from aiolock._locks.membership import Membership
from aiolock._locks.placement import placed
from aiolock._locks.shard import Shard
from aiolock._turns import in_parts
from aiolock.backoff import Backoff
from aiolock.errors import ClientClosed, LeaseLost, LimitMismatch, StoreError
from aiolock.protocol import RequestRelease
from aiolock.validation import as_label

log = logging.getLogger("aiolock")

_SETTLES: Final = 5
"""If the group never stands still, it is looked at after so many times the time to settle."""
_LEAVES: Final = 1.0
"""The most seconds to wait until the others know that this member takes part no more."""
_ASKED_SOON: Final = 0.05
"""Seconds after which the holder of a shard is asked: a free one is granted before that."""
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 15.0
"""Seconds between two requests to a holder, and before a body is run again: the first pause, and
the longest."""


class Part:
    """What one member has of the shards, and wants of them."""

    def __init__(
        self,
        lock: Lock,
        count: int,
        settle: float,
        member: Membership,
        use: Callable[[Shard], Coroutine[Any, Any, None]],
    ) -> None:
        """``lock`` describes those of the shards; ``use`` is called with each that is acquired."""
        self._lock = lock
        self._name = lock.name
        self._count = count
        self._settle = settle
        self._member = member
        self._use = use
        self._workers = dict[int, asyncio.Task[None]]()
        """By shard, the task that acquires and uses it."""
        self._tasks = set[asyncio.Task[None]]()
        """All of these that run, also those that end."""
        self._held = dict[int, Shard]()
        self._wanted = frozenset[int]()
        self._asked = set[int]()
        """Held shards that another one has asked for."""
        self._partners = frozenset[str]()
        """The members that took part when it was last decided which shard is for whom."""
        self._reviewing: asyncio.Task[None] | None = None
        task = asyncio.current_task()
        self._label = "" if task is None else as_label(task.get_name())

    async def follow(self) -> NoReturn:
        """Acquire and give up shards, as the group changes."""
        view, engine = self._member._view, self._lock._engine
        # A close by the task that takes part, as in a handler of SIGTERM, cancels nothing here.
        engine.on_close.add(view.wake)
        try:
            while True:
                members = await self._settled()
                wanted = await self._places(members)
                self._partners = self._taking_part(members)
                self._apply(wanted)
                while view.members is members:
                    self._check()
                    await view.changed()
                self._check()
        finally:
            engine.on_close.discard(view.wake)
            # First of all: others queue for these shards, and get each as soon as its body ends.
            leaving = None if self._member._left else self._member._serve_no_more(self._name)
            await end([*self._tasks])
            # After these, since another one may ask for a shard as long as any is held.
            await end([] if self._reviewing is None else [self._reviewing])
            if leaving is not None:
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([leaving], timeout=_LEAVES)

    def _check(self) -> None:
        if self._member._left:
            raise self._member._lease._loss()
        self._lock._engine.check()

    async def _settled(self) -> tuple[Member, ...]:
        """The members, once they stand still for a while; at once if one of them leaves in order.

        Then its shards are free, or will be soon. Of a member that is gone, they may not be: it may
        be there again in a moment, or restarted.
        """
        view, settle, loop = self._member._view, self._settle, asyncio.get_running_loop()
        if not view.looks:
            await view.changed()
        latest = loop.time() + _SETTLES * settle
        while True:
            self._check()
            if self._leaves_in_order(view.members):
                return view.members
            try:
                async with asyncio.timeout_at(min(latest, loop.time() + settle)):
                    await view.changed()
            except TimeoutError:
                return view.members

    def _taking_part(self, members: Iterable[Member]) -> frozenset[str]:
        return frozenset(each.id for each in members if self._name in each.shards)

    def _leaves_in_order(self, members: Sequence[Member]) -> bool:
        """Whether a member of these has taken part, and takes part no more."""
        there = {each.id for each in members}
        return bool((self._partners & there) - self._taking_part(members))

    async def _places(self, members: tuple[Member, ...]) -> frozenset[int]:
        """The shards that are for this member, if these take part."""
        name, count = self._name, self._count
        ours, taking_part = self._member.id, list[str]()
        for each in members:
            declared = each.shards.get(name)
            if declared == count:
                taking_part.append(each.id)
            elif declared is not None and ours not in taking_part:
                raise self._lock._policy.with_name(
                    LimitMismatch(
                        f"the shards {name!r} are in use, {declared} of them, but {count} are"
                        " declared here: all that take part declare the same"
                    )
                )
        if ours not in taking_part:
            return frozenset()  # it joins again just now
        found = await in_parts(placed(name, count, taking_part))
        return frozenset(at for at, owner in enumerate(found) if owner == ours)

    def _apply(self, wanted: frozenset[int]) -> None:
        """Acquire what is wanted and not held, and wait no more for what is not wanted."""
        self._wanted = wanted
        for index in sorted(wanted - self._workers.keys()):
            self._workers[index] = worker = asyncio.create_task(
                self._work(index), name=f"aiolock shard {self._name}/{index}"
            )
            self._tasks.add(worker)
            worker.add_done_callback(partial(self._worked, index))
        for index in self._workers.keys() - wanted - self._held.keys():
            # Not later: it may be wanted again before this one has ended.
            self._workers.pop(index).cancel()
        self._give_up(wanted)

    def _worked(self, index: int, worker: asyncio.Task[None]) -> None:
        self._tasks.discard(worker)
        if self._workers.get(index) is worker:  # as if it has failed
            del self._workers[index]
        if not worker.cancelled() and (error := worker.exception()) is not None:
            log.error("aiolock: the shard %d is not served any more", index, exc_info=error)

    def _give_up(self, wanted: frozenset[int]) -> None:
        """Give up what another one has asked for, and is not for this member."""
        for index in self._asked - wanted:
            self._asked.discard(index)
            if index in self._held:
                self._wanted -= {index}
                self._held[index].giving_up.set()

    def _requested(self, index: int) -> None:
        """Another one asks for this shard."""
        self._asked.add(index)
        if self._reviewing is None or self._reviewing.done():
            self._reviewing = asyncio.create_task(self._review(), name="aiolock shards review")
            self._reviewing.add_done_callback(retrieve)

    async def _review(self) -> None:
        """Look whom the shards are for, now that another one has asked for some.

        Not by the view of a while ago: the one that has asked may know more.
        """
        with contextlib.suppress(StoreError):
            await self._member._view.look()
            while True:
                asked = set(self._asked)
                self._give_up(await self._places(self._member._view.members))
                if self._asked <= asked:
                    return

    async def _work(self, index: int) -> None:
        """Acquire a shard and use it, as long as it is wanted."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        name = f"{self._name}/{index}"
        while index in self._wanted:
            try:
                given_up = await self._use_once(index)
                backoff.reset()
                if given_up:
                    continue
            except LeaseLost as lost:
                log.warning("aiolock: the shard %r was lost: %s", name, lost)
            except StoreError as failure:
                log.warning("aiolock: the shard %r is tried again: %s", name, failure)
            except ClientClosed:
                return
            except Exception:
                log.exception("aiolock: the body of the shard %r failed", name)
            except asyncio.CancelledError:
                if was_cancelled():
                    raise
                log.exception("aiolock: the body of the shard %r failed: it was cancelled", name)
            await asyncio.sleep(backoff.pause())
        if self._workers.get(index) is asyncio.current_task():
            del self._workers[index]  # at once, since it may be wanted again

    async def _use_once(self, index: int) -> bool:
        """Acquire a shard, and use it; whether it was given up."""
        lease = await self._acquire(index)
        shard = self._held[index] = Shard(index, self._count, lease)
        lease._hold.requested = requested = _Requested(partial(self._requested, index))
        if lease._hold.is_wanted:
            requested.set()
        try:
            await self._use(shard)
        finally:
            del self._held[index]
            self._asked.discard(index)
            if not shard._over.is_set() and not lease._hold.inside:
                lease.release_nowait()
        return shard.giving_up.is_set()

    async def _acquire(self, index: int) -> Lease:
        """Wait for a shard, and ask its holder to give it up."""
        engine, policy = self._lock._engine, self._lock._policy
        lock = Lock(engine, policy.named(f"{self._name}/{index}"))
        requests = _Requests(lock)
        try:
            return await lock.acquire(label=self._label or None)
        finally:
            requests.stop()


class _Requested(asyncio.Event):
    """The request to give up a shard: it may come more than once."""

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__()
        self._tell = tell

    def set(self) -> None:
        """Set it, and tell of each time."""
        super().set()
        self._tell()


class _Requests:
    """Requests to the holder of a shard, now and then: one may get lost, or find nobody."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._next = self._loop.call_later(_ASKED_SOON, self._ask)

    def _ask(self) -> None:
        request = RequestRelease(self._lock._policy.key)
        self._lock._engine.submit(request).add_done_callback(retrieve)
        self._next = self._loop.call_later(self._backoff.pause(), self._ask)

    def stop(self) -> None:
        """Ask no more."""
        self._next.cancel()


async def end(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel these tasks, and wait for their ends, whatever happens."""
    for task in tasks:
        task.cancel()
    if tasks:
        with anyio.CancelScope(shield=True):
            await asyncio.wait(tasks)
