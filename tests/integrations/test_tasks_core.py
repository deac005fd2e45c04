"""What the integrations of task frameworks have in common, in a framework of two lines."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

import aiolock
from aiolock.integrations import _tasks
from aiolock.integrations._tasks import TaskLocks, TryAgain
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore, Operation
from tests.support.cancel import KINDS, Kind, cancel_everywhere
from tests.support.failures import queued, take, until


class Locks(TaskLocks):
    """A framework that notes what it is to put back."""

    def __init__(self, client: aiolock.LockClient) -> None:
        super().__init__(client, put_back=self._note, interrupted=self._count)
        self.put_back = list[type[Exception]]()
        self.interrupted = 0

    async def _note(self, error: aiolock.LockError, _: Sequence[Any]) -> BaseException:
        self.put_back.append(type(error))
        return TryAgain(str(error))

    async def _count(self, _: Sequence[Any]) -> None:
        self.interrupted += 1


@pytest.fixture
def memory() -> MemoryServer:
    """Where all have their locks."""
    return MemoryServer()


@pytest.fixture
async def locks(memory: MemoryServer) -> AsyncGenerator[Locks]:
    """It, open."""
    async with aiolock.connect(memory) as client:
        yield Locks(client)


@pytest.fixture
async def others(memory: MemoryServer) -> AsyncGenerator[aiolock.LockClient]:
    """Somebody else."""
    async with aiolock.connect(memory) as client:
        yield client


async def test_task_that_is_refused_its_lock_is_put_back_with_the_error_as_cause(
    locks: Locks, others: aiolock.LockClient
) -> None:
    """Somebody has it, too many wait, it is closed; each with the lock's error as the cause."""

    @locks.locked("x", timeout=0)
    async def busy() -> None:
        raise AssertionError

    @locks.locked("x", max_waiters=1)
    async def full() -> None:
        raise AssertionError

    @locks.limited("x", 1, timeout=0)
    async def limited() -> None:
        raise AssertionError

    @locks.once("x", remember=60, timeout=0)
    async def once() -> None:
        raise AssertionError

    async with others.lock("x"), others.semaphore("x", 1), others.once("x", remember=60):
        waiting = asyncio.create_task(take(others.lock("x")))
        await queued(others.lock("x"), 1)
        for task in (busy, full, limited, once):
            with pytest.raises(TryAgain) as raised:
                await task()
            assert type(raised.value.__cause__) is locks.put_back[-1]
        waiting.cancel()
        await asyncio.wait([waiting])
        await locks.client.aclose()
        with pytest.raises(TryAgain):
            await busy()
    timeout, full_, closed = aiolock.AcquireTimeout, aiolock.QueueFull, aiolock.ClientClosed
    assert locks.put_back == [timeout, full_, timeout, timeout, closed]


async def test_task_is_put_back_after_a_store_error_and_fails_by_a_mistake() -> None:
    """A store that does not answer is a reason; a mistake of the program is none."""
    store = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(store) as client:
        locks = Locks(client)

        @locks.locked("{name}")
        async def task(name: str) -> None:
            async with client.lock(name):  # which it holds
                raise AssertionError

        store.refuse("acquire")
        with pytest.raises(TryAgain):
            await task("x")
        with pytest.raises(aiolock.WouldDeadlock):
            await task("x")
        with pytest.raises(ValueError, match="lock's name"):
            await task("")
        assert locks.put_back == [aiolock.StoreError]


async def test_task_with_an_unopened_or_foreign_client_fails(locks: Locks) -> None:
    """A client that nobody has opened here: putting back would go on for ever, unheard of."""
    never = Locks(aiolock.connect("memory://"))

    @never.locked("x")
    async def forgotten() -> None:
        raise AssertionError

    with pytest.raises(aiolock.ClientClosed, match="is not open yet") as raised:
        await forgotten()
    assert not raised.value.closed

    @locks.locked("x")
    async def task() -> None:
        raise AssertionError

    def elsewhere() -> None:
        with pytest.raises(aiolock.ClientClosed, match="another event loop"):
            asyncio.run(task())

    await asyncio.to_thread(elsewhere)
    assert not never.put_back
    assert not locks.put_back


async def test_task_fails_by_a_store_error_that_is_a_misconfiguration(
    locks: Locks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that says that it will stay so until somebody changes it."""
    error = aiolock.StoreError("another password")

    async def refuse(_: object, __: object, *, token: object) -> None:
        raise error

    monkeypatch.setattr(aiolock.Once, "outcome", refuse)

    @locks.once("x", remember=60)
    async def refused() -> None:
        raise AssertionError

    with pytest.raises(TryAgain):
        await refused()
    error.misconfigured = True
    with pytest.raises(aiolock.StoreError, match="another password"):
        await refused()
    assert locks.put_back == [aiolock.StoreError]


async def test_log_of_tasks_put_back_warns_at_first_and_then_now_and_then(
    locks: Locks,
    others: aiolock.LockClient,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So an operator hears of it, and a busy lock does not fill the log."""
    caplog.set_level(logging.INFO, "aiolock.tasks")

    @locks.locked("x", timeout=0)
    async def task() -> None:
        raise AssertionError

    async with others.lock("x"):
        for every in (60, 60, 60, 0):
            monkeypatch.setattr(_tasks, "TOLD_EVERY", every)
            with pytest.raises(TryAgain):
                await task()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "INFO", "WARNING"]
    assert "is put back: 'x'" in caplog.text or "the lock 'x'" in caplog.text
    assert "and 2 other runs" in caplog.records[-1].message


async def test_task_that_raises_an_error_of_its_own_is_not_put_back(locks: Locks) -> None:
    """What a task raises is no reason, whatever it is, and whatever it holds."""
    error = aiolock.AcquireTimeout("of another lock")

    @locks.locked("x")
    @locks.once("y", remember=60)
    @locks.limited("z", 2)
    async def task() -> None:
        raise error

    for _ in range(2):
        with pytest.raises(aiolock.AcquireTimeout) as raised:
            await task()
        assert raised.value is error
    assert not locks.put_back


@pytest.mark.parametrize(
    ("returned", "again"),
    [
        (None, None),
        ((1, "a"), [1, "a"]),
        ({"a": "\ud800"}, {"a": "\ud800"}),
        ("x" * 65_534, "x" * 65_534),
    ],
)
async def test_once_task_returns_its_kept_result_by_way_of_json(
    locks: Locks, returned: object, again: object
) -> None:
    """The first one returns what the task returned, the others the same by way of JSON."""

    @locks.once("{number}", remember=60)
    async def task(number: int) -> object:
        return returned

    assert await task(1) is returned
    assert await task(1) == again


@pytest.mark.parametrize("returned", [object(), {1j: 1}, "x" * 65_535, b"x"])
async def test_once_task_whose_result_cannot_be_kept_runs_once_and_is_logged(
    locks: Locks, returned: object, caplog: pytest.LogCaptureFixture
) -> None:
    """It is done all the same, and only once; the log says that its result is not kept."""
    runs = list[int]()

    @locks.once("{number}", remember=60)
    async def task(number: int) -> object:
        runs.append(number)
        return returned

    assert await task(1) is returned
    assert await task(1) is None
    assert runs == [1]
    (record,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert "is done" in record.message


async def test_once_task_done_by_another_program_returns_none(
    locks: Locks, others: aiolock.LockClient
) -> None:
    """What another program has done, which kept nothing, is not done again."""
    async with others.once("x", remember=60) as lease:
        assert lease is not None

    @locks.once("x", remember=60)
    async def task() -> str:
        raise AssertionError

    assert await task() is None
    assert not locks.put_back


@pytest.mark.parametrize("fault", ["refuse", "lose"])
@pytest.mark.parametrize("operation", ["post", "finish"])
async def test_once_task_done_before_the_store_fails_returns_its_result_and_warns(
    fault: str, operation: Operation, caplog: pytest.LogCaptureFixture
) -> None:
    """What has returned is not put back because the store then fails; its result comes out."""
    store = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(store, ttl=1) as client:
        locks = Locks(client)

        @locks.once("x", remember=60)
        async def task() -> str:
            getattr(store, fault)(operation, math.inf)
            return "paid"

        assert await task() == "paid"
        assert not locks.put_back
    (record,) = (record for record in caplog.records if record.name == "aiolock.tasks")
    assert record.levelno == logging.WARNING
    assert "'x' is done, but the store may not remember that" in record.message


@pytest.mark.parametrize("ends", ["lost", "lost unheard", "closed"])
async def test_once_task_done_before_a_loss_or_close_returns_its_result_and_warns(
    ends: str,
    memory: MemoryServer,
    others: aiolock.LockClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """So it is if the lease is lost, or the client closed, before the store remembers it."""
    store = FaultyStore(MemoryStore(memory))
    async with aiolock.connect(store, ttl=1) as client:
        locks = Locks(client)

        @locks.once("x", remember=60)
        async def task() -> str:
            if ends == "lost unheard":
                store.lose("push")
                assert await others.once("x", remember=60).break_()
            else:
                store.hold("post")
            return "paid"

        running = asyncio.create_task(task())
        if ends != "lost unheard":
            await until(lambda: store.calls["post"])
            if ends == "lost":
                assert await others.once("x", remember=60).break_()
            else:
                await client.aclose()
        assert await running == "paid"
        assert not running.cancelling()
        assert not locks.put_back
    assert "'x' is done, but the store may not remember that" in caplog.text


async def test_current_lease_under_stacked_decorators_is_the_innermost(locks: Locks) -> None:
    """Each has its lease, and the innermost is the task's; afterwards there is none."""

    @locks.limited("calls", 2)
    @locks.locked("user:{user}")
    async def task(user: int) -> str:
        assert len((await locks.client.status("calls", kind="semaphore")).holders) == 1
        return locks.current_lease().name

    assert await task(7) == "user:7"
    assert task.__name__ == "task"
    with pytest.raises(RuntimeError, match="no lease here"):
        locks.current_lease()


async def test_task_that_raises_the_loss_of_its_own_lock_is_put_back(
    locks: Locks, others: aiolock.LockClient
) -> None:
    """A task that raises what it has found out about its lock is put back as well."""

    @locks.locked("x", on_lost="signal")
    async def task() -> None:
        lease = locks.current_lease()
        await others.lock("x").break_()
        await lease.lost.wait()
        await lease.extend(30)

    with pytest.raises(TryAgain):
        await task()
    assert locks.put_back == [aiolock.LeaseLost]


@pytest.mark.parametrize("kind", KINDS)
async def test_cancel_at_any_step_of_a_task_leaves_nothing(
    kind: Kind, locks: Locks, others: aiolock.LockClient
) -> None:
    """Nothing is left of it; its framework is told where it had not begun."""
    begun = list[None]()

    @locks.locked("x")
    @locks.once("y", remember=0.01)
    async def task() -> None:
        begun.append(None)
        await asyncio.sleep(0)

    async def scenario() -> None:
        locks.interrupted = 0
        begun.clear()
        await task()

    async for _ in cancel_everywhere(scenario, [kind]):
        assert locks.interrupted <= (not begun)
        async with others.lock("x", timeout=10):
            assert not locks.client._engine.watchdog.holds
        async with asyncio.timeout(30):
            while (await others.status("y", kind="once")).closed:  # noqa: ASYNC110  # tells nobody
                await asyncio.sleep(0.005)


class Counted:
    """An argument that counts how often it is written."""

    def __init__(self) -> None:
        self.written = 0

    def __str__(self) -> str:
        self.written += 1
        return f"7, written {self.written}"


@pytest.mark.parametrize("decorator", ["locked", "limited", "once"])
async def test_name_of_a_run_is_formatted_once(locks: Locks, decorator: str) -> None:
    """The name that is compared with that of a token is the name that is acquired."""
    options: dict[str, Any] = {"limited": {"limit": 2}, "once": {"remember": 60}}.get(decorator, {})
    user = Counted()
    names = list[str]()

    async def task(user: Counted) -> None:
        names.append(locks.current_lease().name)

    await getattr(locks, decorator)("user:{user}", **options)(task)(user)
    assert names == ["user:7, written 1"]


def test_decorators_with_invalid_arguments_raise_type_or_value_error() -> None:
    """The texts say what is wrong, where the task is declared."""
    locks = Locks(aiolock.connect("memory://"))

    async def task(user: int) -> None:
        """A task."""

    for decorator in (locks.locked("{item}"), locks.limited("{item}", 2)):
        with pytest.raises(
            ValueError, match=r"names item, but the parameters of task\(\) are user"
        ):
            decorator(task)
    with pytest.raises(ValueError, match="names item"):
        locks.once("{item}", remember=1)(task)
    with pytest.raises(TypeError, match="async functions"):
        locks.locked("x")(lambda: None)  # type: ignore[arg-type, return-value]  # that is the test
    with pytest.raises(ValueError, match="limit"):
        locks.limited("x", 0)
    with pytest.raises(ValueError, match="timeout"):
        locks.locked("x", timeout=-1)
    with pytest.raises(ValueError, match="remember"):
        locks.once("x", remember=0)
    with pytest.raises(ValueError, match="retry_after"):
        TaskLocks(locks.client, retry_after=-1, put_back=locks._put_back)
