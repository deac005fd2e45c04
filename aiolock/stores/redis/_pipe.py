"""The commands: all tasks write to one connection, and replies come back in the same order.

A command that was under way when the connection broke is sent again on the next one, in order:
each is idempotent, so nobody needs to know whether the server had carried it out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from redis.asyncio.connection import ConnectionPool
from redis.exceptions import InvalidResponse, NoPermissionError

from aiolock.errors import StoreError
from aiolock.stores.redis._link import Link
from aiolock.stores.redis._scripts import RELEASE, Script
from aiolock.stores.redis._wire import FEW, Refusal

REPLY_TIMEOUT: Final = 4.0
"""Seconds without the reply that is due, after which the link is taken for dead."""
COMMAND_TIMEOUT: Final = 9.0
"""Seconds, over all reconnections, after which nobody knows what became of a command."""

_LOOK: Final = 0.5

_ELSEWHERE: Final = ("READONLY", "LOADING", "MASTERDOWN", "BUSY")
"""Answers of a server that cannot serve us now: connect again, to it or to its successor."""

ACL_RULE: Final = (
    "~{prefix}:* &{prefix}:* +evalsha +eval +select +subscribe +publish +pubsub|numsub +time"
    " +exists +get +set +pexpire +pttl +zadd +zcard +zincrby +zmscore +zrange +zrangebyscore +zrank"
    " +zrem +zscore +zpopmin"
)
"""The least that an ACL user needs, after `ACL SETUSER <name> on ><password>`."""


def store_error(error: Exception, prefix: str) -> StoreError:
    """``error`` as the caller of aiolock sees it, with what to do about it."""
    text = str(error) or type(error).__name__
    if "OOM command not allowed" in text:
        text = f"the server is out of memory (maxmemory), so it takes no new lock or waiter: {text}"
    elif (
        text.startswith("NOPERM")
        or "The user executing the script" in text
        or isinstance(error, NoPermissionError)
    ):
        rule = ACL_RULE.format(prefix=prefix)
        text = f"the server's ACL forbids what aiolock needs: {text}. Grant the user: {rule}"
    elif isinstance(error, TimeoutError):
        text = f"the server did not answer in time: {text}"
    wrapped = StoreError(text)
    wrapped.__cause__ = error
    return wrapped


def _code(refusal: Refusal) -> str:
    """The first word of an error; Redis 6.2 has it further back for what a script called."""
    text = str(refusal)
    return "READONLY" if "-READONLY" in text else text.partition(" ")[0]


class _Command:
    """One call of a script, from being asked for to being answered."""

    __slots__ = ("arguments", "born", "count", "future", "script", "sent", "sure", "times")

    def __init__(
        self,
        script: Script,
        count: int,
        arguments: bytes,
        *,
        future: asyncio.Future[Any],
        born: float,
        sure: bool,
    ) -> None:
        self.script = script
        self.count = count
        self.arguments = arguments
        self.future = future
        self.born = self.sent = born
        self.sure = sure
        self.times = 0


class Pipe:
    """One multiplexed connection for the commands of all tasks."""

    def __init__(
        self,
        pool: ConnectionPool,
        prefix: str,
        *,
        told: Callable[[str], None],
        back: Callable[[], None],
    ) -> None:
        """``told`` gets each push that comes with a reply.

        ``back`` is called when there is a connection again after there was none: replies, and
        the pushes with them, may have been lost.
        """
        self._link = Link(pool, received=self._received, up=self._up, down=lambda _: None)
        self._told = told
        self._back = back
        self._prefix = prefix
        self._pending: deque[_Command] = deque()
        self._loop = asyncio.get_running_loop()
        self._watch: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None
        self._closed = False
        self._known: set[Script] = set()
        self.quiet_since = self._loop.time()
        self.patient = False
        """Whether a replica may yet become the master: while the client is open, not before."""

    async def open(self) -> None:
        await self._link.open()

    def call(
        self,
        script: Script,
        count: int,
        arguments: bytes,
        *,
        sure: bool = True,
        in_full: bool = False,
    ) -> asyncio.Future[Any]:
        """Send a call with ``count`` encoded ``arguments``; the future is of the decoded reply.

        ``sure``: carried out whatever becomes of the future. Without it, a command whose future
        is done is not sent a second time. ``in_full`` sends the script itself, whether or not the
        server knows it.
        """
        now = self._loop.time()
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._closed:
            future.set_exception(StoreError("the client was closed"))
            return future
        command = _Command(script, count, arguments, future=future, born=now, sure=sure)
        self._pending.append(command)
        if self._link.wire is not None:
            command.times = 1
            head = script.call_in_full(count) if in_full else self._head(script, count)
            # Where little is under way this one waits for nothing: a lone hand-off is as fast as
            # can be. Else the turn's commands go out together: 200 tasks do not make 200 packets.
            self._link.wire.write(head + arguments, at_once=len(self._pending) <= FEW)
        if self._watch is None:
            self._watch = self._loop.call_later(_LOOK, self._look)
        return future

    def _head(self, script: Script, count: int) -> bytes:
        # In full until the server has answered to it once: a NOSCRIPT costs the command its place
        # among those that were sent after it.
        return script.call(count) if script in self._known else script.call_in_full(count)

    def _received(self, reply: Any) -> None:
        if not self._pending:
            self._link.drop(InvalidResponse(f"nobody asked for {reply!r}"))
            return
        command = self._pending.popleft()
        if isinstance(reply, Refusal):
            self._refused(command, reply)
        else:
            script = command.script
            if script is RELEASE and isinstance(reply, bytes):
                self._told(reply.decode())  # first: whoever is next need not wait for who was last
            if not command.future.done():
                decode = script.decode if command.times == 1 else script.decode_again
                try:
                    command.future.set_result(decode(reply))
                except (TypeError, ValueError, IndexError):
                    self._fail(command, InvalidResponse(f"not an answer of aiolock's: {reply!r}"))
            self.quiet_since = command.sent
            self._known.add(script)
            self._link.proved()
        if self._drained is not None and not self._pending and not self._drained.done():
            self._drained.set_result(None)

    def _refused(self, command: _Command, refusal: Refusal) -> None:
        code = _code(refusal)
        if code in _ELSEWHERE and (self.patient or code != "READONLY"):
            self._pending.appendleft(command)
            self._link.drop(refusal)
        elif code != "NOSCRIPT":
            self._link.proved()
            self._fail(command, refusal)
        elif command.sure or not command.future.done():
            self._known.discard(command.script)
            self._pending.append(command)
            command.sent = self._loop.time()
            if self._link.wire is not None:
                head = command.script.call_in_full(command.count)
                self._link.wire.write(head + command.arguments, at_once=False)

    def _fail(self, command: _Command, error: Exception) -> None:
        if not command.future.done():
            command.future.set_exception(store_error(error, self._prefix))

    def _up(self) -> None:
        now = self._loop.time()
        self._known.clear()
        again = [c for c in self._pending if c.sure or not c.future.done()]
        self._pending.clear()
        self._pending.extend(again)
        wire = self._link.wire
        assert wire is not None
        for command in again:
            command.sent = now
            command.times += 1
            head = self._head(command.script, command.count)
            wire.write(head + command.arguments, at_once=False)
        self._back()

    def _look(self) -> None:
        """See, while anything is under way, whether the link is dead or a command has run out."""
        self._watch = None
        now = self._loop.time()
        for command in self._pending:
            if now - command.born >= COMMAND_TIMEOUT:
                waited = TimeoutError(f"no answer for {COMMAND_TIMEOUT:.0f} s")
                self._fail(command, waited if self._link.wire else self._link.error)
        if self._link.wire is None:
            # Nothing of these is on a connection any more, so no reply is still to be paired.
            while self._pending and now - self._pending[0].born >= COMMAND_TIMEOUT:
                self._pending.popleft()
        elif self._pending and now - self._pending[0].sent >= REPLY_TIMEOUT:
            self._link.drop(TimeoutError(f"no reply for {REPLY_TIMEOUT:.0f} s"))
        if self._pending:
            self._watch = self._loop.call_later(_LOOK, self._look)

    async def aclose(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for what is under way, then disconnect. Idempotent."""
        if self._pending and self._drained is None:
            # Of the replies, not of the futures: those may be cancelled while a release goes on.
            self._drained = self._loop.create_future()
            await asyncio.wait([self._drained], timeout=timeout)
        self._closed = True
        for command in self._pending:
            self._fail(command, ConnectionError("the client was closed"))
        self._pending.clear()
        if self._watch is not None:
            self._watch.cancel()
        await self._link.aclose()
