"""Facts about a MySQL or MariaDB server for a report: its version, and settings that matter."""

from __future__ import annotations

import asyncio
from typing import Final

import pymysql

from aiolock.stores.mysql._link import Link
from aiolock.stores.mysql._settings import Settings

_SETTINGS: Final = (
    *("version_comment", "version_compile_os", "read_only", "max_connections"),
    *("max_allowed_packet", "innodb_flush_log_at_trx_commit", "sync_binlog", "wsrep_on"),
)


async def facts_of(settings: Settings) -> dict[str, str]:
    """The facts; PyMySQL's error if the server cannot be asked."""
    return await asyncio.to_thread(_read, settings)


def _read(settings: Settings) -> dict[str, str]:
    link = Link(settings)
    try:
        link.connect()
        names = ", ".join(f"'{each}'" for each in _SETTINGS)
        version, shown = link.run(
            "SELECT VERSION()", f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"
        )
        kind = "MariaDB" if link.is_mariadb() else "MySQL"
        facts = {"server": f"{kind} {version[0][0]}"} | {key: str(value) for key, value in shown}
        found, error = link.run_until("SELECT MAX(protocol) FROM aiolock_meta")
        if error is not None and not isinstance(error, pymysql.err.ProgrammingError):
            raise error
        schema = found[0][0][0] if found else None
        return facts | {"schema": "none" if schema is None else f"protocol {schema}"}
    finally:
        link.close()
