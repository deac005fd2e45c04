"""An upgrade in a running system: wheels of two versions, in environments of their own, one store.

The older one is the last commit before five features that stores must know. Since then PostgreSQL
has another protocol, so its schema is migrated here while clients of the older version use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

import aiolock
from aiolock.stores import postgres
from aiolock.stores.postgres import _schema
from tests.proof.test_versions import (
    both,
    majority,
    place,
    test_expiry_hands_the_lock_to_a_waiter_of_the_other_version,
    test_release_hands_off_to_a_waiter_of_the_other_version,
    test_waiters_with_shares_are_all_served_beside_the_other_version,
)
from tests.support import versions
from tests.support.databases import PostgresServer
from tests.support.etcds import EtcdServer
from tests.support.neighbours import Neighbour, both_see
from tests.support.versions import Version

# With the older version of this module, on each kind of store.
__all__ = [
    "both",
    "majority",
    "place",
    "test_expiry_hands_the_lock_to_a_waiter_of_the_other_version",
    "test_release_hands_off_to_a_waiter_of_the_other_version",
    "test_waiters_with_shares_are_all_served_beside_the_other_version",
]

BEFORE: Final = "3e0291d34148c6a2635c1193f80555236e86388c"
"""The last commit before leases were handed on, shares, groups, rates and paths."""

pytestmark = [pytest.mark.one_loop, pytest.mark.long]


@pytest.fixture(scope="module")
def other() -> Version:
    """The older version."""
    try:
        return versions.at(BEFORE)
    except versions.Unavailable as error:
        pytest.skip(f"no older version: {error}")


@contextlib.asynccontextmanager
async def neighbours(
    other: Version, target: str, prefix: str, count: int
) -> AsyncIterator[list[Neighbour]]:
    """Processes of the older version."""
    async with contextlib.AsyncExitStack() as stack:
        made = [Neighbour(other.python, target, {"prefix": prefix}) for _ in range(count)]
        yield list(await asyncio.gather(*map(stack.enter_async_context, made)))


def init_db(version: Version, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command of a version."""
    command = (str(version.python), "-I", "-m", "aiolock", "init-db", *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False)


async def test_schema_is_migrated_while_older_clients_hold_and_wait(
    other: Version, own_postgres_at: PostgresServer, prefix: str
) -> None:
    """Older clients notice nothing; newer ones say what to do before, and share locks after it."""
    owner, url = own_postgres_at.url(), own_postgres_at.url("app")
    assert init_db(other, owner, "--role", "app").returncode == 0
    async with neighbours(other, url, prefix, 3) as (ann, bob, cat):
        fences = [await ann.acquire("x", "ann")]
        await bob.ask("x", "bob")
        await both_see((ann, bob), "x", [ann], bob)
        with pytest.raises(aiolock.StoreError, match="run `aiolock init-db URL` of the newer one"):
            await aiolock.connect(url, prefix=prefix).open()

        for _ in range(2):  # it may be run again
            await asyncio.to_thread(postgres.create_schema, owner, "app")
        for side in (ann, bob, cat):
            fence = await side.acquire("y", "turn")
            assert fence > fences[0]
            assert await side.release("turn")

        async with aiolock.connect(url, prefix=prefix) as client:
            assert client.protocols == (_schema.PROTOCOL,)
        new = await _joined(url, prefix)
        async with new:
            await new.ask("x", "new")
            await both_see((ann, new), "x", [ann], bob, new)
            for side, who, following in ((ann, "ann", bob), (bob, "bob", new)):
                assert await side.release(who)
                fences.append(await following.holds("bob" if following is bob else "new"))
            await cat.ask("x", "cat")
            await both_see((cat, new), "x", [new], cat)
            assert await new.release("new")
            fences.append(await cat.holds("cat"))
            assert await cat.release("cat")
        assert fences == sorted(set(fences))
    refused = init_db(other, owner)
    assert refused.returncode == 1
    assert f"protocol {_schema.PROTOCOL}" in refused.stderr
    assert "later version of aiolock" in refused.stderr


async def _joined(url: str, prefix: str) -> Neighbour:
    """A process of this version, still to be entered."""
    return Neighbour(Path(sys.executable), url, {"prefix": prefix})


@pytest.fixture
def own_postgres_at() -> Iterator[PostgresServer]:
    """A server without a schema."""
    with PostgresServer() as server:
        server.execute("DROP SCHEMA IF EXISTS aiolock CASCADE")
        yield server


async def test_older_and_newer_version_share_a_lock_in_etcd(
    other: Version, etcd_server: EtcdServer, prefix: str
) -> None:
    """In the order of one queue, with rising fences."""
    url = etcd_server.url()
    async with neighbours(other, url, prefix, 1) as (old,), await _joined(url, prefix) as new:
        fences = [await old.acquire("x", "1")]
        await new.ask("x", "2")
        await both_see((old, new), "x", [old], new)
        await old.ask("x", "3")
        await both_see((old, new), "x", [old], new, old)
        for side, who, following, next_one in ((old, "1", new, "2"), (new, "2", old, "3")):
            assert await side.release(who)
            fences.append(await following.holds(next_one))
        assert await old.release("3")
        assert fences == sorted(set(fences))
