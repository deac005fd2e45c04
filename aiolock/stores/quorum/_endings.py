"""The ends of acquisitions: their releases at the members, and what is remembered of them."""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from typing import Final

from aiolock._futures import retrieve
from aiolock.protocol import WAS_ABSENT, WAS_HOLDER, WAS_QUEUED, Busy, Form, WaiterId
from aiolock.stores._member import LOST, OUTSIDE, UNBOUNDED, OnReply, VoteRequest
from aiolock.stores.quorum._acquisition import QuorumAcquisition
from aiolock.stores.quorum._common import Common
from aiolock.stores.quorum._connection import MemberConnection
from aiolock.stores.quorum._counts import Tally, unheard
from aiolock.stores.quorum._local_waiters import LocalWaiters
from aiolock.stores.quorum._releases import Release, Releases, release_at
from aiolock.stores.quorum._renewals import Renewals
from aiolock.stores.quorum._table import FEW

_LATELY: Final = 1.0
"""Seconds after a release in which a push about its waiter may have been sent before it."""


class Endings:
    """The ends of one client's acquisitions."""

    def __init__(self, common: Common, renewals: Renewals, local_waiters: LocalWaiters) -> None:
        self._membership, passes, self._table = common
        self._connections = common.membership.connections
        self._time = common.membership.time
        self._loop = asyncio.get_running_loop()
        self._renewals = renewals
        self._local_waiters = local_waiters
        self._releases = Releases(self._time, passes)
        self._left = OrderedDict[WaiterId, float]()
        """The waiters that were released within `_LATELY`, or not long before, and when."""

    def release_unknown(self, name: str, waiter: WaiterId, form: Form) -> asyncio.Future[int]:
        """Release a waiter that is not open, where it may be known."""
        request = VoteRequest(name, waiter, form, 0)
        acquisition = QuorumAcquisition(
            request, form.claim, self._membership.size, wait=False, most=0
        )
        acquisition.asked = [connection.is_joined for connection in self._connections]
        return self.leave(acquisition, entered=False, again=False)

    def give_back(self, acquisition: QuorumAcquisition) -> asyncio.Future[int]:
        """It was entered too late: the client asks again, with the same ticket."""
        tally = Tally(self._membership.quorum, WAS_HOLDER, self._membership.size)
        acquisition.idle = True
        renewing = self._renewals.end(acquisition)
        if renewing is not None:
            renewing.give_back()
        self._local_waiters.enqueue_behind(acquisition)
        leaves = [
            each for each in acquisition.vote_set.give_back() if acquisition.asked[each.server]
        ]
        tally.expect(len(leaves))
        for each in leaves:
            release_at(self._connections[each.server], acquisition, each.upto, tally.on_reply)
        return tally.future

    def leave_in_turn(
        self, acquisition: QuorumAcquisition, *, lost: bool = False
    ) -> asyncio.Future[int]:
        """The holder leaves: release its votes, once the local waiters are queued at the members.

        Another client's waiter that came later would get the lock before them otherwise.
        """
        queue = self._table.queues.get(acquisition.request.name)
        if queue is None or not queue.locals or self._local_waiters.enqueue(queue):
            return self.leave(acquisition, entered=True, lost=lost)
        left = acquisition.undecided
        if left is None:
            left = acquisition.undecided = self._loop.create_future()
        queue.leaving[acquisition] = partial(self._leave_late, acquisition, left, lost=lost)
        return left

    def _leave_late(
        self, acquisition: QuorumAcquisition, left: asyncio.Future[int], *, lost: bool
    ) -> None:
        if acquisition.undecided is left:  # else it was handed off after all, or has ended
            self.abandon(acquisition, entered=True, lost=lost)

    def leave(
        self,
        acquisition: QuorumAcquisition,
        *,
        entered: bool,
        lost: bool = False,
        again: bool = True,
    ) -> asyncio.Future[int]:
        """End an acquisition in any state: release it at each member that was asked.

        ``again``: a release that fails is sent again, if the member may have a vote or a place of
        it.
        """
        vote_set, inside = acquisition.vote_set, acquisition.inside
        if acquisition.local:
            self.end(acquisition)
            return self.at_once(WAS_QUEUED)
        if inside:
            was = WAS_HOLDER
            self._local_waiters.enqueue_behind(acquisition)
        else:
            was = WAS_QUEUED if any(acquisition.said) or vote_set.has_votes else WAS_ABSENT
        self.end(acquisition)
        left, acquisition.undecided = acquisition.undecided, None
        request, now = acquisition.request, self._time()
        servers = acquisition.asked.count(True)  # how many were asked
        if not servers:
            return self.at_once(WAS_ABSENT)
        deadline = vote_set.deadline
        ended = deadline is None or deadline <= now
        held = len(vote_set.votes) - vote_set.votes.count(None)
        at_once = len(self._table.by_waiter) <= FEW
        tally = Tally(self._membership.quorum, was, held, lost=ended, at_once=at_once)
        tally.expect(servers)
        since = OUTSIDE
        if inside and entered:
            inside_for = max(0, int((now - acquisition.entered_at) * 1000))
            since = LOST if lost or ended else inside_for
        highest = vote_set.highest
        for connection, asked, vote in zip(
            self._connections, acquisition.asked, vote_set.votes, strict=True
        ):
            if not asked:
                continue
            server = connection.number
            counts = vote is not None and not request.form.counts
            on_reply = tally.heard_of if counts else tally.on_reply
            nothing = not (acquisition.arrived[server] or acquisition.asking[server])
            if again and not nothing:
                on_reply = partial(self._released, acquisition, connection, since, now, on_reply)
            connection.asked()
            connection.member.release(request, highest, UNBOUNDED, entered=since, on_reply=on_reply)
        if left is not None:
            tally.future.add_done_callback(partial(_pass_to, left))
        return tally.future

    def _released(  # noqa: PLR0917  # which release, and its answer
        self,
        acquisition: QuorumAcquisition,
        connection: MemberConnection,
        since: int,
        at: float,
        on_reply: OnReply,
        was: int | None,
        error: Exception | None,
    ) -> None:
        if error is not None:
            lasts_for, vote = acquisition.ttl / 1000, acquisition.vote_set.votes[connection.number]
            if vote is not None:
                lasts_for = max(lasts_for, vote.deadline - at)
            highest = acquisition.vote_set.highest
            self._releases.keep(
                Release(connection, acquisition.request, highest, since, at, lasts_for)
            )
            # A vote for it is to be released at once.
            self._left.pop(acquisition.request.waiter, None)
        on_reply(was, error)

    def end(self, acquisition: QuorumAcquisition) -> None:
        """End an acquisition: nothing is counted or waited for any more."""
        acquisition.vote_set.leave()
        if not acquisition.local:
            self._remember(acquisition.request.waiter, self._time())
        self._renewals.end(acquisition)
        self._table.remove(acquisition)
        if acquisition.answers:
            acquisition.tell(Busy(0))  # it was released before it was answered

    def _remember(self, waiter: WaiterId, now: float) -> None:
        """Remember that a waiter was released, and forget two that were released long ago."""
        left = self._left
        left.pop(waiter, None)
        left[waiter] = now
        for _ in range(2):
            if next(iter(left.values())) < now - _LATELY:
                left.popitem(last=False)

    def abandon(self, acquisition: QuorumAcquisition, *, entered: bool, lost: bool = False) -> None:
        """End an acquisition without waiting for the members' answers."""
        self.leave(acquisition, entered=entered, lost=lost).add_done_callback(retrieve)

    def at_once(self, was: int) -> asyncio.Future[int]:
        """An answer without any question to the members."""
        future: asyncio.Future[int] = self._loop.create_future()
        self._loop.call_soon(_resolve, future, was)
        return future

    def release_foreign(self, server: int, request: VoteRequest) -> None:
        """A member has voted for a waiter that has ended: the release is missing there, or
        forgotten.
        """
        if self._left.get(request.waiter, -math.inf) >= self._time() - _LATELY:
            return  # its release has arrived by now, or will
        member = self._connections[server].member
        member.release(request, 0, UNBOUNDED, entered=OUTSIDE, on_reply=unheard)

    def closing(self) -> Iterator[int]:
        """Send the releases that have failed once more, part by part."""
        return self._releases.closing()


def _pass_to(left: asyncio.Future[int], released: asyncio.Future[int]) -> None:
    if left.done() or released.cancelled():
        left.cancel()
    elif (error := released.exception()) is not None:
        left.set_exception(error)
    else:
        left.set_result(released.result())


def _resolve(future: asyncio.Future[int], was: int) -> None:
    if not future.done():
        future.set_result(was)
