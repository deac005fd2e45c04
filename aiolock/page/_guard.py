"""Checks who may see the page and take locks away, and from which site a request comes.

A page of another site can make a browser send requests. So a request that changes something must
come from this page. Browsers tell where a request comes from, in ``Sec-Fetch-Site`` or ``Origin``.
In addition it must have a header that a browser lets another origin send only if we permit it,
which we never do. There is no cookie: other programs on the same host would get it, whatever port
they listen at.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection
from ipaddress import ip_address
from typing import Final, TypeAlias
from urllib.parse import urlsplit

from aiolock.page._http import Refused, Request, Scope

Permission: TypeAlias = Callable[[Scope], bool | Awaitable[bool]]
"""A function of the ASGI scope of a request, which returns whether it may; may be async."""

OURS: Final = "x-aiolock-page"
"""The header of the page's orders; its value does not matter."""

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src data: 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'"
)
HEADERS: Final = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
"""The headers of every answer: only files of the page run, nothing else is fetched, no site can
frame it, and no text becomes markup, whatever a script tries."""


def check_host(request: Request, allowed: Collection[str] | None) -> None:
    """Refuse a request to another host name, if the names are given.

    The name of another site may be made to lead to this machine; then a page of that site has the
    same origin as this one (DNS rebinding). An address is not a name.
    """
    if allowed is not None and not _is_known(request.headers.get("host", ""), allowed):
        raise Refused(421, "this page has another name")


def _is_known(host: str, allowed: Collection[str]) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name in allowed:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


async def is_permitted(permission: Permission | None, scope: Scope) -> bool:
    """Whether the permission is given; without a permission function it is not."""
    if permission is None:
        return False
    said = permission(scope)
    return bool(await said if inspect.isawaitable(said) else said)


async def check_may_see(permission: Permission | None, scope: Scope) -> None:
    """Refuse a request that may not see the page; without a permission function all may."""
    if permission is not None and not await is_permitted(permission, scope):
        raise Refused(403, "you may not see this page")


def check_read_here(request: Request) -> None:
    """Refuse to work for a page of another site, which could not read the answer anyway."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Refused(403, "another site asks for this")


def check_sent_here(request: Request) -> None:
    """Refuse a request that this page has not sent."""
    headers = request.headers
    if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Refused(415, "the body must be application/json")
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is None and origin is None:
        raise Refused(403, "nothing says where this comes from: send an Origin")
    if site not in (None, "same-origin"):
        raise Refused(403, "another site has sent this")
    # Trust a browser that says it is the same origin: behind a proxy the host may differ.
    if site is None and not _is_of(origin or "", headers.get("host", "")):
        raise Refused(403, "another site has sent this")
    if not headers.get(OURS):
        raise Refused(403, f"the header {OURS} is missing: load the page again")


def _is_of(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return bool(host) and parts.scheme in ("http", "https") and parts.netloc == host
