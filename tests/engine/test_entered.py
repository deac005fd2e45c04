"""What is entered can be left: by any exit, in any task, and each exit ends its own lease."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import inspect
import sys
import threading
import unittest
import warnings
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import FrameType, TracebackType
from typing import Any, Protocol, runtime_checkable
from unittest import mock

import pytest

import aiolock
import aiolock.sync
from aiolock import Lease, LeaseState, LockClient, NotHeld
from aiolock import entering as entered
from aiolock._dropped import dropped_leases
from aiolock.protocol import Break
from aiolock.stores.memory import MemoryServer
from tests.support.worlds import settled, virtual
from tests.sync.test_sync import passes

Manager = AbstractAsyncContextManager[Any]
Make = Callable[[LockClient], Manager]

SHARED: dict[str, Make] = {
    "semaphore": lambda client: client.semaphore("a", 5, ttl=1),
    "reader": lambda client: client.rwlock("a", ttl=1).read(),
}
"""Several tasks, or one task, can be inside at once."""
EXCLUSIVE: dict[str, Make] = {
    "lock": lambda client: client.lock("a", ttl=1),
    "writer": lambda client: client.rwlock("a", ttl=1).write(),
    "multilock": lambda client: client.multilock("a", "b", ttl=1),
    "path_lock": lambda client: client.path_lock("a/b", ttl=1),
    "once": lambda client: client.once("a", remember=1, ttl=1),
    "periodic": lambda client: client.periodic("a", every=1, ttl=1),
}
EVERY = SHARED | EXCLUSIVE


def every(makes: dict[str, Make]) -> pytest.MarkDecorator:
    """Run a test with each of these."""
    return pytest.mark.parametrize("make", makes.values(), ids=makes)


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[tuple[LockClient, MemoryServer]]:
    """A client; at the end, nothing is held and nobody is inside by hand."""
    server = MemoryServer()
    async with aiolock.connect(server) as client:
        yield client, server
        await settled()
        assert not client._engine.watchdog.holds
        assert not client._engine.entered


async def in_a_task(coroutine: Any) -> Any:
    """The result of a coroutine that runs in a task of its own."""

    async def run() -> Any:
        return await coroutine

    return await asyncio.create_task(run())


def state(lease: Any) -> LeaseState:
    """The state of a lease of any kind."""
    found = lease.state
    assert isinstance(found, LeaseState)
    return found


async def collected() -> None:
    """Let the garbage collector run, and what follows from it."""
    gc.collect()
    await settled()


# --- Exit stacks


@every(SHARED)
@pytest.mark.parametrize("last_first", [False, True])
@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("inside", [False, True])
@virtual
async def test_exit_stacks_of_two_tasks_closed_by_a_third_end_their_own_leases(
    make: Make, last_first: bool, ended: bool, inside: bool
) -> None:
    """Each ends its own lease, whether those tasks live, and whether the third is inside too."""
    async with opened() as (client, _):
        shared, go = make(client), asyncio.Event()
        stacks, leases = [AsyncExitStack(), AsyncExitStack()], list[Lease]()

        async def enter(stack: AsyncExitStack) -> None:
            leases.append(await stack.enter_async_context(shared))
            if not ended:
                await go.wait()

        tasks = [asyncio.create_task(enter(stack)) for stack in stacks]
        await settled()
        assert len(leases) == 2

        async def close() -> None:
            async with AsyncExitStack() as own:
                ours = await own.enter_async_context(shared) if inside else None
                order = [1, 0] if last_first else [0, 1]
                await stacks[order[0]].aclose()
                assert state(leases[order[0]]) == "released"
                assert state(leases[order[1]]) == "held"
                await stacks[order[1]].aclose()
                assert state(leases[order[1]]) == "released"
                assert ours is None or state(ours) == "held"

        await asyncio.create_task(close())
        go.set()
        await asyncio.gather(*tasks)


@pytest.mark.parametrize(
    "make",
    [
        SHARED["semaphore"],
        lambda client: client.rwlock("a", reentrant=True).read(),
        lambda client: client.lock("a", reentrant=True),
    ],
    ids=["semaphore", "reader", "reentrant"],
)
@pytest.mark.parametrize("last_first", [False, True])
@virtual
async def test_exit_stacks_of_one_task_in_any_order_end_their_own_leases(
    make: Make, last_first: bool
) -> None:
    """Closed in either order, each ends its own lease; also within an `async with`."""
    async with opened() as (client, _):
        shared, stacks = make(client), [AsyncExitStack(), AsyncExitStack()]
        async with shared as outer:
            leases = [await stack.enter_async_context(shared) for stack in stacks]
            order = [1, 0] if last_first else [0, 1]
            await stacks[order[0]].aclose()
            assert state(leases[order[0]]) == "released"
            assert state(leases[order[1]]) == state(outer) == "held"
            await stacks[order[1]].aclose()
            assert state(leases[order[1]]) == "released"
            assert state(outer) == "held"
        assert state(outer) == "released"


@every(EVERY)
@pytest.mark.parametrize("ended", [False, True])
@virtual
async def test_exit_stack_closed_by_another_task_releases_the_lease(
    make: Make, ended: bool
) -> None:
    """The lease is ended, and can be had again."""
    async with opened() as (client, _):
        manager, stack, go = make(client), AsyncExitStack(), asyncio.Event()

        async def enter() -> None:
            await stack.enter_async_context(manager)
            if not ended:
                await go.wait()

        task = asyncio.create_task(enter())
        await settled()
        assert client._engine.watchdog.holds
        await in_a_task(stack.aclose())
        assert not client._engine.watchdog.holds
        go.set()
        await task
        await asyncio.sleep(2)  # a period, and what is remembered
        async with manager as lease:
            assert state(lease) == "held"


# --- Generators and fixtures


@every(EVERY)
@virtual
async def test_generator_finished_in_another_task_releases_its_lease(make: Make) -> None:
    """As pytest-asyncio runs an async generator: half of it in one task, half in another."""
    async with opened() as (client, _):
        manager = make(client)

        async def fixture() -> AsyncGenerator[Any, None]:
            async with manager as lease:
                yield lease

        generator = fixture()
        lease = await in_a_task(anext(generator))
        assert state(lease) == "held"
        with pytest.raises(StopAsyncIteration):
            await in_a_task(anext(generator))
        assert state(lease) == "released"


@every(SHARED)
@pytest.mark.parametrize("last_first", [False, True])
@virtual
async def test_generators_closed_by_another_holder_end_their_own_leases(
    make: Make, last_first: bool
) -> None:
    """Each ends its own lease, and the task that closes them keeps its own."""
    async with opened() as (client, _):
        shared = make(client)

        async def generate() -> AsyncGenerator[Any, None]:
            async with shared as lease:
                yield lease

        generators = [generate(), generate()]
        leases = [await in_a_task(anext(each)) for each in generators]
        async with shared as ours:
            order = [1, 0] if last_first else [0, 1]
            await generators[order[0]].aclose()
            assert state(leases[order[0]]) == "released"
            assert state(leases[order[1]]) == state(ours) == "held"
            await generators[order[1]].aclose()
            assert state(leases[order[1]]) == "released"
            assert state(ours) == "held"


# --- By hand


async def leave(manager: Manager) -> None:
    """Leave it by hand."""
    await manager.__aexit__(None, None, None)


@every(EVERY)
@virtual
async def test_aexit_by_hand_once_too_often_raises_not_held(make: Make) -> None:
    """In the same task or in another; once too many is `NotHeld`, and ends nobody's lease."""
    async with opened() as (client, _):
        manager = make(client)
        for leaving in (leave, lambda manager: in_a_task(leave(manager))):
            lease = await manager.__aenter__()
            assert state(lease) == "held"
            await leaving(manager)
            assert state(lease) == "released"
            with pytest.raises(NotHeld, match="has not entered"):
                await leaving(manager)
            await asyncio.sleep(2)
        async with manager as lease:
            with pytest.raises(NotHeld, match="has not entered"):
                await leave(manager)
            assert state(lease) == "held"


@virtual
async def test_aexit_by_hand_releases_the_last_lease_of_its_own_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It leaves its last one first, whoever else is inside."""
    async with opened() as (client, _):
        shared, go = client.semaphore("a", 5), asyncio.Event()

        async def stay() -> None:
            lease = await shared.__aenter__()
            await go.wait()
            assert state(lease) == "held"
            await leave(shared)
            assert state(lease) == "released"

        before = asyncio.create_task(stay())
        await settled()
        leases = [await shared.__aenter__(), await shared.__aenter__()]
        after = asyncio.create_task(stay())
        await settled()
        await leave(shared)
        assert [state(lease) for lease in leases] == ["held", "released"]
        await leave(shared)
        assert state(leases[0]) == "released"
        go.set()
        await asyncio.gather(before, after)
    assert not caplog.records


@every(SHARED)
@virtual
async def test_aexit_in_a_task_that_did_not_enter_releases_the_oldest_and_warns(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """The oldest of a task that has ended first, then the oldest; a warning for each guess."""
    async with opened() as (client, _):
        shared, go, living = make(client), asyncio.Event(), list[Lease]()

        async def stay() -> None:
            living.append(await shared.__aenter__())
            await go.wait()

        tasks = [asyncio.create_task(stay()) for _ in range(2)]
        await settled()
        ended = [await in_a_task(shared.__aenter__()) for _ in range(2)]
        for lease in (*ended, *living):
            assert state(lease) == "held"
            await in_a_task(leave(shared))
            assert state(lease) == "released"
        assert len(caplog.records) == 3, "the last one is no guess"
        assert "left by a task that has not entered it" in caplog.text
        with pytest.raises(NotHeld):
            await leave(shared)
        go.set()
        await asyncio.gather(*tasks)


class Wrapper:
    """A class around a lock, as people write it."""

    def __init__(self, manager: Manager) -> None:
        self.manager = manager

    async def __aenter__(self) -> Any:
        return await self.manager.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self.manager.__aexit__(kind, error, traceback)


class Keeper(Wrapper):
    """A class that keeps both methods."""

    def __init__(self, manager: Manager) -> None:
        super().__init__(manager)
        self.enter, self.exit = manager.__aenter__, manager.__aexit__

    async def __aenter__(self) -> Any:
        return await self.enter()

    async def __aexit__(self, *error: object) -> bool | None:
        return await self.exit(*error)  # type: ignore[arg-type]  # as it was given


class Unbound(Wrapper):
    """A class that calls the methods of the type."""

    async def __aenter__(self) -> Any:
        return await type(self.manager).__aenter__(self.manager)

    async def __aexit__(self, *error: object) -> bool | None:
        return await type(self.manager).__aexit__(self.manager, *error)  # type: ignore[arg-type]  # as it was given


@every(EVERY)
@pytest.mark.parametrize("wrapper", [Wrapper, Keeper, Unbound])
@virtual
async def test_wrapper_class_around_a_lock_releases_it_at_exit(
    make: Make, wrapper: Callable[[Manager], Manager]
) -> None:
    """Entered again and again, in an exit stack, and closed by another task."""
    async with opened() as (client, _):
        wrapped = wrapper(make(client))
        for _ in range(2):
            async with wrapped as lease:
                assert state(lease) == "held"
            assert state(lease) == "released"
            await asyncio.sleep(2)
        stack = AsyncExitStack()
        lease = await in_a_task(stack.enter_async_context(wrapped))
        await in_a_task(stack.aclose())
        assert state(lease) == "released"


@every(SHARED)
@pytest.mark.parametrize("wrapper", [Wrapper, Keeper, Unbound])
@virtual
async def test_wrapper_class_in_two_tasks_releases_the_lease_of_each(
    make: Make, wrapper: Callable[[Manager], Manager]
) -> None:
    """Each task leaves its own."""
    async with opened() as (client, _):
        wrapped, go = wrapper(make(client)), [asyncio.Event(), asyncio.Event()]
        leases = list[Lease]()

        async def work(number: int) -> None:
            async with wrapped as lease:
                leases.append(lease)
                await go[number].wait()

        tasks = [asyncio.create_task(work(number)) for number in range(2)]
        await settled()
        go[0].set()
        await tasks[0]
        assert [state(lease) for lease in leases] == ["released", "held"]
        go[1].set()
        await tasks[1]
        assert state(leases[1]) == "released"


@virtual
async def test_multilock_subclass_with_own_enter_or_exit_releases_its_lease() -> None:
    """A subclass may do something of its own on the way, in one method or in both."""

    class Half(aiolock.MultiLock):
        async def __aenter__(self) -> aiolock.MultiLease:
            return await super().__aenter__()

    class Both(Half):
        async def __aexit__(self, *error: object) -> None:
            await super().__aexit__(*error)  # type: ignore[arg-type]  # as it was given

    async with opened() as (client, _):
        for kind in (Half, Both):
            subject = kind([client.lock("a"), client.lock("b")], None)
            async with subject as lease:
                assert state(lease) == "held"
            assert state(lease) == "released"


@virtual
async def test_exit_pushed_on_a_stack_releases_a_lease_of_its_own_task() -> None:
    """Entered by hand, and its exit pushed on a stack: each stack ends a lease of its own task."""
    async with opened() as (client, _):
        shared, go, ends = client.semaphore("a", 5), asyncio.Event(), list[LeaseState]()

        async def work(push: Callable[[AsyncExitStack], object]) -> None:
            async with AsyncExitStack() as stack:
                lease = await shared.__aenter__()
                push(stack)
                await go.wait()
            ends.append(lease.state)

        def bound(stack: AsyncExitStack) -> None:
            stack.push_async_callback(shared.__aexit__, None, None, None)

        def unbound(stack: AsyncExitStack) -> None:
            stack.push_async_exit(shared)

        tasks = [asyncio.create_task(work(push)) for push in (bound, unbound, bound, unbound)]
        await settled()
        async with shared as ours:
            go.set()
            await asyncio.gather(*tasks)
            assert ours.state == "held"
        assert ends == ["released"] * 4


# --- Other callers


@pytest.mark.parametrize("name", EVERY)
def test_enter_async_context_of_unittest_releases_in_cleanup(name: str) -> None:
    """`enterAsyncContext` leaves it, in a clean-up."""
    seen = list[Any]()

    class Case(unittest.IsolatedAsyncioTestCase):
        async def asyncSetUp(self) -> None:
            self.client = await self.enterAsyncContext(aiolock.connect(MemoryServer()))
            seen.append(await self.enterAsyncContext(EVERY[name](self.client)))
            assert self.client._engine.watchdog.holds

        async def test_it(self) -> None:
            assert state(seen[0]) == "held"

    result = unittest.TestResult()
    Case("test_it").run(result)
    assert result.wasSuccessful(), (result.errors, result.failures)
    assert state(seen[0]) == "released"


@every(EVERY)
@virtual
async def test_mock_with_the_spec_of_a_lock_works_in_async_with(make: Make) -> None:
    """An imitation is entered and left with `async with`; that of a lock for threads without."""
    async with opened() as (client, _):
        manager = make(client)
        for imitation in (mock.create_autospec(manager), mock.NonCallableMagicMock(spec=manager)):
            async with imitation:
                pass
            imitation.__aexit__.assert_awaited_once_with(None, None, None)
    with mock.create_autospec(aiolock.sync.Lock, instance=True) as lease:
        assert not inspect.isawaitable(lease)


@every(EVERY)
@virtual
async def test_decorator_that_enters_a_lock_holds_it_for_each_call(make: Make) -> None:
    """A class or a generator that decorates functions, and enters a lock for each call."""
    async with opened() as (client, _):
        manager = make(client)

        class Decorator(Wrapper, contextlib.AsyncContextDecorator):
            pass

        @contextlib.asynccontextmanager
        async def generator() -> AsyncIterator[Any]:
            async with manager as lease:
                yield lease

        async def work() -> int:
            return len(client._engine.watchdog.holds)

        for decorator in (Decorator(manager), generator()):
            assert await decorator(work)() > 0
            assert not client._engine.watchdog.holds
            await asyncio.sleep(2)


@every(EVERY)
@virtual
async def test_enter_and_exit_looked_up_in_any_order_belong_together(make: Make) -> None:
    """The exit first, as compiled code does; and both of the instance, or both of the class."""
    async with opened() as (client, _):
        manager, other = make(client), client.semaphore("other", 5)
        kind = type(manager)
        for order in ("enter first", "exit first"):
            for of in (manager, kind):
                if order == "enter first":
                    enter: Any = of.__aenter__
                    exit_: Any = of.__aexit__
                else:
                    exit_, enter = of.__aexit__, of.__aenter__
                if of is kind:
                    enter = functools.partial(enter, manager)
                    exit_ = functools.partial(exit_, manager)
                lease = await in_a_task(enter())
                async with other:  # by which nothing is meant
                    assert state(lease) == "held"
                with pytest.raises(NotHeld):
                    await leave(manager)
                await in_a_task(exit_(None, None, None))
                assert state(lease) == "released"
                with pytest.raises(NotHeld):
                    await exit_(None, None, None)
                await asyncio.sleep(2)


@every(EVERY)
@virtual
async def test_exit_looked_up_elsewhere_raises_not_held_and_ends_no_lease(make: Make) -> None:
    """What only looks for the methods, or was looked up and not called, changes nothing."""
    async with opened() as (client, _):
        manager = make(client)
        kept: list[Any] = [manager.__aexit__, type(manager).__aexit__, manager.__aenter__]

        @runtime_checkable
        class Enterable(Protocol):
            async def __aenter__(self) -> Any: ...

            async def __aexit__(self, *error: object) -> Any: ...

        assert isinstance(manager, Enterable)
        assert isinstance(manager, AbstractAsyncContextManager)
        assert hasattr(manager, "__aenter__")
        assert callable(manager.__aexit__)
        assert inspect.iscoroutinefunction(manager.__aexit__), "or unittest does not await it"
        mock.create_autospec(type(manager), instance=True)
        async with manager as lease:
            with pytest.raises(NotHeld):
                await leave(manager)
            assert state(lease) == "held"
        assert state(lease) == "released"
        await asyncio.sleep(2)
        kept += [type(manager).__aexit__]
        async with AsyncExitStack() as stack:
            lease = await stack.enter_async_context(manager)
            exits: list[Any] = [kept[0], functools.partial(kept[-1], manager)]
            for exit_ in exits:
                with pytest.raises(NotHeld):
                    await exit_(None, None, None)
            assert state(lease) == "held"
        assert state(lease) == "released"


@contextlib.contextmanager
def between(finalize: Callable[[], object]) -> Iterator[None]:
    """Call this before the next lookup of an exit, as the garbage collector calls finalizers."""

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is entered._Leaving.__get__.__code__:
            sys.setprofile(None)
            finalize()

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


@every(SHARED)
@pytest.mark.parametrize(
    "does", ["enters", "looks for both", "looks for exit", "keeps", "enters by hand"]
)
@virtual
async def test_exit_lookup_interrupted_by_a_finalizer_ends_its_own_lease(
    make: Make, does: str
) -> None:
    """A finalizer that runs there, and itself enters the same, takes no exit of another."""
    async with opened() as (client, _):
        shared, kept, leases = make(client), list[Any](), list[Any]()

        async def enter() -> None:
            async with shared:
                pass

        def finalize() -> None:
            if does == "enters":  # one that is in the way of nobody, and is cancelled
                entering = enter()
                entering.send(None)
                with contextlib.suppress(asyncio.CancelledError):
                    entering.throw(asyncio.CancelledError)
            elif does == "looks for both":
                assert hasattr(shared, "__aenter__")
                assert hasattr(shared, "__aexit__")
            elif does == "looks for exit":
                assert hasattr(shared, "__aexit__")
            elif does == "keeps":
                kept.append(client.lock("other").__aenter__)
            else:
                shared.__aenter__().close()

        async def body(stack: AsyncExitStack) -> None:
            with between(finalize):
                leases.append(await stack.enter_async_context(shared))

        stacks = [AsyncExitStack() for _ in range(3)]
        for stack in stacks:
            await in_a_task(body(stack))
        assert not client._engine.entered
        for stack, lease in zip(stacks, leases, strict=True):
            await stack.aclose()
            assert state(lease) == "released"


@virtual
async def test_lookups_kept_by_callers_are_remembered_up_to_a_limit() -> None:
    """What is remembered of each thread does not grow, and a body still has its own exit."""
    async with opened() as (client, _):
        lock, kept = client.lock("a"), list[Any]()
        for _ in range(3):
            kept += [lock.__aenter__ for _ in range(100)]
            async with lock as lease:
                assert not client._engine.entered
            assert state(lease) == "released"
        assert len(entered._lookups.older) < entered._DEEPEST


def test_lookups_interleaved_by_two_threads_keep_their_own_exit() -> None:
    """What another thread looks up meanwhile is another's."""
    with aiolock.sync.connect(MemoryServer()) as client:
        shared, enter, leases = client.semaphore("a", 5), threading.Barrier(2), list[Any]()

        def work() -> None:
            entry = type(shared).__enter__
            enter.wait(20)
            leave = type(shared).__exit__
            enter.wait(20)
            lease = entry(shared)
            leases.append(lease)
            enter.wait(20)
            leave(shared, None, None, None)
            assert lease.state == "released"

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert [lease.state for lease in leases] == ["released"] * 2


@virtual
async def test_acquire_context_left_twice_raises_not_held() -> None:
    """Once too many is `NotHeld`; so is an exit of one that was not entered."""
    async with opened() as (client, _):
        acquisition = client.lock("a").acquire()
        with pytest.raises(NotHeld, match="has not entered"):
            await acquisition.__aexit__(None, None, None)
        async with acquisition as lease:
            pass
        assert lease.state == "released"
        with pytest.raises(NotHeld, match="has left it already"):
            await acquisition.__aexit__(None, None, None)


# --- Garbage


@contextlib.contextmanager
def warned(count: int | None = None) -> Iterator[None]:
    """There is a warning of a lease that nobody can release; or so many."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    texts = [str(each.message) for each in caught if each.category is ResourceWarning]
    assert texts if count is None else len(texts) == count
    for text in texts:
        assert "nobody can" in text


ALL_WAYS: dict[str, Make] = EVERY | {
    "acquire": lambda client: client.lock("a", ttl=1).acquire(),
    "permits": lambda client: client.semaphore("a", 5, ttl=1).acquire(2),
}


@every(ALL_WAYS)
@virtual
async def test_exit_stack_dropped_after_its_task_ended_ends_leases_with_warning(make: Make) -> None:
    """Once its task has ended too, nobody can leave the body: its leases end, with a warning."""
    async with opened() as (client, _):
        manager: Manager | None = make(client)
        lost = list[weakref.ref[Any]]()
        if isinstance(manager, aiolock.AcquireContext):  # which is the body itself
            manager.close()
            manager = None

        async def forget() -> None:
            stack = AsyncExitStack()
            lease = await stack.enter_async_context(manager or make(client))
            for each in lease.leases.values() if isinstance(lease, aiolock.MultiLease) else [lease]:
                lost.append(weakref.ref(each))
            assert client._engine.watchdog.holds

        with warned():
            await in_a_task(forget())
            await collected()
            assert [each() for each in lost] == [None] * len(lost)
            assert lost
            assert not client._engine.watchdog.holds


@every(EVERY)
@virtual
async def test_exit_stack_dropped_by_a_living_task_keeps_leases_releasable_by_name(
    make: Make,
) -> None:
    """What the task can release by name is kept for it; else the leases end at once."""
    async with opened() as (client, _):
        manager = make(client)

        async def live() -> None:
            await AsyncExitStack().enter_async_context(manager)
            await collected()
            kept = bool(client._engine.watchdog.holds)
            assert kept == (manager.__class__ in (aiolock.Lock, aiolock.MultiLock))
            await asyncio.sleep(10)
            assert bool(client._engine.watchdog.holds) == kept

        with warned():
            await in_a_task(live())
            await collected()
            assert not client._engine.watchdog.holds


@virtual
async def test_lease_kept_after_its_exit_stack_was_dropped_stays_held() -> None:
    """Whoever has the lease can release it, also once the task has ended. It is no body."""
    async with opened() as (client, server):
        lease = await in_a_task(AsyncExitStack().enter_async_context(client.semaphore("a", 5)))
        await collected()
        assert lease.state == "held"
        assert await lease.release()

        async def work() -> None:
            lease = await AsyncExitStack().enter_async_context(client.lock("a"))
            await collected()
            server.run(Break("lock:a", [lease.fence]))
            await asyncio.sleep(1)  # it is not cancelled: nobody would turn that into LeaseLost
            assert lease.state == "lost"

        await in_a_task(work())


@virtual
async def test_exit_method_dropped_and_looked_up_again_releases_the_lease() -> None:
    """Code that looks up both methods, and at the end the exit once more, leaves its own."""
    async with opened() as (client, _):
        lock = client.lock("a")
        enter, exit_ = lock.__aenter__, lock.__aexit__
        del exit_
        lease = await enter()
        await leave(lock)
        assert lease.state == "released"
        enter, exit_ = lock.__aenter__, lock.__aexit__
        lease = await enter()
        del exit_
        await collected()
        assert lease.state == "held"
        await leave(lock)
        assert lease.state == "released"
        with pytest.raises(NotHeld):
            await leave(lock)
        lease = await lock.acquire()
        with pytest.raises(NotHeld):
            await leave(lock)
        await lease.release()


@every(EVERY)
@virtual
async def test_aenter_by_hand_on_a_dropped_manager_ends_leases_with_warning(make: Make) -> None:
    """A description that nobody has any more cannot be left: its leases end, with a warning."""
    async with opened() as (client, _):

        async def forget() -> None:
            await make(client).__aenter__()

        with warned():
            await in_a_task(forget())
            await collected()
            assert not client._engine.watchdog.holds


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.filterwarnings("ignore:.*a body was entered that nobody can leave:ResourceWarning")
def test_sync_exit_in_another_thread_releases_the_right_lease(kind: str) -> None:
    """As tasks do: by exit stacks, by hand, or not at all."""
    with aiolock.sync.connect(MemoryServer()) as client:
        makes: dict[str, Callable[[str], Any]] = {
            "semaphore": lambda name: client.semaphore(name, 5),
            "reader": lambda name: client.rwlock(name).read(),
            "lock": client.lock,
            "writer": lambda name: client.rwlock(name).write(),
            "multilock": lambda name: client.multilock(name, "b"),
            "path_lock": lambda name: client.path_lock(f"{name}/b"),
            "once": lambda name: client.once(name, remember=60),
            "periodic": lambda name: client.periodic(name, every=60),
        }

        def elsewhere(function: Callable[[], Any]) -> Any:
            results = list[Any]()
            thread = threading.Thread(target=lambda: results.append(function()))
            thread.start()
            thread.join(20)
            return results[0]

        for first in (0, -1):
            manager = makes[kind](f"stacks {first}")
            stacks = [contextlib.ExitStack() for _ in range(2 if kind in SHARED else 1)]
            leases = [elsewhere(functools.partial(each.enter_context, manager)) for each in stacks]
            pairs = list(zip(stacks, leases, strict=True))
            while pairs:
                stack, lease = pairs.pop(first)
                stack.close()
                assert lease.state == "released"
                assert all(other.state == "held" for _, other in pairs)
        manager = makes[kind]("by hand")
        lease = elsewhere(manager.__enter__)
        manager.__exit__(None, None, None)
        assert lease.state == "released"
        with pytest.raises(NotHeld):
            manager.__exit__(None, None, None)
        del lease

        def held() -> list[str]:
            return [each.name for each in client.snapshot() if each.holders]

        manager = makes[kind]("dropped")
        with dropped_leases() as dropped:
            elsewhere(lambda: contextlib.ExitStack().enter_context(manager) and None)
            gc.collect()
            passes(lambda: not held())
        assert {each.name for each in dropped} >= {"dropped"}
        elsewhere(lambda: makes[kind]("dropped by hand").__enter__() and None)
        gc.collect()
        passes(lambda: not held())


def test_sync_lease_left_more_often_than_entered_raises_not_held() -> None:
    """A lease that is entered itself: once too many is `NotHeld`."""
    with aiolock.sync.connect(MemoryServer()) as client:
        lease = client.lock("a").acquire()
        with lease, lease:
            pass
        assert lease.state == "released"
        with pytest.raises(NotHeld):
            lease.__exit__(None, None, None)
