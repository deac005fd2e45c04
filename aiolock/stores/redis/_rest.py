"""The work that a script has left to another call, since it would block other clients for too long,
or needs keys that it was not given: see ``with_rest.lua``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from aiolock.stores.redis._called import Called
from aiolock.stores.redis._outbox import Outbox
from aiolock.stores.redis._scripts import GO_ON, VOTES_GO_ON, bulk


class Left(NamedTuple):
    """A reply of a script that has left work."""

    reply: Any
    """The reply, apart from that."""
    calls: list[list[bytes]]
    """How many keys each call of the script ``go_on`` has that is due, these, and its arguments."""
    of_votes: bool
    """Whether the script of that name in ``quorum`` is meant."""


def left(reply: Any) -> Left | None:
    """The parts of such a reply; None if it is another."""
    try:
        kind, answered, call, *rests = reply
    except (TypeError, ValueError):
        return None
    if kind not in (b"rest", b"rest of votes"):
        return None
    call = [b"%d" % (len(call) - 1), *call]
    return Left(answered, [[*call, *rest] for rest in rests], kind != b"rest")


def take_rest(outbox: Outbox, reply: Any) -> Any:
    """The reply without the work that its script has left, which is asked for."""
    rest = left(reply)
    if rest is None:
        return reply
    for values in rest.calls:
        script, arguments = VOTES_GO_ON if rest.of_votes else GO_ON, b"".join(map(bulk, values))
        _ = outbox.call(script, len(values), arguments, reply=Called(_ignore))
        if values[-1] == b"%":
            outbox.on_shares(values[1])
    return rest.reply


def _ignore(reply: Any, error: Exception | None) -> None:
    """Nobody waits for the answer."""
