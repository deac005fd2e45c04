"""A history, put together: what belongs to each attempt, and what was in its way."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from aiolock.store import WAS_ABSENT, WAS_HOLDER, Waiter
from aiolock.stores.redis._codec import waiter_of
from tests.chaos.faults import ATTACKS, HARMLESS, KINDS, PROCESS, REFUSALS, STARTS, Attack
from tests.chaos.history import Event

NS: Final = 1_000_000_000

LAG: Final = 1 * NS
"""By how much anything may be late on a machine that has other things to do."""
AT_ONCE: Final = NS // 20
"""How long a task needs, at most, from what it waited for to going on, if it is not stopped."""
STEP: Final = NS // 1000
"""How long a task needs, at most, from its last look at the clock to noting that it entered."""
TICK: Final = NS // 500
"""By how much a timer may be early: uvloop rounds it to milliseconds, and so is its clock."""
CLAIM: Final = 2 * NS
"""The longest ttl here, so the longest lease and claim: what a process costs that is stuck."""
CLOSE: Final = 5 * NS
"""In which a client that is closed may give back what it has."""
COMMAND: Final = 10 * NS
"""How long a store tries to carry out a command before nobody knows."""
LATE: Final = 5 * NS
"""For how long the server may still carry out a copy of what was sent."""
WHO_HOLDS: Final = 1 * NS
"""How much longer whoever timed out waits for the name of the holder, where nobody answers."""
STALLED: Final = NS // 2
"""How long a process that ran again needs to take back its places in the queues."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept, and what was written down about it."""

    rule: str
    text: str
    excerpt: tuple[Event, ...] = ()


class Windows:
    """Spans of time, merged."""

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        self._from: list[int] = []
        self._to: list[int] = []
        self._before: list[int] = [0]  # how much time all windows before one cover
        for begin, end in sorted(spans):
            if self._to and begin <= self._to[-1]:
                self._to[-1] = max(self._to[-1], end)
            else:
                self._from.append(begin)
                self._to.append(end)
        for begin, end in zip(self._from, self._to, strict=True):
            self._before.append(self._before[-1] + end - begin)

    def _until(self, t: int) -> int:
        index = bisect_right(self._from, t)
        over = max(0, self._to[index - 1] - t) if index else 0
        return self._before[index] - over

    def cover(self, begin: int, end: int) -> int:
        """How much of a span is inside of windows."""
        return max(0, self._until(end) - self._until(begin))

    def touch(self, begin: int, end: int) -> bool:
        """Whether a span and a window have a moment in common."""
        index = bisect_right(self._from, end)
        return index > 0 and self._to[index - 1] >= begin

    def clear_since(self, t: int) -> int:
        """Since when no window has been open at ``t``; ``t + 1`` inside of one."""
        index = bisect_right(self._from, t)
        if index == 0:
            return 0
        end = self._to[index - 1]
        return t + 1 if end >= t else end + 1


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt, as it was written down."""

    id: str
    asked: Event
    queued: list[int] = field(default_factory=list[int])
    """When the store has answered that it stands in the queue, each time."""
    queue_asked: list[int] = field(default_factory=list[int])
    """And when it was asked that."""
    entered: Event | None = None
    deadline: int = 0
    """Until when its lease is its own, as that stood last."""
    downgrading: int | None = None
    """When it began to become a reader."""
    told: int | None = None
    left: int | None = None
    cancelling: int | None = None
    ended: Event | None = None
    held_until: int = 0
    """When the release was called of which the store said that it found the grant."""
    given_back: int | None = None
    """When the store said so."""
    events: list[Event] = field(default_factory=list[Event])

    @property
    def who(self) -> str:
        return self.asked.who

    @property
    def name(self) -> str:
        return str(self.asked["n"])

    @property
    def fence(self) -> int:
        assert self.entered is not None
        return int(self.entered["fence"])

    @property
    def shared(self) -> bool:
        """Whether it shares the lock from the first."""
        return bool(self.asked["shared"])

    @property
    def permits(self) -> int:
        return int(self.asked["permits"])

    @property
    def ttl(self) -> int:
        return int(self.asked["ttl"] * NS)

    @property
    def outcome(self) -> str:
        return str(self.ended["outcome"]) if self.ended else ""

    @property
    def waited_until(self) -> int | None:
        """When the waiting was over."""
        end = self.entered or self.ended
        return end.t if end else None


@dataclass(frozen=True, slots=True)
class Part:
    """A time in which a body may rely on the lock, alone or beside others."""

    begin: int
    end: int
    attempt: Attempt
    shared: bool


class Run:
    """A history, sorted by what belongs together."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = sorted(events, key=attrgetter("t"))
        self.attempts: dict[str, Attempt] = {}
        self.killed: dict[str, Event] = {}
        self._gone: dict[str, int] = defaultdict(lambda: self.events[-1].t)
        self._passing: dict[str, int] = defaultdict(int)
        """Until when a process that was killed passes for alive: the server was started."""
        self.stalls: dict[str, Windows] = {}
        self._grants: dict[tuple[str, int], Attempt] = {}
        self._closings: dict[str, list[int]] = defaultdict(list)
        self._reconnected: dict[str, list[int]] = defaultdict(list)
        self.wipes: list[Event] = []
        self.failovers: list[Event] = []
        self._clients: dict[str, str] = {}
        self._opened: dict[str, int] = {}
        self._client: dict[str, str] = {}
        """The one that each process has opened last."""
        self._closed: dict[str, int] = {}
        self.waiters: dict[Waiter, str] = {}
        """A waiter -> its attempt."""
        self.over: dict[Waiter, int] = {}
        """The same -> when the store had answered that it is no more."""
        self.standing: list[Event] = []
        self._lapsed: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        """A process and a name -> when its waiters for it may have left the queue."""
        self._breaks: dict[tuple[str, str, int], tuple[Event, Event | None]] = {}
        self._broken: dict[tuple[str, int], tuple[Event, Event | None]] = {}
        self._stalls: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._faults: dict[str, list[tuple[str, tuple[int, int]]]] = defaultdict(list)
        self.ahead: int | None = None
        """The server's clock less that of the history, where that is known."""
        self._disturbed: dict[str, Windows] = {}
        self._cut_off: dict[str, Windows] = {}
        self._refused: dict[str, Windows] = {}
        self._unrefused: dict[str, Windows] = {}
        self._hampered: dict[str, Windows] = {}
        for event in self.events:
            note = getattr(self, f"_note_{event.kind}", None)
            if note is not None:
                note(event)
        self._index()

    # As it is read

    def _note_asked(self, event: Event) -> None:
        self.attempts[event["a"]] = Attempt(event["a"], event, events=[event])

    def _of(self, event: Event) -> Attempt:
        attempt = self.attempts[event["a"]]
        attempt.events.append(event)
        return attempt

    def _of_grant(self, event: Event) -> Attempt | None:
        attempt = self._grants.get((event["n"], event["fence"]))
        if attempt is not None:
            attempt.events.append(event)
        return attempt

    def _note_queued(self, event: Event) -> None:
        attempt = self._of(event)
        attempt.queued.append(event.t)
        attempt.queue_asked.append(event["since"])

    def _note_entered(self, event: Event) -> None:
        attempt = self._of(event)
        attempt.entered = event
        attempt.deadline = event["deadline"]
        self._grants[event["n"], event["fence"]] = attempt

    def _note_deadline(self, event: Event) -> None:
        attempt = self._of_grant(event)
        if attempt is not None:
            attempt.deadline = event["deadline"]

    def _note_told(self, event: Event) -> None:
        self._of(event).told = event.t

    def _note_downgrading(self, event: Event) -> None:
        attempt = self._of(event)
        attempt.downgrading = attempt.downgrading or event.t

    def _note_left(self, event: Event) -> None:
        self._of(event).left = event.t

    def _note_cancelling(self, event: Event) -> None:
        self._of(event).cancelling = event.t

    def _note_ended(self, event: Event) -> None:
        self._of(event).ended = event

    _note_done = _note_ended

    def _note_given_back(self, event: Event) -> None:
        attempt = self._of_grant(event)
        if attempt is not None and event["was"] == WAS_HOLDER:
            attempt.held_until = max(attempt.held_until, event["since"])
            attempt.given_back = event.t
        elif attempt is not None and event["was"] == WAS_ABSENT:
            # It was late, if only by less than a stall: its lease had ended, so that its process
            # was taken for stuck, and its waiters for this name have left the queue for a while.
            ended = self._lapsed[event.who, event["n"]]
            ended.append((min(attempt.deadline, event["since"]), event.t + LAG))

    def _note_breaking(self, event: Event) -> None:
        self._breaks[event.who, event["n"], event["id"]] = event, None
        for fence in event["fences"]:
            self._broken.setdefault((event["n"], fence), (event, None))

    def _note_broke(self, event: Event) -> None:
        key = event.who, event["n"], event["id"]
        began, _ = self._breaks[key]
        self._breaks[key] = began, event
        for fence in began["fences"]:
            if self._broken[event["n"], fence][1] is None:
                self._broken[event["n"], fence] = self._broken[event["n"], fence][0], event

    def _note_stall(self, event: Event) -> None:
        self._stalls[event.who].append((event["since"], event.t))

    def _note_block(self, event: Event) -> None:
        # It says so itself when that is over; unless it is killed before that.
        self._stalls[event.who].append((event.t, event.t + int(event["seconds"] * NS)))

    def _note_opened(self, event: Event) -> None:
        self._clients[event["client"]] = event.who
        self._opened[event["client"]] = event.t
        self._client[event.who] = event["client"]

    def _note_reconnected(self, event: Event) -> None:
        self._reconnected[event.who].append(event.t)

    def _note_closing(self, event: Event) -> None:
        self._closings[event.who].append(event.t)
        if event.who in self._client:
            self._closed[self._client[event.who]] = event.t

    def _note_fault(self, event: Event) -> None:
        if event["kind"] in HARMLESS:
            return
        kind = KINDS[event["kind"]]
        span = event["since"], event.t + int(kind.settle * NS)
        self._faults[event["target"]].append((event["kind"], span))

    def _note_waits(self, event: Event) -> None:
        self.waiters[waiter_of(event["w"])] = event["a"]

    def _note_over(self, event: Event) -> None:
        self.over.setdefault(waiter_of(event["w"]), event.t)

    def _note_standing(self, event: Event) -> None:
        self.standing.append(event)

    def _note_killed(self, event: Event) -> None:
        self.killed[event["who"]] = event

    def _note_gone(self, event: Event) -> None:
        self._gone[event["who"]] = event.t

    def _note_wiped(self, event: Event) -> None:
        self.wipes.append(event)

    def _note_failed_over(self, event: Event) -> None:
        self.failovers.append(event)

    # When all is read

    def _regard(self, attack: Attack) -> None:
        """Take into account how the store differs from others."""
        started = [event.t for event in self.of("began")]
        started += [event.t for event in self.of("fault") if event["kind"] in STARTS]
        grace = int(attack.grace * NS)
        for who, killed in self.killed.items():
            # It has died before, or meanwhile: it passes for alive until then.
            later = [end + grace for end in started if end + grace > killed.t] if grace else []
            self._passing[who] = max(later, default=0)
        if attack.keeps:
            slots = [faults for slot, faults in self._faults.items() if slot != "all"]
            of_slots = [fault for faults in slots for fault in faults]
            self._faults["all"] += of_slots

    def gone(self, who: str) -> int:
        """When a process that was killed has passed for alive last, as far as is known."""
        died = self.killed[who].t
        return max(died, self._gone.get(who, died), self._passing[who])

    def _index(self) -> None:
        for began in self.of("began"):
            if "store" in began.data:
                self._regard(ATTACKS[began["store"]])
        processes = {attempt.who for attempt in self.attempts.values()}
        processes |= {event.who for event in self.of("arrives", "has", "watches", "closing")}
        for who in processes:
            stalls = self._stalls[who]
            self.stalls[who] = Windows(stalls)
            slot = who.partition(".")[0]
            faults = self._faults[slot] + self._faults["all"]
            after = [(begin, end + STALLED) for begin, end in stalls]
            self._disturbed[who] = Windows(after + [span for _, span in faults])
            self._hampered[who] = Windows(
                after + [span for kind, span in faults if KINDS[kind].most]
            )
            self._cut_off[who] = Windows(span for kind, span in faults if kind not in PROCESS)
            self._refused[who] = Windows(span for kind, span in faults if kind in REFUSALS)
            unrefused = [span for kind, span in faults if kind not in REFUSALS]
            self._unrefused[who] = Windows(after + unrefused)
        exact = min(self.standing, key=lambda event: event.t - event["since"], default=None)
        if exact is not None:
            self.ahead = exact["now"] * 1000 - (exact["since"] + exact.t) // 2
        breaks: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for (_, name, _), (began, over) in self._breaks.items():
            # Without an answer it may be carried out as long as the store tries to.
            breaks[name].append((began.t, over.t + LAG if over else began.t + COMMAND))
        self._broken_names = {name: Windows(spans) for name, spans in breaks.items()}
        self.entries: dict[str, list[Attempt]] = defaultdict(list)
        entered = [a for a in self.attempts.values() if a.entered is not None]
        for attempt in sorted(entered, key=lambda a: a.entered.t if a.entered else 0):
            self.entries[attempt.name].append(attempt)

    @property
    def dead(self) -> set[str]:
        """The clients of the processes that were killed."""
        return {client for client, who in self._clients.items() if who in self.killed}

    @property
    def unheard(self) -> set[str]:
        """The clients that were closed while the server refused, and could give back nothing."""
        return {
            client
            for client, at in self._closed.items()
            if self._refused[self._clients[client]].touch(at, at + CLOSE)
        }

    @property
    def resurrected(self) -> set[str]:
        """The clients of which a fail-over may have forgotten that they left a queue."""
        last = max((failover.t for failover in self.failovers), default=0)
        return {client for client, at in self._opened.items() if at < last}

    def of(self, *kinds: str) -> Iterator[Event]:
        """All that was written down of these kinds."""
        return (event for event in self.events if event.kind in kinds)

    def clear_since(self, attempt: Attempt, t: int) -> int:
        """Since when nothing has kept this attempt from standing in the queue, and from hearing."""
        since = self._disturbed[attempt.who].clear_since(t)
        if attempt.name in self._broken_names:
            since = max(since, self._broken_names[attempt.name].clear_since(t))
        lapsed = self._lapsed.get((attempt.who, attempt.name))
        return max(since, Windows(lapsed).clear_since(t)) if lapsed else since

    def stood_since(self, attempt: Attempt, t: int) -> int | None:
        """Since when, if at all by then, it has certainly stood in the queue, undisturbed.

        What it asked before that may have been answered before it: the place was lost, and the
        answer that told of it was heard.
        """
        index = bisect_left(attempt.queue_asked, self.clear_since(attempt, t))
        return attempt.queued[index] if index < len(attempt.queued) else None

    def disturbed(self, who: str, begin: int, end: int) -> bool:
        """Whether anything was in the way of this process."""
        return self._disturbed[who].touch(begin, end)

    def refused_only(self, who: str, begin: int, end: int) -> bool:
        """Whether the server's refusals were in its way, and nothing besides."""
        disturbed = self._disturbed[who].touch(begin, end)
        return disturbed and not self._unrefused[who].touch(begin, end)

    def all_connected(self, begin: int, end: int) -> bool:
        """Whether all the processes could reach the server, and none was killed."""
        return not any(cut.touch(begin, end) for cut in self._cut_off.values()) and not any(
            killed["since"] <= end and begin <= killed.t + CLAIM for killed in self.killed.values()
        )

    def reconnected(self, who: str, begin: int, end: int) -> bool:
        """Whether a process had its subscription again, within these times."""
        return any(begin <= at <= end for at in self._reconnected[who])

    def who_is(self, waiter: Waiter) -> str | None:
        """The process of a waiter."""
        return self._clients.get(waiter.client)

    def in_trouble(self, begin: int, end: int) -> int:
        """How many processes may have been given a lock that they did not hear of, or died with."""
        return sum(
            self.disturbed(who, begin, end)
            or (
                who in self.killed
                and self.killed[who]["since"] <= end
                and begin <= max(self._gone[who], self._passing[who])
            )
            for who in self._disturbed
        )

    def doubts(self, attempt: Attempt, begin: int, end: int) -> Iterator[tuple[str, int, int]]:
        """What may have taken a waiter's place: in words, when, and by when it must ask again."""
        for at in self._reconnected[attempt.who]:
            # Unless something goes on that keeps it from asking.
            if begin < at < end and not self._hampered[attempt.who].touch(at, at + LAG):
                yield "its subscription was lost", at, at + LAG
        for wipe in self.wipes:
            if begin < wipe["since"] and wipe.t < end:
                due = wipe.t + CLAIM + LAG
                yield "the queue was wiped", wipe.t, due + self._trouble(attempt.who, wipe.t, end)

    def _trouble(self, who: str, begin: int, end: int) -> int:
        """For how long something was in the way of a process."""
        return self._disturbed[who].cover(begin, end)

    def closing(self, who: str, begin: int, end: int) -> int | None:
        """When this process began to close its client, if it did within these times."""
        index = bisect_left(self._closings[who], begin)
        closings = self._closings[who][index : index + 1]
        return closings[0] if closings and closings[0] <= end else None

    def wiped(self, attempt: Attempt) -> Event | None:
        """The wipe that the grant was lost in, if any."""
        return _first_after(self.wipes, attempt.fence)

    def failed_over(self, attempt: Attempt) -> Event | None:
        """The fail-over in which the grant may have been forgotten, if any."""
        return _first_after(self.failovers, attempt.fence)

    def broken(self, attempt: Attempt) -> tuple[Event, Event | None] | None:
        """Who began to break this grant, and the store's answer."""
        return self._broken.get((attempt.name, attempt.fence))

    def late(self, attempt: Attempt, due: int, t: int) -> bool:
        """Whether something came too late, reckoned in time in which its process ran."""
        return t - due - self.stalls[attempt.who].cover(due, t) > LAG

    def span(self, attempt: Attempt) -> tuple[int, int]:
        """The time in which a body may rely on the lock; see above."""
        assert attempt.entered is not None
        begin = attempt.entered.t
        ends = [attempt.deadline]
        ends += [t for t in (attempt.left, attempt.told) if t is not None]
        if attempt.who in self.killed:
            ends.append(self.killed[attempt.who].t)
        # What `wait_for` acquires in a task of its own may be given back before ours has it.
        handed = attempt.asked["style"] == "wait_for"
        since = attempt.entered["heard"] if handed else begin
        closing = self.closing(attempt.who, since, attempt.deadline)
        if closing is not None:
            ends.append(closing)
        wiped, broken = self.wiped(attempt), self.broken(attempt)
        if wiped is not None:
            ends.append(wiped["since"])
        if broken is not None:
            ends.append(broken[0].t)
        end = max(min(ends), attempt.held_until)
        failover = self.failed_over(attempt)
        return begin, end if failover is None else min(end, failover["since"])

    def wiped_between(self, begin: int, end: int) -> bool:
        """Whether the server lost, or may have lost, what it knew between two moments."""
        return any(
            begin <= wipe.t and wipe["since"] <= end for wipe in (*self.wipes, *self.failovers)
        )

    def parts(self, attempt: Attempt) -> list[Part]:
        """The span of a body, as one or as two: a writer's, and then a reader's."""
        begin, end = self.span(attempt)
        if attempt.downgrading is None or attempt.downgrading >= end:
            parts = [Part(begin, end, attempt, attempt.shared)]
        else:
            parts = [
                Part(begin, attempt.downgrading, attempt, shared=False),
                Part(attempt.downgrading, end, attempt, shared=True),
            ]
        return [part for part in parts if part.end > part.begin]

    def violation(self, rule: str, text: str, *attempts: Attempt) -> Violation:
        """A violation, with all that was written down about these attempts and what was broken."""
        about = {id(event): event for attempt in attempts for event in attempt.events}
        begin = min(event.t for event in about.values())
        end = max(event.t for event in about.values())
        processes = {attempt.who for attempt in attempts}
        targets = {"all", *(who.partition(".")[0] for who in processes)}
        names = {attempt.name for attempt in attempts}
        for event in self.events:
            since = event.data.get("since", event.t)
            if event.t < begin - 2 * NS or since > end:
                continue
            if (
                event.kind in {"wiped", "failed_over"}
                or (event.kind == "fault" and event["target"] in targets)
                or (event.kind == "killed" and event["who"] in processes)
                or (event.kind in {"stall", "closing", "reconnected"} and event.who in processes)
                or (event.kind in {"breaking", "broke"} and event["n"] in names)
            ):
                about[id(event)] = event
        return Violation(rule, text, tuple(sorted(about.values(), key=attrgetter("t"))))


def _first_after(forgetting: list[Event], fence: int) -> Event | None:
    """The first of these that is younger than a grant."""
    index = bisect_right(forgetting, fence, key=lambda event: event["fence"])
    return forgetting[index] if index < len(forgetting) else None
