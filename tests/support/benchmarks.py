"""The benchmarks, as small as they can be, with this Python."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.scenarios import Size

TINY = Size(
    rounds=1,
    pings=20,
    operations=20,
    each=2,
    crowds={3: 2, 200: 1},
    yielding=(3, 2),
    processes=(2, 2, 2),
    limit=20,
    chain=3,
    waits=1,
    lines=(6,),
    watch=0.05,
    semaphore=(12, 3, 2),
    readers=(4, 5),
    leases=5,
    patience=20,
)
HERE = Path(sys.executable)
