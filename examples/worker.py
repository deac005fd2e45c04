"""A worker that sets new users up: each once, even if its message comes several times.

    AIOLOCK_URL=redis://localhost python examples/worker.py     # in as many terminals as you like
    redis-cli RPUSH signups ada

After SIGTERM or Ctrl-C it finishes the messages that it has taken, then ends.
"""

from __future__ import annotations

import asyncio
import os
import signal

from redis.asyncio import Redis

import aiolock

URL = os.environ.get("AIOLOCK_URL", "redis://localhost")
CONSUMERS = 4  # messages that one process works on at a time
WORK = float(os.environ.get("SIGNUP_SECONDS", "0.2"))

# Refuses a worker that was stopped, lost its lock, and woke up after another had done the work.
SAVE = """
    if tonumber(ARGV[1]) < tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) then
        return 0
    end
    redis.call('HSET', KEYS[1], 'fence', ARGV[1], 'subscription', ARGV[2])
    return 1
"""


def say(text: str) -> None:
    """Print it now, also into a pipe."""
    print(text, flush=True)


async def set_up(user: str, redis: Redis, locks: aiolock.LockClient) -> None:
    """Set one user up, unless that was done before."""
    async with locks.lock(f"user:{user}", ttl=10, timeout=30) as lease:
        if await redis.exists(f"user:{user}"):
            return say(f"{user} was set up before")
        say(f"{user} is being set up")
        await asyncio.sleep(WORK)  # a subscription, a home folder: slow, and must not be made twice
        save = redis.register_script(SAVE)
        if await save(keys=[f"user:{user}"], args=[lease.fence, f"{user}@example.org"]):
            return say(f"{user} is set up")
        return say(f"{user} was set up meanwhile")


async def consume(redis: Redis, locks: aiolock.LockClient, stopping: asyncio.Event) -> None:
    """Take one message after the other; one that fails goes back to the end of the queue."""
    while not stopping.is_set():
        message = await redis.blmove("signups", "taken", 1, "LEFT", "RIGHT")
        if message is None:
            continue  # a second has passed: look whether to stop
        user = str(message)
        try:
            await set_up(user, redis, locks)
        except aiolock.LockError as error:  # not our turn in time, lost, or nobody knows
            say(f"{user} is put back: {error}")
            await redis.rpush("signups", user)
        await redis.lrem("taken", 1, user)


async def main() -> None:
    """Consume until we are told to stop."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with (
        Redis.from_url(URL, decode_responses=True) as redis,
        aiolock.connect(redis) as locks,
        asyncio.TaskGroup() as tasks,
    ):
        # The messages of a killed worker. Some may be in work right now, in another process: then
        # they come twice, which does no harm.
        while await redis.lmove("taken", "signups", "LEFT", "RIGHT"):
            pass
        for _ in range(CONSUMERS):
            tasks.create_task(consume(redis, locks, stopping))


if __name__ == "__main__":
    asyncio.run(main())
