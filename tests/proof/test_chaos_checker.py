"""The chaos's checker: each rule finds the history that breaks it, and right ones pass.

The histories are written by hand, times in seconds. The attempt ``1/0/2.0`` is the first of task 0
in process ``2.0``, the first one in slot 2.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from aiolock.stores.redis.cluster._slots import slot_of
from tests.proof.chaos import faults, history
from tests.proof.chaos.__main__ import main
from tests.proof.chaos.checker import RULES, check
from tests.proof.chaos.choices import draw
from tests.proof.chaos.history import Event
from tests.proof.chaos.run import NS, Run, Windows

OF_SEVERAL: Final = {"tickets", "everywhere", "starvation", "done", "unknowns", "looks"}
"""Rules for where several servers vote: see `tests.proof.test_chaos_checker_quorum`."""

A, B, C = "1/0/0.0", "1/0/1.0", "1/0/2.0"
D = "2/0/0.0"  # another of A's process
"""An attempt in each of three processes."""

Story = Sequence[Event | Sequence[Event]]

STARTED = {"store": "redis", "seed": "1", "seconds": 10.0, "names": ["lock"]}
BEGAN = Event(0, "conductor", "began", STARTED)


def ns(seconds: float) -> int:
    """Seconds as they are written down."""
    return round(seconds * NS)


def at(t: float, who: str, kind: str, /, **data: object) -> Event:
    """Something that a process wrote down."""
    return Event(ns(t), who, kind, data)


def of(t: float, attempt: str, kind: str, **data: object) -> Event:
    """Something that an attempt's process wrote down about it."""
    return at(t, attempt.rpartition("/")[2], kind, a=attempt, **data)


def enters_path(
    since: float, t: float, attempt: str, path: str, fence: int, *, shared: bool = False
) -> list[Event]:
    """An attempt enters a path lock that it has wanted."""
    until = ns(t + 1)
    return [
        of(since, attempt, "wants_path"),
        of(t, attempt, "has_path", path=path, shared=shared, fence=fence, deadline=until),
    ]


def takes(since: float, t: float, attempt: str, number: int, *, tokens: int) -> Event:
    """A waiter of this attempt's process has taken tokens, since it asked."""
    who = attempt.rpartition("/")[2]
    client = "abc"[int(who[0])]
    return at(t, who, "took", n="api", w=[client, number], tokens=tokens, since=ns(since))


def asks(t: float, attempt: str, **options: object) -> Event:
    """An attempt begins."""
    usual = {
        "n": "lock",
        "ttl": 1.0,
        "timeout": None,
        "renew": True,
        "max_hold": None,
        "max_waiters": None,
        "wait": True,
        "style": "with",
        "final": False,
        "shared": False,
        "permits": 0,
        "limit": 0,
        "every": 0,
        "campaign": False,
    }
    return of(t, attempt, "asked", **(usual | options))


def queued(t: float, attempt: str, asked: float | None = None) -> Event:
    """The store has answered that it waits, to what it was asked just before, if not earlier."""
    since = ns(t - 0.001 if asked is None else asked)
    return of(t, attempt, "queued", n="lock", since=since, ticket=1, place=1)


def enters(t: float, attempt: str, fence: int, until: float, heard: float | None = None) -> Event:
    """A body begins, whose lease ends at ``until``."""
    return of(
        t,
        attempt,
        "entered",
        n="lock",
        fence=fence,
        deadline=ns(until),
        pushed=True,
        heard=ns(t if heard is None else heard),
    )


def renewed(t: float, attempt: str, fence: int, until: float) -> Event:
    """The lease of a body now ends at ``until``."""
    who = attempt.rpartition("/")[2]
    return at(t, who, "deadline", a=attempt, n="lock", fence=fence, deadline=ns(until))


def leaves(t: float, attempt: str, outcome: str = "ok", lasts: float = 0.001) -> list[Event]:
    """A body ends, and its exit."""
    return [of(t, attempt, "left"), of(t + lasts, attempt, "done", outcome=outcome)]


def gives_back(t: float, attempt: str, fence: int, was: int = 1) -> Event:
    """A release, which was called at ``t``, is answered."""
    who = attempt.rpartition("/")[2]
    return at(t + 0.001, who, "given_back", a=attempt, n="lock", fence=fence, since=ns(t), was=was)


def hands_on(
    t: float, attempt: str, fence: int, lasts: float, *, took: float = 0.001, outcome: str = "ok"
) -> list[Event]:
    """A body ends, and its lease is handed on; with an error if there was no answer."""
    answered = [of(t + took, attempt, "detached")] if outcome == "ok" else []
    return [
        of(t, attempt, "left"),
        of(t, attempt, "detaching", n="lock", fence=fence, ttl=lasts),
        *answered,
        of(t + took, attempt, "done", outcome=outcome),
    ]


def ends(t: float, attempt: str, outcome: str) -> Event:
    """An attempt ends that did not enter."""
    return of(t, attempt, "ended", outcome=outcome)


def stall(begin: float, end: float, who: str) -> Event:
    """The event loop of a process did not run."""
    return at(end, who, "stall", since=ns(begin))


def fault(begin: float, end: float, kind: str, target: str) -> Event:
    """The conductor broke something."""
    return at(end, "conductor", "fault", kind=kind, target=target, since=ns(begin))


def killed(t: float, who: str) -> Event:
    """The conductor killed a process."""
    return at(t, "conductor", "killed", who=who, since=ns(t - 0.001))


def gone(t: float, who: str) -> Event:
    """The server has noticed that a process is dead."""
    return at(t, "conductor", "gone", who=who)


def wiped(t: float, fence: int) -> Event:
    """The server lost all data; its earlier grants have lower fences."""
    return at(t, "conductor", "wiped", since=ns(t - 0.001), fence=fence)


def failed_over(
    begin: float, end: float, fence: int, slots: list[list[int]] | None = None
) -> Event:
    """Another server is the master; what was granted before all knew of it has a lower fence."""
    return at(end, "conductor", "failed_over", since=ns(begin), fence=fence, slots=slots)


ELSEWHERE: Final = [[0, slot_of("lock") - 1], [slot_of("lock") + 1, 16383]]
"""All slots but that of the lock."""


W: Final = "x1000:ada:1"
"""A's waiter, as the server has it."""


def waits(t: float, attempt: str) -> list[Event]:
    """The store is asked for an attempt, as `W`."""
    who = attempt.rpartition("/")[2]
    return [at(t, who, "opened", client="ada", since=0), of(t, attempt, "waits", w=W)]


def over(t: float) -> Event:
    """The store has answered the release of `W`."""
    return at(t, "0.0", "over", w=W)


def standing(t: float, fence: int | None = None, *, queued: bool = False) -> Event:
    """The server's state: `W` with this grant, or in the queue, or no waiter; clocks agree."""
    return at(
        t,
        "conductor",
        "standing",
        since=ns(t),
        now=ns(t) // 1000,
        holders={} if fence is None else {"x:{lock}": [f"{W}:{fence}"]},
        queues={"x:{lock}": [W]} if queued else {},
    )


def watching(t: float, kind: str, **data: object) -> Event:
    """Process 2.0 observes the election."""
    return at(t, "2.0", kind, o="w", **data)


def told(story: Story) -> list[Event]:
    """The story as one history, in order."""
    events = [BEGAN]
    for event in story:
        events += [event] if isinstance(event, Event) else event
    return sorted(events, key=lambda event: event.t)


def rules_broken(story: Story) -> set[str]:
    """The rules that the checker says a story breaks."""
    return {violation.rule for violation in check(Run(told(story)))}


HAND_OFF: Story = [
    asks(1.0, A),
    enters(1.1, A, 10, 2.1),
    asks(1.2, B),
    queued(1.3, B),
    leaves(1.5, A),
    gives_back(1.5, A, 10),
    enters(1.6, B, 11, 2.6),
    leaves(1.7, B),
    gives_back(1.7, B, 11),
]

CLOSED_BEFORE_IT_ENTERED: list[Event | Sequence[Event]] = [
    asks(1.0, A, style="await"),
    asks(1.0, B),
    queued(1.02, B),
    at(1.15, A.rpartition("/")[2], "closing"),
    enters(1.2, A, 10, 2.1, heard=1.1),
    enters(1.21, B, 11, 2.2),
    leaves(1.3, A, "ClientClosed"),
    at(1.4, A.rpartition("/")[2], "closed", since=ns(1.15)),
    leaves(1.5, B),
]

RIGHT: dict[str, Story] = {
    "hand_off": HAND_OFF,
    "stopped_past_its_deadline": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        queued(1.3, B),
        enters(2.15, B, 11, 3.15),
        leaves(2.2, B),
        stall(1.2, 5.0, "0.0"),
        of(5.0, A, "told"),
        leaves(5.0, A, "LeaseLost"),
    ],
    "killed_in_its_body": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        queued(1.3, B),
        killed(1.4, "0.0"),
        enters(2.15, B, 11, 3.15),
        leaves(2.2, B),
    ],
    "killed_when_it_was_handed_to": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.15, C),
        queued(1.2, C),
        asks(1.2, B),
        queued(1.3, B),
        leaves(1.4, A),
        gives_back(1.4, A, 10),
        killed(1.5, "2.0"),
        gone(1.51, "2.0"),
        enters(3.0, B, 12, 4.0),
        leaves(3.1, B),
    ],
    "killed_while_it_waits": [asks(1.0, A), queued(1.1, A), killed(1.4, "0.0")],
    "broken": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        queued(1.3, B),
        at(1.4, "2.0", "breaking", n="lock", fences=[10], id=1),
        enters(1.401, B, 11, 2.4),
        at(1.402, "2.0", "broke", n="lock", id=1),
        of(1.403, A, "told"),
        leaves(1.404, A, "LeaseLost"),
        leaves(1.5, B),
    ],
    "wiped": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        wiped(1.3, 20),
        asks(1.4, B),
        enters(1.5, B, 30, 2.5),
        of(1.6, A, "told"),
        leaves(1.6, A, "LeaseLost"),
        leaves(1.7, B),
    ],
    "stopped_between_grant_and_entry": [
        asks(1.0, A),
        queued(1.1, A),
        asks(1.2, B),
        stall(1.2, 3.0, "0.0"),
        enters(2.3, B, 11, 3.3),
        enters(3.0, A, 10, 3.0, heard=1.3),
        leaves(3.001, A, "LeaseLost"),
        leaves(3.1, B),
    ],
    "lost_its_place_when_it_was_stopped": [
        asks(1.0, A),
        queued(1.1, A),
        stall(1.2, 3.0, "0.0"),
        asks(1.3, B),
        enters(2.3, B, 11, 3.3),
        leaves(2.4, B),
        gives_back(2.4, B, 11),
        queued(3.0, A),
        enters(3.1, A, 12, 4.1),
        leaves(3.2, A),
    ],
    "lost_its_place_when_another_of_its_process_let_go_too_late": [
        asks(0.9, D, max_hold=0.8),
        enters(1.0, D, 10, 1.78),
        asks(1.1, A),
        queued(1.2, A),
        asks(1.3, B),
        queued(1.4, B),
        of(1.78, D, "told"),
        leaves(1.8, D, "LeaseLost"),
        gives_back(1.8, D, 10, was=0),
        enters(1.81, B, 11, 2.8),
        leaves(1.9, B),
        gives_back(1.9, B, 11),
        queued(1.82, A),
        enters(1.92, A, 12, 2.9),
        leaves(2.0, A),
        gives_back(2.0, A, 12),
    ],
    "lost_its_place_when_its_link_was_cut": [
        asks(1.0, A),
        queued(1.1, A),
        fault(1.2, 1.2, "cut", "0"),
        asks(1.3, B),
        enters(1.4, B, 11, 2.4),
        leaves(1.5, B),
        enters(1.6, A, 12, 2.6),
        leaves(1.7, A),
    ],
    "not_renewed_and_lost": [
        asks(1.0, A, renew=False),
        enters(1.1, A, 10, 2.1),
        of(2.1, A, "told"),
        leaves(2.2, A, "LeaseLost"),
    ],
    "held_as_long_as_it_may": [
        asks(1.0, A, max_hold=0.8),
        enters(1.1, A, 10, 1.88),
        of(1.88, A, "told"),
        leaves(1.9, A, "LeaseLost"),
    ],
    "renewed_longer_than_its_ttl": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        renewed(1.5, A, 10, 2.5),
        renewed(2.0, A, 10, 3.0),
        leaves(2.9, A),
        gives_back(2.9, A, 10),
    ],
    "released_after_its_deadline_and_found": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        stall(1.2, 2.2, "0.0"),
        leaves(2.2, A, "LeaseLost"),
        gives_back(2.2, A, 10),
        asks(2.3, B),
        enters(2.3, B, 11, 3.3),
        leaves(2.4, B),
    ],
    "gave_up": [
        asks(1.0, A, timeout=0.5),
        queued(1.1, A),
        ends(1.5, A, "AcquireTimeout"),
        asks(1.0, B),
        queued(1.1, B),
        of(1.2, B, "cancelling"),
        ends(1.2, B, "cancelled"),
        asks(1.0, C, wait=False),
        ends(1.1, C, "none"),
    ],
    "readers_beside_each_other": [
        asks(1.0, A, shared=True),
        asks(1.0, B, shared=True),
        enters(1.1, B, 11, 2.1),  # granted after the other, and first to hear of it
        enters(1.2, A, 10, 2.2),
        leaves(1.5, A),
        gives_back(1.5, A, 10),
        leaves(1.6, B),
        gives_back(1.6, B, 11),
        asks(1.65, C),
        enters(1.7, C, 12, 2.7),
        leaves(1.8, C),
    ],
    "a_writer_that_reads_on": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.1, B, shared=True),
        of(1.2, A, "downgrading"),
        enters(1.3, B, 11, 2.3),
        leaves(1.4, A),
        leaves(1.5, B),
    ],
    "as_many_permits_as_there_are": [
        asks(1.0, A, shared=True, permits=2, limit=3),
        asks(1.0, B, shared=True, permits=1, limit=3),
        enters(1.1, A, 10, 2.1),
        enters(1.1, B, 11, 2.1),
        leaves(1.4, A),
        gives_back(1.4, A, 10),
        asks(1.4, C, shared=True, permits=2, limit=3),
        enters(1.5, C, 12, 2.5),
        leaves(1.6, B),
        leaves(1.6, C),
    ],
    "a_job_that_is_closed_for_a_while": [
        asks(1.0, A, every=2.0),
        enters(1.0, A, 1_000_000, 2.0),
        asks(1.1, B, every=2.0),
        queued(1.1, B),
        leaves(1.2, A),
        gives_back(1.2, A, 1_000_000),
        enters(3.5, B, 3_500_000, 4.5),
        leaves(3.6, B),
    ],
    "a_job_in_each_period": [
        asks(1.0, A, every=1.0),
        enters(1.1, A, 3_100_000, 2.1),
        leaves(1.2, A),
        asks(1.0, B, every=1.0),
        enters(2.0, B, 4_000_000, 3.1),
        leaves(2.1, B),
        wiped(2.2, 4_050_000),
        asks(2.25, C, every=1.0),
        enters(2.3, C, 4_100_000, 3.1),
        leaves(2.4, C),
    ],
    "a_meeting": [
        of(1.0, A, "arrives", parties=2),
        of(1.1, C, "arrives", parties=2),
        of(1.2, C, "apart"),
        of(1.3, B, "arrives", parties=2),
        of(1.4, A, "passes"),
        of(1.5, B, "passes"),
    ],
    "a_latch": [
        at(1.0, "0.0", "counts", latch=1, token="a"),
        at(1.1, "1.0", "counts", latch=1, token="b"),
        of(1.2, C, "opens", latch=1, parties=2),
    ],
    "messages": [
        of(1.0, A, "handling", message=1, fence=1),  # and its outcome is unknown
        of(2.0, B, "handling", message=1, fence=2),
        of(2.1, B, "handled", message=1),
        of(2.2, C, "handling", message=2, fence=3),
        of(2.3, C, "handled", message=2),
        wiped(3.0, 3),
        of(4.0, A, "handling", message=2, fence=4),
        of(4.1, A, "handled", message=2),
    ],
    "a_message_that_one_still_handles_who_was_stopped_since": [
        of(2.0, B, "handling", message=1, fence=2),
        of(2.1, B, "handled", message=1),
        of(3.0, A, "handling", message=1, fence=1),
    ],
    "closed_while_the_server_loads": [
        at(0.5, "0.0", "opened", client="ada", since=0),
        fault(1.0, 2.0, "load", "all"),
        at(1.5, "0.0", "closing"),
        at(9.0, "conductor", "key", key="x:queue", ttl=600, holders=(), waiters=("ada",)),
    ],
    "killed_at_a_latch": [
        at(1.0, "0.0", "opened", client="ada", since=0),
        killed(2.0, "0.0"),
        at(9.0, "conductor", "key", key="x:queue", ttl=600, holders=(), waiters=("ada",)),
        at(9.0, "conductor", "key", key="x:holders", ttl=600, holders=("ada", "-"), waiters=()),
    ],
    "handed_on_before_a_waiter": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        queued(1.3, B),
        hands_on(1.4, A, 10, 2.0),
        asks(1.5, C, adopts=10),
        enters(1.6, C, 11, 2.6),
        asks(1.7, D, adopts=10),
        ends(1.8, D, "TokenSpent"),
        leaves(2.0, C),
        gives_back(2.0, C, 11),
        enters(2.01, B, 12, 3.01),
        leaves(2.1, B),
    ],
    "handed_on_to_nobody": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        queued(1.3, B),
        hands_on(1.4, A, 10, 4.0),
        enters(5.5, B, 11, 6.5),
        asks(5.5, C, adopts=10),
        ends(5.6, C, "TokenSpent"),
        leaves(5.7, B),
    ],
    "handed_on_or_not_without_an_answer": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        queued(1.3, B),
        fault(1.3, 9.4, "cut", "0"),
        hands_on(1.4, A, 10, 1.0, took=9.0, outcome="StoreError"),
        enters(11.3, B, 11, 12.5),
        leaves(11.4, B),
    ],
    "discarded_or_broken_before_it_was_adopted": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        hands_on(1.4, A, 10, 4.0),
        at(1.5, "1.0", "discarding", n="lock", fence=10),
        asks(1.6, B, adopts=10),
        ends(1.7, B, "TokenSpent"),
        asks(2.0, C),
        enters(2.1, C, 11, 3.1),
        hands_on(2.2, C, 11, 4.0),
        at(2.3, "1.0", "breaking", n="lock", fences=[11], id=1),
        at(2.35, "1.0", "broke", n="lock", id=1),
        asks(2.4, D, adopts=11),
        ends(2.5, D, "TokenSpent"),
    ],
    "stopped_for_as_long_as_what_it_adopted": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        hands_on(1.4, A, 10, 4.0),
        asks(1.5, B, adopts=10),
        stall(1.5, 3.0, "1.0"),
        ends(3.0, B, "LeaseLost"),
    ],
    "accounts": [
        of(1.0, A, "has", names=["a", "b"]),
        of(1.0, C, "has", names=["c", "d"]),
        of(1.2, A, "had"),
        of(1.3, B, "has", names=["b", "c"]),
        stall(1.15, 1.4, "2.0"),
        of(1.4, C, "had"),
        of(1.5, B, "had"),
    ],
    "paths_beside_each_other": [
        *enters_path(1.0, 1.1, A, "a/b", 10),
        *enters_path(1.0, 1.2, B, "a/c", 11),
        of(1.3, A, "had_path"),
        of(1.35, B, "had_path"),
        *enters_path(1.3, 1.4, D, "a", 12, shared=True),
        *enters_path(1.2, 1.5, "2/0/1.0", "a/b", 13, shared=True),
        of(1.6, D, "had_path"),
        stall(1.5, 2.6, "1.0"),
        *enters_path(1.7, 2.55, C, "a", 14),  # the reader's lease has ended
        of(2.7, "2/0/1.0", "had_path"),
        of(2.7, C, "had_path"),
    ],
    "tokens_in_turn": [
        takes(1.0, 1.01, A, 1, tokens=8),
        at(1.1, "1.0", "in_line", n="api", w=["b", 1], since=ns(1.1)),
        takes(1.1, 1.13, B, 1, tokens=1),
        takes(1.12, 1.2, A, 2, tokens=1),
        at(1.2, "2.0", "in_line", n="api", w=["c", 1], since=ns(1.2)),
        stall(1.2, 1.4, "2.0"),  # it was taken for dead
        takes(1.25, 1.3, A, 3, tokens=1),
        at(1.4, "2.0", "in_line", n="api", w=["c", 1], since=ns(1.4)),
        at(2.0, "conductor", "wiped", since=ns(1.9), fence=0),
        takes(2.0, 2.1, A, 4, tokens=8),
        takes(1.8, 2.11, A, 5, tokens=8),  # before the bucket was lost, perhaps
    ],
    "an_election": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        at(1.0, "1.0", "watches", o="w"),
        at(1.2, "1.0", "saw", o="w", fence=10, value=A),
        leaves(1.5, A),
        gives_back(1.5, A, 10),
        asks(1.55, B),
        at(1.58, "1.0", "saw", o="w", fence=11, value=B),
        enters(1.6, B, 11, 2.6),
        leaves(1.7, B),
        at(1.75, "1.0", "watched", o="w"),
        at(1.8, "1.0", "watches", o="v"),
        at(1.9, "1.0", "saw", o="v", fence=11, value=B),
    ],
    "ended_by_a_timer_that_was_early": [
        asks(1.0, A, renew=False),
        enters(1.1, A, 10, 2.1),
        of(2.0995, A, "told"),
        leaves(2.0996, A, "LeaseLost"),
    ],
    "a_leader_that_was_deposed_before_its_body": [
        asks(1.0, A, campaign=True),
        queued(1.1, A),
        wiped(2.0, 20),
        ends(2.5, A, "LeaseLost"),
    ],
    "a_leader_that_was_broken_before_its_body": [
        asks(1.0, A, campaign=True),
        queued(1.1, A),
        at(2.0, "2.0", "breaking", n="lock", fences=[10], id=1),
        at(2.1, "2.0", "broke", n="lock", id=1),
        ends(2.2, A, "LeaseLost"),
    ],
    "a_leader_that_is_seen_when_the_last_one_was": [
        watching(0.5, "watches"),
        asks(1.0, A, campaign=True),
        enters(1.1, A, 10, 2.1),
        watching(1.3, "saw", fence=10, value=A),
        leaves(1.5, A),
        asks(1.5, B, campaign=True),
        enters(1.6, B, 11, 2.6),
        renewed(2.0, B, 11, 8.0),
        watching(5.0, "looks"),  # it was busy
        watching(5.9, "saw", fence=11, value=B),
        leaves(7.0, B),
        asks(7.1, A.replace("1/", "2/", 1), campaign=True),
        enters(7.2, A.replace("1/", "2/", 1), 12, 8.2),  # too short to be seen
        leaves(8.0, A.replace("1/", "2/", 1)),
        watching(9.0, "watched"),
    ],
    "a_leader_that_is_not_seen_for_a_reason": [
        asks(1.0, A, campaign=True),
        enters(1.1, A, 10, 8.1),
        watching(0.5, "watches"),
        fault(1.0, 4.0, "deafen", "2"),
        stall(6.0, 6.9, "2.0"),
        killed(6.9, "2.0"),
        leaves(7.0, A),
    ],
    "what_is_given_up_goes": [
        asks(1.0, A),
        waits(1.0, A),
        queued(1.1, A),
        standing(1.15, queued=True),
        of(1.2, A, "cancelling"),
        ends(1.2, A, "cancelled"),
        standing(1.25, queued=True),
        over(1.3),
        standing(1.6, 1_500_000),  # a late copy, and a push, and it is given back
        standing(1.8),
        standing(1.9, queued=True),
        standing(2.2),
    ],
    "what_is_given_up_is_forgotten_by_a_wipe": [
        asks(1.0, A, timeout=0.2),
        waits(1.0, A),
        ends(1.2, A, "AcquireTimeout"),
        over(1.3),
        wiped(1.4, 1_450_000),
        standing(1.6, 1_500_000),
        standing(2.3, 1_500_000),
    ],
    "who_is_dead_holds_for_a_while": [
        asks(1.0, A),
        waits(1.0, A),
        queued(1.1, A),
        killed(1.4, "0.0"),
        standing(6.0, 5_900_000),
        standing(9.0, queued=True),
    ],
    "a_refusal_of_who_has_no_place": [
        fault(1.0, 2.0, "refuse_unsaved", "all"),
        asks(1.5, A),
        ends(1.6, A, "StoreError"),
    ],
    "a_refusal_and_worse": [
        asks(0.9, A),
        queued(0.95, A),
        fault(1.0, 2.0, "refuse_unsaved", "all"),
        fault(1.0, 2.0, "drop", "0"),
        ends(11.0, A, "StoreError"),
    ],
    "a_timeout_while_nobody_says_who_holds_it": [
        asks(1.0, A, timeout=1.0),
        queued(1.1, A),
        fault(1.5, 4.0, "freeze", "all"),
        ends(3.9, A, "AcquireTimeout"),
    ],
    "a_period_that_somebody_who_was_stopped_has_cost": [
        standing(0.1),
        asks(1.0, B, every=2.0),
        asks(1.0, A, every=2.0),
        queued(1.1, A),
        enters(1.9, B, 1_900_000, 2.9),
        leaves(1.95, B),
        gives_back(1.95, B, 1_900_000),
        stall(1.9, 3.9, "2.0"),
        asks(1.0, C, every=2.0),
        queued(1.05, C),
        enters(4.05, A, 4_050_000, 5.0),
        leaves(4.1, A),
        enters(6.05, C, 6_050_000, 7.0),
        leaves(6.1, C),
    ],
    "nobody_knows_so_soon": [asks(1.0, A, timeout=0.001), ends(1.002, A, "StoreError")],
    "an_answer_after_the_timeout": [
        asks(1.0, A, timeout=0.003),
        queued(1.0233, A),
        ends(1.0236, A, "StoreError"),
    ],
    "left_just_before_the_end_of_its_lease": [
        asks(1.0, A),
        enters(1.4, A, 10, 1.5),
        leaves(1.4, A, "StoreError", lasts=0.1),
        gives_back(1.6, A, 10),
    ],
    "nobody_knows": [
        fault(1.0, 4.0, "freeze", "all"),
        asks(2.0, A),
        ends(12.0, A, "StoreError"),
    ],
    "closed_in_the_middle": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.0, "1/1/0.0"),
        queued(1.1, "1/1/0.0"),
        at(1.2, "0.0", "closing"),
        ends(1.2, "1/1/0.0", "ClientClosed"),
        of(1.2, A, "told"),
        leaves(1.2, A, "LeaseLost"),
        at(1.3, "0.0", "closed", since=ns(1.2)),
    ],
    "released_by_closing_before_its_body_begins": [
        *CLOSED_BEFORE_IT_ENTERED,
        of(1.19, A, "taken_back", n="lock", fence=10),
    ],
    "released_by_closing_in_its_body": [
        *CLOSED_BEFORE_IT_ENTERED,
        of(1.205, A, "taken_back", n="lock", fence=10),
    ],
    "ended_at_that_very_moment": [
        asks(1.0, A),
        queued(1.1, A),
        stall(1.2, 3.0, "0.0"),
        enters(3.01, A, 10, 3.0099, heard=3.0098),
        leaves(3.011, A, "LeaseLost"),
    ],
    "the_answer_from_before_the_wipe_was_heard_after_it": [
        asks(1.0, A),
        wiped(1.2, 20),
        fault(1.199, 1.2, "flush", "all"),
        queued(1.201, A, asked=1.001),
        asks(1.3, B),
        enters(1.31, B, 30, 2.0),
        leaves(1.4, B),
        queued(1.8, A),
        enters(1.81, A, 40, 3.0),
        leaves(1.9, A),
    ],
    "dead_but_the_server_was_started_since": [
        at(0.1, "conductor", "began", store="mysql", seed="1", seconds=9, names=[]),
        asks(1.0, A),
        *waits(1.0, A),
        killed(2.0, "0.0"),
        gone(2.1, "0.0"),
        fault(3.0, 4.0, "restart_fast", "all"),
        standing(12.0, 8_000_000),
    ],
    "timed_out_just_before_the_answer_that_it_is_queued": [
        asks(1.0, A, timeout=0.02),
        ends(1.0201, A, "StoreError"),
        queued(1.0202, A, asked=1.0),
    ],
    "dead_and_etcd_has_elected_another_leader_since": [
        at(0.1, "conductor", "began", store="etcd", seed="1", seconds=9, names=[]),
        asks(1.0, A),
        *waits(1.0, A),
        killed(2.0, "0.0"),
        fault(8.0, 9.0, "kill_leader", "all"),
        standing(26.0, 1_500_000),
    ],
    "held_in_etcd_until_the_lease_has_ended": [
        at(0.1, "conductor", "began", store="etcd", seed="1", seconds=9, names=[]),
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        queued(1.3, B),
        killed(1.4, "0.0"),
        enters(8.0, B, 11, 9.0),
        leaves(8.1, B),
    ],
    "another_process_was_stopped_in_a_transaction": [
        at(0.1, "conductor", "began", store="mysql", seed="1", seconds=9, names=[]),
        asks(1.0, A, campaign=True),
        queued(1.1, A),
        fault(1.2, 2.9, "stop", "7"),
        ends(2.8, A, "LeaseLost"),
    ],
    "wiped_and_asked_again": [
        asks(1.0, A),
        queued(1.1, A),
        wiped(2.0, 20),
        queued(3.0, A),
        enters(9.0, A, 30, 10.0),
        leaves(9.1, A),
    ],
    "reconnected_and_asked_again": [
        asks(1.0, A),
        queued(1.1, A),
        at(2.0, "0.0", "reconnected"),
        queued(2.1, A),
        enters(9.0, A, 30, 10.0),
        leaves(9.1, A),
    ],
    "reconnected_to_a_server_that_did_not_run": [
        asks(1.0, A),
        queued(1.1, A),
        at(2.0, "0.0", "reconnected"),
        fault(1.9, 3.2, "slow", "all"),
        queued(3.3, A),
        enters(9.0, A, 30, 10.0),
        leaves(9.1, A),
    ],
    "killed_while_it_stalled_and_could_see_nobody": [
        watching(0.5, "watches"),
        asks(1.0, A, campaign=True),
        enters(1.1, A, 10, 4.0),
        at(1.05, "2.0", "block", seconds=3.0),
        killed(3.5, "2.0"),
        gone(3.6, "2.0"),
        leaves(3.7, A),
    ],
    "granted_again_where_the_new_master_had_not_heard_of_it": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        failed_over(1.3, 1.6, 20),
        enters(1.4, B, 11, 2.4),
        of(1.5, A, "told"),
        leaves(1.5, A, "LeaseLost"),
        leaves(1.7, B),
    ],
    "a_renewal_that_the_new_master_had_not_heard_of": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        renewed(1.9, A, 10, 2.9),
        renewed(2.8, A, 10, 3.8),
        asks(1.2, B),
        failed_over(3.0, 3.3, 20),
        enters(3.2, B, 11, 4.2),
        of(3.6, A, "told"),
        leaves(3.6, A, "LeaseLost"),
        leaves(4.0, B),
    ],
    "what_the_new_master_has_is_renewed": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        failed_over(1.3, 1.6, 20),
        renewed(2.0, A, 10, 3.0),
        renewed(2.9, A, 10, 8.0),
        leaves(7.0, A),
    ],
    "a_place_that_is_back_after_a_failover": [
        at(0.1, "0.0", "opened", client="ada", since=0),
        failed_over(0.3, 0.6, 5),
        at(9.0, "conductor", "key", key="x:queue", ttl=600, holders=(), waiters=("ada",)),
    ],
    "a_release_that_the_new_master_had_not_heard_of": [
        asks(0.2, A),
        waits(0.2, A),
        enters(0.3, A, 10, 1.3),
        leaves(0.5, A),
        over(0.5),
        failed_over(0.6, 0.9, 20),
        standing(2.0, 10),
        at(2.1, "conductor", "key", key="x:{lock}:holders", ttl=600, holders=("ada",), waiters=()),
    ],
    "cut_off_while_no_sentinel_answers": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        renewed(2.0, A, 10, 5.0),
        fault(1.0, 4.0, "hang_sentinels", "all"),
        fault(2.5, 2.5, "kill_commands", "0"),
        of(5.0, A, "told"),
        leaves(5.0, A, "LeaseLost"),
    ],
    "a_sentinel_that_hangs_is_in_nobodys_way": [
        asks(1.0, A),
        fault(0.5, 5.0, "hang_sentinel", "all"),
        enters(1.1, A, 10, 2.1),
        leaves(1.2, A),
    ],
    "left_over_but_not_for_long": [
        at(9.0, "conductor", "key", key="x:fence", ttl=600, holders=(), waiters=())
    ],
}

# By the name of the rule, and what is wrong.
WRONG: dict[str, Story] = {
    "exclusion-entered_while_it_closes": CLOSED_BEFORE_IT_ENTERED,
    "exclusion-released_by_closing_in_an_async_with": [
        asks(1.0, A, style="with"),
        enters(1.1, A, 10, 2.1),
        at(1.2, "0.0", "closing"),
        asks(1.2, B),
        of(1.2, A, "taken_back", n="lock", fence=10),
        enters(1.25, B, 11, 2.2),
        leaves(1.3, A, "LeaseLost"),
        leaves(1.5, B),
    ],
    "exclusion-released_in_its_body": [
        asks(1.0, A, style="await"),
        enters(1.1, A, 10, 2.1),
        of(1.2, A, "taken_back", n="lock", fence=10),
        asks(1.2, B),
        enters(1.25, B, 11, 2.2),
        leaves(1.3, A),
        at(1.4, "0.0", "closing"),
        leaves(1.5, B),
    ],
    "exclusion-two_at_once": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        enters(1.3, B, 11, 2.3),
        leaves(1.4, B),
        leaves(1.5, A),
    ],
    "exclusion-renewed_meanwhile": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        renewed(1.5, A, 10, 2.5),
        asks(1.2, B),
        enters(2.2, B, 11, 3.2),
        leaves(2.3, B),
        leaves(2.4, A),
    ],
    "exclusion-killed_only_later": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        enters(1.3, B, 11, 2.3),
        leaves(1.4, B),
        killed(1.5, "0.0"),
    ],
    "exclusion-broken_only_later": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        enters(1.3, B, 11, 2.3),
        leaves(1.4, B),
        at(1.4, "2.0", "breaking", n="lock", fences=[10], id=1),
        of(1.5, A, "told"),
        leaves(1.5, A, "LeaseLost"),
    ],
    "exclusion-another_was_broken": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        at(1.2, "2.0", "breaking", n="lock", fences=[9], id=1),
        asks(1.2, B),
        enters(1.3, B, 11, 2.3),
        leaves(1.4, B),
        leaves(1.5, A),
    ],
    "exclusion-wiped_before_it_was_granted": [
        wiped(0.5, 5),
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        enters(1.3, B, 11, 2.3),
        leaves(1.4, B),
        leaves(1.5, A),
    ],
    "exclusion-both_granted_after_the_failover": [
        failed_over(0.3, 0.6, 5),
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        enters(1.3, B, 11, 2.3),
        leaves(1.4, B),
        leaves(1.5, A),
    ],
    "exclusion-replicated_long_before_the_failover": [
        asks(1.0, A),
        enters(1.1, A, 10, 8.0),
        asks(1.2, B),
        failed_over(3.0, 3.3, 20),
        enters(3.5, B, 21, 4.5),
        leaves(3.9, A),
        leaves(4.0, B),
    ],
    "exclusion-renewed_since_the_failover": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        failed_over(1.3, 1.6, 20),
        renewed(2.0, A, 10, 4.0),
        enters(3.5, B, 21, 4.5),
        leaves(3.9, A),
        leaves(4.0, B),
    ],
    "exclusion-a_failover_elsewhere": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        failed_over(1.2, 1.6, 20, ELSEWHERE),
        enters(1.3, B, 11, 2.3),
        leaves(1.4, B),
        leaves(1.5, A),
    ],
    "losses-long_after_the_failover": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        failed_over(1.3, 1.6, 20),
        renewed(2.0, A, 10, 8.0),
        of(5.0, A, "told"),
        leaves(5.0, A, "LeaseLost"),
    ],
    "left_over-a_failover_elsewhere": [
        at(0.1, "0.0", "opened", client="ada", since=0),
        failed_over(0.3, 0.6, 5, ELSEWHERE),
        at(9.0, "conductor", "key", key="x:{lock}:queue", ttl=600, holders=(), waiters=("ada",)),
    ],
    "exclusion-two_at_once_before_the_failover": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        enters(1.3, B, 11, 2.3),
        failed_over(1.35, 1.6, 20),
        leaves(1.4, B),
        leaves(1.5, A),
    ],
    "left_over-opened_after_the_failover": [
        failed_over(0.3, 0.6, 5),
        at(0.7, "0.0", "opened", client="ada", since=0),
        at(9.0, "conductor", "key", key="x:queue", ttl=600, holders=(), waiters=("ada",)),
    ],
    "left_over-held_since_before_the_failover": [
        at(0.1, "0.0", "opened", client="ada", since=0),
        failed_over(0.3, 0.6, 5),
        at(9.0, "conductor", "key", key="x:holders", ttl=600, holders=("ada",), waiters=()),
    ],
    "left_over-released_after_the_failover": [
        asks(0.2, A),
        waits(0.2, A),
        failed_over(0.4, 0.5, 5),
        enters(0.7, A, 10, 1.7),
        leaves(0.9, A),
        over(0.9),
        standing(1.3, 10),
        at(1.4, "conductor", "key", key="x:{lock}:holders", ttl=600, holders=("ada",), waiters=()),
    ],
    "losses-though_all_sentinels_hang": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        renewed(2.0, A, 10, 5.0),
        fault(1.0, 4.0, "hang_sentinels", "all"),
        of(5.0, A, "told"),
        leaves(5.0, A, "LeaseLost"),
    ],
    "losses-while_a_sentinel_hangs": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        fault(0.5, 5.0, "hang_sentinel", "all"),
        of(2.2, A, "told"),
        leaves(2.2, A, "LeaseLost"),
    ],
    "exclusion-told_but_the_server_still_had_it": [
        asks(1.0, A, renew=False),
        enters(1.1, A, 10, 2.1),
        of(2.1, A, "told"),
        asks(1.2, B),
        queued(1.3, B),
        enters(2.2, B, 11, 3.2),
        leaves(2.3, B),
        leaves(2.4, A, "LeaseLost"),
        gives_back(2.4, A, 10),
    ],
    "exclusion-the_last_of_three": [
        asks(1.0, A),
        enters(1.1, A, 10, 3.1),
        killed(1.2, "1.0"),
        asks(1.1, B),
        enters(1.15, B, 11, 1.15, heard=0.5),
        asks(1.3, C),
        enters(2.3, C, 12, 3.3),
        leaves(2.4, C),
        leaves(2.5, A),
    ],
    "entering-too_late": [
        asks(1.0, A),
        queued(1.1, A),
        stall(1.2, 3.0, "0.0"),
        enters(3.01, A, 10, 3.008, heard=3.0075),
        leaves(3.02, A, "LeaseLost"),
    ],
    "fences-went_down": [
        asks(1.0, A),
        asks(1.0, B),
        enters(1.1, A, 11, 2.1),
        leaves(1.2, A),
        enters(1.3, B, 10, 2.3),
        leaves(1.4, B),
    ],
    "fences-the_same_twice": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        leaves(1.2, A),
        asks(1.2, B),
        enters(1.3, B, 10, 2.3),
        leaves(1.4, B),
    ],
    "fences-went_down_with_the_wipe": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        leaves(1.2, A),
        wiped(1.3, 20),
        asks(1.4, B),
        enters(1.5, B, 9, 2.3),
        leaves(1.6, B),
    ],
    "order-overtaken": [
        asks(1.0, A),
        queued(1.1, A),
        asks(1.2, B),
        enters(1.3, B, 10, 2.3),
        leaves(1.4, B),
        enters(1.5, A, 11, 2.5),
        leaves(1.6, A),
    ],
    "order-overtaken_once_it_was_back": [
        asks(1.0, A),
        queued(1.1, A),
        stall(1.2, 2.0, "0.0"),
        queued(2.6, A),
        asks(2.7, B),
        enters(2.8, B, 10, 3.8),
        leaves(2.9, B),
        enters(3.0, A, 11, 4.0),
        leaves(3.1, A),
    ],
    "order-the_others_trouble": [
        asks(1.0, A),
        queued(1.1, A),
        fault(1.15, 1.2, "cut", "1"),
        stall(1.15, 1.2, "1.0"),
        asks(1.2, B),
        enters(1.3, B, 10, 2.3),
        leaves(1.4, B),
        enters(1.5, A, 11, 2.5),
        leaves(1.6, A),
    ],
    "endings-waits_for_ever": [asks(1.0, A), queued(1.1, A)],
    "endings-never_leaves": [asks(1.0, A), enters(1.1, A, 10, 2.1)],
    "endings-another_was_killed": [asks(1.0, A), queued(1.1, A), killed(1.2, "1.0")],
    "timeouts-too_late": [
        asks(1.0, A, timeout=0.5),
        queued(1.1, A),
        ends(3.0, A, "AcquireTimeout"),
    ],
    "timeouts-entered_too_late": [
        asks(1.0, A, timeout=0.5),
        queued(1.1, A),
        enters(3.0, A, 10, 4.0),
        leaves(3.1, A),
    ],
    "timeouts-too_early": [
        asks(1.0, A, timeout=0.5),
        queued(1.1, A),
        ends(1.3, A, "none"),
    ],
    "timeouts-waited_though_it_should_not": [asks(1.0, A, wait=False), ends(14.0, A, "none")],
    "cancellations-went_on_waiting": [
        asks(1.0, A),
        queued(1.1, A),
        of(1.2, A, "cancelling"),
        ends(3.0, A, "cancelled"),
    ],
    "cancellations-went_on_in_the_body": [
        asks(1.0, A),
        enters(1.1, A, 10, 9.0),
        of(1.2, A, "cancelling"),
        leaves(3.0, A, "cancelled"),
    ],
    "tellings-nobody_told_it": [
        asks(1.0, A, renew=False),
        enters(1.1, A, 10, 2.1),
        leaves(4.0, A, "LeaseLost"),
    ],
    "tellings-told_late": [
        asks(1.0, A, renew=False),
        enters(1.1, A, 10, 2.1),
        stall(2.0, 2.2, "0.0"),
        of(4.0, A, "told"),
        leaves(4.1, A, "LeaseLost"),
    ],
    "tellings-broken_and_not_told": [
        asks(1.0, A, renew=False),
        enters(1.1, A, 10, 3.0),
        at(1.2, "2.0", "breaking", n="lock", fences=[10], id=1),
        at(1.3, "2.0", "broke", n="lock", id=1),
        leaves(2.5, A, "LeaseLost"),
    ],
    "exits-hung": [asks(1.0, A), enters(1.1, A, 10, 2.1), leaves(1.2, A, lasts=3.0)],
    "losses-told_for_nothing": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        of(1.5, A, "told"),
        leaves(1.5, A, "LeaseLost"),
    ],
    "losses-said_so_at_the_exit": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        leaves(1.2, A, "LeaseLost"),
    ],
    "losses-not_renewed": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        of(2.1, A, "told"),
        leaves(2.1, A, "LeaseLost"),
    ],
    "losses-before_max_hold": [
        asks(1.0, A, max_hold=5.0),
        enters(1.1, A, 10, 2.1),
        of(2.1, A, "told"),
        leaves(2.1, A, "LeaseLost"),
    ],
    "losses-another_was_broken": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        at(1.2, "2.0", "breaking", n="lock", fences=[9], id=1),
        of(1.5, A, "told"),
        leaves(1.5, A, "LeaseLost"),
    ],
    "errors-before_the_end_of_its_lease": [
        asks(1.0, A),
        enters(1.4, A, 10, 1.7),
        leaves(1.4, A, "StoreError", lasts=0.1),
        gives_back(1.8, A, 10),
    ],
    "errors-nothing_was_broken": [asks(1.0, A), ends(2.0, A, "StoreError")],
    "errors-it_had_answered": [
        asks(1.0, A, timeout=0.1),
        queued(1.05, A),
        ends(1.1, A, "StoreError"),
    ],
    "errors-long_ago": [
        fault(1.0, 1.1, "cut", "0"),
        asks(20.0, A),
        ends(20.1, A, "StoreError"),
    ],
    "errors-nobody_cancelled": [asks(1.0, A), queued(1.1, A), ends(1.2, A, "cancelled")],
    "errors-no_timeout": [asks(1.0, A), queued(1.1, A), ends(1.2, A, "AcquireTimeout")],
    "errors-lost_before_its_body": [asks(1.0, A), wiped(2.0, 20), ends(2.5, A, "LeaseLost")],
    "errors-nobody_deposed_it": [asks(1.0, A, campaign=True), ends(2.5, A, "LeaseLost")],
    "errors-no_limit": [asks(1.0, A), ends(1.2, A, "QueueFull")],
    "errors-nobody_closed": [asks(1.0, A), ends(1.2, A, "ClientClosed")],
    "errors-undocumented": [asks(1.0, A), ends(1.2, A, "KeyError")],
    "revivals-broken": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        at(1.2, "2.0", "breaking", n="lock", fences=[10], id=1),
        at(1.3, "2.0", "broke", n="lock", id=1),
        of(1.4, A, "told"),
        renewed(2.5, A, 10, 3.5),
        leaves(3.0, A),
    ],
    "revivals-wiped": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        wiped(1.3, 20),
        renewed(2.5, A, 10, 3.5),
        leaves(3.0, A),
    ],
    "idleness-released_and_not_handed_on": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        queued(1.3, B),
        leaves(1.4, A),
        gives_back(1.4, A, 10),
        enters(3.0, B, 11, 4.0),
        leaves(3.1, B),
    ],
    "idleness-handed_to_who_was_dead": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.15, C),
        queued(1.2, C),
        asks(1.2, B),
        queued(1.3, B),
        killed(1.3, "2.0"),
        gone(1.31, "2.0"),
        leaves(1.4, A),
        gives_back(1.4, A, 10),
        enters(3.0, B, 11, 4.0),
        leaves(3.1, B),
    ],
    "idleness-nobody_noticed_who_died": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        queued(1.3, B),
        killed(1.4, "0.0"),
        enters(9.0, B, 11, 10.0),
        leaves(9.1, B),
    ],
    "idleness-nobody_noticed_in_etcd_who_died": [
        at(0.1, "conductor", "began", store="etcd", seed="1", seconds=9, names=[]),
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        queued(1.3, B),
        killed(1.4, "0.0"),
        enters(18.0, B, 11, 19.0),
        leaves(18.1, B),
    ],
    "forgotten-its_subscription_was_lost": [
        asks(1.0, A),
        queued(1.1, A),
        at(2.0, "0.0", "reconnected"),
        enters(4.0, A, 30, 5.0),
        leaves(4.1, A),
    ],
    "forgotten-the_queue_was_wiped": [
        asks(1.0, A),
        queued(1.1, A),
        wiped(2.0, 20),
        enters(9.0, A, 30, 10.0),
        leaves(9.1, A),
    ],
    "final-could_not_take_it": [
        asks(1.0, A, timeout=20.0, final=True),
        ends(21.0, A, "none"),
    ],
    "final-stuck": [at(9.0, "conductor", "stuck", who="0.0", what="quiet within 40 s")],
    "left_over-a_holder": [
        at(9.0, "conductor", "key", key="x:holders", ttl=600, holders=("ada",), waiters=())
    ],
    "left_over-closed_before_the_server_loads": [
        at(0.5, "0.0", "opened", client="ada", since=0),
        at(1.0, "0.0", "closing"),
        fault(8.0, 2.0, "load", "all"),
        at(12.0, "conductor", "key", key="x:queue", ttl=600, holders=(), waiters=("ada",)),
    ],
    "left_over-a_waiter": [
        at(9.0, "conductor", "key", key="x:queue", ttl=600, holders=(), waiters=("ada",))
    ],
    "left_over-for_ever": [
        at(9.0, "conductor", "key", key="x:fence", ttl=-1, holders=(), waiters=())
    ],
    "exclusion-a_writer_among_readers": [
        asks(1.0, A, shared=True),
        enters(1.1, A, 10, 2.1),
        asks(1.0, B),
        enters(1.2, B, 11, 2.2),
        leaves(1.3, A),
        leaves(1.4, B),
    ],
    "exclusion-a_reader_beside_a_writer": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.0, B, shared=True),
        enters(1.2, B, 11, 2.2),
        of(1.3, A, "downgrading"),
        leaves(1.4, A),
        leaves(1.5, B),
    ],
    "exclusion-too_many_permits": [
        asks(1.0, A, shared=True, permits=2, limit=3),
        asks(1.0, B, shared=True, permits=2, limit=3),
        enters(1.1, A, 10, 2.1),
        enters(1.1, B, 11, 2.1),
        leaves(1.4, A),
        leaves(1.6, B),
    ],
    "fences-a_reader_behind_a_writer_with_a_lower_one": [
        asks(1.0, A),
        asks(1.0, B, shared=True),
        enters(1.1, A, 11, 2.1),
        leaves(1.2, A),
        gives_back(1.2, A, 11),
        enters(1.3, B, 10, 2.3),
        leaves(1.4, B),
    ],
    "periods-twice": [
        asks(1.0, A, every=1.0),
        enters(1.1, A, 3_100_000, 2.1),
        leaves(1.2, A),
        asks(1.15, B, every=1.0),
        enters(1.9, B, 3_900_000, 2.9),
        leaves(1.95, B),
    ],
    "periods-left_out": [
        standing(0.1),
        asks(1.0, B, every=2.0),
        asks(1.0, A, every=2.0),
        queued(1.1, A),
        enters(1.9, B, 1_900_000, 2.9),
        leaves(1.95, B),
        gives_back(1.95, B, 1_900_000),
        enters(4.05, A, 4_050_000, 5.0),
        leaves(4.1, A),
    ],
    "observers-nobody_told_it": [
        watching(0.5, "watches"),
        asks(1.0, A, campaign=True),
        enters(1.1, A, 10, 4.0),
        leaves(3.5, A),
        watching(5.0, "watched"),
    ],
    "observers-another_stood_in_its_way": [
        watching(0.5, "watches"),
        asks(1.0, A, campaign=True),
        enters(1.1, A, 10, 2.1),
        watching(1.3, "saw", fence=10, value=A),
        leaves(1.5, A),
        asks(1.5, B, campaign=True),
        enters(1.6, B, 11, 2.6),
        renewed(2.0, B, 11, 8.0),
        watching(2.0, "looks"),
        leaves(7.0, B),
    ],
    "ghosts-granted_after_it_was_given_up": [
        asks(1.0, A, timeout=0.2),
        waits(1.0, A),
        queued(1.1, A),
        ends(1.2, A, "AcquireTimeout"),
        over(1.3),
        standing(1.6, 1_500_000),
        standing(2.1, 1_500_000),
    ],
    "ghosts-queued_after_it_was_given_up": [
        asks(1.0, A, timeout=0.2),
        waits(1.0, A),
        queued(1.1, A),
        ends(1.2, A, "AcquireTimeout"),
        over(1.3),
        standing(2.0, queued=True),
        standing(2.6, queued=True),
    ],
    "ghosts-a_permit_that_never_came_back": [
        asks(1.0, A, shared=True, permits=1, limit=3),
        waits(1.0, A),
        enters(1.1, A, 1_050_000, 2.1),
        leaves(1.2, A),
        standing(4.1, 1_050_000),
        standing(4.4, 1_050_000),
    ],
    "ghosts-the_dead_hold_for_ever": [
        asks(1.0, A),
        waits(1.0, A),
        queued(1.1, A),
        killed(1.4, "0.0"),
        standing(8.5, 7_900_000),
    ],
    "ghosts-the_dead_hold_in_etcd_for_ever": [
        at(0.1, "conductor", "began", store="etcd", seed="1", seconds=9, names=[]),
        asks(1.0, A),
        waits(1.0, A),
        queued(1.1, A),
        killed(1.4, "0.0"),
        standing(26.0, 1_500_000),
    ],
    "refusals-thrown_out_of_the_queue": [
        asks(0.9, A),
        queued(0.95, A),
        fault(1.0, 2.0, "refuse_unreplicated", "all"),
        ends(1.6, A, "StoreError"),
    ],
    "meetings-alone": [
        of(-1.0, C, "arrives", parties=2),
        of(-0.5, C, "apart"),
        of(1.0, A, "arrives", parties=2),
        of(1.1, A, "passes"),
        of(1.2, B, "arrives", parties=2),
        of(1.3, B, "apart"),
    ],
    "latches-one_token_twice": [
        at(1.0, "0.0", "counts", latch=1, token="a"),
        at(1.1, "1.0", "counts", latch=1, token="a"),
        at(1.1, "1.0", "counts", latch=2, token="b"),
        of(1.2, C, "opens", latch=1, parties=2),
    ],
    "messages-begun_before_and_acknowledged_as_well": [
        of(2.0, B, "handling", message=1, fence=2),
        of(2.1, B, "handled", message=1),
        of(3.0, A, "handling", message=1, fence=1),
        of(3.1, A, "handled", message=1),
    ],
    "messages-twice": [
        of(1.0, A, "handling", message=1, fence=1),
        of(1.1, A, "handled", message=1),
        of(30.0, B, "handling", message=1, fence=2),
    ],
    "handing_on-adopted_twice": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        hands_on(1.2, A, 10, 4.0),
        asks(1.3, B, adopts=10),
        enters(1.4, B, 11, 2.4),
        leaves(1.5, B),
        asks(1.6, C, adopts=10),
        enters(1.7, C, 12, 2.7),
        leaves(1.8, C),
    ],
    "handing_on-another_had_it_in_between": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        hands_on(1.2, A, 10, 4.0),
        asks(1.3, B),
        enters(1.4, B, 11, 2.4),
        leaves(1.5, B),
        asks(1.6, C, adopts=10),
        enters(1.7, C, 12, 2.7),
        leaves(1.8, C),
    ],
    "handing_on-spent_before_its_time": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        hands_on(1.2, A, 10, 4.0),
        asks(4.3, B, adopts=10),
        ends(5.0, B, "TokenSpent"),
    ],
    "exclusion-adopted_before_it_was_handed_on": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B, adopts=10),
        enters(1.3, B, 11, 2.3),
        hands_on(1.4, A, 10, 4.0),
        leaves(1.5, B),
    ],
    "idleness-handed_on_to_nobody_for_too_long": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        asks(1.2, B),
        queued(1.3, B),
        hands_on(1.4, A, 10, 2.0),
        enters(5.5, B, 11, 6.5),
        leaves(5.7, B),
    ],
    "exits-of_who_hands_on": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        fault(1.1, 13.0, "cut", "0"),
        hands_on(1.2, A, 10, 2.0, took=11.5, outcome="StoreError"),
    ],
    "errors-a_token_of_nobody": [asks(1.0, A), ends(1.1, A, "TokenSpent")],
    "errors-lost_what_it_had_adopted_at_once": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        hands_on(1.4, A, 10, 4.0),
        asks(1.5, B, adopts=10),
        ends(1.6, B, "LeaseLost"),
    ],
    "accounts-two_have_it": [
        of(1.0, A, "has", names=["a", "b"]),
        of(1.1, B, "has", names=["b", "c"]),
        of(1.2, A, "had"),
        of(1.3, B, "had"),
    ],
    "paths-a_document_and_its_tenant": [
        *enters_path(1.0, 1.1, A, "a/b", 10),
        *enters_path(1.0, 1.2, B, "a", 11),
        of(1.3, A, "had_path"),
        of(1.3, B, "had_path"),
    ],
    "paths-a_lower_fence": [
        *enters_path(1.0, 1.1, A, "a", 11, shared=True),
        of(1.2, A, "had_path"),
        *enters_path(1.15, 1.3, B, "a/b", 10),
        of(1.4, B, "had_path"),
    ],
    "rates-too_many": [
        takes(1.0, 1.01, A, 1, tokens=8),
        takes(1.0, 1.02, B, 1, tokens=1),
    ],
    "rates-overtaken": [
        at(1.1, "1.0", "in_line", n="api", w=["b", 1], since=ns(1.09)),
        takes(1.2, 1.21, A, 1, tokens=1),
        at(1.3, "1.0", "in_line", n="api", w=["b", 1], since=ns(1.25)),
    ],
    "elections-an_earlier_one": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        leaves(1.2, A),
        asks(1.3, B),
        enters(1.3, B, 11, 2.3),
        leaves(1.4, B),
        at(1.0, "1.0", "watches", o="w"),
        at(1.5, "1.0", "saw", o="w", fence=11, value=B),
        at(1.6, "1.0", "saw", o="w", fence=10, value=A),
    ],
    "elections-who_did_not": [
        asks(1.0, A),
        enters(1.1, A, 10, 2.1),
        leaves(1.2, A),
        at(1.0, "1.0", "watches", o="w"),
        at(1.5, "1.0", "saw", o="w", fence=11, value=A),
    ],
    "books-out_of_order": [at(9.0, "0.0", "observed", wrong=["x is held after lost"], left=[])],
    "books-without_an_end": [at(9.0, "0.0", "observed", wrong=[], left=["x"])],
    "crashes-an_error": [at(9.0, "0.0", "crash", text="KeyError")],
    "crashes-an_exit": [at(9.0, "conductor", "exited", who="0.0", code=1)],
}


@pytest.mark.parametrize("story", RIGHT)
def test_checker_of_a_right_history_finds_no_violation(story: str) -> None:
    """A history that keeps every promise breaks no rule."""
    assert rules_broken(RIGHT[story]) == set()


@pytest.mark.parametrize("story", WRONG)
def test_checker_of_a_wrong_history_finds_exactly_its_rule(story: str) -> None:
    """A history that breaks one promise is found by the rule for it, and by no other."""
    rule = story.partition("-")[0]
    assert rules_broken(WRONG[story]) == {rule}


def test_wrong_histories_cover_every_rule() -> None:
    """There is a wrong history for each rule."""
    found = {story.partition("-")[0] for story in WRONG}
    assert found == {rule.__name__ for rule in RULES} - OF_SEVERAL


def test_violation_excerpt_shows_events_of_its_attempts_and_faults() -> None:
    """A violation comes with all events of its attempts, and the faults at the time."""
    (violation,) = check(
        Run(
            told(
                [
                    asks(0.5, C),
                    of(0.55, C, "cancelling"),
                    ends(0.6, C, "cancelled"),
                    asks(1.0, A),
                    queued(1.1, A),
                    fault(1.14, 1.15, "cut", "1"),
                    fault(1.16, 1.17, "cut", "2"),
                    asks(1.2, B),
                    enters(1.3, B, 10, 2.3),
                    leaves(1.4, B),
                    enters(1.5, A, 11, 2.5),
                    leaves(1.6, A),
                ]
            )
        )
    )
    shown = [(event.who, event.kind) for event in violation.excerpt]
    assert shown == [
        ("0.0", "asked"),
        ("0.0", "queued"),
        ("conductor", "fault"),
        ("1.0", "asked"),
        ("1.0", "entered"),
        ("1.0", "left"),
        ("1.0", "done"),
        ("0.0", "entered"),
        ("0.0", "left"),
        ("0.0", "done"),
    ]


def test_windows_cover_touch_and_clear_since_are_exact() -> None:
    """Windows that overlap are one; what they cover, touch and leave clear is exact."""
    windows = Windows([(50, 60), (10, 20), (15, 30), (30, 40)])
    assert windows.cover(0, 100) == 40
    assert windows.cover(20, 55) == 25
    assert windows.cover(41, 49) == 0
    assert windows.cover(55, 51) == 0
    assert windows.touch(40, 41)
    assert windows.touch(0, 10)
    assert windows.touch(0, 100)
    assert not windows.touch(41, 49)
    assert not windows.touch(61, 99)
    assert windows.clear_since(5) == 0
    assert windows.clear_since(15) == 16
    assert windows.clear_since(45) == 41
    assert windows.clear_since(99) == 61
    assert not Windows().touch(0, 100)


def test_history_cut_off_in_a_line_is_read_without_it(tmp_path: Path) -> None:
    """What was written is read back in order, but for a line that was cut off in the middle."""
    events = told(HAND_OFF)
    history.write(tmp_path, events)
    with (tmp_path / "0.0.jsonl").open("a") as file:
        file.write('{"t": 1, "e": "ent')
    read = history.read(tmp_path)
    assert [event.t for event in read] == [event.t for event in events]
    for who in ("0.0", "1.0", "conductor"):
        assert [e for e in read if e.who == who] == [e for e in events if e.who == who]


@pytest.mark.parametrize(
    ("story", "code", "verdict"),
    [(HAND_OFF, 0, "right"), (WRONG["order-overtaken"], 1, "WRONG: 1 violations")],
    ids=["right", "wrong"],
)
def test_check_option_prints_figures_and_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], story: Story, code: int, verdict: str
) -> None:
    """The command prints figures and verdict, and fails with an excerpt when a rule is broken."""
    history.write(tmp_path, told(story))
    assert main(["--check", str(tmp_path)]) == code
    printed = capsys.readouterr().out
    rows = dict(line.split("  ", 1) for line in printed.splitlines() if "  " in line.strip())
    assert rows["verdict"].strip() == verdict
    assert rows["entries"].strip() == "2"
    assert ("VIOLATION of order" in printed) == (code == 1)
    assert (f"a={B} n=lock fence=10" in printed) == (code == 1)


@pytest.mark.parametrize("store", faults.ATTACKS)
def test_plan_of_a_seed_is_repeatable_and_has_every_fault(store: str) -> None:
    """One seed gives one plan, another gives another, and a long one has every kind of fault."""
    slots, attack = ["0", "1"], faults.ATTACKS[store]
    plan = faults.plan("1", 600.0, slots, attack)
    assert plan == faults.plan("1", 600.0, slots, attack)
    assert plan != faults.plan("2", 600.0, slots, attack)
    kinds = {fault.kind for lane in plan.values() for fault in lane}
    assert kinds == {*faults.PROCESS, *attack.links, *attack.server}
    for lane in plan.values():
        for before, after in pairwise(lane):
            assert before.at + before.seconds < after.at
        assert lane[-1].at + lane[-1].seconds <= 600.0


def test_draw_of_a_seed_is_repeatable() -> None:
    """One seed gives one sequence of attempts, another gives another."""

    def choices(seed: str) -> list[object]:
        rng = random.Random(seed)
        return [draw(rng) for _ in range(100)]

    assert choices("1") == choices("1")
    assert choices("1") != choices("2")
