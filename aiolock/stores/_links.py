"""What a store with several connections says of them: they are one link, up while all are."""

from __future__ import annotations

from aiolock.store import Inbox


class Links:
    """The connections of one client, of which its observers are told."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._down = set[str]()
        self.observed = False
        """Whether it is open: what goes wrong before is told by `Store.open`."""

    def down(self, which: str, reason: BaseException) -> None:
        """This one broke."""
        if self.observed and not self._down:
            self._inbox.link(reason if isinstance(reason, Exception) else OSError(str(reason)))
        self._down.add(which)

    def up(self, which: str) -> None:
        """This one is there, and usable."""
        self._down.discard(which)
        if self.observed and not self._down:
            self._inbox.link(None)
