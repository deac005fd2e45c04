"""A future whose task continues in the call that resolves it, not in a later loop iteration.

It saves an iteration of the event loop, with its poll of the sockets, for each answer and push.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any


class Prompt(asyncio.Future[Any]):
    """The future of an answer or a push; as a rule, one task awaits it and nothing else does.

    An ordinary future has the event loop call that task in the next iteration. If nothing else is
    to be done, the loop polls its sockets once more before that, for nothing.
    """

    _step: Callable[[Prompt], object] | None = None
    """The callback of the task that awaits it; the only callback there is."""
    _context: Context | None = None
    _ordinary = False
    """It behaves as any future from now on: several callbacks must be called in their order."""

    def add_done_callback(
        self, fn: Callable[[Prompt], object], /, *, context: Context | None = None
    ) -> None:
        """As of any future. A task that awaits it is recognised by the ``context`` it passes."""
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
        """Set the result, and let the waiting task continue in this very call.

        Called from a task, it only does what `set_result` does: a task cannot step another one.
        """
        if self._step is None or asyncio.current_task(self.get_loop()) is not None:
            self.set_result(result)
            return
        # The result is set first: a signal's handler may cancel the task at any point from here.
        super().set_result(result)
        step, self._step = self._step, None
        if step is not None:
            assert self._context is not None
            try:
                self._context.run(step, self)
            except (SystemExit, KeyboardInterrupt) as error:
                # These end the event loop, but must not be raised through the callback that reads
                # from a socket here: it would stop half-way, and uvloop would report an error of
                # the transport.
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
