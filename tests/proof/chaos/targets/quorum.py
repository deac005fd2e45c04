"""Three servers that vote, and a proxy in front of each for each process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, TypeVar

import redis.asyncio
from redis.exceptions import RedisError

from tests.proof.chaos.faults import ATTACKS, Fault, hit
from tests.proof.chaos.history import History
from tests.proof.chaos.targets import Door, Kept, Silent, Standing
from tests.proof.chaos.targets.links import Late, ProxyDoor
from tests.proof.chaos.targets.redis import RedisTarget, admin_of
from tests.proof.chaos.witness import charter_of, url_of
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer

_MARKER: Final = "chaos:quorum"
_WHO_STANDS: Final = """
local clock, standing = redis.call('TIME'), {}
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for _, key in ipairs(redis.call('KEYS', '*:votes')) do
  local votes = redis.call('ZRANGEBYSCORE', key, now + 1, '(1e15')
  if votes[1] then
    standing[#standing + 1] = {key, votes}
  end
end
for _, key in ipairs(redis.call('KEYS', '*:line')) do
  standing[#standing + 1] = {key, redis.call('ZRANGE', key, 0, -1)}
end
return {clock[1] .. string.format('%06d', clock[2]), standing}
"""
_VOTES_WITHIN: Final = 15.0
"""Seconds in which each of them votes again, when nothing is broken any more."""

Value = TypeVar("Value")


class Voter(RedisTarget):
    """One of the servers, as a target of its own."""

    async def start(self, stack: AsyncExitStack, history: History) -> None:
        self.late = Late(history, refusal=b"-LATE ")
        self._server = stack.enter_context(RedisServer())
        self._admin = await stack.enter_async_context(admin_of(self._server))
        self.proxies: list[Proxy] = []
        """One for each process."""
        self.broken = 0
        """How many faults it has now: it need not answer."""

    async def vouch(self, config: str) -> None:
        """Say to it that it has voted for long: it was started a moment ago, and would not."""
        run: Any = await self._admin.info("server")
        await self._admin.set(_MARKER, f"{run['run_id']} 0 {config}")

    async def proxy(self, stack: AsyncExitStack) -> ProxyDoor:
        """Another process's way to it."""
        proxy = await stack.enter_async_context(Proxy(self._server.port))
        self.proxies.append(proxy)
        return ProxyDoor(self, proxy, proxy.url)

    async def votes(self) -> bool:
        """Whether it does, and is not silent, for it may have forgotten."""
        seconds, micros = await self._admin.time()
        marker = await self._admin.get(_MARKER)
        return marker is not None and int(marker.split()[1]) < seconds * 1000 + micros // 1000

    async def stands(self) -> tuple[int, list[tuple[str, list[str]]]]:
        """Its clock, and who has its votes and stands in its lines."""
        now, acquisition = await self._admin.eval(_WHO_STANDS, 0)
        return int(now), acquisition

    async def keeps(self) -> list[Kept]:
        """All that it does, but for what says of what it is a member."""
        return [kept async for kept in _kept(self._admin)]

    async def answers(self) -> None:
        """Return when it does."""
        await self._admin.ping()

    async def strike(self, fault: Fault) -> None:
        self.broken += 1
        kind = fault.kind.removesuffix("_most")
        try:
            match kind:
                case "crash" | "crash_saved":
                    await self._crash(fault.seconds, saved=kind == "crash_saved")
                case "flush":
                    await self._admin.flushall()
                case "cut_off" | "deafen" | "delay":
                    await self._apart(kind, fault.seconds)
                case "freeze":  # also of most of them
                    self._server.pause()
                    await asyncio.sleep(fault.seconds)
                    self._server.resume()
                case _:
                    await super().strike(fault)
        finally:
            self.broken -= 1

    async def _crash(self, seconds: float, *, saved: bool) -> None:
        """Kill it; it comes back with what it had saved a while before, or with nothing."""
        if saved:
            await self._admin.save()
            await asyncio.sleep(seconds / 2)
        self._server.kill()
        await asyncio.sleep(seconds)
        self._server.launch()
        while True:
            with contextlib.suppress(RedisError, OSError):
                if await self._admin.ping():
                    break
            await asyncio.sleep(0.02)
        self._server.dump.unlink(missing_ok=True)

    async def _apart(self, kind: str, seconds: float) -> None:
        """Break the ways of all processes to it."""
        for proxy in self.proxies:
            match kind:
                case "cut_off":
                    proxy.refuse()
                    proxy.cut()
                case "deafen":
                    proxy.deaf()
                case _:
                    proxy.delay(to_server=0.1, to_client=0.2)
        await asyncio.sleep(seconds)
        for proxy in self.proxies:
            match kind:
                case "cut_off":
                    proxy.accept()
                case "deafen":
                    proxy.hear()
                case _:
                    proxy.delay()


async def _kept(admin: redis.asyncio.Redis) -> AsyncIterator[Kept]:
    now, _ = await admin.time()
    async for key in admin.scan_iter("*"):
        holders: Any = ()
        waiters: Any = ()
        if key.endswith(":votes"):
            holders = await admin.zrangebyscore(key, now * 1000, 10**15 - 1)
        elif key.endswith(":line"):
            waiters = await admin.zrange(key, 0, -1)
        ttl = await admin.pttl(key)
        if ttl != -2 and key != _MARKER:  # else it has gone since
            clients = [[one.split(":")[1] for one in those] for those in (holders, waiters)]
            yield Kept(key, ttl, *clients)


class QuorumDoor:
    """The ways of one process to all of them."""

    def __init__(self, target: QuorumTarget, doors: Sequence[ProxyDoor]) -> None:
        self._target = target
        self._doors = doors
        self.url = url_of([door.url for door in doors])

    async def strike(self, fault: Fault, pid: int) -> None:
        """Break those to the servers that the fault is about."""
        those = hit(fault, len(self._doors))
        await asyncio.gather(*(self._doors[number].strike(fault, pid) for number in those))

    def visitor(self, pid: int) -> Callable[[], Awaitable[bool]]:
        known = [door.visitor(pid) for door in self._doors]

        async def is_known() -> bool:
            said = await self._target.each(lambda number, _: known[number]())
            return any(said.values())

        return is_known


class QuorumTarget:
    """So many servers."""

    def __init__(self, name: str) -> None:
        self.attack = ATTACKS[name]

    async def start(self, stack: AsyncExitStack, history: History) -> None:
        self._voters = [Voter() for _ in range(self.attack.servers)]
        config = str(charter_of(self.attack.servers))
        for quorum_server in self._voters:
            await quorum_server.start(stack, history)
            await quorum_server.vouch(config)

    async def door(self, stack: AsyncExitStack) -> Door:
        return QuorumDoor(
            self, [await quorum_server.proxy(stack) for quorum_server in self._voters]
        )

    # Looking

    async def each(self, ask: Callable[[int, Voter], Awaitable[Value]]) -> dict[int, Value]:
        """What those say that are not broken now; nobody is waited for who breaks meanwhile."""
        asked = {
            asyncio.ensure_future(ask(number, quorum_server)): number
            for number, quorum_server in enumerate(self._voters)
            if not quorum_server.broken
        }
        waiting = set(asked)
        try:
            while waiting and not all(self._voters[asked[each]].broken for each in waiting):
                _, waiting = await asyncio.wait(waiting, timeout=0.02)
        finally:
            for each in waiting:
                each.cancel()
        said: dict[int, Value] = {}
        for each in asked.keys() - waiting:
            with contextlib.suppress(RedisError, OSError, Silent):
                said[asked[each]] = each.result()
        if not said:
            raise Silent
        return said

    async def ping(self) -> None:
        await self.each(lambda _, quorum_server: quorum_server.answers())

    async def standing(self) -> Standing:
        said = await self.each(lambda _, quorum_server: quorum_server.stands())
        found = Standing(max(now for now, _ in said.values()), {}, {})
        for number, (_, acquisition) in said.items():
            for key, those in acquisition:
                stem, _, what = key.rpartition(":")
                if what == "line":
                    found.queues[f"{number}/{stem}"] = those
                else:
                    found.holders[f"{number}/{stem}"] = [_granted(vote) for vote in those]
        return found

    async def kept(self) -> Sequence[Kept]:
        said = await self.each(lambda _, quorum_server: quorum_server.keeps())
        return [
            kept._replace(key=f"{number}/{kept.key}")
            for number, those in said.items()
            for kept in those
        ]

    # Breaking

    async def strike(self, fault: Fault) -> None:
        those = hit(fault, len(self._voters))
        await asyncio.gather(*(self._voters[number].strike(fault) for number in those))

    async def settled(self) -> None:
        await asyncio.gather(*(quorum_server.late.settled() for quorum_server in self._voters))
        # Beyond this the checker finds out who does not.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_VOTES_WITHIN):
                while not all((await self.each(lambda _, each: each.votes())).values()):  # noqa: ASYNC110  # they tell nobody
                    await asyncio.sleep(0.05)


def _granted(vote: str) -> str:
    """A vote, as `Standing` has it: the waiter, and when it got that (µs)."""
    waiter, _, _, granted = vote.rsplit(":", 3)
    return f"{waiter}:{granted}000"


def make() -> QuorumTarget:
    """The target."""
    return QuorumTarget("quorum")
