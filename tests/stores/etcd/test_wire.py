"""The wire format of protocol buffers, and the messages of etcd: with a server, and malformed."""

# a number in an assertion explains itself

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiolock.stores.etcd import _messages as messages
from aiolock.stores.etcd import _replies as replies
from aiolock.stores.etcd._connection import Connection
from aiolock.stores.etcd._settings import from_url
from aiolock.stores.etcd._wire import (
    MalformedError,
    as_bytes,
    as_int,
    as_text,
    data,
    fields,
    integer,
    message,
    varint,
)
from tests.support.etcds import EtcdServer

pytestmark = pytest.mark.one_loop

READERS: list[Callable[[bytes], object]] = [
    replies.read_range,
    replies.read_txn,
    replies.read_lease,
    replies.read_watched,
    replies.read_token,
    replies.read_status,
]


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(1, 1 << 20))
def test_integer_that_is_written_is_read(value: int, number: int) -> None:
    """A number comes back, also a negative one; 0 is not written."""
    assert list(fields(integer(number, value))) == ([(number, value)] if value else [])


@given(st.binary(), st.integers(1, 1 << 20))
def test_bytes_that_are_written_are_read(value: bytes, number: int) -> None:
    """Bytes come back; an empty message is written, and empty bytes are not."""
    assert list(fields(message(number, value))) == [(number, value)]
    assert list(fields(data(number, value))) == ([(number, value)] if value else [])


def test_fields_of_fixed_length_are_left_out() -> None:
    """A later version may add them."""
    fixed = bytes([1 << 3 | 1]) + bytes(8) + bytes([2 << 3 | 5]) + bytes(4)
    assert list(fields(fixed + integer(3, 7))) == [(3, 7)]


@pytest.mark.parametrize(
    "text",
    [
        b"\x80",
        b"\x08",
        b"\x08" + b"\x80" * 10,
        b"\x0a\x05abc",
        b"\x00\x01",
        b"\x0b",
        b"\x09\x00",
        b"\x0d\x00",
        b"\x0a" + varint(1 << 62),
    ],
)
def test_fields_of_malformed_bytes_raise(text: bytes) -> None:
    """Nothing is read beyond the end, and nothing is guessed."""
    with pytest.raises(MalformedError):
        list(fields(text))


def test_value_of_another_type_is_malformed() -> None:
    """A number in the place of a text, or the other way round, is no message of etcd's."""
    with pytest.raises(MalformedError, match="number was expected"):
        as_int(b"")
    with pytest.raises(MalformedError, match="byte string was expected"):
        as_bytes(0)
    with pytest.raises(MalformedError, match="UTF-8"):
        as_text(b"\xff")


@given(st.binary(max_size=60))
def test_readers_of_any_bytes_read_or_raise_malformed(text: bytes) -> None:
    """No reply makes a reader fail in another way."""
    for read in READERS:
        try:
            read(text)
        except MalformedError:
            continue


@pytest.fixture
async def connection(etcd_server: EtcdServer) -> Connection:
    """A connection to the server."""
    return Connection(etcd_server.addresses[0], from_url(etcd_server.url()))


async def test_messages_are_those_of_the_server(connection: Connection, prefix: str) -> None:
    """Each request does what it says, and each reply is read."""

    async def call(method: str, request: bytes) -> bytes:
        return await connection.call(method, request, 5)

    async def txn(*parts: list[bytes]) -> replies.Txn:
        return replies.read_txn(await call("KV/Txn", messages.txn_request(*parts)))

    one, two = f"{prefix}/1".encode(), f"{prefix}/2".encode()
    number = replies.read_lease(await call("Lease/LeaseGrant", b"\x08\x3c")).id
    granted = messages.lease_grant_request(60, number // 2 + 1)
    lease = replies.read_lease(await call("Lease/LeaseGrant", granted))
    assert (lease.id, lease.seconds) == (number // 2 + 1, 60)
    put = messages.put_op(messages.put_request(one, b"\0a", lease=lease.id))
    done = await txn([messages.is_absent(one), messages.is_at(one, 0)], [put], [])
    assert done.succeeded
    at = done.revision
    for condition, holds in (
        (messages.exists(one), True),
        (messages.is_absent(one), False),
        (messages.is_at(one, at), True),
        (messages.is_at(one, at - 1), False),
        (messages.has_lease(one, lease.id), True),
        (messages.has_other_lease(one, lease.id), False),
        (messages.has_lease(one, 5), False),
        (messages.has_other_lease(one, 5), True),
        (messages.has_other_lease(two, 5), True),
        (messages.has_lease(two, 5), False),
        (messages.exists(two), False),
        (messages.is_at(two, 0), True),
    ):
        assert (await txn([condition], [], [])).succeeded is holds
    keeps = messages.put_op(messages.put_request(one, b"b", keeps_lease=True))
    inner = messages.txn_op(
        messages.txn_request(
            [messages.exists(two)], [], [messages.range_op(messages.range_request(one))]
        )
    )
    done = await txn([], [keeps, inner], [])
    written, nested = done.responses
    assert written is None
    assert isinstance(nested, replies.Txn)
    assert not nested.succeeded
    (found,) = nested.responses
    assert isinstance(found, replies.Range)
    assert found.found == [replies.KeyValue(one, b"b", done.revision, lease.id)]
    await call("KV/Put", messages.put_request(two, b"c"))
    whole = messages.range_request(one, one[:-1] + b"9", limit=5)
    ranged = replies.read_range(await call("KV/Range", whole))
    assert [each.value for each in ranged.found] == [b"b", b"c"]
    names = messages.range_request(one, one[:-1] + b"9", limit=1, keys_only=True)
    (only,) = replies.read_range(await call("KV/Range", names)).found
    assert (only.key, only.value) == (one, b"")
    old = replies.read_range(await call("KV/Range", messages.range_request(one, revision=at)))
    assert old.found[0].value == b"\0a"
    await call("Lease/LeaseRevoke", messages.lease_request(lease.id))
    await _watch(connection, one, at)
    async with connection.stream("Lease/LeaseKeepAlive", 5) as stream:
        for each, seconds in ((number, 60), (lease.id, 0)):
            stream.write(messages.lease_request(each))
            kept = replies.read_lease(await stream.read())
            assert (kept.id, kept.seconds) == (each, seconds)
    status = replies.read_status(await call("Maintenance/Status", b""))
    assert status.version.startswith("3.")
    assert status.leader == status.member != 0
    assert not status.errors
    await connection.aclose()
    await asyncio.sleep(0)


async def _watch(connection: Connection, one: bytes, at: int) -> None:
    async with connection.stream("Watch/Watch", 5) as stream:
        stream.write(messages.watch_request(7, one, b"", at))
        created = replies.read_watched(await stream.read())
        assert (created.created, created.watch) == (True, 7)
        events = list[replies.Event]()
        while len(events) < 3:
            events += replies.read_watched(await stream.read()).events
    assert [(event.deleted, event.key_value.value) for event in events] == [
        (False, b"\0a"),
        (False, b"b"),
        (True, b""),
    ]
