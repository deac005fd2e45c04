"""What a worker's tasks decide to do: one whole attempt at a time, by nothing but their dice."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final, Literal

NAMES: Final = ("hot", "warm", "order:{42}", "na\u00efve 100%")
_WEIGHTS: Final = (5, 3, 2, 1)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing done in a body."""

    what: Literal["rest", "block", "verify", "extend", "again", "deadlock", "raise"]
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """One attempt, as it was drawn: everything about it, whatever will happen."""

    name: str
    style: Literal["with", "acquire with", "await", "wait_for", "break"]
    options: dict[str, Any]
    timeout: float | None
    wait: bool
    steps: tuple[Step, ...]
    linger: float
    cancel_after: float | None
    pause: float


def draw(rng: random.Random) -> Choice:
    """The next attempt of a task."""
    name = rng.choices(NAMES, _WEIGHTS)[0]
    ttl = round(rng.uniform(0.5, 2.0), 3)
    reentrant = rng.random() < 0.1
    on_lost = "signal" if rng.random() < 0.15 else "cancel"
    options: dict[str, Any] = {
        "ttl": ttl,
        "renew": rng.random() >= 0.12,
        "reentrant": reentrant,
        "max_waiters": rng.randint(1, 20) if rng.random() < 0.03 else None,
        "max_hold": round(rng.uniform(0.3, 2.5), 3) if rng.random() < 0.06 else None,
        "on_lost": on_lost,
    }
    style: Any = rng.choices(
        ("with", "acquire with", "await", "wait_for", "break"), (55, 15, 15, 14.7, 0.3)
    )[0]
    patience = rng.random()
    timeout = None if patience < 0.6 else rng.uniform(0, 0.1 if patience < 0.7 else 4.0)
    if style == "wait_for" and timeout is None:
        timeout = rng.uniform(0.05, 4.0)
    ends = not options["renew"] or options["max_hold"] is not None
    steps = [_hold(rng, ttl, outlast=ends and rng.random() < 0.015)]
    odds = rng.random()
    if odds < 0.04:
        steps.append(Step("verify"))
    elif odds < 0.06:
        steps.append(Step("extend", round(rng.uniform(0.5, 2.0), 3)))
    elif odds < 0.08:
        steps.append(Step("raise"))
    elif odds < 0.09 and not reentrant:
        steps.append(Step("deadlock"))
    elif odds < 0.092:
        steps.append(Step("block", rng.uniform(0.05, 0.5)))
    elif odds < 0.0925:
        steps.append(Step("block", ttl * rng.uniform(1.05, 1.5)))
    if reentrant:
        steps.append(Step("again"))
    rng.shuffle(steps)
    return Choice(
        name=name,
        style=style,
        options=options,
        timeout=timeout,
        wait=style in {"wait_for", "with"} or rng.random() >= 0.08,
        steps=tuple(steps),
        linger=rng.uniform(0, 0.5) if rng.random() < 0.3 else 0.0,
        cancel_after=rng.expovariate(3.0) if rng.random() < 0.12 else None,
        pause=rng.expovariate(60.0),
    )


def final_choice(name: str) -> Choice:
    """What everybody can do within a bound once nothing is broken any more."""
    return Choice(
        name=name,
        style="await",
        options={"ttl": 2.0, "on_lost": "cancel"},
        timeout=20.0,
        wait=True,
        steps=(),
        linger=0.0,
        cancel_after=None,
        pause=0.0,
    )


def _hold(rng: random.Random, ttl: float, *, outlast: bool) -> Step:
    if outlast:  # a lease that ends by itself, and by much: the others need not wait for that
        return Step("rest", ttl + rng.uniform(0.2, 3.0))
    odds = rng.random()
    if odds < 0.95:
        return Step("rest", rng.choice((0.0, rng.uniform(0, 0.003))))
    if odds < 0.99:
        return Step("rest", rng.uniform(0.005, 0.06))
    if odds < 0.998:
        return Step("rest", rng.uniform(0.1, 0.6))
    return Step("rest", ttl * rng.uniform(1.1, 1.6))
