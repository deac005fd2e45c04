"""URLs of Redis and Valkey: those of redis-py, and those of a Sentinel's service or a cluster.

``redis+sentinel://[user:password@]host[:port],host[:port]/service[/db][?option=value]`` is the form
of redis-sentinel-url, LangChain and others; redis-py itself has no such URL, nor one like
``redis+cluster://[user:password@]host[:port],host[:port][?option=value]``. One option is aiolock's
own: ``push``. The others are redis-py's; each is checked here, since redis-py leaves out what it
does not understand, or takes it for something else.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

from redis.asyncio.connection import (
    URL_QUERY_ARGUMENT_PARSERS,
    AbstractConnection,
    Connection,
    ConnectionPool,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool

from aiolock._urls import Url, parse
from aiolock.stores.redis.cluster._seeds import Seeds

SENTINEL_PORT: Final = 26379
PORT: Final = 6379

_LOGIN: Final = "[user:password@]"
_EXAMPLES: Final = {
    "": "{scheme}://" + _LOGIN + "host[:port][/db]",
    "unix": "unix://" + _LOGIN + "/path/of/the.socket[?db=0]",
    "sentinel": "{scheme}://" + _LOGIN + "host[:port],host[:port]/service[/db]",
    "cluster": "{scheme}://" + _LOGIN + "host[:port],host[:port]",
}
_PUSH: Final = {"broadcast": False, "sharded": True}
"""Whether pushes stay within their shard, by the option in a cluster's URL."""
_OF_THE_SENTINELS: Final = ("sentinel_username", "sentinel_password")
_FOR_BOTH: Final = ("ssl_", "socket_")
"""Prefixes of the options that also hold for connections to the Sentinels."""
_TEXTS: Final = (
    *("username", "password", "client_name", "lib_name", "lib_version"),
    *("encoding", "encoding_errors", "ssl_keyfile", "ssl_certfile", "ssl_cert_reqs"),
    *("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data", "ssl_password", "ssl_ciphers"),
)
"""Options of redis-py's connections that are texts; it has parsers for the others."""
_FILES: Final = ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_ca_path")
_CHECKS: Final = ("none", "optional", "required")
_FLAGS: Final = {
    **dict.fromkeys(("1", "true", "t", "yes", "y", "on"), True),
    **dict.fromkeys(("0", "false", "f", "no", "n", "off"), False),
}


def pool_at(text: str) -> ConnectionPool:
    """A pool of connections to a URL; `ValueError` for an invalid one. No I/O but to see files."""
    url = _parsed(text)
    kind, _, sentinel = _redis(url.scheme).partition("+")
    if sentinel:
        return _sentinels_pool(url, tls=kind == "rediss")
    if kind == "unix":
        return _unix_pool(url)
    host, port = url.address(PORT)
    connection: type[AbstractConnection] = SSLConnection if kind == "rediss" else Connection
    options = _checked(url, connection)
    _add_database(url, url.path[1:], options)
    return _pool(connection, host=host, port=port, **options)


def is_of_a_cluster(text: str) -> bool:
    """Whether `seeds_at` reads it, and not `pool_at`."""
    return text.partition("://")[0].endswith("+cluster")


def seeds_at(text: str) -> Seeds:
    """The cluster at a URL; `ValueError` for an invalid one. No I/O but to see files."""
    url = _parsed(text)
    push = _PUSH[url.choice("push", _PUSH, "broadcast")]
    tls = _redis(url.scheme).startswith("rediss")
    kind: type[AbstractConnection] = SSLConnection if tls else Connection
    options = _checked(url, kind, besides=("push",))
    if url.path not in ("", "/", "/0") or options.pop("db", 0) != 0:
        raise url.wrong("a cluster has no databases, and this URL names one, or a path")
    return Seeds(_nodes(url, PORT), kind, options, sharded=push)


def _redis(scheme: str) -> str:
    return scheme.replace("valkey", "redis")


def _parsed(text: str) -> Url:
    scheme = text.partition("://")[0]
    example = _EXAMPLES["unix" if scheme == "unix" else scheme.partition("+")[2]]
    return parse(text, example.format(scheme=scheme))


def _nodes(url: Url, usual: int) -> tuple[tuple[str, int], ...]:
    if not url.addresses[0].host:
        raise url.wrong("this URL names no host: there is none at address 1")
    return tuple((host, port or usual) for host, port in url.addresses)


def _unix_pool(url: Url) -> ConnectionPool:
    if url.addresses[0].host:
        raise url.wrong("the path of a socket begins with a slash: three of them in all")
    path = url.decoded(url.path[1:])
    if not path.strip("/") or path.endswith("/"):
        raise url.wrong("this URL names no socket")
    options = _checked(url, UnixDomainSocketConnection)
    return _pool(UnixDomainSocketConnection, path=f"/{path}", **options)


def _sentinels_pool(url: Url, *, tls: bool) -> ConnectionPool:
    sentinels = _nodes(url, SENTINEL_PORT)
    service, _, database = url.path[1:].partition("/")
    if not service:
        raise url.wrong("this URL does not say which service the Sentinels are to find")
    kind: type[AbstractConnection] = SSLConnection if tls else Connection
    options = _checked(url, kind, besides=_OF_THE_SENTINELS)
    _add_database(url, database, options)
    own = {
        name.removeprefix("sentinel_"): url.options[name]
        for name in _OF_THE_SENTINELS
        if name in url.options
    }
    shared = {name: value for name, value in options.items() if name.startswith(_FOR_BOTH)}
    untyped: Any = Sentinel
    pool: Any = SentinelConnectionPool
    manager = untyped(list(sentinels), sentinel_kwargs={"ssl": tls, **shared, **own})
    made: ConnectionPool = pool(url.decoded(service), manager, ssl=tls, **options)
    return made


def _pool(kind: type[AbstractConnection], **options: Any) -> ConnectionPool:
    return ConnectionPool(kind, **options)


def _add_database(url: Url, text: str, options: dict[str, Any]) -> None:
    """The number of the database in a path, unless it is an option."""
    if not text:
        return
    if not re.fullmatch("0|[1-9][0-9]{0,8}", text):
        raise url.wrong("the database of this URL is not a number, such as /0")
    if "db" in options:
        raise url.wrong("this URL has its database twice, in its path and as db=: leave one out")
    options["db"] = int(text)


def _checked(
    url: Url, kind: type[AbstractConnection], *, besides: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The options of the URL for connections of this kind, its user and its password."""
    known = {*_known(kind), *besides}
    if "ssl_cert_reqs" not in known and any(name.startswith("ssl") for name in url.options):
        raise url.wrong("this URL has an option for TLS, which needs rediss:// or valkeys://")
    url.check_options(sorted(known))
    url.check_files(*_FILES)
    options: dict[str, Any] = {}
    for name in url.options.keys() - set(besides):
        options[name] = _value(url, name)
    for name, value in (("username", url.user), ("password", url.password)):
        if value is not None:
            if name in options:
                raise url.wrong(f"this URL has a {name} twice, before its host and as {name}=")
            options[name] = value
    return options


def _known(kind: type[AbstractConnection]) -> set[str]:
    """The options that a URL may give to such connections."""
    taken = {name for base in kind.__mro__ for name in inspect.signature(base).parameters}
    parsers: Any = URL_QUERY_ARGUMENT_PARSERS
    return ({*_TEXTS, *parsers} & taken) | {"max_connections"}


def _value(url: Url, name: str) -> object:
    parsers: Any = URL_QUERY_ARGUMENT_PARSERS
    parser, value = parsers.get(name), url.options[name]
    if name == "ssl_cert_reqs":
        return url.choice(name, _CHECKS, "")
    if parser in (int, float):
        return url.number(name, parser)
    if getattr(parser, "__name__", "") == "to_bool":
        return _FLAGS[url.choice(name, _FLAGS, "")]
    if parser is None:
        return value
    try:
        return parser(value)
    except (TypeError, ValueError):
        raise url.wrong(f"redis-py does not take this value of {name}=") from None
