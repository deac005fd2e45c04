"""Long work in parts."""

from __future__ import annotations

import asyncio

import pytest

from aiolock._turns import Backlog
from tests.support.worlds import virtual


@virtual
async def test_backlog_of_more_than_a_part_is_done_in_later_turns_in_order() -> None:
    """The first part at once, the others in later iterations; what is added comes last."""
    done = list[int]()
    backlog = Backlog(done.append, most=2)
    backlog.add([1, 2, 3])
    assert done == [1, 2]
    backlog.add([4, 3, 5])
    assert done == [1, 2]
    await asyncio.sleep(0)
    assert done == [1, 2, 3, 4]
    await backlog.done()
    assert done == [1, 2, 3, 4, 5]
    backlog.add([])
    await asyncio.sleep(0)
    backlog.add([6])
    assert done[-1] == 6


def _backlog(done: list[int]) -> Backlog[int]:
    def do(number: int) -> None:
        done.append(number)
        if number in {1, 3}:
            raise ZeroDivisionError

    return Backlog(do, most=2)


@virtual
async def test_backlog_item_that_raises_does_not_stop_the_others() -> None:
    """Whoever called is told, or else the event loop is; the others are done all the same."""
    done, told, loop = list[int](), list[object](), asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    backlog = _backlog(done)
    with pytest.raises(ZeroDivisionError):
        backlog.add([1, 2, 3, 4])
    await backlog.done()
    assert done == [1, 2, 3, 4]
    assert [type(each) for each in told] == [ZeroDivisionError]


@virtual
async def test_backlog_whose_waiter_is_cancelled_is_done_all_the_same() -> None:
    """The others are done at once, and also those behind one that raises."""
    done, loop = list[int](), asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)
    backlog = _backlog(done)
    backlog.add([0, 2, 5, 4, 6])
    waiting = asyncio.create_task(backlog.done())
    waiting.cancel()
    backlog.add([3, 7])
    await asyncio.sleep(0)
    await asyncio.wait([waiting])
    await asyncio.sleep(0)
    assert done == [0, 2, 5, 4, 6, 3, 7]


@virtual
async def test_backlog_that_is_cleared_does_only_later_items() -> None:
    """Nothing more is done; what is added later is."""
    done = list[int]()
    backlog = Backlog(done.append, most=2)
    backlog.add([1, 2, 3])
    backlog.clear()
    await backlog.done()
    await asyncio.sleep(0)
    backlog.add([4])
    assert done == [1, 2, 4]
