"""Decodes the replies of the scripts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

from aiolock._turns import at_once
from aiolock.protocol import (
    BREAK_UNKNOWN,
    PRIORITY,
    WAS_HOLDER,
    WAS_UNKNOWN,
    Answer,
    Before,
    Busy,
    Differs,
    Done,
    Form,
    Full,
    Granted,
    Participant,
    Posted,
    Queued,
    Status,
    WaiterId,
)
from aiolock.stores.redis._codec import RESERVED, decode_any, waiter_of


def answer(reply: Any) -> Answer:
    if isinstance(reply, bytes):
        fence, lease, displaced = reply.split()
        return Granted(int(fence), int(lease), displaced == b"1")
    kind, *rest = cast(list[int], reply)
    return _ANSWERS[kind](*rest)


def _busy(until: int, grant: bytes | None = None, metadata: bytes = b"") -> Busy:
    if grant is None:
        return Busy(until)
    text, _, minted = _text(grant).rpartition(":")
    waiter, form, _ = decode_any(text)
    fence = _fence(minted)
    return Busy(
        until, _participant(waiter, form, metadata, fence, fence=fence, remaining=until / 1000)
    )


def _queued(  # noqa: PLR0917  # in the order of the reply
    ticket: int, place: int, until: int, now: int, displaced: int, before: bytes | None = None
) -> Queued:
    if before is None:
        return Queued(ticket, place, until, now, bool(displaced))
    text, fence = before.decode(), 0
    if place == 1:
        text, _, minted = text.rpartition(":")
        fence = int(minted)
    return Queued(ticket, place, until, now, bool(displaced), Before(waiter_of(text), fence))


class Left(NamedTuple):
    """A reply of a script that has left work to another call, see ``with_rest.lua``."""

    reply: Any
    """The reply, apart from that."""
    calls: list[list[bytes]]
    """The keys and arguments of each call of the script ``go_on`` that is due."""


def left(reply: Any) -> Left | None:
    """The parts of such a reply; None if it is another."""
    try:
        kind, answered, call, *rests = reply
    except (TypeError, ValueError):
        return None
    if kind != b"rest":
        return None
    return Left(answered, [[*call, *rest] for rest in rests])


def several(reply: Any, waiters: Sequence[WaiterId]) -> list[Answer]:
    """The answers of the acquire_several script, for each of these waiters."""
    if not isinstance(reply[1], int):
        if len(reply) != len(waiters):
            raise ValueError("not as many answers as waiters")
        return [answer(each) for each in reply]
    first = answer(reply[0])
    if isinstance(first, Granted):
        until, now, place, fence = first.lease, reply[1] - 1, 1, first.fence
    elif isinstance(first, Queued):
        until, now, place, fence = first.until, first.now, 2, 0
    else:
        raise ValueError("nobody can stand behind one that does not")  # noqa: TRY004  # no bug of ours
    answers: list[Answer] = [first]
    for ticket, before in enumerate(waiters[:-1], start=reply[1]):
        behind = Before(before, fence)
        answers.append(Queued(ticket, place, until, now, displaced=False, before=behind))
        place, fence = 2, 0
    return answers


_ANSWERS: Final[tuple[Callable[..., Answer], ...]] = (_busy, Granted, _queued, Full, Done, Differs)
"""By the first number of the acquire script's reply."""


def flags(reply: Any) -> list[bool | None]:
    return [None if flag < 0 else flag == 1 for flag in reply]


def was(reply: Any) -> int:
    return WAS_HOLDER if isinstance(reply, bytes) else int(reply)


def was_before(reply: Any) -> int:
    """As `was`, for a release that had been sent before: the first copy may have done it."""
    return was(reply) or WAS_UNKNOWN


def broken_before(reply: Any) -> int:
    """For a break that had been sent before: the first copy may have broken what is not there."""
    return int(reply) or BREAK_UNKNOWN


def posted(reply: Any) -> Posted:
    count, value = reply
    return Posted(count, value.decode())


class Seen:
    """The parts of one name's status that were read, from one answer of the script or several."""

    def __init__(self, name: str) -> None:
        self._name = name
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
            _text(client): (metadata, heard > 0)
            for client, metadata, heard in zip(*[iter(clients)] * 3, strict=True)
        }
        for grant, end in _pairs(held):
            text, _, minted = _text(grant).rpartition(":")
            # Without the fraction that marks a claim.
            left = (int(float(end)) - now / 1000) / 1000
            waiter, form, blind = decode_any(text)
            if waiter.client == RESERVED:
                self._closed = max(self._closed, left)
                continue
            metadata, alive = known.get(waiter.client, (b"", False))
            fence = _fence(minted)
            self._holders[text] = _participant(
                *(waiter, form, metadata, fence),
                fence=fence,
                remaining=left,
                alive=alive or blind,
            )
        for member, score in _pairs(queued):
            text, ticket = _text(member), int(float(score))
            waiter, form, blind = decode_any(text)
            metadata, alive = known.get(waiter.client, (b"", False))
            since = ticket - form.priority * PRIORITY
            self._waiters[text] = _participant(
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
        waiting = list[Participant]()
        for number, (text, party) in enumerate(self._waiters.items()):
            holds = self._holders.get(text) if self._apart else None
            moved = party.place != len(waiting) + 1
            if holds is None:
                waiting.append(replace(party, place=len(waiting) + 1) if moved else party)
            if moved:  # freed here, and not all of them at the end
                self._waiters[text] = holds or waiting[-1]
            yield moved or number % 8 == 0
        holders = sorted(self._holders.values(), key=attrgetter("fence"))
        return Status(
            *(self._name, tuple(holders), tuple(waiting), self._closed, self._limit),
            now=self._now / 1e6,
        )


_DIGITS: Final = 18
"""Digits of a fence, or of a process, at most."""


class Part(NamedTuple):
    """How many parties an answer of the status script had, and the last ones."""

    holders: int
    end: str
    grant: bytes
    waiters: int
    ticket: str


def status(name: str, reply: Any) -> Status:
    """The answer of the status script for all of this name."""
    seen = Seen(name)
    seen.read(reply)
    return seen.status()


def _fence(minted: str) -> int:
    """The fence of a grant; 0 for one that others have written."""
    return int(minted) if minted.isdecimal() and len(minted) <= _DIGITS else 0


def _text(member: bytes) -> str:
    """A member as text, even if others have written it."""
    return member.decode("utf-8", "backslashreplace")


def _participant(
    waiter: WaiterId,
    form: Form,
    metadata: bytes,
    since: int,
    *,
    place: int = 0,
    fence: int = 0,
    remaining: float = 0.0,
    alive: bool = True,
) -> Participant:
    """A holder since then (µs), or a waiter; ``metadata`` is its client's host and process."""
    host, _, pid = metadata.decode("utf-8", "replace").rpartition(" ")
    return Participant(
        client=waiter.client,
        host=host,
        pid=int(pid) if pid.isdecimal() and len(pid) <= _DIGITS else 0,
        since=since / 1e6,
        place=place,
        fence=fence,
        remaining=remaining,
        shared=form.shared,
        permits=form.permits,
        seq=waiter.seq,
        alive=alive,
    )


def said_of(party: Participant, metadata: bytes) -> Participant:
    """A participant of a status, with its client's metadata."""
    host, _, pid = metadata.decode("utf-8", "replace").rpartition(" ")
    return replace(party, host=host, pid=int(pid) if pid.isdecimal() and len(pid) <= _DIGITS else 0)


def _pairs(flat: list[bytes]) -> zip[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


class Listed(NamedTuple):
    """A page of keys: where it ends (``0``: it is the last), and the keys."""

    cursor: str
    keys: list[str]


def listed(reply: Any) -> Listed:
    cursor, keys = reply
    texts = list[str]()
    for key in keys:
        with contextlib.suppress(UnicodeDecodeError):  # not a key of aiolock
            texts.append(key.decode())
    return Listed(cursor.decode(), texts)


def as_is(reply: Any) -> Any:
    return reply


class Opened(NamedTuple):
    """The eviction policy, if it matters and may be known, and the server's clock (µs)."""

    policy: str
    now: int


class Present(NamedTuple):
    """How many received the client's push to itself, and the server's clock (µs)."""

    heard: int
    now: int
    others: tuple[int, ...] = ()
    """The protocols of other clients there, if they are not ours."""


class Master(NamedTuple):
    """The master that a barrier is about."""

    history: str
    """The id of its replication history, which no other server ever has while it is a master."""
    following: int
    """How many replicas follow it now."""


def master(reply: Any) -> Master:
    history, following = reply
    return Master(history.decode(), int(following))


def opened(reply: Any) -> Opened:
    policy, now = reply
    return Opened(policy.decode(), int(now))


class Range(NamedTuple):
    """Slots of a cluster, from the first to the last, and the address of their master.

    The host is empty if that is the node that has answered.
    """

    first: int
    last: int
    host: str
    port: int


def ranges(reply: Any) -> list[Range]:
    """The answer of CLUSTER SLOTS."""
    found = list[Range]()
    for first, last, master, *_ in reply:
        found.append(Range(int(first), int(last), _host(master), int(master[1])))
    return found


def _host(master: Any) -> str:
    host, _, *more = master
    if host == b"?":  # the node has no host name, though names are preferred; but it has an address
        about = dict(zip(*[iter(more[-1] if len(more) > 1 else ())] * 2, strict=True))
        host = about.get(b"ip")
    return host.decode() if host else ""


def present(reply: Any) -> Present:
    heard, now, others = reply
    return Present(int(heard), int(now), tuple(map(int, others)))
