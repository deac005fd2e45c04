"""`LockClient`: the public entrance.

The client checks arguments, makes descriptions of locks, and opens and closes the engine, which
does the work.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import sys
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar, Unpack

from aiolock._decorated import locked
from aiolock._engine.adopting import described, discard
from aiolock._engine.diagnostics.deadlock_search import find_deadlocks
from aiolock._engine.diagnostics.labels import labelled
from aiolock._engine.diagnostics.snapshot import snapshot
from aiolock._engine.engine import Engine
from aiolock._engine.policy import Policy, plain, to_ms
from aiolock._lifecycle import Lifecycle
from aiolock._locks.adoption import Adoption
from aiolock._locks.async_only import AsyncOnly
from aiolock._locks.barrier import Barrier, describe_barrier
from aiolock._locks.election import Election
from aiolock._locks.event import Event, describe_event
from aiolock._locks.group import Group, describe_group
from aiolock._locks.latch import Latch, describe_latch
from aiolock._locks.lock import Lock, caller
from aiolock._locks.membership import Membership
from aiolock._locks.multilock import MultiLock
from aiolock._locks.once import Once
from aiolock._locks.passing import passing
from aiolock._locks.path import PathLock, nodes
from aiolock._locks.periodic import Periodic, describe_periodic
from aiolock._locks.rate_limit import REMEMBERED, RateLimit, describe_rate_limit
from aiolock._locks.rwlock import RWLock
from aiolock._locks.semaphore import Semaphore
from aiolock._locks.shards import Shards, describe_shards
from aiolock._turns import clear_in_parts, turns
from aiolock.async_library import check_asyncio
from aiolock.copying import Uncopyable
from aiolock.kinds import KINDS
from aiolock.lease_token import LeaseToken
from aiolock.naming import family_of
from aiolock.observe._in_use import with_those_in_use
from aiolock.observe._log import Log
from aiolock.observer import Deadlock, Observer
from aiolock.options import (
    ElectionOptions,
    LockOptions,
    Mode,
    MultiLockOptions,
    OnLost,
    OnMembershipLost,
    RateLimitOptions,
    RWLockOptions,
    Seconds,
    SemaphoreOptions,
    _NodeOptions,
)
from aiolock.protocol import WAS_ABSENT, Rule, Status
from aiolock.signatures import NoOptions, spelled_out, unexpected, without_unknown
from aiolock.store import ServerStatus, Store
from aiolock.validation import (
    LONGEST_TTL,
    SHORTEST_TTL,
    checked_label,
    checked_name,
    checked_number,
    checked_ttl,
    seconds,
)

P = ParamSpec("P")
R = TypeVar("R")

_TTL: Final = 30.0
_NONE: Final = (None,) * 8
_MOST_POLICIES: Final = 1024
"""Names of locks without options that are kept checked."""


class LockClient(
    Uncopyable,
    AsyncOnly,
    instead="it has connections; share it in its process, and connect() in each other one",
):
    """One process's link to a lock store; made by `connect`.

    Open it once per process and event loop and share it between all tasks: it uses two
    connections (three with ``replicas``), however many locks they hold and wait for.
    ``async with`` opens and closes it; `open` and `aclose` do the same for a framework's lifespan
    hooks. A closed client can be opened again, also in another event loop; the locks and decorated
    functions that it made then work again.
    """

    KINDS: Final = (*KINDS,)
    """The kinds of primitives. Each kind has names of its own; a `RWLock` is a ``lock``."""

    def __init__(
        self,
        store: Store,
        *,
        ttl: Seconds | None = None,
        label: str | None = None,
        observer: Observer | Sequence[Observer] = (),
        deadlock_after: Seconds | None = 10.0,
        answer_timeout: Seconds = 1.0,
    ) -> None:
        if deadlock_after is not None:
            deadlock_after = seconds("deadlock_after (or None)", deadlock_after, least=0)
        self._engine = Engine(
            store,
            functools.partial(with_those_in_use, _observers(observer)),
            label=checked_label("label", label),
            deadlock_after=deadlock_after,
            answer_timeout=seconds(
                "answer_timeout", answer_timeout, least=SHORTEST_TTL, most=LONGEST_TTL
            ),
        )
        longest = store.features.longest_ttl
        if ttl is None:
            ttl = _TTL if longest is None else min(_TTL, longest)
        self._ttl = checked_ttl(ttl)
        self._policies = dict[str, Policy]()
        """Those of the locks without options, by name."""
        self._engine.limits.check_ttl(self._ttl)
        self._lifecycle = Lifecycle(self._engine)

    def __repr__(self) -> str:
        return f"<LockClient {self.id} of {self._engine.store!r}>"

    def __del__(self) -> None:
        engine: Engine | None = getattr(self, "_engine", None)  # None if __init__ failed early
        # In a fork, the client is still the parent's, which closes it.
        if engine and engine.is_open and engine.watchdog.is_here:
            warnings.warn(
                f"unclosed {self!r}: what it holds is in the way of others until its leases end."
                " Use `async with`, or await its aclose()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    @property
    def id(self) -> str:
        """96 random bits that name this client in a lock's `status`; each opening has new ones."""
        return self._engine.client

    @property
    def protocols(self) -> tuple[int, ...]:
        """The protocol version that this client speaks, then others in use at the same store.

        More than one during a deployment. Empty for a store in memory, which no other version can
        use.
        """
        return self._engine.store.features.protocols()

    async def open(self) -> None:
        """Connect; `StoreError`, with advice, when the store cannot be used.

        An open client stays as it is, and one that is being opened is waited for: so any code that
        needs the client may call this first. A cancelled opening closes it again, unless another
        task waits for it too. Raises `ClientClosed` when the client is open in another event loop
        (which has not been closed), was opened before a fork, or is closed meanwhile.
        """
        await self._lifecycle.open()

    async def aclose(self) -> None:
        """Release what is held, leave the queues, wait for both, and disconnect. Idempotent.

        Waiting acquisitions raise `ClientClosed`. The bodies of ``async with`` in other tasks are
        cancelled, and waited for until their leases end. If the store does not answer, the client
        disconnects after a few seconds, and the leases end by themselves. A cancellation does not
        stop the closing; under a cancelled anyio scope, it is completed first. Raises
        `ClientClosed` in a fork or another event loop, where it would disturb the owner's client.
        """
        check_asyncio()
        await self._lifecycle.aclose(asyncio.current_task())

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
        """The status of everything held or waited for under this prefix, by kind and name.

        For people and dashboards, like `Lock.status`: each status is true of one moment, but the
        moments differ. The store is read page by page, so other clients wait for a few ms at most;
        10,000 locks take about a second. `StoreError` when the store does not answer.

        :param pattern: selects names: ``*`` stands for any text, ``?`` for one character, and
            ``[ab]`` for one of these.
        :param kind: only this one of `KINDS`.
        """
        found = await self._snapshot(pattern, kind)
        known = await labelled(self._engine.handoff, found)
        await clear_in_parts(found)
        return known

    async def deadlocks(self) -> list[Deadlock]:
        """Find tasks of any clients that wait for each other, over all locks under this prefix.

        Takes two snapshots, half a second apart, if the first shows a possible deadlock. A task is
        known only after it has waited for two seconds, and only if it awaits the acquisition itself
        and does nothing else meanwhile. `StoreError` when the store does not answer.
        """
        self._engine.check()
        return await find_deadlocks(self._engine.handoff)

    async def names(self, pattern: str = "*", *, kind: str | None = None) -> list[str]:
        """The sorted names of everything that is held or waited for: see `snapshot`."""
        found = await self._snapshot(pattern, kind)
        names = dict[str, list[str]]()
        for status in found:
            names.setdefault(status.kind, []).append(status.name)
            await turns().take()
        await clear_in_parts(found)
        merged = list[str]()
        for name in heapq.merge(*names.values()):  # those of one kind are in order
            if not merged or merged[-1] != name:
                merged.append(name)
            await turns().take()
        return merged

    async def _snapshot(self, pattern: str, kind: str | None) -> list[Status]:
        if not isinstance(pattern, str):
            raise TypeError(f"pattern must be a str, not {pattern!r}")
        if kind is not None:
            self._check_kind(kind)
        self._engine.check()
        return await snapshot(self._engine.handoff, pattern, kind)

    async def status(self, name: str, *, kind: str = "lock") -> Status:
        """The status of a name, for code that has no description of it: see `Lock.status`."""
        return await self._named(name, kind).status()

    async def break_(self, name: str, *, kind: str = "lock", fence: int | None = None) -> bool:
        """Take this name from all its holders, or from one: see `Lock.break_`."""
        return await self._named(name, kind).break_(fence)

    async def request_release(self, name: str, *, kind: str = "lock") -> bool:
        """Ask all holders of this name to release it: see `Lock.request_release`."""
        return await self._named(name, kind).request_release()

    def servers(self) -> list[ServerStatus]:
        """The state of each server of a quorum, as last seen by this client; no I/O.

        Empty for any other store.
        """
        return self._engine.servers()

    @without_unknown
    def adopt(
        self,
        token: str,
        *,
        ttl: Seconds | None = None,
        max_hold: Seconds | None = None,
        on_lost: OnLost = "cancel",
        label: str | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Adoption:
        """Take over a lease that was detached, by its token: see `Lease.detach`.

        ::

            async with client.adopt(message["token"]) as lease:
                await work(message["order"], fence=lease.fence)

        Await the result for a `Lease`, or enter it with ``async with``, as that of `Lock.acquire`.
        One step at the store, which waits for nobody: the lock was never free meanwhile. The lease
        has a higher fence than the one that was detached, and its permits, delays and purpose: a
        body without an error ends the work of a `once`.

        A token works once. `TokenSpent` if it was adopted or discarded before, its time has ended,
        or somebody broke the lock. `ValueError` for a text that is no token, or one of another
        prefix, before anything is sent. `StoreError` when the store does not answer: whether the
        token is spent then is unknown, and if it is, the lock is released. So it is when this is
        cancelled.

        :param ttl: seconds for which the store keeps the lease if nobody renews it; the client's,
            if None.
        :param max_hold: as for `lock`, from now on.
        :param on_lost: as for `lock`.
        :param label: as for `Lock.acquire`.
        """
        for wrong in unknown:
            raise unexpected(LockClient.adopt, wrong)
        where = caller(sys._getframe(1)) if sys.flags.dev_mode else ""
        return self._adopting(token, ttl, max_hold, on_lost, label)(where)

    def _adopting(
        self,
        token: str,
        ttl: Seconds | None,
        max_hold: Seconds | None,
        on_lost: OnLost,
        label: str | None,
    ) -> Callable[[str], Adoption]:
        """Check the arguments of `adopt`; makes the adoption, by the line that asks for it."""
        policy = described(
            self._engine,
            known := LeaseToken(token),
            self._ttl if ttl is None else checked_ttl(ttl),
            on_lost=on_lost,
            max_hold=plain(max_hold),
        )
        label = checked_label("label", label)
        return functools.partial(Adoption, self._engine, known, policy, label)

    async def discard(self, token: str) -> bool:
        """Release the lock of a token that nobody will adopt; True if it was not spent yet.

        Idempotent. `ValueError` for a text that is no token, before anything is sent; `StoreError`
        when the store does not answer. A cancellation does not stop it.
        """
        return await discard(self._engine, LeaseToken(token)) != WAS_ABSENT

    def _check_kind(self, kind: str) -> None:
        if kind not in self.KINDS:
            raise ValueError(f"kind must be one of {', '.join(self.KINDS)}, not {kind!r}")

    def _named(self, name: str, kind: str) -> Lock:
        """A lock for the status of the primitive of this name; it must not be acquired."""
        self._check_kind(kind)
        return Lock(self._engine, Policy(name, self._ttl, kind=kind))

    @without_unknown
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
        share: str | None = None,
        weight: float = 1.0,
        family: str | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Lock:
        """A description of the lock ``name``; no I/O, and nothing to close.

        Raises `ValueError` or `TypeError`, with the rule, for invalid arguments. The methods for
        other kinds of locks raise `Unsupported` where the store does not offer that kind.

        :param ttl: seconds for which the store keeps a lease that nobody renews, so how long a
            crashed holder blocks the others; the client's, if None.
        :param timeout: seconds that `Lock.acquire` waits at most; None waits as long as it takes.
        :param renew: renew the lease while it is held. Without it, the lease is lost after ``ttl``.
        :param reentrant: the task that holds the lock may acquire it again, at no cost; each
            acquisition needs its own release. Otherwise that raises `WouldDeadlock`.
        :param max_waiters: `QueueFull` at once when this many wait already; with a ``share``, those
            of that share.
        :param max_hold: seconds after which the lease is no longer renewed, and so is lost.
        :param on_lost: ``"cancel"`` cancels the body of ``async with``; ``"signal"`` only sets
            `Lease.lost`.
        :param min_hold: seconds from a grant until the next grant, also if the lock is released or
            lost earlier.
        :param lock_delay: seconds without a grant after a holder has *lost* the lock: the holder's
            last writes may still be on their way to the storage.
        :param confirm: leaving the body waits until the store has confirmed the release. Without
            it, leaving takes no time, but a loss that only that answer reveals is not raised.
        :param priority: from -9 to 9. A waiter with a lower number comes before all waiters with a
            higher one, however long they have waited; among equals, first come, first served.
        :param share: who waits: a tenant, a user. Those that wait take turns by their shares, and
            not one for each waiter; within a share, first come, first served. 1 to 64 printable
            characters; None is in nobody's share, and waits for all who came before.
        :param weight: the part of that share, beside others: from 0.01 to 100.
        :param family: a common name of such locks, for metrics (see `LockRequest.family`); the name
            up to its first colon, if None.
        """
        for wrong in unknown:
            raise unexpected(LockClient.lock, wrong)
        options = ttl, timeout, max_waiters, max_hold, min_hold, lock_delay, share, family
        if (
            options == _NONE
            and (renew is True and confirm is True and reentrant is False)
            and (on_lost == "cancel" and type(priority) is int and not priority and weight == 1)
            and type(name) is str
        ):
            return self._plain_lock(name)
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
            share=share,
            weight=weight,
            family=family,
        )
        return self._described("lock", policy)

    def _plain_lock(self, name: str) -> Lock:
        """A lock without options. Most are, and their names come back: so they are checked once."""
        policy = self._policies.get(name)
        if policy is None:
            if len(self._policies) >= _MOST_POLICIES:
                del self._policies[next(iter(self._policies))]  # the one that was made first
            policy = self._policies[name] = self._described("lock", Policy(name, self._ttl))._policy
        return Lock(self._engine, policy)

    def _described(self, kind: str, policy: Policy) -> Lock:
        """A lock with this policy, if the store offers its kind and allows its ttl."""
        limits = self._engine.limits
        limits.check_kind(kind, policy.name)
        if policy.share is not None:
            limits.check_kind("share", policy.name)
        limits.check_ttl(policy.ttl)
        return Lock(self._engine, policy)

    @spelled_out(lock, RWLockOptions)
    def rwlock(self, name: str, **options: Unpack[RWLockOptions]) -> RWLock:
        """A lock that many readers or one writer can hold: see `RWLock`.

        The parameters and errors are those of `lock`, and hold for reading and writing.
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

        The other parameters and the errors are those of `lock`. ``min_hold`` and ``lock_delay``
        hold back the permits of that grant only, so ``semaphore("api", 10, min_hold=1)`` lets no
        more than 10 bodies begin in any second.
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
        """Several locks as one: all of them or none, taken in an order that avoids deadlocks.

        The parameters and errors are those of `lock`, for each name; ``timeout`` is the time for
        all of them together.
        """
        if not names:
            raise ValueError("a multilock needs at least one name")
        timeout = plain(options.pop("timeout", None))
        first, *others = dict.fromkeys(map(checked_name, names))
        lock = self.lock(first, **options)
        more = [Lock(self._engine, lock._policy.named(name)) for name in others]
        return MultiLock([lock, *more], timeout)

    def rate_limit(
        self,
        name: str,
        limit: int,
        *,
        per: Seconds,
        burst: int | None = None,
        timeout: Seconds | None = None,
        max_waiters: int | None = None,
        priority: int = 0,
        share: str | None = None,
        weight: float = 1.0,
        family: str | None = None,
    ) -> RateLimit:
        """``limit`` tokens in ``per`` seconds, for all processes together: see `RateLimit`.

        The tokens come one by one, with equal pauses. `ValueError` for more than a few thousand
        tokens a second that do not divide into whole microseconds.

        :param burst: the most tokens at once, after a pause; ``limit``, if None. An API that allows
            100 calls in any minute gets no more than that from ``limit=80, per=60, burst=20``.
        :param timeout: seconds that `RateLimit.acquire` waits at most; None waits as long as it
            takes.
        :param max_waiters: `QueueFull` at once when this many wait already.
        :param priority: as for `lock`; so are ``share``, ``weight`` and ``family``. The shares of
            those who wait get tokens in proportion to their weights.
        """
        policy = Policy(
            name,
            REMEMBERED,
            plain(timeout),
            renew=False,
            max_waiters=max_waiters,
            priority=priority,
            share=share,
            weight=weight,
            family=family,
        )
        return describe_rate_limit(self._described, policy, limit, per, burst)

    @spelled_out(lock, _NodeOptions)
    def path_lock(
        self, path: str, *, mode: Mode = "exclusive", **options: Unpack[_NodeOptions]
    ) -> PathLock:
        """A node of a tree with all that is below it, as ``"acme/7/doc/42"``: see `PathLock`.

        ``path`` is 1 to 16 segments with a ``/`` between them, none of them empty. The other
        parameters and the errors are those of `lock`; ``timeout`` is for all nodes together.
        """
        lock = self.lock(nodes(path)[-1], **options)
        return PathLock(self._described("path", replace(lock._policy, kind="path")), mode)

    def latch(
        self,
        name: str,
        count: int,
        *,
        remember: Seconds = 86400.0,
        timeout: Seconds | None = None,
        max_waiters: int | None = None,
    ) -> Latch:
        """A latch, which opens once it was counted down ``count`` times: see `Latch`.

        :param remember: seconds for which the store remembers the latch after the last count, open
            or not; at least a minute.
        :param timeout: seconds that `Latch.wait` waits at most; None waits as long as it takes.
        :param max_waiters: `QueueFull` at once when this many wait already.
        """
        lock = passing(self._described, self._ttl, timeout, max_waiters)
        return describe_latch(lock, name, count, remember)

    def event(
        self,
        name: str,
        *,
        remember: Seconds = 3600.0,
        timeout: Seconds | None = None,
        max_waiters: int | None = None,
    ) -> Event:
        """An event that happens once, and that any number of tasks wait for: see `Event`.

        :param remember: seconds for which the store remembers the event after it was last set; at
            least a minute.
        :param timeout: seconds that `Event.wait` waits at most; None waits as long as it takes.
        :param max_waiters: `QueueFull` at once when this many wait already.
        """
        lock = passing(self._described, self._ttl, timeout, max_waiters)
        return describe_event(lock, name, remember)

    def barrier(
        self,
        name: str,
        parties: int,
        *,
        timeout: Seconds | None = None,
        max_waiters: int | None = None,
    ) -> Barrier:
        """A barrier, which lets ``parties`` through together once all are there: see `Barrier`.

        :param timeout: seconds that `Barrier.wait` waits at most; None waits as long as it takes.
        :param max_waiters: `QueueFull` at once when this many wait already.
        """
        lock = passing(self._described, self._ttl, timeout, max_waiters)
        return describe_barrier(lock, name, parties)

    @spelled_out(lock, ElectionOptions)
    def election(self, name: str, **options: Unpack[ElectionOptions]) -> Election:
        """An election of one leader among many, whom any client can look up: see `Election`.

        The parameters and errors are those of `lock`. ``ttl`` is how long there is no leader after
        one has died, ``timeout`` how long a candidate waits, ``max_hold`` the longest term.
        """
        policy = replace(self.lock(name, **options)._policy, kind="election")
        return Election(self._described("election", policy))

    def group(
        self,
        name: str,
        *,
        data: Mapping[str, Any] | None = None,
        ttl: Seconds | None = None,
        timeout: Seconds | None = None,
        on_lost: OnMembershipLost = "cancel",
    ) -> Group:
        """A group of processes, whose members see each other join and leave: see `Group`.

        :param data: what this member says about itself: a dict that JSON can hold, of 4096 bytes at
            most.
        :param ttl: seconds after which a member that is stopped or cut off is gone; 10, if None.
        :param timeout: seconds that joining may take; None waits as long as it takes.
        :param on_lost: the effect of a loss of the membership: ``"cancel"`` cancels the body,
            ``"signal"`` only sets `Membership.lost`, and ``"rejoin"`` joins again.
        """
        return describe_group(
            self._described, name, data=data, ttl=ttl, timeout=timeout, on_lost=on_lost
        )

    def periodic(
        self,
        name: str,
        *,
        every: Seconds,
        min_hold: Seconds | None = None,
        max_hold: Seconds | None = None,
        ttl: Seconds | None = None,
    ) -> Periodic:
        """A job that the instances of a program run in turn, once in each period: see `Periodic`.

        The periods are multiples of ``every`` seconds since 1970 by the store's clock, so clocks
        that differ change nothing: every 3600 runs on the hour.

        :param min_hold: seconds from the beginning of a run until the next run, also where that is
            longer than the rest of the period.
        :param max_hold: seconds after which a run is cancelled.
        :param ttl: seconds after which the death of an instance in its run is noticed; the
            client's, if None.
        """
        policy = Policy(
            name,
            self._ttl if ttl is None else plain(ttl),
            max_hold=plain(max_hold),
            min_hold=plain(min_hold),
            kind="periodic",
        )
        return describe_periodic(self._described, policy, every)

    def once(
        self,
        name: str,
        *,
        remember: Seconds,
        ttl: Seconds | None = None,
        wait: bool = True,
        timeout: Seconds | None = None,
    ) -> Once:
        """A piece of work to be done once, however often it is asked for: see `Once`.

        As a decorator, ``name`` is formatted with the call's arguments, as in `locked`.

        :param remember: seconds for which the store remembers that the work is done; at least as
            long as the same request may come again.
        :param ttl: seconds after which the death of a client that does the work is noticed; the
            client's, if None.
        :param wait: whether callers that come while the work is being done wait for the outcome.
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

    def shards(
        self,
        name: str,
        count: int,
        *,
        group: Membership | None = None,
        ttl: Seconds | None = None,
        settle: Seconds = 1.0,
    ) -> Shards:
        """``count`` shards of some work, spread over the processes that take part: see `Shards`.

        :param group: the membership of this client with which this process takes part; None joins a
            group of the shards' own name.
        :param ttl: seconds after which the shards of a killed process are another's; 10, if None.
        :param settle: seconds for which the group must stand still before shards move. Those of a
            process that stops in order move at once.
        """
        return describe_shards(self._described, name, count, group=group, ttl=ttl, settle=settle)

    @spelled_out(lock, LockOptions)
    def locked(
        self, name: str, **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """Decorate an async function so that each call runs under a lock.

        ``name`` is formatted with the call's arguments: ``@client.locked("user:{user_id}")``, and
        so is ``share``. The other parameters and the errors are those of `lock` and ``async with
        lock``. The client may be opened after the function was decorated.
        """
        options.setdefault("family", family_of(name))
        return locked(functools.partial(self.lock, **options), name, options.get("share"))

    @spelled_out(rate_limit, RateLimitOptions)
    def rate_limited(
        self, name: str, limit: int, **options: Unpack[RateLimitOptions]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """Decorate an async function so that each call takes a token before it begins.

        ``name`` is formatted with the call's arguments: ``@client.rate_limited("api:{tenant}", 100,
        per=60)``, and so is ``share``. The other parameters are those of `rate_limit`, and the
        errors those of `RateLimit.acquire`. The client may be opened later.
        """
        options.setdefault("family", family_of(name))
        describe = functools.partial(self.rate_limit, limit=limit, **options)
        return locked(describe, name, options.get("share"), "rate_limited")


def _observers(given: Observer | Sequence[Observer]) -> tuple[Observer, ...]:
    """The observers that `connect` was given, and a log if none of them is one."""
    each = tuple(given) if isinstance(given, Sequence) else (given,)
    for observer in each:
        if not isinstance(observer, Observer):
            raise TypeError(f"an observer inherits from aiolock.Observer, not so {observer!r}")
    return each if any(isinstance(observer, Log) for observer in each) else (*each, Log())
