"""Where the master is, by Sentinel: all Sentinels are asked at once.

redis-py asks them one after the other, and one that hangs (not: is dead) would keep us from the
others for longer than an attempt to connect may take, at each attempt again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from redis.asyncio.connection import ConnectionPool
from redis.asyncio.sentinel import MasterNotFoundError, SentinelConnectionPool

from aiolock.stores.redis import _wire
from aiolock.stores.redis._errors import address_of
from aiolock.stores.redis._scripts import bulk
from aiolock.stores.redis._wire import Wire

_ANSWER: Final = 1.0
"""Seconds for an answer."""
_OTHERS: Final = 0.1
"""Seconds more for those of the others, once there is one: of a fail-over that it missed."""


class _Master(NamedTuple):
    """A master, as one Sentinel knows it; the latest fail-over has the highest epoch."""

    epoch: int
    host: str
    port: int


async def dial(
    pool: ConnectionPool,
    received: Callable[[Any], None],
    broken: Callable[[Exception], None],
) -> Wire:
    """As `_wire.dial`; and where the pool is Sentinel's, to the master of the moment."""
    managed: Any = pool  # in part without types
    if not isinstance(pool, SentinelConnectionPool) or not managed.is_master:
        return await _wire.dial(pool, received, broken)
    return await _wire.dial(pool, received, broken, await _master(managed))


async def _master(pool: Any) -> tuple[str, int]:
    manager: Any = pool.sentinel_manager
    pools: list[ConnectionPool] = [sentinel.connection_pool for sentinel in manager.sentinels]
    asking = {asyncio.ensure_future(_ask(each, pool)): address_of(each) for each in pools}
    known: list[_Master] = []
    errors: list[str] = []
    clock = asyncio.get_running_loop().time
    left, deadline = set(asking), clock() + _ANSWER
    try:
        while left and (patience := deadline - clock()) > 0:
            done, left = await asyncio.wait(
                left, timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
            for answer in done:
                error = answer.exception()
                if error is not None:
                    errors.append(f"{asking[answer]}: {str(error) or type(error).__name__}")
                    continue
                if not known:
                    deadline = clock() + _OTHERS
                known.append(answer.result())
    finally:
        for answer in left:
            answer.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    if not known:
        errors += [f"{asking[answer]}: no answer within {_ANSWER:g} s" for answer in left]
        raise MasterNotFoundError(
            f"no Sentinel has a master for {pool.service_name!r}: {'; '.join(errors)}"
        )
    latest = max(known)
    return getattr(manager, "_force_master_ip", None) or latest.host, latest.port


async def _ask(sentinel: ConnectionPool, pool: Any) -> _Master:
    """The master as this Sentinel knows it, unless it takes it for down."""
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def received(reply: Any) -> None:
        if not answered.done():
            answered.set_result(reply)

    def broken(error: Exception) -> None:
        if not answered.done():
            answered.set_exception(error)

    wire = await _wire.dial(sentinel, received, broken)
    try:
        asked = b"".join(map(bulk, ("SENTINEL", "MASTER", pool.service_name)))
        wire.write(b"*3\r\n" + asked, at_once=True)
        reply = await answered
    finally:
        wire.close()
        await wire.wait_closed()
    if isinstance(reply, Exception):
        raise reply
    texts = [text.decode() for text in reply]
    known = dict(zip(texts[::2], texts[1::2], strict=True))
    if {"s_down", "o_down"} & set(known["flags"].split(",")):
        raise MasterNotFoundError(f"{known['ip']}:{known['port']} is down")
    if int(known["num-other-sentinels"]) < pool.sentinel_manager.min_other_sentinels:
        raise MasterNotFoundError("it knows of too few other Sentinels (min_other_sentinels)")
    return _Master(int(known["config-epoch"]), known["ip"], int(known["port"]))
