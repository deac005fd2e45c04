"""Pushes that were delivered: until they are removed, they must not be read again."""

from __future__ import annotations

import threading
from collections.abc import Sequence


class Read:
    """Shared by the thread that listens and the one that writes."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._ids = dict[int, None]()

    def add(self, number: int) -> None:
        """Note that this push was delivered."""
        with self._mutex:
            self._ids[number] = None

    def to_remove(self) -> list[int]:
        """The pushes that were delivered and are still in the table."""
        with self._mutex:
            return list(self._ids)

    def removed(self, numbers: Sequence[int]) -> None:
        """Note that these are no longer in the table."""
        with self._mutex:
            for number in numbers:
                del self._ids[number]

    @staticmethod
    def removal(client: str, numbers: Sequence[int]) -> list[str]:
        """The statement that removes these, if there are any."""
        if not numbers:
            return []
        ids = ", ".join(map(str, numbers))
        return [f"DELETE FROM aiolock_inbox WHERE client = '{client}' AND id IN ({ids})"]
