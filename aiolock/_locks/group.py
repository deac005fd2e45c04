"""`Group`: the processes that take part in something, as each of them and any other client sees it.

A member is a shared holder of the group's name; `group_view` says what else is at the store. While
a client is a member, it follows the others, and looks now and then whether one of them is dead: the
oldest member each second, the others seldom, and the more seldom the younger they are. So the
store has no more to do for a hundred members than for two, and yet whoever is left notices that all
older members have died together.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextvars import Context
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final
from weakref import ref

import anyio

from aiolock._engine.acquirer import acquire
from aiolock._engine.engine import Engine, State
from aiolock._engine.lease import Lease, LostEvent
from aiolock._engine.lease_state import ALIVE, LeaseState, LossReason
from aiolock._engine.policy import Policy, plain, to_ms
from aiolock._engine.scope import Scope, body_of, collected
from aiolock._futures import retrieve
from aiolock._locks.acquire_context import watch
from aiolock._locks.async_only import AsyncOnly
from aiolock._locks.group_view import KEPT, REFRESHED, Card, Member, View, card_key
from aiolock._locks.lock import Lock
from aiolock.backoff import Backoff
from aiolock.copying import CopiedAsItself, Uncopyable
from aiolock.entering import AsyncEnterable, Entered, Entry
from aiolock.errors import ClientClosed, LeaseLost, LockError, StoreError
from aiolock.options import Seconds
from aiolock.protocol import Break, Participant, Post, Status
from aiolock.validation import as_label

log = logging.getLogger("aiolock")

TTL: Final = 10.0
"""The seconds after which a member that is stopped or cut off is gone, by default."""
MOST_DATA: Final = 4096
"""Bytes of a member's data, as JSON."""
_LOOK: Final = 1.0
"""Seconds between two looks of the oldest member, and between two that find another one dead."""
_LOOKS: Final = 6
"""The most thirds of a ttl between two looks of another member."""
_PER_MEMBER: Final = 0.002
"""Seconds between two looks after changes, for each member: many changes are seen together."""
_PATIENCE: Final = 10.0
"""Seconds for which the store may refuse what a new member posts; as long as for waiters."""
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
"""Seconds between tries while the store cannot be reached: the first pause, and the longest."""


@dataclass(frozen=True, slots=True)
class GroupChange:
    """A change of a group, or the whole of it: what `Group.watch` gives."""

    epoch: int
    """The number of this view of the group; it never falls. Changes that were found together have
    the same."""
    members: tuple[Member, ...]
    """All members after this change, in the order in which they joined."""


@dataclass(frozen=True, slots=True)
class Members(GroupChange):
    """The group as it is: what comes first."""


@dataclass(frozen=True, slots=True)
class Joined(GroupChange):
    """A member has joined."""

    member: Member
    """The new member."""


@dataclass(frozen=True, slots=True)
class Left(GroupChange):
    """A member has left: by itself, or because it is dead or was removed."""

    member: Member
    """The member as it was last seen."""


@dataclass(frozen=True, slots=True)
class Changed(GroupChange):
    """A member has changed its data."""

    member: Member
    """The member as it is now."""
    before: Member
    """The member as it was."""


def checked_data(data: object) -> dict[str, Any]:
    """A copy of a member's data: a dict that JSON can hold, of 4096 bytes at most."""
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise TypeError(f"data must be a dict or None, not {data!r}")
    given: dict[Any, Any] = {**data}
    try:
        text = json.dumps(given, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"data must be a dict that JSON can hold: {error}") from error
    if len(text) > MOST_DATA:
        raise ValueError(
            f"data must have at most {MOST_DATA} bytes as JSON, not {len(text):,}: keep what is"
            " large elsewhere, and give the place"
        )
    copy: dict[str, Any] = json.loads(text)
    return copy


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
        view, changes = self._view(), _Changes()
        while True:
            await view.look()
            for change in changes.of(view):
                yield change
            await asyncio.sleep(_pause(view))
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
        me = await Membership._join(self)
        try:
            entry.enters(self, _Inside(me))
        except BaseException as error:
            await me._leave(error)
            raise
        return me


def _pause(view: View) -> float:
    """Seconds between two looks: changes that come quickly are seen together."""
    return min(1.0, _PER_MEMBER * len(view.members))


class _Changes:
    """The differences between views, in turn."""

    def __init__(self) -> None:
        self._seen: dict[str, Member] | None = None

    def of(self, view: View) -> list[GroupChange]:
        """What has changed since the view before; at first, the whole."""
        now = {member.id: member for member in view.members}
        before, self._seen = self._seen, now
        if before is None:
            return [Members(view.epoch, view.members)]
        found, epoch, members = list[GroupChange](), view.epoch, dict(before)

        def after() -> tuple[Member, ...]:
            return tuple(sorted(members.values(), key=lambda each: (each.since, each.id)))

        for member in before.values():
            again = now.get(member.id)
            if again is None or again.since != member.since:  # it may have joined once more
                del members[member.id]
                found.append(Left(epoch, after(), member))
        for member in view.members:
            known = members.get(member.id)
            members[member.id] = member
            if known is None:
                found.append(Joined(epoch, after(), member))
            elif (known.data, known.shards) != (member.data, member.shards):
                found.append(Changed(epoch, after(), member, known))
        return found


class _LostOfOne(LostEvent):
    """The loss of one grant of a membership."""

    def __init__(self, lost: Callable[[], None]) -> None:
        super().__init__()
        self._tell = lost

    def set(self) -> None:
        """Set it, and tell the membership."""
        if not self.is_set():
            super().set()
            self._tell()


class Membership(
    Uncopyable, instead="it is one membership of this process; enter the group in each other one"
):
    """One membership of a group, for the member itself; made by entering a `Group`.

    It is renewed, and ends once: when its body is left, or when it is lost. With
    ``on_lost="rejoin"`` it does not end by a loss: the client joins again, the others see the
    member leave and join, and the body goes on.
    """

    def __init__(self, group: Group, lease: Lease, card: Card) -> None:
        self._group = group
        self._engine: Engine = group._lock._engine
        self._card = card
        self._lost = LostEvent()
        self._view = View(self._engine, self._policy)
        self._view.set_clock(lease.fence)
        self._changing = asyncio.Lock()
        self._tasks = set[asyncio.Task[Any]]()
        self._begun = self._left = False
        self._calm_until = 0.0
        """Until when nobody is taken for dead: the store has just come back."""
        self._suspects = dict[int, float]()
        """The fences of members that do not seem to listen, and since when."""
        self._hold(lease)

    @classmethod
    async def _join(cls, group: Group) -> Membership:
        card = replace(group._card, id=secrets.token_urlsafe(9))
        task = asyncio.current_task()
        label = "" if task is None else as_label(task.get_name())
        lease = await _take(group, label)
        me = None
        try:
            card = replace(card, joined=lease.fence)
            me = cls(group, lease, card)
            await me._publish(lease, card)
            me._body = body_of(lease, task, cancels=me._policy.cancels)
            if not group._rejoins:
                lease._still_ours()
            me._begin()
            if lease.state is LeaseState.LOST:
                me._was_lost(lease)
        except BaseException as error:
            if me is None or not hasattr(me, "_body"):
                lease.release_nowait()
            else:
                await me._leave(error)
            raise
        return me

    _body: Scope

    def __repr__(self) -> str:
        return f"<Membership {self.id!r} of {self.name!r} {self.state}>"

    @property
    def _policy(self) -> Policy:
        return self._group._lock._policy

    @property
    def name(self) -> str:
        """The name of the group."""
        return self._group.name

    @property
    def id(self) -> str:
        """The random text that names this membership to all: `Member.id`."""
        return self._card.id

    @property
    def data(self) -> Mapping[str, Any]:
        """What it says about itself; see `update`."""
        return MappingProxyType(dict(self._card.data))

    @property
    def epoch(self) -> int:
        """The highest epoch of the group that this client has seen; no I/O."""
        return self._view.epoch

    @property
    def lease(self) -> Lease:
        """The lease of the membership: another one after each `update`."""
        return self._lease

    @property
    def fence(self) -> int:
        """The fencing token of the membership."""
        return self._lease.fence

    @property
    def state(self) -> LeaseState:
        """The state of its lease; ``lost`` also while it joins again."""
        return self._lease.state

    @property
    def lost(self) -> LostEvent:
        """An event, set when the membership was lost for good; never by leaving."""
        return self._lost

    async def members(self) -> tuple[Member, ...]:
        """The members now, in the order in which they joined; `StoreError` if unknown."""
        await self._view.look()
        return self._view.members

    async def watch(self) -> AsyncGenerator[GroupChange, None]:
        """Yield the group as it is, then each change of it: as `Group.watch`.

        Any number of tasks may watch; all see what this client has looked up once. While the store
        does not answer, nothing changes. The iteration ends when the membership does.
        """
        changes = _Changes()
        if not self._view.looks:
            await self._view.look()
        view = self._view
        while not self._left:
            members = view.members
            for change in changes.of(view):
                yield change
            if view.members is members:
                await view.changed()

    async def update(self, data: Mapping[str, Any] | None) -> None:
        """Replace the data of this member; the others see `Changed`.

        Four commands. `LeaseLost` when it is no member any more, `StoreError` when it is unknown
        whether the others see the new data; then the old or the new data stay. Once it has begun, a
        cancellation does not stop it.

        :param data: a dict that JSON can hold, of 4096 bytes at most.
        """
        await self._change(data=checked_data(data))

    async def _change(self, **changes: Any) -> None:
        if self._left:
            raise self._lease._loss()
        changing = asyncio.create_task(self._replace(changes), name="aiolock group update")
        self._tasks.add(changing)
        changing.add_done_callback(self._ended)
        await asyncio.wait([changing])
        if changing.cancelled():
            raise self._lease._loss()
        changing.result()

    def _change_later(self, **changes: Any) -> None:
        """The same in the background, unless it is leaving."""
        if not self._left:
            self._start(self._replace(changes), "aiolock group update")

    # The grant

    def _hold(self, lease: Lease) -> None:
        """This is the grant of the membership from now on."""
        self._lease = lease
        lease._hold.lost = lost = _LostOfOne(partial(self._was_lost, lease))
        if lease._hold.state is LeaseState.LOST:
            lost.set()

    def _was_lost(self, lease: Lease) -> None:
        if lease is not self._lease or self._left or not self._begun:
            return
        if self._group._rejoins and lease._hold.reason is not LossReason.CLOSED:
            self._start(self._rejoin(), "aiolock group rejoin")
            return
        if self._group._rejoins:
            self._body.cancels = True  # the client is closed, so it is lost for good
        self._lost.set()
        self._stop()

    async def _replace(self, changes: Mapping[str, Any]) -> None:
        """Take another grant, with another card, and then give back the one before."""
        async with self._changing:
            self._lease._still_ours()
            card = replace(self._card, **changes)
            new = await _take(self._group, self._lease._hold.label)
            try:
                await self._publish(new, card, announces=False)
                self._lease._still_ours()
            except BaseException:
                new.release_nowait()
                raise
            old = self._move_to(new, card)
            old.release_nowait()
            await self._view.announce()

    def _move_to(self, lease: Lease, card: Card) -> Lease:
        """Hold this grant, and let its loss cancel the body, instead of the one before's."""
        old, body = self._lease, self._body
        old._hold.bodies = tuple([each for each in old._hold.bodies if each() is not body])
        body.lease, body.alone = lease, None
        lease._hold.bodies += (ref(body, partial(collected, lease)),)
        self._card = card
        self._hold(lease)
        return old

    async def _rejoin(self) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, jitter=True)
        log.warning("aiolock: the membership of %r was lost, and joins again", self.name)
        async with self._changing:
            while True:
                try:
                    new = await _take(self._group, self._lease._hold.label)
                    try:
                        card = replace(self._card, joined=new.fence)
                        await self._publish(new, card)
                        new._still_ours()
                    except BaseException:
                        new.release_nowait()
                        raise
                except ClientClosed:
                    return
                except LockError as failure:
                    log.info("aiolock: %r is joined again soon: %s", self.name, failure)
                    await asyncio.sleep(backoff.pause())
                else:
                    self._move_to(new, card)
                    return

    async def _publish(self, lease: Lease, card: Card, *, announces: bool = True) -> None:
        """Post what the member says. A passing refusal must not end what was joined just now."""
        loop, backoff = asyncio.get_running_loop(), Backoff(_FIRST_PAUSE, 1.0)
        until = loop.time() + _PATIENCE
        while True:
            pause = backoff.pause()
            try:
                with self._policy.errors_named():
                    await self._post(lease, card)
                    if announces:
                        await self._view.announce()
            except StoreError as error:
                if not error.refused or loop.time() + pause > until:
                    raise
            else:
                return
            await asyncio.sleep(pause)

    def _post(self, lease: Lease, card: Card) -> asyncio.Future[int]:
        client, seq = lease._hold.waiter
        return self._engine.submit(
            Post(
                card_key(client, seq),
                1,
                token="",
                declared=0,
                value=card.encoded(),
                remember=to_ms(KEPT),
            )
        )

    # What a member does for the others

    def _begin(self) -> None:
        self._begun = True
        self._start(self._follow(), "aiolock group follow")
        self._start(self._look_after(), "aiolock group look")
        self._start(self._refresh(), "aiolock group refresh")
        self._engine.waiters.on_reconnect.add(self._reconnected)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        # In a context of its own, since it outlives the code that starts it.
        task = asyncio.create_task(work, name=name, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, StoreError | LeaseLost | ClientClosed):
            log.error("aiolock: %s of %r failed", task.get_name(), self.name, exc_info=error)

    def _stop(self) -> None:
        self._left = True
        self._engine.waiters.on_reconnect.discard(self._reconnected)
        for task in list(self._tasks):
            task.cancel()
        self._view.wake()

    def _reconnected(self) -> None:
        # What was posted last may have got lost, as in a fail-over. All others have been cut off as
        # well, and may need a while to come back.
        self._calm_until = self._engine.watchdog.time() + self._group.ttl / 3
        self._suspects.clear()
        if self._lease.state in ALIVE:
            self._post(self._lease, self._card).add_done_callback(retrieve)
            self._view.announce_nowait()

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESHED * random.uniform(0.9, 1.1))  # noqa: S311  # jitter
            self._post(self._lease, self._card).add_done_callback(retrieve)

    async def _follow(self) -> None:
        """Look at the group after each change."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, jitter=True)
        while True:
            try:
                await self._view.look()
                await asyncio.sleep(_pause(self._view))
                await self._view.next_epoch()
                backoff.reset()
            except StoreError:
                await asyncio.sleep(backoff.pause())

    async def _look_after(self) -> None:
        """Look now and then whether a member is dead, and remove it."""
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, jitter=True)
        failed = False
        """Whether the others may not know of a change."""
        while True:
            await self._until_due()
            try:
                failed = await self._look_once(announces=failed)
                backoff.reset()
            except StoreError:
                failed = True
                await asyncio.sleep(backoff.pause())

    async def _until_due(self) -> None:
        """Return when this member is to look: the older it is, the sooner."""
        loop = asyncio.get_running_loop()
        began, jitter = loop.time(), random.uniform(0.9, 1.1)  # noqa: S311  # so that not all look
        while True:
            left = began + self._interval() * jitter - loop.time()
            if left <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._view.changed()

    def _interval(self) -> float:
        """Seconds between two looks of this member."""
        older = next(
            (at for at, each in enumerate(self._view.members) if each.id == self.id), _LOOKS
        )
        if not older or self._suspects:
            return _LOOK
        return min(older, _LOOKS) * self._group.ttl / 3

    async def _look_once(self, *, announces: bool) -> bool:
        """Look, remove the dead, and announce what nobody has announced; False when it is done."""
        view = self._view
        epoch, members = view.epoch, view.members
        await view.look()
        dead = self._dead()
        if dead:
            with self._policy.errors_named():
                await self._engine.submit(Break(self._policy.key, dead))
        if dead or announces or (view.members != members and view.epoch == epoch):
            await view.announce()
        return False

    def _dead(self) -> list[int]:
        """The fences of members that do not listen, at two looks a second apart."""
        now = self._engine.watchdog.time()
        silent = {seat.fence for seat in self._view.seats if self._is_silent(seat)}
        if now < self._calm_until:
            silent.clear()
        self._suspects = {fence: self._suspects.get(fence, now) for fence in silent}
        return [fence for fence, since in self._suspects.items() if now - since >= 0.8 * _LOOK]

    def _is_silent(self, seat: Participant) -> bool:
        return not seat.alive and seat.client != self._engine.client

    # The end

    async def _leave(self, error: BaseException | None) -> None:
        """Leave the group; called at the end of the body."""
        tasks = [*self._tasks]
        self._stop()
        released = self._lease._give_back()
        if released is not None:
            # After the answer: whoever looks before it would see this member still.
            released.then(lambda _: self._announce_leaving())
        try:
            await self._body.close(error)
        finally:
            if tasks:
                with anyio.CancelScope(shield=True):
                    await asyncio.wait(tasks)

    def _announce_leaving(self) -> None:
        if self._engine.state in (State.OPEN, State.CLOSING):
            self._view.announce_nowait()


class _Inside:
    """The body of a membership."""

    def __init__(self, member: Membership) -> None:
        self._member = member

    @property
    def task(self) -> asyncio.Task[Any] | None:
        return self._member._body.task

    async def close(self, error: BaseException | None) -> None:
        """Leave it."""
        await self._member._leave(error)


async def _take(group: Group, label: str) -> Lease:
    """One more grant of the group's lock, which no task owns."""
    engine, policy = group._lock._engine, group._lock._policy
    lease = await acquire(engine, policy, policy.timeout, partial(watch, ""), label=label)
    assert lease is not None
    return lease


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
