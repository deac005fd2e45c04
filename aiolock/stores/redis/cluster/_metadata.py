"""The metadata of clients, their hosts and processes, each of which one master has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from aiolock._turns import turns
from aiolock.protocol import Participant
from aiolock.stores.redis._codec import RESERVED
from aiolock.stores.redis._replies import said_of

_MOST_KNOWN: Final = 1024
_TOGETHER: Final = 64
"""Clients that are asked for at a time."""


class Metadata:
    """The metadata of clients, kept once they are known."""

    def __init__(self, ask: Callable[[str], asyncio.Future[Any]]) -> None:
        """``ask`` asks for the metadata of one client."""
        self._ask = ask
        self._known: dict[str, bytes] = {}
        """By the ids of the clients."""

    async def load(self, parties: Sequence[Participant]) -> None:
        """Fetch the metadata of these clients; those of nodes that do not answer are left out."""
        take, unknown = turns().take, dict[str, None]()
        for each in parties:
            await take()
            if not each.host and each.client != RESERVED and each.client not in self._known:
                unknown[each.client] = None
        asked = list(unknown)
        for start in range(0, len(asked), _TOGETHER):
            some = asked[start : start + _TOGETHER]
            answers = await asyncio.gather(*map(self._ask, some), return_exceptions=True)
            for client, metadata in zip(some, answers, strict=True):
                # Without an answer it stays unknown: it is for people only.
                if isinstance(metadata, bytes) and metadata:
                    if len(self._known) >= _MOST_KNOWN:
                        self._known.clear()
                    self._known[client] = metadata

    async def named(self, parties: Sequence[Participant]) -> tuple[Participant, ...]:
        """The same participants, with the metadata of their clients, as far as it was loaded."""
        take, named = turns().take, list[Participant]()
        for each in parties:
            await take()
            known = None if each.host or each.client == RESERVED else self._known.get(each.client)
            named.append(each if known is None else said_of(each, known))
        return tuple(named)
