"""Rate limits in the chaos: what workers do with one, and what must be true of its tokens.

The grant of tokens has no fence and is not released, so it is an interval: it was made after the
last question of its waiter that was answered otherwise, and before its client heard of it.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import aiolock
from aiolock.protocol import Rule, WaiterId
from tests.proof.chaos.history import Event, History
from tests.proof.chaos.run import NS, Run, Violation

TAKING: Final = 3
"""Tasks of each process that take tokens."""
LIMIT: Final = 40
BURST: Final = 8
_FINAL: Final = 20.0
"""Seconds within which each process gets a token, once nothing is broken."""


@dataclass(frozen=True, slots=True)
class Taking:
    """One attempt, as it was drawn."""

    tokens: int
    timeout: float | None
    """Seconds; None: it waits for as long as it takes."""
    cancel_after: float | None
    pause: float


def draw_taking(rng: random.Random) -> Taking:
    """The next attempt: half of them do not wait."""
    waits = rng.choice((0.0, 0.0, rng.uniform(0.05, 2.0), None))
    return Taking(
        tokens=rng.choice((1, 1, 1, 2, BURST)),
        timeout=waits,
        cancel_after=rng.expovariate(3.0) if rng.random() < 0.1 else None,
        pause=rng.expovariate(6.0),
    )


def _limit(client: aiolock.LockClient) -> aiolock.RateLimit:
    return client.rate_limit("calls", LIMIT, per=1, burst=BURST)


async def take(client: aiolock.LockClient, choice: Taking) -> None:
    """One attempt; the store's recorder writes down what comes of it."""
    limit, timeout = _limit(client), 3600.0 if choice.timeout is None else choice.timeout
    taken = asyncio.create_task(limit.try_acquire(choice.tokens, timeout=timeout))
    await asyncio.wait([taken], timeout=choice.cancel_after)
    taken.cancel()
    await asyncio.wait([taken])
    error = None if taken.cancelled() else taken.exception()
    if error is not None and not isinstance(error, aiolock.StoreError | aiolock.ClientClosed):
        raise error


async def take_last(client: aiolock.LockClient) -> None:
    """Take one token, when nothing is broken; an error if that takes too long."""
    await _limit(client).acquire(timeout=_FINAL)


class Takings:
    """What one process has heard of its tokens."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._since: dict[WaiterId, int] = {}
        """When the last question was asked that was answered with a place, or the first."""
        self._took: set[WaiterId] = set()

    def asks(self, waiter: WaiterId, now: int) -> None:
        """A waiter asks."""
        self._since.setdefault(waiter, now)

    def queued(self, name: str, waiter: WaiterId, since: int) -> None:
        """It had no tokens yet, when it asked then."""
        self._since[waiter] = max(self._since[waiter], since)
        self._history.note("in_line", n=name, w=list(waiter), since=since)

    def took(self, name: str, waiter: WaiterId, tokens: int) -> None:
        """It hears of its tokens, perhaps once more."""
        if waiter not in self._took:
            self._took.add(waiter)
            since = self._since[waiter]
            self._history.note("took", n=name, w=list(waiter), tokens=tokens, since=since)


def is_rate(rule: Rule) -> bool:
    """Whether waiters by this rule take tokens."""
    return rule is Rule.RATE


def rates(run: Run) -> Iterator[Violation]:
    """In no time were more tokens taken than burst and rate allow, unless the server forgot some.

    Whoever waits is not overtaken by somebody that asked later, if nothing disturbed it.
    """
    taken: dict[str, list[Event]] = defaultdict(list)
    for event in run.of("took"):
        taken[event["n"]].append(event)
    for name, events in taken.items():
        yield from _too_many(run, name, events)
    yield from _overtaken(run)


def _too_many(run: Run, name: str, events: list[Event]) -> Iterator[Violation]:
    """The shortest of such times that begin with each of these grants."""
    for first in events:
        tokens, began = 0, first["since"]
        for event in events:  # in the order in which they were heard of
            if event["since"] < began:
                continue
            tokens += event["tokens"]
            if run.wiped_between(began, event.t):
                break
            if tokens > BURST + (event.t - began) * LIMIT / NS:
                seconds = (event.t - began) / NS
                text = f"{tokens} tokens of {name!r} were taken in {seconds:.3f} s"
                yield Violation("rates", text, (first, event))
                break


def _overtaken(run: Run) -> Iterator[Violation]:
    lines: dict[tuple[str, int], list[Event]] = defaultdict(list)
    first: dict[tuple[str, int], int] = {}
    took = list(run.of("took"))
    for event in run.of("in_line"):
        lines[tuple(event["w"])].append(event)
    for event in took:
        who = tuple(event["w"])
        first[who] = lines[who][0]["since"] if lines[who] else event["since"]
    for waits in lines.values():
        if not waits:
            continue
        one, last = waits[0], waits[-1]
        for event in took:
            came_later = first[tuple(event["w"])] > one.t
            if came_later and event.t < last["since"]:
                if run.disturbed(one.who, one.t, last.t) or run.wiped_between(one.t, last.t):
                    break
                text = f"{event['w']} took tokens of {event['n']!r} before {one['w']}"
                yield Violation("rates", text, (one, event, last))
                break
