"""A grant as the client sees it, and for how long its lease is certainly still ours."""

from __future__ import annotations

Grant = tuple[int, int, float]
"""Fence, lease in ms, and the local time until which that has certainly not ended."""


def lasts(lease: int) -> float:
    """For how many seconds a lease of so many ms is certainly ours, from before it was asked for.

    A hundredth is left for clocks that do not run alike, as in Redlock, and 2 ms for rounding.
    """
    return lease * 0.00099 - 0.002
