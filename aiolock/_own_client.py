"""A lock with a client of its own, for scripts: `aiolock.lock`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Unpack

from aiolock._client import LockClient
from aiolock._connect import connect
from aiolock._engine.lease import Lease
from aiolock.options import LockOptions
from aiolock.signatures import spelled_out
from aiolock.validation import store_url


@spelled_out(LockClient.lock, LockOptions)
def lock(
    name: str, *, url: str | None = None, prefix: str = "aiolock", **options: Unpack[LockOptions]
) -> AbstractAsyncContextManager[Lease]:
    """One lock for one body, for a script: connects, takes the lock, and closes the connections.

    ::

        async with aiolock.lock("nightly", url="redis://localhost:6379/0", timeout=0) as lease:
            ...

    ``url`` and ``prefix`` are those of `connect`; without ``url``, the URL is in the environment
    variable ``AIOLOCK_URL``. The options, errors, cancellation and loss are those of
    `LockClient.lock` and of ``async with lock``. `StoreError` when the store cannot be used.
    Whatever happens, the client is closed at the end. A program that takes more than one lock makes
    a client with `connect`, which keeps its connections.

    Raises `ValueError` or `TypeError` for invalid arguments, before any I/O.
    """
    describe = partial(connect, store_url(url), prefix=prefix)
    describe().lock(name, **options)  # invalid arguments must raise here, not when it is entered
    return _taken(describe, name, options)


@asynccontextmanager
async def _taken(
    describe: Callable[[], LockClient], name: str, options: LockOptions
) -> AsyncGenerator[Lease, None]:
    # A client for each body, because the result may decorate a function that is called often, also
    # at the same time or in another event loop.
    async with describe() as client, client.lock(name, **options) as lease:
        yield lease
