"""Pauses between tries."""

from __future__ import annotations

from itertools import pairwise

import pytest

from aiolock.backoff import Backoff

pytestmark = pytest.mark.one_loop


def test_backoff_doubles_each_pause_up_to_the_longest() -> None:
    """And begins at the first."""
    backoff = Backoff(1.0, 5.0)
    assert [backoff.pause() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_backoff_after_reset_begins_at_the_first_pause() -> None:
    """A try has succeeded."""
    backoff = Backoff(0.5, 5.0)
    backoff.pause()
    backoff.pause()
    backoff.reset()
    assert backoff.pause() == 0.5


def test_backoff_at_once_has_no_pause_before_the_first_try() -> None:
    """Nor after a reset."""
    backoff = Backoff(0.02, 1.0, at_once=True)
    assert [backoff.pause() for _ in range(4)] == [0.0, 0.02, 0.04, 0.08]
    backoff.reset()
    assert [backoff.pause() for _ in range(2)] == [0.0, 0.02]


def test_backoff_with_jitter_shortens_each_pause_by_half_at_most() -> None:
    """At random: a hundred pauses are not all alike."""
    backoff = Backoff(1.0, 1.0, jitter=True)
    pauses = [backoff.pause() for _ in range(100)]
    assert all(0.5 <= pause <= 1.0 for pause in pauses)
    assert any(one != other for one, other in pairwise(pauses))
