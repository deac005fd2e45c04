"""The workloads of the workers: the same for every peer, in the peer's process and environment.

Each workload prepares, says "ready", and goes on when the conductor says so. Between its stages the
conductor asks the server for their cost. All times are nanoseconds of the monotonic clock, which on
Linux and macOS is one clock for all processes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

from benchmarks.peers import Peer

Message = dict[str, Any]
Held = AbstractAsyncContextManager[object]
clock = time.monotonic_ns


class Talk(Protocol):
    """A worker's line to the conductor."""

    def say(self, event: str, **fields: object) -> None:
        """Tell the conductor."""

    async def hear(self) -> Message:
        """The conductor's next message."""
        ...

    async def stage(self, event: str, **fields: object) -> Message:
        """Tell the conductor, and wait until it says to go on."""
        ...


def memory() -> int:
    """Bytes of memory that the process takes now."""
    gc.collect()
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text(encoding="ascii").split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


async def until(moment: int) -> None:
    """Sleep until the clock shows ``moment``."""
    await asyncio.sleep((moment - clock()) / 1e9)


async def _connect_all(peer: Peer, name: str, tasks: int) -> None:
    """Let as many tasks as the workload has use the peer once, so that it has its connections."""
    locks = [await peer.lock(f"{name}:warm:{os.getpid()}:{place}") for place in range(tasks)]
    await asyncio.gather(*(_through(lock) for lock in locks))


async def _through(lock: Held) -> None:
    async with lock:
        pass


async def one_task(peer: Peer, talk: Talk, *, name: str, operations: int) -> None:
    """One task takes a free lock and gives it back, again and again."""
    lock = await peer.lock(name)
    for _ in range(min(100, operations)):
        await _through(lock)
    gc.collect()
    await talk.stage("ready")
    laps: list[int] = []
    cpu = time.process_time_ns()
    last = clock()
    for _ in range(operations):
        async with lock:
            pass
        now = clock()
        laps.append(now - last)
        last = now
    await talk.stage("done", laps=laps, cpu=time.process_time_ns() - cpu)


async def many_names(
    peer: Peer, talk: Talk, *, name: str, tasks: int, names: int, operations: int
) -> None:
    """Each task takes one of so many locks repeatedly, all at once: its own or a common one."""
    locks = [await peer.lock(f"{name}:{place % names}") for place in range(tasks)]
    await asyncio.gather(*map(_through, locks))

    async def work(lock: Held) -> None:
        for _ in range(operations):
            async with lock:
                pass

    gc.collect()
    await talk.stage("ready")
    cpu, start = time.process_time_ns(), clock()
    await asyncio.gather(*map(work, locks))
    await talk.stage("done", elapsed=clock() - start, cpu=time.process_time_ns() - cpu)


async def one_name(
    peer: Peer,
    talk: Talk,
    *,
    name: str,
    tasks: int,
    times: int,
    limit: float,
    body: float | None,
) -> None:
    """All tasks take the same lock, each so many times; the run ends after ``limit`` seconds.

    They sleep for ``body`` seconds in it; None: they do not even let other tasks run.
    """
    await _connect_all(peer, name, tasks)
    locks = [await peer.lock(name) for _ in range(tasks)]
    entries: list[tuple[int, int, int, int]] = []

    async def work(place: int, lock: Held) -> None:
        for _ in range(times):
            asked = clock()
            async with lock:
                entered = clock()
                if body is not None:
                    await asyncio.sleep(body)
                left = clock()
            entries.append((entered, asked, left, place))

    gc.collect()
    start = (await talk.stage("ready")).get("start", 0)
    await until(start)
    cpu, start = time.process_time_ns(), clock()
    try:
        async with asyncio.timeout(limit):
            await asyncio.gather(*(work(*each) for each in enumerate(locks)))
        ended = True
    except TimeoutError:
        ended = False
    cpu, elapsed = time.process_time_ns() - cpu, clock() - start
    await talk.stage("done", entries=entries, start=start, elapsed=elapsed, cpu=cpu, ended=ended)


async def chain(peer: Peer, talk: Talk, *, name: str, tasks: int, gap: int, place: int) -> None:
    """Tasks of two processes in turn stand in line, one every ``gap`` nanoseconds.

    Once all stand there, the first one leaves, and the lock goes from process to process. No task
    asks again, so only the hand-offs are under way.
    """
    await _connect_all(peer, name, tasks)
    locks = [await peer.lock(name) for _ in range(tasks)]
    entries: list[tuple[int, int, int, int]] = []
    gc.collect()
    start: int = (await talk.stage("ready"))["start"]

    async def work(number: int, lock: Held) -> None:
        turn = 2 * number + place
        await until(start + turn * gap)
        asked = clock()
        async with lock:
            entered = clock()
            if turn == 0:
                await until(start + (2 * tasks + 20) * gap)
            left = clock()
        entries.append((entered, asked, left, number))

    await asyncio.gather(*(work(*each) for each in enumerate(locks)))
    await talk.stage("done", entries=entries)


async def turns(peer: Peer, talk: Talk, *, name: str) -> None:
    """Ask, and leave, when the conductor says so; report when we had entered, and left."""
    await _connect_all(peer, name, 1)
    lock = await peer.lock(name)
    leave = asyncio.Event()

    async def once() -> None:
        async with lock:
            talk.say("entered", at=clock())
            await leave.wait()
            left = clock()
        talk.say("left", at=left)

    order = await talk.stage("ready")
    asked: list[asyncio.Task[None]] = []
    while order["do"] != "end":
        if order["do"] == "ask":
            leave.clear()
            asked.append(asyncio.create_task(once()))
        else:
            leave.set()
        order = await talk.hear()
    await asyncio.gather(*asked)
    await talk.stage("done")


async def waits(peer: Peer, talk: Talk, *, name: str, tasks: int) -> None:
    """Wait for a lock that another process holds, until that leaves; then all go through."""
    locks = [await peer.lock(name) for _ in range(tasks)]
    await talk.stage("ready")
    waiting = [asyncio.create_task(_through(lock)) for lock in locks]
    await talk.stage("asked")
    await asyncio.gather(*waiting)
    await talk.stage("done")


async def queue(peer: Peer, talk: Talk, *, name: str, length: int, batch: int, rounds: int) -> None:
    """Stand ``length`` waiters in line; then ``batch`` more come, go, and are granted the lock."""
    line = _Line(peer, name)
    await line.prepare()
    await talk.stage("ready", memory=memory())
    await line.stand(length)
    await talk.stage("standing", memory=memory())
    # The conductor watches them wait, for as long as it likes. Then, before the clock starts, one
    # batch goes through, so that there are connections for the next one.
    await line.stand(batch)
    await line.advance(batch)
    for _ in range(rounds):
        enqueue = await _timed(talk, "enqueue", line.stand, batch)
        cancel = await _timed(talk, "cancel", line.give_up, batch)
        await line.stand(batch)
        grant = await _timed(talk, "grant", line.advance, batch)
        await talk.stage("round", enqueue=enqueue, cancel=cancel, grant=grant)
    await line.end()
    await talk.stage("done")


async def forgotten(peer: Peer, talk: Talk, *, name: str, length: int) -> None:
    """Stand ``length`` waiters in line; the server forgets them, and then they go through."""
    line = _Line(peer, name)
    await line.prepare()
    gc.collect()
    await talk.stage("ready")
    await line.stand(length)
    line.let_through(length)
    await talk.stage("standing")
    await line.is_through()
    await talk.stage("through", at=clock())


async def _timed(
    talk: Talk, move: str, work: Callable[[int], Awaitable[None]], batch: int
) -> Message:
    gc.collect()
    await talk.stage(f"before {move}")
    cpu, start = time.process_time_ns(), clock()
    await work(batch)
    cost = {"elapsed": clock() - start, "cpu": time.process_time_ns() - cpu}
    await talk.stage(f"after {move}")
    return cost


class _Line:
    """Tasks that wait for one lock, which one of them holds until it is told to pass it on."""

    def __init__(self, peer: Peer, name: str) -> None:
        self._peer = peer
        self._name = name
        self._waiting: list[asyncio.Task[None]] = []
        self._to_pass = 0
        self._entered = asyncio.Event()
        self._leave = asyncio.Event()
        self._probe: Held

    async def prepare(self) -> None:
        """Let one task in, which then holds the lock."""
        self._probe = await self._peer.lock(f"{self._name}:probe")
        await _through(self._probe)
        self._waiting.append(asyncio.create_task(self._wait(await self._peer.lock(self._name))))
        await self._entered.wait()

    async def _wait(self, lock: Held) -> None:
        async with lock:
            if self._to_pass:
                self._to_pass -= 1
                return
            self._entered.set()
            await self._leave.wait()
            self._leave.clear()

    async def stand(self, count: int) -> None:
        """Start ``count`` more; they are in the queue when this returns."""
        locks = [await self._peer.lock(self._name) for _ in range(count)]
        self._waiting += [asyncio.create_task(self._wait(lock)) for lock in locks]
        await self._settle()

    async def give_up(self, count: int) -> None:
        """Cancel the last ``count``; they have left the queue when this returns."""
        going, self._waiting[-count:] = self._waiting[-count:], []
        for task in going:
            task.cancel()
        await asyncio.wait(going)
        await self._settle()

    async def _settle(self) -> None:
        # An earlier command is answered before it, at least on the same connection.
        await asyncio.sleep(0)
        await _through(self._probe)

    async def advance(self, count: int) -> None:
        """Let ``count`` leave, the holder first; the next one holds the lock when this returns."""
        self._to_pass = count - 1
        self._entered.clear()
        self._leave.set()
        await self._entered.wait()
        self._waiting = [task for task in self._waiting if not task.done()]

    def let_through(self, count: int) -> None:
        """Tell this many to enter and leave, even if the holder loses the lock."""
        self._to_pass = count

    async def is_through(self) -> None:
        """Wait until all have left, except the holder: it has lost the lock."""
        holder, *rest = self._waiting
        await asyncio.gather(*rest)
        self._leave.set()
        await asyncio.wait([holder])
        if not holder.exception():
            raise RuntimeError("the server has forgotten nothing")

    async def end(self) -> None:
        """Make all give up, and the holder leave."""
        holder, *rest = self._waiting
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest)
        self._leave.set()
        await holder


async def hold(peer: Peer, talk: Talk, *, name: str, leases: int) -> None:
    """Hold so many locks at once, for as long as the conductor watches."""
    await _connect_all(peer, name, 1)
    tasks = len(asyncio.all_tasks())
    await talk.stage("ready", memory=memory())
    held: list[Held] = []
    for place in range(leases):
        lock = await peer.lock(f"{name}:{place}")
        await lock.__aenter__()
        held.append(lock)
    await talk.stage("held", memory=memory(), tasks=len(asyncio.all_tasks()) - tasks)
    cpu, start = time.process_time_ns(), clock()
    await talk.hear()
    cost = {"elapsed": clock() - start, "cpu": time.process_time_ns() - cpu}
    await talk.stage("watched", **cost)
    for lock in held:
        await lock.__aexit__(None, None, None)
    await talk.stage("done")


async def ping_pong(
    peer: Peer,  # noqa: ARG001  # takes no lock: it is what any lock by pub/sub is built on
    talk: Talk,
    *,
    server: str,
    hops: int,
    place: int,
) -> None:
    """Two processes send a message to and fro by PUBLISH, over plain asyncio transports."""
    host, port = server.removeprefix("redis://").split(":")
    loop = asyncio.get_running_loop()
    subscribed, over = loop.create_future(), loop.create_future()
    caught: list[int] = []
    thrown: list[int] = []
    throw = b"*3\r\n$7\r\nPUBLISH\r\n$6\r\npong:%d\r\n$1\r\n-\r\n" % (1 - place)

    class Hand(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:  # noqa: ARG002  # the moment is what counts
            if not subscribed.done():
                subscribed.set_result(None)
                return
            caught.append(clock())
            if len(thrown) < hops:
                thrown.append(clock())
                commands.write(throw)
            if len(caught) == hops:
                over.set_result(None)

    commands, _ = await loop.create_connection(asyncio.Protocol, host, int(port))
    pushes, _ = await loop.create_connection(Hand, host, int(port))
    pushes.write(b"*2\r\n$9\r\nSUBSCRIBE\r\n$6\r\npong:%d\r\n" % place)
    await subscribed
    gc.collect()
    await talk.stage("ready")
    if place == 0:
        thrown.append(clock())
        commands.write(throw)
    await over
    commands.close()
    pushes.close()
    await talk.stage("done", caught=caught, thrown=thrown)


Workload = Callable[..., Coroutine[Any, Any, None]]
WORKLOADS: Sequence[Workload] = (
    one_task,
    many_names,
    one_name,
    chain,
    turns,
    waits,
    queue,
    forgotten,
    hold,
    ping_pong,
)
