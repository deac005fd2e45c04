"""`connect` and `LockClient`: one process's link to its lock store."""

from __future__ import annotations

import asyncio
import functools
import importlib
import re
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, ParamSpec, Self, TypeVar, Unpack, cast

import anyio

from aiolock._engine.engine import Engine, State
from aiolock._engine.labels import labelled
from aiolock._engine.library import check_asyncio
from aiolock._engine.policy import (
    LONGEST_LABEL,
    LONGEST_TTL,
    SHORTEST_TTL,
    OnLost,
    Policy,
    Seconds,
    checked_label,
    checked_name,
    checked_number,
    checked_ttl,
    plain,
    seconds,
    to_ms,
)
from aiolock._engine.search import find_deadlocks
from aiolock._engine.snapshot import snapshot
from aiolock._locks.barrier import Barrier
from aiolock._locks.election import Election
from aiolock._locks.event import Event
from aiolock._locks.latch import Latch
from aiolock._locks.lock import Lock
from aiolock._locks.multilock import MultiLock
from aiolock._locks.naming import fields, naming
from aiolock._locks.once import Once
from aiolock._locks.options import (
    ElectionOptions,
    LockOptions,
    MultiLockOptions,
    RWLockOptions,
    SemaphoreOptions,
    spelled_out,
)
from aiolock._locks.periodic import Periodic
from aiolock._locks.rwlock import RWLock
from aiolock._locks.semaphore import Semaphore
from aiolock.errors import ClientClosed
from aiolock.observe._log import Log
from aiolock.observer import Deadlock, Observer
from aiolock.store import Rule, ServerStatus, Several, Status, Store, Versioned

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

    from aiolock.stores.memory import MemoryServer

P = ParamSpec("P")
R = TypeVar("R")

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
}


_TTL: Final = 30.0
"""What stands in the signatures, where it is for the reader to see."""
_LONGEST_IN_A_QUORUM: Final = 60.0
_AT_REST: Final = (State.NEW, State.CLOSED)


_MEMBERS: Final = {
    "aiolock.stores.memory": "aiolock.stores.quorum",
    "aiolock.stores.redis": "aiolock.stores.redis",
}
"""Stores of which several servers are a quorum, and who makes a member of one."""


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
    ttl: Seconds = 30.0,
    label: str | None = None,
    observer: Observer | Sequence[Observer] = (),
    deadlock_after: Seconds | None = 10.0,
    replicas: int | Literal["all"] | None = None,
    longest_ttl: Seconds | None = None,
    durable: bool = False,
) -> LockClient:
    """A client of the lock store at ``target``; no I/O until it is opened with ``async with``.

    ``target`` is a URL (``redis://``, ``rediss://``, ``unix://``, ``redis+sentinel://``,
    ``redis+cluster://``, ``sqlite:///``, ``postgresql://``, ``mysql://``, ``memory://``;
    ``valkey`` is another word for ``redis``), a ``redis.asyncio.Redis`` of the caller's (also
    one from ``Sentinel.master_for``, a ``RedisCluster``, or a ``FakeAsyncRedis``; it is used to
    connect as it does, and is neither shared nor closed), a `MemoryServer`, or a `Store`.
    ``prefix`` stands before every key; locks of different prefixes are different locks. ``ttl``,
    in seconds, is what locks have that do not say. Here as everywhere a number of seconds may also
    be a `datetime.timedelta`.

    ``label`` says what this program is ("billing"): it stands before the label of whatever it
    holds or waits for (see `Lock.acquire`). ``observer`` is told what happens, or several are: see
    `Observer`. A log is among them, with its defaults, unless there is an `observe.log` of yours.
    Where a task that holds something has waited for ``deadlock_after`` seconds (3 at least),
    observers are told whether it waits for itself, by whatever detour (see
    `LockClient.deadlocks`); with None that is
    not looked for.

    ``replicas``, for Redis and Valkey: no body begins, and no deadline moves, before so many
    replicas of the server (1 or more, or all that follow it at that moment, with ``"all"``) have
    the grant, or the renewal. It takes a connection more, and a round trip to it and from there to
    the replicas. Where they do not confirm it within a third of the ttl, or a second if that is
    less, a grant is given back and whoever wanted it gets `StoreError`; a lease that is to be
    renewed is at risk, and lost at its deadline. Where there are not as many when the client
    opens, that is a `StoreError`, too.

    A list of 3, 5 or 7 servers, as URLs of Redis or Valkey or as clients of it, is a *quorum*: each
    is independent of the others, and whoever has the votes of a majority holds the lock. It goes on
    while a majority can be reached, and takes two connections to each. All who use these servers
    must give the same list and the same ``longest_ttl``, in seconds: the longest ttl that there may
    be (60, if None), and for so long a server does not vote that may have forgotten its votes.
    ``durable`` says that they forget nothing when they are restarted (``appendonly yes`` and
    ``appendfsync always``), which is checked.

    `ValueError` or `TypeError` for what cannot be; `StoreError` comes when the client opens.
    """
    if not isinstance(prefix, str):
        raise TypeError(f"prefix must be a str, not {type(prefix).__name__}")
    if not re.fullmatch(r"[!-z|~]{1,100}", prefix):
        raise ValueError(
            f"prefix must be 1 to 100 printable ASCII characters without spaces and braces,"
            f" not {prefix!r}"
        )
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
        store = quorum_of(target, prefix, longest, durable=durable)
    elif longest_ttl is not None or durable:
        raise ValueError("longest_ttl and durable are for a list of servers: leave them out")
    else:
        store = store_at(target, prefix, _replicas(replicas))
    return LockClient(
        store,
        ttl=ttl,
        label=label,
        observer=observer,
        deadlock_after=deadlock_after,
    )


def store_at(target: object, prefix: str, replicas: int | Literal["all"] | None = None) -> Store:
    """The store that `connect` would use."""
    options: dict[str, Any] = {} if replicas is None else {"replicas": replicas}
    if isinstance(target, str):
        scheme, separator, _ = target.partition("://")
        if not separator or scheme not in _STORES:
            known = ", ".join(f"{known}://" for known in _STORES)
            raise ValueError(f"the URL of a lock store begins with one of {known}, not {scheme!r}")
        if options and _STORES[scheme] != _STORES["redis"]:
            raise _has_none(f"{scheme}://")
        module = importlib.import_module(_STORES[scheme])
        return cast(Store, module.from_url(target, prefix, **options))
    if isinstance(target, Store):
        if options:
            raise _has_none(f"a {type(target).__name__}")
        return target
    # By the names of their modules, so that nobody imports a driver that they do not use.
    modules = {base.__module__ for base in type(target).__mro__}
    if any(module.partition(".")[0] == "redis" for module in modules):
        module = importlib.import_module(_STORES["redis"])
        return cast(Store, module.from_client(target, prefix, **options))
    if _STORES["memory"] in modules:
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
    """One server of a list."""
    if isinstance(target, str):
        scheme, separator, _ = target.partition("://")
        module = _MEMBERS.get(_STORES.get(scheme, ""), "") if separator else ""
        if not module or scheme.endswith(("+cluster", "+sentinel")):
            known = [one for one, store in _STORES.items() if store in _MEMBERS and "+" not in one]
            raise ValueError(
                "the servers of a quorum are given by URLs that begin with one of"
                f" {', '.join(f'{one}://' for one in known)}, not {scheme!r}"
            )
        return importlib.import_module(module).member_at(target, prefix)
    modules = {base.__module__ for base in type(target).__mro__}
    if any(module.partition(".")[0] == "redis" for module in modules):
        return importlib.import_module(_STORES["redis"]).member_of(target, prefix)
    if _STORES["memory"] in modules:
        return importlib.import_module(_MEMBERS[_STORES["memory"]]).member_of(target, prefix)
    raise TypeError(
        "the servers of a quorum are URLs, redis.asyncio.Redis or MemoryServers, not"
        f" {type(target).__name__}"
    )


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


class LockClient:
    """One process's link to a lock store; made by `connect`.

    Open it once per process and event loop and share it between all tasks: it uses two
    connections (three with ``replicas``), however many locks they hold and wait for.
    ``async with`` opens and closes it; `open` and `aclose` do the same for a framework's lifespan
    hooks. Once closed it can be opened again, also in another event loop; what it made (locks,
    decorated functions) works again then.
    """

    KINDS: Final = (
        *("lock", "semaphore", "election", "once", "periodic", "latch", "event", "barrier"),
    )
    """What there is. Each has names of its own; a `RWLock` is a ``lock``."""

    def __init__(
        self,
        store: Store,
        *,
        ttl: Seconds = 30.0,
        label: str | None = None,
        observer: Observer | Sequence[Observer] = (),
        deadlock_after: Seconds | None = 10.0,
    ) -> None:
        if deadlock_after is not None:
            deadlock_after = seconds("deadlock_after (or None)", deadlock_after, least=0)
        self._engine = Engine(
            store,
            _observers(observer),
            label=checked_label("label", label),
            deadlock_after=deadlock_after,
        )
        self._ttl = checked_ttl(ttl)
        self._engine.limits.check_ttl(self._ttl, default=self._ttl == _TTL)
        self._opening: asyncio.Task[None] | None = None
        self._openers = 0
        self._wanted = False
        """Whether anybody was told that it is open."""
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<LockClient {self.id} of {self._engine.store!r}>"

    def __del__(self) -> None:
        engine: Engine | None = getattr(self, "_engine", None)  # None where there can be none
        if engine and engine.is_open and engine.watchdog.is_here:  # in a fork it is the parent's
            warnings.warn(
                f"unclosed {self!r}: what it holds is in the way of others until its leases end."
                " Use `async with`, or await its aclose()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    @property
    def id(self) -> str:
        """96 random bits that name this client in a lock's `status`; others after each opening."""
        return self._engine.client

    @property
    def protocols(self) -> tuple[int, ...]:
        """The protocol that this version speaks with the store, and others that are spoken there.

        More than one while a deployment is under way. Empty for a store in memory, where no other
        version can be.
        """
        store = self._engine.store
        return store.protocols if isinstance(store, Versioned) else ()

    async def open(self) -> None:
        """Connect; `StoreError`, with what to do about it, when the store cannot be used.

        Does nothing where it is open already, and waits where it is just being opened: so whoever
        needs it may call this first. Cancelled, it is closed again, unless another task waits for
        the same. `ClientClosed` when it is open in another event loop (which has not been closed),
        was opened before a fork, or is closed meanwhile.
        """
        engine = self._engine
        check_asyncio()
        if engine.state not in _AT_REST and engine.loop_is_gone:
            engine.state, self._closing, self._opening = State.CLOSED, None, None
        if engine.state not in _AT_REST:
            engine.watchdog.check_here()
            if _runs(self._closing):
                await self.aclose()  # wait for its end
        if engine.is_open:
            self._wanted = True
            return
        # Asked whether it runs, and not forgotten at its end: an eager task may have ended before
        # it is known here.
        opening = self._opening
        if opening is not None and not opening.done() and opening.cancelling():
            await asyncio.wait([opening])  # whoever wanted it does not any more
            await self.open()
            return
        if opening is None or opening.done():
            engine.begin()
            self._wanted = False
            opening = self._opening = asyncio.create_task(engine.open(), name="aiolock open")
            opening.add_done_callback(_seen)
        self._openers += 1
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        try:
            await asyncio.shield(opening)
            self._wanted = True
        except asyncio.CancelledError:
            if opening.cancelled() and (task is None or task.cancelling() == before):
                raise ClientClosed("this client was closed while it was being opened") from None
            if self._openers == 1 and not self._wanted:
                await self._open_for_nobody(opening)
            raise
        finally:
            self._openers -= 1

    async def _open_for_nobody(self, opening: asyncio.Task[None]) -> None:
        """The last who waited for it waits no more: end it, or close what it has just opened."""
        opening.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([opening])
        if self._engine.is_open:
            await self.aclose()

    async def aclose(self) -> None:
        """Give back what is held, leave the queues, wait for that, and disconnect. Idempotent.

        Whoever waits gets `ClientClosed`. The bodies of ``async with`` in other tasks are
        cancelled, and waited for until their leases end. A store that does not answer is left
        alone after a few seconds; what is held there ends by itself. Cancelled, the closing goes
        on all the same, and under a cancelled anyio scope it is completed first. `ClientClosed` in
        a fork or another event loop, where it would disturb the one that it belongs to.
        """
        check_asyncio()
        await self._aclose(asyncio.current_task())

    async def _aclose(self, caller: asyncio.Task[Any] | None) -> None:
        """Close it for this task, whose own bodies are not in its way."""
        engine = self._engine
        if engine.state in _AT_REST:
            return
        if engine.loop_is_gone:
            engine.state = State.CLOSED  # nothing is open any more
            return
        engine.watchdog.check_here()
        closing = self._closing
        if closing is None or closing.done():
            close = self._close(caller)
            closing = self._closing = asyncio.create_task(close, name="aiolock close")
        with anyio.CancelScope(shield=True):
            await asyncio.shield(closing)

    async def _close(self, caller: asyncio.Task[Any] | None) -> None:
        opening = self._opening
        if opening is not None and not opening.done():
            opening.cancel()
            await asyncio.wait([opening])
            self._engine.state = State.CLOSED  # where the opening had not even begun
        if self._engine.state is State.OPEN:
            await self._engine.aclose(caller)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def snapshot(self, pattern: str = "*", *, kind: str | None = None) -> list[Status]:
        """All that somebody holds or waits for under this prefix, by kind and name.

        For people and dashboards, as `Lock.status` is: each status is of one moment, but each of
        its own. It reads the store page by page, so that others wait for some ms at most;
        10,000 locks take about a second. `StoreError` when nobody knows.

        :param pattern: of the names: ``*`` stands for any text, ``?`` for one character, and
            ``[ab]`` for one of these.
        :param kind: only one of `KINDS`.
        """
        found = await self._snapshot(pattern, kind)
        return await labelled(self._engine.runs, found)

    async def deadlocks(self) -> list[Deadlock]:
        """Tasks that wait for each other, of whatever clients, over all locks under this prefix.

        Two snapshots, half a second apart if there is anything to be sure of. Only tasks that
        have waited for two seconds are known, and of those only who awaits the acquisition itself,
        and does nothing else meanwhile. `StoreError` when nobody knows.
        """
        self._engine.check()
        return await find_deadlocks(self._engine.runs)

    async def names(self, pattern: str = "*", *, kind: str | None = None) -> list[str]:
        """The names of what somebody holds or waits for, in their order: see `snapshot`."""
        return sorted({status.name for status in await self._snapshot(pattern, kind)})

    async def _snapshot(self, pattern: str, kind: str | None) -> list[Status]:
        if not isinstance(pattern, str):
            raise TypeError(f"pattern must be a str, not {pattern!r}")
        if kind is not None:
            self._check_kind(kind)
        self._engine.check()
        return await snapshot(self._engine.runs, pattern, kind)

    async def status(self, name: str, *, kind: str = "lock") -> Status:
        """That of whatever has this name, for who knows no more of it: see `Lock.status`."""
        return await self._named(name, kind).status()

    async def break_(self, name: str, *, kind: str = "lock", fence: int | None = None) -> bool:
        """Take whatever has this name from all holders, or from one: see `Lock.break_`."""
        return await self._named(name, kind).break_(fence)

    async def request_release(self, name: str, *, kind: str = "lock") -> bool:
        """Ask the holders of whatever has this name to let go: see `Lock.request_release`."""
        return await self._named(name, kind).request_release()

    def servers(self) -> list[ServerStatus]:
        """Of a list of servers, what this client knows of each now; else an empty list. No I/O."""
        store = self._engine.store
        return store.servers() if isinstance(store, Several) else []

    def _check_kind(self, kind: str) -> None:
        if kind not in self.KINDS:
            raise ValueError(f"kind must be one of {', '.join(self.KINDS)}, not {kind!r}")

    def _named(self, name: str, kind: str) -> Lock:
        """What has this name, only to be looked at."""
        self._check_kind(kind)
        return Lock(self._engine, Policy(name, self._ttl, kind=kind))

    def lock(
        self,
        name: str,
        *,
        ttl: Seconds | None = None,
        timeout: Seconds | None = None,
        renew: bool = True,
        reentrant: bool = False,
        max_waiters: int | None = None,
        max_hold: Seconds | None = None,
        on_lost: OnLost = "cancel",
        min_hold: Seconds | None = None,
        lock_delay: Seconds | None = None,
        confirm: bool = True,
        priority: int = 0,
        family: str | None = None,
    ) -> Lock:
        """A description of the lock ``name``; no I/O, and nothing to close.

        `ValueError` or `TypeError`, with the rule, for what cannot be. Another kind of lock is
        `Unsupported` where the store does not offer it.

        :param ttl: seconds for which the store keeps a lease that nobody renews, so how long a
            crashed holder blocks the others; the client's, if None.
        :param timeout: seconds that `Lock.acquire` waits at most; None waits as long as it takes.
        :param renew: renew the lease while it is held. Without it, it is lost after ``ttl``.
        :param reentrant: the task that holds it may acquire it again, at no cost; each
            acquisition is released by itself. Otherwise that is `WouldDeadlock`.
        :param max_waiters: `QueueFull` at once when so many wait already.
        :param max_hold: seconds after which it is renewed no more, and is lost.
        :param on_lost: ``"cancel"`` cancels the body of ``async with``; ``"signal"`` only sets
            `Lease.lost`.
        :param min_hold: seconds from the grant for which nobody enters after it, also when it is
            released or lost before.
        :param lock_delay: seconds for which nobody enters after its holder has *lost* it: what
            that one had sent before may still be on its way to the storage.
        :param confirm: leaving the body waits until the store has confirmed the release. Without
            it, leaving takes no time, and says nothing of a loss that only that answer would tell.
        :param priority: from -9 to 9: who waits with a lower number is before all that wait with a
            higher one, however long they have waited; among equals, who came first.
        :param family: what such locks have in common, for metrics (see `LockRequest.family`); the
            name up to its first colon, if None.
        """
        policy = Policy(
            name,
            self._ttl if ttl is None else plain(ttl),
            plain(timeout),
            renew,
            reentrant,
            max_waiters,
            plain(max_hold),
            on_lost,
            plain(min_hold),
            plain(lock_delay),
            confirm=confirm,
            priority=priority,
            family=family,
        )
        return self._described("lock", policy)

    def _described(self, kind: str, policy: Policy) -> Lock:
        """It, where the store offers that kind, and keeps leases for so long."""
        limits = self._engine.limits
        limits.check_kind(kind, policy.name)
        limits.check_ttl(policy.ttl)
        return Lock(self._engine, policy)

    @spelled_out(lock, RWLockOptions)
    def rwlock(self, name: str, **options: Unpack[RWLockOptions]) -> RWLock:
        """A lock that readers share and a writer has alone: see `RWLock`.

        The parameters and errors are those of `lock`, for both of its locks.
        """
        writing = self.lock(name, **options)._policy
        self._engine.limits.check_kind("rwlock", name)
        return RWLock(
            Lock(self._engine, replace(writing, shared=True)),
            Lock(self._engine, replace(writing, downgrades=True)),
        )

    @spelled_out(lock, SemaphoreOptions)
    def semaphore(self, name: str, limit: int, **options: Unpack[SemaphoreOptions]) -> Semaphore:
        """``limit`` permits under this name, for all processes together: see `Semaphore`.

        The other parameters and the errors are those of `lock`; with ``min_hold`` and
        ``lock_delay`` it is the permits that are not given to anybody meanwhile, so
        ``semaphore("api", 10, min_hold=1)`` lets no more than 10 begin in any second.
        """
        checked_number("limit", limit)
        permit = replace(
            self.lock(name, **options)._policy,
            shared=True,
            kind="semaphore",
            rule=Rule.PERMITS,
            number=1,
            declared=limit,
        )
        return Semaphore(self._described("semaphore", permit), limit)

    @spelled_out(lock, MultiLockOptions)
    def multilock(self, *names: str, **options: Unpack[MultiLockOptions]) -> MultiLock:
        """Several locks as one: all of them or none, in an order in which nobody deadlocks.

        The parameters and errors are those of `lock`, for each name; ``timeout`` is for all of
        them together.
        """
        if not names:
            raise ValueError("a multilock needs at least one name")
        timeout = plain(options.pop("timeout", None))
        each = dict.fromkeys(map(checked_name, names))
        return MultiLock([self.lock(name, **options) for name in each], timeout)

    def latch(
        self,
        name: str,
        count: int,
        *,
        remember: Seconds = 86400.0,
        timeout: Seconds | None = None,
        max_waiters: int | None = None,
    ) -> Latch:
        """Opens once it was counted down ``count`` times: see `Latch`.

        :param remember: seconds for which it is remembered after the last count, open or not; a
            minute at least.
        :param timeout: seconds that `Latch.wait` waits at most; None waits as long as it takes.
        :param max_waiters: `QueueFull` at once when so many wait already.
        """
        checked_number("count", count)
        kept = seconds("remember", remember, least=SHORTEST_TTL, most=LONGEST_TTL)
        opens = self._passing("latch", name, Rule.COUNT, count, count, timeout, max_waiters)
        return Latch(opens, count, kept)

    def event(
        self,
        name: str,
        *,
        remember: Seconds = 3600.0,
        timeout: Seconds | None = None,
        max_waiters: int | None = None,
    ) -> Event:
        """Something that happens once, and that any number of tasks wait for: see `Event`.

        :param remember: seconds for which it is remembered after it was last set; a minute at
            least.
        :param timeout: seconds that `Event.wait` waits at most; None waits as long as it takes.
        :param max_waiters: `QueueFull` at once when so many wait already.
        """
        kept = seconds("remember", remember, least=SHORTEST_TTL, most=LONGEST_TTL)
        happens = self._passing("event", name, Rule.COUNT, 1, 0, timeout, max_waiters)
        return Event(happens, kept)

    def barrier(
        self,
        name: str,
        parties: int,
        *,
        timeout: Seconds | None = None,
        max_waiters: int | None = None,
    ) -> Barrier:
        """Lets ``parties`` through at once, when so many are there: see `Barrier`.

        :param timeout: seconds that `Barrier.wait` waits at most; None waits as long as it takes.
        :param max_waiters: `QueueFull` at once when so many wait already.
        """
        checked_number("parties", parties)
        group = self._passing("barrier", name, Rule.GROUP, parties, parties, timeout, max_waiters)
        return Barrier(group, parties)

    def _passing(  # noqa: PLR0917  # what its three callers were given
        self,
        kind: str,
        name: str,
        rule: Rule,
        number: int,
        declared: int,
        timeout: Seconds | None,
        max_waiters: int | None,
    ) -> Lock:
        """The lock of those who wait for something and then go on, without holding anything."""
        policy = Policy(
            name,
            self._ttl,
            plain(timeout),
            renew=False,
            max_waiters=max_waiters,
            shared=True,
            kind=kind,
            rule=rule,
            number=number,
            declared=declared,
        )
        return self._described(kind, policy)

    @spelled_out(lock, ElectionOptions)
    def election(self, name: str, **options: Unpack[ElectionOptions]) -> Election:
        """One leader among many, whom everybody can ask for: see `Election`.

        The parameters and errors are those of `lock`: ``ttl`` is for how long nobody leads when a
        leader has died, ``timeout`` for how long a candidate waits, ``max_hold`` the longest term.
        """
        policy = replace(self.lock(name, **options)._policy, kind="election")
        return Election(self._described("election", policy))

    def periodic(
        self,
        name: str,
        *,
        every: Seconds,
        min_hold: Seconds | None = None,
        max_hold: Seconds | None = None,
        ttl: Seconds | None = None,
    ) -> Periodic:
        """A job of which one run begins in each period, of however many instances, in turn.

        The periods are multiples of ``every`` seconds since 1970 by the store's clock, so clocks
        that differ change nothing: every 3600 runs on the hour.

        :param min_hold: seconds from the beginning of a run for which there is no other, also
            where that is longer than the rest of the period.
        :param max_hold: seconds after which a run is cancelled.
        :param ttl: seconds after which an instance that died in its run is noticed; the
            client's, if None.
        """
        period = seconds("every", every, least=SHORTEST_TTL, most=LONGEST_TTL)
        least = 0.0
        if min_hold is not None:
            least = seconds("min_hold", min_hold, least=0, most=LONGEST_TTL)
        if max_hold is not None:
            seconds("max_hold", max_hold, least=max(least, SHORTEST_TTL), most=LONGEST_TTL)
        policy = Policy(
            name,
            self._ttl if ttl is None else plain(ttl),
            max_hold=plain(max_hold),
            min_hold=plain(min_hold),
            every=period,
            kind="periodic",
        )
        return Periodic(self._described("periodic", policy), period)

    def once(
        self,
        name: str,
        *,
        remember: Seconds,
        ttl: Seconds | None = None,
        wait: bool = True,
        timeout: Seconds | None = None,
    ) -> Once:
        """Something to be done once, however often it is asked for: see `Once`.

        As a decorator, ``name`` is formatted with the call's arguments, as in `locked`.

        :param remember: seconds for which it is remembered that it is done; at least as long as
            the same thing may come again.
        :param ttl: seconds after which somebody who died over it is noticed; the client's, if
            None.
        :param wait: whether those who come while it is being done wait for the outcome.
        :param timeout: seconds that they wait at most; None waits as long as it takes.
        """
        kept = seconds("remember", remember, least=SHORTEST_TTL, most=LONGEST_TTL)
        if not isinstance(wait, bool):
            raise TypeError(f"wait must be True or False, not {wait!r}")
        if not wait and timeout is not None:
            raise ValueError("wait=False does not wait, so it takes no timeout")
        named = functools.partial(self.once, remember=kept, ttl=ttl, wait=wait, timeout=timeout)
        policy = Policy(
            name,
            self._ttl if ttl is None else plain(ttl),
            plain(timeout),
            once=True,
            remember=to_ms(kept),
            kind="once",
        )
        return Once(self._described("once", policy), remember=kept, wait=wait, named=named)

    @spelled_out(lock, LockOptions)
    def locked(
        self, name: str, **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """Decorate an async function so that each call runs under a lock.

        ``name`` is formatted with the call's arguments: ``@client.locked("user:{user_id}")``.
        The other parameters and the errors are those of `lock` and ``async with lock``. The
        client may be opened after the function was decorated.
        """
        fields(checked_name(name))
        options.setdefault("family", name[:LONGEST_LABEL])
        describe = functools.partial(self.lock, **options)
        describe(name)  # a bad argument is an error here, not at the first call

        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
            naming_of = naming(name, function, "locked")

            @functools.wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> R:
                async with describe(naming_of(*args, **kwargs)):
                    return await function(*args, **kwargs)

            return call

        return decorate


def _observers(given: Observer | Sequence[Observer]) -> tuple[Observer, ...]:
    """What was given to `connect`, and a log."""
    each = tuple(given) if isinstance(given, Sequence) else (given,)
    for observer in each:
        if not isinstance(observer, Observer):
            raise TypeError(f"an observer inherits from aiolock.Observer, not so {observer!r}")
    return each if any(isinstance(observer, Log) for observer in each) else (*each, Log())


def _runs(task: asyncio.Task[None] | None) -> bool:
    return task is not None and not task.done()


def _seen(opening: asyncio.Task[None]) -> None:
    if not opening.cancelled():
        opening.exception()  # whoever waits for it raises it
