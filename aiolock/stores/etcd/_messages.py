"""The messages of etcd's API (version 3.4 and newer) that are used here, by hand.

Requests are bytes, made by functions, as are the parts of a transaction. The numbers of the fields
are those of etcd's rpc.proto; what comes back is read by ``_replies.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from aiolock.stores.etcd._wire import data, integer, message, varint


def range_request(
    key: bytes, end: bytes = b"", *, limit: int = 0, revision: int = 0, keys_only: bool = False
) -> bytes:
    """The keys from ``key`` up to ``end``, or this key alone. Linearizable."""
    return (
        data(1, key)
        + data(2, end)
        + integer(3, limit)
        + integer(4, revision)
        + integer(8, keys_only)
    )


def put_request(key: bytes, value: bytes, *, lease: int = 0, keeps_lease: bool = False) -> bytes:
    """Write a key; with ``keeps_lease`` it must exist, and stays attached to its lease."""
    request = _first(key) + data(2, value)
    if lease:
        request += _lease_of_put(lease)
    return request + integer(6, keeps_lease) if keeps_lease else request


def delete_request(key: bytes) -> bytes:
    """Delete a key."""
    return data(1, key)


_RANGE, _PUT, _DELETE, _TXN = 1, 2, 3, 4


def range_op(request: bytes) -> bytes:
    """A range as a part of a transaction."""
    return message(_RANGE, request)


def put_op(request: bytes) -> bytes:
    """A put as a part of a transaction."""
    return message(_PUT, request)


def delete_op(request: bytes) -> bytes:
    """A delete as a part of a transaction."""
    return message(_DELETE, request)


def txn_op(request: bytes) -> bytes:
    """A transaction as a part of another. Its conditions are about the state before the other."""
    return message(_TXN, request)


_EQUAL, _NOT_EQUAL = 0, 3
_CREATE, _MOD, _LEASE = 1, 2, 4
_MANY: Final = 4096
"""Parts of requests that are kept: those about one key or lease are the same each time."""


@lru_cache(_MANY)
def _first(key: bytes) -> bytes:
    return data(1, key)


@lru_cache(_MANY)
def _lease_of_put(lease: int) -> bytes:
    return integer(3, lease)


@lru_cache(_MANY)
def _compared(result: int, target: int, key: bytes, field: int) -> bytes:
    # A zero must be written behind it: which field of a union is set says which value is meant.
    return integer(1, result) + integer(2, target) + data(3, key) + bytes([field << 3])


def _compare(result: int, target: int, key: bytes, field: int, value: int) -> bytes:
    return _compared(result, target, key, field) + varint(value)


def is_at(key: bytes, revision: int) -> bytes:
    """Condition: the key was last written at this revision; 0: it does not exist."""
    return _compared(_EQUAL, _MOD, key, 6) + varint(revision)


@lru_cache(_MANY)
def exists(key: bytes) -> bytes:
    """Condition: the key exists."""
    return _compare(_NOT_EQUAL, _CREATE, key, 5, 0)


@lru_cache(_MANY)
def is_absent(key: bytes) -> bytes:
    """Condition: the key does not exist."""
    return _compare(_EQUAL, _CREATE, key, 5, 0)


@lru_cache(_MANY)
def has_lease(key: bytes, lease: int) -> bytes:
    """Condition: the key exists, and is attached to this lease."""
    return _compare(_EQUAL, _LEASE, key, 8, lease)


@lru_cache(_MANY)
def has_other_lease(key: bytes, lease: int) -> bytes:
    """Condition: the key does not exist, or is attached to another lease."""
    return _compare(_NOT_EQUAL, _LEASE, key, 8, lease)


@lru_cache(_MANY)
def read_op(key: bytes) -> bytes:
    """A part of a transaction that reads this key."""
    return range_op(range_request(key))


def txn_request(
    conditions: Sequence[bytes], then: Sequence[bytes], otherwise: Sequence[bytes] = ()
) -> bytes:
    """If all conditions hold, carry out ``then``, else ``otherwise``: at one moment."""
    request = bytearray()
    for tag, parts in ((b"\n", conditions), (b"\x12", then), (b"\x1a", otherwise)):
        for part in parts:  # as `message(1, part)`, 2 and 3, without a call for each
            size = len(part)
            request += tag
            if size > 127:  # noqa: PLR2004
                request += varint(size)
            else:
                request.append(size)
            request += part
    return bytes(request)


def lease_grant_request(seconds: int, lease: int) -> bytes:
    """A lease of so many seconds, with this number: the server may make it longer."""
    return integer(1, seconds) + integer(2, lease)


def lease_request(lease: int) -> bytes:
    """Keep this lease alive, or revoke it."""
    return integer(1, lease)


def watch_request(
    watch: int, key: bytes, end: bytes, start: int, *, progress: bool = False
) -> bytes:
    """Report changes of the keys from ``key`` up to ``end``, from a revision on, as ``watch``."""
    created = data(1, key) + data(2, end) + integer(3, start) + integer(4, progress)
    return message(1, created + integer(7, watch))


def authenticate_request(user: str, password: str) -> bytes:
    """Ask for a token."""
    return data(1, user.encode()) + data(2, password.encode())
