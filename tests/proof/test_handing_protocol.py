"""A lease that is handed on, searched exhaustively: see `tests/proof/handing`."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tests.proof.handing.world import EVERY_FAULT, Fault, Safeguards, World, Wrong
from tests.proof.protocol.search import Search, Searched
from tests.support import garbage


@garbage.not_looked_for()
def searched(world: World) -> Searched:
    """All of its states."""
    return Search(world).run(stuck=Wrong.FORGOTTEN)


def world(adopters: int, faults: int, *kinds: Fault, without: str = "") -> World:
    """So many that have the token, and so many faults of these kinds, or of any."""
    guards = replace(Safeguards(), **{without: False} if without else {})
    return World(adopters, faults, frozenset(kinds) or EVERY_FAULT, guards)


@pytest.mark.parametrize(
    "system",
    [
        pytest.param(world(1, 1), id="1_adopter"),
        pytest.param(world(1, 2, "fail"), id="without_answers"),
        pytest.param(world(1, 2, "cancel", "discard"), id="taken_back_and_discarded"),
        pytest.param(world(2, 1, "break"), id="2_adopters"),
    ],
)
def test_handing_on_with_any_fault_has_no_wrong_state(system: World) -> None:
    """Whatever is late or lost: one body at a time, nothing left behind, and the waiter gets in."""
    result = searched(system)
    assert result.found is None, str(result)
    assert result.complete


NEEDED: dict[str, tuple[World, Wrong]] = {
    "ends_when_sent": (world(1, 0, without="ends_when_sent"), Wrong.NOT_THE_HOLDER),
    "counted_from_the_question": (
        world(1, 0, without="counted_from_the_question"),
        Wrong.NOT_THE_HOLDER,
    ),
    "releases": (world(1, 1, "fail", without="releases"), Wrong.LEFT_BEHIND),
    "discards": (world(1, 1, "cancel", without="discards"), Wrong.LEFT_BEHIND),
    "detach_looks": (world(1, 2, "fail", without="detach_looks"), Wrong.LEFT_BEHIND),
    "buried": (world(1, 2, "fail", without="buried"), Wrong.LEFT_BEHIND),
    "adopt_looks": (world(1, 2, "fail", without="adopt_looks"), Wrong.LEFT_BEHIND),
    "late": (world(1, 1, "cut", without="late"), Wrong.LEFT_BEHIND),
}
"""By safeguard: a world without it, and what goes wrong there."""


@pytest.mark.parametrize("guard", [field.name for field in fields(Safeguards)])
def test_handing_on_without_one_safeguard_has_a_wrong_state(guard: str) -> None:
    """None of them can be left out."""
    system, wrong = NEEDED[guard]
    found = searched(system).found
    assert found is not None
    assert found.wrong == wrong, str(found)
