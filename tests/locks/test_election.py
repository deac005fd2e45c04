"""One leader among many, whom everybody can ask for."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import Self, TypeVar

import pytest

import aiolock
from aiolock import AcquireTimeout, LeaseLost, StoreError
from aiolock.protocol import Operation, Post, Posted, ReadPosted, ReportHandoff
from aiolock.store import Store
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.failures import until
from tests.support.worlds import World, queued, settled, virtual
from tests.support.wrapped import Wrapped

Value = TypeVar("Value")


class Watcher:
    """Whoever observes, and what it has seen."""

    def __init__(self, election: aiolock.Election) -> None:
        self.seen: list[aiolock.Leader] = []
        self._election = election
        self._more = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _watch(self) -> None:
        async for leader in self._election.observe():
            self.seen.append(leader)
            self._more.set()

    async def saw(self, count: int) -> list[str]:
        """The values of the first so many leaders, once they were seen."""
        async with asyncio.timeout(10):
            while len(self.seen) < count:
                self._more.clear()
                await self._more.wait()
        return [leader.value for leader in self.seen]


async def test_campaign_of_many_candidates_leads_one_after_the_other(world: World) -> None:
    """Candidates lead one after the other, in the order in which they came, and all can see who."""
    async with world.client() as ours, world.client() as theirs:
        election = theirs.election("e")
        assert election.name == "e"
        assert await election.leader() is None
        terms: list[int] = []
        leads, all_here = asyncio.Event(), asyncio.Event()

        async def candidate(client: aiolock.LockClient, value: str) -> None:
            async with client.election("e").campaign(value) as term:
                leads.set()
                await all_here.wait()
                terms.append(term.fence)
                leader = await election.leader()
                assert leader is not None
                assert (leader.value, leader.fence) == (value, term.fence)
                assert (term.value, term.state, leader.client) == (value, "held", client.id)
                await watcher.saw(len(terms))

        async with Watcher(election) as watcher:
            async with asyncio.TaskGroup() as group:
                for number, client in enumerate((ours, theirs, ours)):
                    group.create_task(candidate(client, f"é {number}\n"))
                    await leads.wait()
                    await queued(election._lock, number)
                all_here.set()
            assert [leader.value for leader in watcher.seen] == ["é 0\n", "é 1\n", "é 2\n"]
            assert [leader.fence for leader in watcher.seen] == terms
        assert terms == sorted(set(terms))
        assert await election.leader() is None


class Told(Wrapped):
    """A store that remembers in which order it was told who leads."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.told: list[str] = []

    def submit(self, operation: Operation[Value]) -> asyncio.Future[Value]:
        if isinstance(operation, ReportHandoff):
            self.told.append("handed on")
        elif isinstance(operation, Post):
            self.told.append(operation.value.partition(" ")[2])
        return super().submit(operation)


async def test_campaign_after_a_handoff_reports_it_before_posting_the_leader() -> None:
    """The store hears that somebody leads before it hears what to show of who leads."""
    store = Told(MemoryStore(MemoryServer()))
    async with aiolock.connect(store) as client:
        election = client.election("e")

        async def candidate(value: str) -> None:
            async with election.campaign(value):
                pass

        async with election.campaign("a"):
            tasks = [asyncio.create_task(candidate(value)) for value in "bc"]
            queues = client._engine.waiters._queues
            await until(lambda: queues and len(queues["election:e"].acquisitions) == 2)
        await asyncio.gather(*tasks)
    assert store.told == ["a", "handed on", "b", "handed on", "c"]


async def test_observe_yields_the_current_leader_and_each_new_one(world: World) -> None:
    """Whoever observes sees the one who leads, and then each new leader, by a push."""
    async with (
        world.client() as ours,
        world.client() as theirs,
        Watcher(theirs.election("e")) as early,
    ):
        for value in ("a", "b"):
            async with ours.election("e").campaign(value), Watcher(theirs.election("e")) as late:
                assert await late.saw(1) == [value]
                await early.saw(ord(value) - ord("a") + 1)
        assert await early.saw(2) == ["a", "b"]
        assert early.seen[0].fence < early.seen[1].fence


@virtual
async def test_leader_that_died_is_replaced_when_its_lease_ends() -> None:
    """A leader that died leads until its lease ends; then the next does, and it is seen."""
    loop = asyncio.get_running_loop()
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty, ttl=10) as ours, aiolock.connect(server) as theirs:
        lost: list[float] = []

        async def lead() -> None:
            with pytest.raises(LeaseLost):
                async with ours.election("e").campaign("old") as term:
                    await asyncio.sleep(1000)
            assert term.state == "lost"
            assert term.lost.is_set()
            lost.append(loop.time())

        leading = asyncio.create_task(lead())
        await settled()
        async with Watcher(theirs.election("e")) as watcher:
            assert await watcher.saw(1) == ["old"]
            start = loop.time()
            faulty.refuse("renew", 1000)
            faulty.refuse("release", 1000)
            async with theirs.election("e").campaign("new"):
                assert 9 < loop.time() - start < 10.1
                assert await watcher.saw(2) == ["old", "new"]
                await leading
                assert lost[0] - start < 10
        faulty.resume()


@virtual
async def test_leader_of_a_long_term_stays_known_and_is_forgotten_an_hour_after() -> None:
    """Who leads is known for as long as it leads, and an hour after the last term nothing is."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        async with ours.election("e").campaign("me"), Watcher(theirs.election("e")) as watcher:
            await asyncio.sleep(12 * 3600)
            leader = await theirs.election("e").leader()
            assert leader is not None
            assert leader.value == "me"
            assert await watcher.saw(1) == ["me"]
        await asyncio.sleep(3601)
        assert await theirs.election("e").leader() is None
        assert await theirs._engine.store.submit(ReadPosted("elected:e")) == Posted(0, "")
        assert not server.names()


@virtual
async def test_resign_within_the_body_lets_the_next_candidate_lead() -> None:
    """A leader that resigns leads no more, though its body goes on, and the next one does."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        async with ours.election("e").campaign("a") as term:
            assert await term.resign()
            assert term.state == "released"
            async with theirs.election("e").campaign("b"):
                leader = await ours.election("e").leader()
                assert leader is not None
                assert leader.value == "b"
        assert not term.lost.is_set()


@virtual
async def test_request_resign_and_break_reach_the_leader() -> None:
    """Somebody may ask the leader to resign, or depose it."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        assert not await theirs.election("e").request_resign()
        async with ours.election("e").campaign() as term:
            assert await theirs.election("e").request_resign()
            await asyncio.wait_for(term.requested.wait(), 1)

        async def be_deposed() -> None:
            async with ours.election("e").campaign():
                assert await theirs.election("e").break_()
                await asyncio.sleep(60)

        with pytest.raises(LeaseLost):
            await be_deposed()
        assert await theirs.election("e").leader() is None


@virtual
@pytest.mark.parametrize("times", [8, 1000])
async def test_campaign_whose_post_is_refused_is_retried_for_ten_seconds(times: int) -> None:
    """A refusal that passes throws out nobody whose turn has come; one that does not, does."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    loop = asyncio.get_running_loop()
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        faulty.refuse("post", times)
        campaign = ours.election("e").campaign("new")
        if times == 8:
            async with campaign as term:
                leader = await theirs.election("e").leader()
                assert leader is not None
                assert (leader.value, leader.fence) == ("new", term.fence)
            return
        began = loop.time()
        with pytest.raises(StoreError):
            await campaign.__aenter__()
        assert 9 < loop.time() - began <= 10
        assert faulty.calls["post"] < 20
        await settled()
        assert not server.names()


@virtual
async def test_leader_without_its_own_value_is_none_and_late_values_are_ignored() -> None:
    """It is not taken for that of a leader who has not put up its own yet, nor a late one's."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        async with theirs.election("e").campaign("old"):
            pass
        faulty.lose("post")
        with pytest.raises(StoreError):
            async with ours.election("e").campaign("new"):
                raise AssertionError
        assert not server.names()
        lease = await theirs.election("e")._lock.acquire()
        assert lease is not None
        assert await theirs.election("e").leader() is None
        await theirs.election("e")._put_up(lease.fence, "new")
        await theirs.election("e")._put_up(lease.fence - 1, "late")
        leader = await theirs.election("e").leader()
        assert leader is not None
        assert leader.value == "new"
        await lease.release()


@virtual
async def test_campaign_with_timeout_behind_a_leader_raises_acquire_timeout() -> None:
    """A candidate waits as long as it wants to."""
    server = MemoryServer()
    async with (
        aiolock.connect(server) as ours,
        aiolock.connect(server) as theirs,
        ours.election("e").campaign(),
    ):
        for campaign in (
            theirs.election("e").campaign(timeout=1),
            theirs.election("e", timeout=1).campaign(),
        ):
            with pytest.raises(AcquireTimeout):
                async with campaign:
                    raise AssertionError


@virtual
async def test_observe_by_many_yields_every_leader_to_each_and_leaves_nothing() -> None:
    """All who observe see every leader that leads long enough, and leave nothing when they stop."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        watchers = [Watcher(client.election("e")) for client in (ours, theirs) * 5]
        for watcher in watchers:
            await watcher.__aenter__()
        for number in range(4):
            async with ours.election("e").campaign(str(number)):
                await asyncio.sleep(1)
        for watcher in watchers:
            assert await watcher.saw(4) == ["0", "1", "2", "3"]
            await watcher.__aexit__()
        await settled()
        assert not server.names()


@virtual
async def test_observe_on_a_failing_read_raises_store_error_and_can_begin_again() -> None:
    """`StoreError` when nobody knows; and it can be begun again."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        faulty.refuse("read")
        async with aclosing(client.election("e").observe()) as observed:
            with pytest.raises(StoreError):
                await anext(observed)
        async with (
            client.election("e").campaign("x"),
            aclosing(client.election("e").observe()) as observed,
        ):
            assert (await anext(observed)).value == "x"


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (1, TypeError, "value must be a str, not int"),
        ("x" * 10_001, ValueError, "at most 10000 characters"),
        ("\ud800", ValueError, "surrogates"),
    ],
)
@virtual
async def test_campaign_with_an_invalid_value_is_refused_before_it_acquires(
    value: str, error: type[Exception], text: str
) -> None:
    """What cannot be put up is an error before anybody leads."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        with pytest.raises(error, match=text):
            async with client.election("e").campaign(value):
                raise AssertionError
        assert not faulty.calls["acquire"]
