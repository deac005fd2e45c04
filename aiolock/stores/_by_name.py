"""The operations of a store that saves each name by itself, without a thread."""

from __future__ import annotations

import asyncio
import itertools
from abc import abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any, Final, TypeVar

from aiolock.errors import StoreError
from aiolock.protocol import Page, Status
from aiolock.stores._codec import UNREADABLE
from aiolock.stores._operations import Operation, Operations
from aiolock.stores._outcomes import once_more, refusal

Value = TypeVar("Value")

_PAGE: Final = 100
"""Names on one page of a snapshot."""


class OperationsByName(Operations):
    """One task for each name that is in use carries out its operations, in the order of the calls.

    Operations that arrive while that task is busy are carried out together. You write `_carry_out`
    and `_names`; ``open`` calls `_begin`, and ``aclose`` awaits `_end`.
    """

    def __init__(self) -> None:
        self._is_open = False
        self._client = ""
        self._gathered: dict[str, list[tuple[Operation, asyncio.Future[Any]]]] = {}
        """By name in use: what its task carries out next."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._tokens = itertools.count(1)

    @abstractmethod
    async def _carry_out(self, name: str, operations: Sequence[Operation]) -> Sequence[Any]:
        """Carry these out, in order, all or none of them; their answers.

        A `StoreError` fails all of them. It must come after 4.5 seconds at most: an operation may
        have to wait for that long before its own turn comes.
        """

    @abstractmethod
    async def _names(self, start: str, most: int) -> Sequence[str]:
        """The next names behind ``start`` of which something is kept, in order."""

    def _begin(self, client: str) -> None:
        """Take operations from now on."""
        self._is_open, self._client = True, client
        self._gathered, self._tasks = {}, set()

    async def _end(self) -> None:
        """Take no more, and return when those that were taken are carried out."""
        self._is_open = False
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, work: Coroutine[Any, Any, Value]) -> asyncio.Task[Value]:
        """A task for which `_end` waits."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _token(self) -> str:
        return f"{self._client}.{next(self._tokens)}"

    def _call(self, operation: Operation) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        (name,) = operation.names
        if not self._is_open:
            future.set_exception(refusal("the store is closed"))
        elif name in self._gathered:
            self._gathered[name].append((operation, future))
        else:
            self._gathered[name] = [(operation, future)]
            _ = self._start(self._serve(name))
        return future

    async def _serve(self, name: str) -> None:
        while gathered := self._gathered[name]:
            self._gathered[name] = []
            operations, futures = zip(*gathered, strict=True)
            try:
                answers = await self._carry_out(name, operations)
                answered = [*zip(futures, answers, strict=True)]
            except Exception as error:  # noqa: BLE001  # nobody waits for ever, whatever it is
                failure = error if isinstance(error, StoreError) else _unknown(error)
                for future in futures:
                    if not future.done():
                        future.set_exception(once_more(failure))
            else:
                for future, answer in answered:
                    if not future.done():
                        future.set_result(answer)
        del self._gathered[name]

    def snapshot(self, start: str = "") -> asyncio.Future[Page]:
        """The statuses of the next names."""
        return self._start(self._snapshot(start))

    async def _snapshot(self, start: str) -> Page:
        names = await self._names(start, _PAGE)
        asked = [self.status(name) for name in names]
        found = await asyncio.gather(*asked, return_exceptions=True)
        statuses = list[Status]()
        for status in found:
            if not isinstance(status, BaseException):
                statuses.append(status)
            elif not isinstance(status.__cause__, UNREADABLE):
                raise status
        return Page(statuses, names[-1] if len(names) == _PAGE else "")


def _unknown(error: Exception) -> StoreError:
    failure = StoreError(f"the store failed: {error!r}")
    failure.__cause__ = error
    return failure
