"""Clients of a database with compare-and-swap and sessions, in every order of events.

The documents are real: each attempt runs `Document`, as a store does, and saves what that returns
by one swap, with its guards. The database and the clients around it are a model. What a client
knows of the others may be old; its swap arrives later, or when it has been given up, or its reply
is lost. The session of a client that cannot reach the database ends, and it comes back with another
one. The clocks of the clients differ by an hour, and nothing depends on that.

`World.wrong` says what must never be.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import cache
from typing import Any, Final, Literal, NamedTuple, get_args

from aiolock.protocol import (
    WAS_ABSENT,
    Acquire,
    Form,
    Granted,
    GrantLost,
    GrantPushed,
    Queued,
    Release,
    Renewal,
    WaiterId,
)
from aiolock.stores.authors import (
    Document,
    Part,
    Session,
    Sessions,
    decode,
    decode_push,
)

Fault = Literal[
    "unsure",  # a client gets no reply: its swap was carried out, or will be, or never
    "cut",  # a client does not reach the database for so long that it relies on nothing
    "cancel",  # a task gives up
    "crash",  # a process ends
]
EVERY_FAULT: Final[frozenset[Fault]] = frozenset(get_args(Fault))

_FORM: Final = Form(claim=3000)
_TTL: Final = 30_000
_NOW: Final = 1_790_000_000_000_000
_SKEW: Final = (3_600_000_000, 0, -3_600_000_000)
"""The clock of each client, compared with the right one, in µs."""


@dataclass(frozen=True)
class Safeguards:
    """What a store does so that nothing goes wrong; each can be left out."""

    version: bool = True
    """A swap has an effect only on the version that it was run on."""
    ended: bool = True
    """… only if the sessions that were taken for ended have ended."""
    begun: bool = True
    """… only if the sessions with which a hold begins, or goes on, are alive."""
    dead: bool = True
    """… only if the clients that were taken for dead are dead."""
    anyway: bool = True
    """After a swap without a reply, the next one writes, even if nothing has changed."""
    again: bool = True
    """… and what it does not find may have been done by the swap without a reply."""
    texts: bool = True
    """A session that has ended does not come back: the next one has another text."""
    relies: bool = True
    """A client that does not reach the database gives up what it holds before its session ends."""
    enters: bool = True
    """A grant is of no use to a client that does not know whether the session is alive that it was
    made for; nor when it has another session since."""
    heard: bool = True
    """The end of a session that a client hears of while it asks makes it ask once more."""
    mailbox: bool = True
    """The mail of a client goes with its session."""
    gives_back: bool = True
    """A client releases what it has given up if it finds that its session lives on."""
    repeats: bool = True
    """A release without an answer is sent again, until it has one."""
    sessions: bool = True
    """Holds live with sessions; without that, they end by the clocks."""


class Wrong(StrEnum):
    """What must never be."""

    TWO_BODIES = "two bodies, both in good faith"
    NOT_THE_HOLDER = "a body in good faith does not hold the lock at the database"
    FENCE_FELL = "a fence is not higher than the one before"
    PASSED_OVER = "a waiter that is alive was removed from the queue, and nobody tells it"
    REPORTED_LOST = "a lock that was held until its release was reported as lost before"
    FORGOTTEN = "somebody waits and, whatever happens, never enters"


class Phase(Enum):
    """What a client's one task is at."""

    NEW = 0
    ASKS = 1
    QUEUED = 2
    HOLDS = 3
    CONFIRMS = 4
    RELEASES = 5
    LOST = 6
    """It relies on its hold no more, but its body does not end, so nobody releases it."""
    OVER = 7


class Ran(NamedTuple):
    """The result of a part that was run on a document."""

    answer: Any
    text: str | None
    mail: tuple[tuple[int, tuple[str, ...]], ...]
    begun: frozenset[tuple[int, str]]
    alive: frozenset[tuple[int, str]]
    ended: frozenset[tuple[int, str]]
    dead: frozenset[int]


class Reply(NamedTuple):
    """The database's reply to a swap: the document, and the sessions that are alive."""

    swapped: bool
    text: str
    version: int
    alive: tuple[int, ...]


class Swap(NamedTuple):
    """A swap under way, or its reply."""

    client: int
    version: int
    ran: Ran
    part: Part
    session: int
    """That of the client when it sent it."""
    waited_for: bool = True
    reply: Reply | None = None


class Client(NamedTuple):
    """One client, with one task, which acquires the lock once."""

    phase: Phase = Phase.NEW
    relies: bool = True
    """Whether it knows that its session is alive."""
    session: int = 1
    """The number of its session, as far as it knows."""
    ticket: int = 0
    fence: int = 0
    claim: bool = False
    text: str = ""
    version: int = 0
    """The document, as far as it knows."""
    view: tuple[int, ...] = ()
    """The sessions of all clients, as far as it knows."""
    unsure: int = -1
    """The version on which it has sent a swap whose reply is missing; -1 if there is none."""
    again: bool = False
    gave_up: bool = False
    """Whether it gave up its hold before it released it."""
    crashed: bool = False


class State(NamedTuple):
    """All there is."""

    text: str
    version: int
    alive: tuple[int, ...]
    """By client: the number of the session that is alive, 0 if there is none."""
    mail: tuple[tuple[str, ...], ...]
    clients: tuple[Client, ...]
    swaps: tuple[Swap, ...] = ()
    faults: int = 0
    """How many more there may be."""
    fence: int = 0
    """The highest that has entered."""
    wrong: str = ""


Step = tuple[State, bool, str]


class _Known(Sessions):
    """What a client knows of sessions when it runs a document."""

    def __init__(self, view: tuple[int, ...], *, texts: bool) -> None:
        self._view, self._texts = view, texts

    def is_alive(self, session: Session) -> bool:
        number = self._view[int(session.client)]
        return number > 0 and session.text == self._text(number)

    def session_for(self, client: str, form: Form, ttl: int, *, claim: bool) -> str:
        return self._text(self._view[int(client)])

    def _text(self, number: int) -> str:
        return str(number) if self._texts else "s"


@cache
def _run(
    text: str,
    client: int,
    view: tuple[int, ...],
    part: Part,
    *,
    again: bool,
    anyway: bool,
    texts: bool,
    sessions: bool,
) -> Ran:
    living = {str(each): "" for each, number in enumerate(view) if number and each != client}
    known = _Known(view, texts=texts) if sessions else None
    now = _NOW + _SKEW[client]
    document = Document("x", text, str(client), now, living, again=again, sessions=known)
    answer = document.run(part)
    mail = tuple((int(to), tuple(texts)) for to, texts in sorted(document.take_mail().items()))
    changed = document.changed(anyway=anyway)
    judged = document.judged_sessions.items()
    return Ran(
        answer,
        None if changed is None else changed.text,
        mail,
        frozenset((int(each.client), each.text) for each in document.begun),
        frozenset((int(each.client), each.text) for each, alive in judged if alive),
        frozenset((int(each.client), each.text) for each, alive in judged if not alive),
        frozenset(int(each) for each, alive in document.judged_clients.items() if not alive),
    )


@cache
def _content(text: str) -> tuple[frozenset[tuple[int, int, str]], frozenset[int]]:
    """The holders in a document (client, fence, session), and the clients that wait."""
    if not text:
        return frozenset(), frozenset()
    state = json.loads(text)[1]
    if not state:
        return frozenset(), frozenset()
    decoded = decode(state)
    holders = frozenset(
        (int(holder.client), holder.grant.fence, holder.session)
        for holder in decoded.holders.values()
    )
    return holders, frozenset(int(waiter.client) for waiter in decoded.waiting)


class World:
    """All that may come next, and what is wrong: a system for `Search`."""

    def __init__(
        self,
        clients: int,
        faults: int = 0,
        kinds: frozenset[Fault] = EVERY_FAULT,
        guards: Safeguards = Safeguards(),
        *,
        begun: bool = False,
    ) -> None:
        """``begun``: at the beginning, the first client is in its body, and the others wait."""
        self._count, self._faults, self._kinds, self._guards = clients, faults, kinds, guards
        self._begun = begun

    def initial(self) -> State:
        """All clients are there, and nobody has asked."""
        everybody = (1,) * self._count
        clients = (Client(view=everybody),) * self._count
        state = State("", 0, everybody, ((),) * self._count, clients)
        for number in range(self._count if self._begun else 0):
            while state.clients[number].phase not in (Phase.HOLDS, Phase.QUEUED):
                state = next(after for after, _, told in self.steps(state) if str(number) in told)
        return state._replace(faults=self._faults)

    def canonical(self, state: State) -> State:
        """The order in which swaps were sent does not matter."""
        return state._replace(swaps=tuple(sorted(state.swaps, key=repr)))

    def content(self, state: State) -> bool:
        """Whether every task has ended."""
        return all(each.phase is Phase.OVER or each.crashed for each in state.clients)

    def tell(self, label: str) -> str:
        """It is told already."""
        return label

    def show(self, state: State) -> str:
        """The clients, the database, and what is under way."""
        clients = ", ".join(
            f"{number}: {each.phase.name.lower()}"
            + (" crashed" if each.crashed else "" if each.relies else " doubts")
            + (f" #{each.session}" if each.session > 1 else "")
            for number, each in enumerate(state.clients)
        )
        holders, waiting = _content(state.text)
        held = [(client, session) for client, _, session in sorted(holders)]
        return (
            f"{clients} | v{state.version} held {held} queue {sorted(waiting)} alive {state.alive}"
        )

    def wrong(self, state: State) -> str | None:
        """What must not be and is."""
        if state.wrong:
            return state.wrong
        bodies = [
            (number, client)
            for number, client in enumerate(state.clients)
            if self._in_its_body(client)
        ]
        if len(bodies) > 1:
            return Wrong.TWO_BODIES
        holders, _ = _content(state.text)
        for number, client in bodies:
            if not any((number, client.fence) == holder[:2] for holder in holders):
                return Wrong.NOT_THE_HOLDER
        return None

    def _in_its_body(self, client: Client) -> bool:
        holds = client.phase in (Phase.HOLDS, Phase.CONFIRMS)
        return holds and client.relies and not client.crashed

    # Steps

    def steps(self, state: State) -> list[Step]:
        """All that may come next."""
        return [
            *self._database(state),
            *(
                step
                for number, client in enumerate(state.clients)
                if not client.crashed
                for step in self._client(state, number, client)
            ),
            *self._broken(state),
        ]

    def _database(self, state: State) -> Iterator[Step]:
        for swap in state.swaps:
            if swap.reply is None:
                others = _without(state.swaps, swap)
                after = self._carried_out(state._replace(swaps=others), swap)
                yield after, swap.waited_for, f"the swap of {swap.client} arrives"
        for number, client in enumerate(state.clients):
            gone = client.crashed or not client.relies or not self._guards.relies
            if gone and state.alive[number]:
                mail = _put(state.mail, number, ()) if self._guards.mailbox else state.mail
                alive = _put(state.alive, number, 0)
                # By itself only if nothing keeps it alive any more.
                after = state._replace(alive=alive, mail=mail)
                yield after, client.crashed, f"the session of {number} ends"

    def _carried_out(self, state: State, swap: Swap) -> State:
        guards, ran, alive = self._guards, swap.ran, state.alive

        swapped = (
            (not guards.version or swap.version == state.version)
            and (not guards.begun or all(_lives(alive, each) for each in ran.begun))
            and (not guards.ended or not any(_lives(alive, each) for each in ran.ended))
            and (not guards.dead or not any(alive[number] for number in ran.dead))
        )
        if swapped and ran.text is not None:
            state = self._passed_over(state, swap)._replace(
                text=ran.text, version=state.version + 1
            )
        if swapped:
            for to, texts in ran.mail:
                if alive[to]:
                    mail = _put(state.mail, to, (*state.mail[to], *texts))
                    state = state._replace(mail=mail)
        if swap.waited_for:
            reply = Reply(swapped, state.text, state.version, alive)
            state = state._replace(swaps=(*state.swaps, swap._replace(reply=reply)))
        return state

    def _passed_over(self, state: State, swap: Swap) -> State:
        before, after = _content(state.text)[1], _content(swap.ran.text or "")
        told = {swap.client, *(to for to, _ in swap.ran.mail)}
        for number in before - after[1] - told:
            if state.alive[number]:
                return state._replace(wrong=Wrong.PASSED_OVER)
        return state

    def _client(self, state: State, number: int, client: Client) -> Iterator[Step]:
        mine = [each for each in state.swaps if each.client == number and each.waited_for]
        for swap in mine:
            if swap.reply is not None:
                answered = state._replace(swaps=_without(state.swaps, swap))
                yield self._answered(answered, number, client, swap), True, f"{number} has a reply"
        if not mine:
            yield from self._task(state, number, client)
        if state.mail[number]:
            yield self._read(state, number, client), True, f"{number} reads its mail"
        if client.relies:
            yield from self._hears(state, number, client)
        else:
            yield from self._comes_back(state, number, client)

    def _task(self, state: State, number: int, client: Client) -> Iterator[Step]:
        """What its task does, while no swap of its is under way."""

        def after(**changed: Any) -> State:
            return _with(state, number, client._replace(**changed))

        match client.phase:
            case Phase.NEW:
                yield after(phase=Phase.ASKS), True, f"{number} asks"
            case Phase.ASKS | Phase.CONFIRMS if client.relies:
                yield self._sent(state, number, client), True, f"{number} sends a swap"
            case Phase.RELEASES:
                yield self._sent(state, number, client), True, f"{number} sends its release"
            case Phase.HOLDS:
                if client.claim and client.relies:
                    yield after(phase=Phase.CONFIRMS), True, f"{number} confirms its claim"
                yield after(phase=Phase.RELEASES), True, f"the body of {number} ends"
            case Phase.QUEUED if client.relies and client.version != state.version:
                # As each does that has waited for long.
                asks = after(phase=Phase.ASKS, text=state.text, version=state.version)
                yield asks, True, f"{number} asks again"
            case _:
                pass

    def _hears(self, state: State, number: int, client: Client) -> Iterator[Step]:
        if client.view != state.alive:
            phase = Phase.ASKS if client.phase is Phase.QUEUED else client.phase
            heard = client._replace(view=state.alive, phase=phase)
            yield _with(state, number, heard), True, f"{number} hears of sessions"

    def _comes_back(self, state: State, number: int, client: Client) -> Iterator[Step]:
        """It reaches the database again; it may have missed a push, so it asks again."""
        phase = Phase.ASKS if client.phase is Phase.QUEUED else client.phase
        if state.alive[number] == client.session:
            if phase is Phase.LOST:
                phase = Phase.RELEASES if self._guards.gives_back else Phase.OVER
            back = client._replace(relies=True, phase=phase)
            yield _with(state, number, back), True, f"{number} reaches the database again"
        elif not state.alive[number]:
            phase = Phase.OVER if phase is Phase.LOST else phase
            session = client.session + 1
            alive = _put(state.alive, number, session)
            back = client._replace(relies=True, phase=phase, session=session, view=alive)
            again = _with(state, number, back)._replace(alive=alive)
            yield again, True, f"{number} has another session"

    def _sent(self, state: State, number: int, client: Client) -> State:
        """It runs its operation on the document that it knows, and sends the swap."""
        text, version, unsure = client.text, client.version, client.unsure
        if unsure >= 0:  # is that over? only the document can tell
            text, version = state.text, state.version
            if unsure != version:
                unsure = -1
        waiter = WaiterId(str(number), 1)
        part: Part
        if client.phase is Phase.ASKS:
            part = Acquire("x", waiter, _FORM, _TTL, client.ticket)
        elif client.phase is Phase.CONFIRMS:
            part = Renewal("x", waiter, _FORM, client.fence, _TTL)
        else:
            part = Release("x", waiter, _FORM, client.fence)
        guards = self._guards
        ran = _run(
            *(text, number, _put(client.view, number, client.session), part),
            again=client.again and guards.again,
            anyway=unsure >= 0 and guards.anyway,
            texts=guards.texts,
            sessions=guards.sessions,
        )
        client = client._replace(text=text, version=version, unsure=unsure)
        return state._replace(
            clients=_put(state.clients, number, client),
            swaps=(*state.swaps, Swap(number, version, ran, part, client.session)),
        )

    def _answered(self, state: State, number: int, client: Client, swap: Swap) -> State:
        reply = swap.reply
        assert reply is not None
        client = client._replace(text=reply.text, version=reply.version)
        if swap.ran.text is not None or not reply.swapped:
            client = client._replace(unsure=-1)
        if not reply.swapped:  # which says how things stand
            client = client._replace(view=reply.alive)
            return _with(state, number, client)
        client = client._replace(again=False)
        answer = swap.ran.answer
        match swap.part:
            case Acquire() if client.phase is Phase.ASKS:
                if isinstance(answer, Queued):
                    still = all(_lives(client.view, each) for each in swap.ran.alive)
                    phase = Phase.QUEUED if still or not self._guards.heard else Phase.ASKS
                    client = client._replace(phase=phase, ticket=answer.ticket)
                elif isinstance(answer, Granted):
                    relies = client.relies and swap.session == client.session
                    return self._granted(
                        *(state, number, client, answer.fence), claim=answer.claim, relies=relies
                    )
            case Renewal() if client.phase is Phase.CONFIRMS:
                client = client._replace(phase=Phase.HOLDS, claim=False)
                if not answer:
                    client = client._replace(phase=Phase.RELEASES, gave_up=True)
            case Release():
                lost = answer == WAS_ABSENT and client.fence and not client.gave_up
                client = client._replace(phase=Phase.OVER, unsure=-1)
                if lost:
                    state = state._replace(wrong=Wrong.REPORTED_LOST)
            case _:
                pass  # its task has given up, or has the grant by a push
        return _with(state, number, client)

    def _granted(
        self, state: State, number: int, client: Client, fence: int, *, claim: bool, relies: bool
    ) -> State:
        """It enters, unless it does not know whether the session of its grant is alive."""
        if relies or not self._guards.enters:
            client = client._replace(phase=Phase.HOLDS, fence=fence, claim=claim, relies=True)
            if fence <= state.fence:
                state = state._replace(wrong=Wrong.FENCE_FELL)
            state = state._replace(fence=fence)
        return _with(state, number, client)

    def _read(self, state: State, number: int, client: Client) -> State:
        text, *others = state.mail[number]
        state = state._replace(mail=_put(state.mail, number, tuple(others)))
        match decode_push(text, "x").event:
            case GrantPushed(_, _, _, fence, _, _) if client.phase in (Phase.QUEUED, Phase.ASKS):
                return self._granted(
                    *(state, number, client, fence), claim=True, relies=client.relies
                )
            case GrantLost(_, _, fence, _) if fence == client.fence:
                if client.phase in (Phase.HOLDS, Phase.CONFIRMS):
                    client = client._replace(phase=Phase.RELEASES, gave_up=True)
            case _ if client.phase is Phase.QUEUED:
                client = client._replace(phase=Phase.ASKS)
            case _:
                pass
        return _with(state, number, client)

    def _broken(self, state: State) -> Iterator[Step]:
        if state.faults:
            less = state._replace(faults=state.faults - 1)
            for number, client in enumerate(state.clients):
                if not client.crashed and client.phase is not Phase.OVER:
                    for after, told in self._breaks(less, number, client):
                        yield after, False, f"{number} {told}"

    def _breaks(self, state: State, number: int, client: Client) -> Iterator[tuple[State, str]]:
        mine = [each for each in state.swaps if each.client == number and each.waited_for]
        if "unsure" in self._kinds:
            for swap in mine:
                wrote = swap.ran.text is not None
                unsure = swap.version if wrote else client.unsure
                lost = client._replace(unsure=unsure, again=client.again or wrote)
                if client.phase is Phase.RELEASES and not self._guards.repeats:
                    lost = lost._replace(phase=Phase.OVER)
                yield _with(_given_up(state, swap), number, lost), "gets no reply"
        if "cut" in self._kinds and client.relies:
            held = client.phase in (Phase.HOLDS, Phase.CONFIRMS)
            phase = Phase.LOST if held else client.phase
            cut = client._replace(relies=False, gave_up=client.fence > 0, phase=phase)
            yield _with(state, number, cut), "does not reach the database"
        if "cancel" in self._kinds and client.phase in (Phase.ASKS, Phase.QUEUED):
            gives_up = client._replace(phase=Phase.RELEASES)
            yield _with(state, number, gives_up), "gives up"
        if "crash" in self._kinds:
            for swap in mine:
                state = _given_up(state, swap)
            yield _with(state, number, client._replace(crashed=True)), "crashes"


def _with(state: State, number: int, client: Client) -> State:
    return state._replace(clients=_put(state.clients, number, client))


def _given_up(state: State, swap: Swap) -> State:
    """Nobody waits for its reply any more; it may arrive all the same."""
    swaps = _without(state.swaps, swap)
    if swap.reply is None:
        swaps = (*swaps, swap._replace(waited_for=False))
    return state._replace(swaps=swaps)


def _lives(alive: tuple[int, ...], session: tuple[int, str]) -> bool:
    number, text = session
    return alive[number] > 0 and text in ("s", str(alive[number]))


def _put(items: tuple[Any, ...], at: int, item: object) -> tuple[Any, ...]:
    return (*items[:at], item, *items[at + 1 :])


def _without(swaps: tuple[Swap, ...], swap: Swap) -> tuple[Swap, ...]:
    at = swaps.index(swap)
    return swaps[:at] + swaps[at + 1 :]
