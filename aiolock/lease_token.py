"""`LeaseToken`: the text by which a lease goes from one process to another."""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import fields
from typing import Any, Final, Self, cast

from aiolock.protocol import CLAIM, Form, Rule
from aiolock.validation import checked_name

_BEGIN: Final = "alk1."
"""The beginning of each, with the version of what follows: JSON, in base64url."""
_KEY: Final = re.compile(r"[A-Za-z0-9_-]{16,64}")
_KIND: Final = re.compile(r"[a-z]{1,20}")
_MOST: Final = 1 << 62
_FIELDS: Final[dict[str, Any]] = {
    each.name: CLAIM if each.name == "claim" else each.default for each in fields(Form) if each.init
}
"""The fields of a form, and the value of each that is not written. (The usual claim is not.)"""


class LeaseToken(str):
    """The text by which a detached lease is adopted: see `Lease.detach`.

    A ``str`` of ASCII letters, digits, ``-``, ``_`` and ``.``, of 100 to 200 characters for a usual
    name: it fits into JSON, a header, a message. *It is a secret*: whoever has it may take the
    lock. So its `repr` shows the name and the fence only; do not log the text itself.

    ``LeaseToken(text)`` reads one that came from elsewhere; `ValueError` if it is none.
    """

    __slots__ = ("_form", "_key", "_prefix", "_shared", "fence", "kind", "name")

    kind: str
    """The kind of primitive: ``lock``, ``semaphore`` or ``once``."""
    name: str
    """The name of the lock."""
    fence: int
    """The fencing token of the lease that was detached."""
    _key: str
    """The secret part."""
    _prefix: str
    """The prefix of the client that detached it."""
    _shared: bool
    """It was downgraded before."""
    _form: Form
    """The options that the store has with the grant."""

    def __new__(cls, text: str) -> Self:
        """Read one that came from elsewhere."""
        if not isinstance(text, str):
            raise TypeError(f"a token must be a str, not {type(text).__name__}")
        if isinstance(text, cls):
            return text
        self = super().__new__(cls, text)
        try:
            self._read(_decoded(text))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            # Without the cause, whose text may have a part of the secret.
            raise ValueError(
                "this is no token of Lease.detach(): it was cut, changed, or made by a later"
                " version of aiolock"
            ) from None
        return self

    def __repr__(self) -> str:
        return f"<LeaseToken of the {self.kind} {self.name!r} fence={self.fence}>"

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (str.__str__(self),)  # only the text: another version may read it

    def _read(self, data: dict[str, Any]) -> None:
        self.kind, _, name = str(data["n"]).partition(":")
        self.name, self.fence, self._key = checked_name(name), data["f"], data["k"]
        self._prefix, self._shared = str(data["p"]), bool(data.get("s"))
        options: dict[str, Any] = data.get("o", {})
        numbers = [value for value in options.values() if not isinstance(value, str)]
        if (
            not _KIND.fullmatch(self.kind)
            or not _KEY.fullmatch(self._key)
            or not options.keys() <= _FIELDS.keys()
            or not all(type(number) in {int, bool} for number in (self.fence, *numbers))
            or not all(-_MOST < number < _MOST for number in (self.fence, *numbers))
        ):
            raise ValueError
        rule = Rule(options.pop("rule", _FIELDS["rule"]))
        values: dict[str, Any] = {"claim": CLAIM} | options
        for each, value in values.items():
            if type(value) is not type(_FIELDS[each]):
                raise ValueError
        self._form = Form(**values, rule=rule)


def token_of(  # its parts
    *, key: str, kind: str, name: str, fence: int, form: Form, prefix: str, shared: bool
) -> LeaseToken:
    """The token with these parts."""
    values = {each: getattr(form, each) for each in _FIELDS}
    data: dict[str, Any] = {"n": f"{kind}:{name}", "f": fence, "k": key, "p": prefix}
    options = {
        each: value.value if isinstance(value, Rule) else value
        for each, value in values.items()
        if value != _FIELDS[each]
    }
    if options:
        data["o"] = options
    if shared:
        data["s"] = 1
    text = json.dumps(data, separators=(",", ":")).encode()
    return LeaseToken(_BEGIN + base64.urlsafe_b64encode(text).decode().rstrip("="))


def _decoded(text: str) -> dict[str, Any]:
    if not text.startswith(_BEGIN):
        raise ValueError
    encoded = text.removeprefix(_BEGIN)
    try:
        decoded = base64.b64decode(
            encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True
        )
    except binascii.Error:
        raise ValueError from None
    data = json.loads(decoded)
    if not isinstance(data, dict):
        raise ValueError  # noqa: TRY004  # what is wrong is a text
    return cast("dict[str, Any]", data)
