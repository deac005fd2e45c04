"""Facts about a Redis or Valkey server for a report: its version, and settings that matter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.connection import ConnectionPool
from redis.exceptions import ResponseError

_SECTIONS: Final = ("server", "memory", "persistence", "replication", "cluster")
_KNOWN: Final = ("redis_version", "valkey_version", "gcc_version")
_SETTINGS: Final = (
    *("maxmemory", "maxmemory_policy", "aof_enabled", "role", "connected_slaves"),
    *("min_slaves_good_slaves", "cluster_enabled", "uptime_in_seconds"),
)


async def facts_of(pool: ConnectionPool) -> dict[str, str]:
    """The facts; the driver's error if the server cannot be asked."""
    client: Any = Redis(connection_pool=pool)  # its stubs are incomplete
    found: dict[str, Any] = {}
    refused = list[str]()
    try:
        for section in _SECTIONS:
            try:
                found |= await client.info(section)
            except ResponseError as error:  # no right to INFO, or a server that has not this one
                refused.append(f"{section} ({type(error).__name__})")
    finally:
        try:
            await client.aclose()
        finally:
            await pool.disconnect()
    facts = {"server": _server(found)} | dict(_settings(found))
    return facts | ({"INFO refused": ", ".join(refused)} if refused else {})


def _server(found: Mapping[str, Any]) -> str:
    """Valkey also says which Redis it is like; others than these two say what they are."""
    name = found.get("server_name", "Redis").capitalize()
    version = found.get("valkey_version") or found.get("redis_version") or "of unknown version"
    mode = found.get("redis_mode") or found.get("server_mode") or "mode unknown"
    others = [
        f"{key} {value}"
        for key, value in sorted(found.items())
        if key.endswith("_version")
        and key not in ("redis_version", "valkey_version", "gcc_version")
    ]
    return ", ".join([f"{name} {version}", mode, *others])


def _settings(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    return ((key, str(found[key])) for key in _SETTINGS if key in found)
