"""Servers of a quorum that answer and cannot vote, or do not answer at a bad moment."""

from __future__ import annotations

import asyncio

from tests.quorums import clients, servers
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
