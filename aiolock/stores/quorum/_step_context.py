"""What one step of a server that votes has done so far, and what it has left to further steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

from aiolock.protocol import WaiterId
from aiolock.stores._member import MemberEvent
from aiolock.stores.quorum._cast_votes import Vote

PART: Final = 16
"""The most votes that one step casts or ends, and the most parties that it notifies, if it works in
parts. They are few, as each has effects at a client, and several servers may be in one process."""
ALL: Final = 1 << 60
"""More than there ever are of anything."""


class Rest(NamedTuple):
    """The work that a step has left, since it would keep the event loop for too long.

    ``advance``: to end the leases that are over, and then to vote for the first waiters;
    ``request``: to ask for the release of these votes; ``inquire``: to inquire of these for
    `asker`; ``count``: to notify those of these waiters whose count is reached.
    """

    work: Literal["advance", "request", "inquire", "count"]
    votes: Iterator[Vote] = iter(())
    """Those that were out when the work began; some may be gone."""
    waiters: Iterator[WaiterId] = iter(())
    """Those that were in the queue then."""
    asker: WaiterId | None = None


class StepContext:
    """The name and the time of a step, for all of its parts, and what it does beside its answer."""

    __slots__ = ("in_parts", "ms", "name", "now", "part", "pushes", "rest")

    def __init__(self, name: str, now: int, *, in_parts: bool) -> None:
        self.name = name
        self.now = now
        """The server's clock, in µs."""
        self.ms = now // 1000
        self.pushes: list[tuple[str, MemberEvent]] = []
        """Each with the client that it is for."""
        self.rest: list[Rest] = []
        self.in_parts = in_parts
        self.part = PART if in_parts else ALL
        """The most votes that it casts or ends, and the most parties that it notifies."""

    def push(self, waiter: WaiterId, event: MemberEvent) -> None:
        """Send an event to the client of this waiter."""
        self.pushes.append((waiter.client, event))

    def is_over(self, vote: Vote | None) -> bool:
        """Whether there is a vote, and its lease has ended."""
        return vote is not None and vote.end <= self.ms

    @property
    def is_left(self) -> bool:
        """Whether the waiters at the head of the queue are left to another step."""
        return any(rest.work == "advance" for rest in self.rest)

    def leave(self) -> None:
        """Leave the waiters at the head of the queue to another step."""
        if not self.is_left:
            self.rest.append(Rest("advance"))
