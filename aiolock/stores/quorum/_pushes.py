"""The pushes of the members about the waiters of one client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from aiolock.protocol import AskAgain, Deliver, Form, ReleaseRequested, WaiterId, lasts
from aiolock.stores._member import VoteRequest
from aiolock.stores.quorum._acquisition import QuorumAcquisition
from aiolock.stores.quorum._common import Common
from aiolock.stores.quorum._endings import Endings
from aiolock.stores.quorum._in_turn import InTurn
from aiolock.stores.quorum._passes import ASKED
from aiolock.stores.quorum._questions import Questions


class Look(Protocol):
    """Acts on the votes of an acquisition; ``reason``: why a vote was taken away, if one was."""

    def __call__(self, acquisition: QuorumAcquisition, reason: str = "expired") -> object: ...


class Pushes:
    """The receiver of pushes: see `aiolock.stores.quorum._connection.PushReceiver`."""

    def __init__(  # its parts, and the receivers of what happens
        self,
        common: Common,
        *,
        questions: Questions,
        in_turn: InTurn,
        endings: Endings,
        look: Look,
        deliver: Deliver,
    ) -> None:
        membership, self._passes, self._table = common
        self._connections = membership.connections
        self._time = membership.time
        self._questions = questions
        self._in_turn = in_turn
        self._endings = endings
        self._look = look
        self._deliver = deliver

    def granted(self, server: int, waiter: WaiterId, number: int, lease: int, now: int) -> None:
        """A member has voted for a waiter in its queue."""
        acquisition = self._table.by_waiter[waiter]
        acquisition.arrived[server] = True
        clock = self._connections[server].clock
        began = acquisition.began(server, now, clock, self._time())
        self._questions.voted(acquisition, server, number, began + lasts(lease), now)
        if not acquisition.inside:
            self._look(acquisition)

    def knows(self, waiter: WaiterId) -> bool:
        """Whether this waiter has not ended."""
        return waiter in self._table.by_waiter

    def foreign(self, server: int, name: str, waiter: WaiterId, form: Form) -> None:
        """A member has voted for a waiter that has ended: the release is missing there, or
        forgotten.
        """
        self._endings.release_foreign(server, VoteRequest(name, waiter, form, 0))

    def inquired(self, server: int, waiter: WaiterId, number: int) -> None:
        """A waiter with a lower ticket needs this vote."""
        acquisition = self._table.by_waiter.get(waiter)
        if acquisition is not None:
            acquisition.vote_set.inquired(server, number)
            self._look(acquisition)

    def vote_lost(self, server: int, name: str, waiter: WaiterId, number: int, reason: str) -> None:
        """A vote was taken away."""
        now = self._time()
        acquisition = self._table.by_waiter.get(waiter)
        if acquisition is not None:
            acquisition.vote_set.gone(server, number, now)
            self._table.ask_by(acquisition, server, now)
            self._look(acquisition, reason)
        queue = self._table.queues.get(name)
        if queue is not None and reason == "expired":
            # The member considered this client stuck, so all its waiters have left the queue.
            self._in_turn.ask_for_name(queue, server)

    def closed(self, name: str) -> None:
        """A member gives no votes for a while: the first waiter asks for how long."""
        if name in self._table.queues:
            self._deliver(AskAgain(name))

    def requested(self, waiter: WaiterId) -> None:
        """A client asks this waiter to release the lock; several members push that."""
        acquisition = self._table.by_waiter.get(waiter)
        if acquisition is not None and acquisition.inside:
            self._deliver(
                ReleaseRequested(
                    acquisition.request.name, acquisition.holder, acquisition.vote_set.fence
                )
            )

    def may_be_inquired(self, server: int) -> None:
        """Pushes of that member may be lost, so it may have inquired.

        An acquisition without a majority gives its vote back there. If no other comes before it,
        the member votes for it once more, in the same step.
        """
        self._passes.begin(("inquired", server), self._inquire(server))

    def _inquire(self, server: int) -> Iterator[int]:
        for acquisition in list(self._table.by_waiter.values()):
            vote, counts = acquisition.vote_set.votes[server], acquisition.request.form.counts
            if vote is not None and acquisition.waits and acquisition.wait and not counts:
                acquisition.vote_set.inquired(server, vote.number)
                self._look(acquisition)
                yield ASKED
            else:
                yield 1
