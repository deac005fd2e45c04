"""Who waits for whom, over all locks: the circles in a snapshot."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from aiolock import Deadlock
from aiolock._engine.diagnostics import wait_graph as reduction
from aiolock._turns import at_once
from aiolock.protocol import Participant, Status

_numbers = itertools.count(1)


def cycles(statuses: Iterable[Status]) -> list[Deadlock]:
    """The deadlocks, without a pause."""
    return at_once(reduction.cycles(statuses))


def lasting(before: Iterable[Status], now: Iterable[Status]) -> list[Status]:
    """What was also there before, without a pause."""
    return at_once(reduction.lasting(before, now))


def stuck_on(statuses: Iterable[Status]) -> set[tuple[str, str]]:
    """What stuck tasks wait for, without a pause."""
    return at_once(reduction.stuck_on(statuses))


def party(task: str, *, place: int, shared: bool = False, permits: int = 0) -> Participant:
    """What a task of some client holds, or waits for; one in brackets is not known."""
    client, _, number = task.strip("()").partition("/")
    return Participant(
        client=client,
        host="host",
        pid=1,
        since=0.0,
        place=place,
        fence=0 if place else next(_numbers),
        shared=shared or permits > 0,
        permits=permits,
        seq=next(_numbers),
        label=task,
        task=0 if task.startswith("(") else int(number),
    )


def status(
    name: str, holders: str, waiters: str = "", *, kind: str = "lock", limit: int | None = None
) -> Status:
    """Who holds this and who waits; ``r:`` before one that shares, ``n:`` before n permits, and
    ``n@s:`` if these are of a share.
    """

    def read(text: str, place: int) -> Participant:
        how, _, task = text.rpartition(":")
        how, _, share = how.partition("@")
        permits = int(how) if how.isdecimal() else 0
        found = party(task, place=place, shared=how == "r", permits=permits)
        return replace(found, share=share)

    return Status(
        name,
        tuple(read(each, 0) for each in holders.split()),
        tuple(read(each, place) for place, each in enumerate(waiters.split(), 1)),
        limit=limit,
        kind=kind,
    )


def found(*statuses: Status) -> list[list[str]]:
    """The labels of those in each circle."""
    return [[each.waiter.label for each in deadlock.cycle] for deadlock in cycles(statuses)]


CASES = {
    "nobody waits": ([status("a", "x/1")], []),
    "one waits": ([status("a", "x/1", "y/1")], []),
    "two tasks": (
        [status("a", "x/1", "y/1"), status("b", "y/1", "x/1")],
        [["x/1", "y/1"]],
    ),
    "two tasks of one client": (
        [status("a", "x/1", "x/2"), status("b", "x/2", "x/1")],
        [["x/1", "x/2"]],
    ),
    "by itself": ([status("a", "x/1", "x/1")], [["x/1"]]),
    "three tasks": (
        [status("a", "x/1", "z/1"), status("b", "y/1", "x/1"), status("c", "z/1", "y/1")],
        [["x/1", "y/1", "z/1"]],
    ),
    "who only waits behind them is in no circle": (
        [status("a", "x/1", "y/1 z/1"), status("b", "y/1", "x/1")],
        [["x/1", "y/1"]],
    ),
    "a task that is not known may let go": (
        [status("a", "(x/1)", "y/1"), status("b", "y/1", "x/1")],
        [],
    ),
    "who waits is not known to do nothing else": (
        [status("a", "x/1", "(y/1)"), status("b", "y/1", "x/1")],
        [],
    ),
    "two that are not known may be two": (
        [status("a", "(x/1)", "y/1"), status("b", "y/1", "(x/2)")],
        [],
    ),
    "another task of the same client goes on": (
        [status("a", "x/1", "y/1"), status("b", "y/1", "x/2")],
        [],
    ),
    "the queue counts": (
        # z waits for a behind y, who waits for b as well, which z holds.
        [status("a", "x/1", "y/1 z/1"), status("b", "z/1", "y/1")],
        [["y/1", "z/1"]],
    ),
    "nobody is overtaken": (
        # Readers share a; a writer stands between them, and waits for what the last of them has.
        [status("a", "r:x/1", "y/1 r:z/1"), status("b", "z/1", "x/1")],
        [["x/1", "z/1", "y/1"]],
    ),
    "who wants one permit waits behind who wants two": (
        [
            status("a", "1:x/1 1:n/1", "2:z/1 1:w/1", kind="semaphore", limit=2),
            status("b", "w/1", "x/1"),
        ],
        [["w/1", "z/1", "x/1"]],
    ),
    "one of another share may come before": (
        [
            status("a", "1:x/1 1:n/1", "2@s:z/1 1@t:w/1", kind="semaphore", limit=2),
            status("b", "w/1", "x/1"),
        ],
        [],
    ),
    "one of the same share does not": (
        [
            status("a", "1:x/1 1:n/1", "2@s:z/1 1@s:w/1", kind="semaphore", limit=2),
            status("b", "w/1", "x/1"),
        ],
        [["w/1", "z/1", "x/1"]],
    ),
    "nor does one of a share before one without": (
        [
            status("a", "1:x/1 1:n/1", "2:z/1 1@t:w/1", kind="semaphore", limit=2),
            status("b", "w/1", "x/1"),
        ],
        [["w/1", "z/1", "x/1"]],
    ),
    "a lock that a share holds blocks all shares": (
        [status("a", "x/1", "@s:y/1 @t:z/1"), status("b", "z/1", "x/1")],
        [["x/1", "z/1"]],
    ),
    "readers are not in each other's way": (
        [status("a", "r:x/1", "r:y/1"), status("b", "y/1", "x/1")],
        [],
    ),
    "permits that are left": (
        [status("a", "1:x/1", "1:y/1", limit=2), status("b", "y/1", "x/1")],
        [],
    ),
    "no permit is left": (
        [status("a", "1:x/1 1:z/1", "1:y/1", limit=2), status("b", "y/1", "x/1 z/1")],
        [["y/1", "x/1"]],
    ),
    "one of two who have permits goes on": (
        [status("a", "1:x/1 1:z/1", "1:y/1", limit=2), status("b", "y/1", "x/1")],
        [],
    ),
    "enough permits will be released by others": (
        [
            status("a", "1:x/1 2:z/1", "2:y/1 1:u/1", kind="semaphore", limit=3),
            status("b", "y/1", "x/1"),
            status("c", "u/1", "v/1"),
        ],
        [],
    ),
    "too few permits will be released by others": (
        # Whoever wants one behind it could enter, but nobody overtakes.
        [
            status("a", "2:x/1 1:z/1", "2:y/1 1:u/1", kind="semaphore", limit=3),
            status("b", "y/1", "x/1"),
            status("c", "u/1", "v/1"),
        ],
        [["x/1", "y/1"]],
    ),
    "all who have permits wait for whoever wants one": (
        [
            status("a", "1:x/1 1:z/1", "1:y/1", kind="semaphore", limit=2),
            status("b", "y/1", "x/1"),
            status("c", "y/1", "z/1"),
        ],
        [["y/1", "x/1"]],
    ),
    "who wants two things has one": (
        [status("a", "x/1", "y/1"), status("b", "z/1", "y/1"), status("c", "y/1", "x/1")],
        [["x/1", "y/1"]],
    ),
    "by the fewest": (
        # y waits for all readers. The first waits for the second, and so on; the last wants b.
        [
            status("a", "r:x/1 r:x/2 r:x/3", "y/1"),
            status("b", "y/1", "x/3"),
            status("c", "x/2", "x/1"),
            status("d", "x/3", "x/2"),
        ],
        [["y/1", "x/3"]],
    ),
    "two circles": (
        [
            status("a", "x/1", "y/1"),
            status("b", "y/1", "x/1"),
            status("c", "u/1", "v/1"),
            status("d", "v/1", "u/1"),
        ],
        [["u/1", "v/1"], ["x/1", "y/1"]],
    ),
    "what one does not hold": (
        [status("a", "x/1", "y/1", kind="latch"), status("b", "y/1", "x/1", kind="latch")],
        [],
    ),
}


@pytest.mark.parametrize(("statuses", "expected"), CASES.values(), ids=CASES)
def test_cycles_contain_exactly_the_tasks_that_wait_for_each_other(
    statuses: list[Status], expected: list[list[str]]
) -> None:
    """Those who wait for each other, and nobody else."""
    assert found(*statuses) == expected


def test_stuck_on_a_deadlock_names_the_locks_its_tasks_wait_for() -> None:
    """All that is to be looked at again, to be sure."""
    statuses = [
        status("a", "x/1", "y/1 z/1"),
        status("b", "y/1", "x/1", kind="semaphore"),
        status("c", "u/1", "v/1"),
    ]
    assert stuck_on(statuses) == {("lock", "a"), ("semaphore", "b")}


def test_deadlock_text_names_waiters_holders_and_the_remedy() -> None:
    """It says who waits for what of whom, and what to do."""
    (deadlock,) = cycles([status("a", "x/1", "y/1"), status("b", "y/1", "x/1")])
    lines = str(deadlock).splitlines()
    assert lines[0] == "2 tasks wait for each other, and none of them can go on:"
    assert lines[1] == (
        "  'x/1' (host:1) has waited since 00:00:00 UTC for the lock 'b': 'y/1' (host:1) holds it"
    )
    assert lines[-1] == "Take 'a', 'b' in the same order everywhere (multilock() does)."


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ([status("a", "x/1", "x/1", limit=1)], ["waits for itself", "Release 'a' before asking"]),
        (
            [status("a", "r:x/1 r:y/1", "x/1 y/1")],
            ["waits for itself", "'x/1' (host:1) reads it", "Release 'a' before asking"],
        ),
        (
            [
                status("a", "2:x/1", "1:y/1", kind="semaphore", limit=2),
                status("b", "y/1", "x/1"),
            ],
            [
                "'x/1' (host:1) holds 2 permits of it, and nobody else will release enough",
                "Take 'a', 'b' in the same order",
            ],
        ),
        (
            [status("a", "r:x/1", "y/1 r:z/1"), status("b", "z/1", "x/1")],
            ["'y/1' (host:1) waits for it before", "'x/1' (host:1) reads it", "Take 'a', 'b' in"],
        ),
    ],
    ids=["itself", "readers", "permits", "queue"],
)
def test_deadlock_text_states_how_each_task_blocks_the_next(
    statuses: list[Status], expected: list[str]
) -> None:
    """It says in what way each is in the way of another, and what helps."""
    (deadlock,) = cycles(statuses)
    for text in expected:
        assert text in str(deadlock)


def test_lasting_drops_acquisitions_and_grants_not_seen_twice() -> None:
    """It is one while the same acquisitions wait for the same grants."""
    before = [status("a", "x/1", "y/1"), status("b", "y/1", "x/1")]
    assert lasting(before, before) == before
    again = [status("a", "x/1", "y/1"), before[1]]
    assert cycles(again)
    assert cycles(lasting(before, again)) == []
    assert lasting([], before) == [status("a", ""), status("b", "")]


def test_lasting_after_a_permit_was_released_finds_no_cycle() -> None:
    """Where permits were released in between, who had one of the others proves nothing."""
    y, x = status("b", "y/1", "x/1"), status("c", "y/1", "z/1")

    def permits(second: Participant) -> Status:
        return replace(semaphore, holders=(semaphore.holders[0], second))

    semaphore = status("a", "1:x/1 1:z/1", "1:y/1", kind="semaphore", limit=2)
    before, again = [semaphore, y, x], [permits(party("z/1", place=0, permits=1)), y, x]
    assert cycles(before)
    assert cycles(again)
    assert cycles(lasting(before, again)) == []


def test_lasting_with_waiters_that_joined_meanwhile_keeps_the_cycle() -> None:
    """That others join does not hide what lasts."""
    before = [status("a", "m/1", "n/1"), status("b", "n/1", "m/1")]
    joined = replace(before[0], waiters=(*before[0].waiters, party("c/1", place=2)))
    again = [joined, before[1], status("c", "c/1", "n/2")]
    assert cycles(lasting(before, again)) == cycles(before)


_MANY = 3000


def _to(many: int) -> range:
    return range(1, many + 1)


@pytest.mark.parametrize(
    ("made", "sizes"),
    [
        (
            lambda many: [status(f"{n}", f"x/{n}", f"x/{n % many + 1}") for n in _to(many)],
            [_MANY],
        ),
        (lambda many: [status(f"{n}", f"x/{n}", f"x/{n + 1}") for n in _to(many)], []),
        (
            lambda many: [
                status("a", "x/1", " ".join(f"x/{n + 1}" for n in _to(many))),
                status("b", f"x/{many}", "x/1"),
            ],
            [2],
        ),
        (
            lambda many: [
                status("a", *(" ".join(f"r:{c}/{n}" for n in _to(many)) for c in "xy")),
                status("b", "y/1", " ".join(f"x/{n}" for n in _to(many))),
            ],
            [],
        ),
        (
            lambda many: [
                status("a", *(" ".join(f"{h}{n}" for n in _to(many)) for h in ("r:x/", "y/"))),
                status("b", "y/1", " ".join(f"x/{n}" for n in _to(many))),
            ],
            [2],
        ),
    ],
    ids=["ring", "chain", "queue", "readers", "readers and writers"],
)
def test_cycles_of_thousands_of_tasks_are_found_in_time(
    made: Callable[[int], list[Status]], sizes: list[int]
) -> None:
    """The work that it takes is in proportion to those who wait: else this would take hours."""
    few, twice = (_lines_for(made(many)) for many in (100, 200))
    assert few > 100
    assert twice < 2.1 * few
    # Made here: every process of a run imports this module.
    assert [len(each.cycle) for each in cycles(made(_MANY))] == sizes


def _lines_for(statuses: list[Status]) -> int:
    """How many lines of the search run, each as often as it runs."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace if frame.f_code.co_filename == reduction.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        cycles(statuses)
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("seed", range(50))
def test_cycles_of_random_statuses_match_a_simulation_of_releases(seed: int) -> None:
    """There is a circle exactly where tasks are left that nothing can let on, however one tries."""
    dice = random.Random(seed)
    tasks = [f"t/{number}" for number in range(1, 7)]
    names = "abcde"
    holds = {name: dice.choice(tasks) for name in names if dice.random() < 0.8}
    wants = {task: dice.choice(names) for task in tasks if dice.random() < 0.7}
    queues = {name: [task for task in tasks if wants.get(task) == name] for name in names}
    for queue in queues.values():
        dice.shuffle(queue)
    statuses = [
        status(name, holds.get(name, ""), " ".join(queue))
        for name, queue in queues.items()
        if queue or name in holds
    ]
    # Play it: whoever waits for nothing lets go of all, and whoever is first in a queue enters.
    going = [task for task in tasks if task not in wants]
    held, waiting = dict(holds), {name: list(queue) for name, queue in queues.items()}
    while True:
        held = {name: task for name, task in held.items() if task not in going}
        entered = [name for name in names if name not in held and waiting[name]]
        if not entered:
            break
        going += [waiting[name].pop(0) for name in entered]
    left = {task for queue in waiting.values() for task in queue}
    assert bool(cycles(statuses)) == bool(left)
    assert {task for each in found(*statuses) for task in each} <= left
    assert {name for _, name in stuck_on(statuses)} == {n for n in names if waiting[n]}
