"""Many requests in one: those of one iteration of the event loop, and those that have gathered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Hashable, Sequence
from typing import Any, Generic, TypeVar

from aiolock._futures import was_cancelled

Request = TypeVar("Request")
Reply = TypeVar("Reply")


def _none(_: object) -> tuple[()]:
    return ()


class Batches(Generic[Request, Reply]):
    """Sends the requests of several names together, for a database that takes many in one.

    ``send`` carries out a batch, and returns the reply, or the error, of each request in it; if it
    raises an error, that is the error of each. ``start`` starts a task, as `ByName.start` does. At
    most ``most`` requests are in one batch, and at most ``at_once`` batches under way; what is
    submitted meanwhile gathers. No two requests in a batch have one of their ``keys`` in common,
    and those that have are sent in the order in which they were submitted.

    A request whose future was cancelled is not sent, if it has not been sent yet.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Request]], Awaitable[Sequence[Reply | Exception]]],
        start: Callable[[Coroutine[Any, Any, None]], object],
        *,
        most: int = 60,
        at_once: int = 2,
        keys: Callable[[Request], Collection[Hashable]] = _none,
    ) -> None:
        self._send, self._start, self._keys = send, start, keys
        self._most, self._at_once = most, at_once
        self._gathered: deque[tuple[Request, asyncio.Future[Reply]]] = deque()
        self._under_way = 0
        self._planned = False
        """Whether a task was started that has not taken its batch yet."""
        self._starting = False

    def submit(self, request: Request) -> asyncio.Future[Reply]:
        """Send it with the next batch; the future of its reply."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._gathered.append((request, future))
        self._plan()
        return future

    def _plan(self) -> None:
        if self._gathered and not self._planned and self._under_way < self._at_once:
            self._planned = self._starting = True
            self._under_way += 1
            self._start(self._carry_out())
            self._starting = False

    def _next(self) -> list[tuple[Request, asyncio.Future[Reply]]]:
        batch: list[tuple[Request, asyncio.Future[Reply]]] = []
        later, self._gathered = self._gathered, deque()
        taken = set[Hashable]()
        while later and len(batch) < self._most:
            request, future = later.popleft()
            if future.done():
                continue
            keys = self._keys(request)
            fits = taken.isdisjoint(keys)
            taken.update(keys)  # of those that do not fit, too: the next ones must not overtake
            (batch if fits else self._gathered).append((request, future))
        self._gathered += later
        return batch

    async def _carry_out(self) -> None:
        if self._starting:  # eager: the others of this iteration are still to be submitted
            await asyncio.sleep(0)
        self._planned = False
        batch = self._next()
        self._plan()
        if not batch:
            self._under_way -= 1
            return
        requests, futures = zip(*batch, strict=True)
        try:
            replies = await self._send(requests)
            answered = [*zip(futures, replies, strict=True)]
        except asyncio.CancelledError:
            # Those who wait were not cancelled; nor was this task, if what it waits for was.
            error = ConnectionAbortedError("the request was cancelled")
            answered = [(future, error) for future in futures]
            if was_cancelled():
                self._resolve(answered)
                raise
        except Exception as error:  # noqa: BLE001  # whatever it is, nobody waits for ever
            answered = [(future, error) for future in futures]
        finally:
            self._under_way -= 1
            self._plan()
        self._resolve(answered)

    @staticmethod
    def _resolve(answered: Sequence[tuple[asyncio.Future[Reply], Reply | Exception]]) -> None:
        for future, reply in answered:
            if future.done():
                continue
            if isinstance(reply, Exception):
                future.set_exception(reply)
            else:
                future.set_result(reply)
