"""One process of the chaos: many tasks that take locks in all sorts of ways, and record it.

``python -m tests.proof.chaos.worker SLOT GENERATION SEED STORE URL FOLDER TASKS``. Each task draws
its decisions from `random.Random` of the seed, the process and the task's number, one whole
`Choice` at a time, so that events do not change later draws.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import random
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

import aiolock
from aiolock._target import store_at
from aiolock.store import Store
from tests.proof.chaos.choices import (
    EVERY,
    PERMITS,
    SHARED_TTL,
    Choice,
    called,
    draw,
    draw_baton,
    draw_meeting,
    draw_run,
    final_choice,
    places,
)
from tests.proof.chaos.faults import ATTACKS, QUORUM_LONGEST
from tests.proof.chaos.history import History
from tests.proof.chaos.meetings import MEETING, meet
from tests.proof.chaos.paths import ENTERING, draw_entering, enter, enter_last
from tests.proof.chaos.rates import TAKING, draw_taking, take, take_last
from tests.proof.chaos.recorder import ATTEMPT, Recorder, key
from tests.proof.chaos.tokens import Tokens
from tests.proof.chaos.witness import quorum_at
from tests.proof.ledger import Ledger
from tests.support import loops
from tests.support.procs import commands, say

PREFIX: Final = "chaos"

STALL: Final = 0.06
"""Seconds without a turn of the event loop that count as a stall."""
_PULSE: Final = 0.02
_UP_WITHIN: Final = 5.0
"""Seconds after which all servers must be up, once nothing is broken."""
_SAY_EVERY: Final = 1.0
_OBSERVERS: Final = 3
"""Tasks that watch the election; every other one is slow."""
_HANDING: Final = 2
"""Tasks that take the lock that is handed on, and as many that adopt it."""
_TRIPS: Final = 0.01
"""How often the observer of a client raises an error."""


class Boom(Exception):
    """The body's own error."""


class Process:
    """A client, which is closed and replaced now and then, and the tasks that use it."""

    def __init__(
        self, who: str, seed: str, store: str, url: str, *, history: History, tokens: Tokens
    ) -> None:
        self._who = who
        self._seed = seed
        self._attack = ATTACKS[store]
        self._offers = self._attack.offers
        self._url = url
        self.history = history
        self.tokens = tokens
        self._loop = asyncio.get_running_loop()
        self._quiet: asyncio.Future[None] = self._loop.create_future()
        self._over: asyncio.Future[None] = self._loop.create_future()
        observers = _OBSERVERS if "campaign" in self._offers else 0
        self._observers = [
            asyncio.create_task(self._observe(number)) for number in range(observers)
        ]
        self.entries = 0

    async def open(self) -> None:
        """Connect, however long that takes."""
        several = self._attack.servers
        self._store = self._store_at()
        self.recorder = Recorder(self._store, self.history)
        self._ledger = Ledger(lambda: random.random() < _TRIPS)
        options: dict[str, Any] = {"ttl": QUORUM_LONGEST} if several else {}
        self.client = aiolock.connect(
            self.recorder, prefix=PREFIX, observer=self._ledger, **options
        )
        # Objects that many tasks enter with `async with`: each exit has to find out whose it is.
        shared: dict[str, Any] = {"ttl": SHARED_TTL, "on_lost": "signal"}
        self.shared: dict[str, AbstractAsyncContextManager[aiolock.Lease]] = {}
        if "permits" in self._offers:
            self.shared["permits"] = self.client.semaphore("api", PERMITS, **shared)
        if "rw" in self._offers:
            self.shared["rw"] = self.client.rwlock("rates", **shared).read()
        while True:
            since = time.monotonic_ns()
            try:
                await self.client.open()
            except aiolock.StoreError:
                await asyncio.sleep(0.1)
            else:
                self.history.note("opened", client=self.client.id, since=since)
                return

    def _store_at(self) -> Store:
        if self._attack.servers:
            return quorum_at(self._url, PREFIX, self.history)
        if not self._attack.skew:
            return store_at(self._url, PREFIX)
        etcd: Any = importlib.import_module("aiolock.stores.etcd._store")
        settings: Any = importlib.import_module("aiolock.stores.etcd._settings")
        slot = int(self._who.partition(".")[0])
        ahead = int((0, self._attack.skew, -self._attack.skew)[slot % 3] * 1e6)
        store: Store = etcd.EtcdStore(
            settings.from_url(self._url), PREFIX, clock=lambda: time.time_ns() // 1000 + ahead
        )
        return store

    async def close(self) -> None:
        """Close the client, in whatever state its locks are."""
        since = time.monotonic_ns()
        self.history.note("closing")
        await self.client.aclose()
        self.history.note("closed", since=since)
        for _ in range(10):  # until all waiters have heard of it
            await asyncio.sleep(0)
        left = [str(request) for request in self._ledger.left]
        self.history.note("observed", wrong=self._ledger.wrong, left=left)

    def quiet(self) -> None:
        """Begin nothing new, and finish what is under way."""
        if not self._quiet.done():
            self._quiet.set_result(None)

    async def pulse(self) -> None:
        """Record when the event loop has not run, for any reason."""
        last = said = time.monotonic_ns()
        while True:
            await asyncio.sleep(_PULSE)
            now = time.monotonic_ns()
            if now - last > STALL * 1e9:
                self.history.note("stall", since=last)
            if now - said > _SAY_EVERY * 1e9:
                say("pulse", entries=self.entries)
                said = now
            last = now

    async def reopen(self) -> None:
        """Close the client now and then, in the middle of everything, and open another."""
        rng = random.Random(f"{self._seed} {self._who} reopen")
        while await self.rest(rng.uniform(2.0, 15.0)):
            await self.close()
            await self.open()

    def tasks(self, number: int) -> Iterator[Coroutine[Any, Any, None]]:
        """All that it does until the run is to be quiet: so many tasks, and those of a kind."""
        yield from map(self.repeat, range(number))
        yield from map(self.meet, range(MEETING))
        if "rates" in self._offers:
            yield from map(self.take, range(TAKING))
        if "paths" in self._offers:
            yield from map(self.enter, range(ENTERING))
        if "periodic" in self._offers:
            yield self.job()
        if "baton" in self._offers:
            for task in range(_HANDING):
                yield self.pass_on(task, by_token=False)
                yield self.pass_on(task, by_token=True)
        yield self.look()
        yield self.reopen()

    async def repeat(self, task: int) -> None:
        """Make one attempt after another, until the run is to be quiet."""
        rng = random.Random(f"{self._seed} {self._who} {task}")
        number = 0
        while not self._quiet.done():
            number += 1
            choice = draw(rng, self._offers)
            await self._attempt(f"{number}/{task}/{self._who}", choice)
            await self.rest(choice.pause)

    async def meet(self, task: int) -> None:
        """Meet others at a barrier or a latch, or handle a message; one attempt after another."""
        rng = random.Random(f"{self._seed} {self._who} meets {task}")
        number = 0
        while not self._quiet.done():
            number += 1
            ATTEMPT.set("")
            choice = draw_meeting(rng, self._offers)
            await meet(self.client, self.history, f"{number}/meets {task}/{self._who}", choice)
            await self.rest(choice.pause)

    async def take(self, task: int) -> None:
        """Take tokens of a rate limit; one attempt after another."""
        rng = random.Random(f"{self._seed} {self._who} tokens {task}")
        while not self._quiet.done():
            ATTEMPT.set("")
            choice = draw_taking(rng)
            await take(self.client, choice)
            await self.rest(choice.pause)

    async def enter(self, task: int) -> None:
        """Take nodes of a tree; one attempt after another."""
        rng = random.Random(f"{self._seed} {self._who} paths {task}")
        number = 0
        while not self._quiet.done():
            number += 1
            ATTEMPT.set("")
            choice = draw_entering(rng)
            await enter(self.client, self.history, f"{number}/paths {task}/{self._who}", choice)
            await self.rest(choice.pause)

    async def job(self) -> None:
        """Take part in the periodic job, one run after another."""
        rng = random.Random(f"{self._seed} {self._who} job")
        number = 0
        while not self._quiet.done():
            number += 1
            choice = draw_run(rng)
            await self._attempt(f"{number}/job/{self._who}", choice, until_quiet=True)
            await self.rest(choice.pause)

    async def pass_on(self, task: int, *, by_token: bool) -> None:
        """Take the lock that is handed on, and hand it on; one attempt after another."""
        role = "adopts" if by_token else "takes"
        rng = random.Random(f"{self._seed} {self._who} {role} {task}")
        number = 0
        while not self._quiet.done():
            choice = draw_baton(rng, by_token=by_token)
            text = self.tokens.find(rng, take=rng.random() < 0.7) if by_token else ""
            if text is not None:
                number += 1
                token = aiolock.LeaseToken(text) if text else None
                attempt = f"{number}/{role} {task}/{self._who}"
                await self._attempt(attempt, choice, token=token)
            await self.rest(choice.pause)

    async def look(self) -> None:
        """Ask several servers for the leader now and then."""
        if not self._attack.servers:
            return
        rng = random.Random(f"{self._seed} {self._who} looks")
        while await self.rest(rng.expovariate(5.0)):
            ATTEMPT.set("")
            since, fence, value, outcome = time.monotonic_ns(), 0, "", "ok"
            try:
                leader = await self.client.election("primary").leader()
            except (aiolock.StoreError, aiolock.ClientClosed) as error:
                outcome = type(error).__name__
            else:
                fence, value = (leader.fence, leader.value) if leader else (0, "")
            self.history.note("looked", since=since, fence=fence, value=value, outcome=outcome)

    async def observed(self) -> None:
        """Watch the election no more."""
        self._over.set_result(None)
        await asyncio.gather(*self._observers)
        if self._store.features.servers():
            self.history.note("servers", states=await self._states(self._store))

    async def _states(self, store: Store) -> list[str]:
        """Those of the servers, once all are up: one whose answer is late is out for a moment."""
        until = self._loop.time() + _UP_WITHIN
        while True:
            states = [server.state for server in store.features.servers()]
            if {*states} == {"up"} or self._loop.time() >= until:
                return states
            await asyncio.sleep(0.05)

    async def _observe(self, number: int) -> None:
        """Observe the election, to the very end."""
        rng = random.Random(f"{self._seed} {self._who} observes {number}")
        watches = 0
        while not self._over.done():
            if hasattr(self, "client"):
                watches += 1
                watch = f"{watches}/watch {number}/{self._who}"
                watching = asyncio.create_task(self._watch(watch, rng, slow=number % 2 == 1))
                await asyncio.wait([watching, self._over], return_when=asyncio.FIRST_COMPLETED)
                self.history.note("watched", o=watch)
                watching.cancel()
                with contextlib.suppress(
                    asyncio.CancelledError, aiolock.StoreError, aiolock.ClientClosed
                ):
                    await watching
            await asyncio.wait([self._over], timeout=0.1)

    async def _watch(self, watch: str, rng: random.Random, *, slow: bool) -> None:
        ATTEMPT.set("")
        election = self.client.election("primary")
        self.history.note("watches", o=watch)
        async with aclosing(election.observe()) as leaders:
            async for leader in leaders:
                self.history.note("saw", o=watch, fence=leader.fence, value=leader.value)
                if slow:
                    await asyncio.sleep(rng.uniform(0.2, 3.0))
                self.history.note("looks", o=watch)

    async def final(self) -> None:
        """Take every lock once; nothing is in the way by now."""
        for number, name in enumerate(places(self._offers)):
            await self._attempt(f"{number}/final/{self._who}", final_choice(name), final=True)
        if "rates" in self._offers:
            ATTEMPT.set("")
            await take_last(self.client)
        if "paths" in self._offers:
            await enter_last(self.client)

    async def rest(self, seconds: float, lost: asyncio.Task[Literal[True]] | None = None) -> bool:
        """Wait, unless the run is to be quiet or a lease is lost; whether it waited in full."""
        ends: list[asyncio.Future[Any]] = [self._quiet] if lost is None else [self._quiet, lost]
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return not self._quiet.done()

    async def _break(self, choice: Choice) -> None:
        client, name = self.client, called(choice.name)
        match choice.kind:
            case "lock" | "baton":
                await client.lock(name).break_()
            case "rw" if choice.shared:  # all readers with the fence of one of them
                holders = (await client.rwlock(name).status()).holders
                if holders:
                    await client.rwlock(name).break_(holders[-1].fence)
            case "rw":
                await client.rwlock(name).break_()
            case "permits":
                await client.semaphore(name, PERMITS).break_()
            case "campaign":
                await client.election(name).break_()
            case "periodic":
                await client.periodic(name, every=EVERY).break_()

    async def _attempt(
        self,
        attempt: str,
        choice: Choice,
        *,
        final: bool = False,
        until_quiet: bool = False,
        token: aiolock.LeaseToken | None = None,
    ) -> None:
        ATTEMPT.set(attempt)
        if choice.style == "break":
            with contextlib.suppress(aiolock.StoreError, aiolock.ClientClosed):
                await self._break(choice)
            return
        if token is not None and choice.style == "discard":
            self.history.note("discarding", n=choice.name, fence=token.fence)
            with contextlib.suppress(aiolock.StoreError, aiolock.ClientClosed):
                await self.client.discard(token)
            return
        it = _Attempt(self, attempt, choice, final=final, token=token)
        tried = asyncio.create_task(it.run())
        timer = None
        if choice.cancel_after is not None:
            timer = self._loop.call_later(choice.cancel_after, self._cancel, tried, it)
        if until_quiet:
            await asyncio.wait([tried, self._quiet], return_when=asyncio.FIRST_COMPLETED)
            self._cancel(tried, it)
        await asyncio.wait([tried])
        if timer is not None:
            timer.cancel()
        if not tried.cancelled():
            tried.result()

    def _cancel(self, tried: asyncio.Task[None], it: _Attempt) -> None:
        if not tried.done():
            it.is_cancelled()
            tried.cancel()


class _Attempt:
    """One attempt, in a task of its own: from asking to the end of the exit."""

    def __init__(
        self,
        process: Process,
        attempt: str,
        choice: Choice,
        *,
        final: bool,
        token: aiolock.LeaseToken | None,
    ) -> None:
        self._process = process
        self._token = token
        self._id = attempt
        self._choice = choice
        self._client = process.client
        self._recorder = process.recorder  # of that client, also after it is replaced
        self._shared = process.shared.get(choice.kind)
        self._downgraded = False
        self._final = final
        self._asked = False
        self._entered = False
        self._told = False
        self._lost: asyncio.Task[Literal[True]] | None = None

    def _note(self, kind: str, **data: Any) -> None:
        self._process.history.note(kind, a=self._id, **data)

    def is_cancelled(self) -> None:
        """Cancel its task; before the task has begun, nothing is recorded."""
        if self._asked:
            self._note("cancelling")

    async def run(self) -> None:
        choice = self._choice
        said = ("ttl", "max_hold", "max_waiters")
        options: dict[str, Any] = {key: choice.options.get(key) for key in said}
        self._asked = True
        self._note(
            "asked",
            n=choice.name,
            **options,
            renew=choice.options.get("renew", True),
            timeout=choice.timeout,
            wait=choice.wait,
            style=choice.style,
            final=self._final,
            shared=choice.shared,
            permits=choice.permits,
            limit=PERMITS if choice.permits else 0,
            every=EVERY if choice.kind == "periodic" else 0,
            campaign=choice.kind == "campaign",
            adopts=0 if self._token is None else self._token.fence,
        )
        outcome = "ok"
        try:
            hands_on = self._choice.kind == "baton" and not self._final
            outcome = await (self._hand_on() if hands_on else self._try())
        except asyncio.CancelledError:
            outcome = "cancelled"
            raise
        except (aiolock.LockError, TimeoutError, Boom) as error:
            outcome = type(error).__name__
        except BaseException as error:
            outcome = f"crash: {error!r}"
            raise
        finally:
            self._note("done" if self._entered else "ended", outcome=outcome)

    def _described(self, **options: Any) -> aiolock.Lock:
        """The lock, as it is drawn; for permits, the lock of so many permits."""
        choice = self._choice
        options |= choice.options
        if choice.kind == "rw":
            rates = self._client.rwlock(called(choice.name), **options)
            # A downgraded writer reads, and so it releases as a reader.
            return rates.read() if choice.shared or self._downgraded else rates.write()
        return self._client.lock(called(choice.name), **options)

    def _asking(self, how: str, timeout: float | None) -> Any:
        """What `acquire` or `try_acquire` returns."""
        choice = self._choice
        if choice.kind == "permits":
            described = {key: value for key, value in choice.options.items() if key != "reentrant"}
            api = self._client.semaphore("api", PERMITS, **described)
            return getattr(api, how)(choice.permits, timeout=timeout)
        return getattr(self._described(), how)(timeout=timeout)

    def _entrance(self) -> AbstractAsyncContextManager[aiolock.Lease]:
        """The object that is entered at once, with the timeout of its description."""
        choice = self._choice
        if choice.style == "entered":
            assert self._shared is not None
            return self._shared
        ttl = choice.options["ttl"]
        if choice.kind == "periodic":
            return self._client.periodic("job", every=EVERY, ttl=ttl)
        if choice.kind == "campaign":
            return _led(self._client.election("primary", ttl=ttl).campaign(self._id))
        if choice.kind == "permits":
            acquisition: aiolock.AcquireContext[aiolock.Lease]
            acquisition = self._asking("acquire", choice.timeout)
            return acquisition
        return self._described(timeout=choice.timeout)

    async def _try(self) -> str:
        choice = self._choice
        timeout = choice.timeout
        if choice.style == "generator":
            assert self._shared is not None
            async for lease in _thrown_away(self._shared):
                await self._body(lease)
                break
            return "ok"
        if choice.style in {"with", "entered"}:
            async with self._entrance() as lease:
                await self._body(lease)
            return "ok"
        if choice.style == "wait_for":
            lock = self._described()
            taken = await asyncio.wait_for(lock.acquire(), timeout)
            try:
                await self._body(taken)
            finally:
                released = await self._described().release()
            return "ok" if released else "not ours"
        if not choice.wait:
            timeout = 0
        if choice.style == "acquire with":
            async with self._asking("acquire", timeout) as lease:
                await self._body(lease)
            return "ok"
        how = "acquire" if timeout is None else "try_acquire"
        lease_or_none: aiolock.Lease | None = await self._asking(how, timeout)
        if lease_or_none is None:
            return "none"
        try:
            await self._body(lease_or_none)
        finally:
            released = await lease_or_none.release()
        return "ok" if released else "not ours"

    async def _hand_on(self) -> str:
        """Take the lock, by the token or in the queue, and hand it on, or release it."""
        choice = self._choice
        if self._token is not None:
            ttl = choice.options["ttl"]
            lease_or_none = await self._client.adopt(self._token, ttl=ttl)
        elif choice.timeout is None:
            lease_or_none = await self._asking("acquire", None)
        else:
            lease_or_none = await self._asking("try_acquire", choice.timeout)
        lease: aiolock.Lease | None = lease_or_none
        if lease is None:
            return "none"
        try:
            async with lease:
                await self._body(lease)
                if choice.handed_for is not None:
                    await self._detach(lease, choice.handed_for)
        except aiolock.LeaseLost:
            if lease.state is not aiolock.LeaseState.LOST:
                raise AssertionError(f"{lease} is not lost") from None
            raise
        return "ok"

    async def _detach(self, lease: aiolock.Lease, ttl: float) -> None:
        self._note("detaching", n=key(lease), fence=lease.fence, ttl=ttl)
        token = await lease.detach(ttl=ttl)
        self._note("detached")
        self._process.tokens.leave(token)

    # The body

    async def _body(self, lease: aiolock.Lease) -> None:
        self._recorder.entered(self._id, lease)
        self._entered = True
        self._process.entries += 1
        scoped = self._choice.style in {"with", "acquire with"}
        if not scoped or self._choice.options["on_lost"] == "signal":
            # No one cancels it.
            self._lost = asyncio.create_task(lease.lost.wait())
            self._lost.add_done_callback(self._hear)
        try:
            for step in self._choice.steps:
                await getattr(self, f"_{step.what}")(lease, step.seconds)
                if self._told:
                    await self._process.rest(self._choice.linger)
                    break
        except (asyncio.CancelledError, aiolock.LeaseLost):
            if lease.state is aiolock.LeaseState.LOST:
                self._tell()
            raise
        finally:
            self._recorder.left(lease)
            self._note("left")
            if self._lost is not None:
                self._lost.remove_done_callback(self._hear)
                self._lost.cancel()

    def _hear(self, lost: asyncio.Task[Literal[True]]) -> None:
        if not lost.cancelled():
            self._tell()

    def _tell(self) -> None:
        if not self._told:
            self._told = True
            self._note("told")

    # The steps

    async def _rest(self, _: aiolock.Lease, seconds: float) -> None:
        await self._process.rest(seconds, self._lost)

    async def _block(self, _: aiolock.Lease, seconds: float) -> None:
        self._note("block", seconds=seconds)
        time.sleep(seconds)

    async def _verify(self, lease: aiolock.Lease, _: float) -> None:
        with contextlib.suppress(aiolock.StoreError):
            if not await lease.verify():
                self._tell()

    async def _extend(self, lease: aiolock.Lease, seconds: float) -> None:
        try:
            await lease.extend(seconds)
        except aiolock.LeaseLost:
            self._tell()
        except aiolock.StoreError:
            pass

    async def _again(self, lease: aiolock.Lease, _: float) -> None:
        """Enter once more: the same task has the same hold, so it takes no time and no turn."""
        if self._still_held(lease):
            async with self._described() as again:
                assert again.fence == lease.fence

    async def _deadlock(self, lease: aiolock.Lease, _: float) -> None:
        """Wait for oneself, which raises an error at once."""
        if self._still_held(lease):
            with contextlib.suppress(aiolock.WouldDeadlock):
                async with self._described():
                    raise AssertionError("a task has waited for itself")

    async def _downgrade(self, lease: aiolock.Lease, _: float) -> None:
        """Read on."""
        if self._still_held(lease):
            self._note("downgrading")
            self._downgraded = True
            try:
                await lease.downgrade()
            except aiolock.LeaseLost:
                self._tell()
            except aiolock.StoreError:
                pass

    async def _raise(self, _: aiolock.Lease, __: float) -> None:
        raise Boom

    def _still_held(self, lease: aiolock.Lease) -> bool:
        """Whether it is still held; otherwise asking again would be an ordinary wait."""
        if lease.state is aiolock.LeaseState.LOST:
            self._tell()
        return lease.state in ("held", "at_risk")


async def _thrown_away(
    shared: AbstractAsyncContextManager[aiolock.Lease],
) -> AsyncGenerator[aiolock.Lease, None]:
    """The context of a body that no task leaves: the event loop closes it, in a task of its own."""
    async with shared as lease:
        yield lease
        raise AssertionError("it is thrown away at the first")


@asynccontextmanager
async def _led(
    campaign: AbstractAsyncContextManager[aiolock.Term],
) -> AsyncGenerator[aiolock.Lease, None]:
    """A campaign whose term is its lease."""
    async with campaign as term:
        yield term.lease


async def main(*arguments: str) -> None:
    """Follow the conductor's orders (``quiet``, ``final``, ``close``), and report each as done."""
    slot, generation, seed, store, url, folder, tasks = arguments
    who = f"{slot}.{generation}"
    history = History(Path(folder), who)

    def crash(text: str) -> None:
        history.note("crash", text=text)

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(
        lambda _, context: crash(f"{context['message']}: {context.get('exception')!r}")
    )
    sys.unraisablehook = lambda raised: crash(f"{raised.err_msg}: {raised.exc_value!r}")
    logging.getLogger("aiolock").addHandler(logging.NullHandler())
    if store in {"sqlite", "mysql"}:
        # Removed files are noticed soon, or there would be little left to check.
        session: Any = importlib.import_module(f"aiolock.stores.{store}._session")
        session.HEARTBEAT = 1.0
    try:
        process = Process(who, seed, store, url, history=history, tokens=Tokens(Path(folder), who))
        pulse = asyncio.create_task(process.pulse())
        await process.open()
        say("ready")
        orders = commands()
        async with asyncio.TaskGroup() as group:
            for does in process.tasks(int(tasks)):
                group.create_task(does)
            await _order(orders, "quiet")
            process.quiet()
        say("quiet")
        await _order(orders, "final")
        await process.final()
        say("final")
        await _order(orders, "close")
        await process.observed()
        await process.close()
        pulse.cancel()
    except BaseException as error:
        crash(repr(error))
        raise


async def _order(orders: AsyncIterator[dict[str, Any]], what: str) -> None:
    order = await anext(orders)
    assert order == {"do": what}, order


if __name__ == "__main__":
    loops.run(main(*sys.argv[1:]))
