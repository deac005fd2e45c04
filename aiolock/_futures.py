"""What became of a future."""

from __future__ import annotations

import asyncio
from typing import Any


def failure_of(future: asyncio.Future[Any]) -> BaseException | None:
    """The exception of a future that is done; None if it has a result, or was cancelled."""
    return None if future.cancelled() else future.exception()


def succeeded(future: asyncio.Future[Any]) -> bool:
    """Whether a future that is done has a result."""
    return not future.cancelled() and future.exception() is None


def retrieve(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a future, which asyncio would log otherwise: a done callback."""
    if not future.cancelled():
        future.exception()
