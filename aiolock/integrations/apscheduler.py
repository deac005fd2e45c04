"""Locks in APScheduler 3: an executor with which one of many schedulers begins each run time.

::

    client = aiolock.connect("redis://localhost:6379/0")
    scheduler = AsyncIOScheduler(executors={"default": SharedExecutor(client)})
    scheduler.add_job(clean_up, "cron", hour=3, id="clean up")
"""

# APScheduler 3 has no types, and there are no stubs of it.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUntypedBaseClass=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import re
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from typing import Any, Final

from apscheduler.executors.asyncio import (  # type: ignore[import-untyped]  # has none
    AsyncIOExecutor,
)
from apscheduler.executors.base import (  # type: ignore[import-untyped]  # has none
    run_coroutine_job,
    run_job,
)
from apscheduler.util import (  # type: ignore[import-untyped]  # has none
    iscoroutinefunction_partial,
)

from aiolock import AcquireTimeout, LockClient
from aiolock.options import Seconds

__all__ = ["SharedExecutor"]

_MADE_UP: Final = re.compile("[0-9a-f]{32}")
"""The form of an id that APScheduler generates: each process has another one."""

_log = logging.getLogger("aiolock.tasks")


class SharedExecutor(AsyncIOExecutor):  # type: ignore[misc]  # has no types
    """An executor for schedulers that all have the same jobs: each run time is begun by one.

    * The first scheduler that comes to a run time begins it; the others skip it. It begins when the
      store has confirmed that it remembers this, just before the job. So it is never begun again,
      even if the job raised, or its process died. Its process may die, or its scheduler be shut
      down, just between the two: then the job is not run at this run time.
    * A job has ``max_instances`` runs at a time, over all processes together. A run time for which
      there is no room is skipped.
    * A run that loses its lock is cancelled, if the job is an async function. Any other job runs in
      a thread, which nothing can stop: it goes on, and the loss is logged when it has ended.
    * ``scheduler.shutdown()`` waits for no run, with ``wait=True`` as with ``wait=False``. It
      cancels runs of async functions, and those that wait for a thread. A thread goes on, and its
      run holds the lock until it ends.
    * If the store cannot say whether a run time was begun, or does not confirm that it remembers
      this, it is not begun: `StoreError`, in APScheduler's log.

    Open the client before the scheduler starts, and close it after the scheduler has shut down. The
    client waits for threads that still run, until their leases end: for its ``ttl`` at most.

    The jobs need an ``id`` and run times that are the same everywhere: a ``cron`` or ``date``
    trigger, or an ``interval`` with a fixed ``start_date``; no ``jitter``. A job without an id is
    refused (`ValueError`, in APScheduler's log). Clocks may differ, by less than ``remember``.

    :param remember: seconds for which the store remembers that a run time was begun, from the
        moment in which it was.
    """

    def __init__(self, client: LockClient, *, remember: Seconds = 3600.0) -> None:
        super().__init__()
        if not isinstance(client, LockClient):
            raise TypeError(f"SharedExecutor() takes what connect() gives, not {client!r}")
        client.once("checked", remember=remember)
        self._client = client
        self._remember = remember

    def _do_submit_job(self, job: Any, run_times: Sequence[datetime]) -> None:
        if _MADE_UP.fullmatch(job.id):
            raise ValueError(f"a job of a SharedExecutor needs an id, as id={job.name!r}")

        def done(task: asyncio.Task[list[Any]]) -> None:
            self._pending_futures.discard(task)
            try:
                events = task.result()
            except BaseException:  # noqa: BLE001  # as in AsyncIOExecutor
                self._run_job_error(job.id, *sys.exc_info()[1:])
            else:
                self._run_job_success(job.id, events)

        task = self._eventloop.create_task(self._begin(job, run_times), name=f"job {job.id}")
        task.add_done_callback(done)
        self._pending_futures.add(task)

    async def _begin(self, job: Any, run_times: Sequence[datetime]) -> list[Any]:
        events = list[Any]()
        for run_time in run_times:
            name = f"{job.id} {run_time.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
            once = self._client.once(name, remember=self._remember, wait=False)
            try:
                async with self._room(job):
                    async with once as first:
                        pass  # remembered from here on, whatever becomes of the job
                    if first is not None:
                        events += await self._run(job, run_time)
                    else:
                        _log.debug("%s: begun elsewhere", name)
            except AcquireTimeout as busy:  # not the job's: its errors are in its events
                _log.debug("%s: left out: %s", name, busy)
        return events

    def _room(self, job: Any) -> AbstractAsyncContextManager[object]:
        if job.max_instances == 1:
            return self._client.lock(job.id, timeout=0)
        return self._client.semaphore(job.id, job.max_instances, timeout=0)

    async def _run(self, job: Any, run_time: datetime) -> list[Any]:
        about = (job, job._jobstore_alias, [run_time], self._logger.name)
        if iscoroutinefunction_partial(job.func):
            found: list[Any] = await run_coroutine_job(*about)
        else:
            found = await _in_a_thread(run_job, *about)
        return found


async def _in_a_thread(function: Callable[..., list[Any]], *args: object) -> list[Any]:
    """Call it in a thread. If this is cancelled, it ends when the thread has ended, not before.

    Nothing stops a thread, so what is held round this must be held as long. When a program ends,
    there are two cancellations: by the scheduler, and by the lease, which is lost when the client
    closes. What still waits for a thread then is never called, and this ends at once.
    """
    call = functools.partial(contextvars.copy_context().run, function, *args)
    first = threading.Lock()  # taken once, by the call that begins or by the cancellation

    def begin() -> list[Any]:
        return call() if first.acquire(blocking=False) else []

    # No task, as to_thread() would be: asyncio.run() cancels all tasks at its end.
    running = asyncio.get_running_loop().run_in_executor(None, begin)
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            if first.acquire(blocking=False):
                running.cancel()
                raise
            cancelled = cancelled or error
    if cancelled is not None:
        raise cancelled
    return running.result()
