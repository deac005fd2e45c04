"""What the sources of scripts promise about the commands that they run."""

from __future__ import annotations

import re

import pytest

from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis import _voting as voting


@pytest.mark.parametrize(
    "script",
    [
        script
        for module in (scripts, voting)
        for script in vars(module).values()
        if isinstance(script, scripts.Script)
    ],
    ids=lambda script: script.name,
)
def test_script_gives_its_commands_no_plain_number(script: scripts.Script) -> None:
    """The server would make a text of it on each call, for half the time of the command."""
    for call in re.findall(r"redis\.p?call\(([^()]*)\)", script.source):
        assert not [word for word in call.split(", ") if re.fullmatch(r"-?\d+", word)], call
