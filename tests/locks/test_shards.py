"""Shards: each is held by one member, all are held, evenly; they move when members come and go."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import Counter, defaultdict
from contextlib import AsyncExitStack, aclosing
from typing import Any, NoReturn
from unittest import mock

import pytest

import aiolock
from aiolock import ClientClosed, LeaseLost, LimitMismatch, LockClient, Shard
from aiolock._locks.group_view import View
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.cancel import KINDS, Kind, cancel_everywhere
from tests.support.groups import Process, processes
from tests.support.worlds import World, settled, virtual


class Held:
    """Who holds which shard, by the bodies; never two one."""

    def __init__(self) -> None:
        self.by_shard = dict[int, object]()
        self.fences = defaultdict[int, int](int)
        self.begun = Counter[int]()
        self.stubborn = set[int]()
        """Shards of which the bodies do not give up."""
        self.lingers = dict[int, float]()
        """Seconds that the bodies of these take to end."""

    def of(self, who: object) -> set[int]:
        """The shards of one of them."""
        return {index for index, holder in self.by_shard.items() if holder == who}

    def sizes(self) -> list[int]:
        """How many shards each holds that holds any, in order."""
        return sorted(Counter(self.by_shard.values()).values())

    def body(self, who: object) -> Any:
        """The body of the shards of one of them: it gives up when it is asked."""

        async def serve(shard: Shard) -> None:
            index = shard.index
            assert index not in self.by_shard, f"{who} and {self.by_shard[index]} hold {index}"
            assert shard.fence > self.fences[index]
            self.by_shard[index], self.fences[index] = who, shard.fence
            self.begun[index] += 1
            try:
                await shard.giving_up.wait()
                if index in self.stubborn:
                    await asyncio.get_running_loop().create_future()
            finally:
                if index in self.lingers:
                    await asyncio.sleep(self.lingers[index])
                del self.by_shard[index]

        return serve


async def serve_in(process: Process, held: Held, count: int = 24, **options: Any) -> None:
    """Run the bodies in this process."""
    await process.client.shards("t", count, **options).run(held.body(process))


async def test_shards_move_to_a_member_that_joins_and_from_one_that_leaves(world: World) -> None:
    """All are held, evenly, and each by one member; a free shard is taken, a held one given up."""
    held = Held()
    async with world.client() as one, world.client() as two:
        shards = one.shards("t", 8, settle=0.1)
        assert (shards.name, shards.count) == ("t", 8)

        async def run(client: LockClient) -> NoReturn:
            await client.shards("t", 8, settle=0.1).run(held.body(client))

        async def until(*sizes: int) -> None:
            async with asyncio.timeout(20):
                while held.sizes() != [*sizes]:  # noqa: ASYNC110  # nothing announces it
                    await asyncio.sleep(0.01)

        first = asyncio.create_task(run(one))
        await until(8)
        second = asyncio.create_task(run(two))
        await until(4, 4)
        kept = held.of(one)
        assert sum(held.begun.values()) == 8 + 4
        second.cancel()
        await until(8)
        assert kept <= held.of(one)
        assert (await one.status("t/0", kind="shards")).holders[0].client == one.id
        first.cancel()
        for task in (first, second):
            with pytest.raises(asyncio.CancelledError):
                await task
        assert held.sizes() == []
        assert await one.names() == []


@virtual
async def test_killed_member_is_replaced_when_its_leases_end() -> None:
    """The others queue for its shards once it is known to be dead, and never enter earlier."""
    held, loop = Held(), asyncio.get_running_loop()
    async with processes(3) as each:
        for process in each:
            process.run(serve_in(process, held))
        await asyncio.sleep(5)
        assert held.sizes() == [8, 8, 8]
        lost, killed = held.of(each[0]), loop.time()
        each[0].kill()
        each[0].tasks[0].cancel()  # the bodies of a process that is killed end with it
        await settled()
        assert not held.of(each[0])
        await asyncio.sleep(5)
        assert sum(held.sizes()) == 16
        async with asyncio.timeout(30):
            while held.sizes() != [12, 12]:  # noqa: ASYNC110  # nothing announces it
                await asyncio.sleep(0.01)
        assert 6 < loop.time() - killed < 11
        assert lost <= set(held.by_shard)


@virtual
async def test_body_that_does_not_give_up_delays_only_its_own_shard() -> None:
    """All others move, and it moves when it ends after all."""
    held = Held()
    async with processes(3) as each:
        for process in each[:2]:
            process.run(serve_in(process, held))
        await asyncio.sleep(5)
        held.stubborn = set(held.by_shard)
        each[2].run(serve_in(each[2], held))
        await asyncio.sleep(0.5)
        held.stubborn = {min(held.of(each[0]))}
        await asyncio.sleep(20)
        (stubborn,) = held.stubborn
        wanted = each[2].server._states[f"shards:t/{stubborn}"].queue
        if wanted:
            assert held.sizes() in ([7, 8, 9], [8, 8, 8])
        else:
            assert held.sizes() == [8, 8, 8]
        assert sum(held.sizes()) == 24


@virtual
async def test_body_that_does_not_give_up_is_cancelled_after_its_grace() -> None:
    """With ``grace``, the shard moves after so many seconds; the body is not run again there."""
    held, loop = Held(), asyncio.get_running_loop()
    held.stubborn = set(range(24))
    async with processes(2) as each:
        for number, process in enumerate(each):
            shards = process.client.shards("t", 24)
            process.run(shards.run(held.body(process), grace=7))
            if not number:
                await asyncio.sleep(5)
        joined = loop.time()
        async with asyncio.timeout(30):
            while held.sizes() != [12, 12]:  # noqa: ASYNC110  # nothing announces it
                await asyncio.sleep(0.1)
        assert 8 < loop.time() - joined < 9
        await asyncio.sleep(30)
        assert sum(held.begun.values()) == 24 + 12


@virtual
async def test_shards_move_once_when_several_members_join_or_leave_together() -> None:
    """They move when the group stands still."""
    held = Held()
    async with processes(4) as each:
        each[0].run(serve_in(each[0], held))
        await asyncio.sleep(5)
        for process in each[1:]:
            process.run(serve_in(process, held))
            await asyncio.sleep(0.4)
        await asyncio.sleep(5)
        assert held.sizes() == [6, 6, 6, 6]
        assert sum(held.begun.values()) == 24 + 18
        for process in each[2:]:
            await process.stop()
            await asyncio.sleep(0.4)
        await asyncio.sleep(5)
        assert held.sizes() == [12, 12]


@virtual
async def test_member_restarted_in_order_leaves_no_shard_idle() -> None:
    """However long the time to settle is, the others have its shards at once."""
    held = Held()
    async with processes(3) as each:
        for process in each:
            process.run(serve_in(process, held, settle=10))
        await asyncio.sleep(15)
        await each[0].stop()
        await asyncio.sleep(0.1)
        assert held.sizes() == [12, 12]
        each[0].run(serve_in(each[0], held, settle=10))
        await asyncio.sleep(15)
        assert held.sizes() == [8, 8, 8]


@virtual
async def test_group_that_never_stands_still_is_served_all_the_same() -> None:
    """After five times the time to settle, shards move whatever goes on."""
    held = Held()
    async with processes(3) as each:
        each[0].run(serve_in(each[0], held))

        async def come_and_go() -> NoReturn:
            while True:
                async with each[2].client.group("t"):
                    await asyncio.sleep(0.3)
                await asyncio.sleep(0.3)

        each[2].run(come_and_go())
        await asyncio.sleep(7)
        assert held.sizes() == [24]
        each[1].run(serve_in(each[1], held))
        await asyncio.sleep(8)
        assert held.sizes() == [12, 12]


@virtual
async def test_members_that_see_different_groups_never_pass_a_shard_back_and_forth() -> None:
    """A member with an old view is asked, looks again, and gives up; the other one keeps it."""
    held = Held()
    async with processes(2) as each:
        each[0].run(serve_in(each[0], held))
        await asyncio.sleep(5)
        listener = each[0].server._listeners[each[0].client.id]

        def deaf(event: Any) -> None:
            if event.name != "epoch:t":
                listener(event)

        each[0].server._listeners[each[0].client.id] = deaf
        # Nor does it look by itself, as the oldest member does.
        (following,) = [
            task for task in asyncio.all_tasks() if task.get_name() == "aiolock group look"
        ]
        following.cancel()
        await settled()
        each[1].run(serve_in(each[1], held))
        await asyncio.sleep(30)
        assert held.sizes() == [12, 12]
        assert sum(held.begun.values()) == 24 + 12


@virtual
async def test_request_by_an_operator_moves_no_shard() -> None:
    """A shard is given up for the member that it is for, and for nobody else."""
    held = Held()
    async with processes(2) as (ours, theirs):
        ours.run(serve_in(ours, held, 2))
        await asyncio.sleep(3)
        for _ in range(3):
            assert await theirs.client.request_release("t/1", kind="shards")
            await asyncio.sleep(2)
        assert held.begun == {0: 1, 1: 1}


@virtual
async def test_body_that_returns_or_raises_is_run_again(caplog: pytest.LogCaptureFixture) -> None:
    """One that returns after a second; one that raises less and less often; others go on."""
    loop = asyncio.get_running_loop()
    times = defaultdict[int, list[float]](list)

    async def body(shard: Shard) -> None:
        times[shard.index].append(loop.time())
        if shard.index == 1:
            raise ZeroDivisionError
        if shard.index == 2:
            raise asyncio.CancelledError
        if shard.index == 3:
            await loop.create_future()

    async with processes(1) as (process,):
        process.run(process.client.shards("t", 4).run(body))
        with caplog.at_level(logging.ERROR):
            await asyncio.sleep(41)
    assert len(times[0]) in {39, 40, 41}
    assert len(times[1]) == len(times[2]) <= 6
    assert len(times[3]) == 1
    assert "the body of the shard 't/1' failed" in caplog.text


@virtual
async def test_shard_that_is_broken_cancels_its_body_and_is_acquired_again() -> None:
    """The loss of a shard ends its body only, and is no loss of the membership."""
    held = Held()
    async with processes(2) as (ours, theirs):
        ours.run(serve_in(ours, held, 4))
        await asyncio.sleep(3)
        assert await theirs.client.break_("t/2", kind="shards")
        await asyncio.sleep(0.5)
        assert set(held.by_shard) == {0, 1, 3}
        await asyncio.sleep(1)
        assert held.begun == {0: 1, 1: 1, 2: 2, 3: 1}


@virtual
async def test_member_removed_wrongly_keeps_its_shards_until_it_is_back() -> None:
    """It joins again as itself, before anything has moved."""
    held = Held()
    async with processes(2) as each:
        for process in each:
            process.run(serve_in(process, held))
        await asyncio.sleep(5)
        members = await each[0].client.group("t").members()
        assert await each[0].client.group("t").break_(members[1].fence)
        await asyncio.sleep(10)
        again = await each[0].client.group("t").members()
        assert {member.id for member in again} == {member.id for member in members}
        assert sum(held.begun.values()) == 24


@virtual
async def test_server_that_forgets_everything_is_served_again() -> None:
    """All leases are lost, all bodies cancelled; then each shard is held by one again."""
    held = Held()
    async with processes(3) as each:
        for process in each:
            process.run(serve_in(process, held))
        await asyncio.sleep(5)
        held.fences.clear()
        each[0].server._states.clear()
        await asyncio.sleep(25)
        assert held.sizes() == [8, 8, 8]


@virtual
async def test_shards_within_a_group_are_spread_over_those_that_take_part() -> None:
    """A member of the group that does not take part gets none; one that stops is still a member."""
    held = Held()
    async with processes(3) as each:
        members = [await process.join("workers", data={"n": 1}) for process in each]
        for process, me in zip(each[:2], members, strict=False):
            process.run(serve_in(process, held, group=me))
        await asyncio.sleep(5)
        assert held.sizes() == [12, 12]
        found = await members[2].members()
        assert [dict(member.shards) for member in found] == [{"t": 24}, {"t": 24}, {}]
        assert [member.data for member in found] == [{"n": 1}] * 3
        with pytest.raises(RuntimeError, match="takes part in 't' already"):
            await serve_in(each[0], held, group=members[0])
        each[0].tasks[-1].cancel()
        await asyncio.sleep(5)
        assert held.sizes() == [24]
        found = await members[2].members()
        assert [dict(member.shards) for member in found] == [{}, {"t": 24}, {}]
        assert await each[0].client.group("t").members() == ()


@virtual
async def test_loss_of_the_membership_ends_the_shards_within_its_body() -> None:
    """The body of the group is cancelled, and with it all that runs in it."""
    held = Held()
    async with processes(2) as (ours, theirs):

        async def work() -> None:
            async with ours.client.group("w") as me:
                await serve_in(ours, held, 4, group=me)

        ours.run(work())
        await asyncio.sleep(3)
        assert held.sizes() == [4]
        assert await theirs.client.group("w").break_()
        with pytest.raises(LeaseLost, match="the group 'w'"):
            await ours.tasks[0]
        assert held.sizes() == []


@virtual
async def test_other_number_of_shards_is_refused_to_those_that_came_later() -> None:
    """Two numbers would put one key into two shards."""
    held = Held()
    async with processes(3) as each:
        each[0].run(serve_in(each[0], held, 24))
        await asyncio.sleep(3)
        with pytest.raises(LimitMismatch, match="in use, 24 of them, but 32 are declared"):
            await serve_in(each[1], held, 32)
        await asyncio.sleep(3)
        assert held.sizes() == [24]
        assert not each[0].tasks[0].done()


@virtual
async def test_iteration_gives_each_shard_to_enter_in_a_task() -> None:
    """As `run`, for programs that have a task group of their own."""
    held = Held()
    async with processes(2) as each:

        async def work(process: Process) -> None:
            body = held.body(process)

            async def serve(shard: Shard) -> None:
                async with shard:
                    assert shard.state == "held"
                    assert shard.name == f"t/{shard.index}"
                    await body(shard)

            started = process.client.shards("t", 24).__aiter__()
            async with asyncio.TaskGroup() as tasks, aclosing(started) as shards:
                async for shard in shards:
                    tasks.create_task(serve(shard))

        each[0].run(work(each[0]))
        await asyncio.sleep(3)
        assert held.sizes() == [24]
        each[1].run(work(each[1]))
        await asyncio.sleep(3)
        assert held.sizes() == [12, 12]
        await each[0].stop()
        await asyncio.sleep(3)
        assert held.sizes() == [24]


@virtual
async def test_iteration_that_ends_releases_what_was_not_entered_and_asks_the_others() -> None:
    """Nothing is left held by an iteration that has ended, but for bodies that still run."""
    async with (
        processes(1) as (process,),
        aclosing(process.client.shards("t", 3).__aiter__()) as shards,
    ):
        one, two = await anext(shards), await anext(shards)
        async with one:
            await shards.aclose()
            assert one.giving_up.is_set()
            assert one.state == "held"
            await asyncio.sleep(0.1)
            assert await process.client.names(kind="shards") == [one.name]
            assert two.state == "released"
            with pytest.raises(LeaseLost):
                async with two:
                    raise AssertionError
        await asyncio.sleep(0.1)
        assert await process.client.names() == []


@virtual
async def test_shard_released_by_hand_is_acquired_again_after_a_second() -> None:
    """`Shard.release` ends it as the end of its body does."""
    loop = asyncio.get_running_loop()
    async with (
        processes(1) as (process,),
        aclosing(process.client.shards("t", 1).__aiter__()) as shards,
    ):
        shard = await anext(shards)
        fence, released = shard.fence, loop.time()
        assert await shard.release()
        assert not shard.lost.is_set()
        again = await anext(shards)
        assert again.fence > fence
        assert loop.time() - released == pytest.approx(1, abs=0.1)


@virtual
async def test_shard_whose_exit_was_dropped_is_released_with_a_warning() -> None:
    """Otherwise this member would hold it for ever: nothing can leave it any more."""
    async with (
        processes(1) as (process,),
        aclosing(process.client.shards("t", 1).__aiter__()) as shards,
    ):
        fences = list[int]()

        async def forget() -> None:
            shard = await anext(shards)
            await AsyncExitStack().enter_async_context(shard)
            fences.append(shard.fence)

        async def collect() -> None:
            await asyncio.create_task(forget())
            gc.collect()

        with pytest.warns(ResourceWarning, match="'t/0' .* nobody can release"):
            await collect()
        async with asyncio.timeout(2):
            assert (await anext(shards)).fence > fences[0]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@virtual
async def test_cancel_at_any_step_of_shards_leaves_nothing(kind: Kind) -> None:
    """Cancelled at any step of taking part, no shard and no membership is left."""
    async with processes(1) as (process,):

        async def body(_: Shard) -> None:
            await asyncio.sleep(0)

        async def scenario() -> None:
            running = process.client.shards("t", 2, settle=0.1).run(body)
            try:
                async with asyncio.timeout(1.3):
                    await running
            except TimeoutError:
                pass

        async for _ in cancel_everywhere(scenario, [kind]):
            await asyncio.sleep(1)
            assert await process.client.names() == []
            for state in process.server._states.values():
                assert not state.holders
                assert not state.queue


@virtual
async def test_client_that_closes_ends_its_shards() -> None:
    """The bodies are cancelled, and `run` raises `LeaseLost`."""
    held = Held()
    async with processes(2) as (ours, theirs):
        ours.run(serve_in(ours, held, 4))
        await asyncio.sleep(3)
        await ours.client.aclose()
        with pytest.raises(LeaseLost):
            await ours.tasks[0]
        assert held.sizes() == []
        assert await theirs.client.names() == []
        await ours.client.open()


@virtual
async def test_run_that_ends_while_another_one_asks_for_a_shard_leaves_no_task() -> None:
    """Not even while the store does not tell whom the shard is for."""
    async with processes(2) as (ours, theirs):

        async def body(_: Shard) -> None:
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(2)

        ours.run(ours.client.shards("t", 1, settle=0).run(body))
        await asyncio.sleep(1)
        (running,) = ours.tasks
        running.cancel()
        await asyncio.sleep(1)
        with mock.patch.object(View, "look", asyncio.Event().wait):
            await theirs.client.request_release("t/0", kind="shards")
            await asyncio.wait([running], timeout=30)
            assert running.cancelled()
            assert [each.get_name() for each in asyncio.all_tasks()] == [
                asyncio.current_task().get_name()  # type: ignore[union-attr]
            ]


@virtual
async def test_client_that_closes_while_a_member_begins_to_serve_ends_its_shards() -> None:
    """At whichever step it closes."""
    for steps in range(1, 12):
        async with processes(1) as (process,):
            process.run(serve_in(process, Held(), 2))
            await settled(steps)
            await process.client.aclose()
            await asyncio.wait(process.tasks, timeout=30)
            assert process.tasks[0].done(), steps
            assert isinstance(process.tasks[0].exception(), LeaseLost | ClientClosed)
            await process.client.open()


@virtual
async def test_keys_belong_to_one_shard_each() -> None:
    """A shard tells which keys are its own, as `Shards.shard_of` does."""
    seen = dict[int, set[str]]()
    keys = [f"tenant {n}" for n in range(100)]
    async with aiolock.connect(MemoryServer()) as client:
        shards = client.shards("t", 5)

        async def body(shard: Shard) -> None:
            seen[shard.index] = {key for key in keys if key in shard}
            with pytest.raises(TypeError, match="a key must be a str, not int"):
                assert 7 in shard
            await shard.giving_up.wait()

        task = asyncio.create_task(shards.run(body))
        await asyncio.sleep(2)
        task.cancel()
        await asyncio.wait([task])
        assert sorted(key for each in seen.values() for key in each) == sorted(keys)
        assert all(key in seen[shards.shard_of(key)] for key in keys)
        with pytest.raises(TypeError, match="a key must be a str, not int"):
            shards.shard_of(7)  # type: ignore[arg-type]  # what the test is about


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        (("t", 0), {}, ValueError, "count must be from 1 to 4,096"),
        (("t", 4097), {}, ValueError, "count must be from 1 to 4,096"),
        (("t", "8"), {}, TypeError, "count must be an int"),
        (("", 8), {}, ValueError, "1 to 512"),
        (("t" * 511, 8), {}, ValueError, "1 to 512"),
        (("t", 8), {"settle": -1}, ValueError, "settle must be"),
        (("t", 8), {"ttl": 0}, ValueError, "ttl must be"),
        (("t", 8), {"group": "workers"}, TypeError, "group must be a Membership"),
    ],
)
@virtual
async def test_shards_with_invalid_arguments_are_refused_before_any_io(
    arguments: tuple[Any, ...], options: dict[str, Any], error: type[Exception], text: str
) -> None:
    """What is wrong is said where the shards are described."""
    async with processes(2) as (process, other):
        with pytest.raises(error, match=text):
            process.client.shards(*arguments, **options)
        me = await other.join()
        with pytest.raises(ValueError, match="a membership of this client; 'w' is another's"):
            process.client.shards("t", 8, group=me)
        with pytest.raises(ValueError, match="grace"):
            await process.client.shards("t", 1).run(Held().body(1), grace=-1)
        with pytest.raises(TypeError, match="body must be a function"):
            await process.client.shards("t", 1).run("serve")  # type: ignore[arg-type]  # the test
        assert not process.link.sent


@virtual
async def test_member_that_leaves_in_order_hands_each_shard_on_as_soon_as_its_body_ends() -> None:
    """Nobody settles first; a body that takes long to end delays only its own shard."""
    held, loop = Held(), asyncio.get_running_loop()
    async with processes(3) as each:
        for process in each:
            process.run(serve_in(process, held))
        await asyncio.sleep(5)
        left = held.of(each[0])
        slow = min(left)
        taken = dict[int, float]()

        async def see() -> None:
            while len(taken) < 8:
                for index in left - taken.keys():
                    if held.by_shard.get(index, each[0]) is not each[0]:
                        taken[index] = loop.time()
                await asyncio.sleep(0.001)

        held.lingers[slow] = 3
        began = loop.time()
        stopping = asyncio.create_task(each[0].stop())
        await see()
        await stopping
        assert held.sizes() == [12, 12]
        assert 3 <= taken.pop(slow) - began < 3.1
        assert max(taken.values()) - began < 0.1


@virtual
async def test_two_kinds_of_shards_are_served_by_one_member_from_the_same_moment_on() -> None:
    """Neither of them forgets that the member takes part in the other."""
    one, two = Held(), Held()
    async with processes(1) as (process,):
        me = await process.join("workers")
        process.run(process.client.shards("a", 4, group=me).run(one.body(1)))
        process.run(process.client.shards("b", 3, group=me).run(two.body(1)))
        await asyncio.sleep(5)
        assert (one.sizes(), two.sizes()) == ([4], [3])


@virtual
async def test_member_serves_the_same_shards_again_right_after_it_has_stopped() -> None:
    """The others learn of both in order; while it serves them, a second time is refused."""
    held = Held()
    async with processes(1) as (process,):
        me = await process.join("workers")
        shards = process.client.shards("t", 4, group=me)
        for _ in range(3):
            serving = asyncio.create_task(shards.run(held.body(process)))
            await asyncio.sleep(3)
            assert held.sizes() == [4]
            with pytest.raises(RuntimeError, match="takes part in 't' already"):
                await shards.run(held.body(process))
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving


@virtual
@pytest.mark.parametrize("turns", range(1, 12))
async def test_member_cancelled_while_it_begins_to_serve_takes_no_part_afterwards(
    turns: int,
) -> None:
    """Otherwise its part of the shards would be served by nobody."""
    held = Held()
    async with processes(2) as (ours, theirs):
        me, other = await ours.join("workers"), await theirs.join("workers")
        serving = asyncio.create_task(ours.client.shards("t", 4, group=me).run(held.body(ours)))
        await settled(turns)
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        await asyncio.sleep(1)
        theirs.run(theirs.client.shards("t", 4, group=other).run(held.body(theirs)))
        await asyncio.sleep(5)
        assert held.of(theirs) == {0, 1, 2, 3}


@virtual
async def test_member_that_stops_while_the_store_refuses_takes_no_part_when_it_is_back() -> None:
    """It tells the others until they know, as long as it is a member."""
    held, server = Held(), MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with (
        aiolock.connect(faulty) as ours,
        aiolock.connect(server) as theirs,
        ours.group("workers") as me,
        theirs.group("workers") as other,
    ):
        serving = [
            asyncio.create_task(client.shards("t", 4, group=member).run(held.body(client)))
            for client, member in ((ours, me), (theirs, other))
        ]
        await asyncio.sleep(5)
        assert held.sizes() == [2, 2]
        faulty.refuse("post", 25)
        for client, running in zip((ours, theirs), serving, strict=True):
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await asyncio.sleep(60)
            assert held.sizes() == ([4] if client is ours else [])


@virtual
async def test_member_that_serves_again_while_its_end_is_not_known_yet_takes_part() -> None:
    """What the others have not heard of the end before is not said any more."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client, client.group("workers") as me:
        await me._serve("t", 4)
        faulty.lose("post", 1)
        told = me._serve_no_more("t")  # fails, and is said again after a pause
        await settled(100)
        assert not told.done()
        await me._serve("t", 4)
        await told
        (member,) = await client.group("workers").members()
        assert member.shards == {"t": 4}
