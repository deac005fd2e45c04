"""What a member does for its group: it follows the others, and removes those that are dead.

The oldest member looks each second, the others seldom, and the more seldom the younger they are. So
the store has no more to do for a hundred members than for two, and yet whoever is left notices that
all older members have died together.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Final

from aiolock._engine.engine import Engine
from aiolock._engine.policy import Policy
from aiolock._locks.group_view import View
from aiolock.backoff import Backoff
from aiolock.errors import StoreError
from aiolock.protocol import Break, Participant

_LOOK: Final = 1.0
"""Seconds between two looks of the oldest member, and between two that find another one dead."""
_LOOKS: Final = 6
"""The most thirds of a ttl between two looks of another member."""
_PER_MEMBER: Final = 0.002
"""Seconds between two looks after changes, for each member: many changes are seen together."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0
"""Seconds between tries while the store cannot be reached: the first pause, and the longest."""


def pause(view: View) -> float:
    """Seconds between two looks: changes that come quickly are seen together."""
    return min(1.0, _PER_MEMBER * len(view.members))


class Upkeep:
    """The looks of one member at its group, by two tasks: `follow` and `look_after`."""

    def __init__(self, engine: Engine, policy: Policy, view: View, member: str) -> None:
        """``policy`` is that of the group's lock, ``member`` the id of the member."""
        self._engine = engine
        self._policy = policy
        self._view = view
        self._member = member
        self._calm_until = 0.0
        """Until when nobody is taken for dead: the store has just come back."""
        self._suspects = dict[int, float]()
        """The fences of members that do not seem to listen, and since when."""

    def reconnected(self) -> None:
        """All others have been cut off as well, and may need a while to come back."""
        self._calm_until = self._engine.watchdog.time() + self._policy.ttl / 3
        self._suspects.clear()

    async def follow(self) -> None:
        """Look at the group after each change."""
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=True)
        while True:
            try:
                await self._view.look()
                await asyncio.sleep(pause(self._view))
                await self._view.next_epoch()
                backoff.reset()
            except StoreError:
                await asyncio.sleep(backoff.pause())

    async def look_after(self) -> None:
        """Look now and then whether a member is dead, and remove it."""
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=True)
        failed = False
        """Whether the others may not know of a change."""
        while True:
            await self._until_due()
            try:
                failed = await self._look_once(announces=failed)
                backoff.reset()
            except StoreError:
                failed = True
                await asyncio.sleep(backoff.pause())

    async def _until_due(self) -> None:
        """Return when this member is to look: the older it is, the sooner."""
        loop = asyncio.get_running_loop()
        began, jitter = loop.time(), random.uniform(0.9, 1.1)  # noqa: S311  # so that not all look
        while True:
            left = began + self._interval() * jitter - loop.time()
            if left <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._view.changed()

    def _interval(self) -> float:
        """Seconds between two looks of this member."""
        older = next(
            (at for at, each in enumerate(self._view.members) if each.id == self._member), _LOOKS
        )
        if not older or self._suspects:
            return _LOOK
        return min(older, _LOOKS) * self._policy.ttl / 3

    async def _look_once(self, *, announces: bool) -> bool:
        """Look, remove the dead, and announce what nobody has announced; False when it is done."""
        view = self._view
        epoch, members = view.epoch, view.members
        await view.look()
        dead = self._dead()
        if dead:
            with self._policy.errors_named():
                await self._engine.submit(Break(self._policy.key, dead))
        if dead or announces or (view.members != members and view.epoch == epoch):
            await view.announce()
        return False

    def _dead(self) -> list[int]:
        """The fences of members that do not listen, at two looks a second apart."""
        now = self._engine.watchdog.time()
        silent = {seat.fence for seat in self._view.seats if self._is_silent(seat)}
        if now < self._calm_until:
            silent.clear()
        self._suspects = {fence: self._suspects.get(fence, now) for fence in silent}
        return [fence for fence, since in self._suspects.items() if now - since >= 0.8 * _LOOK]

    def _is_silent(self, seat: Participant) -> bool:
        return not seat.alive and seat.client != self._engine.client
