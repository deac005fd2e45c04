"""``aiolock init-db``: makes what the locks need in a database, as its owner, or prints it."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Final, Protocol, cast

from aiolock.cli.store import ENVIRONMENT, Commands, say
from aiolock.errors import StoreError

_STORES: Final = {
    "postgresql": "aiolock.stores.postgres",
    "postgres": "aiolock.stores.postgres",
    "mysql": "aiolock.stores.mysql",
    "mariadb": "aiolock.stores.mysql",
}


class _Owned(Protocol):
    """A store whose schema has an owner."""

    schema: Callable[..., str]
    create_schema: Callable[..., str]


def add_command(commands: Commands) -> None:
    """Add ``init-db`` to the command line."""
    parser = commands.add_parser(
        "init-db",
        help="make the schema for the locks in a database, or print it",
        description="Make aiolock's schema in a database of PostgreSQL (tables and functions, in a"
        " schema named aiolock), MySQL or MariaDB (tables named aiolock_...). It may be run again,"
        " also while clients use the database.",
    )
    parser.add_argument(
        "url",
        nargs="?",
        help="the database, as its future owner; - for the one in AIOLOCK_URL, which no other user"
        " of the machine sees; without: print the schema",
    )
    parser.add_argument(
        "--print",
        dest="printed",
        choices=("postgresql", "mysql"),
        default="postgresql",
        help="which schema to print without a URL (default: postgresql)",
    )
    parser.add_argument(
        "--role",
        action="append",
        default=[],
        help="a role, or a user (NAME or NAME@HOST), that exists and may then use the locks, and"
        " nothing else",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    roles: list[str] = arguments.role
    url = ENVIRONMENT.get().get("AIOLOCK_URL", "") if arguments.url == "-" else arguments.url
    try:
        store = _store(arguments.printed if url is None else url)
        if url is None:
            print(store.schema(*roles), end="")
            return 0
        where = store.create_schema(url, *roles)
    except (ImportError, StoreError, ValueError) as error:
        say(str(error))
        return 1
    print(f"aiolock's schema is in {where}")
    for role in roles:
        print(f"{role} may use it")
    if not roles:
        print("Only its owner may use it: --role NAME lets others.")
    return 0


def _store(url: str) -> _Owned:
    kind = url.partition(":")[0]
    if kind not in _STORES:  # it is not shown: without a scheme, it may be a password
        raise ValueError(
            "init-db makes a schema in PostgreSQL or MySQL, at a URL that begins with"
            f" {', '.join(f'{each}://' for each in _STORES)}"
        )
    return cast("_Owned", importlib.import_module(_STORES[kind]))
