"""The world of the model: how the server and its clients move together, and what must never be.

From a state, `World.steps` leads to all that may come next: a client does something, the server
carries out a command, time passes, something breaks. `World.wrong` says what is wrong with one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final, Literal, NamedTuple, get_args

from tests.proof.protocol.acts import Act, acts, failures, take, tell
from tests.proof.protocol.model import (
    NEVER,
    UNANSWERED,
    WAITING,
    Answer,
    Client,
    Command,
    Holder,
    Phase,
    Push,
    Safeguards,
    Server,
    Task,
    Terms,
    Who,
)
from tests.proof.protocol.parts import BUDGETS, Parts, State
from tests.proof.protocol.server import AtServer

Fault = Literal[
    "stop",  # a process is stopped, its messages stay in its sockets; perhaps it is continued
    "doze",  # the same, but of one that is queued and has asked nothing meanwhile
    "crash",  # a process is killed; what it had sent may still be carried out
    "die",  # the same, but of one that is queued and has asked nothing meanwhile
    "cancel",  # a task that waits is cancelled, or its timeout has passed
    "leave",  # the same, but of one that is queued and has asked nothing meanwhile
    "deaf",  # a subscription breaks; the server notices at once, or later, or never
    "cut",  # a command connection breaks: replies are lost, and commands
    "stray",  # the same, but what was on its way may come late, whatever has happened since
    "despair",  # a command connection is broken for so long that a question fails
    "unheard",  # the same, and the release of a waiter fails
    "mute",  # the same, and a renewal or the release of a body fails
    "flush",  # the server knows a script no more, so the command is sent once more, in full
    "key",  # the key with the last fence is lost: it has an expiry
    "clock",  # the server's clock is set back
    "queue",  # the key with the queue is lost
    "break",  # somebody breaks the lock; until its holder hears of that there may be two bodies
]
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)
EVERY_FAULT: Final = frozenset(FAULTS) - {"doze", "die", "leave", "stray", "break"}
"""Less those that others include, and those that have searches of their own."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Who takes part, how long leases last, and what may go wrong how often."""

    tasks: tuple[int, ...] = (1, 1, 1)
    """How many tasks each client has, most first. Each acquires the lock once, or gives up."""
    claim: int = 1
    ttl: int = 2
    late: int = 1
    """For how long after it was sent a question or a renewal is carried out."""
    renews: bool = True
    """Whether leases are renewed; without it, a claim is confirmed, and that is all."""
    tries: bool = False
    """Whether the tasks of the last client do not wait where the lock is not free."""
    faults: int = 1
    """How many faults there are at most, all in all."""
    kinds: frozenset[Fault] = EVERY_FAULT
    delays: int = 0
    """For how many ticks, all in all, something is slow: a message, the server, a process. Within
    one tick everything happens in any order. Who is stopped or not connected stays so for as long
    as it takes, and so does a body; none of that is a delay."""
    begun: bool = False
    """Whether at the beginning one task is in its body and all the others are queued: saves states
    on the way to what is looked for."""
    first: int = 0
    """The client whose first task that is; its others are the last in the queue."""
    queue: tuple[int, ...] = ()
    """The clients to whose tasks the places belong, in order; by default those of each client."""
    ahead: int = 0
    """How many grants a client may be ahead of the server; with 0 it hands nothing on."""
    shares: bool = False
    """Whether the lock is granted by shares: the next is the first in the queue, or the last."""
    patience: int | None = None
    """With a number: for how many ticks, all in all, the lock may be idle while somebody waits for
    it. Then who is not connected connects at once, which otherwise takes as long as it takes."""


class Wrong(StrEnum):
    """What must never be."""

    TWO_BODIES = "two bodies, and the deadline of neither has passed"
    NOT_THE_HOLDER = "a body whose deadline has not passed does not hold the lock at the server"
    ENTERED_LATE = "a body was entered although the deadline of its grant had passed"
    TWO_HOLDERS = "there are two holders"
    TWICE = "a waiter stands at the server twice"
    FENCE_FELL = "a fence is not higher than the one before"
    ACTED_LATE = "a late copy did something for a waiter that had been given up"
    SENT_AWAY = "somebody that waits, or that nobody is before, was told that the lock is taken"
    OVERTOOK = "the lock was handed on to a waiter although somebody else stood before it"
    LEFT_BEHIND = "a waiter that has ended still has a place or a lease at the server"
    IDLE_TOO_LONG = "the lock was idle for too long while somebody waited"
    FORGOTTEN = "somebody waits and, whatever happens, never enters"


Label = tuple[str, int]
"""What happens, and which client's name belongs into that."""

How = Literal["", "flush", "look", "last"] | int
"""How the server carries out a command: as it is, without knowing the script, as a newcomer's that
looks who is dead, with the last in the queue as the next; or one of a broken connection, by the
number of that."""

Step = tuple[State, bool, Label]
"""What comes of it, whether it happens by itself, and what it is."""


class _Move(NamedTuple):
    """What one client may do, whatever the others do."""

    after: int
    label: str
    urgent: bool
    by_itself: bool
    handed: tuple[int, int] | None
    """The lock is handed on by it: to this task, under this fence."""


class _Break(NamedTuple):
    """What one client may suffer."""

    fault: Fault
    label: str
    after: int


class _OfClient(NamedTuple):
    """What others must know of a client."""

    urgent: bool
    """It, or the server for it, does something without delay."""
    due: bool
    """It has sent a command that the server has not carried out."""
    strays: int
    """How many broken connections may still deliver something of it."""
    counted: bool
    waits: bool
    works: bool
    late: bool
    ended: tuple[int, ...]
    """Its tasks of which nothing should be left at the server."""
    bodies: tuple[tuple[int, int, int], ...]
    """Its bodies whose deadline has not passed: task, fence, ticks left."""
    passed: tuple[tuple[int, int], ...]
    """What has been handed on, by task and fence, and the server may not know of that."""


class _OfServer(NamedTuple):
    """What others must know of the server."""

    wrong: Wrong | None
    holders: tuple[Holder, ...]
    in_the_way: frozenset[Who]
    """Who has a place, or a lease that has not ended."""


class World:
    """The system that is searched."""

    def __init__(
        self,
        setting: Setting,
        guards: Safeguards | None = None,
        looked_for: frozenset[Wrong] = frozenset(Wrong),
    ) -> None:
        self.setting = setting
        self.guards = guards or Safeguards()
        self.looked_for = looked_for
        self.terms = Terms(setting.ttl, setting.claim, setting.late, setting.renews, setting.ahead)
        self._claim = setting.claim if self.guards.claims_are_short else setting.ttl
        self.parts = Parts(setting.tasks, setting.ahead)
        self.canonical = self.parts.canonical
        # What happens to a part is worked out once, however many states it is part of.
        self._moves = cache(self._work_out_moves)
        self._settled_moves = cache(self._settle_moves)
        self._breaks = cache(self._work_out_breaks)
        self._carried_out = cache(self._carry_out)
        self._pushed = cache(self._push)
        self._handed_on = cache(self._hand_on)
        self._older = cache(self._age)
        self._settled = cache(self._read_what_nobody_awaits)
        self._of_client = cache(self._look_at_client)
        self._of_server = cache(self._look_at_server)
        self._compared = cache(self._compare)

    def initial(self) -> State:
        """Nobody has asked yet, unless it is to have begun."""
        clients = [Client((Task(),) * tasks) for tasks in self.setting.tasks]
        if self.setting.tries:
            clients[-1] = Client((Task(tries=True),) * self.setting.tasks[-1])
        budgets = (self.setting.faults, self.setting.delays, 0)
        state = (self.parts.number(Server()), *map(self.parts.number, clients), *budgets)
        if not self.setting.begun:
            return state
        first, tasks = self.setting.first, self.setting.tasks
        order = [client for client, several in enumerate(tasks) for _ in range(several)]
        order.remove(first)
        order = list(self.setting.queue) or order
        for client in [first, *order]:
            asked = self._step_of(state, client, " asks")
            listening = (True,) * len(tasks)
            served, *_ = self._served(asked, client, listening, "")
            state = self._step_of(served, client, " reads ")
        return self._step_of(state, first, " runs")

    def _step_of(self, state: State, client: int, what: str) -> State:
        steps = ((after, at, label) for after, _, (label, at) in self.steps(state))
        return next(after for after, at, label in steps if at == client and what in label)

    # What may happen

    def steps(self, state: State) -> list[Step]:
        """Everything that may happen next."""
        of = [self._of_client(client) for client in state[1:-BUDGETS]]
        listening = tuple([o.counted for o in of])
        urgent = any(o.urgent for o in of)
        faults, delays, _ = state[-BUDGETS:]
        steps: list[Step] = []
        for at, what in enumerate(of):
            steps += self._steps_of_client(state, at)
            served: list[Step] = []
            if what.due:
                served.append(self._served(state, at, listening, ""))
                if self._would_look(state, at, listening):
                    served.append(self._served(state, at, listening, "look"))
                if self.setting.shares and len(self.parts.server(state[0]).queue) > 1:
                    served.append(self._served(state, at, listening, "last"))
                if faults and "flush" in self.setting.kinds:
                    served.append(self._served(state, at, listening, "flush"))
            served += [self._served(state, at, listening, link) for link in range(what.strays)]
            steps += [(self._settle(after), itself, label) for after, itself, label in served]
        if faults:
            steps += self._server_faults(state, listening)
        if delays or not urgent:
            steps += self._tick(state, of, urgent=urgent)
        return steps

    def _steps_of_client(self, state: State, at: int) -> list[Step]:
        """What this client does, or suffers, by itself."""
        steps: list[Step] = []
        before, client, behind = state[: at + 1], state[at + 1], state[at + 2 :]
        faults = state[-BUDGETS]
        moves = self._moves(client) if faults else self._settled_moves(client)
        for after, label, _, by_itself, handed in moves:
            if handed is None:
                steps.append(((*before, after, *behind), by_itself, (label, at)))
            else:
                server = self._handed_on(state[0], client, at, handed)
                steps.append(((server, *before[1:], after, *behind), by_itself, (label, at)))
        if faults:
            fewer = (*behind[:-BUDGETS], faults - 1, *behind[1 - BUDGETS :])
            for fault, label, after in self._breaks(client):
                if not (fault in {"doze", "die"} and self._holds(state[0], at)):
                    broken = self._settle((*before, after, *fewer))
                    steps.append((broken, False, (label, at)))
        return steps

    def _holds(self, server: int, client: int) -> bool:
        return any(holder.who.client == client for holder in self._of_server(server).holders)

    def _hand_on(self, server: int, client: int, at: int, handed: tuple[int, int]) -> int:
        """The server, which sees nothing of it: what is to be remembered of it for the search."""
        after, giving = self.parts.server(server), self.parts.client(client)
        task, fence = handed
        ticket = giving.tasks[task].ticket
        # Who is not in the queue has lost its place, and nobody could tell that it is overtaken.
        stands = any(place.who == Who(at, task) for place in after.queue)
        told = not giving.hears or any(push.what != "granted" for push in giving.inbox)
        asks = {command.task for command in giving.pipe if command.what == "ask"}
        overtook = stands and any(
            place.ticket < ticket
            and (
                not told
                if place.who.client != at
                else giving.tasks[place.who.task].phase is Phase.QUEUED
                and place.who.task not in asks
            )
            for place in after.queue
        )
        fell = fence <= after.highest and "break" not in self.setting.kinds
        return self.parts.number(
            after._replace(
                highest=max(after.highest, fence),
                fence_fell=after.fence_fell or fell,
                overtook=after.overtook or overtook,
            )
        )

    def _would_look(self, state: State, at: int, listening: tuple[bool, ...]) -> bool:
        """Whether this client's next command is of a newcomer, and somebody in the queue is dead.

        By chance it looks who is, or does not.
        """
        pipe = self.parts.client(state[at + 1]).pipe
        command = next(each for each in pipe if each.answer is None)
        if command.what != "ask":
            return False
        server = self.parts.server(state[0])
        serving = AtServer(server, self.guards, self.terms, listening=listening)
        return serving.would_look(Who(at, command.task), command.number)

    def _served(
        self,
        state: State,
        at: int,
        listening: tuple[bool, ...],
        how: How,
    ) -> Step:
        """The server carries out a command of this client: of a broken connection, by a number."""
        server, *clients = state[:-BUDGETS]
        faults, delays, idle = state[-BUDGETS:]
        carried_out = self._carried_out(server, clients[at], at, listening, how)
        server, clients[at], pushes, label = carried_out
        for client, push in pushes:
            clients[client] = self._pushed(clients[client], push)
        fault = how == "flush"
        return (server, *clients, faults - fault, delays, idle), not fault, (label, at)

    def _carry_out(
        self,
        server: int,
        client: int,
        at: int,
        listening: tuple[bool, ...],
        how: How,
    ) -> tuple[int, int, list[tuple[int, Push]], str]:
        before = self.parts.client(client)
        queue = before.strays[how] if isinstance(how, int) else before.pipe
        place = next(i for i, command in enumerate(queue) if command.answer is None)
        command = queue[place]
        serving = AtServer(
            self.parts.server(server),
            self.guards,
            self.terms._replace(claim=self._claim),
            listening=listening,
            from_the_end=how == "last",
        )
        if how == "flush":
            answer = Answer("unknown script")
        elif command.what == "ask":
            who, age = Who(at, command.task), min(command.age, self._claim)
            answer = serving.acquire(who, command.number, age, looks=how == "look")
        elif command.what == "release":
            answer = serving.release(Who(at, command.task), command.number, command.lasts)
        elif command.report is not None:
            answer = serving.report_handoff(at, command.report)
        else:
            answer = serving.renew(Who(at, command.task), command.number)
        if isinstance(how, int):
            acts = answer.what in {"granted", "queued", "renewed", "passed"}
            serving.acted_late |= acts and before.alive and command.task in _given_up(before)
            after = _less(before, how, queue[1:])
        else:
            waits = command.number >= 0 and not command.dropped
            unasked = answer.what == "busy" and (waits or not (serving.holders or serving.queue))
            serving.sent_away |= unasked
            replied = command._replace(answer=answer)
            after = before._replace(pipe=(*queue[:place], replied, *queue[place + 1 :]))
        copy = "late copy of a " if isinstance(how, int) else ""
        label = f"the server carries out {{me}}'s {copy}{tell(command)}: {answer.what}"
        if how == "look":
            label += ", after it has removed who is dead"
        if how == "last":
            label += ", and the last in the queue is the next"
        if answer.what == "granted":
            label += f" #{answer.number} for {answer.ticks}"
        told = [(at, answer.push)] if answer.push is not None else serving.pushes
        for to, push in told:
            label += f", tells {self.name(Who(to, push.task))}: {push.what}"
            label += f" #{push.fence}" if push.fence else ""
        number = self.parts.number
        return number(serving.after()), number(after), serving.pushes, label

    def _push(self, client: int, push: Push) -> int:
        before = self.parts.client(client)
        if not before.hears:
            return client
        return self.parts.number(before._replace(inbox=(*before.inbox, push)))

    def _work_out_moves(self, number: int) -> list[_Move]:
        client = self.parts.client(number)

        def move(
            label: str,
            after: Client,
            *,
            urgent: bool = False,
            by_itself: bool = True,
        ) -> _Move:
            handed = None
            if len(after.run.passed) > len(client.run.passed):
                task = after.run.present
                handed = task, after.tasks[task].fence
                label += f", and hands on #{handed[1]} to {{me}}{task + 1}"
            return _Move(self.parts.number(after), label, urgent, by_itself, handed)

        moves: list[_Move] = []
        if client.alive and not client.stopped:
            own = acts(
                client,
                self.guards,
                self.terms,
                connects_at_once=self.setting.patience is not None,
            )
            moves += [move(act.label, self._taken(client, act), urgent=act.urgent) for act in own]
        elif client.stopped:
            continued = client._replace(stopped=False)
            moves.append(move("{me} is continued", continued, by_itself=False))
        if client.counted and not client.hears:
            gone = client._replace(counted=False)
            moves.append(move("the server notices that {me} does not listen", gone))
        for link in range(len(client.strays)):
            moves.append(move("what {me} had sent is lost", _less(client, link, ())))
        return moves

    def _settle_moves(self, number: int) -> list[_Move]:
        """The same when nothing breaks any more."""
        return [move._replace(after=self._settled(move.after)) for move in self._moves(number)]

    def _taken(self, client: Client, act: Act) -> Client:
        return take(client, act, self.guards, self.terms)

    # What may break

    def _work_out_breaks(self, number: int) -> list[_Break]:
        client = self.parts.client(number)
        begun = any(task.phase not in {Phase.IDLE, Phase.DONE} for task in client.tasks)
        if not client.alive or not (begun or client.pipe):
            return []
        return [
            _Break(kind, label, self.parts.number(after))
            for kind, label, after in (*self._faults(client), *self._failures(client))
            if kind in self.setting.kinds
        ]

    def _faults(self, client: Client) -> Iterator[tuple[Fault, str, Client]]:
        """What may befall a client."""
        quiet = not client.pipe
        sent = tuple(
            command._replace(
                age=0,
                awaited=False,
                dropped=True,
                lasts=command.lasts if command.what == "release" else self.setting.late,
            )
            for command in client.pipe
            if client.linked and command.answer is None
        )
        strays = (*client.strays, sent) if sent else client.strays
        dead = Client(
            (Task(Phase.DONE),) * len(client.tasks),
            alive=False,
            linked=False,
            strays=strays,
            hears=False,
            counted=False,
        )
        yield "crash", "{me} is killed", dead
        if quiet:
            yield "die", "{me} is killed", dead
        if client.hears:
            yield "deaf", "{me}'s subscription breaks", client._replace(hears=False)
        if client.linked:
            unanswered = tuple(
                command._replace(answer=None, again=command.report is not None)
                for command in client.pipe
            )
            cut = client._replace(linked=False, pipe=unanswered)
            yield "cut", "{me}'s connection breaks", cut
            if sent:
                stray = cut._replace(strays=strays, broken=self.setting.late)
                yield "stray", "{me}'s connection breaks, but not for what is on its way", stray
        if not client.stopped:
            stopped = client._replace(stopped=True)
            yield "stop", "{me} is stopped", stopped
            if quiet:
                yield "doze", "{me} is stopped", stopped

    def _failures(self, client: Client) -> Iterator[tuple[Fault, str, Client]]:
        """What may befall the tasks of a running client, of what is looked for."""
        for act in () if client.stopped else failures(client):
            for kind in self._kinds_of(client, act):
                if kind in self.setting.kinds:  # else the client is not to be worked out
                    yield kind, act.label, self._taken(client, act)

    @staticmethod
    def _kinds_of(client: Client, act: Act) -> list[Fault]:
        """The kinds of faults of which this failure is one."""
        if act.task is not None:
            leaves = client.tasks[act.task].phase is Phase.QUEUED and not client.pipe
            return ["cancel", "leave"] if leaves else ["cancel"]
        command = client.pipe[0]
        if command.what == "ask":
            return ["despair"]
        back = client.tasks[command.task].phase is Phase.BACK
        of_waiter = command.what == "release" and (back or not command.awaited)
        return ["unheard" if of_waiter else "mute"]

    def _server_faults(self, state: State, listening: tuple[bool, ...]) -> Iterator[Step]:
        server, kinds = self.parts.server(state[0]), self.setting.kinds
        # With the key lost and the clock set back at once, only the holder's own fence is left.
        held = bool(server.holders)
        suffered: list[tuple[Server, str]] = []
        if "key" in kinds and server.last and (held or not server.clock_is_back):
            suffered.append((server._replace(last=0), "the key with the last fence is lost"))
        if "clock" in kinds and not server.clock_is_back and (held or server.last):
            suffered.append((server._replace(clock_is_back=True), "the server's clock is set back"))
        if "queue" in kinds and server.queue:
            suffered.append((server._replace(queue=()), "the queue is lost"))
        fewer = (state[-BUDGETS] - 1, *state[1 - BUDGETS :])
        if "break" in kinds and held:
            broken = AtServer(server, self.guards, self.terms, listening=listening)
            broken.break_(server.holders[0])
            clients = list(state[1:-BUDGETS])
            for client, push in broken.pushes:
                clients[client] = self._pushed(clients[client], push)
            number = self.parts.number(broken.after())
            broken_state = self._settle((number, *clients, *fewer))
            yield broken_state, False, ("somebody breaks the lock", 0)
        for after, label in suffered:
            suffering = self._settle((self.parts.number(after), *state[1:-BUDGETS], *fewer))
            yield suffering, False, (label, 0)

    # Time

    def _tick(self, state: State, of: list[_OfClient], *, urgent: bool) -> Iterator[Step]:
        """Time passes; if anybody should have done something first, that is a delay."""
        parts = state[:-BUDGETS]
        faults, delays, idle = state[-BUDGETS:]
        if self.setting.patience is not None:
            idle += any(o.waits for o in of) and not any(o.works for o in of)
        older = tuple(map(self._older, parts))
        if older != parts or idle != state[-1]:
            label = "time passes, and somebody is slow" if urgent else "time passes"
            after = self._settle((*older, faults, delays - urgent, idle))
            yield after, not urgent, (label, 0)

    def _age(self, number: int) -> int:
        """The same part, one tick later."""
        part = self.parts.part(number)
        if isinstance(part, Server):
            holders = tuple(h._replace(left=max(0, h.left - 1)) for h in part.holders)
            buried = tuple(t._replace(left=t.left - 1) for t in part.tombstones if t.left > 1)
            return self.parts.number(part._replace(holders=holders, tombstones=buried))
        return self.parts.number(
            part._replace(
                tasks=tuple(map(self._older_task, part.tasks)),
                pipe=tuple(map(self._older_command, part.pipe)),
                inbox=tuple(map(_older_push, part.inbox)),
                alarm=NEVER if part.alarm == NEVER else max(0, part.alarm - 1),
                strays=tuple(link for link in map(self._older_link, part.strays) if link),
                broken=max(0, part.broken - 1),
            )
        )

    def _older_link(self, link: tuple[Command, ...]) -> tuple[Command, ...]:
        if not self.guards.late_are_refused:
            return link
        older = (command._replace(lasts=max(0, command.lasts - 1)) for command in link)
        return tuple(c for c in older if c.what == "release" or c.lasts)  # the others are refused

    def _older_task(self, task: Task) -> Task:
        # What is older than any lease might as well be just as old.
        begun = task.phase in WAITING and task.lag == UNANSWERED
        age = min(self._claim, task.age + 1) if begun else 0
        failing = NEVER if task.failing == NEVER else max(0, task.failing - 1)
        return task._replace(age=age, left=max(0, task.left - 1), failing=failing)

    def _older_command(self, command: Command) -> Command:
        answer = command.answer
        if answer is not None and answer.push is not None:
            return command._replace(answer=answer._replace(push=_older_push(answer.push)))
        if command.what == "release" or command.dropped:
            return command._replace(lasts=max(0, command.lasts - 1))
        return command._replace(age=min(self.setting.ttl, command.age + 1))

    # Fewer states

    def _settle(self, state: State) -> State:
        """When nothing breaks any more, it makes no difference when such a reply is read."""
        if state[-BUDGETS]:
            return state
        return (state[0], *map(self._settled, state[1:-BUDGETS]), *state[-BUDGETS:])

    def _read_what_nobody_awaits(self, number: int) -> int:
        client = self.parts.client(number)
        pipe = client.pipe
        while pipe and pipe[0].answer is not None and pipe[0].answer.what != "unknown script":
            task = client.tasks[pipe[0].task]
            if pipe[0].what == "release":
                back = pipe[0].awaited and task.phase is Phase.BACK
                cared_for = back or pipe[0].answer.push is not None
            else:
                cared_for = not pipe[0].dropped
            if cared_for:
                break
            pipe = pipe[1:]
        return self.parts.number(client._replace(pipe=pipe))

    # What must never be

    def _has_not_heard(self, number: int) -> bool:
        """Whether a client is still to be told that the lock was broken."""
        client = self.parts.client(number)
        unheard = not client.hears or any(push.what == "broken" for push in client.inbox)
        return "break" in self.setting.kinds and (client.stopped or unheard)

    def wrong(self, state: State) -> Wrong | None:
        """What is wrong with this state, of what is looked for."""
        server = state[0]
        at_server = self._of_server(server).wrong
        found = [] if at_server is None else [at_server]
        bodies = 0
        for at, client in enumerate(state[1:-BUDGETS]):
            its_bodies, its_wrongs = self._compared(server, client, at)
            bodies += its_bodies
            found += its_wrongs
        if bodies > 1:
            found.append(Wrong.TWO_BODIES)
        if self.setting.patience is not None and state[-1] > self.setting.patience:
            found.append(Wrong.IDLE_TOO_LONG)
        return next((wrong for wrong in found if wrong in self.looked_for), None) if found else None

    def _compare(self, server: int, client: int, at: int) -> tuple[int, list[Wrong]]:
        """How many bodies a client has, and what is wrong between it and the server."""
        of_server, of = self._of_server(server), self._of_client(client)
        found: list[Wrong] = []
        bodies = () if of.bodies and self._has_not_heard(client) else of.bodies
        for task, fence, left in bodies:
            grant = (Who(at, task), fence)
            grants = {grant, *((Who(at, source), given) for source, given in of.passed)}
            if not any(h[:2] in grants and left <= h.left for h in of_server.holders):
                found.append(Wrong.NOT_THE_HOLDER)
        if any((at, task) in of_server.in_the_way for task in of.ended):
            found.append(Wrong.LEFT_BEHIND)
        if of.late:
            found.append(Wrong.ENTERED_LATE)
        return len(bodies), found

    def content(self, state: State) -> bool:
        """Whether nobody waits. Who is stopped or dead does not."""
        return not any(self._of_client(client).waits for client in state[1:-BUDGETS])

    def _look_at_client(self, number: int) -> _OfClient:
        client = self.parts.client(number)
        running = client.alive and not client.stopped
        phases = [task.phase for task in client.tasks]
        bodies = tuple(
            (at, task.fence, task.left)
            for at, task in enumerate(client.tasks)
            if task.phase is Phase.BODY and task.left
        )
        due = client.linked and any(command.answer is None for command in client.pipe)
        at_once = bool(client.strays) and self.setting.patience is not None
        return _OfClient(
            urgent=due or at_once or any(move.urgent for move in self._moves(number)),
            due=due,
            strays=len(client.strays),
            counted=client.counted,
            waits=running and not WAITING.isdisjoint(phases),
            works=running and bool(bodies),
            late=Phase.LATE in phases,
            ended=tuple(_given_up(client)) if client.alive else (),
            bodies=bodies,
            passed=client.run.passed,
        )

    def _look_at_server(self, number: int) -> _OfServer:
        server = self.parts.server(number)
        wrong = None
        stand = [holder.who for holder in server.holders] + [place.who for place in server.queue]
        if len(server.holders) > 1:
            wrong = Wrong.TWO_HOLDERS
        elif len(set(stand)) < len(stand):
            wrong = Wrong.TWICE
        elif server.fence_fell:
            wrong = Wrong.FENCE_FELL
        elif server.acted_late:
            wrong = Wrong.ACTED_LATE
        elif server.sent_away:
            wrong = Wrong.SENT_AWAY
        elif server.overtook:
            wrong = Wrong.OVERTOOK
        ended = {holder.who for holder in server.holders if not holder.left}
        return _OfServer(wrong, server.holders, frozenset(stand) - ended)

    # For people

    def tell(self, label: Label) -> str:
        """What happens, in words."""
        text, client = label
        return text.format(me=_LETTERS[client])

    def show(self, state: State) -> str:
        """A state, in one line."""
        server, *clients = state[:-BUDGETS]
        of_server = self.parts.server(server)
        held = [f"{self.name(h.who)} #{h.fence} for {h.left}" for h in of_server.holders]
        queue = [f", then {self.name(place.who)}" for place in of_server.queue]
        queue += [f", {self.name(t.who)} buried for {t.left}" for t in of_server.tombstones]
        told = [f"server: {' and '.join(held) or 'free'}{''.join(queue)}"]
        for at, client in enumerate(map(self.parts.client, clients)):
            how = " (stopped)" if client.stopped else "" if client.alive else " (dead)"
            for place, task in enumerate(client.tasks):
                grant = f" #{task.fence} for {task.left}" if task.fence else ""
                told.append(f"{self.name(Who(at, place))} {task.phase}{grant}{how}")
        return "; ".join(told)

    def name(self, who: Who) -> str:
        """A, B, C; or A1 and A2 where a client has several tasks."""
        letter = _LETTERS[who.client]
        return letter if self.setting.tasks[who.client] == 1 else f"{letter}{who.task + 1}"


def _given_up(client: Client) -> set[int]:
    """The tasks of a client that are over, and of which nothing is under way."""
    busy = {command.task for command in client.pipe} | {at for at, _ in client.unreleased}
    reports = (*client.run.reports, *(c.report for c in client.pipe if c.report is not None))
    busy |= {at for report in reports for at in (report.source, *report.via)}
    return {at for at, task in enumerate(client.tasks) if task.phase is Phase.DONE} - busy


def _less(client: Client, link: int, left: tuple[Command, ...]) -> Client:
    """The client, with only this left of what that connection may still deliver."""
    strays = list(client.strays)
    strays[link : link + 1] = [left] if left else []
    return client._replace(strays=tuple(strays))


def _older_push(push: Push) -> Push:
    return push._replace(age=min(push.lease, push.age + 1))


_LETTERS: Final = "ABCDEFGH"
