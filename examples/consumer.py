"""One of several consumers that all hear of every new user: one of them sets the user up.

    AIOLOCK_URL=redis://localhost python examples/consumer.py     # in as many terminals as you like
    redis-cli PUBLISH signups ada

A finished set-up is remembered for a day, so the message may also come twice. If you kill the
consumer that is at work, the next one sets the user up. After SIGTERM or Ctrl-C a consumer finishes
its message, then ends.
"""

from __future__ import annotations

import asyncio
import os
import signal

from redis.asyncio import Redis

import aiolock

URL = os.environ.get("AIOLOCK_URL", "redis://localhost")
WORK = float(os.environ.get("SIGNUP_SECONDS", "0.2"))
TTL = float(os.environ.get("TTL_SECONDS", "10"))  # after which a consumer that died is noticed
DAY = 86400


def say(text: str) -> None:
    """Print it now, also into a pipe."""
    print(text, flush=True)


async def set_up(user: str, locks: aiolock.LockClient) -> None:
    """Set one user up, or wait for the consumer that does; if that one fails, it is our turn."""
    async with locks.once(f"set up {user}", remember=DAY, ttl=TTL) as lease:
        if lease is None:
            return say(f"{user} is set up already")
        say(f"{user} is being set up")
        await asyncio.sleep(WORK)  # a subscription, a home folder: slow, and must not be made twice
        return say(f"{user} is set up")


async def main() -> None:
    """Consume until we are told to stop."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with (
        Redis.from_url(URL, decode_responses=True) as redis,
        redis.pubsub(ignore_subscribe_messages=True) as inbox,
        aiolock.connect(redis) as locks,
    ):
        await inbox.subscribe("signups")
        while not stopping.is_set():
            message = await inbox.get_message(timeout=0.2)
            if message is not None:
                try:
                    await set_up(message["data"], locks)
                except aiolock.LockError as error:  # lost, or nobody knows: the others have it too
                    say(f"{message['data']} is left to the others: {error}")


if __name__ == "__main__":
    asyncio.run(main())
