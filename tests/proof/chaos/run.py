"""A history, sorted: the events of each attempt, and what was in its way."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Final

from aiolock.protocol import WAS_ABSENT, WAS_HOLDER, WaiterId
from aiolock.stores.redis._codec import waiter_of
from aiolock.stores.redis.cluster._slots import slot_of, slot_of_key
from tests.proof.chaos.faults import (
    ATTACKS,
    BLINDING,
    ELECTIONS,
    FORGETS,
    HARMLESS,
    KINDS,
    NO_MAJORITY,
    PROCESS,
    REFUSALS,
    RESTORES,
    STARTS,
    UNPLANNED,
    Attack,
)
from tests.proof.chaos.history import Event

NS: Final = 1_000_000_000

LAG: Final = 1 * NS
"""How late anything may be on a machine that has other things to do."""
AT_ONCE: Final = NS // 20
"""The longest time from an event to the task that waits for it, if it is not stopped."""
ROUND_TRIP: Final = NS // 20
"""The longest round trip to the servers, if nothing disturbs it."""
STEP: Final = NS // 1000
"""The longest time from a task's last look at the clock to its record that it entered."""
TICK: Final = NS // 500
"""How early a timer may be: uvloop rounds it to milliseconds, and its clock as well."""
CLOSE: Final = 5 * NS
"""The time in which a client that is closed may give back what it has."""
COMMAND: Final = 10 * NS
"""How long a store tries to carry out a command before nobody knows."""
LATE: Final = 5 * NS
"""For how long the server may still carry out a copy of a command."""
WHO_HOLDS: Final = 1 * NS
"""How much longer a client that timed out waits for the holder's name, without an answer."""
STALLED: Final = NS // 2
"""How long a process that ran again needs to take back its places in the queues."""


_OF_PROCESSES: Final = (
    *("arrives", "has", "watches", "looked", "wants", "begins", "breaking", "closing"),
    *("took", "in_line", "has_path"),
)
"""Events that only a process writes, apart from its attempts."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept, and the events that show it."""

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

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(list(zip(self._from, self._to, strict=True)))

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


def at_once(spans: Iterable[tuple[int, int]], count: int) -> Windows:
    """The times when at least so many of these spans were open."""
    changes = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    windows: list[tuple[int, int]] = []
    open_, since = 0, 0
    for t, change in changes:
        if change == 1 and open_ == count - 1:
            since = t
        elif change == -1 and open_ == count:
            windows.append((since, t))
        open_ += change
    return Windows(windows)


@dataclass(slots=True, eq=False)
class Acquisition:
    """One attempt, from its events."""

    id: str
    asked: Event
    queued: list[int] = field(default_factory=list[int])
    """When the store answered that it stands in the queue, each time."""
    queue_asked: list[int] = field(default_factory=list[int])
    """When the store was asked for each of these answers."""
    entered: Event | None = None
    deadline: int = 0
    """Until when its lease is its own, by the last event."""
    downgrading: int | None = None
    """When it began to become a reader."""
    told: int | None = None
    left: int | None = None
    taken_back: int | None = None
    """When a release was called before the body had left, or before it began."""
    cancelling: int | None = None
    ended: Event | None = None
    held_until: int = 0
    """When the release was called that found the grant, by the store's answer."""
    given_back: int | None = None
    """When the store gave that answer."""
    detaching: Event | None = None
    """When it began to hand its lease on."""
    detached: int | None = None
    """When the store had answered that this is done."""
    events: list[Event] = field(default_factory=list[Event])

    # If several servers vote
    ticket: int = 0
    """Its ticket at all servers; 0 if it has not heard of any."""
    stands: dict[int, list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict[int, list[tuple[int, int]]](list)
    )
    """By server: when it was asked for a place, and when it answered that it has one, each time."""
    votes: list[int] = field(default_factory=list[int])
    """When each vote that it heard of was given (µs of the server); 0 if that is not known."""
    in_line: dict[int, list[int]] = field(default_factory=lambda: defaultdict[int, list[int]](list))
    """By server: when the questions were sent to which it answered "in line", or with a vote."""
    voters: set[int] = field(default_factory=set[int])
    """The servers that ever voted for it."""
    votes_after: list[int] = field(default_factory=list[int])
    """For each vote: a time before which it was certainly not given, if that time is not known."""
    given: dict[int, int] = field(default_factory=dict[int, int])
    """By server: when the last vote that it heard of was given, as in `votes`."""
    given_after: dict[int, int] = field(default_factory=dict[int, int])
    """By server: a time before which that vote was certainly not given, as in `votes_after`."""
    first_votes: dict[int, int] = field(default_factory=dict[int, int])
    """By server: a time, in ms, before which its first vote was not given, if that is known.

    A vote with the full lease that was asked for may have been given in the same ms, by a push.
    """
    takings: list[tuple[Event, Event | None]] = field(
        default_factory=list[tuple[Event, Event | None]]
    )
    """The breaks of its votes: their beginnings and answers."""

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
        """Whether it shares the lock from the beginning."""
        return bool(self.asked["shared"])

    @property
    def permits(self) -> int:
        return int(self.asked["permits"])

    @property
    def ttl(self) -> int:
        return int(self.asked["ttl"] * NS)

    @property
    def adopts(self) -> int:
        """The fence of what it adopts; 0 if it asks for its own grant."""
        return int(self.asked.data.get("adopts", 0))

    @property
    def outcome(self) -> str:
        return str(self.ended["outcome"]) if self.ended else ""

    def deadline_at(self, t: int) -> int:
        """Its deadline as it stood at ``t``."""
        stood = 0
        for event in self.events:
            if event.kind in {"entered", "deadline"} and event.t <= t:
                stood = event["deadline"]
        return stood

    @property
    def sent(self) -> int:
        """When it asked the first of several servers."""
        return min(asked for those in self.stands.values() for asked, _ in those)

    @property
    def round_trip(self) -> int:
        """How long the servers took to answer its first questions: the median."""
        took = sorted(said - asked for (asked, said), *_ in self.stands.values())
        return took[len(took) // 2]

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
    attempt: Acquisition
    shared: bool


@dataclass(slots=True)
class Several:
    """The facts about several servers that vote."""

    number: int = 0
    """How many servers there are."""
    faults: dict[tuple[str, int], list[tuple[int, int]]] = field(
        default_factory=lambda: defaultdict[tuple[str, int], list[tuple[int, int]]](list)
    )
    """A slot, or all, and a server -> when the server was broken for it."""
    disturbed: dict[tuple[str, int], Windows] = field(
        default_factory=dict[tuple[str, int], Windows]
    )
    """A process and a server -> when anything disturbed them."""
    without: dict[str, Windows] = field(default_factory=dict[str, Windows])
    """A process -> when it could not reach a majority."""
    forgetting: list[Event] = field(default_factory=list[Event])
    """When some servers lost their votes."""
    forgot: dict[int, list[Event]] = field(
        default_factory=lambda: defaultdict[int, list[Event]](list)
    )
    """A server -> when it lost its votes."""
    marked: dict[str, list[Event]] = field(
        default_factory=lambda: defaultdict[str, list[Event]](list)
    )
    """A name that is done once -> when a server said that it is done."""
    kept: dict[str, list[Event]] = field(
        default_factory=lambda: defaultdict[str, list[Event]](list)
    )
    """A name with a posted value -> when a server said that it has it."""
    new: list[Event] = field(default_factory=list[Event])
    """When a server was told that it has forgotten nothing."""
    bearers: dict[WaiterId, WaiterId] = field(default_factory=dict[WaiterId, WaiterId])
    """The waiter that was voted for -> the waiter that has the lock by these votes, now or last."""
    takings: dict[tuple[str, str], list[Acquisition]] = field(
        default_factory=lambda: defaultdict[tuple[str, str], list[Acquisition]](list)
    )
    """A process and a name -> the attempts whose votes it is breaking, without an answer yet."""

    @property
    def most(self) -> int:
        """How many servers are a majority."""
        return self.number // 2 + 1

    def apart(self, slot: str, server: int) -> Windows:
        """When a server was broken, or the way to it from this slot."""
        return Windows(self.faults[slot, server] + self.faults["all", server])


class Run:
    """A history, sorted by attempt, process and server."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.events = sorted(events, key=attrgetter("t"))
        self.attempts: dict[str, Acquisition] = {}
        self.killed: dict[str, Event] = {}
        self._gone: dict[str, int] = defaultdict(lambda: self.events[-1].t)
        self._passing: dict[str, int] = defaultdict(int)
        """Until when a killed process counts as alive: the server was started."""
        self.stalls: dict[str, Windows] = {}
        self._closings: dict[str, list[int]] = defaultdict(list)
        self._reconnected: dict[str, list[int]] = defaultdict(list)
        self.wipes: list[Event] = []
        self.failovers: list[Event] = []
        self._clients: dict[str, str] = {}
        self._opened: dict[str, int] = {}
        self._openings: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._client: dict[str, str] = {}
        """The client that each process opened last."""
        self._closed: dict[str, int] = {}
        self.waiters: dict[WaiterId, str] = {}
        """A waiter -> its attempt."""
        self.over: dict[WaiterId, int] = {}
        """A waiter -> when the store had answered that it has ended."""
        self.standing: list[Event] = []
        self._lapsed: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
        """A process and a name -> when its waiters for it may have left the queue."""
        self._breaks: dict[tuple[str, str, int], tuple[Event, Event | None]] = {}
        self._broken: dict[tuple[str, int], tuple[Event, Event | None]] = {}
        self.discarding: dict[tuple[str, int], int] = {}
        """A name and a fence -> when the token of that grant was first discarded."""
        self._breaks_of: dict[tuple[str, int], list[tuple[Event, Event]]] = defaultdict(list)
        """A name and a fence -> each break of it, and the answer."""
        self._stalls: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._faults: dict[str, list[tuple[str, tuple[int, int]]]] = defaultdict(list)
        self._blind = list[tuple[int, int]]()
        """When no connection could be made."""
        self._several = Several()
        self._attack = Attack({}, {})
        self._elections = list[tuple[int, int]]()
        """When other leaders were elected, where that prolongs leases."""
        self.ahead: int | None = None
        """The server's clock minus that of the history, if that is known."""
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

    # Reading the events

    def _note_began(self, event: Event) -> None:
        if "store" in event.data:
            self._attack = ATTACKS[event["store"]]
            self._several.number = self._attack.servers

    def _note_asked(self, event: Event) -> None:
        self.attempts[event["a"]] = Acquisition(event["a"], event, events=[event])

    def _of(self, event: Event) -> Acquisition:
        attempt = self.attempts[event["a"]]
        attempt.events.append(event)
        return attempt

    def _of_grant(self, event: Event) -> Acquisition | None:
        """The attempt whose grant a body has entered with; readers may share a fence."""
        attempt = self.attempts.get(event["a"])
        if attempt is None or attempt.entered is None or attempt.fence != event["fence"]:
            return None
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

    def _note_taken_back(self, event: Event) -> None:
        attempt = self._of(event)
        attempt.taken_back = attempt.taken_back or event.t

    def _note_cancelling(self, event: Event) -> None:
        self._of(event).cancelling = event.t

    def _note_ended(self, event: Event) -> None:
        self._of(event).ended = event

    _note_done = _note_ended

    def _note_detaching(self, event: Event) -> None:
        self._of(event).detaching = event

    def _note_detached(self, event: Event) -> None:
        self._of(event).detached = event.t

    def _note_discarding(self, event: Event) -> None:
        self.discarding.setdefault((event["n"], event["fence"]), event.t)

    def _note_given_back(self, event: Event) -> None:
        attempt = self._of_grant(event)
        if attempt is not None and event["was"] == WAS_HOLDER:
            attempt.held_until = max(attempt.held_until, event["since"])
            attempt.given_back = event.t
        elif attempt is not None and event["was"] == WAS_ABSENT:
            # It was late, if only by less than a stall. Its lease had ended, so that its process
            # was taken for stuck, and its waiters for this name left the queue for a while.
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
        for attempt in self._several.takings.pop((event.who, event["n"]), ()):
            attempt.takings = [(began, over or event) for began, over in attempt.takings]

    def opening(self, who: str, at: int) -> int:
        """How long the opening took that this process had ended in the second before; else 0."""
        took = [end - begin for begin, end in self._openings[who] if at - NS < end <= at]
        return max(took, default=0)

    def _note_stall(self, event: Event) -> None:
        self._stalls[event.who].append((event["since"], event.t))

    def _note_block(self, event: Event) -> None:
        # The process writes a stall event when this is over, unless it is killed before.
        self._stalls[event.who].append((event.t, event.t + int(event["seconds"] * NS)))

    def _note_opened(self, event: Event) -> None:
        self._openings[event.who].append((event["since"], event.t))
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
        if self.presence and event["kind"] in ELECTIONS:
            self._elections.append(span)
        if event.data.get("servers"):
            for server in event["servers"]:
                self._several.faults[event["target"], server].append(span)
                if event["kind"] in FORGETS:
                    self._several.forgetting.append(event)
                    self._several.forgot[server].append(event)
            return
        if event["kind"] in BLINDING:
            self._blind.append(span)
            return
        self._faults[event["target"]].append((event["kind"], span))

    @property
    def claim(self) -> int:
        """The longest lease and claim: the cost of a stuck process."""
        return int(self._attack.claim * NS)

    @property
    def presence(self) -> int:
        """How long a dead process may pass for alive, where that is not known at once."""
        return int(self._attack.presence * NS)

    @property
    def lingers(self) -> int:
        """For how long others may find a lease alive that its client takes for ended."""
        return int(self._attack.lingers * NS)

    def lasting(self, end: int) -> int:
        """Until when a lease may last that would end at ``end``: another leader begins it anew."""
        for began, settled in self._elections:
            if began <= end:
                end = max(end, settled + self.presence)
        return end

    def lasting_of_the_dead(self, who: str) -> int:
        """Until when a grant to a process may last that was killed before it was given back."""
        return self.gone(who) + self.claim if self.presence else 0

    @property
    def servers(self) -> int:
        """How many servers vote; 0 where none does."""
        return self._several.number

    @property
    def most(self) -> int:
        """How many servers are a majority."""
        return self._several.most

    def _of_waiter(self, event: Event) -> Acquisition | None:
        attempt = self.attempts.get(self.waiters.get(waiter_of(event["w"]), ""))
        if attempt is not None:
            attempt.events.append(event)
        return attempt

    def _note_stands(self, event: Event) -> None:
        attempt = self._of_waiter(event)
        if attempt is not None and event["ticket"] >= attempt.ticket:
            if event["ticket"] > attempt.ticket:  # it has given up its places, and asked anew
                attempt.stands.clear()
                attempt.first_votes.clear()
            attempt.ticket = event["ticket"]
            attempt.stands[event["server"]].append((event["since"], event.t))
            attempt.in_line[event["server"]].append(event["since"])

    def _note_voted(self, event: Event) -> None:
        attempt = self._of_waiter(event)
        if attempt is not None:
            attempt.voters.add(event["server"])
        if attempt is not None and attempt.entered is None:
            server, granted = event["server"], event["granted"] // 1000
            line = attempt.in_line[server]
            if not granted and line:
                line.pop()  # the answer tells of this vote, which it had already
            attempt.votes.append(event["granted"])
            attempt.given[server] = event["granted"]
            attempt.given_after[server] = line[-1] if line else 0
            attempt.votes_after.append(line[-1] if line else 0)
            if granted:
                before = attempt.first_votes.get(server, granted)
                attempt.first_votes[server] = min(before, granted)

    def _note_marked(self, event: Event) -> None:
        self._several.marked[event["n"]].append(event)

    def _note_kept(self, event: Event) -> None:
        self._several.kept[event["n"]].append(event)

    def _note_enrols(self, event: Event) -> None:
        self._several.new.append(event)

    def _note_taking(self, event: Event) -> None:
        attempt = self._of_waiter(event)
        bearer = self.attempts.get(self.waiters.get(self.bearer(waiter_of(event["w"])), ""))
        for each in {attempt, bearer} - {None}:
            assert each is not None
            each.takings.append((event, None))
            self._several.takings[event.who, event["n"]].append(each)

    def _note_handed(self, event: Event) -> None:
        votes, taker = waiter_of(event["of"]), waiter_of(event["w"])
        before = self.attempts.get(self.waiters.get(self.bearer(votes), ""))
        attempt = self._of_waiter(event)
        self._several.bearers[votes] = taker
        if attempt is None or before is None:
            return
        # The votes may be taken away by now, and its client has not heard of that.
        for began, over in before.takings:
            if over is None or event.t < over.t + LAG:
                attempt.takings.append((began, over))
                if over is None:
                    self._several.takings[began.who, began["n"]].append(attempt)

    def bearer(self, waiter: WaiterId) -> WaiterId:
        """The waiter that has the lock by the votes of one: perhaps another of its client."""
        return self._several.bearers.get(waiter, waiter)

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

    # After the last event

    def _regard(self) -> None:
        """Take into account how the store differs from others."""
        attack = self._attack
        started = [event.t for event in self.of("began")]
        started += [event.t for event in self.of("fault") if event["kind"] in STARTS]
        grace = int(attack.grace * NS)
        for who, killed in self.killed.items():
            # It died before the start, or during it: it counts as alive until then.
            later = [end + grace for end in started if end + grace > killed.t] if grace else []
            if self.presence:
                later.append(self.lasting(killed.t + self.presence))
            self._passing[who] = max(later, default=0)
        if attack.keeps:
            slots = [faults for slot, faults in self._faults.items() if slot != "all"]
            of_slots = [fault for faults in slots for fault in faults]
            self._faults["all"] += of_slots

    def _extend(self) -> None:
        """Faults that cut connections while none could be made last until they could."""
        for target, faults in self._faults.items():
            self._faults[target] = [
                (kind, (begin, max([end, *(b[1] for b in self._blind if b[0] <= end <= b[1])])))
                for kind, (begin, end) in faults
            ]

    def gone(self, who: str) -> int:
        """When a killed process last counted as alive, as far as is known."""
        died = self.killed[who].t
        return max(died, self._gone.get(who, died), self._passing[who])

    def _index(self) -> None:
        self._regard()
        self._extend()
        processes = {attempt.who for attempt in self.attempts.values()}
        processes |= {event.who for event in self.of(*_OF_PROCESSES)}
        for who in processes:
            stalls = self._stalls[who]
            self.stalls[who] = Windows(stalls)
            slot = who.partition(".")[0]
            apart = [self._several.apart(slot, server) for server in range(self.servers)]
            faults = self._faults[slot] + self._faults["all"]
            # Faults that leave a majority disturb no process.
            most = at_once([span for each in apart for span in each], self._several.most)
            self._several.without[who] = most if self.servers else Windows()
            faults += [(NO_MAJORITY, span) for span in self._several.without[who]]
            after = [(begin, end + STALLED) for begin, end in stalls]
            self._disturbed[who] = Windows(after + [span for _, span in faults])
            self._hampered[who] = Windows(
                after + [span for kind, span in faults if KINDS[kind].most or kind in UNPLANNED]
            )
            self._cut_off[who] = Windows(span for kind, span in faults if kind not in PROCESS)
            self._refused[who] = Windows(span for kind, span in faults if kind in REFUSALS)
            unrefused = [span for kind, span in faults if kind not in REFUSALS]
            self._unrefused[who] = Windows(after + unrefused)
            for server, each in enumerate(apart):
                self._several.disturbed[who, server] = Windows([*self._disturbed[who], *each])
        exact = min(self.standing, key=lambda event: event.t - event["since"], default=None)
        if exact is not None:
            self.ahead = exact["now"] * 1000 - (exact["since"] + exact.t) // 2
        breaks: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for (_, name, _), (began, over) in self._breaks.items():
            # Without an answer, the break may be carried out as long as the store tries.
            breaks[name].append((began.t, over.t + LAG if over else began.t + COMMAND))
            if over is not None:
                for fence in began["fences"]:
                    self._breaks_of[name, fence].append((began, over))
        self._broken_names = {name: Windows(spans) for name, spans in breaks.items()}
        self.entries: dict[str, list[Acquisition]] = defaultdict(list)
        entered = [a for a in self.attempts.values() if a.entered is not None]
        for attempt in sorted(entered, key=lambda a: a.entered.t if a.entered else 0):
            self.entries[attempt.name].append(attempt)

    @property
    def dead(self) -> set[str]:
        """The clients of the processes that were killed."""
        return {client for client, who in self._clients.items() if who in self.killed}

    def unheard(self, key: str) -> set[str]:
        """The clients that were closed while the server refused, so that they gave nothing back.

        With several servers: while the server that has this key could not be reached.
        """
        server = self.server_of(key)
        found = set[str]()
        for client, at in self._closed.items():
            who = self._clients[client]
            apart = server is not None and self.disturbed_at(who, server, at, at + CLOSE)
            if apart or self._refused[who].touch(at, at + CLOSE):
                found.add(client)
        return found

    def server_of(self, key: str) -> int | None:
        """The server, of several, at which this key was seen: it is a prefix of the key."""
        return int(key.partition("/")[0]) if self.servers else None

    def resurrected(self, key: str) -> set[str]:
        """The clients whose leaving of a queue a fail-over may have forgotten.

        With several servers: a server that was restarted with saved data.
        """
        server = self.server_of(key)
        if server is not None:
            restored = max((event.t for event in self._restarts(server)), default=0)
            return {client for client, at in self._opened.items() if at < restored}
        slot = slot_of_key(key.encode())
        last = max((each.t for each in self.failovers if _touches(each, slot)), default=0)
        return {client for client, at in self._opened.items() if at < last}

    def unreleased(self, key: str) -> set[str]:
        """The clients whose release of a grant a fail-over has forgotten."""
        slot, stem = slot_of_key(key.encode()), key.rpartition(":")[0]
        members = self.standing[-1]["holders"].get(stem, ()) if self.standing else ()
        waiters = {waiter_of(member.rpartition(":")[0]) for member in members}
        return {
            waiter.client
            for waiter in waiters
            for failover in self.failovers
            if _touches(failover, slot)
            and failover["since"] - LAG <= self.over.get(waiter, 0) <= failover.t
        }

    def of(self, *kinds: str) -> Iterator[Event]:
        """All events of these kinds."""
        return (event for event in self.events if event.kind in kinds)

    def clear_since(self, attempt: Acquisition, t: int) -> int:
        """Since when nothing has kept this attempt from its place in the queue, and from pushes."""
        since = self._disturbed[attempt.who].clear_since(t)
        if attempt.name in self._broken_names:
            since = max(since, self._broken_names[attempt.name].clear_since(t))
        lapsed = self._lapsed.get((attempt.who, attempt.name))
        return max(since, Windows(lapsed).clear_since(t)) if lapsed else since

    def stood_since(self, attempt: Acquisition, t: int) -> int | None:
        """Since when it has certainly stood in the queue, undisturbed, until ``t``; or None.

        A question from before the undisturbed time may have been answered before it: the place was
        lost, and the answer about that was heard. With several servers, it has to stand at a
        majority, the same servers all the time.
        """
        if self.servers:
            return self._stood_at_most(attempt, t)
        index = bisect_left(attempt.queue_asked, self.clear_since(attempt, t))
        return attempt.queued[index] if index < len(attempt.queued) else None

    def _stood_at_most(self, attempt: Acquisition, t: int) -> int | None:
        clear = self.clear_since(attempt, t)
        since: list[int] = []
        for server, those in attempt.stands.items():
            there = max(clear, self._several.disturbed[attempt.who, server].clear_since(t))
            since += [said for asked, said in those if asked >= there][:1]
        most = self.most
        return sorted(since)[most - 1] if len(since) >= most else None

    def disturbed(self, who: str, begin: int, end: int) -> bool:
        """Whether anything disturbed this process."""
        return self._disturbed[who].touch(begin, end)

    def forgotten(self, who: str, begin: int, end: int) -> bool:
        """Whether several servers may, within these times, refuse to know what they had voted for.

        Some servers have forgotten it, and the others were no majority.
        """
        return any(
            event["since"] <= end
            and begin <= event.t
            and self._several.without[who].touch(event["since"], end)
            for event in self._several.forgetting
        )

    def clear_at(self, attempt: Acquisition, server: int, t: int) -> int:
        """Since when nothing has kept an attempt from its place at one of several servers."""
        there = self._several.disturbed[attempt.who, server]
        return max(self.clear_since(attempt, t), there.clear_since(t))

    def forgets(self, said: Event, until: int) -> bool:
        """Whether a server may have lost, by ``until``, what it has said that it knows.

        A restart with saved data loses nothing that it had said before the restart.
        """
        return any(
            event["since"] <= until
            and said["since"] <= event.t
            and not (event["kind"] in RESTORES and said.t <= event["since"])
            for event in self._several.forgot[said["server"]]
        )

    def restored(self, server: int, t: int, until: int) -> bool:
        """Whether a server was restarted, from then on, with what it had saved before then."""
        return any(event["since"] <= t <= event.t <= until for event in self._restarts(server))

    def _restarts(self, server: int) -> Iterator[Event]:
        """Those of one of several servers with what it had saved."""
        return (event for event in self._several.forgot[server] if event["kind"] in RESTORES)

    def still_done(self, name: str, told: int, until: int) -> set[int]:
        """The servers that know at ``until`` that work is done, as a client was told at ``told``.

        None has to if a majority was emptied at once, which is a new quorum.
        """
        marked = self._several.marked[name]
        done = {event["fence"] for event in marked if event.t <= told}
        new = {event["server"] for event in self._several.new if told <= event.t <= until}
        if len(new) >= self.most:
            return set()
        return {
            event["server"]
            for event in marked
            if event.t <= until and event["fence"] in done and not self.forgets(event, until)
        }

    def kept_by(self, name: str, count: int, since: int, until: int) -> tuple[set[int], set[int]]:
        """The servers that had a count by ``since``, and those that still have it at ``until``."""
        those = [e for e in self._several.kept[name] if e["count"] >= count and e.t <= since]
        had = {event["server"] for event in those}
        return had, {event["server"] for event in those if not self.forgets(event, until)}

    def unsure(self, who: str, begin: int, end: int) -> bool:
        """Whether too few servers could tell a process that something is not done.

        The servers that count have never lost their memory: a majority of all servers has to tell,
        or all that count, if they are fewer.
        """
        for t in (begin, end):
            lost = {
                server
                for server, events in self._several.forgot.items()
                if any(event["since"] <= t for event in events)
            }
            left = {*range(self.servers)} - lost
            heard = [each for each in left if not self.disturbed_at(who, each, begin, end)]
            if len(heard) < min(self.most, len(left)):
                return True
        return False

    def bare(self, attempt: Acquisition, end: int) -> bool:
        """Whether it may have lost a bare majority, because a minority has forgotten.

        It had no vote of the others, and another process could not reach these: a vote for that
        process may not have been given back there yet.
        """
        begin = self.relied_since(attempt)
        given = self._given(attempt)
        forgot = {
            server
            for server, events in self._several.forgot.items()
            if any(
                event["since"] <= end and given.get(server, begin) <= event.t for event in events
            )
        }
        missing = {*range(self.servers)} - attempt.voters
        away = {
            server
            for server in missing
            for who in self._disturbed
            if self.disturbed_at(who, server, begin - LAG, end)
        }
        left = len(attempt.voters - forgot)
        return bool(forgot and attempt.voters) and away == missing and left < self.most

    def disturbed_at(self, who: str, server: int | None, begin: int, end: int) -> bool:
        """Whether anything disturbed this process, with several servers on its way to this one."""
        if server is None:
            return self.disturbed(who, begin, end)
        return self._several.disturbed[who, server].touch(begin, end)

    def period(self, attempt: Acquisition) -> int | None:
        """The period of a run; None if a majority of its votes is not known to be of one period."""
        if not self.servers:
            return self.periods(attempt).pop()
        period, votes = self._most_votes(attempt)
        return period if votes >= self.most else None

    def is_of_two_periods(self, attempt: Acquisition) -> bool:
        """Whether no majority of its votes can be of one period."""
        unknown = list(attempt.given.values()).count(0)
        return bool(self.servers) and self._most_votes(attempt)[1] + unknown < self.most

    def _most_votes(self, attempt: Acquisition) -> tuple[int, int]:
        """The period of most of its votes, and how many of them are certainly of it."""
        every = round(attempt.asked["every"] * 1e6)
        periods = Counter(granted // every for granted in attempt.given.values() if granted)
        return max(periods.items(), key=itemgetter(1), default=(0, 0))

    def forgotten_by_any(self, attempt: Acquisition, until: int) -> bool:
        """Whether a server that had voted for it may have lost its memory since."""
        return any(
            event["since"] <= until and given <= event.t
            for server, given in self._given(attempt).items()
            for event in self._several.forgot[server]
        )

    def _given(self, attempt: Acquisition) -> dict[int, int]:
        """By server: a time before which it had not given the vote with which it was entered."""
        return {
            server: granted * 1000 - self.ahead
            if granted and self.ahead is not None
            else max(attempt.asked.t, attempt.given_after[server])
            for server, granted in attempt.given.items()
        }

    def relied_since(self, attempt: Acquisition) -> int:
        """Since when it may lose what it entered with: perhaps long before it heard of it."""
        assert attempt.entered is not None
        return min(self._given(attempt).values(), default=attempt.entered.t)

    def periods(self, attempt: Acquisition) -> set[int]:
        """All periods that a run may be of."""
        every = round(attempt.asked["every"] * 1e6)
        if not self.servers:
            return {attempt.fence // every}
        assert attempt.entered is not None
        assert self.ahead is not None
        entered = (attempt.entered.t + self.ahead) // 1000
        return {(granted or entered) // every for granted in (*attempt.votes, entered)}

    def refused_only(self, who: str, begin: int, end: int) -> bool:
        """Whether refusals of the server disturbed it, and nothing else did."""
        disturbed = self._disturbed[who].touch(begin, end)
        return disturbed and not self._unrefused[who].touch(begin, end)

    def all_connected(self, begin: int, end: int) -> bool:
        """Whether all processes could reach the server, and none was killed."""
        return not any(cut.touch(begin, end) for cut in self._cut_off.values()) and not any(
            killed["since"] <= end and begin <= killed.t + self.claim
            for killed in self.killed.values()
        )

    def reconnected(self, who: str, begin: int, end: int) -> bool:
        """Whether the subscription of a process came back within these times."""
        return any(begin <= at <= end for at in self._reconnected[who])

    def who_is(self, waiter: WaiterId) -> str | None:
        """The process of a waiter."""
        return self._clients.get(waiter.client)

    def in_trouble(self, begin: int, end: int) -> int:
        """How many processes may have been given a lock without hearing of it, or died with one."""
        return sum(
            self.disturbed(who, begin, end)
            or (
                who in self.killed
                and self.killed[who]["since"] <= end
                and begin <= max(self._gone[who], self._passing[who])
            )
            for who in self._disturbed
        )

    def doubts(self, attempt: Acquisition, begin: int, end: int) -> Iterator[tuple[str, int, int]]:
        """The events that may have taken a waiter's place: text, time, and when it must ask."""
        for at in self._reconnected[attempt.who]:
            # Unless a fault that is still on keeps it from asking.
            if begin < at < end and not self._hampered[attempt.who].touch(at, at + LAG):
                yield "its subscription was lost", at, at + LAG
        for wipe in self.wipes:
            if begin < wipe["since"] and wipe.t < end:
                due = wipe.t + self.claim + LAG
                yield "the queue was wiped", wipe.t, due + self._trouble(attempt.who, wipe.t, end)

    def _trouble(self, who: str, begin: int, end: int) -> int:
        """For how long a process was disturbed."""
        return self._disturbed[who].cover(begin, end)

    def closing(self, who: str, begin: int, end: int) -> int | None:
        """When this process began to close its client; None if it did not within these times."""
        index = bisect_left(self._closings[who], begin)
        closings = self._closings[who][index : index + 1]
        return closings[0] if closings and closings[0] <= end else None

    def wiped(self, attempt: Acquisition) -> Event | None:
        """The wipe in which the grant was lost, if any."""
        return _first_after(self.wipes, attempt.fence)

    def failed_over(self, attempt: Acquisition) -> list[Event]:
        """The fail-overs that may have forgotten something of the grant.

        A fail-over of another name's master does not count, and neither does one after which the
        grant was renewed: the next master had it, then. (A renewal whose answer lay in a socket for
        long does not reach as far as that.)
        """
        return [
            failover
            for failover in self.failovers
            if attempt.fence < failover["fence"]
            and _touches(failover, slot_of(attempt.name))
            and attempt.deadline < failover.t + self.claim
        ]

    def _relied_until(self, attempt: Acquisition, end: int) -> int:
        """Until when, ``end`` at the latest, the grant lasted by what the masters surely have."""
        assert attempt.entered is not None
        for failover in self.failed_over(attempt):
            since = failover["since"]
            replicated = since - LAG
            lasted = since
            if attempt.entered["heard"] <= replicated:
                # The grant was not forgotten, but perhaps its renewal was.
                lasted = max(lasted, attempt.deadline_at(replicated))
            end = min(end, lasted)
        return end

    def broken(self, attempt: Acquisition) -> tuple[Event, Event | None] | None:
        """The beginning of a break of this grant, and the store's answer."""
        if self.servers:
            return self._taken_away(attempt)
        return self._broken.get((attempt.name, attempt.fence))

    def _taken_away(self, attempt: Acquisition) -> tuple[Event, Event | None] | None:
        """The first break of votes with which it has entered."""
        most = self._several.most
        for began, over in attempt.takings:
            assert self.ahead is not None
            ahead = self.ahead
            votes = zip(attempt.votes, attempt.votes_after, strict=True)
            given = [granted * 1000 - ahead if granted else after for granted, after in votes]
            if sum(t > began.t for t in given) < most:
                return began, over
        return None

    def broken_by_fence(self, attempt: Acquisition) -> Iterator[tuple[Event, Event]]:
        """Each break of its fence while it was inside, and the answer."""
        assert attempt.entered is not None
        for began, over in self._breaks_of.get((attempt.name, attempt.fence), ()):
            if attempt.entered.t < began.t:
                yield began, over

    def late(self, attempt: Acquisition, due: int, t: int) -> bool:
        """Whether something came too late, counting only time in which its process ran."""
        return t - due - self.stalls[attempt.who].cover(due, t) > LAG

    def span(self, attempt: Acquisition) -> tuple[int, int]:
        """The time in which a body may rely on the lock: see `tests.proof.chaos.checker`."""
        assert attempt.entered is not None
        begin = attempt.entered.t
        ends = [attempt.deadline]
        ends += [t for t in (attempt.left, attempt.told) if t is not None]
        if attempt.who in self.killed:
            ends.append(self.killed[attempt.who].t)
        back = attempt.taken_back
        unguarded = attempt.asked["style"] in {"await", "wait_for"}
        if back is not None and unguarded and self.closing(attempt.who, attempt.asked.t, back):
            ends.append(back)
        wiped, broken = self.wiped(attempt), self.broken(attempt)
        if wiped is not None:
            ends.append(wiped["since"])
        if broken is not None:
            ends.append(broken[0].t)
        return begin, self._relied_until(attempt, max(min(ends), attempt.held_until))

    def wiped_between(self, begin: int, end: int, name: str | None = None) -> bool:
        """Whether the server lost, or may have lost, its state between two moments.

        With a name: its state of that name.
        """
        failovers = [f for f in self.failovers if name is None or _touches(f, slot_of(name))]
        return any(begin <= wipe.t and wipe["since"] <= end for wipe in (*self.wipes, *failovers))

    def parts(self, attempt: Acquisition) -> list[Part]:
        """The span of a body as one part, or as two: a writer's, and then a reader's."""
        begin, end = self.span(attempt)
        if attempt.downgrading is None or attempt.downgrading >= end:
            parts = [Part(begin, end, attempt, attempt.shared)]
        else:
            parts = [
                Part(begin, attempt.downgrading, attempt, shared=False),
                Part(attempt.downgrading, end, attempt, shared=True),
            ]
        return [part for part in parts if part.end > part.begin]

    def may_be_spent(self, attempt: Acquisition) -> bool:
        """Whether the token may have been spent by which an attempt would have adopted a grant."""
        name, fence, ended = attempt.name, attempt.adopts, attempt.waited_until
        of = next((a for a in self.entries.get(name, ()) if a.fence == fence), None)
        if of is None or of.detaching is None or ended is None or attempt.entered is not None:
            return False
        others = (a for a in self.attempts.values() if a.name == name and a.adopts == fence)
        forgetting = (*self.wipes, *self.failovers)
        return (
            (name, fence) in self.discarding
            or (name, fence) in self._broken
            or any(other is not attempt and other.asked.t < ended for other in others)
            or any(fence < event["fence"] for event in forgetting)
            or ended >= of.detaching.t + int(of.detaching["ttl"] * NS) - TICK
        )

    def violation(self, rule: str, text: str, *attempts: Acquisition) -> Violation:
        """A violation, with all events of these attempts and all faults at the time."""
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


def _touches(failover: Event, slot: int) -> bool:
    """Whether the master that was replaced had this slot; without a cluster it had all slots."""
    slots = failover.data.get("slots")
    return slots is None or any(first <= slot <= last for first, last in slots)


def _first_after(forgetting: list[Event], fence: int) -> Event | None:
    """The first of these events that is younger than a grant."""
    index = bisect_right(forgetting, fence, key=lambda event: event["fence"])
    return forgetting[index] if index < len(forgetting) else None
