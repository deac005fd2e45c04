"""`aiolock demo`, run as its users run it."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import IO, Any
from unittest import mock

import pytest

from aiolock.cli.demo.contention import AIOLOCK, NO_LOCK, REDIS_PY, WITH_KILLS
from aiolock.cli.main import main
from tests.support.demos import ONE_WORKER, aiolock_command, make_only, run, run_json
from tests.support.servers import RedisServer

KEYS = "aiolock-demo-*"
# From the first kill on, for the seconds of a claim: enough for a test to do what it likes.
STANDING_STILL = ("--workers", "3", "--items", "40", "--requests", "40", "--ttl", "60")


@contextmanager
def running(
    *args: str, stdout: int | IO[str] = subprocess.PIPE
) -> Generator[subprocess.Popen[str]]:
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


class TestOneWorker:
    """One process, whose tasks contend; without a server, in an SQLite file."""

    def test_demo_with_one_request_at_once_is_right_without_a_lock(self) -> None:
        """Where nobody competes both runs are right, and there is no hand-off to measure."""
        said = run_json(*ONE_WORKER, "--items", "5", "--requests", "1")
        assert said["no lock"]["oversold"] == 0
        assert said["no lock"]["left"] == 0
        assert "handoff_ms" not in said["aiolock"]

    def test_demo_in_a_pipe_prints_a_table_without_terminal_codes(self) -> None:
        """What a person reads: the stock, the runs, the table, the verdict."""
        done = run("demo", *ONE_WORKER, "--items", "300", "--requests", "20")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("Processes: 1, requests: 20, stock: 300 items.\n")
        assert "\nWithout a lock\n  320 of 300 items sold, " in done.stdout
        assert "\n  (requests overwrote each other's numbers)\n\nWith aiolock\n" in done.stdout
        assert re.search(r"^oversold +20 +0$", done.stdout, re.MULTILINE)
        assert re.search(r"^hand-off, median +- +[\d.]+ ms$", done.stdout, re.MULTILINE)
        assert re.search(r"^longest wait +- +[\d.]+ s$", done.stdout, re.MULTILINE)
        assert "exactly right: each item sold once.\n" in done.stdout
        assert not set("\x1b\r") & set(done.stdout)

    def test_demo_whose_reader_closes_the_pipe_ends_without_a_traceback(self) -> None:
        """``aiolock demo | head -1`` is no reason for a traceback."""
        reader, writer = os.pipe()
        with (
            os.fdopen(reader) as pipe,
            os.fdopen(writer, "w") as out,
            running("demo", *ONE_WORKER, "--items", "2000", stdout=out) as process,
        ):
            out.close()
            pipe.readline()
            pipe.close()
            _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (1, "")


def assert_killed(said: dict[str, Any], ttl: float) -> None:
    """Three of four workers were killed, and the count is right all the same."""
    killed = said["killed"]
    assert (killed["sold"], killed["oversold"], killed["left"]) == (200, 0, 0)
    assert (killed["overtaken"], killed["killed"]) == (0, 3)
    # A guard only: the others waited for the end of the lease, and not for anything longer.
    assert 0 < killed["blocked_ms"] / 1000 < ttl + 2
    assert 0 < killed["slowest_handoff_ms"] / 1000 < ttl


class TestInAFile:
    """Without a server: in an SQLite file, with worker processes, of which some are killed."""

    def test_demo_with_three_of_four_workers_killed_sells_each_item_once(
        self, tmp_path: Path
    ) -> None:
        """Killed before the write, in the queue, and after the write; the files are removed."""
        said = run_json(
            *("--items", "200", "--requests", "20", "--ttl", "1.5"), TMPDIR=str(tmp_path)
        )
        assert said["no lock"]["oversold"] > 0
        assert (said["aiolock"]["sold"], said["aiolock"]["overtaken"]) == (200, 0)
        assert_killed(said, 1.5)
        assert "redis-py" not in said
        assert list(tmp_path.iterdir()) == []


class TestOnRedis:
    """On a real server, with worker processes, of which some are killed."""

    def test_demo_with_three_of_four_workers_killed_sells_each_item_once(
        self, redis_server: RedisServer
    ) -> None:
        """Killed before the write, in the queue, and after the write; nothing is left behind."""
        said = run_json(
            *("--url", redis_server.url, "--workers", "4"),
            *("--items", "200", "--requests", "20", "--ttl", "1.5"),
        )
        assert said["no lock"]["oversold"] > 0
        assert (said["aiolock"]["sold"], said["aiolock"]["overtaken"]) == (200, 0)
        assert_killed(said, 1.5)
        # redis-py's lock has the same workers, as far as it got.
        peer = said["redis-py"]
        assert peer["items"] == 200 == peer["sold"] + peer["left"]
        assert peer["overtaken"] >= 0
        assert redis_server.call("KEYS", KEYS) == []

    @pytest.mark.parametrize(("workers", "killed"), [(2, {1}), (3, {1, 2}), (5, {1, 2, 3})])
    def test_demo_kills_all_workers_but_one_at_most(
        self,
        redis_server: RedisServer,
        workers: int,
        killed: set[int],
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """Each as the worker that it is: before its write, in the queue, after its write."""
        make_only(monkeypatch, WITH_KILLS)
        asked = ["--url", redis_server.url, "--workers", str(workers), "--items", "80"]
        assert main(["demo", *asked, "--requests", "10", "--ttl", "1"]) == 0
        found = re.findall(r"^  worker (\d) is killed (.+)", capsys.readouterr().out, re.MULTILINE)
        fates = {
            1: "with the lock held, before its write",
            2: "with requests in the queue",
            3: "with the lock held, after its write",
        }
        assert {int(worker): fate for worker, fate in found} == {n: fates[n] for n in killed}

    def test_demo_with_a_single_item_is_right_if_it_comes_to_no_kill(
        self,
        redis_server: RedisServer,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """Most requests find that it is sold out."""
        make_only(monkeypatch, WITH_KILLS)
        asked = ["--url", redis_server.url, "--items", "1", "--requests", "4", "--ttl", "1"]
        assert main(["demo", "--json", *asked]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["killed"]["sold"] == 1
        assert said["killed"]["killed"] == 0

    def test_demo_needs_two_commands_a_handoff(
        self,
        redis_server: RedisServer,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """A contended hand-off is two commands, but for telling the server the scripts.

        redis-py's lock makes two at least, and one more each time that it asks in vain.
        """
        make_only(monkeypatch, NO_LOCK, REDIS_PY, AIOLOCK)
        asked = ["--url", redis_server.unix_url, "--workers", "2", "--ttl", "30"]
        assert main(["demo", "--json", *asked, "--items", "400", "--requests", "4"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert 1 <= said["aiolock"]["commands"] < 2.2
        assert said["aiolock"]["handoff_ms"] > 0
        peer = said["redis-py"]
        assert (peer["sold"], peer["left"]) == (400, 0)
        assert peer["commands"] >= 2
        assert redis_server.call("KEYS", KEYS) == []

    def test_demo_ends_workers_that_poll_a_held_redis_py_lock(
        self, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Workers that are polling a lock of somebody else."""
        monkeypatch.setattr("secrets.token_hex", mock.Mock(return_value="test"))
        make_only(monkeypatch, AIOLOCK, REDIS_PY._replace(seconds=1.0))
        redis_server.call("SET", "aiolock-demo-test:redis-py", "somebody else's", "EX", 60)
        printed = io.StringIO()
        asked = ["--workers", "2", "--items", "10", "--requests", "4"]
        with redirect_stdout(printed):
            assert main(["demo", "--url", redis_server.url, *asked]) == 0
        assert "\n  ended after 1 s\n  0 of 10 items sold, 10 left" in printed.getvalue()
        assert redis_server.call("KEYS", KEYS) == []

    @pytest.mark.long  # the run with redis-py comes first
    def test_demo_whose_server_is_gone_exits_69_with_one_line(self) -> None:
        """By a worker, in the middle of a run; no worker stays."""
        with RedisServer() as server:
            url = server.url
            with running("demo", "--url", url, "--items", "20000") as process:
                wait_for(process, "With aiolock")
                server.kill()
                _, errors = process.communicate(timeout=30)
        assert process.returncode == 69
        *warnings, said = errors.splitlines()
        assert re.match(rf"aiolock demo: worker \d: .*{url.rpartition('/')[2]}", said)
        assert all(line.startswith("aiolock: ") for line in warnings)

    @pytest.mark.parametrize(
        ("ending", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["sigint", "sigterm"]
    )
    def test_demo_interrupted_leaves_no_key_worker_or_traceback(
        self, redis_server: RedisServer, ending: signal.Signals, code: int
    ) -> None:
        """While all wait for a lease to end: a word, no traceback; no key and no worker stays."""
        with running("demo", "--url", redis_server.url, *STANDING_STILL) as process:
            wait_for(process, "is killed")
            process.send_signal(ending)
            _, errors = process.communicate(timeout=20)
        assert (process.returncode, errors) == (code, "aiolock demo: interrupted\n")
        assert redis_server.call("KEYS", KEYS) == []
        wait_until_alone(redis_server)

    def test_demo_killed_itself_leaves_no_worker_and_only_expiring_keys(
        self, own_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nobody is left to kill them, and what they leave on the server has an expiry."""
        monkeypatch.setenv("TMPDIR", str(tmp_path))  # where its files stay
        with running("demo", "--url", own_server.url, *STANDING_STILL) as process:
            wait_for(process, "is killed")
            process.kill()
            process.wait()
            wait_until_alone(own_server)
        keys = own_server.call("KEYS", KEYS)
        assert keys
        assert all(own_server.call("PTTL", key) > 0 for key in keys)

    def test_demo_with_a_password_uses_it_and_does_not_show_it(self) -> None:
        """Workers get it too, and it is in no output and no list of processes."""
        with RedisServer(password="right-one") as server:
            done = run(
                *("demo", "--url", server.url, "--workers", "2", "--ttl", "0.5"),
                *("--items", "20", "--requests", "4"),
            )
        assert (done.returncode, done.stderr) == (0, "")
        assert "right-one" not in done.stdout
