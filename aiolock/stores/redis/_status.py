"""The status of a name, from the answers of the status script, of which each has a part of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from aiolock._turns import at_once
from aiolock.protocol import PRIORITY, Participant, Status
from aiolock.stores.redis._codec import RESERVED, decode_any
from aiolock.stores.redis._replies import as_text, fence_of, participant


class Part(NamedTuple):
    """How many parties an answer of the status script had, and the last ones."""

    holders: int
    end: str
    grant: bytes
    waiters: int
    ticket: str


class Seen:
    """The parts of one name's status that were read, from one answer of the script or several."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._now = 0
        self._limit: int | None = None
        self._closed = 0.0
        self._holders = dict[str, Participant]()
        self._waiters = dict[str, Participant]()
        self._apart = False
        """Whether the holders were read after the waiters."""
        self.holding = 0
        """How many grants there were, at the last answer."""

    def read(self, reply: Any) -> Part:
        """Add what an answer says; a later one is nearer to the truth."""
        now, held, queued, limit, clients, self.holding = reply
        self._now, self._limit = now, None if limit < 0 else limit
        # Each client's metadata, and how many listen to its channel.
        known = {
            as_text(client): (metadata, heard > 0)
            for client, metadata, heard in zip(*[iter(clients)] * 3, strict=True)
        }
        for grant, end in _pairs(held):
            text, _, minted = as_text(grant).rpartition(":")
            # Without the fraction that marks a claim.
            left = (int(float(end)) - now / 1000) / 1000
            waiter, form, blind = decode_any(text)
            if waiter.client == RESERVED:
                self._closed = max(self._closed, left)
                continue
            metadata, alive = known.get(waiter.client, (b"", False))
            fence = fence_of(minted)
            self._holders[text] = participant(
                *(waiter, form, metadata, fence),
                fence=fence,
                remaining=left,
                alive=alive or blind,
            )
        for member, score in _pairs(queued):
            text, ticket = as_text(member), int(float(score))
            waiter, form, blind = decode_any(text)
            metadata, alive = known.get(waiter.client, (b"", False))
            since = ticket - form.priority * PRIORITY
            self._waiters[text] = participant(
                waiter, form, metadata, since, place=len(self._waiters) + 1, alive=alive or blind
            )
        return Part(
            len(held) // 2,
            held[-1].decode() if held else "",
            held[-2] if held else b"",
            len(queued) // 2,
            queued[-1].decode() if queued else "",
        )

    def begin_holders(self) -> None:
        """Read the holders once more, from the first on."""
        self._apart = True
        self._holders.clear()
        self._closed = 0.0

    def status(self) -> Status:
        """The status of all that was read."""
        return at_once(self.in_parts())

    def in_parts(self) -> Generator[int, None, Status]:
        """The same, part by part. A participant that was read as a waiter, and later as a holder,
        is a holder.
        """
        waiting, of_share = list[Participant](), Counter[str]()
        for number, (text, party) in enumerate(self._waiters.items()):
            holds, place = self._holders.get(text) if self._apart else None, len(waiting) + 1
            if party.share and holds is None:
                place = of_share[party.share] = of_share[party.share] + 1
            moved = party.place != place
            if holds is None:
                waiting.append(replace(party, place=place) if moved else party)
            if moved:  # freed here, and not all of them at the end
                self._waiters[text] = holds or waiting[-1]
            yield moved or number % 8 == 0
        holders = sorted(self._holders.values(), key=attrgetter("fence"))
        return Status(
            *(self.name, tuple(holders), tuple(waiting), self._closed, self._limit),
            now=self._now / 1e6,
        )


def status(name: str, reply: Any) -> Status:
    """The answer of the status script for all of this name."""
    seen = Seen(name)
    seen.read(reply)
    return seen.status()


def _pairs(flat: list[bytes]) -> zip[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)
