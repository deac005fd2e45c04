"""Writing to a connection, and reading from it: libpq's pipeline mode, by psycopg.

Each batch of statements ends with a Sync: it is one transaction, and one flush to the disk.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import psycopg
from psycopg import pq

from aiolock.stores.postgres._codec import Value
from aiolock.stores.postgres._errors import Failed
from aiolock.stores.postgres._link import Connection

Statement = tuple[str, Sequence[Value]]
"""The name of a function in the database, and its arguments."""
Answer = str | Failed

FUNCTIONS: Final = {
    "acquire": 9,
    "release": 7,
    "renew": 6,
    "finish": 6,
    "request": 3,
    "break_": 3,
    "downgrade": 5,
    "detach": 6,
    "adopt": 8,
    "resize": 8,
    "post": 9,
    "make_fence": 1,
    "read": 1,
    "status": 7,
    "snapshot": 4,
    "clock": 0,
    "beat": 1,
    "bye": 1,
    "flush": 0,
    "notify_again": 1,
    "sweep": 1,
    "go_on": 4,
}
"""The functions that may be called, and their numbers of arguments."""
LATER: Final = frozenset({"go_on"})
"""Those that an earlier schema of this protocol lacks: it never asks for them."""

_NOTHING: Final = 10
"""Empty results in a row that mean that the connection is lost: two are usual. After a failed
write, libpq gives them without waiting, for ever."""
_FRAMES: Final = 64
_FRAME: Final = 4
"""Bytes of a call beside its texts, and bytes for each argument."""
_PREPARED: Final = tuple(function for function in FUNCTIONS if function not in LATER)
_DONE: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


class Wire:
    """One connection. ``broken`` is called once when it is of no use any more."""

    def __init__(
        self, connection: Connection, broken: Callable[[Exception], None], *, local: str | None
    ) -> None:
        """``local`` is the statement that begins each transaction where the session is not ours.

        Nothing is prepared then: the next transaction may be in another session.
        """
        self._pg = connection.pgconn
        self._broken = broken
        self._prepared = local is None
        self._local = local.encode() if local else b""
        self._loop = asyncio.get_running_loop()
        self._socket = self._pg.socket
        self._writing = False
        self._sent = deque[tuple[int, Callable[[list[Answer]], None]]]()
        """For each batch, its number of statements, and the callback for its answers."""
        self._answers: list[Answer] = []
        self._open = True
        self._pg.nonblocking = 1
        self._pg.enter_pipeline_mode()
        if self._prepared:
            self._prepare()
        self._loop.add_reader(self._socket, self._readable)

    def _prepare(self) -> None:
        """Prepare all functions, before anything else, so that no failure can interrupt it."""
        for function in _PREPARED:
            self._pg.send_prepare(function.encode(), _call(function))
        self._pg.pipeline_sync()
        self._sent.append((len(_PREPARED), self._is_prepared))

    def _is_prepared(self, answers: list[Answer]) -> None:
        if isinstance(answers[0], Failed):
            self._fail(answers[0])

    @property
    def size(self) -> int:
        """The most bytes that are written for each transaction, beside its calls."""
        return _FRAMES + len(self._local) if self._local else 0

    def send(self, batch: Sequence[Statement], answered: Callable[[list[Answer]], None]) -> None:
        """Send one transaction. After an error nothing of it was done; the only answer is that."""
        try:
            if self._local:
                self._pg.send_query_params(self._local, None)
            for function, arguments in batch:
                if self._prepared and function in _PREPARED:
                    self._pg.send_query_prepared(function.encode(), arguments)
                else:
                    self._pg.send_query_params(_call(function), arguments)
            self._pg.pipeline_sync()
            self._sent.append((len(batch), answered))
            self._flush()
        except psycopg.Error as error:
            self._loop.call_soon(self._fail, error)

    def _flush(self) -> None:
        if self._pg.flush() and not self._writing:
            self._writing = True
            self._loop.add_writer(self._socket, self._writable)

    def _writable(self) -> None:
        try:
            if not self._pg.flush():
                self._writing = False
                self._loop.remove_writer(self._socket)
        except psycopg.Error as error:
            self._fail(error)

    def _readable(self) -> None:
        pg = self._pg
        try:
            pg.consume_input()
            nothing = 0
            while self._sent and not pg.is_busy():
                result = pg.get_result()
                nothing = nothing + 1 if result is None else 0
                if nothing == _NOTHING:
                    self._fail(Failed("the connection was lost"))
                if result is not None:
                    self._result(result)
                if not self._open:
                    return
        except psycopg.Error as error:
            self._fail(error)

    def _result(self, result: pq.abc.PGresult) -> None:
        status = result.status
        if status in _DONE:
            value = result.get_value(0, 0) if result.ntuples else None
            self._answers.append(value.decode() if value else "")
        elif status == pq.ExecStatus.PIPELINE_SYNC:
            expected, answered = self._sent.popleft()
            answers, self._answers = self._answers, []
            failure = next((each for each in answers if isinstance(each, Failed)), None)
            if self._local:
                answers = answers[1:]
            if failure is None and len(answers) != expected:
                failure = Failed(f"{len(answers)} answers to {expected} statements")
            answered([failure] if failure else answers)
        elif status == pq.ExecStatus.FATAL_ERROR:
            state = result.error_field(pq.DiagnosticField.SQLSTATE)
            text = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"no reason given"
            self._answers.append(Failed(text.decode("utf-8", "replace"), (state or b"").decode()))
        # Any other status follows on an error: PIPELINE_ABORTED.

    def _fail(self, error: Exception) -> None:
        if self._open:
            self.close()
            self._broken(error)

    def close(self) -> None:
        """Read and write no more. Idempotent. The owner of the connection closes that."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._socket)
            if self._writing:
                self._loop.remove_writer(self._socket)
            self._sent.clear()


def size(function: str, arguments: Sequence[Value]) -> int:
    """The most bytes that are written for such a call, with two more numbers."""
    text = len(_call(function)) + len(function)
    return _FRAMES + text + sum([_FRAME + len(each or b"") for each in arguments])


@cache
def _call(function: str) -> bytes:
    marks = ",".join([f"${place}" for place in range(1, FUNCTIONS[function] + 1)])
    return f"SELECT aiolock.{function}({marks})".encode()
