"""An environment for each peer, made by pip once: many peers cannot be installed together."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from benchmarks.catalogue import Contestant
from benchmarks.crew import ROOT

FOLDER = ROOT / ".venv-bench"
PLOTS = ("matplotlib>=3.9",)

_PATIENCE = 300.0
"""Seconds for one environment."""


class NotInstalled(Exception):
    """An environment could not be made; the text says why."""


def is_there(name: str, requirements: tuple[str, ...]) -> bool:
    """Whether there is an environment with these requirements already."""
    stamp = _stamp(name)
    return stamp.exists() and stamp.read_text(encoding="utf-8") == _wanted(requirements)


def _stamp(name: str) -> Path:
    return FOLDER / name / "requirements.stamp"


def _wanted(requirements: tuple[str, ...]) -> str:
    return "\n".join((sys.version, *requirements))


async def environment(name: str, requirements: tuple[str, ...]) -> Path:
    """The Python of an environment with these requirements; `NotInstalled` says why not."""
    folder = FOLDER / name
    python = folder / "bin" / "python"
    if is_there(name, requirements):
        return python
    shutil.rmtree(folder, ignore_errors=True)
    await _run("-m", "venv", "--without-pip", str(folder))
    await _run(
        *("-m", "pip", "--python", str(python), "install", "--quiet", "--no-input"),
        *("--disable-pip-version-check", *requirements),
    )
    _stamp(name).write_text(_wanted(requirements), encoding="utf-8")
    return python


async def _run(*arguments: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, complaints = await asyncio.wait_for(process.communicate(), _PATIENCE)
    except TimeoutError:
        process.kill()
        raise NotInstalled(f"pip took longer than {_PATIENCE:.0f} s") from None
    if process.returncode:
        lines = complaints.decode("utf-8", "replace").strip().splitlines()
        errors = [line for line in lines if line.startswith("ERROR")]
        raise NotInstalled(errors[-1] if errors else lines[-1] if lines else "pip does not say why")


async def environments(
    contestants: Iterable[Contestant],
) -> tuple[dict[Contestant, Path], dict[Contestant, str]]:
    """The Python of each contestant, and the reason for each contestant that has none."""
    ready: dict[Contestant, Path] = {}
    missing: dict[Contestant, str] = {}
    a_few = asyncio.Semaphore(4)
    one_each = defaultdict[str, asyncio.Lock](asyncio.Lock)  # a peer on two loops has one

    async def prepare(contestant: Contestant) -> None:
        async with one_each[contestant.module], a_few:
            try:
                ready[contestant] = await environment(contestant.module, contestant.requirements)
            except NotInstalled as reason:
                missing[contestant] = f"does not install: {reason}"

    wanted = list(contestants)
    for each in wanted:
        if not each.requirements:
            ready[each] = Path(sys.executable)
    await asyncio.gather(*(prepare(each) for each in wanted if each.requirements))
    return {each: ready[each] for each in wanted if each in ready}, missing
