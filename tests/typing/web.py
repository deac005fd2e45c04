"""What type checkers see of the web integrations. Checked by mypy and pyright; never run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Annotated, Any, assert_type

from aiohttp import web
from django.http import HttpRequest, HttpResponse
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

import aiolock
import aiolock.sync
from aiolock import Lease
from aiolock.integrations import aiohttp, django, fastapi, quart, starlette
from aiolock.integrations.idempotency import idempotent

app = FastAPI()
fastapi.setup(app, aiolock.connect("memory://"))
fastapi.setup(app, "memory://")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # a client
fastapi.locked("x", timeout="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # seconds
fastapi.locked("x", patience=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # no such option


@app.post("/orders/{order}")
async def with_fastapi(
    order: str, lease: Annotated[Lease, fastapi.locked("order:{order}")], locks: fastapi.Client
) -> None:
    """The lease and the client have their types."""
    assert_type(lease, Lease)
    assert_type(locks, aiolock.LockClient)


@starlette.locked("order:{order}", timeout=2)
async def with_starlette(request: Request, lease: Lease) -> Response:
    """An endpoint is one that takes its request alone."""
    assert_type(starlette.client_of(request), aiolock.LockClient)
    return Response()


assert_type(with_starlette, Callable[[Request], Coroutine[Any, Any, Response]])


@aiohttp.locked("order:{order}")
async def with_aiohttp(request: web.Request, lease: Lease) -> web.Response:
    """So is a handler."""
    assert_type(request.config_dict[aiohttp.KEY], aiolock.LockClient)
    return web.Response()


assert_type(with_aiohttp, Callable[[web.Request], Coroutine[Any, Any, web.Response]])


class View(web.View):
    """So are methods of a view."""

    @aiohttp.idempotent(
        application="shop", remember=timedelta(minutes=1), who=lambda request: request.host
    )
    @aiohttp.locked("order:{order}")
    async def post(self, lease: Lease) -> web.Response:
        """It has its request as any view has."""
        assert_type(lease, Lease)
        return web.Response(text=self.request.path)


@app.post("/charges")
async def once_with_fastapi(
    once: Annotated[
        fastapi.Idempotent, fastapi.idempotent(application="shop", remember=60, who=str)
    ],
) -> None:
    """What it is told has its types."""
    assert_type(once.key, str | None)
    assert_type(once.lease, Lease | None)


fastapi.idempotent(application="shop", remember="1", who=str)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # seconds
fastapi.idempotent(application="shop", remember=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # whose?
fastapi.idempotent(remember=1, who=str)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # in which application?


def whose(request: Request) -> str:
    """Whose key it is."""
    return request.headers["Authorization"]


@starlette.idempotent(application="shop", remember=timedelta(minutes=1), who=whose)
@starlette.locked("order:{order}")
async def once_with_starlette(request: Request, lease: Lease) -> Response:
    """It stands above the lock."""
    return Response()


assert_type(once_with_starlette, Callable[[Request], Coroutine[Any, Any, Response]])


@aiohttp.idempotent(application="shop", remember=60, who=lambda request: request.host)
async def once_with_aiohttp(request: web.Request) -> web.Response:
    """Another's response may be any."""
    return web.Response()


assert_type(once_with_aiohttp, Callable[[web.Request], Coroutine[Any, Any, web.StreamResponse]])


@idempotent(
    aiolock.connect("memory://"),
    "payment:{order}",
    remember=timedelta(minutes=1),
    timeout=timedelta(seconds=1),
)
async def once(order: str, amount: int = 1) -> dict[str, int]:
    """A function takes and returns what it did."""
    return {order: amount}


@quart.locked("order:{order}")
async def with_quart(order: str, lease: Lease) -> str:
    """A view returns what it did."""
    assert_type(quart.current_client(), aiolock.LockClient)
    return order


async def called() -> None:
    """As said."""
    assert_type(await with_quart("42"), str)
    assert_type(await once("42", amount=2), dict[str, int])
    await once(42)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # a str


@django.locked("order:{order}", timeout=2)
def with_django(request: HttpRequest, order: str, lease: aiolock.sync.Lease) -> HttpResponse:
    """A synchronous view stays one."""
    locks = django.sync_client()
    assert_type(locks, aiolock.sync.LockClient)
    assert_type(django.hold_until_commit(locks.lock("x")), aiolock.sync.Lease)
    assert_type(django.hold_until_commit(locks.multilock("x", "y")), aiolock.sync.MultiLease)
    return HttpResponse()


assert_type(with_django, Callable[..., HttpResponse])


@django.rate_limited("quotes", 60, per=60, who=lambda request: str(request.user.pk))
@django.locked("order:{order}")
async def with_django_async(request: HttpRequest, order: str, lease: Lease) -> HttpResponse:
    """An asynchronous one, too."""
    assert_type(await django.client(), aiolock.LockClient)
    return HttpResponse()


assert_type(with_django_async, Callable[..., Coroutine[Any, Any, HttpResponse]])
django.hold_until_commit(aiolock.connect("memory://").lock("x"))  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]  # of threads
