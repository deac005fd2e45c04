"""Operations on names whose master is not connected yet, or not known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from aiolock.stores.redis._outbox import COMMAND_TIMEOUT

_LONGER: Final = 0.25
"""Seconds by which its time is longer than a command's, since it may be started late."""


class PendingOperation:
    """One operation that is started as soon as its node serves us.

    Its future fails if it is not answered in the time of a command, whether or not it was started.
    One that is not ``must_run`` is not started once its future is done, and none is started after
    its time: it leaves the place where it was kept.
    """

    def __init__(
        self,
        slot: int,
        start: Callable[[Any], asyncio.Future[Any]],
        error: Callable[[bool], Exception],
        *,
        must_run: bool,
    ) -> None:
        """``start`` starts it at a node. ``error`` makes the error; its argument: whether certainly
        nothing was done.
        """
        loop = asyncio.get_running_loop()
        self.slot = slot
        self.future: asyncio.Future[Any] = loop.create_future()
        self._start = start
        self._error = error
        self._must_run = must_run
        self._kept: dict[Any, None] = {}
        """The place where it waits."""
        self._started: asyncio.Future[Any] | None = None
        self._timer = loop.call_later(COMMAND_TIMEOUT + _LONGER, self.give_up)
        self.future.add_done_callback(self._over)

    @property
    def started(self) -> bool:
        """Whether it was ever started."""
        return self._started is not None

    @property
    def _goes_on(self) -> bool:
        """Whether it is carried out though nothing waits for its answer."""
        return self._must_run and self.future.cancelled()

    def wait_in(self, kept: dict[Any, None]) -> None:
        """Be the last of ``kept``, until it is started or over."""
        self._kept = kept
        kept[self] = None

    def go(self, node: Any) -> None:
        """Start it there, if that is still wanted."""
        self._kept.pop(self, None)
        if self.future.done() and not self._goes_on:
            return
        self._started = started = self._start(node)
        started.add_done_callback(partial(copied, self.future))

    def give_up(self) -> None:
        """End it: its time is over."""
        self._timer.cancel()
        self._kept.pop(self, None)
        if not self.future.done():
            self.future.set_exception(self._error(self._started is None))

    def _over(self, _: asyncio.Future[Any]) -> None:
        if self._goes_on and self._started is None:
            return  # it is still started, if that is possible in its time
        self._timer.cancel()
        self._kept.pop(self, None)
        if self._started is not None and not self._must_run:
            self._started.cancel()


def copied(future: asyncio.Future[Any], started: asyncio.Future[Any]) -> None:
    """Copy the outcome of ``started`` to ``future``, unless that is done already."""
    if started.cancelled():
        future.cancel()
    elif (error := started.exception()) is not None:
        if not future.done():
            future.set_exception(error)
    elif not future.done():
        future.set_result(started.result())
