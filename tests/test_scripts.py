"""What the scripts do when the server's clock does not behave, and what their sources promise."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from importlib import resources

import pytest

import aiolock
from aiolock.store import Full, Queued, Renewal
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._pipe import ACL_RULE
from tests.servers import RedisServer
from tests.test_model import Scripts

FAR_AHEAD = 4_000_000_000_000_000  # µs: the year 2096

SCRIPTS = [s for s in vars(scripts).values() if isinstance(s, scripts.Script)]


@pytest.mark.parametrize("where", ["the_key", "the_holder"])
async def test_fences_grow_when_the_clock_was_set_back(
    redis_server: RedisServer, prefix: str, where: str
) -> None:
    """The last fence is remembered by its key and, should that be gone, by the holder's grant."""
    holders, _, fence = Names(prefix).keys("n")
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        lock = client.lock("n", ttl=60)
        lease = await lock.acquire()
        assert lease is not None
        hold = lease._hold
        if where == "the_key":
            redis_server.call("SET", fence, str(FAR_AHEAD))
        else:
            redis_server.call("DEL", fence, holders)
            redis_server.call("ZADD", holders, "4000000000000", f"{hold.waiter}:{FAR_AHEAD}")
            hold.fence = FAR_AHEAD
        async with aiolock.connect(redis_server.url, prefix=prefix) as other:
            queued = asyncio.create_task(other.lock("n", ttl=60).acquire(timeout=20))
            while not (await lock.status()).waiters:
                pass
            await lease.release()
            second = await queued
            assert second is not None
            assert second.fence == FAR_AHEAD + 1
            await second.release()


def test_open_tries_every_command_that_another_script_uses() -> None:
    """A right that is missing is found when the client opens, so `open` must use them all."""
    used = {
        command
        for script in SCRIPTS
        for command in re.findall(r"redis\.p?call\('([A-Z]+)'", script.source)
    }
    tried = set(re.findall(r"redis\.p?call\('([A-Z]+)'", scripts.OPEN.source))
    assert used - tried == {"PUBLISH"}, "PUBLISH is tried by `presence`"
    granted = {word.lstrip("+").partition("|")[0].upper() for word in ACL_RULE.split()[2:]}
    assert used - granted == {"INFO"}, "INFO is tried with pcall, and may be denied"


def test_every_lua_file_begins_by_saying_what_it_is() -> None:
    """A name and what it does; a script also its KEYS or ARGV and what it returns."""
    folder = resources.files("aiolock.stores.redis").joinpath("lua")
    files = {entry.name: entry.read_text("utf-8") for entry in folder.iterdir()}
    assert len(files) == len(SCRIPTS) + 8, "scripts, and the parts that they include"
    for name, text in files.items():
        assert text.startswith("-- "), name
    for script in SCRIPTS:
        text = files[f"{script.name}.lua"]
        assert text.startswith(f"-- {script.name}:")
        assert re.search(r"^-- (KEYS|ARGV)  ", text, re.MULTILINE)
        assert re.search(r"^-- returns  ", text, re.MULTILINE)


def test_no_script_builds_a_key_or_asks_for_all_keys() -> None:
    """A cluster must know from the call which keys a script touches."""
    for script in SCRIPTS:
        for command, key in re.findall(r"redis\.p?call\('(\w+)', ?([^,)]+)", script.source):
            if command not in {"PUBLISH", "PUBSUB", "INFO"}:
                assert key in {"KEYS[1]", "KEYS[2]", "KEYS[3]", "KEYS[4]", "holders", "key"}, script


@pytest.fixture
def lua(redis_server: RedisServer) -> Iterator[Scripts]:
    """The scripts by themselves, called one after the other."""
    lua = Scripts(redis_server)
    yield lua
    lua.close()


def test_whoever_is_not_counted_is_skipped_and_hears_nothing(lua: Scripts) -> None:
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


def test_the_dead_do_not_fill_the_queue(lua: Scripts) -> None:
    """Where as many wait as may, those whose process is gone make room."""
    lua.listen("ada")
    lua.acquire("x9000:ada:1", 60_000, 0, 0)
    lua.acquire("x9000:gone:1", 60_000, 0, 1)
    assert isinstance(lua.acquire("x9000:ada:2", 60_000, 0, 1), Queued)
    assert isinstance(lua.acquire("x9000:ada:3", 60_000, 0, 1), Full)


def test_the_holders_live_as_long_as_the_longest_of_them(lua: Scripts) -> None:
    """A reader with a short lease, entering or renewing, does not shorten what others stand in."""
    lua.acquire("s9000:ada:1", 3_600_000, 0, 0)
    lua.acquire("s9000:ada:2", 1_000, 0, 0)
    short = next(grant for grant in lua.holders() if grant[0] == "s9000:ada:2")
    assert lua.renew([Renewal("", *short, 2_000)]) == [True]
    assert lua.redis.pttl(lua.keys[0]) > 3_600_000


def test_what_is_kept_beside_the_grants_goes_with_them(lua: Scripts) -> None:
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
