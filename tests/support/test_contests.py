"""The check of a contest: what it finds, and what two masters at once explain."""

import pytest

from tests.support.contests import Contest, Stay, rising


class Told(Contest):
    """A contest whose bodies are given: pairs of an entry and a fence, a tenth of a second each."""

    def __init__(self, *entered: tuple[float, int]) -> None:
        super().__init__([])
        self._stays = [Stay("a", fence, begin, begin + 0.1) for begin, fence in entered]

    def stays(self) -> list[Stay]:
        """As they were given."""
        return self._stays


def test_contest_check_of_rising_fences_passes() -> None:
    """Fences that grow need no fail-over."""
    Told((1.0, 1), (2.0, 2), (3.0, 5)).check(since=9.0, until=9.0)


@pytest.mark.parametrize(("since", "until"), [(2.2, 9.0), (0.0, 2.9), (9.0, 9.0)])
def test_contest_check_of_a_fence_that_falls_outside_the_failover_fails(
    since: float, until: float
) -> None:
    """A fence that goes back before or after the fail-over is found."""
    with pytest.raises(AssertionError):
        Told((1.0, 1), (2.0, 3), (3.0, 2), (4.0, 4)).check(since=since, until=until)


@pytest.mark.parametrize(("since", "until"), [(0.0, 3.9), (1.5, 9.0)])
def test_contest_check_of_a_fence_below_any_earlier_one_fails(since: float, until: float) -> None:
    """A fence below that of any body before it, not only of the last, is found."""
    with pytest.raises(AssertionError):
        Told((1.0, 4), (2.0, 9), (3.0, 2), (4.0, 3), (5.0, 10)).check(since=since, until=until)


def test_contest_check_of_two_rising_rows_around_a_failover_passes() -> None:
    """Around a fail-over, each of two masters has a row of its own."""
    Told((1.0, 1), (2.0, 3), (3.0, 2), (4.0, 5), (5.0, 4)).check(since=1.5, until=5.5)


def test_contest_check_of_three_rows_of_fences_fails() -> None:
    """What two rows do not explain is found, whenever it is."""
    with pytest.raises(AssertionError):
        Told((1.0, 3), (2.0, 2), (3.0, 1)).check(since=0.0, until=9.0)


def test_contest_check_of_one_fence_in_two_bodies_fails() -> None:
    """Two bodies with one fence are found, whenever they are."""
    with pytest.raises(AssertionError):
        Told((1.0, 2), (2.0, 2)).check(since=0.0, until=9.0)


def test_contest_check_of_bodies_that_meet_outside_the_failover_fails() -> None:
    """Bodies that meet before or after the fail-over are found."""
    with pytest.raises(AssertionError):
        Told((1.0, 1), (1.05, 2)).check(since=2.0, until=3.0)


def test_rising_splits_fences_into_the_fewest_rows() -> None:
    """A row goes on where its last fence is the nearest below."""
    stays = Told(*((float(n), fence) for n, fence in enumerate((1, 5, 2, 6, 3, 7)))).stays()
    assert [[stay.fence for stay in row] for row in rising(stays)] == [[1, 5, 6, 7], [2, 3]]
