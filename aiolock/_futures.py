"""Futures and tasks: what became of them, and which task runs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, Final

running: Final[dict[asyncio.AbstractEventLoop, asyncio.Task[Any]] | None] = getattr(
    asyncio.tasks, "_current_tasks", None
)
"""The running task of each event loop that runs one just now; None from Python 3.14 on."""

# In 3.11 the public function is one in Python, and this is called for each answer.
_tasks: Any = asyncio.tasks
running_task: Final[Callable[[asyncio.AbstractEventLoop], asyncio.Task[Any] | None]] = (
    _tasks._current_tasks.get if sys.version_info < (3, 12) else asyncio.current_task
)
"""The task that runs in an event loop; None while a callback runs."""


def failure_of(future: asyncio.Future[Any]) -> BaseException | None:
    """The exception of a future that is done; None if it has a result, or was cancelled."""
    return None if future.cancelled() else future.exception()


def succeeded(future: asyncio.Future[Any]) -> bool:
    """Whether a future that is done has a result."""
    return not future.cancelled() and future.exception() is None


def was_cancelled() -> bool:
    """Whether the running task itself is being cancelled.

    If not, a `CancelledError` in it is of something else, for which it has waited.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def retrieve(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a future, which asyncio would log otherwise: a done callback."""
    if not future.cancelled():
        future.exception()
