"""Acquires a lock: asks the store, waits in the queue, and if it gives up, leaves nothing behind.

`acquire` is the one coroutine of an acquisition, and runs in the caller's task. It asks the store
and awaits one future; if that brings a grant in time, the watchdog keeps it from then on. All else
that may happen to it is for `Late`: a refusal, a grant that comes too late, a deadlock.

Cancelling the caller's task does not undo a command that was sent: a store operation starts when it
is called (see `Store`), so a cancellation only ends the waiting. Therefore every acquisition that
stops waiting sends one `release`. That command removes its place in the queue or, if the store has
just granted the lock, the grant: the store decides the race in one step.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from aiolock._engine import error_factories
from aiolock._engine.acquisition import Acquisition, Phase
from aiolock._engine.diagnostics import deadlock
from aiolock._engine.diagnostics.slow_monitor import SlowMonitor
from aiolock._engine.late import AlreadyDone, Late
from aiolock._engine.lease import Lease, LeaseWithoutBody, lease_of, not_entered
from aiolock._engine.not_acquired import not_acquired
from aiolock._engine.policy import Policy
from aiolock._engine.scope import Scope, collected, enter
from aiolock._engine.time_limit import TimedOut, TimeLimit, TimeLimits
from aiolock._engine.waiters import Waiters
from aiolock._engine.watchdog import Watchdog
from aiolock._prompt import Prompt
from aiolock._turns import turns
from aiolock.entering import AnyEnterable, Entry
from aiolock.errors import (
    ClientClosed,
    QueueFull,
    WouldDeadlock,
)
from aiolock.observer import GaveUp
from aiolock.protocol import (
    Acquire,
    Rule,
    WaiterId,
    new,
)
from aiolock.store import ServerStatus

if TYPE_CHECKING:
    from aiolock._engine.engine import Engine

_CLOSING: Final = 8
"""Units of work to stop one acquisition: see `Turns`."""
_REASONS: Final[tuple[tuple[type[BaseException], GaveUp], ...]] = (
    (asyncio.CancelledError, "cancelled"),
    (AlreadyDone, "done"),
    (QueueFull, "full"),
    (WouldDeadlock, "deadlock"),
    (ClientClosed, "closed"),
)
"""The reason that observers get for each error; ``store`` for any other error."""


async def acquire(  # noqa: C901, PLR0912, PLR0915  # flat: each nested coroutine costs
    engine: Engine,
    policy: Policy,
    timeout: float | None,
    begins: Callable[[Lease], object] | None,
    *,
    entry: tuple[Entry, AnyEnterable[Any]] | None = None,
    owner: asyncio.Task[Any] | None = None,
    enters: bool = False,
    raises: bool = True,
    label: str = "",
    since: float | None = None,
    lease_type: type[Lease] = LeaseWithoutBody,
) -> Lease | None:
    """Take the lock, or wait for it.

    ``begins`` gets the lease before anything else does. Or, with the ``entry`` of a description,
    and that description, the lease has a body, which the exit of that entry ends.

    If the lock does not become free in ``timeout`` seconds (0: if it is not free now), the result
    is None; with ``raises``, it is an `AcquireTimeout` that names the holders. With ``enters``, the
    task that runs this is the ``owner``. The ``lease_type`` is `Lease` if it has a body. For a
    multilock, ``since`` is when it began with its first lock: the timeout is for all of its locks
    together.
    """
    if asyncio._get_running_loop() is not engine.here:
        engine.check()
    self = engine.acquirer
    watchdog, waiters = self._watchdog, self._waiters
    task = watchdog.current_task()
    if enters:
        owner = task
    known = deadlock.lineage.get()
    if known is None or known[0]() is not owner:
        deadlock.remember(owner)
        known = deadlock.lineage.get()
    if owner in watchdog.owned and (held := self.held(policy, owner)) is not None:
        if entry is not None:
            begins = partial(enter, *entry, policy.cancels)
        assert begins is not None
        return _lease_of(lease_type, held, watchdog, policy, begins)
    self.number = number = self.number + 1
    waiter = new(WaiterId, (self._client, number))
    acquisition = Acquisition()
    acquisition.waiter, acquisition.policy, acquisition.owner = waiter, policy, owner
    acquisition.lineage, acquisition.began = known, self._time()
    if owner is not task:
        acquisition.stands_still = False
    if label:
        acquisition.label = label
    if not self._slow_monitor.awake:
        self._slow_monitor.wake()
    limit: TimeLimit | None = None
    lease: Lease | None = None
    why: GaveUp = "busy"
    # Once it is added, only what follows removes it again, so nothing may raise in between.
    waiting, key = waiters.acquisitions, policy.key
    if key in waiting:
        waiting[key][waiter] = acquisition
    else:
        waiting[key] = {waiter: acquisition}
    waiters.by_age[number] = acquisition
    try:
        if timeout is not None:
            acquisition.patient = False
            limit = TimeLimit(acquisition, timeout, self.answer_timeout, since)
            self.limits.begin(limit)
        handoff = watchdog.handoff
        if handoff.ask_to is None or timeout == 0 or (policy.most and handoff.names):
            waiters.ask(acquisition, wait=timeout != 0)
        else:  # the same, without the call
            acquisition.asked_by, acquisition.last_asked = waiters, acquisition.began
            acquisition.waits_for = Prompt(loop=watchdog.loop)
            question = (key, waiter, policy.form, policy.lease, 0, True, policy.most)
            acquisition.question = handoff.ask_to(new(Acquire, question), acquisition)
        await acquisition.waits_for
        now = self._time()
        if (
            acquisition.phase is Phase.GRANTED
            and now < acquisition.deadline
            and not acquisition.stale_fence
            and policy.usual
        ):
            granted = True
        else:
            granted = await self.late.go_on(acquisition, wait=timeout != 0)
            now = self._time()
        if granted:
            if limit is not None:
                limit.end()
            if acquisition.clocks is None and not waiters.all_asked:
                # As `leave`: it was never in the queue.
                others = waiting[key]
                del others[waiter], waiters.by_age[number]
                if not others:
                    del waiting[key]
            else:
                waiters.leave(acquisition, now)
            watchdog.keep(acquisition, now)
            del acquisition.waits_for  # which keeps the context of its task
            if self._events.often:
                self._events.acquired(acquisition)
            # As `lease_of`, and as `enter`, without the calls.
            lease = lease_type()
            lease._watchdog, lease._hold = watchdog, acquisition
            if policy.shared:
                lease._shares = True
            acquisition.leases, acquisition.speaking = (lease,), 1
            if begins is not None:
                begins(lease)
            elif entry is not None:
                body, paired = Scope(), entry[0].exit
                body.lease, body.task = lease, owner
                if not policy.cancels:
                    body.cancels = False
                if owner is not None:
                    body.before = owner.cancelling()
                bodies = (ref(body, partial(collected, lease)),)
                body.alone = acquisition.bodies = bodies
                left_by = None if paired is None else paired()
                if left_by is None:
                    entry[1]._entered.add(entry[1], body)
                else:
                    left_by.body = (entry[1], body)
            return lease
    except TimedOut:
        assert limit is not None
        why = limit.reason(acquisition, self._waiters.broken)
        self.give_up(acquisition)
    except BaseException as error:  # noqa: BLE001  # it is raised below
        why = reason(error)
        if acquisition.waiter in watchdog.holds:  # nobody has the lease, so it would last for ever
            not_entered(watchdog, acquisition, lease)
        self.give_up(acquisition)
        raise policy.with_context(error)  # noqa: B904  # it has the cause of the other
    finally:
        if lease is None and acquisition.phase is not Phase.HELD:
            if limit is not None:
                limit.end()
            self.end_without_grant(acquisition, why)
    if why == "store":
        assert limit is not None
        raise error_factories.unanswered(
            policy, limit.name, limit.given, watchdog.handoff, self._waiters.broken
        )
    if not raises:
        return None
    assert limit is not None
    raise await not_acquired(
        acquisition,
        limit,
        since,
        store=watchdog.handoff,
        servers=self._servers(),
        time=self._time,
    )


def _lease_of(
    lease_type: type[Lease],
    held: Acquisition,
    watchdog: Watchdog,
    policy: Policy,
    begins: Callable[[Lease], object],
) -> Lease:
    """One more lease of what the owner holds already."""
    lease = None
    try:
        lease = lease_of(lease_type, watchdog, held, shares=policy.shared)
        begins(lease)
    except BaseException:
        not_entered(watchdog, held, lease)
        raise
    return lease


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
        self.answer_timeout = answer_timeout
        self.limits = TimeLimits()
        self._servers = servers
        self._waiters = waiters
        self._slow_monitor = slow_monitor
        self._events = watchdog.events
        self._watchdog = watchdog
        self._client = client
        self._time = watchdog.time
        self.number = 0
        """That of the last acquisition; `acquire` counts it up."""

    @cached_property
    def late(self) -> Late:
        """Made when it is first needed: most acquisitions need nothing of it."""
        return Late(self._waiters, self._watchdog)

    # Before the first question

    def held(self, policy: Policy, owner: asyncio.Task[Any] | None) -> Acquisition | None:
        """What the owner holds of this lock already, if it may have it once more."""
        if policy.rule is not Rule.ALWAYS:
            return None  # permits add up; a barrier, latch or event holds nothing
        held = self._watchdog.held_by(owner, policy.key)
        if held is None:
            return None
        if (held.shared or held.policy.shared) and not policy.shared:
            raise error_factories.reads_already(policy)
        if not policy.reentrant:
            raise error_factories.holds_already(policy)
        return held

    def end_without_grant(self, acquisition: Acquisition, why: GaveUp) -> None:
        """Remove the acquisition, and report why it ended."""
        self._waiters.leave(acquisition, self._time())
        if self._events.often:
            self._events.gave_up(acquisition, why, self._time())

    def give_up(self, acquisition: Acquisition) -> None:
        """Release what the store has for it: a place, or a grant that is made at this moment."""
        if acquisition.gives_up():
            self._watchdog.give_up(acquisition)

    # The end

    async def aclose(self) -> None:
        """Stop all acquisitions, with `ClientClosed`, and give them up."""
        acquisitions = self._waiters.acquisitions.values()
        left = deque(acquisition for each in acquisitions for acquisition in each.values())
        take = turns().take
        self._waiters.close_timers()
        try:
            await self._watchdog.handoff.flush_reports()
            while left:
                await take(_CLOSING)
                self._close(left.popleft())
        finally:
            self.limits.close()
            for acquisition in left:  # without a pause, because this was cancelled
                self._close(acquisition)

    def _close(self, acquisition: Acquisition) -> None:
        acquisition.stop(
            ClientClosed("this client was closed while a task waited for it", closed=True)
        )
        self.give_up(acquisition)


def reason(error: BaseException) -> GaveUp:
    """The reason that observers get for this error."""
    for kind, why in _REASONS:
        if isinstance(error, kind):
            return why
    return "store"
