"""What `aiolock ls`, `show` and `top` write of a status: nothing that a terminal would obey."""

from __future__ import annotations

import re
from argparse import Namespace
from dataclasses import asdict, replace
from io import StringIO
from typing import Any, cast

import pytest
from rich.console import Console

import aiolock
from aiolock import Deadlock
from aiolock.cli.parties import described
from aiolock.cli.rows import COLUMNS, cells, listed
from aiolock.cli.top import _Look, _screen
from aiolock.observer import Blocked, who
from aiolock.protocol import Participant, Status

EVIL = "\x1b]0;evil\x07\x9b2J\u202e\nnew line"
"""Sets the title of a terminal, clears it, and turns around what comes behind."""

HOLDER = Participant(
    client="ab" * 12, host="web-3", pid=7, since=90.0, place=0, fence=1, remaining=20.0
)
FIRST = replace(HOLDER, since=98.0, place=1, fence=0, remaining=0.0)
TITLES = [column.title for column in COLUMNS]
STATUS = Status("order:42", (HOLDER,), (FIRST,), kind="lock", now=100.0)


@pytest.mark.parametrize("where", ["label", "host", "share"])
def test_cells_and_texts_of_a_status_escape_control_characters(where: str) -> None:
    """Whatever a client of the same store calls itself, or its machine: it is written out."""
    evil = replace(HOLDER, **{where: EVIL})  # type: ignore[arg-type]  # both are texts
    status = replace(STATUS, holders=(evil,))
    shown = [
        *cells(status),
        *described(status, None),
        *str(status).splitlines(),
        *str(Deadlock((Blocked("lock", "a", FIRST, evil),))).splitlines(),
    ]
    assert [line for line in shown if not line.isprintable()] == []
    assert len(str(status).splitlines()) == (4 if where == "share" else 3)
    assert sum("evil" in line for line in shown) >= 2


def test_cells_longest_is_the_longest_wait_of_all_waiters() -> None:
    """Of all who wait: whoever is next may have come last, with a higher priority."""
    later = replace(FIRST, since=40.0, place=2)
    row = dict(zip(TITLES, cells(replace(STATUS, waiters=(FIRST, later))), strict=True))
    assert (row["WAITING"], row["LONGEST"], row["FOR"]) == ("2", "60.0 s", "10.0 s")


def test_cells_of_a_detached_lease_are_its_label_and_what_is_left_without_its_key() -> None:
    """It runs nowhere, and its client is a secret."""
    detached = replace(HOLDER, client="=secret", label="order 42 → worker", remaining=41.0)
    row = dict(zip(TITLES, cells(replace(STATUS, holders=(detached,))), strict=True))
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


LONG = replace(
    STATUS,
    name="tenant/0193a8c2-77f1-7d11/nightly report/2026-11-29/europe-west",
    kind="semaphore",
    holders=(replace(HOLDER, label="billing: job 17"), HOLDER),
)


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (40, ["NAME", "FOR", "WAITING"]),
        (60, ["NAME", "HELD BY", "FOR", "WAITING"]),
        (80, ["KIND", "NAME", "HELD BY", "FOR", "WAITING", "LONGEST"]),
        (120, TITLES),
        (200, TITLES),
        (None, TITLES),
    ],
)
def test_rows_on_a_terminal_keep_the_name_and_leave_out_what_matters_less(
    width: int | None, titles: list[str]
) -> None:
    """No line is wider than the terminal, and at least 20 columns are for the name."""
    head, *lines = listed([LONG, STATUS], width)
    assert head.replace("HELD BY", "HELD_BY").split() == [
        title.replace(" ", "_") for title in titles
    ]
    assert max(map(len, (head, *lines))) <= (width or 1000)
    assert (LONG.name in lines[0]) == (width in (200, None))
    at = head.index("NAME")
    name = lines[0][at:].split("  ")[0]
    assert name.startswith("tenant/")
    assert name.endswith("-west")
    assert len(name) >= 20


def test_row_without_room_for_where_names_the_process_of_a_holder_without_a_label() -> None:
    """Then HELD BY is the only column that says who has it, and that it is gone."""
    gone = replace(STATUS, holders=(replace(HOLDER, alive=False), HOLDER))
    _, line, named, free = listed([gone, LONG, replace(STATUS, holders=())], 80)
    assert " order:42 " in line
    assert " web-3:7 ! +1 " in line
    assert " 17 +1 " in named
    assert free.split()[2:4] == ["-", "-"]


@pytest.mark.parametrize("width", [60, 80, 200, None])
def test_lines_about_a_lock_have_the_units_of_its_row_and_fit_the_terminal(
    width: int | None,
) -> None:
    """Each has its place, for how long, its lease and its fence; `--wide` adds time and client."""
    holder = replace(HOLDER, label="billing: job 17", fence=1795305617036786, permits=2)
    waiter = replace(FIRST, share="acme", weight=3, alive=False)
    closed = replace(STATUS, holders=(holder,), waiters=(waiter,), limit=2, closed=120.0)
    head, share, titles, *lines = described(closed, width)
    assert head == "lock order:42: 1 holder, 1 waiting, limit 2, closed for 2.0 min"
    assert share == "share acme: 0 held, 1 waiting"
    assert max(map(len, (titles, *lines))) <= (width or 1000)
    assert [line.split()[0] for line in lines] == ["holder", "1"]
    assert "10.0 s" in lines[0]
    assert "1795305617036786" in lines[0]
    assert " ! " in lines[1]
    assert ("20.0 s" in lines[0]) == (width != 60)
    if width in (200, None):
        assert titles.split() == ["PLACE", "WHO", "WHERE", "FOR", "LEASE", "FENCE", "AS"]
        assert lines[0].endswith("  2 permits")
        assert lines[1].endswith("  share acme × 3")
    wide = [line.split()[-2:] for line in described(closed, None, wide=True)][2:]
    assert wide[0] == ["SINCE", "CLIENT"]
    assert wide[1] == ["1970-01-01T00:01:30.000+00:00", f"{HOLDER.client}#0"]


def test_row_of_a_node_that_nobody_has_itself_says_how_many_are_below() -> None:
    """Whoever reads a document has not got its tenant; with a holder of the node, that is named."""
    reader = replace(HOLDER, shared=True, below="reader")
    node = replace(STATUS, kind="path", name="acme", holders=(reader, replace(reader)))
    for width in (100, 200):
        _, line = listed([node], width)
        assert "2 readers below" in line
    _, line = listed([replace(node, holders=(replace(HOLDER, label="batch"),))], 200)
    assert "batch" in line
    assert "below" not in line


@pytest.mark.parametrize(
    ("kind", "party", "role"),
    [
        ("semaphore", {"shared": True, "permits": 2}, "2 permits"),
        ("rate_limit", {"shared": True, "permits": 1, "share": "a"}, "1 token, share a"),
        ("path", {"shared": True, "below": "writer"}, "writer below"),
        ("path", {"shared": True}, "shared"),
        ("lock", {"shared": True, "share": "a", "weight": 2.0}, "shared, share a × 2"),
        ("group", {"shared": True}, ""),
        ("latch", {"shared": True}, ""),
        ("lock", {}, ""),
    ],
)
def test_role_of_a_participant_is_in_the_terms_of_its_kind(
    kind: str, party: dict[str, Any], role: str
) -> None:
    """The same for a status as text, `show`, and the page."""
    waiter = replace(FIRST, **party)
    status = replace(STATUS, kind=kind, holders=(), waiters=(waiter,))
    assert status.role_of(waiter) == role
    assert role in str(status)
    assert role in "\n".join(described(status, 200))


def test_status_of_a_rate_limit_has_its_burst_and_no_share_holds_anything() -> None:
    """Tokens are spent, not held."""
    waiter = replace(FIRST, permits=1, shared=True, share="acme")
    status = replace(
        STATUS, kind="rate_limit", holders=(), waiters=(waiter,), limit=20, interval=0.000_25
    )
    for lines in (str(status).splitlines(), list(described(status, 200))):
        assert "burst 20, a token every 0.00025 s" in lines[0]
        assert lines[1].strip() == "share acme: 1 waiting"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_screen_of_top_keeps_the_name_and_fits_the_terminal(width: int) -> None:
    """Each lock on a line of its own, with the mark of a deadlock behind it."""
    look = _Look()
    look.statuses = [LONG, STATUS]
    look.deadlocks = [Deadlock((Blocked("lock", "order:42", FIRST, HOLDER),))]
    console = Console(width=width, height=12, file=StringIO(), color_system=None)
    console.print(_screen(look, Namespace(pattern="*"), console))
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= 12
    (row,) = (line for line in lines if "tenant/" in line)
    assert re.search(r"tenant/\S.*west", row)
    (row,) = (line for line in lines if line.endswith("  DEADLOCK"))
    assert "order:42" in row


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
