"""The application in FastAPI."""

from typing import Annotated, Any

from fastapi import FastAPI, Request

from aiolock import Lease
from aiolock.integrations.fastapi import locked, setup
from tests.webapps.bodies import Bodies


def build(bodies: Bodies) -> Any:
    """It in FastAPI."""
    app = FastAPI()
    setup(app, bodies.client)
    waiting = locked("order:{order}", timeout=bodies.patience)
    trying = locked("order:{order}", timeout=0)
    few_wait = locked("order:{order}", timeout=bodies.patience, max_waiters=1)
    of_query = locked("search:{q}", query={"q"})

    @app.post("/orders/{order}")
    async def orders(request: Request, lease: Annotated[Lease, waiting]) -> Any:
        return await bodies.run(lease, await request.body())

    @app.post("/now/{order}")
    async def now(lease: Annotated[Lease, trying]) -> Any:
        return await bodies.run(lease)

    @app.post("/few/{order}")
    async def few(lease: Annotated[Lease, few_wait]) -> Any:
        return await bodies.run(lease)

    @app.post("/search")
    async def search(lease: Annotated[Lease, of_query]) -> Any:
        return await bodies.run(lease)

    @app.post("/twice/{order}")
    async def twice(lease: Annotated[Lease, waiting]) -> Any:
        return await bodies.twice(lease)

    return app
