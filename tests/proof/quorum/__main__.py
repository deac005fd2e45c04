"""``python -m tests.proof.quorum``: a long campaign of simulations, in every world."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter

from tests.proof.quorum.world import WORLDS, Simulation, Violation

_WITHIN_THE_ASSUMPTIONS = [name for name in WORLDS if name != "too fast"]


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.quorum", description=__doc__)
    parser.add_argument("--world", choices=WORLDS, help="of this one only")
    parser.add_argument("--servers", type=int, choices=(3, 5, 7), help="so many only")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    options = parser.parse_args()
    worlds = [options.world] if options.world else _WITHIN_THE_ASSUMPTIONS
    counts = [options.servers] if options.servers else [3, 5]
    wrong = 0
    for world, servers in itertools.product(worlds, counts):
        wrong += campaign(world, servers, options.seconds, options.seed)
    return 1 if wrong else 0


def campaign(world: str, servers: int, seconds: float, seed: int) -> int:
    """Run simulations for so long; prints figures, and returns how many found a violation."""
    began, runs, wrong = time.monotonic(), 0, 0
    totals: Counter[str] = Counter()
    while time.monotonic() - began < seconds:
        simulation = Simulation(seed + runs, WORLDS[world], servers)
        runs += 1
        try:
            simulation.run()
        except Violation as violation:
            wrong += 1
            print(f"seed {seed + runs - 1}: {violation}", file=sys.stderr)  # noqa: T201
        totals += simulation.counts
    entered = totals["entered"] or 1
    print(  # noqa: T201
        f"{world:16} N={servers}: {runs:6,} runs, {totals['entered']:9,} entries,"
        f" {totals['beside']:,} times beside another, {wrong} wrong;"
        f" for each {totals['commands'] / entered:.1f} commands,"
        f" {totals['raise'] / entered:.3f} raises, {totals['give way'] / entered:.3f} votes given"
        f" back, {totals['Inquire'] / entered:.3f} inquiries,"
        f" {totals['handed on'] / entered:.2f} handed on",
        flush=True,
    )
    return wrong


if __name__ == "__main__":
    sys.exit(main())
