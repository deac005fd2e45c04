"""`RateLimit`: a number of tokens in a time, for all processes together.

At the store, a rate limit is the time at which its bucket is full again: see `stores._bucket`. A
waiter takes tokens by `Rule.RATE` and holds nothing, so there is no lease and no release.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, NoReturn, Unpack

from aiolock._engine.engine import Engine
from aiolock._engine.policy import Policy
from aiolock._engine.tokens import Taken, take
from aiolock._locks.async_only import AsyncOnly
from aiolock._locks.lock import Lock
from aiolock._rate import LONGEST, Rate
from aiolock.copying import CopiedAsItself, Uncopyable
from aiolock.errors import AcquireTimeout
from aiolock.kinds import KINDS
from aiolock.options import DEFAULT, Default, Seconds
from aiolock.protocol import Resize, Rule, Status
from aiolock.signatures import NoOptions, unexpected, without_unknown
from aiolock.validation import (
    LONGEST_TTL,
    SHORTEST_TTL,
    checked_label,
    checked_number,
    checked_timeout,
    checked_wait,
)
from aiolock.validation import seconds as checked_seconds

REMEMBERED: Final = 10.0
"""Seconds for which a store remembers who got tokens: longer than it may take until an answer or a
push that was lost is noticed, and asked for again."""
_REMEMBERED: Final = 30 * 24 * 3_600_000
"""Milliseconds for which a `RateLimit.resize` is remembered, in use or not."""

_TOO_COARSE: Final = 1.01
"""By how much an interval may be rounded up."""


def checked_rate(limit: object, per: object, burst: object) -> Rate:
    """The rate of ``limit`` tokens in ``per`` seconds; a ``burst`` of None is the limit."""
    tokens = checked_number("limit", limit)
    micros = checked_seconds("per", per, least=SHORTEST_TTL, most=LONGEST_TTL) * 1_000_000
    interval = -(-round(micros) // tokens)
    if interval * tokens > micros * _TOO_COARSE:
        raise ValueError(
            f"{tokens:,} tokens in {micros / 1_000_000:g} s are too many to be told apart, as an"
            " interval is rounded up to whole microseconds: count in larger units, such as"
            " thousands of tokens"
        )
    rate = Rate(interval, tokens if burst is None else checked_number("burst", burst))
    if rate.tolerance > LONGEST:
        raise ValueError(
            f"a bucket of {rate.burst:,} tokens, with one in {interval / 1_000_000:g} s, must be"
            " full after a year at most"
        )
    return rate


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of a rate limit; true if the tokens were taken. All times are in seconds."""

    ok: bool
    """Whether the tokens were taken."""
    retry_after: float
    """If not, when they are there, if nobody else takes them before; 0.0 if they were taken."""
    remaining: int
    """The tokens that are left for others now. None are, while somebody waits for some."""
    reset_after: float
    """When the bucket is full again, if nobody takes any more."""

    def __bool__(self) -> bool:
        return self.ok


class RateLimit(CopiedAsItself, AsyncOnly):
    """A description of one rate limit; made by `LockClient.rate_limit`. Holds nothing.

    ::

        api = client.rate_limit("partner api", 100, per=60, burst=20)
        await api.acquire()  # as soon as a token is there, in its turn
        async with api:  # the same
            ...
        if verdict := await api.try_acquire(5):  # five tokens now, or none
            ...

    It is a bucket of ``burst`` tokens, which is filled at ``limit`` tokens in ``per`` seconds. In
    any time of *t* seconds, all processes together take at most ``burst + limit × t / per`` tokens,
    by the store's clock. Those who wait get theirs in the order of the queue: who wants one token
    does not overtake who wants five.

    A token that was taken is spent: there is nothing to release, nothing is renewed, and nothing
    can be lost. ``async with`` waits at its begin, and does nothing at its end.

    Errors are those of a `Lock`, but without `LeaseLost` and `WouldDeadlock`: `AcquireTimeout` (see
    its ``retry_after``), `QueueFull`, `StoreError`, `ClientClosed`; and `LimitMismatch` when others
    use this name with another rate or burst. Cancelled while it waits, a task leaves the queue;
    tokens that it gets at that moment are spent.
    """

    __slots__ = ("_engine", "_policy", "_rate")

    def __init__(self, engine: Engine, policy: Policy, rate: Rate) -> None:
        self._engine = engine
        self._policy = policy
        self._rate = rate

    def __repr__(self) -> str:
        return f"<RateLimit {self.name!r} interval={self.interval:g} burst={self.burst}>"

    @property
    def name(self) -> str:
        """The name of the rate limit."""
        return self._policy.name

    @property
    def interval(self) -> float:
        """Seconds from one token to the next: ``per / limit``, rounded up to microseconds."""
        return self._rate.interval / 1_000_000

    @property
    def burst(self) -> int:
        """The number of tokens in the full bucket: so many can be taken at once."""
        return self._rate.burst

    @without_unknown
    def acquire(
        self,
        n: int = 1,
        *,
        timeout: Seconds | Default | None = DEFAULT,
        label: str | None = None,
        **unknown: Unpack[NoOptions],
    ) -> TokensContext:
        """Take ``n`` tokens, or wait until they are there; `AcquireTimeout` when time has passed.

        Await the result, for a `Verdict` that is true; or enter it with ``async with``, which does
        the same. `ValueError` if the bucket never has so many.

        :param timeout: seconds to wait at most; None waits as long as it takes. That of the rate
            limit, if it is not given.
        :param label: a name for this acquisition in `status`, the commands and observers; the
            task's name, if None.
        """
        for wrong in unknown:
            raise unexpected(RateLimit.acquire, wrong)
        own = isinstance(timeout, Default)
        seconds = self._policy.timeout if own else checked_timeout(timeout)
        policy, label = self._of(n), checked_label("label", label)
        self._engine.check()
        return TokensContext(self, policy, seconds, label)

    @without_unknown
    async def try_acquire(
        self,
        n: int = 1,
        *,
        timeout: Seconds = 0,
        label: str | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Verdict:
        """Take ``n`` tokens if they are there now, or within ``timeout`` seconds, and nobody waits.

        The `Verdict` is false if not, and says when they are there. It raises the same errors as
        `acquire`, but no `AcquireTimeout`. With a timeout of 0, it still waits for the store's
        answer, for the ``answer_timeout`` of the client.
        """
        for wrong in unknown:
            raise unexpected(RateLimit.try_acquire, wrong)
        policy, seconds = self._of(n), checked_wait(timeout)
        taken = await take(self._engine, policy, seconds, label=checked_label("label", label))
        return self._verdict(policy, taken)

    def _of(self, n: int) -> Policy:
        """The policy of a request for so many tokens."""
        if checked_number("n", n) > self.burst:
            raise ValueError(f"the bucket has {self.burst} tokens (burst), so nobody can take {n}")
        return self._policy if n == 1 else replace(self._policy, number=n)

    async def _take(self, policy: Policy, timeout: float | None, label: str) -> Verdict:
        taken = await take(self._engine, policy, timeout, label=label)
        if not taken.ok:
            assert timeout is not None
            raise _not_there(policy, timeout, taken)
        return self._verdict(policy, taken)

    def _verdict(self, policy: Policy, taken: Taken) -> Verdict:
        rate, left = self._rate, taken.left
        if not taken.ok:  # the time until the bucket is full follows from that of the tokens
            left = max(0, left + rate.tolerance - policy.number * rate.interval)
        remaining = (rate.tolerance - left) // rate.interval
        return Verdict(
            taken.ok,
            0.0 if taken.ok else taken.left / 1_000_000,
            min(max(remaining, 0), rate.burst),
            left / 1_000_000,
        )

    async def resize(self, limit: int, *, per: Seconds, burst: int | None = None) -> None:
        """Set the rate and the burst, for all clients, from now on.

        The store remembers it for 30 days, and longer while the rate limit is in use. Meanwhile
        programs may declare two rates, so that they can be changed one after the other: the new
        one, and the one declared here (or, if that is the new one, the one before). As many tokens
        as are missing in the bucket are missing afterwards, but never more than all. Waiters that
        want more tokens than ``burst`` wait until there is a larger one, and so do those behind
        them. One round trip; `StoreError` when the store does not answer: it may still be carried
        out some seconds later. Cancelled, it may have been carried out.
        """
        rate, policy = checked_rate(limit, per, burst), self._policy
        self._engine.check()
        with policy.errors_named():
            await self._engine.submit(
                Resize(policy.key, self._rate.declared, rate.declared, _REMEMBERED)
            )

    async def status(self) -> Status:
        """The waiters, each with the tokens that it wants as its ``permits``; as `Lock.status`.

        ``limit`` is the burst, and ``interval`` the seconds from one token to the next. Both are
        None once they are forgotten: a minute after the bucket has become full.
        """
        return await self._engine.status(self._policy)

    async def __aenter__(self) -> Verdict:
        return await self.acquire()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing is to be released."""


class TokensContext(
    Uncopyable,
    Coroutine[Any, Any, Verdict],
    AsyncOnly,
    instead="it is one attempt; call acquire() again",
):
    """Tokens that are not taken yet: await it, or enter it with ``async with``.

    Either way it gives a `Verdict` that is true, or raises an error. It can be used once.
    """

    __name__ = "RateLimit.acquire"  # shown by the repr of a task that runs it
    __slots__ = ("_coroutine", "_label", "_limit", "_policy", "_timeout")

    def __init__(self, limit: RateLimit, policy: Policy, timeout: float | None, label: str) -> None:
        self._coroutine: Coroutine[Any, Any, Verdict] | None = None
        self._limit = limit
        self._policy = policy
        self._timeout = timeout
        self._label = label

    def __repr__(self) -> str:
        return f"<TokensContext of {self._limit.name!r} timeout={self._timeout}>"

    def _begin(self) -> Coroutine[Any, Any, Verdict]:
        if self._coroutine is not None:
            raise RuntimeError("these tokens were asked for already: call acquire() again")
        self._coroutine = self._limit._take(self._policy, self._timeout, self._label)
        return self._coroutine

    def __await__(self) -> Generator[Any, None, Verdict]:
        return self._begin().__await__()

    async def __aenter__(self) -> Verdict:
        return await self._begin()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Nothing is to be released."""

    # It is a coroutine as well as an awaitable, because `create_task` accepts nothing else.

    def send(self, value: Any, /) -> Any:
        """As any coroutine."""
        return (self._coroutine or self._begin()).send(value)

    def throw(self, *error: Any) -> Any:
        """As any coroutine."""
        return (self._coroutine or self._begin()).throw(*error)

    def close(self) -> None:
        """As any coroutine."""
        if self._coroutine is None:
            self._coroutine = _never()
        self._coroutine.close()

    def __del__(self) -> None:
        if getattr(self, "_coroutine", self) is None:  # no such attribute if __init__ has failed
            warnings.warn(
                f"{self!r} was never awaited, so it has waited for nothing",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )


def _not_there(policy: Policy, timeout: float, taken: Taken) -> AcquireTimeout:
    """The error if the tokens were not there in time."""
    kind, left = KINDS[policy.kind], taken.left / 1_000_000
    text = f"{kind.not_in_time} in {timeout:g} s" if timeout else kind.not_yet
    there = "it is" if policy.number == 1 else f"all {policy.number} are"
    error = AcquireTimeout(f"{policy.called} {text}: {there} there in {left:.3f} s")
    error.retry_after = left
    error.waited = taken.waited if timeout else 0.0
    return policy.with_name(error)


async def _never() -> NoReturn:
    """A coroutine in place of one that was closed before it began."""
    raise AssertionError("it is closed before its first step")


def describe_rate_limit(
    described: Callable[[str, Policy], Lock],
    policy: Policy,
    limit: object,
    per: object,
    burst: object,
) -> RateLimit:
    """The rate limit of these arguments, checked; ``policy`` has the options of its waiters."""
    rate = checked_rate(limit, per, burst)
    tokens = replace(
        policy,
        shared=True,
        kind="rate_limit",
        rule=Rule.RATE,
        number=1,
        declared=rate.declared,
    )
    lock = described("rate_limit", tokens)
    return RateLimit(lock._engine, lock._policy, rate)
