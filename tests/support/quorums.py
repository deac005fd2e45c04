"""Several servers in this process that vote, to be stopped, killed, emptied and started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import aiolock
from aiolock.errors import StoreError
from aiolock.protocol import LinkChanged, Reconnected
from aiolock.stores._member import (
    DeliverMember,
    MemberRegistered,
    Memory,
    OnReply,
    QuorumConfig,
    RegistrationRefused,
)
from aiolock.stores.memory import MemoryServer
from aiolock.stores.quorum import MemoryMember, QuorumStore, from_members
from aiolock.stores.quorum._connection import OUT_AFTER
from aiolock.stores.quorum._memory import MemoryQuorumServer, server_of
from tests.support.cancel import Kind, cancel_everywhere


class Server:
    """One of them."""

    def __init__(self, name: str, clock: Callable[[], float] | None = None) -> None:
        self.name = name
        self.memory = MemoryServer(clock)
        self.stopped = self.down = self.refuses = False
        self.full = False
        """It refuses all that needs memory: votes, and to be told of which quorum it is."""
        self.refuses_marks = False
        """It refuses to remember that work is done, and nothing else."""
        self.odd = set[str]()
        """Names for which it refuses to vote: what it has under their keys is of something else."""
        self.asked = 0
        """How many commands it has carried out."""
        self._members: list[_Breakable] = []
        self._backlog: list[Callable[[], None]] = []

    @property
    def quorum_server(self) -> MemoryQuorumServer:
        """What it keeps."""
        return server_of(self.memory)

    def member(self) -> MemoryMember:
        """One client's link to it."""
        member = _Breakable(self)
        self._members.append(member)
        return member

    def stop(self) -> None:
        """The server answers nothing, and carries out its commands once it goes on."""
        self.stopped = True

    def resume(self) -> None:
        """It goes on."""
        self.stopped = False
        self._catch_up()

    def kill(self) -> None:
        """The server is gone, and its commands are not carried out."""
        self.down = True
        for member in self._members:
            member.breaks()

    def start(self, *, empty: bool = True) -> None:
        """The server runs again, with none of its data or with all."""
        self.quorum_server.restart(empty=empty)
        self.back()

    def back(self) -> None:
        """It can be reached again: it was not gone."""
        self.down = False
        for member in self._members:
            member.connects()
        self._catch_up()

    def _catch_up(self) -> None:
        backlog, self._backlog = self._backlog, []
        for operation in backlog:
            operation()

    def do(self, operation: Callable[[], None]) -> None:
        """Carry it out, now or later."""
        if self.stopped or self.down:
            self._backlog.append(operation)
        else:
            self.asked += 1
            operation()

    @property
    def members(self) -> list[_Breakable]:
        """The clients' links to it."""
        return self._members

    @property
    def answers(self) -> bool:
        """Whether it does."""
        return not (self.stopped or self.down)


class _Breakable(MemoryMember):
    """A link that breaks as a real one does: unanswered commands are sent again on the next."""

    def __init__(self, server: Server) -> None:
        super().__init__(lambda: server.memory, server.name)
        self._server = server
        self._since: list[float] = []
        self._unanswered: list[OnReply] = []
        self._joined = self._dead = False
        self.late = 0.0
        """Seconds until a command reaches the server."""

    async def join(self, client: str, deliver: DeliverMember, config: QuorumConfig) -> None:
        if not self._server.answers:
            raise StoreError(f"{self.address} cannot be reached")
        await super().join(client, deliver, config)
        self._joined = True

    async def leave(self, patience: float) -> None:
        self._joined = False
        await super().leave(patience)
        for on_reply in tuple(self._unanswered):
            on_reply(None, StoreError("the client was closed"))

    def breaks(self) -> None:
        if self._joined:
            assert self._client is not None
            self.quorum_server.listeners.pop(self._client, None)
            self._deliver(LinkChanged(ConnectionError("it was killed")))

    def dies(self) -> None:
        self.quorum_server.listeners.pop(self._client or "", None)
        self._joined, self._dead = False, True

    def connects(self) -> None:
        if self._joined:
            assert self._client is not None
            self.quorum_server.listeners[self._client] = self._deliver
            self._deliver(
                MemberRegistered(self.quorum_server.register(self._config, Memory.UNSAID))
            )
            self._deliver(LinkChanged(None))
            self._deliver(Reconnected())

    def register(self, memory: Memory) -> None:
        if self._server.full and memory is not Memory.UNSAID:
            self._loop.call_soon(self._deliver, RegistrationRefused(StoreError("it is full")))
        else:
            super().register(memory)

    def vote(self, *question: Any, on_reply: OnReply, **terms: Any) -> None:
        if self._server.full and self.quorum_server.config is not None:
            self._loop.call_soon(on_reply, None, StoreError("it is full"))
        elif question[0].name in self._server.odd:
            self._loop.call_soon(on_reply, None, StoreError("it has something else there"))
        else:
            super().vote(*question, on_reply=on_reply, **terms)

    def finish(self, *mark: Any) -> None:
        if self._server.refuses_marks:
            self._loop.call_soon(mark[-1], None, StoreError("it is full"))
        else:
            super().finish(*mark)

    def waits_for(self) -> float:
        return self._loop.time() - self._since[0] if self._since else 0.0

    def _start(self, operation: Callable[[], Any], on_reply: OnReply) -> None:
        if self._dead:
            return
        if self._server.refuses:
            error = StoreError("it refuses for a while")
            error.refused = True
            self._loop.call_soon(on_reply, None, error)
            return
        if self._client is None:
            on_reply(None, StoreError("the client was closed"))
            return
        since = self._loop.time()
        self._since.append(since)

        def answered(answer: Any, error: Exception | None) -> None:
            if answered in self._unanswered:
                self._unanswered.remove(answered)
                self._since.remove(since)
                on_reply(answer, error)

        self._unanswered.append(answered)
        start = super()._start
        if self.late:
            self._loop.call_later(self.late, self._server.do, lambda: start(operation, answered))
        else:
            self._server.do(lambda: start(operation, answered))


def servers(number: int = 3) -> list[Server]:
    """So many of them."""
    return [Server(f"server {n}") for n in range(number)]


def with_clocks(*ahead: float) -> list[Server]:
    """One for each clock, which is so many seconds ahead of the loop's time, since 2001."""
    now = asyncio.get_running_loop().time
    return [
        Server(f"server {n}", partial(lambda by: 1e9 + now() + by, by))
        for n, by in enumerate(ahead)
    ]


def store_on(servers: list[Server], longest_ttl: float = 60.0) -> QuorumStore:
    """A store of them."""
    return from_members([each.member() for each in servers], longest_ttl, durable=False)


@asynccontextmanager
async def clients(
    of: Sequence[Server], number: int, *, longest_ttl: float = 60.0, **options: Any
) -> AsyncIterator[Any]:
    """So many clients of these servers."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                aiolock.connect(store_on([*of], longest_ttl), **options)
            )
            for _ in range(number)
        ]


def dies(of: Sequence[Server], client: int) -> None:
    """This client, by its number, is killed: nothing reaches it, and nothing comes from it."""
    for server in of:
        server._members[client].dies()


async def left_behind(servers: list[Server]) -> list[str]:
    """What is left there of names, once everything that is under way has been carried out."""
    for _ in range(20):
        await asyncio.sleep(0)
    return [name for each in servers for name in each.quorum_server.left_behind]


async def ask_and_give_up(lock: aiolock.Lock) -> None:
    """Ask for it, and give up a moment later."""
    waiting = asyncio.ensure_future(lock.acquire())
    try:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    finally:
        waiting.cancel()


async def check_left_behind(
    of: list[Server], fail: str, scenario: Callable[[], Coroutine[Any, Any, None]], kind: Kind
) -> None:
    """Cancel it at each step, while one server fails in this way: nothing is left at any.

    At the one that does not answer, nothing is left once it does.
    """
    if fail:
        getattr(of[1], fail)()
        await asyncio.sleep(OUT_AFTER * 2)
    steps = 0
    async for _ in cancel_everywhere(scenario, [kind]):
        steps += 1
        for server in of:
            if server.answers:
                assert await left_behind([server]) == []
    assert steps >= 3
    of[1].resume() if fail == "stop" else of[1].back()
    assert await left_behind(of) == []
