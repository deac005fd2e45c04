"""`copy` and `pickle`: what stands for one thing is not copied, a description is its own copy."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

import aiolock
import aiolock.sync
from aiolock._target import store_at
from aiolock.stores.memory import MemoryServer
from aiolock.testing import FaultyStore
from tests.support.worlds import virtual

pytestmark = pytest.mark.one_loop

WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "in a list": lambda thing: copy.deepcopy([thing]),
    "first protocol": lambda thing: pickle.dumps(thing, 0),
}
ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)

HELD: dict[str, Callable[[Any], Any]] = {
    "lock": lambda client: client.lock("a"),
    "reader": lambda client: client.rwlock("a").read(),
    "semaphore": lambda client: client.semaphore("a", 2),
    "multilock": lambda client: client.multilock("a", "b"),
    "path_lock": lambda client: client.path_lock("a/b"),
    "once": lambda client: client.once("a", remember=60),
    "election": lambda client: client.election("a").campaign("we"),
    "periodic": lambda client: client.periodic("a", every=60),
}
DESCRIPTIONS: dict[str, Callable[[Any], Any]] = HELD | {
    "rwlock": lambda client: client.rwlock("a"),
    "election": lambda client: client.election("a"),
    "event": lambda client: client.event("a"),
    "latch": lambda client: client.latch("a", 2),
    "barrier": lambda client: client.barrier("a", 2),
}


@ways
@pytest.mark.parametrize("make", HELD.values(), ids=HELD)
@virtual
async def test_lease_copied_or_pickled_raises_type_error_and_stays_held(
    make: Callable[[Any], Any], way: Callable[[Any], Any]
) -> None:
    """It is not copied, so no copy ends it; the error says what to do instead."""
    async with aiolock.connect(MemoryServer()) as client:
        async with make(client) as lease:
            with pytest.raises(TypeError, match="cannot be copied or pickled: it is one hold"):
                way(lease)
            gc.collect(1)  # a copy is young
            assert lease.state == "held"
        if hasattr(make(client), "acquire"):
            lease = await make(client).acquire()
            with pytest.raises(TypeError, match=r"a (Multi|Path)?Lease cannot be copied"):
                way(lease)
            gc.collect(1)  # a copy is young
            assert lease.state == "held"
            assert await lease.release()


@ways
@virtual
async def test_client_and_acquire_context_copied_or_pickled_raise_type_error(
    way: Callable[[Any], Any],
) -> None:
    """Neither are a client and an acquisition; a copy of an exit stack has the same exits."""
    async with aiolock.connect(MemoryServer()) as client:
        with pytest.raises(TypeError, match=r"a LockClient .*: it has connections; share it"):
            way(client)
        acquisition = client.lock("a").acquire()
        with pytest.raises(
            TypeError, match=r"an? AcquireContext .*: it is one attempt; call acquire"
        ):
            way(acquisition)
        async with acquisition as lease:
            assert lease.state == "held"
        async with AsyncExitStack() as stack:
            lease = await stack.enter_async_context(client.lock("a"))
            copied = copy.copy(stack), copy.deepcopy(client.lock("a").__aexit__)
            del copied
            gc.collect(1)  # a copy is young
            assert lease.state == "held"
        assert lease.state == "released"


@pytest.mark.parametrize("make", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
@virtual
async def test_description_copied_is_itself_and_pickled_raises_type_error(
    make: Callable[[Any], Any],
) -> None:
    """It is its own copy, of the same client; it is not pickled, because that has no client."""
    async with aiolock.connect(MemoryServer()) as client:
        described = make(client)
        if not hasattr(described, "gen"):  # the body of a campaign is none
            assert copy.copy(described) is described
            assert copy.deepcopy({"a": [described]})["a"][0] is described
            with pytest.raises(TypeError, match="make one of the same name at a client there"):
                pickle.dumps(described)


@ways
def test_sync_objects_copied_or_pickled_behave_as_those_for_tasks(
    way: Callable[[Any], Any],
) -> None:
    """The same for threads."""
    with aiolock.sync.connect(MemoryServer()) as client:
        with pytest.raises(TypeError, match="it has connections; share it"):
            way(client)
        for make in HELD.values():
            with make(client) as lease:
                with pytest.raises(TypeError, match="it is one hold; pass"):
                    way(lease)
                assert lease.state == "held"
        with client.lock("b").acquire() as lease, pytest.raises(TypeError, match="a Flag cannot"):
            way(lease.lost)
        for make in DESCRIPTIONS.values():
            described = make(client)
            if not hasattr(described, "gen"):
                assert copy.copy(described) is described
                assert copy.deepcopy([described])[0] is described
                with pytest.raises(TypeError, match="a client there"):
                    pickle.dumps(described)


@ways
@pytest.mark.parametrize(
    "url",
    [
        *("memory://", "redis://localhost", "redis+cluster://localhost", "sqlite:////tmp/a"),
        *("postgresql://localhost/a", "mysql://localhost/a", "redis+sentinel://localhost/a"),
        "etcd://localhost/a",
    ],
)
def test_store_copied_or_pickled_raises_type_error(url: str, way: Callable[[Any], Any]) -> None:
    """A link to a store has connections: a copy would close them."""
    store = store_at(url, "aiolock")
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        way(store)


def test_quorum_and_faulty_store_copied_raise_type_error() -> None:
    """Neither a quorum is copied, nor a client with a store that fails on purpose."""
    urls = [f"redis://localhost:{port}" for port in (1, 2, 3)]
    quorum = aiolock.connect(urls)._engine.store
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(quorum)
    faulty = FaultyStore(store_at("memory://", "aiolock"))
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(faulty)
