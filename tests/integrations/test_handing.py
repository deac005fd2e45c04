"""Leases handed on with tasks: the common part, in a framework of two lines."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import httpx
import pytest
from fastapi import FastAPI
from taskiq import InMemoryBroker

import aiolock
from aiolock import Lease
from aiolock.integrations import fastapi, taskiq
from aiolock.integrations._handing import HANDED, check_adopts, hand_by
from aiolock.integrations._tasks import TaskLocks, TryAgain
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.cancel import KINDS, Kind, cancel_everywhere
from tests.support.failures import take, until


class Locks(TaskLocks):
    """A framework that has the token of a task in its arguments, or in a dict of the message."""

    def __init__(self, client: aiolock.LockClient, labels: dict[str, Any] | None = None) -> None:
        if labels is None:
            super().__init__(client, put_back=self._note)
        else:
            super().__init__(client, put_back=self._note, carrier=lambda *_: labels)
        self.put_back = list[type[Exception]]()

    async def _note(self, error: aiolock.LockError, _: Sequence[Any]) -> BaseException:
        self.put_back.append(type(error))
        return TryAgain(str(error))


@pytest.fixture
def memory() -> MemoryServer:
    """The server of both."""
    return MemoryServer()


@pytest.fixture
async def worker(memory: MemoryServer) -> AsyncGenerator[Locks]:
    """The client of the worker."""
    async with aiolock.connect(memory) as client:
        yield Locks(client)
        assert await client.snapshot() == []


@pytest.fixture
async def web(memory: MemoryServer) -> AsyncGenerator[aiolock.LockClient]:
    """The client that hands leases on."""
    async with aiolock.connect(memory) as client:
        yield client


async def handed(lock: Any) -> aiolock.LeaseToken:
    """The token of a lease of this lock."""
    lease = await take(lock)
    return await lease.detach()


async def call(task: Callable[..., Any], *args: Any, token: str) -> Any:
    """Run a task with this token in its arguments."""
    return await task(*args, **{HANDED: token})


async def test_locked_task_with_a_token_of_its_lock_adopts_it_and_releases_it(
    worker: Locks, web: aiolock.LockClient
) -> None:
    """It has the lock at once, in front of who waits for it; the waiter is next."""

    @worker.locked("order:{order}", timeout=0, ttl=7)
    async def pack(order: int) -> int:
        (holder,) = (await web.lock("order:42").status()).holders
        assert 6 < holder.remaining <= 7
        return worker.current_lease().fence

    token = await handed(web.lock("order:42"))
    waiting = asyncio.create_task(take(web.lock("order:42")))
    fence = await call(pack, 42, token=token)
    next_ = await waiting
    assert token.fence < fence < next_.fence
    await next_.release()


async def test_locked_task_with_a_spent_token_acquires_its_lock(
    worker: Locks, web: aiolock.LockClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A task that is delivered twice, or after the time of the token, runs as any other."""
    caplog.set_level(logging.INFO, "aiolock.tasks")
    runs = list[int]()

    @worker.locked("order:{order}", timeout=0)
    async def pack(order: int) -> None:
        runs.append(worker.current_lease().fence)

    token = await handed(web.lock("order:42"))
    assert await web.discard(token)
    for _ in range(2):
        await call(pack, 42, token=token)
    assert len(runs) == 2
    assert "is spent" in caplog.text
    assert token not in caplog.text
    assert token._key not in caplog.text


async def test_locked_task_with_a_spent_token_whose_lock_is_held_is_put_back(
    worker: Locks, web: aiolock.LockClient
) -> None:
    """As without a token."""

    @worker.locked("order:{order}", timeout=0)
    async def pack(order: int) -> None:
        raise AssertionError

    token = await handed(web.lock("order:42"))
    assert await web.discard(token)
    async with web.lock("order:42"):
        with pytest.raises(TryAgain):
            await call(pack, 42, token=token)
    assert worker.put_back == [aiolock.AcquireTimeout]


async def test_locked_task_with_the_token_of_another_lock_fails_and_frees_that(
    worker: Locks, web: aiolock.LockClient
) -> None:
    """It would run without what its sender has handed on, and that would be nobody's for long."""

    @worker.locked("order:{order}")
    async def pack(order: int) -> None:
        raise AssertionError

    token = await handed(web.lock("order:41"))
    with pytest.raises(ValueError, match=r"lease of the lock 'order:41'.*of the lock 'order:42'"):
        await call(pack, 42, token=token)
    assert not await web.lock("order:41").locked()


async def test_stacked_decorators_with_a_token_let_the_one_with_that_lock_adopt_it(
    worker: Locks, web: aiolock.LockClient
) -> None:
    """Whether it is the inner or the outer one."""

    @worker.limited("partner", 1, timeout=0)
    @worker.locked("order:{order}", timeout=0)
    async def pack(order: int) -> int:
        assert len(await web.snapshot()) == 2
        return worker.current_lease().fence

    inner = await handed(web.lock("order:42"))
    assert await call(pack, 42, token=inner) > inner.fence
    outer = await handed(web.semaphore("partner", 1))
    assert await call(pack, 42, token=outer)
    assert await web.discard(inner) is await web.discard(outer) is False


async def test_once_task_with_a_token_of_its_work_does_it_and_keeps_the_result(
    worker: Locks, web: aiolock.LockClient
) -> None:
    """It is remembered as ever, with what it returned; a second delivery returns the same."""
    runs = list[int]()

    @worker.once("payment:{order}", remember=60, timeout=0)
    async def pay(order: int) -> str:
        runs.append(worker.current_lease().fence)
        return f"paid {order}"

    async with web.once("payment:42", remember=60) as lease:
        assert lease is not None
        token = await lease.detach()
    assert await call(pay, 42, token=token) == "paid 42"
    assert await call(pay, 42, token=token) == "paid 42"
    (fence,) = runs
    assert fence > token.fence
    async with web.once("payment:42", remember=60) as lease:
        assert lease is None


async def test_once_task_with_a_token_that_raises_leaves_the_work_to_the_next(
    worker: Locks, web: aiolock.LockClient
) -> None:
    """Nothing is remembered then."""

    @worker.once("payment:{order}", remember=60, timeout=0)
    async def pay(order: int) -> str:
        raise ArithmeticError

    async with web.once("payment:42", remember=60) as lease:
        assert lease is not None
        token = await lease.detach()
    with pytest.raises(ArithmeticError):
        await call(pay, 42, token=token)
    async with web.once("payment:42", remember=60, timeout=0) as lease:
        assert lease is not None


async def test_once_outcome_with_the_token_of_something_else_raises_value_error(
    web: aiolock.LockClient,
) -> None:
    """A lock of the same name is something else, too."""
    token = await handed(web.lock("payment:42"))

    async def work(_: aiolock.Lease) -> str:
        raise AssertionError

    with pytest.raises(ValueError, match="of something else than the once 'payment:42'"):
        await web.once("payment:42", remember=60).outcome(work, token=token)
    assert await web.discard(token)


async def test_adopted_task_runs_under_the_lease_that_is_handed_on(
    memory: MemoryServer, web: aiolock.LockClient
) -> None:
    """It has no lock of its own; the token is taken out of the message."""
    labels = dict[str, Any]()
    async with aiolock.connect(memory) as client:
        locks = Locks(client, labels)

        @locks.adopted(ttl=9)
        async def pack(order: int, *, kind: str = "") -> tuple[str, int]:
            assert HANDED not in labels
            return locks.current_lease().name, locks.current_lease().fence

        labels[HANDED] = token = await handed(web.lock("order:42"))
        name, fence = await pack(42, kind="box")
        assert (name, fence > token.fence) == ("order:42", True)
        assert not await web.lock("order:42").locked()

        labels[HANDED] = token
        with pytest.raises(aiolock.TokenSpent) as spent:
            await pack(42)
        assert spent.value.fence == token.fence
        labels.clear()
        with pytest.raises(aiolock.NotHeld, match=r"pack\(\) runs under a lease"):
            await pack(42)
        assert locks.put_back == []


async def test_adopted_task_that_loses_its_lease_is_cancelled_and_put_back(
    worker: Locks, web: aiolock.LockClient
) -> None:
    """As a task of another decorator; the next run finds its token spent."""
    begun, cancelled = asyncio.Event(), list[int]()

    @worker.adopted()
    async def pack() -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    token = await handed(web.lock("order:42"))
    running = asyncio.create_task(call(pack, token=token))
    await begun.wait()
    assert await web.lock("order:42").break_()
    with pytest.raises(TryAgain):
        await running
    assert (cancelled, worker.put_back) == ([1], [aiolock.LeaseLost])
    with pytest.raises(aiolock.TokenSpent):
        await call(pack, token=token)


async def test_locked_task_whose_store_fails_as_it_adopts_keeps_its_token(
    memory: MemoryServer, web: aiolock.LockClient
) -> None:
    """It is put back, and adopts the lease when it is tried again."""
    store, labels = FaultyStore(MemoryStore(memory)), dict[str, Any]()
    async with aiolock.connect(store) as client:
        locks = Locks(client, labels)

        @locks.locked("order:{order}", timeout=0)
        async def pack(order: int) -> int:
            return locks.current_lease().fence

        labels[HANDED] = token = await handed(web.lock("order:42"))
        store.refuse("adopt")
        with pytest.raises(TryAgain):
            await pack(42)
        assert labels == {HANDED: token}
        assert await pack(42) > token.fence
        assert labels == {}


async def test_hand_by_that_fails_or_sends_nothing_releases_the_lock(
    memory: MemoryServer, web: aiolock.LockClient
) -> None:
    """An error of the broker comes out; None does, too."""
    tokens = list[aiolock.LeaseToken]()

    async def fails(token: aiolock.LeaseToken) -> object:
        (holder,) = (await web.lock("a").status()).holders
        assert (holder.detached, holder.label) == (True, "for pack")
        tokens.append(token)
        raise OSError

    async def sends_nothing(token: aiolock.LeaseToken) -> object:
        tokens.append(token)
        return None

    async with web.lock("a") as lease:
        with pytest.raises(OSError):  # noqa: PT011  # it has no text
            await hand_by(lease, "pack", fails, ttl=60, label=None)
        assert lease.state is aiolock.LeaseState.DETACHED
    async with web.lock("b") as lease:
        assert await hand_by(lease, "pack", sends_nothing, ttl=60, label="x") is None
    await until(lambda: not memory.names())
    for token in tokens:
        with pytest.raises(aiolock.TokenSpent):
            await web.adopt(token)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decorator", ["locked", "adopted", "once"])
async def test_cancel_at_any_step_of_a_task_with_a_token_leaves_nothing(
    decorator: str, kind: Kind, worker: Locks, web: aiolock.LockClient
) -> None:
    """The lock is free, whatever step it is cancelled at: of the adoption, or of the task."""
    decorate: dict[str, Any] = {
        "locked": worker.locked("x"),
        "adopted": worker.adopted(),
        "once": worker.once("x", remember=0.01),
    }
    tokens = list[aiolock.LeaseToken]()

    async def bare() -> None:
        await asyncio.sleep(0)

    task = decorate[decorator](bare)

    async def scenario() -> None:
        await call(task, token=tokens[-1])

    async def another() -> None:
        if decorator == "once":
            async with web.once("x", remember=0.01) as lease:
                assert lease is not None
                tokens.append(await lease.detach())
        else:
            tokens.append(await handed(web.lock("x")))

    await another()
    async for _ in cancel_everywhere(scenario, [kind]):
        if await web.discard(tokens[-1]):
            assert not worker.client._engine.watchdog.holds
        async with web.lock("x", timeout=10):
            assert not worker.client._engine.watchdog.holds
        async with asyncio.timeout(30):
            while (status := await web.status("x", kind="once")).closed or status.holders:  # noqa: ASYNC110  # tells nobody
                await asyncio.sleep(0.005)
        await another()
    await web.discard(tokens[-1])
    assert len(tokens) > 3


def test_check_adopts_a_task_without_a_decorator_raises_type_error() -> None:
    """A lease that it is handed would only end."""
    locks = Locks(aiolock.connect("memory://"))

    async def bare() -> None: ...

    check_adopts("pack", locks.limited("x", 2)(bare))
    check_adopts("pack", locks.adopted()(bare))
    with pytest.raises(TypeError, match="the task pack adopts no lease"):
        check_adopts("pack", bare)
    with pytest.raises(TypeError, match="must be the innermost"):
        locks.adopted()(locks.locked("x")(bare))
    with pytest.raises(ValueError, match="ttl"):
        locks.adopted(ttl=-1)


@pytest.mark.parametrize("scope", ["request", "function"])
async def test_lease_of_a_web_handler_is_handed_on_and_its_request_ends_well(
    scope: Literal["request", "function"], memory: MemoryServer
) -> None:
    """The response is sent while the task has the lock, which the request does not release."""
    locks = taskiq.Locks(aiolock.connect(memory))
    broker = InMemoryBroker().with_middlewares(locks)
    go, fences = asyncio.Event(), list[int]()

    @broker.task("pack")
    @locks.locked("order:{order}")
    async def pack(order: int) -> None:
        fences.append(locks.current_lease().fence)
        await go.wait()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
        await broker.startup()
        yield
        await broker.shutdown()

    app = FastAPI(lifespan=lifespan)
    web = aiolock.connect(memory)
    fastapi.setup(app, web)

    @app.post("/orders/{order}/packing", status_code=202)
    async def start(
        order: int, lease: Annotated[Lease, fastapi.locked("order:{order}", scope=scope, timeout=0)]
    ) -> dict[str, str]:
        sent = await taskiq.hand(lease, pack, order)
        return {"task": sent.task_id, "fence": str(lease.fence)}

    async with app.router.lifespan_context(app):
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
        async with http:
            accepted = await http.post("/orders/42/packing")
            assert accepted.status_code == 202
            await until(lambda: fences)
            assert (await http.post("/orders/42/packing")).status_code == 409
            (holder,) = (await web.lock("order:42").status()).holders
            assert holder.fence == fences[0] > int(accepted.json()["fence"])
            go.set()
            async with web.lock("order:42", timeout=10):
                assert len(fences) == 1
