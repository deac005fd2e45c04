"""`aiolock demo` in a process, and in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from aiolock.cli.demo import contention
from aiolock.cli.demo.contention import Kind
from aiolock.cli.demo.worker import Settings

ONE_WORKER = ("--workers", "1", "--ttl", "30")


def aiolock_command(*args: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-W", "error", "-m", "aiolock", *args]


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        aiolock_command(*args),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, **env},
    )


def run_json(*args: str, **env: str) -> dict[str, Any]:
    """Run a demo that comes out right, and says nothing but its figures."""
    done = run("demo", "--json", *args, **env)
    assert (done.returncode, done.stderr) == (0, ""), done
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def make_only(patch: pytest.MonkeyPatch, *kinds: Kind) -> None:
    """Leave out the runs that the test has no use for: each starts its own processes."""

    def only(_: Settings) -> list[Kind]:
        return list(kinds)

    patch.setattr(contention, "kinds", only)
