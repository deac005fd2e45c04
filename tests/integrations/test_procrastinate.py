"""procrastinate: what the others have not."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from procrastinate import App, RetryStrategy
from procrastinate.exceptions import AlreadyEnqueued
from procrastinate.jobs import Job
from procrastinate.testing import InMemoryConnector

import aiolock
from aiolock.integrations._tasks import TryAgain
from aiolock.integrations.procrastinate import Locks, hand
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore


@pytest.mark.parametrize("own", [0, 3, RetryStrategy(max_attempts=3)])
def test_retry_repeats_try_again_always_and_other_errors_by_its_strategy(
    own: int | RetryStrategy,
) -> None:
    """What is put back comes again as often as it takes; all else is up to one's own strategy."""
    retry = Locks(aiolock.connect("memory://"), retry_after=7).retry(own)
    for attempts, again in ((0, own != 0), (2, own != 0), (3, False), (99, False)):
        job = Job(
            id=1,
            queue="default",
            lock=None,
            queueing_lock=None,
            task_name="welcome",
            attempts=attempts,
        )
        decision = retry.get_retry_decision(exception=TryAgain(), job=job)
        assert decision is not None
        assert decision.retry_at is not None
        assert 6 < (decision.retry_at - datetime.now(UTC)).total_seconds() <= 7
        assert (retry.get_retry_decision(exception=ValueError(), job=job) is not None) == again


async def test_locked_job_whose_client_cannot_open_is_put_back_and_run() -> None:
    """The job that would open it is put back, and one after it opens it."""
    store = FaultyStore(MemoryStore(MemoryServer()))
    locks = Locks(aiolock.connect(store), retry_after=0)
    app = App(connector=InMemoryConnector())
    begun = list[int]()

    @app.task(name="welcome", retry=locks.retry())
    @locks.locked("user:{user}")
    async def welcome(user: int) -> None:
        begun.append(user)

    store.refuse("open")
    async with app.open_async():
        await welcome.defer_async(user=7)
        await app.run_worker_async(wait=False, install_signal_handlers=False, listen_notify=False)
    assert begun == [7]
    assert store.calls["open"] == 2
    await locks.client.aclose()


async def test_hand_of_a_job_that_is_not_deferred_releases_the_lock() -> None:
    """Because such a job waits already; and one of a task that would not adopt it is refused."""
    app = App(connector=InMemoryConnector())
    async with aiolock.connect("memory://") as client, app.open_async():
        locks = Locks(client)

        @app.task(name="bare")
        async def bare() -> None: ...

        @app.task(name="welcome", queueing_lock="welcome")
        @locks.locked("user:{user}", timeout=0)
        async def welcome(user: int) -> None: ...

        async with client.lock("user:7") as lease:
            with pytest.raises(TypeError, match="task bare adopts no lease"):
                await hand(lease, bare)
            assert await hand(lease, welcome, user=7)
        async with client.lock("user:8") as lease:
            with pytest.raises(AlreadyEnqueued):
                await hand(lease, welcome, user=8)
        async with client.lock("user:8", timeout=10):
            assert await client.lock("user:7").locked()
        await app.run_worker_async(wait=False, install_signal_handlers=False, listen_notify=False)
        assert await client.snapshot() == []
