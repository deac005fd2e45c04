"""One opening of a store: its members, the acquisitions of its client, and what is offered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiolock._turns import at_once, in_parts
from aiolock.protocol import Deliver, LinkChanged, Reconnected
from aiolock.stores._member import Member, QuorumConfig, Registered
from aiolock.stores.quorum._acquisitions import QuorumAcquisitions
from aiolock.stores.quorum._connection import MemberConnection
from aiolock.stores.quorum._inspection import Inspection
from aiolock.stores.quorum._membership import Membership
from aiolock.stores.quorum._posted import PostedValues


class Session:
    """From the opening of a store to its close; the `Host` of the members' connections."""

    def __init__(self, members: Sequence[Member], config: QuorumConfig, deliver: Deliver) -> None:
        self._loop = asyncio.get_running_loop()
        self._deliver = deliver
        self._open = self._closed = False
        """Whether a majority was joined; and whether it was closed since, or before."""
        self._able = False
        """Whether a majority can be asked, as was reported."""
        self.membership = Membership(members, config, self)
        self.acquisitions = QuorumAcquisitions(self.membership, deliver)
        self.pushes = self.acquisitions.pushes
        self.inspection = Inspection(self.membership, self.acquisitions.table)
        self.posted = PostedValues(self.membership)

    async def open(self, client: str) -> None:
        """Join the members; `StoreError` without a majority."""
        await self.membership.join(client)
        self._open = self._able = True
        self.membership.decides = self.membership.has_majority_of_votes

    async def aclose(self) -> None:
        """End all acquisitions, and leave the members."""
        self._closed = True
        steps = self.acquisitions.closing()
        next(steps)  # at once: what comes from now on has no effect
        try:
            await asyncio.sleep(0)
            await in_parts(steps)
        finally:
            at_once(steps)  # the rest, if this is cancelled
            await self.membership.leave()

    # Events of the connections

    def joined(self, connection: MemberConnection) -> None:
        """See `Host`."""
        if not self._closed:
            self.membership.joined()
            if connection.is_joined:
                self.reach_changed(connection)

    def registered(self, connection: MemberConnection, registered: Registered) -> None:
        """See `Host`."""
        if not self._closed:
            if connection.run != registered.run:
                connection.clock_changed()
            self.membership.registered(connection, registered)
            if connection.in_reach:
                self._loop.call_soon(self._ask_there, connection.number)

    def reach_changed(self, connection: MemberConnection) -> None:
        """See `Host`."""
        if self._closed or not self._open:
            return
        able, before = self.membership.able, self._able
        self._able = able
        self.voting_changed()
        if before and not able:
            self._deliver(LinkChanged(self.membership.too_few()))
        elif able and not before:
            self._deliver(LinkChanged(None))
            self._deliver(Reconnected())
        elif connection.in_reach:
            self.acquisitions.in_turn.ask_for_client(connection.number)
        elif able:
            self.acquisitions.out_of_reach()

    def voting_changed(self) -> None:
        """See `Host`."""
        if self._closed or not self._open:
            return
        self.membership.decides = self.membership.has_majority_of_votes
        self.acquisitions.suspension.voting_changed()

    def ask_there(self, server: int) -> None:
        """See `Host`."""
        if not self._closed:
            self.acquisitions.in_turn.ask_for_client(server)
            self.pushes.may_be_inquired(server)

    def _ask_there(self, server: int) -> None:
        if not self._closed:
            self.acquisitions.in_turn.ask_for_client(server)
