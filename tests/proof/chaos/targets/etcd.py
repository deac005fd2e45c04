"""A cluster of three members, and for each process a proxy in front of each of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Final, NamedTuple

from aiolock.stores._codec import UNREADABLE
from aiolock.stores._document import Kept as KeptDocument
from aiolock.stores._holders import Holder
from aiolock.stores._state import NameState
from aiolock.stores.etcd._attempt import known_from, wall_clock
from aiolock.stores.etcd._connection import Connection
from aiolock.stores.etcd._failures import CallError
from aiolock.stores.etcd._keys import Keys, end_of
from aiolock.stores.etcd._messages import range_request
from aiolock.stores.etcd._replies import KeyValue, read_range, read_status
from aiolock.stores.etcd._servers import Servers
from aiolock.stores.etcd._settings import from_url
from aiolock.stores.etcd._wire import integer
from aiolock.stores.redis._codec import encode
from tests.proof.chaos.faults import ATTACKS, Fault
from tests.proof.chaos.history import History
from tests.proof.chaos.targets import Kept, Silent, Standing
from tests.proof.chaos.targets.links import Late, ProxyDoor
from tests.support.etcds import EtcdNode, EtcdServer, need_etcd
from tests.support.partitions import Partition
from tests.support.proxy import Link, Proxy

_PREFIX: Final = "chaos"
"""That of the workers."""
_ANSWERS_WITHIN: Final = 2.0


class EtcdDoor:
    """The ways of one process to all members, of which it uses one at a time."""

    def __init__(self, target: EtcdTarget, proxies: Sequence[Proxy], first: int) -> None:
        order = [*proxies[first:], *proxies[:first]]
        addresses = ",".join(f"127.0.0.1:{proxy.port}" for proxy in order)
        self.url = f"etcd://{addresses}"
        self._target = target
        self._proxies = proxies
        self._doors = [ProxyDoor(target, proxy, self.url) for proxy in proxies]

    def visitor(self, pid: int) -> Callable[[], Awaitable[bool]]:
        """Whether its presence is there still."""

        async def is_known() -> bool:
            return pid in await self._target.pids()

        return is_known

    async def strike(self, fault: Fault, pid: int) -> None:
        """Break the way that is in use, or in half of all cases all of them."""
        used = [n for n, proxy in enumerate(self._proxies) if proxy.links]
        which = used if used and fault.dice % 2 else range(len(self._proxies))
        await asyncio.gather(*(self._doors[n].strike(fault, pid) for n in which))


class _All(NamedTuple):
    """All that there is, as of one moment."""

    found: Sequence[KeyValue]
    revision: int
    keys: Keys

    def states(self) -> Iterator[tuple[str, NameState, KeyValue]]:
        """The names, and the state of each."""
        for each in self.found:
            if each.key.startswith(self.keys.names):
                with contextlib.suppress(*UNREADABLE):
                    text = known_from(each).kept
                    assert isinstance(text, str)
                    state = KeptDocument.decoded(text, 0).state
                    yield self.keys.name_of(each.key), state, each

    @property
    def by_key(self) -> Mapping[bytes, KeyValue]:
        return {each.key: each for each in self.found}


class EtcdTarget:
    """Three members, of which one at a time is broken, and sometimes more."""

    def __init__(self, name: str = "etcd") -> None:
        self.attack = ATTACKS[name]

    async def start(self, stack: AsyncExitStack, history: History) -> None:
        need_etcd()
        self._history = history
        self._cluster = EtcdServer(3)
        self._partition = Partition(self._cluster)
        self._keys = Keys("", _PREFIX)
        self._doors = 0
        self.late = Late(history)
        await self._partition.open(stack)
        stack.callback(self._cluster.__exit__)
        await asyncio.to_thread(self._cluster.start)
        settings = from_url(self._cluster.url())
        self._servers = Servers(settings)
        stack.push_async_callback(self._servers.aclose)
        self._each = [Connection(node.address, settings) for node in self._cluster.nodes]
        for connection in self._each:
            stack.push_async_callback(connection.aclose)

    async def door(self, stack: AsyncExitStack) -> EtcdDoor:
        proxies = [
            await stack.enter_async_context(Proxy(node.port)) for node in self._cluster.nodes
        ]
        self._doors += 1
        return EtcdDoor(self, proxies, self._doors % 3)

    # Looking

    async def _call(self, method: str, request: bytes) -> bytes:
        until = asyncio.get_running_loop().time() + _ANSWERS_WITHIN
        try:
            return await self._servers.call(method, request, until=until)
        except CallError as error:
            raise Silent from error

    async def ping(self) -> None:
        await self._call("KV/Range", range_request(self._keys.presences))

    async def _all(self) -> _All:
        request = range_request(self._keys.root, end_of(self._keys.root))
        found = read_range(await self._call("KV/Range", request))
        return _All(found.found, found.revision, self._keys)

    async def pids(self) -> set[int]:
        """The processes that pass for alive."""
        found = (await self._all()).found
        return {
            int(each.value.split()[0])
            for each in found
            if each.key.startswith(self._keys.presences)
        }

    def _is_alive(self, holder: Holder, there: Mapping[bytes, KeyValue], now: int) -> bool:
        if not holder.session:
            return holder.end > now // 1000
        if "." in holder.session:
            return self._keys.hold(holder.client, holder.session) in there
        presence = there.get(self._keys.presence(holder.client))
        return presence is not None and f"{presence.lease:x}" == holder.session

    async def standing(self) -> Standing:
        now, everything = wall_clock(), await self._all()
        there, found = everything.by_key, Standing(now, {}, {})
        for name, state, _ in everything.states():
            holders = [
                f"{encode(grant.waiter, holder.form, blind=False)}:{grant.fence}"
                for grant, holder in state.holders.items()
                if not holder.is_reserved and self._is_alive(holder, there, now)
            ]
            if holders:
                found.holders[name] = holders
            if state.queue:
                found.queues[name] = [
                    encode(waiter, state.waiting[waiter][1], blind=False)
                    for _, waiter in state.queue
                ]
        return found

    async def kept(self) -> Sequence[Kept]:
        now, everything = wall_clock(), await self._all()
        there = everything.by_key
        of_names = {each.key for _, _, each in everything.states()}
        kept = [
            Kept(each.key.decode(), 1 if each.lease else -1, (), ())
            for each in everything.found
            if each.key not in of_names
        ]
        for name, state, each in everything.states():
            holders = [h.client for h in state.holders.values() if self._is_alive(h, there, now)]
            waiters = [waiter.client for _, waiter in state.queue]
            kept.append(Kept(name, 1 if each.lease else -1, holders, waiters))
        return kept

    # Breaking

    async def clients(self, of: set[int]) -> list[str]:
        """See `Behind`: etcd does not say who is connected."""
        return []

    async def kill(self, links: list[Link]) -> None:
        """See `Behind`: etcd closes no connection for us."""

    async def settled(self) -> None:
        await self.late.settled()

    async def _members(self) -> tuple[EtcdNode, list[EtcdNode]]:
        """The leader, and the others; any for the leader, if there is none."""
        nodes, leader = self._cluster.nodes, self._cluster.nodes[0]
        for node, connection in zip(nodes, self._each, strict=True):
            with contextlib.suppress(CallError):
                status = read_status(await connection.call("Maintenance/Status", b"", 1.0))
                if status.leader == status.member:
                    leader = node
        return leader, [node for node in nodes if node is not leader]

    async def strike(self, fault: Fault) -> None:
        leader, others = await self._members()
        which = leader if fault.kind.endswith("_leader") else others[fault.dice % 2]
        match fault.kind:
            case "freeze_leader" | "freeze_follower":
                await self._freeze([which], fault.seconds)
            case "stutter_leader":
                await self._stutter(which, fault.seconds)
            case "freeze_most":
                await self._freeze([leader, others[0]], fault.seconds)
            case "kill_leader" | "kill_follower":
                await self._restart([which], fault.seconds)
            case "restart":
                await self._restart(self._cluster.nodes, fault.seconds)
            case "cut_off_leader" | "cut_off_follower":
                self._partition.cut_off(which)
                await asyncio.sleep(fault.seconds)
                self._partition.heal()
            case "compact":
                await self._compact()
            case "defragment":
                await self._defragment()
            case "move_leader":
                await self._move(leader, others[0])
            case kind:
                raise AssertionError(kind)

    async def _freeze(self, nodes: Sequence[EtcdNode], seconds: float) -> None:
        for node in nodes:
            node.pause()
        try:
            await asyncio.sleep(seconds)
        finally:
            for node in nodes:
                node.resume()

    async def _stutter(self, node: EtcdNode, seconds: float) -> None:
        for _ in range(round(seconds / 0.3)):
            await self._freeze([node], 0.25)
            await asyncio.sleep(0.05)

    async def _restart(self, nodes: Sequence[EtcdNode], seconds: float) -> None:
        for node in nodes:
            node.kill()
        await asyncio.sleep(seconds)
        for node in nodes:
            await asyncio.to_thread(self._cluster.restart, node)
        for node in nodes:
            await asyncio.to_thread(node.wait_ready)

    async def _compact(self) -> None:
        with contextlib.suppress(Silent):
            revision = (await self._all()).revision
            await self._call("KV/Compact", integer(1, revision))

    async def _defragment(self) -> None:
        for connection in self._each:
            with contextlib.suppress(CallError):
                await connection.call("Maintenance/Defragment", b"", _ANSWERS_WITHIN)

    async def _move(self, leader: EtcdNode, to: EtcdNode) -> None:
        nodes = self._cluster.nodes
        with contextlib.suppress(CallError):
            status = await self._each[nodes.index(to)].call("Maintenance/Status", b"", 1.0)
            request = integer(1, read_status(status).member)
            connection = self._each[nodes.index(leader)]
            await connection.call("Maintenance/MoveLeader", request, _ANSWERS_WITHIN)


def make() -> EtcdTarget:
    """The target."""
    return EtcdTarget()
