"""The examples, run as a reader runs them: real processes, a real server, real HTTP."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

import aiolock
from tests.procs import Worker, tied
from tests.servers import RedisServer

EXAMPLES = Path(__file__).parent.parent / "examples"


@asynccontextmanager
async def shop() -> AsyncIterator[httpx.AsyncClient]:
    """Start the FastAPI example in a process of its own; give a client of it."""
    command = ("-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", "0", "--no-access-log")
    process = await asyncio.create_subprocess_exec(
        *tied(sys.executable, *command, "fastapi_app:app"), stderr=PIPE, start_new_session=True
    )
    assert process.stderr is not None
    said = b""
    try:
        while not (address := re.search(rb"running on (http://127\.0\.0\.1:\d+)", said)):
            line = await process.stderr.readline()
            assert line, f"uvicorn has ended: {said.decode()}"
            said += line
        async with httpx.AsyncClient(base_url=address[1].decode(), timeout=30) as client:
            yield client
        process.send_signal(signal.SIGINT)
        said += await process.stderr.read()
        assert b"Application shutdown complete" in said
        assert b"ERROR" not in said, said.decode()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def sell_out(item: str, shops: list[httpx.AsyncClient]) -> None:
    """Send more orders at once than there is stock, and see each sold item sold once."""
    assert (await shops[0].put(f"/items/{item}?stock=10")).status_code == 200
    orders = [shop.post(f"/items/{item}/sales") for shop in shops for _ in range(24 // len(shops))]
    replies = await asyncio.gather(*orders)
    assert Counter(reply.status_code for reply in replies) == {201: 10, 409: 14}
    left = [reply.json()["left"] for reply in replies if reply.status_code == 201]
    assert sorted(left) == list(range(10))
    for shop in shops:
        assert (await shop.get(f"/items/{item}")).json() == {"left": 0}


async def test_two_shops_never_oversell(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that sell from one stock on Redis sell exactly what there is."""
    monkeypatch.setenv("AIOLOCK_URL", redis_server.url)
    monkeypatch.setenv("SHOP_PATIENCE", "20")
    async with shop() as one, shop() as other:
        await sell_out(prefix, [one, other])


async def test_shop_without_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """With nothing set, locks and stock are in the memory of the process, and work the same."""
    monkeypatch.delenv("AIOLOCK_URL", raising=False)
    monkeypatch.setenv("SHOP_PATIENCE", "20")
    async with shop() as alone:
        await sell_out("apple", [alone])


async def test_shop_says_when_it_is_busy(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that did not get its turn in time is told so, and may try again."""
    monkeypatch.setenv("AIOLOCK_URL", redis_server.url)
    monkeypatch.setenv("SHOP_PATIENCE", "0.2")
    async with shop() as client, aiolock.connect(redis_server.url) as locks:
        assert (await client.put(f"/items/{prefix}?stock=1")).status_code == 200
        async with locks.lock(f"stock:{prefix}"):
            reply = await client.post(f"/items/{prefix}/sales")
        assert reply.status_code == 423
        assert reply.headers["Retry-After"] == "1"
        assert prefix in reply.json()["detail"]
        assert (await client.post(f"/items/{prefix}/sales")).status_code == 201


def worker() -> Worker:
    """Start the worker example in a process of its own."""
    return Worker(str(EXAMPLES / "worker.py"))


async def expect(worker: Worker, *lines: str) -> None:
    """Wait until the worker has said all this, and nothing in between."""
    for line in lines:
        assert (await worker.expect("print"))["text"].startswith(line)


async def end(*workers: Worker) -> None:
    """Ask the workers to end, and see that each does so in peace."""
    for worker in workers:
        os.kill(worker.pid, signal.SIGTERM)
    assert [await worker.wait() for worker in workers] == [0] * len(workers)


async def one_waits_for(lock: aiolock.Lock) -> None:
    """Wait until somebody stands in the lock's queue."""
    async with asyncio.timeout(10):
        while not (await lock.status()).waiters:  # noqa: ASYNC110  # a queue elsewhere sets no Event
            await asyncio.sleep(0.01)


async def test_users_are_set_up_once(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers that get every message three times set every user up once."""
    monkeypatch.setenv("AIOLOCK_URL", own_server.url)
    users = [f"user{number}" for number in range(8)]
    own_server.call("RPUSH", "signups", *users, *users, *users[1:])
    own_server.call("RPUSH", "taken", users[0])  # as a worker that was killed has left it
    async with worker() as one, worker() as other:
        async with asyncio.timeout(20):
            while own_server.call("EXISTS", "signups", "taken"):  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.02)
        await end(one, other)
    said = Counter(message["text"] for message in one.history + other.history)
    for user in users:
        assert said.pop(f"{user} is being set up") == 1
        assert said.pop(f"{user} is set up") == 1
        assert said.pop(f"{user} was set up before") >= 2
    assert not said


async def test_worker_finishes_what_it_has_begun(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is told to end while it waits for a lock still does that message."""
    monkeypatch.setenv("AIOLOCK_URL", own_server.url)
    async with worker() as busy, aiolock.connect(own_server.url) as locks:
        lock = locks.lock("user:ada")
        async with lock:
            own_server.call("RPUSH", "signups", "ada")
            await one_waits_for(lock)
            os.kill(busy.pid, signal.SIGTERM)
        await expect(busy, "ada is being set up", "ada is set up")
        assert await busy.wait() == 0
        assert await lock.status() == aiolock.Status("user:ada", (), ())
    assert own_server.call("EXISTS", "signups", "taken") == 0


async def test_worker_that_loses_its_lock_puts_the_message_back(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message whose lock was lost on the way is taken again."""
    monkeypatch.setenv("AIOLOCK_URL", own_server.url)
    monkeypatch.setenv("SIGNUP_SECONDS", "20")
    async with worker() as busy, aiolock.connect(own_server.url) as locks:
        own_server.call("RPUSH", "signups", "ada")
        await expect(busy, "ada is being set up")
        assert await locks.lock("user:ada").break_()
        await expect(busy, "ada is put back: the lock 'user:ada'", "ada is being set up")


async def test_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script takes its lock and says so."""
    monkeypatch.delenv("AIOLOCK_URL", raising=False)
    async with Worker(str(EXAMPLES / "script.py")) as script:
        said = await script.expect("print")
        assert re.fullmatch(r"we hold 'report', fence \d+", said["text"])
        assert await script.wait() == 0


async def test_periodic_job_goes_on_when_one_instance_is_killed(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three instances run it in turn, once in each period; two, when one of them was killed."""
    monkeypatch.setenv("AIOLOCK_URL", own_server.url)
    monkeypatch.setenv("EVERY_SECONDS", "0.25")
    monkeypatch.setenv("WORK_SECONDS", "0.02")

    def runs(worker: Worker) -> list[int]:
        """The periods that an instance has run."""
        texts = [message["text"] for message in worker.history if message["event"] == "print"]
        return [int(float(t.split()[0]) / 0.25) for t in texts if t.endswith("cleans up")]

    async def until(workers: list[Worker], count: int) -> None:
        async with asyncio.timeout(20):
            while min(map(len, map(runs, workers))) < count:  # noqa: ASYNC110  # in other processes
                await asyncio.sleep(0.02)

    def instance() -> Worker:
        return Worker(str(EXAMPLES / "periodic.py"))

    async with instance() as one, instance() as two, instance() as three:
        await until([one, two, three], 3)
        one.kill()
        await until([two, three], 6)
        await end(two, three)
    every = sorted(runs(one) + runs(two) + runs(three))
    assert len(set(every)) == len(every), "no period twice"
    assert abs(len(runs(two)) - len(runs(three))) <= 1, "in turn"
