"""Texts that others have chosen, as a part of one line of ours."""

from __future__ import annotations


def plain(text: str) -> str:
    """A text that others have chosen, on one line and without control codes for a terminal."""
    return repr(text)[1:-1]


def one_line(error: BaseException) -> str:
    """The text of an error as a part of a sentence: some have several lines, and a full stop."""
    return " ".join(str(error).split()).rstrip(".")
