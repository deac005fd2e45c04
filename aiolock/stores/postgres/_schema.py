"""What is in the database: the text that makes it, and who may use what of it."""

from __future__ import annotations

import re
from importlib import resources
from typing import Final

PROTOCOL: Final = 1
"""That of this version: `aiolock.protocol()` says which one the database has."""
_OWNS: Final = "SELECT pg_advisory_xact_lock(7597127063519228267);\n"
"""One at a time, also where several make it at once: `CREATE ... IF NOT EXISTS` does not wait."""


def statements() -> str:
    """The schema, to be run in one transaction by whoever is to own it. Idempotent."""
    text = resources.files(__package__ or "").joinpath("schema.sql").read_text("utf-8")
    return _OWNS + text


def functions() -> list[str]:
    """The functions that an application calls; those whose names begin with _ are parts of them."""
    found = re.findall(r"^CREATE OR REPLACE FUNCTION aiolock\.(\w+)", statements(), re.MULTILINE)
    return [name for name in found if not name.startswith("_")]


def quoted(name: str) -> str:
    """A name as it stands in a statement."""
    return '"' + name.replace('"', '""') + '"'


def rights(role: str) -> str:
    """What lets ``role`` use the locks, and nothing else."""
    calls = ", ".join(f"aiolock.{name}" for name in functions())
    return (
        f"GRANT USAGE ON SCHEMA aiolock TO {quoted(role)};\n"
        f"GRANT EXECUTE ON FUNCTION {calls} TO {quoted(role)};\n"
    )
