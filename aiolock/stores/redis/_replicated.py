"""The Redis store that confirms only what its replicas have, too: ``connect(replicas=)``.

It passes an answer on to its client when a `Barrier` has confirmed it: a grant, a renewed lease, a
count, or that work is done. So no body begins, and no deadline moves, by anything that a fail-over
may forget. Answers that may be forgotten without harm are not held back: a place in the queue, or a
release. An answer that is covered only by a barrier at another master is not confirmed, but asked
for again (see `Replication`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from redis.asyncio.connection import ConnectionPool
from redis.exceptions import RedisError

from aiolock._futures import retrieve
from aiolock.copying import Uncopyable
from aiolock.errors import StoreError
from aiolock.protocol import (
    WAS_ABSENT,
    Acquire,
    Adopt,
    Answer,
    Deliver,
    Detach,
    Event,
    Finish,
    Form,
    Granted,
    GrantPushed,
    GrantUnconfirmed,
    Operation,
    Post,
    Reconnected,
    Renew,
    Resize,
)
from aiolock.store import Features
from aiolock.stores._opening import Opening
from aiolock.stores.redis._barrier import PATIENCE, Outcome, Replicas
from aiolock.stores.redis._confirmed import Confirmed
from aiolock.stores.redis._errors import Place, store_error
from aiolock.stores.redis._health import HEARTBEAT
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._protocol import PROTOCOL
from aiolock.stores.redis._replication import Replication
from aiolock.stores.redis._sentinel import Address
from aiolock.stores.redis._store import RedisStore, shown

Value = TypeVar("Value")


class ReplicatedStore(Uncopyable):
    """A store around the one on the master, with a third connection for the barriers."""

    def __init__(self, pool: ConnectionPool, prefix: str, replicas: Replicas) -> None:
        self._pool = pool
        self._prefix = prefix
        self._replicas: Replicas = replicas
        self.store: RedisStore | None = None
        """That of the last opening."""
        self.features = Features(in_order=self._in_order, protocols=self._protocols)
        self._confirming: dict[type[Operation[Any]], Callable[[Any], asyncio.Future[Any]]] = {
            Acquire: self._acquire,
            Renew: self._renew,
            Finish: self._finish,
            Detach: self._detach,
            Adopt: self._adopt,
            Resize: self._count,
            Post: self._count,
        }
        """The operations of which the answer is confirmed before the client gets it."""

    def _in_order(self) -> bool:
        return self.store is not None and self.store.features.in_order()

    def _protocols(self) -> tuple[int, ...]:
        return self.store.features.protocols() if self.store else (PROTOCOL,)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {shown(self._pool, self._prefix)}>"

    async def open(self, client: str, deliver: Deliver) -> None:
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._asking = self._closing = self._observed = False
        self._opening = Opening()
        self.replication = replication = Replication(
            *(self._pool, Names(self._prefix), client, self._replicas),
            drop_pushes=self._drop_pushes,
        )
        self.store = store = RedisStore(
            *(self._pool, self._prefix),
            make_pipe=replication.make_pipe,
            companion=replication.pushes,
        )
        await self._opening.run(self._open(store, replication, client), self.aclose)

    async def _open(self, store: RedisStore, replication: Replication, client: str) -> None:
        try:
            await store.open(client, self._deliver_confirmed)
            await replication.open()
            if self._closing:  # our cancellation was lost in a driver
                raise StoreError("the client was closed while it was opening")  # noqa: TRY301  # one place that cleans up
        except BaseException as error:
            self._closing = True
            await store.aclose()
            await replication.barrier.aclose()
            if isinstance(error, RedisError | OSError) and not isinstance(error, StoreError):
                raise store_error(error, Place.of(self._pool, self._prefix)) from error
            raise
        self._observed = True
        self._timer = self._loop.call_later(HEARTBEAT, self._beat)

    async def aclose(self) -> None:
        store = self.store
        if store is None:
            return
        replication = self.replication  # of this opening: meanwhile there may be another
        if self._opening.under_way:
            self._closing = True
            await self._opening.end()  # which disconnects
        if self._closing:
            return
        self._closing = True
        self._timer.cancel()
        replication.forget().add_done_callback(retrieve)
        await store.aclose()
        await replication.barrier.aclose()

    def submit(self, operation: Operation[Value]) -> asyncio.Future[Value]:
        confirming = self._confirming.get(operation.__class__)
        return confirming(operation) if confirming is not None else self._plain(operation)

    def _plain(self, operation: Operation[Value]) -> asyncio.Future[Value]:
        assert self.store is not None
        return self.store.submit(operation)

    def follow(self, address: Address) -> None:
        """The master is at ``address``."""
        if self.store is not None:
            self.store.follow(address)
            self.replication.barrier.follow(address)

    def _beat(self) -> None:
        self._timer = self._loop.call_later(HEARTBEAT, self._beat)
        self.replication.barrier.beat(HEARTBEAT)

    def _drop_pushes(self, reason: Exception) -> None:
        if self.store is not None:
            self.store.session.subscription.drop(reason)

    # Answers that are confirmed before the client gets them

    def _acquire(self, operation: Acquire) -> asyncio.Future[Answer]:
        assert self.store is not None

        def failed(granted: Granted, error: StoreError) -> None:
            name, waiter, form = operation.name, operation.waiter, operation.form
            self._deliver(GrantUnconfirmed(name, waiter, form, granted.fence, error))

        return Confirmed(
            *(self.replication, operation, self._plain, _is_granted, _within(operation.form)),
            failed=failed,
            ask_again=self.store.operations.acquire_again,
        )

    def _renew(self, operation: Renew) -> asyncio.Future[list[bool | None]]:
        renewals = operation.renewals
        if not any(renewal.ttl for renewal in renewals):
            return self._plain(operation)
        # The watchdog watches each deadline, so leases with a short one need not hurry the others.
        within = max(_within(renewal.form) for renewal in renewals)
        return Confirmed(self.replication, operation, self._plain, any, within)

    def _finish(self, operation: Finish) -> asyncio.Future[int]:
        return Confirmed(self.replication, operation, self._plain, _was_there, PATIENCE)

    def _detach(self, operation: Detach) -> asyncio.Future[int]:
        return Confirmed(self.replication, operation, self._plain, _was_there, PATIENCE)

    def _adopt(self, operation: Adopt) -> asyncio.Future[Granted | None]:
        within = _within(operation.form)
        return Confirmed(self.replication, operation, self._plain, _was_adopted, within)

    def _count(self, operation: Resize | Post) -> asyncio.Future[int]:
        return Confirmed(self.replication, operation, self._plain, _was_done, PATIENCE)

    # Events

    def _deliver_confirmed(self, event: Event) -> None:
        """Deliver an event that was pushed on either connection, a grant once it is confirmed."""
        if not self._observed:
            return  # while it opens, nobody waits
        if isinstance(event, GrantPushed):
            self._granted(event)
        else:
            self._deliver(event)

    def _granted(self, event: GrantPushed) -> None:
        replication, within = self.replication, _within(event.form)
        losses = replication.losses
        replication.barrier.wait(
            replication.push_history, within, partial(self._concluded, event, losses, within)
        )

    def _concluded(self, event: GrantPushed, losses: int, within: float, outcome: Outcome) -> None:
        replication = self.replication
        if outcome is Outcome.CONFIRMED:
            self._deliver(event)
        elif outcome is Outcome.ELSEWHERE or losses != replication.losses:
            if outcome is Outcome.ELSEWHERE:
                replication.differ()
            self._have_all_ask_again()
        else:
            error = replication.unconfirmed(outcome, within)
            name, waiter, form, fence = event[:4]
            self._deliver(GrantUnconfirmed(name, waiter, form, fence, error))

    def _have_all_ask_again(self) -> None:
        if not self._asking:
            self._asking = True
            self._loop.call_soon(self._all_ask_again)

    def _all_ask_again(self) -> None:
        self._asking = False
        if not self._closing:
            self._deliver(Reconnected())


def _within(form: Form) -> float:
    """How many seconds to wait for the replicas."""
    return min(form.claim / 3000, PATIENCE)


def _is_granted(answer: Answer) -> bool:
    return isinstance(answer, Granted)


def _was_adopted(answer: Granted | None) -> bool:
    return answer is not None


def _was_there(was: int) -> bool:
    return was != WAS_ABSENT


def _was_done(answer: int) -> bool:
    return answer >= 0
