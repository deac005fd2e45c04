"""The name of a request's lock, and its share: templates, with fields from path and query."""

from __future__ import annotations

import string
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from typing import TypeVar, Unpack

from aiolock import connect
from aiolock.options import LockOptions, Seconds

PATIENCE = 10.0
"""Seconds that a request waits for its turn by default."""


L = TypeVar("L")


BAD_NAME = "What the request names is too long, or no name at all."


class BadName(Exception):
    """A value in a request cannot be part of a lock's name."""


class LockOf:
    """The lock of a request, by the values in its path and query; checked when it is made.

    `ValueError` and `TypeError` for an invalid template or option.
    """

    def __init__(
        self, template: str, query: Collection[str] = (), **options: Unpack[LockOptions]
    ) -> None:
        if not isinstance(template, str):
            raise TypeError(f"the name of a lock must be a str, not {template!r}")
        if isinstance(query, str):
            raise TypeError(f"query must be a collection of names, as {{{query!r}}}")
        options.setdefault("timeout", PATIENCE)
        # Metrics are by family: all requests of one template are one.
        if template.isprintable():
            options.setdefault("family", template[:100])
        self.template = template
        self.query = frozenset(query)
        share = options.get("share")
        shared = _fields(share) if isinstance(share, str) else ()
        self.fields = tuple(dict.fromkeys((*_fields(template), *shared)))
        self._options = options
        if strange := self.query - set(self.fields):
            raise ValueError(f"{template!r} has no {_list(strange)}, which query= names")
        # This client is never opened, but checks names and options as any other does.
        self._check = connect("memory://").lock
        example = dict.fromkeys(self.fields, "x")
        self._check(self.name(example), **self._with_share(example))

    def __repr__(self) -> str:
        return f"<Lock {self.template!r}>"

    @property
    def timeout(self) -> Seconds | None:
        """Seconds that a request waits at most; None if it waits as long as it takes."""
        return self._options.get("timeout")

    @property
    def max_waiters(self) -> int | None:
        """How many may wait, if that is bounded."""
        return self._options.get("max_waiters")

    @property
    def cancels(self) -> bool:
        """Whether its loss ends what is under it."""
        return self._options.get("on_lost", "cancel") == "cancel"

    @property
    def path(self) -> set[str]:
        """The fields that come from the path."""
        return set(self.fields) - self.query

    def check_path(self, where: str, known: Collection[str]) -> None:
        """Raise `ValueError` if a path does not have all fields that the template needs of it."""
        if missing := self.path - set(known):
            raise ValueError(
                f"{where} has no {_list(missing)}, which the lock {self.template!r} needs. What"
                " comes from the query has to be named: query={...}"
            )

    def values(self, path: Mapping[str, object], query: Mapping[str, object]) -> dict[str, object]:
        """The values of its fields in a request."""
        found = {name: (query if name in self.query else path).get(name) for name in self.fields}
        return {name: value for name, value in found.items() if value is not None}

    def name(self, values: Mapping[str, object]) -> str:
        """The name, with these values; `BadName` if one is missing."""
        missing = [field for field in self.fields if field not in values]
        if missing:
            raise BadName(f"The request lacks {_list(missing)}.")
        return _formatted(self.template, values)

    def on(self, lock: Callable[..., L], values: Mapping[str, object]) -> L:
        """The lock itself, by the client's ``lock``; `BadName` for an invalid name, or share."""
        name, options = self.name(values), self._with_share(values)
        try:
            self._check(name, **options)
        except ValueError as error:  # the options were checked before, so it is one of these
            raise BadName(BAD_NAME) from error
        return lock(name, **options)  # an option that its store does not take is no fault of theirs

    def _with_share(self, values: Mapping[str, object]) -> LockOptions:
        """The options of the lock with these values."""
        share = self._options.get("share")
        if not isinstance(share, str):
            return self._options
        return {**self._options, "share": _formatted(share, values)}


def _formatted(template: str, values: Mapping[str, object]) -> str:
    # A member of an Enum is named as the client names it, in all versions of Python.
    return template.format_map({name: _text(value) for name, value in values.items()})


def _text(value: object) -> str:
    return str(value.value if isinstance(value, Enum) else value)


def _fields(template: str) -> list[str]:
    fields = list[str]()
    for _, field, spec, conversion in string.Formatter().parse(template):
        if field is None:
            continue
        # A template must not read attributes of, or format, untrusted values.
        if not field.isidentifier() or spec or conversion:
            shown = field + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "")
            raise ValueError(
                f"{template!r} may have plain fields only, as {{order}}, not {{{shown}}}"
            )
        fields.append(field)
    return fields


def _list(names: Collection[str]) -> str:
    return ", ".join(repr(name) for name in sorted(names))
