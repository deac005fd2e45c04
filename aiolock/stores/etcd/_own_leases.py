"""The leases of this client: of its presence, and one for each ttl that its holds have."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from aiolock.protocol import Form
from aiolock.stores.etcd._failures import CallError, broken
from aiolock.stores.etcd._keep_alive import KeepAlive
from aiolock.stores.etcd._keys import Keys
from aiolock.stores.etcd._lease import OwnLease, seconds_for
from aiolock.stores.etcd._messages import lease_grant_request, lease_request, put_request
from aiolock.stores.etcd._servers import PATIENCE, Servers

PRESENCE: Final = 5
"""Seconds after which a client that is stuck, or cut off, counts as dead."""
SHORTEST_HOLD: Final = 10
"""Milliseconds of the shortest hold that lives with a lease."""
_EXISTS: Final = "lease already exists"
"""Said of a lease that an earlier copy of the request has made: its number is ours alone."""


class OwnLeases:
    """Makes them when they are first needed, and knows until when each is certainly alive."""

    def __init__(
        self,
        servers: Servers,
        keep_alive: KeepAlive,
        keys: Keys,
        client: str,
        *,
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._servers, self._keep_alive, self._start = servers, keep_alive, start
        self._keys, self._client = keys, client
        self._loop = asyncio.get_running_loop()
        self._holds = dict[int, OwnLease]()
        """By seconds: the lease with which holds begin now."""
        self._making = dict[OwnLease, asyncio.Task[None]]()
        self._asking = dict[OwnLease, tuple[float, asyncio.Task[None]]]()
        """By lease: the request that is under way, and when it was sent."""
        self.presence = OwnLease(PRESENCE, of_presence=True)

    def __iter__(self) -> Iterator[OwnLease]:
        """Those that etcd has, as far as we know."""
        yield from [each for each in (self.presence, *self._holds.values()) if each.granted]

    def for_ttl(self, ttl: int) -> OwnLease:
        """The lease with which a hold of so many ms lives; etcd may not have it yet."""
        seconds = seconds_for(ttl)
        lease = self._holds.get(seconds)
        if lease is None or lease.ended:
            lease = self._holds[seconds] = OwnLease(seconds)
        return lease

    def of(self, form: Form, ttl: int, *, claim: bool = False) -> OwnLease | None:
        """The lease with which a hold of ours lives; None if that ends by the clock.

        So does one that is not renewed, and one that is shorter than any ttl that a user may give.
        A claim lives with the presence: if the client is stuck, that ends soon.
        """
        if ttl < SHORTEST_HOLD or (form.fixed and not claim):
            return None
        return self.presence if claim else self.for_ttl(ttl)

    def is_alive(self, session: str) -> bool:
        """Whether this session of ours has not ended, or has not begun."""
        if session == self.presence.text:
            return not self.presence.ended
        for lease in self._holds.values():
            if lease.text == session:
                return not lease.ended
        return False

    async def make(self, session: str) -> None:
        """Make the lease of this session, and the key that shows it to others, if need be."""
        for lease in self._holds.values():
            if lease.text == session:
                break
        else:
            raise broken(self._servers.connection.address, "a lease has ended meanwhile")
        if not lease.known:
            task = self._making.get(lease)
            if task is None:
                task = self._making[lease] = self._start(self._make(lease))
                task.add_done_callback(lambda _: self._making.pop(lease, None))
            await self._done(task)

    async def _done(self, task: asyncio.Task[None]) -> None:
        """Wait for what others may wait for, too; `CallError` if it fails, or is cancelled."""
        await asyncio.wait([task])
        if task.cancelled():
            raise broken(self._servers.connection.address, "the store is closed")
        task.result()

    async def _make(self, lease: OwnLease) -> None:
        until = self._loop.time() + PATIENCE
        await self.grant(lease, until)
        key = self._keys.hold(self._client, lease.text)
        await self._servers.call("KV/Put", put_request(key, b" ", lease=lease.id), until=until)
        lease.known = True

    async def grant(self, lease: OwnLease, until: float) -> None:
        """Have etcd make the lease."""
        sent = self._loop.time()
        request = lease_grant_request(lease.seconds, lease.id)
        try:
            await self._servers.call("Lease/LeaseGrant", request, until=until)
        except CallError as error:
            if _EXISTS not in str(error):
                raise
        lease.granted = True
        lease.prolonged(sent)

    async def prolong(self, lease: OwnLease, since: float) -> None:
        """Return when it was prolonged at ``since`` or later; `CallError` if that is unknown.

        Look at `OwnLease.ended` afterwards.
        """
        while lease.sent < since and not lease.ended:
            sent, task = self._asking.get(lease) or self._ask(lease)
            if sent < since:
                sent, task = self._ask(lease)
            await self._done(task)

    def _ask(self, lease: OwnLease) -> tuple[float, asyncio.Task[None]]:
        sent = self._loop.time()
        asked = sent, self._start(self._prolong(lease, sent))
        self._asking[lease] = asked
        return asked

    async def _prolong(self, lease: OwnLease, sent: float) -> None:
        try:
            seconds = await self._keep_alive.ask(lease.id)
        finally:
            if self._asking.get(lease, (0.0, None))[0] == sent:
                del self._asking[lease]
        if seconds > 0:
            lease.prolonged(sent)
        else:
            self.end(lease)

    def end(self, lease: OwnLease) -> None:
        """It is over; the next hold begins with another one."""
        lease.ended = True
        if self._holds.get(lease.seconds) is lease:
            del self._holds[lease.seconds]

    def is_gone(self, key: bytes) -> bool:
        """There is no such key: whether it was that of a lease of ours, which is over for us."""
        for lease in list(self._holds.values()):
            if lease.known and key == self._keys.hold(self._client, lease.text):
                self.end(lease)
                return True
        return False

    def renew_presence(self) -> OwnLease:
        """Another lease for the presence, which etcd does not have yet."""
        self.presence.ended = True
        self.presence = OwnLease(PRESENCE, of_presence=True)
        return self.presence

    async def revoke(self, lease: OwnLease, until: float) -> None:
        """End it, and what is attached to it."""
        await self._servers.call("Lease/LeaseRevoke", lease_request(lease.id), until=until)
