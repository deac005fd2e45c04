"""The tables, made by their owner, and the rights of the users of the locks."""

from __future__ import annotations

import re
from typing import Final

PROTOCOL: Final = 1
"""The protocol of this version: of the tables, and of what is written in them."""

# `id` is the name, or stands for a long one; it is compared byte by byte. A state is JSON (see
# `_codec`), empty if there are no holders and waiters: the row stays for a while, for its fence.
# By `over_minute`, the names that expired first are found; it is in minutes because an index entry
# that is not changed costs nothing.
# `head` is the client of the first waiter; loading a row also asks whether that client is alive.
_TABLES: Final = {
    "aiolock_names": """
    id VARBINARY(250) NOT NULL PRIMARY KEY,
    name BLOB NOT NULL,
    fence BIGINT NOT NULL DEFAULT 0,
    head VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    state LONGBLOB NOT NULL,
    over_at BIGINT NOT NULL DEFAULT 0,
    changed_at BIGINT NOT NULL DEFAULT 0,
    over_minute BIGINT AS (GREATEST(over_at, changed_at) DIV 60000000) STORED,
    KEY over_minute (over_minute)
""",
    "aiolock_inbox": """
    id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    client VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    name BLOB NOT NULL,
    push LONGBLOB NOT NULL,
    KEY (client, id)
""",
    "aiolock_clients": """
    client VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY,
    host VARBINARY(255) NOT NULL,
    pid BIGINT NOT NULL,
    seen BIGINT NOT NULL
""",
    "aiolock_meta": """
    protocol INT NOT NULL PRIMARY KEY
""",
}

_ALL: Final = "SELECT, INSERT, UPDATE, DELETE"
_WRITING: Final = {
    "INSERT INTO aiolock_names (id, name, state)": "SELECT '', '', '' FROM DUAL",
    "UPDATE aiolock_names": "SET fence = 0, head = '', state = '', over_at = 0, changed_at = 0",
    "DELETE FROM aiolock_names": "",
    "INSERT INTO aiolock_inbox (client, name, push)": "SELECT '', '', '' FROM DUAL",
    "DELETE FROM aiolock_inbox": "",
    "INSERT INTO aiolock_clients (client, host, pid, seen)": "SELECT '', '', 0, 0 FROM DUAL",
    "UPDATE aiolock_clients": "SET seen = 0",
    "DELETE FROM aiolock_clients": "",
}
TRIAL: Final = (
    (
        "SELECT id, name, fence, head, state, over_at, changed_at, over_minute FROM aiolock_names"
        " WHERE FALSE"
    ),
    "SELECT id, client, name, push FROM aiolock_inbox WHERE FALSE",
    "SELECT client, host, pid, seen FROM aiolock_clients WHERE FALSE",
    *(f"{order} {what} WHERE FALSE" for order, what in _WRITING.items()),
)
"""Each kind of statement that a client has for a table, on no row: it checks the rights.

Some of them are rare, as those of a sweep, whose failure would go unnoticed.
"""


def statements() -> str:
    """The tables, to be made by their owner. Idempotent."""
    made = [
        f"CREATE TABLE IF NOT EXISTS {name} ({columns}) ENGINE=InnoDB;\n"
        for name, columns in _TABLES.items()
    ]
    return "".join(made) + f"INSERT IGNORE INTO aiolock_meta VALUES ({PROTOCOL});\n"


def split(text: str) -> list[str]:
    """The single statements of a text."""
    return [each for each in text.split(";\n") if each]


def rights(user: str) -> str:
    """The SQL that lets ``user`` (``name``, or ``name@host``) use the locks, and no more."""
    granted = [
        f"GRANT {'SELECT' if table == 'aiolock_meta' else _ALL} ON {table} TO {account(user)};\n"
        for table in _TABLES
    ]
    return "".join(granted)


def rights_of_an_owner(database: str, user: str, *, grants: bool) -> str:
    """The SQL that lets ``user`` make and use the tables; with ``grants``, let others use them."""
    # In a GRANT, and only there, these two characters are wildcards.
    pattern = re.sub("([_%])", r"\\\1", database).replace("`", "``")
    option = " WITH GRANT OPTION" if grants else ""
    return f"GRANT CREATE, {_ALL} ON `{pattern}`.* TO {account(user)}{option};"


def account(user: str) -> str:
    """``name``, or ``name@host``, as it is written in a statement.

    ``name@`` is a role of MariaDB's, which has no host. It must be explicit: a name alone might be
    that of a role as well, or PUBLIC, which is all users.
    """
    name, at, host = user.rpartition("@") if "@" in user else (user, "@", "%")
    return f"{quoted(name)}{at}{quoted(host)}" if host else quoted(name)


def quoted(text: str) -> str:
    """A text, as it is written in a statement."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
