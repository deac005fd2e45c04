"""Decodes the replies of the scripts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

from aiolock.protocol import (
    BREAK_UNKNOWN,
    WAS_HOLDER,
    WAS_UNKNOWN,
    Answer,
    Busy,
    Differs,
    Done,
    Form,
    Full,
    Granted,
    Participant,
    Posted,
    Queued,
    WaiterId,
    new,
)
from aiolock.stores.redis._codec import decode_any


def answer(reply: Any) -> Answer:
    if type(reply) is bytes:
        fence, lease, displaced = reply.split()
        # Made without a call in Python, because every acquisition comes this way.
        granted: Granted = new(Granted, (int(fence), int(lease), displaced == b"1", False))
        return granted
    if reply[0] == _QUEUED:
        # Without a function of its own, because every waiter comes this way.
        _, ticket, place, until, now, displaced, *more = reply
        before = None
        if more and more[0] is not None:
            # The text of a waiter; if it holds the lock, that of its grant.
            if place == 1:
                _, client, seq, minted = more[0].decode().rsplit(":", 3)
            else:
                _, client, seq = more[0].decode().rsplit(":", 2)
                minted = 0
            waiter: WaiterId = new(WaiterId, (client, int(seq)))
            before = waiter, int(minted)
        queued: Queued = new(Queued, (ticket, place, until, now, displaced == 1, before))
        return queued
    kind, *rest = cast("list[int]", reply)
    return _OTHERS[kind](*rest)


def _busy(until: int, grant: bytes | None = None, metadata: bytes = b"") -> Busy:
    if grant is None:
        return Busy(until)
    text, _, minted = as_text(grant).rpartition(":")
    waiter, form, _ = decode_any(text)
    fence = fence_of(minted)
    return Busy(
        until, participant(waiter, form, metadata, fence, fence=fence, remaining=until / 1000)
    )


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
    start, before = reply[1], waiters[0]  # one pair is a `Before`, but made without a call
    second = new(Queued, (start, place, until, now, False, (before, fence)))
    rest = [
        new(Queued, (ticket, 2, until, now, False, (before, 0)))
        for ticket, before in enumerate(waiters[1:-1], start=start + 1)
    ]
    return [first, second, *rest]


_QUEUED: Final = 2
_OTHERS: Final[tuple[Callable[..., Answer], ...]] = (_busy, Granted, Queued, Full, Done, Differs)
"""By the first number of the acquire script's reply; a `Queued` is made without."""


Asked = tuple[int, tuple[bytes, bytes] | None]
"""How many holders were asked to release a lock, and the lease end and the grant of the last one of
them, if there are others."""


def asked(reply: Any) -> Asked:
    if isinstance(reply, int):
        return reply, None
    told, end, grant = reply
    return int(told), (end, grant)


def flags(reply: Any) -> list[bool | None]:
    return [None if flag < 0 else flag == 1 for flag in reply]


def adopted(reply: Any) -> Granted | None:
    return Granted(*reply) if reply else None


def was(reply: Any) -> int:
    return WAS_HOLDER if type(reply) is bytes else int(reply)


def was_before(reply: Any) -> int:
    """As `was`, for a release that had been sent before: the first copy may have done it."""
    return was(reply) or WAS_UNKNOWN


def broken_before(reply: Any) -> int:
    """For a break that had been sent before: the first copy may have broken what is not there."""
    return int(reply) or BREAK_UNKNOWN


def posted(reply: Any) -> Posted:
    count, value = reply
    return Posted(count, value.decode())


_DIGITS: Final = 18
"""Digits of a fence, or of a process, at most."""


def fence_of(minted: str) -> int:
    """The fence of a grant; 0 for one that others have written."""
    return int(minted) if minted.isdecimal() and len(minted) <= _DIGITS else 0


def as_text(member: bytes) -> str:
    """A member as text, even if others have written it."""
    return member.decode("utf-8", "backslashreplace")


def participant(
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
        share=form.share,
        weight=form.weight / 1000,
    )


def said_of(party: Participant, metadata: bytes) -> Participant:
    """A participant of a status, with its client's metadata."""
    host, _, pid = metadata.decode("utf-8", "replace").rpartition(" ")
    return replace(party, host=host, pid=int(pid) if pid.isdecimal() and len(pid) <= _DIGITS else 0)


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
