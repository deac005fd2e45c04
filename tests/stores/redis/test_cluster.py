"""A cluster of several masters: where an operation goes, and what nodes answer."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis.asyncio
from redis.asyncio.connection import SSLConnection

import aiolock
from aiolock import StoreError
from aiolock._engine.diagnostics import slow_monitor
from aiolock.observer import Link, Observer
from aiolock.protocol import (
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_QUEUED,
    Busy,
    Granted,
    ReadPage,
    ReadPosted,
    ReadStatus,
    Release,
    Renew,
    Renewal,
    Resize,
    Status,
)
from aiolock.stores.redis import ClusterStore, from_url
from aiolock.stores.redis._command import Command
from aiolock.stores.redis._errors import Refusal
from aiolock.stores.redis._replies import Range, ranges
from aiolock.stores.redis._scripts import ACQUIRE, READ, Script
from aiolock.stores.redis._urls import seeds_at
from aiolock.stores.redis.cluster._deduplicator import PushDeduplicator
from aiolock.stores.redis.cluster._node import Node as CNode
from aiolock.stores.redis.cluster._seeds import seeds_of
from aiolock.stores.redis.cluster._sharded import Tags
from aiolock.stores.redis.cluster._slots import Redirect, slot_of, slot_of_key, tag_in
from aiolock.stores.redis.cluster._topology import Topology
from aiolock.testing import Peer
from aiolock.testing._peer import Grant
from tests.support.clusters import PUSHES, SLOTS, Cluster, Node, add_slots
from tests.support.failures import soon, until
from tests.support.servers import RedisServer
from tests.support.worlds import asking, queued


def store_at(cluster: Cluster, prefix: str) -> ClusterStore:
    """A store on the cluster."""
    store = from_url(cluster.url, prefix)
    assert isinstance(store, ClusterStore)
    return store


def connections(node: Node) -> int:
    """How many there are to it, but for those of other nodes and the one that asks."""
    clients = node.call("CLIENT", "LIST", "TYPE", "NORMAL").count("\n")
    return int(clients) + int(node.call("CLIENT", "LIST", "TYPE", "PUBSUB").count("\n"))


def open_at(cluster: Cluster) -> set[str]:
    """The connections to its masters, but for those of other nodes and the one that asks."""
    return {
        f"{node.port} {line.split()[0]}"
        for node in cluster.masters
        for kind in ("NORMAL", "PUBSUB")
        for line in node.call("CLIENT", "LIST", "TYPE", kind).splitlines()
        if "cmd=client" not in line
    }


def name_at(cluster: Cluster, node: Node, but: str = "") -> str:
    """A lock whose keys are on this node."""
    found = (f"n{number}" for number in range(10_000))
    return next(n for n in found if n != but and cluster.owner(f"lock:{n}") is node)


def two_of_one_slot() -> tuple[str, str]:
    """Two names whose keys are in one slot."""
    seen: dict[int, str] = {}
    for number in itertools.count():
        other = seen.setdefault(slot_of(name := f"n{number}"), name)
        if other != name:
            return other, name
    raise AssertionError


def renewing(peer: Peer, name: str, grant: Grant) -> asyncio.Future[list[bool | None]]:
    """The renewal of this grant alone."""
    waiter, fence = grant
    return peer.store.submit(Renew([Renewal(name, waiter, peer.form(waiter), fence, 30_000)]))


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """Three masters of the test's own."""
    with ExitStack() as stack:
        yield Cluster(stack, masters=3)


# --- What needs no server


def test_slot_is_computed_from_the_text_in_the_first_braces() -> None:
    """Of what stands in the first braces, if anything does: as the servers reckon it."""
    assert slot_of_key(b"123456789") == 0x31C3
    assert slot_of_key(b"a{123456789}b{c}") == 0x31C3
    assert slot_of_key(b"a{}123456789") != 0x31C3
    assert slot_of("a{b}%") == slot_of_key(b"prefix:{a%7Bb%7D%25}:holders")
    tag = tag_in(range(100, 110))
    assert 100 <= slot_of_key(tag.encode()) < 110


def test_redirect_read_gives_the_target_and_none_for_tryagain() -> None:
    """Where to, and nothing for what only has to be asked again."""
    moved = Redirect.read(Refusal("MOVED 3999 127.0.0.1:6381"))
    assert moved == Redirect("MOVED", 3999, "127.0.0.1", 6381)
    assert Redirect.read(Refusal("ASK 3999 ::1:6381")) == Redirect("ASK", 3999, "::1", 6381)
    assert Redirect.read(Refusal("MOVED 3999 :6381")) == Redirect("MOVED", 3999, "", 6381)
    assert Redirect.read(Refusal("MOVED 3999 ?:6381")) == Redirect("MOVED", 3999, "?", 6381)
    assert Redirect.read(Refusal("TRYAGAIN Multiple keys request")) is None


def test_ranges_of_a_master_without_a_name_have_its_ip() -> None:
    """At its address, where nodes are known by names; not where the one is that has said so."""
    known: Any = [b"ip", b"10.0.0.7"]
    reply: Any = [
        [0, 5, [b"one.example", 1, b"id", known], [b"?", 2, b"id", []]],
        [6, 7, [b"?", 3, b"id", known]],
        [8, 8, [None, 4, b"id", known]],
        [9, 9, [b"?", 5, b"id"]],
    ]
    assert [each.host for each in ranges(reply)] == ["one.example", "10.0.0.7", "", ""]


async def test_redirect_to_a_node_without_a_name_goes_by_its_unique_port() -> None:
    """To the only one that is known with this port; where that is not certain, nowhere."""
    topology = Topology(seeds_at("redis+cluster://h1"), "prefix")
    by: Any = SimpleNamespace(address=("h1", 6379))
    topology.nodes = dict.fromkeys([("h1", 6379), ("h2", 6379), ("h3", 7000)], by)
    for redirected, address in (
        ("MOVED 1 ?:7000", ("h3", 7000)),
        ("MOVED 1 ?:6379", None),
        ("ASK 1 ?:7001", None),
        ("ASK 1 :7001", ("h1", 7001)),
    ):
        redirect = Redirect.read(Refusal(redirected))
        assert redirect
        assert topology.named(redirect, by) == address


def test_push_deduplicator_takes_a_push_from_one_connection_only() -> None:
    """By whichever connection it comes first; by that one it may come again, or long after."""
    now = 0.0
    deduplicator = PushDeduplicator(lambda: now)
    assert deduplicator.is_new("a", b"d key")
    assert not deduplicator.is_new("b", b"d key")
    assert not deduplicator.is_new("c", b"d key")
    assert deduplicator.is_new("a", b"d key")
    assert not deduplicator.is_new("b", b"d key")
    now = 60.0
    assert deduplicator.is_new("b", b"d key")
    assert deduplicator.is_new("b", b"p")
    assert deduplicator.is_new("c", b"p")
    deduplicator.forget("b")
    assert deduplicator.is_new("c", b"d key")


def test_push_deduplicator_that_is_full_forgets_the_oldest_push() -> None:
    """And forgets the oldest."""
    deduplicator = PushDeduplicator(lambda: 0.0)
    for number in range(5000):
        assert deduplicator.is_new("a", b"%d" % number)
    assert not deduplicator.is_new("b", b"4999")
    assert deduplicator.is_new("b", b"0")


def test_tags_keep_the_tag_of_a_waiter_when_its_slot_moves() -> None:
    """Wherever its slot goes; those that come after the move get the tag of the new master."""
    tags = Tags()
    assert tags.tag(1, 5, "a") == "a"
    assert tags.tag(2, 6, "b") == "b"
    assert tags.tag(1, 5, "b") == "a"
    assert tags.tag(1, 4, "b") == "a"
    assert tags.tag(1, 7, "b") == "b"
    assert tags.tag(1, 8, "a") == "b"
    assert tags.tag(1, 9, "a") == "a"
    assert [tags.tag(1, number, "a") for number in (4, 5, 7, 8, 9)] == ["a", "a", "b", "b", "a"]


def test_cluster_url_gives_its_addresses_and_options_and_hides_the_password(tmp_path: Path) -> None:
    """Each node with its port, or the usual one; what else it says holds for all of them."""
    (ca := tmp_path / "ca.pem").touch()
    seeds = seeds_at(f"valkeys+cluster://ann:p%40ss@h1:7000,h2,[::1]:7002/0?ssl_ca_certs={ca}")
    assert seeds.addresses == (("h1", 7000), ("h2", 6379), ("::1", 7002))
    assert seeds.kind is SSLConnection
    options = {"username": "ann", "password": "p@ss", "ssl_ca_certs": str(ca)}
    assert seeds.options == options
    assert not seeds.sharded
    seeds = seeds_at("redis+cluster://h1?push=sharded&client_name=a%20b")
    assert seeds.sharded
    assert seeds.options == {"client_name": "a b"}
    assert "redis+cluster://h1:6379?push=sharded" in str(seeds)
    shown = repr(aiolock.connect("redis+cluster://ann:p%40ss@h1"))
    assert "redis+cluster://h1:6379" in shown
    assert "ss" not in shown.partition("://")[2]


@pytest.mark.parametrize(
    ("url", "pattern"),
    [
        ("redis+cluster://", "names no host: .* address 1"),
        ("redis+cluster://h1,,h2", "address 2 in this URL is no host"),
        ("redis+cluster://h1:0", "port of address 1 .* from 1 to 65535"),
        ("redis+cluster://h1/1", "no databases"),
        ("redis+cluster://h1?nonsense=1", "no option 'nonsense'"),
        ("redis+cluster://h1?push=", "one of broadcast, sharded"),
        ("redis+cluster://h1?push=none", "one of broadcast, sharded"),
        ("redis://h1?push=sharded", "no option 'push'"),
    ],
)
def test_cluster_url_that_is_wrong_raises_value_error(url: str, pattern: str) -> None:
    """A ValueError with the shape that it should have."""
    with pytest.raises(ValueError, match=pattern):
        aiolock.connect(url)


async def test_cluster_client_of_the_caller_gives_its_seeds_and_options() -> None:
    """Its nodes, its user, its TLS, and where it says that nodes are."""

    def remap(address: tuple[str, int]) -> tuple[str, int]:
        return "elsewhere", address[1]

    caller = redis.asyncio.RedisCluster(
        "h1", 7000, username="ann", password="word", ssl=True, address_remap=remap
    )
    seeds = seeds_of(caller)
    assert seeds.addresses in ((("h1", 7000),), (("elsewhere", 7000),))
    assert seeds.kind is SSLConnection
    assert (seeds.options["username"], seeds.options["password"]) == ("ann", "word")
    assert seeds.remap(("h2", 1)) == ("elsewhere", 1)
    seeds.kind(**seeds.options)  # all of which redis-py takes


# --- Opening


async def fails(url: str, pattern: str) -> None:
    """A client does not open, and says so."""
    with pytest.raises(StoreError, match=pattern):
        async with aiolock.connect(url):
            pass


async def test_open_at_a_server_of_no_cluster_raises_store_error(
    redis_server: RedisServer, cluster: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of no cluster says so; the first that answers as it should is enough."""
    await fails(f"redis+cluster://127.0.0.1:{redis_server.port}", "cluster support disabled")
    await fails("redis+cluster://127.0.0.1:1", "nothing listens there")
    monkeypatch.setattr("random.shuffle", lambda _: None)
    url = f"redis+cluster://127.0.0.1:{redis_server.port},127.0.0.1:{cluster.masters[0].port}"
    async with aiolock.connect(url, prefix=prefix) as client, client.lock("a") as lease:
        assert await lease.verify()


async def test_open_at_a_node_without_slots_raises_store_error() -> None:
    """It has no slots, and says what to do."""
    with ExitStack() as stack:
        lone = stack.enter_context(Node())
        await fails(f"redis+cluster://127.0.0.1:{lone.port}", "no slots yet")


async def test_open_with_one_reachable_node_finds_the_others(cluster: Cluster, prefix: str) -> None:
    """The others are found; those that do not answer are passed over."""
    url = f"redis+cluster://127.0.0.1:1,127.0.0.1:{cluster.masters[1].port}"
    async with aiolock.connect(url, prefix=prefix) as client:
        for node in cluster.masters:
            async with client.lock(name_at(cluster, node)) as lease:
                assert await lease.verify()


async def test_cluster_client_over_tls_acquires_a_lock(prefix: str) -> None:
    """By the nodes' ports for TLS, which they name to whoever asks by such a one."""
    with RedisServer("--tls-cluster", "yes", tls=True, cluster=True) as node:
        add_slots(node, range(SLOTS))
        await until(lambda: "cluster_state:ok" in node.call("CLUSTER", "INFO"))
        url = f"rediss+cluster://127.0.0.1:{node.tls_port}?ssl_ca_certs={node.ca_path}"
        async with aiolock.connect(url, prefix=prefix) as client, client.lock("a") as lease:
            assert await lease.verify()


async def test_cluster_user_needs_only_the_acl_rule_and_cluster_slots(
    cluster: Cluster, prefix: str
) -> None:
    """What a user of one server needs is enough, with the right to ask for the slots."""
    rule = f"~{prefix}:* resetchannels &{prefix}:* +@all -@dangerous +cluster|slots"
    for node in cluster.masters:
        node.call("ACL", "SETUSER", "ann", "reset", "on", ">pw", *rule.split())
        node.call("ACL", "SETUSER", "bob", "reset", "on", ">pw", *rule.split()[:-1], "-cluster")
    url = cluster.url.replace("://", "://ann:pw@")
    async with aiolock.connect(url, prefix=prefix) as client, client.lock("a") as lease:
        assert await lease.verify()
    await fails(cluster.url.replace("://", "://bob:pw@"), r"\+cluster\|slots")
    await fails(cluster.url.replace("://", "://ann:wrong@"), "password")


async def test_acquire_without_the_right_to_asking_raises_store_error(
    own_cluster: Cluster, prefix: str
) -> None:
    """Who may not say ASKING is told so, and is not sent round in circles."""
    for node in own_cluster.masters:
        node.call("ACL", "SETUSER", "ann", "on", ">pw", "~*", "&*", "+@all", "-asking")
    url = own_cluster.url.replace("://", "://ann:pw@")
    async with aiolock.connect(url, prefix=prefix) as client:
        source, target, _ = own_cluster.masters
        slot = slot_of(f"lock:{(name := name_at(own_cluster, source))}")
        own_cluster.begin_move(slot, source, target)
        with pytest.raises(StoreError, match=r"grant the user: .*\+asking"):
            await client.lock(name).acquire()
        own_cluster.end_move(slot, source, target)
        async with client.lock(name):
            pass


@pytest.mark.parametrize("turns", range(0, 60, 3))
async def test_open_of_a_cluster_cancelled_at_any_step_opens_the_next_time(
    cluster: Cluster, prefix: str, turns: int
) -> None:
    """At whatever step: nothing is left open, and it opens the next time."""
    before = open_at(cluster)
    client = aiolock.connect(cluster.url, prefix=prefix)
    opening = asyncio.create_task(client.open())
    for _ in range(turns):
        await asyncio.sleep(0.0005)
    opening.cancel()
    await asyncio.gather(opening, return_exceptions=True)
    if not opening.cancelled():  # it was faster
        await client.aclose()
    await until(lambda: open_at(cluster) <= before)
    async with client, client.lock("a"):
        assert not open_at(cluster) <= before


async def test_cluster_client_has_two_connections_to_each_used_master(
    own_cluster: Cluster, prefix: str
) -> None:
    """Two to each master that is used; all are closed at the end."""
    before = [connections(node) for node in own_cluster.masters]

    def more() -> list[int]:
        return [connections(node) - b for node, b in zip(own_cluster.masters, before, strict=True)]

    async with aiolock.connect(own_cluster.url, prefix=prefix) as client:
        assert sorted(more()) == [0, 0, 2]
        first = own_cluster.masters[more().index(0)]
        for _ in range(3):
            async with client.lock(name_at(own_cluster, first)):
                pass
        assert sorted(more()) == [0, 2, 2]
        await asyncio.gather(
            *[client.lock(name_at(own_cluster, node)).acquire() for node in own_cluster.masters]
        )
        assert more() == [2, 2, 2]
    await until(lambda: more() == [0, 0, 0])


async def test_waiter_in_a_cluster_is_subscribed_at_every_master(
    own_cluster: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slot may move to any master, and there it would be taken for dead."""
    monkeypatch.setattr(slow_monitor, "_EVERY", 3600.0)  # whoever puts a label up may go elsewhere

    def heard(client: aiolock.LockClient) -> list[int]:
        channel = f"{prefix}:push:{client.id}"
        return [node.call("PUBSUB", "NUMSUB", channel)[1] for node in own_cluster.masters]

    async with aiolock.connect(own_cluster.url, prefix=prefix) as ann, AsyncExitStack() as stack:
        bob = await stack.enter_async_context(aiolock.connect(own_cluster.url, prefix=prefix))
        async with asyncio.timeout(60):
            while heard(bob) == [1, 1, 1]:  # one that was slow to answer, so it asked the others
                another = aiolock.connect(own_cluster.url, prefix=prefix)
                bob = await stack.enter_async_context(another)
        lease = await ann.lock("a").acquire()
        second = asking(bob.lock("a"))
        await until(lambda: heard(bob) == [1, 1, 1])
        await lease.release()
        await (await second).release()


async def test_acquires_while_a_node_is_dialled_run_in_order_but_cancelled_ones(
    cluster: Cluster, prefix: str
) -> None:
    """It is carried out in order, and what was given up meanwhile is not."""
    async with aiolock.connect(cluster.url, prefix=prefix) as client:
        for node in cluster.masters:
            lock = client.lock(name_at(cluster, node))
            tasks = [asking(lock) for _ in range(3)]
            await asyncio.sleep(0)
            tasks[1].cancel()
            first = await tasks[0]
            assert not tasks[2].done()
            await first.release()
            third = await tasks[2]
            assert third.fence > first.fence
            await third.release()
            status = await lock.status()
            assert (status.holders, status.waiters) == ((), ())


# --- What there is


async def test_renewals_of_names_of_all_masters_get_their_own_answers(
    cluster: Cluster, prefix: str
) -> None:
    """Of names of all masters, each with its own answer."""
    async with Peer(store := store_at(cluster, prefix)) as ann:
        shard_of = store.features.shard_of
        assert shard_of is not None
        names = [f"n{number}" for number in range(20)]
        grants = [await ann.take(name) for name in names]
        assert len({shard_of(name) for name in names}) == 20
        assert {cluster.owner(name) for name in names} == set(cluster.masters)
        await ann.release(names[3], grants[3])
        renewals = [ann.renewal(n, g, 30_000) for n, g in zip(names, grants, strict=True)]
        held = await store.submit(Renew(renewals))
        assert held == [number != 3 for number in range(20)]


async def test_snapshot_of_a_cluster_has_the_names_and_holders_of_all_masters(
    cluster: Cluster, prefix: str
) -> None:
    """Of all masters; with who it is, whatever node keeps that."""
    async with (
        aiolock.connect(cluster.url, prefix=prefix) as ann,
        aiolock.connect(cluster.url, prefix=prefix) as bob,
    ):
        names = {f"n{number}" for number in range(50)}
        held = await asyncio.gather(*[ann.lock(name).acquire() for name in names])
        found = await bob.snapshot()
        assert {status.name for status in found} == names
        holders = [status.holders[0] for status in found]
        assert {(each.host, each.pid) for each in holders} == {(socket.gethostname(), os.getpid())}
        await asyncio.gather(*[lease.release() for lease in held])
        assert await bob.snapshot() == []


async def test_snapshot_while_a_slot_moves_contains_every_name(
    own_cluster: Cluster, prefix: str
) -> None:
    """From a master that was not looked at yet to one that was: its names are shown as well."""
    async with Peer(store := store_at(own_cluster, prefix)) as ann:
        names = {f"n{number}" for number in range(30)}
        for name in names:
            await ann.take(name)
        page = await store.submit(ReadPage())
        seen = {status.name for status in page.statuses}
        assert page.more
        first = own_cluster.owner(next(iter(seen)))
        moved = next(name for name in names if own_cluster.owner(name) is not first)
        own_cluster.move(slot_of(moved), own_cluster.owner(moved), first)
        while page.more:
            page = await store.submit(ReadPage(page.more))
            seen |= {status.name for status in page.statuses}
        assert seen == names


async def test_acquire_without_waiting_in_a_cluster_names_the_holder(
    cluster: Cluster, prefix: str
) -> None:
    """Who does not wait is told by whom it is held, whatever node keeps that."""
    async with Peer(store_at(cluster, prefix)) as ann, Peer(store_at(cluster, prefix)) as bob:
        for number in range(6):
            await ann.take(name := f"n{number}")
            busy = await bob.ask(name, wait=False)
            assert isinstance(busy, Busy)
            assert busy.holder
            assert (busy.holder.host, busy.holder.pid) == (socket.gethostname(), os.getpid())


async def test_cluster_client_serves_every_kind_of_lock(cluster: Cluster, prefix: str) -> None:
    """Semaphores, readers and writers, latches, labels: each in whatever slot."""
    async with aiolock.connect(cluster.url, prefix=prefix, label="it") as client:
        async with client.semaphore("s", 2), client.semaphore("s", 2):
            status: Status = await client.semaphore("s", 2).status()
            assert len(status.holders) == 2
        async with client.rwlock("rw").read():
            pass
        latch = client.latch("l", 2)
        await latch.count_down()
        await latch.count_down()
        await latch.wait()
        async with client.lock("a"), client.lock("b"):
            labels = dict[str, str]()
            async with asyncio.timeout(30):
                while not all(labels.values()) or not labels:
                    found = await client.snapshot("?")
                    labels = {status.name: status.holders[0].label for status in found}
            assert {name: label[:4] for name, label in labels.items()} == {"a": "it: ", "b": "it: "}
            assert await client.deadlocks() == []


# --- Slots that move


async def move_under(cluster: Cluster, name: str, step: Callable[[], Any]) -> None:
    """Move the slot of a lock to another master; ``step`` is called while it is on its way."""
    slot = slot_of(f"lock:{name}")
    source = cluster.at(slot)
    target = next(node for node in cluster.masters if node is not source)
    cluster.begin_move(slot, source, target)
    await step()
    cluster.move_keys(slot, source, target)
    await step()
    cluster.end_move(slot, source, target)


@pytest.mark.parametrize("push", PUSHES)
async def test_slot_move_keeps_the_holder_and_the_places_of_waiters(
    own_cluster: Cluster, prefix: str, push: str
) -> None:
    """The holder goes on to hold it; the waiters keep their places, and get it."""
    async with (
        aiolock.connect(f"{own_cluster.url}?push={push}", prefix=prefix) as ann,
        aiolock.connect(f"{own_cluster.url}?push={push}", prefix=prefix) as bob,
    ):
        lease = await ann.lock("a").acquire()
        waiting = [asking(each.lock("a")) for each in (bob, ann, bob)]
        await queued(bob.lock("a"), 3)

        async def step() -> None:
            assert await lease.verify()

        await move_under(own_cluster, "a", step)
        assert await lease.verify()
        fences = [lease.fence]
        await queued(bob.lock("a"), 3)
        await lease.release()
        for each in asyncio.as_completed(waiting):
            next_one = await each
            fences.append(next_one.fence)
            await next_one.release()
        assert fences == sorted(set(fences))


async def test_slot_move_keeps_the_order_among_shares(own_cluster: Cluster, prefix: str) -> None:
    """Its keys go with the queue, and the shares go on to have turns."""
    async with (
        aiolock.connect(own_cluster.url, prefix=prefix) as ann,
        aiolock.connect(own_cluster.url, prefix=prefix) as bob,
    ):
        lease, order = await ann.lock("a").acquire(), list[str]()

        async def work(share: str) -> None:
            async with ann.lock("a", share=share):
                order.append(share)

        async def step() -> None:
            assert await lease.verify()

        tasks = list[asyncio.Task[None]]()
        for share in "aaabcb":
            tasks.append(asyncio.create_task(work(share)))
            await queued(bob.lock("a"), len(tasks))
        await move_under(own_cluster, "a", step)
        late = asyncio.create_task(work("b"))
        await queued(bob.lock("a"), 7)
        await lease.release()
        await asyncio.wait_for(asyncio.gather(*tasks, late), 30)
        assert "".join(order) == "abcabab"


async def test_commands_redirected_after_a_slot_move_keep_their_order(
    cluster: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked before is carried out before, though it was asked of another node."""
    async with Peer(store := store_at(cluster, prefix)) as ann:
        for number in range(10):
            await ann.ask(f"n{number}")
        name, slot = "n0", slot_of("n0")
        owners, waiter = store.masters.topology.owners, ann.waiter()
        right = owners[slot]
        owners[slot] = wrong = next(
            node for node in store.masters.topology.masters if node is not right
        )
        assert wrong is not None
        assert wrong.ready
        redirected = wrong._redirects._on_redirect
        later = list[asyncio.Future[int]]()

        def and_then(commands: list[Command], refusal: Refusal) -> None:
            redirected(commands, refusal)
            if not later:
                later.append(ann.leave(name, waiter))

        monkeypatch.setattr(wrong._redirects, "_on_redirect", and_then)
        first = store.submit(ReadPosted(name))
        second = ann.ask(name, waiter)
        await asyncio.gather(first, second)
        assert await asyncio.gather(*later) == [WAS_QUEUED], "it had been asked for before"
        assert (await store.submit(ReadStatus(name))).waiters == ()


async def test_commands_of_two_names_in_a_moved_slot_keep_their_order(
    cluster: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is asked of a name from now on goes there at once, and must not overtake anything."""
    name, beside = two_of_one_slot()
    async with Peer(store := store_at(cluster, prefix)) as ann:
        for number in range(10):
            await ann.ask(f"n{number}")
        owners, waiter = store.masters.topology.owners, ann.waiter()
        right = owners[slot_of(name)]
        wrong = next(node for node in store.masters.topology.masters if node is not right)
        owners[slot_of(name)] = wrong
        redirected = wrong._redirects._on_redirect
        later = list[asyncio.Future[int]]()

        def and_then(commands: list[Command], refusal: Refusal) -> None:
            redirected(commands, refusal)
            if not later:
                later.append(ann.leave(beside, waiter))

        monkeypatch.setattr(wrong._redirects, "_on_redirect", and_then)
        await asyncio.gather(store.submit(ReadPosted(name)), ann.ask(beside, waiter))
        (left,) = await asyncio.gather(*later)
        assert left in {WAS_HOLDER, WAS_QUEUED}, "it had been asked for before"


async def test_pipe_refusal_redirects_only_the_commands_that_depend_on_it(
    cluster: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is about the same name goes along; of the renewals only one that relies on it."""
    name, beside = two_of_one_slot()
    async with Peer(store := store_at(cluster, prefix)) as ann:
        one, two, three = (ann.waiter() for _ in range(3))
        held, other = await ann.take(name, one), await ann.take(beside)
        await ann.queue(name, two)
        node = store.masters.topology.owners[slot_of(name)]
        assert node is not None
        pipe = node._pipe
        assert pipe.outbox.wire is not None
        monkeypatch.setattr(pipe.outbox.wire, "write_now", lambda data: None)
        sent_on = list[Command]()
        monkeypatch.setattr(
            node._redirects, "_on_redirect", lambda commands, refusal: sent_on.extend(commands)
        )
        passed = ann.passed(name, held, three)
        taken = Grant(three, passed.fence)
        answers: list[asyncio.Future[Any]] = [
            store.submit(passed),
            renewing(ann, name, taken),
            renewing(ann, beside, other),
            ann.leave(name, two),
            store.submit(ReadPosted(beside)),
        ]
        commands = [*pipe.outbox.sent]
        pipe._reader.on_reply(Refusal("TRYAGAIN Multiple keys request during rehashing of slot"))
        assert [commands.index(each) for each in sent_on] == [0, 1, 3]
        monkeypatch.undo()
        pipe._link.drop(ConnectionError("what was swallowed is sent again"))
        pipe.outbox.again(sent_on)
        await asyncio.gather(*answers)


async def test_renewal_during_a_slot_move_succeeds_beside_a_refused_acquire(
    own_cluster: Cluster, prefix: str
) -> None:
    """While a slot is moving, another request for the lock takes no answer of its holder away."""
    async with aiolock.connect(own_cluster.url, prefix=prefix) as client:
        lease = await client.lock("a").acquire()
        source = own_cluster.owner("lock:a")
        target = next(node for node in own_cluster.masters if node is not source)
        own_cluster.begin_move(slot_of("lock:a"), source, target)
        waiting = asking(client.lock("a"))
        await asyncio.sleep(0.1)
        await soon(lease.extend(30))
        own_cluster.move_keys(slot_of("lock:a"), source, target)
        own_cluster.end_move(slot_of("lock:a"), source, target)
        await lease.release()
        await (await soon(waiting)).release()


async def test_renewal_behind_an_acquire_redirected_elsewhere_succeeds(
    own_cluster: Cluster, prefix: str
) -> None:
    """It is carried out where its key is, and not where another lock of the slot is asked for."""
    name, beside = two_of_one_slot()
    slot, source = slot_of(name), own_cluster.owner(name)
    target = next(node for node in own_cluster.masters if node is not source)
    async with Peer(store_at(own_cluster, prefix)) as ann:
        held = await ann.take(name)
        own_cluster.begin_move(slot, source, target)
        asked = ann.ask(beside)
        assert await soon(renewing(ann, name, held)) == [True]
        own_cluster.move_keys(slot, source, target)
        own_cluster.end_move(slot, source, target)
        assert isinstance(await soon(asked), Granted)
        assert await soon(renewing(ann, name, held)) == [True]


@pytest.mark.parametrize("given_up", [False, True])
async def test_late_copy_of_an_acquire_after_the_slot_came_back_grants_nothing(
    own_cluster: Cluster, prefix: str, *, given_up: bool
) -> None:
    """What was released at another master meanwhile is not granted once more to nobody."""
    source, target, _ = own_cluster.masters
    name = f"lock:{name_at(own_cluster, source)}"
    slot = slot_of(name)
    async with Peer(store := store_at(own_cluster, prefix)) as ann:
        await store.submit(ReadPosted(name))  # so that it is connected to
        pipe = store.masters.topology.nodes["127.0.0.1", source.port]._pipe
        wire, swallowed = pipe.outbox.wire, bytearray()
        assert wire is not None
        with pytest.MonkeyPatch.context() as swallowing:
            swallowing.setattr(wire, "write_now", swallowed.extend)
            waiter, fence = ann.waiter(), 0
            asked = ann.ask(name, waiter)
            await asyncio.sleep(0)
            own_cluster.move(slot, source, target)
            if given_up:
                asked.cancel()
            pipe._link.drop(ConnectionError("a proxy has ended"))
        if not given_up:
            granted = await asked
            assert isinstance(granted, Granted)
            fence = granted.fence
        await store.submit(Release(name, waiter, ann.form(waiter), fence))
        own_cluster.move(slot, target, source)
        with socket.create_connection(("127.0.0.1", source.port)) as proxy:
            proxy.sendall(swallowed)
            assert proxy.recv(1000)[:1] in b"*$-"
        assert not (await store.submit(ReadStatus(name))).holders


@pytest.mark.parametrize("kind", ["locks", "readers"])
async def test_handoff_before_the_keys_of_a_moving_slot_have_left_succeeds(
    own_cluster: Cluster, prefix: str, kind: str
) -> None:
    """Before its keys have gone a lock is handed on as ever: none of them vanishes halfway."""
    async with (
        aiolock.connect(own_cluster.url, prefix=prefix, ttl=60) as ann,
        aiolock.connect(own_cluster.url, prefix=prefix, ttl=60) as bob,
    ):
        reads = kind == "readers"
        lease = await (ann.rwlock("a").read() if reads else ann.lock("a")).acquire()
        second = asking(bob.rwlock("a").write() if reads else bob.lock("a"))
        await queued(bob.lock("a"), 1)
        slot = slot_of("lock:a")
        source = own_cluster.at(slot)
        target = next(node for node in own_cluster.masters if node is not source)
        own_cluster.begin_move(slot, source, target)
        await lease.release()
        got = await soon(second)
        await until(lambda: got.remaining() > 50)  # no claim of three seconds any more
        own_cluster.move_keys(slot, source, target)
        own_cluster.end_move(slot, source, target)
        assert await got.verify()
        await got.release()


async def test_acquire_of_a_new_lock_waits_until_its_slot_has_moved(
    own_cluster: Cluster, prefix: str
) -> None:
    """It cannot be served until the slot has moved, and then it is."""
    async with aiolock.connect(own_cluster.url, prefix=prefix) as client:
        slot = slot_of("lock:a")
        source = own_cluster.at(slot)
        target = next(node for node in own_cluster.masters if node is not source)
        own_cluster.begin_move(slot, source, target)
        tasks = [asking(client.lock("a")) for _ in range(3)]
        await asyncio.sleep(0.2)
        assert not any(each.done() for each in tasks)
        own_cluster.end_move(slot, source, target)
        for each in tasks:
            lease = await asyncio.wait_for(each, 10)
            await lease.release()


async def test_acquire_in_a_slot_without_a_master_raises_store_error_at_timeout(
    own_cluster: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its locks wait until somebody has it; in the end it is a StoreError that says so."""
    slot = slot_of("lock:a")
    owner = own_cluster.at(slot)
    for node in own_cluster.masters:
        node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
        node.call("CLUSTER", "DELSLOTS", slot)
    async with aiolock.connect(own_cluster.url, prefix=prefix) as client:
        with monkeypatch.context() as impatient:
            impatient.setattr("aiolock.stores.redis._outbox.COMMAND_TIMEOUT", 1.0)
            impatient.setattr("aiolock.stores.redis.cluster._pending.COMMAND_TIMEOUT", 1.0)
            with pytest.raises(StoreError, match=r"no node of the cluster has the slot|is down"):
                await client.lock("a").acquire()
        late = asking(client.lock("a"))
        await asyncio.sleep(0.1)
        owner.call("CLUSTER", "ADDSLOTS", slot)
        lease = await late
        await lease.release()


# --- One master that fails


async def test_master_that_hangs_delays_no_renewals_at_other_masters(
    own_cluster: Cluster, prefix: str
) -> None:
    """Its own are lost when they end; those of the others are renewed all the while."""
    async with aiolock.connect(own_cluster.url, prefix=prefix, ttl=3) as client:
        for node in own_cluster.masters:  # so that the others go on without it
            node.call("CONFIG", "SET", "cluster-node-timeout", "60000")
            async with client.lock(name_at(own_cluster, node)):
                pass
        hung = own_cluster.masters[0]
        # So many that are asked for at once, and renewed at once.
        names = [f"n{number}" for number in range(60)]
        its = [own_cluster.owner(f"lock:{name}") is hung for name in names]
        leases = await asyncio.gather(*[client.lock(name).acquire() for name in names])
        hung.pause()
        try:
            async with asyncio.timeout(20):
                for lease, is_its in zip(leases, its, strict=True):
                    if is_its:
                        await lease.lost.wait()
            await asyncio.sleep(3)
            lost = [lease.state is aiolock.LeaseState.LOST for lease in leases]
            assert lost == its
        finally:
            hung.resume()


async def test_renewal_redirected_to_a_hanging_master_delays_no_other_renewal(
    own_cluster: Cluster, prefix: str
) -> None:
    """What is renewed at once may go different ways: who has an answer waits for no other."""
    source, target, _ = own_cluster.masters
    for node in own_cluster.masters:  # so that the others go on without it
        node.call("CONFIG", "SET", "cluster-node-timeout", "60000")
    async with aiolock.connect(own_cluster.url, prefix=prefix, ttl=3) as client:
        moves = name_at(own_cluster, source)
        stays = name_at(own_cluster, source, but=moves)
        moved, stayed = await asyncio.gather(
            *[client.lock(name).acquire() for name in (moves, stays)]
        )
        store: Any = client._engine.store
        store.masters._following.cancel()  # the slot has moved only now, so nobody has learnt of it
        own_cluster.move(slot_of(f"lock:{moves}"), source, target)
        target.pause()
        try:
            async with asyncio.timeout(20):
                await moved.lost.wait()
            await until(lambda: stayed.remaining() > 2.0)
            assert stayed.state is aiolock.LeaseState.HELD
        finally:
            target.resume()


async def test_acquire_at_a_master_that_is_down_raises_store_error(
    own_cluster: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its locks are a StoreError in the end, the others work, and the client can be closed."""
    down, *others = own_cluster.masters
    its, theirs = name_at(own_cluster, down), [name_at(own_cluster, node) for node in others]
    for node in own_cluster.masters:
        node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
    down.kill()
    async with aiolock.connect(own_cluster.url, prefix=prefix) as client:
        with monkeypatch.context() as impatient:
            impatient.setattr("aiolock.stores.redis._outbox.COMMAND_TIMEOUT", 1.0)
            impatient.setattr("aiolock.stores.redis.cluster._pending.COMMAND_TIMEOUT", 1.0)
            with pytest.raises(StoreError, match="nothing listens there"):
                await client.lock(its).acquire()
        for name in theirs:
            async with client.lock(name) as lease:
                assert await lease.verify()
        late = asking(client.lock(its))
        await asyncio.sleep(0.1)
    with pytest.raises((StoreError, aiolock.ClientClosed)):
        await late


async def test_link_observer_of_a_cluster_is_told_of_breaks_and_of_recovery(
    own_cluster: Cluster, prefix: str
) -> None:
    """Whoever observes is told that a link broke, and that all are whole again."""
    told = list[bool]()

    class Seen(Observer):
        def link(self, state: Link, error: Exception | None) -> None:
            told.append(error is None)

    async with aiolock.connect(own_cluster.url, prefix=prefix, observer=Seen()) as client:
        for node in own_cluster.masters:
            async with client.lock(name_at(own_cluster, node)):
                pass
        own_cluster.masters[0].call("CLIENT", "KILL", "TYPE", "normal")
        own_cluster.masters[1].call("CLIENT", "KILL", "TYPE", "pubsub")
        await until(lambda: told[:1] == [False] and told[-1])


async def test_acquire_ended_by_another_error_before_its_answer_leaves_nothing(
    cluster: Cluster, prefix: str
) -> None:
    """As when the client is closed meanwhile: whatever waits for the answer hears that instead."""
    async with Peer(store_at(cluster, prefix)) as ann:
        waiter = ann.waiter()
        answer = ann.ask("lock:a", waiter, wait=False)
        answer.set_exception(StoreError("something else"))
        with pytest.raises(StoreError, match="something else"):
            await answer
        await ann.leave("lock:a", waiter)  # as whoever gives up does
        assert not (await ann.store.submit(ReadStatus("lock:a"))).holders


async def test_aclose_closes_a_connection_that_is_dialled_during_it(
    own_cluster: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that comes last may lead to a node that nobody was connected to."""
    store = store_at(own_cluster, prefix)
    peer = Peer(store)
    async with peer:
        (used,) = [node for node in store.masters.topology.nodes.values() if node.ready]
        other = next(node for node in own_cluster.masters if node.port != used.address[1])
        leave, before = used.leave, connections(other)

        async def leaves() -> None:
            del store.masters.topology.nodes["127.0.0.1", other.port]  # as if it were a new one
            store.masters._node_at(("127.0.0.1", other.port)).dial()
            await until(lambda: connections(other) > before)
            await leave()

        monkeypatch.setattr(used, "leave", leaves)
    await until(lambda: connections(other) == before)


async def test_aclose_does_not_wait_for_a_hanging_node_that_is_gone(
    own_cluster: Cluster, prefix: str
) -> None:
    """Closed while a node that is gone is still being left: its connections are closed, too."""
    store = store_at(own_cluster, prefix)
    async with Peer(store):
        (used,) = [node for node in store.masters.topology.nodes.values() if node.ready]
        server = next(node for node in own_cluster.masters if node.port == used.address[1])
        server.pause()
        _ = used.session.health.presence()  # that is waited for
        store.masters._is_gone(used)
        await asyncio.sleep(0.1)
        began = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began < 3
    assert used._pipe._link.wire is None
    assert used.session.subscription._link.wire is None
    server.resume()


@asynccontextmanager
async def away(store: ClusterStore, name: str) -> AsyncIterator[CNode]:
    """A master to which this name has gone, and which does not serve anybody yet."""
    assert store.masters._following is not None
    store.masters._following.cancel()  # which would learn better
    slot = slot_of(name)
    before = store.masters.topology.owners[slot]
    with socket.create_server(("127.0.0.1", 0)) as mute:
        node = store.masters._node_at(("127.0.0.1", mute.getsockname()[1]))
        store.masters.topology.owners[slot] = node
        yield node
        store.masters.topology.owners[slot] = before


async def test_pending_commands_of_cancelled_acquires_are_dropped(
    cluster: Cluster, prefix: str
) -> None:
    """While a master is away, however often it is tried: neither a question nor its release."""
    async with Peer(store := store_at(cluster, prefix)) as ann, away(store, "lock:a") as node:
        for _ in range(2000):
            waiter = ann.waiter()
            for wait in (True, False):
                ann.ask("lock:a", waiter, wait=wait).cancel()
                assert await ann.leave("lock:a", waiter) == WAS_ABSENT
        await until(lambda: not node.pending)
        assert not store.masters.router._first


async def test_node_open_that_fails_is_reported_and_tried_again(
    cluster: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is that a node cannot be connected to for; whoever waits is told."""
    monkeypatch.setattr("aiolock.stores.redis.cluster._pending.COMMAND_TIMEOUT", 0.2)
    async with Peer(store := store_at(cluster, prefix)) as ann, away(store, "lock:a") as node:
        opened = list[str]()

        async def opens(*_: object) -> None:
            opened.append("again")
            raise UnicodeError("label too long")

        monkeypatch.setattr(node, "open", opens)
        with pytest.raises(StoreError, match=r"Redis at 127.0.0.1:\d+: label too long"):
            await ann.ask("lock:a")
        await until(lambda: len(opened) > 1)


async def test_topology_update_that_fails_is_logged_and_repeated(
    cluster: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told, and the slots are asked for again."""
    async with Peer(store := store_at(cluster, prefix)):
        learnt, learn = list[object](), store.masters.learn

        def learns(found: Sequence[Range]) -> None:
            learnt.append(found)
            if len(learnt) == 1:
                raise LookupError("it is not known yet")
            learn(found)

        monkeypatch.setattr(store.masters, "learn", learns)
        store.masters.is_missing()
        await until(lambda: len(learnt) == 1)
        store.masters.is_missing()
        await until(lambda: len(learnt) == 2)
    assert "could not follow the cluster" in caplog.text


@pytest.mark.parametrize("known", [True, False])
async def test_pending_command_that_must_run_is_dropped_at_the_command_timeout(
    cluster: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch, *, known: bool
) -> None:
    """Not until a master is there at last: nobody would expect it any more."""
    monkeypatch.setattr("aiolock.stores.redis.cluster._pending.COMMAND_TIMEOUT", 0.1)
    async with Peer(store := store_at(cluster, prefix)) as ann, away(store, "lock:a") as node:
        if not known:
            store.masters.topology.owners[slot_of("lock:a")] = None
        kept = node._waiting if known else store.masters.router.unrouted
        ann.store.submit(Resize("lock:a", 1, 1, 1000)).cancel()
        assert len(kept) == 1
        await until(lambda: not kept)


async def test_pending_commands_are_sent_before_later_ones(
    cluster: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever hears that a master serves us may ask it something: that was asked later."""
    async with Peer(store := store_at(cluster, prefix)) as ann:
        await ann.ask("lock:a")
        node = store.masters.topology.owners[slot_of("lock:a")]
        assert node is not None
        waiter, called = ann.waiter(), list[Script]()
        post = node._pipe.outbox.post

        def posts(command: Command, *written: bytes) -> None:
            called.append(command.script)
            post(command, *written)

        monkeypatch.setattr(node._pipe.outbox, "post", posts)
        ask = partial(store.submit, ReadPosted("lock:a"))
        monkeypatch.setattr(store.masters, "is_ready", lambda _: ask())
        node.ready = False
        pending = ann.ask("lock:a", waiter)
        node._serve(node.session)
        await pending
        assert called == [ACQUIRE, READ]
        await ann.leave("lock:a", waiter)


@pytest.mark.parametrize("ends", ["in_time", "when_it_is_closed"])
async def test_command_rerouted_to_a_silent_node_fails_in_time_or_at_close(
    own_cluster: Cluster, prefix: str, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """It fails in the time that a command has, or with the client: nobody waits for ever."""
    limit = 2.0 if ends == "in_time" else 60.0
    monkeypatch.setattr("aiolock.stores.redis.cluster._router.COMMAND_TIMEOUT", limit)
    store = store_at(own_cluster, prefix)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        async with Peer(store) as ann:
            (used,) = [node for node in store.masters.topology.nodes.values() if node.ready]
            server = next(node for node in own_cluster.masters if node.port == used.address[1])
            name = f"lock:{name_at(own_cluster, server)}"
            server.pause()
            answer = ann.store.submit(Resize(name, 1, 1, 1000))
            other = store.masters._node_at(("127.0.0.1", mute.getsockname()[1]))
            store.masters.topology.assign(slot_of(name), other)
            store.masters.router.hand_on(used, {slot_of(name)})
            if ends == "in_time":
                with pytest.raises(StoreError):
                    await asyncio.wait_for(answer, 8)
            else:
                assert not answer.done()
        server.resume()
        assert isinstance(answer.exception(), StoreError)
