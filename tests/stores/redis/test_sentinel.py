"""Sentinels that say there is another master: who listens, and what becomes of the links."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from redis.asyncio.connection import ConnectionPool

import aiolock
from aiolock.stores.redis import _sentinel_watcher
from aiolock.stores.redis._link import Link
from aiolock.stores.redis._sentinel_watcher import SentinelWatcher
from aiolock.stores.redis._urls import pool_at
from tests.support.failures import Peek, check_nothing_left, until
from tests.support.sentinels import SERVICE, ScriptedSentinel
from tests.support.servers import RedisServer


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[RedisServer, RedisServer]]:
    """The master, and what will be the next."""
    with RedisServer() as one, RedisServer() as other:
        yield one, other


@pytest.fixture
async def sentinels(
    servers: tuple[RedisServer, RedisServer],
) -> AsyncIterator[list[ScriptedSentinel]]:
    """Three, to which the first of the servers is the master."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(ScriptedSentinel(servers[0])) for _ in range(3)]


def url_of(sentinels: list[ScriptedSentinel]) -> str:
    """The service that these Sentinels watch."""
    return f"redis+sentinel://{','.join(f'127.0.0.1:{s.port}' for s in sentinels)}/{SERVICE}"


@pytest.fixture
async def client(
    sentinels: list[ScriptedSentinel],
    servers: tuple[RedisServer, RedisServer],
    prefix: str,
) -> AsyncIterator[aiolock.LockClient]:
    """A client that has subscribed to all of them, and has asked where the master is since."""
    async with aiolock.connect(url_of(sentinels), prefix=prefix) as client:
        await subscribed(sentinels)
        yield client
    for server in servers:
        check_nothing_left(server, prefix)


async def subscribed(sentinels: list[ScriptedSentinel]) -> None:
    """Return when each has a subscriber whose first question is answered.

    In many short pauses: after a long one, on a busy machine, this may go on before anybody else.
    """
    await until(lambda: all(sentinel.subscribers for sentinel in sentinels))
    asked = -1
    async with asyncio.timeout(30):
        while asked != sentinels[0].asked:
            asked = sentinels[0].asked
            for _ in range(20):
                await asyncio.sleep(0.01)


def connections(server: RedisServer) -> set[str]:
    """The numbers of the connections by which commands or a subscription have come."""
    lines = str(server.call("CLIENT", "LIST")).splitlines()
    ours = (line for line in lines if "cmd=eval" in line or "cmd=subscribe" in line)
    return {line.split()[0] for line in ours}


async def is_master(server: RedisServer, client: aiolock.LockClient, prefix: str) -> None:
    """Return when a lock of this client's is on that server."""
    async with asyncio.timeout(10):
        while True:
            async with client.lock("lock"):
                if Peek(server, prefix).holders():
                    return
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("says", ["+switch-master", "+failover-state-reconf-slaves"])
async def test_switch_reported_by_any_sentinel_moves_both_links(
    sentinels: list[ScriptedSentinel],
    servers: tuple[RedisServer, RedisServer],
    client: aiolock.LockClient,
    prefix: str,
    *,
    which: int,
    says: str,
) -> None:
    """The one that carries a fail-over out knows first, and both links leave an old master."""
    await is_master(servers[0], client, prefix)
    sentinels[which].master, sentinels[which].epoch = servers[1], 2
    sentinels[which].say(says)
    await until(lambda: len(connections(servers[1])) == 2 and not connections(servers[0]))
    await is_master(servers[1], client, prefix)


async def test_switch_reports_in_a_burst_cause_few_questions(
    sentinels: list[ScriptedSentinel], client: aiolock.LockClient
) -> None:
    """Each Sentinel says several things of one fail-over."""
    before = sentinels[0].asked
    for _ in range(100):
        for sentinel in sentinels:
            sentinel.say("+switch-master")
    await subscribed(sentinels)
    assert 1 <= sentinels[0].asked - before < 20


async def test_link_to_the_same_master_stays_after_a_switch_report(
    sentinels: list[ScriptedSentinel],
    servers: tuple[RedisServer, RedisServer],
    client: aiolock.LockClient,
) -> None:
    """What is said of it without a change breaks nothing."""
    before = connections(servers[0])
    sentinels[0].say("+switch-master")
    await subscribed(sentinels)
    assert connections(servers[0]) == before
    assert len(before) == 2


async def test_watcher_that_subscribes_anew_asks_for_the_master(
    sentinels: list[ScriptedSentinel],
    servers: tuple[RedisServer, RedisServer],
    client: aiolock.LockClient,
    prefix: str,
) -> None:
    """Who has subscribed anew asks where the master is."""
    for sentinel in sentinels:
        sentinel.master, sentinel.epoch = servers[1], 2
        sentinel.hang_up()
    await until(lambda: len(connections(servers[1])) == 2)
    await is_master(servers[1], client, prefix)


async def test_sentinel_with_an_earlier_epoch_is_not_believed(
    sentinels: list[ScriptedSentinel],
    servers: tuple[RedisServer, RedisServer],
    client: aiolock.LockClient,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The old master may live on, and takes writes that will be forgotten."""
    sentinels[1].master, sentinels[1].epoch = servers[1], 2
    sentinels[1].say("+switch-master")
    await until(lambda: len(connections(servers[1])) == 2)
    sentinels[1].not_voting = True
    asked = sentinels[0].asked
    sentinels[0].say("+switch-master")
    await until(lambda: sentinels[0].asked >= asked + 2)  # once more: it was not believed
    assert len(connections(servers[1])) == 2
    monkeypatch.setattr("aiolock.stores.redis._sentinel._known", {})  # ten seconds later
    await until(lambda: len(connections(servers[0])) == 2)
    sentinels[1].not_voting = False
    sentinels[1].master = servers[0]


async def test_switch_whose_answer_is_lost_is_asked_for_again(
    sentinels: list[ScriptedSentinel],
    servers: tuple[RedisServer, RedisServer],
    client: aiolock.LockClient,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them were too busy to answer: they are asked again, for nobody says it twice."""
    monkeypatch.setattr("aiolock.stores.redis._sentinel._ANSWER", 0.1)
    for sentinel in sentinels:
        sentinel.master, sentinel.epoch, sentinel.not_voting = servers[1], 2, True
    sentinels[0].say("+switch-master")
    await asyncio.sleep(0.3)
    assert connections(servers[0])
    for sentinel in sentinels:
        sentinel.not_voting = False
    await until(lambda: len(connections(servers[1])) == 2)
    assert [sentinel.subscriptions for sentinel in sentinels] == [1, 1, 1]


async def test_watcher_whose_callback_fails_logs_and_asks_again(
    sentinels: list[ScriptedSentinel],
    servers: tuple[RedisServer, RedisServer],
    prefix: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is told, and the Sentinels are asked again."""
    told = list[object]()

    def moved(address: object) -> None:
        told.append(address)
        if len(told) == 1:
            raise LookupError("not expected")

    switches = SentinelWatcher(pool_at(url_of(sentinels)), moved)
    await until(lambda: len(told) > 1)
    await switches.aclose()
    assert told[0] == told[1] == ("127.0.0.1", servers[0].port)
    assert "could not follow Sentinel" in caplog.text


async def test_watcher_aclose_ends_although_a_cancellation_is_swallowed(
    sentinels: list[ScriptedSentinel], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a driver, as it happens: whoever had begun to subscribe ends all the same."""
    begin, begun = _sentinel_watcher._Subscribed.begin, list[object]()

    async def begins(self: _sentinel_watcher._Subscribed, sentinel: ConnectionPool) -> None:
        begun.append(self)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        await begin(self, sentinel)

    monkeypatch.setattr(_sentinel_watcher._Subscribed, "begin", begins)
    switches = SentinelWatcher(pool_at(url_of(sentinels)), lambda _: None)
    await until(lambda: len(begun) == 3)
    await asyncio.wait_for(switches.aclose(), 5)
    await until(lambda: not any(sentinel.connections for sentinel in sentinels))


async def test_link_follow_twice_in_a_row_ends_only_the_first_attempt(
    sentinels: list[ScriptedSentinel], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attempt to reach the first new master that takes its time to end disturbs no other."""
    made, ended = list[Any](), list[object]()

    async def dials(_pool: object, _received: object, _broken: object, address: object) -> Any:
        if address == ("old", 1):
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.05)
                ended.append(address)
        made.append(SimpleNamespace(reset=lambda: made.remove(made[-1]), close=lambda: None))
        made[-1].wait_closed = partial(asyncio.sleep, 0)
        return made[-1]

    monkeypatch.setattr("aiolock.stores.redis._link.dial", dials)
    pool = pool_at(url_of(sentinels))
    link = Link(pool, on_reply=ended.append, on_up=lambda: None, on_down=ended.append)
    link.follow(("old", 1))
    await asyncio.sleep(0.02)
    link.follow(("new", 2))
    await until(lambda: ended)
    assert link.wire is made[0]
    link.follow(("new", 2))
    assert link.wire is made[0]
    assert ended == [("old", 1)]
    await link.aclose()


async def test_sentinel_that_is_silent_is_left_and_subscribed_again(
    sentinels: list[ScriptedSentinel],
    servers: tuple[RedisServer, RedisServer],
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection may be dead, and what it says would not arrive."""
    monkeypatch.setattr("aiolock.stores.redis._sentinel_watcher._SILENCE", 0.2)
    monkeypatch.setattr("aiolock.stores.redis._sentinel_watcher._ANSWER", 0.5)
    monkeypatch.setattr("aiolock.stores.redis._sentinel_watcher._PAUSE", 0.0)
    async with aiolock.connect(url_of(sentinels), prefix=prefix):
        await subscribed(sentinels)
        sentinels[1].not_voting = True
        await until(lambda: not sentinels[1].subscribers)
        sentinels[1].not_voting = False
        await until(lambda: sentinels[1].subscribers)


async def test_sentinel_that_answers_is_kept(
    sentinels: list[ScriptedSentinel], prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing for months, where there is nothing to say."""
    monkeypatch.setattr("aiolock.stores.redis._sentinel_watcher._SILENCE", 0.5)
    async with aiolock.connect(url_of(sentinels), prefix=prefix):
        await until(lambda: sentinels[0].pinged >= 2, after=2)
        assert sentinels[0].subscriptions == 1


async def test_sentinel_that_refuses_subscribers_is_logged_once(
    sentinels: list[ScriptedSentinel],
    servers: tuple[RedisServer, RedisServer],
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is warned of, once; the others are listened to, and the lock works."""
    monkeypatch.setattr("aiolock.stores.redis._sentinel_watcher._PAUSE", 0.0)
    for sentinel in sentinels[:2]:
        sentinel.refuses = True
    with caplog.at_level(logging.WARNING, "aiolock"):
        async with aiolock.connect(url_of(sentinels), prefix=prefix) as client:
            await subscribed(sentinels[2:])
            sentinels[2].master, sentinels[2].epoch = servers[1], 2
            sentinels[2].say("+switch-master")
            await is_master(servers[1], client, prefix)
    said = [record.getMessage() for record in caplog.records if "Sentinel" in record.getMessage()]
    assert len([text for text in said if "does not let us subscribe" in text]) == 1
    assert "NOPERM" in said[0]


async def test_link_in_a_long_pause_dials_at_once_after_a_switch_report(
    sentinels: list[ScriptedSentinel],
    servers: tuple[RedisServer, RedisServer],
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever could not connect for long is in a long pause when a Sentinel says where to."""
    monkeypatch.setattr("aiolock.stores.redis._link._FIRST_PAUSE", 60.0)
    monkeypatch.setattr("aiolock.stores.redis._link._LONGEST_PAUSE", 60.0)
    with RedisServer() as mortal:
        for sentinel in sentinels:
            sentinel.master = mortal
        async with aiolock.connect(url_of(sentinels), prefix=prefix) as client:
            await subscribed(sentinels)
            asked = sentinels[0].asked
            mortal.kill()
            await until(lambda: sentinels[0].asked >= asked + 2)  # each link has tried in vain
            await asyncio.sleep(0.1)
            sentinels[0].master, sentinels[0].epoch = servers[1], 2
            sentinels[0].say("+switch-master")
            await is_master(servers[1], client, prefix)


async def test_aclose_leaves_no_connection_to_a_sentinel_and_no_task(
    sentinels: list[ScriptedSentinel], prefix: str
) -> None:
    """Nor any task: whether it has subscribed, or is about to."""
    sentinels[1].not_voting = True
    async with aiolock.connect(url_of(sentinels), prefix=prefix):
        await until(lambda: sentinels[0].subscribers and sentinels[2].subscribers)
    await until(lambda: not any(sentinel.connections for sentinel in sentinels))
    assert not [task for task in asyncio.all_tasks() if "Sentinel" in task.get_name()]


async def test_links_follow_each_switch_after_one_question(
    sentinels: list[ScriptedSentinel],
    servers: tuple[RedisServer, RedisServer],
    client: aiolock.LockClient,
    prefix: str,
) -> None:
    """Nobody asks once more what has just been said."""
    asked = sentinels[0].asked
    for epoch in range(2, 12):
        new = servers[(epoch + 1) % 2]
        sentinels[1].master, sentinels[1].epoch = new, epoch
        sentinels[1].say("+switch-master")
        await until(lambda new=new: len(connections(new)) == 2)  # type: ignore[misc]  # no type
    await is_master(servers[0], client, prefix)
    assert sentinels[0].asked - asked == 10
