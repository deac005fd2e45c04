"""Swaps that are lost, late or overtaken, and sessions that end while their clients live."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aiolock.protocol import Form, Granted
from aiolock.store import Store
from aiolock.stores.etcd import _settings
from aiolock.stores.etcd._failures import CallError, broken
from aiolock.stores.etcd._messages import is_absent, put_op, put_request
from aiolock.stores.etcd._store import EtcdStore
from aiolock.stores.etcd._swaps import Outcome, Swap
from aiolock.testing import Peer, SessionContract, SwapContract
from aiolock.testing._swaps import SwapFaults
from tests.support.etcds import EtcdServer


class _Faulty(EtcdStore):
    """A store whose requests with swaps fail as they are told."""

    faults: SwapFaults

    async def open(self, client: str, deliver: Any) -> None:
        await super().open(client, deliver)
        assert self._session is not None
        servers = self._session._servers
        call = servers.call

        async def faulty(
            method: str,
            request: bytes,
            *,
            until: float,
            repeatable: bool = True,
            opening: bool = False,
        ) -> bytes:
            assert not opening

            async def send() -> bytes:
                later = asyncio.get_running_loop().time() + 1
                return await call(method, request, until=later, repeatable=repeatable)

            if repeatable:
                return await send()
            try:
                async with asyncio.timeout(1.5):
                    return await self.faults.carry_out(send)
            except (ConnectionResetError, TimeoutError) as error:
                raise broken("the test", str(error)) from None

        servers.call = faulty  # type: ignore[method-assign]  # a fault below all else


class TestEtcdSwaps(SwapContract):
    """See `SwapContract`."""

    holds_end_with_client = True

    @pytest.fixture(autouse=True)
    def _server(self, etcd_server: EtcdServer, prefix: str) -> None:
        self._etcd, self._prefix = etcd_server, prefix

    def store(self) -> Store:
        """Another link, through which swaps fail as the test says."""
        store = _Faulty(_settings.from_url(self._etcd.url()), self._prefix)
        store.faults = self.faults
        return store


class TestEtcdSessions(SessionContract):
    """See `SessionContract`."""

    holds_end_with_client = True

    @pytest.fixture(autouse=True)
    def _server(self, etcd_server: EtcdServer, prefix: str) -> None:
        self._etcd, self._prefix = etcd_server, prefix

    def store(self) -> Store:
        """Another link to the server."""
        return EtcdStore(_settings.from_url(self._etcd.url()), self._prefix)

    async def end_session(self, peer: Peer) -> None:
        """Revoke all its leases, without its knowledge."""
        assert isinstance(peer.store, EtcdStore)
        assert peer.store._session is not None
        leases = [f"{lease.id:x}" for lease in peer.store._session.leases]
        await asyncio.gather(
            *(asyncio.to_thread(self._etcd.ctl, "lease", "revoke", lease) for lease in leases)
        )


async def test_swaps_too_large_for_a_common_request_are_sent_alone(
    etcd_server: EtcdServer, prefix: str
) -> None:
    """A transaction in another one has fewer operations left: the others go together."""
    async with Peer(EtcdStore(_settings.from_url(etcd_server.url()), prefix)) as ann:
        assert isinstance(ann.store, EtcdStore)
        assert ann.store._session is not None
        swaps = ann.store._session.swaps
        loop = asyncio.get_running_loop()

        def swap(number: int, conditions: int, until: float = 4) -> Swap:
            key = f"{prefix}/{number}".encode()
            return Swap(
                str(number),
                0,
                conditions=[is_absent(key)] * conditions,
                puts=[put_op(put_request(key, b"x"))],
                letters=[],
                reads=[key],
                stamp=b"",
                until=loop.time() + until,
            )

        before = swaps.requests
        large = 5
        outcomes = await swaps.send([swap(n, 120 if n == large else 1) for n in range(60)])
        assert swaps.requests == before + 2
        assert all(isinstance(each, Outcome) and each.succeeded for each in outcomes)
        done, late = await swaps.send([swap(60, 1), swap(61, 1, -1)])
        assert isinstance(done, Outcome)
        assert done.succeeded
        assert isinstance(late, CallError)
        assert late.refused
        (again,) = await swaps.send([swap(3, 1)])
        assert isinstance(again, Outcome)
        assert not again.succeeded
        assert again.found[0] is not None
        assert again.found[0].value == b"x"


async def test_hold_that_nobody_renews_or_releases_ends_after_its_ttl(
    etcd_server: EtcdServer, prefix: str
) -> None:
    """Its lease lives on, for other holds of the client: so the client ends it by itself."""

    def peer() -> Peer:
        return Peer(EtcdStore(_settings.from_url(etcd_server.url()), prefix))

    async with peer() as ann, peer() as bob, asyncio.timeout(20):
        granted = await ann.ask("a", ttl=1000)
        assert isinstance(granted, Granted)
        place = await bob.queue("a")
        handed = await bob.handed()
        assert handed.waiter == place.waiter
        assert handed.fence > granted.fence
        # The same for a claim that is never confirmed: the client lives, and its presence.
        first = await ann.queue("a", ann.waiter(Form(500)))
        last = await bob.queue("a")
        await bob.release("a", await bob.confirm("a", handed))
        assert (await ann.handed()).waiter == first.waiter
        assert (await bob.handed()).waiter == last.waiter
