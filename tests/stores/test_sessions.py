"""At a store with sessions, a hold lives with a session of its client, and no clock ends it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from aiolock.protocol import (
    WAS_HOLDER,
    Acquire,
    Break,
    Busy,
    Form,
    Granted,
    GrantLost,
    GrantPushed,
    Queued,
    ReadStatus,
    Release,
    Renewal,
    ReportHandoff,
    Rule,
    WaiterId,
)
from aiolock.stores.authors import (
    Document,
    NameState,
    Part,
    Session,
    Step,
    decode,
    decode_push,
    encode,
)

pytestmark = pytest.mark.one_loop

LOCK = Form(claim=3000)
FIXED = Form(claim=3000, fixed=True)
DELAYED = Form(claim=3000, after_loss=5000)
NOW = 1_790_000_000_000_000
HOUR = 3_600_000_000
TTL = 30_000
ADA, BOB, CY = WaiterId("ada", 1), WaiterId("bob", 1), WaiterId("cy", 1)


class Keys:
    """The sessions of a store: one for each client and ttl, and one for each client's claims."""

    def __init__(self) -> None:
        self.ended = set[Session]()

    def is_alive(self, session: Session) -> bool:
        """Whether it has not ended."""
        return session not in self.ended

    def session_for(self, client: str, form: Form, ttl: int, *, claim: bool) -> str:
        """The client's presence, or its session for that ttl."""
        if (form.fixed and not claim) or ttl < 1000:
            return ""
        return "presence" if claim else str(ttl)


class Name:
    """The document of one name, as it is saved from run to run."""

    def __init__(self) -> None:
        self.keys = Keys()
        self.living = {"ada": "1 here", "bob": "2 here", "cy": "3 here"}
        self.text = ""
        self.last: Document

    def run(self, *parts: Part, client: str, now: int = NOW) -> Any:
        """Carry out parts for a client whose clock says ``now``; the answer of the last."""
        living = {each: about for each, about in self.living.items() if each != client}
        self.last = Document(
            *("x", self.text, client, now, living), again=False, slack=0, sessions=self.keys
        )
        answer: Any = [self.last.run(part) for part in parts][-1]
        self.mail = self.last.take_mail()
        self.changed = self.last.changed()
        if self.changed is not None:
            self.text = self.changed.text
        return answer

    def acquire(
        self, waiter: WaiterId, now: int = NOW, *, form: Form = LOCK, wait: bool = True
    ) -> Any:
        """Have a waiter ask for the lock."""
        asked = Acquire("x", waiter, form, TTL, wait=wait)
        return self.run(asked, client=waiter.client, now=now)


@pytest.fixture
def name() -> Name:
    """A name that ada holds for 30 seconds."""
    name = Name()
    assert name.acquire(ADA) == Granted(NOW, TTL)
    return name


def test_hold_with_a_session_is_ended_by_no_clock(name: Name) -> None:
    """A client whose clock is an hour ahead waits, however often it asks."""
    answer = name.acquire(BOB, NOW + HOUR)
    assert isinstance(answer, Queued)
    assert answer.until == TTL
    again = name.run(Acquire("x", BOB, LOCK, TTL, answer.ticket), client="bob", now=NOW + 2 * HOUR)
    assert isinstance(again, Queued)
    answer = name.acquire(CY, NOW, wait=False)
    assert isinstance(answer, Busy)
    assert answer.until == TTL
    assert answer.holder is not None
    assert answer.holder.remaining == TTL / 1000
    # Its own client, too, is told its ttl, whatever the time is.
    assert name.acquire(ADA, NOW + 3 * HOUR) == Granted(NOW, TTL)


def test_hold_with_a_session_ends_with_it_at_once(name: Name) -> None:
    """Whoever asks next gets the lock; the client that lost it, if it still lives, is told so."""
    own = WaiterId("ada", 2)
    assert isinstance(name.acquire(own), Queued)
    name.keys.ended.add(Session("ada", str(TTL)))
    answer = name.acquire(BOB)
    assert isinstance(answer, Granted)  # for ada's waiters have left the queue with its lease
    (lost,) = name.mail["ada"]
    event = decode_push(lost, "x").event
    assert event == GrantLost("x", ADA, NOW, "expired")
    assert not name.run(Renewal("x", ADA, LOCK, NOW, TTL), client="ada")


def test_hold_whose_session_has_ended_is_not_shown(name: Name) -> None:
    """A status is as true as an acquisition."""
    (shown,) = name.run(ReadStatus("x"), client="bob").holders
    assert (shown.client, shown.remaining) == ("ada", TTL / 1000)
    name.keys.ended.add(Session("ada", str(TTL)))
    assert not name.run(ReadStatus("x"), client="bob").holders


def test_renewal_of_a_hold_in_its_session_saves_nothing(name: Name) -> None:
    """Whoever keeps the session alive has renewed all that live with it."""
    renewal = Renewal("x", ADA, LOCK, NOW, TTL)
    for later in (20_000_000, HOUR):  # nor is it saved so that the database keeps it
        assert name.run(renewal, client="ada", now=NOW + later) is True
        assert name.changed is None
    assert name.run(renewal._replace(ttl=0), client="ada") is True
    assert name.changed is None
    # Another ttl is another session.
    assert name.run(renewal._replace(ttl=60_000), client="ada") is True
    assert name.last.sessions == {Session("ada", "60000")}
    name.keys.ended.add(Session("ada", str(TTL)))
    assert isinstance(name.acquire(BOB), Queued)


def test_claim_lives_with_the_presence_until_it_is_confirmed(name: Name) -> None:
    """Until then, the grant ends with its client's presence; afterwards, with its own session."""
    _ = name.acquire(BOB, NOW + 1)
    _ = name.acquire(CY, NOW + 2)
    assert name.run(Release("x", ADA, LOCK, NOW), client="ada", now=NOW + 3) == WAS_HOLDER
    (text,) = name.mail["bob"]
    event = decode_push(text, "x").event
    assert isinstance(event, GrantPushed)
    assert name.last.sessions == {Session("bob", "presence")}
    answer = name.run(Acquire("x", CY, LOCK, TTL, NOW + 2), client="cy", now=NOW + HOUR)
    assert isinstance(answer, Queued)  # the claim is over by cy's clock, and lives on
    confirmed = name.run(Renewal("x", BOB, LOCK, event.fence, TTL), client="bob")
    assert confirmed is True
    name.keys.ended.add(Session("bob", "presence"))
    assert isinstance(name.run(Acquire("x", CY, LOCK, TTL, NOW + 2), client="cy"), Queued)
    name.keys.ended.add(Session("bob", str(TTL)))
    assert isinstance(name.run(Acquire("x", CY, LOCK, TTL, NOW + 2), client="cy"), Granted)


def test_claim_of_a_client_whose_presence_has_ended_is_skipped(name: Name) -> None:
    """The next waiter need not wait for the end of the claim."""
    _ = name.acquire(BOB, NOW + 1)
    assert name.run(Release("x", ADA, LOCK, NOW), client="ada", now=NOW + 3) == WAS_HOLDER
    name.keys.ended.add(Session("bob", "presence"))
    assert isinstance(name.acquire(CY, NOW + 4), Granted)


def test_local_handoff_keeps_the_session_of_its_source(name: Name) -> None:
    """The client relied on that one when it handed the lock on."""
    target = WaiterId("ada", 2)
    passed = ReportHandoff("x", LOCK, ADA, NOW, target, NOW + 1, (target,))
    assert name.run(passed, client="ada") == WAS_HOLDER
    assert name.last.sessions == {Session("ada", str(TTL))}
    assert isinstance(name.acquire(BOB, NOW + HOUR), Queued)


def test_local_handoff_with_a_claim_that_is_too_short_ends_by_the_clock(name: Name) -> None:
    """No session ends that soon, so the store gives none for it."""
    short, target = Form(claim=1), WaiterId("ada", 2)
    passed = ReportHandoff("x", short, ADA, NOW, target, NOW + 1, (target,))
    assert name.run(passed, client="ada") == WAS_HOLDER
    assert name.last.sessions == frozenset()
    assert isinstance(name.acquire(BOB, NOW + 1000), Granted)


def test_fixed_hold_ends_by_the_clock(name: Name) -> None:
    """It is not renewed, so it must not live on with a session that is kept alive for others."""
    assert name.run(Release("x", ADA, LOCK, NOW), client="ada") == WAS_HOLDER
    assert isinstance(name.acquire(BOB, NOW, form=FIXED), Granted)
    assert name.last.sessions == frozenset()
    assert isinstance(name.acquire(CY, NOW + 29_000_000, form=FIXED), Queued)
    assert isinstance(name.acquire(CY, NOW + 30_000_000, form=FIXED), Granted)


def test_broken_hold_with_a_session_is_ended(name: Name) -> None:
    """Its client is told, and the next enters."""
    assert name.run(Break("x", [NOW]), client="bob") == 1
    assert name.last.sessions == frozenset()
    assert isinstance(name.acquire(BOB), Granted)


def test_lock_lost_with_its_session_stays_closed() -> None:
    """The delay after a loss counts from when somebody noticed it."""
    name = Name()
    assert isinstance(name.acquire(ADA, form=DELAYED), Granted)
    name.keys.ended.add(Session("ada", str(TTL)))
    later = NOW + 50_000_000
    assert name.acquire(BOB, later, form=DELAYED, wait=False) == Busy(5000)
    assert isinstance(name.acquire(BOB, later + 5_000_000, form=DELAYED), Granted)


def test_numbers_are_remembered_while_a_hold_lives_with_a_session() -> None:
    """A semaphore keeps its limit, however long its permits are held without a write."""
    name = Name()
    two, three = (
        Form(3000, shared=True, rule=Rule.PERMITS, number=1, declared=most) for most in (2, 3)
    )
    first: Any = name.acquire(ADA, form=two)
    assert isinstance(first, Granted)
    differs = name.acquire(BOB, NOW + HOUR, form=three)
    assert differs == (2,)
    release = Release("x", ADA, two, first.fence)
    assert name.run(release, client="ada", now=NOW + HOUR) == WAS_HOLDER
    assert name.acquire(BOB, NOW + HOUR + 59_000_000, form=three) == (2,)
    assert isinstance(name.acquire(BOB, NOW + HOUR + 61_000_000, form=three), Granted)


def test_document_says_who_was_taken_for_alive_or_dead(name: Name) -> None:
    """These are the guards of its save: clients, and sessions, also those that are begun."""
    assert name.last.judged_clients == {}
    assert name.last.judged_sessions == {}
    assert name.last.begun == {Session("ada", str(TTL))}
    _ = name.acquire(BOB, NOW + 1)
    assert name.last.judged_sessions == {Session("ada", str(TTL)): True}
    assert name.last.begun == set()
    _ = name.acquire(CY, NOW + 2)
    del name.living["bob"]
    _ = name.run(Release("x", ADA, LOCK, NOW), client="ada", now=NOW + 3)
    assert name.last.judged_clients == {"bob": False, "cy": True}
    assert name.last.judged_sessions == {Session("ada", str(TTL)): True}
    assert name.last.begun == {Session("cy", "presence")}
    name.keys.ended.add(Session("cy", "presence"))
    _ = name.acquire(ADA, NOW + 4)
    assert name.last.judged_sessions[Session("cy", "presence")] is False
    # What is only shown is no guard.
    _ = name.acquire(CY, NOW + 5)
    _ = name.run(ReadStatus("x"), client="ada")
    assert name.last.judged_clients == {}


def test_hold_of_a_part_before_is_alive_though_its_session_has_not_begun(name: Name) -> None:
    """The store begins the session in the very save that has the hold."""
    assert name.run(Release("x", ADA, LOCK, NOW), client="ada") == WAS_HOLDER
    name.keys.ended.add(Session("bob", str(TTL)))  # it is not there yet
    other = WaiterId("bob", 2)
    first, second = Acquire("x", BOB, LOCK, TTL), Acquire("x", other, LOCK, TTL)
    assert isinstance(name.run(first, second, client="bob"), Queued)
    assert name.last.begun == {Session("bob", str(TTL))}
    assert name.last.judged_sessions == {}


def test_document_that_waits_says_so(name: Name) -> None:
    """So the client must look after the sessions of the holders."""
    waits = [name.last.waits]
    _ = name.acquire(BOB)
    waits.append(name.last.waits)
    _ = name.run(ReadStatus("x"), client="cy")
    assert [*waits, name.last.waits] == [False, True, False]


def test_document_that_is_idle_says_so(name: Name) -> None:
    """Nothing but the fence is left in it; until then, it is needed for ever."""
    assert name.changed is not None
    assert (name.changed.keep, name.changed.idle) == (math.inf, False)
    _ = name.run(Release("x", ADA, LOCK, NOW), client="ada")
    assert name.changed is not None
    assert name.changed.idle
    assert name.changed.keep == 600
    assert json.loads(name.changed.text) == [NOW, "", [], NOW]


def test_document_whose_mail_is_not_taken_keeps_it(name: Name) -> None:
    """As for the stores that notify clients after the save."""
    _ = name.acquire(BOB, NOW + 1)
    document = Document("x", name.text, "ada", NOW, {"bob": ""}, again=False, sessions=name.keys)
    assert document.run(Release("x", ADA, LOCK, NOW)) == WAS_HOLDER
    saved = document.changed()
    assert saved is not None
    ((to, text),) = json.loads(saved.text)[2]
    assert to == "bob"
    assert isinstance(decode_push(text, "x").event, GrantPushed)


def test_codec_writes_a_session_only_where_there_is_one(name: Name) -> None:
    """A hold that ends by the clock is written as it always was."""
    state = decode(json.loads(name.text)[1])
    ((_, holder),) = state.holders.items()
    assert holder.session == str(TTL)
    assert json.loads(encode(state))["holders"] == [["ada", 1, NOW, 0, TTL, False, False, str(TTL)]]
    plain = NameState()
    _ = Step("x", plain, NOW, lambda _: True).run(Acquire("x", ADA, LOCK, TTL))
    assert json.loads(encode(plain))["holders"] == [
        ["ada", 1, NOW, 0, NOW // 1000 + TTL, False, False]
    ]
    assert encode(decode(encode(state))) == encode(state)
