"""Names and shares that are formatted from the arguments of a call: ``"user:{user_id}"``.

For your decorators that take such a template, as `LockClient.locked` does.
"""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from aiolock.validation import LONGEST_LABEL, checked_name

__all__ = ["checked_result", "describe_each", "describer", "family_of", "fields", "formatter"]

R = TypeVar("R")
T = TypeVar("T")


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


def family_of(template: str) -> str:
    """The family of all names of a template (see `LockRequest.family`): the template itself."""
    return checked_name(template)[:LONGEST_LABEL]


def describe_each(describe: Callable[..., T], template: str) -> Callable[..., T]:
    """``describe``, a function that takes a name, for all names of the template.

    It is called with the template as a name, so that a wrong option is an error when a function is
    decorated, not at its first call; and so is a template that cannot be formatted.
    """
    fields(checked_name(template))
    describe(template)
    return describe


def formatter(
    template: str, function: Callable[..., Any], decorator: str, *, is_async: bool = True
) -> Callable[..., str]:
    """The function that formats the name for a call of ``function``, from the same arguments.

    ``decorator`` is the name of the decorator, for errors. `TypeError` if ``function`` is a
    generator, or is not async (with ``is_async=False``: is async). `ValueError` for a field that is
    not one of its parameters.
    """
    wanted = "async functions" if is_async else "functions that are not async"
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{decorator}() decorates {wanted}, and {function!r} is a generator, whose body would"
            " run after the call: take the lock in it"
        )
    if inspect.iscoroutinefunction(function) != is_async:
        other = (
            "for one without async, use the client of aiolock.sync.connect()"
            if is_async
            else "for an async one, use the client of aiolock.connect()"
        )
        raise TypeError(f"{decorator}() decorates {wanted}, and {function!r} is not one: {other}")
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


def describer(
    describe: Callable[..., T],
    template: str,
    function: Callable[..., Any],
    decorator: str,
    *,
    share: str | None = None,
    is_async: bool = True,
) -> Callable[..., T]:
    """The function that describes the lock of a call of ``function``, from the same arguments.

    ``describe`` gets the name, and the ``share`` if that is a template, too. Other arguments and
    errors are those of `formatter`.
    """
    name_of = formatter(template, function, decorator, is_async=is_async)
    if share is None:
        return lambda *args, **kwargs: describe(name_of(*args, **kwargs))
    share_of = formatter(share, function, decorator, is_async=is_async)
    return lambda *args, **kwargs: describe(
        name_of(*args, **kwargs), share=share_of(*args, **kwargs)
    )


def checked_result(result: R, function: Callable[..., Any]) -> R:
    """The result of a function that ran under a lock; `RuntimeError` if it still has to do work.

    A generator, a coroutine or a streaming response of a web framework would do that work later,
    when the lock has been released.
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
