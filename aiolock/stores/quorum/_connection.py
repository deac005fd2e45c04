"""The connection to one member: whether it is in reach, whether it votes, and its pushes."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Final, Protocol

from aiolock.backoff import Backoff
from aiolock.errors import QuorumMismatch, StoreError
from aiolock.protocol import (
    AskAgain,
    Form,
    GrantLost,
    GrantPushed,
    GrantUnconfirmed,
    Heartbeat,
    LeaseShortened,
    LinkChanged,
    OrderUnknown,
    Reconnected,
    ReleaseRequested,
    WaiterId,
)
from aiolock.stores._member import (
    Member,
    MemberEvent,
    MemberRegistered,
    Memory,
    QuorumConfig,
    Registered,
    RegistrationRefused,
    Unfit,
    VoteInquired,
)

log = logging.getLogger("aiolock")

RETRY: Final = 0.5
"""Seconds until a member that has refused an answer is asked again."""
OUT_AFTER: Final = 0.25
"""Seconds for which an answer may be missing; after that the member is asked nothing new."""
_FAR: Final = 4
"""The same in round trips, if that is longer: a member may be far away."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0


class PushReceiver(Protocol):
    """The receiver of a member's pushes; a member is named by its number."""

    def granted(self, server: int, waiter: WaiterId, number: int, lease: int, now: int) -> None:
        """The member has voted for this waiter."""

    def foreign(self, server: int, name: str, waiter: WaiterId, form: Form) -> None:
        """The member has voted for a waiter that has ended."""

    def knows(self, waiter: WaiterId) -> bool:
        """Whether this waiter has not ended."""
        ...

    def inquired(self, server: int, waiter: WaiterId, number: int) -> None:
        """The member asks for this vote back, unless the waiter has a majority."""

    def vote_lost(self, server: int, name: str, waiter: WaiterId, number: int, reason: str) -> None:
        """The member has taken this vote away."""

    def closed(self, name: str) -> None:
        """The member gives no votes of this name for a while."""

    def requested(self, waiter: WaiterId) -> None:
        """A client asks this waiter to release the lock."""


class Host(Protocol):
    """The receiver of a connection's events."""

    @property
    def pushes(self) -> PushReceiver:
        """The receiver of pushes."""
        ...

    def joined(self, connection: MemberConnection) -> None:
        """The member was joined, or joining it has failed."""

    def registered(self, connection: MemberConnection, registered: Registered) -> None:
        """The member was registered: which run of the server it is, and for how long it does not
        vote.
        """

    def reach_changed(self, connection: MemberConnection) -> None:
        """The member came in reach, or went out of reach."""

    def voting_changed(self) -> None:
        """The member may have begun or stopped to vote."""

    def ask_there(self, server: int) -> None:
        """Pushes of the member may have been lost: ask it again."""


class MemberConnection:
    """One member, and what its events mean."""

    def __init__(self, number: int, member: Member, host: Host, time: Callable[[], float]) -> None:
        self.number = number
        self.member = member
        self._host = host
        self._time = time
        self._loop = asyncio.get_running_loop()
        self.is_joined = False
        self.tried = False
        """Whether an attempt to join it has ended."""
        self.error: Exception | None = None
        """The reason why the member could not be joined, or why its link is down."""
        self.unfit: Exception | None = None
        """The reason why the server cannot be a member at all."""
        self._down = False
        self._overdue = False
        self.run = ""
        self.clock = 0
        """The number of the server's clock: another one if the server was restarted or replaced."""
        self.unknown = False
        """It has no quorum config, so it needs to be told whether it ever had one (`Memory`)."""
        self.silent_until = 0.0
        """The local time until which the member does not vote; endless until it is registered."""
        self._silence: asyncio.TimerHandle | None = None
        """Fires when the member votes again."""
        self.refusal: Exception | None = None
        """The last error of a registration."""
        self._enrolling = False
        self._enrol_again: asyncio.TimerHandle | None = None
        self._enrolling_again = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._round_trip = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._joining: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def in_reach(self) -> bool:
        """Whether the member can be asked."""
        able = self.is_joined and self.unfit is None
        return able and not self._down and not self._overdue

    @property
    def votes(self) -> bool:
        """Whether the member can be asked for a vote, and may give one."""
        not_voting = self.silent_until > self._time()
        return self.in_reach and not not_voting

    @property
    def why(self) -> str:
        """Why the member is not in reach, or does not vote, as text for people."""
        error = self.unfit or self.error or self.refusal
        if error is not None:
            return str(error) or type(error).__name__
        return "no answer yet" if not self.is_joined else "does not answer"

    # Joining and leaving

    def join(self, client: str, config: QuorumConfig) -> None:
        """Join the member, now or as soon as possible."""
        self._joining = asyncio.create_task(self._join(client, config), name="aiolock join")

    async def _join(self, client: str, config: QuorumConfig) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, jitter=True)
        # Ends by the flag, too: cancellation alone can get lost in a driver (cpython gh-86296).
        while not self._closed:
            try:
                await self.member.join(client, self.deliver, config)
            except StoreError as error:
                self.tried, self.error = True, error
                if isinstance(error, QuorumMismatch | Unfit):
                    self.unfit = error
                self._host.joined(self)
                await asyncio.sleep(backoff.pause())
                self.unfit = None
            else:
                self.tried = self.is_joined = True
                self.error = None
                self._host.joined(self)
                return

    async def leave(self, patience: float) -> None:
        """Leave the member; idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._register_no_more()
        if self._silence is not None:
            self._silence.cancel()
        if self._joining is not None and not self._joining.done():
            self._joining.cancel()
            await asyncio.wait([self._joining])
        if self.is_joined:
            await self.member.leave(patience if self.in_reach else 0.0)

    # Whether it answers

    def asked(self) -> None:
        """A question was sent just now: check later that it is answered."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._patience, self._look)

    @property
    def _patience(self) -> float:
        return max(OUT_AFTER, _FAR * self._round_trip)

    def answered(self, sent: float) -> float:
        """The member has answered a question of that time; returns the time now."""
        now = self._time()
        took = now - sent
        # About the shortest of the last round trips: a pause does not make a member far away.
        self._round_trip = min(took, self._round_trip * 1.1 + 0.001) if self._round_trip else took
        if self._overdue:
            self._look_again()
        return now

    def _look(self) -> None:
        self._timer = None
        waits = self.member.waits_for()
        if waits > 0.0 or self._overdue:
            late = waits >= self._patience * 0.99
            rest = self._patience if late else self._patience - waits
            self._timer = self._loop.call_later(max(0.01, rest), self._look)
            self._set_overdue(late)

    def _look_again(self) -> None:
        self._set_overdue(self.member.waits_for() >= self._patience)

    def _set_overdue(self, late: bool) -> None:  # noqa: FBT001  # what it is named for
        if late != self._overdue:
            self._overdue = late
            self._host.reach_changed(self)

    def clock_changed(self) -> None:
        """The server was restarted or replaced: earlier answers tell nothing of its clock."""
        self.clock += 1

    # Registration

    def _registered(self, registered: Registered) -> None:
        self._enrolling = False
        self.unknown = registered.left < 0
        if registered.left > 0:
            log.warning(
                "aiolock: %s does not vote for %.0f s: it was started, or emptied, a short while"
                " ago, and may have forgotten its votes",
                self.member.address,
                registered.left / 1000,
            )
        self.not_voting(registered.left)
        if self.unknown:
            self._register_later()
        else:
            self._register_no_more()
            self._enrolling_again.reset()
            self.refusal = None
        self._host.registered(self, registered)

    def _not_registered(self, error: Exception) -> None:
        self._enrolling = False
        if self._closed:
            return
        if self.refusal is None:
            log.warning(
                "aiolock: %s cannot be enrolled, and does not vote: %s", self.member.address, error
            )
        self.refusal, self.unknown = error, True
        self.not_voting(-1)
        self._register_later()

    def register(self, memory: Memory) -> None:
        """Register the member again, unless that is under way."""
        if memory is Memory.UNSAID and self._enrolling:
            return
        self._register_no_more()
        self._enrolling = True
        if memory is Memory.NEW:
            self.not_voting(0)  # it votes: later questions come behind this
        self.member.register(memory)

    def _register_later(self) -> None:
        """Register it again in a while: here, and not once for each waiter that asks it
        for a vote.
        """
        self._register_no_more()
        pause = self._enrolling_again.pause()
        self._enrol_again = self._loop.call_later(pause, self.register, Memory.UNSAID)

    def _register_no_more(self) -> None:
        if self._enrol_again is not None:
            self._enrol_again.cancel()
            self._enrol_again = None

    def not_voting(self, left: int) -> float:
        """The member does not vote for so many ms; returns until when, by our clock.

        Less than 0: until it is registered, and then all waiters ask it.
        """
        if left < 0:
            self.silent_until = math.inf
        else:
            self.silent_until = self._time() + left * 0.00102 + 0.003 if left else 0.0
        self._look_whether_silent()
        return self.silent_until

    def _look_whether_silent(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
        left = self.silent_until - self._time()
        if 0 < left < math.inf and not self._closed:
            self._silence = self._loop.call_later(max(0.001, left), self._look_whether_silent)
        self._loop.call_soon(self._host.voting_changed)

    def forgot(self) -> None:
        """The member has answered that it does not vote until it is registered: do so."""
        if self._enrol_again is None:
            self.register(Memory.UNSAID)

    # Events

    def deliver(self, event: MemberEvent) -> None:  # noqa: C901  # one case for each kind
        """Process an event of the member.

        It shortens no lease and confirms no grant by replicas, and no answer has a `before`. A
        heartbeat is of no use here: no question is asked instead.
        """
        pushes = self._host.pushes
        match event:
            case GrantPushed(name, waiter, form, number, lease, now):
                if pushes.knows(waiter):
                    pushes.granted(self.number, waiter, number, lease, now)
                else:
                    pushes.foreign(self.number, name, waiter, form)
            case VoteInquired(_, waiter, number):
                pushes.inquired(self.number, waiter, number)
            case GrantLost(name, waiter, number, reason):
                pushes.vote_lost(self.number, name, waiter, number, reason)
            case AskAgain(name):
                pushes.closed(name)
            case ReleaseRequested(_, waiter):
                pushes.requested(waiter)
            case Reconnected():
                self._host.ask_there(self.number)
            case LinkChanged(error):
                self._link_changed(error)
            case MemberRegistered(registered):
                self._registered(registered)
            case RegistrationRefused(error):
                self._not_registered(error)
            case LeaseShortened() | GrantUnconfirmed() | OrderUnknown() | Heartbeat():
                pass

    def _link_changed(self, error: Exception | None) -> None:
        before, self.error = self.error, error
        if isinstance(error, QuorumMismatch | Unfit) and str(error) != str(before):
            log.error("aiolock: %s", error)
        if (error is not None) != self._down:
            self._down = error is not None
            self._host.reach_changed(self)
