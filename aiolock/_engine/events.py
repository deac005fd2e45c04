"""What the observers of a client are told; where there is none, that costs one look."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from aiolock._engine.acquisition import Attempt
from aiolock._engine.hold import Hold, LossReason
from aiolock._engine.policy import Policy, as_label
from aiolock.observer import Deadlock, GaveUp, Link, LockRequest, LostBody, Observer
from aiolock.store import Party, Waiter

log = logging.getLogger("aiolock")

_UNSEEN: Final = "elected"
"""What `Election.observe` waits for: whoever watches asks for nothing, and waits for ever."""
_OFTEN: Final = ("waiting", "acquired", "gave_up", "released")
"""What is told of each acquisition. The rest is rare."""


class Events:
    """The observers of one client, and what each of them wants to know."""

    def __init__(self, observers: Sequence[Observer], label: str) -> None:
        """``label`` is what stands before the labels of all that the client asks for."""
        self._label = label
        self.observers = observers
        self._wants = {what: _that_have(what, observers) for what in (*_OFTEN, "lost", "link")}
        self._deadlock = _that_have("deadlock", observers)
        self.often = any(self._wants[what] for what in _OFTEN)
        """Whether anybody wants to be told of each acquisition: else nothing is kept for that."""
        self._failed = set[Any]()
        self._link: Link = "up"

    def label(self, given: str, task: asyncio.Task[Any] | None) -> str:
        """What an acquisition is called."""
        # A task may have any name: its arguments, in some frameworks.
        own = given or (as_label(task.get_name()) if task is not None else "")
        return f"{self._label}: {own}" if self._label and own else self._label or own

    def request(
        self, policy: Policy, waiter: Waiter, label: str, task: asyncio.Task[Any] | None
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
        """The acquisition that this grant ended."""
        if hold.request is None:
            hold.request = self.request(hold.policy, hold.waiter, hold.label, hold.owner[0])
        return hold.request

    def of_attempt(self, attempt: Attempt) -> LockRequest:
        """This acquisition."""
        if attempt.request is None:
            attempt.request = self.request(
                attempt.policy, attempt.waiter, attempt.label, attempt.owner
            )
        return attempt.request

    # What happens

    def waiting(self, attempt: Attempt) -> None:
        """It stands in the queue."""
        if attempt.policy.kind != _UNSEEN:
            self._tell(self._wants["waiting"], self.of_attempt(attempt))

    def acquired(self, hold: Hold, attempt: Attempt, now: float) -> None:
        """It is ours."""
        if attempt.policy.kind != _UNSEEN:
            hold.request = self.of_attempt(attempt)
            self._tell(
                self._wants["acquired"],
                hold.request,
                fence=hold.fence,
                waited=now - attempt.began,
                handed_on_by=attempt.handed_on_by,
            )

    def gave_up(self, attempt: Attempt, why: GaveUp, now: float) -> None:
        """It is not ours, and nobody waits any more."""
        if attempt.policy.kind != _UNSEEN:
            request = self.of_attempt(attempt)
            self._tell(self._wants["gave_up"], request, waited=now - attempt.began, why=why)

    def released(self, hold: Hold, now: float) -> None:
        """It is given back."""
        if hold.policy.kind != _UNSEEN:
            wants = self._wants["released"]
            self._tell(wants, self.of_hold(hold), fence=hold.fence, held=now - hold.since)

    def lost(self, hold: Hold, now: float) -> None:
        """It is lost, for the reason that the hold knows."""
        wants = self._wants["lost"]
        if not wants or hold.policy.passes:  # who passes does not need it
            return
        reason, word = hold.reason, "other"  # one of `Loss`
        why = f"the store said {reason!r}"
        if isinstance(reason, LossReason):
            word, why = reason.name.lower(), reason.value
        request = self.of_hold(hold)
        held = now - hold.since
        body: LostBody = "none"
        if hold.bodies:
            body = "cancelled" if hold.policy.on_lost == "cancel" else "goes on"
        self._tell(wants, request, fence=hold.fence, held=held, reason=word, why=why, body=body)

    def link(self, state: Link, error: Exception | None = None) -> None:
        """The link to the store; what is known already is not told again."""
        if state != self._link and (state, self._link) != ("closed", "up"):
            self._link = state
            self._tell(self._wants["link"], state, error)

    # What lasts: see `Lookout`

    def waits_long(
        self, to: Observer, attempt: Attempt, now: float, holders: tuple[Party, ...], others: int
    ) -> None:
        """It waits for longer than this observer likes."""
        waited = now - attempt.began
        request = self.of_attempt(attempt)
        self._tell((to.waits_long,), request, waited=waited, holders=holders, others=others)

    def holds_long(self, to: Observer, hold: Hold, now: float) -> None:
        """It holds for longer than this observer likes."""
        request = self.of_hold(hold)
        self._tell((to.holds_long,), request, fence=hold.fence, held=now - hold.since)

    @property
    def wants_deadlocks(self) -> bool:
        """Whether anybody is to be told of one, so that it is worth looking for."""
        return bool(self._deadlock)

    def deadlock(self, deadlock: Deadlock) -> None:
        """Tasks wait for each other."""
        self._tell(self._deadlock, deadlock)

    def _tell(self, calls: Iterable[Callable[..., object]], *what: Any, **facts: Any) -> None:
        """Tell them. What one raises is its own fault: it is logged, once for each method."""
        for call in calls:
            try:
                call(*what, **facts)
            except Exception:  # what is told is done, whatever they make of it
                if call not in self._failed:
                    self._failed.add(call)
                    log.exception(
                        "aiolock: an observer raised in %s; that is not logged again",
                        getattr(call, "__qualname__", call),
                    )


def _that_have(what: str, observers: Sequence[Observer]) -> tuple[Callable[..., object], ...]:
    """The methods of those observers that have one of their own."""
    plain = getattr(Observer, what)
    return tuple([getattr(o, what) for o in observers if getattr(type(o), what) is not plain])
