"""The application in Litestar."""

from typing import Any

from litestar import Controller, Litestar, Request, post
from litestar.params import FromPath, FromQuery
from litestar.response import Stream

from aiolock import Lease
from aiolock.integrations.litestar import Locks, locked
from tests.support.webapps.bodies import Bodies


def build(bodies: Bodies) -> Any:
    """It in Litestar."""

    @post("/orders/{order:str}", status_code=200)
    @locked("order:{order}", timeout=bodies.patience, send_timeout=bodies.send_timeout)
    async def orders(
        request: Request[Any, Any, Any], order: FromPath[str], lease: Lease
    ) -> dict[str, Any]:
        return await bodies.run(lease, await request.body())

    class Others(Controller):
        @post("/now/{order:str}", status_code=200)
        @locked("order:{order}", timeout=0)
        async def now(self, order: FromPath[str], lease: Lease) -> dict[str, Any]:
            return await bodies.run(lease)

        @post("/few/{order:str}", status_code=200)
        @locked("order:{order}", timeout=bodies.patience, max_waiters=1)
        async def few(self, order: FromPath[str], lease: Lease) -> dict[str, Any]:
            return await bodies.run(lease)

    @post("/search", status_code=200)
    @locked("search:{q}")
    async def search(lease: Lease, q: FromQuery[str | None] = None) -> dict[str, Any]:
        return await bodies.run(lease)

    @post("/twice/{order:str}", status_code=200)
    @locked("order:{order}")
    async def twice(order: FromPath[str], lease: Lease) -> dict[str, Any]:
        return await bodies.twice(lease)

    @post("/stream/{order:str}", status_code=200)
    @locked("order:{order}", timeout=bodies.patience)
    async def stream(order: FromPath[str], lease: Lease) -> Stream:
        return Stream(bodies.stream(lease))

    @post("/endless/{order:str}", status_code=200)
    @locked("order:{order}", timeout=bodies.patience, send_timeout=bodies.send_timeout)
    async def endless(order: FromPath[str], lease: Lease) -> Stream:
        return Stream(bodies.endless(lease))

    @post("/brief/{order:str}", status_code=200)
    @locked("order:{order}", timeout=bodies.patience, scope="function")
    async def brief(order: FromPath[str], lease: Lease) -> Stream:
        return Stream(bodies.stream(lease))

    handlers: list[Any] = [orders, Others, search, twice, stream, endless, brief]
    return Litestar(handlers, plugins=[Locks(bodies.client)])
