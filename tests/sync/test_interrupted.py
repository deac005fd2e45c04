"""Ctrl-C at every place of `aiolock.sync` at which Python looks for it: nothing is left behind."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest

import aiolock
import aiolock.sync
from aiolock.stores.memory import MemoryServer
from aiolock.sync import _portal
from tests.sync.test_sync import PATIENCE

PACKAGE = str(Path(aiolock.sync.__file__).parent)
GIVES_BACK = {
    *("Visit.close", "LockClient.__exit__", "LockClient.close"),
    *("Lease._enter", "Lease.release", "MultiLease.release"),
}
PROPERTIES = {"is_this_thread", "name", "running", "value"}
"""Python looks for Ctrl-C where a call begins and where it has ended, and in these at the begin."""


class Interrupt(KeyboardInterrupt):
    """As by Ctrl-C."""


class Interrupter:
    """Raises at the n-th place at which Ctrl-C may come: as a function begins, or has returned."""

    def __init__(self, place: int) -> None:
        self.left = place
        self.where = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if frame.f_code.co_filename.startswith(PACKAGE) and not self._is_no_place(frame, event):
            self.left -= 1
            if self.left < 0 and not self.where:
                self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno} {event}"
                raise Interrupt

    def _is_no_place(self, frame: FrameType, event: str) -> bool:
        name = frame.f_code.co_name
        above = frame.f_back
        from_outside = above is None or not above.f_code.co_filename.startswith(PACKAGE)
        if event == "call":
            # Before the first line of what gives back, nobody does: Python has no answer to that.
            return frame.f_code.co_qualname in GIVES_BACK
        if event == "return":
            # `with` does not look where these return. What was returned to its caller is his.
            own = name in ("__enter__", "__exit__", "_enter", "__del__", *PROPERTIES)
            return own or from_outside or name == "_take"
        return event != "c_return"


@pytest.fixture
def server() -> MemoryServer:
    """Where the locks are."""
    return MemoryServer()


@pytest.fixture
def client(server: MemoryServer) -> Iterator[aiolock.sync.LockClient]:
    """A client that is open."""
    with aiolock.sync.connect(server) as client:
        yield client
    assert [thread for thread in threading.enumerate() if thread.name == "aiolock"] == []


def entered(client: aiolock.sync.LockClient, _: int) -> None:
    """A body."""
    with client.lock("a"):
        pass


def acquired(client: aiolock.sync.LockClient, _: int) -> None:
    """A lease, given back by hand."""
    lease = client.lock("a").acquire()
    lease.release()


def acquired_and_entered(client: aiolock.sync.LockClient, _: int) -> None:
    """A lease that is given back by `with`."""
    lease = client.lock("a").acquire()
    with lease:
        pass


def led(client: aiolock.sync.LockClient, _: int) -> None:
    """A term."""
    with client.election("a").campaign("we"):
        pass


def done(client: aiolock.sync.LockClient, number: int) -> None:
    """What is done once."""
    client.once(f"o{number}", remember=60).outcome(lambda _: "done")


def several(client: aiolock.sync.LockClient, _: int) -> None:
    """Several locks."""
    leases = client.multilock("a", "b").acquire()
    leases.release()


def opened(client: aiolock.sync.LockClient, _: int) -> None:
    """Another client."""
    with aiolock.sync.connect("memory://"):
        pass


@pytest.mark.parametrize(
    "what",
    [entered, acquired, acquired_and_entered, led, done, several, opened],
    ids=lambda what: what.__name__,
)
def test_interrupt_at_any_place_leaves_nothing_held_or_queued(
    client: aiolock.sync.LockClient,
    server: MemoryServer,
    what: Callable[[aiolock.sync.LockClient, int], None],
) -> None:
    """What was held is given back, who was in the queue has left, and nobody keeps the loop."""
    what(client, -1)
    users = client.portal().read(lambda: len(_portal.process()._users))
    for place in itertools.count():
        interrupter = Interrupter(place)
        sys.setprofile(interrupter)
        try:
            what(client, place)
        except Interrupt:
            pass
        finally:
            sys.setprofile(None)
        if not interrupter.where:
            break
        end = time.monotonic() + PATIENCE
        while client.names() or len(_portal.process()._users) != users:
            assert time.monotonic() < end, f"left behind: {client.names()}, {interrupter.where}"
            time.sleep(0.001)
    assert place > 30, "it is not interrupted at all"
