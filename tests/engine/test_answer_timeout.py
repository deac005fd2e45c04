"""How long a call lasts whose server hangs: each has a bound."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import aiolock

SHORT = 0.3


@pytest.fixture(params=["redis", "cluster", "postgres", "mariadb", "sqlite"])
def hanging(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Any]:
    """The URL of a store, and how to have it hang for the length of a body."""
    server: Any
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/locks.db", lambda: locked(tmp_path / "locks.db")
        case "redis":
            server = request.getfixturevalue("redis_server")
            return server.url, lambda: paused(server)
        case "cluster":
            server = request.getfixturevalue("lone_node")
            return f"redis+cluster://127.0.0.1:{server.port}", lambda: paused(server)
        case name:
            server = request.getfixturevalue(f"{name}_server")
            return server.url("app"), server.stopped


@contextlib.contextmanager
def paused(server: Any) -> Iterator[None]:
    """The server stands still."""
    server.pause()
    try:
        yield
    finally:
        server.resume()


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another program keeps the file locked."""
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@pytest.mark.one_loop
async def test_acquire_without_waiting_on_a_hanging_server_fails_at_answer_timeout(
    hanging: tuple[str, Any], prefix: str
) -> None:
    """A `StoreError`, long before any other call would give up; then nothing is held."""
    url, hang = hanging
    async with aiolock.connect(url, prefix=prefix, answer_timeout=SHORT) as client:
        with hang():
            tries = [
                client.lock("a").try_acquire(),
                client.lock("b").acquire(timeout=0),
                client.semaphore("c", 2).try_acquire(),
            ]
            async with asyncio.timeout(3):
                errors = await asyncio.gather(*tries, return_exceptions=True)
            assert all(isinstance(error, aiolock.StoreError) for error in errors)
            assert all("answer_timeout of 0.3 s" in str(error) for error in errors)
        for lock in (client.lock("a"), client.lock("b"), client.semaphore("c", 2)):
            async with lock.acquire(timeout=20):
                pass


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        (0, ValueError, "answer_timeout must be from 0.01 to .* seconds, not 0"),
        (None, TypeError, "answer_timeout must be a number of seconds"),
    ],
)
def test_answer_timeout_of_zero_or_none_is_refused(
    given: Any, error: type[Exception], match: str
) -> None:
    """There is always a bound."""
    with pytest.raises(error, match=match):
        aiolock.connect("memory://", answer_timeout=given)
