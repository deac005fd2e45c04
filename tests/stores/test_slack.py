"""Where there is no clock but those of the clients, a step knows the earliest and the latest time.

Two clients have clocks that differ by a second, which is as much as their store allows.
"""

from __future__ import annotations

import json

import pytest

from aiolock.protocol import (
    WAS_HOLDER,
    Acquire,
    Busy,
    Downgrade,
    Form,
    Granted,
    Queued,
    ReadStatus,
    Renew,
    Renewal,
    WaiterId,
)
from aiolock.stores.authors import Document, NameState, Step
from aiolock.stores.documents import DocumentStore
from examples.document_store import Documents

pytestmark = pytest.mark.one_loop

LOCK = Form(claim=3000)
DELAYED = Form(claim=3000, after_loss=5000)
SLACK = 1_000_000
NOW = 1_790_000_000_000_000
TTL = 30_000
ADA, BOB = WaiterId("ada", 1), WaiterId("bob", 1)


def step(state: NameState, after: float, slack: int = SLACK) -> Step:
    """A step so many seconds later, by the clock of whoever runs it."""
    return Step("x", state, NOW + round(after * 1e6), lambda _: True, slack=slack)


def held(form: Form = LOCK) -> NameState:
    """A name that ada holds for 30 seconds."""
    state = NameState()
    answer = step(state, 0).run(Acquire("x", ADA, form, TTL))
    assert answer == Granted(NOW, TTL)
    return state


def test_step_with_slack_ends_a_lease_when_it_has_ended_by_every_clock() -> None:
    """A client whose clock is ahead does not take what another still holds by its own."""
    state = held()
    answer = step(state, 30.999).run(Acquire("x", BOB, LOCK, TTL))
    assert isinstance(answer, Queued)
    assert answer.until == 1
    assert isinstance(step(state, 31).run(Acquire("x", BOB, LOCK, TTL)), Granted)


def test_step_with_slack_shows_a_holder_until_its_lease_has_ended_by_every_clock() -> None:
    """It is shown, and can be renewed and downgraded, for as long as no other can have it."""
    state = held(Form(claim=3000, downgrades=True))
    (shown,) = step(state, 30.5).run(ReadStatus("x")).holders
    assert shown.remaining == 0
    assert not step(state, 31).run(ReadStatus("x")).holders
    assert step(state, 30.5).run(Downgrade("x", ADA, LOCK, NOW)) == WAS_HOLDER
    assert step(state, 30.5).run(Renew([Renewal("x", ADA, LOCK, NOW, TTL)])) == [True]
    assert step(state, 62).run(Renew([Renewal("x", ADA, LOCK, NOW, TTL)])) == [False]


def test_step_with_slack_promises_a_holder_what_is_left_by_its_own_clock() -> None:
    """The others wait for longer, so it need not count on less."""
    state = held()
    answer = step(state, 10).run(Acquire("x", ADA, LOCK, TTL))
    assert answer == Granted(NOW, TTL - 10_000)
    assert step(state, 30.5).run(Acquire("x", ADA, LOCK, TTL)) == Granted(NOW, 0)


def test_step_with_slack_keeps_a_lost_lock_closed_by_every_clock() -> None:
    """The delay after a loss is no shorter because one clock saw the loss earlier."""
    state = held(DELAYED)
    answer = step(state, 31).run(Acquire("x", BOB, LOCK, TTL, wait=False))
    assert answer == Busy(6000)
    assert isinstance(step(state, 36.9).run(Acquire("x", BOB, LOCK, TTL)), Queued)
    assert isinstance(step(state, 37).run(Acquire("x", BOB, LOCK, TTL)), Granted)


def test_document_saved_at_a_later_time_does_not_go_back() -> None:
    """A clock that is behind counts as one that stands still, for that name."""
    first = Document("x", "", "ada", NOW, {}, again=False)
    assert first.run(Acquire("x", ADA, LOCK, TTL)) == Granted(NOW, TTL)
    saved = first.changed()
    assert saved is not None
    second = Document("x", saved[0], "bob", NOW - 7_000_000, {"ada": ""}, again=False)
    answer = second.run(Acquire("x", BOB, LOCK, TTL))
    assert isinstance(answer, Queued)
    assert (answer.until, answer.now) == (TTL, NOW)
    saved = second.changed()
    assert saved is not None
    assert json.loads(saved[0])[3] == NOW


@pytest.mark.parametrize("skew", [-1.0, 61.0, float("nan")])
def test_document_store_with_a_wrong_skew_is_refused(skew: float) -> None:
    """It is checked where it is given."""
    with pytest.raises(ValueError, match="max_skew"):
        DocumentStore(Documents(), max_skew=skew)
