"""The model acted out by aiolock's own clients: they must send what the model says they send.

The server and the connections between are the model's. The clients are real ones, on a virtual
clock, with stores whose replies and pushes arrive when the play has them arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Iterator
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal
from unittest.mock import patch

import aiolock
from aiolock._engine import local_handoff, releases, waiters
from aiolock._engine.released import Released
from aiolock._engine.releases import FIRST_PAUSE
from aiolock.protocol import (
    CLAIM,
    MAX_AHEAD,
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_UNKNOWN,
    Acquire,
    Before,
    Deliver,
    Form,
    Granted,
    GrantLost,
    GrantPushed,
    Operation,
    OrderUnknown,
    Post,
    Queued,
    Reconnected,
    Release,
    Renew,
    ReportHandoff,
    WaiterId,
)
from aiolock.store import Features
from tests.proof.protocol.acts import Act, acts, failures
from tests.proof.protocol.client import AtClient
from tests.proof.protocol.model import WAITING, Answer, Client, Phase, Push, Safeguards, Who
from tests.proof.protocol.parts import BUDGETS
from tests.proof.protocol.world import Setting, World
from tests.support.virtual import VirtualLoop

NAME: Final = "the lock"
FORM: Final = Form(CLAIM)
"""What the store is told of each waiter."""
TICK: Final = CLAIM / 1000 + 0.01
"""Seconds to a tick: what is as long as a claim is over after it."""
SETTING: Final = Setting(tasks=(2, 1), claim=1, ttl=2, late=1, faults=0)
"""With a ``late`` of 0 no copies would come late in these plays."""
RUNS: Final = replace(SETTING, tasks=(3, 1), ahead=MAX_AHEAD)
"""With a store that says who stands before whom, so that the clients hand the lock on."""
_BY_ITSELF: Final = {
    AtClient.renew,
    AtClient.try_again,
    AtClient.ask_after_giving_back,
    AtClient.report,
}
LATEST: Final = 5
"""Ticks to a play: before the rare questions that the model does not know (`KEEP_ALIVE`)."""


class Answered(asyncio.Future[Any]):
    """The future of a command, which knows the release of the client's that follows it."""

    released: Released | None = None

    def add_done_callback(self, fn: Any, /, *, context: Context | None = None) -> None:
        owner = getattr(fn, "__self__", None)
        if isinstance(owner, Released):
            self.released = owner
        super().add_done_callback(fn, context=context)


@dataclass(eq=False)
class Sent:
    """A command that a client has sent and that is not answered."""

    what: str
    task: int
    number: int
    answer: Answered
    carried_out: int = 0
    """When the server did so last, by its clock (µs)."""

    @property
    def dropped(self) -> bool:
        """Whether it is not sent a second time."""
        return self.what == "ask" and self.answer.cancelled()


@dataclass(eq=False)
class ByHand:
    """A store that only writes down what it is to do."""

    clock: int = 1_000_000_000
    pipe: list[Sent] = field(default_factory=list[Sent])
    name: str = ""
    """What the lock is called at the store, once somebody has asked for it."""
    deliver: Deliver = field(init=False)
    features: Features = field(default_factory=Features)

    async def open(self, client: str, deliver: Deliver) -> None:
        self.client, self.deliver = client, deliver

    async def aclose(self) -> None: ...

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        if isinstance(operation, Acquire):
            self.name = operation.name
            return self._send("ask", operation.waiter, operation.form, operation.ticket)
        if isinstance(operation, Release):
            return self._send("release", operation.waiter, operation.form, operation.fence)
        match operation:
            case ReportHandoff():
                return self._send("pass", operation.target, operation.form, operation.fence)
            case Renew():
                return asyncio.get_running_loop().create_future()  # in these plays none is renewed
            case Post():
                raise aiolock.StoreError("labels are no part of these plays")
            case _:
                raise NotImplementedError

    def _send(self, what: str, waiter: WaiterId, form: Form, number: int) -> Answered:
        assert waiter.client == self.client
        assert form == FORM
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop._now += 1e-9  # a real clock gives no two questions the same time
        answer = Answered(loop=loop)
        self.pipe.append(Sent(what, waiter.seq - 1, number, answer))
        return answer

    def waiter(self, task: int) -> WaiterId:
        """This task's waiter."""
        return WaiterId(self.client, task + 1)

    def now(self) -> int:
        """The server's clock."""
        return self.clock + int(asyncio.get_running_loop().time() * 1e6)


class Actor:
    """A real client, and what its tasks do."""

    def __init__(self) -> None:
        self.store = ByHand()
        self.client = aiolock.connect(self.store)
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.may_leave: dict[int, asyncio.Event] = {}
        self.inside: set[int] = set()

    async def _body(self, at: int) -> None:
        with contextlib.suppress(aiolock.LockError, asyncio.CancelledError):
            async with self.client.lock(NAME, ttl=SETTING.ttl * CLAIM / 1000):
                self.inside.add(at)
                try:
                    await self.may_leave[at].wait()
                finally:
                    self.inside.discard(at)

    def left(self, at: int) -> int:
        """For how many ticks what this task holds lasts by the client's own reckoning."""
        deadline = self.client._engine.watchdog.holds[self.store.waiter(at)].deadline
        return math.ceil((deadline - asyncio.get_running_loop().time()) / TICK)

    # The acts of the model's client, by their names

    def ask(self, at: int) -> None:
        self.may_leave[at] = asyncio.Event()
        self.tasks[at] = asyncio.create_task(self._body(at))

    def end(self, at: int) -> None:
        self.may_leave[at].set()

    def give_up(self, at: int) -> None:
        self.tasks[at].cancel()

    def read_reply(self, answer: Answer, granted_at: int, *, again: bool) -> None:
        sent = self.store.pipe.pop(0)
        if answer.push is not None:
            self.read_push(answer.push, granted_at)
        if sent.answer.done():
            return
        lease = answer.ticks * CLAIM
        if answer.what == "granted":
            granted = Granted(answer.number, lease, answer.displaced)
            sent.answer.set_result(granted)
        elif answer.what == "queued":
            before = None
            if answer.before is not None:
                task, fence = answer.before
                before = Before(self.store.waiter(task), fence)
            queued = Queued(answer.number, 1, lease, sent.carried_out, answer.displaced, before)
            sent.answer.set_result(queued)
        elif answer.what == "refused":
            sent.answer.set_result(WAS_UNKNOWN if again else WAS_ABSENT)
        else:
            sent.answer.set_result(WAS_HOLDER)

    def read_push(self, push: Push, granted_at: int) -> None:
        deliver, waiter = self.store.deliver, self.store.waiter(push.task)
        if push.what == "granted":
            lease = push.lease * CLAIM
            deliver(GrantPushed(self.store.name, waiter, FORM, push.fence, lease, granted_at))
        elif push.what == "lost":
            deliver(GrantLost(self.store.name, waiter, push.fence, "expired"))
        elif push.what == "void":
            deliver(OrderUnknown(self.store.name, waiter))
        else:
            deliver(Reconnected())

    def link(self) -> None:
        self.store.pipe = [sent for sent in self.store.pipe if not sent.dropped]
        self.store.deliver(Reconnected())

    def subscribe(self) -> None:
        pass  # it hears of that by a push

    def despair(self) -> None:
        sent = self.store.pipe.pop(0)
        if not sent.answer.done():
            sent.answer.set_exception(aiolock.StoreError("no answer"))

    @property
    def waits_no_more(self) -> bool:
        """Whether nobody hears what becomes of the oldest release: its lease has ended."""
        released = self.store.pipe[0].answer.released
        return released is not None and released.done()


class Play:
    """One play: what happens is drawn, and happens to the model and to the real clients."""

    def __init__(self, seed: int, setting: Setting = SETTING) -> None:
        self.random = random.Random(seed)
        self.world = World(setting, Safeguards())
        self.state = self.world.initial()
        self.actors = [Actor() for _ in setting.tasks]
        self.granted_at: dict[int, int] = {}
        self.unconfirmed: set[Who] = set()
        self.ticks = 0
        self.told: list[str] = []

    async def play(self, steps: int) -> None:
        """So many steps, and then everything comes to an end."""
        # The model has no pauses that grow, and where a question has failed, none at all.
        with (
            patch.object(releases, "LONGEST_PAUSE", FIRST_PAUSE),
            patch.object(local_handoff, "LONGEST_PAUSE", FIRST_PAUSE),
            patch.multiple(waiters, _FIRST_PAUSE=0.0, _LONGEST_PAUSE=0.0, _PATIENCE=0.0),
        ):
            await self._play(steps)

    async def _play(self, steps: int) -> None:
        for actor in self.actors:
            await actor.client.open()
        if self.world.setting.ahead:
            await self._queue_up()
        for _ in range(steps):
            if possible := list(self._possible()):
                await self._step(self.random.choice(possible))
        while left := list(self._until_the_end()):
            await self._step(left[0])
        behind = self.world._of_server(self.state[0]).in_the_way
        assert behind <= self.unconfirmed, self.told
        for actor in self.actors:
            if actor.tasks:
                await asyncio.wait(actor.tasks.values())
            await actor.client.aclose()
            assert not actor.store.pipe

    async def _queue_up(self) -> None:
        """Most of them ask, one after the other, so that there is something to be handed on."""
        for _ in range(3):
            for at in (0, self.random.randrange(len(self.actors))):
                asks = [act for act in self._acts(at) if act.does is AtClient.ask]
                if asks:
                    await self._step((at, asks[0]))
                    await self._step((at, "carry out"))
                    (reads,) = (each for each in self._acts(at) if each.does is AtClient.read_reply)
                    await self._step((at, reads))

    def _client(self, at: int) -> Client:
        return self.world.parts.client(self.state[at + 1])

    def _becomes(self, at: int, client: Client) -> None:
        number = self.world.parts.number(client)
        self.state = (*self.state[: at + 1], number, *self.state[at + 2 :])

    def _acts(self, at: int) -> Iterator[Act]:
        """What a client may do that does not come by itself when the time has come."""
        client = self._client(at)
        for act in acts(client, self.world.guards, self.world.terms, connects_at_once=False):
            if act.does not in _BY_ITSELF:
                yield act

    def _possible(self) -> Iterator[tuple[int, Act | str]]:
        for at in range(len(self.actors)):
            client = self._client(at)
            # What goes on is likelier than what goes wrong.
            yield from [(at, act) for act in self._acts(at)] * 6
            yield from [(at, act) for act in failures(client)]
            if self.world._of_client(self.state[at + 1]).due:
                yield from [(at, "carry out")] * 6
            if client.linked and client.pipe:
                yield at, "cut"
                if SETTING.late:
                    yield from [(at, "stray")] * 3
            if client.strays:
                yield from [(at, "come late")] * 6
            if client.hears and any(task.phase in WAITING for task in client.tasks):
                yield at, "deaf"
            elif client.counted and not client.hears:
                yield at, "gone"
        if self.world.parts.server(self.state[0]).queue:
            yield 0, "wipe"
        if self.ticks < LATEST:
            yield 0, "time"

    def _until_the_end(self) -> Iterator[tuple[int, Act | str]]:
        for at in range(len(self.actors)):
            yield from ((at, act) for act in self._acts(at) if act.does is not AtClient.ask)
            yield from ((at, act) for act in failures(self._client(at)) if act.task is not None)
            if self.world._of_client(self.state[at + 1]).due:
                yield at, "carry out"
            if self._client(at).unreleased or self._client(at).run.failed:
                yield at, "second"

    async def _step(self, step: tuple[int, Act | str]) -> None:
        at, what = step
        if isinstance(what, Act):
            self.told.append(self.world.tell((what.label, at)))
            self._act(at, what)
        else:
            self.told.append(f"{what} {at}")
            await getattr(self, f"_{what.replace(' ', '_')}")(at)
        await asyncio.sleep(1e-5)  # all that is ready has run
        for other in range(len(self.actors)):
            self._run_what_is_called(other)
            self._compare(other)

    def _act(self, at: int, act: Act) -> None:
        client, actor = self._client(at), self.actors[at]
        does = getattr(actor, act.does.__name__)
        if act.does is AtClient.read_reply:
            answer = client.pipe[0].answer
            assert answer is not None
            granted_at = self.granted_at.get(answer.push.fence, 0) if answer.push else 0
            does(answer, granted_at, again=client.pipe[0].again)
        elif act.does is AtClient.read_push:
            does(client.inbox[0], self.granted_at.get(client.inbox[0].fence, 0))
        elif act.does is AtClient.despair and actor.waits_no_more:
            does()
            # The model's lease may have ended too, but it does not keep that in mind: it would try
            # again.
            self.unconfirmed.add(Who(at, client.pipe[0].task))
            self._becomes(at, client._replace(pipe=client.pipe[1:]))
            return
        else:
            does(*() if act.task is None else (act.task,))
        self._becomes(at, self.world._taken(client, act))

    def _run_what_is_called(self, at: int) -> None:
        # In the order in which one reply calls them: what it brings to another task comes first.
        for does in (AtClient.run, AtClient.ask_after_giving_back):
            client = self._client(at)
            for act in acts(client, self.world.guards, self.world.terms, connects_at_once=False):
                if act.does is does:
                    self._becomes(at, self.world._taken(self._client(at), act))
        if self._client(at).run.unsent:  # a few turns of the event loop later
            self._report(at)

    def _report(self, at: int) -> None:
        self._becomes(at, self.world._taken(self._client(at), Act("", AtClient.report)))

    def _compare(self, at: int) -> None:
        client, actor = self._client(at), self.actors[at]
        says = [(c.what, c.task, c.number, c.what == "ask" and c.dropped) for c in client.pipe]
        sent = [(s.what, s.task, s.number, s.dropped) for s in actor.store.pipe]
        assert sent == says, (self.told, sent, says)
        bodies = {t: of.left for t, of in enumerate(client.tasks) if of.phase is Phase.BODY}
        assert {task: actor.left(task) for task in actor.inside} == bodies, self.told

    # What is not an act of a client

    async def _carry_out(self, at: int) -> None:
        unanswered = next(i for i, c in enumerate(self._client(at).pipe) if c.answer is None)
        store = self.actors[at].store
        store.pipe[unanswered].carried_out = store.now()
        self._serve(at, "")

    def _serve(self, at: int, how: Literal[""] | int) -> None:
        highest = self.world.parts.server(self.state[0]).highest
        listening = tuple(self._client(other).counted for other in range(len(self.actors)))
        self.state, _, _ = self.world._served(self.state, at, listening, how)
        now = self.actors[at].store.now()
        for fence in range(highest + 1, self.world.parts.server(self.state[0]).highest + 1):
            self.granted_at[fence] = now

    async def _cut(self, at: int) -> None:
        client = self._client(at)
        pipe = tuple(
            command._replace(answer=None, again=command.report is not None)
            for command in client.pipe
        )
        self._becomes(at, client._replace(linked=False, pipe=pipe))

    async def _stray(self, at: int) -> None:
        """As a cut, but the server will get what was on its way: once more, or after all."""
        faults = self.world._faults(self._client(at))
        await self._cut(at)
        for kind, _, after in faults:
            if kind == "stray":
                self._becomes(at, after)

    async def _come_late(self, at: int) -> None:
        self._serve(at, 0)

    async def _deaf(self, at: int) -> None:
        self._becomes(at, self._client(at)._replace(hears=False))

    async def _gone(self, at: int) -> None:
        self._becomes(at, self._client(at)._replace(counted=False))

    async def _wipe(self, at: int) -> None:
        server = self.world.parts.server(self.state[0])
        self.state = (self.world.parts.number(server._replace(queue=())), *self.state[1:])

    async def _time(self, at: int) -> None:
        self.ticks += 1
        older = map(self.world._older, self.state[:-BUDGETS])
        self.state = (*older, *self.state[-BUDGETS:])
        await asyncio.sleep(TICK)
        self._try_again()
        for other in range(len(self.actors)):
            # First the leases that have ended, a hundredth early; then the backstop, a bit late.
            for does in (AtClient.end, AtClient.backstop):
                for act in list(self._acts(other)):
                    if act.does is does and act.urgent:
                        self._becomes(other, self.world._taken(self._client(other), act))

    async def _second(self, at: int) -> None:
        """Long enough for a release that failed to be tried again, and for nothing else."""
        await asyncio.sleep(FIRST_PAUSE)
        self._try_again()

    def _try_again(self) -> None:
        for at in range(len(self.actors)):
            if self._client(at).run.failed:
                self._report(at)
            if self._client(at).unreleased:
                act = Act("", AtClient.try_again)
                self._becomes(at, self.world._taken(self._client(at), act))
