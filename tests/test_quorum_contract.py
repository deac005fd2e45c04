"""A lock over several servers does what every lock does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from aiolock.store import Busy, Status, Store
from aiolock.stores.memory import MemoryServer
from aiolock.stores.quorum import _clock, _council
from aiolock.stores.quorum._council import ANSWER_TIMEOUT
from aiolock.stores.quorum._memory import voter_of
from aiolock.testing import BoardContract, FaultyStore, LockContract, OnceContract, Peer
from aiolock.testing._peer import Grant, fresh_name
from tests.majorities import Majority, store_of, vouch
from tests.proxy import Proxy

LATE = 0.002
"""Seconds, each way."""


class TestMemory(LockContract, OnceContract, BoardContract):
    """Three servers in this process."""

    number = 3

    @pytest.fixture(autouse=True)
    def _servers(self) -> None:
        self._memory = [MemoryServer() for _ in range(self.number)]

    def store(self) -> Store:
        """Another client of them."""
        return store_of(self._memory, "unused")

    async def expire(self, peer: Peer, name: str, grant: Grant) -> None:
        """A renewal makes no vote shorter, so each server is told that its own has ended."""
        assert await peer.holds(name, grant)
        for server in self._memory:
            vote = voter_of(server).states[name].vote
            if vote is not None and vote.waiter == grant.waiter:
                vote.end = server.now() // 1000
        await asyncio.sleep(0)

    async def left_behind(self, name: str) -> object:
        """At which of them there is a vote, or a line; once all have heard the last release."""
        await asyncio.sleep(0.01)
        return [name in voter_of(server).left_behind for server in self._memory].count(True)

    async def test_released_before_the_answer(self) -> None:
        """Who is released before it was answered is told so, and nothing is left of it."""
        async with self.peers(2) as (ann, bob):
            name, waiter = fresh_name(), ann.waiter()
            asked = ann.ask(name, waiter)
            released = ann.leave(name, waiter)
            assert await asked == Busy(0)
            await released
            await bob.take(name)


class TestMemoryOfFive(TestMemory):
    """Five of them."""

    number = 5


class TestFaulty(TestMemory):
    """Behind a store that fails on purpose, but has not been told to."""

    def store(self) -> Store:
        """A client through which nothing fails."""
        return FaultyStore(super().store())


@pytest.fixture(scope="session")
def majority() -> Iterator[Majority]:
    """Three servers for all tests (of this xdist worker), which no test may break."""
    with Majority() as majority:
        yield majority


_EXPIRE = """
local clock = redis.call('TIME')
local ended = clock[1] * 1000 + math.floor(clock[2] / 1000) - 1
local votes = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #votes, 2 do
  if votes[i]:find(ARGV[1], 1, true) and tonumber(votes[i + 1]) > ended then
    redis.call('ZADD', KEYS[1], ended + votes[i + 1] % 1, votes[i]) -- .5: not confirmed yet
  end
end
"""


def _by_our_clock(_clocks: _clock.Clocks, _local: float) -> int:
    return time.time_ns() // 1000


class TestRedis(LockContract, OnceContract, BoardContract):
    """Three real servers, of which one hears of everything later than the others."""

    @pytest.fixture(autouse=True)
    async def _servers(
        self, majority: Majority, prefix: str, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[None]:
        """Nothing here depends on how well a busy machine lets a client know their clocks.

        All clients give out tickets by one clock, and each question is answered by all servers.
        """
        self._majority, self._prefix, self._monkeypatch = majority, prefix, monkeypatch
        self._asking = list[Callable[[str], Awaitable[Status]]]()
        monkeypatch.setattr(_clock.Clocks, "now", _by_our_clock)
        monkeypatch.setattr(_council, "OTHERS", ANSWER_TIMEOUT)
        *_, late = majority.servers
        async with Proxy(late.port) as proxy:
            proxy.delay(to_server=LATE, to_client=LATE)
            self._urls = [*majority.urls[:-1], proxy.url]
            vouch(majority.servers, self._urls, prefix)
            yield

    def store(self) -> Store:
        """Another client of them; once all have done what any was told does it ask for a status."""
        store = store_of(self._urls, self._prefix)
        ask = store.status

        async def settled(name: str, *, waiters: bool) -> Status:
            await self._settle(name)
            return await ask(name, waiters=waiters)

        def status(name: str, *, waiters: bool = True) -> asyncio.Future[Status]:
            return asyncio.ensure_future(settled(name, waiters=waiters))

        self._asking.append(ask)
        self._monkeypatch.setattr(store, "status", status)
        return store

    async def _settle(self, name: str) -> None:
        """All servers have carried out what any client has sent; some clients are closed."""
        await asyncio.gather(*(ask(name) for ask in self._asking), return_exceptions=True)

    def _keys(self, name: str) -> list[str]:
        escaped = name.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
        stem = f"{self._prefix}:{{{escaped}}}"
        return [f"{stem}:votes", f"{stem}:line"]

    async def expire(self, peer: Peer, name: str, grant: Grant) -> None:
        """A renewal makes no vote shorter, so each server is told that its own has ended."""
        await self._settle(name)
        votes = self._keys(name)[0]
        waiter = f":{grant.waiter.client}:{grant.waiter.seq}:"
        for server in self._majority.servers:
            server.call("EVAL", _EXPIRE, 1, votes, waiter)

    async def left_behind(self, name: str) -> object:
        """Keys of votes and lines; once all have heard the last release."""
        await asyncio.sleep(0.05)
        return [
            key
            for server in self._majority.servers
            for key in self._keys(name)
            if server.call("EXISTS", key)
        ]
