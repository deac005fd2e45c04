"""Everything that is held or waited for, and what has a name, whatever it is."""

from __future__ import annotations

import asyncio

import pytest
import redis

import aiolock
from aiolock import ClientClosed
from aiolock.stores.memory import MemoryServer
from aiolock.stores.redis._errors import ACL_RULE
from tests.support.servers import RedisServer
from tests.support.worlds import World, asking, queued


async def test_snapshot_of_every_kind_equals_the_status_of_each(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """Each as its own status, of every kind, by kind and name."""
    async with (
        client.lock("order:42"),
        client.semaphore("order:42", 2),
        client.rwlock("page").read(),
        other.rwlock("page").read(),
        client.once("user:1", remember=60),
        client.election("primary").campaign("here"),
        client.periodic("report", every=3600),
    ):
        waits = asking(other.lock("order:42"))
        meets = asyncio.create_task(other.latch("ready", 1).wait())
        await queued(client.lock("order:42"), 1)
        await queued(client.latch("ready", 1), 1)
        found = await other.snapshot()
        assert [(status.kind, status.name) for status in found] == [
            ("election", "primary"),
            ("latch", "ready"),
            ("lock", "order:42"),
            ("lock", "page"),
            ("once", "user:1"),
            ("periodic", "report"),
            ("semaphore", "order:42"),
        ]
        for status in found:
            alone = await client.status(status.name, kind=status.kind)
            assert [(party.client, party.seq) for party in (*status.holders, *status.waiters)] == [
                (party.client, party.seq) for party in (*alone.holders, *alone.waiters)
            ]
            # Its fence says since when: of two in one µs, one is of the next.
            assert all(status.now + 0.001 > party.since > 0 for party in status.holders)
        assert [status.name for status in await client.snapshot("*:*")] == [
            *("order:42", "user:1", "order:42"),
        ]
        assert await client.names("*r*", kind="lock") == ["order:42"]
        assert await client.names("[op]*") == ["order:42", "page", "primary"]
        assert await client.names("order") == []
        await client.latch("ready", 1).count_down()
        await meets
        waits.cancel()
        await asyncio.wait([waits])


async def test_snapshot_during_a_handoff_shows_the_new_holder(client: aiolock.LockClient) -> None:
    """Also where the store has not heard of it: the tasks of a process hand on by themselves."""
    lock = client.lock("a", confirm=False)
    first = await lock.acquire()
    waits = [asking(lock) for _ in range(3)]
    await queued(lock, 3)
    releasing = asyncio.create_task(first.release())
    shown = asyncio.create_task(client.snapshot())  # in the turn in which it is handed on
    await releasing
    lease = await waits[0]
    (status,) = await shown
    assert [holder.fence for holder in status.holders] == [lease.fence]
    assert await lease.release()
    for task in waits[1:]:
        await (await task).release()


async def test_snapshot_leaves_out_released_closed_and_remembered_names(
    client: aiolock.LockClient,
) -> None:
    """Neither what was released, nor what is only closed, or remembered."""
    async with client.lock("released"):
        pass
    async with client.lock("closed", min_hold=60):
        pass
    async with client.once("done", remember=60):
        pass
    await client.event("set").set()
    assert await client.snapshot() == []


async def test_names_leave_out_other_prefixes_that_look_alike(world: World) -> None:
    """Nor one that begins alike, or has what would be a pattern in it."""
    if world.kind == "memory":
        return  # a server of it is one prefix
    async with (
        world.client(prefix="a[b]*") as ours,
        world.client(prefix="a[b]*c") as longer,
        world.client(prefix="abc") as like,
        ours.lock("x"),
        longer.lock("y"),
        like.lock("z"),
    ):
        assert await ours.names() == ["x"]
        assert await longer.names() == ["y"]
        assert await like.names() == ["z"]


async def test_status_request_and_break_by_name_act_on_the_given_kind_only(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """Looked at, asked for and taken away by who knows no more of it."""
    async with client.semaphore("api", 2) as lease:
        status = await other.status("api", kind="semaphore")
        assert (status.kind, status.name, status.limit) == ("semaphore", "api", 2)
        assert await other.request_release("api", kind="semaphore")
        await asyncio.wait_for(lease.requested.wait(), 10)
        assert not await other.request_release("api")
        assert not await other.break_("api")
        second = await client.semaphore("api", 2).acquire()
        assert await other.break_("api", kind="semaphore", fence=second.fence)
        await asyncio.wait_for(second.lost.wait(), 10)
        assert not lease.lost.is_set()


async def test_names_of_more_than_one_page_are_complete(
    client: aiolock.LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than one page of them, wherever there are pages."""
    for module in (
        *("memory._listing", "sqlite._transaction", "redis._reading"),
        *("postgres._reading", "mysql._transaction"),
    ):
        monkeypatch.setattr(f"aiolock.stores.{module}._PAGE", 20)
    leases = [await client.lock(f"order:{n}").acquire() for n in range(70)]
    assert len(await client.names("order:*")) == len(leases)
    await asyncio.gather(*[lease.release() for lease in leases])


async def test_snapshot_with_wrong_arguments_raises_type_or_value_error() -> None:
    """A clear error, before anything else."""
    client = aiolock.connect(MemoryServer())
    with pytest.raises(TypeError, match="pattern must be a str"):
        await client.snapshot(3)  # type: ignore[arg-type]
    for ask in (client.snapshot("*", kind="locks"), client.status("a", kind="locks")):
        with pytest.raises(ValueError, match=r"kind must be one of lock, semaphore, .*'locks'"):
            await ask
    with pytest.raises(ClientClosed):
        await client.snapshot()


async def test_names_leave_out_keys_that_aiolock_did_not_write(
    redis_server: RedisServer, prefix: str
) -> None:
    """What no aiolock has written is passed over."""
    redis_server.call("SET", f"{prefix}:{{x}}:theirs", "1")
    with redis.Redis(port=redis_server.port) as raw:
        raw.set(prefix.encode() + b":{\xff}:holders", "1")
        async with aiolock.connect(redis_server.url, prefix=prefix) as client, client.lock("a"):
            assert await client.names() == ["a"]
        raw.delete(prefix.encode() + b":{\xff}:holders", f"{prefix}:{{x}}:theirs")


async def test_names_without_the_scan_permission_raises_store_error_naming_it(
    redis_server: RedisServer, prefix: str
) -> None:
    """It says which one; everything else works."""
    user = f"{prefix}-user"
    rule = ACL_RULE.format(prefix=prefix).split()
    redis_server.call("ACL", "SETUSER", user, "on", ">pw", *rule)
    url = f"redis://{user}:pw@127.0.0.1:{redis_server.port}"
    async with aiolock.connect(url, prefix=prefix) as client, client.lock("a"):
        with pytest.raises(aiolock.StoreError, match=r"grant the user: \+scan"):
            await client.names()
        redis_server.call("ACL", "SETUSER", user, "+scan")
        assert await client.names() == ["a"]
    redis_server.call("ACL", "DELUSER", user)


MALFORMED = [
    b"\xff\xfe:7",
    b"\xff",
    b"x9000:me:1:no-number",
    b"x9000:me:1:" + b"9" * 400,
    b"x9000:me:" + b"9" * 5000 + b":7",
    b":",
]
"""What others may have written where Redis keeps holders, or waiters."""


@pytest.mark.parametrize("member", MALFORMED, ids=range(len(MALFORMED)))
async def test_malformed_entries_in_redis_keep_only_their_own_name_busy(
    redis_server: RedisServer, prefix: str, member: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """It is shown somehow, and keeps its own name busy; all else goes on as before."""
    keys = redis.Redis.from_url(redis_server.url)
    for key, score in (("holders", 4e12), ("queue", 1.0)):
        keys.zadd(f"{prefix}:{{lock:theirs}}:{key}", {member: score})
        keys.expire(f"{prefix}:{{lock:theirs}}:{key}", 60)
    for name in (b"lock:text", b"\xff"):
        keys.set(prefix.encode() + b":{" + name + b"}:holders", "theirs", ex=60)
    async with aiolock.connect(redis_server.url, prefix=prefix) as client, client.lock("ours"):
        keys.publish(f"{prefix}:push:{client.id}", b"\xff\xfe nonsense")
        theirs = client.lock("theirs")
        status = await theirs.status()
        assert (len(status.holders), len(status.waiters)) == (1, 1)
        assert str(status)
        with pytest.raises(aiolock.AcquireTimeout):
            async with theirs.acquire(timeout=0.1):
                pass
        assert await theirs.try_acquire() is None
        assert await theirs.locked()
        with pytest.raises(aiolock.StoreError, match="something else than a lock"):
            await client.lock("text").status()
        found = await client.snapshot()
        assert [each.name for each in found] == ["ours", "theirs"]
    assert "could not deal with" not in caplog.text
    keys.close()
