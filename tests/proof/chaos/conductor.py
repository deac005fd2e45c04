"""Starts a target and the workers, and injects faults by the plan."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from tests.proof.chaos.choices import PLACES
from tests.proof.chaos.faults import PROCESS, Fault, hit, plan
from tests.proof.chaos.history import History
from tests.proof.chaos.targets import Door, Silent, target
from tests.support.procs import Worker

READY_WITHIN: Final = 20.0
QUIET_WITHIN: Final = 40.0
"""Seconds in which every attempt comes to its end once nothing is broken any more."""
FINAL_WITHIN: Final = 30.0
CLOSE_WITHIN: Final = 15.0
_STANDING: Final = 0.2
"""Seconds between two records of the holders and waiters at the server."""
_SLOW: Final = 0.1
"""Seconds in which the server, and this process with its proxies, must have run."""


class Slot:
    """A slot for a worker process, with a proxy of its own; a killed worker is replaced."""

    def __init__(self, conductor: Conductor, name: str, door: Door) -> None:
        self._conductor = conductor
        self.name = name
        self.door = door
        self._generation = -1
        self._workers: list[Worker] = []

    async def start(self) -> None:
        """Start a process, without waiting until it is ready."""
        self._generation += 1
        conductor = self._conductor
        self.who = f"{self.name}.{self._generation}"
        worker = Worker(
            *("-W", "error", "-m", "tests.proof.chaos.worker", self.name, str(self._generation)),
            *(conductor.seed, conductor.store, self.door.url),
            *(str(conductor.folder), str(conductor.tasks)),
        )
        self._workers.append(worker)
        await conductor.stack.enter_async_context(worker)
        self.worker = worker  # its links may be broken already; those of the old one are gone

    @property
    def entries(self) -> int:
        """How many bodies were entered, as far as the workers have reported."""
        return sum(
            max((said["entries"] for said in worker.history if said["event"] == "pulse"), default=0)
            for worker in self._workers
        )

    async def kill(self) -> None:
        """Kill the process, and return when it is dead and the server has noticed, if it does."""
        is_known = self.door.visitor(self.worker.pid)
        since = time.monotonic_ns()
        self.worker.kill()
        await self.worker.wait()
        self._conductor.history.note("killed", who=self.who, since=since)
        with contextlib.suppress(TimeoutError, Silent):  # no server notices if all are broken
            async with asyncio.timeout(1.0):  # behind a link that is deaf it never may
                while await is_known():  # noqa: ASYNC110  # the server sends no event
                    await asyncio.sleep(0.005)
                self._conductor.history.note("gone", who=self.who)

    async def does(self, what: str, within: float) -> bool:
        """Tell the process to do something, and wait for its answer; returns whether it came."""
        try:
            if what != "ready":
                await self.worker.send({"do": what})
            if what == "close":
                code = await self.worker.wait(within=within)
                self._conductor.history.note("exited", who=self.who, code=code)
            else:
                await self.worker.expect(what, within=within)
        except (TimeoutError, OSError, EOFError) as error:
            text = f"{what} within {within:g} s: {type(error).__name__}"
            self._conductor.history.note("stuck", who=self.who, what=text)
            return False
        return True


async def _end(tasks: set[asyncio.Task[None]]) -> None:
    while tasks:  # more than once: a cancellation may get lost in the driver
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=1)


class Conductor:
    """One run."""

    def __init__(
        self,
        folder: Path,
        *,
        store: str,
        seconds: float,
        seed: str,
        workers: int,
        tasks: int,
        faults: Sequence[Fault] | None = None,
    ) -> None:
        """Of the seed's faults, or of these."""
        self.store = store
        self._target = target(store)
        self.folder = folder
        self.seed = seed
        self.tasks = tasks
        self._seconds = seconds
        self._given = faults
        self._slot_names = [str(number) for number in range(workers)]

    async def run(self, progress: Callable[[str], object]) -> None:
        """Carry out the run; its history is in the folder afterwards."""
        self.history = History(self.folder, "conductor")
        async with AsyncExitStack() as self.stack:
            await self._target.start(self.stack, self.history)
            # The first process works while the others still start.
            watching = {asyncio.create_task(self._pulse())}
            try:
                ready = await self._start()
                if ready:
                    await self._conduct(progress, watching)
            finally:
                await _end(watching)
            if ready:
                await self._look_over()
        self.history.close()

    async def _start(self) -> bool:
        """Start the processes; returns whether all are ready."""
        self._slots: dict[str, Slot] = {}
        for name in self._slot_names:
            self._slots[name] = Slot(self, name, await self._target.door(self.stack))
            await self._slots[name].start()
        self.history.note(
            *("began",),
            store=self.store,
            seed=self.seed,
            seconds=self._seconds,
            names=tuple(PLACES),
        )
        return await self._all_do("ready", READY_WITHIN)

    async def _all_do(self, what: str, within: float) -> bool:
        return all(
            await asyncio.gather(*(slot.does(what, within) for slot in self._slots.values()))
        )

    async def _conduct(
        self, progress: Callable[[str], object], watching: set[asyncio.Task[None]]
    ) -> None:
        self._began = time.monotonic()
        self._faults = 0
        for watch in (self._look(), self._stand(), self._tell(progress)):
            watching.add(asyncio.create_task(watch))
        if self._given is None:
            planned = plan(self.seed, self._seconds, self._slot_names, self._target.attack)
            lanes = list(planned.values())
        else:
            lanes = [[fault] for fault in self._given]
        async with asyncio.TaskGroup() as group:
            for lane in lanes:
                group.create_task(self._follow(lane))
            group.create_task(self._until(self._seconds))
        self.history.note("quiet")
        progress(f"{self._seconds:4.0f} s  nothing is broken any more")
        await self._target.settled()
        for what, within in (
            ("quiet", QUIET_WITHIN),
            ("final", FINAL_WITHIN),
            ("close", CLOSE_WITHIN),
        ):
            await self._all_do(what, within)

    async def _until(self, at: float) -> None:
        await asyncio.sleep(self._began + at - time.monotonic())

    async def _tell(self, progress: Callable[[str], object]) -> None:
        while True:
            await asyncio.sleep(5.0)
            seconds = time.monotonic() - self._began
            entries = sum(slot.entries for slot in self._slots.values())
            progress(f"{seconds:4.0f} s  {entries:,} entries, {self._faults} faults")

    async def _pulse(self) -> None:
        """Record when the server, or this process with its proxies, has not run."""
        last = time.monotonic_ns()
        while True:
            await asyncio.sleep(0.02)
            with contextlib.suppress(Silent):
                await self._target.ping()
            now = time.monotonic_ns()
            if now - last > _SLOW * 1e9:
                self.history.note("fault", kind="slow", target="all", since=last)
            last = now

    async def _look(self) -> None:
        """Look now and then for a key without an expiry."""
        while True:
            with contextlib.suppress(Silent):
                for key, ttl, _, _ in await self._target.kept():
                    if ttl == -1:
                        self.history.note("key", key=key, ttl=-1, holders=(), waiters=())
            await asyncio.sleep(1.0)

    async def _stand(self) -> None:
        """Record, again and again, the holders and the waiters at the server."""
        while True:
            since = time.monotonic_ns()
            with contextlib.suppress(Silent):
                standing = await self._target.standing()
                self.history.note("standing", since=since, **standing._asdict())
            await asyncio.sleep(_STANDING)

    async def _look_over(self) -> None:
        """Record what is left at the server once all clients are gone."""
        for kept in await self._target.kept():
            self.history.note("key", **kept._asdict())

    # Faults

    async def _follow(self, lane: list[Fault]) -> None:
        for fault in lane:
            await self._until(fault.at)
            self._faults += 1
            since = time.monotonic_ns()
            if fault.kind in PROCESS:
                await self._break_process(fault, self._slots[fault.target])
            elif fault.target in self._slots:
                slot = self._slots[fault.target]
                await slot.door.strike(fault, slot.worker.pid)
            else:
                await self._target.strike(fault)
            servers = hit(fault, self._target.attack.servers)
            self.history.note(
                *("fault",), kind=fault.kind, target=fault.target, since=since, servers=servers
            )

    async def _break_process(self, fault: Fault, slot: Slot) -> None:
        if slot.worker._ended.is_set():
            code = await slot.worker.wait()
            self.history.note("exited", who=slot.who, code=code)
            await slot.start()
        elif fault.kind == "stop":
            slot.worker.stop()
            await asyncio.sleep(fault.seconds)
            slot.worker.cont()
        else:
            await slot.kill()
            await asyncio.sleep(fault.seconds)
            await slot.start()
