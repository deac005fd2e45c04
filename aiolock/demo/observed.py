"""A lock store that does what another one does, and notes how often, and when it answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from time import monotonic_ns

from aiolock.demo.customers import CURRENT, Visit
from aiolock.store import Answer, Inbox, Queued, Renewal, Status, Store


class Observed:
    """Wraps a store, for the figures only: a program gives `aiolock.connect` a URL."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, Visit] = {}
        self.operations = 0

    async def open(self, client: str, inbox: Inbox) -> bool:
        """Not counted."""
        return await self._store.open(client, inbox)

    async def aclose(self) -> None:
        """Not counted."""
        await self._store.aclose()

    def acquire(
        self, name: str, waiter: str, ttl: int, *, ticket: int, wait: bool, max_waiters: int
    ) -> asyncio.Future[Answer]:
        """Counted, and the answer that the waiter stands in the queue is noted on its visit."""
        self.operations += 1
        answer = self._store.acquire(
            name, waiter, ttl, ticket=ticket, wait=wait, max_waiters=max_waiters
        )
        visit = CURRENT.get(None)
        # A waiter asks for the first time in its own task, and again from a timer of any task.
        if visit is not None and waiter not in self._waiting:
            self._waiting[waiter] = visit
            answer.add_done_callback(partial(_note, visit))
        return answer

    def release(self, name: str, waiter: str, fence: int) -> asyncio.Future[int]:
        """Counted."""
        self.operations += 1
        self._waiting.pop(waiter, None)
        return self._store.release(name, waiter, fence)

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool]]:
        """Counted."""
        self.operations += 1
        return self._store.renew(renewals)

    def status(self, name: str) -> asyncio.Future[Status]:
        """Counted."""
        self.operations += 1
        return self._store.status(name)

    def finish(self, name: str, waiter: str, fence: int, keep: int) -> asyncio.Future[int]:
        """Counted."""
        self.operations += 1
        return self._store.finish(name, waiter, fence, keep)

    def request(self, name: str) -> asyncio.Future[int]:
        """Counted."""
        self.operations += 1
        return self._store.request(name)

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        """Counted."""
        self.operations += 1
        return self._store.break_(name, fences)


def _note(visit: Visit, answer: asyncio.Future[Answer]) -> None:
    answered = not answer.cancelled() and answer.exception() is None
    if answered and isinstance(answer.result(), Queued) and not visit.queued:
        visit.queued = monotonic_ns()
