"""Locks on a Redis Cluster: each operation goes to the master that has the slot of its name.

The client subscribes to its one channel on every master that it uses, by an ordinary SUBSCRIBE: the
script that grants a lock runs where the lock is, and counts the listeners there. The cluster also
sends each push to its other nodes, so a client gets it several times (`PushDeduplicator`). If that
is too much traffic, pushes can go by another channel: see `_sharded`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from aiolock._adapters import ByMethods
from aiolock._turns import turns
from aiolock.protocol import (
    WAS_ABSENT,
    Acquire,
    Answer,
    Break,
    Busy,
    Downgrade,
    Finish,
    Form,
    Page,
    Participant,
    Post,
    Posted,
    ReadPage,
    ReadPosted,
    ReadStatus,
    Release,
    Renew,
    Renewal,
    ReportHandoff,
    RequestRelease,
    Resize,
    Status,
    WaiterId,
)
from aiolock.store import Features
from aiolock.stores.redis._codec import RESERVED
from aiolock.stores.redis._masters import Masters
from aiolock.stores.redis._pending import copied
from aiolock.stores.redis._protocol import PROTOCOL
from aiolock.stores.redis._replies import said_of
from aiolock.stores.redis._seeds import Seeds
from aiolock.stores.redis._slots import slot_of, slot_of_key
from aiolock.stores.redis._store import together

Value = TypeVar("Value")

_MOST_KNOWN: Final = 1024
_TOGETHER: Final = 64
"""Clients that are asked for at a time."""
_RESTARTS: Final = 3
"""How often a snapshot begins anew because slots have moved."""


class ClusterStore(ByMethods, Masters):
    """Locks on all masters of a Redis Cluster, through two connections to each that is used."""

    def __init__(self, seeds: Seeds, prefix: str) -> None:
        super().__init__(seeds, prefix)
        # By slot: renewals of two slots must not wait for each other, even at one master. One of
        # the slots may move to another master meanwhile, and its answer be missing.
        self.features = Features(shard_of=slot_of, protocols=self._protocols)
        self._said: dict[str, bytes] = {}
        """The metadata of clients, by their ids."""

    def _protocols(self) -> tuple[int, ...]:
        return PROTOCOL, *self.others

    @property
    def others(self) -> tuple[int, ...]:
        """The protocols of other clients at the masters that we use, if not ours."""
        return tuple(sorted({each for node in self._topology.masters for each in node.others}))

    def __repr__(self) -> str:
        return f"<ClusterStore {self._seeds} prefix={self._prefix!r}>"

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
        answer = self._at(
            slot_of(name),
            lambda node: node.submit(
                Acquire(name, waiter, form, ttl, ticket=ticket, wait=wait, max_waiters=max_waiters)
            ),
            must_run=False,
            first=None if ticket else waiter,
        )
        return answer if wait else self._plain(self._answered(answer))

    def _plain(self, coroutine: Coroutine[Any, Any, Value]) -> asyncio.Future[Value]:
        """The coroutine's result as a plain future: unlike a task, it can be resolved earlier."""
        future: asyncio.Future[Value] = self._loop.create_future()
        task = asyncio.create_task(coroutine)
        task.add_done_callback(partial(copied, future))
        future.add_done_callback(lambda _: task.cancel())
        return future

    async def _answered(self, question: asyncio.Future[Answer]) -> Answer:
        answer = await question
        if isinstance(answer, Busy) and answer.holder is not None:
            (holder,) = await self._introduced([answer.holder])
            return Busy(answer.until, holder)
        return answer

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
        if self._first and (first := self._first.pop(waiter, None)) is not None:
            first.future.cancel()
            if not first.started:
                nothing: asyncio.Future[int] = self._loop.create_future()
                nothing.set_result(WAS_ABSENT)
                return nothing
        return self._at(
            slot_of(name),
            lambda node: node.submit(
                Release(name, waiter, form, fence, entered=entered, lost=lost)
            ),
        )

    def report_handoff(self, passed: ReportHandoff) -> asyncio.Future[int]:
        return self._at(slot_of(passed.name), lambda node: node.submit(passed))

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool | None]]:
        def renewed(renewal: Renewal) -> asyncio.Future[list[bool | None]]:
            return self._at(slot_of(renewal.name), lambda node: node.submit(Renew([renewal])))

        if len(renewals) == 1:
            return renewed(renewals[0])
        return asyncio.ensure_future(together([renewed(each) for each in renewals]))

    def status(self, name: str, *, waiters: bool = True) -> asyncio.Future[Status]:
        return asyncio.ensure_future(self._status(name, waiters=waiters))

    async def _status(self, name: str, *, waiters: bool) -> Status:
        found = await self._at(
            slot_of(name), lambda node: node.submit(ReadStatus(name, waiters=waiters))
        )
        return await self._with_names(found)

    async def _with_names(self, found: Status) -> Status:
        await self._load_metadata([*found.holders, *found.waiters])
        return replace(
            found,
            holders=await self._named(found.holders),
            waiters=await self._named(found.waiters),
        )

    async def _introduced(self, parties: Sequence[Participant]) -> tuple[Participant, ...]:
        """The participants with host and process, where their clients' keys are at another node."""
        await self._load_metadata(parties)
        return await self._named(parties)

    async def _load_metadata(self, parties: Sequence[Participant]) -> None:
        """Fetch the metadata of these clients; those of nodes that do not answer are left out."""
        take, unknown = turns().take, dict[str, None]()
        for each in parties:
            await take()
            if not each.host and each.client != RESERVED and each.client not in self._said:
                unknown[each.client] = None
        asked = list(unknown)
        for start in range(0, len(asked), _TOGETHER):
            some = asked[start : start + _TOGETHER]
            answers = await asyncio.gather(*map(self._who, some), return_exceptions=True)
            for client, metadata in zip(some, answers, strict=True):
                # Without an answer it stays unknown: it is for people only.
                if isinstance(metadata, bytes) and metadata:
                    if len(self._said) >= _MOST_KNOWN:
                        self._said.clear()
                    self._said[client] = metadata

    async def _named(self, parties: Sequence[Participant]) -> tuple[Participant, ...]:
        """The same, with the known metadata of their clients."""
        take, named = turns().take, list[Participant]()
        for each in parties:
            await take()
            metadata = None if each.host or each.client == RESERVED else self._said.get(each.client)
            named.append(each if metadata is None else said_of(each, metadata))
        return tuple(named)

    def _who(self, client: str) -> asyncio.Future[Any]:
        slot = slot_of_key(self._names.client(client).encode())
        return self._at(slot, lambda node: node.who(client))

    def snapshot(self, start: str = "") -> asyncio.Future[Page]:
        return asyncio.ensure_future(self._snapshot(start))

    async def _snapshot(self, start: str) -> Page:
        """One master after the other; from the start again if slots, and so names, have moved."""
        topology = self._topology
        version, number, restarts, at = _read_start(start)
        if start and version != topology.version and restarts < _RESTARTS:
            number, restarts, at = 0, restarts + 1, ""
        version, masters = topology.version, topology.masters
        if number >= len(masters):  # there were more masters before
            return Page((), "")
        slot = min(topology.slots_of(masters[number]))
        page = await self._at(slot, lambda node: node.submit(ReadPage(at)))
        await self._load_metadata([each for status in page.statuses for each in _parties(status)])
        statuses = [await self._with_names(status) for status in page.statuses]
        number += not page.more
        if number == len(masters):
            if restarts < _RESTARTS:
                self._learn(await topology.ask())
            if version == topology.version or restarts == _RESTARTS:
                return Page(statuses, "")
        return Page(statuses, f"{version} {number} {restarts} {page.more}")

    def finish(
        self, name: str, waiter: WaiterId, form: Form, fence: int, remember: int
    ) -> asyncio.Future[int]:
        return self._at(
            slot_of(name), lambda node: node.submit(Finish(name, waiter, form, fence, remember))
        )

    def request(self, name: str) -> asyncio.Future[int]:
        return self._at(slot_of(name), lambda node: node.submit(RequestRelease(name)))

    def downgrade(self, name: str, waiter: WaiterId, form: Form, fence: int) -> asyncio.Future[int]:
        return self._at(
            slot_of(name), lambda node: node.submit(Downgrade(name, waiter, form, fence))
        )

    def resize(self, name: str, declared: int, limit: int, remember: int) -> asyncio.Future[int]:
        return self._at(
            slot_of(name), lambda node: node.submit(Resize(name, declared, limit, remember))
        )

    def post(
        self, name: str, count: int, *, token: str, declared: int, value: str, remember: int
    ) -> asyncio.Future[int]:
        return self._at(
            slot_of(name),
            lambda node: node.submit(
                Post(name, count, token=token, declared=declared, value=value, remember=remember)
            ),
        )

    def read(self, name: str) -> asyncio.Future[Posted]:
        return self._at(slot_of(name), lambda node: node.submit(ReadPosted(name)))

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        return self._at(slot_of(name), lambda node: node.submit(Break(name, fences)))


def _parties(status: Status) -> Iterator[Participant]:
    yield from status.holders
    yield from status.waiters


def _read_start(start: str) -> tuple[int, int, int, str]:
    if not start:
        return 0, 0, 0, ""
    version, number, restarts, at = start.split(" ", 3)
    return int(version), int(number), int(restarts), at
