"""An observer that keeps the books: the events of a request have an order, and an end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aiolock import LockRequest, Observer

_LEGAL: Final[dict[str, tuple[str, ...]]] = {
    "": ("waiting", "acquired", "took", "gave_up"),
    "waiting": ("acquired", "took", "gave_up"),
    "took": (),  # tokens, which nobody holds
    "acquired": ("released", "lost"),
    "released": ("lost",),  # only the answer to the release told it
    "lost": (),
    "gave_up": (),
}
OPEN: Final = ("waiting", "acquired")
"""The open requests and leases."""


class Ledger(Observer):
    """Remembers the outcome of each request, and the events against the rules."""

    def __init__(self, trips: Callable[[], bool] = lambda: False) -> None:
        """``trips`` says whether to raise something, after it was written down."""
        self._trips = trips
        self._is = dict[tuple[str, int], str]()
        self._seen = dict[tuple[str, int], LockRequest]()
        self._fences = dict[tuple[str, int], int]()
        self.told = 0
        self.wrong = list[str]()

    def _write(self, request: LockRequest, what: str, fence: int | None = None) -> None:
        key = request.client, request.seq
        was = self._is.get(key, "")
        self.told += 1
        if what not in _LEGAL[was]:
            self.wrong.append(f"{request} is {what} after {was or 'nothing'}")
        if self._seen.setdefault(key, request) != request:
            self.wrong.append(f"{request} was {self._seen[key]}")
        if fence is not None and self._fences.setdefault(key, fence) != fence:
            self.wrong.append(f"{request} has the fence {fence} after {self._fences[key]}")
        self._is[key] = what
        if self._trips():
            raise ZeroDivisionError("an observer, on purpose")

    def waiting(self, request: LockRequest) -> None:
        self._write(request, "waiting")

    def acquired(self, request: LockRequest, *, fence: int, **facts: Any) -> None:
        before = facts["handed_on_by"]
        if before is not None and self._is.get((before.client, before.seq)) not in (
            "released",
            "lost",
        ):
            self.wrong.append(f"{request} has it from {before}, who has it still")
        self._write(request, "took" if request.kind == "rate_limit" else "acquired", fence)

    def gave_up(self, request: LockRequest, **facts: Any) -> None:
        self._write(request, "gave_up")

    def released(self, request: LockRequest, *, fence: int, **facts: Any) -> None:
        self._write(request, "released", fence)

    def lost(self, request: LockRequest, *, fence: int, **facts: Any) -> None:
        self._write(request, "lost", fence)

    @property
    def left(self) -> list[LockRequest]:
        """Those that have not come to an end."""
        return [self._seen[key] for key, state in self._is.items() if state in OPEN]
