"""Transactions of Django and locks: no lock is released before what it protects is committed."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import subprocess
import sys
import threading
import unittest
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import django.db
import httpx
import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.db import connections, transaction
from django.http import (
    FileResponse,
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    StreamingHttpResponse,
)
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncRequestFactory, TestCase, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

import aiolock
import aiolock.sync
from aiolock.integrations.django import client as client_of_loop
from aiolock.integrations.django import close, ignore_transactions, locked
from aiolock.integrations.idempotency import Idempotency
from aiolock.stores.memory import MemoryServer
from tests.project.test_docs import BLOCK, ROOT, URL
from tests.support.databases import PostgresServer
from tests.support.failures import until
from tests.support.servers import RedisServer
from tests.support.webapps.django import configure

configure()

pytestmark = pytest.mark.one_loop

REFUSED = r"is used in a transaction of the database '{}'"


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """PostgreSQL, which Django knows by two names."""
    here = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "postgres",
        "HOST": "127.0.0.1",
        "PORT": postgres_server.port,
    }
    before = connections.settings
    connections.settings = connections.configure_settings({"default": {**here}, "other": {**here}})
    postgres_server.execute("CREATE TABLE stock (item text PRIMARY KEY, n int)")
    postgres_server.execute("INSERT INTO stock VALUES ('a', 0)")
    try:
        yield postgres_server
    finally:
        connections.close_all()
        for alias in ("default", "other"):
            with contextlib.suppress(AttributeError):
                del connections[alias]
        connections.settings = before
        postgres_server.execute("DROP TABLE stock")


@pytest.fixture
def client() -> Iterator[aiolock.sync.LockClient]:
    """A client for threads."""
    with aiolock.sync.connect(MemoryServer()) as client:
        yield client


@contextlib.contextmanager
def without_autocommit() -> Iterator[None]:
    """A query has begun a transaction, of which Django does not know."""
    transaction.set_autocommit(False)
    try:
        add()
        yield
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@contextlib.contextmanager
def nested() -> Iterator[None]:
    """A savepoint."""
    with transaction.atomic(), transaction.atomic():
        yield


@contextlib.contextmanager
def after_a_savepoint() -> Iterator[None]:
    """A block that goes on after an inner one was rolled back."""
    with transaction.atomic():
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            raise ZeroDivisionError
        yield


TRANSACTIONS: dict[str, tuple[str, Callable[[], Any]]] = {
    "atomic": ("default", transaction.atomic),
    "durable": ("default", lambda: transaction.atomic(durable=True)),
    "nested": ("default", nested),
    "after a savepoint": ("default", after_a_savepoint),
    "another database": ("other", lambda: transaction.atomic(using="other")),
    "without autocommit": ("default", without_autocommit),
}


def enter(context: Any) -> None:
    """Enter it, and leave it."""
    with context:
        pass


WAYS: dict[str, Callable[[aiolock.sync.LockClient], object]] = {
    "lock": lambda client: enter(client.lock("a")),
    "acquire": lambda client: client.lock("a").acquire(),
    "try": lambda client: client.lock("a").try_acquire(),
    "decorator": lambda client: client.locked("a")(add)(),
    "multilock": lambda client: enter(client.multilock("a", "b")),
    "multilock, acquire": lambda client: client.multilock("a", "b").acquire(),
    "read": lambda client: enter(client.rwlock("a").read()),
    "write": lambda client: client.rwlock("a").write().acquire(),
    "semaphore": lambda client: enter(client.semaphore("a", 1)),
    "permits": lambda client: client.semaphore("a", 3).acquire(2),
    "once": lambda client: enter(client.once("a", remember=60)),
    "outcome": lambda client: client.once("a", remember=60).outcome(lambda _: "done"),
    "periodic": lambda client: enter(client.periodic("a", every=60)),
    "campaign": lambda client: enter(client.election("a").campaign()),
    "event": lambda client: client.event("a").set(),
    "latch": lambda client: client.latch("a", 2).count_down(),
}


def add() -> None:
    """Read, modify and write."""
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT n FROM stock WHERE item = 'a'")
        (number,) = cursor.fetchone()
        cursor.execute("UPDATE stock SET n = %s WHERE item = 'a'", [number + 1])


def stock(server: PostgresServer) -> int:
    """What is committed."""
    ((number,),) = server.execute("SELECT n FROM stock")
    assert isinstance(number, int)
    return number


@pytest.mark.parametrize("how", TRANSACTIONS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("database")
def test_acquire_of_any_primitive_in_a_transaction_raises_runtime_error(
    client: aiolock.sync.LockClient, how: str, way: str
) -> None:
    """Before anything is done; and after the transaction it works."""
    alias, begin = TRANSACTIONS[how]
    with begin():
        with pytest.raises(RuntimeError, match=REFUSED.format(alias)):
            WAYS[way](client)
        assert client.names() == []
    taken = WAYS[way](client)
    if isinstance(taken, aiolock.sync.Lease | aiolock.sync.MultiLease):
        taken.release()


def test_lock_after_a_rollback_or_a_refusal_can_be_acquired(
    client: aiolock.sync.LockClient, database: PostgresServer
) -> None:
    """Nothing is left of a transaction that failed, nor of a lock whose body failed."""

    def fail() -> None:
        with client.lock("a", timeout=0), transaction.atomic():
            add()
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fail()
        with pytest.raises(RuntimeError), transaction.atomic(), client.lock("a"):
            raise AssertionError
    with client.lock("a", timeout=0), transaction.atomic():
        add()
    assert stock(database) == 1


def test_lease_entered_in_a_transaction_is_refused_and_released(
    client: aiolock.sync.LockClient, database: PostgresServer
) -> None:
    """Refused, and released: nothing else would release it."""
    lease = client.lock("a").acquire()

    @transaction.atomic
    def work() -> None:
        add()
        with lease:
            raise AssertionError

    with pytest.raises(RuntimeError, match="in a transaction"):
        work()
    assert not client.lock("a").locked()
    assert stock(database) == 0


@pytest.mark.parametrize("how", ["lease", "lock", "multilock", "exit"])
def test_release_in_a_transaction_raises_and_rolls_it_back(
    client: aiolock.sync.LockClient, database: PostgresServer, how: str
) -> None:
    """The lock is free, so nothing of the transaction may be seen."""
    lock = client.lock("a")

    def work() -> None:
        add()
        if how == "exit":
            stack.close()
        elif how == "lock":
            lock.release()
        else:
            taken.release()

    with contextlib.ExitStack() as stack:
        taken: Any = client.multilock("a", "b").acquire() if how == "multilock" else None
        if how == "exit":
            stack.enter_context(lock)
        else:
            taken = taken or lock.acquire()
        with (
            pytest.raises(
                RuntimeError, match="released in a transaction of the database 'default'"
            ),
            transaction.atomic(),
        ):
            work()
    assert client.names() == []
    assert stock(database) == 0
    with transaction.atomic():
        if how in ("lease", "multilock"):
            taken.release()  # once more, as `finally` does
        add()
    assert stock(database) == 1


def test_exit_in_a_transaction_raises_while_another_error_is_handled(
    client: aiolock.sync.LockClient, database: PostgresServer
) -> None:
    """As where work is tried again: that error is not the body's."""
    transaction.set_autocommit(False)
    try:
        _ = 1 // 0
    except ZeroDivisionError:
        with pytest.raises(RuntimeError, match="released in a transaction"), client.lock("a"):
            add()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert stock(database) == 0


@pytest.mark.usefixtures("database")
def test_release_in_a_transaction_keeps_the_error_of_its_body(
    client: aiolock.sync.LockClient,
) -> None:
    """A release in a `finally` does not replace it."""
    lease = client.lock("a").acquire()

    @transaction.atomic
    def work() -> None:
        try:
            raise ZeroDivisionError
        finally:
            lease.release()

    with pytest.raises(ZeroDivisionError):
        work()


def test_release_without_autocommit_is_refused_unless_committed_before(
    client: aiolock.sync.LockClient, database: PostgresServer
) -> None:
    """Where the program commits by itself, only an open transaction is in the way."""
    connections["default"].ensure_connection()
    transaction.set_autocommit(False)
    try:
        with client.lock("a"):
            add()
            transaction.commit()
        with pytest.raises(RuntimeError, match="released in a transaction"), client.lock("a"):
            add()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert stock(database) == 1


@pytest.mark.usefixtures("database")
def test_ignore_transactions_allows_acquire_in_a_transaction(
    client: aiolock.sync.LockClient,
) -> None:
    """The program says so."""
    with transaction.atomic():
        with ignore_transactions(), client.lock("printer"):
            pass
        with ignore_transactions():
            client.lock("printer").acquire().release()
        with pytest.raises(RuntimeError), client.lock("printer"):
            raise AssertionError


@pytest.mark.usefixtures("database")
def test_acquire_beside_a_transaction_of_another_thread_is_allowed(
    client: aiolock.sync.LockClient,
) -> None:
    """Each thread has its own."""
    with transaction.atomic(), ThreadPoolExecutor(1) as threads:
        add()
        threads.submit(enter, client.lock("a")).result()


@pytest.mark.usefixtures("database")
def test_acquire_in_the_transaction_of_a_test_case_is_allowed(
    client: aiolock.sync.LockClient,
) -> None:
    """It stands for the database of the test; a block in it is one as ever."""

    class Case(TestCase):
        def test_it(self) -> None:
            with client.lock("a"), transaction.atomic():
                add()
            with transaction.atomic(), pytest.raises(RuntimeError, match="in a transaction"):
                client.lock("a").acquire()

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    assert (result.testsRun, result.errors, result.failures) == (1, [], [])


def test_acquire_without_a_database_is_allowed(client: aiolock.sync.LockClient) -> None:
    """A program that has imported Django, and no more."""
    assert django.db.connections.settings["default"]["ENGINE"] == "django.db.backends.dummy"
    with client.lock("a"):
        pass


def get(app: Any, url: str) -> tuple[str, str]:
    """The status and the text that a WSGI server gets."""
    statuses = list[str]()
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": url,
        "SERVER_NAME": "shop",
        "SERVER_PORT": "80",
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": io.StringIO(),
        "wsgi.url_scheme": "http",
    }
    reply = app(environ, lambda status, _: statuses.append(status))
    try:
        return statuses[0], b"".join(reply).decode()
    finally:
        reply.close()


def test_acquire_in_a_view_under_atomic_requests_is_refused_unless_exempt(
    client: aiolock.sync.LockClient,
    database: PostgresServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each request fails, and says why; without the request's own transaction, all are counted."""
    connections.settings["default"]["ATOMIC_REQUESTS"] = True

    def inside(request: HttpRequest) -> HttpResponse:
        add()
        with client.lock("a"):
            add()
        return HttpResponse()

    @transaction.non_atomic_requests
    def outside(request: HttpRequest) -> HttpResponse:
        with client.lock("a"), transaction.atomic():
            add()
        return HttpResponse()

    urls = (path("inside", inside), path("outside", outside))
    with override_settings(ROOT_URLCONF=urls), ThreadPoolExecutor(4) as threads:
        app = get_wsgi_application()
        assert {get(app, "/inside")[0] for _ in range(3)} == {"500 Internal Server Error"}
        assert "@transaction.non_atomic_requests" in caplog.text
        assert stock(database) == 0
        replies = list(threads.map(get, [app] * 20, ["/outside"] * 20))
    assert {status for status, _ in replies} == {"200 OK"}
    assert stock(database) == 20


def test_acquire_in_a_class_view_exempt_from_atomic_requests_is_allowed(
    client: aiolock.sync.LockClient, database: PostgresServer
) -> None:
    """As the page has it."""
    connections.settings["default"]["ATOMIC_REQUESTS"] = True

    @method_decorator(transaction.non_atomic_requests, name="dispatch")
    class Outside(View):
        def get(self, request: HttpRequest) -> HttpResponse:
            with client.lock("a"), transaction.atomic():
                add()
            return HttpResponse()

    with override_settings(ROOT_URLCONF=(path("", Outside.as_view()),)):
        assert get(get_wsgi_application(), "/")[0] == "200 OK"
    assert stock(database) == 1


def test_check_of_a_lost_lease_in_a_transaction_rolls_it_back(
    client: aiolock.sync.LockClient, database: PostgresServer
) -> None:
    """What was written without the lock is never committed."""

    def work() -> None:
        with client.lock("a") as lease, transaction.atomic():
            add()
            client.lock("a").break_()
            lease.lost.wait(60)
            lease.check()

    with pytest.raises(aiolock.LeaseLost):
        work()
    assert stock(database) == 0


async def test_idempotency_under_atomic_requests_keeps_only_committed_responses(
    database: PostgresServer,
) -> None:
    """With `ATOMIC_REQUESTS`: a commit that fails is no answer to keep, and it is done again."""
    connections.settings["default"]["ATOMIC_REQUESTS"] = True
    database.execute(
        "ALTER TABLE stock ADD COLUMN like_item text REFERENCES stock DEFERRABLE INITIALLY DEFERRED"
    )
    tries = list[str]()

    def view(request: HttpRequest) -> HttpResponse:
        add()
        with connections["default"].cursor() as cursor:  # the first time, the commit refuses it
            like = "none" if not tries else "a"
            cursor.execute("UPDATE stock SET like_item = %s", [like])
        tries.append(like)
        return HttpResponse(f"sold {len(tries)}")

    memory = aiolock.connect(MemoryServer())
    settings: Any = {"ROOT_URLCONF": (path("", view),), "MIDDLEWARE": []}
    with override_settings(**settings):
        app = Idempotency(
            get_asgi_application(),
            client=memory,
            application="shop",
            remember=60,
            who=lambda _: "ada",
        )
        transport: Any = httpx.ASGITransport(app)
        http = httpx.AsyncClient(transport=transport, base_url="http://shop")
        async with memory, http:
            replies = [await http.post("/", headers={"Idempotency-Key": "1"}) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [500, 200, 200]
    assert replies[2].text == replies[1].text == "sold 2"
    assert stock(database) == 1


@pytest.mark.usefixtures("database")
def test_client_in_async_code_of_a_transaction_is_refused() -> None:
    """Of a view that is synchronous itself: its ORM is in the view's transaction."""

    async def pay() -> None:
        await client_of_loop()

    with (
        override_settings(AIOLOCK={"target": MemoryServer()}),
        pytest.raises(RuntimeError, match=r"client\(\)' is used in a transaction"),
        transaction.atomic(),
    ):
        async_to_sync(pay)()


class Within:
    """Middleware of the old kind, with a transaction around each view."""

    def __init__(self, get_response: Any) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Of one request."""
        with transaction.atomic():
            response: HttpResponseBase = self._get_response(request)
        return response


def test_locked_and_once_functions_that_return_unfinished_work_are_refused(
    client: aiolock.sync.LockClient,
) -> None:
    """A decorated function does all its work under the lock, or fails."""

    def pieces() -> Iterator[bytes]:
        yield b"text"

    async def coroutine() -> None:
        """Never awaited."""

    class Streamed:
        is_streamed = True

    for decorate in (client.locked("a"), client.once("a", remember=60)):
        with pytest.raises(TypeError, match="is a generator"):
            decorate(pieces)
        for make in (lambda: StreamingHttpResponse(pieces()), pieces, coroutine, Streamed):

            def function(make: Callable[[], object] = make) -> object:
                return make()

            with pytest.raises(RuntimeError, match="whose work would be done without the lock"):
                decorate(function)()
            assert client.names() == []
        assert decorate(lambda: HttpResponse("text"))().content == b"text"  # type: ignore[union-attr]  # done now


@pytest.mark.usefixtures("database")
async def test_locked_async_view_in_the_transaction_of_a_middleware_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is in another thread than the view, and what the view's ORM does is in it."""

    @locked("a")
    async def view(request: HttpRequest) -> HttpResponse:
        raise AssertionError

    settings: Any = {
        "AIOLOCK": {"target": MemoryServer()},
        "ROOT_URLCONF": (path("", view),),
        "MIDDLEWARE": [f"{__name__}.Within"],
    }
    with override_settings(**settings):
        app: Any = get_asgi_application()
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
            assert (await http.get("/")).status_code == 500
        await close()
    assert "<Lock 'a'> is used in a transaction of the database 'default'" in caplog.text


@pytest.mark.usefixtures("database")
async def test_locked_view_that_is_cancelled_holds_its_lock_until_its_thread_ends() -> None:
    """A cancellation does not end a thread: it would write beside the next holder."""
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        with transaction.atomic():
            begun.set()
            go.wait(60)
            add()
        connections.close_all()
        ended.set()

    @locked("a")
    async def view(request: HttpRequest) -> HttpResponse:
        await sync_to_async(work)()
        raise AssertionError

    with override_settings(AIOLOCK={"target": MemoryServer()}):
        lock = (await client_of_loop()).lock("a")
        asked = asyncio.create_task(view(AsyncRequestFactory().get("/")))
        await until(begun.is_set)
        for _ in range(2):
            asked.cancel()
            await asyncio.sleep(0.01)
        assert await lock.locked()
        assert not asked.done()
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert ended.is_set()
        assert not await lock.locked()
        await close()


@pytest.mark.usefixtures("database")
async def test_locked_view_that_abandons_its_thread_holds_its_lock_until_it_ends() -> None:
    """A time-out of the view's own does not end a thread either."""
    begun, go = threading.Event(), threading.Event()
    patience = list[asyncio.Timeout]()

    def work() -> None:
        begun.set()
        go.wait(60)
        add()
        connections.close_all()

    @locked("a")
    async def view(request: HttpRequest) -> HttpResponse:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as limit:
                patience.append(limit)
                await sync_to_async(work)()
        answered.set()
        return HttpResponse("too slow")

    answered = asyncio.Event()
    with override_settings(AIOLOCK={"target": MemoryServer()}):
        lock = (await client_of_loop()).lock("a")
        asked = asyncio.create_task(view(AsyncRequestFactory().get("/")))
        await until(begun.is_set)
        patience[0].reschedule(asyncio.get_running_loop().time())
        await answered.wait()
        assert await lock.locked()
        go.set()
        assert (await asked).content == b"too slow"
        assert not await lock.locked()
        await close()


async def test_locked_view_that_returns_a_stream_is_refused_and_the_stream_closed() -> None:
    """It would be sent without the lock. What it has open is closed."""
    file = io.BytesIO(b"text")

    async def pieces() -> Any:
        yield b"text"

    responses: list[Callable[[], HttpResponseBase]] = [
        lambda: StreamingHttpResponse(iter([b"text"])),
        lambda: StreamingHttpResponse(pieces()),
        lambda: FileResponse(file),
    ]
    with override_settings(AIOLOCK={"target": MemoryServer()}):
        lock = (await client_of_loop()).lock("a")
        for make in responses:

            @locked("a")
            async def view(
                request: HttpRequest, make: Callable[[], HttpResponseBase] = make
            ) -> HttpResponseBase:
                return make()

            with pytest.raises(RuntimeError, match="its response is a stream"):
                await view(AsyncRequestFactory().get("/"))
            assert not await lock.locked()
        await close()
    assert file.closed


async def test_locked_view_renders_its_template_response_under_the_lock() -> None:
    """What it reads then is protected as well."""
    templates = [{"BACKEND": "django.template.backends.django.DjangoTemplates"}]
    held = list[bool]()

    @locked("a")
    async def view(request: HttpRequest, lease: aiolock.Lease) -> HttpResponseBase:
        def item() -> str:
            held.append(lease.state is aiolock.LeaseState.HELD)
            return "pen"

        template = engines["django"].from_string("one {{ item }}")
        return TemplateResponse(request, template, {"item": item})

    with override_settings(AIOLOCK={"target": MemoryServer()}, TEMPLATES=templates):
        response = await view(AsyncRequestFactory().get("/"))
        assert isinstance(response, TemplateResponse)
        assert response.content == b"one pen"
        await close()
    assert held == [True]


async def test_stream_to_a_slow_client_holds_its_lock_for_max_hold_and_breaks_off() -> None:
    """The generator has the lock, with a `max_hold`; it ends, and so does the response."""
    pieces, sent = list[str](), list[Any]()
    accepts = asyncio.Event()

    async def lines() -> AsyncIterator[str]:
        locks = await client_of_loop()
        async with locks.lock("a", max_hold=0.2, ttl=0.5):
            for piece in ("one", "two", "three"):
                pieces.append(piece)
                yield piece

    async def view(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(lines())

    async def receive() -> dict[str, Any]:
        if not received:
            received.append(True)
            return {"type": "http.request", "body": b"", "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body":
            await accepts.wait()  # never: it reads no more

    received = list[bool]()
    scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
    with override_settings(
        ROOT_URLCONF=(path("", view),), AIOLOCK={"target": MemoryServer()}, ALLOWED_HOSTS=["*"]
    ):
        app: Any = get_asgi_application()
        lock = (await client_of_loop()).lock("a")
        asked = asyncio.create_task(app({**scope, "server": ("shop", 80)}, receive, send))
        await until(lambda: pieces)
        assert await lock.locked()
        async with lock:
            assert pieces == ["one"]
        await asyncio.wait([asked])
        assert sent[-1].get("more_body")  # it is seen to have broken off
        asked.exception()
        await close()


PROJECT = """
import asyncio, concurrent.futures, io, sys
import django, httpx
from django.conf import settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

redis, port = sys.argv[1:]
database = {
    "ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "USER": "postgres",
    "HOST": "127.0.0.1", "PORT": port, "ATOMIC_REQUESTS": True,
}
settings.configure(
    DATABASES={"default": database}, INSTALLED_APPS=["shop"], ROOT_URLCONF=(), ALLOWED_HOSTS=["*"],
    DEFAULT_AUTO_FIELD="django.db.models.AutoField", AIOLOCK={"target": redis}, SECRET_KEY="x",
)
django.setup()
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.db import connection, transaction
from aiolock.integrations.django import close
from shop import views
from shop.models import Item
from tests.integrations.test_django_transactions import get

settings.ROOT_URLCONF = (
    path("sync/<str:name>", views.sell), path("async/<str:name>", views.sell_async)
)
with connection.schema_editor() as editor:
    editor.create_model(Item)
for name in ("ink", "pen"):
    Item.objects.create(name=name)
with concurrent.futures.ThreadPoolExecutor(20) as threads:
    replies = list(threads.map(get, [get_wsgi_application()] * 20, ["/sync/pen"] * 20))

async def ask():
    transport = httpx.ASGITransport(get_asgi_application())
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as http:
        found = await asyncio.gather(*[http.get("/async/ink") for _ in range(20)])
    await close()
    return [reply.text for reply in found]

numbers = [str(number) for number in range(1, 21)]
assert sorted(text for _, text in replies) == sorted(numbers), replies
assert sorted(asyncio.run(ask())) == sorted(numbers)
assert [item.sold for item in Item.objects.order_by("name")] == [20, 20]
exec(sys.stdin.read())
assert Item.objects.get(name="pen").sold == 22
assert sync_client().names() == []
with connection.schema_editor() as editor:
    editor.delete_model(Item)
print("done")
"""


MODELS = """
from django.db import models


class Item(models.Model):
    name = models.TextField(primary_key=True)
    sold = models.IntegerField(default=0)
"""


def test_example_of_the_django_page_loses_no_update_in_concurrent_requests(
    postgres_server: PostgresServer, redis_server: RedisServer, tmp_path: Path
) -> None:
    """The views of the page on Django, as they stand there: 20 concurrent requests make 20."""
    page = (ROOT / "docs" / "howto" / "django.md").read_text("utf-8").replace(URL, redis_server.url)
    blocks = [block["code"] for block in BLOCK.finditer(page)]
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "models.py").write_text(MODELS, "utf-8")
    (views,) = [code for code in blocks if code.startswith("# shop/views.py\n")]
    (shop / "views.py").write_text(views, "utf-8")
    words = ("import sync_client", "import hold_until_commit", "import ignore_transactions")
    rest = "\n".join(code for word in words for code in blocks if f"{word}\n" in code)
    path = [tmp_path, Path(aiolock.__file__).parent.parent, ROOT]
    done = subprocess.run(
        [sys.executable, "-c", PROJECT, redis_server.url, str(postgres_server.port)],
        input=f"from shop.views import sell_one\n{rest}",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "done\n", done.stdout + done.stderr


def test_django_example_sells_each_item_once(redis_server: RedisServer) -> None:
    """The project in one file, with which the page begins, as a reader runs it."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "sales_django.py")],
        env=os.environ | {"AIOLOCK_URL": redis_server.url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "20 requests have sold 20\n", done.stdout + done.stderr
