"""etcd's own lock service (`v3lockpb`) by grpcio, as a client for Python uses it.

Each task has a lease. The messages are written by hand, so that nothing is compared but the service
and the driver.
"""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import grpc.aio  # type: ignore[import-untyped]  # in its own environment

TTL = 30


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _read(message: bytes) -> dict[int, Any]:
    """The fields of a message: numbers, and byte strings."""
    found: dict[int, Any] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            value |= (message[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if message[at - 1] < 128:
                return value

    while at < len(message):
        key = varint()
        value: Any = varint()
        if key & 7 == 2:
            size, value = value, message[at : at + value]
            at += size
        found[key >> 3] = value
    return found


class Lock:
    """One task's, with a lease of its own: the owner of a lock is a lease."""

    def __init__(self, lock: Any, unlock: Any, name: str, lease: int) -> None:
        self._lock, self._unlock = lock, unlock
        self._request = _text(1, name.encode()) + _number(2, lease)
        self._key = b""

    async def __aenter__(self) -> None:
        self._key = _read(await self._lock(self._request))[2]

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._unlock(_text(1, self._key))


class Peer:
    """``url`` is an etcd URL; its first server is used."""

    def __init__(self, *, url: str) -> None:
        self._address = url.removeprefix("etcd://").partition(",")[0]

    async def open(self, url: str, tasks: int) -> None:  # noqa: ARG002  # its own
        self._channel = grpc.aio.insecure_channel(self._address)
        self._lock = self._channel.unary_unary("/v3lockpb.Lock/Lock")
        self._unlock = self._channel.unary_unary("/v3lockpb.Lock/Unlock")
        grant = self._channel.unary_unary("/etcdserverpb.Lease/LeaseGrant")
        replies = await asyncio.gather(*(grant(_number(1, TTL)) for _ in range(tasks)))
        self._leases = [_read(reply)[2] for reply in replies]
        self._next = itertools.cycle(self._leases)
        self._alive = asyncio.create_task(self._keep_alive())

    async def _keep_alive(self) -> None:
        async def requests() -> AsyncIterator[bytes]:
            while True:
                await asyncio.sleep(TTL / 3)
                for lease in self._leases:
                    yield _number(1, lease)

        async for _ in self._channel.stream_stream("/etcdserverpb.Lease/LeaseKeepAlive")(
            requests()
        ):
            pass

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return Lock(self._lock, self._unlock, name, next(self._next))

    async def close(self) -> None:
        self._alive.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._alive
        await self._channel.close()
