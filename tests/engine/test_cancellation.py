"""Cancel at every step of the event loop, in every way there is: nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

import aiolock
from aiolock import Lock, LockClient
from aiolock.stores.memory import MemoryServer
from tests.support.cancel import KINDS, Kind, Scenario, cancel_everywhere
from tests.support.databases import MariaDBServer, PostgresServer
from tests.support.servers import RedisServer
from tests.support.worlds import Seen, queued

NAME = "cancelled at every step"


class Stand:
    """Two clients of one store, and a look at what is left in it."""

    def __init__(
        self, ours: LockClient, other: LockClient, left: Callable[[], Awaitable[list[str]]]
    ) -> None:
        self.ours = ours
        self.other = other
        self.left = left
        self.lock = ours.lock(NAME, ttl=60)
        self.others_lock = other.lock(NAME, ttl=60)
        self._later: set[asyncio.Task[Any]] = set()

    def later(self, what: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin it in a task of its own, which `settle` waits for."""
        task = asyncio.create_task(what)
        self._later.add(task)
        return task

    async def settle(self) -> None:
        await asyncio.gather(*self._later, return_exceptions=True)
        self._later.clear()

    async def check_nothing_is_left(self) -> None:
        # A later command of the same client is answered after all that it sent before.
        await self.lock.status()
        await self.others_lock.status()
        status = await self.lock.status()
        assert (status.holders, status.waiters) == ((), ())
        assert await self.left() == []
        for client in (self.ours, self.other):
            engine = client._engine
            assert not engine.waiters.acquisitions
            assert not engine.waiters._queues
            assert not len(engine.watchdog.releases)
            assert not engine.watchdog.holds
            assert not engine.watchdog.owned
            assert not engine.entered


@pytest.fixture(params=["memory", "redis"])
async def stand(
    request: pytest.FixtureRequest, redis_server: RedisServer, prefix: str
) -> AsyncIterator[Stand]:
    """A stand on each store."""
    if request.param == "memory":
        server = MemoryServer()

        async def names() -> list[str]:
            return server.names()

        async with aiolock.connect(server) as ours, aiolock.connect(server) as other:
            yield Stand(ours, other, names)
        return
    driver = redis.asyncio.Redis.from_url(redis_server.url)

    async def keys() -> list[str]:
        found: list[Any] = await driver.keys(f"{prefix}:{{lock:{NAME}}}:*")
        return [key.decode() for key in found if not key.endswith(b":fence")]

    try:
        async with (
            aiolock.connect(driver, prefix=prefix) as ours,
            aiolock.connect(driver, prefix=prefix) as other,
        ):
            yield Stand(ours, other, keys)
    finally:
        await driver.aclose()


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
async def database_stand(
    request: pytest.FixtureRequest, prefix: str, tmp_path: Path
) -> AsyncIterator[Stand]:
    """A stand on each database, in which one step more or less depends on when an answer comes."""
    key = f"{prefix}\0lock:{NAME}".encode()
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/locks.db"

        def rows() -> list[Any]:
            with contextlib.closing(sqlite3.connect(tmp_path / "locks.db")) as database:
                return database.execute("SELECT * FROM names WHERE name = ?", (key,)).fetchall()

    elif request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        url = postgres.url("app")

        def rows() -> list[Any]:
            return postgres.execute(
                "SELECT client FROM aiolock.grants WHERE name = %s"
                " UNION ALL SELECT client FROM aiolock.waiters WHERE name = %s",
                *(key, key),
            )

    else:
        mariadb: MariaDBServer = request.getfixturevalue("mariadb_server")
        url = mariadb.url("app")

        def rows() -> list[Any]:
            return mariadb.execute(
                "SELECT state FROM aiolock_names WHERE id = %s AND state <> ''", key
            )

    async def left() -> list[str]:
        return [str(row) for row in rows()]

    async with (
        aiolock.connect(url, prefix=prefix) as ours,
        aiolock.connect(url, prefix=prefix) as other,
    ):
        yield Stand(ours, other, left)


KIND_IDS = [kind.name for kind in KINDS]


async def _everywhere(
    stand: Stand,
    kind: Kind,
    scenario: Scenario,
    after: Callable[[], Awaitable[object]] | None = None,
    *,
    least: int,
) -> None:
    """Run the scenario, cancelled at each step, and look each time at what is left.

    Where it has fewer steps than ``least``, once more: on a busy machine an answer and a push may
    come in one turn.
    """
    ran = 0
    for _ in range(5):
        ran = max(ran, await _once_everywhere(stand, kind, scenario, after))
        if ran >= least:
            return
    raise AssertionError(f"it was cancelled at {ran} steps, and has {least}")


async def _once_everywhere(
    stand: Stand,
    kind: Kind,
    scenario: Scenario,
    after: Callable[[], Awaitable[object]] | None,
) -> int:
    """At how many steps it was cancelled."""
    ran = 0
    async for _ in cancel_everywhere(scenario, [kind]):
        if after is not None:
            await after()
        await stand.check_nothing_is_left()
        ran += 1
    if after is not None:
        await after()
    await stand.check_nothing_is_left()
    return ran


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_cancel_at_any_step_of_acquire_and_release_leaves_nothing(
    stand: Stand, kind: Kind
) -> None:
    """A free lock that is taken, held over an await, and released."""
    await _everywhere(stand, kind, partial(_hold, stand), least=3)


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_cancel_at_any_step_of_acquire_in_a_database_leaves_nothing(
    database_stand: Stand, kind: Kind
) -> None:
    """The same, where each command is a transaction, in a thread or on a connection of its own."""
    await _everywhere(database_stand, kind, partial(_hold, database_stand), least=3)


async def _hold(stand: Stand) -> None:
    async with stand.lock:
        await asyncio.sleep(0)


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_cancel_at_any_step_of_verify_and_extend_leaves_nothing(
    stand: Stand, kind: Kind
) -> None:
    """The same by `acquire` and `release`, which the caller guards with try and finally."""

    async def scenario() -> None:
        lease = await stand.lock.acquire(timeout=30)
        try:
            await lease.verify()
            await lease.extend(50)
        finally:
            await lease.release()

    await _everywhere(stand, kind, scenario, least=4)


@pytest.mark.parametrize("how", ["entered", "awaited", "tried", "entered, busy", "tried, busy"])
@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_cancel_at_any_step_of_a_path_lock_leaves_none_of_its_nodes(
    stand: Stand, kind: Kind, how: str
) -> None:
    """Free, or after a wait for a node in its middle: of no step is it left with some of them."""
    path, how_taken = stand.ours.path_lock(f"{NAME}/a/b", ttl=60), how.removesuffix(", busy")
    middle = stand.other.path_lock(f"{NAME}/a", ttl=60)

    async def hold_the_middle(held: asyncio.Event) -> None:
        async with middle:
            held.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.1):  # or it was cancelled before it waited
                    await queued(middle, 1)

    async def scenario() -> None:
        if how != how_taken:
            _ = stand.later(hold_the_middle(held := asyncio.Event()))
            await held.wait()
        if how_taken == "entered":
            async with path:
                await asyncio.sleep(0)
        else:
            taking = path.acquire(timeout=30) if how == "awaited" else path.try_acquire(timeout=30)
            lease = await taking
            assert lease is not None
            await lease.release()

    async def nodes_are_free() -> None:
        await stand.settle()
        await stand.lock.status()  # answered after all that was sent before
        for node in path.nodes:
            assert not await stand.other.path_lock(node).locked()
        assert not stand.ours._engine.entered

    await _everywhere(stand, kind, scenario, nodes_are_free, least=2)


@pytest.mark.parametrize("how", ["entered", "awaited", "tried"])
@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_cancel_at_any_step_of_a_multilock_leaves_none_of_its_locks(
    stand: Stand, kind: Kind, how: str
) -> None:
    """Several locks as one: of no step is it left with some of them."""
    both = stand.ours.multilock(f"{NAME}, the second", NAME, ttl=60)

    async def scenario() -> None:
        if how == "entered":
            async with both:
                await asyncio.sleep(0)
        else:
            waiting = both.acquire(timeout=30) if how == "awaited" else both.try_acquire(timeout=30)
            lease = await waiting
            assert lease is not None
            await lease.release()

    async def second_is_free() -> None:
        await stand.lock.status()  # answered after all that was sent before
        assert not await stand.other.lock(f"{NAME}, the second").locked()
        assert not stand.ours._engine.entered

    await _everywhere(stand, kind, scenario, second_is_free, least=3)


@pytest.mark.parametrize("timeout", [0, 30])
@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_cancel_at_any_step_of_try_acquire_leaves_nothing(
    stand: Stand, kind: Kind, timeout: float
) -> None:
    """A try that does not wait, or would for so long, on a lock that is free."""

    async def scenario() -> None:
        lease = await stand.lock.try_acquire(timeout=timeout)
        assert lease is not None
        await lease.release()

    await _everywhere(stand, kind, scenario, least=2)


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_cancel_at_any_step_of_waiting_leaves_nothing(stand: Stand, kind: Kind) -> None:
    """A waiter that is queued, then granted by another client's release, then releases.

    Among the steps is the one at which the grant is made, or on its way, or just arrived.
    """
    await _everywhere(stand, kind, partial(_wait, stand), stand.settle, least=4)


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_cancel_at_any_step_of_waiting_in_a_database_leaves_nothing(
    database_stand: Stand, kind: Kind
) -> None:
    """The same; here the grant is written down first, and then the waiter is told of it."""
    stand = database_stand
    await _everywhere(stand, kind, partial(_wait, stand), stand.settle, least=4)


async def _wait(stand: Stand) -> None:
    await _let_in(stand, partial(_hold, stand), stand.others_lock, stand.lock)


async def _let_in(
    stand: Stand, scenario: Scenario, held: aiolock.Lock, wanted: Seen, *, waiting: int = 1
) -> None:
    """Run what waits for a lock that another client holds, and gives back when so many wait."""
    lease = await held.acquire()
    assert lease is not None

    async def give_back() -> None:
        await queued(wanted, waiting)
        await lease.release()

    giving = asyncio.create_task(give_back())
    try:
        await scenario()
    finally:
        giving.cancel()
        _ = stand.later(lease.release())


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_cancel_at_any_step_of_a_waiting_reader_leaves_nothing(
    stand: Stand, kind: Kind
) -> None:
    """A reader that waits, is let in together with another one, and leaves."""
    rates, theirs = stand.ours.rwlock(NAME, ttl=60), stand.other.rwlock(NAME, ttl=60)
    together = list[int]()

    async def beside(left: asyncio.Event) -> None:
        async with theirs.read():
            await left.wait()

    async def read() -> None:
        left = asyncio.Event()
        _ = stand.later(beside(left))
        try:
            async with rates.read():
                together.append(len((await rates.status()).holders))
        finally:
            left.set()

    async def scenario() -> None:
        await _let_in(stand, read, theirs.write(), rates, waiting=2)

    await _everywhere(stand, kind, scenario, stand.settle, least=4)
    assert set(together) == {2}


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_cancel_at_any_step_of_a_downgrade_leaves_nothing(stand: Stand, kind: Kind) -> None:
    """A writer that becomes a reader: of no step is it left as either."""
    rates = stand.ours.rwlock(NAME, ttl=60)

    async def scenario() -> None:
        async with rates.write() as lease:
            await lease.downgrade()
            await asyncio.sleep(0)

    await _everywhere(stand, kind, scenario, least=4)


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_cancel_at_any_step_of_handing_on_leaves_nothing(stand: Stand, kind: Kind) -> None:
    """Detached, passed on, adopted, released: whoever gives up, the lock is free in the end."""

    async def scenario() -> None:
        async with stand.lock as lease, lease.handing_on(ttl=3600) as token:
            await asyncio.sleep(0)
            async with stand.other.adopt(token):
                await asyncio.sleep(0)

    await _everywhere(stand, kind, scenario, least=4)


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_cancel_at_any_step_of_semaphore_acquire_leaves_all_permits_free(
    stand: Stand, kind: Kind
) -> None:
    """Some permits that are free, and then some that are waited for."""
    ours, others = (c.semaphore(NAME, 3, ttl=60) for c in (stand.ours, stand.other))

    async def take() -> None:
        async with ours.acquire(2):
            await asyncio.sleep(0)

    async def scenario() -> None:
        await take()
        held = Lock(stand.other._engine, replace(others._one._policy, number=2))
        await _let_in(stand, take, held, ours)

    async def all_are_free() -> None:
        await stand.settle()
        await ours.status()
        status = await others.status()
        assert (status.holders, status.waiters) == ((), ())
        async with others.acquire(3):  # also by their count
            pass

    await _everywhere(stand, kind, scenario, all_are_free, least=6)


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_cancel_at_any_step_of_latch_wait_leaves_nothing(stand: Stand, kind: Kind) -> None:
    """Who waits for a latch that is opened meanwhile; each time another one."""
    names = list[str]()

    async def scenario() -> None:
        names.append(name := f"{NAME} {len(names)}")
        theirs = stand.other.latch(name, 1)

        async def open_it() -> None:
            await queued(theirs, 1)
            await theirs.count_down()

        opening = stand.later(open_it())
        try:
            await stand.ours.latch(name, 1).wait()
        finally:
            opening.cancel()

    async def nobody_waits() -> None:
        await stand.settle()
        await stand.ours.latch(names[-1], 1).status()  # answered after all that was sent before
        status = await stand.other.latch(names[-1], 1).status()
        assert (status.holders, status.waiters) == ((), ())

    await _everywhere(stand, kind, scenario, nobody_waits, least=1)


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_cancel_at_any_step_of_barrier_wait_leaves_no_party(stand: Stand, kind: Kind) -> None:
    """Who meets another at a barrier: cancelled, it is not there any more, or both went on."""

    async def scenario() -> None:
        theirs = stand.later(stand.other.barrier(NAME, 2).wait())
        try:
            await stand.ours.barrier(NAME, 2).wait()
        finally:
            theirs.cancel()

    async def nobody_is_there() -> None:
        await stand.settle()
        await stand.ours.barrier(NAME, 2).status()
        status = await stand.other.barrier(NAME, 2).status()
        assert (status.holders, status.waiters) == ((), ())

    await _everywhere(stand, kind, scenario, nobody_is_there, least=1)


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_cancel_at_any_step_of_a_campaign_leaves_no_leader(stand: Stand, kind: Kind) -> None:
    """A candidate that leads, says so, is seen, and resigns."""
    election = stand.ours.election(NAME, ttl=60)

    async def scenario() -> None:
        async with election.campaign("me"), aclosing(election.observe()) as observed:
            await anext(observed)

    async def nobody_leads() -> None:
        await stand.lock.status()
        assert await stand.other.election(NAME).leader() is None
        board = Lock(stand.other._engine, stand.other.election(NAME)._board)
        status = await board.status()
        assert (status.holders, status.waiters) == ((), ())

    await _everywhere(stand, kind, scenario, nobody_leads, least=4)
