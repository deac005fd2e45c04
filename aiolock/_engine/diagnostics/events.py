"""Calls the methods of a client's observers.

Most clients have no observer of the frequent events (see `Events.often`): then the engine only
checks that flag, and no `LockRequest` is made.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from aiolock._engine.acquisition import Acquisition
from aiolock._engine.lease_state import LossReason
from aiolock._engine.policy import Policy
from aiolock.kinds import NEWS
from aiolock.observer import Deadlock, GaveUp, Link, LockRequest, LostBody, Observer
from aiolock.protocol import Participant, WaiterId
from aiolock.validation import as_label

log = logging.getLogger("aiolock")

_FREQUENT: Final = ("waiting", "acquired", "gave_up", "released")
"""The events of every acquisition. All other events are rare."""


class Events:
    """The observers of one client, and the methods that each of them has overridden."""

    def __init__(self, observers: Sequence[Observer], label: str) -> None:
        """``label`` is the client's own: it is put before the labels of all its acquisitions."""
        self._label = label
        self.observers = observers
        self._wants = {what: _overrides(what, observers) for what in (*_FREQUENT, "lost", "link")}
        self._deadlock = _overrides("deadlock", observers)
        self.often = any(self._wants[what] for what in _FREQUENT)
        """Whether an observer wants events of every acquisition; if not, none are made."""
        self._failed = set[Any]()
        self._link: Link = "up"

    def label(self, given: str, task: asyncio.Task[Any] | None) -> str:
        """The full label of an acquisition."""
        # The name of a task may be any text: some frameworks put the task's arguments there.
        own = given or (as_label(task.get_name()) if task is not None else "")
        return f"{self._label}: {own}" if self._label and own else self._label or own

    def request(
        self, policy: Policy, waiter: WaiterId, label: str, task: asyncio.Task[Any] | None
    ) -> LockRequest:
        """A description of an acquisition, for observers."""
        return LockRequest(
            kind=policy.kind,
            name=policy.name,
            family=policy.of_family,
            client=waiter.client,
            seq=waiter.seq,
            label=self.label(label, task),
            shared=policy.shared,
            share=policy.form.share,
        )

    def of_acquisition(self, acquisition: Acquisition) -> LockRequest:
        """The description of this acquisition."""
        if acquisition.request is None:
            acquisition.request = self.request(
                acquisition.policy, acquisition.waiter, acquisition.label, acquisition.owner
            )
        return acquisition.request

    # Events of acquisitions, holds and the link

    def waiting(self, acquisition: Acquisition) -> None:
        """The acquisition was queued."""
        if acquisition.policy.kind not in NEWS:
            self._notify(self._wants["waiting"], self.of_acquisition(acquisition))

    def acquired(self, acquisition: Acquisition) -> None:
        """The acquisition was granted."""
        if acquisition.policy.kind not in NEWS:
            self._notify(
                self._wants["acquired"],
                self.of_acquisition(acquisition),
                fence=acquisition.fence,
                waited=acquisition.since - acquisition.began,
                handed_on_by=acquisition.handed_off_by,
            )

    def gave_up(self, acquisition: Acquisition, why: GaveUp, now: float) -> None:
        """The acquisition ended without a grant."""
        if acquisition.policy.kind not in NEWS:
            request = self.of_acquisition(acquisition)
            self._notify(self._wants["gave_up"], request, waited=now - acquisition.began, why=why)

    def released(self, hold: Acquisition, now: float) -> None:
        """What was held is released."""
        if hold.policy.kind not in NEWS:
            wants = self._wants["released"]
            self._notify(wants, self.of_acquisition(hold), fence=hold.fence, held=now - hold.since)

    def lost(self, hold: Acquisition, now: float) -> None:
        """The hold is lost, for the reason in `Acquisition.reason`."""
        if hold.policy.passes:  # a waiter that passes does not need its grant
            if hold.released is None:
                self.released(hold, now)
            return
        wants = self._wants["lost"]
        if not wants:
            return
        reason, word = hold.reason, "other"  # one of `Loss`
        why = f"the store said {reason!r}"
        if isinstance(reason, LossReason):
            word, why = reason.name.lower(), reason.value
        request = self.of_acquisition(hold)
        held = now - hold.since
        body: LostBody = "none"
        if hold.inside and hold.policy.on_lost != "cancel":
            body = "goes on"
        elif hold.inside:  # the attribute is that of tasks of `aiolock.sync`
            of_thread = getattr(hold.inside[0].task, "of_thread", False)
            body = "in a thread" if of_thread else "cancelled"
        self._notify(wants, request, fence=hold.fence, held=held, reason=word, why=why, body=body)

    def link(self, state: Link, error: Exception | None = None) -> None:
        """The state of the link to the store; the same state is not reported twice."""
        if state != self._link and (state, self._link) != ("closed", "up"):
            self._link = state
            self._notify(self._wants["link"], state, error)

    # Long waits, long holds and deadlocks: see `SlowMonitor`

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
        self._notify((to.waits_long,), request, waited=waited, holders=holders, others=others)

    def holds_long(self, to: Observer, hold: Acquisition, now: float) -> None:
        """A lock has been held for longer than this observer's limit."""
        request = self.of_acquisition(hold)
        self._notify((to.holds_long,), request, fence=hold.fence, held=now - hold.since)

    @property
    def wants_deadlocks(self) -> bool:
        """Whether an observer wants deadlocks; if not, none are searched for."""
        return bool(self._deadlock)

    def deadlock(self, deadlock: Deadlock) -> None:
        """Tasks wait for each other."""
        self._notify(self._deadlock, deadlock)

    def _notify(self, calls: Iterable[Callable[..., object]], *what: Any, **facts: Any) -> None:
        """Call these methods. An exception of one of them is logged, once per method.

        It must not reach the engine: the event has happened, and the lock is held or released.
        """
        for call in calls:
            try:
                call(*what, **facts)
            except (Exception, asyncio.CancelledError):
                if call not in self._failed:
                    self._failed.add(call)
                    log.exception(
                        "aiolock: an observer raised in %s; that is not logged again",
                        getattr(call, "__qualname__", call),
                    )


def _overrides(what: str, observers: Sequence[Observer]) -> tuple[Callable[..., object], ...]:
    """The methods of those observers that override this one."""
    plain = getattr(Observer, what)
    return tuple([getattr(o, what) for o in observers if getattr(type(o), what) is not plain])
