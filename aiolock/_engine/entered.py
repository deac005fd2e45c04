"""Who is in which body of ``async with``: what is entered holds nothing, so it is kept here.

Any number of tasks may be in the bodies of one `Lock`, so leaving one does not say which. What a
body belongs to is the *frame* in which its ``async with`` stands: a generator that was thrown away
half way is closed by another task, which may itself be in a body of the same lock.
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
    """The bodies that the tasks of one client are in."""

    def __init__(self) -> None:
        # By the frame that entered them: the last one.
        self._bodies: dict[FrameType, _Entry] = {}

    def __len__(self) -> int:
        return len(self._bodies)

    def add(self, of: object, frame: FrameType, task: Task, body: Any) -> None:
        """``task`` has entered ``of`` in an ``async with`` of ``frame``."""
        self._bodies[frame] = _Entry(of, task, body, self._bodies.get(frame))

    def take(self, of: object, frame: FrameType, task: Task) -> Any:
        """The innermost body that was entered there, now left; `NotHeld` if there is none."""
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
        """The body that is left by hand, or by an exit stack, or by a fixture, and its frame."""
        entries = list[tuple[FrameType, _Entry]]()  # of one frame, the last comes first
        # A copy: the garbage collector may come in between, and close a generator that is in one.
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
        # The frame itself, where its bodies do not lie within each other. What a running frame has
        # entered is left by that frame, if anybody else's can be meant.
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
