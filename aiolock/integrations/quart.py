"""Locks in Quart: `setup` the application, and decorate views with `locked`.

::

    app = Quart(__name__)
    setup(app, aiolock.connect("redis://localhost:6379/0"))


    @app.post("/orders/<order>/payment")
    @locked("order:{order}", timeout=2)
    async def pay(order: str, lease: Lease) -> str: ...
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar, Unpack

from quart import Quart, Response, current_app

from aiolock import Lease, LockClient
from aiolock._locks.options import LockOptions
from aiolock.integrations._asgi import Interrupted
from aiolock.integrations._functions import Locked, checked_client
from aiolock.integrations._names import LockOf
from aiolock.integrations._problems import CONTENT_TYPE, ERRORS, problem
from aiolock.integrations._waiting import held

__all__ = ["current_client", "locked", "setup"]

R = TypeVar("R")

_KEY: Final = "aiolock"


def setup(app: Quart, client: LockClient) -> None:
    """Open ``client`` with the application and close it with it, and answer its errors.

    `StoreError` ends the start. Errors are answered with 409, 423, 429 or 503, unless the
    application has a handler of its own for one. A request that the server interrupts when it ends
    is answered with 503.
    """
    if _KEY in app.extensions:
        raise ValueError("this application has been set up already")
    app.extensions[_KEY] = checked_client(client)
    app.before_serving_funcs.insert(0, client.open)
    app.after_serving_funcs.append(client.aclose)
    for error in ERRORS:
        if error not in app.error_handler_spec[None][None]:
            app.register_error_handler(error, _answer)
    app.asgi_app = Interrupted(app.asgi_app)  # type: ignore[assignment]  # any ASGI app


def current_client() -> LockClient:
    """The client of the current application; `RuntimeError` if it has none."""
    client = current_app.extensions.get(_KEY)
    if isinstance(client, LockClient):
        return client
    raise RuntimeError("this application has no lock client: call setup(app, client)")


def locked(
    template: str, **options: Unpack[LockOptions]
) -> Callable[[Callable[..., Awaitable[R]]], Callable[..., Coroutine[Any, Any, R]]]:
    """Decorate a view, which gets the `Lease` if it has a parameter ``lease``.

    It waits its turn, for 10 seconds at most unless ``timeout`` says otherwise; with ``timeout=0``
    it does not wait. Quart cancels a view whose client has gone: that leaves the queue, or releases
    the lock. The lock is released when the view has returned. The loss of the lock cancels the
    view. `setup` answers its errors.

    :param template: the name, with parameters of the view as fields: ``"order:{order}"``.
        `ValueError` for other fields. A request for which one is None is answered with 400.
    """
    lock = LockOf(template, **options)

    def decorate(view: Callable[..., Awaitable[R]]) -> Callable[..., Coroutine[Any, Any, R]]:
        under_lock = Locked(lock, view)

        @functools.wraps(view)
        async def call(*args: Any, **kwargs: Any) -> R:
            return await under_lock.call(_hold, args, kwargs)

        return call

    return decorate


@asynccontextmanager
async def _hold(lock: LockOf, values: dict[str, Any]) -> AsyncGenerator[Lease]:
    async with held(lock.on(current_client(), values)) as lease:
        yield lease


async def _answer(error: Exception) -> Response:
    found = problem(error)
    return Response(found.body, found.status, found.headers, content_type=CONTENT_TYPE)
