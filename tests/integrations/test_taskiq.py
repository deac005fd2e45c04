"""taskiq: what the others have not."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from taskiq import (
    BrokerMessage,
    InMemoryBroker,
    ScheduledTask,
    ScheduleSource,
    SimpleRetryMiddleware,
    TaskiqMessage,
    TaskiqMiddleware,
)
from taskiq.exceptions import SendTaskError

import aiolock
from aiolock.integrations.taskiq import Locks, hand
from aiolock.stores.memory import MemoryServer
from tests.support.failures import take, until


class Schedule(ScheduleSource):
    """Keeps what is to be sent later."""

    def __init__(self) -> None:
        self.tasks = list[ScheduledTask]()

    async def get_schedules(self) -> list[ScheduledTask]:
        """As taskiq's scheduler asks."""
        return self.tasks

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """As a kicker asks."""
        self.tasks.append(schedule)


async def test_locked_task_put_back_with_a_schedule_source_is_scheduled_later() -> None:
    """With a schedule, a task that is put back is in it, as it was, and due in so many seconds."""
    memory, schedule = MemoryServer(), Schedule()
    locks = Locks(aiolock.connect(memory), retry_after=7, schedule_source=schedule)
    broker = InMemoryBroker().with_middlewares(SimpleRetryMiddleware(), locks)

    @broker.task("welcome", retry_on_error=True)
    @locks.locked("user:{user}", timeout=0)
    async def welcome(user: int, *, kind: str) -> None:
        raise AssertionError

    await broker.startup()
    async with aiolock.connect(memory) as others, others.lock("user:7"):
        sent = await welcome.kiq(7, kind="warm")
        await broker.wait_all()
        with pytest.raises(aiolock.AcquireTimeout):
            await asyncio.create_task(welcome(7, kind="warm"))  # by no worker
    await broker.shutdown()
    (again,) = schedule.tasks
    assert (again.task_name, again.args, again.kwargs) == ("welcome", [7], {"kind": "warm"})
    assert again.task_id == sent.task_id
    assert str(again.labels["retry_on_error"]) == "True"
    assert "_retries" not in again.labels
    assert again.time is not None
    assert 0 < (again.time - datetime.now(UTC)).total_seconds() <= 7


async def test_hand_of_a_task_adopts_in_its_middleware_and_leaves_no_token() -> None:
    """The result, which a backend keeps, and a retry have no token, and neither has the task."""
    memory = MemoryServer()
    locks = Locks(aiolock.connect(memory))
    broker = InMemoryBroker().with_middlewares(SimpleRetryMiddleware(), locks)
    fences = list[int]()

    @broker.task("welcome", retry_on_error=True)
    @locks.locked("user:{user}", timeout=0)
    async def welcome(user: int) -> int:
        fences.append(locks.current_lease().fence)
        if len(fences) == 1:
            raise ArithmeticError
        return user

    await broker.startup()
    async with aiolock.connect(memory) as web:
        async with web.lock("user:7") as lease:
            sent = await hand(lease, welcome.kicker().with_labels(kind="warm"), 7)
        result = await sent.wait_result(timeout=60)
        assert result.return_value == 7
        assert result.labels["kind"] == "warm"
        assert not any("alk1" in str(value) for value in result.labels.values())
        assert lease.fence < fences[0] < fences[1]
        assert not await web.lock("user:7").locked()
    await broker.shutdown()


async def test_hand_by_a_kicker_leaves_no_token_in_it_for_other_messages() -> None:
    """A task that came with the token of another one would fail."""
    memory = MemoryServer()
    locks = Locks(aiolock.connect(memory))
    broker = InMemoryBroker().with_middlewares(locks)

    @broker.task("welcome")
    @locks.locked("user:{user}", timeout=0)
    async def welcome(user: int) -> int:
        return user

    await broker.startup()
    kicker = welcome.kicker().with_labels(kind="warm").with_task_id("first")
    async with aiolock.connect(memory) as web, web.lock("user:7") as lease:
        handed = await hand(lease, kicker, 7)
    other = await kicker.with_task_id("second").kiq(8)
    for sent, user in ((handed, 7), (other, 8)):
        result = await sent.wait_result(timeout=60)
        assert (result.return_value, result.labels["kind"]) == (user, "warm")
    assert (handed.task_id, other.task_id) == ("first", "second")
    await broker.shutdown()


async def test_hand_of_a_task_that_cannot_be_sent_releases_the_lock() -> None:
    """And one of a task that would not adopt it is refused, while it is held."""

    class Broken(InMemoryBroker):
        async def kick(self, message: BrokerMessage) -> None:
            raise OSError

    broker = Broken()

    @broker.task("bare")
    async def bare() -> None: ...

    async with aiolock.connect("memory://") as web:
        locks = Locks(web)

        @broker.task("welcome")
        @locks.adopted()
        async def welcome() -> None: ...

        async with web.lock("user:7") as lease:
            with pytest.raises(TypeError, match="task bare adopts no lease"):
                await hand(lease, bare)
            assert lease.state is aiolock.LeaseState.HELD
            with pytest.raises(SendTaskError):
                await hand(lease, welcome)
        async with web.lock("user:7", timeout=10):
            pass


class Kept(InMemoryBroker):
    """Keeps what is sent, instead of carrying it out."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = list[BrokerMessage]()

    async def kick(self, message: BrokerMessage) -> None:
        """As a kicker asks."""
        self.sent.append(message)


async def test_locked_task_put_back_without_a_schedule_source_has_a_delay_label() -> None:
    """Without one, it is sent with the label that some brokers know."""
    memory, broker = MemoryServer(), Kept()
    locks = Locks(aiolock.connect(memory), retry_after=7)
    broker.add_middlewares(locks)

    @broker.task("welcome")
    @locks.locked("user:{user}", timeout=0)
    async def welcome(user: int) -> None:
        raise AssertionError

    await broker.startup()
    async with aiolock.connect(memory) as others, others.lock("user:7"):
        await welcome.kiq(7)
        await broker.receiver.callback(broker.sent[0].message)
    await broker.shutdown()
    first, again = broker.sent
    assert again.task_id == first.task_id
    assert float(again.labels["delay"]) == 7.0


async def test_locked_task_delivered_too_early_waits_in_the_worker() -> None:
    """A task that comes before it is due waits in the worker: it does not go round and round."""
    memory, pause = MemoryServer(), 0.1
    locks = Locks(aiolock.connect(memory), retry_after=pause)
    broker = InMemoryBroker().with_middlewares(locks)
    runs, labels = list[float](), list[dict[str, Any]]()

    class Counts(TaskiqMiddleware):
        def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
            runs.append(time.time())
            labels.append(message.labels)
            return message

    broker.add_middlewares(Counts())  # after ours

    @broker.task("welcome")
    @locks.locked("user:{user}", timeout=0)
    async def welcome(user: int) -> str:
        return "welcome"

    await broker.startup()
    async with aiolock.connect(memory) as others:
        lease = await take(others.lock("user:7"))
        sent = await welcome.kiq(7)
        await until(lambda: len(runs) == 4)
        await lease.release()
        assert (await sent.wait_result(timeout=60)).return_value == "welcome"
    assert runs[3] - runs[0] >= 2.9 * pause
    assert not any(label.startswith("aiolock") for each in labels for label in each)
    await broker.shutdown()


async def test_shutdown_while_a_task_waits_schedules_it_again() -> None:
    """Where the broker ends first, what waits is sent again before it has gone."""
    memory, schedule = MemoryServer(), Schedule()
    locks = Locks(aiolock.connect(memory), schedule_source=schedule)
    broker = InMemoryBroker().with_middlewares(locks)

    @broker.task("welcome")
    @locks.locked("user:{user}", timeout=None)
    async def welcome(user: int) -> None:
        raise AssertionError

    await broker.startup()
    async with aiolock.connect(memory) as others:
        lease = await take(others.lock("user:7"))
        await welcome.kiq(7)
        async with asyncio.timeout(30):
            while not (await others.lock("user:7").status()).waiters:  # noqa: ASYNC110  # tells nobody
                await asyncio.sleep(0)
        await broker.shutdown()
        await until(lambda: schedule.tasks)
        await broker.wait_all()
        assert await lease.release()


def test_locks_made_with_a_wrong_argument_raises_type_error() -> None:
    """The texts say what it takes."""
    with pytest.raises(TypeError, match=r"what connect\(\) gives"):
        Locks("memory://")  # type: ignore[arg-type]  # that is the test
    with pytest.raises(TypeError, match="a ScheduleSource"):
        Locks(aiolock.connect("memory://"), schedule_source=5)  # type: ignore[arg-type]  # so is this
