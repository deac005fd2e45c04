"""Path locks in the chaos: what workers do with them, and what must be true of their leases."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import aiolock
from aiolock.options import Mode
from tests.proof.chaos.history import Event, History
from tests.proof.chaos.run import Run, Violation

ENTERING: Final = 2
"""Tasks of each process that take path locks."""
_PATHS: Final = ("acme", "acme/7", "acme/7/a", "acme/7/b", "acme/8", "acme/8/a")
_WEIGHTS: Final = (1, 2, 6, 6, 2, 6)
_FINAL: Final = 20.0
"""Seconds within which each process gets the root, once nothing is broken."""


@dataclass(frozen=True, slots=True)
class Entering:
    """One attempt, as it was drawn."""

    path: str
    mode: Mode
    ttl: float
    timeout: float | None
    seconds: float
    pause: float


def draw_entering(rng: random.Random) -> Entering:
    """The next attempt."""
    (path,) = rng.choices(_PATHS, _WEIGHTS)
    return Entering(
        path=path,
        mode="shared" if rng.random() < 0.4 else "exclusive",
        ttl=round(rng.uniform(0.5, 2.0), 3),
        timeout=None if rng.random() < 0.6 else rng.uniform(0.0, 2.0),
        seconds=rng.uniform(0.0, 0.03),
        pause=rng.expovariate(20.0),
    )


async def enter(
    client: aiolock.LockClient, history: History, attempt: str, choice: Entering
) -> None:
    """One attempt, and what comes of it."""
    lock = client.path_lock(choice.path, mode=choice.mode, ttl=choice.ttl, timeout=choice.timeout)
    history.note("wants_path", a=attempt)
    try:
        async with lock as lease:
            until = time.monotonic_ns() + int(lease.remaining() * 1e9)
            shared, fence = choice.mode == "shared", lease.fence
            history.note(
                "has_path", a=attempt, path=choice.path, shared=shared, fence=fence, deadline=until
            )
            try:
                await asyncio.sleep(choice.seconds)
            finally:
                history.note("had_path", a=attempt)
    except (
        aiolock.StoreError,
        aiolock.ClientClosed,
        aiolock.AcquireTimeout,
        aiolock.LeaseLost,
    ) as error:
        history.note("apart", a=attempt, outcome=type(error).__name__)


async def enter_last(client: aiolock.LockClient) -> None:
    """Take the root, when nothing is broken; an error if that takes too long."""
    async with client.path_lock(_PATHS[0], timeout=_FINAL):
        pass


def _exclude(one: Event, other: Event) -> bool:
    first, second = one["path"].split("/"), other["path"].split("/")
    least = min(len(first), len(second))
    return first[:least] == second[:least] and not (one["shared"] and other["shared"])


def paths(run: Run) -> Iterator[Violation]:
    """Of bodies that exclude each other one runs at a time, and the later has the higher fence.

    A body relies on its lease until its first deadline, or for as long as nothing disturbs it.
    """
    wanted = {event["a"]: event for event in run.of("wants_path")}
    ended = {event["a"]: event.t for event in run.of("had_path")}
    entered = list(run.of("has_path"))
    for number, other in enumerate(entered):
        for one in entered[:number]:
            if not _exclude(one, other):
                continue
            if one.t < wanted[other["a"]].t and one["fence"] >= other["fence"]:
                text = f"{other['a']} entered {other['path']!r} after {one['a']}: lower fence"
                yield Violation("paths", text, (one, other))
            until = ended.get(one["a"], other.t)
            if one.who in run.killed:
                until = min(until, run.killed[one.who]["since"])
            if run.disturbed(one.who, one.t, other.t):
                until = min(until, one["deadline"])
            wiped = run.wiped_between(one.t, other.t)
            if other.t < min(until, other["deadline"]) and not wiped:
                text = f"{other['a']} entered {other['path']!r} while {one['a']} had one beside it"
                yield Violation("paths", text, (one, other))
