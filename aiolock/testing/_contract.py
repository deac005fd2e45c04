"""The suite that every store on one server passes."""

from __future__ import annotations

from aiolock.testing._board import BoardContract
from aiolock.testing._handing_on import HandingOnContract
from aiolock.testing._lock import LockContract
from aiolock.testing._once import OnceContract
from aiolock.testing._paths import PathsContract
from aiolock.testing._rates import RatesContract
from aiolock.testing._server import ServerContract
from aiolock.testing._shared import SharedContract
from aiolock.testing._shares import SharesContract


class StoreContract(
    LockContract,
    OnceContract,
    BoardContract,
    ServerContract,
    SharedContract,
    SharesContract,
    HandingOnContract,
    RatesContract,
    PathsContract,
):
    """The requirements of every store, one test for each, for a store's author to inherit.

    ::

        class TestMyStore(StoreContract):
            def store(self) -> Store:
                return MyStore("localhost")

    Each call of `store` makes another unopened link to one and the same server. pytest makes an
    object of the class for each test, so a fixture of the class may set up what `store` needs. The
    tests use names that nothing else uses. For a store that cannot count listeners, set
    ``counts_who_listens = False`` in the class; for one that does not report who holds a lock to a
    waiter that does not wait, ``reports_who_holds = False``.
    """
