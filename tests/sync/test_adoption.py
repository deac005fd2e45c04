"""Threads hand leases on, to threads and to tasks."""

from __future__ import annotations

import pytest

import aiolock.sync
from aiolock import LeaseLost, TokenSpent
from aiolock.stores.memory import MemoryServer
from tests.support.servers import RedisServer


def test_thread_detaches_and_another_client_adopts_in_a_with(
    redis_server: RedisServer, prefix: str
) -> None:
    """As for tasks: ended when sent, a higher fence, once."""
    with (
        aiolock.sync.connect(redis_server.url, prefix=prefix) as web,
        aiolock.sync.connect(redis_server.url, prefix=prefix) as worker,
    ):
        with web.lock("order") as lease:
            token = lease.detach(ttl=50, label="for the worker")
            assert lease.state == "detached"
            with pytest.raises(LeaseLost, match="was detached"):
                lease.check()
        adoption = worker.adopt(token)
        with adoption as adopted:
            assert adopted.fence > lease.fence
            assert web.lock("order").try_acquire() is None
        with pytest.raises(TokenSpent), adoption:
            pass
        assert not web.discard(token)
        lease = web.lock("order").acquire()
        adopted = worker.adopt(lease.detach()).acquire()
        with adopted:
            adopted.check()
        assert web.lock("order").try_acquire() is not None


def test_thread_whose_handing_on_fails_leaves_the_lock_free() -> None:
    """The message could not be sent."""
    with aiolock.sync.connect(MemoryServer()) as client:
        lock = client.lock("order", timeout=5)
        with pytest.raises(KeyError), lock as lease, lease.handing_on(ttl=3600) as token:
            raise KeyError
        with lock:
            pass
        with pytest.raises(TokenSpent):
            client.adopt(token).acquire()


def test_thread_finishes_adopted_work_that_is_done_once() -> None:
    """A body without an error ends it, one with an error does not."""
    with aiolock.sync.connect(MemoryServer()) as client:
        work = client.once("user", remember=60)
        with work as lease:
            assert lease is not None
            token = lease.detach()
        with pytest.raises(KeyError), client.adopt(token):
            raise KeyError
        with work as lease:
            assert lease is not None
            token = lease.detach()
        with client.adopt(token):
            pass
        with work as lease:
            assert lease is None


def test_thread_adopts_with_wrong_arguments_before_anything_is_sent() -> None:
    """At the call."""
    with aiolock.sync.connect(MemoryServer()) as client:
        with pytest.raises(ValueError, match="no token"):
            client.adopt("x")
        with pytest.raises(ValueError, match="no token"):
            client.discard("x")
        token = client.lock("a").acquire().detach()
        with pytest.raises(ValueError, match="ttl"):
            client.adopt(token, ttl=-1)
        assert client.discard(token)
