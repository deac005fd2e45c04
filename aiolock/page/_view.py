"""The view of a viewer, as JSON: the locks that it wants to see, or one of them."""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Callable, Mapping
from fnmatch import translate
from itertools import islice
from typing import Any, Final, NamedTuple

from aiolock import LockClient, Participant, Status
from aiolock.page._history import History
from aiolock.page._http import Refused
from aiolock.page._limits import Limits
from aiolock.page._look import Key, Look, Rows, Seen, View
from aiolock.page._pace import Pace, parts

SORTS: Final[Mapping[str, Callable[[Seen], tuple[Any, ...]]]] = {
    "wait": lambda lock: (not lock.waiting, -lock.longest, -lock.held, *lock.key),
    "held": lambda lock: (-lock.held, -lock.longest, *lock.key),
    "queue": lambda lock: (-lock.waiting, -lock.longest, *lock.key),
    "name": lambda lock: (lock.status.name, lock.status.kind),
}
_PATTERN: Final = frozenset("*?[")
_PAGE: Final = re.compile("[1-9][0-9]{0,6}")
_TEXT: Final = 4_000
"""Characters of the text of a deadlock."""


class Wanted(NamedTuple):
    """The selection that a viewer wants to see."""

    text: str
    """A part of the name; or a pattern for it, as in `LockClient.snapshot`."""
    kind: str
    """Empty for all."""
    sort: str
    page: int = 1
    """Which part of them, in that order."""

    @classmethod
    def of(cls, query: Mapping[str, str], limits: Limits) -> Wanted:
        """The selection of a query; `Refused` for an invalid one."""
        text, kind, sort = (query.get(key, "") for key in ("q", "kind", "sort"))
        if len(text) > limits.text:
            raise Refused(400, f"search for {limits.text} characters at most")
        if kind and kind not in LockClient.KINDS:
            raise Refused(400, f"kind must be one of {', '.join(LockClient.KINDS)}")
        if (sort or "wait") not in SORTS:
            raise Refused(400, f"sort must be one of {', '.join(SORTS)}")
        page = query.get("page") or "1"
        if not _PAGE.fullmatch(page):
            raise Refused(400, "page must be a number, from 1 on")
        return cls(text, kind, sort or "wait", int(page))

    def check(self) -> Callable[[Seen], object]:
        """A function that returns whether a lock is wanted."""
        if not self.text:
            return lambda _: True
        if _PATTERN.isdisjoint(self.text):
            text = self.text.casefold()
            return lambda lock: text in lock.folded
        matches = re.compile(translate(self.text)).match
        return lambda lock: matches(lock.status.name)


async def rendered(look: Look, wanted: Wanted, history: History, limits: Limits) -> View:
    """All that a viewer sees of a look."""
    return with_rows(look, await _rows(look, wanted, limits), history, limits)


def with_rows(look: Look, rows: Rows, history: History, limits: Limits) -> View:
    """The view with these rows."""
    return View(rows, dumped(_rendered(look, rows, history, limits)))


async def _rows(look: Look, wanted: Wanted, limits: Limits) -> Rows:
    """Those on the wanted page; on the last one, if there are fewer pages by now."""
    pace, is_wanted, order = Pace(), wanted.check(), SORTS[wanted.sort]
    runs, matching = list[list[Seen]](), 0
    for part in parts(look.seen.values()):
        found = [
            lock
            for lock in part
            if (not wanted.kind or lock.status.kind == wanted.kind) and is_wanted(lock)
        ]
        found.sort(key=order)
        runs.append(found)
        matching += len(found)
        await pace.step(len(part))
    last = max(0, matching - 1) // limits.rows
    before = min(wanted.page - 1, last) * limits.rows
    ordered = heapq.merge(*runs, key=order)
    for part in parts(islice(ordered, before)):
        await pace.step(len(part))
    return Rows(list(islice(ordered, limits.rows)), before, matching)


def dumped(value: object) -> bytes:
    """A value as JSON: ASCII on one line, whatever is in a name."""
    return json.dumps(value, separators=(",", ":")).encode()


def _rendered(look: Look, rows: Rows, history: History, limits: Limits) -> dict[str, Any]:
    blocked = {(each.kind, each.name) for deadlock in look.deadlocks for each in deadlock.cycle}
    return {
        "error": look.error,
        "closed": look.closed,
        "took": _short(look.took),
        "totals": {**look.totals._asdict(), "longest": _short(look.totals.longest)},
        "matching": rows.matching,
        "before": rows.before,
        "page": rows.before // limits.rows + 1,
        "rows": [
            _row(lock, lock.key in blocked, history.growth(lock.key, look.at, look.every))
            for lock in rows.locks
        ],
        "deadlocks": [
            {
                "text": str(deadlock)[:_TEXT],
                "cycle": [[each.kind, each.name] for each in deadlock.cycle],
            }
            for deadlock in look.deadlocks[: limits.deadlocks]
        ],
        "more_deadlocks": max(0, len(look.deadlocks) - limits.deadlocks),
    }


def _row(lock: Seen, blocked: bool, growth: int) -> dict[str, Any]:  # noqa: FBT001  # one of three
    status = lock.status
    first = status.holders[0] if status.holders else None
    return {
        "kind": status.kind,
        "name": status.name,
        "holder": _holder(status, first) if first else None,
        "holders": len(status.holders),
        "held": _short(lock.held),
        "lease": _short(min((each.remaining for each in status.holders), default=0.0)),
        "waiting": lock.waiting,
        "longest": _short(lock.longest),
        "closed": _short(status.closed),
        "limit": status.limit,
        "taken": sum(each.permits for each in status.holders),
        "dead": lock.dead,
        "growth": growth,
        "blocked": blocked,
    }


def detail(status: Status, history: History, now: float, limits: Limits) -> dict[str, Any]:
    """One lock: its holders and waiters, up to a limit of each."""
    key: Key = (status.kind, status.name)
    shares = status.shares
    return {
        "kind": status.kind,
        "name": status.name,
        "closed": _short(status.closed),
        "limit": status.limit,
        "interval": status.interval and float(f"{status.interval:g}"),
        "shares": [*islice(shares.items(), limits.parties)],
        "more_shares": max(0, len(shares) - limits.parties),
        "holders": [_party(each, status) for each in status.holders[: limits.parties]],
        "waiters": [_party(each, status) for each in status.waiters[: limits.parties]],
        "more_holders": max(0, len(status.holders) - limits.parties),
        "more_waiters": max(0, len(status.waiters) - limits.parties),
        "history": [
            *([_short(now - at), waiting] for at, waiting in history.queue(key)),
            [0.0, len(status.waiters)],
        ],
    }


def _who(party: Participant) -> dict[str, Any]:
    return {
        "label": party.label,
        "host": party.host,
        "pid": party.pid,
        "client": party.client[:6],
        "seq": party.seq,
        "alive": party.alive,
        "detached": party.detached,
    }


def _holder(status: Status, first: Participant) -> dict[str, Any]:
    """The first holder, or, of a node of a path that nobody has itself, how many are below."""
    if all(each.below for each in status.holders):
        return {**_who(first), "label": f"{status.below} below"}
    return _who(first)


def _party(party: Participant, status: Status) -> dict[str, Any]:
    return {
        **_who(party),
        "since": _short(status.now - party.since),
        "place": party.place,
        "fence": str(party.fence),  # a number in JavaScript has only 53 bits
        "lease": _short(party.remaining),
        "as": status.role_of(party),
    }


def _short(seconds: float) -> float:
    return round(max(0.0, seconds), 2)
