"""Handlers whose parameters are what the lock's name is made of."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, TypeVar

from aiolock import Lease, LockClient
from aiolock.integrations._names import LockOf

R = TypeVar("R")

LEASE: Final = "lease"
"""The parameter that gets the `Lease`, if a handler has it."""

Hold = Callable[[LockOf, dict[str, Any]], AbstractAsyncContextManager[Lease]]
"""Holds a lock, whose name has these values, for the request that is being served."""


class Locked(Generic[R]):
    """A handler, and the lock that it is called under.

    `ValueError` where a field of the name is no parameter of the handler.
    """

    def __init__(self, lock: LockOf, handler: Callable[..., Awaitable[R]]) -> None:
        if not inspect.iscoroutinefunction(handler):
            raise TypeError(f"locked() decorates async functions, and {handler!r} is not one")
        self.signature = inspect.signature(handler)
        parameters = self.signature.parameters.keys()
        if missing := set(lock.fields) - (parameters - {LEASE}):
            raise ValueError(
                f"{lock.template!r} needs {', '.join(sorted(missing))}, but the parameters of"
                f" {handler.__name__}() are {', '.join(parameters) or 'none'}"
            )
        self._lock = lock
        self._handler = handler
        self._takes_lease = LEASE in parameters

    async def call(self, hold: Hold, args: Sequence[Any], kwargs: dict[str, Any]) -> R:
        """Call it under its lock."""
        given = self.signature.bind_partial(*args, **kwargs)
        given.apply_defaults()
        values = {
            field: given.arguments[field]
            for field in self._lock.fields
            if given.arguments.get(field) is not None
        }
        async with hold(self._lock, values) as lease:
            if self._takes_lease:
                kwargs[LEASE] = lease
            return await self._handler(*args, **kwargs)


def checked_client(client: object) -> LockClient:
    """What an application is set up with."""
    if not isinstance(client, LockClient):
        raise TypeError(f"setup() takes what connect() gives, not {client!r}")
    return client
