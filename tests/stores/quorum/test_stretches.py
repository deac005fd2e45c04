"""No event keeps the event loop for long, however many acquisitions a client of a quorum has."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import pytest

import aiolock
from aiolock.protocol import WaiterId
from aiolock.stores._member import NotVoting
from aiolock.stores.memory import MemoryServer
from aiolock.stores.quorum import _local_waiters, _releases
from aiolock.testing import Peer
from aiolock.testing._peer import Grant
from tests.support import stretches
from tests.support.crowds import MANY, all_wait, are_renewed, each, kept, make_due
from tests.support.quorums import Server, servers, store_on
from tests.support.stretches import check_short, measured

pytestmark = [pytest.mark.alone, pytest.mark.one_loop]

_AT_A_TIME: Final = 50
_LONG: Final = 60_000


class Client:
    """A client of a quorum, with ten thousand waiters for locks that another client holds."""

    def __init__(self, of: list[Server]) -> None:
        self.peer = Peer(store_on(of))
        self.of = of

    @property
    def store(self) -> Any:
        """Its store."""
        return self.peer.store

    @property
    def acquisitions(self) -> Any:
        """What the store has."""
        return self.store._session.acquisitions

    @property
    def connections(self) -> list[Any]:
        """Its links to the servers."""
        connections: list[Any] = self.store._session.membership.connections
        return connections

    async def each(self, do: Callable[[Any], object]) -> None:
        """Do it with each acquisition."""
        for number, acquisition in enumerate(list(self.acquisitions.table.by_waiter.values())):
            do(acquisition)
            if number % _AT_A_TIME == 0:
                await asyncio.sleep(0)

    async def wait(self, names: list[str]) -> None:
        """Wait for these."""
        answers = list[asyncio.Future[Any]]()
        for name in names:
            answers.append(self.peer.ask(name, ttl=_LONG))
            if len(answers) % _AT_A_TIME == 0:
                await asyncio.sleep(0)
        await asyncio.wait(answers)
        await self.is_done()

    async def is_done(self) -> None:
        """Return when all that was begun is over."""
        async with asyncio.timeout(60):
            while not self.acquisitions._passes.idle:  # noqa: ASYNC110  # it sets no Event
                await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)

    def suspended(self) -> int:
        """How many have left the queues."""
        return sum(each.vote_set.suspended for each in self.acquisitions.table.by_waiter.values())

    def reach(self, server: int, *, reached: bool) -> None:
        """A server goes out of reach, or comes back."""
        connection = self.connections[server]
        connection._down = not reached
        self.store._session.reach_changed(connection)


async def check(
    client: Client, event: Callable[[], object], before: Callable[[], object] = lambda: None
) -> None:
    """What the event makes the client do, until that is over, keeps the loop for no long time."""

    async def operation() -> None:
        event()
        await client.is_done()

    async def prepare() -> None:
        done = before()
        if isinstance(done, Awaitable):
            await done
        await client.is_done()

    await check_short(operation, prepare)


async def _a_server_goes_out_of_reach_and_comes_back(ours: Client) -> None:
    """A majority votes all the time."""
    out, back = partial(ours.reach, 2, reached=False), partial(ours.reach, 2, reached=True)
    await check(ours, out, back)
    await check(ours, back, out)


async def _a_majority_goes_out_of_reach_and_comes_back(ours: Client) -> None:
    """All acquisitions are suspended, and resumed."""
    ours.reach(2, reached=False)
    out, back = partial(ours.reach, 1, reached=False), partial(ours.reach, 1, reached=True)
    await check(ours, out, back)
    assert ours.suspended() == MANY
    await check(ours, back, out)
    assert ours.suspended() == 0


async def _pushes_of_a_server_may_be_lost(ours: Client) -> None:
    """It is asked for all of them."""
    await check(ours, partial(ours.store._session.ask_there, 1))


async def _a_server_was_restarted(ours: Client) -> None:
    """What was known of its clock is not known any more."""
    await check(ours, ours.connections[1].clock_changed)


async def _a_server_takes_the_client_for_stuck(ours: Client) -> None:
    """It is asked for all of that name."""
    stuck = WaiterId("nobody", 1)
    await check(
        ours, partial(ours.store._session.pushes.vote_lost, 1, "name:0", stuck, 1, "expired")
    )


async def _answers_that_a_server_does_not_vote(ours: Client) -> None:
    """Some, from its socket in one piece."""
    some = list(ours.acquisitions.table.by_waiter.values())[:_AT_A_TIME]

    def answers() -> None:
        now = ours.acquisitions._time()
        for acquisition in some:
            ours.acquisitions._questions._answered(acquisition, 1, now, NotVoting(200, 0), None)

    async def votes() -> None:
        await asyncio.sleep(0.3)

    await check(ours, answers, votes)


async def _all_ask_again(ours: Client) -> None:
    """All at the same time: the process may have stood still until then."""
    queues = list(ours.acquisitions.table.queues.values())

    async def plan() -> None:
        when = ours.acquisitions._time() + 1
        await ours.each(lambda acquisition: setattr(acquisition, "ask_at", [when] * 3))
        for number, queue in enumerate(queues):
            queue.look_by(when)
            if number % _AT_A_TIME == 0:
                await asyncio.sleep(0)

    async def all_are_due() -> None:
        await asyncio.sleep(1.2)
        await ours.is_done()

    await check_short(all_are_due, plan)


async def _the_number_of_votes(ours: Client) -> None:
    """It is counted as they come and go."""
    await check(ours, ours.store._servers)


async def _closing(ours: Client) -> None:
    """What is under way is given up."""
    again = ours.peer.ask("name:0")
    for server in range(3):
        ours.acquisitions.in_turn.ask_for_client(server)
    with measured() as found:
        await ours.store.aclose()
    assert found.longest <= stretches.LONGEST, found
    assert again.done()


@pytest.mark.parametrize("names", [1, MANY])
async def test_quorum_loop_with_many_waiters_stays_responsive_at_every_event(names: int) -> None:
    """Ten thousand, for one name and for as many, and all that may happen to them."""
    of = servers()
    client = Client(of)
    async with Peer(store_on(of)) as other, client.peer:
        for number in range(names):
            grant = other.ask(f"name:{number}", ttl=_LONG)
            if number % _AT_A_TIME == 0 or number == names - 1:
                await grant
        await client.wait([f"name:{number % names}" for number in range(MANY)])
        for event in (
            _a_server_goes_out_of_reach_and_comes_back,
            _a_majority_goes_out_of_reach_and_comes_back,
            _pushes_of_a_server_may_be_lost,
            _a_server_was_restarted,
            _a_server_takes_the_client_for_stuck,
            _answers_that_a_server_does_not_vote,
            _all_ask_again,
            _the_number_of_votes,
            _closing,
        ):
            await event(client)


async def test_quorum_loop_while_many_unanswered_questions_fail_stays_responsive() -> None:
    """Each client is told after a while, all of them after the same time."""
    of = servers()
    client = Client(of)
    async with client.peer:
        for server in of:
            server.stop()
        answers = list[asyncio.Future[Any]]()

        async def ask() -> None:
            answers.clear()
            for number in range(MANY):
                answers.append(client.peer.ask(f"name:{number}"))
                if number % _AT_A_TIME == 0:
                    await asyncio.sleep(0)
            waiting = client.acquisitions._patience._waiting
            end = client.acquisitions._time() + 0.5
            client.acquisitions._patience._waiting.clear()
            waiting.extend((end, answer) for answer in answers)
            client.acquisitions._passes.call_at(end, client.acquisitions._patience._look)

        async def told() -> None:
            async with asyncio.timeout(60):
                while not answers[-1].done():  # noqa: ASYNC110  # it sets no Event
                    await asyncio.sleep(0.001)

        await check_short(told, ask)
        for answer in answers:
            assert answer.exception() is not None
        for server in of:
            server.resume()


async def test_quorum_loop_while_many_releases_are_sent_again_stays_responsive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of a server that has refused them: the process has stood still until they were due."""
    monkeypatch.setattr(_releases, "_FIRST_PAUSE", 20.0)
    of = servers()
    client = Client(of)
    async with client.peer:
        releases, passes = client.acquisitions._endings._releases, client.acquisitions._passes
        clock = client.acquisitions._time

        async def take_and_release() -> None:
            passes._time = clock
            asked = list[Any]()
            for number in range(MANY):
                name, waiter = f"name:{number}", client.peer.waiter()
                asked.append((name, waiter, client.peer.ask(name, waiter, ttl=_LONG)))
                if number % _AT_A_TIME == 0:
                    await asyncio.sleep(0)
            await asyncio.wait([answer for _, _, answer in asked])
            of[0].refuses = True
            released = list[asyncio.Future[Any]]()
            for number, (name, waiter, answer) in enumerate(asked):
                grant = Grant(waiter, answer.result().fence)
                released.append(asyncio.ensure_future(client.peer.release(name, grant)))
                if number % _AT_A_TIME == 0:
                    await asyncio.sleep(0)
            await asyncio.wait(released)
            async with asyncio.timeout(60):
                while len(releases) < MANY:  # noqa: ASYNC110  # it sets no Event
                    await asyncio.sleep(0.001)
            of[0].refuses = False

        async def all_are_sent() -> None:
            passes._time = lambda: clock() + 20
            passes._set_alarm()
            async with asyncio.timeout(60):
                while len(releases):  # noqa: ASYNC110  # it sets no Event
                    await asyncio.sleep(0.001)
            await client.is_done()

        await check_short(all_are_sent, take_and_release)


async def test_quorum_loop_at_release_with_many_local_waiters_stays_responsive(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They wait at the client, and are queued at the servers, before the lock is released."""
    monkeypatch.setattr(_local_waiters, "LAZY", 1000.0)
    client = Client(of := servers())
    async with client.peer, Peer(store_on(of)) as other:
        holds = await client.peer.take("hot")
        queue, answers = client.acquisitions.table.queues["hot"], list[asyncio.Future[Any]]()
        for number in range(MANY):
            queue.alone = [client.acquisitions._time()] * 3
            answers.append(client.peer.ask("hot", ttl=_LONG))
            if number % _AT_A_TIME == 0:
                await asyncio.sleep(0)
        await asyncio.wait(answers)
        assert len(queue.locals) > MANY - 100
        await asyncio.sleep(0.001)
        last = other.ask("hot")
        await last
        with measured() as found:
            assert await client.peer.release("hot", holds)
            await client.is_done()
        assert found.longest <= stretches.LONGEST, found
        assert not queue.locals
        state = of[0].quorum_server.states["hot"]
        assert len(state.queue) == MANY
        assert state.queue[-1][1].client == other.client


async def test_quorum_loop_with_ten_thousand_leases_stays_responsive() -> None:
    """Ten thousand names, each of them held: renewed, released, and released on closing."""
    target: Any = [MemoryServer() for _ in range(3)]
    client = aiolock.connect(target, ttl=60)

    leases = list[aiolock.Lease]()

    async def take() -> None:
        if client._engine.state.name != "OPEN":
            await client.open()
        if not client._engine.watchdog.holds:  # the first to close has what there is
            leases[:] = await each(lambda number: client.lock(f"name:{number}").acquire())

    async def all_due() -> None:
        make_due(client, 50)

    await take()
    await check_short(partial(are_renewed, client), all_due)
    assert {lease.state for lease in leases} == {aiolock.LeaseState.HELD}
    await check_short(client.aclose, take)
    kept.clear()


async def test_quorum_loop_at_close_with_ten_thousand_waiters_stays_responsive() -> None:
    """Ten thousand tasks, of which each is told."""
    target: Any = [MemoryServer() for _ in range(3)]
    async with aiolock.connect(target, ttl=60) as other, other.lock("hot"):
        client, tasks = aiolock.connect(target, ttl=60), list[asyncio.Task[None]]()

        async def all_of_them() -> None:
            await client.open()
            tasks.extend(await all_wait(client.lock("hot")))

        await check_short(client.aclose, all_of_them)
        await asyncio.wait(tasks)
