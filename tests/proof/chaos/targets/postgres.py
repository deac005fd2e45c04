"""A PostgreSQL server of the run's own, and a proxy in front of it for each process."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import psycopg
from psycopg.rows import dict_row

from aiolock.protocol import Form, Rule, WaiterId
from aiolock.stores.redis._codec import encode
from tests.proof.chaos.faults import ATTACKS, Fault
from tests.proof.chaos.history import History
from tests.proof.chaos.targets import Kept, Silent, Standing
from tests.proof.chaos.targets.links import Late, ProxyDoor, ports
from tests.support.databases import PostgresServer
from tests.support.proxy import Link, Proxy

_NOW: Final = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_FORGET: Final = "TRUNCATE aiolock.names, aiolock.waiters, aiolock.grants"


class PostgresTarget:
    """A server that remembers, whatever becomes of it."""

    attack = ATTACKS["postgres"]

    async def start(self, stack: AsyncExitStack, history: History) -> None:
        self._history = history
        self._server = stack.enter_context(PostgresServer())
        self.late = Late(history, refusal=b"late ")

    async def door(self, stack: AsyncExitStack) -> ProxyDoor:
        proxy = await stack.enter_async_context(Proxy(self._server.port))
        url = f"postgresql://app@127.0.0.1:{proxy.port}/postgres?sslmode=disable"
        return ProxyDoor(self, proxy, url)

    def _execute(self, *statements: str, values: Sequence[object] = ()) -> list[Any]:
        """The rows of the last of these, all at one time. In a thread: it may last."""
        with (
            contextlib.closing(
                psycopg.connect(
                    self._server.url(),
                    row_factory=dict_row,
                    connect_timeout=2,
                    options="-c statement_timeout=2000",
                    autocommit=len(statements) == 1,
                )
            ) as connection,
        ):
            if len(statements) > 1:
                connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            rows: list[Any] = []
            for statement in statements:
                cursor = connection.execute(statement.encode(), values or None)
                rows.append(cursor.fetchall() if cursor.description else [])
            return rows

    # Looking

    async def ping(self) -> None:
        with _silent():
            await asyncio.to_thread(self._execute, "SELECT count(*) FROM aiolock.names")

    async def _all(self) -> tuple[int, list[dict[str, Any]], list[dict[str, Any]]]:
        with _silent():
            (now,), grants, waiters = await asyncio.to_thread(
                self._execute,
                f"{_NOW} AS now",
                "SELECT * FROM aiolock.grants WHERE client <> '-' ORDER BY name, fence",
                "SELECT * FROM aiolock.waiters ORDER BY name, ticket, client, seq",
            )
        return now["now"], grants, waiters

    async def standing(self) -> Standing:
        now, grants, waiters = await self._all()
        found = Standing(now, {}, {})
        for row in grants:
            if row["ends"] > now // 1000:
                found.holders.setdefault(_name(row), [])
                found.holders[_name(row)] = [
                    *found.holders[_name(row)],
                    f"{_text(row)}:{row['fence']}",
                ]
        for row in waiters:
            found.queues[_name(row)] = [*found.queues.get(_name(row), ()), _text(row)]
        return found

    async def kept(self) -> Sequence[Kept]:
        now, grants, waiters = await self._all()
        kept = [
            Kept(_name(row), max(0, row["ends"] - now // 1000), [row["client"]], ())
            for row in grants
            if row["ends"] > now // 1000
        ]
        return kept + [Kept(_name(row), 0, (), [row["client"]]) for row in waiters]

    async def clients(self, of: set[int]) -> list[str]:
        """The server's processes for the connections from these ports; [""] if it is silent."""
        try:
            (rows,) = await asyncio.to_thread(
                self._execute,
                "SELECT pid FROM pg_stat_activity WHERE client_port = ANY (%s)",
                values=[[*of]],
            )
        except psycopg.Error:
            return [""]
        return [str(row["pid"]) for row in rows]

    # Breaking

    async def kill(self, links: list[Link]) -> None:
        """Have the server end these connections."""
        with contextlib.suppress(psycopg.Error):
            await asyncio.to_thread(
                self._execute,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE client_port = ANY (%s)",
                values=[[*ports(links)]],
            )

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
                await self._try("SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                                " WHERE usename = 'app'")  # fmt: skip
            case "vacuum":
                await self._try("VACUUM FULL aiolock.grants")
            case "analyze":
                await self._try("VACUUM ANALYZE")
            case "rows_locked":
                await self._hold(fault, "SELECT FROM aiolock.grants FOR UPDATE")
            case "snapshot":
                await self._hold(fault, "SELECT count(*) FROM aiolock.waiters")
            case "forget":
                since = time.monotonic_ns()
                # Nobody is at work then; and fences grow with the clock.
                if await self._try(_FORGET):
                    (rows,) = await asyncio.to_thread(self._execute, f"{_NOW} AS now")
                    self._history.note("wiped", since=since, fence=rows[0]["now"])

    async def _try(self, statement: str) -> bool:
        """Carry this out, as soon as nobody is in the way; False if somebody always is."""
        for _ in range(20):
            try:
                await asyncio.to_thread(self._execute, statement)
            except psycopg.Error:  # a time limit, in between the others
                await asyncio.sleep(0.1)
            else:
                return True
        return False

    async def _hold(self, fault: Fault, statement: str) -> None:
        """In a transaction that stays open."""
        with contextlib.closing(self._server.connect()) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            with contextlib.suppress(psycopg.Error):
                connection.execute("SET LOCAL statement_timeout = 500")
                await asyncio.to_thread(connection.execute, statement.encode())
                await asyncio.sleep(fault.seconds)
            connection.execute("ROLLBACK")


def make() -> PostgresTarget:
    """The target."""
    return PostgresTarget()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Say so when the server does not answer."""
    try:
        yield
    except psycopg.Error as error:
        raise Silent from error


def _name(row: dict[str, Any]) -> str:
    return bytes(row["name"]).partition(b"\0")[2].decode()


def _text(row: dict[str, Any]) -> str:
    """The waiter as a history has it."""
    form = Form(
        claim=row["claim"],
        shared=row["shares"],
        rule=Rule(row["rule"]),
        number=row["number"],
        declared=row["declared"],
        fixed=row["fixed"],
        once=row["once"],
        downgrades=row["downgrades"],
        after_loss=row["after_loss"],
        after_grant=row["after_grant"],
        period=row["period"],
        priority=row["priority"],
    )
    return encode(WaiterId(row["client"], row["seq"]), form, blind=False)
