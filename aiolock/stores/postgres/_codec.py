"""The arguments and answers of the functions in the database, as text."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
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
from aiolock.stores.machine import NameEvent

_WRITTEN: Final = tuple(each for each in FORM if each.name not in ("share", "weight"))

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
    """The form of a waiter, in the order in which `_waiter` of the schema reads it."""
    values = (getattr(of, each.name) for each in _WRITTEN)
    return numbers([ord(v.value or "\0") if isinstance(v, Rule) else v for v in values])


# Answers


_READ: Final[dict[Any, Callable[[int], Any]]] = {
    "int": int,
    "bool": bool,
    "Rule": lambda code: Rule(chr(code) if code else ""),
}
"""How a number is read, by the type of its field."""


@lru_cache(maxsize=1024)
def _form(text: str) -> Form:
    numbers = map(int, text.split(","))  # a later version may have written more
    return Form(
        **{each.name: _READ[each.type](n) for each, n in zip(_WRITTEN, numbers, strict=False)}
    )


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
    client, seq, fence, left, shared, permits, pid, *host = party
    return Busy(
        until,
        Participant(
            client=client,
            host=bytes.fromhex(host[0] if host else "").decode(),
            pid=int(pid),
            since=int(fence) / 1e6,
            place=0,
            fence=int(fence),
            remaining=int(left) / 1e6,
            shared=bool(int(shared)),
            permits=int(permits),
            seq=int(seq),
        ),
    )


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
    (row,) = data["names"]
    return _part(name, row, _Known(data), before)


class Parts(NamedTuple):
    """The answer of `snapshot`: the first part of each name."""

    parts: Sequence[Part]
    more: str


def page(text: str) -> Parts:
    """The answer of `snapshot`."""
    data: dict[str, Any] = json.loads(text)
    known = _Known(data)
    found = [(bytes.fromhex(row[0]), row) for row in data["names"] or ()]
    parts = [_part(key.decode().partition("\0")[2], row, known) for key, row in found]
    return Parts(parts, found[-1][0].hex() if data["more"] else "")


def joined(
    name: str, waiters: Iterable[Participant], holders: Iterable[Participant], last: Status
) -> Generator[int, None, Status]:
    """The status of these parts, of which that was the last; see `aiolock._turns.in_parts`.

    A participant that was seen first as a waiter and later as a holder is a holder.
    """
    held, waiting = dict[WaiterId, Participant](), dict[WaiterId, Participant]()
    for party in holders:
        number = party.fence if party.detached else party.seq  # that has no client of its own
        held[WaiterId(party.client, number)] = party
        yield len(held) % _FOR_A_UNIT == 0
    for party in waiters:
        who = WaiterId(party.client, party.seq)
        if who not in held and who not in waiting:
            place = len(waiting) + 1
            waiting[who] = party if party.place == place else replace(party, place=place)
            yield len(waiting) % _FOR_A_UNIT == 0
    return replace(last, name=name, holders=tuple(held.values()), waiters=tuple(waiting.values()))


_FOR_A_UNIT: Final = 8
"""Participants that are sorted in one unit of work."""


class _Known:
    """The time of a status, and the metadata of the clients in it."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.now: int = data["now"]
        self._clients = {client: rest for client, *rest in data["clients"] or ()}

    def party(self, each: list[Any], *, place: int = 0) -> Participant:
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
        )


def _part(name: str, row: list[Any], known: _Known, before: int = 0) -> Part:
    _, permits, closed, holders, waiters, holding = row
    status = Status(
        name,
        tuple(known.party(each) for each in holders or ()),
        tuple(known.party(each, place=at) for at, each in enumerate(waiters or (), before + 1)),
        max(0.0, (closed - known.now / 1000) / 1000) if closed else 0.0,
        permits,
        now=known.now / 1e6,
    )
    if not waiters:
        return Part(status, FIRST, holding)
    client, seq, *_, ticket = waiters[-1]
    return Part(status, (ticket, client, seq), holding)
