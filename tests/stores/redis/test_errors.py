"""What a `StoreError` says of a Redis server: by the words of each version of it."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable

import pytest
import redis.exceptions
from redis.asyncio.connection import Connection, ConnectionPool, SSLConnection
from redis.asyncio.sentinel import MasterNotFoundError

from aiolock.stores.redis._errors import (
    ACL_RULE,
    Place,
    Refusal,
    address_of,
    as_answered,
    code_of,
    did_nothing,
    store_error,
)

PLACE = Place("redis.example:6379", tls=False, database=99, prefix="aiolock")
RULE = ACL_RULE.format(prefix="aiolock")

OLD = "ERR Error running script (call to f_a666): @user_script:7: @user_script: 7: "
"""How Redis 6.2 begins what went wrong in a script."""
CALLED = "ERR Error running script (call to f_a666): @user_script:7: "
"""And what a command was refused for that a script called."""
NEW = " script: a666, on @user_script:7."
"""How Redis 7.0 ends it, and whatever came after."""
CLUSTER = r"use redis\+cluster://redis.example:6379"

ANSWERS = [
    # Redis 6.2, 7.0 and later, Valkey: a replica.
    (OLD + "-READONLY You can't write against a read only replica. ", "replica.*master", True),
    ("READONLY You can't write against a read only replica." + NEW, "replica.*Sentinel", True),
    ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "", True),
    # No room.
    (OLD + "-OOM command not allowed when used memory > 'maxmemory'. ", "out of memory", True),
    ("OOM command not allowed when used memory > 'maxmemory'." + NEW, "maxmemory higher", True),
    # No replica, no disk, not yet.
    ("NOREPLICAS Not enough good replicas to write." + NEW, "min-replicas-to-write", True),
    (OLD + "-MISCONF Redis is configured to save RDB snapshots, but ...", "stop-writes", True),
    ("MISCONF Redis is configured to save RDB snapshots, but ..." + NEW, "its disk", True),
    ("MISCONF Valkey is configured to save RDB snapshots, but ..." + NEW, "its disk", True),
    ("LOADING Redis is loading the dataset in memory", "wait", True),
    ("LOADING Valkey is loading the dataset in memory", "wait", True),
    ("BUSY Redis is busy running a script. You can only call SCRIPT KILL ...", "KILL", True),
    # Rights: of the call itself, and of what the script calls: Redis 6.2, 7.0; 7.2 and Valkey.
    ("NOPERM this user has no permissions to run the 'evalsha' command", RULE, True),
    ("NOPERM User bob has no permissions to run the 'evalsha' command", RULE, True),
    ("NOPERM No permissions to access a key", RULE, True),
    (OLD + "The user executing the script can't run this command or subcommand ", RULE, False),
    ("ERR The user executing the script can't run this command or subcommand" + NEW, RULE, False),
    (
        "ERR ACL failure in script: User less has no permissions to run the 'zscore' command" + NEW,
        RULE,
        False,
    ),
    (
        "NOPERM ACL failure in script: User less has no permissions to run 'zscore'" + NEW,
        RULE,
        False,
    ),
    # Who we are.
    ("NOAUTH Authentication required.", "wants a password", True),
    ("WRONGPASS invalid username-password pair or user is disabled.", "this password", False),
    ("ERR invalid password", "another password", False),
    (
        "ERR AUTH <password> called without any password configured for the ...",
        "no password",
        False,
    ),
    # Where we are.
    ("ERR DB index is out of range", "no database 99", False),
    ("ERR invalid DB index", "no database 99", False),
    ("ERR unknown command `EVALSHA`, with args beginning with: ", "6.2 or Valkey", False),
    ("ERR unknown command 'EVAL', with args beginning with: ", "EVALSHA", False),
    (
        OLD + "Unknown Redis command called from Lua script ",
        "rename-command must spare: .* PUBLISH",
        False,
    ),
    ("ERR Unknown Redis command called from script" + NEW, "rename-command", False),
    ("ERR Unknown command called from script" + NEW, "rename-command", False),
    ("ERR max number of clients reached", r"no more clients \(maxclients\)", False),
    ("ERR max number of clients + cluster connections reached", "maxclients", False),
    # Cluster.
    ("CROSSSLOT Keys in request don't hash to the same slot", CLUSTER, True),
    ("MOVED 3999 127.0.0.1:6381", CLUSTER, True),
    ("CLUSTERDOWN Hash slot not served", CLUSTER, True),
    ("ERR SELECT is not allowed in cluster mode", CLUSTER, False),
    (
        "ERR Script attempted to access a non local key in a cluster node" + NEW,
        CLUSTER,
        False,
    ),
    # What the script may have come to after it had written.
    (CALLED + "WRONGTYPE Operation against a key holding the wrong kind of value", "prefix", False),
    ("WRONGTYPE Operation against a key holding the wrong kind of value" + NEW, "prefix", False),
    ("ERR something else" + NEW, "something else", False),
]


@pytest.mark.parametrize(("answer", "pattern", "nothing_done"), ANSWERS)
def test_store_error_of_a_refusal_says_the_address_and_the_remedy(
    answer: str, pattern: str, nothing_done: bool
) -> None:
    """Whatever the server's words, it is said where, what is wrong and what to do."""
    refusal = Refusal(answer)
    error = store_error(refusal, PLACE)
    assert str(error).startswith("Redis at redis.example:6379")
    assert answer in str(error)
    assert re.search(re.escape(pattern) if pattern == RULE else pattern, str(error))
    assert error.__cause__ is refusal
    assert error.refused is False
    assert did_nothing(refusal) is nothing_done


def wrapped(cause: Exception, text: str) -> Exception:
    """An error of redis-py's that came from another."""
    error = redis.exceptions.ConnectionError(text)
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "pattern"),
    [
        (wrapped(ConnectionRefusedError(111, "refused"), "Error 111 connecting"), "listens there"),
        (OSError("Multiple exceptions: Connect call failed ('::1', 1), ..."), "listens there"),
        (wrapped(socket.gaierror(-2, "unknown"), "Error -2 connecting"), "no such host"),
        (wrapped(FileNotFoundError(2, "No such file"), "Error 2"), "no such socket"),
        (wrapped(PermissionError(13, "denied"), "Error 13"), "rights"),
        (wrapped(ssl.SSLCertVerificationError(1, "self-signed"), "Error 1"), "ssl_ca_certs"),
        (wrapped(ssl.SSLError(1, "wrong version number"), "Error 1"), "TLS"),
        (TimeoutError(), "did not answer in time.*rediss://"),
        (redis.exceptions.TimeoutError("Timeout connecting to server"), "did not answer in time"),
        (redis.exceptions.InvalidResponse("Protocol Error: b'HTTP/1.1'"), "no Redis server"),
        (redis.exceptions.ConnectionError("Connection closed by server."), "closed.*rediss://"),
        (ConnectionResetError(104, "Connection reset by peer"), "closed the connection"),
        (MasterNotFoundError("no Sentinel has a master for 'locks': ..."), "Sentinels run"),
        (
            MasterNotFoundError("no Sentinel has a master: ERR unknown command 'SENTINEL', with"),
            "no Sentinel: use redis://",
        ),
        (wrapped(ConnectionResetError(), "Error connecting to h:1."), "closed.*maxclients"),
        (wrapped(ConnectionResetError("Connection lost"), "while writing"), "closed.*maxclients"),
        (redis.exceptions.AuthenticationError("Authentication required."), "wants a password"),
        (redis.exceptions.ReadOnlyError("You can't write against a read only replica."), "replica"),
        (redis.exceptions.RedisError("who knows"), "Redis at redis.example:6379: who knows"),
    ],
)
def test_store_error_without_an_answer_says_the_address_and_the_cause(
    error: Exception, pattern: str
) -> None:
    """So it is where there was no connection, or no answer."""
    text = str(store_error(error, PLACE))
    assert text.startswith("Redis at redis.example:6379")
    assert re.search(pattern, text)


def test_store_error_of_a_missing_file_by_tls_names_ssl_ca_certs() -> None:
    """It is one of the options for TLS."""
    error = wrapped(FileNotFoundError(2, "No such file"), "Error 2")
    text = str(store_error(error, PLACE._replace(tls=True)))
    assert "see ssl_ca_certs" in text
    assert "socket" not in text


def test_store_error_of_a_timeout_by_tls_suggests_the_plain_scheme() -> None:
    """Who speaks TLS to what does not answer is told that the port may be a plain one."""
    text = str(store_error(TimeoutError(), PLACE._replace(tls=True)))
    assert "use redis://" in text
    assert "rediss://" not in text


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (redis.exceptions.ReadOnlyError("You can't"), "READONLY You can't"),
        (redis.exceptions.NoPermissionError("User x has no"), "NOPERM User x has no"),
        (redis.exceptions.ResponseError("MISCONF Redis is"), "MISCONF Redis is"),
        (redis.exceptions.ResponseError("LATE 1234"), "LATE 1234"),
        (redis.exceptions.ResponseError("value is not"), "ERR value is not"),
    ],
)
def test_as_answered_restores_the_code_that_redis_py_removed(
    error: redis.exceptions.ResponseError, text: str
) -> None:
    """What redis-py read for us is as the server had sent it."""
    assert str(as_answered(error)) == text
    assert code_of(error) == text.partition(" ")[0] or text.startswith("ERR")


def test_place_of_each_kind_of_pool_has_an_address() -> None:
    """Each kind of pool has something to be named by."""
    tls = ConnectionPool(connection_class=SSLConnection, host="h", port=1, db=2)
    assert Place.of(tls, "p") == Place("h:1", True, 2, "p")
    assert address_of(ConnectionPool(path="/run/redis.sock")) == "/run/redis.sock"
    assert "Connection" in address_of(ConnectionPool(connection_class=Connection))


def _scripts(folder: Traversable) -> Iterator[Traversable]:
    for each in folder.iterdir():
        yield from _scripts(each) if each.is_dir() else [each]


def test_acl_rule_has_every_command_of_the_scripts() -> None:
    """Every command that a script uses is in the rule, and is tried when a client opens."""
    used: dict[str, str] = {}
    for file in _scripts(resources.files("aiolock.stores.redis").joinpath("lua")):
        source = re.sub(r"--.*", "", file.read_text("utf-8"))
        for command, sub in re.findall(r"redis\.p?call\('(\w+)'(?:, '(\w+)')?", source):
            used[f"{command}|{sub}" if command == "PUBSUB" else command] = file.name
    source = resources.files("aiolock.stores.redis").joinpath("lua", "open.lua").read_text("utf-8")
    rights = ACL_RULE.split()
    tried = {"PUBLISH", "TIME"}  # by the presence, and by what the script includes
    for command in used.keys() - {"INFO", "SCAN", "CLUSTER", "SPUBLISH"}:  # not always needed
        assert f"+{command.lower()}" in rights, f"{command} of {used[command]}"
        assert command in tried or f"'{command.split('|')[0]}'" in source


@pytest.mark.parametrize(
    ("answer", "stays"),
    [
        ("NOPERM this user has no permissions to run the 'evalsha' command", True),
        (OLD + "The user executing the script can't run this command or subcommand ", True),
        ("NOAUTH Authentication required.", True),
        ("WRONGPASS invalid username-password pair or user is disabled.", True),
        ("ERR DB index is out of range", True),
        ("ERR unknown command 'EVALSHA', with args beginning with: ", True),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", True),
        ("READONLY You can't write against a read only replica." + NEW, False),
        ("LOADING Redis is loading the dataset in memory", False),
        ("OOM command not allowed when used memory > 'maxmemory'." + NEW, False),
        ("ERR max number of clients reached", False),
    ],
)
def test_store_error_is_misconfigured_only_for_refusals_that_last(answer: str, stays: bool) -> None:
    """What a task that is tried again would get each time; the others may pass."""
    assert store_error(Refusal(answer), PLACE).misconfigured is stays
    assert not store_error(ConnectionRefusedError("refused"), PLACE).misconfigured
