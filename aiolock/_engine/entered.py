"""Which task is in which body of ``async with``: a `Lock` has no state, so this is kept here.

Any number of tasks may be in the bodies of one `Lock`, so an exit does not tell which one ends. A
body belongs to the *frame* in which its ``async with`` stands, not to the task that leaves it:
another task may close a generator that was abandoned half-way, and may itself be in a body of the
same lock.
"""

from __future__ import annotations

import asyncio
from types import FrameType
from typing import Any

from aiolock.errors import NotHeld

Task = asyncio.Task[Any] | None


class _Entry:
    """A body that was entered in a frame, and the one that this frame had entered before it."""

    __slots__ = ("before", "body", "of", "task")

    def __init__(self, of: object, task: Task, body: Any, before: _Entry | None) -> None:
        self.of = of
        self.task = task
        self.body = body
        self.before = before


class Entered:
    """The bodies of ``async with`` in which the tasks of one client are."""

    def __init__(self) -> None:
        # For each frame, the body that it entered last.
        self._bodies: dict[FrameType, _Entry] = {}

    def __len__(self) -> int:
        return len(self._bodies)

    def add(self, of: object, frame: FrameType, task: Task, body: Any) -> None:
        """``task`` has entered ``of`` in an ``async with`` of ``frame``."""
        self._bodies[frame] = _Entry(of, task, body, self._bodies.get(frame))

    def take(self, of: object, frame: FrameType, task: Task) -> Any:
        """Remove and return the innermost body entered there; `NotHeld` if there is none."""
        entry = self._bodies.get(frame)
        if entry is None or entry.of is not of:
            frame, entry = self._elsewhere(of, frame, task)
        last = self._bodies[frame]
        if last is not entry:
            while last.before is not entry:
                assert last.before is not None
                last = last.before
            last.before = entry.before
        elif entry.before is not None:
            self._bodies[frame] = entry.before
        else:
            del self._bodies[frame]
        return entry.body

    def _elsewhere(self, of: object, frame: FrameType, task: Task) -> tuple[FrameType, _Entry]:
        """A body that is left by hand, by an exit stack or by a fixture; and its frame."""
        entries = list[tuple[FrameType, _Entry]]()  # for each frame, the last body comes first
        # Use a copy: the garbage collector may run here, and close a generator that is in a body.
        for entered_in, entry in self._bodies.copy().items():
            each: _Entry | None = entry
            while each is not None:
                if each.of is of:
                    entries.append((entered_in, each))
                each = each.before
        running, up = set[FrameType](), frame.f_back
        while up is not None:
            running.add(up)
            up = up.f_back
        # First choice: the frame itself, if its bodies are not nested. A body that a running frame
        # has entered is left by that frame, so any other body is preferred.
        for found in entries:
            if found[0] is frame:
                return found
        loose = [found for found in entries if found[0] not in running] or entries
        ours = [found for found in loose if found[1].task is task]
        if ours:
            last = ours[-1][0]
            return next(found for found in ours if found[0] is last)
        ended = [found for found in loose if found[1].task is None or found[1].task.done()]
        left = ended if len(loose) > 1 else loose
        if len(left) != 1:
            raise NotHeld(f"this task has not entered `async with` of {of!r}")
        return left[0]
