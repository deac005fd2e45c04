"""Fair shares on Redis: what the order among them costs, and what becomes of it if part is lost.

That the scripts do what the machine does is in `tests/proof/test_redis_model.py`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest

import aiolock
from aiolock import protocol
from aiolock.protocol import Acquire, Busy, Full, Granted, Queued, Release, WaiterId
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis import _sharing as sharing
from aiolock.stores.redis._codec import decode_any
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._sharing import learn
from tests.proof.test_redis_model import NAME, Model, Order, Scripts
from tests.stores.redis.test_script_commands import ENQUEUE, GRANT, HEAD, commands
from tests.stores.test_long_queues import MANY, check_quick
from tests.support import looks
from tests.support.servers import RedisServer, store_on

pytestmark = pytest.mark.one_loop

MINUTE = 600_000
A, B, C = "QQ", "Qg", "Qw"
"""Shares, as they are written."""
NOTHING = Order({}, {}, {}, {}, [])
JOIN = ("ZADD line", "PEXPIRE line", "ZMSCORE shares", "PEXPIRE shares")
NEXT = ("ZRANGE shares 0 (1000000000000", "ZRANGEBYSCORE queue")
PAY = ("ZREM line", "ZMSCORE shares", "ZRANGE line [0.QQ: (0.QQ;", "ZREM shares", "ZADD shares")


def lock(share: str, seq: int, client: str = "ada") -> str:
    """A waiter for a lock."""
    return f"x3000{share and '%'}{share}:{client}:{seq}"


def permit(share: str, seq: int, client: str = "ada", *, number: int = 1, limit: int = 2) -> str:
    """A waiter for permits."""
    return f"s3000*{number}/{limit}{share and '%'}{share}:{client}:{seq}"


@pytest.fixture
def lua(redis_server: RedisServer) -> Iterator[Scripts]:
    """The scripts, called with the keys of shares; no newcomer looks for dead waiters."""
    lua = Scripts(redis_server, shares=True)
    lua.looks = False
    lua.listen("ada")
    lua.listen("bob")
    yield lua
    lua.close()


def come(lua: Scripts, *waiters: str) -> None:
    """Have newcomers ask, one after the other."""
    for waiter in waiters:
        lua.acquire(waiter, MINUTE, 0, 0)


def next_one(lua: Scripts) -> str:
    """End all grants; the waiter that holds it then."""
    for grant in lua.holders():
        lua.release(*grant)
    return "".join(waiter for waiter, _ in lua.holders())


def turns(lua: Scripts, count: int) -> list[str]:
    """The next waiters of a lock, each of which releases it for the one after it."""
    return [next_one(lua) for _ in range(count)]


# As the machine has it


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("text", [lock, permit])
def test_order_of_random_tenants_is_that_of_the_machine(
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    text: Callable[[str, int, str], str],
    seed: int,
) -> None:
    """Each account of it, after each step."""
    looks.decided(monkeypatch)
    lua, random, seq = Scripts(redis_server, shares=True), Random(seed), itertools.count(1)
    lua.looks = False
    texts = dict[WaiterId, str]()
    model = Model(texts)
    for client in ("ada", "bob"):
        lua.listen(client)
        model.hear(client)
    known = list[str]()
    shares = ["", "QQ", "Qg", "Qw$3000", "RA$500", "RQ$100"]
    for _ in range(120):
        if random.random() < 0.55 or not known:
            priority = random.choice(["", "", "", "!-3"])
            form, *rest = text(random.choice(shares[seed % 2 :]), next(seq), "ada").split(":")
            client = random.choice(["ada", "bob", "gone"])
            head, _, share = form.partition("%")
            waiter = ":".join([head + priority + (share and f"%{share}"), client, rest[1]])
            known.append(waiter)
            who, of, _ = decode_any(waiter)
            texts[who] = waiter
            most = random.choice([0, 0, 0, 2])
            real = lua.acquire(waiter, MINUTE, 0, most)
            assert type(real) is type(model.run(Acquire(NAME, who, of, MINUTE, max_waiters=most)))
        else:
            waiter = known.pop(random.randrange(len(known)))
            who, of, _ = decode_any(waiter)
            assert lua.release(waiter, 0) == model.run(Release(NAME, who, of, 0))
        assert lua.order() == model.order()
        assert lua.kept.queue == model.queue()
    while waiters := [waiter for waiter, _ in lua.holders()]:
        for waiter in waiters:
            who, of, _ = decode_any(waiter)
            assert lua.release(waiter, 0) == model.run(Release(NAME, who, of, 0))
            assert lua.order() == model.order()
    assert lua.order() == NOTHING
    lua.close()


def test_shares_that_are_ahead_are_forgotten_if_they_are_many(
    lua: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are least ahead: the state of a name is bounded, however many shares come once."""

    def source(script: scripts.Script) -> str:
        return scripts._source(script.name, shares=script.shares, MOST_AHEAD="3", LOOKERS="1e17")

    monkeypatch.setattr(lua, "_source", source)
    come(lua, lock("", 0), lock(f"{A}$10", 1), lock(A, 2))
    for seq, weight in enumerate((1000, 500, 2000, 100, 4000, 1000), 3):
        come(lua, lock(f"s{seq}${weight}", seq))
        next_one(lua)
    starts = [start for start, _ in lua.order().ahead[0]]
    assert starts == [10_000, 20_000, 100_000]


def test_shares_that_are_ahead_no_more_are_forgotten(lua: Scripts) -> None:
    """As the virtual time comes to them: so few are kept of a name that is used for long."""
    come(lua, lock("", 0), *(lock((A, B)[seq % 2], seq) for seq in range(1, 41)))
    most = 0
    for seq in range(50, 60):
        come(lua, lock(f"s{seq}", seq))
        turns(lua, 3)
        most = max(most, len(lua.redis.zrangebyscore(lua.five[4], "-inf", -(10**13))))
    assert most < 6


# What it costs


@pytest.mark.parametrize("length", [10, 100, 1000])
def test_scripts_with_shares_run_the_same_commands_whatever_the_length_of_the_queue(
    own_server: RedisServer, length: int
) -> None:
    """And whatever the number of shares. A lock that is free costs what one without shares does."""
    lua = Scripts(own_server, shares=True)
    lua.looks = False
    lua.listen("ada")
    free = partial(lua.acquire, lock(A, 1), MINUTE, 0, 0)
    assert commands(lua, free) == ("TIME", "EXISTS holders", *GRANT)
    release = partial(lua.release, *lua.holders()[0])
    assert commands(lua, release) == ("EXISTS queue", "ZREM holders")
    come(lua, lock(A, 2), lock(A, 3), lock(A, 4), lock(A, 5))
    fill(lua, (lock(f"s{seq % (length // 2)}", seq) for seq in range(6, length)))
    second = partial(lua.acquire, lock(A, 10**6), MINUTE, 0, 0)
    assert commands(lua, second) == (*ENQUEUE, *JOIN)
    first = partial(lua.acquire, lock(B, 10**6), MINUTE, 0, 0)
    assert commands(lua, first) == (*ENQUEUE, *JOIN[:3], "ZADD shares", JOIN[3])
    leave = partial(lua.release, lock(A, 10**6), 0)
    found = ("ZSCORE queue", "ZREM line", "ZMSCORE shares")
    assert commands(lua, leave) == ("TIME", *found, "ZREM queue", "ZRANGE holders 0 0")
    hand_off = partial(lua.release, *lua.holders()[0])
    given = ("ZREM queue", *GRANT, "ZREM holders", *PAY)
    assert commands(lua, hand_off) == (*HEAD, *NEXT, *given)
    assert lua.holders()[0][0] == lock(A, 3)
    lua.close()


def test_permits_of_a_share_cost_two_commands_more_if_nobody_waits(lua: Scripts) -> None:
    """One to count what the share holds, and one when it begins, or ends, to hold anything."""
    plain = permit("", 1)
    without = commands(lua, partial(lua.acquire, plain, MINUTE, 0, 0))
    lua.release(*lua.holders()[0])
    come(lua, permit(A, 2, limit=2))
    one_more = commands(lua, partial(lua.acquire, permit(A, 3), MINUTE, 0, 0))
    assert one_more[-2:] == ("ZINCRBY holders", "ZINCRBY holders")
    assert len(one_more) < len(without)  # of which some are for the limit
    assert lua.order() == NOTHING._replace(held={(0, "A"): 2})
    assert lua.redis.exists(*lua.five[3:]) == 0, "there is no order where nobody waits"


def test_scripts_without_the_keys_of_shares_have_nothing_of_their_order() -> None:
    """Their source is what it was, but for what counts permits, and for the head of the queue."""
    for script in (scripts.ACQUIRE, scripts.RELEASE, scripts.ACQUIRE_SEVERAL, scripts.POST):
        assert not script.shares
        assert "KEYS[5]" not in script.source.replace("not KEYS[5]", "")
        for name in ("join", "leave", "pay", "next_waiter", "read_account"):
            assert f"function {name}(" not in script.source
    for script in (sharing.ACQUIRE, sharing.RELEASE, scripts.GO_ON):
        assert script.source.count("function read_account(") == 1


def test_waiter_with_a_share_takes_less_than_a_kilobyte(own_server: RedisServer) -> None:
    """Of which the queue has a part in any case."""
    lua, count = Scripts(own_server, shares=True), 2500  # tables of 4096: they count in full
    lua.looks = False
    come(lua, lock(A, 0))
    client = "ON1_bDp7BIgt6Kpc"
    for shares, most in ((20, 500), (count, 1000)):
        fill(lua, (lock(f"dGVuYW50{seq % shares}", seq, client) for seq in range(count)))
        took = sum(lua.redis.memory_usage(key, samples=0) or 0 for key in lua.five)
        assert took / count < most, shares
        lua.redis.delete(*lua.five[1:])
    lua.close()


# Ten thousand of them, as in `tests/stores/test_long_queues.py`


def fill(lua: Scripts, waiters: Iterable[str]) -> None:
    """Have very many newcomers ask, many at a time."""
    digest = lua.redis.script_load(sharing.ACQUIRE.source)
    with lua.redis.pipeline(transaction=False) as pipeline:
        for number, waiter in enumerate(waiters, 1):
            values = (MINUTE, 2 * MINUTE, 0, lua.names.channels, waiter, 0, 0)
            pipeline.evalsha(digest, 5, *lua.five, *values)
            if number % 1000 == 0:
                pipeline.execute()
        pipeline.execute()
    lua._kept = None


def dead(lua: Scripts) -> Callable[[], object]:
    """All waiters of a thousand shares are dead; the holder releases."""
    come(lua, lock("", 0))
    fill(lua, (lock(f"s{seq % 1000}", seq, f"gone{seq}") for seq in range(1, MANY)))
    return partial(lua.release, *lua.holders()[0])


def stuck(lua: Scripts) -> Callable[[], object]:
    """All waiters are those of the holder, whose lease has ended."""
    come(lua, lock("", 0, "gone"))
    fill(lua, (lock(f"s{seq % 1000}", seq, "gone") for seq in range(1, MANY)))
    lua.put(lua.keys[0], f"{lock('', 0, 'gone')}:{lua.holders()[0][1]}", 1000)
    return partial(lua.acquire, lock("", MANY), MINUTE, 0, 0)


def full(lua: Scripts) -> Callable[[], object]:
    """All waiters are of one share, and dead; there may be no more of them."""
    come(lua, lock("", 0))
    fill(lua, (lock(A, seq, f"gone{seq}") for seq in range(1, MANY)))
    return partial(lua.acquire, lock(A, MANY), MINUTE, 0, 1000)


def permits(lua: Scripts) -> Callable[[], object]:
    """All permits become free for waiters that want one each."""
    come(lua, permit("", 0, number=MANY, limit=MANY))
    fill(lua, (permit(f"s{seq % 1000}", seq, limit=MANY) for seq in range(1, MANY)))
    return partial(lua.release, *lua.holders()[0])


def counted(lua: Scripts) -> Callable[[], object]:
    """What a thousand shares hold is counted anew."""
    fill(lua, (permit(f"s{seq}", seq, limit=1000) for seq in range(1020)))
    return partial(lua.acquire, permit("s1010", 1010, limit=1000), MINUTE, 1, 0)


@pytest.mark.alone
@pytest.mark.parametrize("case", [dead, stuck, full, permits, counted])
def test_redis_commands_on_ten_thousand_waiters_with_shares_stay_below_the_time_limit(
    own_server: RedisServer, case: Callable[[Scripts], Callable[[], object]]
) -> None:
    """By the server's own account."""
    lua = Scripts(own_server, shares=True)
    lua.listen("ada")

    def run() -> list[float]:
        lua.redis.config_set("slowlog-log-slower-than", -1)
        lua.redis.delete(*lua.five)
        lua.goes_on = False
        lua.rests.clear()
        call = case(lua)
        lua.redis.config_set("slowlog-log-slower-than", 100)  # not what the scripts call
        lua.redis.config_set("slowlog-max-len", 10_000)
        lua.redis.slowlog_reset()
        call()
        lua.go_on()
        log = lua.redis.slowlog_get(10_000)
        return sorted((e["duration"] / 1000 for e in log if b"EVAL" in e["command"]), reverse=True)

    check_quick((run() for _ in range(4)), all_commands=False)
    lua.close()


# Clients that use no shares, beside others that do


def forget_keys(lua: Scripts) -> None:
    """From now on, call the scripts as a client does that uses no shares."""
    lua.shares, lua.keys, lua.goes_on = False, lua.three, False


def test_release_without_keys_leaves_the_next_share_to_go_on(lua: Scripts) -> None:
    """It ends its own grant, and makes no other in the order of arrival."""
    come(lua, lock("", 1), lock(A, 2), lock(A, 3), lock(B, 4))
    assert next_one(lua) == lock(A, 2)
    forget_keys(lua)
    assert lua.release(*lua.holders()[0]) == 1
    assert lua.holders() == []
    assert [rest[-1] for rest in lua.rests] == [b"%"]
    assert lua.go_on() == 1
    assert [waiter for waiter, _ in lua.holders()] == [lock(B, 4)]


def test_acquire_without_keys_leaves_a_free_permit_to_go_on(lua: Scripts) -> None:
    """It waits behind those that came before it, and has them looked at: one of them may fit."""
    come(lua, permit(A, 1), permit(A, 2), permit(A, 3, number=2), permit(B, 4))
    lua.put(lua.keys[0], "used", 10**15 + 1)  # as if another had been released meanwhile
    forget_keys(lua)
    assert isinstance(lua.acquire(permit("", 5), MINUTE, 0, 0), Queued)
    assert lua.kept.queue == [permit(A, 3, number=2), permit(B, 4), permit("", 5)]
    assert lua.go_on() == 1
    assert permit(B, 4) in [waiter for waiter, _ in lua.holders()]
    assert lua.kept.queue == [permit(A, 3, number=2), permit("", 5)]


def test_acquire_without_keys_or_a_wait_asks_again_if_nothing_is_held(lua: Scripts) -> None:
    """The answer is not that it is taken: the next of the shares may be dead."""
    come(lua, lock("", 1), lock(A, 2, "gone"), lock(B, 3, "gone"))
    forget_keys(lua)
    lua.release(*lua.holders()[0])
    lua.rests.clear()
    assert lua.acquire(lock("", 4), MINUTE, -1, 0) == Busy(-1)
    lua.go_on()
    assert isinstance(lua.acquire(lock("", 4), MINUTE, -1, 0), Granted)


def test_reap_without_keys_costs_order_only(lua: Scripts) -> None:
    """The waiters of a stuck client leave the queue; their places in the order, in their turn."""
    come(lua, lock(A, 1), lock(A, 2), lock(B, 3, "bob"), lock("", 4), lock(A, 5))
    lua.put(lua.keys[0], f"{lock(A, 1)}:{lua.holders()[0][1]}", 1000)
    forget_keys(lua)
    assert isinstance(lua.acquire(lock("", 6, "bob"), MINUTE, 0, 0), Queued)
    lua.go_on()
    assert [waiter for waiter, _ in lua.holders()] == [lock(B, 3, "bob")]
    assert lua.kept.queue == [lock("", 6, "bob")], "those of ada are stuck"
    assert next_one(lua) == lock("", 6, "bob")
    lua.release(*lua.holders()[0])
    assert lua.order() == NOTHING


async def test_client_without_a_share_learns_that_others_use_shares(
    redis_server: RedisServer, prefix: str
) -> None:
    """Its first release leaves work to another call. From then on it passes the keys itself."""
    ours = store_on(redis_server.url, prefix)
    theirs = store_on(redis_server.url, prefix)
    async with (
        aiolock.connect(ours) as client,
        aiolock.connect(theirs) as other,
        client.lock("n", ttl=60) as lease,
    ):
        first = asyncio.create_task(other.lock("n", ttl=60, share="a").acquire())
        async with asyncio.timeout(30):
            while not (await client.lock("n").status()).waiters:
                pass
        await lease.release()
        held = await first
        operations: Any = ours.operations
        assert list(operations._of_shares) == ["lock:n"]
        waits = asyncio.create_task(client.lock("n", ttl=60).acquire())
        async with asyncio.timeout(30):
            while not (await client.lock("n").status()).waiters:
                pass
        sent = {script.name for script in operations._outbox.known if script.shares}
        assert sent == {"acquire", "go_on"}
        await held.release()
        async with asyncio.timeout(10):
            await (await waits).release()
        assert {script.name for script in operations._outbox.known if script.shares} > {"release"}


def test_learn_forgets_the_oldest_of_very_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known is bounded; a name that is forgotten is learnt again."""
    monkeypatch.setattr(sharing, "_MOST_NAMES", 2)
    names, known, encoded = Names("p"), dict[str, None](), dict[str, Any](b=1)
    for name in ("a", "b", "c", "b"):
        learn(names, known, encoded, names.keys(name)[0].encode())
    assert list(known) == ["c", "b"]
    assert not encoded


# What was lost, or left behind


def test_waiters_that_an_old_client_has_taken_leave_the_order_in_their_turn(lua: Scripts) -> None:
    """It takes them from the queue as they came, and knows of no order. All others have turns."""
    come(lua, lock("", 0), *(lock((A, B, C)[seq % 3], seq) for seq in range(1, 31)))
    for _ in range(10):
        lua.redis.zpopmin(lua.keys[1])
    assert len(set(turns(lua, 20))) == 20
    assert next_one(lua) == ""
    assert lua.order() == NOTHING


def test_waiters_are_granted_as_they_came_if_the_order_is_lost(lua: Scripts) -> None:
    """And in order again as soon as they have asked again."""
    waiters = [lock((A, A, B)[seq % 3], seq) for seq in range(6)]
    come(lua, lock("", 9), *waiters)
    lua.redis.delete(*lua.five[3:])
    assert turns(lua, 2) == waiters[:2]
    for waiter in waiters[2:]:
        assert isinstance(lua.acquire(waiter, MINUTE, 1, 0), Queued)
    order = lua.order()
    assert order.line == sorted(waiters[2:])
    assert [share for _, _, share in order.places[0]] == ["B", "A"]
    assert turns(lua, 4) == waiters[2:]


def test_waiter_that_was_missing_in_the_order_is_in_it_once_it_has_asked_again(
    lua: Scripts,
) -> None:
    """Whatever has removed it: it might wait as long as others of a share come."""
    come(lua, lock("", 0), lock(A, 1), lock(B, 2))
    before = lua.order()
    lua.redis.zremrangebyrank(lua.five[3], 0, 0)
    lua.redis.zremrangebyrank(lua.five[4], 0, 0)
    lua.acquire(lock(A, 1), MINUTE, 1, 0)
    assert lua.order() == before


def test_place_of_a_share_is_put_right_by_its_waiter_that_asks_again(lua: Scripts) -> None:
    """A script without the keys may have ended its grants: then it holds less than it says."""
    come(lua, permit(A, 1), permit(B, 2), permit(A, 3), permit(B, 4), permit(C, 5))
    forget_keys(lua)
    lua.release(*next(grant for grant in lua.holders() if grant[0] == permit(A, 1)))
    lua.rests.clear()
    lua.shares, lua.keys = True, lua.five
    assert [share for _, _, share in lua.order().places[0]] == ["C", "A", "B"]
    assert isinstance(lua.acquire(permit(A, 3), MINUTE, 1, 0), Granted)


def test_place_of_a_share_that_was_left_behind_is_put_right(lua: Scripts) -> None:
    """Whatever it says: who is next must be in the queue."""
    come(lua, lock("", 0), lock(A, 1), lock(B, 2))
    ghosts = ("%", f"%{1:016}:{1:016}:0.R0hPU1Q", "%nonsense", f"%{0:016}:{7:016}:0.{A}")
    lua.redis.zadd(lua.five[4], dict.fromkeys(ghosts, 0))
    lua.redis.zadd(lua.five[3], {f"0.{A}:nonsense": 0, f"0.{A}:{5:016}:{lock(A, 7)}": 0})
    assert set(turns(lua, 2)) == {lock(A, 1), lock(B, 2)}
    assert next_one(lua) == ""


@pytest.mark.parametrize("key", [3, 4])
def test_waiters_are_granted_although_others_use_a_key_of_the_order(lua: Scripts, key: int) -> None:
    """It is no key of a lock, so it decides nothing."""
    lua.redis.set(lua.five[key], "a text")
    come(lua, lock("", 0), lock(A, 1), lock(A, 2), lock(B, 3))
    lua.acquire(lock(A, 2), MINUTE, 1, 0)
    assert len(set(turns(lua, 3))) == 3
    assert next_one(lua) == ""


def test_permits_that_an_old_client_has_ended_are_counted_anew(lua: Scripts) -> None:
    """At the latest a minute after the last count, if anybody waits and asks again."""
    come(lua, permit(A, 1), permit(B, 2), permit(A, 3), permit(B, 4), permit(C, 5))
    lua.put(lua.keys[0], f"%0.{A}", 10**15 + 7)
    lua.put(lua.keys[0], f"%0.{C}", 10**15 + 1)
    lua.redis.zrem(lua.keys[0], f"%0.{B}")
    lua.acquire(permit(C, 5), MINUTE, 1, 0)
    order = lua.order()
    assert order.held == {(0, "A"): 1, (0, "B"): 1}
    assert [(held, share) for held, _, share in order.places[0]] == [
        *((0, "C"), (1000, "A"), (1000, "B"))
    ]
    lua.put(lua.keys[0], f"%0.{A}", 10**15 + 7)
    lua.acquire(permit(C, 5), MINUTE, 1, 0)
    assert lua.order().held == {(0, "A"): 7, (0, "B"): 1}, "not each time"
    lua.put(lua.keys[0], "%", lua.kept.scores["%"] - 61)
    lua.acquire(permit(C, 5), MINUTE, 1, 0)
    assert lua.order() == order


def test_permits_of_a_share_never_fall_below_none(lua: Scripts) -> None:
    """Those that an old client has granted were not counted when they end."""
    come(lua, permit(A, 1))
    lua.redis.zrem(lua.keys[0], f"%0.{A}")
    lua.release(*lua.holders()[0])
    assert lua.order() == NOTHING
    assert [*lua.kept.scores] == ["used", "limit"]


def test_keys_of_the_order_expire_with_the_queue(lua: Scripts) -> None:
    """Also if one of them was lost, and is written anew by a grant."""
    come(lua, permit(A, 1), permit(B, 2), *(permit((A, B)[seq % 2], seq) for seq in range(3, 9)))
    for lost in (4, 4, 3):
        lua.redis.delete(lua.five[lost])
        lua.release(*lua.holders()[0])
        assert lua.redis.exists(lua.five[4]) == (lost == 4)
        for key in lua.five:
            assert lua.redis.pttl(key) != -1, key
    lua.acquire(lua.kept.queue[0], MINUTE, 1, 0)
    for key in lua.five[3:]:
        assert 290_000 < lua.redis.pttl(key) <= 300_000


def test_order_begins_anew_when_starts_would_be_too_large(lua: Scripts) -> None:
    """After 10^10 grants, during which somebody waited all the time. Nobody is forgotten."""
    come(lua, lock("", 0), lock(A, 1), lock(A, 2), lock(B, 3))
    member = lua.redis.zrange(lua.five[4], 0, 0)[0]
    huge = 4 * 10**14 - 1
    lua.redis.zrem(lua.five[4], member)
    lua.redis.zadd(lua.five[4], {f"%{huge:016}{member[17:]}": 0, f"s0.{A}": 10**14 + huge})
    assert turns(lua, 1) == [lock(B, 3)]
    assert next_one(lua) == lock(A, 1)
    assert lua.redis.exists(lua.five[4]) == 0
    assert next_one(lua) == lock(A, 2)


@pytest.mark.parametrize("how", ["stuck", "dead"])
def test_waiters_that_are_removed_leave_the_order(lua: Scripts, how: str) -> None:
    """Those of a client whose lease has ended, and those that a newcomer finds dead."""
    come(lua, lock("", 0), lock(C, 7, "bob"), *(lock((A, B)[seq % 2], seq) for seq in range(1, 7)))
    if how == "stuck":
        lua.put(lua.keys[0], f"{lock('', 0)}:{lua.holders()[0][1]}", 1000)
    else:
        lua.leave("ada")
        lua.looks = True
    come(lua, lock(C, 8, "bob"))
    assert lua.order().line == sorted([*lua.kept.queue])
    assert {waiter.split(":")[1] for waiter in lua.kept.queue} == {"bob"}


def test_reap_in_parts_grants_nothing_to_a_share_before_the_last_part(
    lua: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a waiter of the stuck client might be the next one."""
    monkeypatch.setattr(protocol, "PART", 2)
    come(lua, lock(A, 0), lock(B, 1, "bob"), lock(A, 2), lock(A, 3, "bob"), lock(C, 4))
    lua.put(lua.keys[0], f"{lock(A, 0)}:{lua.holders()[0][1]}", 1000)
    lua.goes_on = False
    come(lua, lock(C, 5, "bob"))
    assert lua.holders() == []
    assert lua.go_on() >= 1
    assert [waiter for waiter, _ in lua.holders()] == [lock(B, 1, "bob")]


# The dead, and those that are too many


def test_newcomer_is_refused_by_the_waiters_of_its_own_share_only(lua: Scripts) -> None:
    """So a tenant with very many does not keep the others out."""
    come(lua, lock("", 0), *(lock(A, seq) for seq in range(1, 6)))
    assert lua.acquire(lock(A, 6), MINUTE, 0, 5) == Full(5)
    assert isinstance(lua.acquire(lock(B, 7), MINUTE, 0, 1), Queued)
    assert lua.acquire(lock("", 8), MINUTE, 0, 5) == Full(6)


@pytest.mark.parametrize("alive", [0, 3])
def test_newcomer_does_not_count_the_dead_of_its_share(lua: Scripts, alive: int) -> None:
    """They leave the queue, and the order; the dead of others stay until it is their turn."""
    come(lua, lock("", 0), lock(B, 1, "gone"), *(lock(A, seq, "gone") for seq in range(2, 6)))
    come(lua, *(lock(A, seq) for seq in range(6, 6 + alive)))
    answer = lua.acquire(lock(A, 20), MINUTE, 0, 3)
    assert answer == Full(3) if alive else isinstance(answer, Queued)
    assert lua.kept.queue[0] == lock(B, 1, "gone")
    assert len(lua.kept.queue) == 1 + (alive or 1)
    assert len(lua.order().line) == len(lua.kept.queue)


def test_newcomer_does_not_count_waiters_of_its_share_that_have_left_the_queue(
    lua: Scripts,
) -> None:
    """A script without the keys has removed them, also from behind others that wait."""
    come(lua, lock("", 0), *(lock(A, seq) for seq in range(1, 6)), lock(B, 6))
    lua.redis.zrem(lua.keys[1], lock(A, 1), lock(A, 4))
    assert lua.acquire(lock(A, 7), MINUTE, 0, 3) == Full(3)
    assert isinstance(lua.acquire(lock(A, 8), MINUTE, 0, 4), Queued)
    assert lua.order().line == sorted(lua.kept.queue)
    assert turns(lua, 5) == [lock(share, seq) for share, seq in ((A, 2), (B, 6))] + [
        lock(A, seq) for seq in (3, 5, 8)
    ]
    assert lua.order() == NOTHING


def test_dead_waiters_pay_nothing_and_leave_in_one_step(lua: Scripts) -> None:
    """However many there are, up to what one step looks at."""
    come(lua, lock("", 0), *(lock((A, B)[seq % 2], seq, "gone") for seq in range(1, 101)))
    come(lua, lock(A, 101), lock(B, 102), lock(A, 103))
    assert turns(lua, 3) == [lock(A, 101), lock(B, 102), lock(A, 103)]
    assert lua.order() == NOTHING
