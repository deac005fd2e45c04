"""From "asked" to "granted": one acquisition, its place in the queue, and how it gives up.

Nothing here is sent by the caller's own task in a way that its cancellation could undo: an
operation is started by the call (see `Store`), so that all a cancellation ends is the waiting.
Whoever stops waiting, for whatever reason, sends one `release`, which takes back the place in the
queue or the grant that came at that very moment, whichever it is.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from functools import lru_cache, partial
from typing import Any, Final, cast

from aiolock._backstop import Line
from aiolock._entered import Entered
from aiolock._hold import Hold, Owner, lasts
from aiolock._keeper import Keeper
from aiolock._policy import Policy, to_ms
from aiolock._waiter import Turn, Waiter
from aiolock.errors import ClientClosed, LimitMismatch, QueueFull, StoreError, WouldDeadlock
from aiolock.store import (
    CLAIM,
    Answer,
    Differs,
    Done,
    Full,
    Granted,
    Queued,
    Store,
    WaiterId,
)

_TOO_LATE: Final = 5
"""Grants in a row that came after they had ended, until we call the store too slow for the ttl."""

TRY_AGAIN: Final = 1.0
"""Seconds after which a release is sent once more that the store never answered."""

_CLOSED: Final = "was closed: connect() gives another"


class _TimedOut(Exception):
    """The caller's timeout ended the waiting."""


class AlreadyDone(Exception):
    """What was to be done once is done."""


class WaitingRoom:
    """The open acquisitions of one client; what the store pushes arrives here (see `Inbox`)."""

    keeper: Keeper
    _loop: asyncio.AbstractEventLoop

    def __init__(self, store: Store) -> None:
        self.store = store
        self.client = secrets.token_urlsafe(12)  # 96 bits, and no ":" in it
        self._opened = False
        self._why_not = "is not open yet: use `async with`, or await its open()"
        self._counted = True
        self._seq = itertools.count(1)
        self._stem = lru_cache(maxsize=256)(self._waiter_stem)
        self._waiters: dict[str, Waiter] = {}
        self._lines: dict[str, Line] = {}
        self._unreleased: dict[str, str] = {}
        self._trying_again: asyncio.TimerHandle | None = None
        self.entered = Entered()

    async def open(self) -> None:
        """Connect; `StoreError` when the store cannot be reached or used."""
        if self._opened:
            raise ClientClosed("a client opens once: connect() gives another")
        self._loop = asyncio.get_running_loop()
        self._opened = True
        try:
            self.keeper = Keeper(self.store)
            self._counted = await self.store.open(self.client, self)
        except BaseException:
            self._opened = False  # a lifespan may try again
            raise
        self._why_not = ""

    def check(self) -> None:
        """`ClientClosed` unless the client is open, in this process and this event loop."""
        if self._why_not:
            raise ClientClosed(f"this client {self._why_not}")
        self.keeper.check_here()

    def check_here(self) -> None:
        """`ClientClosed` in another process or event loop than it was opened in."""
        if self._opened and self._why_not != _CLOSED:
            self.keeper.check_here()

    async def acquire(
        self, policy: Policy, owner: Owner, *, timeout: float | None, wait: bool
    ) -> Hold | None:
        """Take the lock, or wait for it; None when ``timeout`` has passed or it is not free.

        The caller has called `check`.
        """
        held = self._held(policy, owner)
        if held is not None:
            return held
        ttl = to_ms(policy.ttl if policy.max_hold is None else min(policy.ttl, policy.max_hold))
        waiter_id = f"{self._stem(ttl, policy.form)}{next(self._seq)}"
        waiter = Waiter(waiter_id, policy, ttl, self._loop.time())
        self._waiters[waiter.id] = waiter
        timer = None
        if timeout is not None and wait:
            timer = self._loop.call_later(timeout, waiter.interrupt, _TimedOut())
        try:
            turn = await self._turn(waiter, wait=wait)
        except _TimedOut:
            self._give_up(waiter)
            if not waiter.answered:
                raise StoreError(
                    f"the store did not answer within the timeout of {timeout:g} s, so nobody knows"
                    f" who holds {policy.called}"
                ) from None
            return None
        except BaseException:
            self._give_up(waiter)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            loose = self._leave(waiter)
        if turn is None:
            return None
        if self._why_not:  # closed since the grant, which it then has given back
            self.check()
        fence, lease, deadline = turn
        ends = None if policy.max_hold is None else self._loop.time() + policy.max_hold
        # A claim is shorter than the ttl and is confirmed once, even where nothing is renewed.
        hold = Hold(
            policy,
            owner,
            waiter.id,
            ttl=ttl,
            fence=fence,
            deadline=deadline,
            ends=ends,
            unconfirmed=lease < ttl,
            loose=loose,
        )
        hold.wanted = waiter.wanted == fence
        self.keeper.keep(hold, lease)
        return hold

    def _held(self, policy: Policy, owner: Owner) -> Hold | None:
        """What the owner holds already, where it may have it once more."""
        held = self.keeper.held_by(owner) if not policy.rule else None  # permits add up
        if held is None:
            return None
        if (held.shared or held.policy.shared) and not policy.shared:
            raise WouldDeadlock(
                f"this task reads {policy.name!r} and would wait for itself to write. A read lock"
                " is not upgraded, for of two readers that both want to write neither could go on:"
                " release it and acquire the write lock, or begin with that one and downgrade() it"
            )
        if not policy.reentrant:
            raise WouldDeadlock(
                f"this task holds {policy.called} already and would wait for itself:"
                " pass the lease on, or make the lock reentrant=True"
            )
        return held

    def _waiter_stem(self, ttl: int, form: WaiterId) -> str:
        """A waiter's id but for its number at the end."""
        # Who missed that its group went on must find it when it asks, however late.
        claim = ttl if form.rule.startswith("&") else min(ttl, CLAIM)
        who = form._replace(blind=not self._counted, claim=claim, client=self.client)
        return str(who)[:-1]

    async def _turn(self, waiter: Waiter, *, wait: bool) -> Turn | None:
        """Ask, wait for the push, and make sure it did not come too late."""
        for _ in range(_TOO_LATE):
            if waiter.interrupted is not None:
                raise waiter.interrupted
            waiter.turn = waiter.pushed = None
            sent = waiter.last_asked = self._loop.time()
            answer = await self._ask(waiter, wait=wait)
            if isinstance(answer, Granted | Queued) and answer.displaced:
                self._displaced(waiter)
            if isinstance(answer, Granted):
                turn = (answer.fence, answer.lease, sent + lasts(answer.lease))
            elif isinstance(answer, Queued):
                turn = await self._pushed(waiter, sent, answer)
            elif isinstance(answer, Full):
                waiter.given_up = True  # there is nothing to give up
                raise QueueFull(
                    f"{answer.waiters} wait for {waiter.policy.called} already"
                    f" (max_waiters={waiter.policy.max_waiters})"
                )
            elif isinstance(answer, Done):
                waiter.given_up = True
                raise AlreadyDone
            elif isinstance(answer, Differs):
                raise _mismatch(waiter.policy, answer)
            else:
                return None
            in_time = self._loop.time() < turn[2] and turn[0] > waiter.void
            if in_time or waiter.policy.passes:
                return turn
            await self._give_back(waiter, turn[0])
        raise StoreError(
            f"{waiter.policy.called} was granted {_TOO_LATE} times and each time its lease"
            f" had ended before we knew: ttl={waiter.policy.ttl:g} s is too short for this store"
        )

    async def _give_back(self, waiter: Waiter, fence: int) -> None:
        """Let go of a grant that may have ended before we knew, for we were stopped or blocked.

        It is given back, lest the others wait for its end, and we ask again for our old place:
        once the store has answered, for it must not find the old grant and take it for the new.
        """
        waiter.void = max(waiter.void, fence)
        if waiter.asked is not None:
            waiter.asked.cancel()  # a question after which the push came
        waiter.turn, waiter.asked = None, self._release(waiter, fence)
        if waiter.interrupted is not None:  # meanwhile: so not until the store has answered
            raise waiter.interrupted
        await waiter.asked

    def _ask(self, waiter: Waiter, *, wait: bool) -> asyncio.Future[Answer]:
        policy = waiter.policy
        waiter.asked = asked = self.store.acquire(
            policy.name,
            waiter.id,
            waiter.ttl,
            ticket=waiter.ticket,
            wait=wait,
            max_waiters=policy.max_waiters or 0,
        )
        return asked

    async def _pushed(self, waiter: Waiter, sent: float, answer: Queued) -> Turn:
        if waiter.policy.name not in self._lines:
            self._lines[waiter.policy.name] = Line(self._ask_again)
        self._placed(waiter, sent, answer)
        if waiter.pushed is not None:  # the push overtook the reply, on the other connection
            return waiter.pushed
        if waiter.interrupted is not None:
            raise waiter.interrupted
        waiter.turn = self._loop.create_future()
        if waiter.outdated:
            self._ask_again(waiter)
        return await waiter.turn

    def _placed(self, waiter: Waiter, sent: float, answer: Queued) -> None:
        waiter.answered = True
        waiter.ticket = answer.ticket
        waiter.sent, waiter.store_time = sent, answer.now
        self._lines[waiter.policy.name].queued(waiter, answer)

    def _ask_again(self, waiter: Waiter) -> None:
        if waiter.turn is None or waiter.asking:
            waiter.outdated = True  # there is a question under way: after its answer
        elif not waiter.turn.done():
            waiter.outdated, waiter.asking = False, True
            sent = waiter.last_asked = self._loop.time()
            self._ask(waiter, wait=True).add_done_callback(partial(self._answered, waiter, sent))

    def _answered(self, waiter: Waiter, sent: float, answered: asyncio.Future[Answer]) -> None:
        """What came back when a waiter in the queue had asked again."""
        waiter.asking = False
        turn = waiter.turn
        if not _heard(answered):
            if not answered.cancelled() and turn is not None and not turn.done():
                turn.set_exception(cast(Exception, answered.exception()))
        elif turn is None or turn.done():
            waiter.loose = True  # a push was quicker
        elif isinstance(answer := answered.result(), Granted | Queued):
            if answer.displaced:
                self._displaced(waiter)
            if isinstance(answer, Granted):
                turn.set_result((answer.fence, answer.lease, sent + lasts(answer.lease)))
                return
            self._placed(waiter, sent, answer)
            if waiter.outdated:
                self._ask_again(waiter)
        elif isinstance(answer, Done):
            waiter.given_up = True
            turn.set_exception(AlreadyDone())
        elif isinstance(answer, Differs):
            turn.set_exception(_mismatch(waiter.policy, answer))

    def _displaced(self, found: Waiter) -> None:
        """This waiter's place was gone; whatever took it may have taken those of the others."""
        for waiter in list(self._waiters.values()):
            same = waiter.policy.name == found.policy.name and waiter is not found
            if same and waiter.last_asked < found.last_asked:
                self._ask_again(waiter)

    def _leave(self, waiter: Waiter) -> bool:
        """The waiting is over, one way or the other; whether a push was quicker than an answer.

        If the lock was granted by a push meanwhile, and that grant ends before the store comes to
        the question, the waiter will stand in the queue once more. So the release that ends it
        must not speak of that grant alone.
        """
        del self._waiters[waiter.id]
        if waiter.asking and waiter.asked is not None:
            waiter.loose = True
            waiter.asked.cancel()  # or it might be sent again after the release
        name = waiter.policy.name
        line = self._lines.get(name)
        if line is not None and line.leave(waiter):
            del self._lines[name]
        return waiter.loose

    def _give_up(self, waiter: Waiter) -> None:
        if not waiter.given_up:
            waiter.given_up = True
            if waiter.asked is not None:
                waiter.asked.cancel()  # or it might be sent again after the release
            _ = self._release(waiter, 0)

    def _release(self, waiter: Waiter, fence: int) -> asyncio.Future[int]:
        return self._release_for(waiter.policy.name, waiter.id, fence)

    def _release_for(self, name: str, waiter_id: str, fence: int) -> asyncio.Future[int]:
        released = self.store.release(name, waiter_id, fence)
        released.add_done_callback(partial(self._released, name, waiter_id, fence))
        return released

    def _released(
        self, name: str, waiter_id: str, fence: int, released: asyncio.Future[int]
    ) -> None:
        # Of a waiter that has given up, whatever the store may still have of it is in the way. But
        # one that gave back a certain grant may hold the lock by another: that one it keeps.
        if not _heard(released) and not fence and not self._why_not:
            self._unreleased[waiter_id] = name
            if self._trying_again is None:
                self._trying_again = self._loop.call_later(TRY_AGAIN, self._try_again)

    def _try_again(self) -> None:
        """Release who gave up and was not heard; until the store answers."""
        self._trying_again = None
        unreleased, self._unreleased = self._unreleased, {}
        for waiter_id, name in unreleased.items():
            _ = self._release_for(name, waiter_id, 0)

    # Inbox: what the store pushes

    def granted(self, name: str, waiter: str, fence: int, lease: int, now: int) -> None:
        granted = self._waiters.get(waiter)
        if granted is None:
            hold = self.keeper.holds.get(waiter)
            if hold is None or hold.fence != fence:
                # It gave up, and the store had not heard of that: what it got is somebody else's.
                _ = self._release_for(name, waiter, fence)
            return
        if fence <= granted.void:
            return  # it was given back, or taken away
        turn = (fence, lease, granted.deadline(lease, now, self._loop.time()))
        if granted.turn is None:
            granted.pushed = turn
        elif not granted.turn.done():
            granted.turn.set_result(turn)

    def lost(self, name: str, waiter: str, fence: int, reason: str) -> None:
        hold = self.keeper.holds.get(waiter)
        if hold is not None and hold.fence == fence:
            self.keeper.lose(hold, reason)
        elif waiter in self._waiters:
            # Its grant is on its way to the task.
            self._waiters[waiter].void = max(self._waiters[waiter].void, fence)
        if reason == "expired":
            # We were taken for stuck, so our waiters have left the queue.
            for other in list(self._waiters.values()):
                if other.policy.name == name:
                    self._ask_again(other)

    def done(self, name: str) -> None:
        # The word may be old, and what it speaks of forgotten: the answer is not.
        if name in self._lines:
            self._ask_again(self._lines[name].first)
        for waiter in list(self._waiters.values()):
            if waiter.policy.name == name and waiter.policy.once:
                self._ask_again(waiter)

    def requested(self, name: str, waiter: str, fence: int) -> None:  # noqa: ARG002  # an Inbox's
        hold = self.keeper.holds.get(waiter)
        if hold is not None and hold.fence == fence:
            hold.wanted = True
            if hold.requested is not None:
                hold.requested.set()
        elif waiter in self._waiters:
            self._waiters[waiter].wanted = fence  # its grant is on its way to the task

    def reconnected(self) -> None:
        for waiter in list(self._waiters.values()):
            self._ask_again(waiter)

    # The end

    async def aclose(self, caller: asyncio.Task[Any] | None) -> None:
        """Give up what waits, give back what is held, wait for both, disconnect."""
        was_open = not self._why_not
        self._why_not = _CLOSED
        self._opened = True
        if was_open:
            for waiter in list(self._waiters.values()):
                waiter.interrupt(ClientClosed("this client was closed while it waited for a lock"))
                self._give_up(waiter)
            if self._trying_again is not None:
                self._trying_again.cancel()
                self._try_again()
            await self.keeper.aclose(caller)
            await self.store.aclose()


def _mismatch(policy: Policy, answer: Differs) -> LimitMismatch:
    return LimitMismatch(
        f"{policy.called} is in use with {answer.known}, but {policy.form.declared} is declared"
        " here: all that use it declare the same number"
        + (" (a semaphore's resize() changes it for all)" if policy.form.permits else "")
    )


def _heard(answered: asyncio.Future[Any]) -> bool:
    """Whether there is an answer; its error, if nobody else will, is taken as seen."""
    return not answered.cancelled() and answered.exception() is None
