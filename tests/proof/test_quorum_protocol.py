"""The decision of a majority of servers: every order of events, and worlds that break.

A long campaign is ``python -m tests.proof.quorum``; `tests/proof/quorum` describes the model.
"""

from __future__ import annotations

import pytest

from aiolock.stores.quorum._votes import Vote, VoteSet
from tests.proof.quorum.ablations import ABLATIONS, Ablation, _HandsOnWhatIsUnknown
from tests.proof.quorum.exhaustive import Search, Wrong
from tests.proof.quorum.world import WORLDS, Simulation, Violation

RUNS = {
    ("quiet", 3): 150,
    ("quiet", 5): 50,
    ("all", 3): 50,
    ("all", 5): 15,
    ("drift", 3): 50,
    ("drift", 5): 15,
    ("storm", 3): 50,
    ("storm", 5): 15,
    ("stranded", 3): 10,
    ("stranded", 5): 5,
    ("crowd", 3): 20,
    ("crowd", 5): 8,
    ("crowd, all", 3): 20,
    ("crowd, all", 5): 8,
    ("crowd, drift", 3): 20,
    ("crowd, storm", 3): 20,
    ("crowd, storm", 5): 8,
    ("twice", 3): 30,
    ("twice", 5): 10,
    ("quiet, shared", 3): 100,
    ("quiet, shared", 5): 30,
    ("all, shared", 3): 40,
    ("all, shared", 5): 10,
    ("drift, shared", 3): 30,
    ("drift, shared", 5): 10,
    ("storm, shared", 3): 40,
    ("storm, shared", 5): 10,
    ("stranded, shared", 3): 10,
    ("stranded, shared", 5): 5,
    ("twice, shared", 3): 20,
    ("twice, shared", 5): 5,
}
"""How many simulations of each world; a fault of those that were found shows in some tens."""
_FAR = 4000
"""Runs within which an ablation is found, from the seed on that showed it once."""


# All orders of events


def test_search_of_every_order_of_events_finds_no_violation() -> None:
    """Two clients and three servers: never two inside, fences grow, no client waits for ever."""
    assert Search(2, 1).run() > 10_000


def test_search_at_once_has_fewer_orders_and_cut_short_is_incomplete() -> None:
    """Where answers are read at once there are fewer; a search that is cut short says so."""
    search = Search(2, 1, at_once=True)
    assert search.run() == 10_605
    assert search.complete
    search = Search(2, 1)
    search.run(seconds=0.0)
    assert not search.complete


@pytest.mark.parametrize(
    "search",
    [
        Search(2, 1, readers=[1]),
        Search(3, 1, servers=2, readers=[1, 2]),
        Search(3, 1, servers=2, readers=[0, 2]),
    ],
    ids=["one_reads", "the_first_writes", "the_second_writes"],
)
def test_search_of_every_order_of_readers_and_writers_finds_no_violation(search: Search) -> None:
    """Readers may be inside together, without a writer; and no client waits for ever."""
    assert search.run() > 10_000


class _NotTold(VoteSet):
    def _is_known(self, acquisition: list[Vote], fence: int) -> bool:
        return True

    def _fence(self, numbers: list[int]) -> int:
        return numbers[-1]


class _OneLess(VoteSet):
    def __init__(self, servers: int) -> None:
        super().__init__(servers)
        self.quorum -= 1


@pytest.mark.parametrize(
    ("search", "finds"),
    [
        (Search(2, 1, _NotTold, tells=False), "fence"),
        (Search(2, 1, _OneLess), "two"),
        (Search(2, 1, _OneLess, at_once=True), "two"),
        (Search(2, 2, _HandsOnWhatIsUnknown, hands_on=True), "fence"),
        (Search(3, 1, inquires=0), "for ever"),
        (Search(3, 1, servers=2, readers=[1, 2], inquires=1), "for ever"),
        (Search(2, 1, readers=[0], beside=True), "two"),
    ],
    ids=[
        "a_fence_that_is_known",
        "a_majority",
        "a_majority_at_once",
        "a_fence_that_is_known_beforehand",
        "inquiries",
        "inquiries_of_all_that_share",
        "readers_wait_for_who_writes",
    ],
)
def test_search_without_a_safeguard_finds_a_violation(search: Search, finds: str) -> None:
    """The search finds a violation without each of these safeguards."""
    with pytest.raises(Wrong, match=f"^{finds}"):
        search.run()


# Worlds that break


@pytest.mark.parametrize(("world", "servers"), RUNS, ids=[f"{w}-{n}" for w, n in RUNS])
def test_simulation_of_each_world_finds_no_violation(world: str, servers: int) -> None:
    """In any fault: never two inside, fences grow, all live are served; in order without faults."""
    entered = beside = 0
    for seed in range(RUNS[world, servers]):
        simulation = Simulation(seed, WORLDS[world], servers)
        simulation.run()
        entered += simulation.counts["entered"]
        beside += simulation.counts["beside"]
    assert entered > 10 * RUNS[world, servers]
    assert (beside > 0) == (WORLDS[world].readers > 0)


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda ablation: ablation.name)
def test_simulation_without_a_part_of_the_protocol_finds_a_violation(ablation: Ablation) -> None:
    """The simulation finds a violation without each part of the protocol."""
    found = ""
    for seed in range(ablation.seed, ablation.seed + _FAR):
        try:
            Simulation(seed, WORLDS[ablation.world], 3, ablation.kinds).run()
        except Violation as violation:
            found = str(violation).partition(":")[0]
            if found == ablation.finds:
                break
    assert found == ablation.finds


def test_simulation_with_clocks_too_far_apart_finds_two_holders() -> None:
    """The assumption about clocks is needed: at three in a hundred there are two inside."""

    def campaign() -> None:
        for seed in range(100):
            Simulation(seed, WORLDS["too fast"], 3).run()

    with pytest.raises(Violation, match="two"):
        campaign()
