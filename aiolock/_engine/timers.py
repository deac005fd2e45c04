"""Timers that serve all tasks of a client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from functools import partial


def shared_timers() -> Callable[..., asyncio.TimerHandle]:
    """The ``call_later`` of the running loop, in a context of its own.

    Otherwise a timer would run in the context of whoever armed it, and keep that alive: one task's
    loss would be logged under the request of another one.
    """
    return partial(asyncio.get_running_loop().call_later, context=Context())
