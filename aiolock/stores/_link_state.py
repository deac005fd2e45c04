"""The state of a store's connections: together they are one link, which is up while all are."""

from __future__ import annotations

from collections.abc import Callable

from aiolock.errors import StoreError
from aiolock.protocol import Deliver, LinkChanged


class LinkState:
    """The connections of one client, as reported to its observers."""

    def __init__(
        self, deliver: Deliver, is_misconfigured: Callable[[BaseException], bool] | None = None
    ) -> None:
        """``is_misconfigured`` tells whether the link stays down until the configuration is
        changed: see `StoreError.misconfigured`. Not needed if each reason is a `StoreError`
        already.
        """
        self._deliver = deliver
        self._is_misconfigured = is_misconfigured
        self._down = set[str]()
        self.reason: StoreError | None = None
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
        if isinstance(reason, StoreError):
            self.reason = reason
        else:
            self.reason = StoreError(str(reason) or type(reason).__name__)
            self.reason.__cause__ = reason
            if self._is_misconfigured is not None:
                self.reason.misconfigured = self._is_misconfigured(reason)
        self._deliver(LinkChanged(self.reason))

    def up(self, which: str) -> None:
        """This connection is there, and usable."""
        self._down.discard(which)
        if self.observed and not self._down:
            self.reason = None
            self._deliver(LinkChanged(None))
