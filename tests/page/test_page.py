"""The page, asked as a server asks it: its routes, and who may do what."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

import aiolock
from aiolock.page import Page, web
from aiolock.page._limits import Limits
from aiolock.stores.memory import MemoryServer
from aiolock.testing import FaultyStore
from tests.support.viewers import ORIGIN, Viewer, Visitor, is_safe, scope_of, visiting
from tests.support.worlds import queued

HOSTILE = [
    "a/b/../c?d=e&f#g",
    "<img src=x onerror=alert(1)>",
    "\"'`\\ %00%2f {}",
    "two\nlines\r\n\ndata: x",
    "\u202egnp.exe\u200b",
    "\x00\x1b[31m",
    "☃\U0001f512",
    "n" * 512,
    "\U0001f512" * 512,
]


@pytest.fixture
async def page(client: aiolock.LockClient) -> Page:
    """A page on which everybody may do everything."""
    return web(client, may_break=lambda _: True)


async def enter(semaphore: aiolock.Semaphore) -> None:
    """Wait for a permit, and give it back."""
    async with semaphore:
        pass


async def reading(client: aiolock.LockClient, count: int) -> list[aiolock.Lease]:
    """So many tasks that share the lock "a"."""

    async def read() -> aiolock.Lease:
        return await client.rwlock("a").read().acquire()

    return await asyncio.gather(*(asyncio.create_task(read()) for _ in range(count)))


async def test_page_serves_its_files_by_relative_addresses_with_safe_headers(page: Page) -> None:
    """The page, and all that it names, and nothing else; by relative addresses."""
    async with Visitor(page) as visitor:
        html = await visitor.get("/")
        assert html.headers["content-type"] == "text/html; charset=utf-8"
        found = set(re.findall(r'(?:src|href)="([^":]+)"', html.text))
        seen = set[str]()
        while found - seen:
            name = (found - seen).pop()
            answer = await visitor.get(f"/{name}")
            assert answer.status_code == 200
            is_safe(answer)
            media = {"js": "text/javascript", "css": "text/css"}[name.partition(".")[2]]
            assert answer.headers["content-type"] == f"{media}; charset=utf-8"
            assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
            assert "https://" not in answer.text
            assert "innerHTML" not in answer.text
            seen.add(name)
            found |= set(re.findall(r'from "\./([^"]+)"', answer.text))
        assert "server.js" in seen
        assert not re.search(r"\son\w+=|style=|<script(?! type=\"module\" src=)", html.text)


async def test_page_refuses_unknown_paths_and_methods_with_safe_headers(page: Page) -> None:
    """What there is not, and what is asked for otherwise; everything with the same headers."""
    async with visiting(page) as visitor:
        for path in ("/", "/page.css", "/session", "/events", "/lock?kind=lock&name=a"):
            head = await visitor.head(path)
            assert (head.status_code, head.content) == (200, b"")
            is_safe(head)
            answer = await visitor.put(path)
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
            is_safe(answer)
        for path in ("/break", "/ask"):
            answer = await visitor.get(path)
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        for path in ("/locks", "/..%2fpage.css", "/index.html", "/__init__.py", "/%00"):
            answer = await visitor.get(path)
            assert answer.status_code == 404
            is_safe(answer)


@pytest.mark.parametrize("root", ["", "/ops"])
async def test_page_mounted_in_fastapi_serves_under_its_prefix(
    client: aiolock.LockClient, root: str
) -> None:
    """In an application of FastAPI, itself behind a prefix or not."""
    app = FastAPI()
    app.mount("/locks", web(client))
    transport = httpx.ASGITransport(app, root_path=root)
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN) as visitor:
        assert (await visitor.get(f"{root}/locks")).headers["location"] == f"{ORIGIN}{root}/locks/"
        assert "<title>aiolock</title>" in (await visitor.get(f"{root}/locks/")).text
        session = await visitor.get(f"{root}/locks/session")
        assert session.json()["may_break"] is False
        assert (await visitor.get(f"{root}/locks/nothing")).status_code == 404


async def test_page_with_root_path_serves_paths_with_and_without_it(page: Page) -> None:
    """Where the path is given without what stands before it; and where the slash was forgotten."""
    async with Visitor(page, root_path="/a/locks") as visitor:
        for path in ("/", "/a/locks/"):
            assert (await visitor.get(path)).status_code == 200
        answer = await visitor.get("/a/locks")
        assert (answer.status_code, answer.headers["location"]) == (307, "locks/")
        assert (await visitor.get("/a/locksmith")).status_code == 404


async def test_page_closes_a_websocket(page: Page) -> None:
    """A WebSocket is refused."""
    sent = list[Any]()

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def receive() -> Any:
        raise AssertionError

    await page({**scope_of("/"), "type": "websocket"}, receive, send)
    assert sent == ["websocket.close"]


async def test_lock_route_shows_holders_and_waiters_or_answers_400(
    client: aiolock.LockClient, page: Page
) -> None:
    """Who holds it, and who waits, in order."""
    api = client.semaphore("api", 3, share="acme")
    async with api.acquire(permits=3, label="sync"):
        waits = asyncio.create_task(enter(api))
        await queued(api, 1)
        async with Visitor(page) as visitor:
            query = {"kind": "semaphore", "name": "api"}
            found = (await visitor.get("/lock", params=query)).json()
            assert found["limit"] == 3
            (holder,), (waiter,) = found["holders"], found["waiters"]
            status = await client.status("api", kind="semaphore")
            assert holder["fence"] == str(status.holders[0].fence)
            assert (holder["as"], holder["alive"], waiter["place"]) == (
                "3 permits, share acme",
                True,
                1,
            )
            assert waiter["as"] == "1 permit, share acme"
            assert found["shares"] == [["acme", [3, 1]]]
            for wrong in ({"kind": "x", "name": "a"}, {"kind": "lock", "name": ""}, {}):
                assert (await visitor.get("/lock", params=wrong)).status_code == 400
            many = "&".join(f"a={n}" for n in range(100))
            assert (await visitor.get(f"/lock?{many}")).status_code == 400
            free = (await visitor.get("/lock", params={"kind": "lock", "name": "free"})).json()
            assert (free["holders"], free["waiters"]) == ([], [])
        waits.cancel()
        await asyncio.wait([waits])


async def test_lock_route_with_many_shares_says_how_many_more_there_are(
    client: aiolock.LockClient,
) -> None:
    """First those with most waiters."""
    page = Page(client, limits=Limits(parties=2))
    slow: dict[str, Any] = {"per": 1000, "burst": 1}
    await client.rate_limit("api", 3, **slow).acquire()
    limits = [client.rate_limit("api", 3, share=share, **slow) for share in "abcc"]
    waits = [asyncio.create_task(asyncio.wait_for(each.acquire(), 60)) for each in limits]
    await queued(limits[0], 4)
    async with Visitor(page) as visitor:
        query = {"kind": "rate_limit", "name": "api"}
        found = (await visitor.get("/lock", params=query)).json()
        assert found["shares"] == [["c", [0, 2]], ["a", [0, 1]]]
        assert found["more_shares"] == 1
        assert found["interval"] == 333.333
    for each in waits:
        each.cancel()
    await asyncio.wait(waits)


async def test_lock_route_shows_a_detached_lease_and_breaks_it_by_its_fence(
    client: aiolock.LockClient, page: Page
) -> None:
    """Without the key by which it could be adopted."""
    lease = await client.lock("order:42").acquire()
    token = await lease.detach(label="order 42 → worker")
    async with visiting(page) as visitor:
        found = await visitor.get("/lock", params={"kind": "lock", "name": "order:42"})
        assert token._key not in found.text
        (holder,) = found.json()["holders"]
        assert (holder["detached"], holder["label"]) == (True, "order 42 → worker")
        assert (holder["client"], holder["fence"]) == ("", str(token.fence))
        done = await visitor.order("break", "order:42", fences=[holder["fence"]])
        assert done.json() == {"done": True}
    with pytest.raises(aiolock.TokenSpent):
        await client.adopt(token)


async def test_lock_route_with_many_holders_shows_some_and_counts_the_rest(
    client: aiolock.LockClient,
) -> None:
    """So many are shown, and how many there are besides."""
    page = Page(client, limits=Limits(parties=2))
    readers = await reading(client, 5)
    async with Visitor(page) as visitor:
        found = (await visitor.get("/lock", params={"kind": "lock", "name": "a"})).json()
    assert (len(found["holders"]), found["more_holders"]) == (2, 3)
    for reader in readers:
        await reader.release()


@pytest.mark.parametrize("name", HOSTILE)
async def test_page_shows_and_breaks_a_lock_of_a_hostile_name(
    client: aiolock.LockClient, page: Page, name: str
) -> None:
    """Whatever a lock is called, it is that one which is shown, and which is broken."""
    lease = await client.lock(name).acquire()
    async with Viewer(page) as viewer, visiting(page) as visitor:
        block = ""
        async with asyncio.timeout(30):
            while not block.startswith("event: view"):
                block = await viewer.block()
        assert block.isascii()
        assert len(block.splitlines()) == 2
        (row,) = json.loads(block.partition("data: ")[2])["rows"]
        assert row["name"] == name
        found = await visitor.get("/lock", params={"kind": "lock", "name": name})
        assert found.json()["name"] == name
        fence = found.json()["holders"][0]["fence"]
        assert (await visitor.order("break", name, fences=[fence])).json() == {"done": True}
        await asyncio.wait_for(lease.lost.wait(), 10)
        await viewer.until(names=[])


async def test_break_and_ask_routes_act_on_the_holders_and_are_logged(
    client: aiolock.LockClient, page: Page, caplog: pytest.LogCaptureFixture
) -> None:
    """From one holder, from all, or only asked for; the log says so."""
    readers = await reading(client, 3)
    async with visiting(page) as visitor:
        with caplog.at_level(logging.WARNING, "aiolock"):
            assert (await visitor.order("ask", "a")).json() == {"done": True}
            await asyncio.wait_for(readers[1].requested.wait(), 10)
            fences = [str(readers[0].fence), "1"]
            assert (await visitor.order("break", "a", fences=fences)).json() == {"done": True}
            await asyncio.wait_for(readers[0].lost.wait(), 10)
            assert not readers[1].lost.is_set()
            assert (await visitor.order("break", "a")).json() == {"done": True}
            await asyncio.wait_for(readers[2].lost.wait(), 10)
            assert (await visitor.order("break", "a")).json() == {"done": False}
        said = [text for text in caplog.messages if "by way of the page" in text]
        assert len(said) == 3
        assert said[1].startswith("aiolock: break of the lock 'a' by way of the page, from 127.0.0")
        assert str(readers[0].fence) in said[1]


async def test_break_route_that_fails_for_one_holder_breaks_the_others(
    client: aiolock.LockClient,
    store: FaultyStore,
    page: Page,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What fails for one holder is said, but the others lose it, and the log says that."""
    readers = await reading(client, 3)
    fences = [str(reader.fence) for reader in readers]
    async with visiting(page) as visitor:
        store.refuse("break_")
        with caplog.at_level(logging.WARNING, "aiolock"):
            answer = await visitor.order("break", "a", fences=fences)
        assert answer.status_code == 503
        assert "refused" in answer.json()["error"]
        for reader in readers[1:]:
            await asyncio.wait_for(reader.lost.wait(), 10)
        assert not readers[0].lost.is_set()
        (said,) = (text for text in caplog.messages if "by way of the page" in text)
        assert [fence in said for fence in fences] == [False, True, True]
        # One that no grant can have is a mistake, as ever; the others are done and told of.
        caplog.clear()
        with caplog.at_level(logging.WARNING, "aiolock"):
            answer = await visitor.order("break", "a", fences=["9" * 20, fences[0]])
        assert answer.status_code == 400
        await asyncio.wait_for(readers[0].lost.wait(), 10)
        assert any(fences[0] in text for text in caplog.messages)


async def test_ask_and_lock_routes_answer_503_while_the_store_fails(
    client: aiolock.LockClient, store: FaultyStore, page: Page
) -> None:
    """An order, and a question, say why it was not answered."""
    async with visiting(page) as visitor, client.lock("a"):
        store.refuse("request")
        store.refuse("status")
        for answer in (
            await visitor.order("ask", "a"),
            await visitor.get("/lock", params={"kind": "lock", "name": "a"}),
        ):
            assert answer.status_code == 503
            assert "refused" in answer.json()["error"]


async def test_page_of_a_client_that_is_not_open_answers_503_until_it_is() -> None:
    """The page itself is there, and says so; once it is open all of it is."""
    client = aiolock.connect(MemoryServer())
    page = web(client, may_break=lambda _: True)
    async with visiting(page) as visitor:
        assert (await visitor.get("/")).status_code == 200
        answers = [
            await visitor.get("/events"),
            await visitor.get("/lock", params={"kind": "lock", "name": "a"}),
            await visitor.order("break", "a"),
        ]
        assert [answer.status_code for answer in answers] == [503] * 3
        assert all("open" in answer.json()["error"] for answer in answers)
        async with client, Viewer(page) as viewer:
            await viewer.until(held=0)


async def test_web_with_invalid_options_raises_type_error(client: aiolock.LockClient) -> None:
    """A clear error, before anything else."""
    for options in ({"may_break": True}, {"may_see": "admin"}, {"hosts": "localhost"}):
        with pytest.raises(TypeError, match="must be"):
            web(client, **options)
