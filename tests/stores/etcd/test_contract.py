"""The contract on three servers, and on another version of the server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from aiolock.store import Store
from aiolock.stores import etcd
from aiolock.stores.etcd._attempt import SLACK
from aiolock.testing import RunsContract, StoreContract
from tests.stores.test_contract import by_each_command
from tests.support import etcds
from tests.support.etcds import EtcdServer


class OnEtcdThree(StoreContract, RunsContract):
    """Three servers, of which each client begins with another one; all is in `tests/proof`."""

    holds_end_with_client = True
    max_skew = SLACK / 1_000_000

    @pytest.fixture(autouse=True)
    def _servers(self, etcd_three: EtcdServer, prefix: str) -> None:
        self._etcd, self._prefix = etcd_three, prefix
        self._links = itertools.cycle(range(3))

    def store(self) -> Store:
        """Another link, to the next server."""
        return etcd.from_url(self._etcd.url(first=next(self._links)), self._prefix)


@by_each_command
class TestEtcdThree(OnEtcdThree):
    """What a client sends and reads is the same for one server, which has the whole contract."""


@pytest.fixture(scope="module")
def packaged() -> Iterator[EtcdServer]:
    """The etcd of the system's package, which is older than that of the tests."""
    if not Path("/usr/bin/etcd").exists():
        pytest.skip("the package etcd-server is not installed here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ETCD_SERVER", "/usr/bin/etcd")
        for cached in (etcds.binary, etcds._options):
            cached.cache_clear()
        server = EtcdServer()
        server.__enter__()
    for cached in (etcds.binary, etcds._options):
        cached.cache_clear()
    yield server
    server.__exit__()


@pytest.mark.one_loop
@by_each_command
class TestEtcdPackaged(StoreContract, RunsContract):
    """Another version of the server."""

    holds_end_with_client = True
    max_skew = SLACK / 1_000_000

    @pytest.fixture(autouse=True)
    def _servers(self, packaged: EtcdServer, prefix: str) -> None:
        self._etcd, self._prefix = packaged, prefix

    def store(self) -> Store:
        """Another link to it."""
        return etcd.from_url(self._etcd.url(), self._prefix)
