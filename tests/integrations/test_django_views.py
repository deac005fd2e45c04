"""Django's synchronous views: their locks, transactions, rates and keys."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.wsgi import get_wsgi_application
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncRequestFactory, RequestFactory, TestCase, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

import aiolock
import aiolock.sync
from aiolock.integrations.django import (
    close,
    hold_until_commit,
    locked,
    rate_limited,
    sync_client,
)
from aiolock.integrations.django._clients import by_process
from aiolock.stores.memory import MemoryServer
from tests.integrations.test_django_transactions import get
from tests.support.webapps.django import configure

configure()

pytestmark = pytest.mark.one_loop


@pytest.fixture
def database(tmp_path: Path) -> Iterator[None]:
    """A database with one row, where each request is a transaction."""
    here = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(tmp_path / "shop.db"),
        "ATOMIC_REQUESTS": True,
    }
    before = connections.settings
    connections.settings = connections.configure_settings({"default": here})
    with connections["default"].cursor() as cursor:
        cursor.execute("CREATE TABLE stock (n int)")
        cursor.execute("INSERT INTO stock VALUES (0)")
    try:
        yield
    finally:
        connections.close_all()
        del connections["default"]
        connections.settings = before


@pytest.fixture(autouse=True)
def locks() -> Iterator[aiolock.sync.LockClient]:
    """The client of the settings."""
    with override_settings(AIOLOCK={"target": MemoryServer()}, ALLOWED_HOSTS=["*"]):
        yield sync_client()


def add() -> int:
    """Read, modify and write; the number that is written."""
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT n FROM stock")
        (number,) = cursor.fetchone()
        cursor.execute("UPDATE stock SET n = %s", [number + 1])
    return int(number) + 1


def stock() -> int:
    """What is committed."""
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT n FROM stock")
        return int(cursor.fetchone()[0])


def in_transaction() -> bool:
    """Whether this thread is in one."""
    return bool(transaction.get_connection().in_atomic_block)


def ask(view: Callable[..., Any], url: str = "/7", times: int = 1) -> list[tuple[str, str]]:
    """The answers of an application with this view to so many requests at once."""
    with (
        override_settings(ROOT_URLCONF=(path("<str:order>", view), path("none/x", view))),
        ThreadPoolExecutor(times) as threads,
    ):
        return list(threads.map(get, [get_wsgi_application()] * times, [url] * times))


def request() -> HttpRequest:
    """A request of no application."""
    return RequestFactory().get("/")


def through(view: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as most are, `login_required` for example."""

    @functools.wraps(view)
    def call(*args: Any, **kwargs: Any) -> Any:
        assert not in_transaction()
        return view(*args, **kwargs)

    return call


@locked("order:{order}")
def function(request: HttpRequest, order: str, lease: aiolock.sync.Lease) -> HttpResponse:
    """A view."""
    assert in_transaction()
    assert lease.name == f"order:{order}"
    return HttpResponse(str(add()))


@locked("tenant")
@locked("order:{order}")
def twice(request: HttpRequest, order: str) -> HttpResponse:
    """Under two locks."""
    assert sync_client().names() == ["order:7", "tenant"]
    return HttpResponse(str(add()))


@method_decorator(locked("order:{order}"), name="dispatch")
class Dispatched(View):
    """A class, all of whose methods are under the lock."""

    def get(self, request: HttpRequest, order: str) -> HttpResponse:
        assert in_transaction()
        return HttpResponse(str(add()))


LOCKED: dict[str, Callable[..., Any]] = {
    "function": function,
    "decorated": through(function),
    "twice": twice,
    "class": Dispatched.as_view(),
}


@pytest.mark.parametrize("view", LOCKED)
@pytest.mark.usefixtures("database")
def test_locked_sync_view_under_atomic_requests_commits_before_the_release(view: str) -> None:
    """The transaction begins in the body of the lock: no request reads what another will change."""
    replies = ask(LOCKED[view], times=8)
    assert sorted(replies) == [("200 OK", str(number)) for number in range(1, 9)]
    assert stock() == 8
    assert sync_client().names() == []


@pytest.mark.usefixtures("database")
def test_locked_sync_view_that_raises_rolls_back_and_releases(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As any view under `ATOMIC_REQUESTS`."""

    @locked("order:{order}")
    def view(request: HttpRequest, order: str) -> HttpResponse:
        add()
        raise ZeroDivisionError

    assert ask(view)[0][0] == "500 Internal Server Error"
    assert stock() == 0
    assert not sync_client().lock("order:7").locked()


@pytest.mark.parametrize("on_lost", ["cancel", "signal"])
@pytest.mark.usefixtures("database")
def test_locked_sync_view_whose_lock_is_lost_rolls_back_and_answers_503(on_lost: Any) -> None:
    """What it wrote is not committed, unless it says that it looks for the loss itself."""

    @locked("order:{order}", on_lost=on_lost)
    def view(request: HttpRequest, order: str, lease: aiolock.sync.Lease) -> HttpResponse:
        add()
        sync_client().break_("order:7")
        assert lease.lost.wait(60)
        return HttpResponse("done")

    ((status, text),) = ask(view)
    if on_lost == "cancel":
        assert (status, stock()) == ("503 Service Unavailable", 0)
        assert '"lock_lost"' in text
    else:
        assert (status, stock()) == ("200 OK", 1)


def test_locked_sync_view_that_releases_by_itself_answers_as_ever() -> None:
    """That is no loss."""

    @locked("order:{order}")
    def view(request: HttpRequest, order: str, lease: aiolock.sync.Lease) -> HttpResponse:
        assert lease.release()
        return HttpResponse("done")

    assert ask(view) == [("200 OK", "done")]


@pytest.mark.parametrize("outside", [True, False])
@pytest.mark.usefixtures("database")
def test_locked_sync_view_exempt_from_atomic_requests_begins_no_transaction(outside: bool) -> None:
    """Wherever it says so."""

    def view(request: HttpRequest, order: str) -> HttpResponse:
        return HttpResponse(str(in_transaction()))

    under_lock = locked("order:{order}")
    if outside:
        decorated = transaction.non_atomic_requests(under_lock(view))
    else:
        decorated = under_lock(transaction.non_atomic_requests(view))
    assert ask(decorated) == [("200 OK", "False")]


class Method(View):
    """A class with a lock at one method, where Django does not see it."""

    @locked("order:{order}")
    def get(self, request: HttpRequest, order: str) -> HttpResponse:
        return HttpResponse(str(in_transaction()))


@pytest.mark.usefixtures("database")
def test_locked_method_under_atomic_requests_is_refused_and_names_dispatch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What it wrote would be committed without the lock; exempt, or without them, it is not."""
    assert ask(Method.as_view())[0][0] == "500 Internal Server Error"
    assert '@method_decorator(locked(...), name="dispatch")' in caplog.text

    @method_decorator(transaction.non_atomic_requests, name="dispatch")
    class Exempt(Method):
        """Which says that it begins its transactions itself."""

    assert ask(Exempt.as_view()) == [("200 OK", "False")]
    connections.settings["default"]["ATOMIC_REQUESTS"] = False
    assert ask(Method.as_view()) == [("200 OK", "False")]


@pytest.mark.usefixtures("database")
def test_locked_sync_view_below_atomic_is_refused() -> None:
    """The lock would be released before the commit."""
    with pytest.raises(RuntimeError, match=r"above @transaction\.atomic"):
        transaction.atomic(function)(request(), "7")


def test_locked_sync_view_without_its_lock_answers_the_reason(
    locks: aiolock.sync.LockClient,
) -> None:
    """As in all frameworks."""

    def view(request: HttpRequest, order: str | None) -> HttpResponse:
        raise AssertionError

    patient = locked("order:{order}", timeout=0.05)(view)
    with locks.lock("order:7"):
        answers = [
            ThreadPoolExecutor(1).submit(each, request(), "7").result()
            for each in (
                patient,
                locked("order:{order}", timeout=0)(view),
            )
        ]
        assert [each.status_code for each in answers] == [423, 409]
        assert {each["Retry-After"] for each in answers} == {"1"}
        assert {each["Content-Type"] for each in answers} == {"application/problem+json"}
    assert patient(request(), None).status_code == 400
    with override_settings(AIOLOCK={"target": "redis://127.0.0.1:1/0"}):
        assert patient(request(), "7").status_code == 503


def test_locked_sync_view_that_returns_unfinished_work_is_refused() -> None:
    """A stream, a coroutine: that would be done without the lock."""

    async def coroutine() -> None:
        """Never awaited."""

    plain: Any = locked("a")(lambda request: coroutine())

    def stream(request: HttpRequest) -> HttpResponseBase:
        return StreamingHttpResponse(iter([b"text"]))

    with pytest.raises(RuntimeError, match="its response is a stream"):
        locked("a")(stream)(request())
    with pytest.raises(RuntimeError, match="returned a coroutine"):
        plain(request())
    assert sync_client().names() == []


def test_locked_sync_view_renders_its_template_response_under_the_lock() -> None:
    """What the template reads is protected as well."""
    templates = [{"BACKEND": "django.template.backends.django.DjangoTemplates"}]
    held = list[bool]()

    @locked("a")
    def view(request: HttpRequest) -> HttpResponseBase:
        def item() -> str:
            held.append(sync_client().lock("a").locked())
            return "pen"

        return TemplateResponse(request, engines["django"].from_string("one {{ i }}"), {"i": item})

    with override_settings(TEMPLATES=templates):
        response = view(request())
    assert isinstance(response, TemplateResponse)
    assert (response.content, held) == (b"one pen", [True])


def test_locked_sync_view_with_kwargs_takes_fields_from_its_url(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As `dispatch` has it; an URL without one is a fault of the program."""

    @locked("order:{order}")
    def view(request: HttpRequest, **kwargs: str) -> HttpResponse:
        return HttpResponse(",".join(sync_client().names()))

    assert ask(view) == [("200 OK", "order:7")]
    assert ask(view, "/none/x")[0][0] == "500 Internal Server Error"
    assert "has no order, which the lock 'order:{order}' needs" in caplog.text


def test_locked_method_that_is_bound_has_the_names_of_its_own_parameters() -> None:
    """`method_decorator` wraps a function with one parameter more, ``self``."""

    class Positional(View):
        @method_decorator(locked("{first}/{second}"))
        def get(self, request: HttpRequest, first: str, second: str) -> HttpResponse:
            return HttpResponse(",".join(sync_client().names()))

    response = Positional().get(request(), "a", "b")
    assert isinstance(response, HttpResponse)
    assert response.content == b"a/b"


# hold_until_commit


@pytest.mark.usefixtures("database")
def test_hold_until_commit_releases_after_the_commit_or_the_rollback() -> None:
    """Not before: the others see what was written."""
    lock, seen = sync_client().lock("a"), list[bool]()
    with transaction.atomic():
        transaction.on_commit(lambda: seen.append(lock.locked()))
        lease = hold_until_commit(lock)
        add()
        transaction.on_commit(lambda: seen.append(lock.locked()))
    assert seen == [True, False]
    assert lease.state is aiolock.LeaseState.RELEASED

    @transaction.atomic
    def fail() -> None:
        hold_until_commit(lock, using="default")
        add()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert lock.try_acquire() is not None
    assert stock() == 1


@pytest.mark.usefixtures("database")
def test_hold_until_commit_releases_although_an_earlier_callback_raises() -> None:
    """Django drops the others then."""

    def fail() -> None:
        seen.append(lock.locked())
        raise ZeroDivisionError

    seen = list[bool]()
    lock = sync_client().lock("a")

    @transaction.atomic
    def work() -> None:
        transaction.on_commit(fail)
        hold_until_commit(lock)

    with pytest.raises(ZeroDivisionError):
        work()
    assert seen == [True]
    assert not lock.locked()


@pytest.mark.usefixtures("database")
def test_hold_until_commit_in_a_savepoint_ends_with_its_rollback_or_the_whole() -> None:
    """As a lock of PostgreSQL's: nothing is left of what was written under it."""
    lock = sync_client().lock("a")

    @transaction.atomic
    def fail() -> None:
        hold_until_commit(lock)
        raise ZeroDivisionError

    with transaction.atomic():
        with pytest.raises(ZeroDivisionError):
            fail()
        assert not lock.locked()
        with transaction.atomic():
            hold_until_commit(lock)
        assert lock.locked()
    assert not lock.locked()


@pytest.mark.usefixtures("database")
def test_hold_until_commit_takes_all_kinds_of_locks_of_threads() -> None:
    """A lease, or several."""
    locks = sync_client()
    with transaction.atomic():
        assert isinstance(hold_until_commit(locks.semaphore("a", 2)), aiolock.sync.Lease)
        assert isinstance(hold_until_commit(locks.rwlock("b").write()), aiolock.sync.Lease)
        assert isinstance(hold_until_commit(locks.multilock("c", "d")), aiolock.sync.MultiLease)
        assert isinstance(hold_until_commit(locks.path_lock("e/f")), aiolock.sync.PathLease)
        assert len(locks.snapshot()) >= 5
    assert locks.snapshot() == []


@pytest.mark.usefixtures("database")
def test_hold_until_commit_without_a_transaction_or_a_lock_of_threads_raises() -> None:
    """Nothing is taken."""
    with pytest.raises(RuntimeError, match="no transaction of the database 'default' is open"):
        hold_until_commit(sync_client().lock("a"))
    with transaction.atomic(), pytest.raises(TypeError, match="a lock for threads"):
        hold_until_commit(aiolock.connect("memory://").lock("a"))  # type: ignore[call-overload]  # that is the test
    assert sync_client().names() == []


@pytest.mark.usefixtures("database")
def test_hold_until_commit_in_a_test_case_ends_with_the_captured_callbacks() -> None:
    """Nothing is committed there, so the test says when that would be."""

    class Case(TestCase):
        def test_it(self) -> None:
            lock = sync_client().lock("a")
            for _ in range(2):
                with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
                    hold_until_commit(lock)
                self.assertFalse(lock.locked())  # noqa: PT009  # it is a TestCase

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Case).run(result)
    assert (result.testsRun, result.errors, result.failures) == (1, [], [])


# rate_limited


def of(user: HttpRequest) -> str:
    """The user of a request."""
    return str(user.GET.get("user", ""))


def test_rate_limited_sync_view_answers_429_with_retry_after() -> None:
    """Each owner has a bucket of its own; in a class, it is the same."""

    @rate_limited("quotes", 120, per=3600, burst=2, who=of)
    def quotes(request: HttpRequest, order: str) -> HttpResponse:
        return HttpResponse(order)

    class Quotes(View):
        @rate_limited("quotes", 120, per=3600, burst=2, who=of)
        def get(self, request: HttpRequest, order: str) -> HttpResponse:
            return HttpResponse(order)

    for user in ("ann", "bob"):
        replies: list[Any] = [
            view(RequestFactory().get(f"/?user={user}"), order="7")
            for view in (quotes, Quotes.as_view(), quotes)
        ]
        assert [reply.status_code for reply in replies] == [200, 200, 429]
        assert 1 <= int(replies[-1]["Retry-After"]) <= 30
        assert b'"rate_limited"' in replies[-1].content
    for user in ("", "x" * 600):
        refused: Any = quotes(RequestFactory().get(f"/?user={user}"), order="7")
        assert refused.status_code == 400


@pytest.mark.parametrize("is_async", [True, False])
async def test_rate_limited_async_view_answers_429(is_async: bool) -> None:
    """Its owner may be found by a function with async or without: the ORM is in a thread."""
    threads = list[threading.Thread]()

    async def later(request: HttpRequest) -> str:
        return of(request)

    def now(request: HttpRequest) -> str:
        threads.append(threading.current_thread())
        return of(request)

    @rate_limited("quotes", 120, per=3600, burst=1, who=later if is_async else now)
    async def quotes(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    replies = [await quotes(AsyncRequestFactory().get("/?user=ann")) for _ in range(2)]
    assert [reply.status_code for reply in replies] == [200, 429]
    assert (await quotes(AsyncRequestFactory().get("/"))).status_code == 400  # without an owner
    assert threading.current_thread() not in threads
    await close()


def test_rate_limited_with_invalid_arguments_raises_where_it_is_written() -> None:
    """Not when the first request comes."""

    async def later(request: HttpRequest) -> str:
        return of(request)

    with pytest.raises(ValueError, match="limit must be from 1"):
        rate_limited("quotes", 0, per=1)
    with pytest.raises(TypeError, match="give it a function without async"):
        rate_limited("quotes", 1, per=1, who=later)(lambda request: HttpResponse())


# sync_client


def test_sync_client_is_one_for_the_process_and_the_settings() -> None:
    """Threads share it; other settings have another, and the first is closed."""
    first = sync_client()
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(sync_client).result() is first
    first.lock("a").acquire()
    with override_settings(AIOLOCK={"target": MemoryServer(), "ttl": 3}):
        assert sync_client() is not first
        assert sync_client().lock("a").ttl == 3
    with pytest.raises(aiolock.ClientClosed):
        first.names()


async def test_sync_client_of_other_settings_is_closed_beside_an_event_loop() -> None:
    """A test of an asynchronous view has one."""
    with override_settings(AIOLOCK={"target": MemoryServer()}):
        await asyncio.to_thread(sync_client().names)
    assert os.getpid() not in by_process


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_sync_client_in_a_fork_is_another() -> None:
    """That of the parent is of no use there."""
    ours = sync_client()
    ours.names()
    child = os.fork()
    if child == 0:  # pragma: no cover
        os._exit(0 if sync_client() is not ours and sync_client() is sync_client() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
