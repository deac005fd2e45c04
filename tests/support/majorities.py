"""Several real servers that vote, to be killed, stopped, emptied and started again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final, Self

from aiolock._target import quorum_of
from aiolock.stores.quorum import QuorumStore
from tests.support.servers import RedisServer

LONGEST: Final = 600.0
"""Seconds: no lease is longer, so for so long does a server not vote that may have forgotten."""


def store_of(
    urls: Sequence[object], prefix: str, longest_ttl: float = LONGEST, *, durable: bool = False
) -> QuorumStore:
    """A store of these servers."""
    store = quorum_of(urls, prefix, longest_ttl, durable=durable)
    assert isinstance(store, QuorumStore)
    return store


def vouch(
    servers: Sequence[RedisServer],
    urls: Sequence[object],
    prefix: str,
    longest_ttl: float = LONGEST,
    *,
    durable: bool = False,
) -> None:
    """Say to these servers, each at its URL, that they have voted for long, and forgotten nothing.

    They were started a moment ago, and would not vote before the longest lease had ended.
    """
    config = str(store_of(urls, prefix, longest_ttl, durable=durable).config)
    for server in servers:
        run: Any = server.call("INFO", "server")
        server.call("SET", f"{prefix}:quorum", f"{run['run_id']} 0 {config}")


class Majority:
    """So many of them, that know nothing of each other; used with ``with``."""

    def __init__(self, number: int = 3) -> None:
        self._number = number

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.servers = [stack.enter_context(RedisServer()) for _ in range(self._number)]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def urls(self) -> list[str]:
        """That of each."""
        return [server.url for server in self.servers]

    def vouch(self, prefix: str, longest_ttl: float = LONGEST) -> None:
        """See `vouch`."""
        vouch(self.servers, self.urls, prefix, longest_ttl)

    def left_behind(self, prefix: str) -> list[str]:
        """The keys of votes and lines of all names, but for labels, which are kept for minutes.

        Who waits for two seconds is labelled, which on a busy machine may be anybody.
        """
        found = list[str]()
        for server in self.servers:
            for kind in ("votes", "line"):
                found += server.call("KEYS", f"{prefix}:*:{kind}")
        return [key for key in found if not key.startswith(f"{prefix}:{{client:")]
