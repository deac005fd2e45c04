"""Detects the async library that runs: under any other than asyncio, an error explains that."""

from __future__ import annotations

import asyncio
import sys

__all__ = ["check_asyncio", "check_not_trio", "in_trio"]


def check_asyncio() -> None:
    """`RuntimeError` if no asyncio event loop runs, as under trio."""
    if asyncio._get_running_loop() is None:
        raise RuntimeError(
            "aiolock runs on asyncio, and no asyncio event loop is running here. Under trio it does"
            ' not work; with anyio, run on backend="asyncio"'
        )


def check_not_trio() -> None:
    """`RuntimeError` under trio; for callers with an error of their own if no loop runs at all."""
    if in_trio():
        check_asyncio()


def in_trio() -> bool:
    """Whether trio runs in this thread."""
    trio = sys.modules.get("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())
