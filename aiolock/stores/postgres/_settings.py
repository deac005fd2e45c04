"""The settings in a URL: where the server is, and aiolock's own options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg.conninfo import make_conninfo

from aiolock._urls import Url, parse, scheme_of
from aiolock.stores.postgres._errors import Place

_EXAMPLE: Final = "postgresql://user:password@host:5432/database"
_SCHEMES: Final = ("postgresql", "postgres")
_OURS: Final = ("durable", "pooled", "listen_url", "create")
_CHOICES: Final = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "channel_binding": ("disable", "prefer", "require"),
    "target_session_attrs": (
        *("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    ),
}
"""Options of libpq that are keywords: it only rejects wrong ones when it connects."""
_KEPT_ALIVE: Final = {
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
    # We call `go_on` for what a function leaves. A schema that leaves nothing does not know this.
    "aiolock.in_parts": "on",
}
"""The settings of commands: of their session if it is ours, else of each of their transactions."""
OWN: Final = (
    "SELECT pg_catalog.set_config('idle_session_timeout', '0', false)"
    " WHERE pg_catalog.current_setting('idle_session_timeout', true) IS NOT NULL;"
    " SELECT pg_catalog.set_config('application_name', 'aiolock', false)"
    " WHERE pg_catalog.current_setting('application_name') OPERATOR(pg_catalog.=) ''"
)
"""The SQL for any session of ours: it does not end while it is idle (PostgreSQL 13 has no setting
for that), and people see whose it is. A name that is given when connecting would stay in a session
of a pooler.
"""


@dataclass(frozen=True)
class Settings:
    """The settings of one store."""

    commands: str = field(repr=False)
    """The conninfo for commands, as libpq takes it; it may hold a password."""
    listens: str = field(repr=False)
    """The conninfo for listening."""
    place: Place
    """The location of the server for commands."""
    listens_at: Place
    durable: bool = True
    """Whether a grant is on the disk before its waiter is notified."""
    pooled: bool = False
    """Whether the commands go through a pooler, so that no session is ours."""
    create: bool = False
    """Whether to make the schema when connecting."""

    def session(self) -> str:
        """The SQL that sets these for a session, which must be ours."""
        chosen = self._chosen()
        return "; ".join([*(f"SET {name} = {value}" for name, value in chosen.items()), OWN])

    def transaction(self) -> str:
        """The statement that sets these for the rest of a transaction, and no longer.

        Without the isolation level: it is too late for that, even in the first statement.
        """
        return "SELECT " + ", ".join(
            [
                f"pg_catalog.set_config('{name}', '{value}', true)"
                for name, value in self._chosen().items()
                if name != "default_transaction_isolation"
            ]
        )

    def _chosen(self) -> dict[str, str]:
        return PINNED if self.durable else {**PINNED, "synchronous_commit": "off"}


def from_url(text: str) -> Settings:
    """The settings in this URL; `ValueError` for one that is not a PostgreSQL URL."""
    url = parse(text, _EXAMPLE, inner="listen_url", sockets=True)
    known = _keywords()
    url.check_options([*_OURS, "ssl", *known])
    commands = _conninfo(url)
    listens = url.options.get("listen_url")
    pooled = url.flag("pooled", default=False)
    if pooled != (listens is not None):
        raise url.wrong(
            "pooled=1 and listen_url= go together: commands through the pooler, and the URL of the"
            " server itself, for listening, which no pooler can do"
        )
    listening = _listening(listens) if listens else commands
    return Settings(
        make_conninfo(**commands),
        make_conninfo(**listening),
        Place(_where(commands)),
        Place(_where(listening)),
        durable=url.flag("durable", default=True),
        pooled=pooled,
        create=url.flag("create", default=False),
    )


def _keywords() -> set[str]:
    """The options that libpq takes."""
    return {each.keyword.decode() for each in psycopg.pq.Conninfo.get_defaults()}


def _listening(text: str) -> dict[str, Any]:
    scheme_of(text, _SCHEMES, "the listener, in listen_url=,")
    url = parse(text, f"listen_url={_EXAMPLE}, percent-encoded as a whole", sockets=True)
    url.check_options(_keywords())
    return _conninfo(url)


def _conninfo(url: Url) -> dict[str, Any]:
    """The options for libpq, which takes others from elsewhere."""
    given: dict[str, Any] = {n: v for n, v in url.options.items() if n not in {*_OURS, "ssl"}}
    if "ssl" in url.options:  # as JDBC has it, and libpq too
        url.choice("ssl", ["true"], "")
        given.setdefault("sslmode", "require")
    for name, values in _CHOICES.items():
        if name in given:
            url.choice(name, values, "")
    if given.get("sslrootcert") != "system":
        url.check_files("sslrootcert", "sslcrl")
    hosts, ports = [each.host for each in url.addresses], [each.port for each in url.addresses]
    database = url.decoded(url.path[1:])
    if "/" in url.path[1:]:
        raise url.wrong("the path of a PostgreSQL URL is the name of its database, without a slash")
    parts: dict[str, Any] = {
        "user": url.user,
        "password": url.password,
        "host": ",".join(hosts),
        "port": ",".join(str(port or "") for port in ports) if any(ports) else "",
        "dbname": database,
    }
    for name, value in parts.items():
        if value:
            if name in given:
                raise url.wrong(f"this URL has its {name} twice: leave the option {name}= out")
            given[name] = value
    timeout = given.get("connect_timeout")
    if timeout is not None and not re.fullmatch("[0-9]{1,9}", timeout):
        raise url.wrong(
            "connect_timeout must be a whole number of seconds, such as 3"
            + ("" if "password" in url.options else f", not {timeout!r}")
        )
    # What is read and written here is UTF-8, whatever the database keeps its own texts in.
    return {**_KEPT_ALIVE, **given, "client_encoding": "UTF8"}


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
