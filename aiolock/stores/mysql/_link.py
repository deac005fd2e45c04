"""One connection to the server: PyMySQL's, over a socket that any thread may shut down."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import pymysql
from pymysql.constants import CLIENT, ER

from aiolock.stores.mysql._settings import Settings

Rows = Sequence[tuple[Any, ...]]

_Tls = ssl.SSLContext | Mapping[str, object]

_CONNECTING: Final = 3.0
"""Seconds for the network to connect, to any of the addresses."""
_ANSWERING: Final = 4.0
"""Seconds for one answer, beyond the time that the statement is meant to last."""
_DEAD_AFTER: Final = 10
"""Seconds after which the kernel takes the other end for dead."""
_SESSION: Final = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    # Without the second mode, which MySQL 8 neither has nor needs, a GRANT to a user who does not
    # exist makes that user, without a password.
    (
        "SET SESSION sql_mode = IF(VERSION() LIKE '%MariaDB%',"
        " 'STRICT_ALL_TABLES,NO_AUTO_CREATE_USER', 'STRICT_ALL_TABLES')"
    ),
    "SET SESSION innodb_lock_wait_timeout = 2",
    "SET SESSION wait_timeout = 28800",
    "SELECT VERSION(), CURRENT_USER(), @@max_allowed_packet",
)
_LEAST: Final = 1024
"""Bytes of a packet that every server allows."""


if TYPE_CHECKING:
    _Base = pymysql.Connection[Any]
else:
    _Base = pymysql.Connection


class _Connection(_Base):
    """PyMySQL's connection. Unless told more, it encrypts if the server can, without checking it.

    For each such connection it loads the certificates of all authorities, and then ignores them,
    which takes 40 ms of CPU. Here that is done once.
    """

    _unchecked: ClassVar[ssl.SSLContext | None] = None

    def _create_ssl_ctx(self, sslp: _Tls) -> ssl.SSLContext:
        create = cast(
            "Callable[[_Tls], ssl.SSLContext]",
            super()._create_ssl_ctx,  # type: ignore[misc]  # not in its stubs
        )
        if sslp:
            return create(sslp)
        if _Connection._unchecked is None:
            _Connection._unchecked = create(sslp)
        return _Connection._unchecked


class Link:
    """A connection, used by one thread at a time; any thread may break it."""

    def __init__(self, settings: Settings, *, lasts: float = 0.0) -> None:
        """``lasts``: seconds for which a statement may be meant to last."""
        self._settings = settings
        self._timeout = lasts + _ANSWERING
        self._connection: pymysql.Connection[Any] | None = None
        self._mutex = threading.Lock()
        """Held while the handle is changed or used."""
        self._handle: socket.socket | None = None
        """A duplicate of the socket, which PyMySQL may have wrapped."""
        self._files: tuple[int, ...] = ()
        self._version = ""
        self._room = _LEAST
        """Bytes of the longest message that the server takes: for one that is longer, it ends the
        connection."""
        self.account = settings.user
        """The account of the connection: with its host, once connected."""
        _all.add(self)

    def connect(self) -> None:
        """Connect; raises what PyMySQL raises, or `OSError`; none shows the password."""
        try:
            self._connect()
        except Exception as error:  # noqa: BLE001  # whatever text it has
            raise self._settings.shown.error(error)  # noqa: B904  # it is this error

    def _connect(self) -> None:
        self.close()
        settings = self._settings
        connection = _Connection(
            host=settings.host,
            user=settings.user,
            password=settings.password.encode(),  # PyMySQL takes text for Latin-1
            database=settings.database,
            charset="utf8mb4",
            autocommit=True,
            client_flag=CLIENT.MULTI_STATEMENTS,
            ssl=settings.tls,
            connect_timeout=int(_CONNECTING),
            read_timeout=self._timeout,
            write_timeout=self._timeout,
            program_name="aiolock",
            defer_connect=True,
        )
        connection.connect(self._dialled(connection))
        self._connection = connection
        *_, ((self._version, self.account, allowed),) = self.run(*_SESSION)
        self._room = (
            allowed - 2
        )  # all but a byte for the type of the message, and less than allowed
        # A time limit for all statements would end a sleep.
        limit = "max_statement_time" if "MariaDB" in self._version else "max_execution_time"
        self.run(f"SET SESSION {limit} = 0")

    def _dialled(self, connection: pymysql.Connection[Any]) -> socket.socket:
        """A connected socket, to the first address that accepts."""
        settings = self._settings
        deadline = time.monotonic() + _CONNECTING
        if settings.unix_socket:
            # A Unix socket counts as encrypted, which some passwords demand.
            vars(connection)["_secure"] = True
            return self._dial(socket.AF_UNIX, settings.unix_socket, deadline)
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        failure: OSError | None = None
        for number, (family, _, _, _, address) in enumerate(found):
            # The server at the first address may be gone: leave time for the others.
            share = (deadline - time.monotonic()) / (len(found) - number)
            try:
                return self._dial(family, address, time.monotonic() + share)
            except OSError as error:
                failure = failure or error
        raise failure or OSError(f"{settings.host} has no address")

    def _dial(self, family: int, address: Any, deadline: float) -> socket.socket:
        dialled = socket.socket(family, socket.SOCK_STREAM)
        try:
            with self._mutex:
                self._let_go()
                # Kept from the start, so that it can be shut down, and closed in a fork.
                self._handle = dialled.dup()
                self._files = dialled.fileno(), self._handle.fileno()
            dialled.settimeout(max(0.05, deadline - time.monotonic()))
            if family != socket.AF_UNIX:
                _keep_alive(dialled)
            dialled.connect(address)
        except BaseException:
            dialled.close()
            raise
        return dialled

    def _let_go(self) -> None:
        self._files = ()
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    @property
    def is_up(self) -> bool:
        """Whether there is a connection, as far as it is known."""
        return self._connection is not None

    def number(self) -> int:
        """The server's number of this connection."""
        (((number,),),) = self.run("SELECT CONNECTION_ID()")
        return int(number)

    def is_mariadb(self) -> bool:
        """Whether the server is MariaDB; it is MySQL otherwise."""
        return "MariaDB" in self._version

    def run(self, *statements: str) -> list[Rows]:
        """The rows of these statements, sent at once if they fit; the first error is raised."""
        found, failure = self.run_until(*statements)
        if failure is not None:
            raise failure
        return found

    def run_until(self, *statements: str) -> tuple[list[Rows], BaseException | None]:
        """The rows of these statements up to the first that failed, and that error.

        After an exception of PyMySQL that is not an error of the server, the connection is lost. If
        one of them is too long for the server, none is sent.
        """
        assert self._connection is not None
        found: list[Rows] = []
        try:
            for message in self._messages(statements):
                with self._connection.cursor() as cursor:
                    cursor.execute(message)
                    found.append(cursor.fetchall())
                    while cursor.nextset():
                        found.append(cursor.fetchall())
        except Exception as error:  # noqa: BLE001  # its parser may fail in any way
            return found, error
        return found, None

    def _messages(self, statements: Sequence[str]) -> list[str]:
        """The fewest messages that the server takes. Each letter is a byte: values are hex."""
        messages: list[list[str]] = [[]]
        room = self._room
        for statement in statements:
            size = len(statement)
            if size > self._room:
                raise pymysql.OperationalError(
                    ER.NET_PACKET_TOO_LARGE,
                    f"a statement of {size:,} bytes is too long for max_allowed_packet,"
                    f" {self._room + 2:,}",
                )
            if size > room:
                messages.append([])
                room = self._room
            messages[-1].append(statement)
            room -= size + len(";")
        return [";".join(message) for message in messages]

    def break_(self) -> None:
        """Shut it down, so that a thread that waits for it goes on; from any thread."""
        with self._mutex:
            if self._handle is not None:
                with contextlib.suppress(OSError):  # it is not connected any more
                    self._handle.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close it, without waiting for the server. Idempotent."""
        with self._mutex:
            self._let_go()
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(pymysql.Error, OSError):
                connection.close()

    def forget(self, nothing: int) -> None:
        """Leave the connection to the parent; called in the child of a fork."""
        for file in self._files:
            with contextlib.suppress(OSError):
                os.dup2(nothing, file, inheritable=False)


def _keep_alive(dialled: socket.socket) -> None:
    """Have the kernel check that the other end is alive."""
    dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    dialled.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
        dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2)
        dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        dialled.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _DEAD_AFTER)


_all: Final[weakref.WeakSet[Link]] = weakref.WeakSet()


def _forked() -> None:
    """Close the child's copies of the parent's connections, without a message to the server.

    Otherwise they would outlive the parent, whose waiters would count as alive. Their file numbers
    stay taken, so that no other file gets one that is still in use.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for link in _all:
        link.forget(nothing)
    os.close(nothing)


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_forked)
