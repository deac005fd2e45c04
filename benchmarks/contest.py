"""The conductor: runs every contestant in every round of every scenario, and keeps the results."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.catalogue import FLOOR, Contestant
from benchmarks.crew import PeerFailed, Worker, workers
from benchmarks.redis_server import RedisServer
from benchmarks.rounds import NothingMeasured, in_turn
from benchmarks.scenarios import Outcome, Scenario, Size, floors

LONGEST = 180.0
"""Seconds for one round of one scenario with one contestant, all waiting included."""


@dataclass
class Record:
    """The results of one contestant's rounds."""

    figures: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    samples: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    failures: dict[str, str] = field(default_factory=dict[str, str])
    """For each scenario that it failed, the reason."""

    def add(self, outcome: Outcome) -> None:
        """Add the figures of one more round."""
        for name, figure in outcome.figures.items():
            self.figures.setdefault(name, []).append(figure)
        for name, values in outcome.samples.items():
            self.samples.setdefault(name, []).extend(values)


class Team:
    """A contestant's processes, as many as any scenario needs, and its record."""

    def __init__(self, contestant: Contestant, python: Path, size: Size) -> None:
        self.contestant = contestant
        self.record = Record()
        self._python = python
        self._size = size
        self._stack = contextlib.AsyncExitStack()
        self._crew: list[Worker] = []

    async def start(self) -> None:
        """Start the processes."""
        # Nobody waits in another process for what cannot wait.
        count = self._size.processes[0] if self.contestant.waits else 1
        self._crew = await self._stack.enter_async_context(self._workers(count))

    def _workers(self, count: int) -> AbstractAsyncContextManager[list[Worker]]:
        return workers(self.contestant, self._python, count, patience=self._size.patience)

    @property
    def pids(self) -> list[int]:
        """Its processes."""
        return [worker.pid for worker in self._crew]

    async def stop(self) -> None:
        """End them."""
        await self._stack.aclose()

    async def play(self, server: RedisServer, scenario: Scenario) -> None:
        """One round. A contestant that fails is started afresh, and skips this scenario then."""
        if scenario.name in self.record.failures:
            return
        try:
            async with asyncio.timeout(LONGEST):
                self.record.add(await self._round(server, scenario))
        except (PeerFailed, NothingMeasured, TimeoutError, OSError) as error:
            why = str(error).partition("\n")[0] or f"took longer than {LONGEST:.0f} s"
            self.record.failures[scenario.name] = why
            await self.stop()
            await self.start()

    async def _round(self, server: RedisServer, scenario: Scenario) -> Outcome:
        if self.contestant is FLOOR:
            return await floors(server, self._crew, self._size, scenario.name)
        if not scenario.fresh:
            return await scenario.measure(server, self._crew, self._size)
        async with self._workers(1 + len(self._size.lines)) as fresh:
            return await scenario.measure(server, fresh, self._size)

    def takes_part(self, scenario: Scenario) -> bool:
        """Whether the scenario is for this contestant."""
        if self.contestant is FLOOR:
            return scenario.floor
        if scenario.needs:
            return scenario.needs in self.contestant.has
        return self.contestant.waits or not scenario.waits


@contextlib.asynccontextmanager
async def teams(
    pythons: Mapping[Contestant, Path], size: Size
) -> AsyncGenerator[dict[Contestant, Team]]:
    """A started team for each contestant; a failure to start goes into the contestant's record."""
    started = {each: Team(each, python, size) for each, python in pythons.items()}
    try:
        for team in started.values():
            try:
                await team.start()
            except PeerFailed as error:
                team.record.failures["start"] = str(error)
        yield started
    finally:
        for team in started.values():
            await team.stop()


async def contest(
    server: RedisServer,
    entered: Mapping[Contestant, Team],
    scenarios: Sequence[Scenario],
    *,
    rounds: int,
    tell: bool = False,
) -> None:
    """All scenarios, rounds and teams in turn; slow contestants run in the first round only."""
    for scenario in scenarios:
        able = [
            team
            for team in entered.values()
            if team.takes_part(scenario) and "start" not in team.record.failures
        ]
        for number, team in in_turn(able, rounds):
            if number and team.contestant.slow:
                continue
            if tell:
                print(f"{scenario.name} {number + 1}: {team.contestant.title}", flush=True)
            await team.play(server, scenario)


@contextlib.contextmanager
def cores_apart(server: RedisServer, entered: Mapping[Contestant, Team]) -> Generator[None]:
    """Give the last core to the server, and the others to the teams and all later processes.

    The server then has a core as if it had a machine of its own. Else a round trip on one machine
    takes 20 µs or 55, depending on whether both ends happen to run on the same core, and that would
    be most of each figure. Does nothing with one core, or without a way to choose (macOS).
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    last = max(cores)
    os.sched_setaffinity(server.pid, {last})
    for process in (0, *(pid for team in entered.values() for pid in team.pids)):
        os.sched_setaffinity(process, cores - {last} or cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
