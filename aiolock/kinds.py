"""The kinds of primitives, and what there is to know of each. Each has names of its own."""

from __future__ import annotations

from typing import Final, NamedTuple


class Kind(NamedTuple):
    """The facts about one kind."""

    blocks: bool = False
    """Whether its waiters wait until a holder releases: so they can be in a deadlock."""
    passes: bool = False
    """Whether it is waited for, but not held: a waiter that gets it goes on without it."""
    not_yet: str = "is not free"
    """The text of an error, after one try."""
    not_in_time: str = "did not become free"
    """The same after a timeout."""


KINDS: Final = {
    "lock": Kind(blocks=True),
    "semaphore": Kind(blocks=True),
    "election": Kind(blocks=True),
    "once": Kind(blocks=True),
    "group": Kind(),
    "shards": Kind(),
    "path": Kind(blocks=True),
    "periodic": Kind(),
    "latch": Kind(passes=True, not_yet="is not open", not_in_time="did not open"),
    "event": Kind(passes=True, not_yet="is not set", not_in_time="was not set"),
    "rate_limit": Kind(passes=True, not_yet="has too few tokens", not_in_time="had too few tokens"),
    "barrier": Kind(passes=True, not_yet="is not complete", not_in_time="was not complete"),
}
"""By their names, which are those of the methods of `LockClient`; ``path`` is that of `path_lock`.
A `RWLock` is a ``lock``, and each of the shards of `LockClient.shards` is of the kind ``shards``.
"""

NEWS: Final = frozenset({"elected", "epoch"})
"""The kinds for which a client waits to learn of changes: of a leader, of the members of a group.
Nothing is locked, and the wait may last for ever, so it is no wait that people are shown."""

OTHER: Final = Kind()
"""What is assumed of any other kind: one of a later version, or one that the client uses itself."""
