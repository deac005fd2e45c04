"""What the integrations of web frameworks have in common, without any of them."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import itertools
import json
import logging
from collections.abc import Callable, MutableMapping
from typing import Any

import pytest

import aiolock
from aiolock.integrations._asgi import KEPT, PIECES, Inbox, Interrupted
from aiolock.integrations._leases import RequestLeases, RequestLock, SlowClient
from aiolock.integrations._names import BadName, LockOf
from aiolock.integrations._problems import ERRORS, problem
from aiolock.integrations._waiting import Disconnected, held
from aiolock.stores.memory import MemoryServer
from tests.support.cancel import KINDS, Kind, cancel_everywhere
from tests.support.failures import queued, until
from tests.support.worlds import settled

Message = MutableMapping[str, Any]


class Colour(enum.Enum):
    """What a request may say."""

    RED = "red"


class Size(str, enum.Enum):  # noqa: UP042  # of which versions of Python write different names
    """The same, as a str."""

    SMALL = "s"


@pytest.mark.parametrize(
    ("template", "values", "name"),
    [
        ("all", {}, "all"),
        ("order:{order}", {"order": "42", "other": "7"}, "order:42"),
        ("{a}:{b}:{a}", {"a": "x", "b": "{a}"}, "x:{a}:x"),
        ("{{a}}", {"a": "x"}, "{a}"),
        ("{size}", {"size": 3}, "3"),
        ("{colour}", {"colour": Colour.RED}, "red"),
        ("{size}", {"size": Size.SMALL}, "s"),
    ],
)
def test_lock_of_replaces_fields_by_values_of_the_request(
    template: str, values: dict[str, object], name: str
) -> None:
    """Fields are replaced by what the request has, and that is taken as it is."""
    assert LockOf(template).on(aiolock.connect("memory://").lock, values).name == name


@pytest.mark.parametrize(
    "template",
    [
        *("{", "{}", "{0}", "{a.b}", "{a[0]}", "{a!r}", "{a:>5}", "{a:{b}}", "{a b}", ""),
        *("x" * 600, "\ud800"),
    ],
)
def test_lock_of_an_invalid_template_raises_value_error(template: str) -> None:
    """It is refused when it is declared, not when the first request comes."""
    with pytest.raises(ValueError, match=r"."):
        LockOf(template)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"timeout": -1}, ValueError),
        ({"max_waiters": 0}, ValueError),
        ({"ttl": "1"}, TypeError),
        ({"patience": 3}, TypeError),
        ({"query": {"b"}}, ValueError),
        ({"query": "a"}, TypeError),
    ],
)
def test_lock_of_with_invalid_options_raises_type_or_value_error(
    options: Any, error: type[Exception]
) -> None:
    """So are they."""
    with pytest.raises(error):
        LockOf("{a}", **options)
    with pytest.raises(TypeError):
        LockOf(42)  # type: ignore[arg-type]  # that is the test


def test_check_path_without_a_field_raises_value_error_naming_it() -> None:
    """The text says which, and what to do."""
    lock = LockOf("{a}:{b}:{c}", query={"b"})
    lock.check_path("/{a}/{c}", {"a", "c"})
    with pytest.raises(ValueError, match=r"/\{a\} has no 'c', .* query="):
        lock.check_path("/{a}", {"a", "b"})


@pytest.mark.parametrize("values", [{}, {"a": "x" * 600}, {"a": "\ud800"}, {"a": ""}])
def test_lock_of_values_that_make_no_name_raises_bad_name(values: dict[str, str]) -> None:
    """That is the client's mistake, not a ValueError of ours."""
    with pytest.raises(BadName):
        LockOf("{a}").on(aiolock.connect("memory://").lock, values)


def test_lock_with_an_option_that_the_store_refuses_blames_no_request() -> None:
    """It is a mistake in the program: an error of the server, whose text names it."""
    urls = [f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]
    quorum = aiolock.connect(urls, longest_ttl=60)
    lock = LockOf("{a}", ttl=120)
    with pytest.raises(ValueError, match="longest_ttl=60"):
        lock.on(quorum.lock, {"a": "7"})
    with pytest.raises(BadName):
        lock.on(quorum.lock, {"a": "x" * 513})


def test_lock_of_has_its_template_as_family_and_a_timeout_of_10_s() -> None:
    """Metrics are by template; who wants others says so."""
    client = aiolock.connect("memory://")
    values = {"order": "42"}
    assert LockOf("order:{order}").on(client.lock, values)._policy.of_family == "order:{order}"
    assert LockOf("order:{order}", family="x").on(client.lock, values)._policy.of_family == "x"
    assert LockOf("order:{order}").on(client.lock, values)._policy.timeout == 10
    assert LockOf("order:{order}", timeout=None).on(client.lock, values)._policy.timeout is None


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_problem_of_an_error_logs_its_text_and_does_not_answer_it(
    kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """The text of an error is in the log; only what a request did wrong is said to it."""
    with caplog.at_level(logging.INFO, "aiolock.web"):
        closed = {"closed": True} if kind is aiolock.ClientClosed else {}
        found = problem(kind("SECRET", **closed))
    if kind is BadName:
        assert found.detail == "SECRET"
        return
    assert b"SECRET" not in found.body
    assert json.loads(found.body)["status"] == found.status
    logged = [record.getMessage() for record in caplog.records]
    assert logged == ([] if kind is Disconnected else [f"answered {found.status}: SECRET"])


def test_errors_that_are_answered_exclude_mistakes_of_the_program() -> None:
    """They stay what they are: a 500 of the framework."""
    for kind in (aiolock.WouldDeadlock, aiolock.NotHeld, aiolock.LimitMismatch):
        assert not issubclass(kind, ERRORS)


class Server:
    """An ASGI server's `receive`: what is put in comes out, once."""

    def __init__(self) -> None:
        self.queue = asyncio.Queue[Message]()

    def send(self, *bodies: bytes) -> None:
        for body in bodies:
            self.queue.put_nowait({"type": "http.request", "body": body, "more_body": True})

    async def receive(self) -> Message:
        return await self.queue.get()


async def looking(inbox: Inbox) -> asyncio.Task[None]:
    """Somebody who looks whether the client is there, and has begun to."""
    task = asyncio.create_task(inbox.gone())
    for _ in range(5):
        await asyncio.sleep(0)
    return task


async def cancel(task: asyncio.Task[Any]) -> None:
    """Cancel it, and wait for that."""
    task.cancel()
    await asyncio.wait([task])


async def test_inbox_keeps_messages_in_order_while_the_client_is_looked_for() -> None:
    """What came while somebody looked is read in order, and what comes then after it."""
    server = Server()
    inbox = Inbox(server.receive)
    server.send(b"1", b"2")
    looks = await looking(inbox)
    server.send(b"3")
    await cancel(looks)
    server.send(b"4", b"5")
    assert [(await inbox())["body"] for _ in range(5)] == [b"1", b"2", b"3", b"4", b"5"]
    looks = await looking(inbox)
    await cancel(looks)
    server.send(b"6")  # to the one that nobody waits for any more
    for _ in range(3):
        await asyncio.sleep(0)
    looks = await looking(inbox)
    await cancel(looks)
    assert (await inbox())["body"] == b"6"
    inbox.close()


async def test_inbox_stops_receiving_beyond_its_limit_of_bytes() -> None:
    """A client that sends on and on fills its own buffers, and not our memory."""
    server = Server()
    inbox = Inbox(server.receive)
    server.send(*[b"x" * 10_000] * 20)
    looks = await looking(inbox)
    await until(lambda: server.queue.qsize() <= 20 - KEPT // 10_000)
    await asyncio.sleep(0.01)
    assert server.queue.qsize() >= 20 - KEPT // 10_000 - 1
    assert not looks.done()
    await cancel(looks)
    inbox.close()


async def test_inbox_stops_receiving_beyond_its_limit_of_pieces() -> None:
    """Nor does one whose body comes byte by byte."""
    server = Server()
    inbox = Inbox(server.receive)
    server.send(*[b"x"] * (PIECES + 10))
    looks = await looking(inbox)
    await until(lambda: server.queue.qsize() <= 10)
    for _ in range(20):
        await asyncio.sleep(0)
    assert server.queue.qsize() == 10
    assert not looks.done()
    await cancel(looks)
    assert [(await inbox())["body"] for _ in range(PIECES + 10)] == [b"x"] * (PIECES + 10)
    inbox.close()


async def test_inbox_that_is_closed_leaves_no_task() -> None:
    """Nobody waits for messages any more."""
    server = Server()
    inbox = Inbox(server.receive)
    await cancel(await looking(inbox))
    inbox.close()
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1
    server.send(b"1")
    assert (await inbox())["body"] == b"1"


async def test_held_whose_client_disconnects_leaves_the_queue() -> None:
    """Its place in the queue is left, and the body never begins."""
    memory = MemoryServer()
    gone = asyncio.Event()
    async with aiolock.connect(memory) as ours, aiolock.connect(memory) as theirs:

        async def leave() -> Exception:
            await gone.wait()
            return Disconnected("it has gone")

        async def wait() -> None:
            async with held(ours.lock("x"), leave):
                raise AssertionError

        async with theirs.lock("x"):
            waiting = asyncio.create_task(wait())
            await queued(theirs.lock("x"), 1)
            gone.set()
            with pytest.raises(Disconnected):
                await waiting
            await queued(theirs.lock("x"), 0)


async def test_held_whose_client_disconnects_after_the_grant_runs_its_body() -> None:
    """Nobody looks any more once the body has begun."""
    gone = asyncio.Event()
    looked = asyncio.Event()

    async def look() -> Exception:
        looked.set()
        await gone.wait()
        return Disconnected()

    memory = MemoryServer()
    async with aiolock.connect(memory) as ours, aiolock.connect(memory) as theirs:
        lease = await theirs.lock("x").acquire()

        async def wait() -> int:
            async with held(ours.lock("x"), look) as got:
                gone.set()
                await asyncio.sleep(0.01)
                return got.fence

        waiting = asyncio.create_task(wait())
        await asyncio.wait_for(looked.wait(), 10)
        await lease.release()
        assert await waiting > lease.fence


async def test_held_whose_disconnect_check_fails_waits_until_its_timeout() -> None:
    """Whether the client is there is not known: it is served."""
    asked = asyncio.Event()

    async def broken() -> Exception:
        asked.set()
        raise OSError

    memory = MemoryServer()
    async with aiolock.connect(memory) as ours, aiolock.connect(memory) as theirs:

        async def wait() -> int:
            async with held(ours.lock("x"), broken) as got:
                return got.fence

        lease = await theirs.lock("x").acquire()
        waiting = asyncio.create_task(wait())
        await queued(theirs.lock("x"), 1)
        await asyncio.wait_for(asked.wait(), 10)
        await settled()
        assert not waiting.done()
        await lease.release()
        assert await waiting > lease.fence
        with pytest.raises(aiolock.AcquireTimeout):
            async with theirs.lock("x"), held(ours.lock("x", timeout=0.2), broken):
                raise AssertionError


@pytest.mark.parametrize("error", [asyncio.CancelledError, ZeroDivisionError])
async def test_held_raises_the_error_of_its_body_and_releases(error: type[BaseException]) -> None:
    """They come out as they are."""

    async def gone() -> Exception:
        await asyncio.Event().wait()
        raise AssertionError

    async with aiolock.connect("memory://") as client:
        with pytest.raises(error):
            async with held(client.lock("x"), gone):
                raise error
        assert not await client.lock("x").locked()


async def interrupted(begin: Callable[[Any], Any] | None) -> list[Message]:
    """What a client is sent whose request the server cancels."""
    sent = list[Message]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if begin:
            await begin(send)
        await asyncio.Event().wait()

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError

    task = asyncio.create_task(Interrupted(app)({"type": "http"}, receive, send))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await cancel(task)
    assert task.cancelled()
    return sent


async def test_interrupted_request_is_answered_503_unless_its_response_has_begun() -> None:
    """It is told so, unless its response has begun; and it is cancelled all the same."""
    start, body = await interrupted(None)
    assert start["status"] == 503
    assert dict(start["headers"])[b"content-type"] == b"application/problem+json"
    assert dict(start["headers"])[b"retry-after"] == b"1"
    assert dict(start["headers"])[b"content-length"] == str(len(body["body"])).encode()

    async def begin(send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})

    assert [message.get("status") for message in await interrupted(begin)] == [200]


async def test_held_whose_client_disconnects_at_any_step_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whenever it goes, also while the lock is handed to it: it has the lock, or leaves nothing."""
    monkeypatch.setattr("aiolock.integrations._waiting.SOON", 0)
    memory = MemoryServer()
    outcomes = set[str]()
    async with aiolock.connect(memory) as ours, aiolock.connect(memory) as theirs:
        for steps, released in itertools.product(range(25), (0, 3, 8, 15, 100)):

            async def leave(steps: int = steps) -> Exception:
                for _ in range(steps):
                    await asyncio.sleep(0)
                return Disconnected()

            async def wait(leave: Any = leave) -> str:
                try:
                    async with held(ours.lock("x"), leave):
                        await asyncio.sleep(0)
                        return "served"
                except Disconnected:
                    return "gone"

            async with theirs.lock("x"):
                waiting = asyncio.create_task(wait())
                for _ in range(released):
                    await asyncio.sleep(0)
            outcomes.add(await asyncio.wait_for(waiting, 10))
            assert waiting.cancelling() == 0
            async with theirs.lock("x", timeout=10):
                assert not ours._engine.watchdog.holds
    assert outcomes == {"served", "gone"}


@pytest.mark.parametrize("kind", KINDS)
async def test_held_cancelled_at_any_step_leaves_nothing(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that is cancelled leaves nothing: no place in the queue, no lock, no task."""
    monkeypatch.setattr("aiolock.integrations._waiting.SOON", 0)

    async def never() -> Exception:
        await asyncio.Event().wait()
        raise AssertionError

    memory = MemoryServer()
    async with aiolock.connect(memory) as ours, aiolock.connect(memory) as theirs:

        async def scenario() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(hold_for_a_while())
                async with held(ours.lock("x"), never):
                    await asyncio.sleep(0)

        async def hold_for_a_while() -> None:
            async with theirs.lock("x"):
                for _ in range(5):
                    await asyncio.sleep(0)

        async for _ in cancel_everywhere(scenario, [kind]):
            async with theirs.lock("x", timeout=10):
                assert not ours._engine.watchdog.holds
                assert not ours._engine.waiters.acquisitions


@pytest.mark.parametrize("kind", KINDS)
async def test_request_leases_cancelled_at_any_step_leave_nothing(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a lock that it waits for, nor one that goes on from one body to the next."""
    monkeypatch.setattr("aiolock.integrations._waiting.SOON", 0)

    async def never() -> Exception:
        await asyncio.Event().wait()
        raise AssertionError

    memory = MemoryServer()
    async with aiolock.connect(memory) as ours, aiolock.connect(memory) as theirs:

        async def scenario() -> None:
            leases = RequestLeases()
            async with asyncio.TaskGroup() as group:
                group.create_task(hold_for_a_while())
                async with leases.body(never):
                    async with leases.body():
                        await leases.take(ours.lock("x"), 1)
                        async with leases.hold(ours.lock("y"), 1):
                            await asyncio.sleep(0)
                    await asyncio.sleep(0)

        async def hold_for_a_while() -> None:
            async with theirs.lock("x"):
                for _ in range(5):
                    await asyncio.sleep(0)

        async for _ in cancel_everywhere(scenario, [kind]):
            async with theirs.lock("x", timeout=10), theirs.lock("y", timeout=10):
                assert not ours._engine.watchdog.holds
                assert not ours._engine.waiters.acquisitions


async def test_request_leases_cancelled_during_an_inner_loss_are_released() -> None:
    """The loss is of another lock, of an inner body whose response has begun."""
    async with aiolock.connect("memory://") as client:
        leases = RequestLeases()

        async def handler() -> None:
            async with leases.body() as body:
                body.begun = True
                await leases.take(client.lock("x"), 1)
                await client.lock("x").break_()
                await asyncio.Event().wait()

        async def middleware() -> None:
            async with leases.body():
                await leases.take(client.lock("y"), 1)
                inner = asyncio.create_task(handler())
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
                with pytest.raises(aiolock.LeaseLost):
                    inner.result()
                outer.cancel()  # it is seen at the next await, which is in the exit

        outer = asyncio.create_task(middleware())
        await asyncio.wait([outer])
        assert outer.cancelled()
        assert not await client.snapshot()


async def test_request_leases_take_after_the_request_raises_runtime_error() -> None:
    """A task that outlives its request would hold it for ever: it is told so."""
    async with aiolock.connect("memory://") as client:
        leases = RequestLeases()
        async with leases.body():
            lease = await leases.take(client.lock("x"), 1)
            assert lease.remaining() > 0
        assert lease.state is aiolock.LeaseState.RELEASED
        with pytest.raises(RuntimeError, match="the request that is to hold 'x' has ended"):
            await leases.take(client.lock("x"), 1)


async def test_slow_client_error_names_the_locks_kept_even_if_one_is_lost() -> None:
    """With ``on_lost="signal"``; a lease that has ended is none of them."""
    async with aiolock.connect("memory://") as client:
        leases, lock = RequestLeases(), client.lock("x", on_lost="signal")

        async def never() -> None:
            await lock.break_()
            await asyncio.Event().wait()

        async with leases.body():
            async with leases.hold(client.lock("short"), 0):
                pass
            assert leases.bound is None
            await leases.take(lock, 0.05)
            with pytest.raises(SlowClient, match=r"its client has let 'x' wait for 0\.05 s"):
                await leases.bounded(never)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"scope": "app"}, ValueError),
        ({"send_timeout": -1}, ValueError),
        ({"send_timeout": "1"}, TypeError),
    ],
)
def test_request_lock_with_invalid_options_raises_type_or_value_error(
    options: Any, error: type[Exception]
) -> None:
    """They are refused where they are declared."""
    with pytest.raises(error, match=r"scope must be|send_timeout"):
        RequestLock("x", **{"scope": "request", "send_timeout": 1, **options})


@pytest.mark.parametrize("closed", [True, False])
async def test_problem_of_a_loss_by_aclose_is_shutting_down(*, closed: bool) -> None:
    """Whoever lost the lock because its client was closed is told that this server shuts down."""
    async with aiolock.connect("memory://") as client:

        async def hold() -> None:
            async with client.lock("a"):
                entered.set()
                await asyncio.sleep(10)

        entered, holder = asyncio.Event(), asyncio.create_task(hold())
        await entered.wait()
        await (client.aclose() if closed else client.lock("a").break_())
        with pytest.raises(aiolock.LeaseLost) as lost:
            await holder
    assert lost.value.closed is closed
    found = problem(lost.value)
    assert (found.code, found.retry_after) == (("shutting_down", 1) if closed else ("lock_lost", 5))
