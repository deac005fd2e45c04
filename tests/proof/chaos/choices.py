"""The decisions of a worker's tasks: one whole attempt at a time, from their dice alone."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

Kind = Literal["lock", "rw", "permits", "campaign", "periodic", "baton"]

PLACES: Final[dict[str, Kind]] = {
    "lock:hot": "lock",
    "lock:warm": "lock",
    "lock:order:{42}": "lock",
    "lock:na\u00efve 100%": "lock",
    "lock:rates": "rw",
    "semaphore:api": "permits",
    "election:primary": "campaign",
    "periodic:job": "periodic",
    "lock:baton": "baton",
}
"""What tasks take: the store's key, which a history calls the name, and its kind."""
_WEIGHTS: Final = (5, 3, 2, 1, 4, 3, 1, 0, 0)  # the last two have tasks of their own
EVERYTHING: Final = frozenset(
    {
        *("lock", "rw", "permits", "campaign", "periodic", "baton"),  # see `Kind`
        *("meet", "count", "wait", "once", "both"),  # see `Meeting`
        "downgrade",  # see `Step`
        "fixed",  # leases that are not renewed
        *("rates", "paths"),  # see `rates.Taking`, and `paths.Entering`
    }
)
"""All kinds that are used."""
OF_A_QUORUM: Final = frozenset({"lock", "rw", "campaign", "periodic", "once", "both", "fixed"})
"""The kinds that several voting servers offer, and that are used."""
WITHOUT_CLOCK: Final = EVERYTHING - {"periodic", "once", "fixed", "baton", "rates", "paths"}
"""The kinds about which no clock decides where a lease is a session of its client."""
PERMITS: Final = 4
EVERY: Final = 2.0
"""Seconds of a period of the job: more than a run may be late, so that a missing run shows."""
SHARED_TTL: Final = 1.5
"""Seconds: the ttl of the semaphore and the read lock that all tasks of a process share."""


def places(offers: frozenset[str]) -> tuple[str, ...]:
    """The names of the kinds that a store offers."""
    return tuple(name for name, kind in PLACES.items() if kind in offers)


def called(name: str) -> str:
    """The user's name for the store's key."""
    return name.partition(":")[2]


PARTIES: Final = 3
"""Parties at the barrier, and counts to open a latch."""
MESSAGES: Final = 60
"""How many messages there are at a time, and how many latches."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing done in a body."""

    what: Literal["rest", "block", "verify", "extend", "again", "deadlock", "downgrade", "raise"]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """One attempt, as it was drawn: everything about it that is decided beforehand."""

    name: str
    kind: Kind
    shared: bool
    permits: int
    style: Literal[
        "with",
        "acquire with",
        "await",
        "wait_for",
        "break",
        "entered",
        "generator",
        "take",
        "adopt",
        "discard",
    ]
    """``entered``: one object that all tasks of the process enter; ``generator``: in an
    asynchronous generator that is dropped half way. The last three are of the baton: ``take`` it,
    or do so by a token that another attempt has left."""
    options: dict[str, Any]
    timeout: float | None
    wait: bool
    steps: tuple[Step, ...]
    linger: float
    cancel_after: float | None
    pause: float
    handed_for: float | None = None
    """Seconds for which the lease is handed on; None: it is released."""


def draw(rng: random.Random, offers: frozenset[str] = EVERYTHING) -> Choice:
    """The next attempt of a task, among those the store offers."""
    weights = [
        weight if kind in offers else 0
        for weight, kind in zip(_WEIGHTS, PLACES.values(), strict=True)
    ]
    name = rng.choices(tuple(PLACES), weights)[0]
    kind = PLACES[name]
    shared = kind == "permits" or (kind == "rw" and rng.random() < 0.75)
    permits = rng.choice((1, 1, 1, 2, 3, PERMITS)) if kind == "permits" else 0
    ttl = round(rng.uniform(0.5, 2.0), 3)
    reentrant = rng.random() < 0.1 and kind in {"lock", "rw"}
    on_lost = "signal" if rng.random() < 0.15 else "cancel"
    options: dict[str, Any] = {
        "ttl": ttl,
        "renew": rng.random() >= 0.12 or "fixed" not in offers,
        "reentrant": reentrant,
        "max_waiters": rng.randint(1, 20) if rng.random() < 0.03 else None,
        "max_hold": round(rng.uniform(0.3, 2.5), 3) if rng.random() < 0.06 else None,
        "on_lost": on_lost,
    }
    style: Any = rng.choices(
        ("with", "acquire with", "await", "wait_for", "break"), (55, 15, 15, 14.7, 0.3)
    )[0]
    if kind in {"campaign", "periodic"}:
        style = "break" if style == "break" else "with"
        options = {"ttl": ttl, "renew": True, "on_lost": "cancel"}
    elif shared and rng.random() < 0.3:
        # A dropped generator cannot be cancelled by a loss: its body is elsewhere.
        style = rng.choice(("entered", "generator"))
        options = {"ttl": SHARED_TTL, "renew": True, "on_lost": "signal"}
        permits, reentrant = min(permits, 1), False
    elif kind == "permits" and style == "wait_for":
        style = "acquire with"
    patience = rng.random() if kind != "campaign" else 0.0
    timeout = None if patience < 0.6 else rng.uniform(0, 0.1 if patience < 0.7 else 4.0)
    if kind == "periodic" or style in {"entered", "generator"}:
        timeout = None
    if style == "wait_for" and timeout is None:
        timeout = rng.uniform(0.05, 4.0)
    ends = not options["renew"] or options.get("max_hold") is not None
    outlast = ends and rng.random() < 0.015
    steps = _steps(rng, ttl, outlast=outlast, reentrant=reentrant, alone=kind in {"lock", "rw"})
    writes = kind == "rw" and not shared and not reentrant
    if writes and rng.random() < 0.4 and "downgrade" in offers:
        steps += [Step("downgrade"), _hold(rng, ttl, outlast=False)]
    rng.shuffle(steps)
    return Choice(
        name=name,
        kind=kind,
        shared=shared,
        permits=permits,
        style=style,
        options=options,
        timeout=timeout,
        wait=style in {"wait_for", "with", "entered", "generator"} or rng.random() >= 0.08,
        steps=tuple(steps),
        linger=rng.uniform(0, 0.5) if rng.random() < 0.3 else 0.0,
        cancel_after=rng.expovariate(3.0) if rng.random() < 0.12 else None,
        pause=rng.expovariate(60.0),
    )


def draw_run(rng: random.Random) -> Choice:
    """The next run of the job."""
    steps = [Step("rest", rng.choice((0.0, rng.uniform(0, 0.3))))]
    if rng.random() < 0.1:
        steps.append(Step("raise"))
    return replace(
        final_choice("periodic:job"),
        # A short ttl: a process that is stopped when its turn comes must not cost a whole period.
        options={"ttl": round(rng.uniform(0.5, 0.8), 3), "on_lost": "cancel"},
        steps=tuple(steps),
        cancel_after=rng.expovariate(1 / EVERY) if rng.random() < 0.2 else None,
        pause=rng.choice((0.0, rng.expovariate(2.0))),
    )


def draw_baton(rng: random.Random, *, by_token: bool) -> Choice:
    """The next attempt at the lock that is handed on, from a queue or by a token."""
    ttl = round(rng.uniform(0.5, 2.0), 3)
    ends: Any = rng.choices(("adopt", "discard"), (95, 5)) if by_token else ("take",)
    if rng.random() < 0.003:
        ends = ("break",)
    steps = [_hold(rng, ttl, outlast=False)]
    if rng.random() < 0.05:
        steps.append(Step("raise"))
    return replace(
        final_choice("lock:baton"),
        style=ends[0],
        options={"ttl": ttl, "renew": rng.random() < 0.9, "on_lost": "cancel"},
        timeout=None if rng.random() < 0.7 else rng.uniform(0.0, 3.0),
        wait=not by_token,
        steps=tuple(steps),
        cancel_after=rng.expovariate(20.0) if rng.random() < 0.12 else None,
        pause=rng.expovariate(20.0),
        handed_for=round(rng.uniform(0.1, 2.0), 3) if rng.random() < 0.7 else None,
    )


def final_choice(name: str) -> Choice:
    """The last attempt: every process can finish it in time once nothing is broken any more."""
    kind = PLACES[name]
    return Choice(
        name=name,
        kind=kind,
        shared=kind == "permits",
        permits=PERMITS if kind == "permits" else 0,
        style="with" if kind in {"campaign", "periodic"} else "await",
        options={"ttl": 2.0, "on_lost": "cancel"},
        timeout=None if kind in {"campaign", "periodic"} else 20.0,
        wait=True,
        # Long enough that every observer must see it.
        steps=(Step("rest", 1.5),) if kind == "campaign" else (),
        linger=0.0,
        cancel_after=None,
        pause=0.0,
    )


def _steps(
    rng: random.Random, ttl: float, *, outlast: bool, reentrant: bool, alone: bool
) -> list[Step]:
    """The steps of a body."""
    steps = [_hold(rng, ttl, outlast=outlast)]
    odds = rng.random()
    if odds < 0.04:
        steps.append(Step("verify"))
    elif odds < 0.06:
        steps.append(Step("extend", round(rng.uniform(0.5, 2.0), 3)))
    elif odds < 0.08:
        steps.append(Step("raise"))
    elif odds < 0.09 and alone and not reentrant:
        steps.append(Step("deadlock"))
    elif odds < 0.092:
        steps.append(Step("block", rng.uniform(0.05, 0.5)))
    elif odds < 0.0925:
        steps.append(Step("block", ttl * rng.uniform(1.05, 1.5)))
    if reentrant:
        steps.append(Step("again"))
    return steps


def _hold(rng: random.Random, ttl: float, *, outlast: bool) -> Step:
    if outlast:  # the lease ends by itself, long before: other attempts need not wait for it
        return Step("rest", ttl + rng.uniform(0.2, 3.0))
    odds = rng.random()
    if odds < 0.95:
        return Step("rest", rng.choice((0.0, rng.uniform(0, 0.003))))
    if odds < 0.99:
        return Step("rest", rng.uniform(0.005, 0.06))
    if odds < 0.998:
        return Step("rest", rng.uniform(0.1, 0.6))
    return Step("rest", ttl * rng.uniform(1.1, 1.6))


@dataclass(frozen=True, slots=True)
class Meeting:
    """One attempt that is not at a single lock: barrier, latch, message, or two of three locks."""

    what: Literal["meet", "count", "wait", "once", "both"]
    number: int
    """Which latch, or which message."""
    seconds: float
    """How long to wait at most, or how long the body takes."""
    fails: bool
    pause: float


_MEETINGS: Final = {"meet": 3, "count": 3, "wait": 3, "once": 4, "both": 5}
"""The weight of each."""


def draw_meeting(rng: random.Random, offers: frozenset[str] = EVERYTHING) -> Meeting:
    """The next attempt of a task that meets others, among those the store offers."""
    weights = [weight if what in offers else 0 for what, weight in _MEETINGS.items()]
    what: Any = rng.choices(tuple(_MEETINGS), weights)[0]
    return Meeting(
        what=what,
        number=rng.randrange(MESSAGES),
        seconds=rng.uniform(0.0, 0.02) if what in {"once", "both"} else rng.uniform(0.2, 3.0),
        fails=rng.random() < 0.2,
        pause=rng.expovariate(8.0),
    )
