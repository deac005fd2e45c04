"""The protocol with one safeguard left out: a simulation must find the violation that follows."""

from __future__ import annotations

from typing import Final, NamedTuple

from aiolock.stores.quorum._periods import ENDLESS, Period
from aiolock.stores.quorum._votes import Raise, Release, Step, Vote, VoteSet, YieldVote
from tests.proof.quorum import server as at
from tests.proof.quorum.client import Client, WaiterId
from tests.proof.quorum.server import Answer, Done, Granted, Out, Server
from tests.proof.quorum.world import Kinds


class Ablation(NamedTuple):
    """The part that is left out, and the world where that shows."""

    name: str
    kinds: Kinds
    world: str
    finds: str
    """The first word of the violation."""
    seed: int
    """The seed from which to search: the first one that showed it."""


# Ballots


class _EntersWithTheHighest(VoteSet):
    def _fence(self, numbers: list[int]) -> int:
        return numbers[-1]

    def _is_known(self, acquisition: list[Vote], fence: int) -> bool:
        return True


class _OneVoteLess(VoteSet):
    def __init__(self, servers: int) -> None:
        super().__init__(servers)
        self.quorum -= 1


class _CountsWhatItGivesBack(VoteSet):
    def _yield_votes(self, now: float) -> list[Step]:
        steps: list[Step] = []
        for server, vote in enumerate(self.votes):
            wanted = vote and (self._inquired[server] >= vote.number or vote.deadline <= now)
            if vote and wanted and self._given_back[server] < vote.number - 1:
                self._given_back[server] = vote.number - 1  # told once
                steps.append(YieldVote(server, vote.number))
        return steps


class _CountsWhatHasEnded(VoteSet):
    @staticmethod
    def _is_valid(vote: Vote, now: float) -> bool:
        return True


class _RevivesWhatIsVoid(VoteSet):
    def voted(
        self, server: int, number: int, deadline: float, period: Period = ENDLESS
    ) -> Release | None:
        self._given_back[server] = 0
        return super().voted(server, number, deadline, period)


class _HandsOnWhatIsUnknown(VoteSet):
    def hand_off(self, now: float) -> int:
        known = [vote.known for vote in self.votes if vote is not None]
        for vote in self.votes:
            if vote is not None:
                vote.known = self.fence + 1
        fence = super().hand_off(now)
        for vote in self.votes:
            if vote is not None:
                vote.known = known.pop(0)
        return fence

    def reserve(self, fence: int) -> list[Raise]:
        return super().reserve(self.fence)


def _with(vote_set: type[VoteSet]) -> type[Client]:
    class Other(Client):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]  # whatever they are
            self.quorum = self.vote_set().quorum

        def vote_set(self) -> VoteSet:
            return vote_set(self.servers)

    return Other


# Clients


class _NoHundredth(Client):
    def lasts(self, lease: float) -> float:
        return lease


class _CountsFromTheAnswer(Client):
    def _from(self, sent: float) -> float:
        return self.clock()


class _NeverStepsAside(Client):
    def in_reach(self, now: float) -> bool:
        return True


class _NeverAsksAgain(Client):
    def ask_again(self, waiter: WaiterId, server: int) -> None:
        pass


class _KeepsItsNumber(Client):
    """Takes a vote back unchanged that it gave back, if the server lets it keep it."""

    def answered(self, server: int, number: int, answer: Answer) -> None:
        sent = self._sent.get(number)
        kept = sent and isinstance(sent.command, at.YieldVote) and isinstance(answer, Granted)
        if sent and sent.waiter and kept and not sent.waiter.vote_set.suspended:
            assert isinstance(answer, Granted)
            sent.waiter.vote_set._given_back[server] = answer.number - 1
        super().answered(server, number, answer)


class _HandsOnThoughOthersWait(Client):
    def is_alone(self) -> bool:
        self._shared_until = float("-inf")
        return True


class _TellsNobodyWhoWaits(Client):
    def _enqueue(self) -> None:
        pass


# Servers


class _VotesAtOnce(Server):
    def _not_voting(self, now: float) -> bool:
        return False


class _NeverInquires(Server):
    def _in_the_way(self, who: at.Who) -> list[Out]:
        return []


class _InquiresOfWhoSharesNothing(Server):
    def _in_the_way(self, who: at.Who) -> list[Out]:
        return [out for out in super()._in_the_way(who) if not out.who.shares]


class _SharesWithWhoDoesNot(Server):
    def _fits(self, who: at.Who) -> bool:
        return not self.out or who.shares


class _SharesPastWhoWaits(Server):
    def _is_first(self, who: at.Who) -> bool:
        return super()._is_first(who) or (who.shares and bool(self.out))


class _TakesAllThatShare(Server):
    def _take_back(self, given: at.YieldVote, now: float) -> Answer:
        if given.who in self.out:
            self.out = {given.who: self.out[given.who]}
        return super()._take_back(given, now)


class _TakesWhateverItFinds(Server):
    @staticmethod
    def _within(out: Out, left: at.Release) -> bool:
        return True


class _LetsItKeepTheNumber(Server):
    def _next(self, before: Out, now: float) -> Answer:
        if self._head() == before.who and before.end > now:
            self._unqueue(before.who)
            self.out[before.who] = before
            return Granted(before.number, before.end - now, now)
        return super()._next(before, now)


class _RenewsWhatAnotherHas(Server):
    def _renew(self, renewal: at.Renew, now: float) -> Answer:
        if self.out and renewal.who not in self.out and renewal.fence:
            self.out = {renewal.who: Out(renewal.who, renewal.number, now + renewal.ttl)}
            return Done(now)
        return super()._renew(renewal, now)


ABLATIONS: Final = (
    Ablation(
        "a fence that a majority knows", Kinds(_with(_EntersWithTheHighest)), "all", "fence", 160
    ),
    Ablation("a majority", Kinds(_with(_OneVoteLess)), "all", "two", 0),
    Ablation(
        "one list of servers",
        Kinds(Client, other_client=_with(_OneVoteLess)),
        *("all", "two", 0),
    ),
    Ablation(
        "uncounted before it is given back",
        Kinds(_with(_CountsWhatItGivesBack)),
        *("storm", "two", 22),
    ),
    Ablation("a look at the clock at entry", Kinds(_with(_CountsWhatHasEnded)), "storm", "two", 19),
    Ablation(
        "what was given back is void",
        Kinds(_with(_RevivesWhatIsVoid)),
        *("storm", "two", 20456),
    ),
    Ablation("a hundredth for clocks", Kinds(_NoHundredth), "drift", "two", 19),
    Ablation("counted from before the question", Kinds(_CountsFromTheAnswer), "all", "two", 50),
    Ablation("no vote soon after a loss of memory", Kinds(server=_VotesAtOnce), "all", "two", 226),
    Ablation(
        "a vote that another has is not renewed",
        Kinds(server=_RenewsWhatAnotherHas),
        *("storm", "two", 118),
    ),
    Ablation(
        "a new number after giving way",
        Kinds(_KeepsItsNumber, server=_LetsItKeepTheNumber),
        *("twice", "two", 7899),
    ),
    Ablation(
        "a bound to what stepping aside releases",
        Kinds(server=_TakesWhateverItFinds),
        *("drift", "two", 17),
    ),
    Ablation("inquiries", Kinds(server=_NeverInquires), "all", "forgotten", 11),
    Ablation(
        "stepping aside without a majority", Kinds(_NeverStepsAside), "stranded", "forgotten", 0
    ),
    Ablation(
        "fences that are known before it is handed on",
        Kinds(_with(_HandsOnWhatIsUnknown)),
        *("crowd, all", "fence", 9),
    ),
    Ablation(
        "handed on only where nobody else waits",
        Kinds(_HandsOnThoughOthersWait),
        *("crowd", "order", 13),
    ),
    Ablation(
        "who waits here stands in line in time",
        Kinds(_TellsNobodyWhoWaits),
        *("crowd, all", "forgotten", 6),
    ),
    Ablation("asking again", Kinds(_NeverAsksAgain), "all", "forgotten", 3),
    Ablation(
        "nobody beside who shares with nobody",
        Kinds(server=_SharesWithWhoDoesNot),
        *("quiet, shared", "two", 0),
    ),
    Ablation(
        "inquiries of those that share",
        Kinds(server=_InquiresOfWhoSharesNothing),
        *("all, shared", "forgotten", 300),
    ),
    Ablation(
        "behind who waits, also where it would fit",
        Kinds(server=_SharesPastWhoWaits),
        *("quiet, shared", "order", 4),
    ),
    Ablation(
        "one vote is given back, and not those beside it",
        Kinds(server=_TakesAllThatShare),
        *("quiet, shared", "two", 11),
    ),
)
