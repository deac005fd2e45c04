"""The outcomes of operations that a thread carries out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from aiolock.errors import StoreError
from aiolock.stores._operations import Told


class Outcome(NamedTuple):
    """The outcome of one operation."""

    answer: Any
    failure: StoreError | None = None


class CarriedOut(NamedTuple):
    """The outcomes of several operations."""

    outcomes: Sequence[Outcome]
    told: Sequence[Told]
    """The pushes for this client."""
    served: bool = True
    """Whether the store could be used; if not, other operations need not try for now."""
    held: float = 0.0
    """Seconds for which what they lock was locked, for work of this client."""


def failed(failure: StoreError, count: int) -> list[Outcome]:
    """Outcomes of ``count`` operations with this failure, each with an error of its own."""
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
