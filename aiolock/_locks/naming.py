"""Names that are formatted from the arguments of a call: ``"user:{user_id}"``."""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Callable, Iterator
from typing import Any


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
    if inspect.iscoroutinefunction(function) == plain:
        wanted = "functions that are not async" if plain else "async functions"
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
