"""What a lock costs a Redis server: its CPU time for each call of a script.

    python benchmarks/scripts.py [TREE] [--quick]

TREE is another checkout, to compare: `git worktree add --detach /tmp/before main`, then
`python benchmarks/scripts.py /tmp/before`. Each has a server of its own, and they have turns. A new
server begins now and then, because where its memory lies makes a few per cent. The calls are sent
many at a time, as by a client with many tasks, so the figures have little of the system calls in
them, and nothing of the clients.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.redis_server import RedisServer
from benchmarks.rounds import in_turn, quantile, ratios

ROOT = Path(__file__).resolve().parent.parent
_SOURCES = """
import importlib.util, json
from aiolock.stores.redis import _scripts as scripts
found = {name: getattr(scripts, name.upper()).source for name in ("acquire", "release")}
if importlib.util.find_spec("aiolock.stores.redis._sharing"):  # not in older checkouts
    from aiolock.stores.redis import _sharing as sharing
    found |= {"acquire%": sharing.ACQUIRE.source, "release%": sharing.RELEASE.source}
print(json.dumps(found))
"""
_NAMES = 200
"""Free locks."""
_CLIENT = "ON1_bDp7BIgt6Kpc"
_TTL, _KEPT = 30_000, 90_000


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    servers: int = 6
    rounds: int = 20
    """With each server."""
    batch: int = 400
    """Waiters that come."""
    lengths: tuple[int, ...] = (100, 1_000, 10_000, 100_000)
    """Of the queue into which they come."""
    crowd: int = 10_000
    """Waiters to which a lock is released."""
    shares: tuple[int, ...] = (0, 20, 1_000)
    """In how many shares these are."""


QUICK = Size(servers=1, rounds=3, batch=100, lengths=(100, 1_000, 10_000))


class Scripts:
    """The scripts of one checkout, on a server that does nothing else."""

    def __init__(self, server: RedisServer, sources: dict[str, str]) -> None:
        self._redis: Any = redis.Redis(port=server.port)
        self._digests = {name: self._redis.script_load(text) for name, text in sources.items()}
        self._numbers = itertools.count()

    def close(self) -> None:
        """Close its connection."""
        self._redis.close()

    def _run(self, commands: Sequence[Sequence[object]]) -> tuple[float, list[Any]]:
        """The server's CPU time for each command (µs), and the replies."""
        pipeline = self._redis.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        before = self._cpu()
        replies: list[Any] = pipeline.execute()
        return (self._cpu() - before) / len(commands), replies

    def _cpu(self) -> float:
        used = self._redis.info("cpu")
        return float(used["used_cpu_user_main_thread"] + used["used_cpu_sys_main_thread"]) * 1e6

    def _acquire(self, name: str, shares: int = 0) -> tuple[str, tuple[object, ...]]:
        number = next(self._numbers)
        share = f"%dGVuYW50{number % shares}" if shares else ""
        waiter = f"x3000{share}:{_CLIENT}:{number}"
        seconds, micros = divmod(2**52, 1_000_000)  # not after
        arguments = (_TTL, _KEPT, 0, "aiolock:push:", waiter, 0, f"{seconds}{micros:06}")
        return waiter, self._call("acquire", name, arguments, shares)

    def _release(self, name: str, waiter: str, fence: bytes, shares: int = 0) -> tuple[object, ...]:
        return self._call("release", name, (waiter, fence, "aiolock:push:", 0, 0), shares)

    def _call(
        self, script: str, name: str, arguments: tuple[object, ...], shares: int
    ) -> tuple[object, ...]:
        if not shares:
            return ("EVALSHA", self._digests[script], 3, *_keys(name), *arguments)
        return ("EVALSHA", self._digests[f"{script}%"], 5, *_keys(name, _OF_SHARES), *arguments)

    def free(self) -> Iterator[tuple[str, float]]:
        """Acquire and release locks that nobody else wants."""
        calls = {f"free{number}": self._acquire(f"free{number}") for number in range(_NAMES)}
        acquired, replies = self._run([call for _, call in calls.values()])
        yield "acquire, of a free lock", acquired
        fences = [reply.split()[0] for reply in replies]
        released, replies = self._run(
            [
                self._release(name, waiter, fence)
                for (name, (waiter, _)), fence in zip(calls.items(), fences, strict=True)
            ]
        )
        assert set(replies) == {1}, "they were held"
        yield "release, nobody waits", released

    def hold(self, name: str, length: int, shares: int = 0) -> bytes:
        """Have a lock held, with a queue of so many, in so many shares; the fence of the holder."""
        self.holder, first = self._acquire(name, shares)
        more = [self._acquire(name, shares)[1] for _ in range(length)]
        _, replies = self._run([first, *more])
        fence: bytes = replies[0].split()[0]
        return fence

    def hand_off(self, length: int, shares: int, batch: int) -> Iterator[tuple[str, float]]:
        """Release a lock to the waiter that is next, and come into its queue again.

        One by one, so this is the figure of the server's own account.
        """
        if shares and "release%" not in self._digests:
            return
        name = f"handed{length}in{shares}"
        self._redis.delete(*_keys(name, _OF_SHARES))
        fence = self.hold(name, length, shares)
        waiter = self.holder
        self._redis.config_resetstat()
        for _ in range(batch):
            given = self._redis.execute_command(*self._release(name, waiter, fence, shares))
            _, waiter, fence = given.split(b" ")[:3]
            waiter = waiter.decode()
            self._redis.execute_command(*self._acquire(name, shares)[1])
        stats = self._redis.info("commandstats")["cmdstat_evalsha"]
        where = f"{length:,} waiters" + (f" in {min(shares, length):,} shares" if shares else "")
        yield f"release, to the next of {where}, and acquire behind them", stats["usec"] / batch

    def come(self, name: str, length: int, batch: int) -> Iterator[tuple[str, float]]:
        """Come into a queue of so many, and leave it; and beside that, a bare command."""
        calls = [self._acquire(name) for _ in range(batch)]
        queued, replies = self._run([call for _, call in calls])
        assert all(reply[0] == 2 for reply in replies), "they wait"
        yield f"acquire, behind {length:,} waiters", queued
        left, replies = self._run([self._release(name, waiter, b"0") for waiter, _ in calls])
        assert set(replies) == {2}, "they waited"
        yield f"release, behind {length:,} waiters", left
        queue = _keys(name)[1]
        last = 2**52
        bare, _ = self._run(
            [("ZADD", queue, last + at, waiter) for at, (waiter, _) in enumerate(calls)]
        )
        yield f"`ZADD`, behind {length:,} waiters", bare
        self._run([("ZREM", queue, waiter) for waiter, _ in calls])


_PLAIN = ("holders", "queue", "fence")
_OF_SHARES = (*_PLAIN, "line", "shares")


def _keys(name: str, kinds: tuple[str, ...] = _PLAIN) -> list[str]:
    return [f"aiolock:{{lock:{name}}}:{kind}" for kind in kinds]


def sources(tree: Path) -> dict[str, str]:
    """The scripts of a checkout, by their names."""
    environment = os.environ | {"PYTHONPATH": str(tree)}
    printed = subprocess.check_output(
        [sys.executable, "-c", _SOURCES], env=environment, cwd=tree, text=True
    )
    found: dict[str, str] = json.loads(printed)
    return found


def measure(trees: Sequence[Path], size: Size) -> list[str]:
    """The lines of a table: figures of the first checkout, and its ratios to the second."""
    found: list[dict[str, list[float]]] = [{} for _ in trees]
    texts = [sources(tree) for tree in trees]
    for _ in range(size.servers):
        with ExitStack() as stack:
            sides = [Scripts(stack.enter_context(RedisServer()), text) for text in texts]
            for side in sides:
                stack.callback(side.close)
                for length in size.lengths:
                    side.hold(f"held{length}", length)
            for _, number in in_turn(range(len(sides)), size.rounds):
                side = sides[number]
                queues = [side.come(f"held{each}", each, size.batch) for each in size.lengths]
                handed = [side.hand_off(size.crowd, each, size.batch) for each in size.shares]
                for what, took in itertools.chain(side.free(), *queues, *handed):
                    found[number].setdefault(what, []).append(took)
    lines = ["| call | server, µs |", "| --- | ---: |"]
    if len(trees) > 1:
        lines = [f"{line} {more} |" for line, more in zip(lines, ("ratio", "---:"), strict=True)]
    for what in sorted(found[0], key=lambda what: what.split(",")[0]):
        line = f"| {what} | {quantile(found[0][what], 0.5):.1f} |"
        if len(trees) > 1:
            theirs = found[1].get(what)  # none, if it has no such script
            line += f" {ratios(found[0][what], theirs).median:.2f} |" if theirs else " |"
        lines.append(line)
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", nargs="?", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    compared = [ROOT, *([options.tree.resolve()] if options.tree else [])]
    print(*measure(compared, QUICK if options.quick else Size()), sep="\n")
