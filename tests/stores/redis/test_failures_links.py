"""Links that are killed, cut within a command, robbed of a reply, dead without a reset, slow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
import redis.asyncio

import aiolock
from aiolock.stores.redis import RedisStore
from aiolock.stores.redis import _link as redis_link
from aiolock.stores.redis._wire import Wire
from tests.support.failures import (
    Peek,
    command_link,
    linked,
    soon,
    subscription_link,
    take,
    until,
)
from tests.support.proxy import Link, Proxy
from tests.support.servers import RedisServer

HELD = aiolock.LeaseState.HELD


@pytest.fixture
async def client(server: RedisServer, prefix: str) -> AsyncIterator[aiolock.LockClient]:
    """A client with good links, whose every script the server knows."""
    async with aiolock.connect(server.url, prefix=prefix, ttl=30) as client:
        async with client.lock("lock") as lease:
            await lease.verify()
        await client.lock("lock").status()
        yield client


@pytest.fixture
async def victim(
    client: aiolock.LockClient, proxy: Proxy, prefix: str
) -> AsyncIterator[aiolock.LockClient]:
    """A client with links that go through the proxy."""
    async with aiolock.connect(proxy.url, prefix=prefix, ttl=30) as victim:
        yield victim


@pytest.fixture
def frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients look after their links twenty times as often."""
    monkeypatch.setattr("aiolock.stores.redis._health.HEARTBEAT", 0.5)


@pytest.fixture
def impatient(
    frequent: None,  # before the client opens
    victim: aiolock.LockClient,  # on a busy machine, that may take a while
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dead links are noticed twenty times as fast, once the client is open."""
    monkeypatch.setattr("aiolock.stores.redis._health.HEARTBEAT_TIMEOUT", 0.2)
    monkeypatch.setattr("aiolock.stores.redis._deadlines.REPLY_TIMEOUT", 0.2)
    monkeypatch.setattr("aiolock.stores.redis._deadlines.LOOK", 0.05)


async def ends(lease: aiolock.Lease) -> None:
    """Check that a lease is ours until we give it back."""
    assert await lease.verify()
    assert await lease.release()


# --- Killed


async def test_waiters_whose_subscription_was_killed_enter_in_turn(
    server: RedisServer, client: aiolock.LockClient, victim: aiolock.LockClient, peek: Peek
) -> None:
    """Waiters whose subscription was killed get the lock in their turn, from a new one."""
    lease = await take(client.lock("lock"))
    waiting = [asyncio.create_task(take(victim.lock("lock"))) for _ in range(3)]
    await peek.queued(3)
    queue = peek.queue()
    assert server.call("CLIENT", "KILL", "TYPE", "pubsub") == 2
    await until(lambda: peek.listens(victim.id) and peek.listens(client.id))
    assert peek.queue() == queue
    for waiter in waiting:
        await lease.release()
        lease = await asyncio.wait_for(waiter, 5)
    await ends(lease)


async def test_handoff_push_lost_with_its_connection_is_found_on_the_next(
    client: aiolock.LockClient, victim: aiolock.LockClient, proxy: Proxy, peek: Peek
) -> None:
    """A push that was lost with its connection is made up for as soon as there is another."""
    lease = await take(client.lock("lock"))
    waiting = asyncio.create_task(take(victim.lock("lock")))
    await peek.queued(1)
    proxy.swallow_replies(1, subscription_link(proxy))
    await lease.release()
    (grant,) = peek.holders()
    lease = await asyncio.wait_for(waiting, 5)
    assert grant.endswith(f":{lease.fence}")
    await ends(lease)


async def test_waiters_taken_for_dead_at_a_handoff_return_to_their_places(
    client: aiolock.LockClient, victim: aiolock.LockClient, proxy: Proxy, peek: Peek
) -> None:
    """Waiters taken for dead while they could not listen come back to their old places."""
    lease = await take(client.lock("lock"))
    waiting = [asyncio.create_task(take(victim.lock("lock"))) for _ in range(2)]
    await peek.queued(2)
    queue = peek.queue()
    proxy.refuse()
    subscription_link(proxy).cut()
    await until(lambda: not peek.listens(victim.id))
    await lease.release()
    assert peek.holders() == peek.queue() == []
    lease = await take(client.lock("lock"))
    behind = asyncio.create_task(take(client.lock("lock")))
    await peek.queued(1)
    proxy.accept()
    await peek.queued(3)
    assert peek.queue()[:2] == queue
    await until(
        lambda: not client._engine.handoff.names
    )  # it has heard that somebody stands between
    for waiter in (*waiting, behind):
        await lease.release()
        lease = await asyncio.wait_for(waiter, 5)
    await ends(lease)


async def test_command_connection_killed_keeps_leases_and_places(
    server: RedisServer, client: aiolock.LockClient, victim: aiolock.LockClient, peek: Peek
) -> None:
    """Leases and places in the queue outlive the command connection."""
    lease = await take(client.lock("lock"))
    waiting = asyncio.create_task(take(victim.lock("lock")))
    await peek.queued(1)
    assert server.call("CLIENT", "KILL", "TYPE", "normal") == 2
    assert await lease.verify()
    assert lease.state is HELD
    assert await lease.release()
    await ends(await asyncio.wait_for(waiting, 5))


async def test_connections_killed_again_and_again_keep_leases_and_order(
    server: RedisServer, client: aiolock.LockClient, victim: aiolock.LockClient, peek: Peek
) -> None:
    """Leases and places in the queue outlive both connections, killed again and again."""
    lease = await take(client.lock("lock"))
    waiting = [asyncio.create_task(take(victim.lock("lock"))) for _ in range(3)]
    await peek.queued(3)
    fences = [lease.fence]
    for waiter in waiting:
        server.call("CLIENT", "KILL", "TYPE", "pubsub")
        server.call("CLIENT", "KILL", "TYPE", "normal")
        assert await lease.release()
        lease = await asyncio.wait_for(waiter, 5)
        fences.append(lease.fence)
    assert fences == sorted(set(fences))
    await ends(lease)


# --- Two servers behind one address


async def test_subscription_at_another_server_is_dialled_with_pauses(
    server: RedisServer, own_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is confirmed, but not counted where commands go: that is no reason to hurry."""
    pauses: list[float] = []
    dial = redis_link.Link._dial

    async def noted(link: redis_link.Link, number: int) -> Wire:
        if link is subscription._link:
            pauses.append(link._backoff.next)
        return await dial(link, number)

    async with (
        aiolock.connect(server.url, prefix=prefix) as client,
        redis.asyncio.Redis.from_url(own_server.url) as elsewhere,
    ):
        subscription = _store(client).session.subscription
        subscription._link._pool = elsewhere.connection_pool
        monkeypatch.setattr(redis_link.Link, "_dial", noted)
        subscription.drop(ConnectionResetError("broken"))
        await until(lambda: len(pauses) >= 4)
        assert pauses[:4] == [0.02, 0.04, 0.08, 0.16]


async def test_subscription_that_is_counted_is_dialled_at_once(
    victim: aiolock.LockClient, proxy: Proxy
) -> None:
    """Once the server of the commands counts it again, the next break costs no pause."""
    link = _store(victim).session.subscription._link
    wire = link.wire
    await linked(proxy)
    subscription_link(proxy).cut()
    await until(lambda: link.wire not in {None, wire})
    await until(lambda: link._backoff.next == 0.0)


async def test_commands_follow_the_subscription_to_another_server(
    server: RedisServer, own_server: RedisServer, proxy: Proxy, prefix: str
) -> None:
    """Where the address has come to lead elsewhere, the commands follow the subscription."""
    async with aiolock.connect(proxy.url, prefix=prefix) as client:
        await linked(proxy)
        commands = command_link(proxy)
        proxy.lead_to(own_server.port)
        subscription_link(proxy).cut()
        await until(lambda: commands not in proxy.links)
        async with client.lock("lock"):
            assert Peek(own_server, prefix).holders()
        assert Peek(own_server, prefix).listens(client.id)


def _store(client: aiolock.LockClient) -> RedisStore:
    store = client._engine.store
    assert isinstance(store, RedisStore)
    return store


# --- A lost reply


@pytest.mark.parametrize("waits", [True, False])
async def test_acquire_whose_reply_is_lost_acquires_once(
    victim: aiolock.LockClient, proxy: Proxy, peek: Peek, waits: bool
) -> None:
    """The lock is acquired once, also where the reply that said so was lost."""
    proxy.swallow_replies(1, command_link(proxy))
    acquiring = asyncio.create_task(victim.lock("lock").acquire(timeout=None if waits else 0))
    await asyncio.sleep(0)
    sent = time.monotonic()  # and not earlier: what passes before it is sent is none of the lease's
    lease = await acquiring
    (grant,) = peek.holders()
    assert grant.endswith(f":{lease.fence}")
    assert lease.fence == peek.fence(), "another fence was minted"
    assert time.monotonic() + lease.remaining() <= peek.ends()
    assert time.monotonic() + lease.remaining() <= sent + 30
    await ends(lease)


async def test_acquire_whose_queued_reply_is_lost_is_in_the_queue_once(
    client: aiolock.LockClient, victim: aiolock.LockClient, proxy: Proxy, peek: Peek
) -> None:
    """A waiter whose reply was lost stands in the queue once, and is handed the lock."""
    lease = await take(client.lock("lock"))
    proxy.swallow_replies(1, command_link(proxy))
    waiting = asyncio.create_task(take(victim.lock("lock", max_waiters=1)))
    await until(lambda: proxy.connections == 3 and len(proxy.links) == 2)
    await peek.queued(1)
    assert peek.clients() == [victim.id]
    await lease.release()
    await ends(await asyncio.wait_for(waiting, 5))


async def test_acquire_granted_while_its_reply_was_lost_enters_with_that_grant(
    client: aiolock.LockClient, victim: aiolock.LockClient, proxy: Proxy, peek: Peek
) -> None:
    """A waiter that was queued and granted while its reply was lost enters with that grant."""
    lease = await take(client.lock("lock"))
    proxy.refuse()
    proxy.swallow_replies(1, command_link(proxy))
    waiting = asyncio.create_task(take(victim.lock("lock")))
    await peek.queued(1)
    await lease.release()
    (grant,) = peek.holders()
    assert grant.split(":")[1] == victim.id
    proxy.accept()
    lease = await asyncio.wait_for(waiting, 5)
    assert grant.endswith(f":{lease.fence}")
    await ends(lease)


async def test_release_whose_reply_is_lost_is_carried_out_once(
    client: aiolock.LockClient, victim: aiolock.LockClient, proxy: Proxy, peek: Peek
) -> None:
    """A release without a reply is a release: once, of this lease, and the body was not lost."""
    waiting: asyncio.Task[aiolock.Lease]
    async with victim.lock("lock") as lease:
        waiting = asyncio.create_task(take(client.lock("lock")))
        await peek.queued(1)
        proxy.swallow_replies(1, command_link(proxy))
    assert lease.state is aiolock.LeaseState.RELEASED
    assert not lease.lost.is_set()
    await ends(await asyncio.wait_for(waiting, 5))

    lease = await take(victim.lock("lock"))
    proxy.swallow_replies(1, command_link(proxy))
    assert await lease.release()
    assert await lease.release()


async def test_handoff_lost_with_the_reply_to_a_release_is_asked_for_again(
    victim: aiolock.LockClient, proxy: Proxy, peek: Peek
) -> None:
    """A grant that came with a reply which was lost is asked for once there is another link."""
    lease = await take(victim.lock("lock"))
    # Of another form, or the client would hand it on by itself.
    waiting = asyncio.create_task(take(victim.lock("lock", ttl=2.5)))
    await peek.queued(1)
    proxy.swallow_replies(1, command_link(proxy))
    assert await lease.release()
    (grant,) = peek.holders()
    lease = await asyncio.wait_for(waiting, 5)
    assert grant.endswith(f":{lease.fence}")
    await ends(lease)


async def test_finish_whose_reply_is_lost_is_remembered(
    client: aiolock.LockClient, victim: aiolock.LockClient, proxy: Proxy, peek: Peek
) -> None:
    """What was finished without a reply is remembered, and the body was not lost."""
    once = victim.once("a message", remember=1)
    async with once as lease:
        assert lease is not None
        proxy.swallow_replies(1, command_link(proxy))
    async with client.once(once.name, remember=1) as lease:
        assert lease is None
    anything = replace(once._lock._policy, once=False)
    await ends(await take(aiolock.Lock(client._engine, anything)))  # when that is forgotten


async def test_renewal_whose_reply_is_lost_is_made_again(
    victim: aiolock.LockClient, proxy: Proxy, peek: Peek
) -> None:
    """A renewal without a reply is made again, and the lease goes on."""
    lease = await take(victim.lock("lock", ttl=3))
    deadline = lease._hold.deadline
    proxy.swallow_replies(1, command_link(proxy))
    await until(lambda: proxy.connections == 3)
    await until(lambda: lease._hold.deadline > deadline)
    assert lease.state is HELD
    assert peek.holders()[0].endswith(f":{lease.fence}")
    await ends(lease)


async def test_extend_whose_reply_is_lost_counts_from_its_first_sending(
    victim: aiolock.LockClient, proxy: Proxy, peek: Peek
) -> None:
    """An extension without a reply is made again, and then counts from when it was first sent."""
    lease = await take(victim.lock("lock", ttl=3))
    proxy.swallow_replies(1, command_link(proxy))
    extending = asyncio.create_task(lease.extend(30))
    await asyncio.sleep(0)
    sent = time.monotonic()
    await extending
    assert 25 < time.monotonic() + lease.remaining() - sent <= 30
    assert time.monotonic() + lease.remaining() <= peek.ends()
    await ends(lease)


async def test_break_whose_reply_is_lost_does_not_break_the_next_grant(
    client: aiolock.LockClient, victim: aiolock.LockClient, proxy: Proxy, peek: Peek
) -> None:
    """Breaking a lock without a reply takes it from its holder, and not from the next as well."""
    await victim.lock("lock").break_()
    holder = await take(client.lock("lock"))
    waiting = asyncio.create_task(take(client.lock("lock")))
    await peek.queued(1)
    proxy.swallow_replies(1, command_link(proxy))
    # StoreError is an honest answer too: nobody knows.
    with suppress(aiolock.StoreError):
        assert await victim.lock("lock").break_()
    await asyncio.wait_for(holder.lost.wait(), 5)
    lease = await asyncio.wait_for(waiting, 5)
    await victim.lock("lock").status()
    await ends(lease)


async def test_break_of_one_grant_whose_reply_is_lost_raises_store_error(
    client: aiolock.LockClient, victim: aiolock.LockClient, proxy: Proxy
) -> None:
    """Whoever breaks one grant without a reply is not told that nobody held it."""
    lock = victim.lock("lock")
    assert not await lock.break_(1)
    holder = await take(client.lock("lock"))
    proxy.swallow_replies(1, command_link(proxy))
    with pytest.raises(aiolock.StoreError, match="nobody knows whether this call broke it"):
        await lock.break_(holder.fence)
    await asyncio.wait_for(holder.lost.wait(), 5)
    assert not await lock.break_(holder.fence)


# --- Half a command


@pytest.mark.parametrize("size", [1, 30, 200])
@pytest.mark.parametrize("operation", ["acquire", "release", "renew"])
async def test_command_cut_in_two_is_sent_again_whole(
    victim: aiolock.LockClient, proxy: Proxy, peek: Peek, operation: str, size: int
) -> None:
    """A command of which only a part arrived is sent again, whole."""
    link = command_link(proxy)
    if operation == "acquire":
        proxy.cut_after(size, link)
    lease = await take(victim.lock("lock"))
    if operation == "renew":
        proxy.cut_after(size, link)
        await lease.extend(20)
        assert 15 < peek.ends() - time.monotonic() <= 20
    if operation == "release":
        proxy.cut_after(size, link)
        assert await lease.release()
        assert lease.state is aiolock.LeaseState.RELEASED
    else:
        await ends(lease)
    assert proxy.connections == 3
    assert peek.holders() == []


# --- Dead without a reset


async def dead(proxy: Proxy, which: str) -> list[Link]:
    """Make links dead without a reset: what was sent and what will be is lost."""
    await linked(proxy)
    links = {"commands": [command_link(proxy)], "subscription": [subscription_link(proxy)]}
    chosen = links.get(which, proxy.links)
    for link in chosen:
        link.deaf(drop=True)
    return list(chosen)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("which", ["commands", "subscription", "both"])
async def test_link_that_died_in_silence_is_replaced_while_waiting(
    client: aiolock.LockClient, victim: aiolock.LockClient, proxy: Proxy, peek: Peek, which: str
) -> None:
    """Links that died in silence are noticed and replaced while their client just waits."""
    lease = await take(client.lock("lock"))
    waiting = asyncio.create_task(take(victim.lock("lock")))
    await peek.queued(1)
    links = await dead(proxy, which)
    await until(lambda: len(set(proxy.links) - set(links)) == 2)
    assert not waiting.done()
    await lease.release()
    await ends(await asyncio.wait_for(waiting, 5))


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("which", ["commands", "subscription", "both"])
async def test_handoff_over_a_dead_link_is_entered_once_that_is_noticed(
    client: aiolock.LockClient, victim: aiolock.LockClient, proxy: Proxy, peek: Peek, which: str
) -> None:
    """A waiter that was handed the lock over a dead link enters once that is noticed."""
    lease = await take(client.lock("lock"))
    waiting = asyncio.create_task(take(victim.lock("lock")))
    await peek.queued(1)
    await dead(proxy, which)
    await lease.release()
    (grant,) = peek.holders()
    lease = await asyncio.wait_for(waiting, 5)
    assert grant.endswith(f":{lease.fence}")
    await ends(lease)


async def test_lease_over_a_dead_link_is_at_risk_until_it_is_replaced(
    victim: aiolock.LockClient, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder whose link died is at risk until that is noticed, and then goes on."""
    # Asks at a third of its ttl, is at risk a sixth later, and has till the end for the rest. The
    # first that has no answer is its label, which is posted after one to two seconds.
    monkeypatch.setattr("aiolock.stores.redis._deadlines.REPLY_TIMEOUT", 4.6)
    monkeypatch.setattr("aiolock.stores.redis._deadlines.LOOK", 0.05)
    lease = await take(victim.lock("lock", ttl=9))
    await dead(proxy, "commands")
    assert lease.state is HELD
    await until(lambda: lease.state is aiolock.LeaseState.AT_RISK)
    await until(lambda: lease.state is not aiolock.LeaseState.AT_RISK)
    assert lease.state is HELD
    await ends(lease)


@pytest.mark.usefixtures("impatient")
async def test_holder_cut_off_past_its_ttl_is_cancelled_before_the_next_enters(
    client: aiolock.LockClient, victim: aiolock.LockClient, proxy: Proxy, peek: Peek
) -> None:
    """A holder that is cut off for longer than its ttl is told before another can enter."""
    leases: list[aiolock.Lease] = []
    entered: list[bool] = []

    async def body() -> None:
        async with victim.lock("lock", ttl=1) as lease:
            leases.append(lease)
            try:
                await asyncio.sleep(10)
            finally:
                entered.append(waiting.done())

    holding = asyncio.create_task(body())
    await until(lambda: leases)
    waiting = asyncio.create_task(take(client.lock("lock")))
    await peek.queued(1)
    proxy.deaf(drop=True)
    with pytest.raises(aiolock.LeaseLost):
        await holding
    proxy.hear()
    second = await asyncio.wait_for(waiting, 5)
    assert second.fence > leases[0].fence
    # Not when the body ran: where this loop was held up, the server may have gone on before that.
    deadline = time.time() + leases[0]._hold.deadline - victim._engine.watchdog.time()
    assert second.fence / 1e6 > deadline, "two held it at once"
    assert entered == [False], "it was told too late"
    await ends(second)


@pytest.mark.long
async def test_link_that_died_in_silence_is_replaced_within_15_s(
    client: aiolock.LockClient, victim: aiolock.LockClient, proxy: Proxy, peek: Peek
) -> None:
    """With the real time limits, links that died in silence are replaced within 15 seconds."""
    lease = await take(client.lock("lock"))
    waiting = asyncio.create_task(take(victim.lock("lock")))
    await peek.queued(1)
    links = await dead(proxy, "both")
    start = time.monotonic()
    await until(lambda: len(set(proxy.links) - set(links)) == 2, within=20)
    # Each link is replaced by itself: both, here, since both died.
    assert time.monotonic() - start < 15
    await lease.release()
    await ends(await asyncio.wait_for(waiting, 5))


# --- Slow


async def test_lease_over_a_slow_link_counts_from_before_its_request(
    client: aiolock.LockClient, victim: aiolock.LockClient, proxy: Proxy, peek: Peek
) -> None:
    """On a slow link all is as on a fast one, and a lease counts from before it was asked for."""
    proxy.delay(to_server=0.1, to_client=0.1)
    sent = time.monotonic()
    async with victim.lock("lock", ttl=5) as lease:
        assert lease.remaining() <= 5 - 0.197  # timers of uvloop's count whole ms
        assert time.monotonic() - sent >= 0.197
        waiting = asyncio.create_task(take(client.lock("lock")))
        await peek.queued(1)
    lease = await asyncio.wait_for(waiting, 5)
    again = asyncio.create_task(take(victim.lock("lock", ttl=5)))
    await peek.queued(1)
    await lease.release()
    lease = await asyncio.wait_for(again, 5)
    assert time.monotonic() + lease.remaining() <= peek.ends()
    await ends(lease)


async def test_acquire_over_a_link_slower_than_the_ttl_raises_store_error(
    victim: aiolock.LockClient, proxy: Proxy, peek: Peek
) -> None:
    """Where every lease has ended before it is known of, there is an error and no lock."""
    proxy.delay(to_server=0.03, to_client=0.03)
    with pytest.raises(aiolock.StoreError, match="too short"):
        await victim.lock("lock", ttl=0.05).acquire()
    await until(lambda: not peek.holders())


async def test_push_slower_than_the_claim_is_not_entered_and_asked_again(
    client: aiolock.LockClient, victim: aiolock.LockClient, proxy: Proxy, peek: Peek
) -> None:
    """A push that comes when its lease has ended lets nobody in; the waiter asks again."""
    ttl = 1.5
    lease = await take(client.lock("lock"))
    waiting = asyncio.create_task(take(victim.lock("lock", ttl=ttl)))
    await peek.queued(1)
    proxy.delay(to_client=2 * ttl)
    await lease.release()
    (stale,) = peek.holders()
    between = await take(client.lock("lock"))
    assert not waiting.done()
    proxy.delay()
    await between.release()
    lease = await asyncio.wait_for(waiting, 5)
    assert int(stale.split(":")[-1]) < between.fence < lease.fence
    await lease.release()


# --- What was put up


async def test_leader_is_published_again_after_a_broken_link(
    client: aiolock.LockClient,
    victim: aiolock.LockClient,
    proxy: Proxy,
    server: RedisServer,
    prefix: str,
) -> None:
    """What a store has forgotten, as after a fail-over, is put up again at once: not at its third
    of a long ttl.
    """
    election = client.election("e")
    async with victim.election("e", ttl=300).campaign("here"):
        before = await election.leader()
        assert before is not None
        assert server.call("DEL", *server.call("KEYS", f"{prefix}*elected:e*"))
        assert await election.leader() is None
        await linked(proxy)
        command_link(proxy).cut()

        async def publish() -> object:
            async with asyncio.timeout(30):
                while (leader := await election.leader()) is None:  # noqa: ASYNC110 # nothing tells
                    await asyncio.sleep(0.01)
            return leader

        assert await soon(publish(), within=20) == before


# --- Late


async def was_given_up(proxy: Proxy, link: Link) -> None:
    """With a reset: else what was written might still be in the kernel's hands."""
    await until(lambda: proxy.late)  # the proxy hears of it as anybody does
    assert link.was_reset
    assert proxy.late == [link]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("kind", ["lock", "semaphore"])
async def test_late_copy_of_an_acquire_is_refused_and_grants_nothing(
    server: RedisServer,
    victim: aiolock.LockClient,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    """What arrives long after it was sent again, carried out and undone changes nothing."""
    monkeypatch.setattr("aiolock.stores._retry_window.LATE_AFTER", 600_000)
    lock = victim.lock("late") if kind == "lock" else victim.semaphore("late", 2)
    await linked(proxy)
    link = command_link(proxy)
    link.withhold()
    async with lock:
        await was_given_up(proxy, link)
    store = victim._engine.store
    assert isinstance(store, RedisStore)
    last_stamp = store.session.pipe.copies._last_stamp  # not before that is the copy late

    def server_time() -> int:
        seconds, micros = server.call("TIME")
        return int(seconds) * 1_000_000 + int(micros)

    await until(lambda: server_time() > last_stamp)
    assert b"-LATE " in await link.deliver()
    status = await lock.status()
    assert status.holders == status.waiters == ()


async def _renews(ours: aiolock.LockClient, theirs: aiolock.LockClient, late: Late) -> None:
    lease = await take(ours.lock("late"))
    async with late():
        await lease.extend(25)
    await lease.release()
    async with theirs.lock("late") as other:
        await late.deliver()
        assert await other.verify()
        assert [each.fence for each in (await ours.lock("late").status()).holders] == [other.fence]


async def _releases(ours: aiolock.LockClient, theirs: aiolock.LockClient, late: Late) -> None:
    lease = await take(ours.lock("late"))
    async with late():
        await lease.release()
    async with ours.lock("late") as other:
        await late.deliver(stamped=False)
        assert await other.verify()


async def _finishes(ours: aiolock.LockClient, theirs: aiolock.LockClient, late: Late) -> None:
    once = ours.once("late", remember=0.1)
    async with once:
        late.begin()
    await late.end()
    async with asyncio.timeout(30):
        while (await once.status()).closed:  # noqa: ASYNC110  # nobody is told
            await asyncio.sleep(0.02)
    with suppress(RuntimeError):
        async with once as lease:
            assert lease is not None
            await late.deliver(stamped=False)
            assert await lease.verify()
            assert (await once.status()).closed == 0
            raise RuntimeError("so that it is not done again")


async def _posts(ours: aiolock.LockClient, theirs: aiolock.LockClient, late: Late) -> None:
    latch = ours.latch("late", 3)
    async with late():
        assert await latch.count_down() == 2
    await late.deliver()
    assert await latch.missing() == 2


async def _resizes(ours: aiolock.LockClient, theirs: aiolock.LockClient, late: Late) -> None:
    pool = ours.semaphore("late", 5)
    async with pool:
        async with late():
            await pool.resize(3)
        await theirs.semaphore("late", 5).resize(4)
        await late.deliver()
        assert (await pool.status()).limit == 4


async def _requests(ours: aiolock.LockClient, theirs: aiolock.LockClient, late: Late) -> None:
    async with theirs.lock("late") as asked:
        async with late():
            assert await ours.lock("late").request_release()
        await asyncio.wait_for(asked.requested.wait(), 10)
    async with theirs.lock("late") as other:
        await late.deliver()
        await other.verify()
        assert not other.requested.is_set()


class Late:
    """The first copy of what is sent meanwhile: it comes when the second was carried out."""

    def __init__(self, victim: aiolock.LockClient, proxy: Proxy) -> None:
        self._victim = victim
        self._proxy = proxy
        self._link = command_link(proxy)

    def begin(self) -> None:
        """From now on what is sent gets no further."""
        self._link.withhold()

    async def end(self) -> None:
        """It was sent again by now."""
        await was_given_up(self._proxy, self._link)

    @asynccontextmanager
    async def __call__(self) -> AsyncGenerator[None, None]:
        """That of what is sent in the body."""
        self.begin()
        yield
        await self.end()

    async def deliver(self, *, stamped: bool = True) -> None:
        """Now it comes; ``stamped``: after its time, and so it is refused."""
        store = self._victim._engine.store
        assert isinstance(store, RedisStore)
        last_stamp = store.session.pipe.copies._last_stamp if stamped else 0
        await until(lambda: time.time() * 1e6 > last_stamp)  # the server's clock is ours
        assert (b"-LATE " in await self._link.deliver()) == stamped


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("what", [_renews, _releases, _finishes, _posts, _resizes, _requests])
async def test_late_copy_of_any_other_command_changes_nothing(
    client: aiolock.LockClient,
    victim: aiolock.LockClient,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    what: Callable[[aiolock.LockClient, aiolock.LockClient, Late], Awaitable[None]],
) -> None:
    """As above, of each other command that somebody may have undone, or done again, by then."""
    monkeypatch.setattr("aiolock.stores._retry_window.LATE_AFTER", 600_000)
    await linked(proxy)
    await what(victim, client, Late(victim, proxy))
