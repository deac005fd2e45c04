"""The codec of waiters in Redis: one text, which is a member of the queue, read by the scripts.

Only this module and the scripts (see ``lua/``) know the format::

    <mode><flags><claim>[<rule><number>[/<declared>]][<terms>][!<n>][%<share>][$<n>][#<tag>]:<client>:<seq>

The mode is ``x`` (exclusive) or ``s`` (shared). The flags: ``b`` (blind) if its client cannot be
counted, so that a count of 0 does not mean that it is dead; ``f`` `Form.fixed`; ``o`` `Form.once`;
``d`` `Form.downgrades`. The rule is one of `Rule`. The terms are ``+``, `Form.after_loss`; ``~``,
`Form.after_grant`; and ``@``, `Form.period`, each with its ms. ``!`` is `Form.priority`, ``%``
`Form.share` in base64 for URLs, ``$`` `Form.weight`; ``#`` the slot of a channel that its client
also listens to (see `_sharded`). A grant is the text of its waiter, ``:`` and the fence.

A later version may write more: other letters before the claim, and other text after it. A reader
passes over what it does not know.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from aiolock.protocol import Form, Rule, WaiterId, new
from aiolock.stores.redis._share_text import coded, decoded

RESERVED: Final = "-"
"""The client of a lock that stays closed: its grant ends like any other, but has no owner."""

_USUAL: Final = 1000
"""The weight that is not written."""
_TERM: Final = re.compile(r"([+~@])([0-9]{1,18})")
_PRIORITY: Final = re.compile(r"!(-?[0-9]{1,2})(?![0-9])")
_SHARE: Final = re.compile(r"%([A-Za-z0-9_-]+)")
_WEIGHT: Final = re.compile(r"\$([0-9]{1,9})(?![0-9])")
_FORM: Final = re.compile(
    r"([A-Za-z])([A-Za-z]*)([0-9]{1,18})(?![0-9])"
    r"(?:([*&^|=])([0-9]{1,18})(?:/([0-9]{1,18}))?)?([^:]*)"
)


def stem(form: Form, client: str, *, blind: bool) -> str:
    """The beginning of the texts of all waiters of this form and client; their number follows."""
    mode = "s" if form.shared else "x"
    flags = "b" * blind + "f" * form.fixed + "o" * form.once + "d" * form.downgrades
    rule = f"{form.rule.value}{form.number}" if form.rule is not Rule.ALWAYS else ""
    declared = f"/{form.declared}" if form.declared else ""
    terms = (("+", form.after_loss), ("~", form.after_grant), ("@", form.period))
    closing = "".join(f"{letter}{ms}" for letter, ms in terms if ms)
    priority = f"!{form.priority}" if form.priority else ""
    share = f"%{coded(form.share)}" if form.share else ""
    weight = f"${form.weight}" if form.weight != _USUAL else ""
    return f"{mode}{flags}{form.claim}{rule}{declared}{closing}{priority}{share}{weight}:{client}:"


def encode(waiter: WaiterId, form: Form, *, blind: bool) -> str:
    """The text of a waiter."""
    return f"{stem(form, waiter.client, blind=blind)}{waiter.seq}"


def tagged(text: str, tag: str) -> str:
    """The text of a waiter with the tag of its client's channel; unchanged without a tag."""
    return text.replace(":", f"#{tag}:", 1) if tag else text


def waiter_of(text: str) -> WaiterId:
    """Only the waiter's id; `ValueError` for a text that is no waiter."""
    _, client, seq = text.rsplit(":", 2)
    return new(WaiterId, (client, int(seq)))  # type: ignore[no-any-return]


def decode(text: str) -> tuple[WaiterId, Form, bool]:
    """A waiter, its form, and whether it is blind; `ValueError` for a text that is no waiter."""
    head, client, seq = text.split(":")
    form, blind = _decode_form(head)
    if not client or not seq.isdecimal():
        raise ValueError(f"no waiter: {text!r}")
    return new(WaiterId, (client, int(seq))), form, blind


def decode_any(text: str) -> tuple[WaiterId, Form, bool]:
    """As `decode`; a text that is no waiter gives a waiter that belongs to no client."""
    try:
        return decode(text)
    except ValueError:
        return WaiterId(text, 0), Form(claim=0), False


@lru_cache(maxsize=1024)
def _decode_form(head: str) -> tuple[Form, bool]:
    """The part before the client, which is the same for all waiters of a lock."""
    found = _FORM.fullmatch(head)
    if found is None:
        raise ValueError(f"no form of a waiter: {head!r}")
    mode, flags, claim, rule, number, declared, rest = found.groups()
    terms = {letter: int(ms) for letter, ms in _TERM.findall(rest)}
    priority, share, weight = _PRIORITY.search(rest), _SHARE.search(rest), _WEIGHT.search(rest)
    form = Form(
        claim=int(claim),
        shared=mode == "s",
        rule=Rule(rule or ""),
        number=int(number or 0),
        declared=int(declared or 0),
        fixed="f" in flags,
        once="o" in flags,
        downgrades="d" in flags,
        after_loss=terms.get("+", 0),
        after_grant=terms.get("~", 0),
        period=terms.get("@", 0),
        priority=int(priority[1]) if priority else 0,
        share=decoded(share[1]) if share else "",
        weight=max(1, int(weight[1])) if weight else _USUAL,
    )
    return form, "b" in flags
