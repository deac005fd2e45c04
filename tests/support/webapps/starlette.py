"""The application in Starlette."""

from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from aiolock import Lease
from aiolock.integrations.starlette import locked, setup
from tests.support.webapps.bodies import Bodies


def build(bodies: Bodies) -> Any:
    """It in Starlette."""

    @locked("order:{order}", timeout=bodies.patience, send_timeout=bodies.send_timeout)
    async def orders(request: Request, lease: Lease) -> Response:
        return JSONResponse(await bodies.run(lease, await request.body()))

    @locked("order:{order}", timeout=0)
    async def now(request: Request, lease: Lease) -> Response:
        return JSONResponse(await bodies.run(lease))

    @locked("order:{order}", timeout=bodies.patience, max_waiters=1)
    async def few(request: Request, lease: Lease) -> Response:
        return JSONResponse(await bodies.run(lease))

    @locked("search:{q}", query={"q"})
    async def search(request: Request, lease: Lease) -> Response:
        return JSONResponse(await bodies.run(lease))

    @locked("order:{order}")
    async def twice(request: Request, lease: Lease) -> Response:
        return JSONResponse(await bodies.twice(lease))

    @locked("order:{order}", timeout=bodies.patience)
    async def stream(request: Request, lease: Lease) -> Response:
        return StreamingResponse(bodies.stream(lease))

    @locked("order:{order}", timeout=bodies.patience, send_timeout=bodies.send_timeout)
    async def endless(request: Request, lease: Lease) -> Response:
        return StreamingResponse(bodies.endless(lease))

    @locked("order:{order}", timeout=bodies.patience, scope="function")
    async def brief(request: Request, lease: Lease) -> Response:
        return StreamingResponse(bodies.stream(lease))

    routes = [
        Route("/orders/{order}", orders, methods=["POST"]),
        Route("/now/{order}", now, methods=["POST"]),
        Route("/few/{order}", few, methods=["POST"]),
        Route("/search", search, methods=["POST"]),
        Route("/twice/{order}", twice, methods=["POST"]),
        Route("/stream/{order}", stream, methods=["POST"]),
        Route("/endless/{order}", endless, methods=["POST"]),
        Route("/brief/{order}", brief, methods=["POST"]),
    ]
    app = Starlette(routes=routes)
    setup(app, bodies.client)
    return app
