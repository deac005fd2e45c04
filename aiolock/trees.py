"""The part of the protocol that only nodes of a tree need: see `LockClient.path_lock`.

On each node above the one that it wants, a lease shares the name with all others that go through
it: as a reader, or as a writer below. Readers of all of a node exclude the writers below it; so
both have the rule ``Rule.ALIKE``, and different numbers. A reader below has the rule
``Rule.ALWAYS``, and a writer of the node itself shares nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiolock.protocol import Operation

ONE: Final = 1
"""The number of a writer below a node, with `Rule.ALIKE`."""
MANY: Final = 1_000_000
"""That of a reader of all of a node. There are never so many writers, so the sum of the numbers of
all holders says which of the two they are."""


@dataclass(frozen=True, slots=True)
class MakeFence(Operation[int]):
    """Make a fence, higher than any before of this name, without a grant: it is the answer."""

    name: str


def are_alike(number: int, held: int) -> bool:
    """Whether one with this number may enter beside holders with this sum: of 1s, or of `MANY`s."""
    return held < MANY - 1 if number == ONE else held % MANY == 0
