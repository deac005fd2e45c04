"""Django: what the others have not."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from django.core.asgi import get_asgi_application
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.test import AsyncRequestFactory, override_settings
from django.urls import path

import aiolock
from aiolock import Lease
from aiolock.integrations.django import client, close, locked, with_locks
from aiolock.integrations.django._clients import by_loop
from aiolock.stores.memory import MemoryServer
from tests.support.webapps.django import configure

configure()


@locked("order:{order}", timeout=0)
async def view(request: HttpRequest, order: str, lease: Lease) -> HttpResponse:
    """A view."""
    assert lease.name == f"order:{order}"
    return HttpResponse(str((await client()).id))


def synchronous(get_response: Any) -> Any:
    """Middleware of the old kind, which runs in a thread."""

    def middleware(request: HttpRequest) -> HttpResponse:
        response: HttpResponse = get_response(request)
        response["Through"] = "a thread"
        return response

    return middleware


@asynccontextmanager
async def started(app: Any) -> AsyncGenerator[str | None]:
    """Speak the lifespan protocol with it; gives why it does not start."""
    said = asyncio.Queue[Any]()
    told = asyncio.Queue[Any]()
    speaking = asyncio.create_task(app({"type": "lifespan"}, told.get, said.put))
    told.put_nowait({"type": "lifespan.startup"})
    answer = await asyncio.wait_for(said.get(), 10)
    yield answer.get("message")
    if answer["type"] == "lifespan.startup.complete":
        told.put_nowait({"type": "lifespan.shutdown"})
        assert (await asyncio.wait_for(said.get(), 10))["type"] == "lifespan.shutdown.complete"
    await speaking


async def test_settings_make_one_client_for_the_loop_that_closes_with_the_lifespan() -> None:
    """The client is of the settings, one for the loop, from its start to its end."""
    memory = MemoryServer()
    settings = {"target": memory, "ttl": 3, "prefix": "shop"}
    urls = (path("<str:order>", view),)
    with override_settings(
        AIOLOCK=settings, ROOT_URLCONF=urls, MIDDLEWARE=[f"{__name__}.synchronous"]
    ):
        app = with_locks(get_asgi_application())
        async with started(app) as failure:
            assert failure is None
            first = await client()
            assert first is await client()
            assert first.lock("x").ttl == 3
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
                reply = await http.get("/42")
                assert (reply.text, reply.headers["Through"]) == (first.id, "a thread")
                others = aiolock.connect(memory, prefix="shop")
                async with others, others.lock("order:42"):
                    assert (await http.get("/42")).status_code == 409
        with pytest.raises(aiolock.ClientClosed):
            await first.lock("x").locked()


@pytest.mark.parametrize("settings", [None, {}, {"ttl": 3}])
async def test_settings_without_target_keep_the_server_from_starting(settings: Any) -> None:
    """The server does not start, and the text says what to write."""
    with override_settings(AIOLOCK=settings):
        with pytest.raises(ImproperlyConfigured, match="target"):
            await client()
        async with started(with_locks(get_asgi_application())) as failure:
            assert "settings.AIOLOCK" in str(failure)


async def test_startup_while_the_store_is_down_fails_and_views_answer_503() -> None:
    """The server does not start."""
    with override_settings(AIOLOCK={"target": "redis://127.0.0.1:1/0"}):
        async with started(with_locks(get_asgi_application())) as failure:
            assert "127.0.0.1:1" in str(failure)
        response = await view(AsyncRequestFactory().get("/"), order="42")
        assert response.status_code == 503
    await close()


def test_client_of_each_event_loop_is_separate() -> None:
    """As Django's own test client has it, each of whose requests has a loop of its own."""

    async def ask() -> bytes:
        response = await view(AsyncRequestFactory().get("/"), "42")
        await close()
        await close()
        return response.content

    with override_settings(AIOLOCK={"target": "memory://"}):
        assert asyncio.run(ask()) != asyncio.run(ask())


@pytest.mark.filterwarnings("ignore:unclosed .LockClient:ResourceWarning")  # that is the test
def test_client_of_a_loop_that_is_gone_is_dropped() -> None:
    """They are let go of: there are no more of them than there are loops."""
    with override_settings(AIOLOCK={"target": "memory://"}):
        for _ in range(3):
            assert asyncio.run(client()) in by_loop.values()
            assert len(by_loop) == 1
    by_loop.clear()
    gc.collect()  # it is told of here, and not in another test


async def test_with_locks_runs_the_lifespan_of_its_application_while_open() -> None:
    """It begins when the client is open, and ends before that is closed."""
    happened = list[str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for phase in ("startup", "shutdown"):
            assert (await receive())["type"] == f"lifespan.{phase}"
            happened.append(phase)
            async with (await client()).lock("x"):
                await send({"type": f"lifespan.{phase}.complete"})

    with override_settings(AIOLOCK={"target": "memory://"}):
        async with started(with_locks(app)) as failure:
            assert failure is None
            assert happened == ["startup"]
        assert happened == ["startup", "shutdown"]
        assert asyncio.get_running_loop() not in by_loop


@pytest.mark.parametrize("failing", ["says so", "raises"])
async def test_with_locks_closes_the_client_if_its_application_fails_to_start(failing: str) -> None:
    """The server hears of it, and the client is closed."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if failing == "raises":
            raise ValueError("no stock")
        await send({"type": "lifespan.startup.failed", "message": "no stock"})

    with override_settings(AIOLOCK={"target": "memory://"}):
        async with started(with_locks(app)) as failure:
            assert failure == "no stock"
        assert asyncio.get_running_loop() not in by_loop


def test_locked_with_an_unknown_field_raises_value_error() -> None:
    """A field is a parameter of the view, whether that is async or not."""
    with pytest.raises(ValueError, match="needs item"):
        locked("{item}")(view)
    with pytest.raises(ValueError, match="needs item"):
        locked("{item}")(lambda request, order: HttpResponse())
