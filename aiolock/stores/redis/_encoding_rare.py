"""The encoding of operations that most acquisitions do without: see `_encoding`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
    RequestRelease,
    Resize,
    detached,
)
from aiolock.status import DETACHED
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis._codec import encode
from aiolock.stores.redis._encoding import Call, Texts
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._scripts import bulk
from aiolock.stores.redis._sharing import RELEASE, with_shares
from aiolock.trees import MakeFence


class RareEncoding:
    """The calls of one client's operations at one server, of the types that are rare."""

    _resizes = itertools.count(1)
    """One counter for all, since a name of a cluster may move from one node to another."""

    def __init__(self, names: Names, client: str, texts: Texts) -> None:
        self._names = names
        self._client = client
        self._text = texts.text
        self._channels = bulk(names.channels)
        self.calls: dict[type[Operation[Any]], Callable[[Any], Call]] = {
            Finish: self._finish,
            Downgrade: self._downgrade,
            Detach: self._detach,
            Adopt: self._adopt,
            Discard: self._discard,
            Resize: self._resize,
            Post: self._post,
            ReadPosted: self._read_posted,
            MakeFence: self._make_fence,
            Break: self._break,
        }
        """The function that encodes an operation, by the operation's type."""

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
        arguments = with_shares(self._names, name) + bulk(text) + bulk(fence) + self._channels
        arguments += bulk(1 if entered and form.closes else 0)
        return Call(RELEASE, 10, arguments, leaves_tombstone=True)

    def _resize(self, operation: Resize) -> Call:
        numbers = (operation.declared, operation.limit, operation.remember)
        values = b"".join(map(bulk, numbers))
        token = bulk(f"{self._client}.{next(self._resizes)}")
        arguments = with_shares(self._names, operation.name) + values + self._channels + token
        return Call(scripts.RESIZE, 11, arguments, expires=True)

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

    def _make_fence(self, operation: MakeFence) -> Call:
        return Call(scripts.MAKE_FENCE, 4, self._names.three(operation.name))

    def _break(self, operation: Break) -> Call:
        values = b"".join(map(bulk, operation.fences))
        arguments = with_shares(self._names, operation.name) + self._channels + values
        return Call(scripts.BREAK, 7 + len(operation.fences), arguments)


def _detached(form: Form, key: str) -> str:
    """The text of the waiter of a detached grant: nobody renews it, and its end is no death."""
    return encode(detached(key), replace(form, fixed=True), blind=False)
