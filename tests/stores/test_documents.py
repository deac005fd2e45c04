"""The document of a name, and what a store keeps of it in memory between two operations."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import aiolock
from aiolock.protocol import (
    WAS_HOLDER,
    Acquire,
    Form,
    Granted,
    ReadPosted,
    ReadStatus,
    Release,
    Renewal,
    WaiterId,
)
from aiolock.stores.authors import Document, Kept, Part, decode
from aiolock.stores.documents import DocumentStore
from examples.document_store import Documents
from tests.support.worlds import virtual

pytestmark = pytest.mark.one_loop

LOCK = Form(claim=3000)
NOW = 1_790_000_000_000_000
TTL = 30_000
WAITERS = [WaiterId(client, number) for number in range(3) for client in ("ada", "bob", "cy")]


class Name:
    """The document of one name, decoded each time, or kept in memory."""

    def __init__(self, *, keeps: bool) -> None:
        self.keeps = keeps
        self.text = ""
        self.kept: str | Kept = ""
        self.letters: list[Any] = []

    def run(self, part: Part, client: str, now: int) -> Any:
        """Carry out one part and save what has changed; the answer."""
        living = dict.fromkeys(["ada", "bob", "cy"], "1 here")
        document = Document("x", self.kept, client, now, living, again=False)
        answer = document.run(part)
        self.letters += document.pushes, sorted(document.take_mail().items())
        if (changed := document.changed()) is not None:
            self.text = changed.text
        self.kept = document.kept() if self.keeps else self.text
        return answer


def test_document_kept_in_memory_is_as_if_it_were_decoded_each_time() -> None:
    """Whatever is run on it, the answers, the texts and the mail are the same."""
    chance = random.Random(1)
    decoded, kept = Name(keeps=False), Name(keeps=True)
    fences = dict[WaiterId, int]()
    for number in range(600):
        waiter = chance.choice(WAITERS)
        fence = fences.get(waiter, 0)
        parts: list[Part] = [
            Acquire("x", waiter, LOCK, TTL),
            Acquire("x", waiter, LOCK, TTL),
            Release("x", waiter, LOCK, fence),
            Release("x", waiter, LOCK, 0),
            Renewal("x", waiter, LOCK, fence, TTL),
            ReadStatus("x"),
            ReadPosted("x"),
        ]
        part = chance.choice(parts)
        now = NOW + number * chance.choice([1000, 20_000_000])
        answers = [name.run(part, waiter.client, now) for name in (decoded, kept)]
        assert answers[0] == answers[1]
        if isinstance(answers[0], Granted):
            fences[waiter] = answers[0].fence
        assert decoded.text == kept.text
    assert decoded.letters == kept.letters


def test_document_kept_in_memory_is_used_once() -> None:
    """What was run on it may not have been saved: so it is not run on again."""
    name = Name(keeps=True)
    assert isinstance(name.run(Acquire("x", WAITERS[0], LOCK, TTL), "ada", NOW), Granted)
    kept = name.kept
    assert name.run(Release("x", WAITERS[0], LOCK, NOW), "ada", NOW + 1) == WAS_HOLDER
    with pytest.raises(RuntimeError, match="decode"):
        Document("x", kept, "ada", NOW, {}, again=False)


def test_document_that_was_never_saved_is_not_saved_for_being_read() -> None:
    """A name that is only looked at leaves nothing, however long that goes on."""
    name = Name(keeps=True)
    for minute in range(3):
        _ = name.run(ReadStatus("x"), "ada", NOW + minute * 61_000_000)
    assert not name.text


async def test_document_store_decodes_no_text_that_it_has_saved_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One client alone on a name decodes its document once."""
    decoded = list[str]()

    def counted(text: str) -> Any:
        decoded.append(text)
        return decode(text)

    monkeypatch.setattr("aiolock.stores._document.decode", counted)
    database = Documents(latency=0)
    async with (
        aiolock.connect(DocumentStore(database)) as client,
        aiolock.connect(DocumentStore(database)) as other,
    ):
        for _ in range(5):
            async with client.lock("x"):
                pass
        assert not decoded
        async with other.lock("x"):
            assert await client.lock("x").locked()
        assert len(decoded) == 1  # that it is held; what is idle, as before, has no state


@virtual
async def test_document_store_that_loses_each_race_pauses_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each try in vain delays the others, so there are few; and the database is not to blame."""
    monkeypatch.setattr(random, "uniform", lambda _, most: most)
    tries = list[str]()

    class Faster(Documents):
        async def swap(self, key: str, value: str, version: int, keep: float) -> bool:
            tries.append(value)
            await asyncio.sleep(0.05)
            return False

    async with aiolock.connect(DocumentStore(Faster(latency=0))) as client:
        with pytest.raises(aiolock.StoreError, match="others were faster, each time") as raised:
            await client.lock("x").acquire()
    assert isinstance(raised.value.__cause__, TimeoutError)
    assert 10 < len(tries) < 40
