"""The lifespan of the page, if it is an application of its own."""

from __future__ import annotations

from typing import Final

from aiolock import ClientClosed, LockClient, StoreError
from aiolock.page._http import Receive, Send

_NAME: Final = "aiolock page"
"""The name of a lock that is looked at only to know whether that is possible."""


async def lifespan(client: LockClient, receive: Receive, send: Send) -> None:
    """Open the client at the start, unless it is open already, and close it at the end."""
    ours = False
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            try:
                ours = not await _is_open(client)
                if ours:
                    await client.open()
            except (ClientClosed, StoreError) as error:
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            if ours:
                await client.aclose()
            await send({"type": "lifespan.shutdown.complete"})
            return


async def _is_open(client: LockClient) -> bool:
    try:
        await client.status(_NAME)
    except ClientClosed:
        return False
    except StoreError:
        return True
    return True
