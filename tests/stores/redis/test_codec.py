"""How the Redis store writes a waiter down: there and back, and what another version writes."""

from __future__ import annotations

import re
from dataclasses import fields
from string import ascii_letters
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiolock.protocol import CLAIM, Form, Rule, WaiterId
from aiolock.stores.redis._codec import decode, decode_any, encode, stem, waiter_of

ADA = WaiterId("ada", 7)
FLAGS = [each.name for each in fields(Form) if each.init and each.type == "bool"]
ALL_SET: dict[str, Any] = dict.fromkeys(FLAGS, True)
# The letters that are known: of everything that is written as one.
LETTERS = set(stem(Form(0, **ALL_SET), "ada", blind=True).partition("0")[0])
ms = st.integers(0, 10**18 - 1)
waiters = st.builds(
    WaiterId, st.one_of(st.just("-"), st.from_regex(r"[A-Za-z0-9_-]{16}", fullmatch=True)), ms
)


@st.composite
def forms(draw: st.DrawFn) -> Form:
    """A form of any kind."""
    rule = draw(st.sampled_from(Rule))
    return Form(
        claim=draw(ms),
        rule=rule,
        number=0 if rule is Rule.ALWAYS else draw(ms),
        declared=0 if rule is Rule.ALWAYS else draw(ms),
        after_loss=draw(ms),
        after_grant=draw(ms),
        period=draw(ms),
        priority=draw(st.integers(-9, 9)),
        share=draw(st.one_of(st.just(""), st.text(max_size=64))),
        weight=draw(st.integers(10, 100_000)),
        **{flag: draw(st.booleans()) for flag in FLAGS},
    )


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("x3000", Form(CLAIM)),
        ("xf200", Form(200, fixed=True)),
        ("xfo3000", Form(CLAIM, fixed=True, once=True)),
        ("xd3000", Form(CLAIM, downgrades=True)),
        ("s3000=1", Form(CLAIM, shared=True, rule=Rule.ALIKE, number=1)),
        ("x3000+1~2@3", Form(CLAIM, after_loss=1, after_grant=2, period=3)),
        ("x3000~2", Form(CLAIM, after_grant=2)),
        ("xf3000@86400000", Form(CLAIM, fixed=True, period=86_400_000)),
        ("s3000", Form(CLAIM, shared=True)),
        ("s3000*2/5", Form(CLAIM, shared=True, rule=Rule.PERMITS, number=2, declared=5)),
        ("sf3000&5/5", Form(CLAIM, True, Rule.GROUP, 5, 5, fixed=True)),
        ("sf3000^5/5", Form(CLAIM, True, Rule.COUNT, 5, 5, fixed=True)),
        ("sf3000^1", Form(CLAIM, True, Rule.COUNT, 1, fixed=True)),
        ("sf3000^0", Form(CLAIM, True, Rule.COUNT, 0, fixed=True)),
        ("x3000!-9", Form(CLAIM, priority=-9)),
        ("x3000%dGVuYW50IDc", Form(CLAIM, share="tenant 7")),
        ("x3000!-9%w6kg8J-Qog$2500", Form(CLAIM, priority=-9, share="é 🐢", weight=2500)),
        ("x3000$10", Form(CLAIM, weight=10)),
        ("sf0*2/5", Form(0, True, Rule.PERMITS, 2, 5, fixed=True)),
        (
            "sfod3000*2/5+1~2@3!4",
            Form(CLAIM, True, Rule.PERMITS, 2, 5, True, True, True, 1, 2, 3, 4),
        ),
    ],
)
@pytest.mark.parametrize("blind", [False, True])
def test_encode_writes_all_of_a_form_and_decode_reads_it_back(
    text: str, form: Form, blind: bool
) -> None:
    """A text carries all that a store must know, and is read back as it was written."""
    written = f"{text[0]}{'b' * blind}{text[1:]}:ada:7"
    assert encode(ADA, form, blind=blind) == written
    assert decode(written) == (ADA, form, blind)


@given(waiters, forms(), st.booleans())
def test_decode_of_any_encoded_waiter_returns_the_same(
    waiter: WaiterId, form: Form, blind: bool
) -> None:
    """Whatever is written is read back, all of it or only who it is."""
    text = encode(waiter, form, blind=blind)
    assert decode(text) == decode_any(text) == (waiter, form, blind)
    assert waiter_of(text) == waiter
    assert text == f"{stem(form, waiter.client, blind=blind)}{waiter.seq}"
    # As the scripts take it apart: its mode, and its client, between the first colons.
    found = re.match(r"([xs])[A-Za-z]*[0-9]+[^:]*:([^:]+):[0-9]+$", text)
    assert found is not None
    assert found.groups() == ("s" if form.shared else "x", waiter.client)
    share = re.match(r"[^:]*%([A-Za-z0-9_-]+)(?:\$([0-9]+))?", text)  # no priority has a %
    assert (share is not None) == (form.share != "")
    assert share is None or int(share[2] or 1000) == form.weight


@pytest.mark.parametrize(
    ("later", "known"),
    [
        ("xQfZ3000,5~200,x", "xf3000~200"),
        ("xQbZ3000", "xb3000"),
        ("s3000^5/5,7", "s3000^5/5"),
        ("s3000*1/3,7+5", "s3000*1/3+5"),
        ("x3000,7!2", "x3000!2"),
        ("x3000+", "x3000"),
        ("x3000~x@20", "x3000@20"),
    ],
)
def test_decode_of_a_later_version_honours_the_known_parts(later: str, known: str) -> None:
    """What is not known is passed over, and what is known there is honoured."""
    assert decode(f"{later}:ada:7") == decode(f"{known}:ada:7")
    assert decode_any(f"{later}:ada:7") == decode(f"{known}:ada:7")


UNKNOWN = st.from_regex(r"(,[a-z0-9*&^/ ]{0,5})?", fullmatch=True)


@given(
    waiters,
    forms(),
    st.booleans(),
    st.tuples(st.text(sorted(set(ascii_letters) - LETTERS)), UNKNOWN, UNKNOWN),
)
def test_decode_passes_over_unknown_letters_and_text(
    waiter: WaiterId, form: Form, blind: bool, more: tuple[str, str, str]
) -> None:
    """Other letters before the claim, and other text behind it and its rule, change nothing."""
    letters, before, behind = more
    head, client, seq = encode(waiter, form, blind=blind).split(":")
    found = re.fullmatch(r"(\w)([a-z]*)([0-9]+(?:[*&^|=][0-9/]+)?)(.*)", head)
    assert found is not None
    mode, flags, rule, terms = found.groups()
    later = f"{mode}{letters}{flags}{letters}{rule}{before}{terms}{behind}:{client}:{seq}"
    assert decode(later) == (waiter, form, blind)


@pytest.mark.parametrize("coded", ["7", "_w", "A", "_____"])
def test_decode_of_a_share_that_is_no_text_is_a_share_of_its_own(coded: str) -> None:
    """It is the one share for all that was written so, and none of ours."""
    _, form, _ = decode(f"x3000%{coded}:ada:7")
    assert form.share == f"%{coded}"


def test_decode_of_a_weight_of_nothing_is_the_least() -> None:
    """Nothing is divided by 0, whatever was written."""
    assert decode("x3000%QQ$0:ada:7")[1].weight == 1


def test_decode_of_an_unknown_mode_is_not_shared() -> None:
    """One that is not known does not share."""
    assert decode("y3000:ada:7") == (ADA, Form(CLAIM), False)


def nobody(text: str) -> tuple[WaiterId, Form, bool]:
    """What is read in a text that is no waiter."""
    return WaiterId(text, 0), Form(claim=0), False


@pytest.mark.parametrize(
    "text",
    [
        *("", ":", "::", "?", "nobody's", "x:ada:7", "3000:ada:7", "?3000:ada:7", "x3000:ada"),
        *("x3000::7", "x3000:ada:", "x3000:ada:b", "x3000:ada:7:8", f"x{9**999}:a:1"),
        *(f"x3000:ada:{'9' * 5000}", "xé3000:ada:7", "x3000:ada:²"),
    ],
)
def test_decode_of_no_waiter_raises_and_decode_any_returns_an_empty_form(text: str) -> None:
    """It is nobody's: no client answers for it, and it closes nothing. Read strictly it fails."""
    with pytest.raises(ValueError):  # noqa: PT011  # nobody sees what it says
        decode(text)
    assert decode_any(text) == nobody(text)


@given(
    st.one_of(
        st.text(),
        st.from_regex(
            r"\A[xsy][a-z]{0,4}[0-9]{1,3}([*&^=][0-9]{1,2}(/[0-9]{1,2})?)?[+~@!%/*&^0-9-]{0,12}"
            r":[a-z:]{1,3}:[0-9]{1,3}\Z"
        ),
    )
)
def test_decode_any_of_any_text_never_fails_and_encodes_back_the_same(text: str) -> None:
    """Nothing fails, and what was understood of it stays the same when it is written again."""
    waiter, form, blind = known = decode_any(text)
    if known != nobody(text):
        assert decode(encode(waiter, form, blind=blind)) == known
        assert waiter_of(text) == waiter
