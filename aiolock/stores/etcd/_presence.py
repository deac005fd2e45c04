"""The presence of this client: the key by which others, and its own swaps, see it as alive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiolock.stores._document import about_us
from aiolock.stores.etcd._failures import CallError, broken
from aiolock.stores.etcd._keys import Keys, end_of
from aiolock.stores.etcd._lease import OwnLease
from aiolock.stores.etcd._messages import (
    has_lease,
    put_op,
    put_request,
    range_op,
    range_request,
    txn_request,
)
from aiolock.stores.etcd._own_leases import PRESENCE, OwnLeases
from aiolock.stores.etcd._registry import CLOSED, Registry
from aiolock.stores.etcd._replies import Range, read_txn
from aiolock.stores.etcd._servers import PATIENCE, Servers
from aiolock.stores.etcd._swaps import Swaps

_PAUSE: Final = 0.2
"""Seconds after which it is tried again to keep a lease alive."""


class Presence:
    """Joins, stays, and joins again if the lease has ended."""

    def __init__(
        self,
        client: str,
        keys: Keys,
        servers: Servers,
        *,
        swaps: Swaps,
        registry: Registry,
        leases: OwnLeases,
        joined_again: Callable[[], None],
    ) -> None:
        self._client, self._keys, self._servers = client, keys, servers
        self._swaps, self._registry, self._leases = swaps, registry, leases
        self._joined_again = joined_again
        self._own = keys.presence(client)
        self._loop = asyncio.get_running_loop()
        self._one = asyncio.Lock()

    async def join(self, until: float) -> int:
        """Become known as alive; the revision from which on letters are complete."""
        lease = self._leases.renew_presence()
        await self._leases.grant(lease, until)
        put = put_op(put_request(self._own, about_us().encode(), lease=lease.id))
        await self._servers.call("KV/Txn", txn_request((), [put]), until=until)
        lease.known = True
        # Not the revision of that reply: the request may have been carried out twice.
        own = await self.read_all(until, range_request(self._own))
        if not own.found or own.found[0].lease != lease.id:
            raise broken(self._servers.connection.address, "the presence has ended at once")
        self._swaps.mark = own.found[0].modified
        return own.revision

    async def read_all(self, until: float, request: bytes) -> Range:
        """What is in a range, and with it all presences and leases, as of one moment."""
        both = self._keys.presences, self._keys.holds
        ranges = [range_op(range_request(prefix, end_of(prefix))) for prefix in both]
        request = txn_request((), [range_op(request), *ranges])
        done = read_txn(await self._servers.call("KV/Txn", request, until=until))
        asked, *others = [each for each in done.responses if isinstance(each, Range)]
        self._registry.read_all([one for each in others for one in each.found], done.revision)
        return asked._replace(revision=done.revision)

    async def rewrite(self, mark: int, until: float) -> None:
        """Write our own key again, unless that was done since it had this mark.

        So no swap that was sent before has an effect any more, if it has had none yet.
        """
        async with self._one:
            if self._swaps.mark != mark:
                return
            request = txn_request(
                [has_lease(self._own, self._leases.presence.id)],
                [put_op(put_request(self._own, about_us().encode(), keeps_lease=True))],
            )
            done = read_txn(await self._servers.call("KV/Txn", request, until=until))
            if done.succeeded:
                self._swaps.mark = done.revision
            else:
                await self._join_again(until)

    async def _join_again(self, until: float) -> None:
        await self.join(until)
        self._joined_again()

    async def run(self) -> None:
        """Keep all leases alive, for ever."""
        while True:
            now = self._loop.time()
            due = [each for each in self._leases if each.sent + each.seconds / 3 <= now]
            tries = [self._keep(lease, now) for lease in due]
            failed = False in await asyncio.gather(*tries)
            now = self._loop.time()
            soonest = min(
                (each.sent + each.seconds / 3 for each in self._leases), default=now + PRESENCE / 3
            )
            await asyncio.sleep(_PAUSE if failed else max(soonest - now, 0.01))

    async def _keep(self, lease: OwnLease, now: float) -> bool:
        presence = self._leases.presence
        try:
            await self._leases.prolong(lease, now)
            if lease is presence and presence.ended:
                async with self._one:
                    if presence is self._leases.presence:  # else a swap has found that out before
                        await self._join_again(self._loop.time() + PATIENCE)
        except CallError:
            return False
        return True

    async def leave(self) -> None:
        """End all leases, in a way that tells others that nobody need wait for their end."""
        until = self._loop.time() + PATIENCE
        leases = list(self._leases)
        puts = list[bytes]()
        for lease in leases:
            if lease.known:
                of_presence = lease is self._leases.presence
                key = self._own if of_presence else self._keys.hold(self._client, lease.text)
                puts.append(put_op(put_request(key, CLOSED, lease=lease.id)))
        try:
            await self._servers.call("KV/Txn", txn_request((), puts), until=until)
        finally:
            revoked = [self._leases.revoke(lease, until) for lease in leases]
            await asyncio.gather(*revoked, return_exceptions=True)
