"""Merging the statuses of several members for one name into one."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from operator import attrgetter
from typing import Final

from aiolock._turns import at_once
from aiolock.protocol import Participant, Status, WaiterId


def merged(name: str, said: Mapping[int, Status], size: int, now: float) -> Status:
    """A waiter with a majority of the votes is a holder, and several are if they share.

    The other waiters are sorted by ticket, and holders by fence.

    The votes of members without an answer are unknown. So a waiter that may have a majority with
    them counts as the holder, if it has more votes than any other.
    """
    return at_once(merging(name, said, size, now))


def merging(
    name: str, said: Mapping[int, Status], size: int, now: float
) -> Generator[int, None, Status]:
    """The same, part by part: see `aiolock._turns.in_parts`."""
    quorum = size // 2 + 1
    votes, waiting = dict[WaiterId, list[Participant]](), dict[WaiterId, Participant]()
    for status in said.values():
        for number, party in enumerate(status.holders):
            votes.setdefault(WaiterId(party.client, party.seq), []).append(party)
            yield number % _FOR_A_UNIT == 0
        for number, party in enumerate(status.waiters):
            who = WaiterId(party.client, party.seq)
            waiting[who] = _alive(waiting.get(who, party), party)
            yield number % _FOR_A_UNIT == 0
    holders = list[Participant]()
    any_other, alone = _Most(), _Most()
    for number, (who, parties) in enumerate(votes.items()):
        any_other.count(who, len(parties))
        if not parties[0].shared:
            alone.count(who, len(parties))
        yield number % _FOR_A_UNIT == 0
    for who, parties in votes.items():
        yield 1
        others = alone if parties[0].shared else any_other
        known = len(parties) >= quorum
        most = len(parties) > others.beside(who)
        if known or (most and len(parties) + size - len(said) >= quorum):
            holders.append(_holder(parties, quorum))
            waiting.pop(who, None)
        elif who not in waiting:
            waiting[who] = replace(parties[0], fence=0, remaining=0.0)
    holders.sort(key=attrgetter("fence"))
    waiters = list[Participant]()
    for party in (yield from _in_order(list(waiting.values()))):
        place = len(waiters) + 1
        waiters.append(party if party.place == place else replace(party, place=place))
        yield place % 4 == 0
    closed = _closed(list(said.values()), quorum)
    return Status(name, tuple(holders), tuple(waiters), closed, now=now)


_FOR_A_UNIT: Final = 8
"""Participants that are read for one unit of work."""
_SORTED: Final = 500
"""Participants that are sorted at a time."""

_turn = attrgetter("since", "client", "seq")


def _in_order(parties: list[Participant]) -> Generator[int, None, Iterable[Participant]]:
    """The waiters by the time of their tickets."""
    runs = list[list[Participant]]()
    for start in range(0, len(parties), _SORTED):
        yield _SORTED // _FOR_A_UNIT
        runs.append(sorted(parties[start : start + _SORTED], key=_turn))
    return merge(*runs, key=_turn)


class _Most:
    """The highest number of votes that any waiter has, and the highest of any other."""

    def __init__(self) -> None:
        self._who: WaiterId | None = None
        self._most = self._next = 0

    def count(self, who: WaiterId, votes: int) -> None:
        """Record the number of votes of a waiter."""
        if votes > self._most:
            self._who, self._most, self._next = who, votes, self._most
        else:
            self._next = max(self._next, votes)

    def beside(self, who: WaiterId) -> int:
        """The highest number of votes of any other than this one."""
        return self._next if who == self._who else self._most


def _alive(party: Participant, other: Participant) -> Participant:
    """A waiter is alive if it listens at any member."""
    return other if other.alive and not party.alive else party


def _holder(parties: Sequence[Participant], quorum: int) -> Participant:
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


def numbered(said: Mapping[int, Status]) -> Generator[int, None, dict[int, WaiterId]]:
    """The waiter for each number of a vote, part by part."""
    found = dict[int, WaiterId]()
    for status in said.values():
        for number, party in enumerate(status.holders):
            found[party.fence] = WaiterId(party.client, party.seq)
            yield number % _FOR_A_UNIT == 0
    return found
