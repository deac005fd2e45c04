"""The arguments and answers of the functions in the database, as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

from aiolock.protocol import (
    Answer,
    AskAgain,
    Busy,
    Differs,
    Done,
    Form,
    Full,
    Granted,
    GrantLost,
    GrantPushed,
    Late,
    OrderUnknown,
    Participant,
    Posted,
    Queued,
    ReleaseRequested,
    Rule,
    Status,
    WaiterId,
)
from aiolock.stores._codec import FORM
from aiolock.stores._effects import NameEvent
from aiolock.stores._shares import placed

Value = bytes | None
"""An argument, in PostgreSQL's text format."""


# Arguments


def key(prefix: str, name: str) -> bytes:
    """The key of a name in the database: the prefix, then the name."""
    return f"{prefix}\0{name}".encode()


def bytea(data: bytes) -> bytes:
    """Bytes as an argument."""
    return b"\\x" + data.hex().encode()


def number(value: int) -> bytes:
    """A number as an argument; a bool is one, too."""
    return b"%d" % value


def numbers(values: Sequence[int]) -> bytes:
    """An array of numbers as an argument."""
    return b"{%b}" % b",".join([b"%d" % value for value in values])


@lru_cache(maxsize=1024)
def form(of: Form) -> bytes:
    """The form of a waiter, in the order in which `_waiter` of the schema reads it.

    A text is the number of its bytes, and these. Of the fields that few forms need, those at the
    end are left out that have their default.
    """
    written = FORM
    while len(written) > _ALWAYS and getattr(of, written[-1].name) == written[-1].default:
        written = written[:-1]
    found = list[int]()
    for value in (getattr(of, each.name) for each in written):
        match value:
            case Rule():
                found.append(ord(value.value or "\0"))
            case str():
                data = value.encode()
                found += (len(data), *data)
            case _:
                found.append(value)
    return numbers(found)


_ALWAYS: Final = 12
"""The number of fields that are always written."""


# Answers


_READ: Final[dict[Any, Callable[[int], Any]]] = {
    "int": int,
    "bool": bool,
    "Rule": lambda code: Rule(chr(code) if code else ""),
}
"""How a number is read, by the type of its field."""


@lru_cache(maxsize=1024)
def _form(text: str) -> Form:
    numbers = map(int, text.split(","))
    found = dict[str, Any]()
    for each, n in zip(FORM, numbers, strict=False):  # a later version may have written more
        if each.type == "str":
            found[each.name] = bytes(islice(numbers, n)).decode()
        else:
            found[each.name] = _READ[each.type](n)
    return Form(**found)


def event(text: str, client: str, name: str = "") -> NameEvent:
    """The event in a push for ``client``; `ValueError` for one of an unknown kind.

    ``name`` is that of the question, for a push that came with an answer. Any other has the key of
    its name, which is the event's then.
    """
    kind, seq, *rest = text.split(" ")
    waiter = WaiterId(client, int(seq))
    match kind, rest:
        case "granted", [form_text, fence, lease, now, *key]:
            about, form = "".join(key) or name, _form(form_text)
            return GrantPushed(about, waiter, form, int(fence), int(lease), int(now))
        case "lost", [fence, reason, *key]:
            return GrantLost("".join(key) or name, waiter, int(fence), reason)
        case "requested", [fence, *key]:
            return ReleaseRequested("".join(key) or name, waiter, int(fence))
        case "void", [*key]:
            return OrderUnknown("".join(key) or name, waiter)
        case "done", [*key]:
            return AskAgain("".join(key) or name)
        case _:
            raise ValueError(f"no push: {text!r}")


REST: Final = "rest "
"""The beginning of a line, among the pushes of an answer, that says what ``go_on`` is to do. It was
left to another call, since others wait for each. If that is never made, the next call of anyone
goes on with the head of the queue."""


def asked(text: str) -> tuple[int, int]:
    """How many holders were asked, and the fence behind which there are others; 0 for none."""
    told, _, behind = text.partition(" ")
    return int(told), int(behind or 0)


CHECKED: Final = "checked"
"""The answer to a call about a grant that an open transaction has checked: its effect is deferred
until that ends. The call is sent again until then, and has the answer of `DONE` for its caller."""
DONE: Final = "1"


def late(text: str) -> Late | None:
    """The answer to a copy that came too late; None for any other answer."""
    return Late(int(text[5:])) if text.startswith("late ") else None


def _busy(until: int, *party: str) -> Busy:
    if not party:
        return Busy(until)
    client, seq, fence, left, shared, permits, pid, *more = party
    host, share, weight, *_ = (*more, *_NO_MORE[len(more) :])
    return Busy(
        until,
        Participant(
            client=client,
            host=bytes.fromhex(host).decode(),
            pid=int(pid),
            since=int(fence) / 1e6,
            place=0,
            fence=int(fence),
            remaining=int(left) / 1e6,
            shared=bool(int(shared)),
            permits=int(permits),
            seq=int(seq),
            share=bytes.fromhex(share).decode(),
            weight=int(weight) / 1000,
        ),
    )


_NO_MORE: Final = ("", "", "1000")
"""The host, the share and the weight of a holder, where they are not said."""


def _queued(ticket: int, place: int, until: int, now: int, displaced: int) -> Queued:
    return Queued(ticket, place, until, now, bool(displaced))


def _granted(fence: int, lease: int, displaced: int, claim: int) -> Granted:
    return Granted(fence, lease, bool(displaced), bool(claim))


_ANSWERS: Final[dict[str, Callable[..., Answer]]] = {
    "granted": _granted,
    "queued": _queued,
    "full": Full,
    "done": Done,
    "differs": Differs,
}


def answer(text: str) -> Answer:
    """The answer of `acquire`."""
    kind, *rest = text.split(" ")
    if kind == "busy":
        return _busy(int(rest[0]), *rest[1:])
    return _ANSWERS[kind](*map(int, rest))


def adopted(text: str) -> Granted | None:
    """The answer of `adopt`."""
    _, *rest = text.split(" ")
    return _granted(*map(int, rest)) if rest else None


def held(text: str) -> list[bool]:
    """The answer of `renew`, for each grant."""
    return [each == "1" for each in text]


def posted(text: str) -> Posted:
    """The answer of `read`."""
    count, _, value = text.partition(" ")
    return Posted(int(count), bytes.fromhex(value).decode())


class Part(NamedTuple):
    """A part of the holders and waiters of a name, in order."""

    status: Status
    last: tuple[int, str, int]
    """The place of the last of these waiters."""
    holding: int
    """The number of holders, if no waiters were asked for."""


FIRST: Final = (-(2**63), "", 0)
"""A place before all waiters."""


def part(name: str, text: str, before: int = 0) -> Part:
    """The answer of `status`; ``before``: the number of waiters ahead of these."""
    data: dict[str, Any] = json.loads(text)
    (row,), (shares,) = data["names"], data["shares"]
    return _part(name, row, shares, _Known(data), before)


class Parts(NamedTuple):
    """The answer of `snapshot`: the first part of each name."""

    parts: Sequence[Part]
    more: str


def page(text: str) -> Parts:
    """The answer of `snapshot`."""
    data: dict[str, Any] = json.loads(text)
    known = _Known(data)
    rows: list[list[Any]] = data["names"] or []
    parts = [
        _part(bytes.fromhex(row[0]).decode().partition("\0")[2], row, shares, known)
        for row, shares in zip(rows, data["shares"] or (), strict=True)
    ]
    return Parts(parts, rows[-1][0] if data["more"] else "")


def joined(
    name: str, waiters: Iterable[Participant], holders: Iterable[Participant], last: Status
) -> Generator[int, None, Status]:
    """The status of these parts, of which that was the last; see `aiolock._turns.in_parts`.

    A participant that was seen first as a waiter and later as a holder is a holder.
    """
    held, waiting = dict[WaiterId, Participant](), dict[WaiterId, Participant]()
    for party in holders:
        held[_id(party)] = party
        yield len(held) % _FOR_A_UNIT == 0
    here = (party for party in waiters if _id(party) not in held and _id(party) not in waiting)
    for party in placed(here):
        waiting[_id(party)] = party
        yield len(waiting) % _FOR_A_UNIT == 0
    return replace(last, name=name, holders=tuple(held.values()), waiters=tuple(waiting.values()))


def _id(party: Participant) -> WaiterId:
    # A detached grant has no client of its own.
    return WaiterId(party.client, party.fence if party.detached else party.seq)


_FOR_A_UNIT: Final = 8
"""Participants that are sorted in one unit of work."""


class _Known:
    """The time of a status, and the metadata of the clients in it."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.now: int = data["now"]
        self._clients = {client: rest for client, *rest in data["clients"] or ()}

    def parties(
        self, rows: list[Any] | None, shares: list[Any] | None, before: int | None = None
    ) -> Iterator[Participant]:
        """Holders, or the waiters behind so many others, and their shares if any has one."""
        for at, row in enumerate(rows or (), 1):
            share, weight = shares[at - 1] if shares else ("", 1000)
            yield self._party(
                row,
                place=0 if before is None else before + at,
                share=bytes.fromhex(share).decode(),
                weight=weight / 1000,
            )

    def _party(self, each: list[Any], *, place: int, share: str, weight: float) -> Participant:
        client, seq, shared, permits, since, end = each
        host, pid, alive = self._clients[client]
        return Participant(
            client=client,
            host=host or "",
            pid=pid or 0,
            since=since / 1e6,
            place=place,
            fence=0 if place else since,
            remaining=0.0 if place else (end - self.now / 1000) / 1000,
            shared=shared,
            permits=permits,
            seq=seq,
            alive=alive,
            share=share,
            weight=weight,
        )


def _part(name: str, row: list[Any], shares: list[Any], known: _Known, before: int = 0) -> Part:
    _, permits, closed, holders, waiters, holding = row
    held, queued = shares
    waiting = known.parties(waiters, queued, before)
    status = Status(
        name,
        tuple(known.parties(holders, held)),
        tuple(waiting if before else placed(waiting)),
        max(0.0, (closed - known.now / 1000) / 1000) if closed else 0.0,
        permits,
        now=known.now / 1e6,
    )
    if not waiters:
        return Part(status, FIRST, holding)
    client, seq, *_, ticket = waiters[-1]
    return Part(status, (ticket, client, seq), holding)
