"""Locks in FastAPI: `setup` the application, and ask for a lease as for any dependency.

::

    app = FastAPI()
    setup(app, aiolock.connect("redis://localhost:6379/0"))


    @app.post("/orders/{order}/payment")
    async def pay(order: str, lease: Annotated[Lease, locked("order:{order}")]) -> None: ...
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator
from typing import Annotated, Any, Final, Unpack

from fastapi import Depends, FastAPI, Path, Query, Request, routing
from fastapi.dependencies.models import Dependant
from starlette.routing import BaseRoute

from aiolock import Lease, LockClient
from aiolock._locks.options import LockOptions
from aiolock.integrations._names import LockOf
from aiolock.integrations.starlette import client_of as _client_of
from aiolock.integrations.starlette import held_for, set_up

__all__ = ["Client", "client_of", "locked", "setup"]

_MARK: Final = "__aiolock__"


def setup(app: FastAPI, client: LockClient) -> None:
    """Open ``client`` with the application and close it with it, and answer its errors.

    The client opens before the application's own lifespan begins, and closes when that has ended:
    `StoreError` ends the start. Errors are answered with 409, 423, 429 or 503, unless the
    application has a handler of its own for one; a request that the server interrupts at its end
    with 503. An application that is mounted in another has handlers of its own: set that up too,
    with the same client.

    When the application starts, `ValueError` for a lock whose template needs what its path has not,
    and `TypeError` for one round a path operation without ``async``.
    """
    set_up(app, client, _locks_of)


def client_of(request: Request) -> LockClient:
    """The client of the application that this request has come to; `RuntimeError` if none."""
    return _client_of(request)


Client = Annotated[LockClient, Depends(client_of)]
"""The client, as a dependency."""


def locked(template: str, *, query: Collection[str] = (), **options: Unpack[LockOptions]) -> Any:
    """A dependency that holds a lock while the path operation runs, and is its `Lease`.

    It waits its turn, 10 seconds at most unless ``timeout`` says otherwise; with ``timeout=0``
    not at all. Who closes the connection meanwhile leaves the queue. The lock is given back when
    the path operation has returned, before the response is sent (``scope="function"``). A lock
    that is lost cancels the path operation. `setup` answers what it raises.

    :param template: the name, with fields: ``"order:{order}"``. `ValueError` for other than plain
        fields.
    :param query: those fields that come from the query and not from the path: parameters as
        others, which have to be there.
    """
    lock = LockOf(template, query, **options)

    async def hold(request: Request, **_: str) -> AsyncGenerator[Lease]:
        async with held_for(request, lock) as lease:
            yield lease

    parameters = [inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)]
    for field in lock.fields:
        source = Query() if field in lock.query else Path()
        kind = inspect.Parameter.KEYWORD_ONLY
        # Told to FastAPI, so that the query's are documented, and a request without one is a 422.
        parameters.append(inspect.Parameter(field, kind, annotation=Annotated[str, source]))
    hold.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # for inspect
    setattr(hold, _MARK, lock)
    return Depends(hold, scope="function")


def _locks_of(route: BaseRoute) -> Iterator[tuple[LockOf, str]]:
    for context in _flat(route):
        dependant = getattr(context, "dependant", None)
        if not isinstance(dependant, Dependant):
            continue
        path = str(context.path)
        for lock in _locks_in(dependant):
            if not _is_async(dependant.call):
                raise TypeError(
                    f"{path!r} holds a lock, {lock.template!r}, round a function without async:"
                    " that runs in a thread, which no loss of the lock could end"
                )
            yield lock, path


def _flat(route: BaseRoute) -> Iterable[Any]:
    """The routes of an included router, with their whole paths; older versions copy them."""
    flatten: Any = getattr(routing, "iter_route_contexts", iter)
    flattened: Iterable[Any] = flatten([route])
    return flattened


def _locks_in(dependant: Dependant) -> Iterable[LockOf]:
    for each in dependant.dependencies:
        lock = getattr(each.call, _MARK, None)
        if isinstance(lock, LockOf):
            yield lock
        yield from _locks_in(each)


def _is_async(function: Callable[..., Any] | None) -> bool:
    return inspect.iscoroutinefunction(inspect.unwrap(function)) if function else False
