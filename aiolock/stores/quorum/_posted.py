"""The posted value of a name, which a majority of the members keeps."""

from __future__ import annotations

import asyncio
from typing import Final

from aiolock._futures import retrieve
from aiolock.protocol import Post, Posted, ReadPosted
from aiolock.stores._member import Kept
from aiolock.stores.quorum._membership import Membership

_A_MOMENT: Final = 1_000
"""Milliseconds: a value that ends sooner than this is not written back."""


class PostedValues:
    """Posted values, as one client reads and writes them."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership

    def post(self, operation: Post) -> asyncio.Future[int]:
        """See `Post`."""
        return self._post(operation.name, operation.count, operation.value, operation.remember)

    def _post(self, name: str, count: int, value: str, remember: int) -> asyncio.Future[int]:
        return self._membership.ask(
            lambda member, on_reply: member.post(name, count, value, remember, on_reply),
            lambda said: max(said.values()),
        )

    def read(self, operation: ReadPosted) -> asyncio.Future[Posted]:
        """See `ReadPosted`."""
        name = operation.name
        said: asyncio.Future[dict[int, Kept]] = self._membership.ask(
            lambda member, on_reply: member.read(name, on_reply), dict
        )
        return asyncio.ensure_future(self._read(name, said))

    async def _read(self, name: str, asked: asyncio.Future[dict[int, Kept]]) -> Posted:
        """The highest count of a majority; a majority has to have it before the client gets it.

        It is written back to members that have less in any case: they may have lost their memory. A
        value that ends in a moment is not written back, because copies of copies would keep it
        alive.
        """
        said = await asked
        best = max(said.values(), key=lambda kept: kept.count)
        behind = sum(each.count < best.count for each in said.values())
        if behind and best.left > _A_MOMENT:
            told = self._post(name, best.count, best.value, best.left)
            if len(said) - behind < self._membership.quorum:
                await told
            else:
                told.add_done_callback(retrieve)
        return Posted(best.count, best.value)
