"""Many operations at once, in a store that works in a thread: what is done together, and when."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, cast

import pytest

import aiolock
from aiolock.errors import StoreError
from aiolock.protocol import (
    AskAgain,
    Deliver,
    Event,
    Form,
    ReadPosted,
    Renew,
    Renewal,
    WaiterId,
)
from aiolock.stores import _worker
from aiolock.stores._effects import Push
from aiolock.stores._operations import Part, joined
from aiolock.stores._outcomes import CarriedOut, Outcome, failed, refusal
from aiolock.stores._worker import Worker
from aiolock.stores.machine import Step
from aiolock.stores.mysql import _database as mysql_database
from tests.support.databases import MariaDBServer
from tests.support.failures import take, until

LEASES = 10_000


class Work:
    """Notes what is carried out together, and answers with its name."""

    rest = 60.0

    def __init__(self) -> None:
        self.batches: list[list[Part]] = []
        self.unreadable = set[str]()
        self.held: Callable[[int], float] = lambda _: 0.0
        self.pushes: Sequence[Push] = ()
        self.go_on = threading.Event()

    def begin(self) -> None:
        """There is nothing to open."""

    def carry_out(self, parts: Sequence[Part], _: float) -> CarriedOut:
        """As a transaction would."""
        self.batches.append([*parts])
        assert self.go_on.wait(30)
        outcomes = [
            Outcome(None, refusal("unreadable"))
            if part.name in self.unreadable
            else Outcome(part.name)
            for part in parts
        ]
        return CarriedOut(outcomes, self.pushes, held=self.held(len(parts)))

    def look_after(self) -> None:
        """Nothing is to be done."""

    def end(self) -> None:
        """Nothing is open."""

    def failure(self, error: BaseException) -> StoreError:
        """Nothing fails."""
        raise AssertionError from error


@contextlib.asynccontextmanager
async def started(work: Work, deliver: object = None) -> AsyncGenerator[Worker]:
    """A thread that is at work on something, until `Work.go_on` is set."""
    worker = Worker("test", work, cast("Deliver", deliver))
    await worker.begin()
    first = worker.submit(ReadPosted("first"))
    await until(lambda: bool(work.batches))
    yield worker
    assert first.done()
    worker.stop()
    await worker.ended()


def renewing(*names: str) -> Renew:
    """The leases of these names."""
    return Renew([Renewal(name, WaiterId("ann", 1), Form(3000), 1, 60_000) for name in names])


def renewals(count: int, *, first: int = 0) -> Renew:
    """That many, of leases of as many names."""
    return renewing(*(f"n{number}" for number in range(first, first + count)))


def is_renewal(part: Part) -> bool:
    """Whether it renews a lease."""
    return isinstance(part, Renewal)


def renew_all(worker: Worker, count: int) -> list[asyncio.Future[list[Any]]]:
    """Renew as many leases, as a client does."""
    return [
        worker.submit(renewals(min(256, count - start), first=start))
        for start in range(0, count, 256)
    ]


@pytest.mark.one_loop
async def test_renewals_many_due_at_once_are_at_most_256_in_a_transaction() -> None:
    """And each caller gets its own answers, in its order."""
    work = Work()
    async with started(work) as worker:
        asked = renew_all(worker, LEASES)
        work.go_on.set()
        answers = await asyncio.gather(*asked)
        assert [*map(len, answers)] == [256] * 39 + [16]
        assert [name for some in answers for name in some] == [f"n{n}" for n in range(LEASES)]
    assert max(map(len, work.batches)) == 256
    assert len(work.batches) == 1 + 40


@pytest.mark.one_loop
async def test_acquire_behind_many_renewals_is_in_the_next_transaction() -> None:
    """Other operations have a share of each transaction, and renewals the rest."""
    work = Work()
    async with started(work) as worker:
        asked = renew_all(worker, LEASES)
        others = [worker.submit(ReadPosted(f"other{number}")) for number in range(200)]
        work.go_on.set()
        await asyncio.gather(*asked, *others)
    kinds = [[is_renewal(each) for each in batch] for batch in work.batches[1:]]
    assert kinds[0] == [True] * 192 + [False] * 64
    assert [len(kind) - sum(kind) for kind in kinds[:5]] == [64, 64, 64, 8, 0]


@pytest.mark.one_loop
async def test_renewals_behind_many_operations_are_in_the_next_transaction() -> None:
    """A lease must not end because many tasks want other locks."""
    work = Work()
    async with started(work) as worker:
        others = [worker.submit(ReadPosted(f"other{number}")) for number in range(5000)]
        renewed = worker.submit(renewals(100))
        work.go_on.set()
        await asyncio.gather(renewed, *others)
    assert [is_renewal(each) for each in work.batches[1]] == [True] * 100 + [False] * 156


class _Names(list[str]):
    """Notes the names of events."""

    def __call__(self, event: Event) -> None:
        assert isinstance(event, AskAgain)
        self.append(event.name)


def _pushes(count: int) -> list[Push]:
    return [Push("client", AskAgain(f"n{number}")) for number in range(count)]


@pytest.mark.one_loop
async def test_answers_and_pushes_of_one_batch_are_delivered_in_parts() -> None:
    """In order, and all of them before the thread counts as ended."""
    work, inbox, parts = Work(), _Names(), list[int]()
    async with started(work, inbox) as worker:
        asked = [worker.submit(ReadPosted(f"n{number}")) for number in range(200)]
        asked[0].add_done_callback(lambda _: worker.stop())
        work.pushes = _pushes(LEASES)
        work.go_on.set()
        ended = asyncio.create_task(worker.ended())
        while not ended.done():
            before = len(inbox) + sum(each.done() for each in asked)
            await asyncio.sleep(0)
            parts.append(len(inbox) + sum(each.done() for each in asked) - before)
        assert max(parts) == 64
        assert all(each.done() for each in asked)
        assert inbox == [push.event.name for push in _pushes(LEASES)] * 2


@pytest.mark.one_loop
async def test_wait_for_loop_after_many_pushes_returns_when_all_are_delivered() -> None:
    """However many: when a file was replaced, what was held by it must be known as lost."""
    work, inbox = Work(), _Names()

    def tell() -> int:
        worker.tell(_pushes(LEASES))
        assert worker.wait_for_loop(30)
        return len(inbox)

    async with started(work, inbox) as worker:
        assert await asyncio.to_thread(tell) == LEASES
        work.go_on.set()
        await worker.submit(ReadPosted("last"))


@pytest.mark.one_loop
async def test_operations_on_one_name_are_carried_out_in_order() -> None:
    """Whether or not one of them is a renewal, and however many others there are."""
    work = Work()
    async with started(work) as worker:
        asked: list[asyncio.Future[Any]] = [*renew_all(worker, 1000)]
        asked += [worker.submit(ReadPosted(f"other{number}")) for number in range(300)]
        asked += [worker.submit(renewals(1, first=999)) for _ in range(2)]
        asked.append(worker.submit(ReadPosted("n999")))
        asked.append(worker.submit(renewing("other299")))
        work.go_on.set()
        await asyncio.gather(*asked)
    done = [each for batch in work.batches for each in batch]
    assert [is_renewal(each) for each in done if each.name == "n999"] == [True, True, True, False]
    assert [is_renewal(each) for each in done if each.name == "other299"] == [False, True]


@pytest.mark.one_loop
async def test_transactions_that_take_long_are_followed_by_smaller_ones() -> None:
    """Until they are short enough; and by larger ones again, when they are short."""
    work = Work()
    work.held = lambda count: count / 100
    async with started(work) as worker:
        asked = renew_all(worker, 1000)
        work.go_on.set()
        await asyncio.gather(*asked)
        assert [*map(len, work.batches[1:8])] == [256, 128, 64, 32, 16, 16, 16]
        work.held = lambda _: 0.0
        await worker.submit(renewals(1000))
    assert 256 in map(len, work.batches[8:])


@pytest.mark.one_loop
async def test_operations_on_one_name_are_batched_however_long_they_take() -> None:
    """A long queue is read and written once for all of them."""
    work = Work()
    work.held = lambda _: 1.0
    async with started(work) as worker:
        asked = [worker.submit(ReadPosted("crowd")) for _ in range(1024)]
        asked += [worker.submit(ReadPosted(f"n{number}")) for number in range(32)]
        work.go_on.set()
        await asyncio.gather(*asked)
    assert [*map(len, work.batches[1:])] == [256] * 4 + [16, 16]


@pytest.mark.one_loop
async def test_renewal_that_fails_leaves_the_others_their_answers() -> None:
    """It is unknown, in a call that has others; alone, it is an error."""
    work = Work()
    work.unreadable = {"n7"}
    work.go_on.set()
    async with started(work) as worker:
        assert await worker.submit(renewals(9)) == [*(f"n{n}" for n in range(7)), None, "n8"]
        with pytest.raises(StoreError, match="unreadable"):
            await worker.submit(renewals(1, first=7))


@pytest.mark.one_loop
async def test_joined_futures_give_one_answer_with_none_for_a_failure() -> None:
    """Of the store that works in the event loop: each has its own answer there, too."""
    loop = asyncio.get_running_loop()
    each: list[asyncio.Future[Any]] = [loop.create_future() for _ in range(3)]
    together = joined(each)
    each[2].set_result(True)
    each[0].set_exception(refusal("a failure"))
    each[1].set_result(False)
    assert await together == [None, False, True]
    assert await joined([]) == []
    alone: asyncio.Future[Any] = loop.create_future()
    alone.set_exception(failed(refusal("a failure"), 1)[0].failure or AssertionError())
    with pytest.raises(StoreError, match="a failure"):
        await joined([alone])


async def test_renewals_ended_by_the_server_as_slow_succeed_in_smaller_batches(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends those that say nothing for a second: their operations are done in smaller ones."""
    renew, sizes = Step.renew_one, list[int]()
    together = mysql_database.Database._together

    def is_slow(*args: Any, **kwargs: Any) -> bool:
        """As on a machine that is busy."""
        time.sleep(0.03)
        return renew(*args, **kwargs)

    def counted(self: Any, asked: Sequence[Part], **kwargs: Any) -> Any:
        sizes.append(len(asked))
        return together(self, asked, **kwargs)

    async with aiolock.connect(own_mariadb.url("app")) as client:
        leases = [await take(client.lock(f"n{number}", ttl=60)) for number in range(48)]
        holds = {hold.fence: hold for hold in client._engine.watchdog.holds.values()}
        asked = [
            Renewal(hold.policy.key, hold.waiter, hold.policy.form, hold.fence, 60_000)
            for hold in (holds[lease.fence] for lease in leases)
        ]
        monkeypatch.setattr(Step, "renew_one", is_slow)
        monkeypatch.setattr(mysql_database.Database, "_together", counted)
        assert await client._engine.store.submit(Renew(asked)) == [True] * 48
        assert sizes[0] == 48
        assert await client._engine.store.submit(Renew(asked)) == [True] * 48
        assert max(sizes[1:]) <= 24
        monkeypatch.undo()
        for lease in leases:
            assert await lease.release()


async def test_operation_ended_by_the_server_as_slow_succeeds_when_repeated(
    own_mariadb: MariaDBServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends it after a second, but not again: a process with little time is not a stopped one."""
    renew, times = Step.renew_one, 0

    def is_slow(*args: Any, **kwargs: Any) -> bool:
        """As with ten thousand waiters on a machine that is busy."""
        nonlocal times
        times += 1
        time.sleep(1.5)
        return renew(*args, **kwargs)

    async with aiolock.connect(own_mariadb.url("app")) as client:
        lease = await take(client.lock("x", ttl=60))
        monkeypatch.setattr(Step, "renew_one", is_slow)
        await lease.extend(60)
        assert times == 2
        monkeypatch.undo()
        assert await lease.release()


def test_transaction_limit_is_at_most_256_operations() -> None:
    """Other processes wait for it, and the machine may be busy."""
    assert _worker._TOGETHER <= 256
