"""The encoding of operations: the script of each, and its arguments."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from aiolock.protocol import (
    Adopt,
    Break,
    Detach,
    Discard,
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
    detached,
)
from aiolock.status import DETACHED
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis._codec import encode, stem
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._scripts import KEPT, Script, bulk

_MOST_STEMS: Final = 1024
"""Forms that are kept encoded."""

Tag = Callable[[str, WaiterId, str], str]
"""A function that changes the text of a waiter for a name."""


class Texts:
    """The texts of one client's waiters (see `_codec`), of which each form is encoded once."""

    def __init__(self, client: str, *, blind: bool, tag: Tag | None = None) -> None:
        """``blind``: the client's listeners cannot be counted: its waiters never count as dead."""
        self._client = client
        self._blind = blind
        self.tag = tag
        # By the id of a form, which is kept with it: hashing the form would take longer.
        self._stems: dict[int, tuple[Form, str]] = {}

    def stem(self, form: Form) -> str:
        """The beginning of the texts of all waiters of this form; their number follows."""
        known = self._stems.get(id(form))
        if known is None:
            if len(self._stems) >= _MOST_STEMS:
                self._stems.clear()
            known = self._stems[id(form)] = form, stem(form, self._client, blind=self._blind)
        return known[1]

    def text(self, name: str, waiter: WaiterId, form: Form) -> str:
        """The text of a waiter for a name."""
        text = f"{self.stem(form)}{waiter.seq}"
        return text if self.tag is None else self.tag(name, waiter, text)

    def many(self, name: str, waiters: Sequence[WaiterId], form: Form) -> list[str]:
        """The texts of several waiters of one form."""
        stem, tag = self.stem(form), self.tag
        if tag is None:
            return [f"{stem}{waiter.seq}" for waiter in waiters]
        return [tag(name, waiter, f"{stem}{waiter.seq}") for waiter in waiters]


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

    def __init__(self, names: Names, client: str, texts: Texts) -> None:
        self._names = names
        self._client = client
        self._texts, self._text = texts, texts.text
        self._channels = bulk(names.channels)
        self.head = lru_cache(maxsize=4096)(self._head)
        self.calls: Mapping[type[Operation[Any]], Callable[[Any], Call]] = {
            ReportHandoff: self.report_handoff,
            Renew: self._renew,
            Finish: self._finish,
            Downgrade: self._downgrade,
            Detach: self._detach,
            Adopt: self._adopt,
            Discard: self._discard,
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

    def report_handoff(self, operation: ReportHandoff) -> Call:
        """One report of several hand-offs."""
        name, form, fence, via = operation.name, operation.form, operation.fence, operation.via
        source, *others = self._texts.many(name, [operation.source, *via], form)
        grants = f"{source}:{operation.source_fence}", f"{others[-1]}:{fence}"
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

    def _detach(self, operation: Detach) -> Call:
        name, form, fence = operation.name, operation.form, operation.fence
        who = self._text(name, operation.waiter, form)
        values = (f"{who}:{fence}", f"{_detached(form, operation.key)}:{fence}", operation.ttl)
        arguments = bulk(1) + self._names.holders(name) + b"".join(map(bulk, values))
        return Call(scripts.DETACH, 5, arguments)

    def _adopt(self, operation: Adopt) -> Call:
        name, form = operation.name, operation.form
        token = f"{_detached(form, operation.key)}:{operation.fence}"
        values = (token, self._text(name, operation.waiter, form), operation.ttl)
        arguments = self._names.three(name) + b"".join(map(bulk, values))
        return Call(scripts.ADOPT, 7, arguments, expires=True)

    def _discard(self, operation: Discard) -> Call:
        name, waiter, form, fence, entered, _ = operation
        text = _detached(form, waiter.client.removeprefix(DETACHED))
        arguments = self._names.three(name) + bulk(text) + bulk(fence) + self._channels
        arguments += bulk(1 if entered and form.closes else 0)
        return Call(scripts.RELEASE, 8, arguments, leaves_tombstone=True)

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


def _detached(form: Form, key: str) -> str:
    """The text of the waiter of a detached grant: nobody renews it, and its end is no death."""
    return encode(detached(key), replace(form, fixed=True), blind=False)
