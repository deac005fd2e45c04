"""Newcomers that look for dead waiters always, or never, instead of now and then.

Which newcomer looks is decided by its ticket, see `aiolock.stores._dead_waiters`: a time,
which the two sides of a comparison do not share. That they decide alike is a test of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from aiolock import protocol
from aiolock.protocol import WaiterId
from aiolock.stores import machine
from aiolock.stores.quorum import _live_queue
from aiolock.stores.redis import _scripts

NUMBERS = {
    False: {"LOOKERS": "1e17"},
    True: {"LOOKERS": "1", "STANDS_STILL": "-1e17", "CHECKS": "1e17"},
}
"""With these, a script looks always or never."""


@cache
def source(
    script: _scripts.Script,
    *,
    looks: bool,
    grants: int = protocol.GRANTS,
    part: int = protocol.PART,
) -> str:
    """A script in which newcomers look always, or never; and so many enter in one call, that looks
    at so many waiters.
    """
    numbers = NUMBERS[looks] | {"GRANTS": str(grants), "PART": str(part)}
    return _scripts._source(script.name, shares=script.shares, **numbers)


class Chance:
    """What decides in the state machines."""

    def __init__(self) -> None:
        self.looks = False

    def __call__(self, ticket: int, queue: Sequence[tuple[int, WaiterId]]) -> bool:
        return self.looks


def decided(monkeypatch: pytest.MonkeyPatch) -> Chance:
    """Have the state machines ask this."""
    chance = Chance()
    monkeypatch.setattr(machine, "looks_for_dead", chance)
    monkeypatch.setattr(_live_queue, "looks_for_dead", chance)
    return chance
