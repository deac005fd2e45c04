"""Locks in Celery: `Locks` has the decorators, for tasks in processes or in threads.

::

    locks = Locks(aiolock.sync.connect("redis://localhost:6379/0"))


    @app.task
    @locks.locked("user:{user}")
    def welcome(user: int) -> None: ...

`hand` sends a task with a lease, which its worker adopts.
"""

from __future__ import annotations

import contextlib
import functools
from asyncio import to_thread
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from celery import Task, current_task
from celery.canvas import Signature
from celery.exceptions import Retry
from celery.result import AsyncResult

import aiolock
from aiolock import LeaseToken, LockError, TokenSpent
from aiolock.integrations._handing import (
    HANDED,
    Carrier,
    any_token_in,
    came_without,
    check_adopts,
    hand_by,
    is_marked,
    label_for,
    marked,
    of_another_lock,
)
from aiolock.integrations._tasks import (
    NOT_REMEMBERED,
    PATIENCE,
    PUT_BACK,
    RETRY_AFTER,
    AdoptOptions,
    Body,
    Decorators,
    OnceRun,
    can_pass,
    describing,
    for_adopting,
    log_spent,
)
from aiolock.naming import describe_each, describer, formatter
from aiolock.options import LockOptions, OnLost, Seconds, SemaphoreOptions
from aiolock.sync import Lease, Lock, LockClient, Semaphore

__all__ = ["Locks", "hand"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Locks(Decorators[LockClient, Lease]):
    """Decorators for Celery's tasks. A run that is put back is sent again, and costs no retry.

    It has the same id, and its state is ``RETRY`` meanwhile. If a task is called as a function, or
    eagerly, the lock's error is raised instead.

    The client opens when a task first needs it, in each worker process separately.
    """

    def __init__(self, client: LockClient, *, retry_after: Seconds = RETRY_AFTER) -> None:
        super().__init__(client, LockClient, "aiolock.sync.connect", retry_after=retry_after)

    def locked(
        self, name: str, **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a task so that each run of it holds a lock.

        It waits its turn for ``timeout`` seconds, 5 by default. If it does not get the lock in that
        time, if too many wait already, or if the store does not answer, the task is put back, and
        tried again after ``retry_after`` seconds. A task that loses its lock goes on, because
        nothing stops a thread, unless it calls ``current_lease().check()``; it is put back when it
        has returned. Other errors are left to Celery, and so are errors that will not pass: a
        client that was opened before the worker was forked, a store that is misconfigured
        (`StoreError`).

        A lease of this lock that was handed on with the task, by `hand`, is adopted instead. If its
        token is spent, as for a task that is tried again, the lock is acquired.

        :param name: formatted with the arguments of the task: ``"user:{user}"``, and so is
            ``share``. `ValueError` for a field that is not a parameter.
        """
        return self._holding("locked", "lock", name, self.client.lock, options)

    def limited(
        self, name: str, limit: int, **options: Unpack[SemaphoreOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a task of which ``limit`` run at a time, over all workers together.

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
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        describe, adopting = describing(make, name, options), for_adopting(options)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            lock_of = describer(
                *(describe, name, function, decorator),
                share=options.get("share"),
                is_async=False,
            )
            innermost = not is_marked(function)

            @functools.wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                def hold(body: Body) -> R:
                    lock = lock_of(*args, **kwargs)
                    carrier = _headers()
                    token = self._token_of(carrier, kind, lock.name, innermost=innermost)
                    held: AbstractContextManager[Lease] = lock
                    if token is not None:
                        held = self._adopted(token, carrier, lock, adopting)
                    with held as lease, body.under(lease):
                        return function(*args, **kwargs)

                return self._or_put_back(hold)

            return marked(call)

        return decorate

    def _token_of(
        self, carrier: Carrier, kind: str, name: str, *, innermost: bool
    ) -> LeaseToken | None:
        token = any_token_in(carrier)
        if token is None or (token.kind, token.name) == (kind, name):
            return token
        if not innermost:
            return None
        with contextlib.suppress(LockError, ValueError):
            self.client.discard(token)
        raise of_another_lock(token, kind, name)

    @contextlib.contextmanager
    def _adopted(
        self,
        token: LeaseToken,
        carrier: Carrier,
        lock: AbstractContextManager[Lease],
        options: AdoptOptions,
    ) -> Generator[Lease, None, None]:
        """The lease that was handed on, or if its token is spent, one of the lock."""
        with ExitStack() as stack:
            held: Lease | None
            try:
                held = stack.enter_context(self.client.adopt(token, **options))
            except TokenSpent as error:
                log_spent(error)
                held = None
            carrier.pop(HANDED, None)  # a later run would find it spent
            if held is None:
                held = stack.enter_context(lock)
            yield held

    def adopted(
        self,
        *,
        ttl: Seconds | None = None,
        max_hold: Seconds | None = None,
        on_lost: OnLost = "cancel",
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a task that runs only under a lease that is handed on with it, by `hand`.

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

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            formatter("x", function, "adopted", is_async=False)
            if is_marked(function):
                raise TypeError("adopted() must be the innermost of the decorators of a task")

            @functools.wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                def hold(body: Body) -> R:
                    carrier = _headers()
                    token = any_token_in(carrier)
                    if token is None:
                        raise came_without(function)
                    with self.client.adopt(token, **options) as lease:
                        del carrier[HANDED]
                        with body.under(lease):
                            return function(*args, **kwargs)

                return self._or_put_back(hold)

            return marked(call)

        return decorate

    def once(
        self,
        name: str,
        *,
        remember: Seconds,
        timeout: Seconds | None = PATIENCE,
        ttl: Seconds | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R | None]]:
        """Decorate a task that is done once for each ``name``, however often it is sent.

        When it has returned, the store remembers that and its result. Further runs return the same
        at once: as JSON gives it back, or None if JSON cannot hold it in 65,536 characters (that is
        logged). A run that comes while it is being done waits for ``timeout`` seconds, and is then
        put back, as by `locked`. If it raises or its worker dies, nothing is remembered: the next
        run does it.

        What has returned is never put back. If the lease was lost meanwhile, or the store does not
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

        def decorate(function: Callable[P, R]) -> Callable[P, R | None]:
            naming_of = formatter(name, function, "once", is_async=False)
            innermost = not is_marked(function)

            @functools.wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
                def do(body: Body) -> R | None:
                    asked = naming_of(*args, **kwargs)
                    carrier = _headers()
                    token = self._token_of(carrier, "once", asked, innermost=innermost)
                    once = OnceRun[R](asked)

                    def work(lease: Lease) -> str:
                        if token is not None:
                            carrier.pop(HANDED, None)
                        with body.under(lease):
                            returned = function(*args, **kwargs)
                        return once.keep(returned)

                    try:
                        return once.result(describe(asked).outcome(work, token=token))
                    except NOT_REMEMBERED as error:
                        return once.result_despite(error)

                return self._or_put_back(do)

            return marked(call)

        return decorate

    def _or_put_back(self, run: Callable[[Body], T]) -> T:
        body = Body(self._current)
        try:
            return run(body)
        except PUT_BACK as error:
            if body.has_raised(error) or not can_pass(error):
                raise
            put_back = self._put_back(error)
            self._put_back_log.add(error, put_back)
            raise put_back from error

    def _put_back(self, error: LockError) -> Exception:
        task: Any = current_task
        request = task.request if task else None
        if request is None or request.called_directly or request.is_eager:
            return error
        # As Task.retry() does, except that it would count a retry.
        again = task.signature_from_request(
            request, countdown=self.retry_after, retries=request.retries
        )
        again.apply_async()
        when = datetime.now(UTC) + timedelta(seconds=self.retry_after)
        return Retry(exc=error, when=when, sig=again)


def _headers() -> Carrier:
    """The headers of the message of the running task."""
    task: Any = current_task
    headers: Carrier | None = task.request.headers if task else None
    return {} if headers is None else headers


@overload
def hand(
    lease: Lease,
    task: Task[..., Any] | Signature[Any],
    *args: Any,
    ttl: Seconds = 60.0,
    label: str | None = None,
    **kwargs: Any,
) -> AsyncResult[Any]: ...


@overload
def hand(
    lease: aiolock.Lease,
    task: Task[..., Any] | Signature[Any],
    *args: Any,
    ttl: Seconds = 60.0,
    label: str | None = None,
    **kwargs: Any,
) -> Awaitable[AsyncResult[Any]]: ...


def hand(
    lease: Lease | aiolock.Lease,
    task: Task[..., Any] | Signature[Any],
    *args: Any,
    ttl: Seconds = 60.0,
    label: str | None = None,
    **kwargs: Any,
) -> AsyncResult[Any] | Awaitable[AsyncResult[Any]]:
    """Send a task, and hand a lease on to it: nobody else gets the lock in between.

    ::

        with client.lock("order:42") as lease:
            hand(lease, pack, 42)

        async with client.lock("order:42") as lease:  # of aiolock.connect(), as in a web handler
            await hand(lease, pack, 42)

    The lease ends here when this is called, as by `Lease.detach`, whose errors are those of this.
    The task adopts it, by its `Locks.locked` (or another decorator) of the same lock, or by
    `Locks.adopted`. If the task cannot be sent, that error is raised, and the lock is released. For
    an async program it is sent in a thread: if it is cancelled meanwhile, the task may be sent
    without the lease.

    The token is in the header ``aiolock_lease`` of the message, and a secret: Celery logs it only
    for a message that the worker cannot read, or a task that it does not know.

    :param task: the task, or a signature, as ``pack.s().set(countdown=1)``. `TypeError` for a task
        that has none of the decorators.
    :param ttl: seconds until the lock is free if no worker has begun the task.
    :param label: shown in a status until then; the name of the task, if None.
    """
    if isinstance(task, Task):
        check_adopts(task.name, task.run)
        signature: Any = task.signature(args, kwargs)
    else:
        signature = task.clone(args, kwargs)
    name: str = signature.task
    given: dict[str, Any] = signature.options.get("headers") or {}

    def send(token: LeaseToken) -> AsyncResult[Any]:
        sent: AsyncResult[Any] = signature.apply_async(headers={**given, HANDED: token})
        return sent

    if isinstance(lease, aiolock.Lease):
        return hand_by(lease, name, lambda token: to_thread(send, token), ttl=ttl, label=label)
    with lease.handing_on(ttl=ttl, label=label or label_for(name)) as token:
        return send(token)
