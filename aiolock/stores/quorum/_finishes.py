"""Finishes of work that is done once: done markers are left in place of votes.

See `_done_markers` for the rules, and why a finish that fails leaves the votes where they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Final

from aiolock.protocol import WAS_ABSENT, WAS_HOLDER, Finish, WaiterId
from aiolock.stores._member import UNBOUNDED, VoteRequest
from aiolock.stores.quorum._acquisition import QuorumAcquisition
from aiolock.stores.quorum._common import Common
from aiolock.stores.quorum._connection import MemberConnection
from aiolock.stores.quorum._endings import Endings
from aiolock.stores.quorum._passes import ASKED, Timer
from aiolock.stores.quorum._releases import release_at

_LONGEST: Final = 3600.0
"""Seconds after which a finish that fails is not sent again, whatever the lease."""


class Finishes:
    """The finishes of one client that are not over."""

    def __init__(self, common: Common, endings: Endings) -> None:
        self._membership, self._passes, self._table = common
        self._connections = common.membership.connections
        self._time = common.membership.time
        self._endings = endings
        self._finishing = dict[WaiterId, _Finish]()
        """By the waiter in the client's numbering."""

    def finish(self, operation: Finish) -> asyncio.Future[int]:
        """See `Finish`."""
        waiter, fence, remember = operation.waiter, operation.fence, operation.remember
        finish = self._finish_of(waiter, fence)
        if finish is None:
            remember = 0  # it was lost, or is done: the members can tell
        request = (
            VoteRequest(operation.name, waiter, operation.form, 0)
            if finish is None
            else finish.acquisition.request
        )
        marks = _Marks(self._membership.size, self._membership.quorum)
        for connection in self._connections:
            on_reply = partial(self._finished, finish, connection, marks)
            if finish is not None:
                finish.out[connection.number] += 1
            if connection.is_joined:
                connection.asked()
                connection.member.finish(request, fence, remember, 0, on_reply)
            else:
                asyncio.get_running_loop().call_soon(on_reply, None, self._membership.too_few())
        return marks.future

    def _finish_of(self, waiter: WaiterId, fence: int) -> _Finish | None:
        """The finish of this grant: a new one, or one that is sent again; None if it is over."""
        acquisition, earlier = self._table.find(waiter), self._finishing.get(waiter)
        if acquisition is None or not acquisition.inside or acquisition.vote_set.fence != fence:
            again = earlier is not None and earlier.acquisition.vote_set.fence == fence
            return earlier if again else None
        if earlier is not None:
            self._settle(earlier)  # of an earlier grant of this waiter
        now = self._time()
        until = min(acquisition.vote_set.deadline or now, now + _LONGEST)
        self._endings.end(acquisition)
        finish = self._finishing[waiter] = _Finish(waiter, acquisition, until)
        return finish

    def _finished(
        self,
        finish: _Finish | None,
        connection: MemberConnection,
        marks: _Marks,
        known: int | None,
        error: Exception | None,
    ) -> None:
        agreed = marks.on_reply(known, error)
        if finish is None:
            return
        finish.out[connection.number] -= 1
        if agreed or finish.over:
            self._settle(finish)
        elif error is None:
            self._leave_behind(finish, connection)
        elif finish.timer is None:
            # The client sends it again until then, and not after that.
            finish.timer = self._passes.call_at(finish.until, partial(self._settle, finish))

    def _settle(self, finish: _Finish) -> None:
        """The finish is over: leave nothing of it at any member except the done marker."""
        if not finish.over:
            finish.over = True
            del self._finishing[finish.waiter]
            if finish.timer is not None:
                finish.timer.cancel()
        for connection in self._connections:
            # Not before it has answered: if the release came first, another waiter might get the
            # vote.
            if not finish.out[connection.number]:
                self._leave_behind(finish, connection)

    def _leave_behind(self, finish: _Finish, connection: MemberConnection) -> None:
        """Release the vote, or the place in the queue, at this member, unless that was done."""
        if finish.present[connection.number]:
            finish.present[connection.number] = False
            release_at(connection, finish.acquisition, UNBOUNDED)

    def closing(self) -> Iterator[int]:
        """The client is closed: no finish is sent again, and the last copy's answer may not come.

        The releases go behind that copy, on the same connections. Part by part.
        """
        for finish in list(self._finishing.values()):
            self._settle(finish)
            for connection in self._connections:
                self._leave_behind(finish, connection)
            yield ASKED


class _Finish:
    """The end of a grant whose work is done, until the members know or the lease ends."""

    def __init__(self, waiter: WaiterId, acquisition: QuorumAcquisition, until: float) -> None:
        self.waiter = waiter
        self.acquisition = acquisition
        """The acquisition, which has ended: nothing is counted any more."""
        self.until = until
        """When its votes end."""
        self.out = [0] * len(acquisition.asked)
        """By member: how many copies are not answered."""
        self.present = acquisition.asked.copy()
        """By member: whether it has to be sent a release."""
        self.timer: Timer | None = None
        """Runs once a member has failed."""
        self.over = False


class _Marks:
    """The members' answers to one copy of a finish."""

    def __init__(self, size: int, quorum: int) -> None:
        self.future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._left = size
        self._quorum = quorum
        self._marked = self._refused = 0
        self._error: Exception | None = None

    def on_reply(self, known: int | None, error: Exception | None) -> bool:
        """A member has answered, or the question has failed; whether a majority says the same."""
        self._left -= 1
        self._marked += bool(known)
        self._refused += known == 0
        self._error = self._error or error
        marked, refused = self._marked >= self._quorum, self._refused >= self._quorum
        if not self.future.done():
            if marked or refused:
                self.future.set_result(WAS_HOLDER if marked else WAS_ABSENT)
            elif not self._left:
                assert self._error is not None, "an odd number is never halved"
                self.future.set_exception(self._error)
        return marked or refused
