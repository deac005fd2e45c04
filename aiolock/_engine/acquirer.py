"""From "asked" to "granted": one acquisition, its place in the queue, and how it gives up.

Nothing here is sent by the caller's own task in a way that its cancellation could undo: an
operation is started by the call (see `Store`), so that all a cancellation ends is the waiting.
Whoever stops waiting, for whatever reason, sends one `release`, which takes back the place in the
queue or the grant that came at that very moment, whichever it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from functools import partial
from typing import Any, Final

from aiolock._engine import deadlock, refusals
from aiolock._engine.acquisition import Attempt, Phase
from aiolock._engine.grant import lasts
from aiolock._engine.hold import Hold, Owned, Owner
from aiolock._engine.labels import labelled
from aiolock._engine.lookout import Lookout
from aiolock._engine.policy import Policy
from aiolock._engine.waiters import Waiters
from aiolock._engine.watchdog import Watchdog, retrieve
from aiolock._prompt import Prompt
from aiolock.errors import (
    AcquireTimeout,
    ClientClosed,
    QueueFull,
    StoreError,
    WouldDeadlock,
)
from aiolock.observer import GaveUp
from aiolock.store import (
    Busy,
    Done,
    Full,
    Party,
    Renewal,
    Rule,
    Waiter,
)

_TOO_LATE: Final = 5
"""Grants in a row that came after they had ended, until we call the store too slow for the ttl."""

_WHO_HOLDS: Final = 0.25
"""Seconds to wait for the name of the holder, for the text of an error."""

_WHAT_CALLED: Final = 0.02
"""Seconds to wait for what that one calls itself: nobody is to wait for much longer than wanted."""

_OVER: Final = (Phase.STOPPED, Phase.GIVEN_UP)


class _TimedOut(Exception):
    """The caller's timeout ended the waiting."""


class AlreadyDone(Exception):
    """What was to be done once is done."""


_TURNS: Final = 3
"""Of the event loop, in which what has arrived is read, is understood, and reaches its task."""
_WHY: Final[tuple[tuple[type[BaseException], GaveUp], ...]] = (
    (asyncio.CancelledError, "cancelled"),
    (AlreadyDone, "done"),
    (QueueFull, "full"),
    (WouldDeadlock, "deadlock"),
    (ClientClosed, "closed"),
)
"""What observers are told of an error; of any other that it is the store's."""


class Acquirer:
    """Acquires locks for the tasks of one client."""

    def __init__(self, waiters: Waiters, watchdog: Watchdog, lookout: Lookout, client: str) -> None:
        self._waiters = waiters
        self._lookout = lookout
        self._events = watchdog.events
        self._runs = watchdog.runs
        self._watchdog = watchdog
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._time = watchdog.time
        self._numbers = itertools.count(1)

    async def acquire(
        self,
        policy: Policy,
        owner: Owner,
        *,
        timeout: float | None,
        wait: bool,
        raises: bool,
        label: str = "",
    ) -> Hold | None:
        """Take the lock, or wait for it.

        When ``timeout`` has passed or it is not free: None, or with ``raises`` an `AcquireTimeout`
        that says who holds it. The caller has called `check`.
        """
        held = self._held(policy, owner)
        if held is not None:
            return held
        attempt = self._begin(policy, owner[0], timeout, label)
        timer = None
        why: GaveUp = "busy"
        try:
            if timeout is not None and wait:
                timer = self._loop.call_later(timeout, self._time_is_up, attempt, _TURNS)
            if await self._granted(attempt, wait=wait):
                return self._keep(attempt, owner)
        except _TimedOut:
            why = "store" if attempt.clocks is None else "timeout"
            self._give_up(attempt)
        except BaseException as error:  # noqa: BLE001  # it is raised below
            why = _why(error)
            self._give_up(attempt)
            raise policy.told(error)  # noqa: B904  # it has the cause of the other
        finally:
            if timer is not None:
                timer.cancel()
            if attempt.phase is not Phase.HELD:
                self._left(attempt, why)
        if why == "store" and timeout is not None:
            raise refusals.unanswered(policy, timeout, self._runs, self._waiters.broken)
        if not raises:
            return None
        raise await self._not_acquired(attempt, timeout if wait else None)

    # One acquisition, in the order of its phases

    def _begin(
        self, policy: Policy, owner: asyncio.Task[Any] | None, timeout: float | None, label: str
    ) -> Attempt:
        waiter = Waiter(self._client, next(self._numbers))
        attempt = Attempt(waiter, policy, owner, self._time())
        if timeout is None:
            attempt.patient = True
        if label:
            attempt.label = label
        if not self._lookout.awake:
            self._lookout.wake()
        self._waiters.add(attempt)  # last: whoever is added leaves again
        return attempt

    def _time_is_up(self, attempt: Attempt, turns: int) -> None:
        """An answer that came while this process was stopped or busy is heard first."""
        if turns and attempt.phase is Phase.ASKING:
            self._loop.call_soon(self._time_is_up, attempt, turns - 1)
        elif not attempt.ended:
            attempt.stop(_TimedOut())

    async def _granted(self, attempt: Attempt, *, wait: bool) -> bool:
        """Ask, wait for the push, and see to it that it is not too late; False: it was not free."""
        told = False
        for _ in range(_TOO_LATE):
            question = self._waiters.ask(attempt, wait=wait)
            attempt.waits_for = question.answer
            await question.answer
            self._waiters.hear(attempt, question)
            if attempt.phase is Phase.QUEUED:
                if self._events.often and not told:
                    told = True
                    self._events.waiting(attempt)
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

    async def _pushed(self, attempt: Attempt) -> None:
        """Wait in the queue: for the push, or for whatever else ends that."""
        if attempt.stopped is not None:
            raise attempt.stopped
        # Else nobody knows what the owner does meanwhile.
        attempt.stands_still = attempt.owner is self._watchdog.current_task()
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
        answer = attempt.waits_for = self._runs.renew([renewal])
        still: bool | None = None
        with contextlib.suppress(StoreError):
            (still,) = await answer
        _raise_if_over(attempt)
        if still:
            attempt.confirmed(sent + lasts(policy.lease))
        return bool(still) and attempt.accepts(self._time())

    async def _give_back(self, attempt: Attempt) -> None:
        """Let go of a grant that may have ended before we knew, for we were stopped or blocked.

        It is released, lest the others wait for its end, and we ask again for our old place: once
        the store has answered, for it must not find the old grant and take it for the new one.
        """
        fence = attempt.gives_back()
        self._runs.returns(attempt)
        policy = attempt.policy
        # Where that fails we give up, and all of it is released.
        released = self._runs.release(policy.key, attempt.waiter, policy.form, fence, entered=False)
        released.add_done_callback(retrieve)
        attempt.waits_for = released
        if attempt.stopped is None:  # else it has no time left to wait for the answer
            await released
        if attempt.stopped is not None:
            raise attempt.stopped
        attempt.returned()

    def _keep(self, attempt: Attempt, owner: Owner) -> Hold:
        """What it was granted, from now on renewed. Where this raises it is given up."""
        self._waiters.leave(attempt)
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
        if attempt.label:
            hold.label = attempt.label
        self._watchdog.keep(hold, grant.lease)
        try:
            attempt.kept()
            if self._events.often:
                self._events.acquired(hold, attempt, hold.since)
        except BaseException:  # else it would be renewed for ever
            self._watchdog.abandon(hold)
            raise
        return hold

    def _left(self, attempt: Attempt, why: GaveUp) -> None:
        """It is over, and it was not granted."""
        self._waiters.leave(attempt)
        if self._events.often:
            self._events.gave_up(attempt, why, self._time())

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

        The store is asked for that together with the release, so it is no further round trip. What
        the holder calls itself is one, so it is left out where the store is far away.
        """
        policy, holders = attempt.policy, tuple[Party, ...]()
        if timeout is None:
            declined = attempt.declined
            holder = declined.holder if isinstance(declined, Busy) and not policy.passes else None
            return refusals.not_free(policy, (holder,) if holder else ())
        if not policy.passes:
            with contextlib.suppress(TimeoutError, StoreError):
                async with asyncio.timeout(_WHO_HOLDS):
                    status = await self._runs.status(policy.key, waiters=False)
                    holders = status.holders
                    async with asyncio.timeout(_WHAT_CALLED):
                        holders = (await labelled(self._runs, [status]))[0].holders
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
            deadlock.check(attempt, attempt.blocked, owned, self._waiters.attempts)
        parent = deadlock.parent()
        if parent is None or attempt.policy.key not in owned.get(parent, {}):
            return None
        warn = partial(deadlock.warn_of_parent, attempt, attempt.blocked, parent)
        return self._loop.call_later(deadlock.SUSPICIOUS, warn)

    # The end

    def close(self) -> None:
        """Give up whatever waits, with `ClientClosed`."""
        self._runs.close()
        for attempts in list(self._waiters.attempts.values()):
            for attempt in list(attempts.values()):
                attempt.stop(ClientClosed("this client was closed while a task waited for it"))
                self._give_up(attempt)


def _why(error: BaseException) -> GaveUp:
    for kind, why in _WHY:
        if isinstance(error, kind):
            return why
    return "store"


def _raise_if_over(attempt: Attempt) -> None:
    """What ended it, where that was not the task that calls this."""
    if attempt.phase in _OVER:
        assert attempt.stopped is not None
        raise attempt.stopped
