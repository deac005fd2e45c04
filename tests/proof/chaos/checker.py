"""Checks a history: the promises of aiolock, as rules over the events that processes wrote down.

A lock with leases cannot promise that no two bodies ever run at once: a process that was stopped
is still "in" its body when it wakes. The rules state what aiolock does promise. They contain no
luck and no tolerance, except the `LAG` that a busy machine needs.

**Exclusion.** The *span* of a body is the time in which it may rely on the lock. It begins when the
lease is returned (`entered`) and ends with the first of these:

* the body left (stamped before the release was called);
* the body was told that the lock is lost (stamped at the first instruction after);
* its own deadline passed, to which `Lease.remaining` counts down, as it stood last;
* its process died (stamped when it was dead);
* its process closed the client, which released a lease that no `async with` guards (stamped before
  that release was called; a body in an `async with` is told, and waited for);
* a task began to break exactly this grant, or to wipe the server after it was granted: this asks
  for two bodies at once, and the first is told afterwards;
* a fail-over of its master began, for grants that were made at most `LAG` before that, or later,
  before all had left the old master: replication is asynchronous, so the new master may not know
  them. Of older grants it may not know the renewals of that time. A grant that is renewed after a
  fail-over is known to the new master, so the fail-over is no excuse for it.

The span does not end, though, before the call of a release of which the server said that it found
the grant, unless that may have been the old master. Spans of one name never overlap, except those
of readers; a writer counts as a reader from when it began to be downgraded. There are never more
permits out than exist. Every stamp is on the side that makes a span no longer than what aiolock
warranted, so an overlap is a fault. A process that was stopped, blocked or starved needs no
exception: its deadline passes all the same. A process that was stopped between the grant and the
entry needs none either: its span is empty, and the fence protects against what it does.

**Entering.** No body enters with a lease that had ended when the store's last answer or push about
it came: a process that was stopped with a grant in its socket asks again.

**Fences.** In the order of entries, fences of one name strictly increase over the spans that are
not empty. Over all entries no two are equal. If one attempt entered before another asked, it has
the lower fence, also across a wipe.

**Order.** If a waiter stood in the queue (the store had answered so) before another asked, and
stood there undisturbed until it entered, it has the lower fence. A waiter is disturbed if it lost
its place or cannot hear of its turn: by a fault of its process, its links or the server, or because
its lock was broken by `break_` (then the broken grant may have been its own, on the way).

With several servers that vote, the waiter has to stand at a majority of them, the same servers
throughout, each of which had answered so; and the other has to have the higher ticket. All lines go
by tickets, which are times as well as a client can tell: by how long the servers take to answer.
So a waiter that asks more than `ROUND_TRIP` after another, and than the servers took to answer it,
has the higher ticket, if nothing disturbed it.

**Liveness.** Every attempt in a process that was not killed comes to an end. A timeout is kept, a
cancellation takes effect at once, an exit does not outlast the lease. A loss is told at the
deadline at the latest. While an undisturbed waiter is queued, a name is idle for no longer than it
takes to notice a dead process. A waiter asks for its place again when its subscription was lost and
is back, and, if the queue was wiped, once the lease is over that it waited for. Once nothing is
broken any more, every process can take every lock.

**No false alarm.** A lease is lost for a reason: its deadline passed, and something kept it from
being renewed; or it was broken, wiped, or its client closed. `StoreError` needs a fault too.

**Nothing revives.** A grant that was broken or wiped is never renewed again.

**Handing on.** What was handed on is adopted once, and between the two nobody else is granted the
lock. A waiter may be overtaken by who adopts: it is no newcomer. A token is spent for a reason: it
was used or discarded before, its time has ended, or its grant was broken, wiped or forgotten.

**Rates and paths.** In no time more tokens of a rate limit are taken than its burst and its rate
allow, unless the server has forgotten some meanwhile; a grant was made at some time since the last
question of its waiter that was answered otherwise. Of two path locks that exclude each other, the
one that is asked for when the other is held has the higher fence; and bodies of both never run at
once, as long as they may rely on their leases.

**The other primitives.** A job begins once in each period. No party passes a barrier before as many
as it needs are there, and no waiter a latch that was not counted down. A message that was handled
is not handled again. Of the tasks that take several locks at once, only one at a time has each
lock, if nothing disturbed it. A client that is seen to lead does lead, and no client sees an
earlier leader after a later one. An observer that is not busy sees each leader that stays. The
exceptions are what a wipe made the server forget, and what a fail-over may have made it forget. A
period of the job is not left out if only stopped processes were in the way, each of which may cost
a claim.

**A minority.** If several servers vote, a fault of a minority of them is no excuse, and neither is
a fault of the links of one process to a minority. An emptied server is no excuse either: it says
so, and votes only after what it may have forgotten is over. But a lease may be lost if no majority
can be reached, and a job may run once more in a period if a server forgets a run of it. A waiter
stands at every server that it can reach. In the end all servers vote.

**Readers, if several servers vote.** Two readers may have one fence, so each event about a grant
names its attempt. Fences give the order of every two attempts of which one writes. The order of two
readers is judged at each server, by the times of its first votes for them. A break of a fence takes
the lock from all readers that have it. A waiter is not overtaken, even if it gives up before its
turn; but a reader may be overtaken by readers.

**What is done once, if several servers vote.** A majority has the mark before any client is told,
and no body begins after that, while one of the servers that had it then has not lost its memory.
The checker knows which servers have a mark, because they have said so. "Nobody knows whether it is
done" is allowed only if too few servers can say so.

**Runs of a periodic job, if several servers vote.** A majority of the votes of a run was given in
one period.

**Elections, if several servers vote.** Of all clients that ask, in any process, the later is not
told of an earlier leader, unless servers lost their memory and no majority knows the later one.

**No ghosts.** An ended attempt does not stand at the server. A grant may be younger than the
release of its waiter only if it is given back at once; a place in the queue may be, but never for
long. A lease is gone a ttl and a claim after its attempt has ended, whoever had to give it back; or
a claim after a server of several that was restarted with an older line has voted for it again. A
refusal that passes puts no waiter out of the queue.

**Nothing is left.** When all clients are closed no lease is alive, no queue is left, and every key
has an expiry.

All events are sorted once and searched by bisection, n log n for n events. Only for a wipe, or a
name that was idle, are all attempts gone through.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Final

from aiolock.protocol import WaiterId
from aiolock.stores.redis._codec import RESERVED, waiter_of
from tests.proof.chaos.history import Event
from tests.proof.chaos.paths import paths
from tests.proof.chaos.rates import rates
from tests.proof.chaos.run import (
    AT_ONCE,
    CLOSE,
    COMMAND,
    LAG,
    LATE,
    NS,
    STEP,
    TICK,
    WHO_HOLDS,
    Acquisition,
    Part,
    Run,
    Violation,
    at_once,
)
from tests.proof.chaos.several import (
    done,
    everywhere,
    looks,
    readers_in_order,
    starvation,
    tickets,
    unknowns,
)

Rule = Callable[[Run], Iterator[Violation]]


def exclusion(run: Run) -> Iterator[Violation]:
    """Spans of one name do not overlap, unless both share; permits are no more than there are."""
    for name, entries in run.entries.items():
        parts = sorted((p for a in entries for p in run.parts(a)), key=lambda p: p.begin)
        inside: list[Part] = []
        for part in parts:
            inside = [other for other in inside if other.end > part.begin]
            alone = [other for other in inside if not (part.shared and other.shared)]
            if alone:
                last = max(alone, key=lambda other: other.end)
                yield run.violation(
                    "exclusion",
                    f"{part.attempt.id} entered {name!r} while {last.attempt.id} relied on it,"
                    f" for {(last.end - part.begin) / 1e6:.3f} ms more",
                    last.attempt,
                    part.attempt,
                )
            inside.append(part)
            taken = sum(other.attempt.permits for other in inside)
            if taken > part.attempt.asked["limit"]:
                text = f"{part.attempt.id} entered {name!r}, and {taken} permits were out"
                yield run.violation("exclusion", text, *(other.attempt for other in inside))


def entering(run: Run) -> Iterator[Violation]:
    """No body enters with a lease that had ended at the last answer or push about it."""
    for entries in run.entries.values():
        for attempt in entries:
            entered = attempt.entered
            assert entered is not None
            # If it was stopped since that answer, it could not know better.
            if entered["deadline"] + STEP <= entered.t < entered["heard"] + AT_ONCE:
                text = f"{attempt.id} entered {attempt.name!r} with a lease that had ended"
                yield run.violation("entering", text, attempt)


def _higher(one: Acquisition, other: Acquisition) -> Acquisition:
    return one if one.fence > other.fence else other


def _lower(one: Acquisition, other: Acquisition) -> Acquisition:
    return one if one.fence < other.fence else other


def _entered_at(attempt: Acquisition) -> int:
    assert attempt.entered is not None
    return attempt.entered.t


def fences(run: Run) -> Iterator[Violation]:
    """Fences grow."""
    for name, entries in run.entries.items():
        seen: dict[int, Acquisition] = {}
        last: dict[
            bool, Acquisition
        ] = {}  # the highest of those that were alone, and of the others
        alone = [attempt for attempt in entries if not attempt.shared]
        highest = {
            True: list(accumulate(alone, _higher)),
            False: list(accumulate(entries, _higher)),
        }
        times = {True: [*map(_entered_at, alone)], False: [*map(_entered_at, entries)]}
        for attempt in entries:
            # Readers have different fences, too, if one server gives them.
            among = bool(run.servers and attempt.shared)
            if attempt.fence in seen and not (among and seen[attempt.fence].shared):
                text = f"{name!r} was granted twice under the fence {attempt.fence}"
                yield run.violation("fences", text, seen[attempt.fence], attempt)
            seen[attempt.fence] = attempt
            begin, end = run.span(attempt)
            if end > begin:
                # Among readers, a later grant may enter first.
                before_it = [last[one] for one in last if not (one and attempt.shared)]
                for other in before_it:
                    if other.fence > attempt.fence:
                        text = f"{attempt.id} entered {name!r} after {other.id}, with a lower fence"
                        yield run.violation("fences", text, other, attempt)
                last[attempt.shared] = _higher(last.get(attempt.shared, attempt), attempt)
            before = bisect_left(times[among], attempt.asked.t)
            if before and highest[among][before - 1].fence > attempt.fence:
                earlier = highest[among][before - 1]
                text = f"{attempt.id} asked for {name!r} after {earlier.id} entered: lower fence"
                yield run.violation("fences", text, earlier, attempt)


def order(run: Run) -> Iterator[Violation]:
    """First come, first served."""
    for name, every in run.entries.items():
        entries = [a for a in every if not a.adopts]
        of_readers = [a for a in entries if a.shared and run.servers]
        others = [a for a in entries if not (a.shared and run.servers)]
        yield from _in_order(run, name, others, entries)
        # The fences of readers say nothing if several servers give them.
        alone = [attempt for attempt in entries if not attempt.shared]
        yield from _in_order(run, name, of_readers, alone)
    yield from readers_in_order(run)


def _in_order(
    run: Run, name: str, attempts: Iterable[Acquisition], others: Iterable[Acquisition]
) -> Iterator[Violation]:
    """No other attempt was granted before an attempt that stood in the queue earlier."""
    by_asked = sorted(others, key=lambda attempt: attempt.asked.t)
    times = [attempt.asked.t for attempt in by_asked]
    # Of all that asked at or after each of them, the attempt that was granted first.
    granted_first = accumulate(reversed(by_asked), _lower)
    first = list(granted_first)[::-1]
    for attempt in attempts:
        stood = run.stood_since(attempt, _entered_at(attempt))
        if stood is None:
            continue
        after = bisect_right(times, stood)
        if after < len(first) and first[after].fence < attempt.fence:
            later = [a for a in by_asked[after:] if a.ticket >= attempt.ticket]
            other = min(later, key=lambda a: a.fence, default=attempt)
            if other.fence >= attempt.fence:
                continue  # by a ticket that says otherwise: see `tickets`
            text = f"{other.id} asked for {name!r} after {attempt.id} was queued, and overtook it"
            yield run.violation("order", text, attempt, other)


def endings(run: Run) -> Iterator[Violation]:
    """Every attempt comes to an end."""
    for attempt in run.attempts.values():
        if attempt.ended is None and attempt.who not in run.killed:
            what = "left" if attempt.entered else "heard"
            yield run.violation("endings", f"{attempt.id} never {what}", attempt)


def timeouts(run: Run) -> Iterator[Violation]:
    """A timeout is kept, and not reported before its time."""
    for attempt in run.attempts.values():
        until = attempt.waited_until
        if until is None:
            continue
        timeout, waits = attempt.asked["timeout"], attempt.asked["wait"]
        if not waits:
            limit = COMMAND
        elif timeout is not None:
            limit = int(timeout * NS)
        else:
            continue
        due = attempt.asked.t + limit
        asks = attempt.outcome == "AcquireTimeout" and waits
        if asks and run.disturbed(attempt.who, due, due + WHO_HOLDS):
            until = max(due, until - WHO_HOLDS)
        if run.late(attempt, due, until):
            text = f"{attempt.id} waited until {(until - due) / NS:.3f} s after its timeout"
            yield run.violation("timeouts", text, attempt)
        timed_out = attempt.outcome in {"none", "AcquireTimeout", "TimeoutError"}
        if waits and timed_out and until < due - NS // 200:
            text = f"{attempt.id} timed out {(due - until) / NS:.3f} s before its time"
            yield run.violation("timeouts", text, attempt)


def cancellations(run: Run) -> Iterator[Violation]:
    """A cancellation ends the wait, or the body, at once."""
    for attempt in run.attempts.values():
        asked = attempt.cancelling
        until = attempt.waited_until
        if asked is None or until is None:
            continue
        if until < asked:
            until = attempt.left
        if until is not None and run.late(attempt, asked, until):
            text = f"{attempt.id} went on for {(until - asked) / NS:.3f} s after its cancellation"
            yield run.violation("cancellations", text, attempt)


def tellings(run: Run) -> Iterator[Violation]:
    """A loss is told at the deadline at the latest, and a break at once."""
    for entries in run.entries.values():
        for attempt in entries:
            known = [t for t in (attempt.told, attempt.left) if t is not None]
            if not known or run.closing(attempt.who, attempt.asked.t, min(known)) is not None:
                continue
            late = (min(known) - attempt.deadline) / NS
            if run.late(attempt, attempt.deadline, min(known)):
                text = f"{attempt.id} was in its body for {late:.3f} s after its deadline, untold"
                yield run.violation("tellings", text, attempt)
            broken = run.broken(attempt)
            taken = [broken] if broken is not None else []
            if run.servers:
                taken += [
                    each for each in run.broken_by_fence(attempt) if _reaches(run, attempt, *each)
                ]
            for began, over in taken:
                if over is None or min(known) <= over.t + LAG:
                    continue
                if not run.disturbed(attempt.who, began.t, over.t + LAG):
                    text = f"the lock was taken from {attempt.id}, and nobody told it"
                    yield run.violation("tellings", text, attempt)
                    break


def _reaches(run: Run, attempt: Acquisition, began: Event, over: Event) -> bool:
    """Whether the breaker and the holder of a lock reach the same majority of several servers."""
    both = [
        server
        for server in range(run.servers)
        if not run.disturbed_at(began.who, server, began.t - LAG, over.t)
        and not run.disturbed_at(attempt.who, server, began.t, over.t + LAG)
    ]
    return len(both) >= run.most


def exits(run: Run) -> Iterator[Violation]:
    """An exit does not outlast the lease."""
    for entries in run.entries.values():
        for attempt in entries:
            if attempt.left is None or attempt.ended is None:
                continue
            due = max(attempt.left, attempt.deadline)
            if attempt.detaching is not None:  # whoever hands on has to know whether it is done
                due = max(due, attempt.detaching.t + COMMAND)
            if run.late(attempt, due, attempt.ended.t):
                late = (attempt.ended.t - due) / NS
                text = f"the exit of {attempt.id} took {late:.3f} s longer than its lease"
                yield run.violation("exits", text, attempt)


LOST: Final = {"LeaseLost", "NotHeld", "not ours"}


def lost_at(attempt: Acquisition) -> int | None:
    """When a body, or the task that released for it, knew of the loss."""
    if attempt.told is not None:
        return attempt.told
    if attempt.entered and attempt.ended and attempt.outcome in LOST:
        return attempt.ended.t
    return None


def losses(run: Run) -> Iterator[Violation]:
    """A lease is lost for a reason."""
    for entries in run.entries.values():
        for attempt in entries:
            lost = lost_at(attempt)
            if lost is not None and not _lost_for_a_reason(run, attempt, lost):
                when = "after its deadline" if lost >= attempt.deadline else "within its lease"
                text = f"{attempt.id} lost the lock {when}, and nothing was in its way"
                yield run.violation("losses", text, attempt)


def _lost_for_a_reason(run: Run, attempt: Acquisition, lost: int) -> bool:
    assert attempt.entered is not None
    begin, deadline = attempt.entered.t, attempt.deadline
    wiped, broken = run.wiped(attempt), run.broken(attempt)
    if (
        run.closing(attempt.who, attempt.asked.t, lost) is not None
        or (wiped is not None and wiped["since"] <= lost)
        or any(failover["since"] <= lost for failover in run.failed_over(attempt))
        or (broken is not None and broken[0].t <= lost)
        or run.forgotten(attempt.who, run.relied_since(attempt), lost)
        or run.bare(attempt, lost)
    ):
        return True
    max_hold = attempt.asked["max_hold"]
    return lost >= deadline - TICK and (
        not attempt.asked["renew"]
        or (max_hold is not None and lost - begin >= 0.9 * max_hold * NS)
        or run.disturbed(attempt.who, deadline - attempt.ttl, deadline)
    )


def _had_little_left(attempt: Acquisition, ended: int) -> bool:
    """Whether it left with so little of its lease that the release may have had no answer before.

    An exit waits for that until the lease ends, and no longer.
    """
    if attempt.entered is None or attempt.left is None:
        return False
    return attempt.deadline - attempt.left < LAG and ended >= attempt.deadline - TICK


def errors(run: Run) -> Iterator[Violation]:
    """Only documented errors occur, each for its reason."""
    for attempt in run.attempts.values():
        ended = attempt.ended
        if ended is None:
            continue
        asked = attempt.asked
        fair: bool
        match attempt.outcome:
            case "ok" | "Boom" | "LeaseLost" | "NotHeld" | "not ours" | "TokenSpent":
                fair = attempt.entered is not None or _deposed(run, attempt, ended.t)
                fair = fair or _not_adopted(attempt, ended.t)
            case "none" | "AcquireTimeout" | "TimeoutError":
                limited = not asked["wait"] or asked["timeout"] is not None
                fair = limited and attempt.entered is None
            case "cancelled":
                fair = attempt.cancelling is not None
            case "QueueFull":
                fair = asked["max_waiters"] is not None
            case "ClientClosed":
                fair = run.closing(attempt.who, 0, ended.t) is not None
            case "StoreError":
                # With so little time, it is possible that the store had not answered at all.
                hasty = asked["timeout"] is not None and asked["timeout"] * NS < LAG
                # An answer may come when the time has passed, and the task has not run yet.
                heard = bool(attempt.queued) and attempt.queued[0] < ended.t - STEP
                fair = run.disturbed(attempt.who, ended.t - COMMAND - LAG, ended.t) or (
                    hasty and attempt.entered is None and not heard
                )
                fair = fair or _had_little_left(attempt, ended.t)
            case _:
                fair = False
        if not fair:
            text = f"{attempt.id} ended with {attempt.outcome}, for no reason"
            yield run.violation("errors", text, attempt)


def _deposed(run: Run, attempt: Acquisition, end: int) -> bool:
    """Whether it may have lost the lead before its body began: it puts its name up first."""
    begin = attempt.asked.t
    return (attempt.outcome == "LeaseLost" and bool(attempt.asked["campaign"])) and (
        run.clear_since(attempt, end) > begin
        or run.wiped_between(begin, end, attempt.name)
        or run.closing(attempt.who, begin, end) is not None
    )


def _not_adopted(attempt: Acquisition, end: int) -> bool:
    """Whether its token may have been spent, or it adopted and was stopped for its whole ttl."""
    stopped = end - attempt.asked.t > 0.9 * attempt.ttl
    return bool(attempt.adopts) and (attempt.outcome == "TokenSpent" or stopped)


def revivals(run: Run) -> Iterator[Violation]:
    """A grant that was broken or wiped is never renewed."""
    for entries in run.entries.values():
        for attempt in entries:
            wiped, broken = run.wiped(attempt), run.broken(attempt)
            for gone in (wiped, broken[1] if broken else None):
                if gone is not None and attempt.deadline > gone.t + run.claim:
                    text = f"{attempt.id} was renewed after its grant was gone"
                    yield run.violation("revivals", text, attempt)


def idleness(run: Run) -> Iterator[Violation]:
    """A name is not idle while an undisturbed waiter is queued."""
    for name, entries in run.entries.items():
        free = None
        for attempt in entries:
            assert attempt.entered is not None
            if free is not None and attempt.entered.t - free > LAG:
                yield from _idle(run, name, free, attempt.entered.t)
            closed = round(attempt.asked["every"] * NS)  # for the rest of the period
            free = max(free or 0, _free_at(run, attempt) + closed)


def _free_at(run: Run, attempt: Acquisition) -> int:
    """When, at the latest, the store no longer knew a grant, if nothing was in the way."""
    if attempt.detaching is not None:
        last = attempt.detached
        if last is None:
            last = (attempt.ended or run.killed.get(attempt.who) or run.events[-1]).t + LATE
        return run.lasting(last + int(attempt.detaching["ttl"] * NS) + run.lingers)
    if attempt.given_back is not None:
        return attempt.given_back
    if attempt.left is None and attempt.who in run.killed:
        return run.lasting(run.killed[attempt.who].t + run.claim)
    return run.lasting(attempt.deadline + run.lingers)


def _idle(run: Run, name: str, begin: int, end: int) -> Iterator[Violation]:
    # Each process that was in trouble may have been given one claim, and let it pass. A process
    # that was dead by then costs nothing, except for what it had been given before.
    begin = max(begin, _held_by_the_dead(run, name, begin, end))
    if end - begin <= LAG + run.claim * run.in_trouble(begin, end):
        return
    for attempt in run.attempts.values():
        until = attempt.waited_until
        if attempt.name != name or until is None or until < end:
            continue
        stood = run.stood_since(attempt, end)
        if stood is not None and stood <= begin:
            text = (
                f"{name!r} lay idle for {(end - begin) / NS:.3f} s with {attempt.id} in its queue"
            )
            yield run.violation("idleness", text, attempt)
            return


def _held_by_the_dead(run: Run, name: str, begin: int, end: int) -> int:
    """Until when the grant of a process was seen that was killed before it entered."""
    seen = begin
    for event in run.standing:
        if not begin <= event["since"] <= end:
            continue
        for member in (member for members in event["holders"].values() for member in members):
            waiter, _ = _waiter(member, held=True)
            attempt = run.attempts.get(run.waiters.get(waiter, ""))
            if attempt is None or attempt.name != name or attempt.entered is not None:
                continue
            if attempt.who in run.killed and event.t <= run.gone(attempt.who) + run.claim:
                seen = event.t
    return seen


def forgotten(run: Run) -> Iterator[Violation]:
    """A waiter that may have lost its place asks for it again."""
    for attempt in run.attempts.values():
        until = attempt.waited_until
        if not attempt.queued or until is None:
            continue
        for reason, at, due in run.doubts(attempt, attempt.queued[0], until):
            again = bisect_left(attempt.queued, at)
            asked = attempt.queued[again] if again < len(attempt.queued) else until
            if asked > due:
                text = f"{reason}, and {attempt.id} did not ask again for {(asked - at) / NS:.3f} s"
                yield run.violation("forgotten", text, attempt)


def final(run: Run) -> Iterator[Violation]:
    """Once nothing is broken any more, every attempt ends and every process takes every lock."""
    for attempt in run.attempts.values():
        if attempt.asked["final"] and attempt.outcome != "ok":
            text = f"{attempt.id} did not get {attempt.name!r} though nothing was in its way"
            yield run.violation("final", text, attempt)
    for event in run.events:
        if event.kind == "stuck":
            yield Violation("final", f"{event['who']} did not: {event['what']}", (event,))
        elif event.kind == "servers" and {*event["states"]} != {"up"}:
            text = f"{event.who} has servers that are {', '.join(event['states'])}"
            yield Violation("final", text, (event,))


def left_over(run: Run) -> Iterator[Violation]:
    """Nothing is left at the server, and every key expires."""
    for event in run.events:
        if event.kind != "key":
            continue
        # A party that was killed at a barrier stands there until its lease ends, or the queue is
        # forgotten. So does a party whose client was closed while the server refused. A name that
        # is closed or has a mark has a grant without an owner. A place that is back after a
        # fail-over stays for its queue's time if no client comes by; a grant, for its lease.
        waiters = {*event["waiters"]} - run.resurrected(event["key"])
        holders = {*event["holders"]} - run.unreleased(event["key"])
        of_whom = (holders | waiters) - run.dead - run.unheard(event["key"]) - {RESERVED}
        if event["ttl"] < 0 or of_whom:
            yield Violation("left_over", f"{event['key']!r} was left", (event,))


def crashes(run: Run) -> Iterator[Violation]:
    """No process ends with an error, and no error goes uncaught."""
    for event in run.events:
        if event.kind == "crash":
            yield Violation("crashes", f"{event.who}: {event['text']}", (event,))
        elif event.kind == "exited" and event["code"] != 0:
            yield Violation("crashes", f"{event['who']} ended with {event['code']}", (event,))


def periods(run: Run) -> Iterator[Violation]:
    """A job begins once in each period, unless the server forgot that it did; and not never."""
    yield from _left_out(run)
    for entries in run.entries.values():
        last: dict[int, Acquisition] = {}
        for attempt in sorted(entries, key=lambda attempt: attempt.fence):
            if not attempt.asked["every"]:
                break
            if run.is_of_two_periods(attempt):
                text = f"{attempt.id} ran {attempt.name!r} by votes of two periods"
                yield run.violation("periods", text, attempt)
            period = run.period(attempt)
            if period is None:
                continue
            other = last.get(period)
            assert attempt.entered is not None
            began = attempt.entered.t
            if (
                other is not None
                and not run.wiped_between(other.asked.t, began, attempt.name)
                and not run.forgotten_by_any(other, began)
            ):
                text = f"{attempt.id} ran {attempt.name!r} in the period in which {other.id} had"
                yield run.violation("periods", text, other, attempt)
            last[period] = attempt


def _left_out(run: Run) -> Iterator[Violation]:
    """The periods in which no run began, though a waiter in the queue could have begun one."""
    done = {
        (name, period)
        for name, entries in run.entries.items()
        for attempt in entries
        if attempt.asked["every"]
        for period in run.periods(attempt)
    }
    told = set[tuple[str, int]]()
    for attempt in run.attempts.values():
        until, every = attempt.waited_until, round(attempt.asked["every"] * NS)
        if not every or until is None or run.ahead is None:
            continue
        for queued in attempt.queued[:1]:
            for period in range((queued + run.ahead) // every + 1, (until + run.ahead) // every):
                begin = period * every - run.ahead
                which = attempt.name, period
                if which in done | told or not _could_begin(run, attempt, begin, begin + every):
                    continue
                told.add(which)
                text = f"nobody ran {attempt.name!r} for a period, and {attempt.id} could have"
                yield run.violation("periods", text, attempt)


def _could_begin(run: Run, attempt: Acquisition, begin: int, end: int) -> bool:
    """Whether this attempt stood in the queue for a period that was free for it."""
    stood = run.stood_since(attempt, end)
    if stood is None or stood > begin:
        return False
    if run.wiped_between(begin - 2 * (end - begin), end, attempt.name):
        return False
    if not run.all_connected(begin - LAG, end):
        return False
    before = [e for e in run.entries.get(attempt.name, ()) if e.entered and e.entered.t < end]
    free = max((_free_at(run, other) for other in before), default=begin)
    # A process that was stopped when its turn came has cost a claim.
    rivals = [a.ttl for a in run.attempts.values() if a.name == attempt.name and a.asked.t < end]
    claims = max(*rivals, run.presence) * run.in_trouble(begin, end)
    return end - max(begin, free) > LAG + claims


def meetings(run: Run) -> Iterator[Violation]:
    """No party passes a barrier before as many as it needs are there at once."""
    here: dict[str, tuple[int, int]] = {}  # when each party came, and when it was gone
    passed: list[Event] = []
    end = run.events[-1].t if run.events else 0
    for event in run.events:
        if event.kind == "arrives":
            died = run.gone(event.who) if event.who in run.killed else end
            here[event["a"]] = event.t, died
        elif event.kind == "passes":
            here[event["a"]] = here[event["a"]][0], event.t
            passed.append(event)
        elif event.kind == "apart" and event["a"] in here:
            begin = here[event["a"]][0]
            # It has given up, but it still counts at the store, until the store hears of that.
            hampered = run.disturbed(event.who, begin, event.t + LAG)
            here[event["a"]] = begin, event.t + (COMMAND if hampered else LAG)
    enough = at_once(here.values(), next((e["parties"] for e in run.of("arrives")), 1))
    for event in passed:
        begin, until = here[event["a"]]
        if not enough.touch(begin, until):
            text = f"{event['a']} passed, though there were never enough"
            yield Violation("meetings", text, (event,))


def latches(run: Run) -> Iterator[Violation]:
    """No waiter passes a latch that was not counted down often enough, each token once."""
    counted: dict[int, set[str]] = defaultdict(set)
    for event in run.events:
        if event.kind == "counts":
            counted[event["latch"]].add(event["token"])
        elif event.kind == "opens" and len(counted[event["latch"]]) < event["parties"]:
            text = f"{event['a']} passed a latch that was counted down too rarely"
            yield Violation("latches", text, (event,))


def messages(run: Run) -> Iterator[Violation]:
    """A message that is known to be handled is not handled again, unless the server forgot.

    The exception is a body that had begun before, and whose process was stopped since.
    """
    handled: dict[int, Event] = {}
    fences: dict[str, int] = {}
    for event in run.events:
        if event.kind == "handling":
            fences[event["a"]] = event["fence"]
        if event.kind not in {"handling", "handled"}:
            continue
        before = handled.get(event["message"])
        if before is not None:
            began_before = event.kind == "handling" and event["fence"] < fences[before["a"]]
            others = before["a"] != event["a"] and not began_before
            if others and not _forgotten_between(run, before, event):
                text = f"{event['a']} handled what {before['a']} had handled"
                yield Violation("messages", text, (before, event))
        if event.kind == "handled":
            handled[event["message"]] = event


def _forgotten_between(run: Run, before: Event, event: Event) -> bool:
    """Whether the server may have forgotten that a message was handled."""
    if run.servers:
        return not run.still_done(f"once:message {event['message']}", before.t, event.t)
    return run.wiped_between(before.t - COMMAND, event.t)


def ghosts(run: Run) -> Iterator[Violation]:
    """No ended attempt stands at the server, and no attempt that was given up acts."""
    assert run.ahead is not None or not run.standing
    stands: dict[tuple[str, WaiterId, int], int] = {}  # since when each was seen
    for event in run.standing:
        now = {
            (key, *_waiter(member, held=held))
            for held, keys in ((True, event["holders"]), (False, event["queues"]))
            for key, members in keys.items()
            for member in members
        }
        stands = {one: stands.get(one, event["since"]) for one in now}
        for (key, waiter, fence), first in stands.items():
            server = run.server_of(key)
            text = _haunts(run, waiter, fence, first, event["since"], server)
            if text:
                attempt = run.attempts.get(run.waiters.get(waiter, ""))
                whose = attempt.id if attempt else f"{waiter.client}#{waiter.seq}"
                text = f"{whose} {text} of {key}"
                if attempt is None:
                    yield Violation("ghosts", text, (event,))
                else:
                    yield run.violation("ghosts", text, attempt)


def _waiter(member: str, *, held: bool) -> tuple[WaiterId, int]:
    """A waiter as `Run.waiters` has it, and the fence of its grant: 0 in a queue."""
    waiter, _, fence = member.rpartition(":") if held else (member, "", "0")
    return waiter_of(waiter), int(fence)


def _haunts(  # noqa: C901, PLR0917  # which waiter was seen, and where, and all that excuses it
    run: Run, waiter: WaiterId, fence: int, first: int, seen: int, server: int | None
) -> str:
    """The fault of a waiter that was seen at the server from ``first`` to ``seen``, if any."""
    who = run.who_is(waiter)
    if who is None:
        return ""  # a client that the history does not know: of a mark, for example
    where = "was among the holders" if fence else "stood in the queue"
    if fence:
        waiter = run.bearer(waiter)
    over = run.over.get(waiter)
    alive = who not in run.killed or seen < run.killed[who]["since"]
    if over is not None and not run.wiped_between(over - COMMAND, seen):
        assert run.ahead is not None
        begun = fence * 1000 - run.ahead if fence else first
        # A waiter that got a grant by a copy gives it back as soon as it hears of it.
        heard = not fence or not run.disturbed(who, begun, seen)
        if server is not None:  # a majority has heard of the release, and perhaps not this one
            heard = not run.disturbed_at(who, server, min(over - LAG, begun), seen)
        if seen - max(over, begun) > NS // 2 and heard and alive:
            return f"{where} {(seen - over) / NS:.3f} s after it was released,"
    attempt = run.attempts.get(run.waiters.get(waiter, ""))
    if attempt is None or (attempt.ended is None and who not in run.killed):
        return ""
    ended = attempt.ended.t if attempt.ended else run.gone(who)
    # Nothing is heard of the dead, and their commands may come late; but no lease outlasts that.
    undisturbed = attempt.ended is not None and not run.disturbed_at(who, server, ended, seen)
    due = ended + attempt.ttl + (run.claim if undisturbed else max(run.claim, LATE + LAG))
    if not alive:
        due = max(due, run.lasting_of_the_dead(who))
    closing = run.closing(who, ended, seen) if server is not None else None
    if closing is not None and run.disturbed_at(who, server, closing, closing + CLOSE):
        # Until then it may have sent unanswered commands again, and not the later ones.
        due = max(due, closing + attempt.ttl + LATE + LAG)
    if server is not None and fence and alive and run.restored(server, ended, seen):
        # Its place is back, and may have its turn: its client gives that vote back when it hears
        # of it, and does not confirm it.
        assert run.ahead is not None
        due = max(due, fence * 1000 - run.ahead + run.claim + LAG)
    if seen > due and (fence or undisturbed):
        return f"{where} {(seen - ended) / NS:.3f} s after it had ended,"
    return ""


def books(run: Run) -> Iterator[Violation]:
    """An observer's events of each request have an order, and an end when its client has ended."""
    for event in run.of("observed"):
        for text in event["wrong"]:
            yield Violation("books", f"{event.who} was told that {text}", (event,))
        for request in event["left"]:
            text = f"{event.who} was not told what became of {request}"
            yield Violation("books", text, (event,))


def refusals(run: Run) -> Iterator[Violation]:
    """A refusal that passes puts no waiter out of the queue that has time left."""
    for attempt in run.attempts.values():
        ended = attempt.ended
        if ended is None or attempt.outcome != "StoreError" or not attempt.queued:
            continue
        if attempt.entered is None and run.refused_only(
            attempt.who, max(attempt.asked.t, ended.t - COMMAND - LAG), ended.t
        ):
            text = f"{attempt.id} was thrown out of the queue by a refusal that passed"
            yield run.violation("refusals", text, attempt)


def accounts(run: Run) -> Iterator[Violation]:
    """Of undisturbed bodies that want a lock in common, one runs at a time."""
    bodies: dict[str, list[tuple[int, int, Event]]] = defaultdict(list)
    begun: dict[str, Event] = {}
    for event in run.events:
        if event.kind == "has":
            begun[event["a"]] = event
        elif event.kind == "had" and not run.disturbed(event.who, begun[event["a"]].t, event.t):
            began = begun[event["a"]]
            for name in began["names"]:
                bodies[name].append((began.t, event.t, began))
    for name, spans in bodies.items():
        for (_, end, one), (begin, _, other) in pairwise(sorted(spans, key=lambda span: span[0])):
            if begin < end and not run.wiped_between(one.t, other.t):
                text = f"{other['a']} took {name!r} among others while {one['a']} had it"
                yield Violation("accounts", text, (one, other))


def handing_on(run: Run) -> Iterator[Violation]:
    """What is handed on is adopted once, and nobody has it in between."""
    for name, entries in run.entries.items():
        by_fence = sorted(entries, key=lambda attempt: attempt.fence)
        fences_ = [attempt.fence for attempt in by_fence]
        adopted: dict[int, Acquisition] = {}
        for attempt in entries:
            if not attempt.adopts:
                continue
            first = adopted.setdefault(attempt.adopts, attempt)
            if first is not attempt:
                text = f"{attempt.id} adopted of {name!r} what {first.id} had adopted"
                yield run.violation("handing_on", text, first, attempt)
            begin, end = bisect_right(fences_, attempt.adopts), bisect_left(fences_, attempt.fence)
            for other in by_fence[begin:end]:
                text = f"{other.id} entered {name!r} before {attempt.id}, to which it was handed on"
                yield run.violation("handing_on", text, other, attempt)
    for attempt in run.attempts.values():
        if attempt.adopts and attempt.outcome == "TokenSpent" and not run.may_be_spent(attempt):
            text = f"the token of {attempt.id} was spent, and nobody had used it"
            yield run.violation("handing_on", text, attempt)


def elections(run: Run) -> Iterator[Violation]:
    """A client that is seen to lead does; an observer sees each leader once, in their order."""
    seen: dict[str, int] = {}
    for event in run.of("saw"):
        watch = event["o"]
        if event["fence"] <= seen.get(watch, 0):
            text = f"{watch} saw {event['value']} lead, after a later one"
            yield Violation("elections", text, (event,))
        seen[watch] = event["fence"]
        leader = run.attempts.get(event["value"])
        if leader is None or (leader.entered is not None and leader.fence != event["fence"]):
            text = f"{watch} saw {event['value']} lead, who did not"
            yield Violation("elections", text, (event,))


def observers(run: Run) -> Iterator[Violation]:
    """An observer that is not busy with another leader sees each leader that stays."""
    reigns = [a for those in run.entries.values() for a in those if a.asked["campaign"]]
    reigns.sort(key=lambda attempt: attempt.fence)
    fences_ = [attempt.fence for attempt in reigns]
    for began, saw, last in _watches(run):
        for leader in reigns[bisect_right(fences_, last) :]:
            assert leader.entered is not None
            since = max(began.t, leader.entered.t)
            due = since + LAG
            if leader.entered.t > saw or due > min(saw, run.span(leader)[1]):
                continue
            wipe = max((wipe.t for wipe in run.wipes if began.t < wipe.t <= due), default=None)
            if (
                run.disturbed(began.who, since, due)
                or run.closing(began.who, began.t, due) is not None
                # Its place in the queue is gone, and it may not know that yet.
                or (wipe is not None and not run.reconnected(began.who, wipe, since))
            ):
                continue
            text = f"{began['o']} did not see {leader.id} lead for {(saw - since) / NS:.3f} s"
            violation = run.violation("observers", text, leader)
            yield replace(violation, excerpt=(began, *violation.excerpt))
            break


def _watches(run: Run) -> Iterator[tuple[Event, int, int]]:
    """Since when an observer waited for the next leader, until when, and the last one it saw."""
    waits: dict[str, Event] = {}
    last: dict[str, int] = {}
    for event in run.of("watches", "looks", "saw", "watched"):
        watch = event["o"]
        if event.kind in {"watches", "looks"}:
            waits[watch] = event
        elif watch in waits:
            yield waits.pop(watch), event.t, last.get(watch, 0)
        if event.kind == "saw":
            last[watch] = event["fence"]
    for watch, began in waits.items():
        killed = run.killed.get(began.who)
        yield began, killed["since"] if killed else run.events[-1].t, last.get(watch, 0)


RULES: Final[tuple[Rule, ...]] = (
    exclusion,
    entering,
    fences,
    order,
    tickets,
    everywhere,
    starvation,
    endings,
    timeouts,
    cancellations,
    tellings,
    exits,
    losses,
    errors,
    revivals,
    idleness,
    forgotten,
    final,
    left_over,
    crashes,
    periods,
    meetings,
    latches,
    messages,
    done,
    unknowns,
    accounts,
    handing_on,
    rates,
    paths,
    elections,
    observers,
    looks,
    ghosts,
    refusals,
    books,
)


def check(run: Run) -> list[Violation]:
    """All violations in a history."""
    return [violation for rule in RULES for violation in rule(run)]
