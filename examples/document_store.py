"""A store of your own, on a database that has nothing but documents and compare-and-swap.

    python examples/document_store.py

`Documents` stands in for the database: replace it by calls to etcd, Consul, DynamoDB or MongoDB.
`DocumentStore` stays as it is. It has a document for each name, with its state, its last fence and
the pushes that clients have not read yet. It loads the document, changes it and swaps it, and
starts again if another client was faster. tests/test_contract.py tests it as it tests every store.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import json
import os
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

import aiolock
from aiolock.store import Inbox, Page, Renewal
from aiolock.stores.authors import (
    UNREADABLE,
    NameState,
    Operation,
    Operations,
    Push,
    Step,
    Steps,
    decode,
    decode_push,
    encode,
    encode_push,
)

Value = TypeVar("Value")


# --- Replace this: the database


class Documents:
    """Stands in for a database, in this process, some milliseconds away.

    Each method is one request, and may raise an `OSError`: then nobody knows whether it was carried
    out. Any other error is a fault, and is not tried again.
    """

    def __init__(self, latency: float = 0.002) -> None:
        self.latency = latency
        self.kept: dict[str, tuple[str, int, float]] = {}
        self._versions = itertools.count(1)
        self._sessions: dict[str, tuple[str, asyncio.Queue[str | None]]] = {}

    async def _travels(self) -> None:
        await asyncio.sleep(random.uniform(0, self.latency))

    def _current(self, key: str) -> tuple[str, int]:
        value, version, end = self.kept.get(key, ("", 0, 0.0))
        return (value, version) if end > time.monotonic() else ("", 0)

    async def get(self, key: str) -> tuple[str, int]:
        """The document and its version, "" and 0 if there is none: never an older version.

        (etcd: a linearizable range; Consul: ``?consistent``; DynamoDB: ``ConsistentRead``.)
        """
        await self._travels()
        current = self._current(key)
        await self._travels()
        return current

    async def swap(self, key: str, value: str, version: int, keep: float) -> bool:
        """Write it if the version is still this one, and keep it for at least this many seconds.

        No version is ever used twice. (etcd: a transaction on ``mod_revision``; Consul: ``?cas``;
        DynamoDB: a condition on an attribute; MongoDB: a filter on a field.)
        """
        await self._travels()
        if swapped := self._current(key)[1] == version:
            self.kept[key] = value, next(self._versions), time.monotonic() + keep
        await self._travels()
        return swapped

    async def keys(self, prefix: str, after: str, most: int) -> list[str]:
        """The next keys after ``after``, in order, that begin with ``prefix``."""
        await self._travels()
        found = [key for key in self.kept if key.startswith(prefix) and key > after]
        await self._travels()
        return heapq.nsmallest(most, found)

    async def clock(self) -> int:
        """One clock for all clients, in microseconds since 1970."""
        await self._travels()
        return time.time_ns() // 1000

    async def join(self, client: str, about: str) -> AsyncIterator[str]:
        """Begin a session of this process; yields what `ring` says to it from now on.

        The iterator ends if the session or the watch is lost. (etcd: a key with a lease, kept alive
        in the background, and a watch from the revision at which it was written.)
        """
        await self._travels()
        bell = asyncio.Queue[str | None]()
        self._sessions[client] = about, bell
        return self._rings(bell)

    async def _rings(self, bell: asyncio.Queue[str | None]) -> AsyncIterator[str]:
        while (name := await bell.get()) is not None:
            yield name

    async def leave(self, client: str) -> None:
        """End the session, as a crash of its process does."""
        _, bell = self._sessions.pop(client, ("", None))
        if bell is not None:
            bell.put_nowait(None)
        await self._travels()

    async def sessions(self) -> Mapping[str, str]:
        """All live clients, and what each said of itself."""
        await self._travels()
        return {client: about for client, (about, _) in self._sessions.items()}

    async def ring(self, client: str, name: str) -> None:
        """Tell a client that this document has something for it.

        (etcd: write a key that it watches.)
        """
        await self._travels()
        if client in self._sessions:
            self._sessions[client][1].put_nowait(name)


# --- Keep this: the store

PATIENCE: Final = 4.0
"""Seconds after which an attempt is given up. A request that waits for another attempt first, and
then for its own, has waited for 8; 9.5 is the most that is allowed."""
PAUSE: Final = 0.05
PAGE: Final = 100
"""Documents for each page of a snapshot."""
KEPT: Final = 600.0
"""Seconds for which a document is kept when all in it is over. The first fence after that is the
clock's, which is far past the last fence; and no copy of a swap arrives as late."""
FRESH: Final = 60_000_000
"""Microseconds after which an unchanged document is written again, so that it is kept while clients
ask for it."""


Job = tuple[Operation, asyncio.Future[Any]]
Kept = tuple[int, str, list[list[str]], int]
"""The document of a name: last fence, state, letters for clients, and when it was written."""


class Document:
    """The state of one name, as operations see and change it (`authors.Steps`)."""

    def __init__(
        self, text: str, client: str, now: int, living: Mapping[str, str], *, again: bool
    ) -> None:
        self.again = again
        self._client, self._now, self._living = client, now, living
        kept: Kept = json.loads(text) if text else (0, "", [], now)
        self._fence, state, mail, self._at = kept
        self._before = [*kept[:3]]
        self._state = decode(state) if state else NameState()
        self.pushes = list[Push]()
        """Letters for this client."""
        self.mail = list[list[str]]()
        """Letters for other clients."""
        for to, letter in mail:
            if to == client:
                with contextlib.suppress(*UNREADABLE):  # of a later version
                    self.pushes.append(decode_push(letter))
            elif to in living:
                self.mail.append([to, letter])

    def step(self, name: str, operation: Callable[[Step], Value]) -> Value:  # noqa: ARG002  # the only one
        """Carry out an operation of the state machine."""
        step = Step(self._state, self._now, self._listens, self._fence, self._says)
        answer = operation(step)
        self._fence = step.fence
        for push in step.pushes:
            to = push.waiter.client
            if to == self._client:
                self.pushes.append(push)
            elif to in self._living:
                self.mail.append([to, encode_push(push)])
        return answer

    def _listens(self, client: str) -> bool:
        return client == self._client or client in self._living

    def _says(self, client: str) -> tuple[str, int]:
        pid, _, host = self._living.get(client, "0 ").partition(" ")
        return host, int(pid)

    def changed(self, *, anyway: bool) -> tuple[str, float] | None:
        """The text to write, and for how many seconds it is needed; None for nothing."""
        state = self._state
        after = [self._fence, "" if state.idle else encode(state), self.mail]
        if after == self._before and self._now - self._at < FRESH and not anyway:
            return None
        ends = [holder.end + holder.form.closes for holder in state.holders.values()]
        over = max(state.until, *ends, 0, 0) / 1000 - self._now / 1_000_000
        return json.dumps([*after, self._now]), max(over, 0) + KEPT


class DocumentStore(Operations):
    """Locks in documents: a `Store`, for `aiolock.connect`."""

    def __init__(self, database: Documents, prefix: str = "aiolock") -> None:
        self._database, self._prefix = database, prefix
        self._is_open, self._client = False, ""
        self._tasks = set[asyncio.Task[Any]]()
        self._resizes = itertools.count(1)

    async def open(self, client: str, inbox: Inbox) -> None:
        """Begin a session, and listen."""
        self._client, self._inbox = client, inbox
        self._jobs: dict[str, list[Job]] = {}
        self._unsure: dict[str, int] = {}
        """By name: a version on which a swap was sent whose reply is missing, perhaps for ever."""
        self._tasks = set[asyncio.Task[Any]]()
        try:
            async with asyncio.timeout(PATIENCE):
                bell = await self._join()
        except OSError as error:  # a `TimeoutError` is one
            raise failure("the database cannot be reached", error, refused=True) from error
        self._listening = asyncio.create_task(self._listen(bell))
        self._is_open = True

    async def aclose(self) -> None:
        """End the session, once all requests are done."""
        if self._is_open:
            self._is_open = False
            self._listening.cancel()
            try:
                await asyncio.wait({self._listening})
                while self._tasks:
                    await asyncio.wait(self._tasks)
            finally:
                with contextlib.suppress(OSError):  # then the session ends by itself
                    async with asyncio.timeout(PATIENCE):
                        await self._database.leave(self._client)

    # The session, and its letters

    async def _join(self) -> AsyncIterator[str]:
        return await self._database.join(self._client, f"{os.getpid()} {socket.gethostname()}")

    async def _listen(self, bell: AsyncIterator[str]) -> None:
        while True:
            with contextlib.suppress(OSError):
                async for name in bell:
                    self._call(Operation((name,), _nothing)).add_done_callback(self._looked)
            # Other clients may have taken us for dead, and pushes may have been missed.
            await asyncio.sleep(PAUSE)
            with contextlib.suppress(OSError):
                bell = await self._join()
                self._inbox.reconnected()

    def _looked(self, future: asyncio.Future[Any]) -> None:
        if not future.cancelled() and future.exception() and self._is_open:
            self._inbox.reconnected()

    async def _ring(self, clients: set[str], name: str) -> None:
        # A client that was not reached is rung again by the next one that finds a letter for it.
        with contextlib.suppress(OSError):
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(self._database.ring(client, name) for client in clients))

    # Operations: one task for each name, which carries out together what has gathered meanwhile

    def _token(self) -> str:
        return f"{self._client}.{next(self._resizes)}"

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool | None]]:
        """The only operation on several names: it becomes one operation for each document."""
        each = [super(DocumentStore, self).renew([renewal]) for renewal in renewals]
        return self._start(_flat(each))

    def snapshot(self, start: str = "") -> asyncio.Future[Page]:
        """The statuses of the next documents."""
        return self._start(self._snapshot(start))

    async def _snapshot(self, start: str) -> Page:
        own = f"{self._prefix}/"
        try:
            async with asyncio.timeout(PATIENCE):
                keys = await self._database.keys(own, start, PAGE)
        except OSError as error:
            raise failure("the database does not list its keys", error, refused=True) from error
        statuses = await asyncio.gather(*[self.status(key.removeprefix(own)) for key in keys])
        return Page(statuses, keys[-1] if len(keys) == PAGE else "")

    def _call(self, operation: Operation) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        (name,) = operation.names
        if not self._is_open:
            future.set_exception(failure("the store is closed", refused=True))
        elif name in self._jobs:
            self._jobs[name].append((operation, future))
        else:
            self._jobs[name] = [(operation, future)]
            _ = self._start(self._serve(name))
        return future

    def _start(self, work: Coroutine[Any, Any, Value]) -> asyncio.Task[Value]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _serve(self, name: str) -> None:
        while jobs := self._jobs[name]:
            self._jobs[name] = []
            await self._carry_out(name, jobs)
        del self._jobs[name]

    async def _carry_out(self, name: str, jobs: Sequence[Job]) -> None:
        again, why = False, None
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    again = again or name in self._unsure
                    try:
                        if await self._attempt(name, jobs, again=again):
                            break
                    except OSError as error:
                        why = error
                        await asyncio.sleep(PAUSE)
        except Exception as error:  # noqa: BLE001  # nobody waits for ever, whatever it is
            refused = not again and name not in self._unsure
            for _, future in jobs:
                if not future.done():
                    text = f"the database does not do it: {why or error!r}"
                    future.set_exception(failure(text, why or error, refused=refused))
        else:
            if again and self._is_open:  # pushes of an attempt that was made unheard are lost
                self._inbox.reconnected()

    async def _attempt(self, name: str, jobs: Sequence[Job], *, again: bool) -> bool:
        """Carry these out, in order; False if another client was faster."""
        key = f"{self._prefix}/{name}"
        text, version = await self._database.get(key)
        if self._unsure.get(name) != version:  # that swap is over, with or without effect
            self._unsure.pop(name, None)
        # Not before: time would run backwards for the name, and a waiter that has just come might
        # pass for dead.
        now, living = await asyncio.gather(self._database.clock(), self._database.sessions())
        document = Document(text, self._client, now, living, again=again)
        answers = [operation.run(document) for operation, _ in jobs]
        # A swap that is still under way has no effect on another version: so there has to be one.
        changed = document.changed(anyway=name in self._unsure)
        if changed is not None:
            self._unsure[name] = version
            swapped = await self._database.swap(key, changed[0], version, changed[1])
            del self._unsure[name]
            if not swapped:
                return False
        for push in document.pushes:
            push.deliver(name, self._inbox)
        for (_, future), answer in zip(jobs, answers, strict=True):
            if not future.done():
                future.set_result(answer)
        if document.mail:
            _ = self._start(self._ring({to for to, _ in document.mail}, name))
        return True


def _nothing(_: Steps) -> None:
    """Any operation on a document takes the letters for this client out of it."""


async def _flat(each: Sequence[asyncio.Future[list[bool | None]]]) -> list[bool | None]:
    return [held for (held,) in await asyncio.gather(*each)]


def failure(text: str, why: BaseException | None = None, *, refused: bool) -> aiolock.StoreError:
    """The error with this text; ``refused``: nothing was done, for certain."""
    error = aiolock.StoreError(text)
    error.refused, error.__cause__ = refused, why
    return error


# --- An example of its use


async def main() -> None:
    """Three clients, of five tasks each, take turns."""
    database = Documents()

    async def work(locks: aiolock.LockClient, who: str) -> None:
        async with locks.lock("order:42", timeout=20) as lease:
            print(f"{who} has it, fence {lease.fence}")

    async with contextlib.AsyncExitStack() as stack:
        clients = [aiolock.connect(DocumentStore(database)) for _ in range(3)]
        for client in clients:
            await stack.enter_async_context(client)
        await asyncio.gather(
            *(work(client, f"{n}.{task}") for n, client in enumerate(clients) for task in range(5))
        )


if __name__ == "__main__":
    asyncio.run(main())
