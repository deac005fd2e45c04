"""The report of ``aiolock check --report``: what a maintainer asks about an installation.

Of the URL only the kind of the store and the names of the options; of the server its version and
the settings that matter for locks. Nothing of that is secret.
"""

from __future__ import annotations

import asyncio
import importlib
import platform
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Final, Protocol, cast
from urllib.parse import parse_qsl, urlsplit

import aiolock

DISTRIBUTION: Final = "aiolock-redis"
_BESIDE: Final = ("hiredis", "uvloop")
"""Packages that matter, and that ours does not name, or only as an extra of another."""
_STORES: Final = {
    "redis": "redis",
    "rediss": "redis",
    "unix": "redis",
    "valkey": "redis",
    "valkeys": "redis",
    "sqlite": "sqlite",
    "postgresql": "postgres",
    "postgres": "postgres",
    "mysql": "mysql",
    "mariadb": "mysql",
    "etcd": "etcd",
    "etcds": "etcd",
}
_NAME: Final = re.compile(r"[A-Za-z_]{1,40}")
_SECONDS: Final = 10.0
"""For the server to say what it is."""

Report = Mapping[str, Mapping[str, str]]
"""Facts by their names, in parts that have a name, too."""


class _Asked(Protocol):
    """A package of a store that knows facts about its servers."""

    facts: Callable[[str], Awaitable[dict[str, str]]]


async def report(url: str) -> Report:
    """The facts. A server that cannot be asked is one of them; nothing is raised for that."""
    return {"versions": dict(_versions()), "store": {**dict(_of_url(url)), **await _server(url)}}


def text(found: Report) -> str:
    """A report as text: a line for each fact, in parts."""
    lines = list[str]()
    for part, facts in found.items():
        lines.append(f"{part}:")
        width = max(map(len, facts), default=0)
        lines += [f"  {name:<{width}}  {value}".rstrip() for name, value in facts.items()]
    return "\n".join(lines)


def _versions() -> Iterator[tuple[str, str]]:
    yield "aiolock", aiolock.__version__
    yield "Python", f"{platform.python_implementation()} {platform.python_version()}"
    yield "system", platform.platform()
    loop = type(asyncio.get_running_loop())
    yield "event loop", f"{loop.__module__}.{loop.__qualname__}"
    for name in sorted({*_named_packages(), *_BESIDE}, key=str.lower):
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue  # an extra that nobody uses here


def _named_packages() -> Iterator[str]:
    """The packages that ours needs, or that one of its extras brings."""
    try:
        needed = requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # run from a folder, without having been installed
        needed = []
    for each in needed:
        if found := re.match(r"[\w.-]+", each):
            yield found[0]


def _of_url(url: str) -> Iterator[tuple[str, str]]:
    """The parts of a URL that are no secret. One that cannot be read is refused before."""
    parts = urlsplit(url)
    yield "kind", parts.scheme
    # A value with a raw & in it is no option; an option is a word.
    options = sorted({name for name, _ in parse_qsl(parts.query, keep_blank_values=True)})
    yield "options", ", ".join(each for each in options if _NAME.fullmatch(each)) or "none"


async def _server(url: str) -> Mapping[str, str]:
    """What the server says of itself."""
    store = _STORES.get(url.partition(":")[0].partition("+")[0])
    if store is None:
        return {}  # in memory
    try:
        asked = cast("_Asked", importlib.import_module(f"aiolock.stores.{store}"))
        async with asyncio.timeout(_SECONDS):
            return await asked.facts(url)
    except Exception as error:  # noqa: BLE001  # whatever a driver raises; its text may have secrets
        return {"server": f"not asked: {type(error).__name__}"}
