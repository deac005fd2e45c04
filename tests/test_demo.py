"""`aiolock demo`, run as its users run it, and its figures, of sales that are made up."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

import aiolock
from aiolock.cli.demo import figures as reckoning
from aiolock.cli.demo import stage, story
from aiolock.cli.demo.customers import Customers, Visit
from aiolock.cli.demo.figures import Act, audit, figures
from aiolock.cli.demo.kills import Kill
from aiolock.cli.demo.peer import PeerCustomers, key, new_locks
from aiolock.cli.demo.progress import Progress
from aiolock.cli.demo.shop import MemoryShop, Sale
from aiolock.cli.demo.table import table
from aiolock.cli.main import main
from tests.servers import RedisServer, hold_port

KEYS = "aiolock-demo-*"
# From the first kill on, for the seconds of a claim: enough for a test to do what it likes.
STANDING_STILL = ("--workers", "3", "--items", "40", "--requests", "40", "--ttl", "60")


def aiolock_command(*args: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-W", "error", "-m", "aiolock", *args]


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        aiolock_command(*args),
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, **env},
    )


def run_json(*args: str, **env: str) -> dict[str, Any]:
    """Run a demo that comes out right, and says nothing but its figures."""
    done = run("demo", "--json", *args, **env)
    assert (done.returncode, done.stderr) == (0, ""), done
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@contextmanager
def running(*args: str, stdout: int | IO[str] = subprocess.PIPE) -> Iterator[subprocess.Popen[str]]:
    """Run it while the test does something to it."""
    # Where the tests are a background job, SIGINT is ignored, and would be by our child.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            aiolock_command(*args), stdout=stdout, stderr=subprocess.PIPE, text=True
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            yield process
        finally:
            process.kill()


def wait_for(process: subprocess.Popen[str], text: str) -> None:
    """Read its output up to the line with this text."""
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    pytest.fail(f"it ended without {text!r}")


def wait_until_alone(server: RedisServer) -> None:
    """Wait until nobody but ourselves is connected to the server."""
    deadline = time.monotonic() + 10
    while len(clients := server.call("CLIENT", "LIST").splitlines()) > 1:
        assert time.monotonic() < deadline, clients
        time.sleep(0.02)


IN_MEMORY = ("--url", "memory://")


class TestInMemory:
    """In one process."""

    def test_sells_exactly_what_there_is(self) -> None:
        """Without a lock it is oversold; with it all is right, in order, in few commands."""
        said = run_json(*IN_MEMORY, "--items", "60", "--requests", "20", "--ttl", "30")
        without, under_lock = said["without_lock"], said["with_lock"]
        assert without["items"] == under_lock["items"] == 60
        assert without["requests"] == under_lock["requests"] == 60 + 20
        assert without["oversold"] == without["sold"] - 60 > 0
        assert without["left"] > 0
        assert without["per_second"] is None
        assert (said["right"], said["wrong"]) == (True, [])
        assert (under_lock["sold"], under_lock["oversold"], under_lock["left"]) == (60, 0, 0)
        assert (under_lock["overtaken"], under_lock["waited"]) == (0, 60 + 20 - 1)
        assert under_lock["per_customer"] == [3, 3]
        assert under_lock["leases_lost"] == 0
        assert 1 < under_lock["commands_per_grant"] <= 2.0
        assert 0 < under_lock["handoff_ms"]["p50"] <= under_lock["handoff_ms"]["p99"]
        assert 0 < under_lock["waiting_ms"]["p50"] <= under_lock["waiting_ms"]["p99"]
        assert under_lock["waiting_undelayed_ms"] is None
        assert under_lock["killed"] == []
        assert said["redis_py_lock"] is None

    def test_one_request_at_once_needs_no_lock(self) -> None:
        """Where nobody competes both sales are right, and there is no hand-off to measure."""
        said = run_json(*IN_MEMORY, "--items", "5", "--requests", "1")
        assert said["without_lock"]["oversold"] == 0
        assert said["without_lock"]["left"] == 0
        assert said["with_lock"]["handoff_ms"] is None

    def test_prints_a_table_and_no_terminal_codes_into_a_pipe(self) -> None:
        """What a person reads: a title, how far it is, the table, its words, the verdict."""
        done = run("demo", *IN_MEMORY, "--items", "300", "--requests", "20")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("An online sale on memory://, in this process")
        assert re.search(r"^  oversold +20 +0$", done.stdout, re.MULTILINE)
        assert re.search(r"^  requests per second +- +[\d,]+$", done.stdout, re.MULTILINE)
        assert "Without a lock 320 buyers were told yes, and the stock went down by" in done.stdout
        assert re.search(
            r"^  hand-off, p50 / p99 +from the release by one", done.stdout, re.MULTILINE
        )
        assert re.search(r"^  commands per hand-off +- +1\.\d\d$", done.stdout, re.MULTILINE)
        assert done.stdout.endswith("exactly right: 300 of 300 sold, each item once.\n")
        assert not set("\x1b\r") & set(done.stdout)

    def test_a_wrong_sale_is_exit_code_1(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A lock that does not lock is found out, and said."""

        class Unlocked(Customers):
            def __init__(self, worker: int, shop: Any, lock: Any, served: Any) -> None:
                super().__init__(worker, shop, None, served)

        monkeypatch.setattr(stage, "Customers", Unlocked)
        assert main(["demo", *IN_MEMORY, "--items", "50", "--requests", "10"]) == 1
        assert "The sale came out WRONG: " in capsys.readouterr().out

    def test_a_reader_that_has_enough(self) -> None:
        """``aiolock demo | head -1`` is no reason for a traceback."""
        reader, writer = os.pipe()
        with (
            os.fdopen(reader) as pipe,
            os.fdopen(writer, "w") as out,
            running("demo", *IN_MEMORY, "--items", "20000", stdout=out) as process,
        ):
            out.close()
            pipe.readline()
            pipe.close()
            _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (1, "")


class TestInAFile:
    """Without a server: in an SQLite file, with worker processes, of which some are killed."""

    def test_three_of_four_workers_are_killed_and_the_count_is_right(self, tmp_path: Path) -> None:
        """Killed before the write, in the queue, and after the write; the file is removed."""
        said = run_json(
            *("--items", "200", "--requests", "20", "--ttl", "1.5"), TMPDIR=str(tmp_path)
        )
        under_lock = said["with_lock"]
        assert said["server"].startswith("sqlite:////")
        assert said["without_lock"]["oversold"] > 0
        assert (under_lock["sold"], under_lock["oversold"], under_lock["left"]) == (200, 0, 0)
        assert under_lock["overtaken"] == 0
        assert sorted(kill["worker"] for kill in under_lock["killed"]) == [1, 2, 3]
        assert said["redis_py_lock"] is None
        assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def told(redis_server: RedisServer) -> str:
    """What is printed where the sale under redis-py's lock ends at once. Two tests read it."""
    printed = io.StringIO()
    asked = ["--workers", "3", "--items", "50", "--requests", "9", "--ttl", "1"]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setattr(story, "_CLOSING", 0.0)
        assert main(["demo", "--url", redis_server.url, *asked]) == 0
    return printed.getvalue()


class TestOnRedis:
    """On a real server, with worker processes, of which some are killed."""

    def test_three_of_four_workers_are_killed_and_the_count_is_right(
        self, redis_server: RedisServer
    ) -> None:
        """Killed before the write, in the queue, and after the write; nothing is left behind."""
        said = run_json(
            *("--url", redis_server.url, "--workers", "4"),
            *("--items", "200", "--requests", "20", "--ttl", "1.5"),
        )
        under_lock = said["with_lock"]
        assert said["without_lock"]["oversold"] > 0
        assert (under_lock["sold"], under_lock["oversold"], under_lock["left"]) == (200, 0, 0)
        assert under_lock["overtaken"] == 0
        killed = {kill["worker"]: kill for kill in under_lock["killed"]}
        fates = {worker: (kill["holding"], kill["wrote"]) for worker, kill in killed.items()}
        assert fates == {1: (True, False), 2: (False, False), 3: (True, True)}
        assert [killed[worker]["in_queue"] for worker in (1, 2, 3)] == [4, 5, 4]
        # A guard only: the others waited for the end of the lease, and not for anything longer.
        assert 0 < killed[1]["cost_seconds"] < 1.5 + 2
        assert 0 < killed[3]["cost_seconds"] < 1.5 + 2
        assert 0 < killed[2]["cost_seconds"] < 1.5
        assert 0 < under_lock["standstill_seconds"] < under_lock["seconds"]
        undelayed = under_lock["waiting_undelayed_ms"]
        assert 0 < undelayed["p99"] < under_lock["waiting_ms"]["p99"]
        # redis-py's lock has the same workers, and the same accidents, as far as it got.
        peer = said["redis_py_lock"]
        assert peer["items"] == 200 == peer["sold"] + peer["left"]
        assert {kill["worker"] for kill in peer["killed"]} <= {1, 2, 3}
        assert 0 <= peer["overtaken"] <= peer["waited"]
        assert redis_server.call("KEYS", KEYS) == []

    @pytest.mark.parametrize(("workers", "killed"), [(2, [1]), (5, [1, 2, 3])])
    def test_one_worker_always_lives(
        self, redis_server: RedisServer, workers: int, killed: list[int]
    ) -> None:
        """Even where a single item is for sale, so that most find that it is sold out."""
        said = run_json(
            *("--url", redis_server.url, "--workers", str(workers)),
            *("--items", "1", "--requests", str(workers), "--ttl", "1"),
        )
        assert said["with_lock"]["sold"] == 1
        assert sorted(kill["worker"] for kill in said["with_lock"]["killed"]) == killed

    def test_nobody_is_killed_on_request(self, redis_server: RedisServer) -> None:
        """Then a contended hand-off is two commands, but for telling the server the scripts.

        redis-py's lock makes two at least, and one more each time that it asks in vain.
        """
        said = run_json(
            *("--url", redis_server.unix_url, "--workers", "2", "--no-kill"),
            *("--items", "100", "--requests", "4", "--ttl", "30"),
        )
        assert said["with_lock"]["killed"] == []
        assert said["with_lock"]["requests"] == 104
        assert 2 <= said["with_lock"]["commands_per_grant"] < 2.2
        assert said["with_lock"]["handoff_ms"]["p50"] > 0
        peer = said["redis_py_lock"]
        assert (peer["sold"], peer["left"], peer["closed_after"]) == (100, 0, None)
        assert (peer["requests"], peer["killed"]) == (104, [])
        assert peer["commands_per_grant"] >= 2
        assert redis_server.call("KEYS", KEYS) == []

    def test_the_sale_under_redis_pys_lock_is_closed_in_time(self, told: str) -> None:
        """Also where nobody was killed by then; it is said, and the exit code is that of ours."""
        said = " ".join(told.split())
        assert (
            "With redis-py's Lock the shop was closed after 0 s, with 50 of 50 items left." in said
        )
        assert said.endswith("exactly right: 50 of 50 sold, each item once.")

    def test_tells_of_the_kills_while_it_runs(self, told: str) -> None:
        """Each is a line of its own, and its fate is told below the table."""
        assert re.search(
            r"SIGKILL for worker 1: lock in hand, before its write; its lease ends in [01]\.\d s\n",
            told,
        )
        assert "SIGKILL for worker 2: 3 of its requests were in the queue\n" in told
        assert "Worker 1 was killed before its write: another sold the item" in told
        assert "Worker 2 was killed with 3 requests in the queue: they were passed" in told

    @pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM], ids=["sigint", "sigterm"])
    def test_an_interruption_is_clean(
        self, redis_server: RedisServer, ending: signal.Signals
    ) -> None:
        """While all wait for a lease to end: a word, no traceback; no key and no worker stays."""
        with running("demo", "--url", redis_server.url, *STANDING_STILL) as process:
            wait_for(process, "SIGKILL")
            process.send_signal(ending)
            _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (130, "aiolock demo: interrupted\n")
        assert redis_server.call("KEYS", KEYS) == []
        wait_until_alone(redis_server)

    def test_workers_leave_when_the_demo_itself_is_killed(self, own_server: RedisServer) -> None:
        """Nobody is left to kill them, and what they leave on the server has an expiry."""
        with running("demo", "--url", own_server.url, *STANDING_STILL) as process:
            wait_for(process, "SIGKILL")
            process.kill()
            process.wait()
            wait_until_alone(own_server)
        keys = own_server.call("KEYS", KEYS)
        assert keys
        assert all(own_server.call("PTTL", key) > 0 for key in keys)


PREFIX = "aiolock-demo-test"


class TestPeer:
    """Customers under redis-py's own lock."""

    async def test_one_who_waits_in_vain_leaves_when_the_shop_closes(
        self, redis_server: RedisServer
    ) -> None:
        """It is known to have waited, and how often it asked."""
        redis_server.call("SET", key(PREFIX), "somebody else's", "EX", 60)
        visits: list[Visit] = []
        async with new_locks(redis_server.url, PREFIX, 30, 1) as new_lock:
            await PeerCustomers(0, MemoryShop(), visits.append, new_lock, 1.5).buy(1, None)
        redis_server.call("DEL", key(PREFIX))
        (visit,) = visits
        assert (visit.entered, visit.sold) == (0, False)
        assert visit.queued > 0
        assert visit.tries > 0

    async def test_a_lease_that_has_ended_is_noticed_at_the_release(
        self, redis_server: RedisServer
    ) -> None:
        """Too late for the sale; the customer goes on."""

        class Long(MemoryShop):
            async def sell(self, sale: Sale) -> None:
                await super().sell(sale)
                redis_server.call("DEL", key(PREFIX))

        shop = Long()
        await shop.open(2)
        visits: list[Visit] = []
        async with new_locks(redis_server.url, PREFIX, 30, 1) as new_lock:
            await PeerCustomers(0, shop, visits.append, new_lock, 60.0).buy(1, None)
        assert [(visit.sold, visit.lost) for visit in visits] == [
            (True, True),
            (True, True),
            (False, False),
        ]


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
    def test_wrong_arguments(
        self, args: list[str], why: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Each is one line that says what is wrong, before anything is done."""
        assert main(["demo", *args]) == 2
        out, errors = capsys.readouterr()
        assert out == ""
        assert re.fullmatch(r"aiolock demo: .+\n", errors)
        assert why in errors

    @pytest.mark.parametrize("number", ["0", "-1", "1.5", "many"])
    def test_wrong_counts(self, number: str, capsys: pytest.CaptureFixture[str]) -> None:
        """Counts are whole numbers from 1 on."""
        with pytest.raises(SystemExit, match="2"):
            main(["demo", f"--items={number}"])
        assert f"must be a whole number from 1 on, not '{number}'" in capsys.readouterr().err

    @pytest.mark.parametrize("output", [[], ["--json"]], ids=["table", "json"])
    def test_no_server(self, output: list[str]) -> None:
        """A port where nobody listens: one line, nothing on stdout, exit code 2."""
        with hold_port() as holder:
            address = f"127.0.0.1:{holder.getsockname()[1]}"
            done = run("demo", "--url", f"redis://{address}", *output)
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(rf"aiolock demo: redis://{address}: .*connect.*\n", done.stderr)

    @pytest.mark.parametrize("password", [None, "wrong-one"], ids=["none", "wrong"])
    def test_refused_password(self, password: str | None) -> None:
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

    def test_a_password_is_used_and_not_shown(self) -> None:
        """Workers get it too, and it is in no output and no list of processes."""
        with RedisServer(password="right-one") as server:
            done = run(
                *("demo", "--url", server.url, "--workers", "2", "--no-kill"),
                *("--items", "20", "--requests", "4"),
            )
        assert (done.returncode, done.stderr) == (0, "")
        assert "right-one" not in done.stdout


class TestCommandLine:
    """The command line round the demo."""

    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        """``--version`` says which one this is."""
        with pytest.raises(SystemExit, match="0"):
            main(["--version"])
        assert capsys.readouterr().out == f"aiolock {aiolock.__version__}\n"

    def test_help_lists_the_commands(self, capsys: pytest.CaptureFixture[str]) -> None:
        """``--help`` names what there is."""
        with pytest.raises(SystemExit, match="0"):
            main(["--help"])
        assert re.search(r"^ +demo +see it work", capsys.readouterr().out, re.MULTILINE)

    def test_a_command_is_needed(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Without one, it says so, and that is exit code 2."""
        with pytest.raises(SystemExit, match="2"):
            main([])
        assert "COMMAND" in capsys.readouterr().err


class Terminal(io.StringIO):
    """A terminal, by its own account."""

    def isatty(self) -> bool:
        return True


def shown(screen: Terminal) -> list[str]:
    """What it showed, one after the other, in its only line."""
    return [text for text in screen.getvalue().split("\r\x1b[K") if text]


class TestProgress:
    """What is said while it runs."""

    def test_rewrites_one_line_on_a_terminal(self) -> None:
        """And takes it back before anything that stays."""
        screen = Terminal()
        progress = Progress(screen)
        progress.meanwhile("they start")
        progress.begin("Act", 10)
        progress.show(1)
        progress.show(2)
        progress.line("stays")
        assert shown(screen) == [
            "  they start",
            "\nAct\n",
            "  1 of 10 sold",
            "  2 of 10 sold",
            "stays\n",
        ]

    def test_says_why_it_stands_still(self) -> None:
        """Until the lease of a killed holder has ended, and the next one sells something."""
        screen = Terminal()
        progress = Progress(screen)
        progress.begin("Act", 10)
        progress.killed(replace(HELD, lease=60.0))
        progress.show(3)
        progress.killed(replace(HELD, lease=0.0))
        progress.show(3)
        progress.show(4)
        progress.show(4)
        *_, dead, _, ended, moves, still_moves = shown(screen)
        assert re.fullmatch(
            r"  3 of 10 sold; the holder is dead, its lease ends in \d\d\.\d s", dead
        )
        assert ended == "  3 of 10 sold; the holder is dead, its lease ends in 0.0 s"
        assert moves == still_moves == "  4 of 10 sold"

    def test_says_why_it_is_not_over_when_all_is_sold(self) -> None:
        """One item was sold by a holder that was killed before it could tell."""
        screen = Terminal()
        progress = Progress(screen)
        progress.begin("Act", 10)
        progress.killed(replace(HELD, wrote=True))
        progress.show(9)
        assert shown(screen)[-1] == "  10 of 10 sold; the other requests have yet to find out"

    def test_prints_a_line_for_each_quarter_otherwise(self) -> None:
        """However often it is asked to show; the end is told by somebody else."""
        out = io.StringIO()
        progress = Progress(out)
        progress.meanwhile("they start")
        progress.begin("Act", 10)
        for done in (0, 1, 3, 4, 8, 9, 10):
            progress.show(done)
        assert out.getvalue() == "\nAct\n  3 of 10 sold\n  8 of 10 sold\n"


def visit(worker: int, number: int, fence: int, *times: int) -> Visit:
    """One in which an item was sold: asked, queued, entered, leaving."""
    asked, queued, entered, leaving = times
    return Visit(worker, number, asked, queued, entered, leaving, fence, sold=True)


def sale(*visits: Visit, kills: tuple[Kill, ...] = (), wrote: tuple[int, ...] = ()) -> Act:
    """A sale that came out right, as these visits and kills make it; all in milliseconds."""
    fences = sorted([*(each.fence for each in visits), *wrote])
    items = len(fences)
    return Act(
        locked=True,
        items=items,
        left=0,
        sales=[Sale(items - place, fence) for place, fence in enumerate(fences)],
        visits=[
            replace(
                each,
                asked=each.asked * 10**6,
                queued=each.queued * 10**6,
                entered=each.entered * 10**6,
                leaving=each.leaving * 10**6,
            )
            for each in visits
        ],
        kills=list(kills),
        seconds=10.0,
        ended=10_000 * 10**6,
        commands=2 * items,
    )


FIRST = visit(0, 0, 11, 1, 0, 2, 10)
SECOND = visit(1, 0, 12, 3, 4, 13, 20)
THIRD = visit(0, 1, 13, 5, 6, 22, 30)
HELD = Kill(2, 999, True, 1, 3, False, fence=14, entered=31 * 10**6, at=40 * 10**6)


class TestFigures:
    """What is measured, and what is not."""

    def test_handoff_is_from_the_release_of_one_to_the_body_of_the_next(self) -> None:
        """Across processes too, since both read one clock."""
        came = figures(sale(FIRST, SECOND, THIRD))
        assert came.handoff_ms == reckoning.Spread(p50=2.0, p99=2.0)
        assert came.waiting_ms == reckoning.Spread(p50=10.0, p99=10.0)
        assert came.commands_per_grant == 2.0

    def test_no_handoff_to_one_that_was_not_known_to_wait(self) -> None:
        """Its own way into the queue would be measured with it."""
        late = replace(SECOND, queued=11)
        at_once = replace(SECOND, queued=0)
        assert figures(sale(FIRST, late)).handoff_ms is None
        assert figures(sale(FIRST, at_once)).handoff_ms is None

    def test_no_handoff_over_a_killed_holder(self) -> None:
        """What its lease took is its cost, and standstill, and nobody's hand-off."""
        after = visit(0, 2, 15, 7, 8, 2040, 2050)
        came = figures(sale(FIRST, SECOND, THIRD, after, kills=(HELD,)))
        assert came.handoff_ms == reckoning.Spread(p50=2.0, p99=2.0)
        assert came.killed[0].cost_seconds == pytest.approx(2.0)
        assert came.standstill_seconds == pytest.approx(2.009)
        assert came.per_second == pytest.approx(4 / (10 - 2.009))

    def test_one_killed_holder_after_another(self) -> None:
        """Each costs until the next body, though that is the next one to be killed."""
        other = replace(HELD, worker=3, fence=15, entered=540 * 10**6, at=545 * 10**6)
        after = visit(0, 2, 16, 7, 8, 1045, 1050)
        came = figures(sale(FIRST, SECOND, THIRD, after, kills=(HELD, other)))
        assert [kill.cost_seconds for kill in came.killed] == pytest.approx([0.5, 0.5])
        assert came.standstill_seconds == pytest.approx(0.509 + 0.505)

    def test_one_killed_in_the_queue_costs_the_longest_handoff_past_its_places(self) -> None:
        """Of two places one was its own, so the hand-off after the next is not its doing."""
        queued = Kill(2, 999, False, 1, 2, True, fence=11, entered=2 * 10**6, at=8 * 10**6)
        came = figures(sale(FIRST, SECOND, replace(THIRD, entered=29), kills=(queued,)))
        assert came.killed[0].cost_seconds == pytest.approx(0.003)

    @pytest.mark.parametrize("one_clock", [True, False], ids=["one clock", "many clocks"])
    def test_without_a_common_clock_processes_are_not_compared(
        self, monkeypatch: pytest.MonkeyPatch, one_clock: bool
    ) -> None:
        """Then no hand-off between two, no overtaking, no cost: and the table says so."""
        monkeypatch.setattr(reckoning, "ONE_CLOCK", one_clock)
        monkeypatch.setattr("aiolock.cli.demo.table.ONE_CLOCK", one_clock)
        overtaken = replace(THIRD, worker=2, asked=1, queued=2)
        after = visit(0, 2, 15, 7, 8, 2040, 2050)
        came = figures(sale(FIRST, SECOND, overtaken, after, kills=(HELD,)))
        assert (came.handoff_ms is not None) == one_clock
        assert came.overtaken == int(one_clock)
        assert (came.killed[0].cost_seconds is not None) == one_clock
        assert any("no clock in common" in line for line in table([came, came])) != one_clock

    def test_who_did_not_wait_for_a_dead_holder_is_told_apart(self) -> None:
        """Else the lease is all that can be seen of the waiting."""
        over_it = visit(0, 2, 15, 7, 8, 2040, 2050)
        after_it = visit(0, 3, 16, 2045, 2046, 2050, 2060)
        came = figures(sale(FIRST, SECOND, THIRD, over_it, after_it, kills=(HELD,)))
        # Of so few, p99 is the last but one.
        assert came.waiting_ms == reckoning.Spread(p50=10.0, p99=17.0)
        assert came.waiting_undelayed_ms == reckoning.Spread(p50=5.0, p99=10.0)

    def test_a_holder_that_was_killed_last_holds_until_the_end(self) -> None:
        """The shop was closed before its lease had ended; nobody knows what it cost."""
        act = replace(sale(FIRST, SECOND, kills=(HELD,)), seconds=5.0, ended=4031 * 10**6)
        came = figures(act)
        assert came.standstill_seconds == pytest.approx(4.0)
        assert came.per_second == pytest.approx(2 / 1.0)
        assert came.killed[0].cost_seconds is None

    def test_without_fencing_tokens_turns_are_in_the_order_of_the_clock(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And where processes have none in common, nothing is known of two turns in a row."""
        second, first, third = (replace(each, fence=0) for each in (SECOND, FIRST, THIRD))
        killed = replace(HELD, fence=0, queue=None)
        act = sale(second, first, third, kills=(killed,))
        assert figures(act).handoff_ms == reckoning.Spread(p50=2.0, p99=2.0)
        assert figures(act).standstill_seconds == pytest.approx(10 - 0.031)
        monkeypatch.setattr(reckoning, "ONE_CLOCK", False)
        assert figures(act).handoff_ms is None
        assert figures(act).standstill_seconds == 0

    def test_where_there_is_no_queue_one_killed_outside_costs_nobody_anything(self) -> None:
        """At least nobody can say."""
        polling = Kill(2, 999, False, 1, None, False, fence=0, entered=2 * 10**6, at=8 * 10**6)
        came = figures(sale(FIRST, SECOND, THIRD, kills=(polling,)))
        assert came.killed[0].cost_seconds is None

    def test_items_for_each_customer_of_a_worker_that_lived(self) -> None:
        """Who has got nothing is among them, be it that the shop closed before its turn."""
        in_vain = Visit(0, 7, asked=1, customer=2)
        ones = [replace(each, worker=0, customer=1) for each in (FIRST, SECOND, THIRD)]
        dead = replace(FIRST, worker=2, customer=5)
        came = figures(sale(*ones, in_vain, dead, kills=(HELD,)))
        assert came.per_customer == (0, 3)
        assert came.requests == 4


class TestTable:
    """What a person is told of the figures."""

    def test_three_columns_fit_a_terminal(self) -> None:
        """With figures as long as they may get."""
        spread = reckoning.Spread(p50=1234.5, p99=23456.7)
        act = sale(FIRST, SECOND, THIRD, kills=(HELD,))
        came = replace(
            figures(act),
            requests=1_000_000,
            waiting_ms=spread,
            handoff_ms=replace(spread, p50=0.0624, p99=42.06),
            overtaken=999_999,
            waited=1_000_000,
        )
        lines = list(table([figures(replace(act, locked=False)), came, came]))
        assert max(map(len, lines)) <= 80
        assert re.search(
            r"^  waiting, p50 / p99 +- +1,234 / 23,457 ms +1,234 / 23,457 ms$",
            "\n".join(lines),
            re.MULTILINE,
        )

    def test_updates_that_were_lost_are_told(self) -> None:
        """Of any column; where as many are sold as are gone there is nothing to tell."""
        right = figures(sale(FIRST, SECOND, THIRD))
        lost = replace(right, sold=5, items=3, left=1)
        said = " ".join(" ".join(table([lost, right])).split())
        assert "Without a lock 5 buyers were told yes, and the stock went down by 2: each" in said
        assert "With aiolock 3 buyers" not in said

    def test_a_lock_without_a_queue_is_told_of(self) -> None:
        """Most requests did not wait, for those who did were overtaken all the time."""
        came = figures(sale(FIRST, SECOND, THIRD))
        said = " ".join(" ".join(table([came, came, replace(came, requests=9, waited=2)])).split())
        assert "With redis-py's Lock 7 of 9 requests did not wait: who had just released" in said
        assert "did not wait" not in " ".join(table([came, came, came]))


class TestOvertaken:
    """Who counts as overtaken."""

    def test_nobody_in_order(self) -> None:
        """Those who were served as they came."""
        came = figures(sale(FIRST, SECOND, THIRD))
        assert (came.overtaken, came.waited) == (0, 2)

    def test_within_a_process_the_order_of_the_calls_counts(self) -> None:
        """However short the time between them."""
        earlier = visit(0, 1, 13, 5, 6, 22, 30)
        later = visit(0, 2, 12, 5, 6, 13, 20)
        assert figures(sale(FIRST, later, earlier)).overtaken == 1

    def test_without_a_queue_the_order_of_the_calls_is_not_enough(self) -> None:
        """They were under way together: on two connections, so that either may have come first."""
        earlier = visit(0, 1, 0, 5, 8, 22, 30)
        later = visit(0, 2, 0, 6, 9, 13, 20)
        after_it = visit(0, 2, 0, 9, 10, 13, 20)
        first = replace(FIRST, fence=0)
        assert figures(sale(first, later, earlier)).overtaken == 0
        assert figures(sale(first, after_it, earlier)).overtaken == 1

    def test_across_processes_one_must_have_been_queued_before_the_other_asked(self) -> None:
        """Asked earlier is not enough: both may have been on their way together."""
        earlier = visit(0, 1, 13, 5, 8, 22, 30)
        on_its_way = visit(1, 0, 12, 7, 9, 13, 20)
        after_it = visit(1, 0, 12, 9, 10, 13, 20)
        assert figures(sale(FIRST, on_its_way, earlier)).overtaken == 0
        assert figures(sale(FIRST, after_it, earlier)).overtaken == 1


class TestAudit:
    """What makes a sale wrong."""

    def test_nothing_is_wrong(self) -> None:
        """A killed holder that had not written sold nothing, one that had sold its item."""
        wrote = replace(HELD, wrote=True)
        assert audit(sale(FIRST, SECOND, THIRD, kills=(HELD,))) == []
        assert audit(sale(FIRST, SECOND, THIRD, kills=(wrote,), wrote=(HELD.fence,))) == []

    def test_a_killed_holder_whose_sale_is_not_as_it_said(self) -> None:
        """Either way round."""
        wrote = replace(HELD, wrote=True)
        lost = audit(sale(FIRST, SECOND, THIRD, kills=(wrote,)))
        made_up = audit(sale(FIRST, SECOND, THIRD, kills=(HELD,), wrote=(HELD.fence,)))
        assert lost == ["worker 2 was killed, and its last sale is not on record"]
        assert made_up == [
            "worker 2 was killed, and its last sale is on record though it had not written it"
        ]

    def test_stock_is_left(self) -> None:
        """All is on record, and yet the stock is not 0."""
        act = replace(sale(FIRST, SECOND), left=1)
        assert audit(act) == ["the stock is 1 at the end"]

    def test_too_many_are_sold(self) -> None:
        """Two had read the same stock."""
        right = sale(FIRST, SECOND, THIRD)
        act = replace(right, items=2, sales=[Sale(2, 11), Sale(2, 12), Sale(1, 13)])
        assert audit(act) == [
            "3 sales are on record, of 2 items",
            "1 items were sold more than once",
        ]

    def test_an_older_holder_wrote_after_a_newer_one(self) -> None:
        """The fencing tokens of the records tell."""
        right = sale(FIRST, SECOND, THIRD)
        act = replace(right, sales=[Sale(3, 11), Sale(2, 13), Sale(1, 12)])
        assert audit(act) == ["1 sales were written after one with a higher fencing token"]

    def test_a_customer_was_told_of_a_sale_that_is_not_on_record(self) -> None:
        """The record has another's in its place."""
        right = sale(FIRST, SECOND, THIRD)
        act = replace(right, sales=[Sale(3, 11), Sale(2, 12), Sale(1, 99)])
        assert audit(act) == ["1 customers bought an item, and it is not on record"]
