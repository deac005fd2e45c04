"""The core of it, without time or faults: every order of events, gone through one by one.

Some clients acquire the lock once each, or twice, and release it. Each link carries commands in
order, and answers and pushes in order, each on a channel of its own; between any two of them
anything else may happen. Servers begin with different last fences, and proposals are of no use: the
worst case. A client's ticket is its number, so tickets and arrivals differ in every way.

In every state: at most one is inside, fences grow in the order of entering, and nothing ends before
all have been inside. ``python -m tests.quorum.exhaustive [CLIENTS] [TIMES]`` goes through more than
the tests do.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Final, NamedTuple

from aiolock.stores.quorum._votes import Ballot, Enter, GiveWay, Phase, Raise, Vote

SERVERS: Final = 3
_FOR_EVER: Final = 1.0
_NOW: Final = 0.0


class Wrong(Exception):
    """What must never be."""


class Message(NamedTuple):
    """A command, an answer, or a push."""

    kind: str
    who: int
    number: int = 0
    fence: int = 0


class Server(NamedTuple):
    """One of the servers."""

    holder: int | None
    number: int
    queue: tuple[int, ...]
    last: int


class Votes(NamedTuple):
    """A `Ballot`, to be compared and kept."""

    entered: bool
    votes: tuple[tuple[int, int, bool] | None, ...]
    void: tuple[int, ...]
    inquired: tuple[int, ...]
    highest: int


class Client(NamedTuple):
    """A client: which of its acquisitions it is at, and what it knows."""

    who: int
    """The ticket of this acquisition; the next one's is higher by the number of clients."""
    left: int
    """Acquisitions that are to come."""
    votes: Votes | None
    commands: tuple[tuple[Message, ...], ...]
    answers: tuple[tuple[Message, ...], ...]
    pushes: tuple[tuple[Message, ...], ...]


class State(NamedTuple):
    """All there is."""

    servers: tuple[Server, ...]
    clients: tuple[Client, ...]
    fence: int


Links = tuple[tuple[Message, ...], ...]
_NONE: Final[Links] = ((),) * SERVERS


def _more(links: Links, server: int, *messages: Message) -> Links:
    return (*links[:server], (*links[server], *messages), *links[server + 1 :])


def _less(links: Links, server: int) -> Links:
    return (*links[:server], links[server][1:], *links[server + 1 :])


def frozen(ballot: Ballot) -> Votes:
    """What is to be kept of it."""
    votes = tuple(
        None if vote is None else (vote.number, vote.known, vote.raising) for vote in ballot.votes
    )
    entered = ballot.phase is Phase.ENTERED
    return Votes(entered, votes, tuple(ballot._void), tuple(ballot._inquired), ballot.highest)


class Search:
    """Through all that can happen, for one kind of ballot."""

    def __init__(
        self,
        clients: int,
        times: int,
        ballot: type[Ballot] = Ballot,
        *,
        inquires: bool = True,
        tells: bool = True,
    ) -> None:
        """``inquires``: servers do. ``tells``: releases tell the highest number."""
        self._clients = clients
        self._times = times
        self._ballot = ballot
        self._inquires = inquires
        self._tells = tells
        self.states = 0

    def run(self) -> int:
        """Go through it; how many states there were. Raises `Wrong`."""
        first = State(
            tuple(Server(None, 0, (), 2 * server) for server in range(SERVERS)),
            tuple(
                Client(who, self._times, None, _NONE, _NONE, _NONE) for who in range(self._clients)
            ),
            0,
        )
        seen, front = {first}, [first]
        while front:
            reached: list[State] = []
            for state in front:
                nexts = list(self._steps(state))
                if not nexts and any(client.left for client in state.clients):
                    raise Wrong(f"for ever: {state.servers}")
                for following in nexts:
                    if following not in seen:
                        seen.add(following)
                        reached.append(following)
            front = reached
            self.states = len(seen)
        return self.states

    def _thawed(self, kept: Votes) -> Ballot:
        ballot = self._ballot(SERVERS)
        ballot.phase = Phase.ENTERED if kept.entered else Phase.WAITING
        ballot._void, ballot._inquired = list(kept.void), list(kept.inquired)
        ballot.highest = kept.highest
        for server, known in enumerate(kept.votes):
            if known is not None:
                ballot.votes[server] = vote = Vote(known[0], _FOR_EVER)
                vote.known, vote.raising = known[1], known[2]
        return ballot

    def _steps(self, state: State) -> Iterator[State]:
        for index, client in enumerate(state.clients):
            if client.votes is None and client.left:
                yield self._asks(state, index, client)
            if client.votes is not None and client.votes.entered:
                yield self._leaves(state, index, client)
            for server in range(SERVERS):
                if client.commands[server]:
                    yield self._executed(state, index, client, server)
                if client.answers[server]:
                    heard = client._replace(answers=_less(client.answers, server))
                    yield self._heard(state, index, heard, server, client.answers[server][0])
                if client.pushes[server]:
                    heard = client._replace(pushes=_less(client.pushes, server))
                    yield self._heard(state, index, heard, server, client.pushes[server][0])

    @staticmethod
    def _with(state: State, index: int, client: Client) -> State:
        clients = (*state.clients[:index], client, *state.clients[index + 1 :])
        return state._replace(clients=clients)

    def _asks(self, state: State, index: int, client: Client) -> State:
        commands = client.commands
        for server in range(SERVERS):
            commands = _more(commands, server, Message("vote", client.who))
        votes = frozen(self._ballot(SERVERS))
        return self._with(state, index, client._replace(votes=votes, commands=commands))

    def _leaves(self, state: State, index: int, client: Client) -> State:
        assert client.votes is not None
        commands = client.commands
        for server in range(SERVERS):
            highest = client.votes.highest if self._tells else 0
            release = Message("release", client.who, fence=highest)
            commands = _more(commands, server, release)
        # What is on its way to it belongs to nobody now: its release is.
        gone = Client(client.who + self._clients, client.left - 1, None, commands, _NONE, _NONE)
        return self._with(state, index, gone)

    def _executed(self, state: State, index: int, client: Client, server: int) -> State:
        command = client.commands[server][0]
        after, answer, pushes = self._execute(state.servers[server], command)
        mine = client.votes is not None and command.who == client.who
        answers = client.answers
        if answer is not None and mine:
            answers = _more(answers, server, answer)
        client = client._replace(commands=_less(client.commands, server), answers=answers)
        state = self._with(state, index, client)
        servers = (*state.servers[:server], after, *state.servers[server + 1 :])
        state = state._replace(servers=servers)
        for push in pushes:
            to = push.who % self._clients
            other = state.clients[to]
            if other.votes is not None and other.who == push.who:
                other = other._replace(pushes=_more(other.pushes, server, push))
                state = self._with(state, to, other)
        return state

    def _execute(
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
        after = server._replace(queue=queue, last=max(server.last, command.fence))
        if server.holder != command.who:
            return after, None, []
        after, pushes = self._next(after._replace(holder=None))
        return after, None, pushes

    def _take_back(
        self, server: Server, command: Message
    ) -> tuple[Server, Message | None, list[Message]]:
        if (server.holder, server.number) != (command.who, command.number):
            return server, None, []
        queue = tuple(sorted((*server.queue, command.who)))
        after, pushes = self._next(server._replace(holder=None, queue=queue))
        if after.holder == command.who:
            return after, pushes[0], []
        return after, None, pushes

    @staticmethod
    def _raise(server: Server, command: Message) -> tuple[Server, Message | None, list[Message]]:
        if (server.holder, server.number) != (command.who, command.number):
            return server, None, []
        after = server._replace(last=max(server.last, command.fence))
        return after, command._replace(kind="raised"), []

    def _vote(self, server: Server, who: int) -> tuple[Server, Message | None, list[Message]]:
        if server.holder is None:
            # A server that has nobody in its queue gives its vote to the first who asks.
            assert not server.queue
            after = server._replace(holder=who, number=server.last + 1, last=server.last + 1)
            return after, Message("granted", who, after.number), []
        pushes: list[Message] = []
        if who < server.holder and self._inquires:
            pushes.append(Message("inquire", server.holder, server.number))
        return server._replace(queue=tuple(sorted((*server.queue, who)))), None, pushes

    @staticmethod
    def _next(server: Server) -> tuple[Server, list[Message]]:
        if not server.queue:
            return server, []
        who, number = server.queue[0], server.last + 1
        after = Server(who, number, server.queue[1:], number)
        return after, [Message("granted", who, number)]

    def _heard(
        self, state: State, index: int, client: Client, server: int, message: Message
    ) -> State:
        assert client.votes is not None
        ballot = self._thawed(client.votes)
        match message.kind:
            case "granted":
                ballot.voted(server, message.number, _FOR_EVER)
            case "inquire":
                ballot.inquired(server, message.number)
            case _:  # raised
                ballot.renewed(server, message.number, _FOR_EVER, message.fence)
        commands, fence = client.commands, state.fence
        for step in ballot.look(_NOW):
            match step:
                case Enter(entered):
                    fence = self._enters(state, index, entered)
                case Raise(at, number, least):
                    told = Message("raise", client.who, number, least)
                    commands = _more(commands, at, told)
                case GiveWay(at, number):
                    commands = _more(commands, at, Message("give way", client.who, number))
        client = client._replace(votes=frozen(ballot), commands=commands)
        return self._with(state, index, client)._replace(fence=fence)

    @staticmethod
    def _enters(state: State, index: int, fence: int) -> int:
        for other, client in enumerate(state.clients):
            if other != index and client.votes is not None and client.votes.entered:
                raise Wrong("two: they are inside at once")
        if fence <= state.fence:
            raise Wrong(f"fence: {fence} after {state.fence}")
        return fence


def main() -> None:
    """The command."""
    clients, times = (int(argument) for argument in (*sys.argv[1:], "2", "1")[:2])
    began = time.monotonic()
    states = Search(clients, times).run()
    seconds = time.monotonic() - began
    print(f"{clients} clients, {times} times each: {states:,} states, {seconds:.0f} s")  # noqa: T201


if __name__ == "__main__":
    main()
