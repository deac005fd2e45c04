"""The integrations of web frameworks: each does the same, in a real server."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import quote

import httpx
import pytest

import aiolock
from aiolock.integrations._asgi import KEPT
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.failures import queued, until
from tests.support.webapps.bodies import Bodies
from tests.support.webapps.looks import LOOKING, Looks
from tests.support.webapps.servers import SERVERS, served

WITHIN = 30.0


@pytest.fixture(params=SERVERS)
def framework(request: pytest.FixtureRequest) -> str:
    """Each of them."""
    return str(request.param)


@pytest.fixture
def memory() -> MemoryServer:
    """Where the application and the test have their locks."""
    return MemoryServer()


@pytest.fixture
async def others(memory: MemoryServer) -> AsyncGenerator[aiolock.LockClient]:
    """Somebody else."""
    async with aiolock.connect(memory) as client:
        yield client
        assert await client.snapshot() == []


@asynccontextmanager
async def http(url: str) -> AsyncGenerator[httpx.AsyncClient]:
    """A client of the application."""
    async with httpx.AsyncClient(base_url=url, timeout=WITHIN) as client:
        yield client


def told(reply: httpx.Response, status: int, code: str, retry_after: str | None) -> None:
    """See that this is the answer, and that it says nothing of ours."""
    assert reply.status_code == status, reply.text
    assert reply.headers["Content-Type"].partition(";")[0] == "application/problem+json"
    assert reply.headers["Cache-Control"] == "no-store"
    assert reply.headers.get("Retry-After") == retry_after
    problem = reply.json()
    assert problem["status"] == status
    assert problem["code"] == code
    assert problem.keys() == {"title", "status", "detail", "code"}
    assert "order:" not in reply.text


async def test_locked_requests_at_once_are_served_one_after_the_other(
    framework: str, memory: MemoryServer, others: aiolock.LockClient
) -> None:
    """Requests that come together are served one after the other, each with its own lease."""
    bodies = Bodies(aiolock.connect(memory))
    bodies.go.set()
    async with served(framework, bodies) as url, http(url) as client:
        async with others.lock("order:42"):
            asked = [asyncio.create_task(client.post("/orders/42")) for _ in range(10)]
            await queued(others.lock("order:42"), 10)
        replies = [reply.json() for reply in await asyncio.gather(*asked)]
        assert {reply["name"] for reply in replies} == {"order:42"}
        assert len({reply["fence"] for reply in replies}) == 10
        assert (await client.post("/search?q=a+b")).json()["name"] == "search:a b"
        assert not await others.snapshot()


async def test_locked_name_is_the_decoded_path_parameter(
    framework: str, memory: MemoryServer, others: aiolock.LockClient
) -> None:
    """A lock is called what stands in the path, whatever that is."""
    bodies = Bodies(aiolock.connect(memory))
    bodies.go.set()
    async with served(framework, bodies) as url, http(url) as client:
        for order in ("ä", "a b", "{x}", "a:b", "%", "…\U0001f600", "a'\"\\", "\x07", "%(x)s"):
            if framework == "aiohttp" and "{" in order:
                continue  # it matches none
            reply = await client.post(f"/orders/{quote(order)}")
            assert reply.status_code == 200, f"{order!r}: {reply.text}"
            assert reply.json()["name"] == f"order:{order}"


async def test_locked_request_that_is_refused_its_lock_is_answered_with_the_reason(
    framework: str, memory: MemoryServer, others: aiolock.LockClient
) -> None:
    """Who does not get the lock is told why, and when to come again."""
    bodies = Bodies(aiolock.connect(memory), patience=0.2)
    async with served(framework, bodies) as url, http(url) as client:
        async with others.lock("order:42"):
            told(await client.post("/orders/42"), 423, "lock_busy", "1")
            told(await client.post("/now/42"), 409, "lock_busy", "1")
            async with aiolock.connect(memory) as third:
                waiting = asyncio.create_task(third.lock("order:42").acquire())
                await queued(others.lock("order:42"), 1)
                told(await client.post("/few/42"), 429, "lock_queue_full", "1")
                waiting.cancel()
                await asyncio.wait([waiting])
        reply = await client.post("/search")
        assert reply.status_code == (422 if framework == "fastapi" else 400)
        told(await client.post(f"/orders/{'x' * 600}"), 400, "bad_lock_name", None)
        assert not bodies.entered


async def test_locked_request_of_a_program_error_answers_500(
    framework: str, memory: MemoryServer, others: aiolock.LockClient
) -> None:
    """What the program does wrong is not excused."""
    bodies = Bodies(aiolock.connect(memory))
    async with served(framework, bodies) as url, http(url) as client:
        assert (await client.post("/twice/42")).status_code == 500


async def test_locked_handler_whose_lock_is_lost_is_cancelled_and_answers_503(
    framework: str, memory: MemoryServer, others: aiolock.LockClient
) -> None:
    """A handler whose lock is lost is cancelled, and its client is told to look."""
    bodies = Bodies(aiolock.connect(memory))
    async with served(framework, bodies) as url, http(url) as client:
        asked = asyncio.create_task(client.post("/orders/42"))
        await until(lambda: bodies.entered)
        assert await others.lock("order:42").break_()
        told(await asked, 503, "lock_lost", "5")
        assert bodies.left == 1


async def test_locked_request_waiting_at_aclose_answers_shutting_down(
    framework: str, memory: MemoryServer, others: aiolock.LockClient
) -> None:
    """Who waits when the client is closed may try elsewhere."""
    bodies = Bodies(aiolock.connect(memory))
    async with (
        served(framework, bodies) as url,
        http(url) as client,
        others.lock("order:42") as lease,
    ):
        asked = asyncio.create_task(client.post("/orders/42"))
        await queued(others.lock("order:42"), 1)
        await bodies.client.aclose()
        told(await asked, 503, "shutting_down", "1")
        assert lease.state is aiolock.LeaseState.HELD


async def test_locked_request_while_the_store_fails_answers_lock_store(framework: str) -> None:
    """Where nobody knows who has it, nothing is done."""
    store = FaultyStore(MemoryStore(MemoryServer()))
    bodies = Bodies(aiolock.connect(store))
    async with served(framework, bodies) as url, http(url) as client:
        store.refuse("acquire")
        told(await client.post("/orders/42"), 503, "lock_store", "5")
        bodies.go.set()
        assert (await client.post("/orders/42")).status_code == 200


async def test_locked_request_whose_client_disconnects_waiting_leaves_the_queue(
    framework: str, memory: MemoryServer, others: aiolock.LockClient
) -> None:
    """Its place in the queue is left at once, and its handler never begins."""
    bodies = Bodies(aiolock.connect(memory))
    async with served(framework, bodies) as url:
        async with others.lock("order:42"):
            port = int(url.rpartition(":")[2])
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST /orders/42 HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nwork")
            await queued(others.lock("order:42"), 1)
            writer.close()
            await writer.wait_closed()
            await queued(others.lock("order:42"), 0)
        assert not bodies.entered


async def test_locked_request_whose_client_disconnects_served_frees_the_lock(
    framework: str, memory: MemoryServer, others: aiolock.LockClient
) -> None:
    """Its handler ends, be it at its end or before, and the next has the lock."""
    bodies = Bodies(aiolock.connect(memory))
    async with served(framework, bodies) as url:
        port = int(url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /orders/42 HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n")
        await until(lambda: bodies.entered)
        writer.close()
        await writer.wait_closed()
        bodies.go.set()
        async with others.lock("order:42", timeout=WITHIN):
            assert bodies.left == 1


async def test_locked_request_that_waits_leaves_its_whole_body_to_the_handler(
    framework: str,
    memory: MemoryServer,
    others: aiolock.LockClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who looks whether the client is still there leaves the body to the handler, all of it."""
    if framework == "django":
        pytest.skip("Django's views begin when the body is there")
    looks = Looks(monkeypatch)
    bodies = Bodies(aiolock.connect(memory))
    bodies.go.set()
    async with served(framework, bodies) as url:
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with others.lock("order:42"):
            size = 300_000
            writer.write(
                b"POST /orders/42 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n" % size
            )
            writer.write(b"a" * 10)
            await queued(others.lock("order:42"), 1)
            for pieces in range(9):
                if framework in LOOKING and pieces <= KEPT // 10_000:
                    await until(lambda: looks.kept == 10 + pieces * 10_000)  # noqa: B023  # awaited
                writer.write(b"b" * 10_000)
            writer.write(b"c" * (size - 90_010))
        answer = await asyncio.wait_for(reader.read(), WITHIN)
        writer.close()
        await writer.wait_closed()
        body = json.loads(answer.partition(b"\r\n\r\n")[2])["body"]
        assert body == "a" * 10 + "b" * 90_000 + "c" * (size - 90_010)


# Django does not close the body of a request that the server interrupts.
@pytest.mark.filterwarnings("ignore:.*SpooledTemporaryFile:pytest.PytestUnraisableExceptionWarning")
async def test_shutdown_of_the_server_answers_shutting_down_and_leaves_nothing(
    framework: str, memory: MemoryServer, others: aiolock.LockClient
) -> None:
    """Requests that a server interrupts at its end get 503; of them nothing is left."""
    bodies = Bodies(aiolock.connect(memory))
    asked = list[asyncio.Task[httpx.Response]]()
    async with httpx.AsyncClient(timeout=WITHIN) as client, others.lock("order:42"):
        async with served(framework, bodies, grace=0.05) as url:
            asked += [
                asyncio.create_task(client.post(f"{url}/orders/{order}"))
                for order in (42, 42, 43, 43)
            ]
            await queued(others.lock("order:42"), 2)
            await until(lambda: bodies.entered)
            await queued(others.lock("order:43"), 1)
        replies = await asyncio.gather(*asked, return_exceptions=True)
        if framework == "aiohttp":  # which closes the connection of whom it interrupts
            broken = next(reply for reply in replies[2:] if isinstance(reply, Exception))
            assert isinstance(broken, httpx.RemoteProtocolError)
            replies.remove(broken)
        for reply in replies:
            assert isinstance(reply, httpx.Response)
            told(reply, 503, "shutting_down", "1")
        assert len(await others.snapshot()) == 1
    gc.collect()  # what is not closed is told of here, and not in another test
