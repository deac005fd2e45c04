"""One primary, and others that stand by: when it ends or is killed, the next one takes over.

    AIOLOCK_URL=redis://localhost python examples/primary.py 10.0.0.7:8000     # and on other hosts

Every instance knows the primary. After SIGTERM or Ctrl-C a primary resigns, and the next leads at
once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from redis.asyncio import Redis

import aiolock

URL = os.environ.get("AIOLOCK_URL", "redis://localhost")
TTL = float(os.environ.get("TTL_SECONDS", "10"))  # after which a primary that was killed is missed

# Refuses a primary that was stopped, was replaced by another, and has just woken up.
WRITE = """
    if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) then
        return 0
    end
    redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'primary', ARGV[2])
    return 1
"""


async def take_part(
    me: str, redis: Redis, election: aiolock.Election, stopping: asyncio.Event
) -> None:
    """Stand by, lead, and stand by again if the term ends, until told to stop."""
    write = redis.register_script(WRITE)
    while not stopping.is_set():
        try:
            async with election.campaign(me) as term:  # its body is cancelled when that is lost
                print(f"{me} leads", flush=True)
                accepted = True
                # Not by cancellation alone: on Python 3.11 redis-py may swallow one.
                while accepted and not stopping.is_set():  # what only one may do
                    accepted = await write(keys=["work"], args=[term.fence, me])
                    await asyncio.sleep(0.1)
        except aiolock.LockError as error:
            print(f"{me} does not lead: {error}", flush=True)
            await asyncio.sleep(1)


async def follow(me: str, election: aiolock.Election) -> None:
    """Print the leader whenever it changes; for ever."""
    while True:
        try:
            async for leader in election.observe():
                print(f"{me} follows {leader.value}", flush=True)
        except aiolock.StoreError:
            await asyncio.sleep(1)


async def main(me: str) -> None:
    """Take part until we are told to stop."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with Redis.from_url(URL, decode_responses=True) as redis, aiolock.connect(redis) as locks:
        election = locks.election("primary", ttl=TTL)
        following = asyncio.create_task(follow(me, election))
        taking_part = asyncio.create_task(take_part(me, redis, election, stopping))
        await stopping.wait()
        following.cancel()
        taking_part.cancel()  # safe anywhere; a leader has resigned when the client is closed
        await asyncio.wait([following, taking_part])


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
