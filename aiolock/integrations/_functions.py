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

_STARS: Final[dict[Any, str]] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}

Hold = Callable[[LockOf, dict[str, Any]], AbstractAsyncContextManager[Lease]]
"""Holds a lock, whose name has these values, for the request that is being served."""


class Locked(Generic[R]):
    """A handler, and the lock that it is called under.

    `ValueError` where a field of the name is no parameter of the handler.
    """

    def __init__(self, lock: LockOf, handler: Callable[..., Awaitable[R]]) -> None:
        check_async(handler)
        self.signature = inspect.signature(handler)
        # What `*args` and `**kwargs` gather is no value of which a name could be made.
        named = {p.name for p in self.signature.parameters.values() if p.kind not in _STARS}
        if missing := set(lock.fields) - (named - {LEASE}):
            shown = [_STARS.get(p.kind, "") + p.name for p in self.signature.parameters.values()]
            raise ValueError(
                f"{lock.template!r} needs {', '.join(sorted(missing))}, but the parameters of"
                f" {handler.__name__}() are {', '.join(shown) or 'none'}"
            )
        self._lock = lock
        self._handler = handler
        self._takes_lease = LEASE in named

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


def check_async(handler: Callable[..., object], decorator: str = "locked") -> None:
    """Raise `TypeError` for what is no async function: a loss could not end it."""
    if not inspect.iscoroutinefunction(handler):
        raise TypeError(f"{decorator}() decorates async functions, and {handler!r} is not one")


def check_parameters(handler: Callable[..., object], *given: str) -> None:
    """Raise `TypeError` for what cannot be called with these: no request would be served."""
    signature = inspect.signature(handler)
    try:
        signature.bind(*given)
    except TypeError as error:
        raise TypeError(
            f"{handler.__qualname__}{signature} cannot be called with {', '.join(given)}: {error}"
        ) from error


def checked_client(client: object) -> LockClient:
    """What an application is set up with."""
    if not isinstance(client, LockClient):
        raise TypeError(f"setup() takes what connect() gives, not {client!r}")
    return client
