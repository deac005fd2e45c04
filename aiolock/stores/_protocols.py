"""Versions of aiolock beside each other, in one store.

What clients write in a store, and say to each other through it, is its protocol, which has a
number. A change that somebody who does not know it would read wrongly makes it the next number.
Each protocol works beside the one before it; so whoever is further apart is refused.
"""

from __future__ import annotations


def works_beside(ours: int, theirs: int) -> bool:
    """Whether clients of these two protocols may use the same locks at the same time."""
    return abs(ours - theirs) <= 1


def both(ours: int, theirs: int) -> tuple[int, ...]:
    """Ours, and behind it that of others, if it is another."""
    return (ours,) if theirs == ours else (ours, theirs)


def spoken(ours: int) -> str:
    """What we speak, for the text of an error."""
    return f"this version of aiolock speaks protocol {ours}, which works beside its neighbours only"
