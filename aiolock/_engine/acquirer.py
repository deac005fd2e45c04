"""Acquires a lock: asks the store, waits in the queue, and if it gives up, leaves nothing behind.

`Acquirer.acquire` runs in the caller's task. It drives one `Acquisition` from phase to phase and
returns it, and the watchdog keeps it from then on.

Cancelling the caller's task does not undo a command that was sent: a store operation starts when it
is called (see `Store`), so a cancellation only ends the waiting. Therefore every acquisition that
stops waiting sends one `release`. That command removes its place in the queue or, if the store has
just granted the lock, the grant: the store decides the race in one step.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from aiolock._engine import deadlock, deadlock_cycles, error_factories
from aiolock._engine.acquisition import Acquisition, Owned, Owner, Phase
from aiolock._engine.labels import labelled
from aiolock._engine.policy import Policy
from aiolock._engine.slow_monitor import SlowMonitor
from aiolock._engine.waiters import Waiters
from aiolock._engine.watchdog import Watchdog
from aiolock._futures import retrieve
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
from aiolock.protocol import (
    Busy,
    Done,
    Full,
    Participant,
    ReadStatus,
    Release,
    Renew,
    Renewal,
    Rule,
    WaiterId,
    lasts,
)
from aiolock.store import ServerStatus

_MAX_LATE_GRANTS: Final = 5
"""Grants in a row that came too late, after which the ttl is too short for the store."""

_WHO_HOLDS: Final = 0.25
"""Seconds to wait for the holders, for the text of an error."""

_WHAT_CALLED: Final = 0.02
"""Seconds to wait for their labels. Short, because the caller's timeout has already passed."""

_CLOSING: Final = 8
"""Units of work to stop one acquisition: see `Turns`."""

_ENDED_BY_ERROR: Final = (Phase.STOPPED, Phase.GIVEN_UP)


class _TimedOut(Exception):
    """The caller's timeout ended the waiting."""


class AlreadyDone(Exception):
    """The work of a `once` is done already."""


_TURNS: Final = 3
"""Iterations of the event loop within which data that has arrived is read, is decoded, and reaches
its task."""
_REASONS: Final[tuple[tuple[type[BaseException], GaveUp], ...]] = (
    (asyncio.CancelledError, "cancelled"),
    (AlreadyDone, "done"),
    (QueueFull, "full"),
    (WouldDeadlock, "deadlock"),
    (ClientClosed, "closed"),
)
"""The reason that observers get for each error; ``store`` for any other error."""


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

        ``servers`` returns the state of each server of a quorum; of other stores, nothing.
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
        self._searches = deadlock_cycles.Searches(watchdog.holders, waiters.blocked)
        self._children = dict[tuple[asyncio.Task[Any], str], deadlock.Children]()
        """Tasks that wait for a lock of their parent task, by parent and key."""

    async def acquire(
        self,
        policy: Policy,
        owner: Owner,
        *,
        timeout: float | None,
        raises: bool,
        label: str = "",
        since: float | None = None,
    ) -> Acquisition | None:
        """Take the lock, or wait for it.

        If it does not become free in ``timeout`` seconds (0: if it is not free now), the result is
        None; with ``raises``, it is an `AcquireTimeout` that names the holders. The caller must
        have called `Engine.check`. For a multilock, ``since`` is when it began with its first lock:
        the timeout is for all of its locks together.
        """
        wait = timeout != 0
        held = self._held(policy, owner)
        if held is not None:
            return held
        acquisition = self._begin(policy, owner[0], timeout, label)
        timer = None
        limit = timeout if wait else self._answer_timeout
        # For a multilock, the locks taken before have used up a part of the timeout.
        used = acquisition.began - since if since is not None and timeout else 0.0
        left = max(0.0, limit - used) if used and limit is not None else limit
        why: GaveUp = "busy"
        try:
            if left is not None:
                timer = self._loop.call_later(left, self._on_timeout, acquisition, _TURNS)
            if await self._wait_for_grant(acquisition, wait=wait):
                self._keep(acquisition)
                return acquisition
        except _TimedOut:
            # A timeout is only reported as such if the store works: otherwise it is unknown whether
            # another client holds the lock, and the caller gets a StoreError.
            why = "timeout" if wait and self._store_answers(acquisition, used, left) else "store"
            self._give_up(acquisition)
        except BaseException as error:  # noqa: BLE001  # it is raised below
            why = _reason(error)
            self._give_up(acquisition)
            raise policy.with_context(error)  # noqa: B904  # it has the cause of the other
        finally:
            if timer is not None:
                timer.cancel()
            if acquisition.phase is not Phase.HELD:
                self._end_without_grant(acquisition, why)
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
        # Last: once it is added, only `acquire` removes it again, so nothing may raise in between.
        self._waiters.add(acquisition)
        return acquisition

    def _on_timeout(self, acquisition: Acquisition, turns: int) -> None:
        """Stop the waiting, after an answer that has already arrived was processed.

        If the process was suspended or its loop blocked, the timer and the answer are due in the
        same iteration of the loop. The answer came first, so a few iterations are left for it.
        """
        if turns and acquisition.phase is Phase.ASKING:
            self._loop.call_soon(self._on_timeout, acquisition, turns - 1)
        elif not acquisition.ended:
            acquisition.stop(_TimedOut())

    def _store_answers(self, acquisition: Acquisition, used: float, left: float | None) -> bool:
        """Whether the store has answered, or had too little time to do so.

        It had too little time if a multilock used up most of its timeout (``used`` seconds) on the
        locks before, and the link to the store is not broken.
        """
        little = left is not None and left < min(used, self._answer_timeout)
        return acquisition.clocks is not None or (little and self._waiters.broken is None)

    async def _wait_for_grant(self, acquisition: Acquisition, *, wait: bool) -> bool:
        """Ask, wait for the push, and give back late grants; False if the lock is not free."""
        reported = False
        for _ in range(_MAX_LATE_GRANTS):
            # More than once, because the answer may be that it must ask again: see `Busy`.
            while acquisition.phase is Phase.ASKING:
                if acquisition.stopped is not None:
                    raise acquisition.stopped
                question = self._waiters.ask(acquisition, wait=wait)
                acquisition.waits_for = question.answer
                await question.answer
                self._waiters.process_answer(acquisition, question)
            if acquisition.phase is Phase.QUEUED:
                if self._events.often and not reported:
                    reported = True
                    self._events.waiting(acquisition)
                await self._wait_in_queue(acquisition)
            if acquisition.phase is Phase.DECLINED:
                return self._declined(acquisition)
            _raise_if_stopped(acquisition)
            if acquisition.accepts(self._time()) and (
                not acquisition.must_confirm or await self._confirmed(acquisition)
            ):
                return True
            await self._give_back(acquisition)
        raise error_factories.too_slow(acquisition.policy, _MAX_LATE_GRANTS)

    async def _wait_in_queue(self, acquisition: Acquisition) -> None:
        """Wait for the push, or for anything else that ends the waiting."""
        if acquisition.stopped is not None:
            raise acquisition.stopped
        # If another task awaits this, the owner may do something else meanwhile, such as to release
        # the lock that blocks it. So only an owner that awaits this itself is certainly blocked.
        acquisition.stands_still = acquisition.owner is self._watchdog.current_task()
        # A deadlock is possible only if a task of this process holds something.
        owned, task, blocked = self._watchdog.owned, acquisition.blocked, self._waiters.blocked
        stops: list[Callable[[], None]] = []
        try:
            if task is not None and owned:
                self._look_for_deadlock(acquisition, task, owned, stops)
            acquisition.waits_for = Prompt(loop=self._loop)
            if task is not None:
                blocked[task] = acquisition
            await acquisition.waits_for
        finally:
            if task in blocked and blocked[task] is acquisition:
                del blocked[task]
            for stop in stops:
                stop()

    def _declined(self, acquisition: Acquisition) -> bool:
        """False if the lock is not free; any other refusal raises an error."""
        if acquisition.crossed:
            # A copy of the question may still be in a broken connection's buffer. If the server
            # reads it when the lock is free, it grants the lock to nobody.
            self._release(acquisition)
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
        answer = acquisition.waits_for = self._handoff.submit(Renew([renewal]))
        still: bool | None = None
        with contextlib.suppress(StoreError):
            (still,) = await answer
        _raise_if_stopped(acquisition)
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
        acquisition.waits_for = released
        if acquisition.stopped is None:  # otherwise its timeout has passed, or its client closes
            await released
        if acquisition.stopped is not None:
            raise acquisition.stopped
        acquisition.returned()

    def _keep(self, acquisition: Acquisition) -> None:
        """Keep and renew the grant from now on. If this raises, the acquisition gives up."""
        self._waiters.leave(acquisition)
        policy = acquisition.policy
        if policy.max_hold is not None:
            acquisition.ends = self._time() + policy.max_hold
        if not policy.renew:
            acquisition.counts_from = acquisition.deadline - lasts(acquisition.granted_for)
        self._watchdog.keep(acquisition, acquisition.granted_for)
        try:
            acquisition.kept()
            if self._events.often:
                self._events.acquired(acquisition)
        except BaseException:  # the caller gets no lease of it, so it would be renewed for ever
            self._watchdog.abandon(acquisition)
            raise

    def _end_without_grant(self, acquisition: Acquisition, why: GaveUp) -> None:
        """Remove the acquisition, and report why it ended."""
        self._waiters.leave(acquisition)
        if self._events.often:
            self._events.gave_up(acquisition, why, self._time())

    def _give_up(self, acquisition: Acquisition) -> None:
        """Release what the store has for it: a place, or a grant that is made at this moment."""
        if acquisition.gives_up():
            self._release(acquisition)

    def _release(self, acquisition: Acquisition) -> None:
        policy = acquisition.policy
        _ = self._watchdog.releases.release(
            policy.key, acquisition.waiter, policy.form, policy.lease
        )

    # The text of an error

    async def _not_acquired(
        self,
        acquisition: Acquisition,
        timeout: float | None,
        left: float | None,
        since: float | None,
    ) -> AcquireTimeout:
        """The error, with the holders and, unless it was only tried, the time that it waited.

        The holders are read together with the release, so that costs no further round trip. Reading
        their labels costs one, so they are left out if the store is far away.
        """
        policy, holders, more = acquisition.policy, tuple[Participant, ...](), 0
        if not timeout or left is None:
            declined = acquisition.declined
            holder = declined.holder if isinstance(declined, Busy) and not policy.passes else None
            return error_factories.not_free(policy, (holder,) if holder else ())
        if not policy.passes and acquisition.clocks is not None:
            with contextlib.suppress(TimeoutError, StoreError):
                async with asyncio.timeout(_WHO_HOLDS):
                    status = await self._handoff.submit(ReadStatus(policy.key, waiters=False))
                    holders, more = status.holders, status.more_holders
                    async with asyncio.timeout(_WHAT_CALLED):
                        holders = (await labelled(self._handoff, [status]))[0].holders
        error = error_factories.not_in_time(policy, timeout, left, holders, more, self._servers())
        error.waited = self._time() - (acquisition.began if since is None else since)
        return error

    def _held(self, policy: Policy, owner: Owner) -> Acquisition | None:
        """The owner's hold of this lock, if it may have it once more."""
        if policy.rule is not Rule.ALWAYS:
            return None  # permits add up; a barrier, latch or event holds nothing
        held = self._watchdog.held_by(owner)
        if held is None:
            return None
        if (held.shared or held.policy.shared) and not policy.shared:
            raise error_factories.reads_already(policy)
        if not policy.reentrant:
            raise error_factories.holds_already(policy)
        return held

    # Deadlocks within this client

    def _look_for_deadlock(
        self,
        acquisition: Acquisition,
        task: asyncio.Task[Any],
        owned: Owned,
        stops: list[Callable[[], None]],
    ) -> None:
        """`WouldDeadlock` if a deadlock is certain.

        ``stops`` gets calls for when the task waits no more: then nothing is looked for or logged.
        """
        waited_for = self._waiters.acquisitions.keys()
        # Another task also holds something, and one waits for something that this task holds.
        if len(owned) > 1 and task in owned and not waited_for.isdisjoint(owned[task].keys()):
            search = self._searches.begin(acquisition, task)
            stops.append(search.end)
            if search.is_possible:
                return
        parent = deadlock.parent()
        if parent is None or acquisition.policy.key not in owned.get(parent, {}):
            return
        key = parent, acquisition.policy.key
        children = self._children.get(key)
        if children is None:
            children = self._children[key] = deadlock.Children(self._time)
        stops.append(partial(self._remove_child, acquisition, key))
        children.add(acquisition, task, parent)

    def _remove_child(self, acquisition: Acquisition, key: tuple[asyncio.Task[Any], str]) -> None:
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
            for acquisition in left:  # without a pause, because this was cancelled
                self._close(acquisition)

    def _close(self, acquisition: Acquisition) -> None:
        acquisition.stop(
            ClientClosed("this client was closed while a task waited for it", closed=True)
        )
        self._give_up(acquisition)


def _reason(error: BaseException) -> GaveUp:
    for kind, why in _REASONS:
        if isinstance(error, kind):
            return why
    return "store"


def _raise_if_stopped(acquisition: Acquisition) -> None:
    """Raise the error that ended the acquisition, if anything but the calling task ended it."""
    if acquisition.phase in _ENDED_BY_ERROR:
        assert acquisition.stopped is not None
        raise acquisition.stopped
