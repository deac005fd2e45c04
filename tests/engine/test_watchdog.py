"""The watchdog's alarm clock."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

import aiolock
from aiolock._engine.lease_state import LossReason
from aiolock.protocol import AskAgain, Break, Operation, Renew, Renewal
from aiolock.store import Store
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.virtual import run
from tests.support.worlds import queued
from tests.support.wrapped import Wrapped

Value = TypeVar("Value")


def test_renewal_of_a_long_lease_does_not_delay_a_short_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Renewing one lease sets the alarm for its next turn, and another is due before that."""
    # Without the jitter: the long lease is due by itself, and not in one turn with the short one.
    monkeypatch.setattr(random, "uniform", lambda _, most: most)

    async def play() -> None:
        async with (
            aiolock.connect(MemoryServer()) as client,
            client.lock("long", ttl=6),
            client.lock("short", ttl=0.45) as lease,
        ):
            await asyncio.sleep(4)
            assert lease.state == "held"

    run(play())


def test_renewals_of_a_thousand_leases_take_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand leases of one ttl are four calls of 256 or so, not a thousand."""

    async def play() -> None:
        server = MemoryServer()
        calls: list[int] = []
        carry_out = server.run

        def counted(operation: Operation[Any]) -> Any:
            if isinstance(operation, Renew):
                calls.append(len(operation.renewals))
            return carry_out(operation)

        monkeypatch.setattr(server, "run", counted)
        async with aiolock.connect(server, ttl=30) as client, contextlib.AsyncExitStack() as stack:
            for number in range(1000):
                await stack.enter_async_context(client.lock(f"lock {number}"))
            await asyncio.sleep(10.0)
            assert sum(calls) == 1000
            assert len(calls) <= 5

    run(play())


def test_jitter_of_renewals_differs_from_turn_to_turn() -> None:
    """Processes that started together do not renew together for ever."""

    async def play() -> set[float]:
        async with aiolock.connect(MemoryServer(), ttl=3) as client, client.lock("n"):
            found = set()
            for _ in range(20):
                await asyncio.sleep(1)
                found.add(client._engine.watchdog._jitter)
            return found

    assert len(run(play())) > 5


def test_deadline_shortened_after_a_renewal_was_sent_ignores_its_answer() -> None:
    """Only a renewal that was sent after the store has shortened it is answered with that known."""

    async def play() -> None:
        async with aiolock.connect(MemoryServer(), ttl=9) as client:
            lease = await client.lock("n").acquire()
            hold = lease._hold
            hold.renews(9000, 0.0)
            hold.shorten(2.0)
            assert hold.renewed(1, 0.0, 9000)
            assert hold.deadline == 2.0
            hold.renews(9000, 0.0)
            assert hold.renewed(2, 0.0, 9000)
            assert hold.deadline > 8
            await lease.release()

    run(play())


def test_loss_in_nested_reentrant_bodies_keeps_the_error_of_the_body() -> None:
    """A re-entrant lock that is lost leaves the body's own error, and no cancellation behind."""

    async def play() -> None:
        async with aiolock.connect(MemoryServer()) as client:
            lock = client.lock("n", reentrant=True)

            task = asyncio.current_task()
            assert task is not None

            async def body(*, awaits: bool) -> None:
                async with lock as lease, lock:
                    client._engine.watchdog.lose(lease._hold, LossReason.BROKEN)
                    assert task.cancelling() == 1
                    if awaits:
                        with pytest.raises(asyncio.CancelledError):
                            await asyncio.sleep(1)
                        await asyncio.sleep(1)  # it is cancelled no second time
                    raise ValueError("the body's own")

            for awaits in (False, True):
                with pytest.raises(ValueError, match="the body's own"):
                    await body(awaits=awaits)
                assert task.cancelling() == 0
                await asyncio.sleep(0)

    run(play())


class Far(MemoryStore):
    """A store to which a renewal is some time under way, and as long its answer."""

    def __init__(self, server: MemoryServer, way: float) -> None:
        super().__init__(server)
        self._way = way

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        """Carry it out after one way, and answer after the other."""
        if not isinstance(operation, Renew):
            return super().submit(operation)
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Any] = loop.create_future()

        def arrive() -> None:
            answer = self.server.run(operation)
            loop.call_later(self._way, answered.set_result, answer)

        loop.call_later(self._way, arrive)
        return answered


@pytest.mark.parametrize("late", [0.0, 0.4, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("way", [0.0, 0.002, 0.01])
def test_claim_noticed_late_is_confirmed_before_it_ends(late: float, way: float) -> None:
    """Whatever is left of its claim when we hear of it, a grant is renewed before that ends."""

    async def play() -> None:
        server = MemoryServer()
        faulty = FaultyStore(Far(server, way))
        async with aiolock.connect(faulty, ttl=1) as ours, aiolock.connect(server) as theirs:
            held = await theirs.lock("a").acquire()

            async def body() -> None:
                async with ours.lock("a") as lease:
                    assert lease.remaining() <= 1 - late
                    await asyncio.sleep(5)
                    assert lease.state == "held"

            running = asyncio.create_task(body())
            await queued(theirs.lock("a"), 1)
            faulty.hold("push")
            await held.release()
            await asyncio.sleep(late)  # as where the loop is blocked
            faulty.resume()
            await running

    run(play())


@pytest.mark.parametrize(("way", "tasks"), [(0.9, 1), (0.005, 20)])
def test_extensions_that_overlap_with_renewals_keep_the_lease(way: float, tasks: int) -> None:
    """There is always one that is not answered; what is confirmed counts all the same."""

    async def play() -> None:
        loop = asyncio.get_running_loop()
        async with (
            aiolock.connect(Far(MemoryServer(), way)) as client,
            client.lock("a", ttl=5) as lease,
        ):

            async def extend(number: int) -> None:
                while tasks > 1 and loop.time() < 12:
                    await asyncio.sleep(0.001 * number)
                    await lease.extend(5)

            await lease.extend(5)
            await asyncio.gather(*(extend(number) for number in range(1, tasks + 1)))
            await asyncio.sleep(30)
            assert lease.state in ("held", "at_risk")

    run(play())


class Unsure(Wrapped):
    """A store that cannot tell what became of the renewals of some names."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.of = set[str]()
        self.calls = list[Sequence[Renewal]]()

    def submit(self, operation: Operation[Value]) -> asyncio.Future[Value]:
        """Renew the others, and answer all of them."""
        if not isinstance(operation, Renew):
            return super().submit(operation)
        renewals = operation.renewals
        self.calls.append(renewals)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        others = super().submit(Renew([each for each in renewals if each.name not in self.of]))

        def known(_: object) -> None:
            held = iter(others.result())
            answered.set_result([None if each.name in self.of else next(held) for each in renewals])

        others.add_done_callback(known)
        return answered


def test_renewal_of_unknown_result_puts_only_that_lease_at_risk() -> None:
    """It is at risk, and lost at its deadline; those renewed in the same call are as they were."""

    async def play() -> None:
        store = Unsure(MemoryStore(MemoryServer()))
        async with aiolock.connect(store, ttl=9) as client:
            sure = await client.lock("sure").acquire()
            lease = await client.lock("a").acquire()
            store.of.add("lock:a")
            await asyncio.sleep(4)
            assert len(store.calls[0]) == 2, "both are renewed in one call"
            assert (sure.state, lease.state) == ("held", "at_risk")
            with pytest.raises(aiolock.StoreError, match="cannot tell whether the lock 'a' is"):
                await lease.verify()
            with pytest.raises(aiolock.StoreError, match="cannot tell whether the lock 'a' is"):
                await lease.extend(9)
            await asyncio.sleep(4.5)
            assert (sure.state, lease.state) == ("held", "at_risk")
            await asyncio.sleep(1)
            assert (sure.state, lease.state) == ("held", "lost")
            assert await sure.release()

    run(play())


def test_renewal_of_unknown_result_is_repeated_until_the_store_can_tell() -> None:
    """It is asked again, and held once the store can tell; refused, it is lost at once."""

    async def play() -> None:
        faulty = FaultyStore(MemoryStore(MemoryServer()))
        store = Unsure(faulty)
        async with aiolock.connect(store, ttl=9) as client:
            lock = client.lock("a")
            lease = await lock.acquire()
            store.of.add("lock:a")
            await asyncio.sleep(7)
            assert lease.state == "at_risk"
            store.of.clear()
            await asyncio.sleep(13)
            assert lease.state == "held"
            store.of.add("lock:a")
            await asyncio.sleep(4)
            assert lease.state == "at_risk"
            faulty.lose("push")
            await store.submit(Break("lock:a", [lease.fence]))
            await asyncio.sleep(0)
            assert lease.state == "at_risk"
            store.of.clear()
            left = lease.remaining()
            await asyncio.sleep(2)
            assert left > 2
            assert lease.state == "lost"

    run(play())


class Refusing(Wrapped):
    """A store that has none of the leases any more, and whose pushes of that are lost."""

    def submit(self, operation: Operation[Value]) -> asyncio.Future[Value]:
        """Renew none."""
        if not isinstance(operation, Renew):
            return super().submit(operation)
        loop = asyncio.get_running_loop()
        refused: asyncio.Future[Any] = loop.create_future()
        loop.call_soon(refused.set_result, [False] * len(operation.renewals))
        return refused


def test_renewals_refused_together_lose_each_lease() -> None:
    """Each of them is lost, in parts; but who has asked about one knows that when it goes on."""

    async def play() -> None:
        async with aiolock.connect(Refusing(MemoryStore(MemoryServer())), ttl=9) as client:
            asked = [await client.lock(f"asked {number}").acquire() for number in range(100)]
            told = await asyncio.gather(*[each.extend(9) for each in asked], return_exceptions=True)
            assert {type(each) for each in told} == {aiolock.LeaseLost}
            renewed = [await client.lock(f"renewed {number}").acquire() for number in range(100)]
            await asyncio.sleep(4)
            assert {each.state for each in renewed} == {"lost"}

    run(play())


def test_periodic_claim_that_cannot_be_confirmed_is_given_back() -> None:
    """The claim is given back, and it asks for its place: no run begins before it is sure."""

    async def play() -> None:
        store = Unsure(MemoryStore(server := MemoryServer()))
        async with aiolock.connect(store) as ours, aiolock.connect(server) as theirs:
            store.of.add("periodic:a")
            async with theirs.periodic("a", every=60):
                entering = asyncio.create_task(ours.periodic("a", every=60).__aenter__())
                await queued(theirs.periodic("a", every=60), 1)
                await asyncio.sleep(60)  # so that it is open when they let go
            lease = await asyncio.wait_for(entering, 70)
            assert [each.name for each in store.calls[0]] == ["periodic:a"]
            assert lease.fence > store.calls[0][0].fence

    run(play())


@pytest.mark.one_loop
def test_timer_wheel_after_many_leases_keeps_few_slots() -> None:
    """What was held and released leaves nothing in the watchdog but a number here and there."""

    async def play() -> None:
        async with aiolock.connect(MemoryServer()) as client:
            watchdog = client._engine.watchdog
            for ttl in (0.5, 30, 86400, 7 * 86400):
                for _ in range(500):
                    async with client.lock("a", ttl=ttl):
                        await asyncio.sleep(0.05)
                assert not watchdog.wheel._slots
                assert len(watchdog.wheel._order) == len(watchdog.wheel._ordered) <= 200
            async with contextlib.AsyncExitStack() as stack:
                for number in range(400):
                    await stack.enter_async_context(client.lock(f"{number}", ttl=86400))
                    await asyncio.sleep(5)
                assert len(watchdog.wheel._slots) <= 200
                await asyncio.sleep(86400)
                assert len(watchdog.holds) == 400, "and each of them is renewed in time"

    run(play())


def test_renewal_of_a_lease_of_ten_milliseconds_comes_at_a_third_of_it() -> None:
    """A lease of some milliseconds has one alarm at a time."""

    async def play() -> None:
        faulty = FaultyStore(MemoryStore(MemoryServer()))
        async with aiolock.connect(faulty) as client, client.lock("a", ttl=0.01):
            await asyncio.sleep(1)
        # In a third of what is certain of 10 ms, which is 7.9.
        assert 300 <= faulty.calls["renew"] <= 480

    run(play())


async def test_lease_after_a_suspension_longer_than_its_ttl_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a suspension, of which the loop's clock knows nothing, what has ended is lost soon."""
    asleep = 0.0

    def clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
        return lambda: loop.time() + asleep

    monkeypatch.setattr("aiolock._engine.watchdog.clock", clock)
    monkeypatch.setattr("aiolock._engine.watchdog._AWAKE", 0.02)
    async with aiolock.connect(MemoryServer()) as client:
        lease = await client.lock("a", ttl=3600).acquire()
        assert lease.remaining() > 3000
        asleep = 3650.0
        await asyncio.wait_for(lease.lost.wait(), 30)
        assert lease.remaining() == 0
        lease = await client.lock("b", ttl=3600).acquire()
        asleep += 1000
        await asyncio.sleep(0.1)
        assert lease.state == "held"
        assert lease.remaining() < 2600
        await lease.release()


async def test_watchdog_clock_counts_suspension_except_on_a_loop_with_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On Linux deadlines are reckoned by such a clock; on a loop with its own time by that."""
    read, asleep = time.clock_gettime, 0.0

    def gettime(which: int) -> float:
        return read(which) + (asleep if which == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr(time, "clock_gettime", gettime)
    async with aiolock.connect(MemoryServer()) as client:
        watchdog = client._engine.watchdog
        if hasattr(time, "CLOCK_BOOTTIME"):
            before, asleep = watchdog.time(), 3600.0
            assert watchdog.time() - before >= 3600
        else:
            assert watchdog.time == asyncio.get_running_loop().time

    async def play() -> None:
        async with aiolock.connect(MemoryServer()) as client:
            assert client._engine.watchdog.time() == asyncio.get_running_loop().time()

    await asyncio.to_thread(run, play())


@pytest.mark.one_loop
def test_waiters_displaced_together_ask_again_once_each() -> None:
    """Of 2,000 waiters that lost their places each asks once more, and none looks at all."""

    async def play() -> None:
        server = MemoryServer()
        faulty = FaultyStore(MemoryStore(server))
        async with aiolock.connect(faulty) as client, aiolock.connect(server) as theirs:
            held = await theirs.lock("a", ttl=3600).acquire()
            waiting = [asyncio.create_task(client.lock("a").acquire()) for _ in range(2000)]
            await asyncio.sleep(1)
            state = server._states["lock:a"]
            state.queue.clear()
            state.waiting.clear()
            passes = 0
            again = client._engine.waiters._ask_for_displaced

            def counted(key: str) -> None:
                nonlocal passes
                passes += 1
                again(key)

            client._engine.waiters._ask_for_displaced = counted  # type: ignore[method-assign]  # to count it
            asked = faulty.calls["acquire"]
            client._engine.waiters.deliver(AskAgain("lock:a"))  # the first of them asks again
            await asyncio.sleep(1)
            assert faulty.calls["acquire"] - asked == 2000
            assert passes <= 3
            assert len(state.queue) == 2000
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            await held.release()

    run(play())
