"""Several clocks as one."""

from __future__ import annotations

from aiolock.stores.quorum._clock import Clocks

SECOND = 1_000_000


def test_clocks_without_an_answer_give_the_local_time() -> None:
    """Then it is our own clock that counts."""
    clocks = Clocks(3)
    assert clocks.now(5.0) == 5 * SECOND
    assert clocks.off(0) is None


def test_clocks_give_the_median_although_one_is_off() -> None:
    """The median counts, and of an even number of them the lower of the two in the middle."""
    clocks = Clocks(3)
    for server, ahead in enumerate((100, 4_000_000_000, 101)):
        clocks.learn(server, ahead * SECOND + 10 * SECOND, 10.0)
    assert clocks.now(20.0) == 121 * SECOND
    assert clocks.off(0) == -1.0
    assert clocks.off(2) == 0.0
    clocks.forget(2)
    assert clocks.off(2) is None
    assert clocks.now(20.0) == 120 * SECOND


def test_clocks_go_by_the_quickest_answer() -> None:
    """An answer that was long on its way says that the clock is further behind than it is."""
    clocks = Clocks(1)
    clocks.learn(0, 7 * SECOND, 2.0)
    assert clocks.now(0.0) == 5 * SECOND
    clocks.learn(0, 8 * SECOND, 2.0)
    assert clocks.now(0.0) == 6 * SECOND
    clocks.learn(0, 9 * SECOND, 9.0)
    assert clocks.now(0.0) == 6 * SECOND


def test_clocks_follow_a_clock_set_back_after_eight_answers() -> None:
    """After so many answers it is what counts."""
    clocks = Clocks(1)
    clocks.learn(0, 10 * SECOND, 0.0)
    for _ in range(7):
        clocks.learn(0, 2 * SECOND, 1.0)
        assert clocks.now(0.0) == 10 * SECOND
    clocks.learn(0, 2 * SECOND, 1.0)
    assert clocks.now(0.0) == 1 * SECOND
