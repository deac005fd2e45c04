"""The links of one process to a server, through a proxy that breaks them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from tests.proof.chaos.faults import LATE_WITHIN, Fault
from tests.proof.chaos.history import History
from tests.support.proxy import Link, Proxy


class Behind(Protocol):
    """The server behind the proxies."""

    late: Late

    async def clients(self, of: set[int]) -> list[str]:
        """What the server calls its clients at these ports; [""] when it does not answer."""

    async def kill(self, links: list[Link]) -> None:
        """Have the server close these links."""


class Late:
    """What was held up on links that were cut, and comes to the server later."""

    def __init__(
        self, history: History, *, refusal: bytes | None = None, within: float = LATE_WITHIN
    ) -> None:
        """``refusal``: what the server says of each that comes too late, if it knows.

        ``within``: seconds within which all of it comes.
        """
        self.within = within
        self._history = history
        self._refusal = refusal
        self._tasks = set[asyncio.Task[None]]()

    def deliver(self, link: Link, most: int, after: float) -> None:
        """Let so many bytes arrive that were held up on a link, after so many seconds."""
        late = asyncio.create_task(self._deliver(link, most, after))
        self._tasks.add(late)
        late.add_done_callback(self._tasks.discard)

    async def _deliver(self, link: Link, most: int, after: float) -> None:
        await asyncio.sleep(after)
        since = time.monotonic_ns()
        # A server that was restarted meanwhile has closed it; one that is frozen reads it later.
        with contextlib.suppress(OSError, AssertionError, TimeoutError):
            async with asyncio.timeout(10):
                answers = await link.deliver(most)
                refused = answers.count(self._refusal) if self._refusal else 0
                self._history.note("late", since=since, bytes=most, refused=refused)
        if link in link._proxy.late:
            link.forget()

    async def settled(self) -> None:
        """Return when all has arrived."""
        if self._tasks:
            await asyncio.wait(self._tasks)


class ProxyDoor:
    """A proxy, which one process at a time uses."""

    def __init__(self, target: Behind, proxy: Proxy, url: str) -> None:
        """``url`` leads through the proxy."""
        self._target = target
        self._proxy = proxy
        self.url = url

    def visitor(self, pid: int) -> Callable[[], Awaitable[bool]]:
        # Of one that is held up, the server does not know either that its client is gone.
        of = ports([*self._proxy.links, *self._proxy.late])

        async def is_known() -> bool:
            return bool(await self._target.clients(of))

        return is_known

    def _links(self, sort: str = "") -> list[Link]:
        """The links of one sort: "commands", "subscription", or all."""
        which = {"commands": [False], "subscription": [True], "": [False, True]}[sort]
        return [link for link in self._proxy.links if link.is_subscription in which]

    async def strike(self, fault: Fault, pid: int) -> None:
        kind, _, sort = fault.kind.partition("_")
        links = self._links(sort)
        if kind == "cut":
            for link in links:
                link.cut()
        elif kind == "kill":
            await self._target.kill(links)
        elif kind == "late":
            await self._hold_up(self._links("commands"), fault)
        else:
            mend = self._impair(kind, links if sort else [], random.Random(fault.dice))
            await asyncio.sleep(fault.seconds)
            mend()

    async def _hold_up(self, links: list[Link], fault: Fault) -> None:
        """Cut links, and let what was on its way on them arrive when nobody wants it any more."""
        for link in links:
            link.withhold()
        await asyncio.sleep(fault.seconds)
        dice = random.Random(fault.dice)
        for link in links:
            link.cut_client()
            # All of it, or torn somewhere; most of it while copies of it may still be valid.
            most = dice.choice((link.withheld, dice.randint(0, link.withheld)))
            after = dice.choice((dice.uniform(0, 3.0), dice.uniform(0, self._target.late.within)))
            self._target.late.deliver(link, most, after)

    def _impair(self, kind: str, links: list[Link], dice: random.Random) -> Callable[[], None]:
        """Do something to links that goes on until what is returned is called."""
        proxy = self._proxy
        if kind == "refuse":
            proxy.refuse()
            proxy.cut()
            return proxy.accept
        if kind == "delay":
            proxy.delay(to_server=dice.uniform(0, 0.1), to_client=dice.uniform(0, 0.2))
            return proxy.delay
        if kind == "swallow":
            proxy.swallow_replies(dice.randint(1, 3))
            return lambda: _disarm(proxy)
        if kind == "tear":
            proxy.cut_after(dice.randint(1, 500))
            return lambda: setattr(proxy, "_cutting", None)
        if not links:  # deafen, drop
            proxy.deaf(drop=kind == "drop")
            return proxy.hear
        for link in links:
            link.deaf()
        return lambda: _hear(links)


def ports(links: list[Link]) -> set[int]:
    """The ports by which the server knows these links."""
    return {end.getsockname()[1] for link in links for end in link._ends[1:]}


def _disarm(proxy: Proxy) -> None:
    """Swallow no more replies; a link that has lost some must not go on without them."""
    trap, proxy._swallowing = proxy._swallowing, None
    if trap is not None and trap.link is not None:
        trap.link.cut()


def _hear(links: list[Link]) -> None:
    for link in links:
        link.hear()
