"""FastStream, with a stream of a real Redis: what is put back is pending, and is claimed again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from faststream import FastStream
from faststream.exceptions import NackMessage
from faststream.redis import RedisBroker, StreamSub, TestRedisBroker

import aiolock
from aiolock.integrations.faststream import LeaseMiddleware, Locks, hand
from aiolock.stores.memory import MemoryServer
from tests.support.failures import queued, take, until
from tests.support.servers import RedisServer

PATIENCE = 0.05
IDLE = 100
"""Milliseconds after which a message is claimed that nobody has acknowledged."""


class Worker:
    """An application, and what its handlers do."""

    def __init__(self, server: RedisServer, prefix: str) -> None:
        self.server = server
        self.stream = f"{prefix}-messages"
        self.begun = list[tuple[Any, int]]()
        self.cancelled = 0
        self.go = asyncio.Event()
        client = aiolock.connect(server.url, prefix=prefix)
        self.locks = locks = Locks(client, retry_after=PATIENCE)
        self.broker = RedisBroker(server.url, middlewares=[LeaseMiddleware])
        self.app = FastStream(self.broker, lifespan=locks.lifespan, logger=None)
        new = StreamSub(self.stream, group="workers", consumer="1", polling_interval=10)
        old = StreamSub(
            self.stream, group="workers", consumer="1", polling_interval=10, min_idle_time=IDLE
        )

        @self.broker.subscriber(stream=new)
        @self.broker.subscriber(stream=old)
        @locks.locked("user:{user}", timeout=PATIENCE)
        @locks.once("payment:{order}", remember=60, timeout=PATIENCE)
        async def pay(user: int, order: int) -> str:
            self.begun.append((order, locks.current_lease().fence))
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
            return "paid"

    async def send(self, user: int, order: int) -> None:
        """Send a message."""
        await self.broker.publish({"user": user, "order": order}, stream=self.stream)

    def pending(self) -> int:
        """How many messages are delivered, and not acknowledged."""
        return int(self.server.call("XPENDING", self.stream, "workers")["pending"])


@asynccontextmanager
async def working(worker: Worker) -> AsyncGenerator[None]:
    """It runs."""
    before = asyncio.all_tasks()
    running = asyncio.create_task(worker.app.run())
    try:
        await until(lambda: worker.server.call("EXISTS", worker.stream))  # and with it its group
        yield
    finally:
        worker.app.exit()
        await running
        while (
            left := asyncio.all_tasks() - before - {asyncio.current_task()}
        ):  # redis-py swallows a cancellation, at times
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=0.1)


@pytest.fixture
async def worker(redis_server: RedisServer, prefix: str) -> AsyncGenerator[Worker]:
    """It, running."""
    worker = Worker(redis_server, prefix)
    async with working(worker):
        yield worker


@pytest.fixture
async def others(redis_server: RedisServer, prefix: str) -> AsyncGenerator[aiolock.LockClient]:
    """Somebody else."""
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        yield client


async def test_locked_message_whose_lock_is_held_stays_pending_until_it_is_free(
    worker: Worker, others: aiolock.LockClient
) -> None:
    """A message whose lock is held is not acknowledged, as often as it takes."""
    worker.go.set()
    lease = await take(others.lock("user:7"))
    await worker.send(7, 42)
    for _ in range(2):
        await queued(others.lock("user:7"), 1)
        await queued(others.lock("user:7"), 0)
    assert worker.pending() == 1
    assert not worker.begun
    await lease.release()
    await until(lambda: worker.begun and not worker.pending())
    assert len(worker.begun) == 1


async def test_locked_message_is_put_back_after_retry_after_unless_closed() -> None:
    """Some brokers deliver a message again at once, so a run without a wait has a pause of ours."""
    memory = MemoryServer()
    async with aiolock.connect(memory) as client, aiolock.connect(memory) as others:
        locks = Locks(client, retry_after=0.2)

        @locks.locked("user:{user}", timeout=0)
        async def welcome(user: int) -> None:
            raise AssertionError

        async with others.lock("user:7"):
            began = time.monotonic()
            with pytest.raises(NackMessage):
                await welcome(7)
            assert time.monotonic() - began >= 0.19  # a sleep never ends early
        await client.aclose()
        began = time.monotonic()
        locks.retry_after = 60.0
        with pytest.raises(NackMessage):
            await welcome(7)  # when the program ends, it does not wait
        assert time.monotonic() - began < 30


async def test_once_messages_of_one_key_are_handled_once_and_acknowledged(
    worker: Worker, others: aiolock.LockClient
) -> None:
    """Two messages for the same are one payment, and both are acknowledged."""
    worker.go.set()
    await worker.send(7, 42)
    await worker.send(8, 42)
    await worker.send(7, 43)
    await until(lambda: len(worker.begun) == 2 and not worker.pending())
    assert [order for order, _ in worker.begun] == [42, 43]


async def test_handed_lease_is_adopted_by_the_handler_before_any_waiter(
    worker: Worker, others: aiolock.LockClient
) -> None:
    """By the decorator with that lock; the message is acknowledged, and the waiter is next."""
    message = {"user": 7, "order": 42}
    async with others.lock("user:7") as lease:
        waiting = asyncio.create_task(take(others.lock("user:7")))
        await queued(others.lock("user:7"), 1)
        await hand(lease, worker.broker.publish, message, stream=worker.stream, headers={"a": "b"})
    await until(lambda: worker.begun)
    (holder,) = (await others.lock("user:7").status()).holders
    assert not holder.detached
    assert holder.fence > lease.fence
    assert not waiting.done()
    worker.go.set()
    next_ = await waiting
    assert next_.fence > holder.fence
    await next_.release()
    await until(lambda: not worker.pending())
    assert len(worker.begun) == 1


async def test_handed_message_delivered_again_acquires_its_lock(
    worker: Worker, others: aiolock.LockClient
) -> None:
    """The broker has the message with its token, which is spent by then."""
    message = {"user": 7, "order": 42}
    async with others.lock("user:7") as lease:
        await hand(lease, worker.broker.publish, message, stream=worker.stream)
    await until(lambda: worker.begun)
    assert await others.lock("user:7").break_()
    await until(lambda: len(worker.begun) == 2)
    worker.go.set()
    await until(lambda: not worker.pending())
    assert len(worker.begun) == 2


async def test_adopted_handler_runs_with_a_lease_and_fails_without_one() -> None:
    """In FastStream's own tests, too; and what cannot be published is released."""
    async with aiolock.connect("memory://") as client:
        broker, locks = RedisBroker(middlewares=[LeaseMiddleware]), Locks(client)
        packed = list[tuple[str, int]]()

        @broker.subscriber(stream="orders")
        @locks.adopted()
        async def pack(order: int) -> None:
            packed.append((locks.current_lease().name, order))

        async with TestRedisBroker(broker, connect_only=False):
            async with client.lock("order:42") as lease:
                await hand(lease, broker.publish, 42, stream="orders")
            assert packed == [("order:42", 42)]
            assert not await client.lock("order:42").locked()
            with pytest.raises(aiolock.NotHeld):
                await broker.publish(42, stream="orders")
            async with client.lock("order:42", timeout=10) as lease:
                with pytest.raises(TypeError):
                    await hand(lease, broker.publish, 42, stream="orders", nothing=1)
            async with client.lock("order:42", timeout=10):
                pass


async def test_locked_message_whose_handler_loses_its_lock_is_delivered_again(
    worker: Worker, others: aiolock.LockClient
) -> None:
    """A handler whose lock is lost is cancelled, and its message is delivered again."""
    await worker.send(7, 42)
    await until(lambda: worker.begun)
    assert await others.lock("user:7").break_()
    await until(lambda: len(worker.begun) == 2)
    await until(lambda: worker.cancelled)
    worker.go.set()
    await until(lambda: not worker.pending())
    assert len(worker.begun) == 2
    assert worker.cancelled == 1
