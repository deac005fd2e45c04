"""URLs of Redis and Valkey, and of a service that Sentinel finds."""

from __future__ import annotations

from typing import Any

import pytest
from redis.asyncio import RedisCluster

import aiolock
from aiolock.stores.redis._sentinel import sentinels_of
from aiolock.stores.redis._urls import pool_at

SERVICE = "redis+sentinel://h1:7000,h2,[::1]:7002/locks"


def asked(pool: Any) -> list[tuple[str, int]]:
    """Where its Sentinels are."""
    kwargs = [each.connection_kwargs for each in sentinels_of(pool)]
    return [(each["host"], each["port"]) for each in kwargs]


def test_sentinel_url_gives_addresses_service_and_database() -> None:
    """Each with its port, or the usual one; and the master of that service, in that database."""
    pool: Any = pool_at(f"{SERVICE}/3")
    assert asked(pool) == [("h1", 7000), ("h2", 26379), ("::1", 7002)]
    assert (pool.service_name, pool.is_master) == ("locks", True)
    assert pool.connection_kwargs["db"] == 3


def test_sentinel_url_keeps_the_users_of_server_and_sentinels_apart() -> None:
    """The one before the hosts is the server's; the Sentinels' are options."""
    pool: Any = pool_at(
        "redis+sentinel://ann:p%40ss@h1/locks?sentinel_username=bob&sentinel_password=word"
    )
    assert pool.connection_kwargs["username"] == "ann"
    assert pool.connection_kwargs["password"] == "p@ss"
    (sentinel,) = sentinels_of(pool)
    assert sentinel.connection_kwargs["username"] == "bob"
    assert sentinel.connection_kwargs["password"] == "word"
    shown = repr(aiolock.connect("redis+sentinel://ann:p%40ss@h1/locks?sentinel_password=word"))
    assert "ss@" not in shown
    assert "word" not in shown


@pytest.mark.parametrize("scheme", ["rediss+sentinel", "valkeys+sentinel"])
def test_sentinel_url_with_tls_uses_it_for_servers_and_sentinels(scheme: str) -> None:
    """To the servers, and to the Sentinels."""
    pool: Any = pool_at(f"{scheme}://h1/locks?ssl_cert_reqs=none")
    assert "SSL" in pool.connection_class.__name__
    (sentinel,) = sentinels_of(pool)
    assert "SSL" in sentinel.connection_class.__name__


@pytest.mark.parametrize(("valkey", "redis"), [("valkey", "redis"), ("valkeys", "rediss")])
def test_valkey_url_gives_the_same_pool_as_redis(valkey: str, redis: str) -> None:
    """The same pool."""
    ours, theirs = pool_at(f"{valkey}://u:p@host:1/2"), pool_at(f"{redis}://u:p@host:1/2")
    assert ours.connection_class is theirs.connection_class
    for what in ("host", "port", "db", "username", "password"):
        assert ours.connection_kwargs[what] == theirs.connection_kwargs[what]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis+sentinel://h1,h2", "which service"),
        ("redis+sentinel://h1/", "which service"),
        ("redis+sentinel://h1/locks/x", "the database of this URL is not a number"),
        ("redis+sentinel:///locks", "address 1"),
        ("redis+sentinel://h1,,h2/locks", "address 2"),
        ("redis+sentinel://h1,h2:x/locks", "address 2"),
        ("redis+sentinel://h1:0/locks", "address 1"),
        ("redis+sentinel://h1:65536/locks", "address 1"),
        ("redis+sentinel://u:sec/ret@h1/locks", "percent-encode .* / as %2F"),
        ("redis+sentinel://h1/locks?colour=blue", "there is no option 'colour'"),
        ("redis+sentinel://h1/locks?db=1&db=2", "'db' is in this URL twice"),
        ("redis://h1/0?client_name=a&client_name=b", "'client_name' is in this URL twice"),
        ("redis+cluster://h1?push=sharded&push=broadcast", "'push' is in this URL twice"),
        ("valkey+sentinel://h1", r"valkey\+sentinel://\[user"),
    ],
)
def test_url_that_is_wrong_raises_value_error_without_the_password(url: str, says: str) -> None:
    """It is refused before any I/O, with what is right, and without a password."""
    with pytest.raises(ValueError, match=says) as caught:
        aiolock.connect(url)
    assert "sec" not in str(caught.value)


@pytest.mark.parametrize(
    "target", ["redis+cluster://h1", RedisCluster("h1")], ids=["url", "client"]
)
def test_connect_with_replicas_to_a_cluster_raises_value_error(target: Any) -> None:
    """They are not waited for there, and that is said before anything is sent."""
    with pytest.raises(ValueError, match="not in a cluster"):
        aiolock.connect(target, replicas=1)
