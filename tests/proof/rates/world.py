"""A rate limit, in every order of events: the server is the real state machine.

A few waiters, of one or more clients, want tokens of one bucket; each asks once, or gives up. Time
comes in ticks, in each of which one token comes. Within a tick everything that is due happens, in
any order; then time may pass. Commands and answers are late or lost, and are sent again; a copy on
a broken connection comes later, or never; pushes are lost; clients become deaf, and die. So there
are finitely many states, and `tests.proof.protocol.search` visits all.

`World.wrong` says what must never be. The tokens are counted by a bucket of the model's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final, Literal, NamedTuple, get_args

from aiolock._rate import Rate
from aiolock.protocol import (
    Acquire,
    AskAgain,
    Form,
    Granted,
    GrantPushed,
    Operation,
    Queued,
    Release,
    Rule,
    WaiterId,
)
from aiolock.stores._bucket import Bucket
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step

Fault = Literal[
    "cancel",  # a waiter gives up
    "cut",  # a connection breaks: replies are lost, and commands, of which a copy may come later
    "lose",  # a push is lost, and nobody notices
    "deaf",  # a subscription breaks, with all pushes on it; the server notices at once
    "die",  # a process is killed; what it has sent may still be carried out
    "slow",  # a tick passes although something is due
    "clock",  # the server's clock is set back
]
EVERY_FAULT: Final[frozenset[Fault]] = frozenset(get_args(Fault))

_NAME, _TICK, _MS = "x", 1_000_000, 1000
_NOW: Final = 1_790_000_000_000_001  # a newcomer at this time looks for no dead waiters
_LATE, _REMEMBERED, _SET_BACK = 1, 4, 3
_SOON, _CLAIM = 1, 2
"""Ticks after which a waiter asks again: whose client has just asked for another, or for it."""
_NEVER: Final = -1


@dataclass(frozen=True)
class Safeguards:
    """What makes it right; each can be left out."""

    remembered: bool = True
    """The server remembers who got tokens."""
    saved_up: bool = True
    """No more tokens are saved up than the burst."""
    seen: bool = True
    """If the clock was set back, the bucket is empty, at the worst."""
    tells_next: bool = True
    """Whoever becomes the first since others have left is told to ask …"""
    tells_each: bool = True
    """… and so is each that becomes the first after it."""
    answers_overtaken: bool = True
    """… even if that comes before the answer that it is queued."""
    asks_when_due: bool = True
    """A waiter asks when its tokens are there …"""
    asks_again: bool = True
    """… also if its client has just asked for another, which gets it its own by a push."""
    buried: bool = True
    """Whoever gives up leaves a tombstone, as a copy of its question may come."""
    late: bool = True
    """A question is refused that comes too late."""


class Wrong(StrEnum):
    """What must never be."""

    TOO_MANY = "more tokens were taken than burst and rate allow, in some time"
    TWICE = "a waiter has taken its tokens twice"
    OVERTAKEN = "tokens were taken before somebody who waits, and came earlier"
    IDLE = "somebody waits, and its tokens are there"
    NOTHING = "somebody goes on without tokens"
    FOR_NOBODY = "tokens were taken for somebody who had left before"
    LEFT_BEHIND = "somebody who has left still has a place in the queue"
    FORGOTTEN = "somebody waits and, whatever happens, gets no tokens"


class Actor(NamedTuple):
    """One waiter."""

    phase: Literal["idle", "asks", "overtaken", "queued", "took", "leaves", "over", "dead"]
    """``overtaken``: it has heard of its tokens, but not of its place in the queue."""
    asks_in: int = 0
    """In how many ticks it asks."""
    ticket: int = 0
    news: bool = False
    """Whether it asks once more when it has its answer."""


class Command(NamedTuple):
    """A command under way, or its answer."""

    what: Literal["ask", "leave"]
    actor: int
    ticket: int = 0
    age: int = 0
    carried_out: bool = False
    answer: tuple[str, int, int] = ("", 0, 0)


class Kept(NamedTuple):
    """What the server keeps; all times are ticks from now."""

    full: int
    """When the bucket is full."""
    queue: tuple[tuple[int, int], ...] = ()
    """Tickets and actors."""
    granted: tuple[tuple[int, int], ...] = ()
    """Who got tokens, and for how long that is remembered."""
    tombstones: tuple[tuple[int, int], ...] = ()
    outdated: int = 0
    told: int = 0


class State(NamedTuple):
    """All of it."""

    kept: Kept
    actors: tuple[Actor, ...]
    commands: tuple[Command, ...] = ()
    strays: tuple[Command, ...] = ()
    pushes: tuple[tuple[str, int], ...] = ()
    """``grant`` and an actor, or ``ask`` and a client."""
    deaf: frozenset[int] = frozenset()
    """Clients that do not listen, or are dead."""
    took: tuple[int, ...] = ()
    """How often each has taken its tokens."""
    level: int = 0
    """The bucket of the model: in how many ticks it is full, by the true time."""
    level_seen: int = 0
    """The same, by what the server may know of the time."""
    undisturbed: bool = True
    """Whether nothing has happened for which somebody may have to wait longer."""
    faults: int = 0
    wrong: str = ""


class _Served(NamedTuple):
    kept: Kept
    answer: tuple[str, int, int]
    pushes: tuple[tuple[str, int], ...]
    taken: tuple[int, ...]


class _SavesUp(Bucket):
    """A bucket that is never full."""

    __slots__ = ()

    def full(self, now: int) -> int:
        return self.full_at


class _Blind(Bucket):
    """A bucket that does not notice when the clock is set back."""

    __slots__ = ()

    def see(self, rate: Rate, now: int, slack: int) -> None:
        pass


class World:
    """The system that is searched: waiters that want so many tokens, and their clients."""

    def __init__(
        self,
        *wants: int,
        clients: tuple[int, ...] = (),
        tries: int = 0,
        burst: int = 1,
        full: bool = False,
        faults: int = 0,
        kinds: frozenset[Fault] = EVERY_FAULT,
        guards: Safeguards | None = None,
    ) -> None:
        """The last ``tries`` of them do not wait. The bucket is empty, or ``full``."""
        self._rate = Rate(_TICK, burst)
        self._clients = clients or tuple(range(len(wants)))
        self._waits = len(wants) - tries
        self._full, self._faults, self._kinds = full, faults, kinds
        self._guards = guards or Safeguards()
        self._forms = [
            Form(
                *(_REMEMBERED * _MS, True, Rule.RATE, number, self._rate.declared),
                fixed=True,
            )
            for number in wants
        ]
        self._wants = wants
        self._least = 0 if self._guards.saved_up else -burst
        self._run = cache(self._run_on_machine)

    def initial(self) -> State:
        """Nobody has asked."""
        level = 0 if self._full else self._rate.burst
        number = len(self._wants)
        return State(
            Kept(level),
            (Actor("idle"),) * number,
            took=(0,) * number,
            level=level,
            level_seen=level,
            faults=self._faults,
        )

    def canonical(self, state: State) -> State:
        """Only the order of tickets matters, and no order of what is on the way."""
        kept = state.kept
        tickets = {ticket for ticket, _ in kept.queue} | {a.ticket for a in state.actors}
        tickets |= {command.ticket for command in (*state.commands, *state.strays)}
        tickets |= {c.answer[1] for c in state.commands if c.answer[0] == "queued"}
        rank = {ticket: number for number, ticket in enumerate(sorted(tickets | {0}))}
        outdated = max(rank[ticket] for ticket in rank if ticket <= kept.outdated)

        def ranked(command: Command) -> Command:
            kind, number, ticks = command.answer
            answer = (kind, rank[number] if kind == "queued" else number, ticks)
            return command._replace(ticket=rank[command.ticket], answer=answer)

        return state._replace(
            kept=kept._replace(
                queue=tuple((rank[ticket], who) for ticket, who in kept.queue),
                granted=tuple(sorted(kept.granted)),
                tombstones=tuple(sorted(kept.tombstones)),
                outdated=outdated,
                told=rank.get(kept.told, 0),
            ),
            actors=tuple(a._replace(ticket=rank[a.ticket]) for a in state.actors),
            commands=tuple(map(ranked, state.commands)),
            strays=tuple(sorted(map(ranked, state.strays))),
            pushes=tuple(sorted(state.pushes)),
        )

    # What may happen

    def steps(self, state: State) -> list[tuple[State, bool, str]]:
        """Everything that may happen next."""
        due = [*self._due(state), *self._on_the_way(state)]
        steps = [(after, True, label) for after, label in due]
        steps += [(after, False, label) for after, label in self._may_happen(state)]
        if not due:
            late = self._first_is_late(state)
            after = self._tick(state)
            wrong = after.wrong or (Wrong.IDLE if late else "")
            steps.append((after._replace(wrong=wrong), True, "a tick passes"))
        if state.faults:
            less = state._replace(faults=state.faults - 1)
            if due and "slow" in self._kinds:
                after = self._tick(less._replace(undisturbed=False))
                steps.append((after, False, "a tick passes, and something is slow"))
            steps += [(after, False, label) for after, label in self._break(less)]
        return steps

    def _first_is_late(self, state: State) -> bool:
        if not state.undisturbed or not state.kept.queue:
            return False
        _, first = state.kept.queue[0]
        return state.level_seen + self._wants[first] <= self._rate.burst

    def _may_happen(self, state: State) -> Iterator[tuple[State, str]]:
        for at, actor in enumerate(state.actors):
            if actor.phase == "idle":
                yield self._asks(state, at, Actor("asks")), f"{at} asks"
        for number, stray in enumerate(state.strays):
            left = state._replace(strays=state.strays[:number] + state.strays[number + 1 :])
            served, _ = self._serve(left, stray)
            yield served, f"a copy of {stray.actor}'s {stray.what} comes"

    def _due(self, state: State) -> Iterator[tuple[State, str]]:
        """What a client does by itself."""
        for client in {*self._clients}:
            waits = [at for at in self._of(client) if state.actors[at].phase == "queued"]
            due = [at for at in waits if not state.actors[at].asks_in]
            if due and not self._asking(state, due[0]) and self._guards.asks_when_due:
                after = state
                for at in due:
                    soon = _SOON if self._guards.asks_again else _NEVER
                    later = _CLAIM if at == due[0] else soon
                    after = self._with(after, at, state.actors[at]._replace(asks_in=later))
                yield self._asks(after, due[0], after.actors[due[0]]), f"{due[0]} asks again"
        for client in state.deaf:
            if any(state.actors[at].phase != "dead" for at in self._of(client)):
                heard = state._replace(deaf=state.deaf - {client})
                yield self._all_ask(heard, client), f"client {client} listens again"

    def _of(self, client: int) -> list[int]:
        return [at for at, its in enumerate(self._clients) if its == client]

    @staticmethod
    def _asking(state: State, at: int) -> bool:
        return any(each.actor == at and each.what == "ask" for each in state.commands)

    def _all_ask(self, state: State, client: int) -> State:
        for at in self._of(client):
            if state.actors[at].phase == "queued":
                state = self._has_news(state, at)
        return state

    def _has_news(self, state: State, at: int) -> State:
        actor = state.actors[at]
        if self._asking(state, at):
            return self._with(state, at, actor._replace(news=True))
        return self._asks(state, at, actor)

    def _asks(self, state: State, at: int, actor: Actor) -> State:
        after = self._with(state, at, actor._replace(news=False))
        sent = Command("ask", at, actor.ticket)
        return after._replace(commands=(*after.commands, sent))

    @staticmethod
    def _with(state: State, at: int, actor: Actor) -> State:
        return state._replace(actors=(*state.actors[:at], actor, *state.actors[at + 1 :]))

    def _on_the_way(self, state: State) -> Iterator[tuple[State, str]]:
        """What comes of commands, answers and pushes."""
        for number, command in enumerate(state.commands):
            client = self._clients[command.actor]
            before = state.commands[:number]
            others = (*before, *state.commands[number + 1 :])
            name = f"{command.actor}'s {command.what}"
            its = [each for each in before if self._clients[each.actor] == client]
            if command.carried_out and not its:
                after = self._read(state._replace(commands=others), command)
                yield after, f"{name} is answered: {command.answer}"
            elif not command.carried_out and all(each.carried_out for each in its):
                served, answer = self._serve(state, command)
                done = command._replace(carried_out=True, answer=answer)
                at_place = (*before, done, *state.commands[number + 1 :])
                yield served._replace(commands=at_place), f"{name} is carried out"
        for number, (what, whom) in enumerate(state.pushes):
            left = state._replace(pushes=state.pushes[:number] + state.pushes[number + 1 :])
            yield self._heard(left, what, whom), f"{what} reaches {whom}"

    def _heard(self, state: State, what: str, whom: int) -> State:
        if what == "grant":
            actor = state.actors[whom]
            if actor.phase == "asks":
                return self._with(state, whom, actor._replace(phase="overtaken"))
            return self._takes(state, whom) if actor.phase == "queued" else state
        its = self._of(whom)
        if waits := [at for at in its if state.actors[at].phase == "queued"]:
            return self._has_news(state, min(waits, key=lambda at: state.actors[at].ticket))
        if not self._guards.answers_overtaken:
            return state
        first = [c.actor for c in state.commands if c.actor in its and c.what == "ask"]
        asks = [at for at in first if state.actors[at].phase == "asks"]
        return self._has_news(state, asks[0]) if asks else state

    def _takes(self, state: State, at: int) -> State:
        return self._with(state, at, Actor("took"))

    def _read(self, state: State, command: Command) -> State:
        at, (kind, number, ticks) = command.actor, command.answer
        actor = state.actors[at]
        if command.what == "leave":
            return self._with(state, at, Actor("over"))
        if actor.phase not in {"asks", "overtaken", "queued"}:
            return state
        if kind == "took" or (actor.phase == "overtaken" and kind != "late"):
            return self._takes(state, at)
        if kind == "queued":
            actor = actor._replace(phase="queued", asks_in=ticks, ticket=number)
            return (self._asks if actor.news else self._with)(state, at, actor)
        if kind == "late":
            return self._asks(state, at, actor)
        return self._with(state, at, Actor("over"))

    def _break(self, state: State) -> Iterator[tuple[State, str]]:
        """All faults."""
        for at, actor in enumerate(state.actors):
            if "cancel" in self._kinds and actor.phase in {"asks", "overtaken", "queued"}:
                sent = (*state.commands, Command("leave", at))
                gone = self._with(state, at, Actor("leaves"))
                yield gone._replace(commands=sent), f"{at} gives up"
        for client in {*self._clients}:
            own = [c for c in state.commands if self._clients[c.actor] == client]
            if "cut" in self._kinds and own:
                yield self._cut(state, client, own), f"client {client}'s connection breaks"
            lives = all(state.actors[at].phase != "dead" for at in self._of(client))
            disturbed = state._replace(deaf=state.deaf | {client}, undisturbed=False)
            disturbed = self._unheard(disturbed, client)
            if "deaf" in self._kinds and client not in state.deaf:
                yield disturbed, f"client {client} does not listen"
            if "die" in self._kinds and lives:
                yield self._die(disturbed, client, own), f"client {client} dies"
        if "lose" in self._kinds:
            for number in range(len(state.pushes)):
                left = state.pushes[:number] + state.pushes[number + 1 :]
                yield state._replace(pushes=left, undisturbed=False), "a push is lost"
        if "clock" in self._kinds:
            yield self._set_back(state), "the clock is set back"

    def _unheard(self, state: State, client: int) -> State:
        def its(push: tuple[str, int]) -> bool:
            return (push[1] if push[0] == "ask" else self._clients[push[1]]) == client

        return state._replace(pushes=tuple(push for push in state.pushes if not its(push)))

    def _cut(self, state: State, client: int, own: list[Command]) -> State:
        """What it has sent may come late, and is sent again, unless nobody waits for that."""
        again = [
            Command(c.what, c.actor, state.actors[c.actor].ticket)
            for c in own
            if c.what == "leave" or state.actors[c.actor].phase in {"asks", "overtaken", "queued"}
        ]
        others = [c for c in state.commands if self._clients[c.actor] != client]
        strays = (*state.strays, *(c for c in own if not c.carried_out))
        return state._replace(commands=(*others, *again), strays=strays)

    def _die(self, state: State, client: int, own: list[Command]) -> State:
        for at in self._of(client):
            state = self._with(state, at, Actor("dead"))
        others = [c for c in state.commands if self._clients[c.actor] != client]
        strays = (*state.strays, *(c for c in own if not c.carried_out))
        return state._replace(commands=tuple(others), strays=strays)

    @staticmethod
    def _set_back(state: State) -> State:
        kept = state.kept
        return state._replace(
            level_seen=state.level_seen + _SET_BACK,
            kept=kept._replace(
                full=kept.full + _SET_BACK,
                granted=tuple((who, left + _SET_BACK) for who, left in kept.granted),
                tombstones=tuple((who, left + _SET_BACK) for who, left in kept.tombstones),
            ),
        )

    def _tick(self, state: State) -> State:
        kept = state.kept
        strays = [stray._replace(age=min(stray.age + 1, _LATE)) for stray in state.strays]
        strays = [
            stray
            for stray in strays
            if stray.age < _LATE or (stray.what == "ask" and not self._guards.late)
        ]
        return state._replace(
            kept=kept._replace(
                full=max(self._least, kept.full - 1),
                granted=tuple((who, left - 1) for who, left in kept.granted if left > 1),
                tombstones=tuple((who, left - 1) for who, left in kept.tombstones if left > 1),
            ),
            actors=tuple(a._replace(asks_in=a.asks_in - (a.asks_in > 0)) for a in state.actors),
            commands=tuple(c._replace(age=min(c.age + 1, _LATE)) for c in state.commands),
            strays=tuple(strays),
            level=max(0, state.level - 1),
            level_seen=max(0, state.level_seen - 1),
        )

    # The server

    def _serve(self, state: State, command: Command) -> tuple[State, tuple[str, int, int]]:
        if self._guards.late and command.what == "ask" and command.age >= _LATE:
            return state, ("late", 0, 0)
        kept = state.kept
        if not self._guards.remembered:
            kept = kept._replace(granted=())
        served = self._run(kept, command, state.deaf)
        wrong = state.wrong or self._wrong_of(state, command, served)
        took = list(state.took)
        level = state.level
        gave_up = any(who == command.actor for who, _ in kept.tombstones)
        was_queued = any(who == command.actor for _, who in kept.queue)
        looked = not gave_up if command.what == "ask" else was_queued and bool(served.kept.queue)
        # It is only now that the server notices the time, if the clock was set back.
        seen = min(state.level_seen, self._rate.burst) if looked else state.level_seen
        for who in served.taken:
            took[who] += 1
            level, seen = level + self._wants[who], seen + self._wants[who]
        after = state._replace(
            kept=served.kept,
            pushes=(*state.pushes, *served.pushes),
            took=tuple(took),
            level=level,
            level_seen=seen,
            wrong=wrong,
        )
        return after, served.answer

    def _wrong_of(self, state: State, command: Command, served: _Served) -> str:
        """What is wrong with the tokens that were taken in a step."""
        gone = command.actor if command.what == "leave" else -1
        places = {who: ticket for ticket, who in state.kept.queue if who != gone}
        level = state.level
        for who in served.taken:
            level += self._wants[who]
            place = places.get(who, command.ticket if who == command.actor else 0)
            before = [
                other
                for other, ticket in places.items()
                if (not place or ticket < place)
                and other not in {who, *served.taken}
                and self._clients[other] not in state.deaf
            ]
            if level > self._rate.burst:
                return Wrong.TOO_MANY
            if state.took[who]:
                return Wrong.TWICE
            if before:
                return Wrong.OVERTAKEN
            if state.actors[who].phase == "over":
                return Wrong.FOR_NOBODY
        return ""

    def _run_on_machine(self, kept: Kept, command: Command, deaf: frozenset[int]) -> _Served:
        what, actor, ticket, age, *_ = command
        state = NameState()
        state.limit, state.until = self._rate.declared, _NOW
        bucket = state.bucket = self._bucket()
        bucket.full_at = _NOW + kept.full * _TICK
        bucket.granted = {self._who(who): _ms(left) for who, left in kept.granted}
        bucket.outdated, bucket.told = kept.outdated, kept.told
        if not self._guards.tells_each and kept.queue:
            bucket.outdated = min(kept.outdated, kept.queue[0][0])
        for place, who in kept.queue:
            state.enqueue(place, self._who(who), self._forms[who])
        state.tombstones = {self._who(who): _ms(left) for who, left in kept.tombstones}
        asker, form = self._who(actor), self._forms[actor]
        operation: Operation[Any] = Release(_NAME, asker, form, 0, entered=False)
        late = max(0, _LATE - age) if self._guards.buried and what == "leave" else 0
        if what == "ask":
            wait = actor < self._waits
            operation = Acquire(_NAME, asker, form, form.claim, ticket if wait else 0, wait)
        step = Step(_NAME, state, _NOW, lambda client: int(client[1:]) not in deaf)
        found: Any = step.run(operation, _NOW + late * _TICK if late else 0)
        answer = ("busy", 0, 0)
        if isinstance(found, Granted):
            answer = ("took", 0, 0)
        elif isinstance(found, Queued):
            answer = ("queued", found.ticket, -(-found.until // _MS))
        events = [event for _, event in step.pushes]
        granted = [event.waiter.seq for event in events if isinstance(event, GrantPushed)]
        told = [client for client, event in step.pushes if isinstance(event, AskAgain)]
        ask = [("ask", int(client[1:])) for client in told if self._guards.tells_next]
        before = {who for who, _ in kept.granted}
        own = [actor] if answer[0] == "took" and actor not in before else []
        return _Served(
            Kept(
                max(self._least, (bucket.full_at - _NOW) // _TICK),
                tuple((place, who.seq) for place, who in state.queue),
                tuple((who.seq, _ticks(end)) for who, end in bucket.granted.items()),
                tuple((who.seq, _ticks(end)) for who, end in state.tombstones.items()),
                bucket.outdated,
                bucket.told,
            ),
            answer,
            (*(("grant", who) for who in granted), *ask),
            (*granted, *own),
        )

    def _bucket(self) -> Bucket:
        if not self._guards.saved_up:
            return _SavesUp()
        return Bucket() if self._guards.seen else _Blind()

    def _who(self, actor: int) -> WaiterId:
        return WaiterId(f"c{self._clients[actor]}", actor)

    # What must not be

    def wrong(self, state: State) -> str | None:
        """What must not be and is."""
        if state.wrong:
            return state.wrong
        queued = {who for _, who in state.kept.queue}
        for at, actor in enumerate(state.actors):
            if actor.phase == "took" and not state.took[at]:
                return Wrong.NOTHING
            if actor.phase == "over" and at in queued:
                return Wrong.LEFT_BEHIND
        return None

    def content(self, state: State) -> bool:
        """Whether nobody in it waits for anything."""
        return all(actor.phase in {"idle", "took", "over", "dead"} for actor in state.actors)

    def tell(self, label: str) -> str:
        """What a step is, in words."""
        return label

    def show(self, state: State) -> str:
        """A state, in one line."""
        kept = state.kept
        actors = [f"{at} {a.phase} {a.asks_in}" for at, a in enumerate(state.actors)]
        return f"full in {kept.full}, {kept.queue}, outdated {kept.outdated}; {actors}"


def _ms(ticks: int) -> int:
    return _NOW // 1000 + ticks * _MS


def _ticks(end: int) -> int:
    return max(0, -(-(end - _NOW // 1000) // _MS))
