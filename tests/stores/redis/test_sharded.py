"""Pushes that stay within their shard: which way they go, also when slots move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager

import pytest

import aiolock
from aiolock import StoreError
from aiolock.stores.redis import ClusterStore, from_url
from aiolock.stores.redis.cluster import _node
from aiolock.stores.redis.cluster._slots import SLOTS, slot_of, slot_of_key, tag_in
from aiolock.testing import Peer
from tests.support.clusters import SHARDS, Cluster, Node, add_slots
from tests.support.failures import soon, until
from tests.support.worlds import asking, queued

SHARDED = "?push=sharded"

pytestmark = pytest.mark.skipif(not SHARDS, reason="this server has no shard channels")


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """Three masters of the test's own."""
    with ExitStack() as stack:
        yield Cluster(stack, masters=3)


def said(cluster: Cluster, command: str) -> int:
    """How often the masters have carried it out."""
    found = 0
    for node in cluster.masters:
        stats = node.call("INFO", "commandstats")
        found += stats.get(f"cmdstat_{command}", {"calls": 0})["calls"]
    return found


@asynccontextmanager
async def two(
    cluster: Cluster, prefix: str, pushes: tuple[str, str] = (SHARDED, SHARDED), ttl: float = 60
) -> AsyncIterator[tuple[aiolock.LockClient, aiolock.LockClient]]:
    """Two clients that listen at every master."""
    first, second = (cluster.url + push for push in pushes)
    async with (
        aiolock.connect(first, prefix=prefix, ttl=ttl) as ann,
        aiolock.connect(second, prefix=prefix, ttl=ttl) as bob,
    ):
        for client in (ann, bob):
            lease = await client.lock("first").acquire()
            waiting = asking(client.lock("first"))
            await queued(client.lock("first"), 1)
            await lease.release()
            await (await waiting).release()
            for node in cluster.masters:
                channel = f"{prefix}:push:{client.id}"
                await until(lambda: node.call("PUBSUB", "NUMSUB", channel)[1] == 1)  # noqa: B023
        yield ann, bob


async def hand_over(giver: aiolock.LockClient, taker: aiolock.LockClient, name: str = "a") -> None:
    """The taker waits, and is let in by a push."""
    lease = await giver.lock(name).acquire()
    waiting = asking(taker.lock(name))
    await queued(giver.lock(name), 1)
    await lease.release()
    async with asyncio.timeout(3):
        next_one = await waiting
    assert next_one.fence > lease.fence
    await next_one.release()


# --- Which way


async def test_pushes_by_shard_channels_go_to_no_other_node(
    own_cluster: Cluster, prefix: str
) -> None:
    """None of them goes to the other nodes: a client's words to itself, grants and losses."""
    published = said(own_cluster, "publish")
    async with two(own_cluster, prefix) as (ann, bob):
        assert said(own_cluster, "publish") == published
        sharded = said(own_cluster, "spublish")
        for name in "abcdefgh":
            await hand_over(ann, bob, name)
        lease = await ann.lock("b", on_lost="signal").acquire()
        assert await bob.lock("b").break_()
        async with asyncio.timeout(3):
            await lease.lost.wait()
        assert said(own_cluster, "publish") == published
        assert said(own_cluster, "spublish") >= sharded + 9


@pytest.mark.parametrize("pushes", [("", SHARDED), (SHARDED, "")])
async def test_clients_with_and_without_shard_channels_share_a_lock_in_order(
    cluster: Cluster, prefix: str, pushes: tuple[str, str]
) -> None:
    """They hand one lock to each other, in order, and neither takes the other for dead."""
    async with two(cluster, prefix, pushes) as (ann, bob):
        for _ in range(3):
            await hand_over(ann, bob)
            await hand_over(bob, ann)
        lease, entered = await ann.lock("a").acquire(), list[str]()

        async def enter(client: aiolock.LockClient, who: str) -> None:
            async with client.lock("a"):
                entered.append(who)

        tasks = list[asyncio.Task[None]]()
        for number, (client, who) in enumerate([(bob, "b"), (ann, "a"), (bob, "b"), (ann, "a")]):
            tasks.append(asyncio.create_task(enter(client, who)))
            await queued(ann.lock("a"), number + 1)
        await lease.release()
        async with asyncio.timeout(3):
            await asyncio.gather(*tasks)
        assert entered == ["b", "a", "b", "a"]


async def test_handoff_by_shard_channels_skips_a_dead_waiter(cluster: Cluster, prefix: str) -> None:
    """In the step that would have let it in, as ever."""
    async with two(cluster, prefix) as (ann, bob):
        lease = await ann.lock("a").acquire()
        store = from_url(cluster.url + SHARDED, prefix)
        async with Peer(store) as gone:
            await gone.ask("lock:a")
            waiting = asking(bob.lock("a"))
            await queued(ann.lock("a"), 2)
        await lease.release()
        async with asyncio.timeout(1):
            await (await waiting).release()


# --- Slots that move


async def test_handoff_after_a_slot_move_arrives_and_returns_to_the_shard(
    own_cluster: Cluster, prefix: str
) -> None:
    """Who waits then is told by a broadcast; who comes later, within the new shard."""
    async with two(own_cluster, prefix) as (ann, bob):
        await hand_over(ann, bob)
        lease = await ann.lock("a").acquire()
        waiting = asking(bob.lock("a"))
        await queued(ann.lock("a"), 1)
        slot = slot_of("lock:a")
        source = own_cluster.at(slot)
        target = next(node for node in own_cluster.masters if node is not source)
        own_cluster.move(slot, source, target)
        published = said(own_cluster, "publish")
        await lease.release()
        async with asyncio.timeout(3):
            next_one = await waiting
        assert said(own_cluster, "publish") == published + 1
        await next_one.release()
        for _ in range(2):  # by the first of these the new master is known
            await hand_over(ann, bob)
            await hand_over(bob, ann)
        published, sharded = said(own_cluster, "publish"), said(own_cluster, "spublish")
        await hand_over(ann, bob)
        assert said(own_cluster, "publish") == published
        assert said(own_cluster, "spublish") == sharded + 1


async def test_shard_channel_whose_slot_moves_misses_no_push_and_is_replaced(
    own_cluster: Cluster, prefix: str
) -> None:
    """Nothing is missed while its slot is another's, and soon there is another channel."""
    async with Peer(store := from_url(own_cluster.url + SHARDED, prefix)):
        assert isinstance(store, ClusterStore)
        node = next(each for each in store.masters.topology.masters if each.ready)
        before = node.tag
    slot = slot_of_key(before.encode())
    source = own_cluster.at(slot)
    target = next(each for each in own_cluster.masters if each is not source)
    name = next(n for n in map(str, range(1000)) if own_cluster.owner(f"lock:{n}") is source)
    async with two(own_cluster, prefix) as (ann, bob):
        lease = await ann.lock(name).acquire()
        waiting = asking(bob.lock(name))
        await queued(ann.lock(name), 1)
        own_cluster.move(slot, source, target)
        await lease.release()
        async with asyncio.timeout(3):
            await (await waiting).release()

        async def by_shard() -> bool:
            published = said(own_cluster, "publish")
            await hand_over(ann, bob, name)
            return said(own_cluster, "publish") == published

        async def no_more_to_all_nodes() -> None:
            async with asyncio.timeout(30):
                while not await by_shard():  # noqa: ASYNC110  # nothing announces it
                    await asyncio.sleep(0.05)

        await soon(no_more_to_all_nodes(), within=20)


async def test_handoff_goes_on_when_a_master_refuses_the_shard_channel(
    own_cluster: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slot is not there, whatever we think: the subscription lasts, and all goes on."""
    first, last = (own_cluster.at(slot).port for slot in (0, SLOTS - 1))
    of_first, of_last = (tag_in(slots) for slots in (range(1000), range(SLOTS - 1000, SLOTS)))
    wrong = {node.port: of_first for node in own_cluster.masters} | {first: of_last}
    assert first != last

    def channel(node: _node.Node) -> str:
        return node._names.shard_channel(wrong[node.address[1]], node._client)

    monkeypatch.setattr(_node.Node, "_shard_channel", channel)
    async with two(own_cluster, prefix) as (ann, bob):
        await hand_over(ann, bob)
        await hand_over(bob, ann)


# --- What a server must have


async def fails(url: str, pattern: str) -> None:
    """A client does not open, and says so."""
    with pytest.raises(StoreError, match=pattern):
        async with aiolock.connect(url):
            pass


@pytest.mark.parametrize("right", ["ssubscribe", "spublish"])
async def test_open_without_a_right_to_shard_channels_names_the_rights(
    cluster: Cluster, prefix: str, right: str
) -> None:
    """A right that is missing is named when the client opens."""
    rule = f"~{prefix}:* resetchannels &{prefix}:* +@all -@dangerous +cluster|slots"
    for node in cluster.masters:
        node.call("ACL", "SETUSER", "eve", "reset", "on", ">pw", *rule.split(), f"-{right}")
    url = cluster.url.replace("://", "://eve:pw@") + SHARDED
    with pytest.raises(StoreError, match=r"grant the user: \+ssubscribe \+spublish"):
        async with aiolock.connect(url, prefix=prefix):
            pass


async def test_open_sharded_at_a_server_without_shard_channels_raises_store_error() -> None:
    """Those before 7.0 have none."""
    with Node("--rename-command", "SSUBSCRIBE", "") as node:
        add_slots(node, range(SLOTS))
        await until(lambda: "cluster_state:ok" in node.call("CLUSTER", "INFO"))
        await fails(f"redis+cluster://127.0.0.1:{node.port}{SHARDED}", "take Redis 7.0")
