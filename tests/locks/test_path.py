"""Nodes of a tree: who excludes whom, in which order they are taken, and one fence for all."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

import aiolock
from aiolock import AcquireTimeout, LeaseLost, PathLease, StoreError, WouldDeadlock
from aiolock.errors import Unsupported
from aiolock.options import Mode
from aiolock.protocol import Acquire, Deliver, Operation, Release, Renew
from aiolock.store import Features, Store
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.virtual import run
from tests.support.worlds import World, empty, queued, settled, virtual

TENANT, DOCUMENT, OTHER = "acme/7", "acme/7/doc/42", "acme/7/doc/43"


async def taken(client: aiolock.LockClient, path: str, mode: Any = "exclusive") -> PathLease | None:
    """The lease of a path, if it is free."""
    return await client.path_lock(path, mode=mode).try_acquire()


def excludes(one: str, shared: bool, other: str, other_shared: bool) -> bool:
    """By what the paths begin with: whether they are not held beside each other."""
    shorter, longer = sorted((one.split("/"), other.split("/")), key=len)
    return longer[: len(shorter)] == shorter and not (shared and other_shared)


# What a path is


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("path", "error", "says"),
    [
        ("", ValueError, "none of which is empty, not ''"),
        ("/acme", ValueError, "none of which is empty"),
        ("acme/", ValueError, "none of which is empty"),
        ("acme//7", ValueError, "none of which is empty, not 'acme//7'"),
        ("/".join("a" * 17), ValueError, "16 segments at most, not 17"),
        ("a" * 600, ValueError, "1 to 512 characters"),
        (7, TypeError, "a path must be a str, not 7"),
        (("acme", "7"), TypeError, "a path must be a str"),
    ],
)
def test_path_lock_of_what_is_no_path_is_refused_with_the_rule(
    path: Any, error: type[Exception], says: str
) -> None:
    """Before any I/O: the client is not even open."""
    client = aiolock.connect(MemoryServer())
    with pytest.raises(error, match=says):
        client.path_lock(path)


@pytest.mark.one_loop
def test_path_lock_with_another_mode_is_refused() -> None:
    """There are two."""
    client: Any = aiolock.connect(MemoryServer())
    with pytest.raises(ValueError, match="mode must be 'exclusive' or 'shared', not 'write'"):
        client.path_lock("a", mode="write")
    with pytest.raises(TypeError, match="unexpected keyword argument 'min_hold'"):
        client.path_lock("a", min_hold=1)


@pytest.mark.one_loop
def test_path_lock_describes_its_nodes_root_first() -> None:
    """The description says which names are taken; the mode and the options are shown."""
    lock = aiolock.connect(MemoryServer()).path_lock(DOCUMENT, mode="shared", ttl=7)
    assert lock.nodes == ("acme", "acme/7", "acme/7/doc", DOCUMENT)
    assert (lock.name, lock.mode) == (DOCUMENT, "shared")
    assert repr(lock) == "<PathLock 'acme/7/doc/42' shared ttl=7>"


@pytest.mark.one_loop
def test_path_lock_of_sixteen_segments_is_the_deepest() -> None:
    """One more is an error, see above."""
    lock = aiolock.connect(MemoryServer()).path_lock("/".join("a" * 16))
    assert len(lock.nodes) == 16


@pytest.mark.one_loop
def test_path_lock_on_a_quorum_is_unsupported_with_the_reason() -> None:
    """Before any I/O; it says what to use instead."""
    client = aiolock.connect([MemoryServer(), MemoryServer(), MemoryServer()])
    with pytest.raises(Unsupported, match=r"no path 'a/b' on .*who shares a node is counted there"):
        client.path_lock("a/b")


# Who excludes whom


async def test_tenant_is_locked_only_while_nobody_is_in_a_document(world: World) -> None:
    """Documents do not wait for each other; the tenant waits for all, and holds back later ones."""
    async with world.client() as ours, world.client() as theirs, world.client() as late:
        tenant, document = ours.path_lock(TENANT), theirs.path_lock(DOCUMENT)
        async with document as first:
            async with ours.path_lock(OTHER, timeout=0) as second:
                assert second.fence > first.fence
            assert await tenant.try_acquire() is None
            waiting = asyncio.create_task(tenant.acquire())
            await queued(tenant, 1)
            assert await late.path_lock(OTHER).try_acquire() is None
            async with late.path_lock("acme/8/doc/1", timeout=0):
                pass
        async with asyncio.timeout(20):
            lease = await waiting
        assert lease.fence > second.fence
        assert await document.try_acquire() is None
        assert await lease.verify()
        await lease.extend(20)
        assert lease.remaining() <= 20
        assert await lease.release()
        async with document as last:
            assert last.fence > lease.fence
        await empty(ours.path_lock("acme"))


async def test_readers_of_a_tenant_exclude_its_writers_only(world: World) -> None:
    """Beside them documents are read, and not written; and the other way round."""
    async with world.client() as ours, world.client() as theirs, world.client() as late:
        async with ours.path_lock(TENANT, mode="shared"):
            async with theirs.path_lock(DOCUMENT, mode="shared", timeout=0):
                assert await taken(late, TENANT) is None
            assert await taken(theirs, DOCUMENT) is None
        async with theirs.path_lock(DOCUMENT, timeout=5):
            assert await taken(ours, TENANT, "shared") is None
            assert await taken(ours, DOCUMENT, "shared") is None
            async with ours.path_lock(OTHER, mode="shared", timeout=0):
                pass
        await empty(ours.path_lock("acme"))


MODES: tuple[Mode, Mode] = "exclusive", "shared"
PATHS = ("a", "a/b", "a/b/c", "a/c", "ab")


@virtual
async def test_each_two_paths_exclude_each_other_as_their_beginnings_say() -> None:
    """For each two paths and modes; after it all nodes are free."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        for one, other in product(PATHS, repeat=2):
            for mode, other_mode in product(MODES, repeat=2):
                async with ours.path_lock(one, mode=mode):
                    second = await taken(theirs, other, other_mode)
                    beside = not excludes(one, mode == "shared", other, other_mode == "shared")
                    assert (second is not None) == beside, (one, mode, other, other_mode)
                    if second is not None:
                        await second.release()
        assert not server.names()


# Random leases, where each node has a clock of its own


class Nodes:
    """A store of which each name is on a server of its own, with a clock of its own."""

    features = Features(shard_of=lambda name: name)

    def __init__(self, servers: dict[str, MemoryServer], dice: random.Random) -> None:
        self._servers, self._dice = servers, dice
        self._links = dict[str, MemoryStore]()

    async def open(self, client: str, deliver: Deliver) -> None:
        self._client, self._deliver = client, deliver

    async def aclose(self) -> None:
        for link in self._links.values():
            await link.aclose()

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        name = operation.name
        if isinstance(operation, Renew):
            (name,) = {each.name for each in operation.renewals}
        link = self._links.get(name)
        if link is None:
            server = self._servers.get(name)
            if server is None:
                server = self._servers[name] = MemoryServer(self._clock())
            link = self._links[name] = MemoryStore(server)
            opening = link.open(self._client, self._deliver)
            with contextlib.suppress(StopIteration):
                opening.send(None)
        return link.submit(operation)

    def _clock(self) -> Callable[[], float]:
        """One that differs from the others, and is set back by up to 0.2 s now and then."""
        loop, dice = asyncio.get_running_loop(), self._dice
        ahead = dice.uniform(0, 0.2)

        def clock() -> float:
            nonlocal ahead
            if dice.random() < 0.05:
                ahead -= dice.uniform(0, 0.2)
            return 1e9 + loop.time() + ahead

        return clock


@pytest.mark.one_loop
@pytest.mark.parametrize("seed", range(40))
def test_leases_of_random_paths_never_conflict_and_their_fences_rise(seed: int) -> None:
    """None is stuck either, with timeouts and cancellations, on nodes with different clocks."""
    dice = random.Random(seed)
    held, ended = set[tuple[str, bool, int]](), list[tuple[str, bool, int]]()

    async def work(client: aiolock.LockClient) -> None:
        for _ in range(8):
            path = "/".join(dice.choice("ab") for _ in range(dice.randint(1, 3)))
            shared = dice.random() < 0.4
            lock = client.path_lock(path, mode="shared" if shared else "exclusive")
            with contextlib.suppress(TimeoutError):  # also its own, `AcquireTimeout`
                async with asyncio.timeout(dice.choice((None, None, 0.05))):
                    lease = await lock.acquire(timeout=dice.choice((None, None, 0.05)))
                assert not any(excludes(path, shared, *each[:2]) for each in held)
                earlier = [each[2] for each in ended if excludes(path, shared, *each[:2])]
                assert lease.fence > max(earlier, default=0)
                mine = path, shared, lease.fence
                held.add(mine)
                await asyncio.sleep(dice.random() / 10)
                held.remove(mine)
                ended.append(mine)
                await lease.release()

    async def everybody() -> None:
        servers = dict[str, MemoryServer]()
        async with (
            aiolock.connect(Nodes(servers, dice), deadlock_after=None) as ours,
            aiolock.connect(Nodes(servers, dice), deadlock_after=None) as theirs,
            asyncio.timeout(3600),
            asyncio.TaskGroup() as group,
        ):
            for client in (ours, theirs) * 3:
                group.create_task(work(client))
        assert not any(server.names() for server in servers.values())

    run(everybody(), seed)
    assert len(ended) > 20


# What one task holds already


@virtual
async def test_task_that_holds_a_document_takes_another_beside_a_waiting_tenant() -> None:
    """By the intents that it has: a second one would wait behind who waits for the first."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        async with ours.path_lock(DOCUMENT) as first:
            waiting = asyncio.create_task(theirs.path_lock(TENANT).acquire())
            await queued(theirs.path_lock(TENANT), 1)
            second = await ours.path_lock(OTHER).acquire()
            assert second.fence > first.fence
            async with ours.path_lock(f"{DOCUMENT}/page/1", timeout=0) as page:
                assert page.fence > second.fence
        await settled()
        assert not waiting.done()  # the second is held, and with it the intents of the first
        assert second.state == "held"
        assert await second.release()
        assert await (await waiting).release()
        assert not server.names()


@virtual
async def test_path_lock_that_its_task_holds_would_deadlock_unless_reentrant() -> None:
    """With `reentrant=True` it is had once more, with the same fence and no round trip."""
    server = MemoryServer()
    async with aiolock.connect(FaultyStore(MemoryStore(server))) as client:
        store: Any = client._engine.store
        async with client.path_lock(DOCUMENT) as first:
            for mode in ("exclusive", "shared"):
                with pytest.raises(WouldDeadlock, match="holds the path 'acme/7/doc/42' already"):
                    await taken(client, DOCUMENT, mode)
                again = client.path_lock(DOCUMENT, mode=mode, reentrant=True)
                store.refuse("acquire", 1)
                store.refuse("make_fence", 1)
                async with again as second:
                    assert second.fence == first.fence
                store.resume()
            assert first.state == "held"
        assert not server.names()


@virtual
@pytest.mark.parametrize(
    ("holds", "wants"),
    [
        ((TENANT, "shared"), (DOCUMENT, "exclusive")),
        ((DOCUMENT, "exclusive"), (TENANT, "shared")),
        ((DOCUMENT, "shared"), (TENANT, "exclusive")),
        ((DOCUMENT, "shared"), (OTHER, "exclusive")),
        ((TENANT, "shared"), (TENANT, "exclusive")),
    ],
)
async def test_path_lock_that_excludes_what_its_task_holds_would_deadlock(
    holds: tuple[str, Any], wants: tuple[str, Any]
) -> None:
    """It is an error at once, and leaves what was held before as it was."""
    server = MemoryServer()
    async with aiolock.connect(server) as client:
        async with client.path_lock(holds[0], mode=holds[1]) as lease:
            names = server.names()
            with pytest.raises(WouldDeadlock, match="and would wait for itself to"):
                await taken(client, *wants)
            assert server.names() == names
            assert lease.state == "held"
        assert not server.names()


@virtual
async def test_whoever_holds_a_tenant_takes_what_is_below_it() -> None:
    """Exclusive or shared, whatever the tenant's mode covers."""
    server = MemoryServer()
    async with aiolock.connect(server) as client:
        async with client.path_lock(TENANT) as tenant:
            for mode in ("exclusive", "shared"):
                async with client.path_lock(DOCUMENT, mode=mode, timeout=0) as lease:
                    assert lease.fence > tenant.fence
        readers = [client.path_lock(path, mode="shared", timeout=0) for path in (TENANT, DOCUMENT)]
        async with readers[0], readers[1]:
            pass
        assert not server.names()


# Time, loss, errors


@virtual
async def test_timeout_of_a_path_lock_counts_for_all_nodes_together() -> None:
    """And afterwards nothing of it is left; the error names the node that was waited for."""
    loop, server = asyncio.get_running_loop(), MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        tenant = await theirs.path_lock(TENANT).acquire()
        document = await theirs.path_lock("acme/8").acquire()
        loop.call_later(3, lambda: asyncio.ensure_future(tenant.release()))
        start = loop.time()
        with pytest.raises(AcquireTimeout, match="the path 'acme/7' did not become free") as late:
            await ours.path_lock(DOCUMENT, timeout=2).acquire()
        assert 2 <= loop.time() - start < 2.01
        assert late.value.holders[0].permits == 0
        assert await ours.path_lock(DOCUMENT).try_acquire(timeout=0.5) is None
        with pytest.raises(AcquireTimeout, match="the path 'acme/8' is not free"):
            await ours.path_lock("acme/8/doc/1").acquire(timeout=0)
        assert await document.release()
        await asyncio.sleep(1)
        assert not server.names()


@virtual
async def test_waiting_for_a_node_holds_those_above_and_none_below() -> None:
    """What is below is free for others meanwhile, but for who comes through the same node."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        async with theirs.path_lock(TENANT):
            waiting = asyncio.create_task(ours.path_lock(DOCUMENT).acquire())
            await queued(theirs.path_lock(TENANT), 1)
            assert sorted(server.names()) == ["path:acme", "path:acme/7"]
            assert (await theirs.path_lock("acme").status()).below == "2 writers"
        lease = await waiting
        assert list(lease.leases) == ["acme", "acme/7", "acme/7/doc", DOCUMENT]
        await lease.release()
        assert not server.names()


@virtual
@pytest.mark.parametrize("node", ["acme", "acme/7", "acme/7/doc", DOCUMENT])
async def test_loss_of_any_node_loses_the_path_and_frees_the_others(node: str) -> None:
    """The body is cancelled, and `LeaseLost` names the node that was lost."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        leases = list[PathLease]()

        async def body() -> None:
            async with ours.path_lock(DOCUMENT) as lease:
                leases.append(lease)
                assert await theirs.path_lock(node).break_()
                await asyncio.sleep(60)

        with pytest.raises(LeaseLost, match=f"the path '{node}' "):
            await body()
        assert leases[0].state == "lost"
        assert leases[0].lost.is_set()
        assert not server.names()


@virtual
async def test_loss_of_an_intent_loses_all_leases_of_the_task_below_it() -> None:
    """Those that rely on the same hold; with `on_lost="signal"` the bodies go on."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        async with ours.path_lock(DOCUMENT, on_lost="signal") as first:
            gone = await ours.path_lock(f"{TENANT}/doc/1").acquire()
            assert await gone.release()
            second = await ours.path_lock(OTHER, on_lost="signal").acquire()
            assert await theirs.path_lock("acme").break_()
            async with asyncio.timeout(5):
                await asyncio.gather(first.lost.wait(), second.lost.wait())
            assert not await second.release()
        assert not server.names()


@virtual
async def test_loss_of_an_intent_while_a_document_is_waited_for_raises_lease_lost() -> None:
    """Nothing of it is left."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        async with theirs.path_lock(DOCUMENT):
            waiting = asyncio.create_task(ours.path_lock(DOCUMENT).acquire())
            await queued(theirs.path_lock(DOCUMENT), 1)
            status = await theirs.path_lock(TENANT).status()
            fence = max(holder.fence for holder in status.holders)
            assert await theirs.path_lock(TENANT).break_(fence)
        with pytest.raises(LeaseLost, match="'acme/7'"):
            await waiting
        assert not server.names()


@virtual
async def test_store_without_an_answer_leaves_nothing_of_a_path_lock() -> None:
    """Whether it is the answer about a node, or the fence: `StoreError`, and all is given back."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as client:
        for operation in ("acquire", "make_fence"):
            faulty.refuse(operation)
            with pytest.raises(StoreError):
                await client.path_lock(DOCUMENT).acquire(timeout=0)
            faulty.hold(operation)
            with pytest.raises(StoreError, match="did not answer within the answer_timeout of 1 s"):
                await client.path_lock(DOCUMENT).try_acquire()
            faulty.resume()
            await settled()
            assert not server.names()
        faulty.refuse("acquire")  # in the one flight; then each is asked for by itself
        async with client.path_lock(DOCUMENT, timeout=5):
            pass
        assert not server.names()


# The way to the store


class Ordered:
    """A store that carries out operations in order, and what it was asked."""

    features = Features(in_order=lambda: True)

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked = list[Operation[Any]]()
        self.fences = list[int]()

    async def open(self, client: str, deliver: Deliver) -> None:
        await self._store.open(client, deliver)

    async def aclose(self) -> None:
        await self._store.aclose()

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        self.asked.append(operation)
        return self._store.submit(operation)

    def names(self) -> list[str]:
        """What it was asked since the last call."""
        asked, self.asked = self.asked, []
        return [f"{type(each).__name__} {each.name.removeprefix('path:')}" for each in asked]


@virtual
async def test_free_path_takes_one_command_for_each_node_and_one_for_the_fence() -> None:
    """All at once, where the store keeps their order; and as many to release it."""
    server = MemoryServer()
    store = Ordered(MemoryStore(server))
    async with aiolock.connect(store) as client:
        async with client.path_lock("a/b/c"):
            assert store.names() == ["Acquire a", "Acquire a/b", "Acquire a/b/c", "MakeFence a"]
        assert store.names() == ["Release a/b/c", "Release a/b", "Release a"]
        async with client.path_lock("a"):
            pass
        assert store.names() == ["Acquire a", "Release a"]


@virtual
async def test_fence_that_was_made_before_a_node_was_granted_is_made_again() -> None:
    """As when a node was asked for once more, since its first answer was lost."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    store = Ordered(faulty)
    async with aiolock.connect(store) as client, aiolock.connect(server) as theirs:
        asked = asyncio.create_task(client.path_lock("a/b/c").acquire())

        faulty.refuse("acquire")
        lease = await asked
        assert store.names()[-1] == "MakeFence a"
        await lease.release()
        async with theirs.path_lock("a/b"):
            waiting = asyncio.create_task(client.path_lock("a/b/c").acquire())
            await queued(theirs.path_lock("a/b"), 1)
            store.names()
        lease = await waiting
        assert store.names() == ["Acquire a/b/c", "MakeFence a"]
        assert lease.fence > max(each.fence for each in lease.leases.values())
        await lease.release()


@virtual
async def test_path_that_was_busy_is_taken_in_one_flight_below_the_busy_node() -> None:
    """The nodes above stay, those below were released; nothing below is waited for at once."""
    server = MemoryServer()
    store = Ordered(MemoryStore(server))
    async with aiolock.connect(store) as client, aiolock.connect(server) as theirs:
        async with theirs.path_lock("a/b"):
            waiting = asyncio.create_task(client.path_lock("a/b/c/d").acquire())
            await queued(theirs.path_lock("a/b"), 1)
            waits = [each.wait for each in store.asked if isinstance(each, Acquire)]
            assert waits == [False, False, False, False, True]
            released = [each.name for each in store.asked if isinstance(each, Release)]
            assert released == ["path:a/b/c/d", "path:a/b/c"]
            store.names()
        lease = await waiting
        await lease.release()
        assert store.names()[:3] == ["Acquire a/b/c", "Acquire a/b/c/d", "MakeFence a"]
        assert not server.names()


# What people see


@virtual
async def test_status_of_a_node_counts_readers_and_writers_below() -> None:
    """And says of each holder and waiter whether it has, or wants, the node itself."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        async with contextlib.AsyncExitStack() as stack:
            for number in range(3):
                path, mode = f"{TENANT}/doc/{number}", "shared" if number else "exclusive"
                lock = ours.path_lock(path, mode=mode)  # type: ignore[arg-type]  # one of the two
                task = asyncio.create_task(lock.acquire(label=f"doc {number}"))
                lease = await task
                stack.push_async_callback(lease.release)
            whole = asyncio.create_task(theirs.path_lock(TENANT, mode="shared").acquire())
            await queued(ours.path_lock(TENANT), 1)
            status = await ours.path_lock(TENANT).status()
            assert status.below == "2 readers, 1 writer"
            assert "path 'acme/7', below: 2 readers, 1 writer" in str(status)
            assert [each.below for each in status.holders] == ["writer", "reader", "reader"]
            assert [(each.below, each.shared) for each in status.waiters] == [("", True)]
            assert {each.permits for each in (*status.holders, *status.waiters)} == {0}
            assert await ours.path_lock(TENANT).locked()
            assert not await ours.path_lock("acme/8").locked()
            (same,) = await ours.snapshot(TENANT, kind="path")
            assert same.below == status.below
        async with asyncio.timeout(5):
            assert await (await whole).release()
        assert (await ours.path_lock(TENANT).status()).below == ""


@virtual
async def test_deadlock_of_two_who_take_two_paths_in_turn_is_found() -> None:
    """Each holds a tenant, and wants to read a document of the other's: over two processes."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:

        async def take(client: aiolock.LockClient, first: str, second: str) -> None:
            async with client.path_lock(first):
                await asyncio.sleep(1)
                async with client.path_lock(second, mode="shared"):
                    raise AssertionError

        tasks = [
            asyncio.create_task(take(ours, "a/1", "a/2/x"), name="ours"),
            asyncio.create_task(take(theirs, "a/2", "a/1/x"), name="theirs"),
        ]
        await asyncio.sleep(5)
        (deadlock,) = await ours.deadlocks()
        assert {each.name for each in deadlock.cycle} == {"a/1", "a/2"}
        assert "'ours'" in str(deadlock)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not server.names()


@virtual
async def test_readers_of_two_tenants_that_each_want_to_write_in_the_other_are_a_deadlock() -> None:
    """A writer below is blocked by who reads all of the node, and by nobody who reads below it."""
    server = MemoryServer()
    async with (
        aiolock.connect(server) as ours,
        aiolock.connect(server) as theirs,
        aiolock.connect(server) as late,
    ):

        async def take(client: aiolock.LockClient, first: str, second: str) -> None:
            async with client.path_lock(first, mode="shared"):
                await asyncio.sleep(1)
                async with client.path_lock(second):
                    raise AssertionError

        async def read(path: str) -> None:
            async with late.path_lock(path, mode="shared"):
                await asyncio.sleep(60)

        tasks = [
            asyncio.create_task(read("a/x")),
            asyncio.create_task(take(ours, "a", "b/x")),
            asyncio.create_task(take(theirs, "b", "a/x")),
        ]
        await asyncio.sleep(5)
        (deadlock,) = await ours.deadlocks()
        assert len(deadlock.cycle) == 2
        assert {each.behind.below for each in deadlock.cycle} == {""}
        assert "reads it" in str(deadlock)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert not server.names()


@virtual
async def test_path_acquired_while_its_client_closes_raises_client_closed() -> None:
    """As any lock, at whichever step; nothing is held."""
    kinds = set[str]()
    for steps in range(1, 10):
        server = MemoryServer()
        client = aiolock.connect(server)
        await client.open()
        taking = asyncio.ensure_future(client.path_lock(DOCUMENT).acquire())
        await settled(steps)
        await client.aclose()
        await asyncio.wait([taking])
        kinds.add(type(taking.exception()).__name__)
        async with aiolock.connect(server) as other:
            assert await other.names() == []
    assert kinds == {"ClientClosed", "NoneType"}
