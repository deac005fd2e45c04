"""The common part of task frameworks: a task runs under a lock, or is put back for later.

A worker has a number of places. A task that waits for a lock takes one of them from others. So it
waits for a few seconds, in the lock's queue, and is then put back where it came from. Each
framework's own module only adds how to put it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from contextvars import ContextVar
from types import CoroutineType
from typing import Any, Final, Generic, ParamSpec, Protocol, TypedDict, TypeVar, Unpack

from aiolock import (
    AcquireTimeout,
    ClientClosed,
    Lease,
    LeaseLost,
    LeaseToken,
    Lock,
    LockClient,
    LockError,
    Outcome,
    QueueFull,
    ResultGone,
    Semaphore,
    StoreError,
    TokenSpent,
)
from aiolock.integrations._handing import (
    HANDED,
    Carrier,
    any_token_in,
    came_without,
    is_marked,
    marked,
    of_another_lock,
    without_token,
)
from aiolock.naming import describe_each, describer, family_of, formatter
from aiolock.options import LockOptions, OnLost, Seconds, SemaphoreOptions
from aiolock.validation import LONGEST_RESULT, LONGEST_TTL, seconds

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
AnyClient = TypeVar("AnyClient")
AnyLease = TypeVar("AnyLease")

PATIENCE: Final = 5.0
"""Seconds that a task waits for its turn by default."""
RETRY_AFTER: Final = 5.0
"""Seconds after which a task that did not get its lock is tried again by default."""
PUT_BACK: Final = (AcquireTimeout, QueueFull, LeaseLost, StoreError, ClientClosed)
"""Errors after which a task is tried again, if that can help: see `can_pass`."""
NOT_REMEMBERED: Final = (LeaseLost, StoreError, ClientClosed)
"""Errors after a task has returned: it is done, and the store may not remember that."""

TOLD_EVERY: Final = 60.0
"""Seconds between warnings that tasks are put back for one kind of error."""

_log = logging.getLogger("aiolock.tasks")


class TryAgain(Exception):
    """A task did not get its lock, or lost it, and is put back: the lock's error is ``__cause__``.

    Raised for frameworks that put a task back when it raises.
    """


def can_pass(error: LockError) -> bool:
    """Whether a later run of the task may succeed where this one had the error.

    Not after an error of the program, or of its configuration: a client that was not
    opened here, a wrong password. The task would be put back for ever, without an error.
    """
    if isinstance(error, ClientClosed):
        return error.closed
    return not (isinstance(error, StoreError) and error.misconfigured)


class Held(Protocol):
    """A lease, of a task or of a thread."""

    @property
    def name(self) -> str:
        """The name of its lock."""
        ...

    @property
    def fence(self) -> int:
        """The fencing token."""
        ...


class Current:
    """The leases that the running task holds by its decorators."""

    def __init__(self) -> None:
        self._leases: ContextVar[tuple[Any, ...]] = ContextVar("aiolock.task", default=())

    @contextmanager
    def of(self, lease: object) -> Generator[None, None, None]:
        """Run a body under this lease."""
        token = self._leases.set((*self._leases.get(), lease))
        try:
            yield
        finally:
            self._leases.reset(token)

    def lease(self) -> Any:
        """The innermost lease; `RuntimeError` if there is none."""
        leases = self._leases.get()
        if not leases:
            raise RuntimeError("there is no lease here: only in what one of the decorators runs")
        return leases[-1]


class Body:
    """The task's own function, whose errors are no reason to put the task back."""

    def __init__(self, current: Current) -> None:
        self._current = current
        self._error: BaseException | None = None
        self._lease = ("", 0)
        self.begun = False

    @contextmanager
    def under(self, lease: Held) -> Generator[None, None, None]:
        """Run it under this lease."""
        self.begun = True
        self._lease = (lease.name, lease.fence)
        try:
            with self._current.of(lease):
                yield
        except BaseException as error:
            self._error = error
            raise

    def has_raised(self, error: BaseException) -> bool:
        """Whether the function raised this, and not its lease; to be called once."""
        mine, self._error = self._error, None  # otherwise they would keep each other alive
        if isinstance(error, LeaseLost) and (error.name, error.fence) == self._lease:
            return False  # it has called `check` or the like, and the lease was lost
        return error is mine


class Decorators(Generic[AnyClient, AnyLease]):
    """What the decorators for async tasks and those for threads have in common."""

    client: AnyClient
    """The client, for anything else."""

    def __init__(
        self, client: AnyClient, kind: type[AnyClient], connect: str, *, retry_after: Seconds
    ) -> None:
        """``client`` must be of this ``kind``, which ``connect`` makes."""
        if not isinstance(client, kind):
            raise TypeError(f"Locks() takes what {connect}() gives, not {client!r}")
        self.client = client
        self.retry_after = seconds("retry_after", retry_after, least=0, most=LONGEST_TTL)
        """Seconds after which a task that was put back is tried again."""
        self._current = Current()
        self._put_back_log = PutBackLog()

    def current_lease(self) -> AnyLease:
        """The lease that the running task has by its innermost decorator; else `RuntimeError`."""
        lease: AnyLease = self._current.lease()
        return lease


class OnceRun(Generic[R]):
    """A run of a task that is done once: its result, or that of the run that has done it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._returned = list[R]()

    def keep(self, returned: R) -> str:
        """The task has returned this: the text that the store is to keep."""
        self._returned.append(returned)
        return kept(self._name, returned)

    def result(self, outcome: Outcome) -> R | None:
        """The result; None if the run that has done it could not keep its own."""
        return self._returned[0] if outcome.first else restored(outcome.result)

    def result_despite(self, error: LockError) -> R | None:
        """The result although the store has failed; raises the error if nothing was done."""
        if isinstance(error, ResultGone):  # it was done without a result
            return None
        if not self._returned:
            raise error
        log_not_remembered(self._name, error)
        return self._returned[0]


class AdoptOptions(TypedDict, total=False):
    """Options of a lock that hold for a lease of it that is adopted, too."""

    ttl: Seconds | None
    max_hold: Seconds | None
    on_lost: OnLost


def for_adopting(options: LockOptions | SemaphoreOptions) -> AdoptOptions:
    """Those of these options."""
    wanted: AdoptOptions = {}
    if "ttl" in options:
        wanted["ttl"] = options["ttl"]
    if "max_hold" in options:
        wanted["max_hold"] = options["max_hold"]
    if "on_lost" in options:
        wanted["on_lost"] = options["on_lost"]
    return wanted


def describing(
    make: Callable[..., T], name: str, options: LockOptions | SemaphoreOptions
) -> Callable[..., T]:
    """``make`` for all names of this template, with these options and the defaults for tasks."""
    options.setdefault("timeout", PATIENCE)
    options.setdefault("family", family_of(name))
    return describe_each(functools.partial(make, **options), name)


async def _nothing(_: Sequence[Any]) -> None:
    """Few frameworks have anything to do then."""


def _arguments(_: Sequence[Any], kwargs: dict[str, Any]) -> Carrier:
    """Frameworks whose messages have nothing but arguments."""
    return kwargs


class TaskLocks(Decorators[LockClient, Lease]):
    """Decorators for tasks; how a task is put back is given, as its framework does it."""

    def __init__(
        self,
        client: LockClient,
        *,
        retry_after: Seconds = RETRY_AFTER,
        put_back: Callable[[LockError, Sequence[Any]], Awaitable[BaseException]],
        begin: Callable[[Sequence[Any]], Awaitable[None]] = _nothing,
        interrupted: Callable[[Sequence[Any]], Awaitable[None]] = _nothing,
        carrier: Callable[[Sequence[Any], dict[str, Any]], Carrier] = _arguments,
        opened_by: str | None = None,
    ) -> None:
        """Each function gets the arguments of the task, last.

        ``carrier`` returns the part of the message of this run in which the token of a lease may
        be: by default, the keyword arguments.

        ``put_back`` has it run again, because of an error, and returns what to raise: the same
        error, if no framework runs the task. ``begin`` is called when a run begins; after its error
        the task is put back, too. ``interrupted``: it was cancelled before it began, in most
        frameworks because the worker ends. ``opened_by``: what opens the client, for the error of
        a task that finds that nobody has.
        """
        super().__init__(client, LockClient, "connect", retry_after=retry_after)
        self._put_back = put_back
        self._begin = begin
        self._interrupted = interrupted
        self._carrier = carrier
        self._opened_by = opened_by

    def locked(
        self, name: str, **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, CoroutineType[Any, Any, R]]]:
        """Decorate an async task so that each run of it holds a lock.

        It waits its turn for ``timeout`` seconds, 5 by default. If it does not get the lock in that
        time, if too many wait already, or if the store does not answer, the task is put back, and
        tried again after ``retry_after`` seconds. A run whose lock is lost is cancelled and put
        back, too. Other errors are left to the framework, and so are errors that will not pass:
        a client that was not opened here, a store that is misconfigured (`StoreError`).

        A lease of this lock that was handed on with the task, by `hand`, is adopted instead. If its
        token is spent, as for a task that is tried again, the lock is acquired.

        :param name: formatted with the arguments of the task: ``"user:{user}"``, and so is
            ``share``. `ValueError` for a field that is not a parameter.
        """
        return self._holding("locked", "lock", name, self.client.lock, options)

    def limited(
        self, name: str, limit: int, **options: Unpack[SemaphoreOptions]
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, CoroutineType[Any, Any, R]]]:
        """Decorate an async task of which ``limit`` run at a time, over all workers together.

        Each run holds a permit of the semaphore ``name``; fields are as in `locked`, and so are
        waiting and putting back. With ``min_hold=1`` no more than ``limit`` runs begin in any
        second.
        """
        make = functools.partial(self.client.semaphore, limit=limit)
        return self._holding("limited", "semaphore", name, make, options)

    def _holding(
        self,
        decorator: str,
        kind: str,
        name: str,
        make: Callable[..., Lock | Semaphore],
        options: LockOptions | SemaphoreOptions,
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, CoroutineType[Any, Any, R]]]:
        describe, adopting = describing(make, name, options), for_adopting(options)

        def decorate(
            function: Callable[P, Awaitable[R]],
        ) -> Callable[P, CoroutineType[Any, Any, R]]:
            lock_of = describer(describe, name, function, decorator, share=options.get("share"))
            innermost = not is_marked(function)

            @functools.wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> R:
                async def hold(body: Body) -> R:
                    lock = lock_of(*args, **without_token(kwargs))
                    carrier = self._carrier(args, kwargs)
                    token = await self._token_of(carrier, kind, lock.name, innermost=innermost)
                    held: AbstractAsyncContextManager[Lease] = lock
                    if token is not None:
                        held = self._adopted(token, carrier, lock, adopting)
                    async with held as lease:
                        with body.under(lease):
                            return await function(*args, **kwargs)

                return await self._or_put_back(hold, args)

            return marked(call)  # type: ignore[return-value]  # mypy: no CoroutineType

        return decorate

    async def _token_of(
        self, carrier: Carrier, kind: str, name: str, *, innermost: bool
    ) -> LeaseToken | None:
        token = any_token_in(carrier)
        if token is None or (token.kind, token.name) == (kind, name):
            return token
        if not innermost:
            return None
        with contextlib.suppress(LockError, ValueError):
            await self.client.discard(token)
        raise of_another_lock(token, kind, name)

    @asynccontextmanager
    async def _adopted(
        self,
        token: LeaseToken,
        carrier: Carrier,
        lock: AbstractAsyncContextManager[Lease],
        options: AdoptOptions,
    ) -> AsyncGenerator[Lease, None]:
        """The lease that was handed on, or if its token is spent, one of the lock."""
        async with AsyncExitStack() as stack:
            held: Lease | None
            try:
                held = await stack.enter_async_context(self.client.adopt(token, **options))
            except TokenSpent as error:
                log_spent(error)
                held = None
            carrier.pop(HANDED, None)  # a later run would find it spent
            if held is None:
                held = await stack.enter_async_context(lock)
            yield held

    def adopted(
        self,
        *,
        ttl: Seconds | None = None,
        max_hold: Seconds | None = None,
        on_lost: OnLost = "cancel",
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, CoroutineType[Any, Any, R]]]:
        """Decorate an async task that runs only under a lease that is handed on with it, by `hand`.

        The lease may be of any lock, and is released when the run ends. If its token is spent, the
        task fails (`TokenSpent`), and so it does when it is tried again: for tasks that acquire the
        lock then, use `locked`. Sent without a lease, it fails with `NotHeld`.

        :param ttl: seconds for which the store keeps the lease if nobody renews it; the client's,
            if None.
        :param max_hold: as for `LockClient.lock`, from the beginning of the run.
        :param on_lost: as for `LockClient.lock`.
        """
        options = AdoptOptions(ttl=ttl, max_hold=max_hold, on_lost=on_lost)
        describe_each(functools.partial(self.client.lock, **options), "x")

        def decorate(
            function: Callable[P, Awaitable[R]],
        ) -> Callable[P, CoroutineType[Any, Any, R]]:
            formatter("x", function, "adopted")
            if is_marked(function):
                raise TypeError("adopted() must be the innermost of the decorators of a task")

            @functools.wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> R:
                async def hold(body: Body) -> R:
                    carrier = self._carrier(args, kwargs)
                    token = any_token_in(carrier)
                    if token is None:
                        raise came_without(function)
                    async with self.client.adopt(token, **options) as lease:
                        del carrier[HANDED]
                        with body.under(lease):
                            return await function(*args, **kwargs)

                return await self._or_put_back(hold, args)

            return marked(call)  # type: ignore[return-value]  # mypy: no CoroutineType

        return decorate

    def once(
        self,
        name: str,
        *,
        remember: Seconds,
        timeout: Seconds | None = PATIENCE,
        ttl: Seconds | None = None,
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, CoroutineType[Any, Any, R | None]]]:
        """Decorate an async task that is done once for each ``name``, however often it is sent.

        When it has returned, the store remembers that and its result. Further runs return the same
        at once: as JSON gives it back, or None if JSON cannot hold it in 65,536 characters (that is
        logged). A run that comes while it is being done waits for ``timeout`` seconds, and is then
        put back, as by `locked`. If it raises, is cancelled by the loss of its lease, or its worker
        dies, nothing is remembered: the next run does it.

        What has returned is never put back. If the lease is lost by then, or the store does not
        confirm that it remembers the work, that is logged (a warning), and the result is that of
        the function. Then the work is done once more if it is sent again.

        A lease of this work that was handed on with the task is adopted, as by `locked`.

        :param name: formatted with the arguments of the task, as in `locked`: the name of the work.
        :param remember: seconds for which it is remembered; as long as the same may come again.
        :param ttl: seconds after which the death of a worker that does it is noticed; the client's,
            if None.
        """
        describe = describe_each(
            functools.partial(
                self.client.once, remember=remember, timeout=timeout, ttl=ttl, wait=True
            ),
            name,
        )

        def decorate(
            function: Callable[P, Awaitable[R]],
        ) -> Callable[P, CoroutineType[Any, Any, R | None]]:
            naming_of = formatter(name, function, "once")
            innermost = not is_marked(function)

            @functools.wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
                async def do(body: Body) -> R | None:
                    asked = naming_of(*args, **without_token(kwargs))
                    carrier = self._carrier(args, kwargs)
                    token = await self._token_of(carrier, "once", asked, innermost=innermost)
                    once = OnceRun[R](asked)

                    async def work(lease: Lease) -> str:
                        if token is not None:
                            carrier.pop(HANDED, None)
                        with body.under(lease):
                            returned = await function(*args, **kwargs)
                        return once.keep(returned)

                    try:
                        return once.result(await describe(asked).outcome(work, token=token))
                    except NOT_REMEMBERED as error:
                        return once.result_despite(error)

                return await self._or_put_back(do, args)

            return marked(call)  # type: ignore[return-value]  # mypy: no CoroutineType

        return decorate

    async def _or_put_back(self, run: Callable[[Body], Awaitable[T]], args: Sequence[Any]) -> T:
        body = Body(self._current)
        try:
            await self._begin(args)
            return await run(body)
        except PUT_BACK as error:
            if body.has_raised(error):
                raise
            if not can_pass(error):
                if isinstance(error, ClientClosed) and self._opened_by:
                    error.add_note(f"In a worker, {self._opened_by} opens it.")
                raise
            put_back = await self._put_back(error, args)
            self._put_back_log.add(error, put_back)
            raise put_back from error
        except asyncio.CancelledError:
            if not body.begun:
                await self._interrupted(args)
            raise


class PutBackLog:
    """Logs that tasks are put back: a warning the first time, and then once a minute.

    Each kind of error has its own. Between two warnings, the lines have the level info.
    """

    def __init__(self) -> None:
        self._warned = dict[type[LockError], float]()
        self._since = Counter[type[LockError]]()

    def add(self, error: LockError, put_back: BaseException) -> None:
        """Log that a task is put back because of this error; none is, if both are the same."""
        if put_back is error:
            return
        kind, now = type(error), time.monotonic()
        if now - self._warned.get(kind, -math.inf) < TOLD_EVERY:
            self._since[kind] += 1
            _log.info("a task is put back: %s", error)
            return
        more = self._since.pop(kind, 0)
        self._warned[kind] = now
        _log.warning(
            "a task is put back: %s%s",
            error,
            f" (and {more} other runs since the last such warning)" if more else "",
        )


def log_spent(error: TokenSpent) -> None:
    """Log that a task came with a token that is spent."""
    _log.info("a task acquires its lock anew, as nothing is handed on to it: %s", error)


def log_not_remembered(name: str, error: LockError) -> None:
    """Log that a task has returned, and that the store may not remember it.

    It is not put back: then it would be carried out twice for certain, also by a broker that never
    delivers it a second time.
    """
    _log.warning(
        "%r is done, but the store may not remember that, and then it can be done again: %s",
        name,
        error,
    )


def kept(name: str, returned: object) -> str:
    """The text to keep of a task's result; empty if it cannot be kept."""
    try:
        text = json.dumps(returned)
    except (TypeError, ValueError, RecursionError) as error:
        _log.warning("%r is done, and what it returned is not kept: %s", name, error)
        return ""
    if len(text) > LONGEST_RESULT:
        _log.warning("%r is done, and what it returned is too long to be kept", name)
        return ""
    return text


def restored(text: str) -> Any:
    """The result of a task, from the text that was kept."""
    return json.loads(text) if text else None
