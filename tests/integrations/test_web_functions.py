"""Litestar and Quart: what the others have not."""

import asyncio
from typing import Any

import httpx
import pytest
from litestar import Litestar, Request, Response, WebSocket, get
from litestar import websocket as litestar_websocket
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath
from litestar.testing import TestClient
from quart import Quart, websocket

import aiolock
from aiolock import Lease
from aiolock.integrations import litestar, quart


async def no_parameter(order: str, lease: Lease) -> None:
    """A handler."""


async def whatever(*args: Any, **kwargs: Any) -> None:
    """Another, whose parameters have no names."""


@pytest.mark.parametrize("framework", [litestar, quart], ids=["litestar", "quart"])
def test_locked_with_an_unknown_field_or_a_plain_function_raises(framework: Any) -> None:
    """A field is a parameter of the function, which is async; the texts say so."""
    with pytest.raises(ValueError, match=r"needs item, .* no_parameter\(\) are order, lease"):
        framework.locked("{item}")(no_parameter)
    with pytest.raises(ValueError, match="needs lease"):
        framework.locked("{lease}")(no_parameter)
    for template, missing in (("{args}", "args"), ("{kwargs}", "kwargs"), ("{order}", "order")):
        with pytest.raises(ValueError, match=rf"needs {missing}, .* are \*args, \*\*kwargs"):
            framework.locked(template)(whatever)
    with pytest.raises(TypeError, match=r"async functions, .*aiolock\.sync\.connect"):
        framework.locked("{order}")(lambda order: order)
    assert framework.locked("{order}")(no_parameter).__name__ == "no_parameter"


def test_setup_with_invalid_arguments_or_twice_raises_type_or_value_error() -> None:
    """The texts say what to do."""
    app = Quart(__name__)
    with pytest.raises(TypeError, match=r"connect\(\)"):
        quart.setup(app, "memory://")  # type: ignore[arg-type]  # that is the test
    with pytest.raises(TypeError, match=r"connect\(\)"):
        litestar.Locks("memory://")  # type: ignore[arg-type]  # that is the test
    quart.setup(app, aiolock.connect("memory://"))
    with pytest.raises(ValueError, match="already"):
        quart.setup(app, aiolock.connect("memory://"))


async def test_quart_view_is_locked_after_each_start_or_answers_500_without_setup() -> None:
    """Without a lease, with a handler of one's own, started twice, and not set up."""

    @quart.locked("order:{order}", timeout=0)
    async def view(order: int) -> str:
        assert await quart.current_client().lock(f"order:{order}").locked()
        return "done"

    async def mine(error: Exception) -> tuple[str, int]:
        return "mine", 418

    client = aiolock.connect("memory://")
    app = Quart(__name__)
    app.register_error_handler(aiolock.AcquireTimeout, mine)
    quart.setup(app, client)
    app.add_url_rule("/<int:order>", view_func=view)
    for _ in range(2):
        async with app.test_app() as serving:
            http = serving.test_client()
            assert await (await http.get("/42")).get_data() == b"done"
            async with client.lock("order:42"):
                assert (await http.get("/42")).status_code == 418
    other = Quart(__name__)
    other.add_url_rule("/<int:order>", view_func=view)
    assert (await other.test_client().get("/42")).status_code == 500


async def test_litestar_handler_is_locked_after_each_start_or_500_without_plugin() -> None:
    """A field from a dependency, a handler of one's own, and an application not set up."""

    async def user(order: FromPath[int]) -> str:
        return f"ada{order}"

    @get("/{order:int}", dependencies={"user": Provide(user)})
    @litestar.locked("order:{order}:{user}", timeout=0)
    async def handler(
        order: FromPath[int], user: NamedDependency[str], request: Request[Any, Any, Any]
    ) -> bool:
        return await litestar.client_of(request).lock(f"order:{order}:{user}").locked()

    def mine(request: Request[Any, Any, Any], error: Exception) -> Response[str]:
        return Response("mine", status_code=418)

    client = aiolock.connect("memory://")
    app = Litestar(
        [handler],
        plugins=[litestar.Locks(client)],
        exception_handlers={aiolock.AcquireTimeout: mine},
    )
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")  # type: ignore[arg-type]  # in types of its own
    async with http:
        for _ in range(2):
            async with app.lifespan():
                assert (await http.get("/42")).json() is True
                async with client.lock("order:42:ada42"):
                    reply = await asyncio.create_task(http.get("/42"))
                    assert reply.status_code == 418
        assert (await http.get("/schema/openapi.json")).json()["paths"].keys() == {"/{order}"}
    other = Litestar([handler])
    http = httpx.AsyncClient(transport=httpx.ASGITransport(other), base_url="http://test")  # type: ignore[arg-type]  # in types of its own
    async with http:
        assert (await http.get("/42")).status_code == 500


async def test_quart_websocket_takes_a_lock_by_the_client_and_not_by_locked() -> None:
    """The error of the decorator says so; it is no request that could be answered."""
    app = Quart(__name__)
    quart.setup(app, aiolock.connect("memory://"))
    errors = list[RuntimeError]()

    @quart.locked("room")
    async def decorated() -> None:
        """Never called."""

    @app.websocket("/")
    async def room() -> None:
        try:
            await decorated()
        except RuntimeError as error:
            errors.append(error)
        async with quart.current_client().lock("room") as lease:
            await websocket.send(lease.name)

    async with app.test_app() as running, running.test_client().websocket("/") as socket:
        assert await socket.receive() == "room"
    assert "current_client().lock(" in str(errors[0])


def test_litestar_websocket_takes_a_lock_by_the_client() -> None:
    """It has the client of its application."""

    @litestar_websocket("/")
    async def room(socket: WebSocket[Any, Any, Any]) -> None:
        await socket.accept()
        async with litestar.client_of(socket).lock("room") as lease:
            await socket.send_text(lease.name)
        await socket.close()

    app = Litestar([room], plugins=[litestar.Locks(aiolock.connect("memory://"))])
    with TestClient(app) as http, http.websocket_connect("/") as socket:
        assert socket.receive_text() == "room"
