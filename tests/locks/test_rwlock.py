"""A lock that readers share and a writer has alone."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

import aiolock
from aiolock import LeaseLost, StoreError, WouldDeadlock
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.worlds import World, asking, queued, settled, virtual


class Book:
    """Who reads and writes, and what of it must not be."""

    def __init__(self) -> None:
        self.readers = self.writers = self.most = 0
        self.order: list[str] = []

    async def take_part(self, lock: aiolock.Lock, who: str, seconds: float = 1.0) -> None:
        """Read or write for a while."""
        async with lock:
            self.order.append(who)
            if who.startswith("w"):
                self.writers += 1
            else:
                self.readers += 1
            self.most = max(self.most, self.readers)
            assert self.writers <= 1
            assert not (self.writers and self.readers)
            await asyncio.sleep(seconds)
            if who.startswith("w"):
                self.writers -= 1
            else:
                self.readers -= 1


async def test_readers_share_the_lock_and_a_writer_waits_for_all(world: World) -> None:
    """Readers of all clients are in their bodies together; a writer waits for all of them."""
    async with world.client() as ours, world.client() as theirs:
        one, two = await asking(ours.rwlock("a").read()), await asking(theirs.rwlock("a").read())
        assert (one.name, two.name) == ("a", "a")
        assert two.fence > one.fence
        assert await ours.rwlock("a").write().try_acquire() is None
        status = await theirs.rwlock("a").status()
        assert [holder.shared for holder in status.holders] == [True, True]
        writing = asking(theirs.rwlock("a").write())
        await queued(ours.rwlock("a").write(), 1)
        assert await one.release()
        assert await two.release()
        lease = await writing
        assert lease.fence > two.fence
        assert await ours.rwlock("a").read().try_acquire() is None
        await lease.release()


async def test_rwlock_under_contention_never_mixes_readers_and_writers(world: World) -> None:
    """Whatever is asked for at once, nobody reads while somebody writes, and all get their turn."""
    book = Book()
    async with world.client() as ours, world.client() as theirs, asyncio.TaskGroup() as group:
        for number in range(40):
            lock = (ours, theirs)[number % 2].rwlock("a")
            kind = "w" if number % 5 == 4 else "r"
            part = lock.write() if kind == "w" else lock.read()
            group.create_task(book.take_part(part, f"{kind}{number}", 0.002))
    assert len(book.order) == 40
    assert book.most > 1


@virtual
async def test_rwlock_serves_by_arrival_with_readers_in_a_row_together() -> None:
    """A writer holds back the readers behind it, and readers in a row enter together."""
    server, book = MemoryServer(), Book()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        tasks: list[asyncio.Task[None]] = []
        for number, who in enumerate(("r0", "r1", "w2", "r3", "r4", "w5", "r6")):
            lock = (ours, theirs)[number % 2].rwlock("a")
            part = lock.write() if who.startswith("w") else lock.read()
            tasks.append(asyncio.create_task(book.take_part(part, who)))
            await settled()
        start = asyncio.get_running_loop().time()
        assert book.order == ["r0", "r1"]
        await asyncio.gather(*tasks)
        assert book.order == ["r0", "r1", "w2", "r3", "r4", "w5", "r6"]
        assert book.most == 2
        assert asyncio.get_running_loop().time() - start == pytest.approx(5, abs=0.1)
        assert not server.names()


@virtual
async def test_lock_with_the_name_of_an_rwlock_is_its_write_lock() -> None:
    """A lock of the same name is the write lock."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        async with ours.rwlock("a").read():
            assert await theirs.lock("a").try_acquire(timeout=1) is None
        async with ours.lock("a"):
            assert await theirs.rwlock("a").read().try_acquire(timeout=1) is None


@virtual
async def test_write_while_reading_raises_would_deadlock() -> None:
    """Whoever reads and wants to write hears at once why that cannot be."""
    async with aiolock.connect(MemoryServer()) as client:
        for reentrant in (False, True):
            rates = client.rwlock("a", reentrant=reentrant)
            async with rates.read() as lease:
                with pytest.raises(WouldDeadlock, match=r"not upgraded.*downgrade\(\)"):
                    await rates.write().acquire()
                with pytest.raises(WouldDeadlock, match="not upgraded"):
                    await client.lock("a", reentrant=reentrant).acquire()
                assert lease.state == "held"


@virtual
async def test_reentrant_rwlock_read_within_write_or_read_shares_the_grant() -> None:
    """A task that writes may read, and one that reads may read again, where that is wanted."""
    async with aiolock.connect(MemoryServer()) as client:
        plain = client.rwlock("a")
        async with plain.write():
            with pytest.raises(WouldDeadlock, match="reentrant=True"):
                await plain.read().acquire()
        again = client.rwlock("a", reentrant=True)
        for outer in (again.write(), again.read()):
            async with outer as lease:
                async with again.read() as inner:
                    assert inner.fence == lease.fence
                assert lease.state == "held"
        assert not await plain.write().locked()


# Downgrading


async def test_downgrade_lets_waiting_readers_in_and_keeps_writers_out(world: World) -> None:
    """A writer goes on as a reader: those behind it read beside it, and `status` has no writer."""
    async with world.client() as ours, world.client() as theirs:
        async with ours.rwlock("a").write() as lease:
            reading = asking(theirs.rwlock("a").read())
            await queued(ours.rwlock("a").write(), 1)
            fence = lease.fence
            await lease.downgrade()
            reader = await reading
            assert await lease.verify()
            await lease.extend(20)
            assert (lease.state, lease.fence) == ("held", fence)
            assert reader.fence > fence
            holders = (await theirs.rwlock("a").read().status()).holders
            assert [(each.fence, each.shared) for each in holders] == [
                (fence, True),
                (reader.fence, True),
            ]
            await lease.downgrade()  # it is one already
            writing = asking(theirs.rwlock("a").write())
            await queued(ours.rwlock("a").write(), 1)
            await reader.release()
            assert not writing.done()
        await (await writing).release()
        assert not await ours.rwlock("a").write().locked()


@virtual
async def test_downgrade_of_a_lease_keeps_it_renewed_until_release() -> None:
    """A lease that was downgraded is renewed like any other, and given back once."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        async with ours.rwlock("a", ttl=5).write() as lease:
            await lease.downgrade()
            async with theirs.rwlock("a", ttl=5).read():
                await asyncio.sleep(60)
                assert lease.state == "held"
            assert await theirs.rwlock("a").write().try_acquire() is None
        assert not server.names()


@virtual
async def test_downgrade_of_no_held_write_lease_raises_type_error_or_lease_lost() -> None:
    """Only a write lock's lease is downgraded, and only while it is ours."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        for lock in (ours.lock("a"), ours.rwlock("b").read()):
            async with lock as lease:
                with pytest.raises(TypeError, match=r"RWLock.write\(\)"):
                    await lease.downgrade()
        released = await asking(ours.rwlock("a").write())
        await released.release()
        with pytest.raises(LeaseLost, match="released"):
            await released.downgrade()
        broken = await asking(ours.rwlock("a", on_lost="signal").write())
        await theirs.lock("a").break_()
        with pytest.raises(LeaseLost, match="break_"):
            await broken.downgrade()


@virtual
async def test_downgrade_of_a_grant_unknown_to_the_store_loses_the_lease() -> None:
    """Where the store knows the grant no more, the lease is lost."""
    server = MemoryServer()
    async with aiolock.connect(server) as client:
        lease = await asking(client.rwlock("a").write())
        server._states.clear()
        with pytest.raises(LeaseLost, match="does not know it any more"):
            await lease.downgrade()
        assert lease.state == "lost"


@virtual
@pytest.mark.parametrize("how", ["lose", "refuse"])
async def test_downgrade_without_an_answer_raises_store_error_and_can_be_repeated(how: str) -> None:
    """Nobody knows which of the two it is, and whichever it is, it is renewed and given back."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty, ttl=5) as ours, aiolock.connect(server) as theirs:
        async with ours.rwlock("a").write() as lease:
            getattr(faulty, how)("downgrade")
            with pytest.raises(StoreError):
                await lease.downgrade()
            await asyncio.sleep(30)
            assert lease.state == "held"
            with pytest.raises(WouldDeadlock, match="not upgraded"):
                await ours.rwlock("a").write().acquire()
            reading = await theirs.rwlock("a").read().try_acquire()
            assert (reading is not None) == (how == "lose")
            if reading is not None:
                await reading.release()
            await lease.downgrade()  # now it is answered
            async with theirs.rwlock("a").read():
                await lease.downgrade()
            assert faulty.calls["downgrade"] == 2
        assert not server.names()


@virtual
async def test_downgrade_that_is_cancelled_is_carried_out() -> None:
    """Cancelled, it is carried out all the same; nobody else who awaits it is cancelled too."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        lease = await asking(ours.rwlock("a").write())
        faulty.hold("downgrade")
        first = asyncio.create_task(lease.downgrade())
        second = asyncio.create_task(lease.downgrade())
        await settled()
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        async with theirs.rwlock("a").read():
            faulty.resume()
            await second
        await lease.release()
        assert not server.names()


# Loss


@virtual
async def test_loss_of_one_reader_leaves_the_other_readers_held() -> None:
    """Of readers, one that cannot renew is cancelled; the others are not, and a writer waits on."""
    loop = asyncio.get_running_loop()
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty, ttl=5) as ours, aiolock.connect(server, ttl=5) as theirs:
        told: list[float] = []

        async def read() -> None:
            with pytest.raises(LeaseLost):
                async with ours.rwlock("a").read():
                    await asyncio.sleep(1000)
            told.append(loop.time())

        reading = asyncio.create_task(read())
        await settled()
        async with theirs.rwlock("a").read() as other:
            faulty.refuse("renew", 1000)
            faulty.refuse("release", 1000)
            start = loop.time()
            writing = asking(theirs.rwlock("a").write())
            await asyncio.sleep(30)
            assert other.state == "held"
            assert not writing.done()
        await reading
        assert told[0] - start < 5
        await (await writing).release()
        faulty.resume()


@virtual
async def test_break_of_a_read_lock_loses_all_readers() -> None:
    """Whoever breaks the lock takes it from all who read, and each of them is told."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        leases = [await asking(ours.rwlock("a", on_lost="signal").read()) for _ in range(3)]
        assert await theirs.rwlock("a").read().break_()
        for lease in leases:
            async with asyncio.timeout(1):
                await lease.lost
            assert lease.state == "lost"
        assert not await theirs.rwlock("a").write().locked()
        assert not server.names()


@virtual
async def test_request_release_by_a_writer_reaches_all_readers() -> None:
    """A writer that asks for the lock is heard by all who read, a downgraded one among them."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        was_writing = await asking(ours.rwlock("a").write())
        await was_writing.downgrade()
        leases = [was_writing, *[await asking(ours.rwlock("a").read()) for _ in range(2)]]
        assert await theirs.rwlock("a").write().request_release()
        for lease in leases:
            async with asyncio.timeout(1):
                await lease.requested.wait()
            await lease.release()


@virtual
async def test_lock_delay_of_a_lost_reader_delays_writers_only() -> None:
    """After a reader was lost nobody writes for a while; others read."""
    loop = asyncio.get_running_loop()
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        lease = await asking(ours.rwlock("a", ttl=5, lock_delay=30, on_lost="signal").read())
        faulty.refuse("renew", 1000)
        faulty.refuse("release", 1000)
        start = loop.time()
        await lease.lost
        await asyncio.sleep(1)
        async with theirs.rwlock("a").read():
            pass
        async with theirs.rwlock("a").write():
            assert 35 <= loop.time() - start < 36
        faulty.resume()
