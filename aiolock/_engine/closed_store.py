"""The replacement for a client's store in the leases of an opening that has ended."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from aiolock.errors import StoreError
from aiolock.protocol import Deliver, Operation
from aiolock.store import Store

Value = TypeVar("Value")


class ClosedStore:
    """Refuses every operation, as a closed store does.

    A body may outlive the closing of its client, and end when the client is open again. For the
    store, each opening is another client. A store may write the id of the present client into a
    command of the old lease, which would then name another waiter with the same number.
    """

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop
        self.features = store.features

    def __repr__(self) -> str:
        return repr(self._store)

    async def open(self, client: str, deliver: Deliver) -> None:  # noqa: ARG002  # a `Store`'s
        """Never called: the client opens the store itself."""
        raise self._refusal()

    async def aclose(self) -> None:
        """Nothing to close: the store is the client's."""

    def submit(self, operation: Operation[Value]) -> asyncio.Future[Value]:  # noqa: ARG002  # all
        """Refuse it."""
        refused: asyncio.Future[Value] = self._loop.create_future()
        refused.set_exception(self._refusal())
        return refused

    def _refusal(self) -> StoreError:
        error = StoreError("the client was closed")
        error.refused = True
        return error
