"""The tasks in procrastinate."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from procrastinate import App as Jobs
from procrastinate import PsycopgConnector

import aiolock
from aiolock.integrations.procrastinate import Locks, hand
from tests.support.taskapps.tasks import PATIENCE, SOON, App, Failed, Tasks


class Procrastinate(App):
    """An application of procrastinate."""

    keeps_results = False

    def __init__(self, tasks: Tasks, jobs: Jobs) -> None:
        self.locks = locks = Locks(tasks.client, retry_after=SOON)
        self.jobs = jobs
        self.parameters = {"welcome": "user", "pay": "order", "call": "number", "pack": "order"}

        @jobs.task(name="welcome", retry=locks.retry())
        @locks.locked("user:{user}", timeout=PATIENCE)
        async def welcome(user: int) -> str:
            return await tasks.run(locks, f"welcome {user}")

        @jobs.task(name="pay", retry=locks.retry())
        @locks.once("payment:{order}", remember=60, timeout=PATIENCE)
        async def pay(order: int) -> str:
            return await tasks.run(locks, f"pay {order}")

        @jobs.task(name="call", retry=locks.retry())
        @locks.limited("partner api", 2, timeout=PATIENCE)
        async def call(number: int) -> str:
            return await tasks.run(locks, f"call {number}")

        @jobs.task(name="pack", retry=locks.retry())
        @locks.adopted()
        async def pack(order: int) -> str:
            return await tasks.run(locks, f"pack {order}")

    async def send(self, task: str, value: int) -> int:
        """As asked."""
        arguments: Any = {self.parameters[task]: value}
        return await self.jobs.configure_task(task).defer_async(**arguments)

    async def hand(self, lease: aiolock.Lease, task: str, value: int) -> int:
        """As asked."""
        arguments: Any = {self.parameters[task]: value}
        return await hand(lease, self.jobs.configure_task(task), **arguments)

    async def done(self, sent: int) -> None:
        """As asked."""
        async with asyncio.timeout(30):
            status = ""
            while status not in {"succeeded", "failed", "aborted"}:
                await asyncio.sleep(0.02)
                status = str(await self.jobs.job_manager.get_job_status_async(sent)).lower()
                status = status.rpartition(".")[2]
        if status != "succeeded":
            raise Failed(status)

    @asynccontextmanager
    async def working(self) -> AsyncGenerator[None]:
        """One worker."""
        running = asyncio.create_task(
            self.jobs.run_worker_async(
                concurrency=20, install_signal_handlers=False, fetch_job_polling_interval=0.02
            )
        )
        try:
            yield
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await self.locks.client.aclose()


@asynccontextmanager
async def application(tasks: Tasks, url: str, prefix: str) -> AsyncGenerator[Procrastinate]:
    """It, in a schema of its own of this database."""
    schema = prefix.replace("-", "_")
    connector = PsycopgConnector(
        conninfo=url, kwargs={"options": f"-c search_path={schema}"}, min_size=1, max_size=5
    )
    jobs = Jobs(connector=connector)
    async with jobs.open_async():
        await connector.execute_query_async(f"CREATE SCHEMA {schema}")
        await jobs.schema_manager.apply_schema_async()
        try:
            yield Procrastinate(tasks, jobs)
        finally:
            await connector.execute_query_async(f"DROP SCHEMA {schema} CASCADE")
