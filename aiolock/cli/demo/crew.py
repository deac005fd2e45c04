"""The worker processes, as the demo sees them: started, given orders, listened to, killed."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from time import monotonic_ns
from typing import Final

from aiolock.cli.demo.customers import Visit
from aiolock.cli.demo.failure import DemoError
from aiolock.cli.demo.worker import Order, Setup, Stop

_PATIENCE: Final = 5.0
"""Seconds for a worker to leave when it is told that all is done."""


class Worker:
    """One worker process."""

    def __init__(self, number: int, process: asyncio.subprocess.Process) -> None:
        self.number = number
        self.process = process
        self.client = ""
        self.at_once = 0
        self.dismissed = self.killed = False
        self.idle = asyncio.Event()
        """Set when it has carried out its order, or is gone."""
        self.reported = asyncio.Event()

    def tell(self, **message: object) -> None:
        """Send it a message; it may be gone already."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def order(self, order: Order) -> None:
        """Let it serve customers."""
        self.idle.clear()
        self.at_once = order.at_once
        self.tell(**asdict(order))

    async def report(self) -> None:
        """Have it report the visits that it has not reported yet."""
        self.tell(report=True)
        await self.reported.wait()

    def go_on(self) -> None:
        """Let the buyer that has stopped go on."""
        self.tell(go_on=True)

    async def kill(self) -> int:
        """SIGKILL, and wait until it is dead; returns when it was sent (``time.monotonic_ns``)."""
        at = monotonic_ns()
        if not self.killed and self.process.returncode is None:
            # Once only: asyncio complains about a second one to a process that is dead already.
            self.killed = self.dismissed = True
            self.process.kill()
        await self.process.wait()
        return at

    async def dismiss(self) -> None:
        """Let it leave by itself; it has nothing left to do."""
        self.dismissed = True
        assert self.process.stdin is not None
        self.process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self.process.wait()


class Crew:
    """All the workers, and what they have reported."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.visits: list[Visit] = []
        self.stopped: asyncio.Queue[tuple[Worker, Stop]] = asyncio.Queue()

    async def start(self, setup: Setup) -> Worker:
        """Start one more worker."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "aiolock.cli.demo.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 24,  # the longest line
            start_new_session=True,  # Ctrl-C is for us: we end the workers
        )
        worker = Worker(setup.worker, process)
        self.workers.append(worker)
        worker.tell(**asdict(setup))
        return worker

    async def all_idle(self) -> None:
        """Wait until every worker has carried out its order."""
        for worker in self.workers:
            await worker.idle.wait()

    async def next_stop(self) -> tuple[Worker, Stop] | None:
        """The next one that stops with the lock in hand; None if all are done before that."""
        stop = asyncio.ensure_future(self.stopped.get())
        idle = asyncio.ensure_future(self.all_idle())
        try:
            await asyncio.wait({stop, idle}, return_when=asyncio.FIRST_COMPLETED)
            return stop.result() if stop.done() else None
        finally:
            stop.cancel()
            idle.cancel()

    async def listen(self, worker: Worker) -> None:
        """Take in what a worker reports, until its end."""
        assert worker.process.stdout is not None
        async for line in worker.process.stdout:
            if not line.endswith(b"\n"):
                break  # it was killed in the middle of a report
            message = json.loads(line)
            match message.pop("event"):
                case "served":
                    self.visits.extend(Visit(*visit) for visit in message["visits"])
                case "stopped":
                    self.stopped.put_nowait((worker, Stop(**message)))
                case "failed":
                    raise DemoError(f"worker {worker.number}: {message['why']}")
                case "reported":
                    worker.reported.set()
                case "ready":
                    worker.client = message["client"]
                    worker.idle.set()
                case _:
                    worker.idle.set()
        code = await worker.process.wait()
        if not worker.dismissed:
            raise DemoError(f"worker {worker.number} has ended (exit code {code})")
        worker.idle.set()


@asynccontextmanager
async def crew(setups: list[Setup]) -> AsyncGenerator[Crew, None]:
    """So many workers, ready to begin; none is left running, however this ends."""
    team = Crew()
    async with asyncio.TaskGroup() as listeners:
        try:
            for setup in setups:
                listeners.create_task(team.listen(await team.start(setup)))
            await team.all_idle()
            yield team
            await asyncio.gather(*(worker.dismiss() for worker in team.workers))
        finally:
            for worker in team.workers:
                await worker.kill()
