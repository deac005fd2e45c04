"""Real servers that fail, a minority of them and more, and the processes that hold and wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import pytest

import aiolock
from tests.support.failures import Locker, command_link, linked, queued, take, until
from tests.support.majorities import Majority, vouch
from tests.support.proxy import Link, Proxy
from tests.support.worlds import check_what_an_opening_leaves

LONGEST = 60.0
TTL = 3.0
KEPT = 3 * TTL
"""For who is not to lose it: a busy machine may keep a server from answering for longer than that,
beside those that are broken."""


@pytest.fixture(params=[3, 5])
def majority(request: pytest.FixtureRequest) -> Iterator[Majority]:
    """Servers to break."""
    with Majority(request.param) as majority:
        yield majority


@pytest.fixture
def three() -> Iterator[Majority]:
    """Three servers to break."""
    with Majority() as majority:
        yield majority


class Links:
    """A link of the test's own to each of some servers, and the faults that it can cause."""

    def __init__(self, majority: Majority, proxies: list[Proxy], prefix: str) -> None:
        self.servers, self.proxies = majority.servers, proxies
        self.urls = [proxy.url for proxy in proxies]
        self.minority = range((len(proxies) - 1) // 2)
        self._prefix = prefix
        vouch(self.servers, self.urls, prefix, LONGEST)

    def cut_off(self, number: int) -> None:
        """Cut the server off from all clients."""
        self.proxies[number].refuse()
        self.proxies[number].cut()

    def restart(self, number: int) -> None:
        """Start it again, and do not wait for it: meanwhile the event loop has leases to renew."""
        self.servers[number].kill()
        self.servers[number].launch()

    def restart_with_data(self, number: int) -> None:
        """Start it again, with all that it knew."""
        self.servers[number].call("SAVE")
        self.restart(number)

    def client(self) -> aiolock.LockClient:
        """Another client of them."""
        return aiolock.connect(self.urls, prefix=self._prefix, longest_ttl=LONGEST, ttl=TTL)


@pytest.fixture
async def links(majority: Majority, prefix: str) -> AsyncIterator[Links]:
    """Links to all of them."""
    async with AsyncExitStack() as stack:
        proxies = [
            await stack.enter_async_context(Proxy(server.port)) for server in majority.servers
        ]
        yield Links(majority, proxies, prefix)


Break = Callable[[Links, int], object]

BREAKS: dict[str, tuple[Break, Break]] = {
    "killed": (lambda on, n: on.servers[n].kill(), lambda on, n: on.servers[n].launch()),
    "stopped": (lambda on, n: on.servers[n].pause(), lambda on, n: on.servers[n].resume()),
    "paused": (
        lambda on, n: on.servers[n].call("CLIENT", "PAUSE", 1500, "ALL"),
        lambda _on, _n: None,
    ),
    "cut_off": (
        lambda on, n: on.cut_off(n),
        lambda on, n: on.proxies[n].accept(),
    ),
    "deaf": (lambda on, n: on.proxies[n].deaf(), lambda on, n: on.proxies[n].hear()),
    "slow": (
        lambda on, n: on.proxies[n].delay(to_server=0.3, to_client=0.3),
        lambda on, n: on.proxies[n].delay(),
    ),
    "emptied": (lambda on, n: on.servers[n].call("FLUSHALL"), lambda _on, _n: None),
    "restarted_empty": (lambda on, n: on.restart(n), lambda _on, _n: None),
    "restarted_with_data": (
        lambda on, n: on.restart_with_data(n),
        lambda _on, _n: None,
    ),
}
"""A fault of a server, and its end."""


class Crowd:
    """Tasks that take one lock again and again, and note each violation."""

    def __init__(self) -> None:
        self.fences: list[int] = []
        self._inside = 0

    async def work(self, lock: aiolock.Lock) -> None:
        """Until cancelled."""
        while True:
            async with lock as lease:
                assert not self._inside
                self._inside += 1
                self.fences.append(lease.fence)
                # Every other one takes a while. They go on until a lease has been renewed, and what
                # breaks shall meet holders as well as hand-offs: more of these show nothing more.
                await asyncio.sleep(0.03 * (len(self.fences) % 2))
                self._inside -= 1

    async def goes_on(self) -> None:
        """Return when a good many more have entered."""
        enough = len(self.fences) + 30
        await until(lambda: len(self.fences) >= enough)


_MINORITIES = [
    *((3, how) for how in BREAKS),
    *((5, how) for how in ("killed", "slow", "restarted_empty")),
]
"""Of how many servers a minority is broken, and how: of five, it is gone, late, or forgets."""


@pytest.mark.parametrize(("majority", "how"), _MINORITIES, indirect=["majority"])
async def test_handoffs_and_renewals_go_on_during_any_fault_of_a_minority(
    links: Links, how: str
) -> None:
    """Two clients pass a lock to and fro meanwhile, and a lease is held, whatever breaks there."""
    breaks, mends = BREAKS[how]
    async with links.client() as ours, links.client() as theirs:
        lease = await ours.lock("held", ttl=KEPT).acquire()
        crowd = Crowd()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(crowd.work(client.lock("passed", ttl=KEPT)))
                for client in (ours, theirs) * 3
            ]
            await crowd.goes_on()
            for number in links.minority:
                breaks(links, number)
            await crowd.goes_on()
            # Read in this order: time that passes between the two cannot look like a renewal.
            held_until = lease.remaining() + time.monotonic()
            await until(lambda: time.monotonic() + lease.remaining() > held_until, within=4 * TTL)
            for number in links.minority:
                mends(links, number)
            await crowd.goes_on()
            for task in tasks:
                task.cancel()
        assert crowd.fences == sorted(set(crowd.fences))
        assert lease.state in {"held", "at_risk"}
        assert await lease.release()


class Rates:
    """Tasks that read and write by turns, and note each violation."""

    def __init__(self) -> None:
        self.entered = self.together = 0
        self._readers = self._writers = 0
        self._highest = self._of_writers = 0

    async def read(self, client: aiolock.LockClient) -> None:
        """Until cancelled."""
        while True:
            async with client.rwlock("rates", ttl=KEPT).read() as lease:
                assert not self._writers
                assert lease.fence > self._of_writers
                self._readers += 1
                self.entered += 1
                self.together = max(self.together, self._readers)
                self._highest = max(self._highest, lease.fence)
                await asyncio.sleep(0.002)
                self._readers -= 1

    async def write(self, client: aiolock.LockClient) -> None:
        """Until cancelled."""
        while True:
            async with client.rwlock("rates", ttl=KEPT).write() as lease:
                assert not self._writers
                assert not self._readers
                assert lease.fence > self._highest
                self._writers += 1
                self.entered += 1
                self._highest = self._of_writers = lease.fence
                await asyncio.sleep(0)
                self._writers -= 1

    async def goes_on(self) -> None:
        """Return when a good many more have entered."""
        enough = self.entered + 30
        await until(lambda: self.entered >= enough)


@pytest.mark.parametrize("how", ["killed", "stopped", "cut_off", "restarted_empty"])
async def test_readers_and_writers_go_on_during_faults_of_a_minority(
    links: Links, how: str
) -> None:
    """Readers and writers go on during any fault, and a writer is never beside another task."""
    breaks, mends = BREAKS[how]
    async with links.client() as ours, links.client() as theirs:
        rates = Rates()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(what(client))
                for client in (ours, theirs)
                for what in (rates.read, rates.read, rates.read, rates.write)
            ]
            await rates.goes_on()
            for number in links.minority:
                breaks(links, number)
            await rates.goes_on()
            for number in links.minority:
                mends(links, number)
            await rates.goes_on()
            for task in tasks:
                task.cancel()
        assert rates.together > 1


async def test_body_without_a_majority_is_cancelled_and_no_waiter_enters(links: Links) -> None:
    """A body is cancelled at the end of its lease; no task enters before a majority is back."""
    more = range(len(links.minority) + 1)
    async with links.client() as ours, links.client() as theirs:

        async def body() -> None:
            async with ours.lock("a"):
                for number in more:
                    links.servers[number].pause()
                await asyncio.sleep(60)

        with pytest.raises(aiolock.LeaseLost):
            await body()
        waiting = asyncio.create_task(take(theirs.lock("a")))
        with pytest.raises((aiolock.StoreError, aiolock.AcquireTimeout)):
            async with ours.lock("b", timeout=0.5):
                pass
        assert not waiting.done()
        for number in more:
            links.servers[number].resume()
        lease = await asyncio.wait_for(waiting, 20)
        await lease.release()


async def test_break_whose_replies_are_all_lost_raises_store_error(links: Links) -> None:
    """Whoever breaks a lock without a reply of any server is not told that nobody held it."""
    async with links.client() as breaker:
        for proxy in links.proxies:  # a client opens with a majority
            await linked(proxy)
        sending = [command_link(proxy) for proxy in links.proxies]
        async with links.client() as holder:
            held = await take(holder.lock("a"))
            store: Any = breaker._engine.store
            for member, proxy, link in zip(store.members, links.proxies, sending, strict=True):
                member.take_away = partial(_unheard, member.take_away, proxy, link)
            with pytest.raises(aiolock.StoreError, match="nobody knows whether this call broke it"):
                await breaker.lock("a").break_(held.fence)
            await asyncio.wait_for(held.lost.wait(), 5)


def _unheard(take_away: Callable[..., None], proxy: Proxy, link: Link, *about: Any) -> None:
    """Send it on this link, which loses the reply."""
    proxy.swallow_replies(1, link)
    take_away(*about)


async def test_open_with_a_majority_succeeds_and_with_fewer_names_the_missing(links: Links) -> None:
    """It needs no more; with fewer it says which do not answer, and why."""
    for number in links.minority:
        links.servers[number].kill()
    async with links.client() as client, client.lock("a"):
        pass
    links.servers[len(links.minority)].kill()
    missing = len(links.minority) + 1
    says = f"{missing} of {len(links.servers)} servers do not answer: 127.0.0.1"
    with pytest.raises(aiolock.StoreError, match=says):
        await links.client().open()


async def test_leases_of_an_earlier_opening_take_no_vote_from_a_holder(
    three: Majority, prefix: str
) -> None:
    """What is left of an earlier opening takes no vote from who holds the lock in this one."""
    three.vouch(prefix, LONGEST)
    ours, theirs = [
        aiolock.connect(three.urls, prefix=prefix, longest_ttl=LONGEST) for _ in range(2)
    ]
    await check_what_an_opening_leaves(ours, theirs)


async def test_votes_and_waiters_are_removed_also_at_a_server_that_was_stopped(
    three: Majority, prefix: str
) -> None:
    """Votes and lines of dead clients go, also at a server that came back meanwhile."""
    three.vouch(prefix, LONGEST)
    async with aiolock.connect(three.urls, prefix=prefix, longest_ttl=LONGEST) as client:
        crowd = Crowd()
        tasks = [asyncio.create_task(crowd.work(client.lock("a"))) for _ in range(5)]
        await crowd.goes_on()
        three.servers[0].pause()
        await crowd.goes_on()
        three.servers[0].resume()
        await crowd.goes_on()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await until(lambda: not three.left_behind(prefix))


@pytest.fixture
async def lockers(three: Majority, prefix: str) -> AsyncIterator[list[Locker]]:
    """Three processes, with three servers."""
    three.vouch(prefix, LONGEST)
    async with AsyncExitStack() as stack:
        new = [Locker(",".join(three.urls), prefix) for _ in range(3)]
        yield list(await asyncio.gather(*map(stack.enter_async_context, new)))


Does = Callable[[Locker], Awaitable[object]]


async def killed(locker: Locker) -> None:
    """Kill it, and wait until it is gone."""
    locker.kill()
    await locker.wait()


async def test_holder_killed_is_followed_when_its_lease_has_ended(lockers: list[Locker]) -> None:
    """The next enters when its lease has ended, and no earlier."""
    first, second, _ = lockers
    await first.lock(ttl=1.5)
    before = await first.entered()
    await second.lock()
    await killed(first)
    after = await second.entered()
    assert after["fence"] > before["fence"]
    assert after["t"] - before["t"] >= 1.4  # a lease of 1.5 s, as its holder reckons
    await second.unlock()


async def test_waiter_killed_is_skipped_by_the_servers(
    three: Majority, lockers: list[Locker], prefix: str
) -> None:
    """The servers skip the dead waiter: no client waits for a lease of its."""
    first, second, third = lockers
    async with aiolock.connect(three.urls, prefix=prefix, longest_ttl=LONGEST) as client:
        await first.lock(ttl=LONGEST)
        await first.entered()
        for number, locker in enumerate((second, third), start=1):
            await locker.lock(ttl=LONGEST)
            await queued(client.lock("lock"), number)
        await killed(second)
        await until(lambda: not _listens(three, second.client))
        await first.unlock()
        await third.entered()
        await third.unlock()


async def test_waiter_stopped_at_its_grant_enters_after_the_next_one(
    three: Majority, lockers: list[Locker], prefix: str
) -> None:
    """It costs a claim, and once it goes on it enters after the one that has entered meanwhile."""
    first, second, third = lockers
    async with aiolock.connect(three.urls, prefix=prefix, longest_ttl=LONGEST) as client:
        await first.lock()
        await first.entered()
        for number, locker in enumerate((second, third), start=1):
            await locker.lock(ttl=1.0)
            await queued(client.lock("lock"), number)
        second.stop()
        await first.unlock()
        entered = await third.entered()
        second.cont()
        await queued(client.lock("lock"), 1)
        await third.unlock()
        assert (await second.entered())["fence"] > entered["fence"]
        await second.unlock()


async def test_holder_stopped_past_its_ttl_is_cancelled_when_it_goes_on(
    lockers: list[Locker],
) -> None:
    """Its body is cancelled when it goes on, and another has a higher fence by then."""
    first, second, _ = lockers
    await first.lock(ttl=1.0)
    before = await first.entered()
    await second.lock()
    first.stop()
    after = await second.entered()
    assert after["fence"] > before["fence"]
    first.cont()
    await first.expect("cancelled it")
    await second.unlock()


def _listens(majority: Majority, client: str) -> bool:
    """Whether a server still has a subscription of this client."""
    return any(
        client in channel
        for server in majority.servers
        for channel in server.call("PUBSUB", "CHANNELS")
    )
