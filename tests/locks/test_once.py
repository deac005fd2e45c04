"""Something done once: by whoever comes first, again when that fails, and never when it is done."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

import aiolock
from aiolock import AcquireTimeout, LeaseLost, NotHeld, StoreError
from aiolock.protocol import Finish, Operation
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.stores.redis._scripts import FINISH
from aiolock.testing import FaultyStore
from tests.support.cancel import KINDS, Kind, cancel_everywhere
from tests.support.worlds import World, queued, settled, virtual

DAY = 86400.0


def waiting_for(once: aiolock.Once) -> aiolock.Lock:
    """The lock of a once, to see who waits for it."""
    return once._lock


async def test_once_delivered_many_times_runs_once(world: World) -> None:
    """Of many deliveries in two processes one runs; the others wait and see that it is done."""
    done: list[int] = []
    async with world.client() as ours, world.client() as theirs:

        async def deliver(client: aiolock.LockClient) -> bool:
            async with client.once("user:42", remember=60) as lease:
                if lease is None:
                    assert done == [42]
                    return False
                assert lease.fence > 0
                await asyncio.sleep(0.02)
                done.append(42)
                return True

        ran = await asyncio.gather(*(deliver(client) for client in (ours, theirs) * 10))
        assert sum(ran) == 1
        assert await deliver(theirs) is False
        assert done == [42]
        status = await ours.once("user:42", remember=60).status()
        assert (status.holders, status.waiters) == ((), ())
        assert 50 < status.closed <= 60


async def test_once_whose_run_fails_is_run_by_the_next(world: World) -> None:
    """After a run that failed the next one tries; what was raised comes out as it is."""
    async with world.client() as ours, world.client() as theirs:
        once = ours.once("a", remember=60)

        async def fails() -> None:
            async with once as lease:
                assert lease is not None
                next_one.append(asyncio.create_task(succeeds()))
                await queued(waiting_for(once), 1)
                raise ValueError("half way")

        async def succeeds() -> bool:
            async with theirs.once("a", remember=60) as lease:
                return lease is not None

        next_one: list[asyncio.Task[bool]] = []
        with pytest.raises(ValueError, match="half way"):
            await fails()
        assert await next_one[0] is True
        async with once as lease:
            assert lease is None


async def test_once_with_wait_false_skips_work_under_way(world: World) -> None:
    """With `wait=False`, whoever comes while it is being done skips it at once."""
    async with world.client() as ours, world.client() as theirs:
        async with ours.once("a", remember=60) as lease:
            assert lease is not None
            async with theirs.once("a", remember=60, wait=False) as skipped:
                assert skipped is None
        async with theirs.once("a", remember=60, wait=False) as skipped:
            assert skipped is None
        async with theirs.once("b", remember=60, wait=False) as lease:
            assert lease is not None


@virtual
async def test_once_is_remembered_for_its_time_and_then_run_again() -> None:
    """It is remembered for so long from its end, and then done again."""
    server = MemoryServer()
    async with aiolock.connect(server) as client:
        once = client.once("a", remember=DAY)
        async with once as lease:
            assert lease is not None
            await asyncio.sleep(100)  # longer than its lease, which is renewed
        await asyncio.sleep(DAY - 1)
        async with once as lease:
            assert lease is None
        await asyncio.sleep(2)
        async with once as lease:
            assert lease is not None


@virtual
async def test_once_waiting_beyond_its_timeout_raises_acquire_timeout() -> None:
    """Whoever waits gives up after the timeout, and not before it is known that it is done."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        async with ours.once("a", remember=60):
            with pytest.raises(AcquireTimeout, match="'a'"):
                async with theirs.once("a", remember=60, timeout=5):
                    raise AssertionError
        async with theirs.once("a", remember=60, timeout=0) as lease:
            assert lease is None


@virtual
async def test_once_that_loses_its_lease_raises_lease_lost_and_is_not_done() -> None:
    """A run that lost its lease raises `LeaseLost`, and is not taken for done."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        once = ours.once("a", remember=60)

        async def run() -> None:
            async with once:
                await waiting_for(once).break_()
                await asyncio.sleep(60)

        with pytest.raises(LeaseLost):
            await run()
        async with theirs.once("a", remember=60) as lease:
            assert lease is not None


@virtual
async def test_once_whose_loss_is_heard_at_its_end_raises_lease_lost() -> None:
    """So does one that hears of the loss by its own end."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        faulty.lose("push", 10)
        once = ours.once("a", remember=60)
        with pytest.raises(LeaseLost):
            async with once:
                await theirs.once("a", remember=60)._lock.break_()
        async with theirs.once("a", remember=60) as lease:
            assert lease is not None


@virtual
async def test_once_whose_holder_died_is_run_when_its_lease_ends() -> None:
    """The next one does it when the lease of the dead one has ended."""
    loop = asyncio.get_running_loop()
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        await waiting_for(ours.once("a", remember=60, ttl=10)).acquire()
        for what in ("renew", "release"):
            faulty.refuse(what, 1000)
        start = loop.time()
        async with theirs.once("a", remember=60) as lease:
            assert lease is not None
            assert 9.9 < loop.time() - start < 10.1


@virtual
@pytest.mark.parametrize("fault", ["refuse", "lose"])
async def test_once_whose_end_is_never_confirmed_raises_store_error(fault: str) -> None:
    """A body that has ended without an answer raises `StoreError`; it may be done again, or not."""
    loop = asyncio.get_running_loop()
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        getattr(faulty, fault)("finish", math.inf)
        start = loop.time()
        with pytest.raises(StoreError, match="nobody knows whether that is remembered"):
            async with ours.once("a", remember=DAY):
                pass
        assert 6 < loop.time() - start < 9
        async with theirs.once("a", remember=DAY) as lease:
            assert (lease is None) == (fault == "lose")
            assert loop.time() - start < 30.1
        await asyncio.sleep(start + 31 - loop.time())
        sent = faulty.calls["finish"]
        assert 5 < sent < 12, "after pauses that grow"
        await asyncio.sleep(100)
        assert faulty.calls["finish"] == sent, "the lease has ended"
        assert not ours._engine.watchdog.finishes


@virtual
@pytest.mark.parametrize("fault", ["refuse", "lose"])
async def test_finish_that_fails_for_a_moment_is_sent_again_until_remembered(fault: str) -> None:
    """The body has ended, so it is remembered as soon as the store works, once."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        getattr(faulty, fault)("finish", 2)
        async with ours.once("a", remember=DAY):
            pass
        async with theirs.once("a", remember=DAY) as lease:
            assert lease is None
        await asyncio.sleep(100)
        assert faulty.calls["finish"] == 3


@virtual
async def test_finish_after_its_caller_got_a_store_error_is_still_sent() -> None:
    """The caller waits for nine seconds; until the lease ends, the store is told all the same."""
    loop = asyncio.get_running_loop()
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        faulty.refuse("finish", math.inf)
        with pytest.raises(StoreError, match="nobody knows"):
            async with ours.once("a", remember=DAY):
                pass
        start = loop.time()
        faulty.resume()
        async with theirs.once("a", remember=DAY) as lease:
            assert lease is None
        assert loop.time() - start < 10, "it is told by then, and not when the lease ends"


@virtual
async def test_finish_sent_again_for_a_broken_lease_raises_store_error() -> None:
    """The first copy may have been carried out, and be forgotten: nobody knows."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:

        async def later() -> None:
            await asyncio.sleep(0.5)
            faulty.lose("push")
            assert await theirs.once("a", remember=DAY).break_()

        faulty.refuse("finish")
        with pytest.raises(StoreError, match="nobody knows"):
            async with ours.once("a", remember=DAY):
                breaking = asyncio.create_task(later())
        await breaking


@virtual
async def test_finish_under_way_when_the_client_closes_is_sent_once_more() -> None:
    """Closing the client tells the store once more, and waits for nothing else."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as ours:
        once = ours.once("a", remember=DAY)

        async def run() -> None:
            async with once:
                pass

        faulty.refuse("finish", 2)
        running = asyncio.create_task(run())
        await settled()
        assert len(ours._engine.watchdog.finishes) == 1
    with pytest.raises(StoreError, match="nobody knows"):
        await running
    assert faulty.calls["finish"] == 2
    assert not ours._engine.watchdog.finishes


@virtual
async def test_once_cancelled_while_it_finishes_is_remembered() -> None:
    """Cancelled while it waits for the answer, what is done is remembered."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as client:
        once = client.once("a", remember=DAY)

        async def run() -> None:
            async with once:
                faulty.hold("finish")

        running = asyncio.create_task(run())
        await settled()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        faulty.resume()
        async with once as lease:
            assert lease is None


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
async def test_once_cancelled_at_any_step_is_done_or_run_by_another(
    world: World, kind: Kind
) -> None:
    """Wherever it is cancelled, it is done, or somebody else does it; nobody holds it or waits."""
    done = set[str]()
    async with world.client() as ours, world.client() as theirs:
        key = ""

        async def scenario() -> None:
            async with ours.once(key, remember=60) as lease:
                assert lease is not None
                await asyncio.sleep(0)
                done.add(key)

        ran = 0
        key = f"a {ran}"
        async for _ in cancel_everywhere(scenario, [kind]):
            async with theirs.once(key, remember=60, timeout=10) as lease:
                assert (lease is None) <= (key in done)
            await waiting_for(
                ours.once(key, remember=60)
            ).status()  # answered after all that it sent
            status = await waiting_for(ours.once(key, remember=60)).status()
            assert (status.holders, status.waiters) == ((), ())
            engine = ours._engine
            assert not engine.waiters.acquisitions
            assert not engine.waiters._queues
            assert not engine.watchdog.holds
            ran += 1
            key = f"a {ran}"
        assert ran >= 3


@virtual
async def test_once_waiter_whose_push_was_lost_asks_again_and_skips() -> None:
    """Whoever waits and does not hear that it is done asks again, and is told then."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(server) as ours, aiolock.connect(faulty) as theirs:
        async with ours.once("a", remember=DAY) as lease:
            assert lease is not None
            waiting = asyncio.create_task(theirs.once("a", remember=DAY).__aenter__())
            await queued(waiting_for(ours.once("a", remember=DAY)), 1)
            faulty.lose("push")
        async with asyncio.timeout(31):  # when the lease would have ended
            assert await waiting is None
        assert not theirs._engine.waiters.acquisitions
        assert not theirs._engine.waiters._queues


@virtual
async def test_once_waiter_that_hears_of_the_end_after_it_was_forgotten_runs() -> None:
    """Whoever hears of it when it is forgotten again does it, as if nobody had."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(server) as ours, aiolock.connect(faulty) as theirs:
        async with ours.once("a", remember=1) as lease:
            assert lease is not None
            waiting = asyncio.create_task(theirs.once("a", remember=1).__aenter__())
            await queued(waiting_for(ours.once("a", remember=1)), 1)
            faulty.hold("push")
        await asyncio.sleep(2)
        faulty.resume()
        async with asyncio.timeout(5):  # before it would ask by itself
            assert await waiting is not None


async def test_finish_whose_confirmation_was_lost_raises_store_error() -> None:
    """Sent again and found nothing, it may have been its own doing: nobody knows."""

    class Forgetful(MemoryStore):
        def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
            if not isinstance(operation, Finish):
                return super().submit(operation)
            future = asyncio.get_running_loop().create_future()
            future.set_result(int(FINISH.decode_again(0)))
            return future

    async with aiolock.connect(Forgetful(MemoryServer())) as client:
        with pytest.raises(StoreError, match="its confirmation was lost"):
            async with client.once("a", remember=DAY):
                pass


async def test_once_key_with_braces_is_a_template_only_in_the_decorator() -> None:
    """What is entered is taken as it stands, and so is what an argument says."""
    async with aiolock.connect("memory://") as client:
        async with client.once("odd {", remember=60) as lease:
            assert lease is not None

        @client.once("user:{user}", remember=60)
        async def set_up(user: str) -> str:
            return user

        assert await set_up("{") == "{"
        assert await set_up("{") is None


async def test_exit_without_entering_raises_not_held() -> None:
    """It is an error that says so."""
    async with aiolock.connect("memory://") as client:
        with pytest.raises(NotHeld, match="has not entered"):
            await client.once("a", remember=60).__aexit__(None, None, None)


async def test_once_decorator_runs_each_formatted_key_once(world: World) -> None:
    """Each call is a delivery; the key is formatted with its arguments."""
    calls: list[tuple[int, str]] = []
    async with world.client() as client:

        @client.once("user:{user_id}", remember=60)
        async def set_up(user_id: int, name: str = "ada") -> str:
            """Set a user up."""
            calls.append((user_id, name))
            return name

        assert set_up.__doc__ == "Set a user up."
        assert await set_up(1) == "ada"
        assert await set_up(1, name="bob") is None
        assert await set_up(user_id=2, name="bob") == "bob"
        assert calls == [(1, "ada"), (2, "bob")]
        with pytest.raises(
            TypeError, match=r"once\(\) decorates async functions, .*aiolock\.sync\.connect"
        ):
            client.once("a", remember=60)(len)  # type: ignore[arg-type]  # on purpose
        with pytest.raises(ValueError, match="names user"):

            @client.once("{user}", remember=60)
            async def other(user_id: int) -> None:
                """Has no such argument."""


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"remember": 0}, ValueError, "remember"),
        ({"remember": "1"}, TypeError, "remember"),
        ({"remember": 1, "wait": 1}, TypeError, "wait"),
        ({"remember": 1, "wait": False, "timeout": 1}, ValueError, "wait=False"),
        ({"remember": 1, "timeout": -1}, ValueError, "timeout"),
        ({"remember": 1, "ttl": 0}, ValueError, "ttl"),
    ],
)
async def test_once_with_invalid_options_raises_type_or_value_error(
    options: dict[str, Any], error: type[Exception], match: str
) -> None:
    """What cannot be is refused before anything is sent."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        with pytest.raises(error, match=match):
            async with client.once("a", **options):
                raise AssertionError
        assert repr(client.once("a", remember=60)) == "<Once 'a' remember=60>"
        assert client.once("a", remember=60).name == "a"
    assert faulty.calls == {"open": 1}
