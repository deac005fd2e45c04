"""Versions of aiolock beside each other, in one store.

A protocol is the format of all that clients write in a store, for each other too. It has a number,
which is raised by a change that older clients would misread. Each protocol works beside the one
before it; clients that are further apart refuse each other.
"""

from __future__ import annotations


def works_beside(ours: int, theirs: int) -> bool:
    """Whether clients of these two protocols may use the same locks at the same time."""
    return abs(ours - theirs) <= 1


def both(ours: int, theirs: int) -> tuple[int, ...]:
    """Our protocol, then that of others, if it is another."""
    return (ours,) if theirs == ours else (ours, theirs)


def spoken(ours: int) -> str:
    """The protocol of this version, for the text of an error."""
    return f"this version of aiolock speaks protocol {ours}, which works beside its neighbours only"
