"""For work whose objects all stay: to look for garbage among millions of them is in vain."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def not_looked_for() -> Iterator[None]:
    """No garbage is looked for meanwhile."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
