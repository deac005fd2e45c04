"""Declaring a quorum new, so that its servers vote at once.

A server that was started a moment ago cannot tell whether it had voted before: it gives no vote for
the longest lease. When a quorum is set up, its operator can tell, and `begin` tells the servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

import redis.asyncio
import redis.exceptions
from redis.asyncio.connection import ConnectionPool

from aiolock.errors import QuorumMismatch, StoreError
from aiolock.stores._member import QuorumConfig
from aiolock.stores.redis._errors import Place, code_of, shown_of, store_error
from aiolock.stores.redis._urls import pool_at
from aiolock.stores.redis._voting import INIT, VoteNames

_PAGE: Final = 1000
"""Keys that the server looks at for each page."""
_ANSWER: Final = 5.0
"""Seconds for an answer, unless the URL sets a limit: not every redis-py has one of its own."""
Value = TypeVar("Value")


class NewServer:
    """One server of a quorum that is to be declared new."""

    def __init__(self, url: str, prefix: str, address: str) -> None:
        self.address = address
        self._pool: ConnectionPool = pool_at(url)
        self._pool.connection_kwargs.setdefault("socket_timeout", _ANSWER)
        self._names = VoteNames(prefix)
        self._prefix = prefix

    async def why_not(self) -> str:
        """The reason why it cannot be new, as text for people; empty if there is none."""
        async with self._connected() as server:
            if listening := await server.pubsub_channels(f"{_escaped(self._names.channels)}*"):
                clients = "a client is" if len(listening) == 1 else f"{len(listening)} clients are"
                return f"{clients} connected: stop all clients first"
            cursor = 0
            while True:
                cursor, keys = await server.scan(
                    cursor, match=f"{_escaped(self._prefix)}:{{*}}:*", count=_PAGE
                )
                for name in sorted({self._names.name(_text(key)) for key in keys}):
                    if not name.startswith("client:"):  # the metadata of a client: no vote
                        return f"it is in use: it has a key of {name!r}"
                if not cursor:
                    return ""

    async def begin(self, config: QuorumConfig) -> bool:
        """Have it vote from now on; False if it did so already.

        `QuorumMismatch` if it is a member of another quorum.
        """
        async with self._connected() as server:
            try:
                told: Any = await server.eval(INIT.source, 1, self._names.marker, str(config))
            except redis.exceptions.ResponseError as error:
                code, its = code_of(error), str(error).partition(" ")[2]
                if code == "QUORUM":
                    raise QuorumMismatch(
                        f"Redis at {self.address} is a member of another quorum, of {its}"
                    ) from error
                if code == "INUSE":
                    raise StoreError(f"Redis at {self.address}: {its}") from error
                raise
            return bool(told)

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[Any]:
        server = redis.asyncio.Redis(connection_pool=self._pool)
        try:
            yield server
        except StoreError:
            raise
        except (redis.exceptions.RedisError, OSError) as error:
            clean = shown_of(self._pool).error(error)
            raise store_error(clean, Place.of(self._pool, self._prefix)) from clean
        finally:
            await server.aclose(close_connection_pool=True)


class NewQuorum:
    """Servers that form a quorum which no client has used yet."""

    def __init__(self, servers: Sequence[NewServer], config: QuorumConfig) -> None:
        self.servers = servers
        self.config = config

    async def why_not(self) -> dict[str, str]:
        """The reasons why servers cannot be new, by their addresses; `StoreError` if one is not
        there.
        """
        why = await _all(server.why_not() for server in self.servers)
        return {
            server.address: each for server, each in zip(self.servers, why, strict=True) if each
        }

    async def begin(self) -> int:
        """Have all of them vote from now on; how many did not do so already."""
        return sum(await _all(server.begin(self.config) for server in self.servers))


async def _all(calls: Iterable[Coroutine[Any, Any, Value]]) -> list[Value]:
    """The results of all; if one fails its error, once all have ended."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    await asyncio.gather(*tasks, return_exceptions=True)
    return [task.result() for task in tasks]


def new_quorum(urls: Sequence[str], prefix: str, store: Any) -> NewQuorum:
    """The servers at these URLs, which are the members of a `QuorumStore`."""
    members = zip(urls, store.members, strict=True)
    servers = [NewServer(url, prefix, member.address) for url, member in members]
    return NewQuorum(servers, store.config)


def _text(key: Any) -> str:
    return key.decode(errors="replace") if isinstance(key, bytes) else str(key)


def _escaped(text: str) -> str:
    """The text as a pattern that matches itself alone."""
    return "".join(f"\\{each}" if each in r"[]*?\^" else each for each in text)
