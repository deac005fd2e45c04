"""`Election`: one leader among many candidates, which any client can look up.

Leadership is a lock. The leader posts its value at the store under a name of its own. Observers
wait at that name for the next leader, by `Rule.COUNT`; in the queue of the lock, they would have a
turn like candidates. A posted value is only taken for the leader's if the lock is held under the
fence in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from aiolock._engine.lease import Lease, LostEvent
from aiolock._engine.lease_state import ALIVE, LeaseState
from aiolock._engine.policy import Policy, to_ms
from aiolock._futures import retrieve
from aiolock._locks.lock import Lock
from aiolock.backoff import Backoff
from aiolock.copying import CopiedAsItself, Uncopyable
from aiolock.errors import StoreError
from aiolock.options import DEFAULT, Default, Seconds
from aiolock.protocol import Post, Posted, ReadPosted, ReadStatus, Rule, Status

_BOARD: Final = "elected"
"""The kind of the name under which the leader's value is posted."""

_KEPT: Final = 3600.0
"""Seconds for which the store remembers the last leader's value."""
_AGAIN: Final = 1.0
"""A leader posts its value again after a third of its ttl, and after this many seconds at least."""
_PATIENCE: Final = 10.0
"""Seconds for which the store may refuse the first post; as long as for waiters."""
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0
"""Seconds until a refused post is tried again: the first pause, and the longest."""
LONGEST_VALUE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Leader:
    """The leader, as seen by any client; true of a moment that has passed."""

    value: str
    """The value that it campaigned with: its address, for instance."""
    fence: int
    """The fencing token of its term; a later term has a higher one."""
    client: str
    """The id of its client."""
    host: str
    """The machine it runs on; empty if the store has forgotten it."""
    pid: int
    """The id of its process; 0 if the store has forgotten it."""


class Term(Uncopyable, instead=Lease._instead):
    """One term of a leader, for the leader itself; made by `Election.campaign`."""

    __slots__ = ("_lease", "_value")

    def __init__(self, lease: Lease, value: str) -> None:
        self._lease = lease
        self._value = value

    def __repr__(self) -> str:
        return f"<Term {self._value!r} fence={self.fence} {self.state}>"

    @property
    def lease(self) -> Lease:
        """The lease of leadership."""
        return self._lease

    @property
    def value(self) -> str:
        """The value that this leader campaigned with."""
        return self._value

    @property
    def fence(self) -> int:
        """The fencing token of the term: higher than that of any leader before."""
        return self._lease.fence

    @property
    def state(self) -> LeaseState:
        """The state of its lease."""
        return self._lease.state

    @property
    def lost(self) -> LostEvent:
        """An event, set when leadership was lost; never set by resigning."""
        return self._lease.lost

    @property
    def requested(self) -> asyncio.Event:
        """An event, set when a client calls `Election.request_resign`."""
        return self._lease.requested

    async def resign(self) -> bool:
        """Stop leading, while the body continues; as `Lease.release`."""
        return await self._lease.release()


class Election(CopiedAsItself):
    """A description of one election; made by `LockClient.election`. Holds nothing.

    ::

        election = client.election("primary")
        async with election.campaign("10.0.0.7:8000") as term:  # waits until it leads
            await lead()  # cancelled when leadership is lost

        leader = await election.leader()  # anywhere: the leader now
        async for leader in election.observe():  # this leader, then each next one
            ...

    Candidates become leaders in the order in which they came. Leadership is a lease: it is renewed
    and fenced, and when a leader dies, it ends after the ttl. For a moment there may be two bodies
    that lead, while the first has not yet noticed its loss: so check the fence of their writes.
    """

    __slots__ = ("_lock",)

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def __repr__(self) -> str:
        return f"<Election {self.name!r}>"

    @property
    def name(self) -> str:
        """The election's name."""
        return self._lock.name

    @asynccontextmanager
    async def campaign(
        self, value: str = "", *, timeout: Seconds | Default | None = DEFAULT
    ) -> AsyncGenerator[Term, None]:
        """Wait to become the leader, and lead in the body of ``async with``; leaving it resigns.

        ``value`` is shown to the others (`Leader.value`): up to 10,000 characters. Errors,
        cancellation and loss are those of ``async with lock.acquire(timeout=...)``.
        """
        if not isinstance(value, str):
            raise TypeError(f"value must be a str, not {type(value).__name__}")
        if len(value) > LONGEST_VALUE:
            raise ValueError(f"value must have at most {LONGEST_VALUE} characters")
        value.encode()  # UnicodeEncodeError, a ValueError, before the campaign begins
        engine = self._lock._engine
        async with self._lock._acquisition(timeout) as lease:
            loop = asyncio.get_running_loop()
            await self._announce(lease.fence, value, loop.time() + _PATIENCE)
            every = max(_AGAIN, min(self._lock.ttl, _KEPT) / 3)
            timer: asyncio.TimerHandle

            def post() -> None:
                # A posted value may get lost, as in a fail-over that forgets the last writes.
                if lease.state in ALIVE:
                    self._put_up(lease.fence, value).add_done_callback(retrieve)

            def post_again() -> None:
                nonlocal timer
                timer = loop.call_later(every, post_again)
                post()

            timer = loop.call_later(every, post_again)
            engine.waiters.on_reconnect.add(post)
            try:
                yield Term(lease, value)
            finally:
                engine.waiters.on_reconnect.discard(post)
                timer.cancel()

    async def leader(self) -> Leader | None:
        """The present leader, or None; two concurrent round trips. `StoreError` if unknown."""
        leader, _ = await self._look()
        return leader

    async def observe(self) -> AsyncGenerator[Leader, None]:
        """Each leader, from the present one on, as soon as it leads; without end.

        Changes come by push. If leaders follow each other faster than they are looked up, only the
        last one is seen. Errors are those of `leader` and `Lock.acquire`; the iteration ends only
        by an error, or by being closed or cancelled.
        """
        seen = 0
        while True:
            leader, latest = await self._look()
            if latest > seen:
                seen = latest
                if leader is not None:
                    yield leader
            policy = replace(self._board, number=seen + 1)
            (await Lock(self._lock._engine, policy).acquire()).release_nowait()

    async def request_resign(self) -> bool:
        """Ask the leader to resign when it can; True if a leader was notified.

        As `Lock.request_release`: it sets `Term.requested`.
        """
        return await self._lock.request_release()

    async def break_(self, fence: int | None = None) -> bool:
        """End the leader's term, and let the next one lead; True if there was one.

        As `Lock.break_`.
        """
        return await self._lock.break_(fence)

    @property
    def _board(self) -> Policy:
        return replace(
            self._lock._policy,
            kind=_BOARD,
            timeout=None,
            renew=False,
            shared=True,
            rule=Rule.COUNT,
            number=1,
            max_waiters=None,
            max_hold=None,
        )

    async def _announce(self, fence: int, value: str, until: float) -> None:
        """Post the value. A passing refusal must not end the term of a leader that has waited."""
        loop, backoff = asyncio.get_running_loop(), Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            pause = backoff.pause()
            try:
                await self._put_up(fence, value)
            except StoreError as error:
                if not error.refused or loop.time() + pause > until:
                    raise self._lock._policy.with_context(error)  # noqa: B904  # it has that cause
            else:
                return
            await asyncio.sleep(pause)

    def _put_up(self, fence: int, value: str) -> asyncio.Future[int]:
        engine = self._lock._engine
        # An observer finds no leader until the store has this holder, which after a local hand-off
        # takes until the report.
        engine.handoff.report(self._lock._policy.key)
        return engine.submit(
            Post(
                self._board.key,
                fence,
                token="",
                declared=0,
                value=f"{fence} {value}",
                remember=to_ms(_KEPT),
            )
        )

    async def _look(self) -> tuple[Leader | None, int]:
        """The leader or None, and the fence under which a value was last posted."""
        engine, policy = self._lock._engine, self._lock._policy
        engine.check()
        reading = engine.submit(ReadPosted(self._board.key))
        with policy.errors_named():
            status, posted = await asyncio.gather(
                engine.submit(ReadStatus(policy.key, waiters=False)), reading
            )
            leader = _found(status, posted)
            if leader is None and posted.value:
                # The store may have carried out the two in the other order. If a term began in
                # between, its value was read and its holder was not.
                leader = _found(await engine.submit(ReadStatus(policy.key, waiters=False)), posted)
        return leader, posted.count


def _found(status: Status, posted: Posted) -> Leader | None:
    """The holder that has posted this value, as a leader; None if it does not hold any more."""
    fence, _, value = posted.value.partition(" ")
    for holder in status.holders:
        if fence == str(holder.fence):
            return Leader(value, holder.fence, holder.client, holder.host, holder.pid)
    return None
