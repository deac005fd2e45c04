"""Groups and shards for threads."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

import aiolock
import aiolock.sync
from aiolock import Changed, Joined, LeaseLost, Left, Members
from aiolock.sync import LockClient, _portal
from tests.support.procs import Worker
from tests.support.servers import RedisServer

PATIENCE = 20.0


@pytest.fixture
def clients(redis_server: RedisServer, prefix: str) -> Iterator[list[LockClient]]:
    """Two clients of one store."""
    url = redis_server.url
    with (
        aiolock.sync.connect(url, prefix=prefix) as one,
        aiolock.sync.connect(url, prefix=prefix) as two,
    ):
        yield [one, two]


def test_group_for_threads_has_members_that_see_each_other(clients: list[LockClient]) -> None:
    """Joining, leaving, changing and watching, as for tasks."""
    one, two = clients
    group = two.group("w")
    seen = list[aiolock.GroupChange]()

    def watch() -> None:
        for change in group.watch():
            seen.append(change)
            if isinstance(change, Left):
                return

    watching = threading.Thread(target=watch)
    assert group.members() == ()
    with one.group("w", data={"n": 1}) as me:
        watching.start()
        until(lambda: len(seen) == 1)
        assert (me.name, group.name, group.ttl) == ("w", "w", 10.0)
        assert me.state == "held"
        assert [dict(member.data) for member in me.members()] == [{"n": 1}]
        me.update({"n": 2})
        assert me.data == {"n": 2}
        until(lambda: len(seen) == 2)
        assert me.epoch > 0
        assert me.lease.fence == me.fence == group.members()[0].fence
        assert not me.lost.is_set()
        assert repr(me).startswith(f"<Membership {me.id!r} of 'w'")
        assert len(group.status().holders) == 1
    watching.join(PATIENCE)
    assert [type(change) for change in seen] == [Members, Changed, Left]


def test_membership_that_is_broken_is_lost_to_its_thread(clients: list[LockClient]) -> None:
    """The thread learns of it where it waits, also after a change, and at the end of its body."""
    one, two = clients
    with pytest.raises(LeaseLost, match="the group 'w'"), one.group("w") as me:  # noqa: PT012
        me.update({"n": 1})
        assert two.group("w").break_(me.fence)
        assert me.lost.wait(PATIENCE)
        with pytest.raises(LeaseLost):
            me.lease.check()
        with suppress(LeaseLost):
            for _ in me.watch():
                pass
    assert not two.group("w").break_()


def test_watch_of_a_member_ends_with_its_membership(clients: list[LockClient]) -> None:
    """Another thread of the member sees its changes until it leaves."""
    one, two = clients
    seen = list[aiolock.GroupChange]()
    with one.group("w") as me:

        def watch() -> None:
            for change in me.watch():
                seen.append(change)

        watching = threading.Thread(target=watch)
        watching.start()
        until(lambda: len(seen) == 1)
        with two.group("w"):
            until(lambda: len(seen) == 2)
    watching.join(PATIENCE)
    assert [type(change) for change in seen][:2] == [Members, Joined]


def test_shards_for_threads_run_in_a_thread_each(clients: list[LockClient]) -> None:
    """A body gives up when it is asked; it is asked when another one waits, or at the end."""
    held, guard = dict[int, LockClient](), threading.Lock()
    keys = set[int]()

    def body_of(client: LockClient) -> Any:
        def body(shard: aiolock.sync.Shard) -> None:
            assert threading.current_thread().name == f"aiolock {shard.name}"
            assert shard.state == "held"
            shard.lease.check()
            assert shard.fence == shard.lease.fence
            if "acme" in shard:
                keys.add(shard.index)
            with guard:  # then the clients are closed
                assert shard.index not in held
                held[shard.index] = client
            shard.giving_up.wait()
            with guard:
                del held[shard.index]

        return body

    def run(client: LockClient) -> None:
        with pytest.raises((LeaseLost, aiolock.ClientClosed)):
            client.shards("t", 6, settle=0.1).run(body_of(client))

    threads = [threading.Thread(target=run, args=(client,)) for client in clients]
    threads[0].start()
    until(lambda: len(held) == 6)
    threads[1].start()
    until(lambda: sorted(map(list(held.values()).count, clients)) == [3, 3])
    shards = clients[0].shards("t", 6)
    assert keys == {shards.shard_of("acme")}
    assert (shards.name, shards.count) == ("t", 6)
    clients[1].close()
    threads[1].join(PATIENCE)
    until(lambda: list(held.values()) == [clients[0]] * 6)
    clients[0].close()
    threads[0].join(PATIENCE)
    assert not held


def test_shard_of_a_client_that_closes_is_held_until_its_thread_has_ended(
    clients: list[LockClient],
) -> None:
    """Its body is asked to give up, and only when it has returned, others may have the shard."""
    one, two = clients
    seen = set[bool]()

    def body(shard: aiolock.sync.Shard) -> None:
        shard.giving_up.wait()
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            seen.add(bool(two.snapshot("t/0")))

    def run() -> None:
        with pytest.raises((LeaseLost, aiolock.ClientClosed)):
            one.shards("t", 1).run(body)

    running = threading.Thread(target=run)
    running.start()
    until(lambda: bool(two.snapshot("t/0")))
    one.close()
    assert seen == {True}
    assert not two.snapshot("t/0")
    running.join(PATIENCE)


async def test_run_of_shards_that_is_interrupted_waits_until_its_bodies_have_ended() -> None:
    """They end their work while they hold their shards; a second Ctrl-C does not wait for it."""
    source = """
        import signal, sys
        import aiolock.sync
        from tests.support.procs import say

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
        client, done = aiolock.sync.connect("memory://"), []

        def body(shard):
            say("begun")
            shard.giving_up.wait()
            say("asked")
            sys.stdin.readline()
            shard.lease.check()
            done.append(shard.index)

        for _ in range(2):
            try:
                client.shards("t", 1, settle=0).run(body)
            except KeyboardInterrupt:
                say("interrupted", done=done)
        client.close()
    """
    async with Worker("-c", source) as child:
        await child.expect("begun")
        os.kill(child.pid, signal.SIGINT)
        await child.expect("asked")
        await child.send({})
        assert (await child.expect("interrupted"))["done"] == [0]
        await child.expect("begun")
        os.kill(child.pid, signal.SIGINT)
        await child.expect("asked")
        os.kill(child.pid, signal.SIGINT)
        assert (await child.expect("interrupted"))["done"] == [0]
        await child.send({})
        assert await child.wait() == 0


async def test_close_in_a_signal_handler_ends_the_run_of_shards_of_its_thread() -> None:
    """By the agent of the thread, whose own bodies a close does not cancel."""
    source = """
        import signal
        import aiolock.sync
        from tests.support.procs import say

        client = aiolock.sync.connect("memory://")
        signal.signal(signal.SIGTERM, lambda *_: client.close())

        def body(shard):
            say("begun")
            shard.giving_up.wait()

        try:
            client.shards("t", 1, settle=0).run(body)
        except aiolock.ClientClosed:
            say("closed")
    """
    async with Worker("-c", source) as child:
        await child.expect("begun")
        os.kill(child.pid, signal.SIGTERM)
        await child.expect("closed")
        assert await child.wait() == 0


def test_iterations_of_a_client_that_was_closed_and_opened_meanwhile_raise_client_closed() -> None:
    """They are without end: they must not seem to have come to one."""
    client = aiolock.sync.connect("memory://")
    watch, observe = client.group("w").watch(), client.election("e").observe()
    with client:
        assert isinstance(next(watch), Members)
        with client.election("e").campaign("x"):
            assert next(observe).value == "x"
    with client:
        with pytest.raises(aiolock.ClientClosed, match="closed meanwhile"):
            next(watch)
        with pytest.raises(aiolock.ClientClosed, match="closed meanwhile"):
            next(observe)


@pytest.mark.parametrize("itself", [False, True])
def test_client_closes_although_a_body_of_a_shard_outlives_its_lease(itself: bool) -> None:
    """Then `run` waits on, and no longer than for the body; also if the body closes the client."""
    client, ended = aiolock.sync.connect("memory://"), list[bool]()
    entered, leave = threading.Event(), threading.Event()

    def body(_: aiolock.sync.Shard) -> None:
        entered.set()
        if itself:
            client.close()
        else:
            assert leave.wait(PATIENCE)
        ended.append(True)

    def run() -> None:
        with pytest.raises((LeaseLost, aiolock.ClientClosed)):
            client.shards("t", 1, ttl=0.3, settle=0).run(body)

    threads = [threading.Thread(target=run, daemon=True)]
    threads[0].start()
    assert entered.wait(PATIENCE)
    if not itself:
        threads.append(threading.Thread(target=client.close, daemon=True))
        threads[1].start()
        threads[1].join(PATIENCE)
        assert not threads[1].is_alive()
        assert threads[0].is_alive()
        leave.set()
    threads[0].join(PATIENCE)
    assert not threads[0].is_alive()
    assert ended == [True]
    until(lambda: _portal.process().running is None)


def test_body_of_a_shard_that_is_lost_is_asked_to_give_up(clients: list[LockClient]) -> None:
    """It need not look at two things, and then the shard is served again."""
    one, two = clients
    fences = list[int]()

    def body(shard: aiolock.sync.Shard) -> None:
        fences.append(shard.fence)
        shard.giving_up.wait()
        fences.append(-1 if shard.lost.is_set() else 0)

    def run() -> None:
        with pytest.raises((LeaseLost, aiolock.ClientClosed)):
            one.shards("t", 1).run(body)

    running = threading.Thread(target=run)
    running.start()
    until(lambda: len(fences) == 1)
    assert two.break_("t/0", kind="shards")
    until(lambda: len(fences) == 3)
    one.close()
    running.join(PATIENCE)
    assert fences[1] == -1
    assert fences[2] > fences[0]


def test_shards_for_threads_take_no_grace(clients: list[LockClient]) -> None:
    """Nothing stops a thread; a wrong group is refused, too."""
    with pytest.raises(ValueError, match="nothing stops a thread"):
        clients[0].shards("t", 2).run(print, grace=1)
    with pytest.raises(TypeError, match="as `with group as me`"):
        clients[0].shards("t", 2, group="w")  # type: ignore[arg-type]  # what the test is about


def test_shards_for_threads_within_a_group_take_part_with_its_membership(
    clients: list[LockClient],
) -> None:
    """A shard entered with `with` is released at its end."""
    one, _ = clients
    released = list[str]()

    def body(shard: aiolock.sync.Shard) -> None:
        with shard:
            assert me.members()[0].shards == {"t": 1}
        released.append(str(shard.state))
        raise SystemExit  # which would end the loop

    with pytest.raises(LeaseLost), one.group("w") as me:  # noqa: PT012  # where it is raised
        threading.Timer(3, one.close).start()
        one.shards("t", 1, group=me, settle=0.1).run(body)
    assert released[:1] == ["released"]


def until(condition: Any) -> None:
    """Wait until it holds."""
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)
