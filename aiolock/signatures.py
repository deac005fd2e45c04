"""The signatures of methods that take options, as ``help()`` and an editor show them.

The options that several kinds of locks share are defined once, in `aiolock.options`. A method
takes them as ``**options``; `spelled_out` shows them by name at run time, too. A method that names
all of its options has ``**unknown``: so the error for an unknown argument can name the one that is
probably meant, without the cost of a wrapper in each call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, Final, ParamSpec, TypedDict, TypeVar

__all__ = ["NoOptions", "spelled_out", "unexpected", "without_unknown"]

P = ParamSpec("P")
R = TypeVar("R")

_ELSEWHERE: Final = {
    **dict.fromkeys(
        ("blocking_timeout", "acquire_timeout", "wait_timeout", "max_wait", "wait_time"), "timeout"
    ),
    **dict.fromkeys(
        (
            *("expire", "expires", "expiry", "expiration", "ex", "px", "expire_time"),
            *("lease", "lease_time", "lock_timeout", "lock_ttl", "auto_release_time"),
        ),
        "ttl",
    ),
    **dict.fromkeys(("auto_renewal", "auto_renew", "auto_extend"), "renew"),
}
"""The names of these options in other lock libraries."""
_NOT_WAITING: Final = ("blocking", "block")
_OF_ONE_QUEUE: Final = ("share", "weight")
_MEANS: Final = {
    "timeout": "the seconds to wait for it",
    "ttl": "the seconds for which the server keeps it if nobody renews it",
}


class NoOptions(TypedDict):
    """The type of ``**unknown``: to type checkers, that accepts nothing."""


def without_unknown(method: Callable[P, R]) -> Callable[P, R]:
    """Show a method without its ``**unknown``, which is there for a better error only."""
    signature = inspect.signature(method)
    shown = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    method.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]  # as below
    return method


def _known(function: Callable[..., Any]) -> list[str]:
    """The arguments of a function that can be given by name."""
    parameters = inspect.signature(function).parameters.values()
    named = [p.name for p in parameters if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}]
    return named[1:] if named[:1] == ["self"] else named


def unexpected(function: Callable[..., Any], name: str) -> TypeError:
    """The error for an unknown argument, with the one that is probably meant."""
    known = _known(function)
    near = get_close_matches(name, known, 1, 0.75)
    meant = _ELSEWHERE.get(name) or (near[0] if near else "")
    text = f"{function.__name__}() got an unexpected keyword argument {name!r}"
    if name in _NOT_WAITING and "timeout" in known:
        text += ": did you mean try_acquire() or timeout=0, which do not wait?"
    elif name in _OF_ONE_QUEUE:
        text += (
            ": shares are for lock(), semaphore() and rate_limit(); all others are in order of"
            " arrival"
        )
    elif meant in known:
        text += (
            f": did you mean {meant}=, {_MEANS[meant]}?"
            if meant in _MEANS
            else f": did you mean {meant}=?"
        )
    return TypeError(text)


def spelled_out(
    like: Callable[..., Any], options: type
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Show the ``**options`` of a method as the parameters of ``like``, and accept no others.

    ``options`` is the class of `aiolock.options` that the method takes.
    """
    shared = options.__annotations__.keys()
    named = [p for p in inspect.signature(like).parameters.values() if p.name in shared]

    def decorate(method: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(method)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]

        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for name in kwargs:
                if name not in known:
                    raise unexpected(call, name)
            return method(*args, **kwargs)

        shown = signature.replace(parameters=[*own, *named])
        call.__signature__ = shown  # type: ignore[attr-defined]  # what `inspect` looks for
        known = frozenset(_known(call))
        return call

    return decorate
