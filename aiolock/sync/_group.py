"""Groups and shards for threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from concurrent.futures import Future
from typing import Any, NoReturn

import aiolock
from aiolock.copying import CopiedAsItself, Uncopyable
from aiolock.entering import Entry, SyncEnterable
from aiolock.errors import ClientClosed
from aiolock.options import Seconds
from aiolock.protocol import Status
from aiolock.sync._body import Bodies, Entrance, Opened, check_function
from aiolock.sync._lease import Flag, Lease
from aiolock.sync._portal import Portal, process
from aiolock.sync._thread import caller


class Group(Entrance["aiolock.Membership", "Membership"]):
    """A description of one group: as `aiolock.Group`, for threads. Holds nothing."""

    __slots__ = ("__weakref__", "_group")

    def __init__(self, client: Opened, group: aiolock.Group) -> None:
        super().__init__(client, group, lambda portal, me: Membership(client, portal, me))
        self._group = group

    def __repr__(self) -> str:
        return repr(self._group)

    @property
    def name(self) -> str:
        """The name of the group."""
        return self._group.name

    @property
    def ttl(self) -> float:
        """The seconds for which the store keeps a membership that nobody renews."""
        return self._group.ttl

    def members(self) -> tuple[aiolock.Member, ...]:
        """The members now; as `aiolock.Group.members`."""
        return self._client.call(self._group.members)

    def watch(self) -> Generator[aiolock.GroupChange, None, None]:
        """Yield the group as it is, then each change of it; as `aiolock.Group.watch`."""
        return _watched(self._client, self._group.watch, endless=True)

    def status(self) -> Status:
        """The members as holders of the group; as `aiolock.Group.status`."""
        return self._client.call(self._group.status)

    def break_(self, fence: int | None = None) -> bool:
        """Remove the member with this ``fence``, or all; as `aiolock.Group.break_`."""
        return self._client.call(lambda: self._group.break_(fence))


def _watched(
    client: Opened,
    watch: Callable[[], AsyncGenerator[aiolock.GroupChange, None]],
    *,
    endless: bool,
) -> Generator[aiolock.GroupChange, None, None]:
    """The changes that tasks see, for a thread."""
    client.portal()
    changes = watch()
    end = object()

    async def following() -> Any:
        return await anext(changes, end)

    try:
        while (change := client.call(following, waits=True)) is not end:
            yield change
        if endless:  # the loop has ended, and with it the iteration there
            raise ClientClosed("this client was closed meanwhile", closed=True)
    finally:
        client.leave(changes.aclose)


class Membership(Uncopyable, instead=aiolock.Membership._instead):
    """One membership of a group, as its thread has it; made by entering a `Group`.

    A loss cannot stop a thread: look at `lost`, or call ``me.lease.check()``, between the steps of
    the work.
    """

    __slots__ = ("_client", "_me", "_portal")

    def __init__(self, client: Opened, portal: Portal, me: aiolock.Membership) -> None:
        self._client = client
        self._portal = portal
        self._me = me

    def __repr__(self) -> str:
        return self._portal.read(lambda: repr(self._me))

    @property
    def name(self) -> str:
        """The name of the group."""
        return self._me.name

    @property
    def id(self) -> str:
        """The random text that names this membership to all: `Member.id`."""
        return self._me.id

    @property
    def data(self) -> Mapping[str, Any]:
        """What it says about itself; see `update`."""
        return self._me.data

    @property
    def epoch(self) -> int:
        """The highest epoch of the group that this client has seen; no I/O."""
        return self._me.epoch

    @property
    def lease(self) -> Lease:
        """The lease of the membership: another one after each `update`."""
        return Lease(self._portal, self._me.lease)

    @property
    def fence(self) -> int:
        """The fencing token of the membership."""
        return self._me.fence

    @property
    def state(self) -> aiolock.LeaseState:
        """The state of its lease; ``lost`` also while it joins again."""
        return self._portal.read(lambda: self._me.state)

    @property
    def lost(self) -> Flag:
        """Set when the membership was lost for good; never by leaving."""
        return Flag(self._portal, self._me.lost, waits=False)

    def members(self) -> tuple[aiolock.Member, ...]:
        """The members now; as `aiolock.Membership.members`."""
        return caller(self._portal).call(self._me.members)

    def watch(self) -> Generator[aiolock.GroupChange, None, None]:
        """Yield the group as it is, then each change of it; as `aiolock.Membership.watch`."""
        return _watched(self._client, self._me.watch, endless=False)

    def update(self, data: Mapping[str, Any] | None) -> None:
        """Replace the data of this member; as `aiolock.Membership.update`."""
        caller(self._portal).call(lambda: self._me.update(data))


class Shard(Uncopyable, SyncEnterable["Shard"], instead=aiolock.Shard._instead):
    """One shard that this process holds, in a thread of its own; made by `Shards.run`.

    A loss cannot stop a thread: call ``shard.lease.check()``, or look at `lost` and `giving_up`,
    between the steps of the work. The shard is released when the body returns.
    """

    __slots__ = ("__weakref__", "_portal", "_shard")

    def __init__(self, portal: Portal, shard: aiolock.Shard) -> None:
        self._portal = portal
        self._shard = shard

    def __repr__(self) -> str:
        return self._portal.read(lambda: repr(self._shard))

    def __contains__(self, key: object) -> bool:
        """Whether this shard is the one of that key: ``tenant in shard``."""
        return key in self._shard

    @property
    def index(self) -> int:
        """Its number, from 0."""
        return self._shard.index

    @property
    def name(self) -> str:
        """The name of its lock: that of the shards, and its number, as ``tenants/7``."""
        return self._shard.name

    @property
    def lease(self) -> Lease:
        """The lease of its lock."""
        return Lease(self._portal, self._shard.lease)

    @property
    def fence(self) -> int:
        """The fencing token: higher than that of whoever held this shard before."""
        return self._shard.fence

    @property
    def state(self) -> aiolock.LeaseState:
        """The state of its lease."""
        return self._portal.read(lambda: self._shard.state)

    @property
    def lost(self) -> Flag:
        """Set when the shard is lost; never by giving it up."""
        return Flag(self._portal, self._portal.read(lambda: self._shard.lost), waits=False)

    @property
    def giving_up(self) -> Flag:
        """Set when another member waits for this shard, when this process ends, or when the shard
        is lost: the body returns.
        """
        return Flag(self._portal, self._shard.giving_up, waits=False)

    def release(self) -> bool:
        """Release the shard, as `Lease.release`; the end of its body does so."""
        return caller(self._portal).call(self._shard.release)

    @property
    def _entered(self) -> Bodies:
        return _BY_HAND

    def _enter(self, entry: Entry) -> Shard:
        entry.enters(self, _Inside(self))
        return self


_BY_HAND = Bodies()
"""The bodies of shards that were entered by hand."""


class _Inside:
    """A ``with`` in the body of a shard: its end releases the shard."""

    task = None

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def close(self, error: BaseException | None) -> None:  # noqa: ARG002  # as of any body
        """Leave it."""
        self._shard.release()


Body = Callable[[Shard], object]
"""The work for one shard."""


class Shards(CopiedAsItself):
    """A description of shards: as `aiolock.Shards`, for threads. Holds nothing."""

    __slots__ = ("_client", "_shards")

    def __init__(self, client: Opened, shards: aiolock.Shards) -> None:
        self._client = client
        self._shards = shards

    def __repr__(self) -> str:
        return repr(self._shards)

    @property
    def name(self) -> str:
        """The name of the shards."""
        return self._shards.name

    @property
    def count(self) -> int:
        """How many shards there are."""
        return self._shards.count

    def shard_of(self, key: str) -> int:
        """The number of the shard that a key belongs to; as `aiolock.Shards.shard_of`."""
        return self._shards.shard_of(key)

    def run(self, body: Body, *, grace: Seconds | None = None) -> NoReturn:
        """Take part until interrupted: run ``body(shard)`` in a thread for each shard that is held.

        As `aiolock.Shards.run`, but nothing stops a thread: ``grace`` must be None, and the body
        looks at `Shard.giving_up` and `Shard.lost` itself. The shard is released when the body
        returns. Interrupted (Ctrl-C), or when the client closes, all bodies are asked to give up,
        and waited for; interrupted once more, it does not wait.
        """
        if grace is not None:
            raise ValueError("grace must be None: nothing stops a thread that does not return")
        check_function("body", body)
        portal = self._client.portal()

        async def use(shard: aiolock.Shard) -> None:
            await _in_a_thread(body, portal, shard)

        ended = Future[None]()

        async def take_part() -> None:
            ended.set_running_or_notify_cancel()
            try:
                await self._shards._run(use)
            finally:
                ended.set_result(None)

        try:
            self._client.call(take_part, waits=True)
        except BaseException:
            if portal.read(ended.running):  # interrupted: the call does not wait for the bodies
                ended.result()
            raise
        raise AssertionError("it runs until it is cancelled")


async def _in_a_thread(body: Body, portal: Portal, shard: aiolock.Shard) -> None:
    """Run the body of a shard in a thread, and wait for its end, whatever happens."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Exception | None] = loop.create_future()

    def work() -> None:
        failure: Exception | None = None
        try:
            body(Shard(portal, shard))
        except Exception as error:  # noqa: BLE001  # raised in the task that waits
            failure = error
        except BaseException as error:  # noqa: BLE001  # which would end the loop
            failure = RuntimeError(f"the body has ended with {error!r}")
        with contextlib.suppress(ClientClosed, RuntimeError):  # the loop has ended
            portal.soon(_end, ended, failure)
        process().drop(ended)

    async with shard:  # so a client that closes waits for it
        # Longer than that if its lease ends before: it has to tell the loop of its end.
        process().keep(portal, ended)
        try:
            threading.Thread(target=work, name=f"aiolock {shard.name}", daemon=True).start()
        except BaseException:
            process().drop(ended)
            raise
        cancelled: asyncio.CancelledError | None = None
        while not ended.done():
            try:
                await asyncio.wait([ended])
            except asyncio.CancelledError as error:
                cancelled = error
                shard.giving_up.set()
        failure = ended.result()
        if cancelled is not None:
            raise cancelled
        if failure is not None:
            raise failure


def _end(ended: asyncio.Future[Exception | None], failure: Exception | None) -> None:
    if not ended.done():
        ended.set_result(failure)
