"""The Lua scripts of the protocol, as they are sent: `lua/*.lua` with their includes put in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from importlib import resources
from typing import Any, Final, cast

from aiolock.store import (
    WAS_HOLDER,
    WAS_UNKNOWN,
    Answer,
    Busy,
    Differs,
    Done,
    Full,
    Granted,
    Posted,
    Queued,
)

_INCLUDE: Final = re.compile(r"^ *--@include (\w+)$", re.MULTILINE)
_COMMENT: Final = re.compile(r"^ *--.*\n|^ *\n", re.MULTILINE)


def _source(name: str) -> str:
    text = resources.files("aiolock.stores.redis").joinpath("lua", f"{name}.lua").read_text("utf-8")
    return _INCLUDE.sub(lambda include: _source(include[1]), text)


def bulk(text: object) -> bytes:
    """One argument, as it stands in a request."""
    data = str(text).encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


class Script:
    """One script: its source and how a call of it begins, by digest and in full."""

    def __init__(
        self,
        name: str,
        decode: Callable[[Any], Any],
        decode_again: Callable[[Any], Any] | None = None,
    ) -> None:
        """``decode_again`` is for the reply to a call that was sent more than once.

        Its own first copy may have done what the second finds done.
        """
        self.name = name
        self.decode = decode
        self.decode_again = decode_again or decode
        self.source = _COMMENT.sub("", _source(name))
        # Redis names a script by its SHA-1; nothing here rests on that being hard to forge.
        self.digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        self._by_digest = b"$7\r\nEVALSHA\r\n" + bulk(self.digest)
        self._in_full = b"$4\r\nEVAL\r\n" + bulk(self.source)
        self._heads: dict[int, bytes] = {}

    def call(self, count: int) -> bytes:
        """How a call with ``count`` arguments (the number of keys, the keys, the values) begins."""
        try:
            return self._heads[count]
        except KeyError:
            head = self._heads[count] = b"*%d\r\n%b" % (count + 2, self._by_digest)
            return head

    def call_in_full(self, count: int) -> bytes:
        """The same for a server that does not know the script, and remembers it from then on."""
        return b"*%d\r\n%b" % (count + 2, self._in_full)


def _answer(reply: Any) -> Answer:
    kind, *rest = cast(list[int], reply)
    return _ANSWERS[kind](*rest)


_ANSWERS: Final[tuple[Callable[..., Answer], ...]] = (Busy, Granted, Queued, Full, Done, Differs)
"""By the first number of the acquire script's reply."""


def _flags(reply: Any) -> list[bool]:
    return [flag == 1 for flag in reply]


def _was(reply: Any) -> int:
    return WAS_HOLDER if isinstance(reply, bytes) else int(reply)


def _posted(reply: Any) -> Posted:
    count, value = reply
    return Posted(count, value.decode())


def _as_is(reply: Any) -> Any:
    return reply


OPEN: Final = Script("open", bytes.decode)
CLIENTS: Final = Script("clients", _as_is)
ACQUIRE: Final = Script("acquire", _answer)
RELEASE: Final = Script("release", _was, lambda was: _was(was) or WAS_UNKNOWN)
RENEW: Final = Script("renew", _flags)
BREAK: Final = Script("break", int)
FINISH: Final = Script("finish", _was, lambda was: _was(was) or WAS_UNKNOWN)
REQUEST: Final = Script("request", int)
DOWNGRADE: Final = Script("downgrade", int)
RESIZE: Final = Script("resize", int)
POST: Final = Script("post", int)
READ: Final = Script("read", _posted)
STATUS: Final = Script("status", _as_is)
PRESENCE: Final = Script("presence", int)
