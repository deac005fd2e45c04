"""Races for a document: the pauses of those that lose."""

from __future__ import annotations

import random

import pytest

from aiolock.stores._races import Races

pytestmark = pytest.mark.one_loop


def test_try_after_a_pause_is_followed_by_one_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause what is known is old, so that try only reads: else a slow client never wins."""
    monkeypatch.setattr(random, "uniform", lambda _, most: most)
    races = Races(4.0)
    pauses = [races.pause(0.0, 0.002) for _ in range(6)]
    assert pauses[::2] == [0.0, 0.0, 0.0]
    assert all(pause > 0 for pause in pauses[1::2])


@pytest.mark.parametrize(
    ("took", "pauses"),
    [(0.001, [0.004, 0.016, 0.03]), (0.02, [0.02, 0.08, 0.16]), (0.2, [0.2, 0.5, 0.5])],
    ids=["quick", "busy", "very busy"],
)
def test_pauses_after_lost_races_are_as_long_as_tries_take(
    monkeypatch: pytest.MonkeyPatch, took: float, pauses: list[float]
) -> None:
    """Else all try again at once where the machine is busy, and keep it busy in vain."""
    monkeypatch.setattr(random, "uniform", lambda _, most: most)
    races = Races(2.0)
    assert [races.pause(0.0, took) for _ in range(6)][1::2] == pytest.approx(pauses)
    assert races.pause(2.5, took) == races.pause(2.5, took) == 0.0
