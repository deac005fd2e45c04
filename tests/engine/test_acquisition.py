"""The phases of an acquisition: every order of events, without a loop, a clock or a store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from aiolock._engine.acquisition import STEPS, Acquisition, Phase
from aiolock._engine.policy import Policy
from aiolock._prompt import Prompt
from aiolock.errors import LimitMismatch, StoreError
from aiolock.protocol import Answer, Busy, Differs, Done, Full, Granted, Queued, WaiterId

POLICY = Policy("n", 5.0)
ENDS = {Phase.HELD, Phase.DECLINED, Phase.GIVEN_UP}
LEASE, SECOND = 5_000, 1_000_000
WAITING = {Phase.ASKING, Phase.QUEUED}
HAS_GRANT = {Phase.GRANTED, Phase.CONFIRMING, Phase.RETURNING, Phase.HELD}


def unheard(_loop: asyncio.AbstractEventLoop, _context: Mapping[str, object]) -> None:
    """An error that nobody waits for any more is no news here."""


LOOP = asyncio.new_event_loop()
LOOP.set_exception_handler(unheard)
LOOP.close()
PLACE = Queued(ticket=77, place=1, until=LEASE, now=0)


class Hears:
    """What the acquisitions leave to the waiters of their client."""

    def __init__(self) -> None:
        self.matters = False
        self.failures = list[Exception]()

    def queued(self, *_: object, **__: object) -> None: ...

    def answered(self, acquisition: Acquisition, answer: Answer) -> None:
        self.matters = acquisition.answers(answer)

    def unanswered(self, _: Acquisition, failure: Exception) -> None:
        self.failures.append(failure)


HEARS = Hears()


def acquisition(policy: Policy = POLICY) -> Acquisition:
    """One that has just begun."""
    begun = Acquisition()
    begun.waiter, begun.policy, begun.owner = WaiterId("me", 1), policy, None
    begun.began = begun.last_asked = 0.0
    return begun


def phase(of: Acquisition) -> Phase:
    """Where it stands."""
    return of.phase  # through a call: what a method changes, a type checker must not narrow


def future() -> Prompt:
    """What a store or a push completes."""
    return Prompt(loop=LOOP)


def keep(of: Acquisition) -> None:
    """The watchdog keeps its grant."""
    assert of.phase is Phase.GRANTED
    of.phase = Phase.HELD


def ask(of: Acquisition, sent: float = 0.0) -> asyncio.Future[Answer]:
    """It asks."""
    question = future()
    assert of.question is None
    of.asked_by = HEARS  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]  # as much of it as is used
    of.question, of.last_asked, of.outdated = question, sent, False
    if of.phase is Phase.ASKING:
        of.waits_for = future()
    return question


def answer(of: Acquisition, question: asyncio.Future[Answer], says: Answer) -> bool:
    """The store answers."""
    if question.cancelled():
        return False
    question.set_result(says)
    if of.question is not question:
        return False
    HEARS.matters = True
    of.resolve(says)
    return HEARS.matters


def test_steps_of_every_phase_but_the_ends_include_given_up() -> None:
    """What has not ended can be given up at once, which is what a cancelled task does."""
    assert {phase for phase, steps in STEPS.items() if not steps} == ENDS
    assert set(STEPS) == set(Phase)
    for phase in set(Phase) - ENDS:
        assert Phase.GIVEN_UP in STEPS[phase]


def test_acquisition_granted_by_the_first_answer_is_held() -> None:
    """The first answer grants it."""
    a = acquisition()
    assert answer(a, ask(a), Granted(7, LEASE))
    assert phase(a) is Phase.GRANTED
    assert a.accepts(1.0)
    assert (a.fence, a.granted_for, a.unconfirmed) == (7, LEASE, False)
    keep(a)
    assert phase(a) is Phase.HELD
    assert not a.gives_up()


def test_grant_pushed_during_a_repeated_question_is_crossed() -> None:
    """Its question may still come to the store, so its release is of whatever it is by then."""
    a = acquisition()
    answer(a, ask(a), PLACE)
    again = ask(a, 1.0)
    assert a.pushed(7, LEASE, SECOND, 1.5)
    assert phase(a) is Phase.GRANTED
    assert a.crossed
    assert not answer(a, again, PLACE), "the push was quicker"
    assert phase(a) is Phase.GRANTED


def test_grant_pushed_before_the_first_answer_is_not_crossed() -> None:
    """The answer to the only question comes after it, so nothing is out any more."""
    a = acquisition()
    first = ask(a)
    assert not a.pushed(7, LEASE, SECOND, 0.5), "its task waits for the answer"
    assert phase(a) is Phase.ASKING
    answer(a, first, PLACE)
    assert phase(a) is Phase.GRANTED
    assert not a.crossed


def test_acquisition_whose_question_may_be_sent_twice_is_crossed() -> None:
    """A copy of it may come at any time."""
    none_is_out = acquisition()
    none_is_out.sends_again()
    assert not none_is_out.crossed
    a = acquisition()
    first = ask(a)
    a.sends_again()
    assert a.crossed
    assert answer(a, first, Granted(7, LEASE))


def test_grant_returned_as_too_late_is_not_accepted_when_pushed_again() -> None:
    """A grant that was given back is never entered, whichever way it is heard of again."""
    a = acquisition()
    answer(a, ask(a), Granted(7, LEASE))
    assert not a.accepts(6.0)
    assert a.gives_back() == 7
    assert phase(a) is Phase.RETURNING
    a.returned()
    answer(a, ask(a, 6.0), Queued(77, 1, LEASE, 6 * SECOND))
    assert not a.pushed(7, LEASE, 6 * SECOND, 6.1)
    assert phase(a) is Phase.QUEUED
    assert a.pushed(8, LEASE, 6 * SECOND, 6.1)
    assert phase(a) is Phase.GRANTED


def test_push_of_a_grant_already_taken_away_is_ignored() -> None:
    """Whoever broke it was quicker than the push, over another connection."""
    a = acquisition()
    answer(a, ask(a), PLACE)
    a.taken_away(7)
    assert not a.pushed(7, LEASE, SECOND, 1.0)
    assert a.has_news(), "it has no place any more, so it asks"


@pytest.mark.parametrize("before", [True, False])
def test_accepts_after_the_grant_is_shortened_ends_at_the_earlier_deadline(*, before: bool) -> None:
    """The store misses a vote, before or after the answer with the grant is heard."""
    a = acquisition()
    question = ask(a)
    if before:
        a.shortened(7, 2.0)
    answer(a, question, Granted(7, LEASE))
    a.shortened(7, 2.0)
    assert a.accepts(1.9)
    assert not a.accepts(2.0)


def test_news_during_an_open_question_is_reported_after_its_answer() -> None:
    """The answer may be older than what has happened."""
    a = acquisition()
    question = ask(a)
    assert not a.has_news()
    assert a.outdated
    answer(a, question, PLACE)
    assert a.has_news()


def test_periodic_claim_must_be_confirmed_and_becomes_a_full_grant() -> None:
    """A claim is no proof that the run was begun; a grant for the whole ttl is."""
    a = acquisition(Policy("n", 5.0, every=60.0))
    answer(a, ask(a), PLACE)
    a.pushed(7, 3_000, SECOND, 1.0)
    assert a.must_confirm
    a.confirms()
    a.confirmed(9.0)
    assert phase(a) is Phase.GRANTED
    assert (a.fence, a.granted_for, a.deadline, a.unconfirmed) == (7, LEASE, 9.0, False)
    assert (a.must_confirm, a.accepts(8.9)) == (False, True)
    for granted, must_confirm in (
        (Granted(7, LEASE), False),
        (Granted(7, LEASE - 1), True),
        (Granted(7, LEASE, claim=True), True),
    ):
        a = acquisition(Policy("n", 5.0, every=60.0))
        answer(a, ask(a), granted)
        assert a.must_confirm is must_confirm


def test_stop_after_the_grant_keeps_the_grant_unless_it_is_late() -> None:
    """Both are there when the task runs."""
    for now, expected in ((1.0, True), (6.0, False)):
        a = acquisition()
        answer(a, ask(a), Granted(7, LEASE))
        a.stop(TimeoutError())
        assert phase(a) is Phase.GRANTED
        assert a.accepts(now) is expected
        assert a.stopped is not None


def test_answer_of_another_limit_stops_with_limit_mismatch_and_needs_release() -> None:
    """As a repetition it may leave a place behind, so something is to be released."""
    a = acquisition()
    answer(a, ask(a), Differs(3))
    assert phase(a) is Phase.STOPPED
    assert isinstance(a.stopped, LimitMismatch)
    assert a.gives_up()


@pytest.mark.parametrize("refused", [True, False])
def test_gives_up_after_a_store_error_needs_no_release_if_refused(refused: bool) -> None:
    """Unless it had a place by then, or nobody knows what was carried out."""
    a = acquisition()
    error = StoreError("no")
    error.refused = refused
    _ = ask(a)
    a.set_exception(error)
    assert a.gives_up() is not refused
    assert phase(a) is Phase.GIVEN_UP


def test_acquisition_taking_an_illegal_step_raises_assertion_error() -> None:
    """The table says which there are."""
    a = acquisition()
    with pytest.raises(AssertionError, match="cannot become asking"):
        a.returned()


class AnyOrder(RuleBasedStateMachine):
    """Whatever comes in whatever order: one end, and nothing is entered that is not ours."""

    @initialize(periodic=st.booleans())
    def begin(self, periodic: bool) -> None:
        """It asks, as every acquisition does first."""
        self.acquisition = acquisition(Policy("n", 5.0, every=60.0) if periodic else POLICY)
        self.now, self.fence, self.ended = 0.0, 0, False
        self.question = ask(self.acquisition)

    @rule()
    def time_passes(self) -> None:
        """More than its lease."""
        self.now += 6.0

    @precondition(
        lambda self: self.acquisition.question is None and self.acquisition.phase in WAITING
    )
    @rule()
    def asks(self) -> None:
        """Again, from the queue."""
        self.question = ask(self.acquisition, self.now)

    @precondition(lambda self: not self.question.done())
    @rule(says=st.sampled_from(["granted", "queued", "busy", "full", "done", "differs"]))
    def is_answered(self, says: str) -> None:
        """In any way, whether or not anybody cares any more."""
        self.now += 0.1
        store = int(self.now * SECOND)
        self.fence += 1
        answers: dict[str, Answer] = {
            "granted": Granted(self.fence, LEASE),
            "queued": Queued(77, 1, LEASE, store),
            "busy": Busy(9),
            "full": Full(3),
            "done": Done(9),
            "differs": Differs(3),
        }
        answer(self.acquisition, self.question, answers[says])

    @precondition(lambda self: self.acquisition.phase is Phase.QUEUED and not self.question.done())
    @rule()
    def is_not_answered(self) -> None:
        """Nobody knows what became of a question from the queue."""
        failure = StoreError("no")
        self.question.set_exception(failure)
        if self.acquisition.question is self.question:
            self.acquisition.set_exception(failure)
            assert HEARS.failures.pop() is failure

    @rule(old=st.booleans())
    def is_pushed(self, old: bool) -> None:
        """A grant, or one that was heard of before."""
        self.fence += not old
        self.acquisition.pushed(max(1, self.fence), LEASE, int(self.now * SECOND), self.now)

    @rule()
    def is_taken_away(self) -> None:
        """The last grant was broken, or its lease ended."""
        self.acquisition.taken_away(self.fence)

    @rule()
    def news(self) -> None:
        """Something happened that the store knows more of."""
        if self.acquisition.has_news():
            assert self.acquisition.phase is Phase.QUEUED
            assert self.acquisition.question is None

    @rule()
    def connection_breaks(self) -> None:
        """What is under way is sent again."""
        self.acquisition.sends_again()

    @precondition(lambda self: self.acquisition.phase is Phase.GRANTED)
    @rule()
    def task_runs(self) -> None:
        """It enters, or confirms that it may, or lets go."""
        fence = self.acquisition.fence
        assert fence
        if not self.acquisition.accepts(self.now):
            assert self.acquisition.gives_back() == fence
            self.acquisition.waits_for = future()
        elif self.acquisition.must_confirm:
            self.acquisition.confirms()
            self.acquisition.waits_for = future()
        else:
            assert fence > self.acquisition.stale_fence
            assert self.now < self.acquisition.deadline
            keep(self.acquisition)

    @precondition(lambda self: self.acquisition.phase is Phase.CONFIRMING)
    @rule()
    def is_confirmed(self) -> None:
        """The store has renewed its claim."""
        self.acquisition.confirmed(self.now + 4.0)
        assert not self.acquisition.must_confirm

    @precondition(lambda self: self.acquisition.phase is Phase.RETURNING)
    @rule()
    def is_returned(self) -> None:
        """The store has heard that it was too late, and it asks anew."""
        self.acquisition.returned()
        self.question = ask(self.acquisition, self.now)

    @rule()
    def is_stopped(self) -> None:
        """Its time is over."""
        self.acquisition.stop(TimeoutError())

    @rule()
    def is_given_up(self) -> None:
        """Its task is cancelled."""
        self.acquisition.gives_up()

    @invariant()
    def what_has_ended_stays_so(self) -> None:
        """And says how."""
        ended = self.acquisition.phase in ENDS
        assert ended or not self.ended
        self.ended = ended
        assert (self.acquisition.declined is not None) == (self.acquisition.phase is Phase.DECLINED)
        assert self.acquisition.stopped is not None or self.acquisition.phase is not Phase.STOPPED
        assert self.acquisition.fence or self.acquisition.phase not in HAS_GRANT

    def teardown(self) -> None:
        """Whatever has not ended can be given up, once."""
        assert self.acquisition.gives_up() is not self.ended
        assert self.acquisition.phase in ENDS
        assert not self.acquisition.gives_up()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=150, stateful_step_count=40, derandomize=True)
