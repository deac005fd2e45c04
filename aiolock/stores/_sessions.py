"""The sessions of clients that a store may have, and with which their holds live."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from aiolock.protocol import Form

FOREVER: Final = 1 << 52
"""The end (ms) of a hold that lives with a session, before its ttl is added: no clock comes there.
"""


class Session(NamedTuple):
    """What a hold lives with at a store that has sessions: it ends when its session has ended.

    A session ends once, and never comes back: a hold that nobody has removed meanwhile would come
    back with it.
    """

    client: str
    text: str
    """The store's own id of it, among those of the client; never empty."""


class Sessions(Protocol):
    """The sessions of a store's clients, as far as the store knows them when a step is run.

    A store that has sessions, such as keys with a lease of the database's own, needs no clock for
    the holds that live with them, and no write to renew those.
    """

    def is_alive(self, session: Session) -> bool:
        """Whether it has not ended. A hold that lives with it ends with it."""
        ...

    def session_for(self, client: str, form: Form, ttl: int, *, claim: bool) -> str:
        """The session that a hold of this client will live with; empty: it ends by the clock.

        It is this client's own hold, of ``ttl`` ms, unless it is a ``claim``: the first lease of a
        pushed grant. A `Form.fixed` hold is not renewed, so it needs a session that is not kept
        alive, or the clock.
        """
        ...
