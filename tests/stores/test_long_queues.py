"""Long queues are worked through in parts: no command is long, and nobody waits for a part.

The first kind of test looks at how long a server is busy with one command, the other at what comes
of it: that the parts follow each other without a waiter that asks, and that the result is that of
one step. That scripts and machine agree on each part is tested in ``tests/proof``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

import aiolock
from aiolock.protocol import (
    CHECKS_IF_FULL,
    GRANTS,
    PART,
    WAS_HOLDER,
    WAS_QUEUED,
    Acquire,
    Break,
    Busy,
    Done,
    Finish,
    Form,
    Full,
    Granted,
    GrantLost,
    GrantPushed,
    Operation,
    Post,
    Queued,
    ReadStatus,
    Release,
    RequestRelease,
    Rule,
    WaiterId,
)
from aiolock.stores import postgres
from aiolock.stores._holders import Grant, Holder
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.stores.postgres import _codec as codec
from aiolock.stores.postgres import _schema
from aiolock.stores.postgres._settings import PINNED
from aiolock.stores.postgres._store import _SWEPT
from aiolock.stores.redis import _scripts as scripts
from aiolock.testing import Peer
from aiolock.testing._peer import LONG, PLAIN, READER, Place, count_of
from tests.proof.test_quorum_model import Scripts as Voter
from tests.proof.test_redis_model import Scripts
from tests.support.databases import PostgresServer
from tests.support.failures import wait_until
from tests.support.servers import RedisServer, store_on
from tests.support.worlds import asking

MANY: Final = 10_000
LIMIT: Final = 10.0
"""Milliseconds for one command, with `MANY` of everything."""
MINUTE: Final = 60_000
NOW: Final = 1_700_000_000_000_000
LOCK: Final = Form(claim=9000)


def check_quick(
    tries: Iterable[list[float]], limit: float = LIMIT, *, all_commands: bool = True
) -> int:
    """Fail unless each command of some is quick in one of the tries: the machine may be busy.

    No more tries are made once all commands of one were. Without ``all_commands``, a try has the
    longest of them. Returns how many commands there are.
    """
    found = list[list[float]]()
    for took in tries:
        found.append(took)
        quickest = [min(times) for times in zip(*found, strict=all_commands)]
        if max(quickest, default=limit if all_commands else 0.0) < limit:
            return len(quickest)
    raise AssertionError(found)


# The first test, so that its server has been up for a while before the others: see `SETTLED`.
@pytest.mark.alone
@pytest.mark.one_loop
def test_postgres_release_before_many_dead_waiters_looks_at_each_once(
    postgres_server: PostgresServer,
) -> None:
    """Within one transaction it would: the release before five thousand of them took seconds."""
    count = 5000
    with psycopg.connect(postgres_server.url(), autocommit=True) as database:
        database.execute(_schema.statements().encode())

        def run(number: int) -> list[float]:
            name, form = f"long {number}".encode(), [9000] + 11 * [0]
            asked = (name, form, MINUTE)
            call = "SELECT aiolock.acquire(%s, 'ada', 1, %s, %s, 0, true, 0, 0)"
            row = database.execute(call, asked).fetchone()
            assert row is not None
            fence = int(row[0].split()[1])
            database.execute(
                "INSERT INTO aiolock.waiters SELECT (aiolock._waiter(%s, %s + i, 'gone', i, %s)).*"
                " FROM generate_series(1, %s) i",
                (name, NOW, form, count),
            )
            database.execute("ANALYZE aiolock.waiters")
            began = time.perf_counter()
            call = "SELECT aiolock.release(%s, 'ada', 1, %s, true, 0)"
            assert database.execute(call, (name, fence)).fetchone() == ("1",)
            return [time.perf_counter() - began]

        check_quick(map(run, range(3)), 1.0)


@pytest.fixture
def lua(own_server: RedisServer) -> Iterator[Scripts]:
    """The scripts of a server that does nothing else."""
    lua = Scripts(own_server)
    lua.goes_on = False
    yield lua
    lua.close()


def stamp(lua: Scripts) -> int:
    """The server's clock, in µs."""
    seconds, micros = lua.redis.time()
    return int(seconds) * 1_000_000 + int(micros)


def put(lua: Scripts, key: str, members: dict[str, float]) -> None:
    """Write these there."""
    every = list(members.items())
    for at in range(0, len(every), 1000):
        lua.redis.zadd(key, dict(every[at : at + 1000]))
    lua._kept = None


def waiters(lua: Scripts, form: str = "x9000", count: int = MANY, *, clients: int = MANY) -> None:
    """Queue so many, of clients that do not listen."""
    first = stamp(lua) - 10_000_000
    put(
        lua,
        lua.keys[1],
        {f"{form}:gone{seq % clients}:{seq}": first + seq for seq in range(count)},
    )


def readers(lua: Scripts, count: int = MANY, *, left: int = MINUTE) -> list[int]:
    """Have so many clients hold it; their fences."""
    first = stamp(lua) - 10_000_000
    ends = first // 1000 + 10_000 + left
    put(lua, lua.keys[0], {f"s9000:gone{n}:{n}:{first + n}": ends + n // 100 for n in range(count)})
    put(lua, lua.keys[0], {f"s9000:gone{n}:{n}": first + n for n in range(count)})
    return list(range(first, first + count))


def holder(lua: Scripts, waiter: str = "x9000:ada:0") -> tuple[str, int]:
    """Its grant: of a lock that was free."""
    held = lua.acquire(waiter, MINUTE, 0, 0)
    assert isinstance(held, Granted)
    return waiter, held.fence


def dead_at_the_head(lua: Scripts) -> Callable[[], object]:
    """A release, before waiters whose clients are gone."""
    held = holder(lua)
    waiters(lua)
    return lambda: lua.release(*held)


def stuck(lua: Scripts) -> Callable[[], object]:
    """A request that finds a lease ended, of a client with all the waiters."""
    held = holder(lua, "x9000:gone0:0")
    waiters(lua, clients=1)
    put(lua, lua.keys[0], {f"{held[0]}:{held[1]}": 1})
    return lambda: lua.acquire("x9000:ada:0", MINUTE, 0, 0)


def stuck_readers(lua: Scripts) -> Callable[[], object]:
    """The same, of leases of many clients, none of which waits."""
    readers(lua, left=-MINUTE)
    waiters(lua)
    return lambda: lua.acquire("x9000:ada:0", MINUTE, 0, 0)


def full(lua: Scripts) -> Callable[[], object]:
    """A newcomer to a queue that may have no more."""
    holder(lua)
    waiters(lua)
    return lambda: lua.acquire("x9000:ada:1", MINUTE, 0, MANY)


def done(lua: Scripts) -> Callable[[], object]:
    """Work is done that all wait for."""
    held = holder(lua, "xo9000:ada:0")
    waiters(lua, "xo9000")
    return lambda: lua.finish(*held, MINUTE)


def broken(lua: Scripts) -> Callable[[], object]:
    """A part of the grants is broken."""
    fences = readers(lua)
    waiters(lua)
    return lambda: lua.break_(fences[-GRANTS:])


def count_reached(lua: Scripts) -> Callable[[], object]:
    """A count that all wait for."""
    waiters(lua, "sfb9000^2")
    return lambda: lua.post(2, "", 0, "", MINUTE)


def count_not_reached(lua: Scripts) -> Callable[[], object]:
    """A count that nobody waits for."""
    waiters(lua, "sfb9000^5")
    return lambda: lua.post(2, "", 0, "", MINUTE)


def permits(lua: Scripts) -> Callable[[], object]:
    """As many permits as waiters."""
    waiters(lua, f"sb9000*1/{MANY}")
    return lambda: lua.resize(1, MANY, MINUTE)


def tombstones(lua: Scripts) -> Callable[[], object]:
    """A release that leaves a tombstone, where the time of many is over."""
    held, over = holder(lua), 10**15 + stamp(lua) // 1000 - MINUTE
    put(lua, lua.keys[0], {f"!x9000:gone:{seq}": over + seq % 1000 for seq in range(MANY)})
    return lambda: lua.release(*held, tombstone_until=stamp(lua) + 1_000_000)


def requested(lua: Scripts) -> Callable[[], object]:
    """All holders are asked to release it."""
    readers(lua)
    return lua.request


def status(lua: Scripts) -> Callable[[], object]:
    """A part of a status."""
    readers(lua)
    waiters(lua)
    values = (lua.names.channels, 256, "-inf", 256, "", "")
    return lambda: lua._call(scripts.STATUS, lua.keys[:2], *values)


@pytest.mark.alone
@pytest.mark.one_loop
@pytest.mark.parametrize(
    "case",
    [
        dead_at_the_head,
        stuck,
        stuck_readers,
        full,
        done,
        broken,
        count_reached,
        count_not_reached,
        permits,
        tombstones,
        requested,
        status,
    ],
)
def test_redis_commands_on_ten_thousand_entries_stay_below_the_time_limit(
    lua: Scripts, case: Callable[[Scripts], Callable[[], object]]
) -> None:
    """By the server's own account."""

    def run() -> list[float]:
        lua.redis.config_set("slowlog-log-slower-than", -1)
        lua.redis.flushall()
        lua.rests.clear()
        call = case(lua)
        lua.redis.config_set("slowlog-log-slower-than", 100)  # not what the scripts call
        lua.redis.config_set("slowlog-max-len", 10_000)
        lua.redis.slowlog_reset()
        call()
        lua.go_on()
        log = lua.redis.slowlog_get(10_000)
        took = [e["duration"] / 1000 for e in log if b"EVAL" in e["command"]]
        return sorted(took, reverse=True)  # short ones may be missing in some tries

    check_quick((run() for _ in range(4)), all_commands=False)


ADA: Final = WaiterId("ada", 0)


def put_queue(
    form: Form, holder: WaiterId | None, *, ends: int = NOW // 1000 + MINUTE
) -> NameState:
    """So many waiters of one client, behind this holder."""
    state = NameState()
    for seq in range(1, MANY + 1):
        state.enqueue(NOW + seq, WaiterId("gone", seq), form)
    if holder is not None:
        state.holders.add(Holder(Grant(holder, NOW), form, ends, shared=False))
    return state


def step_dead() -> tuple[Step, Callable[[Step], object]]:
    """A release, before waiters whose client is gone."""
    return step_on(put_queue(LOCK, ADA), alive="ada"), lambda step: step.run(
        Release("n", ADA, LOCK, NOW)
    )


def step_stuck() -> tuple[Step, Callable[[Step], object]]:
    """A request that finds a lease ended."""
    state = put_queue(LOCK, WaiterId("gone", 0), ends=NOW // 1000)
    return step_on(state), lambda step: step.run(Acquire("n", ADA, LOCK, MINUTE))


def step_done() -> tuple[Step, Callable[[Step], object]]:
    """Work is done that all wait for."""
    state = put_queue(replace(LOCK, once=True), ADA)
    return step_on(state), lambda step: step.run(Finish("n", ADA, LOCK, NOW, MINUTE))


def step_count() -> tuple[Step, Callable[[Step], object]]:
    """A count that all wait for."""
    state = put_queue(count_of(2), None)
    return step_on(state, alive="gone"), lambda step: step.run(
        Post("n", 2, token="", declared=0, value="", remember=MINUTE)
    )


def step_break() -> tuple[Step, Callable[[Step], object]]:
    """A part of the grants is broken."""
    state = put_queue(LOCK, None)
    for seq in range(MANY):
        grant = Grant(WaiterId("bob", seq), NOW + seq)
        state.holders.add(Holder(grant, READER, NOW // 1000 + MINUTE, shared=True))
    fences = range(NOW + MANY - GRANTS, NOW + MANY)
    return step_on(state), lambda step: step.run(Break("n", fences))


@pytest.mark.alone
@pytest.mark.one_loop
@pytest.mark.parametrize("case", [step_dead, step_stuck, step_done, step_count, step_break])
def test_machine_steps_on_ten_thousand_entries_stay_below_the_time_limit(
    case: Callable[[], tuple[Step, Callable[[Step], object]]],
) -> None:
    """Of the machine, which the memory store runs in the event loop."""

    def run() -> list[float]:
        took = list[float]()
        step, operation = case()
        while True:
            began = time.thread_time()
            operation(step)
            took.append(1000 * (time.thread_time() - began))
            if step.rest is None:
                return took
            operation = partial(Step.go_on, rest=step.rest)
            step = Step("n", step._state, NOW, step._listens, step.fence, in_parts=True)

    steps = check_quick(run() for _ in range(4))
    assert steps > 1 or case is step_break


@pytest.mark.alone
@pytest.mark.one_loop
def test_vote_script_with_many_ended_votes_looks_for_them_once(own_server: RedisServer) -> None:
    """Not once for each of them: two thousand readers, and as many waiters, took seconds."""
    voter = Voter(own_server)
    try:
        voter.redis.set(voter.marker, "run 0 charter")
        many = 2000
        votes = {f"s9000:gone{n}:{n}:{NOW + n}:{NOW + n}:{NOW // 1000}": 1 + n for n in range(many)}
        queued = {f"x9000:late{n}:{n}": NOW + n for n in range(many)}

        def run() -> list[float]:
            voter.redis.delete(voter.votes, voter.queue)
            voter.redis.zadd(voter.votes, votes)
            voter.redis.zadd(voter.queue, queued)
            began = time.perf_counter()
            voter.vote("x9000:ada:1", 1, MINUTE, 0, True, 0, 0)
            return [time.perf_counter() - began]

        check_quick((run() for _ in range(3)), 0.5)
    finally:
        voter.close()


class Calls:
    """The functions of a database, as a client calls them that goes on with what is left."""

    def __init__(self, database: psycopg.Connection[Any], name: bytes) -> None:
        self.database = database
        self.name = name
        self.me = "ada"
        """The client that goes on: it is there, though it does not listen."""
        self.now = int(self.value("SELECT aiolock.clock()"))
        self.took = list[float]()
        """Milliseconds of each call, by the server's own clock or, if that is less, of the
        processor."""

    def value(self, statement: str, *values: object) -> str:
        row = self.database.execute(statement.encode(), values).fetchone()
        assert row is not None
        return str(row[0])

    def call(self, call: str, *values: object) -> str:
        """Call a function about the name, and note how long the server takes for that."""
        return self.timed(call, self.name, *values)

    def timed(self, call: str, *values: object) -> str:
        """Call a function."""
        cursor = psycopg.ClientCursor(self.database)
        text = cursor.mogrify(f"SELECT aiolock.{call}".encode(), values)
        began = self.busy()
        took, _, answer = self.value("SELECT timed(%s)", text).partition(" ")
        self.took.append(min(float(took), self.busy() - began or float(took)))
        return answer

    def busy(self) -> float:
        """The processor time of the session, in ms; 0 where the system does not say."""
        try:
            stat = Path(f"/proc/{self.database.info.backend_pid}/schedstat").read_text("ascii")
        except OSError:
            return 0.0
        return int(stat.split()[0]) / 1e6

    def go_on(self, answer: str) -> None:
        """Call for what is left after that answer, until nothing is."""
        while "\nrest " in answer:
            rest = answer.partition("\nrest ")[2].partition("\n")[0]
            answer = self.call("go_on(%s, %s, %s, 0)", self.me, rest)

    def acquire(self, who: str, form: Form) -> int:
        """Acquire it, as the first; the fence."""
        call = "SELECT aiolock.acquire(%s, %s, 0, %s, 60000, 0, true, 0, 0)"
        return int(self.value(call, self.name, who, _form(form)).split()[1])

    def waiters(self, form: Form = LOCK, *, clients: int = MANY) -> None:
        """Queue so many, of clients that do not listen."""
        self.database.execute(
            b"INSERT INTO aiolock.waiters SELECT (aiolock._waiter(%s, %s + i, 'gone' || i %% %s, i,"
            b" %s)).* FROM generate_series(1, %s) i",
            (self.name, self.now - 10_000_000, clients, _form(form), MANY),
        )
        self.clients()

    def sharers(self, form: Form = LOCK, *, clients: int = MANY, shares: int = MANY) -> None:
        """The same, each with one of so many shares."""
        self.waiters(form, clients=clients)
        self.database.execute(
            b"UPDATE aiolock.waiters SET share = convert_to('share ' || seq %% %s, 'UTF8')"
            b" WHERE name = %s",
            (shares, self.name),
        )
        self.database.execute(
            b"INSERT INTO aiolock.accounts SELECT DISTINCT ON (share) name, priority, share, 0, 0,"
            b" ticket, client, seq, weight FROM aiolock.waiters WHERE name = %s"
            b" ORDER BY share, ticket",
            (self.name,),
        )
        self.database.execute(
            b"INSERT INTO aiolock.virtual_times VALUES (%s, 0, 0, 0)", (self.name,)
        )

    def readers(self, *, left: int = MINUTE) -> list[int]:
        """Have so many clients hold it; their fences."""
        first = self.now - 10_000_000
        self.database.execute(
            b"INSERT INTO aiolock.grants SELECT w.name, w.ticket, w.client, w.seq, %s, true, false,"
            b" w.claim, w.shares, w.rule, w.number, w.declared, w.fixed, w.once, w.downgrades,"
            b" w.after_loss, w.after_grant, w.period, w.priority FROM generate_series(1, %s) i,"
            b" aiolock._waiter(%s, %s + i, 'gone' || i, i, %s) w",
            (self.now // 1000 + left, MANY, self.name, first, _form(READER)),
        )
        self.clients()
        return list(range(first + 1, first + MANY + 1))

    def tombstones(self, left: int) -> None:
        """Have so many waiters given up."""
        self.database.execute(
            b"INSERT INTO aiolock.tombstones"
            b" SELECT %s, 'gone' || i, i, %s FROM generate_series(1, %s) i",
            (self.name, self.now // 1000 + left, MANY),
        )

    def clients(self) -> None:
        """The clients of these have listened once."""
        self.database.execute(
            b"INSERT INTO aiolock.clients SELECT 'gone' || i, 7000000 + i, 'host', 1"
            b" FROM generate_series(0, %s) i ON CONFLICT DO NOTHING",
            (MANY,),
        )


def _form(form: Form) -> str:
    return codec.form(form).decode()


def pg_dead(calls: Calls) -> str:
    """A release, before waiters whose clients are gone."""
    fence = calls.acquire("ada", LOCK)
    calls.waiters()
    return calls.call("release(%s, 'ada', 0, %s, true, 0)", fence)


def pg_stuck(calls: Calls) -> str:
    """A request that finds a lease ended, of a client with all the waiters."""
    calls.acquire("gone0", LOCK)
    calls.waiters(clients=1)
    calls.database.execute(b"UPDATE aiolock.grants SET ends = 1 WHERE name = %s", (calls.name,))
    return calls.call("acquire(%s, 'ada', 0, %s, 60000, 0, true, 0, 0)", _form(LOCK))


def pg_stuck_readers(calls: Calls) -> str:
    """The same, of leases of many clients, all of which wait."""
    calls.readers(left=-MINUTE)
    calls.waiters()
    return calls.call("acquire(%s, 'ada', 0, %s, 60000, 0, true, 0, 0)", _form(LOCK))


def pg_full(calls: Calls) -> str:
    """A newcomer to a queue that may have no more."""
    calls.acquire("ada", LOCK)
    calls.waiters()
    return calls.call("acquire(%s, 'ada', 1, %s, 60000, 0, true, %s, 0)", _form(LOCK), MANY)


def pg_done(calls: Calls) -> str:
    """Work is done that all wait for."""
    once = replace(LOCK, once=True)
    fence = calls.acquire("ada", once)
    calls.waiters(once)
    return calls.call("finish(%s, 'ada', 0, %s, 60000, 0)", fence)


def pg_broken(calls: Calls) -> str:
    """A part of the grants is broken."""
    fences = calls.readers()
    calls.waiters()
    return calls.call("break_(%s, 'ada', %s)", fences[-GRANTS:])


def pg_requested(calls: Calls) -> str:
    """All holders are asked to release it."""
    calls.readers()
    answer = calls.call("request(%s, 'ada', 0)")
    while behind := codec.asked(answer)[1]:
        answer = calls.call("go_on(%s, 'ada', %s, 0)", f"request {behind}")
    return answer


def pg_downgrade(calls: Calls) -> str:
    """A holder shares it from now on."""
    fence = calls.acquire("ada", replace(LOCK, downgrades=True))
    calls.waiters(READER)
    return calls.call("downgrade(%s, 'ada', 0, %s)", fence)


def pg_count(number: int) -> Callable[[Calls], str]:
    """A count for which, or not for which, all wait."""

    def case(calls: Calls) -> str:
        calls.waiters(count_of(number), clients=1)
        calls.me = "gone0"
        return calls.call("post(%s, 'gone0', 2, '', 0, '', 60000, 0)")

    return case


PERMIT: Final = Form(claim=9000, shared=True, rule=Rule.PERMITS, number=1, declared=MANY)


def pg_permits(calls: Calls) -> str:
    """As many permits as waiters."""
    calls.waiters(PERMIT, clients=1)
    calls.me = "gone0"
    return calls.call("resize(%s, 'gone0', 1, %s, 60000, 'x', 0)", MANY)


def pg_dead_sharers(calls: Calls) -> str:
    """A release, before waiters whose clients are gone, each with a share of its own."""
    fence = calls.acquire("ada", LOCK)
    calls.sharers()
    return calls.call("release(%s, 'ada', 0, %s, true, 0)", fence)


def pg_stuck_sharers(calls: Calls) -> str:
    """A request that finds a lease ended, of a client with all the waiters, each of a share."""
    calls.acquire("gone0", LOCK)
    calls.sharers(clients=1)
    calls.database.execute(b"UPDATE aiolock.grants SET ends = 1 WHERE name = %s", (calls.name,))
    return calls.call("acquire(%s, 'ada', 0, %s, 60000, 0, true, 0, 0)", _form(LOCK))


def pg_full_share(calls: Calls) -> str:
    """A newcomer to a share that may have no more waiters."""
    calls.acquire("ada", LOCK)
    calls.sharers(shares=1)
    form = _form(replace(LOCK, share="share 0"))
    return calls.call("acquire(%s, 'ada', 1, %s, 60000, 0, true, %s, 0)", form, MANY)


def pg_permits_of_shares(shares: int) -> Callable[[Calls], str]:
    """As many permits as waiters of so many shares; then all leases end, and others wait."""

    def case(calls: Calls) -> str:
        calls.me = "gone0"
        calls.sharers(replace(PERMIT, declared=1), clients=1, shares=shares)
        answer = calls.call("resize(%s, 'gone0', 1, %s, 60000, 'x', 0)", MANY)
        asks = "acquire(%s, 'ada', %s, %s, 60000, 0, true, 0, 0)"
        others = [
            calls.call(asks, seq, _form(replace(PERMIT, declared=1, share=f"of ada {seq}")))
            for seq in range(3)
        ]
        calls.database.execute(b"UPDATE aiolock.grants SET ends = 1 WHERE name = %s", (calls.name,))
        calls.call(asks, 0, _form(replace(PERMIT, declared=1, share="of ada 0")))
        assert len(others) == 3
        return answer

    return case


def pg_status(calls: Calls) -> str:
    """A part of a status."""
    calls.readers()
    calls.waiters()
    return calls.call("status(%s, 128, %s, '', 0, 128, 0)", codec.FIRST[0])


def pg_notify_again(calls: Calls) -> str:
    """A session has ended that had pushes for all holders: none has confirmed its claim."""
    calls.readers()
    calls.waiters()
    claimed = b"UPDATE aiolock.grants SET claimed = true WHERE name = %s"
    calls.database.execute(claimed, (calls.name,))
    return calls.call("go_on(%s, '', 'notify', 0)")


def pg_deferred(calls: Calls) -> str:
    """A release beside a transaction that has checked the grant, before dead waiters."""
    fence = calls.acquire("ada", LOCK)
    calls.waiters()
    with psycopg.connect(calls.database.info.dsn) as checking:
        check = b"SELECT FROM aiolock.grants WHERE name = %s FOR KEY SHARE"
        checking.execute(check, (calls.name,))
        answer = calls.call("release(%s, 'ada', 0, %s, true, 0)", fence)
        calls.go_on(answer)
    return answer.partition("\n")[0]


def pg_tombstones(left: int) -> Callable[[Calls], str]:
    """A request, and a release that leaves a tombstone, beside many with so much time left."""

    def case(calls: Calls) -> str:
        fence = calls.acquire("ada", LOCK)
        calls.tombstones(left)
        kept = b"UPDATE aiolock.names SET keep_until = %s WHERE name = %s"
        calls.database.execute(kept, (calls.now // 1000 + MINUTE, calls.name))
        calls.call("acquire(%s, 'ada', 1, %s, 60000, 0, true, 0, 0)", _form(LOCK))
        return calls.call("release(%s, 'ada', 0, %s, true, %s)", fence, calls.now + 5_000_000)

    return case


def pg_swept(*, queues: bool) -> Callable[[Calls], str]:
    """All that there is, long after its use."""

    def case(calls: Calls) -> str:
        run = calls.database.execute
        run(EMPTY)
        run(b"UPDATE aiolock.swept SET due = 0, last = ''")
        if queues:
            calls.sharers()
            calls.readers(left=-20 * MINUTE)
            calls.tombstones(-20 * MINUTE)
            run(b"INSERT INTO aiolock.names (name, fence) VALUES (%s, 1)", (calls.name,))
        else:
            calls.clients()
            run(
                b"INSERT INTO aiolock.names (name, fence)"
                b" SELECT int4send(i), 1 FROM generate_series(1, %s) i",
                (MANY,),
            )
        run(b"UPDATE aiolock.clients SET seen = now() - interval '2 hours'")
        wait_until(lambda: int(calls.timed("sweep(%s)", _SWEPT)) < _SWEPT, within=90)
        left = [calls.value(f"SELECT count(*) FROM aiolock.{table}") for table in TABLES]
        assert left == ["0"] * len(left)
        return ""

    return case


def pg_listening(calls: Calls) -> str:
    """A thousand clients that listen, and were seen long ago."""
    calls.database.execute(EMPTY)
    with psycopg.connect(calls.database.info.dsn) as listening:
        listening.execute(b"SELECT pg_advisory_lock(i) FROM generate_series(1, 1000) i")
        calls.database.execute(
            b"INSERT INTO aiolock.clients SELECT 'c' || i, i, 'host', 1, now() - interval '2 hours'"
            b" FROM generate_series(1, 1000) i"
        )
        wait_until(lambda: int(calls.timed("sweep(%s)", _SWEPT)) < _SWEPT, within=90)
    seen = "SELECT count(*) FROM aiolock.clients WHERE seen > now() - interval '1 hour'"
    assert calls.value(seen) == "1000"
    return ""


PG_CASES: Final[dict[str, Callable[[Calls], str]]] = {
    "dead": pg_dead,
    "stuck": pg_stuck,
    "stuck readers": pg_stuck_readers,
    "full": pg_full,
    "done": pg_done,
    "broken": pg_broken,
    "requested": pg_requested,
    "downgrade": pg_downgrade,
    "count": pg_count(2),
    "count not reached": pg_count(5),
    "permits": pg_permits,
    "dead sharers": pg_dead_sharers,
    "stuck sharers": pg_stuck_sharers,
    "full share": pg_full_share,
    "permits of a share": pg_permits_of_shares(1),
    "permits of shares": pg_permits_of_shares(MANY),
    "status": pg_status,
    "notify again": pg_notify_again,
    "deferred": pg_deferred,
    "tombstones": pg_tombstones(MINUTE),
    "tombstones that are over": pg_tombstones(-MINUTE),
    "swept queue": pg_swept(queues=True),
    "swept names": pg_swept(queues=False),
    "swept, and listening": pg_listening,
}
TABLES: Final = (
    *("names", "waiters", "grants", "tombstones", "clients"),
    *("accounts", "virtual_times"),
)
EMPTY: Final = f"TRUNCATE {', '.join(f'aiolock.{table}' for table in TABLES)}".encode()
SETTLED: Final = """
SELECT pg_sleep(greatest(
    0.0, 5.1 - extract(epoch FROM clock_timestamp() - pg_postmaster_start_time())))
"""
"""Waits until who does not listen is taken for dead."""
TIMED: Final = """
CREATE OR REPLACE FUNCTION timed(call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    began timestamptz := clock_timestamp();
    answer text;
BEGIN
    EXECUTE call INTO answer;
    RETURN concat_ws(' ', extract(epoch FROM clock_timestamp() - began) * 1000, answer);
END $$;
"""


@pytest.mark.alone
@pytest.mark.one_loop
@pytest.mark.parametrize("case", PG_CASES)
def test_postgres_functions_on_ten_thousand_entries_stay_below_the_time_limit(
    postgres_server: PostgresServer, case: str
) -> None:
    """By the clock, or the processor time, and the quickest of some: the machine may be busy."""
    with postgres_server.connect() as database:
        for name, value in PINNED.items():
            database.execute(f"SET {name} = {value}".encode())
        database.execute(TIMED.encode())
        database.execute(b"SET statement_timeout = '3min'")
        database.execute(SETTLED.encode())

        def run(number: int) -> list[float]:
            # Of other names: after TRUNCATE, all would be planned again.
            calls = Calls(database, f"{case} {number}".encode())
            calls.go_on(PG_CASES[case](calls))
            return calls.took

        try:
            # All four: what later cases find planned and written depends on it.
            check_quick([run(number) for number in range(4)])
        finally:
            database.execute(EMPTY)


@pytest.mark.alone
@pytest.mark.one_loop
def test_postgres_group_of_ten_thousand_enters_far_within_the_statement_timeout(
    postgres_server: PostgresServer,
) -> None:
    """It enters as a whole, so in no parts; one after the other took a dozen seconds."""
    form = _form(Form(claim=9000, shared=True, rule=Rule.GROUP, number=MANY + 1))
    with postgres_server.connect() as database:
        database.execute(TIMED.encode())
        took = list[float]()
        for number in range(3):
            calls = Calls(database, f"group {number}".encode())
            database.execute(
                b"INSERT INTO aiolock.waiters SELECT (aiolock._waiter(%s, i, 'ada', i, %s)).*"
                b" FROM generate_series(1, %s) i",
                (calls.name, form, MANY),
            )
            answer = calls.call("acquire(%s, 'ada', 0, %s, 60000, 0, true, 0, 0)", form)
            assert answer.startswith("granted ")
            assert answer.count("\ngranted ") == MANY
            took += calls.took
        database.execute(EMPTY)
    assert min(took) < 1000, took


@pytest.mark.parametrize("flushed", [False, True])
def test_postgres_group_behind_a_lock_is_pushed_to_each_party_once(
    postgres_server: PostgresServer, *, flushed: bool
) -> None:
    """In the order of the queue: with the answer, at the commit, or by the flush."""
    form = _form(Form(claim=9000, shared=True, rule=Rule.GROUP, number=6))
    with postgres_server.connect() as database, postgres_server.connect() as listening:
        calls = Calls(database, f"group {flushed}".encode())
        fence = calls.acquire("ada", LOCK)
        for key, client in enumerate(("bob", "eve")):
            hello = b"INSERT INTO aiolock.clients VALUES (%s, %s, 'host', 1)"
            database.execute(hello, (client, 9_000_000 + key))
            listening.execute(b"SELECT pg_advisory_lock(%s)", (9_000_000 + key,))
            listening.execute(f'LISTEN "aiolock:{client}"'.encode())
        for seq, client in enumerate(["bob", "ada", "eve", "bob", "eve", "ada"], 1):
            ask = "SELECT aiolock.acquire(%s, %s, %s, %s, 60000, 0, true, 0, 0)"
            calls.value(ask, calls.name, client, seq, form)
        release = "SELECT aiolock.release(%s, 'ada', 0, %s, true, 0, %s)"
        answer = calls.value(release, calls.name, fence, flushed)
        told = [] if flushed else [*listening.notifies(timeout=10, stop_after=4)]
        assert not [*listening.notifies(timeout=0)]
        database.execute(b"SELECT aiolock.flush()")
        told += [*listening.notifies(timeout=10, stop_after=4)] if flushed else []
        assert not [*listening.notifies(timeout=0)]
        held = database.execute(
            b"SELECT seq, fence FROM aiolock.grants WHERE name = %s ORDER BY fence", (calls.name,)
        ).fetchall()
        database.execute(EMPTY)
    assert [seq for seq, _ in held] == [1, 2, 3, 4, 5, 6]
    own = [line.split() for line in answer.split("\n")[1:]]
    assert [(int(push[1]), int(push[3])) for push in own] == [held[1], held[5]]
    for client, places in (("bob", (0, 3)), ("eve", (2, 4))):
        pushes = [each.payload.split() for each in told if each.channel == f"aiolock:{client}"]
        assert [(int(push[1]), int(push[3])) for push in pushes] == [held[at] for at in places]


# --- One part after the other


@pytest.fixture(params=["redis", "memory", "postgres"])
def connect(
    request: pytest.FixtureRequest, redis_server: RedisServer, prefix: str
) -> Callable[[], Peer]:
    """Makes clients of one store that ask nothing by themselves."""
    if request.param == "redis":
        return lambda: Peer(store_on(redis_server.url, prefix))
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_server").url("app")
        return lambda: Peer(postgres.from_url(url, prefix))
    server = MemoryServer()
    return lambda: Peer(MemoryStore(server))


async def queue(peer: Peer, count: int, form: Form = PLAIN) -> list[Place]:
    """Queue so many waiters."""
    return await asyncio.gather(*(peer.queue("n", peer.waiter(form)) for _ in range(count)))


@pytest.mark.parametrize("side", ["release", "give up", "downgrade"])
async def test_waiter_behind_many_dead_waiters_is_granted_without_asking(
    connect: Callable[[], Peer], side: str
) -> None:
    """The client that let them pass waits for nothing, and yet it goes on."""
    async with connect() as ours, connect() as theirs, connect() as gone:
        form = replace(PLAIN, downgrades=True) if side == "downgrade" else PLAIN
        reads = side == "give up"
        held = await ours.take("n", ours.waiter(READER if reads else form))
        before = await queue(ours, 1) if reads else []
        await queue(gone, 3 * PART + 10)
        last = await theirs.queue("n", theirs.waiter(PLAIN if side == "release" else READER))
        await ours.sees_end_of(gone)
        if side == "release":
            assert await ours.release("n", held) == WAS_HOLDER
        elif side == "give up":
            assert await ours.leave("n", before[0].waiter) == WAS_QUEUED
        else:
            assert await ours.downgrade("n", held) == WAS_HOLDER
        async with asyncio.timeout(10):
            handed = await theirs.handed()
        assert handed.waiter == last.waiter
        assert not (await ours.store.submit(ReadStatus("n"))).waiters
        await theirs.confirm("n", handed)


async def test_try_behind_many_dead_waiters_is_busy_without_place_until_granted(
    connect: Callable[[], Peer],
) -> None:
    """The answer is not that the lock is taken: nobody has it."""
    async with connect() as ours, connect() as gone:
        held = await ours.take("n")
        await queue(gone, 3 * PART + 10)
        await ours.sees_end_of(gone)
        await ours.expire("n", held)
        answer, asked = await ours.ask("n", wait=False), 1
        while isinstance(answer, Busy):
            assert answer == Busy(-1)
            answer, asked = await ours.ask("n", wait=False), asked + 1
        assert isinstance(answer, Granted)
        assert asked > 1


async def test_stuck_client_in_a_long_queue_loses_all_places_until_it_asks_again(
    connect: Callable[[], Peer],
) -> None:
    """They come back to their places, and are told to, however many parts that takes."""
    async with connect() as ours, connect() as stuck:
        held = await stuck.take("n")
        first = await ours.queue("n")
        theirs = await queue(stuck, 3 * PART + 10)
        (last,) = await queue(ours, 1)
        await stuck.expire("n", held)
        answer = await ours.ask("n", first.waiter, ticket=first.ticket)
        assert isinstance(answer, Granted)

        async def only_ours() -> bool:
            left = (await ours.store.submit(ReadStatus("n"))).waiters
            return [WaiterId(each.client, each.seq) for each in left] == [last.waiter]

        async with asyncio.timeout(10):
            while not await only_ours():
                pass
        # Once for the lease that has ended, and once for each of the further parts.
        for _ in range(4):
            async with asyncio.timeout(10):
                told = await stuck.told()
            assert (told.waiter, told.fence) == held
        back = [await stuck.ask("n", place.waiter, ticket=place.ticket) for place in theirs[-2:]]
        assert all(isinstance(each, Queued) and each.displaced for each in back)
        assert [each.seq for each in (await ours.store.submit(ReadStatus("n"))).waiters] == [
            *(place.waiter.seq for place in theirs[-2:]),
            last.waiter.seq,
        ]


@pytest.mark.parametrize("waits_for", [1, 2])
async def test_post_of_a_count_in_a_long_queue_grants_all_its_waiters(
    connect: Callable[[], Peer], waits_for: int
) -> None:
    """Also those behind many that wait for a higher one, which stay."""
    async with connect() as ours, connect() as theirs:
        await queue(theirs, PART + 10, count_of(9))
        those = await queue(theirs, 2 * GRANTS + 10, count_of(waits_for))
        await ours.store.submit(Post("n", 2, token="", declared=0, value="", remember=LONG))
        async with asyncio.timeout(10):
            handed = [await theirs.handed() for _ in those]
        assert [each.waiter for each in handed] == [each.waiter for each in those]
        assert len((await ours.store.submit(ReadStatus("n"))).waiters) == PART + 10


async def test_finish_in_a_long_queue_dismisses_all_waiters_as_done(
    connect: Callable[[], Peer],
) -> None:
    """And each client is told so; one that asks before its turn has left, too."""
    once = replace(PLAIN, once=True)
    async with connect() as ours, connect() as theirs, connect() as others:
        held = await ours.take("n", ours.waiter(once))
        await queue(theirs, 2 * PART + 10, once)
        (last,) = await queue(others, 1, once)
        assert await ours.finish("n", held, LONG) == WAS_HOLDER
        answer = await others.ask("n", last.waiter, ticket=last.ticket)
        assert isinstance(answer, Done)
        async with asyncio.timeout(10):
            await theirs.told_done()
            while (await ours.store.submit(ReadStatus("n"))).waiters:
                pass


def test_acquire_of_a_waiter_not_yet_dismissed_answers_done_and_dequeues(lua: Scripts) -> None:
    """Its answer is final, so its place would be left to nobody."""
    held = holder(lua, "xo9000:ada:0")
    waiters(lua, "xo9000", PART + 10)
    last = lua.acquire("xo9000:bob:1", MINUTE, 0, 0)
    assert isinstance(last, Queued)
    assert lua.finish(*held, MINUTE) == WAS_HOLDER
    assert len(lua.kept.queue) == 11
    assert isinstance(lua.acquire("xo9000:bob:1", MINUTE, last.ticket, 0), Done)
    assert len(lua.kept.queue) == 10
    assert "xo9000:bob:1" not in lua.kept.queue
    lua.go_on()
    assert not lua.kept.queue


async def test_redis_release_with_a_cancelled_caller_grants_past_many_dead_waiters(
    redis_server: RedisServer, prefix: str
) -> None:
    """Its caller was cancelled: the release is carried out, and so is the rest of it."""
    ours, theirs, gone = (Peer(store_on(redis_server.url, prefix)) for _ in range(3))
    async with ours, theirs, gone:
        held = await ours.take("n")
        await queue(gone, 2 * PART)
        last = await theirs.queue("n")
        await ours.sees_end_of(gone)
        ours.release("n", held).cancel()
        async with asyncio.timeout(10):
            assert (await theirs.handed()).waiter == last.waiter


async def test_postgres_deferred_release_before_many_dead_waiters_reaches_a_living_one(
    postgres_server: PostgresServer, prefix: str
) -> None:
    """It may have to ask when the transaction ends, as the client that releases may be gone."""
    url = postgres_server.url("app")
    ours, theirs, gone = (Peer(postgres.from_url(url, prefix)) for _ in range(3))
    async with ours, theirs, gone:
        held = await ours.take("n")
        await queue(gone, 2 * PART + 10)
        last = await theirs.queue("n")
        await ours.sees_end_of(gone)
        with postgres_server.connect() as checking:
            checking.autocommit = False
            check = b"SELECT FROM aiolock.grants WHERE fence = %s FOR KEY SHARE"
            assert checking.execute(check, (held.fence,)).rowcount == 1
            assert await ours.release("n", held) == WAS_HOLDER
            async with asyncio.timeout(10):
                await theirs.told_done()
            answer = await theirs.ask("n", last.waiter, ticket=last.ticket)
            assert isinstance(answer, Queued)
            checking.rollback()
        async with asyncio.timeout(10):
            while not isinstance(await theirs.ask("n", last.waiter, ticket=last.ticket), Granted):
                pass


def test_postgres_notification_of_many_claims_pushes_each_once_in_order(
    postgres_server: PostgresServer,
) -> None:
    """In parts, and those of no other grant: then the first waiter is asked to ask again."""
    with postgres_server.connect() as database:
        database.execute(b"SET aiolock.in_parts = on")
        database.execute(TIMED.encode())
        calls = Calls(database, b"told")
        fences = calls.readers()[: 2 * PART + 10]
        calls.waiters(clients=1)
        claimed = (
            b"UPDATE aiolock.grants SET claimed = true, client = 'gone0' WHERE fence = ANY (%s)"
        )
        database.execute(claimed, (fences,))
        database.execute(b'LISTEN "aiolock:gone0"')
        calls.go_on(calls.call("go_on(%s, '', 'notify', 0)"))
        pushes = [each.payload.split() for each in database.notifies(timeout=0)]
        database.execute(EMPTY)
    assert [int(push[3]) for push in pushes[:-1]] == fences
    assert pushes[-1][0] == "done"
    assert len(calls.took) == 3


async def test_break_with_many_fences_ends_exactly_their_grants(
    connect: Callable[[], Peer],
) -> None:
    """They are found by their fences, those of others stay."""
    async with connect() as ours, connect() as theirs:
        held = [await theirs.take("n", theirs.waiter(READER)) for _ in range(9)]
        fences = [grant.fence for grant in held]
        assert await ours.store.submit(Break("n", [*fences[:4], *fences[:2], 12345])) == 4
        assert [
            each.fence for each in (await ours.store.submit(ReadStatus("n"))).holders
        ] == fences[4:]
        assert await ours.store.submit(Break("n", fences)) == 5


async def test_request_release_with_many_holders_asks_and_counts_all(
    connect: Callable[[], Peer],
) -> None:
    """In several parts, and the answer counts all of them."""
    async with connect() as ours, connect() as theirs:
        many = 2 * PART + 10
        held = [await theirs.take("n", theirs.waiter(READER)) for _ in range(many)]
        assert await ours.store.submit(RequestRelease("n")) == many
        async with asyncio.timeout(10):
            assert sorted([await theirs.requested_of() for _ in held]) == held


async def test_break_of_a_lock_with_many_holders_is_sent_in_several_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In several requests, none of which is long."""
    server, asked = MemoryServer(), list[int]()
    async with aiolock.connect(server) as client:
        lock = client.rwlock("a", on_lost="signal")
        leases = [await asking(lock.read()) for _ in range(2 * GRANTS + 10)]
        carry_out = server.run

        def counted(operation: Operation[Any]) -> Any:
            if isinstance(operation, Break):
                asked.append(len(operation.fences))
            return carry_out(operation)

        monkeypatch.setattr(server, "run", counted)
        assert await lock.break_()
        assert asked == [GRANTS, GRANTS, 10]
        await asyncio.gather(*(lease.lost.wait() for lease in leases))


# --- The machine


def step_on(state: NameState, *, alive: str = "", now: int = NOW, in_parts: bool = True) -> Step:
    """A step for which these clients listen."""
    return Step("n", state, now, lambda client: client in alive.split(), in_parts=in_parts)


def crowd(count: int, client: str = "gone") -> NameState:
    """So many waiters of a client, behind a holder."""
    state = NameState()
    for seq in range(count + 1):
        step_on(state, alive=client, now=NOW + seq).run(
            Acquire("n", WaiterId("ada" if not seq else client, seq), LOCK, MINUTE)
        )
    return state


def test_step_that_is_not_in_parts_does_all_and_leaves_no_rest() -> None:
    """A store that loads and saves all of a name gains nothing by parts."""
    state = crowd(3 * PART)
    (held,) = state.holders
    step = step_on(state, in_parts=False)
    assert step.run(Release("n", held.waiter, LOCK, held.fence)) == WAS_HOLDER
    assert step.rest is None
    assert state.idle


def test_newcomer_to_a_full_queue_checks_a_part_for_dead_and_enters() -> None:
    """One that finds some enters."""
    state = crowd(3 * CHECKS_IF_FULL)
    most = len(state.queue)
    newcomer = WaiterId("bob", 1)
    looked = list[str]()

    def is_gone(client: str) -> bool:
        looked.append(client)
        return False

    step = Step("n", state, NOW, is_gone, in_parts=True)
    answer = step.run(Acquire("n", newcomer, LOCK, MINUTE, max_waiters=most))
    assert isinstance(answer, Queued)
    assert len(looked) <= CHECKS_IF_FULL
    assert len(state.queue) == most - len(looked) + 1
    for waiter in state.waiting:
        assert waiter.client in {"gone", "bob"}
    step = step_on(state, alive="gone bob")
    full = step.run(Acquire("n", WaiterId("cyd", 1), LOCK, MINUTE, max_waiters=5))
    assert full == Full(len(state.queue))


def test_step_that_leaves_a_rest_grants_no_waiter_not_yet_looked_at() -> None:
    """A waiter of a stuck client would cost a claim: the step ends before it."""
    state = NameState()
    reads = Form(claim=9000, shared=True)

    def acquire(client: str, seq: int, form: Form, now: int) -> Step:
        step = step_on(state, alive="ada stuck", now=now)
        step.run(Acquire("n", WaiterId(client, seq), form, MINUTE))
        return step

    acquire("stuck", 0, LOCK, NOW)
    for seq in range(1, PART + 1):
        acquire("ada" if seq > PART - 3 else "stuck", seq, reads, NOW + seq)
    acquire("stuck", PART + 1, reads, NOW + PART + 1)
    step = acquire("ada", PART + 2, reads, NOW + 2 * MINUTE * 1000)
    events = [push.event for push in step.pushes]
    granted = [event.waiter for event in events if isinstance(event, GrantPushed)]
    assert granted == [WaiterId("ada", seq) for seq in range(PART - 2, PART + 1)]
    assert step.rest is not None
    assert step.rest.work == "stuck"
    later = step_on(state, alive="ada stuck", now=NOW + 2 * MINUTE * 1000)
    later.go_on(step.rest)
    assert later.rest is None
    assert [type(push.event) for push in later.pushes] == [GrantLost, GrantPushed]
    assert {grant.waiter.client for grant in state.holders} == {"ada"}
