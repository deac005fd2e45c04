"""Wrong arguments are errors before anything is sent, and their text is the rule."""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import Any, cast
from unittest import mock

import fakeredis
import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
from redis.cluster import RedisCluster

import aiolock
import aiolock.sync
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore

Wrong = tuple[object, type[Exception], str]

SECONDS: list[Wrong] = [
    ("3", TypeError, "must be a number of seconds or a timedelta, not '3'"),
    (True, TypeError, "must be a number of seconds or a timedelta, not True"),
    ([], TypeError, "must be a number of seconds"),
    (timedelta(seconds=-1), ValueError, "not -1.0"),
    (1j, TypeError, "must be a number of seconds"),
    (math.nan, ValueError, "not nan"),
    (math.inf, ValueError, "not inf"),
    (-math.inf, ValueError, "not -inf"),
    (-1, ValueError, "not -1"),
    (-0.001, ValueError, "not -0.001"),
    (10**400, ValueError, "seconds"),
]
POSITIVE: list[Wrong] = [
    *SECONDS,
    (0, ValueError, "from 0.01 to .* seconds, not 0"),
    (0.001, ValueError, "from 0.01 to .* seconds, not 0.001"),
    (400 * 24 * 3600, ValueError, "from 0.01 to .* seconds"),
]
FLAGS: list[Wrong] = [
    (1, TypeError, "must be True or False, not 1"),
    (None, TypeError, "must be True or False, not None"),
    ("no", TypeError, "must be True or False, not 'no'"),
]
LOCKS: dict[str, list[Wrong]] = {
    "name": [
        ("", ValueError, "1 to 512 characters, not 0"),
        ("x" * 513, ValueError, "1 to 512 characters, not 513: hash"),
        ("a\ud800b", ValueError, r"UTF-8, not 'a\\ud800b'"),
        (b"a", TypeError, "must be a str, not bytes"),
        (42, TypeError, "must be a str, not int"),
        (None, TypeError, "must be a str, not NoneType"),
    ],
    "ttl": POSITIVE,
    "timeout": SECONDS,
    "renew": FLAGS,
    "reentrant": FLAGS,
    "max_waiters": [
        (0, ValueError, r"at least 1, not 0: .*try_acquire\(\)"),
        (-1, ValueError, "at least 1, not -1"),
        (1.5, TypeError, "must be an int or None, not 1.5"),
        (True, TypeError, "must be an int or None, not True"),
        ("3", TypeError, "must be an int or None, not '3'"),
    ],
    "max_hold": POSITIVE,
    "on_lost": [
        ("kill", ValueError, "'cancel' or 'signal', not 'kill'"),
        (None, ValueError, "'cancel' or 'signal', not None"),
        ([], ValueError, "'cancel' or 'signal'"),
    ],
}


NUMBERS: list[Wrong] = [
    (0, ValueError, "must be from 1 to 1,000,000,000, not 0"),
    (-1, ValueError, "not -1"),
    (10**9 + 1, ValueError, "must be from 1 to 1,000,000,000"),
    (1.0, TypeError, "must be an int, not 1.0"),
    (True, TypeError, "must be an int, not True"),
    ("3", TypeError, "must be an int, not '3'"),
    (None, TypeError, "must be an int, not None"),
]


def cases(table: dict[str, list[Wrong]]) -> list[Any]:
    """One parameter set for each wrong value, with an id that says which."""
    return [
        pytest.param(argument, *wrong, id=f"{argument}-{number}")
        for argument, values in table.items()
        for number, wrong in enumerate(values)
    ]


@pytest.fixture
def faulty() -> FaultyStore:
    """A store that counts what it is asked."""
    return FaultyStore(MemoryStore(MemoryServer()))


@pytest.fixture
async def client(faulty: FaultyStore) -> AsyncIterator[aiolock.LockClient]:
    """An open client, to which nothing but its opening may be sent."""
    async with aiolock.connect(faulty) as client:
        yield client
        assert faulty.calls == {"open": 1}


@pytest.mark.parametrize(("argument", "value", "error", "match"), cases(LOCKS))
async def test_lock_with_an_invalid_argument_raises_an_error_naming_it(
    client: aiolock.LockClient, argument: str, value: object, error: type[Exception], match: str
) -> None:
    """A wrong argument of `lock`, or of the decorator, is an error that names it."""
    named = match if argument == "name" else f"{argument}.* {match}"
    options: dict[str, Any] = {"name": "a", argument: value}
    with pytest.raises(error, match=f"(?s){named}") as caught:
        client.lock(**options)
    assert not isinstance(caught.value, aiolock.LockError)
    with pytest.raises(error, match=f"(?s){named}"):
        client.locked(**options)


@pytest.mark.parametrize(("argument", "value", "error", "match"), cases({"timeout": SECONDS}))
async def test_acquire_with_an_invalid_timeout_raises_before_it_is_awaited(
    client: aiolock.LockClient, argument: str, value: Any, error: type[Exception], match: str
) -> None:
    """A wrong timeout of `acquire` is an error of the call, before anything is awaited."""
    for call in (client.lock("a").acquire, client.lock("a").try_acquire):
        with pytest.raises(error, match=f"{argument}.* {match}"):
            _ = call(timeout=value)


async def test_try_acquire_with_timeout_none_suggests_acquire(client: aiolock.LockClient) -> None:
    """What never gives up is `acquire`; None is no timeout of `try_acquire`, of nothing."""
    never: dict[str, Any] = {"timeout": None}
    tries: list[Any] = [
        *(client.lock("a").try_acquire, client.semaphore("a", 2).try_acquire),
        *(client.rwlock("a").read().try_acquire, client.multilock("a").try_acquire),
    ]
    for attempt in tries:
        with pytest.raises(ValueError, match=r"not None: acquire\(\) waits as long as"):
            await attempt(**never)


def test_sync_try_acquire_with_timeout_none_suggests_acquire() -> None:
    """As in a task."""
    never: dict[str, Any] = {"timeout": None}
    with aiolock.sync.connect("memory://") as client:
        each: Any
        for each in (client.lock("a"), client.semaphore("a", 2), client.multilock("a")):
            with pytest.raises(ValueError, match=r"not None: acquire\(\) waits as long as"):
                each.try_acquire(**never)


@pytest.mark.parametrize("wrong", ["blocking", "block"])
@pytest.mark.parametrize("value", [True, False])
async def test_option_blocking_suggests_try_acquire(
    client: aiolock.LockClient, wrong: str, value: bool
) -> None:
    """Other libraries have one method for both; where a lock is described, too."""
    threads, options = aiolock.sync.connect("memory://"), {wrong: value}
    calls: list[Any] = [
        client.lock("a").acquire,
        client.lock("a").try_acquire,
        client.semaphore("a", 2).acquire,
        client.semaphore("a", 2).try_acquire,
        client.multilock("a").acquire,
        client.multilock("a").try_acquire,
        threads.lock("a").acquire,
        threads.lock("a").try_acquire,
        threads.semaphore("a", 2).acquire,
        threads.semaphore("a", 2).try_acquire,
        threads.multilock("a").acquire,
        threads.multilock("a").try_acquire,
        partial(client.lock, "a"),
        partial(client.locked, "a"),
        partial(threads.lock, "a"),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=rf"'{wrong}': did you mean try_acquire\(\)"):
            await call(**options)


async def test_acquire_with_positional_arguments_raises_type_error(
    client: aiolock.LockClient,
) -> None:
    """The arguments of `acquire` have names, so nobody passes a flag where seconds are wanted."""
    acquire: Any = client.lock("a").acquire
    with pytest.raises(TypeError, match="positional"):
        _ = acquire(5)
    with pytest.raises(TypeError, match="positional"):
        _ = acquire(False)  # as with other libraries
    lock: Any = client.lock
    with pytest.raises(TypeError, match="positional"):
        lock("a", 30)


@pytest.mark.parametrize(("argument", "value", "error", "match"), cases({"ttl": POSITIVE}))
async def test_extend_with_an_invalid_ttl_raises_and_changes_nothing(
    faulty: FaultyStore, argument: str, value: Any, error: type[Exception], match: str
) -> None:
    """A wrong ttl of `extend` is an error that changes nothing."""
    async with aiolock.connect(faulty) as client, client.lock("a") as lease:
        with pytest.raises(error, match=f"{argument}.* {match}"):
            await lease.extend(value)
        assert faulty.calls["renew"] == 0
        assert lease.state == "held"


async def test_lock_arguments_at_their_limits_are_accepted(client: aiolock.LockClient) -> None:
    """The limits themselves are inside, and so is everything in between."""
    for options in (
        {"name": "x" * 512},
        {"name": "{}: ü🔒\n\0"},
        {"ttl": 0.01},
        {"ttl": 365 * 24 * 3600},
        {"ttl": 1},
        {"timeout": 0},
        {"timeout": 1e9},
        {"timeout": None},
        {"max_waiters": 1},
        {"max_hold": 0.01},
        {"max_hold": None},
        {"renew": False, "reentrant": True, "on_lost": "signal"},
    ):
        wish: dict[str, Any] = {"name": "a"} | options
        client.lock(**wish)
    for acquisition in (
        client.lock("a").acquire(timeout=0),
        client.lock("a").acquire(timeout=None),
        client.lock("a").try_acquire(timeout=0),
        client.lock("a", timeout=5).try_acquire(),
    ):
        acquisition.close()


@pytest.mark.parametrize(("argument", "value", "error", "match"), cases({"ttl": POSITIVE}))
def test_connect_with_an_invalid_ttl_raises_an_error_naming_it(
    argument: str, value: Any, error: type[Exception], match: str
) -> None:
    """A wrong ttl of `connect` is an error that names it."""
    with pytest.raises(error, match=f"{argument}.* {match}"):
        aiolock.connect("memory://", ttl=value)


PREFIXES: list[Wrong] = [
    ("", ValueError, "1 to 100"),
    ("x" * 101, ValueError, "1 to 100"),
    ("a{b}", ValueError, "braces"),
    ("a b", ValueError, "spaces"),
    ("a\n", ValueError, "printable ASCII"),
    ("ü", ValueError, "ASCII"),
    (b"a", TypeError, "must be a str, not bytes"),
    (None, TypeError, "must be a str, not NoneType"),
]


@pytest.mark.parametrize(("argument", "value", "error", "match"), cases({"prefix": PREFIXES}))
def test_connect_with_an_invalid_prefix_raises_an_error_naming_it(
    argument: str, value: Any, error: type[Exception], match: str
) -> None:
    """A wrong prefix is an error, with each kind of store."""
    for target in ("memory://", "redis://localhost", MemoryServer()):
        with pytest.raises(error, match=f"{argument}.* {match}"):
            aiolock.connect(target, prefix=value)


URLS: list[tuple[str, str]] = [
    ("", "is empty.* begins with one of memory://"),
    ("localhost:6379", r"did you mean redis://localhost:6379\?.* begins with one of memory://"),
    ("localhost", r"did you mean redis://localhost\?.* begins with one of memory://"),
    ("consul://localhost", r"memory://.*redis://.*rediss://.*unix://"),
    ("REDIS//localhost", "begins with one of"),
    ("memory://a/b", "memory://name"),
    ("memory://?x=1", "memory://name"),
    ("memory://me@there", "memory://name"),
    ("redis://localhost:port", "port"),
    ("redis://localhost:99999999", "port|Port"),
    ("redis://localhost/0?nope=1", "nope"),
    ("redis://localhost/0?socket_timeout=soon", "socket_timeout"),
]


@pytest.mark.parametrize(("url", "match"), URLS, ids=[url for url, _ in URLS])
def test_connect_with_an_invalid_url_raises_value_error(url: str, match: str) -> None:
    """A URL that cannot be is a ValueError of `connect`, which says what it should be."""
    with pytest.raises(ValueError, match=f"(?s){match}"):
        aiolock.connect(url)


def test_password_of_a_url_is_shown_in_no_error_or_repr() -> None:
    """Neither an error nor a repr tells the password of a URL."""
    client = aiolock.connect("redis://me:s3cret@localhost:6379/0")
    assert "s3cret" not in repr(client)
    for url in ("consul://me:s3cret@localhost", "redis://me:s3cret@localhost:port"):
        with pytest.raises(ValueError, match=r"port|begins with") as caught:
            aiolock.connect(url)
        assert "s3cret" not in str(caught.value)


def test_connect_with_an_invalid_target_raises_type_error() -> None:
    """What is neither a URL nor a client that aiolock can use is a TypeError that says which."""
    blocking = redis.Redis()
    targets: list[tuple[Any, str]] = [
        (blocking, "blocking redis.Redis.*redis.asyncio.Redis"),
        (fakeredis.FakeRedis(), "blocking redis.Redis"),
        (RedisCluster, "not to a"),
        (redis.asyncio.Redis, "not to a"),
        (redis.asyncio.ConnectionPool(), "redis.asyncio.Redis, not .*ConnectionPool"),
        (None, "not to a NoneType"),
        (42, "not to a int"),
        (b"redis://localhost", "not to a bytes"),
        (sys, "not to a module"),
        (MemoryServer, "not to a type"),
    ]
    for target, match in targets:
        with pytest.raises(TypeError, match=match):
            aiolock.connect(target)
    blocking.close()


async def test_connect_with_a_disconnected_redis_client_does_no_io() -> None:
    """A client that is refused has not been used."""
    driver = fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer(), connected=False)
    with mock.patch.object(driver.connection_pool.connection_class, "__init__") as connection:
        aiolock.connect(driver)
        with pytest.raises(TypeError, match="prefix"):
            aiolock.connect(driver, prefix=3)  # type: ignore[arg-type]  # that is what is wrong
    connection.assert_not_called()


@pytest.mark.parametrize(("number", "error", "text"), NUMBERS)
@pytest.mark.parametrize("kind", ["semaphore", "latch", "barrier"])
def test_semaphore_latch_and_barrier_with_an_invalid_number_raise(
    kind: str, number: Any, error: type[Exception], text: str
) -> None:
    """Permits, counts and parties are whole numbers, at least 1."""
    client = aiolock.connect("memory://")
    with pytest.raises(error, match=text):
        getattr(client, kind)("a", number)


@pytest.mark.parametrize("kind", ["semaphore", "latch", "barrier", "election", "rwlock"])
def test_names_of_other_kinds_are_checked_as_those_of_a_lock(kind: str) -> None:
    """Names are checked as a lock's are."""
    factory = getattr(aiolock.connect("memory://"), kind)
    more: tuple[int, ...] = (3,) if kind in {"semaphore", "latch", "barrier"} else ()
    assert factory("x" * 512, *more).name == "x" * 512
    for name, error in (("", ValueError), ("x" * 513, ValueError), (3, TypeError)):
        with pytest.raises(error, match="a lock's name must"):
            factory(name, *more)


@pytest.mark.parametrize(("remember", "error", "text"), POSITIVE)
def test_latch_with_an_invalid_remember_raises(
    remember: Any, error: type[Exception], text: str
) -> None:
    """For how long a latch is remembered is a number of seconds."""
    with pytest.raises(error, match=text):
        aiolock.connect("memory://").latch("a", 2, remember=remember)


def test_timedelta_is_accepted_for_any_number_of_seconds() -> None:
    """Wherever a number of seconds is taken, a timedelta is taken too."""
    minute = timedelta(minutes=1)
    client = aiolock.connect("memory://", ttl=minute)
    assert client.lock("a").ttl == 60
    lock = client.lock(
        "a", ttl=minute, timeout=minute, max_hold=minute, min_hold=minute, lock_delay=minute
    )
    policy = lock._policy
    assert (policy.ttl, policy.timeout, policy.max_hold) == (60, 60, 60)
    assert (policy.min_hold, policy.lock_delay) == (60, 60)
    assert client.periodic("p", every=minute, min_hold=minute, max_hold=minute).every == 60
    assert repr(client.once("o", remember=minute, ttl=minute)) == "<Once 'o' remember=60>"
    assert client.latch("l", 1, remember=minute)._remember == 60


async def test_resize_to_an_invalid_limit_raises_and_sends_nothing() -> None:
    """A semaphore is resized to a whole number, 0 or more; nothing is sent otherwise."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    wrong: list[Wrong] = [
        (-1, ValueError, "limit must be from 0 to"),
        (2.5, TypeError, "limit must be an int, not 2.5"),
        (False, TypeError, "limit must be an int, not False"),
    ]
    async with aiolock.connect(faulty) as client:
        for limit, error, text in wrong:
            with pytest.raises(error, match=text):
                await client.semaphore("s", 2).resize(cast(Any, limit))
    assert faulty.calls == {"open": 1}


async def test_count_down_with_a_wrong_token_sends_nothing() -> None:
    """What counts down a latch has the rules of a name; nothing is sent otherwise."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        with pytest.raises(ValueError, match="a lock's name must"):
            await client.latch("l", 2).count_down("")
    assert faulty.calls == {"open": 1}


# --- What other libraries call it, and what is nearly right


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ("blocking_timeout", r"'blocking_timeout': did you mean timeout=, the seconds to wait"),
        ("expire", r"'expire': did you mean ttl=, the seconds for which the server keeps it"),
        ("auto_renewal", r"'auto_renewal': did you mean renew=\?"),
        ("max_waiter", r"'max_waiter': did you mean max_waiters=\?"),
        ("colour", r"unexpected keyword argument 'colour'$"),
    ],
)
async def test_option_of_another_library_suggests_ours(
    client: aiolock.LockClient, wrong: str, match: str
) -> None:
    """A `TypeError` with what is meant, of each kind of lock that has it."""
    options: dict[str, Any] = {wrong: 5}
    locks = client.lock, client.multilock, client.path_lock, client.rwlock, client.locked
    for describe in locks:
        call: Any = describe
        with pytest.raises(TypeError, match=match):
            call("a", **options)
    with pytest.raises(TypeError, match=match):
        aiolock.sync.connect("memory://").lock("a", **options)


@pytest.mark.one_loop
@pytest.mark.parametrize("kind", sorted(aiolock.store.ALL_KINDS - {"periodic", "shards"}))
def test_misspelled_option_for_threads_suggests_ours(kind: str) -> None:
    """A `TypeError` with what is meant, of each kind that has it."""
    wrong: dict[str, Any] = {"tmeout": 5}
    method = "path_lock" if kind == "path" else kind
    with pytest.raises(TypeError, match=rf"^{method}\(\) .*'tmeout': did you mean timeout="):
        getattr(aiolock.sync.connect("memory://"), method)("a", **wrong)


@pytest.mark.one_loop
def test_connect_option_of_another_library_suggests_ours() -> None:
    """A ttl is given there, too."""
    wrong: dict[str, Any] = {"expire": 30}
    for connect in (aiolock.connect, aiolock.sync.connect):
        with pytest.raises(TypeError, match="did you mean ttl="):
            connect("memory://", **wrong)


@pytest.mark.one_loop
async def test_acquire_option_of_another_library_suggests_ours(client: aiolock.LockClient) -> None:
    """As where the lock is described; of what `acquire` does not have, it names nothing."""
    wrong: dict[str, Any] = {"blocking_timeout": 5}
    threads = aiolock.sync.connect("memory://")
    calls: list[Any] = [
        client.lock("a").acquire,
        client.lock("a").try_acquire,
        client.semaphore("a", 2).acquire,
        client.semaphore("a", 2).try_acquire,
        threads.lock("a").acquire,
        threads.lock("a").try_acquire,
        threads.semaphore("a", 2).acquire,
        threads.semaphore("a", 2).try_acquire,
    ]
    for call in calls:
        with pytest.raises(TypeError, match="did you mean timeout="):
            _ = call(**wrong)
        with pytest.raises(TypeError, match=r"'expire'$"):
            _ = call(expire=5)
    for several in (client.multilock("a"), client.path_lock("a")):
        for ask in (several.acquire, several.try_acquire):
            with pytest.raises(TypeError, match="did you mean timeout="):
                await ask(**wrong)


@pytest.mark.one_loop
async def test_hint_for_an_unknown_option_names_only_keyword_options(
    client: aiolock.LockClient,
) -> None:
    """The names of a multilock, and the object itself, have no name to be given by."""
    multilock: Any = client.multilock
    for wrong in ("names", "name", "selfs"):
        with pytest.raises(TypeError, match=rf"multilock\(\) got .*'{wrong}'$"):
            multilock("a", **{wrong: "b"})
    acquire: Any = client.semaphore("a", 2).acquire
    with pytest.raises(TypeError, match=r"acquire\(\) got .*'permit': did you mean permits=\?"):
        acquire(permit=2)


@pytest.mark.one_loop
async def test_hint_for_a_mocked_method_names_the_option_meant(client: aiolock.LockClient) -> None:
    """The error looks at the method itself."""
    with (
        mock.patch.object(client, "lock", wraps=client.lock) as lock,
        pytest.raises(TypeError, match=r"lock\(\) got .*: did you mean ttl="),
    ):
        lock("a", expire=5)


@pytest.mark.one_loop
async def test_with_instead_of_async_with_raises_type_error(client: aiolock.LockClient) -> None:
    """Each that is entered with `async with`."""
    lock = client.lock("a")
    acquisition = lock.acquire()
    each: list[Any] = [
        *(client, lock, acquisition, client.rwlock("a").read(), client.rwlock("a").write()),
        *(client.semaphore("a", 2), client.multilock("a", "b"), client.once("a", remember=60)),
        *(client.periodic("a", every=60), client.path_lock("a/b"), client.group("a")),
        client.rate_limit("a", 1, per=1),
    ]
    for one in each:
        with pytest.raises(TypeError, match="with `async with`, not `with`"), one:
            pass
    acquisition.close()


@pytest.mark.one_loop
async def test_with_on_what_has_no_body_says_nothing_of_async_with(
    client: aiolock.LockClient,
) -> None:
    """That would be wrong, too."""
    each: list[Any] = [
        *(client.shards("a", 2), client.rwlock("a"), client.election("a"), client.event("a")),
        *(client.latch("a", 1), client.barrier("a", 2)),
    ]
    for one in each:
        with pytest.raises(TypeError, match="not support the context manager protocol"), one:
            pass


@pytest.mark.one_loop
def test_ttl_that_may_be_milliseconds_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the log, however often it is used; an hour is not."""
    monkeypatch.setattr("aiolock.validation._questioned", set[float]())
    for ttl in (3600, 30_000, 30_000.0):
        aiolock.connect("memory://", ttl=ttl)
    (record,) = caplog.records
    assert "a ttl of 30000 s is 8.3 hours" in record.getMessage()
    assert "milliseconds" in record.getMessage()


@pytest.mark.one_loop
async def test_timeout_of_infinity_suggests_none(client: aiolock.LockClient) -> None:
    """To wait as long as it takes has a spelling."""
    for call in (
        lambda: client.lock("a", timeout=math.inf),
        lambda: client.lock("a").acquire(timeout=math.inf),
    ):
        with pytest.raises(ValueError, match="not inf: None waits as long as it takes"):
            _ = call()
