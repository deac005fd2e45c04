"""Timers that serve all tasks of a client, not only the task that starts them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from functools import partial


def shared_timers() -> Callable[..., asyncio.TimerHandle]:
    """The ``call_later`` of the running loop, in a context of its own.

    By default, a timer runs in the context of the task that starts it, and keeps that context
    alive. Then the loss of one task's lease would be logged under the request of another task.
    """
    return partial(asyncio.get_running_loop().call_later, context=Context())
