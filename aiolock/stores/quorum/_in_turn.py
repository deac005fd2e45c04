"""A member is asked for all acquisitions of a name, or of the client, in their order.

That is done in parts (see `_passes`). Nobody overtakes another waiter of this client meanwhile: a
newcomer is asked for behind those of its name that are still to be asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from aiolock.stores.quorum._acquisition import QuorumAcquisition
from aiolock.stores.quorum._common import Common
from aiolock.stores.quorum._name_queue import NameQueue
from aiolock.stores.quorum._passes import ASKED
from aiolock.stores.quorum._questions import Questions
from aiolock.stores.quorum._suspension import Suspension


class InTurn:
    """The questions of one client to a member about many acquisitions."""

    def __init__(  # its parts
        self,
        common: Common,
        *,
        questions: Questions,
        suspension: Suspension,
        look: Callable[[QuorumAcquisition], object],
    ) -> None:
        """``look`` acts on the votes of an acquisition."""
        self._membership, self._passes, self._table = common
        self._time = common.membership.time
        self._questions = questions
        self._suspension = suspension
        self._look = look
        self._left = [deque[QuorumAcquisition]() for _ in common.membership.connections]
        """By member: what is left of a pass that asks it for all acquisitions of the client."""

    def ask(self, acquisition: QuorumAcquisition, now: float) -> None:
        """Ask all members for one that has no place there yet."""
        if self._passes.idle:
            self._questions.ask_all(acquisition, now)
        elif not self._suspension.is_checked_in_turn(acquisition):
            for server in range(self._membership.size):
                if not self._is_asked_in_turn(acquisition, server, of_client=True):
                    self._questions.ask(acquisition, server, now)

    def ask_for_client(self, server: int) -> None:
        """Ask that member for all waiters without a vote there: a push may be lost, or they did not
        ask before.
        """
        left = self._left[server] = deque(self._table.by_waiter.values())
        steps = self._ask_for_each(left, server, of_client=True)
        self._passes.begin(("ask", server), steps, left.clear)

    def ask_for_name(self, queue: NameQueue, server: int) -> None:
        """Ask that member for all waiters of a name, which have left its queue."""
        left = queue.to_ask[server] = deque(queue.acquisitions.values())
        steps = self._ask_for_each(left, server, of_client=False)
        self._passes.begin(queue.pass_there(server), steps, left.clear)

    def _ask_for_each(
        self, left: deque[QuorumAcquisition], server: int, *, of_client: bool
    ) -> Iterator[int]:
        """Ask that member for these, of one name or of all."""
        while left:
            acquisition = left.popleft()
            if acquisition.over or (of_client and self._is_asked_in_turn(acquisition, server)):
                yield 1
                continue
            was_asking = acquisition.asking[server]
            self._questions.ask(acquisition, server, self._time())
            if acquisition.vote_set.stuck:
                self._look(acquisition)  # the member may need the fence
            yield ASKED if acquisition.asking[server] and not was_asking else 1

    def _is_asked_in_turn(
        self, acquisition: QuorumAcquisition, server: int, *, of_client: bool = False
    ) -> bool:
        """Whether that member is just being asked for all of its name: then for this one as well,
        behind them. ``of_client``: also if it is asked for all of this client.
        """
        queue = self._table.queues[acquisition.request.name]
        left = queue.to_ask[server]
        if not left and of_client and len(queue.acquisitions) > 1:
            left = self._left[server]
        if not left:
            return False
        left.append(acquisition)
        return True
