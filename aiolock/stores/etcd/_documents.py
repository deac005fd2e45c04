"""Parts of operations are carried out on documents, by swaps that succeed or begin again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from functools import cached_property
from typing import Any, Final

from aiolock.backoff import Backoff
from aiolock.errors import StoreError
from aiolock.protocol import AskAgain, Deliver, Reconnected
from aiolock.stores._batches import Batches
from aiolock.stores._codec import UNREADABLE
from aiolock.stores._operations import Part
from aiolock.stores._outcomes import refusal
from aiolock.stores._races import LOST, Races
from aiolock.stores.etcd._attempt import NOTHING, Attempt, Known, OwnSessions, known_from
from aiolock.stores.etcd._failures import CallError
from aiolock.stores.etcd._keys import Keys, end_of
from aiolock.stores.etcd._leftovers import Leftovers
from aiolock.stores.etcd._messages import is_at, put_op, put_request, range_request
from aiolock.stores.etcd._outcome import Outcomes
from aiolock.stores.etcd._own_leases import OwnLeases
from aiolock.stores.etcd._presence import Presence
from aiolock.stores.etcd._registry import Registry
from aiolock.stores.etcd._replies import read_range
from aiolock.stores.etcd._servers import PATIENCE, Servers
from aiolock.stores.etcd._swaps import Outcome, Swap, Swaps
from aiolock.stores.etcd._wire import MalformedError

_KNOWN: Final = 20_000
"""Documents that are kept in memory: those that were used last."""
_PAUSES: Final = 0.01, 0.2
"""Seconds between two attempts of which the first had no answer."""
_LATER: Final = 1.0
"""Seconds after which it is tried again to find out what has become of a swap."""
_MOST_CONDITIONS: Final = 100
"""Of a swap, at most: etcd allows 128 operations (--max-txn-ops), with the swaps beside it."""


class _Tries:
    """What is to be kept in mind between the attempts of one call."""

    def __init__(self, until: float, *, again: bool) -> None:
        self.until = until
        """When the call has to end, by the loop's clock."""
        self.again = again
        """Whether an earlier attempt may have been done: nobody can tell."""
        self.all_refused = True
        """Whether all attempts were certainly not done when they failed."""
        self.why = LOST

    # Made when they are first needed: most calls need none of them.

    @cached_property
    def backoff(self) -> Backoff:
        """The pauses after attempts without an answer."""
        return Backoff(*_PAUSES, jitter=True)

    @cached_property
    def races(self) -> Races:
        """The pauses after races that were lost."""
        return Races(self.until)


class Documents:
    """Those of one client."""

    def __init__(
        self,
        client: str,
        keys: Keys,
        servers: Servers,
        *,
        swaps: Swaps,
        batches: Batches[Swap, Outcome],
        registry: Registry,
        leases: OwnLeases,
        presence: Presence,
        outcomes: Outcomes,
        start: Callable[[Coroutine[Any, Any, None]], object],
        waits: Callable[[str, bool], None],
        deliver: Deliver,
        clock: Callable[[], int],
    ) -> None:
        self._client, self._keys, self._servers = client, keys, servers
        self._swaps, self._batches = swaps, batches
        self._registry, self._leases = registry, leases
        self._presence, self._outcomes = presence, outcomes
        self._start, self._waits = start, waits
        self._deliver, self._clock = deliver, clock
        self._loop = asyncio.get_running_loop()
        self._sessions = OwnSessions(client, registry, leases)
        self._leftovers = Leftovers(leases)
        self._known = OrderedDict[str, Known]()
        self._unheard = dict[str, Attempt]()
        """By name: one of which nobody knows whether its swap was done, and that has failed its
        operations."""
        self._numbers = itertools.count(1)

    async def names(self, start: str, most: int) -> Sequence[str]:
        """The next names after that one, in order, of which there is a document."""
        own = self._keys.names
        key = self._keys.name(start) + b"\0" if start else own
        request = range_request(key, end_of(own), limit=most, keys_only=True)
        try:
            until = self._loop.time() + PATIENCE
            found = read_range(await self._servers.call("KV/Range", request, until=until)).found
        except CallError as error:
            raise self._failure(error, refused=True) from error
        return [self._keys.name_of(each.key) for each in found]

    async def carry_out(self, name: str, parts: Sequence[Part]) -> Sequence[Any]:
        """See `ByName`."""
        unheard = self._unheard.get(name)
        tries = _Tries(self._loop.time() + PATIENCE, again=unheard is not None)
        try:
            if unheard is not None:
                await self._settle_unheard(unheard, tries.until)
            while True:
                began = self._loop.time()
                attempt = await self._attempt(name, parts, tries)
                if await self._is_done(attempt, tries):
                    return self._finish(attempt, again=tries.again)
                now = self._loop.time()
                if now >= tries.until:
                    raise CallError.not_sent(self._servers.connection.address, tries.why)
                await asyncio.sleep(tries.races.pause(now, now - began))
        except CallError as error:
            if name in self._unheard:
                self._start(self._settle_later(self._unheard[name]))
            refused = tries.all_refused and name not in self._unheard
            raise self._failure(error, refused=refused) from error
        except UNREADABLE as error:
            raise refusal(f"what etcd has of this name is unreadable: {error!r}", error) from error

    async def _is_done(self, attempt: Attempt, tries: _Tries) -> bool:
        """Whether it was done; `CallError` if it is of no use to try again."""
        swap, name = attempt.swap, attempt.name
        try:
            return await self._send(attempt, tries.until)
        except CallError as error:
            unsure = swap.writes and not error.refused
            if unsure:
                self._unheard[name] = attempt  # until it is settled
            if error.lasting or self._loop.time() >= tries.until:
                raise
            tries.why = str(error)
            self._leftovers.doubt(error)
        await asyncio.sleep(tries.backoff.pause())
        if not unsure:
            return False
        tries.all_refused = False
        was_done = await self._settle(swap, tries.until)
        self._unheard.pop(name, None)
        tries.again = tries.again or was_done is None
        return bool(was_done)

    def _failure(self, error: CallError, *, refused: bool) -> StoreError:
        return error.store_error(self._keys.root.decode(), refused=refused)

    async def _settle(self, swap: Swap, until: float) -> bool | None:
        """Make sure that it is over; whether it was done, None if nobody can tell."""
        await self._presence.rewrite(swap.mark, until)
        return await self._swaps.was_done(swap, until)

    async def _settle_unheard(self, attempt: Attempt, until: float) -> None:
        """The same, for one that has failed its operations: what it has begun must be ended."""
        was_done = await self._settle(attempt.swap, until)
        if self._unheard.get(attempt.name) is attempt:
            del self._unheard[attempt.name]
            if was_done:
                for number in range(len(attempt.parts)):
                    self._outcomes.answered(attempt, number)

    async def _settle_later(self, attempt: Attempt) -> None:
        """Settle it if no operation on its name does."""
        while self._unheard.get(attempt.name) is attempt:
            await asyncio.sleep(_LATER)
            with contextlib.suppress(CallError, MalformedError):
                await self._settle_unheard(attempt, self._loop.time() + PATIENCE)
                self._deliver(Reconnected())

    async def _attempt(self, name: str, parts: Sequence[Part], tries: _Tries) -> Attempt:
        attempt = self._run(name, self._known.pop(name, NOTHING), parts, again=tries.again)
        conditions = attempt.conditions(self._keys, self._registry, most=_MOST_CONDITIONS)
        key, stamp = self._keys.name(name), f"{self._client}.{next(self._numbers)} ".encode()
        puts = list[bytes]()
        if attempt.changed is not None:
            lease = await self._leftovers.lease(attempt.changed.keep, tries.until)
            text = stamp + attempt.changed.text.encode("utf-8", "surrogatepass")
            puts.append(put_op(put_request(key, text, lease=lease)))
        for session in attempt.new_sessions:
            await self._leases.make(session)
        attempt.swap = Swap(
            name,
            attempt.version,
            conditions=[is_at(key, attempt.version), *(each.condition for each in conditions)],
            puts=puts,
            letters=attempt.letters(self._registry),
            reads=[key, *dict.fromkeys(each.key for each in conditions)],
            stamp=stamp,
            until=tries.until,
        )
        return attempt

    def _run(self, name: str, known: Known, parts: Sequence[Part], *, again: bool) -> Attempt:
        return Attempt(
            *(name, known, parts, self._client),
            living=self._registry,
            sessions=self._sessions,
            leases=self._leases,
            now=self._clock(),
            began=self._loop.time(),
            again=again,
        )

    async def _send(self, attempt: Attempt, until: float) -> bool:
        """Whether it was done; if not, what is known of the document is newer now."""
        swap = attempt.swap
        # Beside it; if that fails, less of the holds is certain.
        prolonging = [self._leases.prolong(*each) for each in attempt.stale.items()]
        prolonged = asyncio.gather(*prolonging, return_exceptions=True) if prolonging else None
        outcome = self._batches.submit(swap)
        found = await outcome
        if prolonged is not None:
            await prolonged
        if found.succeeded:
            version = found.revision if swap.puts else swap.version
            self._remember(attempt.name, Known(attempt.document.kept(), version))
            return True
        if found.marked:
            for key, each in zip(swap.reads[1:], found.found[1:], strict=True):
                self._registry.read_one(key, each, found.revision)
                if each is None:
                    self._leases.is_gone(key)
            self._remember(attempt.name, known_from(found.found[0]))
        else:
            await self._presence.rewrite(swap.mark, until)
        return False

    def _remember(self, name: str, known: Known) -> None:
        self._known[name] = known
        if len(self._known) > _KNOWN:
            self._known.popitem(last=False)

    def _finish(self, attempt: Attempt, *, again: bool) -> Sequence[Any]:
        """Deliver what follows from it; the answers."""
        document = attempt.document
        missed = again
        for push in document.pushes:
            event = self._outcomes.pushed(push.event, attempt.presence.id)
            if event is None:
                missed = True
            else:
                self._deliver(event)
        answers = [self._outcomes.answered(attempt, n) for n in range(len(attempt.parts))]
        waits = document.waits
        self._waits(attempt.name, waits)
        if waits and attempt.outdated(self._sessions):
            self._deliver(AskAgain(attempt.name))
        if missed:
            self._deliver(Reconnected())
        return answers
