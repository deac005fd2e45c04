"""Letters: the pushes for another client, put into its mailbox with the swap they follow from."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from aiolock.stores._codec import UNREADABLE, decode_push
from aiolock.stores._effects import NameEvent


class Letter(NamedTuple):
    """The pushes about one name, for one client."""

    client: str
    lease: int
    """The lease of its presence: the letter is for the client as long as that lives."""
    text: bytes


def letter(client: str, lease: int, name: str, pushes: Sequence[str]) -> Letter:
    """Such a letter."""
    return Letter(client, lease, json.dumps([name, *pushes]).encode())


def events_in(text: bytes) -> Iterator[NameEvent]:
    """The events in a letter that can be read; a later version may have written others."""
    try:
        content: list[Any] = json.loads(text)
        name, pushes = content[0], content[1:]
    except (*UNREADABLE, IndexError):
        return
    for push in pushes:
        with contextlib.suppress(*UNREADABLE):
            yield decode_push(push, name).event
