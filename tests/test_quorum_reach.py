"""Servers of a quorum that answer and cannot vote, or do not answer at a bad moment."""

from __future__ import annotations

import asyncio

import pytest

import aiolock
from aiolock import StoreError
from tests.quorums import clients, servers, store_on
from tests.test_quorum import later
from tests.worlds import virtual


@virtual
async def test_one_that_cannot_be_told_of_which_quorum_it_is() -> None:
    """It is asked once a second by each client, however many wait, and says what is wrong."""
    of = servers()
    of[2].full = True
    async with clients(of, 2) as (ann, bob):
        lease = await ann.lock("a").acquire()
        waiting = [later(bob.lock("a")) for _ in range(20)]
        await asyncio.sleep(5)
        before = of[2].asked
        await asyncio.sleep(10)
        assert of[2].asked - before <= 3 * 10
        shown = ann.servers()[2]
        assert (shown.state, shown.silent, shown.error) == ("silent", 0.0, "it is full")
        of[2].full = False
        await asyncio.sleep(2)
        shown = ann.servers()[2]
        assert (shown.state, shown.error) == ("silent", "")
        assert shown.silent > 0, "it may have forgotten its votes"
        await lease.release()
        for each in waiting:
            await (await each).release()


@pytest.mark.parametrize("how", ["silent", "refuses"])
@virtual
async def test_who_reaches_one_that_votes_and_one_that_does_not(how: str) -> None:
    """It stands aside, so it takes no turn of a waiter that has a majority; then it waits on."""
    of = servers()
    async with clients(of, 3) as (ann, bob, cat):
        await asyncio.sleep(100)
        lease = await ann.lock("a").acquire()
        if how == "silent":
            of[1].kill()
            of[1].start(empty=True)
        else:
            of[1].full = True
        of[2].members[1].breaks()
        first = later(bob.lock("a"))
        await asyncio.sleep(0.1)
        second = later(cat.lock("a"))
        await asyncio.sleep(1)
        await lease.release()
        await asyncio.sleep(1.5)
        assert second.done(), "it has the votes of a majority"
        await second.result().release()
        assert not first.done()
        await asyncio.sleep(70 if how == "silent" else 5)
        of[1].full = False
        await asyncio.sleep(1)
        assert first.done(), "a majority votes for it now"
        of[2].members[1].connects()
        await (await first).release()


@virtual
async def test_two_that_refuse() -> None:
    """Each waiter is told so at once, also while it stands aside since they do."""
    of = servers()
    async with clients(of, 1) as (ann,):
        of[1].refuses = of[2].refuses = True
        for _ in range(2):
            with pytest.raises(StoreError, match="refuses for a while"):
                await ann.lock("a", timeout=1).acquire()
        of[1].refuses = of[2].refuses = False
        await asyncio.sleep(1)
        async with ann.lock("a"):
            pass


@virtual
async def test_nobody_is_told_to_wait_where_the_quorum_is_new() -> None:
    """Its servers are told that it is new, and then asked for votes, without a pause."""
    store = store_on(of := servers())
    for server in of:
        server.members[0].late = 0.05
    async with aiolock.connect(store) as ann:
        lease = await ann.lock("a").acquire(blocking=False)
        assert lease is not None
        await lease.release()
