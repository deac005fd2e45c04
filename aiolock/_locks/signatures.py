"""The signatures of methods that take options, as ``help()`` and an editor show them.

The options that one kind of lock shares with others are defined once, in `aiolock.options`. A
method takes them as ``**options``; `spelled_out` shows them by name at run time, too.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from aiolock._engine.policy import unexpected
from aiolock.options import LeaseOptions

P = ParamSpec("P")
R = TypeVar("R")


def without_unknown(method: Callable[P, R]) -> Callable[P, R]:
    """Show a method without its ``**unknown``, which is there for a better error only."""
    signature = inspect.signature(method)
    shown = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    method.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]  # as below
    return method


def named(method: Callable[P, R]) -> Callable[P, R]:
    """Have an argument that the method does not know named, with the one that may be meant."""
    known = inspect.signature(method).parameters

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                raise unexpected(method.__name__, name, known)
        return method(*args, **kwargs)

    return call


def spelled_out(
    lock: Callable[..., Any], options: type[LeaseOptions]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Show the ``**options`` of a method as the parameters of ``lock``, and accept no others."""
    known = options.__annotations__.keys()
    named = [p for p in inspect.signature(lock).parameters.values() if p.name in known]

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(method)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        names = {p.name for p in (*own, *named)}

        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in names:
                    raise unexpected(method.__name__, name, names)
            return method(*args, **kwargs)

        shown = signature.replace(parameters=[*own, *named])
        call.__signature__ = shown  # type: ignore[attr-defined]  # what `inspect` looks for
        return call

    return decorate
