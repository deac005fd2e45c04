"""The replication barrier by itself, with replies that the test makes up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from aiolock.stores.redis import _barrier
from aiolock.stores.redis._barrier import Barrier, Outcome, Replicas
from aiolock.stores.redis._errors import Refusal
from tests.support.failures import until

LONG = 60.0
"""Seconds that no test takes."""


class FakeWire:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes, *, at_once: bool) -> None:  # a Wire's
        self.written.append(data)


class FakeLink:
    """A link that is up until it is dropped, and again when the test says so."""

    made: FakeLink

    def __init__(
        self,
        pool: object,
        *,
        on_reply: Callable[[Any], None],
        on_up: Callable[[], None],
        on_down: Callable[[Exception], None],
    ) -> None:
        self.on_reply, self._on_up, self._on_down = on_reply, on_up, on_down
        self.wire: FakeWire | None = FakeWire()
        self.proofs = 0
        FakeLink.made = self

    def drop(self, reason: Exception) -> None:
        if self.wire is not None:
            self.wire = None
            self._on_down(reason)

    def dialled(self) -> None:
        self.wire = FakeWire()
        self._on_up()

    def proved(self) -> None:
        self.proofs += 1

    async def aclose(self) -> None:
        self.wire = None


class Stand:
    """A barrier, its link, and what came of those that wait."""

    def __init__(self, replicas: Replicas = 1) -> None:
        self.barrier = Barrier(cast(Any, None), "key", replicas)
        self.link = FakeLink.made
        self.outcomes: dict[str, Outcome] = {}

    def wait(self, who: str, history: str = "a", within: float = LONG) -> _barrier.Waiting:
        """Have somebody wait."""
        return self.barrier.wait(history, within, lambda said: self.outcomes.update({who: said}))

    @property
    def begun(self) -> int:
        """How many barriers were begun on this connection."""
        assert self.link.wire is not None
        return sum(b"WAIT" in each for each in self.link.wire.written)

    @property
    def asked(self) -> bytes:
        """How many replicas the last one asks for."""
        assert self.link.wire is not None
        return self.link.wire.written[-1].split(b"WAIT\r\n")[1].split(b"\r\n")[1]

    @property
    def patience(self) -> float:
        """For how many seconds the last one lets the server wait."""
        assert self.link.wire is not None
        return int(self.link.wire.written[-1].split(b"\r\n")[-2]) / 1000

    def says(self, confirmed: int, history: str = "a", following: int = 1) -> None:
        """Answer the one under way."""
        self.link.on_reply([history.encode(), following])
        self.link.on_reply(confirmed)


@pytest.fixture(autouse=True)
def _link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_barrier, "Link", FakeLink)


async def test_barrier_waiters_that_come_during_one_round_share_the_next() -> None:
    """One barrier is under way, which covers nobody who has come since it began."""
    stand = Stand()
    stand.wait("first")
    stand.wait("second")
    stand.wait("third")
    assert stand.begun == 1
    stand.says(1)
    assert stand.outcomes == {"first": Outcome.CONFIRMED}
    assert stand.begun == 2
    stand.says(1)
    assert stand.outcomes == dict.fromkeys(("first", "second", "third"), Outcome.CONFIRMED)
    assert stand.begun == 2
    assert stand.link.proofs


async def test_barrier_answered_by_another_master_is_elsewhere() -> None:
    """What another master has answered is not covered, nor what nobody knows the master of."""
    stand = Stand()
    stand.wait("old", "b")
    stand.says(1)
    stand.wait("unknown", "")
    stand.says(1)
    assert stand.outcomes == dict.fromkeys(("old", "unknown"), Outcome.ELSEWHERE)
    assert not stand.link.proofs  # who is at the wrong server dials less and less often


async def test_barrier_with_too_few_replicas_is_missed_only_at_its_deadline() -> None:
    """Those who have time left wait for the next; the others have missed it."""
    stand = Stand(2)
    assert stand.barrier.wanted == 2
    stand.wait("late", within=0.0)
    stand.says(1, following=2)
    stand.wait("patient")
    assert stand.outcomes == {"late": Outcome.MISSED}
    stand.says(1, following=2)
    assert stand.outcomes == {"late": Outcome.MISSED}
    assert stand.begun == 3
    stand.says(2, following=2)
    assert stand.outcomes["patient"] is Outcome.CONFIRMED


async def test_barrier_without_an_answer_in_time_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gets no answer has missed it, also where there is no connection."""
    monkeypatch.setattr(_barrier, "_GRACE", 0.0)
    stand = Stand()
    stand.wait("one", within=0.01)
    await until(lambda: "one" in stand.outcomes)
    stand.link.drop(OSError("broken"))
    stand.wait("two", within=0.01)
    await until(lambda: "two" in stand.outcomes)
    assert stand.outcomes == dict.fromkeys(("one", "two"), Outcome.MISSED)
    assert str(stand.barrier.error) == "broken"


async def test_barrier_on_a_connection_that_breaks_begins_again_on_the_next() -> None:
    """A connection that breaks confirms nobody; those who wait get the barrier of the next."""
    stand = Stand()
    stand.wait("first")
    stand.link.on_reply([b"a", 1])
    stand.wait("second")
    stand.link.drop(OSError("broken"))
    assert not stand.outcomes
    stand.link.dialled()
    assert stand.begun == 1
    stand.says(1)
    assert stand.outcomes == dict.fromkeys(("first", "second"), Outcome.CONFIRMED)
    assert stand.barrier.error is None


@pytest.mark.parametrize("reply", [Refusal("READONLY it is a replica"), [b"a"], "?", 1])
async def test_barrier_reply_that_is_no_answer_drops_the_connection(reply: object) -> None:
    """A server that cannot serve us, or is none, is left."""
    stand = Stand()
    stand.wait("first")
    stand.link.on_reply(reply)
    assert stand.link.wire is None
    stand.link.dialled()
    stand.says(1)
    assert stand.outcomes == {"first": Outcome.CONFIRMED}


async def test_barrier_reply_without_a_question_drops_the_connection() -> None:
    """A reply that nobody asked for ends the connection."""
    stand = Stand()
    stand.link.on_reply(1)
    assert stand.link.wire is None


async def test_barrier_on_a_silent_connection_drops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection on which nothing comes is left."""
    monkeypatch.setattr(_barrier, "_ANSWER", 0.0)
    stand = Stand()
    stand.wait("first", within=0.01)
    await until(lambda: stand.link.wire is None)


async def test_barrier_for_all_replicas_asks_for_as_many_as_follow() -> None:
    """All are as many as follow when the barrier begins: more than before, or fewer; but one."""
    stand = Stand("all")
    stand.wait("one")
    assert stand.asked == b"1"
    stand.says(1, following=3)  # more than were waited for
    assert not stand.outcomes
    assert stand.asked == b"3"
    stand.says(3, following=3)
    assert stand.outcomes == {"one": Outcome.CONFIRMED}
    stand.wait("two")
    stand.link.on_reply([b"a", 2])  # one has left, and the server would wait for it
    assert stand.link.wire is None
    stand.link.dialled()
    assert stand.asked == b"2"
    stand.says(2, following=2)
    assert stand.outcomes["two"] is Outcome.CONFIRMED
    stand.wait("nobody", within=0.0)
    stand.link.on_reply([b"a", 0])
    stand.link.dialled()
    assert stand.asked == b"1"
    stand.says(0, following=0)
    assert stand.outcomes["nobody"] is Outcome.MISSED


async def test_barrier_waiters_cancelled_get_no_outcome_and_begin_no_round() -> None:
    """Nobody is told who does not wait any more, and no barrier begins for nobody."""
    stand = Stand()
    first, second = stand.wait("first"), stand.wait("second")
    first.cancel()
    second.cancel()
    first.cancel()
    stand.says(1)
    assert not stand.outcomes
    assert stand.begun == 1


async def test_barrier_keeps_nothing_of_cancelled_waiters() -> None:
    """Neither while one is under way, nor while there is no connection on which to begin one."""
    stand = Stand()
    stand.wait("first")
    stand.wait("second").cancel()
    assert not stand.barrier._arrived
    stand.link.drop(OSError("broken"))
    assert len(stand.barrier._arrived) == 1
    for number in range(10_000):  # each in no time, however many there were before it
        stand.wait(str(number)).cancel()
    assert len(stand.barrier._arrived) == 1
    stand.link.dialled()
    stand.says(1)
    assert stand.outcomes == {"first": Outcome.CONFIRMED}


async def test_barrier_lasts_as_long_as_its_most_patient_waiter() -> None:
    """One barrier lasts as long as any that it covers: what replicas are to have stays the same."""
    stand = Stand()
    stand.wait("first")
    stand.wait("hasty", within=0.01)
    stand.wait("patient")
    stand.says(1)
    assert stand.patience > LONG / 2
    await until(lambda: stand.outcomes.get("hasty") is Outcome.MISSED)
    assert stand.begun == 2
    stand.says(1)
    assert stand.outcomes["patient"] is Outcome.CONFIRMED


async def test_barrier_beat_begins_a_round_only_when_idle_and_silent() -> None:
    """A connection that was silent for a while is tried, unless a barrier is under way."""
    stand = Stand()
    stand.barrier.beat(LONG)
    stand.barrier.beat(0.0)
    stand.barrier.beat(0.0)
    assert stand.begun == 1
    stand.says(1)
    stand.link.drop(OSError("broken"))
    stand.barrier.beat(0.0)


async def test_barrier_closed_reports_missed_and_expires_its_key() -> None:
    """Whoever waits when it is closed, or after that, has missed it; the key is removed."""
    stand = Stand()
    wire = stand.link.wire
    assert wire is not None
    stand.wait("first")
    stand.says(1)
    await stand.barrier.aclose()
    assert b"PEXPIRE" in wire.written[-1]
    stand.wait("late")
    await asyncio.sleep(0)
    assert stand.outcomes == {"first": Outcome.CONFIRMED, "late": Outcome.MISSED}
    stand = Stand()
    stand.wait("first")
    stand.wait("second")
    await stand.barrier.aclose()
    await stand.barrier.aclose()
    assert stand.outcomes == dict.fromkeys(("first", "second"), Outcome.MISSED)
