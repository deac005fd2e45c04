"""The settings in a URL: where the server is, and aiolock's own options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from aiolock.stores._urls import each_once
from aiolock.stores.postgres._errors import Place

_OURS: Final = ("durable", "pooled", "listen_url", "create")
_KEPT_ALIVE: Final = {
    "application_name": "aiolock",
    "connect_timeout": "3",
    # Lets the kernels on both sides notice that the other end of a connection has vanished.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
PINNED: Final = {
    "default_transaction_isolation": "'read committed'",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    # After a VACUUM of tables that are empty at that moment, the planner may prefer full scans.
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "lock_timeout": "2000",
    "statement_timeout": "3000",
    "idle_in_transaction_session_timeout": "10000",
}
"""The settings of the command connection, if it is the server's own."""
STAYS: Final = (
    "SELECT pg_catalog.set_config('idle_session_timeout', '0', false)"
    " WHERE pg_catalog.current_setting('idle_session_timeout', true) IS NOT NULL"
)
"""The SQL that keeps the server from ending an idle session: PostgreSQL 13 has no such setting."""


@dataclass(frozen=True)
class Settings:
    """The settings of one store."""

    commands: str
    """How to connect for commands, as libpq takes it; it may hold a password."""
    listens: str
    """How to connect for listening."""
    place: Place
    durable: bool = True
    """Whether a grant is on the disk before its waiter hears of it."""
    pooled: bool = False
    """Whether the commands go through a pooler, so that no session is ours."""
    create: bool = False
    """Whether to make the schema when connecting."""

    @property
    def flushes(self) -> bool:
        """Whether others are told in a transaction of its own, behind the one that grants.

        While one that notifies is being written to the disk, no other can. If that is not waited
        for, they are told in the same transaction. So they are where no session is ours, which
        could remember what to tell.
        """
        return self.durable and not self.pooled

    def session(self) -> str:
        """The SQL that sets these on a command connection."""
        chosen = dict(PINNED)
        if self.flushes:
            chosen["aiolock.flushed"] = "on"
        if not self.durable:
            chosen["synchronous_commit"] = "off"
        return "; ".join([*(f"SET {name} = {value}" for name, value in chosen.items()), STAYS])


def from_url(url: str) -> Settings:
    """The settings in this URL; `ValueError` for one that is not a PostgreSQL URL."""
    parts = urlsplit(url)
    ports = re.findall(r":([^:,\]]*)(?=,|$)", parts.netloc.rpartition("@")[2])
    if "@" in parts.path or not all(port.isdecimal() for port in ports):
        raise ValueError(
            "this is no URL of PostgreSQL's: write what has a meaning in URLs, such as / @ : %,"
            " percent-encoded, also in a password"
        )
    head, _, query = url.partition("?")
    given = _options(query)
    ours = {name: value for name, value in given if name in _OURS}
    others = [(name, value) for name, value in given if name not in _OURS]
    rest = urlencode(others, quote_via=quote)
    commands = _conninfo(f"{head}?{rest}" if rest else head)
    listens = ours.get("listen_url")
    pooled = _flag(ours, "pooled", default=False)
    if pooled != (listens is not None):
        raise ValueError(
            "pooled=1 and listen_url= go together: commands through the pooler, and the URL of the"
            " server itself, for listening, which no pooler can do"
        )
    return Settings(
        make_conninfo(**commands),
        make_conninfo(**(_conninfo(listens) if listens else commands)),
        Place(_where(commands)),
        durable=_flag(ours, "durable", default=True),
        pooled=pooled,
        create=_flag(ours, "create", default=False),
    )


def _options(query: str) -> list[tuple[str, str]]:
    """As libpq reads them: to it a plus sign is one, and not a blank."""
    given: list[tuple[str, str]] = []
    for each in query.split("&") if query else ():
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise ValueError("see the options of this URL, each of which is name=value")
        given.append((unquote(name), unquote(value)))
    each_once(given)
    return given


def _conninfo(url: str) -> dict[str, Any]:
    try:
        given = {**_KEPT_ALIVE, **conninfo_to_dict(url)}
    except psycopg.ProgrammingError as error:
        # The text of this error may hold a part of a password, so only an option's name is taken.
        unknown = re.search(r'invalid URI query parameter: "(\w+)"', str(error))
        what = f"there is no option {unknown[1]!r}" if unknown else "see user, host and options"
        raise ValueError(
            f"this is no URL of PostgreSQL's: {what}; write what has a meaning in URLs, such as"
            " / @ : %, percent-encoded"
        ) from None
    if not re.fullmatch("[0-9]{1,9}", timeout := str(given["connect_timeout"])):
        raise ValueError(
            f"connect_timeout must be a whole number of seconds, such as 3, not {timeout!r}"
        )
    # What is read and written here is UTF-8, whatever the database keeps its own texts in.
    return {**given, "client_encoding": "UTF8"}


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = given.get(name, "1" if default else "0")
    if value not in ("0", "1"):
        raise ValueError(f"{name} must be 0 or 1, not {value!r}")
    return value == "1"


def _where(given: Mapping[str, Any]) -> str:
    if "service" in given and "host" not in given and "hostaddr" not in given:
        return f"the service {given['service']}"  # libpq finds it in its file
    defaults = psycopg.pq.Conninfo.get_defaults()  # from the environment, for the most part
    conninfo = {each.keyword.decode(): each.val.decode() for each in defaults if each.val}
    if "host" in given or "hostaddr" in given:
        conninfo.pop("host", None)
        conninfo.pop("hostaddr", None)
    conninfo.update(given)
    hosts = str(conninfo.get("host") or conninfo.get("hostaddr") or "localhost").split(",")
    ports = str(conninfo.get("port") or 5432).split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    places = ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=False))
    return f"{places}/{conninfo.get('dbname') or ''}".rstrip("/")
