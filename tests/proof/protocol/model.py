"""The protocol as a small machine: what makes it right, and what there is.

To learn the protocol, read on in ``server.py`` and ``client.py``, which say what each of the two
does, step by step; ``world.py`` has them move together, in every way there is, and ``search.py``
goes through all that can come of it. What makes the protocol right is listed in `Safeguards`, so
that a test can leave out one of them and see what breaks.

All parts of a state are immutable. Time is counted in ticks, and always from now: a lease with
``left == 2`` ends two ticks from now, a question of ``age == 1`` was sent one tick ago. So equal
situations are equal states whenever they come about, and there are finitely many of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, NamedTuple

NEVER: Final = -1
UNANSWERED: Final = -1


@dataclass(frozen=True, slots=True)
class Safeguards:
    """What makes the protocol right. With all of them, it is aiolock's."""

    # At the server
    release_compares: bool = True
    """A release takes out the grant that it means, not whoever holds the lock by now."""
    release_or_leave: bool = True
    """One step takes a waiter out of the holders or out of the queue, whichever it is in."""
    holders_are_answered_again: bool = True
    """A holder that asks, for its reply or its push was lost, gets the grant that it has."""
    answered_with_what_is_left: bool = True
    """… for as long as its lease still lasts, not for a whole one."""
    only_holders_renew: bool = True
    """A grant that has ended is not revived by a renewal."""
    leases_end: bool = True
    """A question takes out a holder whose lease has ended."""
    silent_are_skipped: bool = True
    """Whose process does not listen is not granted the lock; the next one is."""
    claims_are_short: bool = True
    """A pushed grant lasts only for a claim, until it is renewed."""
    stuck_are_purged: bool = True
    """When a lease has ended, its client's other waiters leave the queue too."""
    fence_above_last: bool = True
    """A fence is higher than the last one of which the server knows."""
    fence_above_clock: bool = True
    """… and than every one that was minted before, by the server's clock."""
    fence_above_holder: bool = True
    """… and than that of the holder before."""
    late_are_refused: bool = True
    """A question or a renewal that comes too late after it was sent is not carried out."""
    buried_stay_out: bool = True
    """A release that carries a tombstone keeps out whatever is still to come of its waiter."""
    unconfirmed_are_stuck: bool = True
    """When a claim ends that nobody confirmed, its client is stuck, though it need not renew."""
    tries_pass_the_dead: bool = True
    """Who does not wait is granted what nobody holds and nobody who is alive waits for."""
    only_holders_pass: bool = True
    """A report that a grant was handed on is refused where that grant has ended."""
    passed_leave_the_queue: bool = True
    """… and else all those leave the queue whom the lock was handed to."""
    fence_above_run: bool = True
    """Above a grant that ended unreported the next fence leaves room for what it was passed on."""
    overtaken_are_told: bool = True
    """Who comes back to its old place: the client of the one behind it is told."""

    # At the client
    counted_from_the_question: bool = True
    """A deadline counts from before the question was sent, not from when the answer came."""
    late_are_given_back: bool = True
    """A grant whose deadline has passed when the task runs is not entered but given back."""
    asks_after_giving_back: bool = True
    """… and the task asks again only when that release is answered."""
    given_back_is_void: bool = True
    """… and that grant, brought once more by the other connection, is ignored."""
    crossed_release_takes_all: bool = True
    """Granted by a push while a question was under way, it releases whatever that may have got."""
    strangers_are_given_back: bool = True
    """A pushed grant for which no task waits any more is given back."""
    failed_are_tried_again: bool = True
    """A release that failed is tried again."""
    tried_again_as_it_was: bool = True
    """… of the same grant, where it was of one."""
    asks_when_a_lease_ends: bool = True
    """The backstop: who waits asks when the lease ends that it waits for."""
    asks_when_subscribed_again: bool = True
    """After a break of the subscription, all waiters of the client ask."""
    asks_when_linked_again: bool = True
    """After a break of the command connection too: a grant may have come with a lost reply."""
    asks_when_purged: bool = True
    """Told that a lease of the client had ended, its waiters ask, and so come back."""
    asks_when_displaced: bool = True
    """When one of them finds that it had lost its place, the others ask as well."""
    asks_once_more: bool = True
    """… each of these also when a question is under way, which may have been answered before."""
    releases_behind_questions: bool = True
    """Commands about a waiter are carried out in the order in which they were given."""
    resends_in_order: bool = True
    """… also when the connection broke, and they are sent again."""
    abandoned_are_not_resent: bool = True
    """A question whose answer nobody awaits any more is not sent a second time."""

    # At the client, which hands the lock on among its own tasks
    only_to_neighbours: bool = True
    """The lock is handed on only to a task that stands directly behind, as far as is known."""
    forgets_when_subscribed_again: bool = True
    """Who stands behind whom is forgotten when a connection is back."""
    forgets_when_displaced: bool = True
    """… and when one of its tasks finds that it had lost its place."""
    forgets_when_overtaken: bool = True
    """… and when somebody came before any: that one may have been handed the lock already."""
    outdated_have_no_neighbour: bool = True
    """An answer during which something happened does not tell who stands before."""
    crossed_are_not_passed: bool = True
    """Who is to release whatever it may have got does that, and hands nothing on."""
    deadline_is_inherited: bool = True
    """Whoever is handed the lock believes in it no longer than the one before."""
    runs_are_bounded: bool = True
    """A client is not ahead of the server by more than there is room for."""
    reports_come_first: bool = True
    """Before anything else is said of the lock, what is to be reported is."""
    failed_reports_end_runs: bool = True
    """While a report has failed nothing is handed on."""
    failed_reports_are_repeated: bool = True
    """… and it is sent again."""
    confirmed_from_the_first: bool = True
    """A report that is sent again confirms no more than it did when it was sent first."""
    outrun_reports_are_followed: bool = True
    """Where the release that was to follow was quicker, it is sent again when that is answered."""
    passed_are_no_strangers: bool = True
    """The push of a grant that was handed on meanwhile is ignored."""
    lost_are_all_of_a_run: bool = True
    """A grant that is lost, and was handed on: whoever has it now has lost it."""
    between_are_released: bool = True
    """Where a report is refused, those who had it since leave the queue, should they be in it."""
    between_are_tried_again: bool = True
    """… also where that release fails."""
    only_ended_are_released: bool = True
    """… but none that gave its grant back: it asks again, and may have another by then."""

    # At the client, where a connection that broke may still deliver what was sent on it
    given_up_are_buried: bool = True
    """While it may, a release of whatever a waiter is carries a tombstone."""
    buried_when_resent: bool = True
    """… also one that was given before the connection broke, when it is sent again."""
    given_back_are_not_buried: bool = True
    """… but not the release of one grant: its waiter may ask again."""
    resent_are_crossed: bool = True
    """Whose question was under way then releases, at the end, whatever a copy has made of it."""
    refused_are_released: bool = True
    """… also one that did not wait, and was told that the lock is taken."""


# What there is


class Terms(NamedTuple):
    """What all agree upon: how long things last, in ticks, and whether leases are renewed."""

    ttl: int = 2
    claim: int = 1
    late: int = 1
    """For how long after it was sent a question or a renewal is carried out."""
    renews: bool = True
    """Without it, a claim is confirmed, and after that a lease is not made longer."""
    ahead: int = 0
    """How many grants a client may be ahead of the server; with 0 it hands nothing on."""


class Phase(StrEnum):
    """How far a task has come with its acquisition."""

    IDLE = "idle"
    ASKED = "asks"
    """It awaits the answer to a question."""
    QUEUED = "queued"
    CALLED = "called"
    """The grant is there, and the task has not run yet."""
    BACK = "gives back"
    """The grant was there too late; the task awaits the answer to its release."""
    BODY = "in its body"
    LATE = "in its body too late"
    DONE = "done"


WAITING: Final = frozenset({Phase.ASKED, Phase.QUEUED, Phase.CALLED, Phase.BACK})


class Task(NamedTuple):
    """One task of a client, and its one acquisition."""

    phase: Phase = Phase.IDLE
    age: int = 0
    """How long ago it began, until it is answered for the first time."""
    lag: int = UNANSWERED
    """By how much its clock is behind at worst: the age that a question had at the server."""
    ticket: int = 0
    """Its place in the queue, once it knows."""
    fence: int = 0
    left: int = 0
    """Of its grant: the fence, and for how long it is certainly its own."""
    order_unknown: int = 0
    """Grants up to this fence are not to be entered."""
    outdated: bool = False
    """Whether to ask once more when it has an answer."""
    crossed: bool = False
    """Whether a question was under way when a push brought the grant."""
    tries: bool = False
    """Whether it does not wait where the lock is not free."""
    unconfirmed: bool = False
    """Where leases are not renewed: whether its claim is still to be confirmed."""
    failing: int = NEVER
    """Where it stands in the queue and a question has failed: how long until one ends the wait."""


class Report(NamedTuple):
    """What a client has handed on among its tasks, one after the other."""

    source: int
    since: int
    """The first of them, and the fence of its grant."""
    via: tuple[int, ...]
    """Those who were handed the lock; the last has it, or hands it on by another report."""
    fence: int
    """That of the last."""


class Command(NamedTuple):
    """An entry in a client's pipe, until its reply is read."""

    what: Literal["ask", "release", "renew", "pass"]
    task: int
    number: int = 0
    """The ticket of a question (-1: it does not wait); the fence that a release or a renewal means
    (0: any), or that was handed on."""
    age: int = 0
    awaited: bool = False
    """Whether the task awaits the answer; not when it asks from the queue, or has given up."""
    dropped: bool = False
    """Whether nobody cares for the answer any more."""
    answer: Answer | None = None
    """What the server has replied; the reply is on its way."""
    lasts: int = 0
    """For how long the server still takes it, once its connection has broken; of a release: for how
    long it keeps out what was sent before."""
    report: Report | None = None
    """With a ``pass``: what it reports."""
    again: bool = False
    """… and whether it is sent for the second time, so that its answer may not be the first."""


class Answer(NamedTuple):
    """What the server replies."""

    what: Literal[
        "granted", "queued", "busy", "done", "renewed", "refused", "passed", "unknown script"
    ]
    number: int = 0
    """The fence or the ticket."""
    ticks: int = 0
    """How long the lease is, or in how long it is worth while to ask again."""
    lag: int = 0
    """How old the question was when the server came to it."""
    displaced: bool = False
    """Whether the waiter had a place in the queue and had lost it."""
    push: Push | None = None
    """With the reply to a release: the grant that went to another task of the same client."""
    before: tuple[int, int] | None = None
    """For one that has just come: the task of the same client that stands directly before it, and
    the fence of its grant where it is the holder."""


class Push(NamedTuple):
    """What the server sends unasked, or its confirmation of a subscription."""

    what: Literal["granted", "lost", "broken", "void", "subscribed"]
    task: int = 0
    fence: int = 0
    lease: int = 0
    age: int = 0


class Run(NamedTuple):
    """What a client knows of the order of its tasks, and has done by itself because of that."""

    behind: tuple[tuple[int, int], ...] = ()
    """Of tasks that wait or are in their bodies: which one stands directly behind."""
    present: int = -1
    """The task that was handed the lock last."""
    unsent: tuple[Report, ...] = ()
    failed: tuple[Report, ...] = ()
    """What is to be reported, and what nobody knows to have been."""
    passed: tuple[tuple[int, int], ...] = ()
    """The grants that were handed on, by task and fence, and the server has not confirmed that."""
    overtaken: bool = False
    """Whether somebody came before one of these: until all is confirmed, nobody stands behind."""

    @property
    def reports(self) -> tuple[Report, ...]:
        """All that is not under way, in order."""
        return (*self.failed, *self.unsent)


class Client(NamedTuple):
    """One process: its tasks, its two connections, and what is under way on them."""

    tasks: tuple[Task, ...]
    alive: bool = True
    stopped: bool = False
    linked: bool = True
    pipe: tuple[Command, ...] = ()
    """Its commands in order; those that are answered come first."""
    strays: tuple[tuple[Command, ...], ...] = ()
    """What each of the connections that are broken may still carry to the server."""
    broken: int = 0
    """For how many ticks they may: since the last of them broke."""
    hears: bool = True
    counted: bool = True
    """Whether its subscription works, and whether the server believes that it does."""
    inbox: tuple[Push, ...] = ()
    line: tuple[int, ...] = ()
    """Its tasks that wait and have been told of their place, in the order in which they were."""
    alarm: int = NEVER
    """In how many ticks the first of these asks again."""
    unreleased: tuple[tuple[int, int], ...] = ()
    """Its releases that have failed, by task and fence, in the order in which they did."""
    run: Run = Run()


class Who(NamedTuple):
    """A waiter's id, as the server knows it."""

    client: int
    task: int


class Holder(NamedTuple):
    """A grant at the server."""

    who: Who
    fence: int
    left: int
    unconfirmed: bool = False
    """Where leases are not renewed: whether it is a claim that was not confirmed."""


class Tombstone(NamedTuple):
    """Who was given up, and for how long copies of what it had sent may still come."""

    who: Who
    left: int


class Place(NamedTuple):
    """A place in the queue."""

    ticket: int
    who: Who


class Server(NamedTuple):
    """What the server knows of the one name there is."""

    holders: tuple[Holder, ...] = ()
    queue: tuple[Place, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    last: int = 0
    """The key with the last fence; 0 when it is gone."""
    clock_is_back: bool = False
    tickets: int = 0
    """The last ticket: who asks next is behind it."""
    highest: int = 0
    fence_fell: bool = False
    """For the search alone: the highest fence ever, and whether a later one was not higher."""
    acted_late: bool = False
    sent_away: bool = False
    """For the search alone: whether it did something for a waiter that had been given up, and
    whether it sent one away that would wait, or that found nobody before it."""
    overtook: bool = False
    """For the search alone: whether a client handed on what was another's turn."""
