"""The store's answer to a release, which a task may await, or nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from aiolock._prompt import Prompt, when_answered
from aiolock.protocol import WAS_HOLDER


class Released:
    """The answer to one release: a `Receiver` of it.

    Cancelling the task that awaits it does not cancel it, and more than one task may await it: each
    does by a future of its own.
    """

    # Defaults on the class: most are awaited by one task, and answered.
    was: int | None = None
    """The state in which the store found the holder: see `Release`. None without an answer."""
    failure: BaseException | None = None
    """Why there is no answer."""
    prompt: Prompt | None = None
    """The future that the first task awaits: set here by the exit of a body, without `wait`."""
    _then: tuple[Callable[[Released], object], ...] = ()

    def done(self) -> bool:
        """Whether there is an answer, or there will be none."""
        return self.was is not None or self.failure is not None

    def wait(self, loop: asyncio.AbstractEventLoop) -> Prompt:
        """A future that is resolved, with nothing, when it is done."""
        prompt = Prompt(loop=loop)
        if self.was is not None or self.failure is not None:
            prompt.set_result(None)
        elif self.prompt is None:
            self.prompt = prompt
        else:
            self._then += (partial(_resolve, prompt),)
        return prompt

    def then(self, function: Callable[[Released], object]) -> None:
        """Call this when it is done: now, if it is."""
        if self.done():
            function(self)
        else:
            self._then += (function,)

    def follow(self, answer: asyncio.Future[int]) -> Released:
        """Take this answer; without one, as the future was cancelled, the lock was ours."""
        if answer.done():
            self._take(answer)
        else:
            when_answered(answer, self._take)
        return self

    def _take(self, answer: asyncio.Future[int]) -> None:
        if answer.cancelled():
            self.resolve(WAS_HOLDER)
        elif (failure := answer.exception()) is not None:
            self.set_exception(failure)
        else:
            self.resolve(answer.result())

    def resolve(self, was: int, /) -> None:
        """The store has answered."""
        if self.was is not None or self.failure is not None:
            return
        self.was = was
        try:
            # Functions first: the task goes on in this very call.
            if self._then:
                self._call()
        finally:  # whatever a function raises, the exit must not wait for ever
            if self.prompt is not None:
                self.prompt.resolve(None)

    def set_exception(self, failure: BaseException, /) -> None:
        """The store has refused, or its answer is unknown."""
        if self.done():
            return
        self.failure = failure
        try:
            self._call()
        finally:
            if self.prompt is not None and not self.prompt.done():
                self.prompt.set_result(None)

    def _call(self) -> None:
        functions, self._then = self._then, ()
        for function in functions:
            function(self)


def _resolve(prompt: Prompt, _: Released) -> None:
    prompt.resolve(None)
