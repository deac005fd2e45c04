"""`Shards`: a number of parts of some work, spread over the members of a group.

Each shard is a lock. The members of the group decide alike which shard is for whom (`placement`),
each by its own view of the group; who wants a shard that another one holds waits in the queue of
its lock, and asks the holder to release it. So views may differ: two never hold one shard, because
it is a lock; and a holder gives up only what another member waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, NoReturn

import anyio

from aiolock._engine.lease import Lease, LostEvent
from aiolock._engine.lease_state import LeaseState
from aiolock._engine.policy import Policy, plain
from aiolock._engine.scope import Scope, body_of
from aiolock._futures import retrieve, was_cancelled
from aiolock._locks.async_only import AsyncOnly
from aiolock._locks.group import TTL, Group
from aiolock._locks.group_view import Card, Member
from aiolock._locks.lock import Lock
from aiolock._locks.membership import Membership
from aiolock._locks.placement import placed, shard_of
from aiolock._turns import in_parts
from aiolock.backoff import Backoff
from aiolock.copying import CopiedAsItself, Uncopyable
from aiolock.entering import AsyncEnterable, Entered, Entry, current_task
from aiolock.errors import ClientClosed, LeaseLost, LimitMismatch, StoreError
from aiolock.options import Seconds
from aiolock.protocol import RequestRelease
from aiolock.validation import as_label, checked_name, checked_number, seconds

log = logging.getLogger("aiolock")

MOST_SHARDS: Final = 4096
_LONGEST_SETTLE: Final = 300.0
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

_BY_HAND: Final = Entered(current_task)
"""The bodies of shards that were entered by hand."""


class _Requested(asyncio.Event):
    """The request to give up a shard: it may come more than once."""

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__()
        self._tell = tell

    def set(self) -> None:
        """Set it, and tell of each time."""
        super().set()
        self._tell()


class _LostShard(LostEvent):
    """The loss of a shard."""

    def __init__(self, tell: Callable[[], object]) -> None:
        super().__init__()
        self._tell = tell

    def set(self) -> None:
        """Set it, and tell."""
        super().set()
        self._tell()


class Shard(
    Uncopyable, AsyncEnterable["Shard"], AsyncOnly, instead="it is one hold of this process"
):
    """One shard that this member holds; made by `Shards`.

    Enter it: the body is cancelled when the shard is lost, and its end releases the shard.
    `Shards.run` does that for its bodies.
    """

    def __init__(self, index: int, count: int, lease: Lease) -> None:
        self._index = index
        self._count = count
        self._lease = lease
        self._giving_up = asyncio.Event()
        self._over = asyncio.Event()
        """Set when it is held no more."""
        lease._hold.lost = lost = _LostShard(self._over.set)
        if lease._hold.state is LeaseState.LOST:
            lost.set()

    def __repr__(self) -> str:
        return f"<Shard {self.name!r} fence={self.fence} {self.state}>"

    def __contains__(self, key: object) -> bool:
        """Whether this shard is the one of that key: ``tenant in shard``."""
        if not isinstance(key, str):
            raise TypeError(f"a key must be a str, not {type(key).__name__}")
        return shard_of(key, self._count) == self._index

    @property
    def index(self) -> int:
        """Its number, from 0."""
        return self._index

    @property
    def name(self) -> str:
        """The name of its lock: that of the shards, and its number, as ``tenants/7``."""
        return self._lease.name

    @property
    def lease(self) -> Lease:
        """The lease of its lock."""
        return self._lease

    @property
    def fence(self) -> int:
        """The fencing token: higher than that of whoever held this shard before."""
        return self._lease.fence

    @property
    def state(self) -> LeaseState:
        """The state of its lease."""
        return self._lease.state

    @property
    def lost(self) -> LostEvent:
        """An event, set when the shard is lost; never by giving it up."""
        return self._lease.lost

    @property
    def giving_up(self) -> asyncio.Event:
        """An event, set when another member waits for this shard, which is for it now.

        The body ends its present piece of work, and returns: then the other one begins.
        """
        return self._giving_up

    async def release(self) -> bool:
        """Release the shard, as `Lease.release`; the end of its body does so."""
        try:
            return await self._lease.release()
        finally:
            self._over.set()

    @property
    def _entered(self) -> Entered:
        return _BY_HAND

    async def _enter(self, entry: Entry) -> Shard:
        self._lease._still_ours()
        scope = body_of(self._lease, current_task(), cancels=True)
        entry.enters(self, _Inside(self, scope))
        return self


class _Inside:
    """The body of a shard."""

    def __init__(self, shard: Shard, scope: Scope) -> None:
        self._shard = shard
        self._scope = scope

    @property
    def task(self) -> asyncio.Task[Any] | None:
        return self._scope.task

    async def close(self, error: BaseException | None) -> None:
        """Leave it."""
        try:
            await self._scope.close(error)
        finally:
            self._shard._over.set()


Body = Callable[[Shard], Awaitable[object]]
"""The work for one shard."""


class Shards(CopiedAsItself, AsyncOnly):
    """A description of shards; made by `LockClient.shards`. Holds nothing.

    ::

        async def serve(shard):  # in a task for each shard that this process holds
            while not shard.giving_up.is_set():
                for tenant in tenants:
                    if tenant in shard:
                        await work(tenant, fence=shard.fence)


        await client.shards("tenants", 64).run(serve)  # in each worker

    The shards are spread over the processes that take part, evenly: none has more than the number
    of shards divided by that of the processes, rounded up. When one joins or leaves, few shards
    move. A shard is a lock, with a lease and a fence: never two hold it at a time. When a process
    stops in order, as when its `run` is cancelled, the others get each of its shards as soon as the
    body of that has ended; when it is killed, when its leases end, after its ``ttl`` at most.
    """

    __slots__ = ("_count", "_lock", "_member", "_settle")

    def __init__(self, lock: Lock, count: int, member: Group | Membership, settle: float) -> None:
        """``lock`` describes those of the shards; as ``member`` this process takes part, or as a
        new one of that group.
        """
        self._lock = lock
        self._count = count
        self._member = member
        self._settle = settle

    def __repr__(self) -> str:
        return f"<Shards {self.name!r} count={self._count}>"

    @property
    def name(self) -> str:
        """The name of the shards."""
        return self._lock.name

    @property
    def count(self) -> int:
        """How many shards there are."""
        return self._count

    def shard_of(self, key: str) -> int:
        """The number of the shard that a key belongs to: the same in all processes, by a hash."""
        if not isinstance(key, str):
            raise TypeError(f"a key must be a str, not {type(key).__name__}")
        return shard_of(key, self._count)

    async def run(self, body: Body, *, grace: Seconds | None = None) -> NoReturn:
        """Take part until cancelled: run ``body(shard)`` in a task for each shard that is held.

        The body of a shard is asked to end by `Shard.giving_up`, and cancelled when the shard is
        lost. When it returns or raises, the shard is released. If the shard is still for this
        member, it is acquired again after a second, or after a failed body later and later (15
        seconds at most). An exception of the body is logged, a loss as well. Cancelled, it cancels
        all bodies, and waits for them; meanwhile the others know that it takes part no more, and
        wait for the shards.

        While the store cannot be reached, nothing moves. Raises `LimitMismatch` when members that
        came before declare another number of shards, `LeaseLost` when the membership is lost, and
        errors of joining the group: see `Group`.

        :param grace: seconds after which a body is cancelled that was asked to end; None never
            cancels it, so it keeps its shard, and no other is delayed by that.
        """
        if not callable(body):
            raise TypeError(f"body must be a function of a shard, not {body!r}")
        patience = None if grace is None else seconds("grace (or None)", grace, least=0)
        await self._run(_Runner(body, patience).run)

    async def _run(self, use: Callable[[Shard], Coroutine[Any, Any, None]]) -> NoReturn:
        async with self._taking_part() as member:
            await _Part(self, member, use).follow()

    async def __aiter__(self) -> AsyncGenerator[Shard, None]:
        """Take part, and yield each shard as soon as this member holds it; without end.

        Enter each in a task of its own, as ``tasks.create_task(serve(shard))`` of a
        `asyncio.TaskGroup`, where ``serve`` begins with ``async with shard:``. A shard that was
        given up comes again when it is for this member once more. At the end of the iteration, this
        member takes part no more: shards that were not entered are released, and the others are
        asked to end. Errors are those of `run`.
        """
        ready = asyncio.Queue[Shard]()

        async def give(shard: Shard) -> None:
            ready.put_nowait(shard)
            try:
                await shard._over.wait()
            except asyncio.CancelledError:
                shard.giving_up.set()
                raise

        async with self._taking_part() as member:
            following = asyncio.create_task(_Part(self, member, give).follow())
            try:
                while True:
                    getting = asyncio.ensure_future(ready.get())
                    try:
                        await asyncio.wait(
                            {following, getting}, return_when=asyncio.FIRST_COMPLETED
                        )
                    finally:
                        if not getting.done():
                            await _end([getting])
                    if following.done():
                        following.result()
                    yield getting.result()
            finally:
                await _end([following])

    @asynccontextmanager
    async def _taking_part(self) -> AsyncGenerator[Membership, None]:
        if isinstance(self._member, Group):
            async with self._member as member:
                yield member
            return
        member, name = self._member, self.name
        if name in member._served:
            raise RuntimeError(f"this member of {member.name!r} takes part in {name!r} already")
        member._served.add(name)
        try:
            await member._serve(name, self._count)
            yield member
        finally:
            member._served.discard(name)
            if not member._left:
                _ = member._serve_no_more(name)


class _Runner:
    """Runs the body of each shard that is held."""

    def __init__(self, body: Body, grace: float | None) -> None:
        self._body = body
        self._grace = grace

    async def run(self, shard: Shard) -> None:
        """Run it; its shard is released afterwards."""
        loop, limit = asyncio.get_running_loop(), asyncio.timeout(None)
        watching: asyncio.Task[None] | None = None

        async def cancel_later(grace: float) -> None:
            await shard.giving_up.wait()
            limit.reschedule(loop.time() + grace)

        async with shard:
            try:
                async with limit:
                    if self._grace is not None:
                        watching = asyncio.create_task(cancel_later(self._grace))
                    await self._body(shard)
            except TimeoutError:
                if not limit.expired():
                    raise
                log.warning("aiolock: a body of %r did not end in time: cancelled", shard.name)
            finally:
                if watching is not None:
                    await _end([watching])


class _Part:
    """What one member has of the shards, and wants of them."""

    def __init__(
        self, shards: Shards, member: Membership, use: Callable[[Shard], Coroutine[Any, Any, None]]
    ) -> None:
        self._shards = shards
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
        view = self._member._view
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
            # First of all: others queue for these shards, and get each as soon as its body ends.
            leaving = None if self._member._left else self._member._serve_no_more(self._shards.name)
            reviewing = [] if self._reviewing is None else [self._reviewing]
            await _end([*self._tasks, *reviewing])
            if leaving is not None:
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([leaving], timeout=_LEAVES)

    def _check(self) -> None:
        if self._member._left:
            raise self._member._lease._loss()

    async def _settled(self) -> tuple[Member, ...]:
        """The members, once they stand still for a while; at once if one of them leaves in order.

        Then its shards are free, or will be soon. Of a member that is gone, they may not be: it may
        be there again in a moment, or restarted.
        """
        view, settle, loop = self._member._view, self._shards._settle, asyncio.get_running_loop()
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
        return frozenset(each.id for each in members if self._shards.name in each.shards)

    def _leaves_in_order(self, members: Sequence[Member]) -> bool:
        """Whether a member of these has taken part, and takes part no more."""
        there = {each.id for each in members}
        return bool((self._partners & there) - self._taking_part(members))

    async def _places(self, members: tuple[Member, ...]) -> frozenset[int]:
        """The shards that are for this member, if these take part."""
        name, count = self._shards.name, self._shards.count
        ours, taking_part = self._member.id, list[str]()
        for each in members:
            declared = each.shards.get(name)
            if declared == count:
                taking_part.append(each.id)
            elif declared is not None and ours not in taking_part:
                raise self._shards._lock._policy.with_name(
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
                self._work(index), name=f"aiolock shard {self._shards.name}/{index}"
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
        name = f"{self._shards.name}/{index}"
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
        shard = self._held[index] = Shard(index, self._shards.count, lease)
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
        lock = self._shards._lock
        lock = Lock(lock._engine, lock._policy.named(f"{self._shards.name}/{index}"))
        requests = _Requests(lock)
        try:
            return await lock.acquire(label=self._label or None)
        finally:
            requests.stop()


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


async def _end(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel these tasks, and wait for their ends, whatever happens."""
    for task in tasks:
        task.cancel()
    if tasks:
        with anyio.CancelScope(shield=True):
            await asyncio.wait(tasks)


def describe_shards(
    described: Callable[[str, Policy], Lock],
    name: str,
    count: int,
    *,
    group: object,
    ttl: Seconds | None,
    settle: Seconds,
) -> Shards:
    """The shards of these arguments, checked; ``described`` makes the locks."""
    checked_name(name)
    checked_number("count", count, most=MOST_SHARDS)
    calm = seconds("settle", settle, least=0, most=_LONGEST_SETTLE)
    if group is not None and not isinstance(group, Membership):
        raise TypeError(f"group must be a Membership, as `async with group as me`, not {group!r}")
    policy = Policy(name, TTL if ttl is None else plain(ttl), kind="shards")
    checked_name(f"{name}/{count - 1}")
    lock = described("shards", policy)
    if group is None:
        mine = described("group", replace(policy, kind="group", shared=True, on_lost="signal"))
        own = Group(mine, Card("", {}, shards={name: count}), rejoins=True)
        return Shards(lock, count, own, calm)
    return Shards(lock, count, group, calm)
