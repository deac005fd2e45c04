"""`connect`: from a URL, or what else names a store, to a client of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Unpack

from aiolock._client import LockClient
from aiolock._target import store_for
from aiolock.observer import Observer
from aiolock.options import Seconds
from aiolock.signatures import NoOptions, unexpected, without_unknown
from aiolock.store import Store

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

    from aiolock.stores.memory import MemoryServer


@without_unknown
def connect(
    target: str
    | Redis
    | RedisCluster
    | MemoryServer
    | Store
    | Sequence[str]
    | Sequence[Redis]
    | Sequence[MemoryServer],
    *,
    prefix: str = "aiolock",
    ttl: Seconds | None = None,
    label: str | None = None,
    observer: Observer | Sequence[Observer] = (),
    deadlock_after: Seconds | None = 10.0,
    replicas: int | Literal["all"] | None = None,
    longest_ttl: Seconds | None = None,
    durable: bool = False,
    answer_timeout: Seconds = 1.0,
    **unknown: Unpack[NoOptions],
) -> LockClient:
    """Describe a client of the lock store at ``target``; no I/O until ``async with`` opens it.

    ``target`` is one of:

    * a URL (``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://``, ``redis+cluster://``,
      ``sqlite:////``, ``postgresql://``, ``mysql://``, ``etcd://``, ``memory://``; ``valkey`` is
      another word for ``redis``);
    * the caller's ``redis.asyncio.Redis`` (also one from ``Sentinel.master_for``, a
      ``RedisCluster``, or a ``FakeAsyncRedis``). The client connects with its settings, over
      connections of its own, and does not close it;
    * a `MemoryServer`, or a `Store`;
    * a list of 3, 5 or 7 servers: a quorum, see below.

    ``prefix`` begins every key; locks of different prefixes are different locks. ``ttl``, in
    seconds, is the default ttl of locks; None is 30 s, or the longest that the store keeps, if that
    is less. Here as everywhere, a number of seconds may also be a `datetime.timedelta`.

    ``label`` names this program ("billing"): it is put before the labels of all that the program
    holds or waits for (see `Lock.acquire`). ``observer`` is one `Observer` or several. A log with
    default settings is added, unless you give an `observe.log`; and metrics or traces, if the
    program uses Prometheus or has configured OpenTelemetry when the client opens: see
    `aiolock.observe`. When a task that holds a lock has
    waited for ``deadlock_after`` seconds (at least 3), the client searches for a deadlock, also
    over several processes, and reports it to the observers (see `LockClient.deadlocks`); None turns
    that off.

    ``replicas``, for Redis and Valkey, is how many replicas of the server must have a grant before
    its body begins, and a renewal before its deadline moves: 1 or more, or ``"all"`` that follow
    the server at that moment. It takes one more connection, and for each command one round trip to
    the server and one from there to the replicas. They must confirm within a third of the ttl, and
    within one second. Otherwise a grant is given back and its caller gets `StoreError`; a lease
    that was to be renewed is at risk, and is lost at its deadline. If there are fewer replicas when
    the client opens, that raises `StoreError`, too.

    A list of 3, 5 or 7 servers, as URLs of Redis or Valkey or as clients of it, is a *quorum*. The
    servers are independent of each other; a client that has the votes of a majority holds the lock.
    It works while a majority can be reached, and takes two connections to each server. All
    programs that use these servers must give the same list and the same ``longest_ttl``: the
    longest ttl allowed, in seconds (60, if None). A server that may have forgotten its votes does
    not vote for that time. ``durable`` declares that the servers forget nothing in a restart
    (``appendonly yes`` and ``appendfsync always``), which is checked. For tests, give a list of
    `MemoryServer`: a ``FakeAsyncRedis`` is refused there.

    ``answer_timeout`` is for how many seconds an acquisition that does not wait for the lock
    (`Lock.try_acquire`, ``timeout=0``) waits for the store's answer; without one, that raises
    `StoreError`.

    Raises `ValueError` or `TypeError` for invalid arguments. `StoreError` is raised only when the
    client opens.
    """
    for wrong in unknown:
        raise unexpected(connect, wrong)
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a str, not {type(prefix).__name__}")
    if not re.fullmatch(r"[!-z|~]{1,100}", prefix):
        raise ValueError(
            f"prefix must be 1 to 100 printable ASCII characters without spaces and braces,"
            f" not {prefix!r}"
        )
    store = store_for(target, prefix, replicas, longest_ttl, durable=durable)
    client = LockClient(
        store,
        ttl=ttl,
        label=label,
        observer=observer,
        deadlock_after=deadlock_after,
        answer_timeout=answer_timeout,
    )
    client._engine.limits.prefix = prefix
    return client
