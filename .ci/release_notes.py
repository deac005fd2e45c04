#!/usr/bin/env python3
"""release_notes.py TAG: prints the section of the changelog for a tag, as the note of its release.

A tag is v1.2.3. Ends with 1 and says why if it, the version in the package and the changelog do not
agree.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def notes(tag: str, changelog: str, source: str) -> str:
    """The section; `ValueError` if something does not fit."""
    version = re.search(r'^__version__\s*=\s*"([^"]+)"', source, re.MULTILINE)
    if version is None or tag != f"v{version[1]}":
        found = version[1] if version else "none"
        raise ValueError(f"the tag is {tag}, and __version__ in aiolock/__init__.py is {found}")
    number = re.escape(tag[1:])
    section = re.search(
        rf"^## {number} \((.*?)\)\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL
    )
    if section is None:
        raise ValueError(f"CHANGELOG.md has no section '## {tag[1:]} (YYYY-MM-DD)'")
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", section[1]):
        raise ValueError(
            f"the section of {tag[1:]} in CHANGELOG.md has no date, but ({section[1]})"
        )
    return section[2].strip() + "\n"


def main() -> int:
    """Print it; returns the exit code."""
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    source = (ROOT / "aiolock/__init__.py").read_text("utf-8")
    try:
        sys.stdout.write(notes(sys.argv[1], changelog, source))
    except ValueError as error:
        sys.stderr.write(f"release_notes: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
