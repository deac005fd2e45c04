"""Who is in which body of ``async with``: what is entered holds nothing, so it is kept here."""

from __future__ import annotations

from typing import Any

from aiolock._hold import Owner
from aiolock.errors import NotHeld


class Entered:
    """The bodies that the tasks of one client are in, those of one owner within each other."""

    def __init__(self) -> None:
        self._bodies: dict[Owner, list[tuple[object, Any]]] = {}

    def __len__(self) -> int:
        return len(self._bodies)

    def add(self, owner: Owner, of: object, body: Any) -> None:
        """``owner`` has entered ``of``."""
        self._bodies.setdefault(owner, []).append((of, body))

    def take(self, owner: Owner, of: object) -> Any:
        """The innermost body that the owner has entered, now left; `NotHeld` if there is none."""
        bodies = self._bodies
        if owner not in bodies:
            # A fixture or a generator may be entered by one task and left by another.
            ours = [key for key, those in bodies.items() if those[-1][0] is of]
            if len(ours) > 1:  # one that entered and runs will leave by itself
                ours = [key for key in ours if key[0] is None or key[0].done()]
            if len(ours) != 1:
                raise NotHeld(f"this task has not entered `async with` of {of!r}")
            owner = ours[0]
        _, body = bodies[owner].pop()
        if not bodies[owner]:
            del bodies[owner]
        return body
