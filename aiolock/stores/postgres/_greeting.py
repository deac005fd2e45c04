"""The greeting of a connection: whether this server, and this role, can be used.

It makes the schema if it is not there yet.
"""

from __future__ import annotations

from typing import Final

import psycopg

from aiolock.stores._protocols import spoken, works_beside
from aiolock.stores.postgres import _server
from aiolock.stores.postgres._errors import Failed, not_made
from aiolock.stores.postgres._link import Connection
from aiolock.stores.postgres._schema import PROTOCOL, SEARCH_PATH, statements
from aiolock.stores.postgres._settings import Settings
from aiolock.stores.postgres._wire import FUNCTIONS, LATER

_CALLED: Final = [*FUNCTIONS, "hello"]


class Greeting:
    """Checks each new connection for commands."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.ours = False
        """Whether the session is certainly ours: then it keeps settings and prepared statements."""
        self.protocol = PROTOCOL
        """The protocol of the schema."""
        self.goes_on = False
        """Whether the schema has `go_on`."""

    async def greet(self, connection: Connection, *, opening: bool) -> None:
        """Raises `Failed`, or what psycopg raises. ``opening``: it is the client's first."""
        settings = self._settings
        settings.place.connected(connection.info)
        connection.prepare_threshold = None
        certain = await _server.is_ours(connection)
        self.ours = certain and not settings.pooled
        if not certain and not settings.pooled and opening:
            # Commands leave nothing in any session. But the listener would be refused.
            await _server.check_kept_beside(connection, settings.commands)
        if self.ours:
            await connection.execute(settings.session().encode())
        await _server.check_writes(connection)
        if settings.create:
            await _make(connection)
        # Where the session is not ours, no search_path is: so PostgreSQL's own are called by their
        # schema.
        cursor = await connection.execute(
            "SELECT aiolock.protocol(), pg_catalog.current_setting('transaction_isolation')"
        )
        row = await cursor.fetchone()
        assert row is not None
        protocol, isolation = row
        if protocol < PROTOCOL or not works_beside(PROTOCOL, protocol):
            raise Failed(
                "its schema is of another version of aiolock: run `aiolock init-db URL` of the"
                " newer one, and upgrade its clients one protocol after the other"
                f" (protocol {protocol} is spoken there; {spoken(PROTOCOL)})"
            )
        self.protocol = protocol
        if isolation != "read committed":
            raise Failed(f"transactions are {isolation} there", "AL001")
        self.goes_on = "go_on" in await _callable(connection)


async def _make(connection: Connection) -> None:
    """Make the schema, if this role is to make it."""
    async with connection.transaction():
        await connection.execute(f"SET LOCAL {SEARCH_PATH}".encode())
        await connection.execute("SET LOCAL client_min_messages = warning")
        if not await _is_made(connection):
            try:
                await connection.execute(statements().encode())
            except psycopg.Error as error:
                raise not_made(error) from error


async def _is_made(connection: Connection) -> bool:
    """Whether there is nothing to make: another role or a later version has made the schema."""
    cursor = await connection.execute(
        "SELECT pg_get_userbyid(s.nspowner) <> current_user FROM pg_namespace s"
        " JOIN pg_proc p ON p.pronamespace = s.oid"
        " WHERE s.nspname = 'aiolock' AND p.proname = 'protocol'"
    )
    row = await cursor.fetchone()
    if row is None:
        return False
    if row[0]:
        return True
    cursor = await connection.execute("SELECT aiolock.protocol()")
    return bool((await cursor.fetchone() or (0,))[0] > PROTOCOL)


async def _callable(connection: Connection) -> set[str]:
    """The functions. Checks all rights at once: a role may acquire, perhaps, and not release."""
    cursor = await connection.execute(
        "SELECT name, pg_catalog.has_function_privilege(p.oid, 'EXECUTE')"
        " FROM pg_catalog.unnest(%s::pg_catalog.text[]) name LEFT JOIN pg_catalog.pg_proc p"
        " ON p.proname OPERATOR(pg_catalog.=) name"
        " AND p.pronamespace OPERATOR(pg_catalog.=) 'aiolock'::pg_catalog.regnamespace"
        " ORDER BY name",
        (_CALLED,),
    )
    found = await cursor.fetchall()
    if missing := [name for name, may in found if may is None and name not in LATER]:
        raise Failed(f"there is no function {', '.join(missing)} in the schema aiolock", "42883")
    if denied := [name for name, may in found if may is False]:
        raise Failed(f"permission denied for function {', '.join(denied)}", "42501")
    return {name for name, may in found if may}
