"""Views under a lock, synchronous and asynchronous."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar, Unpack, cast, overload

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpResponse
from django.http.response import HttpResponseBase

from aiolock import Lease, LeaseState
from aiolock.integrations._exchange import ended
from aiolock.integrations._functions import LEASE, Locked, Parameters
from aiolock.integrations._names import LockOf
from aiolock.integrations._problems import CONTENT_TYPE, ERRORS, problem
from aiolock.integrations._waiting import held
from aiolock.integrations.django._clients import open_client, sync_client
from aiolock.integrations.django._transactions import (
    atomic_requests,
    begins_outside,
    refuse_around,
)
from aiolock.naming import checked_result
from aiolock.options import LockOptions
from aiolock.sync.transactions import refuse_in_transaction

R = TypeVar("R", bound=HttpResponseBase)


class ViewDecorator(Protocol):
    """A decorator for views, synchronous or asynchronous."""

    @overload
    def __call__(
        self, view: Callable[..., Coroutine[Any, Any, R]], /
    ) -> Callable[..., Coroutine[Any, Any, R | HttpResponse]]: ...

    @overload
    def __call__(self, view: Callable[..., R], /) -> Callable[..., R | HttpResponse]: ...


def locked(template: str, **options: Unpack[LockOptions]) -> ViewDecorator:
    """Decorate a view, which gets the lease if it has a parameter ``lease``.

    A synchronous view gets a `aiolock.sync.Lease`, an asynchronous one a `Lease`. The view waits
    its turn, for 10 seconds at most unless ``timeout`` says otherwise; with ``timeout=0`` it does
    not wait. The decorator itself answers errors of aiolock, with 409, 423, 429 or 503.

    The lock is released when the view has returned and its template, if any, has been rendered. A
    client that reads slowly does not hold it: so a streaming response, which would be sent without
    the lock, is a `RuntimeError`.

    *A synchronous view*: ``ATOMIC_REQUESTS`` begins when the lock is held, and is committed or
    rolled back before it is released. Nothing stops a view whose lock is lost, but the loss rolls
    that transaction back, and is answered with 503; in long work, call ``lease.check()``. Within
    another transaction, as of a middleware, it is a `RuntimeError`: what is written would be
    committed without the lock. In a class, decorate ``dispatch``.

    *An asynchronous view*: Django cancels it when its client has gone, and so does the loss of the
    lock. That leaves the queue, or releases the lock when what the view runs in Django's thread
    (`sync_to_async`, the ORM) has ended. The same `RuntimeError` within a transaction. In a class,
    decorate the methods.

    :param template: the name, with parameters of the view as fields: ``"order:{order}"``.
        `ValueError` for other fields, unless a synchronous view has ``**kwargs``: then they are
        those of its URL. A request for which one is None is answered with 400.
    """
    lock = LockOf(template, **options)

    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        if is_async(view):
            return _asynchronous(lock, view)
        return _synchronous(lock, view)

    return cast(ViewDecorator, decorate)


def _synchronous(lock: LockOf, view: Callable[..., R]) -> Callable[..., R | HttpResponse]:
    # A method that `method_decorator` has bound: what it wraps has one parameter more.
    bound = isinstance(view, functools.partial)
    signature = inspect.signature(view, follow_wrapped=not bound)
    of_url = frozenset[str]()
    if rest := [p for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]:
        of_url = frozenset(lock.fields) - signature.parameters.keys()
        before = [p for p in signature.parameters.values() if p not in rest]
        fields = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in of_url]
        signature = signature.replace(parameters=[*before, *fields, *rest])
    parameters = Parameters(lock, view, signature)

    @functools.wraps(view)
    def call(*args: Any, **kwargs: Any) -> R | HttpResponse:
        if missing := of_url - kwargs.keys():
            raise TypeError(
                f"the URL of {view.__qualname__}() has no {', '.join(sorted(missing))}, which the"
                f" lock {lock.template!r} needs"
            )
        try:
            refuse_around(lock)
            with lock.on(sync_client().lock, parameters.values(args, kwargs)) as lease:
                if parameters.has_lease:
                    kwargs[LEASE] = lease
                with atomic_requests(request_in(args, kwargs) if begins else None):
                    response = _without_stream(view(*args, **kwargs), view)
                    rendered(checked_result(response, view))
                    if lock.cancels and lease.state is LeaseState.LOST:
                        lease.check()  # raised within the transaction, it rolls that back
                return response
        except ERRORS as error:
            return answer(error)

    begins = begins_outside(view, call)
    return call


def _asynchronous(
    lock: LockOf, view: Callable[..., Coroutine[Any, Any, R]]
) -> Callable[..., Coroutine[Any, Any, R | HttpResponse]]:
    under_lock = Locked(lock, _whole(view))

    @functools.wraps(view)
    async def call(*args: Any, **kwargs: Any) -> R | HttpResponse:
        try:
            return await under_lock.call(_hold, args, kwargs)
        except ERRORS as error:
            return answer(error)

    return call


def is_async(function: object) -> bool:
    """Whether this is an async function, or is marked as one, as Django does it."""
    return bool(iscoroutinefunction(function))  # pyright: ignore[reportDeprecated]  # not in 3.11


def request_in(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The request in the arguments of a view, or of a method; None if there is none.

    Also that of Django REST framework, which is another class.
    """
    return next((each for each in (*args, *kwargs.values()) if hasattr(each, "META")), None)


def answer(error: Exception) -> HttpResponse:
    """The answer to one of `ERRORS`."""
    found = problem(error)
    return HttpResponse(
        found.body, status=found.status, headers=found.headers, content_type=CONTENT_TYPE
    )


def rendered(response: R) -> R:
    """The response, with its template rendered, if it has one."""
    render = getattr(response, "render", None)
    if callable(render):
        render()
    return response


@asynccontextmanager
async def _hold(lock: LockOf, values: dict[str, Any]) -> AsyncGenerator[Lease]:
    await sync_to_async(refuse_in_transaction)(lock)
    async with held(lock.on((await open_client()).lock, values)) as lease:
        try:
            yield lease
        finally:
            await end_of_thread_work()


def _whole(
    view: Callable[..., Coroutine[Any, Any, R]],
) -> Callable[..., Coroutine[Any, Any, R]]:
    """The view, with a response of which nothing is left to be done."""

    @functools.wraps(view)
    async def call(*args: Any, **kwargs: Any) -> R:
        response = _without_stream(await view(*args, **kwargs), view)
        if callable(getattr(response, "render", None)):
            await sync_to_async(rendered)(response)
        return response

    return call


def _without_stream(response: R, view: Callable[..., object]) -> R:
    """The response; `RuntimeError` for a stream, which would be sent without the lock."""
    if getattr(response, "streaming", False):
        closers: list[Callable[[], object]] = getattr(response, "_resource_closers", [])
        for close_resource in closers:  # not `close`: it would signal the end of the request
            close_resource()
        raise RuntimeError(
            f"{view.__qualname__}() is under a lock, and its response is a stream, which would"
            " be sent without the lock: return the whole response, or take the lock in the"
            " generator that makes the stream"
        )
    return response


async def end_of_thread_work() -> None:
    """Return when the view's `sync_to_async` has ended: a cancellation does not end a thread."""
    # There is one thread for it, which does one thing after the other.
    ending = asyncio.ensure_future(sync_to_async(bool)())
    try:
        await ended(ending)
    finally:
        if not ending.cancelled():
            ending.exception()  # the thread, as that of a middleware, may have ended
