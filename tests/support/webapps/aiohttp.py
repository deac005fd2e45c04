"""The application in aiohttp."""

from typing import Any

from aiohttp import web

from aiolock import Lease
from aiolock.integrations.aiohttp import locked, setup
from tests.support.webapps.bodies import Bodies


def build(bodies: Bodies) -> Any:
    """It in aiohttp."""

    @locked("order:{order}", timeout=bodies.patience, send_timeout=bodies.send_timeout)
    async def orders(request: web.Request, lease: Lease) -> web.Response:
        return web.json_response(await bodies.run(lease, await request.read()))

    @locked("order:{order}", timeout=0)
    async def now(request: web.Request, lease: Lease) -> web.Response:
        return web.json_response(await bodies.run(lease))

    @locked("order:{order}", timeout=bodies.patience, max_waiters=1)
    async def few(request: web.Request, lease: Lease) -> web.Response:
        return web.json_response(await bodies.run(lease))

    @locked("search:{q}", query={"q"})
    async def search(request: web.Request, lease: Lease) -> web.Response:
        return web.json_response(await bodies.run(lease))

    @locked("order:{order}")
    async def twice(request: web.Request, lease: Lease) -> web.Response:
        return web.json_response(await bodies.twice(lease))

    @locked("order:{order}", timeout=bodies.patience)
    async def stream(request: web.Request, lease: Lease) -> web.Response:
        return web.Response(body=bodies.stream(lease))

    @locked("order:{order}", timeout=bodies.patience, send_timeout=bodies.send_timeout)
    async def endless(request: web.Request, lease: Lease) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        async for piece in bodies.endless(lease):
            await response.write(piece)
        return response

    @locked("order:{order}", timeout=bodies.patience, scope="function")
    async def brief(request: web.Request, lease: Lease) -> web.Response:
        return web.Response(body=bodies.stream(lease))

    app = web.Application()
    app.router.add_post("/orders/{order}", orders)
    app.router.add_post("/now/{order}", now)
    app.router.add_post("/few/{order}", few)
    app.router.add_post("/search", search)
    app.router.add_post("/twice/{order}", twice)
    app.router.add_post("/stream/{order}", stream)
    app.router.add_post("/endless/{order}", endless)
    app.router.add_post("/brief/{order}", brief)
    setup(app, bodies.client)
    return app
