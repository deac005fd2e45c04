"""A lock that stays closed for a while after a grant has ended, as the form of that demands."""

from __future__ import annotations

from typing import Final

from aiolock.protocol import Form, WaiterId
from aiolock.stores._holders import RESERVED, Grant, Holder

_CLOSED: Final = WaiterId(RESERVED, 0)
"""The reserved holder of a lock that stays closed for a while."""


def opens_at(form: Form, granted: int, lost: int | None, *, confirmed: bool = True) -> int:
    """The time from which others may enter after such a grant, in ms of the store's clock; 0: at
    once.

    It was made at ``granted``; ``lost`` is when it was lost, or None. The delays apply to a grant
    that was entered. A claim that was not ``confirmed`` may have been entered, except with a
    `Form.period`: such a waiter confirms its grant before it enters.
    """
    opens = 0
    if lost is not None and form.after_loss:
        opens = lost + form.after_loss
    if form.after_grant:
        opens = max(opens, granted + form.after_grant)
    if form.period and confirmed:
        opens = max(opens, (granted // form.period + 1) * form.period)
    return opens


def closing(
    ended: Holder, lost: int | None, now: int, past: int, *, entered: bool
) -> Holder | None:
    """The reserved holder that keeps others out after this grant; None if nothing does.

    Its lease ends like any other, and it is shared if the ended grant was. ``now`` is in µs; what
    ends by ``past`` (ms) is over. ``entered``: the client has reported that the grant was entered.
    """
    form, fence = ended.form, ended.grant.fence
    granted = min(fence, now) // 1000
    # Else a claim may have been entered, or not.
    unsure = ended.claim and not entered
    opens = opens_at(form, granted, lost, confirmed=not unsure)
    if opens <= past:
        return None
    terms = Form(
        claim=0,
        shared=ended.shared,
        rule=form.rule,
        number=form.number,
        declared=form.declared,
        fixed=True,
    )
    return Holder(Grant(_CLOSED, fence), terms, opens, shared=ended.shared)
