"""Elections on several servers: the leader is stored at a majority, and read from one.

In one process, in virtual time.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aiolock
from aiolock import LockClient
from aiolock.protocol import ReadPosted
from aiolock.stores._member import Kept
from tests.support.quorums import Server, clients, left_behind, servers
from tests.support.worlds import virtual

BOARD = "elected:a"


def posted(server: Server) -> str:
    """The value at a server."""
    state = server.quorum_server.states.get(BOARD)
    return state.value.partition(" ")[2] if state is not None else ""


async def told(client: LockClient) -> str | None:
    """The leader, as this client sees it."""
    leader = await client.election("a").leader()
    return None if leader is None else leader.value


@virtual
async def test_leader_is_seen_by_all_clients_while_a_minority_is_gone() -> None:
    """A client that asks gets the leader, also if a minority is gone, or was emptied."""
    async with clients(of := servers(), 3, longest_ttl=10, ttl=6) as (ours, other, third):
        assert await told(third) is None
        async with ours.election("a").campaign("ours") as term:
            for server in of:
                server.kill()
                assert await told(other) == "ours"
                if server is of[0]:
                    server.start(empty=True)
                else:
                    server.back()
                await asyncio.sleep(14)
            assert term.fence > 0
            assert [posted(server) for server in of] == ["ours"] * 3
        assert await told(third) is None
        async with other.election("a").campaign("other"):
            assert await told(third) == "other"


@virtual
async def test_observe_sees_each_leader_soon_and_leaves_nothing() -> None:
    """By a push; nothing is left of those that watch, and a minority is not needed."""
    async with clients(of := servers(), 3, ttl=6) as (ours, other, third):
        seen = list[tuple[str, float]]()
        loop = asyncio.get_running_loop()

        async def watch(client: LockClient) -> None:
            async for leader in client.election("a").observe():
                seen.append((leader.value, loop.time()))

        watching = [asyncio.create_task(watch(client)) for client in (third, other)]
        await asyncio.sleep(1)
        for number, client in enumerate((ours, other, ours, other)):
            if number:
                of[number - 1].kill()
            begun = loop.time()
            async with client.election("a").campaign(str(number)):
                await asyncio.sleep(2)
            assert [value for value, _ in seen] == [str(number)] * 2
            assert all(when - begun < 0.7 for _, when in seen), "two looks, of 0.3 s each"
            seen.clear()
            if number:
                of[number - 1].back()
            await asyncio.sleep(2)
        for task in watching:
            task.cancel()
        await asyncio.wait(watching)
        await asyncio.sleep(1)
        assert set(await left_behind(of)) <= {BOARD}
        assert [len(server.quorum_server.states[BOARD].queue) for server in of] == [0, 0, 0]


@virtual
async def test_observe_without_a_majority_sees_the_leader_afterwards() -> None:
    """The observer stands aside meanwhile, and sees the leader afterwards."""
    async with clients(of := servers(), 2, ttl=6) as (ours, other):
        seen = asyncio.get_running_loop().create_future()

        async def watch() -> None:
            async for leader in other.election("a").observe():
                seen.set_result(leader.value)
                return

        watching = asyncio.create_task(watch())
        await asyncio.sleep(1)
        store: Any = ours._engine.store
        member = of[0]._members[0]
        member.post(BOARD, 1, "1 nobody", 60_000, lambda *_: None)  # at a minority
        await asyncio.sleep(1)
        for server in of[1:]:
            server.kill()
        await asyncio.sleep(2)
        for server in of[1:]:
            server.back()
        assert not seen.done()
        assert (await store.submit(ReadPosted(BOARD))).value == "1 nobody"
        async with ours.election("a").campaign("ours"):
            assert await seen == "ours"
            await watching


@virtual
async def test_leader_posted_at_a_minority_is_written_back_when_read() -> None:
    """A client that reads the leader writes it back: no later client gets an older one."""
    async with clients(of := servers(), 2) as (ours, other):
        said = list[Any]()
        of[0]._members[0].post(BOARD, 7, "7 half", 60_000, lambda *each: said.append(each))
        await asyncio.sleep(0.01)
        assert said == [(7, None)]
        assert (await ours._engine.store.submit(ReadPosted(BOARD))).value == "7 half"
        of[0].kill()
        assert (await other._engine.store.submit(ReadPosted(BOARD))).value == "7 half"
        of[0].back()
        await asyncio.sleep(61)
        assert (await other._engine.store.submit(ReadPosted(BOARD))).count == 0


@virtual
async def test_posted_value_that_ends_soon_is_not_written_back() -> None:
    """Else copies of copies would keep it alive for as long as it is read."""
    async with clients(of := servers(), 1) as (client,):
        of[0]._members[0].post(BOARD, 7, "7 half", 900, lambda *_: None)
        assert (await client._engine.store.submit(ReadPosted(BOARD))).count == 7
        assert of[1].quorum_server.step(BOARD, lambda step: step.read()) == Kept(0, "", 0)


@virtual
async def test_leader_without_a_majority_raises_store_error() -> None:
    """No client is told of a leader."""
    async with clients(of := servers(), 2) as (ours, other), ours.election("a").campaign("ours"):
        for server in of[1:]:
            server.kill()
        with pytest.raises(aiolock.StoreError, match="2 of 3 servers"):
            await told(other)
        for server in of[1:]:
            server.back()
        assert await told(other) == "ours"
