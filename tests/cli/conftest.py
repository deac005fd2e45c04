"""The command line, and a program beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

import aiolock
from tests.support.commands import Cli, command_line
from tests.support.servers import RedisServer


@pytest.fixture
def cli(redis_server: RedisServer, prefix: str) -> Iterator[Cli]:
    """The command line, against the shared server."""
    with command_line(redis_server.url, prefix) as cli:
        yield cli


@pytest.fixture
async def client(redis_server: RedisServer, prefix: str) -> AsyncIterator[aiolock.LockClient]:
    """A program that uses the same locks."""
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        yield client
