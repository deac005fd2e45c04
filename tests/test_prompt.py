"""The future that an answer or a push resolves: its task goes on at once, and all else is usual."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable

import pytest

from aiolock._prompt import Prompt


async def by_the_loop(call: Callable[[], object]) -> None:
    """Make a call where the event loop makes them, outside of any task."""
    done = asyncio.Event()

    def do() -> None:
        call()
        done.set()

    asyncio.get_running_loop().call_soon(do)
    await done.wait()


class Waits:
    """A task that awaits a future, and what it did, in order, beside what others wrote there."""

    def __init__(self, reply: Prompt) -> None:
        self.reply = reply
        self.log: list[object] = []
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            answer = await self.reply
        except OSError as error:
            answer = error
        self.log.append(answer)

    def resolve(self) -> None:
        self.reply.resolve("answer")
        self.log.append("resolved")


@pytest.fixture
async def waits() -> Waits:
    """One that awaits already."""
    waits = Waits(Prompt(loop=asyncio.get_running_loop()))
    await asyncio.sleep(0)
    return waits


async def test_prompt_resolved_by_the_loop_steps_its_task_at_once(waits: Waits) -> None:
    """And not after the call that resolves it."""
    await by_the_loop(waits.resolve)
    assert waits.log == ["answer", "resolved"]
    assert waits.reply.result() == "answer"
    await waits.task


async def test_prompt_with_set_result_wakes_its_task_in_a_later_turn(waits: Waits) -> None:
    """A result that is set wakes its task in another turn."""

    def set_it() -> None:
        waits.reply.set_result("answer")
        waits.log.append("set")

    await by_the_loop(set_it)
    assert waits.log == ["set", "answer"]


async def test_prompt_with_set_exception_raises_in_its_task(waits: Waits) -> None:
    """As by any future."""
    error = OSError("no answer")
    waits.reply.set_exception(error)
    await waits.task
    assert waits.log == [error]


async def test_prompt_whose_task_is_cancelled_is_cancelled_too(waits: Waits) -> None:
    """It ends, the future with it; an answer that comes later is ignored."""
    waits.task.cancel()
    await asyncio.wait([waits.task])
    assert waits.task.cancelled()
    assert waits.reply.cancelled()
    await by_the_loop(waits.resolve)
    assert waits.reply.cancelled()
    assert waits.log == ["resolved"]


@pytest.mark.parametrize("first", [True, False])
async def test_prompt_with_other_callbacks_calls_all_later_in_order(first: bool) -> None:
    """With a callback beside the task, both are called later, in the order in which they came."""
    reply = Prompt(loop=asyncio.get_running_loop())
    log: list[object] = []
    if first:
        reply.add_done_callback(lambda _: log.append("callback"))
    waits = Waits(reply)
    waits.log = log
    await asyncio.sleep(0)
    if not first:
        reply.add_done_callback(lambda _: log.append("callback"))
    await by_the_loop(waits.resolve)
    await waits.task
    assert log == ["resolved", *(["callback", "answer"] if first else ["answer", "callback"])]


async def test_prompt_awaited_by_two_tasks_wakes_both(waits: Waits) -> None:
    """Both go on."""
    other = Waits(waits.reply)
    await asyncio.sleep(0)
    await by_the_loop(waits.resolve)
    await asyncio.gather(waits.task, other.task)
    assert other.log == ["answer"]


async def test_prompt_awaited_after_it_is_done_returns_its_result() -> None:
    """A task that comes late need not wait."""
    reply = Prompt(loop=asyncio.get_running_loop())
    await by_the_loop(lambda: reply.resolve("answer"))
    waits = Waits(reply)
    await waits.task
    assert waits.log == ["answer"]


async def test_prompt_under_wait_wait_for_and_shield_is_as_any_future(waits: Waits) -> None:
    """`asyncio.wait`, `wait_for` and `shield` do with it what they do with any."""
    for wait in (
        lambda reply: asyncio.wait([reply]),
        lambda reply: asyncio.wait_for(reply, 5),
        asyncio.shield,
    ):
        reply = Prompt(loop=asyncio.get_running_loop())
        asyncio.get_running_loop().call_soon(reply.resolve, "answer")
        await wait(reply)
        assert reply.result() == "answer"
    waits.reply.set_result("answer")
    await waits.task


async def test_prompt_callback_that_is_removed_is_not_called(waits: Waits) -> None:
    """As of any future; the task's own stays."""

    def callback(_: Prompt) -> None:
        waits.log.append("callback")

    waits.reply.add_done_callback(callback)
    assert waits.reply.remove_done_callback(callback) == 1
    await by_the_loop(waits.resolve)
    await waits.task
    await asyncio.sleep(0)
    assert waits.log == ["resolved", "answer"]


async def test_prompt_resolved_by_the_loop_keeps_the_context_of_its_task() -> None:
    """What the task had set is there when it goes on, and what it sets stays its own."""
    variable = contextvars.ContextVar[str]("variable", default="nothing")
    reply = Prompt(loop=asyncio.get_running_loop())

    async def run() -> str:
        variable.set("its own")
        await reply
        return variable.get()

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    seen: list[str] = []

    def resolve() -> None:
        reply.resolve("answer")
        seen.append(variable.get())

    await by_the_loop(resolve)
    assert await task == "its own"
    assert seen == ["nothing"]


async def test_prompt_resolved_by_a_task_steps_its_waiter_in_a_later_turn() -> None:
    """One task cannot step another, so that one goes on in a later turn."""
    future = Prompt(loop=asyncio.get_running_loop())
    stepped: list[Prompt] = []
    future.add_done_callback(stepped.append, context=contextvars.copy_context())  # as a task does
    future.resolve("answer")
    assert stepped == []
    await asyncio.sleep(0)
    assert stepped == [future]


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_prompt_whose_task_ends_the_loop_does_not_raise_at_resolve(error: BaseException) -> None:
    """It ends the event loop, as that of any task does, but not through whoever read the answer."""
    log: list[str] = []

    async def main() -> None:
        future = Prompt(loop=asyncio.get_running_loop())

        async def ends() -> None:
            await future
            raise error

        task = asyncio.create_task(ends())
        await asyncio.sleep(0)

        def resolve() -> None:
            future.resolve("answer")
            log.append("resolved")

        asyncio.get_running_loop().call_soon(resolve)
        await asyncio.wait([task])
        await asyncio.sleep(60)

    with pytest.raises(type(error)):
        asyncio.run(main())
    assert log == ["resolved"]


async def test_prompt_cancelled_during_resolve_still_wakes_its_task(waits: Waits) -> None:
    """As by a signal's handler, between two steps of that: its task is woken all the same."""

    class Cancels(Prompt):
        @property
        def _loop(self) -> asyncio.AbstractEventLoop:
            waits.task.cancel()
            return self.get_loop()

    def resolve() -> None:
        with contextlib.suppress(asyncio.InvalidStateError):
            waits.reply.resolve("answer")

    waits.reply.__class__ = Cancels
    await by_the_loop(resolve)
    await asyncio.wait([waits.task], timeout=5)
    assert waits.task.cancelled()
