"""The application in FastAPI."""

from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from aiolock import Lease
from aiolock.integrations.fastapi import locked, setup
from tests.support.webapps.bodies import Bodies


def build(bodies: Bodies) -> Any:
    """It in FastAPI."""
    app = FastAPI()
    setup(app, bodies.client)
    waiting = locked("order:{order}", timeout=bodies.patience)
    trying = locked("order:{order}", timeout=0)
    few_wait = locked("order:{order}", timeout=bodies.patience, max_waiters=1)
    slow = locked("order:{order}", timeout=bodies.patience, send_timeout=bodies.send_timeout)
    short = locked("order:{order}", timeout=bodies.patience, scope="function")
    of_query = locked("search:{q}", query={"q"})

    @app.post("/orders/{order}")
    async def orders(request: Request, lease: Annotated[Lease, slow]) -> Any:
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

    @app.post("/stream/{order}")
    async def stream(lease: Annotated[Lease, waiting]) -> Any:
        return StreamingResponse(bodies.stream(lease))

    @app.post("/endless/{order}")
    async def endless(lease: Annotated[Lease, slow]) -> Any:
        return StreamingResponse(bodies.endless(lease))

    @app.post("/brief/{order}")
    async def brief(lease: Annotated[Lease, short]) -> Any:
        return StreamingResponse(bodies.stream(lease))

    return app
