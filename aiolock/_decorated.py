"""Functions each call of which enters something first: by `LockClient.locked`, `rate_limited`."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, ParamSpec, TypeVar

from aiolock.naming import checked_result, describe_each, describer

P = ParamSpec("P")
R = TypeVar("R")


def locked(
    describe: Callable[..., AbstractAsyncContextManager[object]],
    name: str,
    share: str | None,
    decorator: str = "locked",
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """The decorator; ``describe`` gives the lock of a name, and of a ``share`` if there is one."""
    describe = describe_each(describe, name)

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        lock_of = describer(describe, name, function, decorator, share=share)

        @functools.wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> R:
            async with lock_of(*args, **kwargs):
                return checked_result(await function(*args, **kwargs), function)

        return call

    return decorate
