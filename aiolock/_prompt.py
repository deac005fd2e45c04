"""A future whose task goes on in the call that resolves it, not a turn of the event loop later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any


class Prompt(asyncio.Future[Any]):
    """What one task awaits, as a rule, and nobody else: an answer, or a push.

    An ordinary future has the event loop call that task later. Where that is all there is to do,
    the loop polls its sockets once more for nothing.
    """

    _step: Callable[[Prompt], object] | None = None
    """Of the task that awaits it: the only callback there is."""
    _context: Context | None = None
    _ordinary = False
    """It is to be as any future from now on: other callbacks are to be called in order, too."""

    def add_done_callback(
        self, fn: Callable[[Prompt], object], /, *, context: Context | None = None
    ) -> None:
        """As of any future; a task, which names its context, may be called by `resolve`."""
        if context is None or self._ordinary or self._step is not None or self.done():
            self._become_ordinary()
            super().add_done_callback(fn, context=context)
        else:
            self._step, self._context = fn, context

    def remove_done_callback(self, fn: Callable[[Prompt], object], /) -> int:
        """As of any future."""
        self._become_ordinary()
        return super().remove_done_callback(fn)

    def _become_ordinary(self) -> None:
        self._ordinary = True
        step, self._step = self._step, None
        if step is not None:
            super().add_done_callback(step, context=self._context)

    def resolve(self, result: Any) -> None:
        """Set the result, and let its task go on in this very call.

        Called by a task, which cannot step another one, it is as `set_result`.
        """
        if self._step is None or asyncio.current_task(self.get_loop()) is not None:
            self.set_result(result)
            return
        # In this order: a signal's handler may cancel the task at any point of it.
        super().set_result(result)
        step, self._step = self._step, None
        if step is not None:
            assert self._context is not None
            try:
                self._context.run(step, self)
            except (SystemExit, KeyboardInterrupt) as error:
                # They end the event loop. But not through whoever reads from a socket here, who
                # would be left half way; and uvloop would take it for an error of the transport.
                self.get_loop().call_soon(_raise, error)

    def set_result(self, result: Any, /) -> None:
        """As of any future."""
        self._become_ordinary()
        super().set_result(result)

    def set_exception(self, exception: type | BaseException, /) -> None:
        """As of any future."""
        self._become_ordinary()
        super().set_exception(exception)

    def cancel(self, msg: Any | None = None) -> bool:
        """As of any future."""
        self._become_ordinary()
        return super().cancel(msg)


def _raise(error: BaseException) -> None:
    raise error
