"""What follows in an acquisition if its first wake-up was not a grant in time.

The grant may have come too late, or must be confirmed first; the store may have refused; or the
waiting is to be reported, and may close a cycle of tasks that wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from aiolock._engine import error_factories
from aiolock._engine.acquisition import Acquisition, Phase
from aiolock._engine.diagnostics.deadlock_watch import DeadlockWatch
from aiolock._engine.waiters import Waiters
from aiolock._engine.watchdog import Watchdog
from aiolock._futures import retrieve
from aiolock._prompt import Prompt, following
from aiolock.errors import StoreError
from aiolock.protocol import Done, Full, Release, Renew, Renewal, lasts

_MAX_LATE_GRANTS: Final = 5
"""Grants in a row that came too late, after which the ttl is too short for the store."""
_ENDED_BY_ERROR: Final = (Phase.STOPPED, Phase.GIVEN_UP)


class AlreadyDone(Exception):
    """The work of a `once` is done already."""


class Late:
    """Drives the acquisitions of one client from phase to phase, those that need it."""

    def __init__(self, waiters: Waiters, watchdog: Watchdog) -> None:
        self._waiters = waiters
        self._watchdog = watchdog
        self._handoff = watchdog.handoff
        self._events = watchdog.events
        self._time = watchdog.time
        self._loop = asyncio.get_running_loop()
        self.deadlocks = DeadlockWatch(waiters, watchdog)

    async def go_on(self, acquisition: Acquisition, *, wait: bool) -> bool:
        """Go on until there is a grant that can be entered; False if the lock is not free."""
        if not await self._granted(acquisition, wait=wait):
            return False
        policy = acquisition.policy
        if policy.max_hold is not None:
            acquisition.ends = self._time() + policy.max_hold
        if not policy.renew:
            acquisition.counts_from = acquisition.deadline - lasts(acquisition.granted_for)
        return True

    async def _granted(self, acquisition: Acquisition, *, wait: bool) -> bool:
        late = 0
        while True:
            match acquisition.phase:
                case Phase.GRANTED:
                    if acquisition.accepts(self._time()) and (
                        not acquisition.must_confirm or await self._confirmed(acquisition)
                    ):
                        return True
                    await self._give_back(acquisition)
                    late += 1
                    if late == _MAX_LATE_GRANTS:
                        raise error_factories.too_slow(acquisition.policy, _MAX_LATE_GRANTS)
                case Phase.ASKING:
                    if acquisition.stopped is not None:
                        raise acquisition.stopped
                    # The answer may have been that it must ask again: see `Busy`.
                    self._waiters.ask(acquisition, wait=wait)
                    await acquisition.waits_for
                case Phase.QUEUED:
                    await self._wait_in_queue(acquisition)
                case Phase.DECLINED:
                    return self._declined(acquisition)
                case _:
                    assert acquisition.stopped is not None
                    raise acquisition.stopped

    async def _wait_in_queue(self, acquisition: Acquisition) -> None:
        """Report the waiting, look for a deadlock, and wait on."""
        if acquisition.stopped is not None:
            raise acquisition.stopped
        if self._events.often and not acquisition.reported:
            acquisition.reported = True
            self._events.waiting(acquisition)
        stops: list[Callable[[], None]] = []
        try:
            acquisition.waits_for = Prompt(loop=self._loop)
            if acquisition.blocked is not None:
                self.deadlocks.look(acquisition, acquisition.blocked, stops)
            await acquisition.waits_for
        finally:
            for stop in stops:
                stop()

    def _declined(self, acquisition: Acquisition) -> bool:
        """False if the lock is not free; any other refusal raises an error."""
        if acquisition.crossed:
            # A copy of the question may still be in a broken connection's buffer. If the server
            # reads it when the lock is free, it grants the lock to nobody.
            self._watchdog.give_up(acquisition)
        if isinstance(acquisition.declined, Done):
            raise AlreadyDone
        if isinstance(acquisition.declined, Full):
            raise error_factories.full(acquisition.policy, acquisition.declined)
        return False

    async def _confirmed(self, acquisition: Acquisition) -> bool:
        """Whether its grant could be confirmed in time, for the whole ttl."""
        policy, fence = acquisition.policy, acquisition.fence
        acquisition.confirms()
        sent = self._time()  # before the request: the store's lease begins later, never earlier
        renewal = Renewal(policy.key, acquisition.waiter, policy.form, fence, policy.lease)
        answer = self._handoff.submit(Renew([renewal]))
        answer.add_done_callback(retrieve)  # this task may be cancelled before the answer comes
        acquisition.waits_for = following(answer)
        still: bool | None = None
        with contextlib.suppress(StoreError):
            await acquisition.waits_for
            (still,) = answer.result()
        if acquisition.phase in _ENDED_BY_ERROR:
            assert acquisition.stopped is not None
            raise acquisition.stopped
        if still:
            acquisition.confirmed(sent + lasts(policy.lease))
        return bool(still) and acquisition.accepts(self._time())

    async def _give_back(self, acquisition: Acquisition) -> None:
        """Release a grant whose lease may have ended already, and be ready to ask again.

        It came late because the process was suspended or blocked. It is released so that others
        need not wait for the end of its lease. The old place in the queue is asked for only after
        the store has answered the release: otherwise the store could find the old grant, and
        confirm it as if it were the new one.
        """
        fence = acquisition.gives_back()
        self._handoff.returns(acquisition)
        policy = acquisition.policy
        # If this fails, the acquisition gives up, and releases its place and any grant.
        released = self._handoff.submit(
            Release(policy.key, acquisition.waiter, policy.form, fence, entered=False)
        )
        released.add_done_callback(retrieve)
        acquisition.waits_for = following(released)
        if acquisition.stopped is None:  # otherwise its timeout has passed, or its client closes
            await acquisition.waits_for
            released.result()
        if acquisition.stopped is not None:
            raise acquisition.stopped
        acquisition.returned()
