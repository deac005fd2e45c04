"""The statistics: rounds in turn, medians, and the spread of the rounds."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

Subject = TypeVar("Subject")


class NothingMeasured(ValueError):
    """On a machine that stands still, nobody may have come through in time."""


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the values lie, interpolated if necessary."""
    if not values:
        raise NothingMeasured("nothing was measured")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


class Spread(NamedTuple):
    """The median of several rounds, and the quartiles around it."""

    median: float
    low: float
    high: float
    rounds: int


def spread(values: Sequence[float]) -> Spread:
    """The median and the quartiles of the rounds."""
    return Spread(
        quantile(values, 0.5), quantile(values, 0.25), quantile(values, 0.75), len(values)
    )


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Our figures divided by theirs, round by round: a slow round is slow for both.

    If one of the two has fewer rounds, the ratio of the medians. A round in which theirs is 0 has
    no ratio; if none has one, it is not a number.
    """
    if len(ours) != len(theirs):
        ours, theirs = [quantile(ours, 0.5)], [quantile(theirs, 0.5)]
    found = [one / other for one, other in zip(ours, theirs, strict=True) if other]
    return spread(found or [math.nan])


def in_turn(subjects: Sequence[Subject], rounds: int) -> Iterator[tuple[int, Subject]]:
    """Each subject in each round; each round begins with another one."""
    for number in range(rounds):
        start = number % max(1, len(subjects))
        for subject in (*subjects[start:], *subjects[:start]):
            yield number, subject


@dataclass(frozen=True, order=True)
class Entry:
    """One way through the lock: nanoseconds of the machine's monotonic clock."""

    entered: int
    asked: int
    left: int
    who: str


def inversions(entries: Sequence[Entry], *, margin: int = 0) -> int:
    """How many pairs entered in another order than they asked.

    A pair counts if one task asked more than ``margin`` nanoseconds before the other. Between
    processes, or over several connections, nobody knows which of two requests of the same
    microsecond came first; the margin leaves those out.
    """
    wrong = 0
    asked: list[int] = []
    for entry in sorted(entries):
        wrong += len(asked) - bisect.bisect_right(asked, entry.asked + margin)
        bisect.insort(asked, entry.asked)
    return wrong


def overtaken(entries: Sequence[Entry], *, margin: int = 0) -> int:
    """How many tasks were overtaken by one that had asked more than ``margin`` after them."""
    count = 0
    latest = 0
    for entry in sorted(entries):
        count += latest > entry.asked + margin
        latest = max(latest, entry.asked)
    return count


def overlaps(entries: Sequence[Entry]) -> int:
    """How often a task entered before the previous one had left, as if there were no lock."""
    ordered = sorted(entries)
    return sum(after.entered < before.left for before, after in itertools.pairwise(ordered))


def most_inside(entries: Sequence[Entry]) -> int:
    """The highest number of bodies at one time."""
    moves = [(each.entered, 1) for each in entries] + [(each.left, -1) for each in entries]
    return max(itertools.accumulate(step for _, step in sorted(moves)), default=0)


def handovers(entries: Sequence[Entry]) -> int:
    """How often the lock went from one task to another."""
    ordered = sorted(entries)
    return sum(before.who != after.who for before, after in itertools.pairwise(ordered))
