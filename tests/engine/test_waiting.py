"""One acquisition against a store whose answers are given by hand, in orders that hurt."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

import aiolock
from aiolock import AcquireTimeout
from aiolock._engine.released import Released
from aiolock._engine.time_limit import TimedOut
from aiolock.protocol import (
    WAS_HOLDER,
    WAS_QUEUED,
    Acquire,
    Busy,
    Deliver,
    Form,
    Granted,
    GrantLost,
    GrantPushed,
    Operation,
    Post,
    Queued,
    ReadStatus,
    Reconnected,
    Release,
    Renew,
    Status,
    WaiterId,
    lasts,
)
from aiolock.stores.memory import MemoryServer, MemoryStore
from tests.support.virtual import VirtualLoop
from tests.support.worlds import abandon
from tests.support.wrapped import Wrapped

SECOND = 1_000_000  # of the store's clock
START = 50 * SECOND


@dataclass
class Command:
    """Something that was sent, and its answer."""

    verb: str
    arguments: tuple[Any, ...]
    future: asyncio.Future[Any]


class ByHand(Wrapped):
    """A store that writes down what is sent and answers when told."""

    deliver: Deliver

    def __init__(self) -> None:
        super().__init__(MemoryStore(MemoryServer()))  # of which nothing is asked
        self.sent: list[Command] = []

    async def open(self, client: str, deliver: Deliver) -> None:
        self.deliver = deliver

    async def aclose(self) -> None:
        pass

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        match operation:
            case ReadStatus(name):  # for the text of an error: answered, and not written down
                future.set_result(Status(name, (), ()))
            case Post():  # labels: as the status
                future.set_result(operation.count)
            case Renew(renewals):
                self._write_down("renew", future, list(renewals))
            case _ if isinstance(operation, Acquire):
                self._write_down("acquire", future, operation.waiter, operation.ticket)
            case _ if isinstance(operation, Release):
                self._write_down("release", future, operation.waiter, operation.fence)
            case _:
                self._write_down(type(operation).__name__, future)
        return future

    def _write_down(self, verb: str, future: asyncio.Future[Any], *arguments: Any) -> None:
        self.sent.append(Command(verb, arguments, future))

    @property
    def verbs(self) -> list[str]:
        return [command.verb for command in self.sent]


class Scene:
    """A client on a store answered by hand, and a task that takes the lock."""

    def __init__(self) -> None:
        self.store = ByHand()
        self.client = aiolock.connect(self.store)
        _scenes.append(self.client)
        self.entered: list[aiolock.Lease] = []
        self.leave = asyncio.Event()

    async def body(self, timeout: float | None) -> None:
        async with self.client.lock("n", ttl=5).acquire(timeout=timeout) as lease:
            self.entered.append(lease)
            await self.leave.wait()

    async def start(self, timeout: float | None = None) -> asyncio.Task[None]:
        task = asyncio.create_task(self.body(timeout))
        await settle()
        return task

    @property
    def waiter(self) -> WaiterId:
        waiter = self.store.sent[0].arguments[0]
        assert isinstance(waiter, WaiterId)
        return waiter

    @property
    def form(self) -> Form:
        return self.client.lock("n", ttl=5)._policy.form

    def answer(self, index: int, answer: object) -> None:
        self.store.sent[index].future.set_result(answer)

    def fail(self, index: int) -> None:
        self.store.sent[index].future.set_exception(aiolock.StoreError("no answer"))

    def push(self, fence: int, granted: float, lease: int = 5_000) -> None:
        now = START + int(granted * SECOND)
        self.store.deliver(GrantPushed("lock:n", self.waiter, self.form, fence, lease, now))


_scenes: list[aiolock.LockClient] = []
"""The clients of the scene that runs: nobody answers them any more, so they are not closed."""


async def settle() -> None:
    """Let everything run that is ready."""
    for _ in range(10):
        await asyncio.sleep(0)


def queued(at: float, place: int = 1) -> Queued:
    """The answer of a store whose clock says so many seconds after the start."""
    return Queued(ticket=77, place=place, until=5_000, now=START + int(at * SECOND))


def run(scene: Coroutine[Any, Any, None]) -> None:
    """Run in virtual time; tasks that still wait at the end are cancelled."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(scene)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(settle())
    finally:
        loop.close()
        while _scenes:
            abandon(_scenes.pop())


async def scene() -> Scene:
    """A scene whose client is open."""
    scene = Scene()
    await scene.client.open()
    return scene


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "unanswered"])
def test_push_that_overtakes_the_answer_to_a_repeated_question_is_entered(answered: bool) -> None:
    """The answer is older than the grant, and nothing is released under the body."""

    async def play() -> None:
        s = await scene()
        _ = await s.start()
        s.answer(0, queued(0.0))
        await settle()
        s.store.deliver(Reconnected())  # asks again
        await settle()
        assert s.store.verbs == ["acquire", "acquire"]
        s.push(7, 0.2)
        if answered:
            s.answer(1, queued(0.1))
        await settle()
        assert [lease.fence for lease in s.entered] == [7]
        assert s.store.verbs == ["acquire", "acquire"]
        s.leave.set()
        await settle()
        # Should that grant end before the store comes to the question, the waiter stands in the
        # queue once more: the release takes back whatever it is by then.
        assert s.store.sent[2].arguments == (s.waiter, 0)

    run(play())


@pytest.mark.parametrize("queued_before", [False, True])
def test_claim_granted_to_a_periodic_by_an_answer_is_confirmed_first(queued_before: bool) -> None:
    """A run of a job begins on no claim, also where that is as long as the ttl and no push came."""

    async def play() -> None:
        s = await scene()

        async def run_once() -> None:
            async with s.client.periodic("n", every=60, ttl=1) as lease:
                s.entered.append(lease)

        running = asyncio.create_task(run_once())
        await settle()
        if queued_before:
            s.answer(0, queued(0.0))
            await settle()
            s.store.deliver(Reconnected())  # asks again
            await settle()
        s.store.sent[-1].future.set_result(Granted(fence=7, lease=1_000, claim=True))
        await settle()
        assert s.store.verbs[-1] == "renew"
        assert not s.entered
        s.store.sent[-1].future.set_result([True])
        await settle()
        assert [lease.fence for lease in s.entered] == [7]
        assert not running.done(), "its release is not answered"

    run(play())


def test_push_of_a_grant_already_broken_is_ignored_and_asked_again() -> None:
    """What was granted is gone, and so is the place in the queue: it asks again at once."""

    async def play() -> None:
        s = await scene()
        _ = await s.start()
        s.answer(0, queued(0.0))
        await settle()
        s.store.deliver(GrantLost("lock:n", s.waiter, 7, "broken"))
        await settle()
        s.push(7, 0.1)
        await settle()
        assert not s.entered
        assert s.store.verbs == ["acquire", "acquire"]

    run(play())


def test_release_without_an_open_question_names_its_grant() -> None:
    """The ordinary release speaks of one grant alone."""

    async def play() -> None:
        s = await scene()
        _ = await s.start()
        s.answer(0, queued(0.0))
        await settle()
        s.push(7, 0.1)
        await settle()
        s.leave.set()
        await settle()
        assert s.store.sent[1].arguments == (s.waiter, 7)

    run(play())


def test_push_that_overtakes_the_first_answer_is_entered_on_the_answer() -> None:
    """It counts from before the question was sent, and is entered on the answer."""

    async def play() -> None:
        s = await scene()
        _ = await s.start()
        await asyncio.sleep(2)
        s.push(7, 0.0)
        await settle()
        assert not s.entered
        s.answer(0, queued(0.0))
        await settle()
        assert [lease.fence for lease in s.entered] == [7]
        assert s.entered[0].remaining() == pytest.approx(lasts(5_000) - 2)

    run(play())


def test_push_that_comes_after_its_lease_ended_is_given_back_then_asked_again() -> None:
    """The process was stopped while the push lay in its socket: it does not enter."""

    async def play() -> None:
        s = await scene()
        _ = await s.start()
        s.answer(0, queued(0.0))
        await settle()
        s.store.deliver(Reconnected())  # a question is under way when the push comes
        await asyncio.sleep(6.0)
        s.push(7, 0.1)  # for 5 s from then
        await settle()
        assert not s.entered
        assert s.store.verbs == ["acquire", "acquire", "release"]
        assert s.store.sent[2].arguments == (s.waiter, 7)
        s.answer(2, WAS_HOLDER)
        await settle()
        assert s.store.sent[3].verb == "acquire"
        assert s.store.sent[3].arguments == (s.waiter, 77), "it asks for its old place"

    run(play())


def test_push_too_late_at_the_timeout_raises_acquire_timeout_at_once() -> None:
    """The process was stopped until after its timeout, and the store answers nothing now."""

    async def play() -> None:
        s = await scene()
        task = await s.start(timeout=60)
        s.answer(0, queued(0.0))
        await asyncio.sleep(6.0)
        s.push(7, 0.1)  # for 5 s from then
        s.client._engine.waiters.acquisitions["lock:n"][s.waiter].stop(
            TimedOut()
        )  # by its timer, before the task
        await settle()
        assert task.done()
        assert isinstance(task.exception(), AcquireTimeout)
        assert not s.entered
        releases = [sent.arguments for sent in s.store.sent if sent.verb == "release"]
        assert releases == [(s.waiter, 7), (s.waiter, 0)]

    run(play())


def test_grant_given_back_is_not_entered_by_its_late_push() -> None:
    """Reply and push bring the same grant; the reply came too late, so the push is void."""

    async def play() -> None:
        s = await scene()
        _ = await s.start()
        s.answer(0, queued(0.0))
        await settle()
        s.store.deliver(Reconnected())
        await asyncio.sleep(6.0)
        s.answer(1, Granted(fence=7, lease=5_000))  # sent 6 s ago
        await settle()
        assert s.store.verbs == ["acquire", "acquire", "release"]
        s.answer(2, WAS_HOLDER)
        await settle()
        s.answer(3, queued(6.0))
        await settle()
        s.push(7, 5.0)
        await settle()
        assert not s.entered
        s.push(8, 6.1)
        await settle()
        assert [lease.fence for lease in s.entered] == [8]

    run(play())


@pytest.mark.parametrize("when", ["before the first answer", "while it asks again"])
def test_reconnection_during_a_question_asks_again_after_its_answer(when: str) -> None:
    """A push may have been lost after the store had answered: ask after that answer."""

    async def play() -> None:
        s = await scene()
        _ = await s.start()
        if when == "while it asks again":
            s.answer(0, queued(0.0))
            await settle()
            s.store.deliver(Reconnected())
            await settle()
        s.store.deliver(Reconnected())
        await settle()
        asked = len(s.store.sent)
        s.answer(asked - 1, queued(0.1))
        await settle()
        assert s.store.verbs == ["acquire"] * (asked + 1)

    run(play())


def test_grant_broken_before_its_task_runs_is_not_entered() -> None:
    """The lost push is there before the task has run."""

    async def play() -> None:
        s = await scene()
        _ = await s.start()
        s.answer(0, queued(0.0))
        await settle()
        s.push(7, 0.1)
        s.store.deliver(GrantLost("lock:n", s.waiter, 7, "broken"))
        await settle()
        assert not s.entered
        assert s.store.verbs == ["acquire", "release"]

    run(play())


def test_timeout_in_the_turn_of_the_answer_raises_acquire_timeout() -> None:
    """The timer finds the question answered and no turn to wait for yet."""

    async def play() -> None:
        s = await scene()
        task = await s.start(timeout=1.0)
        loop = asyncio.get_running_loop()
        # Before the timer, and in the same turn of the loop.
        loop.call_at(loop.time() + 1.0 - 1e-10, s.answer, 0, queued(1.0))
        await asyncio.sleep(1.0)
        await settle()
        with pytest.raises(aiolock.AcquireTimeout):
            await task
        assert s.store.verbs == ["acquire", "release"]

    run(play())


def test_grant_to_a_waiter_that_gave_up_is_released() -> None:
    """The store has not heard of the giving up: its grant goes back at once."""

    async def play() -> None:
        s = await scene()
        task = await s.start()
        s.answer(0, queued(0.0))
        await settle()
        task.cancel()
        await settle()
        s.answer(1, WAS_QUEUED)
        s.push(7, 0.1)
        await settle()
        assert s.store.verbs == ["acquire", "release", "release"]
        assert s.store.sent[2].arguments == (s.waiter, 7)

    run(play())


def test_release_of_a_waiter_that_gave_up_is_sent_again_until_answered() -> None:
    """Whoever gave up may still stand at the store, and no push needs to come to remind us."""

    async def play() -> None:
        s = await scene()
        task = await s.start()
        s.answer(0, queued(0.0))
        await settle()
        task.cancel()
        await settle()
        for again in range(1, 3):
            s.fail(again)
            await asyncio.sleep(2.0)
            assert s.store.verbs == ["acquire"] + ["release"] * (again + 1)
            s.store.deliver(Reconnected())  # it is under way: no reason to send it twice
            await asyncio.sleep(20.0)
            assert s.store.verbs == ["acquire"] + ["release"] * (again + 1)
            assert s.store.sent[-1].arguments == (s.waiter, 0)
        s.answer(3, WAS_QUEUED)
        await asyncio.sleep(20.0)
        assert s.store.verbs == ["acquire"] + ["release"] * 3

    run(play())


def test_release_that_failed_is_sent_a_last_time_when_the_client_closes() -> None:
    """The store may be back; and if it is not, that is that."""

    async def play() -> None:
        s = await scene()
        task = await s.start()
        task.cancel()
        await settle()
        s.fail(1)
        await s.client.aclose()
        assert s.store.verbs == ["acquire", "release", "release"]
        s.fail(2)
        await asyncio.sleep(20.0)
        assert s.store.verbs == ["acquire", "release", "release"]

    run(play())


def test_release_of_another_grant_sent_again_still_names_that_grant() -> None:
    """Sent again, it is the release of that grant still, not of whatever the waiter holds."""

    async def play() -> None:
        s = await scene()
        _ = await s.start()
        s.answer(0, queued(0.0))
        await settle()
        s.push(7, 0.1)
        await settle()
        s.push(6, 0.0)  # one that it never heard of, and that nobody needs
        await settle()
        assert [lease.fence for lease in s.entered] == [7]
        assert s.store.sent[1].arguments == (s.waiter, 6)
        s.fail(1)
        await settle()
        s.store.deliver(Reconnected())
        await asyncio.sleep(1.5)  # and not long enough for a renewal
        assert s.store.verbs == ["acquire", "release", "release"]
        assert s.store.sent[2].arguments == (s.waiter, 6)

    run(play())


def test_acquire_cancelled_while_its_grant_is_given_back_sends_each_release_once() -> None:
    """The release of that grant has not failed, though nobody waits for its answer any more."""

    async def play() -> None:
        s = await scene()
        task = await s.start()
        await asyncio.sleep(6.0)
        s.answer(0, Granted(fence=7, lease=5_000))
        await settle()
        task.cancel()
        await settle()
        s.store.deliver(Reconnected())
        await asyncio.sleep(20.0)
        assert [command.arguments for command in s.store.sent[1:]] == [(s.waiter, 7), (s.waiter, 0)]

    run(play())


def test_waiter_at_the_head_asks_at_lease_end_and_others_within_a_claim() -> None:
    """That is how a dead holder is noticed; whoever is next asks no sooner."""

    async def play(place: int) -> float:
        s = await scene()
        _ = await s.start()
        answer = Queued(ticket=77, place=place, until=29_000, now=START)
        s.answer(0, answer)
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(100):
            await asyncio.sleep(0.5)
            if len(s.store.sent) > 1:
                break
        return loop.time() - began

    async def both() -> None:
        assert await play(1) == pytest.approx(29.5, abs=0.5)
        assert await play(2) == pytest.approx(3.5, abs=0.5), "a claim is 3 s at most"

    run(both())


def test_question_or_keeping_out_of_turn_raises_assertion_error() -> None:
    """One question at a time, and only what was granted is kept: nothing changes otherwise."""

    async def play() -> None:
        s = await scene()
        _ = await s.start()
        engine = s.client._engine
        acquisition = engine.waiters.acquisitions["lock:n"][s.waiter]
        with pytest.raises(AssertionError, match="one question at a time"):
            engine.waiters.ask(acquisition, wait=True)
        with pytest.raises(AssertionError, match="cannot become held"):
            engine.watchdog.keep(acquisition, 0.0)
        assert not engine.watchdog.holds
        assert s.store.verbs == ["acquire"]

    run(play())


@pytest.mark.parametrize("fails", [False, True])
def test_released_wakes_its_task_although_a_function_raises(*, fails: bool) -> None:
    """The exit that waits for the answer goes on, and whoever has answered gets the error."""

    async def play() -> None:
        released = Released()

        def breaks(_: Released) -> None:
            raise LookupError

        released.then(breaks)
        prompt = released.wait(asyncio.get_running_loop())
        failure = aiolock.StoreError("no answer")
        with pytest.raises(LookupError):
            released.set_exception(failure) if fails else released.resolve(WAS_HOLDER)
        await asyncio.wait_for(prompt, 1)

    run(play())


def test_waiter_behind_one_that_was_granted_asks_a_claim_after_the_grant() -> None:
    """Counted from when the other entered, not from when it was queued: that was seconds before."""

    async def play() -> None:
        s = await scene()
        s.client._engine.watchdog.events.often = True  # so that who waits reports it, and waits on
        _ = await s.start(), await s.start()
        for index in range(2):
            s.answer(index, queued(0.0, place=index + 1))
        await settle()
        await asyncio.sleep(3.1)
        s.answer(2, queued(3.1))  # a claim is over: the first in line has asked
        await asyncio.sleep(0.9)
        s.push(fence=7, granted=4.0)
        await settle()
        assert len(s.entered) == 1
        await asyncio.sleep(2.9)
        assert s.store.verbs.count("acquire") == 3
        await asyncio.sleep(0.2)
        assert s.store.verbs.count("acquire") == 4

    run(play())


def test_waiter_that_was_displaced_lets_the_others_ask_again() -> None:
    """One that stands in the queue no more is not the only one: FLUSHALL takes them all."""

    async def play() -> None:
        s = await scene()
        _ = await s.start(), await s.start(), await s.start()
        for index in range(3):
            s.answer(index, queued(0.0, place=index + 1))
        await settle()
        await asyncio.sleep(5.1)  # the first lease has ended: the first in line asks
        assert s.store.verbs == ["acquire"] * 4
        s.answer(3, queued(5.1)._replace(displaced=True))
        await settle()
        assert s.store.verbs == ["acquire"] * 6
        asked = [command.arguments[0] for command in s.store.sent]
        assert asked[:3] == asked[3:]

    run(play())


def test_acquire_on_a_store_too_slow_for_the_ttl_raises_store_error() -> None:
    """Grants that come after they have ended do not repeat for ever."""

    async def play() -> None:
        s = await scene()
        task = await s.start()
        for round_ in range(5):
            await asyncio.sleep(6.0)
            s.answer(2 * round_, Granted(fence=round_ + 1, lease=5_000))
            await settle()
            s.answer(2 * round_ + 1, WAS_HOLDER)
            await settle()
        with pytest.raises(aiolock.StoreError, match="too short"):
            await task

    run(play())


def test_try_acquire_answered_busy_after_a_reconnection_sends_a_release() -> None:
    """A question that was under way when the link broke may come again, and take what is free."""

    async def play() -> None:
        for breaks in (False, True):
            s = await scene()
            trying = asyncio.create_task(s.client.lock("n").try_acquire())
            await settle()
            if breaks:
                s.store.deliver(Reconnected())
            s.answer(0, Busy(1000))
            assert await trying is None
            await settle()
            assert s.store.verbs == ["acquire"] + ["release"] * breaks

    run(play())


def test_grant_too_late_whose_release_is_refused_is_released_again() -> None:
    """That the release was refused does not mean that the store has nothing of the waiter."""

    async def play() -> None:
        s = await scene()
        task = await s.start()
        await asyncio.sleep(6.0)
        s.answer(0, Granted(fence=7, lease=5_000))
        await settle()
        refused = aiolock.StoreError("refused")
        refused.refused = True
        s.store.sent[1].future.set_exception(refused)
        await settle()
        with pytest.raises(aiolock.StoreError, match="refused"):
            await task
        releases = [sent.arguments for sent in s.store.sent if sent.verb == "release"]
        assert releases == [(s.waiter, 7), (s.waiter, 0)]

    run(play())
