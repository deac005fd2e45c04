"""Several real servers that vote: enrolled, killed, stopped, emptied, started again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
import redis.asyncio

import aiolock
from aiolock import LeaseState, LockClient
from aiolock.protocol import WAS_QUEUED, WAS_UNKNOWN
from aiolock.stores._member import OUTSIDE, UNBOUNDED
from aiolock.stores.quorum import QuorumStore
from aiolock.stores.quorum._membership import ANSWER_TIMEOUT
from aiolock.stores.redis._member import RedisMember
from aiolock.stores.redis._voting import VoteNames
from tests.support.failures import soon
from tests.support.majorities import vouch
from tests.support.servers import RedisServer
from tests.support.worlds import queued

LONGEST = 2.0
"""The longest lease; so a server that was started votes after 3 s."""
FOR_LONG = 600.0
"""The same, where a server that is silent is so for longer than the test takes."""


@pytest.fixture(scope="module")
def those() -> Iterator[list[RedisServer]]:
    """Servers of this module's own, which are whole again after each test."""
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer()) for _ in range(3)]


@pytest.fixture
def of(those: list[RedisServer]) -> Iterator[list[RedisServer]]:
    """The same, as this test may break them."""
    yield those
    for server in those:
        if server._process is None:
            server.start()
        server.resume()


def connect(of: Sequence[RedisServer], prefix: str, *, longest_ttl: float = LONGEST) -> LockClient:
    """Another client of them."""
    urls = [each.url for each in of]
    return aiolock.connect(urls, prefix=prefix, longest_ttl=longest_ttl, ttl=LONGEST)


async def until(true: Callable[[], bool]) -> None:
    """Wait until it is."""
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110  # no event tells what a client knows of its servers
            await asyncio.sleep(0.01)


async def until_all_vote(client: LockClient) -> None:
    """Wait until all of them do."""
    await until(lambda: [each.state for each in client.servers()] == ["up"] * 3)


async def until_all_have_voted_for_it(client: LockClient) -> None:
    """Wait until the only waiter of this client has all their votes: two are enough to enter."""
    store = client._engine.store
    assert isinstance(store, QuorumStore)
    assert store._session is not None
    (acquisition,) = store._session.acquisitions.table.by_waiter.values()
    await until(lambda: None not in acquisition.vote_set.votes)


def left(of: Sequence[RedisServer], prefix: str) -> list[str]:
    """The votes that are out, and the waiters in line, without tombstones."""
    names = VoteNames(prefix)
    return [
        str(each)
        for server in of
        for key in names.keys("lock:a")[:2]
        for each in server.call("ZRANGEBYSCORE", key, "-inf", 10**15 * (1 + key.endswith("line")))
    ]


async def test_server_killed_and_started_empty_does_not_vote_for_a_while(
    of: list[RedisServer], prefix: str
) -> None:
    """A minority that is killed is not noticed; empty again, it does not vote for a while."""
    async with connect(of, prefix) as ours, connect(of, prefix) as other:
        await until_all_vote(ours)
        async with ours.lock("a") as lease:
            of[0].kill()
            waiting = asyncio.create_task(_enter(other.lock("a")))
            await queued(ours.lock("a"), 1)
            await asyncio.sleep(LONGEST)
            assert lease.state is LeaseState.HELD
        assert await waiting > lease.fence
        of[0].start()
        await until(lambda: ours.servers()[0].state == "not voting")
        assert 0 < ours.servers()[0].not_voting <= LONGEST + 1.5
        of[1].kill()
        await until(lambda: ours.servers()[1].state == "out")
        with pytest.raises(aiolock.AcquireTimeout):  # two of three answer: it waits for their votes
            await _enter(ours.lock("a", timeout=0.3))
        of[1].start()
        async with ours.lock("a"):
            pass
        await until_all_vote(ours)
    assert left(of, prefix) == []


async def _enter(lock: aiolock.Lock) -> int:
    async with lock as lease:
        return lease.fence


async def test_done_marker_survives_an_empty_restart_of_each_server(
    of: list[RedisServer], prefix: str
) -> None:
    """A mark is not forgotten while the servers are restarted empty, one after the other."""

    async def work(_: aiolock.Lease) -> str:
        return "paid"

    async with connect(of, prefix) as ours, connect(of, prefix) as other:
        await until_all_vote(ours)
        once = ours.once("a", remember=600)
        assert await once.outcome(work) == ("paid", True)
        for server in of[:2]:
            server.kill()
            server.start()
            await until_all_vote(other)
            assert await other.once("a", remember=600).outcome(work) == ("paid", False)
        of[2].kill()
        assert await once.outcome(work) == ("paid", False)
        assert 590 < (await once.status()).closed <= 600


async def test_server_that_is_stopped_delays_no_client(of: list[RedisServer], prefix: str) -> None:
    """A server that answers nothing delays no client, and is clean once it goes on."""
    async with connect(of, prefix) as ours, connect(of, prefix) as other:
        await until_all_vote(ours)
        of[2].pause()
        for client in (ours, other) * 3:
            async with asyncio.timeout(5):
                await _enter(client.lock("a"))
        async with asyncio.timeout(5):
            while ours.servers()[2].state != "out":
                await _enter(ours.lock("a"))
        of[2].resume()
        await until_all_vote(ours)
        await _enter(ours.lock("a"))
    assert left(of, prefix) == []


@pytest.mark.long
async def test_lease_with_a_majority_stopped_is_lost_and_no_client_enters(
    of: list[RedisServer], prefix: str
) -> None:
    """Then leases are lost, in time, and no client enters until the servers answer."""
    async with connect(of, prefix) as client:
        await until_all_vote(client)

        async def hold() -> None:
            async with client.lock("a"):
                of[0].pause()
                of[1].pause()
                await asyncio.sleep(60)

        with pytest.raises(aiolock.LeaseLost):
            await hold()
        with pytest.raises(aiolock.StoreError, match="2 of 3 servers do not answer: 127"):
            await client.lock("a").try_acquire()
        of[0].resume()
        of[1].resume()
        await _enter(client.lock("a"))


async def test_server_flushed_under_open_connections_does_not_vote_for_a_while(
    of: list[RedisServer], prefix: str
) -> None:
    """A FLUSHALL is seen under open connections: such a server votes after the longest lease."""
    async with connect(of, prefix) as ours, connect(of, prefix) as other:
        await until_all_vote(ours)
        async with ours.lock("a") as lease:
            of[1].call("FLUSHALL")
            async with asyncio.timeout(20):
                while other.servers()[1].state != "not voting":  # the others may answer before it
                    assert await other.lock("a").try_acquire() is None
                    await asyncio.sleep(0.01)
            await asyncio.sleep(LONGEST)
            assert lease.state is LeaseState.HELD
        assert await _enter(other.lock("a")) > lease.fence
        await until_all_vote(other)


async def test_server_full_at_its_registration_says_why_and_votes_later(
    of: list[RedisServer], prefix: str
) -> None:
    """It does not vote, and says why; with room for its charter, it votes."""
    await until(lambda: of[2].call("INFO", "server")["uptime_in_seconds"] > LONGEST + 1)
    of[2].call("CONFIG", "SET", "maxmemory", "1")
    try:
        async with connect(of, prefix) as ours:
            await until(lambda: "maxmemory" in ours.servers()[2].error)
            assert ours.servers()[2].state == "not voting"
            of[2].call("CONFIG", "SET", "maxmemory", "0")
            await until_all_vote(ours)
            assert not ours.servers()[2].error
    finally:
        of[2].call("CONFIG", "SET", "maxmemory", "0")


async def test_server_restarted_with_saved_data_does_not_vote_for_a_while(
    of: list[RedisServer], prefix: str
) -> None:
    """It may have old votes, so it does not vote for a while either."""
    async with connect(of, prefix) as client:
        await until_all_vote(client)
        of[0].call("SAVE")
        of[0].restart()
        await soon(until(lambda: client.servers()[0].state == "not voting"))
        await _enter(client.lock("a"))
        of[0].dump.unlink()


async def test_open_with_another_quorum_config_raises_quorum_mismatch(
    of: list[RedisServer], prefix: str, redis_server: RedisServer
) -> None:
    """A client with another list, or another longest ttl, is refused, and told both."""
    async with connect(of, prefix):
        with pytest.raises(aiolock.QuorumMismatch, match="is a member of another quorum, of 127"):
            await connect([*of[:2], redis_server], prefix).open()
        with pytest.raises(aiolock.QuorumMismatch, match=r"longest_ttl=2, .* longest_ttl=3"):
            await connect(of, prefix, longest_ttl=3).open()
        urls = [each.unix_url for each in of]
        with pytest.raises(aiolock.QuorumMismatch):
            await aiolock.connect(urls, prefix=prefix, longest_ttl=LONGEST, ttl=1).open()
        async with connect(of[::-1], prefix):
            pass  # in whatever order


async def test_open_with_one_server_at_two_addresses_raises_store_error(
    of: list[RedisServer], prefix: str
) -> None:
    """Also where its addresses differ: it says which run of a server it is."""
    urls = [of[0].url, of[1].url, of[0].unix_url]
    with pytest.raises(aiolock.StoreError, match="are one server, which counts once"):
        await aiolock.connect(urls, prefix=prefix, longest_ttl=LONGEST, ttl=1).open()


@pytest.fixture
def _third_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that opens waits for the third server, also where a busy machine keeps that one."""
    monkeypatch.setattr("aiolock.stores.quorum._membership.OTHERS", 8.0)


@pytest.mark.usefixtures("_third_in_time")
async def test_open_with_a_replica_as_a_member_raises_store_error(
    of: list[RedisServer], prefix: str
) -> None:
    """It takes no votes, so it is no member; not even where it may be written to."""
    with RedisServer("--replicaof", "127.0.0.1", str(of[0].port)) as replica:
        for writable in ("no", "yes"):
            replica.call("CONFIG", "SET", "replica-read-only", writable)
            with pytest.raises(aiolock.StoreError, match=f"{replica.port}.* is a replica"):
                await connect([of[1], of[2], replica], f"{prefix}{writable}").open()


@pytest.mark.usefixtures("_third_in_time")
async def test_open_with_a_cluster_node_as_a_member_raises_store_error(
    of: list[RedisServer], prefix: str, lone_node: RedisServer
) -> None:
    """Its masters are replaced by others, which do not know whom it has voted for."""
    with pytest.raises(aiolock.StoreError, match="is a node of a Redis Cluster"):
        await connect([*of[:2], lone_node], prefix).open()


async def test_open_durable_at_servers_that_may_forget_raises_store_error(
    of: list[RedisServer], prefix: str
) -> None:
    """A client that says `durable` is refused if the servers may forget."""
    client = aiolock.connect([each.url for each in of], prefix=prefix, durable=True)
    with pytest.raises(aiolock.StoreError, match="needs appendonly yes and appendfsync always"):
        await client.open()


@pytest.fixture
def durable(prefix: str) -> Iterator[list[RedisServer]]:
    """Servers that forget nothing when they are killed, of which each has voted for long."""
    with ExitStack() as stack:
        writes = ("--appendonly", "yes", "--appendfsync", "always")
        servers = [stack.enter_context(RedisServer(*writes)) for _ in range(3)]
        vouch(servers, [each.url for each in servers], prefix, FOR_LONG, durable=True)
        yield servers


def connect_durable(servers: Sequence[RedisServer], prefix: str) -> LockClient:
    """Another client of them."""
    urls = [each.url for each in servers]
    return aiolock.connect(urls, prefix=prefix, longest_ttl=FOR_LONG, ttl=60, durable=True)


async def test_durable_servers_that_restarted_vote_at_once_with_their_votes(
    durable: list[RedisServer], prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Two of three that were restarted are a majority by themselves, with the votes they had."""
    async with connect_durable(durable, prefix) as ours, connect_durable(durable, prefix) as other:
        await until_all_vote(ours)
        lease = await ours.lock("a").acquire()
        await until_all_have_voted_for_it(ours)
        for server in durable[:2]:
            server.restart()
        durable[2].kill()
        for client in (ours, other):
            await until(lambda: [each.state for each in client.servers()] == ["up", "up", "out"])  # noqa: B023  # called here
        assert await lease.verify()
        assert await other.lock("a").try_acquire() is None
        await _enter(other.lock("b"))
        waiting = asyncio.create_task(_enter(other.lock("a")))
        await queued(ours.lock("a"), 1)
        assert await lease.release()
        assert await waiting > lease.fence
    assert "does not vote" not in caplog.text


async def test_lease_outlives_a_restart_of_all_durable_servers(
    durable: list[RedisServer],
    prefix: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All servers at once: leases stay and are renewed; waiters keep their places."""
    # With two of three servers, a status may show the number of another vote as the fence.
    monkeypatch.setattr("aiolock.stores.quorum._membership.OTHERS", ANSWER_TIMEOUT)
    monkeypatch.setattr("aiolock.stores.quorum._renewals._RENEWAL_TIMEOUT", ANSWER_TIMEOUT)
    async with connect_durable(durable, prefix) as ours, connect_durable(durable, prefix) as other:
        await until_all_vote(ours)
        lease = await ours.lock("a").acquire()
        waiting = asyncio.create_task(_enter(other.lock("a")))
        await queued(ours.lock("a"), 1)
        for server in durable:
            server.kill()
        for server in durable:
            server.start()
        await until_all_vote(ours)
        await lease.extend(FOR_LONG)
        assert lease.remaining() > 60
        assert lease.state is LeaseState.HELD
        status = await other.lock("a").status()
        assert [each.fence for each in status.holders] == [lease.fence]
        assert len(status.waiters) == 1
        assert await lease.release()
        assert await waiting > lease.fence
    assert "does not vote" not in caplog.text


async def test_durable_server_that_is_emptied_does_not_vote_for_longest_ttl(
    durable: list[RedisServer], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that is written down helps there: it is silent for as long as any other would be."""
    monkeypatch.setattr("aiolock.stores.quorum._renewals._RENEWAL_TIMEOUT", ANSWER_TIMEOUT)
    async with connect_durable(durable, prefix) as ours, connect_durable(durable, prefix) as other:
        await until_all_vote(ours)
        async with ours.lock("a") as lease:
            durable[1].call("FLUSHALL")
            async with asyncio.timeout(20):
                # The others may answer before it.
                while other.servers()[1].not_voting < 0.9 * FOR_LONG:
                    assert await other.lock("a").try_acquire() is None
            assert other.servers()[1].not_voting < 1.05 * FOR_LONG
            durable[1].kill()
            await until(lambda: other.servers()[1].state == "out")
            durable[1].start()  # that it is silent is written down
            await until(lambda: other.servers()[1].state == "not voting")
            assert 0.9 * FOR_LONG < other.servers()[1].not_voting < 1.05 * FOR_LONG
            assert await lease.verify()


async def test_durable_server_emptied_soon_after_its_start_counts_from_then(
    durable: list[RedisServer], prefix: str
) -> None:
    """It has voted since it was started, so it is silent from when it was emptied."""
    async with connect_durable(durable, prefix) as client:
        await until_all_vote(client)
        await asyncio.sleep(2.1)
        seconds, _ = durable[1].call("TIME")
        durable[1].call("FLUSHALL")
        await client.lock("a").acquire()
        await until(lambda: client.servers()[1].state == "not voting")
        _, votes_from, _ = durable[1].call("GET", f"{prefix}:quorum").split(" ", 2)
        assert int(votes_from) >= (int(seconds) + FOR_LONG) * 1000


async def test_open_with_a_missing_minority_succeeds_and_more_are_named(
    of: list[RedisServer], prefix: str
) -> None:
    """A minority may be missing when a client opens, and joins later; each of more is named."""
    of[0].kill()
    async with connect(of, prefix) as client:
        assert client.servers()[0].state == "out"
        assert "nothing listens there" in client.servers()[0].error
        await _enter(client.lock("a"))
        of[0].start()
        await until_all_vote(client)
        await _enter(client.lock("a"))
    of[1].kill()
    of[2].kill()
    text = rf"2 of 3 servers do not answer: 127.0.0.1:{of[1].port}/0: .*, 127.0.0.1:{of[2].port}"
    with pytest.raises(aiolock.StoreError, match=text):
        await connect(of, prefix).open()


async def test_quorum_of_callers_clients_serves_a_lock_and_leaves_them_open(
    of: list[RedisServer], prefix: str
) -> None:
    """Members may be given as clients, which are left alone."""
    drivers = [redis.asyncio.Redis.from_url(each.url, decode_responses=True) for each in of]
    ours = aiolock.connect(drivers, prefix=prefix, longest_ttl=LONGEST, ttl=1)
    async with ours as client, connect(of, prefix) as other:
        await until_all_vote(client)
        async with client.lock("a"):
            assert await other.lock("a").try_acquire() is None
    for driver in drivers:
        assert await driver.ping()
        await driver.aclose()


async def test_open_at_a_server_just_started_logs_that_it_does_not_vote(
    of: list[RedisServer], prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A log tells of a server that was started a short while ago, and for how long it is silent."""
    of[0].restart()
    with caplog.at_level(logging.WARNING, "aiolock"):
        async with connect(of, prefix):
            pass
    assert f"127.0.0.1:{of[0].port}/0 does not vote for" in caplog.text


async def test_release_after_a_question_without_a_connection_is_carried_out(
    of: list[RedisServer], prefix: str
) -> None:
    """A waiter that asks again without a connection, and leaves, is released all the same."""
    async with connect(of, prefix) as ours, connect(of, prefix) as other:
        await until_all_vote(ours)
        async with ours.lock("a"):
            waiting = asyncio.create_task(_enter(other.lock("a")))
            await queued(ours.lock("a"), 1)
            store = other._engine.store
            assert isinstance(store, QuorumStore)
            assert store._session is not None
            (acquisition,) = store._session.acquisitions.table.by_waiter.values()
            member = store.members[0]
            assert isinstance(member, RedisMember)
            member._pipe._link.drop(ConnectionError("on purpose"))
            name, request = "lock:a", acquisition.request
            member.vote(
                *(request, acquisition.ttl, 0),
                wait=True,
                most=0,
                new=False,
                on_reply=lambda *_: None,
            )
            released = asyncio.get_running_loop().create_future()
            member.release(
                *(request, 0, UNBOUNDED),
                entered=OUTSIDE,
                on_reply=lambda was, _: released.set_result(was),
            )
            assert await released in (WAS_QUEUED, WAS_UNKNOWN)
            assert of[0].call("ZRANGE", VoteNames(prefix).keys(name)[1], 0, -1) == []
            waiting.cancel()
            await asyncio.wait([waiting])
    assert left(of, prefix) == []
