"""A server of Lua scripts, called as a client does: its answers, and what it pushes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import redis

from aiolock.protocol import Late
from tests.support.failures import wait_until


class ScriptedServer:
    """Two connections to a server, and one for each client that listens."""

    def __init__(self, port: int, channels: str) -> None:
        self.redis: Any = redis.Redis(port=port, decode_responses=True)
        self.raw: Any = redis.Redis(port=port)
        self._channels = channels
        self._pubsubs = dict[str, Any]()

    def evaluate(self, source: str, keys: Sequence[str], *values: object) -> Any:
        """The reply to a script; `Late` if it came too late."""
        try:
            return self.raw.eval(source, len(keys), *keys, *map(str, values))
        except redis.ResponseError as error:
            code, _, now = str(error).partition(" ")
            if code != "LATE":
                raise
            return Late(int(now))

    def pushes(self) -> Iterator[tuple[str, str]]:
        """All that was pushed since, and to which client."""
        with self.redis.pipeline(transaction=False) as pipeline:
            for client in self._pubsubs:
                pipeline.publish(self._channels + client, "that is all")
            pipeline.execute()
        for client, pubsub in self._pubsubs.items():
            while (push := pubsub.get_message(timeout=10)["data"]) != "that is all":
                yield client, push

    def listen(self, client: str) -> None:
        """The client is there."""
        if client not in self._pubsubs:
            pubsub = self.redis.pubsub()
            pubsub.subscribe(self._channels + client)
            assert pubsub.get_message(timeout=10)["type"] == "subscribe"
            self._pubsubs[client] = pubsub

    def leave(self, client: str) -> None:
        """The client is gone, and the server knows."""
        if client in self._pubsubs:
            self._pubsubs.pop(client).close()
            channel = self._channels + client
            # The server has not read our good-bye yet.
            wait_until(lambda: not self.redis.pubsub_numsub(channel)[0][1])

    def close(self, *keys: str) -> None:
        """Remove these, and whoever listens."""
        for client in list(self._pubsubs):
            self.leave(client)
        self.redis.delete(*keys)
        self.redis.close()
        self.raw.close()
