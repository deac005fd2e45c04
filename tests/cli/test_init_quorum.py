"""``aiolock init-quorum``: servers of a quorum that never voted before are told so."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

import aiolock
from aiolock.cli import main
from tests.support.majorities import Majority
from tests.support.servers import RedisServer

pytestmark = pytest.mark.one_loop


@pytest.fixture(scope="module")
def those() -> Iterator[list[RedisServer]]:
    """Three servers that were started a moment ago."""
    with Majority() as majority:
        yield majority.servers


@pytest.fixture
def of(those: list[RedisServer]) -> list[RedisServer]:
    """The same, empty."""
    for server in those:
        server.call("FLUSHALL")
    return those


def urls(of: Sequence[RedisServer]) -> list[str]:
    """That of each."""
    return [server.url for server in of]


async def run(*words: str) -> int:
    """Run the command, which has an event loop of its own; returns its exit code."""
    return await asyncio.to_thread(main.main, ["init-quorum", *words])


async def init(of: Sequence[RedisServer], prefix: str, *options: str) -> int:
    """Run it for these servers."""
    return await run(*urls(of), "--prefix", prefix, "--yes", *options)


def connect(of: Sequence[RedisServer], prefix: str) -> aiolock.LockClient:
    """A client of them; a server that is silent is so for longer than a test takes."""
    return aiolock.connect(urls(of), prefix=prefix, longest_ttl=600)


async def test_init_quorum_of_just_started_servers_lets_them_vote_at_once(
    of: list[RedisServer], prefix: str
) -> None:
    """Without the command, nobody votes for ``longest_ttl``, and the client says so."""
    async with connect(of, prefix) as client:
        says = (
            r"did not become free in 0.1 s: 3 of 3 servers do not vote for 6\d\d s more: .*started"
        )
        with pytest.raises(aiolock.AcquireTimeout, match=says):
            async with client.lock("a", timeout=0.1):
                raise AssertionError
        for server in client.servers():
            assert server.state == "not voting"
            assert 0 < server.not_voting < 700
            assert "aiolock init-quorum" in server.error
    assert await init(of, prefix, "--longest-ttl", "600") == 0
    async with connect(of, prefix) as client, client.lock("a", timeout=60) as lease:
        assert lease.fence
        assert {server.error for server in client.servers()} == {""}


async def test_init_quorum_with_a_dash_takes_the_urls_of_the_environment(
    of: list[RedisServer],
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """So that no list of processes shows their passwords; without the variable there are none."""
    monkeypatch.delenv("AIOLOCK_URL", raising=False)
    assert await run("-", "--prefix", prefix, "--yes") == 2
    assert "3, 5 or 7" in capsys.readouterr().err
    monkeypatch.setenv("AIOLOCK_URL", " ".join(urls(of)))
    assert await run("-", "--prefix", prefix, "--yes") == 0
    assert capsys.readouterr().out == "all 3 servers vote\n"


async def test_init_quorum_of_voting_servers_changes_nothing_or_is_refused(
    of: list[RedisServer], prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command may be run again, before the first lock; not for another ``longest_ttl``."""
    assert await init(of, prefix) == await init(of, prefix) == 0
    first, again = capsys.readouterr().out.splitlines()
    assert (first, again) == (
        "all 3 servers vote",
        "all 3 servers vote, as they did before",
    )
    assert await init(of, prefix, "--longest-ttl", "20") == 69
    assert "is a member of another quorum" in capsys.readouterr().err


async def test_init_quorum_of_servers_in_use_is_refused(
    of: list[RedisServer], prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A client is connected, or a lock was taken: then votes may be out that were forgotten."""
    assert await init(of, prefix, "--longest-ttl", "600") == 0
    markers = [server.call("GET", f"{prefix}:quorum") for server in of]
    async with connect(of, prefix) as client:
        async with client.lock("a", timeout=60):
            pass
        assert await init(of, prefix, "--longest-ttl", "600") == 1
        assert "a client is connected" in capsys.readouterr().err
    assert await init(of, prefix, "--longest-ttl", "600") == 1
    assert "it has a key of 'lock:a'" in capsys.readouterr().err
    assert [server.call("GET", f"{prefix}:quorum") for server in of] == markers


async def test_init_quorum_of_a_server_restarted_with_its_data_is_refused(
    of: list[RedisServer], prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It knows the quorum from an earlier run, in which it may have voted."""
    assert await init(of, prefix) == 0
    marker = of[1].call("GET", f"{prefix}:quorum")
    _, _, rest = marker.partition(" ")
    of[1].call("SET", f"{prefix}:quorum", f"{'0' * 40} {rest}")
    assert await init(of, prefix) == 69
    assert "before it was last started" in capsys.readouterr().err


async def test_init_quorum_of_a_server_without_an_answer_names_it_and_changes_none(
    of: list[RedisServer], prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is changed at the others."""
    gone = [*urls(of)[:2], "redis://127.0.0.1:1"]
    assert await run(*gone, "--prefix", prefix, "--yes") == 69
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert [server.call("EXISTS", f"{prefix}:quorum") for server in of] == [0, 0, 0]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["redis://a", "redis://b"], "3, 5 or 7 servers"),
        (["redis://a", "redis://a", "redis://b"], "twice"),
        (["memory://a", "memory://b", "memory://c"], "for Redis servers"),
        (["redis://a", "redis://b", "postgresql://c"], "for Redis servers"),
    ],
)
def test_init_quorum_of_an_invalid_list_of_servers_exits_2(
    given: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before any of them is connected to."""
    assert main.main(["init-quorum", *given, "--yes"]) == 2
    assert says in capsys.readouterr().err


def test_init_quorum_without_a_terminal_requires_yes(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody can be asked there."""
    assert main.main(["init-quorum", "redis://a", "redis://b", "redis://c"]) == 2
    assert "use --yes" in capsys.readouterr().err
