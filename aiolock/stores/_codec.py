"""The state of a name, and a push that waits to be fetched, written down as JSON."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import lru_cache
from typing import Any, Final

from aiolock.protocol import (
    AskAgain,
    Form,
    GrantLost,
    GrantPushed,
    OrderUnknown,
    ReleaseRequested,
    Rule,
    WaiterId,
)
from aiolock.stores._bucket import Bucket
from aiolock.stores._effects import Push
from aiolock.stores._holders import Grant, Holder
from aiolock.stores._sessions import FOREVER
from aiolock.stores._state import NameState

UNREADABLE: Final = (KeyError, TypeError, ValueError)
"""The errors of decoding something that a later version has written."""
_dumps: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


FORM: Final = tuple(each for each in fields(Form) if each.init and each.compare)
"""What is written of a form, in this order. A later version adds to its end only."""
_ALWAYS: Final = 12
"""How many of these are always written; of the others, as many as are not the default."""


@lru_cache(maxsize=1024)
def _form_data(form: Form) -> tuple[Any, ...]:
    values = [getattr(form, each.name) for each in FORM]
    while len(values) > _ALWAYS and values[-1] == FORM[len(values) - 1].default:
        values.pop()
    return tuple(value.value if isinstance(value, Rule) else value for value in values)


@lru_cache(maxsize=1024)
def _form(*data: Any) -> Form:
    claim, shared, rule, *others = data[: len(FORM)]  # a later version may have written more
    return Form(claim, shared, Rule(rule), *others)


def encode(state: NameState) -> str:
    """The state of a name as text; each form is written once."""
    forms = dict[Form, int]()

    def number(form: Form) -> int:
        return forms.setdefault(form, len(forms))

    holders = [
        (*waiter, fence, number(holder.form), holder.end, holder.shared, holder.claim)
        if not holder.session
        else (
            *(*waiter, fence, number(holder.form), holder.end - FOREVER, holder.shared),
            *(holder.claim, holder.session),
        )
        for (waiter, fence), holder in state.holders.items()
    ]
    queue = [(ticket, *waiter, number(state.waiting[waiter][1])) for ticket, waiter in state.queue]
    data: dict[str, Any] = {"holders": holders, "queue": queue}
    if state.tombstones:
        data["given_up"] = [(*waiter, until) for waiter, until in state.tombstones.items()]
    if state.resized or state.until or state.limit is not None or state.count or state.value:
        data["numbers"] = [
            state.until,
            state.limit,
            state.declared,
            state.count,
            sorted(state.tokens),
            state.value,
            [(token, *known) for token, known in state.resized.items()],
        ]
    if (bucket := state.bucket) is not None:
        granted = [(*waiter, until) for waiter, until in bucket.granted.items()]
        data["bucket"] = (bucket.full_at, bucket.outdated, bucket.told, granted)
    shares = state.holders.shares
    if shares is not None and (saved := list(shares.saved())):
        data["shares"] = saved
    data["forms"] = [_form_data(form)[:_ALWAYS] for form in forms]
    # Apart from the others: some earlier versions cannot read a longer form.
    more = [(number, *_form_data(form)[_ALWAYS:]) for form, number in forms.items()]
    if more := [each for each in more if len(each) > 1]:
        data["more"] = more
    return _dumps(data)


def decode(text: str) -> NameState:
    """The state that was encoded."""
    data = json.loads(text)
    more = {number: rest for number, *rest in data.get("more", ())}
    forms: list[Form] = [
        _form(*each[:_ALWAYS], *more.get(place, ())) for place, each in enumerate(data["forms"])
    ]
    state = NameState()
    number: int
    for client, seq, fence, number, end, shared, claim, *session in data["holders"]:
        holder = Holder(
            Grant(WaiterId(client, seq), fence), forms[number], end, shared=shared, claim=claim
        )
        if session:
            (holder.session,) = session
            holder.end += FOREVER
        state.holders.add(holder)
    for ticket, client, seq, number in data["queue"]:
        waiter = WaiterId(client, seq)
        state.queue.append((ticket, waiter))
        state.waiting[waiter] = ticket, forms[number]
        if forms[number].share:
            state.holders.made_shares().join(ticket, waiter, forms[number])
    for priority, virtual, starts in data.get("shares", ()):
        state.holders.made_shares().restore(priority, virtual, starts)
    for client, seq, until in data.get("given_up", ()):
        state.tombstones[WaiterId(client, seq)] = until
    if "numbers" in data:
        (
            state.until,
            state.limit,
            state.declared,
            state.count,
            tokens,
            state.value,
            resized,
        ) = data["numbers"]
        state.tokens.update(tokens)
        state.resized = {token: (before, until) for token, before, until in resized}
    if "bucket" in data:
        bucket = state.bucket = Bucket()
        bucket.full_at, bucket.outdated, bucket.told, granted = data["bucket"]
        bucket.granted = {WaiterId(client, seq): until for client, seq, until in granted}
    return state


def encode_push(push: Push) -> str:
    """A push for a client of another process, as text without the name."""
    data: tuple[Any, ...]
    match push.event:
        case GrantPushed(_, waiter, form, fence, lease, now):
            data = ("granted", *waiter, _form_data(form), fence, lease, now)
        case GrantLost(_, waiter, fence, reason):
            data = ("lost", *waiter, fence, reason)
        case ReleaseRequested(_, waiter, fence):
            data = ("requested", *waiter, fence)
        case OrderUnknown(_, waiter):
            data = ("void", *waiter)
        case AskAgain():
            data = ("done", push.client, 0)  # the number of a waiter, which nobody reads
    return _dumps(data)


def decode_push(text: str, name: str) -> Push:
    """The push about ``name`` that was encoded; `ValueError` for one of an unknown kind."""
    kind, client, seq, *rest = json.loads(text)
    waiter = WaiterId(client, seq)
    match kind, rest:
        case "granted", [form, fence, lease, now]:
            return Push(client, GrantPushed(name, waiter, _form(*form), fence, lease, now))
        case "lost", [fence, reason]:
            return Push(client, GrantLost(name, waiter, fence, reason))
        case "requested", [fence]:
            return Push(client, ReleaseRequested(name, waiter, fence))
        case "void", []:
            return Push(client, OrderUnknown(name, waiter))
        case "done", []:
            return Push(client, AskAgain(name))
        case _:
            raise ValueError(f"no push: {text!r}")
