"""Readers and writers on several servers, of which a majority decides: in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest

import aiolock
from aiolock import LeaseState, LockClient
from aiolock.protocol import Form, GrantPushed, Participant, Status, WaiterId
from aiolock.stores._member import VoteInquired, VoteRequest
from aiolock.stores.quorum._connection import OUT_AFTER
from aiolock.stores.quorum._server import QuorumServerStep
from aiolock.stores.quorum._server_state import QuorumServerState
from aiolock.stores.quorum._statuses import merged
from tests.support.cancel import KINDS, Kind
from tests.support.quorums import (
    Server,
    ask_and_give_up,
    check_left_behind,
    clients,
    dies,
    left_behind,
    servers,
)
from tests.support.virtual import run
from tests.support.worlds import queued, virtual

READS, WRITES = Form(10_000, shared=True), Form(10_000)


def later(lock: aiolock.Lock) -> asyncio.Task[aiolock.Lease]:
    """Acquire it in a task of its own."""

    async def acquire() -> aiolock.Lease:
        return await lock.acquire()

    return asyncio.create_task(acquire())


# One server


class Voter:
    """One server that votes, and its pushes."""

    def __init__(self) -> None:
        self.state = QuorumServerState()
        self.dead = set[str]()

    def step(self) -> QuorumServerStep:
        """One more of its steps."""
        return QuorumServerStep("a", self.state, 1_000_000, lambda client: client not in self.dead)

    def ask(self, client: str, ticket: int, form: Form, *, most: int = 0) -> QuorumServerStep:
        """Ask it for a vote, and wait."""
        step = self.step()
        request = VoteRequest("a", WaiterId(client, 1), form, ticket)
        step.vote(request, 30_000, 0, wait=True, most=most)
        return step


def test_writer_before_several_readers_inquires_of_all_behind_it() -> None:
    """A writer wants the votes of all readers behind it; a reader none of theirs."""
    quorum_server = Voter()
    for client, ticket in (("one", 10), ("two", 30), ("three", 40)):
        assert quorum_server.ask(client, ticket, READS).pushes == []
    asked = quorum_server.ask("writer", 20, WRITES).pushes
    assert [client for client, _ in asked] == ["two", "three"]
    assert all(isinstance(event, VoteInquired) for _, event in asked)
    assert quorum_server.ask("four", 15, READS).pushes == []
    assert len(quorum_server.state.shared) == 4
    assert quorum_server.ask("five", 25, READS).pushes == []
    assert len(quorum_server.state.shared) == 4


def test_writer_gets_the_vote_when_the_last_reader_has_yielded() -> None:
    """The earlier waiter gets the vote with the last of them; they stand in line behind it."""
    quorum_server = Voter()
    for client, ticket in (("two", 30), ("three", 40)):
        quorum_server.ask(client, ticket, READS)
    asked = quorum_server.ask("writer", 20, WRITES).pushes
    for push in asked:
        _, inquired = push
        assert isinstance(inquired, VoteInquired)
        step = quorum_server.step()
        step.yield_vote(VoteRequest("a", inquired.waiter, READS, 30), inquired.number)
        granted = [client for client, event in step.pushes if isinstance(event, GrantPushed)]
        assert granted == (["writer"] if push is asked[-1] else [])
    assert not quorum_server.state.shared
    assert len(quorum_server.state.queue) == 2


def test_vote_at_a_full_queue_lets_in_readers_behind_a_dead_writer() -> None:
    """Readers behind a writer that has died, where no other may join them."""
    quorum_server = Voter()
    for ticket, (client, form) in enumerate(
        [("one", READS), ("writer", WRITES), ("two", READS), ("three", READS)], start=10
    ):
        quorum_server.ask(client, ticket, form)
    quorum_server.dead.add("writer")
    step = quorum_server.ask("four", 20, READS, most=2)
    assert [client for client, _ in step.pushes] == ["two", "three"]
    assert quorum_server.state.queue == []


def test_done_marker_is_refused_while_readers_have_votes() -> None:
    """Work done once leaves no mark at a server whose votes are out to readers, until they end."""
    quorum_server = Voter()
    quorum_server.ask("one", 10, READS)
    doer = WaiterId("doer", 1)
    assert quorum_server.step().finish(doer, 99, 60_000, 0) == 0
    assert len(quorum_server.state.shared) == 1
    quorum_server.state.prolong(quorum_server.state.out[0], 0)
    assert quorum_server.step().finish(doer, 99, 60_000, 0) == 1


# Several


@virtual
async def test_readers_share_and_a_writer_is_alone_in_order_of_arrival() -> None:
    """First come, first served: readers in a row enter together, and no writer is starved."""
    async with clients(of := servers(), 3) as (one, two, three):
        first = await one.rwlock("a").read().acquire()
        second = await two.rwlock("a").read().acquire()
        assert first.fence < second.fence
        assert len((await three.rwlock("a").status()).holders) == 2
        writing = later(three.rwlock("a").write())
        await queued(three.lock("a"), 1)
        behind = [later(client.rwlock("a").read()) for client in (one, two)]
        await queued(three.lock("a"), 3)
        await first.release()
        await asyncio.sleep(1)
        assert not writing.done()
        await second.release()
        wrote = await writing
        assert wrote.fence > second.fence
        await asyncio.sleep(1)
        assert not any(each.done() for each in behind)
        await wrote.release()
        both = [await each for each in behind]
        assert all(each.fence > wrote.fence for each in both)
        for each in both:
            await each.release()
        assert await left_behind(of) == []


class Crowd:
    """Readers and writers of one name, which check that no other is inside beside a writer."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self.readers = self.writers = 0
        self.together = self.entered = 0
        self._highest = self._of_writers = 0

    async def read(self, client: LockClient) -> None:
        """With a fence above that of every writer before."""
        async with client.rwlock("a", ttl=5).read() as lease:
            self.readers, self.entered = self.readers + 1, self.entered + 1
            self.together = max(self.together, self.readers)
            assert not self.writers
            assert lease.fence > self._of_writers
            self._highest = max(self._highest, lease.fence)
            await self._body(lease)
            self.readers -= 1

    async def write(self, client: LockClient) -> None:
        """With a fence above all before."""
        async with client.rwlock("a", ttl=5).write() as lease:
            self.writers, self.entered = self.writers + 1, self.entered + 1
            assert (self.readers, self.writers) == (0, 1)
            assert lease.fence > self._highest
            self._highest = self._of_writers = lease.fence
            await self._body(lease)
            self.writers -= 1

    async def _body(self, lease: aiolock.Lease) -> None:
        await asyncio.sleep(self._dice.uniform(0, 0.05))
        assert lease.state is not LeaseState.LOST

    async def enter(self, client: LockClient) -> None:
        """Some times, as one or the other."""
        for _ in range(8):
            await asyncio.sleep(self._dice.uniform(0, 0.02))
            await self._dice.choice([self.read, self.read, self.write])(client)


async def trouble(of: list[Server], dice: random.Random) -> None:
    """A minority stops, is cut off, or is restarted empty, and comes back."""
    for _ in range(6):
        await asyncio.sleep(dice.uniform(0, 0.6))
        those = dice.sample(of, dice.randint(1, len(of) // 2))
        how = dice.choice(["stop", "kill", "empty"])
        for server in those:
            server.stop() if how == "stop" else server.kill()
        await asyncio.sleep(dice.uniform(0, 1.5))
        for server in those:
            back = {"stop": server.resume, "kill": server.back, "empty": server.start}
            back[how]()
        await asyncio.sleep(9 if how == "empty" else 0)  # until it votes again


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("size", [3, 5])
def test_rwlock_under_random_faults_of_a_minority_lets_every_waiter_enter(
    size: int, seed: int
) -> None:
    """Split votes are settled, while servers stop, go, and forget: every waiter enters."""

    async def scenario() -> None:
        dice, of = random.Random(seed), servers(size)
        crowd = Crowd(dice)
        async with clients(of, 4, longest_ttl=5, ttl=5) as all_of_them:
            troubling = asyncio.create_task(trouble(of, dice))
            await asyncio.gather(*(crowd.enter(client) for client in all_of_them for _ in range(2)))
            assert (crowd.readers, crowd.writers, crowd.entered) == (0, 0, 64)
            assert crowd.together > 1
            await troubling
            await asyncio.sleep(20)
            assert await left_behind(of) == []

    run(scenario(), seed)


@virtual
async def test_break_of_a_reader_takes_only_the_grant_with_that_fence() -> None:
    """Where the servers have voted in different orders, the fence of one is a number of both."""
    async with clients(of := servers(), 3) as (one, two, three):
        writing = await three.rwlock("a").write().acquire()
        of[2]._members[0].breaks()
        await asyncio.sleep(OUT_AFTER * 2)
        first = later(one.rwlock("a").read())
        await asyncio.sleep(1)
        second = later(two.rwlock("a").read())
        await queued(three.lock("a"), 2)
        await writing.release()
        leases = await first, await second
        of[2]._members[0].connects()
        await asyncio.sleep(1)
        votes = [server.quorum_server.states["lock:a"].shared for server in of]
        orders = [[vote.waiter.client for vote in each] for each in votes]
        assert orders == [[one.id, two.id], [one.id, two.id], [two.id, one.id]]
        assert [vote.number for vote in votes[0]] == [vote.number for vote in votes[2]]
        assert await three.rwlock("a").break_(leases[1].fence)
        await asyncio.sleep(1)
        assert leases[0].state is LeaseState.HELD
        assert leases[1].state is LeaseState.LOST
        await leases[0].release()
        assert await left_behind(of) == []


def test_merged_status_with_missing_servers_shows_readers_but_no_writer() -> None:
    """Readers may each have a majority with the rest; of a writer and another only one has it."""

    def seen(shared: bool) -> list[str]:  # the inquired waiters
        parties = {
            client: Participant(client, "", 1, 0.0, 0, fence=fence, remaining=1.0, shared=shared)
            for fence, client in enumerate(("one", "two"), start=1)
        }
        status = Status("a", tuple(parties.values()), ())
        found = merged("a", dict.fromkeys(range(2), status), 5, 0.0)
        return [party.client for party in found.holders]

    assert seen(shared=True) == ["one", "two"]
    assert seen(shared=False) == []


@virtual
async def test_downgrade_on_a_quorum_raises_unsupported_and_keeps_the_lease() -> None:
    """It is refused with its reason, and the writer writes on."""
    async with clients(of := servers(), 2) as (ours, other):
        async with ours.rwlock("a").write() as lease:
            for _ in range(2):
                with pytest.raises(aiolock.Unsupported, match="cannot go on as a reader"):
                    await lease.downgrade()
                assert not lease._hold.shared
            assert await lease.verify()
            assert await other.rwlock("a").read().try_acquire() is None
        assert await left_behind(of) == []


@virtual
async def test_reader_that_died_blocks_a_writer_only_until_its_lease_ends() -> None:
    """A writer waits for no longer than the lease of a reader that has died."""
    async with clients(of := servers(), 3, ttl=6) as (dead, alive, writer):
        lost = await later(dead.rwlock("a").read())
        reading = await alive.rwlock("a").read().acquire()
        waiting = later(writer.rwlock("a").write())
        await queued(writer.lock("a"), 1)
        dies(of, 0)
        await asyncio.sleep(20)
        assert not waiting.done()
        assert [len(server.quorum_server.states["lock:a"].shared) for server in of] == [1, 1, 1]
        assert lost.state is LeaseState.LOST
        await reading.release()
        await (await waiting).release()


# Cancelled anywhere


@pytest.mark.parametrize("fail", ["", "stop", "kill"])
@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
async def test_rwlock_of_a_quorum_cancelled_at_any_step_leaves_nothing(
    kind: Kind, fail: str
) -> None:
    """Nothing is left at any server, and at one that does not answer once it does."""
    async with clients(of := servers(), 2, ttl=60) as (ours, other):
        reading, writing = ours.rwlock("a").read(), other.rwlock("a").write()

        async def scenario() -> None:
            async with reading, other.rwlock("a").read():
                await ask_and_give_up(writing)
            lease = await writing.try_acquire()
            if lease is not None:
                await lease.release()

        await check_left_behind(of, fail, scenario, kind)
