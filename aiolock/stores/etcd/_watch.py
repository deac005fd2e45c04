"""The watch: it reports letters to this client, and changes of presences and leases, completely.

Each of its parts is resumed after the last revision that was reported: so nothing is missed when
the server is another one. Only if that revision was compacted meanwhile, there is a gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from aiolock.backoff import Backoff
from aiolock.stores.etcd._connection import Connection, Stream
from aiolock.stores.etcd._failures import CallError, broken
from aiolock.stores.etcd._keys import end_of
from aiolock.stores.etcd._messages import watch_request
from aiolock.stores.etcd._replies import Event, Watched, read_watched
from aiolock.stores.etcd._servers import TRY, Servers
from aiolock.stores.etcd._wire import MalformedError

_PAUSES: Final = 0.02, 0.5
_LEADER: Final = ("hasleader", "true")
"""The server ends the watch when it loses its leader: it would have nothing to report."""


class Reader(Protocol):
    """What a watch reports to."""

    def on_events(self, events: Sequence[Event]) -> None:
        """Changes of the keys, in order."""
        ...

    async def on_gap(self) -> int:
        """Changes were missed; returns the revision from which on they are reported again."""
        ...


class _Part:
    """A range of keys, and how far its changes were reported."""

    def __init__(self, prefix: bytes, start: int) -> None:
        self.prefix = prefix
        self.start = start
        """The revision from which on changes are new."""


class Watch:
    """One stream, on the server in use, that is opened again whenever it has ended."""

    def __init__(
        self,
        servers: Servers,
        reader: Reader,
        *,
        up: Callable[[], None],
        down: Callable[[CallError], None],
    ) -> None:
        self._servers = servers
        self._reader = reader
        self._up, self._down = up, down
        self._parts = list[_Part]()
        self.opened = asyncio.Event()
        """Set once it reports."""

    def start(self, prefixes: Sequence[bytes], start: int) -> None:
        """What to watch, from this revision on."""
        self._parts = [_Part(prefix, start) for prefix in prefixes]

    async def run(self) -> None:
        """Report, for ever."""
        backoff = Backoff(*_PAUSES, jitter=True)
        while True:
            connection = self._servers.connection
            try:
                await self._on(connection, backoff)
            except CallError as error:
                self._down(error)
                if not error.token:
                    self._servers.leave(connection)
            except MalformedError as error:
                self._down(broken(connection.address, f"a reply cannot be read: {error}"))
                self._servers.leave(connection)
            await asyncio.sleep(backoff.pause())

    async def _on(self, connection: Connection, backoff: Backoff) -> None:
        metadata = await self._servers.metadata(connection)
        try:
            async with connection.stream("Watch/Watch", TRY, (*metadata, _LEADER)) as stream:
                for number, part in enumerate(self._parts, 1):
                    prefix = part.prefix
                    stream.write(watch_request(number, prefix, end_of(prefix), part.start))
                await self._read(stream, connection, backoff)
        except CallError as error:
            # A watch is refused like this for a token that has expired, too.
            if error.token or "permission denied" in str(error):
                self._servers.forget_token(metadata)
            raise

    async def _read(self, stream: Stream, connection: Connection, backoff: Backoff) -> None:
        created = 0
        while True:
            try:
                async with asyncio.timeout(TRY if created < len(self._parts) else None):
                    watched = read_watched(await stream.read())
            except TimeoutError:
                raise broken(connection.address, "no answer in time") from None
            if watched.canceled:
                await self._canceled(watched, connection)
                return
            if watched.created:
                created += 1
                if created == len(self._parts):
                    backoff.reset()
                    self.opened.set()
                    self._up()
            if watched.events:
                self._report(watched)

    def _report(self, watched: Watched) -> None:
        part = self._parts[watched.watch - 1] if 0 < watched.watch <= len(self._parts) else None
        if part is None:
            return
        # All events of a revision come together, unless they are asked for in fragments.
        part.start = max(part.start, watched.events[-1].key_value.modified + 1)
        self._reader.on_events(watched.events)

    async def _canceled(self, watched: Watched, connection: Connection) -> None:
        if not watched.compacted:
            raise broken(connection.address, watched.reason or "the watch has ended")
        start = await self._reader.on_gap()
        for part in self._parts:
            part.start = max(part.start, start)
