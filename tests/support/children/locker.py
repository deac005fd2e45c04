"""A process that holds and waits for locks as a test tells it to; see `failures.Locker`."""

import asyncio
import sys
import time
from contextlib import AbstractAsyncContextManager
from typing import Any

import aiolock
from tests.support import loops
from tests.support.procs import commands, say


def entrance(
    client: aiolock.LockClient, kind: str = "lock", permits: int = 0, **options: Any
) -> AbstractAsyncContextManager[aiolock.Lease | aiolock.Term]:
    """What there is to enter: the lock, as a reader or a writer, permits of 3, or leadership."""
    if kind in {"read", "write"}:
        rates = client.rwlock("lock", **options)
        return rates.read() if kind == "read" else rates.write()
    if permits:
        return client.semaphore("lock", 3, **options).acquire(permits)
    if kind == "lead":
        return client.election("lock", **options).campaign(client.id)
    return client.lock("lock", **options)


async def meet(client: aiolock.LockClient, who: str, kind: str, **options: Any) -> None:
    """Wait for two others at a barrier, or for a latch that one opens."""
    if kind == "barrier":
        await client.barrier("lock", 3, **options).wait()
    else:
        await client.latch("lock", 1, **options).wait()
    say(f"passed {who}")


async def hold(client: aiolock.LockClient, leave: asyncio.Event, who: str, **options: Any) -> None:
    """Enter a body, and stay in it until told to leave."""
    try:
        async with entrance(client, **options) as lease:
            say(f"entered {who}", fence=lease.fence)
            try:
                await leave.wait()
            except asyncio.CancelledError:
                say(f"cancelled {who}")
                raise
        say(f"left {who}")
    except aiolock.LockError as error:
        say(f"failed {who}", error=type(error).__name__)


async def main(url: str, prefix: str) -> None:
    """Do what the test says until it closes the pipe."""
    leave: dict[str, asyncio.Event] = {}
    target = url.split(",") if ",redis://" in url else url
    async with aiolock.connect(target, prefix=prefix) as client, asyncio.TaskGroup() as tasks:
        say("ready", client=client.id)
        async for command in commands():
            match command:
                case {"do": "lock", "who": who, **options}:
                    leave[who] = asyncio.Event()
                    tasks.create_task(hold(client, leave[who], who, **options))
                case {"do": "meet", "who": who, "kind": kind, **options}:
                    tasks.create_task(meet(client, who, kind, **options))
                case {"do": "unlock", "who": who}:
                    leave[who].set()
                case {"do": "block", "seconds": seconds}:
                    time.sleep(seconds)
                case _:
                    raise ValueError(command)


if __name__ == "__main__":
    loops.run(main(*sys.argv[1:]))
