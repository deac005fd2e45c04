"""`web` and `Page`: the ASGI application, its routes, and the right to use each."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, NamedTuple, cast
from urllib.parse import quote

from aiolock import ClientClosed, LockClient, StoreError
from aiolock.page._assets import assets
from aiolock.page._guard import (
    HEADERS,
    Permission,
    check_host,
    check_may_see,
    check_read_here,
    check_sent_here,
    is_permitted,
)
from aiolock.page._http import Answer, Gone, Receive, Refused, Request, Scope, Send, answer, as_json
from aiolock.page._lifespan import lifespan
from aiolock.page._limits import Limits
from aiolock.page._poller import Poller
from aiolock.page._stream import stream
from aiolock.page._view import Wanted, detail

_log: Final = logging.getLogger("aiolock")
_EVENTS: Final = "/events"
_FENCE: Final = re.compile(r"[0-9]{1,20}")


class _Outcome(NamedTuple):
    """The outcome of an order."""

    done: bool
    fences: list[int] | None = None
    """The fences of the grants that were taken away; None for all there were."""
    failure: BaseException | None = None
    """The reason why the rest of it was not done, or may not have been."""


class _Order(NamedTuple):
    """The contents of a POST."""

    kind: str
    name: str
    fences: list[int] | None
    """The fences of the grants to take away; None for all there are."""


def web(
    client: LockClient,
    *,
    may_break: Permission | None = None,
    may_see: Permission | None = None,
    hosts: Collection[str] | None = None,
) -> Page:
    """A live page of holders and waiters: an ASGI application, to be mounted.

    It shows all locks under the client's prefix, and asks the store only while a viewer watches,
    once a second at most. The code that uses the client opens it; while it is not open, the page
    says so. If the page runs as an application of its own, its lifespan opens the client.

    ``may_break`` gets the ASGI scope of a request, and says whether that may take away what is
    held, or ask for it; without it, no request may. ``may_see`` likewise says whether a request may
    see the page; without it, every request may, and the page names locks, machines and processes.
    Both may be async functions. ``hosts`` are the names under which the page is reached, without
    ports; give them if nothing else checks the host.
    """
    for what, permission in (("may_break", may_break), ("may_see", may_see)):
        if not (permission is None or callable(permission)):
            raise TypeError(
                f"{what} must be a function of the ASGI scope that says whether that request may,"
                f" or None, not {permission!r}"
            )
    if isinstance(hosts, str):
        raise TypeError(f"hosts must be several names, not a str: [{hosts!r}]")
    return Page(client, may_break=may_break, may_see=may_see, hosts=hosts)


class Page:
    """The application that `web` makes."""

    def __init__(
        self,
        client: LockClient,
        *,
        may_break: Permission | None = None,
        may_see: Permission | None = None,
        hosts: Collection[str] | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._client = client
        self._may_break = may_break
        self._may_see = may_see
        self._hosts = None if hosts is None else {host.lower() for host in hosts}
        self._limits = limits or Limits()
        self._poller = Poller(client, self._limits)
        self._reads: Mapping[str, Callable[[Request], Awaitable[Answer]]] = {
            "/session": self._session,
            "/lock": self._lock,
        }
        self._orders: Mapping[str, Callable[[_Order], Awaitable[_Outcome]]] = {
            "/break": self._break,
            "/ask": self._ask,
        }

    def end(self) -> None:
        """End the streams of all viewers, for good: so that a server can stop at once."""
        self._poller.end()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan of the application."""
        if scope["type"] == "lifespan":
            await lifespan(self._client, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        elif scope["type"] == "http":
            await self._serve(Request(scope, receive), receive, send)

    async def _serve(self, request: Request, receive: Receive, send: Send) -> None:
        head = request.method == "HEAD"
        try:
            check_host(request, self._hosts)
            await check_may_see(self._may_see, request.scope)
            if request.path == _EVENTS and request.method == "GET":
                check_read_here(request)
                wanted = Wanted.of(request.query, self._limits)
                await stream(self._poller, wanted, receive, send, self._limits)
                return
            found = await self._answer(request)
        except Refused as refused:
            why = {"error": refused.why}
            found = as_json(why, status=refused.status, headers=refused.headers)
        except (ClientClosed, StoreError) as error:
            found = as_json({"error": str(error)}, status=503)
        except Gone:
            return
        await answer(send, found, HEADERS, head=head)

    async def _answer(self, request: Request) -> Answer:
        path = request.path
        if not path:  # without the slash, relative addresses in the page would lead elsewhere
            folder = quote(request.scope.get("root_path", "").rpartition("/")[2])
            return Answer(b"", "text/plain", 307, (("Location", f"{folder}/"),))
        if path in self._orders:
            _check_method(request, "POST")
            return await self._carry_out(request)
        if path not in assets() and path not in self._reads and path != _EVENTS:
            raise Refused(404, "there is nothing here")
        _check_method(request, "GET", "HEAD")
        if path in assets():
            return assets()[path]
        check_read_here(request)
        if path == _EVENTS:  # a HEAD request
            return Answer(b"", "text/event-stream")
        return await self._reads[path](request)

    async def _session(self, request: Request) -> Answer:
        session = {
            "may_break": await is_permitted(self._may_break, request.scope),
            "kinds": LockClient.KINDS,
            "history": self._limits.history,
        }
        return as_json(session)

    async def _lock(self, request: Request) -> Answer:
        kind, name = (request.query.get(key, "") for key in ("kind", "name"))
        try:
            status = await self._client.status(name, kind=kind)
        except (TypeError, ValueError) as error:
            raise Refused(400, str(error)) from None
        return as_json(detail(status, self._poller.history, self._poller.now(), self._limits))

    async def _carry_out(self, request: Request) -> Answer:
        # Check the right first: the answer to a stranger gives nothing else away.
        if not await is_permitted(self._may_break, request.scope):
            raise Refused(403, "you may not do this: the page is read-only for you")
        check_sent_here(request)
        order = _order(await request.json(self._limits.body), self._limits)
        try:
            outcome = await self._orders[request.path](order)
            if outcome.done:
                self._log_order(request, order, outcome)
            if outcome.failure is not None:
                raise outcome.failure  # not before: what was done is in the log, whatever failed
        except (TypeError, ValueError) as error:
            raise Refused(400, str(error)) from None
        return as_json({"done": outcome.done})

    def _log_order(self, request: Request, order: _Order, outcome: _Outcome) -> None:
        asked_by = (request.scope.get("client") or ("an unknown address",))[0]
        what = request.path.strip("/")
        _log.warning(
            "aiolock: %s of the %s %r by way of the page, from %s (fences: %s)",
            *(what, order.kind, order.name, asked_by, outcome.fences or "all"),
        )
        self._poller.nudge()

    async def _break(self, order: _Order) -> _Outcome:
        if order.fences is None:
            return _Outcome(await self._client.break_(order.name, kind=order.kind))
        # All at once: where the store does not answer, that takes no longer than for one.
        lock = {"name": order.name, "kind": order.kind}
        found = await asyncio.gather(
            *(self._client.break_(**lock, fence=fence) for fence in order.fences),
            return_exceptions=True,
        )
        taken = [fence for fence, one in zip(order.fences, found, strict=True) if one is True]
        failure = next((one for one in found if isinstance(one, BaseException)), None)
        return _Outcome(bool(taken), taken, failure)

    async def _ask(self, order: _Order) -> _Outcome:
        return _Outcome(await self._client.request_release(order.name, kind=order.kind))


def _check_method(request: Request, *allowed: str) -> None:
    if request.method not in allowed:
        why = f"the method must be {' or '.join(allowed)}"
        raise Refused(405, why, ("Allow", ", ".join(allowed)))


def _order(body: Mapping[str, Any], limits: Limits) -> _Order:
    kind, name = body.get("kind"), body.get("name")
    if not (isinstance(kind, str) and isinstance(name, str)):
        raise Refused(400, "kind and name must be texts")
    if body.get("fences") is None:
        return _Order(kind, name, None)
    fences: object = body["fences"]
    if not (isinstance(fences, list) and 1 <= len(cast("list[object]", fences)) <= limits.parties):
        raise Refused(400, f"fences must be a list of 1 to {limits.parties}")
    return _Order(kind, name, [_fence(each) for each in cast("list[object]", fences)])


def _fence(value: object) -> int:
    # As text, because a number in JavaScript has only 53 bits.
    if not (isinstance(value, str) and _FENCE.fullmatch(value)):
        raise Refused(400, "a fence must be a whole number, as text")
    return int(value)
