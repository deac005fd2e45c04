"""Where a lock is held for long, its queue does not grow with each waiter that dies.

A hand-off removes the dead before the next waiter. Those behind a living one are removed by
newcomers, now and then, if the queue does not move: by their tickets, and no newcomer checks many.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from aiolock.protocol import (
    CHECKS,
    LOOKERS,
    STANDS_STILL,
    Acquire,
    Form,
    Granted,
    Queued,
    Rule,
    WaiterId,
)
from aiolock.stores._dead_waiters import checked, looks_for_dead
from aiolock.stores._member import InQueue, Voted, VoteRequest
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step
from aiolock.stores.quorum._server import QuorumServerStep
from aiolock.stores.quorum._server_state import QuorumServerState
from tests.proof.test_quorum_model import Scripts as Voter
from tests.proof.test_redis_model import Scripts
from tests.support import looks
from tests.support.servers import RedisServer

LOCK = Form(claim=3000)
COUNT = Form(claim=3000, shared=True, rule=Rule.COUNT, number=9)
MINUTE = 60_000
NOW = 1_790_000_000_000_000
FIRST = NOW
"""A number that is proposed."""
ALIVE = {"ada", "bob"}
LINES = {"x9000": LOCK, "s9000^9": COUNT}
"""Waiters of a lock, and for a count."""


@pytest.fixture
def lua(redis_server: RedisServer) -> Iterator[Scripts]:
    """The scripts of one server, of which ada holds the lock and bob waits."""
    lua = Scripts(redis_server)
    lua.listen("ada")
    lua.listen("bob")
    yield lua
    lua.close()


@pytest.fixture
def voter(redis_server: RedisServer) -> Iterator[Voter]:
    """The scripts of a server that votes."""
    voter = Voter(redis_server)
    voter.listen("ada")
    voter.listen("bob")
    voter.redis.set(voter.marker, "run 0 charter")
    yield voter
    voter.close()


def test_looks_for_dead_checks_at_most_four_waiters_on_average() -> None:
    """However long the queue is."""
    for waiters in (1, 10, 100, 1000, 10_000):
        tickets = range(NOW, NOW + LOOKERS * waiters)
        queue = [(NOW - STANDS_STILL, WaiterId("ada", 1))] * waiters
        found = [
            len(checked(ticket // LOOKERS, waiters))
            for ticket in tickets
            if looks_for_dead(ticket, queue)
        ]
        assert max(found) <= CHECKS
        assert 0 < sum(found) / len(tickets) <= 4


@pytest.mark.parametrize("waiters", [1, 127, 128, 129, 1000])
def test_checked_over_successive_numbers_has_each_waiter_equally_often(waiters: int) -> None:
    """Also the first and the last in the queue."""
    times = Counter[int]()
    numbers = max(waiters + CHECKS - 1, 1)
    for number in range(numbers):
        times.update(checked(number, waiters))
    assert set(times) == set(range(waiters))
    assert set(times.values()) == {CHECKS if waiters > CHECKS else numbers}


@pytest.mark.parametrize("moves", [True, False])
def test_looks_for_dead_is_false_while_the_queue_moves(moves: bool) -> None:
    """There the dead come to the head before long."""
    first = NOW - STANDS_STILL + moves
    looks = [looks_for_dead(ticket, [(first, WaiterId("ada", 1))]) for ticket in (NOW, NOW + 1)]
    assert looks == [not moves, False]


def test_machine_acquire_bounds_the_dead_waiters_in_a_queue() -> None:
    """A holder, one that waits, and ten thousand clients that wait and die."""
    dice, state, now, most = random.Random(1), NameState(), NOW, 0
    for number in range(10_000):
        name = "ada" if number < 2 else f"gone{number}"
        step = Step("n", state, now, ALIVE.__contains__)
        step.run(Acquire("n", WaiterId(name, number), LOCK, 10**9))
        now += dice.randrange(10**6)
        most = max(most, len(state.queue))
    assert most < 500


@pytest.mark.parametrize("waiter", LINES)
def test_machine_vote_bounds_the_dead_waiters_in_a_queue(waiter: str) -> None:
    """The same on a server of a quorum."""
    dice, state, ticket, most = random.Random(1), QuorumServerState(), NOW, 0
    for number in range(10_000):
        name = "ada" if number < 2 else f"gone{number}"
        step = QuorumServerStep("n", state, NOW, ALIVE.__contains__)
        stand = VoteRequest("n", WaiterId(name, number), LINES[waiter], ticket)
        step.vote(stand, 10**9, FIRST, wait=True, most=0)
        ticket += dice.randrange(10**6)
        most = max(most, len(state.queue))
    assert most < 500


@pytest.mark.parametrize("others", [0, 300])
def test_scripts_look_for_dead_waiters_when_the_machine_does(lua: Scripts, others: int) -> None:
    """In a short queue and in a long one, after which those that live stand there."""
    lua.acquire("x9000:ada:1", MINUTE, 0, 0)
    lua.acquire("x9000:bob:1", MINUTE, 0, 0)
    dead = {f"x9000:gone:{number}": 2 + number for number in range(others)}
    lua.redis.zadd(lua.keys[1], {"x9000:bob:1": 1} | dead)
    found, parts = 0, set[tuple[bool, bool]]()
    for number in range(others, 20_000):
        queue = lua.redis.zrange(lua.keys[1], 0, -1)
        before = len(queue)
        newcomer = f"x9000:late{number}:1"
        answer = lua.acquire(newcomer, MINUTE, 0, 0)
        assert isinstance(answer, Queued)
        looked = looks_for_dead(answer.ticket, [(1, WaiterId("bob", 1))] * (before + 1))
        left = [*queue, newcomer]
        if looked:
            places = checked(answer.ticket // LOOKERS, len(left))
            left = [
                each
                for place, each in enumerate(left)
                if place not in places or each in {"x9000:bob:1", newcomer}
            ]
            parts.add((places.start > 0, places.stop < before + 1))
        assert lua.redis.zrange(lua.keys[1], 0, -1) == left
        found += looked
        if looked and others:
            lua.redis.zadd(lua.keys[1], dead)
        if found >= 3 and len(parts) >= (3 if others else 1):
            return
    raise AssertionError("it was the same each time")


def test_scripts_remove_no_dead_waiters_while_the_queue_moves(lua: Scripts) -> None:
    """Whoever comes, and however many have died a moment ago."""
    lua.acquire("x9000:ada:1", MINUTE, 0, 0)
    lua.acquire("x9000:bob:1", MINUTE, 0, 0)
    asked = lookers = 0
    while lookers < 3:
        asked += 1
        answer = lua.acquire(f"x9000:gone{asked}:1", MINUTE, 0, 0)
        assert isinstance(answer, Queued)
        lookers += answer.ticket % LOOKERS == 0
    assert lua.redis.zcard(lua.keys[1]) == asked + 1


def test_scripts_newcomer_that_removes_the_dead_has_place_one(lua: Scripts) -> None:
    """And is told so."""
    lua.acquire("x9000:ada:1", MINUTE, 0, 0)
    lua.looks = True
    for number in range(3):
        answer = lua.acquire(f"x9000:gone{number}:1", MINUTE, 0, 0)
        assert isinstance(answer, Queued)
        assert answer.place == 1
        assert lua.redis.zcard(lua.keys[1]) == 1


def test_scripts_newcomer_that_removes_the_dead_grants_those_behind(lua: Scripts) -> None:
    """A reader that stood behind a dead writer shares the lock with the one that holds it."""
    lua.listen("cyd")
    lua.looks = False
    lua.acquire("s9000:ada:1", MINUTE, 0, 0)
    lua.acquire("x9000:cyd:1", MINUTE, 0, 0)
    lua.acquire("s9000:bob:1", MINUTE, 0, 0)
    lua.leave("cyd")
    assert len(lua.holders()) == 1
    lua.looks = True
    lua.acquire("x9000:ada:2", MINUTE, 0, 0)
    assert [waiter for waiter, _ in lua.holders()] == ["s9000:ada:1", "s9000:bob:1"]


def test_scripts_newcomers_in_one_call_remove_dead_waiters(lua: Scripts) -> None:
    """Newcomers that ask in one call look as if each asked by itself."""
    lua.acquire("x9000:ada:1", MINUTE, 0, 0)
    lua.acquire("x9000:bob:1", MINUTE, 0, 0)
    lua.looks = False
    for number in range(5):
        lua.acquire(f"x9000:gone{number}:1", MINUTE, 0, 0)
    lua.acquire("x9000:bob:2", MINUTE, 0, 0)  # known already, so it does not look itself
    lua.looks = True
    lua.acquire_several([f"x9000:bob:{seq}" for seq in (2, 3, 4)], MINUTE)
    expected = [f"x9000:bob:{seq}" for seq in (1, 2, 3, 4)]
    assert lua.redis.zrange(lua.keys[1], 0, -1) == expected


@pytest.mark.parametrize("waiter", LINES)
def test_vote_scripts_look_for_dead_waiters_when_the_machine_does(
    voter: Voter, waiter: str
) -> None:
    """By the tickets that the waiters bring."""
    dice, state, found = random.Random(2), QuorumServerState(), 0
    for number in range(250):
        name = "ada" if number < 2 else f"gone{number}"
        ticket = NOW + 10**6 * number + dice.randrange(1000)
        if number > 140 and number % 2:
            ticket -= ticket % LOOKERS
        voter.vote(f"{waiter}:{name}:{number}", ticket, 10 * MINUTE, FIRST, True, 0, 0)
        before = len(state.queue)
        stand = VoteRequest("n", WaiterId(name, number), LINES[waiter], ticket)
        QuorumServerStep("n", state, NOW, ALIVE.__contains__).vote(
            stand, 10 * MINUTE, FIRST, wait=True, most=0
        )
        found += before > len(state.queue)
        line = [f"{waiter}:{each.client}:{each.seq}" for _, each in state.queue]
        assert voter.redis.zrange(voter.queue, 0, -1) == line
    assert found > 2


@pytest.mark.parametrize("side", ["scripts", "machine"])
def test_vote_by_a_newcomer_that_removes_the_dead_goes_to_those_behind(
    voter: Voter, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that stood behind a dead writer shares the votes."""
    chance, state = looks.decided(monkeypatch), QuorumServerState()
    here = {"ada", "bob", "cyd"}

    def vote(text: str, ticket: int) -> object:
        if side == "scripts":
            return voter.vote(text, ticket, MINUTE, FIRST, True, 0, 0)
        client, seq = text.split(":")[1:]
        form = Form(claim=9000, shared=text.startswith("s"))
        stand = VoteRequest("n", WaiterId(client, int(seq)), form, ticket)
        step = QuorumServerStep("n", state, NOW, here.__contains__)
        return step.vote(stand, MINUTE, FIRST, wait=True, most=0)

    voter.listen("cyd")
    voter.looks = chance.looks = False
    assert isinstance(vote("s9000:ada:1", 10), Voted)
    assert isinstance(vote("x9000:cyd:1", 20), InQueue)
    assert isinstance(vote("s9000:bob:1", 30), InQueue)
    voter.leave("cyd")
    here.remove("cyd")
    voter.looks = chance.looks = True
    assert isinstance(vote("x9000:ada:2", 40), InQueue)
    if side == "scripts":
        votes = {each[0].waiter for each in voter.out().values()}
        assert votes == {"s9000:ada:1", "s9000:bob:1"}
    else:
        assert {each.waiter.client for each in state.out} == {"ada", "bob"}


def test_scripts_that_look_for_dead_waiters_keep_the_living_in_turn(lua: Scripts) -> None:
    """Nobody that listens is taken for dead, whoever looks."""
    lua.looks = True
    lua.acquire("x9000:ada:1", MINUTE, 0, 0)
    for seq in (2, 3, 4):
        lua.acquire(f"x9000:{'bob' if seq % 2 else 'ada'}:{seq}", MINUTE, 0, 0)
    for seq in (1, 2, 3):
        ((waiter, fence),) = lua.holders()
        assert waiter.endswith(str(seq))
        lua.release(waiter, fence)
    assert isinstance(lua.acquire("x9000:ada:4", MINUTE, 0, 0), Granted)
