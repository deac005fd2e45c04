"""Every path of an acquisition, with real clients: an observer has to count each correctly."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

import aiolock
from aiolock import LeaseLost, LimitMismatch, QueueFull
from aiolock.protocol import LinkChanged
from aiolock.stores.memory import MemoryServer
from tests.support.worlds import asking, queued, settled


class Scene:
    """A store with an observed client, "we", and another client without an observer, "they"."""

    def __init__(self, observer: aiolock.Observer) -> None:
        self.observer = observer
        self.server = MemoryServer()
        self.theirs = aiolock.connect(self.server)
        self.ours = self.client()

    def client(self) -> aiolock.LockClient:
        """Another one that is observed."""
        return aiolock.connect(self.server, observer=self.observer)

    async def __aenter__(self) -> Self:
        await self.theirs.open()
        await self.ours.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.ours.aclose()
        await self.theirs.aclose()

    async def hand_over(self) -> None:
        """Three tasks of ours, one after the other, a second each."""

        async def use() -> None:
            async with self.ours.lock("order:1"):
                await asyncio.sleep(1)

        await asyncio.gather(*[use() for _ in range(3)])

    async def give_up(self, why: str) -> None:
        """We do not get it, for this reason."""
        if why == "done":
            for _ in range(2):
                async with self.ours.once("user:1", remember=60):
                    pass
        elif why == "store":
            async with self.theirs.semaphore("pool", 2):
                with contextlib.suppress(LimitMismatch):
                    await self.ours.semaphore("pool", 3).acquire()
        elif why == "deadlock":
            await self._our_deadlock()
        else:
            async with self.theirs.lock("order:2"):
                await self._in_vain(why)

    async def _in_vain(self, why: str) -> None:
        lock = self.ours.lock("order:2")
        if why == "busy":
            assert await lock.try_acquire() is None
        elif why == "timeout":
            assert await lock.try_acquire(timeout=2) is None
        elif why == "full":
            waits = asking(self.theirs.lock("order:2"))
            await queued(lock, 1)
            with contextlib.suppress(QueueFull):
                await self.ours.lock("order:2", max_waiters=1).acquire()
            await _cancelled(waits)
        elif why == "cancelled":
            waits = asking(lock)
            await queued(lock, 1)
            await _cancelled(waits)
        elif why == "closed":
            client = self.client()
            await client.open()
            waits = asking(client.lock("order:2"))
            await queued(lock, 1)
            await client.aclose()
            await asyncio.wait([waits])
            assert isinstance(waits.exception(), aiolock.ClientClosed)
        else:
            raise AssertionError(why)

    async def _our_deadlock(self) -> None:
        """Two of our tasks: one is told, and so the other goes on."""
        a, b = self.ours.lock("order:a"), self.ours.lock("order:b")
        ends = await asyncio.gather(_both(a, b), _both(b, a), return_exceptions=True)
        assert sorted(str(type(end).__name__) for end in ends) == ["NoneType", "WouldDeadlock"]

    async def lose(self, why: str) -> None:
        """We lose a lease, for this reason."""
        if why == "max_hold":
            with contextlib.suppress(LeaseLost):
                async with self.ours.lock("order:3", max_hold=3):
                    await asyncio.sleep(60)
        elif why == "expired":
            with contextlib.suppress(LeaseLost):
                async with self.ours.lock("order:3", ttl=3, renew=False):
                    await asyncio.sleep(60)
        elif why == "closed":
            client = self.client()
            await client.open()
            holding = asyncio.create_task(_hold(client.lock("order:3")))
            await _held(client.lock("order:3"))
            await client.aclose()
            await asyncio.wait([holding])
        else:
            lease = await self.ours.lock("order:3").acquire()
            await asyncio.sleep(3)
            if why != "broken":
                self.server.leave(self.ours.id)  # so that no push reaches us
            assert await self.theirs.lock("order:3").break_()
            if why == "broken":
                await lease.lost
            elif why == "refused":
                assert not await lease.verify()
            else:
                assert why == "known from the answer to the release"
                assert not await lease.release()

    def break_link(self, client: aiolock.LockClient) -> None:
        """The link of this client of ours breaks."""
        self.server._listeners[client.id](LinkChanged(ConnectionResetError("by a test")))

    def mend_link(self, client: aiolock.LockClient) -> None:
        """It is there again."""
        self.server._listeners[client.id](LinkChanged(None))

    async def deadlock(self) -> None:
        """A task of ours and one of theirs wait for each other, until one of them gives up."""
        a, b = "order:a", "order:b"
        ours = asyncio.create_task(_both(self.ours.lock(a), self.ours.lock(b, timeout=20)))
        await _held(self.ours.lock(a))
        await _both(self.theirs.lock(b), self.theirs.lock(a, timeout=30))
        with contextlib.suppress(aiolock.AcquireTimeout):
            await ours

    async def pass_by(self) -> None:
        """We wait for a lock that no client holds."""
        latch = self.ours.latch("ready:1", 1)
        waits = asyncio.create_task(latch.wait())
        await queued(latch, 1)
        await self.theirs.latch("ready:1", 1).count_down()
        await waits

    async def everything(self) -> None:
        """All of this once."""
        await self.hand_over()
        for why in GAVE_UP:
            await self.give_up(why)
        await self.deadlock()
        await self.pass_by()
        self.break_link(self.ours)
        self.mend_link(self.ours)
        for why in LOST:
            await self.lose(why)


GAVE_UP = ("busy", "timeout", "cancelled", "full", "done", "store", "deadlock", "closed")
LOST = ("max_hold", "expired", "closed", "broken", "refused")
"""The last leaves the client deaf."""


async def _both(first: aiolock.Lock, then: aiolock.Lock) -> None:
    async with first:
        await settled()
        with contextlib.suppress(aiolock.AcquireTimeout):
            async with then:
                pass


async def _hold(lock: aiolock.Lock) -> None:
    with contextlib.suppress(LeaseLost):
        async with lock:
            await asyncio.sleep(60)


async def _held(lock: aiolock.Lock) -> None:
    async with asyncio.timeout(10):
        while not await lock.locked():  # noqa: ASYNC110  # it sets no Event
            await asyncio.sleep(0)


async def _cancelled(task: asyncio.Task[aiolock.Lease]) -> None:
    task.cancel()
    await asyncio.wait([task])
