"""The chaos's checker, where several servers vote: what is no excuse there, and what is.

The histories are written by hand, as in `tests.test_checker`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.chaos.faults import ATTACKS, QUORUM_LONGEST, Fault, hit
from tests.chaos.history import Event
from tests.test_checker import (
    OF_SEVERAL,
    STARTED,
    A,
    B,
    Story,
    asks,
    at,
    ends,
    enters,
    gives_back,
    leaves,
    ns,
    of,
    queued,
    rules_broken,
    stall,
)

VOTING = at(0.0, "conductor", "began", **(STARTED | {"store": "quorum"}))
"""Three of them."""


def waiter(attempt: str) -> str:
    """Its text, as the servers have it."""
    number, _, who = attempt.split("/")
    return f"x1000:{client(who)}:{number}"


def client(who: str) -> str:
    """That of a process."""
    return f"client {who}"


def who_of(attempt: str) -> str:
    """Its process."""
    return attempt.rpartition("/")[2]


def waits(t: float, attempt: str) -> list[Event]:
    """The store is asked for an attempt."""
    who = who_of(attempt)
    return [
        at(t, who, "opened", client=client(who)),
        of(t, attempt, "waits", w=waiter(attempt)),
    ]


def stands(t: float, attempt: str, ticket: int, *servers: int) -> list[Event]:
    """These servers, asked just before, have answered that it has a place there."""
    return waits(t - 0.001, attempt) + [
        at(
            *(t, who_of(attempt), "stands"),
            w=waiter(attempt),
            server=server,
            since=ns(t - 0.001),
            ticket=ticket,
        )
        for server in servers
    ]


def votes(t: float, attempt: str, granted: float, *servers: int) -> list[Event]:
    """It hears that these servers have given it their votes then."""
    return waits(t - 0.001, attempt) + [
        at(
            *(t, who_of(attempt), "voted"),
            w=waiter(attempt),
            server=server,
            granted=ns(granted) // 1000,
        )
        for server in servers
    ]


def broken(begin: float, end: float, kind: str, *servers: int, target: str = "all") -> Event:
    """The conductor broke these servers, or what leads there from a slot."""
    return at(end, "conductor", "fault", kind=kind, target=target, since=ns(begin), servers=servers)


def taking(t: float, attempt: str, *servers: int) -> list[Event]:
    """Another process asks these servers to take their votes from it."""
    return [
        at(t, "2.0", "breaking", n="lock", fences=[1], id=1),
        *(at(t, "2.0", "taking", n="lock", w=waiter(attempt), server=each) for each in servers),
    ]


def seen(t: float, attempt: str, *servers: int, since: float | None = None) -> Event:
    """It is seen at these servers: in line, or with a vote since then."""
    text = waiter(attempt)
    names = [f"{server}/x:{{lock}}" for server in servers]
    held = {} if since is None else {name: [f"{text}:{ns(since) // 1000}"] for name in names}
    line = {name: [text] for name in names} if since is None else {}
    now = ns(t) // 1000
    return at(t, "conductor", "standing", since=ns(t), now=now, holders=held, queues=line)


CLOCKS = seen(0.1, A)
"""All have the same."""

OVERTAKEN: Sequence[Event | Sequence[Event]] = [
    *(asks(1.0, A), queued(1.1, A)),
    asks(1.2, B),
    stands(1.21, B, 1200, 0, 1, 2),
    enters(1.3, B, 11, 2.3),
    leaves(1.4, B),
    gives_back(1.4, B, 11),
    enters(1.5, A, 12, 2.5),
    leaves(1.6, A),
]
"""B asks after A, and enters before it; where A stood is missing."""

LOST: Sequence[Event | Sequence[Event]] = [
    asks(1.0, A),
    enters(1.1, A, 10, 2.1),
    of(2.1, A, "told"),
    leaves(2.1, A, "LeaseLost"),
]
LOST_AT_ONCE: Sequence[Event | Sequence[Event]] = [
    *(asks(1.0, A), enters(1.1, A, 10, 2.9)),
    of(1.5, A, "told"),
    leaves(1.5, A, "LeaseLost"),
]
"""Within its lease."""
RUN_TWICE: Sequence[Event | Sequence[Event]] = [
    CLOCKS,
    asks(1.0, A, every=2.0),
    enters(2.2, A, 10, 3.1),
    leaves(2.3, A),
    asks(2.2, B, every=2.0),
    enters(3.3, B, 11, 4.3),
    votes(3.2, B, 3.1, 0, 1),
    leaves(3.4, B),
]
RELEASED: Sequence[Event | Sequence[Event]] = [
    CLOCKS,
    asks(1.0, A, timeout=0.2),
    stands(1.1, A, 1000, 0, 1, 2),
    queued(1.1, A),
    ends(1.2, A, "AcquireTimeout"),
    at(1.3, "0.0", "over", w=waiter(A)),
]
CLOSED: Sequence[Event | Sequence[Event]] = [
    waits(1.0, A)[0],
    asks(1.0, A),
    of(1.1, A, "cancelling"),
    ends(1.1, A, "cancelled"),
    at(4.0, "0.0", "closing"),
    at(9.0, "conductor", "key", key="1/x:line", ttl=9, holders=(), waiters=(client("0.0"),)),
]

RIGHT: dict[str, Story] = {
    "overtaken_who_stood_at_one": [*OVERTAKEN, stands(1.1, A, 1000, 0)],
    "overtaken_whose_place_was_lost_at_most": [
        *OVERTAKEN,
        stands(1.1, A, 1000, 0, 1, 2),
        broken(1.15, 1.2, "cut", 1, target="0"),
        broken(1.15, 1.2, "freeze", 2),
    ],
    "overtaken_by_one_with_a_lower_ticket": [
        *(asks(1.0, A), queued(1.0, A), stands(1.03, A, 1020, 0, 1, 2)),
        asks(1.04, B),
        stands(1.05, B, 1010, 0, 1, 2),
        enters(1.3, B, 11, 2.3),
        leaves(1.4, B),
        gives_back(1.4, B, 11),
        enters(1.5, A, 12, 2.5),
        leaves(1.6, A),
    ],
    "a_lower_ticket_of_one_that_was_stopped": [
        *(asks(1.0, A), stands(1.1, A, 2000, 0, 1), queued(1.1, A)),
        *(stall(1.1, 1.4, "1.0"), asks(1.2, B), stands(1.45, B, 1000, 0, 1), queued(1.5, B)),
        *(ends(1.6, A, "ClientClosed"), ends(1.6, B, "ClientClosed")),
        *(at(1.55, "0.0", "closing"), at(1.55, "1.0", "closing")),
    ],
    "a_ticket_before_whoever_asked_but_had_none_yet": [
        *(stall(1.0, 1.3, "0.0"), asks(1.0, A), stands(1.3, A, 2000, 0, 1), queued(1.3, A)),
        *(asks(1.2, B), stands(1.21, B, 1900, 0, 1), queued(1.21, B)),
        *(at(1.55, "0.0", "closing"), at(1.55, "1.0", "closing")),
        *(ends(1.6, A, "ClientClosed"), ends(1.6, B, "ClientClosed")),
    ],
    "not_at_one_that_is_broken": [
        *(asks(1.0, A), stands(1.1, A, 1000, 0, 2), queued(1.1, A)),
        broken(1.5, 2.0, "freeze", 1),
        *(enters(3.0, A, 12, 4.0), leaves(3.1, A)),
    ],
    "lost_without_a_majority": [
        *LOST,
        broken(0.5, 3.0, "freeze", 0),
        broken(1.5, 1.9, "cut", 2, target="0"),
    ],
    "lost_at_once_where_most_have_forgotten": [
        *LOST_AT_ONCE,
        broken(1.2, 1.3, "crash_most", 1, 2),
    ],
    "an_error_without_a_majority": [
        asks(1.0, A),
        broken(1.0, 2.0, "freeze_most", 1, 2),
        ends(3.0, A, "StoreError"),
    ],
    "taken_away": [
        CLOCKS,
        *(asks(1.0, A), votes(1.05, A, 1.04, 0, 1, 2)),
        enters(1.1, A, 10, 2.1),
        *(asks(1.2, B), queued(1.3, B)),
        taking(1.4, A, 0, 1, 2),
        enters(1.401, B, 11, 2.4),
        at(1.402, "2.0", "broke", n="lock", id=1),
        of(1.403, A, "told"),
        leaves(1.404, A, "LeaseLost"),
        leaves(1.5, B),
    ],
    "run_twice_but_with_a_vote_of_the_period_before": [
        *RUN_TWICE,
        votes(2.1, A, 1.99, 0),
        votes(2.1, A, 2.01, 1),
    ],
    "run_twice_as_far_as_is_known": [*RUN_TWICE, votes(2.1, A, 0, 0), votes(2.1, A, 2.01, 1)],
    "a_ghost_at_one_that_is_cut_off": [
        *RELEASED,
        broken(1.25, 1.4, "cut_off", 2),
        *(seen(1.4, A, 2), seen(2.5, A, 2)),
    ],
    "left_at_one_that_was_broken_then": [*CLOSED, broken(3.5, 3.9, "freeze", 1)],
    "left_at_one_that_was_restarted_with_that": [*CLOSED, broken(3.0, 3.1, "crash_saved", 1)],
    "all_vote": [at(9.0, "0.0", "servers", states=["up", "up", "up"])],
}

WRONG: dict[str, Story] = {
    "order-overtaken_at_all": [*OVERTAKEN, stands(1.1, A, 1000, 0, 1, 2)],
    "order-overtaken_at_a_majority": [*OVERTAKEN, stands(1.1, A, 1000, 0, 2)],
    "order-overtaken_with_one_broken": [
        *OVERTAKEN,
        stands(1.1, A, 1000, 0, 1, 2),
        broken(1.15, 1.2, "flush", 2),
    ],
    "order-overtaken_where_it_is_back": [
        *OVERTAKEN,
        broken(0.2, 0.3, "pause", 1),
        stands(1.1, A, 1000, 0),
        stands(1.4 - 0.25, A, 1000, 0),
        stands(1.19, A, 1000, 2),
    ],
    "tickets-later_and_lower": [
        *(asks(1.0, A), stands(1.1, A, 2000, 0, 1), queued(1.1, A)),
        *(asks(1.2, B), stands(1.21, B, 1000, 0, 1), queued(1.21, B)),
        *(at(1.55, "0.0", "closing"), at(1.55, "1.0", "closing")),
        *(ends(1.6, A, "ClientClosed"), ends(1.6, B, "ClientClosed")),
    ],
    "everywhere-not_at_one": [
        *(asks(1.0, A), stands(1.1, A, 1000, 0, 2), queued(1.1, A)),
        *(enters(3.0, A, 12, 4.0), leaves(3.1, A)),
    ],
    "everywhere-where_another_is_broken": [
        *(asks(1.0, A), stands(1.1, A, 1000, 0), queued(1.1, A)),
        broken(1.5, 2.0, "freeze", 1),
        *(enters(3.0, A, 12, 4.0), leaves(3.1, A)),
    ],
    "losses-one_broken": [*LOST, broken(0.5, 3.0, "freeze", 0)],
    "losses-one_broken_in_two_ways": [
        *LOST,
        broken(0.5, 3.0, "freeze", 0),
        broken(1.5, 1.9, "cut", 0, target="0"),
    ],
    "losses-one_after_the_other": [
        *(asks(0.1, A), enters(0.2, A, 10, 20.0)),
        broken(1.0, 1.1, "crash", 0),
        broken(12.0, 12.1, "crash", 1),
        of(20.0, A, "told"),
        leaves(20.0, A, "LeaseLost"),
    ],
    "losses-one_was_emptied": [*LOST, broken(1.3, 1.3, "flush", 1)],
    "losses-at_once_where_one_has_forgotten": [*LOST_AT_ONCE, broken(1.2, 1.3, "crash", 1)],
    "losses-at_once_where_most_only_stood_still": [
        *LOST_AT_ONCE,
        broken(1.2, 1.3, "freeze_most", 1, 2),
    ],
    "losses-taken_before_it_had_them": [
        CLOCKS,
        *(asks(1.0, A), votes(1.05, A, 1.04, 0, 1)),
        taking(1.1, A, 0, 1),
        at(1.11, "2.0", "broke", n="lock", id=1),
        votes(1.2, A, 1.19, 0, 1),
        enters(1.25, A, 12, 2.2),
        of(1.5, A, "told"),
        leaves(1.5, A, "LeaseLost"),
    ],
    "errors-one_broken": [
        asks(1.0, A),
        broken(1.0, 2.0, "freeze", 1),
        ends(3.0, A, "StoreError"),
    ],
    "exclusion-most_were_restarted_empty": [
        *(asks(1.0, A), enters(1.1, A, 10, 2.1)),
        broken(1.2, 1.3, "crash_most", 0, 1, 2),
        *(asks(1.4, B), enters(1.5, B, 11, 2.5)),
        *(leaves(1.6, A), leaves(1.7, B)),
    ],
    "idleness-one_broken": [
        *(asks(1.0, A), enters(1.1, A, 10, 2.1), leaves(1.2, A), gives_back(1.2, A, 10)),
        *(asks(1.1, B), stands(1.15, B, 1100, 0, 1, 2), queued(1.15, B)),
        broken(0.5, 5.0, "freeze_long", 2),
        *(enters(3.0, B, 12, 4.0), leaves(3.1, B)),
    ],
    "periods-twice_with_votes_of_one": [*RUN_TWICE, votes(2.1, A, 2.01, 0, 1)],
    "ghosts-at_one_that_is_reached": [
        *RELEASED,
        broken(1.25, 1.4, "cut_off", 1),
        *(seen(1.4, A, 2), seen(2.5, A, 2)),
    ],
    "left_over-at_one_that_was_restarted_empty": [*CLOSED, broken(-9.0, -8.0, "crash", 1)],
    "left_over-though_it_was_reached": [*CLOSED, broken(3.0, 3.9, "freeze", 2)],
    "final-one_is_silent": [at(9.0, "0.0", "servers", states=["up", "silent", "up"])],
}


@pytest.mark.parametrize("story", RIGHT)
def test_right(story: str) -> None:
    """What a majority of the servers cannot be asked for is no fault."""
    assert rules_broken([VOTING, *RIGHT[story]]) == set()


@pytest.mark.parametrize("story", WRONG)
def test_wrong(story: str) -> None:
    """What a minority of them does is no excuse; one rule tells of that, and no other."""
    assert rules_broken([VOTING, *WRONG[story]]) == {story.partition("-")[0]}


def test_every_rule_of_several_servers_is_tested() -> None:
    """There is a wrong history for each."""
    assert {story.partition("-")[0] for story in WRONG} >= OF_SEVERAL


@pytest.mark.parametrize("store", ["quorum", "quorum5"])
def test_whom_a_fault_hits(store: str) -> None:
    """A minority, but for the faults that say otherwise, and for one process now and then."""
    servers = ATTACKS[store].servers
    minority = (servers - 1) // 2

    def hits(kind: str, target: str) -> set[int]:
        those = [hit(Fault(0.0, kind, target, 1.0, dice), servers) for dice in range(300)]
        assert all(0 <= server < servers for each in those for server in each)
        return {len({*each}) for each in those}

    assert hits("crash", "all") == {*range(1, minority + 1)}
    assert hits("crash_most", "all") == {*range(minority + 1, servers + 1)}
    assert hits("cut", "1") == {*range(1, minority + 1), servers}
    assert hits("kill", "1") == {0}
    assert hit(Fault(0.0, "cut", "1", 1.0, 1), 0) == ()


def test_the_longest_ttl_is_short() -> None:
    """The runs draw none that is longer; and what was emptied votes again within a run."""
    assert QUORUM_LONGEST == 2.0
