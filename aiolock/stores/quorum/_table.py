"""The table of a client's open acquisitions: by waiter, by holder and by name."""

from __future__ import annotations

from typing import Final

from aiolock.protocol import WaiterId
from aiolock.stores._member import InQueue
from aiolock.stores.quorum._acquisition import QuorumAcquisition
from aiolock.stores.quorum._name_queue import NameQueue

FEW: Final = 2
"""With up to so many acquisitions, the task of each continues in the call that brings its votes."""


class AcquisitionTable:
    """All acquisitions of one client that have not ended; its parts have it in common."""

    def __init__(self, servers: int) -> None:
        self.by_waiter: dict[WaiterId, QuorumAcquisition] = {}
        """By the id of the waiter at the members, in the order in which they came."""
        self.by_holder: dict[WaiterId, QuorumAcquisition] = {}
        """The holders after a hand-off, each with the acquisition whose votes it has; and waiters
        that have come back, each with the acquisition that has another number at the members."""
        self.queues: dict[str, NameQueue] = {}
        """By name."""
        self.votes = [0] * servers
        """By member: how many votes of it are out to this client."""

    def find(self, waiter: WaiterId) -> QuorumAcquisition | None:
        """The acquisition by whose votes this waiter holds the lock, or with which it waits."""
        acquisition = self.by_holder.get(waiter) if self.by_holder else None
        if acquisition is None:
            acquisition = self.by_waiter.get(waiter)
            if acquisition is not None and acquisition.holder != waiter:
                return None  # it has left, and another waiter has its votes
        return acquisition

    def remove(self, acquisition: QuorumAcquisition) -> None:
        """Remove an acquisition that has ended."""
        request = acquisition.request
        self.by_waiter.pop(request.waiter, None)
        if acquisition.holder != request.waiter:
            self.by_holder.pop(acquisition.holder, None)
        queue = self.queues.get(request.name)
        if queue is not None and queue.leave(acquisition):
            del self.queues[request.name]

    def ask_by(self, acquisition: QuorumAcquisition, server: int, when: float) -> None:
        """Have that member asked again at that time, if nothing else causes a question."""
        if isinstance(acquisition.said[server], InQueue):
            acquisition.said[server] = None  # it may have no place there, so it asks again
        acquisition.ask_at[server] = when
        queue = self.queues.get(acquisition.request.name)
        if queue is not None:
            queue.look_by(when)
