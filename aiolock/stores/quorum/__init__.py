"""A fair lock over several independent servers, of which a majority decides.

`_votes` counts votes, without I/O; `tests/proof/quorum` models it. `_server` is one server as a
state machine: a step on a `_server_state`, whose queue is a `_live_queue`, and whose votes are
`_cast_votes` that `_vote_casting` gives and ends. `_connection` is one member as a client sees it,
`_membership` all members.

One client's acquisitions are in a `_table`, which these parts have in `_common`: `_questions` to
the members, `_in_turn` those about many acquisitions; `_renewals`; `_suspension` while no majority
votes; `_backstop`; `_local_waiters` and `_handoffs` within the client; `_endings`; `_done_markers`
and `_finishes` of work that is done once. Whatever goes over all acquisitions of a name or of the
client does so in parts, by `_passes`.

`_acquisitions` puts these together, acts on votes, and answers the client; `_pushes` has what the
members push. `_inspection` and `_posted` ask all members about a name. `_session` is one opening of
`_store`, which takes the operations.
"""

from __future__ import annotations

from collections.abc import Sequence

from aiolock.stores._member import Member
from aiolock.stores.quorum._memory import MemoryMember, member_at, member_of
from aiolock.stores.quorum._store import QuorumStore

__all__ = ["MemoryMember", "QuorumStore", "from_members", "member_at", "member_of"]

_FEWEST = 3


def from_members(members: Sequence[Member], longest_ttl: float, *, durable: bool) -> QuorumStore:
    """A store of these servers; `ValueError` for a list that cannot be right."""
    if len(members) < _FEWEST or len(members) % 2 == 0:
        raise ValueError(
            f"a quorum is of 3, 5 or 7 servers, not of {len(members)}: one server needs no quorum,"
            " and an even number survives no more failures than one less"
        )
    kinds = sorted({member.kind for member in members})
    if len(kinds) > 1:
        raise ValueError(f"the servers of a quorum are of one kind, not of {' and '.join(kinds)}")
    addresses = [member.address for member in members]
    twice = sorted({each for each in addresses if addresses.count(each) > 1})
    if twice:
        raise ValueError(f"{', '.join(twice)} is in the list twice: each server counts once")
    return QuorumStore(members, longest_ttl, durable=durable)
