"""`aiolock demo`, and its figures, of runs that are made up; more: `tests/proof/programs/`."""

from __future__ import annotations

import asyncio
import io
import re
import time
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import aiolock
from aiolock.cli.demo import Options, contention, report
from aiolock.cli.demo.contention import (
    REDIS_PY,
    WITH_KILLS,
    WITH_LOCK,
    WITHOUT_LOCK,
    Kill,
    Run,
)
from aiolock.cli.demo.report import as_text, cost, figures, mistakes
from aiolock.cli.demo.worker import QueueTimes, Request, Settings, Stock, Worker, redis_client
from aiolock.cli.main import main
from tests.support.demos import IN_MEMORY, make_only, run, run_json
from tests.support.servers import RedisServer, hold_port


class TestInMemory:
    """In one process."""

    def test_demo_in_memory_oversells_without_a_lock_and_is_right_with_it(self) -> None:
        """Without a lock it is oversold; with it all is right, and in order."""
        said = run_json(*IN_MEMORY, "--items", "60", "--requests", "20", "--ttl", "30")
        without, with_lock = said["without_lock"], said["with_lock"]
        assert without["items"] == with_lock["items"] == 60
        assert without["requests"] == with_lock["requests"] == 60 + 20
        assert without["oversold"] == without["sold"] - 60 > 0
        assert without["left"] > 0
        assert without["per_second"] is None
        assert said["wrong"] == said["killed"] == []
        assert (with_lock["sold"], with_lock["oversold"], with_lock["left"]) == (60, 0, 0)
        assert (with_lock["overtaken"], with_lock["waited"]) == (0, 60 + 20 - 1)
        assert with_lock["items_per_task"] == [3, 3]
        assert with_lock["leases_lost"] == 0
        assert with_lock["commands"] is None
        for measured in ("handoff_ms", "waiting_ms"):
            p50, p99 = with_lock[measured]
            assert 0 < p50 <= p99
        assert not {"with_kills", "redis_py_lock"} & said.keys()

    def test_demo_whose_lock_does_not_lock_exits_1_and_says_so(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A lock that does not lock is found out, and said."""

        def unlocked(options: Options, prefix: str, guard: str, *rest: Any) -> Settings:
            return Settings(options, prefix, "nothing", *rest)

        monkeypatch.setattr(contention, "Settings", unlocked)
        assert main(["demo", *IN_MEMORY, "--items", "50", "--requests", "10"]) == 1
        assert "WRONG: the stock is " in capsys.readouterr().out


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
        said = " ".join(told.split())
        assert "It was ended after 0 s, with 50 items left." in said
        assert said.endswith("exactly right: each item was sold once.")

    def test_demo_prints_each_kill_and_its_cost(self, told: str) -> None:
        """Each is a line of its own, and what it cost is told below the table."""
        assert "\n  SIGKILL for worker 1 with the lock held, before its write; lease: 1 s\n" in told
        assert "\n  SIGKILL for worker 2 with 3 requests in the queue\n" in told
        said = " ".join(told.split())
        assert "worker 1 with the lock held, before its write: the next one held it" in said
        assert "worker 2 with 3 requests in the queue: no hand-off took more than" in said


class TestWorker:
    """What a worker does when its lock fails it."""

    @staticmethod
    def options(url: str) -> Options:
        return Options(url, items=2, requests=1, workers=1, ttl=30.0, kill=False)

    async def test_worker_that_loses_its_aiolock_lease_marks_the_request_lost(
        self, tmp_path: Path
    ) -> None:
        """The request goes no further, and its task goes on with another one."""
        settings = Settings(self.options("memory://"), "demo", "aiolock", False, str(tmp_path), 0)

        class Broken(Stock):
            async def write(self, left: int, fence: int = 0) -> None:
                if left == 1:
                    await lock.break_()
                    await asyncio.sleep(1)  # the body is cancelled here
                await super().write(left, fence)

        times, record = QueueTimes(), io.StringIO()
        async with aiolock.connect("memory://") as client:
            lock = client.lock("stock")
            stock = Broken(tmp_path / "stock")
            await stock.write(2)
            worker = Worker(settings, stock, lock, times, record, None)
            request = Request(0, 0, 0, 1)
            await worker.with_aiolock(request)
        assert (request.lost, request.sold, request.fence > 0) == (True, False, True)
        assert await stock.read() == 2

    async def test_worker_waiting_for_the_redis_py_lock_records_it_and_sells(
        self, redis_server: RedisServer, tmp_path: Path
    ) -> None:
        """It is known to have waited, and gets its item in the end."""
        redis_server.call("SET", "demo:redis-py", "somebody else's", "PX", 300)
        waited, request = await self.with_redis_py(redis_server, Stock(tmp_path / "stock"))
        assert (waited.sold, waited.lost) == (request.sold, request.lost) == (True, False)
        assert waited.asked <= waited.queued < waited.entered
        assert request.queued == 0

    async def test_worker_whose_redis_py_lease_ended_marks_it_lost_at_release(
        self, redis_server: RedisServer, tmp_path: Path
    ) -> None:
        """Too late for the item; the task goes on."""

        class Long(Stock):
            async def write(self, left: int, fence: int = 0) -> None:
                await super().write(left, fence)
                redis_server.call("DEL", "demo:redis-py")

        for request in await self.with_redis_py(redis_server, Long(tmp_path / "stock")):
            assert (request.sold, request.lost) == (True, True)

    async def test_redis_client_of_a_worker_has_a_connection_for_each_task(
        self, redis_server: RedisServer
    ) -> None:
        """Each with a connection, though the URL, and redis-py by default, allow fewer."""
        async with redis_client(f"{redis_server.url}?max_connections=2", 150) as redis:
            asking: Any = redis  # redis-py has only partial types
            assert await asyncio.gather(*(asking.echo("a") for _ in range(150))) == [b"a"] * 150

    async def with_redis_py(self, server: RedisServer, stock: Stock) -> list[Request]:
        """Two requests, one after the other."""
        settings = Settings(self.options(server.url), "demo", "redis-py", False, "", 0)
        requests = [Request(0, 0, number, time.monotonic_ns()) for number in range(2)]
        await stock.write(2)
        async with redis_client(server.url, 1) as redis, aiolock.connect("memory://") as client:
            lock = client.lock("stock")
            worker = Worker(settings, stock, lock, QueueTimes(), io.StringIO(), redis)
            for request in requests:
                await worker.with_redis_py(request, redis)
        return requests


class TestImpossible:
    """What cannot be is one line on stderr, and exit code 2."""

    @pytest.mark.parametrize(
        ("args", "why"),
        [
            (["--url", "http://localhost"], "begins with one of memory://, redis://"),
            (["--url", "localhost:6379"], "begins with one of memory://, redis://"),
            (["--url", "postgresql://localhost/shop"], "runs on Redis, on an SQLite file, or on"),
            (["--url", "redis://localhost:port"], "address 1 in this URL is no host and port"),
            (
                [*IN_MEMORY, "--workers", "4"],
                "memory:// is one process: for 4 workers name a server",
            ),
            (["--url", "redis://localhost", "--requests", "3"], "4 workers need at least as many"),
            (["--ttl", "0"], "ttl must be from 0.01"),
        ],
        ids=["scheme", "no scheme", "database", "port", "memory workers", "few requests", "ttl"],
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

    @pytest.mark.parametrize("number", ["0", "-1", "1.5", "many"])
    def test_demo_with_a_wrong_count_exits_2(
        self, number: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Counts are whole numbers from 1 on."""
        with pytest.raises(SystemExit, match="2"):
            main(["demo", f"--items={number}"])
        assert f"must be a whole number from 1 on, not '{number}'" in capsys.readouterr().err

    @pytest.mark.parametrize("output", [[], ["--json"]], ids=["table", "json"])
    def test_demo_without_a_server_exits_2_with_one_line(self, output: list[str]) -> None:
        """A port where nobody listens: one line, nothing on stdout, exit code 2."""
        with hold_port() as holder:
            address = f"127.0.0.1:{holder.getsockname()[1]}"
            done = run("demo", "--url", f"redis://{address}", *output)
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(rf"aiolock demo: redis://{address}: .*connect.*\n", done.stderr)

    @pytest.mark.parametrize("password", [None, "wrong-one"], ids=["none", "wrong"])
    def test_demo_with_a_refused_password_exits_2_without_showing_it(
        self, password: str | None
    ) -> None:
        """What the server says is passed on, and never the password."""
        with RedisServer(password="right-one") as server:
            login = f":{password}@" if password else ""
            address = f"127.0.0.1:{server.port}/0"
            done = run("demo", "--url", f"redis://{login}{address}")
        assert (done.returncode, done.stdout) == (2, "")
        # Where the server knows CLIENT SETINFO, it refuses that, and redis-py keeps the code back.
        why = r".*((NOAUTH )?Authentication required|invalid username-password pair).*"
        assert re.fullmatch(rf"aiolock demo: redis://{address}: {why}\n", done.stderr)
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


class Terminal(io.StringIO):
    """A terminal, by its own account."""

    def isatty(self) -> bool:
        return True


class TestProgress:
    """What is said while it runs."""

    def test_progress_on_a_terminal_rewrites_one_line(self) -> None:
        """And takes it back before anything that stays."""
        screen = Terminal()
        progress = contention.Progress(screen)
        progress.show("1 sold")
        progress.show("2 sold")
        progress.line("stays")
        assert [text for text in screen.getvalue().split("\r\x1b[K") if text] == [
            "1 sold",
            "2 sold",
            "stays\n",
        ]

    def test_progress_longer_than_the_terminal_is_cut(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What wraps could not be taken back."""
        monkeypatch.setenv("COLUMNS", "20")
        screen = Terminal()
        contention.Progress(screen).show("a line of more than twenty")
        assert screen.getvalue() == "\r\x1b[Ka line of more than"

    def test_progress_in_a_pipe_prints_only_lasting_lines(self) -> None:
        """Into a pipe; and nothing at all where only JSON is asked for."""
        out = io.StringIO()
        for progress in (contention.Progress(out), contention.Progress(None)):
            progress.show("1 sold")
            progress.line("stays")
        assert out.getvalue() == "stays\n"


def request(worker: int, number: int, fence: int, *times: int) -> Request:
    """One that got an item: asked, queued, entered, leaving; in milliseconds."""
    asked, queued, entered, leaving = (each * 10**6 for each in times)
    return Request(worker, 0, number, asked, queued, entered, leaving, fence, sold=True)


def made_up(*requests: Request, kills: tuple[Kill, ...] = (), wrote: tuple[int, ...] = ()) -> Run:
    """A run that came out right, as these requests and kills make it."""
    fences = sorted([*(each.fence for each in requests), *wrote])
    history = [(len(fences), 0)]
    history += [(len(fences) - place, fence) for place, fence in enumerate(fences, 1)]
    kind = WITH_KILLS if kills else WITH_LOCK
    return Run(kind, len(fences), 2, list(requests), list(kills), history, 2 * len(fences))


FIRST = request(0, 0, 11, 1, 0, 2, 10)
SECOND = request(1, 0, 12, 3, 4, 13, 20)
THIRD = request(0, 1, 13, 5, 6, 22, 30)
HOLDER = replace(request(2, 0, 14, 7, 8, 31, 0), sold=False)
HELD = Kill(2, 3, HOLDER, at=40 * 10**6)


class TestFigures:
    """What is measured, and what is not."""

    def test_figures_handoff_is_from_the_end_of_one_work_to_the_next(self) -> None:
        """Across processes too, since all read one clock."""
        came = figures(made_up(FIRST, SECOND, THIRD))
        assert came["handoff_ms"] == (2.0, 2.0)
        assert came["waiting_ms"] == (10.0, 10.0)
        assert came["commands"] == 2.0
        assert came["per_second"] == round(3 / 0.029)

    def test_figures_handoff_excludes_requests_not_known_to_wait(self) -> None:
        """Its own way into the queue would be measured with it."""
        late = replace(SECOND, queued=11 * 10**6)
        at_once = replace(SECOND, queued=0)
        assert figures(made_up(FIRST, late))["handoff_ms"] is None
        assert figures(made_up(FIRST, at_once))["handoff_ms"] is None

    def test_figures_handoff_excludes_the_lease_of_a_killed_holder(self) -> None:
        """What its lease took is its cost, and nobody's hand-off."""
        after = request(0, 2, 15, 7, 8, 2040, 2050)
        run = made_up(FIRST, SECOND, THIRD, after, kills=(HELD,))
        assert figures(run)["handoff_ms"] == (2.0, 2.0)
        assert cost(run, HELD) == pytest.approx(2000)

    def test_figures_of_a_run_with_kills_omit_rates_and_waiting(self) -> None:
        """All waited for its end."""
        came = figures(made_up(FIRST, SECOND, THIRD, kills=(HELD,)))
        unknown = {key for key, value in came.items() if value is None}
        assert unknown == {"per_second", "waiting_ms", "items_per_task", "commands"}

    def test_cost_of_a_killed_holder_ends_at_the_next_holder(self) -> None:
        """Each costs until the next one holds the lock, though that is killed next."""
        later = replace(HOLDER, worker=3, fence=15, entered=540 * 10**6)
        other = Kill(3, 3, later, at=545 * 10**6)
        after = request(0, 2, 16, 7, 8, 1045, 1050)
        run = made_up(FIRST, SECOND, THIRD, after, kills=(HELD, other))
        assert [cost(run, kill) for kill in run.kills] == pytest.approx([500, 500])

    def test_cost_of_a_killed_waiter_is_the_longest_handoff_afterwards(self) -> None:
        """Not one that came before."""
        slow = replace(SECOND, entered=19 * 10**6)
        third = replace(THIRD, entered=23 * 10**6)
        queued = Kill(2, 1, SECOND, at=18 * 10**6)
        run = made_up(FIRST, slow, third, kills=(queued,))
        assert cost(run, queued) == pytest.approx(3)

    def test_cost_of_a_holder_killed_last_is_unknown(self) -> None:
        """No request held the lock afterwards."""
        run = made_up(FIRST, SECOND, kills=(HELD,))
        assert cost(run, HELD) is None
        assert "Killed" not in as_text([run])

    def test_figures_without_fences_order_requests_by_the_clock(self) -> None:
        """As with redis-py's lock."""
        second, first, third = (replace(each, fence=0) for each in (SECOND, FIRST, THIRD))
        run = replace(made_up(second, first, third), kind=REDIS_PY)
        assert figures(run)["handoff_ms"] == (2.0, 2.0)

    def test_figures_items_per_task_include_tasks_that_got_none(self) -> None:
        """A task that got nothing is among them, be it that the run ended before its turn."""
        ones = [replace(each, worker=0, task=1) for each in (FIRST, SECOND, THIRD)]
        assert figures(made_up(*ones))["items_per_task"] == (0, 3)
        other = replace(THIRD, task=2)
        assert figures(made_up(*ones[:2], other))["items_per_task"] == (1, 2)

    def test_figures_of_a_run_that_served_no_request_are_none(self) -> None:
        """As when it was ended at once."""
        run = Run(REDIS_PY, 5, 2, history=[(5, 0)], commands=0)
        assert figures(run)["per_second"] is None
        assert figures(run)["waiting_ms"] is None
        assert "It was ended after 10 s, with 5 items left." in as_text([run])


class TestTable:
    """What a person is told of the figures."""

    def test_table_of_four_columns_fits_80_characters(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With figures as long as they may get."""
        run = made_up(FIRST, SECOND, THIRD, kills=(HELD,))
        came = figures(run) | {
            "requests": 1_000_000,
            "waiting_ms": (1234.5, 23456.7),
            "handoff_ms": (0.0624, 42.06),
            "overtaken": 999_999,
        }
        kinds = (WITHOUT_LOCK, WITH_LOCK, WITH_KILLS, REDIS_PY)
        runs = [replace(run, kind=kind) for kind in kinds]
        columns = [figures(runs[0]), came, came, came]
        monkeypatch.setattr(report, "figures", mock.Mock(side_effect=columns))
        lines = as_text(runs).splitlines()
        assert max(map(len, lines)) <= 80
        found = [line.split() for line in lines if line.startswith("  waiting, ms")]
        assert found[0][2:] == ["-", *["1,234", "/", "23,457"] * 3]

    def test_table_with_lost_updates_says_so(self) -> None:
        """Of any run; where as many are sold as are gone there is nothing to tell."""
        right = made_up(FIRST, SECOND, THIRD)
        lost = replace(right, kind=WITHOUT_LOCK, history=[(3, 0), (2, 0), (2, 0), (1, 0), (1, 0)])
        said = " ".join(as_text([lost, right]).split())
        assert "Without a lock: 4 requests were told yes, and the stock went down by 2, be" in said
        assert "With aiolock: 3" not in said

    def test_table_of_a_lock_without_a_queue_says_so(self) -> None:
        """Most requests did not wait, for those who did were overtaken all the time."""
        run = made_up(FIRST, SECOND, THIRD)
        said = " ".join(as_text([replace(run, kind=REDIS_PY)]).split())
        assert "With redis-py's own Lock: 1 of 3 requests did not wait, because" in said
        assert "did not wait" not in as_text([run])


class TestOvertaken:
    """Who counts as overtaken."""

    def test_overtaken_of_requests_served_in_order_is_zero(self) -> None:
        """Those who were served as they came."""
        came = figures(made_up(FIRST, SECOND, THIRD))
        assert (came["overtaken"], came["waited"]) == (0, 2)

    def test_overtaken_within_a_process_goes_by_the_order_of_calls(self) -> None:
        """However short the time between them."""
        earlier = request(0, 1, 13, 5, 6, 22, 30)
        later = request(0, 2, 12, 5, 6, 13, 20)
        assert figures(made_up(FIRST, later, earlier))["overtaken"] == 1

    def test_overtaken_without_a_queue_needs_one_queued_before_the_other_asked(self) -> None:
        """They were under way together: on two connections, so that either may have come first."""
        earlier = request(0, 1, 0, 5, 8, 22, 30)
        later = request(0, 2, 0, 6, 9, 13, 20)
        after_it = request(0, 2, 0, 9, 10, 13, 20)
        first = replace(FIRST, fence=0)
        assert figures(made_up(first, later, earlier))["overtaken"] == 0
        assert figures(made_up(first, after_it, earlier))["overtaken"] == 1

    def test_overtaken_across_processes_needs_one_queued_before_the_other_asked(self) -> None:
        """Asked earlier is not enough: both may have been on their way together."""
        earlier = request(0, 1, 13, 5, 8, 22, 30)
        on_its_way = request(1, 0, 12, 7, 9, 13, 20)
        after_it = request(1, 0, 12, 9, 10, 13, 20)
        assert figures(made_up(FIRST, on_its_way, earlier))["overtaken"] == 0
        assert figures(made_up(FIRST, after_it, earlier))["overtaken"] == 1


class TestMistakes:
    """What makes a run wrong."""

    def test_mistakes_of_a_right_run_are_none(self) -> None:
        """A killed holder that had not written sold nothing, one that had sold its item."""
        wrote = HELD._replace(holder=replace(HOLDER, sold=True))
        right = made_up(FIRST, SECOND, THIRD, kills=(HELD,))
        assert mistakes([right]) == []
        right = made_up(FIRST, SECOND, THIRD, kills=(wrote,), wrote=(HOLDER.fence,))
        assert mistakes([right]) == []

    def test_mistakes_include_a_killed_holder_whose_sale_is_not_as_recorded(self) -> None:
        """Either way round."""
        wrote = HELD._replace(holder=replace(HOLDER, sold=True))
        lost = made_up(FIRST, SECOND, THIRD, kills=(wrote,))
        false = made_up(FIRST, SECOND, THIRD, kills=(HELD,), wrote=(HOLDER.fence,))
        assert mistakes([lost, false]) == [
            "worker 2 was killed, and its last sale is not on record",
            "worker 2 was killed, and its last sale is on record though it had not written it",
        ]

    def test_mistakes_include_stock_that_is_left(self) -> None:
        """Each item was sold, but the last number that was written is another one."""
        run = made_up(FIRST, SECOND)
        run.history.append((1, 13))
        assert mistakes([run]) == [
            "the stock is 1 at the end",
            "3 sales are on record, of 2 items",
            "1 items were sold more than once",
        ]

    def test_mistakes_include_items_sold_more_than_once(self) -> None:
        """Two had read the same stock."""
        run = replace(made_up(FIRST, SECOND, THIRD), items=2)
        run.history[:] = [(2, 0), (1, 11), (1, 12), (0, 13)]
        assert mistakes([run]) == [
            "3 sales are on record, of 2 items",
            "1 items were sold more than once",
        ]

    def test_mistakes_include_a_write_after_a_higher_fence(self) -> None:
        """The fencing tokens of the records tell."""
        run = made_up(FIRST, SECOND, THIRD)
        run.history[:] = [(3, 0), (2, 11), (1, 13), (0, 12)]
        assert mistakes([run]) == ["1 sales were written after one with a higher fencing token"]

    def test_mistakes_include_a_sale_without_a_record(self) -> None:
        """The record has another's in its place."""
        run = made_up(FIRST, SECOND, THIRD)
        run.history[:] = [(3, 0), (2, 11), (1, 12), (0, 99)]
        assert mistakes([run]) == ["1 requests were told yes, and their sale is not on record"]

    def test_mistakes_ignore_runs_with_other_locks(self) -> None:
        """Without a lock it is wrong, which is the point."""
        run = replace(made_up(FIRST, SECOND), items=1)
        assert mistakes([replace(run, kind=WITHOUT_LOCK), replace(run, kind=REDIS_PY)]) == []
