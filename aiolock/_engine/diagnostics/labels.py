"""The labels of holders and waiters, posted at the store for clients that ask for a status.

A label in each command would make it longer, and most locks are released before anyone could ask
for their status. So each client posts labels only for its acquisitions that last, with
`Post`: in pages of 256 acquisitions, under names of a kind that nothing else uses. A client
that asks for a status reads the pages of the acquisitions in it, by `labelled`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from aiolock._futures import failure_of, succeeded
from aiolock._turns import turns
from aiolock.protocol import Participant, Post, Posted, ReadPosted, Status
from aiolock.store import Store
from aiolock.validation import LONGEST_LABEL, as_label

_PAGE: Final = 8
"""The number of an acquisition's page is the acquisition's number without its lowest bits."""
KEPT: Final = 300.0
"""Seconds for which the store remembers a page that is not posted again."""
REFRESHED: Final = 120.0
"""Seconds after which a page is posted again, while any acquisition on it lasts."""
_RETRIED: Final = 5.0
"""Seconds after which a page is posted again that the store did not store."""
_LONGEST: Final = 2 * LONGEST_LABEL + 2
"""The longest label that is shown: the client's and the acquisition's. A client of another version
may post longer ones."""
_TOGETHER: Final = 100
"""Pages that are read at a time."""
_PART: Final = 200
"""Holders or waiters whose pages are collected between two pauses."""


class PostedLabel(NamedTuple):
    """The label of one acquisition, as it is posted."""

    task: int
    """The number of its task among those of its client; 0 if unknown."""
    stands_still: bool
    """Whether its task awaits it, and so does nothing else meanwhile."""
    label: str


class _Page:
    """One page of a client: the labels of its acquisitions with 256 consecutive numbers."""

    __slots__ = ("due", "labels", "version")

    def __init__(self) -> None:
        self.labels = dict[int, PostedLabel]()
        self.version = 0
        self.due = 0.0


class Labels:
    """The posts of one client about its acquisitions; `publish` adds and refreshes them."""

    def __init__(
        self, store: Store, client: str, failed: Callable[[], None], lasts: Callable[[int], bool]
    ) -> None:
        """``failed`` is called when a page could not be posted, and so is due sooner than planned.

        ``lasts`` returns whether the acquisition of a number still waits or holds.
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
        """Whether this acquisition has a label."""
        page = self._pages.get(seq >> _PAGE)
        return page is not None and seq in page.labels

    def set_label(self, seq: int, label: PostedLabel) -> None:
        """Post this label of an acquisition, at the next `publish`."""
        page = self._pages.get(seq >> _PAGE)
        if page is None:
            page = self._pages[seq >> _PAGE] = _Page()
        page.labels[seq] = label
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
            yield 1 + len(page.labels) // 2
            if any(map(self._lasts, page.labels)):
                self._post(number, page, now)
            elif number < highest >> _PAGE:
                del self._pages[number]  # the store forgets it by itself
            else:
                page.due = now + REFRESHED  # later acquisitions may have their numbers on it

    def publish_again(self) -> None:
        """Post all pages again: the store may have forgotten them."""
        for page in self._pages.values():
            page.due = self._time()

    def _post(self, number: int, page: _Page, now: float) -> None:
        page.version += 1
        page.due = now + REFRESHED
        posted = self._store.submit(
            Post(
                page_key(self._client, number),
                page.version,
                token="",
                declared=0,
                value=json.dumps(page.labels, separators=(",", ":")),
                remember=int(KEPT * 1000),
            )
        )
        posted.add_done_callback(partial(self._posted, page))

    def _posted(self, page: _Page, posted: asyncio.Future[int]) -> None:
        if failure_of(posted) is not None:
            # No error for anyone: labels are only shown to people.
            page.due = min(page.due, self._time() + _RETRIED)
            self._failed()


async def labelled(store: Store, statuses: Sequence[Status]) -> list[Status]:
    """The statuses, with the labels of their holders and waiters.

    Where a page cannot be read, its labels are missing: a status is useful without labels.
    """
    take = turns().take
    pages = dict[str, dict[int, PostedLabel]]()
    for status in statuses:
        for participants in (status.holders, status.waiters):
            for start in range(0, len(participants), _PART):
                part = participants[start : start + _PART]
                await take(1 + len(part) // 8)
                for each in part:
                    pages.setdefault(_place(each)[0], {})
    keys = list(pages)
    for start in range(0, len(keys), _TOGETHER):
        asked = dict[str, asyncio.Future[Posted]]()
        try:
            for key in keys[start : start + _TOGETHER]:
                await take(2)
                asked[key] = store.submit(ReadPosted(key))
            await asyncio.wait(asked.values())
        finally:
            for future in asked.values():
                future.cancel()  # has no effect if it is answered
        for key, answer in asked.items():
            pages[key] = await _read(answer)
    return [await _with_labels(status, pages) for status in statuses]


async def _read(answer: asyncio.Future[Posted]) -> dict[int, PostedLabel]:
    if not succeeded(answer):
        return {}
    value = answer.result().value
    await turns().take(1 + min(len(value), _LONGEST << _PAGE) // 100)
    try:
        posted: dict[str, Any] = json.loads(value or "{}")
        return {
            int(seq): PostedLabel(int(task), bool(still), as_label(str(label), _LONGEST))
            for seq, (task, still, label, *_) in posted.items()
        }
    except (AttributeError, TypeError, ValueError):
        return {}  # written by a later version, in a form that this one cannot read


async def _with_labels(status: Status, pages: Mapping[str, Mapping[int, PostedLabel]]) -> Status:
    holders = await _add_labels(status.holders, pages)
    waiters = await _add_labels(status.waiters, pages)
    if holders is status.holders and waiters is status.waiters:
        return status
    return replace(status, holders=holders, waiters=waiters)


async def _add_labels(
    participants: tuple[Participant, ...], pages: Mapping[str, Mapping[int, PostedLabel]]
) -> tuple[Participant, ...]:
    """The same participants, with the labels and tasks that their clients have posted."""
    take, found, labelled = turns().take, list[Participant](), False
    for each in participants:
        page, seq = _place(each)
        posted = pages[page].get(seq)
        if posted is None:
            found.append(each)
        else:
            # The task of a waiter counts only if it does nothing else: otherwise it may release
            # what it holds while it waits, and is in no deadlock.
            task = posted.task if posted.stands_still or not each.place else 0
            found.append(replace(each, label=posted.label, task=task))
            labelled = True
        await take()
    return tuple(found) if labelled else participants


def _place(party: Participant) -> tuple[str, int]:
    """The page with its label, and its number there."""
    if party.detached:  # a page of its own, by its fence: see `detaching`
        return page_key("", party.fence), 0
    return page_key(party.client, party.seq >> _PAGE), party.seq


def page_key(client: str, page: int) -> str:
    """The name under which a page is posted."""
    return f"client:{client}:{page}"
