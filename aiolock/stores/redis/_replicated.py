"""The Redis store that confirms only what its replicas have, too: ``connect(replicas=)``.

It passes an answer on to its client when a `Barrier` has confirmed it: a grant, a renewed lease, a
count, or that work is done. So no body begins, and no deadline moves, by anything that a fail-over
may forget. Answers that may be forgotten without harm are not held back: a place in the queue, or a
release. A barrier holds for one master, and so does each answer. In a fail-over, one connection may
have the new master while another still has the old one. So the store tracks the master of each
connection. An answer that is covered only by a barrier at another master is not confirmed, but
asked for again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from redis.asyncio.connection import ConnectionPool

from aiolock._prompt import Prompt
from aiolock.errors import StoreError
from aiolock.protocol import (
    WAS_ABSENT,
    Answer,
    Deliver,
    Event,
    Form,
    Granted,
    GrantPushed,
    GrantUnconfirmed,
    Queued,
    Reconnected,
    Renewal,
    WaiterId,
)
from aiolock.stores._link_state import LinkState
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis._barrier import KEPT, PATIENCE, Barrier, Outcome, Replicas, Waiting
from aiolock.stores.redis._errors import Place, Refusal, store_error
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._outbox import COMMAND_TIMEOUT
from aiolock.stores.redis._replies import Master
from aiolock.stores.redis._scripts import bulk, command
from aiolock.stores.redis._sentinel import Address
from aiolock.stores.redis._session import HEARTBEAT, ignore
from aiolock.stores.redis._store import RedisStore
from aiolock.stores.redis._subscription import Subscription

OPENING: Final = 3.0
"""Seconds to wait for the replicas when a client opens: one may have come just now."""
_ELSEWHERE: Final = "our connections lead to different masters, so a fail-over is under way"
_HISTORY: Final = re.compile(rb"master_replid:(\w+)")


class ReplicatedStore(RedisStore):
    """A `RedisStore` on a master with replicas, through a third connection: see `Barrier`."""

    _barrier: Barrier
    _subscription: _Known

    def __init__(self, pool: ConnectionPool, prefix: str, replicas: Replicas) -> None:
        super().__init__(pool, prefix)
        self._replicas: Replicas = replicas

    async def open(self, client: str, deliver: Deliver) -> None:
        self._barrier = Barrier(self._pool, self._names.barrier(client), self._replicas)
        self.history = ""
        """The history of the master that answers commands now; empty while that is not known."""
        self.losses = 0
        """How often the command connection was lost."""
        self._reading = self._asking = False
        await super().open(client, deliver)

    def _make_subscription(self) -> Subscription:
        return _Known(
            *(self._pool, self._names, self._client, self._deliver_confirmed, self._links),
            again=self._ask_whether_counted,
        )

    async def _check_server(self) -> None:
        """Check that there are as many replicas, and that the user may wait for them."""
        master = await self._ask_who_is_master()
        self.history = master.history
        least = 1 if self._replicas == "all" else self._replicas
        if not master.history:
            raise StoreError(
                f"the server at {Place.of(self._pool, self._prefix).address} has no master_replid"
                " in `INFO replication`, by which a fail-over is noticed: leave replicas out"
            )
        if master.following < least:
            raise StoreError(self._too_few(master.following))
        await self._barrier.open()
        outcome = self._loop.create_future()
        waiting = self._barrier.wait(self.history, OPENING, outcome.set_result)
        try:
            if await outcome is not Outcome.CONFIRMED:
                raise self.unconfirmed(outcome.result(), OPENING)
        finally:
            waiting.cancel()

    def _moved(self, address: Address) -> None:
        super()._moved(address)
        self._barrier.follow(address)

    def _beat(self) -> None:
        super()._beat()
        self._barrier.beat(HEARTBEAT)

    async def _disconnect(self) -> None:
        barrier = self._barrier  # as there: that of this opening
        await super()._disconnect()
        await barrier.aclose()

    def _forget_us(self) -> None:
        super()._forget_us()
        # By this connection: the barrier's own may be blocked until replicas answer.
        arguments = b"".join(map(bulk, (1, self._names.barrier(self._client), 1)))
        self._pipe.call(scripts.BARRIER, 3, arguments).add_done_callback(ignore)

    # Answers that are confirmed before the client gets them

    def acquire(
        self,
        name: str,
        waiter: WaiterId,
        form: Form,
        ttl: int,
        *,
        ticket: int,
        wait: bool,
        max_waiters: int,
    ) -> asyncio.Future[Answer]:
        ask = partial(
            super().acquire,
            *(name, waiter, form, ttl),
            ticket=ticket,
            wait=wait,
            max_waiters=max_waiters,
        )
        ask_again = partial(
            self._ask_again, name, waiter, form, ttl, ticket if wait else -1, max_waiters
        )

        def failed(granted: Granted, error: StoreError) -> None:
            self._deliver(GrantUnconfirmed(name, waiter, form, granted.fence, error))

        return _Confirmed(self, ask, _is_granted, _within(form), failed=failed, ask_again=ask_again)

    def _ask_again(  # noqa: PLR0917  # for `acquire` alone
        self, name: str, waiter: WaiterId, form: Form, ttl: int, place: int, max_waiters: int
    ) -> asyncio.Future[Answer]:
        """Ask for a waiter that was answered before: also without a ticket it is no newcomer.

        The master may have a grant for it. If it gives up before this is sent, its release must be
        sent all the same.
        """
        head = self._heads(name, ttl, form.closes, max_waiters)
        own = bulk(self._text(name, waiter, form)) + bulk(place)
        return self._pipe.call(scripts.ACQUIRE, 10, head + own, must_run=False, expires=True)

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool | None]]:
        ask = partial(super().renew, renewals)
        if not any(renewal.ttl for renewal in renewals):
            return ask()
        # The watchdog watches each deadline, so leases with a short one need not hurry the others.
        within = max(_within(renewal.form) for renewal in renewals)
        return _Confirmed(self, ask, any, within)

    def finish(
        self, name: str, waiter: WaiterId, form: Form, fence: int, remember: int
    ) -> asyncio.Future[int]:
        ask = partial(super().finish, name, waiter, form, fence, remember)
        return _Confirmed(self, ask, _was_there, PATIENCE)

    def resize(self, name: str, declared: int, limit: int, remember: int) -> asyncio.Future[int]:
        ask = partial(super().resize, name, declared, limit, remember)
        return _Confirmed(self, ask, _was_done, PATIENCE)

    def post(
        self, name: str, count: int, *, token: str, declared: int, value: str, remember: int
    ) -> asyncio.Future[int]:
        ask = partial(
            super().post,
            *(name, count),
            token=token,
            declared=declared,
            value=value,
            remember=remember,
        )
        return _Confirmed(self, ask, _was_done, PATIENCE)

    def _deliver_confirmed(self, event: Event) -> None:
        """Deliver an event that was pushed on either connection, a grant once it is confirmed."""
        if isinstance(event, GrantPushed):
            self._granted(event)
        else:
            self._deliver(event)

    def _granted(self, event: GrantPushed) -> None:
        name, waiter, form, fence = event[:4]
        pushed = self._subscription
        history, within = pushed.history if pushed.speaks else self.history, _within(form)
        losses = self.losses

        def concluded(outcome: Outcome) -> None:
            if outcome is Outcome.CONFIRMED:
                self._deliver(event)
            elif outcome is Outcome.ELSEWHERE or losses != self.losses:
                if outcome is Outcome.ELSEWHERE:
                    self.differ()
                self._have_all_ask_again()
            else:
                error = self.unconfirmed(outcome, within)
                self._deliver(GrantUnconfirmed(name, waiter, form, fence, error))

        self._barrier.wait(history, within, concluded)

    def _have_all_ask_again(self) -> None:
        if not self._asking:
            self._asking = True
            self._loop.call_soon(self._all_ask_again)

    def _all_ask_again(self) -> None:
        self._asking = False
        if not self._closing:
            self._deliver(Reconnected())

    # The master of each connection

    def _lost(self, reason: Exception) -> None:
        self.losses += 1
        self.history = ""
        super()._lost(reason)

    def _again(self) -> None:
        """Find out the master of this connection before anything else is answered on it."""
        self._reading = False
        self.differ()

    def _ask_who_is_master(self) -> asyncio.Future[Master]:
        arguments = b"".join(map(bulk, (1, self._names.barrier(self._client), KEPT)))
        return self._pipe.call(scripts.BARRIER, 3, arguments)

    def differ(self) -> None:
        """The connections may have different masters: find out the command connection's."""
        if not self._reading:
            self._reading = True
            told = self._ask_who_is_master()
            told.add_done_callback(partial(self._told_who_is_master, self.losses))

    def _told_who_is_master(self, losses: int, told: asyncio.Future[Master]) -> None:
        failed = told.cancelled() or told.exception() is not None
        if losses != self.losses:
            return  # the answer came by a connection that is gone; it was asked for again
        self._reading = False
        if failed or self._closing:
            return
        history = self.history = told.result().history
        elsewhere = ConnectionError(_ELSEWHERE)
        if self._barrier.history not in ("", history):
            self._barrier.drop(elsewhere)
        if self._subscription.history not in ("", history):
            self._subscription.drop(elsewhere)

    # Errors when replicas are missing

    def _too_few(self, following: int) -> str:
        place = Place.of(self._pool, self._prefix)
        if self._replicas == "all":
            return (
                f'Redis at {place.address} has no replica that follows it, and replicas="all" waits'
                " for all there are: connect one, or leave replicas out"
            )
        return (
            f"{following} of {self._replicas} replicas follow Redis at {place.address}: connect"
            f" the others (see `INFO replication`), or ask for fewer than"
            f" replicas={self._replicas}"
        )

    def unconfirmed(self, outcome: Outcome, within: float) -> StoreError:
        """The error when replicas did not confirm something ``within`` this many seconds."""
        place, barrier = Place.of(self._pool, self._prefix), self._barrier
        if isinstance(barrier.error, Refusal):
            return store_error(barrier.error, place)
        confirmed = barrier.confirmed
        if outcome is Outcome.ELSEWHERE:
            confirmed = 0
            why = _ELSEWHERE
        elif barrier.error is not None:
            why = f"there is no connection on which to wait for them: {barrier.error}"
        else:
            why = "see whether they run and keep up with it (`INFO replication`)"
        error = StoreError(
            f"{confirmed} of {barrier.wanted} replicas confirmed it within {within:.2g} s"
            f" at Redis at {place.address}: {why}"
        )
        error.__cause__ = barrier.error
        return error


def _within(form: Form) -> float:
    """How many seconds to wait for the replicas."""
    return min(form.claim / 3000, PATIENCE)


def _is_granted(answer: Answer) -> bool:
    return isinstance(answer, Granted)


def _without_before(answer: Any) -> Any:
    """The answer without ``before``: with it, the client would hand the lock off by itself.

    The next body would then begin before replicas know of its grant. (See `ReportHandoff`.)
    """
    if isinstance(answer, Queued) and answer.before is not None:
        return answer._replace(before=None)
    return answer


def _was_there(was: int) -> bool:
    return was != WAS_ABSENT


def _was_done(answer: int) -> bool:
    return answer >= 0


class _Confirmed(Prompt):
    """The answer to an operation, resolved once replicas have it, too."""

    _waiting: Waiting | None = None
    _losses = -1
    _until = 0.0
    _limit: asyncio.TimerHandle | None = None
    """Ends the time for an operation that was started again."""

    def __init__(
        self,
        store: ReplicatedStore,
        ask: Callable[[], asyncio.Future[Any]],
        matters: Callable[[Any], object],
        within: float,
        *,
        failed: Callable[[Any, StoreError], None] | None = None,
        ask_again: Callable[[], asyncio.Future[Any]] | None = None,
    ) -> None:
        """``matters``: whether an answer must be confirmed.

        ``ask_again`` is called if the master has changed, or the connection broke, before the
        confirmation, within the time of a command. ``failed`` gets an answer that was not
        confirmed. Without these, that is an error, and the caller asks again.
        """
        self._time = asyncio.get_running_loop().time
        self._began = self._time()
        super().__init__()
        self._store = store
        self._ask_again = ask_again
        self._matters = matters
        self._within = within
        self._failed = failed
        self._start(ask)

    def _start_again(self, ask: Callable[[], asyncio.Future[Any]]) -> None:
        if self._limit is None:
            limit = self._began + COMMAND_TIMEOUT
            self._limit = asyncio.get_running_loop().call_at(limit, self._give_up)
            self.add_done_callback(self._limitless)
        self._start(ask)

    def _limitless(self, _: asyncio.Future[Any]) -> None:
        assert self._limit is not None
        self._limit.cancel()

    def _give_up(self) -> None:
        self._answer.cancel()
        if self._waiting is not None:
            self._waiting.cancel()
        if not self.done():
            self.set_exception(self._store.unconfirmed(Outcome.MISSED, self._within))

    def _start(self, ask: Callable[[], asyncio.Future[Any]]) -> None:
        self._answer = ask()
        self._answer.add_done_callback(self._answered)

    def _answered(self, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled():
            super().cancel()
            return
        error = answer.exception()
        if self.done():
            return
        if error is not None:
            self.set_exception(error)
        elif not self._matters(answer.result()):
            self.resolve(_without_before(answer.result()))
        else:
            now = self._time()
            if self._losses != self._store.losses:  # after a break, the full time again
                self._losses, self._until = self._store.losses, now + self._within
            left = max(0.0, self._until - now)
            barrier, history = self._store._barrier, self._store.history
            self._waiting = barrier.wait(history, left, self._concluded)

    def _concluded(self, outcome: Outcome) -> None:
        if self.done():
            return
        if outcome is Outcome.CONFIRMED:
            self.resolve(self._answer.result())
            return
        lost = self._losses != self._store.losses
        elsewhere = outcome is Outcome.ELSEWHERE
        if elsewhere:
            self._store.differ()
        ask_again = self._ask_again
        if ask_again is not None and (lost or (elsewhere and self._time() < self._until)):
            self._start_again(ask_again)
            return
        error = self._store.unconfirmed(outcome, self._within)
        if self._failed is not None:
            self._failed(self._answer.result(), error)
        if not self.done():
            self.set_exception(error)

    def cancel(self, msg: Any | None = None) -> bool:
        """As of any future; the store may then drop the operation (see `Store`)."""
        self._answer.cancel()
        if self._waiting is not None:
            self._waiting.cancel()
        return super().cancel(msg)


class _Known(Subscription):
    """A subscription that tracks its master."""

    def __init__(
        self,
        pool: ConnectionPool,
        names: Names,
        client: str,
        deliver: Deliver,
        links: LinkState,
        *,
        again: Callable[[], None],
    ) -> None:
        super().__init__(pool, names, client, deliver, links, again=again)
        self._request = command("INFO", "replication") + self._request
        self.history = ""
        """The history of the master whose pushes come here; empty while unknown."""
        self.speaks = False
        """Whether the push that is delivered now came here, not by the command connection."""

    def _down(self, reason: Exception) -> None:
        self.history = ""
        super()._down(reason)

    def _received(self, message: Any) -> None:
        if isinstance(message, bytes):
            found = _HISTORY.search(message)
            self.history = found[1].decode() if found else ""
            return
        self.speaks = True
        try:
            super()._received(message)
        finally:
            self.speaks = False
