"""Fair shares keep every promise, in each situation of a few tenants, and in random ones of more.

Both run the state machine itself. What must be true of each grant is in `tests.support.tenants`,
with exact fractions, by counts of its own: the waiting share that holds least is next; a share that
waits and holds nothing is passed over by each other one for two requests at most; of a lock, two
shares that wait have had the same but for one request; first come, first served within a share; no
permit stays free that the next waiter could use; everybody who waits has a turn in the end.
"""

from __future__ import annotations

import copy
from collections import Counter, deque
from collections.abc import Hashable, Iterator
from random import Random

import pytest

from aiolock.protocol import WaiterId
from tests.support import garbage
from tests.support.tenants import Kind, Tenants, run

pytestmark = pytest.mark.one_loop


def situation(tenants: Tenants) -> Hashable:
    """What matters for all that may happen next: times and fences only by their order."""
    state = tenants.state
    queue = [_shown(tenants, waiter) for _, waiter in state.queue]
    holders = [_shown(tenants, grant.waiter) for grant in sorted(state.holders, key=_fence)]
    shares = state.holders.shares
    starts = (
        ()
        if shares is None
        else tuple(
            (priority, tuple((share, start - virtual) for share, start in starts.items()))
            for priority, virtual, starts in shares.saved()
        )
    )
    return tuple(queue), tuple(sorted(holders)), starts, tenants.intervals()


def _shown(tenants: Tenants, waiter: WaiterId) -> tuple[str, int, bool]:
    asked = tenants.asked[waiter]
    return asked.share, asked.form.permits, tenants.is_alive(waiter)


def _fence(grant: tuple[WaiterId, int]) -> int:
    return grant[1]


def following(tenants: Tenants, shares: list[str], most: int) -> Iterator[Tenants]:
    """All that may happen next: somebody comes, leaves, is displaced and comes back, or dies."""
    if len(tenants.asked) < most:
        for share in shares:
            after = copy.deepcopy(tenants)
            after.arrive(share)
            yield after
    for waiter in tenants.asked:
        after = copy.deepcopy(tenants)
        after.leave(waiter)
        yield after
    for waiter in tenants.waiting():
        if tenants.is_alive(waiter):
            for does in (Tenants.displace, _kill):
                after = copy.deepcopy(tenants)
                does(after, waiter)
                yield after


def _kill(tenants: Tenants, waiter: WaiterId) -> None:
    tenants.die(waiter.client)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "limit", "weights", "most"),
    [
        ("lock", 1, {"a": 1000, "b": 1000}, 4),
        ("lock", 1, {"a": 1000, "b": 2000}, 3),
        ("lock", 1, {"a": 1000, "b": 1000, "": 1000}, 3),
        ("semaphore", 1, {"a": 1000, "b": 2000}, 4),
    ],
    ids=["lock", "weights", "some_without", "permits"],
)
@garbage.not_looked_for()
def test_shares_in_every_situation_of_a_few_waiters_keep_their_promises(
    kind: Kind, limit: int, weights: dict[str, int], most: int
) -> None:
    """Each is visited once, by whichever way it comes about first."""
    first = Tenants(Random(0), kind, limit, weights)
    seen, todo = {situation(first)}, deque([first])
    while todo:
        for after in following(todo.popleft(), list(weights), most):
            after.now += 1
            after.check_rest()
            if (known := situation(after)) not in seen:
                seen.add(known)
                todo.append(after)
        assert len(seen) < 100_000
    assert len(seen) > 100


@pytest.mark.long
@pytest.mark.parametrize("kind", ["lock", "semaphore"])
def test_shares_of_hundreds_of_random_tenants_keep_their_promises(kind: Kind) -> None:
    """With several permits, priorities, clients of several waiters, deaths and leases that end."""
    counts = Counter[str]()
    for seed in range(1000, 1400):
        counts += run(seed, kind)
    assert counts["grants"] > 30_000
