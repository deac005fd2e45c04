"""Each safeguard is taken out, one at a time, and then a test must fail.

A safeguard without a test that misses it is either not needed or not tested. The tables are in
`ablations/`; ``docs/ablations.md`` shows them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import aiolock
from tests.proof.safeguards import Safeguard, markdown, tables
from tests.support import ablated
from tests.support.selection import ON_THE_TREE

PACKAGE = Path(aiolock.__file__).parent
ROOT = ablated.ROOT
TRIES = 3
"""How often a test may pass: where it is slow, on a busy machine, what the safeguard is for may not
come up."""
CONTROL = "ABLATE_NOTHING" in os.environ
"""By hand, after changes to tests that wait: nothing is taken out, and then each test must pass.

A test whose time is too short here would fail whatever is taken out, and show nothing.
"""


SAFEGUARDS = [safeguard for table in tables().values() for safeguard in table]


@pytest.mark.skipif(not ON_THE_TREE, reason="on the tree only: it is the same source")
@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda s: s.name.replace(" ", "_"))
def test_safeguard_removed_fails_its_named_test(safeguard: Safeguard, tmp_path: Path) -> None:
    """The test that is named passes with the safeguard, elsewhere, and fails without it, here."""
    source = (PACKAGE / safeguard.file).read_text("utf-8")
    assert source.count(safeguard.lines) == 1, "the safeguard has moved: bring the table up to date"
    changed = source if CONTROL else source.replace(safeguard.lines, safeguard.without)
    ablated.package_with(PACKAGE, tmp_path / "aiolock", safeguard.file, changed)
    code, printed, tries = 0, "", 1 if CONTROL else TRIES
    while code == 0 and tries > 0:
        code, printed = ablated.run(safeguard.test, tmp_path, seconds=safeguard.seconds, limit=55)
        tries -= 1
    if CONTROL:
        assert code == 0, f"it fails whatever the source: {code}\n{printed[-4000:]}"
    else:
        assert code == 1, f"nobody misses it: {code}\n{printed[-4000:]}"


def test_ablations_page_shows_each_safeguard_with_its_test() -> None:
    """Each safeguard stands in the docs, with the test that misses it; the site is made so."""
    page = (ROOT / "docs" / "ablations.md").read_text("utf-8")
    assert page.count("\n<!-- the tables of tests/proof/ablations/ -->\n") == 1
    shown = markdown()
    for safeguard in SAFEGUARDS:
        row = f"\n| {safeguard.name} | `{safeguard.file}` | `{safeguard.test}` |"
        assert row in shown
    assert shown.count("\n| ") == len(SAFEGUARDS) + 2 * len(tables())
