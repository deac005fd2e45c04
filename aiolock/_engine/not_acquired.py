"""The error for a caller that did not get the lock in time, with those that hold it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from aiolock._engine import error_factories
from aiolock._engine.acquisition import Acquisition
from aiolock._engine.diagnostics.labels import labelled
from aiolock._engine.local_handoff import LocalHandoff
from aiolock._engine.time_limit import TimeLimit
from aiolock.errors import AcquireTimeout, StoreError
from aiolock.protocol import Busy, Participant, ReadStatus
from aiolock.store import ServerStatus

_WHO_HOLDS: Final = 0.25
"""Seconds to wait for the holders, for the text of an error."""

_WHAT_CALLED: Final = 0.02
"""Seconds to wait for their labels. Short, because the caller's timeout has already passed."""


async def not_acquired(
    acquisition: Acquisition,
    limit: TimeLimit,
    since: float | None,
    *,
    store: LocalHandoff,
    servers: Sequence[ServerStatus],
    time: Callable[[], float],
) -> AcquireTimeout:
    """The error, with the holders and, unless it was only tried, the time that it waited.

    The holders are read together with the release, so that costs no further round trip. Reading
    their labels costs one, so they are left out if the store is far away.
    """
    policy, holders, more = acquisition.policy, tuple[Participant, ...](), 0
    if not limit.timeout:
        declined = acquisition.declined
        holder = declined.holder if isinstance(declined, Busy) and not policy.passes else None
        return error_factories.not_free(policy, (holder,) if holder else ())
    if not policy.passes and acquisition.clocks is not None:
        with contextlib.suppress(TimeoutError, StoreError):
            async with asyncio.timeout(_WHO_HOLDS):
                status = await store.submit(ReadStatus(policy.key, waiters=False))
                holders, more = status.holders, status.more_holders
                async with asyncio.timeout(_WHAT_CALLED):
                    holders = (await labelled(store, [status]))[0].holders
    error = error_factories.not_in_time(policy, limit.timeout, limit.left, holders, more, servers)
    error.waited = time() - (acquisition.began if since is None else since)
    return error
