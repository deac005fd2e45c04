"""Several locks as one: all or none, without deadlock, lost when one is lost."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import anyio
import pytest

import aiolock
from aiolock import AcquireTimeout, LeaseLost, LockError, NotHeld, StoreError, WouldDeadlock
from aiolock._engine.lease_state import LossReason
from aiolock.observer import LockRequest
from aiolock.options import MultiLockOptions
from aiolock.protocol import LinkChanged
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.worlds import World, empty, queued, settled, virtual


async def free(client: aiolock.LockClient, *names: str) -> bool:
    """Whether nobody holds any of them."""
    return not any([await client.lock(name).locked() for name in names])


async def test_multilock_entered_holds_all_names_and_frees_them_after(world: World) -> None:
    """The body has all of them, each with its fence; after it all are free."""
    async with world.client() as ours, world.client() as theirs:
        both = ours.multilock("b", "a", "b")
        assert both.names == ("a", "b")
        async with both as lease:
            assert set(lease.leases) == {"a", "b"}
            assert lease.state == "held"
            assert 0 < lease.remaining() <= 30
            assert await lease.verify()
            await lease.extend(20)
            assert lease.remaining() <= 20
            for name in "ab":
                assert await theirs.lock(name).try_acquire() is None
            async with theirs.lock("c", timeout=0):
                pass
        assert lease.state == "released"
        assert await free(theirs, "a", "b")


async def test_multilock_acquire_holds_all_names_or_none(world: World) -> None:
    """`acquire` gives one lease, whose release gives all back; or None, and none is held."""
    async with world.client() as ours, world.client() as theirs:
        both = ours.multilock("a", "b")
        lease = await both.acquire()
        assert lease is not None
        assert await theirs.multilock("b", "c").try_acquire(timeout=0.5) is None
        with pytest.raises(AcquireTimeout, match="'b'"):
            await theirs.multilock("b", "c").acquire(timeout=0.5)
        assert await theirs.multilock("b", "c").try_acquire() is None
        assert await free(theirs, "c")
        assert await lease.release()
        assert await lease.release()
        async with theirs.lock("b"):
            assert await both.try_acquire(timeout=0.5) is None
            await empty(theirs.lock("a"))
            with pytest.raises(AcquireTimeout, match="'b'"):
                async with ours.multilock("a", "b", timeout=0.5):
                    raise AssertionError
            await empty(theirs.lock("a"))


@virtual
async def test_multilocks_named_in_opposite_orders_do_not_deadlock() -> None:
    """Two who name the same locks in opposite orders do not wait for each other."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        first = await theirs.multilock("a", "b").acquire()
        assert first is not None
        waiting = [
            asyncio.create_task(client.multilock(*names).acquire())
            for client, names in ((ours, ("a", "b")), (theirs, ("b", "a")))
        ]
        await settled()  # each of them waits for the first that it wants
        await first.release()
        for asked in waiting:
            async with asyncio.timeout(60):
                second = await asked
            assert second is not None
            await second.release()


@virtual
async def test_multilocks_of_random_names_all_get_their_turn() -> None:
    """Many who want several of the same names in any order all get them."""
    server, dice, entered = MemoryServer(), random.Random(7), 0
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:

        async def work(client: aiolock.LockClient) -> None:
            nonlocal entered
            for _ in range(20):
                async with client.multilock(*dice.sample("abcdef", k=3)):
                    await asyncio.sleep(dice.random())
                    entered += 1

        async with asyncio.timeout(3600), asyncio.TaskGroup() as group:
            for client in (ours, theirs) * 5:
                group.create_task(work(client))
        assert entered == 200
        assert not server.names()


@virtual
async def test_timeout_of_a_multilock_counts_for_all_names_together() -> None:
    """The timeout is for all of them together."""
    loop = asyncio.get_running_loop()
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        a = await theirs.lock("a").acquire()
        b = await theirs.lock("b").acquire()
        assert a is not None
        assert b is not None
        loop.call_later(3, lambda: asyncio.ensure_future(a.release()))
        start = loop.time()
        assert await ours.multilock("a", "b").try_acquire(timeout=5) is None
        assert 5 <= loop.time() - start < 5.01
        a = await theirs.lock("a").acquire()
        loop.call_later(3, lambda: asyncio.ensure_future(a.release()))
        text = r"'b' could not be had in the last 2\.000 s of 5 s: .* has held it since"
        with pytest.raises(AcquireTimeout, match=text) as late:
            await ours.multilock("a", "b").acquire(timeout=5)
        assert 5 <= late.value.waited < 5.01
        await b.release()
        assert not server.names()


@virtual
@pytest.mark.parametrize(
    ("timeout", "free_after", "broken", "error"),
    [
        (5, 4.9, False, AcquireTimeout),
        (5, 5 - 0.004, False, AcquireTimeout),
        (5, 5 - 0.004, True, StoreError),
        (5, 3, False, StoreError),  # the store had longer than `answer_timeout`
        (0.5, 0.1, False, StoreError),  # it had most of the time
    ],
)
@pytest.mark.parametrize("how", ["acquire", "async with", "try_acquire"])
async def test_timeout_of_a_multilock_tells_a_slow_store_from_a_late_question(
    how: str, timeout: float, free_after: float, broken: bool, error: type[LockError]
) -> None:
    """If little of it was left, the store is not to blame: the time for all has passed."""
    loop, told = asyncio.get_running_loop(), list[str]()

    class Log(aiolock.Observer):
        def gave_up(self, request: LockRequest, *, why: str, **_: object) -> None:
            told.append(f"{request.name} {why}")

    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with (
        aiolock.connect(faulty, observer=Log()) as ours,
        aiolock.connect(server) as theirs,
    ):
        first = await theirs.lock("a").acquire()
        both = ours.multilock("a", "b", timeout=timeout)

        async def take() -> None:
            if how == "acquire":
                await both.acquire()
            elif how == "async with":
                async with both:
                    raise AssertionError
            else:
                assert await both.try_acquire(timeout=timeout) is None
                raise AcquireTimeout

        def free() -> None:
            faulty.hold("acquire")
            if broken:
                ours._engine.waiters.deliver(LinkChanged(StoreError("gone")))
            releasing.append(asyncio.create_task(first.release()))

        releasing = list[asyncio.Task[bool]]()
        loop.call_later(free_after, free)
        start = loop.time()
        with pytest.raises(error) as raised:
            await take()
        assert timeout <= loop.time() - start < timeout + 0.01
        if isinstance(raised.value, AcquireTimeout):
            assert told == ["b timeout"]
            if how != "try_acquire":
                assert raised.value.waited >= timeout
                assert raised.value.name == "b"
                assert str(raised.value).startswith("the lock 'b' could not be had in the last 0.")
                assert str(raised.value).endswith(" s of 5 s")
        else:
            assert told == ["b store"]
        faulty.resume()
        await releasing[0]
        await settled()
        assert not server.names()


@virtual
async def test_loss_of_one_lock_loses_the_multilock_and_frees_the_others() -> None:
    """The body is cancelled, `LeaseLost` names the one that was lost, and the others are free."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        leases: list[aiolock.MultiLease] = []

        async def body() -> None:
            async with ours.multilock("a", "b", "c") as lease:
                leases.append(lease)
                await theirs.lock("b").break_()
                await asyncio.sleep(60)

        with pytest.raises(LeaseLost, match="'b'"):
            await body()
        (lease,) = leases
        assert lease.state == "lost"
        assert lease.lost.is_set()
        assert lease.remaining() == 0
        assert not server.names()


@virtual
async def test_loss_of_all_locks_at_once_raises_one_lease_lost() -> None:
    """Where the store is gone all of them are lost, the body is cancelled, and it is one error."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        faulty.refuse("renew", 1000)
        with pytest.raises(LeaseLost):
            async with client.multilock("a", "b", "c", ttl=2):
                await asyncio.sleep(60)
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()


@virtual
async def test_loss_of_the_first_while_waiting_for_the_second_raises_lease_lost() -> None:
    """Who loses the first while waiting for the second gets none, and hears it."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        async with theirs.lock("b"):
            waiting = asyncio.create_task(ours.multilock("a", "b").acquire())
            await queued(theirs.lock("b"), 1)
            await theirs.lock("a").break_()
        with pytest.raises(LeaseLost, match="'a'"):
            await waiting
        async with theirs.lock("b"):

            async def enter() -> None:
                async with ours.multilock("a", "b"):
                    raise AssertionError

            entering = asyncio.create_task(enter())
            await queued(theirs.lock("b"), 1)
            await theirs.lock("a").break_()
            with pytest.raises(LeaseLost, match="'a'"):
                await entering
        assert not server.names()


@virtual
async def test_loss_with_on_lost_signal_sets_the_event_of_the_multilease() -> None:
    """With `on_lost="signal"` the event of all is set, and the body goes on."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        async with ours.multilock("a", "b", on_lost="signal") as lease:
            await theirs.lock("a").break_()
            await asyncio.wait_for(lease.lost.wait(), 5)
            assert lease.state == "lost"
        assert not server.names()


@virtual
async def test_loss_while_waiting_with_on_lost_signal_sets_both_events() -> None:
    """Its own event is set as well as that of them all."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:

        async def enter() -> None:
            async with ours.multilock("a", "b", on_lost="signal") as lease:
                assert lease.lost.is_set()
                assert lease.leases["a"].lost.is_set()
                assert not lease.leases["b"].lost.is_set()

        async with theirs.lock("b"):
            entering = asyncio.create_task(enter())
            await queued(theirs.lock("b"), 1)
            await theirs.lock("a").break_()
            await asyncio.sleep(0.1)
        await entering


@virtual
async def test_release_whose_first_answer_fails_still_releases_the_others() -> None:
    """All of them are sent, whatever becomes of the first answer."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as client:
        lease = await client.multilock("a", "b").acquire()
        assert lease is not None
        faulty.refuse("release")
        with pytest.raises(StoreError):
            await lease.release()
        assert server.names() == ["lock:a"]


NAMES = [f"name:{number:03}" for number in range(300)]


@pytest.mark.parametrize("how", ["acquire", "async with"])
@pytest.mark.parametrize("steps", [0, 1, 2, 3])
@virtual
async def test_release_of_many_that_is_cancelled_is_carried_out(how: str, steps: int) -> None:
    """Others have turns before its end; cancelled in one of these, it releases all the same."""
    server = MemoryServer()
    async with aiolock.connect(server) as client:
        begun = asyncio.Event()

        async def use() -> None:
            many = client.multilock(*NAMES)
            if how == "acquire":
                lease = await many.acquire()
                begun.set()
                await lease.release()
            else:
                async with many:
                    begun.set()

        task = asyncio.create_task(use())
        await begun.wait()
        for _ in range(steps):
            await asyncio.sleep(0)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await settled()
        assert not server.names()
        assert not client._engine.watchdog.holds


@virtual
async def test_acquire_of_many_with_the_last_taken_releases_the_others() -> None:
    """All others are released again, and cancelled meanwhile they are, too."""
    server = MemoryServer()
    async with (
        aiolock.connect(server) as ours,
        aiolock.connect(server) as theirs,
        theirs.lock(NAMES[-1]) as last,
    ):
        many = ours.multilock(*NAMES, timeout=0)
        assert await many.try_acquire() is None
        with pytest.raises(AcquireTimeout):
            await many.acquire()
        with pytest.raises(AcquireTimeout):
            async with many:
                raise AssertionError
        await settled()
        assert server.names() == [f"lock:{last.name}"]
        waiting = asyncio.create_task(ours.multilock(*NAMES).acquire())
        await queued(theirs.lock(last.name), 1)
        waiting.cancel()
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await settled()
        assert server.names() == [f"lock:{last.name}"]


@pytest.mark.parametrize("how", ["acquire", "async with", "release"])
async def test_multilock_of_many_in_a_cancelled_scope_releases_in_parts(how: str) -> None:
    """Every pause is cancelled there, and the others have turns all the same."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        holds, counts = ours._engine.watchdog.holds, list[int]()
        lease = await ours.multilock(*NAMES[:-1]).acquire() if how == "release" else None

        async def look() -> None:
            all_held = len(NAMES) - 1
            async with asyncio.timeout(30):
                while (len(holds) < all_held) == (how != "release"):  # noqa: ASYNC110  # no Event
                    await asyncio.sleep(0)
            scope.cancel()
            while holds:
                counts.append(len(holds))
                await asyncio.sleep(0)

        async with theirs.lock(NAMES[-1]):
            looking = asyncio.create_task(look())
            with anyio.CancelScope() as scope:
                if lease is not None:
                    await lease.release()
                elif how == "acquire":
                    await ours.multilock(*NAMES).acquire()
                else:
                    async with ours.multilock(*NAMES):
                        raise AssertionError
            assert scope.cancelled_caught
            await looking
            await settled()
            assert server.names() == [f"lock:{NAMES[-1]}"]
    assert max(before - after for before, after in pairwise([*counts, 0])) <= 150


@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("how", ["acquire", "async with"])
@virtual
async def test_multilock_that_loses_one_of_many_before_entry_raises_lease_lost(
    how: str, number: int
) -> None:
    """Others have turns before the caller has its lease: what is lost then is known to be."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        entered = list[None]()

        async def take() -> None:
            many = ours.multilock(*NAMES)
            if how == "acquire":
                await many.acquire()
                entered.append(None)
            else:
                async with many:
                    entered.append(None)
                    await asyncio.sleep(60)

        taking = asyncio.create_task(take())
        holds = ours._engine.watchdog.holds
        async with asyncio.timeout(30):
            while len(holds) < len(NAMES):  # noqa: ASYNC110  # it sets no Event
                await asyncio.sleep(0)
        ours._engine.watchdog.lose([*holds.values()][number], LossReason.EXPIRED)
        await asyncio.wait([taking])
        assert not entered
        with pytest.raises(LeaseLost, match=NAMES[number]):
            await taking
        await settled()
        await theirs.multilock(*NAMES[:-1] if number else NAMES[1:]).acquire()


@virtual
async def test_verify_and_extend_of_many_reach_each_of_them() -> None:
    """Each of them is asked for, though in parts."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        lease = await ours.multilock(*NAMES, ttl=10).acquire()
        assert await lease.verify()
        await lease.extend(100)
        assert lease.remaining() > 90
        await theirs.lock(NAMES[-1]).break_()
        assert not await lease.verify()
        with pytest.raises(LeaseLost, match=NAMES[-1]):
            await lease.extend(100)
        assert not await lease.release()
        assert not server.names()


async def test_multilock_options_apply_to_each_lock() -> None:
    """Each lock has all options, as if it was made by itself."""
    async with aiolock.connect("memory://") as client:
        options: MultiLockOptions = {"ttl": 7, "max_hold": 60, "max_waiters": 3}
        for lock in client.multilock("b", "a", "c", **options)._locks:
            alone = client.lock(lock.name, **options)._policy
            assert lock._policy == alone
            assert (lock._policy.key, lock._policy.lease) == (alone.key, alone.lease)


async def test_multilock_with_a_name_already_held_raises_would_deadlock(world: World) -> None:
    """A task that holds one of them gets `WouldDeadlock`, and the others are given back."""
    async with world.client() as client, client.lock("b"):
        with pytest.raises(WouldDeadlock, match="'b'"):
            await client.multilock("a", "b").acquire()
        with pytest.raises(WouldDeadlock, match="'b'"):
            async with client.multilock("a", "b"):
                raise AssertionError
        assert await client.lock("a").try_acquire(timeout=5) is not None


async def test_aexit_of_a_multilock_not_entered_raises_not_held() -> None:
    """An exit without an entrance is an error that says so."""
    async with aiolock.connect("memory://") as client:
        with pytest.raises(NotHeld, match="has not entered"):
            await client.multilock("a").__aexit__(None, None, None)


async def test_multilock_with_invalid_arguments_raises_type_or_value_error() -> None:
    """What cannot be is refused before anything is sent."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        with pytest.raises(ValueError, match="at least one name"):
            async with client.multilock():
                raise AssertionError
        with pytest.raises(TypeError, match="must be a str"):
            async with client.multilock("a", 1):  # type: ignore[arg-type]  # on purpose
                raise AssertionError
        with pytest.raises(ValueError, match="timeout"):
            async with client.multilock("a", timeout=-1):
                raise AssertionError
        with pytest.raises(ValueError, match="timeout"):
            await client.multilock("a").acquire(timeout=-1)
        with pytest.raises(ValueError, match="timeout"):
            await client.multilock("a").try_acquire(timeout=-1)
    assert faulty.calls == {"open": 1}


@virtual
async def test_state_of_a_multilease_is_the_worst_of_its_leases() -> None:
    """From lost over released and detached to held."""
    async with aiolock.connect("memory://") as client:
        lease = await client.multilock("a", "b", "c").acquire()
        a, b, c = lease.leases.values()
        assert lease.state == "held"
        token = await a.detach()
        assert lease.state == "detached"
        assert "detached" in repr(lease)
        await b.release()
        assert lease.state == "released"
        assert await client.lock("c").break_()
        await settled()
        assert (lease.state, c.state) == ("lost", "lost")
        assert await client.discard(token)
