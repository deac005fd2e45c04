"""Which newcomer looks for dead waiters in the queue, and at which of them."""

from __future__ import annotations

from collections.abc import Sequence

from aiolock import protocol
from aiolock.protocol import WaiterId


def looks_for_dead(ticket: int, queue: Sequence[tuple[int, WaiterId]]) -> bool:
    """Whether a newcomer with this ticket, which is in the queue, removes dead waiters.

    Otherwise a dead waiter would stay until it came to the head: where a lock is held for long, the
    queue would grow with each client that dies. A queue that moves does not need this. The choice
    is pseudo-random, and alike in all stores: a ticket is a time, so the microsecond decides. A
    newcomer checks four waiters on average at most, however many there are, see `checked`; and
    apart from the first two hundred, there are seldom more dead waiters than living ones.
    """
    return ticket % protocol.LOOKERS == 0 and ticket - queue[0][0] >= protocol.STANDS_STILL


def checked(number: int, waiters: int, most: int = protocol.CHECKS) -> range:
    """The places of those that are checked for dead ones: all of them, or so many side by side.

    The number decides which. Each place has the same chance, the first and the last, too.
    """
    if waiters <= most:
        return range(waiters)
    first = number % (waiters + most - 1) - most + 1
    return range(max(first, 0), min(first + most, waiters))
