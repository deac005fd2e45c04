"""The tokens that processes leave for each other, as files of one folder."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Final

_MOST: Final = 10
"""Tokens that are left for others, about: most of them are spent."""


class Tokens:
    """The tokens of one run, as one process sees them."""

    def __init__(self, folder: Path, who: str) -> None:
        self._folder = folder / "tokens"
        self._folder.mkdir(exist_ok=True)
        self._who = who
        self._numbers = itertools.count(1)

    def leave(self, token: str) -> None:
        """Leave one for whoever comes first."""
        name = f"{self._who}.{next(self._numbers)}"
        hidden = self._folder / f".{name}"
        hidden.write_text(token, "ascii")
        hidden.rename(self._folder / name)

    def find(self, rng: random.Random, *, take: bool) -> str | None:
        """One of them, if there is any; ``take``: so that no other process finds it."""
        found = [path for path in self._folder.iterdir() if not path.name.startswith(".")]
        if not found:
            return None
        path = rng.choice(sorted(found))
        try:
            if take or len(found) > _MOST:
                path = path.rename(self._folder / f".{path.name}.{self._who}")
            return path.read_text("ascii")
        except FileNotFoundError:  # another process was faster
            return None
