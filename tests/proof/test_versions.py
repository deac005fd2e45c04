"""Two versions of aiolock, each in a process of its own, share the locks of a store.

What a client writes to a store is read by clients of the version before it, and the other way
round, while a deployment goes on.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import aiolock
from tests.support import versions
from tests.support.majorities import LONGEST, Majority
from tests.support.neighbours import CHILD, Neighbour, both_see
from tests.support.versions import Version

pytestmark = pytest.mark.one_loop

TTL = 0.5
"""Seconds of a lease that ends."""
STORES = ("sqlite", "redis", "redis/cluster", "redis/quorum", "postgres", "mysql")


@pytest.fixture(scope="module")
def other() -> Version:
    """The other version."""
    try:
        return versions.other()
    except versions.Unavailable as error:
        pytest.skip(f"no other version: {error}")


@pytest.fixture(scope="module")
def majority() -> Iterator[Majority]:
    """Three servers that vote."""
    with Majority() as servers:
        yield servers


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, prefix: str) -> tuple[object, dict[str, object]]:
    """An empty store of each kind, as both connect to it."""
    fixture: Any = request.getfixturevalue
    options: dict[str, object] = {"prefix": prefix}
    match request.param:
        case "sqlite":
            return f"sqlite:///{fixture('tmp_path')}/locks.db", options
        case "redis":
            return fixture("redis_server").url, options
        case "redis/cluster":
            return fixture("cluster").url, options
        case "redis/quorum":
            servers: Majority = fixture("majority")
            servers.vouch(prefix)
            return servers.urls, options | {"longest_ttl": LONGEST}
        case "postgres":
            return fixture("postgres_server").url("app"), options
    return fixture("mariadb_server").url("app"), options


@pytest.fixture
async def both(
    other: Version, place: tuple[object, dict[str, object]]
) -> AsyncIterator[dict[str, Neighbour]]:
    """A process of the other version, and one of this."""
    async with AsyncExitStack() as stack:
        pythons = (other.python, Path(sys.executable))
        made = (stack.enter_async_context(Neighbour(python, *place)) for python in pythons)
        theirs, ours = await asyncio.gather(*made)
        assert theirs.package.is_relative_to(other.folder)
        assert ours.package == Path(aiolock.__file__).parent
        yield {"other": theirs, "this": ours}


def orders(both: dict[str, Neighbour]) -> Iterator[tuple[str, tuple[Neighbour, Neighbour]]]:
    """Each version first, and a name for that."""
    yield "other-this", (both["other"], both["this"])
    yield "this-other", (both["this"], both["other"])


async def test_release_hands_off_to_a_waiter_of_the_other_version(
    both: dict[str, Neighbour],
) -> None:
    """In the order of one queue, with rising fences, and both see who holds it and who waits."""
    for name, sides in orders(both):
        first, second = sides
        fences = [await first.acquire(name, "1")]
        await both_see(sides, name, [first])
        waiting = list[Neighbour]()
        for place, side in enumerate((second, first, second), 2):
            await side.ask(name, str(place))
            waiting.append(side)
            await both_see(sides, name, [first], *waiting)
        assert await first.release("1")
        for place in (2, 3, 4):
            holder = waiting.pop(0)
            fences.append(await holder.holds(str(place)))
            await both_see(sides, name, [holder], *waiting)
            assert await holder.release(str(place))
        assert fences == sorted(set(fences))
        await both_see(sides, name, [])


async def test_expiry_hands_the_lock_to_a_waiter_of_the_other_version(
    both: dict[str, Neighbour],
) -> None:
    """Not before it has ended, whichever version noticed it."""

    async def end(name: str, sides: tuple[Neighbour, Neighbour]) -> None:
        first, second = sides
        began = time.monotonic()
        fence = await first.acquire(name, f"ends {name}", ttl=TTL, renew=False)
        await second.ask(name, f"follows {name}")
        assert await second.holds(f"follows {name}") > fence
        assert time.monotonic() - began > TTL
        await both_see(sides, name, [second])
        assert not await first.release(f"ends {name}")
        assert await second.release(f"follows {name}")

    await asyncio.gather(*(end(name, sides) for name, sides in orders(both)))


async def test_waiters_with_shares_are_all_served_beside_the_other_version(
    both: dict[str, Neighbour], place: tuple[object, dict[str, object]]
) -> None:
    """In whichever order, since the other version knows no shares; one at a time."""
    target: Any = place[0]
    if why := aiolock.connect(target).lock("x")._engine.store.features.missing.get("share"):
        pytest.skip(why)
    ours, theirs = both["this"], both["other"]
    fences = [await ours.acquire("n", "first", share="a")]
    asked: list[tuple[Neighbour, str, dict[str, object]]] = [
        (ours, "a1", {"share": "a"}),
        (theirs, "none1", {}),
        (ours, "a2", {"share": "a"}),
        (ours, "b1", {"share": "b", "weight": 2}),
        (theirs, "none2", {}),
    ]
    waiting = list[Neighbour]()
    for side, who, options in asked:
        await side.ask("n", who, **options)
        waiting.append(side)
        await both_see((ours, theirs), "n", [ours], *waiting)
    assert await ours.release("first")
    turns = [asyncio.create_task(_turn(side, who)) for side, who, _ in asked]
    fences += sorted([await turn for turn in turns])
    assert fences == sorted(set(fences))
    await both_see((ours, theirs), "n", [])


async def _turn(side: Neighbour, who: str) -> int:
    fence = await side.holds(who)
    assert await side.release(who)
    return fence


def test_other_version_is_the_last_release_before_this_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not that of this very commit, and no tag that is none of a version."""
    monkeypatch.setattr(versions, "ROOT", tmp_path)
    me = ("-c", "user.name=me", "-c", "user.email=me@example.org")
    versions._git("init", "--quiet")
    for tag in ("v1.0", "v1.1", "nightly", "v2.0"):
        versions._git(*me, "commit", "--quiet", "--allow-empty", "--no-gpg-sign", "-m", tag)
        versions._git("tag", tag)
    expected = versions._git("rev-parse", "v1.1").decode().strip()
    assert versions._chosen() == ("v1.1", expected)


def test_other_version_that_is_unavailable_raises_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where there is no history, or the commit is not in it: the reason for which tests skip."""
    monkeypatch.setattr(versions, "_git", lambda *_: versions._run("false", "--verify"))
    with pytest.raises(versions.Unavailable, match="false --verify"):
        versions.other()
    monkeypatch.setattr(versions, "ROOT", CHILD.parent)
    with pytest.raises(versions.Unavailable, match="no checkout"):
        versions.other()
