"""Renewals: the leases that holds live with are prolonged, one message for each, and no write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from aiolock.errors import StoreError
from aiolock.protocol import Operation, Renew, Renewal
from aiolock.stores.etcd._failures import CallError
from aiolock.stores.etcd._holds import REFRESH, Holds
from aiolock.stores.etcd._lease import OwnLease
from aiolock.stores.etcd._own_leases import OwnLeases
from aiolock.stores.etcd._servers import PATIENCE

_PAUSE: Final = 0.05
"""Seconds until a lease is tried to be prolonged again."""

Answers = list[bool | None]


class Renewals:
    """Those of one client.

    A claim, a hold that ends by the clock and one that is not certain are renewed in their
    documents, by the operations of each name.
    """

    def __init__(
        self,
        holds: Holds,
        leases: OwnLeases,
        submit: Callable[[Operation[Any]], asyncio.Future[Any]],
    ) -> None:
        self._holds, self._leases, self._submit = holds, leases, submit
        self._loop = asyncio.get_running_loop()

    async def carry_out(self, asked: Renew, now: float) -> Answers:
        """Renew them; they were asked for at ``now``, from which their new deadlines count."""
        by_lease = dict[OwnLease | None, list[int]]()
        for at, renewal in enumerate(asked.renewals):
            by_lease.setdefault(self._lives_with(renewal, now), []).append(at)
        groups = [
            self._group(lease, [asked.renewals[at] for at in which], now)
            for lease, which in by_lease.items()
        ]
        found = await asyncio.gather(*groups, return_exceptions=True)
        answers: Answers = [None] * len(asked.renewals)
        for which, group in zip(by_lease.values(), found, strict=True):
            if isinstance(group, BaseException):
                if len(groups) == 1 or not isinstance(group, StoreError):
                    raise group
                continue  # unknown
            for at, answer in zip(which, group, strict=True):
                answers[at] = answer
        return answers

    def _lives_with(self, renewal: Renewal, now: float) -> OwnLease | None:
        """The lease that has to be prolonged; None if the document has to be looked at."""
        hold = self._holds.find(renewal.name, renewal.waiter, renewal.fence)
        if hold is None or hold.lease is None or hold.ttl != renewal.ttl or hold.lease.ended:
            return None
        return hold.lease if hold.written + REFRESH > now else None

    async def _group(
        self, lease: OwnLease | None, renewals: Sequence[Renewal], now: float
    ) -> Answers:
        if lease is None:
            answers: Answers = await self._submit(Renew(renewals))
            return answers
        ttl = max(each.ttl for each in renewals) / 1000  # several may have the same lease
        while True:
            try:
                await self._leases.prolong(lease, now + ttl - lease.seconds)
                break
            except CallError as error:
                if error.lasting or self._loop.time() + _PAUSE >= now + PATIENCE:
                    raise StoreError(f"the lease was not prolonged in time: {error}") from error
            await asyncio.sleep(_PAUSE)
        for name, waiter, _, fence, milliseconds in renewals:
            hold = self._holds.find(name, waiter, fence)
            if lease.ended:
                self._holds.forget(name, waiter, fence)
            elif hold is not None:
                hold.until = now + milliseconds / 1000
        return [not lease.ended] * len(renewals)
