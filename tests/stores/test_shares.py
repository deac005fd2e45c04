"""Fair shares at the state machine: who is next among tenants, and what is remembered of them."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from statistics import mean
from typing import TypeVar

import pytest

from aiolock import protocol
from aiolock.protocol import (
    Acquire,
    Answer,
    AskAgain,
    Before,
    Break,
    Form,
    Full,
    Granted,
    GrantLost,
    GrantPushed,
    Operation,
    Queued,
    ReadStatus,
    Release,
    Resize,
    Rule,
    WaiterId,
)
from aiolock.stores._codec import decode, encode
from aiolock.stores._effects import Rest
from aiolock.stores._holders import Grant, Holder
from aiolock.stores._shares import Account, Accounts
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step
from benchmarks import shares as benchmark
from tests.support.tenants import Kind, run

pytestmark = pytest.mark.one_loop

Value = TypeVar("Value")
NAME, TTL = "x", 30_000


class Bench:
    """One name, whose clock stands still unless it is moved."""

    def __init__(self, limit: int = 0) -> None:
        self.state, self.now, self.fence = NameState(), 10**15, 0
        self._limit = limit
        self._numbers = itertools.count(1)
        self.dead = set[str]()
        self.held = dict[WaiterId, tuple[Form, int]]()
        self.order = list[str]()
        """The shares that were granted, in order."""
        self.told = list[str]()
        """The clients that were told to ask again."""
        self.in_parts = False
        self.rest: Rest | None = None

    def form(self, share: str, *, permits: int = 1, weight: int = 1000, priority: int = 0) -> Form:
        """That of a lock, or of a semaphore if there is a limit."""
        if not self._limit:
            return Form(3000, share=share, weight=weight, priority=priority)
        return Form(
            *(3000, True, Rule.PERMITS, permits, self._limit),
            priority=priority,
            share=share,
            weight=weight,
        )

    def ask(
        self,
        share: str,
        *,
        permits: int = 1,
        weight: int = 1000,
        priority: int = 0,
        client: str = "",
        max_waiters: int = 0,
        wait: bool = True,
    ) -> tuple[WaiterId, Answer]:
        """A waiter of that share asks."""
        self.now += 1
        waiter = WaiterId(client or f"c{next(self._numbers)}", next(self._numbers))
        form = self.form(share, permits=permits, weight=weight, priority=priority)
        asked = Acquire(NAME, waiter, form, TTL, wait=wait, max_waiters=max_waiters)
        return waiter, self.run(asked)

    def run(self, operation: Operation[Value]) -> Value:
        """Carry out an operation, and note who was granted."""
        step = self._step()
        answer = step.run(operation)
        self._done(step)
        if (
            isinstance(operation, Acquire)
            and isinstance(answer, Granted)
            and operation.waiter not in self.held
        ):
            self._granted(operation.waiter, operation.form, answer.fence)
        return answer

    def go_on(self) -> None:
        """The rest of the step before."""
        step, rest = self._step(), self.rest
        assert rest is not None
        step.go_on(rest)
        self._done(step)

    def _step(self) -> Step:
        return Step(
            *(NAME, self.state, self.now, lambda c: c not in self.dead, self.fence),
            in_parts=self.in_parts,
        )

    def _done(self, step: Step) -> None:
        self.fence, self.rest = step.fence, step.rest
        for client, event in step.pushes:
            if isinstance(event, GrantPushed):
                self._granted(event.waiter, event.form, event.fence)
            elif isinstance(event, GrantLost):
                self.held.pop(event.waiter, None)
            elif isinstance(event, AskAgain):
                self.told.append(client)

    def _granted(self, waiter: WaiterId, form: Form, fence: int) -> None:
        self.held[waiter] = form, fence
        self.order.append(form.share)

    def release(self, waiter: WaiterId | None = None) -> None:
        """A holder releases: this one, or the one that holds for the longest."""
        waiter = waiter or next(iter(self.held))
        form, fence = self.held.pop(waiter)
        self.run(Release(NAME, waiter, form, fence))

    def give_up(self, waiter: WaiterId, share: str) -> None:
        """A waiter gives up."""
        self.run(Release(NAME, waiter, self.form(share), 0))


@pytest.mark.parametrize("reloaded", [False, True])
@pytest.mark.parametrize("kind", ["lock", "semaphore"])
def test_shares_of_random_tenants_keep_every_promise(kind: Kind, reloaded: bool) -> None:
    """Least held, nobody passed over, equal turns on a lock, in order within a share, no permit
    idle, nobody starves; whether or not the state is written down after each step.
    """
    counts = Counter[str]()
    for seed in range(16):
        counts += run(seed, kind, reloaded=reloaded)
    for done in ("grants", "gave up", "died", "expired", "came back"):
        assert counts[done] > 40, done
    for checked in ("first of its share", "holds least", "passed over", "pairs"):
        assert counts[checked] > 400, checked


def test_shares_keep_one_busy_tenant_out_of_the_way_of_others() -> None:
    """One with 1,000 waiters, then twenty with one each, for 15 permits of a second."""
    found = {
        fair: benchmark.simulate(
            benchmark.one_busy_tenant(), 15, benchmark.about_a_second(), fair=fair
        ).waits
        for fair in (False, True)
    }
    others = [f"tenant {number}" for number in range(20)]
    assert mean(found[False][each][0] for each in others) > 65
    assert mean(found[True][each][0] for each in others) < 0.5
    assert max(found[True][each][0] for each in others) < 1
    assert max(found[True]["busy"]) < max(found[False]["busy"]) + 2


def test_shares_of_a_lock_are_granted_by_weight() -> None:
    """Of 700 grants, weights of 1, 2 and 4 have 100, 200 and 400."""
    bench = Bench()
    bench.ask("")
    weights = {"one": 1000, "two": 2000, "four": 4000}
    for share, weight in weights.items():
        for _ in range(500):
            bench.ask(share, weight=weight)
    while len(bench.order) <= 700:
        bench.release()
    assert Counter(bench.order[1:]) == {"one": 100, "two": 200, "four": 400}


def test_shares_of_a_semaphore_hold_permits_by_weight() -> None:
    """Of 14 permits, weights of 1, 2 and 4 hold 2, 4 and 8."""
    bench = Bench(14)
    for share, weight in (("one", 1000), ("two", 2000), ("four", 4000)):
        for _ in range(100):
            bench.ask(share, weight=weight)
    for _ in range(50):
        bench.release()
    held = Counter(form.share for form, _ in bench.held.values())
    assert held == {"one": 2, "two": 4, "four": 8}


def test_share_that_holds_least_is_next_however_often_it_was_granted() -> None:
    """A tenant of short calls has its part beside one of long calls."""
    bench = Bench(2)
    bench.ask("long")
    for _ in range(50):
        bench.ask("short")
        bench.ask("long")
    for _ in range(40):
        short = [waiter for waiter, (form, _) in bench.held.items() if form.share == "short"]
        bench.release(short[0])
    assert bench.order[2:] == ["short"] * 40


def test_share_of_a_waiter_that_gives_up_pays_nothing() -> None:
    """Whoever asks often and gives up has as many turns as others."""
    bench = Bench()
    bench.ask("holder")
    for _ in range(50):
        waiter, _ = bench.ask("hasty")
        bench.give_up(waiter, "hasty")
    for _ in range(4):
        bench.ask("steady")
        bench.ask("hasty")
    for _ in range(8):
        bench.release()
    assert bench.order == ["holder"] + ["steady", "hasty"] * 4


def test_share_has_no_credit_for_having_been_idle() -> None:
    """One that comes late takes turns with others from then on."""
    bench = Bench()
    for _ in range(100):
        bench.ask("early")
    for _ in range(50):
        bench.release()
    for _ in range(5):
        bench.ask("late")
    before = len(bench.order)
    for _ in range(10):
        bench.release()
    assert Counter(bench.order[before : before + 6]) == {"early": 3, "late": 3}


def test_share_that_comes_late_is_behind_one_whose_turn_it_is() -> None:
    """It begins at the present, not before it."""
    bench = Bench()
    bench.ask("")
    for share in "aaabbb":
        bench.ask(share)
    for _ in range(3):
        bench.release()
    bench.ask("c")
    for _ in range(2):
        bench.release()
    assert bench.order == ["", "a", "b", "a", "b", "c"]


def test_waiter_without_a_share_is_served_in_order_of_arrival() -> None:
    """It is next as soon as all that came before it have entered."""
    bench = Bench()
    bench.ask("c")
    for share in ("a", "a", "", "b", "a"):
        bench.ask(share)
    for _ in range(5):
        bench.release()
    assert bench.order == ["c", "a", "b", "a", "", "a"]


def test_priorities_come_before_shares() -> None:
    """Each priority has accounts of its own."""
    bench = Bench()
    bench.ask("c")
    for share, priority in (("a", 1), ("b", 1), ("a", 0), ("a", 0), ("b", 0)):
        bench.ask(share, priority=priority)
    for _ in range(5):
        bench.release()
    assert bench.order == ["c", "a", "b", "a", "a", "b"]


def test_max_waiters_counts_those_of_the_share() -> None:
    """A tenant with a long queue does not make others `QueueFull`."""
    bench = Bench()
    bench.ask("a")
    for _ in range(3):
        bench.ask("a")
    assert bench.ask("a", max_waiters=3)[1] == Full(3)
    assert isinstance(bench.ask("b", max_waiters=1)[1], Queued)
    assert bench.ask("b", max_waiters=1)[1] == Full(1)


def test_max_waiters_of_a_share_does_not_count_its_dead() -> None:
    """They are looked for when it is full."""
    bench = Bench()
    bench.ask("a")
    dead, _ = bench.ask("b")
    bench.dead.add(dead.client)
    assert isinstance(bench.ask("b", max_waiters=1)[1], Queued)
    assert dead not in bench.state.waiting


def test_dead_waiter_of_a_share_costs_it_nothing() -> None:
    """It is passed over in the very step in which its share is chosen."""
    bench = Bench()
    bench.ask("c")
    bench.ask("a")
    bench.ask("a")
    for _ in range(2):
        waiter, _ = bench.ask("b")
        bench.dead.add(waiter.client)
    bench.ask("b")
    for _ in range(3):
        bench.release()
    assert bench.order == ["c", "a", "b", "a"]


def test_waiter_with_a_share_has_no_waiter_directly_before_it() -> None:
    """Its client must not hand the lock off by itself; between others that is as it was."""
    bench = Bench()
    bench.ask("", client="ada")
    _, answer = bench.ask("a", client="ada")
    assert isinstance(answer, Queued)
    assert answer.before is None
    _, answer = bench.ask("", client="ada")
    assert isinstance(answer, Queued)
    assert answer.before is None
    _, answer = bench.ask("", client="ada")
    assert isinstance(answer, Queued)
    assert isinstance(answer.before, Before)
    assert not bench.form("a").plain


def test_newcomer_whose_share_holds_less_enters_past_a_larger_request() -> None:
    """A permit that is free goes to the share that is next, if it fits."""
    bench = Bench(3)
    bench.ask("a", permits=2)
    bench.ask("a", permits=3)
    assert isinstance(bench.ask("b")[1], Granted)


def test_try_of_a_share_does_not_overtake_waiters() -> None:
    """Who does not wait is granted the lock only if nobody waits."""
    bench = Bench(3)
    bench.ask("a", permits=2)
    bench.ask("a", permits=3)
    _, answer = bench.ask("b", wait=False)
    assert not isinstance(answer, Granted)


def test_share_that_was_displaced_comes_back_to_its_place() -> None:
    """The ticket is its place within the share."""
    bench = Bench()
    bench.ask("a")
    first, answer = bench.ask("a")
    assert isinstance(answer, Queued)
    bench.ask("a")
    bench.state.dequeue(first)
    bench.run(Acquire(NAME, first, bench.form("a"), TTL, ticket=answer.ticket))
    bench.release()
    assert first in bench.held


def test_permits_of_a_share_count_until_the_grant_ends() -> None:
    """However it ends, and under whichever grant: no more, and no less."""
    bench = Bench(4)
    one, _ = bench.ask("a", permits=2)
    two, _ = bench.ask("a", permits=1)
    (form, fence), holders = bench.held[one], bench.state.holders
    moved = Grant(WaiterId("=key", 0), fence)
    held = holders.get(Grant(one, fence))
    assert held is not None
    holders.add(Holder(moved, form, held.end, shared=True))
    holders.remove(held.grant)
    bench.ask("b", permits=1)
    assert _held(bench, "a") == 3
    bench.run(Break(NAME, [fence]))
    assert _held(bench, "a") == 1
    bench.release(two)
    assert _held(bench, "a") == 0


def _accounts(bench: Bench) -> Accounts:
    shares = bench.state.holders.shares
    assert shares is not None
    return shares._by_priority[0]


def _held(bench: Bench, share: str) -> int:
    account = _accounts(bench)._by_name.get(share)
    return 0 if account is None else account.held


def test_grant_that_closes_the_lock_is_of_no_share() -> None:
    """From its end on, nobody holds it."""
    bench = Bench(2)
    form = Form(3000, True, Rule.PERMITS, 1, 2, share="a", after_grant=60_000)
    waiter = WaiterId("ada", 1)
    bench.run(Acquire(NAME, waiter, form, TTL))
    bench.ask("b")
    bench.release(waiter)
    assert _held(bench, "a") == 0
    assert bench.state.holders.permits == 2


def test_shares_are_forgotten_when_nobody_with_a_share_waits() -> None:
    """Only what is held is known then, as it is of every holder."""
    bench = Bench(2)
    for share in ("a", "a", "a", "b", "b"):
        bench.ask(share)
    assert '"shares":' not in encode(bench.state)
    bench.release()
    assert '"shares":' in encode(bench.state)
    for _ in range(2):
        bench.release()
    assert bench.order == ["a", "a", "b", "a", "b"]
    assert '"shares":' not in encode(bench.state)
    assert _held(bench, "a") == _held(bench, "b") == 1
    for _ in range(2):
        bench.release()
    assert not _accounts(bench)._by_name


def test_forgetting_starts_looks_at_no_share_that_only_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It happens each time that the last waiter leaves, however many hold permits then."""
    bench = Bench(1000)
    for number in range(1000):
        bench.ask(f"u{number}")
    looked, taken = list[str](), Accounts._taken

    def look(accounts: Accounts, share: str) -> Account:
        looked.append(share)
        return taken(accounts, share)

    monkeypatch.setattr(Accounts, "_taken", look)
    waiter, answer = bench.ask("u1")
    assert isinstance(answer, Queued)
    bench.give_up(waiter, "u1")
    assert looked == ["u1", "u1"]
    bench.ask("late")
    bench.release()
    assert len(looked) < 10
    assert not _accounts(bench).virtual
    assert not any(account.start for account in _accounts(bench)._by_name.values())


def test_share_pays_nothing_for_a_grant_while_nobody_with_a_share_waits() -> None:
    """So the order is that of arrival among those that come to wait first."""
    bench = Bench()
    for share in ("x", "y"):  # so that there are accounts
        bench.ask(share)
    for _ in range(2):
        bench.release()
    for share in ("a", "a", "b"):
        bench.ask(share)
    for _ in range(2):
        bench.release()
    assert bench.order == ["x", "y", "a", "a", "b"]


def test_shares_that_come_once_are_not_all_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is never idle remembers those that are furthest ahead, and not too many."""
    monkeypatch.setattr(protocol, "MOST_AHEAD", 50)
    bench = Bench(3)
    bench.ask("big", permits=3)
    for _ in range(600):
        bench.ask("big", permits=3)
    for number in range(500):
        bench.ask(f"u{number}", weight=1000 - number % 7)
        bench.release()
    accounts = _accounts(bench)
    assert len(accounts._ahead) <= 50
    assert len(accounts._by_name) <= 50 + 3 + 1


def test_resize_does_not_change_who_is_next() -> None:
    """Only how many enter."""
    bench = Bench(1)
    for share in ("a", "a", "b"):
        bench.ask(share)
    bench.run(Resize(NAME, 1, 2, 60_000))
    assert bench.order == ["a", "b"]


@pytest.mark.parametrize("change", [lambda _: None, lambda b: b.release(), lambda b: b.ask("c")])
def test_state_with_shares_is_read_as_it_was_written(change: Callable[[Bench], object]) -> None:
    """Written again, it is the same text; without shares there is no word of them in it."""
    bench = Bench(2)
    for share in ("a", "b", "a", "a", "b", "c", "é:%"):
        bench.ask(share, weight=700)
    bench.release()
    change(bench)
    text = encode(bench.state)
    assert encode(decode(text)) == text
    plain = Bench()
    plain.ask("")
    plain.ask("")
    assert "share" not in encode(plain.state)


def test_form_with_a_share_is_written_as_earlier_versions_read_it() -> None:
    """They take no more of a form than they know; the rest is beside it."""
    bench = Bench(2)
    for share in ("a", "", "b", "b"):
        bench.ask(share)
    data = json.loads(encode(bench.state))
    assert {len(form) for form in data["forms"]} == {12}
    for key in ("more", "shares"):
        data.pop(key, None)
    earlier = decode(json.dumps(data))
    assert [ticket for ticket, _ in earlier.queue] == [ticket for ticket, _ in bench.state.queue]
    assert not any(form.share for _, form in earlier.waiting.values())


def test_status_shows_the_place_of_a_waiter_in_its_share() -> None:
    """In order of arrival; one without a share has its place in the queue."""
    bench = Bench(1)
    bench.ask("a", weight=500)
    for share in ("a", "b", "a", "", "b"):
        bench.ask(share, weight=500)
    status = bench.run(ReadStatus(NAME))
    assert [(each.share, each.weight, each.place) for each in status.holders] == [("a", 0.5, 0)]
    places = [(each.share, each.place) for each in status.waiters]
    assert places == [("a", 1), ("b", 1), ("a", 2), ("", 4), ("b", 2)]
    assert "share a × 0.5" in str(status)


def test_share_that_is_next_but_does_not_fit_keeps_its_start() -> None:
    """Its only waiter is looked at again and again, while others are granted; it has not left."""
    bench = Bench(3)
    bench.ask("", permits=3)
    large, _ = bench.ask("a", permits=3)
    for _ in range(3):
        bench.ask("b")
    accounts = _accounts(bench)
    before = accounts.starts(), accounts.virtual
    for _ in range(2):
        bench.now += 1
        bench.run(Resize(NAME, 3, 2, 60_000))
        bench.run(Resize(NAME, 3, 3, 60_000))
    accounts.virtual += 7  # as after grants to others
    assert large in bench.state.waiting
    bench.run(Resize(NAME, 3, 2, 60_000))
    assert accounts._by_name["a"].start == 0
    accounts.virtual -= 7
    assert (accounts.starts(), accounts.virtual) == before


def test_shares_are_granted_so_many_permits_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is next then is told to ask, and that step goes on."""
    monkeypatch.setattr(protocol, "GRANTS", 3)
    bench = Bench(9)
    bench.ask("", permits=9)
    for share in "aaabbb":
        bench.ask(share)
    bench.release()
    assert bench.order == ["", "a", "b", "a"]
    assert len(bench.told) == 1
    (waiter,) = (waiter for waiter in bench.state.waiting if waiter.client in bench.told)
    form = bench.state.waiting[waiter][1]
    assert form.share == "b"
    answer = bench.run(Acquire(NAME, waiter, form, TTL, ticket=1))
    assert isinstance(answer, Granted)
    assert sorted(bench.order[4:]) == ["a", "b", "b"]


def test_share_that_is_not_ahead_any_more_is_forgotten() -> None:
    """What others were granted since has come up to it."""
    bench = Bench()
    bench.ask("")
    for share in ("once", *["busy"] * 9):
        bench.ask(share)
    bench.release()
    assert "once" in _accounts(bench)._by_name
    for _ in range(3):
        bench.release()
    assert "once" not in _accounts(bench)._by_name


def test_shares_wait_until_all_waiters_of_a_stuck_client_are_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are removed in parts, and one of them may be next: it would hold others up."""
    monkeypatch.setattr(protocol, "PART", 2)
    bench = Bench()
    bench.ask("", client="well")
    bench.ask("a", client="stuck")
    for _ in range(4):
        bench.ask("a", client="well")
    last, _ = bench.ask("b", client="stuck")
    bench.release()
    bench.now += 31_000_000
    bench.in_parts = True
    bench.ask("a", client="well")
    assert last not in bench.held
    while bench.rest is not None:
        bench.go_on()
    assert last not in bench.state.waiting
    assert bench.order == ["", "a", "a"]
