"""The clients by ``settings.AIOLOCK``: one for each event loop, and one for the threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

import aiolock.sync
from aiolock import LockClient, connect
from aiolock.sync.transactions import refuse_in_transaction

SETTING: Final = "AIOLOCK"

# Weak references would not help: a client refers to its loop.
by_loop: Final = dict[asyncio.AbstractEventLoop, LockClient]()
by_process: Final = dict[int, aiolock.sync.LockClient]()
"""A fork has a client of its own: that of its parent is of no use to it."""


def setting(name: str) -> dict[str, Any] | None:
    """A setting that is a mapping; None if it is missing, or something else."""
    given: Any = getattr(settings, name, None)
    return {**given} if isinstance(given, Mapping) else None


def options() -> dict[str, Any]:
    """The arguments of `connect` by the settings; `ImproperlyConfigured` without a target."""
    given = setting(SETTING)
    if given is None or "target" not in given:
        raise ImproperlyConfigured(f'settings.{SETTING} must be {{"target": URL, ...}}')
    return given


async def client() -> LockClient:
    """The client of the running event loop, for asynchronous code; opened by the first call.

    `StoreError` when the store cannot be used. `RuntimeError` within a transaction, as of a
    middleware, or of a view that uses `async_to_sync`: it would be committed without the lock (see
    `ignore_transactions`). It is closed by `with_locks`, or by `close`.
    """
    # In the thread in which the `sync_to_async` of this request runs.
    await sync_to_async(refuse_in_transaction)("client()")
    return await open_client()


async def open_client() -> LockClient:
    """`client`, also within a transaction."""
    loop = asyncio.get_running_loop()
    found = by_loop.get(loop)
    if found is None:
        given = options()
        for other in [other for other in list(by_loop) if other.is_closed()]:
            by_loop.pop(other, None)  # a client of a closed loop cannot be used or closed
        found = by_loop[loop] = connect(given.pop("target"), **given)
    await found.open()
    return found


async def close() -> None:
    """Close the client of the running event loop, if any; the next `client` opens it again."""
    found = by_loop.pop(asyncio.get_running_loop(), None)
    if found is not None:
        await found.aclose()


def sync_client() -> aiolock.sync.LockClient:
    """The client of this process, for synchronous code: views, signals, commands, tasks.

    No I/O: it opens when it is first used, also after a fork of the process, and closes when the
    interpreter ends. All threads share it.
    """
    found = by_process.get(os.getpid())
    if found is None:
        given = options()
        made = aiolock.sync.connect(given.pop("target"), **given)
        found = by_process.setdefault(os.getpid(), made)  # another thread may have been quicker
    return found


def _forget(*, setting: str, **_: object) -> None:
    """Close the client of other settings, as of a test's `override_settings`."""
    if setting == SETTING and (found := by_process.pop(os.getpid(), None)) is not None:
        closing = threading.Thread(target=found.close)  # this one may run an event loop
        closing.start()
        closing.join()


setting_changed.connect(_forget)
