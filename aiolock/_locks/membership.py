"""`Membership`: one membership of a group, for the member itself.

It holds one grant of the group's lock after another: whoever changes what it says about itself
takes a grant with other data, and then gives back the one before (see `group_view`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextvars import Context
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final
from weakref import ref

import anyio

from aiolock._engine.acquirer import acquire
from aiolock._engine.engine import Engine, State
from aiolock._engine.lease import Lease, LostEvent
from aiolock._engine.lease_state import ALIVE, LeaseState, LossReason
from aiolock._engine.policy import Policy, to_ms
from aiolock._engine.scope import Scope, body_of, collected
from aiolock._futures import retrieve
from aiolock._locks.acquire_context import watch
from aiolock._locks.group_changes import Changes, GroupChange
from aiolock._locks.group_upkeep import FIRST_PAUSE, LONGEST_PAUSE, Upkeep
from aiolock._locks.group_view import KEPT, REFRESHED, Card, Member, View, card_key, checked_data
from aiolock._locks.lock import Lock
from aiolock.backoff import Backoff
from aiolock.copying import Uncopyable
from aiolock.errors import ClientClosed, LeaseLost, LockError, StoreError
from aiolock.protocol import Post
from aiolock.validation import as_label

log = logging.getLogger("aiolock")

_PATIENCE: Final = 10.0
"""Seconds for which the store may refuse what a new member posts; as long as for waiters."""


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

    def __init__(self, lock: Lock, lease: Lease, card: Card, *, rejoins: bool) -> None:
        self._lock = lock
        self._rejoins = rejoins
        self._engine: Engine = lock._engine
        self._card = card
        self._lost = LostEvent()
        self._view = View(self._engine, self._policy)
        self._view.set_clock(lease.fence)
        self._upkeep = Upkeep(self._engine, self._policy, self._view, card.id)
        self._changing = asyncio.Lock()
        self._tasks = set[asyncio.Task[Any]]()
        self._begun = self._left = False
        self._served = set[str]()
        """The shards, by name, that this process serves as this member, or begins to serve."""
        self._times_served = Counter[str]()
        """How often it has begun to serve each of them."""
        self._hold(lease)

    _body: Scope

    def __repr__(self) -> str:
        return f"<Membership {self.id!r} of {self.name!r} {self.state}>"

    @property
    def _policy(self) -> Policy:
        return self._lock._policy

    @property
    def name(self) -> str:
        """The name of the group."""
        return self._lock.name

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
        changes = Changes()
        if not self._view.looks:
            await self._view.look()
        view = self._view
        while not self._left:
            members = view.members
            for change in changes.of(view):
                yield change
            # It may have ended while the reader was at work: nothing changes after that.
            if view.members is members and not self._left:
                await view.changed()

    async def update(self, data: Mapping[str, Any] | None) -> None:
        """Replace the data of this member; the others see `Changed`.

        Four commands. `LeaseLost` when it is no member any more, `StoreError` when it is unknown
        whether the others see the new data; then the old or the new data stay. Once it has begun, a
        cancellation does not stop it.

        :param data: a dict that JSON can hold, of 4096 bytes at most.
        """
        checked = checked_data(data)
        await self._change(lambda card: replace(card, data=checked))

    async def _change(self, change: Callable[[Card], Card]) -> None:
        if self._left:
            raise self._lease._loss()
        changing = self._start(self._replace(change), "aiolock group update")
        await asyncio.wait([changing])
        if changing.cancelled():
            raise self._lease._loss()
        changing.result()

    # The shards that it serves, or not

    async def _serve(self, shards: str, count: int) -> None:
        """Tell the others that it takes part in these shards."""
        self._times_served[shards] += 1
        await self._change(lambda card: replace(card, shards={**card.shards, shards: count}))

    def _serve_no_more(self, shards: str) -> asyncio.Task[None]:
        """Tell them that it takes no part, in the background, until they know or it has left."""
        work = self._withdraw(shards, self._times_served[shards])
        return self._start(work, "aiolock group update")

    async def _withdraw(self, shards: str, time: int) -> None:
        def without(card: Card) -> Card:
            if shards not in card.shards or self._times_served[shards] != time:
                return card  # or it serves them again by now
            left = {name: count for name, count in card.shards.items() if name != shards}
            return replace(card, shards=left)

        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=True)
        while not self._left:
            try:
                await self._replace(without)
            except ClientClosed:
                return
            except LockError as failure:
                log.info("aiolock: %r leaves its shards soon: %s", self.name, failure)
                await asyncio.sleep(backoff.pause())
            else:
                return

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
        if self._rejoins and lease._hold.reason is not LossReason.CLOSED:
            _ = self._start(self._rejoin(), "aiolock group rejoin")
        else:
            self._end()

    def _end(self) -> None:
        """The membership was lost for good."""
        if self._rejoins:
            self._body.cancels = True  # its client is closed
        self._lost.set()
        self._stop()

    async def _replace(self, change: Callable[[Card], Card]) -> None:
        """Take another grant, with another card, and then give back the one before."""
        async with self._changing:
            card = change(self._card)
            if card is self._card:
                return
            self._lease._still_ours()
            new = await take(self._lock, self._lease._hold.label)
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
        if lease._hold.state is LeaseState.LOST:
            body.cancel()  # it was not in its body yet, so the loss did not
        return old

    async def _rejoin(self) -> None:
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=True)
        async with self._changing:
            if self._lease.state is not LeaseState.LOST:
                return  # it has joined again since
            log.warning("aiolock: the membership of %r was lost, and joins again", self.name)
            while True:
                try:
                    new = await take(self._lock, self._lease._hold.label)
                    try:
                        card = replace(self._card, joined=new.fence)
                        await self._publish(new, card)
                        new._still_ours()
                    except BaseException:
                        self._give_back(new)
                        raise
                except ClientClosed:
                    self._body.cancels = True
                    self._body.cancel()
                    self._lease._hold.reason = LossReason.CLOSED
                    self._end()
                    return
                except LockError as failure:
                    log.info("aiolock: %r is joined again soon: %s", self.name, failure)
                    await asyncio.sleep(backoff.pause())
                else:
                    self._move_to(new, card)
                    return

    async def _publish(self, lease: Lease, card: Card, *, announces: bool = True) -> None:
        """Post what the member says. A passing refusal must not end what was joined just now."""
        loop, backoff = asyncio.get_running_loop(), Backoff(FIRST_PAUSE, 1.0)
        until = loop.time() + _PATIENCE
        while True:
            pause = backoff.pause()
            try:
                with self._policy.errors_named():
                    await self._post(lease, card)
                    if announces:
                        await self._view.announce()
            except StoreError as error:
                self._engine.check()
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

    # Its tasks

    def _begin(self) -> None:
        self._begun = True
        _ = self._start(self._upkeep.follow(), "aiolock group follow")
        _ = self._start(self._upkeep.look_after(), "aiolock group look")
        _ = self._start(self._refresh(), "aiolock group refresh")
        self._engine.waiters.on_reconnect.add(self._reconnected)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        # In a context of its own, since it outlives the code that starts it.
        task = asyncio.create_task(work, name=name, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

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
        # What was posted last may have got lost, as in a fail-over.
        self._upkeep.reconnected()
        if self._lease.state in ALIVE:
            self._post(self._lease, self._card).add_done_callback(retrieve)
            self._view.announce_nowait()

    async def _refresh(self) -> None:
        while True:
            await asyncio.sleep(REFRESHED * random.uniform(0.9, 1.1))  # noqa: S311  # jitter
            self._post(self._lease, self._card).add_done_callback(retrieve)

    # The end

    async def _leave(self, error: BaseException | None) -> None:
        """Leave the group; called at the end of the body."""
        tasks = [*self._tasks]
        self._stop()
        self._give_back(self._lease)
        try:
            await self._body.close(error)
        finally:
            if tasks:
                with anyio.CancelScope(shield=True):
                    await asyncio.wait(tasks)

    def _left_behind(self) -> None:
        """Its exit was garbage-collected, in any thread: nothing can leave the group any more."""
        watchdog = self._lease._watchdog
        if not self._left and watchdog.is_here:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                watchdog.loop.call_soon_threadsafe(self._give_up)
            watchdog.forgotten.unreachable(self._lease._hold)

    def _give_up(self) -> None:
        if not self._left:
            self._stop()
            self._give_back(self._lease)

    def _give_back(self, lease: Lease) -> None:
        released = lease._give_back()
        if released is not None:
            # After the answer: whoever looks before it would see this member still.
            released.then(lambda _: self._announce_leaving())

    def _announce_leaving(self) -> None:
        if self._engine.state in (State.OPEN, State.CLOSING):
            self._view.announce_nowait()


async def join(lock: Lock, card: Card, *, rejoins: bool) -> Membership:
    """Be a member of the group with this lock, in a body of the task that calls this."""
    card = replace(card, id=secrets.token_urlsafe(9))
    task = asyncio.current_task()
    lease = await take(lock, "" if task is None else as_label(task.get_name()))
    me = None
    try:
        card = replace(card, joined=lease.fence)
        me = Membership(lock, lease, card, rejoins=rejoins)
        await me._publish(lease, card)
        me._engine.check()  # a client that closes has ended the lease, and tells nobody
        me._body = body_of(lease, task, cancels=me._policy.cancels)
        if not rejoins:
            lease._still_ours()
        me._begin()
        if lease.state is LeaseState.LOST:
            me._was_lost(lease)
    except BaseException as error:
        if me is None:
            lease.release_nowait()
        elif not hasattr(me, "_body"):
            me._give_back(lease)  # the others may have seen it
        else:
            await me._leave(error)
        raise
    return me


class Inside:
    """The body of a membership."""

    def __init__(self, member: Membership) -> None:
        self._member = member

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that is in it."""
        return self._member._body.task

    def __del__(self) -> None:
        self._member._left_behind()

    async def close(self, error: BaseException | None) -> None:
        """Leave it."""
        await self._member._leave(error)


async def take(lock: Lock, label: str) -> Lease:
    """One more grant of the group's lock, which no task owns."""
    policy = lock._policy
    lease = await acquire(lock._engine, policy, policy.timeout, partial(watch, ""), label=label)
    assert lease is not None
    return lease
