"""What follows from a step beside its answer: the pushes, and the work that it has left."""

from __future__ import annotations

from typing import Literal, NamedTuple

from aiolock.protocol import AskAgain, GrantLost, GrantPushed, OrderUnknown, ReleaseRequested
from aiolock.stores._holders import Grant

NameEvent = GrantPushed | GrantLost | AskAgain | ReleaseRequested | OrderUnknown
"""The events that follow from an operation on a name; the others are of a connection."""


class Push(NamedTuple):
    """An event, and the client that it is for."""

    client: str
    event: NameEvent


Work = Literal["advance", "count", "stuck", "once", "request"]
"""What a step has left to the next one.

``advance``: to grant the lock to the waiters at the head; ``count``: the same, for a count that was
raised, to those behind the waiters that were passed over; ``stuck``: to remove the waiters of
clients whose leases have ended, and then to grant the lock; ``once``: to remove the waiters whose
work is done; ``request``: to ask the holders with higher fences to release it.
"""


class Rest(NamedTuple):
    """The work that a step has left, since it would block other clients for too long.

    Whoever carries out the step does this next, in a step of its own: see `Step.go_on`. If that
    never comes, because this process ends, then the next step of anyone goes on with the head of
    the queue.
    """

    work: Work
    behind: int | None = None
    """The ticket up to which the queue was looked at, or for ``request`` the fence; None if it
    begins at the head."""
    ended: tuple[Grant, ...] = ()
    """For ``stuck``: a grant of each of those clients."""
