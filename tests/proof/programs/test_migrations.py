"""The programs of the pages on migrating: old and new ones contend for a stock, as processes.

Each program reads the stock, waits, and writes it. If two of them were at it at once, one sale
would be lost. They run as in a rolling deployment: old ones beside those that take both locks, then
these beside new ones.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

import psycopg
import pytest

from aiolock.stores.postgres import create_schema
from tests.support.databases import PostgresServer
from tests.support.procs import tied
from tests.support.servers import RedisServer

PROGRAMS = Path(__file__).parents[3] / "examples/migrate"
EACH = 3
"""As many sales of each of the programs, at least, beside each other."""
MANY = 2_000
"""The orders that wait: more than the programs sell while a busy machine lets the test not look."""
STOCK = 100_000
WITHIN = 90.0
"""Seconds for that: some of the old locks ask again by chance, a few times a second."""

pytestmark = pytest.mark.one_loop


class Shop(Protocol):
    """The stock, and what is ordered."""

    @property
    def env(self) -> Mapping[str, str]:
        """The variables by which programs find it."""

    def order(self) -> None:
        """Have many orders waiting."""

    def take_back(self) -> None:
        """Have none waiting."""

    def sales(self) -> tuple[int, Sequence[str]]:
        """What is left of the stock, and who made each sale."""


GET = ("GET", "stock")
SOLD = ("LRANGE", "sold", "0", "-1")


class RedisShop:
    """In Redis."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.env = {"REDIS_URL": server.url}
        server.call("FLUSHALL")
        server.call("SET", "stock", str(STOCK))

    def order(self) -> None:
        """Have many orders waiting."""
        if missing := MANY - int(self._server.call("LLEN", "orders")):
            self._server.call("RPUSH", "orders", *["an order"] * missing)

    def take_back(self) -> None:
        """Have none waiting."""
        self._server.call("DEL", "orders")

    def sales(self) -> tuple[int, Sequence[str]]:
        """What is left of the stock, and who made each sale."""
        left, sold = (
            self._server.call("GET", "stock"),
            self._server.call("LRANGE", "sold", "0", "-1"),
        )
        return int(left), [_text(each).split()[-1] for each in sold]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


TABLES = (
    "CREATE TABLE stock (number INTEGER)",
    "CREATE TABLE sold (name TEXT, who TEXT)",
    f"INSERT INTO stock VALUES ({STOCK})",
)


class FileShop:
    """In an SQLite file, with a lock table."""

    env: ClassVar[Mapping[str, str]] = {}

    def __init__(self, folder: Path) -> None:
        self._path = folder / "shop.db"
        self._run(*TABLES)
        self._run(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)",
            "CREATE TABLE resource_lock (resource TEXT PRIMARY KEY, owner TEXT,"
            " expires_at REAL NOT NULL DEFAULT 0, version INTEGER NOT NULL DEFAULT 0)",
            "INSERT INTO resource_lock (resource) VALUES ('warehouse')",
        )

    def _run(self, *statements: str) -> list[Any]:
        database = sqlite3.connect(self._path, timeout=30)
        try:
            with database:
                return [database.execute(each).fetchall() for each in statements][-1]
        finally:
            database.close()

    def order(self) -> None:
        """Have many orders waiting."""
        ((waiting,),) = self._run("SELECT count(*) FROM orders")
        if missing := MANY - waiting:
            self._run(*["INSERT INTO orders (name) VALUES ('an order')"] * missing)

    def take_back(self) -> None:
        """Have none waiting."""
        self._run("DELETE FROM orders")

    def sales(self) -> tuple[int, Sequence[str]]:
        """What is left of the stock, and who made each sale."""
        ((left,),) = self._run("SELECT number FROM stock")
        return left, [who for (who,) in self._run("SELECT who FROM sold")]


class DatabaseShop:
    """In PostgreSQL, with the table of ShedLock."""

    def __init__(self, server: PostgresServer) -> None:
        self._url = server.url()
        create_schema(self._url, "app")
        self.env = {"DATABASE_URL": server.url("app")}
        self._run(
            "DROP TABLE IF EXISTS stock, sold, orders, shedlock",
            *TABLES,
            "CREATE TABLE orders (id SERIAL PRIMARY KEY)",
            "CREATE TABLE shedlock (name VARCHAR(64) PRIMARY KEY, lock_until TIMESTAMP NOT NULL,"
            " locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL)",
            "GRANT ALL ON stock, sold, orders, shedlock TO app",
        )

    def _run(self, *statements: str) -> list[Any]:
        with psycopg.connect(self._url, autocommit=True) as database:
            found: list[Any] = []
            for each in statements:
                cursor = database.execute(each.encode())
                found = cursor.fetchall() if cursor.description else []
            return found

    def order(self) -> None:
        """Have many orders waiting."""
        ((waiting,),) = self._run("SELECT count(*) FROM orders")
        self._run(f"INSERT INTO orders SELECT FROM generate_series(1, {MANY - waiting})")

    def take_back(self) -> None:
        """Have none waiting."""
        self._run("DELETE FROM orders")

    def sales(self) -> tuple[int, Sequence[str]]:
        """What is left of the stock, and who made each sale."""
        ((left,),) = self._run("SELECT number FROM stock")
        return left, [who for (who,) in self._run("SELECT who FROM sold")]

    def close(self) -> None:
        """Leave nothing on a server that other tests use."""
        self._run("DROP TABLE stock, sold, orders, shedlock")


KINDS = {
    "redis_py": RedisShop,
    "python_redis_lock": RedisShop,
    "pottery": RedisShop,
    "aioredlock": RedisShop,
    "redisson": RedisShop,
    "lock_table": FileShop,
    "shedlock": DatabaseShop,
}
"""Each library, by the folder of its programs."""


@pytest.fixture
def library(request: pytest.FixtureRequest) -> str:
    """The name of a library whose programs run here."""
    name: str = request.param
    if name == "aioredlock" and importlib.util.find_spec(name) is None:
        pytest.skip("aioredlock needs distutils, which Python has no more: tested with Python 3.11")
    return name


@pytest.fixture
def shop(library: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """A new one, where the programs of that library look for it."""
    kind = KINDS[library]
    if kind is RedisShop:
        yield RedisShop(request.getfixturevalue("redis_server"))
    elif kind is FileShop:
        yield FileShop(tmp_path)
    else:
        shop = DatabaseShop(request.getfixturevalue("postgres_server"))
        yield shop
        shop.close()


def program(library: str, step: str) -> Path:
    """The program of a library for a step; what comes after is the same for many."""
    own = PROGRAMS / library / f"{step}.py"
    return own if own.exists() else PROGRAMS / f"{step}.py"


@asynccontextmanager
async def started(path: Path, shop: Shop, folder: Path) -> AsyncIterator[Process]:
    """A program that runs."""
    process = await asyncio.create_subprocess_exec(
        *tied(sys.executable, str(path)), cwd=folder, env=os.environ | shop.env, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def side_by_side(
    library: str, steps: Sequence[str], shop: Shop, folder: Path
) -> Counter[str]:
    """Run the programs until each has sold enough; how much each has sold in the end."""
    shop.order()
    async with AsyncExitStack() as stack:
        running = [
            await stack.enter_async_context(started(program(library, step), shop, folder))
            for step in steps
        ]
        give_up = time.monotonic() + WITHIN
        while True:
            _, who = shop.sales()
            if all(Counter(who)[step] >= EACH for step in steps):
                break
            assert time.monotonic() < give_up, Counter(who)
            assert all(each.returncode is None for each in running), "a program has ended"
            shop.order()
            await asyncio.sleep(0.02)
        shop.take_back()
        for each in running:
            _, errors = await asyncio.wait_for(each.communicate(), WITHIN)
            assert each.returncode == 0, errors.decode()
    return Counter(shop.sales()[1])


@pytest.mark.long
@pytest.mark.parametrize("steps", [("before", "during"), ("during", "after")], ids="-".join)
@pytest.mark.parametrize("library", KINDS, indirect=True)
async def test_programs_of_two_steps_side_by_side_lose_no_sale(
    library: str, steps: tuple[str, str], shop: Shop, tmp_path: Path
) -> None:
    """Those of one step exclude those of the next."""
    sold = await side_by_side(library, steps, shop, tmp_path)
    assert sold.keys() == set(steps)
    left, _ = shop.sales()
    assert STOCK - left == sold.total()


@pytest.mark.parametrize("library", ["redis_py"], indirect=True)
async def test_old_and_new_programs_without_the_step_between_lose_sales(
    library: str, shop: Shop, tmp_path: Path
) -> None:
    """Their locks are different ones; and this is seen by the test above."""
    sold = await side_by_side(library, ("before", "after"), shop, tmp_path)
    left, _ = shop.sales()
    assert STOCK - left < sold.total()


def test_pages_show_the_programs() -> None:
    """Each of them is on one of the pages, by its file, or by a link if it represents Java."""
    pages = "".join(page.read_text("utf-8") for page in sorted(PAGES.glob("*.md")))
    files = [path.relative_to(PROGRAMS.parents[1]) for path in sorted(PROGRAMS.rglob("*.py"))]
    assert files
    links = {str(path) for path in files if f"/blob/main/{path})" in pages}
    assert links == {f"examples/migrate/{name}/before.py" for name in ("redisson", "shedlock")}
    shown = {str(path) for path in files if f'--8<-- "{path}"' in pages}
    assert shown | links == {str(path) for path in files}


PAGES = PROGRAMS.parents[1] / "docs/migrate"
