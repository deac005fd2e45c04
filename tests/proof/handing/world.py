"""A lease that is handed on, in every order of events: the server is the real state machine.

One client has the lock and detaches it, another waits for it, and one or two have the token as soon
as there is one. Commands and answers are late or lost, and are sent again; a copy on a broken
connection comes later, or never; whoever waits for an answer may give up. Time is counted in ticks,
from now: so there are finitely many states, and `tests.proof.protocol.search` visits all.

`World.wrong` says what must never be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any, Final, Literal, NamedTuple, get_args

from aiolock.protocol import (
    WAS_HOLDER,
    Acquire,
    Adopt,
    Break,
    Detach,
    Discard,
    Form,
    Granted,
    GrantPushed,
    Operation,
    Release,
    WaiterId,
    detached,
)
from aiolock.stores._holders import Grant, Holder
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step

Fault = Literal[
    "cut",  # a connection breaks: replies are lost, and commands, of which a copy may come later
    "cancel",  # whoever waits for an answer gives up
    "fail",  # a command has no answer for so long that it fails; a release is sent again later
    "discard",  # somebody else discards the token
    "break",  # somebody breaks what is detached
]
EVERY_FAULT: Final[frozenset[Fault]] = frozenset(get_args(Fault))

_NAME, _KEY, _NOW, _TICK = "x", "k", 1_790_000_000_000_000, 1000
_TTL, _CLAIM, _LATE = 2, 1, 2
_FORM: Final = Form(_CLAIM * _TICK)
_OWNER, _WAITER, _ADOPTERS = 0, 1, 2
_TOKEN: Final = detached(_KEY)
_EXPIRES: Final = ("adopt", "ask")


@dataclass(frozen=True)
class Safeguards:
    """What makes it right; each can be left out."""

    ends_when_sent: bool = True
    """Whoever detaches relies on the lease no more when the command is sent."""
    counted_from_the_question: bool = True
    """Whoever adopts relies on its lease from before the command was sent."""
    releases: bool = True
    """Whoever does not learn that it has detached releases its own grant …"""
    discards: bool = True
    """… and discards the token, which nobody has."""
    detach_looks: bool = True
    """A detach that comes after its discard has no effect."""
    buried: bool = True
    """Whoever gives up an adoption leaves a tombstone, as a copy of it may come."""
    adopt_looks: bool = True
    """… and an adoption looks for that."""
    late: bool = True
    """… for as long as it is carried out after it was sent; later it is refused."""


class Wrong(StrEnum):
    """What must never be."""

    TWO_BODIES = "two bodies, and the deadline of neither has passed"
    NOT_THE_HOLDER = "a body whose deadline has not passed does not hold the lock at the server"
    TWO_HOLDERS = "there are two holders"
    FENCE_FELL = "a fence is not higher than the one before"
    TWICE = "a token was adopted by two waiters"
    IN_BETWEEN = "what was handed on was taken away, although its lease had not ended"
    BACK = "a token is there again that was spent"
    LEFT_BEHIND = "somebody that has ended still has a place or a lease at the server"
    FORGOTTEN = "somebody waits and, whatever happens, never enters"


class Actor(NamedTuple):
    """One client, and its one lease."""

    phase: Literal["idle", "queued", "asks", "body", "takes back", "handed", "over"]
    left: int = 0
    """Of its lease, for how many ticks it relies on that."""
    fence: int = 0


class Command(NamedTuple):
    """A command under way, or its answer."""

    what: Literal["detach", "adopt", "ask", "release", "leave", "discard"]
    actor: int
    age: int = 0
    carried_out: bool = False
    answer: tuple[int, int] = (0, 0)
    """A fence and the ticks of its lease; or what was found, and 0."""


class Held(NamedTuple):
    """A holder at the server."""

    waiter: WaiterId
    fence: int
    left: int
    claim: bool
    fixed: bool


class Kept(NamedTuple):
    """What the server keeps."""

    holders: tuple[Held, ...]
    queue: tuple[WaiterId, ...] = ()
    tombstones: tuple[tuple[WaiterId, int], ...] = ()


class State(NamedTuple):
    """All of it."""

    kept: Kept
    actors: tuple[Actor, ...]
    commands: tuple[Command, ...] = ()
    strays: tuple[Command, ...] = ()
    pushes: tuple[tuple[int, int, int], ...] = ()
    """Of grants: to whom, the fence, and the age."""
    detached: int = 0
    """The fence of what was detached; 0 until it is asked for."""
    token: Literal["", "there", "over"] = ""
    adopter: int = 0
    faults: int = 0
    wrong: str = ""


class _Served(NamedTuple):
    kept: Kept
    answer: tuple[int, int]
    granted: tuple[tuple[WaiterId, int], ...]


def _who(actor: int) -> WaiterId:
    return WaiterId("awbc"[actor], 1)


class World:
    """The system that is searched."""

    def __init__(
        self,
        adopters: int,
        faults: int,
        kinds: frozenset[Fault] = EVERY_FAULT,
        guards: Safeguards | None = None,
    ) -> None:
        self._adopters, self._faults, self._kinds = adopters, faults, kinds
        self._guards = guards or Safeguards()
        self._run = cache(self._run_on_machine)

    def initial(self) -> State:
        """The owner has just been granted the lock."""
        kept = Kept((Held(_who(_OWNER), 1, _TTL, claim=False, fixed=False),), (_who(_WAITER),))
        actors = [Actor("body", _TTL, 1), Actor("queued"), *[Actor("idle")] * self._adopters]
        return State(kept, tuple(actors), faults=self._faults)

    def canonical(self, state: State) -> State:
        """Only the order of fences matters, and no order of what is on the way."""
        seen = {held.fence for held in state.kept.holders} | {state.detached, 0}
        seen |= {actor.fence for actor in state.actors} | {push[1] for push in state.pushes}
        seen |= {c.answer[0] for c in state.commands if c.answer[1]}
        rank = {fence: number for number, fence in enumerate(sorted(seen))}
        kept = state.kept
        return state._replace(
            kept=kept._replace(
                holders=tuple(each._replace(fence=rank[each.fence]) for each in kept.holders),
                tombstones=tuple(sorted(kept.tombstones)),
            ),
            actors=tuple(each._replace(fence=rank[each.fence]) for each in state.actors),
            commands=tuple(
                each._replace(answer=(rank[each.answer[0]], each.answer[1]))
                if each.answer[1]
                else each
                for each in state.commands
            ),
            strays=tuple(sorted(state.strays)),
            pushes=tuple(sorted((to, rank[fence], age) for to, fence, age in state.pushes)),
            detached=rank[state.detached],
        )

    # What may happen

    def steps(self, state: State) -> list[tuple[State, bool, str]]:
        """Everything that may happen next."""
        steps = [*self._acts(state), *self._on_the_way(state)]
        if state.faults:
            less = state._replace(faults=state.faults - 1)
            steps += [(after, False, label) for after, label in self._break(less)]
        return [*steps, (self._tick(state), True, "a tick passes")]

    def _acts(self, state: State) -> Iterator[tuple[State, bool, str]]:
        for at, actor in enumerate(state.actors):
            who = "AWBC"[at]
            if actor.phase == "body" and not actor.left:
                yield self._ends(state, at), True, f"{who}'s lease has ended"
            elif actor.phase == "body" and at == _OWNER:
                left = 0 if self._guards.ends_when_sent else actor.left
                begun = state._replace(detached=actor.fence)
                after = self._with(begun, at, Actor("asks", left, actor.fence), "detach")
                yield after, False, f"{who} detaches"
            elif actor.phase == "body":
                yield self._ends(state, at), at == _WAITER, f"{who} releases"
            elif actor.phase == "idle" and state.actors[_OWNER].phase == "handed":
                yield self._with(state, at, Actor("asks"), "adopt"), False, f"{who} adopts"
            elif actor.phase == "queued" and not any(c.actor == at for c in state.commands):
                yield self._with(state, at, actor, "ask"), True, f"{who} asks"

    def _ends(self, state: State, at: int) -> State:
        """The body has ended. The waiter's question may be under way, so it leaves altogether."""
        fence, how = state.actors[at].fence, "leave" if at == _WAITER else "release"
        return self._with(state, at, Actor("takes back", 0, fence), how)

    def _with(self, state: State, at: int, actor: Actor, *sends: Any) -> State:
        actors = (*state.actors[:at], actor, *state.actors[at + 1 :])
        sent = tuple(Command(what, at) for what in sends)
        return state._replace(actors=actors, commands=(*state.commands, *sent))

    def _on_the_way(self, state: State) -> Iterator[tuple[State, bool, str]]:
        """What comes of commands, answers and pushes."""
        for number, command in enumerate(state.commands):
            others = (*state.commands[:number], *state.commands[number + 1 :])
            name = f"{'AWBC'[command.actor]}'s {command.what}"
            if any(c.actor == command.actor for c in state.commands[:number]):
                continue  # in the order in which they were sent
            if command.carried_out:
                after = self._read(state._replace(commands=others), command)
                yield after, True, f"{name} is answered: {command.answer}"
            else:
                served, answer = self._serve(state, command)
                done = command._replace(carried_out=True, answer=answer)
                yield served._replace(commands=(done, *others)), True, f"{name} is carried out"
        for number, stray in enumerate(state.strays):
            left = state._replace(strays=state.strays[:number] + state.strays[number + 1 :])
            served, _ = self._serve(left, stray)
            yield served, True, f"a copy of {'AWBC'[stray.actor]}'s {stray.what} comes"
        for number, (to, fence, age) in enumerate(state.pushes):
            left = state._replace(pushes=state.pushes[:number] + state.pushes[number + 1 :])
            actor = state.actors[to]
            if actor.phase == "queued":
                left = self._with(left, to, Actor("body", max(0, _CLAIM - age), fence))
            yield left, True, f"{'AWBC'[to]} is told of its grant"

    def _read(self, state: State, command: Command) -> State:
        at, (number, ticks) = command.actor, command.answer
        actor = state.actors[at]
        if number < 0:  # it came too late
            again = command.what == "adopt" and actor.phase == "asks"
            return self._with(state, at, actor, "adopt") if again else state
        match command.what:
            case "detach" if actor.phase == "asks":
                return self._with(state, at, Actor("handed" if number == WAS_HOLDER else "over"))
            case "adopt" | "ask" if ticks:
                age = command.age if self._guards.counted_from_the_question else 0
                if actor.phase in {"asks", "queued"}:
                    return self._with(state, at, Actor("body", max(0, ticks - age), number))
            case "adopt" if actor.phase == "asks":
                return self._with(state, at, Actor("over"))
            case "release" | "leave" | "discard":
                if not any(each.actor == at for each in state.commands):
                    return self._with(state, at, Actor("over"))
            case _:
                pass
        return state

    def _break(self, state: State) -> Iterator[tuple[State, str]]:
        """All faults."""
        for number, command in enumerate(state.commands):
            others = (*state.commands[:number], *state.commands[number + 1 :])
            name = f"{'AWBC'[command.actor]}'s {command.what}"
            again = Command(command.what, command.actor)
            strays = state.strays if command.carried_out else (*state.strays, command)
            waits = state.actors[command.actor].phase == "asks"
            first = not any(c.actor == command.actor for c in state.commands[:number])
            if "cut" in self._kinds and first:
                yield self._cut(state, command.actor), f"the connection breaks that had {name}"
            if "cancel" in self._kinds and waits:
                yield self._give_up(state, command), f"{name} is cancelled"
            if "fail" in self._kinds and command.what in {"release", "discard"}:
                later = state._replace(commands=(*others, again), strays=strays)
                yield later, f"{name} fails, and is sent again"
            elif "fail" in self._kinds and waits:
                failed = state._replace(commands=others, strays=strays)
                yield self._give_up(failed, command), f"{name} fails"
        if "discard" in self._kinds and state.actors[_OWNER].phase == "handed":
            served, _ = self._serve(state, Command("discard", _OWNER))
            yield served, "somebody discards the token"
        if "break" in self._kinds and state.token == "there":
            served, _ = self._served(state, Break(_NAME, (state.detached,)), 0, "break")
            yield served, "somebody breaks the lock"

    def _cut(self, state: State, at: int) -> State:
        """What a client has sent may come late, and is sent again, unless nobody waits for that."""
        own = [command for command in state.commands if command.actor == at]
        waits = state.actors[at].phase in {"asks", "queued"}
        again = [Command(c.what, at) for c in own if waits or c.what not in {"adopt", "ask"}]
        return state._replace(
            commands=(*(c for c in state.commands if c.actor != at), *again),
            strays=(*state.strays, *(c for c in own if not c.carried_out)),
        )

    def _give_up(self, state: State, command: Command) -> State:
        actor = state.actors[command.actor]._replace(phase="takes back", left=0)
        if command.what == "adopt":
            return self._with(state, command.actor, actor, "leave")
        both = ["release"] * self._guards.releases + ["discard"] * self._guards.discards
        return self._with(state, command.actor, actor, *both)

    def _tick(self, state: State) -> State:
        kept = state.kept
        tombstones = [(who, left - 1) for who, left in kept.tombstones if left > 1]
        strays = [stray._replace(age=min(stray.age + 1, _LATE)) for stray in state.strays]
        strays = [
            stray
            for stray in strays
            if stray.age < _LATE or (stray.what in _EXPIRES and not self._guards.late)
        ]
        older = [each._replace(age=min(each.age + 1, _TTL)) for each in state.commands]
        return state._replace(
            kept=kept._replace(
                holders=tuple(held._replace(left=max(0, held.left - 1)) for held in kept.holders),
                tombstones=tuple(tombstones),
            ),
            actors=tuple(each._replace(left=max(0, each.left - 1)) for each in state.actors),
            commands=tuple(older),
            strays=tuple(strays),
            pushes=tuple((to, fence, min(age + 1, _TTL)) for to, fence, age in state.pushes),
        )

    # The server

    def _serve(self, state: State, command: Command) -> tuple[State, tuple[int, int]]:
        if self._guards.late and command.what in _EXPIRES and command.age >= _LATE:
            return state, (-1, 0)
        who, fence = _who(command.actor), state.detached
        own = state.actors[command.actor].fence
        operation: Operation[Any]
        buried = 0
        match command.what:
            case "detach":
                operation = Detach(_NAME, who, _FORM, fence, _KEY, _TTL * _TICK)
            case "adopt":
                operation = Adopt(_NAME, who, _FORM, fence, _KEY, _TTL * _TICK)
            case "ask":
                operation = Acquire(_NAME, who, _FORM, _TTL * _TICK, ticket=1)
            case "release":
                operation = Release(_NAME, who, _FORM, own)
            case "leave":
                operation = Release(_NAME, who, _FORM, 0, entered=False)
                sure = self._guards.buried or command.actor == _WAITER
                buried = max(0, _LATE - command.age) if sure else 0
            case "discard":
                operation = Discard(_NAME, _TOKEN, _FORM, fence)
                buried = max(0, _LATE - command.age)
        return self._served(state, operation, buried, command.what)

    def _served(
        self, state: State, operation: Operation[Any], buried: int, what: str
    ) -> tuple[State, tuple[int, int]]:
        """The state after that, and its answer; what is wrong with that, is noted."""
        before = {held.fence for held in state.kept.holders}
        top = max([*before, state.detached, *(actor.fence for actor in state.actors)])
        kept, answer, granted = self._run(state.kept, operation, buried, top)
        wrong, token, adopter = state.wrong, state.token, state.adopter
        fell = [held for held in kept.holders if held.fence not in before and held.fence <= top]
        there = any(held.waiter == _TOKEN for held in kept.holders)
        if fell:
            wrong = wrong or Wrong.FENCE_FELL
        if there and token == "over":
            wrong = wrong or Wrong.BACK
        if token == "there" and not there and what not in {"adopt", "discard", "break"}:
            lasted = next(held.left for held in state.kept.holders if held.waiter == _TOKEN)
            wrong = wrong or (Wrong.IN_BETWEEN if lasted else "")
        if isinstance(operation, Adopt) and answer[1]:
            number = "awbc".index(operation.waiter.client)
            if adopter not in {0, number}:
                wrong = wrong or Wrong.TWICE
            if not adopter and held_again(state.kept, kept):
                wrong = wrong or Wrong.FENCE_FELL
            adopter = number
        token = "there" if there else "over" if token == "there" else token
        pushes = [("awbc".index(who.client), fence, 0) for who, fence in granted]
        after = state._replace(kept=kept, token=token, adopter=adopter, wrong=wrong)
        return after._replace(pushes=(*after.pushes, *pushes)), answer

    def _run_on_machine(
        self, kept: Kept, operation: Operation[Any], buried: int, last: int
    ) -> _Served:
        state, now = NameState(), _NOW // 1000
        for held in kept.holders:
            grant, form = Grant(held.waiter, held.fence), replace(_FORM, fixed=held.fixed)
            end = now + held.left * _TICK
            state.holders.add(Holder(grant, form, end, shared=False, claim=held.claim))
        for ticket, who in enumerate(kept.queue, start=1):
            state.enqueue(ticket, who, _FORM)
        looks = self._guards.adopt_looks, self._guards.detach_looks
        for who, left in kept.tombstones:
            if looks[who == _TOKEN] or not isinstance(operation, Adopt | Detach):
                state.tombstones[who] = now + left * _TICK
        step = Step(_NAME, state, _NOW, lambda _: True, last)
        answer: Any = step.run(operation, _NOW + buried * _TICK * 1000 if buried else 0)
        told = (answer, 0) if isinstance(answer, int) else (0, 0)
        if isinstance(answer, Granted):
            told = answer.fence, answer.lease // _TICK
        holders = [
            Held(*grant, max(0, of.end - now) // _TICK, of.claim, of.form.fixed)
            for grant, of in state.holders.items()
        ]
        tombstones = {**dict(kept.tombstones)}
        tombstones |= {w: (end - now) // _TICK for w, end in state.tombstones.items()}
        granted = [
            (event.waiter, event.fence)
            for _, event in step.pushes
            if isinstance(event, GrantPushed)
        ]
        queue = tuple(who for _, who in state.queue)
        return _Served(
            Kept(tuple(sorted(holders)), queue, tuple(sorted(tombstones.items()))),
            told,
            tuple(granted),
        )

    # What must not be

    def wrong(self, state: State) -> str | None:
        """What must not be and is."""
        alive = [held for held in state.kept.holders if held.left]
        bodies = [(at, each) for at, each in enumerate(state.actors) if each.left]
        grants = {(held.waiter, held.fence) for held in alive}
        if state.wrong:
            return state.wrong
        if len(bodies) > 1:
            return Wrong.TWO_BODIES
        if len(alive) > 1:
            return Wrong.TWO_HOLDERS
        if any((_who(at), each.fence) not in grants for at, each in bodies):
            return Wrong.NOT_THE_HOLDER
        at_server = {waiter for waiter, _ in grants} | {*state.kept.queue}
        for at, actor in enumerate(state.actors):
            names = {_who(at)} | ({_TOKEN} if at == _OWNER else set[WaiterId]())
            busy = any(push[0] == at for push in state.pushes)
            if actor.phase == "over" and at_server & names and not busy:
                return Wrong.LEFT_BEHIND
        return None

    def content(self, state: State) -> bool:
        """Whether nobody in it waits for anything."""
        return state.actors[_WAITER].phase == "over"

    def tell(self, label: str) -> str:
        """What a step is, in words."""
        return label

    def show(self, state: State) -> str:
        """A state, in one line."""
        held = [f"{h.waiter.client} #{h.fence} for {h.left}" for h in state.kept.holders]
        actors = [f"{n} {a.phase} {a.left}" for n, a in zip("AWBC", state.actors, strict=False)]
        queue = [who.client for who in state.kept.queue]
        return f"{' and '.join(held) or 'free'}, then {queue}, {state.kept.tombstones}; {actors}"


def held_again(before: Kept, after: Kept) -> bool:
    """Whether a grant goes on under a fence that there was."""
    return bool({held.fence for held in before.holders} & {held.fence for held in after.holders})
