"""One attempt to carry out parts of operations on the document of a name: from text to swap."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiolock.protocol import Acquire, Form, Granted, Renewal
from aiolock.stores._document import Document, Kept
from aiolock.stores._operations import Part
from aiolock.stores._sessions import Session
from aiolock.stores.etcd._keys import Keys
from aiolock.stores.etcd._lease import OwnLease, session_text
from aiolock.stores.etcd._letters import Letter, letter
from aiolock.stores.etcd._messages import exists, has_lease, has_other_lease, is_absent
from aiolock.stores.etcd._own_leases import SHORTEST_HOLD, OwnLeases
from aiolock.stores.etcd._registry import Registry
from aiolock.stores.etcd._replies import KeyValue
from aiolock.stores.etcd._swaps import Swap

SLACK: Final = 500_000
"""Microseconds by which the clocks of two clients may differ. They decide when a lease ends that is
not renewed, and how long a lock stays closed; they do not decide about holds that are renewed."""


def wall_clock() -> int:
    """The time by this machine's clock, in µs since 1970."""
    return time.time_ns() // 1000


class OwnSessions:
    """The sessions as a document asks for them: our own, and those of others as last reported."""

    def __init__(self, client: str, registry: Registry, leases: OwnLeases) -> None:
        self._client, self._registry, self._leases = client, registry, leases

    def is_alive(self, session: Session) -> bool:
        """See `Sessions`."""
        if session.client == self._client:
            return self._leases.is_alive(session.text)
        return self._registry.is_alive(*session)

    def session_for(self, client: str, form: Form, ttl: int, *, claim: bool) -> str:
        """See `Sessions`: a claim lives with the presence of its client."""
        if client != self._client:
            lease = self._registry.presence(client) if ttl >= SHORTEST_HOLD else 0
            return session_text(lease) if lease else ""
        own = self._leases.of(form, ttl, claim=claim)
        return "" if own is None else own.text


class Known(NamedTuple):
    """A document as this client knows it."""

    kept: str | Kept
    version: int


NOTHING: Final = Known("", 0)
"""No document: the guess at one that is not known. A swap finds out."""


def known_from(found: KeyValue | None) -> Known:
    """The document that was read; `ValueError` if it is none."""
    if found is None:
        return NOTHING
    stamp, blank, text = found.value.partition(b" ")
    if not (stamp and blank and text):
        raise ValueError("what stands in the place of the document is none of aiolock's")
    return Known(text.decode("utf-8", "surrogatepass"), found.modified)


class Condition(NamedTuple):
    """A condition of a swap, and the key that it is about."""

    key: bytes
    condition: bytes


def _shown(keys: Keys, session: Session, *, alive: bool) -> Condition:
    """That a session has not ended, or that it has."""
    client, text = session
    if "." in text:
        key = keys.hold(client, text)
        return Condition(key, (exists if alive else is_absent)(key))
    key, lease = keys.presence(client), int(text, 16)
    return Condition(key, (has_lease if alive else has_other_lease)(key, lease))


def _lives_with(part: Any, answer: Any, leases: OwnLeases) -> OwnLease | None:
    match part, answer:
        case Acquire(_, _, form), Granted(_, lease):
            return leases.of(form, lease, claim=answer.claim)
        case Renewal(_, _, form, _, ttl), True if ttl:
            return leases.of(form, ttl)
        case _:
            return None


class Attempt:
    """What was run on a document, and what follows from that: nothing of it is done yet."""

    def __init__(
        self,
        name: str,
        known: Known,
        parts: Sequence[Part],
        client: str,
        *,
        living: Mapping[str, str],
        sessions: OwnSessions,
        leases: OwnLeases,
        now: int,
        began: float,
        again: bool,
    ) -> None:
        self.name, self.parts, self._client = name, parts, client
        self.version = known.version
        self.began = began
        """When it was run, by the loop's clock: what it answers was asked for before that."""
        self.swap: Swap
        self.document = Document(
            *(name, known.kept, client, now, living),
            again=again,
            slack=SLACK,
            sessions=sessions,
        )
        self.answers: list[Any] = [self.document.run(part) for part in parts]
        self.presence = leases.presence
        """Our presence, with which claims of ours begin."""
        self.lives = [
            _lives_with(part, answer, leases)
            for part, answer in zip(parts, self.answers, strict=True)
        ]
        """By part: the lease with which the hold lives that it begins or renews, if any."""
        self.mail = self.document.take_mail()
        self.changed = self.document.changed()

    @property
    def new_sessions(self) -> Sequence[str]:
        """Our own sessions with which holds begin, so that they must be there."""
        begun = self.document.begun
        return [text for client, text in begun if client == self._client and "." in text]

    def conditions(self, keys: Keys, registry: Registry, *, most: int) -> Sequence[Condition]:
        """What must still be true when it is saved; those that always count come first.

        That others are alive is left out if there are too many of them: then an answer may be
        outdated, but no lock is granted twice.
        """
        needed, others = list[Condition](), list[Condition]()
        for client, alive in self.document.judged_clients.items():
            key = keys.presence(client)
            (others if alive else needed).append(
                Condition(key, (exists if alive else is_absent)(key))
            )
        for session, alive in self.document.judged_sessions.items():
            (others if alive else needed).append(_shown(keys, session, alive=alive))
        always = [_shown(keys, session, alive=True) for session in self.document.begun]
        for client in self.mail:
            key, lease = keys.presence(client), registry.presence(client)
            always.append(Condition(key, has_lease(key, lease)))
        unique = dict.fromkeys([*always, *needed])
        for each in others:
            if len(unique) >= most:
                break
            unique.setdefault(each)
        return list(unique)

    def letters(self, registry: Registry) -> Sequence[Letter]:
        """The letters that are sent with it."""
        return [
            letter(client, registry.presence(client), self.name, pushes)
            for client, pushes in self.mail.items()
        ]

    @property
    def stale(self) -> dict[OwnLease, float]:
        """The leases that have to be prolonged for the holds that begin, and since when."""
        found = dict[OwnLease, float]()
        if not any(self.lives):
            return found
        for answer, part, lease in zip(self.answers, self.parts, self.lives, strict=True):
            if lease is not None and lease.granted and lease is not self.presence:
                ttl = part.ttl if isinstance(part, Renewal) else answer.lease
                since = self.began - max(lease.seconds - ttl / 1000, 0)
                if lease.sent < since:
                    found[lease] = max(since, found.get(lease, since))
        return found

    def outdated(self, sessions: OwnSessions) -> bool:
        """Whether a hold that it has left to its holder has ended meanwhile, as far as we know."""
        judged = self.document.judged_sessions.items()
        return any(alive and not sessions.is_alive(session) for session, alive in judged)
