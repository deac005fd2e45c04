"""The tasks in arq."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from arq import ArqRedis, Worker, create_pool, func
from arq.connections import RedisSettings
from arq.jobs import Job

import aiolock
from aiolock.integrations.arq import Locks, hand
from tests.support.taskapps.tasks import PATIENCE, SOON, App, Failed, Tasks


class Arq(App):
    """An application of arq."""

    interrupts = True

    def __init__(self, tasks: Tasks, redis: RedisSettings, pool: ArqRedis, queue: str) -> None:
        self.locks = locks = Locks(tasks.client, retry_after=SOON)
        self.redis = redis
        self.pool = pool
        self.queue = queue
        self.workers = list[Worker]()

        @locks.locked("user:{user}", timeout=PATIENCE)
        async def welcome(ctx: dict[Any, Any], user: int) -> str:
            return await tasks.run(locks, f"welcome {user}")

        @locks.locked("user:{user}", timeout=None)
        async def patient(ctx: dict[Any, Any], user: int) -> str:
            return await tasks.run(locks, f"patient {user}")

        @locks.once("payment:{order}", remember=60, timeout=PATIENCE)
        async def pay(ctx: dict[Any, Any], order: int) -> str:
            return await tasks.run(locks, f"pay {order}")

        @locks.limited("partner api", 2, timeout=PATIENCE)
        async def call(ctx: dict[Any, Any], number: int) -> str:
            return await tasks.run(locks, f"call {number}")

        @locks.adopted()
        async def pack(ctx: dict[Any, Any], order: int) -> str:
            return await tasks.run(locks, f"pack {order}")

        self.functions = [
            func(welcome, name="welcome", max_tries=1),
            func(patient, name="patient", max_tries=1),
            func(pay, name="pay", max_tries=1),
            func(call, name="call", max_tries=1),
            func(pack, name="pack", max_tries=1),
        ]

    async def send(self, task: str, value: int) -> Job:
        """As asked."""
        job = await self.pool.enqueue_job(task, value)
        assert job is not None
        return job

    async def hand(self, lease: aiolock.Lease, task: str, value: int) -> Job:
        """As asked."""
        job = await hand(lease, self.pool, task, value)
        assert job is not None
        return job

    async def done(self, sent: Job) -> Any:
        """As asked."""
        try:
            return await sent.result(timeout=30, poll_delay=0.01)
        except Exception as error:
            raise Failed from error

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[None]:
        """One worker."""
        worker = Worker(
            self.functions,
            queue_name=self.queue,
            redis_settings=self.redis,
            on_startup=self.locks.startup,
            on_shutdown=self.locks.shutdown,
            handle_signals=False,
            poll_delay=0.01,
        )
        self.workers.append(worker)
        running = asyncio.create_task(worker.async_run())
        try:
            yield
        finally:
            worker.handle_sig(signal.SIGTERM)  # as `Worker.run` does it
            told = set(worker.tasks.values())
            async with asyncio.timeout(30):
                while not running.done():  # redis-py swallows a cancellation, now and then
                    assert worker.main_task is not None
                    worker.main_task.cancel()
                    await asyncio.wait([running], timeout=0.1)
            for task in set(worker.tasks.values()) - told:
                task.cancel()  # begun since, for the signal's cancellation was swallowed as well
            worker._handle_signals = True  # it has had one: close() would send another
            try:
                await worker.close()
            except asyncio.CancelledError:  # one of its tasks was: the rest of it is left to do
                worker.tasks.clear()
                await worker.close()


@asynccontextmanager
async def application(tasks: Tasks, url: str, prefix: str) -> AsyncGenerator[Arq]:
    """It, on this server."""
    redis = RedisSettings.from_dsn(url)
    pool = await create_pool(redis, default_queue_name=prefix)
    try:
        yield Arq(tasks, redis, pool, prefix)
    finally:
        await pool.aclose(close_connection_pool=True)
