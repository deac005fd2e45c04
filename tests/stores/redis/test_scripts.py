"""What the scripts do when the server's clock does not behave, and what their sources promise."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import redis

import aiolock
from aiolock.protocol import (
    MAX_AHEAD,
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_QUEUED,
    Answer,
    Before,
    Busy,
    Done,
    Full,
    Granted,
    Late,
    Queued,
    Status,
    WaiterId,
)
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis import _sharing as sharing
from aiolock.stores.redis import _voting as voting
from aiolock.stores.redis._codec import encode
from aiolock.stores.redis._errors import ACL_RULE
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._scripts import KEPT
from aiolock.testing import Peer
from aiolock.testing._peer import Grant
from tests.proof.test_redis_model import Scripts
from tests.support.servers import RedisServer, store_on

FAR_AHEAD = 4_000_000_000_000_000  # µs: the year 2096

SCRIPTS = [
    script
    for module in (scripts, sharing, voting)
    for script in vars(module).values()
    if isinstance(script, scripts.Script)
]


@pytest.mark.parametrize("where", ["the_key", "the_holder", "the_holder_before_a_reader"])
async def test_fence_after_the_clock_was_set_back_is_higher_than_before(
    redis_server: RedisServer, prefix: str, where: str
) -> None:
    """The last fence is remembered by its key and, should that be gone, by the holder's grant."""
    holders, _, fence = Names(prefix).keys("lock:n")
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        lock = client.lock("n", ttl=60)
        lease = await lock.acquire()
        assert lease is not None
        hold = lease._hold
        if where == "the_key":
            redis_server.call("SET", fence, str(FAR_AHEAD))
        else:
            redis_server.call("DEL", fence, holders)
            text = encode(hold.waiter, hold.policy.form, blind=False)
            redis_server.call("ZADD", holders, "4000000000000", f"{text}:{FAR_AHEAD}")
            hold.fence = FAR_AHEAD
        async with aiolock.connect(redis_server.url, prefix=prefix) as other:
            reads = where.endswith("reader")
            theirs = other.rwlock("n", ttl=60).read() if reads else other.lock("n", ttl=60)
            queued = asyncio.create_task(theirs.acquire(timeout=20))
            async with asyncio.timeout(30):
                while not (await lock.status()).waiters:
                    pass
            await lease.release()
            second = await queued
            assert second is not None
            assert second.fence == FAR_AHEAD + 1
            await second.release()


def test_open_script_tries_every_command_of_the_other_scripts() -> None:
    """A right that is missing is found when the client opens, so `open` must use them all."""
    used = {
        command
        for script in SCRIPTS
        for command in re.findall(r"redis\.p?call\('([A-Z]+)'", script.source)
    }
    tried = set(re.findall(r"redis\.p?call\('([A-Z]+)'", scripts.OPEN.source))
    assert used - tried == {"PUBLISH", "SPUBLISH", "SCAN", "CLUSTER"}, "`presence` tries PUBLISH"
    granted = {word.lstrip("+").partition("|")[0].upper() for word in ACL_RULE.split()[2:]}
    assert used - granted == {"INFO", "SCAN", "CLUSTER", "SPUBLISH"}, (
        "these are tried with pcall, and may be denied"
    )


ROOT = Path(__file__).parents[3]
LUA = resources.files("aiolock.stores.redis").joinpath("lua")
FILES = {
    folder + entry.name.removesuffix(".lua"): entry.read_text("utf-8")
    for folder in ("", "shares/", "quorum/")
    for entry in LUA.joinpath(folder).iterdir()
    if entry.is_file()
}


def called(name: str) -> str:
    """What a function is called, by the name of its file."""
    return name.rpartition("/")[2]


FUNCTIONS = {name for name, text in FILES.items() if f"\nlocal function {called(name)}(" in text}


@pytest.mark.parametrize("name", FILES)
def test_lua_file_begins_with_a_description_of_its_arguments(name: str) -> None:
    """A script says its KEYS or ARGV and what it returns, a function what it is given."""
    text = FILES[name]
    if name in {script.name for script in SCRIPTS}:
        assert text.startswith(f"-- {name}:")
        assert re.search(r"^-- (KEYS|ARGV)  ", text, re.MULTILINE)
        assert re.search(r"^-- returns  ", text, re.MULTILINE)
    elif name in FUNCTIONS:
        (parameters,) = re.findall(r"^local function \w+(\(.*\))$", text, re.MULTILINE)
        assert text.startswith(f"-- {called(name)}{parameters}:")
    else:
        assert name in {"clock", "names", "shares/index", "quorum/names"}
        assert text.startswith(f"-- {name}: ")


@pytest.mark.parametrize("name", FILES)
def test_lua_file_includes_at_its_top_all_functions_it_uses(name: str) -> None:
    """So that it can be read alone."""
    includes = re.findall(r"^--@include ([\w/]+)$", FILES[name], re.MULTILINE)
    code = re.sub(r"--.*|^local function .*", "", FILES[name], flags=re.MULTILINE)
    used = {each for each in FUNCTIONS if re.search(rf"(?<![\w.]){called(each)}\(", code)}
    if name != "shares/index":
        assert set(includes) - {"clock", "names", "shares/index", "quorum/names"} == used
    assert len(includes) == len(set(includes))
    top = re.match(r"(--.*\n|\n|local CHANNELS = .*\n)*", FILES[name])
    assert top is not None
    assert "--@include" not in FILES[name][top.end() :]


def test_script_made_after_the_import_reads_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package may have been replaced by then: its scripts are those that were imported."""

    def replaced(*_: object, **__: object) -> str:
        return "-- another version's"

    source = scripts.OPEN.source
    scripts._read.cache_clear()
    monkeypatch.setattr(Path, "read_text", replaced)
    assert scripts.Script("open", str).source == source


def test_protocol_page_shows_every_lua_file() -> None:
    """As it is, for the page includes it."""
    page = (ROOT / "docs" / "protocol.md").read_text("utf-8")
    shown = re.findall(r'--8<-- "aiolock/stores/redis/lua/((?:shares/)?\w+)\.lua"', page)
    assert sorted(shown) == sorted(name for name in FILES if not name.startswith("quorum/"))


def test_scripts_use_only_the_keys_of_their_call() -> None:
    """A cluster must know from the call which keys a script touches."""
    for script in SCRIPTS:
        for call, command, key in re.findall(r"redis\.(p?call)\('(\w+)', ?([^,)]+)", script.source):
            if (call, command, key) == ("pcall", "GET", "key"):
                continue  # where a client says who it is: where that is refused, nobody knows
            if command in {"SCAN", "CLUSTER"}:
                assert script in {scripts.LIST, scripts.SLOTS}  # which are sent to each server
                continue
            if command not in {"PUBLISH", "SPUBLISH", "PUBSUB", "INFO"}:
                assert key == "holders" or "KEYS[" in key, (script, key)
                assert ".." not in key, (script, key)


@pytest.fixture
def lua(redis_server: RedisServer) -> Iterator[Scripts]:
    """The scripts by themselves, called one after the other."""
    lua = Scripts(redis_server)
    yield lua
    lua.close()


def test_scripts_release_skips_a_client_not_counted_and_pushes_it_nothing(lua: Scripts) -> None:
    """A replica passes on what is published, but does not count: then nothing is published."""
    listening = lua.redis.pubsub()
    # A pattern is not counted either, so this stands for somebody who listens elsewhere.
    listening.psubscribe(f"{lua.names.channels}*")
    assert listening.get_message(timeout=10)["type"] == "psubscribe"
    lua.listen("ada")
    for client in ("ada", "gone", "ada"):
        lua.acquire(f"x9000:{client}:{len(lua.redis.zrange(lua.keys[1], 0, -1))}", 60_000, 0, 0)
    (held,) = lua.holders()
    lua.release(*held)
    assert [waiter for waiter, _ in lua.holders()] == ["x9000:ada:1"]
    heard = [push["channel"] for push in iter(lambda: listening.get_message(timeout=0.05), None)]
    assert f"{lua.names.channels}gone" not in heard
    listening.close()


def test_fence_after_a_break_is_above_all_local_handoffs(lua: Scripts) -> None:
    """A lock is broken, and nobody waits for it: the next grant has a fence above all of a run."""
    ahead = FAR_AHEAD  # the server's clock was set back since
    lua.redis.zadd(lua.keys[0], {f"x9000:ada:1:{ahead}": 4_000_000_000_000})
    assert lua.break_([ahead]) == 1
    granted = lua.acquire("x9000:ada:2", 60_000, 0, 0)
    assert isinstance(granted, Granted)
    assert granted.fence > ahead + MAX_AHEAD


def test_scripts_max_waiters_does_not_count_dead_waiters(lua: Scripts) -> None:
    """Where as many wait as may, those whose process is gone make room."""
    lua.listen("ada")
    lua.acquire("x9000:ada:1", 60_000, 0, 0)
    lua.acquire("x9000:gone:1", 60_000, 0, 1)
    assert isinstance(lua.acquire("x9000:ada:2", 60_000, 0, 1), Queued)
    assert isinstance(lua.acquire("x9000:ada:3", 60_000, 0, 1), Full)


def test_holders_key_lives_as_long_as_the_longest_lease(lua: Scripts) -> None:
    """A reader with a short lease, entering or renewing, does not shorten what others stand in."""
    lua.acquire("s9000:ada:1", 3_600_000, 0, 0)
    lua.acquire("s9000:ada:2", 1_000, 0, 0)
    short = next(grant for grant in lua.holders() if grant[0] == "s9000:ada:2")
    assert lua.renew([(*short, 2_000)]) == [True]
    assert lua.redis.pttl(lua.keys[0]) > 3_600_000


def test_kept_time_of_the_client_is_that_of_the_acquire_script() -> None:
    """It says so where it asks, which spares the script to read the terms of a free lock."""
    assert f"lease + {KEPT} +" in scripts.ACQUIRE.source


@pytest.mark.parametrize("mode", ["x", "s"])
@pytest.mark.parametrize("terms", ["~300000", "+300000", "@86400000"])
def test_holders_key_lives_as_long_as_the_terms_that_close_the_lock(
    lua: Scripts, mode: str, terms: str
) -> None:
    """Should a holder die, it is closed for as long as it said, also if nobody asks before that."""
    lua.acquire("x1000:ada:1", 60_000, 0, 0)
    lua.acquire(f"{mode}1000{terms}:ada:2", 1_000, 0, 0)
    lua.release(*lua.holders()[0])
    closed = int(terms[1:])
    assert lua.redis.pttl(lua.keys[0]) > closed
    (held,) = lua.holders()
    assert lua.renew([(*held, 1_000)]) == [True]
    assert lua.redis.pttl(lua.keys[0]) > closed


@pytest.mark.parametrize("option", ["min_hold", "lock_delay"])
async def test_holders_key_of_a_free_lock_lives_as_long_as_its_closing_option(
    redis_server: RedisServer, prefix: str, option: str
) -> None:
    """There the client says for how long it is kept."""
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        terms: Any = {option: 300}
        async with client.lock("n", ttl=1, **terms):
            assert int(redis_server.call("PTTL", Names(prefix).keys("lock:n")[0])) > 300_000


def test_scripts_without_the_right_to_pubsub_take_no_client_for_dead(
    redis_server: RedisServer,
) -> None:
    """A right that was taken away does not stop a script in the middle, with a waiter taken out."""
    lua = Scripts(redis_server)
    try:
        rights = ("on", ">pw", "~*", "&*", "+@all", "-pubsub")
        lua.redis.execute_command("ACL", "SETUSER", "nosy", *rights)
        lua.scripted.raw = redis.Redis(port=redis_server.port, username="nosy", password="pw")
        for client in ("ada", "bob"):
            assert isinstance(lua.acquire(f"sf9000&3/3:{client}:1", 60_000, 0, 0), Queued)
        assert isinstance(lua.acquire("sf9000&3/3:cyd:1", 60_000, 0, 0), Granted)
        assert len(lua.holders()) == 3, "the group is full, whoever listens"
    finally:
        lua.redis.acl_deluser("nosy")
        lua.close()


def test_release_of_the_last_holder_leaves_no_entry_but_permit_numbers(lua: Scripts) -> None:
    """Nothing is left of readers once they have left, and of permits only their number."""
    lua.acquire("s9000:ada:1", 60_000, 0, 0)
    lua.acquire("xd9000:bob:1", 60_000, 0, 0)
    lua.acquire("s9000:ada:2", 60_000, 0, 0)
    for waiter, fence in lua.holders():
        lua.release(waiter, fence)
    assert [key for key in lua.keys[:2] if lua.redis.exists(key)] == []
    lua.acquire("s9000*2/3:ada:1", 60_000, 0, 0)
    lua.release(*lua.holders()[0])
    assert set(lua.redis.zrange(lua.keys[0], 0, -1)) == {"used", "limit"}
    assert 0 < lua.redis.pttl(lua.keys[0]) <= 120_000


# --- Newcomers that ask together


def asked(lua: Scripts, seqs: Sequence[int]) -> list[Answer]:
    """What they are told who ask in one call."""
    return lua.acquire_several([f"x9000:ada:{seq}" for seq in seqs], 60_000)


@pytest.mark.parametrize("taken", [False, True])
def test_acquire_several_queues_newcomers_in_order_with_their_predecessor(
    lua: Scripts, taken: bool
) -> None:
    """Each directly behind the one before it, and is told so."""
    lua.listen("ada")
    if taken:
        lua.acquire("x9000:bob:1", 60_000, 0, 0)
    seqs = range(8, 13)  # as texts the tenth would come before the ninth
    first, *others = asked(lua, seqs)
    assert isinstance(first, Queued if taken else Granted)
    before = Before(WaiterId("ada", 8), 0 if isinstance(first, Queued) else first.fence)
    last = first.ticket if isinstance(first, Queued) else 0
    for seq, answer in zip(seqs[1:], others, strict=True):
        assert isinstance(answer, Queued)
        assert answer.before == before
        assert answer.place == (1 if before.fence else 2)
        assert answer.ticket > last
        assert 50_000 < answer.until <= 60_000
        assert abs(answer.now - time.time() * 1e6) < MINUTE
        before, last = Before(WaiterId("ada", seq), 0), answer.ticket
    queue = [f"x9000:ada:{seq}" for seq in seqs]
    assert lua.redis.zrange(lua.keys[1], 0, -1) == (queue if taken else queue[1:])
    assert 0 < lua.redis.pttl(lua.keys[1]) <= 300_000


def test_acquire_several_with_one_given_up_queues_only_the_others(lua: Scripts) -> None:
    """A copy that comes late does not queue it, and does the others no harm."""
    lua.acquire("x9000:bob:1", 60_000, 0, 0)
    lua.release("x9000:ada:2", 0, tombstone_until=in_a_minute())
    first, given_up, third = asked(lua, (1, 2, 3))
    assert given_up == Busy(0)
    assert isinstance(first, Queued)
    assert isinstance(third, Queued)
    assert lua.redis.zrange(lua.keys[1], 0, -1) == ["x9000:ada:1", "x9000:ada:3"]


def test_acquire_several_with_one_holder_returns_its_grant(lua: Scripts) -> None:
    """A copy that comes late finds its grant, and does not queue it."""
    granted = lua.acquire("x9000:ada:2", 60_000, 0, 0)
    first, again, third = asked(lua, (1, 2, 3))
    assert isinstance(granted, Granted)
    assert isinstance(again, Granted)
    assert again.fence == granted.fence
    assert isinstance(first, Queued)
    assert isinstance(third, Queued)
    assert lua.redis.zrange(lua.keys[1], 0, -1) == ["x9000:ada:1", "x9000:ada:3"]


def test_acquire_several_with_one_waiter_keeps_its_place(lua: Scripts) -> None:
    """A copy that comes late finds it where it stands."""
    lua.acquire("x9000:bob:1", 60_000, 0, 0)
    waiting = lua.acquire("x9000:ada:2", 60_000, 0, 0)
    _, again, _ = asked(lua, (1, 2, 3))
    assert isinstance(waiting, Queued)
    assert isinstance(again, Queued)
    assert again.ticket == waiting.ticket
    queue = [f"x9000:ada:{seq}" for seq in (2, 1, 3)]
    assert lua.redis.zrange(lua.keys[1], 0, -1) == queue


def test_acquire_several_with_the_first_waiting_queues_the_rest_at_the_tail(lua: Scripts) -> None:
    """A copy that comes late does not let the others overtake who has come meanwhile."""
    lua.looks = False
    lua.acquire("x9000:bob:1", 60_000, 0, 0)
    lua.acquire("x9000:ada:1", 60_000, 0, 0)
    lua.acquire("x9000:bob:2", 60_000, 0, 0)
    asked(lua, (1, 2, 3))
    queue = ["x9000:ada:1", "x9000:bob:2", "x9000:ada:2", "x9000:ada:3"]
    assert lua.redis.zrange(lua.keys[1], 0, -1) == queue


def test_acquire_several_are_queued_before_a_waiter_of_lower_priority(lua: Scripts) -> None:
    """They stand before it, in order, and its client is told."""
    lua.listen("bob")
    lua.acquire("x9000:cyd:1", 60_000, 0, 0)
    lua.acquire("x9000!5:bob:1", 60_000, 0, 0)
    asked(lua, (1, 2, 3))
    queue = [*(f"x9000:ada:{seq}" for seq in (1, 2, 3)), "x9000!5:bob:1"]
    assert lua.redis.zrange(lua.keys[1], 0, -1) == queue
    assert ("void", "x9000!5:bob:1", 0) in lua.log


@pytest.mark.parametrize("closed", [False, True])
def test_acquire_several_beside_readers_are_queued_without_predecessor(
    lua: Scripts, closed: bool
) -> None:
    """Where others share the lock, or may soon, they wait as each would by itself."""
    lua.acquire("s9000~30000:bob:1", 60_000, 0, 0)
    if closed:
        lua.release(*lua.holders()[0])
    answers = asked(lua, (1, 2, 3))
    assert [type(answer) for answer in answers] == [Queued] * 3
    assert [answer.before for answer in answers if isinstance(answer, Queued)] == [None] * 3
    queue = [f"x9000:ada:{seq}" for seq in (1, 2, 3)]
    assert lua.redis.zrange(lua.keys[1], 0, -1) == queue


# --- What was given up does not act

MINUTE = 60_000_000  # µs


def in_a_minute() -> int:
    """That time, in µs."""
    return int(time.time() * 1e6) + MINUTE


def test_late_copy_of_a_command_is_refused_with_the_servers_clock(lua: Scripts) -> None:
    """What comes after its time is refused with the server's clock; what is in time is not."""
    lua.listen("ada")
    late, early = in_a_minute() - 2 * MINUTE, in_a_minute()
    assert isinstance(lua.acquire("x9000:ada:1", 60_000, 0, 0, early), Granted)
    assert isinstance(lua.acquire("x9000:ada:2", 60_000, 0, 0, early), Queued)
    held, before = lua.holders()[0], lua.redis.dump(lua.keys[0])
    renewals = [(*held, 90_000)]
    for answer in (
        lua.acquire("x9000:ada:3", 60_000, 0, 0, late),
        lua.acquire("x9000:ada:3", 60_000, -1, 0, late),
        lua.acquire("s9000*1/3:ada:3", 60_000, 0, 0, late),
        lua.renew(renewals, late),
        lua.post(7, "t:a", 0, "word", 90_000, not_after=late),
        lua.resize(3, 4, 90_000, "t", late),
        lua.request(late),
    ):
        assert isinstance(answer, Late)
        assert abs(answer.now - (early - MINUTE)) < MINUTE / 2
    assert lua.redis.dump(lua.keys[0]) == before
    assert lua.redis.zrange(lua.keys[1], 0, -1) == ["x9000:ada:2"]
    assert not lua.redis.exists(lua.value)
    assert lua.log == []
    assert lua.renew(renewals, early) == [True]
    assert lua.request(early) == 1


@pytest.mark.parametrize(
    "form", ["x9000", "xd9000", "s9000", "s9000*1/3", "sf9000&1/1", "sf9000^0"]
)
@pytest.mark.parametrize("taken", [False, True])
def test_late_copy_of_a_released_acquire_is_neither_granted_nor_queued(
    lua: Scripts, form: str, taken: bool
) -> None:
    """For as long as copies may come, a waiter that was released is not granted, nor queued."""
    lua.listen("ada")
    waiter, other = f"{form}:ada:1", f"{form}:ada:2"
    if taken:
        lua.acquire("s9000*3/3:ada:9" if "*" in form else "x9000:ada:9", 60_000, 0, 0)
    first = lua.acquire(waiter, 60_000, 0, 0)
    was = lua.release(waiter, 0, tombstone_until=in_a_minute())
    assert was == (WAS_HOLDER if isinstance(first, Granted) else WAS_QUEUED)
    for ticket in (0, 7, -1):
        assert lua.acquire(waiter, 60_000, ticket, 0) == Busy(0)
    assert waiter not in [who for who, _ in lua.holders()]
    assert lua.redis.zrange(lua.keys[1], 0, -1) == []
    assert type(lua.acquire(other, 60_000, 0, 0)) is type(first), "it is in nobody else's way"
    assert lua.redis.pttl(lua.keys[0]) > 50_000
    assert lua.release(waiter, 0, tombstone_until=in_a_minute()) == WAS_ABSENT


def test_tombstone_ends_at_its_time_and_is_removed_by_the_next(lua: Scripts) -> None:
    """It ends at its time; the next takes away those that have ended; the key, with the lease."""
    gone, waiter = "x9000:ada:1", "x9000:ada:2"
    assert lua.release(gone, 0, tombstone_until=int(time.time() * 1e6) - MINUTE) == WAS_ABSENT
    assert isinstance(lua.acquire(gone, 60_000, 0, 0), Granted)
    assert lua.release(*lua.holders()[0], tombstone_until=in_a_minute()) == WAS_HOLDER
    assert lua.release(waiter, 0, tombstone_until=in_a_minute()) == WAS_ABSENT
    assert lua.tombstones() == {gone, waiter}
    lua.redis.zadd(lua.keys[0], {f"!{gone}": 10**15 + 10**12 + 5})
    assert lua.release("x9000:ada:3", 0, tombstone_until=in_a_minute()) == WAS_ABSENT
    assert set(lua.redis.zrange(lua.keys[0], 0, -1)) == {f"!{waiter}", "!x9000:ada:3"}
    assert 0 < lua.redis.pttl(lua.keys[0]) <= 60_000 + KEPT


def test_tombstones_are_not_counted_as_holders(lua: Scripts) -> None:
    """Whatever looks at the holders passes over what was given up."""
    lua.listen("ada")
    for seq in range(3):
        lua.release(f"x9000:ada:{seq}", 0, tombstone_until=in_a_minute())
    assert lua.status() == Status("the {name}", (), ())
    assert lua.request() == 0
    assert lua.break_([0, 1, 2]) == 0
    assert isinstance(lua.acquire("x9000:ada:7", 60_000, 0, 0), Granted)
    assert isinstance(lua.acquire("x9000:ada:8", 60_000, 0, 0), Queued)
    assert len(lua.status().holders) == 1
    assert lua.release(*lua.holders()[0]) == WAS_HOLDER
    assert [waiter for waiter, _ in lua.holders()] == ["x9000:ada:8"]


def test_resize_sent_twice_does_not_undo_a_later_one(lua: Scripts) -> None:
    """A second copy answers what the first did, and changes nothing."""
    assert lua.resize(3, 4, 90_000, "ada.1", in_a_minute()) == 3
    assert lua.resize(3, 5, 90_000, "bob.1", in_a_minute()) == 4
    for _ in range(2):
        assert lua.resize(3, 4, 90_000, "ada.1", in_a_minute()) == 3
        assert lua.status().limit == 5
    assert lua.resize(3, 4, 90_000, "ada.11", in_a_minute()) == 5


def test_release_with_a_tombstone_on_a_full_server_is_carried_out(own_server: RedisServer) -> None:
    """At maxmemory a waiter is released, and its copies are refused, as at any other time."""
    lua = Scripts(own_server)
    try:
        lua.acquire("x9000:ada:1", 60_000, 0, 0)
        own_server.call("CONFIG", "SET", "maxmemory", "1")
        assert lua.release("x9000:ada:2", 0, tombstone_until=in_a_minute()) == WAS_ABSENT
        assert lua.release(*lua.holders()[0], tombstone_until=in_a_minute()) == WAS_HOLDER
        own_server.call("CONFIG", "SET", "maxmemory", "0")
        assert lua.acquire("x9000:ada:1", 60_000, 0, 0) == Busy(0)
        assert lua.acquire("x9000:ada:2", 60_000, 0, 0) == Busy(0)
    finally:
        lua.close()


async def test_release_after_a_broken_link_leaves_a_tombstone(
    redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a break a release leaves a tombstone; and of what was never sent there is nothing."""
    store = store_on(redis_server.url, prefix)
    async with Peer(store) as ann:
        pipe, waiter = store.session.pipe, ann.waiter()
        monkeypatch.setattr(pipe.copies, "tombstone_until", in_a_minute)  # as after a break
        pipe.copies.copies_may_arrive = True
        assert await ann.leave("n", waiter) == WAS_ABSENT
        assert await ann.ask("n", waiter) == Busy(0)
        grant = await ann.take("n")
        assert await ann.release("n", grant) == WAS_HOLDER
        assert await ann.ask("n", grant.waiter) == Busy(0)
        grant = await ann.take("n")
        assert await ann.release("n", grant, entered=False) == WAS_HOLDER
        again = await ann.ask("n", grant.waiter)
        assert isinstance(again, Granted), "who gives back a grant that came too late asks again"
        assert await ann.release("n", Grant(grant.waiter, again.fence)) == WAS_HOLDER
        monkeypatch.setattr(pipe, "forget", lambda _: True)  # as without a connection
        called = int(redis_server.call("INFO", "commandstats")["cmdstat_evalsha"]["calls"])
        unsent = ann.leave("n", waiter)
        assert await unsent == WAS_ABSENT
        assert int(redis_server.call("INFO", "commandstats")["cmdstat_evalsha"]["calls"]) == called


def test_finish_is_remembered_while_late_copies_may_arrive(lua: Scripts) -> None:
    """A late copy of the question that began it finds that it is done."""
    waiter = "xo3000:ada:1"
    granted = lua.acquire(waiter, 60_000, 0, 0)
    assert isinstance(granted, Granted)
    assert lua.finish(waiter, granted.fence, 10, tombstone_until=in_a_minute()) == WAS_HOLDER
    assert lua.redis.zrange(lua.keys[0], 0, 0, withscores=True)[0][1] - time.time() * 1e3 > 59_000
    assert isinstance(lua.acquire(waiter, 60_000, 0, 0), Done)


# --- Claims, and what is said of holders


def test_claim_is_marked_at_the_server_until_it_is_confirmed(lua: Scripts) -> None:
    """The end of a pushed grant's first lease is no whole number; that of any other is."""
    lua.listen("ada")
    for form in ("x9000", "xd9000", "s9000", "s9000*2/2"):
        lua.redis.delete(*lua.keys)
        for seq in (1, 2):
            lua.acquire(f"{form}:ada:{seq}", 60_000, 0, 0)
        if form == "s9000":
            assert lua.claims() == []
            continue
        lua.release(*lua.holders()[0])
        (held,) = lua.holders()
        assert lua.claims() == [f"{held[0]}:{held[1]}"]
        lua.renew([(*held, 0)])
        assert len(lua.claims()) == 1
        if "d" in form:
            assert lua.downgrade(*held) == WAS_HOLDER
            assert lua.claims() == [f"s{held[0][1:]}:{held[1]}"]
        assert lua.renew([(*held, 60_000)]) == [True]
        assert lua.claims() == []


def test_status_and_busy_tell_where_each_client_runs(lua: Scripts) -> None:
    """A status, and the answer to one who does not wait, say what each client says of itself."""
    lua.listen("ada")
    lua.redis.set(lua.names.client("ada"), "the host 42", px=MINUTE)
    lua.redis.lpush(lua.names.client("bob"), "not a text")
    lua.acquire("s9000:ada:1", 60_000, 0, 0)
    lua.acquire("s9000:bob:1", 70_000, 0, 0)
    lua.acquire("x9000:cyd:1", 60_000, 0, 0)
    status = lua.status()
    parties = (*status.holders, *status.waiters)
    assert [(p.host, p.pid, p.alive) for p in parties] == [
        ("the host", 42, True),
        ("", 0, False),
        ("", 0, False),
    ]
    busy = lua.acquire("x9000:cyd:2", 60_000, -1, 0)
    assert isinstance(busy, Busy)
    assert busy.holder is not None
    assert (busy.holder.host, busy.holder.pid, busy.holder.seq) == ("the host", 42, 1)
    lua.redis.delete(lua.names.client("ada"), lua.names.client("bob"))


# --- Who comes before those that wait


@pytest.mark.parametrize("forms", [("s9000", "x9000", "s9000!-1"), ("*1/3", "*3/3", "*2/3!-1")])
def test_acquire_of_higher_priority_that_fits_is_granted_before_waiters(
    lua: Scripts, forms: tuple[str, str, str]
) -> None:
    """It is the first in the queue then, and nobody has looked yet whether it fits."""
    lua.listen("ada")
    first, second, third = (f"{'s9000' * (form[0] == '*')}{form}:ada:1" for form in forms)
    assert isinstance(lua.acquire(first, 60_000, 0, 0), Granted)
    assert isinstance(lua.acquire(second, 60_000, 0, 0), Queued)
    assert isinstance(lua.acquire(third, 60_000, 0, 0), Granted)
    assert lua.redis.zrange(lua.keys[1], 0, -1) == [second]


# --- What cannot be read


@pytest.mark.parametrize("text", ["nobody's", "?9000:ada:1", "x:ada:1", "9000:bob:1", "x9000", ":"])
@pytest.mark.parametrize("form", ["x9000", "s9000", "s9000*1/3", "sf9000&2/2", "sf9000^9"])
def test_scripts_with_an_unreadable_holder_or_waiter_do_not_fail(
    lua: Scripts, text: str, form: str
) -> None:
    """As a holder it is in the way until its lease ends; in the queue it is in nobody's."""
    lua.looks = False
    lua.listen("ada")
    ours, other = f"{form}:ada:1", f"{form}:ada:2"
    lua.redis.zadd(lua.keys[0], {f"{text}:7": time.time() * 1e3 + 60_000})
    lua.redis.pexpire(lua.keys[0], 300_000)
    lua.redis.zadd(lua.keys[1], {text: 1})
    lua.redis.pexpire(lua.keys[1], 300_000)
    assert isinstance(lua.acquire(ours, 60_000, -1, 0), Busy)
    assert isinstance(lua.acquire(ours, 60_000, 0, 0), Queued)
    assert isinstance(lua.acquire(other, 60_000, 0, 5), Queued)
    status = lua.status()
    assert [party.client for party in (*status.holders, *status.waiters)] == [
        *(text, text),
        *("ada", "ada"),
    ]
    assert lua.request() == 0
    assert lua.renew([(ours, 7, 1)]) == [False]
    assert lua.finish(ours, 7, 1_000) == WAS_ABSENT
    assert lua.downgrade("xd9000:ada:1", 7) == WAS_ABSENT
    assert lua.break_([8]) == 0
    assert lua.resize(2 if "&" in form else 3, 3, 90_000) == (2 if "&" in form else 3)
    assert lua.post(1, "t:a", 0, "word", 90_000) == 1
    lua.redis.zadd(lua.keys[0], {f"{text}:7": 1_000})
    assert lua.acquire(f"{form}:ada:3", 60_000, -1, 0)
    assert text not in [waiter for waiter, _ in lua.holders()]
    assert lua.release(other, 0) in {WAS_HOLDER, WAS_QUEUED}
    assert lua.release(ours, 0) in {WAS_HOLDER, WAS_QUEUED}
    assert lua.redis.zrange(lua.keys[1], 0, -1) == []
