"""The customers: each asks for an item, waits its turn, buys it, and comes back for another."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic_ns

from aiolock import LeaseLost, Lock
from aiolock.cli.demo.shop import Sale, Shop


@dataclass(slots=True)
class Visit:
    """One request, with the times of its events (``time.monotonic_ns``; 0: it did not happen)."""

    worker: int
    number: int
    """Its number among the requests of its process."""
    asked: int
    queued: int = 0
    """When it was known to wait: to stand in the lock's queue, if there is one."""
    entered: int = 0
    """When its turn came; 0 if the shop had closed, or the lease was lost, before."""
    leaving: int = 0
    """When it was done, and began to release the lock."""
    fence: int = 0
    sold: bool = False
    lost: bool = False
    customer: int = 0
    """The customer of its process that made it."""
    tries: int = 0
    """How often it asked for the lock, if the customer has to ask again: with redis-py's."""


CURRENT: ContextVar[Visit] = ContextVar("CURRENT")
"""The visit that the current task makes."""


class Customers:
    """The customers of one process; they share one lock, like a web application's handlers."""

    def __init__(
        self, worker: int, shop: Shop, lock: Lock | None, served: Callable[[Visit], object]
    ) -> None:
        self._worker = worker
        self._shop = shop
        self._lock = lock
        self._served = served

    async def buy(self, at_once: int, requests: int | None, arrival: float = 0.0) -> None:
        """Make ``at_once`` requests at a time, until all is sold, or ``requests`` were made.

        The first ones arrive at random, within ``arrival`` seconds.
        """
        numbers = itertools.count() if requests is None else iter(range(requests))
        async with asyncio.TaskGroup() as group:
            for customer in range(at_once):
                group.create_task(self._customer(customer, numbers, arrival))

    async def _customer(self, customer: int, numbers: Iterator[int], arrival: float) -> None:
        await asyncio.sleep(arrival * random.random())  # noqa: S311  # not a secret
        for number in numbers:
            visit = Visit(self._worker, number, asked=monotonic_ns(), customer=customer)
            CURRENT.set(visit)
            await self._visit(visit)
            self._served(visit)
            if not visit.sold and not visit.lost:
                return  # sold out, or closed

    async def _visit(self, visit: Visit) -> None:
        if self._lock is None:
            return await self._buy_one(visit)
        try:
            async with self._lock as lease:
                visit.fence = lease.fence
                await self._buy_one(visit)
        except LeaseLost:
            visit.lost = True

    async def _buy_one(self, visit: Visit) -> None:
        """Read, work, write: this is right only while no other buyer does the same."""
        visit.entered = monotonic_ns()
        stock = await self._shop.stock()
        if stock > 0:
            await asyncio.sleep(0)  # the work: ask the bank, send the mail
            await self._shop.sell(Sale(item=stock, fence=visit.fence))
            visit.sold = True
        visit.leaving = monotonic_ns()
