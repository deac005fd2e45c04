"""Replicas confirm what a client has: real masters and replicas, held up, killed and promoted."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import fakeredis
import pytest

import aiolock
from aiolock._engine import policy
from aiolock.protocol import Acquire, Form, Granted, GrantPushed, GrantUnconfirmed, WaiterId
from aiolock.store import Store
from aiolock.stores.memory import MemoryServer
from aiolock.stores.redis import (
    _barrier,
    _confirmed,
    _health,
    _replicated,
    _replication,
    from_url,
)
from aiolock.stores.redis._errors import ACL_RULE
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._replies import Master
from aiolock.stores.redis._scripts import BARRIER
from aiolock.stores.redis._sharing import ACQUIRE
from aiolock.stores.redis._urls import pool_at
from aiolock.testing import StoreContract
from tests.support.cancel import cancel_everywhere
from tests.support.failures import Peek, check_nothing_left, take, until, wait_until
from tests.support.proxy import Link
from tests.support.replicas import AT_ONCE, Cluster, cluster, following
from tests.support.sentinels import Watched
from tests.support.servers import RedisServer
from tests.support.worlds import empty

LONG = 60
HASTE = 0.3


@pytest.fixture
async def one() -> AsyncIterator[Cluster]:
    """A master and a replica."""
    async with cluster() as made:
        yield made


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clients wait for replicas, and claims last, for longer than any test does."""
    monkeypatch.setattr(policy, "CLAIM", 3000 * LONG)
    monkeypatch.setattr(_replicated, "PATIENCE", LONG)
    monkeypatch.setattr(_replication, "OPENING", LONG)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have clients wait for replicas only for a moment: where none comes, none is waited for."""
    monkeypatch.setattr(_replicated, "_within", lambda _: HASTE)
    monkeypatch.setattr(_replicated, "PATIENCE", HASTE)


async def nothing_left(one: Cluster, prefix: str) -> None:
    """Check that nobody is left at the master, nor the key of a barrier."""
    await until(lambda: not one.master.call("KEYS", f"{prefix}:barrier:*"))
    check_nothing_left(one.master, prefix)


# What cannot be


@pytest.mark.parametrize("replicas", [0, -1])
async def test_connect_with_fewer_than_one_replica_raises_value_error(replicas: int) -> None:
    """There is one at least."""
    with pytest.raises(ValueError, match="1 or more"):
        aiolock.connect("redis://localhost", replicas=replicas)


@pytest.mark.parametrize("replicas", [1.0, True, "1", "ALL", b"all", ()])
async def test_connect_with_replicas_of_another_type_raises_type_error(replicas: Any) -> None:
    """It is a number, or "all"."""
    with pytest.raises(TypeError, match="whole number"):
        aiolock.connect("redis://localhost", replicas=replicas)


@pytest.mark.parametrize(
    "target",
    [
        *("memory://", "sqlite:///locks.db", "postgresql://localhost/a", "mysql://localhost/a"),
        MemoryServer(),
        from_url("redis://localhost", "aiolock"),
    ],
)
async def test_connect_with_replicas_to_another_store_raises_value_error(target: Any) -> None:
    """Other stores have none, and a store that was made already cannot be given any."""
    with pytest.raises(ValueError, match="Redis or Valkey server"):
        aiolock.connect(target, replicas="all")


async def test_open_with_fewer_replicas_than_wanted_raises_store_error(one: Cluster) -> None:
    """Fewer replicas than are waited for, or none of "all", is an error when a client opens."""
    with pytest.raises(
        aiolock.StoreError, match=r"1 of 2 replicas follow Redis at 127.*fewer than"
    ):
        await aiolock.connect(one.url, replicas=2).open()
    one.replica.kill()
    await until(lambda: not following(one.master), within=30)
    with pytest.raises(aiolock.StoreError, match="has no replica that follows it"):
        await aiolock.connect(one.url, replicas="all").open()


async def test_open_at_a_replica_with_replicas_raises_store_error(one: Cluster) -> None:
    """A replica is no place for locks, with replicas as without."""
    with pytest.raises(aiolock.StoreError, match="is a replica"):
        await aiolock.connect(one.replica.url, replicas=1).open()


@pytest.mark.parametrize("right", ["-wait", "-info"])
async def test_open_without_the_right_to_wait_or_info_names_both(one: Cluster, right: str) -> None:
    """Who may not wait for replicas is told which right to grant."""
    one.master.call("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", right)
    url = one.url.replace("//", "//app:pw@")
    with pytest.raises(aiolock.StoreError, match=r"grant the user: \+wait \+info"):
        await aiolock.connect(url, replicas=1).open()


async def test_acl_rule_with_wait_and_info_is_enough_for_replicas(
    one: Cluster, prefix: str
) -> None:
    """No more than are in the docs."""
    rule = f"{ACL_RULE.format(prefix=prefix)} +wait +info"
    one.master.call("ACL", "SETUSER", "app", "on", ">pw", *rule.split())
    url = one.url.replace("//", "//app:pw@")
    async with aiolock.connect(url, prefix=prefix, replicas=1) as client:
        assert await (await take(client.lock("lock"))).release()
    await nothing_left(one, prefix)


async def test_open_at_a_server_without_a_replid_raises_store_error(
    one: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a fail-over could not be noticed nothing can be confirmed."""
    monkeypatch.setattr(BARRIER, "decode", lambda _: Master("", 1))
    with pytest.raises(aiolock.StoreError, match="has no master_replid"):
        await aiolock.connect(one.url, prefix=prefix, replicas=1).open()


async def test_open_with_replicas_at_a_fakeredis_raises_store_error(prefix: str) -> None:
    """What does not know of replicas is an error that says so."""
    async with fakeredis.FakeAsyncRedis() as fake:
        with pytest.raises(aiolock.StoreError, match="Redis at"):
            await aiolock.connect(fake, prefix=prefix, replicas=1).open()


async def test_open_with_a_replica_that_hangs_raises_store_error(
    one: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client does not open where the replicas that are connected confirm nothing."""
    monkeypatch.setattr(_replication, "OPENING", HASTE)
    one.replica.pause()
    with pytest.raises(aiolock.StoreError, match=r"0 of 1 replicas confirmed it within 0\.3 s"):
        await aiolock.connect(one.url, prefix=prefix, replicas=1).open()


# What is confirmed


async def test_acquire_returns_only_when_replicas_have_the_grant(
    one: Cluster, prefix: str, patient: None
) -> None:
    """Not before that; and its key is gone when the client has closed."""
    master, replica = Peek(one.master, prefix), Peek(one.replica, prefix)
    async with aiolock.connect(one.url, prefix=prefix, replicas=1) as client:
        one.replica.link.deaf()
        taking = asyncio.create_task(take(client.lock("lock")))
        await until(master.holders)
        await asyncio.sleep(0.1)  # it would have had the answer long ago
        assert not taking.done()
        assert not replica.holders()
        one.replica.link.hear()
        lease = await taking
        assert replica.holders() == master.holders()
        await lease.release()
    await nothing_left(one, prefix)


async def test_handoff_is_entered_only_when_replicas_have_the_grant(
    one: Cluster, prefix: str, patient: None
) -> None:
    """Whoever is handed the lock enters when replicas know of it: also by a task of its client."""
    master, replica = Peek(one.master, prefix), Peek(one.replica, prefix)
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(aiolock.connect(one.url, prefix=prefix))
        client = await stack.enter_async_context(
            aiolock.connect(one.url, prefix=prefix, replicas="all")
        )
        for giver in (plain, client):
            held = await take(giver.lock("lock"))
            taking = asyncio.create_task(take(client.lock("lock")))
            await master.queued(1)
            await client.lock("lock").status()  # answered behind that, so it knows who waits
            one.replica.link.deaf()
            assert await held.release()
            await until(lambda: not master.queue())
            await asyncio.sleep(0.1)  # as above
            assert not taking.done()
            one.replica.link.hear()
            lease = await taking
            assert replica.holders() == master.holders()
            assert await lease.release()


async def test_deadline_moves_only_when_replicas_have_the_renewal(
    one: Cluster, prefix: str, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then nobody relies on it."""
    async with aiolock.connect(one.url, prefix=prefix, replicas=1) as client:
        monkeypatch.setattr(_replicated, "_within", lambda _: LONG)
        lease = await take(client.lock("lock", ttl=20))
        await lease.extend(40)
        assert lease.remaining() > 20
        monkeypatch.setattr(_replicated, "_within", lambda _: HASTE)
        one.replica.link.deaf()
        with pytest.raises(aiolock.StoreError, match="0 of 1 replicas confirmed"):
            await lease.extend(80)
        assert Peek(one.master, prefix).ends() > asyncio.get_running_loop().time() + 60
        assert lease.remaining() < 40
        assert lease.state == "at_risk"
        assert await lease.verify()  # which prolongs nothing
        one.replica.link.hear()
        await until(lambda: lease.state == "held")  # by the next renewal
        assert await lease.release()


async def test_lease_whose_renewals_replicas_miss_is_at_risk_and_lost(
    one: Cluster, prefix: str
) -> None:
    """The lease is at risk, and lost at the deadline that they have confirmed."""
    async with aiolock.connect(one.url, prefix=prefix, replicas=1) as client:

        async def hold() -> None:
            async with client.lock("lock", ttl=1.5) as lease:
                one.replica.link.deaf()
                await until(lambda: lease.state == "at_risk")
                await asyncio.sleep(LONG)

        with pytest.raises(aiolock.LeaseLost):
            await hold()


async def test_extend_at_a_server_that_wants_more_replicas_waits_for_them(
    one: Cluster, prefix: str, hasty: None
) -> None:
    """NOREPLICAS: nobody knows, of a grant as of a renewal, until it is over."""
    async with aiolock.connect(one.url, prefix=prefix, replicas=1) as client:
        lease = await take(client.lock("lock", ttl=20))
        one.master.call("CONFIG", "SET", "min-replicas-to-write", "2")
        with pytest.raises(aiolock.StoreError):
            await client.lock("another").acquire(timeout=0.1)
        extending = asyncio.create_task(lease.extend(40))
        await asyncio.sleep(0.1)  # it is asked for again and again
        assert lease.remaining() < 20
        one.master.call("CONFIG", "SET", "min-replicas-to-write", "0")
        await extending
        assert lease.remaining() > 20
        assert await lease.release()
    await nothing_left(one, prefix)


async def test_extend_with_replicas_on_a_full_server_succeeds(one: Cluster, prefix: str) -> None:
    """Where a server takes nothing new, what is held can be renewed."""
    async with aiolock.connect(one.url, prefix=prefix, replicas=1, ttl=20) as client:
        async with client.lock("lock") as lease:
            one.master.call("CONFIG", "SET", "maxmemory", "1")
            await lease.extend(40)
            assert lease.remaining() > 20
        one.master.call("CONFIG", "SET", "maxmemory", "0")


async def test_count_resize_and_finish_unconfirmed_raise_store_error(
    one: Cluster, prefix: str, hasty: None
) -> None:
    """What is counted, resized or done once is confirmed, too, or nobody knows."""
    async with aiolock.connect(one.url, prefix=prefix, replicas=1) as client:
        semaphore, latch = client.semaphore("s", 2), client.latch("l", 2)

        @client.once("o", remember=LONG)
        async def work() -> None:
            one.replica.link.deaf()

        with pytest.raises(aiolock.StoreError, match="nobody knows whether that is remembered"):
            await work()
        with pytest.raises(aiolock.StoreError, match="0 of 1 replicas"):
            await latch.count_down()
        with pytest.raises(aiolock.StoreError, match="0 of 1 replicas"):
            await semaphore.resize(3)
        one.replica.link.hear()
        async with client.once("o", remember=LONG) as lease:
            assert lease is None  # it is, by now
        assert await latch.count_down() == 0


async def test_client_with_replicas_serves_every_kind_of_lock(one: Cluster, prefix: str) -> None:
    """Whatever there is works as without replicas."""
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(aiolock.connect(one.url, prefix=prefix, replicas=1))
            for _ in range(2)
        ]
        entered = list[int]()

        async def work(client: aiolock.LockClient) -> None:
            for _ in range(10):
                async with client.lock("lock") as lease:
                    entered.append(lease.fence)

        await asyncio.gather(*[work(client) for client in (first, second) for _ in range(5)])
        assert entered == sorted(set(entered))
        assert len(entered) == 100
        again = first.lock("again", reentrant=True)
        async with again as lease, again as inner:
            assert inner.fence == lease.fence
        async with first.multilock("a", "b", "c"):
            pass
        rw = first.rwlock("rw")
        async with rw.read(), second.rwlock("rw").read():
            pass
        async with rw.write() as writing:
            await writing.downgrade()
            async with second.rwlock("rw").read():
                pass
        async with first.semaphore("s", 2), second.semaphore("s", 2):
            pass
        await asyncio.gather(first.barrier("b", 2).wait(), second.barrier("b", 2).wait())
        latch = first.latch("l", 2)
        await asyncio.gather(latch.wait(), latch.count_down(), second.latch("l", 2).count_down())
    await nothing_left(one, prefix)


# What they do not confirm


async def test_grant_unconfirmed_by_replicas_is_given_back(
    one: Cluster, prefix: str, hasty: None
) -> None:
    """A grant that replicas do not confirm is given back: others who need none get it at once."""
    master = Peek(one.master, prefix)
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(aiolock.connect(one.url, prefix=prefix))
        client = await stack.enter_async_context(
            aiolock.connect(one.url, prefix=prefix, replicas=1)
        )
        one.replica.pause()
        wrong = r"0 of 1 replicas confirmed it within 0.3 s at Redis at 127.0.0.1:\d+: see"
        with pytest.raises(aiolock.StoreError, match=wrong):
            await take(client.lock("lock"))
        with pytest.raises(aiolock.StoreError, match=wrong):
            await client.lock("lock").try_acquire()
        async with plain.lock("lock"):
            pushed = asyncio.create_task(take(client.lock("lock")))
            await master.queued(1)
            behind = asyncio.create_task(take(plain.lock("lock")))
            await master.queued(2)
        with pytest.raises(aiolock.StoreError, match=wrong):
            await pushed
        assert await (await behind).release()
        one.replica.resume()
    await nothing_left(one, prefix)


@pytest.mark.parametrize("shared", [False, True])
async def test_grant_unconfirmed_of_an_unknown_waiter_is_given_back(*, shared: bool) -> None:
    """What is pushed to one that is not known any more, and nobody confirms, is in others' way."""
    form = Form(claim=3000, shared=shared)
    async with aiolock.connect(MemoryServer()) as client:
        store, waiter = client._engine.store, WaiterId(client.id, 10**6)
        granted = await store.submit(
            Acquire("lock:lock", waiter, form, 1000 * LONG, ticket=0, wait=True, max_waiters=0)
        )
        assert isinstance(granted, Granted)
        client._engine.waiters.deliver(
            GrantUnconfirmed(
                "lock:lock", waiter, form, granted.fence, aiolock.StoreError("nobody has it")
            )
        )
        async with asyncio.timeout(LONG / 2), client.lock("lock"):
            pass


async def test_timeout_while_waiting_for_replicas_is_kept_and_leaves_nothing(
    one: Cluster, prefix: str, patient: None
) -> None:
    """The caller's timeout holds, and nothing is left after it."""
    master = Peek(one.master, prefix)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            aiolock.connect(one.url, prefix=prefix, replicas=1)
        )
        other = await stack.enter_async_context(aiolock.connect(one.url, prefix=prefix))
        one.replica.link.deaf()
        with pytest.raises(aiolock.StoreError):
            await client.lock("lock").acquire(timeout=0.1)
        await until(lambda: not master.holders())
        held = await take(other.lock("lock"))
        asking = asyncio.create_task(client.lock("lock").try_acquire(timeout=0.5))
        await master.queued(1)
        assert await held.release()
        assert await asking is None
        await until(lambda: not master.holders())
        one.replica.link.hear()


@pytest.mark.parametrize("pushed", [False, True])
async def test_acquire_cancelled_while_waiting_for_replicas_gives_the_grant_back(
    one: Cluster, prefix: str, patient: None, *, pushed: bool
) -> None:
    """Who is cancelled while it waits for replicas goes at once, and the grant goes back."""
    master = Peek(one.master, prefix)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(
            aiolock.connect(one.url, prefix=prefix, replicas=1)
        )
        other = await stack.enter_async_context(aiolock.connect(one.url, prefix=prefix))
        held = await take(other.lock("lock")) if pushed else None
        one.replica.link.deaf()
        taking = asyncio.create_task(take(client.lock("lock")))
        if held is not None:
            await master.queued(1)
            assert await held.release()
        await until(lambda: client.id in str(master.holders()))
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        await until(lambda: not master.holders())
        one.replica.link.hear()
        async with client.lock("lock"):  # by a barrier that covers the old one, too
            assert len(master.holders()) == 1
    await nothing_left(one, prefix)


async def test_acquire_cancelled_before_its_repetition_gives_the_grant_back(
    one: Cluster, prefix: str, patient: None
) -> None:
    """A grant goes back whose confirmation was cut off, though the next question was never sent."""
    master = Peek(one.master, prefix)
    async with aiolock.connect(one.url, prefix=prefix, replicas=1, ttl=LONG) as client:
        store: Any = client._engine.store
        one.replica.link.deaf()
        taking = asyncio.create_task(take(client.lock("lock")))
        await until(lambda: store.replication.barrier._covered)
        assert client.id in str(master.holders())
        one.entrance.refuse()
        one.entrance.cut()
        await until(lambda: store.replication.barrier._arrived and store.replication.losses)
        (waiting,) = store.replication.barrier._arrived
        waiting.conclude(_barrier.Outcome.MISSED)  # as when its time is over
        queued = store.store.session.pipe.outbox.queue.commands
        assert [each.script for each in queued].count(ACQUIRE) == 1
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        one.replica.link.hear()
        one.entrance.accept()
        await until(lambda: not master.holders())
    await nothing_left(one, prefix)


async def test_aclose_while_waiting_for_replicas_waits_for_none(
    one: Cluster, prefix: str, patient: None
) -> None:
    """A client that is closed waits for no replica."""
    client = aiolock.connect(one.url, prefix=prefix, replicas=1)
    await client.open()
    one.replica.link.deaf()
    taking = asyncio.create_task(take(client.lock("lock")))
    await until(Peek(one.master, prefix).holders)
    await client.aclose()
    with pytest.raises(aiolock.ClientClosed):
        await taking
    assert not Peek(one.master, prefix).holders()
    await nothing_left(one, prefix)
    one.replica.link.hear()


# All, some


async def test_replicas_of_one_two_or_all_need_as_many_that_follow(
    prefix: str, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two is enough for 1, and not for all; one that has left is not waited for."""

    async def lacks_one(client: aiolock.LockClient) -> None:
        """On a busy machine the server's count may come when its time is over, but not always."""
        said = set[str]()
        monkeypatch.setattr(_replicated, "_within", lambda _: HASTE)
        for _ in range(10):
            with pytest.raises(aiolock.StoreError) as caught:
                await take(client.lock("lock"))
            said.add(str(caught.value))
            if "1 of 2 replicas confirmed" in str(caught.value):
                return
        raise AssertionError(said)

    async with cluster(2) as two, AsyncExitStack() as stack:
        some, both, every = [
            await stack.enter_async_context(
                aiolock.connect(two.url, prefix=prefix, replicas=replicas)
            )
            for replicas in (1, 2, "all")
        ]
        two.replica.link.deaf()
        await lacks_one(every)
        await lacks_one(both)
        monkeypatch.setattr(_replicated, "_within", lambda _: LONG)
        assert await (await take(some.lock("lock"))).release()
        two.replica.link.refuse()  # first: it would be there again at once
        two.replica.link.cut()
        await until(lambda: following(two.master) == 1, within=30)
        assert await (await take(every.lock("lock"))).release()
        await lacks_one(both)


# The connection of the barrier


def third(one: Cluster) -> Link:
    """The connection on which replicas are waited for: dialled when the others are there."""
    return one.entrance.links[2]


async def test_barrier_connection_that_breaks_is_dialled_again(
    one: Cluster, prefix: str, patient: None
) -> None:
    """It is dialled again, and whoever waits is confirmed there."""
    async with aiolock.connect(one.url, prefix=prefix, replicas=1) as client:
        link = third(one)
        assert len(one.entrance.links) == 3
        link.deaf(drop=True)
        taking = asyncio.create_task(take(client.lock("lock")))
        await until(Peek(one.master, prefix).holders)
        assert not taking.done()
        link.cut()
        assert await (await taking).release()


async def test_barrier_connection_that_died_in_silence_is_dialled_again(
    one: Cluster, prefix: str, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has died without a word while nobody needed it is noticed, and dialled again."""
    for module in (_health, _replicated):
        monkeypatch.setattr(module, "HEARTBEAT", 0.05)
    monkeypatch.setattr(_barrier, "PATIENCE", HASTE)
    monkeypatch.setattr(_barrier, "_ANSWER", HASTE)
    async with aiolock.connect(one.url, prefix=prefix, replicas=1) as client:
        dead = third(one)
        dead.deaf(drop=True)
        await until(lambda: one.entrance.connections == 4)
        monkeypatch.setattr(_replicated, "_within", lambda _: LONG)
        assert await (await take(client.lock("lock"))).release()


# Fail-over


def forget(one: Cluster) -> None:
    """Kill the master, and promote its replica, whatever that has got."""
    one.master.kill()
    one.replica.link.cut()
    one.replica.promote()


async def test_grant_confirmed_by_all_replicas_survives_any_promotion(prefix: str) -> None:
    """What "all" replicas have confirmed is not forgotten, whichever of them is promoted."""
    for promoted in (0, 1):
        async with cluster(2) as two:
            client = aiolock.connect(two.url, prefix=prefix, replicas="all")
            await client.open()
            lease = await take(client.lock("lock", ttl=LONG))
            two.master.kill()  # at once, with SIGKILL
            two.replicas[promoted].promote()
            grants = Peek(two.replicas[promoted], prefix).holders()
            assert [grant.rpartition(":")[2] for grant in grants] == [str(lease.fence)]
            two.entrance.lead_to(two.replicas[promoted].port)
            async with aiolock.connect(two.replicas[promoted].url, prefix=prefix) as other:
                assert await other.lock("lock").try_acquire() is None
                assert await lease.verify()
                assert await lease.release()
                again = await take(other.lock("lock"))
                assert again.fence > lease.fence
                assert await again.release()
            with pytest.raises(aiolock.StoreError, match="replicas"):
                # The other one does not follow it yet.
                await take(client.lock("lock", ttl=0.3))
            await client.aclose()


async def test_grants_under_load_confirmed_by_all_survive_a_killed_master(prefix: str) -> None:
    """The master is killed while tasks take locks: each whose body has begun is on each replica."""
    async with cluster(2) as two:
        for replica in two.replicas:
            replica.link.delay(
                to_client=0.02
            )  # without waiting, what was granted in that time is lost
        async with aiolock.connect(two.url, prefix=prefix, replicas="all", ttl=LONG) as client:
            begun = dict[str, aiolock.Lease]()

            async def work(task: int) -> None:
                for number in itertools.count():
                    name = f"{task}.{number}"
                    begun[name] = await take(client.lock(name))

            working = [asyncio.create_task(work(task)) for task in range(10)]
            await until(lambda: len(begun) > 50)
            two.master.kill()
            granted = dict(begun)
            two.entrance.lead_to(two.replica.port)
            for replica in two.replicas:
                replica.link.cut()
                replica.promote()
            for task in working:
                task.cancel()
            await asyncio.wait(working)
            for replica in two.replicas:
                for name, lease in granted.items():
                    (grant,) = Peek(replica, prefix, f"lock:{name}").holders()
                    assert grant.endswith(f":{lease.fence}")


async def test_failover_forgets_grants_only_of_clients_without_replicas(
    one: Cluster, prefix: str, hasty: None
) -> None:
    """Without the setting what a replica lacks is forgotten, and has two holders for a while.

    With it, that was never granted.
    """
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(aiolock.connect(one.url, prefix=prefix))
        careful = await stack.enter_async_context(
            aiolock.connect(one.url, prefix=prefix, replicas="all")
        )
        one.replica.link.deaf(drop=True)
        with pytest.raises(aiolock.StoreError, match="0 of 1 replicas confirmed"):
            await take(careful.lock("careful", ttl=LONG))
        names = [f"lock {number}" for number in range(5)]
        # Renewed after 3 s, by when the others have them.
        leases = [await take(plain.lock(name, ttl=9)) for name in names]
        forget(one)
        one.entrance.lead_to(one.replica.port)
        async with aiolock.connect(one.replica.url, prefix=prefix) as other:
            second = [await take(other.lock(name, ttl=LONG)) for name in names]
            assert {lease.state for lease in leases} <= {"held", "at_risk"}  # each has two holders
            for first, after in zip(leases, second, strict=True):
                assert after.fence > first.fence
            for lease in leases:
                async with asyncio.timeout(LONG):
                    await lease.lost.wait()
            for lease in second:
                assert await lease.release()


async def test_barrier_at_the_new_master_confirms_nothing_of_the_old(
    one: Cluster, prefix: str, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the old master grants is not confirmed by a barrier on the new one.

    Not what is answered, not what is pushed, and not a renewal.
    """
    old, new = Peek(one.master, prefix), Peek(one.replica, prefix, "lock:another")
    await one.add(of=one.replica)
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(aiolock.connect(one.master.url, prefix=prefix))
        client = await stack.enter_async_context(
            aiolock.connect(one.url, prefix=prefix, replicas=1)
        )
        held = await take(client.lock("held", ttl=LONG))
        given = await take(plain.lock("lock"))
        pushed = asyncio.create_task(take(client.lock("lock")))
        await old.queued(1)
        one.replica.promote()
        one.replica.link.cut()
        one.entrance.lead_to(one.replica.port)
        third(one).cut()
        with pytest.raises(aiolock.StoreError, match="lead to different masters"):
            await take(client.lock("another"))
        with pytest.raises(aiolock.StoreError, match="lead to different masters"):
            await held.extend(2 * LONG)
        assert held.remaining() < LONG
        assert await given.release()
        with pytest.raises(aiolock.StoreError, match="lead to different masters"):
            await pushed
        await until(lambda: not old.holders())
        # Now the others get there, too.
        monkeypatch.setattr(_replicated, "_within", lambda _: LONG)
        one.entrance.cut()
        lease = await take(client.lock("another"))
        assert len(new.holders()) == 1
        await held.extend(2 * LONG)
        assert await lease.release()
        assert await held.release()


async def test_barrier_at_the_old_master_confirms_nothing_of_the_new(
    prefix: str, patient: None
) -> None:
    """What the new master grants is not confirmed by a barrier on the old one."""
    async with cluster(2) as two:
        promoted = two.replica
        its_own = await two.add(of=promoted)
        async with aiolock.connect(two.url, prefix=prefix, replicas=1) as client:
            promoted.promote()
            promoted.link.cut()
            its_own.link.deaf()
            two.entrance.lead_to(promoted.port)
            two.entrance.links[0].cut()
            taking = asyncio.create_task(take(client.lock("lock")))
            await until(Peek(promoted, prefix).holders)
            await asyncio.sleep(0.1)  # the old one has a replica that answers at once
            assert not taking.done()
            its_own.link.hear()
            assert await (await taking).release()


async def test_history_without_a_connection_is_unknown_until_the_next(
    one: Cluster, prefix: str
) -> None:
    """Where commands have no connection they have no master, until the next one has said which."""
    async with aiolock.connect(one.url, prefix=prefix, replicas=1) as client:
        store: Any = client._engine.store
        replication = store.replication
        known = replication.history
        assert known
        replication.lost()
        assert not replication.history
        replication.again()
        await until(lambda: replication.history == known)


async def test_push_is_confirmed_by_the_history_of_its_own_connection() -> None:
    """So is its master: the two connections may have different ones."""
    store: Any = from_url("redis://localhost", "aiolock", replicas=1)
    replication: Any = _replication.Replication(
        *(pool_at("redis://localhost"), Names("aiolock"), "client", 1),
        drop_pushes=lambda _: None,
    )
    store.replication, asked = replication, list[str]()

    class Asked:
        def wait(self, history: str, within: float, concluded: object) -> None:
            asked.append(history)

    replication.barrier, replication.history = Asked(), "of the commands"
    replication.pushes.history = "of the subscription"
    for speaks in (True, False):
        replication.pushes.speaks = speaks
        waiter = WaiterId("client", 1)
        store._granted(GrantPushed("name", waiter, Form(claim=3000), 1, 3000, 1))
    assert asked == ["of the subscription", "of the commands"]


async def test_acquire_unconfirmed_at_a_killed_master_is_repeated_at_the_new_one(
    one: Cluster, prefix: str, patient: None
) -> None:
    """What the old master had granted, and nobody confirmed, is asked for at the new one."""
    await one.add(of=one.replica)
    async with aiolock.connect(one.url, prefix=prefix, replicas=1) as client:
        one.replica.link.deaf(drop=True)
        taking = asyncio.create_task(take(client.lock("lock")))
        await until(Peek(one.master, prefix).holders)
        forget(one)
        one.entrance.lead_to(one.replica.port)
        lease = await taking
        assert len(Peek(one.replica, prefix).holders()) == 1
        assert await lease.release()


@pytest.mark.parametrize("pushed", [False, True])
async def test_acquire_unconfirmed_at_a_killed_master_waits_for_a_late_new_one(
    one: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch, *, pushed: bool
) -> None:
    """A grant that a crash has left unconfirmed is no error: it is as one that was not answered."""
    monkeypatch.setattr(_replicated, "_within", lambda _: 1.0)
    await one.add(of=one.replica)
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(aiolock.connect(one.master.url, prefix=prefix))
        client = await stack.enter_async_context(
            aiolock.connect(one.url, prefix=prefix, replicas=1)
        )
        before = await take(plain.lock("lock")) if pushed else None
        taking = asyncio.create_task(take(client.lock("lock")))
        if before is not None:
            await Peek(one.master, prefix).queued(1)
            await until(lambda: Peek(one.replica, prefix).queue())
        one.replica.link.deaf(drop=True)
        if before is not None:
            await before.release()
        await until(lambda: client.id in str(Peek(one.master, prefix).holders()))
        await plain.aclose()  # which would wait for an answer
        one.master.kill()
        await asyncio.sleep(1.5)  # for longer than replicas are waited for
        assert not taking.done()
        one.replica.link.cut()
        one.replica.promote()
        one.replica.call("DEL", *one.replica.call("KEYS", f"{prefix}:*:holders"), "-")
        one.entrance.lead_to(one.replica.port)
        lease = await taking
        assert len(Peek(one.replica, prefix).holders()) == 1
        assert await lease.release()


async def test_acquire_unconfirmed_without_a_new_master_raises_store_error(
    one: Cluster, prefix: str, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no other master comes, that is an error as ever."""
    monkeypatch.setattr(_confirmed, "COMMAND_TIMEOUT", 2.0)
    async with aiolock.connect(one.url, prefix=prefix, replicas=1) as client:
        one.replica.link.deaf(drop=True)
        taking = asyncio.create_task(take(client.lock("lock")))
        await until(Peek(one.master, prefix).holders)
        one.master.kill()
        with pytest.raises(aiolock.StoreError, match="no connection on which to wait"):
            await asyncio.wait_for(taking, 7)
        monkeypatch.setattr("aiolock.stores.redis._health.HEARTBEAT_TIMEOUT", 0.1)


# The contract of all stores


@pytest.fixture(scope="module")
def followed() -> Iterator[RedisServer]:
    """A master and a replica, for tests that break neither."""
    with RedisServer(*AT_ONCE) as master:
        follow = ("--replicaof", "127.0.0.1", str(master.port))
        with RedisServer(*AT_ONCE, *follow) as replica:
            wait_until(lambda: following(master) and replica.call("ROLE")[3] == "connected")
            yield master


class TestReplicated(StoreContract):
    """A store that gives what a replica has keeps the contract as any other.

    It tells nobody who stands before it.
    """

    @pytest.fixture(autouse=True)
    def _server(self, followed: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._master, self._prefix = followed, prefix
        monkeypatch.setattr(_replicated, "_within", lambda _: LONG)  # some claims last 1 ms

    def store(self) -> Store:
        """Another store on the master."""
        return from_url(self._master.url, self._prefix, replicas=1)


@pytest.mark.parametrize("wanted", [False, True])
async def test_acquire_with_replicas_cancelled_at_any_step_leaves_nothing(
    followed: RedisServer, prefix: str, *, wanted: bool
) -> None:
    """Wherever it is cancelled, nothing is left: of a free lock, and of one that is handed over."""
    async with AsyncExitStack() as stack:
        client, other = [
            await stack.enter_async_context(
                aiolock.connect(followed.url, prefix=prefix, replicas=1, ttl=LONG)
            )
            for _ in range(2)
        ]
        lock, others = client.lock("lock"), other.lock("lock")
        giving = set[asyncio.Task[None]]()

        async def give() -> None:
            async with others:
                await asyncio.sleep(0.002)

        async def scenario() -> None:
            if wanted:
                giving.add(asyncio.create_task(give()))
                await asyncio.sleep(0.001)
            async with lock:
                await asyncio.sleep(0)

        ran = 0
        async for _ in cancel_everywhere(scenario):
            await asyncio.gather(*giving)
            giving.clear()
            await empty(others)
            engine = client._engine
            assert not engine.waiters.acquisitions
            assert not engine.watchdog.holds
            assert not engine.watchdog.owned
            ran += 1
        assert ran > 2
        await asyncio.gather(*giving)


# By Sentinel


async def test_failover_by_sentinel_keeps_a_lease_that_all_replicas_have(prefix: str) -> None:
    """A client follows Sentinel to the new primary; there its lease is known, and prolonged."""
    with ExitStack() as stack:
        watched = Watched(stack)
        await watched.ready()
        async with aiolock.connect(watched.url, prefix=prefix, replicas="all", ttl=LONG) as client:
            lease = await take(client.lock("lock"))
            watched.master.kill()
            promoted = await watched.promoted()
            assert len(Peek(promoted, prefix).holders()) == 1
            async with asyncio.timeout(LONG):
                while True:  # until the other replica follows that one
                    try:
                        await lease.extend(2 * LONG)
                        break
                    except aiolock.StoreError:
                        await asyncio.sleep(0.05)
            assert lease.remaining() > LONG
            assert await lease.release()
            assert await (await take(client.lock("lock"))).release()
