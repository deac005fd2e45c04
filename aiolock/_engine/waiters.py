"""A client's waiters: they send questions to the store, and receive its answers and pushes.

The client's store delivers its events to `Waiters.deliver`. It finds the acquisition or the
hold that a push is about, and changes its state; a task that waits is woken by its future. Pushes
can be lost and can arrive in any order with the answers on the other connection. So a push that may
be old or incomplete is never believed: it makes the waiter ask again, and the answer decides.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from aiolock._engine.acquisition import Acquisition, ClockPair, Phase
from aiolock._engine.backstop import LocalQueue
from aiolock._engine.lease_state import LossReason
from aiolock._engine.timers import shared_timers
from aiolock._engine.watchdog import Watchdog
from aiolock._prompt import Prompt, when_answered
from aiolock._turns import Backlog
from aiolock.errors import StoreError
from aiolock.protocol import (
    CLAIM,
    Acquire,
    Answer,
    AskAgain,
    Event,
    Form,
    Granted,
    GrantLost,
    GrantPushed,
    GrantUnconfirmed,
    Heartbeat,
    LeaseShortened,
    LinkChanged,
    OrderUnknown,
    Queued,
    Reconnected,
    ReleaseRequested,
    WaiterId,
    new,
)
from aiolock.text import one_line

if TYPE_CHECKING:
    from aiolock._engine.rate_queue import RateQueue

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0
"""Seconds until a question that failed or was refused is asked again: a third of what it took."""

_TOGETHER: Final = 64
"""Waiters that ask again in one iteration of the event loop; others have a turn then."""

_PATIENCE: Final = 10.0
"""Seconds for which questions may fail without a warning: as long as stores try the first one."""

_WARNED_EVERY: Final = 60.0
"""Seconds between warnings of waiters whose questions fail."""

_STILL_BROKEN: Final = 3.0
"""Seconds after which it is logged why a broken link could not be restored."""

_MOST_EMPTY: Final = 64
"""Queues of a client that are kept for a while when they have become empty."""

_LOST: Final = {"expired": LossReason.EXPIRED, "broken": LossReason.BROKEN}
"""The reasons for a loss that a store gives; any other is from a later version."""

_log = logging.getLogger("aiolock")


class Waiters:
    """The open acquisitions of one client; the store's events arrive here."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._handoff = watchdog.handoff
        self._watchdog = watchdog
        self._loop = asyncio.get_running_loop()
        self._call_later = shared_timers()
        self._time = watchdog.time
        self.on_reconnect: set[Callable[[], object]] = set()
        """Called when pushes and replies may have been missed."""
        self.acquisitions: dict[str, dict[WaiterId, Acquisition]] = {}
        """By key, and then by waiter; `acquire` adds to it, and to the next."""
        self.by_age: dict[int, Acquisition] = {}
        """By their numbers, in the order in which they began."""
        self.blocked: dict[asyncio.Task[Any], Acquisition] | None = None
        """By task, what it waits for in a queue itself, without a timeout: see `index`."""
        self._to_ask = Backlog(self._ask_again, most=_TOGETHER)
        """Waiters that ask again soon, because something happened to all of them."""
        self._failed: dict[Acquisition, float] = {}
        """Waiters whose last question failed, and when each of them asks again."""
        self._retry: asyncio.TimerHandle | None = None
        self._queues: dict[str, LocalQueue | RateQueue] = {}
        self._empty: dict[str, LocalQueue | RateQueue] = {}
        """Those that have become empty, until their timers are due."""
        self._kept_empty = _MOST_EMPTY
        self._displaced: dict[str, float] = {}
        """By key, the time of the latest question that found a lost place; asked for soon."""
        self.all_asked: dict[str, float] = {}
        """By key, when all waiters were last made to ask because places were lost."""
        self.broken: Exception | None = None
        """Why the link to the store is broken, while it is."""
        self._warned = -math.inf
        self._broken_at = math.inf
        """Since when; infinity once the warning about it was logged."""

    def leave(self, acquisition: Acquisition, now: float) -> None:  # noqa: C901, PLR0912  # flat
        """The acquisition does not wait any more, for any reason. Idempotent."""
        if acquisition.question is not None:
            acquisition.withdraws()
        if self._failed:
            self._cancel_retry(acquisition)
        key, waiter = acquisition.policy.key, acquisition.waiter
        # With a lock that was handed to it, it has left the order already.
        if acquisition.behind is not None or acquisition.phase is not Phase.GRANTED:
            self._handoff.leaves(acquisition)
        queue = acquisition.queue
        if queue is not None:
            acquisition.queue = None
            del queue.acquisitions[waiter], queue.asked[waiter]
            if queue.acquisitions:
                policy = acquisition.policy
                if now + policy.claim / 1000 < queue.ask_at or policy.shared:
                    queue.left(acquisition, now)
            else:
                queue.ask_at = math.inf
                del self._queues[key]
                if len(self._empty) < self._kept_empty:
                    self._empty[key] = queue
                else:
                    queue.close()
        if self.blocked is not None:
            self._is_not_blocked(acquisition)
        if key not in self.acquisitions or waiter not in (waiters := self.acquisitions[key]):
            return
        del waiters[waiter], self.by_age[waiter.seq]
        if not waiters:
            del self.acquisitions[key]
            if self.all_asked:
                self.all_asked.pop(key, None)

    def close_timers(self) -> None:
        """No timer is to be left of names that nobody waits for, from now on."""
        self._kept_empty = 0
        for queue in self._empty.values():
            queue.close()
        self._empty.clear()

    # Questions to the store

    def ask(self, acquisition: Acquisition, *, wait: bool) -> None:
        """Ask the store for the lock, or for the place in its queue."""
        policy = acquisition.policy
        if acquisition.phase is Phase.ASKING:
            acquisition.waits_for = Prompt(loop=self._loop)
        assert acquisition.question is None, "one question at a time"
        acquisition.outdated, acquisition.failure = False, None
        acquisition.last_asked = self._time()  # before it is sent
        ticket, most = acquisition.ticket, policy.most
        operation: Acquire = new(
            Acquire,
            (policy.key, acquisition.waiter, policy.form, policy.lease, ticket, wait, most),
        )
        acquisition.asked_by = self
        handoff = self._handoff
        # A newcomer joins the tail of the queue: for that, it makes no difference who of the
        # waiters before it holds the lock.
        if handoff.names and (ticket or most or not wait):
            handoff.report(policy.key)
        if handoff.ask_to is None:
            acquisition.question = question = handoff.submit_now(operation)
            when_answered(question, partial(self._heard, acquisition))
        else:
            acquisition.question = handoff.ask_to(operation, acquisition)

    def _heard(self, acquisition: Acquisition, question: asyncio.Future[Answer]) -> None:
        """The future of a question has its answer."""
        if question is not acquisition.question or question.cancelled():
            return  # the question was withdrawn
        failure = question.exception()
        if failure is None:
            acquisition.resolve(question.result())
        else:
            assert isinstance(failure, Exception)
            acquisition.set_exception(failure)

    def answered(self, acquisition: Acquisition, answer: Answer) -> None:
        """Process the answer to a question, and wake the task if it has to do something now."""
        newcomer, first = acquisition.ticket == 0, acquisition.phase is Phase.ASKING
        before = acquisition.clocks
        if not acquisition.answers(answer):
            return  # it came too late
        if type(answer) is Queued:
            self.queued(acquisition, answer, before, newcomer=newcomer, first=first)
            return
        if isinstance(answer, Granted) and answer.displaced:
            self._was_displaced(acquisition, before)
        if acquisition.outdated and acquisition.policy.shared:
            # What made the question outdated may concern those that can share the lock with it.
            self._first_asks(acquisition.policy.key)
        _wake(acquisition)

    def queued(
        self,
        acquisition: Acquisition,
        answer: Queued,
        before: ClockPair | None,
        *,
        newcomer: bool,
        first: bool,
    ) -> None:
        """The acquisition is in the queue: its task sleeps on, unless it has to do something."""
        key, handoff = acquisition.policy.key, self._handoff
        if answer.displaced:
            self._was_displaced(acquisition, before)
        if key not in self._queues:
            if key in self._empty:
                self._queues[key] = self._empty[key]
                del self._empty[key]
            else:
                forget = partial(self._empty.pop, key, None)
                make = acquisition.local_queue or LocalQueue
                self._queues[key] = make(self._ask_again, self._time, forget)
        acquisition.queue = queue = self._queues[key]
        queue.queued(acquisition, answer)
        if acquisition.outdated:
            self._ask_again(acquisition)
        elif newcomer and (answer.before is not None or handoff.names):
            handoff.queued(acquisition, answer, self.acquisitions[key])
        if acquisition.phase is not Phase.QUEUED:
            _wake(acquisition)  # a push came before the answer
        elif first:
            task, lineage, watchdog = acquisition.owner, acquisition.lineage, self._watchdog
            if self.blocked is not None and (waits := acquisition.blocked) is not None:
                self.blocked[waits] = acquisition
            if (
                watchdog.events.often  # to report that it waits
                # If its task, or the parent of that, holds something, deadlocks are possible.
                or task in watchdog.owned
                or (lineage is not None and lineage[1] is not None)
            ):
                self._looks(acquisition)

    def _looks(self, acquisition: Acquisition) -> None:
        """Wake its task if that has something to report, or to look for, before it waits on."""
        watchdog, waits = self._watchdog, acquisition.blocked
        parent, owned = acquisition.parent, watchdog.owned
        holds = waits in owned or (parent is not None and parent in owned)
        if watchdog.events.often or (waits is not None and holds):
            _wake(acquisition)

    def index(self) -> Mapping[asyncio.Task[Any], Acquisition]:
        """What each task waits for, from now on: only searches for deadlocks need it."""
        if self.blocked is None:
            self.blocked = {
                task: acquisition
                for acquisition in self.by_age.values()
                if acquisition.phase is Phase.QUEUED and (task := acquisition.blocked) is not None
            }
        return self.blocked

    def _is_not_blocked(self, acquisition: Acquisition) -> None:
        """Remove it from `blocked`."""
        blocked, task = self.blocked, acquisition.owner
        if blocked and task is not None and blocked.get(task) is acquisition:
            del blocked[task]

    def _first_asks(self, key: str) -> None:
        """Let the first waiter without a grant ask again; its first answer may be under way."""
        queue, waiting = self._queues.get(key), self.acquisitions.get(key, {}).values()
        first = None if queue is None else queue.first_without_grant
        asking = (each for each in waiting if each.phase is Phase.ASKING)
        if (asks := first or next(asking, None)) is not None:
            self._ask_again(asks)

    def _ask_again(self, acquisition: Acquisition) -> None:
        """Let this waiter ask now, or after the answer under way."""
        if acquisition.has_news():
            if self._failed:
                self._cancel_retry(acquisition)
            self.ask(acquisition, wait=True)

    def unanswered(self, acquisition: Acquisition, failure: Exception) -> None:
        """The answer to a question is unknown."""
        if acquisition.phase is Phase.QUEUED:
            self._ask_later(acquisition, failure)
        elif acquisition.phase is Phase.ASKING and not acquisition.waits_for.done():
            acquisition.waits_for.set_exception(failure)

    def _ask_later(self, acquisition: Acquisition, failure: Exception) -> None:
        """Ask again later: a waiter in the queue waits until its timeout, also during an outage.

        Only an error that lasts until the configuration is changed ends the waiting, and only after
        it has lasted for as long as a holder would rely on its lease without an answer.
        """
        now = self._time()
        if acquisition.failing_since is None:
            acquisition.failing_since = now
        failing = now - acquisition.failing_since
        if failing >= max(_PATIENCE, acquisition.policy.lease / 1000):
            if isinstance(failure, StoreError) and failure.misconfigured:
                acquisition.stop(failure)
                return
            if now - self._warned >= _WARNED_EVERY:
                self._warned = now
                _log.warning(
                    "aiolock: %s is still waited for: the store has not answered for %.0f s: %s",
                    acquisition.policy.called,
                    failing,
                    failure,
                )
        self._failed[acquisition] = now + min(_LONGEST_PAUSE, max(_FIRST_PAUSE, failing / 3))
        if self._retry is None:
            self._retry = self._call_later(_FIRST_PAUSE, self._ask_failed)

    def _ask_failed(self) -> None:
        """Repeat the failed questions that are due: one timer serves them all, however many."""
        now = self._time()
        due = [acquisition for acquisition, when in self._failed.items() if now >= when]
        for acquisition in due:
            del self._failed[acquisition]
        self._retry = None
        if self._failed:
            self._retry = self._call_later(_FIRST_PAUSE, self._ask_failed)
        self._to_ask.add(due)

    def _cancel_retry(self, acquisition: Acquisition) -> None:
        """It asks now, or does not wait any more, so its failed question is not repeated."""
        self._failed.pop(acquisition, None)
        if not self._failed and self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _was_displaced(self, found: Acquisition, before: ClockPair | None) -> None:
        """This waiter lost its place in the queue; the others of its key may have lost theirs too.

        So all of them ask again. Many waiters find the same loss at about the same time, and only
        the first of them may cause that. ``before`` says when this one asked before: if all have
        asked since, then they have found the loss already.
        """
        key, known = found.policy.key, -math.inf if before is None else before.sent
        self._handoff.forget_order(key)
        if known < self.all_asked.get(key, -math.inf):
            return
        if key not in self._displaced:
            self._loop.call_soon(self._ask_for_displaced, key)
        self._displaced[key] = max(self._displaced.get(key, 0.0), found.last_asked)

    def _ask_for_displaced(self, key: str) -> None:
        found = self._displaced.pop(key, 0.0)
        if key in self.acquisitions:
            self.all_asked[key] = self._time()
        waiting = self.acquisitions.get(key, {}).values()
        self._to_ask.add([acquisition for acquisition in waiting if acquisition.last_asked < found])

    # Events of the store

    def deliver(self, event: Event) -> None:
        """Process an event: the `Deliver` of the client's store."""
        _PROCESS[type(event)](self, event)

    def _acquisition(self, key: str, waiter: WaiterId) -> Acquisition | None:
        acquisitions = self.acquisitions.get(key)
        return None if acquisitions is None else acquisitions.get(waiter)

    def _granted(self, event: GrantPushed) -> None:
        name, waiter, form, fence, lease, now = event
        acquisition = self._acquisition(name, waiter)
        if acquisition is not None:
            if acquisition.pushed(fence, lease, now, self._time()):
                _wake(acquisition)
            return
        # Nobody waits for it: the others in the queue would wait until its claim ends.
        self._give_back(name, waiter, form, fence)

    def _give_back(self, name: str, waiter: WaiterId, form: Form, fence: int) -> None:
        """Release a grant of a waiter that gave up before the store processed its release.

        A copy of a push may also be of a grant that we hold, or have handed off: that one stays.
        """
        hold = self._watchdog.holds.get(waiter)
        known = hold is not None and hold.fence == fence
        if not known and not self._handoff.was_handed_off(name, waiter, fence):
            _ = self._watchdog.releases.release(name, waiter, form, CLAIM, fence=fence)

    def _lost(self, event: GrantLost) -> None:
        name, reason = event.name, event.reason
        waiter, fence = self._handoff.present(name, event.waiter, event.fence)
        hold = self._watchdog.holds.get(waiter)
        waiting = self._acquisition(name, waiter)
        if hold is not None and hold.fence == fence:
            # If a question of this waiter was under way, the store may have read it after the grant
            # was broken, and queued the waiter again.
            hold.crossed = hold.crossed or reason == "broken"
            self._watchdog.lose(hold, _LOST.get(reason, reason))
        elif waiting is not None:
            # Its grant is on its way, to its task or, over the other connection, to us. For the
            # store, the waiter has left the queue, so no push follows: it must ask.
            waiting.taken_away(fence)
            self._ask_again(waiting)
        if reason == "expired":
            # The store took this client for dead and removed its waiters from the queue.
            self._handoff.forget_order(name)
            self._to_ask.add(self.acquisitions.get(name, {}).values())

    def _shortened(self, event: LeaseShortened) -> None:
        name, waiter, fence, until = event
        hold = self._watchdog.holds.get(waiter)
        waiting = self._acquisition(name, waiter)
        if hold is not None and hold.fence == fence:
            self._watchdog.shorten(hold, until)
        elif waiting is not None:
            waiting.shortened(fence, until)  # its grant is on its way to the task

    def _unconfirmed(self, event: GrantUnconfirmed) -> None:
        name, waiter, form, fence, error = event
        acquisition = self._acquisition(name, waiter)
        if acquisition is None:
            self._give_back(name, waiter, form, fence)
        elif fence > acquisition.stale_fence:
            acquisition.stop(error)  # its task then releases its grant, if it has one

    def _outdated(self, event: AskAgain) -> None:
        # This event has several reasons and may be old: so ask, and act on the answer. The first
        # waiter asks whatever the reason is; all waiters must, if the work is done.
        self._first_asks(event.name)
        waiting = self.acquisitions.get(event.name, {}).values()
        self._to_ask.add([acquisition for acquisition in waiting if acquisition.policy.once])

    def _order_unknown(self, event: OrderUnknown) -> None:
        # Another client's waiter may stand between two of ours now, so no lock is handed off until
        # the order is known again. If it was handed off already, the newcomer is behind it.
        self._handoff.was_overtaken(event.name)
        for acquisition in list(self.acquisitions.get(event.name, {}).values()):
            if acquisition.phase is Phase.ASKING:
                # The answer under way may be older than this push, and name a wrong predecessor.
                self._ask_again(acquisition)

    def _requested(self, event: ReleaseRequested) -> None:
        name = event.name
        waiter, fence = self._handoff.present(name, event.waiter, event.fence)
        hold = self._watchdog.holds.get(waiter)
        waiting = self._acquisition(name, waiter)
        if hold is not None and hold.fence == fence:
            hold.wanted = fence
            if hold.requested is not None:
                hold.requested.set()
        elif waiting is not None:
            waiting.wanted = fence  # its grant is on its way to the task

    def _link_changed(self, event: LinkChanged) -> None:
        error, now = event.error, self._time()
        if error is None:
            self._broken_at = math.inf
        elif self.broken is None:
            self._broken_at = now
        elif now - self._broken_at >= _STILL_BROKEN:
            # Once. The error that broke the link was logged; the one that keeps it from being
            # restored may be another, such as a wrong password.
            self._broken_at = math.inf
            _log.warning("aiolock: the link to the store is still broken: %s", one_line(error))
        self.broken = error
        self._watchdog.events.link("up" if error is None else "down", error)

    def _reconnected(self, _: Reconnected) -> None:
        # Pushes may have been lost, and commands may be sent twice: nothing that was known of the
        # queues is reliable, and the answers under way do not end the doubt. So all ask.
        self._handoff.forget_order()
        self._watchdog.may_come_twice()
        self._to_ask.clear()  # all of them are added again below
        for waiters in self.acquisitions.values():
            for acquisition in waiters.values():
                acquisition.sends_again()
            self._to_ask.add(waiters.values())
        for call in tuple(self.on_reconnect):
            call()

    def _heartbeat(self, _: Heartbeat) -> None:
        some = islice(self._queues.values(), _TOGETHER)
        queue = min(some, key=lambda queue: queue.ask_at, default=None)
        if queue is not None and queue.first.is_quiet:
            self._ask_again(queue.first)


_PROCESS: Final[dict[type[Event], Callable[[Waiters, Any], None]]] = {
    GrantPushed: Waiters._granted,
    GrantLost: Waiters._lost,
    LeaseShortened: Waiters._shortened,
    AskAgain: Waiters._outdated,
    ReleaseRequested: Waiters._requested,
    OrderUnknown: Waiters._order_unknown,
    GrantUnconfirmed: Waiters._unconfirmed,
    Reconnected: Waiters._reconnected,
    LinkChanged: Waiters._link_changed,
    Heartbeat: Waiters._heartbeat,
}


def _wake(acquisition: Acquisition) -> None:
    """Let its task continue, unless its future is resolved already."""
    acquisition.waits_for.resolve(None)
