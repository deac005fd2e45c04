"""A lease: how long it lasts, how it ends, and what becomes of the body when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

import anyio
import pytest

import aiolock
from aiolock import LeaseLost, StoreError
from aiolock.protocol import Break, GrantLost, ReadStatus, Reconnected
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.virtual import VirtualLoop
from tests.support.worlds import World, asking, queued, settled, virtual


class Scene(NamedTuple):
    """Two clients of one memory server; what comes from the server to `ours` may be disturbed."""

    server: MemoryServer
    faulty: FaultyStore
    ours: aiolock.LockClient
    theirs: aiolock.LockClient

    def lose(self, lease: aiolock.Lease) -> None:
        """Have the lease broken; we hear of it in the next turn of the loop."""
        assert self.server.run(Break(lease._hold.policy.key, [lease.fence])) == 1

    def lose_at(self, when: float, lease: aiolock.Lease) -> None:
        """Have the watchdog find the lease lost at that time, by the loop's clock."""
        watchdog, hold = self.ours._engine.watchdog, lease._hold
        asyncio.get_running_loop().call_at(when, watchdog.lose, hold, "broken")

    async def waited(self, ttl: float = 30, **options: Any) -> aiolock.Lease:
        """A lease of the lock "a" that was waited for, and so begins with a claim."""
        held = await self.theirs.lock("a").acquire()
        assert held is not None
        waiting = asking(self.ours.lock("a", ttl=ttl, **options))
        await queued(self.theirs.lock("a"), 1)
        await held.release()
        return await waiting


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    """Open both clients, and check at the end that nothing is left."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        yield Scene(server, faulty, ours, theirs)
    await asyncio.sleep(3600)  # what was lost may stand at the server until its lease ends
    for name in server.names():
        status = server.run(ReadStatus(name))
        assert not status.holders
        assert not status.waiters


async def taken(lock: aiolock.Lock) -> aiolock.Lease:
    """A lease of a free lock."""
    return await lock.acquire(timeout=0)


def block(seconds: float) -> None:
    """Block a virtual loop: time passes and nothing runs."""
    cast(VirtualLoop, asyncio.get_running_loop())._now += seconds


def now() -> float:
    """The loop's time."""
    return asyncio.get_running_loop().time()


def unhurt(before: int = 0) -> None:
    """Check that no cancellation of this task is left over."""
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == before


# --- How long it lasts


@virtual
async def test_lease_remaining_runs_down_below_its_ttl() -> None:
    """What remains of a lease runs down on the loop's clock, on the safe side of its ttl."""
    async with scene() as (_, _, ours, _):
        lease = await taken(ours.lock("a", ttl=30, renew=False))
        assert 29.6 < lease.remaining() < 30
        whole = lease.remaining()
        await asyncio.sleep(10)
        assert lease.remaining() == pytest.approx(whole - 10)
        assert lease.state == "held"
        await lease.release()
        assert lease.remaining() == 0.0


@virtual
async def test_lease_that_is_held_is_renewed_at_a_third_of_its_ttl() -> None:
    """A lease is renewed at a third of its ttl, and held for as long as it takes."""
    async with scene() as (_, faulty, ours, theirs), ours.lock("a", ttl=3) as lease:
        for _ in range(60):
            await asyncio.sleep(1)
            assert lease.state == "held"
            assert lease.remaining() > 1
            assert await theirs.lock("a").locked()
        assert 60 <= faulty.calls["renew"] <= 90
        assert await lease.verify() is True


@virtual
async def test_renewals_of_a_thousand_leases_take_few_calls() -> None:
    """A thousand leases are renewed in few calls."""
    async with scene() as (_, faulty, ours, _), contextlib.AsyncExitStack() as stack:
        for number in range(1000):
            await stack.enter_async_context(ours.lock(f"a{number}", ttl=30))
        before = faulty.calls["renew"]
        await asyncio.sleep(300)
        assert faulty.calls["renew"] - before < 1000


@virtual
async def test_lease_without_renewal_is_lost_when_its_ttl_has_passed() -> None:
    """With `renew=False` the lease is lost when its ttl has passed, and nothing is sent."""
    async with scene() as (_, faulty, ours, theirs):
        begun = now()
        with pytest.raises(LeaseLost, match="lease ended"):
            async with ours.lock("a", ttl=3, renew=False):
                await asyncio.sleep(100)
        assert 2.9 < now() - begun < 3
        assert faulty.calls["renew"] == 0
        await (await taken(theirs.lock("a"))).release()


@virtual
async def test_claim_of_a_lease_held_for_long_is_confirmed_for_its_ttl() -> None:
    """A lease that was waited for begins as a claim, and is confirmed if it is held for long."""
    async with scene() as on:
        lease = await on.waited(ttl=60)
        assert 2.9 < lease.remaining() < 3
        await asyncio.sleep(4)
        assert on.faulty.calls["renew"] == 1
        assert 55 < lease.remaining() < 60
        await asyncio.sleep(300)
        assert lease.state == "held"
        await lease.release()


@virtual
async def test_claim_without_renewal_is_confirmed_once_for_its_ttl() -> None:
    """With `renew=False` the claim is still confirmed, once, for the ttl."""
    async with scene() as on:
        lease = await on.waited(ttl=60, renew=False)
        begun = now()
        await asyncio.sleep(50)
        assert lease.state == "held"
        await lease.lost
        assert 59 < now() - begun < 60
        assert on.faulty.calls["renew"] == 1
        await lease.release()


@virtual
async def test_acquire_and_release_of_a_contended_lock_are_two_commands() -> None:
    """A contended acquire and release are two commands."""
    async with scene() as on:
        async with on.theirs.lock("a"):
            waiting = asking(on.ours.lock("a"))
            await queued(on.theirs.lock("a"), 1)
        await (await waiting).release()
        assert on.faulty.calls == {"open": 1, "acquire": 1, "push": 1, "release": 1}


@virtual
async def test_max_hold_of_a_renewed_lease_ends_in_lease_lost() -> None:
    """A lease is lost when it has been held for `max_hold`, however well it is renewed."""
    async with scene() as (_, _, ours, theirs):
        for ttl, max_hold in ((3, 10), (30, 10), (10, 10), (30, 0.5)):
            begun = now()

            async def body(ttl: float = ttl, max_hold: float = max_hold) -> None:
                async with ours.lock("a", ttl=ttl, max_hold=max_hold) as lease:
                    await asyncio.sleep(max_hold * 0.9)
                    assert lease.state == "held"
                    await asyncio.sleep(100)

            with pytest.raises(LeaseLost, match="max_hold"):
                await body()
            assert now() - begun == pytest.approx(max_hold, rel=0.02)
            await (await taken(theirs.lock("a"))).release()


@virtual
async def test_max_hold_without_a_body_releases_before_the_store_would() -> None:
    """A lease without a body is given back at its end, so its client does not pass for dead."""
    async with scene() as (_, _, ours, theirs):
        begun = now()
        lease = await taken(ours.lock("a", ttl=3, max_hold=10))
        entered: list[tuple[aiolock.LockClient, float]] = []

        async def enter(client: aiolock.LockClient) -> None:
            async with client.lock("a"):
                entered.append((client, now() - begun))

        waiting = [asyncio.create_task(enter(client)) for client in (ours, ours, theirs)]
        await asyncio.wait_for(lease.lost.wait(), 11)
        await asyncio.wait(waiting)
        assert [client for client, _ in entered] == [ours, ours, theirs]
        assert entered[-1][1] < 10, "by the store's clock it would end then"
        assert await lease.release() is False


@virtual
async def test_max_hold_of_a_shorter_body_ends_in_an_ordinary_release() -> None:
    """A body that ends before `max_hold` knows nothing of it."""
    async with scene() as (_, _, ours, _):
        async with ours.lock("a", ttl=3, max_hold=10) as lease:
            await asyncio.sleep(9.5)
        assert lease.state == "released"


# --- extend and verify


@virtual
async def test_extend_sets_the_remaining_time_longer_or_shorter() -> None:
    """`extend` sets how long the lease lasts from now on, longer or shorter."""
    async with scene() as (_, _, ours, theirs):
        async with ours.lock("a", ttl=3) as lease:
            for ttl in (100, 5, 40):
                await lease.extend(ttl)
                assert lease.remaining() == pytest.approx(ttl, rel=0.02)
                (holder,) = (await theirs.lock("a").status()).holders
                assert holder.remaining == pytest.approx(ttl, rel=0.02)
                await asyncio.sleep(500)
                assert lease.state == "held"
                assert ttl / 2 < lease.remaining() < ttl
        assert not await theirs.lock("a").locked()


@virtual
async def test_extend_of_a_lease_without_renewal_lasts_only_the_ttl_given() -> None:
    """A lease with `renew=False` lasts as long as it was last extended, and no longer."""
    async with scene() as (_, _, ours, _):
        lease = await taken(ours.lock("a", ttl=3, renew=False))
        await asyncio.sleep(2)
        await lease.extend(10)
        await asyncio.sleep(9)
        assert lease.state == "held"
        await lease.extend(1)
        await asyncio.sleep(1)
        assert lease.state == "lost"


@virtual
async def test_extend_beyond_max_hold_is_cut_at_max_hold() -> None:
    """No extension goes beyond `max_hold`."""
    async with scene() as (_, _, ours, _):
        begun = now()
        lease = await taken(ours.lock("a", ttl=3, max_hold=10))
        await lease.extend(100)
        assert lease.remaining() < 10
        await asyncio.sleep(5)
        await lease.extend(100)
        assert lease.remaining() < 5
        await lease.lost
        assert now() - begun == pytest.approx(10, rel=0.02)


@virtual
async def test_extend_of_an_ended_lease_raises_lease_lost_and_sends_nothing() -> None:
    """What is lost or released cannot be extended: LeaseLost, and nothing is sent."""
    async with scene() as on:
        lease = await taken(on.ours.lock("a"))
        on.lose(lease)
        await lease.lost
        with pytest.raises(LeaseLost, match=r"'a'.*break_"):
            await lease.extend(10)
        lease = await taken(on.ours.lock("a"))
        await lease.release()
        with pytest.raises(LeaseLost, match=r"'a'.*released"):
            await lease.extend(10)
        assert on.faulty.calls["renew"] == 0


@virtual
async def test_extend_refused_by_the_store_loses_the_lease() -> None:
    """An extension that the store refuses is a loss."""
    async with scene() as on:
        lease = await taken(on.ours.lock("a"))
        on.faulty.lose("push")
        on.lose(lease)
        await settled()
        assert lease.state == "held"
        with pytest.raises(LeaseLost, match="does not know it"):
            await lease.extend(10)
        assert lease.state == "lost"


@virtual
async def test_extend_without_an_answer_raises_store_error_and_keeps_the_deadline() -> None:
    """When nobody knows whether a lease was extended it is StoreError, and as it was before."""
    async with scene() as (_, faulty, ours, _), ours.lock("a", ttl=30) as lease:
        faulty.refuse("renew")
        with pytest.raises(StoreError, match="refused"):
            await lease.extend(300)
        assert lease.remaining() < 30
        await asyncio.sleep(60)
        assert lease.state == "held"
        assert lease.remaining() < 30
        faulty.refuse("renew")
        with pytest.raises(StoreError, match="refused"):
            await lease.extend(1)
        await asyncio.sleep(60)
        assert lease.state == "held"


@virtual
async def test_extend_to_shorter_without_an_answer_believes_the_shorter_ttl() -> None:
    """A shorter lease whose answer was lost is believed in no longer than it may last."""
    async with scene() as (_, faulty, ours, _):
        lease = await taken(ours.lock("a", ttl=30, renew=False))
        faulty.lose("renew")
        with pytest.raises(StoreError, match="lost"):
            await lease.extend(2)
        assert lease.remaining() < 2
        await asyncio.sleep(2)
        assert lease.state == "lost"


@virtual
async def test_extend_to_shorter_without_an_answer_outweighs_an_earlier_renewal() -> None:
    """Nor does the late answer to an earlier renewal make it believe in more than there is."""
    async with scene() as (server, faulty, ours, _):
        lease = await taken(ours.lock("a", ttl=30))
        faulty.hold("renew")
        await asyncio.sleep(10.5)
        assert faulty.calls["renew"] == 1
        faulty.lose("renew")
        extending = asyncio.create_task(lease.extend(0.5))
        await settled()
        faulty.resume()
        with pytest.raises(StoreError, match="lost"):
            await extending
        (holder,) = server.run(ReadStatus("lock:a")).holders
        assert holder.remaining <= 0.5
        assert lease.remaining() <= holder.remaining
        await asyncio.sleep(60)
        (holder,) = server.run(ReadStatus("lock:a")).holders
        assert lease.state == "held"
        assert 10 < lease.remaining() <= holder.remaining
        await lease.release()


@virtual
async def test_extend_to_longer_before_an_unanswered_renewal_is_not_believed() -> None:
    """A renewal behind an extension may have cut it short, so the extension is not believed."""
    async with scene() as (server, faulty, ours, theirs):
        lease = await taken(ours.lock("a", ttl=2))
        await asyncio.sleep(0.1)
        faulty.hold("renew")
        extending = asyncio.create_task(lease.extend(60))
        await settled()
        faulty.lose("renew")
        await asyncio.sleep(1)
        assert faulty.calls["renew"] == 2
        faulty.resume()
        await extending
        faulty.refuse("renew", math.inf)
        faulty.lose("push", math.inf)
        (holder,) = server.run(ReadStatus("lock:a")).holders
        assert lease.remaining() <= holder.remaining <= 2
        async with theirs.lock("a"):
            assert lease.state == "lost"
        faulty.resume()


@virtual
async def test_extend_twice_with_answers_in_reverse_believes_the_last_sent() -> None:
    """The late answer to the first says nothing any more, once that to the second has come."""
    async with scene() as (server, faulty, ours, _):
        lease = await taken(ours.lock("a", ttl=30, renew=False))
        faulty.hold("renew")
        longer = asyncio.create_task(lease.extend(60))
        await settled()
        shorter = asyncio.create_task(lease.extend(2))
        await settled()
        faulty._back.reverse()
        faulty.resume()
        await asyncio.gather(longer, shorter)
        (holder,) = server.run(ReadStatus("lock:a")).holders
        assert lease.remaining() <= holder.remaining <= 2
        await lease.release()


@virtual
async def test_extend_after_a_reconnection_counts_a_possible_copy_of_a_shorter_one() -> None:
    """While a copy of a shorter one may come, that counts; then it is renewed to the end."""
    async with scene() as (_, faulty, ours, _):
        lease = await taken(ours.lock("a", ttl=30, renew=False))
        faulty.hold("renew")
        extending = asyncio.create_task(lease.extend(10))
        await settled()
        ours._engine.waiters.deliver(Reconnected())
        faulty.resume()
        await extending
        begun = now()
        await lease.extend(300)
        assert lease.remaining() <= 10
        await asyncio.sleep(250)
        assert lease.state == "held"
        await lease.lost
        assert now() - begun == pytest.approx(297, abs=0.5)  # a hundredth is left


@virtual
async def test_extend_answered_after_the_lease_ended_raises_lease_lost() -> None:
    """An answer that comes behind the deadline, or behind a release, is LeaseLost all the same."""
    async with scene() as (_, faulty, ours, _):
        for ends in (True, False):
            lease = await taken(ours.lock("a", ttl=2))
            faulty.hold("renew")
            extending = asyncio.create_task(lease.extend(60))
            verifying = asyncio.create_task(lease.verify())
            await asyncio.sleep(0.1)
            if ends:
                await asyncio.sleep(3)
                assert lease.state == "lost"
            else:
                await lease.release()
            faulty.resume()
            with pytest.raises(LeaseLost, match="ended" if ends else "released"):
                await extending
            assert await verifying is False
            await asyncio.sleep(60)


@pytest.mark.parametrize("begun", [0.0, 0.13, 0.26])
@virtual
async def test_extend_that_is_cancelled_leaves_the_next_renewal_in_time(begun: float) -> None:
    """Its answer has come, but renewals keep the old ttl: the next comes with most of that left."""
    async with scene() as (_, faulty, ours, _):
        await asyncio.sleep(begun)
        lease = await taken(ours.lock("a", ttl=2))
        faulty.hold("renew")
        extending = asyncio.create_task(lease.extend(60))
        await asyncio.sleep(0.01)
        faulty.resume()
        extending.cancel()
        await asyncio.wait([extending])
        assert extending.cancelled()
        await settled()
        assert lease.remaining() > 50
        left, renewals = 60.0, faulty.calls["renew"]
        while faulty.calls["renew"] == renewals:
            left = lease.remaining()
            await asyncio.sleep(0.01)
        assert 1.2 < left < 2
        await lease.release()


async def test_verify_asks_the_store_and_finds_an_unheard_loss(world: World) -> None:
    """`verify` asks the store, and knows of a loss that nobody told us."""
    faulty = FaultyStore(world.store())
    async with aiolock.connect(faulty) as ours, world.client() as theirs:
        lease = await taken(ours.lock("a"))
        assert await lease.verify() is True
        assert lease.state == "held"
        faulty.lose("push")
        assert await theirs.lock("a").break_() is True
        assert await lease.verify() is False
        assert lease.state == "lost"
        assert lease.lost.is_set()
        assert await lease.verify() is False
        assert await lease.release() is False
        lease = await taken(ours.lock("a"))
        await lease.release()
        assert await lease.verify() is False
        faulty.refuse("renew")
        lease = await taken(ours.lock("a"))
        with pytest.raises(StoreError, match="refused"):
            await lease.verify()
        assert await lease.verify() is True
        assert lease.state == "held"
        await lease.release()


@virtual
async def test_verify_that_finds_a_loss_ends_the_body() -> None:
    """A body that learns by `verify` that the lock is lost is cancelled like any other."""
    async with scene() as on:

        async def body() -> None:
            async with on.ours.lock("a") as lease:
                on.faulty.lose("push")
                on.lose(lease)
                assert await lease.verify() is False
                await asyncio.sleep(100)
                pytest.fail("the body went on")

        with pytest.raises(LeaseLost, match="does not know it"):
            await body()
        unhurt()


# --- What happens to it


@virtual
async def test_renewal_that_succeeds_again_takes_the_lease_out_of_at_risk() -> None:
    """A renewal without an answer puts a lease at risk; the next that succeeds takes it out."""
    async with scene() as (_, faulty, ours, _), ours.lock("a", ttl=30) as lease:
        for disturb in (faulty.refuse, faulty.lose):
            disturb("renew", math.inf)
            await asyncio.sleep(12)
            assert lease.state == "at_risk"
            assert 0 < lease.remaining() < 20
            faulty.resume()
            await asyncio.sleep(5)
            assert lease.state == "held"
            assert lease.remaining() > 20
        assert not lease.lost.is_set()


@virtual
async def test_lease_that_cannot_be_renewed_is_lost_before_the_store_ends_it() -> None:
    """A lease that cannot be renewed is lost at its local deadline, before the store ends it."""
    async with scene() as (server, faulty, ours, _):
        for disturb in ("refuse", "hold one", "hold all"):
            lease = await taken(ours.lock("a", ttl=30))
            begun = now()
            if disturb == "refuse":
                faulty.refuse("renew", math.inf)
            else:
                faulty.hold("renew") if disturb == "hold one" else faulty.hold()
            await asyncio.sleep(15)
            assert lease.state == "at_risk"
            await lease.lost
            assert 29 < now() - begun < 30
            (holder,) = server.run(ReadStatus("lock:a")).holders
            assert holder.remaining > 0
            faulty.resume()
            await lease.release()


@virtual
async def test_lost_event_is_set_by_a_loss_and_not_by_a_release() -> None:
    """`lease.lost` can be awaited, by anybody, before and after; a release does not set it."""
    async with scene() as on:
        lease = await taken(on.ours.lock("a"))
        waiting = [asyncio.create_task(lease.lost.wait()) for _ in range(2)]
        await settled()
        assert not lease.lost.is_set()
        on.lose(lease)
        assert await asyncio.gather(*waiting) == [True, True]
        assert await lease.lost is True
        late = await taken(on.ours.lock("a"))
        on.lose(late)
        await settled()
        assert late.lost.is_set()
        released = await taken(on.ours.lock("a"))
        await released.release()
        assert not released.lost.is_set()


@virtual
async def test_release_called_again_returns_the_same_and_sends_nothing() -> None:
    """A second release says the same and sends nothing, also of a lease that was lost."""
    async with scene() as on:
        lease = await taken(on.ours.lock("a"))
        for _ in range(3):
            assert await lease.release() is True
        assert on.faulty.calls["release"] == 1
        lease = await taken(on.ours.lock("a"))
        on.lose(lease)
        await lease.lost
        for _ in range(3):
            assert await lease.release() is False
        # Once, for what was broken may stand in the queue again: it had asked when that happened.
        assert on.faulty.calls["release"] == 2


@virtual
async def test_release_by_two_tasks_at_once_survives_cancellation_of_one() -> None:
    """Two tasks that release at once both hear of it, even when one of them is cancelled."""
    async with scene() as on:
        lease = await taken(on.ours.lock("a"))
        one, two = asyncio.create_task(lease.release()), asyncio.create_task(lease.release())
        await asyncio.sleep(0)
        one.cancel()
        assert await two is True
        assert one.cancelled()
        assert on.faulty.calls["release"] == 1


@virtual
async def test_release_of_a_broken_lease_returns_false_and_the_lease_is_lost() -> None:
    """A release that finds the lock broken says so, and the lease was lost, not released."""
    async with scene() as on:
        for _ in range(2):
            lease = await taken(on.ours.lock("a"))
            on.faulty.lose("push")
            on.lose(lease)
            assert await lease.release() is False
            assert await lease.release() is False
            assert lease.state == "lost"
            assert lease.lost.is_set()


@virtual
async def test_exit_of_a_broken_lease_raises_lease_lost() -> None:
    """A body at whose end the lock turns out to be broken ends in LeaseLost."""
    async with scene() as on:

        async def body() -> None:
            async with on.ours.lock("a") as lease:
                on.faulty.lose("push")
                on.lose(lease)

        with pytest.raises(LeaseLost, match="does not know it"):
            await body()
        unhurt()


@virtual
async def test_release_that_is_cancelled_is_carried_out() -> None:
    """A release that is cancelled is carried out all the same."""
    async with scene() as on:
        lease = await taken(on.ours.lock("a"))
        releasing = asyncio.create_task(lease.release())
        await asyncio.sleep(0)
        releasing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await releasing
        assert lease.state == "released"
        assert await lease.release() is True
        assert not await on.theirs.lock("a").locked()


@virtual
async def test_release_that_is_cancelled_and_fails_is_sent_again() -> None:
    """It is sent again, as where it was not cancelled: by hand, and by two at once."""
    async with scene() as on:
        for tasks in (1, 2):
            lease = await taken(on.ours.lock("a", ttl=600))
            on.faulty.refuse("release")
            releasing = [asyncio.create_task(lease.release()) for _ in range(tasks)]
            await asyncio.sleep(0)
            releasing[0].cancel()
            await asyncio.wait(releasing)
            assert releasing[0].cancelled()
            if tasks == 2:
                assert isinstance(releasing[1].exception(), StoreError)
            await asyncio.sleep(5)
            assert not await on.theirs.lock("a").locked()


@virtual
async def test_release_beside_a_cancelled_one_waits_no_longer_than_the_lease() -> None:
    """Who still waits for it waits until the end of the lease, and no longer."""
    async with scene() as on:
        lease = await taken(on.ours.lock("a", ttl=2))
        on.faulty.hold("release")
        begun = now()
        releasing = [asyncio.create_task(lease.release()) for _ in range(2)]
        await asyncio.sleep(0)
        releasing[0].cancel()
        with pytest.raises(StoreError, match="before the lease ended"):
            await releasing[1]
        assert now() - begun <= 2


@virtual
async def test_exit_that_is_cancelled_and_fails_sends_its_release_again() -> None:
    """It is sent again, too."""
    async with scene() as on:
        leaves = asyncio.Event()

        async def body() -> None:
            async with on.ours.lock("a", ttl=600):
                on.faulty.refuse("release")
                leaves.set()

        leaving = asyncio.create_task(body())
        await leaves.wait()
        assert on.faulty.calls["release"] == 1
        leaving.cancel()
        await asyncio.wait([leaving])
        assert leaving.cancelled()
        await asyncio.sleep(5)
        assert not await on.theirs.lock("a").locked()


@virtual
async def test_release_without_an_answer_raises_store_error_in_time() -> None:
    """`release` raises StoreError when nobody knows; a store that hangs does not hang it."""
    async with scene() as (_, faulty, ours, theirs):
        lease = await taken(ours.lock("a"))
        faulty.refuse("release")
        with pytest.raises(StoreError, match="refused"):
            await lease.release()
        assert lease.state == "released"
        assert not ours.lock("a").held()
        assert await theirs.lock("a").try_acquire(timeout=31) is not None
        await theirs.lock("a").release()
        lease = await taken(ours.lock("a", ttl=3))
        faulty.hold("release")
        begun = now()
        with pytest.raises(StoreError, match="not confirmed before the lease ended"):
            await lease.release()
        assert now() - begun < 3
        lease = await taken(ours.lock("b", ttl=60))
        begun = now()
        with pytest.raises(StoreError, match="no answer"):
            await lease.release()
        assert now() - begun == pytest.approx(9.5)


@virtual
async def test_exit_whose_release_fails_logs_a_warning_and_raises_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An exit whose release could not be confirmed is logged, and raises nothing of its own."""
    async with scene() as (_, faulty, ours, theirs):
        for error in (None, ValueError("own")):
            faulty.refuse("release")
            caplog.clear()
            with contextlib.suppress(ValueError):
                async with ours.lock("a"):
                    if error is not None:
                        raise error
            await settled()
            (record,) = caplog.records
            assert (record.name, record.levelno) == ("aiolock", logging.WARNING)
            assert "'a'" in record.getMessage()
            assert "refused" in record.getMessage()
            assert await theirs.lock("a").try_acquire(timeout=31) is not None
            await theirs.lock("a").release()


# --- What becomes of the body


async def test_loss_by_break_cancels_the_body_and_raises_lease_lost(world: World) -> None:
    """A body whose lock is broken is cancelled at once, and the exit raises LeaseLost."""
    async with world.client() as ours, world.client() as theirs:
        entered = asyncio.Event()

        async def body() -> None:
            async with ours.lock("a"):
                entered.set()
                await asyncio.sleep(100)

        task = asyncio.create_task(body())
        await entered.wait()
        assert await theirs.lock("a").break_() is True
        async with theirs.lock("a") as lease:
            with pytest.raises(LeaseLost, match=r"'a' \(fence \d+\).*break_"):
                await task
            assert isinstance(task.exception(), aiolock.LockError)
            assert await lease.verify() is True


async def test_lease_after_loop_blocked_beyond_its_ttl_is_lost_at_once(world: World) -> None:
    """A loop that was blocked for longer than the ttl finds its lease lost, at once."""
    async with world.client() as ours, world.client() as theirs:

        async def body() -> None:
            async with ours.lock("a", ttl=0.5) as lease:
                time.sleep(lease.remaining() + 0.01)
                assert lease.state == "lost"
                assert lease.remaining() == 0.0
                await asyncio.sleep(100)

        with pytest.raises(LeaseLost, match="lease ended"):
            await body()
        unhurt()
        assert await theirs.lock("a").try_acquire(timeout=10) is not None
        await theirs.lock("a").release()


@virtual
async def test_loss_with_on_lost_signal_lets_the_body_go_on() -> None:
    """With `on_lost="signal"` the body goes on, and its end is an ordinary one."""
    async with scene() as on:
        async with on.ours.lock("a", on_lost="signal") as lease:
            on.lose(lease)
            await lease.lost
            await asyncio.sleep(100)
            assert lease.state == "lost"
        unhurt()


@virtual
async def test_loss_in_a_body_with_its_own_error_keeps_the_error_and_adds_a_note() -> None:
    """The body's own error comes out as it is, with a note that the lock was lost meanwhile."""
    async with scene() as on:
        error = ValueError("own")

        async def while_cleaning_up() -> None:
            async with on.ours.lock("a") as lease:
                on.lose(lease)
                try:
                    await asyncio.sleep(100)
                finally:
                    raise error

        async def without_noticing() -> None:
            async with on.ours.lock("a", ttl=1):
                block(2)
                raise error

        async def of_two_levels() -> None:
            lock = on.ours.lock("a", ttl=1, reentrant=True)
            async with lock, lock, lock:
                block(2)
                raise error

        async def of_two_locks() -> None:
            async with on.ours.lock("a", ttl=1), on.ours.lock("b", ttl=1):
                block(2)
                raise error

        for body in (while_cleaning_up, without_noticing, of_two_levels, of_two_locks):
            with pytest.raises(ValueError, match="own") as caught:
                await body()
            assert caught.value is error
            notes = error.__notes__
            assert notes
            assert all("aiolock" in note and "was lost" in note for note in notes)
            error.__notes__ = []
            unhurt()
            await settled()


@virtual
async def test_loss_in_a_body_that_swallows_the_cancellation_raises_lease_lost() -> None:
    """A body that swallows the cancellation and ends well ends in LeaseLost all the same."""
    async with scene() as on:

        async def body() -> None:
            async with on.ours.lock("a") as lease:
                on.lose(lease)
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(100)
                await asyncio.sleep(1)

        with pytest.raises(LeaseLost):
            await body()
        unhurt()
        await settled()


@virtual
async def test_cancelled_error_raised_by_the_body_without_a_loss_stays_one() -> None:
    """A CancelledError that the body raised itself, with no loss, stays one."""
    async with scene() as on:

        async def body() -> None:
            async with on.ours.lock("a"):
                raise asyncio.CancelledError

        with pytest.raises(asyncio.CancelledError):
            await body()
        assert not await on.theirs.lock("a").locked()


@virtual
async def test_cancellation_of_a_body_that_outlasts_its_lease_stays_the_only_one() -> None:
    """The loss that its exit notices cancels nothing: the cancellation from outside stays alone."""
    async with scene() as on:
        cleaned = 0

        async def body() -> None:
            nonlocal cleaned
            try:
                async with on.ours.lock("a", ttl=2):
                    try:
                        await asyncio.sleep(100)
                    finally:
                        block(5)
            finally:
                await asyncio.sleep(0.1)
                cleaned += 1

        task = asyncio.create_task(body())
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await body()
        unhurt()
        await asyncio.sleep(0)
        assert cleaned == 2


@virtual
async def test_loss_noticed_by_the_exit_is_observed_and_cancels_nothing() -> None:
    """The body has ended, so it is not cancelled, and observers are told of none."""
    seen = list[tuple[str, int]]()

    class Losses(aiolock.Observer):
        def lost(self, *_: object, body: str, **__: object) -> None:
            task = asyncio.current_task()
            assert task is not None
            seen.append((body, task.cancelling()))

    async with aiolock.connect(MemoryServer(), observer=Losses()) as client:
        with pytest.raises(LeaseLost):
            async with client.lock("a", ttl=2):
                block(5)
        unhurt()
    assert seen == [("none", 0)]


@virtual
async def test_loss_in_a_body_whose_outer_one_was_left_first_raises_lease_lost() -> None:
    """Bodies may be left in another order than they were entered: the one that is left is ended."""
    async with scene() as on:
        lock = on.ours.lock("a", reentrant=True)

        async def outer() -> AsyncIterator[None]:
            async with lock:
                yield

        async def body() -> None:
            entered = outer()
            await anext(entered)
            async with lock as lease:
                await cast(Any, entered).aclose()
                on.lose(lease)
                await asyncio.sleep(100)

        with pytest.raises(LeaseLost):
            await body()
        unhurt()


@virtual
async def test_loss_in_nested_bodies_cancels_or_signals_each_by_its_own_option() -> None:
    """Each body is cancelled, or only told, as its own lock says."""
    async with scene() as on:

        async def inner() -> None:
            async with on.ours.lock("a", reentrant=True) as lease:
                on.lose(lease)
                await asyncio.sleep(100)

        async with on.ours.lock("a", reentrant=True, on_lost="signal") as lease:
            begun = now()
            with pytest.raises(LeaseLost):
                await inner()
            await asyncio.sleep(1)
            assert lease.lost.is_set()
            assert now() - begun < 10
        unhurt()


@virtual
async def test_exit_of_a_lease_released_by_hand_notices_that_the_outer_one_ended() -> None:
    """Of a re-entrant lock: what follows in the outer body does not run without the lock."""
    loop: Any = asyncio.get_running_loop()
    async with scene() as on:
        lock = on.ours.lock("a", reentrant=True, ttl=3, renew=False)
        reached = list[str]()

        async def body() -> None:
            async with lock:
                async with lock as inner:
                    await inner.release()
                    loop.advance(5)  # the process stands still
                reached.append("the outer body")

        with pytest.raises(LeaseLost):
            await body()
        assert not reached
        unhurt()


@virtual
async def test_loss_in_nested_reentrant_bodies_raises_one_lease_lost() -> None:
    """The bodies within each other all end, and what comes out is one LeaseLost."""
    async with scene() as on:
        lock = on.ours.lock("a", reentrant=True)

        async def body() -> None:
            async with lock as lease, lock, lock:
                on.lose(lease)
                await asyncio.sleep(100)

        with pytest.raises(LeaseLost):
            await body()
        unhurt()
        await settled()
        assert not lock.held()


@virtual
async def test_loss_caught_in_an_inner_reentrant_body_still_ends_the_outer() -> None:
    """An inner body that ends well after the loss does not save the outer one."""
    async with scene() as on:
        lock = on.ours.lock("a", reentrant=True)
        caught = 0

        async def body() -> None:
            nonlocal caught
            async with lock as lease:
                try:
                    async with lock:
                        on.lose(lease)
                        await asyncio.sleep(100)
                except (LeaseLost, asyncio.CancelledError):
                    caught += 1
                await asyncio.sleep(1)

        with pytest.raises(LeaseLost):
            await body()
        assert caught == 1
        unhurt()


@virtual
async def test_loss_of_one_of_two_nested_locks_releases_the_other() -> None:
    """When the outer or the inner of two locks is lost, the other one is given back."""
    async with scene() as on:
        for lost in ("a", "b"):

            async def body(lost: str = lost) -> None:
                async with on.ours.lock("a") as a, on.ours.lock("b") as b:
                    on.lose(a if lost == "a" else b)
                    await asyncio.sleep(100)

            with pytest.raises(LeaseLost, match=f"'{lost}'"):
                await body()
            unhurt()
            for name in ("a", "b"):
                assert not await on.theirs.lock(name).locked()


@virtual
async def test_loss_of_both_nested_locks_raises_lease_lost_without_cancellation() -> None:
    """When both of two locks are lost at once, what comes out is LeaseLost, and no cancellation."""
    async with scene() as on:

        async def body() -> None:
            async with on.ours.lock("a") as a, on.ours.lock("b") as b:
                on.lose(a)
                on.lose(b)
                await asyncio.sleep(100)

        with pytest.raises(LeaseLost):
            await body()
        unhurt()
        await settled()


@virtual
async def test_loss_while_waiting_for_another_lock_leaves_its_queue() -> None:
    """A body that is lost while it waits for a second lock leaves that lock's queue."""
    async with scene() as on:
        async with on.theirs.lock("b"):

            async def body() -> None:
                async with on.ours.lock("a") as lease:
                    asyncio.get_running_loop().call_later(1, on.lose, lease)
                    await on.ours.lock("b").acquire()

            with pytest.raises(LeaseLost, match="'a'"):
                await body()
            await queued(on.theirs.lock("b"), 0)
        unhurt()


# --- Together with other things that cancel

Body = Callable[[Scene], Awaitable[None]]


@contextlib.contextmanager
def only_error() -> Iterator[None]:
    """Raise the one error that a group of tasks ended with."""
    try:
        yield
    except ExceptionGroup as group:
        (error,) = group.exceptions
        raise error from None


async def in_a_timeout(on: Scene) -> None:
    """An asyncio.timeout() round it that does not expire."""
    async with asyncio.timeout(1000), on.ours.lock("a") as lease:
        on.lose(lease)
        await asyncio.sleep(100)


async def round_a_timeout(on: Scene) -> None:
    """An asyncio.timeout() in it that does not expire."""
    async with on.ours.lock("a") as lease, asyncio.timeout(1000):
        on.lose(lease)
        await asyncio.sleep(100)


async def round_a_group(on: Scene) -> None:
    """A TaskGroup in it, which waits for its tasks."""
    async with on.ours.lock("a") as lease, asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.sleep(100))
        asyncio.get_running_loop().call_later(1, on.lose, lease)


async def round_the_body_of_a_group(on: Scene) -> None:
    """A TaskGroup in it, whose body is under way."""
    async with on.ours.lock("a") as lease, asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.sleep(100))
        on.lose(lease)
        await asyncio.sleep(100)


async def in_the_body_of_a_group(on: Scene) -> None:
    """A TaskGroup round it, which hears of an error in its body."""

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks, on.ours.lock("a") as lease:
            tasks.create_task(asyncio.sleep(100))
            on.lose(lease)
            await asyncio.sleep(100)

    with only_error():
        # In a task: from Python 3.13 on a group that fails cancels a task again that once was.
        await asyncio.create_task(group())


async def in_a_task_of_a_group(on: Scene) -> None:
    """A TaskGroup one of whose tasks it is."""

    async def member() -> None:
        async with on.ours.lock("a") as lease:
            on.lose(lease)
            await asyncio.sleep(100)

    async def group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(member())
            tasks.create_task(asyncio.sleep(100))

    with only_error():
        # In a task: before Python 3.13 a group that fails while it waits forgets to uncancel.
        await asyncio.create_task(group())


async def in_an_anyio_scope(on: Scene) -> None:
    """An anyio scope round it that is not cancelled."""
    with anyio.fail_after(1000):
        async with on.ours.lock("a") as lease:
            on.lose(lease)
            await anyio.sleep(100)


async def round_an_anyio_scope(on: Scene) -> None:
    """An anyio scope in it that is not cancelled."""
    async with on.ours.lock("a") as lease:
        with anyio.move_on_after(1000):
            on.lose(lease)
            await anyio.sleep(100)


async def round_an_anyio_scope_that_is_cancelled(on: Scene) -> None:
    """An anyio scope in it that is cancelled in the same turn."""
    async with on.ours.lock("a") as lease:
        with anyio.CancelScope() as scope:
            on.lose(lease)
            asyncio.get_running_loop().call_soon(scope.cancel)
            await anyio.sleep(100)
        await anyio.sleep(100)


async def round_an_anyio_group(on: Scene) -> None:
    """An anyio task group in it."""
    async with on.ours.lock("a") as lease, anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep, 100)
        on.lose(lease)
        await anyio.sleep(100)


async def in_a_task_of_an_anyio_group(on: Scene) -> None:
    """An anyio task group one of whose tasks it is."""

    async def member() -> None:
        async with on.ours.lock("a") as lease:
            on.lose(lease)
            await anyio.sleep(100)

    with only_error():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(member)
            tasks.start_soon(anyio.sleep, 100)


async def in_wait_for(on: Scene) -> None:
    """An asyncio.wait_for() in it."""
    async with on.ours.lock("a") as lease:
        asyncio.get_running_loop().call_later(1, on.lose, lease)
        await asyncio.wait_for(asyncio.sleep(100), 1000)


async def awaiting_a_task(on: Scene) -> None:
    """A task that the body waits for, and that is cancelled with it."""
    async with on.ours.lock("a") as lease:
        asyncio.get_running_loop().call_later(1, on.lose, lease)
        await asyncio.create_task(asyncio.sleep(100))


async def awaiting_a_shield(on: Scene) -> None:
    """A shielded task that the body waits for, and that goes on."""
    inner = asyncio.create_task(asyncio.sleep(100))
    try:
        async with on.ours.lock("a") as lease:
            on.lose(lease)
            await asyncio.shield(inner)
    finally:
        assert not inner.done()
        inner.cancel()


LOSSES: list[Body] = [
    in_a_timeout,
    round_a_timeout,
    round_a_group,
    round_the_body_of_a_group,
    in_the_body_of_a_group,
    in_a_task_of_a_group,
    in_an_anyio_scope,
    round_an_anyio_scope,
    round_an_anyio_scope_that_is_cancelled,
    round_an_anyio_group,
    in_a_task_of_an_anyio_group,
    in_wait_for,
    awaiting_a_task,
    awaiting_a_shield,
]


@pytest.mark.parametrize("body", LOSSES, ids=lambda body: cast(str, body.__name__))
@pytest.mark.parametrize("already", [0, 2])
@virtual
async def test_loss_among_other_cancel_scopes_leaves_no_cancellation_behind(
    body: Body, already: int
) -> None:
    """Among other scopes that cancel, a loss is LeaseLost, and leaves no cancellation behind."""
    async with scene() as on:
        task = asyncio.current_task()
        assert task is not None
        for _ in range(already):  # cancelled before, and caught: that is counted still
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        begun = now()
        with pytest.raises(LeaseLost, match="'a'"):
            await body(on)
        assert now() - begun <= 1
        unhurt(already)
        for _ in range(5):
            await asyncio.sleep(0)
        with anyio.CancelScope():
            await anyio.sleep(1)
        unhurt(already)
        while task.cancelling():
            task.uncancel()


@pytest.mark.parametrize("first", ["loss", "timeout"])
@virtual
async def test_timeout_around_a_lock_lost_in_the_same_turn_raises_timeout_error(first: str) -> None:
    """An asyncio.timeout() round the lock that expires in the turn of the loss is TimeoutError."""
    async with scene() as on:

        async def body() -> None:
            async with asyncio.timeout(1), on.ours.lock("a") as lease:
                on.lose_at(now() + 1 + _sooner(first == "loss"), lease)
                await asyncio.sleep(100)

        with pytest.raises(TimeoutError) as caught:
            await body()
        assert not isinstance(caught.value, aiolock.LockError)
        unhurt()
        await settled()


@pytest.mark.parametrize("first", ["loss", "timeout"])
@virtual
async def test_timeout_within_a_body_lost_in_the_same_turn_raises_lease_lost(first: str) -> None:
    """An asyncio.timeout() in the body that expires in the turn of the loss changes nothing."""
    async with scene() as on:

        async def body() -> None:
            async with on.ours.lock("a") as lease, asyncio.timeout(1):
                on.lose_at(now() + 1 + _sooner(first == "loss"), lease)
                await asyncio.sleep(100)

        with pytest.raises(LeaseLost):
            await body()
        unhurt()
        await settled()


@virtual
async def test_anyio_scope_cancelled_before_the_loss_ends_without_error() -> None:
    """An anyio scope round the lock that was cancelled, and then the lease lost, just ends."""
    async with scene() as on:
        with anyio.CancelScope() as scope:
            async with on.ours.lock("a") as lease:
                asyncio.get_running_loop().call_at(now() + 1, scope.cancel)
                on.lose_at(now() + 1 + _sooner(first=False), lease)
                await asyncio.sleep(100)
        assert scope.cancelled_caught
        unhurt()
        await settled()


@virtual
async def test_anyio_scope_cancelled_after_the_loss_raises_lease_lost() -> None:
    """An anyio scope that is cancelled in the same turn, but after the loss, hides it not."""
    async with scene() as on:

        async def body() -> None:
            with anyio.CancelScope() as scope:
                async with on.ours.lock("a") as lease:
                    on.lose_at(now() + 1 + _sooner(first=True), lease)
                    asyncio.get_running_loop().call_at(now() + 1, scope.cancel)
                    await asyncio.sleep(100)

        with pytest.raises(LeaseLost):
            await body()
        unhurt()
        await settled()


async def in_an_anyio_task_group() -> None:
    """A body that waits for its own tasks."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.sleep, 100)


async def in_a_task_group() -> None:
    """The same with asyncio's."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.sleep(100))


async def in_both_task_groups() -> None:
    """One in the other."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.sleep(100))
        await in_an_anyio_task_group()


async def asleep() -> None:
    """A body that waits."""
    await asyncio.sleep(100)


@asynccontextmanager
async def one_lock(on: Scene) -> AsyncIterator[list[aiolock.Lease]]:
    """One lock."""
    async with on.ours.lock("a") as lease:
        yield [lease]


@asynccontextmanager
async def two_locks(on: Scene) -> AsyncIterator[list[aiolock.Lease]]:
    """Two, of which the inner one is lost first."""
    async with on.ours.lock("a") as outer, on.ours.lock("b") as inner:
        yield [inner, outer]


@asynccontextmanager
async def two_locks_and_a_scope(on: Scene) -> AsyncIterator[list[aiolock.Lease]]:
    """Two, with an anyio scope between them."""
    async with on.ours.lock("a") as outer:
        with anyio.CancelScope():
            async with on.ours.lock("b") as inner:
                yield [outer, inner]


@asynccontextmanager
async def several_locks(on: Scene) -> AsyncIterator[list[aiolock.Lease]]:
    """Several as one, all of which are lost."""
    async with on.ours.multilock("a", "b") as lease:
        yield list(lease.leases.values())


@pytest.mark.parametrize("first", ["loss", "scope"])
@pytest.mark.parametrize(
    "body", [in_an_anyio_task_group, in_a_task_group, in_both_task_groups, asleep]
)
@pytest.mark.parametrize("locks", [one_lock, two_locks, two_locks_and_a_scope, several_locks])
@virtual
async def test_loss_and_anyio_cancellation_at_any_steps_leave_no_other_end(
    locks: Callable[[Scene], contextlib.AbstractAsyncContextManager[list[aiolock.Lease]]],
    body: Callable[[], Awaitable[None]],
    first: str,
) -> None:
    """Whichever turns they fall in, it is the loss or the end of the scope, and no other end."""
    seen = set[str]()
    for turns in range(5):
        for between in range(3):
            async with scene() as on:
                scope, leases = anyio.CancelScope(), list[aiolock.Lease]()

                async def victim(
                    on: Scene = on,
                    scope: anyio.CancelScope = scope,
                    leases: list[aiolock.Lease] = leases,
                ) -> str:
                    try:
                        with scope:
                            async with locks(on) as held:
                                leases.extend(held)
                                await body()
                    except LeaseLost:
                        return "lost"
                    finally:
                        await asyncio.sleep(1)  # nothing else is to come
                        unhurt()
                    return "ended"

                task = asyncio.create_task(victim())
                await settled()

                async def lose(
                    on: Scene = on,
                    leases: list[aiolock.Lease] = leases,
                    between: int = between,
                ) -> None:
                    for lease in leases:
                        on.ours._engine.watchdog.lose(lease._hold, "broken")
                        await settled(between)

                if first == "loss":
                    await lose()
                    await settled(turns)
                    scope.cancel()
                else:
                    scope.cancel()
                    await settled(turns)
                    await lose()
                seen.add(await task)
    assert seen <= {"lost", "ended"}
    assert seen


@virtual
async def test_loss_and_task_group_failure_at_any_steps_raise_only_their_errors() -> None:
    """However a loss and the end of a TaskGroup round it fall together, errors are all there is."""
    seen = set[frozenset[type]]()
    for lost_at in range(1, 9):
        for failed_at in range(1, 9):
            async with scene() as on:

                async def fail(turns: int = failed_at) -> None:
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    raise ValueError

                async def body(on: Scene = on, turns: int = lost_at) -> None:
                    async with asyncio.TaskGroup() as tasks, on.ours.lock("a") as lease:
                        tasks.create_task(fail())
                        tasks.create_task(_after(turns, on.lose, lease))
                        await asyncio.sleep(100)

                with pytest.raises(ExceptionGroup) as caught:
                    await body()
                kinds = frozenset(type(error) for error in caught.value.exceptions)
                assert kinds <= {ValueError, LeaseLost}
                seen.add(kinds)
                unhurt()
                await settled()
    assert frozenset({ValueError}) in seen
    assert frozenset({LeaseLost}) in seen


async def _after(turns: int, do: Callable[[aiolock.Lease], None], lease: aiolock.Lease) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    do(lease)


def _sooner(first: bool) -> float:
    """Seconds so few that the loop does what is due in the same turn, but in this order."""
    return -1e-10 if first else 1e-10


@virtual
async def test_loss_and_cancellation_at_any_steps_keep_the_cancellation() -> None:
    """However a loss and a cancellation fall together, the cancellation stays one, and alone.

    The task is to end cancelled whenever somebody asked for it, and in LeaseLost or well if
    nobody did; and never is a cancellation delivered that nobody asked for.
    """
    ends = set[str]()
    for lost_at in (*range(1, 14), None):
        for cancelled_at in (*range(1, 18), None):
            for cleanup in (0, 3):
                async with scene() as on:
                    end = await _struck(on, lost_at, cancelled_at, cleanup)
                    ends.add(end)
                    if cancelled_at is not None and end != "early":
                        assert end == "cancelled", (lost_at, cancelled_at, cleanup)
                    else:
                        assert end != "cancelled", (lost_at, cancelled_at, cleanup)
    assert ends == {"cancelled", "lost", "well", "early"}


async def _struck(on: Scene, lost_at: int | None, cancelled_at: int | None, cleanup: int) -> str:
    """Run a body, and after so many turns of the loop lose its lease, cancel its task."""
    end = "well"

    async def body() -> None:
        nonlocal end
        try:
            async with on.ours.lock("a") as lease:
                leases.append(lease)
                try:
                    for _ in range(6):
                        await asyncio.sleep(0)
                finally:
                    for _ in range(cleanup):
                        await asyncio.sleep(0)
        except LeaseLost:
            end = "lost"
        for _ in range(6):
            await asyncio.sleep(0)

    leases: list[aiolock.Lease] = []
    task = asyncio.create_task(body())
    asked = False
    for turn in range(1, 40):
        if turn == cancelled_at:
            asked = task.cancel()
        if turn == lost_at and leases:  # it may not have begun, or be over
            on.server.run(Break("lock:a", [leases[0].fence]))
        await asyncio.sleep(0)
    assert task.done()
    if task.cancelled():
        end = "cancelled"
    else:
        task.result()
    assert task.cancelling() == int(asked)
    return "early" if cancelled_at is not None and not asked else end


@virtual
async def test_loss_for_an_unknown_reason_names_the_reason_of_the_store() -> None:
    """The body's own exception stays, and the loss says what the store said."""
    async with aiolock.connect(MemoryServer()) as client:

        async def body(error: Exception | None) -> None:
            async with client.lock("a") as lease:
                client._engine.waiters.deliver(
                    GrantLost("lock:a", lease._hold.waiter, lease.fence, "evicted")
                )
                if error is not None:
                    raise error
                await asyncio.sleep(1)

        with pytest.raises(ValueError, match="its own") as caught:
            await asyncio.create_task(body(ValueError("its own")))
        assert "evicted" in caught.value.__notes__[0]
        await asyncio.sleep(60)
        with pytest.raises(LeaseLost, match="evicted"):
            await asyncio.create_task(body(None))


@virtual
async def test_verify_that_is_cancelled_without_an_answer_leaves_the_lease_held() -> None:
    """A lease that nobody renews is not at risk because `verify` was cancelled."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client, client.lock("a", ttl=10, renew=False) as lease:
        faulty.hold("renew")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lease.verify(), 0.1)
        assert lease.state == "held"
        faulty.resume()


# --- Entered, and released without waiting


@virtual
async def test_lease_entered_as_a_body_is_released_at_its_end() -> None:
    """A body under a lease that was acquired before; without a body, nothing ends it."""
    async with scene() as (_, _, ours, theirs):
        lease = await ours.lock("a").try_acquire()
        assert lease is not None
        await asyncio.sleep(3600)
        assert lease.state == "held"
        assert await theirs.lock("a").locked()
        async with lease as entered:
            assert entered is lease
            assert await theirs.lock("a").locked()
        assert lease.state == "released"
        assert not lease.state.is_alive
        assert not await theirs.lock("a").locked()
        with pytest.raises(aiolock.NotHeld):
            await lease.__aexit__(None, None, None)


@pytest.mark.parametrize("on_lost", ["cancel", "signal"])
@virtual
async def test_lease_entered_and_lost_ends_its_body_unless_on_lost_is_signal(on_lost: Any) -> None:
    """Its loss ends the body, unless the lock is only to signal it."""
    async with scene() as stand:
        lease = await taken(stand.ours.lock("a", on_lost=on_lost))
        ended = False
        with pytest.raises(LeaseLost) if on_lost == "cancel" else contextlib.nullcontext():
            async with lease:
                stand.lose(lease)
                await asyncio.sleep(1)
                ended = True
        assert ended is (on_lost == "signal")
        assert lease.state == "lost"
        assert not lease.state.is_alive
        unhurt()


@virtual
async def test_release_nowait_called_twice_sends_one_release() -> None:
    """It does not wait, may be called again, and what waits for the lock gets it."""
    async with scene() as (_, faulty, ours, theirs):
        lease = await taken(ours.lock("a"))
        assert lease.state.is_alive
        waiting = asyncio.create_task(theirs.lock("a").acquire().__aenter__())
        await queued(theirs.lock("a"), 1)
        asyncio.get_running_loop().call_soon(lease.release_nowait)
        asyncio.get_running_loop().call_soon(lease.release_nowait)
        await (await waiting).release()
        assert lease.state == "released"
        assert faulty.calls["release"] == 1


@virtual
async def test_release_nowait_refused_by_the_store_is_sent_again() -> None:
    """A release that the store refuses is sent again in the background."""
    async with scene() as (_, faulty, ours, theirs):
        lease = await taken(ours.lock("a"))
        faulty.refuse("release", times=1)
        lease.release_nowait()
        await asyncio.sleep(3)
        assert not await theirs.lock("a").locked()
        assert faulty.calls["release"] == 2
