"""One of the applications as a process of its own, served as its users serve it.

``python -m tests.support.webapps FRAMEWORK URL PREFIX PORT GRACE``: its handlers hold the lock for
ever.
"""

from __future__ import annotations

import sys
from functools import partial

import aiolock
from tests.support.webapps.bodies import Bodies
from tests.support.webapps.servers import build


def with_aiohttp(bodies: Bodies, port: int, grace: int) -> None:
    """As ``web.run_app``."""
    from aiohttp import web

    app = build("aiohttp", bodies)
    web.run_app(app, host="127.0.0.1", port=port, shutdown_timeout=grace, print=None)


def with_uvicorn(framework: str, bodies: Bodies, port: int, grace: int) -> None:
    """As the command ``uvicorn``."""
    import uvicorn

    # A factory: Django's client belongs to the loop.
    app = partial(build, framework, bodies)
    uvicorn.run(app, factory=True, port=port, timeout_graceful_shutdown=grace)


def main(framework: str, url: str, prefix: str, port: int, grace: int) -> None:
    """Serve it until SIGTERM."""
    bodies = Bodies(aiolock.connect(url, prefix=prefix))
    if framework == "aiohttp":
        with_aiohttp(bodies, port, grace)
    else:
        with_uvicorn(framework, bodies, port, grace)


if __name__ == "__main__":
    _, framework, url, prefix, port, grace = sys.argv
    main(framework, url, prefix, int(port), int(grace))
