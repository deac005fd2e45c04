"""Which shard is for whom: the same for all who see the same members, even, and with few moves."""

from __future__ import annotations

import asyncio
import math
import random
import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiolock._locks.placement import placed, score, shard_of
from aiolock._turns import at_once, in_parts

SHARDS = 64
TRIALS = 60


def place(members: list[str], count: int = SHARDS, name: str = "t") -> list[str]:
    """The member of each shard."""
    return at_once(placed(name, count, members))


def in_order_of_pairs(members: list[str], count: int, name: str) -> list[str]:
    """The same by its definition: all pairs, the highest score first."""
    part, load, owners = math.ceil(count / len(members)), Counter[str](), dict[int, str]()
    pairs = ((score(name, shard, each), each, shard) for each in members for shard in range(count))
    for _, member, shard in sorted(pairs, reverse=True):
        if shard not in owners and load[member] < part:
            owners[shard] = member
            load[member] += 1
    return [owners[shard] for shard in range(count)]


@given(st.sets(st.text(min_size=1), min_size=1, max_size=12), st.integers(1, 40), st.randoms())
def test_placed_is_the_same_for_all_and_never_above_the_bound(
    ids: set[str], count: int, dice: random.Random
) -> None:
    """In whatever order the members are seen; nobody has more than its part; none is without."""
    members = sorted(ids)
    owners = place(members, count)
    shuffled = members.copy()
    dice.shuffle(shuffled)
    assert place(shuffled, count) == owners == in_order_of_pairs(members, count, "t")
    assert len(owners) == count
    assert max(Counter(owners).values()) <= math.ceil(count / len(members))
    assert set(owners) <= ids


def trials(number: int) -> list[tuple[list[str], list[str]]]:
    """Whom the shards are for, among so many members, before and after another joins."""
    dice = random.Random(number)
    found = list[tuple[list[str], list[str]]]()
    for _ in range(TRIALS):
        members = [f"{dice.getrandbits(64)}" for _ in range(number)]
        found.append((place(members), place([*members, "new"])))
    return found


@pytest.mark.parametrize(("members", "most"), [(2, 1.2), (5, 1.5), (10, 2.0), (20, 2.0)])
def test_member_that_joins_moves_few_shards(members: int, most: float) -> None:
    """On average between one and two times as many as there must be, that it has its part."""
    moves = [sum(map(str.__ne__, *each)) for each in trials(members)]
    fewest = SHARDS / (members + 1)
    assert 1.0 <= statistics.mean(moves) / fewest < most
    # By the number of the shard modulo that of the members, nearly all of them move.
    by_number = sum(at % members != at % (members + 1) for at in range(SHARDS))
    assert max(moves) < by_number / 2 or members == 2


def test_member_that_leaves_moves_its_own_shards_and_few_others() -> None:
    """The others keep nearly all of theirs: to go back is as far as to come."""
    for before, after in trials(5):
        assert sum(map(str.__ne__, after, before)) < 20
        for owner, later in zip(after, before, strict=True):
            assert later != "new" or owner == "new"


def test_members_of_other_shards_are_spread_in_another_way() -> None:
    """So the process that has most of one has not most of all others."""
    members = [f"m{n}" for n in range(5)]
    assert place(members, name="t") != place(members, name="u")


def test_shard_of_a_key_is_fixed_for_ever() -> None:
    """A key belongs to the same shard in all processes and versions."""
    assert [shard_of(key, 64) for key in ("", "acme", "é", "tenant 7", "\ud800")] == [
        *(52, 1, 47, 40, 40),
    ]
    spread = Counter(shard_of(f"tenant {n}", 16) for n in range(16_000))
    assert len(spread) == 16
    assert 850 < min(spread.values()) < max(spread.values()) < 1150


def test_placed_in_parts_lets_others_have_a_turn() -> None:
    """Many shards for many members are placed part by part."""

    async def main() -> int:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        owners = await in_parts(placed("t", 500, [f"m{n}" for n in range(50)]))
        counting.cancel()
        assert set(Counter(owners).values()) == {10}
        return turns

    assert asyncio.run(main()) > 15
