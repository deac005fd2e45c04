"""Descriptions of work for one of many threads: once, once in each period, or as the leader."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from typing import Final, NoReturn, ParamSpec, TypeVar

import aiolock
from aiolock.backoff import Backoff
from aiolock.copying import CopiedAsItself
from aiolock.errors import ClientClosed, LeaseLost, StoreError
from aiolock.naming import checked_result, formatter
from aiolock.options import DEFAULT, Default, Seconds
from aiolock.protocol import Status
from aiolock.sync._body import Body, Entrance, Opened, check_function
from aiolock.sync._lease import Lease, Term
from aiolock.sync._portal import Portal
from aiolock.sync.transactions import refuse_in_transaction

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("aiolock")

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
"""Seconds between tries while the store cannot be reached: the first pause, and the longest."""


class Once(Entrance[aiolock.Lease | None, Lease | None]):
    """A piece of work to be done once: as `aiolock.Once`, for threads.

    As a decorator of a function it gives the function's result, or None if the work is done
    already.
    """

    __slots__ = ("__weakref__", "_once")

    def __init__(self, client: Opened, once: aiolock.Once) -> None:
        super().__init__(client, once, _lease)
        self._once = once

    def __repr__(self) -> str:
        return repr(self._once)

    @property
    def name(self) -> str:
        """The name of the work."""
        return self._once.name

    def status(self) -> Status:
        """The client that does it, and the waiters; ``closed`` is how long it is remembered."""
        return self._client.call(self._once.status)

    def break_(self, fence: int | None = None) -> bool:
        """Take the work from the client that does it, for the next one: as `Lock.break_`."""
        return self._client.call(lambda: self._once.break_(fence))

    def outcome(self, work: Callable[[Lease], str], *, token: str | None = None) -> aiolock.Outcome:
        """Do the work and keep its result; or return the result kept when it was done before.

        As `aiolock.Once.outcome`; ``work`` is a function, called in this thread.
        """
        refuse_in_transaction(self, "it would be done")
        portal = self._client.portal()
        body = Body(portal, functools.partial(self._once._asked, token))
        try:
            body.enter()
            try:
                found = body.value
                if isinstance(found, aiolock.Outcome):
                    outcome = found
                else:
                    result = found.result = work(Lease(portal, found.lease))
                    outcome = aiolock.Outcome(result, first=True)
            except BaseException as error:
                body.leave(error)
                raise
            body.leave(None)
            return outcome
        finally:
            body.close()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R | None]:
        """Decorate a function: each call asks for the work; None if it is done already."""
        name = formatter(self.name, function, "once", is_async=False)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
            with Once(self._client, self._once._named(name(*args, **kwargs))) as lease:
                return (
                    None if lease is None else checked_result(function(*args, **kwargs), function)
                )

        return call


def _lease(portal: Portal, value: aiolock.Lease | None) -> Lease | None:
    return None if value is None else Lease(portal, value)


class Periodic(Entrance[aiolock.Lease, Lease]):
    """A job of which one run begins in each period: as `aiolock.Periodic`, for threads."""

    __slots__ = ("__weakref__", "_periodic")

    def __init__(self, client: Opened, periodic: aiolock.Periodic) -> None:
        super().__init__(client, periodic, Lease)
        self._periodic = periodic

    def __repr__(self) -> str:
        return repr(self._periodic)

    @property
    def name(self) -> str:
        """The name of the job."""
        return self._periodic.name

    @property
    def every(self) -> float:
        """The length of a period, in seconds."""
        return self._periodic.every

    def status(self) -> Status:
        """The instance that runs, how long the job is closed, who is next; see `Lock.status`."""
        return self._client.call(self._periodic.status)

    def break_(self, fence: int | None = None) -> bool:
        """Take the job from the instance that runs it: as `Lock.break_`."""
        return self._client.call(lambda: self._periodic.break_(fence))

    def run(self, job: Callable[[], object]) -> NoReturn:
        """Take part until interrupted: wait for our turn, run ``job``, queue again.

        An exception of ``job`` is logged. So is a run whose lease was lost, or for which
        ``max_hold`` had passed: that run goes on to its end, for nothing stops a thread. While the
        store cannot be reached, the call tries again after a second, then less and less often.
        Raises the other errors of `Lock.acquire`, including `ClientClosed` when the client is
        closed.
        """
        check_function("job", job)
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                with self:
                    backoff.reset()
                    self._once(job)
            except LeaseLost as lost:
                log.warning("aiolock: a run of %r went on without its lock: %s", self.name, lost)
            except StoreError as failure:
                pause = backoff.pause()
                log.warning("aiolock: %r is tried again in %g s: %s", self.name, pause, failure)
                self._client.rest(pause)

    def _once(self, job: Callable[[], object]) -> None:
        try:
            job()
        except Exception:  # also LeaseLost of another lock, which `run` would take for our own
            log.exception("aiolock: a run of %r failed", self.name)


class Election(CopiedAsItself):
    """A description of one election: as `aiolock.Election`, for threads. Holds nothing."""

    __slots__ = ("_client", "_election")

    def __init__(self, client: Opened, election: aiolock.Election) -> None:
        self._client = client
        self._election = election

    def __repr__(self) -> str:
        return repr(self._election)

    @property
    def name(self) -> str:
        """The election's name."""
        return self._election.name

    @contextmanager
    def campaign(
        self, value: str = "", *, timeout: Seconds | Default | None = DEFAULT
    ) -> Generator[Term, None, None]:
        """Wait to become the leader, and lead in the body of ``with``; leaving it resigns.

        ``value`` is what the others see of the leader: up to 10,000 characters. Errors, loss and
        interruption are those of ``with lock``.
        """
        refuse_in_transaction(self)
        portal = self._client.portal()
        body = Body(portal, lambda: self._election.campaign(value, timeout=timeout))
        try:
            body.enter()
            try:
                yield Term(portal, body.value)
            except BaseException as error:
                body.leave(error)
                raise
            body.leave(None)
        finally:
            body.close()

    def leader(self) -> aiolock.Leader | None:
        """The present leader, or None; two concurrent round trips. `StoreError` if unknown."""
        return self._client.call(self._election.leader)

    def observe(self) -> Generator[aiolock.Leader, None, None]:
        """Yield each leader, from the present one on, as soon as it leads; without end.

        As `aiolock.Election.observe`. Ends only by an error, or by being closed or interrupted.
        """
        leaders: AsyncGenerator[aiolock.Leader, None] = self._election.observe()

        async def following() -> aiolock.Leader:
            try:
                return await anext(leaders)
            except StopAsyncIteration:  # the loop has ended, and with it the iteration there
                raise ClientClosed("this client was closed meanwhile", closed=True) from None

        try:
            while True:
                yield self._client.call(following, waits=True)
        finally:
            self._client.leave(leaders.aclose)

    def request_resign(self) -> bool:
        """Ask the leader to resign when it can; as `aiolock.Election.request_resign`."""
        return self._client.call(self._election.request_resign)

    def break_(self, fence: int | None = None) -> bool:
        """Depose the leader, and let the next one lead; True if there was one."""
        return self._client.call(lambda: self._election.break_(fence))
