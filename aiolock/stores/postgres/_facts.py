"""Facts about a PostgreSQL server for a report: its version, and settings that matter."""

from __future__ import annotations

import asyncio
from typing import Final

import psycopg

from aiolock.stores.postgres._settings import Settings

_SETTINGS: Final = (
    *("synchronous_commit", "fsync", "max_connections"),
    *("default_transaction_isolation", "statement_timeout", "idle_session_timeout"),
)
_READ: Final = ", ".join(f"pg_catalog.current_setting('{each}', true)" for each in _SETTINGS)
_FACTS: Final = (
    "SELECT pg_catalog.version(), pg_catalog.pg_is_in_recovery()::text,"
    " pg_catalog.to_regprocedure('aiolock.protocol()') IS NOT NULL,"
    f" ARRAY[{_READ}]"
)


async def facts_of(settings: Settings) -> dict[str, str]:
    """The facts; psycopg's error if the server cannot be asked."""
    return await asyncio.to_thread(_read, settings)


def _read(settings: Settings) -> dict[str, str]:
    with psycopg.connect(settings.listens) as connection:
        row = connection.execute(_FACTS.encode()).fetchone()
        assert row is not None
        version, standby, made, values = row
        schema = "none"
        if made:
            found = connection.execute("SELECT aiolock.protocol()").fetchone()
            schema = f"protocol {found[0]}" if found else schema
    return {
        "server": str(version),
        "standby": str(standby),
        "schema": schema,
        "pooled": str(settings.pooled),
        "durable": str(settings.durable),
        **{key: str(value) for key, value in zip(_SETTINGS, values, strict=True) if value},
    }
