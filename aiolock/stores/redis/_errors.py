"""The texts of a `StoreError`: which server, what is wrong with it, and what to do.

Servers word their errors differently. Redis 6.2 wraps an error from within a script, 7.0 adds the
script's name after it, and 7.2 and Valkey have another text for a missing right. redis-py removes
the code of some errors and not of others.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import redis.exceptions
from redis.asyncio.connection import ConnectionPool, SSLConnection
from redis.asyncio.sentinel import MasterNotFoundError

from aiolock._urls import Shown
from aiolock.errors import StoreError

ACL_RULE: Final = (
    "~{prefix}:* resetchannels &{prefix}:* +evalsha +eval +select +subscribe +publish"
    " +pubsub|numsub +time +exists +get +set +pexpire +pttl +zadd +zcard +zincrby +zmscore +zrange"
    " +zrangebyscore +zrank +zrem +zremrangebyscore +zscore"
)
"""The rights that an ACL user needs, after `ACL SETUSER <name> on ><password>`."""

CLUSTER_RIGHTS: Final = " +cluster|slots +asking"
"""Further rights for the nodes of a cluster."""

_CODES: Final[dict[type[Exception], str]] = {
    redis.exceptions.NoScriptError: "NOSCRIPT",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.BusyLoadingError: "LOADING",
}
"""The errors from which redis-py removes the code."""

_WITHIN: Final = re.compile(r"@user_script: ?\d+: -?([A-Z]+) ")
"""How Redis 6.2 quotes the error of a command that a script called."""

REDIRECTS: Final = ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN")
"""Refusals that mean: try another node, or this one again in a moment."""
_CLUSTER: Final = ("CROSSSLOT", *REDIRECTS)
_AT_ONCE: Final = ("READONLY", "LOADING", "MASTERDOWN", "BUSY", "NOREPLICAS", "MISCONF", "OOM")
_DID_NOTHING: Final = frozenset((*_AT_ONCE, *_CLUSTER, "NOAUTH", "LATE", "NOSCRIPT"))
"""Refusals before the first write of a script: after one, a server lets the script finish."""


class Refusal(redis.exceptions.ResponseError):
    """An error that the server answered, whole, with its code as the first word."""


class PushMissingError(redis.exceptions.ConnectionError):
    """A push that was published on one connection has not arrived on the other."""


class MismatchError(redis.exceptions.RedisError):
    """Clients of an incompatible version use these locks."""


class ClusterNodeError(redis.exceptions.ConnectionError):
    """The URL is that of a single server, but this is a node of a cluster."""


def as_answered(error: redis.exceptions.ResponseError) -> Refusal:
    """An error of redis-py's as the server had sent it."""
    text = str(error)
    code = _CODES.get(type(error))
    if code is None and not re.match(r"[A-Z]+\b", text):
        code = "ERR"
    return Refusal(f"{code} {text}" if code else text)


def code_of(error: Exception) -> str:
    """The code of an error that a server answered, also of one from within a script."""
    text = str(error)
    code = _CODES.get(type(error)) or text.partition(" ")[0]
    if code == "ERR" and (within := _WITHIN.search(text)):
        return within[1]
    return code


def is_half_done(refusal: Exception) -> bool:
    """Whether a script ended half-way, because a key of it has gone to another node."""
    return "non local key" in str(refusal)


def did_nothing(refusal: Exception) -> bool:
    """Whether a script with this refusal has certainly changed nothing."""
    code = code_of(refusal)
    # A right that is missing within a script may have been missed after a first write.
    return code in _DID_NOTHING or (code == "NOPERM" and "script" not in str(refusal))


class Place(NamedTuple):
    """The server of a store, for the texts."""

    address: str
    tls: bool
    database: object
    prefix: str
    cluster: bool = False
    """Whether a cluster was asked for."""

    @classmethod
    def of(cls, pool: ConnectionPool, prefix: str, *, cluster: bool = False) -> Place:
        """The server that connections of this pool go to."""
        options: dict[str, Any] = pool.connection_kwargs
        tls = issubclass(pool.connection_class, SSLConnection)
        return cls(address_of(pool), tls, options.get("db") or 0, prefix, cluster)


def address_of(pool: ConnectionPool) -> str:
    """Host and port of a pool's connections, or the path of the socket."""
    options: dict[str, Any] = pool.connection_kwargs
    service = getattr(pool, "service_name", None)
    if service is not None:
        return f"the address that Sentinel has for {service!r}"
    if "host" not in options and "path" not in options:
        return f"the address of a {pool.connection_class.__name__}"
    return options.get("path") or f"{options['host']}:{options.get('port', 6379)}"


def shown_of(pool: ConnectionPool) -> Shown:
    """A function that removes the secrets of these options from texts of redis-py and the
    server.
    """
    options: dict[str, Any] = pool.connection_kwargs
    known = options.get("credential_provider")  # it may have a fixed password
    password = options.get("password") or getattr(known, "password", None)
    user = options.get("username") or getattr(known, "username", None)
    # A user alone is often a password, written without its colon.
    secrets = [password or user, options.get("ssl_password")]
    public = [options.get(name) or "" for name in ("host", "path", "client_name")]
    return Shown(secrets, [*public, user or "" if password else ""])


def store_error(error: Exception, place: Place, *, refused: bool = False) -> StoreError:
    """``error`` as the caller of aiolock sees it.

    ``refused``: the server has certainly not carried out the command.
    """
    said = str(error) or type(error).__name__
    wrong = _answered(error, said, place) or _unanswered(error, said, place)
    if wrong is None:
        text = f"Redis at {place.address}: {said}"
    else:
        what, to_do = wrong
        text = f"Redis at {place.address} {what}: {to_do} ({said})"
    wrapped = StoreError(text)
    wrapped.__cause__ = error
    wrapped.refused = refused
    wrapped.misconfigured = is_misconfigured(error)
    return wrapped


def is_misconfigured(error: BaseException) -> bool:
    """Whether it stays so until the configuration is changed, here or at the server."""
    causes = list(_causes(error))
    if any(isinstance(cause, _CONFIGURED) for cause in causes):
        return True
    if isinstance(error, Exception) and code_of(error) in _NO_RIGHT:
        return True
    lower = str(error).lower()
    return "user executing the script" in lower or any(each in lower for each in _REFUSES)


def _answered(error: Exception, said: str, place: Place) -> tuple[str, str] | None:
    """The cause and the remedy, if a server has answered with an error."""
    code, lower = code_of(error), said.lower()
    if isinstance(error, MasterNotFoundError) and "unknown command" in lower:
        return (
            "cannot be known: a server that was asked for it is no Sentinel",
            "use redis:// for a server without Sentinels, or correct their ports (26379 as a rule)",
        )
    if (of_cluster := _of_cluster(error, code, lower, place)) is not None:
        return of_cluster
    if code == "NOPERM" and "ssubscribe" in lower:
        code = "NOSHARD"
    if code in _ANSWERS:
        return _ANSWERS[code]
    if code == "NOPERM" or "user executing the script" in lower or "ACL failure in script" in said:
        rule = ACL_RULE.format(prefix=place.prefix) + CLUSTER_RIGHTS * place.cluster
        return "does not allow this user what aiolock needs", f"grant the user: {rule}"
    for pattern, wrong in _SAYINGS:
        if pattern in lower:
            what, to_do = wrong
            return what.format(place=place), to_do
    return None


def _of_cluster(error: Exception, code: str, lower: str, place: Place) -> tuple[str, str] | None:
    """The same, if the error is about a cluster, or about its absence."""
    scheme = "rediss" if place.tls else "redis"
    if "max number of clients" in lower:  # "+ cluster connections"
        return None
    if place.cluster and "cluster support disabled" in lower:
        return "is no node of a cluster", f"use {scheme}://{place.address}"
    if place.cluster:
        return _UNSETTLED.get(code)
    if code in _CLUSTER or "cluster" in lower or isinstance(error, ClusterNodeError):
        return "is a node of a Redis Cluster", f"use {scheme}+cluster://{place.address}"
    return None


_NO_RIGHT: Final = ("NOPERM", "NOSCAN", "NOSHARD", "NOWAIT", "NOAUTH", "WRONGPASS", "WRONGTYPE")
_CONFIGURED: Final = (
    redis.exceptions.AuthenticationError,
    redis.exceptions.AuthenticationWrongNumberOfArgsError,
    redis.exceptions.NoPermissionError,
    MismatchError,
    ClusterNodeError,
    ssl.SSLCertVerificationError,
)
_REFUSES: Final = (
    *("invalid username-password", "invalid password", "without any password configured"),
    *("authentication required", "db index is out of range", "invalid db index"),
    *("unknown command", "unknown redis command", "cluster support disabled"),
)
"""Words of errors without a code of their own, by which a server refuses this client for good."""

_UNSETTLED: Final[dict[str, tuple[str, str]]] = {
    "CLUSTERDOWN": (
        "is a node of a cluster that is down, or cut off from it",
        "see its CLUSTER INFO: every slot needs a master, and most masters must see each other",
    ),
    "TRYAGAIN": (
        "is moving this slot to another node, and cannot serve it meanwhile",
        "see whether the move goes on (CLUSTER NODES)",
    ),
    "MOVED": ("sends us on to other nodes, in a circle", "see whether its nodes are of one mind"),
    "ASK": ("sends us on to other nodes, in a circle", "see whether its nodes are of one mind"),
}
"""The errors of a cluster that last for the whole time of a command."""

_ANSWERS: Final[dict[str, tuple[str, str]]] = {
    "NOSCAN": (
        "does not let this user look for keys, as snapshot() and names() do",
        "grant the user: +scan",
    ),
    "NOSHARD": (
        "does not let this user push within a shard, as push=sharded does",
        "grant the user: +ssubscribe +spublish",
    ),
    "NOWAIT": (
        "does not let this user wait for replicas, as replicas= does",
        "grant the user: +wait +info",
    ),
    "READONLY": (
        "is a replica",
        "connect to its master, or through Sentinel, which knows who that is",
    ),
    "MASTERDOWN": (
        "is a replica that has lost its master",
        "connect to the master, or through Sentinel, which knows who that is",
    ),
    "LOADING": ("is still loading its data", "wait until it has"),
    "BUSY": ("is busy with a script of somebody's", "SCRIPT KILL ends one that has not written"),
    "NOREPLICAS": (
        "has too few replicas that keep up, so it takes no writes",
        "see to its replicas, or set min-replicas-to-write lower",
    ),
    "MISCONF": (
        "cannot save its data, so it takes no writes",
        "see its log and its disk, or set stop-writes-on-bgsave-error to no",
    ),
    "OOM": (
        "is out of memory (maxmemory), so it takes no new lock or waiter",
        "set maxmemory higher, or give the locks a server of their own",
    ),
    "WRONGTYPE": (
        "has something else than a lock under a key of the lock's",
        "give aiolock a prefix of its own",
    ),
}

_NEEDED: Final = " ".join(
    right[1:].partition("|")[0].upper() for right in ACL_RULE.split() if right.startswith("+")
)
_LACKS: Final = (
    "lacks a command that aiolock needs",
    f"take Redis 6.2 or Valkey or fakeredis[lua], or newer; rename-command must spare: {_NEEDED}",
)

_SAYINGS: Final[tuple[tuple[str, tuple[str, str]], ...]] = (
    (
        "ssubscribe",
        ("has no shard channels", "take Redis 7.0 or Valkey, or newer, or leave out push=sharded"),
    ),
    (
        "invalid username-password",
        ("does not know this user with this password", "correct them (percent-encoded in a URL)"),
    ),
    ("invalid password", ("has another password", "correct it (percent-encoded in a URL)")),
    (
        "without any password configured",
        ("has no password, and is given one", "leave it out"),
    ),
    (
        "authentication required",
        ("wants a password", "give it one: redis://:password@host, or redis://user:password@host"),
    ),
    (
        "db index is out of range",
        ("has no database {place.database}", "take one that it has: 0 to 15, unless configured"),
    ),
    (
        "invalid db index",
        ("has no database {place.database}", "take one that it has: 0 to 15, unless configured"),
    ),
    (
        "max number of clients",
        (
            "takes no more clients (maxclients)",
            "set maxclients higher, or end clients that nobody uses: aiolock takes two connections",
        ),
    ),
    ("unknown command", _LACKS),
    ("unknown redis command", _LACKS),  # as a script says it
)
"""Errors without a code of their own, or with one that redis-py removes."""


def _unanswered(error: Exception, said: str, place: Place) -> tuple[str, str] | None:
    """The cause and the remedy, if there was no connection or no usable answer."""
    if isinstance(error, MismatchError):
        return (
            f"has clients of another version of aiolock under the prefix {place.prefix!r}",
            _ONE_AFTER_THE_OTHER,
        )
    causes = list(_causes(error))
    if place.tls and any(isinstance(cause, FileNotFoundError) for cause in causes):
        return (
            "is not connected to: a file of the TLS options is not there",
            "see ssl_ca_certs, ssl_ca_path, ssl_certfile and ssl_keyfile",
        )
    other = _NOT_TLS if place.tls else _TLS
    for kinds, word, what, to_do in _CAUSES:
        if word in said.lower() and any(isinstance(cause, kinds) for cause in causes):
            return what, to_do.format(other=other)
    return None


_ONE_AFTER_THE_OTHER: Final = (
    "upgrade them one protocol after the other, or take another prefix; ten minutes after the last"
    " of them has ended they do not count any more"
)
_TLS: Final = "if it is a port for TLS, use rediss://"
_NOT_TLS: Final = "if it is a plain port, use redis://"

_CLOSED: Final = (
    "closed the connection",
    "see its log; it may have as many clients as it takes (maxclients); {other}",
)

_CAUSES: Final[tuple[tuple[tuple[type[BaseException], ...], str, str, str], ...]] = (
    (
        (PushMissingError,),
        "",
        "takes our commands, but our subscription is on another server, or leads nowhere",
        "connect both to one server, not by a name or a proxy that spreads connections out",
    ),
    (
        (MasterNotFoundError,),
        "",
        "has no address",
        "see whether the Sentinels run and can be reached, and what they call the master",
    ),
    (
        (ssl.SSLCertVerificationError,),
        "",
        "has a certificate that is not trusted, or is another host's",
        "add ?ssl_ca_certs=/path/of/ca.pem to the URL, and connect by the name it is made for",
    ),
    ((ssl.SSLError,), "", "does not speak TLS as we do", "see to the certificates; {other}"),
    ((socket.gaierror,), "", "cannot be found: no such host", "correct the host in the URL"),
    (
        (FileNotFoundError,),
        "",
        "cannot be reached: no such socket",
        "start it, or correct the path",
    ),
    ((PermissionError,), "", "may not be connected to", "see to the rights of the socket's file"),
    (
        (ConnectionRefusedError,),
        "",
        "cannot be reached: nothing listens there",
        "start it, or correct host and port",
    ),
    # A host has several addresses: asyncio reports all attempts in one error.
    (
        (OSError, redis.exceptions.ConnectionError),
        "connect call failed",
        "cannot be reached: nothing listens there",
        "start it, or correct host and port",
    ),
    (
        (TimeoutError, redis.exceptions.TimeoutError),
        "",
        "did not answer in time",
        "see whether it runs and can be reached; {other}",
    ),
    (
        (redis.exceptions.InvalidResponse,),
        "",
        "is no Redis server, by what it answers",
        "correct host and port; {other}",
    ),
    (
        (redis.exceptions.ConnectionError, ConnectionError, EOFError),
        "clos",
        *_CLOSED,
    ),
    ((redis.exceptions.ConnectionError, ConnectionError), "reset", *_CLOSED),
    ((ConnectionResetError, ConnectionAbortedError, BrokenPipeError), "", *_CLOSED),
)
"""The type of an error or of one of its causes, a word in its text, and what they mean."""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes: redis-py wraps the system's errors."""
    for _ in range(10):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__
