"""What a state is made of, and which states are the same: nothing here is about locks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import cache
from typing import Final

from tests.proof.protocol.model import Client, Command, Report, Server, Who

State = tuple[int, ...]
"""The number of the server's part and of each client's; and then faults and delays that are still
allowed, and for how many ticks the lock was idle."""

BUDGETS: Final = 3


class Parts:
    """Hash-consing: equal parts are one and have a number, so a state is a few small numbers."""

    def __init__(self, tasks: tuple[int, ...], ahead: int = 0) -> None:
        self._ahead = range(1, ahead + 1)
        self._parts: list[Server | Client] = []
        self._numbers: dict[Server | Client, int] = {}
        # Clients that have as many tasks are alike, and stand next to each other.
        assert list(tasks) == sorted(tasks, reverse=True)
        ends = [at for at in range(1, len(tasks)) if tasks[at] != tasks[at - 1]]
        alike = itertools.pairwise([0, *ends, len(tasks)])
        self._alike = [(start, end) for start, end in alike if end - start > 1]
        self._uses = cache(self._find_uses)
        self._renumbered = cache(self._renumber)
        self._renamed = cache(self._rename)

    def number(self, part: Server | Client) -> int:
        """The number of this part."""
        number = self._numbers.setdefault(part, len(self._parts))
        if number == len(self._parts):
            self._parts.append(part)
        return number

    def part(self, number: int) -> Server | Client:
        """The part of this number."""
        return self._parts[number]

    def server(self, number: int) -> Server:
        """The server of this number."""
        part = self._parts[number]
        assert isinstance(part, Server)
        return part

    def client(self, number: int) -> Client:
        """The client of this number."""
        part = self._parts[number]
        assert isinstance(part, Client)
        return part

    def canonical(self, state: State) -> State:
        """Of all states that are the same but for names, the one that stands for them.

        Of fences and tickets only the order means anything, so they are numbered without gaps, but
        for the fences that a client may still give out; and clients that are alike may change
        places.
        """
        server, *clients = state[:-BUDGETS]
        uses = self._uses(server)
        for client in clients:
            uses |= self._uses(client)
        if not _gapless(uses):
            server = self._renumbered(server, uses)
            clients = [self._renumbered(client, uses) for client in clients]
        for start, end in self._alike:
            here = clients[start:end]
            there = sorted(here)
            several = len(set(here)) < len(here)
            if several or here != there:
                orders = (
                    itertools.permutations(range(start, end))
                    if several
                    else [tuple(sorted(range(start, end), key=clients.__getitem__))]
                )
                server = min(
                    self._renamed(server, order)
                    for order in orders
                    if [clients[at] for at in order] == there
                )
                clients[start:end] = there
        return (server, *clients, *state[-BUDGETS:])

    def _rename(self, number: int, order: tuple[int, ...]) -> int:
        """The server, when clients that are alike are put into this order."""
        server = self.server(number)
        names = dict(zip(order, sorted(order), strict=True))

        def renamed(who: Who) -> Who:
            return Who(names.get(who.client, who.client), who.task)

        return self.number(
            server._replace(
                holders=tuple(h._replace(who=renamed(h.who)) for h in server.holders),
                queue=tuple(p._replace(who=renamed(p.who)) for p in server.queue),
                tombstones=tuple(sorted(t._replace(who=renamed(t.who)) for t in server.tombstones)),
            )
        )

    def _find_uses(self, number: int) -> int:
        """The fences and tickets in use, as a bit mask: even bits are fences, odd ones tickets."""
        part = self._parts[number]
        if isinstance(part, Server):
            fences = {part.last, part.highest} | {holder.fence for holder in part.holders}
            tickets = {part.tickets} | {place.ticket for place in part.queue}
        else:
            fences = {fence for task in part.tasks for fence in (task.fence, task.order_unknown)}
            fences |= {push.fence for push in part.inbox}
            fences |= {fence for _, fence in part.unreleased}
            fences |= _fences_of_run(part)
            if self._ahead:
                fences |= {fence + more for fence in _granted(part) for more in self._ahead}
            tickets = {task.ticket for task in part.tasks}
            for command in itertools.chain(part.pipe, *part.strays):
                (tickets if command.what == "ask" else fences).add(max(0, command.number))
                if command.answer is not None:
                    queued = command.answer.what == "queued"
                    (tickets if queued else fences).add(command.answer.number)
                    if command.answer.push is not None:
                        fences.add(command.answer.push.fence)
        return _mask(fences) | _mask(tickets) << 1

    def _renumber(self, number: int, uses: int) -> int:
        part = self._parts[number]

        def fence(old: int) -> int:
            return (uses & _FENCES & ((1 << 2 * old) - 1)).bit_count()

        def ticket(old: int) -> int:
            return (uses >> 1 & _FENCES & ((1 << 2 * old) - 1)).bit_count()

        def command(old: Command) -> Command:
            answer = old.answer
            if answer is not None:
                new = ticket if answer.what == "queued" else fence
                answer = answer._replace(number=new(answer.number))
                if answer.push is not None:
                    push = answer.push._replace(fence=fence(answer.push.fence))
                    answer = answer._replace(push=push)
                if answer.before is not None:
                    task, held = answer.before
                    answer = answer._replace(before=(task, fence(held)))
            new = ticket if old.what == "ask" else fence
            number = min(old.number, new(max(0, old.number)))
            told = old.report and report(old.report)
            return old._replace(number=number, answer=answer, report=told)

        def report(old: Report) -> Report:
            return old._replace(since=fence(old.since), fence=fence(old.fence))

        if isinstance(part, Server):
            return self.number(
                part._replace(
                    holders=tuple(h._replace(fence=fence(h.fence)) for h in part.holders),
                    queue=tuple(p._replace(ticket=ticket(p.ticket)) for p in part.queue),
                    last=fence(part.last),
                    tickets=ticket(part.tickets),
                    highest=fence(part.highest),
                )
            )
        return self.number(
            part._replace(
                tasks=tuple(
                    t._replace(
                        ticket=ticket(t.ticket),
                        fence=fence(t.fence),
                        order_unknown=fence(t.order_unknown),
                    )
                    for t in part.tasks
                ),
                pipe=tuple(map(command, part.pipe)),
                strays=tuple(tuple(map(command, link)) for link in part.strays),
                inbox=tuple(push._replace(fence=fence(push.fence)) for push in part.inbox),
                unreleased=tuple((task, fence(old)) for task, old in part.unreleased),
                run=part.run._replace(
                    unsent=tuple(map(report, part.run.unsent)),
                    failed=tuple(map(report, part.run.failed)),
                    passed=tuple((task, fence(held)) for task, held in part.run.passed),
                ),
            )
        )


def _granted(client: Client) -> set[int]:
    """The fences of what it holds, may still take for its own, or has been granted."""
    fences = {task.fence for task in client.tasks if task.fence and task.left}
    answers = [command.answer for command in client.pipe if command.answer is not None]
    fences |= {answer.number for answer in answers if answer.what == "granted"}
    pushes = [*client.inbox, *(answer.push for answer in answers if answer.push is not None)]
    return fences | {push.fence for push in pushes if push.what == "granted"}


def _fences_of_run(client: Client) -> set[int]:
    reports = [*client.run.reports]
    fences = {fence for _, fence in client.run.passed}
    for command in itertools.chain(client.pipe, *client.strays):
        if command.report is not None:
            reports.append(command.report)
        if command.answer is not None and command.answer.before is not None:
            fences.add(command.answer.before[1])
    return fences | {fence for report in reports for fence in (report.since, report.fence)}


_FENCES: Final = int("01" * 64, 2)


def _mask(numbers: Iterable[int]) -> int:
    return sum(1 << 2 * number for number in {0, *numbers})


@cache
def _gapless(uses: int) -> bool:
    return not (uses >> 2) & ~uses
