"""One text with all that a store keeps of a name: state, last fence, and pushes for others."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from aiolock.protocol import Form, ReadStatus, RequestRelease
from aiolock.stores._codec import UNREADABLE, decode, decode_push, encode, encode_push
from aiolock.stores._effects import Push
from aiolock.stores._operations import Part, run_part
from aiolock.stores._sessions import FOREVER, Session, Sessions
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step

_dumps: Final = json.JSONEncoder(check_circular=False).encode
_quoted: Final = json.encoder.encode_basestring_ascii
_KEPT: Final = 600.0
"""Seconds for which a document is kept when all in it is over. The first fence after that is the
clock's, which is far past the last fence; and no copy of a save arrives as late."""
_FRESH: Final = 60_000_000
"""Microseconds after which an unchanged document is saved again, so that it is kept while clients
ask for it."""


def about_us() -> str:
    """A client's host and process as it writes them down for others, for `Document`."""
    return f"{os.getpid()} {socket.gethostname()}"


_Content = tuple[int, str, list[list[str]]]
"""Last fence, state and mail."""


def _text(fence: int, state: str, mail: list[list[str]], now: int) -> str:
    """As `_dumps`, with fewer calls: it is written for each operation."""
    return f"[{fence}, {_quoted(state)}, {_dumps(mail) if mail else '[]'}, {now}]"


class Changed(NamedTuple):
    """A document to save."""

    text: str
    keep: float
    """The seconds for which it is needed; infinite while a hold lives with a session."""
    idle: bool
    """Whether nothing is left in it but the last fence."""


class Kept:
    """A document that was saved, as it is in memory: the text need not be decoded again.

    For the next `Document` of that name, if nobody has saved another one meanwhile. Running
    anything on that one uses it up: if that is not saved then, the text is needed again.
    """

    __slots__ = ("fence", "mail", "saved_at", "state", "text", "used")

    def __init__(
        self, fence: int, state: NameState, text: str, mail: list[list[str]], saved_at: int
    ) -> None:
        self.fence, self.state, self.mail, self.saved_at = fence, state, mail, saved_at
        self.text = text
        """The state, encoded."""
        self.used = False

    @classmethod
    def decoded(cls, text: str, now: int) -> Kept:
        """The document with this text; an empty one is of ``now``."""
        if not text:
            return cls(0, NameState(), "", [], now)
        fence, state, mail, saved_at = json.loads(text)
        return cls(fence, decode(state) if state else NameState(), state, mail, saved_at)


class Document:
    """All that is kept of one name, at one moment: parts of operations are carried out on it.

    ``kept`` is the text that was kept, or empty, or the document as this client has saved it
    (`Document.kept`). ``living`` has the metadata of each living client (`about_us`). With
    ``again``, the parts may have been carried out already, with their answers lost. Afterwards,
    save what `changed` returns, deliver the events of the `pushes`, and notify the clients in
    `mail`.

    ``now`` is the store's clock, in µs. Time does not run backwards for a name: if it was saved at
    a later time, that counts. ``slack`` is for a store without a clock, and ``sessions`` for one
    where holds live with sessions of their clients: see `Step`.
    """

    def __init__(
        self,
        name: str,
        kept: str | Kept,
        client: str,
        now: int,
        living: Mapping[str, str],
        *,
        again: bool,
        slack: int = 0,
        sessions: Sessions | None = None,
    ) -> None:
        self._name, self._client, self._living = name, client, living
        self._again, self._slack = again, slack
        if isinstance(kept, str):
            kept = Kept.decoded(kept, now)
        if kept.used:
            raise RuntimeError("something was run on it: decode its text again")
        kept.used = True
        self._fence, self._state, self._saved_at = kept.fence, kept.state, kept.saved_at
        self._now = max(now, self._saved_at)
        self._before: _Content = kept.fence, kept.text, kept.mail
        self._after = self._before
        self.judged_clients: dict[str, bool] = {}
        """Other clients that were taken for alive (True) or for dead. What was run is right only if
        that is still true when it is saved."""
        self.judged_sessions: dict[Session, bool] = {}
        """Sessions of holds that were taken for alive (True) or for ended; our own ones, too."""
        self.begun: set[Session] = set()
        """Sessions with which a hold has begun to live, our own and those of claims; or goes on
        living, if it was renewed. If one of them has ended when this is saved, the lock is granted
        to a client that relies on another session, and to the next one, too."""
        self._sessions = None
        if sessions is not None:
            self._sessions = _Noted(sessions, self.judged_sessions, self.begun)
        self.pushes: list[Push] = []
        """The pushes for this client."""
        self.mail: list[list[str]] = []
        """Other clients that are alive, and a push for each, as text."""
        for to, push in kept.mail:
            if to == client:
                with contextlib.suppress(*UNREADABLE):  # of a later version
                    self.pushes.append(decode_push(push, name))
            elif to in living:
                self.mail.append([to, push])

    def run(self, part: Part) -> Any:
        """Carry out a part of an operation; its answer."""
        # What is only shown need not be true a moment later.
        listens = self._is_living if type(part) in _SHOWS else self._listens
        step = Step(
            *(self._name, self._state, self._now, listens, self._fence),
            metadata=self._metadata,
            slack=self._slack,
            sessions=self._sessions,
        )
        answer = run_part(step, part, again=self._again)
        self._fence = step.fence
        for push in step.pushes:
            if push.client == self._client:
                self.pushes.append(push)
            elif self._listens(push.client):
                self.mail.append([push.client, encode_push(push)])
        return answer

    @property
    def sessions(self) -> frozenset[Session]:
        """The sessions that holders live with, after what was run.

        When one of them ends, a waiter has to ask again for the lock to be granted to the next.
        """
        return frozenset(self._state.holders.sessions)

    @property
    def waits(self) -> bool:
        """Whether a waiter of this client is in the queue."""
        return any(waiter.client == self._client for waiter in self._state.waiting)

    def take_mail(self) -> dict[str, list[str]]:
        """Take the mail out of the document: for each client its pushes, for `decode_push`.

        For a store that can send them in the very transaction that saves the document. Take them
        before `changed`.
        """
        taken: dict[str, list[str]] = {}
        for client, push in self.mail:
            taken.setdefault(client, []).append(push)
        self.mail = []
        return taken

    def changed(self, *, anyway: bool = False) -> Changed | None:
        """The text to save, and for how long it is needed; None if nothing has changed.

        ``anyway``: save it also then.
        """
        idle, over = self._state.idle, self._state.over
        after = self._fence, "" if idle else encode(self._state), self.mail
        fades = over < FOREVER and any(after)
        stale = fades and self._now - self._saved_at >= _FRESH
        if after == self._before and not stale and not anyway:
            return None
        self._after, self._saved_at = after, self._now
        left = max(over / 1000 - self._now / 1_000_000, 0) if over < FOREVER else math.inf
        return Changed(_text(*after, self._now), left + _KEPT, idle and not self.mail)

    def kept(self) -> Kept:
        """The document after `changed`: as that was saved, or as it was if that was None."""
        fence, text, mail = self._after
        return Kept(fence, self._state, text, mail, self._saved_at)

    def _is_living(self, client: str) -> bool:
        return client == self._client or client in self._living

    def _listens(self, client: str) -> bool:
        if client == self._client:
            return True
        if client not in self.judged_clients:
            self.judged_clients[client] = client in self._living
        return self.judged_clients[client]

    def _metadata(self, client: str) -> tuple[str, int]:
        pid, _, host = self._living.get(client, "0 ").partition(" ")
        return host, int(pid)


class _Noted:
    """Sessions, and a note of each that was asked about or given: see `Document`."""

    def __init__(
        self, sessions: Sessions, judged: dict[Session, bool], begun: set[Session]
    ) -> None:
        self._sessions, self._judged, self._begun = sessions, judged, begun

    def is_alive(self, session: Session) -> bool:
        if session in self._begun:  # by the part before; it need not exist before the save
            return True
        if session not in self._judged:
            self._judged[session] = self._sessions.is_alive(session)
        return self._judged[session]

    def session_for(self, client: str, form: Form, ttl: int, *, claim: bool) -> str:
        text = self._sessions.session_for(client, form, ttl, claim=claim)
        if text:
            self._begun.add(Session(client, text))
        return text


_SHOWS: Final = (ReadStatus, RequestRelease)
"""Operations that change nothing, and count clients that are alive."""
