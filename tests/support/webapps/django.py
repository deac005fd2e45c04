"""The application in Django."""

import asyncio
from typing import Any

import django
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.views import View

from aiolock import Lease
from aiolock.integrations.django import locked, with_locks
from aiolock.integrations.django._clients import by_loop
from tests.support.webapps.bodies import Bodies


def configure(**options: Any) -> None:
    """Settings for a test; Django has one set of them for each process."""
    if not settings.configured:
        settings.configure(
            ROOT_URLCONF=(), ALLOWED_HOSTS=["*"], MIDDLEWARE=[], LOGGING_CONFIG=None, SECRET_KEY="x"
        )
        django.setup()
    for name, value in options.items():
        setattr(settings, name, value)


class Handler(ASGIHandler):
    """Django's, but that the body of a request is closed where the server cancels it.

    Django leaves it to the garbage collector then, and whichever test that comes by in.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bodies: dict[Any, Any] = {}

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        """Of one request."""
        try:
            await super().handle(scope, receive, send)
        finally:
            if (body := self._bodies.pop(receive, None)) is not None:
                body.close()

    async def read_body(self, receive: Any) -> Any:
        """Its body, as a file."""
        self._bodies[receive] = body = await super().read_body(receive)
        return body


def build(bodies: Bodies) -> Any:
    """It in Django."""

    @locked("order:{order}", timeout=bodies.patience)
    async def orders(request: HttpRequest, order: str, lease: Lease) -> HttpResponse:
        return JsonResponse(await bodies.run(lease, request.body))

    class Now(View):
        @locked("order:{order}", timeout=0)
        async def post(self, request: HttpRequest, order: str, lease: Lease) -> HttpResponse:
            return JsonResponse(await bodies.run(lease))

    @locked("order:{order}", timeout=bodies.patience, max_waiters=1)
    async def few(request: HttpRequest, order: str, lease: Lease) -> HttpResponse:
        return JsonResponse(await bodies.run(lease))

    @locked("search:{q}")
    async def search_for(q: str | None, lease: Lease) -> HttpResponse:
        return JsonResponse(await bodies.run(lease))

    async def search(request: HttpRequest) -> HttpResponse:
        return await search_for(request.GET.get("q"))

    @locked("order:{order}")
    async def twice(request: HttpRequest, order: str, lease: Lease) -> HttpResponse:
        return JsonResponse(await bodies.twice(lease))

    urls = (
        path("orders/<str:order>", orders),
        path("now/<str:order>", Now.as_view()),
        path("few/<str:order>", few),
        path("search", search),
        path("twice/<str:order>", twice),
    )
    configure(ROOT_URLCONF=urls)
    by_loop[asyncio.get_running_loop()] = bodies.client
    return with_locks(Handler())
