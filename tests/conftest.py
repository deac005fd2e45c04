"""What all tests share: the option `--loop`, servers, a proxy, a check for tasks left behind."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack

import pytest

from tests import loops
from tests.failures import Locker, Lockers, Peek, check_nothing_left
from tests.proxy import Proxy
from tests.servers import RedisServer
from tests.worlds import KINDS, World


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that says on which loop the tests run."""
    parser.addoption("--loop", choices=loops.LOOPS, default=loops.chosen(), help="the event loop")


def pytest_configure(config: pytest.Config) -> None:
    """Use that loop, or say why not."""
    try:
        loops.choose(config.getoption("--loop"))
    except (ImportError, ValueError) as error:
        raise pytest.UsageError(f"--loop {config.getoption('--loop')}: {error}") from error


def pytest_report_header() -> str:
    """Say in the log which loop it is."""
    return f"event loop: {loops.chosen()}"


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every async test, and its fixtures, on that loop."""
    return {loops.chosen(): loops.new_loop}


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One server for all tests (of this xdist worker), which no test may break."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server of the test's own, to kill, stop, pause or restart."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def prefix() -> str:
    """A key prefix that no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def proxy(redis_server: RedisServer) -> AsyncIterator[Proxy]:
    """A proxy of the test's own in front of the shared server."""
    async with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
async def _no_task_left() -> AsyncIterator[None]:
    yield
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"the test has left tasks running: {left}"


@pytest.fixture(autouse=True)
def _check_tasks(request: pytest.FixtureRequest) -> None:
    """Check after every async test, and after its fixtures, that no task is left running."""
    if request.node.get_closest_marker("asyncio"):
        request.getfixturevalue("_no_task_left")


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, prefix: str) -> World:
    """An empty lock store of each kind."""
    server = request.getfixturevalue("redis_server") if request.param == "redis" else None
    return World(request.param, server.url if server else "", prefix)


@pytest.fixture
def server(redis_server: RedisServer, prefix: str) -> Iterator[RedisServer]:
    """The shared server, on which the test must leave nobody."""
    yield redis_server
    check_nothing_left(redis_server, prefix)


@pytest.fixture
def peek(server: RedisServer, prefix: str) -> Peek:
    """What the server has of the lock."""
    return Peek(server, prefix)


@pytest.fixture
async def lockers(server: RedisServer, prefix: str) -> AsyncIterator[Lockers]:
    """Starts so many processes, all at once."""
    async with AsyncExitStack() as stack:

        async def start(count: int) -> list[Locker]:
            new = (Locker(server.url, prefix) for _ in range(count))
            return list(await asyncio.gather(*map(stack.enter_async_context, new)))

        yield start
