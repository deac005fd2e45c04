"""A rate limit, searched exhaustively: see `tests/proof/rates`."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from tests.proof.protocol.search import Search, Searched
from tests.proof.rates.world import EVERY_FAULT, Fault, Safeguards, World, Wrong
from tests.support import garbage

pytestmark = pytest.mark.one_loop


@garbage.not_looked_for()
def searched(world: World) -> Searched:
    """All of its states."""
    return Search(world).run(stuck=Wrong.FORGOTTEN)


def world(*wants: int, kinds: tuple[Fault, ...] = (), without: str = "", **more: Any) -> World:
    """Waiters that want so many tokens, and faults of these kinds, or of any."""
    guards = replace(Safeguards(), **{without: False} if without else {})
    return World(*wants, kinds=frozenset(kinds) or EVERY_FAULT, guards=guards, **more)


@pytest.mark.parametrize(
    "system",
    [
        pytest.param(world(1, 1, faults=2), id="2_waiters"),
        pytest.param(world(1, 1, 1, faults=1, kinds=("cancel",)), id="one_of_3_gives_up"),
        pytest.param(world(1, 1, clients=(0, 0), faults=1), id="2_waiters_of_one_client"),
        pytest.param(world(1, 1, tries=1, faults=1), id="one_that_does_not_wait"),
        pytest.param(world(2, 1, burst=2, full=True, faults=1), id="several_tokens"),
    ],
)
def test_rate_limit_with_any_fault_has_no_wrong_state(system: World) -> None:
    """Whatever is late or lost: no token too many, in order, none lies there, nobody is left."""
    result = searched(system)
    assert result.found is None, str(result)
    assert result.complete


NEEDED: dict[str, tuple[World, Wrong]] = {
    "remembered": (
        world(1, burst=2, full=True, faults=1, kinds=("cut",), without="remembered"),
        Wrong.TWICE,
    ),
    "saved_up": (world(1, 1, full=True, without="saved_up"), Wrong.TOO_MANY),
    "seen": (world(1, faults=1, kinds=("clock",), without="seen"), Wrong.IDLE),
    "tells_next": (world(1, 1, faults=1, kinds=("cancel",), without="tells_next"), Wrong.IDLE),
    "tells_each": (world(1, 1, 1, faults=1, kinds=("cancel",), without="tells_each"), Wrong.IDLE),
    "answers_overtaken": (
        world(1, 1, faults=1, kinds=("cancel",), without="answers_overtaken"),
        Wrong.IDLE,
    ),
    "asks_when_due": (world(1, without="asks_when_due"), Wrong.IDLE),
    "asks_again": (
        world(1, 1, clients=(0, 0), faults=2, kinds=("slow", "lose"), without="asks_again"),
        Wrong.FORGOTTEN,
    ),
    "buried": (world(1, faults=2, kinds=("cancel", "cut"), without="buried"), Wrong.LEFT_BEHIND),
    "late": (world(1, faults=2, kinds=("cancel", "cut"), without="late"), Wrong.FOR_NOBODY),
}
"""By safeguard: a world without it, and what goes wrong there."""


@pytest.mark.parametrize("guard", [field.name for field in fields(Safeguards)])
def test_rate_limit_without_one_safeguard_has_a_wrong_state(guard: str) -> None:
    """None of them can be left out."""
    system, wrong = NEEDED[guard]
    found = searched(system).found
    assert found is not None
    assert found.wrong == wrong, str(found)
