"""Takes tokens of a rate limit: asks the store, waits in the queue, and holds nothing afterwards.

The same as `acquire`, for what has no lease: nothing is kept, renewed, lost or released.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from aiolock._engine import error_factories
from aiolock._engine.acquirer import reason
from aiolock._engine.acquisition import Acquisition, Phase
from aiolock._engine.policy import Policy
from aiolock._engine.rate_queue import RateQueue
from aiolock._engine.time_limit import TimedOut, TimeLimit
from aiolock.observer import GaveUp
from aiolock.protocol import Busy, WaiterId

if TYPE_CHECKING:
    from aiolock._engine.engine import Engine


class Taken(NamedTuple):
    """The outcome."""

    ok: bool
    """Whether the tokens were taken."""
    left: int
    """If so, in how many µs the bucket is full again; if not, in how many the tokens are there."""
    waited: float
    """Seconds since the call."""


async def take(
    engine: Engine,
    policy: Policy,
    timeout: float | None,
    *,
    label: str = "",
) -> Taken:
    """Take tokens when they are there, at most within ``timeout`` seconds (0: those that are now).

    Cancelled, it leaves the queue; tokens that it gets at that moment are spent.
    """
    engine.check()
    self, watchdog, waiters = engine.acquirer, engine.watchdog, engine.waiters
    acquisition = _new(engine, policy, label)
    limit: TimeLimit | None = None
    why: GaveUp = "busy"
    left = 0
    # Once it is added, only what follows removes it again, so nothing may raise in between.
    waiters.acquisitions.setdefault(policy.key, {})[acquisition.waiter] = acquisition
    waiters.by_age[acquisition.waiter.seq] = acquisition
    try:
        if timeout is not None:
            acquisition.patient = False
            limit = TimeLimit(acquisition, timeout, self.answer_timeout, None)
            self.limits.begin(limit)
        waiters.ask(acquisition, wait=timeout != 0)
        await acquisition.waits_for
        if await self.late.go_on(acquisition, wait=timeout != 0):
            acquisition.since = now = watchdog.time()
            waiters.leave(acquisition, now)
            acquisition.phase = Phase.HELD
            if watchdog.events.often:
                watchdog.events.acquired(acquisition)
            return Taken(ok=True, left=acquisition.fence, waited=now - acquisition.began)
        assert isinstance(acquisition.declined, Busy)
        left = acquisition.declined.until
    except TimedOut:
        assert limit is not None
        why = limit.reason(acquisition, waiters.broken)
        if isinstance(acquisition.queue, RateQueue):
            left = round(acquisition.queue.expected(acquisition.waiter) * 1_000_000)
        self.give_up(acquisition)
    except BaseException as error:  # noqa: BLE001  # it is raised below
        why = reason(error)
        self.give_up(acquisition)
        raise policy.with_context(error)  # noqa: B904  # it has the cause of the other
    finally:
        if limit is not None:
            limit.end()
        if acquisition.phase is not Phase.HELD:
            self.end_without_grant(acquisition, why)
    if why == "store":
        assert limit is not None
        raise error_factories.unanswered(
            policy, limit.name, limit.given, watchdog.handoff, waiters.broken
        )
    return Taken(ok=False, left=left, waited=watchdog.time() - acquisition.began)


def _new(engine: Engine, policy: Policy, label: str) -> Acquisition:
    engine.acquirer.number += 1
    acquisition, watchdog = Acquisition(), engine.watchdog
    acquisition.waiter = WaiterId(engine.client, engine.acquirer.number)
    acquisition.policy, acquisition.label = policy, label
    acquisition.owner, acquisition.began = watchdog.current_task(), watchdog.time()
    acquisition.local_queue = RateQueue
    acquisition.stands_still = False  # it is in no deadlock: nobody holds what it waits for
    if not engine.slow_monitor.awake:
        engine.slow_monitor.wake()
    return acquisition
