"""The members of a group, as one client sees them, and how it learns of changes.

At the store, a member is a shared holder of the group's name. What it says about itself is posted
under a name of its own, which belongs to that one grant and never changes: who changes its data
joins again with other data, and then ends the grant before. So a client reads what is posted once
for each grant, and the status tells which grants are new.

Whoever joins, leaves or changes raises the *epoch*, a count under a third name, for which all that
watch the group wait (`Rule.COUNT`): the store pushes it, and nobody polls.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from aiolock._engine.engine import Engine
from aiolock._engine.policy import Policy, to_ms
from aiolock._futures import retrieve, succeeded
from aiolock._locks.lock import Lock
from aiolock._turns import turns
from aiolock.errors import StoreError
from aiolock.protocol import Participant, Post, Posted, ReadPosted, ReadStatus, Rule

EPOCH: Final = "epoch"
"""The kind of the name at which those that watch a group wait."""
KEPT: Final = 600.0
"""Seconds for which the store remembers what a member has posted."""
REFRESHED: Final = 240.0
"""Seconds after which it is posted again."""
_EPOCH_KEPT: Final = 3600.0
"""Seconds for which the store remembers an epoch. A later one is higher all the same: see
`View.announce`."""
_TOGETHER: Final = 100
"""Posts that are read at a time."""
MOST_DATA: Final = 4096
"""Bytes of a member's data, as JSON."""
_LATEST: Final = 1 << 62
"""No fence is as high as this."""
_TRIES: Final = 8
"""How often an epoch is announced under another number, because others were quicker."""

Seat = tuple[str, int]
"""One grant of a member: its client, and its number among the acquisitions of that client."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a group, as any client sees it; true of a moment that has passed."""

    id: str
    """A random text that names this membership, from its joining until it leaves."""
    data: Mapping[str, Any] = field(hash=False)
    """What the member says about itself."""
    since: float
    """When it joined: Unix time in seconds, by the store's clock."""
    fence: int
    """The fencing token of its membership; a change of its data gives it a higher one."""
    client: str
    """The id of its client."""
    host: str
    """The machine it runs on; empty if the store has forgotten it."""
    pid: int
    """The id of its process; 0 if the store has forgotten it."""
    shards: Mapping[str, int] = field(default_factory=dict[str, int], hash=False)
    """The shards in which it takes part, by name, and how many there are: see
    `LockClient.shards`."""


@dataclass(frozen=True, slots=True)
class Card:
    """What a member posts about itself."""

    id: str
    data: Mapping[str, Any]
    joined: int = 0
    """The fence of its first grant, which tells when it joined; 0: that of the present one."""
    shards: Mapping[str, int] = field(default_factory=dict[str, int])

    def encoded(self) -> str:
        """The card as it is posted."""
        card = {"id": self.id, "joined": self.joined, "data": self.data, "shards": self.shards}
        return json.dumps(card, separators=(",", ":"))

    def member(self, seat: Participant) -> Member:
        """The member that holds this grant."""
        return Member(
            id=self.id,
            data=self.data,
            since=self.joined / 1e6 if self.joined else seat.since,
            fence=seat.fence,
            client=seat.client,
            host=seat.host,
            pid=seat.pid,
            shards=self.shards,
        )


def card_of(value: str) -> Card | None:
    """The card that was posted; None if there is none, or none that this version can read."""
    try:
        posted = json.loads(value)
        shards = {str(name): int(count) for name, count in posted.get("shards", {}).items()}
        card = Card(str(posted["id"]), dict(posted["data"]), int(posted["joined"]), shards)
    except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError):
        return None
    return card if 0 <= card.joined < _LATEST else None


def card_key(client: str, seq: int) -> str:
    """The name under which the member of this grant posts its card."""
    return f"member:{client}:{seq}"


def checked_data(data: object) -> dict[str, Any]:
    """A copy of a member's data: a dict that JSON can hold, of 4096 bytes at most."""
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise TypeError(f"data must be a dict or None, not {data!r}")
    given: dict[Any, Any] = {**data}
    try:
        text = json.dumps(given, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"data must be a dict that JSON can hold: {error}") from error
    if len(text) > MOST_DATA:
        raise ValueError(
            f"data must have at most {MOST_DATA} bytes as JSON, not {len(text):,}: keep what is"
            " large elsewhere, and give the place"
        )
    copy: dict[str, Any] = json.loads(text)
    return copy


class View:
    """The members of one group, as this client has last seen them."""

    def __init__(self, engine: Engine, policy: Policy) -> None:
        """``policy`` is that of the group's lock."""
        self._engine = engine
        self._policy = policy
        self._board = replace(
            policy,
            kind=EPOCH,
            timeout=None,
            renew=False,
            rule=Rule.COUNT,
            number=1,
            max_waiters=None,
            on_lost="cancel",
        )
        self._cards = dict[Seat, Card]()
        self._looking = asyncio.Lock()
        self._clock = 0
        self._clock_at = 0.0
        self._announced = 0
        """The highest epoch that this client has announced."""
        self.epoch = 0
        """The highest epoch that was seen. The members are those of this epoch, or of a later."""
        self.members: tuple[Member, ...] = ()
        """In the order in which they joined."""
        self.seats: tuple[Participant, ...] = ()
        """The grants that were found, also of those that have posted nothing yet."""
        self.looks = 0
        """How often the members were read."""
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Let those that wait for a change look for themselves."""
        self._news.set()
        self._news = asyncio.Event()

    def set_clock(self, us: int) -> None:
        """Note the time of the store's clock, which numbers the epochs."""
        self._clock, self._clock_at = us, self._engine.watchdog.time()

    async def look(self) -> None:
        """Read the members; `StoreError` if they are unknown."""
        before = self.looks
        async with self._looking:
            if self.looks > before + 1:
                return  # another look has begun since, and has ended
            try:
                await self._look()
            except StoreError:
                self._engine.check()  # `ClientClosed`, if that was the cause
                raise

    async def _look(self) -> None:
        engine = self._engine
        engine.check()
        with self._policy.errors_named():
            # First: so the members that are read next are at least as new.
            posted = await engine.submit(ReadPosted(self._board.key))
            status = await engine.submit(ReadStatus(self._policy.key))
            if status.now:
                self.set_clock(int(status.now * 1e6))
            await self._read_cards(status.holders)
        held = {(each.client, each.seq) for each in status.holders}
        self._cards = {seat: card for seat, card in self._cards.items() if seat in held}
        self.epoch = max(self.epoch, posted.count)
        self.seats = status.holders
        self.looks += 1
        members = self._members(status.holders)
        if members != self.members or self.looks == 1:
            self.members = members
            self._news.set()
            self._news = asyncio.Event()

    async def changed(self) -> None:
        """Return when a look finds another view than now."""
        await self._news.wait()

    async def _read_cards(self, seats: Sequence[Participant]) -> None:
        """Read the cards of the grants that are new."""
        new = [each for each in seats if (each.client, each.seq) not in self._cards]
        for start in range(0, len(new), _TOGETHER):
            asked = dict[Seat, asyncio.Future[Posted]]()
            for each in new[start : start + _TOGETHER]:
                await turns().take(2)
                key = card_key(each.client, each.seq)
                asked[each.client, each.seq] = read = self._engine.submit(ReadPosted(key))
                read.add_done_callback(retrieve)  # whatever ends this before its answer
            await asyncio.wait(asked.values())
            for seat, answer in asked.items():
                if not succeeded(answer):
                    answer.result()  # raises
                await turns().take(2)
                card = card_of(answer.result().value)
                if card is not None:
                    self._cards[seat] = card

    def _members(self, seats: Iterable[Participant]) -> tuple[Member, ...]:
        """The members of these grants: of a member that changes now, the latest grant."""
        found = dict[str, Member]()
        for seat in seats:  # by their fences
            card = self._cards.get((seat.client, seat.seq))
            if card is not None:
                found[card.id] = card.member(seat)
        return tuple(sorted(found.values(), key=lambda member: (member.since, member.id)))

    async def next_epoch(self) -> None:
        """Return when the epoch is higher than that seen."""
        board = replace(self._board, number=self.epoch + 1)
        (await Lock(self._engine, board).acquire()).release_nowait()

    async def announce(self) -> None:
        """Raise the epoch, so that all that watch the group look at it; `StoreError` if unknown.

        The numbers go by the store's clock: so they rise also where the store has forgotten them.
        """
        number = self._next_number()
        for _ in range(_TRIES):
            with self._policy.errors_named():
                count = await self._engine.submit(self._epoch(number))
            if count <= number:
                return
            number = count + 1  # others were quicker: theirs does not tell of this change

    def announce_nowait(self) -> None:
        """The same without an answer: if it fails, the members find the change by themselves."""
        self._try(self._next_number(), _TRIES)

    def _try(self, number: int, left: int) -> None:
        posted = self._engine.submit(self._epoch(number))
        posted.add_done_callback(partial(self._tried, number, left - 1))

    def _tried(self, number: int, left: int, posted: asyncio.Future[int]) -> None:
        if left and succeeded(posted) and posted.result() > number:
            self._try(posted.result() + 1, left)

    def _next_number(self) -> int:
        passed = self._engine.watchdog.time() - self._clock_at
        return max(self.epoch + 1, self._announced + 1, self._clock + int(passed * 1e6))

    def _epoch(self, number: int) -> Post:
        self._announced = max(self._announced, number)
        return Post(
            self._board.key,
            number,
            token="",
            declared=0,
            value="",
            remember=to_ms(_EPOCH_KEPT),
        )
