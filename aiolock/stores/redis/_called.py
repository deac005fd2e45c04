"""The receiver of an answer for which no task waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Called:
    """A receiver that calls one function with the answer, as soon as that arrives.

    A full future costs more than all the rest of a request.
    """

    __slots__ = ("_done", "_on_reply")

    def __init__(self, on_reply: Callable[[Any, Exception | None], None]) -> None:
        self._on_reply = on_reply
        self._done = False

    def done(self) -> bool:
        """Whether it was answered, or will not be."""
        return self._done

    def resolve(self, answer: Any, /) -> None:
        """It is answered."""
        if not self._done:
            self._done = True
            self._on_reply(answer, None)

    def set_exception(self, error: Exception, /) -> None:
        """It failed."""
        self._done = True
        self._on_reply(None, error)
