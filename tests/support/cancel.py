"""Cancel at every step: run a scenario once for each point where it waits, and cancel it there.

A scenario is a coroutine function without arguments. A step is one yield of its coroutine to the
event loop; steps count from 1. A kind says who cancels, and when.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable
from contextvars import Context
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, cast

import anyio

Scenario = Callable[[], Coroutine[Any, Any, Any]]


class _Probe:
    """Awaits the scenario, counts its yields, and strikes at one of them."""

    def __init__(self, scenario: Scenario, step: int = 0) -> None:
        self.steps = 0
        self.delivered = False
        self.requests_left = 0
        self.task: asyncio.Task[Any] | None = None
        self.value: Any = None
        self.error: BaseException | None = None
        # Called when the scenario yields for the step-th time, with what it yields (a future or
        # None), just before the task sees it.
        self.strike: Callable[[Any], object] = lambda awaited: None
        self._scenario = scenario
        self._step = step

    @property
    def reached(self) -> bool:
        return self.steps >= self._step

    @property
    def cancelled(self) -> bool:
        return isinstance(self.error, asyncio.CancelledError)

    def __await__(self) -> Generator[Any, None, None]:
        self.task = task = _this_task()
        before = requests = task.cancelling()
        coro = self._scenario()
        thrown: BaseException | None = None
        try:
            while True:
                awaited = coro.send(None) if thrown is None else coro.throw(thrown)
                thrown = None
                self.steps += 1
                if self.steps == self._step:
                    requests = task.cancelling()
                    self.strike(awaited)
                try:
                    yield awaited
                except BaseException as exc:  # noqa: BLE001 - it is all passed on
                    thrown = exc
                if self.reached and task.cancelling() > requests:
                    self.delivered = True
        except StopIteration as stop:
            self.value = stop.value
        except BaseException as exc:
            self.error = exc
            raise
        finally:
            self.requests_left = task.cancelling() - before
            thrown = None  # or it would refer to this frame, and this frame to it


Envelope = Callable[[_Probe], Coroutine[Any, Any, None]]


class _Sibling(asyncio.Task[None]):
    """A task whose end, and error, its group hears of when `announce` is called."""

    _error: BaseException | None = None
    _tell: Callable[[Any], object] | None = None

    def add_done_callback(
        self, fn: Callable[[Any], object], /, *, context: Context | None = None
    ) -> None:
        self._tell = fn

    def exception(self) -> BaseException | None:
        return self._error

    def announce(self, error: BaseException | None = None) -> None:
        tell, self._tell = self._tell, None
        if tell is not None:
            self._error = error
            tell(self)


class SiblingError(Exception):
    """The error of the sibling task in the kinds with a task group."""


def _native(when: Literal["soon", "at once", "before", "after"]) -> Envelope:
    async def envelope(probe: _Probe) -> None:
        loop, task = asyncio.get_running_loop(), _this_task()

        def cancel(_: object = None) -> None:
            task.cancel()

        def strike(awaited: asyncio.Future[Any] | None) -> None:
            # Right after this the task adds its own wake-up call to the future that it awaits. With
            # a bare yield (None), it has itself called soon.
            if when == "at once":
                cancel()
            elif when == "soon":
                loop.call_soon(cancel)
            elif when == "before":
                _when_done(awaited, cancel)
            else:
                loop.call_soon(_when_done, awaited, cancel)

        probe.strike = strike
        await probe

    return envelope


def _when_done(awaited: asyncio.Future[Any] | None, call: Callable[[object], None]) -> None:
    if awaited is None:
        asyncio.get_running_loop().call_soon(call, None)
    else:
        awaited.add_done_callback(call)


async def _timeout(probe: _Probe) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(None) as scope:
        probe.strike = lambda _: scope.reschedule(loop.time())
        await probe


def _taskgroup(where: Literal["child", "body"]) -> Envelope:
    async def envelope(probe: _Probe) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.TaskGroup() as group:
                sibling = _add_sibling(group)
                probe.strike = lambda _: loop.call_soon(sibling.announce, SiblingError())
                if where == "child":
                    child = group.create_task(_await(probe))
                    child.add_done_callback(lambda _: sibling.announce())
                else:
                    try:
                        await probe
                    finally:
                        sibling.announce()
        except BaseExceptionGroup as errors:
            for error in errors.exceptions:
                if not isinstance(error, SiblingError):
                    raise error from None

    return envelope


def _add_sibling(group: asyncio.TaskGroup) -> _Sibling:
    loop = asyncio.get_running_loop()
    factory = loop.get_task_factory()

    def make(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        return _Sibling(coro, loop=loop, **options)

    loop.set_task_factory(make)
    try:
        return cast(_Sibling, group.create_task(asyncio.sleep(0)))
    finally:
        loop.set_task_factory(factory)


async def _await(probe: _Probe) -> None:
    await probe


async def _anyio(probe: _Probe) -> None:
    with anyio.CancelScope() as scope:
        probe.strike = lambda _: scope.cancel()
        await probe


@dataclass(frozen=True)
class Kind:
    """A way to cancel: `envelope` runs the scenario and turns its CancelledError into `becomes`.

    `level` says that it cancels again and again, until the scenario has ended.
    """

    name: str
    envelope: Envelope
    becomes: type[BaseException] | None = None
    level: bool = False

    def __str__(self) -> str:
        return self.name


KINDS = (
    # task.cancel() while the task is suspended: soon after it was, before anything else can run;
    Kind("native", _native("soon"), asyncio.CancelledError),
    # at once, before even what it had set going has begun;
    Kind("native-at-once", _native("at once"), asyncio.CancelledError),
    # when what it awaits is done: just before the task runs again, and just after it has done so.
    Kind("native-ready", _native("before"), asyncio.CancelledError),
    Kind("native-resumed", _native("after"), asyncio.CancelledError),
    # The asyncio.timeout() round the scenario expires.
    Kind("timeout", _timeout, TimeoutError),
    # Another task of the asyncio.TaskGroup fails; the scenario is one of its tasks, or its body.
    Kind("taskgroup", _taskgroup("child")),
    Kind("taskgroup-body", _taskgroup("body")),
    # The anyio.CancelScope round it is cancelled.
    Kind("anyio", _anyio, level=True),
)


@dataclass(frozen=True)
class Outcome:
    """How one run ended. `reached`: it came to the step; `delivered`: its task was then cancelled.

    A run that finished although the cancellation was delivered has swallowed it.
    """

    kind: Kind
    step: int
    reached: bool
    delivered: bool
    end: Literal["finished", "cancelled", "raised"]
    value: Any = None
    error: BaseException | None = None


async def steps(scenario: Scenario) -> int:
    """Run the scenario once, undisturbed, and return how often it yielded to the event loop."""
    probe = _Probe(scenario)
    await asyncio.create_task(_await(probe))
    return probe.steps


async def run_cancelled(
    kind: Kind, step: int, scenario: Scenario, *, patience: float = 10.0
) -> Outcome:
    """Run the scenario once, cancelling it at the given step, and say how it ended.

    Fails when the scenario does not end within `patience` seconds, when a CancelledError that it
    let through is not recognised by the scope that had asked for it, and when it has disturbed the
    count of cancel requests, `Task.cancelling()`.
    """
    probe = _Probe(scenario, step)
    task = asyncio.create_task(kind.envelope(probe))
    try:
        await asyncio.wait({task}, timeout=patience)
        assert task.done(), f"{kind} at step {step}: the scenario hangs: {task}"
    finally:
        for each in {task, probe.task or task}:
            each.cancel()
    outer = asyncio.CancelledError() if task.cancelled() else task.exception()
    if probe.cancelled:
        got = None if outer is None else type(outer)
        assert got is kind.becomes, f"{kind} at step {step}: the scope gave {outer!r}"
    elif outer is not probe.error:
        raise AssertionError(f"{kind} at step {step}: the scope gave {outer!r}") from outer
    left, asked = probe.requests_left, int(probe.delivered)
    assert left == asked or (kind.level and left > asked > 0), (
        f"{kind} at step {step}: Task.cancelling() is {left} after {asked} request(s)"
    )
    end: Literal["finished", "cancelled", "raised"] = "finished"
    if probe.error is not None:
        end = "cancelled" if probe.cancelled else "raised"
    error, probe.error = probe.error, None  # whose traceback refers to the probe in turn
    return Outcome(kind, step, probe.reached, probe.delivered, end, probe.value, error)


async def cancel_everywhere(
    scenario: Scenario, kinds: Iterable[Kind] = KINDS, *, patience: float = 10.0
) -> AsyncIterator[Outcome]:
    """Run the scenario, for each kind, once for each step, cancelling there; yield after each run.

    A kind ends with the first run that does not come to its step; that run must finish, and is not
    yielded. So a scenario must end by itself when nobody cancels it.
    """
    for kind in kinds:
        for step in count(1):
            outcome = await run_cancelled(kind, step, scenario, patience=patience)
            if not outcome.reached:
                if outcome.error is not None:
                    raise outcome.error
                assert step > 1, "the scenario never yields to the event loop"
                break
            yield outcome


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task
