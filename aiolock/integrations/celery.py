"""Locks in Celery: `Locks` has the decorators, for tasks in processes or in threads.

::

    locks = Locks(aiolock.sync.connect("redis://localhost:6379/0"))


    @app.task
    @locks.locked("user:{user}")
    def welcome(user: int) -> None: ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar, Unpack

from celery import current_task
from celery.exceptions import Retry

from aiolock import LockError
from aiolock.integrations._tasks import (
    NOT_REMEMBERED,
    PATIENCE,
    PUT_BACK,
    RETRY_AFTER,
    Body,
    Decorators,
    OnceRun,
    can_pass,
)
from aiolock.naming import describe_each, family_of, formatter
from aiolock.options import LockOptions, Seconds, SemaphoreOptions
from aiolock.sync import Lease, LockClient

__all__ = ["Locks"]

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

        :param name: formatted with the arguments of the task: ``"user:{user}"``. `ValueError` for
            a field that is not a parameter.
        """
        options.setdefault("timeout", PATIENCE)
        options.setdefault("family", family_of(name))
        describe = describe_each(functools.partial(self.client.lock, **options), name)
        return self._holding("locked", name, describe)

    def limited(
        self, name: str, limit: int, **options: Unpack[SemaphoreOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate a task of which ``limit`` run at a time, over all workers together.

        Each run holds a permit of the semaphore ``name``, which may have fields as in `locked`;
        waiting and putting back are as there. With ``min_hold=1`` no more than ``limit`` runs begin
        in any second.
        """
        options.setdefault("timeout", PATIENCE)
        options.setdefault("family", family_of(name))
        describe = describe_each(
            functools.partial(self.client.semaphore, limit=limit, **options), name
        )
        return self._holding("limited", name, describe)

    def _holding(
        self, decorator: str, name: str, describe: Callable[[str], AbstractContextManager[Lease]]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            naming_of = formatter(name, function, decorator, is_async=False)

            @functools.wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                def hold(body: Body) -> R:
                    with describe(naming_of(*args, **kwargs)) as lease, body.under(lease):
                        return function(*args, **kwargs)

                return self._or_put_back(hold)

            return call

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

            @functools.wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
                def do(body: Body) -> R | None:
                    asked = naming_of(*args, **kwargs)
                    once = OnceRun[R](asked)

                    def work(lease: Lease) -> str:
                        with body.under(lease):
                            returned = function(*args, **kwargs)
                        return once.keep(returned)

                    try:
                        return once.result(describe(asked).outcome(work))
                    except NOT_REMEMBERED as error:
                        return once.result_despite(error)

                return self._or_put_back(do)

            return call

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
