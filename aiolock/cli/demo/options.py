"""The options of the demo on the command line."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field

import aiolock

_WORKERS = 4


@dataclass(frozen=True, slots=True)
class Options:
    """The options; valid once they exist."""

    url: str = field(repr=False)
    items: int
    requests: int
    """How many are made at once."""
    workers: int
    ttl: float
    kill: bool

    @property
    def in_memory(self) -> bool:
        """Whether all of it happens in this process."""
        return self.url.startswith("memory://")

    @property
    def on_redis(self) -> bool:
        """Whether there is a Redis server, on which redis-py's `Lock` works too."""
        return self.url.startswith(("redis://", "rediss://", "unix://"))

    @property
    def server(self) -> str:
        """The URL as it may be shown: without user and password."""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"

    @property
    def title(self) -> str:
        """The title, in one line."""
        where = "in this process" if self.in_memory else f"worker processes: {self.workers}"
        return f"An online sale on {self.server}, {where}, requests at once: {self.requests:,}"

    def __post_init__(self) -> None:
        aiolock.connect(self.url, ttl=self.ttl)  # no I/O, only errors
        if not (self.in_memory or self.on_redis or in_a_file(self.url)):
            raise ValueError("the demo runs on Redis, on an SQLite file, or on memory:// only")
        if self.in_memory and self.workers > 1:
            raise ValueError(
                f"memory:// is one process: for {self.workers} workers name a server,"
                " --url redis://..."
            )
        if self.requests < self.workers:
            raise ValueError(f"{self.workers} workers need at least as many --requests at once")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add them to the command's parser."""
    parser.add_argument(
        "--url",
        help="the store: sqlite:////..., redis://, rediss://, unix://, or memory:// in one process"
        " (default: an SQLite file, which is removed afterwards)",
    )
    parser.add_argument(
        "--items", type=_count, default=2000, metavar="N", help="for sale (default: %(default)s)"
    )
    parser.add_argument(
        "--requests", type=_count, default=200, metavar="N", help="at once (default: %(default)s)"
    )
    parser.add_argument(
        "--workers",
        type=_count,
        metavar="N",
        help=f"processes (default: {_WORKERS}; memory:// is always one)",
    )
    parser.add_argument(
        "--ttl",
        type=float,
        default=1.5,
        metavar="S",
        help="seconds for which a holder that was killed blocks the others (default: %(default)s)",
    )
    parser.add_argument("--no-kill", dest="kill", action="store_false", help="kill no worker")
    parser.add_argument("--json", action="store_true", help="print the figures, as JSON, only")


def options(arguments: argparse.Namespace) -> Options:
    """The options given; `ValueError`, with the reason, for invalid ones."""
    in_memory = arguments.url.startswith("memory://")
    return Options(
        url=arguments.url,
        items=arguments.items,
        requests=arguments.requests,
        workers=arguments.workers or (1 if in_memory else _WORKERS),
        ttl=arguments.ttl,
        kill=arguments.kill and not in_memory,
    )


def in_a_file(url: str) -> bool:
    """Whether the locks are in an SQLite file."""
    return url.startswith("sqlite://")


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, not {text!r}")
    return int(text)
