"""One server of a quorum in this process does what takes long in parts, in the same order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import aiolock
from aiolock.protocol import Form, GrantLost, GrantPushed, ReleaseRequested, Rule, WaiterId
from aiolock.stores._member import (
    UNDECIDED,
    InQueue,
    Memory,
    QuorumConfig,
    Voted,
    VoteInquired,
    VoteRequest,
)
from aiolock.stores.memory import MemoryServer
from aiolock.stores.quorum import _step_context
from aiolock.stores.quorum._memory import MemoryQuorumServer
from aiolock.stores.quorum._server import QuorumServerStep
from aiolock.stores.quorum._server_state import QuorumServerState
from aiolock.stores.quorum._step_context import PART, Rest
from tests.support.stretches import check_short

MANY: Final = 10_000
READS, WRITES, DONE = Form(3_000, shared=True), Form(3_000), Form(3_000, once=True)


class Server:
    """One server, whose clock stands still, and what it has pushed."""

    def __init__(self) -> None:
        self.clock = 1e9
        self.server = MemoryQuorumServer(MemoryServer(lambda: self.clock))
        self.server.register(QuorumConfig(("a server",), 60_000, durable=False), Memory.NEW)
        self.told = list[Any]()
        for client in ("a", "b", "w"):
            self.server.listeners[client] = self.told.append

    @property
    def state(self) -> Any:
        """What it knows of the name."""
        return self.server.states["name"]

    def vote(
        self, number: int, form: Form, client: str = "a", *, wait: bool = True, ttl: int = 30_000
    ) -> Any:
        """A waiter asks for a vote; its number is its ticket."""
        request = VoteRequest("name", WaiterId(client, number), form, number)
        return self.server.step("name", lambda step: step.vote(request, ttl, 0, wait=wait, most=0))

    def release(self, number: int, client: str = "a") -> int:
        """A waiter leaves, or gives its vote back."""
        waiter = WaiterId(client, number)
        freed: int = self.server.step("name", lambda step: step.release(waiter, 0, -1, entered=-1))
        return freed

    def queue(self, count: int, form: Form = READS, client: str = "a") -> None:
        """So many wait for a writer, which is the first of all."""
        self.vote(1, WRITES, "w")
        for number in range(10, 10 + count):
            self.vote(number, form, client)

    def has_votes(self, count: int, **terms: Any) -> None:
        """So many readers have one."""
        for number in range(10, 10 + count):
            assert isinstance(self.vote(number, READS, **terms), Voted)

    def granted(self) -> list[int]:
        """The waiters that were let in, in order."""
        return [each.waiter.seq for each in self.told if isinstance(each, GrantPushed)]

    async def goes_on(self) -> None:
        """Until nothing is left to do."""
        for _ in range(MANY // PART + 5):
            await asyncio.sleep(0)


async def test_readers_enter_in_parts_in_the_order_of_the_queue() -> None:
    """One step lets a part of them in, and the next ones the others."""
    server = Server()
    server.queue(100)
    server.release(1, "w")
    assert len(server.state.shared) == PART
    await server.goes_on()
    assert server.granted() == list(range(10, 110))
    assert [vote.waiter.seq for vote in server.state.shared] == list(range(10, 110))
    numbers = [each.number for each in server.state.shared]
    assert numbers == sorted(set(numbers))


async def test_who_asks_between_two_parts_does_not_pass_those_in_the_queue() -> None:
    """A newcomer waits behind those that are left, and a writer before them keeps them out."""
    server = Server()
    server.queue(50)
    server.release(1, "w")
    assert isinstance(server.vote(30, WRITES, "b"), InQueue)
    assert isinstance(server.vote(1000, READS, "b"), InQueue)
    assert server.vote(1001, READS, "b", wait=False).place == 0
    await server.goes_on()
    asked = [each for each in server.told if isinstance(each, VoteInquired)]
    assert asked == []
    assert server.granted() == list(range(10, 31))  # that of the client "a" sorts first
    assert server.release(30, "b") == 2
    await server.goes_on()
    assert server.granted() == [*range(10, 60), 1000]


async def test_who_leaves_between_two_parts_gets_no_vote() -> None:
    """Nor does any other waiter lose its turn."""
    server = Server()
    server.queue(50)
    server.release(1, "w")
    assert server.release(45) == 2
    await server.goes_on()
    assert server.granted() == [each for each in range(10, 60) if each != 45]


@pytest.mark.parametrize("empty", [True, False])
async def test_started_again_between_two_parts(empty: bool) -> None:
    """What was left of the run before is not done."""
    server = Server()
    server.queue(50)
    server.release(1, "w")
    server.server.restart(empty=empty)
    await server.goes_on()
    assert ("name" in server.server.states) is not empty
    assert empty or len(server.state.queue) == 50 - PART


async def test_emptied_between_two_parts_and_used_again() -> None:
    """The new state is gone on with, though work on the old one was due."""
    server = Server()
    server.queue(50)
    server.release(1, "w")
    server.server.states.clear()
    server.told.clear()
    server.queue(60)
    server.release(1, "w")
    await server.goes_on()
    assert len(server.state.shared) == 60


async def test_votes_that_end_together_are_removed_before_anyone_gets_one() -> None:
    """The waiters of a stuck client leave, whichever of the votes is the last to be removed."""
    server = Server()
    server.has_votes(99)
    server.vote(500, READS, "b")  # the last that ends
    server.server.listeners["x"] = server.told.append
    server.vote(510, WRITES, "x")
    server.vote(520, READS, "b")
    server.vote(600, WRITES, "w")
    del server.server.listeners["x"]  # so that the stuck client is the first
    server.clock += 40
    assert isinstance(server.vote(550, READS, "a"), InQueue)
    assert len(server.state.shared) == 100 - PART
    await server.goes_on()
    lost = [each.waiter.seq for each in server.told if isinstance(each, GrantLost)]
    assert lost == [*range(10, 109), 500]
    assert server.granted() == [600]
    # The asker itself waited as a waiter of a stuck client, and is told to ask again.
    assert server.state.vote.waiter == WaiterId("w", 600)
    assert not server.state.queue


async def test_marker_after_many_votes_that_ended() -> None:
    """It is left in one step: no vote is in its way."""
    server = Server()
    server.has_votes(100)
    server.clock += 40
    doer = WaiterId("w", 1)
    assert server.server.step("name", lambda step: step.finish(doer, 9, 60_000, 0)) == 1
    await server.goes_on()
    assert server.state.vote.marks


async def test_requests_of_many_votes() -> None:
    """Each is asked once, in parts, if it is still out; the answer counts all."""
    server = Server()
    server.has_votes(100)
    assert server.server.step("name", lambda step: step.request()) == 100
    assert server.release(105) == 1
    await server.goes_on()
    asked = [each.waiter.seq for each in server.told if isinstance(each, ReleaseRequested)]
    assert asked == [each for each in range(10, 110) if each != 105]


async def test_writer_that_leaves_between_two_parts_of_its_inquiries() -> None:
    """No more votes are asked for in its favour."""
    server = Server()
    server.has_votes(100)
    server.vote(1, WRITES, "w")
    server.release(1, "w")
    await server.goes_on()
    assert len([each for each in server.told if isinstance(each, VoteInquired)]) == PART


async def test_reader_that_does_not_wait_asks_again_while_others_are_due() -> None:
    """It passes nobody, and gets a vote as if all others had been let in at once."""
    server = Server()
    server.queue(3 * PART)
    server.release(1, "w")
    assert server.vote(1000, READS, "b", wait=False).until == UNDECIDED
    assert len(server.state.queue) == PART
    assert isinstance(server.vote(1000, READS, "b", wait=False), Voted)
    assert not server.state.queue
    await server.goes_on()
    assert server.granted() == list(range(10, 10 + 3 * PART))


async def test_reader_that_does_not_wait_is_refused_behind_a_writer_that_is_due() -> None:
    """As soon as the readers before that writer are in."""
    server = Server()
    server.queue(2 * PART)
    server.vote(500, WRITES, "w")
    server.release(1, "w")
    assert server.vote(1000, READS, "b", wait=False) == InQueue(3000, 0, int(server.clock * 1e6))
    await asyncio.sleep(0)
    assert server.granted() == list(range(10, 10 + 2 * PART))
    assert [each.seq for _, each in server.state.queue] == [500]


async def test_writer_that_does_not_wait_asks_again_while_votes_that_ended_are_left() -> None:
    """No vote keeps it out, but that is not certain before the last of them is looked at."""
    server = Server()
    server.has_votes(2 * PART + 1)
    server.clock += 40
    for _ in range(2):
        assert server.vote(500, WRITES, "w", wait=False).until == UNDECIDED
    assert isinstance(server.vote(500, WRITES, "w", wait=False), Voted)


async def test_waiter_in_the_queue_that_asks_without_waiting_keeps_its_place() -> None:
    """It is in the queue, and not only for that step."""
    server = Server()
    server.queue(3 * PART)
    server.release(1, "w")
    last = 9 + 3 * PART
    assert server.vote(last, READS, wait=False).place == 0
    assert server.state.queue[-1][1].seq == last
    await server.goes_on()
    assert last in server.granted()


@pytest.mark.parametrize(
    ("store", "readers"), [("memory", 50), ("quorum", 3), ("quorum", 50), ("quorum", 500)]
)
async def test_reader_that_does_not_wait_enters_beside_many_that_are_let_in(
    store: str, readers: int
) -> None:
    """Each store of this process answers as if it had let all of them in at once."""
    servers = [MemoryServer() for _ in range(1 if store == "memory" else 3)]
    target = servers if store == "quorum" else servers[0]
    async with (
        aiolock.connect(target) as client,
        aiolock.connect(target, answer_timeout=30) as other,  # the machine may be busy
    ):
        book, gone = client.rwlock("book"), asyncio.Event()

        async def reads() -> None:
            async with book.read():
                await gone.wait()

        async with other.rwlock("book").write() as lease:
            tasks = [asyncio.create_task(reads()) for _ in range(readers)]
            async with asyncio.timeout(60):
                while len((await book.status()).waiters) < readers:  # noqa: ASYNC110  # it sets no Event
                    await asyncio.sleep(0.01)
            await lease.release()
        mine = await other.rwlock("book").read().try_acquire()
        assert mine is not None
        await mine.release()
        gone.set()
        await asyncio.gather(*tasks)


def test_what_an_event_loop_has_left_does_not_stop_the_next_one() -> None:
    """A loop may be closed before it comes to the rest of a step."""
    server = Server()

    async def leaves() -> None:
        server.queue(9 * PART)
        server.release(1, "w")

    async def goes_on() -> None:
        left = len(server.state.queue)
        server.release(10)
        assert len(server.state.queue) == left - PART > PART
        await server.goes_on()
        assert not server.state.queue

    for each in (leaves, goes_on):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(each())
        loop.close()


async def test_started_again_without_loss_goes_on_with_what_it_leaves_itself() -> None:
    """What the run before has left is in the way of nothing, though the state is the same."""
    server = Server()
    server.queue(50)
    server.release(1, "w")
    server.server.restart(empty=False)
    server.server._votes_from = 0
    server.server.listeners["a"] = server.told.append
    server.release(10)
    await server.goes_on()
    assert server.granted() == list(range(10, 60))


async def test_what_many_names_have_left_is_done_in_turn() -> None:
    """No iteration of the event loop does more for many names than for one."""
    server, names, readers = Server(), 60, 20 * PART
    queue, left = server.server.operation_queue(), list[asyncio.Future[Any]]()
    for name in map(str, range(names)):
        for number in range(readers + 1):
            form = READS if number else WRITES
            request = VoteRequest(name, WaiterId("a", number), form, number + 1)
            server.server.step(name, partial(vote, request))
        writer = WaiterId("a", 0)
        left.append(queue.submit(partial(server.server.step, name, partial(leave, writer))))
    most = told = 0
    while told < names * readers:
        await asyncio.sleep(0)
        most, told = max(most, len(server.told) - told), len(server.told)
    assert most < 3 * PART


def vote(request: VoteRequest, step: QuorumServerStep) -> object:
    """It asks, and waits."""
    return step.vote(request, 30_000, 0, wait=True, most=0)


def leave(waiter: WaiterId, step: QuorumServerStep) -> object:
    """It leaves, or gives its vote back."""
    return step.release(waiter, 0, -1, entered=-1)


@given(st.data())
def test_any_operations_between_parts_keep_the_order_of_the_queue(data: st.DataObject) -> None:
    """Nobody gets a vote before a waiter in front of it, or beside one that it does not share with.

    In the end no rest is left, and nobody waits for whom there is a vote.
    """
    state, now, due = QuorumServerState(), 10**15, list[Rest]()
    listening = {"a", "b", "c"}

    def do(operation: Callable[[QuorumServerStep], object]) -> None:
        before = set(state.out)
        step = QuorumServerStep("name", state, now, listening.__contains__, in_parts=True)
        operation(step)
        due.extend(step.rest)
        new = [vote.place for vote in state.out if vote not in before and not vote.is_reserved]
        behind = [place for place in state.queue if place[1].client in listening]
        assert not new or not behind or max(new) < behind[0]
        assert state.vote is None or not state.shared
        forms = [state.waiting[waiter][1] for _, waiter in behind[:1]]
        assert due or not any(map(state.fits, forms))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_step_context, "PART", data.draw(st.integers(1, 3)))
        for ticket in range(10, data.draw(st.integers(20, 60))):
            votes = [vote for vote in state.out if not vote.is_reserved]
            waiting = [*(vote.waiter for vote in votes), *state.waiting]
            match data.draw(st.sampled_from("vvvvvvnllyegg")):
                case "v" | "n" as kind:
                    waiter = WaiterId(data.draw(st.sampled_from("abc")), ticket)
                    form = data.draw(st.sampled_from([READS, READS, WRITES]))
                    early = data.draw(st.sampled_from([0, 0, 5]))
                    request = VoteRequest("name", waiter, form, ticket - early)
                    waits = kind == "v"
                    do(lambda step: step.vote(request, 30_000, 0, wait=waits, most=0))  # noqa: B023  # at once
                case "l" if waiting:
                    do(partial(leave, data.draw(st.sampled_from(waiting))))
                case "y" if votes:
                    held = data.draw(st.sampled_from(votes))
                    request = VoteRequest("name", held.waiter, held.form, held.ticket)
                    do(lambda step: step.yield_vote(request, held.number))  # noqa: B023  # at once
                case "e" if votes:
                    for held in data.draw(st.lists(st.sampled_from(votes), unique_by=id)):
                        state.prolong(held, 0)
                    due.append(Rest("advance"))  # somebody asks
                case "g" if due:
                    rest = due.pop(data.draw(st.integers(0, len(due) - 1)))
                    do(lambda step: step.go_on(rest))  # noqa: B023  # at once
                case _:
                    pass
        while due:
            rest = due.pop()
            do(lambda step: step.go_on(rest))  # noqa: B023  # at once
    assert state.first is None or state.first.end


# The time that it takes


def _requests(server: Server) -> None:
    server.server.step("name", lambda step: step.request())


def _inquiries(server: Server) -> None:
    server.vote(1, WRITES, "w")


def _vote_of_one(server: Server) -> None:
    server.vote(5000, READS)
    server.vote(500_000, READS, "b", wait=False)


def _ends(server: Server) -> None:
    server.clock += 40
    server.vote(500_000, WRITES, "w")


async def _check(server: Server, operation: Any, before: Any) -> None:
    async def prepare() -> None:
        server.server.forget()
        server.told.clear()
        server.server.register(QuorumConfig(("a server",), 60_000, durable=False), Memory.NEW)
        before()

    async def run() -> None:
        operation(server)
        await server.goes_on()

    await check_short(run, prepare)


@pytest.mark.alone
@pytest.mark.one_loop
@pytest.mark.parametrize("operation", [_requests, _inquiries, _vote_of_one, _ends])
async def test_stretches_with_many_votes(operation: Any) -> None:
    """Ten thousand readers have one."""
    server = Server()
    await _check(server, operation, lambda: server.has_votes(MANY))
    counts = {_requests: MANY, _inquiries: MANY, _vote_of_one: 0, _ends: MANY + 1}
    assert len(server.told) == counts[operation]


@pytest.mark.alone
@pytest.mark.one_loop
@pytest.mark.parametrize("what", ["enter", "stuck", "dead", "done", "counted"])
async def test_stretches_with_many_waiters(what: str) -> None:
    """Ten thousand wait, and are let in, or leave the queue."""
    forms = {"done": DONE, "counted": Form(3_000, shared=True, rule=Rule.COUNT, number=5)}
    server = Server()

    def before() -> None:
        server.queue(MANY, forms.get(what, READS))
        if what == "stuck":
            server.release(1, "w")
            server.state.prolong(server.state.first, 0)

    def operation(server: Server) -> None:
        match what:
            case "enter":
                server.release(1, "w")
            case "stuck":
                server.vote(500_000, WRITES, "b")
            case "dead":
                del server.server.listeners["a"]
                server.release(1, "w")
                server.server.listeners["a"] = server.told.append
            case "done":
                waiter = WaiterId("w", 1)
                server.server.step("name", lambda step: step.finish(waiter, 9, 60_000, 0))
            case _:
                server.server.step("name", lambda step: step.post(5, "value", 60_000))

    await _check(server, operation, before)
    assert [each.client for _, each in server.state.queue] == (["b"] if what == "stuck" else [])
