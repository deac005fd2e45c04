"""Django's middleware for idempotency keys, under WSGI and ASGI."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path

from aiolock.integrations._kept import LONGEST_BODY
from aiolock.integrations.django import IdempotencyMiddleware, close, sync_client
from aiolock.stores.memory import MemoryServer
from tests.integrations.test_django_views import add, stock
from tests.integrations.test_django_views import database as database  # noqa: PLC0414  # a fixture
from tests.support.failures import until, wait_until
from tests.support.webapps.django import Handler, configure

configure()

pytestmark = pytest.mark.one_loop

KEYS: dict[str, Any] = {"application": "shop", "remember": 60, "who": f"{__name__}.owner"}


def owner(request: HttpRequest) -> str:
    """The owner of a request."""
    return request.headers.get("Authorization", "")


async def owner_async(request: HttpRequest) -> str:
    """It too, where that is asked for in a database."""
    return owner(request)


@contextlib.contextmanager
def serving(view: Callable[..., Any], **settings: Any) -> Iterator[None]:
    """An application with one view."""
    needed: dict[str, Any] = {
        "ROOT_URLCONF": (path("", view), path("other", view)),
        "MIDDLEWARE": ["aiolock.integrations.django.IdempotencyMiddleware"],
        "AIOLOCK": {"target": MemoryServer()},
        "AIOLOCK_IDEMPOTENCY": KEYS,
    }
    with override_settings(**{**needed, **settings}):
        yield


class Charges:
    """A view that counts, synchronous or asynchronous."""

    def __init__(self) -> None:
        self.count = 0
        self.status = 200

    def now(self, request: HttpRequest) -> HttpResponse:
        self.count += 1
        response = HttpResponse(f"charge {self.count}", status=self.status)
        response["X-Number"] = str(self.count)
        response.set_cookie("seen", "yes", path="/", httponly=True)
        return response

    async def later(self, request: HttpRequest) -> HttpResponse:
        return self.now(request)


def post(path: str = "/", body: bytes = b"n=1", key: str = "k", who: str = "ann") -> Any:
    """The response to a request with a key."""
    headers = {"Idempotency-Key": key, "Authorization": who}
    return Client(raise_request_exception=False).post(
        path, body, content_type="application/x-www-form-urlencoded", headers=headers
    )


async def post_async(body: bytes = b"n=1", key: str = "k") -> Any:
    """It by the asynchronous client, whose handler is that of ASGI."""
    headers = {"Idempotency-Key": key}
    async with ThreadSensitiveContext():  # a thread of its own, as in a server
        return await AsyncClient(raise_request_exception=False).post(
            "/", body, content_type="application/x-www-form-urlencoded", headers=headers
        )


@pytest.mark.parametrize("who", [owner, owner_async])
def test_middleware_sends_the_first_response_to_all_requests_with_a_key(who: Any) -> None:
    """With its headers and cookies; another owner, another key, another body are others."""
    charges = Charges()
    with serving(charges.now, AIOLOCK_IDEMPOTENCY={**KEYS, "who": who}):
        first, again = post(), post()
        assert first.content == again.content == b"charge 1"
        assert again["Idempotent-Replayed"] == "true"
        assert again["X-Number"] == first["X-Number"] == "1"
        assert again["Content-Type"] == first["Content-Type"]
        assert again.cookies["seen"].OutputString() == first.cookies["seen"].OutputString()
        assert "Idempotent-Replayed" not in first
        assert post(who="bob").content == b"charge 2"
        assert post(key="l").content == b"charge 3"
        for other in (post(body=b"n=2"), post("/other"), post("/?n=1")):
            assert (other.status_code, other.json()["code"]) == (422, "idempotency_mismatch")
        assert Client().post("/").content == b"charge 4"  # without a key
        assert Client().get("/", headers={"Idempotency-Key": "k"}).content == b"charge 5"
        assert post(key="x" * 256).json()["code"] == "idempotency_key"
        assert post(body=b"x" * 1_100_000).status_code == 413
    assert charges.count == 5


async def test_middleware_under_asgi_sends_the_first_response_to_all() -> None:
    """Of an asynchronous view, and of one that runs in a thread."""
    for view in ("now", "later"):
        charges = Charges()
        with serving(getattr(charges, view)):
            assert (await post_async()).content == (await post_async()).content == b"charge 1"
            assert (await post_async(b"n=2")).status_code == 422
            await close()


@pytest.mark.parametrize("size", [LONGEST_BODY, LONGEST_BODY + 1])
async def test_middleware_refuses_a_long_body_that_comes_without_its_length(size: int) -> None:
    """As one that is sent in chunks; the longest is carried out."""
    pieces = [b"x" * 65_536] * (size // 65_536) + [b"x" * (size % 65_536)]
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages.append({"type": "http.request"})
    headers = [(b"idempotency-key", b"k"), (b"content-type", b"text/plain")]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
    sent = list[Any]()

    async def receive() -> Any:
        if messages:
            return messages.pop(0)
        return await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    charges = Charges()
    with serving(charges.now):
        async with ThreadSensitiveContext():
            await Handler()(scope, receive, send)
        await close()
    refused = size > LONGEST_BODY
    assert sent[0]["status"] == (413 if refused else 200)
    assert charges.count == (not refused)


@pytest.mark.parametrize("later", [False, True])
async def test_middleware_with_an_owner_out_of_the_form_compares_the_body(later: bool) -> None:
    """`who` may read the form: in several parts, it can be read once."""

    def of_form(request: HttpRequest) -> str:
        return request.POST["user"]

    charges = Charges()
    view = charges.later if later else charges.now
    with serving(view, AIOLOCK_IDEMPOTENCY={**KEYS, "who": of_form}):
        for _ in range(2):
            async with ThreadSensitiveContext():
                answer = await AsyncClient().post(
                    "/", {"user": "ann"}, headers={"Idempotency-Key": "k"}
                )
            assert answer.content == b"charge 1"
        await close()


@pytest.mark.parametrize("status", [500, 429, 404])
def test_middleware_keeps_a_refusal_but_no_response_to_try_again(status: int) -> None:
    """A request that may be sent again is carried out again."""
    charges = Charges()
    charges.status = status
    with serving(charges.now):
        assert [post().status_code for _ in range(2)] == [status, status]
    assert charges.count == (1 if status == 404 else 2)


def test_middleware_answers_409_while_the_first_is_under_way() -> None:
    """Of many at once, one is carried out."""
    go, count = threading.Event(), list[int]()

    def view(request: HttpRequest) -> HttpResponse:
        count.append(1)
        assert go.wait(60)
        return HttpResponse("done")

    with serving(view), ThreadPoolExecutor(1) as threads:
        first = threads.submit(post)
        wait_until(lambda: count)
        refused = post()
        assert (refused.status_code, refused["Retry-After"]) == (409, "1")
        assert refused.json()["code"] == "idempotency_under_way"
        go.set()
        assert first.result().content == b"done"
        assert post().content == b"done"
    assert count == [1]


@pytest.mark.usefixtures("database")
def test_middleware_keeps_a_response_after_the_commit_of_atomic_requests() -> None:
    """A view that fails is rolled back, and carried out again."""
    tries = list[int]()

    def view(request: HttpRequest) -> HttpResponse:
        tries.append(1)
        number = add()
        if len(tries) == 1:
            raise ZeroDivisionError
        return HttpResponse(f"sold {number}")

    with serving(view):
        replies = [post() for _ in range(3)]
    assert [reply.status_code for reply in replies] == [500, 200, 200]
    assert replies[2].content == b"sold 1"
    assert (stock(), len(tries)) == (1, 2)


def within(get_response: Any) -> Any:
    """Middleware with a transaction."""

    def middleware(request: HttpRequest) -> HttpResponse:
        with transaction.atomic():
            response: HttpResponse = get_response(request)
        return response

    return middleware


@pytest.mark.usefixtures("database")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_middleware_in_a_transaction_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """It would be kept before the commit."""
    ours = "aiolock.integrations.django.IdempotencyMiddleware"
    with serving(Charges().now, MIDDLEWARE=[f"{__name__}.within", ours]):
        assert post().status_code == 500
    assert "Put it before the middleware that begins the transaction" in caplog.text


def test_middleware_sends_a_long_or_streaming_response_and_remembers_it_as_done() -> None:
    """It is not kept: other requests with its key are told so."""
    long = b"x" * 50_000
    responses: list[Callable[[], HttpResponseBase]] = [
        lambda: HttpResponse(long),
        lambda: StreamingHttpResponse(iter([long])),
    ]
    for make in responses:
        with serving(lambda request, make=make: make()):
            first = post()
            assert b"".join(first) == long
            assert post().json()["code"] == "idempotency_not_kept"


def test_middleware_sends_the_response_of_a_sync_view_whose_lease_was_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was carried out, though the store does not remember it."""

    def view(request: HttpRequest) -> HttpResponse:
        (status,) = sync_client().snapshot()
        assert sync_client().break_(status.name, kind="once")
        return HttpResponse("done")

    with serving(view):
        assert post().content == b"done"
    assert "was lost" in caplog.text


def test_middleware_without_its_store_answers_503_and_carries_nothing_out() -> None:
    """It is not known whether it was done."""
    charges = Charges()
    with serving(charges.now, AIOLOCK={"target": "redis://127.0.0.1:1/0"}):
        assert post().status_code == 503
    assert charges.count == 0


@pytest.mark.parametrize("is_async", [True, False])
async def test_middleware_of_a_client_that_has_gone_completes_the_request(is_async: bool) -> None:
    """Nothing ends the thread of a synchronous view: so the next try waits for its response."""
    begun, go, count = threading.Event(), threading.Event(), list[int]()

    def now(request: HttpRequest) -> HttpResponse:
        count.append(1)
        begun.set()
        assert go.wait(60)
        return HttpResponse("done")

    async def later(request: HttpRequest) -> HttpResponse:
        count.append(1)
        begun.set()
        await until(go.is_set)
        return HttpResponse("done")

    with serving(later if is_async else now):
        asked = asyncio.create_task(post_async())
        await until(begun.is_set)
        asked.cancel()
        for _ in range(3):
            await asyncio.sleep(0)
        assert not asked.done()
        assert (await post_async()).json()["code"] == "idempotency_under_way"
        go.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asked
        assert (await post_async()).content == b"done"
        await close()
    assert count == [1]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (None, "must be"),
        ({"application": "shop"}, "missing"),
        ({**KEYS, "remember": -1}, "remember"),
        ({**KEYS, "who": "no.such.function"}, "no.such"),
        ({**KEYS, "who": 7}, "who must be a function"),
        ({**KEYS, "methods": "POST"}, "collection of names"),
    ],
)
def test_middleware_with_wrong_settings_raises_improperly_configured(keys: Any, text: str) -> None:
    """When the application starts, and it says what they must be."""
    with override_settings(AIOLOCK_IDEMPOTENCY=keys), pytest.raises(ImproperlyConfigured) as caught:
        IdempotencyMiddleware(lambda _: HttpResponse())
    assert text in str(caught.value)
    assert "settings.AIOLOCK_IDEMPOTENCY must be" in str(caught.value)


def test_middleware_with_an_owner_that_is_no_str_raises_type_error() -> None:
    """Equal owners of other types may be written differently."""
    with serving(Charges().now, AIOLOCK_IDEMPOTENCY={**KEYS, "who": lambda request: 7}):
        assert post().status_code == 500
