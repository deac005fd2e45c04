"""Many enter at once, or many leases end at once: in parts, so that others need not wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

import aiolock
from aiolock import protocol
from aiolock.protocol import (
    GRANTS,
    Acquire,
    AskAgain,
    Busy,
    Form,
    Granted,
    Queued,
    Rule,
    WaiterId,
)
from aiolock.stores._effects import Push
from aiolock.stores._holders import Grant, Holder, Holders
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step
from aiolock.stores.memory import MemoryServer
from tests.proof.test_redis_model import READERS, Differential, Scripts
from tests.support import looks
from tests.support.servers import RedisServer
from tests.support.worlds import asking, settled, virtual

MINUTE = 60_000
READS = Form(claim=9000, shared=True)
NOW = 1_700_000_000_000_000


@pytest.fixture
def lua(redis_server: RedisServer) -> Iterator[Scripts]:
    """The scripts by themselves, called one after the other."""
    lua = Scripts(redis_server)
    yield lua
    lua.close()


def expire(lua: Scripts, *, but: str = "") -> None:
    """End all leases, the one after the other; that of this waiter last."""
    held = sorted(lua.holders(), key=lambda grant: (grant[0] == but, grant[1]))
    ends = {f"{waiter}:{fence}": end for end, (waiter, fence) in enumerate(held, start=1)}
    lua.redis.zadd(lua.keys[0], ends)
    lua._kept = None


# --- The scripts


@pytest.mark.parametrize(
    ("writer", "reader"), [("x9000", "s9000"), ("s9000*999/999", "s9000*1/999")]
)
def test_scripts_release_to_many_waiters_grants_in_parts(
    lua: Scripts, writer: str, reader: str
) -> None:
    """The first that does not enter yet is told to ask, and with it enter as many as before."""
    lua.listen("ada")
    lua.listen("bob")
    held = lua.acquire(f"{writer}:ada:0", MINUTE, 0, 0)
    assert isinstance(held, Granted)
    for seq in range(2 * GRANTS + 10):
        lua.acquire(f"{reader}:{'bob' if seq == GRANTS else 'ada'}:{seq + 1}", MINUTE, 0, 0)
    lua.log.clear()
    lua.release(f"{writer}:ada:0", held.fence)
    assert len(lua.holders()) == GRANTS
    assert [push[1] for push in lua.log if push[0] == "done"] == ["x:bob:"]
    lua.log.clear()
    told = lua.acquire(f"{reader}:bob:{GRANTS + 1}", MINUTE, 1, 0)
    assert isinstance(told, Granted)
    assert not told.displaced
    assert len(lua.holders()) == 2 * GRANTS
    assert [push[1] for push in lua.log if push[0] == "done"] == ["x:ada:"]


def test_scripts_many_expired_leases_are_removed_in_parts(lua: Scripts) -> None:
    """Who asks, or who is the first in the queue, is told to ask until all have ended."""
    lua.listen("cyd")
    for seq in range(2 * GRANTS + 10):
        lua.acquire(f"s9000:ada:{seq}", MINUTE, 0, 0)
    first = lua.acquire("x9000:cyd:0", MINUTE, 0, 0)
    assert isinstance(first, Queued)
    expire(lua)
    last = lua.acquire("x9000:bob:0", MINUTE, 0, 0)
    assert isinstance(last, Queued)
    assert last.until == 0
    assert len(lua.holders()) == GRANTS + 10
    assert lua.log == [("done", "x:cyd:", 0)]
    again = lua.acquire("x9000:cyd:0", MINUTE, first.ticket, 0)
    assert isinstance(again, Queued)
    assert (again.place, again.until) == (1, 0)
    assert isinstance(lua.acquire("x9000:cyd:0", MINUTE, first.ticket, 0), Granted)
    assert [waiter for waiter, _ in lua.holders()] == ["x9000:cyd:0"]


def test_scripts_acquire_without_waiting_asks_again_until_all_leases_ended(lua: Scripts) -> None:
    """Not that the lock is taken: it is free."""
    for seq in range(2 * GRANTS + 10):
        lua.acquire(f"s9000:ada:{seq}", MINUTE, 0, 0)
    expire(lua)
    for _ in range(2):
        assert lua.acquire("x9000:bob:0", MINUTE, -1, 0) == Busy(-1)
    assert isinstance(lua.acquire("x9000:bob:0", MINUTE, -1, 0), Granted)


def test_scripts_acquire_repeated_after_expiry_gets_a_new_grant(lua: Scripts) -> None:
    """Though it is among the last to end of many, its waiter asks before that."""
    for seq in range(GRANTS + 10):
        lua.acquire(f"s9000:ada:{seq}", MINUTE, 0, 0)
    expire(lua, but="s9000:ada:7")
    before = dict(lua.holders())["s9000:ada:7"]
    granted = lua.acquire("s9000:ada:7", MINUTE, 1, 0)
    assert isinstance(granted, Granted)
    assert granted.fence > before
    assert len(lua.holders()) == 11


@pytest.mark.parametrize("how", ["new", "no wait"])
def test_acquire_by_a_newcomer_continues_a_handoff_in_parts(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Whose client may have died: the first in the queue fits, and the scripts see that, too."""
    monkeypatch.setattr(protocol, "GRANTS", 1)

    class OnThisServer(Differential):
        server = redis_server
        waiters = READERS
        chance = looks.decided(monkeypatch)

    both = OnThisServer()
    both.all_listen(looks=False)
    for waiter in ("x10000:ada:4", "s10000:bob:0", "s10000:bob:1", "s10000:cyd:0"):
        both.acquire(3 * READERS.index(waiter), 30_000, "new", 0, 0)
    both.release(3 * READERS.index("x10000:ada:4"), True, True, False, 0)
    both.same_pushes()
    assert len(both.real.holders()) == 1
    both.acquire(3 * READERS.index("s10000:cyd:1"), 30_000, how, 0, 0)
    both.same_pushes()
    both.same_state()
    assert len(both.real.holders()) > 1
    both.teardown()


# --- The machine


def crowd(count: int) -> tuple[NameState, int]:
    """A name that so many readers hold, and the last fence."""
    state, fence = NameState(), 0
    for seq in range(count):
        step = Step("x", state, NOW + seq, lambda _: True, fence)
        step.run(Acquire("x", WaiterId("ada", seq), READS, MINUTE))
        fence = step.fence
    return state, fence


def test_machine_many_expired_leases_are_removed_in_parts() -> None:
    """As in the scripts."""
    state, fence = crowd(GRANTS + 10)
    writes, later = Form(claim=9000), NOW + 100 * MINUTE * 1000
    step = Step("x", state, NOW, lambda _: True, fence)
    step.run(Acquire("x", WaiterId("cyd", 0), writes, MINUTE))
    step = Step("x", state, later, lambda _: True, fence)
    answer = step.run(Acquire("x", WaiterId("bob", 0), writes, MINUTE, wait=False))
    assert answer == Busy(-1)
    assert len(state.holders) == 10
    asked = [push for push in step.pushes if isinstance(push.event, AskAgain)]
    assert asked == [Push("cyd", AskAgain("x"))]
    step = Step("x", state, later, lambda _: True, step.fence)
    answer = step.run(Acquire("x", WaiterId("bob", 0), writes, MINUTE, wait=False))
    assert [grant.waiter.client for grant in state.holders] == ["cyd"]


def test_machine_acquire_repeated_after_expiry_gets_a_new_grant() -> None:
    """As in the scripts."""
    state, fence = crowd(GRANTS + 10)
    own = state.holders.of(WaiterId("ada", GRANTS + 9))
    assert own is not None
    step = Step("x", state, NOW + 100 * MINUTE * 1000, lambda _: True, fence)
    answer = step.run(Acquire("x", own.grant.waiter, READS, MINUTE))
    assert isinstance(answer, Granted)
    assert answer.fence > own.grant.fence
    assert len(state.holders) == 11


def test_holders_add_of_a_known_grant_replaces_it() -> None:
    """A later one takes its place: its end, and its permits."""
    holders, grant = Holders(), Grant(WaiterId("ada", 1), 7)
    for end, number in [(1000, 2), (2000, 3)]:
        form = replace(READS, rule=Rule.PERMITS, number=number, declared=9)
        holders.add(Holder(grant, form, end, shared=True))
        assert (holders.last_end, holders.permits) == (end, number)
    assert len(holders) == 1
    assert not holders.take_ended(1500, 10)
    assert [holder.grant for holder in holders.take_ended(2000, 10)] == [grant]
    assert not holders
    assert holders.permits == 0


# --- The client


@virtual
async def test_client_readers_granted_in_parts_all_enter_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that were granted the lock and those that are told to ask are of one client."""
    monkeypatch.setattr(protocol, "GRANTS", 3)
    server, entered = MemoryServer(), list[float]()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        loop = asyncio.get_running_loop()

        async def reads(client: aiolock.LockClient) -> None:
            async with client.rwlock("a").read():
                entered.append(loop.time())
                await asyncio.sleep(1)

        async with asyncio.TaskGroup() as group, theirs.rwlock("a").write():
            for number in range(30):
                group.create_task(reads(theirs if number > 25 else ours))
                await settled()
            released = loop.time()
        assert len(entered) == 30
        assert max(entered) - released < 0.001


@virtual
async def test_client_try_acquire_after_many_expired_leases_succeeds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However many steps that takes the store."""
    monkeypatch.setattr(protocol, "GRANTS", 3)
    loop = asyncio.get_running_loop()
    server = MemoryServer(clock=lambda: 1_700_000_000 + loop.time())
    async with aiolock.connect(server) as theirs, aiolock.connect(server) as ours:
        lock = theirs.rwlock("a", renew=False, ttl=10)
        leases = [await asking(lock.read()) for _ in range(10)]
        await asyncio.sleep(30)
        lease = await ours.rwlock("a").write().try_acquire()
        assert lease is not None
        await lease.release()
        for each in leases:
            await each.release()
