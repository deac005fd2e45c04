"""What may share the connection of a subscription: another channel, or a question."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from aiolock.stores.redis._wire import Wire

OnMessage = Callable[[Any], None]
"""A function that gets one message of the server, as it was received."""


class Companion(Protocol):
    """Something else that the connection of a subscription is used for."""

    def connected(self, wire: Wire) -> None:
        """There is a new connection: what is written now comes before SUBSCRIBE."""

    def disconnected(self) -> None:
        """There is no connection any more."""

    def received(self, message: Any, pass_on: OnMessage) -> None:
        """Deal with a message of the server, or pass it on to the subscription."""
