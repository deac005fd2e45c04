"""What a client may do next: its own acts, and how its tasks may fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.proof.protocol.client import AtClient
from tests.proof.protocol.model import WAITING, Client, Command, Phase, Safeguards, Terms


class Act(NamedTuple):
    """One thing that a client does."""

    label: str
    does: Callable[..., None]
    """A method of `AtClient`."""
    task: int | None = None
    """Which of its tasks does it, if one does."""
    urgent: bool = True
    """Whether it is done without delay."""


def take(client: Client, act: Act, guards: Safeguards, terms: Terms) -> Client:
    """What the client is after that."""
    moving = AtClient(client, guards, terms)
    if act.task is None:
        act.does(moving)
    else:
        act.does(moving, act.task)
    return moving.after()


def acts(
    client: Client, guards: Safeguards, terms: Terms, *, connects_at_once: bool
) -> Iterator[Act]:
    """What a running client may do."""
    for at in range(len(client.tasks)):
        yield from _acts_of_task(client, at, terms)
    if client.pipe and (answer := client.pipe[0].answer) is not None:
        told = f"{tell(client.pipe[0])}: {answer.what}"
        yield Act(f"{{me}} reads the reply to its {told}", AtClient.read_reply)
    if client.inbox:
        told = client.inbox[0].what
        told += f" #{client.inbox[0].fence}" if client.inbox[0].fence else ""
        yield Act(f"{{me}} reads the push: {told}", AtClient.read_push)
    if not client.alarm and guards.asks_when_a_lease_ends:
        yield Act("{me}'s backstop is due", AtClient.backstop)
    if client.unreleased:
        yield Act("{me} tries its failed releases again", AtClient.try_again)
    if client.run.reports:
        yield Act("{me} reports what it has handed on", AtClient.report)
    if not client.linked:
        yield Act("{me} connects again", AtClient.link, urgent=connects_at_once)
    if not client.hears:
        yield Act("{me} subscribes again", AtClient.subscribe, urgent=connects_at_once)


def _acts_of_task(client: Client, at: int, terms: Terms) -> Iterator[Act]:
    task, who = client.tasks[at], _name(client, at)
    if task.phase is Phase.IDLE:
        if at == 0 or client.tasks[at - 1].phase is not Phase.IDLE:  # they are alike
            yield Act(f"{who} asks", AtClient.ask, at, urgent=False)
    elif task.phase is Phase.CALLED:
        yield Act(f"{who} runs", AtClient.run, at)
    elif task.phase is Phase.BACK:
        if not any(command.task == at and command.awaited for command in client.pipe):
            yield Act(f"{who} asks once more", AtClient.ask_after_giving_back, at)
    elif task.phase is Phase.BODY and not task.left:
        yield Act(f"{who} notices that its lease has ended", AtClient.end, at)
    elif task.phase is Phase.BODY:
        yield Act(f"{who}'s body ends", AtClient.end, at, urgent=False)
        renews = any(command.what == "renew" and command.task == at for command in client.pipe)
        due = task.unconfirmed or (terms.renews and task.left < terms.ttl)
        if due and not renews:
            yield Act(f"{who} renews", AtClient.renew, at, urgent=task.left == 1)


def failures(client: Client) -> Iterator[Act]:
    """What the tasks of a running client may have to do."""
    for at, task in enumerate(client.tasks):
        if task.phase in WAITING:
            yield Act(f"{_name(client, at)} gives up", AtClient.give_up, at)
    if client.pipe and not client.linked and not _may_come_late(client, client.pipe[0]):
        yield Act(f"{{me}}'s {tell(client.pipe[0])} fails", AtClient.despair)


def _may_come_late(client: Client, command: Command) -> bool:
    """Whether something may still come that was sent before this command.

    A release or a report fails after 9 s, and what was sent before it is refused after 5.
    """
    strays = (stray for link in client.strays for stray in link)
    return command.what in {"release", "pass"} and any(
        stray.task == command.task and stray.what != "release" for stray in strays
    )


def _name(client: Client, at: int) -> str:
    return "{me}" if len(client.tasks) == 1 else f"{{me}}{at + 1}"


def tell(command: Command) -> str:
    """A command, in words."""
    if command.report is not None:
        steps = f"#{command.report.since} to #{command.number}"
        return f"report of {steps}" + (", sent again" if command.again else "")
    what = {"ask": "question", "release": "release", "renew": "renewal"}[command.what]
    told = f"{what} of #{command.number}" if command.what != "ask" and command.number else what
    return f"{told} with a tombstone" if command.what == "release" and command.lasts else told
