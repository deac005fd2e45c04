"""A worker process: one peer, in its own environment, that follows the conductor's orders.

    python -m benchmarks.worker <module of the peer> <its settings as JSON> <its event loop>

The two exchange JSON objects, one per line, over standard input and output.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import json
import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, cast

from benchmarks.peers import Peer
from benchmarks.workloads import WORKLOADS, Message


class StandardStreams:
    """The line to the conductor. The output of a library goes to standard error instead."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._heard: asyncio.Queue[Message] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        # A thread, so that a worker whose event loop hangs still ends with its conductor.
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self._loop.call_soon_threadsafe(self._heard.put_nowait, json.loads(line))
        os._exit(1)

    def say(self, event: str, **fields: object) -> None:
        """Tell the conductor."""
        self._out.write(json.dumps({"event": event, **fields}) + "\n")
        self._out.flush()

    async def hear(self) -> Message:
        """The conductor's next message."""
        return await self._heard.get()

    async def stage(self, event: str, **fields: object) -> Message:
        """Tell the conductor, and wait until it says to go on."""
        self.say(event, **fields)
        return await self.hear()


async def run(make: Callable[..., Peer], talk: StandardStreams, task: Message) -> None:
    """Do one workload from connecting to disconnecting."""
    peer = make(**task["settings"])
    workload = next(each for each in WORKLOADS if each.__name__ == task["workload"])
    options: dict[str, Any] = task["options"]
    await peer.open(task["url"], task["at_once"])
    try:
        await workload(peer, talk, **options)
    finally:
        await peer.close()


async def main(module: str, settings: str) -> None:
    """Do one workload after the other."""
    talk = StandardStreams()
    try:
        peer = cast(Callable[..., Peer], importlib.import_module(f"benchmarks.peers.{module}").Peer)
        make = functools.partial(peer, **json.loads(settings))
        talk.say("started")
        while True:
            await run(make, talk, await talk.hear())
            talk.say("closed")
    except Exception as error:  # noqa: BLE001  # whatever a peer raises is told
        traceback.print_exc()
        talk.say("failed", error=f"{type(error).__name__}: {error}")
        await asyncio.sleep(3600)  # the conductor ends us, when it has heard it


def new_loop(name: str) -> asyncio.AbstractEventLoop:
    """An event loop: asyncio's own, or uvloop's."""
    if name == "uvloop":
        import uvloop  # not in every peer's environment

        return uvloop.new_event_loop()
    return asyncio.new_event_loop()


if __name__ == "__main__":
    peer, its_settings, its_loop = sys.argv[1:]
    with asyncio.Runner(loop_factory=functools.partial(new_loop, its_loop)) as runner:
        runner.run(main(peer, its_settings))
