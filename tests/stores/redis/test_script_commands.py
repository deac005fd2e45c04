"""The commands that scripts run on their frequent paths: what a lock costs the server.

A command costs the server more than the Lua around it, and what it reads is what could make a
script slower in a long queue. So these lists are budgets: a feature that adds a command to every
acquire or release has to be paid for here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import pytest

from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis import _sharing as sharing
from aiolock.stores.redis import _voting as voting
from tests.proof.test_redis_model import Scripts
from tests.support.servers import RedisServer

pytestmark = pytest.mark.one_loop

MINUTE: Final = 60_000
GRANT: Final = ("SET fence", "ZADD holders", "PEXPIRE holders")
ENQUEUE: Final = (
    "TIME",
    "EXISTS holders",
    "ZRANGE holders 0 1",
    "ZADD queue",
    "PEXPIRE queue",
    "ZRANGE queue -2 -1",
)

HEAD: Final = ("EXISTS queue", "ZRANGE queue 0 0", "ZSCORE holders", "TIME")


def commands(lua: Scripts, call: Callable[[], object]) -> tuple[str, ...]:
    """The commands that scripts run in a call: each with its first key, and the range it reads."""
    kinds = {key: key.rpartition(":")[2] for key in lua.keys}
    found = list[str]()
    with lua.redis.monitor() as monitor:
        call()
        lua.redis.echo("that is all")
        while "that is all" not in (command := monitor.next_command())["command"]:
            if command["client_type"] == "lua":
                text = command["command"]
                for key, kind in kinds.items():
                    text = text.replace(key, kind)
                words = text.split(" ")
                most = {"TIME": 1, "PUBLISH": 1, "ZRANGE": 4}
                found.append(" ".join(words[: most.get(words[0], 2)]))
    return tuple(found)


@pytest.fixture
def lua(own_server: RedisServer) -> Iterator[Scripts]:
    """The scripts of a server that does nothing else; no newcomer looks for dead waiters."""
    lua = Scripts(own_server)
    lua.looks = False  # one in 32 would
    lua.listen("ada")
    lua.listen("bob")
    yield lua
    lua.close()


def test_acquire_and_release_of_a_free_lock_run_seven_commands(lua: Scripts) -> None:
    """Two of them ask whether it is free: everything else has to be written."""
    acquire = partial(lua.acquire, "x3000:ada:1", MINUTE, 0, 0)
    assert commands(lua, acquire) == ("TIME", "EXISTS holders", *GRANT)
    release = partial(lua.release, *lua.holders()[0])
    assert commands(lua, release) == ("EXISTS queue", "ZREM holders")
    assert lua.holders() == []


@pytest.mark.parametrize("length", [2, 100, 10_000])
def test_scripts_run_the_same_commands_whatever_the_length_of_the_queue(
    lua: Scripts, length: int
) -> None:
    """None of them reads more than two waiters: each is O(log n), or less."""
    holder, own, *others = (f"x3000:ada:{seq}" for seq in range(4))
    lua.acquire(holder, MINUTE, 0, 0)
    seconds, micros = lua.redis.time()
    now = int(seconds) * 1_000_000 + int(micros) - 100_000
    queue = {own: now} | {f"x3000:bob:{seq}": now + seq for seq in range(1, length)}
    for at in range(0, length, 1000):
        lua.redis.zadd(lua.keys[1], dict(list(queue.items())[at : at + 1000]))
    for newcomer in others:
        assert commands(lua, partial(lua.acquire, newcomer, MINUTE, 0, 0)) == ENQUEUE
    leave = partial(lua.release, others[0], 0)
    assert commands(lua, leave) == ("TIME", "ZREM queue", "ZRANGE holders 0 0")
    hand_off = partial(lua.release, *lua.holders()[0])
    assert commands(lua, hand_off) == (*HEAD, "ZREM queue", *GRANT, "ZREM holders")
    assert lua.holders()[0][0] == own
    hand_off = partial(lua.release, *lua.holders()[0])
    handed_off = ("ZREM queue", *GRANT, "ZREM holders", "PUBLISH")
    assert commands(lua, hand_off) == (*HEAD, "PUBSUB NUMSUB", *handed_off)
    assert lua.holders()[0][0] == "x3000:bob:1"
    assert lua.redis.zcard(lua.keys[1]) == length - 1


@pytest.mark.parametrize(
    "script",
    [
        script
        for module in (scripts, sharing, voting)
        for script in vars(module).values()
        if isinstance(script, scripts.Script)
    ],
    ids=lambda script: script.name,
)
def test_script_gives_its_commands_no_plain_number(script: scripts.Script) -> None:
    """The server would make a text of it on each call, for half the time of the command."""
    for call in re.findall(r"redis\.p?call\(([^()]*)\)", script.source):
        assert not [word for word in call.split(", ") if re.fullmatch(r"-?\d+", word)], call
