"""The adoption of a detached lease by a thread."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import aiolock
from aiolock.sync._body import Opened
from aiolock.sync._lease import Lease
from aiolock.sync._locks import Taking


class _Adopting:
    """The adoptions of a thread's task: each is made when it begins, in the loop."""

    def __init__(self, adopt: Callable[[str], aiolock.Adoption]) -> None:
        self._adopt = adopt
        self._begun: aiolock.Adoption | None = None

    async def __aenter__(self) -> aiolock.Lease:
        begun = self._adopt("")
        lease = await begun.__aenter__()
        self._begun = begun  # not before: another thread may try the same in vain
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._begun is not None
        await self._begun.__aexit__(kind, error, traceback)


class Adoption(Taking[aiolock.Lease, Lease]):
    """The adoption of a detached lease: as `aiolock.Adoption`, for threads.

    Made by `LockClient.adopt`. ``with`` adopts it, and releases it at the end; `acquire` returns
    its `Lease`. It works once: `TokenSpent` from then on.
    """

    __slots__ = ("_adopt",)

    def __init__(self, client: Opened, adopt: Callable[[str], aiolock.Adoption]) -> None:
        super().__init__(client, _Adopting(adopt), Lease)
        self._adopt = adopt

    def acquire(self) -> Lease:
        """Adopt it, and return its lease; interrupted (Ctrl-C), it is released."""
        taken = self._take(self._adopt)
        assert taken is not None
        return taken
