"""Requests of several names go to the database together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from aiolock.stores.authors import Batches


class Database:
    """It answers when it is told to, and notes each batch that it was sent."""

    def __init__(self) -> None:
        self.sent = list[tuple[str, ...]]()
        self._replies = list[asyncio.Future[None]]()
        self._tasks = set[asyncio.Task[None]]()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def send(self, requests: Sequence[str]) -> Sequence[str | Exception]:
        """Each in capitals; an error for "bad"."""
        self.sent.append((*requests,))
        self._replies.append(asyncio.get_running_loop().create_future())
        await self._replies[-1]
        return [ConnectionError(each) if each == "bad" else each.upper() for each in requests]

    async def reply(self, batch: int, error: Exception | None = None) -> None:
        """Answer that batch."""
        if error is None:
            self._replies[batch].set_result(None)
        else:
            self._replies[batch].set_exception(error)
        await turn()

    def cancel(self, batch: int) -> None:
        """Cancel what that batch waits for."""
        self._replies[batch].cancel()


async def turn() -> None:
    """Let the loop do what is due."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_batches_send_what_is_submitted_in_one_turn_together() -> None:
    """One request for all of them, and each has its own reply or error."""
    database = Database()
    batches = Batches(database.send, database.start)
    futures = [batches.submit(each) for each in ("a", "bad", "c")]
    await turn()
    assert database.sent == [("a", "bad", "c")]
    await database.reply(0)
    replies = await asyncio.gather(*futures, return_exceptions=True)
    assert replies[::2] == ["A", "C"]
    assert isinstance(replies[1], ConnectionError)


async def test_batches_gather_while_enough_are_under_way() -> None:
    """What is submitted meanwhile goes with the next batch, no more than fit in one."""
    database = Database()
    batches = Batches(database.send, database.start, most=2)
    futures = list[asyncio.Future[str]]()
    for each in "abcde":
        futures.append(batches.submit(each))
        await turn()
    assert database.sent == [("a",), ("b",)]
    await database.reply(1)
    assert database.sent[2:] == [("c", "d")]
    await database.reply(0)
    assert database.sent[3:] == [("e",)]
    await database.reply(2)
    await database.reply(3)
    assert await asyncio.gather(*futures) == [*"ABCDE"]


async def test_batches_put_no_key_in_a_batch_twice() -> None:
    """The later ones wait, in their order; others pass them."""
    database = Database()
    batches = Batches(database.send, database.start, keys=lambda each: each[1:])
    futures = [batches.submit(each) for each in ("ax", "bxy", "cy", "dz", "e")]
    await turn()
    assert database.sent == [("ax", "dz", "e"), ("bxy",)]
    await database.reply(0)
    await database.reply(1)
    assert database.sent[2:] == [("cy",)]
    await database.reply(2)
    assert await asyncio.gather(*futures) == ["AX", "BXY", "CY", "DZ", "E"]


async def test_batches_that_fail_fail_each_request() -> None:
    """Also by a mistake of the author; the next ones are sent."""
    database = Database()
    batches = Batches(database.send, database.start)
    futures = [batches.submit(each) for each in "ab"]
    await turn()
    await database.reply(0, TimeoutError())
    replies = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(reply) for reply in replies] == [TimeoutError, TimeoutError]
    later = batches.submit("c")
    await turn()
    await database.reply(1)
    assert await later == "C"


async def test_batches_whose_request_was_cancelled_fail_each_request() -> None:
    """Those who wait were not cancelled: they get an error, and the next ones are sent."""
    database = Database()
    batches = Batches(database.send, database.start)
    futures = [batches.submit(each) for each in "ab"]
    await turn()
    database.cancel(0)
    replies = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(reply) for reply in replies] == [ConnectionAbortedError] * 2
    later = batches.submit("c")
    await turn()
    await database.reply(1)
    assert await later == "C"


async def test_batches_do_not_send_what_was_cancelled() -> None:
    """Nobody waits for it, and it has not been sent."""
    database = Database()
    batches = Batches(database.send, database.start)
    given_up, other = batches.submit("a"), batches.submit("b")
    given_up.cancel()
    await turn()
    assert database.sent == [("b",)]
    other.cancel()
    await database.reply(0)
    assert other.cancelled()
