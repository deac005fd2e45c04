"""On which event loop the tests run: pytest's option `--loop`.

The choice is an environment variable, so that the processes that a test starts follow it too.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

LOOPS: Final = ("asyncio", "uvloop", "eager")
"""asyncio's own loop, uvloop's, and asyncio's with tasks that begin where they are created."""

_VARIABLE: Final = "AIOLOCK_TEST_LOOP"


def chosen() -> str:
    """The loop that was asked for."""
    return os.environ.get(_VARIABLE, "asyncio")


def choose(loop: str) -> None:
    """Use this loop from now on, also in the processes that are started; `ValueError`: cannot."""
    if loop == "eager" and sys.version_info < (3, 12):
        raise ValueError("eager tasks came with Python 3.12")
    if loop == "uvloop":
        import uvloop  # noqa: F401  # it tells here that it is not there
    os.environ[_VARIABLE] = loop


def be_eager(loop: asyncio.AbstractEventLoop) -> None:
    """Let tasks begin to run where they are created."""
    if sys.version_info >= (3, 12):
        loop.set_task_factory(asyncio.eager_task_factory)


def new_loop() -> asyncio.AbstractEventLoop:
    """Another loop, as it was asked for."""
    loop: asyncio.AbstractEventLoop
    if chosen() == "uvloop":
        import uvloop  # here: Windows has none

        loop = uvloop.new_event_loop()
    else:
        loop = asyncio.new_event_loop()
    if chosen() == "eager":
        be_eager(loop)
    return loop


def run(main: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, on the loop that was asked for."""
    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main)
