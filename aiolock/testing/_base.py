"""The base of all parts of the suite: the store under test, and its clients."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, ClassVar, NoReturn

from aiolock.protocol import (
    Busy,
    Form,
    Granted,
    Participant,
    Post,
    Queued,
    ReadStatus,
    RequestRelease,
)
from aiolock.store import Store
from aiolock.testing._peer import A_MOMENT, LONG, PATIENCE, PLAIN, Grant, Peer, Place


class Contract(ABC):
    """See `StoreContract`."""

    counts_who_listens: ClassVar[bool] = True
    """Whether the store can count listeners. A store that cannot must consider no client dead."""
    reports_who_holds: ClassVar[bool] = True
    """Whether the answer to a waiter that does not wait has the holder: see `Busy.holder`."""
    holds_end_with_client: ClassVar[bool] = False
    """Whether a hold ends with its client's session: see `aiolock.stores.authors.Sessions`."""
    max_skew: ClassVar[float] = 0.0
    """By how many seconds the clocks of two clients may differ, in a store that has no other. A
    lease that has ended is respected for up to twice that: by a client that waits for so long, and
    whose clock is behind."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Have its tests run in whichever mode pytest-asyncio is, where that is what runs them.

        Those of a store's author are the author's affair, as are fixtures.
        """
        super().__init_subclass__(**options)
        # pytest is not needed for a `FaultyStore` alone.
        if "pytest_asyncio" in sys.modules and not _is_ours(cls):
            import pytest

            for base in filter(_is_ours, cls.__mro__):
                for name, test in vars(base).items():
                    if name.startswith("test_") and not hasattr(test, "pytestmark"):
                        assert inspect.iscoroutinefunction(test)
                        pytest.mark.asyncio(test)

    @abstractmethod
    def store(self) -> Store:
        """Another unopened store, of the same server each time."""

    async def left_behind(self, name: str) -> object:  # noqa: ARG002  # for subclasses
        """The data that the server keeps for ``name``, and would not forget within minutes.

        For stores that can look into their server; any true value fails a test.
        """
        return None

    async def spoil(self, name: str) -> bool:  # noqa: ARG002  # for subclasses
        """Write something that is not aiolock's where the server keeps the data of ``name``.

        For stores that can look into their server; False if nothing was written.
        """
        return False

    @asynccontextmanager
    async def peers(self, count: int) -> AsyncGenerator[list[Peer], None]:
        """So many clients of the server, opened; closed at the end."""
        async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
            yield [
                await stack.enter_async_context(Peer(self.store(), self.expire))
                for _ in range(count)
            ]

    async def expire(self, peer: Peer, name: str, grant: Grant) -> None:
        """Let this lease end at the server as if nothing had renewed it.

        By default it is renewed for a millisecond. Override this for a store whose renewals cannot
        make a lease shorter.
        """
        await peer.renew_for_a_moment(name, grant)
        await asyncio.sleep(2 * self.max_skew)

    def _at_most(self, lease: int) -> float:
        """How long (ms) a lease of so many ms is respected by others, at most."""
        return lease + 2000 * self.max_skew

    async def _moment(self) -> None:
        """Wait until a lease of 1 ms has certainly ended."""
        await asyncio.sleep(A_MOMENT + 2 * self.max_skew)

    def _needs_a_count(self) -> None:
        """Skip a test of clients that are dead."""
        if not self.counts_who_listens:
            self._skip("this store cannot count who listens, and considers no client dead")

    @staticmethod
    def _skip(reason: str) -> NoReturn:
        import pytest  # not needed for a `FaultyStore` alone

        pytest.skip(reason)

    @staticmethod
    def _runs_here(party: Participant) -> None:
        assert party.host in (socket.gethostname(), "")
        assert party.pid in (os.getpid(), 0)

    @staticmethod
    async def _takes_over(peer: Peer, name: str, place: Place) -> Grant:
        """A waiter asks again, and is granted the lock: in the answer, or by a push."""
        answer = await peer.ask(name, place.waiter, ticket=place.ticket)
        if isinstance(answer, Queued):
            handed = await peer.handed()
            assert handed.waiter == place.waiter
            return Grant(handed.waiter, handed.fence)
        assert isinstance(answer, Granted), answer
        return Grant(place.waiter, answer.fence)

    async def _closed(self, name: str, peer: Peer, *, most: int) -> None:
        """Check that there is no holder, no waiter enters, and a try learns when it opens."""
        answer = await peer.ask(name, wait=False)
        assert isinstance(answer, Busy), answer
        assert 0 < answer.until <= self._at_most(most)
        status = await peer.store.submit(ReadStatus(name))
        assert status.holders == ()
        assert 0 < status.closed <= self._at_most(most) / 1000
        assert await peer.store.submit(RequestRelease(name)) == 0

    @staticmethod
    async def _count_up(peer: Peer, name: str, count: int) -> int:
        """Raise the count to at least this number."""
        return await peer.store.submit(
            Post(name, count, token="", declared=0, value="", remember=10 * LONG)
        )

    async def _opened(self, name: str, peer: Peer, form: Form = PLAIN) -> Grant:
        """Wait in the queue until it opens: ask then, or be granted it by a push."""
        waiter, ticket, fence = peer.waiter(form), 0, 0
        while not fence:
            answer = await peer.ask(name, waiter, ticket=ticket)
            if isinstance(answer, Granted):
                fence = answer.fence
                if answer.claim:
                    await peer.confirm(name, Grant(waiter, fence))
                break
            assert isinstance(answer, Queued), answer
            assert answer.place == 1
            ticket = answer.ticket
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(answer.until / 1000):
                    fence = (await peer.confirm(name, await peer.handed())).fence
        assert (await peer.store.submit(ReadStatus(name))).closed == 0
        return Grant(waiter, fence)


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith(f"{__package__}.")
