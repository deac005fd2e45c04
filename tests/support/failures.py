"""Shared helpers for tests of failures: other processes that lock, and a view without aiolock."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self, TypeVar

import pytest

import aiolock
from aiolock.protocol import Finish, Operation, Release
from aiolock.stores.memory import MemoryServer
from tests.support.procs import Message, Worker
from tests.support.proxy import Link, Proxy
from tests.support.servers import RedisServer

T = TypeVar("T")

_PATIENCE = float(os.environ.get("AIOLOCK_TEST_PATIENCE", "inf"))
"""Seconds at most: where it is expected to be in vain, see `tests.support.ablated`."""


_LONGEST_PAUSE = 0.005 if math.isinf(_PATIENCE) else 0.05
"""Seconds between two looks: many conditions ask a server, which costs more than to wait."""

_TURNS = 10
"""Turns of the event loop in which what lies in the sockets is read, passed on and looked at."""


class Forgetful(MemoryServer):
    """Has forgotten a run that is to be finished, as after a restart, while it is told to."""

    forgets = False

    def run(self, operation: Operation[T], copies_until: int = 0) -> T:
        """As a server that does not know it any more."""
        if self.forgets and isinstance(operation, Finish):
            name, waiter, form = operation.name, operation.waiter, operation.form
            super().run(Release(name, waiter, form, operation.fence))
        return super().run(operation, copies_until)


async def until(
    condition: Callable[[], object], *, within: float = 10.0, after: float = 0.0
) -> None:
    """Wait until a condition holds that nothing announces.

    On a machine at rest it holds in a moment, or right ``after`` so many seconds; it is not looked
    at before.
    """
    if after:
        await asyncio.sleep(after)
    within = min(within, _PATIENCE)
    pause = 0.005
    try:
        async with asyncio.timeout(within):
            while not condition():
                await asyncio.sleep(pause)
                pause = min(pause * 1.2, _LONGEST_PAUSE)
    except TimeoutError:
        raise TimeoutError(
            f"a condition did not come true within {within} s, after {after} s"
        ) from None


def wait_until(condition: Callable[[], object], *, within: float = 30.0) -> None:
    """The same where there is no event loop, or none that may go on meanwhile."""
    deadline = time.monotonic() + min(within, _PATIENCE)
    while not condition():
        assert time.monotonic() < deadline, f"a condition did not come true within {within} s"
        time.sleep(0.001)


async def soon(awaitable: Awaitable[T], *, within: float = 10.0, after: float = 0.0) -> T:
    """Wait for what comes at once, or right after so many seconds, on a machine at rest."""
    return await asyncio.wait_for(awaitable, after + min(within, _PATIENCE))


async def take(lock: aiolock.Lock | aiolock.Semaphore) -> aiolock.Lease:
    """Acquire a lock for the task that runs this, which then owns it."""
    lease = await lock.acquire()
    assert lease is not None
    return lease


async def queued(
    lock: aiolock.Lock, count: int, *, process: subprocess.Popen[Any] | None = None
) -> None:
    """Return when so many wait for it: tasks, or a process that has just been started.

    It fails at once if that process ends.
    """
    async with asyncio.timeout(30):
        while (waiting := len((await lock.status()).waiters)) != count:
            ended = process is not None and process.poll() is not None
            assert not ended, f"{process} has ended, and {waiting} wait, not {count}"
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def pair(url: str) -> AsyncIterator[list[aiolock.LockClient]]:
    """Two clients, each a process as far as the server can tell."""
    async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
        yield [ours, theirs]


def start_waiter(url: str) -> subprocess.Popen[bytes]:
    """A process that waits for the lock `x`."""
    program = (
        "import asyncio, sys, aiolock\n"
        "async def main():\n"
        "    async with aiolock.connect(sys.argv[1]) as client:\n"
        "        async with client.lock('x'):\n"
        "            pass\n"
        "asyncio.run(main())\n"
    )
    return subprocess.Popen([sys.executable, "-P", "-c", program, url])


@contextlib.asynccontextmanager
async def parent_that_died(url: str) -> AsyncIterator[None]:
    """A process was killed while it held the lock `x`; its child, which it forked, lives on."""
    program = (
        "import asyncio, os, sys, time, aiolock\n"
        "async def main():\n"
        "    async with aiolock.connect(sys.argv[1]) as client:\n"
        "        child = os.fork()\n"
        "        if not child:\n"
        "            time.sleep(60)\n"
        "            os._exit(0)\n"
        "        async with client.lock('x'):\n"  # they are as they were
        "            print('in', flush=True)\n"
        "            os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore", "-c", program, url],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert await asyncio.to_thread(process.stdout.readline) == b"in\n"
        process.wait()
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()


async def within_100_ms(measure: Callable[[], Awaitable[float]]) -> None:
    """Check that something comes in time; a busy machine may make it late once, but not always.

    As late as a plain timer of ours was meanwhile, everything may be: the server, and each of the
    processes that take part.
    """
    lags: list[tuple[float, float]] = []
    for _ in range(3):
        clock = asyncio.create_task(_lateness())
        try:
            lag = await measure()
        finally:
            clock.cancel()
            await asyncio.wait([clock])
        lags.append((lag, clock.result()))
        if lag < 0.1 + 3 * clock.result():
            return
    raise AssertionError(f"came late every time, by (and a timer by): {lags} s")


async def _lateness() -> float:
    """By how much a timer was late at the most, until this is cancelled."""
    latest = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            due = time.monotonic() + 0.01
            await asyncio.sleep(0.01)
            latest = max(latest, time.monotonic() - due)
    return latest


def command_link(proxy: Proxy) -> Link:
    """The link on which the one client behind a proxy sends its commands."""
    (link,) = (link for link in proxy.links if not link.is_subscription)
    return link


def subscription_link(proxy: Proxy) -> Link:
    """The link on which the one client behind a proxy is pushed its grants."""
    (link,) = (link for link in proxy.links if link.is_subscription)
    return link


async def linked(proxy: Proxy) -> None:
    """Wait until the one client behind a proxy has both its links, and no third.

    Where time limits are short, a moment's pause is enough for one to be replaced.
    """
    await until(lambda: sorted(link.is_subscription for link in proxy.links) == [False, True])


class Peek:
    """A server's state of one lock, read without aiolock."""

    def __init__(self, server: RedisServer, prefix: str, key: str = "lock:lock") -> None:
        self.server = server
        self.prefix = prefix
        self._keys = f"{prefix}:{{{key}}}"

    def holders(self) -> list[str]:
        """The grants, ``<mode>:<client>:<seq>:<fence>``, also those that have ended."""
        # Other members have scores from 10^15 on.
        return list(self.server.call("ZRANGEBYSCORE", f"{self._keys}:holders", "-inf", "(1e15"))

    def queue(self) -> list[str]:
        """The waiters, ``<mode>:<client>:<seq>``, in order."""
        return list(self.server.call("ZRANGE", f"{self._keys}:queue", 0, -1))

    async def queued(self, count: int) -> None:
        """Wait until so many stand in the queue, and the answers that say so have come through.

        A test that goes on sooner breaks the link of a client whose question is still open.
        """
        await until(lambda: len(self.queue()) == count)
        self.queue()  # by its answer to this, the server has written those to all before it
        for _ in range(_TURNS):  # clients and proxies of this process read and pass them on
            await asyncio.sleep(0)

    def clients(self) -> list[str]:
        """The clients of the waiters, in order."""
        return [waiter.split(":")[1] for waiter in self.queue()]

    def ticket(self, waiter: str) -> int:
        """A waiter's place in the queue."""
        return int(self.server.call("ZSCORE", f"{self._keys}:queue", waiter))

    def fence(self) -> int:
        """The last fence."""
        return int(self.server.call("GET", f"{self._keys}:fence"))

    def ends(self, client: str = "") -> float:
        """When the present lease (of that client) ends, as `time.monotonic()` will say.

        -inf where there is no such lease any more.
        """
        grants = [grant for grant in self.holders() if client in grant]
        for _ in range(1000):
            now = time.monotonic()
            seconds, micros = self.server.call("TIME")
            if time.monotonic() - now < 0.01:  # else the two clocks were read at different times
                break
        else:
            raise AssertionError("the server's clock cannot be read within 10 ms")
        end = grants and self.server.call("ZSCORE", f"{self._keys}:holders", grants[0])
        if not end:
            return -math.inf
        return now + float(end) / 1000 - int(seconds) - int(micros) / 1e6

    def listens(self, client: str) -> bool:
        """Whether a client is subscribed to its pushes."""
        channel = f"{self.prefix}:push:{client}"
        return int(self.server.call("PUBSUB", "NUMSUB", channel)[1]) > 0


def check_nothing_left(server: RedisServer, prefix: str) -> None:
    """Check that only fences and introductions are left of a prefix, and that all will expire."""
    for key in server.call("KEYS", f"{prefix}:*"):
        kind = key.rpartition(":")[2]
        introduction = key.startswith((f"{prefix}:client:", f"{prefix}:protocols"))
        if kind in {"holders", "value"}:  # what is remembered of permits, counts and leaders
            grants = server.call("ZCOUNT", key, "-inf", 10**15 - 1) if kind == "holders" else 0
            assert grants == 0, f"the test has left somebody in {key}"
        else:
            assert introduction or kind == "fence", f"the test has left {key}"
        # -2 where it has gone since.
        assert server.call("PTTL", key) != -1, f"{key} would stay for ever"


async def check_works(client: aiolock.LockClient) -> None:
    """Check that a client can do all that one can do."""
    lock = client.lock("lock", ttl=5, max_waiters=1)
    first = await take(lock)
    await first.extend(4)
    assert await first.verify()
    waiting = asyncio.create_task(take(lock))
    async with asyncio.timeout(30):
        while not (await lock.status()).waiters:
            pass
    with pytest.raises(aiolock.QueueFull):
        await asyncio.create_task(take(lock))
    status = await lock.status()
    parties = (*status.holders, *status.waiters)
    assert [(party.client, party.pid) for party in parties] == 2 * [(client.id, os.getpid())]
    assert await first.release()
    second = await asyncio.wait_for(waiting, 5)
    assert second.fence > first.fence
    assert await lock.break_()
    await asyncio.wait_for(second.lost.wait(), 5)
    assert not await lock.locked()


class Locker(Worker):
    """A process with a client of its own, that takes the lock named "lock" when it is told to."""

    def __init__(self, url: str, prefix: str) -> None:
        super().__init__("-m", "tests.support.children.locker", url, prefix)
        self.client = ""

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.client = str((await self.expect("ready"))["client"])
        return self

    async def lock(self, who: str = "it", **options: Any) -> None:
        """Have a task of that name ask for the lock, and stay in the body until `unlock`."""
        await self.send({"do": "lock", "who": who, **options})

    async def meet(self, kind: str, who: str = "it", **options: Any) -> None:
        """Have a task of that name wait at the barrier, or for the latch."""
        await self.send({"do": "meet", "who": who, "kind": kind, **options})

    async def passed(self, who: str = "it") -> Message:
        """Return when that task has passed."""
        return await self.expect(f"passed {who}")

    async def entered(self, who: str = "it") -> Message:
        """Return when that task has entered the body."""
        return await self.expect(f"entered {who}")

    async def unlock(self, who: str = "it") -> None:
        """Have that task leave the body, and return when it has."""
        await self.send({"do": "unlock", "who": who})
        await self.expect(f"left {who}")

    async def killed(self, peek: Peek) -> None:
        """Kill the process, and return when the server has noticed that it is gone."""
        self.kill()
        await self.wait()
        await until(lambda: not peek.listens(self.client))


Lockers = Callable[[int], Awaitable[list[Locker]]]
"""Starts so many processes, all at once."""
