"""Starts the server, the workers and a proxy for each, and breaks them by the plan."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from tests.chaos.choices import PLACES
from tests.chaos.faults import LATE_WITHIN, LINKS, PROCESS, Fault, plan
from tests.chaos.history import History
from tests.procs import Worker
from tests.proxy import Link, Proxy
from tests.servers import RedisServer

READY_WITHIN: Final = 20.0
QUIET_WITHIN: Final = 40.0
"""Seconds in which all that is under way comes to its end once nothing is broken any more."""
FINAL_WITHIN: Final = 30.0
CLOSE_WITHIN: Final = 15.0
_STANDING: Final = 0.2
"""Seconds between two looks at who stands at the server."""
_WHO_STANDS: Final = """
local clock, standing = redis.call('TIME'), {}
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
for _, key in ipairs(redis.call('KEYS', '*:holders')) do
  local holders = redis.call('ZRANGEBYSCORE', key, now + 1, '(1e15')
  if holders[1] then
    standing[#standing + 1] = {key, holders}
  end
end
for _, key in ipairs(redis.call('KEYS', '*:queue')) do
  standing[#standing + 1] = {key, redis.call('ZRANGE', key, 0, -1)}
end
return {clock[1] .. string.format('%06d', clock[2]), standing}
"""
_LOAD_KEY: Final = 4_000
"""Microseconds that the server takes to load one key."""
_FILL: Final = """
for i = 1, ARGV[1] do
  redis.call('SET', 'filler' .. i, ('x'):rep(100000), 'PX', 5000)
end
"""
"""Something to load; the server has an ear for others after every two megabytes of it."""
_SLOW: Final = 0.1
"""Seconds in which the server, and this process with its proxies, must have run."""


class Slot:
    """A place for a worker process, with a proxy of its own; a killed worker is replaced."""

    def __init__(self, conductor: Conductor, name: str, proxy: Proxy) -> None:
        self._conductor = conductor
        self.name = name
        self.proxy = proxy
        self._generation = -1
        self._workers: list[Worker] = []

    async def start(self) -> None:
        """Start a process, which does not mean that it is ready."""
        self._generation += 1
        conductor = self._conductor
        self.who = f"{self.name}.{self._generation}"
        self.worker = Worker(
            *("-W", "error", "-m", "tests.chaos.worker", self.name, str(self._generation)),
            *(conductor.seed, self.proxy.url, str(conductor.folder), str(conductor.tasks)),
        )
        self._workers.append(self.worker)
        await conductor.stack.enter_async_context(self.worker)

    @property
    def entries(self) -> int:
        """How many bodies were entered, as far as we have heard."""
        return sum(
            max((said["entries"] for said in worker.history if said["event"] == "pulse"), default=0)
            for worker in self._workers
        )

    async def kill(self) -> None:
        """Kill the process, and return when it is dead and the server has noticed, if it does."""
        ports = _ports(self.proxy.links)
        since = time.monotonic_ns()
        self.worker.kill()
        await self.worker.wait()
        self._conductor.history.note("killed", who=self.who, since=since)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):  # behind a link that is deaf it never may
                while await self._conductor.clients(ports):  # noqa: ASYNC110  # it tells nobody
                    await asyncio.sleep(0.005)
                self._conductor.history.note("gone", who=self.who)

    async def does(self, what: str, within: float) -> bool:
        """Tell the process to do something, and wait until it says that it has; whether it did."""
        try:
            if what != "ready":
                await self.worker.send({"do": what})
            if what == "close":
                code = await self.worker.wait(within=within)
                self._conductor.history.note("exited", who=self.who, code=code)
            else:
                await self.worker.expect(what, within=within)
        except (TimeoutError, OSError, EOFError) as error:
            text = f"{what} within {within:g} s: {type(error).__name__}"
            self._conductor.history.note("stuck", who=self.who, what=text)
            return False
        return True

    def links(self, sort: str) -> list[Link]:
        """The links of one sort: "commands", "subscription", or all."""
        which = {"commands": [False], "subscription": [True], "": [False, True]}[sort]
        return [link for link in self.proxy.links if link.is_subscription in which]


class Conductor:
    """One run."""

    def __init__(
        self, folder: Path, *, seconds: float, seed: str, workers: int, tasks: int
    ) -> None:
        self.folder = folder
        self.seed = seed
        self.tasks = tasks
        self._seconds = seconds
        self._slot_names = [str(number) for number in range(workers)]

    async def run(self, progress: Callable[[str], object]) -> None:
        """Do it all; what happened is in the folder then."""
        self.history = History(self.folder, "conductor")
        async with AsyncExitStack() as self.stack:
            self._server = self.stack.enter_context(
                RedisServer("--key-load-delay", str(_LOAD_KEY), "--rdbcompression", "no")
            )
            self._admin = await self.stack.enter_async_context(
                redis.asyncio.Redis(
                    unix_socket_path=self._server.socket_path,
                    decode_responses=True,
                    socket_timeout=2.0,
                    retry=Retry(NoBackoff(), 1),
                )
            )
            self._slots: dict[str, Slot] = {}
            for name in self._slot_names:
                proxy = await self.stack.enter_async_context(Proxy(self._server.port))
                self._slots[name] = Slot(self, name, proxy)
                await self._slots[name].start()
            self.history.note("began", seed=self.seed, seconds=self._seconds, names=tuple(PLACES))
            if await self._all_do("ready", READY_WITHIN):
                await self._conduct(progress)
        self.history.close()

    async def _all_do(self, what: str, within: float) -> bool:
        return all(
            await asyncio.gather(*(slot.does(what, within) for slot in self._slots.values()))
        )

    async def _conduct(self, progress: Callable[[str], object]) -> None:
        self._began = time.monotonic()
        self._faults = 0
        self._late: set[asyncio.Task[None]] = set()
        watching = {
            asyncio.create_task(watch)
            for watch in (self._pulse(), self._look(), self._stand(), self._tell(progress))
        }
        lanes = plan(self.seed, self._seconds, self._slot_names)
        async with asyncio.TaskGroup() as group:
            for lane in lanes.values():
                group.create_task(self._follow(lane))
            group.create_task(self._until(self._seconds))
        self.history.note("quiet")
        progress(f"{self._seconds:4.0f} s  nothing is broken any more")
        if self._late:
            await asyncio.wait(self._late)
        for what, within in (
            ("quiet", QUIET_WITHIN),
            ("final", FINAL_WITHIN),
            ("close", CLOSE_WITHIN),
        ):
            await self._all_do(what, within)
        while watching:  # more than once: a cancellation may get lost in the driver
            for task in watching:
                task.cancel()
            _, watching = await asyncio.wait(watching, timeout=1)
        await self._look_over()

    async def _until(self, at: float) -> None:
        await asyncio.sleep(self._began + at - time.monotonic())

    async def _tell(self, progress: Callable[[str], object]) -> None:
        while True:
            await asyncio.sleep(5.0)
            seconds = time.monotonic() - self._began
            entries = sum(slot.entries for slot in self._slots.values())
            progress(f"{seconds:4.0f} s  {entries:,} entries, {self._faults} faults")

    async def _pulse(self) -> None:
        """Notice when the server, or this process with its proxies, has not run."""
        last = time.monotonic_ns()
        while True:
            await asyncio.sleep(0.02)
            with contextlib.suppress(RedisError, OSError):
                await self._admin.ping()
            now = time.monotonic_ns()
            if now - last > _SLOW * 1e9:
                self.history.note("fault", kind="slow", target="all", since=last)
            last = now

    async def _look(self) -> None:
        """Look now and then for a key that would stay for ever."""
        while True:
            with contextlib.suppress(RedisError, OSError):
                async for key in self._admin.scan_iter("*"):
                    if await self._admin.pttl(key) == -1:
                        self.history.note("key", key=key, ttl=-1, holders=(), waiters=())
            await asyncio.sleep(1.0)

    async def _stand(self) -> None:
        """Write down, again and again, who stands at the server: as a holder, and in a queue."""
        while True:
            since = time.monotonic_ns()
            with contextlib.suppress(RedisError, OSError):
                now, standing = await self._admin.eval(_WHO_STANDS, 0)
                holders: dict[str, Any] = {}
                queues: dict[str, Any] = {}
                for key, those in standing:
                    stem, _, what = key.rpartition(":")
                    (holders if what == "holders" else queues)[stem] = those
                self.history.note(
                    "standing", since=since, now=int(now), holders=holders, queues=queues
                )
            await asyncio.sleep(_STANDING)

    async def _look_over(self) -> None:
        """Write down what is left at the server, once everybody is gone."""
        now, _ = await self._admin.time()
        async for key in self._admin.scan_iter("*"):
            holders: Any = ()
            waiters: Any = ()
            if key.endswith(":holders"):
                holders = await self._admin.zrangebyscore(key, now * 1000, 10**15 - 1)
            elif key.endswith(":queue"):
                waiters = await self._admin.zrange(key, 0, -1)
            ttl = await self._admin.pttl(key)
            if ttl != -2:  # else it has gone since
                of_whom = [[who.split(":")[1] for who in those] for those in (holders, waiters)]
                self.history.note("key", key=key, ttl=ttl, holders=of_whom[0], waiters=of_whom[1])

    # Faults

    async def _follow(self, lane: list[Fault]) -> None:
        for fault in lane:
            await self._until(fault.at)
            self._faults += 1
            since = time.monotonic_ns()
            if fault.kind in PROCESS:
                await self._break_process(fault, self._slots[fault.target])
            elif fault.kind in LINKS:
                await self._break_links(fault, self._slots[fault.target])
            else:
                await self._break_server(fault)
            self.history.note("fault", kind=fault.kind, target=fault.target, since=since)

    async def _break_process(self, fault: Fault, slot: Slot) -> None:
        if slot.worker._ended.is_set():
            code = await slot.worker.wait()
            self.history.note("exited", who=slot.who, code=code)
            await slot.start()
        elif fault.kind == "stop":
            slot.worker.stop()
            await asyncio.sleep(fault.seconds)
            slot.worker.cont()
        else:
            await slot.kill()
            await asyncio.sleep(fault.seconds)
            await slot.start()

    async def _break_links(self, fault: Fault, slot: Slot) -> None:
        kind, _, sort = fault.kind.partition("_")
        links = slot.links(sort)
        if kind == "cut":
            for link in links:
                link.cut()
        elif kind == "kill":
            await self._kill(links)
        elif kind == "late":
            await self._hold_up(slot.links("commands"), fault)
        else:
            mend = self._impair(kind, slot.proxy, links if sort else [], random.Random(fault.dice))
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
            after = dice.choice((dice.uniform(0, 3.0), dice.uniform(0, LATE_WITHIN)))
            late = asyncio.create_task(self._deliver(link, most, after))
            self._late.add(late)
            late.add_done_callback(self._late.discard)

    async def _deliver(self, link: Link, most: int, after: float) -> None:
        await asyncio.sleep(after)
        since = time.monotonic_ns()
        # A server that was restarted meanwhile has closed it; one that is frozen reads it later.
        with contextlib.suppress(OSError, AssertionError, TimeoutError):
            async with asyncio.timeout(10):
                answers = await link.deliver(most)
                refused = answers.count(b"-LATE ")
                self.history.note("late", since=since, bytes=most, refused=refused)
        if link in link._proxy.late:
            link.forget()

    def _impair(
        self, kind: str, proxy: Proxy, links: list[Link], dice: random.Random
    ) -> Callable[[], None]:
        """Do something to links that goes on until what is returned is called."""
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

    async def _kill(self, links: list[Link]) -> None:
        """Have the server close these links."""
        for number in await self.clients(_ports(links)):
            with contextlib.suppress(RedisError, OSError):
                await self._admin.client_kill_filter(_id=number)

    async def clients(self, ports: set[int]) -> list[str]:
        """What the server calls its clients at these ports; [""] when it does not answer."""
        try:
            clients = await self._admin.client_list()
        except (RedisError, OSError):
            return [""]
        return [c["id"] for c in clients if int(c["addr"].rpartition(":")[2]) in ports]

    async def _break_server(self, fault: Fault) -> None:
        server, admin = self._server, self._admin
        match fault.kind:
            case "pause" | "pause_writes":
                await admin.client_pause(int(fault.seconds * 1000), fault.kind == "pause")
                await asyncio.sleep(fault.seconds)
            case "freeze" | "freeze_long":
                server.pause()
                await asyncio.sleep(fault.seconds)
                server.resume()
            case "refuse_unreplicated":
                await admin.config_set("min-replicas-to-write", 1)
                await asyncio.sleep(fault.seconds)
                await admin.config_set("min-replicas-to-write", 0)
            case "refuse_unsaved":
                await self._save_in_vain(fault.seconds)
            case "load":
                await self._load(fault.seconds)
            case "flush_scripts":
                await admin.script_flush()
            case "kill_subscriptions":
                await admin.client_kill_filter(_type="pubsub")
            case "kill_connections":
                await admin.client_kill_filter(_type="normal")
            case "flush" | "restart":
                await self._wipe(fault)

    async def _wipe(self, fault: Fault) -> None:
        """Have the server forget everything."""
        since = time.monotonic_ns()
        if fault.kind == "flush":
            await self._admin.flushall()
        else:
            self._server.kill()
            await asyncio.sleep(fault.seconds)
            self._server.start()
        seconds, micros = await self._admin.time()
        self.history.note("wiped", since=since, fence=seconds * 1_000_000 + micros)

    async def _save_in_vain(self, seconds: float) -> None:
        """Let the server fail to save, so that it refuses whatever it could not save."""
        self._server.dump.mkdir()  # in the way of its file
        await self._admin.config_set("save", "3600 1")
        with contextlib.suppress(RedisError):
            await self._admin.bgsave()
        await asyncio.sleep(seconds)
        await self._admin.config_set("save", "")
        self._server.dump.rmdir()

    async def _load(self, seconds: float) -> None:
        """Restart the server with all that it knows, which it takes so many seconds to load."""
        await self._admin.eval(_FILL, 0, int(seconds * 1e6 / _LOAD_KEY))
        with contextlib.suppress(RedisError):
            await self._admin.shutdown(save=True)
        self._server.kill()  # it has ended
        self._server.launch()
        while True:
            with contextlib.suppress(RedisError, OSError):
                if await self._admin.ping():
                    break
            await asyncio.sleep(0.02)
        self._server.dump.unlink()


def _ports(links: list[Link]) -> set[int]:
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
