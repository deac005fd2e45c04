"""Slow links: a process that passes on all data, both ways, after a delay.

    python -m benchmarks.far <port>:<milliseconds of a round trip> ...

It prints the ports at which it listens, in one line, and ends with its conductor.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncGenerator, Sequence
from functools import partial

from benchmarks.crew import ROOT


@contextlib.asynccontextmanager
async def far_away(ports: Sequence[int], round_trips: Sequence[float]) -> AsyncGenerator[list[int]]:
    """For each given port, a port that leads to it with this round trip in ms."""
    ways = [f"{port}:{way:g}" for port, way in zip(ports, round_trips, strict=True)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.far", *ways),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None
        yield [int(port) for port in (await process.stdout.readline()).split()]
    finally:
        process.kill()
        await process.wait()


class _End(asyncio.Protocol):
    """One end of a link: data that arrives here leaves at the other end, later."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self.other: _End | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        for data in self._waiting:
            transport.write(data)

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        self._loop.call_later(self._delay, self.other.send, data)

    def send(self, data: bytes) -> None:
        if self.transport is None:
            self._waiting.append(data)
        else:
            self.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  # however it ended
        assert self.other is not None
        self._loop.call_later(self._delay, self.other.close)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


def _accept(port: int, delay: float, dialling: set[asyncio.Task[None]]) -> _End:
    near, distant = _End(delay), _End(delay)
    near.other, distant.other = distant, near

    async def dial() -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: distant, "127.0.0.1", port)
        except OSError:
            near.close()

    task = asyncio.get_running_loop().create_task(dial())
    dialling.add(task)
    task.add_done_callback(dialling.discard)
    return near


async def _main(ways: Sequence[str]) -> None:
    loop, ports, dialling = asyncio.get_running_loop(), list[str](), set[asyncio.Task[None]]()
    for way in ways:
        port, _, milliseconds = way.partition(":")
        accept = partial(_accept, int(port), float(milliseconds) / 2000, dialling)
        server = await loop.create_server(accept, "127.0.0.1", 0)
        ports.append(str(server.sockets[0].getsockname()[1]))
    print(*ports, flush=True)
    await asyncio.to_thread(sys.stdin.read)  # until the conductor is gone
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
