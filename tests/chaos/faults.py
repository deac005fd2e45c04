"""The kinds of faults, and the plan that a seed makes of them.

The plan consists of lanes: the server's, and for each worker one for its process and one for its
links. Within a lane one fault follows another, lanes go on side by side. Each lane is drawn from
`random.Random` of the seed and the lane's name, from a shuffled deck, so that all kinds occur.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, NamedTuple


class Kind(NamedTuple):
    """How long a fault lasts, in seconds, and its effects may be felt after it."""

    least: float
    most: float
    settle: float
    """To notice, dial and ask again."""


PROCESS: Final = {
    "kill": Kind(0.0, 1.0, 0.0),  # until it is replaced; who is dead is not disturbed
    "stop": Kind(0.1, 3.0, 0.5),
}

LINKS: Final = {
    "cut": Kind(0.0, 0.0, 2.0),
    "cut_commands": Kind(0.0, 0.0, 2.0),
    "cut_subscription": Kind(0.0, 0.0, 2.0),
    "deafen": Kind(0.1, 3.0, 2.0),
    "deafen_subscription": Kind(0.1, 3.0, 2.0),
    "delay": Kind(0.5, 3.0, 1.0),
    "drop": Kind(0.1, 2.0, 16.0),  # dead without a word: noticed within 15 seconds
    "kill_commands": Kind(0.0, 0.0, 2.0),
    "kill_subscription": Kind(0.0, 0.0, 2.0),
    "late": Kind(0.05, 1.0, 2.0),  # cut, and what was held up is delivered up to 9 seconds later
    "refuse": Kind(0.1, 2.0, 2.5),
    "swallow": Kind(0.5, 0.5, 2.0),
    "tear": Kind(0.5, 0.5, 2.0),
}

SERVER: Final = {
    "flush": Kind(0.0, 0.0, 0.0),  # who is queued again has its place again
    "flush_scripts": Kind(0.0, 0.0, 0.0),
    "freeze": Kind(0.1, 2.5, 1.0),
    "freeze_long": Kind(4.5, 5.5, 2.5),  # longer than a command waits for its reply
    "kill_connections": Kind(0.0, 0.0, 2.0),
    "kill_subscriptions": Kind(0.0, 0.0, 2.0),
    "load": Kind(0.3, 2.0, 3.0),  # restarted with what it has saved, which takes so long: LOADING
    "pause": Kind(0.1, 2.0, 1.0),
    "pause_writes": Kind(0.1, 2.0, 1.0),
    "restart": Kind(0.0, 1.5, 3.0),
    "refuse_unreplicated": Kind(0.5, 2.0, 3.0),  # NOREPLICAS
    "refuse_unsaved": Kind(0.5, 2.0, 2.0),  # MISCONF
}

REFUSALS: Final = {"load", "refuse_unreplicated", "refuse_unsaved"}
"""The server answers, but does not serve anybody for a while."""

LATE_WITHIN: Final = 9.0
"""Seconds within which what was held up on a link that was cut comes to the server."""

UNPLANNED: Final = {
    "slow": Kind(0.0, 0.0, 0.5),  # the server or the proxies did not run, on a busy machine
}

KINDS: Final = PROCESS | LINKS | SERVER | UNPLANNED

_EVERY: Final = {"process": 12.0, "links": 10.0, "server": 6.0}
"""The mean pause between two faults of a lane, in seconds."""
_BREATH: Final = 0.5
"""The shortest one."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the plan: when, what, to whom (a slot, or "all"), and for how long."""

    at: float
    kind: str
    target: str
    seconds: float
    dice: int
    """For what else is to be decided when it is carried out."""


def plan(seed: str, seconds: float, slots: list[str]) -> dict[str, list[Fault]]:
    """The faults of each lane, for a run of so many seconds."""
    lanes = {"server": _lane(seed, "server", "all", seconds, SERVER)}
    for slot in slots:
        lanes[f"process {slot}"] = _lane(seed, "process", slot, seconds, PROCESS)
        lanes[f"links {slot}"] = _lane(seed, "links", slot, seconds, LINKS)
    return lanes


def _lane(seed: str, lane: str, target: str, seconds: float, kinds: dict[str, Kind]) -> list[Fault]:
    rng = random.Random(f"{seed} {lane} {target}")
    faults: list[Fault] = []
    deck: list[str] = []
    at = rng.uniform(0, _EVERY[lane])
    while True:
        if not deck:
            # What comes late must find something to do harm to, which it seldom does.
            deck = [*kinds, *(("late", "late") if "late" in kinds else ())]
            rng.shuffle(deck)
        kind = deck.pop()
        lasts = rng.uniform(kinds[kind].least, kinds[kind].most)
        if at + lasts > seconds:
            return faults
        # A link that is dropped late would only make the end a long wait.
        if kind != "drop" or at + lasts + kinds[kind].settle < seconds:
            faults.append(Fault(at, kind, target, lasts, rng.getrandbits(32)))
        at += lasts + _BREATH + rng.expovariate(1 / (_EVERY[lane] - _BREATH))
