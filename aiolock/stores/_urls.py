"""The options of a URL, whatever store it is of."""

from __future__ import annotations

from collections.abc import Iterable


def each_once(given: Iterable[tuple[str, str]]) -> None:
    """See that no option is given twice: nobody can tell which of the two is meant.

    `ValueError`, which does not show the values: one of them may be a password.
    """
    seen = set[str]()
    for name, _ in given:
        if name in seen:
            raise ValueError(f"the option {name!r} is in this URL twice: leave one of them away")
        seen.add(name)
