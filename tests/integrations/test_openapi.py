"""The OpenAPI documents of FastAPI and Litestar: they have the answers to errors of locks."""

from __future__ import annotations

import json
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse
from litestar import Litestar, Response
from litestar import get as litestar_get
from litestar import post as litestar_post
from litestar.openapi import ResponseSpec
from litestar.params import FromPath
from openapi_schema_validator import validate as validate_json
from openapi_spec_validator import validate

import aiolock
from aiolock import Lease
from aiolock.integrations import fastapi, litestar
from aiolock.stores.memory import MemoryServer
from tests.support.webapps.servers import serving

pytestmark = pytest.mark.one_loop

PROBLEM = "application/problem+json"
HELD = {"503": {"lock_lost", "lock_store", "shutting_down"}}
LIMITED = {"429": {"rate_limited"}, "503": {"lock_store", "shutting_down"}}


def with_fastapi(client: aiolock.LockClient, **options: Any) -> FastAPI:
    """Path operations under locks, limits and keys."""
    app = FastAPI(**options)
    router = APIRouter(prefix="/{tenant}", dependencies=[fastapi.locked("tenant:{tenant}")])

    @app.post("/orders/{order}")
    async def pay(
        order: str, lease: Annotated[Lease, fastapi.locked("order:{order}", timeout=0.05)]
    ) -> None:
        """Under a lock."""

    @app.post("/now", dependencies=[fastapi.locked("now", timeout=0, max_waiters=5)])
    async def now() -> None:
        """Under a lock without a field."""

    @app.post("/ever", dependencies=[fastapi.locked("ever", timeout=None)])
    async def ever() -> None:
        """Which waits as long as it takes."""

    @app.get("/quotes", dependencies=[fastapi.rate_limited("quotes", 1, per=3600)])
    async def quotes() -> None:
        """Under a limit."""

    key = fastapi.idempotent(application="shop", remember=60, who=lambda: "ann")

    @app.post("/charges", dependencies=[key])
    async def charges() -> None:
        """Under a key."""

    @router.put("/docs", responses={423: {"description": "Mine"}})
    async def put(tenant: int) -> None:
        """Under the lock of a router, with a response of its own."""

    @app.post("/by-hand", responses=fastapi.RESPONSES)
    async def by_hand(locks: fastapi.Client) -> None:
        """With locks of its own."""

    @app.get("/mine", dependencies=[fastapi.rate_limited("mine", 1, per=3600, who=lambda: "ann")])
    async def mine() -> None:
        """Under the limit of an owner."""

    @app.get("/plain")
    async def plain() -> None:
        """Without any."""

    app.include_router(router)
    fastapi.setup(app, client)
    return app


def with_litestar(client: aiolock.LockClient, **options: Any) -> Litestar:
    """The same in Litestar, as far as it has them."""

    @litestar_post("/orders/{order:str}")
    @litestar.locked("order:{order}", timeout=0.05)
    async def pay(order: FromPath[str], lease: Lease) -> None:
        """Under a lock."""

    @litestar_post("/now", responses={409: ResponseSpec(None, description="Mine")})
    @litestar.locked("now", timeout=0, max_waiters=5)
    async def now() -> None:
        """Under a lock without a field, with a response of its own."""

    @litestar_get("/quotes", guards=[litestar.rate_limited("quotes", 1, per=3600)])
    async def quotes() -> None:
        """Under a limit."""

    @litestar_get("/plain")
    async def plain() -> None:
        """Without any."""

    return Litestar([pay, now, quotes, plain], plugins=[litestar.Locks(client)], **options)


def document_of(app: FastAPI | Litestar) -> dict[str, Any]:
    """The document, which is valid."""
    found = app.openapi() if isinstance(app, FastAPI) else app.openapi_schema.to_schema()
    document: dict[str, Any] = json.loads(json.dumps(found))
    validate(document)
    return document


def answers(document: dict[str, Any], method: str, path: str) -> dict[str, set[str]]:
    """The codes of our answers in an operation, by status."""
    responses = document["paths"][path][method]["responses"]
    return {
        status: set(response["content"][PROBLEM]["schema"]["properties"]["code"]["enum"])
        for status, response in responses.items()
        if PROBLEM in response.get("content", {})
    }


def test_fastapi_document_has_the_answers_of_each_operation() -> None:
    """Those that it may give, by its own options, and no others; each time that it is asked for."""
    app = with_fastapi(aiolock.connect("memory://"))
    document = document_of(app)
    assert document_of(app) == document
    named = {"400": {"bad_lock_name"}, **HELD}
    full = {"429": {"lock_queue_full"}}
    assert answers(document, "post", "/orders/{order}") == {"423": {"lock_busy"}, **named}
    assert answers(document, "post", "/now") == {"409": {"lock_busy"}, **full, **HELD}
    assert answers(document, "post", "/ever") == HELD
    assert answers(document, "get", "/quotes") == LIMITED
    assert answers(document, "get", "/mine") == {"400": {"bad_lock_name"}, **LIMITED}
    assert answers(document, "post", "/charges") == {
        "400": {"idempotency_key"},
        "409": {"idempotency_under_way", "idempotency_not_kept"},
        "413": {"idempotency_body"},
        "422": {"idempotency_mismatch"},
        **HELD,
    }
    assert answers(document, "put", "/{tenant}/docs") == {"423": {"lock_busy"}, **named}
    assert answers(document, "post", "/by-hand") == {
        "409": {"lock_busy"},
        "423": {"lock_busy"},
        **HELD,
        "429": {"rate_limited", "lock_queue_full"},
    }
    assert answers(document, "get", "/plain") == {}
    put = document["paths"]["/{tenant}/docs"]["put"]["responses"]
    assert put["423"]["description"] == "Mine"
    assert put["423"]["headers"]["Retry-After"]["schema"]["type"] == "integer"
    charges = document["paths"]["/charges"]["post"]["responses"]
    assert "application/json" in charges["422"]["content"]


def test_fastapi_document_that_was_asked_for_before_walks_no_routes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FastAPI keeps it; of other routes it makes another one."""
    app = with_fastapi(aiolock.connect("memory://"))
    document_of(app)
    with monkeypatch.context() as patch:
        patch.setattr(fastapi, "of_marks", None)
        document_of(app)

    @app.get("/more", dependencies=[fastapi.locked("more")])
    async def more() -> None:
        """Under a lock."""

    app.openapi_schema = None
    assert answers(document_of(app), "get", "/more") == {"423": {"lock_busy"}, **HELD}


def test_litestar_document_has_the_answers_of_each_handler() -> None:
    """Beside those that it has for other reasons."""
    document = document_of(with_litestar(aiolock.connect("memory://")))
    named = {"400": {"bad_lock_name"}, **HELD}
    full = {"429": {"lock_queue_full"}}
    assert answers(document, "post", "/orders/{order}") == {"423": {"lock_busy"}, **named}
    assert answers(document, "post", "/now") == {"409": {"lock_busy"}, **full, **HELD}
    assert answers(document, "get", "/quotes") == LIMITED
    assert answers(document, "get", "/plain") == {}
    pay = document["paths"]["/orders/{order}"]["post"]["responses"]
    assert "application/json" in pay["400"]["content"]
    assert "201" in pay
    assert pay["423"]["headers"]["Retry-After"]["schema"]["type"] == "integer"
    assert document["paths"]["/now"]["post"]["responses"]["409"]["description"] == "Mine"


async def busy(request: Request, error: Exception) -> JSONResponse:
    """A handler of the application's own."""
    return JSONResponse({}, 418)


def test_document_leaves_out_errors_that_the_application_answers_itself() -> None:
    """Its answer is not ours; also if it has said so after `setup`."""
    app = with_fastapi(aiolock.connect("memory://"))
    app.add_exception_handler(aiolock.AcquireTimeout, busy)
    named = {"400": {"bad_lock_name"}, **HELD}
    assert answers(document_of(app), "post", "/orders/{order}") == named
    handlers: Any = {aiolock.AcquireTimeout: lambda *_: Response({}, status_code=418)}
    litestar_app = with_litestar(aiolock.connect("memory://"), exception_handlers=handlers)
    assert answers(document_of(litestar_app), "post", "/orders/{order}") == named


async def test_fastapi_document_that_is_replaced_after_setup_has_them_from_the_start() -> None:
    """As FastAPI's own page says how to extend it."""
    app = with_fastapi(aiolock.connect("memory://"))

    def openapi() -> dict[str, Any]:
        found = FastAPI.openapi(app)
        found["info"]["title"] = "Mine"
        return found

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI says that it is extended
    for _ in range(2):  # it may start twice
        async with app.router.lifespan_context(app):
            pass
    document = document_of(app)
    assert document["info"]["title"] == "Mine"
    assert "423" in answers(document, "post", "/orders/{order}")


@pytest.mark.parametrize("framework", ["fastapi", "litestar"])
async def test_answers_are_as_the_document_says(framework: str) -> None:
    """Their bodies, types and headers."""
    memory = MemoryServer()
    client = aiolock.connect(memory)
    app = with_fastapi(client) if framework == "fastapi" else with_litestar(client)
    document = document_of(app)
    async with (
        aiolock.connect(memory) as others,
        serving(framework, app) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        async with others.lock("order:7"), others.lock("now"):
            replies = {
                ("post", "/orders/{order}", "423"): await http.post("/orders/7"),
                ("post", "/now", "409"): await http.post("/now"),
            }
        long = f"/orders/{'x' * 600}"
        replies["post", "/orders/{order}", "400"] = await http.post(long)
        await http.get("/quotes")
        replies["get", "/quotes", "429"] = await http.get("/quotes")
    for (method, path, status), reply in replies.items():
        documented = document["paths"][path][method]["responses"][status]
        assert str(reply.status_code) == status
        assert reply.headers["Content-Type"] == PROBLEM
        validate_json(reply.json(), documented["content"][PROBLEM]["schema"])
        assert ("Retry-After" in reply.headers) == ("Retry-After" in documented.get("headers", {}))
