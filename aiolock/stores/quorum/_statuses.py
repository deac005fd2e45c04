"""The statuses that several members give for one name, as one status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from aiolock.store import Party, Status, Waiter


def merged(name: str, said: Mapping[int, Status], size: int, now: float) -> Status:
    """A waiter with a majority of the votes is a holder, and several are if they share.

    The other waiters are sorted by ticket, and holders by fence.

    It is not known for whom the members without an answer vote. So a waiter that may have a
    majority with them is taken for the holder, if it has more votes than any other.
    """
    quorum = size // 2 + 1
    votes, waiting = dict[Waiter, list[Party]](), dict[Waiter, Party]()
    for status in said.values():
        for party in status.holders:
            votes.setdefault(Waiter(party.client, party.seq), []).append(party)
        for party in status.waiters:
            who = Waiter(party.client, party.seq)
            waiting[who] = _alive(waiting.get(who, party), party)
    holders = list[Party]()
    for who, parties in votes.items():
        known = len(parties) >= quorum
        most = all(
            len(parties) > len(each)
            for other, each in votes.items()
            if other != who and not (parties[0].shared and each[0].shared)
        )
        if known or (most and len(parties) + size - len(said) >= quorum):
            holders.append(_holder(parties, quorum))
            waiting.pop(who, None)
        elif who not in waiting:
            waiting[who] = replace(parties[0], fence=0, remaining=0.0)
    holders.sort(key=lambda party: party.fence)
    order = sorted(waiting.items(), key=lambda each: (each[1].since, each[0]))
    waiters = tuple(replace(party, place=n) for n, (_, party) in enumerate(order, start=1))
    return Status(name, tuple(holders), waiters, _closed(list(said.values()), quorum), now=now)


def _alive(party: Party, other: Party) -> Party:
    """A waiter is alive if it listens at any member."""
    return other if other.alive and not party.alive else party


def _holder(parties: Sequence[Party], quorum: int) -> Party:
    """The holder; its fence and its end are those that a majority of its votes supports."""
    fences = sorted(party.fence for party in parties)
    ends = sorted((party.remaining for party in parties), reverse=True)
    since = sorted(party.since for party in parties)
    most = min(quorum, len(parties)) - 1
    alive = any(party.alive for party in parties)
    return replace(
        parties[0], fence=fences[most], remaining=ends[most], since=since[most], alive=alive
    )


def _closed(said: Sequence[Status], quorum: int) -> float:
    """For how long less than a majority of the members votes, in seconds."""
    closed = sorted(status.closed for status in said)
    return closed[quorum - 1] if len(closed) >= quorum else 0.0


def numbered(said: Mapping[int, Status]) -> dict[int, Waiter]:
    """The waiter for each number of a vote."""
    return {
        party.fence: Waiter(party.client, party.seq)
        for status in said.values()
        for party in status.holders
    }
