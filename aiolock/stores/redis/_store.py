"""The Redis store: each operation of the protocol is one call of one script."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Final

from redis.asyncio.connection import ConnectionPool

from aiolock._adapters import ByMethods
from aiolock._turns import turns
from aiolock.errors import StoreError
from aiolock.protocol import (
    FEW,
    WAS_ABSENT,
    Answer,
    Form,
    Page,
    Posted,
    Renewal,
    ReportHandoff,
    Status,
    WaiterId,
)
from aiolock.stores.redis import _replies
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis._errors import code_of
from aiolock.stores.redis._reading import FIRST, read
from aiolock.stores.redis._scripts import KEPT, bulk
from aiolock.stores.redis._session import Session

_NEWCOMER: Final = bulk(0)
"""The ticket of a newcomer, which has none."""
_PAGE: Final = 1000
"""Keys that the server looks at for each page of a snapshot: less than a millisecond."""
_FOREIGN: Final = "WRONGTYPE"
"""The error for a key that has a name of ours, but that others have written."""
_ASKED: Final = 3
"""Units of work to ask for a status: see `Turns`."""
_CLOSES: Final = bulk(1)
_CLOSES_AS_LOST: Final = bulk(2)
_CLOSES_NOTHING: Final = bulk(0)
_GIVEN_BACK: Final = bulk(0) + bulk(0)
"""The last arguments of a release: it does not close the lock, and no copies can come."""


class RedisStore(ByMethods, Session):
    """Locks on one Redis (or Valkey), through two connections: one for commands, one for pushes."""

    _resizes = itertools.count(1)
    """One counter for all stores, since a name of a cluster may move from one node to another."""

    def __init__(self, pool: ConnectionPool, prefix: str) -> None:
        super().__init__(pool, prefix)
        self._heads = lru_cache(maxsize=4096)(self._encode_head)

    # The operations

    def acquire(
        self,
        name: str,
        waiter: WaiterId,
        form: Form,
        ttl: int,
        *,
        ticket: int,
        wait: bool,
        max_waiters: int,
    ) -> asyncio.Future[Answer]:
        who = self._text(name, waiter, form)
        head = self._heads(name, ttl, form.closes, max_waiters)
        own = f"${len(who)}\r\n{who}\r\n".encode("ascii")
        newcomer = wait and not ticket
        place = _NEWCOMER if newcomer else bulk(ticket if wait else -1)
        joins = newcomer and form.plain and not (form.priority or max_waiters)
        script, self._beating = scripts.BEAT if self._beating else scripts.ACQUIRE, False
        return self._pipe.call(
            script,
            10,
            head + own + place,
            must_run=False,
            expires=True,
            waiter="" if ticket else who,  # only a newcomer's question may be left unsent
            joins=head if joins else None,
        )

    def release(
        self,
        name: str,
        waiter: WaiterId,
        form: Form,
        fence: int,
        *,
        entered: bool = True,
        lost: bool = False,
    ) -> asyncio.Future[int]:
        who = self._text(name, waiter, form)
        if not fence and self._pipe.forget(who):
            unsent: asyncio.Future[int] = self._loop.create_future()
            unsent.set_result(WAS_ABSENT)
            return unsent
        grant = f"${len(who)}\r\n{who}\r\n${len(str(fence))}\r\n{fence}\r\n".encode("ascii")
        arguments = self._names.three(name) + grant + self._channels
        if fence and not entered:
            # A grant that came too late: its waiter asks again, so it must not be marked as gone.
            return self._pipe.call(scripts.RELEASE, 9, arguments + _GIVEN_BACK)
        if entered and form.closes:
            arguments += _CLOSES_AS_LOST if lost else _CLOSES
        else:
            arguments += _CLOSES_NOTHING
        return self._pipe.call(scripts.RELEASE, 8, arguments, leaves_tombstone=True)

    def report_handoff(self, passed: ReportHandoff) -> asyncio.Future[int]:
        name, form, fence, via = passed.name, passed.form, passed.fence, passed.via
        grants = (
            f"{self._text(name, passed.source, form)}:{passed.source_fence}",
            f"{self._text(name, passed.target, form)}:{fence}",
        )
        others = [self._text(name, each, form) for each in via]
        values = (*grants, str(fence), str(form.claim), *others)
        encoded = "".join([f"${len(value)}\r\n{value}\r\n" for value in values]).encode("ascii")
        arguments = self._names.three(name) + encoded
        return self._pipe.call(scripts.PASS, 8 + len(via), arguments, expires=True)

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool | None]]:
        if self._slots_apart and len(renewals) > 1:
            return asyncio.ensure_future(together([self._renew([each]) for each in renewals]))
        return self._renew(renewals)

    def _renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool | None]]:
        keys = [self._names.holders(renewal.name) for renewal in renewals]
        values = [
            bulk(f"{self._text(each.name, each.waiter, each.form)}:{each.fence}") + bulk(each.ttl)
            for each in renewals
        ]
        arguments = b"".join((bulk(len(keys)), *keys, *values))
        return self._pipe.call(scripts.RENEW, 1 + 3 * len(keys), arguments, expires=True)

    def status(self, name: str, *, waiters: bool = True) -> asyncio.Future[Status]:
        return asyncio.ensure_future(self._status(name, waiters=waiters))

    def snapshot(self, start: str = "") -> asyncio.Future[Page]:
        return asyncio.ensure_future(self._snapshot(start))

    def finish(
        self, name: str, waiter: WaiterId, form: Form, fence: int, remember: int
    ) -> asyncio.Future[int]:
        values = b"".join(map(bulk, (self._text(name, waiter, form), fence, remember)))
        arguments = self._names.three(name) + values + self._channels
        return self._pipe.call(scripts.FINISH, 8, arguments, leaves_tombstone=True)

    def request(self, name: str) -> asyncio.Future[int]:
        arguments = bulk(1) + self._names.holders(name) + self._channels
        return self._pipe.call(scripts.REQUEST, 3, arguments, expires=True)

    def downgrade(self, name: str, waiter: WaiterId, form: Form, fence: int) -> asyncio.Future[int]:
        grant = bulk(self._text(name, waiter, form)) + bulk(fence)
        arguments = self._names.three(name) + grant + self._channels
        return self._pipe.call(scripts.DOWNGRADE, 7, arguments)

    def resize(self, name: str, declared: int, limit: int, remember: int) -> asyncio.Future[int]:
        values = b"".join(map(bulk, (declared, limit, remember)))
        token = bulk(f"{self._client}.{next(self._resizes)}")
        arguments = self._names.three(name) + values + self._channels + token
        return self._pipe.call(scripts.RESIZE, 9, arguments, expires=True)

    def post(
        self, name: str, count: int, *, token: str, declared: int, value: str, remember: int
    ) -> asyncio.Future[int]:
        keys = (4, *self._names.keys(name), self._names.value(name))
        values = (token, count, declared, value, remember)
        arguments = b"".join(map(bulk, keys + values)) + self._channels
        return self._pipe.call(scripts.POST, 11, arguments, expires=True)

    def read(self, name: str) -> asyncio.Future[Posted]:
        keys = (2, self._names.keys(name)[0], self._names.value(name))
        return self._pipe.call(scripts.READ, 3, b"".join(map(bulk, keys)))

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        values = b"".join(map(bulk, fences))
        arguments = self._names.three(name) + self._channels + values
        return self._pipe.call(scripts.BREAK, 5 + len(fences), arguments)

    def _encode_head(self, name: str, ttl: int, closes: int, max_waiters: int) -> bytes:
        """The keys and the arguments that are the same for every waiter of a lock."""
        values = bulk(ttl) + bulk(ttl + KEPT + closes) + bulk(max_waiters)
        return self._names.three(name) + values + self._channels

    def _ask_for_status(  # noqa: PLR0917  # as `Ask`
        self, name: str, waiters: int, ticket: str, holders: int, end: str, grant: bytes
    ) -> asyncio.Future[Any]:
        keys = b"".join(map(bulk, (2, *self._names.keys(name)[:2])))
        most = b"".join(map(bulk, (waiters, ticket, holders, end, grant)))
        return self._pipe.call(scripts.STATUS, 9, keys + self._channels + most)

    async def _status(self, name: str, *, waiters: bool) -> Status:
        if waiters:
            return await self._read(name, self._ask_for_status(name, *FIRST))
        seen = _replies.Seen(name)
        part = seen.read(await self._ask_for_status(name, 0, "-inf", FEW, "", b""))
        return replace(seen.status(), more_holders=seen.holding - part.holders)

    async def _read(self, name: str, first: asyncio.Future[Any]) -> Status:
        return await read(_replies.Seen(name), partial(self._ask_for_status, name), first)

    async def _snapshot(self, start: str) -> Page:
        own = self._own_keys()
        values = (len(own), *own, start or 0, self._names.pattern, _PAGE)
        arguments = b"".join(map(bulk, values))
        cursor, keys = await self._pipe.call(scripts.LIST, len(values), arguments)
        asked, statuses = dict[str, asyncio.Future[Any]](), list[Status]()
        try:
            for key in keys:
                name = self._names.name(key)
                if name not in asked:
                    await turns().take(_ASKED)
                    asked[name] = self._ask_for_status(name, *FIRST)
            for name, first in asked.items():
                try:
                    statuses.append(await self._read(name, first))
                except StoreError as error:
                    cause = error.__cause__
                    if not isinstance(cause, Exception) or code_of(cause) != _FOREIGN:
                        raise
        finally:
            for first in asked.values():
                if not first.cancel() and not first.cancelled():
                    first.exception()  # it is raised for the first of them
        return Page(statuses, "" if cursor == "0" else cursor)


async def together(parts: Sequence[asyncio.Future[list[bool | None]]]) -> list[bool | None]:
    """The answers of renewals of one lease each, as those of one: None for each that has failed.

    If all of them fail, so does this.
    """
    await asyncio.wait(parts)
    if all(part.exception() for part in parts):
        await parts[0]  # raises it
    return [None if part.exception() else part.result()[0] for part in parts]
