"""An adapter, until each store takes operations itself."""

from __future__ import annotations

import asyncio
from typing import Any

from aiolock.protocol import (
    Acquire,
    Break,
    Downgrade,
    Finish,
    Operation,
    Post,
    ReadPage,
    ReadPosted,
    ReadStatus,
    Release,
    Renew,
    ReportHandoff,
    RequestRelease,
    Resize,
)


class ByMethods:
    """Calls the method of each operation."""

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        return self._started(operation)  # type: ignore[no-any-return]

    def _started(self, operation: Operation[Any]) -> Any:  # noqa: C901, PLR0911, PLR0912  # a table
        store: Any = self
        match operation:
            case Acquire(name, waiter, form, ttl):
                return store.acquire(
                    *(name, waiter, form, ttl),
                    ticket=operation.ticket,
                    wait=operation.wait,
                    max_waiters=operation.max_waiters,
                )
            case Release(name, waiter, form, fence):
                return store.release(
                    name, waiter, form, fence, entered=operation.entered, lost=operation.lost
                )
            case ReportHandoff():
                return store.report_handoff(operation)
            case Renew():
                return store.renew(operation.renewals)
            case ReadStatus():
                return store.status(operation.name, waiters=operation.waiters)
            case ReadPage():
                return store.snapshot(operation.start)
            case Finish(name, waiter, form, fence, remember):
                return store.finish(name, waiter, form, fence, remember)
            case RequestRelease():
                return store.request(operation.name)
            case Downgrade(name, waiter, form, fence):
                return store.downgrade(name, waiter, form, fence)
            case Resize(name, declared, limit, remember):
                return store.resize(name, declared, limit, remember)
            case Post():
                return store.post(
                    operation.name,
                    operation.count,
                    token=operation.token,
                    declared=operation.declared,
                    value=operation.value,
                    remember=operation.remember,
                )
            case ReadPosted():
                return store.read(operation.name)
            case Break():
                return store.break_(operation.name, operation.fences)
            case _:
                raise TypeError(f"no store has {operation!r}")
