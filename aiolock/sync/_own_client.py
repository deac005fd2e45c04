"""A lock with a client of its own, for threads."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Unpack

import aiolock
from aiolock.options import LockOptions
from aiolock.signatures import spelled_out
from aiolock.sync._client import LockClient, connect
from aiolock.sync._lease import Lease
from aiolock.validation import store_url


@spelled_out(aiolock.LockClient.lock, LockOptions)
def lock(
    name: str, *, url: str | None = None, prefix: str = "aiolock", **options: Unpack[LockOptions]
) -> AbstractContextManager[Lease]:
    """One lock for one body, for a script: as `aiolock.lock`, with the errors of ``with lock``."""
    describe = partial(connect, store_url(url), prefix=prefix)
    describe().lock(name, **options)  # what is wrong is an error of this call
    return _taken(describe, name, options)


@contextmanager
def _taken(
    describe: Callable[[], LockClient], name: str, options: LockOptions
) -> Generator[Lease, None, None]:
    with describe() as client, client.lock(name, **options) as lease:
        yield lease
