# ruff: noqa: PLR2004  # the numbers are those of fields
"""The replies of etcd's API: bytes that are read into named tuples.

The numbers of the fields are those of etcd's rpc.proto and kv.proto. A field that is unknown is
left out: a later version may have added it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from aiolock.stores.etcd._wire import as_bytes, as_int, as_text, fields

_RANGE, _TXN = 1, 4
"""Of the parts of a transaction: those that have something to say."""


class KeyValue(NamedTuple):
    """A key, as it is or was."""

    key: bytes
    value: bytes
    modified: int
    """The revision at which it was written, or deleted."""
    lease: int


class Txn(NamedTuple):
    """The outcome of a transaction."""

    succeeded: bool
    parts: Sequence[bytes]
    """The responses to its parts, not read yet."""
    revision: int

    @property
    def responses(self) -> Sequence[Response]:
        """The outcomes of its parts."""
        return [read_response(each) for each in self.parts]


class Range(NamedTuple):
    """The keys that were found."""

    found: Sequence[KeyValue]
    revision: int


Response = Range | Txn | None
"""The outcome of a part of a transaction; None for one that writes."""


class Lease(NamedTuple):
    """A lease, and for how many seconds it was granted or prolonged; 0: it does not exist."""

    id: int
    seconds: int
    revision: int


class Event(NamedTuple):
    """A change of a key."""

    deleted: bool
    key_value: KeyValue


class Watched(NamedTuple):
    """What one message of a watch reports."""

    watch: int
    events: Sequence[Event]
    revision: int
    created: bool
    canceled: bool
    compacted: int
    """The oldest revision that can be watched, if the start was before it; else 0."""
    reason: str


class Status(NamedTuple):
    """One server's view of itself."""

    version: str
    size: int
    """Bytes of its database."""
    leader: int
    member: int
    errors: Sequence[str]


def _revision(header: bytes) -> int:
    revision = 0
    for number, value in fields(header):
        if number == 3:
            revision = as_int(value)
    return revision


def _key_value(text: bytes) -> KeyValue:
    key = value = b""
    modified = lease = 0
    for number, found in fields(text):
        if number == 1:
            key = as_bytes(found)
        elif number == 3:
            modified = as_int(found)
        elif number == 5:
            value = as_bytes(found)
        elif number == 6:
            lease = as_int(found)
    return KeyValue(key, value, modified, lease)


def read_range(text: bytes) -> Range:
    """A `Range`."""
    found = list[KeyValue]()
    revision = 0
    for number, value in fields(text):
        if number == 1:
            revision = _revision(as_bytes(value))
        elif number == 2:
            found.append(_key_value(as_bytes(value)))
    return Range(found, revision)


def read_txn(text: bytes) -> Txn:
    """A `Txn`."""
    succeeded, revision = False, 0
    parts = list[bytes]()
    for number, value in fields(text):
        if number == 1:
            revision = _revision(as_bytes(value))
        elif number == 2:
            succeeded = bool(as_int(value))
        elif number == 3:
            parts.append(as_bytes(value))
    return Txn(succeeded, parts, revision)


def read_response(text: bytes) -> Response:
    """The outcome of a part of a transaction."""
    for number, value in fields(text):
        if number == _RANGE:
            return read_range(as_bytes(value))
        if number == _TXN:
            return read_txn(as_bytes(value))
    return None


def read_revision(text: bytes) -> int:
    """The revision of a reply of which nothing else matters."""
    for number, value in fields(text):
        if number == 1:
            return _revision(as_bytes(value))
    return 0


def read_lease(text: bytes) -> Lease:
    """A lease that was granted, or kept alive."""
    lease = seconds = revision = 0
    for number, value in fields(text):
        if number == 1:
            revision = _revision(as_bytes(value))
        elif number == 2:
            lease = as_int(value)
        elif number == 3:
            seconds = as_int(value)
    return Lease(lease, seconds, revision)


def read_watched(text: bytes) -> Watched:
    """A `Watched`."""
    watch = revision = compacted = 0
    created = canceled = False
    reason = ""
    events = list[Event]()
    for number, value in fields(text):
        if number == 1:
            revision = _revision(as_bytes(value))
        elif number == 2:
            watch = as_int(value)
        elif number == 3:
            created = bool(as_int(value))
        elif number == 4:
            canceled = bool(as_int(value))
        elif number == 5:
            compacted = as_int(value)
        elif number == 6:
            reason = as_text(value)
        elif number == 11:
            events.append(_event(as_bytes(value)))
    return Watched(watch, events, revision, created, canceled, compacted, reason)


def _event(text: bytes) -> Event:
    deleted, found = False, KeyValue(b"", b"", 0, 0)
    for number, value in fields(text):
        if number == 1:
            deleted = bool(as_int(value))
        elif number == 2:
            found = _key_value(as_bytes(value))
    return Event(deleted, found)


def read_token(text: bytes) -> str:
    """The token of a reply to `authenticate_request`."""
    for number, value in fields(text):
        if number == 2:
            return as_text(value)
    return ""


def read_status(text: bytes) -> Status:
    """A `Status`."""
    version, size, leader, member = "", 0, 0, 0
    errors = list[str]()
    for number, value in fields(text):
        if number == 1:
            for inner, found in fields(as_bytes(value)):
                if inner == 2:
                    member = as_int(found)
        elif number == 2:
            version = as_text(value)
        elif number == 3:
            size = as_int(value)
        elif number == 4:
            leader = as_int(value)
        elif number == 8:
            errors.append(as_text(value))
    return Status(version, size, leader, member, errors)
