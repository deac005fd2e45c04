"""Views that not more than so many requests may enter in a time."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any, Unpack, cast

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from aiolock.integrations._problems import ERRORS
from aiolock.integrations._rates import RequestRate
from aiolock.integrations.django._clients import open_client, sync_client
from aiolock.integrations.django._views import ViewDecorator, answer, is_async, request_in
from aiolock.options import RateLimitOptions


def rate_limited(
    name: str,
    limit: int,
    *,
    who: Callable[[HttpRequest], str | Awaitable[str]] | None = None,
    **options: Unpack[RateLimitOptions],
) -> ViewDecorator:
    """Decorate a view: not more than ``limit`` requests in ``per`` seconds.

    It takes a token before it begins, from a bucket that all processes share: of each owner, if
    ``who`` gives one. A request that finds none is answered with 429 and ``Retry-After``; with
    ``timeout=2`` it waits for one, in the queue, for two seconds at most. Other errors of aiolock
    are answered with 503.

    In a class, it decorates the methods, or ``dispatch``. A transaction around the view makes no
    difference: the token is spent, whatever becomes of that.

    :param name: the name of the rate limit; the owner follows it.
    :param limit: how many requests may begin in ``per`` seconds; ``burst`` and the other options
        are those of `LockClient.rate_limit`.
    :param who: the owner of a request, given that: the user, the tenant, the address, as a str:
        ``lambda request: str(request.user.pk)``; no secret, for it is a part of the name. A request
        for which it gives None or an empty text is answered with 400. It may be async for an
        asynchronous view; another one is called in Django's thread there. Without it, all requests
        have one bucket.
    """
    rate = RequestRate(name, limit, owned=who is not None, **options)

    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        if is_async(view):
            return _asynchronous(rate, who, view)
        if is_async(who):
            raise TypeError(
                f"who= of rate_limited() is async, and {view!r} is not: give it a function without"
                " async, or declare the view with `async def`"
            )
        return _synchronous(rate, who, view)

    return cast(ViewDecorator, decorate)


def _synchronous(
    rate: RequestRate, who: Callable[[HttpRequest], Any] | None, view: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(view)
    def call(*args: Any, **kwargs: Any) -> Any:
        whose = None if who is None else who(request_in(args, kwargs))
        try:
            rate.of(sync_client().rate_limit, whose).acquire()
        except ERRORS as error:
            return answer(error)
        return view(*args, **kwargs)

    return call


def _asynchronous(
    rate: RequestRate, who: Callable[[HttpRequest], Any] | None, view: Callable[..., Any]
) -> Callable[..., Any]:
    @functools.wraps(view)
    async def call(*args: Any, **kwargs: Any) -> Any:
        whose = None if who is None else await found_by(who, request_in(args, kwargs))
        try:
            await rate.admit(await open_client(), whose)
        except ERRORS as error:
            return answer(error)
        return await view(*args, **kwargs)

    return call


async def found_by(who: Callable[[HttpRequest], Any], request: HttpRequest) -> Any:
    """The owner of a request; a function without async may use the ORM, so it is in its thread."""
    if is_async(who):
        return await who(request)
    return await sync_to_async(who)(request)
