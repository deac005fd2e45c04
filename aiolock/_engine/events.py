"""The events for a client's observers; without observers, an event costs one check."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from aiolock._engine.acquisition import Acquisition
from aiolock._engine.hold import Hold, LossReason
from aiolock._engine.policy import Policy
from aiolock.observer import Deadlock, GaveUp, Link, LockRequest, LostBody, Observer
from aiolock.store import Participant, WaiterId
from aiolock.validation import as_label

log = logging.getLogger("aiolock")

_UNSEEN: Final = "elected"
"""The kind that `Election.observe` waits for: it asks for no lock, and may wait for ever."""
_OFTEN: Final = ("waiting", "acquired", "gave_up", "released")
"""The events of each acquisition. All other events are rare."""


class Events:
    """The observers of one client, and the methods that each of them has overridden."""

    def __init__(self, observers: Sequence[Observer], label: str) -> None:
        """``label`` is put before the labels of all acquisitions of the client."""
        self._label = label
        self.observers = observers
        self._wants = {what: _that_have(what, observers) for what in (*_OFTEN, "lost", "link")}
        self._deadlock = _that_have("deadlock", observers)
        self.often = any(self._wants[what] for what in _OFTEN)
        """Whether an observer wants to be told of each acquisition; if not, nothing is kept."""
        self._failed = set[Any]()
        self._link: Link = "up"

    def label(self, given: str, task: asyncio.Task[Any] | None) -> str:
        """The full label of an acquisition."""
        # The name of a task may be anything: some frameworks put its arguments there.
        own = given or (as_label(task.get_name()) if task is not None else "")
        return f"{self._label}: {own}" if self._label and own else self._label or own

    def request(
        self, policy: Policy, waiter: WaiterId, label: str, task: asyncio.Task[Any] | None
    ) -> LockRequest:
        """An acquisition, as observers know it."""
        return LockRequest(
            kind=policy.kind,
            name=policy.name,
            family=policy.of_family,
            client=waiter.client,
            seq=waiter.seq,
            label=self.label(label, task),
            shared=policy.shared,
        )

    def of_hold(self, hold: Hold) -> LockRequest:
        """The acquisition that led to this hold."""
        if hold.request is None:
            hold.request = self.request(hold.policy, hold.waiter, hold.label, hold.owner[0])
        return hold.request

    def of_acquisition(self, acquisition: Acquisition) -> LockRequest:
        """This acquisition, as observers know it."""
        if acquisition.request is None:
            acquisition.request = self.request(
                acquisition.policy, acquisition.waiter, acquisition.label, acquisition.owner
            )
        return acquisition.request

    # What happens

    def waiting(self, acquisition: Acquisition) -> None:
        """The acquisition was queued."""
        if acquisition.policy.kind != _UNSEEN:
            self._tell(self._wants["waiting"], self.of_acquisition(acquisition))

    def acquired(self, hold: Hold, acquisition: Acquisition, now: float) -> None:
        """The acquisition was granted."""
        if acquisition.policy.kind != _UNSEEN:
            hold.request = self.of_acquisition(acquisition)
            self._tell(
                self._wants["acquired"],
                hold.request,
                fence=hold.fence,
                waited=now - acquisition.began,
                handed_on_by=acquisition.handed_off_by,
            )

    def gave_up(self, acquisition: Acquisition, why: GaveUp, now: float) -> None:
        """The acquisition ended without a grant."""
        if acquisition.policy.kind != _UNSEEN:
            request = self.of_acquisition(acquisition)
            self._tell(self._wants["gave_up"], request, waited=now - acquisition.began, why=why)

    def released(self, hold: Hold, now: float) -> None:
        """The hold is released."""
        if hold.policy.kind != _UNSEEN:
            wants = self._wants["released"]
            self._tell(wants, self.of_hold(hold), fence=hold.fence, held=now - hold.since)

    def lost(self, hold: Hold, now: float) -> None:
        """The hold is lost, for the reason that is noted on it."""
        wants = self._wants["lost"]
        if not wants or hold.policy.passes:  # who passes goes on without the lock
            return
        reason, word = hold.reason, "other"  # one of `Loss`
        why = f"the store said {reason!r}"
        if isinstance(reason, LossReason):
            word, why = reason.name.lower(), reason.value
        request = self.of_hold(hold)
        held = now - hold.since
        body: LostBody = "none"
        if hold.inside:
            body = "cancelled" if hold.policy.on_lost == "cancel" else "goes on"
        self._tell(wants, request, fence=hold.fence, held=held, reason=word, why=why, body=body)

    def link(self, state: Link, error: Exception | None = None) -> None:
        """The state of the link to the store; the same state is not told twice."""
        if state != self._link and (state, self._link) != ("closed", "up"):
            self._link = state
            self._tell(self._wants["link"], state, error)

    # What lasts too long: see `SlowMonitor`

    def waits_long(
        self,
        to: Observer,
        acquisition: Acquisition,
        now: float,
        holders: tuple[Participant, ...],
        others: int,
    ) -> None:
        """An acquisition has waited for longer than this observer's limit."""
        waited = now - acquisition.began
        request = self.of_acquisition(acquisition)
        self._tell((to.waits_long,), request, waited=waited, holders=holders, others=others)

    def holds_long(self, to: Observer, hold: Hold, now: float) -> None:
        """A lock has been held for longer than this observer's limit."""
        request = self.of_hold(hold)
        self._tell((to.holds_long,), request, fence=hold.fence, held=now - hold.since)

    @property
    def wants_deadlocks(self) -> bool:
        """Whether an observer wants to be told of deadlocks; if not, none are searched for."""
        return bool(self._deadlock)

    def deadlock(self, deadlock: Deadlock) -> None:
        """Tasks wait for each other."""
        self._tell(self._deadlock, deadlock)

    def _tell(self, calls: Iterable[Callable[..., object]], *what: Any, **facts: Any) -> None:
        """Call the methods. An exception is the observer's own: it is logged once per method."""
        for call in calls:
            try:
                call(*what, **facts)
            except (Exception, asyncio.CancelledError):  # the event has happened all the same
                if call not in self._failed:
                    self._failed.add(call)
                    log.exception(
                        "aiolock: an observer raised in %s; that is not logged again",
                        getattr(call, "__qualname__", call),
                    )


def _that_have(what: str, observers: Sequence[Observer]) -> tuple[Callable[..., object], ...]:
    """The methods of those observers that override this one."""
    plain = getattr(Observer, what)
    return tuple([getattr(o, what) for o in observers if getattr(type(o), what) is not plain])
