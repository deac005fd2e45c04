"""The checker's rules for several servers that vote: see `tests.proof.chaos.checker` for all rules.

A fault of a minority of the servers excuses nothing. The history has each server's answers as each
process has heard them: that a waiter stands there, when its vote was given, which names it knows to
be done, and which value is posted there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import accumulate
from typing import Final

from tests.proof.chaos.history import Event
from tests.proof.chaos.run import COMMAND, LAG, NS, ROUND_TRIP, TICK, Acquisition, Run, Violation

_BOARD: Final = "elected:primary"
"""The name under which the leader's value is posted."""


def tickets(run: Run) -> Iterator[Violation]:
    """A waiter that asks later has the higher ticket, by which all servers order their lines.

    Later by a round trip, for a client knows the servers' clocks no better than that; and on a busy
    machine each of its answers may be late. One that has just opened has heard few.
    """
    given = defaultdict[str, list[Acquisition]](list)
    for attempt in run.attempts.values():
        if attempt.ticket:
            given[attempt.name].append(attempt)
    for attempts in given.values():
        attempts.sort(key=lambda attempt: attempt.sent)
        times = [attempt.sent for attempt in attempts]
        highest = list(accumulate(attempts, _higher))
        for attempt in attempts:
            asked = attempt.asked.t
            knows = max(ROUND_TRIP, attempt.round_trip, min(LAG, run.opening(attempt.who, asked)))
            before = bisect_left(times, asked - knows)
            if not before or highest[before - 1].ticket <= attempt.ticket:
                continue
            if not run.disturbed(attempt.who, asked - NS, asked + ROUND_TRIP):
                other = highest[before - 1]
                text = f"{attempt.id} asked for {attempt.name!r} after {other.id}: a lower ticket"
                yield run.violation("tickets", text, other, attempt)


def _higher(one: Acquisition, two: Acquisition) -> Acquisition:
    return two if two.ticket > one.ticket else one


def everywhere(run: Run) -> Iterator[Violation]:
    """A waiter stands at each server that it can reach."""
    for attempt in run.attempts.values():
        until = attempt.waited_until
        asked = attempt.asked.t
        if until is None or until <= asked + LAG or not attempt.ticket:
            continue
        for server in range(run.servers):
            stands = attempt.stands.get(server)
            if stands or run.disturbed_at(attempt.who, server, asked, asked + LAG):
                continue
            text = f"{attempt.id} waited for {(until - asked) / NS:.3f} s, and not at {server}"
            yield run.violation("everywhere", text, attempt)


def readers_in_order(run: Run) -> Iterator[Violation]:
    """A reader has its first vote at a server no later than one that came there after it.

    Fences of readers say nothing of their order, so this is told at each server.
    """
    for name, entries in run.entries.items():
        readers = [attempt for attempt in entries if attempt.shared]
        for server in range(run.servers):
            here = [a for a in readers if server in a.first_votes and a.stands.get(server)]
            here.sort(key=lambda attempt: attempt.stands[server][0][0])
            times = [attempt.stands[server][0][0] for attempt in here]
            votes = [attempt.first_votes[server] for attempt in here]
            earliest = list(accumulate(reversed(votes), min))[::-1]
            for attempt in here:
                assert attempt.entered is not None
                clear = run.clear_at(attempt, server, attempt.entered.t)
                said = [said for asked, said in attempt.stands[server] if asked >= clear][:1]
                after = bisect_right(times, said[0]) if said else len(here)
                if after == len(here) or earliest[after] >= attempt.first_votes[server]:
                    continue
                for other in here[after:]:
                    sooner = other.first_votes[server] < attempt.first_votes[server]
                    if sooner and other.ticket >= attempt.ticket:
                        text = f"{other.id} had a vote for {name!r} at {server} before {attempt.id}"
                        yield run.violation("order", f"{text}, which stood there", attempt, other)
                        break


def starvation(run: Run) -> Iterator[Violation]:
    """No attempt overtakes a waiter that stands at a majority, even if it gives up before its turn.

    Readers may overtake a reader.
    """
    for attempt in run.attempts.values():
        until = _gave_up(run, attempt)
        stood = run.stood_since(attempt, until) if until is not None else None
        if until is None or stood is None or not attempt.ticket:
            continue
        entries = run.entries.get(attempt.name, [])
        # The client that has the lock may hand it on among its own waiters for a moment.
        begin = bisect_left(entries, stood + ROUND_TRIP, key=_entered)
        for other in entries[begin : bisect_left(entries, until, key=_entered)]:
            if other.asked.t <= stood or other.ticket < attempt.ticket:
                continue
            if not (other.shared and attempt.shared):
                text = f"{other.id} entered {attempt.name!r}, and {attempt.id} stood before it"
                yield run.violation("starvation", f"{text} and gave up later", attempt, other)
                break


def _entered(attempt: Acquisition) -> int:
    assert attempt.entered is not None
    return attempt.entered.t


def _gave_up(run: Run, attempt: Acquisition) -> int | None:
    """Until when an attempt that gave up has certainly waited; None for all other attempts."""
    ended = attempt.ended
    if attempt.entered is not None or ended is None or not attempt.asked["wait"]:
        return None
    if attempt.outcome not in {"cancelled", "none", "AcquireTimeout", "TimeoutError"}:
        return None
    ends = [ended.t]
    if attempt.asked["timeout"] is not None:
        ends.append(attempt.asked.t + int(attempt.asked["timeout"] * NS) - TICK)
    if attempt.cancelling is not None:
        ends.append(attempt.cancelling)
    closing = run.closing(attempt.who, attempt.asked.t, ended.t)
    if closing is not None:
        ends.append(closing)
    return min(ends)


# What is done once


def done(run: Run) -> Iterator[Violation]:
    """A majority has the mark before any client is told "done", and no body begins after that.

    Two exceptions: all servers that had the mark when the client was told have lost their memory;
    or the body had begun before, so that its fence is lower, or its process stood still at that
    moment. Two bodies never run at a time.
    """
    if not run.servers:
        return
    knowing: dict[str, set[int]] = defaultdict(set)
    told: dict[int, Event] = {}
    fences: dict[int, int] = defaultdict(int)
    for event in run.of("marked", "handling", "handled", "knows", "begins"):
        if event.kind == "marked":
            knowing[event["n"]].add(event["server"])
            continue
        message = event["message"]
        name = f"once:message {message}"
        if event.kind == "handling":
            fences[message] = max(fences[message], event["fence"])
        elif event.kind == "begins":
            before = told.get(message)
            if before is None or event["fence"] < fences[message]:
                continue
            stood_still = run.stalls[event.who].touch(before.t, before.t)
            if not stood_still and (those := run.still_done(name, before.t, event.t)):
                text = f"{event['a']} began message {message}, which was done, as {those} knew"
                yield Violation("done", text, (before, event))
        else:
            if len(knowing[name]) < run.most:
                text = f"{event['a']} was told that message {message} is done, and no majority was"
                yield Violation("done", text, (event,))
            told[message] = event
    yield from _done_alone(run)


def _done_alone(run: Run) -> Iterator[Violation]:
    """Bodies that handle one message, as long as their leases last, do so one at a time."""
    stops = {event["a"]: event.t for event in run.of("stops")}
    last: dict[int, tuple[int, Event]] = {}
    for event in run.of("begins"):
        ends = [event["deadline"], stops.get(event["a"], event["deadline"])]
        if event.who in run.killed:
            ends.append(run.killed[event.who].t)
        closing = run.closing(event.who, event.t, event["deadline"])
        if closing is not None:
            ends.append(closing)
        end, before = last.get(event["message"], (0, event))
        if event.t < min(end, *ends):
            text = f"{event['a']} began message {event['message']} beside {before['a']}"
            yield Violation("done", text, (before, event))
        last[event["message"]] = max((end, before), (min(ends), event), key=lambda each: each[0])


def unknowns(run: Run) -> Iterator[Violation]:
    """A client says "nobody knows whether it is handled" only if too few servers could say so.

    Too few are fewer than a majority of all servers, and not all of those that have not lost their
    memory.
    """
    wants: dict[str, Event] = {}
    for event in run.of("wants", "apart"):
        if event.kind == "wants":
            wants[event["a"]] = event
            continue
        asked = wants.get(event["a"])
        if not run.servers or asked is None or event["outcome"] != "StoreError":
            continue
        begin, who = max(asked.t, event.t - COMMAND - LAG), event.who
        if (
            run.disturbed(who, begin, event.t)
            or run.unsure(who, begin, event.t)
            or run.closing(who, asked.t, event.t) is not None
        ):
            continue
        text = f"{event['a']} was told that nobody knows, though enough of the servers did"
        yield Violation("unknowns", text, (asked, event))


# Elections


def looks(run: Run) -> Iterator[Violation]:
    """Of two clients that ask for the leader, the later is not told of an earlier leader.

    The exception: so many servers have lost their memory since that no majority knows of the later
    one. A client that is said to lead does lead, and a client that asks is answered, and soon.
    """
    if not run.servers:
        return
    told = sorted(_told(run), key=lambda each: each[0])
    heard = sorted(told, key=lambda each: each[1].t)
    latest, index = None, 0
    for begin, event in told:
        while index < len(heard) and heard[index][1].t < begin:
            one = heard[index][1]
            if latest is None or one["fence"] > latest["fence"]:
                latest = one
            index += 1
        if latest is None or event["fence"] >= latest["fence"]:
            continue
        had, has = run.kept_by(_BOARD, latest["fence"], latest.t, event.t)
        if had == has or len(has) >= run.most:
            text = f"{event.who} was told that {event['value']} leads, after {latest['value']} did"
            yield Violation("looks", text, (latest, event))
    yield from _asked(run)


def _told(run: Run) -> Iterator[tuple[int, Event]]:
    """All answers about a leader, and when each was asked for."""
    asked: dict[str, int] = {}
    for event in run.of("watches", "looks", "saw", "looked"):
        if event.kind == "looked":
            if event["fence"]:
                yield event["since"], event
        elif event.kind == "saw":
            yield asked[event["o"]], event
        else:
            asked[event["o"]] = event.t


def _asked(run: Run) -> Iterator[Violation]:
    for event in run.of("looked"):
        since, who = event["since"], event.who
        leader = run.attempts.get(event["value"])
        if event["fence"] and (
            leader is None or (leader.entered is not None and leader.fence != event["fence"])
        ):
            text = f"{who} was told that {event['value']} leads, who did not"
            yield Violation("looks", text, (event,))
        if (
            run.disturbed(who, since - LAG, event.t)
            or run.closing(who, since - LAG, event.t) is not None
        ):
            continue
        if event["outcome"] == "ClientClosed" and run.closing(who, 0, event.t) is not None:
            continue  # and no other is open yet
        if event["outcome"] != "ok":
            text = f"{who} was not told who leads: {event['outcome']}"
            yield Violation("looks", text, (event,))
        elif event.t - since > LAG:
            text = f"{who} was told who leads after {(event.t - since) / NS:.3f} s"
            yield Violation("looks", text, (event,))
