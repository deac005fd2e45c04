"""Path locks, searched exhaustively: see `tests/proof/paths`."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tests.proof.paths.world import EVERY_FAULT, Fault, Path, Safeguards, World, Wrong
from tests.proof.protocol.search import Search, Searched
from tests.support import garbage

pytestmark = pytest.mark.one_loop

TENANT, DOCUMENT, OTHER = Path("a"), Path("a/b"), Path("a/c")
READS_TENANT, READS_DOCUMENT = Path("a", shared=True), Path("a/b", shared=True)


@garbage.not_looked_for()
def searched(world: World) -> Searched:
    """All of its states."""
    return Search(world).run(stuck=Wrong.FORGOTTEN)


def world(*wants: Path, faults: int = 0, kinds: tuple[Fault, ...] = (), without: str = "") -> World:
    """Clients that want these, and faults of these kinds, or of any."""
    guards = replace(Safeguards(), **{without: False} if without else {})
    return World(*wants, faults=faults, kinds=frozenset(kinds) or EVERY_FAULT, guards=guards)


@pytest.mark.parametrize(
    "system",
    [
        pytest.param(world(DOCUMENT, TENANT, faults=2), id="a_document_and_its_tenant"),
        pytest.param(world(DOCUMENT, READS_TENANT, faults=1), id="a_reader_of_the_tenant"),
        pytest.param(
            world(DOCUMENT, DOCUMENT, faults=1, kinds=("cancel", "end")), id="one_document"
        ),
        pytest.param(world(DOCUMENT, OTHER, faults=1, kinds=("cut",)), id="two_documents"),
        pytest.param(world(Path("a/b/c"), DOCUMENT), id="three_levels"),
        pytest.param(world(READS_DOCUMENT, TENANT, DOCUMENT), id="three_clients"),
    ],
)
def test_path_locks_with_any_fault_have_no_wrong_state(system: World) -> None:
    """No two that exclude each other, fences that rise, nobody waits for ever, nothing is left."""
    result = searched(system)
    assert result.found is None, str(result)
    assert result.complete


NEEDED: dict[str, tuple[World, Wrong]] = {
    "root_first": (world(DOCUMENT, TENANT, DOCUMENT, without="root_first"), Wrong.DEADLOCK),
    "releases_below": (
        world(READS_DOCUMENT, TENANT, DOCUMENT, without="releases_below"),
        Wrong.DEADLOCK,
    ),
    "alike": (world(DOCUMENT, READS_TENANT, without="alike"), Wrong.CONFLICT),
    "fence_of_root": (world(DOCUMENT, TENANT, without="fence_of_root"), Wrong.FENCE_FELL),
    "fence_last": (world(DOCUMENT, DOCUMENT, without="fence_last"), Wrong.FENCE_FELL),
    "lost_with_any": (
        world(DOCUMENT, TENANT, faults=1, kinds=("end",), without="lost_with_any"),
        Wrong.CONFLICT,
    ),
}
"""By safeguard: a world without it, and what goes wrong there."""


@pytest.mark.parametrize("guard", [field.name for field in fields(Safeguards)])
def test_path_locks_without_one_safeguard_have_a_wrong_state(guard: str) -> None:
    """None of them can be left out."""
    system, wrong = NEEDED[guard]
    found = searched(system).found
    assert found is not None
    assert found.wrong == wrong, str(found)
