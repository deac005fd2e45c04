"""The text by which a lease goes from one process to another."""

from __future__ import annotations

import base64
import copy
import json
import pickle
from typing import Any

import pytest

from aiolock import LeaseToken
from aiolock.lease_token import token_of
from aiolock.protocol import Form, Rule

_FORM = Form(
    1000,
    shared=True,
    rule=Rule.PERMITS,
    number=2,
    declared=3,
    fixed=True,
    after_loss=5,
    priority=-3,
    remember=60_000,
)


def made(form: Form = Form(3000), name: str = "order:42", **parts: Any) -> LeaseToken:  # noqa: B008  # immutable
    """A token."""
    values: dict[str, Any] = {
        "key": "k" * 22,
        "kind": "lock",
        "fence": 17,
        "prefix": "aiolock",
        "shared": False,
    }
    return token_of(name=name, form=form, **(values | parts))


def changed(**parts: Any) -> str:
    """The text of a token with other parts, or (None) without them."""
    text = made().removeprefix("alk1.")
    data = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))) | parts
    data = {name: value for name, value in data.items() if value is not None}
    return "alk1." + base64.urlsafe_b64encode(json.dumps(data).encode()).decode().rstrip("=")


@pytest.mark.parametrize("form", [Form(3000), _FORM, Form(2, once=True, downgrades=True, period=9)])
def test_token_read_from_its_text_has_all_parts(form: Form) -> None:
    """Through JSON, a header, a pickle."""
    token = made(form, "ähm: 1", kind="semaphore", shared=True)
    for text in (
        json.loads(json.dumps(token)),
        token.encode("ascii").decode(),
        pickle.loads(pickle.dumps(token)),  # our own
        copy.deepcopy(token),
    ):
        read = LeaseToken(text)
        assert read == token
        assert (read.kind, read.name, read.fence) == ("semaphore", "ähm: 1", 17)
        assert (read._key, read._prefix, read._shared) == ("k" * 22, "aiolock", True)
        assert (read._form, read._form.remember) == (form, form.remember)


def test_token_is_short_and_shown_without_its_secret() -> None:
    """It fits into a header; its repr may be logged."""
    token = made()
    assert len(token) < 140
    assert token.isascii()
    assert repr(token) == f"{token!r}" == "<LeaseToken of the lock 'order:42' fence=17>"
    assert "k" * 22 not in repr([token])


@pytest.mark.parametrize(
    "text",
    [
        *("", "alk1", "alk1.", "alk1.e30", "alk1.W10", "alk1.!!!!", "order:42"),
        *(changed(k="short"), changed(k="a'; DROP TABLE x; --aaaa"), changed(k="a:" + "b" * 20)),
        *(changed(k=None), changed(n=None), changed(f=None), changed(p=None)),
        *(changed(n="lock:"), changed(n="order"), changed(n="LOCK:a"), changed(n=7)),
        *(changed(f="17"), changed(f=1.5), changed(f=1 << 80), changed(f=[1])),
        *(changed(o={"unknown": 1}), changed(o={"shared": 1}), changed(o={"claim": "3"})),
        *(changed(o={"rule": "?"}), changed(o=[1]), changed(o={"closes": 3})),
    ],
)
def test_text_that_is_no_token_is_a_value_error_without_the_text(text: str) -> None:
    """It may be most of a secret."""
    with pytest.raises(ValueError, match="no token of") as error:
        LeaseToken(text)
    assert error.value.__suppress_context__
    assert len(text) < 8 or text not in str(error.value)


def test_token_of_another_type_is_a_type_error() -> None:
    """Bytes as from a queue must be decoded first."""
    with pytest.raises(TypeError, match="must be a str, not bytes"):
        LeaseToken(made().encode())  # type: ignore[arg-type]  # wrong on purpose


def test_token_pickled_has_its_text_alone() -> None:
    """No class of aiolock but its own: another version may have others."""
    pickled = pickle.dumps(made())
    assert b"protocol" not in pickled
    assert made().encode() in pickled
