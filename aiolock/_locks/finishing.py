"""The end of a body in which the work of a `once` was done."""

from __future__ import annotations

from typing import Protocol

from aiolock._engine.lease import Lease
from aiolock.errors import StoreError
from aiolock.protocol import WAS_UNKNOWN


class _Body(Protocol):
    async def close(self, error: BaseException | None) -> None:
        """Leave it."""
        ...


async def finish_body(
    body: _Body, lease: Lease, error: BaseException | None, remember: int
) -> None:
    """End the body: remember that it is done, unless it raised; `StoreError` if unknown."""
    if error is None:
        lease._watchdog.release(lease._hold, finished=remember)
    await body.close(error)
    released = lease._hold.released
    if error is None and released is not None and released.done():
        failure = released.failure
        if failure is not None or released.was == WAS_UNKNOWN:
            why = failure or "its confirmation was lost"
            raise lease._hold.policy.with_name(
                StoreError(
                    f"{lease.name!r} was done, but nobody knows whether that is remembered: {why}"
                )
            ) from failure
