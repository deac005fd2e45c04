"""What `aiolock ls`, `show` and `top` write of a status: nothing that a terminal would obey."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict, replace
from typing import cast

import pytest

import aiolock
from aiolock import Deadlock
from aiolock.cli.rows import COLUMNS, cells
from aiolock.cli.top import _Look
from aiolock.observer import Blocked, who
from aiolock.protocol import Participant, Status

EVIL = "\x1b]0;evil\x07\x9b2J\u202e\nnew line"
"""Sets the title of a terminal, clears it, and turns around what comes behind."""

HOLDER = Participant(
    client="ab" * 12, host="web-3", pid=7, since=90.0, place=0, fence=1, remaining=20.0
)
FIRST = replace(HOLDER, since=98.0, place=1, fence=0, remaining=0.0)
STATUS = Status("order:42", (HOLDER,), (FIRST,), kind="lock", now=100.0)


@pytest.mark.parametrize("where", ["label", "host", "share"])
def test_cells_and_texts_of_a_status_escape_control_characters(where: str) -> None:
    """Whatever a client of the same store calls itself, or its machine: it is written out."""
    evil = replace(HOLDER, **{where: EVIL})  # type: ignore[arg-type]  # both are texts
    status = replace(STATUS, holders=(evil,))
    shown = [
        *cells(status),
        *str(status).splitlines(),
        *str(Deadlock((Blocked("lock", "a", FIRST, evil),))).splitlines(),
    ]
    assert [line for line in shown if not line.isprintable()] == []
    assert len(str(status).splitlines()) == (4 if where == "share" else 3)
    assert sum("evil" in line for line in shown) >= 2


def test_cells_longest_is_the_longest_wait_of_all_waiters() -> None:
    """Of all who wait: whoever is next may have come last, with a higher priority."""
    later = replace(FIRST, since=40.0, place=2)
    row = dict(zip(COLUMNS, cells(replace(STATUS, waiters=(FIRST, later))), strict=True))
    assert (row["WAITING"], row["LONGEST"], row["FOR"]) == ("2", "60.0 s", "10.0 s")


def test_cells_of_a_detached_lease_are_its_label_and_what_is_left_without_its_key() -> None:
    """It runs nowhere, and its client is a secret."""
    detached = replace(HOLDER, client="=secret", label="order 42 → worker", remaining=41.0)
    row = dict(zip(COLUMNS, cells(replace(STATUS, holders=(detached,))), strict=True))
    assert (row["HELD BY"], row["WHERE"]) == ("order 42 → worker", "detached")
    assert (row["LEASE"], row["WAITING"]) == ("41.0 s", "1")
    assert cells(replace(STATUS, holders=(replace(detached, label=""),)))[2] == "-"
    shown = [*row.values(), str(detached), who(detached), str(asdict(detached))]
    assert not [text for text in shown if "secret" in text]
    assert who(detached) == "a detached lease ('order 42 → worker')"


def test_text_of_a_status_says_what_each_share_holds_and_how_many_wait() -> None:
    """First those with the most waiters; nothing is said where nobody has a share."""
    held = [replace(HOLDER, share="acme", permits=3), replace(HOLDER, share="late", permits=1)]
    waiting = [replace(FIRST, share=share) for share in ("globex", "acme", "globex", "")]
    status = replace(STATUS, holders=tuple(held), waiters=tuple(waiting))
    assert [line for line in str(status).splitlines() if line.startswith("  share")] == [
        "  share globex: 0 held, 2 waiting",
        "  share acme: 3 held, 1 waiting",
        "  share late: 1 held, 0 waiting",
    ]
    assert "share" not in str(STATUS)


async def test_top_drops_a_deadlock_that_is_over_and_asks_seldom_without_one() -> None:
    """While one is shown, `top` looks for it each time; and seldom where there is none."""

    class Client:
        found: tuple[Deadlock, ...] = (Deadlock((Blocked("lock", "order:42", FIRST, HOLDER),)),)
        asked = 0

        async def snapshot(self, _: str, kind: str | None) -> list[Status]:
            assert kind is None
            return [STATUS]

        async def deadlocks(self) -> tuple[Deadlock, ...]:
            self.asked += 1
            return self.found

    look, client = _Look(), Client()
    arguments = Namespace(pattern="*", kind=None, every=1.0, sort="name")

    async def again() -> None:
        await look.again(cast(aiolock.LockClient, client), arguments)

    for times in (1, 2):
        await again()
        assert (len(look.deadlocks), client.asked) == (1, times)
    client.found = ()
    for _ in range(3):
        await again()
        assert (len(look.deadlocks), client.asked) == (0, 3)
