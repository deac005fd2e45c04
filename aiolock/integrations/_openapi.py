"""The answers of a web application whose requests do not get a lock, in an OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from aiolock import AcquireTimeout, ClientClosed, LeaseLost, QueueFull, StoreError
from aiolock.integrations._kept import BadKey, BodyTooLong, KeyReused, NotKept, UnderWay
from aiolock.integrations._names import BadName, LockOf
from aiolock.integrations._problems import (
    ANSWERS,
    BUSY,
    CLOSING,
    CONFLICT,
    CONTENT_TYPE,
    FULL,
    LIMITED,
    LOST,
    STOPPED,
    UNKNOWN,
    Problem,
)
from aiolock.integrations._rates import RequestRate

Answers = list[tuple[type[Exception], Problem]]
"""The answers to errors that a request may meet."""

IDEMPOTENT: Final = "idempotent"
"""The mark of what carries requests with one key out once."""

_RETRY_AFTER: Final = {
    "description": "Seconds after which to try again.",
    "schema": {"type": "integer", "minimum": 1},
}
_STORE: Final[Answers] = [(StoreError, UNKNOWN), (ClientClosed, CLOSING)]
_HOLD: Final[Answers] = [(LeaseLost, LOST), (LeaseLost, STOPPED), *_STORE]
ALL: Final[Answers] = [
    *((AcquireTimeout, CONFLICT), (AcquireTimeout, BUSY)),
    *((AcquireTimeout, LIMITED), (QueueFull, FULL)),
    *_HOLD,
]
"""Those to all errors of locks and rates."""


def answers_of(mark: object) -> Answers:
    """The answers of a request under a lock, a rate limit, or a key; none for other marks."""
    if isinstance(mark, LockOf):
        found = [*_waiting(mark.timeout, BUSY), *_waiters(mark.max_waiters), *_HOLD]
        if mark.fields:
            found.append((BadName, ANSWERS[BadName]))
        return found
    if isinstance(mark, RequestRate):
        limited = [] if mark.timeout is None else [(AcquireTimeout, LIMITED)]
        nobody = [(BadName, ANSWERS[BadName])] if mark.owned else []
        return [*limited, *_waiters(mark.max_waiters), *_STORE, *nobody]
    if mark == IDEMPOTENT:
        errors = (UnderWay, NotKept, KeyReused, BadKey, BodyTooLong)
        return [*((error, ANSWERS[error]) for error in errors), *_HOLD]
    return []


def _waiting(timeout: object, busy: Problem) -> Answers:
    if timeout is None:
        return []  # it waits as long as it takes
    return [(AcquireTimeout, busy if timeout else CONFLICT)]


def _waiters(most: object) -> Answers:
    return [] if most is None else [(QueueFull, FULL)]


def responses(answers: Answers, ours: Collection[type[Exception]]) -> dict[str, dict[str, Any]]:
    """The responses of an operation, by status, for the errors whose answers are ours.

    They are as the OpenAPI specification has them, from version 3.0 on.
    """
    by_status: dict[int, dict[str, Problem]] = {}
    for error, found in answers:
        if error in ours:
            by_status.setdefault(found.status, {})[f"{found.code}: {found.detail}"] = found
    return {
        str(status): _response(list(found.values())) for status, found in sorted(by_status.items())
    }


def _response(problems: list[Problem]) -> dict[str, Any]:
    codes = list(dict.fromkeys(each.code for each in problems))
    examples: dict[str, Any] = {}
    for each in problems:
        name = each.code if each.code not in examples else f"{each.code}_meanwhile"
        examples[name] = {"value": json.loads(each.body)}
    response: dict[str, Any] = {
        "description": " ".join(dict.fromkeys(each.detail for each in problems if each.detail))
        or problems[0].code,
        "content": {CONTENT_TYPE: {"schema": _schema(problems, codes), "examples": examples}},
    }
    if any(each.retry_after is not None or each is LIMITED for each in problems):
        response["headers"] = {"Retry-After": _RETRY_AFTER}
    return response


def _schema(problems: list[Problem], codes: list[str]) -> dict[str, Any]:
    properties = {
        "title": {"type": "string"},
        "status": {"type": "integer", "enum": [problems[0].status]},
        "detail": {"type": "string", "description": "For people."},
        "code": {"type": "string", "enum": codes, "description": "For programs."},
    }
    return {"type": "object", "properties": properties, "required": list(properties)}


def add_responses(
    documented: dict[str, Any], added: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Add responses to those of an operation; what the application says itself is kept."""
    for status, response in added.items():
        given = documented.setdefault(status, {})
        given.setdefault("description", response["description"])
        for part in ("headers", "content"):
            if part in response:
                there = given.setdefault(part, {})
                for name, value in response[part].items():
                    there.setdefault(name, value)
    return documented


def of_marks(marks: Iterable[object], ours: Collection[type[Exception]]) -> dict[str, Any]:
    """The responses of an operation with these marks."""
    return responses([answer for mark in marks for answer in answers_of(mark)], ours)
