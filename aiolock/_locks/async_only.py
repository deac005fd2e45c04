"""What is entered with ``async with`` says so to who writes ``with``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn


class AsyncOnly:
    """A base of what is entered with ``async with``."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers find that `with` is wrong because these are missing

        def __enter__(self) -> NoReturn:
            raise TypeError(
                f"{self!r} is entered with `async with`, not `with`: `async with ... as lease:`;"
                " in threads, use the locks of aiolock.sync"
            )

        def __exit__(self, *_: object) -> None:
            """Needed for `__enter__` to be called."""
