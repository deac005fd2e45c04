"""What people see of a lock: its holders and its waiters, at one moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple, TypeAlias

from aiolock.text import plain

DETACHED: Final = "="
"""The first character of the client of a detached grant; its key follows, which is a secret."""


Below: TypeAlias = Literal["", "reader", "writer"]
"""What a participant of a path does below its node; empty: it has, or wants, the node itself."""


@dataclass(frozen=True, slots=True)
class Participant:
    """One holder or waiter, as `Lock.status` shows it."""

    client: str
    """The client's id: 96 random bits."""
    host: str
    """The machine the client runs on; empty if the store has forgotten it."""
    pid: int
    """The client's process; 0 if the store has forgotten it."""
    since: float
    """The time of its grant, or since which it waits: Unix time in seconds, by the store's clock.
    """
    place: int
    """0 for a holder; 1 for the waiter that is next, and so on. With a `share`, the place among the
    waiters of that share."""
    fence: int = 0
    """A holder's fencing token; 0 for a waiter."""
    remaining: float = 0.0
    """Seconds until a holder's lease ends if nobody renews it; 0 for a waiter."""
    shared: bool = False
    """Whether it shares, or wants to share, the lock: a reader, or permits of a semaphore."""
    permits: int = 0
    """How many permits of a semaphore it has, or waits for, or how many tokens of a rate limit."""
    seq: int = 0
    """The number of this acquisition among those of its client."""
    alive: bool = True
    """Whether its client still listens; if not, it is dead or cut off. Always True if the store
    cannot count listeners."""
    label: str = ""
    """Its label: see `Lock.acquire`. Empty for the first second or two, and in a status that comes
    from a store alone."""
    task: int = 0
    """The number of the task, among those of its client, that holds this or does nothing but wait
    for it. 0 if unknown, as before there is a label."""
    detached: bool = False
    """It was detached, and waits for who adopts it: see `Lease.detach`. It has no client then."""
    share: str = ""
    """The share that it belongs to; empty for none."""
    weight: float = 1.0
    """The weight of its share, as it has given it."""
    below: Below = ""
    """Whether it reads or writes below this node of a path, and not the node itself."""

    def __post_init__(self) -> None:
        if self.client.startswith(DETACHED):  # whoever sees the key could take the lock
            shown = {"client": "", "host": "", "pid": 0, "alive": True, "detached": True}
            for name, value in shown.items():
                object.__setattr__(self, name, value)  # frozen

    def __str__(self) -> str:
        return self._text("")

    def _text(self, kind: str) -> str:
        where = f"{plain(self.host)}:{self.pid}" if self.host else "somewhere"
        since = datetime.fromtimestamp(self.since, UTC).isoformat(timespec="milliseconds")
        who = f"{plain(self.label)} " if self.label else ""
        whose = f"{who}{self.client[:_SHORT]}#{self.seq} at {where}"
        if self.detached:
            whose = f"detached ({plain(self.label)})" if self.label else "detached"
        facts = [whose, f"since {since}"]
        if not self.place:
            facts += [f"fence {self.fence}", f"{self.remaining:.1f} s left"]
        facts += _roles(self, kind)
        if not self.detached:
            facts.append("alive" if self.alive else "dead or cut off")
        return ", ".join(facts)


@dataclass(frozen=True, slots=True)
class Status:
    """The holders and the waiters of a lock, both in order of arrival, at one moment."""

    name: str
    holders: tuple[Participant, ...]
    waiters: tuple[Participant, ...]
    closed: float = 0.0
    """Seconds for which the lock stays closed although nobody holds it: by ``min_hold`` or
    ``lock_delay``, or for the rest of a period. After a shared grant, it is closed only for
    exclusive waiters."""
    limit: int | None = None
    """How many permits the semaphore has, how many tokens the full bucket of the rate limit, how
    many counts open the latch, or how many parties meet at the barrier. None for a lock, and once
    it is forgotten: a minute after the last lease would have ended."""
    kind: str = ""
    """The kind: ``lock``, ``semaphore``, ``once``, …; empty if it comes from a store alone."""
    now: float = field(default=0.0, compare=False)
    """The time of this status: Unix time in seconds, by the store's clock, like
    `Participant.since`."""
    more_holders: int = 0
    """How many holders it has beside those in `holders`: see ``waiters`` of `ReadStatus`. Always
    0 in what `Lock.status` gives."""
    interval: float | None = None
    """The seconds from one token of a rate limit to the next; None for anything else."""

    @property
    def below(self) -> str:
        """Of a node of a path: the holders below it, as in ``"12 readers, 3 writers"``."""
        roles = [holder.below for holder in self.holders]
        counts = ((role, roles.count(role)) for role in ("reader", "writer"))
        return ", ".join(f"{count} {role}{'s' * (count > 1)}" for role, count in counts if count)

    @property
    def shares(self) -> dict[str, tuple[int, int]]:
        """What each share holds, in permits or leases, and how many wait in it; by that number."""
        waiting = Counter(waiter.share for waiter in self.waiters if waiter.share)
        held = Counter[str]()
        for holder in self.holders:
            if holder.share:
                held[holder.share] += holder.permits or 1
                waiting[holder.share] += 0
        return {share: (held[share], waiters) for share, waiters in waiting.most_common()}

    def role_of(self, party: Participant) -> str:
        """How one of these holds the lock, or wants it: ``"2 permits, share acme"``; or empty."""
        return ", ".join(_roles(party, self.kind))

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        """One line about the lock, then one for each holder and each waiter."""
        bound = "limit" if self.interval is None else "burst"
        facts = "" if self.limit is None else f", {bound} {self.limit}"
        facts += "" if self.interval is None else f", a token every {self.interval:g} s"
        facts += f", closed for {self.closed:.1f} s" if self.closed else ""
        facts += f", below: {self.below}" if self.below else ""
        nobody = "" if self.holders or self.waiters else ": nobody holds it or waits"
        yield f"{self.kind} {self.name!r}{facts}{nobody}".lstrip()
        yield from (f"  share {line}" for line in shares(self))
        yield from (f"  holds: {holder._text(self.kind)}" for holder in self.holders)
        for waiter in self.waiters:
            yield f"  waits, place {waiter.place}: {waiter._text(self.kind)}"


def _roles(party: Participant, kind: str) -> Iterator[str]:
    if party.below:
        yield f"{party.below} below"
    elif party.permits:
        unit = "token" if kind == "rate_limit" else "permit"
        yield f"{party.permits} {unit}{'s' * (party.permits > 1)}"
    elif party.shared and kind in _SHARED:
        yield "shared"
    if party.share:
        yield f"share {plain(party.share)}" + f" × {party.weight:g}" * (party.weight != 1)


def shares(status: Status) -> Iterator[str]:
    """A line for each share, for people, that with most waiters first."""
    for share, (held, waiting) in status.shares.items():
        holds = "" if status.kind == "rate_limit" else f"{held} held, "
        yield f"{plain(share)}: {holds}{waiting} waiting"


_SHARED: Final = ("", "lock", "path")
"""The kinds, or an unknown one, of which some share what others have alone."""


def named(status: Status, kind: str, name: str) -> Status:
    """A status that comes from a store, with the kind and the name that the user knows."""
    return replace(
        status,
        kind=kind,
        name=name,
        holders=of_kind(status.holders, kind),
        waiters=of_kind(status.waiters, kind),
    )


def of_kind(parties: tuple[Participant, ...], kind: str) -> tuple[Participant, ...]:
    """Participants that come from a store, where those of a path look as if they had permits."""
    return tuple(map(_of_path, parties)) if kind == "path" else parties


def _of_path(party: Participant) -> Participant:
    if not party.shared:
        return party
    below: Below = "" if party.permits > 1 else "writer" if party.permits else "reader"
    return replace(party, permits=0, below=below)


_SHORT: Final = 6
"""How many characters of a client's id are shown: enough for people to tell clients apart."""


class Page(NamedTuple):
    """Some of the statuses of a store; see `ReadPage`."""

    statuses: Sequence[Status]
    more: str
    """The start of the next page: opaque to the client, and empty for the last page."""
