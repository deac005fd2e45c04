"""The contestants, with their settings and requirements."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from importlib import metadata


def _driver() -> str:
    """The version of redis-py that aiolock runs on here: all peers that can use it get the same."""
    return f"redis=={metadata.version('redis')}"


@dataclass(frozen=True)
class Contestant:
    """A peer with its settings."""

    title: str
    module: str
    """The module of its adapter, in `benchmarks/peers/`."""
    requirements: tuple[str, ...] = ()
    """The requirements of its own environment; without any, it runs in the project's own."""
    settings: dict[str, object] = field(default_factory=dict[str, object], hash=False)
    remark: str = ""
    """A note for the reader of a table."""
    has: tuple[str, ...] = ()
    """Its other primitives: settings that its adapter takes, see `benchmarks/peers`."""
    loop: str = "asyncio"
    """Its event loop: asyncio's own, or "uvloop"."""
    waits: bool = True
    """Whether it is measured with a lock that others want, too."""
    slow: bool = False
    """Whether it is measured in the first round only: it is slow, and no bar compares it."""


def on_uvloop(contestant: Contestant) -> Contestant:
    """The same contestant on uvloop, which its environment has to contain."""
    return replace(contestant, title=f"{contestant.title}, uvloop", loop="uvloop")


AIOLOCK = Contestant("aiolock", "aiolock", remark="as it comes", has=("permits", "reads"))
UNCONFIRMED = Contestant(
    "aiolock, `confirm=False`",
    "aiolock",
    settings={"confirm": False},
    remark="leaving the body does not wait for the answer to the release",
    waits=False,
)
SET_AND_DEL = Contestant(
    "bare `SET NX PX` + `DEL`",
    "set_nx",
    remark="redis-py, no lock at all: it cannot wait",
    waits=False,
)
FLOOR = Contestant("floor", "set_nx")
"""Not a lock: its processes throw messages, see `scenarios.floors`."""
REDIS_PY = Contestant("redis-py `Lock`", "redis_py", remark="polls every 0.1 s, its default")
REDSYNC = Contestant(
    "redsync 2.0.0",
    "redsync",
    ("redsync==2.0.0", _driver(), "hiredis", "uvloop"),
    remark="`BLPOP`; no owner, and a permit whose holder dies is gone",
    has=("permits",),
)
STEINDAMM = Contestant(
    "steindamm 0.11.1",
    "steindamm",
    ("steindamm==0.11.1", _driver(), "hiredis", "uvloop"),
    remark="`BLPOP`; a permit whose holder dies is gone while others use the name",
    has=("permits",),
)

PEERS = (
    REDIS_PY,
    Contestant(
        "redis-py `Lock`, sleep=0.01",
        "redis_py",
        settings={"sleep": 0.01},
        remark="polls every 0.01 s",
        slow=True,
    ),
    REDSYNC,
    Contestant(
        "self-limiters 0.4.0",
        "self_limiters",
        ("self-limiters==0.4.0",),
        remark="`BLPOP`, in Rust; a permit whose holder dies is gone while others use the name",
        has=("permits",),
    ),
    STEINDAMM,
    Contestant(
        "py-redis-semaphore 0.2.0",
        "py_redis_semaphore",
        ("py-redis-semaphore==0.2.0", _driver(), "hiredis"),
        remark="`BLPOP`, with a lease, a heartbeat and a fence",
        has=("permits",),
    ),
    Contestant(
        "redis-lock-py 1.3.0",
        "redis_lock_py",
        ("redis-lock-py==1.3.0", _driver(), "hiredis"),
        remark="pub/sub, a subscription for each waiter",
        slow=True,
    ),
    Contestant(
        "python-redis-lock 4.0.1",
        "python_redis_lock",
        ("python-redis-lock==4.0.1", _driver(), "hiredis"),
        remark="`BLPOP`; blocks, so it runs in threads",
        slow=True,
    ),
    Contestant(
        "pottery 3.0.1",
        "pottery",
        ("pottery==3.0.1", _driver(), "hiredis"),
        remark="Redlock on one master, polls every 0–0.2 s",
        slow=True,
    ),
    Contestant(
        "coredis 6.9.0",
        "coredis",
        ("coredis==6.9.0",),
        remark="its own client, polls every 0.1 s",
        slow=True,
    ),
    Contestant(
        "cashews 7.6.0",
        "cashews",
        ("cashews==7.6.0", _driver(), "hiredis"),
        remark="polls without a pause, its default",
        slow=True,
    ),
    Contestant(
        "aioredlock 0.7.3",
        "aioredlock",
        ("aioredlock==0.7.3", "aioredis==1.3.1", "hiredis"),
        remark="Redlock on one master, aioredis 1, polls every 0.1–0.3 s; Python 3.11 at most",
        slow=True,
    ),
)
FILELOCK = Contestant(
    "filelock 4.2.11 `AsyncFileLock`",
    "filelock",
    ("filelock==4.2.11",),
    remark="a lock of the operating system, polled every 0.05 s; one machine",
)
PG_ADVISORY = Contestant(
    "`pg_advisory_lock`, psycopg",
    "pg_advisory",
    ("psycopg[binary]==3.3.9",),
    remark="PostgreSQL's own; a connection for each task, no lease, no fence",
)
DLOCK = Contestant(
    "sqlalchemy-dlock 0.9.0",
    "dlock",
    ("sqlalchemy-dlock==0.9.0", "sqlalchemy[asyncio]>=2", "psycopg[binary]==3.3.9"),
    remark="the same by SQLAlchemy",
)
LEASE_ROW = Contestant(
    "a row of leases, polled",
    "lease_row",
    ("psycopg[binary,pool]==3.3.9",),
    remark="in PostgreSQL, every 0.1 s, a pool of four connections; no order",
)
GET_LOCK = Contestant(
    "`GET_LOCK`, aiomysql 0.3.2",
    "get_lock",
    ("aiomysql==0.3.2",),
    remark="MariaDB's own; a connection for each task, no lease, no fence",
)
COMPARED = (AIOLOCK, UNCONFIRMED, SET_AND_DEL, REDIS_PY, REDSYNC, STEINDAMM)
"""The peers that bars compare, measured on both loops. No other peer was ever as fast as redsync;
steindamm is next among the peers that use the event loop, so uvloop changes its figures."""
