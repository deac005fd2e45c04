"""Fixtures for programs that use aiolock; pytest finds them by itself once aiolock is installed.

No aiolock module is imported before a test requests a fixture. Each test gets its own fixtures.
No fixture is async: they work the same under pytest-asyncio and anyio, and in tests that are not
async, such as those of an application started by a test client.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import aiolock
    from aiolock.testing import FaultyStore
    from pytest_aiolock._world import Clock as Clock
    from pytest_aiolock._world import Others as Others
    from pytest_aiolock._world import Server as Server

__all__ = ["Clock", "Others", "Server"]


def __getattr__(name: str) -> object:
    """The types of the fixtures, for annotations in tests."""
    if name in __all__:
        from pytest_aiolock import _world

        return getattr(_world, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def pytest_configure() -> None:
    """Turn metrics and traces off that are otherwise on by themselves, here and in child processes.

    A test of them sets the variable: ``monkeypatch.setenv("AIOLOCK_OBSERVE", "auto")``.
    """
    os.environ.setdefault("AIOLOCK_OBSERVE", "off")


@pytest.fixture
def aiolock_clock() -> Clock:
    """The server's clock, which the test moves: ``aiolock_clock.advance(31)`` ends leases."""
    from pytest_aiolock._world import Clock

    return Clock()


@pytest.fixture
def aiolock_server(aiolock_clock: Clock) -> Iterator[Server]:
    """A lock store in memory, for ``aiolock.connect(aiolock_server)``.

    Its clients may be in several event loops and threads, like those of an application started by
    a test client. The test fails if a lock is held or waited for at its end, or if a lease was
    dropped without a release.
    """
    from aiolock.testing import dropped_leases
    from pytest_aiolock._world import Server

    with dropped_leases() as dropped:
        server = Server(aiolock_clock)
        yield server
        server.check_nothing_held(dropped)


@pytest.fixture
def aiolock_faults(aiolock_server: Server) -> FaultyStore:
    """The faults between `aiolock_client` and its server: an `aiolock.testing.FaultyStore`."""
    from pytest_aiolock._world import faulty

    return faulty(aiolock_server)


@pytest.fixture
def aiolock_client(aiolock_faults: FaultyStore) -> Iterator[aiolock.LockClient]:
    """A client of `aiolock_server`, open in the event loop of the test that uses it."""
    from pytest_aiolock._world import client_of, closed

    client = client_of(aiolock_faults)
    yield client
    closed(client)  # releases nothing, so that the server's check finds what was left held


@pytest.fixture
def aiolock_others(aiolock_server: Server) -> Iterator[Others]:
    """A client of another process that makes locks busy: ``aiolock_others.hold("a")``."""
    from pytest_aiolock._world import Others

    others = Others(aiolock_server)
    yield others
    others.release_all()
