"""Web applications that are told to end, in processes of their own, on a real Redis."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx
import pytest

import aiolock
from tests.support.failures import queued
from tests.support.procs import tied
from tests.support.servers import RedisServer, hold_port

WITHIN = 60.0


@asynccontextmanager
async def process(
    framework: str, server: RedisServer, prefix: str, *, grace: int
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str]]:
    """The application, once it answers."""
    with hold_port() as port:
        number = str(port.getsockname()[1])
        arguments = (
            "-m",
            "tests.support.webapps",
            framework,
            server.url,
            prefix,
            number,
            str(grace),
        )
        running = await asyncio.create_subprocess_exec(
            *tied(sys.executable, *arguments), stderr=asyncio.subprocess.DEVNULL
        )
        url = f"http://127.0.0.1:{number}"
        try:
            async with asyncio.timeout(WITHIN), httpx.AsyncClient() as client:
                while True:
                    try:
                        await client.get(url)
                        break
                    except httpx.TransportError:
                        assert running.returncode is None
                        await asyncio.sleep(0.02)
            yield running, url
        finally:
            if running.returncode is None:
                os.kill(running.pid, signal.SIGKILL)
            await running.wait()


# One for each way in which servers end: the others run under uvicorn, too.
@pytest.mark.parametrize("framework", ["fastapi", "aiohttp", "quart"])
async def test_sigterm_answers_503_to_waiters_and_leaves_nothing_in_redis(
    framework: str, redis_server: RedisServer, prefix: str
) -> None:
    """Who waits is told to come again, and of the process nothing is left in Redis."""
    async with (
        aiolock.connect(redis_server.url, prefix=prefix) as others,
        httpx.AsyncClient(timeout=WITHIN) as client,
        process(framework, redis_server, prefix, grace=1) as (running, url),
    ):
        holds = asyncio.create_task(client.post(f"{url}/orders/42"))
        async with asyncio.timeout(30):
            while not await others.lock("order:42").locked():  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.01)
        waits = [asyncio.create_task(client.post(f"{url}/orders/42")) for _ in range(3)]
        await queued(others.lock("order:42"), 3)
        running.terminate()
        for reply in await asyncio.gather(*waits):
            assert reply.status_code == 503
            assert reply.headers["Retry-After"] == "1"
            assert reply.json()["code"] == "shutting_down"
        await asyncio.wait([holds], timeout=WITHIN)
        # aiohttp closes the connection of a handler that does not end.
        assert holds.exception() if framework == "aiohttp" else holds.result().status_code == 503
        await asyncio.wait_for(running.wait(), WITHIN)
        assert await others.snapshot() == []
