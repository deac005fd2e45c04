"""Greenlets: several of them run in one thread, and aiolock would take them for one owner."""

from __future__ import annotations

import sys
from typing import Any


def check_no_greenlets() -> None:
    """`RuntimeError` where gevent or eventlet has patched Python, or the caller is in a greenlet.

    A patched `threading` gives no thread for aiolock's event loop. Without that, the greenlets of a
    thread all are that thread: they would share what one of them holds.
    """
    gevent: Any = sys.modules.get("gevent.monkey")
    eventlet: Any = sys.modules.get("eventlet.patcher")
    if gevent is None and eventlet is None and "gevent" not in sys.modules:
        return
    if gevent is not None and gevent.saved:
        library, how = "gevent", "has monkey-patched this process (gevent.monkey)"
    elif eventlet is not None and eventlet.already_patched:
        library, how = "eventlet", "has monkey-patched this process (eventlet.monkey_patch)"
    elif sys.modules["greenlet"].getcurrent().parent is not None:
        library, how = "gevent" if "gevent" in sys.modules else "eventlet", "runs this greenlet"
    else:
        return
    raise RuntimeError(
        f"{library} {how}, and aiolock.sync needs real threads, each with one owner of locks: use"
        " workers with threads (gunicorn -k gthread, celery --pool prefork or threads), or"
        " aiolock.connect() in a program of asyncio"
    )
