"""A test, run in a new process in which the package is another one.

Importing pytest and the drivers takes most of the time of such a short run. So each process is
forked from one that has imported those, and nothing of ours.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Collection, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
import pytest_asyncio.plugin
import pytest_timeout  # type: ignore[import-untyped]
from _pytest.config import default_plugins

ROOT = Path(__file__).parents[2]
IMPORTED = [
    *("pytest", "pytest_asyncio.plugin", "pytest_timeout", "hypothesis.stateful"),
    *(f"_pytest.{name}" for name in default_plugins),
    *("pdb", "tomllib._parser", "xml.etree.ElementTree", "importlib.readers"),  # of these plugins
    *("_pytest._argcomplete", "readline", "statistics"),
    *("anyio", "anyio.lowlevel", "anyio.abc", "anyio._backends._asyncio"),
    *("redis.asyncio", "fakeredis", "psycopg", "pymysql", "sqlite3", "unittest.mock"),
]
# Plugins of pytest that do nothing for such a test: each has options, hooks and fixtures to set up.
WITHOUT = [
    *("cacheprovider", "debugging", "doctest", "faulthandler", "junitxml", "legacypath"),
    *("pastebin", "setuponly", "setupplan", "stepwise", "subtests", "unittest"),
    # At the end it would collect garbage ten times, to report things that are no failure here.
    "unraisableexception",
]
# With no plugin but those it needs, and with assertions as Python has them: rewriting takes longer
# than most of the tests.
OPTIONS = [
    *("-q", "-x", "--tb=native", "--assert=plain", "-W", "default"),
    *(f"-pno:{name}" for name in WITHOUT),
    # An exception of a signal's handler may be swallowed by any code, and then the test hangs on.
    "--timeout-method=thread",
    # A server starts before the time of the test begins.
    *("-o", "timeout_func_only=true"),
]

PATIENCE = 2.0
"""Seconds for which a test waits for an event that does not come, if it would wait longer."""


def package_with(package: Path, copy: Path, file: str, text: str) -> None:
    """Make ``copy`` that package, with another text in one file.

    All but the folders on the way to it are links: copying everything took a third of such a run.
    """
    for name in Path(file).parts:
        copy.mkdir()
        _link(package, copy, {name, "__pycache__"})
        if (compiled := package / "__pycache__").exists():
            (copy / "__pycache__").mkdir()
            stem = name.removesuffix(".py")
            other = [each.name for each in compiled.iterdir() if each.name.split(".")[0] == stem]
            _link(compiled, copy / "__pycache__", other)
        package, copy = package / name, copy / name
    copy.write_text(text, "utf-8")


def _link(folder: Path, copy: Path, without: Collection[str]) -> None:
    for entry in folder.iterdir():
        if entry.name not in without:
            (copy / entry.name).symlink_to(entry)


def run(test: str, folder: Path, *, seconds: float, limit: float) -> tuple[int, str]:
    """Its exit code, and what it printed. The package is ``folder / "aiolock"``.

    The test has so many seconds, the process has until its limit.
    """
    printed = folder / "printed"
    printed.touch()
    arguments = [f"tests/{test}", *OPTIONS, f"--timeout={seconds}"]
    # The files of a test whose time is up, and its servers, which may still write to them.
    with tempfile.TemporaryDirectory(prefix="aiolock-", ignore_cleanup_errors=True) as left:
        Path(left).chmod(0o711)  # a database server is another user's
        process = _forks().Process(target=_run, args=(arguments, str(folder), str(printed), left))
        process.start()
        process.join(limit)
        if process.is_alive():
            process.kill()
            process.join()
        if any(Path(left).iterdir()):
            end_servers(left)
    assert process.exitcode is not None
    return process.exitcode, printed.read_text("utf-8", "replace")


def end_servers(folder: str) -> None:
    """End those whose data is in that folder: a test whose time is up ends no server of its own."""
    for command in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended by itself
            if folder.encode() in command.read_bytes():
                os.kill(int(command.parent.name), signal.SIGKILL)


@cache
def _forks() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTED)
    return context


def _run(arguments: Sequence[str], folder: str, printed: str, temporary: str) -> None:
    output = os.open(printed, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(ROOT)
    # The other package goes before the real one, also in the processes that the test starts.
    sys.path[:0] = [folder, str(ROOT)]
    os.environ |= {"PYTHONPATH": folder, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    os.environ["AIOLOCK_TEST_TEMPLATES"] = tempfile.gettempdir()  # of database servers
    os.environ["TMPDIR"] = tempfile.tempdir = temporary
    os.environ["AIOLOCK_TEST_PATIENCE"] = str(PATIENCE)  # it waits in vain
    gc.freeze()  # objects that the fork inherits are no garbage
    gc.set_threshold(50_000)  # nor is what imports make: look for it more rarely than by default
    assert "aiolock" not in sys.modules
    # By their names, pytest would look through all that is installed for plugins called so.
    plugins: list[object] = [_Only(arguments[0]), pytest_asyncio.plugin, pytest_timeout]
    code = pytest.main([*arguments, "-o", f"pythonpath={folder} {ROOT}"], plugins=plugins)
    sys.stdout.flush()
    # Not through objects that the fork has inherited.
    os._exit(code)


class _Only:
    """A plugin: pytest looks at no other file, and makes no item of another test.

    It would make those of the whole file or class, hundreds, to choose one of them.
    """

    def __init__(self, test: str) -> None:
        file, *self._names = test.partition("[")[0].split("::")
        self._file = ROOT / file

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool:
        """No other file."""
        return collection_path not in (self._file, *self._file.parents)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, name: str) -> list[pytest.Item] | None:
        """Nothing of another name, unless it is a whole file that is the test."""
        return None if name in self._names or not self._names else []
