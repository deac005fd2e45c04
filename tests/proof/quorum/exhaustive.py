"""The core of the protocol, without time or faults: a search through every order of events.

Some clients acquire the lock once each, or twice, and release it. Each link carries commands in
order, and answers and pushes in order, each on a channel of its own; between any two of them any
other event may happen. Servers begin with different last fences, and proposals are of no use: the
worst case. A client's ticket is its number, so tickets and arrivals differ in every way.

In every state at most one client is inside, fences grow in the order of entering, and no run ends
before all clients have been inside. Some clients may be readers: they may be inside together, and
then the fence of each is higher than that of any earlier writer. ``python -m
tests.proof.quorum.exhaustive --help`` searches more than the tests do; the first clients are the
readers. Two servers decide together: that is a quorum, too, and a smaller world.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Collection, Iterator
from functools import cache
from typing import Final, Generic, NamedTuple, TypeVar

from aiolock.stores.quorum._votes import Enter, Phase, Raise, Vote, VoteSet, YieldVote
from tests.support import garbage

_FOR_EVER: Final = 1.0
_NOW: Final = 0.0


class Wrong(Exception):
    """A state that must never occur."""


class Message(NamedTuple):
    """A command, an answer, or a push."""

    kind: str
    who: int
    number: int = 0
    fence: int = 0


class Server(NamedTuple):
    """One server."""

    out: tuple[tuple[int, int], ...]
    """The clients with a vote and its number: one, or readers."""
    queue: tuple[int, ...]
    last: int


class Votes(NamedTuple):
    """The state of a `VoteSet`, to compare and keep."""

    entered: bool
    votes: tuple[tuple[int, int, bool] | None, ...]
    order_unknown: tuple[int, ...]
    inquired: tuple[int, ...]
    highest: int
    fence: int = 0
    """The fence under which it has entered, if it may be handed on."""


class Client(NamedTuple):
    """A client: its present acquisition, and what it knows."""

    who: int
    """The ticket of this acquisition; the next one's is higher by the number of clients."""
    left: int
    """How many acquisitions are still to come."""
    votes: Votes | None
    commands: tuple[tuple[Message, ...], ...]
    answers: tuple[tuple[Message, ...], ...]
    pushes: tuple[tuple[Message, ...], ...]


class State(NamedTuple):
    """The whole state. Equal servers have one number, and so have equal clients."""

    servers: tuple[int, ...]
    clients: tuple[int, ...]
    fence: int
    """The highest fence of all that have entered."""
    writers_fence: int
    """The highest fence of all writers that have entered."""


LinkState = tuple[tuple[Message, ...], ...]

Move = tuple[int, int]
"""What a client is next, and the fence under which it has entered by that, or 0."""

Part = TypeVar("Part", Server, Client)


class Numbers(Generic[Part]):
    """Equal parts are one and have a number: so a state is a few numbers."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._numbers: dict[Part, int] = {}

    def __getitem__(self, number: int) -> Part:
        return self._parts[number]

    def of(self, part: Part) -> int:
        """The number of this part."""
        number = self._numbers.setdefault(part, len(self._parts))
        if number == len(self._parts):
            self._parts.append(part)
        return number


def _more(links: LinkState, server: int, *messages: Message) -> LinkState:
    return (*links[:server], (*links[server], *messages), *links[server + 1 :])


def _less(links: LinkState, server: int) -> LinkState:
    return (*links[:server], links[server][1:], *links[server + 1 :])


def frozen(vote_set: VoteSet, *, hands_on: bool = False) -> Votes:
    """The part of a ballot that has to be kept."""
    votes = tuple(
        None if vote is None else (vote.number, vote.known, vote.raising) for vote in vote_set.votes
    )
    entered = vote_set.phase is Phase.ENTERED
    fence = vote_set.fence if hands_on else 0
    order_unknown, inquired = tuple(vote_set._given_back), tuple(vote_set._inquired)
    return Votes(entered, votes, order_unknown, inquired, vote_set.highest, fence)


class Search:
    """A search through all that can happen, for one kind of ballot."""

    def __init__(
        self,
        clients: int,
        times: int,
        vote_set: type[VoteSet] = VoteSet,
        *,
        servers: int = 3,
        readers: Collection[int] = (),
        inquires: int | None = None,
        tells: bool = True,
        beside: bool = False,
        hands_on: bool = False,
        at_once: bool = False,
    ) -> None:
        """``readers``: which of the clients are readers.

        ``at_once``: an answer is read as soon as the command is carried out, which leaves orders of
        events out. Pushes stay on their way.

        The other options leave something out. ``inquires``: servers inquire of so many of the
        votes in the way, at most. ``tells``: releases tell the highest number. ``beside``: readers
        do not mind a writer. ``hands_on``: the first client may hand its lock to its next
        acquisition; the others acquire the lock once.
        """
        self._at_once = at_once
        self._servers = servers
        self._none: LinkState = ((),) * servers
        self._readers = frozenset(readers)
        self._beside = beside
        self._hands_on = hands_on
        self._clients = clients
        self._times = times
        self._ballot = vote_set
        self._inquires = inquires
        self._tells = tells
        self._at = Numbers[Server]()
        self._of = Numbers[Client]()
        # Most states have their servers and clients from others: what happens there is worked out
        # once.
        self._executed_at = cache(self._execute)
        self._moves = cache(self._work_out_moves)
        self._heard = cache(self._hear)
        self._sent = cache(self._send)
        self._pushed = cache(self._push)
        self.states = self.depth = 0
        self.complete = False

    @garbage.not_looked_for()
    def run(self, seconds: float = math.inf) -> int:
        """Search; returns how many states there were. Raises `Wrong`.

        After so many seconds of CPU time the search ends when it has all states that are as many
        steps from the first: then it is not ``complete``.
        """
        end = time.process_time() + seconds
        clients = [
            Client(who, self._times_of(who), None, self._none, self._none, self._none)
            for who in range(self._clients)
        ]
        first = State(
            tuple(self._at.of(Server((), (), 2 * server)) for server in range(self._servers)),
            tuple(map(self._of.of, clients)),
            *(0, 0),
        )
        seen, front = {first}, [first]
        while front and time.process_time() < end:
            reached: list[State] = []
            for state in front:
                nexts = list(self._steps(state))
                if not nexts and any(self._of[client].left for client in state.clients):
                    raise Wrong(f"for ever: {[self._at[server] for server in state.servers]}")
                for following in nexts:
                    if following not in seen:
                        seen.add(following)
                        reached.append(following)
            front = reached
            self.states = len(seen)
            self.depth += bool(front)
        self.complete = not front
        return self.states

    def _times_of(self, who: int) -> int:
        return 1 if self._hands_on and who else self._times

    def _thawed(self, kept: Votes) -> VoteSet:
        vote_set = self._ballot(self._servers)
        vote_set.phase = Phase.ENTERED if kept.entered else Phase.WAITING
        vote_set._given_back, vote_set._inquired = list(kept.order_unknown), list(kept.inquired)
        vote_set.highest, vote_set.fence = kept.highest, kept.fence
        for server, known in enumerate(kept.votes):
            if known is not None:
                vote_set.votes[server] = vote = Vote(known[0], _FOR_EVER)
                vote.known, vote.raising = known[1], known[2]
        return vote_set

    def _steps(self, state: State) -> Iterator[State]:
        for index, client in enumerate(state.clients):
            for move in self._moves(client):
                yield self._with(state, index, move)
            for server, commands in enumerate(self._of[client].commands):
                if commands:
                    yield self._executed(state, index, server, commands[0])

    def _with(self, state: State, index: int, move: Move) -> State:
        after, entered = move
        clients = (*state.clients[:index], after, *state.clients[index + 1 :])
        if entered:
            return self._entered(state, index, entered, clients)
        return State(state.servers, clients, state.fence, state.writers_fence)

    # What a client does by itself

    def _work_out_moves(self, number: int) -> list[Move]:
        client, moves = self._of[number], list[Move]()
        if client.votes is None and client.left:
            moves.append(self._asks(client))
        if client.votes is not None and client.votes.entered:
            moves.append(self._leaves(client))
            if self._hands_on and client.left > 1:
                moves += self._goes_on(client)
        for server in range(self._servers):
            if client.answers[server]:
                heard = client._replace(answers=_less(client.answers, server))
                moves.append(self._hear(self._of.of(heard), server, client.answers[server][0]))
            if client.pushes[server]:
                heard = client._replace(pushes=_less(client.pushes, server))
                moves.append(self._hear(self._of.of(heard), server, client.pushes[server][0]))
        return moves

    def _asks(self, client: Client) -> Move:
        commands = client.commands
        for server in range(self._servers):
            commands = _more(commands, server, Message("vote", client.who))
        votes = frozen(self._ballot(self._servers))
        return self._of.of(client._replace(votes=votes, commands=commands)), 0

    def _leaves(self, client: Client) -> Move:
        assert client.votes is not None
        commands = client.commands
        for server in range(self._servers):
            highest = client.votes.highest if self._tells else 0
            release = Message("release", client.who, fence=highest)
            commands = _more(commands, server, release)
        # Messages on their way to it belong to no waiter now: its release is on its way.
        gone = Client(
            client.who + self._clients, client.left - 1, None, commands, self._none, self._none
        )
        return self._of.of(gone), 0

    def _goes_on(self, client: Client) -> Iterator[Move]:
        """The next fence is made known, and then the lock is handed on."""
        assert client.votes is not None
        vote_set = self._thawed(client.votes)
        fence, commands = vote_set.fence + 1, client.commands
        untold = [server for server, vote in enumerate(vote_set.votes) if vote and not vote.raising]
        for told in vote_set.reserve(fence):
            vote = vote_set.votes[told.server]
            if told.server in untold and vote is not None and vote.known < fence:
                vote.raising = True
                raised = Message("raise", client.who, told.vote, told.fence)
                commands = _more(commands, told.server, raised)
        if commands != client.commands:
            votes = frozen(vote_set, hands_on=True)
            yield self._of.of(client._replace(votes=votes, commands=commands)), 0
        vote_set = self._thawed(client.votes)
        if vote_set.hand_off(_NOW):
            votes = frozen(vote_set, hands_on=True)
            after = client._replace(votes=votes, left=client.left - 1)
            yield self._of.of(after), vote_set.fence

    # What a server does

    def _executed(self, state: State, index: int, server: int, command: Message) -> State:
        after, answer, pushes = self._executed_at(state.servers[server], command)
        clients = list(state.clients)
        clients[index] = self._sent(clients[index], server, answer)
        for push in pushes:
            to = push.who % self._clients
            clients[to] = self._pushed(clients[to], server, push)
        servers = (*state.servers[:server], after, *state.servers[server + 1 :])
        state = State(servers, tuple(clients), state.fence, state.writers_fence)
        if answer is not None and self._at_once and self._is_for(clients[index], answer):
            return self._with(state, index, self._heard(clients[index], server, answer))
        return state

    def _is_for(self, number: int, message: Message) -> bool:
        """Whether it is for the present acquisition of this client."""
        client = self._of[number]
        return client.votes is not None and message.who == client.who

    def _send(self, number: int, server: int, answer: Message | None) -> int:
        """The client whose first command to that server was carried out."""
        client = self._of[number]
        client = client._replace(commands=_less(client.commands, server))
        if answer is not None and not self._at_once and self._is_for(number, answer):
            client = client._replace(answers=_more(client.answers, server, answer))
        return self._of.of(client)

    def _push(self, number: int, server: int, push: Message) -> int:
        if not self._is_for(number, push):
            return number
        client = self._of[number]
        return self._of.of(client._replace(pushes=_more(client.pushes, server, push)))

    def _execute(self, number: int, command: Message) -> tuple[int, Message | None, list[Message]]:
        after, answer, pushes = self._carry_out(self._at[number], command)
        return self._at.of(after), answer, pushes

    def _carry_out(
        self, server: Server, command: Message
    ) -> tuple[Server, Message | None, list[Message]]:
        match command.kind:
            case "vote":
                return self._vote(server, command.who)
            case "release":
                return self._release(server, command)
            case "give way":
                return self._take_back(server, command)
            case _:
                return self._raise(server, command)

    def _release(self, server: Server, command: Message) -> tuple[Server, None, list[Message]]:
        queue = tuple(other for other in server.queue if other != command.who)
        out = tuple(each for each in server.out if each[0] != command.who)
        after, pushes = self._next(Server(out, queue, max(server.last, command.fence)))
        return after, None, pushes

    def _take_back(
        self, server: Server, command: Message
    ) -> tuple[Server, Message | None, list[Message]]:
        vote = command.who, command.number
        if vote not in server.out:
            return server, None, []
        queue = tuple(sorted((*server.queue, command.who)))
        out = tuple(each for each in server.out if each != vote)
        after, pushes = self._next(server._replace(out=out, queue=queue))
        answers = [push for push in pushes if push.who == command.who]
        others = [push for push in pushes if push.who != command.who]
        return after, answers[0] if answers else None, others

    @staticmethod
    def _raise(server: Server, command: Message) -> tuple[Server, Message | None, list[Message]]:
        if (command.who, command.number) not in server.out:
            return server, None, []
        after = server._replace(last=max(server.last, command.fence))
        return after, command._replace(kind="raised"), []

    def _vote(self, server: Server, who: int) -> tuple[Server, Message | None, list[Message]]:
        if self._fits(server, who) and (not server.queue or who < server.queue[0]):
            after = self._voted(server, who)
            return after, Message("granted", who, after.last), []
        pushes = [
            Message("inquire", other, number)
            for other, number in server.out
            if who < other and not self._go_together(who, other)
        ]
        queue = tuple(sorted((*server.queue, who)))
        return server._replace(queue=queue), None, pushes[: self._inquires]

    def _reads(self, who: int) -> bool:
        return who % self._clients in self._readers

    def _go_together(self, who: int, other: int) -> bool:
        return self._reads(who) and self._reads(other)

    def _fits(self, server: Server, who: int) -> bool:
        if self._beside and self._reads(who):
            return True
        return all(self._go_together(who, other) for other, _ in server.out)

    @staticmethod
    def _voted(server: Server, who: int) -> Server:
        number = server.last + 1
        return server._replace(out=tuple(sorted((*server.out, (who, number)))), last=number)

    def _next(self, server: Server) -> tuple[Server, list[Message]]:
        pushes: list[Message] = []
        while server.queue and self._fits(server, server.queue[0]):
            who, *others = server.queue
            server = self._voted(server._replace(queue=tuple(others)), who)
            pushes.append(Message("granted", who, server.last))
        return server, pushes

    def _hear(self, number: int, server: int, message: Message) -> Move:
        client = self._of[number]
        assert client.votes is not None
        vote_set = self._thawed(client.votes)
        match message.kind:
            case "granted":
                vote_set.voted(server, message.number, _FOR_EVER)
            case "inquire":
                vote_set.inquired(server, message.number)
            case _:  # raised
                vote_set.renewed(server, message.number, _FOR_EVER, message.fence)
        commands, entered = client.commands, 0
        for step in vote_set.look(_NOW):
            match step:
                case Enter(fence):
                    entered = fence
                case Raise(at, vote, least):
                    told = Message("raise", client.who, vote, least)
                    commands = _more(commands, at, told)
                case YieldVote(at, vote):
                    commands = _more(commands, at, Message("give way", client.who, vote))
        votes = frozen(vote_set, hands_on=self._hands_on)
        return self._of.of(client._replace(votes=votes, commands=commands)), entered

    def _entered(self, state: State, index: int, fence: int, clients: tuple[int, ...]) -> State:
        """This client has entered: alone, or beside others if all are readers."""
        who = self._of[state.clients[index]].who
        for at, number in enumerate(state.clients):
            client = self._of[number]
            inside = at != index and client.votes is not None and client.votes.entered
            if inside and not self._go_together(who, client.who):
                raise Wrong("two: they are inside at once")
        reads = self._reads(who)
        before = state.writers_fence if reads else state.fence
        if fence <= before:
            raise Wrong(f"fence: {fence} after {before}")
        writers = state.writers_fence if reads else fence
        return State(state.servers, clients, max(state.fence, fence), writers)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.quorum.exhaustive")
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--times", type=int, default=1, help="how often each acquires it")
    parser.add_argument("--readers", type=int, default=0, help="so many of them")
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--hands-on", action="store_true", help="the first one may")
    parser.add_argument("--at-once", action="store_true", help="answers are read when given")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of the processor, at most")
    options = parser.parse_args()
    search = Search(
        *(options.clients, options.times),
        servers=options.servers,
        readers=range(options.readers),
        hands_on=options.hands_on,
        at_once=options.at_once,
    )
    states = search.run(options.seconds)
    whole = "all" if search.complete else "not all"
    print(  # noqa: T201
        f"{states:,} states, {search.depth} deep, {whole} there are; {time.process_time():.0f} s"
    )


if __name__ == "__main__":
    main()
