"""`RateLimit` for threads."""

from __future__ import annotations

from types import TracebackType
from typing import Unpack

import aiolock
from aiolock.copying import CopiedAsItself
from aiolock.options import DEFAULT, Default, Seconds
from aiolock.protocol import Status
from aiolock.signatures import NoOptions, unexpected, without_unknown
from aiolock.sync._body import Opened


class RateLimit(CopiedAsItself):
    """Tokens that come one by one: as `aiolock.RateLimit`, for threads. Holds nothing.

    ``with limit:`` takes one token at its begin, and does nothing at its end. Errors are those of
    `acquire`. Interrupted while it waits (Ctrl-C), a thread leaves the queue; tokens that it gets
    at that moment are spent.
    """

    __slots__ = ("_client", "_limit")

    def __init__(self, client: Opened, limit: aiolock.RateLimit) -> None:
        self._client = client
        self._limit = limit

    def __repr__(self) -> str:
        return repr(self._limit)

    @property
    def name(self) -> str:
        """The name of the rate limit."""
        return self._limit.name

    @property
    def interval(self) -> float:
        """Seconds from one token to the next: ``per / limit``, rounded up to microseconds."""
        return self._limit.interval

    @property
    def burst(self) -> int:
        """The number of tokens in the full bucket: so many can be taken at once."""
        return self._limit.burst

    @without_unknown
    def acquire(
        self,
        n: int = 1,
        *,
        timeout: Seconds | Default | None = DEFAULT,
        label: str | None = None,
        **unknown: Unpack[NoOptions],
    ) -> aiolock.Verdict:
        """Take ``n`` tokens, or wait until they are there; as `aiolock.RateLimit.acquire`."""
        for wrong in unknown:
            raise unexpected(RateLimit.acquire, wrong)

        async def take() -> aiolock.Verdict:
            return await self._limit.acquire(n, timeout=timeout, label=label)

        self._limit._of(n)
        return self._client.call(take, waits=True)

    @without_unknown
    def try_acquire(
        self,
        n: int = 1,
        *,
        timeout: Seconds = 0,
        label: str | None = None,
        **unknown: Unpack[NoOptions],
    ) -> aiolock.Verdict:
        """Take ``n`` tokens if they are there now; as `aiolock.RateLimit.try_acquire`."""
        for wrong in unknown:
            raise unexpected(RateLimit.try_acquire, wrong)
        self._limit._of(n)
        return self._client.call(
            lambda: self._limit.try_acquire(n, timeout=timeout, label=label), waits=True
        )

    def resize(self, limit: int, *, per: Seconds, burst: int | None = None) -> None:
        """Set the rate and the burst, for all clients; as `aiolock.RateLimit.resize`."""
        self._client.call(lambda: self._limit.resize(limit, per=per, burst=burst))

    def status(self) -> Status:
        """The waiters, and the rate; as `aiolock.RateLimit.status`."""
        return self._client.call(self._limit.status)

    def __enter__(self) -> aiolock.Verdict:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing is to be released."""
