"""The header blocks of gRPC over HTTP/2: ours are made once, theirs are read once.

Neither side keeps a table of headers: we announce one of size 0. So a block of bytes always means
the same, and a server sends few of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from hpack import Decoder, HPACKError

_MANY: Final = 256
"""Blocks of a server that are kept: with a text in each, there may be any number of them."""
_PATH, _AUTHORITY = 4, 1
_POST, _HTTP, _HTTPS = b"\x83", b"\x86", b"\x87"
"""Of the static table of HPACK."""


class MalformedBlockError(ValueError):
    """The bytes are no headers."""


def request_block(
    path: str, authority: str, metadata: Sequence[tuple[str, str]], *, tls: bool
) -> bytes:
    """The headers of a request."""
    return b"".join(
        [
            _POST,
            _HTTPS if tls else _HTTP,
            _indexed(_PATH, path),
            _indexed(_AUTHORITY, authority),
            *[_literal(name, value) for name, value in (*_ALWAYS, *metadata)],
        ]
    )


_ALWAYS: Final = (("te", "trailers"), ("content-type", "application/grpc"))


def _indexed(name: int, value: str) -> bytes:
    """A header with a name of the static table, for no table of the receiver."""
    return bytes([name]) + _text(value)


def _literal(name: str, value: str) -> bytes:
    return b"\0" + _text(name) + _text(value)


def _text(value: str) -> bytes:
    data = value.encode("latin-1", "replace")
    return _length(len(data)) + data


def _length(number: int) -> bytes:
    """A number with a prefix of 7 bits."""
    if number < 127:  # noqa: PLR2004  # seven bits
        return bytes([number])
    number -= 127
    found = bytearray([127])
    while number > 127:  # noqa: PLR2004
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


class Blocks:
    """Reads the header blocks of one server."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        self._decoder.max_allowed_table_size = 0
        self._read = dict[bytes, Mapping[str, str]]()

    def read(self, block: bytes) -> Mapping[str, str]:
        """The headers in a block; `MalformedBlockError` if there are none."""
        found = self._read.get(block)
        if found is None:
            try:
                pairs = self._decoder.decode(block)
            except (HPACKError, UnicodeDecodeError) as error:
                raise MalformedBlockError(f"the headers cannot be read: {error}") from error
            found = {str(name): str(value) for name, value in pairs}
            if len(self._read) < _MANY:
                self._read[block] = found
        return found
