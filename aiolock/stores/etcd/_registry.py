"""The clients that are alive, and the leases with which their holds live, as last reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from aiolock.stores.etcd._keys import Keys
from aiolock.stores.etcd._lease import session_text
from aiolock.stores.etcd._replies import Event, KeyValue

_MANY: Final = 1000
"""Keys that were read by themselves, after which those are forgotten that the watch has passed."""
CLOSED: Final = b"0 "
"""The value of the key of a lease that its client is about to revoke: nobody waits for its end. As
metadata, it is that of a client of which nothing is known."""


class Registry(Mapping[str, str]):
    """What is known of the presences and the leases of all clients: a mapping to their metadata.

    It is behind what is true, by as long as a message takes. So a transaction that relies on it has
    conditions, and what it reads if they do not hold is newer.
    """

    def __init__(self, keys: Keys, on_end: Callable[[], None]) -> None:
        """``on_end`` is called when a lease has ended that was not closed."""
        self._keys = keys
        self._on_end = on_end
        self._presences = dict[str, KeyValue]()
        self._holds = dict[tuple[str, str], bytes]()
        self._known = dict[bytes, int]()
        """By key: the revision at which it was read by itself, ahead of the watch."""
        self._since = 0
        """The revision of the last reading of all of it."""

    def __getitem__(self, client: str) -> str:
        about = self._presences[client].value.decode(errors="replace")
        return about if about.partition(" ")[0].isdecimal() else CLOSED.decode()

    def __iter__(self) -> Iterator[str]:
        return iter(self._presences)

    def __len__(self) -> int:
        return len(self._presences)

    def presence(self, client: str) -> int:
        """The lease of a client's presence; 0 if it is dead."""
        found = self._presences.get(client)
        return 0 if found is None else found.lease

    def is_alive(self, client: str, session: str) -> bool:
        """Whether this session of a client has not ended."""
        if "." in session:
            return (client, session) in self._holds
        found = self._presences.get(client)
        return found is not None and session_text(found.lease) == session

    def read_all(self, found: Iterable[KeyValue], revision: int) -> None:
        """All keys of presences and leases, as they were at this revision."""
        self._presences.clear()
        self._holds.clear()
        self._known.clear()
        self._since = revision
        for each in found:
            self._put(each)

    def read_one(self, key: bytes, found: KeyValue | None, revision: int) -> None:
        """One key, or its absence, as it was at this revision."""
        if revision < self._known.get(key, self._since):
            return
        if found is None:
            self._delete(key)
        else:
            self._put(found)
        self._known[key] = revision

    def changed(self, event: Event) -> None:
        """A change that the watch has reported."""
        key, revision = event.key_value.key, event.key_value.modified
        if revision <= self._known.get(key, self._since):
            return
        if event.deleted:
            self._delete(key)
        else:
            self._put(event.key_value)
        if len(self._known) > _MANY:
            self._known = {key: at for key, at in self._known.items() if at > revision}

    def _put(self, found: KeyValue) -> None:
        if found.key.startswith(self._keys.presences):
            self._presences[self._keys.client_of(found.key)] = found
        else:
            self._holds[self._keys.session_of(found.key)] = found.value

    def _delete(self, key: bytes) -> None:
        if key.startswith(self._keys.presences):
            presence = self._presences.pop(self._keys.client_of(key), None)
            value = None if presence is None else presence.value
        else:
            value = self._holds.pop(self._keys.session_of(key), None)
        if value is not None and value != CLOSED:
            self._on_end()
