"""A lock over several servers does what every lock does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest

from aiolock.protocol import (
    Acquire,
    Break,
    Busy,
    Finish,
    Operation,
    ReadStatus,
    Release,
    RequestRelease,
    Status,
)
from aiolock.store import Store
from aiolock.stores.memory import MemoryServer
from aiolock.stores.quorum import _clock, _membership, _renewals
from aiolock.stores.quorum._membership import ANSWER_TIMEOUT
from aiolock.stores.quorum._memory import server_of
from aiolock.testing import (
    BoardContract,
    FaultyStore,
    LockContract,
    OnceContract,
    Peer,
    ReadersContract,
)
from aiolock.testing._peer import Grant, fresh_name
from tests.support.majorities import Majority, store_of

_SETTLED = (Acquire, Release, Finish, ReadStatus, RequestRelease, Break)
"""After these, all servers have carried out everything before a test goes on."""


def _by_our_clock(_clocks: _clock.Clocks, _local: float) -> int:
    return time.time_ns() // 1000


@pytest.fixture(autouse=True)
def _one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """All clients give out tickets by one clock: on a busy machine, what each knows may be late."""
    monkeypatch.setattr(_clock.Clocks, "now", _by_our_clock)


class TestMemory(LockContract, OnceContract, BoardContract, ReadersContract):
    """Three servers in this process."""

    number = 3
    reports_who_holds = False

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
            vote = server_of(server).states[name].vote_of(grant.waiter)
            if vote is not None:
                vote.end = server.now() // 1000
        await asyncio.sleep(0)

    async def left_behind(self, name: str) -> object:
        """At which of them there is a vote, or a line; once all have heard the last release."""
        await asyncio.sleep(0.01)
        return [name in server_of(server).left_behind for server in self._memory].count(True)

    async def test_acquire_released_before_its_answer_is_busy_and_leaves_nothing(self) -> None:
        """A waiter that is released before its answer is told so, and nothing is left of it."""
        async with self.peers(2) as (ann, bob):
            name, waiter = fresh_name(), ann.waiter()
            asked = ann.ask(name, waiter)
            released = ann.leave(name, waiter)
            assert await asked == Busy(0)
            await released
            await bob.take(name)


@pytest.mark.one_loop
class TestMemoryOfFive(TestMemory):
    """Five of them."""

    number = 5


@pytest.mark.one_loop
class TestFaulty(TestMemory):
    """Behind a store that fails on purpose, but has not been told to."""

    def store(self) -> Store:
        """A client through which nothing fails."""
        return FaultyStore(super().store())


@pytest.fixture(scope="module")
def majority() -> Iterator[Majority]:
    """Three servers for the tests of this file, which no test may break."""
    with Majority() as majority:
        yield majority


_EXPIRE = """
local clock = redis.call('TIME')
local ended = clock[1] * 1000 + math.floor(clock[2] / 1000) - 1
local votes = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(1e15', 'WITHSCORES')
for i = 1, #votes, 2 do
  if votes[i]:find(ARGV[1], 1, true) and tonumber(votes[i + 1]) > ended then
    redis.call('ZADD', KEYS[1], ended + votes[i + 1] % 1, votes[i]) -- .5: not confirmed yet
  end
end
"""


@pytest.mark.one_loop
class TestRedis(LockContract, OnceContract, BoardContract, ReadersContract):
    """Three real servers."""

    @pytest.fixture(autouse=True)
    def _servers(self, majority: Majority, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Nothing here depends on how quick each of them is on a busy machine.

        A look at all servers waits for each of them, a renewal is not left for the next one, and
        what was asked of them is carried out everywhere before anything else is done.
        """
        self._majority, self._prefix, self._monkeypatch = majority, prefix, monkeypatch
        self._looks = list[Callable[[str], Awaitable[Status]]]()
        majority.vouch(prefix)
        monkeypatch.setattr(_membership, "OTHERS", ANSWER_TIMEOUT)
        monkeypatch.setattr(_renewals, "_RENEWAL_TIMEOUT", ANSWER_TIMEOUT)

    def store(self) -> Store:
        """Another client of them."""
        store = store_of(self._majority.urls, self._prefix)
        submit = store.submit
        self._looks.append(lambda name: submit(ReadStatus(name)))

        async def settled(asked: Awaitable[object]) -> object:
            answer = await asked
            await self._settle()
            return answer

        def submitted(operation: Operation[object]) -> asyncio.Future[object]:
            asked = submit(operation)
            if not isinstance(operation, _SETTLED):
                return asked
            return asyncio.ensure_future(settled(asked))

        self._monkeypatch.setattr(store, "submit", submitted)
        return store

    async def _settle(self) -> None:
        """All servers have carried out what any client has sent. Some clients may be closed."""
        await asyncio.gather(*(look("unused") for look in self._looks), return_exceptions=True)

    def _keys(self, name: str) -> list[str]:
        escaped = name.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
        stem = f"{self._prefix}:{{{escaped}}}"
        return [f"{stem}:votes", f"{stem}:line"]

    async def expire(self, peer: Peer, name: str, grant: Grant) -> None:
        """A renewal makes no vote shorter, so each server is told that its own has ended."""
        await self._settle()
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
