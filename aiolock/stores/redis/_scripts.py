"""The Lua scripts of the protocol, as they are sent: `lua/*.lua` with their includes inserted."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from functools import cache, cached_property
from importlib import resources
from typing import Any, Final

from aiolock import protocol
from aiolock.stores import _member
from aiolock.stores.redis._replies import (
    adopted,
    answer,
    as_is,
    asked,
    broken_before,
    flags,
    listed,
    master,
    opened,
    posted,
    present,
    ranges,
    was,
    was_before,
)

KEPT: Final = 60_000
"""Milliseconds for which the holders are kept behind the end of the last lease: so that it is
reaped, and its client notified, rather than forgotten."""
_SHARED: Final = {
    protocol: "PRIORITY MAX_AHEAD STANDS_STILL LOOKERS CHECKS CHECKS_IF_FULL GRANTS PART KEEP_ALIVE"
    " LOOKED_AHEAD COST MOST_AHEAD",
    _member: "REMEMBERED LOOKED_AT COUNTED",
}
_CONSTANTS: Final = {"KEPT": str(KEPT)} | {
    name: str(getattr(module, name)) for module, names in _SHARED.items() for name in names.split()
}
"""The constants that the scripts have in common with the client and with other stores."""

_FOLDERS: Final = ("", "shares/", "quorum/")
_INCLUDE: Final = re.compile(r"^--@include ([\w/]+)\n", re.MULTILINE)
_FUNCTION: Final = re.compile(r"^local function .*\n", re.MULTILINE)
_CONSTANT: Final = re.compile(
    r"^local ([A-Z_]+) = (KEYS\[\d\]|ARGV\[\d\]|'[^']*'|[\d.e]+)(?: --.*)?\n", re.MULTILINE
)
_NAMED: Final = re.compile(r"\b[A-Z_]+\b")
_CALL: Final = re.compile(r"redis\.p?call\([^()]*\)")
_LITERAL: Final = re.compile(r"(?<=, )-?\d+(?=[,)])")
_SHARES: Final = re.compile(r"(?m)^( *)if SHARES then\n(\1 .*\n)*\1end\n|^--@include shares/.*\n")
"""What does nothing in a script without the keys of shares."""
_COMMENT: Final = re.compile(r"^ *--(?!@include ).*\n|^ *\n", re.MULTILINE)


def _files() -> dict[str, str]:
    """The texts of all files, by their names without suffix.

    All at once, at import: the package may be replaced while the program runs, and its scripts must
    be those of this version.
    """
    folder = resources.files("aiolock.stores.redis") / "lua"
    return {
        f"{within}{file.name.removesuffix('.lua')}": file.read_text("utf-8")
        for within in _FOLDERS
        for file in folder.joinpath(within).iterdir()
        if file.name.endswith(".lua")
    }


_FILES: Final = _files()


def _source(name: str, *, shares: bool = False, **instead: str) -> str:
    """The text of a script: includes inserted, and constants replaced by their values.

    A constant that every function uses would otherwise be an upvalue of each of them. Making those
    costs more than the whole release of a free lock. A number among the arguments of a command
    becomes a text: the server would make one of it on each call, and a command that is given two
    numbers takes twice as long. ``shares``: it has the keys of shares. ``instead``: other values of
    some constants.
    """
    constants = dict(_CONSTANTS)
    text = _included(name, set(), constants, shares=shares)
    constants |= instead
    text = _NAMED.sub(lambda found: constants.get(found[0], found[0]), text)
    return _CALL.sub(lambda call: _LITERAL.sub(r"'\g<0>'", call[0]), text)


def _included(name: str, known: set[str], constants: dict[str, str], *, shares: bool) -> str:
    """A file with its includes inserted, except those that are already ``known`` there.

    Its constants are added to the others.

    The includes of a script are inserted where they are named. Those of a function go inside that
    function: they are local to it, and cost nothing until it is called.
    """
    text, own = _read(name)
    text = text if shares else _SHARES.sub("", text)
    constants.update(own)
    function = _FUNCTION.search(text)
    if function is not None:
        known = set(known)
    known.add(name)

    def put_in(include: re.Match[str]) -> str:
        included = include[1]
        if included in known:
            return ""
        source = _included(included, known, constants, shares=shares)
        known.add(included)
        return source

    if function is None:
        return _INCLUDE.sub(put_in, text)
    inner = "".join(map(put_in, _INCLUDE.finditer(text)))
    return _INCLUDE.sub("", text[: function.end()]) + inner + text[function.end() :]


@cache
def _read(name: str) -> tuple[str, dict[str, str]]:
    """A file without its comments and constants, and the constants.

    Once for each file: some are in all scripts.
    """
    text = _FILES[name]
    return _COMMENT.sub("", _CONSTANT.sub("", text)), dict(_CONSTANT.findall(text))


def bulk(text: object) -> bytes:
    """One argument, encoded for a request."""
    data = text if isinstance(text, bytes) else str(text).encode()
    return b"$%d\r\n%b\r\n" % (len(data), data)


def command(*words: object) -> bytes:
    """A request."""
    return b"*%d\r\n%b" % (len(words), b"".join(map(bulk, words)))


class Script:
    """One script: its source and how a call of it begins, by digest and in full.

    They are made when the script is called first: a program uses a few of these scripts, and to
    make all of them took a quarter of the time to import the store.
    """

    def __init__(
        self,
        name: str,
        decode: Callable[[Any], Any],
        decode_again: Callable[[Any], Any] | None = None,
        *,
        pushes: bool = False,
        shares: bool = False,
    ) -> None:
        """``decode_again`` decodes the reply to a call that was sent more than once.

        The first copy may have done what the second finds done. ``pushes``: a reply that is a text
        is a push to this client. ``shares``: it is called with the keys of shares as well.
        """
        self.name = name
        self.pushes = pushes
        self.shares = shares
        self.decode = decode
        self.decode_again = decode_again or decode
        self.heads: dict[int, bytes] = _Heads(self)
        """The head of a call by the number of arguments: of the keys' number, the keys, and the
        values."""

    @cached_property
    def source(self) -> str:
        """Its text, as it is sent."""
        return _source(self.name, shares=self.shares)

    @cached_property
    def digest(self) -> str:
        """By which Redis knows it, its SHA-1; nothing here depends on that being hard to forge."""
        return hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    def call_in_full(self, count: int) -> bytes:
        """The head of a call to a server that does not know the script yet, and then learns it."""
        return b"*%d\r\n$4\r\nEVAL\r\n%b" % (count + 2, bulk(self.source))


class _Heads(dict[int, bytes]):
    """The heads of the calls of one script, made when they are first needed."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def __missing__(self, count: int) -> bytes:
        digest = bulk(self._script.digest)
        head = self[count] = b"*%d\r\n$7\r\nEVALSHA\r\n%b" % (count + 2, digest)
        return head


OPEN: Final = Script("open", opened)
ACQUIRE: Final = Script("acquire", answer)
ACQUIRE_SEVERAL: Final = Script("acquire_several", as_is)
ACQUIRE_HEARTBEAT: Final = Script("acquire_heartbeat", answer)
RELEASE: Final = Script("release", was, was_before, pushes=True)
REPORT_HANDOFF: Final = Script("report_handoff", was, was_before)
RENEW: Final = Script("renew", flags)
BREAK: Final = Script("break", int, broken_before, shares=True)
FINISH: Final = Script("finish", was, was_before)
REQUEST: Final = Script("request", asked)
DOWNGRADE: Final = Script("downgrade", int)
DETACH: Final = Script("detach", int)
ADOPT: Final = Script("adopt", adopted)
RESIZE: Final = Script("resize", int, shares=True)
POST: Final = Script("post", int)
READ: Final = Script("read", posted)
MAKE_FENCE: Final = Script("make_fence", int)
GO_ON: Final = Script("go_on", int, shares=True)
VOTES_GO_ON: Final = Script("quorum/go_on", int)
STATUS: Final = Script("status", as_is)
LIST: Final = Script("list", listed)
PRESENCE: Final = Script("presence", present)
BARRIER: Final = Script("barrier", master)
METADATA: Final = Script("metadata", as_is)
SLOTS: Final = Script("slots", ranges)
