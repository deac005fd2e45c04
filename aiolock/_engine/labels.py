"""The labels of holders and waiters, posted at the store for clients that ask for a status.

A label in each command would make it longer, and most locks are released before anyone could ask.
So each client posts labels only for its acquisitions that last, with `Store.post`: in pages of 256
acquisitions, under names of a kind that nothing else uses. A client that asks for a status reads
the pages of the acquisitions in it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from aiolock._engine.policy import LONGEST_LABEL, as_label
from aiolock.store import Party, Posted, Status, Store

_PAGE: Final = 8
"""The number of an acquisition's page is the acquisition's number without its lowest bits."""
KEPT: Final = 300.0
"""Seconds for which the store remembers a page that is not posted again."""
REFRESHED: Final = 120.0
"""Seconds after which a page is posted again, while any acquisition on it lasts."""
_RETRIED: Final = 5.0
"""Seconds after which a page that the store did not take is posted again."""
_LONGEST: Final = 2 * LONGEST_LABEL + 2
"""The longest label that is shown: the client's and the acquisition's. Another may post more."""
_TOGETHER: Final = 100
"""Pages that are read at a time."""


class Said(NamedTuple):
    """The post about one acquisition."""

    task: int
    """The number of its task among those of its client; 0 if unknown."""
    stands_still: bool
    """Whether its task does nothing else while it waits."""
    label: str


class _Page:
    """One page of a client."""

    __slots__ = ("due", "said", "version")

    def __init__(self) -> None:
        self.said = dict[int, Said]()
        self.version = 0
        self.due = 0.0


class Labels:
    """The posts of one client about its acquisitions; `put_up` adds and refreshes them."""

    def __init__(self, store: Store, client: str, failed: Callable[[], None]) -> None:
        """``failed`` is called when the store did not take a page, so that it is due sooner."""
        self._store = store
        self._client = client
        self._failed = failed
        self._time = asyncio.get_running_loop().time
        self._pages = dict[int, _Page]()

    @property
    def due(self) -> float:
        """When `put_up` is to be called again, by the loop's clock; infinity for never."""
        return min((page.due for page in self._pages.values()), default=float("inf"))

    def knows(self, seq: int) -> bool:
        """Whether anything is posted about this acquisition."""
        page = self._pages.get(seq >> _PAGE)
        return page is not None and seq in page.said

    def put_up(self, said: Mapping[int, Said], lasting: Iterable[int]) -> None:
        """Post ``said`` about its acquisitions; ``lasting`` has the numbers of all that last.

        An ended acquisition stays on its page until all acquisitions there have ended; its number
        is never used again.
        """
        now = self._time()
        lasts = {seq >> _PAGE for seq in lasting}
        for number in self._pages.keys() - lasts:
            del self._pages[number]  # the store forgets it by itself
        for seq, each in said.items():
            page = self._pages.get(seq >> _PAGE)
            if page is None:
                page = self._pages[seq >> _PAGE] = _Page()
            page.said[seq] = each
            page.due = now
        for number, page in self._pages.items():
            if page.due <= now:
                self._post(number, page, now)

    def forgotten(self) -> None:
        """The store may have forgotten all pages."""
        for page in self._pages.values():
            page.due = self._time()

    def _post(self, number: int, page: _Page, now: float) -> None:
        page.version += 1
        page.due = now + REFRESHED
        posted = self._store.post(
            _key(self._client, number),
            page.version,
            token="",
            declared=0,
            value=json.dumps(page.said, separators=(",", ":")),
            remember=int(KEPT * 1000),
        )
        posted.add_done_callback(partial(self._posted, page))

    def _posted(self, page: _Page, posted: asyncio.Future[int]) -> None:
        if not posted.cancelled() and posted.exception() is not None:
            # The caller needs no error: labels are not essential.
            page.due = min(page.due, self._time() + _RETRIED)
            self._failed()


async def labelled(store: Store, statuses: Sequence[Status]) -> list[Status]:
    """The statuses, with the labels of their holders and waiters.

    Those whose page cannot be read stay as they are: a status is useful without labels.
    """
    pages: dict[str, dict[int, Said]] = {
        _key(party.client, party.seq >> _PAGE): {}
        for status in statuses
        for party in (*status.holders, *status.waiters)
    }
    keys = list(pages)
    for start in range(0, len(keys), _TOGETHER):
        asked = {key: store.read(key) for key in keys[start : start + _TOGETHER]}
        try:
            await asyncio.wait(asked.values())
        finally:
            for future in asked.values():
                future.cancel()  # has no effect if it is answered
        for key, answer in asked.items():
            pages[key] = _read(answer)
    return [_with_labels(status, pages) for status in statuses]


def _read(answer: asyncio.Future[Posted]) -> dict[int, Said]:
    if answer.cancelled() or answer.exception() is not None:
        return {}
    try:
        said: dict[str, Any] = json.loads(answer.result().value or "{}")
        return {
            int(seq): Said(int(task), bool(still), as_label(str(label), _LONGEST))
            for seq, (task, still, label, *_) in said.items()
        }
    except (AttributeError, TypeError, ValueError):
        return {}  # written by a later version


def _with_labels(status: Status, pages: Mapping[str, Mapping[int, Said]]) -> Status:
    def known(party: Party) -> Party:
        said = pages[_key(party.client, party.seq >> _PAGE)].get(party.seq)
        if said is None:
            return party
        task = said.task if said.stands_still or not party.place else 0
        return replace(party, label=said.label, task=task)

    return replace(
        status,
        holders=tuple(known(party) for party in status.holders),
        waiters=tuple(known(party) for party in status.waiters),
    )


def _key(client: str, page: int) -> str:
    return f"client:{client}:{page}"
