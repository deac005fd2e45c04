"""A store whose holds live with sessions, on a database in this process that has some.

It is what `aiolock.stores.authors` has to say about sessions, put to use: no more than the contract
needs.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from aiolock.protocol import AskAgain, Deliver, Event, Form, Operation, Reconnected
from aiolock.store import Features
from aiolock.stores.authors import (
    ByName,
    Document,
    Part,
    Session,
    about_us,
    decode_push,
)
from aiolock.testing import SwapFaults

_SHORTEST = 1000
"""Milliseconds that a session can be kept alive for, at least."""


class SessionDatabase:
    """Documents with versions, sessions, and a swap that is guarded by both."""

    def __init__(self) -> None:
        self.documents = dict[str, tuple[str, int]]()
        self.presences = dict[str, tuple[str, str]]()
        """By client: the text of its session, and what it says of itself."""
        self.alive = set[Session]()
        self.readers = dict[str, Callable[[str, str], None]]()
        self.watchers = dict[str, Callable[[set[Session]], None]]()

    def load(self, name: str) -> tuple[str, int]:
        """The document and its version."""
        return self.documents.get(name, ("", 0))

    def end(self, client: str) -> None:
        """End all sessions of a client; each watcher is told which."""
        ended = {each for each in self.alive if each.client == client}
        self.alive -= ended
        self.presences.pop(client, None)
        for watcher in [*self.watchers.values()]:
            watcher(ended)

    async def swap(
        self,
        name: str,
        text: str | None,
        version: int,
        *,
        begin: set[Session],
        alive: Iterable[Session],
        ended: Iterable[Session],
        dead: Iterable[str],
        mail: dict[str, list[str]],
    ) -> bool:
        """Save it and send the mail, if all of that is true; sessions in ``begin`` begin then."""
        await asyncio.sleep(0)
        true = self.load(name)[1] == version and self.alive.issuperset(alive)
        if not true or not self.alive.isdisjoint(ended) or any(map(self.presences.get, dead)):
            return False
        self.alive |= begin
        if text is not None:
            self.documents[name] = text, version + 1
        for client, pushes in mail.items():
            for push in pushes:
                asyncio.get_running_loop().call_soon(self.readers[client], name, push)
        await asyncio.sleep(0)
        return True


class SessionStore:
    """One client's link to the database."""

    features = Features()

    def __init__(self, database: SessionDatabase, faults: SwapFaults | None = None) -> None:
        self._database, self._faults = database, faults or SwapFaults()
        self._by_name = ByName(self._carry_out, self._names)
        self._numbers = itertools.count(1)
        self._number = 0
        self._client = ""
        self._depends = dict[str, frozenset[Session]]()
        """By name for which a waiter of ours waits: the sessions that its holders live with."""
        self._unsure = dict[str, int]()

    async def open(self, client: str, deliver: Deliver) -> None:
        """Begin a session."""
        self._client, self._deliver_event = client, deliver
        self._database.readers[client] = self._read
        self._database.watchers[client] = self._ended
        self._join()
        self._by_name.begin(client)

    async def aclose(self) -> None:
        """End it."""
        if self._by_name.is_open:
            await self._by_name.end()
            del self._database.watchers[self._client]
            self._database.end(self._client)
            del self._database.readers[self._client]

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        """Start an operation."""
        return self._by_name.submit(operation)

    # Sessions: each has the number of the joining, so none comes back

    def _join(self) -> None:
        self._number = next(self._numbers)
        presence = f"presence {self._number}"
        self._database.presences[self._client] = presence, about_us()
        self._database.alive.add(Session(self._client, presence))

    def is_alive(self, session: Session) -> bool:
        """Whether it is alive; one of ours may be about to begin."""
        return session in self._database.alive

    def session_for(self, client: str, form: Form, ttl: int, *, claim: bool) -> str:
        """The presence of the client of a claim, or a session of ours for this ttl."""
        if ttl < _SHORTEST or (form.fixed and not claim):
            return ""
        if claim:
            return self._database.presences.get(client, ("", ""))[0]
        return f"{ttl} ms, {self._number}"

    def _ended(self, sessions: set[Session]) -> None:
        if any(each.client == self._client for each in sessions):
            self._join()
            self._deliver(Reconnected())
        for name, depends in self._depends.items():
            if not depends.isdisjoint(sessions):
                self._deliver(AskAgain(name))

    def _deliver(self, event: Event) -> None:
        asyncio.get_running_loop().call_soon(self._deliver_event, event)

    def _read(self, name: str, push: str) -> None:
        self._deliver_event(decode_push(push, name).event)

    # Documents

    async def _names(self, start: str, most: int) -> Sequence[str]:
        return sorted(name for name in self._database.documents if name > start)[:most]

    async def _carry_out(self, name: str, parts: Sequence[Part]) -> Sequence[Any]:
        again, answers = False, None
        async with asyncio.timeout(4):
            while answers is None:
                again = again or name in self._unsure
                try:
                    answers = await self._attempt(name, parts, again=again)
                except OSError:
                    await asyncio.sleep(0.05)
        if again:
            self._deliver(Reconnected())
        return answers

    async def _attempt(
        self, name: str, parts: Sequence[Part], *, again: bool
    ) -> Sequence[Any] | None:
        database = self._database
        text, version = database.load(name)
        if self._unsure.get(name) != version:
            self._unsure.pop(name, None)
        living = {client: about for client, (_, about) in database.presences.items()}
        now = round(asyncio.get_running_loop().time() * 1e6)
        document = Document(*(name, text, self._client, now, living), again=again, sessions=self)
        answers = [document.run(part) for part in parts]
        mail = document.take_mail()
        changed = document.changed(anyway=name in self._unsure)
        ours = {each for each in document.begun if each.client == self._client}
        judged = document.judged_sessions
        swap = partial(
            database.swap,
            *(name, None if changed is None else changed.text, version),
            begin=ours,
            alive=document.begun - ours,
            ended=[each for each, alive in judged.items() if not alive],
            dead=[each for each, alive in document.judged_clients.items() if not alive],
            mail=mail,
        )
        self._unsure[name] = version
        swapped = await self._faults.carry_out(swap)
        del self._unsure[name]
        if not swapped:
            return None
        self._depends.pop(name, None)
        if document.waits:
            self._depends[name] = document.sessions
            if not all(map(self.is_alive, document.sessions)):  # one has just ended
                self._deliver(AskAgain(name))
        for push in document.pushes:
            self._deliver_event(push.event)
        return answers
