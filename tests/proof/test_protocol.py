"""The protocol, searched exhaustively as a model: right with its safeguards, wrong without each.

And the model acted out, so that what is true of it is true of aiolock. ``docs/protocol-model.md``
tells more. Larger searches than these are made by hand: ``python -m tests.proof.protocol.search
--help``.
"""

from __future__ import annotations

import logging
from dataclasses import fields, replace
from functools import cache

import pytest

from tests.proof.protocol.acted import RUNS, Play
from tests.proof.protocol.model import Safeguards
from tests.proof.protocol.search import Search, Searched, main
from tests.proof.protocol.twins import compare
from tests.proof.protocol.world import EVERY_FAULT, Fault, Setting, World, Wrong
from tests.support import garbage, looks, virtual

PAIR, THREE, TWO_AND_ONE, THREE_AND_ONE = (1, 1), (1, 1, 1), (2, 1), (3, 1)


def setting(
    tasks: tuple[int, ...],
    *kinds: Fault,
    faults: int = 1,
    ttl: int = 2,
    late: int = 1,
    delays: int = 0,
    begun: bool = False,
    patience: int | None = None,
) -> Setting:
    """So many faults of these kinds."""
    within = Setting(tasks, ttl=ttl, faults=faults if kinds else 0, kinds=frozenset(kinds))
    return replace(within, late=late, delays=delays, begun=begun, patience=patience)


def tries(within: Setting) -> Setting:
    """The last client does not wait."""
    return replace(within, tries=True)


def fixed(within: Setting, first: int = 0) -> Setting:
    """Leases are not renewed; and this client begins."""
    return replace(within, renews=False, first=first)


def runs(within: Setting, *queue: int, ahead: int = 2, first: int = 0) -> Setting:
    """Clients hand the lock on; this one's first task has it, and behind it stand those of these.

    A task that has no place has not asked yet; without ``queue`` all have.
    """
    return replace(within, ahead=ahead, begun=True, first=first, queue=queue)


def shares(within: Setting) -> Setting:
    """Whoever waits may be the next, as shares would have it."""
    return replace(within, shares=True)


@cache
@garbage.not_looked_for()
def searched(
    within: Setting, *without: str, wrong: frozenset[Wrong] = frozenset(Wrong)
) -> Searched:
    """The protocol searched, less these safeguards, for these wrongs."""
    guards = replace(Safeguards(), **dict.fromkeys(without, False))
    stuck = Wrong.FORGOTTEN if Wrong.FORGOTTEN in wrong else None
    return Search(World(within, guards, wrong)).run(stuck=stuck)


@pytest.mark.parametrize(
    "within",
    [
        pytest.param(setting((2,), *EVERY_FAULT), id="1_client"),
        pytest.param(setting(PAIR, *EVERY_FAULT), id="2_clients"),
        pytest.param(setting(PAIR, *EVERY_FAULT, delays=1, begun=True), id="1_delay"),
        pytest.param(
            setting(PAIR, "stop", "cancel", "cut", "flush", faults=2, begun=True),
            id="2_faults",
        ),
        pytest.param(setting(TWO_AND_ONE, *EVERY_FAULT, ttl=1, begun=True), id="2_tasks_of_3"),
        pytest.param(setting(THREE, *EVERY_FAULT, ttl=1, begun=True), id="3_clients"),
        pytest.param(tries(setting(PAIR, *EVERY_FAULT, "stray")), id="1_does_not_wait"),
        pytest.param(tries(setting(THREE, "crash", ttl=1)), id="of_the_dead"),
        pytest.param(fixed(setting(PAIR, *EVERY_FAULT, begun=True)), id="nobody_renews"),
    ],
)
def test_model_with_any_fault_has_no_wrong_state(within: Setting) -> None:
    """Whatever happens: one body at a time, nothing is left behind, and whoever waits gets in."""
    result = searched(within)
    assert result.found is None, str(result)
    assert result.complete


@pytest.mark.parametrize(
    "within",
    [
        pytest.param(setting(PAIR, "stray"), id="2_clients"),
        pytest.param(setting(PAIR, "stray", ttl=1, late=2), id="for_longer_than_a_lease"),
        pytest.param(
            setting((1,), "stray", "cancel", "unheard", "mute", faults=3), id="unanswered"
        ),
        pytest.param(setting((1,), "stray", "flush", faults=2, delays=1, late=2), id="slow"),
        pytest.param(setting(TWO_AND_ONE, "stray", ttl=1, begun=True), id="2_tasks_of_3"),
    ],
)
def test_model_with_late_copies_has_no_wrong_state(within: Setting) -> None:
    """What was given up does not act, whenever a connection that broke delivers it."""
    result = searched(within)
    assert result.found is None, str(result)
    assert result.complete


@pytest.mark.parametrize(
    "within",
    [
        pytest.param(
            shares(setting(TWO_AND_ONE, *EVERY_FAULT, ttl=1, begun=True)), id="2_tasks_of_3"
        ),
        pytest.param(shares(setting(THREE, *EVERY_FAULT, ttl=1, begun=True)), id="3_clients"),
        pytest.param(shares(setting(TWO_AND_ONE, "stray", ttl=1, begun=True)), id="late_copies"),
        pytest.param(shares(setting(THREE_AND_ONE, "stop", ttl=1, begun=True)), id="4_tasks"),
        pytest.param(shares(fixed(setting(THREE, *EVERY_FAULT, begun=True))), id="nobody_renews"),
        pytest.param(shares(tries(setting(THREE, "crash", ttl=1))), id="1_does_not_wait"),
    ],
)
def test_model_with_shares_has_no_wrong_state(within: Setting) -> None:
    """Whoever is the next: nothing but the order depends on it, and whoever waits gets in."""
    result = searched(within)
    assert result.found is None, str(result)
    assert result.complete


@pytest.mark.parametrize(
    "within",
    [
        pytest.param(runs(setting(TWO_AND_ONE, *EVERY_FAULT, ttl=1)), id="2_tasks_of_3"),
        pytest.param(runs(setting(TWO_AND_ONE, "stray", ttl=1)), id="late_copies"),
        pytest.param(runs(setting(TWO_AND_ONE, "break")), id="broken"),
        pytest.param(runs(setting(THREE_AND_ONE, "cancel", "crash", "queue", ttl=1)), id="3_tasks"),
        pytest.param(
            runs(setting(TWO_AND_ONE, "cut", "mute", "flush", faults=2, ttl=1)), id="2_faults"
        ),
        pytest.param(
            replace(runs(setting(TWO_AND_ONE, "stop")), claim=2), id="claims_of_several_ticks"
        ),
        pytest.param(runs(setting(THREE_AND_ONE, "deaf", ttl=1), 1, 0, 0), id="overtaken"),
    ],
)
def test_model_with_local_handoffs_has_no_wrong_state(within: Setting) -> None:
    """A client that hands the lock on among its tasks does as the server would, and in order."""
    result = searched(within)
    assert result.found is None, str(result)
    assert result.complete


COSTS: list[tuple[Fault, tuple[int, ...], int]] = [
    ("die", THREE, 0),  # a waiter's process is killed
    ("doze", THREE, 1),  # a waiter's process is stopped: a claim
    ("crash", PAIR, 3),  # a process is killed while it holds the lock: the rest of its lease
    ("stop", PAIR, 3),
    ("cancel", PAIR, 0),
    ("deaf", PAIR, 0),
    ("cut", PAIR, 0),
    ("flush", PAIR, 0),
    ("queue", PAIR, 3),
]


@pytest.mark.parametrize(("kind", "tasks", "ticks"), COSTS, ids=[kind for kind, *_ in COSTS])
def test_fault_in_the_model_idles_the_lock_for_no_more_than_its_ticks(
    kind: Fault, tasks: tuple[int, ...], ticks: int
) -> None:
    """For so many ticks, at most, is the lock idle while somebody waits; a claim is 1, a ttl 3."""
    result = searched(setting(tasks, kind, ttl=3, patience=ticks))
    assert result.found is None, str(result)
    assert result.complete
    if ticks:
        result = searched(setting(tasks, kind, ttl=3, patience=ticks - 1))
        assert result.found is not None
        assert result.found.wrong == Wrong.IDLE_TOO_LONG


# For each safeguard, what goes wrong without it, and when.
WITHOUT: dict[str, tuple[Wrong, Setting]] = {
    "release_compares": (Wrong.TWO_BODIES, setting(THREE, "stop")),
    "release_or_leave": (Wrong.LEFT_BEHIND, setting(PAIR, "cancel")),
    "holders_are_answered_again": (Wrong.TWICE, setting(PAIR, "cut")),
    "answered_with_what_is_left": (Wrong.TWO_BODIES, setting(PAIR, "cut")),
    "only_holders_renew": (Wrong.TWO_HOLDERS, setting(PAIR, "cut")),
    "leases_end": (Wrong.FORGOTTEN, setting(PAIR, "crash")),
    "fence_above_last": (Wrong.FENCE_FELL, setting(PAIR, "clock")),
    "fence_above_clock": (Wrong.FENCE_FELL, setting(PAIR, "key")),
    "fence_above_holder": (Wrong.FENCE_FELL, setting(PAIR, "key", "clock", faults=2)),
    "counted_from_the_question": (Wrong.TWO_BODIES, setting(PAIR, "stop")),
    "late_are_given_back": (Wrong.ENTERED_LATE, setting(PAIR, "stop")),
    "given_back_is_void": (Wrong.TWO_BODIES, setting(PAIR, "cut", delays=1)),
    "crossed_release_takes_all": (Wrong.LEFT_BEHIND, setting(PAIR, delays=2)),
    "failed_are_tried_again": (
        Wrong.LEFT_BEHIND,
        setting((1,), "cancel", "cut", "unheard", faults=3),
    ),
    "tried_again_as_it_was": (
        Wrong.NOT_THE_HOLDER,
        setting(PAIR, "cut", "unheard", faults=2, ttl=1, delays=1, begun=True),
    ),
    "asks_when_a_lease_ends": (Wrong.FORGOTTEN, setting(PAIR, "crash")),
    "releases_behind_questions": (Wrong.LEFT_BEHIND, setting(PAIR, "cancel")),
    "abandoned_are_not_resent": (Wrong.LEFT_BEHIND, setting(PAIR, "cancel", "flush", faults=2)),
    # What comes late.
    "late_are_refused": (Wrong.ACTED_LATE, setting(PAIR, "stray")),
    "buried_stay_out": (Wrong.ACTED_LATE, setting(PAIR, "stray")),
    "given_up_are_buried": (Wrong.ACTED_LATE, setting(PAIR, "stray")),
    "buried_when_resent": (Wrong.ACTED_LATE, setting((1,), "stray", "cancel", faults=2)),
    "given_back_are_not_buried": (Wrong.SENT_AWAY, setting((1,), "stray", ttl=1, late=2)),
    "resent_are_crossed": (Wrong.LEFT_BEHIND, setting((1,), "stray", delays=2, late=3)),
    "refused_are_released": (Wrong.ACTED_LATE, tries(setting(PAIR, "stray"))),
    "tries_pass_the_dead": (Wrong.SENT_AWAY, tries(setting(THREE, "crash", ttl=1))),
    # What a client hands on by itself.
    "only_holders_pass": (Wrong.TWO_HOLDERS, runs(setting(TWO_AND_ONE, "stop"))),
    "passed_leave_the_queue": (Wrong.TWICE, runs(setting(TWO_AND_ONE))),
    "fence_above_run": (
        Wrong.FENCE_FELL,
        runs(setting(TWO_AND_ONE, "crash", "clock", faults=2)),
    ),
    "overtaken_are_told": (Wrong.OVERTOOK, runs(setting(TWO_AND_ONE, "queue"), 1)),
    "only_to_neighbours": (Wrong.OVERTOOK, runs(setting(TWO_AND_ONE), 1, 0)),
    "forgets_when_subscribed_again": (
        Wrong.OVERTOOK,
        runs(setting(TWO_AND_ONE, "deaf", "queue", faults=2), 1),
    ),
    "forgets_when_displaced": (
        Wrong.OVERTOOK,
        runs(setting(THREE_AND_ONE, "queue", ttl=1), 1, 0, 0),
    ),
    "forgets_when_overtaken": (Wrong.OVERTOOK, runs(setting(THREE_AND_ONE, "queue"), 1)),
    "outdated_have_no_neighbour": (Wrong.OVERTOOK, runs(setting(TWO_AND_ONE, "queue"), 1)),
    "crossed_are_not_passed": (
        Wrong.ACTED_LATE,
        runs(setting(TWO_AND_ONE, "stray", ttl=1), 0, first=1),
    ),
    "deadline_is_inherited": (
        Wrong.NOT_THE_HOLDER,
        replace(runs(setting(TWO_AND_ONE, "stop")), claim=2),
    ),
    "runs_are_bounded": (
        Wrong.FENCE_FELL,
        runs(setting(THREE_AND_ONE, "stop", "clock", faults=2, ttl=1), ahead=1),
    ),
    "failed_reports_end_runs": (
        Wrong.LEFT_BEHIND,
        runs(setting(THREE_AND_ONE, "cut", "mute", faults=2, ttl=1)),
    ),
    "failed_reports_are_repeated": (
        Wrong.LEFT_BEHIND,
        runs(setting(TWO_AND_ONE, "cut", "mute", faults=2)),
    ),
    "confirmed_from_the_first": (
        Wrong.NOT_THE_HOLDER,
        runs(setting(TWO_AND_ONE, "cut", "mute", faults=2, ttl=1)),
    ),
    "outrun_reports_are_followed": (Wrong.LEFT_BEHIND, runs(setting(TWO_AND_ONE, "flush"))),
    "passed_are_no_strangers": (
        Wrong.NOT_THE_HOLDER,
        runs(setting(TWO_AND_ONE, "flush", ttl=1), 0, first=1),
    ),
    "lost_are_all_of_a_run": (Wrong.NOT_THE_HOLDER, runs(setting(TWO_AND_ONE, "break"))),
    "between_are_released": (Wrong.LEFT_BEHIND, runs(setting(TWO_AND_ONE, "break"))),
    "between_are_tried_again": (
        Wrong.LEFT_BEHIND,
        runs(setting(TWO_AND_ONE, "break", "cut", "unheard", faults=3, ttl=1)),
    ),
    "only_ended_are_released": (
        Wrong.NOT_THE_HOLDER,
        runs(setting(TWO_AND_ONE, "flush", "stop", faults=2, ttl=1), ahead=1),
    ),
    # Without these the others only wait longer.
    "silent_are_skipped": (Wrong.IDLE_TOO_LONG, setting(THREE, "die", begun=True, patience=0)),
    "claims_are_short": (Wrong.IDLE_TOO_LONG, setting(THREE, "doze", begun=True, patience=1)),
    "stuck_are_purged": (
        Wrong.IDLE_TOO_LONG,
        setting(TWO_AND_ONE, "stop", ttl=1, begun=True, patience=1),
    ),
    "unconfirmed_are_stuck": (
        Wrong.IDLE_TOO_LONG,
        fixed(setting((2, 2), "doze", ttl=1, begun=True, patience=1), first=1),
    ),
    "asks_when_subscribed_again": (Wrong.IDLE_TOO_LONG, setting(PAIR, "deaf", patience=0)),
    "asks_when_linked_again": (
        Wrong.IDLE_TOO_LONG,
        setting(TWO_AND_ONE, "cut", ttl=1, begun=True, patience=0),
    ),
    "asks_when_purged": (
        Wrong.IDLE_TOO_LONG,
        setting((3,), "stop", ttl=1, begun=True, patience=0),
    ),
    "asks_when_displaced": (Wrong.IDLE_TOO_LONG, setting(TWO_AND_ONE, "queue", ttl=1, patience=1)),
    "asks_once_more": (Wrong.IDLE_TOO_LONG, setting(PAIR, "deaf", patience=0)),
}

# Safeguards that can be left out, as long as the other one is there.
SPARE: dict[str, tuple[str, Wrong, Setting]] = {
    "reports_come_first": (
        "outrun_reports_are_followed",
        Wrong.LEFT_BEHIND,
        runs(setting(TWO_AND_ONE)),
    ),
    "strangers_are_given_back": (
        "failed_are_tried_again",
        Wrong.IDLE_TOO_LONG,
        setting((3,), "leave", "cut", "unheard", faults=3, ttl=1, begun=True, patience=0),
    ),
    "asks_after_giving_back": (
        "given_back_is_void",
        Wrong.NOT_THE_HOLDER,
        setting(PAIR, "flush", delays=1),
    ),
    "resends_in_order": (
        "abandoned_are_not_resent",
        Wrong.LEFT_BEHIND,
        setting((1,), "cancel", "cut", faults=2),
    ),
}


def test_safeguards_are_all_in_the_tables_of_ablations() -> None:
    """The tables below leave out no safeguard."""
    assert {field.name for field in fields(Safeguards)} == {*WITHOUT, *SPARE}


@pytest.mark.parametrize("safeguard", WITHOUT)
def test_search_without_a_safeguard_finds_the_wrong_state(safeguard: str) -> None:
    """Without this safeguard, the search finds what it was there for."""
    wrong, within = WITHOUT[safeguard]
    found = searched(within, safeguard, wrong=frozenset({wrong})).found
    assert found is not None
    assert found.wrong == wrong
    if wrong is Wrong.IDLE_TOO_LONG:
        result = searched(within)
        assert result.found is None, str(result)


@pytest.mark.parametrize("safeguard", SPARE)
def test_search_without_both_of_two_safeguards_finds_the_wrong_state(safeguard: str) -> None:
    """One of the two is enough in this setting, none is not."""
    other, wrong, within = SPARE[safeguard]
    for left_out in (safeguard, other):
        result = searched(within, left_out, wrong=frozenset({wrong}))
        assert result.found is None, str(result)
    found = searched(within, safeguard, other, wrong=frozenset({wrong})).found
    assert found is not None
    assert found.wrong == wrong


def test_search_command_prints_the_steps_to_a_wrong_state(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command prints how a wrong state comes about, each step with what it leads to."""
    assert main(["--clients", "2", "--kinds", "cancel", "--without", "release_or_leave"]) == 1
    told = capsys.readouterr().out
    assert Wrong.LEFT_BEHIND in told
    assert "A gives up  " in told
    assert told.splitlines()[-1].strip().startswith("the server carries out A's release: done")
    assert main(["--clients", "2", "--kinds", "cancel"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out


def test_model_server_answers_and_pushes_as_the_memory_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is asked of both in whatever order, they answer and push the same."""
    chance = looks.decided(monkeypatch)
    assert compare(chance, depth=6) > 300
    assert compare(chance, depth=6, renews=False) > 300
    assert compare(chance, depth=4, late=True) > 200
    assert compare(chance, depth=6, passes=True) > 300


def test_model_local_handoffs_act_as_the_real_client(caplog: pytest.LogCaptureFixture) -> None:
    """The same where a store says who stands before whom: they hand on and report as it does."""
    caplog.set_level(logging.ERROR)
    for seed in range(100):
        virtual.run(Play(seed, RUNS).play(60))


@pytest.mark.parametrize("acts", range(2))
def test_model_client_sends_and_enters_as_the_real_client(
    acts: int, caplog: pytest.LogCaptureFixture
) -> None:
    """In plays that are drawn, real clients send what the model sends, and enter when it does."""
    caplog.set_level(logging.ERROR)  # in some plays a release fails, and they say so
    for seed in range(100 * acts, 100 * (acts + 1)):
        virtual.run(Play(seed).play(60))
