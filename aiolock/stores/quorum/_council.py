"""All members together: a client joins them, enrols them, and asks all of them at once."""

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
from aiolock.stores._member import Charter, Enrolled, Heard, Member, Memory, Unfit
from aiolock.stores.quorum._clock import Clocks
from aiolock.stores.quorum._seat import Host, Seat

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


class Council:
    """All members of one client, from its opening to its close."""

    def __init__(self, members: Sequence[Member], charter: Charter, host: Host) -> None:
        self._loop = asyncio.get_running_loop()
        self.time = clock(self._loop)
        self.charter = charter
        self.size = len(members)
        self.quorum = self.size // 2 + 1
        self.clocks = Clocks(self.size)
        self.seats = [Seat(n, member, host, self.time) for n, member in enumerate(members)]
        self._progress = asyncio.Event()
        self._decided = False
        """Whether the members that knew of no quorum at opening have been told what they are."""
        self.decides = False
        """Whether a majority votes, as far as that concerns all names: else all stand aside."""
        self.closed = False

    # Joining

    async def join(self, client: str) -> None:
        """Join a majority, and as many others as answer soon; `StoreError` without a majority."""
        for seat in self.seats:
            seat.join(client, self.charter)
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
        return sum(seat.is_joined for seat in self.seats)

    def _is_settled(self, soon: float) -> bool:
        """Whether there is nothing left to wait for."""
        if any(seat.unfit for seat in self.seats):
            return True
        if soon and self.time() >= soon:
            return True
        return all(seat.tried for seat in self.seats)

    def joined(self) -> None:
        """An attempt to join a member has succeeded or failed."""
        self._progress.set()

    def _raise_if_unfit(self) -> None:
        for seat in self.seats:
            if seat.unfit is not None:
                raise seat.unfit

    def enrolled(self, seat: Seat, enrolled: Enrolled) -> None:
        """A member has said which run it is, and for how long it does not vote."""
        if seat.run and seat.run != enrolled.run:
            self.clocks.forget(seat.number)
        seat.run = enrolled.run
        self.clocks.heard(seat.number, enrolled.now, self.time())
        for other in self.seats:
            if other is not seat and other.run == seat.run and other.unfit is None:
                first, second = sorted((other, seat), key=lambda each: each.number)
                second.unfit = Unfit(
                    f"{first.member.address} and {second.member.address} are one server, which"
                    " counts once: list servers that fail independently"
                )
                log.error("aiolock: %s", second.unfit)
        if seat.unknown and self._decided:
            # The other members know of this quorum, so this one has forgotten it.
            seat.enrol(Memory.LOST)

    def _decide(self) -> None:
        """Tell the members that know of no quorum: if they are a majority, the quorum is new."""
        self._decided = True
        unknown = [seat for seat in self.seats if seat.is_joined and seat.unknown]
        memory = Memory.NEW if len(unknown) >= self.quorum else Memory.LOST
        for seat in unknown:
            seat.enrol(memory)

    def _warn_of_clocks(self) -> None:
        for seat in self.seats:
            off = self.clocks.off(seat.number)
            if off is not None and abs(off) > self.charter.longest / 1000:
                log.warning(
                    "aiolock: the clock of %s is %.0f s off that of the others: fences may not grow"
                    " where a majority of the servers loses its memory",
                    seat.member.address,
                    off,
                )

    async def leave(self) -> None:
        """Leave all members."""
        self.closed = True
        await asyncio.gather(*(seat.leave(_PATIENCE) for seat in self.seats))

    # Members in reach

    @property
    def in_reach(self) -> int:
        """How many members can be asked."""
        return sum(seat.in_reach for seat in self.seats)

    @property
    def able(self) -> bool:
        """Whether a majority can be asked."""
        return self.in_reach >= self.quorum

    @property
    def has_majority_of_votes(self) -> bool:
        """Whether a majority can be asked for a vote, and may give one."""
        return sum(seat.votes for seat in self.seats) >= self.quorum

    def too_few(self) -> StoreError:
        """The error that a majority cannot be asked, with the reasons."""
        missing = [seat for seat in self.seats if not seat.in_reach]
        said = ", ".join(f"{seat.member.address}: {seat.why}" for seat in missing)
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
                address=seat.member.address,
                state=self._state(seat, now),
                silent=self._silent(seat, now),
                clock=self.clocks.off(seat.number),
                votes=votes(seat.number),
                error=self._why(seat, now),
            )
            for seat in self.seats
        ]

    def _why(self, seat: Seat, now: float) -> str:
        """Why it does not answer, or does not vote; empty if it does."""
        if not seat.in_reach or seat.refusal is not None:
            return seat.why
        return _FORGETS if self._silent(seat, now) else ""

    @staticmethod
    def _silent(seat: Seat, now: float) -> float:
        """For how many seconds it does not vote, if that is known."""
        known = seat.is_joined and seat.silent_until < math.inf
        return max(0.0, seat.silent_until - now) if known else 0.0

    @staticmethod
    def _state(seat: Seat, now: float) -> str:
        if not seat.in_reach:
            return "out"
        return "silent" if seat.unknown or seat.silent_until > now else "up"

    # Asking all of them

    def ask(
        self,
        start: Callable[[Member, Heard], None],
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
        council: Council,
        start: Callable[[Member, Heard], None],
        conclude: Callable[[dict[int, Any]], Any],
        future: asyncio.Future[Any],
    ) -> None:
        self._council = council
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
        council, future = self._council, self._future
        if future.done():
            return
        left = until - council.time()
        if left <= 0 or council.closed:
            future.set_exception(council.too_few())
        elif not council.able:
            self._loop.call_later(_AGAIN, self.begin, until)
        else:
            seats = [seat for seat in council.seats if seat.in_reach]
            self._asked = len(seats)
            self._loop.call_later(min(OTHERS, left), self._is_enough)
            self._loop.call_later(left, self._is_over)
            for seat in seats:
                seat.asked()
                self._start(seat.member, partial(self._heard, seat, council.time()))

    def _heard(self, seat: Seat, sent: float, answer: Any, error: Exception | None) -> None:
        if error is None:
            seat.answered(sent)
            self._answers[seat.number] = answer
        else:
            self._failures.append(error)
        self._look()

    def _is_enough(self) -> None:
        """The other members have had their time."""
        self._enough = True
        self._look()

    def _look(self) -> None:
        if self._future.done():
            return
        heard = len(self._answers)
        if heard + len(self._failures) == self._asked or self._enough:
            if heard >= self._council.quorum:
                self._future.set_result(self._conclude(self._answers))
            elif heard + len(self._failures) == self._asked:
                self._is_over()

    def _is_over(self) -> None:
        if not self._future.done():
            error = self._failures[0] if self._failures else self._council.too_few()
            self._future.set_exception(error)
