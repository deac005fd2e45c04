"""The settings in a URL: the servers, the login, the certificates, and where the keys begin."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Final

from aiolock._urls import Shown, Url, parse

_OPTIONS: Final = ("ca", "cert", "key")
_EXAMPLE: Final = "etcd://host1:2379,host2:2379,host3:2379/folder"
_EXAMPLE_TLS: Final = "etcds://user:password@host1:2379,host2:2379/folder?ca=/etc/ssl/etcd.pem"
_PORT: Final = 2379


@dataclass(frozen=True)
class Settings:
    """The settings of one store."""

    addresses: tuple[str, ...]
    """Host and port of each server, in the order in which they are tried."""
    folder: str = ""
    """What stands before the prefix of the locks in all keys; empty, or it ends with a slash."""
    user: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None

    @property
    def shown(self) -> Shown:
        """The filter for texts of the driver and the servers."""
        return Shown([self.password], [self.user, self.folder, *self.addresses])

    @property
    def where(self) -> str:
        """The location of the servers, for texts: nothing secret."""
        return f"{','.join(self.addresses)}{f'/{self.folder}'.rstrip('/')}"


def from_url(text: str) -> Settings:
    """The settings in this URL; `ValueError` for one that is not an etcd URL."""
    is_tls = text.startswith("etcds://")
    url = parse(text, _EXAMPLE_TLS if is_tls else _EXAMPLE)
    url.check_options(_OPTIONS)
    addresses = [_address(url, host, port) for host, port in url.addresses]
    if len(set(addresses)) != len(addresses):
        raise url.wrong("a server is in this URL twice: leave one out")
    if not is_tls and url.options:
        raise url.wrong("ca=, cert= and key= are for TLS: begin the URL with etcds://")
    if url.password is not None and not url.user:
        raise url.wrong("this URL has a password and no user")
    if url.user and url.password is None:
        raise url.wrong("this URL has a user and no password")
    return Settings(
        tuple(addresses),
        _folder(url),
        url.user or "",
        url.password or "",
        _tls(url) if is_tls else None,
    )


def _address(url: Url, host: str, port: int | None) -> str:
    if not host:
        raise url.wrong("this URL names no host behind its two slashes")
    return f"{f'[{host}]' if ':' in host else host}:{port or _PORT}"


def _folder(url: Url) -> str:
    folder = url.decoded(url.path).strip("/")
    if "//" in folder:
        raise url.wrong("the path of this URL has an empty part: two slashes in a row")
    return f"{folder}/" if folder else ""


def _tls(url: Url) -> ssl.SSLContext:
    """The TLS context, which checks the server's identity."""
    given = url.options
    url.check_files(*_OPTIONS)
    if ("cert" in given) != ("key" in given):
        raise url.wrong("cert= and key= go together: the client's certificate, and its key")
    try:
        context = ssl.create_default_context(cafile=given.get("ca"))
        if "cert" in given:
            context.load_cert_chain(given["cert"], given["key"])
    except OSError as error:  # ssl.SSLError among them
        raise url.wrong(f"the certificates of this URL cannot be read: {error}") from error
    context.set_alpn_protocols(["h2"])
    return context
