"""Races of clients that swap one document: one of them wins, and the others try again."""

from __future__ import annotations

import random
from typing import Final

LOST: Final = "others were faster, each time"
"""Why an operation has failed that lost all of its races."""

_CROWDED: Final = 0.001, 0.03
"""Seconds for which a client waits after lost races: at first, and at most, where a try takes a few
milliseconds."""


class Races:
    """The races of one operation, which may try until that time."""

    def __init__(self, until: float) -> None:
        self._until = until
        self._lost = 0

    def pause(self, now: float, took: float) -> float:
        """The seconds to wait after a lost race, in which a try ``took`` so long.

        A lost race brings the document as it is now, or the next try reads it, so that follows at
        once. If that is lost, too, there are several others: each waits for a time of its own, or
        most tries of all of them would be in vain. What is known then may be old: if the next try
        only reads it anew, again another one follows at once.

        It depends on how long a try takes: where that is long, since the machine is busy, tries in
        vain are what keeps it busy. Much less than all of the time that is left, at most.
        """
        self._lost += 1
        if self._lost % 2:
            return 0.0
        first, most = max(_CROWDED[0], took / 4), max(_CROWDED[1], took * 8)
        most = min(most, max(self._until - now, 0) / 4)
        return random.uniform(0, min(first * 2**self._lost, most))  # noqa: S311  # jitter
