"""The tasks in Celery, for a worker of its own: ``celery -A tests.support.taskapps.celery``.

They note what they do in the list ``{prefix}:log``, and wait for something in ``{prefix}:go:{n}``.
"""

from __future__ import annotations

import json
import os
from typing import Any

import redis
from celery import Celery

import aiolock.sync
from aiolock.integrations.celery import Locks

URL = os.environ.get("AIOLOCK_TEST_URL", "memory://")
PREFIX = os.environ.get("AIOLOCK_TEST_PREFIX", "test")

app = Celery("tests", broker=URL, backend=URL)
app.conf.update(
    task_default_queue=f"{PREFIX}:celery",
    result_backend_transport_options={"global_keyprefix": f"{PREFIX}:"},
    broker_connection_retry_on_startup=False,
    worker_timer_precision=0.1,
)
client = aiolock.sync.connect(URL, prefix=PREFIX)
locks = Locks(client, retry_after=0.2)
if os.environ.get("AIOLOCK_TEST_USED_AT_IMPORT"):
    client.names()  # by the parent, before it forks


def note(what: str, number: int) -> str:
    """Note that a task is run, and its lock; come back with what it is told."""
    with redis.Redis.from_url(URL) as server:
        fence = locks.current_lease().fence
        server.rpush(f"{PREFIX}:log", json.dumps([what, number, fence, os.getpid()]))
        told: Any = server.blpop([f"{PREFIX}:go:{number}"], timeout=30)
        return bytes(told[1]).decode()


@app.task(bind=True, max_retries=0)
@locks.locked("user:{user}", timeout=0.05)
def welcome(self: Any, user: int) -> int:
    """It says how often it was tried again."""
    note("welcome", user)
    return int(self.request.retries)


@app.task
@locks.once("payment:{order}", remember=60, timeout=0.05)
def pay(order: int) -> str:
    """Once."""
    note("pay", order)
    return f"paid {order}"


@app.task(max_retries=0)
@locks.limited("partner api", 1, timeout=0.05)
def call(number: int) -> None:
    """One at a time."""
    note("call", number)


@app.task
@locks.locked("export:{number}", timeout=0.05)
def export(number: int) -> int:
    """Asks whether it still has its lock."""
    while note("export", number) != "end":
        assert locks.current_lease().lost.wait(30)
        locks.current_lease().check()
    return number


@app.task
@locks.adopted()
def pack(order: int) -> str:
    """Under whatever lease is handed on to it."""
    assert note("pack", order) == "end"
    return locks.current_lease().name


@app.task
@locks.locked("user:{user}", timeout=0.05)
def fails(user: int) -> None:
    """It fails, by an error of another lock."""
    raise aiolock.AcquireTimeout("of its own")
