"""Members of groups that can be killed, in one process and in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Self, TypeVar

import aiolock
from aiolock import LockClient
from aiolock.protocol import Operation
from aiolock.stores.memory import MemoryServer, MemoryStore
from tests.support.wrapped import Wrapped

Value = TypeVar("Value")


class Link(Wrapped):
    """A link that counts what it sends, and sends nothing more once its process is killed."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(MemoryStore(server))
        self.sent = Counter[str]()
        self.dead = False

    def submit(self, operation: Operation[Value]) -> asyncio.Future[Value]:
        if self.dead:
            return asyncio.get_running_loop().create_future()
        self.sent[type(operation).__name__] += 1
        return super().submit(operation)


class Process:
    """A client in a process of its own, and what runs there."""

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self.link = Link(server)
        self.client: LockClient = aiolock.connect(self.link)
        self.tasks: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Self:
        await self.client.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        self.link.dead = False
        await self.client.aclose()

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine there, in the last of `tasks`."""
        self.tasks.append(asyncio.create_task(work))

    async def join(self, name: str = "w", **options: Any) -> aiolock.Membership:
        """Be a member of a group there, until the process ends."""
        joined = asyncio.get_running_loop().create_future()

        async def stay() -> None:
            async with self.client.group(name, **options) as me:
                joined.set_result(me)
                await asyncio.get_running_loop().create_future()

        self.run(stay())
        me: aiolock.Membership = await joined
        return me

    async def stop(self) -> None:
        """Cancel what runs there, and wait for its end."""
        for task in self.tasks:
            task.cancel()
        for task in self.tasks:
            with suppress(asyncio.CancelledError, aiolock.LockError):
                await task
        self.tasks.clear()

    def kill(self) -> None:
        """Kill the process: nothing is sent any more, and nobody listens."""
        self.link.dead = True
        self.server.leave(self.client.id)


@asynccontextmanager
async def processes(
    number: int, server: MemoryServer | None = None
) -> AsyncGenerator[list[Process], None]:
    """So many processes with one server in memory."""
    server = MemoryServer() if server is None else server
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Process(server)) for _ in range(number)]


class Seen:
    """The changes of a group that a task has seen."""

    def __init__(self, watched: aiolock.Group | aiolock.Membership) -> None:
        self.changes: list[Any] = []
        self._watched = watched
        self._more = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        await self.until(1)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _watch(self) -> None:
        async for change in self._watched.watch():
            self.changes.append(change)
            self._more.set()

    async def until(self, count: int) -> list[Any]:
        """All changes, once there are so many."""
        async with asyncio.timeout(30):
            while len(self.changes) < count:
                self._more.clear()
                await self._more.wait()
        return self.changes

    @property
    def kinds(self) -> list[str]:
        """The kinds of the changes."""
        return [type(change).__name__ for change in self.changes]
