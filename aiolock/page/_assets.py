"""The files of the page, as they are sent."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import Final

from aiolock.page._http import Answer

_MEDIA: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_FIRST: Final = "index.html"


@cache
def assets() -> Mapping[str, Answer]:
    """The files by their paths within the page; each is read once."""
    found = dict[str, Answer]()
    for file in files("aiolock.page").joinpath("static").iterdir():
        media = _MEDIA.get(PurePath(file.name).suffix)
        if media is not None:
            path = "/" if file.name == _FIRST else f"/{file.name}"
            found[path] = Answer(file.read_bytes(), media)
    return found
