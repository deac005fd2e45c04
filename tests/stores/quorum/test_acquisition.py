"""The passes over all acquisitions of one name, part by part."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator

import pytest

from aiolock.stores.quorum import _passes
from aiolock.stores.quorum._name_queue import NameQueue
from aiolock.stores.quorum._passes import PART, Passes
from aiolock.testing import Peer
from tests.support.quorums import servers, store_on
from tests.support.worlds import virtual


class Parts:
    """A queue whose passes have three parts."""

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self.passes = Passes(self._time)
        self.queue = NameQueue(self._due, 3, self.passes)
        self.steps = list[tuple[float, int]]()
        """When each step was done, and its number in its pass."""

    def _due(self, queue: NameQueue) -> Iterator[int]:
        for number in range(3):
            self.steps.append((self._time(), number))
            self.done(number)
            yield PART

    def done(self, number: int) -> None:
        """Called in each step."""

    def look_by(self, seconds: float) -> None:
        """Look in so many seconds."""
        self.queue.look_by(self._time() + seconds)

    @property
    def numbers(self) -> list[int]:
        """The steps so far."""
        return [number for _, number in self.steps]


@virtual
async def test_queue_pass_does_one_part_in_each_turn_of_the_loop() -> None:
    """One part in each iteration of the loop, and no timer after the last."""
    parts = Parts()
    parts.look_by(0)
    seen = list[int]()
    while len(parts.steps) < 3:
        await asyncio.sleep(0)
        seen.append(len(parts.steps))
    assert [seen.count(number) for number in (1, 2)] == [1, 1]
    await asyncio.sleep(60)
    assert parts.numbers == [0, 1, 2]
    assert parts.queue._timer is None
    assert parts.passes.idle


@virtual
@pytest.mark.parametrize("seconds", [0, 1])
async def test_queue_pass_that_is_due_during_another_follows_it(seconds: int) -> None:
    """There is another pass in time, but not before the end of that."""
    parts = Parts()

    def done(number: int) -> None:
        if number == 1 and len(parts.steps) == 2:
            parts.look_by(seconds + 5)
            parts.look_by(seconds)
            parts.look_by(seconds + 9)

    parts.done = done  # type: ignore[method-assign]  # of this one
    parts.look_by(1)
    await asyncio.sleep(60)
    assert parts.numbers == [0, 1, 2] * 2
    assert parts.steps[3][0] - parts.steps[1][0] == pytest.approx(seconds, abs=0.001)


@virtual
@pytest.mark.parametrize("within", [True, False])
async def test_queue_closed_during_a_pass_leaves_no_timer(*, within: bool) -> None:
    """By a step of it, or between two: nothing is left of it."""
    parts = Parts()

    def done(number: int) -> None:
        if within and number == 1:
            parts.queue.close()
        elif not within and number == 0:  # after the next part, which is planned already
            asyncio.get_running_loop().call_soon(parts.queue.close)

    parts.done = done  # type: ignore[method-assign]  # of this one
    parts.look_by(0)
    await asyncio.sleep(60)
    assert parts.numbers == [0, 1]
    assert parts.queue._timer is None
    assert parts.passes.idle


@virtual
async def test_queue_pass_that_fails_is_followed_by_another() -> None:
    """There is another one, as soon as something is due."""
    parts, errors = Parts(), list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    fault = RuntimeError("a fault")

    def done(number: int) -> None:
        if len(parts.steps) == 2:
            raise fault

    parts.done = done  # type: ignore[method-assign]  # of this one
    parts.look_by(0)
    await asyncio.sleep(1)
    assert (parts.numbers, errors) == ([0, 1], [fault])
    parts.look_by(0)
    await asyncio.sleep(1)
    assert parts.numbers == [0, 1, 0, 1, 2]


@virtual
async def test_queue_pass_asks_by_the_first_waiter_that_has_not_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is not the one that asks for all: the first that is still there is."""
    monkeypatch.setattr(_passes, "PART", 1)
    of = servers()
    async with Peer(store_on(of)) as ours, Peer(store_on(of)) as other:
        held = await other.take("a")
        first = await ours.queue("a")
        await ours.queue("a")
        queue = ours.store._session.acquisitions.table.queues["a"]  # type: ignore[attr-defined]
        one, two = queue.acquisitions.values()
        time = asyncio.get_running_loop().time
        began = time()
        one.ask_at = [math.inf] * 3  # as while a question is open
        two.ask_at = [began + 1, math.inf, math.inf]
        queue.look_by(-1)
        async with asyncio.timeout(60):
            while not queue._passes.is_under_way(queue):  # noqa: ASYNC110  # it sets no Event
                await asyncio.sleep(0)
        await ours.leave("a", first.waiter)
        assert one.over
        async with asyncio.timeout(60):
            while two.ask_at[0] == began + 1:  # noqa: ASYNC110  # it sets no Event
                await asyncio.sleep(0.1)
        assert time() - began < 2
        await other.release("a", held)
