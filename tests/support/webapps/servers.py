"""Real servers for the applications, in the loop of the test."""

from __future__ import annotations

import importlib
import socket
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import uvicorn
from aiohttp import web

from tests.support.webapps.bodies import Bodies


@asynccontextmanager
async def _uvicorn(app: Any, grace: float | None) -> AsyncGenerator[str]:
    config = uvicorn.Config(
        app, log_config=None, ws="none", loop="none", timeout_graceful_shutdown=1
    )
    config.timeout_graceful_shutdown = grace  # type: ignore[assignment]  # shorter than they allow
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        await server.startup(sockets=[listening])
        if not server.started:
            raise RuntimeError("the application did not start")
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            await server.shutdown(sockets=[listening])


@asynccontextmanager
async def _aiohttp(app: Any, grace: float | None) -> AsyncGenerator[str]:
    patience = 60.0 if grace is None else grace
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=patience)
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        try:
            await web.SockSite(runner, listening).start()
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            await runner.cleanup()


SERVERS = {
    "starlette": _uvicorn,
    "fastapi": _uvicorn,
    "aiohttp": _aiohttp,
    "litestar": _uvicorn,
    # Not Hypercorn: from Python 3.12 on it waits for every connection, whatever its timeout.
    "quart": _uvicorn,
    "django": _uvicorn,
}
"""Each framework, with its server."""


def build(framework: str, bodies: Bodies) -> Any:
    """The application, in this framework."""
    return importlib.import_module(f"tests.support.webapps.{framework}").build(bodies)


def serving(
    framework: str, app: Any, *, grace: float | None = None
) -> AbstractAsyncContextManager[str]:
    """Serve any application of this framework."""
    return SERVERS[framework](app, grace)


@asynccontextmanager
async def served(
    framework: str, bodies: Bodies, *, grace: float | None = None
) -> AsyncGenerator[str]:
    """Serve it; gives its URL. At the end running requests have ``grace`` seconds."""
    async with serving(framework, build(framework, bodies), grace=grace) as url:
        yield url
