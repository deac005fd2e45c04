"""`aiolock demo`, and its figures, of runs that are made up; more: `tests/proof/programs/`."""

from __future__ import annotations

import asyncio
import io
import json
import re
from asyncio.subprocess import Process
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import aiolock
from aiolock.cli.demo import contention
from aiolock.cli.demo.contention import AIOLOCK, NO_LOCK, REDIS_PY, WITH_KILLS, Kind, Run, start
from aiolock.cli.demo.report import figures, lines, mistakes
from aiolock.cli.demo.worker import QueueTimes, Request, Settings, Stock, Worker, redis_client
from aiolock.cli.main import main
from tests.support.demos import ONE_WORKER, make_only, run, run_json
from tests.support.servers import RedisServer, hold_port


class TestOneWorker:
    """One process, whose tasks contend; without a server, in an SQLite file."""

    def test_demo_oversells_without_a_lock_and_is_right_with_it(self) -> None:
        """Without a lock it is oversold; with it all is right, and in order."""
        said = run_json(*ONE_WORKER, "--items", "60", "--requests", "20")
        assert said.keys() == {"no lock", "aiolock", "wrong"}
        without, with_lock = said["no lock"], said["aiolock"]
        assert without["items"] == with_lock["items"] == 60
        assert without["oversold"] == without["sold"] - 60 > 0
        assert without["left"] > 0
        assert without.keys() == {"items", "sold", "oversold", "left"}
        assert said["wrong"] == []
        assert (with_lock["sold"], with_lock["oversold"], with_lock["left"]) == (60, 0, 0)
        assert with_lock["overtaken"] == 0
        assert 0 < with_lock["handoff_ms"] <= with_lock["handoff_p99_ms"]
        assert with_lock["handoff_p99_ms"] / 1000 < with_lock["longest_wait_s"]
        assert with_lock["per_second"] > 0
        assert "commands" not in with_lock

    def test_demo_whose_lock_does_not_lock_exits_1_and_says_so(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A lock that does not lock is found out, and said."""

        async def start_unlocked(settings: Settings) -> Process:
            return await start(replace(settings, guard="nothing"))

        monkeypatch.setattr(contention, "start", start_unlocked)
        assert main(["demo", *ONE_WORKER, "--items", "50", "--requests", "10"]) == 1
        said = capsys.readouterr().out
        assert "WRONG: 60 sales of 50 items, and the stock is " in said
        assert "exactly right" not in said


@pytest.fixture(scope="module")
def told(redis_server: RedisServer) -> str:
    """What is printed where the run with redis-py's lock ends at once. Two tests read it."""
    printed = io.StringIO()
    asked = ["--workers", "3", "--items", "50", "--requests", "9", "--ttl", "1"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        make_only(patch, WITH_KILLS, REDIS_PY._replace(seconds=0.0))
        assert main(["demo", "--url", redis_server.url, *asked]) == 0
    return printed.getvalue()


class TestOnRedis:
    """On a real server, with worker processes, of which some are killed."""

    def test_demo_ends_the_redis_py_run_at_its_time_limit(self, told: str) -> None:
        """It is said, and the exit code is that of the runs with aiolock."""
        assert "\n  ended after 0 s\n  0 of 50 items sold, 50 left in stock\n" in told
        assert told.endswith("exactly right: each item sold once.\n")

    def test_demo_prints_each_kill_and_its_cost(self, told: str) -> None:
        """Each is a line of its own, and what it cost is told below the table."""
        assert "\nWith aiolock, while workers are killed (lease: 1 s)\n" in told
        assert "\n  worker 2 is killed with requests in the queue\n" in told
        assert "\n  worker 1 is killed with the lock held, before its write\n" in told
        assert "\nWorkers killed: 2, oversold: 0, overtaken: 0.\n" in told
        assert re.search(r"\nA dead holder blocked the others for [\d,.]+ ms\n", told)
        assert re.search(r"\n\(its lease\), dead waiters for [\d,.]+ ms at most.\n", told)


class TestStock:
    """The file that all workers read and write."""

    def test_stock_has_no_line_across_two_pages_of_memory(self, tmp_path: Path) -> None:
        """Whoever reads while another writes would see the first part of such a line."""
        stock = Stock(tmp_path / "stock")
        stock.write(2000)
        lengths = [stock.path.stat().st_size]
        stock.write(1999, 1795305617036786)
        lengths.append(stock.path.stat().st_size - lengths[0])
        assert [4096 % length for length in lengths] == [0, 0]
        assert stock.read() == 1999
        assert stock.history() == [(2000, 0), (1999, 1795305617036786)]


class TestWorker:
    """What a worker does when its lock fails it."""

    @staticmethod
    def settings(url: str, **others: Any) -> Settings:
        return Settings(url, items=2, requests=1, workers=1, ttl=30.0, prefix="demo", **others)

    async def test_worker_that_loses_its_aiolock_lease_asks_again(self, tmp_path: Path) -> None:
        """What was cut off is on no record, and its task goes on with another request."""
        settings = self.settings("memory://", guard="aiolock")

        class Broken(Worker):
            async def perhaps_stop(self, number: int, left: int, request: Request) -> None:
                if number == 1 and left == 1 and not broken:
                    broken.append(request)
                    await lock.break_()
                    await asyncio.sleep(1)  # the body is cancelled here

        broken: list[Request] = []
        times, record = QueueTimes(), io.StringIO()
        async with aiolock.connect("memory://", observer=times) as client:
            lock = client.lock("stock")
            stock = Stock(tmp_path / "stock")
            stock.write(2)
            await Broken(settings, stock, lock, times, record, None).run_task(0)
        assert [request.sold for request in broken] == [False]
        noted = [json.loads(line)["sold"] for line in record.getvalue().splitlines()]
        assert noted == [True, True, False]
        assert [left for left, _ in stock.history()] == [2, 1, 0]

    async def test_worker_waiting_for_the_redis_py_lock_records_it_and_sells(
        self, redis_server: RedisServer, tmp_path: Path
    ) -> None:
        """It is known to have waited, and gets its item in the end."""
        redis_server.call("SET", "demo:redis-py", "somebody else's", "PX", 300)
        waited, request, last = await self.with_redis_py(redis_server, tmp_path, Worker)
        assert (waited.sold, request.sold, last.sold) == (True, True, False)
        assert waited.asked <= waited.queued < waited.entered
        assert request.queued == 0

    async def test_worker_whose_redis_py_lease_ended_asks_again(
        self, redis_server: RedisServer, tmp_path: Path
    ) -> None:
        """It learns that at the release, too late for the item; the task goes on."""

        class Late(Worker):
            async def perhaps_stop(self, number: int, left: int, request: Request) -> None:
                if left == 2:
                    redis_server.call("DEL", "demo:redis-py")

        requests = await self.with_redis_py(redis_server, tmp_path, Late)
        assert [request.sold for request in requests] == [True, False]
        assert Stock(tmp_path / "stock").history() == [(2, 0), (1, 0), (0, 0)]

    async def test_redis_client_of_a_worker_has_a_connection_for_each_task(
        self, redis_server: RedisServer
    ) -> None:
        """Each with a connection, though the URL, and redis-py by default, allow fewer."""
        async with redis_client(f"{redis_server.url}?max_connections=2", 150) as redis:
            asking: Any = redis  # redis-py has only partial types
            assert await asyncio.gather(*(asking.echo("a") for _ in range(150))) == [b"a"] * 150

    async def with_redis_py(
        self, server: RedisServer, folder: Path, kind: type[Worker]
    ) -> list[Request]:
        """The requests of a task, which are on record."""
        settings = self.settings(server.url, guard="redis-py")
        stock, record = Stock(folder / "stock"), io.StringIO()
        stock.write(2)
        async with redis_client(server.url, 1) as redis, aiolock.connect("memory://") as client:
            lock = client.lock("stock")
            await kind(settings, stock, lock, QueueTimes(), record, redis).run_task(0)
        return [Request(**json.loads(line)) for line in record.getvalue().splitlines()]


class TestImpossible:
    """What cannot be is one line on stderr, and exit code 2, or 69 if it is the server."""

    @pytest.mark.parametrize(
        ("args", "why"),
        [
            (["--url", "http://localhost"], "begins with one of memory://, redis://"),
            (["--url", "localhost:6379"], "begins with one of memory://, redis://"),
            (["--url", "postgresql://localhost/shop"], "runs on Redis, or on an SQLite file"),
            (["--url", "redis://localhost:port"], "address 1 in this URL is no host and port"),
            (["--url", "memory://"], "runs on Redis, or on an SQLite file"),
            (["--requests", "3"], "and a request for each worker"),
            (["--items", "0"], "there must be an item"),
            (["--workers", "-1"], "a worker"),
            (["--ttl", "0"], "ttl must be from 0.01"),
        ],
        ids=[
            *("scheme", "no scheme", "database", "port", "memory"),
            *("requests", "items", "workers", "ttl"),
        ],
    )
    def test_demo_with_wrong_arguments_exits_2_with_one_line(
        self, args: list[str], why: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Each is one line that says what is wrong, before anything is done."""
        assert main(["demo", *args]) == 2
        out, errors = capsys.readouterr()
        assert out == ""
        assert re.fullmatch(r"aiolock demo: .+\n", errors)
        assert why in errors

    @pytest.mark.parametrize("number", ["1.5", "many"])
    def test_demo_with_a_wrong_count_exits_2(
        self, number: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Counts are whole numbers."""
        with pytest.raises(SystemExit, match="2"):
            main(["demo", f"--items={number}"])
        assert f"argument --items: invalid int value: '{number}'" in capsys.readouterr().err

    @pytest.mark.parametrize("output", [[], ["--json"]], ids=["table", "json"])
    def test_demo_without_a_server_exits_69_with_one_line(self, output: list[str]) -> None:
        """A port where nobody listens: one line, nothing on stdout, exit code 69."""
        with hold_port() as holder:
            address = f"127.0.0.1:{holder.getsockname()[1]}"
            done = run("demo", "--url", f"redis://{address}", *output)
        assert (done.returncode, done.stdout) == (69, "")
        assert re.fullmatch(rf"aiolock demo: .*{address}.*connect.*\n", done.stderr)

    @pytest.mark.parametrize("password", [None, "wrong-one"], ids=["none", "wrong"])
    def test_demo_with_a_refused_password_exits_69_without_showing_it(
        self, password: str | None
    ) -> None:
        """What the server says is passed on, and never the password."""
        with RedisServer(password="right-one") as server:
            login = f":{password}@" if password else ""
            address = f"127.0.0.1:{server.port}/0"
            done = run("demo", "--url", f"redis://{login}{address}")
        assert (done.returncode, done.stdout) == (69, "")
        # Where the server knows CLIENT SETINFO, it refuses that, and redis-py keeps the code back.
        why = r".*((NOAUTH )?Authentication required|invalid username-password pair).*"
        assert re.fullmatch(rf"aiolock demo: .*{address.removesuffix('/0')}.*{why}\n", done.stderr)
        assert "-one" not in done.stderr


class TestCommandLine:
    """The command line round the demo."""

    def test_version_option_prints_the_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        """``--version`` says which one this is."""
        with pytest.raises(SystemExit, match="0"):
            main(["--version"])
        assert capsys.readouterr().out == f"aiolock {aiolock.__version__}\n"

    def test_help_option_lists_the_demo_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        """``--help`` names what there is."""
        with pytest.raises(SystemExit, match="0"):
            main(["--help"])
        assert re.search(r"^ +demo +see it work", capsys.readouterr().out, re.MULTILINE)

    def test_command_line_without_a_command_exits_2(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Without one, it says so, and that is exit code 2."""
        with pytest.raises(SystemExit, match="2"):
            main([])
        assert "COMMAND" in capsys.readouterr().err


def request(number: int, *times: int) -> Request:
    """One that got an item: asked, queued, entered, leaving; in milliseconds."""
    asked, queued, entered, leaving = (each * 10**6 for each in times)
    return Request(asked, queued, entered, leaving, fence=number, sold=True)


def made_up(*requests: Request) -> Run:
    """A run that came out right, as these requests make it."""
    fences = sorted(each.fence for each in requests if each.sold)
    history = [(len(fences) - place, fence) for place, fence in enumerate([0, *fences])]
    killed = {number for number, each in enumerate(requests) if each.killed}
    kind = WITH_KILLS if killed else AIOLOCK
    return Run(kind, len(fences), list(requests), history, killed, 2 * len(requests))


def printed(*runs: Run) -> list[str]:
    """The lines below the runs."""
    return list(lines(runs, mistakes(runs)))


FIRST = request(11, 1, 0, 2, 10)
SECOND = request(12, 3, 4, 13, 20)
THIRD = request(13, 5, 6, 22, 30)
KILLED = replace(request(14, 7, 8, 31, 0), killed=40 * 10**6)
"""Killed with the lock held, after its write."""


class TestFigures:
    """What is measured, and what is not."""

    def test_figures_handoff_is_from_the_end_of_one_work_to_the_next(self) -> None:
        """Across processes too, since all read one clock."""
        came = figures(made_up(SECOND, FIRST, replace(THIRD, entered=25 * 10**6)))
        assert (came["handoff_ms"], came["handoff_p99_ms"]) == (4.0, 5.0)
        assert came["slowest_handoff_ms"] == 5.0
        assert came["longest_wait_s"] == 0.02
        assert came["commands"] == 2.0
        assert came["per_second"] == round(3 / 0.029)

    def test_figures_handoff_excludes_requests_not_known_to_wait(self) -> None:
        """Its own way into the queue would be measured with it."""
        late = replace(SECOND, queued=11 * 10**6)
        at_once = replace(SECOND, queued=0)
        assert "handoff_ms" not in figures(made_up(FIRST, late))
        assert "handoff_ms" not in figures(made_up(FIRST, at_once))

    def test_figures_handoff_excludes_the_lease_of_a_killed_holder(self) -> None:
        """Its lease blocked the others, and is nobody's hand-off."""
        after = request(15, 7, 8, 2040, 2050)
        came = figures(made_up(FIRST, SECOND, THIRD, KILLED, after))
        assert came["slowest_handoff_ms"] == 3.0
        assert came["blocked_ms"] == 2000

    def test_figures_of_a_run_with_kills_omit_rates_and_waiting(self) -> None:
        """All waited for its end."""
        right, killed = figures(made_up(FIRST, SECOND)), figures(made_up(FIRST, SECOND, KILLED))
        assert right.keys() - killed.keys() == {"per_second", "longest_wait_s", "commands"}

    def test_figures_blocked_is_the_longest_until_the_next_holder(self) -> None:
        """Each kill until the next one holds the lock, though that is killed next."""
        other = replace(KILLED, fence=15, entered=540 * 10**6, killed=545 * 10**6)
        after = request(16, 7, 8, 1046, 1050)
        assert figures(made_up(FIRST, KILLED, other, after))["blocked_ms"] == 501

    def test_figures_blocked_of_a_holder_killed_last_is_zero(self) -> None:
        """No request held the lock afterwards, so none was blocked."""
        assert figures(made_up(FIRST, SECOND, KILLED))["blocked_ms"] == 0

    def test_figures_without_fences_order_requests_by_the_clock(self) -> None:
        """As with redis-py's lock."""
        second, first, third = (replace(each, fence=0) for each in (SECOND, FIRST, THIRD))
        run = replace(made_up(second, first, third), kind=REDIS_PY)
        assert figures(run)["handoff_ms"] == 2.5

    def test_figures_of_a_run_that_served_no_request_are_those_of_the_stock(self) -> None:
        """As when it was ended at once."""
        run = Run(REDIS_PY, 5, history=[(5, 0)])
        assert figures(run) == {"items": 5, "sold": 0, "oversold": 0, "left": 5}


class TestTable:
    """What a person is told of the figures."""

    def test_table_of_three_columns_fits_48_characters(self) -> None:
        """With figures as long as they may get."""
        slow = replace(request(14, 7, 0, 3_456_789, 3_456_790), sold=False)
        run = replace(made_up(FIRST, SECOND, THIRD, slow), commands=999_999)
        runs = [replace(run, kind=kind) for kind in (NO_LOCK, REDIS_PY, AIOLOCK)]
        runs += [made_up(FIRST, SECOND, KILLED)]
        runs[0].history = runs[2].history = [(999_999, 99_999)] * 1_000_000
        said = printed(*runs)
        assert "longest wait                 -  3,457 s  3,457 s" in said
        assert "items sold             999,999        3  999,999" in said
        wrong = [line for line in said if line.startswith("WRONG: ")]
        assert "WRONG: sales written after one with a higher fencing token: 999999." in wrong
        assert max(len(line) for line in said if line not in wrong) == 48

    def test_table_without_redis_py_names_the_url_that_it_needs(self) -> None:
        """Only then."""
        runs = [replace(made_up(FIRST, SECOND), kind=kind) for kind in (NO_LOCK, REDIS_PY, AIOLOCK)]
        assert "redis://" in printed(runs[0], runs[2])[-1]
        assert not any("redis://" in line for line in printed(*runs))

    def test_table_omits_figures_that_no_run_has(self) -> None:
        """As the hand-off, where nobody waited."""
        assert any("hand-off" in line for line in printed(made_up(FIRST, SECOND)))
        assert not any("hand-off" in line for line in printed(made_up(FIRST)))


class TestOvertaken:
    """Who counts as overtaken."""

    def test_overtaken_of_requests_served_in_order_is_zero(self) -> None:
        """Those who were served as they came, also where the lock was free."""
        at_once = replace(THIRD, queued=0)
        assert figures(made_up(FIRST, SECOND, THIRD))["overtaken"] == 0
        assert figures(made_up(FIRST, SECOND, at_once))["overtaken"] == 0

    @pytest.mark.parametrize("kind", [AIOLOCK, REDIS_PY], ids=["aiolock", "redis-py"])
    def test_overtaken_needs_one_queued_before_the_other_asked(self, kind: Kind) -> None:
        """Asked earlier is not enough: both may have been on their way together."""
        fence = (11, 12, 13) if kind is AIOLOCK else (0, 0, 0)
        first, earlier = replace(FIRST, fence=fence[0]), request(fence[2], 5, 8, 22, 30)
        on_its_way = request(fence[1], 7, 9, 13, 20)
        after_it = request(fence[1], 9, 10, 13, 20)
        for later, overtaken in ((on_its_way, 0), (after_it, 1)):
            run = replace(made_up(first, later, earlier), kind=kind)
            assert figures(run)["overtaken"] == overtaken


class TestMistakes:
    """What makes a run wrong."""

    def test_mistakes_of_a_right_run_are_none(self) -> None:
        """A killed holder that had not written sold nothing, one that had sold its item."""
        assert mistakes([made_up(FIRST, SECOND, THIRD, KILLED)]) == []
        assert mistakes([made_up(FIRST, SECOND, THIRD, replace(KILLED, sold=False))]) == []

    @pytest.mark.parametrize("sold", [True, False])
    def test_mistakes_include_a_killed_holder_whose_sale_is_not_as_recorded(
        self, sold: bool
    ) -> None:
        """Either way round."""
        run = made_up(FIRST, SECOND, THIRD, replace(KILLED, sold=sold))
        run.requests[3].sold = not sold
        assert mistakes([run]) == ["requests told otherwise than is on record: 1"]

    def test_mistakes_include_stock_that_is_left(self) -> None:
        """Each item was sold, but the last number that was written is another one."""
        run = made_up(FIRST, SECOND)
        run.history.append((1, 13))
        assert mistakes([run]) == ["3 sales of 2 items, and the stock is 1"]

    def test_mistakes_include_items_sold_more_than_once(self) -> None:
        """Two had read the same stock."""
        run = replace(made_up(FIRST, SECOND, THIRD), items=2)
        run.history[:] = [(2, 0), (1, 11), (1, 12), (0, 13)]
        assert mistakes([run]) == ["3 sales of 2 items, and the stock is 0"]

    def test_mistakes_include_a_write_after_a_higher_fence(self) -> None:
        """The fencing tokens of the records tell."""
        run = made_up(FIRST, SECOND, THIRD)
        run.history[:] = [(3, 0), (2, 11), (1, 13), (0, 12)]
        assert mistakes([run]) == ["sales written after one with a higher fencing token: 1"]

    def test_mistakes_include_a_sale_without_a_record(self) -> None:
        """The record has another's in its place."""
        run = made_up(FIRST, SECOND, THIRD)
        run.history[:] = [(3, 0), (2, 11), (1, 12), (0, 99)]
        assert mistakes([run]) == ["requests told otherwise than is on record: 1"]

    def test_mistakes_ignore_runs_with_other_locks(self) -> None:
        """Without a lock it is wrong, which is the point."""
        run = replace(made_up(FIRST, SECOND), items=1)
        assert mistakes([replace(run, kind=NO_LOCK), replace(run, kind=REDIS_PY)]) == []
