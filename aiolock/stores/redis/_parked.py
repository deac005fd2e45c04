"""Operations on names whose master is not connected to yet, or not known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from aiolock.stores.redis._pipe import COMMAND_TIMEOUT
from aiolock.stores.redis._store import RedisStore

_LONGER: Final = 0.25
"""Seconds more than a command has, for one that is started late."""


class Parked:
    """One operation that is started as soon as its node serves us.

    Its future fails when it has not been answered in the time that a command has, whether or not it
    was started. One that is not ``sure`` is not started any more once its future is done.
    """

    def __init__(
        self,
        slot: int,
        start: Callable[[RedisStore], asyncio.Future[Any]],
        error: Callable[[bool], Exception],
        *,
        sure: bool,
    ) -> None:
        """``error`` makes what it fails with, of whether it is certain that nothing was done."""
        loop = asyncio.get_running_loop()
        self.slot = slot
        self.future: asyncio.Future[Any] = loop.create_future()
        self._start = start
        self._error = error
        self._sure = sure
        self._started: asyncio.Future[Any] | None = None
        self._timer = loop.call_later(COMMAND_TIMEOUT + _LONGER, self.give_up)
        self.future.add_done_callback(self._over)

    @property
    def is_over(self) -> bool:
        """Whether it is not to be started any more."""
        return self.future.done() and (not self._sure or not self.future.cancelled())

    def go(self, node: RedisStore) -> None:
        """Start it there."""
        if not self.is_over:
            self._started = started = self._start(node)
            started.add_done_callback(partial(copied, self.future))

    def give_up(self) -> None:
        """Fail it."""
        if not self.future.done():
            self.future.set_exception(self._error(self._started is None))

    def _over(self, _: asyncio.Future[Any]) -> None:
        self._timer.cancel()
        if self._started is not None and not self._sure:
            self._started.cancel()


def copied(future: asyncio.Future[Any], started: asyncio.Future[Any]) -> None:
    """What has come of the second, the first is told, unless it was told something else."""
    if started.cancelled():
        future.cancel()
    elif (error := started.exception()) is not None:
        if not future.done():
            future.set_exception(error)
    elif not future.done():
        future.set_result(started.result())
