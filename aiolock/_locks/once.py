"""`Once`: work that is to be done once, however often and wherever it is asked for.

It is a lock whose store remembers that the work is done. A client whose body ends without an error
does not release the lock but *finishes* it. For a while after that, other clients do not get the
lock, but the answer that the work is done (`AlreadyDone`).
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from aiolock._engine.adopting import described
from aiolock._engine.late import AlreadyDone
from aiolock._engine.lease import Lease
from aiolock._engine.lease_state import ALIVE
from aiolock._engine.policy import Policy, to_ms
from aiolock._engine.releases import FIRST_PAUSE
from aiolock._locks.acquire_context import AcquireContext
from aiolock._locks.adoption import Adoption
from aiolock._locks.async_only import AsyncOnly
from aiolock._locks.finishing import finish_body
from aiolock._locks.lock import Lock
from aiolock.copying import CopiedAsItself
from aiolock.entering import AsyncEnterable, Entered, Entry
from aiolock.errors import AcquireTimeout, ResultGone, StoreError, TokenSpent
from aiolock.lease_token import LeaseToken
from aiolock.naming import checked_result, formatter
from aiolock.options import DEFAULT
from aiolock.protocol import Post, ReadPosted, Rule, Status
from aiolock.validation import LONGEST_RESULT

P = ParamSpec("P")
R = TypeVar("R")

_RESULTS: Final = "outcome"
"""The kind of the names under which results are posted; no primitive has it."""
_LONGER: Final = 60.0
"""Seconds for which a result is kept longer than the fact that the work is done: a caller that gets
that answer at the last moment must still find the result."""
_TRIES: Final = 30.0
"""Seconds for which storing a result is tried again while the store fails."""


class Outcome(NamedTuple):
    """The outcome of work that is done once."""

    result: str
    first: bool
    """Whether this call did the work, and not an earlier one."""


@dataclass
class Doing:
    """A body that does the work, with its lease, and the result."""

    lease: Lease
    result: object = None


@dataclass(slots=True)
class _Body:
    """A body of ``async with``; without a lease, if the work was done before."""

    task: asyncio.Task[Any] | None
    _acquisition: AcquireContext[Any]
    _lease: Lease | None
    _remember: int

    async def close(self, error: BaseException | None) -> None:
        """Leave it."""
        if self._lease is not None:
            await finish_body(_Exit(self._acquisition), self._lease, error, self._remember)


@dataclass(slots=True)
class _Exit:
    """The exit of an acquisition, as that of a `Scope`."""

    _acquisition: AcquireContext[Any] | Adoption

    async def close(self, error: BaseException | None) -> None:
        """Leave it."""
        kind = None if error is None else type(error)
        await self._acquisition.__aexit__(kind, error, None)


async def _adopted(adoption: Adoption) -> Lease | None:
    try:
        return await adoption.__aenter__()
    except TokenSpent:
        return None


class Once(CopiedAsItself, AsyncEnterable[Lease | None], AsyncOnly):
    """A piece of work to be done once; made by `LockClient.once`. Any number of tasks may share it.

    ::

        async with client.once("user:42", remember=86400) as lease:
            if lease:  # None: it is done already
                await set_up(42)

    * The first caller gets a `Lease` and does the work. When its body ends without an error, the
      store remembers for ``remember`` seconds that it is done; callers meanwhile get None.
    * A caller that comes while the work is being done waits for the outcome: None when it is done,
      a lease when the caller before failed. With ``wait=False`` it gets None at once.
    * When the body raises, or its lease is lost, nothing is remembered, and the next caller does
      the work. So a body may run again after one that failed or was cancelled half-way.

    ``async with`` raises the errors of a lock, including `AcquireTimeout`. When the body has ended
    and the store fails, the client repeats the command until the lease ends. After nine seconds,
    `StoreError` is raised: the store may not remember it, and then the work may be done once more.
    A cancellation at that moment does not stop the command. As a decorator of an async function it
    returns the function's result, or None if the work is done already.
    """

    __slots__ = ("__weakref__", "_lock", "_named", "_remember", "_wait")

    def __init__(
        self, lock: Lock, *, remember: float, wait: bool, named: Callable[[str], Once]
    ) -> None:
        self._lock = lock
        self._remember = to_ms(remember)
        self._wait = wait
        self._named = named

    def __repr__(self) -> str:
        return f"<Once {self.name!r} remember={self._remember / 1000:g}>"

    @property
    def name(self) -> str:
        """The name of the work."""
        return self._lock.name

    async def status(self) -> Status:
        """The client that does the work, and the waiters.

        ``closed`` is for how long it is remembered that the work is done.
        """
        return await self._lock.status()

    async def break_(self, fence: int | None = None) -> bool:
        """Take the work from the client that does it, for the next one: as `Lock.break_`."""
        return await self._lock.break_(fence)

    @property
    def _entered(self) -> Entered:
        return self._lock._engine.entered

    async def _enter(self, entry: Entry) -> Lease | None:
        acquisition = self._lock.acquire(timeout=DEFAULT if self._wait else 0)
        try:
            lease = await acquisition.__aenter__()
        except AlreadyDone:
            lease = None
        except AcquireTimeout:
            if self._wait:
                raise
            lease = None
        try:
            task = self._lock._engine.watchdog.current_task()
            entry.enters(self, _Body(task, acquisition, lease, self._remember))
        except BaseException:
            if lease is not None:
                lease.release_nowait()
            raise
        return lease

    async def outcome(
        self, work: Callable[[Lease], Awaitable[str]], *, token: str | None = None
    ) -> Outcome:
        """Do the work and keep its result; or return the result kept when it was done before.

        ::

            paid = await client.once("payment:42", remember=86400).outcome(pay)
            return paid.result

        As with ``async with``, one caller does the work and the others wait, or get
        `AcquireTimeout` at once with ``wait=False``. When ``work`` raises or its lease is lost,
        nothing is kept, and the next caller does the work. The result is stored before the store
        remembers that the work is done, so every caller that gets that answer finds the result.

        `ValueError` for more than 65,536 characters, raised after the work: then nothing is
        remembered. `StoreError` when the store does not answer, when it refuses the result for as
        long as a lease lasts (at most 30 s), when it has lost the result, or when the work was done
        by ``async with``, which has no result. Use only one of the two ways for a name: a
        run of `outcome` that failed late, or was forgotten less than a minute ago, leaves a result.
        If ``async with`` then does the work, that old result would be returned.

        :param token: of a lease of this work that was detached (`Lease.detach`): it is adopted, so
            that nobody else does the work meanwhile. If it is spent, the work is asked for as
            without it. `ValueError` if it is of something else.
        """
        async with self._asked(token) as found:
            if isinstance(found, Outcome):
                return found
            result = found.result = await work(found.lease)
        return Outcome(result, first=True)

    @asynccontextmanager
    async def _asked(self, token: str | None = None) -> AsyncGenerator[Outcome | Doing, None]:
        """The outcome of work that is done; otherwise a body, whose user sets its result."""
        adoption = None if token is None else self._adoption(LeaseToken(token))
        lease = None if adoption is None else await _adopted(adoption)
        if adoption is not None and lease is not None:
            leave = _Exit(adoption).close
        else:
            acquisition = self._lock.acquire(timeout=DEFAULT if self._wait else 0)
            try:
                lease = await acquisition.__aenter__()
            except AlreadyDone:
                yield Outcome(await self._kept(), first=False)
                return
            leave = functools.partial(self._finish, _Exit(acquisition), lease)
        error = None
        try:
            doing = Doing(lease)
            yield doing
            await self._keep(lease, doing.result)
        except BaseException as raised:
            error = raised
            raise
        finally:
            await leave(error)

    async def _finish(self, body: _Exit, lease: Lease, error: BaseException | None) -> None:
        await finish_body(body, lease, error, self._remember)

    def _adoption(self, token: LeaseToken) -> Adoption:
        if (token.kind, token.name) != ("once", self.name):
            raise ValueError(f"{token!r} is of something else than the once {self.name!r}")
        engine, policy = self._lock._engine, self._lock._policy
        adopted = described(engine, token, policy.ttl)
        return Adoption(engine, token, adopted, "", "")

    async def _keep(self, lease: Lease, result: object) -> None:
        if not isinstance(result, str):
            raise TypeError(f"what is kept must be a str, not {type(result).__name__}")
        if len(result) > LONGEST_RESULT:
            raise ValueError(f"what is kept must have at most {LONGEST_RESULT} characters")
        result.encode()  # UnicodeEncodeError, a ValueError
        watchdog = lease._watchdog
        until = watchdog.time() + min(_TRIES, lease._hold.renews_for / 1000)
        while True:
            try:
                await self._post(lease.fence, result)
            except StoreError:
                # The work is done, and would have to be done again: so try again while the lease
                # lasts. Afterwards another client may be doing it.
                if watchdog.time() + FIRST_PAUSE > until or lease.state not in ALIVE:
                    raise
                await asyncio.sleep(FIRST_PAUSE)
            else:
                return

    async def _post(self, fence: int, result: str) -> None:
        # Posted under the fence: a body that has lost its lease has a lower one than the next, and
        # cannot overwrite its result.
        with self._lock._policy.errors_named():
            await self._lock._engine.submit(
                Post(
                    self._results.key,
                    fence,
                    token="",
                    declared=0,
                    value=f"{fence} {result}",
                    remember=self._remember + to_ms(_LONGER),
                )
            )

    async def _kept(self) -> str:
        with self._lock._policy.errors_named():
            posted = await self._lock._engine.submit(ReadPosted(self._results.key))
        fence, separator, result = posted.value.partition(" ")
        if not separator or fence != str(posted.count):
            raise self._lock._policy.with_name(
                ResultGone(f"{self.name!r} is done, but the store has no result of it")
            )
        return result

    @property
    def _results(self) -> Policy:
        return replace(
            self._lock._policy,
            kind=_RESULTS,
            timeout=None,
            renew=False,
            shared=True,
            once=False,
            rule=Rule.COUNT,
            number=1,
        )

    def __call__(
        self, function: Callable[P, Awaitable[R]]
    ) -> Callable[P, Coroutine[Any, Any, R | None]]:
        """Decorate an async function: each call asks for the work; None if it is done already."""
        name = formatter(self.name, function, "once")

        @functools.wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
            async with self._named(name(*args, **kwargs)) as lease:
                return (
                    None
                    if lease is None
                    else checked_result(await function(*args, **kwargs), function)
                )

        return call
