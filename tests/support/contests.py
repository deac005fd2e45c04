"""Processes that contend for two locks while their servers fail, and their reports."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import combinations, pairwise

from tests.support.procs import Worker


@dataclass
class Stay:
    """One body, as its process told."""

    lock: str
    fence: int
    begin: float
    end: float


class Contest:
    """Processes that contend for two locks, and their reports."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers

    def stays(self) -> list[Stay]:
        """All bodies, in the order in which they were entered."""
        found: list[Stay] = []
        for worker in self.workers:
            # Fences are of one lock: another one's may be the same.
            ends = {(m["lock"], m["fence"]): m["t"] for m in worker.history if m["event"] == "out"}
            found += [
                Stay(
                    m["lock"],
                    m["fence"],
                    float(m["t"]),
                    float(ends.get((m["lock"], m["fence"])) or m["t"]),
                )
                for m in worker.history
                if m["event"] == "in"
            ]
        return sorted(found, key=lambda stay: stay.begin)

    def of(self, lock: str) -> list[Stay]:
        """Those of one lock."""
        return [stay for stay in self.stays() if stay.lock == lock]

    def said(self, event: str) -> int:
        """How often any of them said so."""
        return sum(m["event"] == event for worker in self.workers for m in worker.history)

    def resumed(self, since: float) -> float:
        """When both locks were handed on again, after the longest pause from a moment on."""
        ends: list[float] = []
        for lock in "ab":
            times = [since, *(stay.begin for stay in self.of(lock) if stay.begin > since)]
            ends.append(max(pairwise(times), key=lambda pair: pair[1] - pair[0])[1])
        return max(ends)

    def gap(self, since: float) -> float:
        """The longest time in which no lock was handed on, from a moment on."""
        times = [since, *(stay.begin for stay in self.stays() if stay.begin > since)]
        return max((b - a for a, b in pairwise(times)), default=0.0)

    async def goes_on(self, *, within: float = 15.0) -> float:
        """Wait until both locks are entered after now; when both were."""
        now = time.monotonic()
        async with asyncio.timeout(within):
            while not all(  # noqa: ASYNC110  # they are other processes
                any(s.begin > now for s in self.of(lock)) for lock in "ab"
            ):
                await asyncio.sleep(0.05)
        return max(next(s.begin for s in self.of(lock) if s.begin > now) for lock in "ab")

    def overlaps(self) -> list[tuple[Stay, Stay]]:
        """Bodies of one lock of which the second began before the first had ended."""
        return [
            (one, other)
            for lock in "ab"
            for one, other in pairwise(self.of(lock))
            if other.begin < one.end
        ]

    def check(self, *, since: float, until: float) -> None:
        """Fences never go back; two bodies meet only around the fail-over, if at all.

        Around it two masters may grant, and a fence is the time of its grant: of two bodies, one
        from each, the one that is entered first may have been granted last. Each master's fences
        grow. So what is entered in that time falls into two rows that do, and no more.
        """
        for lock in "ab":
            # Not only of neighbours: what is below any body before it has gone back.
            back = [(a, b) for a, b in combinations(self.of(lock), 2) if a.fence >= b.fence]
            for one, other in back:
                assert one.fence != other.fence, (one, other)
                assert since <= one.end, (one, other)
                assert other.begin <= until, (one, other)
            assert len(rising(self.of(lock))) <= 2, back
        for one, other in self.overlaps():
            assert since <= one.end, (one, other)
            assert other.begin <= until, (one, other)
        assert not self.said("nobody knows")


def rising(stays: list[Stay]) -> list[list[Stay]]:
    """Return the fewest rows, in order of entry, in each of which the fences grow.

    Each body goes to the row whose last fence is the highest below its own: what patience sorting
    does, which finds the fewest (Aldous and Diaconis, 1999).
    """
    rows: list[list[Stay]] = []
    for stay in stays:
        below = [row for row in rows if row[-1].fence < stay.fence]
        if below:
            max(below, key=lambda row: row[-1].fence).append(stay)
        else:
            rows.append([stay])
    return rows


@asynccontextmanager
async def contest(url: str, prefix: str) -> AsyncIterator[Contest]:
    """Three processes of six tasks each."""
    async with AsyncExitStack() as stack:
        workers = [
            await stack.enter_async_context(
                Worker("-W", "error", "-m", "tests.support.children.contender", url, prefix)
            )
            for _ in range(3)
        ]
        for worker in workers:
            await worker.expect("ready")
        going = Contest(workers)
        await going.goes_on()
        yield going
        for worker in workers:
            await worker.send({})
        for worker in workers:
            await worker.expect("closed", within=20)


def tell(going: Contest, began: float, *measured: object) -> None:
    """Print what pytest shows with -s."""
    seen = [f"{each:.2f} s" if isinstance(each, float) else str(each) for each in measured]
    print(  # noqa: T201
        *seen,
        f"pause {going.gap(began):.2f} s, {len(going.stays()):,} entries,"
        f" {len(going.overlaps())} overlaps, {going.said('lost')} lost",
    )
