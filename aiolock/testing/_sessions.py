"""The part of the suite about clients whose session at the server ends while they live."""

from __future__ import annotations

from abc import abstractmethod

from aiolock.protocol import ReadStatus
from aiolock.testing._base import Contract
from aiolock.testing._peer import Peer, fresh_name


class SessionContract(Contract):
    """The requirements of a store that knows which clients are alive by their sessions.

    A session is what shows at the server that a client is alive: a key with a lease, for example.
    It may end although its client lives, if the server could not be reached for a while. Then the
    client has another one.
    """

    @abstractmethod
    async def end_session(self, peer: Peer) -> None:
        """End what shows at the server that this client is alive, and not by the client itself.

        In a store where holds live with sessions, these end too.
        """

    async def test_session_that_ended_is_replaced_and_reported(self) -> None:
        """The client asks again, and has its old place in the queue."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := fresh_name())
            place = await bob.queue(name)
            last = await cat.queue(name)
            await self.end_session(bob)
            await bob.reconnected.wait()
            again = await bob.queue(name, place.waiter, ticket=place.ticket)
            assert again == place
            await ann.release(name, grant)
            handed = await bob.handed()
            assert handed.waiter == place.waiter
            await bob.release(name, await bob.confirm(name, handed))
            assert (await cat.handed()).waiter == last.waiter

    async def test_session_that_ended_with_its_holds_brings_none_back(self) -> None:
        """A hold has ended with it, also if its client has another one before anybody looks."""
        if not self.holds_end_with_client:
            self._skip("the holds of this store do not live with sessions")
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            await self.end_session(ann)
            await ann.reconnected.wait()
            other = await ann.take(fresh_name())
            assert not await ann.holds(name, grant)
            after = await bob.take(name)
            assert after.fence > grant.fence
            assert other.fence

    async def test_hold_ends_with_the_session_of_its_client(self) -> None:
        """Nobody need wait for the end of a lease: a waiter that asks then has the lock."""
        if not self.holds_end_with_client:
            self._skip("the holds of this store do not live with sessions")
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            place = await bob.queue(name)
            await self.end_session(ann)
            assert await bob.told_done() == name
            after = await bob.take(name, place.waiter, ticket=place.ticket)
            assert after.fence > grant.fence
            assert (await bob.store.submit(ReadStatus(name))).holders[0].fence == after.fence
