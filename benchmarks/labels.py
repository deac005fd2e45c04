"""The places of the labels at the ends of lines: each near its line, and none on another."""

from __future__ import annotations

from collections.abc import Sequence


def spread_out(wanted: Sequence[float], gap: float) -> list[float]:
    """Places as near as possible to the wanted ones, in the same order, ``gap`` apart.

    Labels whose wanted places are too close become a block around the mean of these places.
    """
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    blocks: list[list[int]] = []
    for each in order:
        blocks.append([each])
        while len(blocks) > 1 and _end(blocks[-2], wanted, gap) > _start(blocks[-1], wanted, gap):
            last = blocks.pop()
            blocks[-1] += last
    places = [0.0] * len(wanted)
    for block in blocks:
        start = _start(block, wanted, gap)
        for number, each in enumerate(block):
            places[each] = start + (number + 0.5) * gap
    return places


def _start(block: Sequence[int], wanted: Sequence[float], gap: float) -> float:
    return sum(wanted[each] for each in block) / len(block) - len(block) * gap / 2


def _end(block: Sequence[int], wanted: Sequence[float], gap: float) -> float:
    return _start(block, wanted, gap) + len(block) * gap
