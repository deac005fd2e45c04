"""From "asked" to "granted": one acquisition, its place in the queue, and how it gives up.

Nothing here is sent by the caller's own task in a way that its cancellation could undo: an
operation is started by the call (see `Store`), so that all a cancellation ends is the waiting.
Whoever stops waiting, for whatever reason, sends one `release`, which takes back the place in the
queue or the grant that came at that very moment, whichever it is.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from aiolock._engine import deadlock, refusals
from aiolock._engine.acquisition import Attempt, Phase, Question
from aiolock._engine.backstop import LocalQueue
from aiolock._engine.grant import lasts
from aiolock._engine.hold import Hold, LossReason, Owned, Owner
from aiolock._engine.policy import Policy
from aiolock._engine.watchdog import Watchdog
from aiolock._prompt import Prompt
from aiolock.errors import AcquireTimeout, ClientClosed, StoreError
from aiolock.store import (
    CLAIM,
    Answer,
    Busy,
    Done,
    Form,
    Full,
    Granted,
    Party,
    Queued,
    Renewal,
    Rule,
    Waiter,
)

_TOO_LATE: Final = 5
"""Grants in a row that came after they had ended, until we call the store too slow for the ttl."""

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 1.0
"""Seconds until a question is asked again that the store did not answer, or refused."""

_PATIENCE: Final = 10.0
"""Seconds, at least, of nothing but that until it is an error: as long as a store tries what it is
asked first."""

_WHO_HOLDS: Final = 0.25
"""Seconds to wait for the name of the holder, for the text of an error."""


_LOST: Final = {"expired": LossReason.EXPIRED, "broken": LossReason.BROKEN}
"""What the words of a store mean; another is a later version's."""

_PLACED: Final = (Granted, Queued)
_OVER: Final = (Phase.STOPPED, Phase.GIVEN_UP)


class _TimedOut(Exception):
    """The caller's timeout ended the waiting."""


class AlreadyDone(Exception):
    """What was to be done once is done."""


class Acquirer:
    """The open acquisitions of one client; what the store pushes arrives here (see `Inbox`)."""

    def __init__(self, watchdog: Watchdog, client: str) -> None:
        self._store = self._runs = watchdog.runs
        self._watchdog = watchdog
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._time = watchdog.time
        self.on_reconnect: set[Callable[[], object]] = set()
        """Called when pushes and replies may have been missed."""
        self._numbers = itertools.count(1)
        self._attempts: dict[str, dict[Waiter, Attempt]] = {}
        """By key, and then by waiter."""
        self._queues: dict[str, LocalQueue] = {}
        self._displaced: dict[str, float] = {}

    async def acquire(
        self, policy: Policy, owner: Owner, *, timeout: float | None, wait: bool, raises: bool
    ) -> Hold | None:
        """Take the lock, or wait for it.

        When ``timeout`` has passed or it is not free: None, or with ``raises`` an `AcquireTimeout`
        that says who holds it. The caller has called `check`.
        """
        held = self._held(policy, owner)
        if held is not None:
            return held
        attempt = self._begin(policy, owner, timeout)
        timer = None
        try:
            if timeout is not None and wait:
                timer = self._loop.call_later(timeout, attempt.stop, _TimedOut())
            if await self._granted(attempt, wait=wait):
                return self._keep(attempt, owner)
        except _TimedOut:
            self._give_up(attempt)
            if attempt.clocks is None:
                assert timeout is not None
                raise refusals.unanswered(policy, timeout) from None
        except BaseException:
            self._give_up(attempt)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if attempt.phase is not Phase.HELD:
                self._leave(attempt)
        if not raises:
            return None
        raise await self._not_acquired(attempt, timeout if wait else None)

    # One acquisition, in the order of its phases

    def _begin(self, policy: Policy, owner: Owner, timeout: float | None) -> Attempt:
        waiter = Waiter(self._client, next(self._numbers))
        attempt = Attempt(waiter, policy, self._time())
        if timeout is None:
            attempt.patient = owner[0]
        self._attempts.setdefault(policy.key, {})[waiter] = attempt
        return attempt

    async def _granted(self, attempt: Attempt, *, wait: bool) -> bool:
        """Ask, wait for the push, and see to it that it is not too late; False: it was not free."""
        for _ in range(_TOO_LATE):
            question = self._ask(attempt, wait=wait)
            attempt.waits_for = question.answer
            await question.answer
            self._hear(attempt, question)
            if attempt.phase is Phase.QUEUED:
                await self._pushed(attempt)
            if attempt.phase is Phase.DECLINED:
                return self._declined(attempt)
            _raise_if_over(attempt)
            if attempt.accepts(self._time()) and (
                not attempt.must_confirm or await self._confirmed(attempt)
            ):
                return True
            await self._give_back(attempt)
        raise refusals.too_slow(attempt.policy, _TOO_LATE)

    def _ask(self, attempt: Attempt, *, wait: bool) -> Question:
        policy = attempt.policy
        sent = self._time()  # before it is sent
        answer = self._store.acquire(
            policy.key,
            attempt.waiter,
            policy.form,
            policy.lease,
            ticket=attempt.ticket,
            wait=wait,
            max_waiters=policy.max_waiters or 0,
        )
        question = Question(sent, answer)
        attempt.asks(question)
        return question

    def _hear(self, attempt: Attempt, question: Question) -> bool:
        """Take in an answer, for its task or for a callback; False where it came too late."""
        answer = question.answer.result()
        newcomer = attempt.ticket == 0
        if not attempt.answers(question, answer):
            return False
        if isinstance(answer, _PLACED) and answer.displaced:
            self._was_displaced(attempt)
        if isinstance(answer, Queued):
            key = attempt.policy.key
            if key not in self._queues:
                self._queues[key] = LocalQueue(self._ask_again, self._time)
            self._queues[key].queued(attempt, answer)
            if question.outdated:
                self._ask_again(attempt)
            elif newcomer and (answer.before is not None or self._runs):
                self._runs.queued(attempt, answer, self._attempts[key])
        return True

    async def _pushed(self, attempt: Attempt) -> None:
        """Wait in the queue: for the push, or for whatever else ends that."""
        if attempt.stopped is not None:
            raise attempt.stopped
        if attempt.patient is not None and attempt.patient is self._watchdog.current_task():
            attempt.blocked = attempt.patient  # else nobody knows what the owner does meanwhile
        # Only where something is held in this process can it be what is waited for.
        owned = self._watchdog.owned
        warning = self._look_for_deadlock(attempt, owned) if attempt.blocked and owned else None
        attempt.waits_for = Prompt(loop=self._loop)
        try:
            await attempt.waits_for
        finally:
            if warning is not None:
                warning.cancel()

    def _declined(self, attempt: Attempt) -> bool:
        """False where it is not free; else there is more to say of it."""
        if attempt.crossed:
            # The question may come once more, and then take what is free.
            self._release(attempt)
        if isinstance(attempt.declined, Done):
            raise AlreadyDone
        if isinstance(attempt.declined, Full):
            raise refusals.full(attempt.policy, attempt.declined)
        return False

    async def _confirmed(self, attempt: Attempt) -> bool:
        """Whether its grant could be confirmed in time, for the whole ttl."""
        policy, grant = attempt.policy, attempt.confirms()
        sent = self._time()
        renewal = Renewal(policy.key, attempt.waiter, policy.form, grant.fence, policy.lease)
        answer = attempt.waits_for = self._store.renew([renewal])
        try:
            (still,) = await answer
        except StoreError:
            still = False
        _raise_if_over(attempt)
        if still:
            attempt.confirmed(sent + lasts(policy.lease))
        return still and attempt.accepts(self._time())

    async def _give_back(self, attempt: Attempt) -> None:
        """Let go of a grant that may have ended before we knew, for we were stopped or blocked.

        It is released, lest the others wait for its end, and we ask again for our old place: once
        the store has answered, for it must not find the old grant and take it for the new one.
        """
        fence = attempt.gives_back()
        self._runs.returns(attempt)
        policy = attempt.policy
        # Where that fails we give up, and all of it is released.
        released = self._store.release(
            policy.key, attempt.waiter, policy.form, fence, entered=False
        )
        released.add_done_callback(_heard)
        attempt.waits_for = released
        if attempt.stopped is None:  # else it has no time left to wait for the answer
            await released
        if attempt.stopped is not None:
            raise attempt.stopped
        attempt.returned()

    def _keep(self, attempt: Attempt, owner: Owner) -> Hold:
        """What it was granted, from now on renewed. Where this raises it is given up."""
        self._leave(attempt)
        policy, grant = attempt.policy, attempt.grant
        assert grant is not None
        hold = Hold(
            policy,
            owner,
            attempt.waiter,
            grant,
            ends=None if policy.max_hold is None else self._time() + policy.max_hold,
            crossed=attempt.crossed,
        )
        hold.wanted = attempt.wanted == grant.fence
        self._watchdog.keep(hold, grant.lease)
        attempt.kept()
        return hold

    def _leave(self, attempt: Attempt) -> None:
        """The waiting is over, one way or the other. Idempotent."""
        attempt.withdraws()
        if attempt.retry is not None:
            attempt.retry.cancel()
        if self._runs:
            self._runs.leaves(attempt)
        key = attempt.policy.key
        queue = self._queues.get(key)
        if queue is not None and queue.leave(attempt):
            del self._queues[key]
        waiters = self._attempts.get(key)
        if waiters is not None and waiters.pop(attempt.waiter, None) is not None and not waiters:
            del self._attempts[key]

    def _give_up(self, attempt: Attempt) -> None:
        """Release whatever the store has of it: a place, or a grant that comes at this moment."""
        if attempt.gives_up():
            self._release(attempt)

    def _release(self, attempt: Attempt) -> None:
        policy = attempt.policy
        _ = self._watchdog.releases.release(policy.key, attempt.waiter, policy.form, policy.lease)

    # What an error says

    async def _not_acquired(self, attempt: Attempt, timeout: float | None) -> AcquireTimeout:
        """The error that says for how long it was waited for (None: it was only tried), and who
        holds it.

        The store is asked for that together with the release, so it is no further round trip.
        """
        policy, holders = attempt.policy, tuple[Party, ...]()
        if timeout is None:
            holder = attempt.declined.holder if isinstance(attempt.declined, Busy) else None
            return refusals.not_free(policy, (holder,) if holder else ())
        if not policy.passes:
            asked = self._store.status(policy.key, waiters=False)
            asked.add_done_callback(_heard)
            try:
                await asyncio.wait([asked], timeout=_WHO_HOLDS)
            finally:
                asked.cancel()  # unless it is answered
            if _heard(asked):
                holders = asked.result().holders
        return refusals.not_in_time(policy, timeout, self._time() - attempt.began, holders)

    def _held(self, policy: Policy, owner: Owner) -> Hold | None:
        """What the owner holds already, where it may have it once more."""
        if policy.rule is not Rule.ALWAYS:
            return None  # permits add up
        held = self._watchdog.held_by(owner)
        if held is None:
            return None
        if (held.shared or held.policy.shared) and not policy.shared:
            raise refusals.reads_already(policy)
        if not policy.reentrant:
            raise refusals.holds_already(policy)
        return held

    # While it stands in the queue

    def _look_for_deadlock(self, attempt: Attempt, owned: Owned) -> asyncio.TimerHandle | None:
        """`WouldDeadlock` where it is certain; a warning that is due later where it may be one."""
        assert attempt.blocked is not None
        if len(owned) > 1 and attempt.blocked in owned:  # and another task
            deadlock.check(attempt, attempt.blocked, owned, self._attempts)
        parent = deadlock.parent()
        if parent is None or attempt.policy.key not in owned.get(parent, {}):
            return None
        warn = partial(deadlock.warn_of_parent, attempt, attempt.blocked, parent)
        return self._loop.call_later(deadlock.SUSPICIOUS, warn)

    def _ask_again(self, attempt: Attempt) -> None:
        """Something happened that the store knows more of: ask now, or after the answer."""
        if attempt.has_news():
            if attempt.retry is not None:
                attempt.retry.cancel()
                attempt.retry = None
            question = self._ask(attempt, wait=True)
            question.answer.add_done_callback(partial(self._answered, attempt, question))

    def _answered(
        self, attempt: Attempt, question: Question, answer: asyncio.Future[Answer]
    ) -> None:
        """What came back when a waiter in the queue had asked again."""
        if answer.cancelled():
            return  # nobody waits for it any more
        if isinstance(failure := answer.exception(), Exception):
            if attempt.fails(question):
                self._ask_later(attempt, failure)
            return
        if self._hear(attempt, question) and attempt.phase is not Phase.QUEUED:
            _wake(attempt)

    def _ask_later(self, attempt: Attempt, failure: Exception) -> None:
        """It stands in the queue, so an answer that did not come, or a refusal, is no news yet.

        It is one after as long as a holder would believe in its lease without one, or a newcomer
        would have waited for its first.
        """
        now = self._time()
        if attempt.failing_since is None:
            attempt.failing_since = now
        failing = now - attempt.failing_since
        if failing >= max(_PATIENCE, attempt.policy.lease / 1000):
            attempt.stop(failure)
        elif attempt.retry is None:
            pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, failing))
            attempt.retry = self._loop.call_later(pause, self._ask_again, attempt)

    def _was_displaced(self, found: Attempt) -> None:
        """This waiter's place was gone; whatever took it may have taken those of the others.

        They are asked for in one go, for those who find that out come many at a time.
        """
        key = found.policy.key
        self._runs.nobody_knows(key)
        if key not in self._displaced:
            self._loop.call_soon(self._ask_for_displaced, key)
        self._displaced[key] = max(self._displaced.get(key, 0.0), found.last_asked)

    def _ask_for_displaced(self, key: str) -> None:
        found = self._displaced.pop(key, 0.0)
        for attempt in list(self._attempts.get(key, {}).values()):
            if attempt.last_asked < found:
                self._ask_again(attempt)

    # Inbox: what the store pushes

    def _attempt(self, key: str, waiter: Waiter) -> Attempt | None:
        attempts = self._attempts.get(key)
        return None if attempts is None else attempts.get(waiter)

    def granted(  # noqa: PLR0917  # see `Inbox`
        self, name: str, waiter: Waiter, form: Form, fence: int, lease: int, now: int
    ) -> None:
        attempt = self._attempt(name, waiter)
        if attempt is not None:
            if attempt.pushed(fence, lease, now, self._time()):
                _wake(attempt)
            return
        hold = self._watchdog.holds.get(waiter)
        known = hold is not None and hold.fence == fence
        if not known and not self._runs.was_passed(name, waiter, fence):
            # It gave up, and the store had not heard of that: what it got is somebody else's.
            _ = self._watchdog.releases.release(name, waiter, form, CLAIM, fence=fence)

    def lost(self, name: str, waiter: Waiter, fence: int, reason: str) -> None:
        waiter, fence = self._runs.present(name, waiter, fence)
        hold = self._watchdog.holds.get(waiter)
        waiting = self._attempt(name, waiter)
        if hold is not None and hold.fence == fence:
            # A question that came after the break may have put it into the queue again.
            hold.crossed = hold.crossed or reason == "broken"
            self._watchdog.lose(hold, _LOST.get(reason, reason))
        elif waiting is not None:
            # Its grant is on its way, to the task or, by the other connection, to us. Then it has
            # no place in the queue any more, and nobody else would tell it.
            waiting.taken_away(fence)
            self._ask_again(waiting)
        if reason == "expired":
            # We were taken for stuck, so our waiters have left the queue.
            self._runs.nobody_knows(name)
            for other in list(self._attempts.get(name, {}).values()):
                self._ask_again(other)

    def done(self, name: str) -> None:
        # The word may be old, and what it speaks of forgotten: the answer is not.
        if name in self._queues:
            self._ask_again(self._queues[name].first)
        for attempt in list(self._attempts.get(name, {}).values()):
            if attempt.policy.once:
                self._ask_again(attempt)

    def void(self, name: str, waiter: Waiter) -> None:  # noqa: ARG002  # see `Inbox`
        # Whoever that is by now, it may have been handed the lock: then it is one behind it.
        self._runs.void(name)
        for attempt in list(self._attempts.get(name, {}).values()):
            if attempt.phase is Phase.ASKING:
                self._ask_again(attempt)  # its answer may be older

    def requested(self, name: str, waiter: Waiter, fence: int) -> None:
        waiter, fence = self._runs.present(name, waiter, fence)
        hold = self._watchdog.holds.get(waiter)
        waiting = self._attempt(name, waiter)
        if hold is not None and hold.fence == fence:
            hold.wanted = True
            if hold.requested is not None:
                hold.requested.set()
        elif waiting is not None:
            waiting.wanted = fence  # its grant is on its way to the task

    def reconnected(self) -> None:
        self._runs.nobody_knows()
        for waiters in list(self._attempts.values()):
            for attempt in list(waiters.values()):
                attempt.sends_again()
                self._ask_again(attempt)
        for call in tuple(self.on_reconnect):
            call()

    # The end

    def close(self) -> None:
        """Give up whatever waits, with `ClientClosed`."""
        self._runs.close()
        for attempts in list(self._attempts.values()):
            for attempt in list(attempts.values()):
                attempt.stop(ClientClosed("this client was closed while it waited for a lock"))
                self._give_up(attempt)


def _raise_if_over(attempt: Attempt) -> None:
    """What ended it, where that was not the task that calls this."""
    if attempt.phase in _OVER:
        assert attempt.stopped is not None
        raise attempt.stopped


def _wake(attempt: Attempt) -> None:
    """Let its task look at the phase, unless it will anyway."""
    future = attempt.waits_for
    if future is None or future.done():
        return
    if isinstance(future, Prompt):
        future.resolve(None)
    else:
        future.set_result(None)


def _heard(answered: asyncio.Future[Any]) -> bool:
    """Whether there is an answer; its error, if nobody else will, is taken as seen."""
    # A task that was cancelled just now has not ended yet.
    return answered.done() and not answered.cancelled() and answered.exception() is None
