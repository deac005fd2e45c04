"""Finding the master by Sentinel: all Sentinels are asked at once.

redis-py asks them one after the other. A Sentinel that hangs (unlike one that is dead) would keep
us from the others for longer than an attempt to connect may take, in each attempt again.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from redis.asyncio.connection import ConnectionPool
from redis.asyncio.sentinel import MasterNotFoundError, SentinelConnectionPool

from aiolock.stores.redis import _wire
from aiolock.stores.redis._errors import address_of
from aiolock.stores.redis._scripts import command

_ANSWER: Final = 1.0
"""Seconds for an answer."""
_OTHERS: Final = 0.1
"""Seconds more for the others, once one has answered: it may have missed a fail-over."""
_BEHIND: Final = 10.0
"""Seconds after news of a fail-over in which a Sentinel that has only earlier ones is not believed:
after that, Sentinels that reach each other agree. (Sentinels that were set up anew count from 0
again.)"""


_QUESTIONS: Final = (("SENTINEL", "MASTER"), ("SENTINEL", "GET-MASTER-ADDR-BY-NAME"))


class _Master(NamedTuple):
    """A master, as one Sentinel knows it; the latest fail-over has the highest epoch."""

    epoch: int
    host: str
    port: int


Address = tuple[str, int]

_known: Final = WeakKeyDictionary[ConnectionPool, tuple[int, float]]()
"""The epoch of the latest fail-over known for each pool, and until when it counts."""


async def locate(pool: ConnectionPool) -> Address | None:
    """The address of the present master; None if the pool does not connect by Sentinel.

    `MasterNotFoundError`, with the answer of each, if no Sentinel has one.
    """
    return await _locate(pool) if is_managed(pool) else None


def is_managed(pool: ConnectionPool) -> bool:
    """Whether its connections go to the server that Sentinel names as the master."""
    managed: Any = pool  # redis-py has no types for a part of it
    return isinstance(pool, SentinelConnectionPool) and bool(managed.is_master)


def sentinels_of(pool: Any) -> list[ConnectionPool]:
    """The Sentinels, as redis-py would connect to each."""
    return [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]


async def _locate(pool: Any) -> Address:
    manager: Any = pool.sentinel_manager
    asking = {
        asyncio.ensure_future(_ask(each, pool)): address_of(each) for each in sentinels_of(pool)
    }
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
    epoch, until = _known.get(pool, (0, 0.0))
    if latest.epoch < epoch and clock() < until:
        raise MasterNotFoundError(
            f"the Sentinels that answer do not know yet of the last fail-over of"
            f" {pool.service_name!r} (epoch {latest.epoch}, and not {epoch})"
        )
    _known[pool] = latest.epoch, clock() + _BEHIND
    return getattr(manager, "_force_master_ip", None) or latest.host, latest.port


async def _ask(sentinel: ConnectionPool, pool: Any) -> _Master:
    """The master according to this Sentinel; an error if the Sentinel considers it down."""
    replies: list[Any] = []
    answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def received(reply: Any) -> None:
        replies.append(reply)
        if len(replies) == len(_QUESTIONS) and not answered.done():
            answered.set_result(None)

    def broken(error: Exception) -> None:
        if not answered.done():
            answered.set_exception(error)

    wire = await _wire.dial(sentinel, received, broken)
    try:
        wire.write(
            b"".join(command(*words, pool.service_name) for words in _QUESTIONS), at_once=True
        )
        await answered
    finally:
        wire.close()
        await wire.wait_closed()
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return _read(*replies, least_others=pool.sentinel_manager.min_other_sentinels)


def _read(about: list[bytes], address: list[bytes], *, least_others: int) -> _Master:
    texts = [text.decode() for text in about]
    known = dict(zip(texts[::2], texts[1::2], strict=True))
    host, port = address[0].decode(), int(address[1])
    # During a fail-over of its own, it gives the address of the new master before the other fields
    # change. The epoch is that of the fail-over by then, and the master that is down is the old
    # one.
    if (host, port) == (known["ip"], int(known["port"])) and (
        {"s_down", "o_down"} & set(known["flags"].split(","))
    ):
        raise MasterNotFoundError(f"{host}:{port} is down")
    if int(known["num-other-sentinels"]) < least_others:
        raise MasterNotFoundError("it knows of too few other Sentinels (min_other_sentinels)")
    return _Master(int(known["config-epoch"]), host, port)
