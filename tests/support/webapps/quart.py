"""The application in Quart."""

from typing import Any

from quart import Quart, request

from aiolock import Lease
from aiolock.integrations.quart import locked, setup
from tests.support.webapps.bodies import Bodies


def build(bodies: Bodies) -> Any:
    """It in Quart."""
    app = Quart(__name__)
    setup(app, bodies.client)

    @app.post("/orders/<order>")
    @locked("order:{order}", timeout=bodies.patience)
    async def orders(order: str, lease: Lease) -> Any:
        data = await request.get_data()
        assert isinstance(data, bytes)
        return await bodies.run(lease, data)

    @app.post("/now/<order>")
    @locked("order:{order}", timeout=0)
    async def now(order: str, lease: Lease) -> Any:
        return await bodies.run(lease)

    @app.post("/few/<order>")
    @locked("order:{order}", timeout=bodies.patience, max_waiters=1)
    async def few(order: str, lease: Lease) -> Any:
        return await bodies.run(lease)

    @app.post("/search")
    async def search() -> Any:
        return await search_for(request.args.get("q"))

    @locked("search:{q}")
    async def search_for(q: str | None, lease: Lease) -> Any:
        return await bodies.run(lease)

    @app.post("/twice/<order>")
    @locked("order:{order}")
    async def twice(order: str, lease: Lease) -> Any:
        return await bodies.twice(lease)

    @app.post("/stream/<order>")
    @locked("order:{order}", timeout=bodies.patience)
    async def stream(order: str, lease: Lease) -> Any:
        return bodies.stream(lease)

    @app.post("/endless/<order>")
    @locked("order:{order}", timeout=bodies.patience, send_timeout=bodies.send_timeout)
    async def endless(order: str, lease: Lease) -> Any:
        return bodies.endless(lease)

    @app.post("/brief/<order>")
    @locked("order:{order}", timeout=bodies.patience, scope="function")
    async def brief(order: str, lease: Lease) -> Any:
        return bodies.stream(lease)

    return app
