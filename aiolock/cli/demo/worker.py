"""One worker process: ``python -m aiolock.cli.demo.worker``.

It gets orders, and reports what happened, as lines of JSON on its stdin and stdout. When its stdin
ends, because all is done or the demo itself is gone, it leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypeAlias

import aiolock
from aiolock.cli.demo.customers import CURRENT, Customers, Visit
from aiolock.cli.demo.failure import first, reason
from aiolock.cli.demo.observed import Observed
from aiolock.cli.demo.options import in_a_file
from aiolock.cli.demo.peer import PeerCustomers, new_locks
from aiolock.cli.demo.shop import Sale, Shop, shop_beside
from aiolock.stores import redis, sqlite

_FLUSH: Final = 0.1
"""Seconds for which visits are gathered: reporting each at once would slow the sale down."""

_ARRIVAL: Final = 0.001
"""Seconds per request over which the first ones arrive, so that those of all workers mix. Otherwise
the requests of each worker would stand in the queue, and come back to it, as one block."""

LOCK: Final = "stock"

Guard: TypeAlias = Literal["nothing", "aiolock", "redis-py"]
"""The lock that keeps the customers apart, if any."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The first line that a worker gets."""

    worker: int
    url: str = field(repr=False)
    prefix: str
    ttl: float


@dataclass(frozen=True, slots=True)
class Order:
    """Each later line: an order to serve customers."""

    guard: Guard
    items: int
    at_once: int
    requests: int | None = None
    seconds: float = math.inf
    """Seconds after which the shop closes; for customers under redis-py's `Lock`."""
    stop_at: int | None = None
    """Stop with the lock in hand, once, when no more than this many items are left."""
    stop_after_write: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """The report of a worker that has stopped with the lock in hand."""

    left: int
    """The stock as the buyer had read it."""
    wrote: bool
    fence: int
    entered: int
    """When it had entered (``time.monotonic_ns``)."""


class StoppableShop:
    """A shop in which a buyer stops with the lock in hand: to be killed there, or to go on."""

    def __init__(self, shop: Shop, report: Report) -> None:
        self._shop = shop
        self.open, self.sales = shop.open, shop.sales
        self._report = report
        self.order: Order | None = None
        self.go_on = asyncio.Event()

    async def stock(self) -> int:
        """As the other shop; then perhaps stop, before the write."""
        stock = await self._shop.stock()
        # If nothing is left, there will be no write to stop after.
        if self.order is not None and (stock == 0 or not self.order.stop_after_write):
            await self._stop(self.order, stock, wrote=False)
        return stock

    async def sell(self, sale: Sale) -> None:
        """As the other shop; then perhaps stop, before the release."""
        await self._shop.sell(sale)
        if self.order is not None and self.order.stop_after_write:
            await self._stop(self.order, sale.item, wrote=True)

    async def _stop(self, order: Order, stock: int, *, wrote: bool) -> None:
        if order.stop_at is not None and stock <= order.stop_at:
            self.order = None
            visit = CURRENT.get()
            self._report.tell("stopped", **asdict(Stop(stock, wrote, visit.fence, visit.entered)))
            await self.go_on.wait()


class Report:
    """Reports to the demo."""

    def __init__(self) -> None:
        self._visits: list[list[int]] = []

    def served(self, visit: Visit) -> None:
        """Report a visit: within a tenth of a second, and before any later report."""
        if not self._visits:
            asyncio.get_running_loop().call_later(_FLUSH, self._flush)
        self._visits.append([getattr(visit, field) for field in Visit.__slots__])

    def tell(self, event: str, **fields: object) -> None:
        """Report another event."""
        self._flush()
        _write({"event": event, **fields})

    def _flush(self) -> None:
        if self._visits:
            _write({"event": "served", "visits": self._visits})
            self._visits = []


def _write(message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the demo is gone: our stdin ends too
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


async def _told() -> AsyncIterator[dict[str, Any]]:
    """The demo's messages. A thread reads them: not every event loop takes stdin for a pipe."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes] = asyncio.Queue()

    def read() -> None:
        # Unbuffered, because a buffer's lock that is held here at exit would be a fatal error.
        with contextlib.suppress(RuntimeError), open(0, "rb", buffering=0, closefd=False) as stdin:
            for line in stdin:
                loop.call_soon_threadsafe(lines.put_nowait, line)
            loop.call_soon_threadsafe(lines.put_nowait, b"")

    threading.Thread(target=read, daemon=True).start()
    while line := await lines.get():
        yield json.loads(line)


@asynccontextmanager
async def _customers(
    setup: Setup, order: Order, shop: Shop, lock: aiolock.Lock, report: Report
) -> AsyncGenerator[Customers, None]:
    """The customers of this process, under the guard of the order."""
    if order.guard == "redis-py":
        async with new_locks(setup.url, setup.prefix, setup.ttl, order.at_once) as new_lock:
            yield PeerCustomers(setup.worker, shop, report.served, new_lock, order.seconds)
    else:
        ours = lock if order.guard == "aiolock" else None
        yield Customers(setup.worker, shop, ours, report.served)


async def _work() -> None:
    told, report = _told(), Report()
    setup = Setup(**await anext(told))
    kind = sqlite if in_a_file(setup.url) else redis
    store = Observed(kind.from_url(setup.url, setup.prefix))
    async with (
        shop_beside(setup.url, setup.prefix) as real_shop,
        aiolock.connect(store, ttl=setup.ttl) as client,
        asyncio.TaskGroup() as tasks,
    ):
        shop = StoppableShop(real_shop, report)
        lock = client.lock(LOCK)

        async def serve(order: Order) -> None:
            shop.order = order
            try:
                async with _customers(setup, order, shop, lock, report) as customers:
                    await customers.buy(order.at_once, order.requests, _ARRIVAL * order.at_once)
            except Exception as failure:
                _tell_failure(failure)  # at once: leaving may take a while if the server is gone
                raise
            report.tell("done")

        report.tell("ready", client=client.id)
        serving: asyncio.Task[None] | None = None
        async for message in told:
            if "report" in message:
                report.tell("reported")
            elif "go_on" in message:
                shop.go_on.set()
            else:
                serving = tasks.create_task(serve(Order(**message)))
        if serving is not None and not serving.done():
            # The demo is gone. Do not cancel: on Python 3.11 redis-py may swallow a cancellation.
            os._exit(1)


def _tell_failure(failure: Exception) -> None:
    cause = first(failure)
    if (why := reason(cause)) is None:
        raise cause from None
    _write({"event": "failed", "why": why})


def main() -> int:
    """Work until stdin ends; returns the exit code."""
    try:
        asyncio.run(_work())
    except Exception as failure:  # noqa: BLE001  # a bug is raised again
        _tell_failure(failure)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
