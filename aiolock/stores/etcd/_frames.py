"""The frames of HTTP/2 (RFC 9113), as far as a client of gRPC needs them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE = 0, 1, 3, 4, 5
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 32
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS = 1, 2, 3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 4, 5
CANCEL, REFUSED_STREAM = 8, 7
WINDOW: Final = 65_535
"""Bytes that may be sent, of a stream and of all, before the receiver has said more."""
SIZE: Final = 16_384
"""Bytes of a frame, at most, before the receiver has said more: we never do."""
_HEAD: Final = struct.Struct(">IBI")
"""The payload's size in three bytes and the kind in one, flags, stream."""


class Frame(NamedTuple):
    """One frame."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class BrokenFrameError(ValueError):
    """The bytes are no frame, or one that must not be there."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """The bytes of a frame."""
    return _HEAD.pack(len(payload) << 8 | kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    """The frame that announces these settings."""
    pairs = [key.to_bytes(2, "big") + value.to_bytes(4, "big") for key, value in values.items()]
    return frame(SETTINGS, 0, 0, b"".join(pairs))


def window_update(stream: int, more: int) -> bytes:
    """The frame that lets the other side send so many bytes more."""
    return frame(WINDOW_UPDATE, 0, stream, more.to_bytes(4, "big"))


def reset(stream: int, code: int = CANCEL) -> bytes:
    """The frame that ends a stream."""
    return frame(RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def number(payload: bytes) -> int:
    """The number of 31 bits that a payload begins with."""
    if len(payload) < 4:  # noqa: PLR2004  # bytes
        raise BrokenFrameError("a frame is too short")
    return int.from_bytes(payload[:4], "big") & 0x7FFF_FFFF


def read_settings(payload: bytes) -> dict[int, int]:
    """The settings that the other side announces."""
    if len(payload) % 6:
        raise BrokenFrameError("a frame has a part of a setting")
    each = (payload[at : at + 6] for at in range(0, len(payload), 6))
    return {int.from_bytes(one[:2], "big"): int.from_bytes(one[2:], "big") for one in each}


def content(found: Frame) -> bytes:
    """The payload of data or headers, without padding and priority."""
    payload = found.payload
    end = len(payload)
    if found.flags & PADDED:
        if not payload or payload[0] >= len(payload):
            raise BrokenFrameError("a frame has more padding than bytes")
        end -= payload[0]
        payload = payload[1:end]
    if found.kind == HEADERS and found.flags & PRIORITY:
        payload = payload[5:]
    return payload


class Frames:
    """The frames in what arrives, in pieces of any size."""

    def __init__(self, most: int = SIZE) -> None:
        """``most``: the bytes that a frame may have."""
        self._data, self._most = bytearray(), most

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole now."""
        rest = self._data
        rest += data
        at, end = 0, len(rest)
        try:
            while end - at >= _HEAD.size:
                size, flags, stream = _HEAD.unpack_from(rest, at)
                kind, size = size & 255, size >> 8
                if size > self._most:
                    raise BrokenFrameError("a frame is larger than we allow")
                begin = at + _HEAD.size
                if end - begin < size:
                    break
                at = begin + size
                yield Frame(kind, flags, stream & 0x7FFF_FFFF, bytes(rest[begin:at]))
        finally:
            del rest[:at]
