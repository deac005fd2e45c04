"""The presence of a client at a server: the calls by which it says who it is, and who listens."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Final

from aiolock.stores.redis._names import Names
from aiolock.stores.redis._protocol import PROTOCOL, SPOKEN
from aiolock.stores.redis._scripts import bulk

FORGET_CLIENT: Final = 3_600_000
"""Milliseconds for which a client's host and process are kept; written again twice as often."""

Arguments = tuple[int, bytes]
"""The number of a call's arguments, and the arguments."""


class Presence:
    """The arguments of the calls of one client about itself."""

    def __init__(
        self,
        names: Names,
        client: str,
        *,
        own_keys: Callable[[], Sequence[str]] | None = None,
        is_home: Callable[[], bool] | None = None,
        second_channel: Callable[[], str] | None = None,
    ) -> None:
        """``own_keys`` gives the keys of this server itself, if it is one of several; ``is_home``
        whether it is the one that keeps the client's host and process. ``second_channel`` gives the
        channel on which the client's push to itself comes instead, if there is one.
        """
        self._names = names
        self._client = client
        self._own_keys = own_keys
        self._is_home = is_home
        self._second_channel = second_channel

    def own_keys(self) -> Sequence[str]:
        """The keys of this server itself: the one with the protocols in use."""
        return [self._names.protocols] if self._own_keys is None else self._own_keys()

    @property
    def is_home(self) -> bool:
        """Whether the client's host and process are kept here."""
        return self._is_home is None or self._is_home()

    def present(self) -> Arguments:
        """Of `PRESENCE`: count our listeners, and push to ourselves."""
        keys, channel = self.own_keys(), self._names.channels + self._client
        values = (len(keys), *keys, channel, "p", SPOKEN, PROTOCOL)
        second = self._second_channel() if self._second_channel is not None else ""
        return _encoded(*values, second) if second else _encoded(*values)

    def introduction(self) -> Arguments:
        """Of `OPEN`: try what we need, and write our host and process."""
        keys = [*self._names.tried(self._client), self._names.client(self._client)]
        return _encoded(4, *keys, f"{socket.gethostname()} {os.getpid()}", FORGET_CLIENT)

    def farewell(self) -> Arguments:
        """Of `PRESENCE`: forget our host and process.

        No push to ourselves: it would be unread when the subscription ends.
        """
        return _encoded(1, self._names.client(self._client), self._names.channels, "p", 1, "")


def _encoded(*values: object) -> Arguments:
    return len(values), b"".join(map(bulk, values))
