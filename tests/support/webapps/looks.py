"""Who looks whether a client is still there, seen by a test that waits for it."""

from __future__ import annotations

import pytest

from aiolock.integrations._asgi import Inbox

LOOKING = {"starlette", "fastapi", "litestar"}
"""Frameworks whose integration receives, to see that: what else comes then is for the handler."""


class Looks:
    """All inboxes of which somebody has begun to look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._inboxes = list[Inbox]()
        gone = Inbox.gone

        async def seen(inbox: Inbox) -> None:
            self._inboxes.append(inbox)
            await gone(inbox)

        monkeypatch.setattr(Inbox, "gone", seen)

    @property
    def kept(self) -> int:
        """Bytes that are kept for the handlers."""
        return sum(len(message["body"]) for each in self._inboxes for message in each._kept)
