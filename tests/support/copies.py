"""Copies of operations, on a server in memory: a client sends one when no answer comes."""

from __future__ import annotations

from typing import TypeVar

from aiolock.protocol import Late, Operation
from aiolock.stores.memory import MemoryServer

Value = TypeVar("Value")


def run_copy(server: MemoryServer, operation: Operation[Value], not_after: int) -> Value | Late:
    """Carry out a copy of it, unless that comes after this time (µs); 0: at any time."""
    if 0 < not_after < (now := server.now()):
        return Late(now)
    return server.run(operation, not_after)
