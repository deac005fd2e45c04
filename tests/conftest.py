"""Shared by all tests: options, servers, a proxy, a check for tasks left behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import itertools
import os
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack
from functools import cache
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import hypothesis
import pytest
import redis.utils

import aiolock
from tests.support import databases, etcds, garbage, loops, selection
from tests.support.databases import MariaDBServer, PostgresServer
from tests.support.etcds import EtcdServer
from tests.support.failures import Locker, Lockers, Peek, check_nothing_left
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer
from tests.support.worlds import KINDS, World

if TYPE_CHECKING:
    from tests.support.clusters import Cluster

_Each = TypeVar("_Each")

pytest.register_assert_rewrite("aiolock.testing")  # what a test of the contract saw is printed


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options that say on which loop the tests run, and with which stores."""
    parser.addoption("--loop", choices=loops.LOOPS, default=loops.chosen(), help="the event loop")
    parser.addoption("--stores", default=",".join(selection.STORES), help="leave out the others")
    parser.addoption("--alone", action="store_true", help="run what no test runs beside")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Use that loop, or say why not."""
    try:
        loops.choose(config.getoption("--loop"))
    except (ImportError, ValueError) as error:
        raise pytest.UsageError(f"--loop {config.getoption('--loop')}: {error}") from error
    if loops.chosen() == "uvloop" and not config.option.timeout_method:
        # A signal handler's exception does not end a run of uvloop: a test would hang for ever.
        config.option.timeout_method = "thread"
    hypothesis.settings.register_profile(
        "suite",
        # The same examples in each run of the suite; others by hand, with more of them.
        derandomize="MODEL_EXAMPLES" not in os.environ,
        # How long an example takes says how busy the machine is. The time for making one goes by
        # this as well.
        deadline=None,
    )
    hypothesis.settings.load_profile("suite")


def _import_in_turn(config: pytest.Config) -> None:
    """Import the files of tests, each process of xdist from another one on.

    To compile them takes longer than to collect them, and whoever comes to one first does it for
    all. In the same order, they would all do all of it, at the same time.
    """
    if not hasattr(config, "workerinput"):
        return  # a run of its own; also of a test, which has the variables of its process of xdist
    worker = os.environ["PYTEST_XDIST_WORKER"]
    folder = Path(__file__).parent
    asked = [config.invocation_params.dir / each.partition("::")[0] for each in config.args]
    left_out = [folder.parent / each for each in config.getoption("--ignore") or ()]
    files = [
        path
        for path in sorted(folder.rglob("test_*.py"))
        if any(map(path.is_relative_to, asked)) and not any(map(path.is_relative_to, left_out))
    ]
    start = len(files) * int(worker[2:]) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for file in files[start:] + files[:start]:
        name = ".".join(file.relative_to(folder.parent).with_suffix("").parts)
        # What is wrong with it is wrong again when it is collected, and is reported then.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``--alone``, import no file without such a test: three seconds for all of them."""
    if not config.getoption("--alone") or not collection_path.name.startswith("test_"):
        return None
    return "mark.alone" not in collection_path.read_text("utf-8") or None


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Look for no garbage among what is collected: it all stays, 700,000 objects.

    To look at them took a third of the time that it takes to collect them, and then it took a
    tenth of a second whenever a test had made enough garbage of its own.
    """
    with garbage.not_looked_for():
        _import_in_turn(session.config)
        try:
            return (yield)
        finally:
            gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not asked for, and spread the rest over the processes."""
    try:
        stores = selection.chosen(config.getoption("--stores"))
    except ValueError as error:
        raise pytest.UsageError(f"--stores: {error}") from error
    selection.leave_out(config, items, stores)
    selection.leave_out_alone(config, items)
    _spread_out(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _spread_out(items: list[pytest.Item], processes: int) -> None:
    """Put first what takes long, and ablations among the others, but not at the end.

    Each process of xdist begins with a part of the list, one after the other. At the end of a part
    somebody who waits, or has come to what takes long, keeps all processes waiting. Whole files
    wait for something, as most ablations do, while others work the processor: each part has some of
    both, and begins elsewhere, so that at any time some do the one and some the other. Ablations
    are in the first half: who has nothing left takes from the ends of the others' parts. The first
    part has none: its process has what takes long to do before, and would leave them to the end.
    """
    rows = [item for item in items if item.path.stem == "test_ablations"]
    long = [item for item in items if item.get_closest_marker("long")]
    apart = {*rows, *long}
    bunches = list(_bunches(item for item in items if item not in apart))
    items[:] = long
    with_rows = range(min(1, processes - 1), processes)
    for part in range(processes):
        here = _from(part / processes, bunches[part::processes])
        placed = [(n / len(here), bunch) for n, bunch in enumerate(here)]
        if part in with_rows:
            waits = _from(part / processes, rows[part - with_rows.start :: len(with_rows)])
            placed += [(0.5 * n / len(waits), [row]) for n, row in enumerate(waits)]
        for _, bunch in sorted(placed, key=itemgetter(0)):
            items += bunch


def _from(start: float, each: list[_Each]) -> list[_Each]:
    """The same in the same order, but begun there, and what stands before that at the end."""
    first = int(len(each) * start)
    return each[first:] + each[:first]


def _bunches(items: Iterable[pytest.Item]) -> Iterator[list[pytest.Item]]:
    """Neighbours of the same file: what is set up for the file is torn down after each bunch."""
    for _, of_file in itertools.groupby(items, key=attrgetter("path")):
        while bunch := list(itertools.islice(of_file, 50)):
            yield bunch


def pytest_report_header() -> str:
    """Say in the log which loop it is."""
    return f"event loop: {loops.chosen()}"


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run every async test, and its fixtures, on that loop."""
    return {loops.chosen(): loops.new_loop}


@pytest.fixture(scope="session", autouse=True)
def _started_without_opentelemetry() -> Iterator[None]:
    """Let the programs that tests start do without OpenTelemetry's SDK, as most users do.

    redis-py imports it wherever it is installed, which takes a fifth of the start of such a
    program. (FastAPI needs its API.) A fixture: it is done where tests run, and not where xdist
    starts those processes.
    """
    folder = Path(__file__).parent / "support" / "without_opentelemetry"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session", autouse=True)
def _version_of_redis_py_looked_up_once() -> Iterator[None]:
    """Let the connections of the tests do without what aiolock's own do without.

    redis-py reads the files of its package for each, which was a hundredth of all work.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis.utils, "get_lib_version", cache(redis.utils.get_lib_version))
        yield


def _be_quiet(*servers: RedisServer) -> None:
    """Have servers of a whole file look after themselves once a second, not ten times.

    They have nothing to do most of the time, and yet their timers take a hundredth of a processor
    each. Nothing that the tests see depends on how often, but a cluster is ready later.
    """
    for server in servers:
        server.call("CONFIG", "SET", "hz", 1)


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    """One server for the tests of a file, which no test may break."""
    with RedisServer() as server:
        _be_quiet(server)
        yield server


@pytest.fixture(scope="module")
def lone_node() -> Iterator[RedisServer]:
    """A cluster of one node for the tests of a file, which no test may break."""
    # Here, because it starts a server to see its version.
    from tests.support.clusters import Cluster

    with ExitStack() as stack:
        lone = Cluster(stack, 1)
        _be_quiet(*lone.nodes)
        yield lone.masters[0]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three masters for the tests of a file, which no test may break."""
    from tests.support.clusters import Cluster

    with ExitStack() as stack:
        three = Cluster(stack, 3)
        _be_quiet(*three.nodes)
        yield three


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server of the test's own, to kill, stop, pause or restart."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One PostgreSQL server for all tests of this process, which none may break or leave changed.

    It has nothing to do between them, and its start is a tenth of a second of a processor.
    """
    databases.need_postgres()
    # As rarely as by default. Other servers look for work each second, for the tests of the vacuum:
    # that starts a process each time.
    with PostgresServer(["autovacuum_naptime=1min"]) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    """One MariaDB server for all tests of this process, which none may break or leave changed."""
    databases.need_mariadb()
    with MariaDBServer() as server:
        yield server


@pytest.fixture
def own_mariadb() -> Iterator[MariaDBServer]:
    """A server of the test's own, to stop and to change."""
    databases.need_mariadb()
    with MariaDBServer() as server:
        yield server


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[EtcdServer]:
    """One etcd for all tests of this process, which none may break or leave changed."""
    etcds.need_etcd()
    with EtcdServer() as server:
        yield server


@pytest.fixture(scope="module")
def etcd_three() -> Iterator[EtcdServer]:
    """Three of them that are one cluster, for the tests of a file, which none may break."""
    etcds.need_etcd()
    with EtcdServer(3) as servers:
        yield servers


@pytest.fixture
def own_etcd() -> Iterator[EtcdServer]:
    """Three of the test's own, to kill, stop and cut off."""
    etcds.need_etcd()
    with EtcdServer(3) as servers:
        yield servers


@pytest.fixture
def prefix() -> str:
    """A key prefix that no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
async def proxy(redis_server: RedisServer) -> AsyncIterator[Proxy]:
    """A proxy of the test's own in front of the shared server."""
    async with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture(autouse=True)
def _no_garbage_looked_for_while_time_is_measured(request: pytest.FixtureRequest) -> Iterator[None]:
    """Look for no garbage in a test that measures.

    It would be looked for now and then, whoever is at work, among ten thousand of everything: half
    of the time of such a test went into that.
    """
    if request.node.get_closest_marker("alone") is None:
        yield
    else:
        with garbage.not_looked_for():
            yield


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
    url = ""
    if request.param == "redis":
        url = request.getfixturevalue("redis_server").url
    elif request.param == "postgres":
        url = request.getfixturevalue("postgres_server").url("app")
    elif request.param == "mysql":
        url = request.getfixturevalue("mariadb_server").url("app")
    elif request.param == "etcd":
        url = request.getfixturevalue("etcd_server").url()
    elif request.param == "sqlite":
        url = f"sqlite:///{request.getfixturevalue('tmp_path')}/locks.db"
    return World(request.param, url, prefix)


@pytest.fixture
async def client(world: World) -> AsyncIterator[aiolock.LockClient]:
    """An open client: "we"."""
    async with world.client() as client:
        yield client


@pytest.fixture
async def other(world: World) -> AsyncIterator[aiolock.LockClient]:
    """Another open client of the same store, as of another process: "they"."""
    async with world.client() as client:
        yield client


@pytest.fixture
def server(redis_server: RedisServer, prefix: str) -> Iterator[RedisServer]:
    """The shared server, on which a test must leave no client."""
    yield redis_server
    check_nothing_left(redis_server, prefix)


@pytest.fixture
def peek(server: RedisServer, prefix: str) -> Peek:
    """The server's state of the lock."""
    return Peek(server, prefix)


@pytest.fixture
async def lockers(server: RedisServer, prefix: str) -> AsyncIterator[Lockers]:
    """Starts so many processes, all at once."""
    async with AsyncExitStack() as stack:

        async def start(count: int) -> list[Locker]:
            new = (Locker(server.url, prefix) for _ in range(count))
            return list(await asyncio.gather(*map(stack.enter_async_context, new)))

        yield start
