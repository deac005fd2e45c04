"""What becomes of operations that a thread carries out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from aiolock.errors import StoreError
from aiolock.stores._operations import Told


class Outcome(NamedTuple):
    """What has become of one operation."""

    answer: Any
    failure: StoreError | None = None


class CarriedOut(NamedTuple):
    """What has become of several."""

    outcomes: Sequence[Outcome]
    told: Sequence[Told]
    """What is for this client."""
    served: bool = True
    """Whether the store could be used: otherwise nobody else need try for now."""


def failed(failure: StoreError, count: int) -> list[Outcome]:
    """Of so many operations: each has an error of its own."""
    return [Outcome(None, once_more(failure) if number else failure) for number in range(count)]


def once_more(failure: StoreError) -> StoreError:
    """The same of another operation: an error is raised once."""
    again = StoreError(str(failure))
    again.__cause__ = failure.__cause__
    again.refused = failure.refused
    return again


def refusal(text: str, cause: BaseException | None = None) -> StoreError:
    """Nothing was done."""
    refused = StoreError(text)
    refused.__cause__ = cause
    refused.refused = True
    return refused
