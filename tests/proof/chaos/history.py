"""The history of a run, as each process writes it and the checker reads it.

Each process has a file of its own, named after it: ``conductor``, or a worker's slot and how often
the slot has been filled, ``2.0``. One event is one JSON object, one line and one ``write``, so what
was written before a SIGKILL is there after it. ``t`` is `time.monotonic_ns()`, which on Linux is
one clock for all processes.

A worker writes (``a`` is the attempt: its number in its task, its task, its process; ``n`` the name
of the lock):

==========  ====================================================================================
asked       a, n, ttl, timeout, renew, max_hold, max_waiters, wait, style, final, shared, permits,
            limit, every, adopts: before the call; it adopts what had this fence, or 0
queued      a, n, since, ticket, place: the store, asked at ``since``, has answered that it stands
            in the queue
entered     a, n, fence, deadline, pushed, heard: the first thing after the lease was returned; the
            store's last answer or push about it had come at ``heard``
deadline    a, n, fence, deadline: until when the lease is ours by its own clock, when that changed
told        a: in the body, the first thing after aiolock said that the lease is lost
downgrading a: in the body, just before it is to become a reader's
left        a: the last thing in the body, before anything is released
detaching   a, n, fence, ttl: just before the lease of the body is handed on, for so long
detached    a: the store has answered that it is
discarding  n, fence: just before the token of what had this fence is discarded
taken_back  a, n, fence: just before a release is called while the body has not left, or has not
            begun
given_back  a, n, fence, since, was: the store has answered a release that was called at ``since``
cancelling  a: just before the attempt's task is cancelled
ended       a, outcome: the attempt will not enter any more
done        a, outcome: the attempt had entered, and its exit or release is over
breaking    n, fences, id: just before the store is asked to take the lock from these grants
broke       n, id: the store has answered that request
stall       since: the event loop did not run from ``since`` to ``t``
block       seconds: just before the event loop is made to stall, by ``time.sleep``
reconnected the subscription was lost, and is back
opened      client, since: the client is open; the opening began at ``since``
closing     just before the client is closed
closed      since: the client is closed; the closing began at ``since``
arrives     a, parties: just before the attempt waits at the barrier
passes      a: the attempt has passed
counts      latch, token: just before a latch is counted down
opens       a, latch, parties: the latch was open
wants       a, message: just before the attempt asks whether a message is handled
begins      a, message, fence, deadline: it is not, and the body begins that is to handle it
stops       a: that body is over, with or without an error
handling    a, message, fence: a message's body has ended without an error
handled     a, message: the end of that body was confirmed
knows       a, message: the attempt was told that the message is handled
has, had    a, names: a body that has these locks begins, and ends
took        n, w, tokens, since: the waiter (client, number) has heard of its tokens, which it did
            not have at ``since``
in_line     n, w, since: the waiter, which asked at ``since``, has no tokens yet
wants_path  a: just before the attempt asks for a path lock
has_path    a, path, shared, fence, deadline: the body of that begins
had_path    a: that body is over
apart       a, outcome: an attempt at a meeting ended by an error or a timeout
waits       a, w: the attempt's waiter, as the server has it
over        w: the store has answered the release that ended this waiter
stands      w, server, since, ticket: one of several servers, asked at ``since``, has answered that
            the waiter has a place there, or its vote
voted       w, server, granted: the waiter has a vote, given then (µs of the server's clock; 0 if
            the server did not say when)
handed      w, of: its client hands the lock to this waiter, by the votes of another
taking      n, w, server: just before a server is asked to take its vote from this waiter
marked      n, server, fence, since: a server, asked at ``since``, has answered that this name is
            done, under that fence
kept        n, server, count, since: a server, asked at ``since``, has answered that it has at least
            this count
enrols      server: a server is told that it is new, so that it has forgotten nothing
servers     states: the state of each of several servers, at the very end
watches     o: an observer of the election begins (``o`` is this observer)
saw         o, fence, value: the observer sees this leader
looks       o: the observer is done with that leader, and waits for the next
watched     o: the observer has ended
looked      since, fence, value, outcome: the leader, as asked at ``since``; fence 0 if none leads
crash       text: an error that was not caught
==========  ====================================================================================

The conductor writes:

==========  ====================================================================================
began       seed, seconds, names
fault       kind, target (a slot, or "all"), since, servers: the fault lasted from ``since`` to
            ``t``; with several servers that vote, at these
killed      who, since: the process died between ``since`` and ``t``
gone        who: the server has noticed that this process is dead
wiped       since, fence: the server lost all data; its grants until ``t`` are below this fence
standing    since, now, holders, queues: the holders and the waiters of each key, as the server has
            them, at some time since ``since``, when it was ``now`` (µs) at the server
late        since, bytes, refused: data held up on a cut link has reached the server, which refused
            so many of its commands for being late
exited      who, code: the process ended by itself
key         key, ttl (ms, -1 for ever), holders, waiters (the clients of both): found at the server
            when all was over; or before, when it had no ttl
stuck       who, what: a process did not do what it was told within the time it had
quiet       no more faults from here on
==========  ====================================================================================
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a history."""

    t: int
    who: str
    kind: str
    data: dict[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def line(self, begin: int) -> str:
        """The event for people, its time in seconds after ``begin``."""
        shown = " ".join(
            f"{key}={self._shown(key, value, begin)}" for key, value in self.data.items()
        )
        return f"{(self.t - begin) / 1e9:11.6f}  {self.who:<10} {self.kind:<11} {shown}"

    def _shown(self, key: str, value: Any, begin: int) -> str:
        if key in {"since", "deadline", "heard"}:
            return f"{(value - begin) / 1e9:.6f}"
        return str(value)


class History:
    """The file that one process writes."""

    def __init__(self, folder: Path, who: str) -> None:
        self.who = who
        self._file = os.open(folder / f"{who}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @staticmethod
    def now() -> int:
        """The time, as histories have it."""
        return time.monotonic_ns()

    def note(self, kind: str, /, *, t: int | None = None, **data: object) -> None:
        """Record an event: now, unless ``t`` says when."""
        line = {"t": self.now() if t is None else t, "e": kind, **data}
        os.write(self._file, json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        """Stop writing."""
        os.close(self._file)


def write(folder: Path, events: Iterable[Event]) -> None:
    """Write a history from events, as the processes would write it."""
    files: dict[str, History] = {}
    for event in events:
        if event.who not in files:
            files[event.who] = History(folder, event.who)
        files[event.who].note(event.kind, t=event.t, **event.data)
    for file in files.values():
        file.close()


def read(folder: Path) -> list[Event]:
    """All events of all processes, in the order of their times."""
    events: list[Event] = []
    for path in sorted(folder.glob("*.jsonl")):
        # Text after the last line's end is a line that a SIGKILL tore: its event never happened.
        for line in path.read_bytes().split(b"\n")[:-1]:
            data = json.loads(line)
            events.append(Event(data.pop("t"), path.stem, data.pop("e"), data))
    events.sort(key=lambda event: event.t)
    return events
