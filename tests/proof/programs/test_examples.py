"""The examples, run as a reader runs them: real processes, a real server, real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import psycopg
import pymysql
import pytest

import aiolock
from aiolock.stores import mysql
from aiolock.stores.postgres import create_schema
from tests.support.databases import MariaDBServer, PostgresServer
from tests.support.failures import queued
from tests.support.procs import Worker, tied
from tests.support.servers import RedisServer

EXAMPLES = Path(__file__).parents[3] / "examples"


@asynccontextmanager
async def shop(app: str = "fastapi_app:app") -> AsyncIterator[httpx.AsyncClient]:
    """Start a FastAPI example in a process of its own; give a client of it."""
    command = ("-m", "uvicorn", "--app-dir", str(EXAMPLES), "--port", "0", "--no-access-log")
    process = await asyncio.create_subprocess_exec(
        *tied(sys.executable, *command, app), stderr=PIPE, start_new_session=True
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


async def test_fastapi_example_in_two_processes_sells_exactly_the_stock(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that sell from one stock on Redis sell exactly what there is."""
    monkeypatch.setenv("AIOLOCK_URL", redis_server.url)
    monkeypatch.setenv("SHOP_PATIENCE", "20")
    async with shop() as one, shop() as other:
        await sell_out(prefix, [one, other])


async def test_fastapi_example_without_a_server_uses_memory_and_sells_the_stock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With nothing set, locks and stock are in the memory of the process, and work the same."""
    monkeypatch.delenv("AIOLOCK_URL", raising=False)
    monkeypatch.setenv("SHOP_PATIENCE", "20")
    async with shop() as alone:
        await sell_out("apple", [alone])
        assert (await alone.put("/items/apple?stock=-1")).status_code == 422
        assert (await alone.get("/items/apple")).json() == {"left": 0}


async def test_fastapi_example_whose_lock_is_held_answers_423_with_retry_after(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that did not get its turn in time is told so, and may try again."""
    monkeypatch.setenv("AIOLOCK_URL", redis_server.url)
    monkeypatch.setenv("SHOP_PATIENCE", "0.6")
    async with shop() as client, aiolock.connect(redis_server.url) as locks:
        assert (await client.put(f"/items/{prefix}?stock=1")).status_code == 200
        async with locks.lock(f"stock:{prefix}"):
            reply = await client.post(f"/items/{prefix}/sales")
        assert reply.status_code == 423
        assert reply.headers["Retry-After"] == "1"
        assert prefix not in reply.text  # what our locks are called is nobody's business
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
        await worker.ask_to_end()
    assert [await worker.wait() for worker in workers] == [0] * len(workers)


async def wait_for(lock: aiolock.Lock | aiolock.Barrier | aiolock.Latch, count: int = 1) -> None:
    """Wait until so many stand in its queue."""
    async with asyncio.timeout(10):
        while len((await lock.status()).waiters) < count:  # noqa: ASYNC110  # it sets no Event
            await asyncio.sleep(0.01)


def texts(*workers: Worker) -> list[str]:
    """All that they have printed so far."""
    return [message["text"] for worker in workers for message in worker.history]


async def until(came_true: Callable[[], bool]) -> None:
    """Wait until that is so; it is the doing of other processes."""
    async with asyncio.timeout(20):
        while not came_true():  # noqa: ASYNC110  # they set no Event
            await asyncio.sleep(0.01)


async def test_worker_example_sets_up_each_user_once_for_repeated_messages(
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


async def test_worker_example_that_loses_its_lock_puts_the_message_back(
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


async def test_periodic_example_goes_on_when_one_instance_is_killed(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three instances run it in turn, once in each period; two, when one of them was killed."""
    monkeypatch.setenv("AIOLOCK_URL", own_server.url)
    monkeypatch.setenv("EVERY_SECONDS", "0.25")
    monkeypatch.setenv("WORK_SECONDS", "0.02")

    def runs(worker: Worker) -> int:
        """How often an instance has run."""
        return sum(text.endswith("cleans up") for text in texts(worker))

    def each_has_run(*workers: Worker, times: int) -> Callable[[], bool]:
        return lambda: min(map(runs, workers)) >= times

    def instance() -> Worker:
        return Worker(str(EXAMPLES / "periodic.py"))

    began = time.time()
    async with instance() as one, instance() as two, instance() as three:
        await until(each_has_run(one, two, three, times=3))
        one.kill()
        before = runs(two), runs(three)
        await until(each_has_run(two, three, times=max(before) + 3))
        await end(two, three)
    periods = int(time.time() / 0.25) - int(began / 0.25) + 1
    assert runs(one) + runs(two) + runs(three) <= periods, "no period twice"


async def test_transfer_example_keeps_the_sum_without_deadlock(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes move money to and fro: nobody deadlocks, and no transfer gets lost."""
    monkeypatch.setenv("AIOLOCK_URL", own_server.url)
    monkeypatch.setenv("TRANSFERS", "60")
    path = str(EXAMPLES / "transfer.py")
    async with Worker(path) as one, Worker(path) as other:
        assert [await one.wait(within=20), await other.wait(within=20)] == [0, 0]
    expected = Counter(dict.fromkeys(("ada", "bob", "cyd", "dee"), 100))
    for text in texts(one, other):
        amount, _, source, _, target = text.split()
        expected[source] -= int(amount)
        expected[target] += int(amount)
    found = {name: int(own_server.call("HGET", f"account:{name}", "balance")) for name in expected}
    assert found == expected
    assert sum(found.values()) == 400
    assert len(texts(one, other)) == 120


@asynccontextmanager
async def packer() -> AsyncIterator[asyncio.StreamReader]:
    """Start the worker of the packing example in processes of its own; give what it prints."""
    command = ("-m", "taskiq", "worker", "--app-dir", str(EXAMPLES), "--workers", "1")
    process = await asyncio.create_subprocess_exec(
        *tied(sys.executable, *command, "--log-level", "WARNING", "packing:broker"),
        stdout=PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"\n"  # of `tied`
        yield process.stdout
        process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(process.wait(), 30)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def test_packing_example_packs_an_accepted_order_before_it_can_be_cancelled(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order is the worker's from the answer on, also while no worker runs yet."""
    monkeypatch.setenv("AIOLOCK_URL", own_server.url)
    monkeypatch.setenv("PACKING_SECONDS", "0.05")
    async with shop("packing:app") as web, aiolock.connect(own_server.url) as locks:
        assert (await web.post("/orders/42/packing")).status_code == 202
        (holder,) = (await locks.lock("order:42").status()).holders
        assert (holder.detached, holder.label) == (True, "for pack")
        cancelling = asyncio.create_task(web.delete("/orders/42"))
        await queued(locks.lock("order:42"), 1)
        async with packer() as printed:
            assert await printed.readline() == b"packing 42\n"
            assert await printed.readline() == b"packed 42\n"
            assert (await cancelling).status_code == 409
            assert (await web.post("/orders/42/packing")).status_code == 409
        assert (await web.delete("/orders/7")).status_code == 204


async def test_tenants_example_leaves_no_document_of_a_deleted_tenant(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes edit documents and delete tenants: each is deleted once, with all it has."""
    monkeypatch.setenv("AIOLOCK_URL", own_server.url)
    path = str(EXAMPLES / "tenants.py")
    async with Worker(path) as one, Worker(path) as other:
        assert [await one.wait(within=30), await other.wait(within=30)] == [0, 0]
    deleted = sorted(text.partition(" and ")[0] for text in texts(one, other))
    assert deleted == [f"deleted tenant {number}" for number in range(5)]
    assert own_server.call("KEYS", "doc:*") == []


def consumer() -> Worker:
    """Start the consumer example in a process of its own."""
    return Worker(str(EXAMPLES / "consumer.py"))


async def publish(server: RedisServer, user: str, *, to: int) -> None:
    """Tell so many consumers of a user, once they all listen."""
    await until(lambda: server.call("PUBSUB", "NUMSUB", "signups")[1] == to)
    server.call("PUBLISH", "signups", user)


async def test_consumer_example_sets_up_each_user_once_for_several_consumers(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three consumers that all get every message, twice, set every user up once."""
    monkeypatch.setenv("AIOLOCK_URL", own_server.url)
    monkeypatch.setenv("SIGNUP_SECONDS", "0.02")
    users = [f"user{number}" for number in range(5)]
    async with consumer() as one, consumer() as two, consumer() as three:
        for user in users + users:
            await publish(own_server, user, to=3)
        await until(lambda: len(texts(one, two, three)) == 5 * 7)
        await end(one, two, three)
    said = Counter(texts(one, two, three))
    for user in users:
        assert said.pop(f"{user} is being set up") == 1
        assert said.pop(f"{user} is set up") == 1
        assert said.pop(f"{user} is set up already") == 5
    assert not said


async def test_consumer_example_that_is_killed_leaves_its_user_to_the_next(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a consumer dies over a message, another that has it too does the work."""
    monkeypatch.setenv("AIOLOCK_URL", own_server.url)
    monkeypatch.setenv("TTL_SECONDS", "1")
    monkeypatch.setenv("SIGNUP_SECONDS", "60")
    async with consumer() as one:
        await publish(own_server, "ada", to=1)
        await expect(one, "ada is being set up")
        monkeypatch.setenv("SIGNUP_SECONDS", "0.02")
        async with consumer() as other:
            await publish(own_server, "ada", to=2)
            one.kill()
            await expect(other, "ada is being set up", "ada is set up")
            await publish(own_server, "ada", to=1)
            await expect(other, "ada is set up already")
            await end(other)


def cache(role: str) -> Worker:
    """Start the cache example in a process of its own."""
    return Worker(str(EXAMPLES / "cache.py"), role)


async def test_cache_example_readers_see_only_whole_editions(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever readers in two processes see is of one edition, while one after the other comes."""
    monkeypatch.setenv("AIOLOCK_URL", own_server.url)
    monkeypatch.setenv("EVERY_SECONDS", "0.02")
    monkeypatch.setenv("USE_SECONDS", "0.005")

    def seen(reader: Worker) -> set[str]:
        return {text.removeprefix("uses ") for text in texts(reader)}

    async with cache("refresh") as refresher, cache("read") as one, cache("read") as two:
        await until(lambda: min(len(seen(one)), len(seen(two))) >= 4)
    assert texts(refresher)[0] == "archives 1 1 1"
    for rates in seen(one) | seen(two):
        assert len(set(rates.split())) == 1


async def test_cache_example_readers_enter_beside_a_downgraded_writer(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the one that has written reads, all others read too, and nobody writes."""
    monkeypatch.setenv("AIOLOCK_URL", own_server.url)
    monkeypatch.setenv("USE_SECONDS", "60")
    async with cache("refresh") as refresher, aiolock.connect(own_server.url) as locks:
        await expect(refresher, "archives 1 1 1")
        async with cache("read") as reader:
            await until(lambda: len(texts(reader)) == 3)
            assert texts(reader) == ["uses 1 1 1"] * 3
            rates = locks.rwlock("rates")
            holders = (await rates.status()).holders
            assert {holder.pid for holder in holders} == {refresher.pid, reader.pid}
            assert all(holder.shared for holder in holders)
            assert await rates.write().try_acquire() is None


async def test_quota_example_in_two_processes_lets_the_tenants_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with many requests does not come before one with few, in whichever process."""
    monkeypatch.setenv("AIOLOCK_URL", f"sqlite:///{tmp_path}/locks.db")
    monkeypatch.setenv("REQUESTS_AT_A_TIME", "1")
    monkeypatch.setenv("USE_SECONDS", "0.3")
    path = str(EXAMPLES / "quota.py")
    async with Worker(path, "busy:8") as one:
        await expect(one, "busy asks")
        async with Worker(path, "quiet:2*3") as two:
            await until(lambda: len(texts(two)) == 2)
            assert set(texts(two)) == {"quiet asks"}
            assert len(texts(one)) < 8
            await until(lambda: len(texts(one)) == 8)


async def test_crawler_example_in_two_processes_shares_the_permits(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes never have more than three requests under way, and at times have three."""
    monkeypatch.setenv("AIOLOCK_URL", own_server.url)
    monkeypatch.setenv("REQUESTS_AT_A_TIME", "3")
    under_way, most = 0, 0
    three = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal under_way, most
        await reader.readuntil(b"\r\n\r\n")
        under_way += 1
        most = max(most, under_way)
        if most == 3:
            three.set()
        await three.wait()
        await asyncio.sleep(0.02)  # in which a fourth would come
        under_way -= 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        port = server.sockets[0].getsockname()[1]
        pages = [f"http://127.0.0.1:{port}/{number}" for number in range(16)]
        path = str(EXAMPLES / "crawler.py")
        async with Worker(path, *pages[:8]) as one, Worker(path, *pages[8:]) as other:
            assert [await one.wait(), await other.wait()] == [0, 0]
    assert sorted(texts(one, other)) == sorted(f"{page} 200 2 bytes" for page in pages)
    assert most == 3


async def test_batch_example_counts_after_all_loaded_and_reports_after_all_counted(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody counts shares before all parts are loaded, nor reports before all are counted."""
    monkeypatch.setenv("AIOLOCK_URL", own_server.url)

    def batch(role: str) -> Worker:
        return Worker(str(EXAMPLES / "batch.py"), "today", role)

    async with (
        aiolock.connect(own_server.url) as locks,
        batch("report") as reporter,
        batch("0") as one,
        batch("1") as two,
    ):
        barrier = locks.barrier("loaded:today", 3)
        latch = locks.latch("shares:today", 3)
        await wait_for(barrier, 2)
        await wait_for(latch)
        assert texts(one, two, reporter) == ["part 0 is loaded", "part 1 is loaded"]
        async with batch("2") as three:
            workers = one, two, three
            assert [await each.wait() for each in (*workers, reporter)] == [0] * 4
        assert await latch.missing() == 0
    assert {text.partition(", ")[2] for text in texts(*workers)} == {
        "",
        "2 are missing",
        "1 are missing",
        "0 are missing",
    }
    assert texts(reporter) == ["part 0 is 11.0 %", "part 1 is 33.3 %", "part 2 is 55.6 %"]


async def test_primary_example_follows_the_next_leader_after_kill_and_resignation(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All follow one primary; when it is killed, and when it resigns, they follow the next."""
    monkeypatch.setenv("AIOLOCK_URL", own_server.url)
    monkeypatch.setenv("TTL_SECONDS", "2")

    def instance(name: str) -> Worker:
        return Worker(str(EXAMPLES / "primary.py"), name)

    async def followed(name: str, *workers: Worker) -> None:
        await until(
            lambda: (
                sum(text.endswith(f" follows {name}") for text in texts(*workers)) == len(workers)
            )
        )

    async with instance("ann") as ann:
        await followed("ann", ann)
        async with instance("bob") as bob, instance("cyd") as cyd:
            await followed("ann", bob, cyd)
            ann.kill()
            await until(lambda: any(text.endswith(" leads") for text in texts(bob, cyd)))
            first, last = (bob, cyd) if "bob leads" in texts(bob) else (cyd, bob)
            await followed("bob" if first is bob else "cyd", bob, cyd)
            assert not any(text.endswith(" leads") for text in texts(last))
            await end(first)
            await followed("cyd" if first is bob else "bob", last)
            await end(last)
    said = Counter(texts(ann, bob, cyd))
    assert [said[f"{name} leads"] for name in ("ann", "bob", "cyd")] == [1, 1, 1]


async def test_shards_example_polls_each_tenant_after_a_kill_and_an_end(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers have a part each; the tenants of one that is killed, or ends, are the other's."""
    monkeypatch.setenv("AIOLOCK_URL", own_server.url)
    monkeypatch.setenv("TTL_SECONDS", "2")
    monkeypatch.setenv("TENANTS", "30")
    monkeypatch.setenv("SHARDS", "8")
    tenants = {f"tenant {number}" for number in range(30)}

    def polled(worker: Worker) -> set[str]:
        found = (re.fullmatch(r"\w polls (.*) with \d+", text) for text in texts(worker))
        return {each[1] for each in found if each is not None}

    def instance(name: str) -> Worker:
        return Worker(str(EXAMPLES / "shards.py"), name)

    async with instance("a") as a:
        await until(lambda: polled(a) == tenants)
        async with instance("b") as b:
            await until(lambda: bool(polled(b)))
            await asyncio.sleep(1)
            assert len(polled(b)) < 30
            a.kill()
            await until(lambda: polled(b) == tenants)
            async with instance("c") as c:
                await until(lambda: bool(polled(c)))
                await end(b)
                await until(lambda: polled(c) == tenants)
                await end(c)


@pytest.fixture
def shop_database(postgres_server: PostgresServer) -> Iterator[str]:
    """A database with the tables of a shop, and the locks beside them."""
    postgres_server.execute("CREATE DATABASE shop")
    url = postgres_server.url().removesuffix("/postgres") + "/shop"
    create_schema(url)
    yield url
    postgres_server.execute("DROP DATABASE shop WITH (FORCE)")


async def test_postgres_stock_example_with_a_stopped_shop_does_not_oversell(
    shop_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is sold once, though one shop is stopped while it pays, for longer than its lease."""
    monkeypatch.setenv("AIOLOCK_URL", shop_database)
    monkeypatch.setenv("TTL_SECONDS", "1")
    monkeypatch.setenv("PAYMENT_SECONDS", "0.2")

    def shop(*arguments: str) -> Worker:
        return Worker(str(EXAMPLES / "stock_in_postgres.py"), *arguments)

    async with shop("fill", "7") as filler:
        assert await filler.wait() == 0
    async with shop("sell") as one:
        await until(lambda: "is paying" in texts(one))
        one.stop()
        async with shop("sell") as two, shop("sell") as three:
            await until(lambda: "sold one, 6 are left" in [*texts(two), *texts(three)])
            one.cont()
            assert [await each.wait() for each in (one, two, three)] == [0] * 3
    assert any(text.startswith("has lost its turn") for text in texts(one))
    with contextlib.closing(psycopg.connect(shop_database)) as database:
        rows = database.execute("SELECT fence FROM sales").fetchall()
        stock = database.execute("SELECT amount FROM stock").fetchall()
    assert len({fence for (fence,) in rows}) == len(rows) == 7
    assert stock == [(0,)]


@pytest.fixture(params=["postgres", "mariadb"])
def jobs_database(request: pytest.FixtureRequest) -> Iterator[str]:
    """A database of the test's own, with the locks in it."""
    server: PostgresServer | MariaDBServer = request.getfixturevalue(f"{request.param}_server")
    server.execute("CREATE DATABASE jobs")
    url = f"{server.url().rpartition('/')[0]}/jobs"
    if isinstance(server, PostgresServer):
        create_schema(url)
    else:
        mysql.create_schema(url)
    yield url
    force = " WITH (FORCE)" if isinstance(server, PostgresServer) else ""
    server.execute(f"DROP DATABASE jobs{force}")


class Jobs:
    """What the instances of the job on a database have recorded there; used with ``with``."""

    def __init__(self, url: str) -> None:
        # One for all: the tests look every 10 ms, and to connect is most of the work of a look.
        self._connection = _connection(url)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def rows(self) -> list[tuple[Any, ...]]:
        """The whole table: period, host, pid, fence, started, finished."""
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT * FROM job_runs ORDER BY period")
            return list(cursor.fetchall())

    def finished(self, *workers: Worker) -> Callable[[], int]:
        """How often that one has finished which has done so least."""

        def least() -> int:
            done = Counter(row[2] for row in self.rows() if row[5])
            return min(done[worker.pid] for worker in workers)

        return least


def _connection(url: str) -> Any:
    if url.startswith("postgres"):
        return psycopg.connect(url, autocommit=True)
    where = httpx.URL(url)
    return pymysql.connect(
        host=where.host,
        port=where.port or 0,
        user=where.username,
        database="jobs",
        autocommit=True,
    )


def instance(command: str = "run") -> Worker:
    """Start the job on a database in a process of its own."""
    return Worker(str(EXAMPLES / "job_on_a_database.py"), command)


@pytest.fixture
async def jobs(jobs_database: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Jobs]:
    """The table, without any run."""
    monkeypatch.setenv("AIOLOCK_URL", jobs_database)
    monkeypatch.setenv("WORK_SECONDS", "0.02")
    async with instance("init") as init:
        assert await init.wait() == 0
    with Jobs(jobs_database) as jobs:
        yield jobs


def begun(*workers: Worker) -> list[int]:
    """The periods that they have begun, in order, as they say themselves."""
    found = [re.fullmatch(r"period (\d+) begins", text) for text in texts(*workers)]
    return sorted(int(match[1]) for match in found if match)


async def test_database_job_example_runs_once_in_each_period_and_in_turn(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three instances: no period is run twice, and all take their turns."""
    monkeypatch.setenv("EVERY_SECONDS", "1")
    async with instance() as one, instance() as two, instance() as three:
        every = one, two, three
        finished = jobs.finished(*every)
        # A machine that stands still may miss a period; and who is busy, its turn.
        await until(lambda: finished() >= 2)
        await end(*every)
    rows = jobs.rows()
    assert begun(*every) == [row[0] for row in rows], "each is recorded, and none is run twice"
    fences = [row[3] for row in rows]
    assert fences == sorted(set(fences))
    assert all(row[5] >= row[4] for row in rows), "whoever was asked to end has finished its run"


async def test_database_job_example_goes_on_when_an_instance_is_killed_in_its_run(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its period stays unfinished and is not run again; the others run those that follow."""
    monkeypatch.setenv("EVERY_SECONDS", "0.25")
    async with instance() as one, instance() as two:
        one_and_two = jobs.finished(one, two)
        await until(lambda: one_and_two() >= 1)
        monkeypatch.setenv("TTL_SECONDS", "2.5")
        monkeypatch.setenv("WORK_SECONDS", "60")
        async with instance() as three:
            await until(lambda: any(row[2] == three.pid for row in jobs.rows()))
            async with instance("status") as status:
                assert await status.wait() == 0
            three.kill()
            assert await three.wait() == -signal.SIGKILL
        seen = one_and_two()
        await until(lambda: one_and_two() > seen)
        await end(one, two)
    rows = jobs.rows()
    assert begun(one, two, three) == [row[0] for row in rows]
    assert {row[2] for row in rows if row[5] is None} == {three.pid}
    host, said = socket.gethostname(), texts(status)
    assert said[0].startswith(f"{host}:{three.pid} has run it since ")
    queue = {text.partition(" is number ")[0] for text in said[1:3]}
    assert queue == {f"{host}:{worker.pid}" for worker in (one, two)}
    assert re.search(rf"period \d+: {host}:{three.pid}, fence \d+, from .+ not finished", said[3])


class Rush:
    """Customers of the booking example in processes of their own, and what they were told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, url: str, file: Path) -> None:
        self._environment = monkeypatch
        self._file = file
        monkeypatch.setenv("AIOLOCK_URL", url)
        monkeypatch.setenv("BOOKINGS_FILE", str(file))
        monkeypatch.setenv("TTL_SECONDS", "30")
        monkeypatch.setenv("PAYMENT_SECONDS", "0.01")

    def of(self, customers: int, *, wait: float) -> Worker:
        """So many of them, in one process, who wait for so long."""
        self._environment.setenv("WAIT_SECONDS", str(wait))
        return Worker(str(EXAMPLES / "booking.py"), str(customers))

    def seats(self) -> list[tuple[int]]:
        """Those that are booked, in the order of the fences."""
        with contextlib.closing(sqlite3.connect(self._file)) as bookings:
            return bookings.execute("SELECT seat FROM bookings ORDER BY fence").fetchall()


def outcomes(*workers: Worker) -> Counter[str]:
    """How many customers were told what, without the numbers of customers and seats."""
    return Counter(re.sub(r"customer \d+ |\d+$", "", text) for text in texts(*workers))


GOT_IT, FULL = "has got seat ", "is sent away at once, the queue is full"


async def test_booking_example_times_out_books_in_turn_or_refuses_beyond_twenty(
    own_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In vain, who waits too briefly; in turn, the first twenty; at once, all who come then."""
    rush = Rush(monkeypatch, own_server.url, tmp_path / "bookings.db")
    async with aiolock.connect(own_server.url) as locks:
        show = locks.lock("show:hamlet")
        async with show, rush.of(2, wait=1) as hasty:
            assert await hasty.wait() == 0
            holder = f"{socket.gethostname()}:{os.getpid()}"
            assert re.fullmatch(
                rf"(customer \d has waited \d\.\d s in vain for {holder}\n?){{2}}",
                "\n".join(texts(hasty)),
            )
            async with contextlib.AsyncExitStack() as stack:
                patient = [await stack.enter_async_context(rush.of(5, wait=60)) for _ in range(4)]
                await wait_for(show, 20)
                late = await stack.enter_async_context(rush.of(3, wait=60))
                assert await late.wait() == 0
                assert outcomes(late) == {FULL: 3}
                assert not texts(*patient)
                await show.release()
                assert [await each.wait() for each in patient] == [0] * 4
    assert outcomes(*patient) == {GOT_IT: 20}
    assert rush.seats() == [(seat,) for seat in range(1, 21)]


async def test_booking_example_on_a_database_lets_twenty_wait(
    jobs_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 25 who come at the same time twenty wait, and five are sent away."""
    rush = Rush(monkeypatch, jobs_database, tmp_path / "bookings.db")
    async with (
        aiolock.connect(jobs_database) as locks,
        locks.lock("show:hamlet"),
        rush.of(25, wait=3) as customers,
    ):
        assert await customers.wait(within=20) == 0
    said = outcomes(customers)
    assert said.pop(FULL) == 5
    assert sum(said.values()) == 20
    assert all(re.match(r"has waited \d+\.\d s in vain for ", text) for text in said), said
    assert rush.seats() == []
