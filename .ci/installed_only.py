"""A pytest plugin for the runs on the wheel: they must not test the tree by mistake."""

import importlib.util
import sysconfig
from pathlib import Path

import pytest


def pytest_configure() -> None:
    """Stop unless `aiolock` is the one in the environment's own site-packages."""
    spec = importlib.util.find_spec("aiolock")
    origin = Path(spec.origin) if spec and spec.origin else None
    if origin is None or not origin.is_relative_to(sysconfig.get_path("purelib")):
        raise pytest.UsageError(f"this is not the installed wheel: {origin}")


def pytest_report_header() -> str:
    """Say in the log which one it is."""
    spec = importlib.util.find_spec("aiolock")
    return f"testing the installed {spec.origin if spec else None}"
