"""The application of a page, and its store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import aiolock
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore


@pytest.fixture
def store() -> FaultyStore:
    """The link of the page's client to its store."""
    return FaultyStore(MemoryStore(MemoryServer()))


@pytest.fixture
async def client(store: FaultyStore) -> AsyncIterator[aiolock.LockClient]:
    """The client of the application, which is open."""
    async with aiolock.connect(store) as client:
        yield client
