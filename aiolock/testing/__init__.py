"""For tests: a suite that every store passes, and a store that fails on purpose.

**Testing code that uses aiolock.** No server is needed: ``aiolock.connect("memory://")`` keeps the
locks in the event loop that opened it. Clients of one `~aiolock.stores.memory.MemoryServer` exclude
each other like those of one Redis, so two of them represent two processes::

    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        async with theirs.lock("order:42"):
            assert await handle_order(ours, 42) == "busy"

``MemoryServer(clock=...)`` has a clock of your own, in Unix seconds: set it forward, and leases end
at the server, as they do for a holder that is cut off. Waits of the library itself (a timeout, the
next renewal) run on the event loop's clock, and by default the server does so, too. So on a loop
whose time you control, hours of locking pass in no time.

**Testing what your code does when the store fails.** Wrap a store in a `FaultyStore`.

**Testing that every lease is released.** `dropped_leases` lists those that were not.

**Writing a store.** Have a test class inherit from `StoreContract`. It needs pytest with
`pytest-asyncio <https://pytest-asyncio.readthedocs.io>`_, in whichever mode, or any other way to
run async tests. A store that answers with `~aiolock.store.Queued.before` passes `RunsContract`,
too; one on compare-and-swap `SwapContract`, and one that knows clients by sessions
`SessionContract`.
"""

from aiolock._dropped import DroppedLease, dropped_leases
from aiolock.testing._board import BoardContract
from aiolock.testing._contract import StoreContract
from aiolock.testing._faulty import FaultyStore, Operation
from aiolock.testing._lock import LockContract
from aiolock.testing._once import OnceContract
from aiolock.testing._peer import Peer
from aiolock.testing._rates import RatesContract
from aiolock.testing._readers import ReadersContract
from aiolock.testing._runs import RunsContract
from aiolock.testing._sessions import SessionContract
from aiolock.testing._swaps import SwapContract, SwapFaults

__all__ = [
    "BoardContract",
    "DroppedLease",
    "FaultyStore",
    "LockContract",
    "OnceContract",
    "Operation",
    "Peer",
    "RatesContract",
    "ReadersContract",
    "RunsContract",
    "SessionContract",
    "StoreContract",
    "SwapContract",
    "SwapFaults",
    "dropped_leases",
]
