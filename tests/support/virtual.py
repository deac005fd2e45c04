"""An event loop with a clock of its own: it never sleeps, and it can shuffle what is ready."""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn, TypeVar
from unittest import mock

from tests.support import loops

T = TypeVar("T")

BEGINNING = 1_700_000_000.0
"""When `VirtualLoop`s begin, in Unix seconds: 20 s into a minute, and 800 s into an hour."""


class Deadlock(RuntimeError):
    """Nothing is ready and no timer is set, so nothing will ever happen again."""


class _Shuffled(deque[asyncio.Handle]):
    """A ready queue from which any handle may come next."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def popleft(self) -> asyncio.Handle:
        self.rotate(-self._random.randrange(len(self)))
        return super().popleft()


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose `time()` starts at 0, and jumps to the next timer when nothing is ready.

    With a `seed`, any of what is ready may run next, not just the oldest, in an order that is the
    same for the same seed; asyncio itself keeps the order, so this is more than can happen. There
    is no I/O, no thread and no signal on this loop. While it runs, `time.time()` goes by it too, so
    that a period of a job begins at the same step of each run. What it needs from below the surface
    of asyncio (3.11 to 3.14) is all in this class: `_ready`, `_scheduled`, `_selector`.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = self
        if seed is not None:
            self._ready = _Shuffled(seed)

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    def run_forever(self) -> None:
        """Run, on a day that is always the same."""
        with mock.patch("time.time", self._date):
            super().run_forever()

    def _date(self) -> float:
        return BEGINNING + self._now

    def advance(self, seconds: float) -> None:
        """Let time pass at once, as when the process is stopped."""
        self._now += seconds

    def select(self, timeout: float | None) -> list[NoReturn]:
        """Move the clock instead of sleeping (called by asyncio where it would wait for I/O)."""
        if timeout is None:
            tasks = "".join(f"\n  {task!r}" for task in asyncio.all_tasks(self))
            raise Deadlock(f"nothing is ready, no timer is set, and there is still:{tasks}")
        if timeout > 0:
            self._now = max(self._now, self._scheduled[0].when())
        return []

    def _process_events(self, event_list: list[NoReturn]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass  # wakes up a loop that sleeps, which this one never does

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError("a VirtualLoop has no I/O, no threads and no signals")

    _refused: Any = _refuse
    add_reader = remove_reader = add_writer = remove_writer = _refused
    add_signal_handler = run_in_executor = getaddrinfo = getnameinfo = _refused
    create_connection = create_server = create_datagram_endpoint = sock_connect = _refused
    create_unix_connection = create_unix_server = connect_accepted_socket = _refused
    connect_read_pipe = connect_write_pipe = subprocess_exec = subprocess_shell = _refused
    sock_accept = sock_recv = sock_recv_into = sock_sendall = sock_sendfile = sendfile = (
        start_tls
    ) = _refused


class CoarseLoop(VirtualLoop):
    """The same with the timers of uvloop: of whole milliseconds, and none for what is nearly due.

    What is due within half a millisecond is called soon, too early, and its handle is no
    `TimerHandle`. Whoever sets it again then would do so for ever if no time passed: it does.
    """

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(seed)
        self._ties: dict[float, float] = {}

    def call_at(  # type: ignore[override]  # uvloop's is as wrong
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        milliseconds = round((when - self.time()) * 1000)
        if milliseconds <= 0:
            self._now = max(self._now, min(when, self._now + 0.0001))
            return self.call_soon(callback, *args, context=context)
        when = self.time() + milliseconds / 1000
        # Of timers of the same millisecond, the one that was set first comes first.
        if when in self._ties:
            self._ties[when] = tie = math.nextafter(self._ties[when], math.inf)
        else:
            self._ties = {each: tie for each, tie in self._ties.items() if each > self._now}
            self._ties[when] = tie = when
        return super().call_at(tie, callback, *args, context=context)

    def call_later(  # type: ignore[override]  # uvloop's is as wrong
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        return self.call_at(self.time() + delay, callback, *args, context=context)


def new_loop(seed: int | None = None) -> VirtualLoop:
    """A virtual loop that is like the one the tests run on."""
    loop = CoarseLoop(seed) if loops.chosen() == "uvloop" else VirtualLoop(seed)
    if loops.chosen() == "eager":
        loops.be_eager(loop)
    return loop


def run(coro: Coroutine[Any, Any, T], seed: int | None = None) -> T:
    """Run a coroutine on a virtual loop of its own, and check that it leaves no task behind."""
    with asyncio.Runner(loop_factory=lambda: new_loop(seed)) as runner:
        result = runner.run(coro)
        left = asyncio.all_tasks(runner.get_loop())
        assert not left, f"tasks are left running: {left}"
        return result
