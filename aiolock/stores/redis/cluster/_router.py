"""Each operation goes to the master of a cluster that has its slot, or waits for one.

An operation on a master that is not connected yet waits there (`PendingOperation`). One on a slot
that no master has waits here. Neither waits longer than the time of a command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from operator import methodcaller
from typing import Any, Final, TypeVar

from aiolock.errors import StoreError
from aiolock.protocol import (
    WAS_ABSENT,
    Acquire,
    Answer,
    Operation,
    Release,
    Renew,
    WaiterId,
)
from aiolock.stores.redis._command import Command
from aiolock.stores.redis._outbox import COMMAND_TIMEOUT
from aiolock.stores.redis.cluster._node import Node
from aiolock.stores.redis.cluster._pending import PendingOperation
from aiolock.stores.redis.cluster._redirects import set_asking, slot_of_command
from aiolock.stores.redis.cluster._slots import SLOTS, slot_of
from aiolock.stores.redis.cluster._topology import Topology

Value = TypeVar("Value")

_HOPS: Final = 4
"""Of a command's redirections, one in this many waits for a moment; the others are immediate."""


class Router:
    """The operations of one client, on their way to the masters."""

    def __init__(self, topology: Topology, news: asyncio.Event) -> None:
        """``news`` is set if there is a reason to ask for the slots."""
        self._loop = asyncio.get_running_loop()
        self._topology = topology
        self._news = news
        self.closing = False
        self.unrouted: dict[PendingOperation, None] = {}
        """Operations on slots that no master has."""
        self._stranded = list[list[Command]]()
        """Commands that were sent to a master before its slot had none; each list of one slot."""
        self._limits = dict[Command, asyncio.TimerHandle]()
        """The timers of commands that are in no pipe."""
        self._first: dict[WaiterId, PendingOperation] = {}
        """The first questions of waiters, as long as they are not started."""

    # Operations

    def submit(self, operation: Operation[Value]) -> asyncio.Future[Value]:
        """Start the operation at the master that has the slot of its name."""
        return self._submit(slot_of(operation.name), operation)

    def acquire(self, operation: Acquire) -> asyncio.Future[Answer]:
        """The same; the first question of a waiter is dropped if it gives up."""
        first = None if operation.ticket else operation.waiter
        return self._submit(slot_of(operation.name), operation, must_run=False, first=first)

    def release(self, operation: Release) -> asyncio.Future[int]:
        """The same; nothing is sent for a waiter whose first question was not."""
        if self._first and (first := self._first.pop(operation.waiter, None)) is not None:
            first.future.cancel()
            if not first.started:
                nothing: asyncio.Future[int] = self._loop.create_future()
                nothing.set_result(WAS_ABSENT)
                return nothing
        return self._submit(slot_of(operation.name), operation)

    def renew(self, operation: Renew) -> asyncio.Future[list[bool | None]]:
        """Start the renewal of one lease."""
        return self._submit(slot_of(operation.renewals[0].name), operation)

    def at(
        self, slot: int, start: Callable[[Node], asyncio.Future[Value]]
    ) -> asyncio.Future[Value]:
        """Start something at the master that has this slot, once that serves us."""
        node = self._topology.owners[slot]
        if node is not None and node.ready:
            return start(node)
        return self._wait(slot, start)

    def _submit(
        self,
        slot: int,
        operation: Operation[Value],
        *,
        must_run: bool = True,
        first: WaiterId | None = None,
    ) -> asyncio.Future[Value]:
        node = self._topology.owners[slot]
        if node is not None and node.ready:
            return node.submit(operation)
        submit = methodcaller("submit", operation)
        return self._wait(slot, submit, must_run=must_run, first=first)

    def _wait(
        self,
        slot: int,
        start: Callable[[Node], asyncio.Future[Value]],
        *,
        must_run: bool = True,
        first: WaiterId | None = None,
    ) -> asyncio.Future[Value]:
        """Start it later. ``first``: the waiter whose first question it is; it is dropped if the
        waiter gives up.
        """
        pending = PendingOperation(slot, start, self._unreachable(slot), must_run=must_run)
        if first is not None:
            self._first[first] = pending
            pending.future.add_done_callback(partial(self._answered_first, first))
        if self.closing:
            pending.give_up()
        else:
            self._hold_back(pending)
        return pending.future

    def _answered_first(self, waiter: WaiterId, answer: asyncio.Future[Any]) -> None:
        if not answer.cancelled():  # else its release follows, which needs the entry
            self._first.pop(waiter, None)

    def _hold_back(self, pending: PendingOperation) -> None:
        node = self._topology.owners[pending.slot]
        if node is None:
            pending.wait_in(self.unrouted)
            self._news.set()
        elif node.ready:
            pending.go(node)
        else:
            node.hold_back(pending)
            node.dial()

    def _unreachable(self, slot: int) -> Callable[[bool], Exception]:
        def error(refused: bool) -> Exception:  # noqa: FBT001  # called by `PendingOperation` alone
            node = self._topology.owners[slot]
            why = node.error if node else None
            if self.closing:
                made = StoreError("the client was closed")
            elif node is None:
                made = StoreError(f"no node of the cluster has the slot {slot}: see CLUSTER SLOTS")
            else:
                where = f"{node.address[0]}:{node.address[1]}"
                known = str(why) if isinstance(why, StoreError) else f"Redis at {where}: {why}"
                made = StoreError(known if why else f"Redis at {where} did not answer in time")
            made.__cause__ = why
            made.refused = refused
            return made

        return error

    # Commands that were sent already

    def hand_on(self, node: Node, slots: set[int] | range = range(SLOTS)) -> None:
        """Send what this node has of these slots to the masters that have them now."""
        commands, pending = node.take(slots)
        by_slot: dict[int, list[Command]] = {}
        for command in commands:
            by_slot.setdefault(slot_of_command(command), []).append(command)
        for of_slot in by_slot.values():
            self._go_to_owner(of_slot)
        for each in pending:
            self._hold_back(each)

    def _go_to_owner(self, commands: list[Command]) -> None:
        """Send these, of one slot, to the master that has it, once one has."""
        owner = self._topology.owners[slot_of_command(commands[0])]
        if owner is not None:
            self.pass_on(commands, owner)
        else:
            self._limit(commands)
            self._stranded.append(commands)
            self._news.set()

    def pass_on(self, commands: list[Command], node: Node, *, asking: bool = False) -> None:
        """Send these, of one slot, on to another node."""
        hops = commands[0].hops = commands[0].hops + 1
        if not node.ready:
            self._limit(commands)
        node.dial()
        if hops % _HOPS or not node.ready:
            node.take_over(commands, asking=asking)
        else:
            set_asking(commands, asking=asking)
            node.hold(commands)

    def reroute_all(self) -> None:
        """Route all operations and commands again whose slots had no master."""
        unrouted, self.unrouted = self.unrouted, {}
        for pending in unrouted:
            self._hold_back(pending)
        stranded, self._stranded = self._stranded, []
        for commands in stranded:
            self._go_to_owner(commands)

    def _limit(self, commands: list[Command]) -> None:
        """Limit their waiting to the time of a command, since they are in no pipe."""
        for command in commands:
            if command not in self._limits and not command.receiver.done():
                until = command.born + COMMAND_TIMEOUT
                self._limits[command] = self._loop.call_at(until, self._give_up, command)
                assert isinstance(command.receiver, asyncio.Future), "members are no cluster"
                command.receiver.add_done_callback(partial(self._limitless, command))

    def _limitless(self, command: Command, _: asyncio.Future[Any]) -> None:
        if (timer := self._limits.pop(command, None)) is not None:
            timer.cancel()

    def _give_up(self, command: Command) -> None:
        if not command.receiver.done():
            error = self._unreachable(slot_of_command(command))
            command.receiver.set_exception(error(command.times == 0))

    def give_up(self) -> None:
        """End everything that waits for a master."""
        self._first.clear()
        self._stranded.clear()
        for command in list(self._limits):
            self._give_up(command)
