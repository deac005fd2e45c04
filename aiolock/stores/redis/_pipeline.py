"""The pipeline: all tasks write commands to one connection; replies come back in the same order.

A command that was under way when the connection broke is sent again on the next one, in order. Each
is idempotent, so it does not matter whether the server had carried it out. The first copy may still
reach the server after that: see `aiolock.stores._retry_window`.

In the flow of an acquisition, a store encodes the arguments and calls `Outbox.call`; the `Reader`
decodes the reply and resolves the future.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis.asyncio.connection import ConnectionPool

from aiolock.stores.redis._command import NOBODY, Command
from aiolock.stores.redis._deadlines import Deadlines
from aiolock.stores.redis._errors import Place, Refusal, code_of
from aiolock.stores.redis._link import Link
from aiolock.stores.redis._outbox import Outbox
from aiolock.stores.redis._protocol import mismatch
from aiolock.stores.redis._reader import OnRefusal, Reader, not_an_answer
from aiolock.stores.redis._replies import Present
from aiolock.stores.redis._scripts import PRESENCE, Script
from aiolock.stores.redis._sentinel import Address


class Pipeline:
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
        on_admitted: Callable[[Any], None] | None = None,
        on_push: Callable[[str], None],
        on_lost: Callable[[Exception], None],
        on_failing: Callable[[Exception], None],
        on_regained: Callable[[], None],
        on_restored: Callable[[int | None], None],
        on_queued: Callable[[], None] | None = None,
        refusal_handler: Callable[[Outbox], OnRefusal] | None = None,
    ) -> None:
        """``on_push`` gets each push that comes with a reply; ``on_lost`` why there is no
        connection, and ``on_failing`` why there is still none.

        ``on_regained`` is called when there is a connection again; commands that it sends come
        before all that waited for it. ``on_restored`` is called after that: replies, and pushes
        with them, may have been lost. It gets the probe's answer, which is how many listen to the
        client's channel; None if the probe was refused. ``on_admitted`` gets the probe's answer
        before anything else is sent; if it is given, nothing is sent to a server that refuses the
        probe. ``on_queued`` is called when a waiter of ours is in a queue. ``refusal_handler``
        makes the function for refusals that another server may lift.
        """
        place = Place.of(pool, prefix, cluster=refusal_handler is not None)
        self.outbox = Outbox(place)
        self.copies = self.outbox.copies
        # The same functions, not methods that call them: these are called for every command.
        self.call = self.outbox.call
        self.forget = self.outbox.queue.forget
        self._deadlines = Deadlines(self.outbox, self.drop)
        self._reader = Reader(
            self.outbox,
            drop=self.drop,
            on_push=on_push,
            on_probe=self._on_probe,
            on_queued=on_queued,
            on_refusal=refusal_handler(self.outbox) if refusal_handler is not None else None,
        )
        self._link = Link(
            pool,
            on_reply=self._reader.on_reply,
            on_up=self._on_up,
            on_down=self._on_down,
            on_failing=self._on_failing_link,
        )
        self._probe_arguments = probe
        self._probe_script = probe_script
        self._on_admitted = on_admitted
        self._on_lost = on_lost
        self._on_failing = on_failing
        self._on_regained = on_regained
        self._on_restored = on_restored
        self._opened = False

    @property
    def waits_for(self) -> float:
        """Seconds for which the oldest reply has been due; 0 if none is."""
        sent = self.outbox.sent
        return max(0.0, self.outbox.time() - sent[0].sent) if sent else 0.0

    @property
    def quiet_since(self) -> float:
        """When the last command was sent that was answered."""
        return self._reader.quiet_since

    async def open(self) -> None:
        await self._link.open()

    def be_patient(self) -> None:
        """From now on, wait for a replica to become the master."""
        self._reader.patient = True

    def drop(self, reason: Exception) -> None:
        """Give this connection up: commands wait for another, or fail with this reason."""
        self._link.drop(reason)

    def follow(self, address: Address) -> None:
        """The master is at ``address``."""
        self._link.follow(address)

    def _on_up(self) -> None:
        outbox, reader, wire = self.outbox, self._reader, self._link.wire
        assert wire is not None
        outbox.known.clear()
        reader.proved = False
        if not self._opened:  # the first command introduces us, and is sent in full
            self._opened = True
            outbox.connected(wire)
            outbox.resend()
            return
        count, arguments = self._probe_arguments()
        reader.probe = probe = Command.of(
            *(self._probe_script, count, arguments, NOBODY, outbox.time()), must_run=False
        )
        outbox.sent.append(probe)
        outbox.write(wire, probe, at_once=True)
        if not outbox.watched:
            outbox.watch()

    def _on_probe(self, probe: Command, reply: Any) -> None:
        """Whether this server serves us; if so, it gets the commands that have waited."""
        heard: int | None = None
        if isinstance(reply, Refusal):
            if self._on_admitted is not None or self._reader.cannot_serve(code_of(reply)):
                self.drop(reply)
                return
            # Serve the commands anyway: each is told that it is refused, if it is.
        else:
            try:
                answer = self._probe_script.decode(reply)
            except (TypeError, ValueError):
                self.drop(not_an_answer(reply))
                return
            if isinstance(answer, Present) and (error := mismatch(answer.others)) is not None:
                self.drop(error)
                return
            heard = answer.heard
            self.copies.read_clock(probe.sent, answer.now)
            if self._on_admitted is not None:
                self._on_admitted(answer)
        self._reader.quiet_since = probe.sent
        # The link is proved only by a command's answer: otherwise a server that answers nothing but
        # the probe would be dialled again and again without a pause.
        assert self._link.wire is not None
        self.outbox.connected(self._link.wire)
        self._on_regained()
        self.outbox.resend()
        self._on_restored(heard)

    def _on_down(self, reason: Exception) -> None:
        if self._reader.proved:
            self._link.proved()
        self._reader.probe = None
        self.outbox.error = reason
        self.outbox.disconnected()
        self._on_lost(reason)

    def _on_failing_link(self, reason: Exception) -> None:
        self.outbox.error = reason
        self._on_failing(reason)

    async def aclose(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for commands under way, then disconnect. Idempotent."""
        await self.outbox.drain(timeout)
        self.outbox.close()
        self._deadlines.close()
        await self._link.aclose()
