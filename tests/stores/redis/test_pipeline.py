"""The one connection for all commands: what it keeps, sends again, gives up and does not send."""

from __future__ import annotations

import asyncio
import gc
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from unittest.mock import Mock

import pytest

import aiolock
from aiolock._engine.acquisition import Acquisition
from aiolock._prompt import Prompt
from aiolock.protocol import (
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_QUEUED,
    Acquire,
    Answer,
    Event,
    Form,
    Granted,
    ReadPosted,
    ReadStatus,
    Release,
    Renew,
    Renewal,
    ReportHandoff,
    WaiterId,
)
from aiolock.stores._retry_window import LATE_AFTER
from aiolock.stores.redis import RedisStore
from aiolock.stores.redis._called import Called
from aiolock.stores.redis._codec import encode
from aiolock.stores.redis._command import Command
from aiolock.stores.redis._pipeline import Pipeline
from aiolock.stores.redis._scripts import ACQUIRE, READ, RELEASE, RENEW, bulk
from tests.support.failures import command_link, linked, take, until
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer, store_on


def drop_event(_: Event) -> None:
    """Nobody waits for it."""


@pytest.fixture
async def store(proxy: Proxy, prefix: str) -> AsyncIterator[RedisStore]:
    """An open store behind the proxy."""
    store = store_on(proxy.url, prefix)
    await store.open("me", drop_event)
    yield store
    proxy.accept()
    await store.aclose()


@pytest.fixture
def impatient(
    store: RedisStore,  # it is open by then: that may take a while
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is not answered is given up soon."""
    monkeypatch.setattr("aiolock.stores.redis._deadlines.REPLY_TIMEOUT", 0.2)
    monkeypatch.setattr("aiolock.stores.redis._outbox.COMMAND_TIMEOUT", 0.4)
    monkeypatch.setattr("aiolock.stores.redis._deadlines.LOOK", 0.05)
    monkeypatch.setattr("aiolock.stores.redis._health.HEARTBEAT_TIMEOUT", 0.2)


FORM = Form(claim=3000)


def waiter(number: int) -> WaiterId:
    """One that asks for a lock of its own."""
    return WaiterId("me", number)


def text(number: int) -> str:
    """As it is written down."""
    return encode(waiter(number), FORM, blind=False)


def ask(store: RedisStore, number: int, *, first: bool = True) -> asyncio.Future[Any]:
    """Ask for a lock of its own, as a waiter of its own, for the first time or once more."""
    ticket = 0 if first else 10**15
    return store.submit(
        Acquire(
            f"name {number}", waiter(number), FORM, 30000, ticket=ticket, wait=True, max_waiters=0
        )
    )


def leave(store: RedisStore, number: int) -> asyncio.Future[int]:
    """Give up whatever that waiter has."""
    return store.submit(Release(f"name {number}", waiter(number), FORM, 0))


def look(store: RedisStore) -> asyncio.Future[Any]:
    """Ask for something that changes nothing."""
    names = (2, store._names.keys("looked at")[0], store._names.value("looked at"))
    return store.session.pipe.call(READ, 3, b"".join(map(bulk, names)))


async def cut_off(store: RedisStore, proxy: Proxy) -> Pipeline:
    """Cut the connection, and let there be no other; returns when that is noticed."""
    proxy.refuse()
    command_link(proxy).cut()
    await until(lambda: store.session.pipe.outbox.wire is None)
    return store.session.pipe


def calls(server: RedisServer) -> int:
    """How many scripts the server was asked to run."""
    stats: dict[str, Any] = server.call("INFO", "commandstats")
    return sum(
        stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]
        + stats.get(f"cmdstat_{name}", {}).get("rejected_calls", 0)
        for name in ("eval", "evalsha")
    )


# --- What was never written


async def test_pipe_forget_of_a_question_not_yet_written_prevents_its_sending(
    store: RedisStore, proxy: Proxy, redis_server: RedisServer, prefix: str
) -> None:
    """A waiter's first question that is forgotten is never sent; that it was sent is known."""
    written = ask(store, 1)
    await written
    pipe = await cut_off(store, proxy)
    waiting, cancelled, later = ask(store, 2), ask(store, 3), ask(store, 4, first=False)
    cancelled.cancel()
    await asyncio.sleep(0)  # whoever is cancelled hears of it after the command has
    assert not pipe.forget(bulk(text(1)))
    assert pipe.forget(bulk(text(2)))
    assert not pipe.forget(bulk(text(2)))
    assert pipe.forget(bulk(text(3)))
    assert not pipe.forget(bulk(text(4)))
    assert waiting.cancelled()
    proxy.accept()
    await later
    assert not pipe.outbox.queue.first
    assert not pipe.outbox.pending
    assert not redis_server.call("EXISTS", f"{prefix}:{{name 2}}:holders")
    assert redis_server.call("EXISTS", f"{prefix}:{{name 4}}:holders")
    await asyncio.gather(leave(store, 1), leave(store, 4))


async def test_pipe_forget_of_a_written_question_is_refused(
    store: RedisStore, proxy: Proxy
) -> None:
    """What waited for a connection and was then written is not forgotten."""
    pipe = await cut_off(store, proxy)
    asked = ask(store, 1)
    proxy.accept()
    await asked
    assert not pipe.forget(bulk(text(1)))
    await leave(store, 1)


@pytest.mark.usefixtures("impatient")
async def test_store_error_is_refused_only_for_a_command_never_written(
    store: RedisStore, proxy: Proxy
) -> None:
    """What was not carried out for certain is told from what nobody knows."""
    await linked(proxy)
    command_link(proxy).deaf(drop=True)
    unknown = leave(store, 1)
    await asyncio.sleep(0)
    await cut_off(store, proxy)
    never = leave(store, 2)
    for left, refused in ((unknown, False), (never, True)):
        with pytest.raises(aiolock.StoreError, match=f"127.0.0.1:{proxy.port}") as caught:
            await left
        assert caught.value.refused is refused
    assert not store.session.pipe.outbox.pending


async def test_command_asked_while_others_time_out_is_answered(
    store: RedisStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While commands whose time is over are given up, each in turn, more may be asked."""
    await linked(proxy)
    command_link(proxy).deaf()
    again = list[asyncio.Future[Any]]()

    def heard(_: Any, error: Exception | None) -> None:
        assert isinstance(error, aiolock.StoreError)
        again.append(look(store))

    for _ in range(2):
        names = (2, store._names.keys("looked at")[0], store._names.value("looked at"))
        _ = store.session.pipe.call(READ, 3, b"".join(map(bulk, names)), reply=Called(heard))
    monkeypatch.setattr("aiolock.stores.redis._outbox.COMMAND_TIMEOUT", 0.0)
    timers = list[Callable[..., object]]()

    def call_later(delay: float, call: Callable[..., object], *more: Any) -> asyncio.TimerHandle:
        timers.append(call)
        return asyncio.get_running_loop().call_later(delay, call, *more)

    deadlines = store.session.pipe._deadlines
    monkeypatch.setattr(deadlines, "_loop", Mock(wraps=deadlines._loop, call_later=call_later))
    store.session.pipe._deadlines.check()
    assert len(again) == 2
    assert (
        timers.count(store.session.pipe._deadlines.check) == 1
    )  # and not one more for each that has asked
    monkeypatch.undo()
    command_link(proxy).hear()
    await asyncio.gather(*again)


async def test_command_from_another_node_times_out_by_its_own_age(
    store: RedisStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is older than what waits for the connection already, and stands behind it."""
    monkeypatch.setattr("aiolock.stores.redis._outbox.COMMAND_TIMEOUT", 60.0)
    pipe = await cut_off(store, proxy)
    young = look(store)
    born = asyncio.get_running_loop().time() - 59.5
    answer = Prompt(loop=asyncio.get_running_loop())
    pipe.outbox.again([Command.of(READ, 0, b"", answer, born, must_run=True)])
    with pytest.raises(aiolock.StoreError):
        await asyncio.wait_for(answer, 10)
    assert not young.done()
    proxy.accept()
    await young


async def test_release_cancelled_without_a_connection_is_carried_out(
    store: RedisStore, proxy: Proxy
) -> None:
    """What is sure is carried out, also when its caller has gone before there was a connection."""
    await ask(store, 1)
    await cut_off(store, proxy)
    leave(store, 1).cancel()
    proxy.accept()
    other = waiter(2)
    answer = await store.submit(
        Acquire("name 1", other, FORM, 30000, ticket=0, wait=False, max_waiters=0)
    )
    assert isinstance(answer, Granted)
    await store.submit(Release("name 1", other, FORM, answer.fence))


# --- Nothing grows


async def fail(store: RedisStore, number: int) -> None:
    """Ask, give up soon, and say so, as whoever has a timeout does."""
    asked = ask(store, number)
    try:
        async with asyncio.timeout(0.02):
            await asked
    except (TimeoutError, aiolock.StoreError):
        leave(store, number).add_done_callback(lambda done: done.cancelled() or done.exception())


def commands() -> int:
    """How many commands there are in this process."""
    gc.collect()
    # Not isinstance: that asks an object of others' for its class, which may do anything.
    return sum(type(each) is Command for each in gc.get_objects())


async def test_acquires_that_fail_at_a_server_that_is_down_leave_nothing(
    store: RedisStore, proxy: Proxy, redis_server: RedisServer
) -> None:
    """Nothing is kept of them, and nothing is sent when the server is there again."""
    assert store.session.health._timer is not None
    store.session.health._timer.cancel()  # a heartbeat would be kept, and rightly
    pipe = await cut_off(store, proxy)
    objects = list[int]()
    for batch in range(20):
        await asyncio.gather(*(fail(store, 500 * batch + number) for number in range(500)))
        assert pipe.outbox.pending == []
        if batch in {9, 19}:
            await asyncio.sleep(0.05)
            assert commands() == 0
            objects.append(len(gc.get_objects()))
    assert not pipe.outbox.queue.first
    assert objects[1] - objects[0] < 500, "one for each would be 5,000 more"
    before = calls(redis_server)
    proxy.accept()
    await look(store)
    # The probe, the question, and the subscription's own count when it is there again.
    assert calls(redis_server) - before < 5


async def test_acquires_that_fail_at_a_refusing_server_are_seldom_sent(
    own_server: RedisServer, prefix: str
) -> None:
    """One command for each attempt to connect, with pauses between; and nothing is kept."""
    store = store_on(own_server.url, prefix)
    await store.open("me", drop_event)
    await ask(store, 0)
    assert store.session.health._timer is not None
    store.session.health._timer.cancel()  # a heartbeat would be kept, and rightly
    own_server.call("CONFIG", "SET", "min-replicas-to-write", "1")
    # All that is asked for before the first refusal is written at once.
    first = ask(store, 10_000)
    await until(lambda: store.session.pipe.outbox.wire is None)
    first.cancel()
    before, start = calls(own_server), time.monotonic()
    for batch in range(20):
        await asyncio.gather(*(fail(store, 500 * batch + number) for number in range(500)))
    sent = calls(own_server) - before
    assert sent < 20 + 20 * (time.monotonic() - start)
    # What was cancelled as its connection was lost leaves in the next turn.
    await until(lambda: not store.session.pipe.outbox.pending)
    assert len(store.session.pipe.outbox.queue.first) == 0
    before, start = calls(own_server), time.monotonic()
    await until(lambda: time.monotonic() > start + 2)
    assert calls(own_server) - before < 10
    own_server.call("CONFIG", "SET", "min-replicas-to-write", "0")
    await until(lambda: not store.session.pipe.outbox.pending)
    await leave(store, 0)
    await store.aclose()


@pytest.mark.parametrize("waiting", [1, 200])
async def test_pipe_to_a_refusing_server_sends_one_command_for_each_attempt(
    own_server: RedisServer, prefix: str, waiting: int
) -> None:
    """A server that refuses is not sent more the more there is to send; then all are served."""
    store = store_on(own_server.url, prefix)
    await store.open("me", drop_event)
    own_server.call("CONFIG", "SET", "min-replicas-to-write", "1")
    asked = [ask(store, 0)]
    await until(lambda: store.session.pipe.outbox.wire is None)
    asked += [ask(store, number) for number in range(1, waiting)]
    before, start = calls(own_server), time.monotonic()
    await until(lambda: time.monotonic() > start + 1.5)
    assert calls(own_server) - before < 20
    own_server.call("CONFIG", "SET", "min-replicas-to-write", "0")
    assert all(answer.fence for answer in await asyncio.gather(*asked))
    await asyncio.gather(*(leave(store, number) for number in range(waiting)))
    await store.aclose()


async def test_command_refused_for_too_long_raises_store_error_with_the_reason(
    own_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for a server that goes on refusing hears why, and that nothing was done."""
    store = store_on(own_server.url, prefix)
    await store.open("me", drop_event)
    # No other time limit may end it first, with another error.
    monkeypatch.setattr("aiolock.stores.redis._outbox.COMMAND_TIMEOUT", 1.5)
    monkeypatch.setattr("aiolock.stores.redis._deadlines.LOOK", 0.05)
    own_server.call("CONFIG", "SET", "min-replicas-to-write", "1")
    for number in range(2):
        with pytest.raises(aiolock.StoreError, match=r"too few replicas.*NOREPLICAS") as caught:
            await ask(store, number)
        assert caught.value.refused
    await store.aclose()


# --- A script that the server has forgotten


async def test_commands_behind_a_refused_report_are_sent_again_behind_it(
    store: RedisStore, redis_server: RedisServer
) -> None:
    """What was asked of its name since is written again with it, and of other names nothing."""
    for forgets in (False, True):  # the first time, the server is told the scripts
        granted, _ = await asyncio.gather(ask(store, 1), ask(store, 2))
        fence = granted.fence + 1
        if forgets:
            redis_server.call("SCRIPT", "FLUSH", "SYNC")
            redis_server.call("SCRIPT", "LOAD", RELEASE.source)  # as another client may
        passed = ReportHandoff(
            "name 1", FORM, waiter(1), granted.fence, waiter(3), fence, (waiter(3),)
        )
        commands = (
            store.submit(passed),
            store.submit(Release("name 1", waiter(3), FORM, fence)),
            leave(store, 2),
        )
        answers = [await command for command in commands]
        assert answers == [WAS_HOLDER] * 3
        assert not (await store.submit(ReadStatus("name 1"))).holders


async def test_renewals_that_are_sent_again_keep_their_order(
    store: RedisStore, proxy: Proxy
) -> None:
    """If one of many names is written again, later ones of any name come behind it."""
    grants = await asyncio.gather(ask(store, 1), ask(store, 2))
    await linked(proxy)
    command_link(proxy).deaf()
    renewals = [
        Renewal(f"name {number}", waiter(number), FORM, grant.fence, 5000)
        for number, grant in enumerate(grants, 1)
    ]
    answers = [store.submit(Renew(renewals)), store.submit(Renew(renewals[1:]))]
    looked = look(store)
    taken = store.session.pipe._reader._take_later(store.session.pipe.outbox.sent[-3])
    assert [each.script for each in taken] == [RENEW, RENEW]
    store.session.pipe.outbox.again(taken)
    command_link(proxy).hear()
    assert [await answer for answer in answers] == [[True, True], [True]]
    await looked
    await leave(store, 1)
    await leave(store, 2)


# --- The server's clock


async def test_command_refused_as_late_is_sent_again_by_the_new_clock(store: RedisStore) -> None:
    """A command that is refused as late, but is still waited for, is sent by the clock as it is."""
    pipe = store.session.pipe
    pipe.copies._ahead = 1, 0
    assert (await ask(store, 1)).fence
    assert pipe.copies._ahead[0] > 10**15
    await leave(store, 1)


async def test_clock_of_the_server_is_read_again_on_a_busy_link(
    store: RedisStore, redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's clock is read now and then, also where neither connection is ever silent."""
    monkeypatch.setattr("aiolock.stores.redis._health.CLOCK", 0.2)
    assert store.session.health._timer is not None
    store.session.health._timer.cancel()
    store.session.health.beat()
    read = store.session.pipe.copies.clock_read
    start = time.monotonic()
    while store.session.pipe.copies.clock_read == read:
        assert time.monotonic() < start + 5
        redis_server.call("PUBLISH", f"{prefix}:push:me", "d nothing")
        await look(store)


async def test_command_refused_as_late_every_time_raises_store_error(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even so there is an end: the caller is told, and that nothing was done."""
    monkeypatch.setattr("aiolock.stores._retry_window.LATE_AFTER", -(10**9))
    with pytest.raises(aiolock.StoreError, match="LATE") as caught:
        await ask(store, 1)
    assert caught.value.refused


async def test_command_cancelled_and_refused_as_late_is_not_sent_again(
    store: RedisStore, redis_server: RedisServer
) -> None:
    """A question that was refused as late is not asked again when nobody waits for the answer."""
    store.session.pipe.copies._ahead = 1, 0
    asked = ask(store, 1)
    asked.cancel()
    before = calls(redis_server)
    await look(store)
    assert calls(redis_server) - before == 2  # the cancelled one and the look
    assert not redis_server.call("EXISTS", store._names.keys("name 1")[0])


async def test_tombstone_until_is_set_only_while_old_copies_may_arrive(
    store: RedisStore, proxy: Proxy, redis_server: RedisServer
) -> None:
    """For as long as old copies may arrive, and no longer, a release says until when that is."""
    pipe = store.session.pipe
    assert pipe.copies.tombstone_until() == 0
    await ask(store, 1)
    assert pipe.copies.tombstone_until() == 0
    await cut_off(store, proxy)
    assert pipe.copies.tombstone_until() >= pipe.copies._last_stamp > 0
    proxy.accept()
    await leave(store, 1)
    seconds, micros = redis_server.call("TIME")
    now = int(seconds) * 10**6 + int(micros)
    assert now < pipe.copies._lost_stamp <= pipe.copies.tombstone_until() < now + LATE_AFTER + 10**6
    pipe.copies._ahead = now + 2 * LATE_AFTER, now + 2 * LATE_AFTER  # all that was written is over
    assert pipe.copies.tombstone_until() == 0


async def test_tombstone_of_a_release_sent_again_is_set_when_it_is_written(
    store: RedisStore, proxy: Proxy
) -> None:
    """A release that is sent again after a break says so, though it was asked for before."""
    proxy.recording = True
    link = command_link(proxy)
    link.deaf(drop=True)
    ask(store, 1).cancel()
    arguments = store._names.three("name 1") + bulk(text(1)) + bulk(0) + bulk(store._names.channels)
    left = store.session.pipe.call(RELEASE, 8, arguments + bulk(1), leaves_tombstone=True)
    await asyncio.sleep(0)
    link.cut()
    await left
    sent = b"".join(proxy.requests)
    (stamp,) = re.findall(rb"\r\n\$1\r\n1\r\n\$16\r\n(\d+)\r\n", sent)
    assert int(stamp) >= store.session.pipe.copies._lost_stamp > 0


async def test_script_of_many_acquires_at_once_is_sent_in_full_once(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first of many questions brings the script along: the others come behind it."""
    in_full = list[int]()
    call_in_full = ACQUIRE.call_in_full

    def counted(count: int) -> bytes:
        in_full.append(count)
        return call_in_full(count)

    monkeypatch.setattr(ACQUIRE, "call_in_full", counted)
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        locks = [client.lock(f"lock {number}") for number in range(100)]
        leases = await asyncio.gather(*(lock.acquire() for lock in locks))
        assert len(in_full) == 1
        await asyncio.gather(*(lease.release() for lease in leases))


async def test_link_that_was_heard_recently_is_not_given_up(
    redis_server: RedisServer, prefix: str
) -> None:
    """As long as replies come, however long ago what they answer was sent, it is not given up."""
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        store: Any = client._engine.store
        pipe = store.session.pipe
        wire = pipe.outbox.wire
        await client.lock("a").status()
        pending = store.submit(ReadPosted("lock:a"))
        pipe.outbox.sent[0].sent -= 100
        pipe._deadlines.check()
        assert pipe.outbox.wire is wire, "it has just been heard"
        pipe._deadlines._replied_at -= 100
        pipe._deadlines.check()
        assert pipe.outbox.wire is None
        await pending


# --- Newcomers that ask together


async def newcomers(client: aiolock.LockClient, count: int) -> list[asyncio.Task[aiolock.Lease]]:
    """Tasks that ask for one lock in one turn of the event loop."""
    lock = client.lock("lock")
    tasks = [asyncio.create_task(take(lock)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def one_after_the_other(tasks: list[asyncio.Task[aiolock.Lease]]) -> list[int]:
    """Release each of their leases once it is there; in which order they came."""
    order = list[int]()
    waiting = set(tasks)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            order.append(tasks.index(task))
            assert await task.result().release()
    return order


async def test_newcomers_of_one_turn_ask_in_two_calls_and_in_order(
    redis_server: RedisServer, prefix: str
) -> None:
    """The first by itself, the others in one call; and they come in the order of asking."""
    async with (
        aiolock.connect(redis_server.url, prefix=prefix) as other,
        aiolock.connect(redis_server.url, prefix=prefix) as client,
    ):
        for _ in range(2):  # the first time a call brings its script along
            lease = await take(other.lock("lock"))
            before = calls(redis_server)
            tasks = await newcomers(client, 20)
            status = await client._engine.store.submit(ReadStatus("lock:lock"))
            assert calls(redis_server) - before == 3
            seqs = [party.seq for party in status.waiters]
            assert len(seqs) == 20
            assert seqs == sorted(seqs)
            assert await lease.release()
            assert await one_after_the_other(tasks) == list(range(20))


async def test_newcomers_beyond_one_call_ask_in_several_calls_in_order(
    redis_server: RedisServer, prefix: str
) -> None:
    """They ask in as many calls as it takes, in order."""
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        await (await take(client.lock("lock"))).release()
        before = calls(redis_server)
        tasks = await newcomers(client, 100)
        status = await client._engine.store.submit(ReadStatus("lock:lock"))
        assert calls(redis_server) - before == 1 + 4 + 1
        seqs = [party.seq for party in (*status.holders, *status.waiters)]
        assert seqs == list(range(seqs[0], seqs[0] + 100))
        assert await one_after_the_other(tasks) == list(range(100))


async def test_newcomers_of_two_locks_in_one_turn_wait_for_their_own_lock(
    redis_server: RedisServer, prefix: str
) -> None:
    """Only questions that are alike but for the waiter are put together."""
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        locks = [client.lock("one"), client.lock("one", ttl=20), client.lock("two")]
        # Behind another one each asks by itself; else the first of each kind, and then its others.
        for order, questions in [((0, 1, 2) * 3, 9), ((0, 0, 0, 1, 1, 1, 2, 2, 2), 3 * 2)]:
            before = calls(redis_server)
            tasks = [asyncio.create_task(take(locks[number])) for number in order]
            await asyncio.sleep(0)
            for name, waiters in (("one", 5), ("two", 2)):
                status = await client._engine.store.submit(ReadStatus(f"lock:{name}"))
                assert len(status.waiters) == waiters
            assert calls(redis_server) - before == questions + 2
            await one_after_the_other(tasks)


async def test_newcomer_of_a_common_call_that_is_cancelled_leaves_nothing(
    redis_server: RedisServer, prefix: str
) -> None:
    """Before its question is written, and after: it is released behind that, and leaves nothing."""
    async with (
        aiolock.connect(redis_server.url, prefix=prefix) as other,
        aiolock.connect(redis_server.url, prefix=prefix) as client,
    ):
        lease = await take(other.lock("lock"))
        for turns in range(3):
            tasks = await newcomers(client, 6)
            for _ in range(turns):
                await asyncio.sleep(0)
            gone = tasks.pop(3)
            gone.cancel()
            await asyncio.wait([gone])
            status = await client.lock("lock").status()
            seqs = [party.seq for party in status.waiters]
            assert len(seqs) == 5
            assert seqs[3] == seqs[2] + 2
            assert await lease.release()
            assert await one_after_the_other(tasks) == list(range(5))
            lease = await take(other.lock("lock"))
        assert await lease.release()


async def test_release_in_the_turn_of_a_common_call_is_carried_out_behind_it(
    store: RedisStore,
) -> None:
    """The release is carried out behind the question, though that waits for others."""
    for number in range(4):
        _ = store.submit(
            Acquire("lock", waiter(number), FORM, 30000, ticket=0, wait=True, max_waiters=0)
        )
    was = store.submit(Release("lock", waiter(3), FORM, 0))
    status = await store.submit(ReadStatus("lock"))
    assert await was == WAS_QUEUED
    assert [party.seq for party in (*status.holders, *status.waiters)] == [0, 1, 2]


@pytest.mark.parametrize("carried_out", [True, False])
async def test_newcomers_whose_common_call_breaks_have_one_place_each(
    proxy: Proxy, prefix: str, carried_out: bool
) -> None:
    """Whether the call was carried out or not, each asks again by itself and has one place."""
    async with aiolock.connect(proxy.url, prefix=prefix) as client:
        lease = await take(client.lock("lock"))
        link = command_link(proxy)
        if carried_out:
            proxy.swallow_replies(1, link)
        else:
            link.deaf()
        tasks = await newcomers(client, 6)
        if not carried_out:
            await asyncio.sleep(0.05)
            link.cut()
        status = await client.lock("lock").status()
        seqs = [party.seq for party in status.waiters]
        assert len(seqs) == 6
        assert seqs == sorted(seqs)
        assert await lease.release()
        assert await one_after_the_other(tasks) == list(range(6))


async def test_newcomers_after_a_script_flush_ask_together_again(
    redis_server: RedisServer, prefix: str
) -> None:
    """Each asks by itself then, and the next that ask together bring the script along."""
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        await one_after_the_other(await newcomers(client, 8))
        for _ in range(3):
            redis_server.call("SCRIPT", "FLUSH")
            for together in (False, True):
                before = calls(redis_server)
                tasks = await newcomers(client, 8)
                # Not refused, the first is answered before those that are written again.
                for _ in range(2):
                    await client._engine.store.submit(ReadStatus("lock:lock"))
                asked = calls(redis_server) - before
                assert asked == 4 if together else asked > 10
                await one_after_the_other(tasks)


async def test_newcomers_of_a_common_call_refused_as_late_ask_once_more(
    redis_server: RedisServer, prefix: str
) -> None:
    """By a clock that jumped: each asks once more, by the clock as it is."""
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        store: Any = client._engine.store
        await one_after_the_other(await newcomers(client, 8))
        store.session.pipe.copies._ahead, store.session.pipe.copies.stamp_until = (1, 0), 0.0
        assert set(await one_after_the_other(await newcomers(client, 8))) == set(range(8))


async def test_newcomers_refused_by_a_full_server_raise_store_error_each(
    own_server: RedisServer, prefix: str
) -> None:
    """Each is told, and that nothing was done."""
    async with aiolock.connect(own_server.url, prefix=prefix) as client:
        await one_after_the_other(await newcomers(client, 8))
        own_server.call("CONFIG", "SET", "maxmemory", "1")
        for task in await newcomers(client, 8):
            with pytest.raises(aiolock.StoreError, match="maxmemory") as caught:
                await task
            assert caught.value.refused
        own_server.call("CONFIG", "SET", "maxmemory", "0")
        assert await one_after_the_other(await newcomers(client, 8)) == list(range(8))


async def test_newcomers_with_an_unreadable_answer_raise_store_error_each(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is told; and gives up, so that nothing is left of what was carried out."""

    def not_understood(*_: object) -> list[Any]:
        raise ValueError("something else")

    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        await one_after_the_other(await newcomers(client, 8))
        monkeypatch.setattr("aiolock.stores.redis._reader.several", not_understood)
        first, *others = await newcomers(client, 8)
        assert await (await first).release()
        for task in others:
            with pytest.raises(aiolock.StoreError, match="not an answer of aiolock's"):
                await task
        assert not (await client.lock("lock").status()).waiters


@pytest.mark.parametrize("reply", [b"no grant", b"1 2", b"1 2 0 3", b""])
async def test_question_with_an_unreadable_grant_raises_store_error(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch, reply: bytes
) -> None:
    """Whoever asked is told, and the next reply is that of the next command."""
    pipe = store.session.pipe
    wire = pipe.outbox.wire
    assert wire is not None
    monkeypatch.setattr(wire, "write_now", lambda data: None)
    asked = ask(store, 1)
    monkeypatch.undo()
    pipe._reader.on_reply(reply)
    with pytest.raises(aiolock.StoreError, match="not an answer of aiolock's"):
        await asked
    await ask(store, 2)
    await leave(store, 2)


async def test_answers_are_processed_in_the_order_of_arrival(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them waits for another turn of the loop while later ones are processed."""
    heard = list[int]()
    hear = Acquisition.resolve

    def noted(acquisition: Acquisition, answer: Answer) -> None:
        heard.append(acquisition.waiter.seq)
        hear(acquisition, answer)

    monkeypatch.setattr(Acquisition, "resolve", noted)
    async with (
        aiolock.connect(redis_server.url, prefix=prefix) as other,
        aiolock.connect(redis_server.url, prefix=prefix) as client,
    ):
        lease = await take(other.lock("lock"))
        heard.clear()
        for _ in range(60):  # seldom all three come at once where the machine is busy
            tasks = await newcomers(client, 2)
            _ = store_of(client).submit(ReadPosted("lock:another"))
            await until(lambda: len(heard) == 2)
            assert heard == sorted(heard)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            heard.clear()
        await lease.release()


async def test_question_kept_back_when_the_connection_is_lost_is_forgotten(
    store: RedisStore, proxy: Proxy
) -> None:
    """Where the connection is lost in that very turn it is forgotten, as any that waits for one."""
    proxy.refuse()
    asked = [
        store.submit(
            Acquire("lock", waiter(number), FORM, 30000, ticket=0, wait=True, max_waiters=0)
        )
        for number in range(3)
    ]
    assert store.session.pipe._link.wire is not None
    store.session.pipe._link.drop(ConnectionError("lost"))
    assert store.session.pipe.outbox.wire is None
    left = [store.submit(Release("lock", waiter(number), FORM, 0)) for number in (1, 2)]
    assert [future.done() and future.result() for future in left] == [WAS_ABSENT] * 2
    assert [future.cancelled() for future in asked] == [False, True, True]
    asked[0].cancel()


def store_of(client: aiolock.LockClient) -> RedisStore:
    """The client's link to the server."""
    store: Any = client._engine.store
    return store  # type: ignore[no-any-return]


@pytest.mark.parametrize("patient", [True, False])
async def test_newcomers_at_a_server_without_enough_replicas_wait_or_raise(
    own_server: RedisServer, prefix: str, patient: bool
) -> None:
    """They wait for one that can; or are told, and that nothing was done."""
    async with aiolock.connect(own_server.url, prefix=prefix) as client:
        await one_after_the_other(await newcomers(client, 8))
        store_of(client).session.pipe._reader.patient = patient
        own_server.call("CONFIG", "SET", "min-replicas-to-write", "1")
        tasks = await newcomers(client, 8)
        await asyncio.sleep(0.3)
        own_server.call("CONFIG", "SET", "min-replicas-to-write", "0")
        if patient:
            assert await one_after_the_other(tasks) == list(range(8))
        else:
            for task in tasks:
                with pytest.raises(aiolock.StoreError, match="NOREPLICAS") as caught:
                    await task
                assert caught.value.refused
