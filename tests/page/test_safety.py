"""The page, and those who may not: strangers, other sites, whoever has no key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import aiolock
from aiolock.page import Entrance, Page, web
from aiolock.stores.memory import MemoryServer
from tests.support.viewers import Visitor, is_safe, visiting


@pytest.fixture
async def client() -> AsyncIterator[aiolock.LockClient]:
    """The client of the application, which is open."""
    async with aiolock.connect(MemoryServer()) as client:
        yield client


@pytest.fixture
async def page(client: aiolock.LockClient) -> Page:
    """A page on which everybody may do everything."""
    return web(client, may_break=lambda _: True)


async def test_page_without_may_break_refuses_orders(client: aiolock.LockClient) -> None:
    """Unless somebody says who may."""
    async with visiting(web(client)) as visitor, client.lock("a") as lease:
        assert visitor.session["may_break"] is False
        for order in ("ask", "break"):
            answer = await visitor.order(order, "a")
            assert answer.status_code == 403
            assert "read-only" in answer.json()["error"]
        assert not lease.lost.is_set()
        assert not lease.requested.is_set()


async def test_page_permissions_are_asked_of_the_application_with_the_scope(
    client: aiolock.LockClient,
) -> None:
    """Of the application: it is given the scope, and may be async."""
    asked = list[str]()

    async def may_break(scope: Any) -> bool:
        await asyncio.sleep(0)
        asked.append(scope["path"])
        return dict(scope["headers"]).get(b"x-user") == b"root"

    def may_see(scope: Any) -> bool:
        return b"x-user" in dict(scope["headers"])

    page = web(client, may_break=may_break, may_see=may_see)
    async with Visitor(page) as stranger:
        for path in ("/", "/session", "/events", "/lock", "/nothing"):
            answer = await stranger.get(path)
            assert answer.status_code == 403
            assert answer.json() == {"error": "you may not see this page"}
            is_safe(answer)
        assert (await stranger.order("ask", "a")).status_code == 403
    async with Visitor(page) as visitor:
        visitor.headers["X-User"] = "ada"
        await visitor.load()
        assert (await visitor.order("ask", "a")).status_code == 403
        visitor.headers["X-User"] = "root"
        await visitor.load()
        assert visitor.session["may_break"] is True
        assert (await visitor.order("ask", "a")).json() == {"done": False}
    assert asked == ["/session", "/ask", "/session", "/ask"]


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, {}),
        (200, {"Sec-Fetch-Site": ""}),
        (200, {"Origin": ""}),
        (200, {"Origin": "https://proxy.test"}),  # where the browser says that it is the same
        (200, {"Content-Type": "application/json; charset=utf-8"}),
        (403, {"Sec-Fetch-Site": "", "Origin": ""}),
        (403, {"Sec-Fetch-Site": "cross-site"}),
        (403, {"Sec-Fetch-Site": "same-site"}),
        (403, {"Sec-Fetch-Site": "none"}),
        (403, {"Sec-Fetch-Site": "", "Origin": "http://evil.test"}),
        (403, {"Sec-Fetch-Site": "", "Origin": "http://locks.test.evil.test"}),
        (403, {"Sec-Fetch-Site": "", "Origin": "http://locks.test:81"}),
        (403, {"Sec-Fetch-Site": "", "Origin": "null"}),
        (403, {"Sec-Fetch-Site": "", "Origin": "http://[locks.test"}),
        (403, {"X-Aiolock-Page": ""}),
        (200, {"Cookie": 'prefs={"a":1}; \x80 ='}),  # what other programs of the host have set
        (415, {"Content-Type": "text/plain"}),
        (415, {"Content-Type": "application/x-www-form-urlencoded"}),
        (415, {"Content-Type": "multipart/form-data; x=application/json"}),
        (415, {"Content-Type": ""}),
    ],
)
async def test_break_route_refuses_requests_that_the_page_did_not_send(
    client: aiolock.LockClient, page: Page, status: int, headers: dict[str, str]
) -> None:
    """Only what this page has sent is carried out."""
    async with visiting(page) as visitor, client.lock("a", on_lost="signal") as lease:
        request = visitor.build_request("POST", "/break", json={"kind": "lock", "name": "a"})
        for key, value in headers.items():
            if value:
                request.headers[key] = value
            else:
                del request.headers[key]
        answer = await visitor.send(request)
        assert answer.status_code == status
        assert (await client.lock("a").locked()) is (status != 200)
        if status == 200:
            await asyncio.wait_for(lease.lost.wait(), 10)


async def test_page_sets_no_cookie(page: Page) -> None:
    """Every program on the host would get it, whatever port it listens at."""
    async with visiting(page) as visitor:
        for path in ("/", "/session", "/lock?kind=lock&name=a", "/server.js"):
            assert "set-cookie" not in (await visitor.get(path)).headers
        assert "set-cookie" not in (await visitor.order("ask", "a")).headers
        assert not visitor.cookies


async def test_page_of_another_process_carries_out_orders(
    client: aiolock.LockClient, page: Page
) -> None:
    """It carries out the orders of a page that was loaded from this one."""
    async with visiting(page) as one, Visitor(web(client, may_break=lambda _: True)) as other:
        other.headers = one.headers
        assert (await other.order("ask", "a")).status_code == 200


@pytest.mark.parametrize("path", ["/events", "/session", "/lock?kind=lock&name=a"])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_data_routes_refuse_requests_of_another_site(
    page: Page, path: str, site: str
) -> None:
    """It could not read the answer, and is not worth the work."""
    async with Visitor(page) as visitor:
        answer = await visitor.get(path, headers={"Sec-Fetch-Site": site})
        assert answer.status_code == 403
        assert (await visitor.get("/", headers={"Sec-Fetch-Site": site})).status_code == 200


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (413, b" " * 40_000),
        (400, b""),
        (400, b"[]"),
        (400, b"[" * 30_000),
        (400, b"\xff"),
        (400, b'{"kind":"lock"}'),
        (400, b'{"kind":"lock","name":1}'),
        (400, b'{"kind":"lock","name":""}'),
        (400, b'{"kind":"lock","name":"\\ud800"}'),
        (400, b'{"kind":"clock","name":"a"}'),
        (400, b'{"kind":"lock","name":"a","fences":[]}'),
        (400, b'{"kind":"lock","name":"a","fences":{}}'),
        (400, b'{"kind":"lock","name":"a","fences":[1]}'),
        (400, b'{"kind":"lock","name":"a","fences":["-1"]}'),
        (400, b'{"kind":"lock","name":"a","fences":["x"]}'),
        (400, b'{"kind":"lock","name":"a","fences":[' + b'"1",' * 300 + b'"1"]}'),
    ],
)
async def test_break_route_refuses_invalid_bodies_and_says_why(
    page: Page, status: int, body: bytes
) -> None:
    """They are refused, and say why."""
    async with visiting(page) as visitor:
        headers = {"Content-Type": "application/json"}
        answer = await visitor.post("/break", content=body, headers=headers)
        assert answer.status_code == status
        assert answer.json()["error"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("locks.test", 200), ("LOCKS.test:8765", 200), ("127.0.0.1:8765", 200), ("[::1]", 200)),
        *(("evil.test", 421), ("locks.test.evil.test", 421), ("", 421), ("[", 421), ("a@b", 421)),
    ],
)
async def test_page_with_hosts_refuses_other_host_names(
    client: aiolock.LockClient, host: str, status: int
) -> None:
    """Where the names are given, another one that leads here is not served."""
    page = web(client, hosts=["Locks.test"])
    async with Visitor(page) as visitor:
        assert (await visitor.get("/session", headers={"Host": host})).status_code == status


async def test_entrance_serves_only_files_without_its_key(client: aiolock.LockClient) -> None:
    """Where there is nothing else: whoever sends it is served, and others get the files alone."""
    app = Entrance(web(client, may_break=lambda _: True), "k" * 32)
    paths = (
        "/session",
        "/lock?kind=lock&name=a",
        "/events",
        "/nothing",
        "/session?key=" + "k" * 32,
    )
    async with Visitor(app) as visitor:
        visitor.headers["X-Aiolock-Page"] = "1"
        for key in ("", "K" * 32, "k" * 31, "k" * 33):
            visitor.headers["X-Aiolock-Key"] = key
            for path in paths:
                answer = await visitor.get(path)
                assert answer.status_code == 403
                is_safe(answer)
            assert (await visitor.order("break", "a")).status_code == 403
            for path in ("/", "/server.js", "/page.css"):
                answer = await visitor.get(path)
                assert answer.status_code == 200
                assert "k" * 32 not in answer.text
            assert (await visitor.post("/")).status_code == 403
        visitor.headers["X-Aiolock-Key"] = "k" * 32
        answer = await visitor.get("/session")
        assert answer.status_code == 200
        assert "k" * 32 not in answer.text
        assert "set-cookie" not in answer.headers
        assert (await visitor.order("ask", "a")).json() == {"done": False}
    with pytest.raises(ValueError, match="16 characters"):
        Entrance(web(client), "short")
