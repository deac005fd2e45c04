"""The store on a Redis Cluster: what of an operation is more than one command to one master."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import Any, Final, TypeVar

from aiolock.copying import Uncopyable
from aiolock.protocol import (
    Acquire,
    Answer,
    Busy,
    Deliver,
    Operation,
    Page,
    Participant,
    ReadPage,
    ReadStatus,
    Release,
    Renew,
    Status,
)
from aiolock.store import Features
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._protocol import PROTOCOL
from aiolock.stores.redis._store import one_by_one
from aiolock.stores.redis.cluster._masters import Masters
from aiolock.stores.redis.cluster._metadata import Metadata
from aiolock.stores.redis.cluster._pending import copied
from aiolock.stores.redis.cluster._seeds import Seeds
from aiolock.stores.redis.cluster._slots import slot_of, slot_of_key

Value = TypeVar("Value")

_RESTARTS: Final = 3
"""How often a snapshot begins anew because slots have moved."""


class ClusterStore(Uncopyable):
    """Locks on all masters of a Redis Cluster, through two connections to each that is used."""

    def __init__(self, seeds: Seeds, prefix: str) -> None:
        self._seeds = seeds
        self._prefix = prefix
        self._names = Names(prefix)
        self._metadata = Metadata(self._metadata_of)
        self._masters: Masters | None = None
        # By slot: renewals of two slots must not wait for each other, even at one master. One of
        # the slots may move to another master meanwhile, and its answer be missing.
        self.features = Features(shard_of=slot_of, protocols=self._protocols)

    def _protocols(self) -> tuple[int, ...]:
        """Ours, and those of other clients at the masters that we use."""
        nodes = self._masters.topology.masters if self._masters is not None else ()
        return PROTOCOL, *sorted({each for node in nodes for each in node.others})

    def __repr__(self) -> str:
        return f"<ClusterStore {self._seeds} prefix={self._prefix!r}>"

    @property
    def masters(self) -> Masters:
        """Those of the last opening."""
        assert self._masters is not None, "it was never opened"
        return self._masters

    async def open(self, client: str, deliver: Deliver) -> None:
        self._masters = masters = Masters(self._seeds, self._prefix, client, deliver)
        self._router = router = masters.router
        self._table: dict[type[Operation[Any]], Callable[[Any], asyncio.Future[Any]]] = {
            Acquire: self._acquire,
            Release: router.release,
            Renew: partial(one_by_one, router.renew),
            ReadStatus: self._read_status,
            ReadPage: self._read_page,
        }
        """The operations that are more than one command to one master."""
        await masters.open()

    async def aclose(self) -> None:
        if self._masters is not None:
            await self._masters.aclose()

    def submit(self, operation: Operation[Value]) -> asyncio.Future[Value]:
        return self._table.get(operation.__class__, self._router.submit)(operation)

    def _acquire(self, operation: Acquire) -> asyncio.Future[Answer]:
        answer = self._router.acquire(operation)
        return answer if operation.wait else plain(self._answered(answer))

    async def _answered(self, question: asyncio.Future[Answer]) -> Answer:
        answer = await question
        if isinstance(answer, Busy) and answer.holder is not None:
            parties = [answer.holder]
            await self._metadata.load(parties)
            (holder,) = await self._metadata.named(parties)
            return Busy(answer.until, holder)
        return answer

    def _read_status(self, operation: ReadStatus) -> asyncio.Future[Status]:
        return asyncio.ensure_future(self._status(operation))

    async def _status(self, operation: ReadStatus) -> Status:
        return await self._with_names(await self._router.submit(operation))

    async def _with_names(self, found: Status) -> Status:
        await self._metadata.load([*found.holders, *found.waiters])
        return replace(
            found,
            holders=await self._metadata.named(found.holders),
            waiters=await self._metadata.named(found.waiters),
        )

    def _metadata_of(self, client: str) -> asyncio.Future[Any]:
        slot = slot_of_key(self._names.client(client).encode())
        return self._router.at(slot, methodcaller("metadata", client))

    def _read_page(self, operation: ReadPage) -> asyncio.Future[Page]:
        return asyncio.ensure_future(self._page(self.masters, operation.start))

    async def _page(self, masters: Masters, start: str) -> Page:
        """One master after the other; from the start again if slots, and so names, have moved."""
        topology = masters.topology
        version, number, restarts, at = _read_start(start)
        if start and version != topology.version and restarts < _RESTARTS:
            number, restarts, at = 0, restarts + 1, ""
        version, nodes = topology.version, topology.masters
        if number >= len(nodes):  # there were more masters before
            return Page((), "")
        slot = min(topology.slots_of(nodes[number]))
        page = await self._router.at(slot, methodcaller("submit", ReadPage(at)))
        await self._metadata.load([each for status in page.statuses for each in _parties(status)])
        statuses = [await self._with_names(status) for status in page.statuses]
        number += not page.more
        if number == len(nodes):
            if restarts < _RESTARTS:
                masters.learn(await topology.ask())
            if version == topology.version or restarts == _RESTARTS:
                return Page(statuses, "")
        return Page(statuses, f"{version} {number} {restarts} {page.more}")


def plain(coroutine: Coroutine[Any, Any, Value]) -> asyncio.Future[Value]:
    """The coroutine's result as a plain future: unlike a task, it can be resolved earlier."""
    future: asyncio.Future[Value] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(coroutine)
    task.add_done_callback(partial(copied, future))
    future.add_done_callback(lambda _: task.cancel())
    return future


def _parties(status: Status) -> Iterator[Participant]:
    yield from status.holders
    yield from status.waiters


def _read_start(start: str) -> tuple[int, int, int, str]:
    if not start:
        return 0, 0, 0, ""
    version, number, restarts, at = start.split(" ", 3)
    return int(version), int(number), int(restarts), at
