"""The operations of a store that saves each name by itself, without a thread."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from aiolock._futures import was_cancelled
from aiolock.errors import StoreError
from aiolock.protocol import Operation, Page, ReadPage, ReadStatus, Renew, Resize, Status
from aiolock.stores._codec import UNREADABLE
from aiolock.stores._operations import Part, joined
from aiolock.stores._outcomes import closed, once_more

Value = TypeVar("Value")

_PAGE: Final = 100
"""Names on one page."""

CarryOut = Callable[[str, Sequence[Part]], Awaitable[Sequence[Any]]]
"""Carries out these parts of operations on a name, in order, all or none; returns the answers.

A `StoreError` fails all of them. It must come after 4.5 seconds at most: an operation may have to
wait for that long before its own turn comes.
"""
Names = Callable[[str, int], Awaitable[Sequence[str]]]
"""Finds the next names, at most so many, behind that one, of which something is kept, in order."""


class ByName:
    """One task for each name in use carries out what is submitted, in the order of the calls.

    What is submitted while that task is busy is carried out together.
    """

    def __init__(self, carry_out: CarryOut, names: Names) -> None:
        self._carry_out = carry_out
        self._names = names
        self.is_open = False
        self._client = ""
        self._gathered: dict[str, list[tuple[Part, asyncio.Future[Any]]]] = {}
        """By name in use: what its task carries out next."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._tokens = itertools.count(1)

    def begin(self, client: str) -> None:
        """Take operations from now on."""
        self.is_open, self._client = True, client
        self._gathered, self._tasks = {}, set()

    async def end(self) -> None:
        """Take no more, and return when those that were taken are carried out."""
        self.is_open = False
        while self._tasks:
            await asyncio.wait(self._tasks)

    def start(self, work: Coroutine[Any, Any, Value]) -> asyncio.Task[Value]:
        """A task for which `end` waits."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        """Start the operation; the future of its answer."""
        if not self.is_open:
            return closed()
        if isinstance(operation, Renew):
            return joined([self._take(renewal) for renewal in operation.renewals])
        if isinstance(operation, ReadPage):
            return self.start(self._page(operation.start))
        if isinstance(operation, Resize):  # a copy may be carried out, with another resize between
            operation = replace(operation, token=f"{self._client}.{next(self._tokens)}")
        return self._take(operation)

    def _take(self, part: Part) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if part.name in self._gathered:
            self._gathered[part.name].append((part, future))
        else:
            self._gathered[part.name] = [(part, future)]
            _ = self.start(self._serve(part.name))
        return future

    async def _serve(self, name: str) -> None:
        while gathered := self._gathered[name]:
            self._gathered[name] = []
            parts, futures = zip(*gathered, strict=True)
            try:
                answers = await self._carry_out(name, parts)
                answered = [*zip(futures, answers, strict=True)]
            except (Exception, asyncio.CancelledError) as error:  # nobody waits for ever
                if was_cancelled():
                    for _, future in (*gathered, *self._gathered.pop(name)):
                        future.cancel()
                    raise
                failure = error if isinstance(error, StoreError) else _unknown(error)
                for future in futures:
                    if not future.done():
                        future.set_exception(once_more(failure))
            else:
                for future, answer in answered:
                    if not future.done():
                        future.set_result(answer)
        del self._gathered[name]

    async def _page(self, start: str) -> Page:
        names = await self._names(start, _PAGE)
        asked = [self._take(ReadStatus(name)) for name in names]
        found = await asyncio.gather(*asked, return_exceptions=True)
        statuses = list[Status]()
        for status in found:
            if not isinstance(status, BaseException):
                statuses.append(status)
            elif not isinstance(status.__cause__, UNREADABLE):
                raise status
        return Page(statuses, names[-1] if len(names) == _PAGE else "")


def _unknown(error: BaseException) -> StoreError:
    failure = StoreError(f"the store failed: {error!r}")
    failure.__cause__ = error
    return failure
