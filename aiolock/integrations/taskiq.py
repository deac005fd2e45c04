"""Locks in taskiq: `Locks` is a middleware, which also has the decorators.

::

    locks = Locks(aiolock.connect("redis://localhost:6379/0"))
    broker = RedisStreamBroker("redis://localhost:6379/0").with_middlewares(locks)


    @broker.task
    @locks.locked("user:{user}")
    async def welcome(user: int) -> None: ...

`hand` sends a task with a lease, which its worker adopts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextvars import ContextVar
from copy import copy
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from taskiq import (
    AsyncBroker,
    AsyncTaskiqDecoratedTask,
    AsyncTaskiqTask,
    ScheduleSource,
    TaskiqMessage,
    TaskiqMiddleware,
    TaskiqResult,
)
from taskiq.exceptions import NoResultError
from taskiq.kicker import AsyncKicker

from aiolock import Lease, LeaseToken, LockClient, LockError
from aiolock.integrations._handing import HANDED, Carrier, check_adopts, hand_by
from aiolock.integrations._tasks import RETRY_AFTER, TaskLocks
from aiolock.options import Seconds

__all__ = ["Locks", "hand"]
_messages: Final = ContextVar[tuple[TaskiqMessage, ...]]("aiolock.taskiq", default=())
"""The messages that this asyncio task carries out; a broker in memory may nest them."""

_DUE: Final = "aiolock_due"
"""The label of a task that was put back: the Unix time from which it may be tried again."""


class Locks(TaskLocks, TaskiqMiddleware):
    """A middleware that opens the client with the broker and closes it with it; and decorators.

    A task that is put back is sent again, with the same id, and its result is that of the run that
    gets its lock. That does not count as a retry. It is tried again after ``retry_after`` seconds:
    a broker that knows the label ``delay`` keeps it for so long. Other brokers deliver it at once,
    and then the worker lets it wait, as one of the tasks that it carries out. With a
    ``schedule_source``, which taskiq's scheduler watches, it waits there.
    """

    def __init__(
        self,
        client: LockClient,
        *,
        retry_after: Seconds = RETRY_AFTER,
        schedule_source: ScheduleSource | None = None,
    ) -> None:
        TaskiqMiddleware.__init__(self)
        TaskLocks.__init__(
            self,
            client,
            retry_after=retry_after,
            put_back=self._send_again,
            carrier=_labels,
            opened_by="`broker.with_middlewares(locks)`",
        )
        if schedule_source is not None and not isinstance(schedule_source, ScheduleSource):
            raise TypeError(f"schedule_source must be a ScheduleSource, not {schedule_source!r}")
        self._schedule_source = schedule_source

    async def startup(self) -> None:
        """Open the client: with the broker. `StoreError` ends the start."""
        await self.client.open()

    async def shutdown(self) -> None:
        """Close the client: with the broker. Tasks that still wait are put back."""
        await self.client.aclose()

    async def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """Note the message that is carried out, once it is due."""
        # By the wall clocks of two machines: if they differ, the pause is shorter or none.
        early = float(message.labels.pop(_DUE, 0.0)) - time.time()
        if early > 0:
            await asyncio.sleep(min(early, self.retry_after))
        _messages.set((*_messages.get(), message))
        return message

    def post_execute(self, message: TaskiqMessage, result: TaskiqResult[Any]) -> None:
        """The message has been carried out."""
        _messages.set(_messages.get()[:-1])

    async def _send_again(self, error: LockError, _: Sequence[Any]) -> BaseException:
        messages = _messages.get()
        if not messages:
            return error
        message = messages[-1]
        broker: AsyncBroker = self.broker
        kicker = AsyncKicker[..., Any](message.task_name, broker, dict(message.labels))
        kicker = kicker.with_task_id(message.task_id)
        if self._schedule_source is None:
            due = time.time() + self.retry_after
            kicker = kicker.with_labels(**{"delay": self.retry_after, _DUE: due})
            await kicker.kiq(*message.args, **message.kwargs)
        else:
            when = datetime.now(UTC) + timedelta(seconds=self.retry_after)
            await kicker.schedule_by_time(
                self._schedule_source, when, *message.args, **message.kwargs
            )
        return NoResultError()


def _labels(_: Sequence[Any], __: dict[str, Any]) -> Carrier:
    messages = _messages.get()
    return messages[-1].labels if messages else {}


async def hand(
    lease: Lease,
    task: AsyncTaskiqDecoratedTask[..., Any] | AsyncKicker[..., Any],
    *args: Any,
    ttl: Seconds = 60.0,
    label: str | None = None,
    **kwargs: Any,
) -> AsyncTaskiqTask[Any]:
    """Send a task, and hand a lease on to it: nobody else gets the lock in between.

    ::

        async with client.lock("order:42") as lease:
            await hand(lease, pack, 42)

    The lease ends here when this is called, as by `Lease.detach`, whose errors are those of this.
    The task adopts it, by its `Locks.locked` (or another decorator) of the same lock, or by
    `Locks.adopted`. If the task cannot be sent, that error is raised, and the lock is released. The
    token is in the label ``aiolock_lease`` of the message: it is a secret.

    :param task: the task, or its ``kicker()`` with further labels. `TypeError` for a task that has
        none of the decorators.
    :param ttl: seconds until the lock is free if no worker has begun the task.
    :param label: shown in a status until then; the name of the task, if None.
    """
    if isinstance(task, AsyncTaskiqDecoratedTask):
        check_adopts(task.task_name, task.original_func)
        kicker = task.kicker()
    else:
        kicker = task

    async def send(token: LeaseToken) -> AsyncTaskiqTask[Any]:
        sent = copy(kicker)  # it may be used again: its other messages are to have no token
        sent.labels = {**kicker.labels, HANDED: token}
        return await sent.kiq(*args, **kwargs)

    return await hand_by(lease, kicker.task_name, send, ttl=ttl, label=label)
