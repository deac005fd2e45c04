"""The page in a browser: headless Chromium, one for all of these tests."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pytest
from selenium.webdriver import Chrome

import aiolock
from tests.support.browser import CHROMIUM, DRIVER, SECRET, Browser, Server, started

HOSTILE: Final = [
    '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>',
    "two\nlines and \u202egnp.exe\u200b",
    "x" * 512,
    "a/b?c=d&e='\"#",
]

if not (CHROMIUM and DRIVER):
    pytest.skip("no Chromium here: `make test` installs it where it may", allow_module_level=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The pages, served."""
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """The browser."""
    driver = started(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


@pytest.fixture
def browser(driver: Chrome, server: Server) -> Iterator[Browser]:
    """Whoever looks; nothing goes wrong in the page, and it asks nobody but its own server."""
    browser = Browser(driver, server)
    browser.look_like(1280, "light")
    yield browser
    server.store.resume()
    server.release_all()
    for line in browser.log("browser"):
        assert any(text in line["message"] for text in browser.expected), line
    asked = list[str]()
    for line in browser.log("performance"):
        message = json.loads(line["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            asked.append(message["params"]["request"]["url"])
    assert any(url.endswith("/page.js") for url in asked)
    strangers = [url for url in asked if not url.startswith((server.url, "data:", "chrome:"))]
    assert not strangers


def test_page_shows_rows_live_and_no_buttons_to_a_reader(browser: Browser, server: Server) -> None:
    """Rows come, change and go by themselves; who may only look has nothing to press."""
    browser.open("/read/")
    browser.until(lambda: "Nothing is held or waited for" in browser.text("main"))
    server.hold("order:42")
    browser.until(lambda: browser.names() == ["order:42"])
    assert "job 17" in browser.until(lambda: browser.text("#rows .label"))
    server.wait_for("order:42")
    browser.until(lambda: browser.text("#rows .queue").split()[-1] == "1")
    assert browser.run("return document.querySelectorAll('.chart .line[d^=M]').length") == 3
    browser.open_row(0)
    browser.until(lambda: "1 waiting" in browser.text("#details-body"))
    assert "fence" in browser.text("#details-body")
    assert not browser.all("#details-body button")
    browser.press("Close")
    server.release_all()
    browser.until(lambda: not browser.names())


def test_page_shows_a_detached_lease_with_its_label_and_no_process(
    browser: Browser, server: Server
) -> None:
    """In the row, and in the details with what is left of it."""

    async def detach() -> aiolock.LeaseToken:
        lease = await server.other.lock("order:42").acquire()
        return await lease.detach(label="order 42 → worker")

    browser.open("/read/")
    token = server.do(detach())
    browser.until(lambda: "order 42 → worker" in browser.text("#rows"))
    assert "detached" in browser.text("#rows")
    browser.open_row(0)
    shown = browser.until(lambda: browser.text("#details-body .parties"))
    assert f"fence {token.fence}" in shown
    assert "s left" in shown
    assert "detached" in shown
    assert "#0" not in shown
    browser.press("Close")
    assert server.do(server.other.discard(token))
    browser.until(lambda: not browser.names())


def test_page_shows_the_shares_of_a_semaphore_and_of_a_rate_limit(
    browser: Browser, server: Server
) -> None:
    """Permits are held; tokens are not."""
    other = server.other
    slow: dict[str, Any] = {"per": 3600, "burst": 1}

    async def begin() -> tuple[aiolock.Lease, asyncio.Task[Any]]:
        lease = await other.semaphore("llm", 5, share="acme").acquire(permits=3)
        await other.rate_limit("api", 1, **slow).acquire()
        limit = other.rate_limit("api", 1, share="acme", **slow)
        return lease, asyncio.create_task(asyncio.wait_for(limit.acquire(), 3600))

    async def end() -> None:
        await lease.release()
        waits.cancel()

    def shows(text: str) -> bool:
        return text in browser.text("#details-facts")

    lease, waits = server.do(begin())
    browser.open("/read/")
    browser.until(lambda: sorted(browser.names()) == ["api", "llm"])
    for name, shown in (
        ("api", "A token every 3600 s, 1 at most. Shares: acme: 1 waiting."),
        ("llm", "Shares: acme: 3 held, 0 waiting."),
    ):
        browser.open_row(browser.names().index(name))
        browser.until(partial(shows, shown))
        browser.press("Close")
    server.do(end())
    browser.until(lambda: not browser.names())


def test_page_search_shows_matching_locks_and_is_kept_in_the_address(
    browser: Browser, server: Server
) -> None:
    """It is the server that searches; the address says what is shown."""
    for n in range(3):
        server.hold(f"order:{n}")
    browser.open("/read/")
    browser.until(lambda: len(browser.names()) == 3)
    (search,) = browser.all("#search")
    search.send_keys("order:[12]")
    browser.until(lambda: sorted(browser.names()) == ["order:1", "order:2"])
    assert browser.text("#count") == "2 locks, of 3 in all"
    browser.driver.refresh()
    browser.until(lambda: sorted(browser.names()) == ["order:1", "order:2"])
    browser.press("Pause")
    server.release_all()
    time.sleep(0.5)
    assert len(browser.names()) == 2
    browser.press("Go on")
    browser.until(lambda: not browser.names())


def test_page_reaches_every_lock_by_its_pages_and_keeps_the_page_in_the_address(
    browser: Browser, server: Server
) -> None:
    """A page of the list at a time; another search begins with its first page."""
    for n in range(45):
        server.hold(f"order:{n:02}")
    browser.open("/read/?sort=name")
    browser.until(lambda: len(browser.names()) == 20)
    assert browser.text("#count") == "1 to 20 of 45 locks"
    assert not browser.run("return document.querySelector('#previous:disabled') === null")
    seen = browser.names()
    for first, last in ((20, 40), (40, 45)):
        browser.press("Next")
        seen += browser.until(partial(of_page, browser, f"order:{first}"))
        assert len(seen) == last
    assert seen == [f"order:{n:02}" for n in range(45)]
    assert browser.text("#place") == "41 to 45 of 45"
    assert not browser.run("return document.querySelector('#next:disabled') === null")
    browser.driver.refresh()
    browser.until(lambda: browser.names() == seen[40:])
    browser.press("Previous")
    browser.until(lambda: browser.names() == seen[20:40])
    (search,) = browser.all("#search")
    search.send_keys("order:?1")
    browser.until(lambda: browser.names() == [f"order:{n}1" for n in range(5)])
    assert browser.run("return location.search") == "?q=order%3A%3F1&sort=name"
    assert browser.run("return document.querySelector('#pages').hidden")


def of_page(browser: Browser, first: str) -> list[str]:
    """The names that are shown, if that is the first of them."""
    names = browser.names()
    return names if names[:1] == [first] else []


def test_page_on_a_phone_shows_the_first_lock_above_the_fold_with_a_deadlock_too(
    browser: Browser, server: Server
) -> None:
    """All of it, below the charts, the search and the deadlock."""
    for name in ("order:1", "order:2"):
        server.hold(name)
    browser.look_like(390, "light", 844)
    browser.open("/read/")
    browser.until(lambda: len(browser.names()) == 2)
    bottom = "return document.querySelector('#rows tr').getBoundingClientRect().bottom"
    assert browser.run(bottom) < 844
    with server.deadlock():
        browser.until(lambda: "2 tasks wait for each other" in browser.text("#deadlocks"))
        assert browser.run(bottom) < 844


def test_page_shows_hostile_names_as_text(browser: Browser, server: Server) -> None:
    """They are text, and what cannot be seen in them is written out."""
    for name in HOSTILE:
        server.hold(name)
    browser.open("/admin/")
    browser.until(lambda: len(browser.names()) == len(HOSTILE))
    shown = set(browser.names())
    assert shown == {
        HOSTILE[0],
        "two\\nlines and \\u{202e}gnp.exe\\u{200b}",
        *HOSTILE[2:],
    }
    for row in range(len(HOSTILE)):
        browser.open_row(row)
        browser.until(lambda: "fence" in browser.text("#details-body"))
        assert (
            browser.run("return document.querySelector('#details-name bdi').textContent") in shown
        )
        browser.press("Close")
    assert not browser.all("img, main script, dialog script")
    assert browser.run("return window.hacked") is None


def test_page_asks_for_release_and_breaks_after_confirmation(
    browser: Browser, server: Server
) -> None:
    """Asked for, and taken away once somebody has said yes to that."""
    lease = server.hold("report")
    browser.open("/admin/")
    browser.until(lambda: browser.names() == ["report"])
    browser.open_row(0)
    browser.press("Ask to release")
    browser.until(lambda: browser.text("#details-said") == "Asked to release.")
    assert lease.requested.is_set()
    browser.press("Take away")
    browser.until(lambda: "Take report away from" in browser.text("#confirm-question"))
    browser.press("Leave it")
    assert not lease.lost.is_set()
    browser.press("Take away")
    browser.press("Take it away")
    browser.until(lambda: browser.text("#details-said") == "Taken away.")
    assert lease.lost.is_set()
    browser.until(lambda: "No holder" in browser.text("#details-body"))
    browser.press("Close")
    browser.until(lambda: not browser.names())


def test_page_shows_a_failing_store_or_closed_client_and_goes_on(
    browser: Browser, server: Server
) -> None:
    """A store that fails, and a client that is closed, are said so; then it goes on."""
    server.hold("report")
    browser.open("/read/")
    browser.until(lambda: browser.names() == ["report"])
    server.store.refuse("snapshot", math.inf)
    browser.until(lambda: browser.state() == "trouble")
    assert "What is shown here is" in browser.text("#trouble")
    assert browser.names() == ["report"]
    server.store.resume()
    browser.until(lambda: browser.state() == "live")
    assert browser.text("#trouble") == ""
    browser.expected = ("503 (Service Unavailable)",)
    server.do(server.client.aclose())
    browser.until(lambda: "open" in browser.text("#trouble"))
    server.do(server.client.open())
    browser.until(lambda: browser.state() == "live")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_page_fits_its_width_with_readable_contrast_on_phone_and_in_dark(
    browser: Browser, server: Server, width: int, scheme: str
) -> None:
    """Nothing stands out at the side, and all text can be read, also on a phone and in the dark."""
    for name in (*HOSTILE, "report"):
        server.hold(name)
    browser.look_like(width, scheme)
    browser.open("/admin/")
    browser.until(lambda: len(browser.names()) > len(HOSTILE))
    wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert browser.run(wide) <= 0
    dim, text, ground = (
        lightness(browser.run(f"return getComputedStyle(document.querySelector({of}"))
        for of in ("'#count')).color", "'body')).color", "'body')).backgroundColor")
    )
    assert (ground < 0.2) is (scheme == "dark")
    assert contrast(text, ground) > 7
    assert contrast(dim, ground) > 4.5
    browser.open_row(0)
    browser.until(lambda: "fence" in browser.text("#details-body"))
    wide = "return arguments[0].scrollWidth - arguments[0].clientWidth"
    assert browser.run(wide, *browser.all("#details")) <= 0
    browser.press("Close")


def lightness(color: str) -> float:
    """The relative luminance of a colour, as WCAG has it."""
    values = [float(value) / 255 for value in color[color.index("(") + 1 : -1].split(",")[:3]]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]
    return sum(part * v for part, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: float, other: float) -> float:
    """Between two of them."""
    light, dark = max(one, other), min(one, other)
    return (light + 0.05) / (dark + 0.05)


def test_page_key_is_read_from_the_fragment_and_sent_to_the_page_alone(
    browser: Browser, server: Server
) -> None:
    """It comes behind the #, stays in the tab, and is sent to the page alone."""
    browser.expected = ("403",)
    server.hold("order:42")
    browser.driver.get(f"{server.url}/locked/")
    browser.until(lambda: "Open the page with its key" in browser.text("#trouble"))
    assert browser.names() == []
    browser.open(f"/locked/?q=order#key={SECRET.replace(' ', '%20')}")
    browser.until(lambda: browser.names() == ["order:42"])
    assert browser.run("return location.hash") == ""
    assert browser.run("return location.search") == "?q=order"
    assert browser.run("return document.cookie") == ""
    browser.driver.refresh()
    browser.until(lambda: browser.names() == ["order:42"])
    browser.run("fetch('/elsewhere/').then(() => { window.came = true; })")
    browser.until(lambda: browser.run("return window.came"))
    for headers in server.headers:
        assert not {b"cookie", b"x-aiolock-key"} & {name for name, _ in headers}
        assert SECRET.encode() not in b"".join(value for _, value in headers)
    assert server.headers
    browser.open("/locked/")
    browser.until(lambda: browser.names() == ["order:42"])
    browser.run("sessionStorage.clear()")
    browser.driver.get(f"{server.url}/locked/#key=wrong")
    browser.until(lambda: "Open the page with its key" in browser.text("#trouble"))
