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
        """Whether the next batch is sent at the end of this iteration of the loop."""

    def submit(self, request: Request) -> asyncio.Future[Reply]:
        """Send it with the next batch; the future of its reply."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Reply] = loop.create_future()
        self._gathered.append((request, future))
        if not self._planned:
            self._planned = True
            loop.call_soon(self._send_gathered)
        return future

    def _send_gathered(self) -> None:
        self._planned = False
        while self._under_way < self._at_once and (batch := self._next()):
            self._under_way += 1
            self._start(self._carry_out(batch))

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

    async def _carry_out(self, batch: Sequence[tuple[Request, asyncio.Future[Reply]]]) -> None:
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
            self._send_gathered()
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
