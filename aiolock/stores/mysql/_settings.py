"""The settings in a URL: the server, and the way in which a client is notified of pushes."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from aiolock._urls import Shown, Url, parse

_OPTIONS: Final = (
    *("unix_socket", "ssl", "ssl_ca", "ssl_cert", "ssl_key"),
    *("create", "doorbell", "poll"),
)
_EXAMPLE: Final = "mysql://user:password@host:3306/database"
_PORT: Final = 3306
_POLL: Final = 0.05
_SHORTEST_POLL, _LONGEST_POLL = 0.001, 10.0


@dataclass(frozen=True)
class Settings:
    """The settings of one store."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    unix_socket: str = ""
    tls: ssl.SSLContext | None = None
    create: bool = False
    """Whether to make the tables when connecting."""
    doorbell: Literal["auto", "kill", "poll"] = "auto"
    """The way to learn of pushes: by `KILL QUERY`, by polling, or whichever works."""
    poll: float = _POLL
    """Seconds between two polls of a client that polls."""

    @property
    def shown(self) -> Shown:
        """The filter for texts of the driver and the server."""
        return Shown([self.password], [self.user, self.host, self.database, self.unix_socket])

    @property
    def where(self) -> str:
        """The location of the server, for texts: nothing secret."""
        return f"{self.unix_socket or f'{self.host}:{self.port}'}/{self.database}"


def from_url(text: str) -> Settings:
    """The settings in this URL; `ValueError` for one that is not a MySQL URL."""
    url = parse(text, _EXAMPLE)
    url.check_options(_OPTIONS)
    unix_socket = url.options.get("unix_socket", "")
    host, port = url.address(_PORT) if url.addresses[0].host or not unix_socket else ("", _PORT)
    database = url.decoded(url.path[1:])
    if not database or "/" in url.path[1:]:
        raise url.wrong("a MySQL URL ends with the name of the database that the locks are kept in")
    doorbell: Any = url.choice("doorbell", ("auto", "kill", "poll"), "auto")
    return Settings(
        host,
        port,
        url.user or "",
        url.password or "",
        database,
        unix_socket=unix_socket,
        tls=_tls(url),
        create=url.flag("create", default=False),
        doorbell=doorbell,
        poll=_poll(url),
    )


def _poll(url: Url) -> float:
    given = url.number("poll", float)
    seconds = _POLL if given is None else given
    if not _SHORTEST_POLL <= seconds <= _LONGEST_POLL:
        raise url.wrong(
            f"poll must be from {_SHORTEST_POLL} to {_LONGEST_POLL} seconds, not {seconds:g}"
        )
    return seconds


def _tls(url: Url) -> ssl.SSLContext | None:
    """The TLS context, which checks the server's identity: with ``ssl=1``, or a CA's file."""
    given = url.options
    if not (url.flag("ssl", default=False) or "ssl_ca" in given):
        if "ssl_cert" in given or "ssl_key" in given:
            raise url.wrong("ssl_cert and ssl_key go with ssl=1, or with ssl_ca=")
        return None
    url.check_files("ssl_ca", "ssl_cert", "ssl_key")
    try:
        context = ssl.create_default_context(cafile=given.get("ssl_ca"))
        if "ssl_cert" in given:
            context.load_cert_chain(given["ssl_cert"], given.get("ssl_key"))
    except OSError as error:  # ssl.SSLError among them
        raise url.wrong(f"the certificates of this URL cannot be read: {error}") from error
    return context
