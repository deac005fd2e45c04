"""The tasks in SAQ."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from saq import Job, Status, Worker
from saq.queue.redis import RedisQueue
from saq.types import Context

import aiolock
from aiolock.integrations.saq import Locks, hand
from tests.support.taskapps.tasks import PATIENCE, App, Failed, Tasks


class Leaving(Worker[Context]):
    """A worker that takes no more jobs before it ends.

    SAQ ends one by cancelling whoever waits for a job as well. redis-py may swallow that, and then
    it takes the very job that the worker has just put back, and carries it out.
    """

    _leaves = False
    _active = 0

    async def process(self) -> bool:
        """One job, if there is one."""
        if self._leaves:
            await asyncio.get_running_loop().create_future()  # until it is cancelled
        self._active += 1
        try:
            return await super().process()
        finally:
            self._active -= 1

    async def leave(self) -> None:
        """End as SAQ does, once nobody waits for a job any more."""
        self._leaves = True
        async with asyncio.timeout(60):
            while self._active > len(self.job_task_contexts):  # noqa: ASYNC110  # SAQ tells nobody
                await asyncio.sleep(0.01)
        self.event.set()


class Saq(App):
    """An application of SAQ."""

    interrupts = True

    def __init__(self, tasks: Tasks, queue: RedisQueue) -> None:
        # At once: SAQ looks once a second at what is to come later.
        self.locks = locks = Locks(tasks.client, retry_after=0)
        self.queue = queue

        @locks.locked("user:{user}", timeout=PATIENCE)
        async def welcome(ctx: Context, *, user: int) -> str:
            return await tasks.run(locks, f"welcome {user}")

        @locks.locked("user:{user}", timeout=None)
        async def patient(ctx: Context, *, user: int) -> str:
            return await tasks.run(locks, f"patient {user}")

        @locks.once("payment:{order}", remember=60, timeout=PATIENCE)
        async def pay(ctx: Context, *, order: int) -> str:
            return await tasks.run(locks, f"pay {order}")

        @locks.limited("partner api", 2, timeout=PATIENCE)
        async def call(ctx: Context, *, number: int) -> str:
            return await tasks.run(locks, f"call {number}")

        @locks.adopted()
        async def pack(ctx: Context, *, order: int) -> str:
            return await tasks.run(locks, f"pack {order}")

        self.functions: list[tuple[str, Callable[..., Any]]] = [
            ("welcome", welcome),
            ("patient", patient),
            ("pay", pay),
            ("call", call),
            ("pack", pack),
        ]
        self.parameters = {
            "welcome": "user",
            "patient": "user",
            "pay": "order",
            "call": "number",
            "pack": "order",
        }

    async def send(self, task: str, value: int) -> Job:
        """As asked."""
        job = await self.queue.enqueue(task, **{self.parameters[task]: value})
        assert job is not None
        return job

    async def hand(self, lease: aiolock.Lease, task: str, value: int) -> Job:
        """As asked."""
        arguments: Any = {self.parameters[task]: value}
        job = await hand(lease, self.queue, task, **arguments)
        assert job is not None
        return job

    async def done(self, sent: Job) -> Any:
        """As asked."""
        async with asyncio.timeout(60):
            while not sent.completed:
                await asyncio.sleep(0.01)
                await sent.refresh()
        if sent.status is not Status.COMPLETE:
            raise Failed(sent.error)
        return sent.result

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[None]:
        """One worker."""
        worker = Leaving(
            self.queue,
            self.functions,
            startup=self.locks.startup,
            shutdown=self.locks.shutdown,
            dequeue_timeout=0.1,
        )
        worker.SIGNALS = []  # they are pytest's
        running = asyncio.create_task(worker.start())
        try:
            yield
        finally:
            upkeep = [task for task in worker.tasks if task.get_name() != "process"]
            await worker.leave()
            async with asyncio.timeout(30):
                while not running.done():  # redis-py swallows a cancellation, now and then
                    for task in upkeep:
                        task.cancel()
                    await asyncio.wait([running], timeout=0.1)


@asynccontextmanager
async def application(tasks: Tasks, url: str, prefix: str) -> AsyncGenerator[Saq]:
    """It, on this server."""
    queue = RedisQueue.from_url(url, name=prefix)
    assert isinstance(queue, RedisQueue)
    await queue.connect()
    # Nothing is swept: SAQ may do so with a job that has been taken from the queue just then.
    await queue.redis.set(queue._sweep, 1, ex=600)
    try:
        yield Saq(tasks, queue)
    finally:
        await queue.disconnect()
