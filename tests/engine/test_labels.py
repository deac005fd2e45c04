"""What holders and waiters call themselves, and tasks of several clients in each other's way."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import aiolock
from aiolock import AcquireTimeout, ClientClosed, Deadlock, Observer
from aiolock._engine.diagnostics import deadlock_search, slow_monitor
from aiolock._engine.diagnostics.labels import KEPT, REFRESHED
from aiolock.protocol import Participant, Post, Reconnected
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.worlds import World, asking, queued, virtual


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes a second takes a tenth."""
    monkeypatch.setattr(slow_monitor, "_EVERY", 0.1)
    monkeypatch.setattr(slow_monitor, "_LABELLED", 0.3)
    monkeypatch.setattr(deadlock_search, "_SURE", 0.05)


@pytest.fixture
async def client(world: World, quick: None) -> AsyncIterator[aiolock.LockClient]:
    """An open client: "we"."""
    async with world.client(label="billing") as client:
        yield client


async def once(what: Callable[[], Awaitable[bool]]) -> None:
    """Return when it is so, which is to say in a second or two."""
    give_up = time.monotonic() + 30
    while not await what():
        assert time.monotonic() < give_up, "it never came"
        await asyncio.sleep(0.05)


def ask(
    lock: aiolock.Lock, *, name: str | None = None, label: str | None = None
) -> asyncio.Task[aiolock.Lease]:
    """Another task that wants it, of that name."""

    async def acquire() -> aiolock.Lease:
        return await lock.acquire(label=label)

    return asyncio.create_task(acquire(), name=name)


def labelled(lock: aiolock.Lock, parties: int) -> Callable[[], Awaitable[bool]]:
    """Whether so many of its holders and waiters have a label."""

    async def look() -> bool:
        status = await lock.status()
        return sum(bool(each.label) for each in (*status.holders, *status.waiters)) == parties

    return look


def names(parties: tuple[Participant, ...]) -> list[str]:
    """What they call themselves."""
    return [party.label for party in parties]


async def test_labels_of_holders_and_waiters_are_shown_in_every_status(
    client: aiolock.LockClient, other: aiolock.LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are shown wherever a holder or waiter is, on every store, and tell tasks apart."""
    ours, theirs = client.lock("order:42"), other.lock("order:42")
    lease = await ours.acquire(label="job 17")
    named = ask(ours, name="request 8")
    await queued(ours, 1)
    given = ask(theirs, label="nightly")
    await queued(ours, 2)
    await once(labelled(theirs, 3))
    (seen,) = await other.snapshot("order:*")
    for status in (seen, await ours.status(), await other.status("order:42")):
        assert names(status.holders) == ["billing: job 17"]
        assert names(status.waiters) == ["billing: request 8", "nightly"]
    assert "billing: request 8" in str(seen)
    monkeypatch.setattr(
        "aiolock._engine.not_acquired._WHAT_CALLED", 10
    )  # however busy the store is
    monkeypatch.setattr("aiolock._engine.not_acquired._WHO_HOLDS", 10)
    with pytest.raises(AcquireTimeout, match=r"'billing: job 17' in process [0-9]+ of .* has held"):
        async with theirs.acquire(timeout=1):
            pass
    await lease.release()
    await (await named).release()
    await (await given).release()


async def test_label_of_a_waiter_stays_when_it_becomes_holder(client: aiolock.LockClient) -> None:
    """Who had a label while it waited has it while it holds."""
    lock = client.lock("x")
    lease = await lock.acquire(label="first")
    waits = ask(lock, label="second")
    await once(labelled(lock, 2))
    await lease.release()
    second = await waits
    assert names((await lock.status()).holders) == ["billing: second"]
    await second.release()


async def test_labels_of_semaphore_holders_are_shown_in_status(client: aiolock.LockClient) -> None:
    """Permits have labels, too."""
    semaphore = client.semaphore("api", 2)
    async with semaphore.acquire(label="a"), semaphore.acquire(label="b"):

        async def both() -> bool:
            return all(names((await semaphore.status()).holders))

        await once(both)
        status = await semaphore.status()
        assert sorted(names(status.holders)) == ["billing: a", "billing: b"]
        tasks = {holder.task for holder in status.holders}
        assert len(tasks) == 1
        assert 0 not in tasks


@pytest.mark.parametrize("label", ["", "x" * 101, "two\nlines", 17])
async def test_label_or_family_that_is_invalid_is_refused(label: str) -> None:
    """It is refused before anything is sent."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        with pytest.raises((ValueError, TypeError), match="label must"):
            await client.lock("x").acquire(label=label)
    assert faulty.calls == {"open": 1}
    with pytest.raises((ValueError, TypeError), match="label must"):
        aiolock.connect("memory://", label=label)
    with pytest.raises((ValueError, TypeError), match="family must"):
        client.lock("x", family=label)


@pytest.mark.parametrize("name", ["y" * 300, "\x1b[2Jevil\ntwo \ud800"])
async def test_label_from_any_task_name_is_printable_and_cut(
    client: aiolock.LockClient, name: str
) -> None:
    """Nobody checks the name of a task: it is a label all the same, and what it is not is cut."""
    lock = client.lock("x")
    async with lock:
        waits = ask(lock, name=name)
        await once(labelled(lock, 2))
        (label,) = names((await lock.status()).waiters)
        assert label.isprintable()
        assert label in (f"billing: {'y' * 99}…", r"billing: \x1b[2Jevil\ntwo \ud800")
    await (await waits).release()


# When they are put up: on a store that counts what it is asked for


class Counted:
    """A client in the memory of a test, and what it has put up."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.store = FaultyStore(MemoryStore(self.server))
        self.client = aiolock.connect(self.store)

    @property
    def posts(self) -> int:
        return self.store.calls["post"]


@virtual
async def test_label_of_a_lease_under_a_second_is_not_published() -> None:
    """Nothing is put up of what lasts for less than a second, however much there is of it."""
    counted = Counted()
    async with counted.client as client:
        for _ in range(100):
            async with client.lock("x"):
                await asyncio.sleep(0.05)
        await asyncio.sleep(5)
        assert counted.posts == 0


@virtual
async def test_label_of_a_long_lease_is_published_once_and_refreshed() -> None:
    """Once, and again before the store forgets it; not at all when it is over."""
    counted = Counted()
    async with counted.client as client:
        lock = client.lock("x", ttl=3600)
        async with lock.acquire(label="long"):
            await asyncio.sleep(10)
            assert counted.posts == 1
            await asyncio.sleep(10 * KEPT)
            assert names((await lock.status()).holders) == ["long"]
            assert counted.posts <= 2 + 10 * KEPT / REFRESHED
        before = counted.posts
        await asyncio.sleep(2 * KEPT)
        assert counted.posts == before


@virtual
async def test_labels_of_a_thousand_leases_are_published_in_pages() -> None:
    """Many that last are a few pages, and one more is one page."""
    counted = Counted()
    async with counted.client as client:
        leases = [await client.lock(f"x{number}").acquire() for number in range(1000)]
        await asyncio.sleep(3)
        assert counted.posts == 4
        found = await client.snapshot()
        assert len(found) == 1000
        assert all(names(status.holders) != [""] for status in found)
        leases.append(await client.lock("one more").acquire())
        await asyncio.sleep(3)
        assert counted.posts == 5
        for lease in leases:
            await lease.release()
        await asyncio.sleep(2 * KEPT)
        assert counted.posts == 5


@virtual
async def test_label_refused_by_the_store_is_published_again_later() -> None:
    """It is put up again, not at once."""
    counted = Counted()
    async with counted.client as client:
        counted.store.refuse("post", times=2)
        async with client.lock("x", ttl=3600).acquire(label="long"):
            await asyncio.sleep(3)
            assert names((await client.status("x")).holders) == [""]
            await asyncio.sleep(60)
            assert names((await client.status("x")).holders) == ["long"]
            assert counted.posts <= 5


@virtual
async def test_labels_after_a_reconnection_are_published_again() -> None:
    """After a break of the link everything is put up again."""
    counted = Counted()
    async with counted.client as client, client.lock("x", ttl=3600).acquire(label="long"):
        await asyncio.sleep(10)
        counted.server._states.pop(f"client:{client.id}:0")
        assert names((await client.status("x")).holders) == [""]
        client._engine.waiters.deliver(Reconnected())
        await asyncio.sleep(3)
        assert names((await client.status("x")).holders) == ["long"]


@pytest.mark.parametrize("value", ["{", "[]", '{"1": 5}', '{"x": [1, true, "y"]}', '{"1": []}'])
@virtual
async def test_labels_that_cannot_be_read_are_shown_as_empty(value: str) -> None:
    """It is passed over where it cannot be read: a status is not worth less without."""
    counted = Counted()
    async with counted.client as client, client.lock("x"):
        counted.server.run(
            Post(f"client:{client.id}:0", 99, token="", declared=0, value=value, remember=60_000)
        )
        assert names((await client.status("x")).holders) == [""]


@virtual
async def test_labels_with_fields_of_a_later_version_are_read() -> None:
    """What a later version says beside is passed over."""
    counted = Counted()
    async with counted.client as client, client.lock("x"):
        value = json.dumps({"1": [7, True, "label", {"more": 1}]})
        counted.server.run(
            Post(f"client:{client.id}:0", 99, token="", declared=0, value=value, remember=60_000)
        )
        (holder,) = (await client.status("x")).holders
        assert (holder.label, holder.task) == ("label", 7)


@virtual
async def test_label_of_a_foreign_client_is_escaped_and_cut() -> None:
    """Not every client is ours: its labels are cut, and written out, as any."""
    counted = Counted()
    async with counted.client as client, client.lock("x"):
        value = json.dumps({"1": [7, True, "\x1b[2J" + "y" * 10_000]})
        counted.server.run(
            Post(f"client:{client.id}:0", 99, token="", declared=0, value=value, remember=60_000)
        )
        (holder,) = (await client.status("x")).holders
        assert holder.label.startswith(r"\x1b[2Jyyy")
        assert len(holder.label) == 202


async def test_status_while_labels_cannot_be_read_shows_empty_labels(world: World) -> None:
    """A status without labels is a status."""
    store = FaultyStore(world.store())
    async with aiolock.connect(store) as client, client.lock("x"):
        store.refuse("read", times=9)
        status = await client.status("x")
        assert names(status.holders) == [""]


# Deadlocks


@virtual
async def test_status_of_an_acquire_run_as_its_own_task_shows_no_task() -> None:
    """Of who waits by way of another task nobody says that it stands still."""
    server = MemoryServer()
    async with aiolock.connect(server) as client, aiolock.connect(server) as other:
        async with other.lock("x", ttl=600):
            another = asyncio.create_task(client.lock("x").acquire())
            itself = ask(client.lock("x"))
            await asyncio.sleep(5)
            known = [(waiter.label, waiter.task) for waiter in (await other.status("x")).waiters]
            assert [bool(task) for _, task in known] == [False, True]
            assert all(label for label, _ in known)
        await (await another).release()
        await (await itself).release()


class Told(Observer):
    """Remembers the deadlocks that it was told of."""

    def __init__(self) -> None:
        self.deadlocks = list[Deadlock]()

    def deadlock(self, deadlock: Deadlock) -> None:
        self.deadlocks.append(deadlock)


async def both_ways(
    ours: aiolock.LockClient, theirs: aiolock.LockClient
) -> list[asyncio.Task[None]]:
    """Two tasks, one of each client, that take two locks in opposite orders."""
    have = asyncio.Barrier(2)

    async def take(client: aiolock.LockClient, first: str, second: str) -> None:
        async with client.lock(first):
            await have.wait()
            async with client.lock(second):
                pass

    return [
        asyncio.create_task(take(ours, "A", "B"), name="ours"),
        asyncio.create_task(take(theirs, "B", "A"), name="theirs"),
    ]


async def test_deadlocks_of_two_clients_are_found_until_one_gives_up(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """Whoever asks is told who waits for whom; once one gives up there is none."""
    tasks = await both_ways(client, other)
    async with other.lock("elsewhere"):
        waits = asking(client.lock("elsewhere"))
        found = list[Deadlock]()

        async def there_is_one() -> bool:
            found[:] = await other.deadlocks()
            return bool(found)

        await once(there_is_one)
        (deadlock,) = found
        assert {(each.name, each.waiter.label, each.behind.label) for each in deadlock.cycle} == {
            ("B", "billing: ours", "theirs"),
            ("A", "theirs", "billing: ours"),
        }
        waits.cancel()
        await asyncio.wait([waits])
    tasks[0].cancel()
    await asyncio.wait(tasks)
    assert await other.deadlocks() == []


async def test_observer_of_a_client_in_a_deadlock_is_told_once(world: World, quick: None) -> None:
    """Once, without anybody asking, after so long; whoever waits for nothing of it is not told."""
    told, elsewhere = Told(), Told()
    async with (
        world.client(observer=told, deadlock_after=0) as ours,
        world.client(observer=told, deadlock_after=0) as theirs,
        world.client(observer=elsewhere, deadlock_after=0) as others,
        others.lock("elsewhere"),
    ):
        tasks = await both_ways(ours, theirs)

        async def is_told() -> bool:
            return len(told.deadlocks) >= 2

        await once(is_told)
        await asyncio.sleep(0.5)  # some looks more: nobody is told twice
        assert len(told.deadlocks) == 2
        assert {len(each.cycle) for each in told.deadlocks} == {2}
        assert not elsewhere.deadlocks
        tasks[0].cancel()
        await asyncio.wait(tasks)


@virtual
async def test_deadlock_search_of_a_waiter_that_holds_nothing_takes_no_snapshot() -> None:
    """Waiting long costs no question where nobody can wait for who waits."""
    counted = Counted()
    async with counted.client as client, aiolock.connect(counted.server) as other:
        async with other.lock("x", ttl=3600):
            waits = asking(client.lock("x"))
            await asyncio.sleep(120)
            assert counted.store.calls["snapshot"] == 0
        await (await waits).release()


@pytest.mark.parametrize(("deadlock_after", "expected"), [(10.0, 1), (None, 0)])
@virtual
async def test_deadlock_search_of_a_waiter_that_holds_takes_one_snapshot(
    deadlock_after: float | None, expected: int
) -> None:
    """One snapshot for each that waits long and holds something; with None there is none."""
    counted = Counted()
    client = aiolock.connect(counted.store, deadlock_after=deadlock_after)
    async with client, aiolock.connect(counted.server) as other:
        async with other.lock("x", ttl=3600), client.lock("y", ttl=3600):
            waits = ask(client.lock("x"))

            async def holds_and_waits() -> None:
                async with client.lock("z", ttl=3600), client.lock("x").acquire(timeout=300):
                    pass

            both = asyncio.create_task(holds_and_waits())
            await asyncio.sleep(120)
            assert counted.store.calls["snapshot"] == expected
        await (await waits).release()
        await both


@virtual
async def test_deadlock_search_after_refused_snapshots_asks_again() -> None:
    """A deadlock is told though the store could not be asked when it was due."""
    counted, told = Counted(), Told()
    client = aiolock.connect(counted.store, observer=told, deadlock_after=10)
    async with client, aiolock.connect(counted.server) as other:
        counted.store.refuse("snapshot", times=2)
        tasks = await both_ways(client, other)
        await asyncio.sleep(60)
        assert len(told.deadlocks) == 1
        assert counted.store.calls["snapshot"] == 3
        tasks[0].cancel()
        await asyncio.wait(tasks)


@virtual
async def test_deadlocks_seen_in_only_one_snapshot_are_not_reported() -> None:
    """What was true at different moments is no deadlock."""
    counted = Counted()
    async with counted.client as client, aiolock.connect(counted.server) as other:
        tasks = await both_ways(client, other)
        await asyncio.sleep(5)
        asked = asyncio.create_task(other.deadlocks())
        await asyncio.sleep(0.2)  # it has been suspected
        tasks[0].cancel()
        assert await asked == []
        await asyncio.wait(tasks)


@virtual
async def test_deadlock_search_ends_when_the_client_is_closed() -> None:
    """A client that is closed while it looks for a deadlock leaves nothing behind."""
    counted = Counted()
    client = aiolock.connect(counted.store, observer=Told(), deadlock_after=1)
    async with aiolock.connect(counted.server) as other:
        await client.open()
        tasks = await both_ways(client, other)
        counted.store.hold("snapshot")
        await asyncio.sleep(5)
        assert counted.store.calls["snapshot"] == 1
        counted.store.resume()
        await client.aclose()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in ended if each] == [ClientClosed]
