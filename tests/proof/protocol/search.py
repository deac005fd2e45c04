"""A breadth-first search of every state that a system can reach: whether one is wrong, or stuck.

``python -m tests.proof.protocol.search`` searches the model of aiolock's protocol; ``--help`` tells
how.
"""

from __future__ import annotations

import argparse
import sys
import time
from array import array
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Generic, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)
Label = TypeVar("Label")


class System(Protocol[State, Label]):
    """What can be searched."""

    def initial(self) -> State:
        """Where everything begins."""
        ...

    def steps(self, state: State) -> list[tuple[State, bool, Label]]:
        """What may come next; for each, whether it happens by itself, and what it is."""
        ...

    def canonical(self, state: State) -> State:
        """Of all states that are the same but for names, the one that stands for them.

        That one stands for itself.
        """
        ...

    def wrong(self, state: State) -> str | None:
        """What must not be and is."""
        ...

    def content(self, state: State) -> bool:
        """Whether nobody in it waits for anything."""
        ...

    def tell(self, label: Label) -> str:
        """What a step is, in words."""
        ...

    def show(self, state: State) -> str:
        """A state, in one line."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """A state that is wrong, and a shortest way to it."""

    wrong: str
    trace: tuple[tuple[str, str], ...]
    """What happened, and how things stood then."""

    def __str__(self) -> str:
        width = max(len(happened) for happened, _ in self.trace)
        lines = (f"  {happened:{width}}  {stood}" for happened, stood in self.trace)
        return "\n".join([f"{self.wrong}:", *lines])


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search has covered and found."""

    states: int
    steps: int
    depth: int
    """The number of steps of the longest of all shortest ways."""
    seconds: float
    complete: bool
    """Whether these are all states; they are not where one is wrong."""
    found: Found | None

    def __str__(self) -> str:
        covered = f"{self.states:,} states, {self.steps:,} steps, {self.depth} deep"
        ended = "nothing is wrong" if self.complete else "stopped there"
        return f"{covered}, {self.seconds:.1f} s: {self.found or ended}"


class Search(Generic[State, Label]):
    """One search. States are numbered in the order in which they are found."""

    def __init__(self, system: System[State, Label]) -> None:
        self._system = system
        self._states: list[State] = []
        self._numbers: dict[State, int] = {}
        self._parents = array("l")
        # The steps that happen by themselves: those from state n are in [starts[n], starts[n+1]).
        self._targets = array("l")
        self._starts = array("l", [0])
        self._steps = 0
        self._depth = 0

    def run(self, *, stuck: str | None = None, limit: int | None = None) -> Searched:
        """Visit every state, or ``limit`` of them, until one is wrong.

        ``stuck`` says what is wrong with a state from which nothing that happens by itself leads
        to one where everybody is content.
        """
        began = time.process_time()
        wrong = self._visit(limit)
        complete = wrong is None and len(self._starts) > len(self._states)
        if complete and stuck is not None:
            number = self._first_stuck()
            wrong = None if number is None else (stuck, number)
        found = None if wrong is None else Found(wrong[0], self._way(wrong[1]))
        seconds = time.process_time() - began
        return Searched(
            len(self._states), self._steps, self._depth, seconds, complete and not found, found
        )

    def _visit(self, limit: int | None) -> tuple[str, int] | None:
        system, states, numbers = self._system, self._states, self._numbers
        start = system.canonical(system.initial())
        states.append(start)
        numbers[start] = 0
        self._parents.append(-1)
        at, level_ends = 0, 1
        while at < len(states) and (limit is None or len(states) < limit):
            if at == level_ends:
                self._depth += 1
                level_ends = len(states)
            for raw, by_itself, _ in system.steps(states[at]):
                self._steps += 1
                number = numbers.get(raw, -1)
                if number < 0:  # else it is canonical: most steps lead to a known state
                    after = system.canonical(raw)
                    number = numbers.setdefault(after, len(states))
                    if number == len(states):
                        states.append(after)
                        self._parents.append(at)
                        wrong = system.wrong(after)
                        if wrong is not None:
                            return wrong, number
                if by_itself:
                    self._targets.append(number)
            self._starts.append(len(self._targets))
            at += 1
        return None

    def _first_stuck(self) -> int | None:
        content = bytearray(map(self._system.content, self._states))
        changed = True
        while changed:
            changed = False
            # Backwards, since most steps lead to later states: a few rounds are enough.
            for number in range(len(self._states) - 1, -1, -1):
                if not content[number]:
                    for target in self._targets[self._starts[number] : self._starts[number + 1]]:
                        if content[target]:
                            content[number] = changed = True
                            break
        stuck = content.find(0)
        return None if stuck < 0 else stuck

    def _way(self, number: int) -> tuple[tuple[str, str], ...]:
        """How a state came about: walked once more, so that everybody keeps their name."""
        way = [number]
        while self._parents[way[-1]] >= 0:
            way.append(self._parents[way[-1]])
        system = self._system
        state = system.initial()
        told = [("in the beginning", system.show(state))]
        for to in reversed(way[:-1]):
            state, label = next(
                (raw, label)
                for raw, _, label in system.steps(state)
                if system.canonical(raw) == self._states[to]
            )
            told.append((system.tell(label), system.show(state)))
        return tuple(told)


def main(argv: Sequence[str] | None = None) -> int:
    """Search the protocol; 1 when something is wrong."""
    from tests.proof.protocol.model import Safeguards
    from tests.proof.protocol.world import EVERY_FAULT, FAULTS, Fault, Setting, World, Wrong

    guards = {field.name for field in fields(Safeguards)}
    parser = argparse.ArgumentParser(
        prog="python -m tests.proof.protocol.search", description=__doc__
    )
    add = parser.add_argument
    add("--clients", type=int, default=3, metavar="N", help="clients of one task each")
    add("--tasks", metavar="N,N,…", help="instead: the tasks of each client, most first")
    add("--faults", type=int, default=1, metavar="N", help="at most so many, of any kind")
    add("--kinds", nargs="+", choices=FAULTS, metavar="KIND", help=f"of {', '.join(FAULTS)}")
    add("--delays", type=int, default=0, metavar="TICKS", help="for which something is slow")
    add("--claim", type=int, default=1, metavar="TICKS")
    add("--ttl", type=int, default=2, metavar="TICKS")
    add("--late", type=int, default=1, metavar="TICKS", help="for which what was sent is taken")
    add("--fixed", action="store_true", help="leases are not renewed")
    add("--tries", action="store_true", help="the tasks of the last client do not wait")
    add("--begun", action="store_true", help="one is in its body, and the others are queued")
    add("--first", type=int, default=0, metavar="CLIENT", help="… of this client, from 0 on")
    add("--queue", metavar="N,N,…", help="… and these clients' tasks have the places, in order")
    add("--ahead", type=int, default=0, metavar="N", help="grants handed on before it is reported")
    add("--patience", type=int, metavar="TICKS", help="for which the lock may be idle")
    add(
        "--without", nargs="+", choices=guards, default=[], metavar="SAFEGUARD", help="leave it out"
    )
    add("--limit", type=int, metavar="STATES")
    options = parser.parse_args(argv)
    tasks = (1,) * options.clients
    if options.tasks:
        tasks = tuple(int(number) for number in options.tasks.split(","))
    setting = Setting(
        tasks=tasks,
        claim=options.claim,
        ttl=options.ttl,
        late=options.late,
        renews=not options.fixed,
        tries=options.tries,
        faults=options.faults,
        kinds=frozenset[Fault](options.kinds or EVERY_FAULT),
        delays=options.delays,
        begun=options.begun,
        first=options.first,
        queue=tuple(int(number) for number in options.queue.split(",")) if options.queue else (),
        ahead=options.ahead,
        patience=options.patience,
    )
    guarded = replace(Safeguards(), **dict.fromkeys(options.without, False))
    searched = Search(World(setting, guarded)).run(stuck=Wrong.FORGOTTEN, limit=options.limit)
    print(searched)  # noqa: T201  # a command prints
    return 1 if searched.found else 0


if __name__ == "__main__":
    sys.exit(main())
