"""A MariaDB server of the run's own, and a proxy in front of it for each process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final, NamedTuple

import pymysql
from pymysql.constants import CLIENT

from aiolock.stores._codec import decode
from aiolock.stores._state import NameState
from aiolock.stores.redis._codec import encode
from tests.proof.chaos.faults import ATTACKS, Fault
from tests.proof.chaos.history import History
from tests.proof.chaos.targets import Kept, Silent, Standing
from tests.proof.chaos.targets.links import Late, ProxyDoor, ports
from tests.support.databases import MariaDBServer
from tests.support.proxy import Link, Proxy

_ANSWERS_WITHIN: Final = 2
_LATE_WITHIN: Final = 4.0
"""Seconds, more than the server keeps rows locked for."""
_NOW: Final = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
_FORGET: Final = (
    "START TRANSACTION",
    "DELETE FROM aiolock_names",
    "DELETE FROM aiolock_inbox",
    # No grant is made in between: what there was before is below this, all that follows is not.
    _NOW,
    "COMMIT",
)
_OURS: Final = "SELECT id FROM information_schema.processlist WHERE user = 'app'"
_LISTENING: Final = (
    "SELECT number FROM (SELECT IS_USED_LOCK(CONCAT('aiolock:', client, ':bell')) AS number"
    " FROM aiolock_clients) AS listening WHERE number IS NOT NULL"
)
_BROKEN: Final = (pymysql.Error, OSError)
"""What PyMySQL raises when the server does not do what it should."""

Rows = Sequence[tuple[Any, ...]]


class _Owner:
    """The owner's connection: it is kept, since the conductor looks many times a second."""

    def __init__(self, server: MariaDBServer) -> None:
        self._server = server
        self._mutex = threading.Lock()
        self._connection: pymysql.Connection[Any] | None = None

    def run(self, *statements: str) -> list[Rows]:
        """The rows of each of these, which are sent at once."""
        with self._mutex:
            if self._connection is None:
                self._connection = self._connect()
            try:
                with self._connection.cursor() as cursor:
                    cursor.execute(";".join(statements))
                    found: list[Rows] = [cursor.fetchall()]
                    while cursor.nextset():
                        found.append(cursor.fetchall())
            except BaseException:
                self._close()
                raise
            return found

    def _connect(self) -> pymysql.Connection[Any]:
        return pymysql.connect(
            host="127.0.0.1",
            port=self._server.port,
            user="root",
            database="shop",
            autocommit=True,
            client_flag=CLIENT.MULTI_STATEMENTS,
            connect_timeout=_ANSWERS_WITHIN,
            # Rather the server gives up than we: else it would go on without us.
            read_timeout=2 * _ANSWERS_WITHIN,
            init_command=f"SET innodb_lock_wait_timeout = {_ANSWERS_WITHIN},"
            f" lock_wait_timeout = {_ANSWERS_WITHIN}",
        )

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*_BROKEN):
                connection.close()

    def close(self) -> None:
        """Disconnect. Idempotent."""
        with self._mutex:
            self._close()


class _Row(NamedTuple):
    name: str
    state: NameState


class MySQLTarget:
    """A server that remembers, whatever becomes of it."""

    attack = ATTACKS["mysql"]

    async def start(self, stack: AsyncExitStack, history: History) -> None:
        self._history = history
        self._server = stack.enter_context(MariaDBServer())
        self._looking = _Owner(self._server)
        stack.callback(self._looking.close)
        # Nothing says that it is too late. A client sends the second half of a transaction when it
        # has the answer to the first. Alone, the first does nothing, and its rows stay locked for
        # two seconds: then the server ends the connection. So the second either comes while they
        # are locked, which is early enough, or nobody reads it.
        #
        # Meanwhile a dead client passes for alive: it is by this connection that others see it.
        self.late = Late(history, within=_LATE_WITHIN)

    async def door(self, stack: AsyncExitStack) -> ProxyDoor:
        proxy = await stack.enter_async_context(Proxy(self._server.port))
        return ProxyDoor(self, proxy, f"mysql://app@127.0.0.1:{proxy.port}/shop")

    # Looking

    async def _look(self, *statements: str) -> list[Rows]:
        with _silent():
            return await asyncio.to_thread(self._looking.run, *statements)

    async def ping(self) -> None:
        await self._look("SELECT COUNT(*) FROM aiolock_names")

    async def _all(self) -> tuple[int, list[_Row]]:
        ((now,),), rows = await self._look(_NOW, "SELECT name, state FROM aiolock_names")
        return now, [
            _Row(name.partition(b"\0")[2].decode(), decode(state.decode()))
            for name, state in rows
            if state  # else nobody holds, or waits
        ]

    async def standing(self) -> Standing:
        now, rows = await self._all()
        found = Standing(now, {}, {})
        for name, state in rows:
            holders = [
                f"{encode(grant.waiter, holder.form, blind=False)}:{grant.fence}"
                for grant, holder in state.holders.items()
                if holder.end > now // 1000 and not holder.is_reserved
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
        micros, rows = await self._all()
        now = micros // 1000
        kept: list[Kept] = []
        for name, state in rows:
            holders = [holder for holder in state.holders.values() if holder.end > now]
            last = max([state.until, *(holder.end for holder in holders)])
            kept.append(
                Kept(
                    *(name, max(0, last - now)),
                    holders=[holder.client for holder in holders],
                    waiters=[waiter.client for _, waiter in state.queue],
                )
            )
        return kept

    async def clients(self, of: set[int]) -> list[str]:
        """The server's numbers of the connections from these ports; [""] if it is silent."""
        try:
            (rows,) = await self._look("SELECT id, host FROM information_schema.processlist")
        except Silent:
            return [""]
        return [str(number) for number, host in rows if _port(host) in of]

    # Breaking

    async def kill(self, links: list[Link]) -> None:
        """Have the server end these connections."""
        await self._kill(list(filter(None, await self.clients(ports(links)))))

    async def _kill(self, numbers: Sequence[object], what: str = "CONNECTION") -> None:
        for number in numbers:
            # One at a time: the first that has gone by itself would end a series.
            with contextlib.suppress(Silent):
                await self._look(f"KILL {what} {number}")

    async def settled(self) -> None:
        await self.late.settled()

    async def strike(self, fault: Fault) -> None:
        match fault.kind:
            case "freeze" | "freeze_long":
                with self._server.stopped():
                    await asyncio.sleep(fault.seconds)
            case "restart_fast" | "crash":
                how = "fast" if fault.kind == "restart_fast" else "immediate"
                await asyncio.to_thread(self._server.stop, how)
                await asyncio.sleep(fault.seconds)
                await asyncio.to_thread(self._server.start)
            case "terminate":
                await self._kill(await self._numbers(_OURS))
            case "terminate_subscriptions":
                await self._kill(await self._numbers(_LISTENING))
            case "kill_queries":
                await self._kill(await self._numbers(_OURS), "QUERY")
            case _:
                owner = _Owner(self._server)  # it may have to wait, and others look meanwhile
                try:
                    await self._strike(fault, owner)
                finally:
                    await asyncio.to_thread(owner.close)

    async def _numbers(self, statement: str) -> list[object]:
        with contextlib.suppress(Silent):
            return [number for (number,) in (await self._look(statement))[0]]
        return []

    async def _strike(self, fault: Fault, owner: _Owner) -> None:
        match fault.kind:
            case "rows_locked" | "rows_locked_long":
                await _try(owner, "START TRANSACTION", "SELECT 1 FROM aiolock_names FOR UPDATE")
                await asyncio.sleep(fault.seconds)
                await _try(owner, "ROLLBACK")
            case "snapshot":
                snapshot = "START TRANSACTION WITH CONSISTENT SNAPSHOT"
                await _try(owner, snapshot, "SELECT COUNT(*) FROM aiolock_names")
                await asyncio.sleep(fault.seconds)
                await _try(owner, "COMMIT")
            case "read_only":
                await _try(owner, "SET GLOBAL read_only = 1")
                await asyncio.sleep(fault.seconds)
                await _try(owner, "SET GLOBAL read_only = 0")
            case "optimize":
                await _try(owner, "OPTIMIZE TABLE aiolock_names, aiolock_inbox")
            case "forget":
                since = time.monotonic_ns()
                found = await _try(owner, *_FORGET)
                if found:
                    ((now,),) = found[_FORGET.index(_NOW)]
                    self._history.note("wiped", since=since, fence=now)
            case kind:
                raise AssertionError(kind)


def make() -> MySQLTarget:
    """The target."""
    return MySQLTarget()


async def _try(owner: _Owner, *statements: str) -> list[Rows]:
    """Carry these out, as soon as nobody is in the way; nothing, if somebody always is."""
    for _ in range(20):
        try:
            return await asyncio.to_thread(owner.run, *statements)
        except _BROKEN:  # a deadlock, or a time limit: it was rolled back
            await asyncio.sleep(0.1)
    return []


@contextlib.contextmanager
def _silent() -> Generator[None]:
    """Say so when the server does not answer."""
    try:
        yield
    except _BROKEN as error:
        raise Silent from error


def _port(host: str) -> int:
    """Of a client, as the server has it: names are not resolved."""
    port = host.rpartition(":")[2]
    return int(port) if port.isdigit() else 0
