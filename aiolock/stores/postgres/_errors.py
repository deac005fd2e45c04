"""The texts of a `StoreError` about PostgreSQL: where it is, what is wrong, and what to do."""

from __future__ import annotations

import re
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from aiolock._urls import SECRETS, Shown
from aiolock.errors import StoreError
from aiolock.stores.postgres._schema import quoted, rights

ELSEWHERE: Final = ("25006", "57P01", "57P02", "57P03", "57P05", "08", "53300")
"""States, or classes of them, of a server that cannot serve us now: connect again, to it or to its
successor."""
BUSY: Final = ("55P03", "40P01", "40001")
"""States of a conflict with others that passes: try again."""
REPLACED: Final = ("0A000", "22", "23502", "42804", "XX000")
"""States of a call that was under way while `init-db` changed the tables: it went on with the old
functions on the new tables, and has changed nothing. The next try has the new functions."""
_MISCONFIGURED: Final = ("AL", "28", "3D000", "3F000", "42501", "42883", "42P01")
"""States, or classes of them, that last until a password, a right or the schema is changed."""
_REFUSES: Final = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry"
    r"|(role|database) \".*\" (does not exist|is not permitted)|permission denied for database"
)
"""Error texts of a refused connection: psycopg gives no state for that."""

_ADVICE: Final = {
    "AL001": "let this role and this database have the isolation level read committed"
    " (ALTER ROLE ... SET default_transaction_isolation)",
    "AL005": "put pooled=1 into the URL, and listen_url= with the URL of the server itself, for"
    " listening, which no pooler can do",
    "AL006": "its advisory locks, LISTEN or row locks are not those of PostgreSQL, so two clients"
    " could have one lock. Use PostgreSQL 13 or newer, or another store",
    "AL007": "use PostgreSQL 13 or newer",
    "AL008": "end it, or wait until it has ended, and run `aiolock init-db URL` again:"
    " pg_stat_activity says what it does",
    "25006": "it is read-only, a standby perhaps: connect to the primary, with"
    " target_session_attrs=read-write and all hosts in the URL",
    "28": "see the user and the password in the URL, and pg_hba.conf",
    "2BP01": "what you have made uses a function that this version replaces: drop it, run"
    " `aiolock init-db URL` again, and make it anew",
    "3D000": "the database is not there: see the URL",
    "3F000": "aiolock's schema is not there: run `aiolock init-db URL` as its owner",
    "42883": "aiolock's functions are not there, or older: run `aiolock init-db URL`",
    "53300": "it takes no more connections: each client needs two (max_connections)",
    "55P03": "another transaction is open that keeps it: one that has checked a fence, perhaps"
    " (check_fence)",
    "57014": "it took too long: see what the server is waiting for",
    "08P01": "is it a PgBouncer? Then put pooled=1 and listen_url= into the URL",
}


class Place:
    """The location of the server, for texts: nothing secret."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.role = self.database = ""
        """The user and database of the connection: libpq may take them from elsewhere."""

    def connected(self, info: psycopg.ConnectionInfo) -> None:
        """Take from a connection what a URL need not contain."""
        self.role, self.database = info.user, info.dbname


class Failed(Exception):
    """The server has refused a statement, or a connection could not be made."""

    making = False
    """Whether it was one that makes the schema."""
    advice = ""
    """The advice, where the state alone does not determine it."""

    def __init__(self, text: str, state: str | None = None) -> None:
        super().__init__(text)
        self.state = state or ""


def shown_of(conninfo: str) -> Shown:
    """The filter for texts of libpq and the server, for a connection with this conninfo."""
    given: dict[str, Any] = conninfo_to_dict(conninfo)
    secrets = (given.get(name) for name in SECRETS)
    return Shown(secrets, (given.get(name, "") for name in ("user", "host", "dbname", "service")))


def failed(error: BaseException) -> Failed:
    """An exception of psycopg as a `Failed`."""
    if isinstance(error, Failed):
        return error
    if not isinstance(error, psycopg.Error):
        return Failed(_line(str(error)) or type(error).__name__)
    # The text of the server, without the statement that libpq adds below; or of libpq.
    text = error.diag.message_primary or str(error)
    if error.sqlstate == "2BP01":  # which object it is stands below
        text = f"{text}: {error.diag.message_detail}"
    return Failed(_line(text) or type(error).__name__, error.sqlstate)


def _line(text: str) -> str:
    return " ".join(text.split())


def not_made(error: BaseException) -> Failed:
    """An exception as a `Failed`, where the schema was to be made."""
    why = failed(error)
    why.making = True
    return why


def is_one_of(error: Failed, states: tuple[str, ...]) -> bool:
    """Whether its state is one of these, or in one of these classes."""
    return bool(error.state) and error.state.startswith(states)


def is_misconfigured(error: BaseException) -> bool:
    """Whether it lasts until the configuration is changed, here or at the server."""
    why = failed(error)
    return is_one_of(why, _MISCONFIGURED) or bool(_REFUSES.search(str(why)))


def store_error(error: BaseException, place: Place, *, refused: bool = False) -> StoreError:
    """The error that the caller gets; ``refused``: nothing was done."""
    why = failed(error)
    advice = why.advice or _ADVICE.get(why.state) or _ADVICE.get(why.state[:2], "")
    if why.state == "42501" and why.making:
        advice = (
            "this role lacks the right to make aiolock's schema. As the owner of the database: "
            f"GRANT CREATE ON DATABASE {quoted(place.database)} TO {quoted(place.role)};"
        )
    elif why.state == "42501":
        advice = "this role lacks a right. As the owner: " + _line(rights(place.role))
    text = f"PostgreSQL at {place.where}: {why}"
    result = StoreError(f"{text}: {advice}" if advice else text)
    result.__cause__ = error
    result.refused = refused
    result.misconfigured = is_misconfigured(why)
    return result
