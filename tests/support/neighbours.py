"""Processes with a client of this version or of another one, which share the locks of a store."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Final, Self

from tests.support.procs import Worker

CHILD: Final = Path(__file__).parent / "children" / "neighbour.py"


class Neighbour(Worker):
    """A process with a client of one version."""

    def __init__(self, python: Path, target: object, options: dict[str, object]) -> None:
        arguments = (str(CHILD), json.dumps(target), json.dumps(options))
        super().__init__("-I", *arguments, python=python)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        ready = await self.expect("ready", within=30)
        self.client: str = ready["client"]
        self.package = Path(ready["package"]).parent
        return self

    async def ask(self, name: str, who: str, **options: object) -> None:
        """Have a task ask for a lock."""
        await self.send({"do": "acquire", "name": name, "who": who, **options})

    async def holds(self, who: str) -> int:
        """Return the fence of that task when it has it."""
        return int((await self.expect(f"{who} holds", within=20))["fence"])

    async def acquire(self, name: str, who: str, **options: object) -> int:
        """Both."""
        await self.ask(name, who, **options)
        return await self.holds(who)

    async def release(self, who: str) -> bool:
        """Have that task release it; whether it still had it."""
        await self.send({"do": "release", "who": who})
        return bool((await self.expect(f"{who} released"))["held"])

    async def status(self, name: str) -> tuple[list[str], list[str]]:
        """The clients that hold a lock, and those that wait for it."""
        await self.send({"do": "status", "name": name})
        said = await self.expect(f"{name} has")
        return said["holders"], said["waiters"]


async def both_see(
    sides: tuple[Neighbour, Neighbour], name: str, holders: list[Neighbour], *waiters: Neighbour
) -> None:
    """Wait until both see who holds a lock, and who waits for it."""
    expected = ([each.client for each in holders], [each.client for each in waiters])
    give_up = time.monotonic() + 20
    for side in sides:
        while (seen := await side.status(name)) != expected:
            assert time.monotonic() < give_up, f"{side.package} sees {seen}, not {expected}"
            await asyncio.sleep(0.01)
