"""URLs of Redis and Valkey: those of redis-py, and those of a Sentinel's service or a cluster.

``redis+sentinel://[user:password@]host[:port],host[:port]/service[/db][?option=value]`` is the form
of redis-sentinel-url, LangChain and others; redis-py itself has no such URL, nor one like
``redis+cluster://[user:password@]host[:port],host[:port][?option=value]``. One option is aiolock's
own: ``push``.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode

from redis.asyncio.connection import AbstractConnection, Connection, ConnectionPool, parse_url
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool

from aiolock.stores._urls import each_once
from aiolock.stores.redis._seeds import Seeds

SENTINEL_PORT: Final = 26379
PORT: Final = 6379

_SHAPE: Final = "{scheme}://[user:password@]host[:port],host[:port]/service[/db]"
_CLUSTER_SHAPE: Final = "{scheme}://[user:password@]host[:port],host[:port]"
_ADDRESS: Final = re.compile(
    r"(?:\[(?P<ip6>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:@\s]+))(?::(?P<port>\d+))?"
)
_HIGHEST_PORT: Final = 65535
_PUSH: Final = {"broadcast": False, "sharded": True}
"""Whether pushes stay within their shard, by the option in a cluster's URL."""
_OF_THE_SENTINELS: Final = ("sentinel_username", "sentinel_password")
_FOR_BOTH: Final = ("ssl_", "socket_")
"""Prefixes of the options that also hold for connections to the Sentinels."""


def pool_at(url: str) -> ConnectionPool:
    """A pool of connections to ``url``; `ValueError` for an invalid one. No I/O.

    No error shows any of the URL but its scheme and the names of options: it may hold passwords,
    and in a wrong URL these may be anywhere.
    """
    scheme, _, rest = url.partition("://")
    scheme = scheme.replace("valkey", "redis")
    each_once(_options(rest))
    kind, _, sentinel = scheme.partition("+")
    pool = _sentinels_pool(url, tls=kind == "rediss") if sentinel else _pool(f"{scheme}://{rest}")
    options: Any = pool.connection_kwargs
    try:
        pool.connection_class(**options)  # connects nothing, but checks every option
    except TypeError as error:
        raise ValueError(f"redis-py does not take an option of this URL: {error}") from None
    return pool


def is_of_a_cluster(url: str) -> bool:
    """Whether `seeds_at` reads it, and not `pool_at`."""
    return url.partition("://")[0].endswith("+cluster")


def seeds_at(url: str) -> Seeds:
    """The cluster at ``url``; `ValueError` for an invalid one. No I/O; errors as `pool_at`."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.replace("valkey", "redis")
    shape = _CLUSTER_SHAPE.format(scheme=scheme)
    rest, _, query = rest.partition("#")[0].partition("?")
    places, _, database = rest.partition("/")
    if database not in ("", "0"):
        raise ValueError(f"a cluster has no databases, and this URL names one: {shape}")
    login, at, addresses = places.rpartition("@")
    given = parse_qsl(query, keep_blank_values=True)
    each_once(given)
    push = dict(given).get("push", "broadcast")
    if push not in _PUSH:
        raise ValueError(f"the option push of a cluster's URL is {' or '.join(_PUSH)}: {shape}")
    query = urlencode([(name, value) for name, value in given if name != "push"])
    options: dict[str, Any] = {**parse_url(f"{scheme.partition('+')[0]}://{login}{at}h?{query}")}
    for known_better in ("host", "port", "db"):
        options.pop(known_better, None)
    kind: type[AbstractConnection] = options.pop("connection_class", Connection)
    nodes = tuple(_addresses(addresses, shape, "nodes", PORT))
    seeds = Seeds(nodes, kind, options, sharded=_PUSH[push])
    try:
        kind(**options)  # connects nothing, but checks every option
    except TypeError as error:
        raise ValueError(f"redis-py does not take an option of this URL: {error}") from None
    return seeds


def _options(rest: str) -> list[tuple[str, str]]:
    query = rest.partition("#")[0].partition("?")[2]
    return parse_qsl(query, keep_blank_values=True)


def _pool(url: str) -> ConnectionPool:
    return ConnectionPool.from_url(url)  # pyright: ignore[reportUnknownMemberType]  # **kwargs


def _sentinels_pool(url: str, *, tls: bool) -> ConnectionPool:
    scheme, _, rest = url.partition("://")
    shape = _SHAPE.format(scheme=scheme)
    rest, _, query = rest.partition("#")[0].partition("?")
    places, _, path = rest.partition("/")
    login, at, addresses = places.rpartition("@")
    sentinels = _addresses(addresses, shape, "Sentinels", SENTINEL_PORT)
    service, _, database = path.partition("/")
    if not service:
        raise ValueError(f"this URL does not say which service the Sentinels are to find: {shape}")
    if database and not re.fullmatch(r"[0-9]+", database):
        raise ValueError(f"the database of this URL is not a number: {shape}")
    given = parse_qsl(query, keep_blank_values=True)
    own = {name.removeprefix("sentinel_"): v for name, v in given if name in _OF_THE_SENTINELS}
    others = urlencode([(name, value) for name, value in given if name not in _OF_THE_SENTINELS])
    # redis-py knows the type of each option, and how a user is written.
    options: dict[str, Any] = {**parse_url(f"redis://{login}{at}localhost/{database}?{others}")}
    for known_better in ("host", "port", "connection_class"):
        options.pop(known_better, None)
    shared = {name: value for name, value in options.items() if name.startswith(_FOR_BOTH)}
    untyped: Any = Sentinel
    pool: Any = SentinelConnectionPool
    try:
        manager = untyped(sentinels, sentinel_kwargs={"ssl": tls, **shared, **own})
        made: ConnectionPool = pool(unquote(service), manager, ssl=tls, **options)
    except TypeError as error:
        raise ValueError(f"redis-py does not take an option of this URL: {error}") from None
    return made


def _addresses(text: str, shape: str, what: str, usual: int) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for number, address in enumerate(text.split(","), 1):
        match = _ADDRESS.fullmatch(address)
        port = int(match["port"] or usual) if match else 0
        if match is None or not 0 < port <= _HIGHEST_PORT:
            raise ValueError(
                f"address {number} of the {what} in this URL is not host or host:port: {shape}"
                " (what is not a letter or a digit in a password is percent-encoded)"
            )
        found.append((match["ip6"] or unquote(match["host"]), port))
    return found
