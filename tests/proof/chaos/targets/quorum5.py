"""Five servers that vote: as `quorum`, and two of them may fail at a time."""

from __future__ import annotations

from tests.proof.chaos.targets.quorum import QuorumTarget


def make() -> QuorumTarget:
    """The target."""
    return QuorumTarget("quorum5")
