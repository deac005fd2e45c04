"""Servers of a quorum that answer and cannot vote, or do not answer at a bad moment."""

from __future__ import annotations

import asyncio

import pytest

import aiolock
from aiolock import Lease, LockClient, StoreError
from aiolock.protocol import Acquire, ReadPage
from aiolock.stores._member import OnReply
from aiolock.stores.quorum._votes import Enter, QueryDone, Raise, VoteSet
from tests.stores.quorum.test_quorum import later
from tests.support.quorums import Server, clients, dies, servers, store_on
from tests.support.worlds import virtual


@virtual
async def test_server_that_cannot_register_is_asked_once_a_second() -> None:
    """It is asked once a second by each client, however many wait, and says what is wrong."""
    of = servers()
    of[2].full = True
    async with clients(of, 2) as (ann, bob):
        lease = await ann.lock("a").acquire()
        waiting = [later(bob.lock("a")) for _ in range(20)]
        await asyncio.sleep(5)
        before = of[2].asked
        await asyncio.sleep(10)
        assert of[2].asked - before <= 3 * 10
        shown = ann.servers()[2]
        assert (shown.state, shown.not_voting, shown.error) == ("not voting", 0.0, "it is full")
        of[2].full = False
        await asyncio.sleep(2)
        shown = ann.servers()[2]
        assert shown.state == "not voting"
        assert "may have forgotten its votes" in shown.error
        assert shown.not_voting > 0, "it may have forgotten its votes"
        await lease.release()
        for each in waiting:
            await (await each).release()


@pytest.mark.parametrize("how", ["silent", "refuses"])
@virtual
async def test_waiter_without_a_voting_majority_is_suspended_and_waits_on(how: str) -> None:
    """It stands aside, so it takes no turn of a waiter that has a majority; then it waits on."""
    of = servers()
    async with clients(of, 3) as (ann, bob, cat):
        await asyncio.sleep(100)
        lease = await ann.lock("a").acquire()
        if how == "silent":
            of[1].kill()
            of[1].start(empty=True)
        else:
            of[1].full = True
        of[2].members[1].breaks()
        first = later(bob.lock("a"))
        await asyncio.sleep(0.1)
        second = later(cat.lock("a"))
        await asyncio.sleep(1)
        await lease.release()
        await asyncio.sleep(1.5)
        assert second.done(), "it has the votes of a majority"
        await second.result().release()
        assert not first.done()
        await asyncio.sleep(70 if how == "silent" else 5)
        of[1].full = False
        await asyncio.sleep(1)
        assert first.done(), "a majority votes for it now"
        of[2].members[1].connects()
        await (await first).release()


@virtual
async def test_acquire_refused_by_a_majority_raises_store_error_at_once() -> None:
    """Each waiter is told so at once, also while it stands aside since they do."""
    of = servers()
    async with clients(of, 1) as (ann,):
        of[1].refuses = of[2].refuses = True
        for _ in range(2):
            with pytest.raises(StoreError, match="refuses for a while"):
                await ann.lock("a", timeout=1).acquire()
        of[1].refuses = of[2].refuses = False
        await asyncio.sleep(1)
        async with ann.lock("a"):
            pass


@virtual
async def test_acquire_repeated_by_a_suspended_waiter_raises_the_refusal() -> None:
    """Its client is told so when it asks, though the waiter stands aside since they do."""
    of = servers()
    async with clients(of, 2) as (ann, bob), bob.lock("a"):
        waiting = later(ann.lock("a"))
        await asyncio.sleep(0.1)
        for server in of[1:]:
            server.odd = {"lock:a"}
            server.members[0].connects()
        await asyncio.sleep(0.1)
        store = ann._engine.store
        (acquisition,) = store._session.acquisitions.table.by_waiter.values()
        assert acquisition.vote_set.suspended
        request = acquisition.request
        with pytest.raises(StoreError, match="something else"):
            await store.submit(
                Acquire(
                    *(request.name, request.waiter, request.form, acquisition.ttl),
                    ticket=request.ticket,
                    wait=True,
                    max_waiters=0,
                )
            )
        waiting.cancel()


@virtual
async def test_refusal_of_one_name_by_a_majority_leaves_other_names_alone() -> None:
    """No other name of that client is concerned: it is acquired at once, and keeps its turn."""
    of = servers()
    async with clients(of, 2) as (ann, bob):
        of[0].odd = of[1].odd = {"lock:odd"}
        lease = await bob.lock("b").acquire()
        behind = later(ann.lock("b"))
        for _ in range(20):
            with pytest.raises(StoreError, match="something else"):
                await ann.lock("odd").acquire()
            async with asyncio.timeout(0.01), ann.lock("a"):
                pass
            await asyncio.sleep(0.1)
        last = later(bob.lock("b"))
        await asyncio.sleep(0.1)
        await lease.release()
        await asyncio.sleep(0.01)
        assert behind.done()
        await behind.result().release()
        await (await last).release()


@virtual
async def test_waiter_for_a_refused_name_is_suspended_and_other_names_go_on() -> None:
    """Who waits for that name is in nobody's way, and other names of its client keep their turn."""
    of = servers()
    async with clients(of, 2) as (ann, bob):
        of[1].odd = {"lock:odd"}
        of[2].members[0].breaks()
        refused = later(ann.lock("odd"))
        lease = await bob.lock("a").acquire()
        behind = later(ann.lock("a"))
        for number in range(20):
            async with asyncio.timeout(0.01), ann.lock(f"other {number}"):
                pass
            await asyncio.sleep(0.1)
            assert not of[0].quorum_server.states["lock:odd"].queue
        last = later(bob.lock("a"))
        await asyncio.sleep(0.1)
        await lease.release()
        await asyncio.sleep(0.01)
        assert behind.done()
        await behind.result().release()
        await (await last).release()
        of[1].odd = set()
        await asyncio.sleep(1)
        assert refused.done(), "a majority votes for it now"
        await refused.result().release()
        of[2].members[0].connects()


@virtual
async def test_waiter_for_a_refused_name_is_suspended_when_another_server_goes() -> None:
    """Who waits for that name stands aside at once, unless the other one votes for it again."""
    of = servers()
    async with clients(of, 2) as (ann, bob):
        lease = await bob.lock("odd").acquire()
        line = of[0].quorum_server.states["lock:odd"].queue
        of[1].odd = {"lock:odd"}
        waiting = later(ann.lock("odd"))
        await asyncio.sleep(0.1)
        assert len(line) == 1
        of[2].members[0].breaks()
        await asyncio.sleep(0.01)
        assert not line
        of[2].members[0].connects()
        await asyncio.sleep(0.01)
        assert len(line) == 1
        of[1].odd = set()
        of[1].members[0].connects()  # so it is asked again
        await asyncio.sleep(0.01)
        of[2].members[0].breaks()
        await asyncio.sleep(0.01)
        assert len(line) == 1
        of[2].members[0].connects()
        await lease.release()
        await (await waiting).release()


@virtual
async def test_question_that_fails_unanswered_is_no_refusal() -> None:
    """The server has said nothing, so its waiters come back as soon as it is in reach."""
    of = servers()
    async with clients(of, 2) as (ann, bob):
        lease = await bob.lock("a").acquire()
        of[2].members[0].breaks()
        of[1].stop()
        waiting = later(ann.lock("a"))
        await asyncio.sleep(1)
        for on_reply in tuple(of[1].members[0]._unanswered):
            on_reply(None, StoreError("it did not answer"))
        assert not of[0].quorum_server.states["lock:a"].queue
        of[1].resume()
        await asyncio.sleep(0.3)
        assert len(of[0].quorum_server.states["lock:a"].queue) == 1
        await lease.release()
        await (await waiting).release()
        of[2].members[0].connects()


@virtual
async def test_try_acquire_at_a_new_quorum_is_granted_at_once() -> None:
    """Its servers are told that it is new, and then asked for votes, without a pause."""
    store = store_on(of := servers())
    for server in of:
        server.members[0].late = 0.05
    async with aiolock.connect(store) as ann:
        lease = await ann.lock("a").try_acquire()
        assert lease is not None
        await lease.release()


async def _a_raise_to_one_that_stops(
    of: list[Server], ann: LockClient, bob: LockClient
) -> tuple[asyncio.Task[Lease], asyncio.Task[Lease]]:
    """Bob comes first and has the vote of server 2; Ann has the others, under two numbers.

    She has to tell server 0 the higher one of them, and it stops before it hears of that.
    """
    async with ann.lock("a"):
        pass
    of[1].quorum_server.states["lock:a"].last += 5_000_000
    for server in of[:2]:
        server.members[1].late = 0.010
    for server in of:
        server.members[0].late = 0.002
    second = later(bob.lock("a"))
    await asyncio.sleep(0.002)
    first = later(ann.lock("a"))
    await asyncio.sleep(0.003)
    of[0].stop()
    return first, second


@virtual
async def test_fence_raise_to_a_server_that_stops_lets_another_waiter_enter() -> None:
    """Its waiter gives way: another one has a majority without that server."""
    async with clients(of := servers(), 2) as (ann, bob):
        first, second = await _a_raise_to_one_that_stops(of, ann, bob)
        await asyncio.sleep(1)
        assert second.done()
        assert not first.done()
        fence = second.result().fence
        await second.result().release()
        await asyncio.sleep(1)
        assert first.done()
        assert first.result().fence > fence
        await first.result().release()
        of[0].resume()


@virtual
async def test_fence_raise_to_a_server_that_stops_waits_for_a_dead_vote_to_end() -> None:
    """A majority answers, so that is no error: the waiter has the lock when that vote ends."""
    async with clients(of := servers(), 2) as (ann, bob):
        first, second = await _a_raise_to_one_that_stops(of, ann, bob)
        dies(of, 1)
        second.cancel()
        await asyncio.sleep(20)
        assert not first.done()
        await asyncio.sleep(11)
        assert first.done()
        await first.result().release()
        of[0].resume()


@virtual
async def test_fence_raise_to_a_server_that_stopped_is_answered_when_it_resumes() -> None:
    """It is told then, and the waiter enters; the server is not waited for any longer."""
    async with clients(of := servers(), 2) as (ann, bob):
        first, second = await _a_raise_to_one_that_stops(of, ann, bob)
        dies(of, 1)
        second.cancel()
        await asyncio.sleep(12)
        of[0].resume()
        await asyncio.sleep(1)
        assert first.done()
        await first.result().release()


@virtual
async def test_fence_raise_to_a_server_that_was_out_is_sent_when_it_comes_back() -> None:
    """What was not sent while it was away is sent then."""
    async with clients(of := servers(), 3) as (ann, bob, cat):
        async with ann.lock("a"):
            pass
        of[1].quorum_server.states["lock:a"].last += 5_000_000
        of[0].members[1].late = of[1].members[1].late = 1000.0
        of[0].members[2].late = of[2].members[2].late = 1000.0
        dead, before = later(bob.lock("a")), later(cat.lock("a"))
        await asyncio.sleep(0.001)
        dies(of, 1)
        first = later(ann.lock("a"))
        await asyncio.sleep(0.001)
        of[0].stop()
        async with ann.lock("b"):
            await asyncio.sleep(1)
            assert ann.servers()[0].state == "out"
            before.cancel()  # so it gives the vote of server 1 to Ann
            await asyncio.sleep(1)
            assert not first.done()
            of[0].resume()
            await asyncio.sleep(0.1)
            assert first.done()
        await first.result().release()
        dead.cancel()


@virtual
async def test_inquiry_lost_with_its_connection_is_followed_on_the_next() -> None:
    """Who is short of a majority gives way once it hears that server again, not when it asks."""
    async with clients(of := servers(), 3) as (ann, bob, cat):
        for server in of[:2]:
            server.members[2].late = 1000.0
        dead = later(cat.lock("a"))
        await asyncio.sleep(0.001)
        dies(of, 2)
        of[1].members[0].late = of[0].members[1].late = 0.020
        first = later(ann.lock("a"))
        await asyncio.sleep(0.001)
        second = later(bob.lock("a"))
        await asyncio.sleep(0.001)
        of[1].members[1].breaks()
        await asyncio.sleep(0.1)
        assert not first.done()
        of[1].members[1].connects()
        await asyncio.sleep(0.1)
        assert first.done()
        await first.result().release()
        await asyncio.sleep(0.1)
        await second.result().release()
        dead.cancel()


@virtual
async def test_names_page_missed_by_a_server_is_asked_for_again() -> None:
    """Each is asked for it again: else all further names would be those of one server."""
    store = store_on(of := servers())
    for server in of:
        _give_one_name_a_page(server)
    async with aiolock.connect(store) as ann:
        for name in "abcd":
            await ann.lock(name).acquire()
        await asyncio.sleep(0.1)
        del of[0].quorum_server.states["lock:d"]
        names, start = set[str](), ""
        for page in range(10):
            for number, server in enumerate(of):
                if page + number == 2 and number:  # the last at first, and then the one before
                    server.stop()
                else:
                    server.resume()
            await asyncio.sleep(0)
            found = await store.submit(ReadPage(start))
            names |= {status.name for status in found.statuses}
            start = found.more
            if not start:
                break
        assert not start, "it has an end"
        assert names == {f"lock:{name}" for name in "abcd"}


def _give_one_name_a_page(server: Server) -> None:
    member = server.members[0]

    def names(start: str, on_reply: OnReply) -> None:
        at = int(start or 0)

        def page() -> tuple[tuple[str, ...], str]:
            found = sorted(server.quorum_server.left_behind)
            return tuple(found[at : at + 1]), str(at + 1) if at + 1 < len(found) else ""

        member._start(page, on_reply)

    member.names = names  # type: ignore[method-assign]


def test_vote_set_of_a_once_asks_anew_after_a_stuck_raise() -> None:
    """Who is as short of a majority as without that vote may be told that it was done since."""
    vote_set = VoteSet(3, once=True)
    vote_set.voted(0, 5, 30.0)
    vote_set.voted(1, 5, 30.0)
    assert vote_set.look(1.0) == [QueryDone()]
    vote_set.unsure = False
    vote_set.gone(1, 5, 1.0)
    vote_set.voted(1, 9, 30.0)
    assert vote_set.look(1.0, lambda server: server != 0) == []
    assert vote_set.stuck
    assert vote_set.look(1.0) == [Raise(0, 5, 9)]
    vote_set.renewed(0, 5, 30.0, 9)
    assert vote_set.look(1.0) == [QueryDone()]


def test_vote_set_raises_at_others_when_one_server_does_not_answer() -> None:
    """Nobody waits for that server: enough others know the fence, or can be told."""
    vote_set = VoteSet(5)
    for server, number in enumerate((3, 5, 7, 9)):
        vote_set.voted(server, number, 30.0)
    assert Raise(1, 5, 7) in vote_set.look(1.0, lambda server: server != 0)
    vote_set.renewed(1, 5, 30.0, 7)
    assert vote_set.look(1.0, lambda server: server != 0) == [Enter(7)]
