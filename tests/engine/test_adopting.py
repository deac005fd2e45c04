"""Adopting a lease by its token: what it holds, and what is left when it fails."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

import aiolock
from aiolock import ClientClosed, LeaseLost, StoreError, TokenSpent
from aiolock.protocol import ReadStatus
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.engine.test_detaching import scene
from tests.support.groups import Link
from tests.support.worlds import World, asking, empty, queued, settled, virtual


async def test_adopt_keeps_permits_and_purpose_of_the_lease(world: World) -> None:
    """Two permits stay taken; work to be done once is finished by the body that adopts it."""
    async with world.client() as web, world.client() as worker:
        async with web.semaphore("llm", 3).acquire(2) as lease:
            token = await lease.detach()
        async with worker.adopt(token):
            (party,) = (await web.semaphore("llm", 3).status()).holders
            assert party.permits == 2
            assert await web.semaphore("llm", 3).try_acquire(2) is None
        async with web.once("user", remember=60) as lease:
            assert lease is not None
            token = await lease.detach()
        async with worker.adopt(token):
            pass
        async with web.once("user", remember=60) as lease:
            assert lease is None


async def test_adopted_work_that_fails_is_done_by_the_next(world: World) -> None:
    """A body that raises has not done it."""
    async with world.client() as web, world.client() as worker:
        async with web.once("user", remember=60) as lease:
            assert lease is not None
            token = await lease.detach()
        with pytest.raises(KeyError):
            async with worker.adopt(token):
                raise KeyError
        async with web.once("user", remember=60) as lease:
            assert lease is not None


async def test_adopted_reader_and_downgraded_writer_are_beside_readers(world: World) -> None:
    """What shares the lock goes on sharing it."""
    async with world.client() as web, world.client() as worker:
        rates = web.rwlock("rates")
        async with rates.read() as lease:
            token = await lease.detach()
        async with worker.adopt(token):
            assert await rates.write().try_acquire() is None
            async with rates.read():
                pass
        async with rates.write() as lease:
            await lease.downgrade()
            token = await lease.detach()
        async with worker.adopt(token):
            assert await rates.write().try_acquire() is None
            async with rates.read():
                pass
        async with rates.write():
            pass


@virtual
async def test_adopted_lease_is_renewed_and_its_loss_cancels_the_body() -> None:
    """It is a lease like any other."""
    async with scene() as (_, _, ours, theirs):
        token = await (await ours.lock("a", ttl=3).acquire()).detach()
        reached = False
        with pytest.raises(LeaseLost, match="break_"):  # noqa: PT012  # the body is what is tested
            async with theirs.adopt(token, ttl=2) as lease:
                await asyncio.sleep(20)
                reached = lease.state == "held"
                assert await ours.lock("a").break_()
                await asyncio.sleep(20)
        assert reached


@virtual
async def test_adopt_with_max_hold_ends_the_lease_by_then() -> None:
    """It counts from the adoption."""
    async with scene() as (_, _, ours, theirs):
        token = await (await ours.lock("a").acquire()).detach()
        began = asyncio.get_running_loop().time()
        with pytest.raises(LeaseLost, match="max_hold"):
            async with theirs.adopt(token, max_hold=5):
                await asyncio.sleep(20)
        assert asyncio.get_running_loop().time() - began <= 5.1


@virtual
async def test_adopt_of_a_lock_that_is_not_renewed_ends_after_its_ttl() -> None:
    """``renew=False`` is an option of the lock, and stays one."""
    async with scene() as (_, faulty, ours, theirs):
        token = await (await theirs.lock("a", renew=False).acquire()).detach()
        with pytest.raises(LeaseLost):
            async with ours.adopt(token, ttl=3):
                await asyncio.sleep(20)
        assert not faulty.calls["renew"]


@virtual
@pytest.mark.parametrize("how", ["lose", "refuse"])
async def test_adopt_without_an_answer_raises_store_error_and_holds_nothing(how: str) -> None:
    """If it was carried out, the lock is released; if not, the token is as good as before."""
    async with scene() as (_, faulty, ours, theirs):
        token = await (await theirs.lock("a").acquire()).detach()
        getattr(faulty, how)("adopt")
        with pytest.raises(StoreError, match="the lock 'a'"):
            await ours.adopt(token)
        await asyncio.sleep(1)
        if how == "lose":
            assert not await theirs.lock("a").locked()
            with pytest.raises(TokenSpent):
                await theirs.adopt(token)
        else:
            await (await theirs.adopt(token)).release()


@virtual
async def test_adopt_cancelled_while_the_store_hangs_holds_nothing_afterwards() -> None:
    """The command comes late, and its release behind it."""
    async with scene() as (_, faulty, ours, theirs):
        token = await (await theirs.lock("a").acquire()).detach(ttl=3600)
        faulty.hold("adopt", "release")
        adopting = asyncio.ensure_future(ours.adopt(token))
        await asyncio.sleep(1)
        adopting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adopting
        faulty.resume()
        async with theirs.lock("a", timeout=1):
            pass


@virtual
async def test_adopt_whose_answer_comes_after_its_ttl_raises_lease_lost_and_gives_it_back() -> None:
    """A lease that may have ended must not be entered."""
    async with scene() as (_, faulty, ours, theirs):
        token = await (await theirs.lock("a").acquire()).detach(ttl=3600)
        faulty.hold("adopt")
        adopting = asyncio.ensure_future(ours.adopt(token, ttl=1))
        await asyncio.sleep(2)
        # It is carried out only now, but the client cannot know when.
        faulty.resume()
        with pytest.raises(LeaseLost, match="its ttl of 1 s had passed"):
            await adopting
        async with theirs.lock("a", timeout=0.5):
            pass


@virtual
async def test_adopt_of_a_wrong_text_or_prefix_raises_before_anything_is_sent() -> None:
    """A text that is no token, a token of another prefix, wrong options."""
    async with scene() as (server, faulty, ours, theirs):
        token = await (await theirs.lock("a").acquire()).detach()
        for text in (
            "",
            "alk1.",
            "alk1.e30",
            "alk2." + token[5:],
            token[:-2],
            token + "A",
            "x" * 99,
        ):
            with pytest.raises(ValueError, match="no token of"):
                _ = ours.adopt(text)
            with pytest.raises(ValueError, match="no token of"):
                await ours.discard(text)
        with pytest.raises(TypeError, match="must be a str"):
            _ = ours.adopt(token.encode())  # type: ignore[arg-type]  # wrong on purpose
        with pytest.raises(ValueError, match="ttl"):
            _ = ours.adopt(token, ttl=0)
        with pytest.raises(TypeError, match="timeout"):
            _ = ours.adopt(token, timeout=3)  # type: ignore[call-arg]  # wrong on purpose
        async with aiolock.connect(MemoryStore(server), prefix="other") as other:
            with pytest.raises(ValueError, match="of the prefix 'aiolock', not of 'other'"):
                _ = other.adopt(token)
        assert not faulty.calls["adopt"]
        await theirs.discard(token)
        with pytest.raises(ClientClosed):
            _ = aiolock.connect(server).adopt(token)


@virtual
async def test_adopt_that_nobody_awaits_warns_and_one_can_be_begun_once() -> None:
    """What is easy to drop must not pass for done."""
    async with scene() as (_, _, ours, theirs):
        token = await (await theirs.lock("a").acquire()).detach()
        with pytest.warns(RuntimeWarning, match="was never awaited"):
            ours.adopt(token)  # type: ignore[unused-awaitable]  # dropped on purpose
        adopting = ours.adopt(token)
        async with adopting:
            with pytest.raises(RuntimeError, match="begun already"):
                await adopting


@virtual
async def test_discard_lets_the_next_waiter_in_once() -> None:
    """True for the one that released it."""
    async with scene() as (_, _, ours, theirs):
        token = await (await theirs.lock("a").acquire()).detach()
        waiting = asking(ours.lock("a"))
        await queued(ours.lock("a"), 1)
        assert await ours.discard(token)
        assert not await theirs.discard(token)
        await (await waiting).release()


@virtual
async def test_clients_that_close_while_they_hand_on_leave_the_token_valid() -> None:
    """The old side may end at once: that is what it is for."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours:
        token = await (await ours.lock("a").acquire()).detach()
    async with aiolock.connect(server) as theirs, theirs.adopt(token):
        pass
    assert not server.run(ReadStatus("lock:a")).holders


async def test_chain_of_processes_hands_one_lock_on_with_rising_fences(world: World) -> None:
    """Step after step of a pipeline, while others wait."""
    async with world.client() as one, world.client() as two:
        lease = await one.lock("pipeline").acquire()
        waiting = asking(two.lock("pipeline"))
        await queued(one.lock("pipeline"), 1)
        fences = [lease.fence]
        for client in (two, one, two, one):
            lease = await client.adopt(await lease.detach())
            fences.append(lease.fence)
        assert fences == sorted(set(fences))
        assert not waiting.done()
        await lease.release()
        await (await waiting).release()
        await empty(one.lock("pipeline"))


async def test_faulty_store_counts_the_operations_of_handing_on() -> None:
    """For tests of those who use it."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as client:
        lease = await client.lock("a").acquire()
        await (await client.adopt(await lease.detach())).release()
        token = await (await client.lock("a").acquire()).detach()
        await client.discard(token)
        assert faulty.calls["detach"] == 2
        assert faulty.calls["adopt"] == faulty.calls["discard"] == 1


@virtual
@pytest.mark.parametrize("answered", [False, True])
async def test_adopt_of_a_client_that_closes_raises_client_closed_and_holds_nothing(
    answered: bool,
) -> None:
    """Whether its answer is on its way, or has come in the very step in which the closing began."""
    async with scene() as (_, faulty, ours, theirs):
        token = await (await theirs.lock("a").acquire()).detach(ttl=3600)
        faulty.hold("adopt")
        adopting = asyncio.ensure_future(ours.adopt(token, ttl=600))
        await asyncio.sleep(1)
        closing = asyncio.create_task(ours._engine.aclose(None) if answered else ours.aclose())
        if not answered:
            await settled()
        faulty.resume()
        with pytest.raises(ClientClosed) as raised:
            await adopting
        assert raised.value.closed
        await closing
        await theirs.discard(token)
        async with theirs.lock("a", timeout=1):
            pass


def test_client_closes_in_spite_of_an_adoption_in_a_loop_that_has_ended() -> None:
    """It ended with its loop: the client that was opened again has nothing to give up there."""
    link = Link(MemoryServer())
    client = aiolock.connect(link)

    async def begin() -> asyncio.Task[aiolock.Lease]:
        await client.open()
        token = await (await client.lock("a").acquire()).detach()
        link.dead = True

        async def adopt() -> aiolock.Lease:
            return await client.adopt(token)

        adopting = asyncio.create_task(adopt())
        await settled()
        assert not adopting.done()
        return adopting

    first = asyncio.new_event_loop()
    adopting = first.run_until_complete(begin())
    first.close()
    link.dead = False

    async def use() -> None:
        async with client, client.lock("b"):
            pass

    asyncio.run(use())
    assert not client._engine.is_open
    adopting._log_destroy_pending = False  # type: ignore[attr-defined]
    with contextlib.suppress(RuntimeError):  # its loop is closed
        adopting.get_coro().close()
