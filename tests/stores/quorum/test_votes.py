"""The votes of a majority of servers, one ballot at a time."""

from __future__ import annotations

from aiolock.protocol import WAS_ABSENT, WAS_HOLDER, WAS_UNKNOWN
from aiolock.stores.quorum._counts import Tally
from aiolock.stores.quorum._votes import Enter, Phase, Raise, Release, Vote, VoteSet, YieldVote

LATER = 10.0
"""A deadline."""


# One ballot


def test_vote_set_with_a_majority_enters_once() -> None:
    """With equal numbers no server has to be told a fence; and the waiter enters once."""
    vote_set = VoteSet(3)
    vote_set.voted(0, 7, LATER)
    assert vote_set.look(0.0) == []
    vote_set.voted(2, 7, LATER - 1)
    assert vote_set.look(0.0) == [Enter(7)]
    assert vote_set.phase is Phase.ENTERED
    assert vote_set.fence == 7
    assert vote_set.deadline == LATER - 1
    assert vote_set.look(0.0) == []


def test_vote_set_hand_off_needs_a_fence_that_a_majority_knows() -> None:
    """And within the same deadline: nothing of it need ever arrive anywhere."""
    vote_set = VoteSet(3)
    assert vote_set.reserve(9) == []
    assert vote_set.hand_off(0.0) == 0
    vote_set.voted(0, 7, LATER)
    vote_set.voted(1, 7, LATER - 1)
    vote_set.look(0.0)
    assert vote_set.hand_off(0.0) == 0
    assert vote_set.reserve(9) == [Raise(0, 7, 9), Raise(1, 7, 9)]
    vote_set.renewed(0, 7, 0.0, 9)
    assert vote_set.hand_off(0.0) == 0
    vote_set.renewed(1, 7, 0.0, 9)
    assert [vote_set.hand_off(0.0) for _ in range(3)] == [8, 9, 0]
    assert (vote_set.fence, vote_set.highest, vote_set.deadline) == (9, 9, LATER - 1)


def test_vote_set_hand_off_needs_a_majority_of_votes_that_stand() -> None:
    """A vote that has ended may be another waiter's, though its server knew the fence."""
    vote_set = VoteSet(3)
    for server in range(3):
        vote_set.voted(server, 7, LATER - server)
    vote_set.look(0.0)
    for server in range(3):
        vote_set.renewed(server, 7, 0.0, 20)
    assert vote_set.hand_off(LATER - 1.5) == 8
    vote_set.gone(0, 7, LATER - 1.5)
    assert vote_set.hand_off(LATER - 2.5) == 9
    assert vote_set.hand_off(LATER - 1.5) == 0
    vote_set.voted(0, 30, 2 * LATER)
    assert vote_set.hand_off(LATER - 2.5) == 0, "its deadline was over once"


def test_vote_set_raises_the_fence_at_a_majority_before_it_enters() -> None:
    """Of 3, 5 and 9 it is 5, that two of them know already."""
    vote_set = VoteSet(3)
    vote_set.voted(0, 3, LATER)
    vote_set.voted(1, 9, LATER)
    assert vote_set.look(0.0) == [Raise(0, 3, 9)]
    assert vote_set.look(0.0) == []  # it is under way
    vote_set.voted(2, 5, LATER)
    assert vote_set.look(0.0) == [Enter(5)]


def test_vote_set_enters_only_by_the_answer_to_its_own_raise() -> None:
    """And not by an answer to something else, or for another vote."""
    vote_set = VoteSet(3)
    vote_set.voted(0, 3, LATER)
    vote_set.voted(1, 9, LATER)
    assert vote_set.look(0.0) == [Raise(0, 3, 9)]
    vote_set.renewed(0, 2, LATER, 9)
    vote_set.renewed(0, 3, LATER, 4)
    assert vote_set.look(0.0) == [Raise(0, 3, 9)]
    vote_set.unanswered(0, 3)
    assert vote_set.look(0.0) == [Raise(0, 3, 9)]
    vote_set.renewed(0, 3, LATER, 9)
    assert vote_set.look(0.0) == [Enter(9)]


def test_vote_set_short_of_a_majority_yields_an_inquired_vote_once() -> None:
    """It gives a vote back once; that vote never counts again, after any later news."""
    vote_set = VoteSet(3)
    vote_set.voted(1, 4, LATER)
    vote_set.inquired(1, 3)  # of an earlier vote
    assert vote_set.look(0.0) == []
    vote_set.inquired(1, 4)
    assert vote_set.look(0.0) == [YieldVote(1, 4)]
    vote_set.voted(1, 4, LATER)  # late
    assert vote_set.votes == [None, None, None]
    assert vote_set.look(0.0) == []
    vote_set.voted(1, 5, LATER)
    vote_set.voted(2, 1, LATER)
    assert vote_set.look(0.0) == [Raise(2, 1, 5)]


def test_vote_set_with_a_majority_yields_no_vote() -> None:
    """Also while it tells the fence."""
    vote_set = VoteSet(3)
    vote_set.voted(0, 3, LATER)
    vote_set.voted(1, 9, LATER)
    vote_set.inquired(0, 3)
    vote_set.inquired(1, 9)
    assert vote_set.look(0.0) == [Raise(0, 3, 9)]


def test_vote_set_yields_a_vote_that_has_ended() -> None:
    """It is given back, for another."""
    vote_set = VoteSet(3)
    vote_set.voted(0, 3, 1.0)
    vote_set.voted(1, 3, LATER)
    assert vote_set.look(1.0) == [YieldVote(0, 3)]
    vote_set.voted(2, 3, LATER)
    assert vote_set.look(1.0) == [Enter(3)]


def test_vote_set_deadline_is_not_shortened_by_a_late_answer() -> None:
    """An answer that comes late says less than one that was heard; the deadline is a majority's."""
    vote_set = VoteSet(5)
    for server, deadline in enumerate((5.0, 1.0, 4.0, 2.0)):
        vote_set.voted(server, 1, deadline)
    assert vote_set.deadline == 2.0
    vote_set.renewed(1, 1, 0.5)
    vote_set.voted(1, 1, 0.5)
    assert vote_set.deadline == 2.0
    vote_set.renewed(1, 1, 3.0)
    assert vote_set.deadline == 3.0
    vote_set.gone(0, 1, 0.0)
    assert vote_set.deadline == 2.0
    vote_set.gone(2, 1, 0.0)
    assert vote_set.deadline is None


def test_vote_set_counts_no_vote_of_a_server_that_took_one_away() -> None:
    """Not while it holds: but it is where the server had forgotten it, or its lease had ended."""
    vote_set = VoteSet(3)
    for server in range(3):
        vote_set.voted(server, 1, 1.0 if server == 2 else LATER)
    assert vote_set.look(0.0) == [Enter(1)]
    vote_set.gone(0, 1, 0.0)
    assert vote_set.voted(0, 2, LATER) == Release(0, 2)
    vote_set.gone(2, 1, 1.0)
    assert vote_set.voted(2, 2, LATER) is None
    assert [vote is not None for vote in vote_set.votes] == [False, True, True]
    vote_set.gone(1, 1, 1.0)
    assert vote_set.voted(1, 2, LATER) == Release(1, 2)
    assert vote_set.votes[:2] == [None, None]
    vote_set.forgotten(1)
    assert vote_set.voted(1, 3, LATER) is None


def test_vote_set_takes_no_new_vote_once_its_deadline_has_passed() -> None:
    """Another waiter may have been inside; only votes renewed all the time count."""
    vote_set = VoteSet(3)
    for server in range(2):
        vote_set.voted(server, 1, 1.0)
    assert vote_set.look(0.0) == [Enter(1)]
    vote_set.expire(0.9)
    assert vote_set.voted(2, 1, 1.5) is None
    vote_set.expire(1.0)
    assert vote_set.voted(2, 1, 2.0) is None
    assert vote_set.voted(0, 5, LATER) == Release(0, 5)
    assert vote_set.voted(0, 5, LATER) is None
    vote_set.renewed(1, 1, LATER)
    assert vote_set.deadline == 2.0


async def test_tally_of_a_release_tells_if_its_votes_were_found() -> None:
    """Until the deadline, votes that no server misses; after it, its own votes that are found."""

    def found(*answers: int, held: int, lost: bool, unheard_of: int | None = None) -> int:
        tally = Tally(2, WAS_HOLDER, held, lost=lost)
        tally.expect(3)
        if unheard_of is not None:
            tally.on_reply(unheard_of, None)
        for answer in answers:
            tally.heard_of(answer, None)
        was: int = tally.future.result()
        return was

    here, gone, unsure = WAS_HOLDER, WAS_ABSENT, WAS_UNKNOWN
    for lost in (False, True):
        assert found(here, here, held=3, lost=lost) == here
        assert found(gone, gone, held=3, lost=lost) == gone
        assert found(gone, held=2, lost=lost, unheard_of=here) == gone
    assert found(gone, here, held=3, lost=False) == here
    assert found(gone, here, held=3, lost=True) == unsure
    assert found(unsure, unsure, held=3, lost=False) == unsure
    assert found(here, held=2, lost=False, unheard_of=here) == here
    assert found(here, held=2, lost=True, unheard_of=here) == unsure


def test_vote_set_that_is_suspended_takes_no_vote_until_it_comes_back() -> None:
    """It gives back its votes, up to their numbers, and takes none before it comes back."""
    vote_set = VoteSet(3)
    vote_set.voted(1, 4, LATER)
    assert vote_set.suspend() == [Release(0, 0), Release(1, 4), Release(2, 0)]
    assert vote_set.voted(2, 6, LATER) == Release(2, 6)
    assert vote_set.voted(1, 4, LATER) is None
    vote_set.come_back()
    assert vote_set.voted(1, 4, LATER) is None
    assert vote_set.votes == [None, None, None]
    assert vote_set.voted(1, 5, LATER) is None
    assert isinstance(vote_set.votes[1], Vote)
    assert vote_set.highest == 6
    vote_set.leave()
    assert vote_set.look(0.0) == []
