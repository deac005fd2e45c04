"""The encoding of operations: the script of each, and its arguments."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from aiolock.protocol import (
    Break,
    Downgrade,
    Finish,
    Form,
    Operation,
    Post,
    ReadPosted,
    Renew,
    ReportHandoff,
    RequestRelease,
    Resize,
    WaiterId,
)
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis._codec import stem
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._scripts import KEPT, Script, bulk

_MOST_STEMS: Final = 1024
"""Forms that are kept encoded."""

Text = Callable[[str, WaiterId, Form], str]
"""A function that gives the text of a waiter for a name (see `_codec`)."""


def waiter_texts(client: str, *, blind: bool) -> Text:
    """The texts of one client's waiters; what does not depend on the waiter is encoded once.

    ``blind``: the client's listeners cannot be counted, so its waiters must never count as dead.
    """
    stems: dict[int, tuple[Form, str]] = {}
    # By the id of a form, which is kept with it: hashing the form would take longer.

    def text(_: str, waiter: WaiterId, form: Form) -> str:
        known = stems.get(id(form))
        if known is None:
            if len(stems) >= _MOST_STEMS:
                stems.clear()
            known = stems[id(form)] = form, stem(form, client, blind=blind)
        return f"{known[1]}{waiter.seq}"

    return text


class Call(NamedTuple):
    """One call of a script: see `Pipeline.call`."""

    script: Script
    argc: int
    arguments: bytes
    expires: bool = False
    leaves_tombstone: bool = False


class Encoding:
    """The calls of one client's operations at one server."""

    _resizes = itertools.count(1)
    """One counter for all, since a name of a cluster may move from one node to another."""

    def __init__(self, names: Names, client: str, text: Text) -> None:
        self._names = names
        self._client = client
        self._text = text
        self._channels = bulk(names.channels)
        self.head = lru_cache(maxsize=4096)(self._head)
        self.calls: Mapping[type[Operation[Any]], Callable[[Any], Call]] = {
            ReportHandoff: self._report_handoff,
            Renew: self._renew,
            Finish: self._finish,
            Downgrade: self._downgrade,
            Resize: self._resize,
            Post: self._post,
            ReadPosted: self._read_posted,
            Break: self._break,
        }
        """The function that encodes an operation, by the operation's type."""

    def _head(self, name: str, ttl: int, closes: int, max_waiters: int) -> bytes:
        """The keys and arguments of an `Acquire` that are the same for every waiter of a lock."""
        values = bulk(ttl) + bulk(ttl + KEPT + closes) + bulk(max_waiters)
        return self._names.three(name) + values + self._channels

    def _report_handoff(self, operation: ReportHandoff) -> Call:
        name, form, fence, via = operation.name, operation.form, operation.fence, operation.via
        grants = (
            f"{self._text(name, operation.source, form)}:{operation.source_fence}",
            f"{self._text(name, operation.target, form)}:{fence}",
        )
        others = [self._text(name, each, form) for each in via]
        values = (*grants, str(fence), str(form.claim), *others)
        encoded = "".join([f"${len(value)}\r\n{value}\r\n" for value in values]).encode("ascii")
        arguments = self._names.three(name) + encoded
        return Call(scripts.REPORT_HANDOFF, 8 + len(via), arguments, expires=True)

    def _renew(self, operation: Renew) -> Call:
        renewals = operation.renewals
        keys = [self._names.holders(renewal.name) for renewal in renewals]
        values = [
            bulk(f"{self._text(each.name, each.waiter, each.form)}:{each.fence}") + bulk(each.ttl)
            for each in renewals
        ]
        arguments = b"".join((bulk(len(keys)), *keys, *values))
        return Call(scripts.RENEW, 1 + 3 * len(keys), arguments, expires=True)

    def _finish(self, operation: Finish) -> Call:
        who = self._text(operation.name, operation.waiter, operation.form)
        values = b"".join(map(bulk, (who, operation.fence, operation.remember)))
        arguments = self._names.three(operation.name) + values + self._channels
        return Call(scripts.FINISH, 8, arguments, leaves_tombstone=True)

    def request_release(self, operation: RequestRelease, behind: tuple[bytes, bytes]) -> Call:
        """Ask those of the holders that come behind that place, the end of a lease and a grant."""
        place = b"".join(map(bulk, behind))
        arguments = bulk(1) + self._names.holders(operation.name) + self._channels + place
        return Call(scripts.REQUEST, 5, arguments, expires=True)

    def _downgrade(self, operation: Downgrade) -> Call:
        who = self._text(operation.name, operation.waiter, operation.form)
        grant = bulk(who) + bulk(operation.fence)
        arguments = self._names.three(operation.name) + grant + self._channels
        return Call(scripts.DOWNGRADE, 7, arguments)

    def _resize(self, operation: Resize) -> Call:
        numbers = (operation.declared, operation.limit, operation.remember)
        values = b"".join(map(bulk, numbers))
        token = bulk(f"{self._client}.{next(self._resizes)}")
        arguments = self._names.three(operation.name) + values + self._channels + token
        return Call(scripts.RESIZE, 9, arguments, expires=True)

    def _post(self, operation: Post) -> Call:
        name = operation.name
        keys = (4, *self._names.keys(name), self._names.value(name))
        posted = (operation.token, operation.count, operation.declared)
        values = (*posted, operation.value, operation.remember)
        arguments = b"".join(map(bulk, keys + values)) + self._channels
        return Call(scripts.POST, 11, arguments, expires=True)

    def _read_posted(self, operation: ReadPosted) -> Call:
        keys = (2, self._names.keys(operation.name)[0], self._names.value(operation.name))
        return Call(scripts.READ, 3, b"".join(map(bulk, keys)))

    def _break(self, operation: Break) -> Call:
        values = b"".join(map(bulk, operation.fences))
        arguments = self._names.three(operation.name) + self._channels + values
        return Call(scripts.BREAK, 5 + len(operation.fences), arguments)
