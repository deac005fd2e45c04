"""A master, two replicas and three Sentinels, of which the master is replaced again and again.

What a process is pointed at is an address that Sentinel has told it, so there is no proxy in
between; its connections are closed by the server.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, ExitStack
from typing import Final

from tests.proof.chaos.faults import ATTACKS, Fault
from tests.proof.chaos.history import History
from tests.proof.chaos.targets import Door
from tests.proof.chaos.targets.direct import DirectDoor, port_of
from tests.proof.chaos.targets.redis import RedisTarget, admin_of
from tests.support.sentinels import Watched
from tests.support.servers import RedisServer

_REPLACED_WITHIN: Final = 60.0
"""Seconds: a Sentinel on a machine that has stood still does nothing for half of that (TILT)."""


class SentinelTarget(RedisTarget):
    """A service that Sentinel watches. `RedisTarget` looks at whatever is the master."""

    attack = ATTACKS["sentinel"]

    async def start(self, stack: AsyncExitStack, history: History) -> None:
        self._history = history
        self._watched = Watched(stack.enter_context(ExitStack()))
        self._admins = {
            server: await stack.enter_async_context(admin_of(server))
            for server in (self._watched.master, *self._watched.replicas)
        }
        await self._watched.ready()
        self._look_at(self._watched.master)

    def _look_at(self, master: RedisServer) -> None:
        self._server, self._admin = master, self._admins[master]

    async def door(self, stack: AsyncExitStack) -> Door:
        return DirectDoor(self, self._watched.url)

    async def settled(self) -> None:
        pass

    async def strike(self, fault: Fault) -> None:
        first, watched = self._watched.sentinels[0], self._watched
        match fault.kind:
            case "fail_over" | "crash_master" | "crash_unwatched" | "freeze_master":
                await self._replace(fault)
            case "hang_sentinel":
                first.pause()
                await asyncio.sleep(fault.seconds)
                first.resume()
            case "hang_sentinels":
                await self._hang_all(fault.seconds)
            case "kill_sentinels":
                for sentinel in watched.sentinels:
                    sentinel.kill()
                await asyncio.sleep(fault.seconds)
                for sentinel in watched.sentinels:
                    sentinel.restart()
            case "kill_sentinel":
                first.kill()
                await asyncio.sleep(fault.seconds)
                first.restart()
            case "restart_replica":
                replica = watched.replicas[fault.dice % 2]
                replica.kill()
                await asyncio.sleep(fault.seconds)
                await self._come_back(replica)
            case _:
                await super().strike(fault)

    async def _hang_all(self, seconds: float) -> None:
        """Nobody says where the master is, or replaces it."""
        for sentinel in self._watched.sentinels:
            sentinel.pause()
        await asyncio.sleep(seconds)
        for sentinel in self._watched.sentinels:
            sentinel.resume()

    async def _replace(self, fault: Fault) -> None:
        """Another master; return when nobody is at the old one, and both replicas have all."""
        watched, old = self._watched, self._watched.master
        since = time.monotonic_ns()
        # One Sentinel, which is asked as the others are, may hang meanwhile.
        some = fault.kind in {"crash_master", "freeze_master"}
        hung = watched.sentinels[: fault.dice % 2 if some else 0]
        for sentinel in hung:
            sentinel.pause()
        async with asyncio.timeout(_REPLACED_WITHIN):
            match fault.kind:
                case "fail_over":
                    await watched.fail_over()
                case "crash_master":
                    old.kill()
                case "crash_unwatched":
                    old.kill()
                    await self._hang_all(fault.seconds)
                case _:
                    old.pause()
            new = await watched.promoted()
            self._look_at(new)
            await watched.agreed(but=len(hung))
        await asyncio.sleep(fault.seconds)
        watched.now_master(new)
        if fault.kind == "freeze_master":
            old.resume()
        if fault.kind.startswith("crash"):
            await self._come_back(old)
        else:
            await self._left(old)
        seconds, micros = await self._admin.time()
        self._history.note("failed_over", since=since, fence=seconds * 1_000_000 + micros)
        for sentinel in hung:
            sentinel.resume()
        await self._follow(old)

    async def _come_back(self, server: RedisServer) -> None:
        """Start one that was killed, as a replica."""
        server.start()
        await self._follow(server)

    async def _follow(self, server: RedisServer) -> None:
        """Have a server be a replica of the master, and return when both of them have all."""
        await self._admins[server].execute_command(  # type: ignore[no-untyped-call]
            "REPLICAOF", "127.0.0.1", self._server.port
        )
        async with asyncio.timeout(_REPLACED_WITHIN):
            while (  # noqa: ASYNC110  # it tells nobody
                str(await self._admin.info("replication")).count("'online'") < 2
            ):
                await asyncio.sleep(0.02)

    async def _left(self, server: RedisServer) -> None:
        """Return when no process has a connection for commands to it."""
        while any(  # noqa: ASYNC110  # as above
            port_of(client) and client["cmd"].startswith("eval")
            for client in await self._admins[server].client_list()
        ):
            await asyncio.sleep(0.02)


def make() -> SentinelTarget:
    """The target."""
    return SentinelTarget()
