"""Idempotency keys: a request that is sent twice is carried out once, and both get the result.

An ASGI middleware, for any framework::

    app.add_middleware(Idempotency, client=client, application="shop", remember=86400, who=user_of)

and the same for any async function::

    @idempotent(client, "payment:{order}", remember=86400)
    async def pay(order: str, amount: int) -> dict[str, int]: ...

`aiolock.integrations.fastapi`, `starlette` and `aiohttp` have it for single routes.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Awaitable, Callable, Collection, Coroutine
from datetime import timedelta
from typing import Any, Final, ParamSpec, TypeVar

from aiolock import Lease, LockClient
from aiolock.integrations._asgi import Receive, Scope, Send, answer
from aiolock.integrations._exchange import Exchange, begin, keys_in
from aiolock.integrations._kept import (
    KeyReused,
    NotKept,
    UnderWay,
    check_options,
    digest,
    kept,
    key_of,
    once_of,
    owner,
)
from aiolock.integrations._problems import ERRORS, problem
from aiolock.naming import formatter

__all__ = ["Idempotency", "KeyReused", "NotKept", "UnderWay", "idempotent"]

P = ParamSpec("P")
R = TypeVar("R")

Who = Callable[[Scope], str | Awaitable[str]]

_dumps: Final = functools.partial(json.dumps, sort_keys=True)


class Idempotency:
    """Middleware: of requests with one ``Idempotency-Key``, one is carried out.

    * The first gets its response, and that is kept. The others get the same, with the header
      ``Idempotent-Replayed: true``.
    * One that comes while the first is under way gets 409. One with another host, method, path,
      query, ``Content-Type``, ``Content-Encoding`` or body gets 422. So does one that would have
      got another response, by the headers that the ``Vary`` of the first response names, or by
      ``Accept-Encoding`` if that response is compressed; but for ``Authorization`` and ``Cookie``,
      for which ``who`` stands.
    * Every other response is kept, also a refusal (400, 402, 404, 409, 422). A response is not kept
      if its status is 500 or more, if it says to try again (``Retry-After``, 408, 423, 425, 429),
      or if the request was cancelled or raised before its response was complete. Such a request may
      be sent again, and is carried out again; so is one whose process died.
    * Requests without the header, and with other ``methods``, pass through.

    A response is gathered, kept and then sent. A body longer than 48 KiB is sent as it comes, and
    not kept; nor is a response with headers of more than 3,000 characters of ASCII in all, unless
    its body leaves room for them; each other byte in them takes the room of six. Other requests
    with its key then get 409.

    While a request is carried out, it sees no disconnect of its client: it is completed, and the
    client's next try gets its response. The response is held back until the application has
    returned: what its dependencies do at their end, such as a commit, and background tasks are a
    part of the request. If that fails, the response is neither kept nor sent.

    The middleware does not open the client; `setup` does, for example. If the store cannot say
    whether a request was carried out, it is not, and gets 503. A request that loses its lease is
    cancelled, and gets 503. If it was carried out, but the store may not remember that, or its
    lease is found to be lost when its response is complete, the response is sent.

    :param application: the name of the application, which the key belongs to: the same in all its
        processes, and in no other application that uses the same store with the same prefix.
    :param remember: seconds for which a response is kept.
    :param who: the owner of the key, given the ASGI scope: the user or the tenant, as a str. May be
        async. Equal keys of different owners are different keys, so no owner gets another's
        response. An empty text is one owner, too. A request for which it gives anything else raises
        `TypeError`.
    """

    def __init__(
        self,
        app: Callable[..., Awaitable[None]],
        *,
        client: LockClient,
        application: str,
        remember: float | timedelta,
        who: Who,
        methods: Collection[str] = ("POST", "PATCH"),
    ) -> None:
        if isinstance(methods, str):
            raise TypeError("methods must be a collection of names")
        check_options(client, application, remember)
        self._app = app
        self._client = client
        self._application = application
        self._remember = remember
        self._who = who
        self._methods = frozenset(method.upper() for method in methods)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, as an ASGI application."""
        if scope["type"] != "http" or scope["method"] not in self._methods or not keys_in(scope):
            await self._app(scope, receive, send)
            return
        exchange = Exchange(self._under_key, dict(scope), receive, send)
        try:
            await exchange.run()
        except ERRORS as error:
            if exchange.begun:
                raise  # the response has begun
            await answer(problem(error), send)

    async def _under_key(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = key_of(keys_in(scope), required=True)
        assert key is not None
        whose = await owner(self._who(scope))
        once = once_of(self._client.once, self._application, whose, key, self._remember)
        await begin(scope, once)
        await self._app(scope, receive, send)


def idempotent(
    client: LockClient,
    key: str,
    *,
    remember: float | timedelta,
    compare: Collection[str] | None = None,
    wait: bool = True,
    timeout: float | timedelta | None = None,
    dumps: Callable[[Any], str] = _dumps,
    loads: Callable[[str], Any] = json.loads,
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Decorate an async function: of calls with one key one is carried out; all get its result.

    * A call that comes while the first is under way waits for its result. It gets `UnderWay`, an
      `AcquireTimeout`, after ``timeout``, or at once with ``wait=False``.
    * A call that raises, is cancelled or loses its lease keeps nothing: the next one does it.
    * A call with the same key but other arguments gets `KeyReused`, and nothing is done.
    * If the result has more than 65,471 characters, only the first call gets it; later ones get
      `NotKept`.

    All calls, even the first, get the result as JSON gives it back. `StoreError` when it is unknown
    whether it was done, or whether the store remembers that. A cancelled call cancels the function,
    and leaves nothing. The client may be opened after the function was decorated.

    :param key: formatted with the call's arguments, as the name in `LockClient.once`:
        ``"payment:{order}"``. It is the name of a `once`, so no other `once` may have it.
    :param remember: seconds for which a result is kept.
    :param compare: parameters that must have the same values under the same key; all, if None. The
        call raises `TypeError` if ``dumps`` cannot write them down: name those that it can.
    :param wait: whether calls that come while it is being done wait for the result.
    :param timeout: seconds that they wait at most; None waits as long as it takes.
    :param dumps: writes arguments and results down as a text; equal values give the same text.
    :param loads: reads a result.
    """
    client.once("checked", remember=remember, wait=wait, timeout=timeout)
    if isinstance(compare, str):
        raise TypeError(f"compare must be a collection of names, as {{{compare!r}}}")

    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        name = formatter(key, function, "idempotent")
        signature = inspect.signature(function)
        compared = set(signature.parameters) if compare is None else set(compare)
        if strange := compared - set(signature.parameters):
            raise ValueError(
                f"compare names {', '.join(sorted(strange))}, but the parameters of"
                f" {function.__name__}() are {', '.join(signature.parameters) or 'none'}"
            )

        @functools.wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> R:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = {one: value for one, value in bound.arguments.items() if one in compared}
            try:
                asked = digest(dumps(given))
            except TypeError as error:
                raise TypeError(
                    f"the arguments of {function.__name__}() cannot be compared with those of"
                    f" another call: {error}. Name those that can: compare={{...}}"
                ) from error

            async def work(_: Lease) -> str:
                return dumps(await function(*args, **kwargs))

            once = client.once(name(*args, **kwargs), remember=remember, wait=wait, timeout=timeout)
            result: R = loads((await kept(once, asked, work))[0])
            return result

        return call

    return decorate
