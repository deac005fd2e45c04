"""The conductor's side of the workers: starts them, talks to them, and never waits for ever."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import tempfile
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

from benchmarks.catalogue import Contestant
from benchmarks.workloads import Message

Settings = Mapping[str, object]
ROOT = Path(__file__).resolve().parent.parent

_names = itertools.count(1)


def fresh_name() -> str:
    """A new name for a lock."""
    return f"bench-{next(_names)}"


class PeerFailed(Exception):
    """A peer did not do what it was told; the text says why."""


class Worker:
    """A process of one peer; it and all its children are ended at the end of `workers`."""

    def __init__(self, contestant: Contestant, python: Path, patience: float) -> None:
        self.contestant = contestant
        self.patience = patience
        self._python = python
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115  # kill() closes it
        self._started: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and wait until it has imported its peer."""
        self._started = await asyncio.create_subprocess_exec(
            *(str(self._python), "-m", "benchmarks.worker"),
            *(self.contestant.module, json.dumps(self.contestant.settings)),
            self.contestant.loop,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=self._log,
            cwd=ROOT,
            start_new_session=True,
            limit=1 << 26,  # bytes in one line: some bring every entry of a round
        )
        await self.hear("started", within=30)

    @property
    def _process(self) -> asyncio.subprocess.Process:
        assert self._started is not None
        return self._started

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def say(self, **message: object) -> None:
        """Send a message."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def hear(self, event: str, *, within: float | None = None) -> Message:
        """Its next message, which must be ``event``; `PeerFailed` if it is another, or late."""
        within = within or self.patience
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(within):
                line = await self._process.stdout.readline()
        except TimeoutError:
            raise PeerFailed(f"hangs: no {event!r} within {within:g} s") from None
        message: Message = json.loads(line) if line else {"event": "gone", "error": self._last()}
        if message["event"] != event:
            raise PeerFailed(message.get("error") or f"said {message}, not {event!r}")
        return message

    async def go_on(self, event: str) -> Message:
        """Let it go on until it says ``event``."""
        self.say()
        return await self.hear(event)

    async def begin(
        self,
        workload: str,
        url: str,
        *,
        at_once: int = 1,
        settings: Settings | None = None,
        **options: object,
    ) -> Message:
        """Let it connect, for this many tasks, and prepare; returns when it is ready.

        ``settings`` are added to the peer's own settings for this workload.
        """
        task = {"workload": workload, "url": url, "at_once": at_once}
        self.say(**task, settings=settings or {}, options=options)
        return await self.hear("ready")

    async def finish(self) -> None:
        """Let it end the workload after its last stage, and disconnect."""
        await self.go_on("closed")

    def _last(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return f"ended: {lines[-1] if lines else 'without a word'}"

    async def kill(self) -> None:
        """End the process and all that it has started."""
        if self._started is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._started.pid, signal.SIGKILL)
            await self._started.wait()
        self._log.close()


@contextlib.asynccontextmanager
async def workers(
    contestant: Contestant, python: Path, count: int = 1, *, patience: float = 60
) -> AsyncGenerator[list[Worker]]:
    """``count`` processes of one peer; one that does not answer within ``patience`` hangs."""
    crew = [Worker(contestant, python, patience) for _ in range(count)]
    try:
        await asyncio.gather(*(worker.start() for worker in crew))
        yield crew
    finally:
        for worker in crew:
            await worker.kill()
