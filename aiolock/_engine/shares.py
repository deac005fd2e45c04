"""The rules of a share and its weight; asked only where a lock is given one of them."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 64
"""Characters of a share."""
_MOST_WEIGHT: Final = 100
"""The most weight; the least is one by it."""


def checked_share(share: object, weight: object) -> int:
    """The weight of a share in thousandths: see `LockClient.lock`; that of none, for None, is 1."""
    if not isinstance(share, str | None):
        raise TypeError(f"share must be a str or None, not {share!r}")
    if share is not None and not (share.isprintable() and 1 <= len(share) <= _LONGEST):
        rule = f"1 to {_LONGEST} printable characters"
        raise ValueError(f"share must have {rule}, or be None, not {share!r}")
    if isinstance(weight, bool) or not isinstance(weight, int | float):
        raise TypeError(f"weight must be a number, not {weight!r}")
    if not 1 / _MOST_WEIGHT <= weight <= _MOST_WEIGHT:  # nan fails every comparison
        rule = f"from {1 / _MOST_WEIGHT} to {_MOST_WEIGHT}"
        raise ValueError(f"weight must be {rule}, not {weight!r}")
    if share is None and weight != 1:
        raise ValueError(f"weight={weight!r} is that of a share: give share=, too")
    return round(weight * 1000)
