"""Bases of objects that `copy` and `pickle` must not duplicate: clients, leases, descriptions."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn, Self

__all__ = ["CopiedAsItself", "Uncopyable"]


class Uncopyable:
    """An object that refers to one external thing: a copy could end it, or use its connection."""

    __slots__ = ()
    _instead: ClassVar[str] = ""

    def __init_subclass__(cls, *, instead: str | None = None, **more: Any) -> None:
        """``instead`` is the advice in the error: how to get the same effect."""
        super().__init_subclass__(**more)
        if instead is not None:
            cls._instead = instead

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        # `copy`, `deepcopy` and `pickle` all call this.
        instead = f": {self._instead}" if self._instead else ""
        kind = type(self).__name__
        a = "an" if kind[0] in "AEIOU" else "a"
        raise TypeError(f"{a} {kind} cannot be copied or pickled{instead}")


class CopiedAsItself(
    Uncopyable,
    instead="it belongs to a client of this process; make one of the same name at a client there",
):
    """An immutable description of a lock: its copy is the same object, of the same client."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self
