"""As `etcd`, and the clock of one process is an hour ahead, and that of another an hour behind."""

from __future__ import annotations

from tests.proof.chaos.targets.etcd import EtcdTarget


def make() -> EtcdTarget:
    """The target."""
    return EtcdTarget("etcd-skewed")
