"""`Shards`: a number of parts of some work, spread over the members of a group.

Each shard is a lock. The members of the group decide alike which shard is for whom (`placement`),
each by its own view of the group; who wants a shard that another one holds waits in the queue of
its lock, and asks the holder to release it. So views may differ: two never hold one shard, because
it is a lock; and a holder gives up only what another member waits for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final, NoReturn

from aiolock._engine.policy import Policy, plain
from aiolock._locks.group import TTL, Group
from aiolock._locks.group_view import Card
from aiolock._locks.lock import Lock
from aiolock._locks.membership import Membership
from aiolock._locks.placement import shard_of
from aiolock._locks.shard import Shard
from aiolock._locks.shard_part import Part, end
from aiolock.copying import CopiedAsItself
from aiolock.options import Seconds
from aiolock.validation import checked_name, checked_number, seconds

log = logging.getLogger("aiolock")

MOST_SHARDS: Final = 4096
_LONGEST_SETTLE: Final = 300.0

Body = Callable[[Shard], Awaitable[object]]
"""The work for one shard."""


class Shards(CopiedAsItself):
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
            await self._part(member, use).follow()

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
            following = asyncio.create_task(self._part(member, give).follow())
            try:
                while True:
                    getting = asyncio.ensure_future(ready.get())
                    try:
                        await asyncio.wait(
                            {following, getting}, return_when=asyncio.FIRST_COMPLETED
                        )
                    finally:
                        if not getting.done():
                            await end([getting])
                    if following.done():
                        following.result()
                    yield getting.result()
            finally:
                await end([following])

    def _part(self, member: Membership, use: Callable[[Shard], Coroutine[Any, Any, None]]) -> Part:
        return Part(self._lock, self._count, self._settle, member, use)

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
                    await end([watching])


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
    if group._engine is not lock._engine:
        raise ValueError(f"group must be a membership of this client; {group.name!r} is another's")
    return Shards(lock, count, group, calm)
