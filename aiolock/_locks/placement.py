"""Which member of a group a shard is for: bounded rendezvous, without I/O.

Each pair of a member and a shard has a score, a hash of both. The pair with the highest score comes
first: the shard is for that member, unless the member has its part already, which is the number of
shards divided by that of the members, rounded up. So whoever knows the same members comes to the
same result, nobody has more than its part, and a member that joins or leaves moves few shards.

That order of pairs would have to be sorted, of which there are many. The same result comes from
offers: each shard offers itself to its members, the highest score first, and a member with too many
keeps those with the highest scores (Gale and Shapley; with one score for both sides, the only
stable result is that of the order of pairs).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from hashlib import blake2b
from heapq import heappush, heappushpop
from typing import Final

_SCORES: Final = 8
"""Scores that are one unit of work: see `Turns`."""


def shard_of(key: str, count: int) -> int:
    """The number of the shard that a key belongs to, the same in all processes."""
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % count


def score(shards: str, shard: int, member: str) -> int:
    """How strongly this shard is for this member."""
    text = f"{shards}/{shard} {member}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")


def placed(shards: str, count: int, members: Sequence[str]) -> Generator[int, None, list[str]]:
    """The member of each of ``count`` shards; yields after each part the work done (`in_parts`).

    The order of the members does not matter; each is there once, and there is one at least.
    """
    part = -(-count // len(members))
    kept: dict[str, list[tuple[int, str, int]]] = {member: [] for member in members}
    offers = list[list[tuple[int, str]]]()
    for shard in range(count):
        # By the member's id, too: nothing is left to chance where two scores are equal.
        offers.append(sorted((score(shards, shard, member), member) for member in members))
        yield 1 + len(members) // _SCORES
    for first in range(count):
        shard = first
        while True:
            strength, member = offers[shard].pop()
            keeps = kept[member]
            if len(keeps) < part:
                heappush(keeps, (strength, member, shard))
                break
            _, _, shard = heappushpop(keeps, (strength, member, shard))
        yield 1
    result = [""] * count
    for member, keeps in kept.items():
        for _, _, shard in keeps:
            result[shard] = member
    return result
