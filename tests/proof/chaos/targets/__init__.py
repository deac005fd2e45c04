"""What the chaos is made at: a store, how it is looked into, and how it is broken."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple, Protocol

from tests.proof.chaos.faults import Attack, Fault
from tests.proof.chaos.history import History


class Silent(Exception):
    """The store does not answer: it is broken just now."""


class Standing(NamedTuple):
    """Who stands at the store, as it was at one time."""

    now: int
    """The store's clock, in microseconds."""
    holders: dict[str, Sequence[str]]
    """By name: waiters as a history has them, each with its fence."""
    queues: dict[str, Sequence[str]]
    """By name: waiters."""


class Kept(NamedTuple):
    """Something that the store keeps."""

    key: str
    ttl: int
    """Milliseconds for which it does, -1 for ever."""
    holders: Sequence[str]
    waiters: Sequence[str]
    """The clients of both."""


class Door(Protocol):
    """One process's way to the store, which can be broken by itself."""

    url: str

    async def strike(self, fault: Fault, pid: int) -> None:
        """Break it for the process that uses it now, for as long as the fault says."""

    def visitor(self, pid: int) -> Callable[[], Awaitable[bool]]:
        """The process that uses it now: whether the store still knows it, whenever one asks."""


class Target(Protocol):
    """A store."""

    attack: Attack

    async def start(self, stack: AsyncExitStack, history: History) -> None:
        """Set it up, until the stack is left."""

    async def door(self, stack: AsyncExitStack) -> Door:
        """Another way in."""

    async def ping(self) -> None:
        """Return when the store has served us. `Silent` if it does not."""

    async def standing(self) -> Standing:
        """Who stands there. `Silent` if it does not say."""

    async def kept(self) -> Sequence[Kept]:
        """All that it keeps. `Silent` if it does not say."""

    async def strike(self, fault: Fault) -> None:
        """Break the store itself, for as long as the fault says."""

    async def settled(self) -> None:
        """Return when nothing more comes of what was broken."""


def target(name: str) -> Target:
    """The target of that name: one of `tests.proof.chaos.faults.ATTACKS`."""
    module = importlib.import_module(f"tests.proof.chaos.targets.{name.replace('-', '_')}")
    made: Target = module.make()
    return made
