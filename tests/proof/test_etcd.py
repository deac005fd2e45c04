"""The contract on three servers of etcd."""

from __future__ import annotations

from tests.stores.etcd.test_contract import OnEtcdThree


class TestEtcdThree(OnEtcdThree):
    """The whole contract, of which `make test` has a test for each command."""
