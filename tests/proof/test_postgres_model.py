"""The functions in PostgreSQL beside the state machine: random operations, answer by answer.

The clock, who listens and what is pushed are the test's: it replaces those three functions in a
schema of its own server. What is compared is what the store says and what it tells others.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

import aiolock
from aiolock import protocol
from aiolock._rate import Rate
from aiolock.protocol import (
    LOOKERS,
    STANDS_STILL,
    Acquire,
    Adopt,
    Answer,
    Break,
    Busy,
    Detach,
    Discard,
    Done,
    Downgrade,
    Finish,
    Form,
    Granted,
    Participant,
    Post,
    Queued,
    ReadPosted,
    ReadStatus,
    Release,
    Renew,
    Renewal,
    RequestRelease,
    Resize,
    Rule,
    Status,
    WaiterId,
    detached,
)
from aiolock.stores._effects import Push, Rest
from aiolock.stores._holders import Grant
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step
from aiolock.stores.postgres import _codec as codec
from aiolock.stores.postgres import _schema
from aiolock.trees import MANY, ONE, MakeFence
from tests.support.databases import PostgresServer

INSTALLED = "site-packages" in Path(aiolock.__file__).parts
CLIENTS = ("ada", "bob", "eve")

STAGE = """
CREATE TABLE stage (now bigint, alive text[]);
INSERT INTO stage VALUES (0, '{}');
CREATE OR REPLACE FUNCTION aiolock._clock() RETURNS bigint LANGUAGE sql AS
    $$ SELECT now FROM public.stage $$;
CREATE OR REPLACE FUNCTION aiolock._listens(c text) RETURNS boolean LANGUAGE sql AS
    $$ SELECT c = ANY (alive) FROM public.stage $$;
CREATE OR REPLACE FUNCTION aiolock._dead(cs text[], me text) RETURNS text[] LANGUAGE sql AS
    $$ SELECT ARRAY(SELECT c FROM unnest(cs) c WHERE NOT aiolock._is_there(c, me)) $$;
CREATE OR REPLACE FUNCTION aiolock._push(n bytea, c text, me text, what text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('aiolock.own',
        concat(current_setting('aiolock.own', true), E'\\n', c, ' ', what), true);
END $$;
CREATE OR REPLACE FUNCTION aiolock._push_all(n bytea, cs text[], me text, whats text[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM aiolock._push(n, c, me, what) FROM unnest(cs, whats) AS x (c, what);
END $$;
"""


@pytest.fixture(scope="module")
def stage() -> Iterator[psycopg.Connection[Any]]:
    """A server whose clock stands still, and on which who listens is said by the test."""
    with PostgresServer() as server, contextlib.closing(server.connect()) as connection:
        connection.execute(STAGE)
        connection.execute(sooner(_schema.statements()).encode())
        yield connection


def sooner(schema: str) -> str:
    """Its `acquire`, to which a queue of one second is one that does not move."""
    return changed(schema, "acquire", f"w.ticket - t >= {STANDS_STILL} THEN", 1_000_000)


def changed(schema: str, function: str, number: str, new: int) -> str:
    """A function of the schema, with another number in this line."""
    begins = schema.index(f"CREATE OR REPLACE FUNCTION aiolock.{function}(")
    text = schema[begins : schema.index("END $$;", begins)] + "END $$;"
    assert text.count(number) == 1
    return text.replace(number, re.sub(r"[0-9]+", str(new), number, count=1))


@contextlib.contextmanager
def altered(
    stage: psycopg.Connection[Any], function: str, number: str, new: int
) -> Generator[None]:
    """For a while, this function of the stage has another number in this line."""
    asked = stage.execute("SELECT pg_get_functiondef(%s::regproc)", (f"aiolock.{function}",))
    (before,) = asked.fetchone() or ("",)
    assert before.count(number) == 1
    stage.execute(before.replace(number, re.sub(r"[0-9]+", str(new), number, count=1)).encode())
    try:
        yield
    finally:
        stage.execute(before.encode())


@pytest.fixture
def few(stage: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One enters in each step, and the next is told to ask; one lease ends in each step."""
    most = protocol.GRANTS
    with (
        altered(stage, "_advance", f"charged >= {most} ", 1),
        altered(stage, "_reap", f"LIMIT {most}\n", 1),
    ):
        monkeypatch.setattr(protocol, "GRANTS", 1)
        yield


@pytest.fixture
def in_parts(stage: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two waiters are looked at in each step, and what is left is done by others."""
    with (
        altered(stage, "_part", f"{protocol.PART}::bigint", 2),
        altered(stage, "_advance", "looked := looked + 3;", 0),
    ):
        stage.execute("SET aiolock.in_parts = on")
        monkeypatch.setattr(protocol, "PART", 2)
        yield
    stage.execute("RESET aiolock.in_parts")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for the state machine."""
    monkeypatch.setattr(protocol, "STANDS_STILL", 1_000_000)


NAME = "n"
PLAIN = Form(claim=3000)
RATE, SLOWER = Rate(400_000, 5).declared, Rate(700_001, 2).declared


def _permits(taken: int, *, share: str = "", weight: int = 1000, priority: int = 0) -> Form:
    """That of a semaphore with four permits."""
    return Form(
        claim=3000,
        shared=True,
        rule=Rule.PERMITS,
        number=taken,
        declared=4,
        share=share,
        weight=weight,
        priority=priority,
    )


FORMS = {
    "locks": [PLAIN, Form(claim=1000, priority=1), Form(claim=3000, fixed=True)],
    "terms": [
        Form(claim=3000, after_loss=4000),
        Form(claim=2000, after_grant=5000),
        Form(claim=3000, period=7000),
        PLAIN,
    ],
    "readers": [
        Form(claim=3000, shared=True),
        Form(claim=3000, downgrades=True),
        Form(claim=3000, shared=True, fixed=True, after_grant=3000),
    ],
    "permits": [
        Form(claim=3000, shared=True, rule=Rule.PERMITS, number=taken, declared=declared)
        for taken, declared in ((1, 3), (2, 3), (3, 3), (1, 2))
    ],
    "groups": [
        Form(claim=3000, shared=True, rule=Rule.GROUP, number=3, declared=3, fixed=True),
        Form(claim=3000, shared=True, rule=Rule.COUNT, number=2),
        Form(claim=3000, shared=True, rule=Rule.COUNT, number=4, declared=4),
    ],
    "once": [Form(claim=3000, once=True), PLAIN],
    "rates": [
        Form(
            claim=3000, shared=True, rule=Rule.RATE, number=taken, declared=rate, priority=priority
        )
        for taken, rate, priority in ((1, RATE, 0), (3, RATE, 0), (2, RATE, -1), (1, SLOWER, 0))
    ],
    "quotas": [
        Form(
            claim=3000,
            shared=True,
            rule=Rule.RATE,
            number=taken,
            declared=RATE,
            share=share,
            weight=weight,
            priority=priority,
        )
        for taken, share, weight, priority in (
            *((1, "a", 1000, 0), (3, "a", 4000, 0), (1, "b", 300, 0), (2, "c", 1000, 0)),
            *((1, "a", 1000, -1), (2, "d", 1000, -1), (1, "", 1000, 0)),
        )
    ],
    "turns": [
        Form(claim=3000, share="a"),
        Form(claim=3000, share="a", weight=4000),
        Form(claim=1000, share="bü"),
        Form(claim=3000, share="c", weight=300, priority=1),
        Form(claim=3000, share="a", after_loss=4000, priority=1),
        Form(claim=3000, share="d", fixed=True),
        PLAIN,
    ],
    "tenants": [
        _permits(1, share="a"),
        _permits(2, share="a", weight=5000),
        _permits(1, share="b", weight=250),
        _permits(3, share="b"),
        _permits(1, share="c", priority=-1),
        _permits(1, share="d", priority=-1, weight=100_000),
        _permits(2, share="d"),
        _permits(2),
    ],
    "nodes": [
        Form(claim=3000, shared=True),
        Form(claim=3000, shared=True, rule=Rule.ALIKE, number=ONE),
        Form(claim=3000, shared=True, rule=Rule.ALIKE, number=MANY),
        Form(claim=2000, shared=True, rule=Rule.ALIKE, number=ONE, fixed=True),
        PLAIN,
    ],
}


class Both:
    """The same operations on both."""

    def __init__(self, stage: psycopg.Connection[Any], forms: list[Form], seed: int) -> None:
        self.dice = random.Random(seed)
        self.looking = random.Random(f"looks {seed}")
        self.losing = random.Random(f"loses {seed}")
        self.stage = stage
        self.forms = forms
        self.state = NameState()
        self.fence = 0
        self.now = 1_700_000_000_000_000
        self.alive = set[str](CLIENTS)
        self.key = codec.bytea(codec.key("test", f"name {seed}"))
        self.seqs = 0
        self.known = list[tuple[WaiterId, Form]]()
        self.tickets = dict[WaiterId, int]()
        self.said = list[str]()
        self.in_parts = False
        self.rest: Rest | None = None
        self.rests = list[str]()
        """What the functions have left to others."""
        self.keys = dict[str, tuple[Grant, Form]]()
        """What was to be detached with each key."""
        self.adopters = dict[str, WaiterId]()
        """Who has asked for each last."""

    def ask(self, function: str, *arguments: object) -> tuple[str, list[Push]]:
        """What the function in the database answers, and what it tells whom."""
        self.stage.execute("UPDATE stage SET now = %s, alive = %s", (self.now, [*self.alive]))
        marks = ", ".join(["%s"] * len(arguments))
        call = f"SELECT aiolock.{function}({marks})".encode()
        decoded = [each.decode() if isinstance(each, bytes) else each for each in arguments]
        row = self.stage.execute(call, decoded).fetchone()
        assert row is not None
        text, *pushes = row[0].split("\n")
        told = list[Push]()
        self.rests = [push for push in pushes if push.startswith(codec.REST)]
        for push in pushes:
            if push in self.rests:
                continue
            client, _, what = push.partition(" ")
            told.append(Push(client, codec.event(what, client)._replace(name=NAME)))
        return text, told

    def step(self) -> Step:
        alive = self.alive
        return Step(
            NAME, self.state, self.now, alive.__contains__, self.fence, in_parts=self.in_parts
        )

    def check(self, what: str, theirs: object, ours: object, step: Step, told: object) -> None:
        """The same answer, and the same pushes; those of one client in the same order."""
        self.fence = step.fence
        self.said.append(f"{what} -> {ours}")
        trace = "\n".join(self.said[-12:])
        assert alike(theirs) == alike(ours), trace
        assert by_client(told) == by_client(step.pushes), trace
        assert self.rests == [said(rest) for rest in [step.rest] if rest is not None], trace
        assert self.turns() == [*self.places()], trace
        self.rest = step.rest

    def turns(self) -> list[tuple[Any, ...]]:
        """The accounts of shares that wait, or are remembered: first those that are next."""
        return self.stage.execute(
            "SELECT priority, share, start, held, ticket"
            " FROM aiolock.accounts JOIN aiolock.virtual_times USING (name, priority)"
            " WHERE name = %s AND (ticket IS NOT NULL OR start > virtual)"
            " ORDER BY priority, ticket IS NULL, CASE WHEN ticket IS NOT NULL THEN rank END,"
            " start, ticket, client, seq, share",
            (self.key.decode(),),
        ).fetchall()

    def places(self) -> Iterator[tuple[Any, ...]]:
        """The same of the machine."""
        shares = self.state.holders.shares
        for priority, accounts in sorted({} if shares is None else shares._by_priority.items()):
            of = {account.place: account for account in accounts._by_name.values()}
            for place in accounts._places:
                name, held = of[place].name, of[place].held
                yield priority, name.encode(), place.start, held, place.ticket
            for start, name in accounts._ahead:
                yield priority, name.encode(), start, accounts._by_name[name].held, None

    def do_the_rest(self) -> None:
        """Go on with what the last step has left, until nothing is."""
        while self.rest is not None:
            step, rest = self.step(), self.rest
            step.go_on(rest)
            _, told = self.ask("go_on", self.key, "nobody", said(rest).removeprefix(codec.REST), 0)
            self.check(f"go on {rest}", None, None, step, told)

    def waiter(self) -> tuple[WaiterId, Form]:
        if self.known and self.dice.random() < 0.6:
            return self.dice.choice(self.known)
        self.seqs += 1
        self.known.append(
            (WaiterId(self.dice.choice(CLIENTS), self.seqs), self.dice.choice(self.forms))
        )
        return self.known[-1]

    def acquire(self) -> None:
        waiter, form = self.waiter()
        ticket = self.tickets.get(waiter, 0) if self.dice.random() < 0.7 else 0
        wait = self.dice.random() < 0.8
        most = self.dice.choice([0, 0, 2])
        self.acquire_as(waiter, form, self.dice.choice([2000, 30_000]), ticket, most, wait=wait)

    def acquire_as(
        self,
        waiter: WaiterId,
        form: Form,
        ttl: int,
        ticket: int = 0,
        most: int = 0,
        *,
        wait: bool = True,
    ) -> Answer:
        step = self.step()
        ours = step.run(
            Acquire(NAME, waiter, form, ttl, ticket=ticket, wait=wait, max_waiters=most)
        )
        text, told = self.ask(
            "acquire", self.key, waiter.client, waiter.seq, codec.form(form), ttl, ticket, wait,
            most, 0,
        )  # fmt: skip
        theirs = codec.answer(text)
        self.check(f"acquire {waiter} {form} {ticket} {wait} {most}", theirs, ours, step, told)
        if isinstance(ours, Queued):
            self.tickets[waiter] = ours.ticket
        return ours

    def holder(self) -> tuple[WaiterId, int]:
        """Whoever holds, most often."""
        holders = [grant for grant in self.state.holders if grant.waiter.client != "-"]
        if holders and self.dice.random() < 0.9:
            return self.dice.choice(holders)
        return self.waiter()[0], self.dice.choice([0, 17])

    def release(self) -> None:
        waiter, fence = self.holder()
        fence = fence if self.dice.random() < 0.6 else 0
        entered = self.dice.random() < 0.8
        tombstone_until = self.now + 3_000_500 if self.dice.random() < 0.2 else 0
        lost = entered and self.losing.random() < 0.4
        self.release_as(waiter, fence, tombstone_until, entered=entered, lost=lost)

    def release_as(
        self,
        waiter: WaiterId,
        fence: int,
        tombstone_until: int = 0,
        *,
        entered: bool = True,
        lost: bool = False,
    ) -> None:
        step = self.step()
        release = Release(NAME, waiter, PLAIN, fence, entered=entered, lost=lost)
        ours = step.run(release, tombstone_until)
        how = None if lost else entered
        text, told = self.ask(
            "release", self.key, waiter.client, waiter.seq, fence, how, tombstone_until
        )
        self.check(f"release {waiter} {fence} {how}", int(text), ours, step, told)

    def renew(self) -> None:
        waiter, fence = self.holder()
        self.renew_as(waiter, fence, self.dice.choice([0, 2000, 30_000]))

    def renew_as(self, waiter: WaiterId, fence: int, ttl: int) -> None:
        step = self.step()
        ours = step.run(Renew([Renewal(NAME, waiter, PLAIN, fence, ttl)]))
        text, told = self.ask(
            "renew", "{" + f'"\\{self.key.decode()}"' + "}", waiter.client, f"{{{waiter.seq}}}",
            f"{{{fence}}}", f"{{{ttl}}}", 0,
        )  # fmt: skip
        self.check(f"renew {waiter} {fence} {ttl}", codec.held(text), ours, step, told)

    def finish(self) -> None:
        self.finish_as(*self.holder())

    def finish_as(self, waiter: WaiterId, fence: int) -> None:
        step = self.step()
        ours = step.run(Finish(NAME, waiter, PLAIN, fence, 5000))
        text, told = self.ask("finish", self.key, waiter.client, waiter.seq, fence, 5000, 0)
        self.check(f"finish {waiter} {fence}", int(text), ours, step, told)

    def downgrade(self) -> None:
        waiter, fence = self.holder()
        if waiter.client not in self.alive:
            return  # who asks is there, which the machine does not know of this question
        step = self.step()
        ours = step.run(Downgrade(NAME, waiter, PLAIN, fence))
        text, told = self.ask("downgrade", self.key, waiter.client, waiter.seq, fence)
        self.check(f"downgrade {waiter} {fence}", int(text), ours, step, told)

    def request(self) -> None:
        step = self.step()
        ours, pushes = step.run(RequestRelease(NAME)), step.pushes
        while step.rest is not None:
            rest, step = step.rest, self.step()
            step.go_on(rest)
            pushes += step.pushes
        step.pushes = pushes
        text, told = self.ask("request", self.key, "nobody", 0)
        theirs, behind = codec.asked(text)
        while behind:
            text, more = self.ask("go_on", self.key, "nobody", f"request {behind}", 0)
            some, behind = codec.asked(text)
            theirs, told = theirs + some, told + more
        self.check("request", theirs, ours, step, told)

    def break_(self) -> None:
        _, fence = self.holder()
        step = self.step()
        ours = step.run(Break(NAME, [fence, 17]))
        text, told = self.ask("break_", self.key, "nobody", f"{{{fence},17}}")
        self.check(f"break {fence}", int(text), ours, step, told)

    def detach(self) -> None:
        """A grant, or once more what was to be detached before."""
        key, grant = f"k{len(self.keys)}", Grant(*self.holder())
        if self.keys and self.dice.random() < 0.3:
            key = self.key_of_late()
            grant, _ = self.keys[key]
        elif grant.waiter.client.startswith("="):
            return
        holder = self.state.holders.get(grant)
        self.keys.setdefault(key, (grant, PLAIN if holder is None else holder.form))
        if self.dice.random() < 0.9:  # else it is discarded, perhaps, before it comes
            self.detach_as(key, self.dice.choice([1500, 1500, 30_000]))

    def detach_as(self, key: str, ttl: int) -> None:
        ((waiter, fence), form), step = self.keys[key], self.step()
        ours = step.run(Detach(NAME, waiter, form, fence, key, ttl))
        text, told = self.ask("detach", self.key, waiter.client, waiter.seq, fence, key, ttl)
        self.check(f"detach {waiter} {fence} {key}", int(text), ours, step, told)

    def key_of_late(self) -> str:
        """One of the last keys, or another."""
        return self.dice.choice([*self.keys][-2:] if self.dice.random() < 0.8 else [*self.keys])

    def adopt(self) -> None:
        """By a waiter that asks once more, or by another; with the key, or not quite."""
        if not self.keys:
            return
        key = self.key_of_late()
        (_, fence), _ = self.keys[key]
        fence -= self.dice.random() < 0.1
        self.adopt_as(self.adopter(key), key, fence, self.dice.choice([2000, 30_000]))

    def adopter(self, key: str) -> WaiterId:
        """The last one for this key, or another."""
        waiter = self.adopters.get(key)
        if waiter is None or self.dice.random() < 0.3:
            self.seqs += 1
            waiter = self.adopters[key] = WaiterId(self.dice.choice(CLIENTS), self.seqs)
        return waiter

    def adopt_as(self, waiter: WaiterId, key: str, fence: int, ttl: int) -> None:
        (_, form), step = self.keys[key], self.step()
        ours = step.run(Adopt(NAME, waiter, form, fence, key, ttl))
        text, told = self.ask(
            "adopt", self.key, waiter.client, waiter.seq, form.fixed, fence, key, ttl, 0
        )
        self.check(f"adopt {waiter} {fence} {key}", codec.adopted(text), ours, step, told)

    def waiting(self) -> list[str]:
        """The clients of the waiters, in order."""
        return [waiter.client for _, waiter in self.state.queue]

    def give_up(self) -> None:
        """An adoption, of which copies may come later."""
        if self.keys:
            waiter = self.adopter(self.key_of_late())
            self.release_as(waiter, 0, self.now + 3_000_500, entered=False)

    def discard(self) -> None:
        if self.keys:
            until = self.now + 3_000_500 if self.dice.random() < 0.5 else 0
            self.discard_as(self.key_of_late(), until)

    def discard_as(self, key: str, tombstone_until: int) -> None:
        (_, fence), form = self.keys[key]
        waiter, step = detached(key), self.step()
        ours = step.run(Discard(NAME, waiter, form, fence), tombstone_until)
        text, told = self.ask("release", self.key, waiter.client, 0, fence, True, tombstone_until)
        self.check(f"discard {key} {fence}", int(text), ours, step, told)

    def resize(self) -> None:
        choices = [(3, 2), (3, 4), (2, 3), (3, 3)]
        if self.forms[0].rule is Rule.RATE:
            choices = [(RATE, SLOWER), (RATE, RATE), (SLOWER, RATE)]
        declared, limit = self.dice.choice(choices)
        self.resize_to(declared, limit, self.dice.choice(["a", "b", f"t{self.seqs}"]))

    def resize_to(self, declared: int, limit: int, token: str) -> None:
        step = self.step()
        ours = step.run(Resize(NAME, declared, limit, 60_000, token=token))
        text, told = self.ask("resize", self.key, "nobody", declared, limit, 60_000, token, 0)
        self.check(f"resize {declared} {limit} {token}", int(text), ours, step, told)

    def post(self) -> None:
        count, declared = self.dice.choice([0, 0, 2, 4]), self.dice.choice([0, 0, 4, 3])
        token, value = self.dice.choice(["", "x", "y"]), self.dice.choice(["", "ü\0", "w"])
        step = self.step()
        post = Post(NAME, count, token=token, declared=declared, value=value, remember=9000)
        ours = step.run(post)
        publish = codec.bytea(value.encode())
        text, told = self.ask("post", self.key, "nobody", count, token, declared, publish, 9000, 0)
        self.check(f"post {count} {token} {declared}", int(text), ours, step, told)

    def make_fence(self) -> None:
        step = self.step()
        ours = step.run(MakeFence(NAME))
        text, told = self.ask("make_fence", self.key)
        self.check("make a fence", int(text), ours, step, told)

    def read(self) -> None:
        step = self.step()
        text, told = self.ask("read", self.key)
        self.check("read", codec.posted(text), step.run(ReadPosted(NAME)), step, told)

    def status(self) -> None:
        step = self.step()
        ours = step.run(ReadStatus(NAME))
        text, told = self.ask("status", self.key, 1000, *codec.FIRST, 1000, 0)
        theirs = codec.part(NAME, text).status
        self.check("status", theirs, ours, step, told)

    def go_on(self) -> None:
        """Time passes; somebody comes, or goes."""
        self.now += self.dice.choice([1, 137, 1000, 400_000, 2_100_000])
        if self.dice.random() < 0.1:
            self.now += self.dice.choice([31_000_000, 70_000_000, -500_000])
        if self.looking.random() < 0.5:
            self.now += -self.now % LOOKERS  # whoever comes now looks for dead waiters
        if self.dice.random() < 0.1:
            self.alive ^= {self.dice.choice(CLIENTS)}


def alike(answer: Any) -> Any:
    """Without what the two need not say alike: floats, and places behind the first."""
    match answer:
        case Queued():
            # Who stands before it, a store need not say.
            return answer._replace(place=min(answer.place, 2), before=None)
        case Busy(holder=Participant()):
            return answer._replace(holder=alike(answer.holder))
        case Participant():
            return replace(answer, remaining=round(answer.remaining, 3))
        case Status():
            holders = tuple(map(alike, answer.holders))
            return replace(answer, closed=round(answer.closed, 3), holders=holders)
        case _:
            return answer


def said(rest: Rest) -> str:
    """What is left, as the functions say it."""
    words: list[object] = [rest.work]
    if rest.behind is not None:
        words.append(rest.behind)
    words += [f"{waiter.client}:{waiter.seq}:{fence}" for waiter, fence in rest.ended]
    return codec.REST + " ".join(map(str, words))


def by_client(pushes: Any) -> dict[str, list[str]]:
    """What each is told, in order; but for who is asked, or done with, at once."""
    found: dict[str, list[str]] = {}
    for client, push in pushes:
        found.setdefault(client, []).append(repr(push))
    return found


@pytest.mark.skipif(INSTALLED, reason="on the tree only: it is the same source")
@pytest.mark.parametrize("forms", FORMS)
def test_postgres_functions_agree_with_the_machine(
    stage: psycopg.Connection[Any], forms: str
) -> None:
    """Whatever is asked of them, in whatever order, they say and tell the same."""
    agree(stage, forms, 1000 * [*FORMS].index(forms))


@pytest.mark.skipif(INSTALLED, reason="on the tree only: it is the same source")
@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("forms", FORMS)
def test_postgres_functions_agree_with_the_machine_if_grants_are_handed_on(
    stage: psycopg.Connection[Any], forms: str
) -> None:
    """The same, if grants are detached, adopted and discarded; each step looks at two waiters."""
    first = 30_000 + 1000 * [*FORMS].index(forms)
    hands = ["detach"] * 7 + ["adopt"] * 5 + ["discard", "give_up"] * 2 + ["acquire"] * 4
    agree(stage, forms, first, in_parts=True, more=hands)


def hands_on(both: Both, waiter: WaiterId, form: Form, ttl: int) -> str:
    """It is granted the lock, or has a claim, and detaches that; the key."""
    (grant,) = (each for each in both.state.holders if each.waiter == waiter)
    both.keys["k"] = grant, form
    both.detach_as("k", ttl)
    assert both.state.holders.of(detached("k"))
    return "k"


@pytest.mark.skipif(INSTALLED, reason="on the tree only: it is the same source")
@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("claimed", [False, True])
def test_end_of_a_detached_grant_removes_no_waiters_and_of_an_adopted_one_its_clients(
    stage: psycopg.Connection[Any], *, claimed: bool
) -> None:
    """Nobody had to renew the one; the other is as if its client had been granted it."""
    both = Both(stage, [], 902_000 + claimed)
    both.in_parts = True
    first = both.acquire_as(ADA, PLAIN, 30_000)
    if claimed:
        both.acquire_as(WaiterId("eve", 9), PLAIN, 30_000)
        assert isinstance(first, Granted)
        both.release_as(ADA, first.fence)
    for seq in range(2, 6):
        both.acquire_as(WaiterId("bob" if seq % 2 else "eve", seq), PLAIN, 30_000)
    key = hands_on(both, WaiterId("eve", 9) if claimed else ADA, PLAIN, 1500)
    both.now += 2_100_000
    both.acquire_as(WaiterId("ada", 10), PLAIN, 30_000)
    assert not both.rests
    assert both.waiting() == ["bob", "eve", "bob", "ada"]
    key = hands_on(both, WaiterId("eve", 2), PLAIN, 30_000)
    both.adopt_as(BOB, key, both.keys[key][0].fence, 2000)
    both.now += 2_100_000
    both.acquire_as(WaiterId("ada", 11), PLAIN, 30_000)
    assert both.rests
    both.do_the_rest()
    both.status()
    assert both.waiting() == ["ada", "ada"]


@pytest.mark.skipif(INSTALLED, reason="on the tree only: it is the same source")
def test_late_copy_of_a_detach_or_an_adopt_that_was_given_up_has_no_effect(
    stage: psycopg.Connection[Any],
) -> None:
    """Nobody would have the key, or know of the grant."""
    both = Both(stage, [], 92_020)
    granted = both.acquire_as(ADA, PLAIN, 30_000)
    assert isinstance(granted, Granted)
    both.keys["k"] = Grant(ADA, granted.fence), PLAIN
    both.discard_as("k", both.now + 3_000_500)
    both.now += 1_000_000
    both.detach_as("k", 30_000)
    assert [grant.waiter for grant in both.state.holders] == [ADA]
    both.now += 3_000_000
    key = hands_on(both, ADA, PLAIN, 30_000)
    both.release_as(BOB, 0, both.now + 3_000_500, entered=False)
    both.now += 1_000_000
    both.adopt_as(BOB, key, granted.fence, 30_000)
    assert [grant.waiter for grant in both.state.holders] == [detached(key)]
    late = both.now - 1
    text, _ = both.ask("adopt", both.key, "eve", 1, False, granted.fence, key, 30_000, late)
    assert codec.late(text) is not None
    both.adopt_as(EVE, key, granted.fence, 30_000)
    assert [grant.waiter for grant in both.state.holders] == [EVE]


@pytest.mark.skipif(INSTALLED, reason="on the tree only: it is the same source")
def test_client_whose_id_begins_with_a_dash_is_told_of_its_lease(
    stage: psycopg.Connection[Any],
) -> None:
    """One in 64 does; only the dash alone is nobody."""
    both, dash = Both(stage, [], 92_030), WaiterId("-eve", 1)
    both.alive.add(dash.client)
    granted = both.acquire_as(dash, PLAIN, 2000)
    assert isinstance(granted, Granted)
    both.request()
    text, told = both.ask("request", both.key, "nobody", 0)
    assert (text, [client for client, _ in told]) == ("1", [dash.client])
    both.now += 3_000_000
    both.acquire_as(ADA, PLAIN, 2000)
    assert [grant.waiter for grant in both.state.holders] == [ADA]


@pytest.mark.skipif(INSTALLED, reason="on the tree only: it is the same source")
def test_number_of_permits_is_remembered_while_some_are_handed_on(
    stage: psycopg.Connection[Any],
) -> None:
    """As long as anybody has one; otherwise others would get more than there are."""
    both = Both(stage, [], 92_010)
    one = Form(claim=3000, shared=True, rule=Rule.PERMITS, number=1, declared=3)
    both.resize_to(3, 1, "a")
    both.acquire_as(ADA, one, 2000)
    key = hands_on(both, ADA, one, 2 * LONG // 1000)
    both.now += LONG
    assert isinstance(both.acquire_as(EVE, one, 2000, wait=False), Busy)
    both.adopt_as(BOB, key, both.keys[key][0].fence, 2 * LONG // 1000)
    both.now += LONG * 3 // 2
    assert isinstance(both.acquire_as(EVE, one, 2000, wait=False), Busy)


def agree(
    stage: psycopg.Connection[Any],
    forms: str,
    first: int,
    *,
    in_parts: bool = False,
    more: Sequence[str] = (),
) -> None:
    """Have them do the same, from this seed on, and compare; ``more``: operations beside others."""
    often = ["acquire"] * 6 + ["release"] * 3 + ["go_on"] * 4
    seldom = ["renew", "downgrade", "request", "break_", "status", "read"]
    if forms == "once":
        seldom += ["finish"] * 3
    if forms == "rates":
        seldom += ["resize"] * 2
    if forms == "nodes":
        seldom += ["make_fence"] * 3
    if forms in {"permits", "groups", "tenants"}:
        seldom += ["post"] * 3 + ["resize"] * 2
    seldom += more
    steps, rounds = 40, ROUNDS
    if forms in {"turns", "tenants"}:
        often += ["acquire"] * 12 + ["release"] * 3  # so that many wait
        steps, rounds = 120, ROUNDS // 3
    for seed in range(rounds):
        both = Both(stage, FORMS[forms], first + seed)
        both.in_parts = in_parts
        for _ in range(steps):
            getattr(both, both.dice.choice(often + seldom))()
            if in_parts and both.dice.random() < 0.8:  # else it is never done
                both.do_the_rest()


@pytest.mark.skipif(INSTALLED, reason="on the tree only: it is the same source")
@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("forms", ["readers", "permits", "groups", "nodes"])
def test_postgres_functions_agree_with_the_machine_if_few_enter_at_once(
    stage: psycopg.Connection[Any], forms: str
) -> None:
    """The same, if one enters in each step, and one lease ends."""
    agree(stage, forms, 50_000 + 1000 * [*FORMS].index(forms))


@pytest.mark.skipif(INSTALLED, reason="on the tree only: it is the same source")
@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("few_enter", [False, True])
@pytest.mark.parametrize("forms", FORMS)
def test_postgres_functions_agree_with_the_machine_if_done_in_parts(
    stage: psycopg.Connection[Any], request: pytest.FixtureRequest, forms: str, *, few_enter: bool
) -> None:
    """The same, if each step looks at two waiters; and on what it leaves to the next one."""
    if few_enter:
        request.getfixturevalue("few")
    first = 70_000 + 1000 * [*FORMS].index(forms) + 10_000 * few_enter
    agree(stage, forms, first, in_parts=True)


LONG = 200_000_000
"""Microseconds after which nobody remembers how many permits there were."""
TWO_OF_THREE = Form(claim=3000, shared=True, rule=Rule.PERMITS, number=2, declared=3)
ADA, BOB, EVE = (WaiterId(client, 1) for client in CLIENTS)


def gives_up_what_is_not_there(both: Both) -> None:
    """It is remembered that she gave up, and nothing beside that."""
    both.now += LONG
    both.release_as(ADA, 0, both.now + 3_000_500)


def gives_up_behind_another(both: Both) -> None:
    """The first in the queue may enter, now that it has room."""
    both.acquire_as(EVE, TWO_OF_THREE, 2000)
    both.acquire_as(ADA, TWO_OF_THREE, 2000)
    both.now += LONG
    both.release_as(ADA, 0)


def releases(both: Both) -> None:
    """Who waits for a semaphore of that name comes after a lock of that name."""
    granted = both.acquire_as(BOB, PLAIN, 2 * LONG // 1000)
    assert isinstance(granted, Granted)
    both.acquire_as(EVE, TWO_OF_THREE, 2000)
    both.now += LONG
    both.release_as(BOB, granted.fence)


def renews(both: Both) -> None:
    """A lease is renewed that outlasts it."""
    granted = both.acquire_as(BOB, PLAIN, 2 * LONG // 1000)
    assert isinstance(granted, Granted)
    both.now += LONG
    both.renew_as(BOB, granted.fence, 2000)
    both.release_as(BOB, granted.fence)


WAYS = (gives_up_what_is_not_there, gives_up_behind_another, releases, renews)


@pytest.mark.skipif(INSTALLED, reason="on the tree only: it is the same source")
@pytest.mark.parametrize("does", WAYS, ids=lambda does: does.__name__)
def test_semaphore_limit_forgotten_by_any_operation_is_not_read_again(
    stage: psycopg.Connection[Any], does: Callable[[Both], None]
) -> None:
    """A semaphore had one permit; nobody remembers that, so it has three, whoever comes first."""
    both = Both(stage, [], 900_000 + WAYS.index(does))
    both.resize_to(3, 1, "a")
    does(both)
    both.status()
    granted = both.acquire_as(EVE, TWO_OF_THREE, 2000)
    assert isinstance(granted, Granted)


@pytest.mark.skipif(INSTALLED, reason="on the tree only: it is the same source")
def test_newcomer_to_a_full_queue_of_dead_waiters_has_place_1(
    stage: psycopg.Connection[Any],
) -> None:
    """A queue is full of the dead: a newcomer is the first, and comes behind none of them."""
    both = Both(stage, [], 901_000)
    both.acquire_as(ADA, PLAIN, 30_000)
    both.acquire_as(BOB, PLAIN, 2000)
    both.acquire_as(EVE, PLAIN, 2000)
    both.alive = {ADA.client}
    queued = both.acquire_as(WaiterId(ADA.client, 2), PLAIN, 2000, most=2)
    assert isinstance(queued, Queued)
    assert queued.place == 1


@pytest.mark.skipif(INSTALLED, reason="on the tree only: it is the same source")
def test_waiter_that_asks_again_with_any_ticket_keeps_its_ticket(
    stage: psycopg.Connection[Any],
) -> None:
    """Whoever has a place keeps it, whatever ticket it asks with."""
    both = Both(stage, [], 91_001)
    both.acquire_as(ADA, PLAIN, 30_000)
    for waiter in (BOB, EVE):
        queued = both.acquire_as(waiter, PLAIN, 2000)
        assert isinstance(queued, Queued)
        both.now += 1000
        for ticket in (0, queued.ticket - 1, queued.ticket, both.now):
            again = both.acquire_as(waiter, PLAIN, 2000, ticket)
            assert isinstance(again, Queued)
            assert again.ticket == queued.ticket


@pytest.mark.skipif(INSTALLED, reason="on the tree only: it is the same source")
@pytest.mark.parametrize("priority", [0, -18])
def test_newcomers_remove_dead_waiters_by_ticket_and_queue_length(
    stage: psycopg.Connection[Any], priority: int
) -> None:
    """By their tickets, which may be below zero, and by how long the queue is."""
    both, form, found = Both(stage, [], 91_002 - priority), Form(claim=3000, priority=priority), 0
    both.acquire_as(ADA, PLAIN, 30_000_000)
    both.acquire_as(BOB, form, 2000)
    both.now += 2_000_000
    for number in range(300):
        both.now += 137
        looks = number > 180 and number % 7 == 0
        both.now += -both.now % LOOKERS if looks else both.now % LOOKERS == 0
        before = len(both.state.queue)
        both.acquire_as(WaiterId(f"gone{number}", 1), form, 2000)
        found += len(both.state.queue) < before
        both.status()
    assert found > 2


@pytest.mark.skipif(INSTALLED, reason="on the tree only: it is the same source")
def test_newcomer_that_removes_dead_waiters_has_place_1(stage: psycopg.Connection[Any]) -> None:
    """A newcomer that removes them is told that it is the first."""
    both = Both(stage, [], 91_100)
    both.acquire_as(ADA, PLAIN, 30_000)
    both.acquire_as(EVE, PLAIN, 2000)
    both.alive = {ADA.client}
    both.now += 2_000_000
    both.now += -both.now % LOOKERS
    queued = both.acquire_as(WaiterId(ADA.client, 2), PLAIN, 2000)
    assert isinstance(queued, Queued)
    assert queued.place == 1


@pytest.mark.skipif(INSTALLED, reason="on the tree only: it is the same source")
@pytest.mark.usefixtures("in_parts")
def test_functions_that_leave_a_rest_grant_no_waiter_not_yet_looked_at(
    stage: psycopg.Connection[Any],
) -> None:
    """A waiter of a stuck client would cost a claim: the call ends before it."""
    both, reads = Both(stage, [], 91_101), Form(claim=3000, shared=True)
    both.in_parts = True
    both.acquire_as(EVE, PLAIN, 2000)
    for client, seq in (("eve", 2), ("bob", 3), ("eve", 4)):
        both.now += 1
        both.acquire_as(WaiterId(client, seq), reads, 2000)
    both.now += 2_100_000
    both.acquire_as(ADA, reads, 2000)
    assert both.rest is not None
    assert both.rest.work == "stuck"
    both.do_the_rest()
    assert [holder.waiter.client for holder in both.state.holders] == ["bob", "ada"]


@pytest.mark.skipif(INSTALLED, reason="on the tree only: it is the same source")
@pytest.mark.usefixtures("in_parts")
def test_acquire_of_a_waiter_not_yet_dismissed_answers_done_and_dequeues(
    stage: psycopg.Connection[Any],
) -> None:
    """Its answer is final, so its place would be left to nobody."""
    both, once = Both(stage, [], 91_102), Form(claim=3000, once=True)
    both.in_parts = True
    granted = both.acquire_as(ADA, once, 2000)
    assert isinstance(granted, Granted)
    for seq in (2, 3, 4):
        both.now += 1
        both.acquire_as(WaiterId("bob", seq), once, 2000)
    both.finish_as(ADA, granted.fence)
    assert both.rest is not None
    rest = both.rest
    last = WaiterId("bob", 4)
    assert isinstance(both.acquire_as(last, once, 2000, both.tickets[last]), Done)
    both.status()
    assert not both.state.queue
    both.rest = rest
    both.do_the_rest()


ROUNDS = int(os.environ.get("ROUNDS", "60"))
"""Sequences for each kind of lock; by hand 500."""
