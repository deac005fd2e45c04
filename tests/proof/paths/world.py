"""Path locks, in every order of events: the server of each node is the real state machine.

A few clients want a node of a tree each, as `PathLock` takes it: all nodes from the root down at
once, and if one is busy, that one by its queue, and then those below it. Each has its lease once.
Commands and answers take any time, and are carried out twice; pushes are lost; clients give up, and
lose the lease of one node. Nothing depends on time, so `tests.proof.protocol.search` visits every
state. The clocks of the nodes differ.

`World.wrong` says what must never be. Which leases exclude each other is known by their paths.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, Final, Literal, NamedTuple, get_args

from aiolock.protocol import (
    Acquire,
    Break,
    Form,
    Granted,
    GrantPushed,
    Operation,
    Queued,
    Release,
    Rule,
    WaiterId,
)
from aiolock.stores._holders import Grant, Holder
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step
from aiolock.trees import MANY, ONE, MakeFence

Fault = Literal[
    "cancel",  # a client gives up before it has all nodes
    "cut",  # a connection breaks: what was not answered is sent again, carried out or not
    "lose",  # a push is lost
    "end",  # the lease of one node ends, by the clock of its client first
]
EVERY_FAULT: Final[frozenset[Fault]] = frozenset(get_args(Fault))

_NOW, _CLAIM, _TTL, _AHEAD = 10**15, 3_000, 10**9, 1_000
"""The clock of each node is ``_AHEAD`` µs ahead of that of the node below it."""


@dataclass(frozen=True)
class Safeguards:
    """What makes it right; each can be left out."""

    root_first: bool = True
    """No node is waited for before those above it are held, by any client …"""
    releases_below: bool = True
    """… nor is one held that is below."""
    alike: bool = True
    """Writers below a node and readers of all of it exclude each other."""
    fence_of_root: bool = True
    """The fence of a lease is one of the root …"""
    fence_last: bool = True
    """… and is made after the last node was granted."""
    lost_with_any: bool = True
    """The lease is lost with that of any node."""


class Wrong(StrEnum):
    """What must never be."""

    CONFLICT = "two leases are held that exclude each other"
    FENCE_FELL = "a fence is not higher than that of an earlier lease that excludes this one"
    DEADLOCK = "all that are left wait for each other"
    LEFT_BEHIND = "somebody that has ended still has a place or a lease at a node"
    FORGOTTEN = "somebody waits and, whatever happens, never enters"


class Path(NamedTuple):
    """What a client wants."""

    path: str
    shared: bool = False

    def excludes(self, other: Path) -> bool:
        """By what the paths begin with."""
        one, two = self.path.split("/"), other.path.split("/")
        least = min(len(one), len(two))
        return one[:least] == two[:least] and not (self.shared and other.shared)


class Actor(NamedTuple):
    """One client."""

    fences: tuple[int, ...]
    """By level, in the order in which they are taken: that of its grant; 0: it has none."""
    seqs: tuple[int, ...]
    """By level, the number of its waiter."""
    phase: Literal["idle", "flight", "asks", "queued", "fencing", "body", "leaves", "over"] = "idle"
    made: int = 0
    """The fence that was made since the last question was sent; 0: none."""
    fence: int = 0
    """That of its lease, also when it is over."""


class Command(NamedTuple):
    """A command under way, or its answer."""

    what: Literal["try", "ask", "release", "fence"]
    actor: int
    level: int
    seq: int
    fence: int = 0
    carried_out: bool = False
    answer: int = -1
    """The fence of a grant, or one that was made; 0 if it is queued; else -1."""


class Kept(NamedTuple):
    """What a node keeps."""

    fence: int = 0
    holders: tuple[tuple[int, int, int], ...] = ()
    """Actors, the numbers of their waiters, and fences."""
    queue: tuple[tuple[int, int, int], ...] = ()
    """Tickets, actors, and numbers."""


class State(NamedTuple):
    """All of it."""

    nodes: tuple[Kept, ...]
    actors: tuple[Actor, ...]
    commands: tuple[Command, ...] = ()
    pushes: tuple[tuple[int, int, int, int], ...] = ()
    """Of grants: to whom, of which level, the number of its waiter, and the fence."""
    faults: int = 0
    wrong: str = ""


class _Served(NamedTuple):
    kept: Kept
    answer: int
    granted: tuple[tuple[int, int, int], ...]


class World:
    """The system that is searched: clients that want these."""

    def __init__(
        self,
        *wants: Path,
        faults: int = 0,
        kinds: frozenset[Fault] = EVERY_FAULT,
        guards: Safeguards | None = None,
    ) -> None:
        self._wants, self._faults, self._kinds = wants, faults, kinds
        self._guards = guards or Safeguards()
        names = list(dict.fromkeys(node for each in wants for node in _nodes(each.path)))
        self._levels = [[names.index(node) for node in _nodes(each.path)] for each in wants]
        self._ends_at = [levels[-1] for levels in self._levels]
        if not self._guards.root_first:
            self._levels[-1].reverse()
        self._clocks = [_NOW - _AHEAD * name.count("/") for name in names]
        self._run = cache(self._run_on_machine)

    def initial(self) -> State:
        """Nobody has asked."""
        actors = [Actor((0,) * len(levels), (0,) * len(levels)) for levels in self._levels]
        return State((Kept(),) * len(self._clocks), tuple(actors), faults=self._faults)

    def canonical(self, state: State) -> State:
        """No order of what is on the way matters."""
        return state._replace(pushes=tuple(sorted(state.pushes)))

    # What may happen

    def steps(self, state: State) -> list[tuple[State, bool, str]]:
        """Everything that may happen next."""
        steps = [*self._acts(state), *self._on_the_way(state)]
        if state.faults:
            less = state._replace(faults=state.faults - 1)
            steps += [(after, False, label) for after, label in self._break(less)]
        return steps

    def _acts(self, state: State) -> Iterator[tuple[State, bool, str]]:
        for at, actor in enumerate(state.actors):
            if actor.phase == "idle":
                yield self._goes_on(state, at, actor), False, f"{at} begins"
            elif actor.phase == "body":
                yield self._leaves(state, at, actor), True, f"{at} leaves"
            elif actor.phase == "queued" and not self._under_way(state, at):
                yield self._asks(state, at, actor), True, f"{at} asks again"

    @staticmethod
    def _under_way(state: State, at: int) -> bool:
        """Whether it will hear of something without a question."""
        own = any(each.actor == at and each.what == "ask" for each in state.commands)
        return own or any(push[0] == at for push in state.pushes)

    @staticmethod
    def _with(state: State, at: int, actor: Actor, *sends: Command) -> State:
        actors = (*state.actors[:at], actor, *state.actors[at + 1 :])
        return state._replace(actors=actors, commands=(*state.commands, *sends))

    def _goes_on(self, state: State, at: int, actor: Actor) -> State:
        """Take what is left: without waiting, or by the queue of the one that was busy."""
        left = [level for level, fence in enumerate(actor.fences) if not fence]
        if not left:
            return self._has_all(state, at, actor)
        if len(left) == 1 or actor.phase == "flight":
            return self._waits_for(state, at, actor, left[0])
        seqs = tuple(seq + (level in left) for level, seq in enumerate(actor.seqs))
        sends = [Command("try", at, level, seqs[level]) for level in left]
        sends.append(Command("fence", at, 0, 0))
        return self._with(state, at, actor._replace(phase="flight", seqs=seqs, made=0), *sends)

    def _waits_for(self, state: State, at: int, actor: Actor, level: int) -> State:
        below = [each for each in range(level + 1, len(actor.fences)) if actor.fences[each]]
        if self._guards.releases_below:
            state, actor = self._releases(state, at, actor, below)
        seqs = (*actor.seqs[:level], actor.seqs[level] + 1, *actor.seqs[level + 1 :])
        made = 0 if self._guards.fence_last else actor.made
        return self._asks(state, at, actor._replace(seqs=seqs, made=made))

    def _asks(self, state: State, at: int, actor: Actor) -> State:
        level = actor.fences.index(0)
        sent = Command("ask", at, level, actor.seqs[level])
        return self._with(state, at, actor._replace(phase="asks"), sent)

    def _releases(
        self, state: State, at: int, actor: Actor, levels: list[int]
    ) -> tuple[State, Actor]:
        sends = [
            Command("release", at, level, actor.seqs[level], actor.fences[level])
            for level in reversed(levels)
        ]
        fences = tuple(0 if n in levels else fence for n, fence in enumerate(actor.fences))
        actor = actor._replace(fences=fences)
        return self._with(state, at, actor, *sends), actor

    def _has_all(self, state: State, at: int, actor: Actor) -> State:
        fence = actor.made
        if len(actor.fences) == 1 or not self._guards.fence_of_root:
            fence = actor.fences[-1]
        if not fence:
            sent = Command("fence", at, 0, 0)
            return self._with(state, at, actor._replace(phase="fencing"), sent)
        wrong = state.wrong
        for other, its in zip(state.actors, self._wants, strict=True):
            if other is not actor and other.fence >= fence and its.excludes(self._wants[at]):
                wrong = wrong or Wrong.FENCE_FELL
        entered = actor._replace(phase="body", fence=fence)
        return self._with(state._replace(wrong=wrong), at, entered)

    def _leaves(self, state: State, at: int, actor: Actor) -> State:
        """Release all that it has, and whatever it has asked for."""
        asked = actor.phase in {"asks", "queued", "flight"}
        levels = [n for n, fence in enumerate(actor.fences) if fence or (asked and actor.seqs[n])]
        state, actor = self._releases(state, at, actor, levels)
        return self._with(state, at, actor._replace(phase="leaves" if levels else "over"))

    def _on_the_way(self, state: State) -> Iterator[tuple[State, bool, str]]:
        """What comes of commands, answers and pushes."""
        for number, command in enumerate(state.commands):
            before = [c for c in state.commands[:number] if c.actor == command.actor]
            others = (*state.commands[:number], *state.commands[number + 1 :])
            name = f"{command.actor}'s {command.what} of level {command.level}"
            if command.carried_out and not before:
                after = self._read(state._replace(commands=others), command)
                yield after, True, f"{name} is answered: {command.answer}"
            elif not command.carried_out and all(each.carried_out for each in before):
                served, answer = self._serve(state, command)
                done = command._replace(carried_out=True, answer=answer)
                commands = (*state.commands[:number], done, *state.commands[number + 1 :])
                yield served._replace(commands=commands), True, f"{name} is carried out"
        for number, (to, level, seq, fence) in enumerate(state.pushes):
            left = state._replace(pushes=state.pushes[:number] + state.pushes[number + 1 :])
            actor = state.actors[to]
            wanted = actor.phase == "queued" and actor.seqs[level] == seq
            if wanted and not actor.fences[level]:
                left = self._has(left, to, level, fence)
            yield left, True, f"{to} hears of its grant"

    def _has(self, state: State, at: int, level: int, fence: int) -> State:
        actor = state.actors[at]
        fences = (*actor.fences[:level], fence, *actor.fences[level + 1 :])
        actor = actor._replace(fences=fences)
        if actor.phase == "flight":
            return self._with(state, at, actor)
        return self._goes_on(state, at, actor._replace(phase="idle"))

    def _read(self, state: State, command: Command) -> State:
        at, level, answer = command.actor, command.level, command.answer
        actor = state.actors[at]
        last = not any(each.actor == at for each in state.commands)
        if command.what == "release":
            over = last and actor.phase == "leaves"
            return self._with(state, at, actor._replace(phase="over")) if over else state
        if command.what == "fence":
            if actor.phase not in {"flight", "fencing"}:
                return state
            actor = actor._replace(made=answer)
            return self._goes_on(state, at, actor)  # it was the last that was sent
        wanted = actor.seqs[level] == command.seq and not actor.fences[level]
        if not wanted or actor.phase not in {"flight", "asks", "queued"}:
            return state
        if answer > 0:
            return self._has(state, at, level, answer)
        if command.what == "ask":
            actor = actor._replace(phase="queued")
        return self._with(state, at, actor)

    def _break(self, state: State) -> Iterator[tuple[State, str]]:
        """All faults."""
        for at, actor in enumerate(state.actors):
            if "cancel" in self._kinds and actor.phase in {"flight", "asks", "queued", "fencing"}:
                yield self._leaves(state, at, actor), f"{at} gives up"
            if "end" in self._kinds and actor.phase not in {"leaves", "over"}:
                for level, fence in enumerate(actor.fences):
                    if fence:
                        yield self._ends(state, at, level), f"{at}'s lease of {level} ends"
            own = [each for each in state.commands if each.actor == at]
            if "cut" in self._kinds and own:
                others = [each for each in state.commands if each.actor != at]
                wanted = [c for c in own if c.what == "release" or actor.phase != "leaves"]
                again = [each._replace(carried_out=False, answer=-1) for each in wanted]
                after = state._replace(commands=(*others, *again))
                yield after, f"{at}'s connection breaks"
        if "lose" in self._kinds:
            for number in range(len(state.pushes)):
                left = state.pushes[:number] + state.pushes[number + 1 :]
                yield state._replace(pushes=left), "a push is lost"

    def _ends(self, state: State, at: int, level: int) -> State:
        """The lease of one node has ended: by the clock of its client, and then at the server."""
        actor, guarded = state.actors[at], self._guards.lost_with_any
        fence = actor.fences[level]
        if guarded:
            fences = (*actor.fences[:level], 0, *actor.fences[level + 1 :])
            state = self._leaves(state, at, actor._replace(fences=fences))
        node = self._levels[at][level]
        served = self._run(node, state.nodes[node], None, fence)
        return self._after(state, node, served)

    # The server

    def _serve(self, state: State, command: Command) -> tuple[State, int]:
        node = self._levels[command.actor][command.level]
        if command.what == "fence":
            node = 0  # the root is the first of all names
        served = self._run(node, state.nodes[node], command, 0)
        return self._after(state, node, served), served.answer

    def _after(self, state: State, node: int, served: _Served) -> State:
        nodes = (*state.nodes[:node], served.kept, *state.nodes[node + 1 :])
        pushes = [
            (who, self._levels[who].index(node), seq, fence) for who, seq, fence in served.granted
        ]
        return state._replace(nodes=nodes, pushes=(*state.pushes, *pushes))

    def _run_on_machine(self, node: int, kept: Kept, command: Command | None, ends: int) -> _Served:
        state, now = NameState(), self._clocks[node]
        for who, seq, fence in kept.holders:
            form = self._form(who, node)
            grant, end = Grant(_who(who, seq), fence), now // 1000 + _TTL
            state.holders.add(Holder(grant, form, end, shared=form.shared))
        for ticket, who, seq in kept.queue:
            state.enqueue(ticket, _who(who, seq), self._form(who, node))
        operation: Operation[Any] = Break("x", (ends,))
        if command is not None:
            asker, form = _who(command.actor, command.seq), self._form(command.actor, node)
            match command.what:
                case "try" | "ask":
                    operation = Acquire("x", asker, form, _TTL, wait=command.what == "ask")
                case "release":
                    operation = Release("x", asker, form, command.fence)
                case "fence":
                    operation = MakeFence("x")
        step = Step("x", state, now, lambda _: True, kept.fence)
        found: Any = step.run(operation)
        answer = found if isinstance(operation, MakeFence) else -1
        if isinstance(found, Granted):
            answer = found.fence
        elif isinstance(found, Queued):
            answer = 0
        granted = [
            (int(event.waiter.client), event.waiter.seq, event.fence)
            for _, event in step.pushes
            if isinstance(event, GrantPushed)
        ]
        holders = [(int(who.client), who.seq, fence) for who, fence in state.holders]
        queue = [(ticket, int(who.client), who.seq) for ticket, who in state.queue]
        kept = Kept(step.fence, tuple(sorted(holders)), tuple(queue))
        return _Served(kept, answer, tuple(granted))

    def _form(self, actor: int, node: int) -> Form:
        """That of the path lock's own module has these, too."""
        wants = self._wants[actor]
        rule = Rule.ALIKE if self._guards.alike else Rule.ALWAYS
        if node == self._ends_at[actor]:
            both = Form(_CLAIM, shared=True, rule=rule, number=MANY)
            return both if wants.shared else Form(_CLAIM)
        if wants.shared:
            return Form(_CLAIM, shared=True)
        return Form(_CLAIM, shared=True, rule=rule, number=ONE)

    # What must not be

    def wrong(self, state: State) -> str | None:
        """What must not be and is."""
        if state.wrong:
            return state.wrong
        inside = [at for at, actor in enumerate(state.actors) if actor.phase == "body"]
        for one in inside:
            for other in inside:
                if one < other and self._wants[one].excludes(self._wants[other]):
                    return Wrong.CONFLICT
        there = {who for kept in state.nodes for who, *_ in kept.holders}
        there |= {who for kept in state.nodes for _, who, _ in kept.queue}
        if any(state.actors[who].phase == "over" for who in there):
            return Wrong.LEFT_BEHIND
        waiting = [at for at, actor in enumerate(state.actors) if actor.phase == "queued"]
        quiet = not state.commands and not state.pushes and not inside
        if waiting and quiet and not any(self._may_enter(state, at) for at in waiting):
            return Wrong.DEADLOCK
        return None

    def _may_enter(self, state: State, at: int) -> bool:
        """Whether it finds its grant if it asks again."""
        actor = state.actors[at]
        level = actor.fences.index(0)
        holders = state.nodes[self._levels[at][level]].holders
        return any((who, seq) == (at, actor.seqs[level]) for who, seq, _ in holders)

    def content(self, state: State) -> bool:
        """Whether nobody in it waits for anything."""
        return all(actor.phase in {"idle", "over"} for actor in state.actors)

    def tell(self, label: str) -> str:
        """What a step is, in words."""
        return label

    def show(self, state: State) -> str:
        """A state, in one line."""
        nodes = [f"{kept.holders} then {kept.queue}" for kept in state.nodes]
        actors = [f"{at} {a.phase} {a.fences}" for at, a in enumerate(state.actors)]
        return f"{nodes}; {actors}"


def _nodes(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


def _who(actor: int, seq: int) -> WaiterId:
    return WaiterId(str(actor), seq)
