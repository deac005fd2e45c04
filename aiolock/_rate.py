"""A rate as it is declared at a store: one number, which all stores can keep.

A rate limit is a bucket of ``burst`` tokens, to which one is added every ``interval`` µs. The store
keeps one time for it: when the bucket is full again. (That is GCRA, with the theoretical arrival
time of the next request.) Everything else follows from that time, and so needs no timer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from aiolock.status import Status

LONGEST: Final = 365 * 24 * 3600 * 1_000_000
"""Microseconds in which the largest bucket is filled."""

_WIDTH: Final = 5
"""Bits for the number of bits that the burst has."""
_MARK: Final = 1 << 51
"""Set in every number: so none of them can be taken for a time in Redis, where the numbers of a
name stand beside times. All are below 2^52, since a script has floating-point numbers only."""


class Rate(NamedTuple):
    """The rate of a limit."""

    interval: int
    """Microseconds from one token to the next."""
    burst: int
    """The number of tokens in the full bucket."""

    @property
    def tolerance(self) -> int:
        """The microseconds in which an empty bucket is filled."""
        return self.interval * self.burst

    @property
    def declared(self) -> int:
        """The number that stands for this rate: see `Form.declared`."""
        bits = self.burst.bit_length()
        return _MARK | ((self.interval << bits | self.burst) << _WIDTH) | bits


def is_rate(declared: int) -> bool:
    """Whether a number stands for a rate."""
    return declared >= _MARK


def rate_of(declared: int) -> Rate:
    """The rate for which a number stands."""
    bits = declared & ((1 << _WIDTH) - 1)
    both = (declared & (_MARK - 1)) >> _WIDTH
    return Rate(both >> bits, both & ((1 << bits) - 1))


def named(number: int) -> str:
    """A declared number for people, which may stand for a rate."""
    if not is_rate(number):
        return str(number)
    rate = rate_of(number)
    return f"a token every {rate.interval / 1_000_000:g} s (burst {rate.burst})"


def shown(status: Status) -> Status:
    """The status of a rate limit, with its rate as people understand it."""
    if status.limit is None or not is_rate(status.limit):
        return status
    rate = rate_of(status.limit)
    return replace(status, limit=rate.burst, interval=rate.interval / 1_000_000)
