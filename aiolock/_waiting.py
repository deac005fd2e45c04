"""From "asked" to "granted": one acquisition, its place in the queue, and how it gives up.

Nothing here is sent by the caller's own task in a way that its cancellation could undo: an
operation is started by the call (see `Store`), so that all a cancellation ends is the waiting.
Whoever stops waiting, for whatever reason, sends one `release`, which takes back the place in the
queue or the grant that came at that very moment, whichever it is.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from functools import lru_cache, partial
from typing import Any, Final, cast

from aiolock import _deadlock
from aiolock import _refusals as refusals
from aiolock._backstop import Line
from aiolock._entered import Entered
from aiolock._hold import Hold, Owner, lasts
from aiolock._keeper import Keeper
from aiolock._policy import Policy
from aiolock._waiter import Turn, Waiter
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
    Full,
    Granted,
    Party,
    Queued,
    Renewal,
    Status,
    Store,
    WaiterId,
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


_CLOSED_MEANWHILE: Final = "this client was closed while it waited for a lock"


class _TimedOut(Exception):
    """The caller's timeout ended the waiting."""


class AlreadyDone(Exception):
    """What was to be done once is done."""


class State(Enum):
    """What becomes of a client. The value is why it cannot be used then."""

    NEW = "is not open yet: use `async with`, or await its open()"
    OPENING = "is being opened: await its open()"
    OPEN = ""
    CLOSING = "is being closed"
    CLOSED = "was closed: open it again, with `async with` or its open()"


class WaitingRoom:
    """The open acquisitions of one client; what the store pushes arrives here (see `Inbox`)."""

    keeper: Keeper
    _loop: asyncio.AbstractEventLoop
    _time: Callable[[], float]

    def __init__(self, store: Store) -> None:
        self.store = store
        self.state = State.NEW
        self.entered = Entered()
        self.on_reconnect: set[Callable[[], object]] = set()
        """Called when pushes and replies may have been missed."""
        self._begin()

    def _begin(self) -> None:
        """What belongs to one opening: nothing that was sent before must be taken for its own."""
        self.client = secrets.token_urlsafe(12)  # 96 bits, and no ":" in it
        self._counted = True
        self._seq = itertools.count(1)
        self._stem = lru_cache(maxsize=256)(self._waiter_stem)
        self._waiters: dict[str, dict[str, Waiter]] = {}
        """By key, and then by the waiter's id."""
        self._lines: dict[str, Line] = {}
        self._displaced: dict[str, float] = {}
        self.on_reconnect.clear()

    def begin(self) -> None:
        """Belong to the event loop that runs; `open` comes next."""
        if self.state is State.CLOSED:
            self._begin()
        self.state = State.OPENING
        self._loop = asyncio.get_running_loop()
        self.keeper = Keeper(self.store)
        self._time = self.keeper.time

    async def open(self) -> None:
        """Connect; `StoreError` when the store cannot be reached or used."""
        try:
            self._counted = await self.store.open(self.client, self)
        except BaseException:
            self.state = State.CLOSED  # a lifespan may try again
            raise
        self._stem.cache_clear()
        self.state = State.OPEN

    @property
    def is_open(self) -> bool:
        """Whether it can be used, from where it was opened."""
        return self.state is State.OPEN

    @property
    def loop_is_gone(self) -> bool:
        """The event loop in which it was opened has been closed, and with it all that was open."""
        return self._loop.is_closed()

    def check(self) -> None:
        """`ClientClosed` unless the client is open, in this process and this event loop."""
        if self.state is not State.OPEN:
            raise ClientClosed(f"this client {self.state.value}")
        self.keeper.check_here()

    async def status(self, policy: Policy, *, waiters: bool = True) -> Status:
        """What the store knows of it, under the name that its user gave it."""
        self.check()
        status = await self.store.status(policy.key, waiters=waiters)
        return replace(status, name=policy.name)

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
        waiter = self._new_waiter(policy, owner, timeout)
        timer = None
        try:
            if timeout is not None and wait:
                timer = self._loop.call_later(timeout, waiter.interrupt, _TimedOut())
            turn = await self._turn(waiter, wait=wait)
            if turn is not None:
                return self._kept(waiter, owner, turn)
        except _TimedOut:
            self._give_up(waiter)
            if not waiter.answered:
                assert timeout is not None
                raise refusals.unanswered(policy, timeout) from None
        except BaseException:
            self._give_up(waiter)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if not waiter.left:
                self._leave(waiter)
        if not raises:
            return None
        raise await self._not_acquired(waiter, timeout if wait else None)

    def _new_waiter(self, policy: Policy, owner: Owner, timeout: float | None) -> Waiter:
        waiter_id = f"{self._stem(policy.lease, policy.form)}{next(self._seq)}"
        waiter = Waiter(waiter_id, policy, policy.lease, self._time())
        if timeout is None:
            waiter.patient = owner[0]
        self._waiters.setdefault(policy.key, {})[waiter_id] = waiter
        return waiter

    def _kept(self, waiter: Waiter, owner: Owner, turn: Turn) -> Hold:
        """What the waiter was granted, from now on renewed. Where this raises it is given back."""
        self._leave(waiter)
        if self.state is not State.OPEN or waiter.given_up:  # closed since, and open again perhaps
            self.check()
            raise ClientClosed(_CLOSED_MEANWHILE)
        policy = waiter.policy
        fence, lease, deadline = turn
        # A claim is confirmed once, even where nothing is renewed.
        hold = Hold(
            policy,
            owner,
            waiter.id,
            ttl=waiter.ttl,
            fence=fence,
            lease=lease,
            deadline=deadline,
            ends=None if policy.max_hold is None else self._time() + policy.max_hold,
            loose=waiter.loose,
            claim=waiter.claims(turn),
        )
        hold.wanted = waiter.wanted == fence
        self.keeper.keep(hold, lease)
        return hold

    async def _not_acquired(self, waiter: Waiter, timeout: float | None) -> AcquireTimeout:
        """The error that says for how long it was waited for (None: it was only tried), and who
        holds it.

        The store is asked for that together with the release, so it is no further round trip.
        """
        policy, holders = waiter.policy, tuple[Party, ...]()
        if timeout is None:
            return refusals.not_free(policy, (waiter.holder,) if waiter.holder else ())
        if not policy.passes:
            asked = self.store.status(policy.key, waiters=False)
            asked.add_done_callback(_heard)
            try:
                await asyncio.wait([asked], timeout=_WHO_HOLDS)
            finally:
                asked.cancel()  # unless it is answered
            if _heard(asked):
                holders = asked.result().holders
        return refusals.not_in_time(policy, timeout, self._time() - waiter.began, holders)

    def _held(self, policy: Policy, owner: Owner) -> Hold | None:
        """What the owner holds already, where it may have it once more."""
        held = self.keeper.held_by(owner) if not policy.rule else None  # permits add up
        if held is None:
            return None
        if (held.shared or held.policy.shared) and not policy.shared:
            raise refusals.reads_already(policy)
        if not policy.reentrant:
            raise refusals.holds_already(policy)
        return held

    def _waiter_stem(self, ttl: int, form: WaiterId) -> str:
        """A waiter's id but for its number at the end."""
        # Who missed that its group went on must find it when it asks, however late.
        claim = ttl if form.rule.startswith("&") else min(ttl, CLAIM)
        who = form._replace(blind=not self._counted, claim=claim, client=self.client)
        return str(who)[:-1]

    async def _turn(self, waiter: Waiter, *, wait: bool) -> Turn | None:
        """A grant that has not ended before we knew, or None where we do not wait for one."""
        policy = waiter.policy
        for _ in range(_TOO_LATE):
            if waiter.interrupted is not None:
                raise waiter.interrupted
            waiter.turn = waiter.pushed = None
            sent = waiter.last_asked = self._time()
            answer = await self._ask(waiter, wait=wait)
            if isinstance(answer, Queued):
                turn: Turn | None = await self._pushed(waiter, sent, answer)
            else:
                turn = self._not_queued(waiter, sent, answer)
            if turn is None or policy.passes:
                return turn
            if self._time() < turn[2] and turn[0] > waiter.void:
                if policy.every is None or not waiter.claims(turn):
                    return turn
                confirmed = await self._confirmed(waiter, turn)
                if confirmed is not None:
                    return confirmed
            await self._give_back(waiter, turn[0])
        raise refusals.too_slow(policy, _TOO_LATE)

    def _not_queued(
        self,
        waiter: Waiter,
        sent: float,
        answer: Granted | Busy | Full | Done | Differs,
    ) -> Turn | None:
        """What comes of an answer that leaves nothing to wait for."""
        if isinstance(answer, Granted):
            return self._by_answer(waiter, sent, answer)
        if isinstance(answer, Differs):
            raise refusals.mismatch(waiter.policy, answer)
        if waiter.loose:
            self._give_up(waiter)  # the question may come once more, and then take what is free
        waiter.given_up = True  # else there is nothing to give up
        if isinstance(answer, Busy):
            waiter.holder = answer.holder
            return None
        raise AlreadyDone if isinstance(answer, Done) else refusals.full(waiter.policy, answer)

    def _by_answer(self, waiter: Waiter, sent: float, answer: Granted) -> Turn:
        """The grant that an answer tells of, which may have been made before, by a push."""
        waiter.known = True
        if answer.displaced:
            self._was_displaced(waiter)
        if answer.claim:
            waiter.claim = answer.fence
        return answer.fence, answer.lease, sent + lasts(answer.lease)

    async def _confirmed(self, waiter: Waiter, turn: Turn) -> Turn | None:
        """The same grant, for the whole ttl; None where that cannot be had in time.

        A period is used up by a grant that was confirmed, and by no other. So a run of a periodic
        job does not begin on the claim alone, as other bodies do: were its process stopped before
        the confirmation, nobody could tell whether it has begun.
        """
        fence = turn[0]
        sent = self._time()
        renewal = Renewal(waiter.policy.key, waiter.id, fence, waiter.ttl)
        waiter.turn, waiter.asked = None, self.store.renew([renewal])
        try:
            (still,) = await waiter.asked
        except StoreError:
            still = False
        deadline = sent + lasts(waiter.ttl)
        if still and self._time() < deadline and fence > waiter.void:
            waiter.claim = 0
            return fence, waiter.ttl, deadline
        return None

    async def _give_back(self, waiter: Waiter, fence: int) -> None:
        """Let go of a grant that may have ended before we knew, for we were stopped or blocked.

        It is given back, lest the others wait for its end, and we ask again for our old place:
        once the store has answered, for it must not find the old grant and take it for the new.
        """
        waiter.void = max(waiter.void, fence)
        if waiter.asked is not None:
            waiter.asked.cancel()  # a question after which the push came
        # Where that fails we give up, and all of it is released.
        released = self.store.release(waiter.policy.key, waiter.id, fence, entered=False)
        released.add_done_callback(_heard)
        waiter.turn, waiter.asked = None, released
        if waiter.interrupted is not None:  # meanwhile: so not until the store has answered
            raise waiter.interrupted
        await released

    def _ask(self, waiter: Waiter, *, wait: bool) -> asyncio.Future[Answer]:
        policy = waiter.policy
        waiter.asked = asked = self.store.acquire(
            policy.key,
            waiter.id,
            waiter.ttl,
            ticket=waiter.ticket,
            wait=wait,
            max_waiters=policy.max_waiters or 0,
        )
        return asked

    async def _pushed(self, waiter: Waiter, sent: float, answer: Queued) -> Turn:
        if answer.displaced:
            self._was_displaced(waiter)
        key = waiter.policy.key
        if key not in self._lines:
            self._lines[key] = Line(self._ask_again, self._time)
        self._placed(waiter, sent, answer)
        if waiter.pushed is not None:  # the push overtook the reply, on the other connection
            return waiter.pushed
        if waiter.interrupted is not None:
            raise waiter.interrupted
        if waiter.patient is not None and waiter.patient is self.keeper.current_task():
            waiter.task = waiter.patient  # else nobody knows what the owner does meanwhile
        # Only where something is held in this process can it be what is waited for.
        warning = self._look_for_deadlock(waiter) if waiter.task and self.keeper.owned else None
        waiter.turn = self._loop.create_future()
        if waiter.outdated:
            self._ask_again(waiter)
        try:
            return await waiter.turn
        finally:
            if warning is not None:
                warning.cancel()

    def _look_for_deadlock(self, waiter: Waiter) -> asyncio.TimerHandle | None:
        """`WouldDeadlock` where it is certain; a warning that is due later where it may be one."""
        assert waiter.task is not None
        if len(self.keeper.owned) > 1 and waiter.task in self.keeper.owned:  # and another task
            _deadlock.check(waiter, waiter.task, self.keeper.owned, self._waiters)
        parent = _deadlock.parent()
        if parent is None or waiter.policy.key not in self.keeper.owned.get(parent, {}):
            return None
        warn = partial(_deadlock.warn_of_parent, waiter, waiter.task, parent)
        return self._loop.call_later(_deadlock.SUSPICIOUS, warn)

    def _placed(self, waiter: Waiter, sent: float, answer: Queued) -> None:
        waiter.answered = waiter.known = True
        waiter.failing_since = None
        waiter.ticket = answer.ticket
        waiter.sent, waiter.store_time = sent, answer.now
        self._lines[waiter.policy.key].queued(waiter, answer)

    def _ask_again(self, waiter: Waiter) -> None:
        if waiter.turn is None or waiter.asking:
            waiter.outdated = True  # there is a question under way: after its answer
        elif not waiter.turn.done():
            waiter.outdated, waiter.asking = False, True
            sent = waiter.last_asked = self._time()
            self._ask(waiter, wait=True).add_done_callback(partial(self._answered, waiter, sent))

    def _answered(self, waiter: Waiter, sent: float, answered: asyncio.Future[Answer]) -> None:
        """What came back when a waiter in the queue had asked again."""
        waiter.asking = False
        turn = waiter.turn
        if not _heard(answered):
            if not answered.cancelled() and turn is not None and not turn.done():
                self._ask_later(waiter, turn, cast(Exception, answered.exception()))
        elif turn is None or turn.done():
            waiter.loose = True  # a push was quicker
        elif isinstance(answer := answered.result(), Granted):
            turn.set_result(self._by_answer(waiter, sent, answer))
        elif isinstance(answer, Queued):
            if answer.displaced:
                self._was_displaced(waiter)
            self._placed(waiter, sent, answer)
            if waiter.outdated:
                self._ask_again(waiter)
        elif isinstance(answer, Done):
            waiter.given_up = True
            turn.set_exception(AlreadyDone())
        elif isinstance(answer, Differs):
            turn.set_exception(refusals.mismatch(waiter.policy, answer))

    def _ask_later(self, waiter: Waiter, turn: asyncio.Future[Turn], error: Exception) -> None:
        """It stands in the queue, so an answer that did not come, or a refusal, is no news yet.

        It is one after as long as a holder would believe in its lease without one, or a newcomer
        would have waited for its first.
        """
        now = self._time()
        if waiter.failing_since is None:
            waiter.failing_since = now
        failing = now - waiter.failing_since
        if failing >= max(_PATIENCE, waiter.ttl / 1000):
            turn.set_exception(error)
        elif not waiter.retrying:
            waiter.retrying = True
            pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, failing))
            self._loop.call_later(pause, self._retry, waiter)

    def _retry(self, waiter: Waiter) -> None:
        waiter.retrying = False
        self._ask_again(waiter)

    def _was_displaced(self, found: Waiter) -> None:
        """This waiter's place was gone; whatever took it may have taken those of the others.

        They are asked for in one go, for those who find that out come many at a time.
        """
        key = found.policy.key
        if key not in self._displaced:
            self._loop.call_soon(self._ask_for_displaced, key)
        self._displaced[key] = max(self._displaced.get(key, 0.0), found.last_asked)

    def _ask_for_displaced(self, key: str) -> None:
        found = self._displaced.pop(key, 0.0)
        for waiter in list(self._waiters.get(key, {}).values()):
            if waiter.last_asked < found:
                self._ask_again(waiter)

    def _leave(self, waiter: Waiter) -> None:
        """The waiting is over, one way or the other. Idempotent.

        If the lock was granted by a push meanwhile, and that grant ends before the store comes to
        the question, the waiter will stand in the queue once more. So the release that ends it
        must not speak of that grant alone.
        """
        if waiter.left:
            return
        key = waiter.policy.key
        if waiter.asking and waiter.asked is not None:
            waiter.loose = True
            waiter.asked.cancel()  # or it might be sent again after the release
        line = self._lines.get(key)
        if line is not None and line.leave(waiter):
            del self._lines[key]
        waiter.left = True  # here: where something above raises, it is tried again
        # It may not be there, where the client is open again since.
        waiters = self._waiters.get(key)
        if waiters is not None and waiters.pop(waiter.id, None) is not None and not waiters:
            del self._waiters[key]

    def _give_up(self, waiter: Waiter) -> None:
        if waiter.given_up:
            return
        waiter.given_up = True
        asked = waiter.asked
        if asked is not None:
            if not waiter.known and _was_refused(asked):
                return  # the store knows nothing of it
            asked.cancel()  # or it might be sent again after the release
        _ = self.keeper.unreleased.release(waiter.policy.key, waiter.id, waiter.ttl)

    # Inbox: what the store pushes

    def _waiter(self, key: str, waiter: str) -> Waiter | None:
        waiters = self._waiters.get(key)
        return None if waiters is None else waiters.get(waiter)

    def granted(self, name: str, waiter: str, fence: int, lease: int, now: int) -> None:
        granted = self._waiter(name, waiter)
        if granted is None:
            hold = self.keeper.holds.get(waiter)
            if hold is None or hold.fence != fence:
                # It gave up, and the store had not heard of that: what it got is somebody else's.
                _ = self.keeper.unreleased.release(name, waiter, CLAIM, fence=fence)
            return
        if fence <= granted.void:
            return  # it was given back, or taken away
        granted.claim = fence
        turn = (fence, lease, granted.deadline(lease, now, self._time()))
        if granted.turn is None:
            granted.pushed = turn
        elif not granted.turn.done():
            granted.turn.set_result(turn)

    def lost(self, name: str, waiter: str, fence: int, reason: str) -> None:
        hold = self.keeper.holds.get(waiter)
        waiting = self._waiter(name, waiter)
        if hold is not None and hold.fence == fence:
            self.keeper.lose(hold, reason)
        elif waiting is not None:
            # Its grant is on its way, to the task or, by the other connection, to us. Then it has
            # no place in the queue any more, and nobody else would tell it.
            waiting.void = max(waiting.void, fence)
            self._ask_again(waiting)
        if reason == "expired":
            # We were taken for stuck, so our waiters have left the queue.
            for other in list(self._waiters.get(name, {}).values()):
                self._ask_again(other)

    def done(self, name: str) -> None:
        # The word may be old, and what it speaks of forgotten: the answer is not.
        if name in self._lines:
            self._ask_again(self._lines[name].first)
        for waiter in list(self._waiters.get(name, {}).values()):
            if waiter.policy.once:
                self._ask_again(waiter)

    def requested(self, name: str, waiter: str, fence: int) -> None:
        hold = self.keeper.holds.get(waiter)
        waiting = self._waiter(name, waiter)
        if hold is not None and hold.fence == fence:
            hold.wanted = True
            if hold.requested is not None:
                hold.requested.set()
        elif waiting is not None:
            waiting.wanted = fence  # its grant is on its way to the task

    def reconnected(self) -> None:
        for waiters in list(self._waiters.values()):
            for waiter in list(waiters.values()):
                if waiter.asked is not None and not waiter.asked.done():
                    waiter.loose = True  # its question is sent again, whatever comes of it
                self._ask_again(waiter)
        for call in tuple(self.on_reconnect):
            call()

    # The end

    async def aclose(self, caller: asyncio.Task[Any] | None) -> None:
        """Give up what waits, give back what is held, wait for both, disconnect."""
        self.state = State.CLOSING
        try:
            for waiters in list(self._waiters.values()):
                for waiter in list(waiters.values()):
                    waiter.interrupt(ClientClosed(_CLOSED_MEANWHILE))
                    self._give_up(waiter)
            await self.keeper.aclose(caller)
        finally:
            try:
                await self.store.aclose()
            finally:
                self.keeper.overdue.aclose()  # until then an exit ends no later than its lease
                self.state = State.CLOSED


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
