"""Members in this process, for tests: a `MemoryServer` as one server that votes."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import socket
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, Final
from weakref import WeakKeyDictionary, ref

from aiolock._turns import in_parts
from aiolock.errors import QuorumMismatch, StoreError
from aiolock.protocol import PRIORITY, Form, Participant, Status, WaiterId
from aiolock.stores._member import (
    DeliverMember,
    MemberRegistered,
    Memory,
    OnReply,
    QuorumConfig,
    Registered,
    RegistrationRefused,
    VoteRequest,
)
from aiolock.stores.memory import MemoryServer, server_finder
from aiolock.stores.memory._listing import Listing
from aiolock.stores.memory._queue import OperationQueue
from aiolock.stores.quorum._server import QuorumServerStep
from aiolock.stores.quorum._server_state import QuorumServerState
from aiolock.stores.quorum._step_context import PART, Rest

_SWEEP_AT: Final = 1024


class _Carrier:
    """Carries out the operations that are in the queue of a server."""

    def __init__(self) -> None:
        self.pushed = 0
        """How many pushes the server has sent."""

    def run(self, operation: Callable[[], Any]) -> Any:
        """Carry out an operation; its answer."""
        return operation()


class MemoryQuorumServer:
    """The state of one server that votes, and the effects of a restart."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self.run = secrets.token_hex(20)
        self.began: int | None = None
        """The start of the server, in ms; None if unknown."""
        self.states: dict[str, QuorumServerState] = {}
        self.listeners: dict[str, DeliverMember] = {}
        self.config: QuorumConfig | None = None
        self._votes_from = 0
        self._its_run = ""
        self._sweep_at = _SWEEP_AT
        self._carrier = _Carrier()
        self._queue: ref[OperationQueue[Callable[[], Any]]] | None = None
        self._advancing = set[tuple[str, QuorumServerState]]()
        """The states of names for which a step is due that votes for the waiters at the head; each
        with the run of the server."""
        self._listing = Listing(self.states, lambda state: state.is_used)

    def now(self) -> int:
        """The server's clock, in µs."""
        return self._server.now()

    def forget(self) -> None:
        """Forget everything, as after a FLUSHALL."""
        self.states.clear()
        self.config = None

    def restart(self, *, empty: bool) -> None:
        """Become another run of the same server; the caller closes the open connections."""
        self.run, self.began = secrets.token_hex(20), self.now() // 1000
        self.listeners.clear()
        if empty:
            self.forget()

    @property
    def left_behind(self) -> list[str]:
        """The names with a vote or a queue."""
        return [name for name, state in self.states.items() if state.is_used]

    def listed(self, start: str) -> tuple[tuple[str, ...], str]:
        """Some names with a vote or a queue, and the start of the next page."""
        names, more = self._listing.page(start)
        return tuple(names), more

    def register(self, config: QuorumConfig, memory: Memory) -> Registered:
        """See ``lua/quorum/register.lua``."""
        now = self.now()
        ms = now // 1000
        if self.config is not None:
            if config != self.config:
                raise mismatch("this server", str(self.config), config)
            if self._its_run != self.run and not config.durable:
                self._votes_from = max(self._votes_from, ms + config.longest)
        elif self.began is not None and ms - self.began < config.longest:
            since = ms if config.durable else self.began  # as in the script
            self._votes_from = since + config.longest + 1000
        elif memory is Memory.UNSAID:
            return Registered(-1, self.run, now)
        else:
            self._votes_from = ms + config.longest if memory is Memory.LOST else 0
        self.config, self._its_run = config, self.run
        return Registered(max(0, self._votes_from - ms), self.run, now)

    def operation_queue(self) -> OperationQueue[Callable[[], Any]]:
        """The queue of all clients in the running loop: they are served in one order."""
        loop = asyncio.get_running_loop()
        queue = None if self._queue is None else self._queue()
        if queue is None or queue.loop is not loop:
            queue = OperationQueue[Callable[[], Any]](self._carrier, loop, PART)
            self._queue = ref(queue)
            self._advancing.clear()  # what was due in another loop may never be carried out
        return queue

    def step(self, name: str, operation: Callable[[QuorumServerStep], Any]) -> Any:
        """Carry out one operation on a name; what takes long goes on in the next iterations."""
        state = self.states.get(name)
        if state is None:
            if len(self.states) >= self._sweep_at:
                self._sweep()
            state = self.states[name] = QuorumServerState()
        now = self.now()
        not_voting = -1 if self.config is None else max(0, self._votes_from - now // 1000)
        listens = self.listeners.__contains__
        step = QuorumServerStep(name, state, now, listens, not_voting, in_parts=True)
        answer = operation(step)
        loop = asyncio.get_running_loop()
        for client, event in step.pushes:
            deliver = self.listeners.get(client)
            if deliver is not None:
                self._carrier.pushed += 1
                loop.call_soon(deliver, event)
        for rest in step.rest:
            self._go_on(name, state, rest)
        return answer

    def _go_on(self, name: str, state: QuorumServerState, rest: Rest) -> None:
        """Go on, in another iteration, with what a step has left."""
        # It is an operation like any other: what many names have left is no more for one iteration.
        queue, run = self.operation_queue(), self.run
        if rest.work == "advance":
            if (run, state) in self._advancing:
                return  # one goes on for all
            self._advancing.add((run, state))

        def go_on() -> None:
            if rest.work == "advance":
                self._advancing.discard((run, state))
            # Not if the server was started again or emptied since.
            if self.run == run and self.states.get(name) is state:
                self.step(name, lambda step: step.go_on(rest))

        queue.loop.call_soon(queue.submit, go_on)

    def status(self, name: str, *, waiting: bool) -> Generator[int, None, Status]:
        """The owners of the votes of this name, and the waiters in the queue, part by part."""
        state = self.states.get(name) or QuorumServerState()
        waiters = list[Participant]()
        for ticket, waiter in list(state.queue) if waiting else ():
            stood = state.waiting.get(waiter)
            if stood is not None:  # it has not left meanwhile
                form, place = stood[1], len(waiters) + 1
                since = (ticket - form.priority * PRIORITY) / 1e6
                waiters.append(self._participant(waiter, form, since, place))
                yield 1
        now = self.now()
        holders, closed = list[Participant](), 0.0
        for vote in list(state.out):
            yield 1
            left = vote.end / 1000 - now / 1e6
            if left > 0 and vote.is_reserved:
                closed = max(closed, left)
            elif left > 0:
                holder = self._participant(vote.waiter, vote.form, vote.granted / 1000, 0)
                holders.append(replace(holder, fence=vote.number, remaining=left))
        return Status(name, tuple(holders), tuple(waiters), closed, now=now / 1e6)

    def _participant(self, waiter: WaiterId, form: Form, since: float, place: int) -> Participant:
        return Participant(
            client=waiter.client,
            host=socket.gethostname(),
            pid=os.getpid(),
            since=since,
            place=place,
            shared=form.shared,
            seq=waiter.seq,
            alive=waiter.client in self.listeners,
        )

    @property
    def forgot(self) -> int:
        """See `DoneRecord`."""
        if self.config is None:
            return 0
        return max(0, self.now() // 1000 - self._votes_from) if self._votes_from else -1

    def _sweep(self) -> None:
        """Forget the names that need no state any more."""
        ms = self.now() // 1000
        for name in [name for name, state in self.states.items() if state.idle(ms)]:
            del self.states[name]
        self._sweep_at = max(_SWEEP_AT, 2 * len(self.states))


def mismatch(server: str, its: str, ours: object) -> QuorumMismatch:
    """The error for a server that is a member of another quorum."""
    return QuorumMismatch(
        f"{server} is a member of another quorum, of {its}, and this client says {ours}: all who"
        " use it must say the same"
    )


_voters: WeakKeyDictionary[MemoryServer, MemoryQuorumServer] = WeakKeyDictionary()


def server_of(server: MemoryServer) -> MemoryQuorumServer:
    """The state of this server as one that votes."""
    if server not in _voters:
        _voters[server] = MemoryQuorumServer(server)
    return _voters[server]


class MemoryMember:
    """One client's link to a `MemoryQuorumServer`; answers come in the next loop iteration."""

    kind = "memory"

    def __init__(self, find: Callable[[], MemoryServer], address: str) -> None:
        """``find`` is called when the member is opened, in the event loop."""
        self._find = find
        self.address = address
        self._client: str | None = None
        self._reading = set[asyncio.Task[Status]]()

    async def join(self, client: str, deliver: DeliverMember, config: QuorumConfig) -> None:
        self.quorum_server = server_of(self._find())
        self._client, self._config, self._deliver = client, config, deliver
        self._loop = asyncio.get_running_loop()
        self._queue = self.quorum_server.operation_queue()
        deliver(MemberRegistered(self.quorum_server.register(config, Memory.UNSAID)))
        self.quorum_server.listeners[client] = deliver

    async def leave(self, patience: float) -> None:
        if self._client is not None:
            self.quorum_server.listeners.pop(self._client, None)
            self._client = None
        for reading in self._reading:
            reading.cancel()
        if self._reading:
            await asyncio.wait(self._reading)

    def waits_for(self) -> float:
        return 0.0

    def register(self, memory: Memory) -> None:
        def registered(answer: Any, error: Exception | None) -> None:
            if error is None:
                self._deliver(MemberRegistered(answer))
            else:
                self._deliver(RegistrationRefused(error))

        self._start(lambda: self.quorum_server.register(self._config, memory), registered)

    def vote(
        self,
        request: VoteRequest,
        ttl: int,
        proposal: int,
        *,
        wait: bool,
        most: int,
        new: bool,
        on_reply: OnReply,
    ) -> None:
        self._step(
            request.name,
            lambda step: step.vote(request, ttl, proposal, wait=wait, most=most),
            on_reply,
        )

    def release(
        self, request: VoteRequest, highest: int, upto: int, *, entered: int, on_reply: OnReply
    ) -> None:
        waiter = request.waiter
        self._step(
            request.name,
            lambda step: step.release(waiter, highest, upto, entered=entered),
            on_reply,
        )

    def yield_vote(self, request: VoteRequest, number: int, on_reply: OnReply) -> None:
        self._step(request.name, lambda step: step.yield_vote(request, number), on_reply)

    def renew(
        self,
        request: VoteRequest,
        number: int,
        ttl: int,
        fence: int,
        *,
        entered: bool,
        on_reply: OnReply,
    ) -> None:
        waiter = request.waiter
        self._step(
            request.name,
            lambda step: step.renew(waiter, number, ttl, fence, entered=entered),
            on_reply,
        )

    def reserve(self, request: VoteRequest, number: int, fence: int, on_reply: OnReply) -> None:
        waiter = request.waiter
        self._step(request.name, lambda step: step.reserve(waiter, number, fence), on_reply)

    def finish(
        self, request: VoteRequest, fence: int, remember: int, until: int, on_reply: OnReply
    ) -> None:
        waiter = request.waiter
        self._step(request.name, lambda step: step.finish(waiter, fence, remember, until), on_reply)

    def query_done(self, name: str, on_reply: OnReply) -> None:
        self._step(name, lambda step: step.query_done(self.quorum_server.forgot), on_reply)

    def take_away(self, name: str, waiter: WaiterId, on_reply: OnReply) -> None:
        self._step(name, lambda step: step.take_away(waiter), on_reply)

    def request(self, name: str, on_reply: OnReply) -> None:
        self._step(name, QuorumServerStep.request, on_reply)

    def status(self, name: str, on_reply: OnReply, *, waiters: bool = True) -> None:
        def begin(_: object, error: Exception | None) -> None:
            if error is not None:
                on_reply(None, error)
                return
            reading = self._loop.create_task(
                in_parts(self.quorum_server.status(name, waiting=waiters))
            )
            self._reading.add(reading)
            reading.add_done_callback(read)

        def read(reading: asyncio.Task[Status]) -> None:
            self._reading.discard(reading)
            if reading.cancelled():
                on_reply(None, _closed())
            else:
                on_reply(reading.result(), None)

        self._start(lambda: None, begin)

    def names(self, start: str, on_reply: OnReply) -> None:
        self._start(lambda: self.quorum_server.listed(start), on_reply)

    def post(self, name: str, count: int, value: str, remember: int, on_reply: OnReply) -> None:
        self._step(name, lambda step: step.post(count, value, remember), on_reply)

    def read(self, name: str, on_reply: OnReply) -> None:
        self._step(name, QuorumServerStep.read, on_reply)

    def _step(
        self, name: str, operation: Callable[[QuorumServerStep], Any], on_reply: OnReply
    ) -> None:
        self._start(lambda: self.quorum_server.step(name, operation), on_reply)

    def _start(self, operation: Callable[[], Any], on_reply: OnReply) -> None:
        if self._client is None:
            self._loop.call_soon(on_reply, None, _closed())
            return
        try:
            self._queue.put(_Reply(on_reply), operation)
        except StoreError as error:
            self._loop.call_soon(on_reply, None, error)


class _Reply:
    """Who is told the answer to an operation that is in the queue."""

    __slots__ = ("_on_reply",)

    def __init__(self, on_reply: OnReply) -> None:
        self._on_reply = on_reply

    def done(self) -> bool:
        return False

    def resolve(self, answer: Any) -> None:
        self._on_reply(answer, None)

    def set_exception(self, error: Exception) -> None:
        self._on_reply(None, error)


def _closed() -> StoreError:
    error = StoreError("the store is closed")
    error.refused = True
    return error


def member_at(url: str, prefix: str) -> MemoryMember:
    """The server that a ``memory://`` URL names: the event loop's own, found on opening."""
    return MemoryMember(server_finder(url, prefix), url)


_numbers = itertools.count(1)
_addresses: WeakKeyDictionary[MemoryServer, str] = WeakKeyDictionary()


def member_of(server: MemoryServer, prefix: str) -> MemoryMember:  # noqa: ARG001  # needs none
    """``server``, which is a namespace of its own: no prefix is needed."""
    if server not in _addresses:
        _addresses[server] = f"MemoryServer {next(_numbers)}"
    return MemoryMember(lambda: server, _addresses[server])
