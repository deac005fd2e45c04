"""Bodies that were entered by hand: without an exit that owns them (see `aiolock.entering`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from aiolock.errors import NotHeld

log = logging.getLogger("aiolock")


class Inside(Protocol):
    """A body that was entered."""

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task that entered it."""
        ...

    def close(self, error: BaseException | None) -> Any:
        """Leave it; it ended with this error."""
        ...


class Entered:
    """The bodies of one client that were entered by hand: without an exit that owns them.

    They are forgotten with their description, because they can only be left through it.
    """

    def __init__(self, current_task: Callable[[], asyncio.Task[Any] | None]) -> None:
        self._current_task = current_task
        self._bodies: WeakKeyDictionary[Any, list[Inside]] = WeakKeyDictionary()

    def __len__(self) -> int:
        return sum(map(len, self._bodies.values()))

    def has(self, of: object) -> bool:
        """Whether there is any body of this description."""
        return len(self._bodies) > 0 and bool(self._bodies.get(of))

    def add(self, of: object, body: Inside) -> None:
        """Add a body of ``of`` that has no exit of its own."""
        self._bodies.setdefault(of, []).append(body)

    def take(self, of: Any) -> Inside:  # an `AnyEnterable`
        """Remove and return the body that an exit by hand is to end; `NotHeld` if there is none."""
        while bodies := self._bodies.get(of):
            body = self.choose(of, tuple(bodies))
            try:
                bodies.remove(body)
            except ValueError:
                continue  # a finalizer left it in the meantime
            return body
        dropped: Inside | None = of._dropped()
        if dropped is not None:
            return dropped
        raise NotHeld(f"the caller has not entered {of!r}, or has left it already")

    def choose(self, of: object, bodies: Sequence[Inside]) -> Inside:
        """The last body of this task; else the oldest of a task that has ended; else the oldest.

        A body of a running task is chosen last, because that task may still leave it itself.
        """
        task = self._current_task()
        ours = [body for body in bodies if body.task is task and task is not None]
        if ours:
            return ours[-1]
        ended = [body for body in bodies if body.task is None or body.task.done()]
        chosen = (ended or bodies)[0]
        if len(bodies) > 1:
            log.warning(
                "aiolock: %r was entered %d times by hand, and is left by a task that has not"
                " entered it: the oldest %s is ended. Use `async with` or an exit stack, whose"
                " exit ends what it entered",
                of,
                len(bodies),
                "of a task that has ended" if ended else "one",
            )
        return chosen


def current_task() -> asyncio.Task[Any] | None:
    """The running task; None outside of an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
