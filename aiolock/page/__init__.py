"""A live page of holders and waiters: an ASGI application, to be mounted in one of yours.

::

    app.mount("/locks", aiolock.web(client, may_break=is_admin))

It needs no framework and no build step, and loads nothing from elsewhere. `web` makes it.
"""

from aiolock.page._app import Page, web
from aiolock.page._entrance import Entrance
from aiolock.page._guard import Permission

__all__ = ["Entrance", "Page", "Permission", "web"]
