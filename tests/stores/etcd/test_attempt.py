"""Parts of a client of etcd's, each by itself: what a swap relies on, and what ends when."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

from aiolock.protocol import Form, WaiterId
from aiolock.stores._sessions import Session
from aiolock.stores.etcd._attempt import Attempt, Condition
from aiolock.stores.etcd._failures import CallError
from aiolock.stores.etcd._holds import Grant, Hold, Holds
from aiolock.stores.etcd._keep_alive import KeepAlive, _Line
from aiolock.stores.etcd._keys import Keys
from aiolock.stores.etcd._messages import exists, has_lease, has_other_lease, is_absent
from aiolock.stores.etcd._registry import Registry
from tests.support.worlds import virtual

KEYS = Keys("", "p")
MANY = 90


def conditions(*, most: int = MANY, **relied: Any) -> list[Condition]:
    """The conditions of a swap that relies on this; letters go to `mail`."""
    attempt = object.__new__(Attempt)
    attempt.mail = relied.pop("mail", {})
    document = {"judged_clients": {}, "judged_sessions": {}, "begun": set[Session](), **relied}
    attempt.document = SimpleNamespace(**document)  # type: ignore[assignment]  # what is asked for
    return list(attempt.conditions(KEYS, Registry(KEYS, lambda: None), most=most))


def test_swap_relies_on_clients_that_were_taken_for_dead_and_for_alive() -> None:
    """One that lives again, or has died, is another case."""
    dead, alive = KEYS.presence("dead"), KEYS.presence("alive")
    assert conditions(judged_clients={"dead": False, "alive": True}) == [
        Condition(dead, is_absent(dead)),
        Condition(alive, exists(alive)),
    ]


def test_swap_relies_on_sessions_that_were_taken_for_ended_and_for_alive() -> None:
    """Of holds by a key of each, of a claim by the lease of its client's presence."""
    judged = {
        Session("ann", "30.1"): False,
        Session("ann", "30.2"): True,
        Session("bob", "ff"): False,
        Session("bob", "fe"): True,
    }
    ended, lives, bob = KEYS.hold("ann", "30.1"), KEYS.hold("ann", "30.2"), KEYS.presence("bob")
    assert conditions(judged_sessions=judged) == [
        Condition(ended, is_absent(ended)),
        Condition(bob, has_other_lease(bob, 0xFF)),
        Condition(lives, exists(lives)),
        Condition(bob, has_lease(bob, 0xFE)),
    ]


def test_swap_relies_on_the_sessions_with_which_holds_begin() -> None:
    """If one has ended, its client does not rely on the hold, and the next one would get it."""
    begun = {Session("ann", "30.2")}
    key = KEYS.hold("ann", "30.2")
    assert conditions(begun=begun) == [Condition(key, exists(key))]


def test_swap_relies_on_those_to_whom_it_writes() -> None:
    """A letter is on the lease of a presence: another one is another incarnation."""
    key = KEYS.presence("bob")
    assert conditions(mail={"bob": ["push"]}) == [Condition(key, has_lease(key, 0))]


def test_swap_with_too_many_conditions_leaves_out_only_who_is_alive() -> None:
    """Without these an answer may be outdated, and no lock is granted twice."""
    judged = {**dict.fromkeys("abcdefgh", False), **dict.fromkeys("stuvwxyz", True)}
    begun = {Session("ann", "30.2")}
    found = conditions(most=5, judged_clients=judged, begun=begun)
    assert [each.key for each in found] == [
        KEYS.hold("ann", "30.2"),
        *map(KEYS.presence, "abcdefgh"),
    ]
    assert len(conditions(most=12, judged_clients=judged, begun=begun)) == 12


@virtual
async def test_holds_that_are_overdue_together_are_ended_in_parts() -> None:
    """Each once, unless it has ended meanwhile, and not all in one iteration of the event loop."""
    ended = list[Hold]()
    holds, form = Holds(ended.append), Form(claim=1000)
    for number in range(1000):
        holds.begin(Grant(f"lock:{number}", WaiterId("me", number), 7), form, None, 50)
    await asyncio.sleep(0.05)
    most = before = len(ended)
    while len(ended) < 999:
        holds.forget("lock:999", WaiterId("me", 999))
        await asyncio.sleep(0)
        most, before = max(most, len(ended) - before), len(ended)
    assert most <= 64
    assert len({hold.grant for hold in ended}) == 999
    holds.stop()


async def test_stream_of_leases_that_opens_when_nobody_waits_is_left() -> None:
    """Whoever asked has given up: that is no error, and the next one opens another."""
    left = asyncio.Event()

    class Connected:
        address = "etcd:2379"

        @contextlib.asynccontextmanager
        async def stream(self, *_: object) -> AsyncIterator[object]:
            try:
                yield self
            finally:
                left.set()

    class Servers:
        async def metadata(self, _: object) -> tuple[()]:
            return ()

    servers, connection = cast("Any", Servers()), cast("Any", Connected())
    alive, line = KeepAlive(servers, asyncio.ensure_future), _Line(connection)
    line.fail(CallError.not_sent("etcd:2379", "no answer in time"))
    await alive._read(line)
    assert left.is_set()
