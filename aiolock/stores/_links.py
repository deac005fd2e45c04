"""The state of a store's connections: together they are one link, which is up while all are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiolock.store import Inbox

MISCONFIGURED: Final = "misconfigured"


class Links:
    """The connections of one client, as reported to its observers."""

    def __init__(
        self, inbox: Inbox, is_misconfigured: Callable[[BaseException], bool] | None = None
    ) -> None:
        """``is_misconfigured`` tells whether the link stays down until somebody changes something.

        The reason then says so, by an attribute of that name: see `StoreError.misconfigured`.
        """
        self._inbox = inbox
        self._is_misconfigured = is_misconfigured
        self._down = set[str]()
        self.reason: BaseException | None = None
        """The latest reason why the link is down, while it is."""
        self.observed = False
        """Whether the store is open: until then, `Store.open` reports what goes wrong."""

    def down(self, which: str, reason: BaseException) -> None:
        """This connection broke."""
        if self.observed and (not self._down or which in self._down):
            self._tell(reason)
        self._down.add(which)

    def failing(self, which: str, reason: BaseException) -> None:
        """This connection could not be made again: that is why the link is down now."""
        if self.observed and which in self._down:
            self._tell(reason)

    def _tell(self, reason: BaseException) -> None:
        self.reason = reason
        if self._is_misconfigured is not None and self._is_misconfigured(reason):
            setattr(reason, MISCONFIGURED, True)
        self._inbox.link(reason if isinstance(reason, Exception) else OSError(str(reason)))

    def up(self, which: str) -> None:
        """This connection is there, and usable."""
        self._down.discard(which)
        if self.observed and not self._down:
            self.reason = None
            self._inbox.link(None)
