"""The names that are held or waited for, page by page."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final, Generic, TypeVar

State = TypeVar("State")

_PAGE: Final = 200
"""Names on one page."""
_LISTINGS: Final = 32
"""Listings that may be under way at a time, before one has to begin again."""


class Listing(Generic[State]):
    """Pages of the names whose state ``is_used``.

    The names are listed once, for the first page. If that list is forgotten, because so many were
    asked for since, all names are listed again.
    """

    def __init__(self, states: Mapping[str, State], is_used: Callable[[State], bool]) -> None:
        self._states = states
        self._is_used = is_used
        self._listings = OrderedDict[str, list[str]]()
        """The names of the listings under way, by their numbers."""
        self._numbers = count(1)

    def page(self, start: str) -> tuple[list[str], str]:
        """The names of a page, and the start of the next one."""
        listing, _, first = start.partition(".")
        names, at = self._listings.pop(listing, None), int(first or 0)
        if names is None:
            names, at = list(self._states), 0
        found = [(name, self._states.get(name)) for name in names[at : at + _PAGE]]
        used = [name for name, state in found if state is not None and self._is_used(state)]
        if at + _PAGE >= len(names):
            return used, ""
        listing = listing or str(next(self._numbers))
        self._listings[listing] = names
        if len(self._listings) > _LISTINGS:
            self._listings.popitem(last=False)
        return used, f"{listing}.{at + _PAGE}"
