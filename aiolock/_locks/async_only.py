"""The error for ``with`` where ``async with`` is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn


class AsyncOnly:
    """A base of classes that are entered with ``async with``: ``with`` raises a clear error."""

    __slots__ = ()

    if not TYPE_CHECKING:  # type checkers find that `with` is wrong because these are missing

        def __enter__(self) -> NoReturn:
            raise TypeError(
                f"{self!r} is entered with `async with`, not `with`: `async with ... as lease:`;"
                " in threads, use the locks of aiolock.sync"
            )

        def __exit__(self, *_: object) -> None:
            """Needed for `__enter__` to be called."""
