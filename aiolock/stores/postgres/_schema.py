"""The SQL of the schema, and of the rights to use it."""

from __future__ import annotations

import re
from importlib import resources
from typing import Final

from aiolock import protocol

PROTOCOL: Final = 2
"""The protocol of this version: `aiolock.protocol()` says which one the database has."""
_OWNS: Final = "SELECT pg_advisory_xact_lock(7597127063519228267);\n"
"""One client makes the schema at a time: `CREATE ... IF NOT EXISTS` does not wait for others."""

_CONSTANTS: Final = {
    name: str(getattr(protocol, name))
    for name in (
        *("A_MINUTE", "CHECKS", "CHECKS_IF_FULL", "COST", "GRANTS", "KEEP_ALIVE", "LOOKERS"),
        *("LOOKED_AHEAD", "MAX_AHEAD", "MOST_AHEAD", "PART", "PRIORITY", "RESIZED", "STANDS_STILL"),
    )
}
"""The constants of the protocol that the file names; the database has their values."""
_NAMED: Final = re.compile(rf"\b({'|'.join(_CONSTANTS)})\b")

SEARCH_PATH: Final = "search_path = pg_catalog, pg_temp"
"""The setting to make the schema under: what it calls is PostgreSQL's own."""


def statements() -> str:
    """The SQL of the schema, to be run in one transaction by its owner. Idempotent."""
    text = resources.files(__package__ or "").joinpath("schema.sql").read_text("utf-8")
    return _OWNS + _NAMED.sub(lambda found: _CONSTANTS[found[0]], text)


def functions() -> list[str]:
    """The functions that an application calls; those whose names begin with _ are parts of them."""
    found = re.findall(r"^CREATE OR REPLACE FUNCTION aiolock\.(\w+)", statements(), re.MULTILINE)
    return [name for name in found if not name.startswith("_")]


def quoted(name: str) -> str:
    """A name as it stands in a statement."""
    return '"' + name.replace('"', '""') + '"'


def rights(role: str) -> str:
    """The SQL that lets ``role`` use the locks, and no more."""
    calls = ", ".join(f"aiolock.{name}" for name in functions())
    return (
        f"GRANT USAGE ON SCHEMA aiolock TO {quoted(role)};\n"
        f"GRANT EXECUTE ON FUNCTION {calls} TO {quoted(role)};\n"
    )
