"""A future whose task continues in the call that resolves it, not in a later loop iteration.

It saves an iteration of the event loop, with its poll of the sockets, for each answer and push.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any, Final, Literal

from aiolock._futures import running, running_task

_set_result: Final = asyncio.Future[Any].set_result


class Prompt(asyncio.Future[Any]):
    """The future of an answer or a push; as a rule, one task awaits it and nothing else does.

    An ordinary future has the event loop call that task in the next iteration. If nothing else is
    to be done, the loop polls its sockets once more before that, for nothing.
    """

    step: Callable[[Prompt], object] | Literal[False] | None = None
    """The callback of the task that awaits it; the only callback there is. None before that; False
    once it was woken or cancelled, or there are several callbacks, which must be called in their
    order: then it behaves as any future."""
    _context: Context | None = None

    def add_done_callback(
        self, fn: Callable[[Prompt], object], /, *, context: Context | None = None
    ) -> None:
        """As of any future. A task that awaits it is recognised by the ``context`` it passes."""
        if self.step is None and context is not None:
            self.step, self._context = fn, context
        else:
            self._become_ordinary()
            super().add_done_callback(fn, context=context)

    def when_resolved(self, function: Callable[[Prompt], object]) -> None:
        """Call this in the very call that resolves it; if it fails, as any future would."""
        if self.step is None:
            self.step = function
        else:
            self._become_ordinary()
            super().add_done_callback(function, context=Context())

    def remove_done_callback(self, fn: Callable[[Prompt], object], /) -> int:
        """As of any future."""
        self._become_ordinary()
        return super().remove_done_callback(fn)

    def _become_ordinary(self) -> None:
        step, self.step = self.step, False
        if step:
            super().add_done_callback(step, context=self._context or Context())

    def resolve(self, result: Any) -> None:
        """Set the result, unless it is done, and let the waiting task continue in this very call.

        Called from a task, it only does what `set_result` does: a task cannot step another one.
        """
        step, context = self.step, self._context
        if not step:
            if not self.done():  # otherwise it was cancelled
                self.set_result(result)
            return
        if context is None:  # a function, and no task
            self.step = False
            _set_result(self, result)
            step(self)
            return
        if self._loop in running if running is not None else running_task(self._loop) is not None:
            self.set_result(result)
            return
        # The result is set first: a signal's handler may cancel the task at any point from here.
        _set_result(self, result)
        step, self.step = self.step, False
        if step:
            try:
                context.run(step, self)
            except (SystemExit, KeyboardInterrupt) as error:
                # These end the event loop, but must not be raised through the callback that reads
                # from a socket here: it would stop half-way, and uvloop would report an error of
                # the transport.
                self.get_loop().call_soon(_raise, error)

    def set_result(self, result: Any, /) -> None:
        """As of any future."""
        self._become_ordinary()
        _set_result(self, result)

    def set_exception(self, exception: type | BaseException, /) -> None:
        """As of any future."""
        self._become_ordinary()
        super().set_exception(exception)

    def cancel(self, msg: Any | None = None) -> bool:
        """As of any future."""
        self._become_ordinary()
        return super().cancel(msg)


def when_answered(answer: asyncio.Future[Any], function: Callable[[Any], object]) -> None:
    """Call this with the answer of a store, as soon as it is there."""
    if type(answer) is Prompt:  # cheaper than `isinstance`
        answer.when_resolved(function)
    else:
        answer.add_done_callback(function, context=Context())


def following(answer: asyncio.Future[Any]) -> Prompt:
    """A future that is resolved, with nothing, when the answer is there, or has failed.

    For a task that awaits the answer to a command which it must not cancel.
    """
    prompt = Prompt(loop=answer.get_loop())
    if answer.done():
        prompt.set_result(None)
    else:
        when_answered(answer, partial(_resume, prompt))
    return prompt


def _resume(prompt: Prompt, _: asyncio.Future[Any]) -> None:
    prompt.resolve(None)


def _raise(error: BaseException) -> None:
    raise error
