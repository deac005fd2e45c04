"""Swaps: transactions that write the document of one name if what they rely on is still true.

Those of one turn of the loop go to the server in one request. Each request has the condition that
this client's own key is as it was last written: so after that was written again, no late copy of an
earlier request has an effect. That is how a swap without an answer is settled.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from aiolock.stores.etcd._failures import CallError, broken
from aiolock.stores.etcd._keys import Keys
from aiolock.stores.etcd._letters import Letter
from aiolock.stores.etcd._messages import (
    is_at,
    put_op,
    put_request,
    range_request,
    read_op,
    txn_op,
    txn_request,
)
from aiolock.stores.etcd._replies import (
    KeyValue,
    Range,
    Txn,
    read_range,
    read_response,
    read_txn,
)
from aiolock.stores.etcd._servers import TRY, Servers
from aiolock.stores.etcd._wire import MalformedError

MOST: Final = 100
"""Swaps in one request, at most."""
AT_ONCE: Final = 2
"""Requests with swaps that are under way, at most: what is submitted meanwhile gathers."""
_OPERATIONS: Final = 128
"""Operations that etcd allows in a request by default (--max-txn-ops): a transaction in another one
counts with those of the other."""
_LOOKS_BACK: Final = 50
"""Earlier versions of a document that are read, at most, to find one's own among them."""


class Swap:
    """What is to be done with one document, on which conditions."""

    __slots__ = (
        *("name", "version", "conditions", "puts", "letters", "reads", "stamp"),
        *("mark", "until"),
    )

    def __init__(
        self,
        name: str,
        version: int,
        *,
        conditions: Sequence[bytes],
        puts: Sequence[bytes],
        letters: Sequence[Letter],
        reads: Sequence[bytes],
        stamp: bytes,
        until: float,
    ) -> None:
        self.name = name
        self.version = version
        """The revision at which the document must have been written; 0: there is none."""
        self.conditions = conditions
        self.puts = puts
        self.letters = letters
        self.reads = reads
        """The keys that are read if a condition does not hold."""
        self.stamp = stamp
        """What its document begins with, and no other."""
        self.mark = 0
        """At which revision our own key was written when this was sent."""
        self.until = until
        """When it must have been sent, by the loop's clock."""

    @property
    def size(self) -> int:
        """The operations that it counts for."""
        return max(len(self.conditions), len(self.puts) + len(self.letters), len(self.reads))

    @property
    def writes(self) -> bool:
        """Whether it changes anything."""
        return bool(self.puts or self.letters)


class Outcome(NamedTuple):
    """The outcome of a swap."""

    succeeded: bool
    found: Sequence[KeyValue | None]
    """If it did not succeed: what was read instead, in the order of `Swap.reads`."""
    revision: int
    marked: bool = True
    """Whether our own key was as it should be; if not, nothing was read."""


class Swaps:
    """Sends the swaps of one client."""

    def __init__(self, servers: Servers, keys: Keys, client: str) -> None:
        self._servers, self._keys = servers, keys
        self._own = keys.presence(client)
        self._loop = asyncio.get_running_loop()
        self.mark = 0
        """The revision at which our own key was last written."""
        self.requests = 0
        """How many requests were sent: for tests."""

    async def send(self, swaps: Sequence[Swap]) -> Sequence[Outcome | Exception]:
        """Send them in one request; their outcomes."""
        now, most = self._loop.time(), _OPERATIONS - len(swaps)
        if len(swaps) > 1 and any(swap.until <= now or swap.size > most for swap in swaps):
            return await self._send_apart(swaps, now, most)
        if swaps[0].until <= now:
            return [self._late()]
        mark, slots = self.mark, Counter[str]()
        for swap in swaps:
            swap.mark = mark
        if len(swaps) == 1:
            request = self._alone(swaps[0], mark, slots)
        else:
            request = self._together(swaps, mark, slots)
        self.requests += 1
        try:
            reply = await self._servers.call(
                "KV/Txn",
                request,
                until=now + TRY,
                repeatable=not any(swap.writes for swap in swaps),
            )
            return self._outcomes(swaps, read_txn(reply))
        except MalformedError as error:
            failure = broken(self._servers.connection.address, f"a reply cannot be read: {error}")
            return [failure] * len(swaps)

    async def _send_apart(
        self, swaps: Sequence[Swap], now: float, most: int
    ) -> Sequence[Outcome | Exception]:
        """Send those alone that are too large, and those not that have waited for too long."""
        together = [swap for swap in swaps if swap.until > now and swap.size <= most]
        alone = [swap for swap in swaps if swap.until > now and swap.size > most]
        groups = [group for group in (together, *([swap] for swap in alone)) if group]
        sent = await asyncio.gather(*(self.send(group) for group in groups), return_exceptions=True)
        outcomes = dict[Swap, Outcome | Exception]()
        for group, found in zip(groups, sent, strict=True):
            if isinstance(found, Exception):
                outcomes.update(dict.fromkeys(group, found))
            elif isinstance(found, BaseException):
                raise found
            else:
                outcomes.update(zip(group, found, strict=True))
        return [outcomes[swap] if swap in outcomes else self._late() for swap in swaps]

    def _late(self) -> CallError:
        return CallError.not_sent(self._servers.connection.address, "it waited for too long")

    def _alone(self, swap: Swap, mark: int, slots: Counter[str]) -> bytes:
        return txn_request(
            (is_at(self._own, mark), *swap.conditions),
            self._writes(swap, slots),
            [read_op(key) for key in (self._own, *swap.reads)],
        )

    def _together(self, swaps: Sequence[Swap], mark: int, slots: Counter[str]) -> bytes:
        parts = [
            txn_op(
                txn_request(
                    swap.conditions,
                    self._writes(swap, slots),
                    [read_op(key) for key in swap.reads],
                )
            )
            for swap in swaps
        ]
        return txn_request([is_at(self._own, mark)], parts, [read_op(self._own)])

    def _writes(self, swap: Swap, slots: Counter[str]) -> Sequence[bytes]:
        """What it writes; no two letters of a request have the same key."""
        puts = list(swap.puts)
        for client, lease, text in swap.letters:
            key = self._keys.letter(client, slots[client])
            slots[client] += 1
            puts.append(put_op(put_request(key, text, lease=lease)))
        return puts

    def _outcomes(self, swaps: Sequence[Swap], done: Txn) -> Sequence[Outcome]:
        revision = done.revision
        if done.succeeded:
            if len(swaps) == 1:
                return [Outcome(succeeded=True, found=(), revision=revision)]
            # The responses to swaps that have succeeded are alike: they are read once.
            outcomes = {each: _outcome(each, revision) for each in dict.fromkeys(done.parts)}
            return [outcomes[each] for each in done.parts]
        own, *found = [_first(each) for each in done.responses]
        if own is None or own.modified != swaps[0].mark:
            return [Outcome(succeeded=False, found=(), revision=revision, marked=False)] * len(
                swaps
            )
        if len(swaps) > 1 or len(found) != len(swaps[0].reads):
            raise MalformedError("a transaction has another outcome than it can have")
        return [Outcome(succeeded=False, found=found, revision=revision)]

    # What has become of it

    async def was_done(self, swap: Swap, until: float) -> bool | None:
        """Whether a swap without an answer was done; None if nobody can tell.

        To be asked after our own key was written again: from then on, it cannot be done any more.
        """
        revision = 0
        for _ in range(_LOOKS_BACK):
            request = range_request(self._keys.name(swap.name), revision=revision)
            try:
                reply = await self._servers.call("KV/Range", request, until=until)
            except CallError as error:
                if "compacted" in str(error):
                    return None
                raise
            found = read_range(reply).found
            if not found or found[0].modified <= swap.version:
                return False
            if found[0].value.startswith(swap.stamp):
                return True
            revision = found[0].modified - 1
            if revision <= swap.version:
                return False
        return None


def _outcome(part: bytes, revision: int) -> Outcome:
    response = read_response(part)
    if not isinstance(response, Txn):
        raise MalformedError("a part of a transaction has another outcome than it can have")
    found = [] if response.succeeded else [_first(each) for each in response.responses]
    return Outcome(response.succeeded, found, revision)


def _first(response: object) -> KeyValue | None:
    if not isinstance(response, Range):
        raise MalformedError("a part of a transaction has another outcome than it can have")
    return response.found[0] if response.found else None
