"""The labels of holders and waiters, posted at the store for clients that ask for a status.

A label in each command would make it longer, and most locks are released before anyone could ask.
So each client posts labels only for its acquisitions that last, with `Store.post`: in pages of 256
acquisitions, under names of a kind that nothing else uses. A client that asks for a status reads
the pages of the acquisitions in it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from aiolock._turns import turns
from aiolock.store import Participant, Posted, Status, Store
from aiolock.validation import LONGEST_LABEL, as_label

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
_PART: Final = 200
"""Parties whose pages are looked up in one go."""


class PostedLabel(NamedTuple):
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
        self.said = dict[int, PostedLabel]()
        self.version = 0
        self.due = 0.0


class Labels:
    """The posts of one client about its acquisitions; `publish` adds and refreshes them."""

    def __init__(
        self, store: Store, client: str, failed: Callable[[], None], lasts: Callable[[int], bool]
    ) -> None:
        """``failed`` is called when the store did not take a page, so that it is due sooner.

        ``lasts`` says whether the acquisition of a number waits or holds.
        """
        self._store = store
        self._client = client
        self._failed = failed
        self._lasts = lasts
        self._time = asyncio.get_running_loop().time
        self._pages = dict[int, _Page]()

    @property
    def due(self) -> float:
        """When `publish` is to be called again, by the loop's clock; infinity for never."""
        return min((page.due for page in self._pages.values()), default=float("inf"))

    def is_published(self, seq: int) -> bool:
        """Whether anything is posted about this acquisition."""
        page = self._pages.get(seq >> _PAGE)
        return page is not None and seq in page.said

    def set_label(self, seq: int, said: PostedLabel) -> None:
        """Post this about an acquisition, at the next `publish`."""
        page = self._pages.get(seq >> _PAGE)
        if page is None:
            page = self._pages[seq >> _PAGE] = _Page()
        page.said[seq] = said
        page.due = self._time()

    def publish(self, highest: int) -> Generator[int, None, None]:
        """Post the pages that are due, part by part; ``highest`` is the last number in use.

        An ended acquisition stays on its page until all acquisitions there have ended; its number
        is never used again.
        """
        now = self._time()
        for number, page in list(self._pages.items()):
            if page.due > now:
                continue
            yield 1 + len(page.said) // 2
            if any(map(self._lasts, page.said)):
                self._post(number, page, now)
            elif number < highest >> _PAGE:
                del self._pages[number]  # the store forgets it by itself
            else:
                page.due = now + REFRESHED  # later acquisitions may come to it

    def publish_again(self) -> None:
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
    take = turns().take
    pages = dict[str, dict[int, PostedLabel]]()
    for status in statuses:
        for parties in (status.holders, status.waiters):
            for start in range(0, len(parties), _PART):
                part = parties[start : start + _PART]
                await take(1 + len(part) // 8)
                for party in part:
                    pages.setdefault(_key(party.client, party.seq >> _PAGE), {})
    keys = list(pages)
    for start in range(0, len(keys), _TOGETHER):
        asked = dict[str, asyncio.Future[Posted]]()
        try:
            for key in keys[start : start + _TOGETHER]:
                await take(2)
                asked[key] = store.read(key)
            await asyncio.wait(asked.values())
        finally:
            for future in asked.values():
                future.cancel()  # has no effect if it is answered
        for key, answer in asked.items():
            pages[key] = await _read(answer)
    return [await _with_labels(status, pages) for status in statuses]


async def _read(answer: asyncio.Future[Posted]) -> dict[int, PostedLabel]:
    if answer.cancelled() or answer.exception() is not None:
        return {}
    value = answer.result().value
    await turns().take(1 + min(len(value), _LONGEST << _PAGE) // 100)
    try:
        said: dict[str, Any] = json.loads(value or "{}")
        return {
            int(seq): PostedLabel(int(task), bool(still), as_label(str(label), _LONGEST))
            for seq, (task, still, label, *_) in said.items()
        }
    except (AttributeError, TypeError, ValueError):
        return {}  # written by a later version


async def _with_labels(status: Status, pages: Mapping[str, Mapping[int, PostedLabel]]) -> Status:
    holders = await _known(status.holders, pages)
    waiters = await _known(status.waiters, pages)
    if holders is status.holders and waiters is status.waiters:
        return status
    return replace(status, holders=holders, waiters=waiters)


async def _known(
    parties: tuple[Participant, ...], pages: Mapping[str, Mapping[int, PostedLabel]]
) -> tuple[Participant, ...]:
    """The same parties, with what is said of them."""
    take, known, labelled = turns().take, list[Participant](), False
    for party in parties:
        said = pages[_key(party.client, party.seq >> _PAGE)].get(party.seq)
        if said is None:
            known.append(party)
        else:
            task = said.task if said.stands_still or not party.place else 0
            known.append(replace(party, label=said.label, task=task))
            labelled = True
        await take()
    return tuple(known) if labelled else parties


def _key(client: str, page: int) -> str:
    return f"client:{client}:{page}"
