"""How much code one acquisition on one Redis goes through, and a reader with it.

    python benchmarks/house.py [TREE]

TREE is another checkout, to compare: `git worktree add --detach /tmp/before 17c7e96`, then
`python benchmarks/house.py /tmp/before`.

A file counts if one of its functions runs while the client is open and does what the row says, be
it in the task of the caller or behind it. Of such a file everything counts: all its lines, classes
and functions, for whoever reads how a lock is acquired has to look through the whole file. How many
of the classes and functions have run is in the last columns. What opens and closes the client does
not count, nor do packages other than aiolock, nor the scripts on the server.

The aim is at most 14 files, 3,500 lines and 35 classes in the last row. It was set on commit
17c7e96, for which this table has 34 files, 8,194 lines, 79 classes and 604 functions. The study
that set it counted 38, 8,531, 89 and 625, without a note of what it had run; nothing that was tried
gives just these. With a wait of more than a second, which labels waiters and looks for deadlocks,
and with one that ends by its timeout, they are 38, 8,829, 85 and 652. Neither is the normal path,
so neither is counted here.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.redis_server import RedisServer

if TYPE_CHECKING:
    from aiolock import LockClient

ROOT = Path(__file__).resolve().parent.parent
_QUEUED = 0.05
"""Seconds in which a waiter is in the queue. All rows take less than the second after which the
client looks for slow waits."""
_TTL, _RENEWED = 0.6, 0.5
"""Seconds of a lease, and of a hold in which it is renewed."""


@dataclass(frozen=True)
class Code:
    """So much code."""

    files: int
    lines: int
    classes: int
    functions: int
    classes_run: int
    functions_run: int


class Seen:
    """The code of a package that has run while it watched."""

    def __init__(self, package: Path) -> None:
        self._package = package
        self._seen = set[tuple[str, CodeType]]()

    def __enter__(self) -> None:
        sys.setprofile(self._on_event)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            # The file of the module, for the methods that dataclasses write have none.
            self._seen.add((frame.f_globals.get("__file__") or "", frame.f_code))

    def __or__(self, other: Seen) -> Seen:
        both = Seen(self._package)
        both._seen = self._seen | other._seen
        return both

    def files(self) -> list[Path]:
        """The files of the package of which something has run."""
        paths = sorted({Path(file) for file, _ in self._seen if file})
        return [path for path in paths if path.is_relative_to(self._package)]

    def code(self) -> Code:
        """All that is in these files, and what of it has run."""
        files = self.files()
        run = {(file, code.co_firstlineno, code.co_name) for file, code in self._seen}
        lines, classes, functions, classes_run, functions_run = 0, 0, 0, 0, 0
        for path in files:
            text = path.read_text("utf-8")
            lines += len(text.splitlines())
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef):
                    classes += 1
                    classes_run += any(_has_run(each, path, run) for each in node.body)
                elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    functions += 1
                    functions_run += _has_run(node, path, run)
        return Code(len(files), lines, classes, functions, classes_run, functions_run)


def _has_run(node: ast.AST, path: Path, run: set[tuple[str, int, str]]) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    return (str(path), first, node.name) in run


async def free(ours: LockClient, _: LockClient) -> None:
    """Acquire and release a lock that nobody wants."""
    async with ours.lock("free"):
        pass


async def renewed(ours: LockClient, _: LockClient) -> None:
    """Hold a lock until its lease has been renewed."""
    async with ours.lock("renewed", ttl=_TTL):
        await asyncio.sleep(_RENEWED)


async def handed_off(ours: LockClient, _: LockClient) -> None:
    """Wait for a lock that another task of this client holds."""
    await _wait_for(ours, ours)


async def pushed(ours: LockClient, theirs: LockClient) -> None:
    """Wait for a lock that another client holds."""
    await _wait_for(theirs, ours)


async def _wait_for(first: LockClient, second: LockClient) -> None:
    inside = asyncio.Event()

    async def hold() -> None:
        async with first.lock("wanted"):
            inside.set()
            await asyncio.sleep(_QUEUED)

    async def wait() -> None:
        await inside.wait()
        async with second.lock("wanted"):
            pass

    await asyncio.gather(hold(), wait())


ROWS: dict[str, Callable[[LockClient, LockClient], Awaitable[None]]] = {
    "free lock": free,
    "lease renewed": renewed,
    "waited for a task of the same client": handed_off,
    "waited for another client": pushed,
}


@asynccontextmanager
async def _clients(connect: Callable[[str], Any], url: str) -> AsyncIterator[list[LockClient]]:
    """Two clients that have acquired a lock before, so that the server has the scripts."""
    async with connect(url) as ours, connect(url) as theirs:
        for client in (ours, theirs):
            await free(client, client)
        yield [ours, theirs]


async def measure() -> dict[str, Code]:
    """The code that each row goes through, and all of them."""
    import aiolock

    package = Path(aiolock.__file__).parent
    rows = dict[str, Seen]()
    total = Seen(package)
    with RedisServer() as server:
        for title, row in ROWS.items():
            async with _clients(aiolock.connect, server.url) as (ours, theirs):
                rows[title] = Seen(package)
                with rows[title]:
                    await row(ours, theirs)
            total |= rows[title]
    return {title: seen.code() for title, seen in (rows | {"all of these": total}).items()}


def table(rows: Iterable[tuple[str, Code]]) -> str:
    """The rows as Markdown."""
    text = "| one acquisition on one Redis | files | lines | classes | functions | run: classes |"
    text += " functions |\n| --- | --: | --: | --: | --: | --: | --: |\n"
    for title, code in rows:
        figures = (code.files, code.lines, code.classes, code.functions)
        shown = (*figures, code.classes_run, code.functions_run)
        text += f"| {title} | {' | '.join(f'{each:,}' for each in shown)} |\n"
    return text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", nargs="?", default=str(ROOT), help="another checkout of aiolock")
    sys.path.insert(0, str(Path(parser.parse_args().tree).resolve()))
    print(table(asyncio.run(measure()).items()))
