"""Servers killed or stopped, replies that are lost, history that is gone, clocks that err."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import aiolock
from aiolock.protocol import Event, Reconnected
from aiolock.stores.etcd import _settings
from aiolock.stores.etcd._attempt import wall_clock
from aiolock.stores.etcd._messages import range_request
from aiolock.stores.etcd._replies import read_range
from aiolock.stores.etcd._session import Session
from aiolock.stores.etcd._store import EtcdStore
from aiolock.stores.etcd._wire import MalformedError
from tests.support.etcds import EtcdServer
from tests.support.failures import soon, until
from tests.support.proxy import Proxy

pytestmark = pytest.mark.alone  # leaders are elected in real time

LONG = 60.0
HOUR = 3_600_000_000
PAUSE = 8.0
"""Seconds after which a lock is handed on again, on a busy machine: on an idle one it is two."""


def session_of(client: aiolock.LockClient) -> Session:
    """What a client's store has open."""
    store = client._engine.store
    while not isinstance(store, EtcdStore):
        store = store._store  # type: ignore[attr-defined]  # of a wrapper
    assert store._session is not None
    return store._session


@asynccontextmanager
async def clients(
    server: EtcdServer, prefix: str, *firsts: int
) -> AsyncIterator[list[aiolock.LockClient]]:
    """Clients, each of which begins with the server of that number."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                aiolock.connect(server.url(first=first), prefix=prefix, ttl=LONG)
            )
            for first in firsts
        ]


async def waiting(lock: aiolock.Lock, count: int = 1) -> None:
    """Return when so many wait for it."""
    async with asyncio.timeout(20):
        while len((await lock.status()).waiters) != count:  # noqa: ASYNC110  # nothing announces it
            await asyncio.sleep(0.005)


def acquiring(lock: aiolock.Lock) -> asyncio.Task[aiolock.Lease]:
    """A task of its own that waits for it, and owns it then."""

    async def acquire() -> aiolock.Lease:
        return await lock.acquire()

    return asyncio.create_task(acquire())


class Contest:
    """Tasks of several clients that hold one lock in turns; no two at once, or it fails."""

    def __init__(self) -> None:
        self._inside = False
        self.fence = 0
        self.count = 0

    async def run(self, client: aiolock.LockClient, tasks: int) -> None:
        """Take part, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(tasks):
                group.create_task(self._one(client))

    async def _one(self, client: aiolock.LockClient) -> None:
        while True:
            # While a leader is elected, a new request may get no answer in time.
            with contextlib.suppress(aiolock.StoreError):
                async with client.lock("contest", timeout=40) as lease:
                    assert not self._inside
                    assert lease.fence > self.fence
                    self._inside, self.fence = True, lease.fence
                    await asyncio.sleep(0.01)  # more turns would show nothing more
                    self._inside = False
                    self.count += 1

    async def goes_on(self) -> None:
        """Return when the lock was handed on some more."""
        before = self.count
        await until(lambda: self.count > before + 20, within=PAUSE)


@asynccontextmanager
async def contest(server: EtcdServer, prefix: str) -> AsyncIterator[Contest]:
    """Three clients, each at another server, in a contest that has begun."""
    async with clients(server, prefix, 0, 1, 2) as all_of_them:
        found = Contest()
        tasks = [asyncio.create_task(found.run(client, 3)) for client in all_of_them]
        try:
            await found.goes_on()
            yield found
            assert not any(task.done() for task in tasks), tasks
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


# Servers


async def test_leader_killed_while_a_lock_is_contended_costs_a_pause(
    own_etcd: EtcdServer, prefix: str
) -> None:
    """No fail-over forgets a grant, and the others go on after an election."""
    async with contest(own_etcd, prefix) as found:
        leader = await asyncio.to_thread(own_etcd.leader)
        leader.kill()
        await found.goes_on()
        own_etcd.restart(leader)
        await found.goes_on()


@pytest.mark.parametrize("which", ["leader", "follower"])
async def test_server_stopped_while_a_lock_is_contended_costs_a_pause(
    own_etcd: EtcdServer, prefix: str, which: str
) -> None:
    """Its clients leave it for another one: its kernel still takes what they send."""
    async with contest(own_etcd, prefix) as found:
        leads = which == "leader"
        node = await asyncio.to_thread(own_etcd.leader if leads else own_etcd.follower)
        node.pause()
        try:
            await found.goes_on()
        finally:
            node.resume()
        await found.goes_on()


async def test_member_replaced_while_a_lock_is_contended_costs_a_pause(
    own_etcd: EtcdServer, prefix: str
) -> None:
    """The leader is taken out for good, and one that knows nothing comes in its place."""
    async with contest(own_etcd, prefix) as found:
        leader = await asyncio.to_thread(own_etcd.leader)
        new = await asyncio.to_thread(own_etcd.replace, leader)
        await found.goes_on()
        async with (
            aiolock.connect(f"etcd://{new.address}", prefix=prefix) as client,
            client.lock("contest", timeout=40) as lease,
        ):
            assert lease.fence > found.fence, "it has what the others have"


async def test_majority_stopped_refuses_all_and_what_is_held_survives_it(
    own_etcd: EtcdServer, prefix: str
) -> None:
    """Without a majority nothing is granted; the holder is at risk, and then it is not any more."""
    async with clients(own_etcd, prefix, 0, 1) as (ours, theirs):
        lease = await ours.lock("a").acquire()
        leader = await asyncio.to_thread(own_etcd.leader)
        others = [node for node in own_etcd.nodes if node is not leader]
        for node in others:
            node.pause()
        try:
            with pytest.raises((aiolock.StoreError, aiolock.AcquireTimeout)):
                await theirs.lock("a").acquire(timeout=3)
            assert lease.state is not aiolock.LeaseState.LOST
        finally:
            for node in others:
                node.resume()
        async with asyncio.timeout(20):
            while True:
                try:
                    assert await lease.verify()
                    break
                except aiolock.StoreError:
                    await asyncio.sleep(0.05)
        assert await lease.release()
        async with theirs.lock("a", timeout=20):
            pass


async def test_history_compacted_while_the_watch_is_away_reports_reconnected(
    own_etcd: EtcdServer, prefix: str
) -> None:
    """What happened meanwhile cannot be read any more: waiters ask again, and get the lock."""
    async with clients(own_etcd, prefix, 0, 1) as (ours, theirs):
        lease = await ours.lock("a").acquire()
        session = session_of(theirs)
        gaps, deliver = list[object](), session._deliver

        def seen(event: object) -> None:
            gaps.append(event)
            deliver(event)  # type: ignore[arg-type]  # whatever it is

        session._deliver = seen
        task = acquiring(theirs.lock("a"))
        await waiting(ours.lock("a"))
        # From here on it watches nothing, as if it were cut off.
        run = session._watch.run
        watches = [task for task in session._tasks if "_keep_running" in repr(task)]
        for watch in watches:
            watch.cancel()
        assert await lease.release()
        for number in range(3):
            async with ours.lock(f"other {number}"):
                pass
        await asyncio.to_thread(own_etcd.compact)
        for work in (run, session._presence.run):
            _ = session._start(session._keep_running(work))
        granted = await soon(task, within=PAUSE)
        assert Reconnected() in gaps
        assert await granted.release()


# Replies


async def test_replies_lost_on_the_way_change_nothing_twice(
    etcd_server: EtcdServer, prefix: str
) -> None:
    """What was carried out unheard is found out: nothing is taken twice, nothing is left behind."""
    (node,) = etcd_server.nodes
    async with (
        Proxy(node.port) as proxy,
        aiolock.connect(f"etcd://127.0.0.1:{proxy.port}", prefix=prefix, ttl=LONG) as ours,
        aiolock.connect(etcd_server.url(), prefix=prefix, ttl=LONG) as theirs,
    ):
        async with ours.lock("warm"):
            pass
        for number in range(3):
            name = f"a{number}"
            taking = acquiring(ours.lock(name))
            proxy.deaf(drop=True)  # requests arrive, and replies do not
            await asyncio.sleep(0.05)
            proxy.cut()
            proxy.hear()
            lease = await soon(taking, within=PAUSE)
            (holder,) = (await theirs.lock(name).status()).holders
            assert holder.fence == lease.fence
            releasing = asyncio.create_task(lease.release())
            proxy.deaf(drop=True)
            await asyncio.sleep(0.05)
            proxy.cut()
            proxy.hear()
            assert await soon(releasing, within=PAUSE)
            assert not (await theirs.lock(name).status()).holders


async def test_link_cut_while_waiting_loses_no_push(etcd_server: EtcdServer, prefix: str) -> None:
    """A watch is resumed where it was: a grant that was made meanwhile is reported then."""
    (node,) = etcd_server.nodes
    async with (
        Proxy(node.port) as proxy,
        aiolock.connect(f"etcd://127.0.0.1:{proxy.port}", prefix=prefix, ttl=LONG) as ours,
        aiolock.connect(etcd_server.url(), prefix=prefix, ttl=LONG) as theirs,
    ):
        lease = await theirs.lock("a").acquire()
        task = acquiring(ours.lock("a"))
        await waiting(theirs.lock("a"))
        proxy.refuse()
        proxy.cut()
        assert await lease.release()
        proxy.accept()
        granted = await soon(task, within=PAUSE)
        assert granted.fence > lease.fence
        assert await granted.release()


# Sessions and holds


async def test_client_without_a_word_is_dead_and_its_hold_ends(
    etcd_server: EtcdServer, prefix: str
) -> None:
    """A client that ends without closing loses its place, and then its hold; the next has it."""
    (node,) = etcd_server.nodes
    async with (
        aiolock.connect(etcd_server.url(), prefix=prefix, ttl=LONG) as ours,
        Proxy(node.port) as proxy,
        aiolock.connect(f"etcd://127.0.0.1:{proxy.port}", prefix=prefix, ttl=1) as theirs,
    ):
        lease = await theirs.lock("a", on_lost="signal").acquire()
        task = acquiring(ours.lock("a"))
        await waiting(ours.lock("a"))
        proxy.refuse()
        proxy.cut()
        begun = time.monotonic()
        granted = await soon(task, within=10)
        assert granted.fence > lease.fence
        assert time.monotonic() - begun > 0.5  # it is kept for as long as a ttl
        await granted.release()
        proxy.accept()


@pytest.mark.parametrize("skew", [HOUR, -HOUR])
async def test_client_whose_clock_errs_by_an_hour_takes_nothing(
    etcd_server: EtcdServer, prefix: str, skew: int
) -> None:
    """No clock of a client decides when a hold ends, or a claim; and the order stays."""

    def store(skew: int) -> EtcdStore:
        settings = _settings.from_url(etcd_server.url())
        return EtcdStore(settings, prefix, lambda: wall_clock() + skew)

    async with (
        aiolock.connect(store(0), ttl=LONG) as ours,
        aiolock.connect(store(skew), ttl=LONG) as theirs,
    ):
        for name in ("a", "b"):
            lease = await ours.lock(name).acquire()
            assert await theirs.lock(name).try_acquire() is None
            first = acquiring(theirs.lock(name))
            await waiting(ours.lock(name))
            second = acquiring(ours.lock(name))
            await waiting(ours.lock(name), 2)
            assert await theirs.lock(name).try_acquire() is None
            assert lease.state is aiolock.LeaseState.HELD
            assert await lease.verify()
            assert await lease.release()
            granted = await soon(first)
            # A claim, so far, and somebody else asks.
            assert await ours.lock(name).try_acquire() is None
            assert await granted.verify()
            assert await granted.release()
            last = await soon(second)
            assert await theirs.lock(name).try_acquire() is None
            assert last.fence > granted.fence > lease.fence
            assert await last.release()


async def test_renewals_of_many_holds_write_nothing(etcd_server: EtcdServer, prefix: str) -> None:
    """One message keeps any number of leases, and no document is written."""
    async with aiolock.connect(etcd_server.url(), prefix=prefix, ttl=1.5) as client:
        leases = await asyncio.gather(*(client.lock(f"held {n}").acquire() for n in range(200)))
        session = session_of(client)

        async def written() -> dict[bytes, int]:
            names = session._keys.name("lock:held ")
            request = range_request(names, names[:-1] + b"!")
            until = asyncio.get_running_loop().time() + 4
            found = read_range(await session._servers.call("KV/Range", request, until=until)).found
            return {each.key: each.modified for each in found}

        before, asked = await written(), session._keep_alive.count
        swaps = session.swaps.requests
        assert len(before) == len(leases)
        await asyncio.sleep(3)
        assert await written() == before
        assert session.swaps.requests - swaps < 3  # of its label
        assert session._keep_alive.count - asked < 40
        assert all(lease.state is aiolock.LeaseState.HELD for lease in leases)
        await asyncio.gather(*(lease.release() for lease in leases))


async def test_hold_that_is_not_renewed_ends_beside_others_that_are(
    etcd_server: EtcdServer, prefix: str
) -> None:
    """They live with one lease at the server, and yet each ends by itself."""
    async with (
        aiolock.connect(etcd_server.url(), prefix=prefix, ttl=1) as ours,
        aiolock.connect(etcd_server.url(), prefix=prefix, ttl=1) as theirs,
    ):
        kept = await ours.lock("kept").acquire()
        ended = await ours.lock("ended", max_hold=1, on_lost="signal").acquire()
        task = acquiring(theirs.lock("ended"))
        granted = await soon(task, within=10)
        assert granted.fence > ended.fence
        assert await kept.verify()
        await granted.release()
        await kept.release()


async def test_keys_removed_by_hand_are_missed_within_a_renewal(
    etcd_server: EtcdServer, prefix: str
) -> None:
    """Who removes all keys takes the locks away: their holders notice that at the next renewal."""
    async with (
        aiolock.connect(etcd_server.url(), prefix=prefix, ttl=3) as ours,
        aiolock.connect(etcd_server.url(), prefix=prefix, ttl=3) as theirs,
    ):
        lease = await ours.lock("a", on_lost="signal").acquire()
        await asyncio.to_thread(etcd_server.ctl, "del", "--prefix", f"{prefix}/")
        await soon(lease.lost.wait(), within=PAUSE)
        async with theirs.lock("a", timeout=20) as granted:
            assert granted.fence > lease.fence
        async with ours.lock("b", timeout=20):
            pass


async def test_strange_keys_beside_ours_harm_nothing(etcd_server: EtcdServer, prefix: str) -> None:
    """Whatever others write below the prefix, locks can be used, and shown."""
    async with clients(etcd_server, prefix, 0, 0) as (ours, theirs):
        for key in ("s/x", "s/", "s/\udcff", "h/x", "h/", "h/x/y.z", "m/x", "n/lock:b", "x"):
            await asyncio.to_thread(etcd_server.ctl, "put", f"{prefix}/v1/{key}", "theirs")
        async with ours.lock("a"):
            task = acquiring(theirs.lock("a"))
            await waiting(ours.lock("a"))
        assert await (await soon(task)).release()
        async with aiolock.connect(etcd_server.url(), prefix=prefix) as another:
            async with another.lock("a"):
                assert (await another.lock("a").status()).holders
            assert await another.snapshot() is not None


async def test_fault_in_the_background_is_logged_and_overcome(
    etcd_server: EtcdServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever an event does, the watch goes on."""
    async with clients(etcd_server, prefix, 0, 0) as (ours, theirs):
        session, faults = session_of(theirs), list[object]()

        def fails(events: object) -> None:
            del session._registry.changed  # once
            faults.append(events)
            raise ZeroDivisionError

        session._registry.changed = fails  # type: ignore[method-assign, assignment]  # see above
        async with ours.lock("a"):
            task = acquiring(theirs.lock("a"))
            await waiting(ours.lock("a"))
            await until(lambda: faults, within=PAUSE)
        assert await (await soon(task, within=PAUSE)).release()
        assert "a fault in the store" in caplog.text


async def test_fault_while_it_is_overcome_is_overcome_too(
    etcd_server: EtcdServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A reply that cannot be read, when all is read anew, does not leave the client deaf."""
    async with clients(etcd_server, prefix, 0, 0) as (ours, theirs):
        session, gaps = session_of(theirs), list[None]()

        def fails(events: object) -> None:
            del session._registry.changed  # once
            raise ZeroDivisionError

        async def unreadable() -> int:
            del session.on_gap  # once
            gaps.append(None)
            raise MalformedError

        session._registry.changed = fails  # type: ignore[method-assign, assignment]  # see above
        session.on_gap = unreadable  # type: ignore[method-assign]  # the same
        async with ours.lock("a"):
            task = acquiring(theirs.lock("a"))
            await waiting(ours.lock("a"))
            await until(lambda: gaps, within=PAUSE)
        assert await (await soon(task, within=PAUSE)).release()
        async with ours.lock("b"):
            task = acquiring(theirs.lock("b"))
            await waiting(ours.lock("b"))
        assert await (await soon(task, within=PAUSE)).release()
        assert caplog.text.count("a fault in the store") == 2


async def test_end_of_a_lease_makes_many_names_ask_in_parts(
    etcd_server: EtcdServer, prefix: str
) -> None:
    """A thousand names that are waited for do not ask in one iteration of the event loop."""
    async with clients(etcd_server, prefix, 0) as (ours,):
        session, asked = session_of(ours), list[Event]()
        names = [f"lock:{number}" for number in range(1000)]
        session._deliver = asked.append
        session._waiting |= {*names}
        session._lease_ended()
        session._lease_ended()
        most = before = 0
        while len(asked) < len(names):
            await asyncio.sleep(0)
            most, before = max(most, len(asked) - before), len(asked)
        assert most <= 64
        await asyncio.sleep(0)
        assert len(asked) == len(names), "each asks once"
        session._waiting.clear()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.one_loop
async def test_forked_child_is_told_and_may_connect_by_itself(
    etcd_server: EtcdServer, prefix: str
) -> None:
    """The client of the parent is refused in the child; one of its own works there."""
    program = """
import asyncio, os, sys, aiolock

async def parent(url, prefix):
    async with aiolock.connect(url, prefix=prefix) as client:
        async with client.lock("a"):
            child = os.fork()
            if not child:
                try:
                    client.lock("a").acquire().send(None)
                except aiolock.ClientClosed as error:
                    print("told:", error, flush=True)
                    os._exit(7)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

url, prefix = sys.argv[1:]
asyncio.run(parent(url, prefix))
if not os.fork():
    asyncio.run(parent(url, prefix))
    print("works", flush=True)
    os._exit(0)
os.wait()
"""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, etcd_server.url(), prefix),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert out.decode().count("told:") == 2
    assert out.decode().endswith("works\n")


async def test_clients_that_queue_at_the_same_moment_are_all_granted_the_lock(
    etcd_server: EtcdServer, prefix: str
) -> None:
    """Clients that queue at the same moment get in each other's way, and yet each has its turn."""
    async with AsyncExitStack() as stack:
        many = [
            await stack.enter_async_context(
                aiolock.connect(etcd_server.url(), prefix=prefix, ttl=LONG)
            )
            for _ in range(30)
        ]
        async with many[0].rwlock("a").write():
            tasks = [acquiring(client.rwlock("a").read()) for client in many[1:]]
            await waiting(many[0].rwlock("a").write(), len(tasks))
            # Beside that, each client uses a name of its own: all in the same turns of the loop.
            others = [acquiring(client.lock(f"b{n}")) for n, client in enumerate(many)]
            for lease in await asyncio.gather(*others):
                await lease.release()
        for lease in await asyncio.gather(*tasks):
            assert await lease.release()
