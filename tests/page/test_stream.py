"""The page's stream: what those who watch are sent, and what that costs the store."""

from __future__ import annotations

import asyncio
import logging
import math
from dataclasses import replace

import pytest

import aiolock
from aiolock.observer import Blocked
from aiolock.page import Page, _poller, web
from aiolock.page._history import History
from aiolock.page._limits import Limits
from aiolock.page._look import Totals, seen
from aiolock.page._poller import Poller
from aiolock.stores.memory import MemoryServer
from aiolock.testing import FaultyStore
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.viewers import Viewer, Visitor, scope_of
from tests.support.worlds import asking, queued

SOON = Limits(every=0.02, deadlocks_every=0.02, share=1)
"""A page on which nobody has to wait."""


@pytest.fixture
async def page(client: aiolock.LockClient) -> Page:
    """A page that looks often."""
    return Page(client, limits=SOON)


def lookers() -> list[str]:
    """The page's tasks that look at the store."""
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "aiolock page"]


async def test_stream_sends_rows_of_held_and_waited_locks_as_they_change(
    client: aiolock.LockClient, page: Page
) -> None:
    """What is held and waited for, as it changes."""
    async with Viewer(page) as viewer:
        assert viewer.status == 200
        assert viewer.headers["content-type"] == "text/event-stream"
        assert viewer.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in viewer.headers["content-security-policy"]
        assert (await viewer.until(locks=0))["rows"] == []
        async with client.lock("order:1").acquire(label="job 17"):
            waits = asking(client.lock("order:1"))
            await queued(client.lock("order:1"), 1)
            view = await viewer.until(held=1, waiting=1)
            (row,) = view["rows"]
            assert (row["kind"], row["name"], row["waiting"], row["dead"]) == (
                *("lock", "order:1"),
                *(1, 0),
            )
            assert row["holder"]["pid"] > 0
            assert 29 < row["lease"] <= 30
        lease = await waits
        await viewer.until(held=1, waiting=0)
        await lease.release()
        await viewer.until(held=0)
        assert view["error"] == ""
        times = await viewer.event("times")
        assert times["age"] < 5


async def test_stream_sends_the_rows_of_its_search_sort_and_limit() -> None:
    """Those that are searched for, first those that are asked for, and no more than so many."""
    age = 0.0  # the server's clock stands still while it is looked at
    async with aiolock.connect(MemoryServer(lambda: 1e9 + age)) as client:
        leases = list[aiolock.Lease]()
        for n in range(5):
            leases.append(await client.lock(f"Order:{n}").acquire())
            age += 0.001
        await _which_rows(client, leases)


async def _which_rows(client: aiolock.LockClient, leases: list[aiolock.Lease]) -> None:
    page = Page(client, limits=replace(SOON, rows=3))
    leases.append(await client.semaphore("order:9", 2).acquire())
    waits = asking(client.lock("Order:3"))
    await queued(client.lock("Order:3"), 1)

    async def rows(query: str) -> tuple[int, list[str]]:
        async with Viewer(page, query) as viewer:
            view = await viewer.event()
            return view["matching"], [row["name"] for row in view["rows"]]

    assert await rows("") == (6, ["Order:3", "Order:0", "Order:1"])
    assert await rows("page=2") == (6, ["Order:2", "Order:4", "order:9"])
    assert await rows("page=3") == await rows("page=2")  # the last one that there is
    assert await rows("sort=name") == (6, ["Order:0", "Order:1", "Order:2"])
    assert (await rows("sort=queue"))[1][0] == "Order:3"
    assert (await rows("sort=held"))[1][0] == "Order:0"
    assert await rows("q=order%3A9") == (1, ["order:9"])
    assert (await rows("q=RDER"))[0] == 6
    assert await rows("q=*%3A%5B34%5D") == (2, ["Order:3", "Order:4"])
    assert await rows("kind=semaphore&q=ord") == (1, ["order:9"])
    assert (await rows("q=%5B"))[0] == 0
    for wrong in ("q=" + "a" * 101, "kind=locks", "sort=random", "page=0", "page=1.5"):
        async with Visitor(page) as visitor:
            assert (await visitor.get(f"/events?{wrong}")).status_code == 400
    waits.cancel()
    await asyncio.wait([waits])
    for lease in leases:
        await lease.release()


async def test_stream_marks_a_dead_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is dead, and what grows."""
    monkeypatch.setattr(History, "growth", lambda _, key, *__: 7 * (key == ("lock", "b")))
    server = MemoryServer()
    async with aiolock.connect(server) as client, aiolock.connect(server) as dead:
        page = Page(client, limits=SOON)
        lease = await dead.lock("a").acquire()
        server.leave(dead.id)
        async with client.lock("b"), Viewer(page, "sort=name") as viewer:
            view = await viewer.until(dead=1, held=2)
            marks = [(row["name"], row["holder"]["alive"], row["growth"]) for row in view["rows"]]
            assert marks == [("a", False, 0), ("b", True, 7)]
        await lease.release()


async def test_stream_shows_a_deadlock_while_it_lasts() -> None:
    """It is shown while it lasts, and which locks are in it."""
    both = [asyncio.Event(), asyncio.Event()]

    async def cross(client: aiolock.LockClient, mine: int) -> None:
        async with client.lock("ab"[mine]):
            both[mine].set()
            await both[not mine].wait()
            async with client.lock("ba"[mine]):
                pass

    server = MemoryServer()
    async with (
        aiolock.connect(server) as ours,
        aiolock.connect(server) as theirs,
        Viewer(Page(ours, limits=SOON)) as viewer,
    ):
        tasks = [
            asyncio.create_task(cross(client, mine), name=f"task {mine}")
            for mine, client in enumerate((ours, theirs))
        ]
        view = await viewer.event()
        async with asyncio.timeout(30):
            while not view["deadlocks"]:
                view = await viewer.event()
        (deadlock,) = view["deadlocks"]
        assert sorted(deadlock["cycle"]) == [["lock", "a"], ["lock", "b"]]
        assert "2 tasks wait for each other" in deadlock["text"]
        assert "'task 0'" in deadlock["text"]
        assert [row["blocked"] for row in view["rows"]] == [True, True]
        tasks[0].cancel()
        async with asyncio.timeout(30):
            while view["deadlocks"]:
                view = await viewer.event()
        await asyncio.wait(tasks)


async def test_stream_while_the_store_fails_sends_the_error_and_the_age(
    client: aiolock.LockClient, store: FaultyStore, page: Page
) -> None:
    """The page says so, and how old is what it shows; then it goes on."""
    async with client.lock("a"), Viewer(page) as viewer:
        await viewer.until(held=1)
        store.refuse("snapshot", math.inf)
        view = await viewer.event()
        async with asyncio.timeout(30):
            while not view["error"]:
                view = await viewer.event()
        assert "refused" in view["error"]
        assert [row["name"] for row in view["rows"]] == ["a"]
        first = (await viewer.event("times"))["age"]
        await asyncio.sleep(0.1)
        async with Viewer(page) as late:
            assert (await late.event())["error"]
            assert (await late.event("times"))["age"] > first
        store.resume()
        await viewer.until(error="")


async def test_stream_while_the_store_hangs_sends_heartbeats(
    client: aiolock.LockClient, store: FaultyStore
) -> None:
    """The stream begins all the same, and says that it is alive; whoever leaves, leaves."""
    page = Page(client, limits=replace(SOON, first=0.02, heartbeat=0.02))
    store.hold("snapshot")
    async with Viewer(page) as viewer:
        assert viewer.status == 200
        assert (await viewer.block()).startswith("retry: ")
        assert [await viewer.block() for _ in range(3)] == [": still here"] * 3
        store.resume()
        await viewer.until(error="")
    assert not lookers()


async def test_stream_after_an_unexpected_error_says_so_and_logs_it(
    client: aiolock.LockClient,
    page: Page,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What nobody has thought of is in the log, and nobody waits for ever."""

    async def snapshot(_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "aiolock"):
        patch.setattr(aiolock.LockClient, "snapshot", snapshot)
        async with Viewer(page) as viewer:
            assert "log" in (await viewer.event())["error"]
    assert "ZeroDivisionError" in caplog.text
    async with Viewer(page) as viewer:
        await viewer.until(error="")


async def test_stream_ends_when_the_client_closes_and_restarts_after_opening(
    page: Page, client: aiolock.LockClient
) -> None:
    """The streams end; and go on once it is open again."""
    async with Viewer(page) as viewer:
        await viewer.until(held=0)
        await client.aclose()
        await viewer.end()
        async with Visitor(page) as visitor:
            assert (await visitor.get("/events")).status_code == 503
        await client.open()
        async with Viewer(page) as again:
            await again.until(held=0)


async def test_stream_without_viewers_does_not_ask_the_store(
    store: FaultyStore, page: Page
) -> None:
    """Then nobody looks; and all who watch look once."""
    assert not lookers()
    async with Viewer(page) as one, Viewer(page) as two, Viewer(page) as three:
        assert lookers() == ["aiolock page"]
        for viewer in (one, two, three) * 3:
            await viewer.event()
    assert not lookers()
    calls = store.calls["snapshot"]
    await asyncio.sleep(0.1)
    assert store.calls["snapshot"] == calls


async def test_stream_of_a_returning_viewer_does_not_ask_the_store_again(
    store: FaultyStore, client: aiolock.LockClient
) -> None:
    """Who comes again at once is shown what is known, and the store is not asked more often."""
    page = web(client)
    for _ in range(20):
        async with Viewer(page) as viewer:
            if not store.calls["snapshot"]:
                await viewer.event()
    assert store.calls["snapshot"] == 1
    assert not lookers()


async def test_stream_of_a_store_with_latency_is_as_quick_as_its_answers(
    redis_server: RedisServer, prefix: str
) -> None:
    """Latency is no load: the next look comes after as long as this one took, not ten times that.

    The search for deadlocks, which takes longer still, delays no look.
    """
    limits = replace(SOON, share=Limits().share)
    async with (
        Proxy(redis_server.port) as proxy,
        aiolock.connect(proxy.url, prefix=prefix) as client,
        client.lock("a"),
    ):
        waits = [asking(client.lock("a")), asking(client.lock("a"))]
        await queued(client.lock("a"), 2)
        proxy.delay(to_server=0.05, to_client=0.05)
        async with Viewer(Page(client, limits=limits)) as viewer:
            for _ in range(3):
                took = (await viewer.event())["took"]
                assert took >= 0.09
                assert (await viewer.event("times"))["every"] <= 3 * took
        proxy.delay()
        for each in waits:
            each.cancel()
        await asyncio.wait(waits)


async def test_stream_while_a_look_takes_long_shows_the_rows_as_they_are_now(
    client: aiolock.LockClient, store: FaultyStore
) -> None:
    """Those at the top of the list; a lock that is free keeps its row, for the list is old."""
    page = Page(client, limits=replace(SOON, glanced=2))
    leases = [await client.lock(name).acquire() for name in "abc"]
    async with Viewer(page, "sort=name") as viewer:
        await viewer.until(names=["a", "b", "c"])
        store.hold("snapshot")
        await leases[0].release()
        await leases[2].release()
        waits = asking(client.lock("b"))
        async with client.lock("d"):
            async with asyncio.timeout(30):
                while not (rows := (await viewer.event())["rows"])[1]["waiting"]:
                    pass
            assert [(row["name"], row["holders"]) for row in rows] == [("a", 0), ("b", 1), ("c", 1)]
            store.resume()
            await viewer.until(names=["b", "d"])
    waits.cancel()
    await asyncio.wait([waits])
    await leases[1].release()


async def test_stream_of_a_store_that_hangs_in_the_search_for_deadlocks_goes_on(
    client: aiolock.LockClient, store: FaultyStore, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks go on beside it, and its end by an error is none of the page."""
    hangs = asyncio.Event()

    async def deadlocks(_: object) -> list[aiolock.Deadlock]:
        hangs.set()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(aiolock.LockClient, "deadlocks", deadlocks)
    async with client.lock("a"):
        waits = [asking(client.lock("a")), asking(client.lock("a"))]
        await queued(client.lock("a"), 2)
        async with Viewer(page) as viewer:
            await asyncio.wait_for(hangs.wait(), 10)
            async with client.lock("b"):
                await viewer.until(held=2)
        for each in waits:
            each.cancel()
        await asyncio.wait(waits)
    assert not lookers()


async def test_deadlock_that_is_found_during_a_look_stays_shown(
    client: aiolock.LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look takes several turns where many wait."""
    poller = Poller(client, replace(SOON, deadlocks_every=60.0))
    party = aiolock.Participant("c", "web", 1, 0.0, 1)
    found = aiolock.Deadlock((Blocked("lock", "a", party, party),))
    checking = asyncio.Event()

    async def deadlocks(_: object) -> list[aiolock.Deadlock]:
        await checking.wait()
        return [found]

    async def slow(*_: object) -> tuple[()]:
        if poller._search is not None:
            checking.set()
            await poller._search
        return ()

    monkeypatch.setattr(aiolock.LockClient, "deadlocks", deadlocks)
    monkeypatch.setattr(_poller, "still", slow)
    async with client.lock("a"):
        waits = [asking(client.lock("a")), asking(client.lock("a"))]
        await queued(client.lock("a"), 2)
        for _ in range(2):
            await poller._look()
        assert poller.look.deadlocks == (found,)
        for each in waits:
            each.cancel()
        await asyncio.wait(waits)


async def test_search_for_deadlocks_cancelled_before_its_first_step_is_followed_by_others(
    client: aiolock.LockClient, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the last viewer leaves at that moment: for the next one it is searched again."""
    searched = asyncio.Event()

    async def deadlocks(_: object) -> list[aiolock.Deadlock]:
        searched.set()
        return []

    class Interrupted(Poller):
        was = False

        async def _look(self) -> None:
            await super()._look()
            if self._search is not None and not self.was:
                self.was = self._search.cancel()

    monkeypatch.setattr(aiolock.LockClient, "deadlocks", deadlocks)
    page._poller = Interrupted(client, SOON)
    async with client.lock("a"):
        waits = [asking(client.lock("a")), asking(client.lock("a"))]
        await queued(client.lock("a"), 2)
        async with Viewer(page):
            await asyncio.wait_for(searched.wait(), 10)
        for each in waits:
            each.cancel()
        await asyncio.wait(waits)


async def test_stream_beyond_its_limit_of_viewers_answers_503(client: aiolock.LockClient) -> None:
    """They are told so; and there is room again when one leaves."""
    page = Page(client, limits=replace(SOON, viewers=2))
    async with Viewer(page):
        async with Viewer(page), Visitor(page) as visitor:
            answer = await visitor.get("/events")
            assert (answer.status_code, answer.json()["error"][:14]) == (503, "2 are watching")
        async with Viewer(page) as third:
            assert third.status == 200


async def test_stream_to_a_slow_viewer_sends_the_latest_and_delays_no_other(
    client: aiolock.LockClient, page: Page
) -> None:
    """It gets the latest when it takes it; others do not wait for it."""
    async with Viewer(page) as slow, Viewer(page) as quick:
        await slow.until(held=0)
        slow.takes.clear()
        await quick.until(held=0)
        for name in "abcdefgh":
            async with client.lock(name):
                await quick.until(names=[name])
        async with client.lock("last"):
            await quick.until(names=["last"])
            await quick.event()
            slow.takes.set()
            names = list[str]()
            async with asyncio.timeout(30):
                while "last" not in names:
                    names += [row["name"] for row in (await slow.event())["rows"]]
            assert len(names) <= 2
            times = await slow.event("times")
            assert len(times["points"]) >= 8


async def test_stream_to_a_viewer_that_reads_nothing_ends(client: aiolock.LockClient) -> None:
    """After a while its place is somebody else's."""
    page = Page(client, limits=replace(SOON, patience=0.05))
    async with Viewer(page) as viewer:
        await viewer.event()
        viewer.takes.clear()
        async with asyncio.timeout(10):
            while lookers():  # noqa: ASYNC110  # tells nobody
                await asyncio.sleep(0.01)


async def test_stream_whose_send_fails_ends(client: aiolock.LockClient, page: Page) -> None:
    """A server that says so by an error has said that it is gone."""

    async def send(message: object) -> None:
        raise OSError("gone")

    async def receive() -> dict[str, str]:
        await asyncio.Event().wait()
        raise AssertionError

    await asyncio.wait_for(page(scope_of("/events"), receive, send), 10)
    assert not lookers()


async def test_stream_ends_after_its_time_and_resumes_with_the_history(
    client: aiolock.LockClient,
) -> None:
    """After a while, and the browser comes again: so whoever may not see it any more, does not."""
    page = Page(client, limits=replace(SOON, stream=1.0))
    async with Viewer(page) as viewer:
        assert await viewer.block() == "retry: 500"
        await viewer.end()
    async with Viewer(page) as viewer:
        times = await viewer.event("times")
        assert times["all"]
        assert len(times["points"]) > 2


async def test_stream_waits_for_a_snapshot_that_outlasts_its_time(
    client: aiolock.LockClient, store: FaultyStore
) -> None:
    """It is waited for, or nobody would ever see it."""
    page = Page(client, limits=replace(SOON, stream=0.05, first=0.01, heartbeat=0.01))
    store.hold("snapshot")
    async with client.lock("a"), Viewer(page) as viewer:
        await asyncio.sleep(0.2)
        store.resume()
        await viewer.until(held=1)
        await viewer.end()


async def test_end_of_the_page_ends_all_streams_and_refuses_new_ones(
    client: aiolock.LockClient,
) -> None:
    """A server that stops ends all of them at once, and there are no more."""
    page = web(client)
    async with Viewer(page) as one, Viewer(page) as two:
        await one.event()
        page.end()
        await one.end()
        await two.end()
        async with Visitor(page) as visitor:
            assert (await visitor.get("/events")).status_code == 503


def test_page_works_again_in_another_event_loop() -> None:
    """An application that starts again, as in tests, has its page again."""
    client = aiolock.connect(MemoryServer())
    page = Page(client, limits=SOON)

    async def start() -> None:
        async with client, client.lock("a"), Viewer(page) as viewer:
            await viewer.until(held=1)
            assert len((await viewer.event("times"))["points"]) < 5

    asyncio.run(start())
    asyncio.run(start())


async def test_stream_of_a_thousand_locks_has_each_of_them_on_one_page() -> None:
    """More than are sorted at a time, by all of the pages together, in order."""
    async with aiolock.connect(MemoryServer()) as client:
        leases = [await client.lock(f"order:{n}").acquire() for n in range(1000)]
        page = Page(client, limits=replace(SOON, every=60.0, share=0.0, rows=250))
        names = list[str]()
        for number in range(1, 5):
            async with Viewer(page, f"sort=name&page={number}") as viewer:
                view = await viewer.event()
                assert (view["page"], view["before"]) == (number, len(names))
                names += [row["name"] for row in view["rows"]]
        assert names == sorted(f"order:{n}" for n in range(1000))
        await asyncio.gather(*(lease.release() for lease in leases))


async def test_stream_of_ten_thousand_locks_sends_a_small_message() -> None:
    """Ten thousand: one message is small, and nobody waits long for it to be made."""
    server = MemoryServer()
    async with aiolock.connect(server) as client:
        leases = [await client.lock(f"order:{n}").acquire() for n in range(10_000)]
        async with Viewer(web(client)) as viewer:
            block = ""
            async with asyncio.timeout(30):
                while not block.startswith("event: view"):
                    block = await viewer.block()
            assert len(block) < 100_000
            assert '"locks":10000' in block
        await asyncio.gather(*(lease.release() for lease in leases))


async def test_history_is_bounded_and_growth_counts_only_growing_queues() -> None:
    """It is bounded, in time and in number; a queue grows where it does not shrink between."""
    limits = Limits(tracked=2)
    history = History(limits)

    def status(name: str, waiting: int) -> aiolock.Status:
        waiter = aiolock.Participant("c", "", 0, 0.0, 1)
        return aiolock.Status(name, (), (waiter,) * waiting, kind="lock", now=1.0)

    for second in range(2000):
        lengths = {"grows": second // 30, "goes": second % 30, "a": second % 3, "b": second % 2}
        if second > 1000:
            lengths |= {f"once:{second}": 300}
        locks = await seen(status(name, count) for name, count in lengths.items())
        await history.add(float(second), Totals(held=second), locks)
    points = history.since(-math.inf)
    assert (len(points), points[-1].held) == (601, 1999)
    assert [point.held for point in history.since(1997.0)] == [1998, 1999]
    assert len(history._queues) <= 4
    assert max(map(len, history._queues.values())) <= 120
    grows, goes = ("lock", "grows"), ("lock", "goes")
    assert history.growth(grows, 1999.0, 1.0) == 0  # +1 or +2 in a minute is nothing
    history = History(Limits())
    for second in range(60):
        lengths = {"grows": second, "goes": second % 20}
        locks = await seen(status(name, count) for name, count in lengths.items())
        await history.add(float(second), Totals(), locks)
    assert 20 <= history.growth(grows, 60.0, 1.0) <= 50
    assert history.growth(goes, 60.0, 1.0) == 0
    for second in range(60, 1000):
        await history.add(float(second), Totals(), {})
    assert not history._queues
