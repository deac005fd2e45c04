"""Attempts at other primitives: barriers, latches, messages, and two locks at a time."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import aiolock
from tests.proof.chaos.choices import MESSAGES, PARTIES, Meeting
from tests.proof.chaos.history import History

MEETING: Final = 4
"""Tasks of each process that meet others."""
_NEW_AFTER: Final = 40
"""After so many attempts of a task, the messages are new ones."""


async def meet(client: aiolock.LockClient, history: History, task: str, choice: Meeting) -> None:
    """One attempt, as it was drawn, and its outcome."""
    steps = {
        "meet": _barrier,
        "count": _count,
        "wait": _latch,
        "once": _message,
        "both": _both,
    }
    try:
        await steps[choice.what](client, history, task, choice)
    except (
        aiolock.StoreError,
        aiolock.ClientClosed,
        aiolock.AcquireTimeout,
        aiolock.LeaseLost,
    ) as error:
        history.note("apart", a=task, outcome=type(error).__name__)


async def _barrier(
    client: aiolock.LockClient, history: History, task: str, choice: Meeting
) -> None:
    history.note("arrives", a=task, parties=PARTIES)
    await client.barrier("round", PARTIES).wait(timeout=choice.seconds)
    history.note("passes", a=task)


async def _count(client: aiolock.LockClient, history: History, task: str, choice: Meeting) -> None:
    # Now and then a token comes twice: it has to be counted once.
    token = str(hash(task) % 40) if choice.fails else task
    history.note("counts", latch=choice.number, token=token)
    await client.latch(f"loaded {choice.number}", PARTIES, remember=60).count_down(token)


async def _latch(client: aiolock.LockClient, history: History, task: str, choice: Meeting) -> None:
    await client.latch(f"loaded {choice.number}", PARTIES, remember=60).wait(timeout=choice.seconds)
    history.note("opens", a=task, latch=choice.number, parties=PARTIES)


async def _message(
    client: aiolock.LockClient, history: History, task: str, choice: Meeting
) -> None:
    # New messages come all the time; the tasks of a new process ask for old messages again.
    message = choice.number + MESSAGES * (int(task.partition("/")[0]) // _NEW_AFTER)
    done = False
    history.note("wants", a=task, message=message)
    async with client.once(f"message {message}", remember=3600, ttl=1.0) as lease:
        if lease is None:
            history.note("knows", a=task, message=message)
        else:
            deadline = time.monotonic_ns() + int(lease.remaining() * 1e9)
            history.note("begins", a=task, message=message, fence=lease.fence, deadline=deadline)
            try:
                await asyncio.sleep(choice.seconds)
                if choice.fails:
                    raise aiolock.LeaseLost("it fails")
                done = True
                history.note("handling", a=task, message=message, fence=lease.fence)
            finally:
                history.note("stops", a=task)
    if done:
        history.note("handled", a=task, message=message)


async def _both(client: aiolock.LockClient, history: History, task: str, choice: Meeting) -> None:
    names = [f"account {number}" for number in range(3) if number != choice.number % 3]
    # Given in any order: no two tasks may wait for each other.
    names = names if choice.fails else names[::-1]
    async with client.multilock(*names, ttl=1.0, timeout=8.0):
        history.note("has", a=task, names=names)
        try:
            await asyncio.sleep(choice.seconds)
        finally:
            history.note("had", a=task)
