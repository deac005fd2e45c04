"""The safeguards of the source: the tables of `ablations/`, read for the tests and for the docs.

It imports nothing but the standard library: the site is built where the tests are not installed.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "ablations"


@dataclass(frozen=True)
class Safeguard:
    """Some lines of the source, what stands there without them, and the test that misses them."""

    name: str
    """What it does. One that begins with "…" goes on where the one before it ends."""
    file: str
    """Below `aiolock/`."""
    lines: str
    """They occur once in the file."""
    without: str
    test: str
    """Its id, below `tests/`."""
    seconds: int = 3
    """For which the test may last; the fixtures have their own time to start its servers."""


def tables() -> dict[str, list[Safeguard]]:
    """The safeguards of each area, by its title, in the order of the docs."""
    found: list[tuple[int, str, list[Safeguard]]] = []
    for path in FOLDER.glob("*.toml"):
        area: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
        rows = [Safeguard(**row) for row in area["safeguard"]]
        found.append((area["place"], area["title"], rows))
    return {title: rows for _, title, rows in sorted(found, key=lambda area: area[:2])}


def markdown() -> str:
    """The tables, as `docs/ablations.md` shows them."""
    return "\n\n".join(
        "\n".join(
            [
                f"## {title}\n",
                "| safeguard | where | the test that misses it |",
                "| --- | --- | --- |",
                *(f"| {row.name} | `{row.file}` | `{row.test}` |" for row in rows),
            ]
        )
        for title, rows in tables().items()
    )
