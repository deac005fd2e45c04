"""The rules of arguments: names, labels, durations, numbers, the store's URL.

For your functions that take such arguments: a wrong one is then an error of your function, before
it does anything. Each returns the valid value, or raises `TypeError` or `ValueError` with the rule
as its text.
"""

from __future__ import annotations

import logging
import math
import os
from datetime import timedelta
from typing import Final

__all__ = [
    "LONGEST_LABEL",
    "LONGEST_NAME",
    "LONGEST_RESULT",
    "LONGEST_TTL",
    "MOST_PERMITS",
    "SHORTEST_TTL",
    "as_label",
    "checked_label",
    "checked_name",
    "checked_number",
    "checked_timeout",
    "checked_ttl",
    "checked_wait",
    "seconds",
    "store_url",
]

LONGEST_NAME: Final = 512
"""Characters of a name."""
LONGEST_LABEL: Final = 100
"""Characters of a label, and of a family."""
LONGEST_RESULT: Final = 65_536
"""Characters of a result that `Once.outcome` keeps."""
SHORTEST_TTL: Final = 0.01
"""Seconds of the shortest ttl."""
LONGEST_TTL: Final = 365 * 24 * 3600.0
"""Seconds of the longest ttl, and of everything else that a store keeps for a time."""
MOST_PERMITS: Final = 1_000_000_000
"""The most permits of a semaphore or parties of a barrier: too few to be taken for a time."""

_log = logging.getLogger("aiolock")

_SUSPICIOUS_TTL: Final = 3600.0
"""Seconds; a longer ttl may have been meant in milliseconds."""
_WARNINGS: Final = 10
_questioned: Final = set[float]()
"""The ttls that were warned of: each once in this process, and not more than `_WARNINGS`."""


def seconds(what: str, value: object, *, least: float, most: float = math.inf) -> float:
    """``value``, a number or a `datetime.timedelta`, as a number of seconds within these limits.

    ``what`` is the name of the argument, for the error.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be a number of seconds or a timedelta, not {value!r}")
    try:
        number = float(value)
    except OverflowError:  # an int of hundreds of digits
        number = math.inf
    if not least <= number <= most or math.isinf(number):  # nan fails every comparison
        limit = f"from {least:g} to {most:,.0f}" if most < math.inf else f"at least {least:g}"
        raise ValueError(f"{what} must be {limit} seconds, not {value!r}")
    return number


def checked_timeout(value: object) -> float | None:
    """A timeout in seconds: at least 0, or None to wait as long as it takes."""
    if value == math.inf:
        raise ValueError("timeout must be finite, not inf: None waits as long as it takes")
    return None if value is None else seconds("timeout (or None)", value, least=0)


def checked_wait(value: object) -> float:
    """The timeout of `try_acquire`: seconds, at least 0."""
    timeout = checked_timeout(value)
    if timeout is None:
        raise ValueError(
            "try_acquire() must have a timeout in seconds, not None:"
            " acquire() waits as long as it takes"
        )
    return timeout


def checked_ttl(value: object) -> float:
    """A ttl in seconds; one that may be meant in milliseconds gets a warning in the log."""
    ttl = seconds("ttl", value, least=SHORTEST_TTL, most=LONGEST_TTL)
    if ttl > _SUSPICIOUS_TTL and ttl not in _questioned and len(_questioned) < _WARNINGS:
        _questioned.add(ttl)
        _log.warning(
            "aiolock: a ttl of %g s is %.1f hours, for which a lock stays taken if its holder dies:"
            " is it meant in milliseconds? It is in seconds; and what is held is renewed",
            ttl,
            ttl / 3600,
        )
    return ttl


def checked_name(name: object) -> str:
    """A lock's name: 1 to 512 characters that can be written in UTF-8."""
    if not isinstance(name, str):
        raise TypeError(f"a lock's name must be a str, not {type(name).__name__}")
    if not 1 <= len(name) <= LONGEST_NAME:
        raise ValueError(
            f"a lock's name must have 1 to {LONGEST_NAME} characters, not {len(name)}"
            + (": hash what is longer" if name else "")
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a lock's name must be writable in UTF-8, not {name!r}") from None
    return name


def checked_label(what: str, label: object) -> str:
    """A text for people, of at most 100 characters; empty for None."""
    if label is None:
        return ""
    if not isinstance(label, str):
        raise TypeError(f"{what} must be a str or None, not {label!r}")
    if not 1 <= len(label) <= LONGEST_LABEL:
        raise ValueError(f"{what} must have 1 to {LONGEST_LABEL} characters, not {len(label)}")
    if not label.isprintable():
        raise ValueError(f"{what} must be printable, on one line, not {label!r}")
    return label


def as_label(text: str, most: int = LONGEST_LABEL) -> str:
    """Any text as a label: characters that are not printable are escaped, a long text is cut."""
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= most else f"{text[: most - 1]}…"


def checked_number(what: str, value: object, *, least: int = 1, most: int = MOST_PERMITS) -> int:
    """A whole number within limits: of permits or parties, a priority, a fence."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} must be an int, not {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{what} must be from {least} to {most:,}, not {value!r}")
    return value


def store_url(url: str | None) -> str:
    """The given URL, or that of the environment variable ``AIOLOCK_URL``."""
    url = os.environ.get("AIOLOCK_URL") if url is None else url
    if not url:
        raise ValueError("which store? Give url=, or set the environment variable AIOLOCK_URL")
    return url
