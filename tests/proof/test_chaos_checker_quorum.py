"""The checker of the chaos tests with several voting servers: which excuses count there.

The histories are written by hand, as in `tests.proof.test_chaos_checker`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.proof.chaos.choices import (
    OF_A_QUORUM,
    SHARED_TTL,
    draw,
    draw_run,
    final_choice,
    places,
)
from tests.proof.chaos.faults import ATTACKS, FORGETS, QUORUM_LONGEST, QUORUM_SERVER, Fault, hit
from tests.proof.chaos.history import Event
from tests.proof.test_chaos import RUNS
from tests.proof.test_chaos_checker import (
    OF_SEVERAL,
    STARTED,
    A,
    B,
    C,
    D,
    Story,
    asks,
    at,
    ends,
    enters,
    gives_back,
    gone,
    killed,
    leaves,
    ns,
    of,
    queued,
    renewed,
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
        at(t, who, "opened", client=client(who), since=ns(t)),
        of(t, attempt, "waits", w=waiter(attempt)),
    ]


def stands(
    t: float, attempt: str, ticket: int, *servers: int, since: float | None = None
) -> list[Event]:
    """These servers, asked just before or then, have answered that it has a place there."""
    since = t - 0.001 if since is None else since
    return waits(since, attempt) + [
        at(
            *(t, who_of(attempt), "stands"),
            w=waiter(attempt),
            server=server,
            since=ns(since),
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
    """The conductor broke these servers, or the way to them from a slot."""
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


def breaks(begin: float, end: float, fence: int) -> list[Event]:
    """Process 2.0 breaks the grant with this fence, and has an answer."""
    return [
        at(begin, "2.0", "breaking", n="lock", fences=[fence], id=1),
        at(end, "2.0", "broke", n="lock", id=1),
    ]


def takes(t: float, attempt: str, *servers: int) -> list[Event]:
    """For that it asks these servers."""
    text = waiter(attempt)
    asked = [at(t, "2.0", "taking", n="lock", w=text, server=each) for each in servers]
    return waits(t - 0.3, attempt) + asked


def marked(t: float, who: str, fence: int, *servers: int) -> list[Event]:
    """These servers, asked just before, have said that message 1 is done."""
    name = "once:message 1"
    return [
        at(t, who, "marked", n=name, server=each, fence=fence, since=ns(t - 0.001))
        for each in servers
    ]


def begins(t: float, attempt: str, fence: int, end: float, until: float) -> list[Event]:
    """A body is to handle message 1, with a lease ``until`` then."""
    return [
        of(t, attempt, "begins", message=1, fence=fence, deadline=ns(until)),
        of(end, attempt, "stops"),
    ]


def told(t: float, attempt: str, kind: str = "knows") -> Event:
    """That message 1 is done, by itself or by another."""
    return of(t, attempt, kind, message=1)


def looked(begin: float, end: float, who: str, fence: int, leader: str) -> Event:
    """A process has asked for the leader, and was answered; or, without a fence, why not."""
    outcome, value = ("ok", leader) if fence else (leader, "")
    since = ns(begin)
    return at(end, who, "looked", since=since, fence=fence, value=value, outcome=outcome)


def kept(t: float, who: str, fence: int, *servers: int) -> list[Event]:
    """These servers have said that they have the leader's value."""
    name, since = "elected:primary", ns(t - 0.001)
    return [at(t, who, "kept", n=name, server=each, count=fence, since=since) for each in servers]


def handed(t: float, attempt: str, votes_of: str) -> list[Event]:
    """It has the lock by the votes of another of its client."""
    who = who_of(attempt)
    return [*waits(t - 0.01, attempt), at(t, who, "handed", w=waiter(attempt), of=waiter(votes_of))]


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
HEARD_OF_LATE: Sequence[Event | Sequence[Event]] = [
    *(CLOCKS, asks(1.0, A), votes(2.05, A, 1.04, 0, 1), enters(2.1, A, 10, 2.9)),
    *(of(2.2, A, "told"), leaves(2.2, A, "LeaseLost")),
]
"""Lost at once, a second after its votes were given: its process stood still in between."""
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
HANDED_ON: Sequence[Event | Sequence[Event]] = [
    CLOCKS,
    *(asks(1.0, A), votes(1.05, A, 1.04, 0, 1, 2), enters(1.1, A, 10, 2.1), leaves(1.2, A)),
    at(1.21, "0.0", "over", w=waiter(A)),
    *(asks(1.1, D), handed(1.2, D, A), enters(1.2, D, 11, 3.1)),
]
"""What becomes of D is missing."""
TAKEN_FIRST: Sequence[Event | Sequence[Event]] = [
    CLOCKS,
    asks(1.0, A),
    taking(2.6, A, 0, 1, 2),
    at(2.61, "2.0", "broke", n="lock", id=1),
    *(stands(1.05, A, 1000, 0, 1, 2), enters(3.0, A, 12, 5.0), leaves(3.1, A)),
]
"""They were taken before it entered; which votes it has is missing."""
STOPPED_AND_CLOSED: Sequence[Event | Sequence[Event]] = [
    CLOCKS,
    *(asks(1.0, A), votes(1.05, A, 1.04, 0, 1), enters(1.1, A, 10, 2.1), leaves(1.2, A)),
    broken(1.01, 6.0, "freeze_long", 2),
    *(seen(9.0, A, 2, since=8.9), seen(9.2, A, 2, since=8.9)),
]
"""It is seen at a server that has answered it late."""
RESTORED: Sequence[Event | Sequence[Event]] = [
    CLOCKS,
    *(asks(1.0, A), votes(1.05, A, 1.04, 0, 1), enters(1.1, A, 10, 2.1), leaves(1.2, A)),
    *(stall(10.9, 11.4, "0.0"), seen(11.3, A, 2, since=11.0)),
]
"""A server votes for it again, and its process is stopped then."""
CLOSED: Sequence[Event | Sequence[Event]] = [
    waits(1.0, A)[0],
    asks(1.0, A),
    of(1.1, A, "cancelling"),
    ends(1.1, A, "cancelled"),
    at(4.0, "0.0", "closing"),
    at(9.0, "conductor", "key", key="1/x:line", ttl=9, holders=(), waiters=(client("0.0"),)),
]

READ: Sequence[Event | Sequence[Event]] = [
    *(asks(1.0, A, shared=True), asks(1.0, B, shared=True)),
    *(enters(1.1, A, 10, 2.1), enters(1.1, B, 10, 2.1)),
]
"""Two readers have one fence."""
BROKEN_BY_FENCE: Sequence[Event | Sequence[Event]] = [
    CLOCKS,
    *(asks(1.0, A, shared=True), asks(1.0, B, shared=True)),
    *(enters(1.1, A, 10, 3.5), enters(1.1, B, 10, 3.5)),
    *(breaks(1.5, 1.6, 10), takes(1.5, A, 0, 1, 2)),
    of(1.6, A, "told"),
    leaves(1.6, A, "LeaseLost"),
]
"""What became of B is missing."""
READ_ON: Sequence[Event | Sequence[Event]] = [leaves(3.0, B)]
READERS_WAIT: Sequence[Event | Sequence[Event]] = [
    *(asks(1.0, A, shared=True), queued(1.1, A)),
    *(asks(1.2, B, shared=True), stands(1.21, B, 1200, 0, 1, 2)),
    *(votes(1.3, B, 1.29, 0, 1), enters(1.3, B, 12, 2.3)),
    *(leaves(1.5, A), leaves(1.5, B)),
]
"""A waits before B; where it stands is missing, and when it has its votes."""
GAVE_UP: Sequence[Event | Sequence[Event]] = [
    *(queued(1.1, A), stands(1.1, A, 1000, 0, 1, 2)),
    *(asks(1.2, B, shared=True), stands(1.21, B, 1200, 0, 1, 2)),
    *(enters(1.3, B, 12, 2.3), leaves(1.4, B), gives_back(1.4, B, 12)),
]
"""B reads meanwhile; what A wanted is missing, and when it gave up."""
DONE: Sequence[Event | Sequence[Event]] = [
    *(begins(1.0, A, 1, 1.1, 2.0), of(1.1, A, "handling", message=1, fence=1)),
    *(marked(1.2, "0.0", 1, 0, 1), told(1.3, A, "handled")),
]
"""Two of three know."""
AGAIN: Sequence[Event | Sequence[Event]] = begins(9.0, B, 2, 9.1, 10.0)
NOBODY_KNOWS: Sequence[Event | Sequence[Event]] = [
    of(1.0, A, "wants", message=1),
    of(7.0, A, "apart", outcome="StoreError"),
]
LED: Sequence[Event | Sequence[Event]] = [
    *(asks(1.0, A), enters(1.1, A, 10, 2.1), leaves(1.2, A)),
    *(asks(1.3, B), enters(1.3, B, 11, 9.3), leaves(5.0, B)),
]

RIGHT: dict[str, Story] = {
    "readers_with_one_fence": [*READ, leaves(1.5, A), leaves(1.6, B)],
    "a_reader_that_asked_later_with_a_lower_fence": [
        *(asks(1.0, A, shared=True), enters(1.1, A, 12, 2.1)),
        *(asks(1.2, B, shared=True), enters(1.3, B, 11, 2.3)),
        *(leaves(1.5, A), leaves(1.6, B)),
    ],
    "a_writer_after_the_last_of_two_readers_with_one_fence": [
        *(*READ, renewed(1.9, A, 10, 4.0), stall(1.2, 3.0, "1.0")),
        *(leaves(3.0, B, "LeaseLost"), leaves(3.5, A), gives_back(3.5, A, 10)),
        *(asks(3.2, C), enters(3.6, C, 11, 4.6), leaves(3.7, C)),
    ],
    "broken_by_a_fence_that_two_have": [
        *(*BROKEN_BY_FENCE, takes(1.5, B, 0, 1, 2)),
        *(of(1.7, B, "told"), leaves(1.7, B, "LeaseLost")),
    ],
    "broken_by_a_fence_that_another_has_later": [
        CLOCKS,
        *(asks(1.0, A, shared=True), enters(1.1, A, 10, 3.5)),
        *(breaks(1.5, 1.6, 10), takes(1.5, A, 0, 1, 2)),
        *(of(1.6, A, "told"), leaves(1.6, A, "LeaseLost")),
        *(asks(1.0, B, shared=True), enters(1.55, B, 10, 3.5), leaves(3.0, B)),
    ],
    "broken_by_a_fence_by_one_that_reaches_others": [
        *(*BROKEN_BY_FENCE, *READ_ON),
        broken(1.2, 1.2, "cut", 0, target="1"),
        broken(1.2, 1.2, "cut", 2, target="2"),
    ],
    "a_reader_that_has_its_vote_first_and_hears_of_it_last": [
        *(*READERS_WAIT, stands(1.1, A, 1000, 0, 1, 2)),
        *(votes(1.4, A, 1.25, 0, 1), enters(1.4, A, 13, 2.4)),
    ],
    "a_reader_that_has_its_vote_later_where_it_came_later": [
        *(*READERS_WAIT, stands(1.1, A, 1000, 2), stands(1.25, A, 1000, 0, 1)),
        *(votes(1.4, A, 1.39, 0, 1), enters(1.4, A, 13, 2.4)),
    ],
    "a_reader_that_has_its_vote_later_where_it_was_cut_off": [
        *(*READERS_WAIT, stands(1.1, A, 1000, 0, 1, 2)),
        *(votes(1.4, A, 1.39, 0), votes(1.4, A, 1.25, 1), enters(1.4, A, 13, 2.4)),
        broken(1.15, 1.15, "cut", 0, target="0"),
    ],
    "a_reader_that_asked_again_when_it_had_its_vote": [
        *(*READERS_WAIT, stands(1.1, A, 1000, 0, 1, 2)),
        *(votes(1.4, A, 1.2904, 0, 1), enters(1.4, A, 13, 2.4)),
    ],
    "a_reader_that_gave_up_beside_another": [
        *(*GAVE_UP, asks(1.0, A, shared=True, timeout=1.0)),
        ends(2.0, A, "AcquireTimeout"),
    ],
    "a_writer_that_gave_up_before_another_came": [
        *(*GAVE_UP, asks(1.0, A, timeout=0.29)),
        ends(1.31, A, "AcquireTimeout"),
    ],
    "a_writer_that_was_cancelled_before_another_came": [
        *(*GAVE_UP, asks(1.0, A), of(1.25, A, "cancelling")),
        ends(1.31, A, "cancelled"),
    ],
    "a_writer_that_gave_up_and_did_not_stand_at_most": [
        *(*GAVE_UP, asks(1.0, A, timeout=1.0)),
        ends(2.0, A, "AcquireTimeout"),
        broken(1.15, 1.15, "cut", 0, 1, target="0"),
    ],
    "done_once": [*DONE, told(2.0, B), marked(1.9, "1.0", 1, 0, 2)],
    "done_again_as_most_have_forgotten": [*DONE, broken(3.0, 3.1, "crash_most", 0, 1), *AGAIN],
    "done_again_as_one_after_the_other_has_forgotten": [
        *(*DONE, broken(2.0, 2.0, "flush", 0), broken(6.0, 6.1, "crash", 1)),
        *AGAIN,
    ],
    "done_again_as_all_have_forgotten_that_one_was_told_of": [
        *(*DONE, marked(1.2, "0.0", 1, 2), broken(2.0, 2.1, "crash_most", 0, 1, 2)),
        *(begins(3.0, B, 2, 3.1, 4.0), of(3.1, B, "handling", message=1, fence=2)),
        marked(3.2, "1.0", 2, 2),  # and no client was told
        begins(9.0, C, 3, 9.1, 10.0),
    ],
    "done_again_as_it_was_saved_before": [
        *(*DONE, broken(1.1, 1.4, "crash_saved", 0), broken(6.0, 6.1, "crash", 1)),
        *AGAIN,
    ],
    "done_again_as_most_are_told_that_they_are_new": [
        *(*DONE, at(3.0, "2.0", "enrols", server=0), at(3.0, "2.0", "enrols", server=1)),
        *AGAIN,
    ],
    "begun_before_it_was_done": [*DONE, begins(9.0, B, 0, 9.1, 10.0)],
    "begun_before_it_was_told_and_stood_still": [
        *(*DONE, stall(1.25, 1.5, "1.0")),
        begins(1.49, B, 2, 1.6, 2.5),
    ],
    "handled_again_as_most_have_forgotten": [
        *(*DONE, broken(3.0, 3.1, "crash_most", 0, 1)),
        *(of(9.1, B, "handling", message=1, fence=2), marked(9.2, "1.0", 2, 0, 2)),
        told(9.3, B, "handled"),
    ],
    "done_by_another_once_its_lease_was_over": [
        begins(1.0, A, 1, 3.0, 2.0),
        begins(2.1, B, 2, 2.2, 3.1),
    ],
    "nobody_knows_as_one_has_forgotten_and_one_is_gone": [
        *NOBODY_KNOWS,
        *(broken(-20.0, -19.0, "crash", 0), broken(1.0, 7.0, "freeze", 1)),
    ],
    "nobody_knows_as_two_have_forgotten_and_the_other_is_gone": [
        *NOBODY_KNOWS,
        *(broken(-20.0, -19.0, "crash_most", 0, 1), broken(1.0, 7.0, "cut_off", 2)),
    ],
    "nobody_knows_without_a_majority": [*NOBODY_KNOWS, broken(1.0, 6.0, "freeze_most", 1, 2)],
    "nobody_knows_as_it_is_closed": [*NOBODY_KNOWS, at(6.9, "0.0", "closing")],
    "two_look_at_the_same_time": [
        *(*LED, looked(1.28, 1.35, "2.0", 11, B), looked(1.27, 1.4, "1.0", 10, A)),
    ],
    "one_watches_from_before_that": [
        *(*LED, looked(1.38, 1.39, "2.0", 11, B)),
        *(at(1.0, "1.0", "watches", o="w"), at(1.4, "1.0", "saw", o="w", fence=10, value=A)),
    ],
    "a_leader_that_most_do_not_know_any_more": [
        *(*LED, looked(1.5, 1.6, "2.0", 11, B), looked(2.0, 2.1, "1.0", 10, A)),
        *(kept(1.3, "1.0", 11, 0, 1), broken(1.7, 1.7, "flush", 1)),
    ],
    "not_told_who_leads_by_a_client_that_is_closed": [
        at(1.0, "2.0", "closing"),
        looked(4.0, 4.1, "2.0", 0, "ClientClosed"),
    ],
    "not_told_who_leads_without_a_majority": [
        looked(1.0, 6.0, "2.0", 0, "StoreError"),
        broken(0.9, 5.9, "freeze_most", 0, 2),
    ],
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
    "a_lower_ticket_by_clocks_that_answer_late": [
        *(asks(1.0, A), stands(1.01, A, 1020, 0, 1, 2), queued(1.01, A)),
        *(asks(1.06, B), queued(1.15, B)),
        stands(1.07, B, 1010, 0),
        stands(1.15, B, 1010, 1, 2, since=1.06),
        *(ends(1.6, A, "ClientClosed"), ends(1.6, B, "ClientClosed")),
        *(at(1.55, "0.0", "closing"), at(1.55, "1.0", "closing")),
    ],
    "a_lower_ticket_of_one_that_has_just_opened": [
        at(1.1, "1.0", "opened", client="bob", since=ns(0.98)),
        *(asks(1.0, A), stands(1.01, A, 1020, 0, 1, 2), queued(1.01, A)),
        *(asks(1.105, B), stands(1.11, B, 1010, 0, 1, 2), queued(1.11, B)),
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
    "lost_with_a_bare_majority_of_which_one_has_forgotten": [
        *(*LOST_AT_ONCE, votes(1.05, A, 1.04, 0, 1), broken(1.2, 1.3, "flush", 1)),
        broken(0.5, 0.9, "cut", 2, target="1"),
        *(asks(0.6, B, timeout=0.1), ends(0.7, B, "AcquireTimeout")),
    ],
    "lost_with_a_bare_majority_heard_of_after_one_has_forgotten": [
        *HEARD_OF_LATE,
        broken(0.5, 0.9, "cut", 2, target="1"),
        *(asks(0.6, B, timeout=0.1), ends(0.7, B, "AcquireTimeout")),
        broken(1.2, 1.3, "crash", 1),
    ],
    "lost_with_votes_heard_of_after_most_have_forgotten": [
        *(*HEARD_OF_LATE, broken(1.2, 1.3, "crash_most", 1, 2)),
    ],
    "idle_while_a_grant_stands_of_one_that_was_killed": [
        *(CLOCKS, asks(1.0, A), enters(1.1, A, 10, 2.1), leaves(1.2, A)),
        *(asks(1.1, B), waits(1.15, B), killed(1.9, "1.0"), gone(1.95, "1.0")),
        *(asks(1.1, C), stands(1.15, C, 1100, 0, 1, 2), queued(1.15, C)),
        *(seen(2.3, B, 0, 1, since=1.8), seen(2.9, B, 0, 1, since=1.8)),
        *(enters(3.4, C, 12, 4.0), leaves(3.5, C)),
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
    "run_with_a_vote_of_the_period_before_that_was_exchanged": [
        *(CLOCKS, asks(1.0, A, every=2.0), votes(2.1, A, 1.99, 0), votes(2.1, A, 2.01, 1)),
        *(votes(2.15, A, 2.14, 0), enters(2.2, A, 10, 3.1), leaves(2.3, A)),
    ],
    "run_twice_for_a_server_has_forgotten": [
        *(*RUN_TWICE, votes(2.1, A, 2.01, 0, 1), broken(2.4, 2.5, "flush", 1)),
    ],
    "run_twice_as_far_as_is_known": [*RUN_TWICE, votes(2.1, A, 0, 0), votes(2.1, A, 2.01, 1)],
    "a_ghost_at_one_that_is_cut_off": [
        *RELEASED,
        broken(1.25, 1.4, "cut_off", 2),
        *(seen(1.4, A, 2), seen(2.5, A, 2)),
    ],
    "seen_by_whose_votes_another_has_it": [
        *(*HANDED_ON, seen(1.3, A, 0, 1, 2, since=1.04), seen(2.0, A, 0, 1, 2, since=1.04)),
        *(leaves(2.1, D), at(2.11, "0.0", "over", w=waiter(D))),
    ],
    "taken_away_from_who_has_it_by_the_votes_of_another": [
        *(*HANDED_ON, taking(1.5, A, 0, 1, 2), at(1.51, "2.0", "broke", n="lock", id=1)),
        *(of(1.52, D, "told"), leaves(1.53, D, "LeaseLost")),
    ],
    "taken_away_when_it_was_handed_on": [
        *(*HANDED_ON, taking(1.19, A, 0, 1, 2), at(1.22, "2.0", "broke", n="lock", id=1)),
        *(of(1.23, D, "told"), leaves(1.24, D, "LeaseLost")),
    ],
    "renewed_with_votes_that_are_younger_than_a_break": [
        *(*TAKEN_FIRST, stands(2.7, A, 1000, 0, 1), stands(2.8, A, 1000, 0)),
        *(votes(2.8, A, 0, 0), stands(2.8, A, 1000, 1), votes(2.81, A, 0, 1)),
    ],
    "a_ghost_of_a_client_that_was_closed_and_could_not_say_more": [
        *(*STOPPED_AND_CLOSED, broken(8.8, 9.1, "cut", 2, target="0")),
        at(8.95, "0.0", "closing"),
    ],
    "a_vote_of_one_that_was_restarted_with_its_place": [
        *(*RESTORED, broken(1.02, 6.0, "crash_saved", 2)),
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
    "tickets-long_after_it_opened": [
        at(1.1, "1.0", "opened", client="bob", since=ns(0.98)),
        *(asks(2.2, A), stands(2.21, A, 1020, 0, 1, 2), queued(2.21, A)),
        *(asks(2.305, B), stands(2.31, B, 1010, 0, 1, 2), queued(2.31, B)),
        *(ends(2.8, A, "ClientClosed"), ends(2.8, B, "ClientClosed")),
        *(at(2.75, "0.0", "closing"), at(2.75, "1.0", "closing")),
    ],
    "tickets-where_one_answers_late": [
        *(asks(1.0, A), stands(1.01, A, 1020, 0, 1, 2), queued(1.01, A)),
        *(asks(1.07, B), queued(1.15, B)),
        stands(1.08, B, 1010, 0, 1),
        stands(1.15, B, 1010, 2, since=1.07),
        *(ends(1.6, A, "ClientClosed"), ends(1.6, B, "ClientClosed")),
        *(at(1.55, "0.0", "closing"), at(1.55, "1.0", "closing")),
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
    "losses-with_a_bare_majority_and_nobody_was_away": [
        *(*LOST_AT_ONCE, votes(1.05, A, 1.04, 0, 1), broken(1.2, 1.3, "flush", 1)),
    ],
    "losses-with_a_bare_majority_given_after_one_has_forgotten": [
        *HEARD_OF_LATE,
        broken(0.5, 0.9, "cut", 2, target="1"),
        *(asks(0.6, B, timeout=0.1), ends(0.7, B, "AcquireTimeout")),
        broken(1.01, 1.03, "crash", 1),
    ],
    "losses-with_votes_of_unknown_time_after_most_have_forgotten": [
        *(CLOCKS, asks(1.0, A), stands(1.5, A, 1000, 0, 1), queued(1.5, A)),
        broken(1.1, 1.2, "crash_most", 1, 2),
        *(stands(2.05, A, 1000, 0, 1, since=1.9), votes(2.05, A, 0.0, 0, 1)),
        *(enters(2.1, A, 10, 2.9), of(2.2, A, "told"), leaves(2.2, A, "LeaseLost")),
    ],
    "losses-with_votes_given_after_most_have_forgotten": [
        *(*HEARD_OF_LATE, broken(1.01, 1.03, "crash_most", 1, 2)),
    ],
    "losses-with_all_votes_of_which_one_was_forgotten": [
        *(*LOST_AT_ONCE, votes(1.05, A, 1.04, 0, 1, 2), broken(1.2, 1.3, "flush", 1)),
    ],
    "idleness-no_grant_stands": [
        *(CLOCKS, asks(1.0, A), enters(1.1, A, 10, 2.1), leaves(1.2, A)),
        *(asks(1.1, B), waits(1.15, B), killed(1.9, "1.0"), gone(1.95, "1.0")),
        *(asks(1.1, C), stands(1.15, C, 1100, 0, 1, 2), queued(1.15, C)),
        *(enters(3.4, C, 12, 4.0), leaves(3.5, C)),
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
    "order-of_a_periodic_job_where_a_vote_was_given_back": [
        CLOCKS,
        *(asks(1.0, A, every=2.0), stands(1.1, A, 1000, 0, 1, 2), queued(1.1, A)),
        *(asks(1.2, B, every=2.0), stands(1.3, B, 2000, 0, 1, 2), queued(1.3, B)),
        *(votes(2.1, A, 2.09, 2), stands(2.15, A, 1000, 0, 1, 2), queued(2.15, A)),
        *(votes(2.15, B, 2.14, 0, 1, 2), enters(2.2, B, 10, 4.0), leaves(2.3, B)),
        *(votes(4.1, A, 4.09, 0, 1, 2), enters(4.2, A, 11, 6.0), leaves(4.3, A)),
    ],
    "order-of_a_periodic_job": [
        CLOCKS,
        *(asks(1.0, A, every=2.0), stands(1.1, A, 1000, 0, 1, 2), queued(1.1, A)),
        *(asks(1.2, B, every=2.0), stands(1.3, B, 2000, 0, 1, 2), queued(1.3, B)),
        *(votes(2.15, B, 2.14, 0, 1, 2), enters(2.2, B, 10, 4.0), leaves(2.3, B)),
        *(votes(4.1, A, 4.09, 0, 1, 2), enters(4.2, A, 11, 6.0), leaves(4.3, A)),
    ],
    "periods-twice_with_votes_of_one": [*RUN_TWICE, votes(2.1, A, 2.01, 0, 1)],
    "periods-twice_though_a_server_that_had_not_voted_has_forgotten": [
        *(*RUN_TWICE, votes(2.1, A, 2.01, 0, 1), broken(2.4, 2.5, "flush", 2)),
    ],
    "periods-twice_though_a_server_has_forgotten_before_it_voted": [
        *(*RUN_TWICE, votes(2.1, A, 2.01, 0, 1), broken(1.5, 1.6, "flush", 1)),
    ],
    "periods-with_a_vote_of_the_period_before": [
        *(*RUN_TWICE, votes(2.1, A, 1.99, 0), votes(2.1, A, 2.01, 1)),
    ],
    "ghosts-at_one_that_is_reached": [
        *RELEASED,
        broken(1.25, 1.4, "cut_off", 1),
        *(seen(1.4, A, 2), seen(2.5, A, 2)),
    ],
    "ghosts-by_whose_votes_nobody_has_it_any_more": [
        *(*HANDED_ON, seen(1.3, A, 0, 1, 2, since=1.04), seen(2.0, A, 0, 1, 2, since=1.04)),
        *(leaves(1.25, D), at(1.26, "0.0", "over", w=waiter(D))),
    ],
    "losses-of_votes_that_were_taken_before_it_was_handed_on": [
        *(*HANDED_ON, taking(0.05, A, 0, 1, 2), at(0.06, "2.0", "broke", n="lock", id=1)),
        *(of(1.52, D, "told"), leaves(1.53, D, "LeaseLost")),
    ],
    "revivals-with_votes_that_may_be_older_than_a_break": [
        *(*TAKEN_FIRST, stands(2.5, A, 1000, 0, 1), stands(2.8, A, 1000, 0)),
        *(votes(2.8, A, 0, 0), stands(2.8, A, 1000, 1), votes(2.81, A, 0, 1)),
    ],
    "ghosts-of_a_client_that_is_open": [
        *(*STOPPED_AND_CLOSED, broken(8.8, 9.1, "cut", 2, target="0")),
    ],
    "ghosts-of_a_client_that_was_closed_and_was_heard": [
        *(*STOPPED_AND_CLOSED, at(8.95, "0.0", "closing")),
    ],
    "ghosts-at_one_that_was_restarted_empty": [*RESTORED, broken(1.02, 6.0, "crash", 2)],
    "ghosts-at_one_that_had_saved_nothing_of_it": [*RESTORED, broken(1.25, 6.0, "crash_saved", 2)],
    "ghosts-at_another_than_was_restarted": [*RESTORED, broken(1.02, 6.0, "crash_saved", 1)],
    "ghosts-by_a_vote_that_outlasts_its_claim": [
        *(*RESTORED, seen(14.5, A, 2, since=11.0), broken(1.02, 6.0, "crash_saved", 2)),
    ],
    "left_over-at_one_that_was_restarted_empty": [*CLOSED, broken(-9.0, -8.0, "crash", 1)],
    "left_over-though_it_was_reached": [*CLOSED, broken(3.0, 3.9, "freeze", 2)],
    "fences-of_a_reader_and_a_writer": [
        *(asks(1.0, A, shared=True), enters(1.1, A, 10, 2.1), leaves(1.2, A)),
        *(asks(1.0, B), enters(1.3, B, 10, 2.3), leaves(1.4, B)),
    ],
    "fences-a_reader_after_a_writer": [
        *(asks(1.0, A), enters(1.1, A, 12, 2.1), leaves(1.2, A)),
        *(asks(1.0, B, shared=True), enters(1.3, B, 11, 2.3), leaves(1.4, B)),
    ],
    "fences-a_writer_after_a_reader": [
        *(asks(1.0, A, shared=True), enters(1.1, A, 12, 2.1), leaves(1.2, A)),
        *(asks(1.2, B), enters(1.3, B, 11, 2.3), leaves(1.4, B)),
    ],
    "exclusion-a_writer_beside_one_of_two_readers_with_one_fence": [
        *(*READ, renewed(1.9, A, 10, 4.0), stall(1.2, 3.0, "1.0")),
        *(leaves(3.0, B, "LeaseLost"), leaves(3.5, A), gives_back(3.5, A, 10)),
        *(asks(2.1, C), enters(2.2, C, 11, 3.2), leaves(2.3, C)),
    ],
    "tellings-one_of_two_readers_with_one_fence": [
        *(*READ, renewed(1.9, A, 10, 5.0)),
        *(leaves(4.0, A), leaves(4.0, B)),
    ],
    "tellings-one_of_two_that_were_broken_by_one_fence": [*BROKEN_BY_FENCE, *READ_ON],
    "tellings-broken_by_one_fence_where_a_minority_is_away": [
        *(*BROKEN_BY_FENCE, *READ_ON),
        broken(1.2, 1.2, "cut", 2, target="1"),
        broken(1.2, 1.2, "cut", 2, target="2"),
    ],
    "order-of_a_writer_and_a_reader": [
        *(asks(1.0, A), queued(1.1, A), stands(1.1, A, 1000, 0, 1, 2)),
        *(asks(1.2, B, shared=True), stands(1.21, B, 1200, 0, 1, 2)),
        *(enters(1.3, B, 11, 2.3), leaves(1.4, B), gives_back(1.4, B, 11)),
        *(enters(1.5, A, 12, 2.5), leaves(1.6, A)),
    ],
    "order-of_a_reader_and_a_writer": [
        *(asks(1.0, A, shared=True), queued(1.1, A), stands(1.1, A, 1000, 0, 1, 2)),
        *(asks(1.2, B), stands(1.21, B, 1200, 0, 1, 2)),
        *(enters(1.3, B, 11, 2.3), leaves(1.4, B), gives_back(1.4, B, 11)),
        *(enters(1.5, A, 12, 2.5), leaves(1.6, A)),
    ],
    "order-of_readers_at_one_server": [
        *(*READERS_WAIT, stands(1.1, A, 1000, 0, 1, 2)),
        *(votes(1.4, A, 1.39, 0), votes(1.4, A, 1.25, 1, 2), enters(1.4, A, 13, 2.4)),
    ],
    "order-of_readers_where_another_is_cut_off": [
        *(*READERS_WAIT, stands(1.1, A, 1000, 0, 1, 2)),
        *(votes(1.4, A, 1.39, 0), votes(1.4, A, 1.25, 1), enters(1.4, A, 13, 2.4)),
        broken(1.15, 1.15, "cut", 2, target="0"),
    ],
    "starvation-a_writer_that_gave_up": [
        *(*GAVE_UP, asks(1.0, A, timeout=1.0)),
        ends(2.0, A, "AcquireTimeout"),
    ],
    "starvation-a_writer_that_was_cancelled": [
        *(*GAVE_UP, asks(1.0, A), of(1.35, A, "cancelling")),
        ends(1.35, A, "cancelled"),
    ],
    "starvation-a_writer_with_one_broken": [
        *(*GAVE_UP, asks(1.0, A, timeout=1.0)),
        ends(2.0, A, "AcquireTimeout"),
        broken(1.15, 1.2, "crash", 2),
    ],
    "done-begun_after_that": [*DONE, *AGAIN],
    "done-begun_after_another_was_told": [
        *(begins(1.0, A, 1, 1.1, 2.0), of(1.1, A, "handling", message=1, fence=1)),
        *(marked(1.2, "2.0", 1, 0, 2), told(1.3, C)),
        *AGAIN,
    ],
    "done-begun_after_that_where_one_has_not_forgotten": [
        *(*DONE, broken(3.0, 3.1, "crash", 0)),
        *AGAIN,
    ],
    "done-begun_after_that_where_one_has_a_copy": [
        *(*DONE, marked(2.9, "1.0", 1, 2), broken(3.0, 3.1, "crash_most", 0, 1)),
        *AGAIN,
    ],
    "done-begun_after_that_where_one_was_emptied_before": [
        *(broken(0.5, 0.6, "crash", 0), *DONE, broken(3.0, 3.1, "crash", 1)),
        *AGAIN,
    ],
    "done-begun_after_that_where_one_is_back_with_what_it_knew": [
        *(*DONE, broken(3.0, 3.1, "crash_saved", 0), broken(6.0, 6.1, "crash", 1)),
        *AGAIN,
    ],
    "done-begun_after_that_where_one_is_told_that_it_is_new": [
        *(*DONE, at(3.0, "2.0", "enrols", server=0)),
        *AGAIN,
    ],
    "done-begun_after_that_though_it_stood_still_before": [
        *(*DONE, stall(1.0, 1.2, "1.0")),
        begins(1.49, B, 2, 1.6, 2.5),
    ],
    "done-told_where_a_minority_knows": [
        *(begins(1.0, A, 1, 1.1, 2.0), of(1.1, A, "handling", message=1, fence=1)),
        *(marked(1.2, "0.0", 1, 0), told(1.3, A, "handled")),
    ],
    "done-told_before_a_majority_knows": [
        *(begins(1.0, A, 1, 1.1, 2.0), of(1.1, A, "handling", message=1, fence=1)),
        *(marked(1.2, "0.0", 1, 0), told(1.3, A, "handled"), marked(1.4, "0.0", 1, 1, 2)),
    ],
    "done-two_at_a_time": [begins(1.0, A, 1, 1.5, 2.0), begins(1.4, B, 2, 1.6, 2.4)],
    "messages-handled_again_where_one_knew": [
        *(*DONE, broken(3.0, 3.1, "crash", 0)),
        *(of(9.1, B, "handling", message=1, fence=2), marked(9.2, "1.0", 2, 0, 2)),
    ],
    "unknowns-for_no_reason": NOBODY_KNOWS,
    "unknowns-with_one_broken": [*NOBODY_KNOWS, broken(1.0, 7.0, "freeze", 1)],
    "unknowns-where_one_has_forgotten": [*NOBODY_KNOWS, broken(-20.0, -19.0, "crash", 0)],
    "unknowns-where_two_have_forgotten_and_one_of_them_is_gone": [
        *NOBODY_KNOWS,
        *(broken(-20.0, -19.0, "crash_most", 0, 1), broken(1.0, 7.0, "freeze", 1)),
    ],
    "looks-an_earlier_leader": [
        *(*LED, looked(1.4, 1.5, "2.0", 11, B), looked(1.6, 1.7, "1.0", 10, A)),
    ],
    "looks-one_watches_since_then": [
        *(*LED, looked(1.4, 1.5, "2.0", 11, B)),
        *(at(1.6, "1.0", "watches", o="w"), at(1.7, "1.0", "saw", o="w", fence=10, value=A)),
    ],
    "looks-one_has_seen_it_before": [
        *(*LED, at(1.0, "1.0", "watches", o="w"), looked(1.6, 1.7, "2.0", 10, A)),
        at(1.4, "1.0", "saw", o="w", fence=11, value=B),
    ],
    "looks-an_earlier_leader_where_most_know": [
        *(*LED, looked(1.5, 1.6, "2.0", 11, B), looked(2.0, 2.1, "1.0", 10, A)),
        *(kept(1.3, "1.0", 11, 0, 1, 2), broken(1.7, 1.7, "flush", 1)),
    ],
    "looks-an_earlier_leader_that_most_never_knew": [
        *(*LED, looked(1.5, 1.6, "2.0", 11, B), looked(2.0, 2.1, "1.0", 10, A)),
        *(kept(1.3, "1.0", 11, 0), broken(1.7, 1.7, "flush", 1)),
    ],
    "looks-who_did_not_lead": [*LED, looked(1.4, 1.5, "2.0", 11, A)],
    "looks-not_told_for_no_reason": [
        looked(1.0, 6.0, "2.0", 0, "StoreError"),
        broken(0.9, 5.9, "freeze", 0),
    ],
    "looks-not_told_by_a_client_that_is_open": [looked(4.0, 4.1, "2.0", 0, "ClientClosed")],
    "looks-told_late": [looked(1.0, 2.1, "2.0", 0, "ok")],
    "final-one_is_silent": [at(9.0, "0.0", "servers", states=["up", "not voting", "up"])],
}


@pytest.mark.parametrize("story", RIGHT)
def test_checker_of_a_right_quorum_history_finds_no_violation(story: str) -> None:
    """A request that a majority cannot be asked is no fault."""
    assert rules_broken([VOTING, *RIGHT[story]]) == set()


@pytest.mark.parametrize("story", WRONG)
def test_checker_of_a_wrong_quorum_history_finds_exactly_its_rule(story: str) -> None:
    """A fault of a minority is no excuse; one rule finds it, and no other."""
    assert rules_broken([VOTING, *WRONG[story]]) == {story.partition("-")[0]}


def test_wrong_histories_cover_every_quorum_rule() -> None:
    """There is a wrong history for each."""
    assert {story.partition("-")[0] for story in WRONG} >= OF_SEVERAL


@pytest.mark.parametrize("store", ["quorum", "quorum5"])
def test_hit_of_a_fault_is_a_minority_of_servers_unless_it_says_otherwise(store: str) -> None:
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


def test_quorum_longest_ttl_of_chaos_runs_is_two_seconds() -> None:
    """The runs draw none that is longer; and what was emptied may vote again within a run."""
    rng = random.Random(1)
    drawn = [draw(rng, OF_A_QUORUM) for _ in range(3000)]
    drawn += [draw_run(rng) for _ in range(100)]
    drawn += [final_choice(name) for name in places(OF_A_QUORUM)]
    ttls = [choice.options["ttl"] for choice in drawn]
    ttls += [step.seconds for choice in drawn for step in choice.steps if step.what == "extend"]
    assert max(*ttls, SHARED_TTL) <= QUORUM_LONGEST
    run = min((seconds for store, _, seconds in RUNS if store == "quorum"), default=60.0)
    assert all(QUORUM_LONGEST < QUORUM_SERVER[kind].settle < run for kind in FORGETS)
