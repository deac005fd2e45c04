"""One leader among many, whom everybody can ask for.

Leadership is a lock. Who leads is put up at the store under a name of its own, where those who
watch wait for the next: in the lock's queue they would stand in the candidates' way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from aiolock._engine.hold import ALIVE, LeaseState
from aiolock._engine.lease import Lease, LostEvent, give_back
from aiolock._engine.policy import Policy, Seconds, to_ms
from aiolock._engine.watchdog import retrieve
from aiolock._locks.lock import DEFAULT, Default, Lock
from aiolock.errors import StoreError
from aiolock.store import Posted, Rule, Status

_BOARD: Final = "elected"
"""The kind under whose keys it is put up who leads."""

_KEPT: Final = 3600.0
"""Seconds for which it is remembered who led last."""
_AGAIN: Final = 1.0
"""The least seconds after which a leader says again that it leads; else a third of its ttl."""
_PATIENCE: Final = 10.0
"""Seconds for which a store may refuse that it is put up; as for those who wait."""
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0
"""Seconds until it is tried again."""
LONGEST_VALUE: Final = 10_000


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, as everybody sees it; true of a moment that has passed."""

    value: str
    """What it campaigned with: its address, for instance."""
    fence: int
    """The fencing token of its term; a later term has a higher one."""
    client: str
    """The id of its client."""
    host: str
    """The machine it runs on; empty where the store has forgotten."""
    pid: int
    """Its process; 0 where the store has forgotten."""


class Term:
    """The time for which somebody leads, as the leader has it; made by `Election.campaign`."""

    __slots__ = ("_lease", "_value")

    def __init__(self, lease: Lease, value: str) -> None:
        self._lease = lease
        self._value = value

    def __repr__(self) -> str:
        return f"<Term {self._value!r} fence={self.fence} {self.state}>"

    @property
    def lease(self) -> Lease:
        """Its leadership, as any lock's lease."""
        return self._lease

    @property
    def value(self) -> str:
        """What it campaigned with."""
        return self._value

    @property
    def fence(self) -> int:
        """The fencing token of the term: higher than that of any leader before."""
        return self._lease.fence

    @property
    def state(self) -> LeaseState:
        """That of its lease."""
        return self._lease.state

    @property
    def lost(self) -> LostEvent:
        """An event, set when leadership was lost; never set by resigning."""
        return self._lease.lost

    @property
    def requested(self) -> asyncio.Event:
        """An event, set when somebody asks the leader to resign, with `Election.request_resign`."""
        return self._lease.requested

    async def resign(self) -> bool:
        """Lead no more, though the body goes on; as `Lease.release`."""
        return await self._lease.release()


class Election:
    """A description of one election; made by `LockClient.election`. Holds nothing.

    ::

        election = client.election("primary")
        async with election.campaign("10.0.0.7:8000") as term:  # waits until it leads
            await lead()  # cancelled when leadership is lost

        leader = await election.leader()  # anywhere: who leads now
        async for leader in election.observe():  # and whoever leads next
            ...

    Candidates become leaders in the order in which they came. Leadership is a lease: renewed,
    fenced, and when a leader dies it ends after the ttl. So for a moment two may believe that they
    lead, one of which has just not noticed: have what they write checked by its fence.
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
        """Wait to be the leader, and be it in the body of ``async with``; leaving it is resigning.

        ``value`` is what the others see of the leader: up to 10,000 characters. Errors,
        cancellation and loss are those of ``async with lock.acquire(timeout=...)``.
        """
        if not isinstance(value, str):
            raise TypeError(f"value must be a str, not {type(value).__name__}")
        if len(value) > LONGEST_VALUE:
            raise ValueError(f"value must have at most {LONGEST_VALUE} characters")
        value.encode()  # UnicodeEncodeError, a ValueError, before anybody leads
        engine = self._lock._engine
        async with self._lock._acquisition(timeout, blocking=True) as lease:
            loop = asyncio.get_running_loop()
            await self._announce(lease.fence, value, loop.time() + _PATIENCE)
            every = max(_AGAIN, min(self._lock.ttl, _KEPT) / 3)
            timer: asyncio.TimerHandle

            def say() -> None:
                # What is put up may get lost, as by a fail-over that forgets the last writes.
                if lease.state in ALIVE:
                    self._put_up(lease.fence, value).add_done_callback(retrieve)

            def say_again() -> None:
                nonlocal timer
                timer = loop.call_later(every, say_again)
                say()

            timer = loop.call_later(every, say_again)
            engine.waiters.on_reconnect.add(say)
            try:
                yield Term(lease, value)
            finally:
                engine.waiters.on_reconnect.discard(say)
                timer.cancel()

    async def leader(self) -> Leader | None:
        """Who leads now, None for nobody; two round trips at once. `StoreError`: nobody knows."""
        leader, _ = await self._look()
        return leader

    async def observe(self) -> AsyncGenerator[Leader, None]:
        """Each leader, from the present one on, as soon as it leads; without end.

        Told by a push. Of leaders that follow each other faster than they are looked at, the last
        one is seen. Errors are those of `leader` and `Lock.acquire`; ends only by one of them, or
        by being closed or cancelled.
        """
        seen = 0
        while True:
            leader, latest = await self._look()
            if latest > seen:
                seen = latest
                if leader is not None:
                    yield leader
            policy = replace(self._board, number=seen + 1)
            give_back(await Lock(self._lock._engine, policy).acquire())

    async def request_resign(self) -> bool:
        """Ask the leader to resign when it can; whether anybody was told.

        As `Lock.request_release`: it sets `Term.requested`.
        """
        return await self._lock.request_release()

    async def break_(self, fence: int | None = None) -> bool:
        """Depose the leader, and let the next one lead; whether there was one. As `Lock.break_`."""
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
        """Put it up. A refusal that passes throws nobody out who has waited to be the leader."""
        loop, pause = asyncio.get_running_loop(), _FIRST_PAUSE
        while True:
            try:
                await self._put_up(fence, value)
            except StoreError as error:
                if not error.refused or loop.time() + pause > until:
                    raise self._lock._policy.told(error)  # noqa: B904  # it has that cause
            else:
                return
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, 2 * pause)

    def _put_up(self, fence: int, value: str) -> asyncio.Future[int]:
        engine = self._lock._engine
        # Who looks finds nobody in office unless the store knows who is.
        engine.runs.report(self._lock._policy.key)
        return engine.store.post(
            self._board.key,
            fence,
            token="",
            declared=0,
            value=f"{fence} {value}",
            keep=to_ms(_KEPT),
        )

    async def _look(self) -> tuple[Leader | None, int]:
        """Who leads, and the fence of whoever was the last to say so."""
        engine, policy = self._lock._engine, self._lock._policy
        engine.check()
        reading = engine.store.read(self._board.key)
        with policy.errors_named():
            status, posted = await asyncio.gather(
                engine.runs.status(policy.key, waiters=False), reading
            )
            leader = _found(status, posted)
            if leader is None and posted.value:
                # The two may have been carried out the other way round, and a leader begun between.
                leader = _found(await engine.runs.status(policy.key, waiters=False), posted)
        return leader, posted.count


def _found(status: Status, posted: Posted) -> Leader | None:
    """The holder that has put up that it leads."""
    fence, _, value = posted.value.partition(" ")
    for holder in status.holders:
        if fence == str(holder.fence):
            return Leader(value, holder.fence, holder.client, holder.host, holder.pid)
    return None
