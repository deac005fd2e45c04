"""Tenants share a lock, or the permits of a semaphore, fairly: `share=` and `weight=`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import pytest

import aiolock
import aiolock.sync
from aiolock.integrations._names import BadName, LockOf
from aiolock.integrations._tasks import TaskLocks
from aiolock.stores.memory import MemoryServer
from tests.support.cancel import KINDS, Kind, cancel_everywhere
from tests.support.worlds import World, empty, queued, virtual


class Pool:
    """Tasks that take a permit or a lock, each for its tenant, one after the other."""

    def __init__(self) -> None:
        self.order = list[str]()
        self._tasks = set[asyncio.Task[None]]()

    async def ask(self, lock: aiolock.Lock | aiolock.Semaphore, tenant: str) -> None:
        """A task waits for it, behind those that wait."""

        async def run() -> None:
            async with lock:
                self.order.append(tenant)

        waiting = len((await lock.status()).waiters)
        self._tasks.add(asyncio.create_task(run()))
        await queued(lock, waiting + 1)

    async def done(self) -> None:
        """All have had their turn."""
        await asyncio.gather(*self._tasks)


async def test_share_of_a_lock_has_its_turn_however_many_others_wait(world: World) -> None:
    """In each of two processes; a tenant with one waiter is not behind all of another."""
    pool = Pool()
    async with world.client() as ours, world.client() as theirs:
        async with ours.lock("l", share="busy"):
            for number in range(4):
                await pool.ask((ours, theirs)[number % 2].lock("l", share="busy"), "busy")
            await pool.ask(theirs.lock("l", share="quiet"), "quiet")
            await pool.ask(ours.lock("l", share="late"), "late")
            status = await ours.lock("l").status()
            assert [each.share for each in status.holders] == ["busy"]
            assert [each.place for each in status.waiters] == [1, 2, 3, 4, 1, 1]
        await pool.done()
        assert pool.order == ["busy", "quiet", "late", "busy", "busy", "busy"]
        await empty(ours.lock("l"))


async def test_share_of_a_semaphore_that_holds_least_for_its_weight_is_next(world: World) -> None:
    """Of four permits, a tenant of weight 3 has three while another waits, too."""
    async with world.client() as client:
        big = client.semaphore("s", 4, share="big", weight=3)
        small = client.semaphore("s", 4, share="small")
        leases = [await small.acquire() for _ in range(4)]
        tasks = [asyncio.create_task(_acquire(pool)) for pool in [small] * 4 + [big] * 4]
        await queued(small, 8)
        for lease in leases:
            await lease.release()
        async with asyncio.timeout(30):
            while len((await small.status()).waiters) > 4:  # noqa: ASYNC110  # nobody is told
                await asyncio.sleep(0.001)
        held = Counter(each.share for each in (await small.status()).holders)
        assert held == {"big": 3, "small": 1}
        for _ in tasks:
            done = [task for task in tasks if task.done()]
            await done[0].result().release()
            tasks.remove(done[0])
            await asyncio.sleep(0.01)
        for task in tasks:
            await (await task).release()
        await empty(small)


async def _acquire(semaphore: aiolock.Semaphore) -> aiolock.Lease:
    return await semaphore.acquire()


async def test_max_waiters_of_a_share_counts_that_share(world: World) -> None:
    """A flood of one tenant is refused, and no other one is."""
    async with world.client() as client:
        busy = client.semaphore("s", 1, share="busy", max_waiters=2)
        quiet = client.semaphore("s", 1, share="quiet", max_waiters=2)
        pool = Pool()
        async with busy:
            await pool.ask(busy, "busy")
            await pool.ask(busy, "busy")
            with pytest.raises(aiolock.QueueFull, match=r"^2 of the share 'busy' wait for"):
                await busy.acquire()
            await pool.ask(quiet, "quiet")
        await pool.done()
        assert pool.order == ["busy", "quiet", "busy"]


async def test_permit_that_is_handed_on_is_held_by_its_share_all_the_time(world: World) -> None:
    """While it is detached, and when it is adopted: another share is next until it is released."""
    async with world.client() as ours, world.client() as theirs:
        busy = ours.semaphore("s", 2, share="busy", weight=0.5)
        quiet = ours.semaphore("s", 2, share="quiet")
        lease, other, pool = await busy.acquire(), await quiet.acquire(), Pool()
        for semaphore, tenant in ((busy, "busy"), (quiet, "quiet"), (busy, "busy")):
            await pool.ask(semaphore, tenant)
        token = await lease.detach(ttl=60)
        (detached,) = (each for each in (await quiet.status()).holders if each.detached)
        assert (detached.share, detached.weight) == ("busy", 0.5)
        async with theirs.adopt(token) as adopted:
            await other.release()
            async with asyncio.timeout(30):
                while not pool.order:  # noqa: ASYNC110  # nobody is told
                    await asyncio.sleep(0.001)
            assert pool.order[0] == "quiet"
            shares = {each.share for each in (await quiet.status()).holders if each.fence}
            assert "busy" in shares
            assert adopted.fence
        await pool.done()
        await empty(quiet)


@virtual
async def test_share_of_tasks_of_one_client_is_granted_by_the_store() -> None:
    """Nothing with a share is handed off locally; what has none is, in order."""
    server, pool = MemoryServer(), Pool()
    async with aiolock.connect(server) as client:
        async with client.lock("l"):
            for tenant in ("", "", "a", "a", "b", "", ""):
                await pool.ask(client.lock("l", share=tenant or None), tenant)
        await pool.done()
        assert pool.order == ["", "", "a", "b", "a", "", ""]
    assert not server.names()


@virtual
async def test_one_busy_tenant_costs_twenty_others_less_than_a_second() -> None:
    """15 permits, calls of a second; one has 1,000 waiters, then 20 have one each."""
    waited = dict[str, float]()
    async with aiolock.connect(MemoryServer()) as client:
        loop = asyncio.get_running_loop()

        async def call(share: str, tenant: str, seconds: float = 1.0) -> None:
            began = loop.time()
            async with client.semaphore("llm", 15, share=share):
                waited[tenant] = loop.time() - began
                await asyncio.sleep(seconds)

        async with asyncio.TaskGroup() as group:
            for number in range(1000):
                # Not all calls begin at the same moment.
                seconds = (number + 1) / 15 if number < 15 else 1.0
                group.create_task(call("busy", f"busy {number}", seconds))
            await asyncio.sleep(0.01)
            for number in range(20):
                group.create_task(call(f"t{number}", f"t{number}"))
    others = [waited[f"t{number}"] for number in range(20)]
    assert max(others) < 1.4
    assert sum(others) / 20 < 0.8
    assert 66 < max(waited.values()) < 69


@pytest.mark.one_loop
@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_cancel_at_any_step_of_a_share_leaves_nothing(kind: Kind) -> None:
    """Whether it waits, is granted, or holds: the others have their turns."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:

        async def scenario() -> None:
            async with theirs.semaphore("s", 2, share="b").acquire(2):
                one = asyncio.create_task(_use(ours.semaphore("s", 2, share="a")))
                await queued(ours.semaphore("s", 2), 1)
            async with ours.semaphore("s", 2, share="a", weight=3).acquire(2):
                pass
            await one

        async for _ in cancel_everywhere(scenario, [kind]):
            await empty(ours.semaphore("s", 2))
            assert await ours.semaphore("s", 2).try_acquire(2) is not None
            for holder in (await ours.semaphore("s", 2).status()).holders:
                await ours.semaphore("s", 2).break_(holder.fence)


async def _use(semaphore: aiolock.Semaphore) -> None:
    async with semaphore:
        pass


WRONG: Final[list[tuple[dict[str, Any], type[Exception], str]]] = [
    ({"share": 7}, TypeError, "share must be a str or None, not 7"),
    ({"share": ""}, ValueError, "1 to 64 printable characters, or be None, not ''"),
    ({"share": "x" * 65}, ValueError, "1 to 64 printable"),
    ({"share": "a\nb"}, ValueError, "printable"),
    ({"share": "\ud800"}, ValueError, "printable"),
    ({"share": "a", "weight": "2"}, TypeError, "weight must be a number, not '2'"),
    ({"share": "a", "weight": True}, TypeError, "weight must be a number, not True"),
    ({"share": "a", "weight": 0}, ValueError, "weight must be from 0.01 to 100, not 0"),
    ({"share": "a", "weight": 101}, ValueError, "from 0.01 to 100"),
    ({"share": "a", "weight": float("nan")}, ValueError, "from 0.01 to 100"),
    ({"weight": 2}, ValueError, "weight=2 is that of a share: give share=, too"),
    ({"weight": None}, TypeError, "weight must be a number"),
]


@pytest.mark.one_loop
@pytest.mark.parametrize(("options", "error", "match"), WRONG)
def test_share_that_is_invalid_raises_where_it_is_described(
    options: dict[str, Any], error: type[Exception], match: str
) -> None:
    """The text says what is right."""
    client, threads = aiolock.connect("memory://"), aiolock.sync.connect("memory://")
    describe: list[Callable[..., object]] = [client.lock, threads.lock, client.locked]
    for each in describe:
        with pytest.raises(error, match=match):
            each("x", **options)
    with pytest.raises(error, match=match):
        client.semaphore("x", 2, **options)


@pytest.mark.one_loop
def test_share_is_an_option_of_locks_and_semaphores_alone() -> None:
    """Others are in order of arrival, or enter together."""
    client: Any = aiolock.connect("memory://")
    for name in ("rwlock", "multilock", "election", "once", "latch", "event", "barrier"):
        with pytest.raises(TypeError, match="unexpected keyword argument 'share'"):
            getattr(client, name)("x", share="a")
    for name, option in (("path_lock", "share"), ("rwlock", "share"), ("path_lock", "weight")):
        with pytest.raises(TypeError, match=r"shares are for lock\(\), semaphore\(\)"):
            getattr(client, name)("x", **{option: 2})


@pytest.mark.one_loop
def test_quorum_has_no_shares() -> None:
    """The reason is in the error."""
    client = aiolock.connect([MemoryServer() for _ in range(3)])
    with pytest.raises(aiolock.Unsupported, match=r"no share of 'x' on .*no order: use one server"):
        client.lock("x", share="a")
    client.lock("x")


@virtual
async def test_share_of_a_decorated_function_is_formatted_as_its_name() -> None:
    """From the arguments of the call; for threads and tasks, too."""
    seen = list[tuple[str, str]]()
    async with aiolock.connect(MemoryServer()) as client:

        async def note(name: str) -> None:
            for kind in ("lock", "semaphore"):
                for holder in (await client.status(name, kind=kind)).holders:
                    seen.append((name, f"{holder.share} {holder.weight}"))

        @client.locked("model:{model}", share="{tenant}", weight=2)
        async def ask(model: str, *, tenant: str = "none") -> None:
            await note(f"model:{model}")

        await ask("m", tenant="acme")
        await ask("n")
        locks = TaskLocks(client, put_back=_put_back)

        @locks.limited("gpu", 3, share="team {team}")
        async def task(team: int) -> None:
            await note("gpu")

        await task(7)
        with pytest.raises(ValueError, match="names tenant, but the parameters of"):

            @client.locked("x", share="{tenant}")
            async def other() -> None: ...

        with pytest.raises(ValueError, match="printable"):
            await ask("m", tenant="")
    assert seen == [("model:m", "acme 2.0"), ("model:n", "none 2.0"), ("gpu", "team 7 1.0")]


async def _put_back(error: aiolock.LockError, _: object) -> BaseException:
    return error


def test_share_of_a_function_for_threads_is_formatted_as_its_name() -> None:
    """As for tasks."""
    with aiolock.sync.connect("memory://shares") as client:

        @client.locked("model", share="{tenant}")
        def ask(tenant: str) -> list[str]:
            return [holder.share for holder in client.status("model").holders]

        assert ask("acme") == ["acme"]
        with client.semaphore("s", 2, share="b", weight=0.5):
            (holder,) = client.status("s", kind="semaphore").holders
            assert (holder.share, holder.weight) == ("b", 0.5)


@pytest.mark.one_loop
def test_share_of_a_request_has_fields_as_the_name_of_its_lock() -> None:
    """From the path or the query; a value that makes no share is the client's mistake."""
    client = aiolock.connect("memory://")
    lock = LockOf("order:{order}", query={"tenant"}, share="{tenant}", weight=0.5)
    assert lock.fields == ("order", "tenant")
    policy = lock.on(client.lock, {"order": "7", "tenant": "acme"})._policy
    assert (policy.name, policy.share, policy.weight) == ("order:7", "acme", 0.5)
    for values in ({"order": "7", "tenant": "x" * 65}, {"order": "7"}):
        with pytest.raises(BadName):
            lock.on(client.lock, values)
    assert LockOf("x", share="all").on(client.lock, {})._policy.share == "all"
    for wrong in ("{a.b}", "{", "x" * 65):
        with pytest.raises(ValueError, match=r"."):
            LockOf("x", share=wrong)
