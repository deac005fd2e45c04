"""One server that votes, as a pure state machine: no I/O, no clock, no event loop.

Members in this process run this code, and the Redis scripts are tested against it. Read it beside
``redis/lua/quorum/*.lua``: each method of `VoterStep` is the script of the same name.

A server is a fair queue whose grants are votes; `aiolock.stores.quorum._votes` says what follows
from the votes of several servers. The differences from `aiolock.stores.machine` serve that. A
waiter brings its ticket, so that all lines have one order. A vote has a number that only grows, and
every message about a vote names it. A waiter that gives way stands in line again, and gets a new
number even if it is first. A server that may have forgotten its votes gives none for a while.

There is one vote out, or there are several to waiters that share, as with the grants of a single
server: a reader stands behind a waiting writer, and readers next to each other in line get votes
together. If a waiter comes before waiters with votes, and does not share with them, the server
inquires of all of them.

What is done once leaves a *mark* in place of its vote: as long as it is remembered, that is a vote
without an owner, so a server never has both a mark and a vote out. See
`aiolock.stores.quorum._marks` for what follows. A waiter for a count needs no vote and blocks no
other waiter: it is told when the count is reached.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from aiolock.store import PRIORITY, WAS_ABSENT, WAS_HOLDER, WAS_QUEUED, WAS_UNKNOWN, Form, Waiter
from aiolock.stores._member import (
    ALONE,
    GONE,
    LOST,
    OUTSIDE,
    SHARED,
    UNBOUNDED,
    Answer,
    Crowded,
    InLine,
    Kept,
    Marked,
    MemberInbox,
    Recalled,
    Refused,
    Silent,
    Stand,
    Voted,
)
from aiolock.stores.machine import (
    KEEP_ALIVE,
    PushDone,
    PushGranted,
    PushLost,
    PushRequested,
    looks_for_dead,
)

REMEMBERED: Final = 600_000
"""Milliseconds for which the last number of a name is kept after the last vote has ended."""
NOBODY: Final = "-"
"""The client that owns the vote of a name that stays closed for a while."""
_CLOSED: Final = Waiter(NOBODY, 0)
_DONE: Final = Waiter(NOBODY, 1)
"""Owns a mark: the vote of a name whose work is done."""
LOOKED_AT: Final = 128
"""How many waiters in line are checked for other clients; a longer line may have some."""
COUNTED: Final = 31_536_000_000
"""Milliseconds, a year: a count that was reached stays reached, for its waiters."""


class PushInquired(NamedTuple):
    """See `MemberInbox.inquired`."""

    waiter: Waiter
    number: int

    def deliver(self, name: str, inbox: MemberInbox) -> None:
        inbox.inquired(name, self.waiter, self.number)


Push = PushGranted | PushLost | PushRequested | PushDone | PushInquired


@dataclass(slots=True)
class Vote:
    """A vote that is out."""

    waiter: Waiter
    form: Form
    number: int
    ticket: int
    end: int
    """When the lease ends, in ms."""
    granted: int
    """When the vote was given, in ms."""
    unsure: bool = True
    """No client has said that its waiter is inside."""

    @property
    def nobodys(self) -> bool:
        return self.waiter.client == NOBODY

    @property
    def marks(self) -> bool:
        """Whether it is a mark."""
        return self.waiter == _DONE

    @property
    def place(self) -> tuple[int, Waiter]:
        """Where its waiter would stand in line."""
        return self.ticket, self.waiter


class VoterState:
    """The state of one name."""

    __slots__ = (
        "count",
        "given_up",
        "last",
        "last_until",
        "line",
        "posted_until",
        "shared",
        "value",
        "vote",
        "waiting",
    )

    def __init__(self) -> None:
        self.vote: Vote | None = None
        """The vote that is out to a waiter that does not share."""
        self.shared: list[Vote] = []
        """Or the votes that are out to waiters that share."""
        self.line: list[tuple[int, Waiter]] = []
        """Tickets and waiters, in order."""
        self.waiting: dict[Waiter, tuple[int, Form]] = {}
        """The same, by waiter."""
        self.last = 0
        """The highest number known here, until `last_until` (ms)."""
        self.last_until = 0
        self.given_up: dict[Waiter, int] = {}
        """Waiters that gave up, and until when (ms) copies of their questions may come."""
        self.count = 0
        self.value = ""
        """The posted value, until `posted_until` (ms)."""
        self.posted_until = 0

    @property
    def out(self) -> list[Vote]:
        """All votes that are out, in the order of their ends."""
        if self.vote is not None:
            return [self.vote]
        return sorted(self.shared, key=lambda vote: vote.end)

    def vote_of(self, waiter: Waiter, number: int = 0) -> Vote | None:
        """The vote of this waiter; only the one of that number, unless it is 0."""
        mine = [vote for vote in self.out if vote.waiter == waiter]
        return next((vote for vote in mine if number in {0, vote.number}), None)

    def put(self, vote: Vote) -> None:
        if vote.form.shared:
            self.shared.append(vote)
        else:
            self.vote = vote

    def take(self, vote: Vote) -> None:
        if vote.form.shared:
            self.shared.remove(vote)
        else:
            self.vote = None

    def fits(self, form: Form) -> bool:
        """Whether a waiter of this form may have a vote beside those that are out."""
        return self.vote is None and (form.shared or not self.shared)

    def idle(self, ms: int) -> bool:
        """Whether nothing of it has to be kept."""
        if any(vote.end > ms for vote in self.out) or self.line:
            return False
        if self.posted_until > ms:
            return False
        return self.last_until <= ms and all(end <= ms for end in self.given_up.values())

    def line_up(self, stand: tuple[int, Waiter], form: Form) -> None:
        ticket, waiter = stand
        if waiter not in self.waiting:
            self.waiting[waiter] = ticket, form
            insort(self.line, stand)

    def leave(self, waiter: Waiter) -> bool:
        if waiter not in self.waiting:
            return False
        ticket, _ = self.waiting.pop(waiter)
        del self.line[bisect_left(self.line, (ticket, waiter))]
        return True


class VoterStep:
    """One operation on the state of one name, at one moment.

    ``now`` is the server's clock, in µs; ``silent`` is for how many ms it does not vote, 0 if it
    does (see `Silent`). ``listens`` says whether a client is there. Afterwards `pushes` are to be
    sent, in their order.
    """

    def __init__(
        self, state: VoterState, now: int, listens: Callable[[str], bool], silent: int = 0
    ) -> None:
        self._state = state
        self._now = now
        self._ms = now // 1000
        self._listens = listens
        self._silent = silent
        self.pushes: list[Push] = []
        self._asker = ""
        self._proposed = 0
        """What the asker proposes as the number of its own vote."""
        if state.last_until <= self._ms:
            state.last = 0
        if state.posted_until <= self._ms:
            state.count, state.value = 0, ""

    # The operations

    def vote(self, stand: Stand, ttl: int, proposal: int, *, wait: bool, most: int) -> Answer:
        """See `Member.vote`."""
        state, waiter, form = self._state, stand.waiter, stand.form
        self._asker, self._proposed = waiter.client, proposal
        said = self._without_a_vote(stand, wait=wait)
        if said is not None:
            return said
        place, fits = (stand.ticket, waiter), state.fits(form)
        if fits:
            head = self._head()
            if head is None or place <= head:
                state.leave(waiter)
                return self._cast(place, form, ttl, proposal)
        removed = False
        if wait:
            crowd = self._crowd(waiter, most)
            if crowd is not None:
                return crowd
            removed = self._line_up(place, form)
            if not fits:
                self._inquire(place, form)
        # Dead waiters may have kept others from sharing.
        voted = self._advance(asking=waiter) if fits or (removed and state.shared) else None
        return voted or self._in_line(waiter, wait=wait)

    def release(
        self, waiter: Waiter, highest: int, upto: int, *, entered: int, bury: int = 0
    ) -> int:
        """See `Member.release`; ``bury``: until when, in µs, copies of its questions may come."""
        state = self._state
        self._asker = waiter.client
        was_in_line = state.leave(waiter)
        self._learn(highest)
        if bury:
            alive = {each: end for each, end in state.given_up.items() if end > self._ms}
            state.given_up = alive | {waiter: -(-bury // 1000)}
        vote = state.vote_of(waiter)
        if vote is None or (upto != UNBOUNDED and vote.number > upto):
            if was_in_line and state.shared:
                self._advance()  # it may have kept waiters behind it from sharing
            missing = WAS_UNKNOWN if vote is None and self._silent else WAS_ABSENT
            return WAS_QUEUED if was_in_line else missing
        state.take(vote)
        lost = self._ms if entered == LOST else None
        if entered != OUTSIDE:
            self._close(vote, lost=lost, entered=entered)
        if state.vote is None:
            self._advance()
        return WAS_HOLDER

    def give_way(self, stand: Stand, number: int) -> Answer:
        """See `Member.give_way`."""
        state, waiter = self._state, stand.waiter
        self._asker = waiter.client
        vote = state.vote_of(waiter, number)
        if vote is None:
            return Refused(self._now)
        state.take(vote)
        state.line_up((stand.ticket, waiter), stand.form)
        return self._advance(asking=waiter) or self._in_line(waiter, wait=True)

    def renew(self, waiter: Waiter, number: int, ttl: int, fence: int, *, entered: bool) -> bool:
        """See `Member.renew`."""
        vote = self._state.vote_of(waiter, number)
        if vote is None or vote.end <= self._ms:
            return False
        if ttl:
            vote.end = max(vote.end, self._ms + ttl)
            vote.unsure = vote.unsure and not entered
            self._learn(fence, lasts=ttl)
        return True

    def reserve(self, waiter: Waiter, number: int, fence: int) -> int:
        """See `Member.reserve`."""
        state, vote = self._state, self._state.vote_of(waiter, number)
        if vote is None or vote.end <= self._ms:
            return GONE
        self._learn(fence, lasts=vote.end - self._ms)
        if len(state.line) > LOOKED_AT:
            return SHARED
        own = all(each.client == waiter.client for _, each in state.line)
        return ALONE if own else SHARED

    def take_away(self, waiter: Waiter) -> int:
        """See `Member.take_away`."""
        vote = self._state.vote_of(waiter)
        if vote is None:
            return 0
        self._end(vote, "broken", self._ms)
        if self._state.vote is None:
            self._advance()
        return 1

    def request(self) -> int:
        """See `Member.request`."""
        asked = [vote for vote in self._state.out if not vote.nobodys and vote.end > self._ms]
        self.pushes += [PushRequested(vote.waiter, vote.number) for vote in asked]
        return sum(self._listens(vote.waiter.client) for vote in asked)

    def finish(self, waiter: Waiter, fence: int, remember: int, until: int) -> int:
        """See `Member.finish`."""
        state, vote = self._state, self._state.vote
        known = vote if vote is not None and vote.marks and vote.end > self._ms else None
        if not remember:
            return int(known is not None and known.number == fence)
        if vote is not None and vote.end > self._ms:
            if not vote.nobodys and vote.waiter != waiter:
                return 0
        elif state.shared or (vote is not None and vote.waiter != waiter):
            self._reap()
            if state.shared:
                return 0
            vote = state.vote  # the name may be closed for a while now
        end = min(self._ms + remember, until or self._ms + remember)
        if end <= self._ms:
            return int(known is not None)
        state.leave(waiter)
        if vote is not None and vote.nobodys:
            end = max(end, vote.end)
        number = fence if known is None else max(fence, known.number)
        terms = Form(claim=0, fixed=True, once=True)
        state.vote = Vote(_DONE, terms, number, 0, end, self._ms, unsure=False)
        waiting = [each for _, each in state.line if state.waiting[each][1].once]
        for each in waiting:
            state.leave(each)
        one_of_each = {each.client: each for each in reversed(waiting)}
        self.pushes += [PushDone(each) for each in waiting if one_of_each[each.client] is each]
        return 1

    def recall(self, forgot: int) -> Recalled:
        """See `Member.recall`; ``forgot`` is how long ago the server lost its memory, as there."""
        vote = self._state.vote
        if vote is None or not vote.marks or vote.end <= self._ms:
            return Recalled(0, 0, forgot, self._now)
        return Recalled(vote.number, vote.end - self._ms, forgot, self._now)

    def post(self, count: int, value: str, remember: int) -> int:
        """See `Member.post`."""
        state = self._state
        if value and count >= state.count:
            state.value = value
        state.count = max(state.count, count)
        state.posted_until = max(state.posted_until, self._ms + remember)
        for _, waiter in list(state.line):
            form = state.waiting[waiter][1]
            if not form.counts or form.number > state.count:
                continue
            state.leave(waiter)
            if self._listens(waiter.client):
                push = PushGranted(waiter, form, form.number, COUNTED, self._now)
                self.pushes.append(push)
        return state.count

    def read(self) -> Kept:
        """See `Member.read`."""
        state = self._state
        return Kept(state.count, state.value, max(0, state.posted_until - self._ms))

    # The steps of the operations

    def _without_a_vote(self, stand: Stand, *, wait: bool) -> Answer | None:
        """The answer if the waiter gets no vote, or has one already; else None."""
        state, (_, waiter, form, _) = self._state, stand
        if self._silent:
            return Silent(self._silent, self._now)
        if state.given_up.get(waiter, 0) > self._ms:
            return Refused(self._now)
        if form.counts:
            return self._counted(stand, wait=wait)
        self._reap()
        vote = state.vote_of(waiter)
        if vote is not None:
            return Voted(vote.number, vote.end - self._ms, self._now)
        vote = state.vote
        if form.once and vote is not None and vote.marks:
            state.leave(waiter)
            return Marked(vote.number, vote.end - self._ms, self._now)
        return None

    def _counted(self, stand: Stand, *, wait: bool) -> Answer:
        """A waiter for a count has it once it is reached; before, it waits in line for a push."""
        state, form = self._state, stand.form
        if state.count >= form.number:
            state.leave(stand.waiter)
            return Voted(form.number, COUNTED, self._now)
        if wait:
            self._line_up((stand.ticket, stand.waiter), form)
        return InLine(KEEP_ALIVE, int(wait), self._now)

    def _inquire(self, place: tuple[int, Waiter], form: Form) -> None:
        """Inquire of all waiters behind this one that have votes and do not share with it."""
        for vote in self._state.out:
            if place < vote.place and not vote.nobodys and not (form.shared and vote.form.shared):
                self.pushes.append(PushInquired(vote.waiter, vote.number))

    def _reap(self) -> None:
        """Remove votes whose lease has ended, and the waiters of their clients, which are stuck."""
        for vote in self._state.out:
            if vote.end <= self._ms:
                self._reap_one(vote)

    def _reap_one(self, vote: Vote) -> None:
        state = self._state
        self._end(vote, "expired", vote.end)
        if vote.unsure or not vote.form.fixed:
            for _, waiter in list(state.line):
                if waiter.client == vote.waiter.client:
                    state.leave(waiter)

    def _end(self, vote: Vote, reason: str, lost: int) -> None:
        """A vote was lost."""
        self._state.take(vote)
        if not vote.nobodys:
            self.pushes.append(PushLost(vote.waiter, vote.number, reason))
            self._close(vote, lost=lost)

    def _head(self) -> tuple[int, Waiter] | None:
        """The first live waiter; dead waiters before it are removed."""
        line = self._state.line
        while line and not self._is_there(line[0][1].client):
            self._state.leave(line[0][1])
        return line[0] if line else None

    def _is_there(self, client: str) -> bool:
        return client == self._asker or self._listens(client)

    def _crowd(self, waiter: Waiter, most: int) -> Crowded | None:
        """The answer if ``most`` others stand in line; dead ones do not count."""
        state = self._state
        if 0 < most <= len(state.line) and waiter not in state.waiting:
            self._remove_dead()
            if most <= len(state.line):
                crowd = Crowded(len(state.line), self._now)
                if state.shared:
                    self._advance()  # dead waiters may have kept others from sharing
                return crowd
        return None

    def _line_up(self, place: tuple[int, Waiter], form: Form) -> bool:
        """Give it a place in line; whether dead waiters were removed, see `looks_for_dead`."""
        state, (ticket, waiter) = self._state, place
        is_new = waiter not in state.waiting
        state.line_up(place, form)
        return is_new and looks_for_dead(ticket, state.line) and self._remove_dead()

    def _remove_dead(self) -> bool:
        """Remove the waiters of dead clients; whether there were any."""
        state, before = self._state, len(self._state.line)
        for _, waiter in list(state.line):
            if not self._is_there(waiter.client):
                state.leave(waiter)
        return len(state.line) < before

    def _in_line(self, waiter: Waiter, *, wait: bool) -> InLine:
        state, out = self._state, self._state.out
        until = out[0].end - self._ms if out else 0
        if not wait:
            return InLine(until, 0, self._now)
        return InLine(until, 1 if state.line[0][1] == waiter else 2, self._now)

    def _cast(self, place: tuple[int, Waiter], form: Form, lease: int, proposal: int) -> Voted:
        """Vote for this waiter; without a proposal, under the next number."""
        state, (ticket, waiter) = self._state, place
        # The last number is forgotten if the name was not used for long: then the ticket counts,
        # a time as well, or what the asker proposes for itself, which may be a later one. Not the
        # clock of this server: all servers would have to follow it.
        least = proposal or max(ticket - form.priority * PRIORITY, self._proposed)
        number = state.last + 1 if state.last and not proposal else max(state.last + 1, least)
        self._learn(number, lasts=lease)
        state.put(Vote(waiter, form, number, ticket, self._ms + lease, self._ms))
        return Voted(number, lease, self._now)

    def _learn(self, number: int, lasts: int = 0) -> None:
        """The last number known is at least this from now on."""
        state = self._state
        if number:
            state.last = max(state.last, number)
            state.last_until = max(state.last_until, self._ms + lasts + REMEMBERED)

    def _advance(self, *, asking: Waiter | None = None) -> Voted | None:
        """Vote for the first waiters in line while they fit; returns the vote of ``asking``."""
        state, mine = self._state, None
        while not self._silent and (head := self._head()) is not None:
            _, waiter = head
            _, form = state.waiting[waiter]
            if not state.fits(form):
                break
            state.leave(waiter)
            voted = self._cast(head, form, form.claim, 0)
            if waiter == asking:
                mine = voted
            else:
                push = PushGranted(waiter, form, voted.number, form.claim, self._now)
                self.pushes.append(push)
            if not form.shared:
                break  # no other waiter fits beside it
        return mine

    def _close(self, vote: Vote, *, lost: int | None = None, entered: int = 0) -> None:
        """Keep the name closed for as long as the terms of a vote that has ended say.

        If the vote was shared, only waiters that do not share are kept out.
        """
        form, state = vote.form, self._state
        if not form.closes:
            return
        opens = form.opens(vote.granted, lost, confirmed=lost is None or not vote.unsure)
        if lost is None and form.after_grant:
            # The waiter entered later than it got this vote.
            opens = max(opens, self._ms - entered + form.after_grant)
        if opens <= self._ms:
            return
        terms = Form(claim=0, fixed=True, shared=form.shared)
        closed = Vote(_CLOSED, terms, vote.number, 0, opens, vote.granted, unsure=False)
        state.put(closed)
        if state.line:
            self.pushes.append(PushDone(state.line[0][1]))
