"""All members together: a client joins and registers them, and asks all of them at once."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from aiolock._clock import clock
from aiolock.errors import StoreError
from aiolock.store import ServerStatus
from aiolock.stores._member import Member, Memory, OnReply, QuorumConfig, Registered, Unfit
from aiolock.stores.quorum._clock import Clocks
from aiolock.stores.quorum._connection import Host, MemberConnection

log = logging.getLogger("aiolock")

Value = TypeVar("Value")

OTHERS: Final = 0.3
"""Seconds to wait for the other members once a majority has been joined, or has answered."""
OPEN_TIMEOUT: Final = 9.0
"""Seconds in which a majority has to be joined."""
ANSWER_TIMEOUT: Final = 9.0
"""Seconds after which a missing majority is not waited for any longer."""
_AGAIN: Final = 0.1
_FORGETS: Final = (
    "it was started, or emptied, a short while ago, and may have forgotten its votes: it gives none"
    " until all of them have ended (on the first day see `aiolock init-quorum`)"
)
_PATIENCE: Final = 4.0


class Membership:
    """All members of one client, from its opening to its close."""

    def __init__(self, members: Sequence[Member], config: QuorumConfig, host: Host) -> None:
        self._loop = asyncio.get_running_loop()
        self.time = clock(self._loop)
        self.config = config
        self.size = len(members)
        self.quorum = self.size // 2 + 1
        self.clocks = Clocks(self.size)
        self.connections = [
            MemberConnection(n, member, host, self.time) for n, member in enumerate(members)
        ]
        self._progress = asyncio.Event()
        self._decided = False
        """Whether the members without a config at opening were told whether the quorum is new."""
        self.decides = False
        """Whether a majority votes, as far as that concerns all names: if not, all acquisitions are
        suspended."""
        self.closed = False

    # Joining

    async def join(self, client: str) -> None:
        """Join a majority, and as many others as answer soon; `StoreError` without a majority."""
        for connection in self.connections:
            connection.join(client, self.config)
        end, soon = self.time() + OPEN_TIMEOUT, 0.0
        while not self._is_settled(soon):
            self._progress.clear()
            joined = self._joined()
            if joined >= self.quorum and not soon:
                soon = self.time() + OTHERS
            left = (soon or end) - self.time()
            if left <= 0:
                break
            try:
                async with asyncio.timeout(left):
                    await self._progress.wait()
            except TimeoutError:
                pass
        self._raise_if_unfit()
        if self._joined() < self.quorum:
            raise self.too_few()
        self._decide()
        self._warn_of_clocks()

    def _joined(self) -> int:
        return sum(connection.is_joined for connection in self.connections)

    def _is_settled(self, soon: float) -> bool:
        """Whether opening need not wait any longer."""
        if any(connection.unfit for connection in self.connections):
            return True
        if soon and self.time() >= soon:
            return True
        return all(connection.tried for connection in self.connections)

    def joined(self) -> None:
        """An attempt to join a member has succeeded or failed."""
        self._progress.set()

    def _raise_if_unfit(self) -> None:
        for connection in self.connections:
            if connection.unfit is not None:
                raise connection.unfit

    def registered(self, connection: MemberConnection, registered: Registered) -> None:
        """A member was registered: which run of the server it is, and for how long it does not
        vote.
        """
        if connection.run and connection.run != registered.run:
            self.clocks.forget(connection.number)
        connection.run = registered.run
        self.clocks.learn(connection.number, registered.now, self.time())
        for other in self.connections:
            if other is not connection and other.run == connection.run and other.unfit is None:
                first, second = sorted((other, connection), key=lambda each: each.number)
                second.unfit = Unfit(
                    f"{first.member.address} and {second.member.address} are one server, which"
                    " counts once: list servers that fail independently"
                )
                log.error("aiolock: %s", second.unfit)
        if connection.unknown and self._decided:
            # The other members have the config of this quorum, so this one has lost its memory.
            connection.register(Memory.LOST)

    def _decide(self) -> None:
        """Decide about the members without a config: if they are a majority, the quorum is new."""
        self._decided = True
        unknown = [
            connection
            for connection in self.connections
            if connection.is_joined and connection.unknown
        ]
        memory = Memory.NEW if len(unknown) >= self.quorum else Memory.LOST
        for connection in unknown:
            connection.register(memory)

    def _warn_of_clocks(self) -> None:
        for connection in self.connections:
            off = self.clocks.off(connection.number)
            if off is not None and abs(off) > self.config.longest / 1000:
                log.warning(
                    "aiolock: the clock of %s is %.0f s off that of the others: fences may not grow"
                    " where a majority of the servers loses its memory",
                    connection.member.address,
                    off,
                )

    async def leave(self) -> None:
        """Leave all members."""
        self.closed = True
        await asyncio.gather(*(connection.leave(_PATIENCE) for connection in self.connections))

    # Members in reach

    @property
    def in_reach(self) -> int:
        """How many members can be asked."""
        return sum(connection.in_reach for connection in self.connections)

    @property
    def able(self) -> bool:
        """Whether a majority can be asked."""
        return self.in_reach >= self.quorum

    @property
    def has_majority_of_votes(self) -> bool:
        """Whether a majority can be asked for a vote, and may give one."""
        return sum(connection.votes for connection in self.connections) >= self.quorum

    def too_few(self) -> StoreError:
        """The error that a majority cannot be asked, with the reasons."""
        missing = [connection for connection in self.connections if not connection.in_reach]
        said = ", ".join(f"{connection.member.address}: {connection.why}" for connection in missing)
        if len(missing) > self.size - self.quorum:
            return StoreError(f"{len(missing)} of {self.size} servers do not answer: {said}")
        return StoreError(
            f"fewer than {self.quorum} of {self.size} servers have answered in"
            f" {ANSWER_TIMEOUT:.0f} s" + (f": {said}" if said else "")
        )

    def servers(self, votes: Callable[[int], int]) -> list[ServerStatus]:
        """The state of each member."""
        now = self.time()
        return [
            ServerStatus(
                address=connection.member.address,
                state=self._state(connection, now),
                not_voting=self._not_voting(connection, now),
                clock=self.clocks.off(connection.number),
                votes=votes(connection.number),
                error=self._why(connection, now),
            )
            for connection in self.connections
        ]

    def _why(self, connection: MemberConnection, now: float) -> str:
        """The reason why it does not answer, or does not vote; empty if it does."""
        if not connection.in_reach or connection.refusal is not None:
            return connection.why
        return _FORGETS if self._not_voting(connection, now) else ""

    @staticmethod
    def _not_voting(connection: MemberConnection, now: float) -> float:
        """For how many seconds it does not vote, if that is known."""
        known = connection.is_joined and connection.silent_until < math.inf
        return max(0.0, connection.silent_until - now) if known else 0.0

    @staticmethod
    def _state(connection: MemberConnection, now: float) -> str:
        if not connection.in_reach:
            return "out"
        return "not voting" if connection.unknown or connection.silent_until > now else "up"

    # Asking all of them

    def ask(
        self,
        start: Callable[[Member, OnReply], None],
        conclude: Callable[[dict[int, Any]], Value],
    ) -> asyncio.Future[Value]:
        """Ask all members in reach, and conclude from the answers of a majority at least."""
        future: asyncio.Future[Value] = self._loop.create_future()
        poll = _Poll(self, start, conclude, future)
        poll.begin(self.time() + ANSWER_TIMEOUT)
        return future


class _Poll:
    """One question to all members."""

    def __init__(
        self,
        membership: Membership,
        start: Callable[[Member, OnReply], None],
        conclude: Callable[[dict[int, Any]], Any],
        future: asyncio.Future[Any],
    ) -> None:
        self._membership = membership
        self._start = start
        self._conclude = conclude
        self._future = future
        self._loop = asyncio.get_running_loop()
        self._answers: dict[int, Any] = {}
        self._failures: list[Exception] = []
        self._asked = 0
        self._enough = False

    def begin(self, until: float) -> None:
        """Ask the members once a majority can be asked; give up at ``until``."""
        membership, future = self._membership, self._future
        if future.done():
            return
        left = until - membership.time()
        if left <= 0 or membership.closed:
            future.set_exception(membership.too_few())
        elif not membership.able:
            self._loop.call_later(_AGAIN, self.begin, until)
        else:
            connections = [
                connection for connection in membership.connections if connection.in_reach
            ]
            self._asked = len(connections)
            self._loop.call_later(min(OTHERS, left), self._is_enough)
            self._loop.call_later(left, self._is_over)
            for connection in connections:
                connection.asked()
                self._start(connection.member, partial(self._heard, connection, membership.time()))

    def _heard(
        self, connection: MemberConnection, sent: float, answer: Any, error: Exception | None
    ) -> None:
        if error is None:
            connection.answered(sent)
            self._answers[connection.number] = answer
        else:
            self._failures.append(error)
        self._look()

    def _is_enough(self) -> None:
        """The other members have had their time: conclude without them."""
        self._enough = True
        self._look()

    def _look(self) -> None:
        if self._future.done():
            return
        on_reply = len(self._answers)
        if on_reply + len(self._failures) == self._asked or self._enough:
            if on_reply >= self._membership.quorum:
                self._future.set_result(self._conclude(self._answers))
            elif on_reply + len(self._failures) == self._asked:
                self._is_over()

    def _is_over(self) -> None:
        if not self._future.done():
            error = self._failures[0] if self._failures else self._membership.too_few()
            self._future.set_exception(error)
