"""Middleware of Django: requests that are sent twice are carried out once."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, Final, TypeVar

from asgiref.sync import async_to_sync, markcoroutinefunction, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string

import aiolock.sync
from aiolock import AcquireTimeout, Lease, LeaseLost, StoreError, connect
from aiolock.integrations._exchange import ended
from aiolock.integrations._kept import (
    HEADER,
    LONGEST_BODY,
    LONGEST_RESPONSE,
    REPLAYED,
    BodyTooLong,
    NotToBeKept,
    Recorded,
    Result,
    check_options,
    fingerprint,
    is_to_be_tried_again,
    kept,
    key_of,
    once_of,
    under_way,
)
from aiolock.integrations._problems import ERRORS
from aiolock.integrations.django._clients import open_client, setting, sync_client
from aiolock.integrations.django._rates import found_by
from aiolock.integrations.django._views import answer, end_of_thread_work, is_async
from aiolock.sync.transactions import refuse_in_transaction

SETTING: Final = "AIOLOCK_IDEMPOTENCY"
_FORM: Final = '{"application": NAME, "remember": SECONDS, "who": FUNCTION, ...}'
_BEFORE: Final = "Put it before the middleware that begins the transaction"

Once = TypeVar("Once")

_log = logging.getLogger("aiolock.web")


class IdempotencyMiddleware:
    """Middleware: of requests with one ``Idempotency-Key``, one is carried out.

    It does what `aiolock.integrations.idempotency.Idempotency` does, for synchronous and
    asynchronous views, under WSGI and ASGI, and with the user of the request::

        MIDDLEWARE = [
            ...,
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "aiolock.integrations.django.IdempotencyMiddleware",
            ...,
        ]
        AIOLOCK_IDEMPOTENCY = {"application": "shop", "remember": 86400, "who": "shop.keys.owner"}

    ``application``, ``remember`` and ``methods`` are those of `Idempotency`; ``who`` is a function,
    or the dotted path of one, that gives the owner of a request as a str:
    ``str(request.user.pk)``. It may be async.

    Put it after the middleware that ``who`` needs, and before middleware whose work is a part of
    the request, as one with a transaction: a response is kept when that has returned, and so after
    the commit of ``ATOMIC_REQUESTS``. Within a transaction it is a `RuntimeError`.

    What it keeps, and what not, is as in `Idempotency`. A streaming response is sent and not kept:
    other requests with its key then get 409. A synchronous view is never interrupted, and an
    asynchronous one with a key is not if its client goes: the next try gets its response. If the
    lease is lost or the store fails while a synchronous view runs, its response is sent, and the
    same request may be carried out again.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self._get_response = get_response
        self._keys = Keys.of_settings()
        self._is_async = is_async(get_response)
        if self._is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        """Serve a request: as a coroutine if what it calls is one."""
        if request.method not in self._keys.methods or HEADER not in request.headers:
            return self._get_response(request)
        # To its end, even if its client goes: the next try gets the response.
        return self._to_its_end(request) if self._is_async else self._answer(request)

    def _answer(self, request: HttpRequest) -> HttpResponseBase:
        keys = self._keys
        try:
            key = _key_of(request)
            refuse_in_transaction(type(self).__name__, "it would be kept", _BEFORE)
            who = async_to_sync(keys.who) if is_async(keys.who) else keys.who
            exchange = _Exchange(request)
            once = keys.once(sync_client().once, who(request), key)
            result = Result(exchange.asked)

            def work(_: aiolock.sync.Lease) -> str:
                return result.kept(exchange.recorded(self._get_response(request)))

            try:
                return exchange.answer(*result.of(once.outcome(work), once.name))
            except AcquireTimeout as error:
                raise under_way(error) from error
            except (NotToBeKept, StoreError, LeaseLost) as error:
                return exchange.answer_after(error)
        except ERRORS as error:
            return answer(error)

    async def _answer_async(self, request: HttpRequest) -> HttpResponseBase:
        keys = self._keys
        try:
            key = _key_of(request)
            await sync_to_async(refuse_in_transaction)(
                type(self).__name__, "it would be kept", _BEFORE
            )
            exchange = _Exchange(request)  # first: `who` may read the form, which reads the body
            whose = await found_by(keys.who, request)
            once = keys.once((await open_client()).once, whose, key)

            async def work(_: Lease) -> str | None:
                try:
                    return exchange.recorded(await self._get_response(request))
                finally:
                    await end_of_thread_work()

            try:
                return exchange.answer(*await kept(once, exchange.asked, work))
            except (NotToBeKept, StoreError, LeaseLost) as error:
                return exchange.answer_after(error)
        except ERRORS as error:
            return answer(error)

    async def _to_its_end(self, request: HttpRequest) -> HttpResponseBase:
        working = asyncio.create_task(self._answer_async(request))
        await ended(working)
        return working.result()


class Keys:
    """Whose keys, and for how long responses are kept: by the settings."""

    def __init__(
        self,
        *,
        application: str,
        remember: float | timedelta,
        who: str | Callable[[HttpRequest], Any],
        methods: Collection[str] = ("POST", "PATCH"),
    ) -> None:
        check_options(connect("memory://"), application, remember)
        if isinstance(methods, str):
            raise TypeError("methods must be a collection of names")
        self.who = self._imported(who) if isinstance(who, str) else who
        if not callable(self.who):
            raise TypeError(f"who must be a function, or the dotted path of one, not {who!r}")
        self.methods = frozenset(method.upper() for method in methods)
        self._application, self._remember = application, remember

    @staticmethod
    def _imported(who: str) -> Callable[[HttpRequest], Any]:
        try:
            found: Callable[[HttpRequest], Any] = import_string(who)
        except ImportError as error:
            raise ValueError(f"who={who!r} cannot be imported: {error}") from error
        return found

    @classmethod
    def of_settings(cls) -> Keys:
        """Those of the settings; `ImproperlyConfigured` if they are wrong."""
        given = setting(SETTING)
        if given is None:
            raise ImproperlyConfigured(f"settings.{SETTING} must be {_FORM}")
        try:
            return cls(**given)
        except (TypeError, ValueError) as error:
            text = f"settings.{SETTING} must be {_FORM}: {error}"
            raise ImproperlyConfigured(text) from error

    def once(self, once: Callable[..., Once], whose: str, key: str) -> Once:
        """The `Once` of a key of this owner, by the client's ``once``."""
        return once_of(once, self._application, whose, key, self._remember)


class _Exchange:
    """One request with a key, and its response."""

    def __init__(self, request: HttpRequest) -> None:
        # Before it is read; but a body that is sent in chunks has no length before.
        if (
            int(request.META.get("CONTENT_LENGTH") or 0) > LONGEST_BODY
            or len(request.body) > LONGEST_BODY
        ):
            raise BodyTooLong(f"a request under a key has more than {LONGEST_BODY} bytes")
        self._headers = list(request.headers.items())
        body = hashlib.sha256(request.body).digest()
        target = request.get_full_path()
        self.asked = fingerprint(request.method or "", target, self._headers, body)
        self._response: HttpResponseBase | None = None

    def recorded(self, response: HttpResponseBase) -> str | None:
        """The text to keep of a response; None if too long. `NotToBeKept` if it must not be."""
        self._response = response
        if is_to_be_tried_again(response.status_code, response.items()):
            raise NotToBeKept
        if not isinstance(response, HttpResponse) or len(response.content) > LONGEST_RESPONSE:
            return None
        cookies = [("Set-Cookie", each.OutputString()) for each in response.cookies.values()]
        headers = [*response.items(), *cookies]
        return Recorded(response.status_code, headers, response.content).text(self._headers)

    def answer(self, came: str, first: bool) -> HttpResponseBase:  # noqa: FBT001  # as `kept` has it
        """The response, made now or kept before."""
        if first:
            assert self._response is not None
            return self._response
        return _replayed(Recorded.of(came, self._headers))

    def answer_after(self, error: Exception) -> HttpResponseBase:
        """The response of a request that was carried out, but not kept; the error if it was not."""
        if self._response is None:
            raise error
        if not isinstance(error, NotToBeKept):
            _log.warning("%s", error)  # the request was carried out, so the response is right
        return self._response


def _replayed(recorded: Recorded) -> HttpResponse:
    response = HttpResponse(recorded.body, status=recorded.status)
    del response["Content-Type"]  # the default
    for name, value in recorded.headers:
        if name == "Set-Cookie":
            response.cookies.load(value)
        else:
            response[name] = value
    response[REPLAYED] = "true"
    return response


def _key_of(request: HttpRequest) -> str:
    key = key_of([request.headers[HEADER]], required=True)
    assert key is not None
    return key
