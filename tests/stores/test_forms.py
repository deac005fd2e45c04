"""Each way to write a form keeps all that it says; a field that one forgets is lost silently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final

import pytest

from aiolock.protocol import CLAIM, Form, Rule, WaiterId
from aiolock.stores import _codec
from aiolock.stores.postgres import _codec as postgres
from aiolock.stores.redis import _codec as redis

WAYS: Final[dict[str, Callable[[Form], Form]]] = {
    "json": lambda form: _codec._form(*_codec._form_data(form)),
    "postgres": lambda form: postgres._form(postgres.form(form).decode().strip("{}")),
    "redis": lambda form: redis.decode(redis.encode(WaiterId("ada", 1), form, blind=False))[1],
}
PERMITS: Final = Form(CLAIM, shared=True, rule=Rule.PERMITS, number=1, declared=1)
OTHER: Final[dict[Any, Any]] = {"int": 7, "bool": True, "Rule": Rule.GROUP, "str": "é:#7"}
"""A value that is not the default, by the type of its field."""


@pytest.mark.one_loop
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [each.name for each in fields(Form) if each.init and each.compare])
def test_each_field_of_a_form_is_read_as_it_was_written(way: str, name: str) -> None:
    """With each field set by itself, and of the type that it had."""
    (each,) = (each for each in fields(Form) if each.name == name)
    plain = PERMITS if name in {"rule", "number", "declared"} else Form(CLAIM)
    form = replace(plain, **{name: OTHER[each.type]})
    assert form != plain
    read = WAYS[way](form)
    assert read == form
    assert [type(getattr(read, each.name)) for each in fields(Form)] == [
        type(getattr(form, each.name)) for each in fields(Form)
    ]
