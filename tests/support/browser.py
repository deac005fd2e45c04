"""Helpers for tests of the page in a browser: a server of the page, and a reader of it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import uvicorn
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    StaleElementReferenceException,
)
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from starlette.applications import Starlette
from starlette.routing import Mount

import aiolock
from aiolock.page import Entrance, Page
from aiolock.page._limits import Limits
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.servers import hold_port

T = TypeVar("T")

WITHIN: Final = 20.0
"""Seconds in which an effect that comes soon must come, on a busy machine."""
CHROMIUM: Final = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), ""
)
DRIVER: Final = shutil.which("chromedriver") or ""
SECRET: Final = "a key of the page"
"""What is needed to see /locked/."""
FLAGS: Final = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--disable-dev-shm-usage",
)


def started(profile: Path) -> Chrome:
    """A browser whose files are all in this folder."""
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return Chrome(options=options, service=Service(DRIVER))


class Server:
    """Two pages of one store in a thread: /read/, and /admin/, on which one may take away."""

    def __init__(self) -> None:
        self.locks = MemoryServer()
        self.store = FaultyStore(MemoryStore(self.locks))
        self.client = aiolock.connect(self.store)
        self.other = aiolock.connect(self.locks)
        limits = Limits(every=0.1, share=1, deadlocks_every=0.1, rows=20)
        pages = {
            "/read": Page(self.client, limits=limits),
            "/admin": Page(self.client, limits=limits, may_break=lambda _: True),
        }
        self.headers = list[list[tuple[bytes, bytes]]]()
        """The headers of all requests for ``/elsewhere/``, which is what another program gets."""

        async def elsewhere(scope: Any, _: Any, send: Any) -> None:
            self.headers.append(scope["headers"])
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"elsewhere"})

        locked = Page(self.client, limits=limits, may_break=lambda _: True)
        pages["/locked"] = locked
        routes = [Mount(path, page) for path, page in pages.items() if page is not locked]
        routes += [Mount("/locked", Entrance(locked, SECRET)), Mount("/elsewhere", elsewhere)]
        app = Starlette(routes=routes)
        self._socket = hold_port()
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(
            uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, ws="none")
        )
        self._pages = pages
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._serve()])
        self._held: dict[str, aiolock.Lease] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for page in self._pages.values():
            self._loop.call_soon_threadsafe(page.end)
        self._server.should_exit = True
        self._thread.join(WITHIN)
        self._loop.close()

    async def _serve(self) -> None:
        self._socket.listen()
        async with self.client, self.other:
            await self._server.serve([self._socket])

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this where the locks are."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WITHIN)

    def hold(self, name: str) -> aiolock.Lease:
        """Another client has the lock."""

        async def acquire() -> aiolock.Lease:
            return await self.other.lock(name).acquire(label="job 17")

        lease = self._held[name] = self.do(acquire())
        return lease

    def wait_for(self, name: str) -> None:
        """And another wants it, and has it then."""

        async def ask() -> None:
            async def enter() -> None:
                async with self.other.lock(name):
                    pass

            self._task = asyncio.create_task(enter())

        self.do(ask())

    @contextlib.contextmanager
    def deadlock(self) -> Iterator[None]:
        """Two tasks of two clients wait for each other."""
        tasks = list[asyncio.Task[None]]()

        async def begin() -> None:
            both = asyncio.Barrier(2)

            async def cross(client: aiolock.LockClient, first: str, second: str) -> None:
                async with client.lock(first):
                    await both.wait()
                    async with client.lock(second):
                        pass

            clients = {"AB": self.client, "BA": self.other}
            tasks[:] = (asyncio.create_task(cross(each, *names)) for names, each in clients.items())

        async def end() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

        self.do(begin())
        try:
            yield
        finally:
            self.do(end())

    def release_all(self) -> None:
        """No client has any lock."""
        for lease in self._held.values():
            self.do(lease.release())
        self._held.clear()


class Browser:
    """The reader's view of the page, and the reader's actions."""

    def __init__(self, driver: Chrome, server: Server) -> None:
        self.driver = driver
        self.server = server
        self.expected: tuple[str, ...] = ()
        """Messages that the console may contain."""

    def open(self, path: str) -> None:
        """Go to the page, and wait for the first that it has to say."""
        self.driver.get(self.server.url + path)
        self.until(lambda: self.state() == "live")

    def until(self, condition: Callable[[], T]) -> T:
        """Wait for that."""
        give_up = time.monotonic() + WITHIN
        while not (found := condition()):
            assert time.monotonic() < give_up, self.text("body")
            time.sleep(0.05)
        return found

    def all(self, selector: str) -> list[WebElement]:
        """What there is."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script: str, *args: object) -> Any:
        """The result of a script in the page."""
        run: Any = self.driver.execute_script
        return run(script, *args)

    def text(self, selector: str) -> str:
        """The visible text."""
        found: str = self.run("return document.querySelector(arguments[0]).innerText", selector)
        return found

    def state(self) -> str:
        """What the page says of itself."""
        return str(self.run("return document.querySelector('#state').dataset.state"))

    def names(self) -> list[str]:
        """Those of the rows, as they are written."""
        found: list[str] = self.run(
            "return [...document.querySelectorAll('#rows .name')].map((name) => name.textContent)"
        )
        return found

    def press(self, text: str) -> None:
        """The button of this name that can be seen."""
        self._click(lambda: [each for each in self.all("button") if each.text == text])

    def open_row(self, row: int) -> None:
        """The details of what stands there."""
        self._click(lambda: self.all("#rows .open")[row : row + 1])

    def _click(self, find: Callable[[], list[WebElement]]) -> None:
        """Once it is there; as somebody does who tries again where it has moved meanwhile.

        A dialog that closes gives the focus back, and what has it is scrolled to.
        """

        def clicked() -> bool:
            with contextlib.suppress(
                ElementClickInterceptedException, StaleElementReferenceException
            ):
                found = find()
                assert len(found) < 2, "which of these?"
                if found:
                    found[0].click()
                    return True
            return False

        self.until(clicked)

    def look_like(self, width: int, scheme: str, height: int = 800) -> None:
        """Have a screen of this size, in the light or in the dark."""
        self.cdp(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.cdp("Emulation.setEmulatedMedia", {"features": [feature]})

    def cdp(self, command: str, arguments: dict[str, Any]) -> None:
        """Tell the browser itself."""
        tell: Any = self.driver.execute_cdp_cmd
        tell(command, arguments)

    def log(self, kind: str) -> list[dict[str, Any]]:
        """The log since the last call."""
        get: Any = self.driver.get_log
        found: list[dict[str, Any]] = get(kind)
        return found
