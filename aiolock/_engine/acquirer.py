"""From "asked" to "granted": one acquisition, its place in the queue, and how it gives up.

A cancellation of the caller's task undoes nothing that was sent: an operation is started by the
call (see `Store`), so a cancellation only ends the waiting. Every acquisition that stops waiting
sends one `release`, which takes back either the place in the queue or a grant that came at that
very moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from aiolock._engine import deadlock, error_factories
from aiolock._engine.acquisition import Acquisition, Phase
from aiolock._engine.grant import lasts
from aiolock._engine.hold import Hold, Owned, Owner
from aiolock._engine.labels import labelled
from aiolock._engine.policy import Policy
from aiolock._engine.slow_monitor import SlowMonitor
from aiolock._engine.waiters import Waiters
from aiolock._engine.watchdog import Watchdog, retrieve
from aiolock._prompt import Prompt
from aiolock._turns import turns
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
    Participant,
    Renewal,
    Rule,
    ServerStatus,
    WaiterId,
)

_TOO_LATE: Final = 5
"""Grants in a row that came too late, after which the store is too slow for the ttl."""

_WHO_HOLDS: Final = 0.25
"""Seconds to wait for the holder's name, for the text of an error."""

_WHAT_CALLED: Final = 0.02
"""Seconds to wait for what that one calls itself: nobody is to wait for much longer than wanted."""

_CLOSING: Final = 8
"""Units of work to stop one acquisition: see `Turns`."""

_OVER: Final = (Phase.STOPPED, Phase.GIVEN_UP)


class _TimedOut(Exception):
    """The caller's timeout ended the waiting."""


class AlreadyDone(Exception):
    """The work of a `once` is done already."""


_TURNS: Final = 3
"""Iterations of the event loop: data that has arrived is read, decoded, and reaches its task."""
_WHY: Final[tuple[tuple[type[BaseException], GaveUp], ...]] = (
    (asyncio.CancelledError, "cancelled"),
    (AlreadyDone, "done"),
    (QueueFull, "full"),
    (WouldDeadlock, "deadlock"),
    (ClientClosed, "closed"),
)
"""What observers are told for each error; ``store`` for any other."""


class Acquirer:
    """Acquires locks for the tasks of one client."""

    def __init__(
        self,
        waiters: Waiters,
        watchdog: Watchdog,
        slow_monitor: SlowMonitor,
        client: str,
        *,
        answer_timeout: float,
        servers: Callable[[], Sequence[ServerStatus]],
    ) -> None:
        """``answer_timeout``: seconds for the store's answer, if the lock is not waited for.

        ``servers``: the state of each server, of a store that is on several; else none.
        """
        self._answer_timeout = answer_timeout
        self._servers = servers
        self._waiters = waiters
        self._slow_monitor = slow_monitor
        self._events = watchdog.events
        self._handoff = watchdog.handoff
        self._watchdog = watchdog
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._time = watchdog.time
        self._numbers = itertools.count(1)
        self._children = dict[tuple[asyncio.Task[Any], str], deadlock.Children]()
        """Tasks that wait for their parents, by parent and key."""

    async def acquire(
        self,
        policy: Policy,
        owner: Owner,
        *,
        timeout: float | None,
        raises: bool,
        label: str = "",
        since: float | None = None,
    ) -> Hold | None:
        """Take the lock, or wait for it.

        If it does not become free in ``timeout`` seconds (0: is not free now), the result is None;
        with ``raises``, an `AcquireTimeout` that names the holder. The caller has called
        `Engine.check`. If it has taken other locks before, ``since`` is when it began with the
        first: the timeout is for all.
        """
        wait = timeout != 0
        held = self._held(policy, owner)
        if held is not None:
            return held
        acquisition = self._begin(policy, owner[0], timeout, label)
        timer = None
        limit = timeout if wait else self._answer_timeout
        used = acquisition.began - since if since is not None and timeout else 0.0
        left = max(0.0, limit - used) if used and limit is not None else limit
        why: GaveUp = "busy"
        try:
            if left is not None:
                timer = self._loop.call_later(left, self._time_is_up, acquisition, _TURNS)
            if await self._granted(acquisition, wait=wait):
                return self._keep(acquisition, owner)
        except _TimedOut:
            why = "timeout" if wait and self._answers(acquisition, used, left) else "store"
            self._give_up(acquisition)
        except BaseException as error:  # noqa: BLE001  # it is raised below
            why = _why(error)
            self._give_up(acquisition)
            raise policy.with_context(error)  # noqa: B904  # it has the cause of the other
        finally:
            if timer is not None:
                timer.cancel()
            if acquisition.phase is not Phase.HELD:
                self._left(acquisition, why)
        if why == "store" and limit is not None:
            name = "timeout" if wait else "answer_timeout"
            raise error_factories.unanswered(
                policy, name, limit, self._handoff, self._waiters.broken
            )
        if not raises:
            return None
        raise await self._not_acquired(acquisition, timeout, left, since)

    # One acquisition, in the order of its phases

    def _begin(
        self, policy: Policy, owner: asyncio.Task[Any] | None, timeout: float | None, label: str
    ) -> Acquisition:
        waiter = WaiterId(self._client, next(self._numbers))
        acquisition = Acquisition(waiter, policy, owner, self._time())
        if timeout is None:
            acquisition.patient = True
        if label:
            acquisition.label = label
        if not self._slow_monitor.awake:
            self._slow_monitor.wake()
        self._waiters.add(acquisition)  # last: whoever is added leaves again
        return acquisition

    def _time_is_up(self, acquisition: Acquisition, turns: int) -> None:
        """Stop the waiting; but first hear an answer that came while the process stood still."""
        if turns and acquisition.phase is Phase.ASKING:
            self._loop.call_soon(self._time_is_up, acquisition, turns - 1)
        elif not acquisition.ended:
            acquisition.stop(_TimedOut())

    def _answers(self, acquisition: Acquisition, used: float, left: float | None) -> bool:
        """Whether the store has answered, or may be well though it has not.

        That is so if little time was left after ``used`` seconds for the locks before.
        """
        little = left is not None and left < min(used, self._answer_timeout)
        return acquisition.clocks is not None or (little and self._waiters.broken is None)

    async def _granted(self, acquisition: Acquisition, *, wait: bool) -> bool:
        """Ask, wait for the push, and return grants that are too late; False if it is not free."""
        told = False
        for _ in range(_TOO_LATE):
            while acquisition.phase is Phase.ASKING:  # more than once: see `Busy`
                if acquisition.stopped is not None:
                    raise acquisition.stopped
                question = self._waiters.ask(acquisition, wait=wait)
                acquisition.waits_for = question.answer
                await question.answer
                self._waiters.hear(acquisition, question)
            if acquisition.phase is Phase.QUEUED:
                if self._events.often and not told:
                    told = True
                    self._events.waiting(acquisition)
                await self._pushed(acquisition)
            if acquisition.phase is Phase.DECLINED:
                return self._declined(acquisition)
            _raise_if_over(acquisition)
            if acquisition.accepts(self._time()) and (
                not acquisition.must_confirm or await self._confirmed(acquisition)
            ):
                return True
            await self._give_back(acquisition)
        raise error_factories.too_slow(acquisition.policy, _TOO_LATE)

    async def _pushed(self, acquisition: Acquisition) -> None:
        """Wait in the queue, for the push or for anything else that ends the waiting."""
        if acquisition.stopped is not None:
            raise acquisition.stopped
        # If another task awaits this, it is unknown what the owner does meanwhile.
        acquisition.stands_still = acquisition.owner is self._watchdog.current_task()
        # A deadlock is possible only if a task of this process holds something.
        owned = self._watchdog.owned
        looked = (
            self._look_for_deadlock(acquisition, owned) if acquisition.blocked and owned else None
        )
        acquisition.waits_for = Prompt(loop=self._loop)
        try:
            await acquisition.waits_for
        finally:
            if looked is not None:
                looked()

    def _declined(self, acquisition: Acquisition) -> bool:
        """False if the lock is not free; other ways to say no raise an error."""
        if acquisition.crossed:
            # A late copy of the question may take the lock when it is free.
            self._release(acquisition)
        if isinstance(acquisition.declined, Done):
            raise AlreadyDone
        if isinstance(acquisition.declined, Full):
            raise error_factories.full(acquisition.policy, acquisition.declined)
        return False

    async def _confirmed(self, acquisition: Acquisition) -> bool:
        """Whether its grant could be confirmed in time, for the whole ttl."""
        policy, grant = acquisition.policy, acquisition.confirms()
        sent = self._time()
        renewal = Renewal(policy.key, acquisition.waiter, policy.form, grant.fence, policy.lease)
        answer = acquisition.waits_for = self._handoff.renew([renewal])
        still: bool | None = None
        with contextlib.suppress(StoreError):
            (still,) = await answer
        _raise_if_over(acquisition)
        if still:
            acquisition.confirmed(sent + lasts(policy.lease))
        return bool(still) and acquisition.accepts(self._time())

    async def _give_back(self, acquisition: Acquisition) -> None:
        """Release a grant that may have ended before we knew, and be ready to ask again.

        It came late because the process was stopped or blocked. It is released so that others need
        not wait for its end. The old place is asked for only when the store has answered: the store
        must not find the old grant and take it for the new one.
        """
        fence = acquisition.gives_back()
        self._handoff.returns(acquisition)
        policy = acquisition.policy
        # If this fails, the acquisition gives up and releases all that the store has of it.
        released = self._handoff.release(
            policy.key, acquisition.waiter, policy.form, fence, entered=False
        )
        released.add_done_callback(retrieve)
        acquisition.waits_for = released
        if acquisition.stopped is None:  # else there is no time left to wait for the answer
            await released
        if acquisition.stopped is not None:
            raise acquisition.stopped
        acquisition.returned()

    def _keep(self, acquisition: Acquisition, owner: Owner) -> Hold:
        """Keep and renew the grant from now on. If this raises, the acquisition gives up."""
        self._waiters.leave(acquisition)
        policy, grant = acquisition.policy, acquisition.grant
        assert grant is not None
        hold = Hold(
            policy,
            owner,
            acquisition.waiter,
            grant,
            ends=None if policy.max_hold is None else self._time() + policy.max_hold,
            crossed=acquisition.crossed,
        )
        hold.wanted = acquisition.wanted == grant.fence
        if acquisition.label:
            hold.label = acquisition.label
        self._watchdog.keep(hold, grant.lease)
        try:
            acquisition.kept()
            if self._events.often:
                self._events.acquired(hold, acquisition, hold.since)
        except BaseException:  # else it would be renewed for ever
            self._watchdog.abandon(hold)
            raise
        return hold

    def _left(self, acquisition: Acquisition, why: GaveUp) -> None:
        """The acquisition has ended without a grant."""
        self._waiters.leave(acquisition)
        if self._events.often:
            self._events.gave_up(acquisition, why, self._time())

    def _give_up(self, acquisition: Acquisition) -> None:
        """Release what the store has of it: a place, or a grant that comes at this moment."""
        if acquisition.gives_up():
            self._release(acquisition)

    def _release(self, acquisition: Acquisition) -> None:
        policy = acquisition.policy
        _ = self._watchdog.releases.release(
            policy.key, acquisition.waiter, policy.form, policy.lease
        )

    # What an error says

    async def _not_acquired(
        self,
        acquisition: Acquisition,
        timeout: float | None,
        left: float | None,
        since: float | None,
    ) -> AcquireTimeout:
        """The error with the time that it waited, if it was not only tried, and the holders.

        The store is asked for the holders together with the release, so that costs no further round
        trip. Reading the holder's label costs one, so it is left out if the store is far away.
        """
        policy, holders, more = acquisition.policy, tuple[Participant, ...](), 0
        if not timeout or left is None:
            declined = acquisition.declined
            holder = declined.holder if isinstance(declined, Busy) and not policy.passes else None
            return error_factories.not_free(policy, (holder,) if holder else ())
        if not policy.passes and acquisition.clocks is not None:
            with contextlib.suppress(TimeoutError, StoreError):
                async with asyncio.timeout(_WHO_HOLDS):
                    status = await self._handoff.status(policy.key, waiters=False)
                    holders, more = status.holders, status.more_holders
                    async with asyncio.timeout(_WHAT_CALLED):
                        holders = (await labelled(self._handoff, [status]))[0].holders
        error = error_factories.not_in_time(policy, timeout, left, holders, more, self._servers())
        error.waited = self._time() - (acquisition.began if since is None else since)
        return error

    def _held(self, policy: Policy, owner: Owner) -> Hold | None:
        """The owner's hold of this lock, if it may have it once more."""
        if policy.rule is not Rule.ALWAYS:
            return None  # permits add up, and groups and counts hold nothing
        held = self._watchdog.held_by(owner)
        if held is None:
            return None
        if (held.shared or held.policy.shared) and not policy.shared:
            raise error_factories.reads_already(policy)
        if not policy.reentrant:
            raise error_factories.holds_already(policy)
        return held

    # While it stands in the queue

    def _look_for_deadlock(
        self, acquisition: Acquisition, owned: Owned
    ) -> Callable[[], None] | None:
        """`WouldDeadlock` if a deadlock is certain; what ends a warning if it is possible."""
        assert acquisition.blocked is not None
        if len(owned) > 1 and acquisition.blocked in owned:  # another task also holds something
            cycle = (acquisition, acquisition.blocked, owned, self._waiters.acquisitions)
            if deadlock.check(*cycle):
                timer = self._loop.call_later(
                    deadlock.SUSPICIOUS, partial(deadlock.warn_of_cycle, *cycle)
                )
                return timer.cancel
        parent = deadlock.parent()
        if parent is None or acquisition.policy.key not in owned.get(parent, {}):
            return None
        key = parent, acquisition.policy.key
        children = self._children.get(key)
        if children is None:
            children = self._children[key] = deadlock.Children(self._time)
        children.add(acquisition, acquisition.blocked, parent)
        return partial(self._waits_no_more, acquisition, key)

    def _waits_no_more(self, acquisition: Acquisition, key: tuple[asyncio.Task[Any], str]) -> None:
        if self._children[key].remove(acquisition):
            del self._children[key]

    # The end

    async def aclose(self) -> None:
        """Stop all acquisitions, with `ClientClosed`, and give them up."""
        acquisitions = self._waiters.acquisitions.values()
        left = deque(acquisition for each in acquisitions for acquisition in each.values())
        take = turns().take
        try:
            await self._handoff.flush_reports()
            while left:
                await take(_CLOSING)
                self._close(left.popleft())
        finally:
            for acquisition in left:  # without a pause, for this was cancelled
                self._close(acquisition)

    def _close(self, acquisition: Acquisition) -> None:
        acquisition.stop(
            ClientClosed("this client was closed while a task waited for it", closed=True)
        )
        self._give_up(acquisition)


def _why(error: BaseException) -> GaveUp:
    for kind, why in _WHY:
        if isinstance(error, kind):
            return why
    return "store"


def _raise_if_over(acquisition: Acquisition) -> None:
    """Raise the error that ended the acquisition, if anything but the calling task ended it."""
    if acquisition.phase in _OVER:
        assert acquisition.stopped is not None
        raise acquisition.stopped
