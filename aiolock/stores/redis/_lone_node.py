"""A node of a cluster that is used as a server by itself: possible if it is the only master."""

from __future__ import annotations

import asyncio

from aiolock.errors import StoreError
from aiolock.stores.redis._errors import ClusterNodeError, Place, Refusal, code_of, store_error
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._pipeline import Pipeline
from aiolock.stores.redis._presence import Presence
from aiolock.stores.redis._replies import Range
from aiolock.stores.redis._scripts import RENEW, SLOTS, bulk


async def is_node(pipe: Pipeline, names: Names, presence: Presence, place: Place) -> bool:
    """Whether keys of two slots are refused; `StoreError` for one of several masters.

    A cluster with one master serves like any server; so does a proxy that shows a cluster as one
    server, whatever is behind it.
    """
    keys = b"".join(map(bulk, (2, *names.apart())))
    nothing = b"".join(map(bulk, ("-", 0, "-", 0)))
    try:
        await pipe.call(RENEW, 7, keys + nothing, expires=True)
    except StoreError as error:
        if not isinstance(error.__cause__, Refusal) or code_of(error.__cause__) != "CROSSSLOT":
            raise
    else:
        return False
    masters = {(each.host, each.port) for each in await slots(pipe, presence)}
    if len(masters) > 1:
        raise store_error(ClusterNodeError(f"it is one of {len(masters)} masters"), place)
    return True


def slots(pipe: Pipeline, presence: Presence) -> asyncio.Future[list[Range]]:
    """The slots of each master; empty if there is no cluster, or the user may not ask."""
    own = presence.own_keys()
    return pipe.call(SLOTS, 1 + len(own), b"".join(map(bulk, (len(own), *own))))
