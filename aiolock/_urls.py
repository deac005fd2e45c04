"""Strict parsing of the URLs of stores, and redaction of the secrets in them.

A URL is parsed completely or refused. No error shows a part of a URL that may belong to a password;
in a URL that cannot be parsed, that may be any part. Only parts that were recognised are shown: the
host, the names of options.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

_HIGHEST_PORT: Final = 65535
_LONGEST_HOST: Final = 253
_SOME: Final = 10
"""The known options are listed in an error if there are no more than this."""
_INVISIBLE: Final = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\ufeff]")
_HALF_ENCODED: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ADDRESS: Final = re.compile(r"(?:\[([^\[\]]*)\]|([^\[\]:]*))(?::([0-9]+))?")
_HOST: Final = re.compile(r"\w(?:[\w-]{0,62})(?:\.[\w-]{1,63})*\.?")
_LOGIN_IN_PATH: Final = re.compile(r"/+[^/?:]*:[^/?][^?]*@")
"""A login after one slash too many. (A path may contain an @, too, and a drive letter.)"""
_NAME: Final = re.compile(r"[A-Za-z]\w{0,40}", re.ASCII)
_AROUND: Final = " \t\r\n\"'`<>"
_BARE: Final = re.compile(r"([a-z0-9.-]+|\[[0-9a-f:]+\])(?::([0-9]+))?(?:/[0-9]{0,2})?")
_PORTS: Final = {"6379": "redis", "6380": "redis", "5432": "postgresql", "3306": "mysql"}
"""Schemes by the usual ports of their servers."""
SECRETS: Final = (
    *("password", "ssl_password", "sentinel_password", "sslpassword", "oauth_client_secret"),
    *("scram_client_key", "scram_server_key", "listen_url"),
)
"""Options that hold secrets. The text after one in a URL may belong to it, as in a value with a
raw ``&``."""
ENCODE: Final = (
    "percent-encode what has a meaning in URLs, also in a password: / as %2F, ? as %3F, # as %23,"
    " @ as %40, : as %3A, % as %25"
)


class Address(NamedTuple):
    """A server in a URL."""

    host: str
    """Empty if the URL names none."""
    port: int | None


@dataclass(frozen=True, eq=False)
class Url:
    """The parts of a URL, decoded; its `repr` shows nothing that is secret."""

    scheme: str
    user: str | None = field(repr=False)
    password: str | None = field(repr=False)
    addresses: tuple[Address, ...]
    path: str = field(repr=False)
    """As it stands in the URL, with its first slash."""
    options: Mapping[str, str] = field(repr=False)
    example: str
    """An example of such a URL, for errors."""

    def wrong(self, what: str) -> ValueError:
        """The error for this URL; ``what`` must not be a part of it."""
        return wrong(what, self.example)

    def address(self, usual: int) -> tuple[str, int]:
        """Host and port of a URL that must name one server."""
        if len(self.addresses) != 1:
            raise self.wrong("this URL is of one server, and names several")
        (given,) = self.addresses
        if not given.host:
            meant = bare_host(self.path[1:]) if self.user is self.password is None else ""
            meant = f": did you mean {self.scheme}://{meant}?" if meant else ""
            raise self.wrong(f"this URL names no host behind its two slashes{meant}")
        return given.host, given.port or usual

    def no_user(self) -> None:
        """`ValueError` if it has a user or a password."""
        if self.user is not None or self.password is not None:
            raise self.wrong("this URL takes no user and no password")

    def no_options(self) -> None:
        """`ValueError` if it has options."""
        if self.options:
            raise self.wrong("this URL takes no options: leave out what begins with ?")

    def decoded(self, text: str) -> str:
        """A part of its path."""
        return _decoded(text, self.example)

    def check_options(self, known: Collection[str]) -> None:
        """`ValueError` if an option is unknown; the error names it if it certainly is a name."""
        for number, name in enumerate(self.options, 1):
            if name not in known:
                near = get_close_matches(name.lower(), known, 1, 0.75)
                meant = f": did you mean {near[0]!r}?" if near else _listed(known)
                if not self._has_secrets and _NAME.fullmatch(name):
                    raise self.wrong(f"there is no option {name!r}{meant}")
                raise self.wrong(f"option {number} is unknown{meant} (& in a value is written %26)")

    def number(self, name: str, kind: type[int | float] = int) -> float | None:
        """The value of an option that is a number, 0 or more; None if it is not given."""
        value = self.options.get(name)
        if value is None:
            return None
        pattern = r"[0-9]{1,9}" if kind is int else r"[0-9]{1,9}(\.[0-9]{1,9})?"
        if not re.fullmatch(pattern, value, re.ASCII):
            what = "a whole number" if kind is int else "a number"
            raise self.wrong(f"{name} must be {what}, 0 or more{self._not(value)}")
        return kind(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """The value of an option that is 0 or 1."""
        value = self.options.get(name, "1" if default else "0")
        if value not in ("0", "1"):
            raise self.wrong(f"{name} must be 0 or 1{self._not(value)}")
        return value == "1"

    def choice(self, name: str, values: Collection[str], default: str) -> str:
        """The value of an option that is one of these words."""
        value = self.options.get(name, default)
        if value not in values:
            near = get_close_matches(value.lower().removeprefix("cert_"), values, 1, 0.6)
            raise self.wrong(
                f"{name} must be one of {', '.join(values)}{self._not(value)}"
                + (f": did you mean {name}={near[0]}?" if near else "")
            )
        return value

    def check_files(self, *names: str) -> None:
        """`ValueError` if the file of one of these options is not there, or its directory."""
        for name in names:
            if name in self.options and not Path(self.options[name]).exists():
                raise self.wrong(f"the file or directory of {name}= in this URL is not there")

    def _not(self, value: str) -> str:
        return "" if self._has_secrets else f", not {value!r}"

    @property
    def _has_secrets(self) -> bool:
        return any(name in SECRETS for name in self.options)


def _listed(known: Collection[str]) -> str:
    return f", only {', '.join(known)}" if len(known) <= _SOME else ""


def wrong(what: str, example: str) -> ValueError:
    """The error for a URL that is not like the example."""
    return ValueError(f"{what}. Such a URL is written {example}")


def scheme_of(text: str, known: Collection[str], whose: str = "a lock store") -> str:
    """The scheme of a URL; `ValueError` if it is not one of those, with what may be meant."""
    scheme, found, _ = text.partition("://")
    if found and scheme in known:
        return scheme
    schemes = ", ".join(f"{each}://" for each in known)
    meant = _meant(text, known)
    end = "" if meant.endswith("?") else "."
    raise ValueError(f"{meant}{end} The URL of {whose} begins with one of {schemes}")


def _meant(text: str, known: Collection[str]) -> str:
    """A guess at the mistake in a text that begins with no known scheme."""
    inside = text.strip(_AROUND)
    scheme, found, _ = inside.partition("://")
    if not inside:
        return "this URL is empty: see where it comes from"
    if found and scheme in known:
        return "there are blanks or quotes around this URL: take them away"
    if found:
        near = _near(scheme.lower(), known)
        return "this is no URL of ours" + (f": did you mean {near}://?" if near else "")
    if (begins := re.match(r"([a-z+]+)(?::/?|//)", inside)) and begins[1] in known:
        return f"this URL does not begin with a colon and two slashes, as {begins[1]}://"
    kind = _PORTS.get(inside.rpartition(":")[2].partition("/")[0], "redis")
    if bare_host(inside) and kind in known:
        return f"this URL has no scheme: did you mean {kind}://{inside}?"
    return "this URL has no scheme, such as redis://"


def _near(scheme: str, known: Collection[str]) -> str:
    if scheme == "tcp":
        return "redis"
    candidates = scheme, scheme.partition("+")[0]  # as SQLAlchemy has it: postgresql+asyncpg
    for each in candidates:
        if near := get_close_matches(each, known, 1, 0.75):
            return near[0]
    return ""


def bare_host(text: str) -> str:
    """The text, if it certainly is a host, which may be shown; otherwise an empty text."""
    match = _BARE.fullmatch(text)
    certain = match and (
        match[2] in _PORTS or match[1] == "localhost" or _is_ip(match[1].strip("[]"))
    )
    return text if certain else ""


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def parse(text: str, example: str, *, inner: str = "", sockets: bool = False) -> Url:
    """The parts of a URL whose scheme was checked; `ValueError` if it is ambiguous.

    ``inner`` is an option whose value may be a URL that is not percent-encoded. With ``sockets``, a
    host may be the percent-encoded path of a socket.
    """
    if _INVISIBLE.search(text):
        what = "there is a blank, a line end or another invisible character in this URL"
        raise wrong(f"{what}: take it away, or write a blank as %20", example)
    if "#" in text:
        raise wrong(f"this URL takes nothing with a #: {ENCODE}", example)
    if _HALF_ENCODED.search(text):
        raise wrong(f"a % in this URL stands before no two hexadecimal digits: {ENCODE}", example)
    scheme, _, rest = text.partition("://")
    end = re.search("[/?]", rest)
    authority, tail = (rest[: end.start()], rest[end.start() :]) if end else (rest, "")
    # An inner URL is checked when it is parsed itself.
    outside = re.sub(rf"([?&]{inner}=)[^&]*", r"\1", tail) if inner else tail
    if "@" in outside and (authority or _LOGIN_IN_PATH.match(tail)):
        raise wrong(f"there is an @ behind the first / or ? of this URL: {ENCODE}", example)
    login, at, places = authority.rpartition("@")
    if "@" in login:
        raise wrong(f"there is more than one @ before the host of this URL: {ENCODE}", example)
    user, colon, password = login.partition(":")
    path, _, query = tail.partition("?")
    return Url(
        scheme,
        _decoded(user, example) or None if at else None,
        _decoded(password, example) or None if colon else None,
        _addresses(places, example, sockets=sockets),
        path,
        _options(query, example),
        example,
    )


def _decoded(text: str, example: str) -> str:
    try:
        decoded = unquote(text, errors="strict")
    except UnicodeDecodeError:
        decoded = "\0"
    if "\0" in decoded:  # raised here, because the context of Python's error would show the text
        raise wrong("what is percent-encoded in this URL is not UTF-8, or NUL", example)
    return decoded


def _addresses(text: str, example: str, *, sockets: bool) -> tuple[Address, ...]:
    if not text:
        return (Address("", None),)
    found: list[Address] = []
    for number, each in enumerate(text.split(","), 1):
        match = _ADDRESS.fullmatch(each)
        host, port = "", 0
        if match is not None:
            ip6, name = match[1], match[2]
            host = _decoded(name if ip6 is None else ip6, example)
            port = int(match[3][:6]) if match[3] else _HIGHEST_PORT
            right = _is_ip(host) and ":" in host if ip6 is not None else _is_host(host)
            if not right and not (sockets and host.startswith(("/", "@"))):
                host = ""
        if not host or (not sockets and "%" in each and "[" not in each):
            raise wrong(f"address {number} in this URL is no host and port: {ENCODE}", example)
        if not 0 < port <= _HIGHEST_PORT:
            raise wrong(
                f"the port of address {number} in this URL is not from 1 to {_HIGHEST_PORT}",
                example,
            )
        assert match is not None
        found.append(Address(host, port if match[3] else None))
    return tuple(found)


def _is_host(text: str) -> bool:
    if not _HOST.fullmatch(text) or len(text) > _LONGEST_HOST:
        return False
    try:
        text.encode("idna")
    except UnicodeError:
        return False
    return True


def _options(query: str, example: str) -> dict[str, str]:
    """The options by name; one that is given twice is an error. A plus sign is not a blank here."""
    found: dict[str, str] = {}
    for each in query.split("&") if query else ():
        name, equals, value = each.partition("=")
        name = _decoded(name, example)
        if not (name and equals):
            raise wrong("each option of this URL is name=value, and & is between them", example)
        if name in found:
            shown = f" {name!r}" if not any(one in SECRETS for one in found) else ""
            shown = shown or (f" {name!r}" if name in SECRETS else "")
            raise wrong(f"an option{shown} is in this URL twice: leave one of them out", example)
        found[name] = _decoded(value, example)
    return found


_RUN: Final = 3
"""Characters in a row of a password that are replaced."""
_USUAL: Final = (
    "invalid username-password pair or user is disabled. Authentication required. AUTH called"
    " password authentication failed for user Access denied using password YES"
    " connection Connection refused connecting to server closed the by unexpectedly not"
    " Name or service not known No such file or directory Error Multiple exceptions certificate"
)
"""Words that drivers and servers use: they are shown even if they are in a password."""
_ECHO: Final = re.compile(r"(with args beginning with:)(?! \*\*\*).*", re.DOTALL)
"""The text of Redis about a command that it does not know, which may contain the password."""


class Shown:
    """Redaction of a driver's texts: parts that may come from one of these secrets are replaced.

    A server or a driver may repeat a part of a password, cut or escaped. So every three characters
    in a row that are in a secret are replaced, unless they are in one of the ``public`` texts, too.
    """

    def __init__(self, secrets: Iterable[object], public: Iterable[object] = ()) -> None:
        runs = {run for each in secrets for form in _forms(each) for run in _runs(form)}
        for each in (*public, _USUAL):
            runs.difference_update(_runs(str(each)))
        self._hidden = frozenset(runs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def text(self, text: str) -> str:
        """The text, with ``***`` for each part that is hidden."""
        text = _ECHO.sub(r"\1 ***", text)
        if not self._hidden:
            return text
        hidden = bytearray(len(text))
        for at, run in enumerate(_runs(text)):
            if run in self._hidden:
                hidden[at : at + _RUN] = b"\1" * _RUN
        shown = "".join("\0" if hide else one for hide, one in zip(hidden, text, strict=True))
        return re.sub("\0+", "***", shown)

    def error(self, error: Exception) -> Exception:
        """The exception, after its texts and those of its causes were redacted.

        If they cannot be redacted, another exception that only names its type.
        """
        for each in _chain(error):
            if not self._clean(each):
                clean = ConnectionError(f"{type(error).__name__}, whose text is not shown")
                # It is raised where the other is handled, whose text would be shown as its context.
                clean.__suppress_context__ = True
                return clean.with_traceback(error.__traceback__)
        return error

    def _clean(self, error: BaseException) -> bool:
        """Redact its texts; whether all of them may be shown now."""
        error.args = tuple(
            self.text(each) if isinstance(each, str) else each for each in error.args
        )
        if isinstance(error, OSError) and isinstance(error.strerror, str):
            error.strerror = self.text(error.strerror)
        for number, note in enumerate(getattr(error, "__notes__", ())):
            error.__notes__[number] = self.text(note)
        for name, value in vars(error).items():
            # psycopg keeps all parameters of its connection: also a password from another source
            # than the URL, which is not among the known secrets.
            kept = repr(value)
            if self.text(kept) != kept or (not isinstance(value, str) and "password=" in kept):
                vars(error)[name] = None
        shown = f"{error} {error!r}"
        return self.text(shown) == shown


def _forms(secret: object) -> Iterator[str]:
    """The forms in which a secret may appear in a text."""
    if isinstance(secret, bytes):
        secret = secret.decode(errors="backslashreplace")
    if isinstance(secret, str):
        yield secret
        yield quote(secret, safe="")
        yield repr(secret)[1:-1]
        yield repr(secret.encode(errors="backslashreplace"))[2:-1]


def _runs(text: str) -> Iterator[str]:
    return (text[at : at + _RUN] for at in range(len(text) - _RUN + 1))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An exception, and all others that its traceback shows."""
    seen: dict[int, BaseException] = {}
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop()
        if each is None or id(each) in seen:
            continue
        seen[id(each)] = each
        todo += each.__cause__, each.__context__
        todo += getattr(each, "exceptions", ())  # of a group
    yield from seen.values()
