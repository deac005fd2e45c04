"""The pipe: all tasks write commands to one connection, and replies come back in the same order.

A command that was under way when the connection broke is sent again on the next one, in order. Each
is idempotent, so it does not matter whether the server had carried it out. The first copy may still
reach the server after that: see `aiolock.stores._retry_window`.

In the flow of an acquisition, a store's method encodes its arguments and calls `Outbox.call`;
`Incoming` decodes the reply and resolves the future. `Redirects` is used in a cluster only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from redis.asyncio.connection import ConnectionPool

from aiolock.stores.redis import _outbox
from aiolock.stores.redis._command import Command
from aiolock.stores.redis._errors import Place
from aiolock.stores.redis._incoming import Incoming
from aiolock.stores.redis._link import Link
from aiolock.stores.redis._redirects import Redirected
from aiolock.stores.redis._scripts import PRESENCE, Script
from aiolock.stores.redis._sentinel import Address


class Pipe(Incoming):
    """One multiplexed connection for the commands of all tasks.

    After a break, the new connection is checked before any command is sent on it, by ``probe``: the
    arguments of a presence, or of another script that tells who listens and the server's clock. A
    server that cannot serve us refuses it.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        prefix: str,
        *,
        probe: Callable[[], tuple[int, bytes]],
        probe_script: Script = PRESENCE,
        admitted: Callable[[Any], None] | None = None,
        told: Callable[[str], None],
        lost: Callable[[Exception], None],
        failing: Callable[[Exception], None],
        back: Callable[[int | None], None],
        again: Callable[[], None],
        redirected: Redirected | None = None,
        queued: Callable[[], None] | None = None,
    ) -> None:
        """``told`` gets each push that comes with a reply; ``lost`` why there is no connection,
        and ``failing`` why there is still none.

        ``back`` is called when there is a connection again: replies, and pushes with them, may have
        been lost. It gets the probe's answer, which is how many listen to the client's channel;
        None if the probe was refused. ``again`` is called just before; commands that it sends come
        before all that waited for the connection. ``redirected`` and ``queued`` are for a node of a
        cluster; ``queued`` is called when a waiter of ours is in a queue. ``admitted`` gets the
        probe's answer before anything else is sent; if it is given, nothing is sent to a server
        that refuses the probe.
        """
        super().__init__()
        self._link = Link(
            pool, received=self._received, up=self._up, down=self._down, failing=failing
        )
        self._place = Place.of(pool, prefix, cluster=redirected is not None)
        self._probe_arguments = probe
        self._probe_script = probe_script
        self._admitted = admitted
        self._redirected = redirected
        self._queued_one = queued
        self._on_push = told
        self._lost = lost
        self._back = back
        self._again = again

    async def open(self) -> None:
        await self._link.open()

    def drop(self, reason: Exception) -> None:
        """Give this connection up: commands wait for another, or fail with this reason."""
        self._link.drop(reason)

    def follow(self, address: Address) -> None:
        """The master is at ``address``."""
        self._link.follow(address)

    def _up(self) -> None:
        self._known.clear()
        self._proved = False
        if not self._opened:  # the first command introduces us, and is sent in full
            self._opened = True
            self._go_on()
            return
        assert self._link.wire is not None
        now = self._time()
        script, arguments = self._probe_script, self._probe_arguments()
        self._probe = Command(script, *arguments, self._nobody(), now, must_run=False)
        self._sent.append(self._probe)
        self._write(self._link.wire, self._probe, at_once=True)
        if self._watch is None:
            self._watch = self._loop.call_later(_outbox.LOOK, self._look)

    def _down(self, reason: Exception) -> None:
        """Queue the commands without an answer again, in the order in which they were asked for."""
        if self._wire is not None:
            self._wire = None
            self.copies.lost()
        again = [
            c for c in self._sent if c is not self._probe and (c.must_run or not c.future.done())
        ]
        self._probe = None
        self._sent.clear()
        for command in self._gathered:  # never written
            if command.waiter:
                self._first.setdefault(command.waiter, []).append(command)
        self._gathered.clear()
        younger, self._queued = self._queued, {}
        # In the order of the calls: a release must not overtake its acquire, on any connection.
        for command in sorted(again, key=lambda command: command.born):
            self._queue(command)
        self._queued |= younger
        self._lost(reason)

    async def aclose(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for commands under way, then disconnect. Idempotent."""
        if self._pending and self._drained is None:
            # For the replies, not the futures: those may be cancelled while a release goes on.
            self._drained = self._loop.create_future()
            await asyncio.wait([self._drained], timeout=timeout)
        self._closed = True
        for command in self._pending:
            self._fail(
                command, ConnectionError("the client was closed"), refused=command.times == 0
            )
        self._sent.clear()
        self._queued.clear()
        self._held.clear()
        self._first.clear()
        if self._watch is not None:
            self._watch.cancel()
        await self._link.aclose()
