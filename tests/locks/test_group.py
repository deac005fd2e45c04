"""Groups: who is a member, seen by all; joining, leaving, dying, coming back."""

from __future__ import annotations

import asyncio
import gc
import math
from contextlib import AsyncExitStack, aclosing, suppress
from typing import Any, Literal
from unittest import mock

import pytest

import aiolock
from aiolock import Joined, LeaseLost, Members, StoreError
from aiolock._engine.lease_state import LossReason
from aiolock._locks.group_view import Card, View, card_key, card_of
from aiolock.protocol import Participant, Post, Reconnected, Rule
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.cancel import KINDS, Kind, cancel_everywhere
from tests.support.groups import Seen, processes
from tests.support.virtual import VirtualLoop
from tests.support.worlds import World, settled, virtual


def held_at(server: MemoryServer) -> int:
    """How many grants of the group there are."""
    state = server._states.get("group:w")
    return 0 if state is None else len(state.holders)


async def test_members_see_each_other_join_change_and_leave(world: World) -> None:
    """All see the same members with their data, in the order in which they joined, by push."""
    async with world.client() as ours, world.client() as theirs, world.client() as third:
        group = third.group("w")
        assert (group.name, group.ttl) == ("w", 10.0)
        assert await group.members() == ()
        async with Seen(group) as outside:
            async with ours.group("w", data={"n": 1}) as one:
                assert [member.id for member in await one.members()] == [one.id]
                await outside.until(2)
                async with Seen(one) as inside:
                    async with theirs.group("w", data={"n": 2, "é": [None, 1.5]}) as two:
                        await outside.until(3)
                        await inside.until(2)
                        first, second = await group.members()
                        assert (first.id, dict(first.data)) == (one.id, {"n": 1})
                        assert (second.id, second.data) == (two.id, {"n": 2, "é": [None, 1.5]})
                        assert (second.client, second.fence) == (theirs.id, two.fence)
                        assert first.since < second.since
                        fence = one.fence
                        await one.update({"n": 3})
                        assert one.data == {"n": 3}
                        await outside.until(4)
                        await inside.until(3)
                        assert one.fence > fence
                        assert [member.data["n"] for member in await two.members()] == [3, 2]
                    await outside.until(5)
                    await inside.until(4)
            await outside.until(6)
        seen, whole = outside.changes, outside.changes[-1]
        assert outside.kinds == ["Members", "Joined", "Joined", "Changed", "Left", "Left"]
        assert inside.kinds == ["Members", "Joined", "Changed", "Left"]
        assert [change.epoch for change in seen] == sorted({change.epoch for change in seen})
        assert [len(change.members) for change in seen] == [0, 1, 2, 2, 1, 0]
        assert seen[3].before.data == {"n": 1}
        assert seen[3].member == seen[3].members[0]
        assert (whole.member.id, whole.members) == (one.id, ())
        assert await group.members() == ()


async def test_removed_member_is_cancelled_and_joins_again(world: World) -> None:
    """A member that is removed loses its body; it joins again, as another member."""
    async with world.client() as ours, world.client() as theirs:
        group = theirs.group("w")
        ids, memberships = list[str](), list[aiolock.Membership]()
        with pytest.raises(LeaseLost):  # noqa: PT012  # where it is raised
            async with ours.group("w") as me:
                ids.append(me.id)
                memberships.append(me)
                assert await group.break_(me.fence)
                await asyncio.sleep(60)
        me = memberships[0]
        assert me.lost.is_set()
        assert me.state == "lost"
        with pytest.raises(LeaseLost):
            await me.update({})
        async with ours.group("w") as again:
            ids.append(again.id)
            assert [member.id for member in await group.members()] == ids[1:]
            assert ids[0] != ids[1]
            assert not await group.break_(me.fence)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@virtual
async def test_cancel_at_any_step_of_a_membership_leaves_nothing(kind: Kind) -> None:
    """Cancelled at any step of joining, changing and leaving, nothing of the member is left."""
    async with processes(1) as (process,):

        async def scenario() -> None:
            async with process.client.group("w", data={"n": 1}) as me:
                await me.update({"n": 2})
                await asyncio.sleep(0.1)

        async for _ in cancel_everywhere(scenario, [kind]):
            await asyncio.sleep(1)
            for name in ("group:w", "epoch:w"):
                state = process.server._states.get(name)
                assert state is None or not (state.holders or state.queue)
            assert not process.client._engine.waiters.on_reconnect - {
                process.client._engine.slow_monitor.publish_again
            }


@virtual
async def test_join_that_is_cancelled_after_it_was_seen_is_seen_to_leave_at_once() -> None:
    """By a client that watches, too, if there is no member that would notice it by itself."""
    announce = View.announce

    async def announced(view: View) -> None:
        await announce(view)
        await asyncio.sleep(3600)  # for the answer

    async with processes(2) as (ours, theirs), Seen(theirs.client.group("w")) as seen:
        with mock.patch.object(View, "announce", announced):
            joining = asyncio.create_task(ours.client.group("w").__aenter__())
            await seen.until(2)
            joining.cancel()
            async with asyncio.timeout(0.5):
                await seen.until(3)
        assert seen.kinds == ["Members", "Joined", "Left"]
        await asyncio.wait([joining])
        assert joining.cancelled()
        await ours.join(on_lost="rejoin")
        await seen.until(4)
        with mock.patch.object(View, "announce", announced):
            await theirs.client._named("w", "group").break_()
            await seen.until(6)
            await ours.stop()
            async with asyncio.timeout(0.5):
                await seen.until(7)
        assert seen.kinds[3:] == ["Joined", "Left", "Joined", "Left"]


@virtual
async def test_killed_member_is_gone_after_two_seconds() -> None:
    """The oldest member sees each second who is dead; all others learn of it by push."""
    async with processes(5) as each:
        members = [await process.join() for process in each[:4]]
        loop = asyncio.get_running_loop()
        async with Seen(each[4].client.group("w")) as seen, Seen(members[0]) as inside:
            await asyncio.sleep(5)
            killed = loop.time()
            each[2].kill()
            await seen.until(2)
            await inside.until(2)
            assert 0.8 < loop.time() - killed < 2.5
            assert seen.changes[1].member.id == members[2].id
            assert [m.id for m in seen.changes[1].members] == [members[at].id for at in (0, 1, 3)]


@pytest.mark.parametrize("killed", [1, 3, 7, 9])
@virtual
async def test_oldest_members_killed_together_are_gone_within_twice_the_ttl(killed: int) -> None:
    """Whoever is left notices it, however many older members have died together."""
    async with processes(10) as each:
        members = [await process.join(ttl=6) for process in each]
        async with Seen(members[-1]) as seen:
            await asyncio.sleep(30)
            assert seen.kinds == ["Members"]
            for process in each[:killed]:
                process.kill()
            async with asyncio.timeout(14):
                while len(seen.changes[-1].members) > 10 - killed:
                    await seen.until(len(seen.changes) + 1)
            assert seen.kinds == ["Members"] + ["Left"] * killed


@virtual
async def test_last_member_killed_is_noticed_by_a_client_that_watches() -> None:
    """Nobody is left to tell of it: then whoever watches looks by itself."""
    async with processes(2) as (watching, other):
        await other.join(ttl=5)
        async with Seen(watching.client.group("w", ttl=5)) as seen:
            other.kill()
            async with asyncio.timeout(16):
                await seen.until(2)
            assert seen.kinds == ["Members", "Left"]


@virtual
async def test_member_that_seems_dead_for_less_than_a_second_stays() -> None:
    """A subscription that breaks and comes back removes nobody."""
    async with processes(3) as each:
        members = [await process.join() for process in each]
        await asyncio.sleep(3)
        server = each[0].server
        listener = server._listeners[each[1].client.id]
        for _ in range(5):
            server.leave(each[1].client.id)
            await asyncio.sleep(0.7)
            server._listeners[each[1].client.id] = listener
            await asyncio.sleep(1.7)
        assert [member.id for member in await members[0].members()] == [me.id for me in members]


@virtual
async def test_deaf_member_is_removed_and_with_rejoin_comes_back_as_itself() -> None:
    """Wrongly taken for dead: the others see it leave, and join again, and its body goes on."""
    async with processes(3) as each:
        members = [await process.join(on_lost="rejoin") for process in each]
        fence, since = members[1].fence, (await members[1].members())[1].since
        server = each[0].server
        await asyncio.sleep(1)
        async with Seen(members[0]) as seen:
            listener = server._listeners[each[1].client.id]
            server.leave(each[1].client.id)
            await seen.until(2)
            server._listeners[each[1].client.id] = listener
            await seen.until(3)
            assert seen.kinds == ["Members", "Left", "Joined"]
            assert seen.changes[1].member.id == seen.changes[2].member.id == members[1].id
            assert seen.changes[2].member.since > since
            assert seen.changes[2].epoch >= seen.changes[1].epoch
            assert members[1].fence > fence
            assert members[1].state == "held"
            assert not members[1].lost.is_set()
            await members[1].update({"n": 1})
            await seen.until(4)
            assert seen.kinds[3:] == ["Changed"]


@virtual
async def test_membership_broken_again_and_again_rejoins_each_time() -> None:
    """Also right after an update, and right after it has joined again."""
    async with processes(2) as each:
        me = await each[0].join(on_lost="rejoin", data={"n": 0})
        group = each[1].client.group("w")
        for number in range(1, 6):
            assert await group.break_(me.fence)
            await asyncio.sleep(0.2)
            await me.update({"n": number})
            assert await group.break_(me.fence)
            await asyncio.sleep(0.2)
            assert [dict(member.data) for member in await group.members()] == [{"n": number}]
        assert not each[0].tasks[0].done()
    assert not held_at(each[0].server)


@virtual
async def test_rejoin_goes_on_while_the_store_does_not_answer_in_time() -> None:
    """A timeout of the group is for one try: the member tries again until it is back."""
    async with processes(2) as each:
        me = await each[0].join(on_lost="rejoin", timeout=0.5)
        each[0].link.dead = True
        await asyncio.sleep(30)
        assert me.state == "lost"
        each[0].link.dead = False
        await asyncio.sleep(20)
        assert me.state == "held"
        assert [member.id for member in await each[1].client.group("w").members()] == [me.id]


@virtual
async def test_signal_only_sets_lost_and_the_body_goes_on() -> None:
    """With ``on_lost="signal"``, a member that was removed goes on, and is told."""
    async with processes(2) as (ours, theirs), ours.client.group("w", on_lost="signal") as me:
        watching = asyncio.create_task(anext_all(me))
        await asyncio.sleep(1)
        assert await theirs.client.group("w").break_()
        await me.lost
        assert [type(change) for change in await watching] == [Members]
        with pytest.raises(LeaseLost):
            await me.update({"n": 1})
        assert await me.members() == ()


async def anext_all(me: aiolock.Membership | aiolock.Group) -> list[Any]:
    """All changes until the membership ends."""
    return [change async for change in me.watch()]


@virtual
async def test_server_that_forgets_everything_is_joined_again() -> None:
    """All members are lost at their next renewals, and join again; the epoch rises all the same."""
    async with processes(3) as each:
        members = [await process.join(on_lost="rejoin") for process in each]
        await asyncio.sleep(1)
        epoch = members[0].epoch
        each[0].server._states.clear()
        await asyncio.sleep(20)
        found = await members[0].members()
        assert {member.id for member in found} == {me.id for me in members}
        assert members[0].epoch > epoch


@virtual
async def test_many_idle_members_send_renewals_and_few_looks() -> None:
    """What the group costs does not grow with the number of its members, but for renewals."""
    sums = dict[int, float]()
    for number in (2, 60):
        async with processes(number) as each:
            for process in each:
                await process.join()
            await asyncio.sleep(60)
            for process in each:
                process.link.sent.clear()
            await asyncio.sleep(120)
            sent: dict[str, float] = {
                what: sum(process.link.sent[what] for process in each) / 120
                for what in ("Renew", "ReadStatus", "ReadPosted", "Acquire", "Post")
            }
            assert all(sum(p.link.sent.values()) < 200 * 120 / 100 for p in each[6:])
            assert sent["Renew"] < 0.35 * number
            assert sent["Acquire"] + sent["Post"] < 0.035 * number
            assert 1 < sent["ReadStatus"] == pytest.approx(sent["ReadPosted"], rel=0.02)
            sums[number] = sent["ReadStatus"]
    assert sums[60] < 5


@virtual
async def test_changes_that_come_together_are_seen_with_few_looks() -> None:
    """Fifty members that join at once do not make each of them look fifty times."""
    async with processes(51) as each:
        me = await each[0].join()
        each[0].link.sent.clear()
        async with Seen(me) as seen:
            await asyncio.gather(*(process.join() for process in each[1:]))
            await seen.until(51)
        assert each[0].link.sent["ReadStatus"] < 12


@virtual
async def test_member_without_its_data_is_not_seen_yet() -> None:
    """A holder whose data is not posted yet, or not readable, is no member that anybody sees."""
    async with processes(2) as (ours, theirs):
        lease = await ours.client.group("w")._lock.acquire()
        group = theirs.client.group("w")
        assert await group.members() == ()
        assert len((await group.status()).holders) == 1
        key = card_key(*lease._hold.waiter)

        async def post(value: str) -> None:
            await ours.client._engine.submit(
                Post(key, 1, token="", declared=0, value=value, remember=60_000)
            )

        for unreadable in ("", "{", "[]", '{"id": 1}', '{"id": 1, "joined": "x", "data": {}}'):
            await post(unreadable or "-")
            assert await group.members() == ()
        await post('{"id": "a", "joined": 0, "data": {"n": 1}, "of a later version": {}}')
        (member,) = await group.members()
        assert (member.id, member.data, member.shards) == ("a", {"n": 1}, {})
        assert await lease.release()


@virtual
async def test_two_memberships_of_one_task_are_two_members() -> None:
    """A task may be a member twice, and each ends with its own body."""
    async with processes(1) as (process,):
        group = process.client.group("w")
        async with group as one:
            async with group as two:
                assert [m.id for m in await two.members()] == [one.id, two.id]
            assert [m.id for m in await one.members()] == [one.id]


@virtual
async def test_body_that_raises_leaves_the_group_with_its_own_error() -> None:
    """The body's error is raised, and the others are told."""
    async with processes(2) as (ours, theirs), Seen(theirs.client.group("w")) as seen:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012  # where it is raised
            async with ours.client.group("w"):
                await seen.until(2)
                raise ZeroDivisionError
        async with asyncio.timeout(0.5):
            await seen.until(3)
        assert seen.kinds == ["Members", "Joined", "Left"]


@virtual
async def test_client_that_closes_cancels_the_bodies_of_its_members() -> None:
    """As those of locks; a member that would join again does not."""
    async with processes(2) as (ours, theirs):
        for on_lost in ("cancel", "rejoin"):
            await ours.join(on_lost=on_lost)
        ours.run(anext_all(await ours.join(on_lost="signal")))
        assert len(await theirs.client.group("w").members()) == 3
        await settled()
        await ours.client.aclose()
        await asyncio.wait(ours.tasks[:2])
        assert len(await theirs.client.group("w").members()) == 1  # until its lease ends
        await ours.tasks[3]
        assert [isinstance(task.exception(), LeaseLost) for task in ours.tasks[:2]] == [True, True]
        await ours.client.open()


@virtual
async def test_join_on_a_failing_store_raises_and_leaves_nothing() -> None:
    """When nobody knows whether it has joined, it has not."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as client:
        for fault in (faulty.lose, faulty.refuse):
            fault("post")
            if fault == faulty.lose:
                with pytest.raises(StoreError):
                    async with client.group("w"):
                        raise AssertionError
            else:  # a passing refusal
                async with client.group("w") as me:
                    assert len(await me.members()) == 1
            await asyncio.sleep(1)
            assert not held_at(server)


@virtual
async def test_update_that_fails_leaves_the_member_as_it_was() -> None:
    """The old data stay, and the next update works."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as client, client.group("w", data={"n": 1}) as me:
        await me.members()
        faulty.lose("post")
        with pytest.raises(StoreError):
            await me.update({"n": 2})
        assert [dict(member.data) for member in await me.members()] == [{"n": 1}]
        await me.update({"n": 3})
        assert [dict(member.data) for member in await me.members()] == [{"n": 3}]
        await asyncio.sleep(1)
        assert held_at(server) == 1


@virtual
async def test_watch_of_a_client_raises_store_error_and_can_begin_again() -> None:
    """`StoreError` when nobody knows; and it can be begun again."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        faulty.refuse("read")
        async with aclosing(client.group("w").watch()) as watched:
            with pytest.raises(StoreError, match="the group 'w'"):
                await anext(watched)
        async with aclosing(client.group("w").watch()) as watched:
            assert await anext(watched) == Members(0, ())


@virtual
async def test_watch_of_a_client_that_closes_ends_with_client_closed() -> None:
    """At whichever step: not with an error of the store, which one would try again after."""
    for steps in range(12):
        client = aiolock.connect(MemoryServer())
        await client.open()
        watching = asyncio.create_task(anext_all(client.group("w")))
        await settled(steps)
        await client.aclose()
        await asyncio.wait([watching])
        assert isinstance(watching.exception(), aiolock.ClientClosed), steps


@virtual
async def test_watch_of_a_slow_reader_sees_every_member_that_stays() -> None:
    """What changes while the reader works is seen afterwards."""
    async with processes(4) as each:
        me = await each[0].join()
        seen = list[Any]()
        async with aclosing(me.watch()) as watched, AsyncExitStack() as stack:
            async for change in watched:
                seen.append(change)
                at = len(seen)
                if at < 4:
                    await stack.enter_async_context(each[at].client.group("w"))
                    await asyncio.sleep(5)
                else:
                    break
        assert [type(change) for change in seen] == [Members, Joined, Joined, Joined]
        assert [len(change.members) for change in seen] == [1, 2, 3, 4]


@virtual
async def test_watch_of_a_member_that_left_while_its_reader_worked_ends() -> None:
    """Nothing changes any more, so nothing would wake it."""
    async with aiolock.connect(MemoryStore(MemoryServer())) as client:
        async with client.group("w") as me, asyncio.timeout(60):
            watched = me.watch()
            assert isinstance(await anext(watched), Members)
        async with aclosing(watched), asyncio.timeout(60):
            assert [change async for change in watched] == []


@virtual
async def test_snapshot_shows_groups_and_nobody_that_watches_them() -> None:
    """A wait for news is no wait that anybody should be shown."""
    async with processes(2) as (ours, theirs):
        await ours.join()
        async with Seen(theirs.client.group("w")):
            await asyncio.sleep(1)
            assert theirs.server._states["epoch:w"].queue
            assert [(s.kind, s.name) for s in await theirs.client.snapshot()] == [("group", "w")]
            assert await theirs.client.names(kind="group") == ["w"]
            status = await theirs.client.status("w", kind="group")
            assert [holder.shared for holder in status.holders] == [True]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"data": [1]}, TypeError, "data must be a dict or None, not"),
        ({"data": {"x": object()}}, TypeError, "data must be a dict that JSON can hold"),
        ({"data": {"x": float("nan")}}, TypeError, "data must be a dict that JSON can hold"),
        ({"data": {"x": "y" * 4096}}, ValueError, "at most 4096 bytes as JSON, not 4,104"),
        ({"on_lost": "ignore"}, ValueError, "on_lost must be 'cancel', 'signal' or 'rejoin'"),
        ({"ttl": 0}, ValueError, "ttl must be"),
        ({"timeout": -1}, ValueError, "timeout"),
    ],
)
@virtual
async def test_group_with_invalid_arguments_is_refused_before_any_io(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    """What is wrong is said where the group is described."""
    async with processes(1) as (process,):
        with pytest.raises(error, match=text):
            process.client.group("w", **options)
        with pytest.raises(ValueError, match="1 to 512"):
            process.client.group("")
        assert not process.link.sent


@virtual
async def test_data_are_a_copy_that_nobody_changes_afterwards() -> None:
    """What the caller does with its dict later changes nothing."""
    async with processes(1) as (process,):
        data: dict[str, Any] = {"n": [1]}
        async with process.client.group("w", data=data) as me:
            data["n"].append(2)
            assert me.data == {"n": [1]}
            (member,) = await me.members()
            assert member.data == {"n": [1]}
            assert len({member}) == 1


def test_count_waiters_ask_again_seldom() -> None:
    """Whoever waits for a count waits for no lease, so it need not ask when one may have ended."""
    policy = aiolock.connect("memory://").event("e")._lock._policy
    assert policy.rule is Rule.COUNT
    assert policy.claim == 60_000


@virtual
async def test_announcement_that_others_were_quicker_with_is_made_again() -> None:
    """A member whose clock is behind is heard all the same: when it changes, and when it leaves."""
    async with processes(3) as each:
        me = await each[0].join()
        await each[1].join()
        async with Seen(each[2].client.group("w")) as seen:
            for number in range(3):
                me._view._clock = me._view.epoch = me._view._announced = 0
                async with asyncio.timeout(0.5):
                    await me.update({"n": number})
                    await seen.until(2 + number)
            me._view._clock = me._view.epoch = me._view._announced = 0
            each[0].tasks[0].cancel()
            async with asyncio.timeout(0.5):
                await seen.until(5)
            assert seen.kinds == ["Members", "Changed", "Changed", "Changed", "Left"]


@virtual
async def test_members_that_come_back_after_a_failover_are_not_taken_for_dead() -> None:
    """A client that was cut off itself gives the others time: a third of the ttl."""
    async with processes(3) as each:
        members = [await process.join() for process in each]
        await asyncio.sleep(3)
        server = each[0].server
        listeners = {process: server._listeners[process.client.id] for process in each}
        for process in each[1:]:
            server.leave(process.client.id)
        for deliver in listeners.values():
            deliver(Reconnected())
        await asyncio.sleep(3)
        for process in each[1:]:
            server._listeners[process.client.id] = listeners[process]
        await asyncio.sleep(20)
        assert [member.id for member in await members[0].members()] == [me.id for me in members]


@virtual
async def test_view_of_a_member_that_changes_has_the_latest_of_its_grants() -> None:
    """While the grant before is not given back yet, there are two, which are one member."""
    async with processes(1) as (process,):
        view = process.client.group("w")._view()
        view._cards = {("c", 1): Card("a", {"n": 1}), ("c", 2): Card("a", {"n": 2}, joined=5)}
        seats = [
            Participant("c", "", 0, since=5e-6, place=0, fence=fence, seq=seq)
            for seq, fence in ((1, 5), (2, 9))
        ]
        (member,) = view._members(seats)
        assert (member.fence, member.data, member.since) == (9, {"n": 2}, 5e-6)


@virtual
async def test_client_that_closes_while_a_member_rejoins_ends_the_membership() -> None:
    """Its body is cancelled, `lost` is set, and whoever watches the group comes to an end."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    client, ends = aiolock.connect(faulty), list[str]()
    await client.open()

    async def stay() -> None:
        async with client.group("w", on_lost="rejoin") as me:
            watching = asyncio.create_task(Seen(me)._watch())
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ends.append(f"lost: {me.lost.is_set()}")
                await watching

    staying = asyncio.create_task(stay())
    await asyncio.sleep(2)
    faulty.refuse("acquire", math.inf)
    assert await client.group("w").break_()
    await asyncio.sleep(3)
    await client.aclose()
    async with asyncio.timeout(30):
        with pytest.raises(LeaseLost) as raised:
            await staying
    assert raised.value.closed
    assert ends == ["lost: True"]


@pytest.mark.parametrize("on_lost", ["cancel", "rejoin"])
@virtual
async def test_member_whose_exit_was_dropped_leaves_with_a_warning(
    on_lost: Literal["cancel", "rejoin"],
) -> None:
    """Otherwise it would be a member as long as its client lives, since nothing can leave it."""
    async with processes(2) as (ours, theirs), Seen(theirs.client.group("w")) as seen:

        async def forget() -> None:
            stack = AsyncExitStack()
            await stack.enter_async_context(ours.client.group("w", on_lost=on_lost))

        async def collect() -> None:
            await asyncio.create_task(forget())
            gc.collect()

        tasks = len(asyncio.all_tasks())
        with pytest.warns(ResourceWarning, match="the group 'w' .* nobody can release"):
            await collect()
        async with asyncio.timeout(0.5):
            await seen.until(3)
        assert seen.kinds == ["Members", "Joined", "Left"]
        assert held_at(ours.server) == 0
        assert len(asyncio.all_tasks()) == tasks


@pytest.mark.parametrize("on_lost", ["cancel", "signal", "rejoin"])
@virtual
async def test_join_of_a_client_that_closes_raises_client_closed(
    on_lost: Literal["cancel", "signal", "rejoin"],
) -> None:
    """At whichever step it closes: no body begins that nobody would end."""
    begun = set[bool]()
    for steps in range(1, 10):
        server = MemoryServer()
        client, entered = aiolock.connect(server), list[str]()
        await client.open()

        async def stay(group: aiolock.Group, entered: list[str]) -> None:
            async with group as me:
                entered.append(me.id)
                await me.lost
                if on_lost != "signal":
                    await asyncio.sleep(3600)

        staying = asyncio.create_task(stay(client.group("w", on_lost=on_lost), entered))
        await settled(steps)
        await client.aclose()
        await asyncio.wait([staying], timeout=30)
        assert staying.done(), steps
        assert isinstance(staying.exception(), aiolock.ClientClosed) or entered
        assert held_at(server) == 0
        begun.add(bool(entered))
    assert begun == {False, True}


@pytest.mark.parametrize("broken", [0, 1])
@virtual
async def test_member_that_is_removed_while_it_changes_is_cancelled_or_stays_as_a_whole(
    broken: int,
) -> None:
    """It has two grants then; whichever of them is broken, its body never runs without any."""
    outcomes = set[str]()
    for steps in range(1, 10):
        async with processes(2) as (ours, theirs):
            me = await ours.join()
            updating = asyncio.create_task(me.update({"n": 1}))
            await settled(steps)
            fences = sorted(each.fence for each in ours.server._states["group:w"].holders)
            await theirs.client.group("w").break_(fences[broken % len(fences)])
            await asyncio.sleep(3)
            await asyncio.wait([updating])
            updating.exception()
            there = len(await theirs.client.group("w").members())
            outcomes.add(f"{len(fences)}: {there}")
            assert (me.lost.is_set(), ours.tasks[0].done()) == (not there, not there)
    assert len(outcomes) > 1


@pytest.mark.parametrize("closes", [False, True])
def test_member_in_a_loop_that_has_ended_is_lost_and_rejoins_nowhere(closes: bool) -> None:
    """Whoever looks at it in the next loop is told so; also of a lock, whose body is not there."""
    server = MemoryServer()
    client, kept = aiolock.connect(server), list[asyncio.Task[Any]]()
    held = list[aiolock.Membership | aiolock.Lease | aiolock.PathLease]()

    async def begin() -> None:
        async def stay(enterable: Any) -> None:
            async with enterable as one:
                held.append(one)
                await asyncio.sleep(3600)

        await client.open()
        for each in (
            client.group("w", on_lost="rejoin"),
            client.lock("a"),
            client.path_lock("a/b"),
        ):
            kept.append(asyncio.create_task(stay(each)))
        await settled()
        kept.extend(asyncio.all_tasks() - {asyncio.current_task()})

    async def look() -> None:
        if closes:
            await client.open()
        assert [str(each.state) for each in held] == ["lost"] * 3
        await client.open()
        await settled()
        assert [str(each.state) for each in held] == ["lost"] * 3
        assert client._engine.watchdog.holds == {}
        await client.aclose()

    first = VirtualLoop()
    first.run_until_complete(begin())
    first.close()
    first.advance(0 if closes else 60)
    asyncio.run(look())
    assert len(held) == 3
    for task in kept:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        with suppress(RuntimeError):  # its loop is closed
            task.get_coro().close()


@virtual
async def test_loss_that_is_seen_twice_rejoins_once() -> None:
    """Otherwise a grant that belongs to nobody would be renewed as long as the client lives."""
    async with processes(1) as (process,):
        me = await process.join(on_lost="rejoin")
        lease = me.lease
        process.client._engine.watchdog.lose(lease._hold, LossReason.REFUSED)
        me._was_lost(lease)
        await asyncio.sleep(5)
        held = {each.fence for each in (await process.client.group("w").status()).holders}
        assert held - {lease.fence} == {me.fence}


@pytest.mark.one_loop
@pytest.mark.parametrize(
    "posted",
    [
        "",
        "[]",
        "7",
        '{"id": "x"}',
        '{"id": "x", "data": [1], "joined": 1}',
        '{"id": "x", "data": {}, "joined": "soon"}',
        '{"id": "x", "data": {}, "joined": Infinity}',
        '{"id": "x", "data": {}, "joined": -1}',
        '{"id": "x", "data": {}, "joined": 1' + "0" * 400 + "}",
        '{"id": "x", "data": {}, "joined": 1, "shards": {"t": null}}',
        '{"id": "x", "data": {"a": ' + "[" * 5_000 + "]" * 5_000 + '}, "joined": 1}',
    ],
)
def test_card_that_nobody_could_have_written_is_none(posted: str) -> None:
    """Whatever a client of the same store posts there: the others see all members but that."""
    assert card_of(posted) is None
