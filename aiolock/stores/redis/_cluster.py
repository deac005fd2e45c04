"""Locks on a Redis Cluster: each operation goes to the master that has the slot of its name.

The client is subscribed to its one channel on every master that it uses, by an ordinary SUBSCRIBE:
the script that hands a lock on runs where the lock is, and counts who listens there. The cluster
brings what is published to the other nodes as well, so that it comes several times (`Echoes`).
Where that is too much, pushes go by another channel: see `_sharded`.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

import anyio

from aiolock.errors import StoreError
from aiolock.store import (
    Answer,
    Busy,
    Form,
    Inbox,
    Page,
    Party,
    Pass,
    Posted,
    Renewal,
    Status,
    Waiter,
)
from aiolock.stores._links import Links
from aiolock.stores._opening import Opening
from aiolock.stores.redis._codec import NOBODY
from aiolock.stores.redis._command import Command
from aiolock.stores.redis._echoes import Echoes
from aiolock.stores.redis._errors import Refusal, code_of, is_half_done
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._node import Node
from aiolock.stores.redis._parked import Parked, copied
from aiolock.stores.redis._pipe import COMMAND_TIMEOUT
from aiolock.stores.redis._scripts import Range, said_of
from aiolock.stores.redis._seeds import Seeds
from aiolock.stores.redis._sharded import ShardedNode, Tags
from aiolock.stores.redis._slots import SLOTS, Address, Redirect, slot_of, slot_of_key
from aiolock.stores.redis._store import HEARTBEAT_TIMEOUT, RedisStore, together
from aiolock.stores.redis._topology import Topology

Value = TypeVar("Value")

NOW_AND_THEN: Final = 5.0
"""Seconds after which to ask for the slots again, while all is well: so long a new master may have
slots of ours, and take our waiters there for dead."""
_SOON: Final = 0.25
"""The same while a master cannot be reached: a replica may take its place."""
_LEAST: Final = 0.05
"""Seconds between two questions, whatever happens."""
_HOPS: Final = 4
"""So often a command is sent on at once, and then after a moment."""
_ASKED: Final = 30.0
"""Seconds for which a node is kept that has no slots, but is to get one."""
_MOST_KNOWN: Final = 1024
_RESTARTS: Final = 3
"""How often a snapshot begins anew because slots have moved."""


class ClusterStore:
    """Locks on all masters of a Redis Cluster, through two connections to each that is used."""

    def __init__(self, seeds: Seeds, prefix: str) -> None:
        self._seeds = seeds
        self._prefix = prefix
        self._names = Names(prefix)
        self._closing = True
        self._opening = Opening()
        self._following: asyncio.Task[None] | None = None
        self._topology = Topology(seeds, prefix)
        self._leaving = set[asyncio.Task[None]]()
        """Nodes that are gone, while they are being disconnected from."""
        self._homeless = list[Parked]()
        """What is about slots that no master has."""
        self._stranded = list[list[Command]]()
        """The same of what was sent to masters that had them; each of one slot."""
        self._limits = dict[Command, asyncio.TimerHandle]()
        """Of commands that no pipe looks after: until when they wait."""
        self._said: dict[str, bytes] = {}
        """What clients say of themselves, by their ids."""

    def __repr__(self) -> str:
        return f"<ClusterStore {self._seeds} prefix={self._prefix!r}>"

    # Opening and closing

    async def open(self, client: str, inbox: Inbox) -> None:
        self._closing = False
        self._client = client
        self._inbox = inbox
        self._links = Links(inbox)
        self._loop = asyncio.get_running_loop()
        self._echoes = Echoes(self._loop.time)
        self._tags = Tags()
        self._topology = Topology(self._seeds, self._prefix)
        self._news = asyncio.Event()
        self._asked: dict[Node, float] = {}
        """When a node was last named that may have no slots yet."""
        self._waits = False
        """Whether a waiter of ours has stood in a queue."""
        await self._opening.run(self._open(), self.aclose)

    async def _open(self) -> None:
        try:
            self._learn(await self._topology.ask())
            await self._open_first()
            if self._closing:  # and our cancellation was lost in a driver
                raise StoreError("the client was closed while it was opening")  # noqa: TRY301  # one place that cleans up
        except BaseException:
            self._closing = True
            with anyio.CancelScope(shield=True):
                await self._leave_all()
            raise
        self._links.observed = True
        self._following = asyncio.create_task(self._follow(), name="aiolock follow the cluster")

    async def _open_first(self) -> None:
        """Connect to the master that keeps what we say of ourselves, or to another if it is down.

        What cannot work at all fails here.
        """
        home = self._topology.owners[slot_of_key(self._names.client(self._client).encode())]
        others = [node for node in self._topology.masters if node is not home]
        random.shuffle(others)
        failure: StoreError | None = None
        for node in [home, *others] if home else others:
            try:
                await node.open_now(self._client, self._inbox)
            except StoreError as error:
                failure = failure or error
            else:
                break
        else:
            raise failure or StoreError("a cluster without a master")
        if home is not None:
            home.dial(self._client, self._inbox)

    async def aclose(self) -> None:
        if self._opening.under_way:
            self._closing = True
            await self._opening.end()  # which disconnects
        if self._closing:
            return
        self._closing = True
        self._links.observed = False
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await self._leave_all()

    async def _leave_all(self) -> None:
        nodes = self._topology.nodes
        parked = [each for node in nodes.values() for each in node.parked] + self._homeless
        if under_way := [each.future for each in parked if not each.future.done()]:
            await asyncio.wait(under_way, timeout=HEARTBEAT_TIMEOUT)
        for each in parked:
            each.give_up()
        self._homeless.clear()
        for task in list(self._leaving):
            task.cancel()
        if self._leaving:
            await asyncio.wait(self._leaving)
        # Again: what one answers last may lead to another, which is dialled for that.
        while left := [node for node in nodes.values() if not node.gone]:
            await asyncio.gather(*(node.leave() for node in left))
        nodes.clear()
        self._stranded.clear()
        for command in list(self._limits):
            self._give_up(command)

    # The slots

    async def _follow(self) -> None:
        """Ask for the slots when there is a reason to, and now and then."""
        while not self._closing:
            troubled = any(node.down or node.error for node in self._topology.nodes.values())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SOON if troubled or self._homeless else NOW_AND_THEN):
                    await self._news.wait()
            self._news.clear()
            # Where none answers: so it is said to whoever asks for something.
            with contextlib.suppress(StoreError):
                self._learn(await self._topology.ask())
            await asyncio.sleep(_LEAST)

    def is_missing(self) -> None:
        self._news.set()

    def _learn(self, found: Sequence[Range]) -> None:
        if self._closing:
            return
        owners: list[Node | None] = [None] * SLOTS
        for first, last, host, port in found:
            node = self._node_at((host, port))
            owners[first : last + 1] = [node] * (last + 1 - first)
        topology = self._topology
        for (old, new), slots in topology.replace(owners).items():
            if old.ready:
                new.takes_over = True
                new.dial(self._client, self._inbox)
            self._hand_on(old, slots)
        now = self._loop.time()
        masters = {*owners}
        for node in list(topology.nodes.values()):
            if node not in masters and self._asked.get(node, 0.0) < now - _ASKED:
                self._is_gone(node)
        for node in topology.nodes.values():
            node.slots_changed()
        if self._waits:
            self._dial_all()
        self._house_all()

    def _house_all(self) -> None:
        """What is about slots that no master had may find one now."""
        homeless, self._homeless = self._homeless, []
        for parked in homeless:
            self._park(parked)
        stranded, self._stranded = self._stranded, []
        for commands in stranded:
            self._go_to_owner(commands)

    def _node_at(self, address: Address) -> Node:
        node = self._topology.nodes.get(address)
        if node is None:
            node = self._make_node(address)
            self._topology.nodes[address] = node
        return node

    def _make_node(self, address: Address) -> Node:
        pool = self._seeds.pool(address)
        if self._seeds.sharded:
            return ShardedNode(pool, self._prefix, address, self, self._tags)
        return Node(pool, self._prefix, address, self)

    def _is_gone(self, node: Node) -> None:
        """It is no master any more: what it has not answered, others are asked."""
        served = node.ready
        del self._topology.nodes[node.address]
        self._asked.pop(node, None)
        self._hand_on(node)
        self._echoes.forget(node)
        self._links.up(str(node.address))
        leaving = asyncio.create_task(node.leave(), name="aiolock leave a node")
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        if served:
            self._inbox.reconnected()

    def _hand_on(self, node: Node, slots: set[int] | range = range(SLOTS)) -> None:
        commands, parked = node.take(slots)
        by_slot: dict[int, list[Command]] = {}
        for command in commands:
            by_slot.setdefault(command.slot, []).append(command)
        for of_slot in by_slot.values():
            self._go_to_owner(of_slot)
        for each in parked:
            self._park(each)

    def _go_to_owner(self, commands: list[Command]) -> None:
        """These of one slot go to the master that has it, once one has."""
        owner = self._topology.owners[commands[0].slot]
        if owner is not None:
            self._pass(commands, owner)
        else:
            self._limit(commands)
            self._stranded.append(commands)
            self._news.set()

    def _limit(self, commands: list[Command]) -> None:
        """They wait for no longer than any command, though no pipe looks after them."""
        for command in commands:
            if command not in self._limits and not command.future.done():
                until = command.born + COMMAND_TIMEOUT
                self._limits[command] = self._loop.call_at(until, self._give_up, command)
                command.future.add_done_callback(partial(self._limitless, command))

    def _limitless(self, command: Command, _: asyncio.Future[Any]) -> None:
        if (timer := self._limits.pop(command, None)) is not None:
            timer.cancel()

    def _give_up(self, command: Command) -> None:
        if not command.future.done():
            command.future.set_exception(self._unreachable(command.slot)(command.times == 0))

    # What the nodes say (see `Neighbours`)

    def redirected(self, node: Node, commands: list[Command], refusal: Refusal) -> None:
        redirect = Redirect.read(refusal)
        if redirect is None:
            node.hold(commands)
            if is_half_done(refusal):
                self._loop.call_soon(self._ask_anew, commands[0].key.decode())
            elif code_of(refusal) == "CLUSTERDOWN":
                self._news.set()
            return
        address = self._topology.reached((redirect.host or node.address[0], redirect.port))
        other = self._node_at(address)
        asking = redirect.code == "ASK"
        self._asked[other] = self._loop.time()
        if not asking:
            self._news.set()
            self._topology.assign(redirect.slot, other)
            other.takes_over = not other.ready
        self._pass(commands, other, asking=asking)

    def _pass(self, commands: list[Command], node: Node, *, asking: bool = False) -> None:
        hops = commands[0].hops = commands[0].hops + 1
        if not node.ready:
            self._limit(commands)
        node.dial(self._client, self._inbox)
        if hops % _HOPS or not node.ready:
            node.take_over(commands, asking=asking)
        else:
            for command in commands:
                command.asking = asking
            node.hold(commands)

    def is_ready(self, node: Node) -> None:
        self._links.up(str(node.address))
        if node.takes_over:
            node.takes_over = False
            self._inbox.reconnected()  # where we listen only now we were taken for dead

    def waits(self) -> None:
        if not self._waits:
            self._waits = True
            self._dial_all()

    def _dial_all(self) -> None:
        """A slot may move to any master, and where nobody listens for us we are taken for dead."""
        for node in self._topology.masters:
            node.dial(self._client, self._inbox)

    def slots_of(self, node: Node) -> frozenset[int]:
        return self._topology.slots_of(node)

    def link(self, node: Node, error: Exception | None) -> None:
        if error is not None:
            self._news.set()
            self._links.down(str(node.address), error)
        else:
            self._links.up(str(node.address))

    def is_new(self, node: Node, push: bytes) -> bool:
        return self._echoes.is_new(node, push)

    # The operations

    def _at(
        self,
        slot: int,
        start: Callable[[RedisStore], asyncio.Future[Value]],
        *,
        sure: bool = True,
    ) -> asyncio.Future[Value]:
        """Start it at the master that has this slot, once that serves us."""
        node = self._topology.owners[slot]
        if node is not None and node.ready:
            return start(node)
        parked = Parked(slot, start, self._unreachable(slot), sure=sure)
        if self._closing:
            parked.give_up()
        else:
            self._park(parked)
        return parked.future

    def _park(self, parked: Parked) -> None:
        node = self._topology.owners[parked.slot]
        if node is None:
            self._homeless.append(parked)
            self._news.set()
        elif node.ready:
            parked.go(node)
        else:
            node.park(parked)
            node.dial(self._client, self._inbox)

    def _unreachable(self, slot: int) -> Callable[[bool], Exception]:
        def error(refused: bool) -> Exception:  # noqa: FBT001  # called by `Parked` alone
            node = self._topology.owners[slot]
            why = node.error if node else None
            if self._closing:
                made = StoreError("the client was closed")
            elif node is None:
                made = StoreError(f"no node of the cluster has the slot {slot}: see CLUSTER SLOTS")
            else:
                where = f"{node.address[0]}:{node.address[1]}"
                made = StoreError(str(why) if why else f"Redis at {where} did not answer in time")
            made.__cause__ = why
            made.refused = refused
            return made

        return error

    def acquire(
        self,
        name: str,
        waiter: Waiter,
        form: Form,
        ttl: int,
        *,
        ticket: int,
        wait: bool,
        max_waiters: int,
    ) -> asyncio.Future[Answer]:
        answer = self._at(
            slot_of(name),
            lambda node: node.acquire(
                name, waiter, form, ttl, ticket=ticket, wait=wait, max_waiters=max_waiters
            ),
            sure=False,
        )
        return answer if wait else self._plain(self._answered(answer))

    def _plain(self, coroutine: Coroutine[Any, Any, Value]) -> asyncio.Future[Value]:
        """What comes of it, as a future: that may be told something else first, and no task may."""
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
        self, name: str, waiter: Waiter, form: Form, fence: int, *, entered: bool = True
    ) -> asyncio.Future[int]:
        return self._at(
            slot_of(name), lambda node: node.release(name, waiter, form, fence, entered=entered)
        )

    def pass_on(self, passed: Pass) -> asyncio.Future[int]:
        return self._at(slot_of(passed.name), lambda node: node.pass_on(passed))

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool]]:
        def renewed(renewal: Renewal) -> asyncio.Future[list[bool]]:
            return self._at(slot_of(renewal.name), lambda node: node.renew([renewal]))

        if len(renewals) == 1:
            return renewed(renewals[0])
        return asyncio.ensure_future(together([renewed(each) for each in renewals]))

    def shard_of(self, name: str) -> Hashable:
        """Which renewals have an answer together: of those elsewhere another may hear nothing."""
        return self._topology.owners[slot_of(name)]

    def status(self, name: str, *, waiters: bool = True) -> asyncio.Future[Status]:
        return asyncio.ensure_future(self._status(name, waiters=waiters))

    async def _status(self, name: str, *, waiters: bool) -> Status:
        found = await self._at(slot_of(name), lambda node: node.status(name, waiters=waiters))
        return await self._with_names(found)

    async def _with_names(self, found: Status) -> Status:
        holders, waiting = await asyncio.gather(
            self._introduced(found.holders), self._introduced(found.waiters)
        )
        return replace(found, holders=holders, waiters=waiting)

    async def _introduced(self, parties: Sequence[Party]) -> tuple[Party, ...]:
        """With host and process, where what their clients say of themselves is at another node."""
        unknown = {each.client for each in parties if not each.host and each.client != NOBODY}
        asked = [client for client in unknown if client not in self._said]
        answers = await asyncio.gather(*map(self._who, asked), return_exceptions=True)
        for client, says in zip(asked, answers, strict=True):
            if isinstance(says, bytes) and says:  # else nobody knows; it is for people only
                if len(self._said) >= _MOST_KNOWN:
                    self._said.clear()
                self._said[client] = says
        return tuple(
            said_of(each, self._said[each.client])
            if each.client in unknown and each.client in self._said
            else each
            for each in parties
        )

    def _who(self, client: str) -> asyncio.Future[Any]:
        slot = slot_of_key(self._names.client(client).encode())
        return self._at(slot, lambda node: node.who(client))

    def snapshot(self, start: str = "") -> asyncio.Future[Page]:
        return asyncio.ensure_future(self._snapshot(start))

    async def _snapshot(self, start: str) -> Page:
        """One master after the other; anew where slots have moved, and names with them."""
        topology = self._topology
        version, number, restarts, at = _read_start(start)
        if start and version != topology.version and restarts < _RESTARTS:
            number, restarts, at = 0, restarts + 1, ""
        version, masters = topology.version, topology.masters
        if number >= len(masters):  # there were more of them
            return Page((), "")
        slot = min(topology.slots_of(masters[number]))
        page = await self._at(slot, lambda node: node.snapshot(at))
        statuses = await asyncio.gather(*map(self._with_names, page.statuses))
        number += not page.more
        if number == len(masters):
            if restarts < _RESTARTS:
                self._learn(await topology.ask())
            if version == topology.version or restarts == _RESTARTS:
                return Page(statuses, "")
        return Page(statuses, f"{version} {number} {restarts} {page.more}")

    def finish(
        self, name: str, waiter: Waiter, form: Form, fence: int, keep: int
    ) -> asyncio.Future[int]:
        return self._at(slot_of(name), lambda node: node.finish(name, waiter, form, fence, keep))

    def request(self, name: str) -> asyncio.Future[int]:
        return self._at(slot_of(name), lambda node: node.request(name))

    def downgrade(self, name: str, waiter: Waiter, form: Form, fence: int) -> asyncio.Future[int]:
        return self._at(slot_of(name), lambda node: node.downgrade(name, waiter, form, fence))

    def resize(self, name: str, declared: int, limit: int, keep: int) -> asyncio.Future[int]:
        return self._at(slot_of(name), lambda node: node.resize(name, declared, limit, keep))

    def post(
        self, name: str, count: int, *, token: str, declared: int, value: str, keep: int
    ) -> asyncio.Future[int]:
        return self._at(
            slot_of(name),
            lambda node: node.post(
                name, count, token=token, declared=declared, value=value, keep=keep
            ),
        )

    def read(self, name: str) -> asyncio.Future[Posted]:
        return self._at(slot_of(name), lambda node: node.read(name))

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        return self._at(slot_of(name), lambda node: node.break_(name, fences))

    def _ask_anew(self, key: str) -> None:
        """Some of this name's keys were elsewhere in the middle of a step."""
        if not self._closing:
            self._inbox.done(self._names.name(key))


def _read_start(start: str) -> tuple[int, int, int, str]:
    if not start:
        return 0, 0, 0, ""
    version, number, restarts, at = start.split(" ", 3)
    return int(version), int(number), int(restarts), at
