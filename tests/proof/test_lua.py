"""The scripts on fakeredis, as on a server; and on another version of Lua than that of Redis."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stores.test_contract import OnFakeRedis

ROOT = Path(__file__).resolve().parents[2]


class TestFakeRedis(OnFakeRedis):
    """The whole contract, of which `make test` has a test for each command."""


@pytest.mark.long
@pytest.mark.one_loop
@pytest.mark.timeout(180)
def test_scripts_on_lua_5_4_pass_the_contract() -> None:
    """The scripts pass on Lua 5.4 too, as some servers have it: its numbers are not of one kind."""
    pytest.importorskip("lupa.lua54", reason="lupa has no Lua 5.4 here")
    # In a process of its own: it dies of two versions of Lua.
    tests = f"{ROOT}/tests/proof/test_lua.py::TestFakeRedis"
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            tests,
        ],
        env={**os.environ, "FAKEREDIS_LUA_VERSION": "5.4"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
