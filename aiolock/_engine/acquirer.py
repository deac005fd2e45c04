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
from typing import Any, Final, cast

from aiolock._engine import deadlock, refusals
from aiolock._engine.acquisition import Attempt
from aiolock._engine.backstop import LocalQueue
from aiolock._engine.grant import Grant, lasts
from aiolock._engine.hold import Hold, LossReason, Owned, Owner
from aiolock._engine.policy import Policy
from aiolock._engine.watchdog import Watchdog
from aiolock.errors import (
    AcquireTimeout,
    ClientClosed,
    StoreError,
)
from aiolock.store import (
    CLAIM,
    Answer,
    Busy,
    Differs,
    Done,
    Form,
    Full,
    Granted,
    Party,
    Queued,
    Renewal,
    Rule,
    Store,
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

_CLOSED_MEANWHILE: Final = "this client was closed while it waited for a lock"


class _TimedOut(Exception):
    """The caller's timeout ended the waiting."""


class AlreadyDone(Exception):
    """What was to be done once is done."""


class Acquirer:
    """The open acquisitions of one client; what the store pushes arrives here (see `Inbox`)."""

    def __init__(self, store: Store, watchdog: Watchdog, client: str) -> None:
        self._store = store
        self._watchdog = watchdog
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._time = watchdog.time
        self._closed = False
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
        attempt = self._new_attempt(policy, owner, timeout)
        timer = None
        try:
            if timeout is not None and wait:
                timer = self._loop.call_later(timeout, attempt.interrupt, _TimedOut())
            grant = await self._granted(attempt, wait=wait)
            if grant is not None:
                return self._kept(attempt, owner, grant)
        except _TimedOut:
            self._give_up(attempt)
            if not attempt.answered:
                assert timeout is not None
                raise refusals.unanswered(policy, timeout) from None
        except BaseException:
            self._give_up(attempt)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if not attempt.left:
                self._leave(attempt)
        if not raises:
            return None
        raise await self._not_acquired(attempt, timeout if wait else None)

    def _new_attempt(self, policy: Policy, owner: Owner, timeout: float | None) -> Attempt:
        waiter = Waiter(self._client, next(self._numbers))
        attempt = Attempt(waiter, policy, policy.lease, self._time())
        if timeout is None:
            attempt.patient = owner[0]
        self._attempts.setdefault(policy.key, {})[waiter] = attempt
        return attempt

    def _kept(self, attempt: Attempt, owner: Owner, grant: Grant) -> Hold:
        """What the waiter was granted, from now on renewed. Where this raises it is given back."""
        self._leave(attempt)
        if self._closed:
            raise ClientClosed(_CLOSED_MEANWHILE)
        policy = attempt.policy
        fence, lease, deadline = grant
        # A claim is confirmed once, even where nothing is renewed.
        hold = Hold(
            policy,
            owner,
            attempt.waiter,
            ttl=attempt.ttl,
            fence=fence,
            lease=lease,
            deadline=deadline,
            ends=None if policy.max_hold is None else self._time() + policy.max_hold,
            crossed=attempt.crossed,
            claim=attempt.claims(grant),
        )
        hold.wanted = attempt.wanted == fence
        self._watchdog.keep(hold, lease)
        return hold

    async def _not_acquired(self, attempt: Attempt, timeout: float | None) -> AcquireTimeout:
        """The error that says for how long it was waited for (None: it was only tried), and who
        holds it.

        The store is asked for that together with the release, so it is no further round trip.
        """
        policy, holders = attempt.policy, tuple[Party, ...]()
        if timeout is None:
            return refusals.not_free(policy, (attempt.holder,) if attempt.holder else ())
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
        held = (
            self._watchdog.held_by(owner) if policy.rule is Rule.ALWAYS else None
        )  # permits add up
        if held is None:
            return None
        if (held.shared or held.policy.shared) and not policy.shared:
            raise refusals.reads_already(policy)
        if not policy.reentrant:
            raise refusals.holds_already(policy)
        return held

    async def _granted(self, attempt: Attempt, *, wait: bool) -> Grant | None:
        """A grant that has not ended before we knew, or None where we do not wait for one."""
        policy = attempt.policy
        for _ in range(_TOO_LATE):
            if attempt.interrupted is not None:
                raise attempt.interrupted
            attempt.waits_for = attempt.pushed = None
            sent = attempt.last_asked = self._time()
            answer = await self._ask(attempt, wait=wait)
            if isinstance(answer, Queued):
                grant: Grant | None = await self._pushed(attempt, sent, answer)
            else:
                grant = self._not_queued(attempt, sent, answer)
            if grant is None or policy.passes:
                return grant
            if self._time() < grant[2] and grant[0] > attempt.void:
                if policy.every is None or not attempt.claims(grant):
                    return grant
                confirmed = await self._confirmed(attempt, grant)
                if confirmed is not None:
                    return confirmed
            await self._give_back(attempt, grant[0])
        raise refusals.too_slow(policy, _TOO_LATE)

    def _not_queued(
        self,
        attempt: Attempt,
        sent: float,
        answer: Granted | Busy | Full | Done | Differs,
    ) -> Grant | None:
        """What comes of an answer that leaves nothing to wait for."""
        if isinstance(answer, Granted):
            return self._by_answer(attempt, sent, answer)
        if isinstance(answer, Differs):
            raise refusals.mismatch(attempt.policy, answer)
        if attempt.crossed:
            self._give_up(attempt)  # the question may come once more, and then take what is free
        attempt.given_up = True  # else there is nothing to give up
        if isinstance(answer, Busy):
            attempt.holder = answer.holder
            return None
        raise AlreadyDone if isinstance(answer, Done) else refusals.full(attempt.policy, answer)

    def _by_answer(self, attempt: Attempt, sent: float, answer: Granted) -> Grant:
        """The grant that an answer tells of, which may have been made before, by a push."""
        attempt.known = True
        if answer.displaced:
            self._was_displaced(attempt)
        if answer.claim:
            attempt.claim = answer.fence
        return answer.fence, answer.lease, sent + lasts(answer.lease)

    async def _confirmed(self, attempt: Attempt, grant: Grant) -> Grant | None:
        """The same grant, for the whole ttl; None where that cannot be had in time.

        A period is used up by a grant that was confirmed, and by no other. So a run of a periodic
        job does not begin on the claim alone, as other bodies do: were its process stopped before
        the confirmation, nobody could tell whether it has begun.
        """
        fence = grant[0]
        sent = self._time()
        renewal = Renewal(
            attempt.policy.key, attempt.waiter, attempt.policy.form, fence, attempt.ttl
        )
        attempt.waits_for, attempt.asked = None, self._store.renew([renewal])
        try:
            (still,) = await attempt.asked
        except StoreError:
            still = False
        deadline = sent + lasts(attempt.ttl)
        if still and self._time() < deadline and fence > attempt.void:
            attempt.claim = 0
            return fence, attempt.ttl, deadline
        return None

    async def _give_back(self, attempt: Attempt, fence: int) -> None:
        """Let go of a grant that may have ended before we knew, for we were stopped or blocked.

        It is given back, lest the others wait for its end, and we ask again for our old place:
        once the store has answered, for it must not find the old grant and take it for the new.
        """
        attempt.void = max(attempt.void, fence)
        if attempt.asked is not None:
            attempt.asked.cancel()  # a question after which the push came
        # Where that fails we give up, and all of it is released.
        key, form = attempt.policy.key, attempt.policy.form
        released = self._store.release(key, attempt.waiter, form, fence, entered=False)
        released.add_done_callback(_heard)
        attempt.waits_for, attempt.asked = None, released
        if attempt.interrupted is not None:  # meanwhile: so not until the store has answered
            raise attempt.interrupted
        await released

    def _ask(self, attempt: Attempt, *, wait: bool) -> asyncio.Future[Answer]:
        policy = attempt.policy
        attempt.asked = asked = self._store.acquire(
            policy.key,
            attempt.waiter,
            policy.form,
            attempt.ttl,
            ticket=attempt.ticket,
            wait=wait,
            max_waiters=policy.max_waiters or 0,
        )
        return asked

    async def _pushed(self, attempt: Attempt, sent: float, answer: Queued) -> Grant:
        if answer.displaced:
            self._was_displaced(attempt)
        key = attempt.policy.key
        if key not in self._queues:
            self._queues[key] = LocalQueue(self._ask_again, self._time)
        self._placed(attempt, sent, answer)
        if attempt.pushed is not None:  # the push overtook the reply, on the other connection
            return attempt.pushed
        if attempt.interrupted is not None:
            raise attempt.interrupted
        if attempt.patient is not None and attempt.patient is self._watchdog.current_task():
            attempt.task = attempt.patient  # else nobody knows what the owner does meanwhile
        # Only where something is held in this process can it be what is waited for.
        owned = self._watchdog.owned
        warning = self._look_for_deadlock(attempt, owned) if attempt.task and owned else None
        attempt.waits_for = self._loop.create_future()
        if attempt.outdated:
            self._ask_again(attempt)
        try:
            return await attempt.waits_for
        finally:
            if warning is not None:
                warning.cancel()

    def _look_for_deadlock(self, attempt: Attempt, owned: Owned) -> asyncio.TimerHandle | None:
        """`WouldDeadlock` where it is certain; a warning that is due later where it may be one."""
        assert attempt.task is not None
        if len(owned) > 1 and attempt.task in owned:  # and another task
            deadlock.check(attempt, attempt.task, owned, self._attempts)
        parent = deadlock.parent()
        if parent is None or attempt.policy.key not in owned.get(parent, {}):
            return None
        warn = partial(deadlock.warn_of_parent, attempt, attempt.task, parent)
        return self._loop.call_later(deadlock.SUSPICIOUS, warn)

    def _placed(self, attempt: Attempt, sent: float, answer: Queued) -> None:
        attempt.answered = attempt.known = True
        attempt.failing_since = None
        attempt.ticket = answer.ticket
        attempt.sent, attempt.store_time = sent, answer.now
        self._queues[attempt.policy.key].queued(attempt, answer)

    def _ask_again(self, attempt: Attempt) -> None:
        if attempt.waits_for is None or attempt.asking:
            attempt.outdated = True  # there is a question under way: after its answer
        elif not attempt.waits_for.done():
            attempt.outdated, attempt.asking = False, True
            sent = attempt.last_asked = self._time()
            self._ask(attempt, wait=True).add_done_callback(partial(self._answered, attempt, sent))

    def _answered(self, attempt: Attempt, sent: float, answered: asyncio.Future[Answer]) -> None:
        """What came back when a waiter in the queue had asked again."""
        attempt.asking = False
        waits_for = attempt.waits_for
        if not _heard(answered):
            if not answered.cancelled() and waits_for is not None and not waits_for.done():
                self._ask_later(attempt, waits_for, cast(Exception, answered.exception()))
        elif waits_for is None or waits_for.done():
            attempt.crossed = True  # a push was quicker
        elif isinstance(answer := answered.result(), Granted):
            waits_for.set_result(self._by_answer(attempt, sent, answer))
        elif isinstance(answer, Queued):
            if answer.displaced:
                self._was_displaced(attempt)
            self._placed(attempt, sent, answer)
            if attempt.outdated:
                self._ask_again(attempt)
        elif isinstance(answer, Done):
            attempt.given_up = True
            waits_for.set_exception(AlreadyDone())
        elif isinstance(answer, Differs):
            waits_for.set_exception(refusals.mismatch(attempt.policy, answer))

    def _ask_later(
        self, attempt: Attempt, waits_for: asyncio.Future[Grant], error: Exception
    ) -> None:
        """It stands in the queue, so an answer that did not come, or a refusal, is no news yet.

        It is one after as long as a holder would believe in its lease without one, or a newcomer
        would have waited for its first.
        """
        now = self._time()
        if attempt.failing_since is None:
            attempt.failing_since = now
        failing = now - attempt.failing_since
        if failing >= max(_PATIENCE, attempt.ttl / 1000):
            waits_for.set_exception(error)
        elif not attempt.retrying:
            attempt.retrying = True
            pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, failing))
            self._loop.call_later(pause, self._retry, attempt)

    def _retry(self, attempt: Attempt) -> None:
        attempt.retrying = False
        self._ask_again(attempt)

    def _was_displaced(self, found: Attempt) -> None:
        """This waiter's place was gone; whatever took it may have taken those of the others.

        They are asked for in one go, for those who find that out come many at a time.
        """
        key = found.policy.key
        if key not in self._displaced:
            self._loop.call_soon(self._ask_for_displaced, key)
        self._displaced[key] = max(self._displaced.get(key, 0.0), found.last_asked)

    def _ask_for_displaced(self, key: str) -> None:
        found = self._displaced.pop(key, 0.0)
        for attempt in list(self._attempts.get(key, {}).values()):
            if attempt.last_asked < found:
                self._ask_again(attempt)

    def _leave(self, attempt: Attempt) -> None:
        """The waiting is over, one way or the other. Idempotent.

        If the lock was granted by a push meanwhile, and that grant ends before the store comes to
        the question, the waiter will stand in the queue once more. So the release that ends it
        must not speak of that grant alone.
        """
        if attempt.left:
            return
        key = attempt.policy.key
        if attempt.asking and attempt.asked is not None:
            attempt.crossed = True
            attempt.asked.cancel()  # or it might be sent again after the release
        line = self._queues.get(key)
        if line is not None and line.leave(attempt):
            del self._queues[key]
        attempt.left = True  # here: where something above raises, it is tried again
        # It may not be there, where the client is open again since.
        waiters = self._attempts.get(key)
        if waiters is not None and waiters.pop(attempt.waiter, None) is not None and not waiters:
            del self._attempts[key]

    def _give_up(self, attempt: Attempt) -> None:
        if attempt.given_up:
            return
        attempt.given_up = True
        asked = attempt.asked
        if asked is not None:
            if not attempt.known and _was_refused(asked):
                return  # the store knows nothing of it
            asked.cancel()  # or it might be sent again after the release
        key, form = attempt.policy.key, attempt.policy.form
        _ = self._watchdog.releases.release(key, attempt.waiter, form, attempt.ttl)

    # Inbox: what the store pushes

    def _attempt(self, key: str, waiter: Waiter) -> Attempt | None:
        attempts = self._attempts.get(key)
        return None if attempts is None else attempts.get(waiter)

    def granted(  # noqa: PLR0917  # see `Inbox`
        self, name: str, waiter: Waiter, form: Form, fence: int, lease: int, now: int
    ) -> None:
        granted = self._attempt(name, waiter)
        if granted is None:
            hold = self._watchdog.holds.get(waiter)
            if hold is None or hold.fence != fence:
                # It gave up, and the store had not heard of that: what it got is somebody else's.
                _ = self._watchdog.releases.release(name, waiter, form, CLAIM, fence=fence)
            return
        if fence <= granted.void:
            return  # it was given back, or taken away
        granted.claim = fence
        grant = (fence, lease, granted.deadline(lease, now, self._time()))
        if granted.waits_for is None:
            granted.pushed = grant
        elif not granted.waits_for.done():
            granted.waits_for.set_result(grant)

    def lost(self, name: str, waiter: Waiter, fence: int, reason: str) -> None:
        hold = self._watchdog.holds.get(waiter)
        waiting = self._attempt(name, waiter)
        if hold is not None and hold.fence == fence:
            self._watchdog.lose(hold, _LOST.get(reason, reason))
        elif waiting is not None:
            # Its grant is on its way, to the task or, by the other connection, to us. Then it has
            # no place in the queue any more, and nobody else would tell it.
            waiting.void = max(waiting.void, fence)
            self._ask_again(waiting)
        if reason == "expired":
            # We were taken for stuck, so our waiters have left the queue.
            for other in list(self._attempts.get(name, {}).values()):
                self._ask_again(other)

    def done(self, name: str) -> None:
        # The word may be old, and what it speaks of forgotten: the answer is not.
        if name in self._queues:
            self._ask_again(self._queues[name].first)
        for attempt in list(self._attempts.get(name, {}).values()):
            if attempt.policy.once:
                self._ask_again(attempt)

    def requested(self, name: str, waiter: Waiter, fence: int) -> None:
        hold = self._watchdog.holds.get(waiter)
        waiting = self._attempt(name, waiter)
        if hold is not None and hold.fence == fence:
            hold.wanted = True
            if hold.requested is not None:
                hold.requested.set()
        elif waiting is not None:
            waiting.wanted = fence  # its grant is on its way to the task

    def reconnected(self) -> None:
        for waiters in list(self._attempts.values()):
            for attempt in list(waiters.values()):
                if attempt.asked is not None and not attempt.asked.done():
                    attempt.crossed = True  # its question is sent again, whatever comes of it
                self._ask_again(attempt)
        for call in tuple(self.on_reconnect):
            call()

    # The end

    def close(self) -> None:
        """Give up whatever waits, with `ClientClosed`."""
        self._closed = True
        for attempts in list(self._attempts.values()):
            for attempt in list(attempts.values()):
                attempt.interrupt(ClientClosed(_CLOSED_MEANWHILE))
                self._give_up(attempt)


def _was_refused(asked: asyncio.Future[Any]) -> bool:
    """Whether the store has certainly not carried out what it was asked."""
    if not asked.done() or asked.cancelled():
        return False
    error = asked.exception()
    return isinstance(error, StoreError) and error.refused


def _heard(answered: asyncio.Future[Any]) -> bool:
    """Whether there is an answer; its error, if nobody else will, is taken as seen."""
    # A task that was cancelled just now has not ended yet.
    return answered.done() and not answered.cancelled() and answered.exception() is None
