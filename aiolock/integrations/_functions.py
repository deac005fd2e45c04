"""Handlers whose parameters are the fields of the lock's name."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, TypeVar

from aiolock import Lease, LockClient
from aiolock.integrations._names import LockOf

R = TypeVar("R")
L = TypeVar("L", bound=LockOf)

LEASE: Final = "lease"
"""The parameter that gets the `Lease`, if a handler has it."""

_STARS: Final[dict[Any, str]] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}

Hold = Callable[[L, dict[str, Any]], AbstractAsyncContextManager[Lease]]
"""A function that holds a lock, with these values for its name, for the current request."""


class Parameters:
    """The parameters of a handler, as far as its lock is concerned.

    `ValueError` for a field of the name that is not a parameter of the handler.
    """

    def __init__(
        self, lock: LockOf, handler: Callable[..., object], signature: inspect.Signature
    ) -> None:
        # The values gathered in `*args` and `**kwargs` cannot be fields of a name.
        named = {p.name for p in signature.parameters.values() if p.kind not in _STARS}
        if missing := set(lock.fields) - (named - {LEASE}):
            shown = [_STARS.get(p.kind, "") + p.name for p in signature.parameters.values()]
            raise ValueError(
                f"{lock.template!r} needs {', '.join(sorted(missing))}, but the parameters of"
                f" {handler.__name__}() are {', '.join(shown) or 'none'}"
            )
        self.signature = signature
        self.has_lease = LEASE in named
        self._fields = lock.fields

    def values(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The values of the fields in a call, as far as they are not None."""
        given = self.signature.bind_partial(*args, **kwargs)
        given.apply_defaults()
        found = {field: given.arguments.get(field) for field in self._fields}
        return {field: value for field, value in found.items() if value is not None}


class Locked(Generic[L, R]):
    """A handler, and the lock under which it is called; `ValueError` as of `Parameters`."""

    def __init__(self, lock: L, handler: Callable[..., Awaitable[R]]) -> None:
        check_async(handler)
        self.signature = inspect.signature(handler)
        self._parameters = Parameters(lock, handler, self.signature)
        self._lock = lock
        self._handler = handler

    async def call(self, hold: Hold[L], args: Sequence[Any], kwargs: dict[str, Any]) -> R:
        """Call it under its lock."""
        async with hold(self._lock, self._parameters.values(args, kwargs)) as lease:
            if self._parameters.has_lease:
                kwargs[LEASE] = lease
            return await self._handler(*args, **kwargs)


def check_async(handler: Callable[..., object], decorator: str = "locked") -> None:
    """Raise `TypeError` for a function that is not async: a loss could not end it."""
    if not inspect.iscoroutinefunction(handler):
        raise TypeError(
            f"{decorator}() decorates async functions, and {handler!r} is not one: declare it with"
            " `async def`; or, in one that runs in a thread, use `with locks.lock(...)` of"
            " `locks = aiolock.sync.connect(...)`"
        )


def check_parameters(
    handler: Callable[..., object], *given: str, follow_wrapped: bool = True
) -> None:
    """Raise `TypeError` if it cannot be called with these: every request would fail.

    Without ``follow_wrapped``, the signature of a decorated function is that of its wrapper.
    """
    signature = inspect.signature(handler, follow_wrapped=follow_wrapped)
    try:
        signature.bind(*given)
    except TypeError as error:
        raise TypeError(
            f"{handler.__qualname__}{signature} cannot be called with {', '.join(given)}: {error}"
        ) from error


def checked_client(client: object) -> LockClient:
    """The client that an application is set up with, if it is one."""
    if not isinstance(client, LockClient):
        raise TypeError(f"setup() takes what connect() gives, not {client!r}")
    return client
