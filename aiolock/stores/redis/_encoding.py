"""The encoding of operations: the script of each, and its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from aiolock.protocol import (
    Form,
    Operation,
    Renew,
    ReportHandoff,
    WaiterId,
)
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis._codec import stem
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

    def __init__(self, names: Names, texts: Texts) -> None:
        self._names = names
        self._texts, self._text = texts, texts.text
        self._channels = bulk(names.channels)
        self.head = lru_cache(maxsize=4096)(self._head)
        self.calls: dict[type[Operation[Any]], Callable[[Any], Call]] = {
            ReportHandoff: self.report_handoff,
            Renew: self._renew,
        }
        """The function that encodes an operation, by the operation's type; see also
        `_encoding_rare`."""

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
