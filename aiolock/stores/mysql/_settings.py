"""The settings in a URL: where the server is, and how a client learns of its pushes."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from aiolock.stores._urls import each_once

_OPTIONS: Final = (
    *("unix_socket", "ssl", "ssl_ca", "ssl_cert", "ssl_key"),
    *("create", "doorbell", "poll"),
)
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
    """How a client learns of its pushes: by being rung, by polling, or whichever works."""
    poll: float = _POLL
    """Seconds between looks of a client that is not rung."""

    @property
    def where(self) -> str:
        """Where the server is, for texts: nothing secret."""
        return f"{self.unix_socket or f'{self.host}:{self.port}'}/{self.database}"


def from_url(url: str) -> Settings:
    """The settings in this URL; `ValueError` for one that is not a MySQL URL."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORT
    except ValueError:
        raise _wrong("see host and port") from None
    if "@" in parts.path or parts.fragment:
        raise _wrong("see user and password")
    database = unquote(parts.path).removeprefix("/")
    if not database or "/" in database:
        raise _wrong("it ends with the name of the database that the locks are kept in")
    given = _given(parts.query)
    return Settings(
        parts.hostname or "localhost",
        port,
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        database,
        unix_socket=given.get("unix_socket", ""),
        tls=_tls(given),
        create=_flag(given, "create"),
        doorbell=_doorbell(given),
        poll=_poll(given),
    )


def _wrong(what: str) -> ValueError:
    return ValueError(
        f"a MySQL URL is mysql://user:password@host:3306/database: {what}; write what has a meaning"
        " in URLs, such as / @ : %, percent-encoded"
    )


def _given(query: str) -> dict[str, str]:
    try:
        given = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise _wrong("see the options, each of which is name=value") from None
    for name, _ in given:
        if name not in _OPTIONS:
            raise _wrong(f"there is no option {name!r}, only {', '.join(_OPTIONS)}")
    each_once(given)
    return dict(given)


def _flag(given: Mapping[str, str], name: str) -> bool:
    value = given.get(name, "0")
    if value not in ("0", "1"):
        raise ValueError(f"{name} must be 0 or 1, not {value!r}")
    return value == "1"


def _doorbell(given: Mapping[str, str]) -> Literal["auto", "kill", "poll"]:
    match given.get("doorbell", "auto"):
        case "auto" | "kill" | "poll" as how:
            return how
        case other:
            raise ValueError(f"doorbell must be auto, kill or poll, not {other!r}")


def _poll(given: Mapping[str, str]) -> float:
    try:
        seconds = float(given.get("poll", _POLL))
    except ValueError:
        seconds = 0.0
    if not _SHORTEST_POLL <= seconds <= _LONGEST_POLL:
        raise ValueError(
            f"poll must be from {_SHORTEST_POLL} to {_LONGEST_POLL} seconds, not {given['poll']!r}"
        )
    return seconds


def _tls(given: Mapping[str, str]) -> ssl.SSLContext | None:
    """How to encrypt, and check the server's identity: with ``ssl=1``, or a CA's file."""
    if not (_flag(given, "ssl") or "ssl_ca" in given):
        if "ssl_cert" in given or "ssl_key" in given:
            raise ValueError("ssl_cert and ssl_key go with ssl=1, or with ssl_ca=")
        return None
    try:
        context = ssl.create_default_context(cafile=given.get("ssl_ca"))
        if "ssl_cert" in given:
            context.load_cert_chain(given["ssl_cert"], given.get("ssl_key"))
    except OSError as error:  # ssl.SSLError among them
        raise ValueError(f"the certificates in the URL cannot be read: {error}") from error
    return context
