"""Names that are formatted from the arguments of a call: ``"user:{user_id}"``."""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

R = TypeVar("R")


def fields(template: str) -> set[str]:
    """The parameters in a name's template; `ValueError` for a template that cannot be formatted."""
    return set(_fields(template))


def _fields(template: str) -> Iterator[str]:
    for _, field, spec, conversion in string.Formatter().parse(template):
        if field is not None:
            yield re.split(r"[.\[]", field, maxsplit=1)[0]
            if conversion not in (None, "a", "r", "s"):
                raise ValueError(f"{template!r} has an unknown conversion, !{conversion}")
        yield from _fields(spec or "")


def naming(
    template: str, function: Callable[..., Any], decorator: str, *, plain: bool = False
) -> Callable[..., str]:
    """Make the function that formats the name for a call of ``function``.

    ``decorator`` is named in errors. ``plain`` says that ``function`` must not be async; otherwise
    it must be.
    """
    wanted = "functions that are not async" if plain else "async functions"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{decorator}() decorates {wanted}, and {function!r} is a generator, whose body would"
            " run after the call: take the lock in it"
        )
    if inspect.iscoroutinefunction(function) == plain:
        raise TypeError(f"{decorator}() decorates {wanted}, and {function!r} is not one")
    signature = inspect.signature(function)
    if unknown := fields(template) - set(signature.parameters):
        raise ValueError(
            f"{template!r} names {', '.join(sorted(unknown))!s}, but the parameters of"
            f" {function.__name__}() are {', '.join(signature.parameters) or 'none'}"
        )

    def name(*args: Any, **kwargs: Any) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return template.format_map(bound.arguments)

    return name


def whole(result: R, function: Callable[..., Any]) -> R:
    """The result of a function that was called under a lock; `RuntimeError` if work is left in it.

    That would be done when the lock has been released: by a generator or a coroutine, or by the
    streaming response of a web framework.
    """
    unfinished = (
        inspect.isgenerator(result)
        or inspect.isasyncgen(result)
        or inspect.iscoroutine(result)
        or getattr(result, "streaming", False) is True  # Django
        or getattr(result, "is_streamed", False) is True  # Flask, and all else by Werkzeug
    )
    if unfinished:
        kind: str = type(result).__name__
        if inspect.iscoroutine(result):
            result.close()
        raise RuntimeError(
            f"{function.__name__}() was called under a lock and returned a {kind},"
            " whose work would be done without the lock: do it in the function, or take the lock in"
            " the generator"
        )
    return result
