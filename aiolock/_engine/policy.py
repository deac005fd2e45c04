"""The options of a lock, checked and converted once: a `Policy` that exists is valid.

Seconds become milliseconds here and nowhere else (`to_ms`), for the store and the wire.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Final, TypeVar, overload

from aiolock._engine.shares import checked_share
from aiolock.errors import LockError
from aiolock.options import OnLost, Seconds
from aiolock.protocol import CLAIM, KEEP_ALIVE, Form, Rule, lasts
from aiolock.validation import (
    LONGEST_TTL,
    SHORTEST_TTL,
    checked_label,
    checked_name,
    checked_number,
    checked_timeout,
    checked_ttl,
    seconds,
)

_MOST_FORMS: Final = 1024
_forms: Final[dict[tuple[Form, int], Form]] = {}

Error = TypeVar("Error", bound=LockError)
Raised = TypeVar("Raised", bound=BaseException)

MOST_URGENT = 9
"""The limit of `Policy.priority`, in both directions."""


@overload
def plain(value: Seconds) -> float: ...


@overload
def plain(value: Seconds | None) -> float | None: ...


def plain(value: Seconds | None) -> float | None:
    """A duration as a number of seconds; `seconds` checks other values, which stay as they are."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def to_ms(value: float) -> int:
    """Seconds as whole milliseconds, as on the wire. They are converted only here."""
    return max(1, round(value * 1000))


def interned(form: Form) -> Form:
    """The one object for all forms like this one, so that they can be compared by ``is``."""
    if form.share:  # nothing is handed off locally, and there may be many
        return form
    key = form, form.remember  # which a form does not compare
    if len(_forms) >= _MOST_FORMS and key not in _forms:
        _forms.clear()
    return _forms.setdefault(key, form)


def _ms_or_0(value: float | None) -> int:
    return to_ms(value) if value else 0


@dataclass(frozen=True, slots=True)
class Policy:
    """The options of one lock; see `LockClient.lock` for each field."""

    name: str
    ttl: float
    timeout: float | None = None
    renew: bool = True
    reentrant: bool = False
    max_waiters: int | None = None
    max_hold: float | None = None
    on_lost: OnLost = "cancel"
    min_hold: float | None = None
    lock_delay: float | None = None
    confirm: bool = True
    priority: int = 0
    share: str | None = None
    weight: float = 1.0
    every: float | None = None
    once: bool = False
    remember: int = 0
    """With `once`: for how many ms the store remembers that the work is done."""
    shared: bool = False
    downgrades: bool = False
    kind: str = "lock"
    """The kind of primitive, which is a key space: a lock and a latch of the same name do not
    collide. A word without a colon."""
    rule: Rule = Rule.ALWAYS
    """For a shared lock: when a waiter may enter; the numbers of that rule follow (see `Form`)."""
    number: int = 0
    declared: int = 0
    family: str | None = None
    """The common name of such locks, if the user gave one: see `of_family`."""
    key: str = field(init=False)
    """The name at the store: the kind, which ends with the first colon, and the name."""
    cancels: bool = field(init=False)
    """A loss cancels the body: ``on_lost``."""
    most: int = field(init=False)
    """``max_waiters``, or 0 for no such limit."""
    claim: int = field(init=False)
    """The shortest lease of a grant, in ms: after it, a waiter asks who holds the lock."""
    usual: bool = field(init=False)
    """It is held until its release and renewed: no ``every``, ``max_hold`` or ``renew=False``."""
    passes: bool = field(init=False)
    """A waiter with a grant continues and holds nothing, so the grant may have ended by then."""
    lease: int = field(init=False)
    """The length of the lease to ask for, in ms: ``ttl``, or ``max_hold`` if that is less."""
    lasts: float = field(init=False)
    """The seconds for which such a lease is certainly ours: see `protocol.lasts`."""
    form: Form = field(init=False)
    """The options that the store needs with each waiter."""

    @property
    def released_by_name(self) -> bool:
        """Whether its owner can release it without the lease, by `Lock.release`."""
        return self.kind == "lock"

    def __post_init__(self) -> None:
        checked_name(self.name)
        checked_ttl(self.ttl)
        checked_timeout(self.timeout)
        checked_label("family", self.family)
        if self.max_hold is not None:
            seconds("max_hold (or None)", self.max_hold, least=SHORTEST_TTL, most=LONGEST_TTL)
        for what in ("min_hold", "lock_delay", "every"):
            if getattr(self, what) is not None:
                least = SHORTEST_TTL if what == "every" else 0
                seconds(f"{what} (or None)", getattr(self, what), least=least, most=LONGEST_TTL)
        if self.max_waiters is not None:
            if isinstance(self.max_waiters, bool) or not isinstance(self.max_waiters, int):
                raise TypeError(f"max_waiters must be an int or None, not {self.max_waiters!r}")
            if self.max_waiters < 1:
                raise ValueError(
                    f"max_waiters must be at least 1, not {self.max_waiters!r}:"
                    " for none at all, use try_acquire()"
                )
        for flag in ("renew", "reentrant", "confirm"):
            if not isinstance(getattr(self, flag), bool):
                raise TypeError(f"{flag} must be True or False, not {getattr(self, flag)!r}")
        checked_number("priority", self.priority, least=-MOST_URGENT, most=MOST_URGENT)
        if self.on_lost not in ("cancel", "signal"):
            raise ValueError(f"on_lost must be 'cancel' or 'signal', not {self.on_lost!r}")
        plain = self.share is None and self.weight == 1
        lease = to_ms(self.ttl if self.max_hold is None else min(self.ttl, self.max_hold))
        form = interned(
            Form(
                # A barrier's grant lasts for a full ttl, and tokens are remembered for one. So a
                # waiter that missed the push still finds it when it asks again, after a claim.
                claim=lease if self.rule in _KEPT else min(lease, CLAIM),
                shared=self.shared,
                rule=self.rule,
                number=self.number,
                declared=self.declared,
                fixed=not self.renew,
                once=self.once,
                remember=self.remember,
                downgrades=self.downgrades,
                after_loss=_ms_or_0(self.lock_delay),
                after_grant=_ms_or_0(self.min_hold),
                period=_ms_or_0(self.every),
                priority=self.priority,
                share=self.share or "",
                weight=1000 if plain else checked_share(self.share, self.weight),
            )
        )
        object.__setattr__(self, "lease", lease)  # the only way in a frozen dataclass
        object.__setattr__(self, "lasts", lasts(lease))
        object.__setattr__(self, "form", form)
        object.__setattr__(self, "key", f"{self.kind}:{self.name}")
        counts = self.rule is Rule.COUNT  # such a waiter waits for no lease
        object.__setattr__(self, "claim", KEEP_ALIVE if counts else min(lease, CLAIM))
        object.__setattr__(self, "cancels", self.on_lost == "cancel")
        object.__setattr__(self, "most", self.max_waiters or 0)
        usual = self.renew and self.max_hold is None and self.every is None
        object.__setattr__(self, "usual", usual)
        object.__setattr__(self, "passes", self.rule in _PASSING)

    def named(self, name: str) -> Policy:
        """The same options for a lock of another name, which was checked; they need no check."""
        other = object.__new__(Policy)
        for each in _FIELDS:
            object.__setattr__(other, each, getattr(self, each))
        object.__setattr__(other, "name", name)
        object.__setattr__(other, "key", f"{self.kind}:{name}")
        return other

    @property
    def called(self) -> str:
        """The kind and name, as errors give them."""
        return f"the {self.kind} {self.name!r}"

    @property
    def of_family(self) -> str:
        """A common name of such locks, for metrics: there are many names, but few families."""
        return self.family or re.sub("[0-9]+", "*", self.name.partition(":")[0])

    def with_name(self, error: Error) -> Error:
        """The error, with the kind and name of this lock."""
        error.kind, error.name = self.kind, self.name
        return error

    def with_context(self, error: Raised) -> Raised:
        """The exception; an error of the store gets the kind and name of this lock.

        As another object, because one failure of a connection may be the error of many locks.
        """
        if not isinstance(error, LockError) or error.name:
            return error
        other = type(error).__new__(type(error))
        other.args = (f"{self.called}: {error}",)
        other.__dict__.update(error.__dict__)
        other.__cause__ = error.__cause__
        return self.with_name(other)

    @contextmanager
    def errors_named(self) -> Generator[None, None, None]:
        """Add the kind and name of this lock to errors of the store that the body raises."""
        try:
            yield
        except LockError as error:
            raise self.with_context(error)  # noqa: B904  # it has the cause of the other


_KEPT: Final = (Rule.GROUP, Rule.RATE)
_PASSING: Final = (*_KEPT, Rule.COUNT)
_FIELDS: Final = tuple(each.name for each in fields(Policy))
