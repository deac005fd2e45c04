"""`Group`: the processes that take part in something, as each of them and any other client sees it.

A member is a shared holder of the group's name; `group_view` says what else is at the store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Final

from aiolock._engine.policy import Policy, plain
from aiolock._locks.async_only import AsyncOnly
from aiolock._locks.group_changes import Changes, GroupChange
from aiolock._locks.group_upkeep import pause
from aiolock._locks.group_view import Card, Member, View, checked_data
from aiolock._locks.lock import Lock
from aiolock._locks.membership import Inside, Membership, join
from aiolock.copying import CopiedAsItself
from aiolock.entering import AsyncEnterable, Entered, Entry
from aiolock.options import Seconds
from aiolock.protocol import Status

TTL: Final = 10.0
"""The seconds after which a member that is stopped or cut off is gone, by default."""


class Group(CopiedAsItself, AsyncEnterable["Membership"], AsyncOnly):
    """A description of one group; made by `LockClient.group`. Holds nothing.

    ::

        async with client.group("workers", data={"queue": "mail"}) as me:  # a member in this body
            async for change in me.watch():  # the whole first, then each change, by push
                print(change.epoch, [member.data for member in change.members])

        members = await client.group("workers").members()  # anywhere, without being a member

    Entering it joins the group, leaving the body leaves it. A membership is a lease: the client
    renews it, and when it is lost, the body is cancelled, as that of a lock. A member whose process
    is killed is gone after a second or two; one that is stopped, or cut off, after its ``ttl``.

    Any number of tasks may enter one description; each is a member of its own. Entering it raises
    `StoreError` when the store does not answer, `AcquireTimeout` after the group's ``timeout``, and
    `ClientClosed` when the client is not open here. Cancelled meanwhile, it leaves nothing behind.
    """

    __slots__ = ("__weakref__", "_card", "_lock", "_rejoins")

    def __init__(self, lock: Lock, card: Card, *, rejoins: bool) -> None:
        self._lock = lock
        self._card = card
        self._rejoins = rejoins

    def __repr__(self) -> str:
        return f"<Group {self.name!r} ttl={self.ttl:g}>"

    @property
    def name(self) -> str:
        """The name of the group."""
        return self._lock.name

    @property
    def ttl(self) -> float:
        """The seconds for which the store keeps a membership that nobody renews."""
        return self._lock.ttl

    async def members(self) -> tuple[Member, ...]:
        """The members now, in the order in which they joined; `StoreError` if unknown.

        Two round trips, and one more for members that have posted their data.
        """
        view = self._view()
        await view.look()
        return view.members

    async def watch(self) -> AsyncGenerator[GroupChange, None]:
        """Yield the group as it is (`Members`), then each change of it, by push; without end.

        Changes are `Joined`, `Left` and `Changed`; each has all ``members`` after it. If members
        join and leave faster than this client looks, those in between are not seen. The members
        notice the death of one of them; when the last is killed, this client sees it after twice
        its ``ttl`` at most. Errors are those of `members`: the iteration ends only by an error, or
        by being closed or cancelled.
        """
        view, changes = self._view(), Changes()
        while True:
            await view.look()
            for change in changes.of(view):
                yield change
            await asyncio.sleep(pause(view))
            with contextlib.suppress(TimeoutError):
                # The last of the members tells nobody of its death.
                async with asyncio.timeout(2 * self.ttl):
                    await view.next_epoch()

    async def status(self) -> Status:
        """The members as holders of the group, also dead ones; as `Lock.status`."""
        return await self._lock.status()

    async def break_(self, fence: int | None = None) -> bool:
        """Remove the member with this ``fence``, or all; True if there was one.

        As `Lock.break_`: the member is notified, and its body cancelled.
        """
        broken = await self._lock.break_(fence)
        if broken:
            view = self._view()
            await view.look()
            await view.announce()
        return broken

    def _view(self) -> View:
        self._lock._engine.check()
        return View(self._lock._engine, self._lock._policy)

    @property
    def _entered(self) -> Entered:
        return self._lock._engine.entered

    async def _enter(self, entry: Entry) -> Membership:
        body = Inside(me := await join(self._lock, self._card, rejoins=self._rejoins))
        try:
            entry.enters(self, body)
        except BaseException as error:
            await body.close(error)
            raise
        return me


def describe_group(
    described: Callable[[str, Policy], Lock],
    name: str,
    *,
    data: object,
    ttl: Seconds | None,
    timeout: Seconds | None,
    on_lost: object,
) -> Group:
    """The group of these arguments, checked; ``described`` makes its lock."""
    if on_lost not in ("cancel", "signal", "rejoin"):
        raise ValueError(f"on_lost must be 'cancel', 'signal' or 'rejoin', not {on_lost!r}")
    policy = Policy(
        name,
        TTL if ttl is None else plain(ttl),
        plain(timeout),
        on_lost="cancel" if on_lost == "cancel" else "signal",
        shared=True,
        kind="group",
    )
    card = Card("", checked_data(data))
    return Group(described("group", policy), card, rejoins=on_lost == "rejoin")
