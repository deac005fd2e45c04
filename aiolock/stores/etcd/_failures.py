"""Failed calls: what the server or the driver said, and whether it may have been carried out."""

from __future__ import annotations

import ssl
from typing import Final, NamedTuple

from aiolock._urls import Shown
from aiolock.errors import StoreError


class _Kind(NamedTuple):
    """What follows from a text of the server or of the driver."""

    part: str
    """A part of that text."""
    refused: bool = True
    """It was certainly not carried out."""
    lasting: bool = False
    """It is the same at each of the servers, and in a moment."""
    misconfigured: bool = False
    advice: str = ""


_LEASE: Final = "lease not found"
_KINDS: Final = (
    _Kind(
        "database space exceeded",
        lasting=True,
        advice="its quota is used up. Compact its history, defragment each server, and disarm the"
        " alarm (etcdctl compact REVISION; etcdctl defrag; etcdctl alarm disarm); let it compact by"
        " itself: --auto-compaction-retention",
    ),
    _Kind(
        "permission denied",
        lasting=True,
        misconfigured=True,
        advice="this user needs to read and write the keys of the locks: `etcdctl role"
        " grant-permission ROLE --prefix readwrite {keys}`",
    ),
    _Kind(
        "invalid user ID or password",
        lasting=True,
        misconfigured=True,
        advice="see the user and the password in the URL",
    ),
    _Kind(
        "user name is empty",
        lasting=True,
        misconfigured=True,
        advice="it wants to know who asks: put a user and a password into the URL",
    ),
    _Kind("no leader"),
    _Kind("too many requests"),
    _Kind(
        "request is too large",
        lasting=True,
        advice="what is known of one name, its queue perhaps or a value, is longer than a request"
        " may be: raise --max-request-bytes",
    ),
    _Kind(
        "too many operations in txn",
        lasting=True,
        advice="raise --max-txn-ops to 128 at least, its default",
    ),
    _Kind(_LEASE),
    _Kind("key not found", lasting=True),
    _Kind("corrupt", lasting=True, advice="an alarm is raised: its servers differ"),
    _Kind("not capable", lasting=True, misconfigured=True, advice="etcd 3.4 or newer is needed"),
)
_TOKEN: Final = ("invalid auth token", "revision of auth store is old")
_UNKNOWN: Final = _Kind("", refused=False)
_REFUSED: Final = _Kind("", lasting=True)
_NOT_TRIED: Final = (3, 5, 6, 7, 9, 11, 12, 16)
"""The codes of gRPC's that etcd gives instead of carrying out a request: invalid argument, not
found, already exists, permission denied, failed precondition, out of range, unimplemented,
unauthenticated."""
_LATE: Final = 4


class CallError(OSError):
    """A call that failed, at one server."""

    def __init__(self, where: str, text: str, kind: _Kind, *, token: bool = False) -> None:
        super().__init__(f"etcd at {where}: {text}")
        self.refused = kind.refused
        """Whether it certainly was not carried out."""
        self.lasting = kind.lasting
        """Whether another try, or another server, would say the same."""
        self.misconfigured = kind.misconfigured
        self.advice = kind.advice
        self.token = token
        """Whether the token is of no use any more."""
        self.lease = _LEASE in text
        """Whether a lease of the request's is gone."""

    @classmethod
    def not_sent(cls, where: str, text: str) -> CallError:
        """A call that was given up before it was sent."""
        return cls(where, text, _REFUSED)

    def store_error(self, keys: str, *, refused: bool) -> StoreError:
        """The error that the caller gets; ``keys`` is how the keys of the locks begin."""
        advice = f": {self.advice.format(keys=keys)}" if self.advice else ""
        error = StoreError(f"{self}{advice}")
        error.__cause__ = self.__cause__ or self
        error.refused, error.misconfigured = refused, self.misconfigured
        return error


def failed_call(code: int, text: str, where: str, shown: Shown) -> CallError:
    """The failure with this status of gRPC's."""
    details = " ".join(text.split())
    kind = next((each for each in _KINDS if each.part in details), None)
    if kind is None:
        kind = _REFUSED if code in _NOT_TRIED else _UNKNOWN
    token = any(each in details for each in _TOKEN)
    said = shown.text(details or f"status {code} of gRPC")
    return CallError(where, "no answer in time" if code == _LATE else said, kind, token=token)


def not_connected(where: str, error: Exception) -> CallError:
    """There is no connection, so nothing was sent; the error is that of the network."""
    misconfigured = isinstance(error, ssl.SSLError)
    advice = "see host and port in the URL, and whether the server runs"
    if isinstance(error, ssl.SSLCertVerificationError):
        advice = "its certificate is not of the CA in the URL (ca=), or of another host"
    elif misconfigured:
        advice = "see whether it expects TLS (etcds://), and cert= and key= in the URL"
    kind = _Kind("", misconfigured=misconfigured, advice=advice)
    failure = CallError(where, " ".join(str(error).split()) or type(error).__name__, kind)
    failure.__cause__ = error
    return failure


def broken(where: str, text: str) -> CallError:
    """A link or a stream that has ended, or a reply that cannot be read."""
    return CallError(where, text, _UNKNOWN)
