"""The outcomes of the parts of operations, and the errors of a store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from aiolock.errors import StoreError
from aiolock.stores._effects import Push
from aiolock.stores._operations import Part


class Outcome(NamedTuple):
    """The outcome of one part."""

    answer: Any
    failure: StoreError | None = None


class Held:
    """The time for which a transaction has locked its names, from the making of this object on."""

    def __init__(self) -> None:
        self._wall = time.monotonic()
        self._processor = time.thread_time()

    def wall(self) -> float:
        """Seconds."""
        return time.monotonic() - self._wall

    def seconds(self) -> float:
        """Seconds of this thread's processor time, or a share of the wall clock's, if that is more.

        On a busy machine even a short transaction takes long: to do less in it would not help.
        """
        return max(time.thread_time() - self._processor, self.wall() / 4)


class CarriedOut(NamedTuple):
    """The outcomes of several parts."""

    outcomes: Sequence[Outcome]
    pushes: Sequence[Push]
    """Those for this client."""
    served: bool = True
    """Whether the store could be used; if not, other parts need not try for now."""
    held: float = 0.0
    """Seconds for which their names were locked (`Held`)."""


def in_halves(
    parts: Sequence[Part], carry_out: Callable[[Sequence[Part]], CarriedOut]
) -> CarriedOut:
    """The outcomes of each half alone; the second is not tried if the store could not be used."""
    outcomes: list[Outcome] = []
    pushes: list[Push] = []
    held = 0.0
    middle = len(parts) // 2
    for half in (parts[:middle], parts[middle:]):
        done = carry_out(half)
        outcomes += done.outcomes
        pushes += done.pushes
        held = max(held, done.held)
        if not done.served:
            failure = outcomes[-1].failure
            assert failure is not None
            outcomes += failed(once_more(failure), len(parts) - len(outcomes))
            return CarriedOut(outcomes, pushes, served=False)
    return CarriedOut(outcomes, pushes, held=held)


def failed(failure: StoreError, count: int) -> list[Outcome]:
    """Outcomes of ``count`` parts with this failure, each with an error of its own."""
    return [Outcome(None, once_more(failure) if number else failure) for number in range(count)]


def once_more(failure: StoreError) -> StoreError:
    """A copy of an error, for another operation: an error must be raised only once."""
    again = StoreError(str(failure))
    again.__cause__ = failure.__cause__
    again.refused, again.misconfigured = failure.refused, failure.misconfigured
    return again


def refusal(text: str, cause: BaseException | None = None) -> StoreError:
    """An error of an operation that was certainly not carried out."""
    refused = StoreError(text)
    refused.__cause__ = cause
    refused.refused = True
    return refused


def closed() -> asyncio.Future[Any]:
    """The future of an operation on a store that is not open."""
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(refusal("the store is closed"))
    return future
