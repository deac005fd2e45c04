"""Groups and shards on several servers: a majority keeps the members and what they say."""

from __future__ import annotations

import aiolock
from aiolock.stores.memory import MemoryServer
from tests.support.meetings import check_groups_and_shards


async def test_groups_and_shards_on_a_quorum_are_those_of_one_server() -> None:
    """Members are readers, and what they say is posted, as that of a leader."""
    servers = [MemoryServer() for _ in range(3)]
    await check_groups_and_shards(lambda: aiolock.connect(servers))
