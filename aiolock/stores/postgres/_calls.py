"""Each operation of a store as one call of a function in the database."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiolock.protocol import (
    BREAK_UNKNOWN,
    WAS_ABSENT,
    WAS_UNKNOWN,
    Acquire,
    Adopt,
    Answer,
    Break,
    Detach,
    Discard,
    Downgrade,
    Finish,
    Granted,
    Post,
    Posted,
    ReadPosted,
    Release,
    Renew,
    RequestRelease,
    Resize,
)
from aiolock.stores.postgres import _codec as codec
from aiolock.stores.postgres._codec import Value, number, numbers
from aiolock.trees import MakeFence

Decode = Callable[[str, bool], Any]
"""A function that decodes an answer; it also gets whether an earlier copy may have been carried
out."""


class Call(NamedTuple):
    """A call of a function. It is about ``name``, or about none or several if that is empty.

    A ``must_run`` call is carried out even if its future is done. With ``expires``, or
    ``leaves_tombstone``, each copy has one more argument: `RetryWindow.not_after`, or
    `RetryWindow.tombstone`.
    """

    function: str
    name: str
    arguments: Sequence[Value]
    decode: Decode
    must_run: bool = True
    expires: bool = False
    leaves_tombstone: bool = False


_resizes: Final = itertools.count(1)


class Encoder:
    """Encodes the operations of one client."""

    def __init__(self, prefix: str, client: str) -> None:
        self._prefix = prefix
        self._client = client
        self._me = client.encode()

    def key(self, name: str) -> bytes:
        """The key of a name, as an argument."""
        return codec.bytea(codec.key(self._prefix, name))

    def acquire(self, asked: Acquire) -> Call:
        arguments = (
            *(self.key(asked.name), self._me, number(asked.waiter.seq), codec.form(asked.form)),
            *(number(asked.ttl), number(asked.ticket), number(asked.wait)),
            number(asked.max_waiters),
        )
        return Call("acquire", asked.name, arguments, _answer, must_run=False, expires=True)

    def release(self, asked: Release) -> Call:
        entered, fence = asked.entered, asked.fence
        arguments = (
            *(self.key(asked.name), self._me, number(asked.waiter.seq), number(fence)),
            None if entered and asked.lost else number(entered),
        )
        if fence and not entered:
            # A grant that came too late: its waiter asks again, so it must not be marked as gone.
            return Call("release", asked.name, (*arguments, b"0"), _was)
        return Call("release", asked.name, arguments, _was, leaves_tombstone=True)

    def renew(self, asked: Renew) -> Call:
        renewals = asked.renewals
        names = b",".join([b'"\\%b"' % self.key(renewal.name) for renewal in renewals])
        arguments = (
            *(b"{%b}" % names, self._me, numbers([renewal.waiter.seq for renewal in renewals])),
            numbers([renewal.fence for renewal in renewals]),
            numbers([renewal.ttl for renewal in renewals]),
        )
        return Call("renew", "", arguments, _held, expires=True)

    def finish(self, asked: Finish) -> Call:
        arguments = (
            *(self.key(asked.name), self._me, number(asked.waiter.seq)),
            *(number(asked.fence), number(asked.remember)),
        )
        return Call("finish", asked.name, arguments, _was, leaves_tombstone=True)

    def request(self, asked: RequestRelease) -> Call:
        arguments = (self.key(asked.name), self._me)
        return Call("request", asked.name, arguments, _asked, expires=True)

    def request_on(self, asked: RequestRelease, behind: int) -> Call:
        """The rest of a `request`: the holders with higher fences than that."""
        arguments = (self.key(asked.name), self._me, b"request %d" % behind)
        return Call("go_on", asked.name, arguments, _asked, expires=True)

    def go_on(self, name: str, rest: str) -> Call:
        """The rest of another call, see `codec.REST`."""
        return Call("go_on", name, (self.key(name), self._me, rest.encode(), b"0"), text)

    def downgrade(self, asked: Downgrade) -> Call:
        arguments = (
            *(self.key(asked.name), self._me),
            *(number(asked.waiter.seq), number(asked.fence)),
        )
        return Call("downgrade", asked.name, arguments, count)

    def detach(self, asked: Detach) -> Call:
        arguments = (
            *(self.key(asked.name), self._me, number(asked.waiter.seq), number(asked.fence)),
            *(asked.key.encode(), number(asked.ttl)),
        )
        return Call("detach", asked.name, arguments, count)

    def adopt(self, asked: Adopt) -> Call:
        arguments = (
            *(self.key(asked.name), self._me, number(asked.waiter.seq), number(asked.form.fixed)),
            *(number(asked.fence), asked.key.encode(), number(asked.ttl)),
        )
        return Call("adopt", asked.name, arguments, _adopted, must_run=False, expires=True)

    def discard(self, asked: Discard) -> Call:
        waiter, entered = asked.waiter, asked.entered
        arguments = (
            *(self.key(asked.name), waiter.client.encode(), number(waiter.seq)),
            *(number(asked.fence), None if entered and asked.lost else number(entered)),
        )
        return Call("release", asked.name, arguments, _was, leaves_tombstone=True)

    def resize(self, asked: Resize) -> Call:
        arguments = (
            *(self.key(asked.name), self._me, number(asked.declared), number(asked.limit)),
            *(number(asked.remember), f"{self._client}.{next(_resizes)}".encode()),
        )
        return Call("resize", asked.name, arguments, count, expires=True)

    def post(self, asked: Post) -> Call:
        arguments = (
            *(self.key(asked.name), self._me, number(asked.count), asked.token.encode()),
            *(number(asked.declared), codec.bytea(asked.value.encode()), number(asked.remember)),
        )
        return Call("post", asked.name, arguments, count, expires=True)

    def make_fence(self, asked: MakeFence) -> Call:
        return Call("make_fence", asked.name, (self.key(asked.name),), count)

    def read(self, asked: ReadPosted) -> Call:
        return Call("read", asked.name, (self.key(asked.name),), _posted)

    def break_(self, asked: Break) -> Call:
        arguments = (self.key(asked.name), self._me, numbers(asked.fences))
        return Call("break_", asked.name, arguments, _broken)


ENCODE: Final[Mapping[type, Callable[[Encoder, Any], Call]]] = {
    Acquire: Encoder.acquire,
    Release: Encoder.release,
    Renew: Encoder.renew,
    Finish: Encoder.finish,
    Downgrade: Encoder.downgrade,
    Detach: Encoder.detach,
    Adopt: Encoder.adopt,
    Discard: Encoder.discard,
    Resize: Encoder.resize,
    Post: Encoder.post,
    MakeFence: Encoder.make_fence,
    ReadPosted: Encoder.read,
    Break: Encoder.break_,
}
"""By the type of the operation; those that are not here are more than one call, or none."""


def text(text: str, _: bool) -> str:  # noqa: FBT001  # as `Decode`, and so are those below
    """The answer as it is."""
    return text


def count(text: str, _: bool) -> int:  # noqa: FBT001
    """A number."""
    return int(text)


def _asked(text: str, _: bool) -> tuple[int, int]:  # noqa: FBT001
    return codec.asked(text)


def _answer(text: str, _: bool) -> Answer:  # noqa: FBT001
    return codec.answer(text)


def _adopted(text: str, _: bool) -> Granted | None:  # noqa: FBT001
    return codec.adopted(text)


def _posted(text: str, _: bool) -> Posted:  # noqa: FBT001
    return codec.posted(text)


def _held(text: str, _: bool) -> list[bool]:  # noqa: FBT001
    return codec.held(text)


def _was(text: str, again: bool) -> int:  # noqa: FBT001
    """Decode a release or the like: the first copy may have done what the second finds done."""
    was = int(text)
    return WAS_UNKNOWN if again and was == WAS_ABSENT else was


def _broken(text: str, again: bool) -> int:  # noqa: FBT001
    """Decode a break: the first copy may have broken what the second does not find."""
    broken = int(text)
    return BREAK_UNKNOWN if again and not broken else broken
