"""Real Sentinels and processes: how long a fail-over takes, and what it breaks and does not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack

import pytest

from tests.support.contests import contest, tell
from tests.support.sentinels import Watched
from tests.support.servers import RedisServer

SLACK = 3.0
"""Seconds for which a busy machine may keep any of these processes waiting, Sentinels included."""


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    """Servers and Sentinels of the test's own."""
    with ExitStack() as stack:
        watched = Watched(stack)
        await watched.ready()
        yield watched


async def left(server: RedisServer) -> float:
    """When nobody sends commands to this server any more."""
    async with asyncio.timeout(30):
        while "cmd=eval" in server.call("CLIENT", "LIST"):  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0.01)
    return time.monotonic()


@pytest.mark.parametrize("hung", [False, True], ids=["", "and_first_sentinel_hangs"])
async def test_handoffs_go_on_once_sentinel_has_replaced_a_killed_master(
    watched: Watched, prefix: str, *, hung: bool
) -> None:
    """Hand-offs go on as soon as Sentinel has another master, whatever one Sentinel does."""
    async with contest(watched.url, prefix) as going:
        if hung:
            watched.sentinels[0].pause()
        began = time.monotonic()
        watched.master.kill()
        known = await watched.replaced()
        await going.goes_on()
        resumed = going.resumed(began)
        tell(going, began, "Sentinel", known - began, "after that", resumed - known)
        going.check(since=began, until=resumed)
        assert resumed - known < 0.3 + SLACK


async def test_failover_by_hand_is_followed_by_all_clients_within_seconds(
    watched: Watched, prefix: str
) -> None:
    """Of a fail-over by hand little is forgotten: all leave the old master, which lives on."""
    async with contest(watched.url, prefix) as going:
        began = time.monotonic()
        await watched.fail_over()
        await watched.promoted()
        promoted = time.monotonic()
        gone = await left(watched.master)
        await going.goes_on()
        tell(going, began, "promoted", promoted - began, "forgotten", gone - promoted)
        # A claim of what was granted on the old master may be longer than a body.
        going.check(since=promoted - SLACK, until=gone + SLACK)
        assert gone - promoted < 1.0 + SLACK  # ten seconds if nobody told us
