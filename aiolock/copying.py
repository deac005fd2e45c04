"""Bases of objects that `copy` and `pickle` must not duplicate: clients, leases, descriptions."""

from __future__ import annotations

from typing import ClassVar, NoReturn, Self

__all__ = ["CopiedAsItself", "Uncopyable"]


class Uncopyable:
    """An object that refers to one external thing: a copy could end it, or use its connection."""

    __slots__ = ()
    _instead: ClassVar[str] = ""
    """The advice in the error: how to get the same effect."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        # `copy`, `deepcopy` and `pickle` all call this.
        instead = f": {self._instead}" if self._instead else ""
        kind = type(self).__name__
        a = "an" if kind[0] in "AEIOU" else "a"
        raise TypeError(f"{a} {kind} cannot be copied or pickled{instead}")


class CopiedAsItself(Uncopyable):
    """An immutable description of a lock: its copy is the same object, of the same client."""

    __slots__ = ()
    _instead = "it belongs to a client of this process; make one of the same name at a client there"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self
