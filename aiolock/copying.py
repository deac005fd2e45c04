"""What `copy` and `pickle` do with objects that stand for something outside of them."""

from __future__ import annotations

from typing import ClassVar, NoReturn, Self


class Uncopyable:
    """An object that stands for one thing: a copy would end it, or use its connection."""

    __slots__ = ()
    _instead: ClassVar[str] = ""
    """What its user can do instead."""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        # `copy`, `deepcopy` and `pickle` all call this.
        instead = f": {self._instead}" if self._instead else ""
        kind = type(self).__name__
        a = "an" if kind[0] in "AEIOU" else "a"
        raise TypeError(f"{a} {kind} cannot be copied or pickled{instead}")


class CopiedAsItself(Uncopyable):
    """An immutable description: it is its own copy, and of the same client."""

    __slots__ = ()
    _instead = "it belongs to a client of this process; make one of the same name at a client there"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self
