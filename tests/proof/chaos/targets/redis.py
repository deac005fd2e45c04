"""A Redis of the run's own, and a proxy in front of it for each process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from tests.proof.chaos.faults import ATTACKS, Fault
from tests.proof.chaos.history import History
from tests.proof.chaos.targets import Door, Kept, Silent, Standing
from tests.proof.chaos.targets.links import Late, ProxyDoor, ports
from tests.support.proxy import Link, Proxy
from tests.support.servers import RedisServer

_WHO_STANDS: Final = """
local clock, standing = redis.call('TIME'), {}
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for _, key in ipairs(redis.call('KEYS', '*:holders')) do
  local holders = redis.call('ZRANGEBYSCORE', key, now + 1, '(1e15')
  if holders[1] then
    standing[#standing + 1] = {key, holders}
  end
end
for _, key in ipairs(redis.call('KEYS', '*:queue')) do
  standing[#standing + 1] = {key, redis.call('ZRANGE', key, 0, -1)}
end
return {clock[1] .. string.format('%06d', clock[2]), standing}
"""
_LOAD_KEY: Final = 4_000
"""Microseconds that the server takes to load one key."""
_FILL: Final = """
for i = 1, ARGV[1] do
  redis.call('SET', 'filler' .. i, ('x'):rep(100000), 'PX', 5000)
end
"""
"""Something to load; the server has an ear for others after every two megabytes of it."""


class RedisTarget:
    """A Redis that can be restarted, and is empty then."""

    attack = ATTACKS["redis"]

    async def start(self, stack: AsyncExitStack, history: History) -> None:
        self._history = history
        self.late = Late(history, refusal=b"-LATE ")
        self._server = stack.enter_context(
            RedisServer("--key-load-delay", str(_LOAD_KEY), "--rdbcompression", "no")
        )
        self._admin = await stack.enter_async_context(admin_of(self._server))

    async def door(self, stack: AsyncExitStack) -> Door:
        proxy = await stack.enter_async_context(Proxy(self._server.port))
        return ProxyDoor(self, proxy, proxy.url)

    # Looking

    def masters(self) -> Sequence[redis.asyncio.Redis]:
        """Connections to all servers that have something."""
        return [self._admin]

    async def ping(self) -> None:
        with _silent():
            for admin in self.masters():
                await admin.ping()

    async def standing(self) -> Standing:
        found = Standing(0, {}, {})
        with _silent():
            for admin in self.masters():
                now, standing = await admin.eval(_WHO_STANDS, 0)
                found = found._replace(now=max(found.now, int(now)))
                for key, those in standing:
                    stem, _, what = key.rpartition(":")
                    (found.holders if what == "holders" else found.queues)[stem] = those
        return found

    async def kept(self) -> Sequence[Kept]:
        with _silent():
            return [one for admin in self.masters() async for one in _kept(admin)]

    async def clients(self, ports: set[int]) -> list[str]:
        """What the server calls its clients at these ports; [""] when it does not answer."""
        found: list[str] = []
        for admin in self.masters():
            try:
                clients = await admin.client_list()
            except (RedisError, OSError):
                return [""]
            found += [c["id"] for c in clients if int(c["addr"].rpartition(":")[2]) in ports]
        return found

    # Breaking

    async def kill(self, links: list[Link]) -> None:
        """Have the server close these links."""
        for number in await self.clients(ports(links)):
            with contextlib.suppress(RedisError, OSError):
                await self._admin.client_kill_filter(_id=number)

    async def settled(self) -> None:
        await self.late.settled()

    async def strike(self, fault: Fault) -> None:
        server, admin = self._server, self._admin
        match fault.kind:
            case "pause" | "pause_writes":
                await admin.client_pause(int(fault.seconds * 1000), fault.kind == "pause")
                await asyncio.sleep(fault.seconds)
            case "freeze" | "freeze_long":
                server.pause()
                await asyncio.sleep(fault.seconds)
                server.resume()
            case "refuse_unreplicated":
                await admin.config_set("min-replicas-to-write", 1)
                await asyncio.sleep(fault.seconds)
                await admin.config_set("min-replicas-to-write", 0)
            case "refuse_unsaved":
                await self._save_in_vain(fault.seconds)
            case "load":
                await self._load(fault.seconds)
            case "flush_scripts":
                await admin.script_flush()
            case "kill_subscriptions":
                await admin.client_kill_filter(_type="pubsub")
            case "kill_connections":
                await admin.client_kill_filter(_type="normal")
            case "flush" | "restart":
                await self._wipe(fault)

    async def _wipe(self, fault: Fault) -> None:
        """Have the server forget everything."""
        since = time.monotonic_ns()
        if fault.kind == "flush":
            await self._admin.flushall()
        else:
            self._server.kill()
            await asyncio.sleep(fault.seconds)
            self._server.start()
        seconds, micros = await self._admin.time()
        self._history.note("wiped", since=since, fence=seconds * 1_000_000 + micros)

    async def _save_in_vain(self, seconds: float) -> None:
        """Let the server fail to save, so that it refuses whatever it could not save."""
        self._server.dump.mkdir()  # in the way of its file
        await self._admin.config_set("save", "3600 1")
        with contextlib.suppress(RedisError):
            await self._admin.bgsave()
        await asyncio.sleep(seconds)
        await self._admin.config_set("save", "")
        self._server.dump.rmdir()

    async def _load(self, seconds: float) -> None:
        """Restart the server with all that it knows, which it takes so many seconds to load."""
        await self._admin.eval(_FILL, 0, int(seconds * 1e6 / _LOAD_KEY))
        with contextlib.suppress(RedisError):
            await self._admin.shutdown(save=True)
        self._server.kill()  # it has ended
        self._server.launch()
        while True:
            with contextlib.suppress(RedisError, OSError):
                if await self._admin.ping():
                    break
            await asyncio.sleep(0.02)
        self._server.dump.unlink()


async def _kept(admin: redis.asyncio.Redis) -> AsyncIterator[Kept]:
    now, _ = await admin.time()
    async for key in admin.scan_iter("*"):
        holders: Any = ()
        waiters: Any = ()
        if key.endswith(":holders"):
            holders = await admin.zrangebyscore(key, now * 1000, 10**15 - 1)
        elif key.endswith(":queue"):
            waiters = await admin.zrange(key, 0, -1)
        ttl = await admin.pttl(key)
        if ttl != -2:  # else it has gone since
            yield Kept(key, ttl, _clients(holders), _clients(waiters))


def admin_of(server: RedisServer) -> redis.asyncio.Redis:
    """A connection past all proxies."""
    return redis.asyncio.Redis(
        unix_socket_path=server.socket_path,
        decode_responses=True,
        socket_timeout=2.0,
        retry=Retry(NoBackoff(), 1),
    )


def make() -> RedisTarget:
    """The target."""
    return RedisTarget()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Say so when the server does not answer."""
    try:
        yield
    except (RedisError, OSError) as error:
        raise Silent from error


def _clients(waiters: Sequence[str]) -> list[str]:
    return [waiter.split(":")[1] for waiter in waiters]
