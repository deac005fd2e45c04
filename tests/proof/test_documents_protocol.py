"""Stores whose holds live with sessions, searched exhaustively, and clocks that differ.

`tests/proof/documents` describes the model, which runs the real documents.
"""

from __future__ import annotations

import itertools
from dataclasses import fields, replace

import pytest

from aiolock.protocol import Acquire, Form, Granted, GrantPushed, Queued, Release, WaiterId
from aiolock.stores.authors import Document, decode_push
from tests.proof.documents.world import EVERY_FAULT, Fault, Safeguards, World, Wrong
from tests.proof.protocol.search import Search, Searched
from tests.support import garbage

NOW = 1_790_000_000_000_000
SKEW = 500_000
"""The most by which clocks differ, in µs."""
TTL = 1000
FORM = Form(claim=TTL, fixed=True)


@garbage.not_looked_for()
def searched(world: World) -> Searched:
    """All of its states."""
    return Search(world).run(stuck=Wrong.FORGOTTEN)


def world(
    clients: int, faults: int, *kinds: Fault, begun: bool = False, without: str = ""
) -> World:
    """So many clients, and so many faults of these kinds, or of any."""
    guards = replace(Safeguards(), **{without: False} if without else {})
    return World(clients, faults, frozenset(kinds) or EVERY_FAULT, guards, begun=begun)


@pytest.mark.parametrize(
    "system",
    [
        pytest.param(world(1, 3), id="1_client"),
        pytest.param(world(2, 1), id="2_clients"),
        pytest.param(world(2, 2, "unsure", "cancel"), id="given_up_unsure"),
        pytest.param(world(2, 2, begun=True), id="2_faults"),
        pytest.param(world(3, 1, "unsure", begun=True), id="3_clients_unsure"),
        pytest.param(world(3, 1, "cancel", begun=True), id="3_clients_cancel"),
        pytest.param(world(3, 1, "crash", begun=True), id="3_clients_crash"),
    ],
)
def test_documents_model_with_any_fault_has_no_wrong_state(system: World) -> None:
    """Whatever is late, lost or cut off: one body at a time, and whoever waits gets in."""
    result = searched(system)
    assert result.found is None, str(result)
    assert result.complete


NEEDED: dict[str, tuple[World, Wrong]] = {
    "version": (world(2, 0, without="version"), Wrong.NOT_THE_HOLDER),
    "ended": (world(3, 1, "cut", begun=True, without="ended"), Wrong.NOT_THE_HOLDER),
    "begun": (world(2, 1, "cut", without="begun"), Wrong.NOT_THE_HOLDER),
    "dead": (world(2, 1, "cut", without="dead"), Wrong.PASSED_OVER),
    "anyway": (world(2, 2, "unsure", "cancel", without="anyway"), Wrong.FORGOTTEN),
    "again": (world(2, 1, "unsure", without="again"), Wrong.REPORTED_LOST),
    "texts": (world(2, 1, "cut", without="texts"), Wrong.FORGOTTEN),
    "relies": (world(2, 1, "cut", without="relies"), Wrong.NOT_THE_HOLDER),
    "enters": (world(2, 1, "cut", without="enters"), Wrong.NOT_THE_HOLDER),
    "heard": (world(2, 1, "crash", without="heard"), Wrong.FORGOTTEN),
    "mailbox": (world(2, 1, "cut", without="mailbox"), Wrong.NOT_THE_HOLDER),
    "gives_back": (world(2, 1, "cut", without="gives_back"), Wrong.FORGOTTEN),
    "repeats": (world(2, 1, "unsure", without="repeats"), Wrong.FORGOTTEN),
    "sessions": (world(2, 0, without="sessions"), Wrong.NOT_THE_HOLDER),
}
"""By safeguard: a world without it, and what goes wrong there."""


@pytest.mark.parametrize("guard", [field.name for field in fields(Safeguards)])
def test_documents_model_without_one_safeguard_has_a_wrong_state(guard: str) -> None:
    """None of them can be left out."""
    system, wrong = NEEDED[guard]
    result = searched(system)
    assert result.found is not None, str(result)
    assert result.found.wrong == wrong, str(result)


# Clocks that differ: a lease that is not renewed ends by them.

_ANY = (0, SKEW // 2, SKEW)
SKEWS = [*itertools.product(_ANY, _ANY, _ANY)]
"""The clocks of the client that holds, of the one that grants, and of the one that wants it."""


def overlap(skews: tuple[int, int, int], slack: int, *, pushed: bool) -> int:
    """For how long (µs) two clients are certain of the lock at once. The third asks on and on."""
    holds, grants, wants = skews
    text, mail = "", dict[str, list[str]]()

    def run(part: Acquire | Release, client: str, at: int, skew: int) -> object:
        nonlocal text, mail
        living = {each: "" for each in ("0", "1", "2") if each != client}
        document = Document(*("x", text, client, NOW + at + skew, living), again=False, slack=slack)
        answer = document.run(part)
        mail = document.take_mail()
        if (changed := document.changed()) is not None:
            text = changed.text
        return answer

    holder, other = WaiterId("0", 1), WaiterId("2", 1)
    if pushed:  # by another client, with its own clock
        first = run(Acquire("x", WaiterId("1", 1), FORM, TTL), "1", 0, grants)
        assert isinstance(first, Granted)
        asked = run(Acquire("x", holder, FORM, TTL), "0", 0, holds)
        assert isinstance(asked, Queued)
        run(Release("x", WaiterId("1", 1), FORM, first.fence), "1", 1000, grants)
        ((text_of_push,),) = mail.values()
        push = decode_push(text_of_push, "x").event
        assert isinstance(push, GrantPushed)
        # As a client that reads it late: it had asked at 0, when its clock was `asked.now`.
        certain = push.now - asked.now + push.lease * 1000
    else:
        first = run(Acquire("x", holder, FORM, TTL), "0", 0, holds)
        assert isinstance(first, Granted)
        certain = first.lease * 1000
    for at in range(0, 4_000_000, 62_500):
        again = run(Acquire("x", holder, FORM, TTL), "0", at, holds) if at == SKEW else None
        if isinstance(again, Granted):  # the lease that it is told of now
            certain = max(certain, at + again.lease * 1000)
        if isinstance(run(Acquire("x", other, FORM, TTL), "2", at, wants), Granted):
            return max(0, certain - at)
    raise AssertionError("it never gets it")


@pytest.mark.parametrize("pushed", [False, True])
def test_documents_with_clocks_that_differ_by_no_more_than_the_slack_exclude(pushed: bool) -> None:
    """A lease that ends by the clock is nobody else's before it has ended for its holder."""
    assert [overlap(skews, SKEW, pushed=pushed) for skews in SKEWS] == [0] * len(SKEWS)


@pytest.mark.parametrize("pushed", [False, True])
def test_documents_without_slack_overlap_where_clocks_differ(pushed: bool) -> None:
    """So the slack is needed."""
    assert max(overlap(skews, 0, pushed=pushed) for skews in SKEWS) > 0
