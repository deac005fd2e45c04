"""filelock's `AsyncFileLock`: a lock of the operating system on a file, polled."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from filelock import AsyncFileLock  # type: ignore[import-not-found]  # in its own environment


class Peer:
    """``folder`` is where the files are; a task has an object of its own. There is no lease."""

    def __init__(self, *, folder: str) -> None:
        self._folder = Path(folder)

    async def open(self, url: str, tasks: int) -> None:
        """Nothing is to be opened."""

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        lock: AbstractAsyncContextManager[object] = AsyncFileLock(self._folder / f"{name}.lock")
        return lock

    async def close(self) -> None:
        """Nor closed."""
