"""Redlock as it is written down, on redis-py: the least that it can cost.

https://redis.io/docs/latest/develop/use/patterns/distributed-locks/: SET NX PX on all servers at
once, a majority in less time than the lease has, a random pause of 50 to 250 ms else (as of
go-redsync, for the page gives no figure).
"""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from contextlib import AbstractAsyncContextManager
from typing import Final

from redis.asyncio import Redis

_TTL: Final = 30_000
_RELEASE: Final = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end
"""


class Peer:
    """``url`` is that of each server, with commas between them."""

    def __init__(self, *, timeout: float = 0.1) -> None:
        self._timeout = timeout

    async def open(self, url: str, tasks: int) -> None:
        self._servers = [
            Redis.from_url(
                each,
                max_connections=tasks + 10,
                protocol=2,
                socket_timeout=self._timeout,
                socket_connect_timeout=self._timeout,
            )
            for each in url.split(",")
        ]
        self._scripts = [server.register_script(_RELEASE) for server in self._servers]

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return _Lock(self, name)

    async def take(self, name: str, token: str) -> bool:
        """One try."""
        began = time.monotonic()
        taken = await asyncio.gather(
            *(server.set(name, token, nx=True, px=_TTL) for server in self._servers),
            return_exceptions=True,
        )
        enough = sum(each is True for each in taken) > len(taken) // 2
        return enough and time.monotonic() - began < _TTL * 0.00099 - 0.002

    async def give_back(self, name: str, token: str) -> None:
        """Wherever it is ours."""
        await asyncio.gather(
            *(script(keys=[name], args=[token]) for script in self._scripts),
            return_exceptions=True,
        )

    async def close(self) -> None:
        for server in self._servers:
            with contextlib.suppress(Exception):
                await server.aclose()


class _Lock:
    def __init__(self, peer: Peer, name: str) -> None:
        self._peer = peer
        self._name = name

    async def __aenter__(self) -> None:
        self._token = secrets.token_hex(16)
        while not await self._peer.take(self._name, self._token):
            await self._peer.give_back(self._name, self._token)
            await asyncio.sleep(random.uniform(0.05, 0.25))  # not a secret

    async def __aexit__(self, *_: object) -> None:
        await self._peer.give_back(self._name, self._token)
