"""`connect` and `LockClient` for threads: one process's link to its lock store."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    get_type_hints,
)

import aiolock
from aiolock.copying import Uncopyable
from aiolock.errors import ClientClosed
from aiolock.lease_token import LeaseToken
from aiolock.naming import checked_result, describe_each, describer, family_of
from aiolock.observer import Deadlock
from aiolock.options import ConnectOptions, LockOptions, OnLost, RateLimitOptions, Seconds
from aiolock.protocol import Status
from aiolock.signatures import spelled_out, unexpected
from aiolock.store import ServerStatus, Store
from aiolock.sync._adoption import Adoption
from aiolock.sync._body import Bodies
from aiolock.sync._greenlets import check_no_greenlets
from aiolock.sync._group import Group, Membership, Shards
from aiolock.sync._jobs import Election, Once, Periodic
from aiolock.sync._locks import Lock, MultiLock, PathLock, RWLock, Semaphore
from aiolock.sync._meeting import Barrier, Event, Latch
from aiolock.sync._portal import Portal, process
from aiolock.sync._rate_limit import RateLimit
from aiolock.sync._thread import caller, check_thread

if TYPE_CHECKING:
    from redis.asyncio import Redis, RedisCluster

    from aiolock.stores.memory import MemoryServer

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Given = TypeVar("Given")


@spelled_out(aiolock.connect, ConnectOptions)
def connect(
    target: str
    | Redis
    | RedisCluster
    | MemoryServer
    | Store
    | Sequence[str]
    | Sequence[Redis]
    | Sequence[MemoryServer],
    **options: Unpack[ConnectOptions],
) -> LockClient:
    """A client of the lock store at ``target``, for threads; no I/O until it is first used.

    All parameters and errors are those of `aiolock.connect`. An ``observer`` is called in the
    thread of aiolock's event loop. With ``memory://``, the locks are those of this process's
    synchronous clients. `RuntimeError` under gevent or eventlet, which have no real threads.
    """
    check_no_greenlets()
    return LockClient(aiolock.connect(target, **options))


def _as_for_tasks(
    method: Callable[Concatenate[aiolock.LockClient, P], Given],
) -> Callable[[Callable[[LockClient, Given], T]], Callable[Concatenate[LockClient, P], T]]:
    """Let a method be called like this one, for tasks, and give it what this one makes.

    Type checkers and `inspect` see the parameters of this one; the site, by docs-theme/threads.py.
    """
    signature, hints = inspect.signature(method), get_type_hints(method, include_extras=True)

    def decorate(made: Callable[[LockClient, Given], T]) -> Callable[Concatenate[LockClient, P], T]:
        @functools.wraps(made)
        def call(self: LockClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
            for name in kwargs:
                if name not in signature.parameters:
                    raise unexpected(call, name)
            return made(self, method(self._client, *args, **kwargs))

        returns = inspect.signature(made).return_annotation
        shown = signature.replace(return_annotation=returns)
        call.__signature__ = shown  # type: ignore[attr-defined]  # what `inspect` looks for
        call.__annotations__ = {**hints, "return": returns}
        return call

    return decorate


class LockClient(Uncopyable, instead=aiolock.LockClient._instead):
    """One process's link to a lock store, for threads; made by `aiolock.sync.connect`.

    Share it between all threads of the process. It opens when it is first used. When the
    interpreter ends, it releases what is held, and closes. ``with`` opens and closes it as well,
    and so do `open` and `close`; a closed client can be opened again.

    Its event loop runs in a thread of its own, one for all such clients of the process, which ends
    when the last of them is closed. In a thread that runs an event loop itself, every call that
    waits raises `RuntimeError`, because that loop would be blocked (except in a cell of a
    notebook). After a fork, a client that was opened before raises `ClientClosed`.
    """

    KINDS: Final = aiolock.LockClient.KINDS
    """The kinds of primitives: see `aiolock.LockClient.KINDS`."""

    def __init__(self, client: aiolock.LockClient) -> None:
        self._client = client
        self._portal: Portal | None = None
        self._user: object = None
        """The user for which the portal is kept, while this client is open."""
        self._ending = asyncio.Event()
        """Set, in the loop, when the client begins to close."""
        self._closed = False
        """Whether it was closed on purpose: then it does not open by itself any more."""
        self.entered = Bodies()

    def __repr__(self) -> str:
        return repr(self._client)

    @property
    def id(self) -> str:
        """96 random bits that name this client in a lock's `status`; each opening has new ones."""
        return self._client.id

    @property
    def protocols(self) -> tuple[int, ...]:
        """The protocol version that this client speaks, then others in use at the same store.

        See `aiolock.LockClient.protocols`.
        """
        return self._client.protocols

    def open(self) -> None:
        """Connect; `StoreError`, with what to do about it, when the store cannot be used.

        Does nothing if it is open already. `ClientClosed` if it was opened before a fork, or is
        closed meanwhile. If interrupted (Ctrl-C), it is closed again.
        """
        if self._portal is not None:
            self._portal.check_process()
        here = process()
        check_thread(None)
        user = object()
        try:
            portal = here.take(user)
            caller(portal).call(self._client.open, self._undo_open)
            with here.guard:
                self._closed = False
                if self._portal is None:
                    here.clients.add(self)
                    self._ending = asyncio.Event()
                    self._portal, self._user = portal, user
        except BaseException as error:
            if not isinstance(error, Exception):
                self._interrupted(user)
            raise
        finally:
            if self._user is not user:  # another thread has opened it
                here.drop(user)

    async def _undo_open(self, _: None) -> None:
        await self._client.aclose()

    def _interrupted(self, user: object) -> None:
        """Close what an interrupted `open` may have opened."""
        here = process()
        with here.guard:
            if self._portal is not None and self._user is not user:
                return  # another thread has opened it
            self._portal = self._user = None
            here.clients.discard(self)
            portal = here.running
        if portal is not None:
            with contextlib.suppress(ClientClosed):
                portal.start(self._client.aclose, "aiolock close")
        here.drop(user)

    def close(self) -> None:
        """Release what is held, leave the queues, wait for both, and disconnect. Idempotent.

        Waiting threads get `ClientClosed`. What threads hold in a ``with`` counts as lost there;
        the call waits until they have left it, or their leases have ended. If the store does
        not answer, the client disconnects after a few seconds. An interruption (Ctrl-C) does not
        stop the closing. `ClientClosed` in a fork.
        """
        self._closed = True
        portal = self._portal
        if portal is None:
            return

        def begin() -> Future[None]:
            agent = caller(portal).agent
            # Not by the thread's agent: a handler of SIGTERM closes while its thread waits.
            return portal.start(lambda: self._aclose(agent.task), "aiolock close")

        try:
            check_thread(portal)
            closing = begin()
            with contextlib.suppress(Exception):
                closing.result()
            self._forget(portal)
        except BaseException as error:
            if not isinstance(error, Exception):  # begin again, in case it had not begun
                with contextlib.suppress(ClientClosed):
                    begin().add_done_callback(lambda _: self._forget(portal))
            raise
        closing.result()

    async def _aclose(self, task: asyncio.Task[Any] | None) -> None:
        self._ending.set()
        await self._client._lifecycle.aclose(task)

    def _forget(self, portal: Portal) -> None:
        here = process()
        with here.guard:
            if self._portal not in (portal, None) or self._client._engine.is_open:
                return  # another thread has opened it again
            user, self._portal = self._user, None
            here.clients.discard(self)
        here.drop(user)

    def begin_close(self, portal: Portal) -> Future[None]:
        """Begin to `close`, at the interpreter's exit."""
        self._closed = True
        return portal.start(self._client.aclose, "aiolock close")

    def __enter__(self) -> Self:
        try:
            self.open()
            return self
        except BaseException as error:
            if not isinstance(error, Exception):
                self._interrupted(self._user)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def portal(self) -> Portal:
        """The portal with the loop in which it is open; opens it, if it never was."""
        check_thread(self._portal)
        if self._portal is None and not self._closed:
            self.open()
        portal = self._portal
        if portal is None:
            raise ClientClosed(
                "this client was closed: open it again, with `with` or its open()", closed=True
            )
        portal.check_process()
        return portal

    def call(
        self,
        function: Callable[[], Awaitable[T]],
        undo: Callable[[T], Awaitable[object]] | None = None,
        *,
        waits: bool = False,
    ) -> T:
        """The result of the function, called in the loop: see `Caller.call`."""
        return caller(self.portal()).call(function, undo, waits=waits)

    def rest(self, seconds: float) -> None:
        """Wait this long, or until it is closed."""
        ending = self._ending

        async def rest() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await ending.wait()

        self.call(rest)

    def leave(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call this in the loop, if the client is still open: see `Caller.leave`."""
        portal = self._portal
        if portal is None:
            return
        with contextlib.suppress(ClientClosed):
            if portal.is_this_thread:  # the garbage collector, which cannot wait here
                portal.start(function, "aiolock leave")
            else:
                caller(portal).leave(function)

    def snapshot(self, pattern: str = "*", *, kind: str | None = None) -> list[Status]:
        """The status of all that is held or waited for; as `aiolock.LockClient.snapshot`."""
        return self.call(lambda: self._client.snapshot(pattern, kind=kind))

    def deadlocks(self) -> list[Deadlock]:
        """Threads and tasks that wait for each other; as `aiolock.LockClient.deadlocks`."""
        return self.call(self._client.deadlocks)

    def names(self, pattern: str = "*", *, kind: str | None = None) -> list[str]:
        """The sorted names of everything that is held or waited for: see `snapshot`."""
        return self.call(lambda: self._client.names(pattern, kind=kind))

    def status(self, name: str, *, kind: str = "lock") -> Status:
        """The status of a name, for code that has no description of it: see `Lock.status`."""
        return self.call(lambda: self._client.status(name, kind=kind))

    def break_(self, name: str, *, kind: str = "lock", fence: int | None = None) -> bool:
        """Take this name from all its holders, or from one: see `Lock.break_`."""
        return self.call(lambda: self._client.break_(name, kind=kind, fence=fence))

    def request_release(self, name: str, *, kind: str = "lock") -> bool:
        """Ask all holders of this name to release it: see `Lock.request_release`."""
        return self.call(lambda: self._client.request_release(name, kind=kind))

    def adopt(
        self,
        token: str,
        *,
        ttl: Seconds | None = None,
        max_hold: Seconds | None = None,
        on_lost: OnLost = "cancel",
        label: str | None = None,
    ) -> Adoption:
        """Take over a lease that was detached, by its token; as `aiolock.LockClient.adopt`."""
        return Adoption(self, self._client._adopting(token, ttl, max_hold, on_lost, label))

    def discard(self, token: str) -> bool:
        """Release the lock of a token that nobody will adopt; as `aiolock.LockClient.discard`."""
        known = LeaseToken(token)
        return self.call(lambda: self._client.discard(known))

    def servers(self) -> list[ServerStatus]:
        """The status of each server of a quorum; as `aiolock.LockClient.servers`."""
        portal = self._portal
        return self._client.servers() if portal is None else portal.read(self._client.servers)

    @_as_for_tasks(aiolock.LockClient.lock)
    def lock(self, lock: aiolock.Lock) -> Lock:
        """A description of the lock ``name``; no I/O, and nothing to close.

        The parameters and errors are those of `aiolock.LockClient.lock`; for what ``on_lost`` means
        to a thread, see `Lock`.
        """
        return Lock(self, lock)

    @_as_for_tasks(aiolock.LockClient.rwlock)
    def rwlock(self, rwlock: aiolock.RWLock) -> RWLock:
        """A lock that readers share and a writer has alone: as `aiolock.LockClient.rwlock`."""
        return RWLock(self, rwlock)

    @_as_for_tasks(aiolock.LockClient.semaphore)
    def semaphore(self, semaphore: aiolock.Semaphore) -> Semaphore:
        """``limit`` permits for all processes: as `aiolock.LockClient.semaphore`."""
        return Semaphore(self, semaphore)

    @_as_for_tasks(aiolock.LockClient.rate_limit)
    def rate_limit(self, rate_limit: aiolock.RateLimit) -> RateLimit:
        """``limit`` tokens in ``per`` seconds, for all: as `aiolock.LockClient.rate_limit`."""
        return RateLimit(self, rate_limit)

    @_as_for_tasks(aiolock.LockClient.multilock)
    def multilock(self, multilock: aiolock.MultiLock) -> MultiLock:
        """Several locks as one, without deadlock: as `aiolock.LockClient.multilock`."""
        return MultiLock(self, multilock)

    @_as_for_tasks(aiolock.LockClient.path_lock)
    def path_lock(self, path: aiolock.PathLock) -> PathLock:
        """A node of a tree with all that is below it: as `aiolock.LockClient.path_lock`."""
        return PathLock(self, path)

    @_as_for_tasks(aiolock.LockClient.latch)
    def latch(self, latch: aiolock.Latch) -> Latch:
        """A latch, which opens after ``count`` counts: as `aiolock.LockClient.latch`."""
        return Latch(self, latch)

    @_as_for_tasks(aiolock.LockClient.event)
    def event(self, event: aiolock.Event) -> Event:
        """An event that happens once: as `aiolock.LockClient.event`."""
        return Event(self, event)

    @_as_for_tasks(aiolock.LockClient.barrier)
    def barrier(self, barrier: aiolock.Barrier) -> Barrier:
        """A barrier, which lets ``parties`` through together: as `aiolock.LockClient.barrier`."""
        return Barrier(self, barrier)

    @_as_for_tasks(aiolock.LockClient.election)
    def election(self, election: aiolock.Election) -> Election:
        """An election of one leader among many: as `aiolock.LockClient.election`."""
        return Election(self, election)

    @_as_for_tasks(aiolock.LockClient.group)
    def group(self, group: aiolock.Group) -> Group:
        """A group of processes that see each other: as `aiolock.LockClient.group`."""
        return Group(self, group)

    def shards(
        self,
        name: str,
        count: int,
        *,
        group: Membership | None = None,
        ttl: Seconds | None = None,
        settle: Seconds = 1.0,
    ) -> Shards:
        """``count`` shards of some work, spread over processes: as `aiolock.LockClient.shards`.

        :param group: the membership of this client with which this process takes part; None joins a
            group of the shards' own name.
        :param ttl: seconds after which the shards of a killed process are another's; 10, if None.
        :param settle: seconds for which the group must stand still before shards move.
        """
        if group is not None and not isinstance(group, Membership):
            raise TypeError(f"group must be a Membership, as `with group as me`, not {group!r}")
        member = None if group is None else group._me
        return Shards(self, self._client.shards(name, count, group=member, ttl=ttl, settle=settle))

    @_as_for_tasks(aiolock.LockClient.periodic)
    def periodic(self, periodic: aiolock.Periodic) -> Periodic:
        """A job of which one run begins in each period: as `aiolock.LockClient.periodic`."""
        return Periodic(self, periodic)

    @_as_for_tasks(aiolock.LockClient.once)
    def once(self, once: aiolock.Once) -> Once:
        """A piece of work to be done once: as `aiolock.LockClient.once`."""
        return Once(self, once)

    @spelled_out(aiolock.LockClient.lock, LockOptions)
    def locked(
        self, name: str, **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function so that each call runs under a lock.

        As `aiolock.LockClient.locked`: ``@client.locked("user:{user_id}")``. The client need not be
        open yet.
        """
        options.setdefault("family", family_of(name))
        describe = describe_each(functools.partial(self.lock, **options), name)
        share = options.get("share")

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            lock_of = describer(describe, name, function, "locked", share=share, is_async=False)

            @functools.wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                with lock_of(*args, **kwargs):
                    return checked_result(function(*args, **kwargs), function)

            return call

        return decorate

    @spelled_out(aiolock.LockClient.rate_limit, RateLimitOptions)
    def rate_limited(
        self, name: str, limit: int, **options: Unpack[RateLimitOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a function so that each call takes a token before it begins.

        As `aiolock.LockClient.rate_limited`. The client need not be open yet.
        """
        options.setdefault("family", family_of(name))
        share = options.get("share")
        describe = describe_each(functools.partial(self.rate_limit, limit=limit, **options), name)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            limit_of = describer(
                *(describe, name, function, "rate_limited"), share=share, is_async=False
            )

            @functools.wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                limit_of(*args, **kwargs).acquire()
                return checked_result(function(*args, **kwargs), function)

            return call

        return decorate
