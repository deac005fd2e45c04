"""The rate limits of requests: one for each user, tenant, address, or whatever they are of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, Unpack

from aiolock import LockClient, Verdict, connect
from aiolock.integrations._kept import owner
from aiolock.integrations._leases import RequestLeases
from aiolock.integrations._names import BAD_NAME, BadName
from aiolock.options import RateLimitOptions, Seconds

Request_contra = TypeVar("Request_contra", contravariant=True)
L = TypeVar("L")
Who = Callable[[Request_contra], str | Awaitable[str]]
"""A function that gives the owner of a request; it may be async."""


class RequestRate:
    """A rate limit for all requests, or for those of each owner; checked when it is made.

    `ValueError` and `TypeError` for an invalid name or option.
    """

    def __init__(
        self, name: str, limit: int, *, owned: bool, **options: Unpack[RateLimitOptions]
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a rate limit must be a str, not {name!r}")
        for text in (name, options.get("share") or ""):
            if "{" in text:  # as in `locked`; here all requests would have one bucket, or share
                raise ValueError(
                    f"{text!r} has a field, and in the rate limit of requests none is filled in:"
                    " give the owner of a request by who="
                )
        options.setdefault("timeout", 0)  # a client of a web service waits by itself
        options.setdefault("family", name[:100])
        self._name, self._limit, self._options = name, limit, options
        self.owned = owned
        """Whether each owner has one."""
        # This client is never opened, but checks names and options as any other does.
        self._check = connect("memory://").rate_limit
        self._check(f"{name}:x" if owned else name, limit, **options)

    @property
    def timeout(self) -> Seconds | None:
        """Seconds that a request waits at most; None if it waits as long as it takes."""
        return self._options.get("timeout")

    @property
    def max_waiters(self) -> int | None:
        """How many may wait, if that is bounded."""
        return self._options.get("max_waiters")

    def of(self, rate_limit: Callable[..., L], whose: str | None) -> L:
        """That of this owner, by the client's ``rate_limit``.

        `BadName` for a request without an owner: together they would have one bucket, which each
        of them can empty. Also for an owner who is no part of a name.
        """
        if not self.owned:
            return rate_limit(self._name, self._limit, **self._options)
        if whose is None or whose == "":
            raise BadName("The request does not say whose it is.")
        if not isinstance(whose, str):
            raise TypeError(f"the owner of a request must be a str, not {type(whose).__name__}")
        name = f"{self._name}:{whose}"
        try:
            self._check(name, self._limit, **self._options)
        except ValueError as error:  # the options were checked before
            raise BadName(BAD_NAME) from error
        return rate_limit(name, self._limit, **self._options)

    async def admit(
        self, client: LockClient, whose: str | None, leases: RequestLeases | None = None
    ) -> Verdict:
        """Take a token for a request; `AcquireTimeout` and `QueueFull` are answered with 429.

        With the leases of the request, it leaves the queue if its client has gone.
        """
        limit = self.of(client.rate_limit, whose)
        return await (limit.acquire() if leases is None else leases.wait(limit.acquire))


class RateOf(Generic[Request_contra]):
    """A `RequestRate`, and the function that gives the owner of a request."""

    def __init__(
        self,
        name: str,
        limit: int,
        who: Who[Request_contra] | None,
        **options: Unpack[RateLimitOptions],
    ) -> None:
        self.rate, self._who = RequestRate(name, limit, owned=who is not None, **options), who

    async def admit(
        self, client: LockClient, request: Request_contra, leases: RequestLeases | None
    ) -> Verdict:
        """As `RequestRate.admit`."""
        whose = None if self._who is None else await owner(self._who(request))
        return await self.rate.admit(client, whose, leases)
