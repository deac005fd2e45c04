"""The tables, made by their owner, and the rights of the users of the locks."""

from __future__ import annotations

from typing import Final

PROTOCOL: Final = 1
"""The protocol of this version: of the tables, and of what is written in them."""

# `id` is the name, or stands for a long one; it is compared byte by byte. A state is JSON (see
# `_codec`), empty if there are no holders and waiters: the row stays for a while, for its fence.
# `head` is the client of the first waiter; loading a row also asks whether that client is alive.
_TABLES: Final = {
    "aiolock_names": """
    id VARBINARY(250) NOT NULL PRIMARY KEY,
    name BLOB NOT NULL,
    fence BIGINT NOT NULL DEFAULT 0,
    head VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
    state LONGBLOB NOT NULL,
    over_at BIGINT NOT NULL DEFAULT 0,
    changed_at BIGINT NOT NULL DEFAULT 0
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
    name, _, host = user.partition("@")
    whom = f"{_quoted(name)}@{_quoted(host or '%')}"
    granted = [
        f"GRANT {'SELECT' if table == 'aiolock_meta' else 'SELECT, INSERT, UPDATE, DELETE'}"
        f" ON {table} TO {whom};\n"
        for table in _TABLES
    ]
    return "".join(granted)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"
