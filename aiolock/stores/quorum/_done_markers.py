"""Work that is done once: how a majority learns that it is done, and why no client does it again.

The client that has done it leaves a *done marker* with its fence at every server, in place of its
vote. A server has a marker or a vote out, never both, until the marker ends: ``remember`` after it
was left, by the server's clock. From this follows, whichever servers answer:

* **A majority has the marker before any client is told.** `finish` answers once a majority has it,
  and a candidate gets `Done` once it has found that a majority has it. A client that is to enter
  after that needs a vote of one of these servers, which has none. So no body begins once any client
  was told that the work is done.
* **A marker of a minority is written back.** The client that did the work may have died half way,
  or a server was out of reach. A candidate that learns of a marker turns each vote that it gets
  into that marker, and gets `Done` once a majority has it (the write-back of Attiya, Bar-Noy and
  Dolev). It then leaves the marker at all other servers as well. A candidate that enters without
  having met the marker does the work again; `finish` has told the first client that its outcome is
  unknown. Both markers are true.
* **A copy ends no later than the marker that it copies**, by the clock of the server where it is
  left. So markers that end unevenly do not keep each other alive. Until then a marker of a minority
  keeps candidates from their votes as long as any asks; it is over once some majority has no
  marker.
* **A server that has lost its memory does not count as "not done".** Such a server does not vote
  for the longest lease, which is much less than ``remember``. So a candidate that has a majority
  asks all servers once more before it enters, and counts those that have not lost their memory in
  all that time. It needs answers from q of these, or from all of these if they are fewer. Then a
  marked server has answered, if any has not lost its memory: of N servers q were marked, and f have
  lost it; at most q - 1 - f of the others have not answered, and at least q - f of these were
  marked.

* **A finish that fails leaves the votes where they are.** The client sends it again until its lease
  ends (`aiolock._engine.pending_finishes`). If the votes were given back before, another client
  would do the work meanwhile. So a server is sent the release once it has answered that it has the
  marker, or that its vote is another's; and any server once the finish is over: a majority has
  answered alike, or the lease ends.

If all marked servers have lost their memory, the marker is forgotten. It is also forgotten if a
majority was emptied at once: a quorum of which a majority has no config is a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from aiolock.errors import StoreError
from aiolock.stores._member import DoneMarker, DoneRecord
from aiolock.stores.quorum._acquisition import JUST_AFTER, QuorumAcquisition
from aiolock.stores.quorum._common import Common
from aiolock.stores.quorum._connection import MemberConnection
from aiolock.stores.quorum._counts import unheard
from aiolock.stores.quorum._questions import SOON

_AGAIN: Final = 0.5
"""Seconds after which the members are asked again whether the work is done."""
_PATIENCE: Final = 5.0
"""Seconds after which a waiting client gets an error because too few members can tell whether the
work is done."""


class DoneMarkers:
    """The done markers that one client's candidates meet, or ask for."""

    def __init__(self, common: Common, look: Callable[[QuorumAcquisition], object]) -> None:
        """``look`` acts on the votes of an acquisition, and on what is known of its marker."""
        self._membership, self._passes, self._table = common
        self._connections = common.membership.connections
        self._time = common.membership.time
        self._look = look

    # A known done marker

    def mark_votes(self, acquisition: QuorumAcquisition) -> None:
        """Turn the votes of an acquisition into the done marker that it has met."""
        now = self._time()
        for server, vote in enumerate(acquisition.vote_set.votes):
            if vote is not None and (copy := self._copy(acquisition, server, now)) is not None:
                acquisition.vote_set.turned(server)
                acquisition.asking[server] = True
                self._mark(acquisition, server, copy, now)

    def _copy(
        self, acquisition: QuorumAcquisition, server: int, now: float
    ) -> tuple[int, int, int] | None:
        """A copy of the known marker for this member; None if that has ended, or the member's clock
        is unknown.
        """
        if acquisition.mark is None:
            return None
        fence, until = acquisition.mark
        remember, end = int((until - now) * 1000), self._membership.clocks.at(server, until)
        return None if remember <= 0 or end is None else (fence, remember, end)

    def _mark(
        self, acquisition: QuorumAcquisition, server: int, copy: tuple[int, int, int], sent: float
    ) -> None:
        connection, (fence, remember, end) = self._connections[server], copy

        def marked(known: Any, error: Exception | None) -> None:
            acquisition.asking[server] = False
            now = self._time() if error is not None else connection.answered(sent)
            if acquisition.over:
                return
            if known:
                acquisition.said[server] = DoneMarker(fence, remember, 0)
                self._table.ask_by(acquisition, server, now + remember / 1000 + JUST_AFTER)
            else:
                acquisition.said[server] = error
                self._table.ask_by(acquisition, server, now + (SOON if error is None else _AGAIN))
            self._look(acquisition)

        connection.asked()
        connection.member.finish(acquisition.request, fence, remember, end, marked)

    def write_back(self, acquisition: QuorumAcquisition) -> None:
        """The client gets `Done`: leave the marker at the members that do not have it yet."""
        now = self._time()
        for server, connection in enumerate(self._connections):
            copy = self._copy(acquisition, server, now)
            if not connection.in_reach or isinstance(acquisition.said[server], DoneMarker):
                continue
            if copy is not None:
                connection.member.finish(acquisition.request, *copy, unheard)

    # A candidate with a majority, before it enters

    def query_done(self, acquisition: QuorumAcquisition) -> None:
        """Ask all members for their done records."""
        now = self._time()
        if now < acquisition.recalled_at + _AGAIN:
            return  # that is under way
        acquisition.recalled_at = now
        said = dict[int, DoneRecord]()
        for connection in self._connections:
            if connection.in_reach:
                connection.asked()
                on_reply = partial(self._recalled, acquisition, connection, said, now)
                connection.member.query_done(acquisition.request.name, on_reply)
        self._passes.call_at(now + _AGAIN, partial(self._query_done_again, acquisition, said))

    def _recalled(  # noqa: PLR0917  # which question, and its answer
        self,
        acquisition: QuorumAcquisition,
        connection: MemberConnection,
        said: dict[int, DoneRecord],
        sent: float,
        answer: DoneRecord | None,
        error: Exception | None,
    ) -> None:
        if answer is None:
            return
        now = connection.answered(sent)
        self._membership.clocks.learn(connection.number, answer.now, now)
        if not acquisition.waits or acquisition.recalled_at != sent:
            return
        said[connection.number] = answer
        if answer.number:
            acquisition.knows(answer.number, sent + answer.left / 1000)
            acquisition.said[connection.number] = DoneMarker(answer.number, answer.left, answer.now)
        acquisition.vote_set.unsure = not self._is_not_done(acquisition, said)
        self._look(acquisition)

    def _is_not_done(self, acquisition: QuorumAcquisition, said: dict[int, DoneRecord]) -> bool:
        """Whether enough members that have not lost their memory meanwhile have no marker."""
        if any(each.number for each in said.values()):
            return False
        size, quorum = self._membership.size, self._membership.quorum
        lost = self._lost(acquisition, said)
        return len(said) - lost >= min(quorum, size - lost)

    @staticmethod
    def _lost(acquisition: QuorumAcquisition, said: dict[int, DoneRecord]) -> int:
        """How many members have lost their memory within the time for which a marker is kept."""
        ever = acquisition.request.form.remember
        return sum(each.forgot >= 0 and (not ever or each.forgot < ever) for each in said.values())

    def _query_done_again(
        self, acquisition: QuorumAcquisition, said: dict[int, DoneRecord]
    ) -> None:
        if self._membership.closed or not acquisition.waits or not acquisition.vote_set.unsure:
            return
        if acquisition.is_waited_for and self._time() >= acquisition.called + _PATIENCE:
            lost, name = self._lost(acquisition, said), acquisition.request.name.partition(":")[2]
            acquisition.tell(
                StoreError(
                    f"nobody knows whether {name!r} is done: {len(said)} of {self._membership.size}"
                    f" servers answer, of which {lost} have forgotten what they knew"
                )
            )
        self._look(acquisition)
