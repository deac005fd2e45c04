"""`Adoption`: the adoption of a detached lease, awaited or entered by its caller."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Coroutine, Generator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from aiolock._engine.adopting import adopt
from aiolock._engine.diagnostics.deadlock import remember
from aiolock._engine.lease import Lease, LeaseWithoutBody
from aiolock._engine.policy import Policy
from aiolock._engine.scope import Scope, body_of
from aiolock._locks.acquire_context import watch
from aiolock._locks.async_only import AsyncOnly
from aiolock._locks.finishing import finish_body
from aiolock.copying import Uncopyable
from aiolock.errors import NotHeld
from aiolock.lease_token import LeaseToken

if TYPE_CHECKING:
    from aiolock._engine.engine import Engine


class Adoption(
    Uncopyable, Awaitable[Lease], AsyncOnly, instead="it is one attempt; call adopt() again"
):
    """One adoption that has not begun yet: await it, or enter it with ``async with``.

    Either way it gives a `Lease`, or raises `TokenSpent`; entered, it also cancels the body when
    the lease is lost, and releases it at the end. It can be used once, in one of the two ways. The
    task that called `LockClient.adopt` owns the lease.
    """

    __slots__ = ("_begun", "_engine", "_label", "_owner", "_policy", "_scope", "_token", "_where")

    def __init__(
        self, engine: Engine, token: LeaseToken, policy: Policy, label: str, where: str
    ) -> None:
        """``where``: the line that called `adopt`, for the warning that its lease was dropped."""
        self._begun = True  # until it is complete, for `__del__`
        engine.check()
        self._engine = engine
        self._token = token
        self._policy = policy
        self._label = label
        self._where = where
        self._owner = engine.watchdog.current_task()
        self._scope: Scope | None = None
        remember(self._owner)
        self._begun = False

    def __repr__(self) -> str:
        return f"<Adoption of {self._token!r}>"

    def _begin(self) -> None:
        if self._begun:
            raise RuntimeError("this adoption was begun already: call adopt() again")
        self._begun = True

    def __await__(self) -> Generator[Any, None, Lease]:
        self._begin()
        return self._adopt(LeaseWithoutBody).__await__()

    def _adopt(self, lease_type: type[Lease]) -> Coroutine[Any, Any, Lease]:
        entered = lease_type is Lease
        return adopt(
            *(self._engine, self._token, self._policy),
            self._enters if entered else partial(watch, self._where),
            owner=self._owner,
            label=self._label,
            lease_type=lease_type,
        )

    def _enters(self, lease: Lease) -> None:
        task = lease._watchdog.current_task()
        self._scope = body_of(lease, task, cancels=lease._hold.policy.cancels)

    async def __aenter__(self) -> Lease:
        self._begin()
        return await self._adopt(Lease)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        scope, self._scope = self._scope, None
        if scope is None:
            raise NotHeld(f"the caller has not entered {self!r}, or has left it already")
        if self._policy.once:
            await finish_body(scope, scope.lease, error, self._policy.remember)
        else:
            await scope.close(error)

    def __del__(self) -> None:
        if not self._begun:
            warnings.warn(
                f"{self!r} was never awaited, so nothing was adopted",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )
