"""Locks in FastAPI: `setup` the application, and ask for a lease as for any dependency.

::

    app = FastAPI()
    setup(app, aiolock.connect("redis://localhost:6379/0"))


    @app.post("/orders/{order}/payment")
    async def pay(order: str, lease: Annotated[Lease, locked("order:{order}")]) -> None: ...
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final, Unpack, cast

from fastapi import BackgroundTasks, Depends, FastAPI, Header, Query, Request, routing
from fastapi.dependencies.models import Dependant
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, WebSocketRoute

from aiolock import Lease, LockClient, Verdict, connect
from aiolock.integrations._asgi import leases_of
from aiolock.integrations._exchange import begin, exchange_of, keys_in
from aiolock.integrations._kept import HEADER, check_options, key_of, once_of
from aiolock.integrations._leases import SEND_TIMEOUT, LeaseScope, RequestLock
from aiolock.integrations._openapi import ALL, IDEMPOTENT, add_responses, of_marks, responses
from aiolock.integrations._parameters import check_values, values_of
from aiolock.integrations._problems import ERRORS
from aiolock.integrations._rates import RequestRate
from aiolock.integrations.starlette import MARK, NO_HTTP, answered, set_up
from aiolock.integrations.starlette import client_of as _client_of
from aiolock.options import LockOptions, RateLimitOptions, Seconds

__all__ = [
    "RESPONSES",
    "Client",
    "Idempotent",
    "client_of",
    "idempotent",
    "locked",
    "rate_limited",
    "setup",
]


def setup(app: FastAPI, client: LockClient) -> None:
    """Open ``client`` with the application and close it with it, and answer its errors.

    The client opens before the application's own lifespan begins, and closes when that has ended:
    `StoreError` ends the start. Errors are answered with 409, 423, 429 or 503, unless the
    application has a handler of its own for one. A request that the server interrupts when it ends
    is answered with 503. An application that is mounted in another has handlers of its own: set
    that up too, with the same client.

    The OpenAPI document has these answers for each path operation with a lock, a rate limit or
    a key; see `RESPONSES` for others.

    When the application starts, a lock whose template needs a field that its path does not have, or
    that is a list, a `SecretStr` or part of a model in the path operation, raises `ValueError`, and
    one around a path operation without ``async`` raises `TypeError`.
    """
    set_up(app, client, _locks_of, functools.partial(_document, app))


def client_of(connection: HTTPConnection) -> LockClient:
    """The client of the application that serves this request; `RuntimeError` if it has none.

    As a dependency, it is `Client`, also for a WebSocket.
    """
    return _client_of(connection)


Client = Annotated[LockClient, Depends(client_of)]
"""The client, as a dependency."""


RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    int(status): response for status, response in responses(ALL, ERRORS).items()
}
"""The answers to errors of locks, for the ``responses`` of a path operation that uses `Client`."""


def locked(
    template: str,
    *,
    query: Collection[str] = (),
    scope: LeaseScope = "request",
    send_timeout: Seconds | None = SEND_TIMEOUT,
    **options: Unpack[LockOptions],
) -> Any:
    """A dependency that holds a lock until the request has ended, and gives its `Lease`.

    It waits its turn, for 10 seconds at most unless ``timeout`` says otherwise; with ``timeout=0``
    it does not wait. A client that closes the connection meanwhile leaves the queue. The lock is
    held until the response has been sent and all dependencies have ended, in whatever order they
    are declared. The loss of the lock cancels what still runs of the request; a response that has
    begun is cut off. `setup` answers its errors.

    :param template: the name, with fields: ``"order:{order}"``. `ValueError` for other than plain
        fields. A field has the value that the parameter of this name has in the path operation, or
        else in a dependency of it, after validation: all spellings of one `UUID` are one lock. A
        request with an invalid value is answered with 422, before it waits. A field without
        a parameter has the text in the path.
    :param query: the fields that come from the query and not from the path. They become required
        query parameters.
    :param scope: ``"request"`` holds the lock until the request has ended: its response has been
        sent, and all that the framework does for it is done. ``"function"`` releases it before the
        response is sent, when the path operation has returned and dependencies
        with ``scope="function"`` have ended, in any order.
    :param send_timeout: seconds that the client may keep the lock waiting, in all, by sending its
        body or reading its response slowly; None waits as long as it takes. After that the request
        is cut off.
    """
    lock = RequestLock(template, query, scope=scope, send_timeout=send_timeout, **options)

    async def hold(aiolock_request: Request, **_: str) -> Lease:
        values = values_of(aiolock_request, lock, _is_lock)
        of_request = lock.on(client_of(aiolock_request).lock, values)
        leases = leases_of(aiolock_request.scope)
        if lock.scope == "request":
            return await leases.take(of_request, lock.send_timeout)
        # Dependencies that were entered before end before the lease, too.
        stack: AsyncExitStack = aiolock_request.scope["fastapi_function_astack"]
        entered_before = stack.pop_all()
        try:
            held = leases.hold(of_request, lock.send_timeout)
            return await stack.enter_async_context(held)
        finally:
            stack.push_async_exit(entered_before)

    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("aiolock_request", kind, annotation=Request)]
    # FastAPI must know the fields of the query: so it documents them, and answers 422 to a request
    # without one. The path operation itself documents those of the path, of whatever type.
    parameters += [
        inspect.Parameter(field, kind, annotation=Annotated[str, Query()])
        for field in lock.fields
        if field in lock.query
    ]
    hold.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # for inspect
    setattr(hold, MARK, lock)
    return Depends(hold, scope="function" if lock.scope == "function" else None)


@dataclass(frozen=True, slots=True)
class Idempotent:
    """The value that a path operation with `idempotent` gets."""

    key: str | None
    """The key; None if the request has none, and is carried out as ever."""
    lease: Lease | None
    """Held while the request with a key is carried out: use its ``fence`` for what it writes."""


def idempotent(
    *,
    application: str,
    remember: float | timedelta,
    who: Callable[..., Any],
    required: bool = False,
) -> Any:
    """A dependency: of requests with one ``Idempotency-Key``, one is carried out.

    It does what `aiolock.integrations.idempotency.Idempotency` does, for one path operation or,
    among its ``dependencies``, for a router: the first request gets its response, and that is kept;
    the others get the same. `setup` answers its errors.

    For a request that gets a kept response, the dependencies before this one have run, and those
    after it have not; ``who`` always runs.

    :param application: the name of the application that the key belongs to; see `Idempotency`.
    :param remember: seconds for which a response is kept.
    :param who: the owner of the key: a dependency, which gives the user or the tenant as a str:
        ``str(user.id)``. A request for which it gives anything else raises `TypeError`.
    :param required: whether a request without a key is answered with 400; if not, it is carried out
        as ever.
    """
    check_options(connect("memory://"), application, remember)

    async def of_request(
        request: Request,
        whose: str,
        background: BackgroundTasks,
        key: str | None,  # noqa: ARG001  # for the documentation: of several, FastAPI gives one
    ) -> Idempotent:
        checked = key_of(keys_in(request.scope), required=required)
        if checked is None:
            return Idempotent(None, None)
        once = once_of(client_of(request).once, application, whose, checked, remember)
        lease = await begin(request.scope, once)
        # All dependencies and the path operation have this one object.
        exchange_of(request.scope).put_off(cast("list[Any]", background.tasks))
        return Idempotent(checked, lease)

    setattr(of_request, MARK, IDEMPOTENT)
    # So that FastAPI documents the header. `key_of` checks it.
    header = Annotated[str | None, Header(alias=HEADER)]
    kind = inspect.Parameter.KEYWORD_ONLY
    of_request.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # for inspect
        [
            inspect.Parameter("request", kind, annotation=Request),
            inspect.Parameter("whose", kind, annotation=Annotated[str, Depends(who)]),
            inspect.Parameter("background", kind, annotation=BackgroundTasks),
            inspect.Parameter("key", kind, annotation=header, default=None),
        ]
    )
    return Depends(of_request)


def rate_limited(
    name: str,
    limit: int,
    *,
    who: Callable[..., Any] | None = None,
    **options: Unpack[RateLimitOptions],
) -> Any:
    """A dependency: not more than ``limit`` requests in ``per`` seconds; gives the `Verdict`.

    It takes a token before it begins, from a bucket that all processes share: of each owner, if
    ``who`` gives one. A request that finds none is answered with 429 and ``Retry-After``, by
    `setup`; with ``timeout=2`` it waits for one, in the queue, for two seconds at most, unless
    its client closes the connection.

    :param name: the name of the rate limit; the owner follows it.
    :param limit: how many requests may begin in ``per`` seconds; ``burst`` and the other options
        are those of `LockClient.rate_limit`.
    :param who: the owner of a request: a dependency, which gives the user, the tenant or the
        address as a str: ``str(user.id)``; no secret, for it is a part of the name. A request for
        which it gives None or an empty text is answered with 400. Without it, all requests have
        one bucket.
    """
    rate = RequestRate(name, limit, owned=who is not None, **options)

    async def of_request(connection: HTTPConnection, whose: str | None = None) -> Verdict:
        # That of a router is also for WebSockets, whose client is not watched.
        leases = leases_of(connection.scope) if connection.scope["type"] == "http" else None
        return await rate.admit(client_of(connection), whose, leases)

    setattr(of_request, MARK, rate)
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("connection", kind, annotation=HTTPConnection)]
    if who is not None:
        owner = Annotated[str, Depends(who)]
        parameters.append(inspect.Parameter("whose", kind, annotation=owner))
    of_request.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # for inspect
    return Depends(of_request)


def _document(app: FastAPI) -> None:
    """Let the OpenAPI document have the answers of each operation."""
    documented = app.openapi
    if getattr(documented, MARK, None) is app:
        return

    last: dict[str, Any] | None = None

    @functools.wraps(documented)
    def openapi() -> dict[str, Any]:
        nonlocal last
        document = documented()
        if document is last:  # FastAPI keeps it
            return document
        last, ours = document, answered(app)
        for context in (each for route in app.routes for each in _flat(route)):
            dependant = getattr(context, "dependant", None)
            marks = _marks_in(dependant) if isinstance(dependant, Dependant) else ()
            added = of_marks(marks, ours)
            paths: dict[str, dict[str, dict[str, Any]]] = document.get("paths", {})
            for method, operation in paths.get(context.path_format, {}).items() if added else ():
                if method.upper() in (getattr(context, "methods", None) or ()):
                    add_responses(operation.setdefault("responses", {}), added)
        return document

    setattr(openapi, MARK, app)
    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI says that it is extended


def _marks_in(dependant: Dependant) -> Iterator[object]:
    """The marks of all dependencies of an operation."""
    for each in dependant.dependencies:
        yield getattr(each.call, MARK, None)
        yield from _marks_in(each)


def _locks_of(route: BaseRoute) -> Iterator[tuple[RequestLock, str]]:
    for context in _flat(route):
        dependant = getattr(context, "dependant", None)
        if not isinstance(dependant, Dependant):
            continue
        path = str(context.path)
        for lock in _marks_in(dependant):
            if not isinstance(lock, RequestLock):
                continue
            route = getattr(context, "original_route", context)
            if (
                why := NO_HTTP
                if isinstance(route, WebSocketRoute)
                else _unfit(dependant.call, lock)
            ):
                raise TypeError(f"{path!r} holds a lock, {lock.template!r}, round {why}")
            check_values(repr(path), dependant, lock, _is_lock)
            yield lock, path


def _flat(route: BaseRoute) -> Iterable[Any]:
    """The routes of an included router, with their whole paths; older versions copy them."""
    flatten: Any = getattr(routing, "iter_route_contexts", iter)
    flattened: Iterable[Any] = flatten([route])
    return flattened


def _is_lock(dependant: Dependant) -> bool:
    return isinstance(getattr(dependant.call, MARK, None), RequestLock)


def _unfit(function: Callable[..., Any] | None, lock: RequestLock) -> str | None:
    """The reason why a path operation cannot be under a lock; None if it can."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function) if function else None
    # A callable object is as good as a function.
    forms = (function, getattr(function, "__call__", None))  # noqa: B004  # its type says nothing
    if any(inspect.isasyncgenfunction(f) for f in forms):
        if lock.scope == "request":
            return None
        return 'a generator: what it yields is sent after scope="function" has ended'
    if any(inspect.iscoroutinefunction(f) for f in forms):
        return None
    return (
        "a function without async: that runs in a thread, which no loss of the lock could end."
        " Declare it with `async def`, or use `with locks.lock(...)` in it, of"
        " `locks = aiolock.sync.connect(...)`"
    )
