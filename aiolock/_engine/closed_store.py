"""The replacement for a client's store in the leases of an opening that has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from aiolock.errors import StoreError
from aiolock.store import Operation, Relay, Store

Value = TypeVar("Value")


class ClosedStore(Relay):
    """Refuses every operation, as a closed store does.

    A body may outlive the closing of its client, and end when the client is open again. For the
    store, each opening is another client. A store may write the id of the present client into a
    command of the old lease, which would then name another waiter with the same number.
    """

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(store)
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._store)

    def _call(
        self,
        operation: Operation,  # noqa: ARG002  # see `Relay`
        start: Callable[[], asyncio.Future[Value]],  # noqa: ARG002  # it is never called
    ) -> asyncio.Future[Value]:
        refused: asyncio.Future[Value] = self._loop.create_future()
        error = StoreError("the client was closed")
        error.refused = True
        refused.set_exception(error)
        return refused
