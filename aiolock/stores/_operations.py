"""Operations for a store that runs the protocol's state machine on one name after the other.

Such a store carries out its operations in parts, each on the state of one name: it loads the state,
runs the part, saves the state and sends the pushes, all of it or nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiolock.protocol import (
    BREAK_UNKNOWN,
    WAS_ABSENT,
    WAS_UNKNOWN,
    Break,
    Discard,
    Finish,
    Operation,
    Release,
    Renew,
    Renewal,
    ReportHandoff,
)
from aiolock.stores.machine import Step

Part = Operation[Any] | Renewal
"""An operation on one name, or one grant of a `Renew`; without a name, one that needs no state."""


@dataclass(frozen=True, slots=True)
class Fetch(Operation[None]):
    """Change nothing: whatever is carried out, the client gets the pushes that it has not read."""

    name: str = ""


_UNKNOWN: Final[dict[type[Operation[Any]], int]] = {
    Release: WAS_UNKNOWN,
    Discard: WAS_UNKNOWN,
    ReportHandoff: WAS_UNKNOWN,
    Finish: WAS_UNKNOWN,
    Break: BREAK_UNKNOWN,
}
"""The answers instead of `WAS_ABSENT`, if an earlier copy may have done it."""


def parts_of(operation: Operation[Any]) -> Sequence[Part]:
    """The parts of an operation, each to be carried out by itself."""
    return operation.renewals if type(operation) is Renew else (operation,)


def run_part(step: Step, part: Part, *, again: bool) -> Any:
    """Carry out a part; its answer.

    ``again``: it may have been carried out already, with its answer lost.
    """
    if isinstance(part, Renewal):
        return step.renew_one(part)
    if type(part) is Fetch:
        return None
    answer = step.run(part)
    if again and answer == WAS_ABSENT and type(part) in _UNKNOWN:
        return _UNKNOWN[type(part)]
    return answer


def joined(each: Sequence[asyncio.Future[Any]]) -> asyncio.Future[list[Any]]:
    """The answers to all of these, which nobody cancels; None for each that has failed.

    If all of them fail, so does the future, with the error of one.
    """
    future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
    left = len(each)

    def one_is_done(done: asyncio.Future[Any]) -> None:
        nonlocal left
        left -= 1
        failure = done.exception()  # also so that it is not logged
        if left or future.done():
            return
        answers = [None if one.exception() else one.result() for one in each]
        if failure is not None and all(one.exception() for one in each):
            future.set_exception(failure)
        else:
            future.set_result(answers)

    for one in each:
        one.add_done_callback(one_is_done)
    if not each:
        future.set_result([])
    return future
