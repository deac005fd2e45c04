"""The wire format of protocol buffers, as far as etcd's messages need it.

A message is a sequence of fields: a key (the field's number and a wire type), then a value. A field
that is zero or empty is not written. Of the wire types, etcd uses varints and byte strings; the two
of fixed length are skipped, as are fields that are unknown: a later version may have added them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SMALL: Final = [bytes([n]) for n in range(128)]
_LONGEST: Final = 10
"""Bytes of the longest varint, which has 64 bits."""
_SIGN: Final = 1 << 63
_MASK: Final = (1 << 64) - 1

Value: TypeAlias = int | bytes


class MalformedError(ValueError):
    """The bytes are no message."""


def varint(number: int) -> bytes:
    """A whole number of 64 bits; a negative one as its two's complement."""
    if 0 <= number < 128:  # noqa: PLR2004  # seven bits
        return _SMALL[number]
    if 0 <= number < 1 << 14:
        return bytes((number & 127 | 128, number >> 7))
    number &= _MASK
    found = list[int]()
    while number > 127:  # noqa: PLR2004
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def integer(number: int, value: int) -> bytes:
    """A field that is a number or a flag; nothing if it is 0."""
    return varint(number << 3) + varint(value) if value else b""


def data(number: int, value: bytes) -> bytes:
    """A field that is a byte string or a text; nothing if it is empty."""
    return message(number, value) if value else b""


def message(number: int, value: bytes) -> bytes:
    """A field that is a message, which may be empty."""
    tag, size = number << 3 | _BYTES, len(value)
    if tag < 128 and size < 128:  # noqa: PLR2004  # one byte each: by far the most
        return _SMALL[tag] + _SMALL[size] + value
    return varint(tag) + varint(size) + value


def fields(text: bytes) -> Iterator[tuple[int, Value]]:
    """The number and the value of each field, in order; `MalformedError` if it is no message."""
    at, end = 0, len(text)
    while at < end:
        tag = text[at]
        at += 1
        if tag > 127:  # noqa: PLR2004
            tag, at = _read_varint(text, at - 1)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise MalformedError("a field has the number 0")
        if kind == _VARINT:
            value, at = _read_varint(text, at)
            yield number, value - (1 << 64) if value & _SIGN else value
        elif kind == _BYTES:
            if at < end and text[at] < 128:  # noqa: PLR2004  # by far the most
                size = text[at]
                at += 1
            else:
                size, at = _read_varint(text, at)
            if size > end - at:
                raise MalformedError("a field is longer than its message")
            yield number, text[at : at + size]
            at += size
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
            if at > end:
                raise MalformedError("a field is longer than its message")
        else:
            raise MalformedError(f"the wire type {kind} is unknown")


def _read_varint(text: bytes, at: int) -> tuple[int, int]:
    """A varint and where it ends."""
    value = shift = 0
    for byte in text[at : at + _LONGEST]:
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:  # noqa: PLR2004
            return value & _MASK, at
        shift += 7
    raise MalformedError("a number does not end")


def as_int(value: Value) -> int:
    """The value of a field that must be a number."""
    if isinstance(value, int):
        return value
    raise MalformedError("a number was expected, and a byte string was found")


def as_bytes(value: Value) -> bytes:
    """The value of a field that must be a byte string."""
    if isinstance(value, bytes):
        return value
    raise MalformedError("a byte string was expected, and a number was found")


def as_text(value: Value) -> str:
    """The value of a field that must be a text; `MalformedError` if it is none."""
    try:
        return as_bytes(value).decode()
    except UnicodeDecodeError as error:
        raise MalformedError("a text is not UTF-8") from error
