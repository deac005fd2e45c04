"""The tasks in taskiq."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from taskiq import AsyncTaskiqTask
from taskiq.kicker import AsyncKicker
from taskiq.receiver import Receiver
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

import aiolock
from aiolock.integrations.taskiq import Locks, hand
from tests.support.taskapps.tasks import PATIENCE, App, Failed, Tasks


class Taskiq(App):
    """An application of taskiq, whose broker knows no delay."""

    def __init__(self, tasks: Tasks, url: str, queue: str) -> None:
        self.tasks = tasks
        self.url = url
        self.queue = queue
        self.sending = self.broker()

    def broker(self) -> RedisStreamBroker:
        """One for each process."""
        results = RedisAsyncResultBackend[Any](self.url, prefix_str=self.queue)
        return RedisStreamBroker(
            self.url,
            queue_name=self.queue,
            consumer_group_name="workers",
            consumer_id="0",
            xread_block=50,
            # A worker that ends may have taken a message that it never reads. Others wait for the
            # end of such a worker for ten minutes, if not told otherwise.
            idle_timeout=10_000,
        ).with_result_backend(results)

    async def send(self, task: str, value: int) -> AsyncTaskiqTask[Any]:
        """As asked."""
        return await AsyncKicker[..., Any](task, self.sending, {}).kiq(value)

    async def hand(self, lease: aiolock.Lease, task: str, value: int) -> AsyncTaskiqTask[Any]:
        """As asked."""
        return await hand(lease, AsyncKicker[..., Any](task, self.sending, {}), value)

    async def done(self, sent: AsyncTaskiqTask[Any]) -> Any:
        """As asked."""
        result = await sent.wait_result(check_interval=0.01, timeout=30)
        if result.is_err:
            raise Failed(result.error)
        return result.return_value

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[None]:
        """One worker, as `taskiq worker` runs it."""
        tasks, locks = self.tasks, Locks(self.tasks.client)
        broker = self.broker().with_middlewares(locks)

        @broker.task("welcome")
        @locks.locked("user:{user}", timeout=PATIENCE)
        async def welcome(user: int) -> str:
            return await tasks.run(locks, f"welcome {user}")

        @broker.task("pay")
        @locks.once("payment:{order}", remember=60, timeout=PATIENCE)
        async def pay(order: int) -> str:
            return await tasks.run(locks, f"pay {order}")

        @broker.task("call")
        @locks.limited("partner api", 2, timeout=PATIENCE)
        async def call(number: int) -> str:
            return await tasks.run(locks, f"call {number}")

        @broker.task("pack")
        @locks.adopted()
        async def pack(order: int) -> str:
            return await tasks.run(locks, f"pack {order}")

        broker.is_worker_process = True
        finish = asyncio.Event()
        with ThreadPoolExecutor(1) as executor:
            receiver = Receiver(broker, executor=executor, max_async_tasks=20)
            listening = asyncio.create_task(receiver.listen(finish))
            try:
                yield
            finally:
                finish.set()
                await listening
                await broker.shutdown()


@asynccontextmanager
async def application(tasks: Tasks, url: str, prefix: str) -> AsyncGenerator[Taskiq]:
    """It, on this server."""
    app = Taskiq(tasks, url, prefix)
    await app.sending.startup()
    try:
        yield app
    finally:
        await app.sending.shutdown()
