"""Celery: real workers, of processes and of threads."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult
from kombu import pools
from kombu.exceptions import EncodeError

import aiolock
import aiolock.sync
from aiolock.integrations.celery import Locks, hand
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.failures import queued, take, until
from tests.support.servers import RedisServer


class Worker:
    """A worker, and who sends it tasks."""

    def __init__(self, server: RedisServer, pool: str, *, used_at_import: bool = False) -> None:
        self.prefix = f"test-{uuid.uuid4().hex[:12]}"
        self.server = server
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "tests.support.taskapps.celery", "worker"),
                *("--pool", pool, "--concurrency", "3", "--loglevel", "WARNING"),
                *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            ],
            env=os.environ
            | {"AIOLOCK_TEST_URL": server.url, "AIOLOCK_TEST_PREFIX": self.prefix}
            | {"PYTHONPATH": os.pathsep.join(sys.path)}
            | ({"AIOLOCK_TEST_USED_AT_IMPORT": "1"} if used_at_import else {}),
        )
        self.app = Celery("tests", broker=server.url, backend=server.url)
        self.app.conf.update(
            task_default_queue=f"{self.prefix}:celery",
            result_backend_transport_options={"global_keyprefix": f"{self.prefix}:"},
        )

    def send(self, task: str, number: int) -> AsyncResult[Any]:
        """Send a task."""
        return self.app.send_task(f"tests.support.taskapps.celery.{task}", [number])

    def signature(self, task: str) -> Any:
        """What is sent to run this task."""
        return self.app.signature(f"tests.support.taskapps.celery.{task}")

    async def done(self, sent: AsyncResult[Any]) -> Any:
        """Wait until it is done; its result."""
        await until(sent.ready, within=60)
        return sent.get(disable_sync_subtasks=False)

    def go(self, number: int, told: str = "end") -> None:
        """Let the next run go on that waits under this number."""
        self.server.call("RPUSH", f"{self.prefix}:go:{number}", told)

    def runs(self, number: int) -> list[list[Any]]:
        """The runs there were under this number."""
        log = self.server.call("LRANGE", f"{self.prefix}:log", 0, -1)
        return [run for run in map(json.loads, log) if run[1] == number]

    def end(self) -> None:
        """End it in peace."""
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(30) == 0
        # Else connections stay open, and another test of this process counts them.
        backend: Any = self.app.backend
        backend.result_consumer.stop()
        backend.client.connection_pool.disconnect()
        self.app.close()
        pools.reset()


@pytest.fixture(scope="module", params=["prefork", "threads"])
def worker(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[Worker]:
    """One worker for all tests, of each kind."""
    worker = Worker(redis_server, request.param)
    yield worker
    worker.end()


@pytest.fixture
async def others(worker: Worker) -> AsyncGenerator[aiolock.LockClient]:
    """Somebody else."""
    async with aiolock.connect(worker.server.url, prefix=worker.prefix) as client:
        yield client
        assert await client.snapshot() == []


async def test_locked_task_whose_lock_is_held_is_put_back_without_costing_a_retry(
    worker: Worker, others: aiolock.LockClient
) -> None:
    """A task whose lock is held is put back, as often as it takes, and that costs no retry."""
    lease = await take(others.lock("user:1"))
    sent = worker.send("welcome", 1)
    for _ in range(3):
        await queued(others.lock("user:1"), 1)
        await queued(others.lock("user:1"), 0)
    assert not worker.runs(1)
    await lease.release()
    worker.go(1)
    assert await worker.done(sent) == 0
    ((_, _, fence, _),) = worker.runs(1)
    assert fence > lease.fence


async def test_locked_task_with_a_client_used_before_the_fork_fails(
    redis_server: RedisServer,
) -> None:
    """They do not go round and round: each fails, and says what the program does wrong."""
    worker = Worker(redis_server, "prefork", used_at_import=True)
    try:
        sent = worker.send("welcome", 1)
        await until(sent.ready, within=60)
        assert sent.state == "FAILURE"
        assert "is a fork: connect() again in each process" in str(sent.result)
    finally:
        worker.end()


async def test_once_task_sent_twice_runs_once_and_both_have_its_result(
    worker: Worker, others: aiolock.LockClient
) -> None:
    """What is sent twice is done once; both have the result of that."""
    sent = [worker.send("pay", 2), worker.send("pay", 2)]
    await until(lambda: worker.runs(2), within=60)
    worker.go(2)
    assert [await worker.done(each) for each in sent] == ["paid 2", "paid 2"]
    assert len(worker.runs(2)) == 1


async def test_semaphore_task_beyond_the_limit_begins_when_one_has_ended(
    worker: Worker, others: aiolock.LockClient
) -> None:
    """The next one begins when the one before has ended, while the worker has places."""
    sent = [worker.send("call", 3) for _ in range(2)]
    for number in (1, 2):
        await until(lambda number=number: len(worker.runs(3)) >= number, within=60)  # type: ignore[misc]  # mypy knows no such lambda
        assert len(await others.snapshot(kind="semaphore")) == 1
        assert len(worker.runs(3)) == number
        worker.go(3)
    for each in sent:
        await worker.done(each)


async def test_locked_task_that_loses_its_lock_is_put_back_and_run_again(
    worker: Worker, others: aiolock.LockClient
) -> None:
    """A task that finds that its lock is lost is put back, and run again."""
    sent = worker.send("export", 4)
    await until(lambda: worker.runs(4), within=60)
    worker.go(4, "go on")
    assert await others.lock("export:4").break_()
    await until(lambda: len(worker.runs(4)) == 2, within=60)
    worker.go(4)
    assert await worker.done(sent) == 4


async def test_handed_lease_is_adopted_by_the_task_before_any_waiter(
    worker: Worker, others: aiolock.LockClient
) -> None:
    """As of an async program; the lease that it loses is followed by one that it acquires."""
    async with others.lock("export:6") as lease:
        waiting = asyncio.create_task(take(others.lock("export:6")))
        await queued(others.lock("export:6"), 1)
        sent = await hand(lease, worker.signature("export"), 6)
    await until(lambda: worker.runs(6), within=60)
    (adopted,) = (await others.lock("export:6").status()).holders
    assert worker.runs(6)[0][2] == adopted.fence > lease.fence
    assert not waiting.done()
    worker.go(6, "go on")
    assert await others.lock("export:6").break_(adopted.fence)
    await (await waiting).release()
    await until(lambda: len(worker.runs(6)) == 2, within=60)
    worker.go(6)
    assert await worker.done(sent) == 6


async def test_handed_once_is_done_by_the_task_and_remembered_with_its_result(
    worker: Worker, others: aiolock.LockClient
) -> None:
    """A task that is sent afterwards has the result of the one that the work was handed to."""
    async with others.once("payment:7", remember=60) as lease:
        assert lease is not None
        sent = await hand(lease, worker.signature("pay"), 7)
    worker.go(7)
    assert await worker.done(sent) == "paid 7"
    assert await worker.done(worker.send("pay", 7)) == "paid 7"
    assert len(worker.runs(7)) == 1


async def test_adopted_task_runs_once_with_its_lease_and_fails_without_one(
    worker: Worker, others: aiolock.LockClient
) -> None:
    """A thread hands a lease on; without a lease, or with a spent token, the task fails."""

    def send(order: int, *, spoil: bool) -> AsyncResult[Any]:
        with aiolock.sync.connect(worker.server.url, prefix=worker.prefix) as client:
            with client.lock(f"order:{order}") as lease:
                sent = hand(lease, worker.signature("pack").set(countdown=0.5 * spoil), order)
            if spoil:
                assert client.lock(f"order:{order}").break_()
            return sent

    sent = await asyncio.to_thread(send, 8, spoil=False)
    worker.go(8)
    assert await worker.done(sent) == "order:8"
    assert not await others.lock("order:8").locked()
    with pytest.raises(aiolock.NotHeld, match="sent without one"):
        await worker.done(worker.send("pack", 8))
    with pytest.raises(aiolock.TokenSpent):
        await worker.done(await asyncio.to_thread(send, 9, spoil=True))


def test_hand_that_cannot_send_its_task_releases_the_lock() -> None:
    """For a thread, and for an async program; a task without a decorator is refused before."""
    server = MemoryServer()
    locks = Locks(aiolock.sync.connect(server))
    app = Celery("tests", broker="memory://")

    @app.task
    def bare() -> None: ...

    @app.task
    @locks.locked("user:{user}")
    def welcome(user: int) -> None: ...

    async def hand_in_task() -> None:
        async with aiolock.connect(server) as client, client.lock("user:7") as lease:
            with pytest.raises(EncodeError):
                await hand(lease, welcome.s(), object())

    with locks.client as client:
        with client.lock("user:7") as lease:
            with pytest.raises(TypeError, match=r"bare adopts no lease"):
                hand(lease, bare)
            with pytest.raises(EncodeError):
                hand(lease, welcome, object())
        with client.lock("user:7", timeout=10):
            pass
        asyncio.run(hand_in_task())
        with client.lock("user:7", timeout=10):
            pass
    app.close()


def test_task_with_the_token_of_another_lock_fails_and_frees_that() -> None:
    """Eagerly, too: the header is that of the run."""
    locks = Locks(aiolock.sync.connect("memory://"))
    app = Celery("tests", broker="memory://", task_always_eager=True)

    @app.task
    @locks.limited("partner", 2)
    @locks.locked("user:{user}", timeout=0)
    def welcome(user: int) -> int:
        return locks.current_lease().fence

    with locks.client as client:
        with client.lock("user:7") as lease:
            sent = hand(lease, welcome, 7)
            assert sent.get() > lease.fence
        with client.semaphore("partner", 2) as lease:
            assert hand(lease, welcome, 7).get()
        with client.lock("user:8") as lease:
            sent = hand(lease, welcome, 7)
        with pytest.raises(ValueError, match="lease of the lock 'user:8'"):
            sent.get()
        assert client.names() == []
    app.close()


async def test_locked_task_that_raises_an_error_of_its_own_fails_with_it(
    worker: Worker, others: aiolock.LockClient
) -> None:
    """A task that raises has failed, as ever, whatever it raises."""
    with pytest.raises(aiolock.AcquireTimeout, match="of its own"):
        await worker.done(worker.send("fails", 5))


def test_name_of_a_run_is_formatted_once() -> None:
    """The name that is compared with that of a token is the name that is acquired."""
    locks = Locks(aiolock.sync.connect("memory://"))
    numbers = itertools.count(1)

    class Counted:
        def __str__(self) -> str:
            return str(next(numbers))

    @locks.locked("user:{user}")
    def welcome(user: Counted) -> str:
        return locks.current_lease().name

    with locks.client:
        assert welcome(Counted()) == "user:1"


def test_locked_task_called_without_a_worker_raises_acquire_timeout() -> None:
    """Called as a function, or eagerly, the lock's error comes out."""
    others = aiolock.sync.connect("memory://")
    locks = Locks(aiolock.sync.connect("memory://"))
    app = Celery("tests", broker="memory://")

    @app.task
    @locks.locked("user:{user}", timeout=0)
    def welcome(user: int) -> int:
        return user

    with others, locks.client:
        assert welcome(7) == 7
        assert welcome.apply((7,)).get() == 7
        with others.lock("user:7"):
            with pytest.raises(aiolock.AcquireTimeout):
                welcome(7)
            with pytest.raises(aiolock.AcquireTimeout):
                welcome.apply((7,)).get()
    app.close()


@pytest.mark.parametrize("ends", ["post", "finish", "lost"])
def test_once_task_done_before_the_store_fails_returns_its_result_and_warns(
    ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What has returned is not put back, if the store then fails, or the lease was lost."""
    server = MemoryServer()
    store = FaultyStore(MemoryStore(server))
    others = aiolock.sync.connect(server)
    locks = Locks(aiolock.sync.connect(store, ttl=1))

    @locks.once("payment:{order}", remember=60)
    def pay(order: int) -> str:
        if ends == "lost":
            assert others.once("payment:7", remember=60).break_()
        else:
            store.refuse("post" if ends == "post" else "finish", math.inf)
        return "paid"

    with others, locks.client:
        assert pay(7) == "paid"
    assert "'payment:7' is done, but the store may not remember that" in caplog.text


def test_locks_used_in_a_wrong_way_raises_type_or_runtime_error() -> None:
    """The texts say what it takes."""
    with pytest.raises(TypeError, match=r"what aiolock.sync.connect\(\) gives"):
        Locks(aiolock.connect("memory://"))  # type: ignore[arg-type]  # that is the test
    locks = Locks(aiolock.sync.connect("memory://"))
    with pytest.raises(RuntimeError, match="no lease here"):
        locks.current_lease()

    async def task() -> None:
        """It is no function for threads."""

    with pytest.raises(TypeError, match="not async"):
        locks.locked("x")(task)
