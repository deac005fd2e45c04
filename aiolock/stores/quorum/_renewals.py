"""Renewals: of single votes, and of all votes of the waiters that have entered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from aiolock.protocol import Renewal, WaiterId, lasts
from aiolock.stores._member import OnReply
from aiolock.stores.quorum._acquisition import QuorumAcquisition, lease_until
from aiolock.stores.quorum._common import Common
from aiolock.stores.quorum._connection import RETRY
from aiolock.stores.quorum._counts import Concluded, Renewing, unheard
from aiolock.stores.quorum._membership import ANSWER_TIMEOUT
from aiolock.stores.quorum._passes import ASKED

_RENEWAL_TIMEOUT: Final = 1.0
"""Seconds for the members to answer a renewal; after that its outcome is unknown."""


class Renewals:
    """The renewals of one client."""

    def __init__(self, common: Common, look: Callable[[QuorumAcquisition], object]) -> None:
        """``look`` acts on the votes of an acquisition, after an answer about one of them."""
        self._membership, self._passes, self._table = common
        self._connections = common.membership.connections
        self._time = common.membership.time
        self._look = look
        self._latest = dict[WaiterId, Renewing]()
        """The latest renewal of each waiter that has entered."""

    # All votes of a waiter that has entered

    def renew_all(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool | None]]:
        """See `Renew`; they are sent in parts."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[bool | None]] = loop.create_future()
        answers: list[bool | None] = [None] * len(renewals)
        left = len(renewals)

        def over() -> None:
            if not future.done():
                future.set_result(list(answers))

        timer = loop.call_later(ANSWER_TIMEOUT, over)  # unless it is closed before

        def concluded(number: int, still: bool | None) -> None:  # noqa: FBT001
            nonlocal left
            answers[number] = still
            left -= 1
            if left == 0 and not future.done():
                timer.cancel()
                future.set_result(answers)

        def sent() -> None:
            nonlocal timer
            timer.cancel()
            if not future.done():
                timer = loop.call_later(_RENEWAL_TIMEOUT, over)

        self._passes.begin(object(), self._renew_each(renewals, concluded), sent)
        return future

    def _renew_each(
        self, renewals: Sequence[Renewal], concluded: Callable[[int, bool | None], None]
    ) -> Iterator[int]:
        for number, (_, waiter, _, fence, ttl) in enumerate(renewals):
            self._renew(waiter, fence, ttl, partial(concluded, number))
            yield ASKED * self._membership.size

    def _renew(self, waiter: WaiterId, fence: int, ttl: int, concluded: Concluded) -> None:
        """One renewal of `Renew`: True, False, or None for unknown."""
        acquisition = self._table.find(waiter)
        if acquisition is None or not acquisition.inside or acquisition.vote_set.fence != fence:
            concluded(False)  # noqa: FBT003  # what is known
            return
        if acquisition.request.form.counts:
            concluded(True)  # noqa: FBT003  # it was counted, and stays so
            return
        held = acquisition.vote_set.together  # a run begins once a majority has confirmed these
        servers = [server for server in held if self._connections[server].in_reach]
        until = self._time() + lasts(ttl)
        renewing = self._latest[acquisition.request.waiter] = Renewing(
            acquisition, servers, ttl, until, concluded
        )
        for server in servers:
            self.renew_vote(acquisition, server, ttl, fence, renewing.on_reply, entered=True)
        renewing.look()

    def voted(self, acquisition: QuorumAcquisition, server: int) -> None:
        """A vote came just now: it is renewed with the others, or up to their deadline."""
        renewing = self._latest.get(acquisition.request.waiter)
        if renewing is not None and renewing.takes_in(server):
            fence, on_reply = acquisition.vote_set.fence, renewing.on_reply
            self.renew_vote(acquisition, server, renewing.ttl, fence, on_reply, entered=True)
        elif acquisition.inside:
            self.prolong(acquisition, acquisition.vote_set.deadline or 0.0, self._time())

    def prolong(self, acquisition: QuorumAcquisition, deadline: float, now: float) -> None:
        """Renew the votes that end long before the deadline of the others, up to that.

        A vote that is pushed lasts for a claim. The holder may not be due to renew before that is
        over, and then that server would consider it stuck. This does not report that it is inside:
        its client may still find that it is too late.
        """
        vote_set, form = acquisition.vote_set, acquisition.request.form
        if form.period or form.counts:  # a run is confirmed before it begins
            return
        soon = deadline - form.claim / 3000
        for server, vote in enumerate(vote_set.votes):
            if vote is None or vote.deadline >= soon:
                continue
            lease = lease_until(deadline, now, self._membership.config.longest)
            if lease and self._connections[server].in_reach:
                self.renew_vote(acquisition, server, lease, vote_set.fence, unheard)

    def end(self, acquisition: QuorumAcquisition) -> Renewing | None:
        """Take the latest renewal of an acquisition that has no votes any more, if any."""
        return self._latest.pop(acquisition.request.waiter, None)

    # One vote

    def renew_vote(  # which vote, and with what
        self,
        acquisition: QuorumAcquisition,
        server: int,
        ttl: int,
        fence: int,
        on_reply: OnReply,
        *,
        entered: bool = False,
    ) -> None:
        """Renew one vote, and make this fence known; ``entered``: the waiter is inside."""
        vote, connection, sent = (
            acquisition.vote_set.votes[server],
            self._connections[server],
            self._time(),
        )
        assert vote is not None
        number = vote.number
        acquisition.renewing[server] = True

        def renewed(still: Any, error: Exception | None) -> None:
            acquisition.renewing[server] = False
            if error is not None:
                on_reply(still, error)
                # Not at once: a server that refuses would be asked as often as it can answer.
                unanswered = partial(self._unanswered, acquisition, server, number)
                self._passes.call_at(self._time() + RETRY, unanswered)
                return
            now = connection.answered(sent)
            if still:
                until = sent + lasts(ttl) if ttl else 0.0
                acquisition.vote_set.renewed(server, number, until, fence)
            else:
                acquisition.vote_set.gone(server, number, now)
                if not acquisition.over:
                    self._table.ask_by(acquisition, server, now)
            on_reply(still, error)
            if not acquisition.over:
                self._look(acquisition)

        connection.asked()
        connection.member.renew(
            acquisition.request, number, ttl, fence, entered=entered, on_reply=renewed
        )

    def _unanswered(self, acquisition: QuorumAcquisition, server: int, number: int) -> None:
        if not acquisition.over:
            acquisition.vote_set.unanswered(server, number)
            self._look(acquisition)
