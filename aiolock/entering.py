"""Pairs each exit of a ``with`` or ``async with`` with the body that it must end.

A lock description has no state, and any number of tasks may enter it at the same time, so the
description itself cannot tell which body an exit belongs to. But ``async with`` looks up
``__aenter__`` and ``__aexit__`` directly after one another before it calls the first, and keeps the
exit until the body ends. Exit stacks and `unittest` do the same. So `__aenter__` and `__aexit__`
are descriptors here: each lookup gives a new object, and two lookups that follow one another are
a pair. The exit of a pair owns the body that its entry enters, and ends just that one, in whichever
task it is called. If the exit is garbage-collected, the body is, too: nothing can leave it then.

Only an exit that was looked up alone, as by ``await lock.__aexit__(None, None, None)``, has to
choose among the bodies that were entered in the same way (see `Entered.choose`).

For a description of yours: inherit from `AsyncEnterable` or `SyncEnterable`, and write ``_enter``
and ``_entered`` (see `AnyEnterable`). It need not keep any state, and must be hashable.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
from abc import abstractmethod
from collections.abc import Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar
from weakref import ref

from aiolock._by_hand import Entered, Inside, current_task

__all__ = [
    "AnyEnterable",
    "AsyncEnterable",
    "Entered",
    "Entry",
    "Inside",
    "SyncEnterable",
    "current_task",
]

log = logging.getLogger("aiolock")

Value_co = TypeVar("Value_co", covariant=True)
Entering_co = TypeVar("Entering_co", covariant=True)

_DEEPEST: Final = 8
"""Entries without an exit that a thread remembers: a finalizer may look up others in between."""


class AnyEnterable(Generic[Entering_co]):
    """A description that can be entered, with ``with`` or with ``async with``.

    ``_enter(entry)`` enters it: it passes the body to ``entry.enters(self, body)``, and returns the
    value of the statement (a coroutine, for ``async with``). ``_entered`` is an `Entered` that
    lasts as long as the client.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def _entered(self) -> Entered:
        """Its client's bodies that were entered by hand, without an exit that owns them."""

    @abstractmethod
    def _enter(self, entry: Entry) -> Entering_co:
        """Enter it, and pass the body to `Entry.enters`."""

    def _dropped(self) -> Inside | None:
        """For an exit by hand if `_entered` has no body: one whose own exit was dropped."""
        return None


class _Lookups(threading.local):
    """The lookups of a thread that are not paired yet.

    The garbage collector may run a finalizer between the two lookups of a statement, and that one
    may enter something itself. So the entries before it are kept as well.
    """

    exit: ref[Exit] | None = None
    """The last lookup, if it was of an exit and no entry was called since."""

    entry: ref[Entry] | None = None
    """The last lookup of an entry."""

    def __init__(self) -> None:
        self.older: list[ref[Entry]] = []
        """The entries before that one that were not called yet, the latest last."""

    def keep_older(self) -> None:
        """Another entry is looked up, and the last one was not called."""
        assert self.entry is not None
        while self.older and ((last := self.older[-1]()) is None or last.used):
            del self.older[-1]
        del self.older[: 2 - _DEEPEST]
        self.older.append(self.entry)

    def uncalled(self) -> list[Entry]:
        """The entries that were not called yet, the latest first."""
        last = [] if self.entry is None else [self.entry]
        found = [each() for each in reversed(self.older + last)]
        return [entry for entry in found if entry is not None and not entry.used]


_lookups = _Lookups()


class Entry:
    """The result of a lookup of ``__aenter__``: call it to enter."""

    # Defaults on the class, because a lookup is made for every body and writes few of these.
    used = False
    exit: ref[Exit] | None = None
    """The exit that was looked up with it."""
    key: Any
    """The description, or its class."""
    of: Any
    """The description; None if it is passed in the call."""

    def __call__(self, *of: Any) -> Any:
        """Enter it."""
        paired = None if self.exit is None else self.exit()
        if self.used and paired is not None:
            # A caller kept this object and calls it again. Its exit could end either body, so both
            # are entered by hand from now on.
            self.exit = None
            if paired.body is not None:
                (entrance, body), paired.body = paired.body, None
                entrance._entered.add(entrance, body)
        elif paired is not None:
            paired.used = True
        self.used, _lookups.exit = True, None
        entrance = self.of
        if entrance is None:
            (entrance,) = of
        return entrance._enter(self)

    def enters(self, entrance: AnyEnterable[Any], body: Inside) -> None:
        """The body is entered: its exit owns it from now on."""
        paired = None if self.exit is None else self.exit()
        if paired is None:
            entrance._entered.add(entrance, body)
        else:
            paired.body = (entrance, body)


class AsyncEntry(Entry):
    """An entry whose call gives a coroutine, which `unittest.mock` must see when it imitates it."""


class Exit:
    """The result of a lookup of ``__aexit__``: call it to leave the body that its entry entered."""

    used = False
    body: tuple[AnyEnterable[Any], Inside] | None = None
    """The description and the body that it ends. The only strong reference to that body."""
    entry: Entry | None = None
    """The entry that was looked up before it."""
    key: Any
    of: Any

    def __call__(self, *call: Any) -> Any:
        """Leave the body; `NotHeld` if there is none that was entered and not left."""
        own = self.body
        if own is not None and own[0] is self.of:  # as by each ``with``
            self.used, self.body = True, None
            return own[1].close(call[1])
        entrance = self.of
        if entrance is None:
            entrance, *call = call  # type: ignore[assignment]  # a list does as well
        _, error, _ = call
        self.used, self.body = True, None
        if own is not None:
            if own[0] is entrance:
                return own[1].close(error)
            # Looked up on the class and called for another description: this body is another's.
            own[0]._entered.add(*own)
        return entrance._entered.take(entrance).close(error)


async def _leave(*call: Any) -> None: ...


class AsyncExit(Exit):
    """An exit whose call gives a coroutine, which `unittest` must see: it awaits nothing else."""

    # By these, `inspect` takes it for a function, and for a coroutine function, before Python 3.12.
    __name__ = "__aexit__"
    __code__ = _leave.__code__
    __defaults__ = __kwdefaults__ = None


class _Entering:
    """The descriptor of ``__aenter__``, or of ``__enter__``."""

    def __init__(self, kind: type[Entry]) -> None:
        self._kind = kind

    def __get__(self, of: Any, kind: type) -> Entry:
        entry = self._kind()
        entry.of, entry.key = of, kind if of is None else of
        lookups = _lookups
        if lookups.exit is not None:
            self._take_exit(entry, lookups.exit)
            lookups.exit = None
        last = None if lookups.entry is None else lookups.entry()
        if last is not None and not last.used:
            lookups.keep_older()
        lookups.entry = ref(entry)
        return entry

    def _take_exit(self, entry: Entry, before: ref[Exit]) -> None:
        """Some compilers, and Python from 3.14 on, look up the exit first."""
        leave = before()
        if leave is not None and not leave.used and leave.key is entry.key:
            if leave.entry is not None:
                leave.entry.exit = None
            entry.exit = before


class _Leaving:
    """The descriptor of ``__aexit__``, or of ``__exit__``."""

    def __init__(self, kind: type[Exit]) -> None:
        self._kind = kind

    def __get__(self, of: Any, kind: type) -> Exit:
        leave = self._kind()
        leave.of, leave.key = of, kind if of is None else of
        entry = None if _lookups.entry is None else _lookups.entry()
        if entry is not None and entry.exit is None and entry.key is leave.key and not entry.used:
            leave.entry = entry
            _lookups.exit = entry.exit = ref(leave)
            return leave
        self._pair(leave)
        return leave

    def _pair(self, leave: Exit) -> None:
        """Pair it with another than the last entry, or with one that has an exit already."""
        for entry in _lookups.uncalled():
            if entry.key is not leave.key:
                continue
            other = None if entry.exit is None else entry.exit()
            # The entry has an exit already, but a wrong one if that was called, or was looked up
            # before the entry.
            if other is None or other.used or other.entry is not entry:
                leave.entry = entry
                _lookups.exit = entry.exit = ref(leave)
                break
        else:
            of = leave.of
            if of is None or not of._entered.has(of):
                _lookups.exit = ref(leave)
            # Otherwise it ends a body that was entered by hand before, not the one entered next.


_entering: Final = _Entering(Entry)
_entering_async: Final = _Entering(AsyncEntry)
_leaving: Final = _Leaving(Exit)
_leaving_async: Final = _Leaving(AsyncExit)

# `unittest.mock` must take these for coroutine functions. From Python 3.13 on it looks at the
# descriptors, and before that at the results of the lookups.
for _marked in (AsyncEntry, AsyncExit, _entering_async, _leaving_async):
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(_marked)
    else:
        _mark: Any = asyncio.coroutines  # which has the mark of 3.11
        setattr(_marked, "_is_coroutine", _mark._is_coroutine)  # noqa: B010  # declared nowhere


class AsyncEnterable(AnyEnterable[Coroutine[Any, Any, Value_co]], Generic[Value_co]):
    """A description that any number of tasks enter with ``async with``."""

    __slots__ = ()

    if TYPE_CHECKING:

        async def __aenter__(self) -> Value_co: ...

        async def __aexit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            traceback: TracebackType | None,
        ) -> None: ...

    else:
        __aenter__ = _entering_async
        __aexit__ = _leaving_async


class SyncEnterable(AnyEnterable[Value_co], Generic[Value_co]):
    """A description that any number of threads enter with ``with``."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __enter__(self) -> Value_co: ...

        def __exit__(
            self,
            kind: type[BaseException] | None,
            error: BaseException | None,
            traceback: TracebackType | None,
        ) -> None: ...

    else:
        __enter__ = _entering
        __exit__ = _leaving
