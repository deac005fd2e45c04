"""The queue of a name as one step sees it: waiters whose clients are gone do not count."""

from __future__ import annotations

from collections.abc import Callable

from aiolock.protocol import CHECKS_IF_FULL, LOOKERS, Form, WaiterId
from aiolock.stores._dead_waiters import checked, looks_for_dead
from aiolock.stores.quorum._server_state import QuorumServerState


class LiveQueue:
    """The queue of a state, from which waiters of dead clients are removed.

    ``listens`` says whether a client is there; the one that is just asking is, listening or not.
    """

    __slots__ = ("_state", "asker", "listens")

    def __init__(self, state: QuorumServerState, listens: Callable[[str], bool]) -> None:
        self._state = state
        self.listens = listens
        self.asker = ""
        """The client that is answered."""

    def head(self) -> tuple[int, WaiterId] | None:
        """The first live waiter; dead waiters before it are removed."""
        # Dead waiters are skipped in this very step: they cost nothing.
        queue = self._state.queue
        if not queue or self._is_there(queue[0][1].client):
            return queue[0] if queue else None
        dead = 0
        gone = queue[0][1].client  # many are of one client: it is looked up once
        for _, waiter in queue:
            if waiter.client != gone:
                if self._is_there(waiter.client):
                    break
                gone = waiter.client
            dead += 1
        self._state.remove_first(dead)
        return queue[0] if queue else None

    def enqueue(self, place: tuple[int, WaiterId], form: Form) -> bool:
        """Put it in the queue; returns whether dead waiters were removed, see `looks_for_dead`."""
        state, (ticket, waiter) = self._state, place
        is_new = waiter not in state.waiting
        state.enqueue(place, form)
        looks = is_new and looks_for_dead(ticket, state.queue)
        return looks and self._remove_dead(checked(ticket // LOOKERS, len(state.queue)))

    def _remove_dead(self, places: range) -> bool:
        """Remove the waiters of dead clients at these places; whether there were any."""
        state, before = self._state, len(self._state.queue)
        for _, waiter in state.queue[places.start : places.stop]:
            if not self._is_there(waiter.client):
                state.leave(waiter)
        return len(state.queue) < before

    def is_full(self, waiter: WaiterId, most: int, now: int) -> bool:
        """Whether ``most`` other waiters are in the queue; 0: any number may be."""
        state = self._state
        if 0 < most <= len(state.queue) and waiter not in state.waiting:
            self._remove_dead(checked(now, len(state.queue), CHECKS_IF_FULL))
            return most <= len(state.queue)
        return False

    def _is_there(self, client: str) -> bool:
        return client == self.asker or self.listens(client)
