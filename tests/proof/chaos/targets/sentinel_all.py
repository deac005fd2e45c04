"""As `sentinel`, and now and then all Sentinels fail at once, also when the master crashes."""

from __future__ import annotations

from tests.proof.chaos.faults import ATTACKS
from tests.proof.chaos.targets.sentinel import SentinelTarget


class SentinelAllTarget(SentinelTarget):
    """A service whose Sentinels have something in common that fails."""

    attack = ATTACKS["sentinel-all"]


def make() -> SentinelAllTarget:
    """The target."""
    return SentinelAllTarget()
