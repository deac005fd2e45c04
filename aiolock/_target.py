"""Makes the store for the target of `connect`: a URL, a client of a server, a list of servers.

Modules of stores are imported only when a target needs them, so that no driver is required or
loaded that is not used.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Final, Literal, cast

from aiolock._urls import scheme_of
from aiolock.options import Seconds
from aiolock.store import Store
from aiolock.validation import LONGEST_TTL, SHORTEST_TTL, seconds

_STORES: Final = {
    "memory": "aiolock.stores.memory",
    "redis": "aiolock.stores.redis",
    "rediss": "aiolock.stores.redis",
    "unix": "aiolock.stores.redis",
    "redis+sentinel": "aiolock.stores.redis",
    "rediss+sentinel": "aiolock.stores.redis",
    "redis+cluster": "aiolock.stores.redis",
    "rediss+cluster": "aiolock.stores.redis",
    "valkey": "aiolock.stores.redis",
    "valkeys": "aiolock.stores.redis",
    "valkey+sentinel": "aiolock.stores.redis",
    "valkeys+sentinel": "aiolock.stores.redis",
    "valkey+cluster": "aiolock.stores.redis",
    "valkeys+cluster": "aiolock.stores.redis",
    "sqlite": "aiolock.stores.sqlite",
    "postgresql": "aiolock.stores.postgres",
    "postgres": "aiolock.stores.postgres",
    "mysql": "aiolock.stores.mysql",
    "mariadb": "aiolock.stores.mysql",
    "etcd": "aiolock.stores.etcd",
    "etcds": "aiolock.stores.etcd",
}
_MEMBERS: Final = {
    "aiolock.stores.memory": "aiolock.stores.quorum",
    "aiolock.stores.redis": "aiolock.stores.redis",
}
"""Stores of which several servers can form a quorum, and the module that makes its members."""
_LONGEST_IN_A_QUORUM: Final = 60.0
"""Seconds: the default of ``longest_ttl``."""


def store_for(
    target: object,
    prefix: str,
    replicas: int | Literal["all"] | None,
    longest_ttl: Seconds | None,
    *,
    durable: bool,
) -> Store:
    """The store that `connect` uses; `ValueError` or `TypeError` for options of other targets."""
    if isinstance(target, list | tuple):
        if replicas is not None:
            raise _has_none("a quorum: each of its servers votes by itself")
        if not isinstance(durable, bool):
            raise TypeError(f"durable must be True or False, not {durable!r}")
        longest = seconds(
            "longest_ttl",
            _LONGEST_IN_A_QUORUM if longest_ttl is None else longest_ttl,
            least=SHORTEST_TTL,
            most=LONGEST_TTL,
        )
        several = cast(Sequence[object], target)
        return quorum_of(several, prefix, longest, durable=durable)
    if longest_ttl is not None or durable:
        raise ValueError("longest_ttl and durable are for a list of servers: leave them out")
    return store_at(target, prefix, _replicas(replicas))


def store_at(target: object, prefix: str, replicas: int | Literal["all"] | None = None) -> Store:
    """The store that `connect` would use for one target."""
    options: dict[str, Any] = {} if replicas is None else {"replicas": replicas}
    if isinstance(target, str):
        scheme = scheme_of(target, _STORES)
        if options and _STORES[scheme] != _STORES["redis"]:
            raise _has_none(f"{scheme}://")
        module = importlib.import_module(_STORES[scheme])
        return cast(Store, module.from_url(target, prefix, **options))
    if isinstance(target, Store):
        if options:
            raise _has_none(f"a {type(target).__name__}")
        return target
    # By the names of the modules of its classes, because `isinstance` would need the driver.
    modules = {base.__module__ for base in type(target).__mro__}
    if any(module.partition(".")[0] == "redis" for module in modules):
        module = importlib.import_module(_STORES["redis"])
        return cast(Store, module.from_client(target, prefix, **options))
    if _is_memory(modules):
        if options:
            raise _has_none("a MemoryServer")
        return cast(Store, importlib.import_module(_STORES["memory"]).from_server(target))
    raise TypeError(
        "aiolock connects to a URL, a redis.asyncio.Redis, a MemoryServer or a Store, or to several"
        f" servers by a list of 3, 5 or 7 URLs, not to a {type(target).__name__}"
    )


def quorum_of(
    targets: Sequence[object], prefix: str, longest_ttl: float, *, durable: bool = False
) -> Store:
    """The store that `connect` would use for a list of servers."""
    members = [_member_at(target, prefix) for target in targets]
    module = importlib.import_module("aiolock.stores.quorum")
    return cast(Store, module.from_members(members, longest_ttl, durable=durable))


def _member_at(target: object, prefix: str) -> Any:
    """One member of a quorum."""
    if isinstance(target, str):
        known = [one for one, store in _STORES.items() if store in _MEMBERS and "+" not in one]
        scheme = scheme_of(target, known, "a server of a quorum")
        return importlib.import_module(_MEMBERS[_STORES[scheme]]).member_at(target, prefix)
    modules = {base.__module__ for base in type(target).__mro__}
    if any(module.partition(".")[0] == "redis" for module in modules):
        return importlib.import_module(_STORES["redis"]).member_of(target, prefix)
    if _is_memory(modules):
        return importlib.import_module(_MEMBERS[_STORES["memory"]]).member_of(target, prefix)
    raise TypeError(
        "the servers of a quorum are URLs, redis.asyncio.Redis or MemoryServers, not"
        f" {type(target).__name__}"
    )


def _is_memory(modules: set[str]) -> bool:
    """Whether one of a target's classes, by their modules, is a `MemoryServer`."""
    return any(module.startswith(_STORES["memory"]) for module in modules)


def _has_none(what: str) -> ValueError:
    return ValueError(
        "replicas are those of a Redis or Valkey server, given by its URL or a client of it: leave"
        f" them out for {what}"
    )


def _replicas(given: int | Literal["all"] | None) -> int | Literal["all"] | None:
    if given is None or given == "all":
        return given
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f'replicas must be a whole number, "all" or None, not {given!r}')
    if given < 1:
        raise ValueError(f'replicas must be 1 or more, "all", or None for none, not {given}')
    return given
