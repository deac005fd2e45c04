"""Statuses of a server in memory, read in parts: there may be many holders, waiters and names."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, Final

from aiolock._turns import PART
from aiolock.protocol import Operation, Page, Participant, ReadPage, ReadStatus, Status
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step
from aiolock.stores.memory._listing import Listing

_PARTIES: Final = 100
"""Holders and waiters that are read at one moment, for a status."""


class Reading:
    """What reads the states; each generator yields, before a part, how many units of work it is."""

    def __init__(
        self, states: Mapping[str, NameState], step: Callable[[str, NameState], Step]
    ) -> None:
        self._states = states
        self._step = step
        self._listing = Listing(states, lambda state: bool(state.holders or state.queue))

    def of(self, operation: Operation[Any]) -> Generator[int, None, Any] | None:
        """The answer to the operation, part by part; None if it is not read in parts."""
        if isinstance(operation, ReadPage):
            return self.page(operation.start)
        if isinstance(operation, ReadStatus) and operation.waiters:
            return self._status(operation.name) if self._is_large(operation.name) else None
        return None

    def page(self, start: str) -> Generator[int, None, Page]:
        """See `ReadPage`."""
        statuses = list[Status]()
        names, more = self._listing.page(start)
        for name in names:
            yield 2
            if self._is_large(name):
                statuses.append((yield from self._status(name)))
            else:
                statuses.append(self._now(name).status(ReadStatus(name)))
        return Page(statuses, more)

    def _status(self, name: str) -> Generator[int, None, Status]:
        # The holders come last: so a waiter that is granted the lock meanwhile is not missed.
        state = self._states.get(name) or NameState()
        waiters, holders = list[Participant](), list[Participant]()
        queue = list(state.queue)
        for start in range(0, len(queue), _PARTIES):
            yield _PARTIES
            some = queue[start : start + _PARTIES]
            waiters += self._step(name, state).view.waiters(some, len(waiters) + 1)
        grants = list(state.holders)
        for start in range(0, len(grants), _PARTIES):
            yield _PARTIES
            holders += self._step(name, state).view.holders(grants[start : start + _PARTIES])
        yield PART
        return self._step(name, state).view.status_of(holders, waiters)

    def _is_large(self, name: str) -> bool:
        """Whether it has so many holders and waiters that its status is to be read in parts."""
        state = self._states.get(name)
        return state is not None and len(state.queue) + len(state.holders) > _PARTIES

    def _now(self, name: str) -> Step:
        return self._step(name, self._states.get(name) or NameState())
