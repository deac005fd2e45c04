"""The name of a share as a part of a waiter's text: letters, digits, ``-`` and ``_`` only."""

from __future__ import annotations

import base64


def coded(share: str) -> str:
    """A share, as it is written."""
    return base64.urlsafe_b64encode(share.encode()).decode().rstrip("=")


def decoded(text: str) -> str:
    """The share that was written; for what is none of ours, one that has the text as its name."""
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()
    except ValueError:
        return f"%{text}"
