"""The scripts of a server that votes, and their replies: see ``lua/quorum``."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

from aiolock.protocol import WAS_HOLDER, WAS_UNKNOWN, Participant, Status
from aiolock.stores._member import (
    Answer,
    DoneMarker,
    DoneRecord,
    InQueue,
    Kept,
    NotVoting,
    QueueIsFull,
    Refused,
    Registered,
    Voted,
)
from aiolock.stores.redis._codec import decode_any
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._replies import broken_before, said_of
from aiolock.stores.redis._scripts import Script, command
from aiolock.stores.redis._status import Part, Seen


class VoteText(NamedTuple):
    """A vote as text: see ``lua/quorum/names.lua``."""

    waiter: str
    number: int
    ticket: int
    granted: int

    @classmethod
    def read(cls, text: str) -> VoteText:
        """`ValueError` if the text is no vote."""
        waiter, number, ticket, granted = text.rsplit(":", 3)
        return cls(waiter, int(number), int(ticket), int(granted))


class VoteNames(Names):
    """The keys of a server that votes; none of them is a key of the single-server store.

    Those of a name are the votes, the queue, the last number, and the quorum config.
    """

    def __init__(self, prefix: str) -> None:
        self.marker = f"{prefix}:quorum"
        """The key of the quorum config, which marks the server as a member."""
        super().__init__(
            *(prefix, ("votes", "line", "last")),
            all_names=(self.marker,),
            pattern="votes",
            value="word",
        )


def _answer(reply: Any) -> Answer:
    if isinstance(reply, bytes):
        number, lease, now = reply.split()
        return Voted(int(number), int(lease), int(now))
    kind, *rest = cast(list[Any], reply)
    if kind == 1:
        return Voted(*rest)
    if kind == 0:
        return Refused(*rest)
    if kind == 2:  # noqa: PLR2004  # in the words of the script
        return _in_queue(*rest)
    if kind == 5:  # noqa: PLR2004
        return DoneMarker(*rest)
    return QueueIsFull(*rest) if kind == 3 else NotVoting(*rest)  # noqa: PLR2004


def _in_queue(
    until: int, place: int, now: int, vote: bytes | None = None, metadata: bytes = b""
) -> InQueue:
    if vote is None:
        return InQueue(until, place, now)
    holder = VoteText.read(vote.decode())
    waiter, form, _ = decode_any(holder.waiter)
    party = Participant(
        client=waiter.client,
        host="",
        pid=0,
        since=holder.granted / 1000,
        place=0,
        fence=holder.number,
        remaining=until / 1000,
        shared=form.shared,
        seq=waiter.seq,
    )
    return InQueue(until, place, now, said_of(party, metadata))


class Admitted(NamedTuple):
    """The answer to a registration, and how many connections listen to the client's channel."""

    heard: int
    registered: Registered

    @property
    def now(self) -> int:
        """The server's clock, in µs."""
        return self.registered.now


def _admitted(reply: Any) -> Admitted:
    left, run, heard, now = reply
    return Admitted(int(heard), Registered(int(left), run.decode(), int(now)))


class _Persistence(Script):
    """Not a script: the server's persistence settings, which scripts may not read."""

    def __init__(self) -> None:
        self.name, self.source, self.digest, self.pushes = "", "", "", False
        self.heads = {0: self.call_in_full(0)}
        self.decode = self.decode_again = self._read

    @staticmethod
    def _read(reply: Any) -> dict[str, str]:
        texts = [each.decode() for each in reply]
        return dict(zip(texts[::2], texts[1::2], strict=True))

    def call_in_full(self, count: int) -> bytes:  # it has no arguments
        return command("CONFIG", "GET", "append*")


def _was(reply: Any) -> int:
    return WAS_HOLDER if isinstance(reply, bytes) else int(reply)


def _done_record(reply: Any) -> DoneRecord:
    return DoneRecord(*map(int, reply))


def _kept(reply: Any) -> Kept:
    count, value, left = reply
    return Kept(int(count), value.decode(), int(left))


def _is_valid(reply: Any) -> bool:
    return bool(reply == 1)


class SeenVotes:
    """The parts of the status of a name, from the votes and the queue in the script's answers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._seen = Seen(name)
        self._granted = dict[int, float]()
        """The time of each vote, by its number."""

    def read(self, reply: Any) -> Part:
        """Add what an answer says."""
        now, votes, *rest = reply
        held = list[bytes]()
        for text, end in zip(votes[::2], votes[1::2], strict=True):
            vote = VoteText.read(text.decode())
            self._granted[vote.number] = vote.granted / 1000
            held += [f"{vote.waiter}:{vote.number}".encode(), end]
        part = self._seen.read([now, held, *rest])
        return part._replace(grant=votes[-2] if votes else b"")

    def begin_holders(self) -> None:
        """Read the holders once more, from the first on."""
        self._seen.begin_holders()

    def in_parts(self) -> Generator[int, None, Status]:
        """All that was read."""
        found = yield from self._seen.in_parts()
        holders = list[Participant]()
        for party in found.holders:
            holders.append(replace(party, since=self._granted.get(party.fence, party.since)))
            yield len(holders) % 4 == 0
        return replace(found, holders=tuple(holders))


REGISTER: Final = Script("quorum/register", _admitted)
INIT: Final = Script("quorum/init", int)
VOTE: Final = Script("quorum/vote", _answer)
RELEASE: Final = Script("quorum/release", _was, lambda was: _was(was) or WAS_UNKNOWN, pushes=True)
YIELD_VOTE: Final = Script("quorum/yield_vote", _answer)
RENEW: Final = Script("quorum/renew", _is_valid)
RESERVE: Final = Script("quorum/reserve", int)
BREAK: Final = Script("quorum/break", int, broken_before)
FINISH: Final = Script("quorum/finish", int)
QUERY_DONE: Final = Script("quorum/query_done", _done_record)
POST: Final = Script("quorum/post", int)
READ: Final = Script("quorum/read", _kept)
PERSISTENCE: Final = _Persistence()
