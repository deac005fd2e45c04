"""Another version of aiolock: its wheel, in an environment of its own.

That is the last release before this tree or, as long as there is none, `UNRELEASED`. It is built
from the history of the checkout once, and kept in the build folder.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Final

UNRELEASED: Final = "fcb3308394303bbc57c79bee6dd68fe36aaaed77"
"""The last commit before operations became values: what a store does was called by methods then."""

ROOT: Final = Path(__file__).resolve().parents[2]
_KEPT: Final = ROOT / "build" / "versions"
_SECONDS: Final = 100.0
"""For each of the programs: so that one that hangs is named."""


class Unavailable(Exception):
    """There is no other version here, and why."""


@dataclass(frozen=True)
class Version:
    """One that can be run."""

    name: str
    """Its tag, or its commit."""
    python: Path
    """The Python of its environment, which has its wheel, and the drivers of this one."""

    @property
    def folder(self) -> Path:
        """Where its modules are."""
        return self.python.parent.parent


def other() -> Version:
    """The other version, built if it has not been; `Unavailable`, if it cannot be had."""
    return _built(*_chosen())


def at(commit: str) -> Version:
    """The version of a commit, by its whole name; `Unavailable`, if it cannot be had."""
    if not (ROOT / ".git").exists():
        raise Unavailable("these tests are in no checkout, so there is no history to build from")
    _git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    return _built(commit[:12], commit)


def _built(name: str, commit: str) -> Version:
    with _alone():
        folder = _KEPT / f"{commit[:12]}-{sys.version_info.major}.{sys.version_info.minor}"
        version = Version(name, folder / "environment" / "bin" / "python")
        ready = folder / "ready"  # written last
        if not ready.exists():
            shutil.rmtree(folder, ignore_errors=True)  # somebody was interrupted
            _install(_wheel(commit, folder), version)
            ready.touch()
    return version


def _chosen() -> tuple[str, str]:
    """The tag or the short commit, and the commit."""
    if not (ROOT / ".git").exists():
        raise Unavailable("these tests are in no checkout, so there is no history to build from")
    try:
        tag = _git("describe", "--tags", "--abbrev=0", "--match=v[0-9]*", "HEAD^").decode().strip()
    except Unavailable:
        tag = ""
    commit = _git("rev-parse", "--verify", "--quiet", f"{tag or UNRELEASED}^{{commit}}")
    return tag or UNRELEASED[:12], commit.decode().strip()


def _wheel(commit: str, folder: Path) -> Path:
    """The wheel of a commit."""
    with tarfile.open(fileobj=BytesIO(_git("archive", commit))) as archive:
        archive.extractall(folder / "source", filter="data")
    source = [str(folder / "source"), "--outdir", str(folder)]
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", *source)
    return next(folder.glob("*.whl"))


def _install(wheel: Path, version: Version) -> None:
    _run(sys.executable, "-m", "venv", "--without-pip", str(version.folder))
    pip = (sys.executable, "-m", "pip", "--python", str(version.python))
    _run(*pip, "install", "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel))
    paths = {sysconfig.get_path(each) for each in ("purelib", "platlib")}
    place = sysconfig.get_path("purelib", vars={"base": str(version.folder)})
    # Behind its own packages. A folder that is named there is not asked for others in turn, so this
    # environment's link to the tree is not followed.
    Path(place, "drivers.pth").write_text("".join(f"{each}\n" for each in sorted(paths)))


@contextmanager
def _alone() -> Generator[None]:
    """Have other processes wait that test, too."""
    _KEPT.mkdir(parents=True, exist_ok=True)
    with (_KEPT / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _git(*arguments: str) -> bytes:
    return _run("git", "-C", str(ROOT), *arguments)


def _run(*command: str) -> bytes:
    """What a program prints."""
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or b""
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        raise Unavailable(f"{' '.join(command)}: {last or error}") from error
    return done.stdout
