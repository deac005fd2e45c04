"""What a store does not offer is refused where it is described, before anything is sent."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, Final

import pytest

import aiolock
import aiolock.sync
from aiolock.store import ALL_KINDS, Features
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore

ONLY: Final = frozenset({"lock"})


class LocksAlone(MemoryStore):
    """A store that offers locks of a minute, and nothing else."""

    def __init__(self, *, longest_ttl: float | None = 60.0, only: frozenset[str] = ONLY) -> None:
        super().__init__(MemoryServer())
        why = "nobody counts here; take another store for each"
        missing = {kind: f"{why} {kind}" for kind in ALL_KINDS - only}
        self.features = Features(missing=missing, longest_ttl=longest_ttl)

    def __repr__(self) -> str:
        return "<LocksAlone>"


GIVEN: Final[dict[str, Any]] = {
    **dict.fromkeys(("name", "path"), "a"),
    **dict.fromkeys(("limit", "count", "parties"), 2),
    **dict.fromkeys(("every", "remember", "per"), 60),
}
"""What a method of a client needs, by the name of the parameter."""


METHODS: Final = {"path": "path_lock"}
"""The methods of kinds that have another name."""


def describe(kind: str, client: Any) -> object:
    """A description of this kind, with what its method needs and nothing else."""
    method = getattr(client, METHODS.get(kind, kind))
    parameters = inspect.signature(method).parameters.values()
    return method(**{p.name: GIVEN[p.name] for p in parameters if p.default is p.empty})


DESCRIBE: Final[dict[str, Callable[[Any], object]]] = {
    kind: functools.partial(describe, kind) for kind in sorted(ALL_KINDS - ONLY)
}
"""Of every kind but locks."""


def test_all_kinds_are_what_methods_of_a_client_describe() -> None:
    """A kind that is missing there has no status, and no store can refuse it."""
    described = {
        name
        for name, method in vars(aiolock.LockClient).items()
        if inspect.isfunction(method)
        and not inspect.iscoroutinefunction(method)
        and inspect.isclass(
            getattr(aiolock, str(inspect.signature(method).return_annotation), None)
        )
    }
    others = {"adopt", "multilock", "_described", "_named", "_passing", "_plain_lock"}
    assert described - others == {METHODS.get(kind, kind) for kind in ALL_KINDS}


LASTING: dict[str, Callable[[Any, float], object]] = {
    "lock": lambda client, ttl: client.lock("a", ttl=ttl),
    "locked": lambda client, ttl: client.locked("a", ttl=ttl),
    "rwlock": lambda client, ttl: client.rwlock("a", ttl=ttl),
    "semaphore": lambda client, ttl: client.semaphore("a", 2, ttl=ttl),
    "multilock": lambda client, ttl: client.multilock("a", "b", ttl=ttl),
    "path_lock": lambda client, ttl: client.path_lock("a/b", ttl=ttl),
    "election": lambda client, ttl: client.election("a", ttl=ttl),
    "periodic": lambda client, ttl: client.periodic("a", every=60, ttl=ttl),
    "once": lambda client, ttl: client.once("a", remember=60, ttl=ttl),
    "group": lambda client, ttl: client.group("a", ttl=ttl),
    "shards": lambda client, ttl: client.shards("a", 2, ttl=ttl),
}
"""Whatever has a ttl of its own."""


@pytest.fixture
def store() -> LocksAlone:
    """One that offers little, and was never opened."""
    return LocksAlone()


@pytest.mark.parametrize("kind", DESCRIBE)
@pytest.mark.parametrize("connect", [aiolock.connect, aiolock.sync.connect])
def test_kind_not_offered_by_the_store_raises_unsupported(
    store: LocksAlone, kind: str, connect: Callable[[aiolock.Store], Any]
) -> None:
    """To describe one says which, of which store, why, and what there is instead."""
    client = connect(store)
    client.lock("a")
    says = f"there is no {kind} 'a' on <LocksAlone>: nobody counts here; take another store for"
    with pytest.raises(aiolock.Unsupported, match=f"^{says} each {kind}$") as raised:
        DESCRIBE[kind](client)
    assert (raised.value.kind, raised.value.name) == (kind, "a")
    assert isinstance(raised.value, NotImplementedError)
    assert isinstance(raised.value, aiolock.LockError)


@pytest.mark.parametrize("what", LASTING)
def test_ttl_longer_than_the_store_keeps_raises_value_error(what: str) -> None:
    """That is an error that names both, of whatever has a ttl."""
    client = aiolock.connect(LocksAlone(only=ALL_KINDS))
    LASTING[what](client, 60.0)
    with pytest.raises(ValueError, match=r"^ttl=60.5 s is more than the longest_ttl=60 s of <Lo"):
        LASTING[what](client, 60.5)


def test_connect_with_ttl_longer_than_the_store_keeps_raises_value_error(store: LocksAlone) -> None:
    """So is the ttl of a client's locks that do not say."""
    with pytest.raises(ValueError, match="ttl=61 s is more than the longest_ttl=60 s"):
        aiolock.connect(store, ttl=61)
    aiolock.connect(LocksAlone(longest_ttl=None), ttl=61)


def test_connect_without_a_ttl_takes_no_more_than_the_store_keeps() -> None:
    """A lock of a store whose leases are short works without a ttl, too."""
    assert aiolock.connect(LocksAlone(longest_ttl=10)).lock("a").ttl == 10
    assert aiolock.connect(LocksAlone(longest_ttl=60)).lock("a").ttl == 30
    assert aiolock.connect(LocksAlone(longest_ttl=None)).lock("a").ttl == 30


async def test_extend_beyond_longest_ttl_raises_and_keeps_the_lease(store: LocksAlone) -> None:
    """And so is what a lease is extended to, which stays as it was."""
    async with aiolock.connect(store) as client, client.lock("a", ttl=20) as lease:
        with pytest.raises(ValueError, match="ttl=61 s is more than the longest_ttl=60 s"):
            await lease.extend(61)
        assert lease.remaining() < 20
        await lease.extend(60)
        assert lease.remaining() > 20


def test_store_wrapper_has_the_limits_of_the_store_behind_it(store: LocksAlone) -> None:
    """A wrapper has the limits of the store behind it, and none where that has none."""
    client = aiolock.connect(FaultyStore(FaultyStore(store)))
    with pytest.raises(aiolock.Unsupported, match=re.escape("no semaphore 'a'")):
        client.semaphore("a", 2)
    with pytest.raises(ValueError, match="longest_ttl=60 s"):
        client.lock("a", ttl=61)
    unlimited = MemoryStore(MemoryServer())
    client = aiolock.connect(FaultyStore(unlimited), ttl=1_000_000)
    for describe in DESCRIBE.values():
        describe(client)
